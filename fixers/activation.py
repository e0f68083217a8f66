"""FUS261: the function of mlx.nn, or mx.sigmoid."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return Replacement(parts=(Part(match.root, match.data["call"]),), holes=match.holes)
