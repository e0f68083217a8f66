"""The functions and layers of mlx.nn.

A layer's op has the arguments of its call; those of its constructor are in the `new` node of `__init__`
(attrs["new"]), and `Call.setting` reads them. The dtype of a layer's weight is the symbol `<path>.weight.dtype`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from fuselint.graph import ops_products as pr
from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, DTypeRule, Op, PrimitiveRule, ShapeRule
from fuselint.graph.ops_modules import LAYER, RMS, attention_dtype, rope_primitives
from fuselint.graph.ops_reduce import softmax_dtype
from fuselint.graph.ops_row import row
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr

NN = "mlx.nn"

# -- functions --------------------------------------------------------------------------------------------------------

ACTIVATIONS = """
silu            | x: A                       | Sigmoid Multiply
gelu            | x: A                       | Divide Erf Add Multiply Divide
gelu_approx     | x: A                       | Multiply Power Multiply Add Multiply Tanh Add Multiply
gelu_fast_approx| x: A                       | Multiply Sigmoid Multiply
relu            | x: A                       | Maximum
relu2           | x: A                       | Maximum Square
relu6           | x: A                       | Maximum Minimum
leaky_relu      | x: A, negative_slope=0.01  | Multiply Maximum
softplus        | x: A                       | LogAddExp
log_sigmoid     | x: A                       | Negative LogAddExp Negative
softsign        | x: A                       | Abs Add Divide
softshrink      | x: A, lambd=0.5            | Abs Greater Sign Multiply Subtract Select
hard_shrink     | x: A, lambd=0.5            | Abs Greater Select
hard_tanh       | x: A, min_val=-1.0, max_val=1.0 | Maximum Minimum
hardswish       | x: A                       | Add Maximum Minimum Multiply Divide
mish            | x: A                       | LogAddExp Tanh Multiply
elu             | x: A, alpha=1.0            | Greater Exp Subtract Multiply Select
selu            | x: A                       | Greater Exp Subtract Multiply Select Multiply
celu            | x: A, alpha=1.0            | Maximum Minimum Divide Exp Subtract Multiply Add
prelu           | x: A, alpha: A             | Maximum Minimum Multiply Add
step            | x: A, threshold=0.0        | GreaterEqual Select
"""
"""Each is compiled by MLX itself, with shapeless=True."""


def functions() -> Iterator[Op]:
    op = partial(row, module=NN, compiled=True)
    for line in ACTIVATIONS.strip().split("\n"):
        name, signature, primitives = (part.strip() for part in line.split("|"))
        shape, dtype = (r.broadcasted, r.promoted) if name == "prelu" else (r.same, _activation_dtype(name))
        yield op(name, "activation", signature, primitives, shape, dtype)
    yield row("sigmoid", "activation", "x: A", "Sigmoid", r.same, r.floated, module=NN, compiled=True)
    yield row("tanh", "activation", "x: A", "Tanh", r.same, r.floated, module=NN)
    yield op("softmax", "activation", "x: A, axis=-1", "Softmax", r.same, softmax_dtype, recorded=_softmax)
    yield op("softmin", "activation", "x: A, axis=-1", "Negative Softmax", r.same, softmax_dtype, recorded=_softmin)
    parts = "Reduce Subtract LogSumExp Subtract"
    yield op("log_softmax", "activation", "x: A, axis=-1", parts, r.same, r.floated, recorded=_log_softmax)
    yield row("glu", "activation", "x: A, axis=-1", "Split Sigmoid Multiply", _halved, r.floated, module=NN)
    yield row(
        "MultiHeadAttention.create_additive_causal_mask",
        "composite",
        "N, dtype='float32'",
        "Arange ExpandDims ExpandDims Less AsType Multiply",
        _square,
        r.dtype_attr(r.constant_dtype("float32")),
        module=NN,
    )


def _activation_dtype(name: str) -> DTypeRule:
    if name == "step":
        return r.constant_dtype("int32")
    if name in ("relu", "relu2", "hard_shrink"):
        return _with("weak int")
    return r.floated


def _with(scalar: str) -> DTypeRule:
    """The dtype after an op with a Python number."""
    number = DType({scalar})
    return lambda c: (c.dtype(0) | number).settle()


def _softmax(c: Call) -> tuple[str, ...]:
    return ("Softmax",) if r.over_last(c) else ("Reduce", "Subtract", "Exp", "Reduce", "Divide")


def _softmin(c: Call) -> tuple[str, ...]:
    return ("Negative", *_softmax(c))


def _log_softmax(c: Call) -> tuple[str, ...]:
    if r.over_last(c):
        return c.op.primitives
    infinite = ("Full",) if c.dtype(0).integral else ("Equal", "Equal", "LogicalOr")
    log_sum = ("Reduce", *infinite, "Subtract", "Exp", "Reduce", "Log", "Add", "Select")
    return ("Reduce", "Subtract", *log_sum, "Subtract")


def _halved(c: Call) -> Shape | None:
    shape, axis = c.shape(0), c.integer("axis")
    size = None if shape is None or axis is None else shape.axis(axis)
    return None if shape is None or axis is None or size is None else shape.replace(axis, (size // 2,))


def _square(c: Call) -> Shape | None:
    n = c.size(c.attrs.get("N"))
    return None if n is None else Shape(None, (n, n))


# -- layers that are a function ---------------------------------------------------------------------------------------

LAYERS_OF_FUNCTIONS = """
SiLU       | silu        |                      | x: A
ReLU       | relu        |                      | x: A
ReLU2      | relu2       |                      | x: A
ReLU6      | relu6       |                      | x: A
LeakyReLU  | leaky_relu  | negative_slope=0.01  | x: A
Softplus   | softplus    |                      | x: A
LogSigmoid | log_sigmoid |                      | x: A
Softsign   | softsign    |                      | x: A
Softshrink | softshrink  | lambd=0.5            | x: A
HardShrink | hard_shrink | lambd=0.5            | x: A
HardTanh   | hard_tanh   |                      | x: A, min_val=-1.0, max_val=1.0
Hardswish  | hardswish   |                      | x: A
Mish       | mish        |                      | x: A
ELU        | elu         | alpha=1.0            | x: A
SELU       | selu        |                      | x: A
CELU       | celu        | alpha=1.0            | x: A
Step       | step        | threshold=0.0        | x: A
Sigmoid    | sigmoid     |                      | x: A
Tanh       | tanh        |                      | x: A
Softmax    | softmax     |                      | x: A, axis=-1
Softmin    | softmin     |                      | x: A, axis=-1
LogSoftmax | log_softmax |                      | x: A, axis=-1
GLU        | glu         | axis=-1              | x: A
"""

GELU = {"none": "nn.gelu", "precise": "nn.gelu_approx", "tanh": "nn.gelu_approx", "fast": "nn.gelu_fast_approx"}


def activations() -> Iterator[Op]:
    named = {op.name: op for op in functions()}
    for line in LAYERS_OF_FUNCTIONS.strip().split("\n"):
        name, function, constructor, signature = (part.strip() for part in line.split("|"))
        of = named[f"nn.{function}"]
        shape = _glu if name == "GLU" else of.shape
        yield row(
            name,
            "layer",
            signature,
            " ".join(of.primitives),
            shape,
            of.dtype,
            module=NN,
            constructor=constructor,
            function=of.name,
            recorded=of.recorded,
            compiled=of.compiled,
        )
    gelu = {name: named[name].primitives for name in set(GELU.values())}
    yield row(
        "GELU",
        "layer",
        "x: A",
        "Divide Erf Add Multiply Divide",
        r.same,
        r.floated,
        module=NN,
        constructor="approx='none'",
        recorded=lambda c: gelu.get(function_of(c) or "", ()),
        compiled=True,
    )
    yield row(
        "PReLU",
        "layer",
        "x: A",
        "Maximum Minimum Multiply Add",
        r.same,
        weighted,
        module=NN,
        constructor="num_parameters=1, init=0.25",
        compiled=True,
    )


def _glu(c: Call) -> Shape | None:
    shape, axis = c.shape(0), c.size(c.setting("axis"))
    number = None if axis is None else axis.value()
    size = None if shape is None or number is None else shape.axis(number)
    return None if shape is None or number is None or size is None else shape.replace(number, (size // 2,))


def function_of(c: Call) -> str | None:
    """The function that an activation layer calls; of nn.GELU it depends on `approx`."""
    if c.op.name != "nn.GELU":
        return c.op.function
    approx = c.setting("approx")
    return GELU.get(approx) if isinstance(approx, str) else None


# -- layers with weights ----------------------------------------------------------------------------------------------


def weight_dtype(c: Call, name: str = "weight") -> DType:
    """The dtype of a layer's parameter, as a symbol: loading decides it."""
    path = c.attrs.get("path")
    return DType({f"{path}.{name}.dtype" if path else f"{c.op.name}.{name}.dtype"})


