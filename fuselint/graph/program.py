"""One file's functions: their trees and graphs, each made once, when first asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fuselint.errors import TooComplex
from fuselint.finding import Edit
from fuselint.graph.gates import NEWEST
from fuselint.graph.model import Graph
from fuselint.source.function import FunctionSource, parse_function
from fuselint.source.notes import SUMMARY, TEXT, Trail
from fuselint.source.project import unit_of
from fuselint.source.text import FileText
from fuselint.source.watched import WatchedSummary, plain_of

if TYPE_CHECKING:
    from fuselint.graph.elsewhere import Elsewhere
    from fuselint.source.project import ModuleSummary

T = TypeVar("T")


class Once(Generic[T]):
    """Results that may need one another, each made once and the same whoever asks for it first.

    Of results that need each other in a circle, each is made apart for whoever asks from outside of it.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, T] = {}
        self._asked: dict[Hashable, T] = {}  # of a circle, asked for from outside
        self._meanwhile: dict[Hashable, T] = {}  # of a circle, until that question is answered
        self._open: list[Hashable] = []
        self._lowest = math.inf  # the first open result that the current one needs

    def get(self, key: Hashable, make: Callable[[], T], cut: T) -> T:
        """The result of a key; `cut` where it is needed to make itself."""
        if key in self._known or (not self._open and key in self._asked):
            return self._known[key] if key in self._known else self._asked[key]
        if key in self._open:
            self._lowest = min(self._lowest, self._open.index(key))
            return cut
        if key in self._meanwhile:
            self._lowest = 0
            return self._meanwhile[key]
        return self._make(key, make, cut)

    def change(self, by: Callable[[T], T]) -> None:
        """Replace the results by what `by` makes of them."""
        for kept in (self._known, self._asked):
            kept.update({key: by(value) for key, value in kept.items()})

    def only(self, keys: Iterable[Hashable]) -> Once[T]:
        """What is known of some keys, to go on with."""
        out = Once[T]()
        out._known = {k: self._known[k] for k in keys if k in self._known}
        return out

    def _make(self, key: Hashable, make: Callable[[], T], cut: T) -> T:
        at, outer = len(self._open), self._lowest
        self._lowest = math.inf
        self._open.append(key)
        try:
            value = make()
        except Exception:
            self._known[key] = cut
            raise
        finally:
            self._open.pop()
            lowest, self._lowest = self._lowest, min(outer, self._lowest if self._lowest < at else math.inf)
            if not self._open:
                self._meanwhile.clear()
        kept = self._known if lowest == math.inf else self._meanwhile if self._open else self._asked
        kept[key] = value
        return value


