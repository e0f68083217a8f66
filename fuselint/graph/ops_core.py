"""The ops of mlx.core, mlx.core.fast, mlx.core.linalg, mlx.core.random and mlx.core.fft.

Signatures are those of MLX 0.32.4; primitives are named as mx.export_function reports them on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, DTypeRule, Kind, Op, ShapeRule, parse_params
from fuselint.graph.shapes import SCALAR, Shape, broadcast
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
    aliases: str = "",
    **more: Any,
) -> Op:
    """An op. `method` is True where the array method takes the same arguments, or its own signature."""
    own = name if module == "mlx.core" else f"{module.rsplit('.', 1)[1]}.{name}"
    return Op(
        own,
        kind,
        parse_params(signature),
        shape,
        dtype,
        tuple(primitives.split()),
        spellings=tuple(f"{module}.{n}" for n in (name, *aliases.split())),
        method=name if method else None,
        method_params=parse_params(method) if isinstance(method, str) else None,
        **more,
    )


def unary() -> Iterator[Op]:
    for name, primitive, dtype, method, aliases in (
        ("abs", "Abs", _absolute, True, ""),
        ("negative", "Negative", r.same_dtype, False, ""),
        ("sign", "Sign", r.same_dtype, False, ""),
        ("square", "Square", r.same_dtype, True, ""),
        ("sqrt", "Sqrt", r.floated, True, ""),
        ("rsqrt", "Sqrt", r.floated, True, ""),
        ("exp", "Exp", r.floated, True, ""),
        ("expm1", "Expm1", r.floated, False, ""),
        ("log", "Log", r.floated, True, ""),
        ("log2", "Log", r.floated, True, ""),
        ("log10", "Log", r.floated, True, ""),
        ("log1p", "Log1p", r.floated, True, ""),
        ("erf", "Erf", r.floated, False, ""),
        ("erfinv", "ErfInv", r.floated, False, ""),
        ("sin", "Sin", r.floated, True, ""),
        ("cos", "Cos", r.floated, True, ""),
        ("tan", "Tan", r.floated, False, ""),
        ("arcsin", "ArcSin", r.floated, False, "asin"),
        ("arccos", "ArcCos", r.floated, False, "acos"),
        ("arctan", "ArcTan", r.floated, False, "atan"),
        ("sinh", "Sinh", r.floated, False, ""),
        ("cosh", "Cosh", r.floated, False, ""),
        ("tanh", "Tanh", r.floated, False, ""),
        ("arcsinh", "ArcSinh", r.floated, False, "asinh"),
        ("arccosh", "ArcCosh", r.floated, False, "acosh"),
        ("arctanh", "ArcTanh", r.floated, False, "atanh"),
        ("sigmoid", "Sigmoid", r.floated, False, ""),
        ("floor", "Floor", r.same_dtype, False, ""),
        ("ceil", "Ceil", r.same_dtype, False, ""),
        ("logical_not", "LogicalNot", r.BOOLEAN, False, ""),
    ):
        operator = {"negative": "-", "abs": "abs"}.get(name)
        yield row(name, "unary", "a: A", primitive, dtype=dtype, method=method, aliases=aliases, operator=operator)
    yield row("bitwise_invert", "unary", "a: A", "BitwiseInvert", operator="~")
    yield row("conjugate", "unary", "a: A", "Conjugate", aliases="conj")
    yield row("real", "unary", "a: A", "Real", dtype=_real)
    yield row("imag", "unary", "a: A", "Imag", dtype=_real)
    yield row("round", "unary", "a: A, decimals=0", "Round", method=True)
    yield row("stop_gradient", "view", "a: A", "StopGradient")
    yield row("positive", "view", "a: A", "", operator="+")
    yield row(
        "astype", "cast", "a: A, dtype", "AsType", dtype=lambda c: c.dtype_value(c.attrs.get("dtype")), method=True
    )
    yield row(
        "view", "view", "a: A, dtype", "View", r.unknown, lambda c: c.dtype_value(c.attrs.get("dtype")), method=True
    )
    yield row("reciprocal", "composite", "a: A", "Divide", dtype=r.floated, method=True)
    yield row("degrees", "composite", "a: A", "Multiply", dtype=r.floated)
    yield row("radians", "composite", "a: A", "Multiply", dtype=r.floated)
    yield row("isnan", "composite", "a: A", "NotEqual", dtype=r.BOOLEAN)
    yield row("isposinf", "composite", "a: A", "Equal", dtype=r.BOOLEAN)
    yield row("isneginf", "composite", "a: A", "Equal", dtype=r.BOOLEAN)
    yield row("isinf", "composite", "a: A", "Equal Equal LogicalOr", dtype=r.BOOLEAN)
    yield row("isfinite", "composite", "a: A", "Equal Equal LogicalOr NotEqual LogicalOr LogicalNot", dtype=r.BOOLEAN)
    yield row("trunc", "composite", "a: A", "Less Ceil Floor Select")
    yield row(
        "nan_to_num", "composite", "a: A, nan=0, posinf=None, neginf=None", "NotEqual Select Equal Select Equal Select"
    )


def _absolute(c: Call) -> DType:
    d = c.dtype(0).settle()
    return DType({"float32"}) if d.name == "complex64" else d


def _real(c: Call) -> DType:
    d = c.dtype(0).settle()
    return DType({"float32"}) if d.name == "complex64" else d


def binary() -> Iterator[Op]:
    for name, primitive, dtype, operator, aliases in (
        ("add", "Add", r.promoted, "+", ""),
        ("subtract", "Subtract", r.promoted, "-", ""),
        ("multiply", "Multiply", r.promoted, "*", ""),
        ("divide", "Divide", r.promoted_float, "/", ""),
        ("floor_divide", "FloorDivide", r.promoted, "//", ""),
        ("remainder", "Remainder", r.promoted, "%", ""),
        ("power", "Power", r.promoted, "**", "pow"),
        ("maximum", "Maximum", r.promoted, None, ""),
        ("minimum", "Minimum", r.promoted, None, ""),
        ("logaddexp", "LogAddExp", r.promoted_float, None, ""),
        ("arctan2", "ArcTan2", r.promoted_float, None, "atan2"),
        ("equal", "Equal", r.BOOLEAN, "==", ""),
        ("not_equal", "NotEqual", r.BOOLEAN, "!=", ""),
        ("less", "Less", r.BOOLEAN, "<", ""),
        ("less_equal", "LessEqual", r.BOOLEAN, "<=", ""),
        ("greater", "Greater", r.BOOLEAN, ">", ""),
        ("greater_equal", "GreaterEqual", r.BOOLEAN, ">=", ""),
        ("logical_and", "LogicalAnd", r.BOOLEAN, None, ""),
        ("logical_or", "LogicalOr", r.BOOLEAN, None, ""),
        ("bitwise_and", "BitwiseBinary", r.promoted, "&", ""),
        ("bitwise_or", "BitwiseBinary", r.promoted, "|", ""),
        ("bitwise_xor", "BitwiseBinary", r.promoted, "^", ""),
        ("left_shift", "BitwiseBinary", r.promoted, "<<", "bitwise_left_shift"),
        ("right_shift", "BitwiseBinary", r.promoted, ">>", "bitwise_right_shift"),
    ):
        yield row(name, "binary", "a: A, b: A", primitive, r.broadcasted, dtype, operator=operator, aliases=aliases)
    yield row("where", "ternary", "condition: A, x: A, y: A", "Select", r.broadcasted, _where)
    yield row("logical_xor", "composite", "a: A, b: A", "NotEqual", r.broadcasted, r.BOOLEAN)
    yield row(
        "divmod",
        "composite",
        "a: A, b: A",
        "DivMod",
        lambda c: (r.broadcasted(c),) * 2,
        lambda c: (r.promoted(c),) * 2,
        result="arrays",
    )
    yield row("clip", "composite", "a: A, a_min: A = None, a_max: A = None", "Maximum Minimum", r.broadcasted, _clip)
    yield row(
        "isclose", "composite", "a: A, b: A, rtol=1e-05, atol=1e-08, *, equal_nan=False", "", r.broadcasted, r.BOOLEAN
    )
    yield row(
        "allclose", "composite", "a: A, b: A, rtol=1e-05, atol=1e-08, *, equal_nan=False", "", r.scalar, r.BOOLEAN
    )
    yield row("array_equal", "composite", "a: A, b: A, equal_nan=False", "Equal Reduce", r.scalar, r.BOOLEAN)


def _where(c: Call) -> DType:
    return (c.dtype(1) | c.dtype(2)).settle()


def _clip(c: Call) -> DType:
    out = c.dtype(0)
    for i in range(1, len(c.values)):
        value = c.values[i]
        if value is not None and value.kind != "none":
            out = out | value.dtype
    return out.settle()


def reductions() -> Iterator[Op]:
    yield row("sum", "reduce", AXIS, "Reduce Squeeze", r.reduced, _summed, method=True)
    yield row("prod", "reduce", AXIS, "Reduce Squeeze", r.reduced, _summed, method=True)
    yield row("max", "reduce", AXIS, "Reduce Squeeze", r.reduced, method=True)
    yield row("min", "reduce", AXIS, "Reduce Squeeze", r.reduced, method=True)
    yield row("all", "reduce", AXIS, "Reduce Squeeze", r.reduced, r.BOOLEAN, method=True)
    yield row("any", "reduce", AXIS, "Reduce Squeeze", r.reduced, r.BOOLEAN, method=True)
    yield row("argmax", "reduce", AXIS, "ArgReduce Squeeze", r.reduced, r.UINT32, method=True)
    yield row("argmin", "reduce", AXIS, "ArgReduce Squeeze", r.reduced, r.UINT32, method=True)
    yield row("logsumexp", "reduce", AXIS, "LogSumExp Squeeze", r.reduced, r.floated, method=True)
    yield row("mean", "composite", AXIS, "Reduce Squeeze Multiply", r.reduced, r.floated, method=True)
    variance = "a: A, axis=None, keepdims=False, ddof=0, *, correction=None"
    yield row("var", "composite", variance, "", r.reduced, r.floated, method=True)
    yield row("std", "composite", variance, "", r.reduced, r.floated, method=True)
    yield row("median", "composite", AXIS, "", r.reduced, r.floated)
    yield row(
        "count_nonzero", "composite", "a: A, *, axis=None, keepdims=False", "", r.reduced, r.constant_dtype("int32")
    )
    yield row(
        "minmax",
        "composite",
        AXIS,
        "Reduce Reduce",
        lambda c: (r.reduced(c),) * 2,
        lambda c: (c.dtype(0).settle(),) * 2,
        result="arrays",
    )
    scan = "a: A, axis=None, *, reverse=False, inclusive=True, dtype=None"
    yield row(
        "cumsum", "scan", scan, "Scan", r.scanned, r.dtype_attr(_summed_scan), method=True, aliases="cumulative_sum"
    )
    yield row(
        "cumprod", "scan", scan, "Scan", r.scanned, r.dtype_attr(_summed_scan), method=True, aliases="cumulative_prod"
    )
    scan = "a: A, axis=None, *, reverse=False, inclusive=True"
    yield row("cummax", "scan", scan, "Scan", r.scanned, method=True)
    yield row("cummin", "scan", scan, "Scan", r.scanned, method=True)
    yield row("logcumsumexp", "scan", scan, "Scan", r.scanned, r.floated, method=True)
    yield row("softmax", "rowwise", "a: A, axis=None, *, precise=False", "Softmax", dtype=r.floated)
    yield row("sort", "sort", "a: A, axis=-1", "Sort", r.scanned)
    yield row("argsort", "sort", "a: A, axis=-1", "ArgSort", r.scanned, r.UINT32)
    yield row("partition", "sort", "a: A, kth, axis=-1", "Partition", r.scanned)
    yield row("argpartition", "sort", "a: A, kth, axis=-1", "ArgPartition", r.scanned, r.UINT32)
    yield row("topk", "sort", "a: A, k, axis=-1", "Partition Slice", _topk)


def _summed(c: Call) -> DType:
    d = c.dtype(0).settle()
    return DType({"int32"}) if d & {"bool_", "int8", "int16"} else d


def _summed_scan(c: Call) -> DType:
    return _summed(c)


def _topk(c: Call) -> Shape | None:
    shape, k = c.shape(0), c.size(c.attrs.get("k"))
    if c.attrs.get("axis") is None:
        return None if k is None else Shape(None, (k,))
    axis = c.integer("axis")
    return None if shape is None or k is None or axis is None else shape.replace(axis, (k,))


def views() -> Iterator[Op]:
    yield row("reshape", "view", "a: A, shape", "Reshape", r.reshaped, method="a: A, *shape")
    yield row("flatten", "view", "a: A, start_axis=0, end_axis=-1", "Flatten", r.flattened, method=True)
    yield row("unflatten", "view", "a: A, axis, shape", "Unflatten", r.unflattened)
    yield row("squeeze", "view", "a: A, axis=None", "Squeeze", r.squeezed, method=True)
    yield row("expand_dims", "view", "a: A, axis", "ExpandDims", r.expanded)
    yield row(
        "transpose", "view", "a: A, axes=None", "Transpose", r.transposed, method="a: A, *axes", aliases="permute_dims"
    )
    yield row("matrix_transpose", "view", "a: A", "Transpose", r.matrix_transposed)
    yield row("swapaxes", "view", "a: A, axis1, axis2", "Transpose", r.swapped, method=True)
    yield row("moveaxis", "view", "a: A, source, destination", "Transpose", r.moved, method=True)
    yield row("broadcast_to", "view", "a: A, shape", "Broadcast", r.broadcast_to)
    yield row("as_strided", "view", "a: A, shape=None, strides=None, offset=0", "AsStrided", r.unknown)
    yield row("split", "view", "a: A, indices_or_sections, axis=0", "Split", r.split, method=True, result="arrays")
    yield row("diagonal", "view", "a: A, offset=0, axis1=0, axis2=1", "", r.unknown, method=True)
    yield row("contiguous", "copy", "a: A, allow_col_major=False", "Contiguous", aliases="")
    yield row("concatenate", "copy", "arrays: L, axis=0", "Concatenate", r.concatenated, r.promoted, aliases="concat")
    yield row("stack", "copy", "arrays: L, axis=0", "Concatenate", r.stacked, r.promoted)
    yield row("repeat", "copy", "array: A, repeats, axis=None", "ExpandDims Broadcast Flatten", r.repeated)
    yield row("tile", "copy", "a: A, reps", "", _tiled)
    yield row("pad", "copy", "a: A, pad_width, mode='constant', constant_values=0", "Pad", _padded)
    yield row("roll", "copy", "a: A, shift, axis=None", "")
    yield row("flip", "view", "a: A, axis=None", "Slice")
    yield row("tril", "composite", "x: A, k=0", "")
    yield row("triu", "composite", "x: A, k=0", "")
    yield row("diag", "composite", "a: A, k=0", "", r.unknown, method=True)
    yield row("depends", "view", "inputs: L, dependencies", "Depends", r.unknown)


def _tiled(c: Call) -> Shape | None:
    shape, reps = c.shape(0), c.attrs.get("reps")
    if shape is None:
        return None
    listed = reps if isinstance(reps, tuple) else (reps,)
    counts = [c.size(v) for v in listed]
    if any(n is None for n in counts):
        return None
    if shape.lead is None and len(counts) > len(shape.dims):
        shape = Shape(None, (r.ONE,) * (len(counts) - len(shape.dims)) + shape.dims)
    tail, front = shape.tail(len(counts)), shape.front(len(counts))
    if tail is None or front is None:
        return None
    return Shape(front[0], (*front[1], *(d * n for d, n in zip(tail, counts) if n is not None)))


def _padded(c: Call) -> Shape | None:
    shape, width = c.shape(0), c.attrs.get("pad_width")
    if shape is None or shape.lead is not None:
        return None
    if isinstance(width, tuple) and all(isinstance(w, tuple) for w in width):
        pairs = list(width)
    elif isinstance(width, tuple) and len(width) == 2:
        pairs = [width] * len(shape.dims)
    else:
        one = width[0] if isinstance(width, tuple) and len(width) == 1 else width
        pairs = [(one, one)] * len(shape.dims)
    if len(pairs) != len(shape.dims) or any(len(p) != 2 for p in pairs):
        return None
    out = []
    for d, (a, b) in zip(shape.dims, pairs):
        x, y = c.size(a), c.size(b)
        if x is None or y is None:
            return None
        out.append(d + x + y)
    return Shape(None, tuple(out))


def products() -> Iterator[Op]:
    yield row("matmul", "matmul", "a: A, b: A", "Matmul", r.matmul, r.promoted_float, operator="@")
    yield row("addmm", "matmul", "c: A, a: A, b: A, alpha=1.0, beta=1.0", "AddMM", _addmm, r.promoted_float)
    yield row("einsum", "matmul", "subscripts, *operands: L", "Matmul", _einsum, r.promoted)
    yield row("inner", "matmul", "a: A, b: A", "Matmul", r.unknown, r.promoted_float)
    yield row("outer", "composite", "a: A, b: A", "Multiply", _outer, r.promoted)
    yield row("tensordot", "matmul", "a: A, b: A, axes=2", "Matmul", r.unknown, r.promoted_float)
    quantised = "x: A, w: A, scales: A, biases: A = None, transpose=True, group_size=None, bits=None, mode='affine'"
    yield row("quantized_matmul", "matmul", quantised, "QuantizedMatmul", _quantised, _quantised_dtype)
    for n in (1, 2, 3):
        yield row(
            f"conv{n}d",
            "conv",
            "input: A, weight: A, stride=1, padding=0, dilation=1, groups=1",
            "Convolution",
            _conv(n),
            r.promoted_float,
        )


def _addmm(c: Call) -> Shape | None:
    return broadcast(r.matmul_shape(c.shape(1), c.shape(2)), c.shape(0))


def _outer(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    x, y = (None if s is None else s.elements() for s in (a, b))
    return None if x is None or y is None else Shape(None, (x, y))


def _einsum(c: Call) -> Shape | None:
    """Each letter is a size; the result is spelt after `->`."""
    text = c.attrs.get("subscripts")
    if not isinstance(text, str) or "." in text:
        return None
    text = text.replace(" ", "")
    left, arrow, out = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(c.values):
        return None
    if not arrow:
        out = "".join(sorted(ch for ch in set(left) - {","} if left.count(ch) == 1))
    sizes: dict[str, Expr] = {}
    for i, term in enumerate(terms):
        shape = c.shape(i)
        if shape is None:
            continue
        tail = shape.tail(len(term))
        if tail is None:
            return None
        for ch, d in zip(term, tail):
            if ch not in sizes or sizes[ch] == 1 or (sizes[ch].value() is None and d.value() is not None):
                sizes[ch] = d
    return Shape(None, tuple(sizes[ch] for ch in out)) if all(ch in sizes for ch in out) else None


def _quantised(c: Call) -> Shape | None:
    x, scales, transpose = c.shape(0), c.shape(2), c.flag("transpose")
    if x is None or scales is None or not transpose:
        return None
    rows = scales.axis(-2)
    return None if rows is None else x.replace(-1, (rows,))


def _quantised_dtype(c: Call) -> DType:
    if c.attrs.get("mode") != "affine":
        return c.dtype(0)
    return r.promoted(
        Call(
            c.op,
            tuple(v for i, v in enumerate(c.values) if i != 1 and v is not None and v.kind != "none"),
            c.attrs,
            c.size,
            c.sizes,
            c.dtype_value,
        )
    )


def conv_size(size: Expr, kernel: Expr, stride: Expr, padding: Expr, dilation: Expr) -> Expr:
    """The output size of a convolution along one axis."""
    return (size + padding * 2 - dilation * (kernel - 1) - 1) // stride + 1


def each(c: Call, value: Any, n: int) -> list[Expr] | None:
    """An int for every axis, or one for each."""
    listed = value if isinstance(value, tuple) else (value,) * n
    sizes = [c.size(v) for v in listed]
    return [s for s in sizes if s is not None] if len(listed) == n and all(s is not None for s in sizes) else None


def _conv(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        x, w = c.shape(0), c.shape(1)
        stride, padding, dilation = (each(c, c.attrs.get(k), n) for k in ("stride", "padding", "dilation"))
        if x is None or w is None or stride is None or padding is None or dilation is None:
            return None
        xs, ws = x.tail(n + 2), w.tail(n + 2)
        if xs is None or ws is None:
            return None
        axes = zip(xs[1:-1], ws[1:-1], stride, padding, dilation)
        return Shape(None, (xs[0], *(conv_size(*a) for a in axes), ws[0]))

    return rule


def indexing() -> Iterator[Op]:
    yield row("take", "gather", "a: A, indices: A, axis=None", "Gather", r.gathered_take)
    yield row("take_along_axis", "gather", "a: A, indices: A, axis=-1", "GatherAxis", r.take_along)
    yield row("put_along_axis", "scatter", "a: A, indices: A, values: A, axis=None", "ScatterAxis")


def creation() -> Iterator[Op]:
    f32 = r.constant_dtype("float32")
    yield row("array", "create", "val: A, dtype=None", "", r.same, r.dtype_attr(r.same_dtype))
    yield row("zeros", "create", "shape, dtype=None", "Broadcast Full", r.created, r.dtype_attr(f32))
    yield row("ones", "create", "shape, dtype=None", "Broadcast Full", r.created, r.dtype_attr(f32))
    yield row("full", "create", "shape, vals: A, dtype=None", "Broadcast Full", r.created, r.dtype_attr(r.same_dtype))
    yield row("zeros_like", "create", "a: A, dtype=None", "Broadcast Full", r.same, r.dtype_attr(r.same_dtype))
    yield row("ones_like", "create", "a: A, dtype=None", "Broadcast Full", r.same, r.dtype_attr(r.same_dtype))
    yield row(
        "arange",
        "create",
        "start, stop=None, step=None, dtype=None",
        "Arange",
        _arange,
        r.dtype_attr(_arange_dtype),
        adjust=_adjust_arange,
    )
    yield row(
        "linspace",
        "create",
        "start, stop, num=50, endpoint=True, dtype=None",
        "",
        lambda c: _vector(c, "num"),
        r.dtype_attr(f32),
    )
    yield row("eye", "create", "n, m=None, k=0, dtype=None", "", _eye, r.dtype_attr(f32))
    yield row("identity", "create", "n, dtype=None", "", _eye, r.dtype_attr(f32))
    yield row("tri", "create", "n, m=None, k=0, dtype=None", "", _eye, r.dtype_attr(f32))


def _adjust_arange(attrs: dict[str, Any], given: frozenset[str]) -> None:
    """arange(stop) is arange(0, stop, 1)."""
    if attrs["stop"] is None:
        attrs["start"], attrs["stop"] = 0, attrs["start"]
    if attrs["step"] is None:
        attrs["step"] = 1


def _arange(c: Call) -> Shape | None:
    start, stop, step = (c.size(c.attrs.get(k)) for k in ("start", "stop", "step"))
    if start is None or stop is None or step is None:
        return None
    n = stop - start
    s = step.value()
    if s is None:
        return None
    number = n.value()
    if number is not None and s:
        return Shape.of(max(0, -(-number // s)))
    return Shape(None, (n if s == 1 else (n + (s - 1)) // s,)) if s > 0 else None


def _arange_dtype(c: Call) -> DType:
    values = [c.attrs.get(k) for k in ("start", "stop", "step")]
    if any(isinstance(v, float) for v in values):
        return DType({"float32"})
    return DType({"int32"}) if all(c.size(v) is not None for v in values) else DType()


def _vector(c: Call, name: str) -> Shape | None:
    n = c.size(c.attrs.get(name))
    return None if n is None else Shape(None, (n,))


def _eye(c: Call) -> Shape | None:
    n = c.size(c.attrs.get("n"))
    m = n if c.attrs.get("m") is None else c.size(c.attrs.get("m"))
    return None if n is None or m is None else Shape(None, (n, m))


def fast() -> Iterator[Op]:
    m = "mlx.core.fast"
    yield row("rms_norm", "fast", "x: A, weight: A = None, eps=1e-5", "RMSNorm", dtype=r.promoted, module=m)
    yield row(
        "layer_norm",
        "fast",
        "x: A, weight: A = None, bias: A = None, eps=1e-5",
        "LayerNorm",
        dtype=_layer_norm,
        module=m,
    )
    yield row(
        "rope", "fast", "a: A, dims, *, traditional=False, base=None, scale=1.0, offset=0, freqs=None", "RoPE", module=m
    )
    yield row(
        "scaled_dot_product_attention",
        "fast",
        "q: A, k: A, v: A, *, scale, mask: A = None, sinks: A = None, force_fused=False",
        "ScaledDotProductAttention",
        _attention,
        _attention_dtype,
        module=m,
    )


def _layer_norm(c: Call) -> DType:
    return r.promoted(_without_none(c)) if c.operand("weight") is not None else c.dtype(0).settle()


def _without_none(c: Call) -> Call:
    kept = tuple(v for v in c.values if v is not None and v.kind != "none")
    return Call(c.op, kept, c.attrs, c.size, c.sizes, c.dtype_value)


def _attention(c: Call) -> Shape | None:
    q, v = c.shape(0), c.shape(2)
    width = None if v is None else v.axis(-1)
    return None if q is None or width is None else q.replace(-1, (width,))


def _attention_dtype(c: Call) -> DType:
    return (c.dtype(0) | c.dtype(1) | c.dtype(2)).settle()


def random() -> Iterator[Op]:
    m = "mlx.core.random"
    f32 = r.constant_dtype("float32")
    yield row(
        "normal",
        "random",
        "shape=(), dtype=None, loc: A = None, scale: A = None, key: A = None",
        "",
        r.created,
        r.dtype_attr(f32),
        module=m,
    )
    yield row(
        "uniform",
        "random",
        "low: A = 0, high: A = 1, shape=(), dtype=None, key: A = None",
        "",
        r.created,
        r.dtype_attr(f32),
        module=m,
    )


def table() -> Iterator[Op]:
    for part in (unary, binary, reductions, views, products, indexing, creation, fast, random):
        yield from part()


__all__ = ["SCALAR", "row", "table"]
