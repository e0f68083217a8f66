"""Head dimensions of attention for which MLX has no fused kernel, and what says so: the code, defaults of
configurations, or the calls of the package that make the layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fuselint.graph.fact import Default, Place
from fuselint.graph.gates import ARGUMENTS, DECODE_UNEQUAL_HEADS, NEWEST, Version, attention_is_fused, heads_taken
from fuselint.graph.known import KnownFacts
from fuselint.graph.likely import likely
from fuselint.graph.makers import as_made, is_left_out
from fuselint.graph.model import Graph, Node
from fuselint.graph.promotion import FLOAT32
from fuselint.graph.shapes import Shape

MANY = 64
"""Queries of a prompt: more than the kernel for decoding takes."""

FUSED = "scaled_dot_product_attention"

COMMON = 16
"""What nearly all head dimensions are multiples of."""

FORCED = frozenset({192, 256})
"""Head dimensions whose kernel for many queries is only taken with force_fused=True. In float32 it needs more
threadgroup memory than Apple's GPUs have."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The head dimensions of a call. values: None where not known. wide: the operands are float32. rests, calls: the
    defaults and calls that say so."""

    head: int
    values: int | None
    wide: bool = False
    rests: frozenset[Default] = frozenset()
    calls: tuple[Place, ...] = ()

    def is_fused(self, queries: int, target: Version) -> bool:
        """Whether there is a kernel for so many queries; where nothing is known of values, for values that have one."""
        known = (self.head, *(v for h, v in DECODE_UNEQUAL_HEADS if h == self.head))
        widths = known if self.values is None else (self.values,)
        return any(attention_is_fused(self.head, v, queries, version=target) for v in widths)

    def is_forced(self, target: Version) -> bool:
        """Whether there is a kernel for many queries that only force_fused takes, once the narrower ones are padded."""
        return self.largest in FORCED and not self.wide and target >= ARGUMENTS[FUSED, "force_fused"]

    @property
    def largest(self) -> int:
        return max(self.head, self.values or 0)

    @property
    def is_even(self) -> bool:
        """Whether values are as wide as queries, as far as it is known."""
        return self.values in (None, self.head)

    @property
    def size(self) -> str:
        return str(self.head) if self.is_even else f"{self.head}, of values {self.values},"

    @property
    def owners(self) -> str:
        named = sorted({r.owner for r in self.rests})
        return f"by the defaults of {' and '.join(named)}" if named else "as the package makes the layer"

    @property
    def because(self) -> str:
        """The defaults and calls that say so, by file and line."""
        ordered = sorted(self.rests, key=lambda r: (r.place.path, r.place.line, r.name))
        said = ", ".join(f"{r.name} = {r.value} ({r.place})" for r in ordered)
        made = f"made at {', '.join(map(str, self.calls))}" if self.calls else ""
        return ": ".join(filter(None, [self.owners, "; ".join(filter(None, [said, made]))]))

    @property
    def is_odd_quotient(self) -> bool:
        """Whether two defaults make it that hardly stand for one model: 1280 wide, and 32 heads of 40."""
        sizes = {r.value for r in self.rests if type(r.value) is int}
        made = any(a == self.head * b for a in sizes for b in sizes if b > 1)
        return made and self.head % COMMON != 0

    @property
    def is_likely(self) -> bool:
        """Whether it is no constant of the code."""
        return bool(self.rests or self.calls)


def target_of(graph: Graph) -> Version:
    """The MLX that the code runs on."""
    return NEWEST if graph.program is None else graph.program.target


def padded_to(heads: Heads, target: Version) -> int | None:
    """The next head dimension that has a fused kernel for many queries; None where none is as large."""
    return min((size for size in heads_taken(MANY, target) if size >= heads.largest), default=None)


def of_operands(facts: KnownFacts, operands: Iterable[Node], axis: int = -2) -> Heads | None:
    """The head dimensions of queries, keys and values; None where they aren't known, or queries are known to be few.

    axis: the one of the queries that counts them.
    """
    q, k, v = operands
    shape = facts.shape(q)
    (head, by), (values, also) = (
        facts.usual(None if s is None else s.axis(-1))
        for s in (shape, likely(v, facts))  # a cache returns values as wide as it is given
    )
    length = facts.usual(None if shape is None else shape.axis(axis))[0]
    if head is None or (length is not None and length <= MANY):
        return None
    wide = any(facts.dtype(n) == FLOAT32 for n in (q, k, v))
    return Heads(head, values, wide, by | (also if values is not None else frozenset()))


def without_kernel(
    graph: Graph, known: Callable[[KnownFacts], Heads | None], queries: Callable[[KnownFacts], Iterable[Shape | None]]
) -> Heads | None:
    """Head dimensions without a fused kernel for many queries: proven ones, by defaults, or of an object that the
    package makes; None where nothing says so.

    known: what facts say of them. queries: the shapes of the queries.
    """
    target = target_of(graph)
    for facts in (graph.facts, graph.usual):
        found = known(facts)
        if found is not None:
            return None if found.is_fused(MANY, target) or (found.rests and is_left_out(graph)) else found
    if not _depends_on_making(graph, queries(graph.usual)):
        return None
    made = ((heads, calls) for heads, calls in as_made(graph, known) if not heads.is_fused(MANY, target))
    return next((replace(heads, calls=calls) for heads, calls in made), None)


def _depends_on_making(graph: Graph, queries: Iterable[Shape | None]) -> bool:
    """Whether a head dimension may follow from what the constructor is given, and not only from its configuration."""
    facts = graph.usual
    names = {n for s in queries if s is not None and (size := s.axis(-1)) is not None for n in size.names}
    init = graph.program.init(graph.context.class_name or "") if graph.program is not None else None
    given = set() if init is None else {facts.name_of(p) for p in init.params.values()}
    return not names or not names.isdisjoint(given) or any(".shape[" in n for n in names)
