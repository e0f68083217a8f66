"""FUS203 unfused-l2-norm: rows scaled to length 1 by hand, instead of by mx.fast.rms_norm.

What it does: finds `x * rsqrt(sum(x^2) + eps)` and `x / norm(x)` over the last axis, in any spelling, with a number or
a weight that multiplies the result.

Why it is bad: square, sum, root and division are kernels, each with its own trip to DRAM. MLX has no kernel for this
norm, but `sum(x^2) + eps = d * (mean(x^2) + eps / d)`: it is an RMS norm with eps / d whose weight is d ** -0.5
everywhere. The number stands in the weight, not behind the call: a multiplication would move x twice more.

Traffic: 10 bytes an element in half precision, 32 with float32 inside, against 4; the weight is one row more.

Fix safety: safe where everything is in x's dtype: the fused kernel is never less accurate, and half precision can't
overflow in the square any more. With float32 inside and a cast back it is safe only where d is known to be a power of
4: else d ** -0.5 is no number of half precision, and the result is off by one rounding more. Unsafe where the result's
dtype may change.

When not to: `x / (norm + eps)` and `x / max(norm, eps)` are other functions near zero: the fused form would be NaN, or
off, in rows of zeros. Short rows, such as directions in space, which a kernel of one group a row does not serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log2
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.norm_operands import (
    FLOAT32,
    NOTHING,
    POLICIES,
    best_matches,
    dtype_stays,
    eps_hole,
    held,
    helpers,
    is_number,
    narrow,
    numerator,
    policy_of,
    weight_of,
    wide_operand,
)
from fuselint.graph.norms import LAST, Norm, readings, roots
from fuselint.graph.worth import is_read_out
from fuselint.rulebook import Example, FusedKernel, Hole, Made, Match
from fuselint.standing import is_value_of_its_call

CODE, NAME = "FUS203", "unfused-l2-norm"
nearly = roots
ONE_VALUE = True

SHORT = 16
"""Rows below this length are left alone."""

SMALLEST = 1e-30
"""An eps below this may vanish when it is divided by the length."""


def unfused(x: Any, eps: Any) -> Any:
    import mlx.core as mx

    return x * mx.rsqrt(mx.sum(mx.square(x), axis=-1, keepdims=True) + eps)


def fused(x: Any, eps: Any) -> Any:
    import mlx.core as mx

    d = x.shape[-1]
    return mx.fast.rms_norm(x, mx.full((d,), d**-0.5, x.dtype), eps / d)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for best in best_matches(graph, "l2", _match):
        if is_value_of_its_call(graph, best.root):  # else it is the helper's own finding
            yield best


def _match(graph: Graph, chain: list[Node], *, wide: bool = False) -> Match | None:
    """wide: x with its cast to float32, so that a result that stays float32 keeps its dtype."""
    c, read, root = graph.canonical, readings(graph, "l2"), chain[-1]
    norm = read[root]
    if norm is None or norm.axes != LAST or (found := numerator(graph, root, norm)) is None:
        return None
    written, ratio = found
    x = narrow(graph, written)
    eps = eps_hole(graph, root, c.algebra.scale(norm.eps, ratio * ratio))
    number = norm.eps.number
    if eps is None or graph.facts.dtype(x).integral or (number is not None and 0 < number * ratio**2 < SMALLEST):
        return None
    holes: dict[str, Hole] = {"x": x}
    scale = c.algebra.product(norm.scale, [(b, e) for b, e in norm.rest if b.scalar])
    arrays = Norm(norm.kind, norm.axes, norm.x, norm.eps, tuple((b, e) for b, e in norm.rest if not b.scalar))
    weight = weight_of(graph, root, arrays, x)
    if weight is None or not weight.is_known:
        return None
    if weight is not NOTHING and weight.hole is not None:
        holes["weight"] = weight.hole
    if not scale.is_number(1.0):
        factor = c.as_hole(scale)
        if factor is None:
            return None
        holes["scale"] = factor
    if not norm.eps.is_number(0.0):
        holes["eps"] = eps
    length = _length(graph, x)
    if length is None and graph.context.shapeless:  # the length of the first call would stay for all
        return None
    if length is not None and length < SHORT:
        return None
    policy, cast = policy_of(graph, chain, read, x), False
    kept = dtype_stays(graph, root, (x, *weight.nodes), eps)
    if wide:
        (x, cast), kept = wide_operand(graph, written, x), dtype_stays(graph, root, (written, *weight.nodes), eps)
        holes["x"] = x
        if kept.verdict != "proven":
            return None
    owned = region(root, [n for h in holes.values() for n in held(h)])
    size = "D" if length is None else str(length)
    label = "llama" if policy == "float32" and kept.verdict == "proven" else policy
    if is_read_out(graph, root):
        return None
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=f"hand-written L2 norm{POLICIES[label]}",
        obligations=[
            Obligation("the sum is over the last axis", "proven", "its axis is -1, or the rank says so"),
            Obligation("the value that is squared is the value that is scaled", "proven", "they are one value"),
            is_number(graph, eps),
            *weight.obligations,
            kept,
        ],
        region=frozenset(owned),
        fused=(FusedKernel("fast.rms_norm", (x,), root, made=(_scaled_weight(x, weight.nodes),), wide=cast),),
        shapes={"x": ("...", size), **({"weight": (size,)} if weight.hole is not None else {})},
        dtypes={"weight": "weight"} if weight.hole is not None else {},
        numerics=_numerics(graph, "none" if wide else policy, written if wide else x, kept, length),
        related=helpers(root, owned),
        data={"policy": policy, "keeps_dtype": kept.verdict == "proven", "cast": cast, "length": length},
    )


def _scaled_weight(x: Node, weight: Sequence[Node]) -> Made:
    """d ** -0.5 for every entry of a row, or times the weight."""
    return Made("multiply", weight[0], tuple(weight)) if weight else Made("full", x)


def _length(graph: Graph, x: Node) -> int | None:
    """The length of x's last axis, where the source says it."""
    shape = graph.facts.shape(x)
    size = None if shape is None else shape.axis(-1)
    return None if size is None else size.value()


