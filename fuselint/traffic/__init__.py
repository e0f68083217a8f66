"""What a region costs now and after its fix: bytes as formulas and numbers, and launches apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuselint.config import DTYPES
from fuselint.finding import Traffic
from fuselint.graph.facts import Facts
from fuselint.graph.gates import Gates
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.rulebook import Synthesised
from fuselint.traffic.fused import kernels_of
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, launches
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.config import Settings
    from fuselint.rulebook import Match


def saving(graph: Graph, match: Match, settings: Settings) -> Traffic:
    """The region's traffic before, and that of the fused kernels with what others still read of the region."""
    facts = _stated(graph, match)
    gates = Gates(size=lambda name: settings.size(graph.context.qualname, name))
    traced = trace(match.region, facts, eager=True, gates=gates)
    outputs = [match.root, *_read_elsewhere(graph, match)]
    if graph.context.compiled:
        before = compiled_kernels(match.region, outputs, facts, graph.context.shapeless, gates)
    else:
        before = launches(traced, outputs)
    after = [
        *_fused(match, traced),
        *launches(trace(_still_needed(graph, match), facts, eager=True, gates=gates)),
    ]
    shapes = [a.shape for k in (*before, *after) for a in (*k.reads, *k.writes)]
    equal = [(r.shape, w.shape) for k in before for w in k.writes for r in k.reads if w.fusable]
    bytes_ = Bytes(Sizes.of(shapes, equal), DTYPES[settings.dtype])
    bytes_.sizes.meanings.update(_meanings(graph, match))
    now, fused = bytes_.total(before), bytes_.total(after)
    return _report(graph, settings, bytes_.sizes, (now, len(before)), (fused, len(after)))


def _stated(graph: Graph, match: Match) -> Facts:
    """The graph's facts; where the rule knows its operands' shapes, in the rule's names for their axes."""
    stated = dict(_shapes_of_holes(match))
    if not stated:
        return graph.facts
    facts = Facts(graph)
    known = {rule: n for rule, code in _axes(graph, match) if (n := code.value()) is not None}
    for node, shape in stated.items():
        dims = tuple(d.substitute(known) for d in shape.dims)
        facts.state(node, Shape(None, dims), graph.facts.dtype(node), "an operand of the rule")
    return facts


def _shapes_of_holes(match: Match) -> Iterator[tuple[Node, Shape]]:
    """The operands whose rank the rule states, with the rule's names for their axes."""
    for name, shape in match.shapes.items():
        hole, _, part = name.partition(".")
        held = match.holes.get(hole)
        node = held.operands.get(part) if isinstance(held, Synthesised) else held
        if isinstance(node, Node) and "..." not in shape:
            yield node, Shape(None, tuple(Expr.of(int(d)) if d.isdecimal() else Expr.name(d) for d in shape))


def _axes(graph: Graph, match: Match) -> Iterator[tuple[str, Expr]]:
    """What the code calls the axes that the rule names, or their sizes."""
    for node, shape in _shapes_of_holes(match):
        own = graph.facts.shape(node)
        if own is not None and own.lead is None and len(own.dims) == len(shape.dims):
            for rule, code in zip(shape.dims, own.dims, strict=True):
                if rule.value() is None and code not in (rule, 1):
                    yield str(rule), code


def _meanings(graph: Graph, match: Match) -> dict[str, str]:
    out: dict[str, str] = {}
    for rule, code in _axes(graph, match):
        out.setdefault(rule, str(code))
    return out


def _report(graph: Graph, settings: Settings, sizes: Sizes, now: tuple[Expr, int], fused: tuple[Expr, int]) -> Traffic:
    before, after = sizes.leading(now[0]), sizes.leading(fused[0])
    function = graph.context.qualname
    at, assumed = sizes.numbers(before + after, lambda name: settings.size(function, name))
    saved = (before - after).substitute(at).value()
    return Traffic(
        symbols={name: sizes.meaning(name) for name in at},
        bytes_now=str(before),
        bytes_fused=str(after),
        kernels_now=now[1],
        kernels_fused=fused[1],
        dtype=settings.dtype,
        at=at,
        saved_at=saved,
        assumed=assumed,
    )


def _fused(match: Match, traced: Trace) -> list[Kernel]:
    """The rule's own kernels, or what runs in their place where MLX has none."""
    out: list[Kernel] = []
    for k in match.fused:
        reads = [a for n in dict.fromkeys(k.reads) if isinstance(a := traced.operand(n), Array)]
        writes = traced.operand(k.writes)
        if isinstance(writes, Array):
            out.extend(kernels_of(k.op, reads, writes, k.writes, traced.gates))
    return out


def _read_elsewhere(graph: Graph, match: Match) -> list[Node]:
    """Values of the region, besides its root, that something outside reads."""
    inside = match.region
    return [
        n
        for n in sorted(inside, key=lambda n: n.id)
        if n is not match.root and (n in graph.escaping or any(u not in inside for u in graph.users.get(n, ())))
    ]


def _still_needed(graph: Graph, match: Match) -> list[Node]:
    """What of the region is computed after the fix too."""
    outside = {k for n in match.region for k in n.inputs if k not in match.region}
    holes = {h for h in match.holes.values() if isinstance(h, Node)}
    kept: dict[Node, None] = {}
    for root in _read_elsewhere(graph, match):
        for n in region(root, outside | holes):
            kept[n] = None
    return [n for n in kept if n in match.region]
