"""The fix of FUS203: mx.fast.rms_norm with d ** -0.5 for its weight, and eps / d."""

from __future__ import annotations

from fuselint.graph.canonical import number_text
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    length = match.data["length"]
    d = "{x}.shape[-1]" if length is None else str(length)
    factor = f"{d} ** -0.5" if length is None else number_text(length**-0.5)
    x, dtype = "{x}", "{x}.dtype"
    if match.data["cast"] and "weight" in match.holes:
        x = "{x}.astype({mx}.float32)"
    elif match.data["cast"]:
        dtype = "{mx}.float32"  # a float32 weight makes the result float32
    if "scale" in match.holes:
        factor = f"{_text(match, 'scale')} * {factor}"
    if "weight" in match.holes:
        weight = f"{{weight}} * {factor}"
    else:
        shape = "{x}.shape[-1:]" if length is None else f"({length},)"
        weight = f"{{mx}}.full({shape}, {factor}, {dtype})"
    eps = f"{_text(match, 'eps')} / {d}" if "eps" in match.holes else "0.0"
    less = match.numerics == "less accurate"
    return Replacement(
        parts=(Part(match.root, f"{{mx}}.fast.rms_norm({x}, {weight}, {eps})"),),
        holes=match.holes,
        cap="unsafe" if less else "",
        because="d ** -0.5 is rounded to x's dtype, which the code in float32 is not" if less else "",
    )


def _text(match: Match, name: str) -> str:
    """A hole, or the number that it is."""
    hole = match.holes[name]
    value = hole.attrs.get("value") if isinstance(hole, Node) and hole.op == "const" else None
    return number_text(value) if isinstance(value, float) and value > 0 else f"{{{name}}}"
