"""MLX in float64, for the reference that a fix is judged by.

MLX computes many operations in float32 even where the array is float64: exp, sin, cos, erf, sigmoid, softmax, the
fused ones, and alpha and beta of addmm (checked by tests/verify/test_exact.py). Those are written here from the ones
that are exact. `namespace()` gives stand-ins for `mx` and `nn` in which the text of a region runs in float64: every
float dtype is float64, a cast between float dtypes does nothing, `mx.compile` does nothing.

Everything here runs on the CPU stream, which is the only one with float64, and at test sizes: speed is no concern.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

FLOATS = ("float16", "bfloat16", "float32", "float64")


def real(value: Any) -> Any:
    """A Python float, or an array of floats, in float64. MLX rounds a float literal through float32 (mlx #4159)."""
    if isinstance(value, float):
        return mx.array(value, dtype=mx.float64)
    if isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating):
        return value.astype(mx.float64)
    return value


class Rounding:
    """Moves each value, up or down, by no more than rounding it to float32 does: so float32 itself moves a result."""

    def __init__(self, seed: int) -> None:
        self.seed, self.count = seed, 0

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, mx.array) or value.dtype != mx.float64:
            return value
        self.count += 1
        key = mx.random.key(self.seed * 10_007 + self.count)
        by = mx.random.uniform(-1, 1, value.shape, key=key).astype(mx.float64)
        return value + value * by * real(2.0**-24)


def exp(x: Any) -> mx.array:
    return mx.power(mx.array(math.e, dtype=mx.float64), _floating(x))


def _floating(x: Any) -> mx.array:
    return x.astype(mx.float64) if isinstance(x, mx.array) else mx.array(x, dtype=mx.float64)


def _each(f: Callable[[float], float], slope: Callable[[float], float]) -> Callable[..., mx.array]:
    """An elementwise function by Python's own, for what MLX has only in float32. slope: its derivative."""

    def each(of: Callable[[float], float], x: mx.array) -> mx.array:
        return mx.array([of(v) for v in x.flatten().tolist()], dtype=mx.float64).reshape(x.shape)

    def gradient(x: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
        return cotangent * each(slope, x)

    apply = mx.custom_function(functools.partial(each, f))
    apply.vjp(gradient)
    return lambda x: apply(_floating(x))


def _finite(f: Callable[[float], float]) -> Callable[[float], float]:
    return lambda v: f(v) if math.isfinite(v) else math.nan


sin = _each(_finite(math.sin), _finite(math.cos))
cos = _each(_finite(math.cos), _finite(lambda v: -math.sin(v)))
tan = _each(_finite(math.tan), _finite(lambda v: 1 + math.tan(v) ** 2))


def _erf_slope(v: float) -> float:
    return 2 / math.sqrt(math.pi) * math.exp(-v * v)


erf = _each(math.erf, _erf_slope)


def _inverse_erf(v: float) -> float:
    """Newton's method on erf, from Winitzki's approximation."""
    if not -1 < v < 1:
        return math.copysign(math.inf, v) if abs(v) == 1 else math.nan
    log = math.log1p(-v * v)
    half = 2 / (math.pi * 0.147) + log / 2
    x = math.copysign(math.sqrt(math.sqrt(half * half - log / 0.147) - half), v)
    for _ in range(4):
        x -= (math.erf(x) - v) / _erf_slope(x)
    return x


erfinv = _each(_inverse_erf, lambda v: 1 / _erf_slope(_inverse_erf(v)) if -1 < v < 1 else math.inf)


def sinh(x: Any) -> mx.array:
    return (exp(x) - exp(-_floating(x))) / 2


def cosh(x: Any) -> mx.array:
    return (exp(x) + exp(-_floating(x))) / 2


def sigmoid(x: Any) -> mx.array:
    return 1 / (1 + exp(-_floating(x)))


def logaddexp(a: Any, b: Any) -> mx.array:
    a, b = _floating(a), _floating(b)
    top = mx.maximum(a, b)
    gap = mx.minimum(a, b) - top
    return mx.where(mx.isinf(top) & (a == b), top, top + mx.log1p(exp(gap)))


def softmax(x: mx.array, axis: Any = None, precise: bool = False) -> mx.array:
    x = _floating(x)
    e = exp(x - mx.max(x, axis=axis, keepdims=True))
    return e / mx.sum(e, axis=axis, keepdims=True)


def logsumexp(x: mx.array, axis: Any = None, keepdims: bool = False) -> mx.array:
    x = _floating(x)
    top = mx.max(x, axis=axis, keepdims=True)
    base = mx.where(mx.isinf(top), mx.zeros_like(top), top)
    out = base + mx.log(mx.sum(exp(x - base), axis=axis, keepdims=True))
    if keepdims:
        return out
    return mx.squeeze(out) if axis is None else mx.squeeze(out, axis)


def logcumsumexp(x: mx.array, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True) -> mx.array:
    x = _floating(x)
    top = mx.max(x)
    return top + mx.log(mx.cumsum(exp(x - top), axis, reverse=reverse, inclusive=inclusive))


def addmm(c: mx.array, a: mx.array, b: mx.array, alpha: float = 1.0, beta: float = 1.0) -> mx.array:
    return real(float(beta)) * _floating(c) + real(float(alpha)) * (_floating(a) @ _floating(b))


def array(value: Any, dtype: Any = None) -> mx.array:
    if isinstance(value, mx.array):
        return value.astype(dtype) if dtype is not None else real(value + 0)
    if dtype is None and _has_float(value):
        dtype = mx.float64
    return mx.array(value, dtype=dtype) if dtype is not None else mx.array(value)


def _has_float(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_float(v) for v in value)
    return isinstance(value, float) or (isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating))


