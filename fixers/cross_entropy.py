"""FUS252: mx.fast.cross_entropy, cast back to the dtype of the logits."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    sign = "-" if match.data["negative"] else ""
    cast = "" if match.data["float32"] else ".astype({x}.dtype)"
    axis = "[..., None]" if match.data["keeps"] else ""
    return Replacement(
        parts=(Part(match.root, f"{sign}{{mx}}.fast.cross_entropy({{x}}, {{targets}}){cast}{axis}"),),
        holes=match.holes,
        needs=("MLX 0.32.2 or newer", *(o.claim for o in match.obligations if o.verdict == "unknown")),
        cap="unsafe",
        because="mx.fast.cross_entropy is new in MLX 0.32.2",
    )
