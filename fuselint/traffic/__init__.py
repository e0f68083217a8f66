"""What a region costs now and after its fix: bytes as formulas and numbers, launches apart, and an estimate of time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from fuselint import chips
from fuselint.config import DEFAULT_CHIP, DTYPES, LONG_DTYPES, Settings
from fuselint.finding import UNSTATED, InDtype, Saved, Traffic
from fuselint.finding import Seconds as SecondsSaved
from fuselint.graph.callers import Axis, absent_arguments, given_axes, given_dtypes, given_ranks, given_shapes
from fuselint.graph.dtypes import CONCRETE, DType
from fuselint.graph.facts import Facts
from fuselint.graph.gates import Gates, version_of
from fuselint.graph.likely import likely
from fuselint.graph.makers import is_part, made_sizes, numbered, rests_on, solve
from fuselint.graph.model import PROPERTIES, Block, Graph, Node, Statement, region
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.symbols import Expr, product, readable
from fuselint.graph.tape import ACTIVATION, FUSABLE, RESHAPES, Array
from fuselint.graph.trace import Trace, trace
from fuselint.graph.unstated import counted, merged
from fuselint.rates import Rates, rates_of, total
from fuselint.rulebook import Synthesised
from fuselint.traffic.apart import apart, shapes_of_tables, unbroadcast
from fuselint.traffic.branches import contradicted, one_way
from fuselint.traffic.fused import kernels_of
from fuselint.traffic.kernels import Bytes, Kernel, launched, launches
from fuselint.traffic.known import Known, Number, role
from fuselint.traffic.known import known as what_is_known
from fuselint.traffic.layout import Place
from fuselint.traffic.loads import loads
from fuselint.traffic.rewritten import kernels_around, small_array
from fuselint.traffic.sizes import HEADED_RANK, Pair, Sizes, aligned, is_obscure, reduced
from fuselint.traffic.views import COPYING, Arguments, places_of_arguments, places_of_views

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts
    from fuselint.rulebook import FusedKernel, Made, Match

WIDE = "f32"
"""What may be the dtype of arrays of which nobody states it, besides the default."""

ONES = frozenset({(1, "stated"), (1, "recorded"), (1, "config"), (1, "phase")})

MLX_NAMES = {short: long for long, short in LONG_DTYPES.items()}

HEADS = ({"heads"}, {"kv_heads"})

MOST_STATING = 50_000
"""Values whose facts are worked out once more with the names of rules, in one function."""

COMPILES = ("mx.compile", "nn.")
"""How fused ops begin that mx.compile fuses: under a gradient their original runs, operation by operation."""


@dataclass(frozen=True, eq=False)
class Region:
    """The kernels of a match before its fix and after it, and the sizes in which both are counted.

    dtype: of arrays of which nothing says it. otherwise: the same in the other width, where that makes a difference.
    """

    before: list[Kernel]
    after: list[Kernel]
    bytes: Bytes
    dtype: str
    otherwise: Region | None = None

    @cached_property
    def formulas(self) -> tuple[Expr, Expr]:
        return self.bytes.total(self.before), self.bytes.total(self.after)

    @cached_property
    def leading(self) -> tuple[Expr, Expr]:
        """The formulas as they are shown: see `Sizes.leading`."""
        now, fused = self.formulas
        return self.bytes.sizes.leading(now), self.bytes.sizes.leading(fused)

    @property
    def fewer(self) -> int:
        """Launches that the fix spares."""
        return launched(self.before) - launched(self.after)

    def saved(self, known: Known, at: Mapping[str, int]) -> int | None:
        """Bytes that the fix spares, at these sizes, and for others at what is known of them."""
        now, fused = self.leading
        return (now - fused).substitute({**_numbers(now + fused, self.bytes.sizes, known), **at}).value()

    def cached(self, known: Known, chip: chips.Chip) -> float:
        """The bytes that a kernel before the fix writes and another reads, where they fit the last-level cache."""
        read = {a for k in self.before for a in k.reads}
        passed = [a for k in self.before for a in k.writes if a in read]
        sizes = [_number(self.bytes.of(a), self.bytes.sizes, known) for a in passed]
        return sum(sizes) if chips.fits(sum(sizes), chip) else 0.0

    def seconds_saved(self, known: Known, at: Mapping[str, int], chip: chips.Chip) -> chips.Seconds | None:
        """What the fix spares, kernel by kernel, on a chip of which kernels were timed."""
        rates = rates_of(chip.key, chip.bandwidth)
        if rates is None:
            return None

        def number(formula: Expr) -> float:
            numbers = {**_numbers(formula, self.bytes.sizes, known), **at}
            return chips.held(formula.substitute(numbers).value() or 0)

        before, after = (self.seconds(kernels, number, chip, rates) for kernels in (self.before, self.after))
        return chips.between(before, after)

    def seconds(
        self, kernels: Sequence[Kernel], number: Callable[[Expr], float], chip: chips.Chip, rates: Rates
    ) -> float:
        return total(loads(kernels, self.bytes, number, lambda size: chips.fits(size, chip)), rates)


def saving(graph: Graph, match: Match, settings: Settings, known: Known | None = None) -> Traffic:
    """The region's traffic before, and that of the fused kernels with what others still read of the region."""
    known = known or what_is_known(settings, graph.context.qualname)
    if known.config is None and not known.ran:
        stmt = match.root.top_stmt
        branch = None if stmt is None else stmt.block.branch
        usual = _by_default.setdefault(graph, {})
        if branch not in usual:
            usual[branch] = by_default(graph, stmt)
        known = replace(known, usual=usual[branch])
    region = count(graph, match, settings, known)
    grown = {name for name in _repeats(region) if known.usual.get(name) == 1}
    known = replace(known, usual={name: n for name, n in known.usual.items() if name not in grown}, cache={})
    return report(region, settings, known)


