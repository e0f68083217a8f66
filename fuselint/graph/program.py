"""One file's functions: their trees and graphs, each made once, when first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuselint.errors import TooComplex
from fuselint.graph.model import Graph
from fuselint.source.function import FunctionSource, parse_function
from fuselint.source.text import FileText

if TYPE_CHECKING:
    from fuselint.source.project import ModuleSummary


class Program:
    """The functions of one file."""

    def __init__(self, file: FileText, summary: ModuleSummary) -> None:
        self.file = file
        self.summary = summary
        self._sources: dict[str, FunctionSource | None] = {}
        self._makes_array: dict[str, bool] = {}
        self._graphs: dict[str, Graph | None] = {}
        self.too_complex: dict[str, str] = {}  # functions that were given up, with the reason

    def function(self, qualname: str) -> FunctionSource | None:
        """The tree of a function; None if there is no such function, or it is too complex."""
        if qualname not in self._sources:
            self._sources[qualname] = None
            summary = self.summary.functions.get(qualname)
            if summary is not None:
                try:
                    self._sources[qualname] = parse_function(self.file, summary.span)
                except TooComplex as e:
                    self.too_complex[qualname] = str(e)
        return self._sources[qualname]

    def graph(self, qualname: str) -> Graph | None:
        """The graph of a function; None while it is being lowered itself."""
        if qualname not in self._graphs:
            from fuselint.graph.lower import lower

            self._graphs[qualname] = None
            source = self.function(qualname)
            if source is not None:
                self._graphs[qualname] = lower(source, self.summary, self)
        return self._graphs[qualname]

    def makes_array(self, qualname: str) -> bool:
        """Whether a function always returns an array that it made, and that it leaves nowhere else."""
        if qualname not in self._makes_array:
            self._makes_array[qualname] = False
            summary = self.summary.functions.get(qualname)
            plain = summary is not None and not (summary.is_async or summary.is_generator or summary.redefined)
            graph = self.graph(qualname) if plain else None
            self._makes_array[qualname] = graph is not None and _returns_new_array(graph)
        return self._makes_array[qualname]

    def init(self, class_name: str) -> Graph | None:
        """The graph of a class's `__init__`, its own or that of a base in this file."""
        qualname = self.summary.method(class_name, "__init__")
        return None if qualname is None else self.graph(qualname)


def _returns_new_array(graph: Graph) -> bool:
    from fuselint.graph.effects import INDEXED, SAME_OBJECT, is_array
    from fuselint.graph.ops import TABLE
    from fuselint.graph.state import HOLDERS

    if graph.falls_off or graph.not_understood or not graph.returns:
        return False
    kept = {i for n in graph.nodes if n.op in HOLDERS for i in n.inputs} | {e.value for e in graph.effects}
    stack, seen = [n for _, n in graph.returns], set()
    while stack:
        n = stack.pop()
        if n in kept:
            return False
        if n in seen:
            continue
        seen.add(n)
        op = TABLE.get(n.op)
        if n.op == "phi":
            stack.extend(n.inputs)
        elif not is_array(n) or not (op is not None or n.op in INDEXED or n.op == "call") or n.op in SAME_OBJECT:
            return False
    return True
