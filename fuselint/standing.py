"""Which sight of a place stands: that of a helper by itself, or that of the caller it is inlined into.

A helper or `_method` is analysed twice: alone, and as a part of each caller. The finding stands where the edit would
go: in the helper, where all that a caller's match computes lies inside it, so that one edit serves every call; at the
calls, where they compute more (a weight, a cast around it) or know more, and every call of the file is covered by a
match; but in the helper where that can be rewritten, and not all callers can. Nothing is reported twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.graph.model import STEP, Frame, Graph, Node
from fuselint.rulebook import GIVEN, Match

if TYPE_CHECKING:
    from fuselint.graph.program import Program

Sight = tuple[Graph, Match]
Spot = tuple[str, int]
"""A helper's qualified name and one of its expressions, by identity: helpers share their trees with inlined copies."""


def standing(
    sights: Sequence[Sight],
    contradicted: Sequence[Sight],
    program: Program,
    is_fixed: Callable[[Graph, Match], bool],
) -> list[Sight]:
    """The sights that are reported.

    contradicted: those of the matches that are none. is_fixed: whether one can be rewritten where it is seen.
    """
    sights = _without_helpers_that_a_call_refutes(sights, contradicted)
    sights = _without_callers_of(_helpers_own(sights), sights)
    alone = {(_spot(n), m.code) for _, m in sights for n in m.region if n.frame.depth == 0}
    seen: set[tuple[Spot, str]] = set()  # what is only to be seen inside a helper, in some caller
    covered: dict[Spot, dict[int, list[Sight]]] = defaultdict(dict)  # expression of a helper -> calls -> what covers it
    for graph, match in sights:
        if is_value_of_its_call(graph, match.root):
            for node in match.region:
                if node.frame.depth and node.cst is not None:
                    frame, at = _outermost(node)
                    found = covered[frame.qualname, id(at)].setdefault(id(frame.site), [])
                    if (graph, match) not in found:
                        found.append((graph, match))

    displaced: set[Match] = set()
    for graph, match in sights:
        if not is_value_of_its_call(graph, match.root):
            continue
        here = covered.get((graph.context.qualname, id(match.root.top_cst)), {})
        if not here or not _calls(graph.context.qualname, program) <= here.keys():
            continue
        callers = [s for found in here.values() for s in found if s[1].code == match.code]
        if all(is_fixed(*s) for s in callers) or not is_fixed(graph, match):
            displaced.add(match)
        else:
            displaced.update(m for _, m in callers)

    for graph, match in sights:
        wider = _in_every_step(graph, match, sights)
        if wider and is_fixed(graph, match):  # else the comprehension would stay, and make what nobody reads
            displaced.update(wider)
        elif wider:
            displaced.add(match)

    def stands(graph: Graph, match: Match) -> bool:
        if not is_value_of_its_call(graph, match.root):
            place = (_spot(match.root), match.code)
            inside = {(_spot(n), match.code) for n in match.region} if _is_step(match.root.frame) else {place}
            first = alone.isdisjoint(inside) and place not in seen
            seen.add(place)
            return first
        return match not in displaced

    return [s for s in sights if stands(*s)]


def _in_every_step(graph: Graph, match: Match, sights: Sequence[Sight]) -> list[Match]:
    """Matches that compute more, and a match of a comprehension's expressions in each of its steps with it."""
    steps = [f.values[match.root.cst] for f in graph.steps(match.root.cst)] if match.root.cst is not None else []
    if not steps:
        return []
    wider = [m for g, m in sights if g is graph and not {m.root, *m.region}.isdisjoint(steps) and m.root not in steps]
    return wider if all(any(n in m.region for m in wider) for n in steps) else []


Place = tuple[str, Spot]
"""A code, and the root's expression in the innermost function that computes all of a match."""


def _place(match: Match) -> Place:
    frame = _frame_of(match)
    return match.code, (_own_name(frame), id(_expression(match.root, frame) or match))


