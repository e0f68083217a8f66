"""FUS201: which casts and weights are told apart, what is an operand, and where a match ends."""

from __future__ import annotations

import pytest
from graph.functions import HEAD, graph_of

from fuselint.checks import rms_norm
from fuselint.graph.model import Node
from fuselint.rulebook import Match, Synthesised

INIT = """class N(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.scale = mx.zeros((dims,))
        self.table = mx.zeros((4, dims))
        self.gain = 3.0
        self.dims = dims
        self.half = dims // 2
        self.eps = eps
        self.gate = nn.Linear(dims, dims)

"""


def method(body: str, arguments: str = "x", more: str = "") -> list[Match]:
    lines = "".join(f"        {line}\n" for line in body.strip().split("\n"))
    source = f"{HEAD}import math\n\n\n{INIT}    def __call__(self, {arguments}):\n{lines}\n{more}"
    return list(rms_norm.find(graph_of(source, "N.__call__")))


def function(body: str, arguments: str = "x, w") -> list[Match]:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return list(rms_norm.find(graph_of(f"{HEAD}import math\n\n\ndef f({arguments}):\n{lines}")))


def only(matches: list[Match]) -> Match:
    assert len(matches) == 1, matches
    return matches[0]


def shown(hole: object) -> str:
    if isinstance(hole, Synthesised):
        return hole.template
    assert isinstance(hole, Node)
    if hole.op == "const":
        return repr(hole.attrs["value"])
    return str(hole.attrs.get("path") or hole.attrs.get("name") or hole.op)


def operands(match: Match) -> list[str]:
    return [shown(match.holes[k]) for k in ("x", "weight", "eps") if k in match.holes]


def unproven(match: Match) -> list[str]:
    return [o.claim for o in match.obligations if o.verdict != "proven"]


F32 = "h = x.astype(mx.float32)\n"
NORM = "mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)"

