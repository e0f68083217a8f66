"""The identities of single operations: what each becomes in the canonical form.

TABLE maps an operation of the graph to a function of the canonical form and the node. A function returns the node's
value, or None where its identity doesn't hold: then the node is an atom.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from fuselint.graph import identities_elementwise, identities_linear, identities_reduce, identities_views
from fuselint.graph.identity import Identity, into
from fuselint.graph.model import Node
from fuselint.graph.values import Value, close

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

TABLE: dict[str, Identity] = {
    **identities_elementwise.TABLE,
    **identities_linear.TABLE,
    **identities_reduce.TABLE,
    **identities_views.TABLE,
}
identity = into(TABLE)

COMMUTATIVE = frozenset(
    "maximum minimum logaddexp logical_and logical_or equal not_equal bitwise_and bitwise_or bitwise_xor".split()
)

NONNEGATIVE = frozenset("exp sigmoid softmax abs square sqrt rsqrt".split())


# -- leaves ---------------------------------------------------------------------------------------------------------


@identity("const")
def _const(c: Canonical, node: Node) -> Value | None:
    value = node.attrs.get("value")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return c.algebra.number(float(value))
    return c.algebra.atom("const", params=(("value", repr(value)), ("kind", node.attrs.get("kind"))), name=repr(value))


@identity("global", "attr", "param")
def _named(c: Canonical, node: Node) -> Value | None:
    """Names whose value facts know, and integers that are the length of some axis."""
    value = c.facts.const(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return c.algebra.number(float(value))
    return c.length(node)


@identity("call")
def _call(c: Canonical, node: Node) -> Value | None:
    """math.sqrt and the like, of numbers."""
    name = str(node.attrs.get("target") or "")
    rule = CALLS.get(name)
    if (
        rule is None
        or node.attrs.get("keywords")
        or not node.inputs
        or any(c.facts.kind(n) == "array" for n in node.inputs)
    ):
        return None
    return rule(c, node)


@identity("dim")
def _dim(c: Canonical, node: Node) -> Value | None:
    axis = node.attrs.get("axis")
    if not isinstance(axis, int):
        return None
    x = node.inputs[0]
    return c.size_of(x, c.axis(x, axis))


@identity("item")
def _item(c: Canonical, node: Node) -> Value | None:
    """An entry of x.shape, or of a display."""
    index = node.attrs.get("index")
    if not isinstance(index, int) or not node.inputs:
        return None
    held = node.inputs[0]
    if held.op == "shape":
        x = held.inputs[0]
        return c.size_of(x, c.axis(x, index))
    if held.op in ("tuple", "list") and -len(held.inputs) <= index < len(held.inputs):
        return c.of(held.inputs[index])
    return None


@identity("ndim")
def _ndim(c: Canonical, node: Node) -> Value | None:
    rank = c.rank(node.inputs[0])
    return None if rank is None else c.algebra.number(float(rank))


# -- joins ----------------------------------------------------------------------------------------------------------


@identity("phi")
def _phi(c: Canonical, node: Node) -> Value | None:
    """Both branches the same; or `m is not None` guards a term, a factor or both: then = else * m + n."""
    then, other = (c.of(n) for n in node.inputs)
    if then is other:
        c.algebra.note("both branches give the same value")
        return then
    test = node.attrs.get("test")
    guarded = none_test(c, test) if isinstance(test, Node) else None
    if guarded is not None:
        marker, present = guarded
        with_it, without = (then, other) if present else (other, then)
        extra = _difference(c, with_it, without)
        if extra is not None:
            c.algebra.note("a term under `is not None` is an optional term")
            return c.algebra.add(without, c.algebra.atom("guarded", (extra,), (("by", marker),)))
        factor = _quotient(c, with_it, without)
        if factor is not None:
            c.algebra.note("a factor under `is not None` is an optional factor")
            return c.algebra.multiply(without, c.algebra.atom("optional", (factor,), (("by", marker),)))
        affine = _affine(c, with_it, without)
        if affine is not None:
            c.algebra.note("a factor and a term under `is not None` are optional")
            factor, extra = (c.algebra.atom(op, (a,), (("by", marker),)) for op, a in zip(GUARDS, affine, strict=True))
            return c.algebra.add(c.algebra.multiply(without, factor), extra)
    params = (("test", c.of(test)),) if isinstance(test, Node) else (("test", node.id),)
    scalar = then.scalar and other.scalar
    return c.algebra.atom(
        "phi", (then, other), params, scalar=scalar, nonnegative=then.nonnegative and other.nonnegative
    )


GUARDS = ("optional", "guarded")


def _affine(c: Canonical, whole: Value, part: Value) -> tuple[Value, Value] | None:
    """(m, n) of whole = part * m + n."""
    if whole.op != "sum" or whole.constant:
        return None
    factors = [(m, f) for m, k in whole.terms if (f := _quotient(c, c.algebra.scale(m, k), part)) is not None]
    if len(factors) != 1:
        return None
    ((term, factor),) = factors
    return factor, c.algebra.sum(0.0, [t for t in whole.terms if t[0] is not term])


def none_test(c: Canonical, test: Node) -> tuple[Value, bool] | None:
    """(m, True) of `m is not None`, (m, False) of `m is None`."""
    flipped = False
    while test.op == "not":
        test, flipped = test.inputs[0], not flipped
    if test.op != "compare" or test.attrs.get("op") not in ("is", "is not") or len(test.inputs) != 2:
        return None
    a, b = test.inputs
    if a.op == "const":
        a, b = b, a
    if b.op != "const" or b.attrs.get("value") is not None:
        return None
    return c.of(a), (test.attrs["op"] == "is not") != flipped


def _difference(c: Canonical, whole: Value, part: Value) -> Value | None:
    """What `whole` has beyond the terms of `part`, where it has all of those."""
    have = dict(whole.terms)
    if not part.terms or not close(whole.constant, part.constant, 1e-12):
        return None
    for m, k in part.terms:
        if m not in have or not close(have.pop(m), k, 1e-9):
            return None
    return c.algebra.sum(0.0, list(have.items())) if have else None


def _quotient(c: Canonical, whole: Value, part: Value) -> Value | None:
    """What `whole` has beyond the factors of `part`, where it has all of those and no division."""
    have = {(b, e > 0): e for b, e in whole.factors}
    if not part.factors or not close(whole.coefficient, part.coefficient, 1e-12):
        return None
    for b, e in part.factors:
        have[(b, e > 0)] = have.get((b, e > 0), Fraction(0)) - e
    rest = [(b, e) for (b, positive), e in have.items() if e]
    if not rest or any(e < 0 or not positive for (_, positive), e in have.items() if e):
        return None
    return c.algebra.product(1.0, rest)


CALLS: dict[str, Identity] = {
    **{
        f"{module}.{op}": TABLE[op]
        for module in ("math", "numpy")
        for op in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sinh", "cosh")
    },
    "math.pow": TABLE["power"],
    "math.erf": TABLE["erf"],
    "math.fabs": TABLE["abs"],
    "builtins.abs": TABLE["abs"],
    "builtins.float": lambda c, node: c.of(node.inputs[0]),
}
"""Calls of Python numbers that are operations, by qualified name."""
