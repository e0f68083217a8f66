"""A compiled function before and after a fix. What MLX fuses with a region counts too: the whole function is fused
as it is, and again with the fused op in the region's place, and what differs is what the fix changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fuselint.graph.cuts import leaving
from fuselint.graph.fuse import compiled
from fuselint.graph.gates import Gates
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.graph.unstated import is_made_of
from fuselint.traffic.fused import computed
from fuselint.traffic.kernels import Kernel, group_kernels
from fuselint.traffic.layout import Place
from fuselint.traffic.sizes import FEATURES

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts
    from fuselint.rulebook import Made, Match


def kernels_around(
    graph: Graph,
    match: Match,
    facts: Facts,
    gates: Gates,
    needed: Collection[Node],
    places: Callable[[Trace], Mapping[Array, Place]],
) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels that a fix takes from a compiled function, and those that it puts there.

    needed: what of the region is computed after the fix too. places: of arrays of a trace that come from outside.
    """
    shapeless = graph.context.shapeless
    taken = _branches_taken(graph) if match.fused else {}  # what only goes is joined with what it is made of
    before = trace(graph.nodes, facts, shapeless=shapeless, gates=gates, made=partial(_takes, taken))
    replaced = _Replaced(match, before, match.region - set(needed), taken)
    after = trace(graph.nodes, facts, shapeless=shapeless, gates=gates, made=replaced.made)
    outputs = [*leaving(graph), *(n for n in graph.nodes if n.op == "call")]
    now, then = (_kernels(t, outputs, shapeless, places(t)) for t in (before, after))
    return _without(now, then), _without(then, now)


def _branches_taken(graph: Graph) -> dict[Node, Node]:
    """The joins after `if test: x = f(x)`, each with that f(x): MLX compiles one way, and the longer one counts."""
    joins = [n for n in graph.nodes if n.op == "phi" and len(n.inputs) == 2]
    return {n: made for n in joins for made, before in (n.inputs, n.inputs[::-1]) if is_made_of(made, before)}


def _takes(taken: Mapping[Node, Node], traced: Trace, node: Node) -> bool:
    """Makes a join the value of the branch that is taken."""
    if taken.get(node) not in traced.made:
        return False
    traced.made[node] = traced.made[taken[node]]
    return True


class _Replaced:
    """Makes the fused ops in the place of a region."""

    def __init__(self, match: Match, before: Trace, gone: Collection[Node], taken: Mapping[Node, Node]) -> None:
        self.before, self.gone, self.taken = before, gone, taken
        self.waiting = list(match.fused)
        self.between: dict[Node, Array] = {}  # what fused ops read of each other, by the operand that it is as large as

    def made(self, after: Trace, node: Node) -> bool:
        if any(k.writes is node for k in self.waiting) and node in self.gone:
            after.tracer.node, after.tracer.arguments = node, None
            after.made[node] = self.result(after, node)
            return True
        return node in self.gone or _takes(self.taken, after, node)

    def result(self, after: Trace, node: Node) -> Array | None:
        while self.waiting:
            kernel = self.waiting.pop(0)
            given = [self.between.get(n) or after.operand(n) for n in dict.fromkeys(kernel.reads)]
            like = self.before.operand(kernel.writes)
            if not isinstance(like, Array):
                return None
            reads = [a for a in given if isinstance(a, Array)]
            reads += [small_array(m, after) for m in kernel.made]
            result = computed(after.tracer, kernel.op, reads, like, after.gates)
            if kernel.writes is node:
                return result
            self.between[kernel.writes] = result
        return None


def small_array(made: Made, traced: Trace) -> Array:
    """What the fixed code makes for a kernel, in one of its own: under mx.compile, too."""
    shape = traced.shape(made.like)
    size = None if shape is None else shape.axis(-1)
    given = [a for n in made.reads if isinstance(a := traced.operand(n), Array)]
    return traced.tracer.make(made.op, given, Shape(None, (size or Expr.name(FEATURES),)), traced.dtype(made.like))


def _kernels(traced: Trace, outputs: Sequence[Node], shapeless: bool, places: Mapping[Array, Place]) -> list[Kernel]:
    roots = [a for n in outputs for a in traced.results(n)]
    groups = compiled(list(dict.fromkeys(roots)), shapeless=shapeless)
    return group_kernels(groups, traced.gates.backend, places=places)


def _without(kernels: Sequence[Kernel], others: Sequence[Kernel]) -> list[Kernel]:
    """Those that aren't among the others too, each as often as it is more often there."""
    left = Counter(map(_key, others))
    out = []
    for k in kernels:
        left[_key(k)] -= 1
        if left[_key(k)] < 0:
            out.append(k)
    return out


def _key(kernel: Kernel) -> Hashable:
    def size(a: Array) -> tuple[str, str]:
        return str(a.shape), a.dtype

    return kernel.op, kernel.node, tuple(map(size, kernel.reads)), tuple(map(size, kernel.writes))
