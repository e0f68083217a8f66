"""What one pass of a model moves, in the part of it that one file holds: its classes, as often as the configuration
makes objects of them.

Counted are the kernels of each object's `__call__`, once a pass: weights as often as a kernel reads them, activations
as often as one is written and read. Of an `if` whose test isn't known, both sides are. What isn't understood, such as
calls into other files, isn't counted, and is listed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import libcst

from fuselint.config import DTYPES, Settings
from fuselint.finding import ModelSaving, ModelTraffic, Traffic
from fuselint.graph.model import Graph, Node
from fuselint.graph.trace import trace
from fuselint.source.instances import Made, instances
from fuselint.traffic import Region, band, chips, count, gates_of, met, ones, report
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, launches
from fuselint.traffic.known import Known, known
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.graph.program import Program
    from fuselint.rulebook import Match

CALL = "__call__"


@dataclass(frozen=True, eq=False)
class Objects:
    """Objects of one class with the same sizes. known: of the functions that they run."""

    made: Made
    count: int


@dataclass(eq=False)
class Model:
    program: Program
    tree: ast.Module
    settings: Settings
    matches: Sequence[tuple[Graph, Match]] = ()
    unknown: Counter[str] = field(default_factory=Counter)
    regions: dict[tuple[int, Made], Region] = field(default_factory=dict)

    @cached_property
    def chip(self) -> chips.Chip:
        return chips.chosen(self.settings.chip)[0]

    @cached_property
    def objects(self) -> dict[str, list[Objects]]:
        """By the class whose constructor made them."""
        config = self.settings.model_config
        if config is None:
            return {}
        return {name: [Objects(i.of, i.count) for i in found] for name, found in instances(self.tree, config).items()}

    def running(self, qualname: str) -> list[Objects]:
        """The objects that run a function in a pass, and how often all of each kind do."""
        times = {name: self.times(name, qualname) for name in self.objects}
        return [Objects(o.made, o.count * times[n]) for n, found in self.objects.items() if times[n] for o in found]

    def times(self, class_name: str, qualname: str) -> int:
        """How often one call of an object of the class runs a function."""
        call = self.program.summary.method(class_name, CALL)
        graph = None if call is None or call == qualname else self.program.graph(call)
        if graph is None:
            return int(call == qualname)
        if qualname.endswith(f".{CALL}"):
            return 0  # of objects that are counted themselves
        inlined = sum(f.qualname == qualname for f in graph.frames)
        return inlined or int(any(n.op == "call" and n.attrs.get("target") == qualname for n in graph.nodes))

    def known(self, qualname: str, made: Made | None) -> Known:
        return known(self.settings, qualname, made.number if made is not None else _nothing)

    def usual(self, qualname: str) -> Known:
        """What is known of a function's sizes in most objects that run it, or that could."""
        running = self.running(qualname) or self.objects.get(qualname.rpartition(".")[0], [])
        most = max(running, key=lambda o: o.count, default=None)
        return self.known(qualname, most.made if most is not None else None)

    # -- what a fix saves ---------------------------------------------------------------------------------------------

    def saving(self, graph: Graph, match: Match) -> Traffic:
        """The traffic of a match in most objects, and what its fix saves in all of them."""
        qualname = graph.context.qualname
        usual = self.usual(qualname)
        traffic = report(count(graph, match, self.settings, usual), self.settings, usual)
        total = self.total
        if total is None or traffic.saved_at is None:
            return traffic
        saved, fewer, objects, time = 0, 0, 0, chips.NOTHING
        for o in self.running(qualname):
            known_here = self.known(qualname, o.made)
            region = self.region(graph, match, o.made)
            here = report(region, self.settings, known_here)
            launches_here = here.kernels_now - here.kernels_fused
            saved += (here.saved_at or 0) * o.count
            fewer += launches_here * o.count
            objects += o.count
            cached = region.cached(known_here, self.chip)
            time += chips.seconds(here.saved_at or 0, launches_here, self.chip, cached) * o.count
        if not objects:
            return traffic
        share = saved / total.moved if total.moved else 0.0
        tokens = usual.phase.tokens
        return replace(traffic, model=ModelSaving(objects, saved, fewer, band(time), tokens, total.moved, share))

    def region(self, graph: Graph, match: Match, made: Made) -> Region:
        key = (id(match), made)
        if key not in self.regions:
            here = self.known(graph.context.qualname, made)
            self.regions[key] = count(graph, match, self.settings, here)
        return self.regions[key]

    # -- what the model moves -----------------------------------------------------------------------------------------

    @cached_property
    def total(self) -> ModelTraffic | None:
        """One pass of all objects; None where the file makes none."""
        moved, launched, functions = 0, 0, 0
        for name in self.objects:
            qualname = self.program.summary.method(name, CALL)
            graph = None if qualname is None else self.program.graph(qualname)
            if graph is None or graph.not_understood:
                continue
            functions += 1
            for o in self.objects[name]:
                here = self.known(graph.context.qualname, o.made)
                kernels, of = self.kernels(graph, here)
                sizes = list(map(of, kernels))
                for region, inside in self.matched(graph, o.made):
                    replaced = [i for i, k in enumerate(kernels) if k.node in inside]
                    sizes = [n for i, n in enumerate(sizes) if i not in replaced]
                    kernels = [k for i, k in enumerate(kernels) if i not in replaced]
                    measure = Count(region.bytes, here)
                    sizes += map(measure, region.before)
                    kernels += region.before
                moved += sum(sizes) * o.count
                launched += len(sizes) * o.count
            self.unknown.update(_not_understood(graph))
        if not moved:
            return None
        time = chips.seconds(moved, launched, self.chip)
        phase = self.known("", None).phase
        return ModelTraffic(
            functions, moved, launched, band(time), phase.tokens, tuple(n for n, _ in self.unknown.most_common())
        )

    def matched(self, graph: Graph, made: Made) -> Iterator[tuple[Region, frozenset[Node]]]:
        """Regions that rules know more of than the graph does: the ranks of attention's operands."""
        for other, match in self.matches:
            if other is graph:
                yield self.region(graph, match, made), frozenset(match.region)
                continue
            texts = {n.cst for n in match.region if n.cst is not None}
            for frame in graph.frames:
                inlined = frozenset(n for n in graph.nodes if n.frame is frame and n.cst in texts)
                if frame.qualname == other.context.qualname and inlined:
                    yield self.region(other, match, made), inlined

    def kernels(self, graph: Graph, here: Known) -> tuple[list[Kernel], Count]:
        """A function's kernels, and the bytes of each."""
        gates = gates_of(self.settings, here)
        nodes = [n for n in graph.nodes if _runs(n)]
        traced = trace(nodes, graph.facts, eager=True, gates=gates)
        traced.gates = replace(gates, ones=ones(traced, here))
        if graph.context.compiled:
            outputs = [n for _, v in graph.returns for n in (v.inputs if v.op in ("tuple", "list") else (v,))]
            found = compiled_kernels(nodes, outputs, graph.facts, graph.context.shapeless, gates)
        else:
            found = launches(traced)
        shapes = [a.shape for k in found for a in (*k.reads, *k.writes)]
        sizes = Sizes.plain(shapes, met(traced.tracer.arrays))
        return found, Count(Bytes(sizes, DTYPES[self.settings.dtype]), here)


