"""What one pass of a model moves, in the part of it that one file holds: its classes, as often as the configuration
makes objects of them and a pass calls those, with the functions that they call.

Weights count as often as a kernel reads them, activations as often as one is written and read. What one call of an
object launches: passes.py.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from fuselint import chips
from fuselint.config import Settings
from fuselint.finding import ModelSaving, ModelTraffic, Traffic
from fuselint.graph.across import Inside
from fuselint.graph.model import Graph, Node
from fuselint.source.instances import Made, Objects
from fuselint.traffic import Region, band, count, report
from fuselint.traffic.known import Known, known
from fuselint.traffic.passes import Launch, Measure, Pass, most, sides

if TYPE_CHECKING:
    from fuselint.graph.program import Program
    from fuselint.rulebook import Match

CALL = "__call__"


@dataclass(frozen=True, eq=False)
class Counted:
    """Objects of one class with the same sizes, as often as a pass calls them."""

    made: Made
    count: int


@dataclass(eq=False)
class Model:
    program: Program
    tree: ast.Module
    settings: Settings
    matches: Sequence[tuple[Graph, Match]] = ()
    regions: dict[tuple[int, Made], Region] = field(default_factory=dict)

    @cached_property
    def chip(self) -> chips.Chip:
        return chips.chosen(self.settings.chip)[0]

    @cached_property
    def made(self) -> Objects | None:
        config, training = self.settings.model_config, self.known("", None).phase.training
        return None if config is None else Objects(self.tree, config, training=training)

    @cached_property
    def objects(self) -> dict[str, list[Counted]]:
        """By the class whose constructor made them."""
        if self.made is None:
            return {}
        found = self.made.counted(self.calls)
        return {name: [Counted(i.of, i.count) for i in many] for name, many in found.items()}

    def calls(self, maker: Made, child: Made, made: int) -> int:
        """How often one call of an object calls another that it holds: once for each place that holds it, if nothing
        says otherwise; more often in a loop, or where several statements call it."""
        graph = self.graph(maker.class_name)
        total, seen = 0, 0
        for name, value in maker.attributes.items():
            held = (value is child) + (sum(v is child for v in value) if isinstance(value, (list, tuple)) else 0)
            seen += held
            total += held * (1 if graph is None or value is not child else self._calls_of(graph, f"self.{name}", maker))
        return total + max(0, made - seen)

    def _calls_of(self, graph: Graph, path: str, maker: Made) -> int:
        inside, run = Inside(graph, graph.facts), self.run(maker)
        sites = [n for n in graph.nodes if n.op == "call" and n.attrs.get("path") == path and run.runs(inside, n)]
        return most([(sides(n), run.rounds(inside, n)) for n in sites]) if sites else 1

    def graph(self, class_name: str) -> Graph | None:
        """The call of a class's objects, where it is understood."""
        qualname = self.program.summary.method(class_name, CALL)
        graph = None if qualname is None else self.program.graph(qualname)
        return None if graph is None or graph.not_understood else graph

    def run(self, made: Made) -> Pass:
        """One call in an object."""
        qualname = self.program.summary.method(made.class_name, CALL) or ""
        return Pass(self.settings, self.known(qualname, made), self.is_apart, made, self.made)

    def is_apart(self, graph: Graph) -> bool:
        """Whether a function is the call of objects that are counted by themselves."""
        return graph.program is self.program and graph.context.qualname in self.calls_of_objects

    @cached_property
    def calls_of_objects(self) -> frozenset[str | None]:
        return frozenset(self.program.summary.method(name, CALL) for name in self.objects)

    def running(self, graph: Graph, match: Match) -> list[Counted]:
        """The objects that run a match in a pass, and how often all of each kind do."""
        qualname = graph.context.qualname
        out = []
        for name, found in self.objects.items():
            for o in found:
                times = self.times(name, qualname, o.made)
                if times:
                    times *= self.run(o.made).rounds(Inside(graph, graph.facts), match.root)
                    out.append(Counted(o.made, o.count * times))
        return out

    def times(self, class_name: str, qualname: str, made: Made) -> int:
        """How often one call of an object of the class runs a function."""
        call = self.program.summary.method(class_name, CALL)
        graph = None if call is None or call == qualname else self.program.graph(call)
        if graph is None:
            return int(call == qualname)
        if qualname.endswith(f".{CALL}"):
            return 0  # of objects that are counted themselves
        inside, run = Inside(graph, graph.facts), self.run(made)
        inlined = sum(
            run.rounds_at(inside, f.stmt, f.parent)
            for f in graph.frames
            if f.parent is not None and f.qualname == qualname
        )
        calls = (n for n in graph.nodes if n.op == "call" and n.attrs.get("target") == qualname)
        return inlined or max((run.rounds(inside, n) for n in calls), default=0)

    def known(self, qualname: str, made: Made | None) -> Known:
        return known(self.settings, qualname, made.number if made is not None else _nothing)

    def usual(self, graph: Graph, match: Match) -> Known:
        """What is known of a function's sizes in most objects that run a match, or that could."""
        qualname = graph.context.qualname
        running = self.running(graph, match) or self.objects.get(qualname.rpartition(".")[0], [])
        most = max(running, key=lambda o: o.count, default=None)
        return self.known(qualname, most.made if most is not None else None)

    # -- what a fix saves ---------------------------------------------------------------------------------------------

    def saving(self, graph: Graph, match: Match) -> Traffic:
        """The traffic of a match in most objects, and what its fix saves in all of them."""
        qualname = graph.context.qualname
        usual = self.usual(graph, match)
        traffic = report(count(graph, match, self.settings, usual), self.settings, usual)
        total = self.total
        if total is None or traffic.saved_at is None:
            return traffic
        saved, fewer, objects, time = 0, 0, 0, chips.NOTHING
        typical: dict[str, None] = {}
        for o in self.running(graph, match):
            known_here = self.known(qualname, o.made)
            region = self.region(graph, match, o.made)
            here = report(region, self.settings, known_here)
            launches_here = here.launches_fewer
            saved += (here.saved_at or 0) * o.count
            fewer += launches_here * o.count
            objects += o.count
            typical.update(dict.fromkeys(here.typical))
            if here.seconds is not None:
                time += chips.Seconds(here.seconds.low, here.seconds.estimate, here.seconds.high) * o.count
        if not objects:
            return traffic
        share = saved / total.moved if total.moved else 0.0
        tokens = usual.phase.tokens
        saving = ModelSaving(objects, saved, fewer, band(time), tokens, total.moved, share, tuple(typical))
        return replace(traffic, model=saving)

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
        moved, typical, launched, functions = 0, 0, 0, 0
        unknown: Counter[str] = Counter()
        for name, objects in self.objects.items():
            graph = self.graph(name)
            if graph is None:
                continue
            functions += 1
            for o in objects:
                found, missed = self.launches(graph, o.made)
                moved += sum(x.bytes * x.times for x in found) * o.count
                typical += sum(x.bytes * x.times for x in found if x.typical) * o.count
                launched += sum(x.times * x.kernel.launches for x in found) * o.count
                unknown.update(missed)
        if not moved:
            return None
        time = chips.seconds(moved, launched, self.chip)
        phase = self.known("", None).phase
        names = tuple(n for n, _ in unknown.most_common())
        return ModelTraffic(functions, moved, launched, band(time), phase.tokens, names, typical)

    def launches(self, graph: Graph, made: Made) -> tuple[list[Launch], Counter[str]]:
        """What one call of an object launches, and what isn't counted of it."""
        run, inside = self.run(made), Inside(graph, graph.facts)
        found = run.launches(inside)
        for region, replaced in () if graph.context.compiled else self.matched(graph, made):
            gone = [x for x in found if x.kernel.node in replaced]
            found = [x for x in found if x.kernel.node not in replaced]
            times = max((x.times for x in gone), default=1)
            measure = Measure(region.bytes, run.known)
            found += [measure(k, times) for k in region.before]
        return found, run.missed

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


def _nothing(name: str) -> int | None:
    return None
