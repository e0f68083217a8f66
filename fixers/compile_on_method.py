"""FUS403: advice. Which arrays of an object belong among the arguments is for the author to say."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["method"]:
        return NoFix(
            "move the body to a function at module level under @mx.compile that takes the arrays of self as arguments, "
            "and call it from the method; a method without self can be @staticmethod above @mx.compile"
        )
    return NoFix("compile it once, at module level or in __init__, and keep the compiled function")
