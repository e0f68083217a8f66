"""Chains of elementwise operations that mx.compile would run as few kernels, and that eager MLX runs one by one.

The groups are those that mx.compile makes of the whole function, with these cuts besides: a value that something else
reads stays a kernel's root, and a kernel never reaches into a loop, a `with` or a `try` from outside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fuselint.graph.fuse import Group, compiled, grouped
from fuselint.graph.model import Block, Graph, Node
from fuselint.graph.ops import TABLE, function_of
from fuselint.graph.primitives import ACTIVATIONS, COMPOSITES
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace

BARRIER = "Barrier"
CLOSED_BLOCKS = frozenset({"loop", "comprehension", "with", "try", "except"})


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Elementwise nodes that end in one value, and the kernels that mx.compile makes of them."""

    nodes: tuple[Node, ...]  # in evaluation order; the last is the root
    kernels: tuple[Group, ...]

    @property
    def root(self) -> Node:
        return self.nodes[-1]


ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "power", "negative"})


def elementwise(graph: Graph) -> set[Node]:
    """The nodes that are elementwise operations on arrays.

    Operators whose operands nothing is known of count where all of them are arguments: there, an array is as likely as
    a number, and the finding says what it assumes.
    """
    facts = graph.facts
    out: set[Node] = set()
    for node in graph.nodes:
        if not fuses(node):
            continue
        kind = facts.kind(node)
        unknown = [k for k in node.inputs if k.op != "const"]
        argued = all(k in out or (k.op == "param" and facts.kind(k) == "unknown") for k in unknown)
        if kind == "array" or (kind == "unknown" and node.op in ARITHMETIC and unknown and argued):
            out.add(node)
    return out


def fuses(node: Node) -> bool:
    """Whether the node's primitives all fuse."""
    op = TABLE.get(node.op)
    if op is None:
        return False
    return op.elementwise or op.name in COMPOSITES or (function_of(node) or op.name) in ACTIVATIONS


def may_chain(graph: Graph) -> bool:
    """Whether a node that fuses reads one that nothing but such nodes reads, whatever the facts say of them."""
    return _has_chain(graph, {n for n in graph.nodes if fuses(n)})


def _has_chain(graph: Graph, fusing: set[Node]) -> bool:
    inner = {k for n in fusing for k in n.inputs if k in fusing} - graph.escaping
    return any(fusing.issuperset(graph.users[k]) for k in inner)


def chains(graph: Graph) -> Iterator[Chain]:
    """The chains of a function, of at least two nodes each, as long as they go."""
    candidates = elementwise(graph)
    if not _has_chain(graph, candidates):
        return
    traced = trace(graph.nodes, graph.facts)
    owned: dict[Node, set[Array]] = {}
    for a in traced.tracer.arrays:
        if a.node is not None and a.primitive and a.node in candidates:
            owned.setdefault(a.node, set()).add(a)
    shared: dict[Array, list[Node]] = {}  # of a cast that changes nothing, which has no array of its own
    for n, made in traced.made.items():
        if isinstance(made, Array) and n not in owned and n in candidates:
            shared.setdefault(made, []).append(n)
    for kernels in _joined(grouped([_sink(graph, traced, candidates)])):
        arrays = {a for g in kernels for a in g.arrays}
        whole = {a.node for a in arrays if a.node in owned and owned[a.node] <= arrays}
        whole.update(n for a in arrays for n in shared.get(a, ()))
        root = next((n for n in whole if traced.made[n] is kernels[-1].root and n in owned), None)
        nodes = _closed(graph, whole, root) if root is not None else ()
        if len(nodes) > 1:
            yield Chain(nodes, _kernels(graph, nodes))


def before_cast(graph: Graph, chain: Chain) -> Chain | None:
    """The chain without its last cast, where a function of the chain would be given a value only for its dtype."""
    root, inner = chain.root, chain.nodes[:-1]
    dtype = root.attrs.get("dtype") if root.op == "astype" else None
    if not isinstance(dtype, Node) or not inner or root.inputs[0] is not inner[-1]:
        return None
    base = dtype.inputs[0] if dtype.op == "dtype" and dtype.inputs else None
    if base is not None and any(base is n or base in n.inputs for n in inner):
        return None
    return Chain(inner, _kernels(graph, inner))


