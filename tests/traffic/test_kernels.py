"""Kernels and bytes of eager code against MLX: what it launches, by name, and which reshapes copy."""

from __future__ import annotations

import ctypes
import io
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from fuselint.graph.tape import RESHAPES, VIEWS
from fuselint.graph.trace import trace
from fuselint.traffic.kernels import Bytes, kernels
from fuselint.traffic.layout import Layout
from fuselint.traffic.sizes import Sizes
from tests.graph.functions import HEAD, graph_of, random_function, with_shapes

mx = pytest.importorskip("mlx.core")
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

EXPORTED = {
    "Rsqrt": "Sqrt", "Log2": "Log", "Log10": "Log", "CumSum": "Scan", "NaNEqual": "Equal", "Sum": "Reduce",
    "Max": "Reduce", "Min": "Reduce",
}  # fmt: skip


def launched(source: str, shapes: Sequence[tuple[int, ...]]) -> Counter[str]:
    """The kernels of a lazy graph, without views."""
    space: dict[str, Any] = {}
    exec(source, space)
    arguments = [mx.ones(s) * (i + 1) for i, s in enumerate(shapes)]
    mx.eval(arguments)
    out = space["f"](*arguments)
    dot = io.StringIO()
    mx.export_to_dot(dot, *(out if isinstance(out, tuple) else (out,)))
    names = (EXPORTED.get(n, n) for n in re.findall(r'label ="([^"]*)"', dot.getvalue()))
    return Counter(n for n in names if n not in VIEWS and n not in RESHAPES)


def counted(source: str, shapes: Sequence[tuple[int, ...]]) -> Counter[str]:
    graph = with_shapes(graph_of(source), shapes)
    return Counter(k.op for k in kernels(_needed(graph), graph.facts) if k.op not in RESHAPES)


def _needed(graph: Any) -> list[Any]:
    """What the returned values are made of: MLX is lazy, and runs nothing else."""
    from fuselint.graph.model import region

    return region(graph.returns[0][1], ())


@needs_compiler
@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_eager_code_launches_what_is_counted(seed: int) -> None:
    f = random_function(seed)
    assert counted(f.source, f.shapes) == launched(f.source, f.shapes), f.source


BODIES = {
    "mean": "x.mean(-1, keepdims=True)",
    "mean without keepdims": "x.mean(axis=(0, 1))",
    "variance": "mx.var(x, axis=-1)",
    "deviation": "mx.std(x, axis=-1, keepdims=True)",
    "softmax": "mx.softmax(x, axis=-1)",
    "softmax over another axis": "mx.softmax(x, axis=1)",
    "logsumexp": "mx.logsumexp(x, axis=-1)",
    "norm": "mx.linalg.norm(x, axis=-1, keepdims=True)",
    "clip": "mx.clip(x, 0, 1)",
    "matmul": "x @ x.swapaxes(-1, -2)",
    "repeat": "mx.repeat(x, 2, axis=1)",
    "tile": "mx.tile(x, (1, 2, 1))",
    "concatenate": "mx.concatenate([x, x], axis=-1)",
    "slices": "x[..., :2] + x[..., 2:4]",
    "new axes": "x[:, None] * x[:, :, None]",
    "a row": "x[0]",
    "one row of each": "x[:, 0]",
    "same value twice": "mx.exp(x) + mx.exp(x)",
    "casts": "x.astype(mx.bfloat16).astype(mx.float32)",
    "a promoting scalar": "x.astype(mx.bfloat16) * mx.array(0.5)",
    "split": "mx.split(x, 2, axis=-1)[0] * 2",
    "take": "mx.take(x, mx.array([0, 1]), axis=1)",
    "gelu, a kernel more for its depth": "nn.gelu_approx(x)",
    "silu": "nn.silu(x) * x",
    "zeros_like": "mx.maximum(x, mx.zeros_like(x))",
    "swapped and flattened": "mx.exp(x.swapaxes(0, 1)).reshape(-1)",
}


@needs_compiler
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_op_launches_what_is_counted(body: str) -> None:
    source = f"{HEAD}def f(x):\n    return {body}\n"
    assert counted(source, [(2, 4, 8)]) == launched(source, [(2, 4, 8)])


@needs_compiler
@pytest.mark.parametrize("body", ["nn.log_softmax(x)", "nn.gelu_approx(x) * x", "nn.mish(x)"])
def test_as_many_kernels_are_counted_of_what_mlx_compiles_itself(body: str) -> None:
    source = f"{HEAD}def f(x):\n    return {body}\n"
    assert counted(source, [(2, 4, 8)]).total() == launched(source, [(2, 4, 8)]).total()


RESHAPED = {
    "contiguous": ("x", "y.reshape(8, 8)"),
    "transposed": ("x.transpose(0, 2, 1)", "y.reshape(2, -1)"),
    "merging heads": ("x.swapaxes(0, 1)", "y.reshape(4, -1)"),
    "splitting an axis of a transposed": ("x.transpose(0, 2, 1)", "y.reshape(2, 2, 4, 4)"),
    "inner slice": ("x[..., :4]", "y.reshape(-1)"),
    "outer slice": ("x[:1]", "y.reshape(-1)"),
    "every second row": ("x[:, ::2]", "y.reshape(-1, 8)"),
    "broadcast": ("mx.broadcast_to(x[:, :, None], (2, 4, 3, 8))", "y.reshape(2, -1)"),
    "transposed twice": ("x.transpose(0, 2, 1).transpose(0, 2, 1)", "y.reshape(-1)"),
    "of a transposed, put right": ("(x.transpose(2, 1, 0) * 2).transpose(2, 1, 0)", "y.reshape(-1)"),
    "new axis": ("x[:, None]", "y.reshape(2, 4, 8)"),
    "flattened": ("x.swapaxes(1, 2)", "mx.flatten(y)"),
    "unflattened": ("mx.unflatten(x, -1, (2, 4))", "y.reshape(-1)"),
}


