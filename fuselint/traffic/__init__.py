"""What a region costs now and after its fix: bytes as formulas and numbers, launches apart, and an estimate of time."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fuselint import chips
from fuselint.config import DEFAULT_CHIP, DEFAULT_DTYPE, DTYPES, LONG_DTYPES, Settings
from fuselint.finding import Seconds as SecondsSaved
from fuselint.finding import Traffic
from fuselint.graph.callers import given_dtypes
from fuselint.graph.dtypes import CONCRETE, DType
from fuselint.graph.facts import Facts
from fuselint.graph.gates import Gates, version_of
from fuselint.graph.likely import likely
from fuselint.graph.model import Graph, Node, Statement, region
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr, product, readable
from fuselint.graph.tape import ACTIVATION, Array
from fuselint.graph.trace import Trace, trace
from fuselint.graph.unstated import merged
from fuselint.rulebook import Synthesised
from fuselint.traffic.apart import apart
from fuselint.traffic.fused import kernels_of
from fuselint.traffic.kernels import Bytes, Kernel, launched, launches
from fuselint.traffic.known import Known
from fuselint.traffic.known import known as what_is_known
from fuselint.traffic.rewritten import kernels_around, small_array
from fuselint.traffic.sizes import Pair, Sizes

if TYPE_CHECKING:
    from fuselint.rulebook import FusedKernel, Made, Match

ONES = frozenset({(1, "stated"), (1, "recorded"), (1, "config"), (1, "phase")})

MLX_NAMES = {short: long for long, short in LONG_DTYPES.items()}

MOST_STATING = 50_000
"""Values whose facts are worked out once more with the names of rules, in one function."""

COMPILES = ("mx.compile", "nn.")
"""How fused ops begin that mx.compile fuses: under a gradient their original runs, operation by operation."""


@dataclass(frozen=True, eq=False)
class Region:
    """The kernels of a match before its fix and after it, and the sizes in which both are counted."""

    before: list[Kernel]
    after: list[Kernel]
    bytes: Bytes
    assumes_dtype: bool = False  # of some array nothing says the dtype

    @property
    def formulas(self) -> tuple[Expr, Expr]:
        return self.bytes.total(self.before), self.bytes.total(self.after)

    def cached(self, known: Known, chip: chips.Chip) -> float:
        """The bytes that a kernel before the fix writes and another reads, where they fit the last-level cache."""
        read = {a for k in self.before for a in k.reads}
        passed = [a for k in self.before for a in k.writes if a in read]
        sizes = [_number(self.bytes.of(a), self.bytes.sizes, known) for a in passed]
        return sum(sizes) if chips.fits(sum(sizes), chip) else 0.0


def saving(graph: Graph, match: Match, settings: Settings, known: Known | None = None) -> Traffic:
    """The region's traffic before, and that of the fused kernels with what others still read of the region."""
    known = known or what_is_known(settings, graph.context.qualname)
    if known.config is None and not known.ran:
        if graph not in _by_default:
            _by_default[graph] = by_default(graph)
        known = replace(known, usual=_by_default[graph])
    return report(count(graph, match, settings, known), settings, known)


_by_default: WeakKeyDictionary[Graph, Mapping[str, int]] = WeakKeyDictionary()


