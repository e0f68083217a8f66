"""The losses of mlx.nn.losses."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, DTypeRule, Op, ShapeRule
from fuselint.graph.ops_row import row
from fuselint.graph.shapes import SCALAR, Shape

PAIR = "inputs: A, targets: A"
PREDICTED = "predictions: A, targets: A"

EACH = {
    "mse_loss": (f"{PREDICTED}, reduction='mean'", "Subtract Square"),
    "l1_loss": (f"{PREDICTED}, reduction='mean'", "Subtract Abs"),
    "smooth_l1_loss": (
        f"{PREDICTED}, beta=1.0, reduction='mean'",
        "Subtract Abs Less Square Multiply Divide Abs Subtract Select",
    ),
    "huber_loss": (
        f"{PAIR}, delta=1.0, reduction='none'",
        "Subtract Abs Minimum Power Multiply Subtract Multiply Add",
    ),
    "hinge_loss": (f"{PAIR}, reduction='none'", "Multiply Subtract Maximum"),
    "log_cosh_loss": (f"{PAIR}, reduction='none'", "Subtract Negative LogAddExp Subtract"),
    "gaussian_nll_loss": (
        f"{PAIR}, vars: A, full=False, eps=1e-6, reduction='mean'",
        "Maximum Log Subtract Square Divide Add Multiply",
    ),
    "margin_ranking_loss": (
        "inputs1: A, inputs2: A, targets: A, margin=0.0, reduction='none'",
        "Subtract Negative Multiply Add Maximum",
    ),
    "binary_cross_entropy": (
        f"{PAIR}, weights: A = None, with_logits=True, reduction='mean'",
        "LogAddExp Multiply Subtract",
    ),
}
"""Losses of each element: signature, and the primitives before the reduction."""

OVER_AXIS = {
    "cross_entropy": (
        "logits: A, targets: A, weights: A = None, axis=-1, label_smoothing=0.0, reduction='none'",
        "Reduce Subtract ExpandDims GatherAxis Squeeze LogSumExp Squeeze Subtract",
    ),
    "kl_div_loss": (f"{PAIR}, axis=-1, reduction='none'", "Exp Subtract Multiply Reduce Squeeze"),
    "nll_loss": (f"{PAIR}, axis=-1, reduction='none'", "ExpandDims GatherAxis Squeeze Negative"),
    "triplet_loss": (
        "anchors: A, positives: A, negatives: A, axis=-1, p=2, margin=1.0, eps=1e-6, reduction='none'",
        "Subtract Abs Power Reduce Squeeze Add Power Subtract Abs Power Reduce Squeeze Add Power Subtract Add Maximum",
    ),
    "cosine_similarity_loss": (
        "x1: A, x2: A, axis=1, eps=1e-8, reduction='none'",
        "Square Reduce Squeeze Sqrt Square Reduce Squeeze Sqrt Multiply Reduce Squeeze Multiply Maximum Divide",
    ),
}
"""Losses over an axis, which goes."""

INTEGER_DTYPES: dict[str, DTypeRule] = {
    "cross_entropy": r.floated,
    "nll_loss": r.same_dtype,
    "mse_loss": r.promoted,
    "l1_loss": r.promoted,
    "hinge_loss": r.promoted,
}
"""Losses that keep integers without a mean, or whose other operand is indices. The rest computes in floating point."""


def table() -> Iterator[Op]:
    for losses, shape in ((EACH, _each), (OVER_AXIS, _over_axis)):
        for name, (signature, primitives) in losses.items():
            dtype = _floated_by_mean(INTEGER_DTYPES.get(name, r.promoted_float))
            yield row(
                name, "loss", signature, primitives, _reduced(shape), dtype, module="mlx.nn.losses", recorded=_loss
            )


def _loss(c: Call) -> tuple[str, ...]:
    after = {"mean": ("Reduce", "Squeeze", "Multiply"), "sum": ("Reduce", "Squeeze")}
    return (*c.op.primitives, *after.get(str(c.attrs.get("reduction")), ()))


def _floated_by_mean(rule: DTypeRule) -> DTypeRule:
    def dtype(c: Call) -> DType:
        d = rule(c)
        assert isinstance(d, DType)
        return d.floated() if c.attrs.get("reduction") == "mean" else d

    return dtype


def _each(c: Call) -> Shape | None:
    return r.broadcasted(c)


def _over_axis(c: Call) -> Shape | None:
    shape, axis = c.shape(0), c.integer("axis")
    return None if shape is None or axis is None else shape.replace(axis, ())


def _reduced(rule: ShapeRule) -> ShapeRule:
    """A number under `mean` and `sum`."""

    def reduction(c: Call) -> Shape | None:
        how = c.attrs.get("reduction")
        if how in ("mean", "sum"):
            return SCALAR
        shape = rule(c)
        return shape if how == "none" and not isinstance(shape, tuple) else None

    return reduction