def weighted(c: Call) -> DType:
    return c.dtype(0).settle() | weight_dtype(c)


def _scaled(c: Call) -> DType:
    """A quantised layer's output has x's dtype with that of its scales."""
    mode = c.setting("mode")
    return c.dtype(0).settle() | weight_dtype(c, "scales") if mode == "affine" else c.dtype(0).settle()


def _if_affine(c: Call) -> DType:
    return weighted(c) if c.setting("affine") is not False else c.dtype(0).settle()


def _last(name: str) -> ShapeRule:
    """The last axis becomes the constructor's `name`."""

    def rule(c: Call) -> Shape | None:
        shape, size = c.shape(0), c.size(c.setting(name))
        return None if shape is None or size is None else shape.replace(-1, (size,))

    return rule


def _embedded(c: Call) -> Shape | None:
    shape, size = c.shape(0), c.size(c.setting("dims"))
    return None if shape is None or size is None else Shape(shape.lead, (*shape.dims, size))


def _linear(c: Call) -> tuple[str, ...]:
    if c.setting("bias") is False:
        return _unbiased(c)
    return ("Transpose", "Reshape", "AddMM", "Reshape") if _folds(c) else ("Transpose", "AddMM")


def _unbiased(c: Call) -> tuple[str, ...]:
    return ("Transpose", "Flatten", "Matmul", "Unflatten") if _folds(c) else ("Transpose", "Matmul")


