"""The ops of mlx.core.fast, mlx.core.linalg, mlx.core.random and mlx.core.fft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from fuselint.graph import ops_create as create
from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, Op, PrimitiveRule, ShapeRule
from fuselint.graph.ops_row import row
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.symbols import Expr

# -- mlx.core.fast ----------------------------------------------------------------------------------------------------

RMS = ("Square", "Reduce", "Multiply", "Add", "Sqrt", "Multiply")
LAYER = ("Reduce", "Multiply", "Subtract", "Square", "Reduce", "Multiply", "Add", "Sqrt", "Multiply")


def fast() -> Iterator[Op]:
    op = partial(row, module="mlx.core.fast")
    yield op("rms_norm", "fast", "x: A, weight: A, eps", "RMSNorm", dtype=r.promoted, recorded=_rms_norm)
    yield op(
        "layer_norm",
        "fast",
        "x: A, weight: A, bias: A, eps",
        "LayerNorm",
        dtype=_layer_norm_dtype,
        recorded=_layer_norm,
    )
    rope = "a: A, dims, *, traditional, base, scale, offset, freqs: A = None"
    yield op("rope", "fast", rope, "RoPE", recorded=_rope)
    yield op(
        "scaled_dot_product_attention",
        "fast",
        "q: A, k: A, v: A, *, scale, mask: A = None, sinks: A = None, force_fused=False",
        "ScaledDotProductAttention",
        attention,
        attention_dtype,
        recorded=_attention,
    )
    yield op(
        "cross_entropy",
        "fast",
        "logits: A, targets: A",
        "CrossEntropy",
        r.like(1),
        r.constant_dtype("float32"),
        recorded=_cross_entropy,
    )
    delta = "q: A, k: A, v: A, gamma: A, beta: A, initial_state: A = None, mask: A = None"
    yield op("gated_delta_update", "fast", delta, "GatedDeltaUpdate", r.unknown, lambda c: DType(), result="arrays")


def _rms_norm(c: Call) -> tuple[str, ...]:
    return RMS if c.operand("weight") is None else (*RMS, "Multiply")


def _layer_norm_dtype(c: Call) -> DType:
    """Without a weight the bias is cast to x's dtype."""
    return r.promoted(c) if c.operand("weight") is not None else c.dtype(0).settle()


def _layer_norm(c: Call) -> tuple[str, ...]:
    weight = ("Multiply",) if c.operand("weight") is not None else ()
    return (*LAYER, *weight, *(("Add",) if c.operand("bias") is not None else ()))


def _rope(c: Call) -> tuple[str, ...]:
    freqs = c.operand("freqs") is not None
    return rope_primitives(c, lambda name: freqs if name == "freqs" else c.attrs.get(name))


def rope_primitives(c: Call, setting: Callable[[str], Any]) -> tuple[str, ...]:
    """Positions times frequencies, sines and cosines, two halves turned and joined; the rest of the axis passes by."""
    waves = ("Divide",) if setting("freqs") else ("Arange", "Multiply", "Exp")
    turn = ("Multiply", "Cos", "Multiply", "Slice", "Sin", "Multiply", "Subtract")
    shape, dims = c.shape(0), c.size(setting("dims"))
    size = None if shape is None else shape.axis(-1)
    partial_turn = size is not None and dims is not None and size != dims
    start = ("Slice", "Arange", "Add", "Multiply", "ExpandDims", *waves, *turn)
    if setting("traditional") is True:
        joined = ("ExpandDims", "Multiply", "Multiply", "Add", "ExpandDims", "Concatenate", "Reshape")
        return (*start, *joined, "Slice", "Concatenate") if partial_turn else (*start, *joined)
    turned = (*start, "Multiply", "Multiply", "Add")
    return (*turned, "Slice", "Concatenate") if partial_turn else (*turned, "Concatenate")


def attention(c: Call) -> Shape | None:
    """(B, heads, L, v's head dimension)."""
    q, v = c.shape(0), c.shape(2)
    width = None if v is None else v.axis(-1)
    return None if q is None or width is None else q.replace(-1, (width,))


def attention_dtype(c: Call) -> DType:
    return (c.dtype(0) | c.dtype(1) | c.dtype(2)).settle()


