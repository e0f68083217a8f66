"""Which reshapes copy, against MLX; and what fused ops are on each backend, in each version, and under a gradient."""

from __future__ import annotations

import ctypes
import io
import re
from collections import Counter
from typing import Any

import pytest

from fuselint.graph.gates import Gates
from fuselint.graph.model import Node, region
from fuselint.graph.tape import VIEWS
from fuselint.graph.trace import trace
from fuselint.traffic.kernels import Bytes, compiled_kernels, kernels, launched
from fuselint.traffic.layout import Layout
from fuselint.traffic.sizes import Sizes
from tests.graph.functions import HEAD, graph_of, with_shapes

mx = pytest.importorskip("mlx.core")


def _needed(graph: Any) -> list[Node]:
    """What the returned values are made of: MLX is lazy, and runs nothing else."""
    return region(graph.returns[0][1], ())


@pytest.mark.parametrize(
    "made", ["mx.zeros_like(x)", "mx.full_like(x, 0.5)", "mx.ones((2, 4, 8))", "mx.full((2, 8), 1)"]
)
def test_what_fills_an_array_reads_nothing(made: str) -> None:
    graph = with_shapes(graph_of(f"{HEAD}def f(x):\n    return {made} + x\n"), [(2, 4, 8)])
    assert [[r.node for r in k.reads] for k in kernels(_needed(graph), graph.facts) if k.op == "Full"] == [[]]


def test_a_value_that_branches_join_is_no_kernel() -> None:
    body = "y = mx.exp(x)\n    if m is not None:\n        y = y + m\n    return mx.tanh(y)"
    source = f"{HEAD}def f(x: mx.array, m):\n    {body}\n"
    graph = graph_of(source)
    assert [k.op for k in kernels(_needed(graph), graph.facts)] == ["Exp", "Add", "Tanh"]


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


def test_sizes_that_do_not_divide_on_paper_are_a_view_of_contiguous_rows() -> None:
    body = "    B, L, D = x.shape\n    return mx.exp(x).reshape(B, L, 2, D // 2)\n"
    graph = graph_of(f"{HEAD}def f(x: mx.array):\n{body}")
    assert [k.op for k in kernels(_needed(graph), graph.facts)] == ["Exp"]


def _address(a: Any) -> int:
    """Where the data lies, as DLPack hands it out."""

    class Tensor(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p),)

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = a.__dlpack__()
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(Tensor)).contents
    return int(tensor.data)


# -- gates -------------------------------------------------------------------------------------------------------------


def names(
    body: str, gates: Gates, shapes: tuple[tuple[int, ...], ...] = ((2, 4, 8), (8,), (1, 4, 64, 64))
) -> list[str]:
    graph = with_shapes(graph_of(f"{HEAD}def f(x, w, q):\n    return {body}\n"), shapes)
    return [k.op for k in kernels(_needed(graph), graph.facts, gates)]


ATTENTION = "mx.fast.scaled_dot_product_attention(q, q, q, scale=0.125)"
HALF = "mx.fast.scaled_dot_product_attention({0}, {0}, {0}, scale=0.125)".format("q.astype(mx.bfloat16)")
"""In half precision, as cuDNN takes it; three of its kernels are casts."""


@pytest.mark.parametrize(
    ("body", "backend", "number"),
    [
        ("mx.fast.rms_norm(x, w, 1e-5)", "metal", 1),
        ("mx.fast.rms_norm(x, w, 1e-5)", "cuda", 1),
        ("mx.fast.rms_norm(x, w, 1e-5)", "cpu", 7),
        ("mx.fast.rms_norm(x.astype(mx.float16), w, 1e-5)", "metal", 3),  # back to float32, as the weight
        ("mx.fast.layer_norm(x, w, w, 1e-5)", "metal", 1),
        ("mx.fast.rope(q, 64, traditional=False, base=1e4, scale=1.0, offset=0)", "metal", 1),
        (ATTENTION, "metal", 1),
        (HALF, "cuda", 3 + 1),
        (ATTENTION, "cuda", 4),
        (ATTENTION, "cpu", 4),
    ],
)
def test_what_has_a_kernel_of_its_own(body: str, backend: Any, number: int) -> None:
    assert len(names(body, Gates(backend))) == number


