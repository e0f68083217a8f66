"""FUS102: the mask's last value becomes the string "causal", or its condition; what built the numbers goes."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if not match.data.get("boolean"):
        return Replacement(
            parts=(Part(match.root, '"causal"'),),
            holes=match.holes,
            message='mask="causal" instead of an array',
            needs=("MLX 0.24 or newer (0.30.5 where keys are longer than queries)",),
            requires=match.data["requires"],
        )
    if match.data["problem"]:
        return NoFix(f"{match.data['problem']}: give back the condition, uncast, where True keeps a position")
    return Replacement(
        parts=(Part(match.root, "{condition}" if match.data["keeps"] else "{mx}.logical_not({condition})"),),
        holes=match.holes,
        message="attention takes the condition as its mask",
        requires=match.data["requires"],
    )
