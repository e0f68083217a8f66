"""FUS108 has no fix of its own: the work moves into the loading of the weights, which changes a checkpoint."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix


def fix(graph: Graph, match: Match) -> NoFix:
    return NoFix("store the computed value when the weights are loaded, unless they are trained")