def _repeats(region: Region) -> Iterator[str]:
    """The names of how often copies repeat what they read: where they run, that is more than 1."""
    for k in region.before:
        if len(k.reads) == len(k.writes) == 1 and k.writes[0].primitive not in FUSABLE:
            source, copy = (region.bytes.sizes.elements_of(a) for a in (k.reads[0], k.writes[0]))
            times = copy / source if source.divides(copy) else Expr.of(0)
            yield from [times.bare] if times.bare is not None else []


_by_default: WeakKeyDictionary[Graph, dict[Block | None, Mapping[str, int]]] = WeakKeyDictionary()


def by_default(graph: Graph, stmt: Statement | None = None) -> Mapping[str, int]:
    """The sizes of a function that the package makes numbers. Its calls: in all shapes that they give. The defaults of
    its configurations and constructors, and what all constructors of the package give its object: where these have a
    number, in the shape of the same value. stmt: what is to run with them."""
    facts, usual = graph.facts, graph.usual
    given = {name: axis.least for name, axis in given_axes(graph).items() if axis.least is not None}
    found: dict[str, set[int]] = {}
    for node in graph.nodes:
        if node.op == "dim" and node.inputs[0].op == "param" and (size := facts.size(node)) is not None:
            axis = f"{node.inputs[0].attrs['name']}.shape[{node.attrs['axis']}]"
            if axis in given and size.bare is not None:
                found.setdefault(size.bare, set()).add(given[axis])
    # What a constructor has by default is not what the package's calls give it.
    never = graph.context.class_name if is_part(graph) else None
    sizes = list(numbered(graph.nodes, facts, usual, never))
    for size, number in sizes:
        if size.bare is not None:
            found.setdefault(size.bare, set()).add(number)
    # A name of one word may be another value's where these facts are worked out in another order.
    counted = ((k, n) for k, (n, rests) in usual.reach.numbers.items() if not rests_on(rests, never))
    known = {name: n for name, n in counted if "." in name and n > 0}
    known |= {name: numbers.pop() for name, numbers in found.items() if len(numbers) == 1}
    solve(sizes, known)
    made = made_sizes(facts, known, stmt, last=_is_of_heads)  # a norm of heads has more rows than others
    out = {name: n for name, n in given.items() if n > 1} | known | made
    never_so = contradicted(graph, stmt, out)
    return {name: n for name, n in out.items() if name not in never_so}


