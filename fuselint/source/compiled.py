"""What runs inside mx.compile across the files of a package, and what of that runs outside of it too.

From each place that compiles something the calls are followed, by the text of the files alone: into methods of the
objects that `__init__` makes, into what an annotation or the calls in the package say that a parameter is. What only
runs inside is compiled. What is also called from elsewhere in the package, tests apart, runs both ways; a call under a
gradient is none of them, since nothing compiled is fused there.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from fuselint.source.links import Expr
from fuselint.source.mentions import Mention, Mentions, Suites
from fuselint.source.modules import Definition, Modules
from fuselint.source.notes import LINKS
from fuselint.source.project import MODULE, CompileInfo, ModuleSummary, unit_of
from fuselint.source.scopes import dotted
from fuselint.source.switches import Switches
from fuselint.source.text import FileText
from fuselint.source.values import Evaluation, Values, Where

MOST = 4000
"""Functions that are followed from the places that compile."""

MOST_ONCE = 40
"""Calls that are followed from one that is not compiled to one that runs once."""

FARTHEST = 2
"""Objects inside one another, through whose classes' files a call from outside is looked for."""


Call = tuple[Definition, int]
"""The function that calls, and the line."""


def in_package(file: FileText, summary: ModuleSummary, modules: Modules) -> ModuleSummary:
    """The summary with what the whole package says of what runs compiled; the same one where it says nothing new."""
    path = os.path.abspath(file.path)
    modules.know(file, summary)
    found = modules.compiled(path)
    partly = {q: both for q, both in found.partly if q not in summary.compiled or summary.compiled[q].how == "called"}
    compiled = {**dict(found.compiled), **{q: c for q, c in summary.compiled.items() if q not in partly}}
    if not partly and compiled.keys() == summary.compiled.keys():
        return summary
    return replace(summary, compiled=compiled, partly=partly)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the functions of one file: those that only run compiled, and of those that run both ways, how."""

    compiled: tuple[tuple[str, CompileInfo], ...] = ()
    partly: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """A place that compiles: the function where it stands, and its line."""

    by: Definition
    line: int
    shapeless: bool = False

    def __str__(self) -> str:
        return f"{os.path.basename(self.by.path)}:{self.line}"


@dataclass
class Reached:
    """What runs from some places on. owners: of methods, the classes of the objects that they are called on.

    makers: the functions where each is compiled.
    """

    origins: dict[Definition, Origin] = field(default_factory=dict)
    owners: dict[Definition, set[Definition]] = field(default_factory=dict)
    makers: dict[Definition, set[Definition]] = field(default_factory=dict)
    seen: set[Where] = field(default_factory=set)


class Compiled:
    """What runs compiled in a package. compiling, differentiating: its files that may do so with something."""

    def __init__(self, modules: Modules, top: str, compiling: Iterable[str], differentiating: Iterable[str]) -> None:
        self.modules = modules
        self.evaluation = Evaluation(modules, top)
        self._differentiating = differentiating
        self._callers: dict[Definition, tuple[str, set[Definition]]] = {}
        self._entries: dict[str, dict[Definition, list[tuple[str, int]]]] = {}
        self._read_of = {p for p in compiling if not self.evaluation.is_test(p)}
        self._note_rebound(sorted(self._read_of))
        self.inside = Reached()
        self._reach(self.inside, sorted(self._read_of), "compiled")

    @cached_property
    def gradients(self) -> Reached:
        """What runs under a gradient."""
        out = Reached()
        self._reach(out, [p for p in self._differentiating if not self.evaluation.is_test(p)], "differentiated")
        return out

    def of(self, path: str) -> Verdict:
        """What is to be said of the functions of a file."""
        summary = self.modules.summary(path)
        is_new = path not in self._read_of and not self.evaluation.is_test(path)
        if is_new and summary is not None and summary.compilations:
            self._read_of.add(path)  # what it compiles stays in the file
            self._reach(self.inside, [path], "compiled")
            self._callers.clear()
        compiled: dict[str, CompileInfo] = {}
        partly: dict[str, str] = {}
        for found, origin in self.inside.origins.items():
            if found.path != path:
                continue
            self.modules.note(f"{LINKS}{origin.by.path}")
            outside = self.outside(found)
            if outside:
                partly[found.name] = f"{origin} compiles it, {outside} calls it without"
            else:
                compiled[found.name] = CompileInfo("called", origin.shapeless, elsewhere=str(origin))
        return Verdict(tuple(sorted(compiled.items())), tuple(sorted(partly.items())))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _reach(self, out: Reached, paths: Iterable[str], how: str) -> None:
        """Add what runs from every place of some files on that compiles, or differentiates."""
        for path in paths:
            links, module = self.evaluation.links(path), self.modules.summary(path)
            if links is None or module is None:
                continue
            switches = Switches(self.evaluation, path, links, module)
            for site in links.compiled if how == "compiled" else links.differentiated:
                if switches.is_on(site):
                    origin = Origin(Definition(path, site.by), site.line, site.shapeless)
                    for at in list(self._entered(path, site.by, site.given)):
                        out.makers.setdefault(at.found, set()).add(origin.by)
                        self._follow(out, at, origin)
            for call in links.within(how):
                for at in list(self._entered(path, call.by, call.called)):
                    self._follow(out, at, Origin(Definition(path, call.by), call.line))

    def _entered(self, path: str, by: str, called: Expr) -> Iterator[Where]:
        return self.evaluation.entered(self.evaluation.of(path, called, self.evaluation.owner(path, by)), inside=True)

    def _follow(self, out: Reached, first: Where, origin: Origin) -> None:
        waiting = [first]
        while waiting and len(out.seen) < MOST:
            at = waiting.pop()
            if at in out.seen:
                continue
            out.seen.add(at)
            out.origins.setdefault(at.found, origin)
            if at.owner is not None:
                out.owners.setdefault(at.found, set()).add(at.owner)
            waiting += [*self._called(at), *self._inner(at)]

    def _called(self, at: Where) -> Iterator[Where]:
        """What a function calls."""
        path, links = at.found.path, self.evaluation.links(at.found.path)
        owner = at.owner or self.evaluation.owner(path, at.found.name)
        for call in links.calls.get(at.found.name, ()) if links is not None else ():
            yield from self.evaluation.entered(self.evaluation.of(path, call.called, owner), inside=True)

    def _inner(self, at: Where) -> Iterator[Where]:
        """The functions that a function defines."""
        summary = self.modules.summary(at.found.path)
        for name, function in summary.functions.items() if summary is not None else ():
            if function.span.outer == at.found.name:
                yield Where(Definition(at.found.path, name), at.owner)

    def _note_rebound(self, paths: Iterable[str]) -> None:
        """`layer.mlp = mx.compile(layer.mlp)`, of an object from elsewhere: who calls it there runs the compiled."""
        found = set()
        for path in paths:
            links, module = self.evaluation.links(path), self.modules.summary(path)
            for site in links.compiled if links is not None else ():
                if links is not None and module is not None and site.kept:
                    held = self.evaluation.of(path, site.owner, self.evaluation.owner(path, site.by))
                    if held and Switches(self.evaluation, path, links, module).is_on(site):
                        found |= {(v.found, site.kept) for v in held if v.found is not None}
        self.evaluation.wrap(found)

    # -- outside ------------------------------------------------------------------------------------------------------

    def outside(self, found: Definition) -> str:
        """Who calls a function that runs compiled outside of that, or calls what calls it; "" for nobody."""
        waiting, seen = [found], {found}
        for at in waiting:
            if at not in self._callers:
                self._callers[at] = self._callers_of(at)
            outside, inside = self._callers[at]
            if outside:
                return outside
            waiting += [c for c in inside if c not in seen]
            seen |= inside
        return ""

    def _callers_of(self, found: Definition) -> tuple[str, set[Definition]]:
        """Who calls a function outside, else those that do so inside."""
        inside: set[Definition] = set()
        makers = self.inside.makers.get(found, ())
        for path in self._candidates(found):
            module = self.modules.summary(path)
            for by, line in self._entered_in(path).get(found, ()) if module is not None else ():
                around = self._compiled_around(path, by, module)
                if around is not None:
                    inside.add(around)
                elif (
                    Definition(path, by) not in makers
                    and module is not None
                    and self._counts(path, by, line, module)
                    and not self._is_once(found, (Definition(path, by), line))
                ):
                    self.modules.note(f"{LINKS}{path}")
                    name = "module-level code" if by == MODULE else by
                    return f"{name} ({os.path.basename(path)}{f':{line}' if line else ''})", inside
        return "", inside

    def _compiled_around(self, path: str, by: str, module: ModuleSummary | None) -> Definition | None:
        """The function that runs compiled which `by` is, or lies in."""
        at: str | None = by
        while at is not None and at != MODULE and module is not None:
            if Definition(path, at) in self.inside.origins:
                return Definition(path, at)
            at = module.functions[at].span.outer
        return None

    def _candidates(self, found: Definition) -> Iterator[str]:
        """The files that may call a function: its own, and those that import it, its class, or what holds one."""
        function = self.modules.function(found)
        files = dict.fromkeys(self.evaluation.users(found))
        yield from files
        classes = set(self.inside.owners.get(found, ()))
        if function is not None and function.class_name is not None:
            classes.add(Definition(found.path, function.class_name))
        level = classes
        for _ in range(FARTHEST):
            above: set[Definition] = set()
            for held in sorted(level, key=str):
                for path in self.evaluation.users(held):
                    above.update(self._holders(path, held))
                    if path not in files:
                        files[path] = None
                        yield path
            level = above - classes
            classes |= level

    def _holders(self, path: str, held: Definition) -> Iterator[Definition]:
        """The classes of a file that keep an object of a class, or derive from it."""
        module, last = self.modules.summary(path), held.name.rpartition(".")[2]
        for name, summary in module.classes.items() if module is not None else ():
            stated = (f.annotation for f in summary.fields.values() if f.annotation)
            named = {t.removesuffix("[]") for t in (*summary.attributes.values(), *summary.bases, *stated) if last in t}
            if any(held in {v.found for v in self.evaluation.annotated(path, t)} for t in named):
                yield Definition(path, name)

    def _entered_in(self, path: str) -> dict[Definition, list[tuple[str, int]]]:
        """The functions that a file calls, or hands on: where, and in which line, 0 for those that it hands on."""
        if path not in self._entries:
            out: dict[Definition, list[tuple[str, int]]] = {}
            for by, line, values in self._read(path):
                for at in self.evaluation.entered(values, inside=False):
                    out.setdefault(at.found, []).append((by, line))
            self._entries[path] = out
        return self._entries[path]

    def _read(self, path: str) -> Iterator[tuple[str, int, Values]]:
        links = self.evaluation.links(path)
        if links is None:
            return
        for by, calls in links.calls.items():
            owner = self.evaluation.owner(path, by)
            for call in calls:
                if not call.within:
                    yield by, call.line, self.evaluation.of(path, call.called, owner)
        for by, named in links.mentions:
            values = self.evaluation.of(path, named, self.evaluation.owner(path, by))
            yield by, 0, frozenset(v for v in values if v.kind in ("function", "wrapped"))

    def _counts(self, path: str, by: str, line: int, module: ModuleSummary) -> bool:
        """Whether what a function calls runs outside, often: it isn't cold, under a gradient, or dead."""
        if by == MODULE:
            return not line  # what it hands on, others call
        if by in module.cold or self._is_dead(path, by, module):
            return False
        at: str | None = by
        while at is not None:
            if Definition(path, at) in self.gradients.origins:
                return False
            at = module.functions[at].span.outer
        return True

    # -- once ---------------------------------------------------------------------------------------------------------

    def _is_once(self, found: Definition, first: Call) -> bool:
        """Whether a call outside runs once where the compiled runs again and again: to fill what an object keeps, or
        beside it, in the function that compiles, or that runs the compiled in a loop."""
        origin = self.inside.origins[found].by
        waiting, seen = [first], {first}
        while waiting:
            at, line = waiting.pop()
            held = self.modules.mentions(at.path)
            if not line or at.name == MODULE or held is None or len(seen) > MOST_ONCE:
                return False
            held.by_function.get(at.name)  # where in the function the call stands matters
            if _fills(held, at.name, line):
                continue
            if _is_repeated(held, at.name, line):
                return False
            if at == origin or self._repeats_compiled(at, held):
                continue
            above = [c for c in self._calls_of(at) if c[0] != at]
            if not above:
                return False
            new = [c for c in above if c not in seen]
            seen.update(new)
            waiting += new
        return True

    def _calls_of(self, found: Definition) -> Iterator[Call]:
        """The calls of a function that count."""
        for path in self._candidates(found):
            module = self.modules.summary(path)
            for by, line in self._entered_in(path).get(found, ()) if module is not None else ():
                if module is not None and self._counts(path, by, line, module):
                    yield Definition(path, by), line

    def _repeats_compiled(self, at: Definition, held: Mentions) -> bool:
        """Whether a function calls something compiled in a loop."""
        links, owner = self.evaluation.links(at.path), self.evaluation.owner(at.path, at.name)
        for call in links.calls.get(at.name, ()) if links is not None else ():
            if _is_repeated(held, at.name, call.line) and any(
                v.kind == "wrapped" for v in self.evaluation.of(at.path, call.called, owner)
            ):
                return True
        return False

    def _is_dead(
        self, path: str, by: str, module: ModuleSummary | None, within: frozenset[Definition] = frozenset()
    ) -> bool:
        """Whether a method of a layer, or of what the package keeps as a part, is called by nobody but dead methods of
        that name. within: those of which it is asked already."""
        function = None if module is None else module.functions.get(by)
        name = by.rpartition(".")[2]
        if module is None or function is None or function.class_name is None or name.startswith("__"):
            return False
        found = Definition(path, function.class_name)
        users = self.evaluation.users(found)
        if not module.classes[found.name].is_module and not any(any(self._holders(p, found)) for p in users):
            return False
        within |= {Definition(path, by)}
        for other in users:
            links = self.evaluation.links(other)
            if links is None:
                continue
            if links.hands_on(name):
                return False
            for caller in {c.by for c in links.calls_by_name.get(name, ())}:
                same = caller.rpartition(".")[2] == name
                if not same or not (
                    Definition(other, caller) in within
                    or self._is_dead(other, caller, self.modules.summary(other), within)
                ):
                    return False
        return True


