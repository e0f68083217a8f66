"""The shape of `x[...]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from fuselint.graph.model import Node, Slice
from fuselint.graph.shapes import Shape, broadcast
from fuselint.graph.symbols import Expr

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts


Fresh = Callable[[int], Expr]


def indexed(shape: Shape | None, index: Sequence[Any], facts: KnownFacts, fresh: Fresh) -> Shape | None:
    """The shape of `x[index]`: ints drop an axis, None makes one, slices cut, arrays gather.

    `fresh` names an axis of the result whose size can't be worked out.
    """
    if shape is None:
        return None
    if Ellipsis in [p for p in index if not isinstance(p, Node)]:
        at = next(i for i, p in enumerate(index) if p is Ellipsis)
        before, after = list(index[:at]), list(index[at + 1 :])
    else:
        before, after = list(index), []
    if after and shape.lead is not None and not any(map(_uses, before)):
        return _from_end(shape, before, after, facts, fresh)
    if shape.lead is not None:
        return None if any(map(_uses, before)) else _from_end(shape, before, after, facts, fresh)
    used, used_after = sum(map(_uses, before)), sum(map(_uses, after))
    middle = len(shape.dims) - used - used_after
    if middle < 0:
        return None
    parts = [*before, *[Slice()] * middle, *after]
    return _axes(parts, shape.dims, facts, fresh)


def _uses(part: Any) -> bool:
    """Whether a part of an index takes an axis."""
    return part is not None and part is not Ellipsis


def _from_end(
    shape: Shape, before: Sequence[Any], after: Sequence[Any], facts: KnownFacts, fresh: Fresh
) -> Shape | None:
    """`x[None, ..., a:b]` of an x whose rank isn't known: the last axes alone change."""
    count = sum(map(_uses, after))
    tail, front = shape.tail(count), shape.front(count)
    if before or tail is None or front is None:
        return None
    if any(_is_array(p, facts) for p in after):
        return None
    inner = _axes(after, tail, facts, lambda i: fresh(i - len(after)))
    return None if inner is None else Shape(front[0], (*front[1], *inner.dims))


def _is_array(part: Any, facts: KnownFacts) -> bool:
    return isinstance(part, Node) and facts.kind(part) in ("array", "unknown")


def _axes(parts: Sequence[Any], dims: Sequence[Expr], facts: KnownFacts, fresh: Fresh) -> Shape | None:
    rest = iter(dims)
    out: list[Expr] = []
    gathered: list[Shape | None] = []
    places: list[int] = []
    for i, p in enumerate(parts):
        if p is None:
            out.append(Expr.of(1))
            continue
        d = next(rest)
        if isinstance(p, Slice):
            size = sliced(d, p, facts)
            out.append(fresh(len(out)) if size is None else size)
        elif isinstance(p, Node) and facts.kind(p) != "scalar":
            if facts.kind(p) != "array":
                return None
            if not gathered:
                at = len(out)
            gathered.append(facts.shape(p))
            places.append(i)
        elif isinstance(p, (tuple, list)):
            return None
    if gathered:
        together = reduce(broadcast, gathered)
        if together is None or together.lead is not None:
            return None
        if places != list(range(places[0], places[0] + len(places))):
            at = 0  # arrays apart from each other: their axes come first
        out[at:at] = together.dims
    return Shape(None, tuple(out))


def sliced(size: Expr, cut: Slice, facts: KnownFacts) -> Expr | None:
    """The size of `x[start:stop:step]` on an axis. Bounds that are names are taken to lie inside."""
    step = Expr.of(1) if cut.step is None else facts.size(cut.step)
    number = None if step is None else step.value()
    if number is None or number == 0:
        return None
    if number < 0:
        if cut.start is None and cut.stop is None:
            return (size + (-number - 1)) // -number
        return None
    start, stop = _bound(cut.start, size, facts, Expr.of(0)), _bound(cut.stop, size, facts, size)
    if start is None or stop is None:
        return None
    length = stop - start
    value = length.value()
    if value is not None:
        length = Expr.of(max(value, 0))
    return length if number == 1 else (length + (number - 1)) // number


def _bound(value: Any, size: Expr, facts: KnownFacts, default: Expr) -> Expr | None:
    if value is None:
        return default
    at = facts.size(value)
    if at is None:
        return None
    number, whole = at.value(), size.value()
    if number is not None and number < 0:
        at = size + at
        return Expr.of(max(0, whole + number)) if whole is not None else at
    if isinstance(value, Node) and at.terms and at.value() is None:
        signs = {c > 0 for m, c in at.terms if m}
        if value.op == "negative" or signs == {False}:
            return size + at  # `x[-n:]`
        if False in signs:
            return None  # `x[a - b :]` counts from either end
    if number is not None and whole is not None:
        return Expr.of(min(number, whole))
    return at


def index_primitives(node: Node, facts: KnownFacts) -> tuple[str, ...]:
    """What `x[...]` records: slices and new axes are views; an array gathers, and so does an int alone."""
    index = node.attrs.get("index")
    parts: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    if any(_is_array(p, facts) for p in parts):
        return _gathering(_spelt_out(parts, facts.rank(node.inputs[0])), facts)
    taking = [p for p in parts if _uses(p)]
    numbers = [p for p in taking if not isinstance(p, Slice)]
    expands = ("ExpandDims",) if any(p is None for p in parts) else ()
    if len(parts) == 1 and len(numbers) == 1:
        return ("Gather", "Squeeze")
    cuts = bool(numbers) or any(map(_cuts, taking))
    return (*(("Slice",) if cuts else ()), *(("Squeeze",) if numbers else ()), *expands)


def _spelt_out(parts: Sequence[Any], rank: int | None) -> list[Any]:
    """The index without an Ellipsis, as far as the rank says what it stands for."""
    out: list[Any] = []
    for p in parts:
        out.extend([Slice()] * ((rank or 0) - sum(map(_uses, parts))) if p is Ellipsis else [p])
    return out


def _gathering(parts: Sequence[Any], facts: KnownFacts) -> tuple[str, ...]:
    """Slices before or between arrays are counted out as indices; those after them cut the result."""
    places = [i for i, p in enumerate(parts) if _is_array(p, facts)]
    inside = [p for p in parts[: places[-1]] if isinstance(p, Slice)]
    apart = places != list(range(places[0], places[0] + len(places)))
    after = any(_cuts(p) for p in parts[places[-1] + 1 :])
    reshaped = ("Reshape",) * len(places) if apart else ()
    return (*reshaped, *("Arange", "Reshape") * len(inside), "Gather", "Squeeze", *(("Slice",) if after else ()))


def _cuts(part: Any) -> bool:
    return isinstance(part, Slice) and any(v is not None for v in (part.start, part.stop, part.step))
