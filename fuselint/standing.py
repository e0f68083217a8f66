"""Which sight of a place stands: that of a helper by itself, or that of the caller it is inlined into.

A helper or `_method` is analysed twice: alone, and as a part of each caller. The finding stands at the caller where
every call of the file is covered by a match that can be rewritten there; else it stands in the helper. Nothing is
reported twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import libcst as cst

from fuselint.graph.model import Frame, Graph, Node
from fuselint.rulebook import Match

Sight = tuple[Graph, Match]
Spot = tuple[str, int]
"""A helper's qualified name and one of its expressions, by identity: helpers share their trees with inlined copies."""


def standing(sights: Sequence[Sight], calls: Mapping[str, int]) -> list[Sight]:
    """The sights that are reported. calls: how often the file calls a function, by qualified name."""
    alone = {(_spot(m.root), m.code) for _, m in sights if m.root.frame.depth == 0}
    sites: dict[Spot, set[int]] = defaultdict(set)  # expression of a helper -> calls whose match covers it
    for graph, match in sights:
        if is_value_of_its_call(graph, match.root):
            for node in match.region:
                if node.frame.depth and node.cst is not None:
                    frame, at = _outermost(node)
                    sites[frame.qualname, id(at)].add(id(frame.site))

    def stands(graph: Graph, match: Match) -> bool:
        root = match.root
        if not is_value_of_its_call(graph, root):
            return (_spot(root), match.code) not in alone
        called = calls.get(graph.context.qualname, 0)
        return not called or len(sites.get((graph.context.qualname, id(root.top_cst)), ())) < called

    return [s for s in sights if stands(*s)]


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


def count_calls(callees: Iterable[Iterable[str]]) -> dict[str, int]:
    """How often each function is called, from the calls of each function."""
    counts: dict[str, int] = defaultdict(int)
    for names in callees:
        for name in names:
            counts[name] += 1
    return dict(counts)
