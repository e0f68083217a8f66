"""Ops of mlx.core that move elements: views and copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.model import Node
from fuselint.graph.op import Call, Op, PrimitiveRule, ShapeRule
from fuselint.graph.ops_row import row
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr


def views() -> Iterator[Op]:
    a, moved = "a: A", r.unless_same_shape
    yield row("reshape", "view", "a: A, shape", "Reshape", r.reshaped, method="a: A, *shape", recorded=_reshape)
    flatten = "a: A, start_axis=0, end_axis=-1"
    yield row("flatten", "view", flatten, "Flatten", r.flattened, method=True, recorded=moved)
    yield row("unflatten", "view", "a: A, axis, shape", "Unflatten", r.unflattened)
    yield row("squeeze", "view", "a: A, axis=None", "Squeeze", r.squeezed, method=True)
    yield row("expand_dims", "view", "a: A, axis", "ExpandDims", r.expanded)
    axes = "a: A, *axes"
    yield row(
        "transpose",
        "view",
        "a: A, axes=None",
        "Transpose",
        r.transposed,
        adjust=_adjust_transpose,
        method=axes,
        aliases="permute_dims",
    )
    yield row("matrix_transpose", "view", a, "Transpose", r.matrix_transposed)
    yield row("swapaxes", "view", "a: A, axis1, axis2", "Transpose", r.swapped, method=True)
    yield row("moveaxis", "view", "a: A, source, destination", "Transpose", r.moved, method=True)
    yield row("broadcast_to", "view", "a: A, shape", "Broadcast", r.broadcast_to, recorded=r.nothing)
    yield row(
        "broadcast_arrays",
        "view",
        "*arrays: L",
        "Broadcast",
        _broadcast_each,
        _each_dtype,
        result="arrays",
        recorded=r.nothing,
    )
    yield row("as_strided", "view", "a: A, shape=None, strides=None, offset=0", "Flatten AsStrided", _strided)
    yield row("split", "view", "a: A, indices_or_sections, axis=0", "Split", r.split, method=True, result="arrays")
    yield row("unstack", "view", "x: A, *, axis=0", "Split Squeeze", r.unstacked, result="arrays", recorded=_unstacked)
    diagonal = "a: A, offset=0, axis1=0, axis2=1"
    yield row("diagonal", "view", diagonal, DIAGONAL, r.diagonal, method=True)
    yield row("flip", "view", "a: A, axis=None", "Slice")
    yield row("stop_gradient", "view", a, "StopGradient", recorded=r.nothing)
    yield row("positive", "view", a, "", operator="+")
    yield row("view", "view", "a: A, dtype", "View", _viewed, r.dtype_attr(r.same_dtype), method=True, recorded=_view)
    for n in (1, 2, 3):
        yield row(f"atleast_{n}d", "view", a, "Reshape", _at_least(n), recorded=_padded_rank(n))
    yield row("depends", "view", "inputs: A, dependencies: A", "Depends", result="same")
    yield row(
        "meshgrid",
        "view",
        "*arrays: L, sparse=False, indexing='xy'",
        "Reshape",
        _grid,
        _each_dtype,
        result="arrays",
        recorded=_reshaped_each,
    )


def _reshape(c: Call) -> tuple[str, ...]:
    """Nothing for the same shape, unless it is spelt with a -1."""
    shape = c.attrs.get("shape")
    return c.op.primitives if isinstance(shape, tuple) and -1 in shape else r.unless_same_shape(c)


def _adjust_transpose(attrs: dict[str, Any], given: frozenset[str]) -> None:
    """x.transpose() reverses the axes, as x.T does."""
    if attrs["axes"] == ():
        attrs["axes"] = None


def _broadcast_each(c: Call) -> tuple[Shape | None, ...]:
    return (r.broadcasted(c),) * len(c.values)


DIAGONAL = "Arange Arange Gather Squeeze"


def _diag(c: Call) -> tuple[str, ...]:
    return ("Full", "Arange", "Arange", "Reshape", "Scatter") if c.rank(0) == 1 else c.op.primitives


def _each_dtype(c: Call) -> tuple[DType, ...]:
    return tuple(c.dtype(i).settle() for i in range(len(c.values)))


def _strided(c: Call) -> Shape | None:
    return c.shape(0) if c.attrs.get("shape") is None else c.sizes(c.attrs.get("shape"))


def _unstacked(c: Call) -> tuple[str, ...]:
    parts = r.unstacked(c)
    return ("Split", *("Squeeze",) * (len(parts) if isinstance(parts, tuple) else 1))


def _viewed(c: Call) -> Shape | None:
    """The last axis shrinks or grows with the size of an element."""
    old, new = c.dtype(0).itemsize, c.dtype_value(c.attrs.get("dtype")).itemsize
    shape = c.shape(0)
    if shape is None or old is None or new is None:
        return None
    size = shape.axis(-1)
    return shape if old == new else None if size is None else shape.replace(-1, (size * old // new,))


def _view(c: Call) -> tuple[str, ...]:
    return () if c.dtype(0).settle() == c.dtype_value(c.attrs.get("dtype")) else ("View",)


def _at_least(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        shape = c.shape(0)
        if shape is None or shape.lead is not None:
            return None
        missing = n - len(shape.dims)
        if missing <= 0:
            return shape
        if n == 3 and len(shape.dims) == 2:
            return Shape(None, (*shape.dims, r.ONE))
        if n == 3 and len(shape.dims) == 1:
            return Shape(None, (r.ONE, *shape.dims, r.ONE))
        return Shape(None, (*(r.ONE,) * missing, *shape.dims))

    return rule


def _padded_rank(n: int) -> PrimitiveRule:
    def rule(c: Call) -> tuple[str, ...]:
        shape = c.shape(0)
        return () if shape is not None and len(shape.dims) >= n else ("Reshape",)

    return rule


def _reshaped_each(c: Call) -> tuple[str, ...]:
    return ("Reshape",) * len(c.values)


def _grid(c: Call) -> tuple[Shape | None, ...]:
    sizes = [None if (s := c.shape(i)) is None else s.elements() for i in range(len(c.values))]
    if any(s is None for s in sizes) or c.attrs.get("sparse") or not isinstance(c.attrs.get("indexing"), str):
        return (None,) * len(sizes)
    dims = [s for s in sizes if s is not None]
    if c.attrs.get("indexing") == "xy" and len(dims) > 1:
        dims[0], dims[1] = dims[1], dims[0]
    return (Shape(None, tuple(dims)),) * len(sizes)


def copies() -> Iterator[Op]:
    yield row(
        "concatenate",
        "copy",
        "arrays: L, axis=0",
        "Concatenate",
        r.concatenated,
        r.promoted,
        aliases="concat",
        recorded=_joined,
    )
    yield row("stack", "copy", "arrays: L, axis=0", "ExpandDims Concatenate", r.stacked, r.promoted, recorded=_stacked)
    repeat = "ExpandDims Broadcast Reshape"
    yield row("repeat", "copy", "array: A, repeats, axis=None", repeat, r.repeated, recorded=_repeated)
    yield row("tile", "copy", "a: A, reps", "Reshape Broadcast Reshape", _tiled, recorded=_tile)
    yield row("pad", "copy", "a: A, pad_width, mode='constant', constant_values=0", "Pad", _padded, recorded=_pad)
    yield row("roll", "copy", "a: A, shift, axis=None", "Split Concatenate", recorded=_rolled)
    yield row("contiguous", "copy", "a: A, allow_col_major=False", "Contiguous")
    yield row("tril", "composite", "x: A, k=0", TRIANGLE)
    yield row("triu", "composite", "x: A, k=0", TRIANGLE)
    yield row("diag", "composite", "a: A, k=0", DIAGONAL, r.diagonal_of, method=True, recorded=_diag)
    traced = "a: A, offset=0, axis1=0, axis2=1, dtype=None"
    yield row("trace", "composite", traced, f"{DIAGONAL} Reduce Squeeze", _trace, r.dtype_attr(r.summed_dtype))
    yield row("diff", "composite", "a: A, n=1, axis=-1", "Slice Slice Subtract", _differences)
    yield row("kron", "composite", "a: A, b: A", "Reshape Reshape Multiply Reshape", _kron, r.promoted)


TRIANGLE = "Arange ExpandDims Arange ExpandDims GreaterEqual Select"


def _trace(c: Call) -> Shape | None:
    diagonal = r.diagonal(c)
    return None if diagonal is None else Shape(None, diagonal.dims[:-1])


def _joined(c: Call) -> tuple[str, ...]:
    flat = ("Flatten",) * len(c.arrays) if c.attrs.get("axis") is None else ()
    first = c.values[0] if c.values else None
    several = len(c.arrays) > 1 or (first is not None and first.kind == "tuple" and first.count != 1)
    return (*flat, "Concatenate") if several else flat


def _stacked(c: Call) -> tuple[str, ...]:
    return (*("ExpandDims",) * len(c.arrays), "Concatenate")


def _repeated(c: Call) -> tuple[str, ...]:
    return ("Flatten", "ExpandDims", "Reshape") if c.attrs.get("axis") is None else ("ExpandDims", "Reshape")


def _tiled(c: Call) -> Shape | None:
    shape, reps = c.shape(0), c.attrs.get("reps")
    if shape is None:
        return None
    counts = r.all_sizes(c, reps if isinstance(reps, tuple) else (reps,))
    if counts is None:
        return None
    if shape.lead is None and len(counts) > len(shape.dims):
        shape = Shape(None, (r.ONE,) * (len(counts) - len(shape.dims)) + shape.dims)
    tail, front = shape.tail(len(counts)), shape.front(len(counts))
    if tail is None or front is None:
        return None
    return Shape(front[0], (*front[1], *(d * n for d, n in zip(tail, counts, strict=True))))


def _rolled(c: Call) -> tuple[str, ...]:
    axis = c.attrs.get("axis")
    if axis is None:
        return ("Flatten", "Split", "Concatenate", "Reshape")
    return ("Split", "Concatenate") * (len(axis) if isinstance(axis, tuple) else 1)


def _tile(c: Call) -> tuple[str, ...]:
    return ("Reshape", "Reshape")


def _widths(c: Call) -> list[tuple[Expr, Expr]] | None:
    """How much each axis grows before and after."""
    shape, width = c.shape(0), c.attrs.get("pad_width")
    if shape is None or shape.lead is not None:
        return None
    pairs: list[Any]
    if isinstance(width, tuple) and all(isinstance(w, tuple) for w in width):
        pairs = list(width)
    elif isinstance(width, tuple) and len(width) == 2:
        pairs = [width] * len(shape.dims)
    else:
        one = width[0] if isinstance(width, tuple) and len(width) == 1 else width
        if isinstance(one, Node) and r.may_be_several(one):
            return None
        pairs = [(one, one)] * len(shape.dims)
    sizes = [r.all_sizes(c, p) for p in pairs]
    out = [(w[0], w[1]) for w in sizes if w is not None and len(w) == 2]
    return out if len(out) == len(shape.dims) else None


def _padded(c: Call) -> Shape | None:
    shape, widths = c.shape(0), _widths(c)
    if shape is None or widths is None:
        return None
    return Shape(None, tuple(d + a + b for d, (a, b) in zip(shape.dims, widths, strict=True)))


def _pad(c: Call) -> tuple[str, ...]:
    """One kernel for constants; each side of its own for edges and reflections."""
    mode = c.attrs.get("mode")
    if mode == "constant":
        return ("Pad",)
    sides = sum(w != 0 for pair in _widths(c) or [(r.ONE, r.ONE)] for w in pair)
    side = ("Slice", "SliceUpdate") if mode == "edge" else ("Slice", "Slice", "SliceUpdate")
    return ("Full", "SliceUpdate", *side * sides)


def _differences(c: Call) -> Shape | None:
    shape, n, axis = c.shape(0), c.integer("n"), c.integer("axis")
    size = None if shape is None or axis is None else shape.axis(axis)
    return None if shape is None or n is None or axis is None or size is None else shape.replace(axis, (size - n,))


def _kron(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    if a is None or b is None or a.lead is not None or len(a.dims) != b.rank:
        return None
    return Shape(None, tuple(x * y for x, y in zip(a.dims, b.dims, strict=True)))


def table() -> Iterator[Op]:
    for part in (views, copies):
        yield from part()
