"""Shape and dtype rules that ops share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.model import Node
from fuselint.graph.op import Call, DTypeRule, PrimitiveRule, ShapeRule
from fuselint.graph.shapes import SCALAR, Shape, broadcast
from fuselint.graph.symbols import Expr, product

ONE = Expr.of(1)

# -- shapes -----------------------------------------------------------------------------------------------------------


def same(c: Call) -> Shape | None:
    return c.shape(0)


def broadcasted(c: Call) -> Shape | None:
    return reduce(broadcast, (v.shape for v in c.arrays)) if c.arrays else None


def scalar(c: Call) -> Shape | None:
    return SCALAR


def unknown(c: Call) -> Shape | None:
    return None


def like(at: int) -> ShapeRule:
    return lambda c: c.shape(at)


def axes_of(c: Call, name: str = "axis") -> list[int] | str | None:
    """The axes of an attribute, negative; "all" for None; None where they aren't known."""
    value = c.attrs.get(name)
    shape = c.shape(0)
    if value is None:
        return "all"
    if shape is None:
        return None
    listed: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    out: list[int] = []
    for v in listed:
        size = None if isinstance(v, bool) or v is None else c.size(v)
        axis = None if size is None else size.value()
        back = None if axis is None else shape.from_end(axis)
        if back is None:
            return None
        out.append(back)
    return sorted(out)


def reduced(c: Call) -> Shape | None:
    """Axes reduced away, or kept as 1."""
    shape, axes, keep = c.shape(0), axes_of(c), c.flag("keepdims")
    if axes == "all":
        if keep is False:
            return SCALAR
        return None if shape is None or shape.rank is None or keep is None else Shape.of(*[1] * shape.rank)
    if shape is None or keep is None or axes is None or isinstance(axes, str):
        return None
    for axis in axes:  # from the front on, so that the negative axes that remain stay right
        replaced = shape.replace(axis, (ONE,)) if keep else shape.replace(axis, ())
        if replaced is None:
            return None
        shape = replaced
    return shape


def scanned(c: Call) -> Shape | None:
    """Same shape; flat without an axis."""
    shape = c.shape(0)
    if c.attrs.get("axis") is not None or shape is None:
        return shape
    n = shape.elements()
    return None if n is None else Shape(None, (n,))


def reshaped(c: Call) -> Shape | None:
    """The new shape; -1 is what is left of the elements."""
    target = sizes_of(c, "shape")
    return None if target is None else fill(c.shape(0), target, c.fresh)


def sizes_of(c: Call, name: str) -> Shape | None:
    """A shape argument: a tuple, or a number for one axis."""
    value = c.attrs.get(name)
    sizes = c.sizes(value)
    if sizes is not None or isinstance(value, tuple) or (isinstance(value, Node) and may_be_several(value)):
        return sizes
    size = c.size(value)
    return None if size is None else Shape(None, (size,))


def may_be_several(value: Node) -> bool:
    """Whether a shape that isn't known may be a tuple: `dims: int | tuple`, also where one branch makes it one, or an
    argument or a result of which nothing says that it is a number."""
    if value.op == "phi":
        return any(n.op == "tuple" or may_be_several(n) for n in value.inputs if n.id < value.id)
    if value.op == "opaque":
        return True
    if value.op == "call":
        return not (value.attrs.get("target") or "").startswith(("builtins.", "math."))
    if value.op != "param":
        return False
    default = value.attrs.get("default")
    number = isinstance(default, Node) and isinstance(default.attrs.get("value"), int)
    return not number and value.attrs.get("annotation") not in ("int", "Optional[int]", "int | None")


MOST_NAMES = 6
"""Names in the size of an axis that a reshape leaves open: what takes more is a size of its own to its reader."""


