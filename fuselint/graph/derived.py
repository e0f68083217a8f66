"""What classes that derive from a function's own, in any file of the package, have in place of what a match read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.finding import Obligation
from fuselint.graph.model import Frame, Graph, Node
from fuselint.source.modules import Definition

if TYPE_CHECKING:
    from fuselint.rulebook import Match

SELF = "self."


def no_other_version(graph: Graph, match: Match) -> list[Obligation]:
    """Contradicted, where a class that derives from this one has another version of a method that was read in place
    of its call, or of a layer or activation that the new code computes in its place."""
    owner, elsewhere = graph.context.class_name, None if graph.program is None else graph.program.elsewhere
    names = sorted(set(_read(match))) if owner is not None and elsewhere is not None else []
    if not names or owner is None or elsewhere is None:
        return []
    function = graph.context.qualname.rpartition(".")[2]
    found = elsewhere.modules.other_version(Definition(elsewhere.path, owner), function, names)
    claim = f"no class that derives from {owner} has another version of what the new code computes"
    return [Obligation(claim, "contradicted", found)] if found else []


def _read(match: Match) -> Iterator[str]:
    """The methods and attributes of self whose value stands for their calls."""
    for node in match.region:
        if _is_on_self(node.frame) and node.op != "attr" and str(node.attrs.get("path")).startswith(SELF):
            yield node.attrs["path"].split(".")[1].partition("[")[0]
    for node in {*match.region, *(h for h in match.holes.values() if isinstance(h, Node))}:
        frame: Frame | None = node.frame
        while frame is not None and frame.parent is not None:
            if _is_of_self(frame) and _is_on_self(frame.parent):
                yield frame.qualname.rpartition(".")[2]
            frame = frame.parent


def _is_on_self(frame: Frame) -> bool:
    """Whether a function runs as the root's own, or one of its object's methods."""
    return frame.parent is None or (_is_of_self(frame) and _is_on_self(frame.parent))


def _is_of_self(frame: Frame) -> bool:
    called = frame.site.func if isinstance(frame.site, cst.Call) else None
    return isinstance(called, cst.Attribute) and isinstance(called.value, cst.Name) and called.value.value == "self"
