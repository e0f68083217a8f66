"""MLX source on float64 NumPy, and canonical values on the same arrays: two ways to one number."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fuselint.graph.values import Value


class Array(np.ndarray):
    """An ndarray with the methods of an mx.array; all dtypes are float64."""

    def square(self) -> Any:
        return np.square(self)

    def rsqrt(self) -> Any:
        return 1 / np.sqrt(self)

    def sqrt(self) -> Any:
        return np.sqrt(self)

    def exp(self) -> Any:
        return np.exp(self)

    def abs(self) -> Any:
        return np.abs(self)

    def reciprocal(self) -> Any:
        return 1 / self

    def moveaxis(self, a: int, b: int) -> Any:
        return np.moveaxis(self, a, b)

    def logsumexp(self, axis: Any = None, keepdims: bool = False) -> Any:
        return logsumexp(self, axis, keepdims)

    def expand_dims(self, axis: Any) -> Any:
        return np.expand_dims(self, axis)

    def astype(self, dtype: Any, *rest: Any, **more: Any) -> Any:
        return self.copy()


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    top = np.max(x, axis=axis, keepdims=True)
    out = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return out if keepdims else np.squeeze(out, axis=axis)


def softmax(x: Any, axis: Any = None, precise: bool = False) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[float])


def erf(x: Any) -> Any:
    return _erf(np.asarray(x))


def _var(x: Any, axis: Any = None, keepdims: bool = False, ddof: int = 0) -> Any:
    return np.var(x, axis=axis, keepdims=keepdims, ddof=ddof)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{n: getattr(np, n) for n in "exp log log1p expm1 sqrt square abs tanh sin cos sign".split()},
    **{n: getattr(np, n) for n in "power add subtract multiply divide negative maximum minimum where".split()},
    **{n: getattr(np, n) for n in "mean sum max min std matmul swapaxes moveaxis expand_dims squeeze".split()},
    **{n: getattr(np, n) for n in "reshape transpose einsum concatenate arange logaddexp broadcast_to".split()},
    "var": _var,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / np.asarray(x, dtype=np.float64),
    "sigmoid": sigmoid,
    "erf": erf,
    "softmax": softmax,
    "logsumexp": logsumexp,
}


def _wrapped(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        return np.asarray(f(*args, **keywords), dtype=np.float64).view(Array)

    return call


def modules() -> dict[str, Any]:
    """`mx`, `nn` and `math` for source that is run on float64."""
    mx = types.SimpleNamespace(**{n: _wrapped(f) for n, f in FUNCTIONS.items()})
    mx.float32 = mx.float16 = mx.bfloat16 = np.float64
    mx.linalg = types.SimpleNamespace(
        norm=_wrapped(lambda x, axis=None, keepdims=False: np.linalg.norm(x, axis=axis, keepdims=keepdims))
    )
    root = math.sqrt(2 / math.pi)
    nn = types.SimpleNamespace(
        silu=_wrapped(lambda x: x * sigmoid(x)),
        gelu=_wrapped(lambda x: x * (1 + erf(x / math.sqrt(2))) / 2),
        gelu_approx=_wrapped(lambda x: 0.5 * x * (1 + np.tanh(root * (x + 0.044715 * x**3)))),
        gelu_fast_approx=_wrapped(lambda x: x * sigmoid(1.702 * x)),
        relu=_wrapped(lambda x: np.maximum(x, 0)),
    )
    return {"mx": mx, "nn": nn, "math": math}


class Unsupported(Exception):
    """A canonical value that is not evaluated here."""


class Evaluation:
    """Canonical values as float64 arrays, for given arguments."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.arguments = arguments
        self.done: dict[Value, Any] = {}

    def of(self, value: Value) -> Any:
        found = self.done.get(value)
        if found is None:
            found = self.done[value] = self._of(value)
        return found

    def _of(self, v: Value) -> Any:
        if v.op == "product":
            out: Any = v.coefficient
            for base, e in v.factors:
                out = out * self._power(base, float(e), e.denominator == 1)
            return out
        if v.op == "sum":
            total: Any = v.constant
            for m, c in v.terms:
                total = total + c * self.of(m)
            return total
        if v.op not in ATOMS:
            raise Unsupported(v.op)
        return ATOMS[v.op](self, v)

    def _power(self, base: Value, e: float, whole: bool) -> Any:
        x = np.asarray(self.of(base), dtype=np.float64)
        return x ** int(e) if whole and e > 0 else x**e

    def args(self, v: Value) -> list[Any]:
        return [np.asarray(self.of(a), dtype=np.float64) for a in v.args]

    def number(self, frozen: Any) -> Any:
        """A parameter of an atom: a plain one, or a value that is an int."""
        if isinstance(frozen, Value):
            return round(float(self.of(frozen)))
        return tuple(map(self.number, frozen)) if isinstance(frozen, tuple) else frozen

    def name(self, v: Value) -> Any:
        """A parameter, or a size such as `x.shape[-1]//2`."""
        try:
            return eval(str(v.param("name")), {}, dict(self.arguments))
        except (NameError, SyntaxError) as e:  # a size that has no text in the parameters
            raise Unsupported(str(v.param("name"))) from e


