"""FUS242: advice. How x and the index broadcast is not the same for both forms."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix


def fix(graph: Graph, match: Match) -> NoFix:
    return NoFix("mx.gather_mm(x, w, rhs_indices=indices) reads the matrices in place; mx.gather_qmm does where packed")
