"""The fix of FUS105: an operand that takes the activation's dtype."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if "no_fix" in match.data:
        return NoFix(match.data["no_fix"])
    return Replacement(
        parts=(Part(match.root, match.data["template"]),),
        holes=match.holes,
        cap="unsafe",
        because="the result has the dtype of the activation then, not float32",
    )