def test_attention_is_steps_under_a_gradient_on_metal() -> None:
    assert len(names(ATTENTION, Gates("metal", training=True))) == 4
    assert len(names(HALF, Gates("cuda", training=True))) == 3 + 1


def test_attention_is_fused_since() -> None:
    shapes = ((2, 4, 8), (8,), (1, 4, 64, 96))
    assert names(ATTENTION, Gates(version=(0, 32, 1)), shapes) == ["ScaledDotProductAttention"]
    assert len(names(ATTENTION, Gates(version=(0, 31, 0)), shapes)) == 4  # head dimension 96 came later


def test_merging_the_heads_of_fused_attention_is_free_in_prefill_on_metal() -> None:
    body = f"{ATTENTION}.transpose(0, 2, 1, 3).reshape(1, {{}}, -1)"
    many, few = (((2, 4, 8), (8,), (1, 4, n, 64)) for n in (64, 4))
    assert names(body.format(64), Gates("metal"), many) == ["ScaledDotProductAttention"]
    assert names(body.format(4), Gates("metal"), few) == ["ScaledDotProductAttention", "Reshape"]
    half = body.replace(ATTENTION, HALF).format(64)
    assert names(half, Gates("cuda"), many)[3:] == ["ScaledDotProductAttention", "Reshape"]


def test_a_reshape_that_a_size_of_one_makes_free() -> None:
    body = "B, L, _ = x.shape\n    return x.reshape(B, L, 4, 16).transpose(0, 2, 1, 3).reshape(B, 4 * L, 16)"
    graph = graph_of(f"{HEAD}def f(x):\n    {body}\n")
    many = kernels(_needed(graph), graph.facts, Gates())
    one = kernels(_needed(graph), graph.facts, Gates(ones=frozenset({"L"})))
    assert ([k.op for k in many], one) == (["Reshape"], [])


def test_results_of_one_primitive_are_one_kernel() -> None:
    graph = with_shapes(graph_of(f"{HEAD}def f(x):\n    q, r = mx.divmod(x, 3)\n    return r * 2\n"), [(4,)])
    first, _ = kernels(_needed(graph), graph.facts)
    assert (first.op, len(first.writes)) == ("DivMod", 2)


def test_several_results_of_one_compiled_kernel() -> None:
    graph = with_shapes(graph_of(f"{HEAD}def f(x):\n    y = mx.exp(x)\n    return y, y * 2\n"), [(4, 8)])
    outputs = list(graph.returns[0][1].inputs)
    (kernel,) = compiled_kernels(graph.nodes, outputs, graph.facts, False)
    assert (len(kernel.reads), len(kernel.writes)) == (1, 2)


def test_a_call_that_is_not_understood_is_no_kernel() -> None:
    graph = graph_of(f"{HEAD}def f(x):\n    return other(mx.exp(x)) + 1\n")
    assert [k.op for k in kernels(_needed(graph), graph.facts)] == ["Exp", "Add"]


@pytest.mark.parametrize("body", ["mx.take_along_axis(x, q[0, 0], axis=1)", "x[0, 0, 0, 0, 0]", "w[:, 0]"])
def test_what_mlx_refuses_is_no_fault_of_ours(body: str) -> None:
    graph = with_shapes(graph_of(f"{HEAD}def f(x, w, q):\n    return {body} + 1\n"), ((2, 4, 8), (8,), (1, 4, 64, 64)))
    assert kernels(_needed(graph), graph.facts)[-1].op == "Add"


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
    "what a sum leaves": "mx.sum(y, axis=1, keepdims=True)",
    "a mean of what a sum leaves": "mx.mean(mx.sum(y, axis=1, keepdims=True), axis=-1, keepdims=True)",
    "statistics of either kind": "(1e-6 + (mx.mean(y[:, None], -1, True) if n else mx.var(y[:, None], -1, True)))",
    "a sum over two axes": "mx.sum(y, axis=(1, 2), keepdims=True)",
    "an axis by an argument's default": "mx.expand_dims(y, axis)",
    "half of an axis after it": "y[:, None, :].reshape(*y[:, None, :].shape[:-1], n, 2)[..., 0]",
    "a table's row for all heads": "mx.cos(mx.expand_dims(mx.expand_dims(y, -1), -1) / mx.arange(64))",
    "as many axes of one as it takes": "y.reshape(n, 1, *([1] * (x.ndim - 2)))",
}


