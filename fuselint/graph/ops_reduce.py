"""Ops of mlx.core over axes: reductions, scans, softmax, sorting."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, Op, PrimitiveRule
from fuselint.graph.ops_row import AXIS, row
from fuselint.graph.shapes import Shape


def reductions() -> Iterator[Op]:
    for name, dtype in (
        ("sum", r.summed_dtype),
        ("prod", r.summed_dtype),
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
        r.twice(r.reduced),
        r.both(r.same_dtype),
        result="arrays",
        recorded=lambda c: _reduction("Reduce")(c) * 2,
    )


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


def table() -> Iterator[Op]:
    for part in (reductions, scans):
        yield from part()
