"""FUS102: the mask's last value becomes the string "causal"; what built the array goes."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    return Replacement(
        parts=(Part(match.root, '"causal"'),),
        holes=match.holes,
        message='mask="causal" instead of an array',
        needs=("MLX 0.24 or newer (0.30.5 where keys are longer than queries)",),
        requires=match.data["requires"],
    )