@pytest.mark.parametrize("gate", AXES.values(), ids=AXES)
def test_an_axis_that_the_code_makes_holds_one(gate: str) -> None:
    graph = graph_of(f"{HEAD}def f(x: mx.array, y: mx.array, n: int, axis: int = 1):\n    return x * {gate}\n")
    (product,) = (k for k in kernels([graph.returns[0][1]], graph.facts) if k.op == "Multiply")
    sizes = Sizes.of(a.shape for a in (*product.reads, *product.writes))
    assert "T" not in sizes.elements(product.reads[1].shape).names
    assert str(sizes.elements(product.writes[0].shape)) in ("T*D", "64*T")


def test_a_number_of_a_configurations_list_is_one() -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.weights = config.weights

    def __call__(self, x: mx.array):
        return self.weights[0] * x
"""
    graph = graph_of(source, "M.__call__")
    (product,) = kernels([graph.returns[0][1]], graph.facts)
    assert [str(a.shape) for a in product.reads] == ["()", "(*x,)"]


@pytest.mark.parametrize("step", ["x[..., t, :]", "x[:, t]", "x[t, ...]"])
def test_a_step_of_a_sequence_has_one_row_of_each_of_the_batch(step: str) -> None:
    graph = graph_of(
        f"{HEAD}def f(x: mx.array, w: mx.array, h: mx.array):\n    for t in range(9):\n"
        f"        a, b = mx.split({step} + h @ w, 2, axis=-1)\n        h = mx.tanh(a) * b + h\n    return h\n"
    )
    made = kernels([n for n in graph.nodes if n.op in ("multiply", "add") and n.inputs[0].op != "index"], graph.facts)
    held = [a.shape for k in made for a in (*k.reads, *k.writes)]
    sizes = Sizes.of(held)
    assert len(held) >= 6
    assert all(str(sizes.elements(shape)).startswith("B*") for shape in held)


def test_weights_of_one_of_a_batch_are_no_step() -> None:
    """`wa[b, :, None]` has one number for each of the rows that it weighs."""
    graph = graph_of(
        f"{HEAD}def f(x: mx.array, w: mx.array, i: mx.array):\n    out = []\n    for b in range(9):\n"
        "        out.append(w[b, :, None] * x[i[b]])\n    return mx.stack(out)\n"
    )
    (product,) = kernels([n for n in graph.nodes if n.op == "multiply"], graph.facts)
    assert not any("B" in Sizes.of([a.shape]).elements(a.shape).names for a in product.writes)


def test_complex_pairs_that_a_table_of_one_head_turns_keep_their_rows() -> None:
    graph = graph_of(
        f"{HEAD}def f(x: mx.array, table: mx.array):\n"
        "    pairs = x.reshape(*x.shape[:-1], -1, 2)\n"
        "    return (pairs[..., 0] + 1j * pairs[..., 1]) * mx.expand_dims(table, axis=-2)\n"
    )
    (product,) = (k for k in kernels([graph.returns[0][1]], graph.facts) if k.op == "Multiply")
    assert str(product.writes[0].shape) == "(*x[:-1], x.shape[-1]//2)"


@pytest.mark.parametrize("body", ["x[:, 0, 1, 2]", "x[[0, 1]]", "x[:, [0, 1], :]", "mx.take_along_axis(x, w, axis=-1)"])
def test_an_index_that_does_not_fit_is_counted_as_one_copy_at_most(body: str) -> None:
    """Code that can't run, or ranks of which branches have joined."""
    assert len(names(body, Gates(), ((2, 4, 8), (8,), (1,)))) <= 1


def test_a_gpu_concatenates_with_a_copy_of_each_operand() -> None:
    source = f"{HEAD}def f(x):\n    return mx.concatenate([x, x * 2, x], axis=-1)\n"
    graph = with_shapes(graph_of(source), ((2, 8),))
    for backend, launches in (("metal", 1 + 3), ("cuda", 1 + 3), ("cpu", 1 + 1)):
        found = kernels(_needed(graph), graph.facts, Gates(backend))  # type: ignore[arg-type]
        assert (len(found), launched(found)) == (2, launches)
