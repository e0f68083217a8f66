"""Facts: what the graph knows of values, from annotations, unpacking, `__init__`, rules and use."""

from __future__ import annotations

import re

import pytest
from graph.functions import graph_of, result, shape

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.facts import FITS, MISSING, Facts
from fuselint.graph.model import Graph
from fuselint.graph.shapes import Shape, broadcast
from fuselint.graph.symbols import Expr

HEAD = "import math\nimport numpy as np\nimport mlx.core as mx\nimport mlx.nn as nn\nfrom typing import Optional\n\n"


def function(body: str, arguments: str = "x") -> Graph:
    """The graph of `f`, whose body is the text."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return graph_of(f"{HEAD}\ndef f({arguments}):\n{lines}", "f")


def module(init: str, call: str, arguments: str = "x", parameters: str = "dims, n_heads, eps=1e-5") -> Graph:
    """The graph of the `__call__` of a layer."""
    indent = "\n        "
    return graph_of(
        f"{HEAD}\nclass Layer(nn.Module):\n    def __init__(self, {parameters}):\n        super().__init__()\n"
        f"        {indent.join(init.strip().splitlines())}\n\n"
        f"    def __call__(self, {arguments}):\n        {indent.join(call.strip().splitlines())}\n",
        "Layer.__call__",
    )


def dtype(graph: Graph) -> str:
    return str(graph.facts.dtype(result(graph)))


# -- kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "body", "kind"),
    [
        ("x: mx.array", "return x", "array"),
        ("x: Optional[mx.array] = None", "return x", "array"),
        ("x: 'mx.array | None' = None", "return x", "array"),
        ("x: typing_extensions.Optional[mx.array] = None", "return x", "array"),
        ("x: checked.typing.Union[mx.array, None] = None", "return x", "array"),
        ("x: int", "return x", "scalar"),
        ("x: float = 1.0", "return x", "scalar"),
        ("x: str", "return x", "str"),
        ("x: np.ndarray", "return x", "object"),
        ("x: mx.Dtype", "return x", "dtype"),
        ("x=1e-5", "return x", "scalar"),
        ("x='causal'", "return x", "str"),
        ("x=mx.float32", "return x", "dtype"),
        ("*x", "return x", "tuple"),
        ("**x", "return x", "object"),
        ("x=None", "return x", "unknown"),
        ("x", "return x", "unknown"),
        ("x", "mx.exp(x)\nreturn x", "array"),
        ("x", "x.astype(mx.float32)\nreturn x", "array"),
        ("x", "x.shape\nreturn x", "array"),
        ("x, y", "y @ x\nreturn x", "array"),
        ("x, y", "mx.zeros((x, 4))\nreturn x", "scalar"),
        ("x, y", "y[:, :x]\nreturn x", "scalar"),
        ("x", "for i in range(x):\n    pass\nreturn x", "scalar"),
        ("x", "math.sqrt(x)\nreturn x", "scalar"),
        ("x, y", "mx.sum(y, axis=x)\nreturn x", "scalar"),
        ("x", "mx.exp(x)\nmath.sqrt(x)\nreturn x", "unknown"),
        ("x, y", "mx.exp(x)\nreturn x * y", "array"),
        ("x, y", "return x * y", "unknown"),
        ("x", "return x.shape", "tuple"),
        ("x", "return x.shape[0]", "scalar"),
        ("x", "return x.dtype", "dtype"),
        ("x", "return x is None", "scalar"),
        ("x", "return mx.exp(1.0)", "array"),
        ("x", "return 2 ** 0.5", "scalar"),
        ("x", "return lambda y: y", "function"),
        ("x", "return mx.split(x, 2)", "tuple"),
        ("x", "a, b = mx.split(x, 2)\nreturn a", "array"),
        ("x, flag", "y = mx.exp(x) if flag else mx.sin(x)\nreturn y", "array"),
        ("x, flag", "y = mx.exp(x) if flag else None\nreturn y", "unknown"),
    ],
)
def test_kind(arguments: str, body: str, kind: str) -> None:
    graph = function(body, arguments)
    assert graph.facts.kind(result(graph)) == kind


# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return mx.exp(x)", "(*x,)"),
        ("return mx.mean(x * x, axis=-1, keepdims=True)", "(*x[:-1], 1)"),
        ("return mx.sum(x, axis=-1)", "(*x[:-1],)"),
        ("return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + 1e-5)", "(*x,)"),
        ("B, L, D = x.shape\nreturn mx.exp(x)", "(B, L, D)"),
        ("B, L, *_ = x.shape\nreturn mx.exp(x)", "(*x,)"),
        ("*_, D = x.shape\nreturn mx.exp(x)", "(*x[:-1], D)"),
        ("D = x.shape[-1]\nreturn x @ mx.zeros((D, 2 * D))", "(*x[:-1], 2*D)"),
        ("B, L, D = x.shape\nreturn x.reshape(B, L, 8, -1).transpose(0, 2, 1, 3)", "(B, 8, L, D//8)"),
        ("B, L, D = x.shape\nreturn x.reshape(B * L, D)", "(B*L, D)"),
        ("B, L, D = x.shape\nreturn x.reshape(-1, D)", "(B*L, D)"),
        ("return x.reshape(*x.shape[:-1], 4, 2)", "(*x[:-1], 4, 2)"),
        ("B, L, D = x.shape\nreturn mx.stack([x, x], axis=0).reshape(*x.shape)", "(B, L, D)"),
        ("return x.reshape(x.shape[:-1] + (4, 2))", "(*x[:-1], 4, 2)"),
        ("D = x.shape[-1]\nreturn x.reshape(*x.shape[:-1], 4, -1)", "(*x[:-1], 4, D//4)"),
        ("B, L, D = x.shape\nreturn mx.concatenate([x, x], axis=1)", "(B, 2*L, D)"),
        ("B, L, D = x.shape\nreturn mx.concatenate([x[:, :, None]] * 4, axis=2)", "(B, L, 4, D)"),
        ("B, L, D = x.shape\nreturn mx.repeat(x, 4, axis=1)", "(B, 4*L, D)"),
        ("B, L, D = x.shape\nreturn x[:, -1:]", "(B, 1, D)"),
        ("B, L, D = x.shape\nreturn x[:, None, 0]", "(B, 1, D)"),
        ("D = x.shape[-1]\nreturn x[..., : D // 2]", "(*x[:-1], D//2)"),
        ("D = x.shape[-1]\nreturn mx.concatenate([-x[..., D // 2 :], x[..., : D // 2]], axis=-1)", "(*x[:-1], D)"),
        ("B, L, D = x.shape\nK = 4\nreturn x[:, -(K - 1) :]", "(B, 3, D)"),
        ("B, L, D = x.shape\nreturn x[:, -n:]", "(B, n, D)"),
        ("B, L, D = x.shape\nreturn x[:, n - m :]", "(B, %.shape[1], D)"),
        ("return x[..., None]", "(*x, 1)"),
        ("B, L, D = x.shape\nreturn mx.triu(mx.full((L, L), -1e9), k=1)", "(L, L)"),
        ("B, L, D = x.shape\nreturn mx.arange(L)[:, None] < mx.arange(L)[None]", "(L, L)"),
        ("B, L, D = x.shape\nreturn mx.arange(2, L + 2)", "(L,)"),
        ("B, L, D = x.shape\nreturn mx.split(x, 3, axis=-1)[0]", "(B, L, D//3)"),
        ("B, L, D = x.shape\nreturn mx.einsum('bld,bsd->bls', x, x[:, :5])", "(B, L, 5)"),
        ("a = x.shape[0]\nb = x.shape[0]\nreturn mx.zeros((a, b))", "(a, a)"),
        ("return mx.zeros(x.shape[:-1])", "(*x[:-1],)"),
    ],
)  # fmt: skip
def test_shape_in_the_codes_own_names(body: str, text: str) -> None:
    assert re.sub(r"%\d+", "%", shape(function(body, "x: mx.array, n, m"))) == text


def test_a_name_that_is_bound_again_is_another_size() -> None:
    graph = function("B, L, D = x.shape\nB, S, D = y.shape\nreturn mx.zeros((L, S)), x, y", "x: mx.array, y: mx.array")
    x, y = graph.params["x"], graph.params["y"]
    assert str(graph.facts.shape(x)) == "(B, L, D)"
    assert str(graph.facts.shape(y)) == "(B', S, D')"


def test_an_unpacking_in_a_branch_says_nothing_of_the_rank_elsewhere() -> None:
    body = "if flag:\n    B, L, D = x.shape\nreturn mx.exp(x)"
    assert shape(function(body, "x: mx.array, flag")) == "(*x,)"
    body = "if x.ndim == 2:\n    return mx.exp(x)\nB, L, D = x.shape\nreturn mx.exp(x)"
    graph = function(body, "x: mx.array")
    assert all(graph.facts.rank(n) is None for _, n in graph.returns), "the code takes both ranks"


def test_a_join_keeps_the_axes_that_both_have() -> None:
    body = "B, L, D = x.shape\nif L > 1:\n    y = mx.repeat(x, 2, axis=1)\nelse:\n    y = mx.exp(x)\nreturn mx.sin(y)"
    graph = function(body, "x: mx.array")
    assert shape(graph) == "(B, y.shape[1], D)"
    assert dtype(graph) == "x.dtype"


def test_an_operand_of_unknown_shape_adds_no_axes_and_why_says_that_this_is_assumed() -> None:
    graph = function("B, H, L, S = x.shape\nreturn mx.softmax(x + mask, axis=-1)", "x: mx.array, mask")
    assert shape(graph) == "(B, H, L, S)"
    assert "assumed: an operand of unknown shape adds no axes" in graph.facts.why(result(graph))


def test_a_chain_of_a_thousand_nodes_needs_no_recursion() -> None:
    graph = function("\n".join(f"x = mx.exp(x) + {i}" for i in range(1500)) + "\nreturn x", "x: mx.array")
    assert shape(graph) == "(*x,)"


# -- __init__ ---------------------------------------------------------------------------------------------------------

LAYERS = """
self.weight = mx.ones((dims,))
self._scale = mx.ones((dims,))
self.eps = eps
self.q_proj = nn.Linear(dims, n_heads * 64, bias=False)
self.norm = nn.RMSNorm(dims)
self.embed = nn.Embedding(1000, dims)
self.n_heads = n_heads
self.head_dim = dims // n_heads
self.scale = self.head_dim**-0.5
self.rope = nn.RoPE(self.head_dim)
self.conv = nn.Conv1d(dims, 2 * dims, kernel_size=3, padding=1)
"""


@pytest.mark.parametrize(
    ("call", "text", "of"),
    [
        ("return self.weight", "(dims,)", "self.weight.dtype"),
        ("return self._scale", "(dims,)", "float32"),
        ("return self.weight * x", "(*x[:-1], dims)", "self.weight.dtype | x.dtype"),
        ("return self.q_proj(x)", "(*x[:-1], 64*n_heads)", "self.q_proj.weight.dtype | x.dtype"),
        ("return self.norm(x)", "(*x,)", "self.norm.weight.dtype | x.dtype"),
        ("return self.embed(x)", "(*x, dims)", "self.embed.weight.dtype"),
        ("B, L, D = x.shape\nreturn self.rope(x.reshape(B, L, self.n_heads, -1))", "(B, L, n_heads, D//n_heads)",
         "x.dtype"),
        ("B, L, D = x.shape\nreturn self.conv(x)", "(B, L, 2*dims)", "self.conv.weight.dtype | x.dtype"),
        ("B, L, _ = x.shape\nreturn mx.zeros((B, self.head_dim))", "(B, head_dim)", "float32"),
        ("B, L, _ = x.shape\nreturn self.q_proj(x).reshape(B, L, self.n_heads, -1)", "(B, L, n_heads, 64)",
         "self.q_proj.weight.dtype | x.dtype"),
    ],
)  # fmt: skip
def test_what_init_says(call: str, text: str, of: str) -> None:
    graph = module(LAYERS, call, "x: mx.array")
    assert (shape(graph), dtype(graph)) == (text, of)


def test_numbers_of_init() -> None:
    graph = module(LAYERS, "return x * self.eps, x * self.scale", "x: mx.array")
    eps, scale = (n.inputs[1] for n in result(graph).inputs)
    assert graph.facts.kind(eps) == graph.facts.kind(scale) == "scalar"
    assert graph.facts.const(eps) is MISSING, "the argument may be another"


def test_a_weights_dtype_is_assumed_to_be_loadings() -> None:
    graph = module(LAYERS, "return self.weight")
    assert "assumed: a weight has the rank that __init__ gives it" in graph.facts.why(result(graph))


def test_an_argument_with_a_default_may_be_another_value() -> None:
    graph = function("return x.astype(dtype) * scale", "x: mx.array, dtype=mx.float32, scale=1.0")
    assert dtype(graph) == "dtype"
    assert graph.facts.const(graph.params["scale"]) is MISSING


def test_an_object_that_is_no_module_keeps_its_arrays_dtype() -> None:
    graph = graph_of(
        f"{HEAD}\nclass Cache:\n    def __init__(self):\n        self.keys = mx.zeros((4,))\n\n"
        "    def update(self, x: mx.array):\n        return self.keys\n",
        "Cache.update",
    )
    assert dtype(graph) == "float32"


# -- dtypes -----------------------------------------------------------------------------------------------------------

STAYS = """
x * 0.5 | x / 3 | x ** 2 | x ** 0.5 | 2 ** x | x * math.sqrt(8) | x * 8**-0.5 | x * mx.pi | x * True
x * np.sqrt(8) | x * mx.array(2) | x * idx | x / idx | x + mx.arange(8) | mx.where(c, x, 0.0)
mx.where(c, x, -mx.inf) | mx.where(c, x, mx.zeros_like(x)) | mx.where(c, mx.array(0.0, x.dtype), -1e9) + x
mx.maximum(x, 0) | mx.clip(x, -1, 1) | x * mx.ones_like(x) | mx.concatenate([x, mx.zeros((2,), x.dtype)])
mx.pad(x, 1) | x + mx.random.normal(x.shape, dtype=x.dtype) | mx.fast.rms_norm(x, None, 1e-5)
mx.fast.layer_norm(x, None, f32, 1e-5) | nn.silu(x) | nn.gelu(x) | mx.softmax(x, axis=-1)
mx.var(x, -1) | mx.linalg.norm(x, axis=-1) | mx.cumsum(x, -1) | nn.losses.cross_entropy(x, idx) | x.astype(x.dtype)
"""
WIDENS = """
x * mx.array(0.5) | x * mx.array([0.5]) | mx.power(x, mx.array(2.0)) | mx.logaddexp(x, mx.array(0.0)) | x * mx.sqrt(2.0)
x * mx.rsqrt(8.0) | x * mx.exp(1.0) | x * (1 / idx) | x * (idx ** -0.5) | mx.where(c, x, mx.array(0.0))
mx.where(c, x, mx.zeros((4,))) | mx.where(c, 0.0, -mx.inf) | mx.where(c, 0.0, -1e9) + x | x * mx.where(c, 1.0, 0.0)
mx.maximum(x, mx.array(0.0)) | mx.clip(x, mx.array(-1.0), 1.0) | x + mx.ones(8) | x + mx.eye(4) | x + mx.tri(4)
x + mx.triu(mx.full((4, 4), -1e9)) | x + mx.arange(8.0) | x + mx.linspace(0, 1, 4) | mx.concatenate([x, mx.zeros((2,))])
mx.stack([x, f32]) | x + mx.random.normal((4,)) | x * mx.random.uniform(shape=(4,)) | x * f32 | x @ f32
mx.fast.rms_norm(x, f32, 1e-5) | mx.fast.layer_norm(x, f32, None, 1e-5) | mx.addmm(f32, x, m)
mx.fast.cross_entropy(x, idx) | x.astype(mx.float32) | mx.outer(x, f32)
mx.where(c, mx.where(c, 0.0, -1e9), x)
"""


def split(text: str) -> list[str]:
    return [s.strip() for line in text.strip().splitlines() for s in line.split(" | ")]


ARGUMENTS = "x: mx.array, m: mx.array, c: mx.array, idx: mx.array, f32: mx.array"


def dtype_with(text: str, dtype: str) -> DType:
    graph = function(f"return {text}", ARGUMENTS)
    facts = Facts(graph)
    for name, of in {"x": dtype, "m": dtype, "c": "bool_", "idx": "int32", "f32": "float32"}.items():
        facts.state(graph.params[name], Shape(name, ()), DType({of}), "the test")
    return facts.dtype(result(graph))


@pytest.mark.parametrize("text", split(STAYS))
def test_an_op_that_keeps_half_precision(text: str) -> None:
    assert dtype_with(text, "bfloat16") == {"bfloat16"}
    assert dtype_with(text, "x.dtype") == {"x.dtype"}


@pytest.mark.parametrize("text", split(WIDENS))
def test_an_op_that_makes_half_precision_float32(text: str) -> None:
    assert dtype_with(text, "bfloat16") == {"float32"}
    assert dtype_with(text, "x.dtype") == {"float32"}


def test_promotion_is_mlxs() -> None:
    mx = pytest.importorskip("mlx.core")
    concrete = sorted(dtypes.CONCRETE - {"float64"})
    for a in concrete:
        for b in concrete:
            got = mx.add(mx.zeros((), getattr(mx, a)), mx.zeros((), getattr(mx, b))).dtype
            want = str(got).rpartition(".")[2].replace("bool", "bool_")
            assert DType({a}) | DType({b}) == {want}, (a, b)
        for number, weak in ((True, "weak bool"), (2, "weak int"), (2.0, "weak float")):
            got = (mx.zeros((), getattr(mx, a)) + number).dtype
            want = str(got).rpartition(".")[2].replace("bool", "bool_")
            assert DType({a}) | DType({weak}) == {want}, (a, weak)


def test_promotion_of_symbols_is_their_union() -> None:
    x, w = DType({"x.dtype"}), DType({"self.weight.dtype"})
    assert x | w == {"x.dtype", "self.weight.dtype"}
    assert x | DType({"int32"}) == x, "integers do not promote a floating dtype"
    assert x | DType({"bfloat16"}) == {"x.dtype", "bfloat16"}
    assert x | DType({"float32"}) == {"float32"}
    assert x | DType({"weak float"}) == x
    assert x | DType() == DType(), "unknown"


def test_a_numbers_dtype_is_weak_and_settles_in_a_call() -> None:
    graph = function("return mx.add(1, 2.0), mx.exp(1), mx.full((2,), 1)")
    assert [str(graph.facts.dtype(n)) for n in result(graph).inputs] == ["float32", "float32", "int32"]


# -- constants --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("64 ** -0.5", 0.125),
        ("1 / math.sqrt(64)", 0.125),
        ("-(2 + 3) * 4 // 3", -7),
        ("int(7 / 2)", 3),
        ("max(3, 4)", 4),
        ("not_a_constant", MISSING),
        ("1 / 0", MISSING),
        ("2 ** 10000", MISSING),
        ("True", True),
        ("'causal'", "causal"),
        ("None", None),
    ],
)
def test_constants(expression: str, value: object) -> None:
    graph = function(f"return {expression}", "not_a_constant")
    assert graph.facts.const(result(graph)) == value


def test_sizes_of_stated_arrays_are_constants() -> None:
    graph = function("B, L, D = x.shape\nreturn D // 8", "x: mx.array")
    facts = Facts(graph)
    facts.state(graph.params["x"], Shape.of(1, 2048, 4096), DType({"bfloat16"}), "a recorded run")
    assert facts.size(result(graph)) == 512
    assert facts.const(result(graph)) is MISSING or facts.const(result(graph)) == 512


# -- broadcasting of shapes -------------------------------------------------------------------------------------------

B, L, D = Expr.name("B"), Expr.name("L"), Expr.name("D")
X, ONE = Shape("x", ()), Expr.of(1)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (Shape(None, (B, L, D)), Shape(None, (D,)), "(B, L, D)"),
        (Shape(None, (B, L, ONE)), Shape(None, (B, L, D)), "(B, L, D)"),
        (Shape(None, (B, ONE, D)), Shape(None, (L, D)), "(B, L, D)"),
        (X, Shape.of(), "(*x,)"),
        (X, Shape("x[:-1]", (ONE,)), "(*x,)"),
        (X, Shape(None, (D,)), "(*x[:-1], max(D, x.shape[-1]))"),
        (Shape("x[:-1]", (D,)), Shape(None, (D,)), "(*x[:-1], D)"),
        (Shape("x[:-1]", (D,)), Shape("x[:-1]", (ONE,)), "(*x[:-1], D)"),
        (X, Shape("y", ()), "(*x & y,)"),
        (Shape("x[:-1]", (D,)), Shape("y[:-1]", (D,)), "(*x[:-1] & y[:-1], D)"),
        (Shape.of(4, 1), Shape.of(3), "(4, 3)"),
        (Shape(None, (L,)), Shape.of(8), "(8,)"),
    ],
)
def test_broadcasting(a: Shape, b: Shape, text: str) -> None:
    assert str(broadcast(a, b)) == text
    assert broadcast(a, b) == broadcast(b, a)


def test_a_shape_has_one_spelling() -> None:
    assert Shape("x[:-1]", (Expr.name("x.shape[-1]"),)) == X
    assert X.axis(-2) == Expr.name("x.shape[-2]")
    assert X.replace(-1, (D,)) == Shape("x[:-1]", (D,))
    assert X.rank is None and Shape.of(2, 3).rank == 2
    assert broadcast(X, None) is None


AROUND = """
def turn(x: mx.array, cos: mx.array, scale, eps: float):
    {before}

    def mix(y: mx.array):
        {inside}return y * table

    {after}return mix(x)
