"""The fix of FUS211: one call of mx.fast.scaled_dot_product_attention."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["problem"]:
        return NoFix(match.data["problem"])
    axes, result_axes = match.data["axes"], match.data["result_axes"]
    q, k, v = (f"{{{n}}}" if axes[n] is None else f"{{{n}}}.transpose({_listed(axes[n])})" for n in "qkv")
    batch, back = ("[None]", ".squeeze(0)") if match.data["rank"] == 3 else ("", "")
    if match.data["rank"] == 5:  # the fused op repeats keys and values for the heads of a group
        q, k, v = "{q}.flatten(1, 2)", "{k}.squeeze(2)", "{v}.squeeze(2)"
        back = ".reshape(*{q}.shape[:-1], {v}.shape[-1])"
    mask = ", mask={mask}" if "mask" in match.holes else ""
    if "sinks" in match.holes:
        mask += ", sinks={sinks}" + (".astype({q}.dtype)" if match.data["cast_sinks"] else "")
    operands = f"{q}{batch}, {k}{batch}, {v}{batch}"
    call = f"{{mx}}.fast.scaled_dot_product_attention({operands}, scale={{scale}}{mask}){back}"
    if match.data["cast_back"]:
        call += ".astype({v}.dtype)"
    if result_axes is not None:
        call += f".transpose({_listed(result_axes)})"
    needs = ("MLX 0.29.1 or newer",) if "sinks" in match.holes else ()
    return Replacement(parts=(Part(match.root, call),), holes=match.holes, needs=needs)


def _listed(axes: tuple[int, ...]) -> str:
    return ", ".join(map(str, axes))
