"""FUS404: advice. To capture the state changes what is drawn, which only the author can want."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return NoFix(
        "compile it with functools.partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state), "
        "or pass a key from mx.random.split to each draw; either changes what is drawn"
    )