def fill(source: Shape | None, target: Shape, fresh: Callable[[int], Expr]) -> Shape:
    """A target of reshape with its -1 worked out; `fresh` names the size of an axis that can't be."""
    at = [i for i, d in enumerate(target.dims) if d == -1]
    if not at:
        return target
    before, after = target.dims[: at[0]], target.dims[at[0] + 1 :]
    rest = _missing(source, target.lead, (*before, *after))
    if rest is None or len(rest.names) > MOST_NAMES:
        rest = fresh(at[0] if target.lead is None else at[0] - len(target.dims))
    return Shape(target.lead, (*before, rest, *after))


def _missing(source: Shape | None, lead: str | None, others: Sequence[Expr]) -> Expr | None:
    if source is None:
        return None
    if source.lead is None and lead is None:
        return product(source.dims) // product(others)
    if lead is None:
        return None
    # (*x.shape[:-1], n, -1) of x: the axes of x that lead leaves out, over the others
    whole = Shape(lead, ())
    for count in range(9):
        tail, front = source.tail(count), source.front(count)
        if tail is not None and front is not None and front == (whole.lead, ()):
            return product(tail) // product(others)
    return None


def transposed(c: Call) -> Shape | None:
    shape = c.shape(0)
    if shape is None or shape.lead is not None:
        return None
    axes = c.attrs.get("axes")
    if axes is None or axes == ():
        return Shape(None, tuple(reversed(shape.dims)))
    order = permutation(c, axes, len(shape.dims))
    return None if order is None else Shape(None, tuple(shape.dims[i] for i in order))


def permutation(c: Call, axes: Any, rank: int) -> tuple[int, ...] | None:
    if not isinstance(axes, tuple) or len(axes) != rank:
        return None
    out: list[int] = []
    for a in axes:
        size = c.size(a)
        axis = None if size is None else size.value()
        if axis is None:
            return None
        out.append(axis % rank if -rank <= axis < rank else -1)
    return tuple(out) if sorted(out) == list(range(rank)) else None


def swapped(c: Call) -> Shape | None:
    shape, a, b = c.shape(0), c.integer("axis1"), c.integer("axis2")
    return None if shape is None or a is None or b is None else swap(shape, a, b)


def swap(shape: Shape, a: int, b: int) -> Shape | None:
    x, y = shape.from_end(a), shape.from_end(b)
    if x is None or y is None:
        return None
    n = max(-x, -y)
    tail, front = shape.tail(n), shape.front(n)
    if tail is None or front is None:
        return None
    dims = list(tail)
    dims[x], dims[y] = dims[y], dims[x]
    return Shape(front[0], (*front[1], *dims))


def matrix_transposed(c: Call) -> Shape | None:
    shape = c.shape(0)
    return None if shape is None else swap(shape, -1, -2)


def moved(c: Call) -> Shape | None:
    shape, a, b = c.shape(0), c.integer("source"), c.integer("destination")
    if shape is None or a is None or b is None:
        return None
    x, y = shape.from_end(a), shape.from_end(b)
    if x is None or y is None:
        return None
    n = max(-x, -y)
    tail, front = shape.tail(n), shape.front(n)
    if tail is None or front is None:
        return None
    dims = list(tail)
    moving = dims.pop(x)
    dims.insert(len(dims) + 1 + y, moving)
    return Shape(front[0], (*front[1], *dims))


def expanded(c: Call) -> Shape | None:
    """New axes of 1; each axis counts in the result."""
    shape, axis = c.shape(0), c.attrs.get("axis")
    if shape is None:
        return None
    listed = axis if isinstance(axis, tuple) else (axis,)
    numbers = [None if (s := c.size(a)) is None else s.value() for a in listed]
    if any(n is None for n in numbers):
        return None
    axes = [n for n in numbers if n is not None]
    if shape.lead is None:
        rank = len(shape.dims) + len(axes)
        places = {a % rank for a in axes if -rank <= a < rank}
        if len(places) != len(axes):
            return None
        rest = iter(shape.dims)
        return Shape(None, tuple(ONE if i in places else next(rest) for i in range(rank)))
    if any(a >= 0 for a in axes):
        return None
    for a in sorted(axes, reverse=True):  # the last axis first: the others count from the end of the result
        tail, front = shape.tail(-a - 1), shape.front(-a - 1)
        if tail is None or front is None:
            return None
        shape = Shape(front[0], (*front[1], ONE, *tail))
    return shape


