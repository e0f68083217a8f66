"""What a region costs now and after its fix: bytes as formulas and numbers, and launches apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from fuselint.config import DTYPES
from fuselint.finding import Traffic
from fuselint.graph.facts import Facts
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr, product
from fuselint.graph.tape import Array
from fuselint.graph.trace import Trace, trace
from fuselint.rulebook import Synthesised
from fuselint.traffic.fallback import Stated, steps
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, launches
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.config import Settings
    from fuselint.rulebook import Match

SOFTMAX = ("softmax", "nn.softmax")


def saving(graph: Graph, match: Match, settings: Settings) -> Traffic:
    """The region's traffic before, and that of the fused kernels with what others still read of the region."""
    before, after = _kernels(graph, match, settings)
    shapes = [a.shape for k in (*before, *after) for a in (*k.reads, *k.writes)]
    equal = [(r.shape, w.shape) for k in before for w in k.writes for r in k.reads if w.fusable]
    bytes_ = Bytes(Sizes.of(shapes, equal), DTYPES[settings.dtype])
    bytes_.sizes.meanings.update(_meanings(graph, match))
    now, fused = bytes_.total(before), bytes_.total(after)
    return _report(graph, settings, bytes_.sizes, (now, len(before)), (fused, len(after)))


def _kernels(graph: Graph, match: Match, settings: Settings) -> tuple[Sequence[Kernel], Sequence[Kernel]]:
    if match.launches is not None:
        return match.launches.now, match.launches.after
    facts = _stated(graph, match)
    traced = trace(match.region, facts)
    if graph.context.compiled:
        outputs = list(dict.fromkeys([match.root, *(k.writes for k in match.fused), *_read_elsewhere(graph, match)]))
        before = compiled_kernels(match.region, outputs, facts, graph.context.shapeless)
    else:
        before = launches(traced)
    fused = _fused(match, traced, lambda name: settings.size(graph.context.qualname, name))
    return before, [*fused, *launches(trace(_still_needed(graph, match), facts))]


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
            yield node, Shape(None, tuple(map(_size, shape)))


def _size(text: str) -> Expr:
    """A size as rules write it: a number, a name, `2*F`, `2*F + R`."""
    total = Expr.of(0)
    for term in text.split(" + "):
        factors = [f.strip() for f in term.split("*")]
        total = total + product(Expr.of(int(f)) if f.isdecimal() else Expr.name(f) for f in factors)
    return total


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


def _fused(match: Match, traced: Trace, stated: Stated) -> list[Kernel]:
    """The rule's own kernels, or what runs in their place where MLX has none."""

    def arrays(nodes: Iterable[Node]) -> tuple[Array, ...]:
        return tuple(a for n in dict.fromkeys(nodes) if isinstance(a := traced.operand(n), Array))

    softmax = next((a for n in match.region if n.op in SOFTMAX and (a := traced.array(n)) is not None), None)
    scores = None if softmax is None else softmax.shape
    fused = [Kernel(k.op, k.writes, arrays(k.reads), arrays([k.writes])) for k in match.fused]
    return [step for k in fused for step in steps(k, scores, stated)]


def _read_elsewhere(graph: Graph, match: Match) -> list[Node]:
    """Values of the region, besides those that the fused kernels write, that something outside reads."""
    inside, written = match.region, {match.root, *(k.writes for k in match.fused)}
    return [
        n
        for n in sorted(inside, key=lambda n: n.id)
        if n not in written and (n in graph.escaping or any(u not in inside for u in graph.users.get(n, ())))
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
