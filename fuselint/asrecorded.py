"""What a recorded run says of one file's functions: sizes as numbers, and conditions of fixes that it proves.

It never decides what is found or how it is rewritten: rules look at the source alone. A condition that the source
leaves open is looked at once more with the shapes and dtypes of the run; where the two disagree, the source wins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.dtypes import DType
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.facts import Expr, Facts, Shape
from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.recorded import Recorded
from fuselint.rulebook import Match, Rule

AS_RECORDED = "as recorded"

AXIS = re.compile(r"(.+?)'*\.shape\[(-?\d+)\]")


class AsRecorded:
    """The recorded functions of one file. phase: whose calls its numbers are, where there were several."""

    def __init__(self, program: Program, functions: Mapping[str, Recorded], phase: str) -> None:
        self._program, self._functions, self._phase = program, functions, phase
        self._matches: dict[tuple[str, str], list[Match]] = {}
        self._graphs: dict[str, Graph | None] = {}

    def __contains__(self, qualname: str) -> bool:
        return qualname in self._functions

    def calls(self, qualname: str) -> int | None:
        found = self._functions.get(qualname)
        return found.calls if found is not None else None

    # --- numbers -----------------------------------------------------------------------------------------------------

    def number(self, graph: Graph, match: Match, name: str) -> int | None:
        """What a size of a function was: the axis of an argument, or a number that `self` or its constructor got."""
        found = self._functions.get(graph.context.qualname)
        if found is None:
            return None
        made = self._functions.get(f"{graph.context.qualname.rpartition('.')[0]}.__init__")
        for held in (found.number(name), found.number(f"self.{name}"), None if made is None else made.number(name)):
            if held is not None:
                return held
        sizes = _sizes(found, self._phase)
        axis = AXIS.fullmatch(name)
        if axis is not None and axis[1] in sizes:
            return _at(sizes[axis[1]], int(axis[2]))
        for parameter, node in graph.params.items():
            shape = graph.facts.shape(node)
            if shape is None or shape.lead is not None or len(shape.dims) != len(sizes.get(parameter, ())):
                continue
            for dim, size in zip(shape.dims, sizes[parameter], strict=True):
                if dim == Expr.name(name):
                    return size
        return _lettered(match, sizes, name)

    def roles(self, qualname: str) -> dict[str, int]:
        """Rows of the largest argument, for formulas that count them: of sizes that have no name."""
        found = self._functions.get(qualname)
        largest = max(_sizes(found, self._phase).values(), key=math.prod, default=()) if found is not None else ()
        return {"rows": math.prod(largest[:-1])} if len(largest) > 1 else {}

    def dtypes(self, graph: Graph) -> dict[str, str]:
        """By the symbol of an argument's dtype: what it always was."""
        found = self._functions[graph.context.qualname]
        out = {}
        for node in graph.nodes:
            if node.op in ("param", "attr"):
                said = {d for _, d in found.arrays(str(node.attrs.get("path") or node.attrs["name"]))}
                symbols = graph.facts.dtype(node).symbols
                if len(said) == len(symbols) == 1:
                    out[next(iter(symbols))] = said.pop()
        return out

    # --- conditions --------------------------------------------------------------------------------------------------

    def settle(self, graph: Graph, match: Match, rule: Rule, place: tuple[int, int]) -> None:
        """Let the run answer what the source leaves open. place: of the match's root."""
        if match.contradicted or graph.context.qualname not in self._functions:
            return
        if all(o.verdict != "unknown" for o in match.obligations):
            return
        verdicts = {o.claim: o for m in self._found(graph, rule, place) for o in m.obligations}
        match.obligations[:] = [_settled(o, verdicts.get(o.claim)) for o in match.obligations]

    def _found(self, graph: Graph, rule: Rule, place: tuple[int, int]) -> list[Match]:
        """What the rule finds there in the function as it was run."""
        key = (graph.context.qualname, rule.code)
        if graph.context.qualname not in self._graphs:
            self._graphs[graph.context.qualname] = self._stated(graph)
        again = self._graphs[graph.context.qualname]
        if again is None:
            return []
        if key not in self._matches:
            try:
                self._matches[key] = list(rule.find(again))
            except Exception:  # it is no reason to lose what the source alone says
                self._matches[key] = []
        return [m for m in self._matches[key] if _span(again, m.root) == place]

    @cached_property
    def _again(self) -> Program:
        again = Program(self._program.file, self._program.summary)
        again.elsewhere = Elsewhere(again, self._program.elsewhere.modules)
        again.target = self._program.target
        return again

    def _stated(self, graph: Graph) -> Graph | None:
        """The function's graph once more, with what was recorded as facts of its arguments and attributes."""
        qualname = graph.context.qualname
        again, found = self._again.graph(qualname), self._functions[qualname]
        if again is None:
            return None
        facts = Facts(again)
        vars(again)["facts"] = facts
        for node in [n for n in again.nodes if n.op in ("param", "attr")]:
            name = str(node.attrs.get("path") or node.attrs["name"])
            said = found.arrays(name)
            if said and _agrees(graph, node, said):
                facts.state(node, *_fact(name, said, graph, node), f"{AS_RECORDED}: {_shown(name, said, found)}")
        return again


