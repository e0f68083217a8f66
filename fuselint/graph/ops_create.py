"""Shape and dtype rules of ops that make arrays of numbers."""

from __future__ import annotations

from functools import reduce

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, Value
from fuselint.graph.ops_rules import sizes_of
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr


def created(c: Call) -> Shape | None:
    return sizes_of(c, "shape")


def vector(c: Call, name: str) -> Shape | None:
    n = c.size(c.attrs.get(name))
    return None if n is None else Shape(None, (n,))


def rectangle(c: Call) -> Shape | None:
    """(n, m), square without an m."""
    n = c.size(c.attrs.get("n"))
    m = n if c.attrs.get("m") is None else c.size(c.attrs.get("m"))
    return None if n is None or m is None else Shape(None, (n, m))


def counted(c: Call) -> Shape | None:
    """arange: (stop - start) / step, rounded up."""
    start, stop, step = (c.attrs.get(k) for k in ("start", "stop", "step"))
    if isinstance(start, (int, float)) and isinstance(stop, (int, float)) and isinstance(step, (int, float)) and step:
        return Shape.of(max(0, -int(-(stop - start) // step)))
    a, b, k = (c.size(v) for v in (start, stop, step))
    by = None if k is None else k.value()
    if a is None or b is None or by is None or by <= 0:
        return None
    return Shape(None, (b - a if by == 1 else (b - a + (by - 1)) // by,))


def counted_dtype(c: Call) -> DType:
    values = [c.attrs.get(k) for k in ("start", "stop", "step")]
    if any(isinstance(v, float) for v in values):
        return DType({"float32"})
    return DType({"int32"}) if all(c.size(v) is not None for v in values) else dtypes.UNKNOWN


def array_shape(c: Call) -> Shape | None:
    """mx.array of an array, a number, or a nested list."""
    return None if c.values[0] is None else _nested_shape(c.values[0])


def _nested_shape(value: Value) -> Shape | None:
    if value.kind != "tuple":
        return value.shape
    if value.elements is None or value.count is not None:
        return None if value.count is not None else value.shape  # of a list of numbers
    if not value.elements:
        return Shape.of(0)
    inner = _nested_shape(value.elements[0])
    if inner is None or inner.lead is not None:
        return None
    return Shape(None, (Expr.of(len(value.elements)), *inner.dims))


def array_dtype(c: Call) -> DType:
    return dtypes.UNKNOWN if c.values[0] is None else _nested_dtype(c.values[0]).settle()


def _nested_dtype(value: Value) -> DType:
    if value.kind != "tuple":
        return value.dtype
    if not value.elements:
        return DType({"float32"}) if value.elements is not None else value.dtype
    return reduce(dtypes.promote, map(_nested_dtype, value.elements))
