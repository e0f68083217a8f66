"""FUS401: advice. Padded heads change weights and caches, which stand elsewhere."""

from __future__ import annotations

from fuselint.checks.sdpa_fallback import MANY
from fuselint.graph.gates import NEWEST, heads_taken
from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    head, value_head = match.data["head"], match.data["value_head"]
    target = NEWEST if graph.program is None else graph.program.target
    if match.data["forced"]:
        return NoFix(
            f"force_fused=True takes the kernel for {head} in half precision since MLX 0.32.2, and raises where there"
            " is none: slower than the steps, without the memory of the scores"
        )
    larger = [size for size in sorted(heads_taken(MANY, target)) if size >= max(head, value_head or 0)]
    if larger:
        return NoFix(f"pad queries, keys and values with zeros to a head dimension of {larger[0]}, and keep the scale")
    return NoFix("no kernel is as large that MLX chooses: cut the queries into chunks to keep the scores small")
