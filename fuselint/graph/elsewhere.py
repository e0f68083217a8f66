"""The other functions that the facts of one analysed file may follow a call into: of this file and of its package.

A name leads to a definition, and that to its graph, which all files share. Facts are worked out anew for each file: what
one file learns of another does not depend on which was looked at before.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator

from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.source.modules import Definition, Modules
from fuselint.source.project import ModuleSummary
from fuselint.source.text import FileText

SHARED = 64
"""Files whose graphs are kept for the next file that asks for them."""


class Elsewhere:
    """The package as the file of `root` sees it."""

    def __init__(self, root: Program) -> None:
        self.root = root
        self.path = os.path.abspath(root.file.path)
        self.modules = root.modules or Modules()
        self.modules.know(self.path, root.file, root.summary)
        self._paths: dict[Program, str] = {root: self.path}
        self._resolved: dict[tuple[str, str], Definition | None] = {}

    def program(self, path: str) -> Program | None:
        """The functions of a file of the package."""
        if path == self.path:
            return self.root
        file, summary = self.modules.file(path), self.modules.summary(path)
        if file is None or summary is None:
            return None
        found = _shared(file, summary)
        self._paths[found] = path
        return found

    def path_of(self, graph: Graph) -> str:
        """The file that a graph's function stands in."""
        return self.path if graph.program is None else self._paths.get(graph.program, self.path)

    def resolve(self, graph: Graph, name: str) -> Definition | None:
        """What a qualified name that a graph reads stands for, where a file of the package defines it."""
        key = (self.path_of(graph), name)
        if key not in self._resolved:
            self._resolved[key] = self.modules.resolve(*key)
        return self._resolved[key]

    def graph(self, found: Definition) -> Graph | None:
        """The graph of a function; None where there is none, or it is not understood."""
        program = self.program(found.path)
        graph = None if program is None else program.graph(found.name)
        return None if graph is None or graph.not_understood else graph

    def init(self, found: Definition) -> Definition | None:
        """The constructor of a class, its own or a base's."""
        return self.modules.method(found, "__init__")

    def place(self, path: str, line: int) -> str:
        """A line of another file, for people; "" for one of the file that is analysed."""
        file = None if path == self.path else self.modules.file(path)
        return "" if file is None else f"{file.path}:{line}"

    def place_of(self, graph: Graph, node: Node | None = None) -> str:
        """The line of a value of another file, or of the function that its graph is of."""
        source, start = graph.source, graph.source.start
        if node is not None and node.cst is not None and not node.frame.depth:
            start = source.span(node.cst)[0]
        return self.place(self.path_of(graph), source.file.position(start)[0])

    def uses(self, found: Definition) -> Iterator[tuple[Graph, Node]]:
        """The calls of a class or function in the package: those of its own file first, then by the order of files."""
        for path in [found.path, *self.modules.users(found)]:
            program = self.program(path)
            for qualname in [] if program is None else _naming(program, found.name):
                graph = self.graph(Definition(path, qualname))
                for node in graph.nodes if graph is not None else ():
                    target = node.attrs.get("target") if node.op in ("call", "new") else None
                    if target and node.frame.depth == 0 and self.resolve(graph, target) == found:  # type: ignore[arg-type]
                        yield graph, node  # type: ignore[misc]


def _naming(program: Program, name: str) -> Iterator[str]:
    """The functions of a file that may call something by a name, or by another that the file gives it."""
    last = name.rpartition(".")[2]
    imported = {k for k, target in program.summary.imports.items() if target.rpartition(".")[2] == last}
    for qualname, function in program.summary.functions.items():
        text = program.file.text[function.span.start : function.span.end]
        if any(word in text for word in {last, *imported}):
            yield qualname


_programs: OrderedDict[FileText, Program] = OrderedDict()


def _shared(file: FileText, summary: ModuleSummary) -> Program:
    """The functions of a file as any other file reads them."""
    found = _programs.pop(file, None) or Program(file, summary)
    _programs[file] = found
    if len(_programs) > SHARED:
        _programs.popitem(last=False)
    return found
