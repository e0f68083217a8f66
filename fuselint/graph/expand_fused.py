"""The ops of mlx.core.fast, and layers of mlx.nn: one kernel where MLX has one, else the steps that it stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fuselint.graph import tape_views as v
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.expand_views import arange, take, triangle
from fuselint.graph.gates import Gates
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import ACTIVATION, Array, Scalar, Tracer
from fuselint.graph.tape_views import ONE, ZERO, known

# -- norms -------------------------------------------------------------------------------------------------------------


def _row_mean(t: Tracer, a: Array) -> Array:
    """Of a float32 array, over its last axis."""
    kept = None if a.shape is None else a.shape.replace(-1, (ONE,))
    total = t.reduce("sum", a, kept)
    count = t.inverse_count(a, kept)
    return t.binary("Multiply", total, count if isinstance(count, Array) else t.constant(count.value, a.dtype))


def rms_norm(t: Tracer, gates: Gates, x: Array, weight: Array | None) -> Array:
    dtype = x.dtype if weight is None else t.promote(x.dtype, weight.dtype)
    passed = t.constant(1, dtype) if weight is None else t.astype(weight, dtype)
    if gates.fuses_norms:
        return t.make("RMSNorm", (t.astype(x, dtype), passed), x.shape, dtype, t.arguments)
    wide = t.astype(x, "float32")
    power = t.binary("Add", _row_mean(t, t.unary("Square", wide)), t.constant("eps", "float32"))
    out = t.astype(t.binary("Multiply", wide, t.unary("Sqrt", power, key="rsqrt")), dtype)
    return out if weight is None else t.binary("Multiply", out, passed)


def layer_norm(t: Tracer, gates: Gates, x: Array, weight: Array | None, bias: Array | None) -> Array:
    dtype = x.dtype
    if weight is not None:
        dtype = t.promote(dtype, weight.dtype)
        dtype = dtype if bias is None else t.promote(dtype, bias.dtype)
    scale = t.constant(1, dtype) if weight is None else t.astype(weight, dtype)
    shift = t.constant(0, dtype) if bias is None else t.astype(bias, dtype)
    if gates.fuses_norms:
        return t.make("LayerNorm", (t.astype(x, dtype), scale, shift), x.shape, dtype, t.arguments)
    wide = t.astype(x, "float32")
    centred = t.binary("Subtract", wide, _row_mean(t, wide))
    power = t.binary("Add", _row_mean(t, t.unary("Square", centred)), t.constant("eps", "float32"))
    out = t.astype(t.binary("Multiply", centred, t.unary("Sqrt", power, key="rsqrt")), dtype)
    if weight is not None:
        out = t.binary("Multiply", out, scale)
    return out if bias is None else t.binary("Add", out, shift)


def _rms_norm(w: Applied) -> Result:
    return rms_norm(w.t, w.gates, w.a, w.array("weight"))


def _layer_norm(w: Applied) -> Result:
    return layer_norm(w.t, w.gates, w.a, w.array("weight"), w.array("bias"))


# -- rotary positions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotation:
    dims: Expr
    traditional: bool
    offset: Array
    freqs: Array | None


def rope(t: Tracer, gates: Gates, x: Array, r: Rotation) -> Array | None:
    freqs = None if r.freqs is None else t.astype(r.freqs, "float32")
    if gates.fuses_rope:
        rest = [] if freqs is None else [freqs]
        return t.make("RoPE", (x, r.offset, *rest), x.shape, x.dtype, t.arguments)
    dims = known(x)
    if dims is None or len(dims) < 3:
        return None
    whole = x
    if len(dims) == 3:
        x = v.expand_dims(t, x, [1])
    elif len(dims) > 4:
        x = v.flatten(t, x, 1, len(dims) - 3)
    turned = _turned(t, x, replace(r, freqs=freqs))
    return v.reshape(t, turned, whole.shape)


def _turned(t: Tracer, x: Array, r: Rotation) -> Array:
    sizes = known(x) or ()
    length, width, half = sizes[2], sizes[3], r.dims // 2
    offset = r.offset if r.offset.shape is None or r.offset.shape.rank == 0 else v.expand_dims(t, r.offset, [-1, -2])
    places = t.binary("Add", arange(t, length, "float32", length), offset)
    places = t.binary("Multiply", places, t.constant("scale", "float32"))
    theta = t.binary("Multiply", v.expand_dims(t, places, [-1]), _frequencies(t, r.freqs, half))
    cosines, sines = (t.astype(t.unary(f, theta), x.dtype) for f in ("Cos", "Sin"))

    def part(start: Expr, step: int, size: Expr) -> Array:
        return v.cut(t, x, [*v.whole(sizes)[:-1], (start, step, size)])

    if r.traditional:
        x1, x2 = part(ZERO, 2, half), part(ONE, 2, half)
    else:
        x1, x2 = part(ZERO, 1, half), part(half, 1, half)
    low = t.binary("Subtract", t.binary("Multiply", x1, cosines), t.binary("Multiply", x2, sines))
    high = t.binary("Add", t.binary("Multiply", x1, sines), t.binary("Multiply", x2, cosines))
    rest = [part(r.dims, 1, width - r.dims)] if width != r.dims else []
    if not r.traditional:
        return v.concatenate(t, [low, high, *rest], -1)
    pairs = v.concatenate(t, [v.expand_dims(t, p, [-1]) for p in (low, high)], -1)
    out = v.reshape(t, pairs, Shape(None, (*sizes[:3], r.dims)))
    return v.concatenate(t, [out, *rest], -1)


def _frequencies(t: Tracer, freqs: Array | None, half: Expr) -> Array:
    if freqs is not None:
        return t.binary("Divide", t.constant(1.0, "float32"), freqs)
    steps = t.binary("Multiply", arange(t, half, "float32", ("-", str(half))), t.constant("log base", "float32"))
    return t.unary("Exp", steps)


def _offset(w: Applied, value: Any) -> Array:
    """A Python number is an array of its own; an array is read."""
    given = w.trace.operand(value) if value is not None and not isinstance(value, (int, tuple)) else None
    return given if isinstance(given, Array) else w.t.constant(("offset", str(value)), "int32")


def _rope(w: Applied) -> Result | None:
    dims = w.size(w.attr("dims"))
    if dims is None:
        return None
    turn = Rotation(dims, w.attr("traditional") is True, _offset(w, w.attr("offset")), w.array("freqs"))
    return rope(w.t, w.gates, w.a, turn)


# -- attention ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """mask: an array, "causal", or None."""

    q: Array
    k: Array
    v: Array
    mask: Array | str | None = None
    sinks: Array | None = None


def attention(t: Tracer, gates: Gates, x: Attention, shape: Shape | None = None, *, forced: bool = False) -> Array:
    """shape: of the result, where its operands don't say it."""
    dtype = t.promote(x.q.dtype, x.k.dtype, x.v.dtype)
    q, k, values = (t.astype(a, dtype) for a in (x.q, x.k, x.v))
    mask = x.mask
    if isinstance(mask, Array):
        mask = mask if mask.dtype == "bool_" else t.astype(mask, dtype)
        size = None if k.shape is None else k.shape.axis(-2)
        scores = None if q.shape is None or size is None else q.shape.replace(-1, (size,))
        mask = mask if scores is None else v.broadcast_to(t, mask, scores)
    sinks = None if x.sinks is None else t.astype(x.sinks, dtype)
    ready = Attention(q, k, values, mask, sinks)
    last = None if values.shape is None else values.shape.axis(-1)
    made = None if q.shape is None or last is None else q.shape.replace(-1, (last,))
    stated = "" if dtype == ACTIVATION else dtype
    if gates.attention(q.shape, k.shape, values.shape, forced, stated, isinstance(mask, Array)):
        inputs = [q, k, values, *([mask] if isinstance(mask, Array) else []), *([] if sinks is None else [sinks])]
        return t.make("ScaledDotProductAttention", inputs, made or shape, dtype, t.arguments)
    return steps(t, ready, made or shape)


