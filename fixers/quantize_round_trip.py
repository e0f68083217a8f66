"""FUS103: advice. Without the rounding the values are others."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix


def fix(graph: Graph, match: Match) -> NoFix:
    return NoFix(match.data["no_fix"])
