"""The fix of FUS221: one call of mx.fast.rope."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["problem"]:
        return NoFix(match.data["problem"])
    x = "{x}.swapaxes(-3, -2)" if match.data["swapped"] else "{x}"
    if "factor" in match.holes:
        x = f"{x} * {{factor}}"
    named = [f"traditional={match.data['pairing'] == 'pairs'}"]
    if "freqs" in match.holes:
        table = "{freqs}.astype({mx}.float32)" if match.data["narrow"] else "{freqs}"
        freqs = table if match.data["inverse"] else f"1.0 / {table}"
        named += ["base=None", "scale={scale}", "offset={offset}", f"freqs={freqs}"]
    else:
        base = "{base} ** {power}" if "power" in match.holes else "{base}"
        named += [f"base={base}", "scale={scale}", "offset={offset}"]
    call = f"{{mx}}.fast.rope({x}, {{dims}}, {', '.join(named)})"
    if match.data["swapped"]:
        call += ".swapaxes(-3, -2)"
    scaled = "factor" in match.holes
    return Replacement(
        parts=(Part(match.root, call),),
        holes=match.holes,
        cap="unsafe" if scaled else "",
        because="the tables' factor multiplies x before the rotation, rounded to its dtype" if scaled else "",
    )