def _attention(c: Call) -> tuple[str, ...]:
    q, k, mask = c.shape(0), c.shape(1), c.operand("mask")
    heads = None if q is None else q.axis(-3)
    grouped = heads is not None and k is not None and heads != k.axis(-3)
    before = ("Unflatten", "ExpandDims") if grouped else ()
    after = ("Flatten",) if grouped else ()
    made: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    if mask is not None and mask.kind == "str":
        made, masked = ("Arange", "ExpandDims", "Arange", "ExpandDims", "GreaterEqual"), ("Select",)
    elif mask is not None:
        split = ("Unflatten",) if grouped else ()
        masked = (*split, "Select" if mask.dtype.name == "bool_" else "Add")
    return (*made, "Multiply", *before, "Transpose", "Matmul", *masked, "Softmax", "Matmul", *after)


def _cross_entropy(c: Call) -> tuple[str, ...]:
    return ("ExpandDims", "GatherAxis", "Squeeze", "LogSumExp", "Squeeze", "Subtract")


# -- mlx.core.linalg --------------------------------------------------------------------------------------------------


def linalg() -> Iterator[Op]:
    op = partial(row, module="mlx.core.linalg")
    norm = "a: A, ord=None, axis=None, keepdims=False"
    root = "Square Reduce Squeeze Sqrt"
    yield op("norm", "composite", norm, root, r.reduced, _norm_dtype, aliases="mlx.core.matrix_norm", recorded=_norm)
    f32 = r.constant_dtype("float32")
    yield op("qr", "linalg", "a: A", "QRF", _qr, r.both(f32), result="arrays")
    yield op("svd", "linalg", "a: A, compute_uv=True", "SVD", _svd, lambda c: (f32(c),) * 3, result="arrays")
    yield op("inv", "linalg", "a: A", "Inverse", r.same, f32)
    yield op("tri_inv", "linalg", "a: A, upper=False", "Inverse", r.same, f32)
    yield op("cholesky", "linalg", "a: A, upper=False", "Cholesky", r.same, f32)
    yield op("cholesky_inv", "linalg", "a: A, upper=False", "Inverse Transpose Matmul", r.same, f32)
    yield op("pinv", "linalg", "a: A", "SVD", r.matrix_transposed, f32)
    yield op("cross", "composite", "a: A, b: A, axis=-1", CROSS, r.broadcasted, r.promoted)
    yield op("eigvals", "linalg", "a: A", "Eig", _vector_of, r.constant_dtype("complex64"))
    complex64 = r.constant_dtype("complex64")
    yield op("eig", "linalg", "a: A", "Eig", _eig, r.both(complex64), result="arrays")
    yield op("eigvalsh", "linalg", "a: A, UPLO='L'", "Eigh", _vector_of, f32)
    yield op("eigh", "linalg", "a: A, UPLO='L'", "Eigh", _eig, r.both(f32), result="arrays")
    yield op("lu", "linalg", "a: A", "LUF", _lu, lambda c: (DType({"uint32"}), f32(c), f32(c)), result="arrays")
    yield op("lu_factor", "linalg", "a: A", "LUF", _lu_factor, lambda c: (f32(c), DType({"uint32"})), result="arrays")
    yield op("solve", "linalg", "a: A, b: A", "LUF", r.like(1), f32)
    yield op("solve_triangular", "linalg", "a: A, b: A, *, upper=False", "Inverse Matmul", r.like(1), f32)
    yield op("det", "linalg", "a: A", "LUF", _batch, f32)
    yield op("slogdet", "linalg", "a: A", "LUF", lambda c: (_batch(c),) * 2, r.both(f32), result="arrays")


CROSS = "Split Multiply Multiply Subtract Multiply Multiply Subtract Multiply Multiply Subtract Concatenate"


INFINITY = float("inf")


def _norm_dtype(c: Call) -> DType:
    return c.dtype(0).floated()