def arange(*args: Any, dtype: Any = None) -> mx.array:
    if dtype is None and any(isinstance(a, float) for a in args):
        dtype = mx.float64
    return mx.arange(*args, dtype=dtype) if dtype is not None else mx.arange(*args)


def linspace(start: float, stop: float, num: int = 50, dtype: Any = None) -> mx.array:
    return mx.linspace(start, stop, num, dtype=mx.float64)


def full(shape: Any, vals: Any, dtype: Any = None) -> mx.array:
    return mx.full(shape, real(vals), dtype=dtype) if dtype is not None else mx.full(shape, real(vals))


def dequantize(w: mx.array, scales: mx.array, biases: mx.array | None = None, *args: Any, **options: Any) -> mx.array:
    options.pop("dtype", None)
    small = [None if a is None else _single(a) for a in (scales, biases)]
    return mx.dequantize(w, *small, *args, **options).astype(mx.float64)


def _single(a: mx.array) -> mx.array:
    return a.astype(mx.float32) if a.dtype == mx.float64 else a


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int = 64,
    bits: int = 4,
    mode: str = "affine",
) -> mx.array:
    full_w = dequantize(w, scales, biases, group_size=group_size, bits=bits, mode=mode)
    return _floating(x) @ (full_w.swapaxes(-1, -2) if transpose else full_w)


# --- mlx.core.fast ---------------------------------------------------------------------------------------------------


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    x = _floating(x)
    y = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + real(float(eps)))
    return y if weight is None else y * _floating(weight)


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    x = _floating(x)
    x = x - mx.mean(x, axis=-1, keepdims=True)
    y = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + real(float(eps)))
    y = y if weight is None else y * _floating(weight)
    return y if bias is None else y + _floating(bias)


def rope(
    a: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: Any,
    freqs: mx.array | None = None,
) -> mx.array:
    """a: [B, ..., T, D]. Rotates the first `dims` features by the position on axis -2."""
    a = _floating(a)
    steps, half = a.shape[-2], dims // 2
    start = offset.astype(mx.float64).reshape(-1) if isinstance(offset, mx.array) else mx.array([offset], mx.float64)
    at = (mx.arange(steps).astype(mx.float64)[None, :] + start[:, None]) * real(float(scale))  # [1 or B, T]
    if freqs is not None:
        speed = 1 / _floating(freqs)
    else:
        speed = exp(-mx.arange(half).astype(mx.float64) * real(math.log(base or 1.0) / half))
    theta = at[:, :, None] * speed  # [1 or B, T, half]
    theta = theta.reshape(theta.shape[0], *([1] * (a.ndim - 3)), steps, half)
    c, s = cos(theta), sin(theta)
    body, tail = a[..., :dims], a[..., dims:]
    if traditional:
        x, y = body[..., 0::2], body[..., 1::2]
        turned = mx.stack([x * c - y * s, x * s + y * c], axis=-1).reshape(body.shape)
    else:
        x, y = body[..., :half], body[..., half:]
        turned = mx.concatenate([x * c - y * s, x * s + y * c], axis=-1)
    return mx.concatenate([turned, tail], axis=-1)


def scaled_dot_product_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: Any = None,
    sinks: mx.array | None = None,
    **_: Any,
) -> mx.array:
    """q: [B, H, L, D], k: [B, G, S, D], v: [B, G, S, E]; H is a multiple of G, interleaved."""
    q, k, v = _floating(q), _floating(k), _floating(v)
    repeats = q.shape[1] // k.shape[1]
    if q.shape[1] != repeats * k.shape[1]:
        raise ValueError("n_heads must be a multiple of n_kv_heads")
    k, v = mx.repeat(k, repeats, axis=1), mx.repeat(v, repeats, axis=1)
    scores = (q * real(float(scale))) @ k.swapaxes(-1, -2)
    length, keys = scores.shape[-2:]
    if isinstance(mask, str):
        mask = mx.arange(length)[:, None] + (keys - length) >= mx.arange(keys)[None]
    if mask is not None and mask.dtype == mx.bool_:
        scores = mx.where(mask, scores, mx.array(-1e300, dtype=mx.float64))
    elif mask is not None:
        scores = scores + _floating(mask)
    if sinks is not None:
        column = mx.broadcast_to(_floating(sinks).reshape(1, -1, 1, 1), (*scores.shape[:-1], 1))
        return softmax(mx.concatenate([column, scores], axis=-1), axis=-1)[..., 1:] @ v
    return softmax(scores, axis=-1) @ v


