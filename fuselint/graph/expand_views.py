"""Views, copies, new arrays and gathers of mlx.core, as primitives."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fuselint.graph import tape_views as v
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array, Scalar, Tracer
from fuselint.graph.tape_views import ONE, ZERO, known

# -- views -------------------------------------------------------------------------------------------------------------


def _reshape(w: Applied) -> Result:
    return v.reshape(w.t, w.a, w.sizes("shape"), w.shape)


def _flatten(w: Applied) -> Result | None:
    start, end = w.integer("start_axis"), w.integer("end_axis")
    return None if start is None or end is None else v.flatten(w.t, w.a, start, end)


def _unflatten(w: Applied) -> Result | None:
    axis, parts, dims, shape = w.integer("axis"), w.attr("shape"), known(w.a), w.shape
    count = len(parts) if isinstance(parts, tuple) else None
    if axis is None or count is None or dims is None or shape is None or shape.lead is not None:
        return None
    at = axis % len(dims)
    return v.unflatten(w.t, w.a, at, shape.dims[at : at + count])


def _squeeze(w: Applied) -> Result | None:
    axes = w.axes()
    return None if axes is None and w.attr("axis") is not None else v.squeeze(w.t, w.a, axes)


def _expand_dims(w: Applied) -> Result | None:
    axes = w.axes()
    return None if axes is None else v.expand_dims(w.t, w.a, axes)


def _transpose(w: Applied) -> Result | None:
    dims = known(w.a)
    if w.attr("axes") is None:
        return None if dims is None else v.transpose(w.t, w.a, range(len(dims))[::-1])
    axes = w.axes("axes")
    return None if axes is None else v.transpose(w.t, w.a, axes)


def _matrix_transpose(w: Applied) -> Result:
    return v.swapaxes(w.t, w.a, -1, -2)


def _swapaxes(w: Applied) -> Result | None:
    x, y = w.integer("axis1"), w.integer("axis2")
    return None if x is None or y is None else v.swapaxes(w.t, w.a, x, y)


def _moveaxis(w: Applied) -> Result | None:
    x, y = w.integer("source"), w.integer("destination")
    return None if x is None or y is None else v.moveaxis(w.t, w.a, x, y)


def _broadcast_to(w: Applied) -> Result:
    return v.broadcast_to(w.t, w.a, w.shape)


def _broadcast_arrays(w: Applied) -> Result:
    return tuple(w.t.broadcast_arrays(w.arrays))


def _split(w: Applied) -> Result | None:
    a, axis, at = w.a, w.integer("axis"), w.attr("indices_or_sections")
    size = None if axis is None or a.shape is None else a.shape.axis(axis)
    if axis is None or size is None:
        return None
    if isinstance(at, tuple):
        ends = [w.size(e) for e in at]
        return None if None in ends else v.split(w.t, a, [e for e in ends if e is not None], axis)
    parts = w.integer("indices_or_sections")
    return (
        None if parts is None or parts > MANY else v.split(w.t, a, [size // parts * i for i in range(1, parts)], axis)
    )


MANY = 4096
"""More parts than that are not told apart."""


def _unstack(w: Applied) -> Result | None:
    a, axis = w.a, w.integer("axis")
    size = None if axis is None or a.shape is None else a.shape.axis(axis)
    n = None if size is None else size.value()
    if axis is None or n is None or n > MANY:
        return None
    return tuple(v.squeeze(w.t, p, [axis]) for p in v.split(w.t, a, [Expr.of(i) for i in range(1, n)], axis))


def _flip(w: Applied) -> Result | None:
    dims = known(w.a)
    axes = w.axes() if w.attr("axis") is not None else list(range(len(dims or ())))
    if dims is None or axes is None:
        return None
    cuts = v.whole(dims)
    for i in axes:
        cuts[i] = (dims[i] - 1, -1, dims[i])
    return v.cut(w.t, w.a, cuts)


def _positive(w: Applied) -> Result:
    return w.a


def _view(w: Applied) -> Result:
    return w.a if w.a.dtype == w.dtype else w.make("View", [w.a])


def _at_least(n: int) -> Expand:
    def expand(w: Applied) -> Result | None:
        dims = known(w.a)
        return None if dims is None else w.a if len(dims) >= n else v.reshape(w.t, w.a, w.shape)

    return expand


def _meshgrid(w: Applied) -> Result | None:
    n = len(w.arrays)
    swapped = w.attr("indexing") == "xy" and n > 1
    out = []
    for i, a in enumerate(w.arrays):
        count = None if a.shape is None else a.shape.elements()
        if count is None:
            return None
        at = 1 - i if swapped and i < 2 else i
        plain = swapped and i < 2
        sizes = tuple(count if j == at else ONE for j in range(n))
        target = sizes if plain else tuple(Expr.of(-1) if j == at else ONE for j in range(n))
        out.append(v.reshape(w.t, a, Shape(None, target), Shape(None, sizes)))
    return tuple(out if w.attr("sparse") is True else w.t.broadcast_arrays(out))


# -- copies ------------------------------------------------------------------------------------------------------------


def _concatenate(w: Applied) -> Result | None:
    if len(w.arrays) < len(w.node.inputs) or not w.arrays:
        return None  # a list whose elements aren't known
    axis = w.integer("axis")
    if w.facts.kind(w.node.inputs[0]) == "tuple":  # `[x] * n`: as long as the shape says
        return w.make("Concatenate", w.arrays)
    return None if axis is None and w.attr("axis") is not None else v.concatenate(w.t, w.arrays, axis, w.shape)


def _stack(w: Applied) -> Result | None:
    axis = w.integer("axis")
    if axis is None or len(w.arrays) < len(w.node.inputs) or not w.arrays:
        return None
    return v.stack(w.t, w.arrays, axis, w.shape)


def _repeat(w: Applied) -> Result | None:
    count, axis = w.size(w.attr("repeats")), w.integer("axis")
    if count is None or (axis is None and w.attr("axis") is not None):
        return None
    return v.repeat(w.t, w.a, count, axis, w.shape)


def _tile(w: Applied) -> Result | None:
    reps = w.attr("reps")
    counts = [w.size(n) for n in (reps if isinstance(reps, tuple) else (reps,))]
    return None if None in counts else v.tile(w.t, w.a, [n for n in counts if n is not None], w.shape)


def _pad(w: Applied) -> Result | None:
    if w.attr("mode") != "constant":
        return None
    value = w.attr("constant_values")
    number = w.t.array(Scalar(str(value), "float" if isinstance(value, float) else "int"), w.a)
    return w.make("Pad", [w.a, w.t.astype(number, w.a.dtype)])


def _roll(w: Applied) -> Result | None:
    axes, dims = w.axes(), known(w.a)
    shift = w.attr("shift")
    if dims is None or (axes is None and w.attr("axis") is not None):
        return None
    a = w.a if axes is not None else v.flatten(w.t, w.a)
    shifts = [w.size(s) for s in (shift if isinstance(shift, tuple) else (shift,))]
    for i, axis in enumerate(axes or [0]):
        by = shifts[i if len(shifts) > 1 else 0]
        size = None if a.shape is None else a.shape.axis(axis)
        if by is None or size is None:
            return None
        m, n = by.value(), size.value()
        at = size - by if m is None or n is None else Expr.of((-m) % n if m < 0 else n - m % n)
        parts = v.split(w.t, a, [at], axis)
        a = v.concatenate(w.t, parts[::-1], axis)
    return a if axes is not None else v.reshape(w.t, a, w.a.shape)


def _triangle(w: Applied, less: int) -> Array | None:
    """Where rows are at least columns - less."""
    shape = w.a.shape
    rows, columns = (None, None) if shape is None else (shape.axis(-2), shape.axis(-1))
    if rows is None or columns is None:
        return None
    return triangle(w.t, rows, columns, less)


def triangle(t: Tracer, rows: Expr, columns: Expr, key: object) -> Array:
    left = v.expand_dims(t, arange(t, rows, "int32", ("0", str(rows))), [1])
    right = v.expand_dims(t, arange(t, columns, "int32", (str(key), str(columns))), [0])
    return t.binary("GreaterEqual", left, right, dtype="bool_")


def arange(t: Tracer, size: Expr | None, dtype: str, key: object) -> Array:
    return t.make("Arange", (), None if size is None else Shape(None, (size,)), dtype, str(key))


def _tril(w: Applied) -> Result | None:
    below = _triangle(w, w.integer("k") or 0)
    return None if below is None else w.t.select(below, w.a, w.t.constant(0, w.a.dtype))


def _triu(w: Applied) -> Result | None:
    below = _triangle(w, (w.integer("k") or 0) - 1)
    return None if below is None else w.t.select(below, w.t.constant(0, w.a.dtype), w.a)


def _contiguous(w: Applied) -> Result:
    return w.make("Contiguous", [w.a])


def _differences(w: Applied) -> Result | None:
    a, axis, n, dims = w.a, w.integer("axis"), w.integer("n"), known(w.a)
    if axis is None or n is None or dims is None:
        return None
    for _ in range(n):
        later, earlier = v.whole(dims), v.whole(dims)
        left = dims[axis] - 1
        later[axis], earlier[axis] = (ONE, 1, left), (ZERO, 1, left)
        a = w.t.binary("Subtract", v.cut(w.t, a, later), v.cut(w.t, a, earlier))
        dims = known(a) or dims
    return a


def _kron(w: Applied) -> Result | None:
    a, b = (known(x) for x in w.arrays)
    if a is None or b is None:
        return None
    n = max(len(a), len(b))
    a, b = (*[ONE] * (n - len(a)), *a), (*[ONE] * (n - len(b)), *b)
    left = v.reshape(w.t, w.arrays[0], Shape(None, tuple(s for d in a for s in (d, ONE))))
    right = v.reshape(w.t, w.arrays[1], Shape(None, tuple(s for d in b for s in (ONE, d))))
    return v.reshape(w.t, w.t.binary("Multiply", left, right), w.shape)


# -- new arrays --------------------------------------------------------------------------------------------------------


def _filled(value: int) -> Expand:
    return lambda w: w.t.full(w.shape, w.dtype, value)


def _filled_like(value: int) -> Expand:
    def expand(w: Applied) -> Result:
        _, number = w.t.broadcast_arrays([w.a, w.t.constant(value, w.dtype)])
        return w.t.make("Full", (number,), w.shape, w.dtype)

    return expand


def _full(w: Applied) -> Result:
    """The numbers are broadcast, then cast."""
    value = w.given[0] if w.op.name == "full" else w.given[1]
    number = w.t.array(value, w.given[0]) if w.op.name == "full_like" else w.t.array(value)
    if isinstance(value, Scalar) and w.op.name == "full":
        number = w.t.constant(value.value, w.dtype)
    if w.op.name == "full_like":
        _, wide = w.t.broadcast_arrays([w.a, number])
    else:
        wide = v.broadcast_to(w.t, number, w.shape)
    return w.t.make("Full", (w.t.astype(wide, w.dtype),), w.shape, w.dtype)


def _arange(w: Applied) -> Result:
    return w.make("Arange", [])


def _linspace(w: Applied) -> Result | None:
    t, n = w.t, w.size(w.attr("num"))
    if n is None or n == 1:
        return None
    gaps = n - 1 if w.attr("endpoint") is not False else n
    steps = t.binary("Divide", arange(t, n, "float32", n), t.constant(_plain(gaps.value(), gaps), "float32"))
    left = t.binary("Subtract", t.constant(1, "float32"), steps)
    first, last = (t.constant(_plain(w.attr(k), (k, id(w.node))), "float32") for k in ("start", "stop"))
    out = t.binary("Add", t.binary("Multiply", left, first), t.binary("Multiply", steps, last))
    return t.astype(out, w.dtype)


def _plain(value: Any, otherwise: Hashable) -> Hashable:
    """A number, which equals others; what isn't known equals nothing."""
    return value if isinstance(value, (int, float)) else str(otherwise)