def squeezed(c: Call) -> Shape | None:
    shape, axes = c.shape(0), axes_of(c)
    if shape is None or axes is None:
        return None
    if isinstance(axes, str):
        known = shape.lead is None and all(d.value() is not None for d in shape.dims)
        return Shape(None, tuple(d for d in shape.dims if d != 1)) if known else None
    for axis in axes:
        replaced = shape.replace(axis, ())
        if replaced is None:
            return None
        shape = replaced
    return shape


def flattened(c: Call) -> Shape | None:
    shape, start, end = c.shape(0), c.integer("start_axis"), c.integer("end_axis")
    if (start, end) == (0, -1) and (shape is None or shape.rank is None):
        return Shape.of(c.fresh(0))
    if shape is None or start is None or end is None:
        return None
    if shape == SCALAR:
        return Shape.of(1)
    if shape.rank is not None:  # an axis that isn't there is not an error
        start = max(start + shape.rank if start < 0 else start, 0)
        end = min(end + shape.rank if end < 0 else end, shape.rank - 1)
    a, b = shape.from_end(start), shape.from_end(end)
    if a is None or b is None or a > b or not shape.certain(-a):
        return None
    tail, front = shape.tail(-a), shape.front(-a)
    if tail is None or front is None:
        return None
    count = b - a + 1
    return Shape(front[0], (*front[1], product(tail[:count]), *tail[count:]))


def unflattened(c: Call) -> Shape | None:
    shape, axis, parts = c.shape(0), c.integer("axis"), c.sizes(c.attrs.get("shape"))
    if shape is None or axis is None or parts is None or parts.lead is not None:
        return None
    size = shape.axis(axis)
    return None if size is None else shape.replace(axis, fill(Shape(None, (size,)), parts, c.fresh).dims)


def broadcast_to(c: Call) -> Shape | None:
    return sizes_of(c, "shape")


def diagonal(c: Call) -> Shape | None:
    """Two axes go; their diagonal is the last axis."""
    shape, offset, a, b = c.shape(0), c.integer("offset"), c.integer("axis1"), c.integer("axis2")
    if shape is None or shape.rank is None or offset is None or a is None or b is None:
        return None
    x, y = shape.dims[a % shape.rank], shape.dims[b % shape.rank]
    size = x - abs(offset) if x == y else None
    m, n = x.value(), y.value()
    if m is not None and n is not None:
        size = Expr.of(max(0, min(m + min(offset, 0), n - max(offset, 0))))
    if size is None:
        return None
    gone = {a % shape.rank, b % shape.rank}
    return Shape(None, (*(d for i, d in enumerate(shape.dims) if i not in gone), size))


def diagonal_of(c: Call) -> Shape | None:
    """mx.diag: a matrix of a vector, the diagonal of a matrix."""
    shape, k = c.shape(0), c.integer("k")
    if shape is None or k is None or shape.rank not in (1, 2):
        return None
    if shape.rank == 1:
        n = shape.dims[0] + abs(k)
        return Shape(None, (n, n))
    m, n = shape.dims
    return Shape(None, (m - abs(k),)) if m == n else None


def _listed(c: Call) -> tuple[tuple[Shape, ...], Expr] | None:
    """The shapes of a list of arrays, and how often the list is repeated."""
    count = ONE
    if len(c.values) == 1 and c.values[0] is not None and c.values[0].kind == "tuple":
        if c.values[0].elements is None:
            return None
        count = c.values[0].count or ONE
    arrays = c.arrays
    if not arrays or any(v.kind not in ("array", "unknown") for v in arrays):
        return None
    shapes = tuple(v.shape for v in arrays if v.shape is not None)
    return (shapes, count) if len(shapes) == len(arrays) else None


