"""FUS402: the mask is cast to the dtype of the queries."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if not match.data["plain"]:
        return NoFix("cast the mask: mask.astype(q.dtype), or make it boolean")
    call = "{mx}.fast.scaled_dot_product_attention({q}, {k}, {v}, scale={scale}, mask={mask}.astype({q}.dtype))"
    return Replacement(
        parts=(Part(match.root, call),),
        holes=match.holes,
        message="the mask is cast to the dtype of the queries",
        cap="unsafe",
        because="the mask's values fit into the dtype of the queries",
    )