def _tri(w: Applied) -> Result | None:
    n, m = w.size(w.attr("n")), w.size(w.attr("m"))
    n_or_m = n if w.attr("m") is None else m
    return None if n is None or n_or_m is None else w.t.astype(triangle(w.t, n, n_or_m, w.attr("k")), w.dtype)


def _causal(w: Applied) -> Result | None:
    """nn.MultiHeadAttention.create_additive_causal_mask."""
    t, n = w.t, w.size(w.attr("N"))
    if n is None:
        return None
    indices = arange(t, n, "int32", n)
    mask = t.binary("Less", v.expand_dims(t, indices, [1]), v.expand_dims(t, indices, [0]), dtype="bool_")
    return t.binary("Multiply", t.astype(mask, w.dtype), Scalar("least"))


# -- gathers -----------------------------------------------------------------------------------------------------------


def gather(t: Tracer, a: Array, indices: list[Array], axes: list[int], key: object = None) -> Array:
    """MLX's gather: the indices' axes, then a's with those taken as 1."""
    dims = known(a)
    assert dims is not None
    dtype = t.promote(*(i.dtype for i in indices))
    given = t.broadcast_arrays(indices) if len(indices) > 1 else indices
    front = None if given[0].shape is None or given[0].shape.lead is not None else given[0].shape.dims
    taken = tuple(ONE if i in axes else d for i, d in enumerate(dims))
    shape = None if front is None else Shape(None, (*front, *taken))
    return t.make("Gather", (a, *(t.astype(i, dtype) for i in given)), shape, a.dtype, (tuple(axes), str(taken), key))


