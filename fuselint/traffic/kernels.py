"""A region's kernels, each with the bytes that it reads from memory and writes to it.

Eager MLX runs every primitive that isn't a view as one kernel, and shares nothing: what is written twice is computed
twice. A kernel reads each of its distinct inputs once, a broadcast one at its own size, and writes its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuselint.graph.dtypes import ITEMSIZE
from fuselint.graph.fuse import Group, compiled
from fuselint.graph.model import Node
from fuselint.graph.ops import TABLE
from fuselint.graph.primitives import ACTIVATIONS
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import ACTIVATION, RESHAPES, VIEWS, Array, Operand, Tracer
from fuselint.graph.trace import Trace, trace
from fuselint.traffic.layout import Layout
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

HALF = 2
"""Bytes of an activation's element where nobody stated its dtype: bfloat16."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One launch. `reads` are its distinct inputs in memory, `writes` its outputs."""

    op: str
    node: Node | None
    reads: tuple[Array, ...]
    writes: tuple[Array, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """Sizes in bytes. itemsize: of an activation."""

    sizes: Sizes
    itemsize: int = HALF

    def of(self, array: Array) -> Expr:
        each = self.itemsize if array.dtype == ACTIVATION else ITEMSIZE[array.dtype]
        return self.sizes.elements(array.shape) * each

    def moved(self, kernel: Kernel) -> Expr:
        return sum((self.of(a) for a in (*kernel.reads, *kernel.writes)), Expr.of(0))

    def total(self, kernels: Iterable[Kernel]) -> Expr:
        return sum((self.moved(k) for k in kernels), Expr.of(0))


def kernels(nodes: Iterable[Node], facts: Facts) -> list[Kernel]:
    """The launches of eager MLX for `nodes`, whose other operands are in memory."""
    return launches(trace(nodes, facts))


def launches(traced: Trace) -> list[Kernel]:
    arrays = traced.tracer.arrays
    layout = Layout(arrays)
    out: list[Kernel] = []
    done: set[Node] = set()
    for a in arrays:
        if not a.primitive:
            continue  # in memory already, whoever made it
        if a.node is not None and is_activation(a.node):
            if a.node not in done:
                done.add(a.node)
                out.extend(_activation(traced, a.node))
        elif is_kernel(a, layout):
            out.append(Kernel(a.primitive, a.node, _in_memory(a.inputs), (a,)))
    return out


def compiled_kernels(nodes: Iterable[Node], outputs: Iterable[Node], facts: Facts, shapeless: bool) -> list[Kernel]:
    """The launches where the code is under mx.compile already."""
    traced = trace(nodes, facts, shapeless=shapeless)
    roots = [a for n in outputs if (a := traced.array(n)) is not None]
    groups = compiled(roots, shapeless=shapeless)
    layout = Layout([a for g in groups for a in (*g.inputs, *g.arrays)])
    return [_of_group(g) for g in groups if g.fused or is_kernel(g.root, layout)]


def is_kernel(a: Array, layout: Layout) -> bool:
    if not a.primitive or a.primitive in VIEWS:
        return False
    return a.primitive not in RESHAPES or a in layout.copies


def is_activation(node: Node) -> bool:
    """A function of mlx.nn that MLX compiles: called from eager code it is one kernel, or two."""
    op = TABLE.get(node.op)
    return (op is not None and op.kind != "layer" and op.name in ACTIVATIONS) or _layer_function(node) in ACTIVATIONS


def _layer_function(node: Node) -> str | None:
    op = TABLE.get(node.op)
    return None if op is None else op.function


def _activation(traced: Trace, node: Node) -> list[Kernel]:
    t = Tracer(shapeless=True, node=node)
    op = TABLE[node.op]
    given: list[Operand] = []
    stands_for: dict[Array, Array] = {}
    for x in traced.operands(node):
        if isinstance(x, Array):
            inside = t.input(x.shape, x.dtype)
            stands_for[inside] = x
            given.append(inside)
        else:
            given.append(x)
    root = ACTIVATIONS[op.function or op.name](t, given, node.attrs)
    out = []
    last = traced.array(node)
    for g in compiled([root], shapeless=True):
        reads = _in_memory([stands_for.get(a, a) for a in g.inputs])
        writes = tuple(last if a is root and last is not None else a for a in g.outputs)
        out.append(Kernel(g.name, node, reads, writes))
    return out


def _of_group(group: Group) -> Kernel:
    return Kernel(group.name, group.root.node, _in_memory(group.inputs), group.outputs)


def _in_memory(arrays: Sequence[Array]) -> tuple[Array, ...]:
    """What is read: each array once, without scalars, and a broadcast or permuted view as what it is a view of."""
    out: dict[Array, None] = {}
    for a in arrays:
        source = a
        while source.inputs and source.primitive in ("Broadcast", "Transpose", "ExpandDims", "Squeeze", "StopGradient"):
            source = source.inputs[0]
        if source.value is None:
            out[source] = None
    return tuple(out)