def _norm(c: Call) -> tuple[str, ...]:
    last = () if c.flag("keepdims") is True else ("Squeeze",)
    order = c.attrs.get("ord")
    if order in (None, "fro", 2):
        flat = ("Flatten",) if c.attrs.get("axis") is None and order is None and c.rank(0) != 1 else ()
        return (*flat, "Square", "Reduce", *last, "Sqrt")
    axis = c.attrs.get("axis")
    if order in (1, -1, INFINITY, -INFINITY):
        matrix = len(axis) == 2 if isinstance(axis, tuple) else axis is None and c.rank(0) == 2
        return ("Abs", *("Reduce", *last) * (2 if matrix else 1))
    return ("NotEqual", "Reduce", *last) if order == 0 else ("Abs", "Power", "Reduce", *last, "Power")


def _matrix(c: Call) -> tuple[tuple[str | None, tuple[Expr, ...]], Expr, Expr] | None:
    shape = c.shape(0)
    tail, front = (None, None) if shape is None else (shape.tail(2), shape.front(2))
    return None if tail is None or front is None else (front, tail[0], tail[1])


def _smaller(a: Expr, b: Expr) -> Expr | None:
    if a == b:
        return a
    x, y = a.value(), b.value()
    return None if x is None or y is None else Expr.of(min(x, y))


def _qr(c: Call) -> tuple[Shape | None, ...]:
    parts = _matrix(c)
    k = None if parts is None else _smaller(parts[1], parts[2])
    if parts is None or k is None:
        return (None, None)
    (lead, dims), m, n = parts
    return (Shape(lead, (*dims, m, k)), Shape(lead, (*dims, k, n)))


def _svd(c: Call) -> tuple[Shape | None, ...] | Shape | None:
    parts = _matrix(c)
    k = None if parts is None else _smaller(parts[1], parts[2])
    if parts is None or k is None:
        return None
    (lead, dims), m, n = parts
    return (Shape(lead, (*dims, m, m)), Shape(lead, (*dims, k)), Shape(lead, (*dims, n, n)))


def _eig(c: Call) -> tuple[Shape | None, ...]:
    return (_vector_of(c), c.shape(0))


def _vector_of(c: Call) -> Shape | None:
    shape = c.shape(0)
    front = None if shape is None else shape.front(1)
    return None if front is None else Shape(*front)


def _lu(c: Call) -> tuple[Shape | None, ...]:
    """Row indices, and two triangles."""
    parts = _matrix(c)
    k = None if parts is None else _smaller(parts[1], parts[2])
    if parts is None or k is None:
        return (None, None, None)
    (lead, dims), m, n = parts
    return (Shape(lead, (*dims, m)), Shape(lead, (*dims, m, k)), Shape(lead, (*dims, k, n)))


def _lu_factor(c: Call) -> tuple[Shape | None, ...]:
    return (c.shape(0), _vector_of(c))


def _batch(c: Call) -> Shape | None:
    shape = c.shape(0)
    front = None if shape is None else shape.front(2)
    return None if front is None else Shape(*front)


# -- mlx.core.random --------------------------------------------------------------------------------------------------


UNIFORM = ("RandomBits", "Divide", "Minimum", "Multiply", "Add")
CHOICE = "Reduce Squeeze Equal Equal LogicalOr Equal Subtract Exp Select Scan"


def _drawn(*primitives: str) -> PrimitiveRule:
    """Without a key, the global one is split first."""
    return lambda c: (*_new_key(c), *primitives)


def _new_key(c: Call) -> tuple[str, ...]:
    return ("RandomBits", "Split", "Reshape") if c.operand("key") is None else ()