CASTS = {
    # body -> policy, numerics, what is unproven
    "in x's dtype": (f"h = x\nreturn self.weight * (h * {NORM})", "none", "more accurate", []),
    "Llama": (f"{F32}return self.weight * (h * {NORM}).astype(x.dtype)", "llama", "reassociated", []),
    "Llama, its dtype named": (
        f"dt = x.dtype\n{F32}return (h * {NORM}).astype(dt) * self.weight",
        "llama",
        "reassociated",
        [],
    ),
    "Llama, x rebound": (
        "dt = x.dtype\nx = x.astype(mx.float32)\nx = x / mx.sqrt(x.square().mean(-1, keepdims=True) + self.eps)\n"
        "return self.weight * x.astype(dt)",
        "llama",
        "reassociated",
        [],
    ),
    "Llama, the weight cast too": (
        f"{F32}return (h * {NORM}).astype(x.dtype) * self.weight.astype(x.dtype)",
        "llama",
        "reassociated",
        [],
    ),
    "no weight, cast back": (f"{F32}return (h * {NORM}).astype(x.dtype)", "llama", "reassociated", []),
    "Gemma": (
        f"{F32}return (h * {NORM} * self.weight.astype(mx.float32)).astype(x.dtype)",
        "gemma",
        "less accurate",
        ["the result keeps its dtype"],
    ),
    "the variance only in float32": (
        "v = x.astype(mx.float32).square().mean(-1, keepdims=True)\n"
        "return (x * mx.rsqrt(v + self.eps)).astype(x.dtype)",
        "llama",
        "reassociated",
        [],
    ),
    "the root cast back": (
        f"{F32}r = {NORM}\nreturn self.weight * (x * r.astype(x.dtype))",
        "none",
        "more accurate",
        [],
    ),
    "the variance only, nothing cast back": (
        "v = x.astype(mx.float32).square().mean(-1, keepdims=True)\nreturn self.weight * (x * mx.rsqrt(v + self.eps))",
        "float32",
        "different dtype",
        ["the result keeps its dtype"],
    ),
    "float32 to the end": (f"{F32}return h * {NORM} * self.weight", "float32", "reassociated", []),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts(name: str) -> None:
    body, policy, numerics, claims = CASTS[name]
    match = only(method(body))
    assert (match.data["policy"], match.numerics, unproven(match)) == (policy, numerics, claims)
    assert shown(match.holes["x"]) == ("astype" if name == "float32 to the end" else "x")


WEIGHTS = {
    # body -> operands
    "none": (f"h = x\nreturn h * {NORM}", ["x", "self.eps"]),
    "before": (f"h = x\nreturn self.weight * h * {NORM}", ["x", "self.weight", "self.eps"]),
    "one more": (f"h = x\nreturn h * {NORM} * (1.0 + self.weight)", ["x", "add", "self.eps"]),
    "two": (f"h = x\nreturn h * {NORM} * self.weight * self.scale", ["x", "{weight0} * {weight1}", "self.eps"]),
    "a table stays outside": (f"h = x\nreturn h * {NORM} * self.table", ["x", "self.eps"]),
    "a number stays outside": (f"h = x\nreturn (h * {NORM}) * self.gain", ["x", "self.eps"]),
    "a gate stays outside": (
        f"h = x\nreturn h * {NORM} * self.weight * self.gate(x)",
        ["x", "self.weight", "self.eps"],
    ),
    "an activation stays outside": (f"h = x\nreturn h * {NORM} * nn.silu(z)", ["x", "self.eps"]),
    "a modulation stays outside": (f"h = x\nreturn h * {NORM} * (1 + z[:, None])", ["x", "self.eps"]),
    "no eps": ("return self.weight * x * mx.rsqrt(x.square().mean(-1, keepdims=True))", ["x", "self.weight", "0.0"]),
    "a norm, and the root of the length": (
        "return x / mx.linalg.norm(x, axis=-1, keepdims=True) * math.sqrt(x.shape[-1])",
        ["x", "0.0"],
    ),
    "a product is normalised": (
        "h = x * nn.silu(z)\nreturn self.weight * h * " + NORM,
        ["multiply", "self.weight", "self.eps"],
    ),
    "twice x is normalised": ("h = 2 * x\nreturn h * " + NORM, ["multiply", "self.eps"]),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_operands(name: str) -> None:
    body, expected = WEIGHTS[name]
    assert operands(only(method(body, "x, z"))) == expected


def test_a_weight_of_init_is_proven_and_a_parameter_is_not() -> None:
    assert unproven(only(method(f"h = x\nreturn h * {NORM} * self.weight"))) == []
    match = only(function("return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + 1e-6) * w"))
    assert unproven(match) == ["the weight has one axis, as long as x's last"]
    assert operands(match) == ["x", "w", "1e-06"]


def test_eps_may_be_any_number() -> None:
    for eps, arguments in (
        ("eps", "x, eps=1e-6"),
        ("eps", "x, eps: float"),
        ("1e-6", "x"),
        ("2 * eps", "x, eps: float = 1e-6"),
    ):
        match = only(function(f"return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + {eps})", arguments))
        assert unproven(match) == [], eps
    for init in ("self.eps = eps", "self.eps = args.eps", "self.args = args"):
        read = "self.args.eps" if "args = args" in init else "self.eps"
        source = f"""{HEAD}class N(nn.Module):
    def __init__(self, eps, args):
        {init}

    def __call__(self, x):
        return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + {read})
"""
        assert unproven(only(list(rms_norm.find(graph_of(source, "N.__call__"))))) == [], init
    match = only(function("return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)", "x, eps"))
    assert unproven(match) == ["eps is a Python number, inside the root", "the result keeps its dtype"]


def test_a_sum_may_be_divided_by_the_length_of_the_weight() -> None:
    body = "return x * mx.rsqrt(mx.sum(x * x, -1, keepdims=True) / {} + self.eps)"
    for n in ("self.dims", "self.weight.shape[0]", "x.shape[-1]"):
        match = only(method(body.format(n) + " * self.weight"))
        assert (unproven(match), operands(match)) == ([], ["x", "self.weight", "self.eps"]), n
    assert operands(only(method("return x / mx.linalg.norm(x, axis=-1, keepdims=True) * self.dims**0.5 * self.weight")))
    for n in ("self.half", "x.shape[1]", "64", "self.table.shape[0]"):
        assert method(body.format(n) + " * self.weight") == [], n
    match = only(method(body.format("self.dims")))
    assert unproven(match) == ["the sum is divided by the length of x's last axis"]


def test_an_axis_of_known_rank_is_the_last() -> None:
    body = "b, n, d = x.shape\nreturn x * mx.rsqrt(mx.mean(x * x, axis={}, keepdims=True) + 1e-6)"
    assert only(function(body.format(2)))
    assert function(body.format(1)) == []
    assert function("return x * mx.rsqrt(mx.mean(x * x, axis=2, keepdims=True) + 1e-6)") == []


def test_a_normalised_value_that_is_read_twice_ends_the_match() -> None:
    match = only(method(f"h = x\nn = h * {NORM}\nreturn n * self.weight, n * self.scale"))
    assert operands(match) == ["x", "self.eps"] and match.root.op == "multiply"


def test_an_optional_weight_is_the_weight() -> None:
    body = (
        f"{F32}y = h * {NORM.replace('self.eps', '1e-6')}\nif w is not None:\n    y = y * w\nreturn y.astype(x.dtype)"
    )
    match = only(function(body))
    assert (operands(match), match.root.op) == (["x", "w", "1e-06"], "astype")
    other = only(function(body.replace("w is not None", "x.ndim == 3")))
    assert (operands(other), other.root.op) == (["astype", "1e-06"], "multiply")


def test_two_norms_are_two_matches() -> None:
    body = "def n(a):\n    return a * mx.rsqrt(mx.mean(a * a, -1, keepdims=True) + 1e-6)\nreturn n(x) + n(w)"
    assert len(function(body)) == 2


def test_a_helper_is_named() -> None:
    more = "    def _norm(self, h):\n        return h * " + NORM + "\n"
    match = only(method("return self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)", more=more))
    assert operands(match) == ["x", "self.weight", "self.eps"]
    assert [text for _, text in match.related] == ["with `_norm`"]


def test_what_is_built_once_is_not_reported() -> None:
    source = f"""{HEAD}class N(nn.Module):
    def __init__(self, x):
        self.y = x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True))
"""
    assert list(rms_norm.find(graph_of(source, "N.__init__"))) == []


NEAR = {
    "eps outside": "x / (mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True)) + 1e-5)",
    "a negative eps": "x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) - 1e-5)",
    "an array for eps": "x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + w * w)",
    "a half": "x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) / 2 + 1e-5)",
    "a floor": "x * mx.rsqrt(mx.maximum(mx.mean(x * x, axis=-1, keepdims=True), 1e-5))",
    "no root": "x / (mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)",
    "a root too many": "x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) ** 0.5",
    "the absolute value": "mx.abs(x) * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)",
    "the negative": "-x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)",
    "squared": "x * x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) * x",
    "a sum": "x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-5)",
    "the largest": "x * mx.rsqrt(mx.max(x * x, axis=-1, keepdims=True) + 1e-5)",
    "an integer cast": "x * mx.rsqrt(mx.mean(x.astype(mx.int32) ** 2, axis=-1, keepdims=True) + 1e-5)",
    "another array's length": "x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) / w.shape[-1] + 1e-5)",
}


@pytest.mark.parametrize("name", NEAR)
def test_what_only_looks_alike(name: str) -> None:
    assert function(f"return {NEAR[name]}") == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_fused_form_is_the_unfused_one(dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    x = mx.random.normal((4, 64), key=mx.random.key(0)).astype(getattr(mx, dtype))
    w = mx.random.normal((64,), key=mx.random.key(1)).astype(getattr(mx, dtype))
    x[0] = x[0] * 1e-3  # at the scale of sqrt(eps)
    hand, fused = rms_norm.unfused(x, w, 1e-5), rms_norm.fused(x, w, 1e-5)
    assert hand.dtype == fused.dtype and hand.shape == fused.shape
    tolerance = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    error = mx.abs(hand.astype(mx.float32) - fused.astype(mx.float32)).max() / mx.abs(hand.astype(mx.float32)).max()
    assert error.item() <= tolerance


@pytest.mark.parametrize(
    ("about", "first", "proven"),
    [
        (": int", "", True),
        (": int = 8", "", True),
        ("=8", "", True),
        ("", "", False),
        (": int | tuple[int, int]", "", False),
        (": int | tuple[int, int]", "if isinstance(dims, int):\n            dims = (dims,)\n        ", False),
    ],
)
def test_a_shape_that_may_be_a_tuple_has_no_known_rank(about: str, first: str, proven: bool) -> None:
    """`Norm((heads, width))` makes a weight of two axes, which rms_norm doesn't take."""
    init = INIT.replace("dims: int", f"dims{about}").replace(
        "self.weight = mx.ones((dims,))", f"{first}self.weight = mx.ones(dims)"
    )
    init = init.replace("eps: float = 1e-5", "eps=1e-5")
    body = "        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps) * self.weight\n"
    (match,) = rms_norm.find(graph_of(f"{HEAD}{init}    def __call__(self, x):\n{body}", "N.__call__"))
    assert unproven(match) == ([] if proven else ["the weight has one axis, as long as x's last"])
