"""Losses: mx.fast.cross_entropy, and those of mlx.nn.losses as mlx/nn/losses.py writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuselint.graph import tape_views as v
from fuselint.graph.dtypes import INTEGER
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.expand_views import gather_along
from fuselint.graph.shapes import Shape
from fuselint.graph.tape import Array, Operand, Scalar, Tracer
from fuselint.graph.tape_views import ONE, known


def _cross_entropy(w: Applied) -> Result | None:
    """mx.fast.cross_entropy."""
    logits, targets = w.a, w.array("targets")
    if targets is None:
        return None
    if w.gates.fuses_cross_entropy:
        return w.make("CrossEntropy", [logits, targets])
    return w.t.astype(entropy_steps(w.t, logits, targets), "float32")


def entropy_steps(t: Tracer, logits: Array, targets: Array, *, shifted: bool = False) -> Array:
    """What mx.fast.cross_entropy stands for; shifted: as mlx.nn.losses has it."""
    kept = None if logits.shape is None else logits.shape.replace(-1, (ONE,))
    if shifted:
        logits = t.binary("Subtract", logits, t.unary("StopGradient", t.reduce("max", logits, kept)))
    dims = known(logits)
    found = gather_along(t, logits, v.expand_dims(t, targets, [-1]), len(dims) - 1) if dims else None
    if found is not None:
        score = v.squeeze(t, found, [-1])
    else:
        index = t.make("ExpandDims", (targets,), kept, targets.dtype)
        score = t.make("GatherAxis", (logits, index), kept, logits.dtype)
        score = t.make("Squeeze", (score,), targets.shape, logits.dtype)
    total = v.squeeze(t, t.make("LogSumExp", (logits,), kept, logits.dtype), [-1])
    return t.binary("Subtract", total, score)


def _nn_cross_entropy(w: Applied) -> Result | None:
    logits, targets = w.a, w.array("targets")
    plain = w.operand("weights") is None and w.attr("label_smoothing") in (0, 0.0) and w.attr("axis") == -1
    if targets is None or not plain or targets.dtype not in INTEGER:
        return None
    if w.gates.fuses_cross_entropy:
        loss = w.t.make("CrossEntropy", (logits, targets), targets.shape, "float32")
        loss = w.t.astype(loss, logits.dtype)
    else:
        loss = entropy_steps(w.t, logits, targets, shifted=True)
    return _reduction(w, loss)


def _reduction(w: Applied, loss: Array) -> Array:
    t, how = w.t, w.attr("reduction")
    if how not in ("mean", "sum"):
        return loss
    rank = None if loss.shape is None else loss.shape.rank
    kept = Shape.of(*[1] * rank) if rank is not None else Shape.of(1)
    total = v.squeeze(t, t.reduce("sum", loss, kept), list(range(rank)) if rank is not None else None)
    if how == "sum":
        return total
    count = t.inverse_count(loss, kept)
    return t.binary("Multiply", total, count if isinstance(count, Array) else t.constant(count.value, loss.dtype))


# -- of each element ---------------------------------------------------------------------------------------------------


def _mse(t: Tracer, x: list[Array], w: Applied) -> Array:
    return t.unary("Square", t.binary("Subtract", x[0], x[1]))


def _l1(t: Tracer, x: list[Array], w: Applied) -> Array:
    return t.unary("Abs", t.binary("Subtract", x[0], x[1]))


def _smooth_l1(t: Tracer, x: list[Array], w: Applied) -> Array:
    beta, half = _argument(w, "beta"), _argument(w, "beta", 0.5)
    difference = t.unary("Abs", t.binary("Subtract", x[0], x[1]))
    near = t.binary("Less", difference, beta, dtype="bool_")
    squared = t.binary("Multiply", t.unary("Square", difference), HALF)
    squared = t.binary("Divide", squared, beta, floating=True)
    straight = t.binary("Subtract", t.unary("Abs", difference), half)
    return t.select(near, squared, straight)


def _huber(t: Tracer, x: list[Array], w: Applied) -> Array:
    delta = _argument(w, "delta")
    size = t.unary("Abs", t.binary("Subtract", x[0], x[1]))
    quadratic = t.binary("Minimum", size, delta)
    linear = t.binary("Subtract", size, quadratic)
    squared = t.binary("Power", quadratic, Scalar(2, "int"))
    return t.binary("Add", t.binary("Multiply", squared, HALF), t.binary("Multiply", linear, delta))


def _hinge(t: Tracer, x: list[Array], w: Applied) -> Array:
    return t.binary("Maximum", t.binary("Subtract", Scalar(1, "int"), t.binary("Multiply", x[0], x[1])), NOUGHT)


def _log_cosh(t: Tracer, x: list[Array], w: Applied) -> Array:
    errors = t.binary("Subtract", x[0], x[1])
    total = t.binary("LogAddExp", errors, t.unary("Negative", errors), floating=True)
    return t.binary("Subtract", total, Scalar("log(2)"))


def _gaussian(t: Tracer, x: list[Array], w: Applied) -> Array:
    inputs, targets, variance = x
    variance = t.binary("Maximum", variance, _argument(w, "eps"))
    squared = t.unary("Square", t.binary("Subtract", targets, inputs))
    logarithm = t.unary("Log", variance, floating=True, key="log")
    both = t.binary("Add", logarithm, t.binary("Divide", squared, variance, floating=True))
    out = t.binary("Multiply", both, HALF)
    return out if w.attr("full") is False else t.binary("Add", out, Scalar("log(2 pi) / 2"))


def _margin(t: Tracer, x: list[Array], w: Applied) -> Array:
    first, second, targets = x
    difference = t.binary("Subtract", first, second)
    turned = t.binary("Multiply", t.unary("Negative", targets), difference)
    return t.binary("Maximum", t.binary("Add", turned, _argument(w, "margin")), NOUGHT)


def _binary_entropy(t: Tracer, x: list[Array], w: Applied) -> Array | None:
    if w.attr("with_logits") is not True or w.operand("weights") is not None:
        return None
    spread = t.binary("LogAddExp", Scalar(0.0), x[0], floating=True)
    return t.binary("Subtract", spread, t.binary("Multiply", x[0], x[1]))


HALF, NOUGHT = Scalar(0.5), Scalar(0, "int")

Loss = Callable[[Tracer, "list[Array]", Applied], "Array | None"]


def _argument(w: Applied, name: str, times: float = 1) -> Operand:
    value: Any = w.attr(name)
    number = value * times if isinstance(value, (int, float)) else (name, times)
    return Scalar(number, "int" if isinstance(number, int) else "float")


# -- over an axis ------------------------------------------------------------------------------------------------------


def _divergence(t: Tracer, x: list[Array], w: Applied) -> Array | None:
    inputs, targets = x
    each = t.binary("Multiply", t.unary("Exp", targets, floating=True), t.binary("Subtract", targets, inputs))
    return _sum(w, each)


def _likelihood(t: Tracer, x: list[Array], w: Applied) -> Array | None:
    inputs, targets = x
    axis, dims = w.integer("axis"), known(inputs)
    found = None
    if axis is not None and dims:
        found = gather_along(t, inputs, v.expand_dims(t, targets, [axis]), axis % len(dims))
    return None if found is None or axis is None else t.unary("Negative", v.squeeze(t, found, [axis]))


def _triplet(t: Tracer, x: list[Array], w: Applied) -> Array | None:
    near, far = (_distance(t, x[0], other, w) for other in x[1:])
    if near is None or far is None:
        return None
    apart = t.binary("Add", t.binary("Subtract", near, far), _argument(w, "margin"))
    return t.binary("Maximum", apart, NOUGHT)


def _distance(t: Tracer, a: Array, b: Array, w: Applied) -> Array | None:
    each = t.binary("Power", t.unary("Abs", t.binary("Subtract", a, b)), _argument(w, "p"))
    total = _sum(w, each)
    if total is None:
        return None
    return t.binary("Power", t.binary("Add", total, _argument(w, "eps")), Scalar(("1 /", w.attr("p"))))


def _cosine(t: Tracer, x: list[Array], w: Applied) -> Array | None:
    squares = [_sum(w, t.unary("Square", a)) for a in x]
    together = _sum(w, t.binary("Multiply", x[0], x[1]))
    if together is None or squares[0] is None or squares[1] is None:
        return None
    lengths = [t.unary("Sqrt", s, floating=True, key="sqrt") for s in squares if s is not None]
    least = t.binary("Maximum", t.binary("Multiply", *lengths), _argument(w, "eps"))
    return t.binary("Divide", together, least, floating=True)


def _sum(w: Applied, a: Array) -> Array | None:
    axis = w.integer("axis")
    kept = None if a.shape is None or axis is None else a.shape.replace(axis, (ONE,))
    return None if kept is None or axis is None else v.squeeze(w.t, w.t.reduce("sum", a, kept), [axis])


LOSSES: dict[str, Loss] = {
    "mse_loss": _mse, "l1_loss": _l1, "smooth_l1_loss": _smooth_l1, "huber_loss": _huber, "hinge_loss": _hinge,
    "log_cosh_loss": _log_cosh, "gaussian_nll_loss": _gaussian, "margin_ranking_loss": _margin,
    "binary_cross_entropy": _binary_entropy, "kl_div_loss": _divergence, "nll_loss": _likelihood,
    "triplet_loss": _triplet, "cosine_similarity_loss": _cosine,
}  # fmt: skip


def _reduced(loss: Loss) -> Expand:
    def expand(w: Applied) -> Result | None:
        each = loss(w.t, w.arrays, w)
        return None if each is None else _reduction(w, each)

    return expand


EXPANDED: dict[str, Expand] = {
    "fast.cross_entropy": _cross_entropy,
    "nn.losses.cross_entropy": _nn_cross_entropy,
    **{f"nn.losses.{name}": _reduced(loss) for name, loss in LOSSES.items()},
}