def concatenated(c: Call) -> Shape | None:
    """One axis is the sum, the others those of any."""
    listed = _listed(c)
    if listed is None:
        return None
    shapes, count = listed
    if c.attrs.get("axis") is None:
        sizes = [s.elements() for s in shapes]
        return None if any(n is None for n in sizes) else Shape(None, (_sum(sizes) * count,))
    axis = c.integer("axis")
    first = next((s for s in shapes if s.lead is None), shapes[0])
    if axis is None:
        return None
    sizes = [s.axis(axis) for s in shapes]
    return None if any(n is None for n in sizes) else first.replace(axis, (_sum(sizes) * count,))


def _sum(sizes: Sequence[Expr | None]) -> Expr:
    return sum((s for s in sizes if s is not None), Expr.of(0))


def stacked(c: Call) -> Shape | None:
    listed, axis = _listed(c), c.integer("axis")
    return None if listed is None or axis is None else insert(listed[0][0], axis, len(listed[0]) * listed[1])


def insert(shape: Shape, axis: int, size: Expr) -> Shape | None:
    """A new axis; `axis` counts in the result."""
    if shape.lead is None:
        at = axis if axis >= 0 else len(shape.dims) + 1 + axis
        return Shape(None, (*shape.dims[:at], size, *shape.dims[at:])) if 0 <= at <= len(shape.dims) else None
    if axis >= 0:
        return None
    tail, front = shape.tail(-axis - 1), shape.front(-axis - 1)
    return None if tail is None or front is None else Shape(front[0], (*front[1], size, *tail))


def repeated(c: Call) -> Shape | None:
    shape, count = c.shape(0), c.size(c.attrs.get("repeats"))
    if shape is None or count is None:
        return None
    if c.attrs.get("axis") is None:
        n = shape.elements()
        return None if n is None else Shape(None, (n * count,))
    axis = c.integer("axis")
    size = None if axis is None else shape.axis(axis)
    return None if axis is None or size is None else shape.replace(axis, (size * count,))


