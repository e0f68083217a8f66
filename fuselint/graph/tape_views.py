"""Views and copies of arrays on a tape, as mlx/ops.cpp makes them: what does nothing there makes nothing here.

Axes count from the end where a rank isn't known; a result's shape is None where it can't be worked out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr, product
from fuselint.graph.tape import Array, Tracer, joined

ONE = Expr.of(1)
ZERO = Expr.of(0)
Sizes = tuple[Expr, ...]

MOST_PARTS = 10
"""From so many indices on, mx.split makes slices."""


def known(a: Array) -> Sizes | None:
    """The sizes of all axes, where the rank is known."""
    return a.shape.dims if a.shape is not None and a.shape.lead is None else None


def _view(t: Tracer, primitive: str, a: Array, shape: Shape | None, key: Hashable) -> Array:
    return t.make(primitive, (a,), shape, a.dtype, key)


# -- one view ----------------------------------------------------------------------------------------------------------


def reshape(t: Tracer, a: Array, target: Shape | None, shape: Shape | None = None) -> Array:
    """target: as written, where it may hold a -1; shape: what that comes to."""
    if target is not None and target == a.shape:
        return a
    key = t.arguments if target is None else str(target)
    return _view(t, "Reshape", a, shape if shape is not None else target, key)


def flatten(t: Tracer, a: Array, start: int = 0, end: int = -1) -> Array:
    dims = known(a)
    if dims is None:
        return _view(t, "Flatten", a, None, (start, end))
    if not dims:
        return reshape(t, a, Shape.of(1))
    n = len(dims)
    start, end = max(0, start % n if start < 0 else start), min(n - 1, end % n if end < 0 else end)
    if start >= end:
        return a
    shape = Shape(None, (*dims[:start], product(dims[start : end + 1]), *dims[end + 1 :]))
    return _view(t, "Flatten", a, shape, (start, end))


def unflatten(t: Tracer, a: Array, axis: int, sizes: Sizes) -> Array:
    if len(sizes) == 1:
        return a
    dims = known(a)
    if dims is None:
        return _view(t, "Unflatten", a, a.shape and a.shape.replace(axis, sizes), (axis, str(sizes)))
    axis %= len(dims)
    return _view(t, "Unflatten", a, Shape(None, (*dims[:axis], *sizes, *dims[axis + 1 :])), (axis, str(sizes)))


def squeeze(t: Tracer, a: Array, axes: Sequence[int] | None) -> Array:
    """axes: None for all of 1."""
    dims = known(a)
    if axes is None:
        axes = [] if dims is None else [i for i, d in enumerate(dims) if d == 1]
    elif not axes:
        return a
    if dims is None:
        shape = a.shape
        for axis in sorted(axes):  # negative ones, from the front on
            shape = None if shape is None else shape.replace(axis, ())
        return _view(t, "Squeeze", a, shape, tuple(axes))
    gone = tuple(sorted(i % len(dims) for i in axes))
    return _view(t, "Squeeze", a, Shape(None, tuple(d for i, d in enumerate(dims) if i not in gone)), gone)


def expand_dims(t: Tracer, a: Array, axes: Sequence[int]) -> Array:
    """axes: places in the result."""
    if not axes:
        return a
    dims = known(a)
    if dims is None:
        return _view(t, "ExpandDims", a, None, tuple(axes))
    n = len(dims) + len(axes)
    places = tuple(sorted(i % n for i in axes))
    rest = iter(dims)
    shape = Shape(None, tuple(ONE if i in places else next(rest) for i in range(n)))
    return _view(t, "ExpandDims", a, shape, places)


def transpose(t: Tracer, a: Array, order: Sequence[int]) -> Array:
    dims = known(a)
    if dims is None:
        return _view(t, "Transpose", a, None, tuple(order))
    axes = tuple(i % len(dims) for i in order)
    return _view(t, "Transpose", a, Shape(None, tuple(dims[i] for i in axes)), axes)


def swapaxes(t: Tracer, a: Array, x: int, y: int) -> Array:
    dims = known(a)
    if dims is None:
        return _view(t, "Transpose", a, None, t.arguments)
    order = list(range(len(dims)))
    order[x], order[y] = order[y], order[x]
    return transpose(t, a, order)


def moveaxis(t: Tracer, a: Array, source: int, destination: int) -> Array:
    dims = known(a)
    if dims is None:
        return _view(t, "Transpose", a, None, t.arguments)
    n = len(dims)
    if source % n == destination % n:
        return a
    order = list(range(n))
    order.insert(destination % n, order.pop(source % n))
    return transpose(t, a, order)


def broadcast_to(t: Tracer, a: Array, shape: Shape | None) -> Array:
    return a if shape is not None and a.shape == shape else t.broadcast_to(a, shape)


Cut = tuple[Expr, int, Expr]
"""Of one axis: where it starts, its step, and how many elements are left."""


def cut(t: Tracer, a: Array, cuts: Sequence[Cut]) -> Array:
    """A Slice, whose key is the cuts."""
    dims = known(a)
    assert dims is not None
    sizes = tuple(size for _, _, size in cuts)
    if sizes == dims and all(step > 0 for _, step, _ in cuts):
        return a
    steps = tuple((start, 1 if size == 1 else step, size) for start, step, size in cuts)
    return _view(t, "Slice", a, Shape(None, sizes), steps)


def whole(dims: Sizes) -> list[Cut]:
    return [(ZERO, 1, d) for d in dims]


def split(t: Tracer, a: Array, ends: Sequence[Expr], axis: int) -> tuple[Array, ...]:
    """The parts between 0, the ends, and the axis's end."""
    dims = known(a)
    if not ends:
        return (a,)
    if dims is None:
        shapes = [None] * (len(ends) + 1)
        return _parts(t, a, shapes, (str(ends), axis))
    axis %= len(dims)
    bounds = [ZERO, *ends, dims[axis]]
    if len(ends) >= MOST_PARTS or not _ascending(bounds):
        out = []
        for start, end in pairwise(bounds):
            cuts = whole(dims)
            cuts[axis] = (start, 1, end - start)
            out.append(cut(t, a, cuts))
        return tuple(out)
    sizes = [y - x for x, y in pairwise(bounds)]
    parts = [Shape(None, (*dims[:axis], n, *dims[axis + 1 :])) for n in sizes]
    return _parts(t, a, parts, (tuple(ends), axis))