def take(t: Tracer, a: Array, indices: Array, axis: int) -> Array | None:
    dims, many = known(a), known(indices)
    if dims is None or many is None:
        return None
    axis %= len(dims)
    n = len(many)
    out = gather(t, a, [indices], [axis])
    if axis:
        order = [*range(n, n + axis), *range(n), *range(n + axis, n + len(dims))]
        out = v.transpose(t, out, order)
    return v.squeeze(t, out, [n + axis])


def _take(w: Applied) -> Result | None:
    indices = w.given[1]
    a, axis = (w.a, w.integer("axis")) if w.attr("axis") is not None else (v.flatten(w.t, w.a), 0)
    dims = known(a)
    if axis is None or dims is None:
        return None
    if isinstance(indices, Scalar):
        cuts = v.whole(dims)
        start = w.size(w.node.inputs[1])
        cuts[axis] = (ZERO if start is None else start, 1, ONE)
        return v.squeeze(w.t, v.cut(w.t, a, cuts), [axis])
    return take(w.t, a, indices, axis)


def _take_along(w: Applied) -> Result | None:
    axis, indices, dims = w.integer("axis"), w.array("indices"), known(w.a)
    if indices is None or not dims or axis is None:
        return None
    return gather_along(w.t, w.a, indices, axis % len(dims))