def split(c: Call) -> tuple[Shape | None, ...] | Shape | None:
    """The parts, where their number is known; else the shape of each."""
    shape, axis = c.shape(0), c.integer("axis")
    size = None if shape is None or axis is None else shape.axis(axis)
    if shape is None or axis is None or size is None:
        return None
    at = c.attrs.get("indices_or_sections")
    if isinstance(at, tuple):
        ends = [c.size(a) for a in at]
        if any(e is None for e in ends):
            return tuple(None for _ in range(len(ends) + 1))
        bounds = [Expr.of(0), *(e for e in ends if e is not None), size]
        for i, b in enumerate(bounds):
            value = b.value()
            if value is not None and value < 0:
                bounds[i] = size + b
        return tuple(shape.replace(axis, (bounds[i + 1] - bounds[i],)) for i in range(len(bounds) - 1))
    parts = c.size(at)
    if parts is None:
        return None
    part = shape.replace(axis, (size // parts,))
    n = parts.value()
    return part if n is None or not 0 < n <= 4096 else (part,) * n


def unstacked(c: Call) -> tuple[Shape | None, ...] | Shape | None:
    shape, axis = c.shape(0), c.integer("axis")
    size = None if shape is None or axis is None else shape.axis(axis)
    if shape is None or axis is None or size is None:
        return None
    n, part = size.value(), shape.replace(axis, ())
    return part if n is None or not 0 < n <= 4096 else (part,) * n


def all_sizes(c: Call, values: Sequence[Any]) -> list[Expr] | None:
    """Every one of them as a size."""
    sizes = [c.size(v) for v in values]
    return None if any(s is None for s in sizes) else [s for s in sizes if s is not None]


def gathered_take(c: Call) -> Shape | None:
    """take: the indices' axes stand where the axis was."""
    shape, indices = c.shape(0), c.values[1] if len(c.values) > 1 else None
    if indices is None or indices.shape is None:
        return None
    if c.attrs.get("axis") is None:
        return indices.shape
    axis = c.integer("axis")
    if shape is None or axis is None:
        return None
    if indices.shape.lead is None:
        return shape.replace(axis, indices.shape.dims)
    back = shape.from_end(axis)
    if shape.rank is not None and back == -shape.rank:
        return Shape(indices.shape.lead, (*indices.shape.dims, *shape.dims[1:]))
    return None


def take_along(c: Call) -> Shape | None:
    """The indices' size on the axis, the others broadcast."""
    a, b, axis = c.shape(0), c.shape(1), c.attrs.get("axis")
    if axis is None:
        return b
    number = c.integer("axis")
    if a is None or b is None or number is None:
        return None
    size = b.axis(number)
    ready = None if size is None else a.replace(number, (size,))
    return broadcast(ready, b)


# -- dtypes -----------------------------------------------------------------------------------------------------------


DTypeOf = Callable[[Call], DType]


def same_dtype(c: Call) -> DType:
    return c.dtype(0).settle()


def floated(c: Call) -> DType:
    """Integers become float32."""
    return c.dtype(0).floated()


def promoted(c: Call) -> DType:
    return reduce(dtypes.promote, (v.dtype for v in c.arrays)).settle() if c.arrays else dtypes.UNKNOWN


def promoted_float(c: Call) -> DType:
    """Integers become float32, whatever number they meet."""
    given = [v.dtype for v in c.arrays]
    if given and all(d.integral or d.weak for d in given):
        return DType({"float32"})
    return promoted(c).floated()


FLOATING = (floated, promoted_float)
"""dtype rules of ops that turn integers into float32 before they compute."""


def constant_dtype(name: str) -> DTypeOf:
    value = DType({name})
    return lambda c: value


BOOLEAN = constant_dtype("bool_")
UINT32 = constant_dtype("uint32")


def dtype_attr(default: DTypeOf) -> DTypeOf:
    """The `dtype` argument, or else the default."""

    def rule(c: Call) -> DType:
        value = c.attrs.get("dtype")
        if value is None:
            return default(c)
        return c.dtype_value(value)

    return rule


def both(rule: DTypeOf) -> DTypeRule:
    """Of two results alike."""
    return lambda c: (rule(c),) * 2


def twice(rule: ShapeRule) -> ShapeRule:
    def rule_of_both(c: Call) -> tuple[Shape | None, ...]:
        shape = rule(c)
        assert not isinstance(shape, tuple)
        return (shape, shape)

    return rule_of_both


def summed_dtype(c: Call) -> DType:
    """Small integers and booleans add up in int32, unsigned ones in uint32."""
    d = c.dtype(0).settle()
    if c.rank(0) == 0:
        return d  # over no axes nothing is done
    if d & {"uint8", "uint16"}:
        return DType({"uint32"})
    return DType({"int32"}) if d & {"bool_", "int8", "int16"} else d


# -- primitives -------------------------------------------------------------------------------------------------------


def nothing(c: Call) -> tuple[str, ...]:
    """Only a cast or a broadcast, which adapt operands, or a no-op, which is not recorded."""
    return ()


def complex_only(c: Call) -> tuple[str, ...]:
    return c.op.primitives if c.dtype(0).name == "complex64" else ()


def unless_integral(instead: str) -> PrimitiveRule:
    """Integers are never infinite."""
    return lambda c: tuple(instead.split()) if c.dtype(0).integral else c.op.primitives


def unless_same_shape(c: Call) -> tuple[str, ...]:
    return () if c.op.shape(c) == c.shape(0) else c.op.primitives


def flattened_first(primitive: str) -> PrimitiveRule:
    return lambda c: c.op.primitives if c.attrs.get("axis") is not None else (primitive, *c.op.primitives)


def over_last(c: Call) -> bool:
    """Whether a reduction is over the last axis, where MLX has a kernel for it."""
    axes, shape = axes_of(c), c.shape(0)
    return axes == [-1] or (axes == "all" and shape is not None and shape.rank == 1)
