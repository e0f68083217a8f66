"""FUS303: advice. The list has to be made before the loop."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    name = next(iter(match.data["names"]), "x")
    return NoFix(f"make a list before the loop, with {name}.tolist(), and read that: one wait for all")
