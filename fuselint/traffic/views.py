"""Operands of a region that are views: where they lie in memory says whether a norm has to copy them first."""

from __future__ import annotations

from collections.abc import Collection

from fuselint.graph.callers import given
from fuselint.graph.makers import is_part
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.traffic.layout import Layout, Place

TURNING = frozenset({"transpose", "swapaxes", "moveaxis", "matrix_transpose"})
"""Views that only change the order of axes."""

WRITING = frozenset({"matmul", "conv", "copy", "create", "gather", "reduce", "rowwise", "fast"})
"""Kinds of operations whose result lies in row order, whatever their operands do."""

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
    if source is not None and source.op == "param" and not _comes_in_row_order(traced.facts.graph, source):
        turned = TURNING.intersection(n.op for n in chain)
        if turned and all(n.op in TURNING or _keeps_order(n) for n in chain):
            return None  # it may be turned back to how it lies
    alone = trace(chain, traced.facts, eager=True, gates=traced.gates)
    array = alone.array(node)
    if array is None or source is None:
        return None
    return Layout(alone.tracer.arrays, traced.gates.backend).of(array)


def _comes_in_row_order(graph: Graph, parameter: Node) -> bool:
    """Whether nothing in the package gives an argument that may lie in another order: a view, or what is computed
    element by element, in the order of its operands."""
    arguments = [n for _, n in given(graph, parameter)]
    known = bool(arguments) or not is_part(graph)
    return known and all(n.op in TABLE and TABLE[n.op].kind in WRITING for n in arguments)


def _keeps_order(node: Node) -> bool:
    op = TABLE.get(node.op)
    return node.op != "index" and not _is_part(node) and op is not None and op.kind == "view"


def _is_view(node: Node) -> bool:
    op = TABLE.get(node.op)
    return node.op in ("index", "split") or _is_part(node) or (op is not None and op.kind == "view")


def _is_part(node: Node) -> bool:
    return node.op == "item" and bool(node.inputs) and node.inputs[0].op == "split"
