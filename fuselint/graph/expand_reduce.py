"""Reductions, and what holds one, as primitives."""

from __future__ import annotations

from fuselint.graph import tape_views as v
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.expand_views import arange, gather
from fuselint.graph.primitives import isinf
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array, Scalar, at_least_float
from fuselint.graph.tape_views import ONE, known


class Axes:
    """The axes that a call reduces, and the shapes with and without them."""

    def __init__(self, w: Applied, a: Array, name: str = "axis") -> None:
        self.w = w
        self.axes = w.axes(name)
        self.kept = self._kept(a.shape, w.attr(name) is None)
        self.all = w.attr(name) is None

    def _kept(self, shape: Shape | None, everything: bool) -> Shape | None:
        w = self.w
        if shape is None:
            return w.shape if w.flag("keepdims") else None
        if everything:
            return Shape.of(*[1] * shape.rank) if shape.rank is not None else Shape.of(1)
        for axis in self.axes or ():
            back = shape.from_end(axis)
            replaced = None if back is None else shape.replace(back, (ONE,))
            if replaced is None:
                return None
            shape = replaced
        return shape if self.axes is not None else None

    def reduce(
        self, operation: str, a: Array, *, keep: bool = True, dtype: str = "", primitive: str = "Reduce"
    ) -> Array:
        if self.kept is not None and self.kept.rank == 0:
            return a  # over no axes: not even cast
        out = self.w.t.reduce(operation, a, self.kept, dtype, primitive)
        return out if keep else self.squeeze(out)

    def squeeze(self, a: Array) -> Array:
        t = self.w.t
        if self.all:
            rank = None if a.shape is None else a.shape.rank
            axes = list(range(rank)) if rank is not None else None
        else:
            axes = self.axes
        if axes is None or a.shape is None:
            return t.make("Squeeze", (a,), self.w.shape, a.dtype, t.arguments)
        return v.squeeze(t, a, axes)

    @property
    def last(self) -> bool:
        """Whether it is the last axis alone. Where that isn't known, it is taken to be."""
        w = self.w
        shape = w.a.shape
        if self.all:
            return shape is not None and shape.rank == 1
        if self.axes is None or len(self.axes) != 1:
            return self.axes is None
        return self.axes[0] == -1 or shape is None or shape.from_end(self.axes[0]) in (None, -1)


def _keeps(w: Applied) -> bool:
    return w.flag("keepdims")


def _reduced(w: Applied) -> Result:
    a = w.a
    return Axes(w, a).reduce(w.op.name, a, keep=_keeps(w), dtype=w.dtype)


def _arg_reduced(w: Applied) -> Result:
    a = w.a
    if w.attr("axis") is None:
        flat = v.flatten(w.t, a)
        nothing = flat.shape == Shape.of(1) and not w.t.shapeless
        one = w.t.reduce(w.op.name, flat, Shape.of(1), "uint32", "ArgReduce") if not nothing else _zeros(w, flat.shape)
        dims = known(a)
        if _keeps(w) and dims is not None:
            return v.expand_dims(w.t, one, list(range(len(dims) - 1)))
        return v.squeeze(w.t, one, None)
    axes = Axes(w, a)
    if axes.kept is not None and axes.kept == a.shape and not w.t.shapeless:
        out = _zeros(w, axes.kept)
    else:
        out = w.t.reduce(w.op.name, a, axes.kept, "uint32", "ArgReduce")
    return out if _keeps(w) else axes.squeeze(out)


def _zeros(w: Applied, shape: Shape | None) -> Array:
    return w.t.full(shape, "uint32", 0)


def mean(w: Applied, axes: Axes, a: Array, *, keep: bool) -> Array:
    count = w.t.inverse_count(a, axes.kept)
    total = axes.reduce("sum", a, keep=keep, dtype=summed(a.dtype))
    return w.t.binary("Multiply", total, _number(w, count, at_least_float(a.dtype)))


def _number(w: Applied, count: Array | Scalar, dtype: str) -> Array:
    return count if isinstance(count, Array) else w.t.constant(count.value, dtype)


def summed(dtype: str) -> str:
    """Small integers and booleans add up in int32, unsigned ones in uint32."""
    if dtype in ("uint8", "uint16"):
        return "uint32"
    return "int32" if dtype in ("bool_", "int8", "int16") else dtype


def _mean(w: Applied) -> Result:
    a = w.a
    return mean(w, Axes(w, a), a, keep=_keeps(w))


