"""FUS406: advice. What belongs to the state is for the author to say."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return NoFix(
        "capture the state: state = [model.state, optimizer.state], compiled with "
        "functools.partial(mx.compile, inputs=state, outputs=state); with random draws mx.random.state too"
    )
