"""Ops of mlx.core on each element."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, Op
from fuselint.graph.ops_row import row

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
    yield row("divmod", "composite", ab, "DivMod", r.twice(r.broadcasted), r.both(r.promoted), result="arrays")
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


def table() -> Iterator[Op]:
    for part in (unary, binary, composites):
        yield from part()