def _ascending(bounds: Sequence[Expr]) -> bool:
    """Whether the bounds grow, as far as they are numbers."""
    numbers = [b.value() for b in bounds]
    return all(x is None or y is None or x < y for x, y in pairwise(numbers))


def _parts(t: Tracer, a: Array, shapes: Sequence[Shape | None], key: Hashable) -> tuple[Array, ...]:
    return together(_view(t, "Split", a, s, (key, i)) for i, s in enumerate(shapes))


def together(results: Iterable[Array]) -> tuple[Array, ...]:
    """Those of one primitive."""
    out = tuple(results)
    if out:
        out[0].others = out[1:]
    for other in out[1:]:
        other.first = out[0]
    return out


# -- copies ------------------------------------------------------------------------------------------------------------


def concatenate(t: Tracer, arrays: Sequence[Array], axis: int | None, shape: Shape | None = None) -> Array:
    if axis is None:
        arrays, axis = [flatten(t, a) for a in arrays], 0
    if len(arrays) == 1:
        return arrays[0]
    dtype = t.promote(*(a.dtype for a in arrays))
    dims = known(arrays[0])
    sizes = [a.shape.axis(axis) if a.shape is not None else None for a in arrays]
    if shape is None and dims is not None and None not in sizes:
        at = axis % len(dims)
        total = sum((s for s in sizes if s is not None), ZERO)
        shape = Shape(None, (*dims[:at], total, *dims[at + 1 :]))
    at = axis % len(dims) if dims else axis
    return t.make("Concatenate", [t.astype(a, dtype) for a in arrays], shape, dtype, at)


def stack(t: Tracer, arrays: Sequence[Array], axis: int, shape: Shape | None = None) -> Array:
    return concatenate(t, [expand_dims(t, a, [axis]) for a in arrays], axis, shape)


def repeat(t: Tracer, a: Array, count: Expr, axis: int | None, shape: Shape | None = None) -> Array:
    if axis is None:
        a, axis = flatten(t, a), 0
    if count == 1:
        return a
    dims = known(a)
    if dims is None:
        wide = t.broadcast_to(_view(t, "ExpandDims", a, None, t.arguments), None)
        return reshape(t, wide, None, shape)
    at = axis % len(dims)
    wide = t.broadcast_to(expand_dims(t, a, [at + 1]), Shape(None, (*dims[: at + 1], count, *dims[at + 1 :])))
    return reshape(t, wide, Shape(None, (*dims[:at], dims[at] * count, *dims[at + 1 :])))


def tile(t: Tracer, a: Array, counts: Sequence[Expr], shape: Shape | None = None) -> Array:
    dims = known(a)
    if dims is None:
        wide = t.broadcast_to(reshape(t, a, None), None)
        return reshape(t, wide, None, shape)
    counts = [*[ONE] * (len(dims) - len(counts)), *counts]
    dims = (*[ONE] * (len(counts) - len(dims)), *dims)
    apart: list[Expr] = []
    wide_dims: list[Expr] = []
    for n, d in zip(counts, dims, strict=True):
        if n != 1:
            apart.append(ONE)
            wide_dims.append(n)
        apart.append(d)
        wide_dims.append(d)
    wide = broadcast_to(t, reshape(t, a, Shape(None, tuple(apart))), Shape(None, tuple(wide_dims)))
    return reshape(t, wide, Shape(None, tuple(n * d for n, d in zip(counts, dims, strict=True))))


# -- products ----------------------------------------------------------------------------------------------------------


