"""The fix of FUS201: one call of mx.fast.rms_norm."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    weight = "{weight}" if "weight" in match.holes else "None"
    gemma = match.data["policy"] == "gemma"
    exact = "mx.fast.rms_norm(x, weight.astype(mx.float32), eps).astype(x.dtype)"
    x = "{x}.astype({mx}.float32)" if match.data["cast"] else "{x}"
    return Replacement(
        parts=(Part(match.root, f"{{mx}}.fast.rms_norm({x}, {weight}, {{eps}})"),),
        holes=match.holes,
        cap="unsafe" if gemma else "",
        because=f"it rounds to x's dtype before the weight is multiplied; {exact} does not, and saves half"
        if gemma
        else "",
        needs=("the weight has x's dtype",) if gemma else (),  # else the result takes the weight's
    )
