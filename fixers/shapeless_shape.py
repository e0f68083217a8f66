"""FUS405: advice. Whether shapes are few enough for plain compile is for the author to say."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return NoFix(
        "leave shapeless=True out (each new shape is traced once), or take the part that depends on the shape "
        "out of the compiled function"
    )
