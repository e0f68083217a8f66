"""FUS251 unfused-softmax: softmax, log-softmax or logsumexp of the last axis, written out.

What it does: finds `exp(x - max(x)) / sum(exp(...))` in any spelling, `log(sum(exp(x)))` and `log(softmax(x))`.

Why: each step writes an array as large as x and reads it back: five kernels for softmax, where MLX has one. Without
the maximum, `exp` overflows: from 88 in float32, from 11 in float16.

When not to: on another axis than the last MLX has no kernel of its own either. An eps in the denominator makes it
another function. Numbers instead of arrays.

Fix safety: softmax is safe. `mx.softmax(x, axis=-1, precise=True)` computes in float32 inside: never less accurate.
Without `precise` half precision would be worse than what was written. With logsumexp unsafe: MLX's raises for an empty
array, where the code written out returns an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import EXPONENTIALS
from fuselint.rulebook import Example, FusedKernel, Match

CODE, NAME = "FUS251", "unfused-softmax"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

SOFTMAX = ("softmax", "nn.softmax", "nn.Softmax")


def unfused(x: Any) -> Any:
    import mlx.core as mx

    e = mx.exp(x - mx.max(x, axis=-1, keepdims=True))
    return e / mx.sum(e, axis=-1, keepdims=True)


def fused(x: Any) -> Any:
    import mlx.core as mx

    return mx.softmax(x, axis=-1, precise=True)


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        divided = n.op == "divide" and is_made_with(n, ("sum",), 3)
        if (divided or n.op == "log") and is_made_with(n, ("exp", *SOFTMAX)):
            yield n


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.ops.isdisjoint(EXPONENTIALS):
        return
    for node in graph.nodes:
        match = _softmax(graph, node) or _logsumexp(graph, node) or _log_softmax(graph, node)
        if match is not None:
            yield match


def _softmax(graph: Graph, root: Node) -> Match | None:
    """A quotient whose value is a softmax."""
    if root.op not in ("divide", "multiply"):
        return None
    value = graph.canonical.of(root)
    if value.op != "softmax" or value.param("axes") != (-1,):
        return None
    x = graph.canonical.last_in(root, value.args[0])
    if x is None:
        return None
    shifted = any(n.op == "max" for n in region(root, [x]))
    why = "it is more accurate" if shifted else "it does not overflow: the maximum is subtracted first"
    return _made(graph, root, x, "softmax written out", f"a softmax of the last axis; {why}", "softmax", {})


def _logsumexp(graph: Graph, root: Node) -> Match | None:
    """log(sum(exp(x), axis=-1))."""
    total = root.inputs[0] if root.op == "log" and root.inputs else None
    if total is None or total.op != "sum" or total.inputs[0].op != "exp":
        return None
    x = total.inputs[0].inputs[0]
    keepdims = total.attrs.get("keepdims")
    if graph.canonical.axes(total.inputs[0], total.attrs.get("axis")) != (-1,) or not isinstance(keepdims, bool):
        return None
    why = "the logarithm of a sum of exponentials; the maximum is subtracted first"
    return _made(graph, root, x, "logsumexp written out", why, "logsumexp", {"keepdims": keepdims})


def _log_softmax(graph: Graph, root: Node) -> Match | None:
    """log(softmax(x))."""
    inner = root.inputs[0] if root.op == "log" and root.inputs else None
    if inner is None or inner.op not in SOFTMAX or inner.attrs.get("precise"):
        return None
    if graph.canonical.axes(inner.inputs[0], inner.attrs.get("axis", -1)) != (-1,):
        return None
    why = "where a weight rounds to 0 its logarithm is -inf; x - logsumexp(x) is exact there"
    return _made(graph, root, inner.inputs[0], "the logarithm of a softmax", why, "log_softmax", {})


def _made(graph: Graph, root: Node, x: Node, message: str, because: str, to: str, data: dict[str, Any]) -> Match | None:
    facts = graph.facts
    if facts.kind(root) != "array":
        return None
    inside = region(root, [x])
    own = set(inside)
    read = [n for n in own - {root} if n in graph.escaping or any(u not in own for u in graph.users.get(n, ()))]
    if any(facts.kind(n) == "array" for n in read):
        return None  # the exponentials are needed anyway
    numerics: Numerics = "more accurate"
    same = facts.dtype(root) == facts.dtype(x)
    obligations = [
        Obligation("the axis is the last", "proven", because),
        Obligation(
            "the result keeps its dtype",
            "proven" if same else "unknown",
            f"{facts.dtype(x)} in, {facts.dtype(root)} out",
        ),
    ]
    if to != "softmax":
        obligations.append(
            Obligation("the array is not empty", "unknown", "mx.logsumexp raises for one, the code does not")
        )
    return Match(
        code=CODE,
        root=root,
        holes={"x": x},
        message=message,
        obligations=obligations,
        region=frozenset(inside),
        fused=(FusedKernel("x - mx.logsumexp(x)" if to == "log_softmax" else to, (x,), root),),
        shapes={"x": ("...", "D")},
        numerics=numerics if same else "different dtype",
        data={"to": to, **data},
    )


EXAMPLES = [
    Example(
        HEAD + "def weights(x: mx.array):\n"
        "    e = mx.exp(x - x.max(axis=-1, keepdims=True))\n"
        "    return e / e.sum(axis=-1, keepdims=True)\n",
        fixed=HEAD + "def weights(x: mx.array):\n    return mx.softmax(x, axis=-1, precise=True)\n",
    ),
    Example(
        HEAD + "def partition(x: mx.array):\n    return mx.log(mx.sum(mx.exp(x), axis=-1))\n",
        fixed=HEAD + "def partition(x: mx.array):\n    return mx.logsumexp(x, axis=-1)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def log_probs(x: mx.array):\n    return mx.log(mx.softmax(x, axis=-1))\n",
        fixed=HEAD + "def log_probs(x: mx.array):\n    return x - mx.logsumexp(x, axis=-1, keepdims=True)\n",
        applicability="unsafe",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def f(x: mx.array):\n    e = mx.exp(x)\n    return e / (e.sum(axis=-1, keepdims=True) + 1e-6)\n",
        why="an eps in the denominator",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    e = mx.exp(x)\n    return e / e.sum(axis=0, keepdims=True)\n",
        why="another axis: MLX has no kernel for it either",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    return mx.exp(x) / mx.sum(mx.exp(2 * x), axis=-1, keepdims=True)\n",
        why="other exponents below",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    e = mx.exp(x)\n    return e / e.sum(axis=-1, keepdims=True), e\n",
        why="the exponentials are returned as well",
    ),
]