def matmul(t: Tracer, a: Array, b: Array, shape: Shape | None = None) -> Array:
    """shape: of the result, where it isn't known from the operands."""
    left, right = a, b
    rank_a, rank_b = (None if d is None else len(d) for d in (known(a), known(b)))
    if rank_a == 1:
        a = expand_dims(t, a, [0])
    if rank_b == 1:
        b = expand_dims(t, b, [1])
    dtype = t.promote(a.dtype, b.dtype)
    a, b = t.astype(a, dtype), t.astype(b, dtype)
    many_a, many_b = rank_a is None or rank_a > 2, rank_b is None or rank_b > 2
    folds = many_a and not many_b and not t.shapeless
    if folds and rank_a is not None:
        a = flatten(t, a, 0, -2)
    elif (many_a or many_b) and not folds:
        a, b = _batched(t, a, b)
    rows, columns = (None if s is None else s.axis(i) for s, i in ((a.shape, -2), (b.shape, -1)))
    front = None if a.shape is None else a.shape.front(2)
    made = None if rows is None or columns is None or front is None else Shape(front[0], (*front[1], rows, columns))
    out = t.make("Matmul", (a, b), made, dtype)
    dims = known(left)
    if folds and dims is not None:
        out = unflatten(t, out, 0, dims[:-1])
    vectors = [-2] * (rank_a == 1) + [-1] * (rank_b == 1)
    out = squeeze(t, out, vectors)
    if out.shape is None and out is not left and out is not right:
        out.shape = shape
    return out


def _batched(t: Tracer, a: Array, b: Array, *, traced: bool = True) -> tuple[Array, Array]:
    """Both with the same leading axes. traced: whether it is recorded where shapes may change, besides."""
    out = []
    shapes = [_with_front(x.shape, y.shape) for x, y in ((a, b), (b, a))]
    for x, other, shape in zip((a, b), (b, a), shapes, strict=True):
        if t.shapeless and traced:
            out.append(t.make("BroadcastAxes", (x, other), shape, x.dtype, -2))
        else:
            out.append(x if shape is None else broadcast_to(t, x, shape))
    return out[0], out[1]


def _with_front(a: Shape | None, b: Shape | None) -> Shape | None:
    """a's matrices, with the leading axes of both."""
    fronts = [None if s is None else s.front(2) for s in (a, b)]
    tail = None if a is None else a.tail(2)
    if fronts[0] is None or fronts[1] is None or tail is None:
        return None
    front = joined(Shape(*fronts[0]), Shape(*fronts[1]))
    return None if front is None else Shape(front.lead, (*front.dims, *tail))


def addmm(t: Tracer, c: Array, a: Array, b: Array, shape: Shape | None = None) -> Array:
    rank_a, rank_b, rank_c = (None if d is None else len(d) for d in (known(a), known(b), known(c)))
    dtype = t.promote(a.dtype, b.dtype, c.dtype)
    if rank_a == 1:
        a = expand_dims(t, a, [0])
    if rank_b == 1:
        b = expand_dims(t, b, [1])
    a, b, c = (t.astype(x, dtype) for x in (a, b, c))
    columns = None if b.shape is None else b.shape.axis(-1)
    if rank_a is None and rank_b in (1, 2) and rank_c in (0, 1):
        return t.make("AddMM", (a, b, c), shape, dtype, t.arguments)
    if (rank_a or 0) > 2 and rank_b in (1, 2) and rank_c in (0, 1):
        rows = reshape_rows(t, a)
        flat = None if rows.shape is None or columns is None else rows.shape.replace(-1, (columns,))
        out = t.make("AddMM", (rows, b, broadcast_to(t, c, flat)), flat, dtype, t.arguments)
        dims = known(a)
        last = () if rank_b == 1 or columns is None else (columns,)
        return reshape(t, out, None if dims is None else Shape(None, (*dims[:-1], *last)), shape)
    if (rank_a or 3) > 2 or (rank_b or 3) > 2:
        a, b = _batched(t, a, b, traced=False)
    made = None if a.shape is None or columns is None else a.shape.replace(-1, (columns,))
    out = t.make("AddMM", (a, b, _added(t, c, made, rank_a, rank_b)), made, dtype, t.arguments)
    out = squeeze(t, out, [-2] * (rank_a == 1) + [-1] * (rank_b == 1))
    if out.shape is None:
        out.shape = shape
    return out


def _added(t: Tracer, c: Array, made: Shape | None, rank_a: int | None, rank_b: int | None) -> Array:
    """What is added, at the product's shape: with axes of 1 where an operand is a vector."""
    if made is None or made.lead is not None or c.shape is None:
        return broadcast_to(t, c, made)
    gone = {len(made.dims) - 2} if rank_a == 1 else set()
    if rank_b == 1:
        gone.add(len(made.dims) - 1)
    product_dims = tuple(d for i, d in enumerate(made.dims) if i not in gone)
    wide = broadcast_to(t, c, joined(c.shape, Shape(None, product_dims)))
    return reshape(t, wide, made) if gone else wide


def reshape_rows(t: Tracer, a: Array) -> Array:
    """(rows, last axis), spelt with a -1."""
    dims = known(a)
    if dims is None:
        return reshape(t, a, None)
    target = Shape(None, (Expr.of(-1), dims[-1]))
    return reshape(t, a, target, Shape(None, (product(dims[:-1]), dims[-1])))
