"""FUS231: mx.addmm(c, a, b), with alpha and beta where the code scales."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    factors = "".join(f", {name}={{{name}}}" for name in ("alpha", "beta") if name in match.holes)
    return Replacement(parts=(Part(match.root, f"{{mx}}.addmm({{c}}, {{a}}, {{b}}{factors})"),), holes=match.holes)