def _is_of_heads(name: str) -> bool:
    return role(name) == "head"


def saves_where_compiled(graph: Graph, match: Match) -> bool:
    """Whether a fix in a compiled function spares a kernel or bytes, in MLX's default and the usual sizes: what the
    region's neighbours are fused with before, they may not be after."""
    settings = Settings(chip=DEFAULT_CHIP)
    known = what_is_known(settings, graph.context.qualname)
    region, _ = _count(graph, match, settings, known)
    now, fused = (_number(f, region.bytes.sizes, known) for f in region.formulas)
    return fused < now or len(region.after) < len(region.before)


def count(graph: Graph, match: Match, settings: Settings, known: Known) -> Region:
    """The region's kernels. Where nobody states a dtype, those in the other width too: of several ways to count, the
    one that saves least."""
    region, traced = _count(graph, match, settings, known)
    if settings.dtype or not _assumes_dtypes(graph, region, traced):
        return region
    wide, _ = _count(graph, match, replace(settings, dtype=WIDE), known)
    if _moves_like(region, wide):
        region = wide  # all that is unstated is beside what is float32
    others = [wide, *([_count(graph, match, settings, known, narrow=True)[0]] if _meets_wide(traced, match) else [])]
    others = [r for r in others if not _moves_like(r, region)]
    now, fused = region.formulas
    at = _numbers(now + fused, region.bytes.sizes, known)
    return replace(region, otherwise=min(others, key=lambda r: r.saved(known, at) or 0, default=None))


def _moves_like(a: Region, b: Region) -> bool:
    return len(a.before) == len(b.before) and len(a.after) == len(b.after) and a.formulas == b.formulas


def _count(
    graph: Graph, match: Match, settings: Settings, known: Known, *, narrow: bool = False
) -> tuple[Region, Trace]:
    """A region in one dtype of what nobody states."""
    facts, letters, renamed = _stated(graph, match)
    given = {**given_dtypes(graph), **_dtypes_of_holes(graph, match), **known.dtypes}
    gates = replace(gates_of(settings, known), given=given, narrow=narrow)
    absent = absent_arguments(graph)
    traced = trace(one_way(graph, match, absent), facts, eager=True, gates=gates)
    traced.gates = replace(gates, ones=ones(traced, known))
    before, after = _kernels(graph, match, facts, traced, known)
    others = (a for k in (*before, *after) for a in k.reads)
    own = apart(traced, match.region, (match.root, *match.also), others)
    shapes = [a.shape for k in (*before, *after) for a in (*k.reads, *k.writes) if a.shape or own.of(a).own is None]
    equal = [(own.of(r).shape, w.shape) for k in before for w in k.writes for r in k.reads if w.fusable]
    spelled = {n: text for s in shapes if s is not None for n, text in _spelled(traced, s)}
    same, sums = met(traced.tracer.arrays), summed(traced.tracer.arrays)
    tables = list(shapes_of_tables(traced))
    masks = [
        (unbroadcast(w.inputs[0]).shape, w.shape) for k in before for w in k.writes if k.op == w.primitive == "Select"
    ]
    parts = dict(split(traced.tracer.arrays))
    sizes = Sizes.of(shapes, equal, same, sums, own, spelled, _roles(graph, facts), _ranks(graph), parts, tables, masks)
    sizes.meanings.update(letters)
    sizes.renamed.update({**_parted(match, facts), **renamed})
    return Region(before, after, Bytes(sizes, DTYPES[settings.activation]), settings.activation), traced


