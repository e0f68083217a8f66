"""The fix of FUS202: one call of mx.fast.layer_norm."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    weight, bias = (f"{{{name}}}" if name in match.holes else "None" for name in ("weight", "bias"))
    rounds_first = match.data["policy"] == "gemma"
    x = "{x}.astype({mx}.float32)" if match.data["cast"] else "{x}"
    return Replacement(
        parts=(Part(match.root, f"{{mx}}.fast.layer_norm({x}, {weight}, {bias}, {{eps}})"),),
        holes=match.holes,
        cap="unsafe" if rounds_first else "",
        because="it rounds to x's dtype before weight and bias are applied" if rounds_first else "",
        needs=("weight and bias have x's dtype",) if rounds_first else (),
    )