def _var(w: Applied) -> Array:
    t, a = w.t, w.a
    axes = Axes(w, a)
    squares = t.unary("Square", t.binary("Subtract", a, mean(w, axes, a, keep=True)))
    total = axes.reduce("sum", squares, keep=_keeps(w))
    less = w.integer("ddof") if w.attr("correction") is None else w.integer("correction")
    dtype = at_least_float(a.dtype)
    if less == 0:
        return t.binary("Multiply", total, _number(w, t.inverse_count(a, axes.kept), dtype))
    count = t.constant(t.count(a, axes.kept) or ("count", str(a.shape), str(axes.kept)), dtype)
    if t.shapeless:
        count = t.make("NumberOfElements", (a,), Shape(None, ()), dtype, str(axes.kept))
    some = t.binary(
        "Maximum", t.binary("Subtract", count, t.constant(("ddof", str(less)), dtype)), t.constant(0, dtype)
    )
    return t.binary("Divide", total, some, floating=True)


def _std(w: Applied) -> Result:
    return w.t.unary("Sqrt", _var(w))


def _norm(w: Applied) -> Result | None:
    t, a, order = w.t, w.a, w.attr("ord")
    if order not in (None, "fro", "f", 2):
        return _other_norm(w, order)
    if w.attr("axis") is not None or order is not None:
        axes = Axes(w, a)
        if (
            order == 2
            and not (axes.axes is not None and len(axes.axes) == 1)
            and (a.shape is None or a.shape.rank != 1)
        ):
            return None  # of a matrix: singular values
        total = axes.reduce("sum", t.unary("Square", a), keep=_keeps(w), dtype=summed(a.dtype))
        return t.unary("Sqrt", total, floating=True)
    flat = v.flatten(t, a)
    total = t.reduce("sum", t.unary("Square", flat), Shape.of(1), summed(a.dtype))
    if not _keeps(w):
        return t.unary("Sqrt", v.squeeze(t, total, [0]), floating=True)
    return v.reshape(t, t.unary("Sqrt", total, floating=True), w.shape)


def _other_norm(w: Applied, order: object) -> Result | None:
    t, a = w.t, w.a
    axes = Axes(w, a)
    if axes.axes is None or len(axes.axes) != 1:
        return None
    dtype = at_least_float(a.dtype)
    reductions: dict[object, str] = {1: "sum", float("inf"): "max", -float("inf"): "min"}
    sums: dict[object, str] = {1: summed(a.dtype)}
    if order in reductions:
        total = axes.reduce(reductions[order], t.unary("Abs", a), keep=_keeps(w), dtype=sums.get(order, a.dtype))
        return t.astype(total, dtype)
    if order == 0:
        some = t.binary("NotEqual", a, t.constant(0, "int32"), dtype="bool_")
        return t.astype(axes.reduce("sum", some, keep=_keeps(w), dtype="int32"), dtype)
    powers = t.binary("Power", t.unary("Abs", a), t.constant(str(order), dtype))
    total = axes.reduce("sum", powers, keep=_keeps(w))
    return t.binary("Power", total, t.constant(f"1/{order}", dtype))


def softmax(w: Applied, a: Array, axes: Axes) -> Array:
    t = w.t
    if axes.last:
        dtype = at_least_float(a.dtype)
        return t.make("Softmax", (t.astype(a, dtype),), a.shape, dtype, w.flag("precise"))
    inside = t.astype(a, "float32") if w.flag("precise") else a
    top = t.unary("StopGradient", axes.reduce("max", inside))
    e = t.unary("Exp", t.binary("Subtract", inside, top), floating=True)
    out = t.binary("Divide", e, axes.reduce("sum", e), floating=True)
    return t.astype(out, a.dtype)


def _softmax(w: Applied) -> Result:
    return softmax(w, w.a, Axes(w, w.a))


def _softmin(w: Applied) -> Result:
    return softmax(w, w.t.unary("Negative", w.a), Axes(w, w.a))


def logsumexp(w: Applied, a: Array, axes: Axes, *, keep: bool) -> Array:
    t = w.t
    if axes.last:
        dtype = at_least_float(a.dtype)
        out = t.make("LogSumExp", (t.astype(a, dtype),), axes.kept, dtype)
        return out if keep else axes.squeeze(out)
    top = t.unary("StopGradient", axes.reduce("max", a))
    e = t.unary("Exp", t.binary("Subtract", a, top), floating=True)
    out = t.unary("Log", axes.reduce("sum", e, keep=keep), floating=True)
    out = t.binary("Add", out, v.reshape(t, top, out.shape))
    if not keep:
        top = axes.squeeze(top)
    return t.select(isinf(t, [top], {}), top, out)


def _logsumexp(w: Applied) -> Result:
    return logsumexp(w, w.a, Axes(w, w.a), keep=_keeps(w))


def _log_softmax(w: Applied) -> Result:
    t, a = w.t, w.a
    axes = Axes(w, a)
    x = t.binary("Subtract", a, t.unary("StopGradient", axes.reduce("max", a)))
    return t.binary("Subtract", x, logsumexp(w, x, axes, keep=True))


