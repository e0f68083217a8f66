"""Operands of a region that are views: where they lie in memory says whether a norm has to copy them first."""

from __future__ import annotations

from collections.abc import Collection

from fuselint.graph.model import Node
from fuselint.graph.ops import TABLE
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.traffic.layout import Layout, Place

MOST = 12
"""Views of views that are followed."""


def places_of_views(traced: Trace, region: Collection[Node]) -> dict[Array, Place]:
    """The places of operands that don't lie in row order, by the arrays that stand for them in the region's trace."""
    out: dict[Array, Place] = {}
    for node, array in traced.made.items():
        if node in region or not isinstance(array, Array) or array.primitive or not _is_view(node):
            continue
        place = _place(traced, node)
        if place is not None and not place.row and place.shape == array.shape:
            out[array] = place
    return out


def _place(traced: Trace, node: Node) -> Place | None:
    chain = [node]
    while len(chain) < MOST and chain[-1].inputs and _is_view(chain[-1]):
        chain.append(chain[-1].inputs[0])
    source = chain.pop() if not _is_view(chain[-1]) else None
    alone = trace(chain, traced.facts, eager=True, gates=traced.gates)
    array = alone.array(node)
    if array is None or source is None:
        return None
    return Layout(alone.tracer.arrays, traced.gates.backend).of(array)


def _is_view(node: Node) -> bool:
    op = TABLE.get(node.op)
    return node.op in ("index", "split") or _is_part(node) or (op is not None and op.kind == "view")


def _is_part(node: Node) -> bool:
    return node.op == "item" and bool(node.inputs) and node.inputs[0].op == "split"
