"""FUS101: the repeated keys and values become what they were repeated from."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    k_root, v_root = match.data["roots"]
    return Replacement(
        parts=(Part(k_root, "{k}"), Part(v_root, "{v}")),
        holes=match.holes,
        message="keys and values go to attention as they are",
        needs=tuple(o.claim for o in match.obligations if o.verdict == "unknown"),
        requires=match.data["requires"],
    )
