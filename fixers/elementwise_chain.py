"""The fix of FUS301: the chain as a module-level function under mx.compile, called where its last value was made."""

from __future__ import annotations

import re

from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.rulebook import HoistedHelper, Match, NoFix, Part, Replacement
from fuselint.source.formula import Formula, NoText

GATES = {
    "nn.silu": "swiglu",
    "nn.gelu": "geglu",
    "nn.gelu_approx": "geglu",
    "nn.gelu_fast_approx": "geglu",
    "nn.relu": "reglu",
}
"""What a product of an activation and another value is called."""


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["no_fix"]:
        return NoFix(match.data["no_fix"])
    nodes: tuple[Node, ...] = match.data["nodes"]
    holes = {name: hole for name, hole in match.holes.items() if isinstance(hole, Node)}
    names = _parameters(graph, nodes, holes)
    try:
        formula = Formula(graph, nodes, _read_as(match, names))
    except NoText as why:
        return NoFix(str(why))
    helper = HoistedHelper(
        name=_name(graph, nodes),
        params=tuple(names[h] for h in holes),
        body=formula.body,
        shapeless=match.data["shapeless"],
        statements=tuple(formula.statements),
    )
    call = ", ".join(f"{{{h}}}" for h in holes)
    return Replacement(parts=(Part(match.root, f"{{helper}}({call})"),), holes=holes, helper=helper)


def _read_as(match: Match, names: dict[str, str]) -> dict[Node, str]:
    """The parameter that stands for each operand in the helper."""
    read = {node: names[hole] for hole, node in match.holes.items() if isinstance(node, Node)}
    return {**read, **{node: names[hole] for node, hole in match.data["aliases"].items()}}


def _activation(node: Node) -> str:
    op = TABLE.get(node.op)
    return "" if op is None else op.function or op.name


def _name(graph: Graph, nodes: tuple[Node, ...]) -> str:
    """A gate has a name of its own; any other chain that of the function or class it stands in."""
    root = nodes[-1]
    if root.op == "multiply" and len(nodes) == 2:
        name = GATES.get(_activation(nodes[0])) or {"sigmoid": "sigmoid_gate"}.get(nodes[0].op)
        if name:
            return name
    if root.op == "multiply" and sum(n.op == "multiply" for n in nodes) == 2 and len(nodes) == 3:
        gate = next((n.inputs[0] for n in nodes if n.op == "sigmoid"), None)
        if gate is not None and sum(gate in n.inputs for n in nodes) == 2:
            return "swiglu"
    class_name, _, method = graph.context.qualname.rpartition(".")
    last = class_name.rpartition(".")[2] if method == "__call__" else method
    return snake(last.strip("_<>")) or "fused"


def snake(name: str) -> str:
    """`GatedMLP` -> `gated_mlp`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", parted).strip("_").lower()


def _parameters(graph: Graph, nodes: tuple[Node, ...], holes: dict[str, Node]) -> dict[str, str]:
    """A parameter's name for each hole: what the code calls the value, or the layer that makes it."""
    out: dict[str, str] = {}
    for hole, node in holes.items():
        wished = _layer(node) if not _is_named(graph, node) else hole
        name = wished or ("x", "y", "z", "w", "u", "v")[len(out) % 6] if wished or not _is_named(graph, node) else hole
        count = 2
        base = name
        while name in out.values() or name in ("mx", "nn"):
            name, count = f"{base}{count}", count + 1
        out[hole] = name
    return out


def _is_named(graph: Graph, node: Node) -> bool:
    return node.op in ("param", "attr") or any(b.node is node for bound in graph.bindings.values() for b in bound)


def _layer(node: Node) -> str:
    """`gate` for the value of `self.gate_proj(x)`."""
    path = node.attrs.get("path")
    if node.op in ("attr", "param") or not isinstance(path, str):
        return ""
    last = path.rpartition(".")[2].strip("_")
    short = re.sub(r"_?(proj|projection|layer|linear)$", "", last)
    return short if short.isidentifier() else last if last.isidentifier() else ""