def _folds(c: Call) -> bool:
    shape = c.shape(0)
    return shape is None or shape.rank != 2


def _quantised_linear(c: Call) -> tuple[str, ...]:
    return ("QuantizedMatmul",) if c.setting("bias") is False else ("QuantizedMatmul", "Add")


def _with_bias(*primitives: str) -> PrimitiveRule:
    return lambda c: primitives if c.setting("bias") is False else (*primitives, "Add")


def _layer_norm(c: Call) -> tuple[str, ...]:
    if c.setting("affine") is False:
        return LAYER
    return (*LAYER, "Multiply") if c.setting("bias") is False else (*LAYER, "Multiply", "Add")


def linear() -> Iterator[Op]:
    op = partial(row, module=NN)
    dims = "input_dims, output_dims"
    quantised = "group_size=None, bits=None, mode='affine'"
    out = _last("output_dims")
    yield op(
        "Linear", "layer", "x: A", "Transpose AddMM", out, weighted, constructor=f"{dims}, bias=True", recorded=_linear
    )
    yield op(
        "QuantizedLinear",
        "layer",
        "x: A",
        "QuantizedMatmul Add",
        out,
        _scaled,
        constructor=f"{dims}, bias=True, {quantised}",
        recorded=_quantised_linear,
    )
    qq = f"{dims}, {quantised.replace('affine', 'nvfp4')}"
    yield op("QQLinear", "layer", "x: A", "QQMatmul", out, r.same_dtype, constructor=qq)
    for name in ("AllToShardedLinear", "ShardedToAllLinear"):
        sharded = f"{dims}, bias=True, group=None"
        yield op(name, "layer", "x: A", "AddMM", r.unknown, weighted, constructor=sharded)
    for name in ("QuantizedAllToShardedLinear", "QuantizedShardedToAllLinear"):
        sharded = f"{dims}, bias=True, group_size=64, bits=4, mode='affine', group=None"
        yield op(name, "layer", "x: A", "QuantizedMatmul", r.unknown, _scaled, constructor=sharded)
    bilinear = "input1_dims, input2_dims, output_dims, bias=True"
    parts = "Reshape Reshape Reshape Transpose Matmul Reshape Transpose Matmul Squeeze Reshape Add"
    yield op("Bilinear", "layer", "x1: A, x2: A", parts, out, _bilinear, constructor=bilinear)
    embedding = "num_embeddings, dims"
    packed = f"{embedding}, {quantised}"
    yield op("Embedding", "layer", "x: A", "Gather Squeeze", _embedded, weight_dtype, constructor=embedding)
    yield op(
        "Embedding.as_linear",
        "layer",
        "x: A",
        "Transpose Matmul",
        _last("num_embeddings"),
        weighted,
        constructor=embedding,
        recorded=_unbiased,
    )
    yield op(
        "QuantizedEmbedding",
        "layer",
        "x: A",
        "Gather Gather Gather Dequantize",
        _embedded,
        lambda c: weight_dtype(c, "scales"),
        constructor=packed,
        recorded=lambda c: QUANTISED_EMBEDDING,
    )
    tied = "QuantizedEmbedding.as_linear"
    yield op(tied, "layer", "x: A", "QuantizedMatmul", _last("num_embeddings"), _scaled, constructor=packed)