def _calls_at(held: Mentions, by: str, line: int) -> Iterator[Mention]:
    yield from (m for m in held.by_function.get(by, ()) if m.line == line and m.role in ("call", "kept"))


def _is_repeated(held: Mentions, by: str, line: int) -> bool:
    """Whether a call stands in a loop, other than one through the parts of an object: `for layer in self.layers`."""
    suites = held.suites.get(unit_of(by), Suites())
    loops = [loop for loop in suites.loops if loop.by == by and loop.first <= line <= loop.last]
    if len(loops) != 1:
        return bool(loops)
    parts = {name for found in held.elements.values() for at, name, _ in found if at == by}
    return not any(m.text.partition(".")[0] in parts for m in _calls_at(held, by, line))


def _fills(held: Mentions, by: str, line: int) -> bool:
    """Whether a call makes what an object keeps, where that is missing: `if found is None: found = self.made(x)`, of
    what `found = self.cache.get(key)` read."""
    return any(
        wanted and _is_missing(held, by, line, test) for m in _calls_at(held, by, line) for test, wanted in m.tests
    )


def _is_missing(held: Mentions, by: str, line: int, test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        return _is_missing(held, by, line, test.values[0])  # what else makes it stale
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            values = [v for v in held.bound.get(by, {}).get(name, ()) if v is not None]
            made = any(isinstance(v, ast.Call) and v.lineno == line for v in values)
            return made and any(_is_kept(v.func if isinstance(v, ast.Call) else v) for v in values if v.lineno != line)
        case ast.Compare(left=ast.Attribute(attr=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            stored = held.stored.get(name, ())
            return _is_kept(test.left) and any(at == by and v is not None and v.lineno == line for at, v in stored)
    return False


def _is_kept(node: ast.expr) -> bool:
    """`self.cache`, `self.cache.get`"""
    return isinstance(node, ast.Attribute) and (dotted(node) or "").startswith("self.")