def random() -> Iterator[Op]:
    op = partial(row, module="mlx.core.random")
    f32 = r.dtype_attr(r.constant_dtype("float32"))
    shaped, key = "shape=(), dtype=None", "key: A = None"
    new, bits = create.created, "RandomBits"
    range_of = ("Subtract", *UNIFORM)
    yield op("normal", "random", f"{shaped}, loc: A = None, scale: A = None, {key}", bits, new, f32, recorded=_normal)
    uniform = f"low: A = 0, high: A = 1, {shaped}, {key}"
    yield op("uniform", "random", uniform, bits, new, f32, recorded=_drawn(*range_of))
    gumbel = ("Log", "Negative", "Log", "Negative")
    yield op("gumbel", "random", f"{shaped}, {key}", bits, new, f32, recorded=_drawn(*range_of, *gumbel))
    laplace = ("Sign", "Abs", "Multiply", "Log1p", "Multiply")
    signature = f"{shaped}, loc=0.0, scale=1.0, {key}"
    yield op("laplace", "random", signature, bits, new, f32, recorded=_drawn(*range_of, *laplace))
    integers = r.dtype_attr(r.constant_dtype("int32"))
    whole = ("Floor", "Subtract", "Minimum", "Maximum")
    yield op(
        "randint",
        "random",
        f"low: A, high: A, {shaped}, {key}",
        bits,
        new,
        integers,
        recorded=_drawn(*range_of, *whole),
    )
    truncated = f"lower: A, upper: A, shape=None, dtype=None, {key}"
    limits = ("Divide", "Erf", "Divide", "Erf")
    inside = _drawn(*limits, *range_of, "ErfInv", "Multiply", "Minimum", "Maximum")
    yield op("truncated_normal", "random", truncated, bits, _given_or_broadcast, f32, recorded=inside)
    coin = _drawn("RandomBits", "Multiply", "Less")
    yield op(
        "bernoulli", "random", f"p: A = 0.5, shape=None, {key}", bits, _given_or_broadcast, r.BOOLEAN, recorded=coin
    )
    drawn = f"logits: A, axis=-1, shape=None, num_samples=None, {key}"
    yield op("categorical", "random", drawn, bits, _categorical, r.UINT32, recorded=_chosen)
    several = f"mean: A, cov: A, {shaped}, {key}"
    yield op("multivariate_normal", "random", several, "RandomBits SVD Matmul", r.unknown, f32)
    permuted = f"x: A, axis=0, {key}"
    yield op(
        "permutation",
        "random",
        permuted,
        "RandomBits ArgSort Gather",
        _permuted,
        _permuted_dtype,
        recorded=_permutation,
    )
    yield op("key", "random", "seed", "", lambda c: Shape.of(2), r.UINT32)
    yield op("split", "random", "key: A, num=2", "RandomBits", _keys, r.UINT32)


def _normal(c: Call) -> tuple[str, ...]:
    scaled = ("Multiply",) if c.operand("scale") is not None else ()
    moved = ("Add",) if c.operand("loc") is not None else ()
    return (*_new_key(c), *scaled, "Subtract", *UNIFORM, "ErfInv", "Multiply", *moved)


def _chosen(c: Call) -> tuple[str, ...]:
    """Vectors take the greatest of the noisy logits; else the sums of probabilities are searched."""
    if c.rank(0) == 1 and c.attrs.get("shape") is None and c.attrs.get("num_samples") is None:
        noise = ("Log", "Negative", "Log", "Negative", "Add", "ArgReduce", "Squeeze")
        return (*_new_key(c), "Subtract", *UNIFORM, *noise)
    rows = ("Reshape",) if c.rank(0) != 1 else ()
    several = ("ExpandDims",) if c.attrs.get("num_samples") is not None else ()
    found = ("Reduce", "Squeeze", "Multiply", "SearchSorted", "Subtract")
    return (*several, *rows, *CHOICE.split(), *_new_key(c), "Subtract", *UNIFORM, *found)


def _permutation(c: Call) -> tuple[str, ...]:
    order = (*_new_key(c), "RandomBits", "ArgSort")
    value = c.values[0]
    if value is not None and value.kind == "scalar":
        return order
    return (*order, "Gather", "Squeeze") if c.integer("axis") == 0 else (*order, "Gather", "Transpose", "Squeeze")


def _given_or_broadcast(c: Call) -> Shape | None:
    if c.attrs.get("shape") is not None:
        return create.created(c)
    key = c.op.position("key")
    given = tuple(v for i, v in enumerate(c.values) if i != key)
    return r.broadcasted(replace(c, values=given)) if given else SCALAR


def _categorical(c: Call) -> Shape | None:
    if c.attrs.get("shape") is not None:
        return c.sizes(c.attrs["shape"])
    shape, axis = c.shape(0), c.integer("axis")
    rest = None if shape is None or axis is None else shape.replace(axis, ())
    if c.attrs.get("num_samples") is None or rest is None:
        return rest
    n = c.size(c.attrs["num_samples"])
    return None if n is None else Shape(rest.lead, (*rest.dims, n))