"""


@pytest.mark.parametrize(
    ("before", "inside", "after", "kind"),
    [
        ("table = cos[None]", "", "", "array"),
        ("table = cos[None]\n    table = table * scale", "", "", "array"),
        ("table = cos[None] if scale else mx.sin(cos)", "", "", "array"),
        ("if scale:\n        table = cos\n    else:\n        table = cos + 1", "", "", "array"),
        ("table = scale", "", "", "unknown"),
        ("table = eps", "", "", "scalar"),
        ("table = eps * 2", "", "table = 1.0\n    ", "scalar"),
        ("table = eps", "", "table = cos\n    ", "unknown"),
        ("table = cos", "", "table = 2.0\n    ", "unknown"),
        ("for table in scale:\n        pass\n    table = cos", "", "", "unknown"),
        ("with scale as table:\n        pass\n    table = cos", "", "", "unknown"),
        ("table = cos", "nonlocal table\n        table = 2.0\n        ", "", "unknown"),
        (
            "table = cos\n\n    def other():\n        nonlocal table\n        table = 2.0",
            "",
            "other()\n    ",
            "unknown",
        ),
    ],
)
def test_what_a_nested_function_reads_of_the_one_around_it(before: str, inside: str, after: str, kind: str) -> None:
    """It may run at any time: all that the name ever holds counts."""
    text = HEAD + AROUND.format(before=before, inside=inside, after=after)
    graph = graph_of(text, "turn.<locals>.mix")
    read = next(n for n in graph.nodes if n.op == "multiply").inputs[1]
    assert graph.facts.kind(read) == kind


@pytest.mark.parametrize(
    ("expression", "made"),
    [
        ("mx.array([0.5 * math.cos(i / n) for i in range(n)])", "float32"),
        ("mx.array([i + 1 for i in range(n)])", "int32"),
        ("mx.array([[i + 0.5 for i in range(n)]])", "float32"),
        ("mx.array([x for _ in range(n)])", "%"),
    ],
)
def test_an_array_of_a_list_of_numbers_has_their_dtype(expression: str, made: str) -> None:
    graph = function(f"return {expression}", "x: mx.array, n: int")
    assert dtype(graph).startswith(made)
    if made != "%":
        rank = graph.facts.rank(result(graph))
        assert rank == (2 if "[[" in expression else 1)


# -- what loops carry around ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "shape_of_s", "dtype_of_s"),
    [
        ("s = s * 0.5 + x.swapaxes(-1, -2) @ x", "(B, D, D)", "float32"),
        ("s = s * 0.5", "(B, D, D)", "float32"),
        ("s = s @ s\n    while s.sum() > 0:\n        s = s - 1", "(B, D, D)", "float32"),
        ("s, t = t, s @ t", "(B, D, D)", "float32"),
        ("s = s if n > 3 else -s", "(B, D, D)", "float32"),
        ("s = mx.concatenate([s, s], axis=1)", "(s.shape[-3], s.shape[-2], s.shape[-1])", "float32"),
        ("s = s + other(y)", "(B, D, D)", "float32"),
        ("s = s[None]", "(*s,)", "float32"),
        ("s = s.astype(mx.float16)", "(B, D, D)", "s.dtype"),
        ("s = other(s)", "None", "s.dtype"),
    ],
)
def test_what_a_loop_leaves_as_it_was_is_known(step: str, shape_of_s: str, dtype_of_s: str) -> None:
    graph = function(
        "B, L, D = x.shape\ns = t = mx.zeros((B, D, D))\nfor i in range(n):\n    " + step + "\nreturn s",
        "x: mx.array, y, n",
    )
    assert (shape(graph), dtype(graph)) == (shape_of_s, dtype_of_s)
    assert (FITS in graph.facts.of(result(graph)).assumed) is ("other(y)" in step)  # which may be wider


def test_loops_that_need_one_another_are_asked_once() -> None:
    names = [f"s{i}" for i in range(24)]
    start = "\n".join(f"{name} = mx.zeros((4, 8))" for name in names)
    steps = "\n".join(f"    {a} = {a} + {b}" for a, b in zip(names, [*names[1:], "y"], strict=True))
    grown = "\n".join(f"    {a} = mx.concatenate([{a}, {b}])" for a, b in zip(names, [*names[1:], "y"], strict=True))
    graph = function(f"{start}\nfor i in range(n):\n{grown}\nreturn s0", "y, n")
    assert shape(graph) == "(s0.shape[-2], s0.shape[-1])"
    known = function(f"{start}\nfor i in range(n):\n{steps.replace('+ y', '+ 1')}\nreturn s0", "y, n")
    assert (shape(known), dtype(known)) == ("(4, 8)", "float32")


@pytest.mark.parametrize(
    ("width", "known"),
    [
        ("2", "(B + 4, L + 4, D + 4)"),
        ("[(0, 0), (2, 0), (0, 0)]", "(B, L + 2, D)"),
        ("int(n)", "(B + 2*n, L + 2*n, D + 2*n)"),
        ("n", ""),
        ("widths(n)", ""),
    ],
)
def test_what_may_be_several_widths_pads_nobody_knows_what(width: str, known: str) -> None:
    padded = shape(function(f"B, L, D = x.shape\nreturn mx.pad(x, {width})", "x: mx.array, n"))
    assert padded == known or (not known and padded.startswith("(*"))