def by_default(graph: Graph) -> Mapping[str, int]:
    """The sizes of a function that the defaults of the package's configurations and constructors make numbers: those
    that stand where these have a number, in the shape of the same value."""
    facts, usual = graph.facts, graph.usual
    found: dict[str, set[int]] = {}
    products: list[tuple[Expr, int]] = []
    for node in graph.nodes:
        sizes = [(facts.size(node), usual.size(node))] if facts.kind(node) == "scalar" else []
        shape, likely_shape = facts.shape(node), usual.shape(node)
        if shape is not None and likely_shape is not None:
            sizes += zip(reversed(shape.dims), reversed(likely_shape.dims), strict=False)
        for size, likely_size in sizes:
            number = None if size is None else usual.usual(likely_size)[0]
            if size is None or number is None or number < 1:
                continue
            if size.bare is not None:
                found.setdefault(size.bare, set()).add(number)
            elif size.names:
                products.append((size, number))
    # A name of one word may be another value's where these facts are worked out in another order.
    known = {name: n for name, (n, _) in usual.reach.numbers.items() if "." in name and n > 0}
    known |= {name: numbers.pop() for name, numbers in found.items() if len(numbers) == 1}
    for size, number in products:
        rest = size.substitute(known)
        (name, *more) = rest.names or ("",)
        factor = rest.substitute({name: 1}).value() or 0
        if not more and rest == Expr.name(name) * factor and factor and number % factor == 0:
            known.setdefault(name, number // factor)
    return known


def saves_where_compiled(graph: Graph, match: Match) -> bool:
    """Whether a fix in a compiled function spares a kernel or bytes, in MLX's default and the usual sizes: what the
    region's neighbours are fused with before, they may not be after."""
    settings = Settings(chip=DEFAULT_CHIP)
    known = what_is_known(settings, graph.context.qualname)
    region = count(graph, match, settings, known)
    now, fused = (_number(f, region.bytes.sizes, known) for f in region.formulas)
    return fused < now or len(region.after) < len(region.before)


def count(graph: Graph, match: Match, settings: Settings, known: Known) -> Region:
    facts, letters, renamed = _stated(graph, match)
    gates = replace(gates_of(settings, known), given={**given_dtypes(graph), **known.dtypes})
    traced = trace(_one_way(match.region), facts, eager=True, gates=gates)
    traced.gates = replace(gates, ones=ones(traced, known))
    before, after = _kernels(graph, match, facts, traced)
    _lead_products(before)
    others = (a for k in (*before, *after) for a in k.reads)
    own = apart(traced, match.region, (match.root, *match.also), others)
    shapes = [a.shape for k in (*before, *after) for a in (*k.reads, *k.writes) if a.shape or own.of(a).own is None]
    equal = [(r.shape, w.shape) for k in before for w in k.writes for r in k.reads if w.fusable]
    sizes = Sizes.of(shapes, equal, met(traced.tracer.arrays), summed(traced.tracer.arrays), own)
    sizes.meanings.update(letters)
    sizes.renamed.update(renamed)
    moved = (a for k in (*before, *after) for a in (*k.reads, *k.writes))
    believed = traced.counted.keys() - gates.given.keys() - merged(graph, facts)
    assumed = bool(believed) or any(a.dtype == ACTIVATION for a in moved)
    return Region(before, after, Bytes(sizes, DTYPES[settings.dtype]), assumed and settings.dtype == DEFAULT_DTYPE)


def _lead_products(kernels: Sequence[Kernel]) -> None:
    """Gives a product of unknown rank the leading axes of what it is added to, which the sum has."""
    for k in kernels:
        whole = next((w.shape for w in k.writes if w.fusable and w.shape is not None and w.shape.lead is None), None)
        for a in k.reads if whole is not None else ():
            more = 0 if whole is None or a.shape is None else len(whole.dims) - len(a.shape.dims)
            if a.primitive == "Matmul" and a.shape is not None and a.shape.lead is not None and more > 0 and whole:
                a.shape = Shape(None, (*whole.dims[:more], *a.shape.dims))


def _kernels(graph: Graph, match: Match, facts: Facts, traced: Trace) -> tuple[list[Kernel], list[Kernel]]:
    if match.launches is not None:
        return list(match.launches.now), list(match.launches.after)
    gates = traced.gates
    needed = _still_needed(graph, match)
    if graph.context.compiled:
        return kernels_around(graph, match, facts, gates, needed)
    outputs = list(dict.fromkeys([*_written(match), *_read_elsewhere(graph, match)]))
    before = launches(traced, outputs)
    if gates.training and match.fused and all(k.op.startswith(COMPILES) for k in match.fused):
        return before, before
    still = trace(needed, facts, eager=True, gates=gates)
    return before, [*_fused(match, traced), *launches(still)]


def _one_way(nodes: Collection[Node]) -> set[Node]:
    """Without what another branch of an `if` computes: of each, the one that computes more stays."""
    arms: dict[Statement, dict[str, set[Node]]] = {}
    for node in nodes:
        stmt = node.top_stmt
        at = None if stmt is None else stmt.block
        while at is not None:
            if at.kind in ("then", "else") and at.owner is not None:
                arms.setdefault(at.owner, {}).setdefault(at.kind, set()).add(node)
            at = at.parent
    kept = set(nodes)
    for ways in arms.values():
        if len(ways) > 1:
            then, other = (ways[kind] & kept for kind in ("then", "else"))
            kept -= other if len(then) >= len(other) else then
    return kept


def gates_of(settings: Settings, known: Known) -> Gates:
    """What is fused on the chip, by the MLX, and in the phase that the settings name."""

    def number(name: str) -> int | None:
        said = known.number(name)
        return None if said is None else said[0]

    chip, _ = chips.chosen(settings.chip)
    version = version_of(settings.target_mlx)
    return Gates(chip.backend, version, known.phase.training, number, known.phase.length, MLX_NAMES[settings.dtype])


def ones(traced: Trace, known: Known) -> frozenset[str]:
    """The sizes of a trace that are 1, because the user says so or the phase that was asked for."""
    shapes = [a.shape for a in traced.tracer.arrays]
    sizes = Sizes.plain(shapes)
    names = {n for s in shapes if s is not None for d in s.dims for n in d.names}
    return frozenset(n for n in names if sizes.number(n, known) in ONES)


def met(arrays: Sequence[Array]) -> list[Pair]:
    """Sizes that are equal because arrays meet there: in products, and in elementwise work."""
    out: list[Pair] = []
    for a in arrays:
        given = [b.shape for b in a.inputs if b.shape is not None]
        if a.primitive in ("Matmul", "AddMM") and len(given) > 1:
            out.extend(_pairs(given[0].axis(-1), given[1].axis(-2)))
            out.extend(_aligned(given[0].dims[:-2], given[1].dims[:-2]))
        elif a.fusable and a.shape is not None:
            for s in given:
                out.extend(_aligned(s.dims, a.shape.dims))
        elif a.primitive in ("RMSNorm", "LayerNorm") and len(given) > 1:
            out.extend(_pairs(given[0].axis(-1), given[1].axis(-1)))
    return out


def summed(arrays: Sequence[Array]) -> Iterator[Pair]:
    """The last axis of what is multiplied by a matrix, with the matrix's own axis."""
    for a in arrays:
        given = [b.shape for b in a.inputs if b.shape is not None]
        if a.primitive in ("Matmul", "AddMM") and len(given) > 1 and given[1].rank == 2:
            yield from _pairs(given[0].axis(-1), given[1].axis(-2))


def _aligned(a: Sequence[Expr], b: Sequence[Expr]) -> Iterator[Pair]:
    """Axes that stand above each other, from the last."""
    for x, y in zip(reversed(a), reversed(b), strict=False):
        yield from _pairs(x, y)


def _pairs(x: Expr | None, y: Expr | None) -> Iterator[Pair]:
    if x is not None and y is not None and x != y and 1 not in (x, y):
        yield x, y


# -- the rule's names for axes ---------------------------------------------------------------------------------------


WORDS = {"B": "batch", "H": "heads", "G": "kv_heads", "L": "length", "S": "keys", "D": "width", "T": "rows"}
"""What a rule's letter is called where the code calls something else so."""


def _stated(graph: Graph, match: Match) -> tuple[Facts, dict[str, Expr], dict[str, Expr]]:
    """The graph's facts; where the rule knows its operands' shapes, with its names for the axes that the code gives no
    name to. And what those names mean, and what the code's own names are in them."""
    stated = {node: shape for _, node, shape in _shapes_of_holes(match)}
    dtypes = {node: d for name, node, _ in _shapes_of_holes(match) if (d := match.dtypes.get(name)) in CONCRETE}
    if not stated or not _may_state(graph):
        return graph.facts, {}, {}
    facts = Facts(graph)
    axes = dict(reversed(list(_axes(graph, match))))  # the first that names it
    own = {r: e for r, e in axes.items() if is_readable(e)}
    given = dict(_scalars(graph, match))
    own.update((r, e) for r, e in given.items() if r.isidentifier() and r not in axes and e.bare is not None)
    taken = {n for e in axes.values() for n in e.names}
    letters = {r for shape in stated.values() for d in shape.dims for r in d.names if r not in own}
    called = {r: WORDS.get(r, r) if r in taken else r for r in letters}
    names = {**own, **{r: Expr.name(n) for r, n in called.items()}}
    for node, shape in stated.items():
        own_shape = likely(node, graph.facts)
        if own_shape is not None and own_shape.lead is None and graph.facts.rank(node) is None:
            facts.state(node, own_shape, graph.facts.dtype(node), "before the loop")
            continue
        dims = tuple(d.substitute(names) for d in shape.dims)
        dtype = DType({dtypes[node]}) if node in dtypes else graph.facts.dtype(node)
        facts.state(node, Shape(None, dims), dtype, "an operand of the rule")
    meant = {called[r]: e for r, e in axes.items() if r in called and not any("%" in n for n in e.names)}
    # `dim` of the queries is two halves of the keys, too
    halves = {str(e): _size(r).substitute(names) for r, e in given.items() if "*" in r and r not in axes}
    return facts, meant, {n: size for n, size in halves.items() if size.names <= set(called.values())}


_stating: WeakKeyDictionary[Graph, int] = WeakKeyDictionary()


def _may_state(graph: Graph) -> bool:
    """Whether the facts of a function are worked out once more, with a rule's names, and not too often for its size."""
    _stating[graph] = _stating.get(graph, 0) + len(graph.nodes)
    return _stating[graph] <= max(MOST_STATING, len(graph.nodes))


def _scalars(graph: Graph, match: Match) -> Iterator[tuple[str, Expr]]:
    """What the code calls the numbers that the rule knows by its axes: as many positions as `time`, `T`."""
    for value, text in match.scalars.items():
        nodes = graph.canonical.nodes(value)
        size = graph.facts.size(nodes[0]) if nodes else None
        if size is not None and size.bare is not None and is_readable(size):
            yield str(_size(text)), size


def is_readable(size: Expr) -> bool:
    """A number, or one name that the code has: not `x.shape[-1]`, nor a quotient."""
    if size.value() is not None:
        return True
    name = next(iter(size.names)) if len(size.names) == 1 else ""
    return size == Expr.name(name) and re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*'*", name) is not None


def _shapes_of_holes(match: Match) -> Iterator[tuple[str, Node, Shape]]:
    """The operands whose rank the rule states, by its names for them, with its names for their axes."""
    for name, shape in match.shapes.items():
        hole, _, part = name.partition(".")
        held = match.holes.get(hole)
        node = held.operands.get(part) if isinstance(held, Synthesised) else held
        if isinstance(node, Node) and "..." not in shape:
            yield name, node, Shape(None, tuple(map(_size, shape)))


def _size(text: str) -> Expr:
    """A size as rules write it: a number, a name, `2*F`, `2*F + R`, `D//8`, and `D/8`, which leaves no rest."""
    total = Expr.of(0)
    for term in text.split(" + "):
        above, sign, below = re.fullmatch(r"([^/]*)(/*)(.*)", term).groups()  # type: ignore[union-attr]
        factors = [f.strip() for f in above.split("*")]
        size = product(Expr.of(int(f)) if f.isdecimal() else Expr.name(f) for f in factors)
        total = total + (size // int(below) if sign == "//" else size / int(below or 1))
    return total


def _axes(graph: Graph, match: Match) -> Iterator[tuple[str, Expr]]:
    """What the code calls the axes that the rule names, or their sizes."""
    for _, node, shape in _shapes_of_holes(match):
        own = graph.facts.shape(node)
        if own is not None and own.lead is None and len(own.dims) == len(shape.dims):
            for rule, code in zip(shape.dims, own.dims, strict=True):
                if rule.value() is None and code != 1:
                    yield str(rule), code


# -- reporting ---------------------------------------------------------------------------------------------------------


def _number(formula: Expr, sizes: Sizes, known: Known) -> int:
    numbers = {name: n for name, (n, _) in sizes.numbers(formula, known).items()}
    return formula.substitute(numbers).value() or 0


def report(counted: Region, settings: Settings, known: Known) -> Traffic:
    sizes = counted.bytes.sizes
    now, fused = counted.formulas
    before, after = sizes.leading(now), sizes.leading(fused)
    numbers = sizes.numbers(before + after, known)
    at = {name: n for name, (n, _) in numbers.items()}
    saved = (before - after).substitute(at).value()
    chip, _ = chips.chosen(settings.chip)
    fewer = launched(counted.before) - launched(counted.after)
    return Traffic(
        symbols={name: sizes.meaning(name) for name in at},
        bytes_now=readable(before),
        bytes_fused=readable(after),
        kernels_now=len(counted.before),
        kernels_fused=len(counted.after),
        dtype=settings.dtype,
        at=at,
        saved_at=saved,
        launches_fewer=fewer,
        assumed=(
            *(name for name, (_, source) in numbers.items() if source == "assumed"),
            *["dtype"] * counted.assumes_dtype,
        ),
        sources={name: source for name, (_, source) in numbers.items()},
        chip=chip.key,
        phase=settings.phase or "prefill",
        seconds=None if saved is None else band(chips.seconds(saved, fewer, chip, counted.cached(known, chip))),
    )


def band(t: chips.Seconds) -> SecondsSaved:
    """Ordered, where a region saves launches and costs bytes, or the other way about."""
    low, high = sorted((t.low, t.high))
    return SecondsSaved(low, t.estimate, high)


# -- what the fix leaves -----------------------------------------------------------------------------------------------


def _fused(match: Match, traced: Trace) -> list[Kernel]:
    """The rule's own kernels, or what runs in their place where MLX has none."""
    out: list[Kernel] = []
    for k in match.fused:
        reads = _arrays(k.reads, traced)
        writes = traced.operand(k.writes)
        if isinstance(writes, Array):
            made = [_made(m, k, traced) for m in k.made]
            out.extend(made)
            reads += [a for m in made for a in m.writes]
            out.extend(kernels_of(k.op, reads, writes, k.writes, traced.gates, wide=k.wide))
    return out


def _arrays(nodes: Sequence[Node], traced: Trace) -> list[Array]:
    return [a for n in dict.fromkeys(nodes) if isinstance(a := traced.operand(n), Array)]


def _made(made: Made, kernel: FusedKernel, traced: Trace) -> Kernel:
    """The kernel that makes a small array for another."""
    array = small_array(made, traced)
    return Kernel(made.op, kernel.writes, tuple(array.inputs), (array,))


def _written(match: Match) -> list[Node]:
    """The values that the fixed code computes in place of the region."""
    return list(dict.fromkeys([match.root, *match.also, *(k.writes for k in match.fused)]))


def _read_elsewhere(graph: Graph, match: Match) -> list[Node]:
    """Values of the region, besides those that the fused kernels write, that something outside reads."""
    inside, written = match.region, set(_written(match))
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
