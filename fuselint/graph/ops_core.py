"""The ops of mlx.core: elementwise ops, reductions, views, products, indexing, creation.

Signatures are those of MLX 0.32.4; primitives are named as mx.export_function reports them on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.graph import ops_create as create
from fuselint.graph import ops_products as pr
from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, DTypeRule, Kind, Op, PrimitiveRule, ShapeRule, parse_params
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr

AXIS = "a: A, axis=None, keepdims=False"


def row(
    name: str,
    kind: Kind,
    signature: str,
    primitives: str,
    shape: ShapeRule = r.same,
    dtype: DTypeRule = r.same_dtype,
    *,
    module: str = "mlx.core",
    method: str | bool = False,
    named: str | None = None,
    aliases: str = "",
    fallback: str = "",
    constructor: str = "",
    **more: Any,
) -> Op:
    """An op. `method` is True where the array method takes the same arguments, or its own signature.

    named: the array method's name, where it is another. aliases: other names in the module, or elsewhere in full.
    """
    prefix = module.removeprefix("mlx.core").removeprefix("mlx.").lstrip(".")
    return Op(
        f"{prefix}.{name}" if prefix else name,
        kind,
        parse_params(signature),
        shape,
        dtype,
        tuple(primitives.split()),
        spellings=tuple(n if n.startswith("mlx.") else f"{module}.{n}" for n in (name, *aliases.split())),
        method=named if named is not None else name if method else None,
        method_params=parse_params(method) if isinstance(method, str) else None,
        fallback=tuple(fallback.split()),
        constructor=parse_params(constructor),
        **more,
    )


# -- one fusable primitive --------------------------------------------------------------------------------------------

UNARY_FLOAT = """
sqrt Sqrt method|rsqrt Sqrt method|exp Exp method|expm1 Expm1|log Log method|log2 Log method|log10 Log method
log1p Log1p method|erf Erf|erfinv ErfInv|sin Sin method|cos Cos method|tan Tan|sinh Sinh|cosh Cosh|tanh Tanh
sigmoid Sigmoid
"""
"""Integers become float32."""

INVERSE = """
arcsin ArcSin asin|arccos ArcCos acos|arctan ArcTan atan|arcsinh ArcSinh asinh|arccosh ArcCosh acosh
arctanh ArcTanh atanh
"""


def _entries(text: str) -> Iterator[list[str]]:
    for entry in text.replace("\n", "|").split("|"):
        if entry:
            yield entry.split()


def unary() -> Iterator[Op]:
    for name, primitive, *method in _entries(UNARY_FLOAT):
        yield row(name, "unary", "a: A", primitive, dtype=r.floated, method=bool(method))
    for name, primitive, alias in _entries(INVERSE):
        yield row(name, "unary", "a: A", primitive, dtype=r.floated, aliases=alias)
    yield row("abs", "unary", "a: A", "Abs", dtype=_real, method=True, operator="abs")
    yield row("negative", "unary", "a: A", "Negative", operator="-")
    yield row("sign", "unary", "a: A", "Sign")
    yield row("square", "unary", "a: A", "Square", method=True)
    yield row("floor", "unary", "a: A", "Floor")
    yield row("ceil", "unary", "a: A", "Ceil")
    yield row("logical_not", "unary", "a: A", "LogicalNot", dtype=r.BOOLEAN)
    yield row("bitwise_invert", "unary", "a: A", "BitwiseInvert", operator="~")
    yield row("conjugate", "unary", "a: A", "Conjugate", aliases="conj", named="conj", recorded=r.complex_only)
    yield row("real", "unary", "a: A", "Real", dtype=_real, recorded=r.complex_only)
    yield row("imag", "unary", "a: A", "Imag", dtype=_real, recorded=_imaginary)
    yield row("round", "unary", "a: A, decimals=0", "Round", method=True, recorded=_rounded)
    yield row(
        "astype", "cast", "a: A, dtype", "AsType", dtype=r.dtype_attr(r.same_dtype), method=True, recorded=r.nothing
    )


def _real(c: Call) -> DType:
    d = c.dtype(0).settle()
    return DType({"float32"}) if d.name == "complex64" else d


def _imaginary(c: Call) -> tuple[str, ...]:
    return r.complex_only(c) or ("Full",)


def _rounded(c: Call) -> tuple[str, ...]:
    return ("Round",) if c.integer("decimals") == 0 else ("Multiply", "Round", "Multiply")


def binary() -> Iterator[Op]:
    ab = "a: A, b: A"
    for name, primitive, operator in (
        ("add", "Add", "+"),
        ("subtract", "Subtract", "-"),
        ("multiply", "Multiply", "*"),
        ("floor_divide", "FloorDivide", "//"),
        ("remainder", "Remainder", "%"),
        ("maximum", "Maximum", None),
        ("minimum", "Minimum", None),
        ("bitwise_and", "BitwiseBinary", "&"),
        ("bitwise_or", "BitwiseBinary", "|"),
        ("bitwise_xor", "BitwiseBinary", "^"),
    ):
        yield row(name, "binary", ab, primitive, r.broadcasted, r.promoted, operator=operator)
    for name, primitive, operator in (
        ("equal", "Equal", "=="),
        ("not_equal", "NotEqual", "!="),
        ("less", "Less", "<"),
        ("less_equal", "LessEqual", "<="),
        ("greater", "Greater", ">"),
        ("greater_equal", "GreaterEqual", ">="),
        ("logical_and", "LogicalAnd", None),
        ("logical_or", "LogicalOr", None),
    ):
        yield row(name, "binary", ab, primitive, r.broadcasted, r.BOOLEAN, operator=operator)
    yield row("power", "binary", ab, "Power", r.broadcasted, r.promoted, operator="**", aliases="pow")
    yield row("divide", "binary", ab, "Divide", r.broadcasted, r.promoted_float, operator="/")
    yield row("logaddexp", "binary", ab, "LogAddExp", r.broadcasted, r.promoted_float)
    yield row("arctan2", "binary", ab, "ArcTan2", r.broadcasted, r.promoted_float, aliases="atan2")
    yield row(
        "left_shift",
        "binary",
        ab,
        "BitwiseBinary",
        r.broadcasted,
        _shifted,
        operator="<<",
        aliases="bitwise_left_shift",
    )
    yield row(
        "right_shift",
        "binary",
        ab,
        "BitwiseBinary",
        r.broadcasted,
        _shifted,
        operator=">>",
        aliases="bitwise_right_shift",
    )
    yield row("where", "ternary", "condition: A, x: A, y: A", "Select", r.broadcasted, _where)


def _shifted(c: Call) -> DType:
    d = r.promoted(c)
    return DType({"uint8"}) if d.name == "bool_" else d


def _where(c: Call) -> DType:
    return (c.dtype(1) | c.dtype(2)).settle()


# -- several primitives -----------------------------------------------------------------------------------------------


def composites() -> Iterator[Op]:
    a, ab = "a: A", "a: A, b: A"
    yield row("reciprocal", "composite", a, "Divide", dtype=r.floated, method=True)
    yield row("degrees", "composite", a, "Multiply", dtype=r.floated)
    yield row("radians", "composite", a, "Multiply", dtype=r.floated)
    yield row("isnan", "composite", a, "NotEqual", recorded=r.unless_integral("Full"), dtype=r.BOOLEAN)
    yield row("isposinf", "composite", a, "Equal", recorded=r.unless_integral("Full"), dtype=r.BOOLEAN)
    yield row("isneginf", "composite", a, "Equal", recorded=r.unless_integral("Full"), dtype=r.BOOLEAN)
    yield row("isinf", "composite", a, "Equal Equal LogicalOr", recorded=r.unless_integral("Full"), dtype=r.BOOLEAN)
    finite = "Equal Equal LogicalOr NotEqual LogicalOr LogicalNot"
    yield row("isfinite", "composite", a, finite, recorded=r.unless_integral("Full"), dtype=r.BOOLEAN)
    yield row("trunc", "composite", a, "Less Ceil Floor Select", recorded=_truncated)
    numbers = "Equal Equal NotEqual Select Select Select"
    yield row(
        "nan_to_num", "composite", "a: A, nan=0, posinf=None, neginf=None", numbers, recorded=r.unless_integral("")
    )
    yield row("logical_xor", "composite", ab, "NotEqual", r.broadcasted, r.BOOLEAN)
    yield row("divmod", "composite", ab, "DivMod", _twice(r.broadcasted), r.both(r.promoted), result="arrays")
    bounds = "a: A, a_min: A, a_max: A"
    yield row("clip", "composite", bounds, "Maximum Minimum", r.broadcasted, r.promoted, recorded=_clipped)
    close = "a: A, b: A, rtol=1e-05, atol=1e-08, *, equal_nan=False"
    yield row("isclose", "composite", close, CLOSE, r.broadcasted, r.BOOLEAN, recorded=_close)
    yield row("allclose", "composite", close, f"{CLOSE} Reduce Squeeze", r.scalar, r.BOOLEAN, recorded=_all_close)
    yield row("array_equal", "composite", f"{ab}, equal_nan=False", "Equal Reduce Squeeze", r.scalar, r.BOOLEAN)
    yield row("hadamard_transform", "other", "a: A, scale=None", "Hadamard", dtype=r.floated)
    yield row("to_fp8", "other", "x: A", "ToFP8", dtype=r.constant_dtype("uint8"))
    yield row("from_fp8", "other", "x: A, dtype='bfloat16'", "FromFP8", dtype=r.dtype_attr(r.same_dtype))


NEAR = "Subtract Abs Abs Multiply Add LessEqual"
INFINITE = "Equal Equal LogicalOr Equal Equal LogicalOr LogicalOr LogicalNot"
CLOSE = f"{NEAR} {INFINITE} LogicalAnd LogicalAnd LogicalAnd LogicalOr LogicalOr"
CLOSE_INTEGERS = f"{NEAR} Full LogicalOr LogicalOr LogicalNot LogicalAnd LogicalAnd LogicalOr LogicalOr"


def _close(c: Call) -> tuple[str, ...]:
    """Infinities are told apart, where there can be any. Repeated computations are recorded once."""
    return tuple((CLOSE_INTEGERS if c.dtype(0).integral else CLOSE).split())


def _all_close(c: Call) -> tuple[str, ...]:
    return (*_close(c), "Reduce", "Squeeze")


def _truncated(c: Call) -> tuple[str, ...]:
    return () if c.dtype(0).integral and c.dtype(0).name != "bool_" else c.op.primitives


def _clipped(c: Call) -> tuple[str, ...]:
    bounds = (("a_min", "Maximum"), ("a_max", "Minimum"))
    return tuple(p for name, p in bounds if c.operand(name) is not None)


def _twice(rule: ShapeRule) -> ShapeRule:
    def both(c: Call) -> tuple[Shape | None, ...]:
        shape = rule(c)
        assert not isinstance(shape, tuple)
        return (shape, shape)

    return both


# -- reductions -------------------------------------------------------------------------------------------------------


def reductions() -> Iterator[Op]:
    for name, dtype in (
        ("sum", _summed),
        ("prod", _summed),
        ("max", r.same_dtype),
        ("min", r.same_dtype),
        ("all", r.BOOLEAN),
        ("any", r.BOOLEAN),
    ):
        yield row(name, "reduce", AXIS, "Reduce Squeeze", r.reduced, dtype, recorded=_reduction("Reduce"), method=True)
    for name in ("argmax", "argmin"):
        yield row(name, "reduce", AXIS, "ArgReduce Squeeze", r.reduced, r.UINT32, recorded=_arg_reduction, method=True)
    yield row(
        "logsumexp", "reduce", AXIS, "LogSumExp Squeeze", r.reduced, r.floated, recorded=_log_sum_exp, method=True
    )
    mean = _then_multiplied("Reduce")
    yield row("mean", "composite", AXIS, "Reduce Squeeze Multiply", r.reduced, r.floated, recorded=mean, method=True)
    variance = "a: A, axis=None, keepdims=False, ddof=0, *, correction=None"
    var = "Reduce Multiply Subtract Square Reduce Squeeze Multiply"
    yield row("var", "composite", variance, var, r.reduced, r.floated, recorded=_variance, method=True)
    yield row("std", "composite", variance, f"{var} Sqrt", r.reduced, r.floated, recorded=_deviation, method=True)
    median = "Transpose NotEqual Reduce Sort Slice Slice Add Multiply Select Squeeze"
    yield row("median", "composite", AXIS, median, r.reduced, r.floated, recorded=_median)
    nonzero = "a: A, *, axis=None, keepdims=False"
    count = "NotEqual AsType Reduce Squeeze"
    yield row("count_nonzero", "composite", nonzero, count, r.reduced, r.constant_dtype("int32"), recorded=_counted)
    yield row(
        "minmax",
        "composite",
        AXIS,
        "Reduce Squeeze Reduce Squeeze",
        _twice(r.reduced),
        r.both(r.same_dtype),
        result="arrays",
        recorded=lambda c: _reduction("Reduce")(c) * 2,
    )


def _summed(c: Call) -> DType:
    """Small integers and booleans add up in int32, unsigned ones in uint32."""
    d = c.dtype(0).settle()
    if d & {"uint8", "uint16"}:
        return DType({"uint32"})
    return DType({"int32"}) if d & {"bool_", "int8", "int16"} else d


def _keeps(c: Call) -> bool:
    return c.flag("keepdims") is True


def _reduction(primitive: str) -> PrimitiveRule:
    def rule(c: Call) -> tuple[str, ...]:
        return (primitive,) if _keeps(c) else (primitive, "Squeeze")

    return rule


def _arg_reduction(c: Call) -> tuple[str, ...]:
    if c.attrs.get("axis") is not None:
        return _reduction("ArgReduce")(c)
    return ("Flatten", "ArgReduce", "ExpandDims" if _keeps(c) else "Squeeze")


def _then_multiplied(primitive: str) -> PrimitiveRule:
    return lambda c: (*_reduction(primitive)(c), "Multiply")


def _variance(c: Call) -> tuple[str, ...]:
    less = c.integer("ddof") if c.attrs.get("correction") is None else c.integer("correction")
    last: tuple[str, ...] = ("Multiply",) if less == 0 else ("Subtract", "Maximum", "Divide")
    return ("Reduce", "Multiply", "Subtract", "Square", *_reduction("Reduce")(c), *last)


def _deviation(c: Call) -> tuple[str, ...]:
    return (*_variance(c), "Sqrt")


def _median(c: Call) -> tuple[str, ...]:
    integral = c.dtype(0).integral
    flat = ("Flatten",) if c.attrs.get("axis") is None else ()
    nans, chosen = ((), ()) if integral else (("NotEqual", "Reduce"), ("Select",))
    last = ("Squeeze", "ExpandDims") if _keeps(c) else ("Squeeze",)
    return ("Transpose", *flat, *nans, "Sort", "Slice", "Slice", "Add", "Multiply", *chosen, *last)


def _counted(c: Call) -> tuple[str, ...]:
    return ("NotEqual", *_reduction("Reduce")(c))


def _log_sum_exp(c: Call) -> tuple[str, ...]:
    if r.over_last(c):
        return _reduction("LogSumExp")(c)
    last = () if _keeps(c) else ("Squeeze",)
    infinite = ("Full",) if c.dtype(0).integral else ("Equal", "Equal", "LogicalOr")
    reshape = () if _keeps(c) else ("Reshape",)
    top = ("Reduce", *last)
    return (*top, *infinite, "Subtract", "Exp", "Reduce", *last, "Log", *reshape, "Add", "Select")


def scans() -> Iterator[Op]:
    scan = "a: A, axis=None, *, reverse=False, inclusive=True"
    typed = f"{scan}, dtype=None"
    flat = r.flattened_first("Flatten")
    sums, plain = r.dtype_attr(_scanned_sum), r.dtype_attr(r.same_dtype)
    yield row("cumsum", "scan", typed, "Scan", r.scanned, sums, method=scan, aliases="cumulative_sum", recorded=flat)
    yield row("cumprod", "scan", typed, "Scan", r.scanned, plain, method=scan, aliases="cumulative_prod", recorded=flat)
    yield row("cummax", "scan", scan, "Scan", r.scanned, method=True, recorded=flat)
    yield row("cummin", "scan", scan, "Scan", r.scanned, method=True, recorded=flat)
    yield row("logcumsumexp", "scan", scan, "Scan", r.scanned, r.floated, method=True, recorded=flat)
    softmax = "a: A, axis=None, *, precise=False"
    yield row("softmax", "rowwise", softmax, "Softmax", dtype=softmax_dtype, recorded=_softmax)
    flat = r.flattened_first("Reshape")
    yield row("sort", "sort", "a: A, axis=-1", "Sort", r.scanned, recorded=flat)
    yield row("argsort", "sort", "a: A, axis=-1", "ArgSort", r.scanned, r.UINT32, recorded=flat)
    yield row("partition", "sort", "a: A, kth, axis=-1", "Partition", r.scanned, recorded=flat)
    yield row("argpartition", "sort", "a: A, kth, axis=-1", "ArgPartition", r.scanned, r.UINT32, recorded=flat)
    yield row("topk", "sort", "a: A, k, axis=-1", "Partition Slice", _topk, recorded=flat)
    yield row("searchsorted", "sort", "sorted_sequence: A, values: A, side='left'", "SearchSorted", r.like(1), r.UINT32)
    unique = "a: A, size, return_index=False, return_inverse=False, return_counts=False, fill_value=None"
    yield row("unique", "sort", unique, "Sort", r.unknown)


def _scanned_sum(c: Call) -> DType:
    d = c.dtype(0).settle()
    return DType({"int32"}) if d.name == "bool_" else d


def _softmax(c: Call) -> tuple[str, ...]:
    return ("Softmax",) if r.over_last(c) else ("Reduce", "Subtract", "Exp", "Reduce", "Divide")


def softmax_dtype(c: Call) -> DType:
    """Integers become float32 over the last axis, and stay what they are over another."""
    return c.dtype(0).floated() if r.over_last(c) else c.dtype(0).settle()


def _topk(c: Call) -> Shape | None:
    shape, k = c.shape(0), c.size(c.attrs.get("k"))
    if c.attrs.get("axis") is None:
        return None if k is None else Shape(None, (k,))
    axis = c.integer("axis")
    return None if shape is None or k is None or axis is None else shape.replace(axis, (k,))


# -- views and copies -------------------------------------------------------------------------------------------------


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
    yield row("trace", "composite", traced, f"{DIAGONAL} Reduce Squeeze", _trace, r.dtype_attr(_summed))
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


# -- products ---------------------------------------------------------------------------------------------------------


def products() -> Iterator[Op]:
    yield row("matmul", "matmul", "a: A, b: A", "Matmul", pr.matmul, r.promoted_float, operator="@", recorded=_matmul)
    addmm = "c: A, a: A, b: A, alpha=1.0, beta=1.0"
    yield row("addmm", "matmul", addmm, "AddMM", pr.addmm, r.promoted_float, recorded=_addmm)
    yield row(
        "einsum", "matmul", "subscripts, *operands: L", "Matmul", pr.einsum, r.promoted, recorded=pr.einsum_primitives
    )
    yield row(
        "inner", "matmul", "a: A, b: A", "Transpose Transpose Matmul", _inner, r.promoted_float, recorded=_contracted
    )
    yield row("outer", "composite", "a: A, b: A", "Reshape Multiply", _outer, r.promoted)
    yield row(
        "tensordot",
        "matmul",
        "a: A, b: A, axes=2",
        "Transpose Transpose Matmul",
        _tensordot,
        r.promoted_float,
        recorded=_contracted,
    )
    yield row("vecdot", "composite", "a: A, b: A, *, axis=-1", "Multiply Reduce Squeeze", _vecdot, r.promoted)
    quantised = "scales: A, biases: A = None"
    how = "group_size=None, bits=None, mode='affine'"
    yield row(
        "quantized_matmul",
        "matmul",
        f"x: A, w: A, {quantised}, transpose=True, {how}",
        "QuantizedMatmul",
        pr.quantised,
        pr.quantised_dtype,
    )
    indices = "lhs_indices: A = None, rhs_indices: A = None"
    yield row(
        "gather_qmm",
        "matmul",
        f"x: A, w: A, {quantised}, {indices}, transpose=True, {how}, global_scale=None, *, sorted_indices=False",
        "GatherQMM",
        pr.gathered_product,
        pr.quantised_dtype,
        recorded=_gathered("GatherQMM"),
    )
    yield row(
        "gather_mm",
        "matmul",
        f"a: A, b: A, {indices}, *, sorted_indices=False",
        "GatherMM",
        pr.gathered_product,
        _two_dtypes,
        recorded=_gathered("GatherMM"),
    )
    yield row(
        "gather_qqmm",
        "matmul",
        f"x: A, w: A, scales: A = None, {indices}, group_size=None, bits=None, mode='nvfp4', global_scale_x=None, "
        "global_scale_w=None, *, sorted_indices=False",
        "GatherQQMM",
        r.unknown,
    )
    masks = "mask_out: A = None, mask_lhs: A = None, mask_rhs: A = None"
    yield row(
        "block_masked_mm",
        "matmul",
        f"a: A, b: A, block_size=64, {masks}",
        "BlockMaskedMM",
        pr.matmul,
        _two_dtypes,
        recorded=_masked,
    )
    yield row("segmented_mm", "matmul", "a: A, b: A, segments: A", "SegmentedMM", _segmented, _two_dtypes)
    qq = f"x: A, w: A, scales: A = None, {how.replace('affine', 'nvfp4')}, global_scale_x=None, global_scale_w=None"
    yield row("qqmm", "matmul", qq, "QQMatmul", _by_rows)
    quantise = f"w: A, {how}, *, global_scale=None"
    yield row("quantize", "other", quantise, "Quantize", pr.quantise, pr.quantise_dtypes, result="arrays")
    dequantise = f"w: A, {quantised}, {how}, global_scale=None, dtype=None"
    yield row(
        "dequantize", "other", dequantise, "Dequantize", pr.dequantised, pr.dequantised_dtype, fallback=DEQUANTISE
    )


DEQUANTISE = (
    f"{'BitwiseBinary BitwiseBinary ExpandDims ' * 8}Concatenate Reshape ExpandDims Multiply ExpandDims Add Reshape"
)
"""Of 4 bits: one pair for each value in a word."""


def _two_dtypes(c: Call) -> DType:
    return (c.dtype(0) | c.dtype(1)).floated()


def _matmul(c: Call) -> tuple[str, ...]:
    """A vector is made a matrix; rows of all leading axes are one matrix, where the right operand is one."""
    a, b = c.shape(0), c.shape(1)
    if a is None or b is None:
        return ("Matmul",)
    if b.rank == 1:
        if a.rank == 1:
            return ("ExpandDims", "ExpandDims", "Matmul", "Squeeze")
        fold = ("Flatten", "ExpandDims", "Matmul", "Unflatten", "Squeeze")
        return fold if (a.rank or 3) > 2 else ("ExpandDims", "Matmul", "Squeeze")
    if a.rank == 1:
        return ("ExpandDims", "Matmul", "Squeeze")
    folds = b.rank == 2 and (a.rank or 3) > 2
    return ("Flatten", "Matmul", "Unflatten") if folds else ("Matmul",)


def _addmm(c: Call) -> tuple[str, ...]:
    z, a, b = c.shape(0), c.shape(1), c.shape(2)
    folds = a is not None and b is not None and z is not None
    if (
        folds
        and b is not None
        and b.rank == 2
        and a is not None
        and (a.rank or 3) > 2
        and z is not None
        and z.rank in (0, 1)
    ):
        return ("Reshape", "AddMM", "Reshape")
    return ("AddMM",)


def _inner(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    if a is None or b is None:
        return None
    left, right = a.front(1), b.front(1)
    if left is None or right is None or right[0] is not None:
        return None
    return Shape(left[0], (*left[1], *right[1]))


def _outer(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    x, y = (None if s is None else s.elements() for s in (a, b))
    return None if x is None or y is None else Shape(None, (x, y))


def _tensordot(c: Call) -> Shape | None:
    a, b, axes = c.shape(0), c.shape(1), c.attrs.get("axes")
    if a is None or b is None:
        return None
    if isinstance(axes, int):
        left = a.front(axes)
        if left is None or b.lead is not None or axes > len(b.dims):
            return None
        return Shape(left[0], (*left[1], *b.dims[axes:]))
    if isinstance(axes, tuple) and len(axes) == 2 and a.lead is None and b.lead is None:
        drop = [{d % len(s.dims) for d in listed if isinstance(d, int)} for s, listed in ((a, axes[0]), (b, axes[1]))]
        if any(len(d) != len(x) for d, x in zip(drop, axes, strict=True)):
            return None
        kept = [d for s, gone in ((a, drop[0]), (b, drop[1])) for i, d in enumerate(s.dims) if i not in gone]
        return Shape(None, tuple(kept))
    return None


def _contracted(c: Call) -> tuple[str, ...]:
    """Both operands as matrices."""

    def flat(shape: Shape | None) -> tuple[str, ...]:
        return ("Reshape",) if shape is not None and shape.rank != 2 else ()

    out = c.op.shape(c)
    assert not isinstance(out, tuple)
    return ("Transpose", *flat(c.shape(0)), "Transpose", *flat(c.shape(1)), "Matmul", *flat(out))


def _vecdot(c: Call) -> Shape | None:
    shape, axis = r.broadcasted(c), c.integer("axis")
    return None if shape is None or axis is None else shape.replace(axis, ())


def _gathered(primitive: str) -> PrimitiveRule:
    """Indices that aren't given are counted up."""

    def rule(c: Call) -> tuple[str, ...]:
        missing = [n for n in ("lhs_indices", "rhs_indices") if c.operand(n) is None]
        shape = c.shape(0 if missing == ["lhs_indices"] else 1)
        reshaped = ("Reshape",) if shape is not None and (shape.rank or 3) > 3 else ()
        return (*(("Arange", *reshaped) * len(missing)), primitive)

    return rule


