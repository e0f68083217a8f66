"""Identities of matrix products and permutations of axes, which scalars move out of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuselint.graph.identity import Identity, into, ints, linear
from fuselint.graph.model import Node
from fuselint.graph.values import Value

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

TABLE: dict[str, Identity] = {}
identity = into(TABLE)


def product_of(c: Canonical, a: Value, b: Value) -> Value:
    """matmul(a, b), scalars outside."""
    return linear(c, a, lambda u: linear(c, b, lambda w: c.algebra.atom("matmul", (u, w))))


@identity("matmul")
def _matmul(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    return product_of(c, c.of(a), c.of(b))


@identity("addmm")
def _addmm(c: Canonical, node: Node) -> Value | None:
    if len(node.inputs) != 3:
        return None
    bias, a, b = (c.of(n) for n in node.inputs)
    alpha, beta = c.operand(node.attrs.get("alpha", 1.0)), c.operand(node.attrs.get("beta", 1.0))
    if alpha is None or beta is None:
        return None
    c.algebra.note("addmm(c, a, b) is beta * c + alpha * a @ b")
    return c.algebra.add(c.algebra.multiply(beta, bias), c.algebra.multiply(alpha, product_of(c, a, b)))


Perm = tuple[int, ...]
"""Axes from the end: result axis i - len(perm) is the operand's axis perm[i]. Axes before them stay."""


def normal(perm: Iterable[int]) -> Perm:
    """Without the leading axes that stay where they are."""
    listed = list(perm)
    while listed and listed[0] == -len(listed):
        listed.pop(0)
    return tuple(listed)


def composed(outer: Perm, inner: Perm) -> Perm:
    n = max(len(outer), len(inner))
    full = [*range(-n, -len(inner)), *inner]
    return normal(full[a] for a in [*range(-n, -len(outer)), *outer])


def permuted(c: Canonical, v: Value, perm: Perm) -> Value:
    """The axes of v in another order. Permutations compose, and scalars move out."""
    perm = normal(perm)
    if not perm:
        return v

    def make(u: Value) -> Value:
        whole = perm
        if u.op == "permute":
            c.algebra.note("permutations of axes compose")
            whole = composed(perm, u.param("perm"))
            u = u.args[0]
            if not whole:
                return u
        return c.algebra.atom("permute", (u,), (("perm", whole),), nonnegative=u.nonnegative)

    return linear(c, v, make)


def swap(a: int, b: int) -> Perm:
    """The permutation that swaps two axes counted from the end."""
    listed = list(range(min(a, b), 0))
    listed[a], listed[b] = listed[b], listed[a]
    return tuple(listed)


@identity("transpose")
def _transpose(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    v = c.of(x)
    axes = node.attrs.get("axes")
    if axes is None or axes == ():
        rank = c.rank(x)
        if rank is not None:
            return permuted(c, v, tuple(range(-1, -rank - 1, -1)))

        def reverse(u: Value) -> Value:
            if u.op == "reverse_axes":
                return u.args[0]
            return c.algebra.atom("reverse_axes", (u,), nonnegative=u.nonnegative)

        return linear(c, v, reverse)
    listed = ints(axes)
    if listed is None:
        return None
    n = len(listed)
    perm = tuple(a - n if a >= 0 else a for a in listed)
    if sorted(perm) != list(range(-n, 0)):
        return None
    return permuted(c, v, perm)


@identity("matrix_transpose")
def _matrix_transpose(c: Canonical, node: Node) -> Value | None:
    return permuted(c, c.of(node.inputs[0]), (-1, -2))


@identity("swapaxes")
def _swapaxes(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    pair = ints((node.attrs.get("axis1"), node.attrs.get("axis2")))
    if pair is None:
        return None
    a, b = (c.axis(x, i) for i in pair)
    if a < 0 and b < 0:
        return permuted(c, c.of(x), swap(a, b))

    def make(u: Value) -> Value:
        pair = tuple(sorted((a, b)))
        if u.op == "swapaxes" and u.param("pair") == pair:
            return u.args[0]
        return c.algebra.atom("swapaxes", (u,), (("pair", pair),), nonnegative=u.nonnegative)

    return c.of(x) if a == b else linear(c, c.of(x), make)


@identity("moveaxis")
def _moveaxis(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    pair = ints((node.attrs.get("source"), node.attrs.get("destination")))
    if pair is None:
        return None
    a, b = (c.axis(x, i) for i in pair)
    if a >= 0 or b >= 0:
        return None
    listed = list(range(min(a, b), 0))
    n = len(listed)
    moved = listed.pop(a + n)
    listed.insert(b + n, moved)
    return permuted(c, c.of(x), tuple(listed))


def _comes_first(out: str, one: str, other: str) -> bool:
    """Whether the first label of a result that only one of two operands has is of this one."""
    return next((x in one for x in out if (x in one) is not (x in other)), False)


@identity("einsum")
def _einsum(c: Canonical, node: Node) -> Value | None:
    """Two operands with batch labels, one free label each and one contracted: a matmul between permutations."""
    subscripts = node.attrs.get("subscripts")
    if not isinstance(subscripts, str) or len(node.inputs) != 2 or "->" not in subscripts:
        return None
    left, out = subscripts.replace(" ", "").replace("...", ".").split("->")
    if left.count(",") != 1:
        return None
    la, lb = left.split(",")
    first, second = node.inputs
    if _comes_first(out, lb, la):
        la, lb, first, second = lb, la, second, first  # the product with its rows first
    for labels in (la, lb, out):
        if len(set(labels)) != len(labels) or not labels.replace(".", "").isalpha() or "." in labels[1:]:
            return None
    if len({"." in la, "." in lb, "." in out}) != 1:
        return None
    summed = [x for x in la if x in lb and x not in out]
    rows = [x for x in la if x not in lb]
    columns = [x for x in lb if x not in la]
    batch = [x for x in out if x in la and x in lb]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or rows[0] not in out or columns[0] not in out:
        return None
    if len(la) != len(batch) + 2 or len(lb) != len(batch) + 2 or len(out) != len(batch) + 2:
        return None
    c.algebra.note("einsum is a matmul and permutations")

    def order(have: str, want: list[str]) -> Perm:
        return tuple(have.index(x) - len(have) for x in want)

    a = permuted(c, c.of(first), order(la, [*batch, *rows, *summed]))
    b = permuted(c, c.of(second), order(lb, [*batch, *summed, *columns]))
    have = "".join([*batch, *rows, *columns])
    return permuted(c, product_of(c, a, b), order(have, list(out)))
