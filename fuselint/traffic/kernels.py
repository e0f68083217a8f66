"""A region's kernels, each with the bytes that it reads from memory and writes to it.

Eager MLX runs every primitive that isn't a view as one kernel, and shares nothing: what is written twice is computed
twice. A kernel reads each of its distinct inputs once, however often and through whatever views it is given: a
broadcast one at its own size, a slice at the slice's; a gather reads what it takes. It writes its output.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuselint.graph.dtypes import ITEMSIZE
from fuselint.graph.fuse import Group, compiled
from fuselint.graph.gates import Backend, Gates
from fuselint.graph.model import Node
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import ACTIVATION, FUSABLE, RESHAPES, VIEWS, Array
from fuselint.graph.trace import OPAQUE, Trace, trace
from fuselint.traffic.layout import Layout, Place
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

HALF = 2
"""Bytes of an activation's element where nobody stated its dtype: bfloat16."""

TAKING = frozenset({"Gather", "GatherAxis", "DynamicSlice"})
"""Kernels that read of their first operand only what they write."""


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One primitive that isn't a view. `reads` are its distinct inputs in memory, `writes` its outputs.

    launches: a GPU concatenates with a copy of each operand. indexed: on CUDA, elementwise work of which an operand is
    broadcast or has gaps: each element is looked up by its index.
    """

    op: str
    node: Node | None
    reads: tuple[Array, ...]
    writes: tuple[Array, ...]
    launches: int = 1
    indexed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Bytes:
    """Sizes in bytes. itemsize: of an activation."""

    sizes: Sizes
    itemsize: int = HALF

    def of(self, array: Array) -> Expr:
        each = self.itemsize if array.dtype == ACTIVATION else ITEMSIZE[array.dtype]
        return self.sizes.elements_of(array) * each

    def moved(self, kernel: Kernel) -> Expr:
        return sum((self.of(a) for a in (*kernel.reads, *kernel.writes)), Expr.of(0))

    def total(self, kernels: Iterable[Kernel]) -> Expr:
        return sum((self.moved(k) for k in kernels), Expr.of(0))


def launched(kernels: Iterable[Kernel]) -> int:
    return sum(k.launches for k in kernels)


def kernels(
    nodes: Iterable[Node], facts: KnownFacts, gates: Gates | None = None, outputs: Iterable[Node] = ()
) -> list[Kernel]:
    """The launches of eager MLX for `nodes`, whose other operands are in memory. outputs: see launches."""
    return launches(trace(nodes, facts, eager=True, gates=gates), outputs)


def launches(traced: Trace, outputs: Iterable[Node] = (), places: Mapping[Array, Place] | None = None) -> list[Kernel]:
    """The launches of an eager trace; with outputs, only of what they are made of: MLX runs nothing else."""
    return of_tape(traced.tracer.arrays, traced.gates, [a for n in outputs for a in traced.results(n)], places)


def of_tape(
    arrays: Sequence[Array],
    gates: Gates,
    outputs: Sequence[Array] = (),
    places: Mapping[Array, Place] | None = None,
) -> list[Kernel]:
    """The launches of a tape, where each primitive runs by itself. places: of arrays that come from outside."""
    if outputs:
        arrays = _needed(arrays, outputs)
    layout = Layout(arrays, gates.backend, places)
    if gates.ones:
        layout.without_copies(arrays, gates.ones)
    return [k for a in arrays if a.first is None and is_kernel(a, layout) for k in _launched(a, layout)]


def _launched(a: Array, layout: Layout, inputs: Sequence[Array] | None = None, name: str = "") -> Iterator[Kernel]:
    """A primitive, and the copy that it makes of its operand first."""
    inputs = a.inputs if inputs is None else inputs
    if a in layout.copies and a.primitive not in RESHAPES:
        copy = Array("", [], inputs[0].shape, inputs[0].dtype, a.node)
        yield _kernel("Copy", inputs[:1], (copy,), layout)
        inputs = [copy, *inputs[1:]]
    yield _kernel(name or a.primitive, inputs, (a, *a.others), layout)


def _needed(arrays: Sequence[Array], outputs: Iterable[Array]) -> list[Array]:
    read = set(outputs)
    for a in reversed(arrays):
        if a in read:
            read.update(a.inputs)
            if a.first is not None:
                read.add(a.first)
    return [a for a in arrays if a in read or a.first in read]  # a primitive writes all of its results


def compiled_kernels(
    nodes: Iterable[Node], outputs: Iterable[Node], facts: KnownFacts, shapeless: bool, gates: Gates | None = None
) -> list[Kernel]:
    """The launches where the code is under mx.compile already."""
    traced = trace(nodes, facts, shapeless=shapeless, gates=gates)
    roots = [a for n in outputs for a in traced.results(n)]
    return group_kernels(compiled(roots, shapeless=shapeless), traced.gates.backend)


def group_kernels(
    groups: Sequence[Group],
    backend: Backend = "metal",
    without: Collection[Group] = (),
    places: Mapping[Array, Place] | None = None,
) -> list[Kernel]:
    """The launches of compiled code, those of some groups left out. places: of arrays that come from outside."""
    layout = Layout((), backend, places)
    out = []
    ran: set[Array] = set()
    for g in groups:
        made: list[Kernel] = []
        first = g.root.first or g.root
        if g.fused:
            for a in g.outputs:
                layout.places[a] = layout.kernel(g.root, g.inputs) if a is g.root else layout.kernel(a, g.inputs)
            made = [_kernel(g.name, g.inputs, g.outputs, layout, g.root.node)]
        elif is_kernel(g.root, layout) and first not in ran:
            ran.add(first)
            layout.of(first)
            made = list(_launched(first, layout, g.inputs, g.name))
        if g not in without:
            out.extend(made)
    return out


def is_kernel(a: Array, layout: Layout) -> bool:
    """Whether MLX launches something for it: not for a join of branches."""
    if not a.primitive or a.primitive in VIEWS or a.primitive == OPAQUE:
        return False
    layout.of(a)
    return a.primitive not in RESHAPES or a in layout.copies


def _kernel(
    name: str, inputs: Sequence[Array], outputs: Sequence[Array], layout: Layout, node: Node | None = None
) -> Kernel:
    writes = tuple(in_memory(a, layout.of(a)) for a in outputs)
    reads: dict[Hashable, Array] = {}
    for i, a in enumerate(inputs):
        if a.value is not None:
            continue
        place = layout.of(a)
        if place.base.value is not None:
            continue  # a broadcast number
        reads[place.key] = writes[0] if i == 0 and name in TAKING else in_memory(a, place)
    copies = len(inputs) if name == "Concatenate" and layout.backend != "cpu" else 1
    elementwise = name in FUSABLE or name.startswith("Compiled")
    indexed = elementwise and layout.backend == "cuda" and not layout.is_streamed(outputs[0], inputs)
    return Kernel(name, node or outputs[0].node, tuple(reads.values()), writes, copies, indexed)


def in_memory(a: Array, place: Place) -> Array:
    """The elements of an array that lie in memory, as an array: itself, or what it is a view of."""
    if place.shape == a.shape:
        return a
    base = place.base
    if place.shape == base.shape and place.offset == 0:
        return base
    return Array("", [], place.shape, a.dtype, a.node)
