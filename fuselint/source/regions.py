"""A placed fix as two runnable texts, for verification."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from fuselint.finding import Region
from fuselint.graph.model import Graph
from fuselint.rulebook import Match, Replacement


def region_of(
    graph: Graph, match: Match, replacement: Replacement, dead: Collection[cst.CSTNode], new_text: str
) -> Region | None:
    return None