def _median(w: Applied) -> Result | None:
    t, a, dims = w.t, w.a, known(w.a)
    axes = w.axes() if w.attr("axis") is not None else list(range(len(dims or ())))
    if dims is None or axes is None:
        return None
    gone = sorted(i % len(dims) for i in axes)
    left = [i for i in range(len(dims)) if i not in gone]
    flat = v.flatten(t, v.transpose(t, a, [*left, *gone]), len(left), len(dims))
    sizes = known(flat) or ()
    n = sizes[-1].value()
    if n is None:
        return None
    ordered = t.make("Sort", (flat,), flat.shape, flat.dtype, (len(sizes) - 1, ""))
    dtype = at_least_float(a.dtype)

    def at(i: int) -> Array:
        return t.astype(v.cut(t, ordered, [*v.whole(sizes)[:-1], (ONE * i, 1, ONE)]), dtype)

    out = at(n // 2)
    if n % 2 == 0:
        out = t.binary("Multiply", t.binary("Add", out, at(n // 2 - 1)), t.constant(0.5, dtype))
    if at_least_float(a.dtype) == a.dtype:
        nans = t.binary("NotEqual", flat, flat, dtype="bool_")
        some = t.reduce("any", nans, Shape(None, (*sizes[:-1], ONE)), "bool_")
        out = t.select(some, t.constant("nan", dtype), out)
    out = v.squeeze(t, out, [-1])
    return v.expand_dims(t, out, gone) if _keeps(w) else out


def _count_nonzero(w: Applied) -> Result:
    t, a = w.t, w.a
    some = t.binary("NotEqual", a, t.constant(0, a.dtype), dtype="bool_")
    return Axes(w, a).reduce("sum", t.astype(some, "int32"), keep=_keeps(w))


def _minmax(w: Applied) -> Result:
    a = w.a
    axes = Axes(w, a)
    return axes.reduce("min", a, keep=_keeps(w)), axes.reduce("max", a, keep=_keeps(w))


def _divmod(w: Applied) -> Result:
    a, b = w.t.pair(*w.given[:2])
    dtype = w.t.promote(a.dtype, b.dtype)
    a, b = w.t.broadcast_arrays((w.t.astype(a, dtype), w.t.astype(b, dtype)))
    return v.together(w.t.make("DivMod", (a, b), a.shape, dtype, (w.t.arguments, i)) for i in range(2))


def _all_close(w: Applied) -> Result:
    from fuselint.graph.primitives import COMPOSITES

    close = COMPOSITES["isclose"](w.t, w.given, w.node.attrs)
    return _everything(w, close)


def _array_equal(w: Applied) -> Result:
    a, b = w.arrays[0], w.t.array(w.given[1])
    dtype = w.t.promote(a.dtype, b.dtype)
    equal = w.t.make("Equal", (w.t.astype(a, dtype), w.t.astype(b, dtype)), a.shape, "bool_")
    return _everything(w, equal)


def _everything(w: Applied, a: Array) -> Array:
    rank = None if a.shape is None else a.shape.rank
    kept = Shape.of(*[1] * rank) if rank is not None else Shape.of(1)
    return v.squeeze(w.t, w.t.reduce("all", a, kept, "bool_"), list(range(rank)) if rank is not None else None)


def _scan(w: Applied) -> Result:
    t, a = w.t, w.a
    if w.attr("axis") is None:
        a = v.flatten(t, a)
    if w.attr("dtype") is not None:
        a = t.astype(a, w.dtype)
    if w.op.name == "logcumsumexp":
        a = t.astype(a, at_least_float(a.dtype))
    return t.make("Scan", (a,), a.shape, w.dtype, _along(w, a))


def _along(w: Applied, a: Array) -> tuple[object, object]:
    """The axis, and the rest of the arguments."""
    axis = -1 if w.attr("axis") is None else w.integer("axis")
    dims = known(a)
    return (axis % len(dims) if dims and axis is not None else axis, w.t.arguments)


def _sorted(w: Applied) -> Result:
    t, a = w.t, w.a
    if w.attr("axis") is None:
        a = v.reshape(t, a, _flat(a.shape))
    return t.make(w.op.primitives[0], (a,), a.shape, w.dtype, _along(w, a))


def _flat(shape: Shape | None) -> Shape | None:
    n = None if shape is None else shape.elements()
    return None if n is None else Shape(None, (n,))


def _topk(w: Applied) -> Result | None:
    t, a = w.t, w.a
    if w.attr("axis") is None:
        a = v.reshape(t, a, _flat(a.shape))
    axis = -1 if w.attr("axis") is None else w.integer("axis")
    dims, k = known(a), w.size(w.attr("k"))
    if dims is None or k is None or axis is None:
        return None
    if dims[axis] == k:
        return a
    parted = t.make("Partition", (a,), a.shape, a.dtype, _along(w, a))
    cuts = v.whole(dims)
    cuts[axis] = (dims[axis] - k, 1, k)
    return v.cut(t, parted, cuts)


def diagonal(w: Applied, a: Array, offset: int, x: int, y: int) -> Array | None:
    t, dims, shape = w.t, known(a), w.shape
    if dims is None:
        return None
    x, y = x % len(dims), y % len(dims)
    m, n = dims[x].value(), dims[y].value()
    if m is not None and n is not None:
        size = ONE * max(0, min(m + min(offset, 0), n - max(offset, 0)))
    else:
        last = shape.axis(-1) if shape is not None and w.op.name != "trace" else None
        size = last or dims[x]
    indices = [arange(t, size, "int32", (side, str(size), offset)) for side in ("rows", "columns")]
    if offset == 0:
        indices = [arange(t, size, "int32", ("rows", str(size), 0)) for _ in range(2)]
    out = gather(t, a, indices, [x, y])
    return v.moveaxis(t, v.squeeze(t, out, [x + 1, y + 1]), 0, -1)


def _diagonal(w: Applied) -> Result | None:
    offset, x, y = w.integer("offset"), w.integer("axis1"), w.integer("axis2")
    return None if offset is None or x is None or y is None else diagonal(w, w.a, offset, x, y)


def _trace(w: Applied) -> Result | None:
    offset, x, y = w.integer("offset"), w.integer("axis1"), w.integer("axis2")
    a = None if offset is None or x is None or y is None else diagonal(w, w.a, offset, x, y)
    if a is None:
        return None
    if w.attr("dtype") is not None:
        a = w.t.astype(a, w.dtype)
    kept = None if a.shape is None else a.shape.replace(-1, (ONE,))
    return v.squeeze(w.t, w.t.reduce("sum", a, kept, summed(a.dtype)), [-1])


def _diag(w: Applied) -> Result | None:
    k, dims = w.integer("k"), known(w.a)
    if k is None or dims is None:
        return None
    if len(dims) == 2:
        return diagonal(w, w.a, k, 0, 1)
    column = v.reshape(w.t, w.a, Shape(None, (*dims, ONE, ONE)))
    return on_diagonal(w, k, dims[0], column, "uint32")


def on_diagonal(w: Applied, k: int, count: Expr, values: Array, index: str) -> Array | None:
    """A matrix of zeros but for its k-th diagonal."""
    t = w.t
    nothing = t.full(w.shape, w.dtype, 0)
    rows, columns = (arange(t, count, index, (max(0, side * k), str(count))) for side in (-1, 1))
    return t.make("Scatter", (nothing, rows, columns, values), w.shape, w.dtype, t.arguments)


def _eye(w: Applied) -> Result | None:
    k = 0 if w.op.name == "identity" else w.integer("k")
    sizes = None if w.shape is None else w.shape.dims
    if k is None or sizes is None or len(sizes) != 2:
        return None
    if sizes[0] == sizes[1]:
        count = sizes[0] - abs(k)
    else:
        n, m = (s.value() for s in sizes)
        if n is None or m is None:
            return None
        count = ONE * (min(n, m - k) if k >= 0 else min(n + k, m))
    return on_diagonal(w, k, count, w.t.full(Shape(None, (count, ONE, ONE)), w.dtype, 1), "int32")


EXPANDED: dict[str, Expand] = {
    "sum": _reduced, "prod": _reduced, "max": _reduced, "min": _reduced, "all": _reduced, "any": _reduced,
    "argmax": _arg_reduced, "argmin": _arg_reduced, "mean": _mean, "var": _var, "std": _std, "linalg.norm": _norm,
    "softmax": _softmax, "logsumexp": _logsumexp, "nn.softmax": _softmax, "nn.softmin": _softmin,
    "nn.log_softmax": _log_softmax, "median": _median, "count_nonzero": _count_nonzero, "minmax": _minmax,
    "allclose": _all_close, "array_equal": _array_equal, "cumsum": _scan, "cumprod": _scan, "cummax": _scan,
    "cummin": _scan, "logcumsumexp": _scan, "sort": _sorted, "argsort": _sorted, "partition": _sorted,
    "argpartition": _sorted, "topk": _topk, "diagonal": _diagonal, "diag": _diag, "trace": _trace,
    "eye": _eye, "identity": _eye, "divmod": _divmod,
}  # fmt: skip

COMPILED = frozenset({"nn.softmax", "nn.softmin", "nn.log_softmax"})
"""Functions of mlx.nn that MLX compiles, though not all of them fuses."""