def parts(graph: Graph, chain: Chain) -> Iterator[Chain]:
    """What is left of a chain without a last step that changes an array in place, and without what helpers do."""
    root = chain.root
    if isinstance(root.cst, cst.AugAssign) and root.inputs:
        yield from _ending_in(graph, chain, root.inputs[-1], set(chain.nodes))
    own = {n for n in chain.nodes if n.frame is root.frame}
    if len(own) < len(chain.nodes):
        yield from _ending_in(graph, chain, root, own)


def _ending_in(graph: Graph, chain: Chain, root: Node, within: set[Node]) -> Iterator[Chain]:
    nodes = _closed(graph, within, root) if root in within else ()
    if len(nodes) > 1:
        yield Chain(nodes, _kernels(graph, nodes))


def _sink(graph: Graph, traced: Trace, candidates: set[Node]) -> Array:
    """One reader of all that leaves the tape, with barriers put in."""
    arrays = traced.tracer.arrays
    for a in arrays:
        if a.node is not None and a.fusable and a.node not in candidates:
            a.primitive = BARRIER
    _cut_at_blocks(arrays)
    read = {b for a in arrays for b in a.inputs}
    left = [a for a in arrays if a not in read]
    for node, value in traced.made.items():
        if isinstance(value, Array) and _leaves(graph, traced, node):
            left.append(value)
    return Array(BARRIER, left, None, "")


def _leaves(graph: Graph, traced: Trace, node: Node) -> bool:
    """Whether something besides the tape's arrays reads the value."""
    if node in graph.escaping:
        return True
    return any(not isinstance(traced.made.get(u), Array) for u in graph.users.get(node, ()))


def _cut_at_blocks(arrays: list[Array]) -> None:
    """Puts a barrier between a value made outside a loop and its reader inside."""
    closed: dict[Node, Block | None] = {}

    def block(node: Node) -> Block | None:
        if node not in closed:
            closed[node] = _closed_block(node)
        return closed[node]

    for a in list(arrays):
        for i, b in enumerate(a.inputs):
            if (
                a.node is not None
                and b.node is not None
                and a.node is not b.node
                and block(a.node) is not block(b.node)
            ):
                a.inputs[i] = Array(BARRIER, [b], b.shape, b.dtype, b.node)


def _closed_block(node: Node) -> Block | None:
    """The innermost block around a value that values don't cross for free."""
    stmt, frame = node.stmt, node.frame
    while stmt is not None:
        at: Block | None = stmt.block
        while at is not None:
            if at.kind in CLOSED_BLOCKS:
                return at
            at = at.parent
        stmt = frame.stmt if frame.parent is not None else None
        frame = frame.parent if frame.parent is not None else frame
    return None


def _joined(found: list[Group]) -> Iterator[list[Group]]:
    """The elementwise kernels, those that feed one chain of others and nothing else together with it.

    The limits of a kernel cut long chains; one compiled function holds them all.
    """
    readers: dict[Array, list[Group]] = {}
    for g in found:
        for a in g.inputs:
            readers.setdefault(a, []).append(g)
    chain_of: dict[Group, list[Group]] = {}
    for g in reversed(found):
        if not g.root.fusable or g.root.primitive == "Broadcast":
            continue
        after = [chain_of.get(r) for r in readers.get(g.root, ())]
        chain = after[0] if after and all(c is after[0] for c in after) else None
        chain_of[g] = chain if chain is not None else []
        chain_of[g].insert(0, g)
    yield from {id(c): c for c in chain_of.values()}.values()


def _closed(graph: Graph, whole: set[Node], root: Node) -> tuple[Node, ...]:
    """What the root is made of, without values that something outside reads too."""
    while True:
        seen: set[Node] = set()
        stack = [root]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend(k for k in n.inputs if k in whole)
        shared = {n for n in seen - {root} if n in graph.escaping or any(u not in seen for u in graph.users.get(n, ()))}
        if not shared:
            return tuple(sorted(seen, key=lambda n: n.id))
        whole = seen - shared


def _kernels(graph: Graph, nodes: tuple[Node, ...]) -> tuple[Group, ...]:
    """The kernels of the chain as a compiled function of its own."""
    traced = trace(nodes, graph.facts)
    root = traced.array(nodes[-1])
    assert root is not None
    return tuple(g for g in compiled([root]) if g.root.primitive and g.root.primitive != "Broadcast")
