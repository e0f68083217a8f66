"""Elementwise ops that are several primitives, as mlx/ops.cpp and mlx/nn make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from fuselint.graph.dtypes import BOOL, INTEGER
from fuselint.graph.tape import Array, Operand, Scalar, Tracer, at_least_float

# -- elementwise: composites -------------------------------------------------------------------------------------------

Attrs = Mapping[str, Any]
Expansion = Callable[[Tracer, list[Operand], Attrs], Array]

INFINITY = Scalar(math.inf)


def _number(value: Any) -> Operand:
    """An argument that is a number: a literal, or a scalar's node."""
    if isinstance(value, bool):
        return Scalar(value, "bool")
    if isinstance(value, int):
        return Scalar(value, "int")
    return Scalar(value if isinstance(value, float) else id(value))


def _clip(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    out = t.array(x[0])
    low, high = ([*x[1:], None, None][:2]) if len(x) > 1 else (attrs.get("a_min"), attrs.get("a_max"))
    for primitive, bound in (("Maximum", low), ("Minimum", high)):
        if bound is not None and not _is_none(bound):
            operand = bound if isinstance(bound, (Array, Scalar)) else _number(bound)
            out = t.binary(primitive, out, operand)
    return out


def _is_none(x: Any) -> bool:
    return isinstance(x, Scalar) and x.value is None


def _never(t: Tracer, x: list[Operand], value: int = 0) -> Array | None:
    """Integers are never infinite, and MLX writes that out."""
    a = t.array(x[0])
    return t.full(a.shape, "bool_", value) if a.dtype in (*INTEGER, *BOOL) else None


def isinf(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _never(t, x) or t.logical("LogicalOr", isposinf(t, x, attrs), isneginf(t, x, attrs))


def isposinf(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _never(t, x) or t.binary("Equal", x[0], INFINITY, dtype="bool_")


def isneginf(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _never(t, x) or t.binary("Equal", x[0], Scalar(-math.inf), dtype="bool_")


def isnan(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    return _never(t, x) or t.binary("NotEqual", a, a, dtype="bool_")


def isfinite(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    never = _never(t, x, 1)
    return never or t.unary("LogicalNot", t.logical("LogicalOr", isinf(t, x, attrs), isnan(t, x, attrs)))


def _nan_to_num(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    if a.dtype in (*INTEGER, *BOOL):
        return a
    out = t.select(isnan(t, [a], attrs), Scalar(0.0), a)
    out = t.select(isposinf(t, [a], attrs), Scalar("largest"), out)
    return t.select(isneginf(t, [a], attrs), Scalar("smallest"), out)


def _isclose(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a, b = t.pair(x[0], x[1])
    near = t.binary("Multiply", t.constant("rtol", "float32"), t.unary("Abs", b))
    far = t.binary("Add", t.constant("atol", "float32"), near)
    out = t.binary("LessEqual", t.unary("Abs", t.binary("Subtract", a, b)), far, dtype="bool_")
    signs = [f(t, [v], attrs) for v in (t.array(x[0]), t.array(x[1])) for f in (isposinf, isneginf)]
    any_inf = t.logical(
        "LogicalOr", t.logical("LogicalOr", signs[0], signs[1]), t.logical("LogicalOr", signs[2], signs[3])
    )
    both = t.logical(
        "LogicalOr", t.logical("LogicalAnd", signs[0], signs[2]), t.logical("LogicalAnd", signs[1], signs[3])
    )
    out = t.logical("LogicalAnd", out, t.unary("LogicalNot", any_inf))
    return t.logical("LogicalOr", out, both)


def _round(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a, decimals = t.array(x[0]), attrs.get("decimals") or 0
    if decimals == 0:
        return t.unary("Round", a)
    dtype = at_least_float(a.dtype)
    scaled = t.binary("Multiply", a, t.constant(("scale", str(decimals)), dtype))
    out = t.binary("Multiply", t.unary("Round", scaled), t.constant(("1/scale", str(decimals)), dtype))
    return t.astype(out, a.dtype)


def _trunc(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    if a.dtype in INTEGER:
        return a
    below = t.binary("Less", a, ZERO, dtype="bool_")
    return t.select(below, t.unary("Ceil", a), t.unary("Floor", a))


def _logical_xor(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a, b = (t.astype(v, "bool_") for v in t.pair(x[0], x[1]))
    return t.binary("NotEqual", a, b, dtype="bool_")


def _sigmoid(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _float(t, "Sigmoid", x[0])


def _silu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    return t.binary("Multiply", a, _float(t, "Sigmoid", a))


def _float(t: Tracer, primitive: str, x: Operand) -> Array:
    return t.unary(primitive, t.array(x), floating=True)


def _gelu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    inner = t.binary("Add", _float(t, "Erf", t.binary("Divide", a, Scalar(math.sqrt(2)), floating=True)), ONE)
    return t.binary("Divide", t.binary("Multiply", a, inner), TWO, floating=True)


ONE, TWO, ZERO = Scalar(1, "int"), Scalar(2, "int"), Scalar(0, "int")


def _gelu_approx(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    cubic = t.binary("Multiply", t.binary("Power", a, Scalar(3, "int")), Scalar(0.044715))
    inner = t.binary("Multiply", t.binary("Add", a, cubic), Scalar(math.sqrt(2 / math.pi)))
    outer = t.binary("Add", _float(t, "Tanh", inner), ONE)
    return t.binary("Multiply", t.binary("Multiply", a, Scalar(0.5)), outer)


def _quick(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    return t.binary("Multiply", a, _float(t, "Sigmoid", t.binary("Multiply", a, Scalar(1.702))))


def _relu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Maximum", x[0], ZERO)


def _relu2(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.unary("Square", _relu(t, x, attrs))


def _relu6(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Minimum", _relu(t, x, attrs), Scalar(6.0))


def _leaky_relu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    slope = _number(attrs.get("negative_slope", 0.01))
    return t.binary("Maximum", t.binary("Multiply", x[0], slope), x[0])


def _softplus(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("LogAddExp", x[0], ZERO, floating=True)


def _log_sigmoid(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.unary("Negative", _softplus(t, [t.unary("Negative", t.array(x[0]))], attrs))


def _softsign(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    return t.binary("Divide", a, t.binary("Add", t.unary("Abs", a), ONE), floating=True)


def _elu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    grown = t.binary("Multiply", t.binary("Subtract", _float(t, "Exp", a), ONE), _number(attrs.get("alpha", 1.0)))
    return t.select(t.binary("Greater", a, ZERO, dtype="bool_"), a, grown)


def _selu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Multiply", _elu(t, x, {"alpha": 1.67326}), Scalar(1.0507))


def _celu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a, alpha = t.array(x[0]), _number(attrs.get("alpha", 1.0))
    low = t.binary("Divide", t.binary("Minimum", a, Scalar(0.0)), alpha, floating=True)
    grown = t.binary("Multiply", t.binary("Subtract", _float(t, "Exp", low), ONE), alpha)
    return t.binary("Add", t.binary("Maximum", a, Scalar(0.0)), grown)


def _prelu(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    slope = t.binary("Multiply", x[1], t.binary("Minimum", ZERO, x[0]))
    return t.binary("Add", t.binary("Maximum", ZERO, x[0]), slope)


def _mish(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    return t.binary("Multiply", a, _float(t, "Tanh", _softplus(t, [a], attrs)))


def _hardswish(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    a = t.array(x[0])
    top = t.binary("Maximum", t.binary("Add", a, Scalar(3, "int")), ZERO)
    inner = t.binary("Multiply", a, t.binary("Minimum", top, Scalar(6, "int")))
    return t.binary("Divide", inner, Scalar(6, "int"), floating=True)


def _hard_tanh(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    low = t.binary("Maximum", x[0], _number(attrs.get("min_val", -1.0)))
    return t.binary("Minimum", low, _number(attrs.get("max_val", 1.0)))


def _shrink(t: Tracer, x: list[Operand], attrs: Attrs, *, soft: bool) -> Array:
    a, bound = t.array(x[0]), _number(attrs.get("lambd", 0.5))
    far = t.binary("Greater", t.unary("Abs", a), bound, dtype="bool_")
    kept = t.binary("Subtract", a, t.binary("Multiply", t.unary("Sign", a), bound)) if soft else a
    return t.select(far, kept, ZERO)


def _hard_shrink(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _shrink(t, x, attrs, soft=False)


def _softshrink(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return _shrink(t, x, attrs, soft=True)


def _step(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    reached = t.binary("GreaterEqual", x[0], _number(attrs.get("threshold", 0.0)), dtype="bool_")
    return t.select(reached, ONE, ZERO)


def _where(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.select(x[0], x[1], x[2])


def _reciprocal(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Divide", Scalar(1.0), x[0], floating=True)


def _degrees(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Multiply", x[0], Scalar(180 / math.pi), floating=True)


def _radians(t: Tracer, x: list[Operand], attrs: Attrs) -> Array:
    return t.binary("Multiply", x[0], Scalar(math.pi / 180), floating=True)


COMPOSITES: dict[str, Expansion] = {
    "clip": _clip, "degrees": _degrees, "isclose": _isclose, "isfinite": isfinite, "isinf": isinf,
    "isnan": isnan, "isneginf": isneginf, "isposinf": isposinf, "logical_xor": _logical_xor,
    "nan_to_num": _nan_to_num, "radians": _radians, "reciprocal": _reciprocal, "round": _round, "trunc": _trunc,
    "where": _where,
}  # fmt: skip
ACTIVATIONS: dict[str, Expansion] = {
    "nn.celu": _celu, "nn.elu": _elu, "nn.gelu": _gelu, "nn.gelu_approx": _gelu_approx,
    "nn.gelu_fast_approx": _quick, "nn.hard_shrink": _hard_shrink, "nn.hard_tanh": _hard_tanh,
    "nn.hardswish": _hardswish, "nn.leaky_relu": _leaky_relu, "nn.log_sigmoid": _log_sigmoid, "nn.mish": _mish,
    "nn.prelu": _prelu, "nn.relu": _relu, "nn.relu2": _relu2, "nn.relu6": _relu6, "nn.selu": _selu,
    "nn.sigmoid": _sigmoid, "nn.silu": _silu, "nn.softplus": _softplus, "nn.softshrink": _softshrink,
    "nn.softsign": _softsign,
    "nn.step": _step,
}  # fmt: skip
"""mlx.nn functions under @mx.compile(shapeless=True): one kernel each when called from code that isn't compiled."""
