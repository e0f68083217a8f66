"""The fix of FUS205: normalise the input, then multiply."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return Replacement(
        parts=(Part(match.root, "{mx}.fast.rms_norm({x}, None, {eps}) @ {w}"),),
        holes=match.holes,
        cap="unsafe",
        because="rows with a large common mean lose digits: x is rounded after it is scaled and before the sum cancels",
    )