def _masked(c: Call) -> tuple[str, ...]:
    masks = ("mask_out", "mask_lhs", "mask_rhs")
    return ("BlockMaskedMM",) if any(c.operand(m) is not None for m in masks) else ("Matmul",)


def _segmented(c: Call) -> Shape | None:
    a, b, segments = c.shape(0), c.shape(1), c.shape(2)
    if a is None or b is None or segments is None or segments.lead is not None:
        return None
    rows, columns = a.axis(-2), b.axis(-1)
    return None if rows is None or columns is None else Shape(None, (*segments.dims[:-1], rows, columns))


def _by_rows(c: Call) -> Shape | None:
    x, w = c.shape(0), c.shape(1)
    rows = None if w is None else w.axis(-2)
    return None if x is None or rows is None else x.replace(-1, (rows,))


def convolutions() -> Iterator[Op]:
    for n in (1, 2, 3):
        signature = "input: A, weight: A, stride=1, padding=0, dilation=1, groups=1"
        yield row(f"conv{n}d", "conv", signature, "Convolution", pr.convolution(n), r.promoted_float)
        transposed = signature.replace("dilation=1", "dilation=1, output_padding=0")
        shape = pr.transposed_convolution(n)
        yield row(f"conv_transpose{n}d", "conv", transposed, "Convolution", shape, r.promoted_float)
    general = "input: A, weight: A, stride=1, padding=0, kernel_dilation=1, input_dilation=1, groups=1, flip=False"
    yield row("conv_general", "conv", general, "Convolution", pr.general_convolution, r.promoted_float)
    parts = "Reshape Slice Reshape Convolution Reshape"
    same = ("Reshape", "Pad", "Slice", "Reshape", "Convolution", "Reshape")
    yield row(
        "convolve",
        "conv",
        "a: A, v: A, mode='full'",
        parts,
        _convolved,
        r.promoted_float,
        recorded=lambda c: same if c.attrs.get("mode") == "same" else c.op.primitives,
    )


def _convolved(c: Call) -> Shape | None:
    a, v, mode = c.shape(0), c.shape(1), c.attrs.get("mode")
    x, y = (None if s is None else s.elements() for s in (a, v))
    if x is None or y is None:
        return None
    if mode == "full":
        return Shape(None, (x + y - 1,))
    m, n = x.value(), y.value()
    if m is None or n is None:
        return None
    return Shape.of(max(m, n)) if mode == "same" else Shape.of(max(m, n) - min(m, n) + 1)


# -- indexing and creation --------------------------------------------------------------------------------------------


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
    parts = (unary, binary, composites, reductions, scans, views, copies, products, convolutions, indexing, creation)
    for part in parts:
        yield from part()