def _permuted(c: Call) -> Shape | None:
    value = c.values[0]
    if value is not None and value.kind == "scalar":
        return Shape.of(value.const) if isinstance(value.const, int) else None
    return c.shape(0)


def _permuted_dtype(c: Call) -> DType:
    d = c.dtype(0)
    return DType({"uint32"}) if d.weak else d


def _keys(c: Call) -> Shape | None:
    n = c.size(c.attrs.get("num"))
    return None if n is None else Shape(None, (n, Expr.of(2)))


# -- mlx.core.fft -----------------------------------------------------------------------------------------------------


def fft() -> Iterator[Op]:
    op = partial(row, module="mlx.core.fft")
    complex64, f32 = r.constant_dtype("complex64"), r.constant_dtype("float32")
    for suffix, extra in (("", "n=None, axis=-1"), ("2", "s=None, axes=(-2, -1)"), ("n", "s=None, axes=None")):
        signature = f"a: A, {extra}, norm='backward'"
        for name, what, dtype in (
            ("fft", "full", complex64),
            ("ifft", "full", complex64),
            ("rfft", "half", complex64),
            ("irfft", "double", f32),
        ):
            shape = _transformed(what)
            yield op(f"{name}{suffix}", "fft", signature, "FFT", shape, dtype, recorded=_transform)
    yield op("fftfreq", "fft", "n, d=1.0", "Arange Arange Concatenate Multiply", lambda c: create.vector(c, "n"), f32)
    yield op("rfftfreq", "fft", "n, d=1.0", "Arange Multiply", _half_vector, f32)
    yield op("fftshift", "fft", "a: A, axes=None", "Split Concatenate", recorded=_shifted)
    yield op("ifftshift", "fft", "a: A, axes=None", "Split Concatenate", recorded=_shifted)
    framed = "n_fft=2048, hop_length=None, win_length=None, window: A = None, center=True"
    yield op(
        "stft",
        "fft",
        f"x: A, {framed}, pad_mode='reflect', norm='backward', onesided=None",
        "FFT",
        r.unknown,
        complex64,
    )
    yield op(
        "istft", "fft", f"stft_matrix: A, {framed}, norm='backward', onesided=None, length=None", "FFT", r.unknown, f32
    )


def _transformed(what: str) -> ShapeRule:
    """Sizes given, else those of the axes; of a real transform, the last axis is halved or doubled."""

    def rule(c: Call) -> Shape | None:
        shape = c.shape(0)
        sizes = c.attrs.get("s", c.attrs.get("n"))
        axes = c.attrs.get("axes", c.attrs.get("axis"))
        if shape is None or (sizes is not None and "n" not in c.attrs):
            return None
        last = -1 if axes is None else axes[-1] if isinstance(axes, tuple) else axes
        size = c.size(sizes) if sizes is not None else shape.axis(last) if isinstance(last, int) else None
        if size is None:
            return None
        if what == "half":
            size = size // 2 + 1
        elif what == "double" and sizes is None:
            size = (size - 1) * 2
        return shape.replace(last, (size,))

    return rule


def _transform(c: Call) -> tuple[str, ...]:
    """A given size cuts or pads the axis first."""
    n, axis, shape = c.integer("n"), c.integer("axis"), c.shape(0)
    size = None if shape is None or axis is None else shape.axis(axis)
    old = None if size is None else size.value()
    if n is None or old is None or n == old:
        return ("FFT",)
    return ("Slice", "FFT") if n < old else ("Full", "SliceUpdate", "FFT")


def _half_vector(c: Call) -> Shape | None:
    n = c.size(c.attrs.get("n"))
    return None if n is None else Shape(None, (n // 2 + 1,))


def _shifted(c: Call) -> tuple[str, ...]:
    axes = c.attrs.get("axes")
    shape = c.shape(0)
    count = len(axes) if isinstance(axes, tuple) else 1 if axes is not None else (shape.rank or 1) if shape else 1
    return ("Split", "Concatenate") * count


def table() -> Iterator[Op]:
    for part in (fast, linalg, random, fft):
        yield from part()
