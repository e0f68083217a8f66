"""The op table against MLX: what each rule says of primitives, shapes and dtypes, mx.export_function reports too."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fuselint.graph import ops
from fuselint.graph.dtypes import DType
from fuselint.graph.facts import Facts
from fuselint.graph.indexing import index_primitives
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import Shape

mx = pytest.importorskip("mlx.core")

import mlx.nn as nn  # noqa: E402
from graph import samples  # noqa: E402
from graph.functions import graph_of  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16", "int32")
ADAPTERS = {"AsType", "Broadcast"}
"""Primitives that only adapt operands: the tracer derives them from shapes and dtypes."""

EINSUM_VIEWS = {"Transpose", "Reshape"}
"""Around an einsum, views depend on how its letters lie: the table has what is computed."""

NOT_EXPORTED = {
    "contiguous", "bitwise_invert", "to_fp8", "from_fp8", "segmented_mm", "qqmm", "logcumsumexp",
}  # fmt: skip
"""mx.export_function fails with "Unable to get state for primitive" for these."""

Traced = tuple[list[str], list[tuple[tuple[int, ...], str]]]


def used(text: str) -> list[str]:
    """The samples' arguments that an expression reads."""
    words = set(re.findall(r"\w+", text))
    return [n for n in (*samples.FLOATING, *samples.FIXED) if n in words]


def arguments(names: list[str], dtype: str) -> dict[str, Any]:
    out = {}
    for name in names:
        if name in samples.FLOATING:
            out[name] = mx.ones(samples.FLOATING[name]).astype(getattr(mx, dtype))
        else:
            shape, fixed = samples.FIXED[name]
            out[name] = mx.zeros(shape, getattr(mx, fixed))
    return out


def name_of(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2].replace("bool", "bool_")


def traced(function: Any, arrays: dict[str, Any]) -> Traced:
    """The primitives, and the shape and dtype of each output, that MLX reports."""
    primitives: list[str] = []
    outputs: list[tuple[tuple[int, ...], str]] = []

    def report(event: dict[str, Any]) -> None:
        if event["type"] == "primitive":
            primitives.append(event["name"])
        elif event["type"] == "outputs":
            outputs.extend((tuple(s), name_of(d)) for _, s, d in event["outputs"])

    def flat(*values: Any) -> list[Any]:
        return [v for _, v in tree_flatten(function(**dict(zip(arrays, values, strict=True))))]

    mx.random.seed(0)
    mx.eval(mx.random.state)
    mx.export_function(report, flat, *arrays.values())
    return primitives, outputs


def evaluated(function: Any, arrays: dict[str, Any]) -> list[tuple[tuple[int, ...], str]]:
    """The shape and dtype of each output, without tracing."""
    outputs = [v for _, v in tree_flatten(function(**arrays))]
    return [(tuple(v.shape), name_of(v.dtype)) for v in outputs]


@cache
def graph_of_expression(text: str) -> Graph:
    names = ", ".join(f"{n}: mx.array" for n in used(text))
    head = "import math\nimport mlx.core as mx\nimport mlx.nn as nn\n\n"
    return graph_of(f"{head}def sample({names}):\n    return {text}\n", "sample")


def facts_with(graph: Graph, dtype: str) -> Facts:
    """The facts of a sample's graph, its arguments' shapes and dtypes stated."""
    facts = Facts(graph)
    for name, node in graph.params.items():
        if name in samples.FLOATING:
            facts.state(node, Shape.of(*samples.FLOATING[name]), DType({dtype}), "the test")
        elif name in samples.FIXED:
            shape, fixed = samples.FIXED[name]
            facts.state(node, Shape.of(*shape), DType({fixed}), "the test")
    return facts


def said(facts: Facts, node: Node, weights: str = "") -> list[tuple[tuple[Any, ...] | None, str | None]]:
    """Shape and dtype of each result as MLX would say them.

    weights: the dtype that the symbols of a layer's parameters have.
    """
    fact = facts.of(node)
    out = []
    for part in fact.parts if fact.kind == "tuple" and fact.parts is not None else (fact,):
        shape = None if part.shape is None or part.shape.lead is not None else tuple(d.value() for d in part.shape.dims)
        dtype = DType(weights if n in part.dtype.symbols else n for n in part.dtype)
        out.append((shape, (dtype | dtype).name))
    return out


