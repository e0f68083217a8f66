"""FUS232: the matrix product."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    turned = (".swapaxes(-1, -2)" if match.data["batched"] else ".T") if match.data["transposed"] else ""
    return Replacement(
        parts=(Part(match.root, f"{{a}} @ {{b}}{turned}"),),
        holes=match.holes,
        needs=tuple(o.claim for o in match.obligations if o.verdict == "unknown"),
        cap="unsafe",
        because="a float32 matmul may run in TF32 on a GPU",
    )