def _bilinear(c: Call) -> DType:
    return (c.dtype(0) | c.dtype(1)).settle() | weight_dtype(c)


QUANTISED_EMBEDDING = (
    *("Gather", "Squeeze") * 3,
    *("BitwiseBinary", "BitwiseBinary", "ExpandDims") * 8,
    *("Concatenate", "Reshape", "ExpandDims", "Multiply", "ExpandDims", "Add", "Reshape"),
)


def norms() -> Iterator[Op]:
    op = partial(row, module=NN)
    rms = ("RMSNorm", *RMS, "Multiply")
    yield op(
        "RMSNorm",
        "layer",
        "x: A",
        "RMSNorm",
        r.same,
        weighted,
        constructor="dims, eps=1e-5",
        fallback=" ".join(rms[1:]),
    )
    yield op(
        "LayerNorm",
        "layer",
        "x: A",
        "LayerNorm",
        r.same,
        _if_affine,
        constructor="dims, eps=1e-5, affine=True, bias=True",
        recorded=_layer_norm,
    )
    group = "num_groups, dims, eps=1e-5, affine=True, pytorch_compatible=False"
    parts = f"{GROUP} Multiply Add"
    yield op("GroupNorm", "layer", "x: A", parts, r.same, _group_norm_dtype, constructor=group, recorded=_group_norm)
    instance = "dims, eps=1e-5, affine=False"
    yield op(
        "InstanceNorm",
        "layer",
        "x: A",
        "LayerNorm",
        r.same,
        _if_explicitly_affine,
        constructor=instance,
        recorded=_instance_norm,
    )
    batch = "num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True"
    parts = "Subtract Add Sqrt Multiply Multiply Add"
    yield op("BatchNorm", "layer", "x: A", parts, r.same, _batch_norm, constructor=batch)


def _if_explicitly_affine(c: Call) -> DType:
    return c.dtype(0).settle() if c.setting("affine") is False else weighted(c)


def _batch_norm(c: Call) -> DType:
    return c.dtype(0).settle() | weight_dtype(c, "running_mean") | _if_affine(c)


GROUP = "Reshape Reduce Multiply Subtract Square Reduce Multiply Add Sqrt Multiply Reshape"


def _group_norm_dtype(c: Call) -> DType:
    normal = c.dtype(0).floated()
    return normal | weight_dtype(c) if c.setting("affine") is not False else normal


def _group_norm(c: Call) -> tuple[str, ...]:
    affine = ("Multiply", "Add") if c.setting("affine") is not False else ()
    if c.setting("pytorch_compatible") is True:
        return ("Reshape", "Transpose", "Reshape", *LAYER, "Reshape", "Transpose", "Reshape", *affine)
    return (*GROUP.split(), *affine)


def _instance_norm(c: Call) -> tuple[str, ...]:
    affine = ("Multiply", "Add") if c.setting("affine") is True else ()
    shape = c.shape(0)
    back = ("Reshape",) if shape is None or shape.rank != 3 else ()
    return ("Transpose", "Reshape", *LAYER, *back, "Transpose", *affine)


