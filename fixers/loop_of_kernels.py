"""FUS305: advice. Which axes become batch axes is a decision on layouts."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix


def fix(graph: Graph, match: Match) -> NoFix:
    return NoFix("one product of arrays with leading axes, or mx.einsum, computes all steps in one kernel")
