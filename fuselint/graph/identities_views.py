"""Identities of reshapes, new axes, slices and other operations that only move elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fuselint.graph.identity import Identity, into, ints, linear
from fuselint.graph.model import Node, Slice
from fuselint.graph.values import Value

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

TABLE: dict[str, Identity] = {}
identity = into(TABLE)


@identity("reshape")
def _reshape(c: Canonical, node: Node) -> Value | None:
    """Reshapes compose: only the last shape counts."""
    x = node.inputs[0]
    shape = node.attrs.get("shape")
    if isinstance(shape, Node):
        if shape.op == "shape" and c.of(shape.inputs[0]) is c.of(x):
            return c.of(x)
        return None
    if not isinstance(shape, (tuple, list)):
        return None
    dims = [c.operand(d) for d in shape]
    if any(d is None for d in dims):
        return None
    sizes = [d for d in dims if d is not None]

    def make(u: Value) -> Value:
        while u.op in ("reshape", "expand_dims", "squeeze"):
            c.algebra.note("reshapes compose")
            u = u.args[0]
        return c.algebra.atom("reshape", (u, *sizes), nonnegative=u.nonnegative)

    return linear(c, c.of(x), make)


def expanded(c: Canonical, v: Value, axes: tuple[int, ...]) -> Value:
    whole = _unsqueezed(c, v, axes, 0)
    if whole is not None and not v.scalar:
        c.algebra.note("a squeezed axis comes back")
        return whole
    return linear(c, v, lambda u: c.algebra.atom("expand_dims", (u,), (("axes", axes),), nonnegative=u.nonnegative))


def _unsqueezed(c: Canonical, v: Value, axes: tuple[int, ...], depth: int) -> Value | None:
    """expand_dims(v), where v is arithmetic on values that were squeezed on these very axes."""
    if v.scalar:
        return v
    if v.op == "squeeze":
        return v.args[0] if v.param("axes") == axes else None
    if depth > 8 or v.op not in ("product", "sum", "exp", "log", "sigmoid", "tanh", "abs"):
        return None
    below = [b for b, _ in v.factors] if v.op == "product" else [m for m, _ in v.terms] if v.op == "sum" else v.args
    inner = [_unsqueezed(c, b, axes, depth + 1) for b in below]
    made = [i for i in inner if i is not None]
    if len(made) < len(inner):
        return None
    if v.op == "product":
        return c.algebra.product(v.coefficient, zip(made, (e for _, e in v.factors), strict=True))
    if v.op == "sum":
        return c.algebra.sum(v.constant, zip(made, (k for _, k in v.terms), strict=True))
    return c.algebra.atom(v.op, made, v.params, nonnegative=v.nonnegative)


@identity("expand_dims")
def _expand_dims(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axis = node.attrs.get("axis")
    listed = ints(axis if isinstance(axis, (tuple, list)) else (axis,))
    if listed is None:
        return None
    return expanded(c, c.of(x), _new_axes(c, x, listed))


def _new_axes(c: Canonical, x: Node, axes: Iterable[int]) -> tuple[int, ...]:
    listed = list(axes)
    rank = c.rank(x)
    return tuple(sorted(a - rank - len(listed) if a >= 0 and rank is not None else a for a in listed))


@identity("squeeze")
def _squeeze(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis"))
    if not isinstance(axes, tuple) or node.attrs.get("axis") is None:
        return None

    def make(u: Value) -> Value:
        if u.op == "expand_dims" and u.param("axes") == axes:
            return u.args[0]
        return c.algebra.atom("squeeze", (u,), (("axes", axes),), nonnegative=u.nonnegative)

    return linear(c, c.of(x), make)


FULL = ("slice", None, None, None)


@identity("index")
def _index(c: Canonical, node: Node) -> Value | None:
    """x[..., None] and the like insert axes; other indices are atoms, written from the end where the rank is known."""
    x = node.inputs[0]
    index = node.attrs.get("index")
    if not isinstance(index, (tuple, list)):
        return None
    rank = c.rank(x)
    entries = [_entry(c, x, e, i, index, rank) for i, e in enumerate(index)]
    if "..." not in entries:
        if rank is not None:
            taken = sum(e is not None for e in entries)
            entries = [*entries, *[FULL] * (rank - taken)]
            entries.insert(next((i for i, e in enumerate(entries) if e != FULL), 0), "...")
        else:
            entries.append("...")
    at = entries.index("...")
    before, after = entries[:at], entries[at + 1 :]
    if rank is not None:  # full slices next to the ellipsis are part of it
        while before and before[-1] == FULL:
            before.pop()
        while after and after[0] == FULL:
            after.pop(0)
    else:
        while before and before[-1] == FULL:
            before.pop()
    while after and not before and after[0] == FULL:
        after.pop(0)
    entries = [*before, "...", *after]
    v = c.of(x)
    if all(e is None or e in (FULL, "...") for e in entries):
        axes = [i for i, e in enumerate(before) if e is None] + [
            i - len(after) for i, e in enumerate(after) if e is None
        ]
        return expanded(c, v, _new_axes(c, x, axes)) if axes else v
    return linear(
        c, v, lambda u: c.algebra.atom("index", (u,), (("index", tuple(entries)),), nonnegative=u.nonnegative)
    )


def _entry(c: Canonical, x: Node, entry: Any, position: int, index: Any, rank: int | None) -> Any:
    """One index: a slice that takes everything is FULL."""
    if entry is Ellipsis:
        return "..."
    if not isinstance(entry, Slice):
        return c.frozen(entry)
    start, stop, step = (c.operand(p) if p is not None else None for p in (entry.start, entry.stop, entry.step))
    if any(
        p is not None and q is None
        for p, q in zip((entry.start, entry.stop, entry.step), (start, stop, step), strict=True)
    ):
        return c.frozen(entry)
    if start is not None and start.is_number(0.0):
        start = None
    if step is not None and step.is_number(1.0):
        step = None
    if stop is not None and step is None:
        axis = _axis_of_entry(position, index)
        if axis is not None and stop is c.size_of(x, c.axis(x, axis)):
            stop = None
    return ("slice", start, stop, step)


def _axis_of_entry(position: int, index: Any) -> int | None:
    """The axis that an entry of an index of ints, slices, None and an ellipsis speaks of."""

    def takes(e: Any) -> bool:
        return e is not None and e is not Ellipsis

    if any(isinstance(e, Node) for e in index):
        return None
    dots = next((i for i, e in enumerate(index) if e is Ellipsis), None)
    if dots is None or position < dots:
        return sum(takes(e) for e in index[:position])
    return -sum(takes(e) for e in index[position:])


def _moved(op: str) -> Identity:
    """A linear operation of one array: scalars move out of it."""

    def rule(c: Canonical, node: Node) -> Value | None:
        params = [(k, c.frozen(v)) for k, v in sorted(node.attrs.items())]
        others = [c.of(n) for n in node.inputs[1:]]
        return linear(
            c, c.of(node.inputs[0]), lambda u: c.algebra.atom(op, (u, *others), params, nonnegative=u.nonnegative)
        )

    return rule


for _op in ("broadcast_to", "repeat", "tile", "flatten", "unflatten", "take", "take_along_axis", "flip", "roll"):
    TABLE[_op] = _moved(_op)