def _unary(f: Callable[[Any], Any]) -> Callable[[Evaluation, Value], Any]:
    return lambda e, v: f(*e.args(v))


def _reduced(f: Callable[..., Any]) -> Callable[[Evaluation, Value], Any]:
    return lambda e, v: f(*e.args(v), axis=v.param("axes"), keepdims=bool(v.param("keepdims", True)))


def _permute(e: Evaluation, v: Value) -> Any:
    (x,) = e.args(v)
    perm = v.param("perm")
    return np.transpose(x, [*range(x.ndim - len(perm)), *(x.ndim + a for a in perm)])


def _index(e: Evaluation, v: Value) -> Any:
    (x,) = e.args(v)
    entries = []
    for p in v.param("index"):
        if p == "...":
            entries.append(Ellipsis)
        elif isinstance(p, tuple) and p and p[0] == "slice":
            entries.append(slice(*(e.number(q) for q in p[1:])))
        else:
            entries.append(e.number(p))
    return x[tuple(entries)]


def _size(e: Evaluation, v: Value) -> Any:
    return np.float64(e.args(v)[0].shape[v.param("axis")]) if v.args else np.float64(e.name(v))


ATOMS: dict[str, Callable[[Evaluation, Value], Any]] = {
    "param": lambda e, v: e.name(v),
    "size": _size,
    "number": lambda e, v: float(v.param("value")),
    "exp": _unary(np.exp),
    "log": _unary(np.log),
    "log1p": _unary(np.log1p),
    "expm1": _unary(np.expm1),
    "sigmoid": _unary(sigmoid),
    "erf": _unary(erf),
    "tanh": _unary(np.tanh),
    "sin": _unary(np.sin),
    "cos": _unary(np.cos),
    "abs": _unary(np.abs),
    "sign": _unary(np.sign),
    "group": _unary(lambda x: x),
    "guarded": _unary(lambda x: x),
    "optional": _unary(lambda x: x),
    "sum_of": _unary(lambda *x: sum(x)),
    "pow": _unary(np.power),
    "maximum": _unary(np.maximum),
    "minimum": _unary(np.minimum),
    "logaddexp": _unary(np.logaddexp),
    "floor_divide": _unary(np.floor_divide),
    "where": _unary(lambda c, a, b: np.where(c != 0, a, b)),
    "less": _unary(np.less),
    "greater": _unary(np.greater),
    "less_equal": _unary(np.less_equal),
    "greater_equal": _unary(np.greater_equal),
    "equal": _unary(np.equal),
    "not_equal": _unary(np.not_equal),
    "mean": _reduced(np.mean),
    "reduce_sum": _reduced(np.sum),
    "max": _reduced(np.max),
    "min": _reduced(np.min),
    "logsumexp": _reduced(logsumexp),
    "softmax": lambda e, v: softmax(*e.args(v), axis=v.param("axes")),
    "squeeze": lambda e, v: np.squeeze(*e.args(v), axis=v.param("axes")),
    "expand_dims": lambda e, v: np.expand_dims(*e.args(v), axis=v.param("axes")),
    "matmul": _unary(np.matmul),
    "permute": _permute,
    "reverse_axes": _unary(np.transpose),
    "swapaxes": lambda e, v: np.swapaxes(*e.args(v), *v.param("pair")),
    "reshape": lambda e, v: e.args(v)[0].reshape([round(float(d)) for d in e.args(v)[1:]]),
    "index": _index,
    "concatenate": lambda e, v: np.concatenate(e.args(v), axis=v.param("axis")),
    "arange": lambda e, v: np.arange(e.number(v.param("start")), e.number(v.param("stop")), e.number(v.param("step"))),
    "broadcast_to": lambda e, v: np.broadcast_to(*e.args(v), e.number(v.param("shape"))),
    "einsum": lambda e, v: np.einsum(v.param("subscripts"), *e.args(v)),
}
