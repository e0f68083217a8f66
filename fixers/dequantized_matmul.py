"""FUS241: mx.quantized_matmul with the options of the dequantize call."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    needs = tuple(o.claim for o in match.obligations if o.verdict == "unknown")
    return Replacement(parts=(Part(match.root, match.data["template"]),), holes=match.holes, needs=needs)
