"""Dtypes that nobody states, as casts and bytes are counted.

MLX casts the narrower of two operands, in a kernel of its own. Whether it does is only known where the code says what
both are. So an argument, or the result of a call that isn't followed, has the dtype of the operand it meets, unless a
cast of it shows that it has another: `x.astype(mx.float32)` says that x isn't float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuselint.graph.dtypes import HALF
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

FROM_OUTSIDE = frozenset({"param", "call", "item", "loop", "phi", "global", "opaque"})
"""Operations whose result may have any dtype. An attribute of an object, which is a weight, has the model's."""

ARRAYS = ("array", "unknown")
MEETING = frozenset({"binary", "ternary"})
STATED = (*HALF, "float32", "complex64")

ROUNDS = 3
"""How often operations are gone through: what a value is counted as may decide it for those before."""


def unstated(graph: Graph, facts: Facts) -> frozenset[str]:
    """The symbols of dtypes that nothing in the function says anything of."""
    out: set[str] = set()
    seen: set[str] = set()
    for node in graph.nodes:
        new = facts.dtype(node).symbols - seen if facts.kind(node) in ARRAYS else frozenset()
        if node.op in FROM_OUTSIDE or (node.op == "attr" and not isinstance(node.attrs.get("init"), Node)):
            out |= new
        seen |= new
    return frozenset(out - _shown(graph, facts))


def _shown(graph: Graph, facts: Facts) -> set[str]:
    """The symbols of dtypes that a cast leaves, or restores: they aren't the stated one."""
    out: set[str] = set()
    for node in graph.nodes:
        if node.op != "astype":
            continue
        before, after = facts.dtype(node.inputs[0]), facts.dtype(node)
        if after.name in STATED:
            out |= before.symbols
        elif before.name in STATED:
            out |= after.symbols
    return out


def counted(nodes: Iterable[Node], facts: Facts) -> dict[str, str]:
    """What unstated dtypes are counted as where some operations are looked at: those of the operands beside them."""
    out: dict[str, str] = {}
    meetings = [
        n.inputs[1:] if n.op == "where" else n.inputs
        for n in nodes
        if (op := TABLE.get(n.op)) is not None and op.kind in MEETING
    ]
    for _ in range(ROUNDS if facts.unstated else 0):
        before = len(out)
        for operands in meetings:
            dtypes = [facts.dtype(n).bound(out) for n in operands]
            stated = next((d.name for d in dtypes if d.name in STATED), None)
            if stated is not None:
                out.update((name, stated) for d in dtypes if d <= facts.unstated for name in d)
        if len(out) == before:
            break
    return out