def _without_helpers_that_a_call_refutes(sights: Sequence[Sight], contradicted: Sequence[Sight]) -> list[Sight]:
    """Without what a helper shows by itself, where a call in the file shows that it doesn't hold there.

    So with what a comprehension's expressions show, and one of its steps.
    """
    holds = {(id(graph), _place(match)) for graph, match in sights}
    refuted = set()
    for graph, match in contradicted:
        frame, place = _frame_of(match), _place(match)
        if frame.depth > 0 and (_is_step(frame) or (id(graph), place) not in holds):
            refuted.add(place)
    return [s for s in sights if _is_a_calls(_frame_of(s[1])) or _place(s[1]) not in refuted]


def _is_a_calls(frame: Frame) -> bool:
    return frame.depth > 0 and not _is_step(frame)


def _helpers_own(sights: Sequence[Sight]) -> dict[Place, Match]:
    """The matches that functions have by themselves."""
    return {
        _place(match): match
        for graph, match in sights
        if _frame_of(match).depth == 0 and isinstance(graph.source.node, cst.FunctionDef)
    }


def _without_callers_of(own: dict[Place, Match], sights: Sequence[Sight]) -> list[Sight]:
    """Without the callers' sights of what a helper shows by itself, whole and no less certain."""

    def is_the_helpers(match: Match) -> bool:
        alone = own.get(_place(match))
        return alone is not None and alone is not match and _doubts(alone) <= _doubts(match)

    return [(graph, match) for graph, match in sights if not is_the_helpers(match)]


def _frame_of(match: Match) -> Frame:
    """The innermost frame that computes all of a match; the step that computes its root, in a comprehension."""
    if _is_step(match.root.frame):
        return match.root.frame
    frames = {n.frame for n in match.region if n.op not in GIVEN} | {match.root.frame}
    common: Frame = match.root.frame
    while common.parent is not None and not all(_is_within(f, common) for f in frames):
        common = common.parent
    return common


def _is_within(frame: Frame, outer: Frame) -> bool:
    at: Frame | None = frame
    while at is not None and at is not outer:
        at = at.parent
    return at is outer


def _expression(node: Node, frame: Frame) -> cst.CSTNode | None:
    """The expression of a frame that evaluates a node of it, or of a call inlined into it."""
    at, inner = node.cst, node.frame
    while inner is not frame and inner.parent is not None:
        at, inner = inner.site, inner.parent
    return at


def _doubts(match: Match) -> set[str]:
    """What a rewrite leaves to be believed."""
    doubtful = {match.numerics} & {"different dtype", "less accurate"}
    return {o.claim for o in match.obligations if o.verdict == "unknown"} | doubtful


def _calls(qualname: str, program: Program) -> set[int]:
    """The calls of a function in its file, by identity; -1 for uses that can't be followed."""
    out = set()
    summary = program.summary
    if any(qualname in named for named in summary.references.values()):
        out.add(-1)
    for caller in (c for c, called in summary.calls.items() if qualname in called):
        graph = program.graph(caller)
        if graph is None or graph.not_understood:
            out.add(-1)
            continue
        out |= {id(f.site) for f in graph.frames if f.depth == 1 and f.qualname == qualname}
        out |= {id(n.cst) for n in graph.nodes if n.op == "call" and n.attrs.get("target") == qualname}
    return out


def is_value_of_its_call(graph: Graph, root: Node) -> bool:
    """Whether the root stands in the graph's own function, or is what an inlined call gives back there."""
    return root.frame.depth == 0 or (root.top_cst is not None and graph.values.get(root.top_cst) is root)


def _spot(node: Node) -> Spot:
    return _own_name(node.frame), id(node.cst)


def _is_step(frame: Frame) -> bool:
    return frame.qualname.endswith(STEP)


def _own_name(frame: Frame) -> str:
    """The function that a frame is of: that of a comprehension, for a step of one."""
    return frame.qualname.removesuffix(STEP)


def _outermost(node: Node) -> tuple[Frame, cst.CSTNode | None]:
    """The inlined call of the graph's own function that evaluates the node, and the helper's expression that does."""
    frame = node.frame
    while frame.parent is not None and frame.depth > 1:
        frame = frame.parent
    return frame, _expression(node, frame)