def steps(t: Tracer, x: Attention, shape: Shape | None) -> Array:
    """What attention is made of where it isn't one kernel."""
    q, k, values = t.binary("Multiply", Scalar("scale"), x.q), x.k, x.v
    heads, kept = (None if a.shape is None else a.shape.axis(-3) for a in (x.q, x.k))
    grouped = heads is not None and kept is not None and heads != kept and known(x.q) is not None
    groups = (kept or ONE, (heads or ONE) // (kept or ONE))
    if grouped:
        q = v.unflatten(t, q, 1, groups)
        k, values = v.expand_dims(t, k, [2]), v.expand_dims(t, values, [2])
    scores = v.matmul(t, q, v.swapaxes(t, k, -1, -2))
    if x.mask is not None:
        scores = _masked(t, scores, _mask(t, x, groups if grouped else None))
    if x.sinks is not None:
        scores = _with_sinks(t, scores, x.sinks, groups if grouped else None)
    weights = t.make("Softmax", (scores,), scores.shape, scores.dtype, True)
    sizes = known(weights)
    if x.sinks is not None and sizes is not None:
        weights = v.cut(t, weights, [*v.whole(sizes)[:-1], (ONE, 1, sizes[-1] - 1)])
    out = v.matmul(t, weights, values, shape)
    return v.flatten(t, out, 1, 2) if grouped else out


def _mask(t: Tracer, x: Attention, groups: tuple[Expr, Expr] | None) -> Array:
    mask = x.mask
    if not isinstance(mask, Array):
        rows, columns = (None if a.shape is None else a.shape.axis(-2) for a in (x.q, x.k))
        return triangle(t, rows or ONE, columns or ONE, "causal")
    dims = known(mask)
    if groups is None or dims is None or len(dims) < 3:
        return mask
    return v.expand_dims(t, mask, [-3]) if dims[-3] == 1 else v.unflatten(t, mask, -3, groups)


def _masked(t: Tracer, scores: Array, mask: Array) -> Array:
    if mask.dtype == "bool_":
        return t.select(mask, scores, t.constant("least", scores.dtype))
    return t.binary("Add", scores, mask)


def _with_sinks(t: Tracer, scores: Array, sinks: Array, groups: tuple[Expr, Expr] | None) -> Array:
    sinks = v.expand_dims(t, sinks, [0, 2, 3])
    if groups is not None:
        sinks = v.unflatten(t, sinks, 1, groups)
    one = None if scores.shape is None else scores.shape.replace(-1, (ONE,))
    return v.concatenate(t, [v.broadcast_to(t, sinks, one), scores], -1)


def _attention(w: Applied) -> Result:
    q, k, values = (w.t.array(x) for x in w.given[:3])
    at = w.op.position("mask")
    node = w.node.inputs[at] if at is not None and at < len(w.node.inputs) else None
    mask = "causal" if node is not None and w.trace.facts.kind(node) == "str" else w.array("mask")
    x = Attention(q, k, values, mask, w.array("sinks"))
    return attention(w.t, w.gates, x, w.shape, forced=w.attr("force_fused") is True)


# -- layers ------------------------------------------------------------------------------------------------------------


def _linear(w: Applied) -> Result | None:
    t, x = w.t, w.a
    rows, columns = w.setting_size("output_dims"), w.setting_size("input_dims")
    if rows is None or columns is None:
        return None
    turned = v.swapaxes(t, w.weight("weight", rows, columns), 0, 1)
    if w.setting("bias") is False:
        return v.matmul(t, x, turned, w.shape)
    return v.addmm(t, w.weight("bias", rows), x, turned, w.shape)


def _quantised_linear(w: Applied) -> Result | None:
    rows, columns = w.setting_size("output_dims"), w.setting_size("input_dims")
    out = _quantised_matmul(w, rows, columns)
    if out is None or rows is None or w.setting("bias") is False:
        return out
    return w.t.binary("Add", out, w.weight("bias", rows))


def _tied_quantised(w: Applied) -> Result | None:
    return _quantised_matmul(w, w.setting_size("num_embeddings"), w.setting_size("dims"))


def _quantised_matmul(w: Applied, rows: Expr | None, columns: Expr | None) -> Array | None:
    given = packed(w, rows, columns)
    if given is None:
        return None
    t, x = w.t, w.a
    weight, *scales = given
    dtype = t.promote(x.dtype, scales[0].dtype) if scales[0].dtype != "uint8" else x.dtype
    if dtype != x.dtype or scales[0].dtype not in (dtype, "uint8"):
        scales = [t.astype(s, dtype) for s in scales]
    return t.make("QuantizedMatmul", (t.astype(x, dtype), weight, *scales), w.shape, dtype, t.arguments)


def packed(w: Applied, rows: Expr | None, columns: Expr | None) -> list[Array] | None:
    """A quantised layer's weight, scales, and biases where the mode has them."""
    mode = w.setting("mode")
    size, bits = ({"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}).get(mode, (None, None))
    size = w.setting("group_size") if isinstance(w.setting("group_size"), int) else size
    bits = w.setting("bits") if isinstance(w.setting("bits"), int) else bits
    if rows is None or columns is None or size is None or bits is None:
        return None
    weight = w.weight("weight", rows, columns * bits // 32, dtype="uint32")
    if mode != "affine":
        return [weight, w.weight("scales", rows, columns // size, dtype="uint8")]
    return [weight, *(w.weight(n, rows, columns // size) for n in ("scales", "biases"))]


def _embedding(w: Applied) -> Result | None:
    rows, columns = w.setting_size("num_embeddings"), w.setting_size("dims")
    if rows is None or columns is None:
        return None
    if w.a.dtype == ACTIVATION and not w.a.primitive:
        w.a.dtype = "int32"  # of tokens, of which nothing says it
    found = take(w.t, w.weight("weight", rows, columns), w.a, 0)
    return found if found is not None else w.make("Gather", [w.weight("weight", rows, columns), w.a])


def _tied_linear(w: Applied) -> Result | None:
    rows, columns = w.setting_size("num_embeddings"), w.setting_size("dims")
    if rows is None or columns is None:
        return None
    return v.matmul(w.t, w.a, v.swapaxes(w.t, w.weight("weight", rows, columns), 0, 1), w.shape)


def _quantised_embedding(w: Applied) -> Result | None:
    """On the GPU: three gathers, and one kernel that unpacks."""
    parts = packed(w, w.setting_size("num_embeddings"), w.setting_size("dims"))
    if parts is None or not w.gates.fuses_norms:
        return None
    rows = [found for p in parts if (found := take(w.t, p, w.a, 0)) is not None]
    return w.make("Dequantize", rows) if len(rows) == len(parts) else None


def _rms_layer(w: Applied) -> Result:
    return rms_norm(w.t, w.gates, w.a, w.weight("weight", _normed_size(w)))


def _layer_layer(w: Applied) -> Result:
    size, affine = _normed_size(w), w.setting("affine") is not False
    weight = w.weight("weight", size) if affine else None
    bias = w.weight("bias", size) if affine and w.setting("bias") is not False else None
    return layer_norm(w.t, w.gates, w.a, weight, bias)


def _normed_size(w: Applied) -> Expr | None:
    """The constructor's `dims`, which is the length of the last axis."""
    return w.setting_size("dims") or (w.shape.axis(-1) if w.shape is not None else None)


def _rope_layer(w: Applied) -> Result | None:
    dims = w.setting_size("dims")
    if dims is None:
        return None
    offset = w.given[1] if len(w.given) > 1 else None
    place = offset if isinstance(offset, Array) else w.t.constant(("offset", str(offset)), "int32")
    return rope(w.t, w.gates, w.a, Rotation(dims, w.setting("traditional") is True, place, None))


def _dropout(w: Applied) -> Result:
    """Nothing, outside training."""
    return w.a


def _glu(w: Applied) -> Result | None:
    t, a = w.t, w.a
    axis = w.setting("axis") if w.op.kind == "layer" else w.attr("axis")
    size = a.shape.axis(axis) if a.shape is not None and isinstance(axis, int) else None
    if size is None:
        return None
    left, right = v.split(t, a, [size // 2], axis)
    return t.binary("Multiply", left, t.unary("Sigmoid", right, floating=True))


EXPANDED: dict[str, Expand] = {
    "fast.rms_norm": _rms_norm, "fast.layer_norm": _layer_norm, "fast.rope": _rope,
    "fast.scaled_dot_product_attention": _attention,
    "nn.Linear": _linear, "nn.QuantizedLinear": _quantised_linear, "nn.Embedding": _embedding,
    "nn.Embedding.as_linear": _tied_linear, "nn.QuantizedEmbedding": _quantised_embedding,
    "nn.QuantizedEmbedding.as_linear": _tied_quantised, "nn.RMSNorm": _rms_layer, "nn.LayerNorm": _layer_layer,
    "nn.RoPE": _rope_layer, "nn.Dropout": _dropout, "nn.Dropout2d": _dropout, "nn.Dropout3d": _dropout,
    "nn.Identity": _dropout, "nn.glu": _glu, "nn.GLU": _glu,
}  # fmt: skip
