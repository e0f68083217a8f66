"""Whether a function prepares what a solver then refines: it runs once for many steps of another model.

A pipeline encodes a prompt, and then puts noise through a large model some ten to fifty times. From a function the
classes that hold its objects are followed upwards to what comes to such a loop; from there its calls downwards. What is
called before the loop, in no other loop, and never in it or after it, is worth little beside it. Calls that can't be
followed count by the names that they speak of; where nothing is known, a function prepares nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from fuselint.source.mentions import Loop, Mention
from fuselint.source.modules import Definition, Remembered
from fuselint.source.project import MODULE, unit_of
from fuselint.source.scopes import dotted

if TYPE_CHECKING:
    from fuselint.source.frequency import Frequencies

MOST = 600
"""Functions that are looked through from one place, at most."""

HIGHEST = 8
"""Classes inside one another, and functions that make them, at most."""

ASKED = 200
"""Classes and functions that are looked at upwards from one, at most."""

SILENT = frozenset({"type", "import", "string", "exported", "base"})
"""Mentions that call nothing."""

Reached = dict[Definition, None]
"""Definitions, in the order in which they are come to."""


@dataclass
class Reach:
    """What some code may run: functions, classes whose objects it calls, and all names on the way. whole: there is no
    more."""

    functions: Reached = field(default_factory=dict)
    classes: Reached = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    whole: bool = True

    def add(self, other: Reach) -> None:
        self.functions.update(other.functions)
        self.classes.update(other.classes)
        self.names |= other.names


@dataclass(frozen=True, slots=True)
class Level:
    """A class, and the attributes under which what is above it keeps its objects. local: their names in the function
    that is looked at."""

    owner: Definition
    kept: frozenset[str]
    local: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return self.kept | self.local


Places = list[tuple[Mention, Reach]]


@dataclass
class Course:
    """What functions do that come to the loops of solvers: in each round of one, before them, and afterwards."""

    spine: Sequence[Definition]
    inside: list[Places] = field(default_factory=list)
    before: Places = field(default_factory=list)
    after: Places = field(default_factory=list)


class Stages:
    """Of one package; `known` says what classes keep."""

    def __init__(self, known: Frequencies) -> None:
        self.known, self.modules = known, known.modules
        self._recall = known.modules.remembered
        self._prepares: Remembered[Definition, bool] = {}
        self._objects: Remembered[Definition, bool | None] = {}
        self._courses: Remembered[tuple[Definition, ...], Course] = {}
        self._reads: Remembered[Definition, Sequence[tuple[Mention, Reach]]] = {}
        self._solvers: Remembered[Definition, Sequence[Loop]] = {}
        self._coming: Remembered[Definition, bool] = {}
        self._uses: Remembered[tuple[tuple[Definition, ...], Level], bool | None] = {}
        self._among: Remembered[Level, frozenset[str]] = {}
        self._left = 0

    def prepares(self, found: Definition) -> bool:
        """Whether a function, with those inside it, runs only before the steps of a solver, once for all of them."""
        return self._recall(self._prepares, found, lambda: self._is_preparing(found))

    def _is_preparing(self, found: Definition) -> bool:
        top, modules = self.known.top, self.modules
        if modules.solvers(top).isdisjoint(modules.importers(top, found.path)):
            return False
        self._left = ASKED
        return self._of_function(found, (), frozenset()) is True

    # -- upwards ------------------------------------------------------------------------------------------------------

    def _is_too_far(self, at: Definition, seen: frozenset[Definition]) -> bool:
        self._left -= 1
        return at in seen or len(seen) > HIGHEST or self._left < 0

    def _of_function(self, found: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        """The same for a function; levels: the classes below it, the lowest first, that it makes objects of."""
        if self._is_too_far(found, seen):
            return False
        owner = self.known.owner(found)
        if self._comes_to_solver(found):
            return bool(levels) and self._is_before((found,), levels)
        if not levels and owner is not None and self._has_objects(owner) and not self._comes_by(owner):
            return self._recall(self._objects, owner, lambda: self._of_objects(owner))
        return self._of_callers(found, levels, seen | {found})

    def _of_objects(self, owner: Definition) -> bool | None:
        left, self._left = self._left, ASKED
        try:
            return self._of_class(owner, (), frozenset())
        finally:
            self._left = left

    def _of_callers(self, found: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        answers: list[bool | None] = []
        for path, m in self._callers(found):
            by = Definition(path, m.by)
            if by == found:
                continue
            if m.role not in ("call", "kept") or m.by == MODULE:
                return False
            named = (*levels[:-1], self._named(path, m, levels[-1])) if levels else levels
            owner = self.known.owner(by)
            if levels and owner is not None and self._comes_by(owner):
                answers.append(self._is_before(self._methods(owner), named))
            elif levels and owner is not None and m.role == "kept" and by.name.endswith(".__init__"):
                answers.append(self._of_class(owner, named, seen))
            elif not levels and self._comes_to_solver(by):
                answers.append(self._is_called_before(by, found))
            else:
                answers.append(self._of_function(by, named, seen))
            if answers[-1] is False:
                return False
        if levels and not answers and found.name.endswith(".__init__"):
            return self._is_used_once(self.known.owner(found), levels[-1])
        return any(answers) or (None if answers else False)

    def _of_class(self, owner: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        """The same for the methods of the objects of a class, which hold those of the levels below."""
        if self._is_too_far(owner, seen) or self._repeats(owner):
            return False
        seen |= {owner}
        answers: list[bool | None] = []
        for path, m in self.known.mentioned(owner):
            if m.role == "base":
                answers.append(self._of_class(Definition(path, m.inside), levels, seen))
            elif m.role in ("call", "kept"):
                if m.by == MODULE:
                    return False
                taker = self._given_to(path, m)
                below = tuple(replace(level, local=frozenset()) for level in levels)
                if taker is not None:
                    answers.append(self._of_class(taker.owner, (*below, Level(owner, taker.kept)), seen))
                else:
                    named = (*below, self._named(path, m, Level(owner, frozenset())))
                    answers.append(self._of_maker(Definition(path, m.by), m, named, seen))
            elif m.role not in SILENT | {"through"}:
                return False
            if answers and answers[-1] is False:
                return False
        return any(answers) or (None if answers else False)

    def _given_to(self, path: str, m: Mention) -> Level | None:
        """The class whose constructor is given an object right where that is made, and the attributes that keep it:
        `Decoder(visual=Tower(config))`."""
        held = self.modules.mentions(path)
        for n in held.by_function.get(m.by, ()) if held is not None else ():
            for key, value in (n.given or {}).items() if n.role in ("call", "kept") else ():
                if isinstance(value, ast.Call) and _is_on(value, m.line) and dotted(value.func) == m.text:
                    owner = self._resolved(Definition(path, n.by), n.text)
                    kept = frozenset[str]() if owner is None else self._keeping(owner, key)
                    if owner is not None and kept:
                        return Level(owner, kept)
        return None

    def _keeping(self, owner: Definition, argument: str | int) -> frozenset[str]:
        """The attributes in which a constructor keeps an argument as it is."""
        init = self.modules.method(owner, "__init__")
        function = None if init is None else self.modules.function(init)
        held = None if init is None else self.modules.mentions(init.path)
        if init is None or function is None or held is None:
            return frozenset()
        names = [p.name for p in function.parameters][1:]
        name = argument if isinstance(argument, str) else next(islice(names, argument, None), None)
        return frozenset(
            attribute
            for attribute, values in held.stored.items()
            if any(by == init.name and isinstance(v, ast.Name) and v.id == name for by, v in values)
        )

    def _resolved(self, by: Definition, name: str | None) -> Definition | None:
        """What a dotted name of a function is in the package."""
        summary = self.modules.summary(by.path)
        found = summary.resolve(name, by.name) if summary is not None and name else None
        return None if found is None or found.startswith("mlx.") else self.modules.resolve(by.path, found)

    def _of_maker(
        self, by: Definition, m: Mention, levels: tuple[Level, ...], seen: frozenset[Definition]
    ) -> bool | None:
        """The same for the objects that a function makes."""
        holder = self.known.owner(by)
        if holder is not None and (m.role == "kept" or by.name.endswith(".__init__")):
            if self._comes_by(holder):
                return self._is_before(self._methods(holder), levels)
            return self._of_class(holder, levels, seen)
        return self._of_function(by, levels, seen)

    def _is_used_once(self, top: Definition | None, level: Level) -> bool | None:
        """None where a class that comes to no solver's loop uses what it holds, and in no loop: that says nothing."""
        methods = self._methods(top) if top is not None else ()
        below = self._all((pair for f in methods for pair in self._read(f)), self._files(level))
        in_loops = (
            reached for f in {**dict.fromkeys(methods), **below.functions} for m, reached in self._read(f) if m.loops
        )
        is_used = any(self._touches(reached, level) for reached in in_loops)
        return False if not methods or not below.whole or is_used else None

    def _has_objects(self, owner: Definition) -> bool:
        line = [self.modules.class_(at) for at in self.modules.lineage(owner)[0]]
        if any(held is not None and held.is_module for held in line):
            return True
        return bool(line) and any(m.role == "kept" for _, m in self.known.mentioned(owner))

    def _methods(self, owner: Definition) -> tuple[Definition, ...]:
        held = self.modules.class_(owner)
        return tuple(Definition(owner.path, name) for name in held.methods.values()) if held is not None else ()

    def _callers(self, found: Definition) -> Iterator[tuple[str, Mention]]:
        function = self.modules.function(found)
        if function is None:
            return
        if function.class_name is None:
            yield from ((path, m) for path, m in self.known.mentioned(found) if m.role not in SILENT)
            return
        owner, name = Definition(found.path, function.class_name), found.name.rpartition(".")[2]
        for path, m in self.known.named(name, self.known.reaching(owner)):
            if m.role in SILENT or "." not in m.text:
                continue
            head = m.text.partition(".")[0]
            summary = self.modules.summary(path)
            if head in ("self", "cls", "super"):
                around = self.known.owner(Definition(path, m.by))
                if around is not None and self.known.is_of_line(around, owner) and m.text.count(".") == 1:
                    yield path, m
            elif summary is not None and (known := summary.resolve(m.text, m.by)) is not None:
                if self.modules.resolve(path, known) == found:
                    yield path, m
            elif function.kind not in ("staticmethod", "classmethod"):
                yield path, replace(m, role="named")  # of whatever object

    def _named(self, path: str, m: Mention, level: Level) -> Level:
        """A level with the names that what a place makes is kept under."""
        names, local = {m.kept} if m.kept else set(), set()
        held = self.modules.mentions(path)
        if held is not None:
            handed = held.handed.get(m.by, ())
            names |= {attribute for attribute, value in handed if _is_on(value, m.line)}
            for name, values in held.bound.get(m.by, {}).items():
                local |= {name for value in values if value is not None and _is_on(value, m.line)}
            names |= {attribute for attribute, v in handed if isinstance(v, ast.Name) and v.id in names | local}
        return Level(level.owner, level.kept | names, frozenset(local))

    def _repeats(self, owner: Definition) -> bool:
        """Whether the methods of a class run again and again what they hold, other than one layer after another."""
        return any(
            self.known.is_driving(method, loop)
            for method in self._methods(owner)
            for loop in dict.fromkeys(loop for m, _ in self._read(method) for loop in m.loops if loop.by == method.name)
        )

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _comes_by(self, owner: Definition) -> bool:
        """Whether a method of a class comes to the loop of a solver."""
        return any(map(self._comes_to_solver, self._methods(owner)))

    def _comes_to_solver(self, found: Definition) -> bool:
        """Whether a function has the loop of a solver, or calls one that does."""
        return self._recall(self._coming, found, lambda: bool(self._spine((found,))))

    def _spine(self, functions: Sequence[Definition]) -> list[Definition]:
        """The functions that have the loop of a solver, and those between."""
        among = self.modules.solvers(self.known.top)
        callers: dict[Definition, list[Definition]] = {f: [] for f in functions if f.path in among}
        waiting, out = list(callers), []
        while waiting:
            at = waiting.pop()
            if self._loops(at):
                out.append(at)
            for _, reached in self._read(at) if not at.name.endswith(".__init__") else ():  # it keeps, and calls little
                for f in reached.functions:
                    if f.path in among:
                        if f not in callers:
                            callers[f] = []
                            waiting.append(f)
                        callers[f].append(at)
        found = dict.fromkeys(out)
        while out:
            new = [f for f in dict.fromkeys(callers[out.pop()]) if f not in found]
            found.update(dict.fromkeys(new))
            out += new
        return list(found)

    def _loops(self, found: Definition) -> Sequence[Loop]:
        """The loops of a function that take the steps of a solver, by a model."""
        return self._recall(self._solvers, found, lambda: list(self._loops_of(found)))

    def _loops_of(self, found: Definition) -> Iterator[Loop]:
        is_solving = found.path in self.modules.solving(self.known.top)
        lines = self.modules.solver_loops(found) if is_solving else ()
        own = self._read(found) if lines else ()
        for loop in dict.fromkeys(loop for m, _ in own for loop in m.loops if loop.first in lines):
            body = [(m, reached) for m, reached in own if loop in m.loops]
            direct = any(self.known.is_model(c) for _, reached in body for c in reached.classes)
            if direct or any(map(self.known.is_model, self._all(body).classes)):
                yield loop

    def _course(self, functions: tuple[Definition, ...]) -> Course:
        return self._recall(self._courses, functions, lambda: self._course_of(functions))

    def _course_of(self, functions: tuple[Definition, ...]) -> Course:
        out = Course(self._spine(functions))
        for f in out.spine:
            own, loops = self._read(f), self._loops(f)
            out.inside += [[(m, reached) for m, reached in own if loop in m.loops] for loop in loops]
            ways = [not reached.functions.keys().isdisjoint(out.spine) for _, reached in own]
            lines = [m.line for (m, _), is_way in zip(own, ways, strict=True) if is_way]
            first = min(lines + [loop.first for loop in loops])
            for (m, reached), is_way in zip(own, ways, strict=True):
                if not is_way:
                    again = m.line > first or any(not loop.later for loop in m.loops)
                    (out.after if again else out.before).append((m, reached))
        return out

    def _is_before(self, functions: tuple[Definition, ...], levels: tuple[Level, ...]) -> bool | None:
        """Whether something that is kept below is used before a loop of a solver, and not in it, nor after it; None
        where no use of it is seen."""
        course = self._course(functions)
        for level in reversed(levels):
            inside = [self._all(places, self._files(level)) for places in course.inside]
            if not all(reached.whole for reached in inside):
                return False
            if not any(self._touches(reached, level) for reached in inside):
                return self._recall(self._uses, (functions, level), partial(self._is_used_before, course, level))
            if not all(level.owner in r.classes or not self._touches(r, level) for r in inside):
                return False  # what of it is called in the loop can't be told
        return False

    def _is_used_before(self, course: Course, level: Level) -> bool | None:
        before, after = (self._all(places, self._files(level)) for places in (course.before, course.after))
        if self._touches(after, level) or not (before.whole and after.whole):
            return False
        for f in {**dict.fromkeys(course.spine), **before.functions}:
            for m, reached in self._read(f) if f in course.spine or f.path in self._files(level) else ():
                named = m.text.rpartition(".")[2] in level.names
                if m.loops and m.role == "call" and (named or level.owner in reached.classes):
                    return False  # it may be run as often there: a model that writes the prompt anew
        return self._touches(before, level) or None

    def _is_called_before(self, by: Definition, found: Definition) -> bool:
        """Whether a function that comes to a loop of a solver calls another before that alone."""
        course, files = self._course((by,)), self._files(Level(found, frozenset()))
        beside = [self._all(places, files) for places in (*course.inside, course.after)]
        is_before = found in self._all(course.before, files).functions
        return is_before and not any(found in r.functions or not r.whole for r in beside)

    def _files(self, level: Level) -> frozenset[str]:
        """The files from which one is come to that may name a class, or what its objects are kept under."""
        return self._recall(self._among, level, lambda: self._files_of(level))

    def _files_of(self, level: Level) -> frozenset[str]:
        top = self.known.top
        naming = [path for word in sorted(level.names) for path in self.modules.with_word(top, word)]
        return self.modules.and_importers(top, [level.owner.path, *naming])

    def _touches(self, reached: Reach, level: Level) -> bool:
        return level.owner in reached.classes or not level.names.isdisjoint(reached.names)

    # -- downwards ----------------------------------------------------------------------------------------------------

    def _all(self, places: Iterable[tuple[Mention, Reach]], among: Container[str] | None = None) -> Reach:
        """What places may come to. among: the only files of which what they do matters; None for all."""
        out = Reach()
        for _, reached in places:
            out.add(reached)
        waiting = list(out.functions)
        while waiting:
            if len(out.functions) > MOST:
                out.whole = False
                break
            at = waiting.pop()
            for _, reached in self._read(at) if among is None or at.path in among else ():
                waiting += [f for f in reached.functions if f not in out.functions]
                out.add(reached)
        return out

    def _read(self, found: Definition) -> Sequence[tuple[Mention, Reach]]:
        """What a function reads, and those inside it, with what each place calls or names itself."""
        return self._recall(self._reads, found, lambda: list(self._read_by(found)))

    def _read_by(self, found: Definition) -> Iterator[tuple[Mention, Reach]]:
        held = self.modules.mentions(found.path)
        for by in held.within.get(unit_of(found.name), ()) if held is not None else ():
            if held is not None and (by == found.name or by.startswith(f"{found.name}.<locals>.")):
                for m in held.by_function[by]:
                    if m.role not in SILENT:
                        yield m, self._found_at(Definition(found.path, by), m)

    def _found_at(self, by: Definition, m: Mention) -> Reach:
        out = Reach()
        parts = [p for p in m.text.split(".") if p not in ("self", "cls", "super", "?", "")]
        out.names.update(parts)
        if m.role == "through":
            return out
        summary = self.modules.summary(by.path)
        name = summary.resolve(m.text, by.name) if summary is not None else None
        if name is not None:
            found = None if name.startswith("mlx.") else self.modules.resolve(by.path, name)
            if found is not None and self.modules.class_(found) is not None:
                if m.role in ("call", "kept"):
                    self._object(found, out, "__init__")
                out.classes[found] = None
            elif found is not None and self.modules.function(found) is not None:
                out.functions[found] = None
            return out
        head, *rest = m.text.split(".")
        if head in ("self", "cls", "super"):
            owner = self.known.owner(by)
            holders = [owner] if owner is not None else []
        else:
            holders = list(dict.fromkeys(self._of_name(by, head)))
            if not rest:
                for h in holders:
                    self._object(h, out, "__call__")
                for n in self._bound(by, m):
                    reached = self._found_at(by, n)
                    if m.role == "call" or any(map(self._makes_functions, reached.functions)):
                        out.add(reached)
        for part in rest[:-1]:
            holders = list(dict.fromkeys(c for h in holders for c in self._kept(h, part)))
        for h in holders if rest else ():
            method = self.modules.method(h, rest[-1])
            if method is not None:
                out.functions[method] = None
                if head != "self" or len(rest) > 1:
                    out.classes[h] = None
            for c in self._kept(h, rest[-1]):
                self._object(c, out, "__call__")
        return out

    def _makes_functions(self, found: Definition) -> bool:
        """Whether a function holds others, such as one that it returns."""
        summary = self.modules.summary(found.path)
        return summary is not None and any(f.startswith(f"{found.name}.<locals>.") for f in summary.functions)

    def _object(self, owner: Definition, out: Reach, method: str) -> None:
        out.classes[owner] = None
        found = self.modules.method(owner, method)
        if found is not None:
            out.functions[found] = None

    def _of_name(self, by: Definition, name: str) -> Iterator[Definition]:
        """The classes that the annotation of a parameter names."""
        outer = by.name
        while True:
            function = self.modules.function(Definition(by.path, outer))
            for p in function.parameters if function is not None else ():
                if p.name == name and p.annotation:
                    yield from self._annotated(by.path, p.annotation)
            if ".<locals>." not in outer:
                return
            outer = outer.rpartition(".<locals>.")[0]

    def _kept(self, holder: Definition, name: str) -> Iterator[Definition]:
        """The classes that an attribute may be of: by what is stored there, many or one, or by its annotation."""
        for part in self.known.parts(holder):
            if part.kept == name and part.made is not None:
                yield part.made
        for at in self.modules.lineage(holder)[0]:
            held, said = self.modules.class_(at), self.modules.mentions(at.path)
            stated = held.fields.get(name) if held is not None else None
            if stated is not None and stated.annotation:
                yield from self._annotated(at.path, stated.annotation)
            for by, value in said.stored.get(name, ()) if said is not None else ():
                for way in _ways(value) if by.startswith(f"{at.name}.") else ():
                    if isinstance(way, ast.Name):
                        yield from self._of_name(Definition(at.path, by), way.id)
                    elif isinstance(way, ast.Call):
                        yield from self._made(Definition(at.path, by), dotted(way.func))

    def _made(self, by: Definition, name: str | None) -> Iterator[Definition]:
        """The class that is called so, or those that the annotation of what a function returns names."""
        found = self._resolved(by, name)
        function = None if found is None else self.modules.function(found)
        if found is not None and self.modules.class_(found) is not None:
            yield found
        elif found is not None and function is not None and function.returns:
            yield from self._annotated(found.path, function.returns)

    def _annotated(self, path: str, annotation: str) -> Iterator[Definition]:
        for word in annotation.replace("|", " ").replace("[", " ").replace("]", " ").replace(",", " ").split():
            found = self.modules.resolve(path, word.strip("\"'"))
            if found is not None and self.modules.class_(found) is not None:
                yield found

    def _bound(self, by: Definition, m: Mention) -> Iterator[Mention]:
        """What a local name is, that is called, or handed on in a loop: the names in the expression which it is bound
        to."""
        held = self.modules.mentions(by.path)
        if held is None or not (m.role == "call" or (m.role == "named" and m.loops)):
            return
        outer = by.name
        while True:
            for value in held.bound.get(outer, {}).get(m.text, ()):
                if value is not None:
                    for n in held.by_function.get(outer, ()):
                        if _is_on(value, n.line) and n.text != m.text and n.role not in SILENT:
                            yield n
            if ".<locals>." not in outer:
                return
            outer = outer.rpartition(".<locals>.")[0]


def _is_on(value: ast.expr, line: int) -> bool:
    return value.lineno == line


def _ways(value: ast.expr | None) -> Iterator[ast.expr]:
    """The values one of which an expression is: `given or Default()`."""
    match value:
        case ast.BoolOp(values=values):
            yield from (way for v in values for way in _ways(v))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*_ways(body), *_ways(orelse))
        case ast.expr():
            yield value
