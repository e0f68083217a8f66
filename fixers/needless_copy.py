"""The fix of FUS106: the operation without the copy."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return Replacement(parts=tuple(Part(root, text) for root, text in match.data["parts"]), holes=match.holes)
