"""Ops of mlx.core that gather from arrays and make new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.graph import ops_create as create
from fuselint.graph import ops_rules as r
from fuselint.graph.op import Call, Op
from fuselint.graph.ops_row import row


def indexing() -> Iterator[Op]:
    yield row("take", "gather", "a: A, indices: A, axis=None", "Gather Squeeze", r.gathered_take, recorded=_take)
    yield row("take_along_axis", "gather", "a: A, indices: A, axis=-1", "GatherAxis", r.take_along)
    yield row("put_along_axis", "scatter", "a: A, indices: A, values: A, axis=None", "ScatterAxis")
    yield row(
        "slice",
        "gather",
        "a: A, start_indices: A, axes, slice_size",
        "DynamicSlice",
        lambda c: c.sizes(c.attrs.get("slice_size")),
    )
    yield row("slice_update", "scatter", "a: A, update: A, start_indices: A, axes", "DynamicSliceUpdate")


def _take(c: Call) -> tuple[str, ...]:
    indices = c.operand("indices")
    axis = c.integer("axis")
    if indices is not None and indices.kind == "scalar" and axis is not None:
        return ("Slice", "Squeeze")
    if c.attrs.get("axis") is None:
        return ("Flatten", "Gather", "Squeeze")
    shape = c.shape(0)
    first = shape is not None and axis is not None and (axis == 0 or -axis == shape.rank)
    return ("Gather", "Squeeze") if first else ("Gather", "Transpose", "Squeeze")


def creation() -> Iterator[Op]:
    f32 = r.constant_dtype("float32")
    filled = "Broadcast Full"
    yield row(
        "array",
        "create",
        "val: A, dtype=None",
        "",
        create.array_shape,
        r.dtype_attr(create.array_dtype),
        recorded=_array,
    )
    yield row(
        "asarray", "create", "a: A, dtype=None, *, copy=None", "", create.array_shape, r.dtype_attr(create.array_dtype)
    )
    for name in ("zeros", "ones", "empty"):
        yield row(name, "create", "shape, dtype=None", filled, create.created, r.dtype_attr(f32), recorded=_full)
        like = f"{name}_like"
        yield row(like, "create", "a: A, dtype=None", filled, r.same, r.dtype_attr(r.same_dtype), recorded=_full)
    yield row(
        "full",
        "create",
        "shape, vals: A, dtype=None",
        filled,
        create.created,
        r.dtype_attr(r.same_dtype),
        recorded=_full,
    )
    yield row(
        "full_like", "create", "a: A, vals: A, dtype=None", filled, r.same, r.dtype_attr(r.same_dtype), recorded=_full
    )
    steps = "start, stop=None, step=None, dtype=None"
    yield row(
        "arange", "create", steps, "Arange", create.counted, r.dtype_attr(create.counted_dtype), adjust=_adjust_arange
    )
    spaced = "start, stop, num=50, endpoint=True, dtype=None"
    line = "Arange Divide Subtract Multiply Multiply Add"
    yield row("linspace", "create", spaced, line, lambda c: create.vector(c, "num"), r.dtype_attr(f32))
    unit = "Full Arange Arange Full Scatter"
    yield row("eye", "create", "n, m=None, k=0, dtype=None", unit, create.rectangle, r.dtype_attr(f32))
    yield row("identity", "create", "n, dtype=None", unit, create.rectangle, r.dtype_attr(f32))
    below = "Arange ExpandDims Arange ExpandDims GreaterEqual"
    yield row("tri", "create", "n, m=None, k=0, dtype=None", below, create.rectangle, r.dtype_attr(f32))
    for name, primitives in (
        ("bartlett", "Arange Multiply Subtract Abs Subtract"),
        ("hanning", "Arange Multiply Sin Square"),
        ("hamming", "Arange Multiply Cos Multiply Subtract"),
        ("blackman", "Arange Multiply Cos Multiply Subtract Square Multiply Add"),
    ):
        yield row(name, "create", "M", primitives, lambda c: create.vector(c, "M"), f32)


def _full(c: Call) -> tuple[str, ...]:
    return ("Full",)


def _array(c: Call) -> tuple[str, ...]:
    """A copy of an array is a cast; arrays in a list are copied and stacked."""
    value = c.values[0]
    if value is None or value.kind != "tuple" or value.elements is None:
        return ()
    arrays = sum(e.kind == "array" for e in value.elements)
    return (*("ExpandDims",) * arrays, "Concatenate") if arrays else ()


def _adjust_arange(attrs: dict[str, Any], given: frozenset[str]) -> None:
    """arange(stop) is arange(0, stop, 1)."""
    if attrs["stop"] is None:
        attrs["start"], attrs["stop"] = 0, attrs["start"]
    if attrs["step"] is None:
        attrs["step"] = 1


def table() -> Iterator[Op]:
    for part in (indexing, creation):
        yield from part()
