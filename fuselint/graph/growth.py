"""Arrays that get longer at every step: by what is appended to them in a loop, or from call to call."""

from __future__ import annotations

from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE

KEEPS_SIZES = frozenset({"unary", "binary", "ternary", "composite", "activation", "cast", "view", "copy", "matmul"})
"""Operations whose result has the axes of their operands."""


def grows(graph: Graph, value: Node) -> Node | None:
    """The concatenation that makes a value longer at every round of a loop or at every call, if one is known."""
    stack, seen = [value], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "concatenate" and (_is_carried(n) or stored_back(graph, n)):
            return n
        op = TABLE.get(n.op)
        if n.op in ("phi", "loop", "concatenate", "tuple", "list") or (op is not None and op.kind in KEEPS_SIZES):
            stack.extend(n.inputs)
    return None


def _is_carried(node: Node) -> bool:
    """Whether a loop appends to what it carries along."""
    loops = {b for n in node.inputs for b in branches(n) if b.op == "loop"}
    return any(node in branches(loop.inputs[-1]) for loop in loops)


def stored_back(graph: Graph, node: Node) -> bool:
    """Whether the longer array replaces the attribute that it was made from."""
    old = node.inputs[0]
    path = old.attrs.get("path") if old.op == "attr" else None
    stores = [e for e in graph.effects if path and e.kind == "store" and e.path == path and e.value is not None]
    after = [e for e in stores if e.at > node.id or e.value is node]
    return any(node in branches(e.value) for e in after if e.value is not None) and not any(
        node not in branches(e.value) and e.value.inputs for e in after if e.value is not None
    )


def branches(node: Node) -> set[Node]:
    """The values that a join may be, also behind a cast."""
    out: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n not in out:
            out.add(n)
            stack.extend(n.inputs if n.op == "phi" else n.inputs[:1] if n.op == "astype" else ())
    return out
