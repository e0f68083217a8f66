"""Dtypes that nobody states, as casts and bytes are counted.

MLX casts the narrower of two operands, in a kernel of its own. Whether it does is only known where the code says what
both are. So an argument, or the result of a call that isn't followed, has the dtype of the operand it meets, unless a
cast of it shows that it has another: `x.astype(mx.float32)` says that x isn't float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuselint.graph.dtypes import HALF, DType
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


def unstated(graph: Graph, facts: Facts) -> dict[str, str]:
    """What the symbols of unstated dtypes are counted as, where they meet a stated one."""
    free = _free(graph, facts) - _shown(graph, facts)
    bound: dict[str, str] = {}
    for _ in range(ROUNDS if free else 0):
        before = len(bound)
        for node in graph.nodes:
            op = TABLE.get(node.op)
            if op is not None and op.kind in MEETING:
                operands = node.inputs[1:] if op.name == "where" else node.inputs
                _meet([facts.dtype(n).bound(bound) for n in operands], free, bound)
        if len(bound) == before:
            break
    return bound


def _meet(operands: list[DType], free: set[str], bound: dict[str, str]) -> None:
    stated = next((d.name for d in operands if d.name in STATED), None)
    for d in operands if stated is not None else ():
        if d and d <= free:
            bound.update(dict.fromkeys(d, stated))


def _free(graph: Graph, facts: Facts) -> set[str]:
    """The symbols of the dtypes of values that come from outside."""
    out: set[str] = set()
    for node in graph.nodes:
        known_array = node.op == "attr" and isinstance(node.attrs.get("init"), Node)
        if (node.op in FROM_OUTSIDE or (node.op == "attr" and not known_array)) and facts.kind(node) in ARRAYS:
            made_of = frozenset().union(*(facts.dtype(n).symbols for n in node.inputs))
            out |= facts.dtype(node).symbols - made_of
    return out


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