def primitives_said(graph: Graph, facts: Facts) -> list[str]:
    out: list[str] = []
    for node in graph.nodes:
        op = ops.TABLE.get(node.op)
        if op is not None and (op.result == "arrays" or facts.kind(node) == "array"):
            out.extend(op.primitives_of(facts.call(node)))
        elif node.op == "index":
            out.extend(index_primitives(node, facts))
    return out


def counted(primitives: list[str], ignored: set[str]) -> Counter[str]:
    return Counter(p for p in primitives if p not in ignored)


EXPRESSIONS = samples.split(
    samples.ELEMENTWISE + samples.REDUCTIONS + samples.VIEWS + samples.PRODUCTS + samples.INDEXING + samples.CREATION
    + samples.FAST + samples.MODULES + samples.ACTIVATIONS
)  # fmt: skip


def run(text: str, **arrays: Any) -> Any:
    return eval(text, {"mx": mx, "nn": nn, "math": math, **arrays})


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_op_has_mlxs_primitives_shape_and_dtype(text: str) -> None:
    graph = graph_of_expression(text)
    exported = not {n.op for n in graph.nodes} & NOT_EXPORTED
    for dtype in DTYPES:
        arrays = arguments(used(text), dtype)

        def call(**values: Any) -> Any:
            return run(text, **values)

        try:
            primitives, outputs = traced(call, arrays) if exported else ([], evaluated(call, arrays))
        except (ValueError, RuntimeError):
            continue  # MLX refuses the dtype
        facts = facts_with(graph, dtype)
        node = graph.returns[0][1]
        assert said(facts, node) == outputs, (dtype, facts.why(node))
        if exported:
            ignored = ADAPTERS | (EINSUM_VIEWS if "einsum" in text else set())
            assert counted(primitives_said(graph, facts), ignored) == counted(primitives, ignored), (dtype, primitives)


def module_of(layer: str) -> str:
    """A module that holds a layer and calls it; `layer @ (arguments)` is a sample."""
    made, _, given = layer.partition(" @ ")
    names = ", ".join(f"{n}: mx.array" for n in used(given))
    return (
        "import mlx.core as mx\nimport mlx.nn as nn\n\n\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        self.layer = {made}\n\n"
        f"    def __call__(self, {names}):\n        return self.layer{given}\n"
    )