def _parted(match: Match, facts: KnownFacts) -> dict[str, Expr]:
    """The last axis of a result that the code parts: `y.reshape(B, L, 3, heads, width // heads)` has 3 widths."""
    shape = facts.shape(match.root)
    if shape is None or shape.lead is not None or not shape.dims or shape.dims[-1].bare is None:
        return {}
    name, rows = shape.dims[-1].bare, product(shape.dims[:-1])
    for user in facts.graph.users.get(match.root, ()):
        parts = facts.sizes(user.attrs["shape"]) if user.op == "reshape" else None
        if parts is not None and parts.lead is None and -1 not in parts.dims and rows.divides(product(parts.dims)):
            size = reduced(product(parts.dims) / rows)
            return {} if name in size.names else {name: size}
    return {}


def _roles(graph: Graph, facts: KnownFacts) -> dict[str, str]:
    """What sizes are for that have no name here: by what all calls call them, and by the steps of a recurrence. And
    what those are by default that are one of several."""
    called = {name: {role(s.bare or "") for s in axis.sizes} for name, axis in given_axes(graph).items()}
    heads = {name: next(iter(roles)) for name, roles in called.items() if ".shape[" in name and roles in HEADS}
    return dict(_widths(graph)) | heads | dict(_chosen(graph)) | dict.fromkeys(_batches(facts), "batch")


def _widths(graph: Graph) -> Iterator[tuple[str, str]]:
    """The last axes of what layers give, where names don't say what for: features too where they are moved forward."""
    for node in graph.nodes:
        shape = graph.facts.shape(node) if node.op in TABLE and TABLE[node.op].kind == "layer" else None
        size = None if shape is None or not shape.dims else shape.dims[-1].bare
        if size is not None and ".shape[" not in size and role(size) == "other":
            yield size, "features"


def _chosen(graph: Graph) -> Iterator[tuple[str, str]]:
    """By the name of a size of a layer that may be another by a switch: what it is for as defaults have that."""
    for node in graph.nodes:
        if node.op not in TABLE or TABLE[node.op].kind != "layer":
            continue
        here, there = graph.facts.shape(node), graph.usual.shape(node)
        size, chosen = (None if s is None or not s.dims else s.dims[-1].bare for s in (here, there))
        if size is not None and chosen is not None and size != chosen and role(chosen) != "other":
            yield size, role(chosen)


def _ranks(graph: Graph) -> dict[str, int]:
    """The parameters that have heads in all calls: these say by a name or a number which of the axes holds them."""
    given = given_axes(graph)
    bases = [name.removesuffix(".shape[-1]") for name in given if name.endswith(".shape[-1]")]
    return {base: HEADED_RANK for base in bases if _has_heads(base, given)}


def _has_heads(base: str, given: Mapping[str, Axis]) -> bool:
    axes = [a for i in range(1, HEADED_RANK + 1) if (a := given.get(f"{base}.shape[-{i}]")) is not None]
    named = [{role(s.bare or "") for s in a.sizes} in HEADS for a in axes]
    if len(axes) < HEADED_RANK:
        return named[1:] in ([True, False], [False, True])  # (length, heads, width), or heads first
    return sum(n or a.number is not None for n, a in zip(named[1:3], axes[1:3], strict=True)) == 1


def _batches(facts: KnownFacts) -> Iterator[str]:
    """The second axis of what a recurrence takes step by step: `for t in range(x.shape[0]): h = f(x[t], h)`."""
    nodes = facts.graph.nodes
    if not any(n.op == "loop" and facts.kind(n) == "array" for n in nodes):
        return
    for node in nodes:
        step = node.inputs[1] if node.op == "index" and len(node.inputs) > 1 else None
        steps = step.inputs[0] if step is not None and step.op == "item" else None
        if steps is None or steps.attrs.get("target") != "builtins.range" or len(steps.inputs) != 1:
            continue
        name = facts.name_of(node.inputs[0])
        if facts.size(steps.inputs[0]) == Expr.name(f"{name}.shape[0]"):
            yield f"{name}.shape[1]"


