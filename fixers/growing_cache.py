"""FUS109: advice. The room and the count of its rows belong to the cache, and to those that make it."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix


def fix(graph: Graph, match: Match) -> NoFix:
    return NoFix("allocate room for many steps, write the new rows into a slice, and attend to the slice that is full")