def _lettered(match: Match, sizes: Mapping[str, tuple[int, ...]], name: str) -> int | None:
    """What the rule's own letter for an axis of an argument was."""
    for key, template in match.shapes.items():
        hole = match.holes.get(key)
        if not isinstance(hole, Node) or hole.op != "param":
            continue
        for axis, size in zip(reversed(template), reversed(sizes.get(hole.attrs["name"], ())), strict=False):
            if axis == name:
                return size
    return None


def _settled(open_one: Obligation, recorded: Obligation | None) -> Obligation:
    if open_one.verdict != "unknown" or recorded is None or recorded.verdict == "unknown":
        return open_one
    if recorded.verdict == "contradicted":
        return replace(open_one, because=f"{AS_RECORDED}, it does not hold: {recorded.because}")
    named = AS_RECORDED in recorded.because
    return replace(recorded, because=recorded.because if named else f"{AS_RECORDED}: {recorded.because}")


def is_recorded(obligation: Obligation) -> bool:
    """Whether a run proves it, and not the source."""
    return obligation.verdict == "proven" and AS_RECORDED in obligation.because


def _sizes(found: Recorded, phase: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the arguments in one call: the largest that was seen, or of decoding the smallest."""

    def shapes(signature: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        return {n: tuple(v["array"]) for n, v in signature.items() if isinstance(v, dict) and "array" in v}

    def elements(given: Mapping[str, tuple[int, ...]]) -> int:
        return sum(math.prod(s) for n, s in given.items() if not n.startswith("self."))

    choose = min if phase == "decode" else max
    return choose(map(shapes, found.signatures), key=elements, default={})


def _at(sizes: Sequence[int], axis: int) -> int | None:
    return sizes[axis] if -len(sizes) <= axis < len(sizes) else None


def _agrees(graph: Graph, node: Node, said: Sequence[tuple[tuple[int, ...], str]]) -> bool:
    """Whether the source says nothing else of an argument, and the run always the same rank."""
    ranks = {len(shape) for shape, _ in said}
    own = next((n for n in graph.nodes if n.id == node.id and n.op == node.op), None)
    if len(ranks) != 1 or own is None:
        return False
    fact = graph.facts.of(own)
    if fact.kind not in ("array", "unknown"):
        return False
    if fact.shape is not None and fact.shape.rank not in (None, *ranks):
        return False
    if fact.shape is not None and fact.shape.lead is None:
        pairs = [(d.value(), s[i]) for s, _ in said for i, d in enumerate(fact.shape.dims)]
        if any(number is not None and number != size for number, size in pairs):
            return False
    stated = fact.dtype - fact.dtype.symbols
    return not stated or {d for _, d in said} <= set(stated)


def _fact(name: str, said: Sequence[tuple[tuple[int, ...], str]], graph: Graph, node: Node) -> tuple[Shape, DType]:
    """Sizes that were always the same are numbers, those of one element and the others keep their names."""
    dtypes = {d for _, d in said}
    own = graph.facts.shape(graph.nodes[node.id])
    dims = []
    for i in range(len(said[0][0])):
        sizes = {shape[i] for shape, _ in said}
        named = own.dims[i] if own is not None and own.lead is None else Expr.name(f"{name}.shape[{i}]")
        dims.append(Expr.of(sizes.pop()) if len(sizes) == 1 and min(sizes) > 1 else named)
    dtype = dtypes.pop() if len(dtypes) == 1 else ""
    return Shape(None, tuple(dims)), DType({dtype}) if dtype else graph.facts.dtype(graph.nodes[node.id])


def _shown(name: str, said: Sequence[tuple[tuple[int, ...], str]], found: Recorded) -> str:
    shown = list(dict.fromkeys(f"{dtype}[{','.join(map(str, shape))}]" for shape, dtype in said))
    more = f" and {len(shown) - 2} others" if len(shown) > 2 else ""
    return f"`{name}` was {' or '.join(shown[:2])}{more} in {found.calls} calls"


def _span(graph: Graph, node: Node) -> tuple[int, int]:
    at = node.top_cst
    return graph.source.span(at) if at is not None else (graph.source.start, graph.source.end)