def _spelled(traced: Trace, shape: Shape) -> Iterator[tuple[str, str]]:
    """The sizes of a shape that are one of several, as the code spells them: `window_size[0]`."""
    for name in dict.fromkeys(n for d in shape.dims for n in sorted(d.names)):
        numbered, nodes = re.fullmatch(r"%(\d+)'*", name), traced.facts.graph.nodes
        node = nodes[int(numbered.group(1))] if numbered is not None and int(numbered.group(1)) < len(nodes) else None
        if node is None or node.op not in ("item", "index") or type(node.attrs.get("index")) is not int:
            continue
        whole = traced.facts.name_of(node.inputs[0])
        if traced.facts.name_of(node) == name and not whole.startswith("%"):
            yield name, f"{whole}[{node.attrs['index']}]"


def _assumes_dtypes(graph: Graph, region: Region, traced: Trace) -> bool:
    """Whether nothing says the dtype of some array."""
    moved = (a for k in (*region.before, *region.after) for a in (*k.reads, *k.writes))
    believed = traced.counted.keys() - traced.gates.given.keys() - merged(graph, traced.facts)
    return bool(believed) or any(a.dtype == ACTIVATION for a in moved)


def _meets_wide(traced: Trace, match: Match) -> bool:
    """Whether an array counts as float32 for no more than standing beside one."""
    nodes = sorted(match.region, key=lambda n: n.id)
    narrow = counted(nodes, traced.facts, traced.gates.given, narrow=True)
    believed = {s for s, dtype in traced.counted.items() if narrow.get(s) != dtype}
    arrays = (n for n, a in traced.made.items() if isinstance(a, Array))
    return any(believed & traced.facts.dtype(n).symbols for n in arrays)


def _kernels(
    graph: Graph, match: Match, facts: Facts, traced: Trace, known: Known
) -> tuple[list[Kernel], list[Kernel]]:
    gates = traced.gates
    if match.launches is not None:
        own = match.launches
        now, after = own.wide() if own.wide is not None and gates.dtype == "float32" else (own.now, own.after)
        return list(now), list(after)
    needed = _still_needed(graph, match)
    copies = any(k.op in COPYING for k in match.fused) or any(n.op in COPYING for n in match.region)
    arguments = Arguments(lambda t: ones(t, known)) if copies else None
    if graph.context.compiled:
        given = partial(places_of_arguments, arguments=arguments)
        return kernels_around(graph, match, facts, gates, needed, given)
    outputs = list(dict.fromkeys([*_written(match), *_read_elsewhere(graph, match)]))
    places = places_of_views(traced, match.region, arguments)
    before = launches(traced, outputs, places)
    if gates.training and match.fused and all(k.op.startswith(COMPILES) for k in match.fused):
        return before, before
    still = trace(needed, facts, eager=True, gates=gates)
    before += _unread_tables(graph, match, traced, needed)
    return before, [*_fused(match, traced, places, absent_arguments(graph)), *launches(still)]


def gates_of(settings: Settings, known: Known) -> Gates:
    """What is fused on the chip, by the MLX, and in the phase that the settings name."""

    def number(name: str) -> int | None:
        said = known.number(name)
        return None if said is None else said[0]

    chip, _ = chips.chosen(settings.chip)
    version = version_of(settings.target_mlx)
    dtype = MLX_NAMES[settings.activation]
    return Gates(chip.backend, version, known.phase.training, number, known.phase.length, dtype)


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
                for x, y in aligned(s, a.shape):
                    out.extend(_pairs(x, y))
        elif a.primitive in ("RMSNorm", "LayerNorm") and len(given) > 1:
            out.extend(_pairs(given[0].axis(-1), given[1].axis(-1)))
    return out


def summed(arrays: Sequence[Array]) -> Iterator[Pair]:
    """The last axis of what is multiplied by a matrix, with the matrix's own axis."""
    for a in arrays:
        given = [b.shape for b in a.inputs if b.shape is not None]
        last, own = (given[0].axis(-1), given[1].axis(-2)) if len(given) > 1 and given[1].rank == 2 else (None, None)
        if a.primitive in ("Matmul", "AddMM") and last is not None and own is not None and 1 not in (last, own):
            yield last, own


