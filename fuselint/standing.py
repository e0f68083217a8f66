"""Which sight of a place stands: that of a helper by itself, or that of the caller it is inlined into.

A helper or `_method` is analysed twice: alone, and as a part of each caller. The finding stands at the callers where
every call of the file is covered by a match; but in the helper where that can be rewritten, and not all callers can.
Nothing is reported twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.graph.model import Frame, Graph, Node
from fuselint.rulebook import Match

if TYPE_CHECKING:
    from fuselint.graph.program import Program

Sight = tuple[Graph, Match]
Spot = tuple[str, int]
"""A helper's qualified name and one of its expressions, by identity: helpers share their trees with inlined copies."""


def standing(sights: Sequence[Sight], program: Program, is_fixed: Callable[[Graph, Match], bool]) -> list[Sight]:
    """The sights that are reported. `is_fixed`: whether one can be rewritten where it is seen."""
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

    def stands(graph: Graph, match: Match) -> bool:
        if not is_value_of_its_call(graph, match.root):
            place = (_spot(match.root), match.code)
            first = place not in alone and place not in seen
            seen.add(place)
            return first
        return match not in displaced

    return [s for s in sights if stands(*s)]


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
    return node.frame.qualname, id(node.cst)


def _outermost(node: Node) -> tuple[Frame, cst.CSTNode | None]:
    """The inlined call of the graph's own function that evaluates the node, and the helper's expression that does."""
    frame, at = node.frame, node.cst
    while frame.parent is not None and frame.depth > 1:
        frame, at = frame.parent, frame.site
    return frame, at
