"""The fix of FUS204: mx.fast.layer_norm over rows that hold the axes, and back."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["cast"]:
        return NoFix("x is cast to float32 inside a helper")
    return Replacement(parts=(Part(match.root, match.data["call"]),), holes=match.holes)