def split(arrays: Sequence[Array]) -> Iterator[tuple[str, Expr]]:
    """The last axis of an array that the code has no name for, and what a reshape makes of it which keeps the others:
    of `x.reshape(*x.shape[:-1], heads, width)` it is as long as all heads."""
    for a in arrays:
        before = a.inputs[0].shape if a.primitive in RESHAPES and a.inputs else None
        last = None if before is None else before.axis(-1)
        if before is None or a.shape is None or last is None or last.bare is None or not is_obscure(last):
            continue
        count = next((n for n in range(2, len(a.shape.dims) + 1) if a.shape.front(n) == before.front(1)), 0)
        size = product(a.shape.dims[-count:])
        if count and -1 not in a.shape.dims and not is_obscure(size) and last.bare not in size.names:
            yield last.bare, size


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
    stated, given_here = {node: shape for _, node, shape in _shapes_of_holes(match)}, given_shapes(graph)
    dtypes = {node: d for name, node, _ in _shapes_of_holes(match) if (d := match.dtypes.get(name)) in CONCRETE}
    ranks = given_ranks(graph) if any(_adds_an_axis(n, graph.facts) for n in graph.nodes) else {}
    if not (stated or given_here or ranks) or not _may_state(graph):
        return graph.facts, {}, {}
    facts = Facts(graph)
    facts.likely_shapes.update(given_here)
    facts.likely_ranks.update(ranks)
    axes = dict(reversed(list(_axes(graph, match))))  # the first that names it
    own = {r: e for r, e in axes.items() if is_readable(e)}
    given = dict(_scalars(graph, match))
    own.update((r, e) for r, e in given.items() if r.isidentifier() and r not in axes and e.bare is not None)
    taken = {n for e in axes.values() for n in e.names} | graph.module.constants.keys()
    letters = [r for shape in stated.values() for d in shape.dims for r in sorted(d.names) if r not in own]
    called = {r: WORDS.get(r, r) if r in taken or r in graph.bindings else r for r in letters}
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


def _adds_an_axis(node: Node, facts: KnownFacts) -> bool:
    """`x[:, None]`, `mx.expand_dims(x, 1)` of an x of unknown rank."""
    parts = node.attrs.get("index") if node.op == "index" else None
    adds = node.op == "expand_dims" or (isinstance(parts, tuple) and parts[-1] is None and Ellipsis not in parts)
    return adds and facts.rank(node.inputs[0]) is None


_stating: WeakKeyDictionary[Graph, int] = WeakKeyDictionary()


def _may_state(graph: Graph) -> bool:
    """Whether the facts of a function are worked out once more, with a rule's names, and not too often for its size."""
    _stating[graph] = _stating.get(graph, 0) + len(graph.nodes)
    return _stating[graph] <= max(MOST_STATING, len(graph.nodes))


def _dtypes_of_holes(graph: Graph, match: Match) -> dict[str, str]:
    """The symbols of the dtypes of operands whose dtype the rule states: of what has `self.inv_freq.dtype` too."""
    out: dict[str, str] = {}
    for name, node, _ in _shapes_of_holes(match):
        own, said = graph.facts.dtype(node), match.dtypes.get(name, "")
        if said in CONCRETE and len(own) == 1:
            out.update(dict.fromkeys(own.symbols, said))
    return out


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


def _numbers(formula: Expr, sizes: Sizes, known: Known) -> dict[str, int]:
    return {name: n for name, (n, _) in sizes.numbers(formula, known).items()}


def _number(formula: Expr, sizes: Sizes, known: Known) -> int:
    return formula.substitute(_numbers(formula, sizes, known)).value() or 0