@pytest.mark.parametrize(("view", "reshape"), RESHAPED.values(), ids=RESHAPED)
def test_a_reshape_is_a_kernel_where_it_copies(view: str, reshape: str) -> None:
    graph = with_shapes(graph_of(f"{HEAD}def f(x):\n    y = {view}\n    return {reshape}\n"), [(2, 4, 8)])
    layout = Layout(trace(_needed(graph), graph.facts).tracer.arrays)
    space: dict[str, Any] = {}
    exec(f"{HEAD}def view(x):\n    return {view}\n\n\ndef reshape(y):\n    return {reshape}\n", space)
    y = space["view"](mx.ones((2, 4, 8)))
    mx.eval(y)
    out = space["reshape"](y)
    mx.eval(out)
    assert bool(layout.copies) == (_address(y) != _address(out))


def _address(a: Any) -> int:
    """Where the data lies, as DLPack hands it out."""

    class Tensor(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p),)

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = a.__dlpack__()
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(Tensor)).contents
    return int(tensor.data)


# -- dtypes that nobody states ----------------------------------------------------------------------------------------

F32, BF16 = "float32", "bfloat16"
DTYPES = {
    "a table beside float32": ("return x.astype(mx.float32) * y + y", {0: BF16, 1: F32}),
    "both stated": ("return x.astype(mx.float32) * y.astype(mx.bfloat16)", {0: BF16, 1: F32}),
    "carried around a loop": (
        "out = mx.zeros(x.shape, dtype=mx.float32)\n    for i in range(1):\n"
        "        out = out + x.astype(mx.float32) * y\n    return out", {0: BF16, 1: F32},
    ),
    "cast back": ("h = x.astype(mx.float32) * y\n    return h.astype(x.dtype) + x", {0: BF16, 1: F32}),
    "complex": ("z = x + 1j * y\n    return z * z", {0: F32, 1: F32}),
    "complex of halves": ("return mx.exp(x) * (mx.cos(y) + 1j * mx.sin(y))", {0: BF16, 1: BF16}),
    "a condition": ("return mx.where(x, mx.exp(y), 0.0)", {0: "bool_", 1: F32}),
    "a complex table": ("return (x.astype(mx.float32) + 1j * x.astype(mx.float32)) * y", {0: BF16, 1: "complex64"}),
}  # fmt: skip


@pytest.mark.parametrize(("body", "dtypes"), DTYPES.values(), ids=DTYPES)
def test_casts_count_where_the_code_says_both_dtypes(body: str, dtypes: dict[int, str]) -> None:
    """The arguments' dtypes are those that MLX is given; the code alone says as much."""
    source = f"{HEAD}def f(x: mx.array, y: mx.array):\n    {body}\n"
    space: dict[str, Any] = {}
    exec(source, space)
    arguments = [mx.ones((4, 8)).astype(getattr(mx, dtypes[i])) for i in range(2)]
    mx.eval(arguments)
    dot = io.StringIO()
    mx.export_to_dot(dot, space["f"](*arguments))
    made = Counter(n for n in re.findall(r'label ="([^"]*)"', dot.getvalue()) if n not in VIEWS and n != "Full")
    graph = graph_of(source)
    found = Counter(k.op for k in kernels(_needed(graph), graph.facts) if k.op not in ("Opaque", "Full"))
    assert found == made


def test_an_operand_that_an_activation_made_is_in_memory() -> None:
    graph = graph_of(f"{HEAD}def f(x: mx.array, w: mx.array):\n    h = nn.gelu(x)\n    return h * w + h @ w\n")
    (product,) = [n for n in graph.nodes if n.op == "multiply"]
    assert [k.op for k in kernels([product], graph.facts)] == ["Multiply"]


def test_what_a_gate_of_rows_meets_is_as_large_as_the_result() -> None:
    """The gate has one number a row; the value beside it, of unknown shape, has the rows."""
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, 1)

    def __call__(self, x, y):
        return x + mx.sigmoid(self.gate(x)) * y
"""
    graph = graph_of(source, "M.__call__")
    chain = [n for n in graph.nodes if n.op in ("sigmoid", "multiply", "add")]
    sizes = Bytes(Sizes.of(a.shape for k in kernels(chain, graph.facts) for a in (*k.reads, *k.writes)))
    assert [str(sizes.moved(k)) for k in kernels(chain, graph.facts)] == ["4*T", "4*T*D + 2*T", "6*T*D"]


AXES = {
    "a new axis": "y[:, None]",
    "a new axis of a part": "mx.split(y[:, None], 2, axis=2)[0]",
    "an axis by its number": "mx.expand_dims(y, 1)",
    "an activation of it": "mx.tanh(mx.expand_dims(y, axis=1))",
    "as many axes of one as it takes": "y.reshape(n, 1, *([1] * (x.ndim - 2)))",
}


@pytest.mark.parametrize("gate", AXES.values(), ids=AXES)
def test_an_axis_that_the_code_makes_holds_one(gate: str) -> None:
    graph = graph_of(f"{HEAD}def f(x: mx.array, y: mx.array, n: int):\n    return x * {gate}\n")
    (product,) = (k for k in kernels([graph.returns[0][1]], graph.facts) if k.op == "Multiply")
    sizes = Sizes.of(a.shape for a in (*product.reads, *product.writes))
    assert "T" not in sizes.elements(product.reads[1].shape).names
    assert str(sizes.elements(product.writes[0].shape)) == "T*D"