def _numerics(graph: Graph, policy: str, x: Node, kept: Obligation, length: int | None) -> Numerics:
    if kept.verdict != "proven":
        return "different dtype"
    if policy == "none":
        return "reassociated" if graph.facts.dtype(x) == FLOAT32 else "more accurate"
    exact = policy == "llama" and length is not None and log2(length) % 2 == 0
    return "reassociated" if exact else "less accurate"


HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

EXAMPLES = [
    Example(
        HEAD + "def unit(x, eps=1e-6):\n    return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + eps)\n",
        HEAD
        + """def unit(x, eps=1e-6):
    return mx.fast.rms_norm(
        x, mx.full(x.shape[-1:], x.shape[-1] ** -0.5, x.dtype), eps / x.shape[-1]
    )
""",
        why="everything in x's dtype",
    ),
    Example(
        HEAD + "def unit(x):\n    return x / mx.linalg.norm(x, axis=-1, keepdims=True)\n",
        HEAD
        + """def unit(x):
    return mx.fast.rms_norm(x, mx.full(x.shape[-1:], x.shape[-1] ** -0.5, x.dtype), 0.0)
""",
        why="no eps: a row of zeros is NaN before and after",
    ),
    Example(
        HEAD
        + """def queries(x):
    q = x.reshape(2, -1, 8, 64).astype(mx.float32)
    q = q / mx.sqrt(mx.sum(q**2, axis=-1, keepdims=True) + 1e-6)
    return q.astype(x.dtype)
""",
        HEAD
        + """def queries(x):
    x2 = x.reshape(2, -1, 8, 64)
    return mx.fast.rms_norm(x2, mx.full((64,), 0.125, x2.dtype), 1e-6 / 64)
""",
        why="float32 inside; 64 ** -0.5 is exact",
    ),
    Example(
        HEAD
        + """def unit(x):
    h = x.astype(mx.float32)
    h = h * mx.rsqrt(mx.sum(h * h, axis=-1, keepdims=True) + 1e-6)
    return h.astype(x.dtype)
""",
        HEAD
        + """def unit(x):
    return mx.fast.rms_norm(
        x, mx.full(x.shape[-1:], x.shape[-1] ** -0.5, x.dtype), 1e-6 / x.shape[-1]
    )
""",
        applicability="unsafe",
        why="float32 inside, and nothing says that the length is a power of 4",
    ),
    Example(
        HEAD
        + """def _unit(x):
    x = x.astype(mx.float32)
    return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def queries(q):
    return _unit(q) * 0.125
""",
        HEAD
        + """def queries(q):
    return mx.fast.rms_norm(
        q,
        mx.full(q.shape[-1:], 0.125 * q.shape[-1] ** -0.5, mx.float32),
        1e-6 / q.shape[-1],
    )
""",
        why="the result stays float32, and the factor is a part of the weight",
    ),
]


def _expression(expression: str, why: str, arguments: str = "x, w") -> Example:
    return Example(f"{HEAD}def f({arguments}):\n    return {expression}\n", why=why)


COUNTEREXAMPLES = [
    _expression("x / (mx.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)", "eps outside the root"),
    _expression("x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), 1e-6)", "a floor under the norm"),
    _expression(
        "x * mx.rsqrt(mx.maximum(mx.sum(x * x, axis=-1, keepdims=True), 1e-12))", "a floor under the sum of squares"
    ),
    _expression("x / mx.linalg.norm(x, axis=1, keepdims=True)", "another axis"),
    _expression("x / mx.linalg.norm(x)", "all of it"),
    _expression("w / mx.linalg.norm(x, axis=-1, keepdims=True)", "another numerator"),
    _expression("x / mx.linalg.norm(x, ord=1, axis=-1, keepdims=True)", "the sum of absolute values"),
    _expression("x / mx.linalg.norm(x, axis=-1)", "the sum loses its axis: rows and columns mix"),
    _expression(
        "x.reshape(-1, 3) / mx.linalg.norm(x.reshape(-1, 3), axis=-1, keepdims=True)", "directions: short rows"
    ),
    _expression("x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6)", "a mean: FUS201's"),
]