def report(region: Region, settings: Settings, known: Known) -> Traffic:
    """A region as data. What it saves is the least that it saves in either dtype, where nobody states one."""
    sizes = region.bytes.sizes
    now, fused = region.leading
    every = sizes.numbers(now + fused, known)
    other = None
    if region.otherwise is not None:
        other = _in_other_dtype(region.otherwise, known, every, now - fused)
    numbers = _worth_saying(region, every, known)
    at = {name: n for name, (n, _) in numbers.items()}
    saved, fewer = region.saved(known, at), region.fewer
    least, fewest = saved, fewer
    if other is not None:
        least = min((s for s in (saved, other.saved_at) if s is not None), default=None)
        fewest = min(fewer, other.launches_fewer)
    chip, _ = chips.chosen(settings.chip)
    return Traffic(
        symbols={name: sizes.meaning(name) for name in every},
        bytes_now=readable(now),
        bytes_fused=readable(fused),
        kernels_now=len(region.before),
        kernels_fused=len(region.after),
        dtype=region.dtype,
        at=at,
        saved_at=least,
        launches_fewer=fewest,
        assumed=(
            *(name for name, (_, source) in numbers.items() if source in UNSTATED),
            *["dtype"] * (other is not None),
        ),
        sources={name: source for name, (_, source) in numbers.items()},
        chip=chip.key,
        phase=settings.phase or "prefill",
        seconds=None if least is None else band(_seconds(region, known, at, chip, least, fewest)),
        otherwise=other,
        saves=_saves(now, fused, every),
        most=max([(saved or 0, fewer), *((o.saved_at or 0, o.launches_fewer) for o in [other] if o is not None)]),
        uses=tuple(sizes.use(name) for name in numbers),
    )


def _seconds(
    region: Region, known: Known, at: Mapping[str, int], chip: chips.Chip, least: int, fewest: int
) -> chips.Seconds:
    """The least that is saved in either dtype."""
    both = [r.seconds_saved(known, at, chip) for r in (region, region.otherwise) if r is not None]
    timed = [t for t in both if t is not None]
    if timed:
        return min(timed, key=lambda t: t.estimate)
    return chips.seconds(least, fewest, chip, region.cached(known, chip))


def _worth_saying(region: Region, numbers: Mapping[str, Number], known: Known) -> Mapping[str, Number]:
    """Without those that nothing says of names that make no difference to what is saved: an operand that is read once
    before the fix and once after may be as large as it likes."""
    formulas = [r.leading for r in (region, region.otherwise) if r is not None]
    counts = {name for now, fused in formulas for name in (now - fused).names}
    said = {name for name, (_, source) in numbers.items() if source not in UNSTATED or known.likely(name) is not None}
    return {name: n for name, n in numbers.items() if name in counts | said}


MOST_OFF = 8
"""How many times smaller, or larger, than it counts a size may well be that nobody states."""
ALIKE = 0.1
"""Shares no further apart are one that can be told of."""