def convolutions() -> Iterator[Op]:
    op = partial(row, module=NN)
    parts = _with_bias("Convolution")
    for n in (1, 2, 3):
        common = "in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1"
        groups = ", groups=1" if n < 3 else ""
        shape = _convolution(n)
        constructor = f"{common}{groups}, bias=True"
        yield op(
            f"Conv{n}d", "layer", "x: A", "Convolution Add", shape, weighted, constructor=constructor, recorded=parts
        )
        constructor = f"{common}, output_padding=0, bias=True"
        shape = _transposed_convolution(n)
        name = f"ConvTranspose{n}d"
        yield op(name, "layer", "x: A", "Convolution Add", shape, weighted, constructor=constructor, recorded=parts)
        for kind in ("Max", "Avg"):
            yield op(
                f"{kind}Pool{n}d",
                "layer",
                "x: A",
                "Flatten AsStrided Reduce Squeeze",
                _pooling(n),
                r.floated if kind == "Avg" else r.same_dtype,
                constructor="kernel_size, stride=None, padding=0",
                recorded=_pooled(n, kind),
            )


def _pooled(n: int, kind: str) -> PrimitiveRule:
    """Windows that don't overlap are a reshape."""

    def rule(c: Call) -> tuple[str, ...]:
        shape, kernel = c.shape(0), _kernel(c, n)
        stride = kernel if c.setting("stride") is None else pr.each(c, c.setting("stride"), n)
        padding = pr.each(c, c.setting("padding"), n) or []
        sizes = None if shape is None else shape.tail(n + 1)
        apart = stride == kernel and sizes is not None
        apart = apart and all(k.divides(d) for k, d in zip(kernel, sizes or (), strict=False))
        padded = ("Pad",) if any(p != 0 for p in padding) else ()
        windows = ("Reshape", "Transpose") if apart and not padded else ("Flatten", "AsStrided")
        return (*padded, *windows, "Reduce", "Squeeze", *(("Multiply",) if kind == "Avg" else ()))

    return rule


def _kernel(c: Call, n: int) -> list[Expr]:
    return pr.each(c, c.setting("kernel_size"), n) or []


