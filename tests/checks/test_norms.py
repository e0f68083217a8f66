"""FUS202 to FUS205: operands, casts, and what only looks alike."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from graph.functions import HEAD, graph_of

from fuselint.checks import group_norm, l2_norm, layer_norm, normed_matmul
from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.graph.model import Node
from fuselint.rulebook import Match, Synthesised
from fuselint.source.text import FileText

INIT = """class N(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.bias = mx.zeros((dims,))
        self.table = mx.zeros((4, dims))
        self.eps = eps
        self.ada = nn.Linear(dims, 2 * dims)

"""

CENTRE = "m = h.mean(-1, keepdims=True)\nr = mx.rsqrt(h.var(-1, keepdims=True) + self.eps)\n"


def method(rule: ModuleType, body: str, arguments: str = "x") -> list[Match]:
    lines = "".join(f"        {line}\n" for line in body.strip().split("\n"))
    return list(rule.find(graph_of(f"{HEAD}{INIT}    def __call__(self, {arguments}):\n{lines}", "N.__call__")))


def function(rule: ModuleType, body: str, arguments: str = "x, w, b") -> list[Match]:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return list(rule.find(graph_of(f"{HEAD}def f({arguments}):\n{lines}")))


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


def operands(match: Match) -> dict[str, str]:
    return {name: shown(hole) for name, hole in match.holes.items()}


def unproven(match: Match) -> list[str]:
    return [o.claim for o in match.obligations if o.verdict != "proven"]


F32 = "h = x.astype(mx.float32)\n" + CENTRE

CASTS = {
    # body -> policy, numerics, what is unproven
    "in x's dtype": (f"h = x\n{CENTRE}return (h - m) * r * self.weight + self.bias", "none", "more accurate", []),
    "cast back, then the weight": (
        f"{F32}y = ((h - m) * r).astype(x.dtype)\nreturn y * self.weight + self.bias",
        "llama",
        "reassociated",
        [],
    ),
    "no weight, cast back": (f"{F32}return ((h - m) * r).astype(x.dtype)", "llama", "reassociated", []),
    "the weight in float32": (
        f"{F32}y = ((h - m) * r) * self.weight.astype(mx.float32) + self.bias.astype(mx.float32)\n"
        "return y.astype(x.dtype)",
        "gemma",
        "less accurate",
        ["the result keeps its dtype"],
    ),
    "float32 to the end": (f"{F32}return (h - m) * r * self.weight + self.bias", "float32", "reassociated", []),
    "E[x^2] - E[x]^2": (
        "h = x.astype(mx.float32)\nm = h.mean(-1, keepdims=True)\nv = (h * h).mean(-1, keepdims=True) - m**2\n"
        "return ((h - m) * mx.rsqrt(v + self.eps)).astype(x.dtype)",
        "llama",
        "more accurate",
        [],
    ),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts_of_a_layer_norm(name: str) -> None:
    body, policy, numerics, claims = CASTS[name]
    match = only(method(layer_norm, body))
    assert (match.data["policy"], match.numerics, unproven(match)) == (policy, numerics, claims)
    assert shown(match.holes["x"]) == ("astype" if name == "float32 to the end" else "x")


H = f"h = x\n{CENTRE}y = (h - m) * r\n"

OPERANDS = {
    # body -> operands beside x and eps
    "none": ("return y", {}),
    "weight": ("return self.weight * y", {"weight": "self.weight"}),
    "both": ("return self.bias + y * self.weight", {"weight": "self.weight", "bias": "self.bias"}),
    "a bias without a weight stays outside": ("return y + self.bias", {}),
    "a table stays outside": ("return y * self.table", {}),
    "a residual stays outside": ("return x + y * self.weight", {"weight": "self.weight"}),
    "another one too": ("return z + y * self.weight", {"weight": "self.weight"}),
    "a scale and a shift of each sample": ("return y * (1 + z[:, None]) + z[:, None]", {}),
    "a parameter is no modulation": ("return y * (1 + z)", {}),
    "modulation from a layer": ("s, t = mx.split(self.ada(z), 2, axis=-1)\nreturn y * (1 + s) + t", {}),
    "negative bias": ("return y * self.weight - self.bias", {"weight": "self.weight"}),
}


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_of_a_layer_norm(name: str) -> None:
    body, expected = OPERANDS[name]
    assert operands(only(method(layer_norm, H + body, "x, z"))) == {"x": "x", "eps": "self.eps", **expected}


def test_what_is_normalised_is_the_value_before_its_mean_is_subtracted() -> None:
    mean = "h = x + w\nd = h - h.mean(-1, keepdims=True)\n"
    body = mean + "return d * mx.rsqrt((d * d).mean(-1, keepdims=True) + 1e-5)"
    assert operands(only(function(layer_norm, body))) == {"x": "add", "eps": "1e-05"}
    twice = "h = 2 * x\nm = h.mean(-1, keepdims=True)\nreturn (h - m) * mx.rsqrt(h.var(-1, keepdims=True) + 1e-5)"
    assert operands(only(function(layer_norm, twice))) == {"x": "multiply", "eps": "1e-05"}


def test_a_weight_is_no_eps() -> None:
    body = "m = x.mean(-1, keepdims=True)\nreturn (x - m) / mx.sqrt(x.var(-1, keepdims=True) + w) * w"
    assert "weight" not in operands(only(function(layer_norm, body)))


def test_a_helper_that_does_more_is_reported_once() -> None:
    source = f"""{HEAD}def norm(x, w, b):
    m = x.mean(-1, keepdims=True)
    return (x - m) * mx.rsqrt(x.var(-1, keepdims=True) + 1e-5) * w + b


def f(x, held):
    return norm(x, held["w"], held["b"])
"""
    assert list(layer_norm.find(graph_of(source))) == []
    assert operands(only(list(layer_norm.find(graph_of(source, "norm"))))) == {
        "x": "x",
        "weight": "w",
        "bias": "b",
        "eps": "1e-05",
    }


L2 = {
    # body -> numerics, operands
    "in x's dtype": ("return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)", "more accurate", {"eps": "1e-06"}),
    "no eps": ("return x / mx.linalg.norm(x, axis=-1, keepdims=True)", "more accurate", {}),
    "a number behind it": (
        "return 0.5 * x / mx.linalg.norm(x, axis=-1, keepdims=True)",
        "more accurate",
        {"scale": "0.5"},
    ),
    "float32 inside": (
        "h = x.astype(mx.float32)\nreturn (h / mx.linalg.norm(h, axis=-1, keepdims=True)).astype(x.dtype)",
        "less accurate",
        {},
    ),
    "float32 inside, a power of 4": (
        "y = x.reshape(-1, 256)\nh = y.astype(mx.float32)\n"
        "return (h / mx.linalg.norm(h, axis=-1, keepdims=True)).astype(x.dtype)",
        "reassociated",
        {},
    ),
    "float32 inside, twice one": (
        "y = x.reshape(-1, 128)\nh = y.astype(mx.float32)\n"
        "return (h / mx.linalg.norm(h, axis=-1, keepdims=True)).astype(x.dtype)",
        "less accurate",
        {},
    ),
    "an array behind it stays outside": (
        "return w * (x / mx.linalg.norm(x, axis=-1, keepdims=True))",
        "more accurate",
        {},
    ),
}


@pytest.mark.parametrize("name", L2)
def test_l2_norms(name: str) -> None:
    body, numerics, expected = L2[name]
    match = only(function(l2_norm, body))
    held = operands(match)
    held.pop("x")
    assert (match.numerics, held) == (numerics, expected)


def test_an_eps_that_would_vanish_is_no_l2_norm() -> None:
    body = "return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + {})"
    assert function(l2_norm, body.format("1e-24")) and not function(l2_norm, body.format("1e-36"))


def test_shapes_of_shapeless_functions_stay_as_written() -> None:
    for rule, body in (
        (l2_norm, "x / mx.linalg.norm(x, axis=-1, keepdims=True)"),
        (group_norm, "(x - x.mean(-2, keepdims=True)) * mx.rsqrt(x.var(-2, keepdims=True) + 1e-5)"),
    ):
        for decorator, found in (("@mx.compile", 1), ("@partial(mx.compile, shapeless=True)", 0)):
            source = f"from functools import partial\n{HEAD}{decorator}\ndef f(x):\n    return {body}\n"
            assert len(list(rule.find(graph_of(source)))) == found, (rule.CODE, decorator)


def test_scale_and_shift_of_channels_stay_outside_a_group_norm() -> None:
    body = "b, c, n, m = x.shape\nd = x - x.mean((2, 3), keepdims=True)\n" + (
        "y = d * mx.rsqrt(mx.mean(d * d, axis=(2, 3), keepdims=True) + 1e-5)\nreturn y * w + b"
    )
    match = only(function(group_norm, body))
    assert operands(match) == {"x": "x", "eps": "1e-05"} and match.root.op == "multiply"


def test_a_product_of_another_value_is_not_scaled_by_its_input() -> None:
    root = "mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6)"
    assert function(normed_matmul, f"return (x @ w) * {root}")
    assert not function(normed_matmul, f"return (b @ w) * {root}")
    assert not function(normed_matmul, f"return ((x + 1) @ w) * {root}")
    assert not function(normed_matmul, f"y = x @ w\nreturn y * {root} + y")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("rule", [layer_norm, l2_norm, group_norm, normed_matmul])
def test_the_fused_form_is_the_unfused_one(rule: ModuleType, dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    x = mx.random.normal((2, 4, 8, 64), key=mx.random.key(0)).astype(getattr(mx, dtype))
    w = mx.random.normal((64,), key=mx.random.key(1)).astype(getattr(mx, dtype))
    x[0, 0] = x[0, 0] * 1e-2  # at the scale of sqrt(eps)
    more = {layer_norm: (w, w), normed_matmul: (mx.broadcast_to(w[:, None], (64, 64)),)}.get(rule, ())
    hand, fused = rule.unfused(x, *more, 1e-4), rule.fused(x, *more, 1e-4)
    assert hand.dtype == fused.dtype and hand.shape == fused.shape
    tolerance = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    error = mx.abs(hand.astype(mx.float32) - fused.astype(mx.float32)).max() / mx.abs(hand.astype(mx.float32)).max()
    assert error.item() <= tolerance


OPTIONAL = f"""{HEAD}from functools import partial


@partial(mx.compile, shapeless=True)
def norm(x, eps, weight=None, bias=None):
    h = x.astype(mx.float32)
    h = (h - h.mean(-1, keepdims=True)) * mx.rsqrt(h.var(-1, keepdims=True) + eps)
    h = h.astype(x.dtype)
    return weight * h + bias if weight is not None else h


class Norm(nn.Module):
    def __init__(self, dims: int, affine: bool):
        super().__init__()
        if affine:
            self.weight, self.bias = mx.ones((dims,)), mx.zeros((dims,))

    def __call__(self, x: mx.array):
        return norm(x, 1e-5, self.weight, self.bias) if "weight" in self else norm(x, 1e-5)
"""
PAIRED = "there is no bias where there is no weight"


def fixed_norm(source: str) -> tuple[str, list[str], list[str]]:
    """The text with the fix, its needs, and the outcomes of its verification."""
    pytest.importorskip("mlx.core")
    done = fix_text(FileText("m.py", source), Settings(select=("FUS202",), unsafe_fixes=True), verify=True)
    fixes = [f.fix for f in done.applied if f.fix is not None]
    return done.after, [n for f in fixes for n in f.needs], [f.verification.outcome for f in fixes if f.verification]


def test_weight_and_bias_that_there_may_be_move_into_the_norm() -> None:
    after, needs, outcomes = fixed_norm(OPTIONAL)
    assert "return mx.fast.layer_norm(x, weight, bias, eps)\n" in after
    assert PAIRED not in needs and outcomes == ["passed"]
    mx = pytest.importorskip("mlx.core")
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    exec(OPTIONAL, old)
    exec(after, new)
    x = mx.random.normal((4, 8), key=mx.random.key(1)).astype(mx.bfloat16)
    w, b = (mx.random.normal((8,), key=mx.random.key(i)).astype(mx.bfloat16) for i in (2, 3))
    for given in ((), (w, b)):
        was, now = old["norm"](x, 1e-5, *given), new["norm"](x, 1e-5, *given)
        assert was.dtype == now.dtype and mx.abs(was - now).max().item() <= 2**-5  # a rounding of values below 8


def test_a_bias_alone_is_added_by_the_fused_kernel_only() -> None:
    _, needs, _ = fixed_norm(OPTIONAL + "\n\ndef shifted(x, b):\n    return norm(x, 1e-5, bias=b)\n")
    assert PAIRED in needs


@pytest.mark.parametrize("other", ["2 * h", "h + x", "bias + h"])
def test_another_value_without_a_weight_is_no_optional_one(other: str) -> None:
    after, _, _ = fixed_norm(OPTIONAL.replace("is not None else h", f"is not None else {other}"))
    assert "layer_norm(x, weight" not in after