def _saves(now: Expr, fused: Expr, numbers: Mapping[str, Number]) -> Saved:
    """The share holds whatever the sizes are where one formula is a multiple of the other; else it is told of where it
    stays much the same, whatever those are that nobody states."""
    saved = readable(now - fused)
    if not now.terms:
        return Saved(saved, None, exact=False)
    monomial, most = now.terms[0]
    left = Fraction(dict(fused.terms).get(monomial, 0)) / most
    if now * left == fused:
        return Saved(saved, float(1 - left), exact=True)
    at = {name: n for name, (n, _) in numbers.items()}
    guessed = [name for name, (_, source) in numbers.items() if source in UNSTATED]
    moved = [{n: max(1, at[n] // MOST_OFF) for n in names} for names in _each_and_all(guessed)]
    moved += [{n: at[n] * MOST_OFF for n in names} for names in _each_and_all(guessed)]
    shares = [_share(now, fused, {**at, **there}) for there in ({}, *moved)]
    return Saved(saved, shares[0] if max(shares) - min(shares) <= ALIKE else None, exact=False)


def _each_and_all(names: Sequence[str]) -> list[list[str]]:
    return [[n] for n in names] + [list(names)] * (len(names) > 1)


def _share(now: Expr, fused: Expr, at: Mapping[str, int]) -> float:
    before, after = (formula.substitute(at).value() or 0 for formula in (now, fused))
    return 1 - after / before if before else 0.0


def _in_other_dtype(region: Region, known: Known, numbers: Mapping[str, Number], saved: Expr) -> InDtype:
    """saved: what the fix saves in the first dtype."""
    now, fused = region.leading
    apart = (saved - (now - fused)).terms
    return InDtype(
        dtype=region.dtype,
        bytes_now=readable(now),
        bytes_fused=readable(fused),
        kernels_now=len(region.before),
        kernels_fused=len(region.after),
        launches_fewer=region.fewer,
        saved_at=region.saved(known, {name: n for name, (n, _) in numbers.items()}),
        saves=_saves(now, fused, {**region.bytes.sizes.numbers(now + fused, known), **numbers}),
        less=True if all(c >= 0 for _, c in apart) else False if all(c <= 0 for _, c in apart) else None,
    )


def band(t: chips.Seconds) -> SecondsSaved:
    """Ordered, where a region saves launches and costs bytes, or the other way about."""
    low, high = sorted((t.low, t.high))
    return SecondsSaved(low, t.estimate, high)


# -- what the fix leaves -----------------------------------------------------------------------------------------------


def _fused(match: Match, traced: Trace, places: Mapping[Array, Place], absent: Collection[Node]) -> list[Kernel]:
    """The rule's own kernels, or what runs in their place where MLX has none. absent: arguments that nobody gives."""
    out: list[Kernel] = []
    for k in match.fused:
        reads = _arrays([n for n in k.reads if n not in absent], traced)
        writes = traced.operand(k.writes)
        if isinstance(writes, Array):
            made = [_made(m, k, traced) for m in k.made]
            out.extend(made)
            reads += [a for m in made for a in m.writes]
            out.extend(kernels_of(k.op, reads, writes, k.writes, traced.gates, wide=k.wide, places=places))
            places = {a: p for a, p in places.items() if a is not writes}  # what is written lies in row order
    return out


def _unread_tables(graph: Graph, match: Match, traced: Trace, needed: Collection[Node]) -> Iterator[Kernel]:
    """The kernels that make the tables of a rotation here, where the fused kernels don't read them, nor anything else:
    each as large as the table, up to the product that it begins with, and what is before that as good as nothing.
    needed: what of the region is computed after the fix too."""
    read = {n for k in match.fused for n in (*k.reads, *(r for m in k.made for r in m.reads))}
    gone = match.region.difference(needed)
    tables = (h for name, h in match.holes.items() if name.startswith("table") and isinstance(h, Node))
    waiting = [(h, traced.array(h), True) for h in dict.fromkeys(tables)]
    while waiting:
        node, table, is_whole = waiting.pop()
        op = TABLE.get(node.op)
        computes = node.op == "index" or (op is not None and op.kind != "layer" and op.result == "array")
        if table is None or not computes or node in gone | match.region or node in read:
            continue
        if node in graph.escaping or any(_needs(u, gone) for u in graph.users.get(node, ())):
            continue
        gone |= {node}
        one = Array("", [], table.shape if is_whole else SCALAR, "float32")
        kind = "view" if op is None else op.kind
        if kind != "view":
            yield Kernel(node.op, node, (one,) if is_whole and kind in ("unary", "cast", "copy") else (), (one,))
        below = is_whole and kind in ("view", "unary", "cast")
        waiting += [(n, table, below) for n in node.inputs]


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
        if n not in written and (n in graph.escaping or any(_needs(u, inside) for u in graph.users.get(n, ())))
    ]


def _needs(user: Node, inside: Collection[Node]) -> bool:
    """Whether a reader outside the region needs the array itself: MLX never computes what only the shape is read of."""
    return user not in inside and user.op not in PROPERTIES


def _still_needed(graph: Graph, match: Match) -> list[Node]:
    """What of the region is computed after the fix too."""
    outside = {k for n in match.region for k in n.inputs if k not in match.region}
    holes = {h for h in match.holes.values() if isinstance(h, Node)}
    kept: dict[Node, None] = {}
    for root in _read_elsewhere(graph, match):
        for n in region(root, outside | holes):
            kept[n] = None
    return [n for n in kept if n in match.region]