def _convolution(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        channels = c.size(c.setting("out_channels"))
        return None if channels is None else pr.convolution_shape(c, n, c.setting, channels, _kernel(c, n))

    return rule


def _transposed_convolution(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        channels = c.size(c.setting("out_channels"))
        return None if channels is None else pr.transposed_shape(c, n, c.setting, channels, _kernel(c, n))

    return rule


def _pooling(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        def setting(name: str) -> Any:
            if name == "dilation":
                return 1
            value = c.setting(name)
            return c.setting("kernel_size") if name == "stride" and value is None else value

        shape = c.shape(0)
        channels = None if shape is None else shape.axis(-1)
        return None if channels is None else pr.convolution_shape(c, n, setting, channels, _kernel(c, n))

    return rule


def others() -> Iterator[Op]:
    op = partial(row, module=NN)
    rope = "dims, traditional=False, base=10000, scale=1.0"
    yield op("RoPE", "layer", "x: A, offset=0", "RoPE", r.same, r.same_dtype, constructor=rope, recorded=_rope)
    alibi = "attention_scores: A, offset=0, mask: A = None"
    slopes = "Arange ExpandDims Arange ExpandDims Subtract ExpandDims Abs Negative ExpandDims Multiply Add"
    yield op("ALiBi", "layer", alibi, slopes, r.same, _alibi, recorded=_alibi_primitives)
    waves = "dims, min_freq=0.0001, max_freq=1, scale=None, cos_first=False, full_turns=False"
    parts = "ExpandDims Arange Divide Subtract Multiply Add Exp Multiply Sin Cos Concatenate Multiply"
    yield op(
        "SinusoidalPositionalEncoding",
        "layer",
        "x: A",
        parts,
        _embedded,
        r.constant_dtype("float32"),
        constructor=waves,
    )
    for name in ("Dropout", "Dropout2d", "Dropout3d"):
        yield op(name, "layer", "x: A", "", r.same, r.same_dtype, constructor="p=0.5")
    yield op("Identity", "layer", "x: A", "", r.same, r.same_dtype)
    upsample = "scale_factor, mode='nearest', align_corners=False, antialias=False"
    yield op("Upsample", "layer", "x: A", "Reshape Broadcast Reshape", _upsampled, r.same_dtype, constructor=upsample)
    attention = "dims, num_heads, query_input_dims=None, key_input_dims=None, value_input_dims=None, value_dims=None, "
    yield op(
        "MultiHeadAttention",
        "layer",
        "queries: A, keys: A, values: A, mask: A = None",
        f"{PROJECTED * 3}{ATTENDED}{MERGED}",
        _attention,
        lambda c: attention_dtype(c) | weight_dtype(c, "out_proj.weight"),
        constructor=f"{attention}value_output_dims=None, bias=False",
        recorded=_attention_primitives,
    )
    for name, gates in (("RNN", ", nonlinearity=None"), ("GRU", "")):
        constructor = f"input_size, hidden_size, bias=True{gates}"
        yield op(
            name, "layer", "x: A, hidden: A = None", "AddMM", _last("hidden_size"), _recurrent, constructor=constructor
        )
    constructor = "input_size, hidden_size, bias=True"
    hidden = _last("hidden_size")
    yield op(
        "LSTM",
        "layer",
        "x: A, hidden: A = None, cell: A = None",
        "AddMM",
        lambda c: (hidden(c), hidden(c)),  # type: ignore[arg-type,return-value]
        lambda c: (_recurrent(c), _recurrent(c)),
        constructor=constructor,
        result="arrays",
    )


def _rope(c: Call) -> tuple[str, ...]:
    return rope_primitives(c, c.setting)


def _alibi_primitives(c: Call) -> tuple[str, ...]:
    return c.op.primitives if c.operand("mask") is None else (*c.op.primitives, "Add")


def _alibi(c: Call) -> DType:
    mask = c.operand("mask")
    return c.dtype(0).settle() if mask is None else (c.dtype(0) | mask.dtype).settle()


def _upsampled(c: Call) -> Shape | None:
    shape, factor = c.shape(0), c.setting("scale_factor")
    if shape is None or shape.rank is None or shape.rank < 3:
        return None
    factors: Sequence[Any] = factor if isinstance(factor, tuple) else (factor,) * (shape.rank - 2)
    if len(factors) != shape.rank - 2:
        return None
    axes: list[Expr] = []
    for d, by in zip(shape.dims[1:-1], factors, strict=True):
        n = d.value()
        size = c.size(by)
        if isinstance(by, float) and (n is not None or by.is_integer()):
            axes.append(d * int(by) if by.is_integer() else Expr.of(int((n or 0) * by)))
        elif size is not None:
            axes.append(d * size)
        else:
            return None
    return Shape(None, (shape.dims[0], *axes, shape.dims[-1]))


def _attention(c: Call) -> Shape | None:
    shape = c.shape(0)
    value = c.setting("value_output_dims")
    size = c.size(c.setting("dims") if value is None else value)
    return None if shape is None or size is None else shape.replace(-1, (size,))


PROJECTED = "Flatten Transpose Matmul Unflatten Unflatten Transpose "
ATTENDED = "Multiply Transpose Matmul Softmax Matmul "
MERGED = "Transpose Flatten Flatten Transpose Matmul Unflatten"


def _attention_primitives(c: Call) -> tuple[str, ...]:
    masked = ATTENDED if c.operand("mask") is None else ATTENDED.replace("Softmax", "Add Softmax")
    project, merge = PROJECTED, MERGED
    if c.setting("bias") is True:
        project, merge = (
            t.replace("Flatten Transpose Matmul Unflatten", "Transpose Reshape AddMM Reshape") for t in (project, merge)
        )
    return (*project.split() * 3, *masked.split(), *merge.split())


def _recurrent(c: Call) -> DType:
    return c.dtype(0).settle() | weight_dtype(c, "Wx")


def table() -> Iterator[Op]:
    for part in (functions, activations, linear, norms, convolutions, others):
        yield from part()