def model(source: str, dtype: str) -> Any:
    """An instance of Model with floating parameters of a dtype, evaluated so that none is drawn in a trace."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    made = scope["Model"]()
    floats = (mx.float32, mx.float16, mx.bfloat16)
    made.update(tree_map(lambda p: p.astype(getattr(mx, dtype)) if p.dtype in floats else p, made.parameters()))
    made.eval()
    mx.eval(made.parameters())
    return made


LAYERS = samples.split(samples.LAYERS)
PLACES = [(d, w) for d in DTYPES for w in DTYPES[:3]]
"""The dtypes of arguments and of weights."""


UNROLLED = ("nn.RNN", "nn.GRU", "nn.LSTM")
"""Layers with as many primitives as the sequence has steps: the table has those of the projection."""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_mlxs_primitives_shape_and_dtype(layer: str) -> None:
    source = module_of(layer)
    graph = graph_of(source, "Model.__call__")
    for dtype, weights in PLACES:
        arrays = arguments(used(layer.partition(" @ ")[2]), dtype)
        try:
            primitives, outputs = traced(model(source, weights), arrays)
        except (ValueError, RuntimeError):
            continue
        facts = facts_with(graph, dtype)
        node = graph.returns[0][1]
        assert said(facts, node, weights) == outputs, (dtype, weights, facts.why(node))
        if not layer.startswith(UNROLLED):
            assert counted(primitives_said(graph, facts), ADAPTERS) == counted(primitives, ADAPTERS), primitives


LINALG = samples.split(samples.LINALG)


@pytest.mark.parametrize("text", LINALG)
def test_factorisations_have_mlxs_shapes_and_dtypes(text: str) -> None:
    with mx.stream(mx.cpu):
        outputs = evaluated(lambda f: run(text, f=f), {"f": mx.eye(4) * 2.0})
    graph = graph_of_expression(text)
    facts = facts_with(graph, "float32")
    assert said(facts, graph.returns[0][1]) == outputs


def test_every_op_of_the_table_has_a_sample() -> None:
    """Or stands in this list: ops that need what a test has not, such as a GPU or a group of processes."""
    elsewhere = {"fast.gated_delta_update", "gather_qqmm", "unique", "logcumsumexp", "random.multivariate_normal"}
    elsewhere |= {"fft.stft", "fft.istft", "nn.QQLinear"}
    sharded = {n for n in ops.TABLE if "Sharded" in n}
    seen: set[str] = set()
    for text in (*EXPRESSIONS, *LINALG):
        seen |= {n.op for n in graph_of_expression(text).nodes}
    for layer in LAYERS:
        seen |= {n.op for n in graph_of(module_of(layer), "Model.__call__").nodes}
    assert set(ops.TABLE) - seen - elsewhere - sharded == set()


def test_every_function_of_mlx_is_an_op_or_does_no_array_work() -> None:
    other = set(
        """
        async_eval broadcast_shapes can_cast checkpoint clear_cache clear_streams compile custom_function
        default_device default_stream device_count
        device_info disable_compile distributed einsum_path enable_compile eval
        export_function export_to_dot exporter finfo from_dlpack get_active_memory
        get_array_buffer_size get_cache_memory get_memory_limit get_peak_memory get_printoptions
        grad iinfo import_function is_available isdtype
        issubdtype jvp load new_stream new_thread_local_stream new_thread_unsafe_stream printoptions
        reset_peak_memory result_type save save_gguf
        save_safetensors savez savez_compressed set_cache_limit set_default_device set_default_stream set_memory_limit
        set_printoptions set_wired_limit stream synchronize value_and_grad vjp vmap seed metal_kernel cuda_kernel
        precompiled_cuda_kernel
        """.split()
    )
    for module in (mx, mx.fast, mx.linalg, mx.random, mx.fft):
        for name in dir(module):
            value = getattr(module, name)
            if callable(value) and not name.startswith("_") and not isinstance(value, type) and name not in other:
                assert ops.resolve_call(f"{module.__name__}.{name}") is not None, f"{module.__name__}.{name}"


def test_every_layer_and_function_of_mlx_nn_is_an_op_or_a_container() -> None:
    other = {
        "Module", "Sequential", "Transformer", "TransformerDecoder", "TransformerDecoderLayer", "TransformerEncoder",
        "TransformerEncoderLayer", "FullyShardedModule", "average_gradients", "fully_shard", "quantize",
        "value_and_grad",
    }  # fmt: skip
    for name in dir(nn):
        value = getattr(nn, name)
        if callable(value) and not name.startswith("_") and name not in other:
            assert ops.resolve_call(f"mlx.nn.{name}") is not None, name
    losses = {n for n in dir(nn.losses) if n.endswith("_loss") or n.endswith("_entropy")}
    assert all(ops.resolve_call(f"mlx.nn.losses.{n}") is not None for n in losses)


def test_every_array_method_is_an_op_or_structural() -> None:
    other = {"at", "dtype", "item", "itemsize", "nbytes", "ndim", "shape", "size", "tolist", "T", "mT", "real", "imag"}
    for name in dir(mx.array):
        if not name.startswith("_") and name not in other:
            assert ops.method(name) is not None, name


@pytest.mark.parametrize("layer", [n for n, op in ops.TABLE.items() if op.kind == "layer" and "Sharded" not in n])
def test_a_layers_arguments_are_mlxs(layer: str) -> None:
    """Names, order and defaults of the constructor."""
    cls = getattr(nn, layer.split(".")[1])
    declared = list(inspect.signature(cls.__init__).parameters.values())[1:]
    declared = [p for p in declared if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    want = [(p.name, None if p.default is p.empty else p.default) for p in declared]
    assert [(p.name, p.default) for p in ops.TABLE[layer].constructor] == want


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        ("nn.SiLU() @ (x)", "nn.silu"),
        ("nn.GELU() @ (x)", "nn.gelu"),
        ('nn.GELU(approx="tanh") @ (x)', "nn.gelu_approx"),
        ('nn.GELU("fast") @ (x)', "nn.gelu_fast_approx"),
        ("nn.Linear(4, 4) @ (x)", None),
    ],
)
def test_the_function_of_an_activation_layer(layer: str, function: str | None) -> None:
    node = graph_of(module_of(layer), "Model.__call__").returns[0][1]
    assert ops.function_of(node) == function


def bound(call: str, method: bool = False) -> tuple[list[str], dict[str, Any]]:
    """How the arguments of a call bind: names of the inputs, and the attributes but for Nodes."""
    node = graph_of_expression(call).returns[0][1]
    inputs = [str(n.attrs.get("name", n.attrs.get("value"))) for n in node.inputs]
    return inputs, {k: v for k, v in node.attrs.items() if not isinstance(v, Node)}


def test_arguments_bind_as_mlx_binds_them() -> None:
    assert bound("mx.softmax(x, -1)") == (["x"], {"axis": -1, "precise": False})
    assert bound("mx.softmax(x, axis=-1, precise=True)") == (["x"], {"axis": -1, "precise": True})
    assert bound("x.transpose(0, 2, 1)") == bound("mx.transpose(x, axes=(0, 2, 1))") == (["x"], {"axes": (0, 2, 1)})
    assert bound("x.T") == bound("x.transpose()") == bound("mx.transpose(x)") == (["x"], {"axes": None})
    assert bound("x.reshape(2, -1)") == bound("mx.reshape(x, [2, -1])") == (["x"], {"shape": (2, -1)})
    assert bound("mx.concatenate([x, y], 1)") == bound("mx.concat((x, y), axis=1)") == (["x", "y"], {"axis": 1})
    assert bound("mx.fast.rms_norm(x, weight=None, eps=1e-6)") == (["x", "None"], {"eps": 1e-6})
    assert bound("mx.arange(8)") == bound("mx.arange(0, 8)") == ([], {"start": 0, "stop": 8, "step": 1, "dtype": None})
    inputs, attrs = bound('mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, mask="causal")')
    assert inputs == ["q", "k", "k", "causal"] and attrs["scale"] == 0.5


def test_a_gap_before_a_given_optional_operand_is_none() -> None:
    text = "mx.fast.scaled_dot_product_attention(q, k, k, scale=0.5, sinks=v)"
    node = graph_of_expression(text).returns[0][1]
    assert ops.operand(node, "mask") is None
    sinks = ops.operand(node, "sinks")
    assert sinks is not None and sinks.attrs["name"] == "v"


@pytest.mark.parametrize(
    "call", ["mx.exp(x, y)", "mx.exp()", "mx.softmax(x, dim=-1)", "mx.exp(*x)", "x.sum(axis=0, a=1)"]
)
def test_a_call_that_mlx_would_refuse_is_not_an_op(call: str) -> None:
    node = graph_of_expression(call).returns[0][1]
    assert node.op == "call"


def signatures() -> dict[str, list[tuple[str, bool]]]:
    """What MLX's own stubs say: of each function, the names of its parameters and whether each is required."""
    out = {}
    for module in ("__init__", "fast", "linalg", "random", "fft"):
        stub = Path(mx.__file__).parent / "core" / f"{module}.pyi"
        prefix = "mlx.core" if module == "__init__" else f"mlx.core.{module}"
        for f in ast.parse(stub.read_text()).body:
            if isinstance(f, ast.FunctionDef):
                a = f.args
                positional = [*a.posonlyargs, *a.args]
                defaults = [True] * (len(positional) - len(a.defaults)) + [False] * len(a.defaults)
                listed = [(p.arg, r) for p, r in zip(positional, defaults, strict=True)]
                listed += [(a.vararg.arg, False)] if a.vararg else []
                listed += [(p.arg, d is None) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True)]
                out.setdefault(f"{prefix}.{f.name}", [(n, r) for n, r in listed if n != "stream"])
    return out


def test_parameters_are_those_of_mlxs_stubs() -> None:
    declared = signatures()
    assert len(declared) > 250
    differ = {
        "mlx.core.arange",  # two signatures, one row
        "mlx.core.var", "mlx.core.std",  # the stubs forget `correction`
        "mlx.core.atleast_1d", "mlx.core.atleast_2d", "mlx.core.atleast_3d",  # of several arrays too
    }  # fmt: skip
    for name, want in declared.items():
        op = ops.resolve_call(name)
        if op is not None and name not in differ:
            assert [(p.name, p.required) for p in op.params] == want, name