def gather_along(t: Tracer, a: Array, indices: Array, axis: int) -> Array | None:
    """Both of known rank, and the same one: else None."""
    dims, places = known(a), known(indices)
    if dims is None or places is None or len(dims) != len(places):
        return None
    sizes = [_longer(x, y) for x, y in zip(dims, places, strict=True)]
    both = []
    for x, own in ((a, dims[axis]), (indices, places[axis])):
        wide = Shape(None, (*sizes[:axis], own, *sizes[axis + 1 :]))
        if t.shapeless:
            other = indices if x is a else a
            both.append(t.make("BroadcastAxes", (x, other), wide, x.dtype, axis))
        else:
            both.append(v.broadcast_to(t, x, wide))
    return t.make("GatherAxis", both, both[1].shape, a.dtype, axis)


def _longer(x: Expr, y: Expr) -> Expr:
    return y if x == 1 else x


EXPANDED: dict[str, Expand] = {
    "reshape": _reshape, "flatten": _flatten, "unflatten": _unflatten, "squeeze": _squeeze,
    "expand_dims": _expand_dims, "transpose": _transpose, "matrix_transpose": _matrix_transpose,
    "swapaxes": _swapaxes, "moveaxis": _moveaxis, "broadcast_to": _broadcast_to,
    "broadcast_arrays": _broadcast_arrays, "split": _split, "unstack": _unstack, "flip": _flip,
    "positive": _positive, "view": _view, "atleast_1d": _at_least(1), "atleast_2d": _at_least(2),
    "atleast_3d": _at_least(3), "meshgrid": _meshgrid, "concatenate": _concatenate, "stack": _stack,
    "repeat": _repeat, "tile": _tile, "pad": _pad, "roll": _roll, "tril": _tril, "triu": _triu,
    "contiguous": _contiguous, "diff": _differences, "kron": _kron, "zeros": _filled(0), "ones": _filled(1),
    "empty": _filled(0), "zeros_like": _filled_like(0), "ones_like": _filled_like(1), "empty_like": _filled_like(0),
    "full": _full, "full_like": _full, "arange": _arange, "linspace": _linspace, "tri": _tri,
    "nn.MultiHeadAttention.create_additive_causal_mask": _causal, "take": _take, "take_along_axis": _take_along,
}  # fmt: skip
