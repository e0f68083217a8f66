"""FUS304: advice. What the step changes, and which shapes reach it, is for the author to say."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return NoFix(
        f"state = [{match.data['state']}], and @partial(mx.compile, inputs=state, outputs=state) on one function of "
        "the batch that takes the gradient, updates the optimizer and returns the loss; then mx.eval(state)"
    )
