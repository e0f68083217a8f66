"""The dtypes that a function's docstring states of its arguments: `points: (N, 3) float32 array`.

Costs count them, where no call in the package says another. Prose proves nothing, so facts know none of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.graph.dtypes import FLOAT
from fuselint.graph.model import Graph

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

ENTRY = re.compile(r"^\s*(?::param\s+)?[`*]*(\w+)[`*]*\s*(\([^)]*\))?\s*:(.*)$", re.MULTILINE)
"""What Google's and NumPy's styles, and reStructuredText, say of one argument."""

NAMED = re.compile(rf"(?<!to )(?<!in )(?<!as )\b(?:mx\.)?({'|'.join(FLOAT)})\b")
"""A dtype, but for one that something is cast to or computed in."""


def documented(graph: Graph, facts: KnownFacts) -> Iterator[tuple[str, str]]:
    """The symbols of arguments' dtypes, each with the one dtype that the docstring names with the argument."""
    text = _docstring(graph)
    for entry in ENTRY.finditer(text or ""):
        parameter = graph.params.get(entry.group(1))
        named = set(NAMED.findall(" ".join(filter(None, entry.groups()[1:]))))
        if parameter is None or len(named) != 1 or facts.kind(parameter) not in ("array", "unknown"):
            continue
        yield from dict.fromkeys(facts.dtype(parameter).symbols, named.pop()).items()


def _docstring(graph: Graph) -> str | None:
    node = None if graph.source is None else graph.source.node
    return node.get_docstring() if isinstance(node, cst.FunctionDef) else None
