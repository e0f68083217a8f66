"""Identities of elementwise operations: casts, arithmetic, activations."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from fuselint.graph.identity import Identity, into
from fuselint.graph.model import Node
from fuselint.graph.values import HALF, ONE, Value, exponent

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

TABLE: dict[str, Identity] = {}
identity = into(TABLE)

NOT_FLOATS = frozenset("bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64".split())


@identity("astype")
def _astype(c: Canonical, node: Node) -> Value | None:
    """A cast to a floating dtype is transparent; a cast to an integer truncates."""
    names = set(c.facts.dtype(node))
    target = node.attrs.get("dtype")
    if isinstance(target, str):
        names = {target.rsplit(".", 1)[-1]}
    if names & NOT_FLOATS:
        return None
    return c.of(node.inputs[0])


@identity("contiguous", "nn.Identity")
def _same(c: Canonical, node: Node) -> Value | None:
    return c.of(node.inputs[0])


@identity("add")
def _add(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    if c.facts.kind(node) in ("tuple", "str"):  # list and string concatenation
        return None
    return c.algebra.add(c.of(a), c.of(b))


@identity("subtract")
def _subtract(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    return c.algebra.subtract(c.of(a), c.of(b))


@identity("multiply")
def _multiply(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    if c.facts.kind(node) in ("tuple", "str"):
        return None
    return c.algebra.multiply(c.of(a), c.of(b))


@identity("divide")
def _divide(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    c.algebra.note("a / b is a * b^-1")
    return c.algebra.divide(c.of(a), c.of(b))


@identity("negative")
def _negative(c: Canonical, node: Node) -> Value | None:
    return c.algebra.scale(c.of(node.inputs[0]), -1.0)


@identity("positive")
def _positive(c: Canonical, node: Node) -> Value | None:
    return c.of(node.inputs[0])


@identity("square")
def _square(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("square(a) is a^2")
    return c.algebra.power(c.of(node.inputs[0]), Fraction(2))


@identity("sqrt")
def _sqrt(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("sqrt(a) is a^(1/2)")
    return c.algebra.power(c.of(node.inputs[0]), HALF)


@identity("rsqrt")
def _rsqrt(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("rsqrt(a) is a^(-1/2)")
    return c.algebra.power(c.of(node.inputs[0]), -HALF)


@identity("reciprocal")
def _reciprocal(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("reciprocal(a) is a^-1")
    return c.algebra.power(c.of(node.inputs[0]), Fraction(-1))


@identity("power")
def _power(c: Canonical, node: Node) -> Value | None:
    base, e = (c.of(n) for n in node.inputs)
    return raised(c, base, e)


def raised(c: Canonical, base: Value, e: Value) -> Value | None:
    if e.number is not None:
        fraction = exponent(e.number)
        if fraction is not None and fraction != 0:
            return c.algebra.power(base, fraction)
    elif base.number is not None and base.number > 0 and not e.scalar:
        c.algebra.note("number ** u is exp(log(number) * u)")
        return c.algebra.exp(c.algebra.scale(e, math.log(base.number)))
    return c.algebra.atom("pow", (base, e), scalar=base.scalar and e.scalar, nonnegative=base.nonnegative)


@identity("exp")
def _exp(c: Canonical, node: Node) -> Value | None:
    return c.algebra.exp(c.of(node.inputs[0]))


ODD = {
    "erf": math.erf,
    "tanh": math.tanh,
    "sin": math.sin,
    "sinh": math.sinh,
    "arctan": math.atan,
    "sign": None,
    "tan": math.tan,
}
EVEN = {"cos": math.cos, "cosh": math.cosh}


def odd(c: Canonical, op: str, u: Value) -> Value:
    function = ODD[op]
    if u.number is not None and function is not None:
        return c.algebra.number(function(u.number))
    if u.coefficient < 0:
        c.algebra.note(f"{op}(-u) is -{op}(u)")
        return c.algebra.scale(odd(c, op, c.algebra.scale(u, -1.0)), -1.0)
    return c.algebra.atom(op, (u,), scalar=u.scalar, nonnegative=op not in ("sin", "tan") and u.nonnegative)


def _odd(op: str) -> Identity:
    return lambda c, node: odd(c, op, c.of(node.inputs[0]))


def _even(op: str) -> Identity:
    def rule(c: Canonical, node: Node) -> Value | None:
        u = c.of(node.inputs[0])
        if u.number is not None:
            return c.algebra.number(EVEN[op](u.number))
        if u.coefficient < 0:
            u = c.algebra.scale(u, -1.0)
        return c.algebra.atom(op, (u,), scalar=u.scalar)

    return rule


for _op in ODD:
    TABLE[_op] = _odd(_op)
for _op in EVEN:
    TABLE[_op] = _even(_op)


@identity("abs")
def _abs(c: Canonical, node: Node) -> Value | None:
    return c.algebra.absolute(c.of(node.inputs[0]))


@identity("log")
def _log(c: Canonical, node: Node) -> Value | None:
    u = c.of(node.inputs[0])
    if len(node.inputs) != 1:
        return None
    if u.op == "reduce_sum" and u.args[0].op == "exp":
        c.algebra.note("log(sum(exp(u))) is logsumexp(u)")
        return c.algebra.atom("logsumexp", u.args[0].args, u.params)
    if u.op == "sigmoid":
        c.algebra.note("log(sigmoid(u)) is -softplus(-u)")
        return c.algebra.scale(c.algebra.softplus(c.algebra.scale(u.args[0], -1.0)), -1.0)
    return _log_of(c, u)


@identity("log1p")
def _log1p(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("log1p(u) is log(1 + u)")
    return _log_of(c, c.algebra.sum(1.0, [(c.of(node.inputs[0]), 1.0)]))


def _log_of(c: Canonical, u: Value) -> Value:
    if u.number is not None and u.number > 0:
        return c.algebra.number(math.log(u.number))
    if u.op == "sum" and u.constant == 1.0 and [(m.op, k) for m, k in u.terms] == [("exp", 1.0)]:
        c.algebra.note("log(1 + exp(u)) is softplus(u)")
        return c.algebra.softplus(u.terms[0][0].args[0])
    return c.algebra.atom("log", (u,), scalar=u.scalar)


@identity("floor_divide")
def _floor_divide(c: Canonical, node: Node) -> Value | None:
    a, b = (c.of(n) for n in node.inputs)
    if a.number is not None and b.number:
        return c.algebra.number(float(a.number // b.number))
    if b.is_number(1.0) and a.scalar and a.op == "size":
        return a
    return None


@identity("sigmoid", "nn.sigmoid", "nn.Sigmoid")
def _sigmoid(c: Canonical, node: Node) -> Value | None:
    return c.algebra.sigmoid(c.of(node.inputs[0]))


@identity("nn.silu", "nn.SiLU")
def _silu(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("silu(u) is u * sigmoid(u)")
    u = c.of(node.inputs[0])
    return c.algebra.multiply(u, c.algebra.sigmoid(u))


@identity("nn.gelu")
def _gelu(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu(u) is u * (1 + erf(u / sqrt(2))) / 2")
    u = c.of(node.inputs[0])
    e = odd(c, "erf", c.algebra.scale(u, math.sqrt(0.5)))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(e, 1.0)]), ONE)])


@identity("nn.gelu_approx")
def _gelu_approx(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu_approx(u) is u * (1 + tanh(sqrt(2 / pi) * (u + 0.044715 * u^3))) / 2")
    u = c.of(node.inputs[0])
    inner = c.algebra.sum(0.0, [(u, 1.0), (c.algebra.power(u, Fraction(3)), 0.044715)])
    t = odd(c, "tanh", c.algebra.scale(inner, math.sqrt(2 / math.pi)))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(t, 1.0)]), ONE)])


@identity("nn.gelu_fast_approx")
def _gelu_fast(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu_fast_approx(u) is u * sigmoid(1.702 * u)")
    u = c.of(node.inputs[0])
    return c.algebra.multiply(u, c.algebra.sigmoid(c.algebra.scale(u, 1.702)))


@identity("nn.relu", "nn.ReLU")
def _relu(c: Canonical, node: Node) -> Value | None:
    args = sorted((c.of(node.inputs[0]), c.algebra.zero), key=lambda v: (*v.order, v.id))
    return c.algebra.atom("maximum", args, nonnegative=True)


@identity("nn.relu2", "nn.ReLU2")
def _relu2(c: Canonical, node: Node) -> Value | None:
    relu = _relu(c, node)
    return None if relu is None else c.algebra.power(relu, Fraction(2))


@identity("nn.softplus", "nn.Softplus")
def _softplus(c: Canonical, node: Node) -> Value | None:
    return c.algebra.softplus(c.of(node.inputs[0]))


@identity("nn.log_sigmoid", "nn.LogSigmoid")
def _log_sigmoid(c: Canonical, node: Node) -> Value | None:
    return c.algebra.scale(c.algebra.softplus(c.algebra.scale(c.of(node.inputs[0]), -1.0)), -1.0)


@identity("nn.mish", "nn.Mish")
def _mish(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("mish(u) is u * tanh(softplus(u))")
    u = c.of(node.inputs[0])
    return c.algebra.multiply(u, odd(c, "tanh", c.algebra.softplus(u)))


@identity("nn.softsign", "nn.Softsign")
def _softsign(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("softsign(u) is u / (1 + |u|)")
    u = c.of(node.inputs[0])
    return c.algebra.divide(u, c.algebra.sum(1.0, [(c.algebra.absolute(u), 1.0)]))


@identity("nn.tanh", "nn.Tanh")
def _tanh(c: Canonical, node: Node) -> Value | None:
    return odd(c, "tanh", c.of(node.inputs[0]))


@identity("nn.log_softmax")
def _log_softmax(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis", -1))
    if axes == "?":
        return None
    u = c.of(x)
    return c.algebra.subtract(u, c.algebra.atom("logsumexp", (u,), (("axes", axes), ("keepdims", True))))