def _nothing(name: str) -> int | None:
    return None


@dataclass(frozen=True, eq=False)
class Count:
    """Numbers of bytes."""

    bytes: Bytes
    known: Known

    def __call__(self, kernel: Kernel) -> int:
        formula = self.bytes.moved(kernel)
        numbers = {name: n for name, (n, _) in self.bytes.sizes.numbers(formula, self.known).items()}
        return formula.substitute(numbers).value() or 0


def _runs(node: Node) -> bool:
    """False in the side of an `if` for an argument that is None: masks and caches are counted as given."""
    block = node.top_stmt.block if node.top_stmt is not None else None
    while block is not None:
        test = block.owner.cst.test if block.owner is not None and isinstance(block.owner.cst, libcst.If) else None
        absent = _tests_absence(test)
        if absent is not None and block.kind == ("then" if absent else "else"):
            return False
        block = block.parent
    return True


def _tests_absence(test: libcst.BaseExpression | None) -> bool | None:
    """True of `x is None`, False of `x is not None`, None of another test."""
    if not isinstance(test, libcst.Comparison) or len(test.comparisons) != 1:
        return None
    compared = test.comparisons[0]
    if not isinstance(compared.comparator, libcst.Name) or compared.comparator.value != "None":
        return None
    return {libcst.Is: True, libcst.IsNot: False}.get(type(compared.operator))


def _not_understood(graph: Graph) -> Iterator[str]:
    """Calls on arrays that lead out of the file."""
    own = graph.module.functions
    for n in graph.nodes:
        target = n.attrs.get("target") or n.attrs.get("callee")
        if n.op != "call" or not isinstance(target, str) or target in own or target.startswith(("builtins.", "math.")):
            continue
        if any(graph.facts.kind(i) in ("array", "unknown") for i in n.inputs):
            yield target
