"""Identities of reductions: means, sums, variances, norms, softmax."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fuselint.graph.identity import Identity, into, linear
from fuselint.graph.model import Node
from fuselint.graph.values import HALF, Value

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

TABLE: dict[str, Identity] = {}
identity = into(TABLE)


def reduced(c: Canonical, op: str, x: Node, v: Value, axis: Any, keepdims: Any) -> Value | None:
    """A reduction, always over kept axes, squeezed after where the node drops them."""
    axes = c.axes(x, axis)
    if axes == "?" or isinstance(keepdims, Node):
        return None
    if c.facts.kind(x) == "scalar":
        return None
    whole = kept(c, op, v, axes)
    return whole if keepdims else squeezed(c, whole, axes)


def kept(c: Canonical, op: str, v: Value, axes: tuple[int, ...] | str | None) -> Value:
    def make(u: Value) -> Value:
        if op == "mean" and u.op == "sum":
            outside = [(m, k) for m, k in u.terms if m.scalar]
            inside = [(m, k) for m, k in u.terms if not m.scalar]
            if inside and (outside or u.constant):
                c.algebra.note("mean(u + scalar) is mean(u) + scalar")
                rest = kept(c, op, c.algebra.sum(0.0, inside), axes)
                return c.algebra.sum(u.constant, [(rest, 1.0), *outside])
        return c.algebra.atom(op, (u,), (("axes", axes), ("keepdims", True)), nonnegative=u.nonnegative)

    return linear(c, v, make)


def squeezed(c: Canonical, v: Value, axes: tuple[int, ...] | str | None) -> Value:
    return linear(c, v, lambda u: c.algebra.atom("squeeze", (u,), (("axes", axes),), nonnegative=u.nonnegative))


@identity("mean")
def _mean(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    return reduced(c, "mean", x, c.of(x), node.attrs.get("axis"), node.attrs.get("keepdims"))


@identity("sum")
def _sum(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    return reduced(c, "reduce_sum", x, c.of(x), node.attrs.get("axis"), node.attrs.get("keepdims"))


@identity("max", "min")
def _extreme(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis"))
    keepdims = node.attrs.get("keepdims")
    if axes == "?" or isinstance(keepdims, Node) or c.facts.kind(x) == "scalar":
        return None
    u = c.of(x)
    whole = c.algebra.atom(node.op, (u,), (("axes", axes), ("keepdims", True)), nonnegative=u.nonnegative)
    return whole if keepdims else squeezed(c, whole, axes)


@identity("var", "std")
def _var(c: Canonical, node: Node) -> Value | None:
    """var(x) = mean((x - mean(x))^2), with n - ddof for n."""
    x = node.inputs[0]
    v = c.of(x)
    axes = c.axes(x, node.attrs.get("axis"))
    keepdims, ddof = node.attrs.get("keepdims"), node.attrs.get("ddof") or 0
    if node.attrs.get("correction") is not None:
        ddof = node.attrs["correction"]
    if axes == "?" or isinstance(keepdims, Node) or not isinstance(ddof, int):
        return None
    c.algebra.note("var(x) is mean((x - mean(x))^2)")
    square = c.algebra.power(c.algebra.subtract(v, kept(c, "mean", v, axes)), Fraction(2))
    if ddof == 0:
        out = kept(c, "mean", square, axes)
    elif isinstance(axes, tuple):
        n = c.algebra.multiply(*(c.size_of(x, a) for a in axes))
        out = c.algebra.divide(kept(c, "reduce_sum", square, axes), c.algebra.sum(-float(ddof), [(n, 1.0)]))
    else:
        return None
    if node.op == "std":
        out = c.algebra.power(out, HALF)
    return out if keepdims else squeezed(c, out, axes)


@identity("linalg.norm")
def _norm(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    order, axis = node.attrs.get("ord"), node.attrs.get("axis")
    axes = c.axes(x, axis)
    if (
        order not in (None, 2, 2.0, "fro", "2")
        or isinstance(order, bool)
        or not isinstance(axes, tuple)
        or isinstance(node.attrs.get("keepdims"), Node)
    ):
        return None
    if len(axes) != 1 and (len(axes) != 2 or order not in (None, "fro")):
        return None
    c.algebra.note("norm(x) is sum(x^2)^(1/2)")
    out = c.algebra.power(kept(c, "reduce_sum", c.algebra.power(c.of(x), Fraction(2)), axes), HALF)
    return out if node.attrs.get("keepdims") else squeezed(c, out, axes)


@identity("softmax", "nn.softmax")
def _softmax(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis", -1))
    if axes == "?":
        return None
    u = c.of(x)
    if isinstance(axes, tuple):
        u = c.algebra.without_maximum(u, axes)
    return c.algebra.atom("softmax", (u,), (("axes", axes),), nonnegative=True)


@identity("logsumexp")
def _logsumexp(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes, keepdims = c.axes(x, node.attrs.get("axis")), node.attrs.get("keepdims")
    if axes == "?" or isinstance(keepdims, Node):
        return None
    whole = c.algebra.atom("logsumexp", (c.of(x),), (("axes", axes), ("keepdims", True)))
    return whole if keepdims else squeezed(c, whole, axes)
