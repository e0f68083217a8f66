"""Operands of a region that are views: where they lie in memory says whether a norm has to copy them first.

An argument lies as the package's calls give it: `norm(q)` of a part of a split copies q wherever the norm stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fuselint.graph.callers import DEEPEST, arguments, given
from fuselint.graph.gates import Gates
from fuselint.graph.makers import is_part
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.traffic.layout import ONE, ZERO, Layout, Place, Sizes

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

COPYING = frozenset({"fast.rms_norm", "fast.layer_norm", "nn.RMSNorm", "nn.LayerNorm", "softmax"})
"""Operations that copy an operand which doesn't lie in row order."""

TURNING = frozenset({"transpose", "swapaxes", "moveaxis", "matrix_transpose"})
"""Views that only change the order of axes."""

WRITING = frozenset({"matmul", "conv", "copy", "create", "gather", "reduce", "rowwise", "fast"})
"""Kinds of operations whose result lies in row order, whatever their operands do."""

MOST = 12
"""Views of views that are followed."""


class Arguments:
    """Where arguments lie, as the package's calls give them.

    ones: the names of sizes that are 1 in a function, whose axes may stand anywhere.
    """

    def __init__(self, ones: Callable[[Trace], frozenset[str]]) -> None:
        self.ones = ones
        self._known: dict[Node, tuple[Place, Array] | None] = {}

    def place(self, graph: Graph, parameter: Node, array: Array, gates: Gates, depth: int = 0) -> Place | None:
        """Of the array that stands for an argument, if most calls give a view that doesn't lie in row order."""
        if parameter not in self._known:
            self._known[parameter] = None  # of a function that calls itself
            self._known[parameter] = self._given(graph, parameter, gates, depth)
        found = self._known[parameter]
        return None if found is None else _carried(array, parameter, *found)

    def _given(self, graph: Graph, parameter: Node, gates: Gates, depth: int) -> tuple[Place, Array] | None:
        """The place, and the array at the caller."""
        if depth >= DEEPEST:
            return None
        calls = arguments(graph, parameter)
        ways = [self._at(facts, argument, gates, depth + 1) for facts, argument in calls]
        views = [way for way in ways if way is not None]
        if 2 * len(views) <= len(ways):
            return None
        kinds = [(p.contiguous, p.strides and p.strides[-1] == 1) for p, _ in views]
        return views[kinds.index(Counter(kinds).most_common(1)[0][0])]

    def _at(self, facts: KnownFacts, argument: Node, gates: Gates, depth: int) -> tuple[Place, Array] | None:
        chain, source = _chain(argument)
        if source is None or (source is argument and source.op != "param"):
            return None
        plain = Gates(gates.backend, gates.version, gates.training, gates.size, gates.queries, gates.dtype)
        if source is argument:
            alone = trace((), facts, eager=True, gates=plain)
            array = alone.operand(source)
        else:
            alone = _alone(chain, facts, plain)
            array = alone.array(argument)
        if not isinstance(array, Array):
            return None
        places = self.of_parameter(alone, source, depth)
        layout = Layout(alone.tracer.arrays, gates.backend, places)
        ones = self.ones(alone)
        if ones:
            small, fewer = layout.at_ones(alone.tracer.arrays, ones)
            if array in small and fewer.of(small[array]).row:
                return None
        place = layout.of(array)
        return None if place.row or place.shape != array.shape else (place, array)

    def of_parameter(self, traced: Trace, node: Node, depth: int = 0) -> dict[Array, Place]:
        """By the array that stands for it in a trace, if it is a parameter."""
        array = traced.made.get(node)
        if node.op != "param" or not isinstance(array, Array):
            return {}
        place = self.place(traced.facts.graph, node, array, traced.gates, depth)
        return {} if place is None else {array: place}


def places_of_arguments(traced: Trace, arguments: Arguments | None) -> dict[Array, Place]:
    """The places of parameters that don't lie in row order."""
    out: dict[Array, Place] = {}
    for node in traced.made if arguments is not None else ():
        if arguments is not None:
            out.update(arguments.of_parameter(traced, node))
    return out


