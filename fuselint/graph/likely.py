"""Shapes as costs take them, where the rank isn't proven: an axis that the code makes is 1, whatever is around it.

`scale[:, None]` is one row for many, though nothing says how many axes `scale` has. Such shapes prove nothing, and only
traffic reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuselint.graph.model import Node, Slice
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

DEEPEST = 16
"""Operations that a shape is followed through."""

SAME_SHAPE = frozenset({"unary", "cast", "activation"})
ONE = Expr.of(1)


def likely(node: Node, facts: Facts, depth: int = 0) -> Shape | None:
    """A node's shape: what is known of it, or what the axes that it is given suggest."""
    shape = facts.shape(node)
    if (shape is not None and shape.lead is None) or depth > DEEPEST:
        return shape
    source = node.inputs[0] if node.inputs else None
    if source is None:
        return shape
    found = None
    if node.op == "index":
        found = _indexed(likely(source, facts, depth + 1), node.attrs.get("index"))
    elif node.op == "expand_dims":
        found = _expanded(likely(source, facts, depth + 1), node.attrs.get("axis"))
    elif node.op == "item" and source.op == "split":
        found = _split(likely(source.inputs[0], facts, depth + 1), source.attrs.get("axis"), node)
    elif node.op == "reshape":
        found = _reshaped(node.attrs.get("shape"), facts)
    elif node.op in TABLE and TABLE[node.op].kind in SAME_SHAPE:
        found = likely(source, facts, depth + 1)
    return found if found is not None and (shape is None or found.lead is None) else shape


def _indexed(shape: Shape | None, index: Any) -> Shape | None:
    """`x[:, None, :]` of an x of unknown rank names all its axes, and `x[:, None]` all but one."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(p is None or (isinstance(p, Slice) and p.takes_all) for p in parts):
        return None
    given = sum(p is not None for p in parts)
    if shape is None or None not in parts:
        return None
    if given == 0 if shape.lead is not None else len(shape.dims) < given:
        return None
    count = len(shape.dims) if shape.lead is None else given + (parts[-1] is None)
    sizes = shape.tail(count)
    if sizes is None:
        return None
    rest = iter(sizes)
    return Shape(None, (*(ONE if p is None else next(rest) for p in parts), *rest))


def _expanded(shape: Shape | None, axis: Any) -> Shape | None:
    """`expand_dims(x, 1)` is `x[:, None]`."""
    if not isinstance(axis, int) or axis < 0:
        return None
    return _indexed(shape, (*[Slice()] * axis, None))


def _split(shape: Shape | None, axis: Any, node: Node) -> Shape | None:
    back = shape.from_end(axis) if shape is not None and isinstance(axis, int) else None
    if shape is None or back is None:
        return None
    return shape.replace(back, (Expr.name(f"%{node.id}.shape[{back}]"),))


def _reshaped(sizes: Any, facts: Facts) -> Shape | None:
    """`x.reshape(n, 1, *[1] * count)`: however many axes of 1 there are, they hold nothing."""
    dims: list[Expr] = []
    for size in sizes if isinstance(sizes, tuple) else (None,):
        if isinstance(size, Node) and size.op == "star":
            repeated = size.inputs[0]
            display = next((n for n in repeated.inputs if n.op in ("list", "tuple")), repeated)
            if not display.inputs or any(facts.const(n) != 1 for n in display.inputs):
                return None
            dims.append(ONE)
            continue
        found = facts.size(size)
        if found is None or found == -1:
            return None
        dims.append(found)
    return Shape(None, tuple(dims))
