"""FUS401: advice. Padded heads change weights and caches, which stand elsewhere."""

from __future__ import annotations

from fuselint.graph.heads import FORCED, Heads, padded_to, target_of
from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    heads: Heads = match.data["heads"]
    if match.data["forced"]:
        first = "" if heads.is_even else f"with the narrower of them padded with zeros to {heads.largest}, "
        return NoFix(
            f"{first}force_fused=True takes the kernel for {heads.largest} in half precision since MLX 0.32.2, and"
            " raises where there is none: slower than the steps, without the memory of the scores"
        )
    if room := padded_to(heads, target_of(graph)):
        return NoFix(f"pad queries, keys and values with zeros to a head dimension of {room}, and keep the scale")
    why = "no kernel is as large that MLX chooses"
    if heads.wide and heads.largest in FORCED:
        why = f"the kernel for {heads.largest} takes half precision only"
    return NoFix(f"{why}: cut the queries into chunks to keep the scores small")