def places_of_views(traced: Trace, region: Collection[Node], arguments: Arguments | None = None) -> dict[Array, Place]:
    """The places of operands that don't lie in row order, by the arrays that stand for them in the region's trace."""
    out = places_of_arguments(traced, arguments)
    for node, array in traced.made.items():
        if node in region or not isinstance(array, Array) or array.primitive or not _is_view(node):
            continue
        place = _place(traced, node, arguments)
        if place is not None and not place.row and place.shape == array.shape:
            out[array] = place
    return out


def _place(traced: Trace, node: Node, arguments: Arguments | None) -> Place | None:
    chain, source = _chain(node)
    alone = _alone(chain, traced.facts, traced.gates)
    array = alone.array(node)
    if array is None or source is None:
        return None
    places = arguments.of_parameter(alone, source) if arguments is not None else {}
    if source.op == "param" and not places and not _comes_in_row_order(traced.facts.graph, source):
        turned = TURNING.intersection(n.op for n in chain)
        if turned and all(n.op in TURNING or _keeps_order(n) for n in chain):
            return None  # it may be turned back to how it lies
    return Layout(alone.tracer.arrays, traced.gates.backend, places).of(array)


def _chain(node: Node) -> tuple[list[Node], Node | None]:
    """The views that a value is of a value, and that; None where there are too many."""
    chain = [node]
    while len(chain) < MOST and chain[-1].inputs and (_is_view(chain[-1]) or _listed(chain[-1]) is not None):
        chain.append(_listed(chain[-1]) or chain[-1].inputs[0])
    source = chain.pop() if not _is_view(chain[-1]) and _listed(chain[-1]) is None else None
    return chain, source


def _listed(node: Node) -> Node | None:
    """What every element of a list is, `q, k = [f(t) for t in parts]`, of one of them."""
    made = node.inputs[0] if node.op == "item" and node.inputs else None
    listed = made is not None and made.op == "opaque" and made.attrs.get("reason") == "comprehension"
    return made.inputs[-1] if listed and made is not None and made.inputs else None


def _alone(chain: Sequence[Node], facts: KnownFacts, gates: Gates) -> Trace:
    def made(so_far: Trace, node: Node) -> bool:
        element = _listed(node)
        if element is not None:
            so_far.made[node] = so_far.made.get(element)
        return element is not None

    return trace(chain, facts, eager=True, gates=gates, made=made)


def _carried(array: Array, parameter: Node, place: Place, given: Array) -> Place | None:
    """The place of an argument, in the names of the function that it is given to."""
    own, theirs = array.shape, given.shape
    name = f"{parameter.attrs['name']} from row to row"
    out = Place(array, own, None, ZERO, place.contiguous, row=False, col=False)
    if own is not None and theirs is not None and place.strides is not None and own.rank == theirs.rank is not None:
        return replace(out, strides=_renamed(own, theirs, place.strides, name), col=place.col)
    if place.strides is None:
        return replace(out, step=None if place.step is None else Expr.name(name))
    dense = bool(place.strides) and place.strides[-1] == ONE
    if dense or not place.contiguous:
        return replace(out, step=Expr.name(name) if dense else None)
    return replace(out, contiguous=False)  # what copies it copies that, too


def _renamed(own: Shape, theirs: Shape, strides: Sizes, name: str) -> Sizes:
    """Each stride that spans another axis, as that; of any other nothing is known but that it is one."""
    done: dict[int, Expr] = {i: s for i, s in enumerate(strides) if s.value() is not None}
    for _ in strides:
        for i, s in enumerate(strides):
            inner = [j for j in done if i not in done and j != i and strides[j] * theirs.dims[j] == s]
            if inner:
                done[i] = done[inner[0]] * own.dims[inner[0]]
        if len(done) == len(strides):
            break
        if not any(_follows(strides, theirs, i, done) for i in range(len(strides))):
            first = next(i for i in reversed(range(len(strides))) if i not in done)
            done[first] = Expr.name(f"{name} {first}")
    return tuple(done[i] for i in range(len(strides)))


def _follows(strides: Sizes, shape: Shape, at: int, done: Mapping[int, Expr]) -> bool:
    return at not in done and any(strides[j] * shape.dims[j] == strides[at] for j in done if j != at)


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
