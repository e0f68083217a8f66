"""The fix of FUS104: the operation without the casts."""

from __future__ import annotations

from fuselint.graph.model import Graph
from fuselint.rulebook import Match, NoFix, Part, Replacement


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    op, to = str(match.data["op"]), str(match.data["to"])
    learned = match.numerics == "less accurate"
    return Replacement(
        parts=(Part(match.root, _call(op, match) + (f".astype({to})" if to else "")),),
        holes=match.holes,
        cap="unsafe" if learned else "",
        because="the weight is applied in half precision, not in float32" if learned else "",
    )


def _call(op: str, match: Match) -> str:
    if op == "softmax":
        return "{mx}.softmax({x}, axis=-1, precise=True)"
    if op in ("fast.rms_norm", "fast.layer_norm"):
        learned = [f"{{{name}}}" if name in match.holes else "None" for name in match.data["learned"]]
        return f"{{mx}}.{op}({', '.join(['{x}', *learned, '{eps}'])})"
    if "callee" in match.data:
        return f"{match.data['callee']}({{x}})"
    axes = match.data["axes"]
    keepdims = ", keepdims=True" if match.data["keepdims"] else ""
    return f"{{mx}}.{op}({{x}}, axis={axes[0] if len(axes) == 1 else axes}{keepdims})"
