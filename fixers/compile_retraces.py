"""FUS407: advice. Whether the compiled function can take an array there is for the author to say."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return NoFix("pass it as mx.array(value, x.dtype), with the dtype of what it is combined with: one trace for all")