class Program:
    """The functions of one file. target: the MLX that they run on.

    before: the program of another text of the file, whose trees serve where a function has not changed.
    """

    def __init__(self, file: FileText, summary: ModuleSummary, before: Program | None = None) -> None:
        self.file = file
        self.plain = plain_of(summary)
        self.summary: ModuleSummary = WatchedSummary(self.plain, self._read_unit)
        self._told: Callable[[str, str], None] | None = None
        self._known_to_read: set[str] = set()  # functions whose trails were told
        self._trails: dict[str, Trail] = {}  # of each graph, what was read for it
        self._open: list[Trail] = []
        self._before = {} if before is None else before._sources
        self.target = NEWEST
        self._sources: dict[str, FunctionSource | None] = {}
        self._makes_array: dict[Graph, bool] = {}
        self._graphs: Once[Graph | None] = Once()
        self.too_complex: dict[str, str] = {}  # functions that were given up, with the reason
        self._scanned: dict[Hashable, Any] = {}

    @cached_property
    def elsewhere(self) -> Elsewhere:
        """The package as this file sees it, while it is analysed: without other files, where nobody gave any."""
        from fuselint.graph.elsewhere import Elsewhere

        return Elsewhere(self)

    # -- what is read -------------------------------------------------------------------------------------------------

    def tell(self, whom: Callable[[str, str], None] | None) -> None:
        """From now on, tell somebody what is read of the file: how its leaves start, and of which unit."""
        if whom is not self._told:
            self._told = whom
            self._known_to_read.clear()

    def _read_unit(self, key: str) -> None:
        if self._open:
            self._open[-1].held.add(f"{SUMMARY}{unit_of(key)}")
        elif self._told is not None:
            self._told(SUMMARY, unit_of(key))

    def _read_text(self, qualname: str) -> None:
        if self._open:
            self._open[-1].held.add(f"{TEXT}{unit_of(qualname)}")
        elif self._told is not None:
            self._told(TEXT, unit_of(qualname))

    def _read_graph(self, qualname: str) -> None:
        """That all is read which a graph rests on."""
        trail = self._trails.get(qualname)
        if trail is None:
            return
        if self._open:
            self._open[-1].held.add(trail)
        elif self._told is not None and qualname not in self._known_to_read:
            self._known_to_read.add(qualname)
            for leaf in trail.leaves():
                start, _, unit = leaf.partition(" ")
                self._told(f"{start} ", unit)

    # -- functions ----------------------------------------------------------------------------------------------------

    @cached_property
    def binds_in_expressions(self) -> bool:
        """Whether expressions may bind names."""
        return ":=" in self.file.text

    def scanned(self, scan: Callable[..., T], *nodes: Hashable) -> T:
        """What a scan says of nodes of the file's trees: they are looked through once, for all who inline them."""
        key = (scan, *nodes)
        if key not in self._scanned:
            self._scanned[key] = scan(*nodes)
        found: T = self._scanned[key]
        return found

    def rest(self) -> None:
        """The file is analysed: keep its graphs, which other files may ask for, and nothing learned of them."""
        self.__dict__.pop("elsewhere", None)
        self._makes_array.clear()
        self._scanned.clear()
        self._graphs.change(lambda graph: None if graph is None else _rested(graph))

    def take_apart(self) -> None:
        """Nobody needs the graphs any more."""
        self._graphs.change(lambda graph: None if graph is None else graph.take_apart())
        self.__dict__.clear()

    def known_as(self, summary: ModuleSummary) -> Program:
        """The same functions, of which the summary says something else."""
        out = Program(self.file, summary)
        out._sources, out.too_complex, out.target = {**self._sources}, {**self.too_complex}, self.target
        return out

    def function(self, qualname: str) -> FunctionSource | None:
        """The tree of a function; None if there is no such function, or it is too complex."""
        self._read_text(qualname)
        if qualname not in self._sources:
            self._sources[qualname] = None
            summary = self.summary.functions.get(qualname)
            if summary is not None:
                try:
                    self._sources[qualname] = parse_function(self.file, summary.span, self._before.get(qualname))
                except TooComplex as e:
                    self.too_complex[qualname] = str(e)
        return self._sources[qualname]

    def graph(self, qualname: str) -> Graph | None:
        """The graph of a function; None while it is being lowered itself."""
        try:
            return self._graphs.get(qualname, lambda: self._lower(qualname), None)
        finally:
            self._read_graph(qualname)

    def _lower(self, qualname: str) -> Graph | None:
        from fuselint.graph.lower import lower

        self._open.append(self._trails.setdefault(qualname, Trail()))
        try:
            source = self.function(qualname)
            return None if source is None else lower(source, self.summary, self)
        finally:
            self._open.pop()

    def makes_array(self, qualname: str) -> bool:
        """Whether a function always returns an array that it made, and that it leaves nowhere else."""
        summary = self.summary.functions.get(qualname)
        if summary is None or summary.is_async or summary.is_generator or summary.redefined:
            return False
        graph = self.graph(qualname)
        if graph is None:
            return False
        if graph not in self._makes_array:
            self._makes_array[graph] = _returns_new_array(graph)
        return self._makes_array[graph]

    def changes_nothing(self, qualname: str) -> bool:
        """Whether all that a function does is to compute: what it is given stays as it is."""
        graph = self.graph(qualname)
        if graph is None or graph.not_understood or graph.effects:
            return False
        return not any(n.op in ("call", "new", "opaque") for n in graph.nodes)

    def changed(self, qualname: str, text: str, edits: Sequence[Edit]) -> Program:
        """The program with the text after edits inside one function. Other functions and files are as this one's."""
        from fuselint.graph.elsewhere import Elsewhere

        def moved(offset: int) -> int:
            return offset + sum(len(e.text) - (e.end - e.start) for e in edits if e.end <= offset)

        functions = dict(self.plain.functions)
        whole = functions[qualname].span
        for name, f in functions.items():
            if whole.start <= f.span.start < whole.end:
                functions[name] = replace(f, span=replace(f.span, start=moved(f.span.start), end=moved(f.span.end)))
        out = Program(replace(self.file, text=text), replace(self.plain, functions=functions))
        out.target = self.target
        kept = [name for name, f in functions.items() if f is self.plain.functions[name]]
        out._sources = {name: self._sources[name] for name in kept if name in self._sources}
        out._graphs, out._trails = self._graphs.only(kept), {**self._trails}
        out.elsewhere = Elsewhere(out, self.elsewhere.modules)
        return out

    def init(self, class_name: str) -> Graph | None:
        """The graph of a class's `__init__`, its own or that of a base in this file."""
        qualname = self.summary.method(class_name, "__init__")
        return None if qualname is None else self.graph(qualname)


def _rested(graph: Graph) -> Graph:
    """A graph without what was learned of it."""
    out = replace(graph)
    graph.__dict__.clear()
    return out


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
