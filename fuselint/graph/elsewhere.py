"""The other functions that the facts of one analysed file may follow a call into: of this file and of its package.

A name leads to a definition, and that to its graph, which all files share. Facts are worked out anew for each file:
what one file learns of another does not depend on which was looked at before.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING

from fuselint.graph.fact import Place
from fuselint.graph.leftovers import forget, leave
from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.source.folders import package_folder
from fuselint.source.modules import Definition, Modules, is_test
from fuselint.source.notes import of_file
from fuselint.source.project import MODULE, ClassSummary, ModuleSummary
from fuselint.source.text import FileText

if TYPE_CHECKING:
    from fuselint.graph.callers import Callers
    from fuselint.graph.known import KnownFacts

Use = tuple[Graph, Node]
"""A call of a function or class, and where it stands."""

ASKING = frozenset({"type", "import", "through", "string", "exported"})
"""What the places do that name a class and make no object of it: see `Mention`."""

SHARED = 16
"""Files whose graphs are kept for the next file that asks for them."""


class _Uses:
    """Calls that are looked for as far as somebody asks, and once."""

    def __init__(self, more: Iterator[Use]) -> None:
        self._known: list[Use] = []
        self._more = more
        self._looking = False

    def __iter__(self) -> Iterator[Use]:
        at = 0
        while at < len(self._known) or self._find():
            yield self._known[at]
            at += 1

    def _find(self) -> bool:
        if self._looking:
            return False  # asked for what it takes to find them
        self._looking = True
        try:
            found = next(self._more, None)
        finally:
            self._looking = False
        if found is not None:
            self._known.append(found)
        return found is not None


class Elsewhere:
    """The package as the file of `root` sees it. modules: its files, that one among them; without, those on disk."""

    def __init__(self, root: Program, modules: Modules | None = None) -> None:
        self.root = root
        self.path = os.path.abspath(root.file.path)
        if modules is None:
            modules = Modules()
            modules.know(root.file, root.plain)
        self.modules = modules
        self._paths: dict[Program, str] = {root: self.path}
        self._hearing: dict[str, Callable[[str, str], None]] = {}
        self._uses: dict[Definition, _Uses] = {}
        self.callers: Callers | None = None  # made by whom asks for it: it goes with the file
        # What one file asks for, it asks for often.
        self.resolved = cache(self.modules.resolve)
        self.lineage = cache(self.modules.lineage)
        self.method = cache(self.modules.method)
        self.class_ = cache(self.modules.class_)
        self.function = cache(self.modules.function)
        self.classes = cache(self._classes)
        self.graph = cache(self._graph)
        self.run_by = cache(self._run_by)
        self.usual = cache(self._usual)
        leave(self)

    def take_apart(self) -> None:
        """Nobody asks any more."""
        for program in self._paths:
            forget(program, self)
        self.__dict__.clear()

    def is_test(self, graph: Graph) -> bool:
        """Whether a function stands in a file of tests of the package."""
        return is_test(self.path_of(graph), package_folder(os.path.dirname(self.path)))

    def program(self, path: str) -> Program | None:
        """The functions of a file of the package."""
        if path == self.path:
            return self.root
        known = self.modules.read(path)
        if known is None:
            return None
        found = shared(*known)
        if path not in self._hearing:
            self._hearing[path] = partial(self._hear, path)
        found.tell(self._hearing[path])
        self._paths[found] = path
        vars(found).setdefault("elsewhere", self)  # what is asked of its functions is noted for the file analysed
        return found

    def _hear(self, path: str, start: str, unit: str) -> None:
        """What of a file's functions is read."""
        self.modules.note(of_file(start, unit, path))

    def path_of(self, graph: Graph) -> str:
        """The file that a graph's function stands in."""
        return self.path if graph.program is None else self._paths.get(graph.program, self.path)

    def resolve(self, graph: Graph, name: str) -> Definition | None:
        """What a qualified name that a graph reads stands for, where a file of the package defines it."""
        return self.resolved(self.path_of(graph), name)

    def _graph(self, found: Definition) -> Graph | None:
        """The graph of a function; None where there is none, or it is not understood."""
        program = self.program(found.path)
        graph = None if program is None else program.graph(found.name)
        return None if graph is None or graph.not_understood else graph

    def _usual(self, graph: Graph) -> KnownFacts:
        """The facts of a function as defaults have them."""
        from fuselint.graph.across import Reach
        from fuselint.graph.facts import Facts

        return Facts(graph, Reach(usual=True, elsewhere=self))

    def entered(self, graph: Graph, call: Node) -> tuple[Graph, ...] | None:
        """The functions that a call may enter, by what is written alone; none where it enters nothing of the package,
        None where only facts can tell."""
        made = call.attrs.get("new") or call.attrs.get("init")
        if isinstance(made, Node):
            choices = made.inputs if made.op == "phi" else (made,)
            if "path" not in call.attrs or any(n.op != "new" for n in choices):
                return None
            classes = [self.resolve(graph, n.attrs.get("target") or "") for n in choices]
            methods = [self.method(c, "__call__") for c in classes if c is not None]
            found = [self.graph(m) for m in methods if m is not None]
        elif isinstance(call.attrs.get("callee"), Node) or self.named(graph, call) is None:
            return None
        else:
            found = [self.named(graph, call)]
        return tuple(g for g in found if g is not None)

    def named(self, graph: Graph, call: Node) -> Graph | None:
        """The function of the package, no method, that a call names, and enters unless it calls an object."""
        target = call.attrs.get("target")
        found = self.resolve(graph, target) if isinstance(target, str) else None
        summary = None if found is None else self.function(found)
        return None if found is None or summary is None or summary.class_name is not None else self.graph(found)

    def ops_of(self, graph: Graph, call: Node) -> frozenset[str]:
        """The operations of the function that a call names, and of those that are called by name in there."""
        named = self.named(graph, call)
        return frozenset() if named is None else self.run_by(named)

    def _run_by(self, graph: Graph) -> frozenset[str]:
        waiting, seen = [graph], {graph}
        while waiting:
            at = waiting.pop()
            for node in at.nodes if "call" in at.ops else ():
                named = self.named(at, node) if node.op == "call" and "path" not in node.attrs else None
                if named is not None and named not in seen:
                    seen.add(named)
                    waiting.append(named)
        return frozenset().union(*(g.ops for g in seen))

    def _classes(self, found: Definition) -> list[tuple[Definition, ClassSummary]]:
        """A class and its bases in the package, nearest first."""
        return [(at, held) for at in self.lineage(found)[0] if (held := self.class_(at)) is not None]

    def place(self, path: str, line: int) -> Place:
        """A line of a file."""
        return Place(self.modules.shown(path), line)

    def place_of(self, graph: Graph, node: Node) -> Place:
        """The line of a value."""
        source = node.frame.source or graph.source
        return Place(source.file.path, source.at.line, source, node.cst)

    def is_other(self, place: Place) -> bool:
        """Whether a line stands in another file than the one that is analysed."""
        return place.path != self.root.file.path

    def uses(self, found: Definition) -> Iterator[Use]:
        """The calls of a class or function in the package: those of its own file first, then by the order of files."""
        if found not in self._uses:
            self._uses[found] = _Uses(self._found_uses(found))
        yield from self._uses[found]

    def calls_written(self, found: Definition) -> int | None:
        """How many calls of a class the package's functions hold; None where it names the class otherwise than to ask
        about it: what else makes objects of it isn't known then. Tests don't count."""
        count, top = 0, package_folder(os.path.dirname(found.path))
        for path in [found.path, *self.modules.users(found)]:
            mentions = None if is_test(path, top) else self.modules.mentions(path)
            for name in sorted({found.name, *self.modules.renamed(path, found.name)}):
                for m in mentions.by_name.get(name, ()) if mentions is not None else ():
                    if m.role in ("call", "kept") and m.by != MODULE:
                        count += 1
                    elif m.role not in ASKING:
                        return None
        return count

    def _found_uses(self, found: Definition) -> Iterator[Use]:
        for path in [found.path, *self.modules.users(found)]:
            last = found.name.rpartition(".")[2]
            words = map(re.escape, sorted({last, *self.modules.renamed(path, last)}))
            for qualname in self.modules.naming(path, rf"\b({'|'.join(words)})\s*\("):
                graph = self.graph(Definition(path, qualname))
                for node in graph.nodes if graph is not None else ():
                    target = node.attrs.get("target") if node.op in ("call", "new") else None
                    if target and node.frame.depth == 0 and self.resolve(graph, target) == found:  # type: ignore[arg-type]
                        yield graph, node  # type: ignore[misc]


_programs: OrderedDict[FileText, Program] = OrderedDict()


def rest_shared() -> None:
    """Nothing that was learned of the functions of other files is kept: it rests on what nobody noted for the next."""
    for program in _programs.values():
        if "elsewhere" in vars(program):
            program.rest()


def shared(file: FileText, summary: ModuleSummary) -> Program:
    """The functions of a file, with the graphs that were made of them for it or for others."""
    found = _programs.pop(file, None)
    if found is None or found.plain != summary:  # other settings say otherwise what is hot
        found = Program(file, summary)
    found.tell(None)
    _programs[file] = found
    if len(_programs) > SHARED:
        leave(_programs.popitem(last=False)[1])
    return found
