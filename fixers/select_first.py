"""FUS107: the selection goes before the work."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if "no_fix" in match.data:
        return NoFix(match.data["no_fix"])
    return Replacement(
        parts=(Part(match.root, match.data["template"]),),
        holes=match.holes,
        message=match.data["message"],
        needs=tuple(o.claim for o in match.obligations if o.verdict == "unknown"),
    )