def cross_entropy(logits: mx.array, targets: mx.array, **_: Any) -> mx.array:
    x = _floating(logits)
    return logsumexp(x, axis=-1) - mx.take_along_axis(x, targets[..., None], axis=-1).squeeze(-1)


# --- mlx.nn ----------------------------------------------------------------------------------------------------------


def silu(x: mx.array) -> mx.array:
    return x * sigmoid(x)


def gelu(x: mx.array) -> mx.array:
    x = _floating(x)
    return x * (1 + erf(x / real(math.sqrt(2)))) / 2


def gelu_approx(x: mx.array) -> mx.array:
    x = _floating(x)
    return 0.5 * x * (1 + mx.tanh(real(math.sqrt(2 / math.pi)) * (x + real(0.044715) * x**3)))


def gelu_fast_approx(x: mx.array) -> mx.array:
    return x * sigmoid(real(1.702) * x)


def softplus(x: mx.array) -> mx.array:
    return logaddexp(x, 0)


def log_sigmoid(x: mx.array) -> mx.array:
    return -softplus(-x)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    return x - logsumexp(x, axis=axis, keepdims=True)


def softmin(x: mx.array, axis: int = -1) -> mx.array:
    return softmax(-x, axis=axis)


def nn_softmax(x: mx.array, axis: int = -1) -> mx.array:
    return softmax(x, axis=axis)


def mish(x: mx.array) -> mx.array:
    return x * mx.tanh(softplus(x))


def elu(x: mx.array, alpha: float = 1.0) -> mx.array:
    return mx.where(x > 0, x, real(float(alpha)) * mx.expm1(x))


def celu(x: mx.array, alpha: float = 1.0) -> mx.array:
    a = real(float(alpha))
    return mx.maximum(x, 0) + a * mx.expm1(mx.minimum(x, 0) / a)


def selu(x: mx.array) -> mx.array:
    return real(1.0507) * elu(x, 1.67326)


def glu(x: mx.array, axis: int = -1) -> mx.array:
    a, b = mx.split(x, 2, axis=axis)
    return a * sigmoid(b)


def compile(fun: Any = None, *args: Any, **options: Any) -> Any:
    return fun


CORE: dict[str, Any] = {
    name: globals()[name]
    for name in (
        "exp sin cos tan erf erfinv sinh cosh sigmoid logaddexp softmax logsumexp logcumsumexp addmm array arange "
        "linspace full dequantize quantized_matmul compile"
    ).split()
} | {name: mx.float64 for name in FLOATS}
FAST: dict[str, Any] = {
    f.__name__: f for f in (rms_norm, layer_norm, rope, scaled_dot_product_attention, cross_entropy)
}
NN: dict[str, Any] = {
    f.__name__: f
    for f in (
        sigmoid, silu, gelu, gelu_approx, gelu_fast_approx, softplus, log_sigmoid, log_softmax, softmin, mish, elu,
        celu, selu, glu,
    )
} | {"softmax": nn_softmax}  # fmt: skip
METHODS = ("exp", "sin", "cos", "logsumexp", "logcumsumexp")
"""Array methods that MLX computes in float32, by the function of that name."""


class Module:
    """A module in which some names are ours. Names of `inexact` raise: their result would not be a float64 one."""

    def __init__(self, module: Any, ours: dict[str, Any], inexact: Sequence[str] = ()) -> None:
        self._module, self._ours, self._inexact = module, ours, inexact

    def __getattr__(self, name: str) -> Any:
        if name in self._ours:
            return self._ours[name]
        if name in self._inexact:
            raise NotImplementedError(f"{name} has no float64 form here")
        return getattr(self._module, name)


@functools.cache
def modules() -> dict[str, Any]:
    """Stand-ins by qualified name."""
    fast = Module(mx.fast, FAST, [n for n in dir(mx.fast) if n not in FAST])
    inexact = ["random", "gather_qmm", "qqmm", "quantize", "conv_general"]
    core = Module(mx, CORE | {"fast": fast}, inexact)
    losses = Module(nn.losses, {}, [n for n in dir(nn.losses) if not n.startswith("_")])
    net = Module(nn, NN | {"losses": losses})
    return {"mlx.core": core, "mlx.core.fast": fast, "mlx.core.linalg": mx.linalg, "mlx.nn": net}


def method(name: str, target: Any, *args: Any, **options: Any) -> Any:
    """`target.name(...)`, in float64 where target is an array."""
    if isinstance(target, mx.array):
        return CORE[name](target, *args, **options)
    return getattr(target, name)(*args, **options)
