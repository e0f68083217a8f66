"""FUS251: mx.softmax with precise=True, mx.logsumexp, or x - mx.logsumexp(x)."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    templates = {
        "softmax": "{mx}.softmax({x}, axis=-1, precise=True)",
        "logsumexp": "{mx}.logsumexp({x}, axis=-1" + (", keepdims=True)" if match.data.get("keepdims") else ")"),
        "log_softmax": "{x} - {mx}.logsumexp({x}, axis=-1, keepdims=True)",
    }
    return Replacement(
        parts=(Part(match.root, templates[match.data["to"]]),),
        holes=match.holes,
        needs=tuple(o.claim for o in match.obligations if o.verdict == "unknown"),
    )
