"""`x[...]` as primitives: mlx_get_item of MLX's python/src/indexing.cpp."""

from __future__ import annotations

from typing import Any

from fuselint.graph import tape_views as v
from fuselint.graph.expand import Applied, Result
from fuselint.graph.expand_views import arange, gather, take
from fuselint.graph.indexing import sliced
from fuselint.graph.model import Node, Slice
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array, Tracer
from fuselint.graph.tape_views import ONE, ZERO, Cut, known


def indexed(w: Applied) -> Result | None:
    """As mlx_get_item does it: slices and new axes are views, arrays gather, and so does a number alone."""
    index = w.attr("index")
    parts = index if isinstance(index, tuple) else (index,)
    dims = known(w.a)
    if dims is None or not all(isinstance(p, (int, Slice, Node)) or p in (None, ...) for p in parts):
        return None
    if len(parts) == 1 and _is_scalar(w, parts[0]):
        return take(w.t, w.a, w.t.constant(str(w.size(parts[0])), "uint32"), 0)
    spelt = spelt_out(parts, len(dims))
    if sum(p is not None for p in spelt) > len(dims):
        return None  # the rank is known of a path that doesn't come here
    return _gathered(w, spelt) if any(_is_array(w, p) for p in spelt) else _sliced(w, w.a, spelt)


def spelt_out(parts: tuple[Any, ...], rank: int) -> list[Any]:
    """Without an Ellipsis."""
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    out: list[Any] = []
    for p in parts:
        out.extend([Slice()] * (rank - taken) if p is Ellipsis else [p])
    return out


def _is_array(w: Applied, part: Any) -> bool:
    facts = w.trace.facts
    return not isinstance(part, (int, Slice, type(None))) and facts.kind(part) in ("array", "unknown")


def _is_scalar(w: Applied, part: Any) -> bool:
    return part is not None and part is not Ellipsis and not isinstance(part, Slice) and not _is_array(w, part)


def _sliced(w: Applied, a: Array, parts: list[Any]) -> Array | None:
    """Slices and numbers cut, then the axes of numbers go, then new ones come."""
    dims = known(a)
    if dims is None:
        return None
    cuts = v.whole(dims)
    axis = 0
    gone: list[int] = []
    new: list[int] = []
    for at, p in enumerate(parts):
        if p is None:
            new.append(at - len(gone))
            continue
        if isinstance(p, Slice):
            one = _bounds(w, p, dims[axis])
            if one is None:
                return None
            cuts[axis] = one
        else:
            start = w.size(p)
            start = ZERO if start is None else start
            number = start.value()
            cuts[axis] = (dims[axis] + start if number is not None and number < 0 else start, 1, ONE)
            gone.append(axis)
        axis += 1
    out = v.squeeze(w.t, v.cut(w.t, a, cuts), gone)
    return v.expand_dims(w.t, out, new)


def _bounds(w: Applied, part: Slice, size: Expr) -> Cut | None:
    step = 1 if part.step is None else w.number(part.step)
    if step is None or step == 0:
        return None
    left = sliced(size, part, w.trace.facts)
    if left is None:
        return _backwards(w, part, size, step)
    if step < 0:
        return size - 1, step, left
    start = ZERO if part.start is None else w.size(part.start)
    if start is None:
        return None
    number, whole = start.value(), size.value()
    if number is not None and number < 0:
        start = size + start if whole is None else Expr.of(max(0, whole + number))
    elif number is not None and whole is not None:
        start = Expr.of(min(number, whole))
    return start, step, left


def _backwards(w: Applied, part: Slice, size: Expr, step: int) -> Cut | None:
    n = size.value()
    bounds = [None if p is None else w.number(p) for p in (part.start, part.stop)]
    if n is None or step > 0:
        return None
    taken = range(n)[slice(bounds[0], bounds[1], step)]
    return Expr.of(taken.start), step, Expr.of(len(taken))


def _gathered(w: Applied, parts: list[Any]) -> Array | None:
    """Arrays, and numbers and slices before the last array, are indices of one Gather; the rest cuts its result."""
    t, a = w.t, w.a
    if len(parts) == 1:
        index = w.trace.operand(parts[0])
        return take(t, a, index, 0) if isinstance(index, Array) else None
    takes = [i for i, p in enumerate(parts) if p is not None and not isinstance(p, Slice)]
    first, last = takes[0], takes[-1]
    apart = any(isinstance(p, Slice) or p is None for p in parts[first:last])
    taken = [p for p in parts[: last + 1] if p is not None]
    indices = [_index(w, p, d) for p, d in zip(taken, known(a) or (), strict=False)]
    given = [i for i in indices if i is not None]
    if len(given) < len(taken):
        return None
    counted = [isinstance(p, Slice) for p in taken]
    most = max(len(known(i) or ()) for i, c in zip(given, counted, strict=True) if not c)
    shaped = _shaped(t, given, counted, most, first=apart)
    axes = list(range(len(given)))
    out = v.squeeze(t, gather(t, a, shaped, axes), [i + most + sum(counted) for i in axes])
    whole = [None if p is None else Slice() for p in parts[:last] if p is None or isinstance(p, Slice)]
    if apart:
        return _sliced(w, out, [*[Slice()] * most, *whole, *parts[last + 1 :]])
    before = [None if p is None else Slice() for p in parts[:first]]
    return _sliced(w, out, [*before, *[Slice()] * most, *parts[last + 1 :]])


def _index(w: Applied, part: Any, size: Expr) -> Array | None:
    """What a part of the index gathers by: a slice is counted out."""
    if isinstance(part, Slice):
        bounds = _bounds(w, part, size)
        return None if bounds is None else arange(w.t, bounds[2], "uint32", bounds)
    if _is_array(w, part):
        given = w.trace.operand(part)
        return given if isinstance(given, Array) and known(given) is not None else None
    return w.t.constant(str(w.size(part)), "uint32")


def _shaped(t: Tracer, indices: list[Array], counted: list[bool], most: int, *, first: bool) -> list[Array]:
    """Indices with axes of their own: the arrays' before those of slices, or after them."""
    out = []
    slices, at = sum(counted), 0
    for i, (a, is_slice) in enumerate(zip(indices, counted, strict=True)):
        if is_slice and (first or i < slices):
            sizes = [ONE] * (most + slices)
            sizes[most + at if first else i] = (known(a) or (ONE,))[0]
            out.append(v.reshape(t, a, Shape(None, tuple(sizes))))
            at += 1
        elif first and not is_slice:
            out.append(v.reshape(t, a, Shape(None, (*(known(a) or ()), *[ONE] * slices))))
        else:
            out.append(a)
    return out
