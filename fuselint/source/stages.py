"""Whether a function prepares what a solver then refines: it runs once for many steps of another model.

A pipeline encodes a prompt, and then puts noise through a large model some ten to fifty times. From a function the
classes that hold its objects are followed upwards to what drives such a loop; from there its calls downwards. What is
called before the loop, in no other loop, and never in it or after it, is worth little beside it. Calls that can't be
followed count by the names that they speak of; where nothing is known, a function prepares nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fuselint.source.mentions import Loop, Mention
from fuselint.source.modules import Definition
from fuselint.source.project import MODULE

if TYPE_CHECKING:
    from fuselint.source.frequency import Frequencies

MOST = 600
"""Functions that are looked through for one question, at most."""

HIGHEST = 8
"""Classes inside one another, and functions that make them, at most."""

SILENT = frozenset({"type", "import", "string", "exported", "base"})
"""Mentions that call nothing."""


@dataclass
class Reach:
    """What some code may run: functions, classes whose objects it calls, and all names on the way."""

    functions: set[Definition] = field(default_factory=set)
    classes: set[Definition] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def add(self, other: Reach) -> None:
        self.functions |= other.functions
        self.classes |= other.classes
        self.names |= other.names


@dataclass(frozen=True, slots=True)
class Level:
    """A class, and the attributes and local names under which what is above it keeps its objects."""

    owner: Definition
    kept: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Drive:
    """The loop of a solver in a function, or a call that hands a function to one; what its rounds read."""

    by: Definition
    loop: Loop
    body: tuple[Mention, ...] = field(compare=False)


class Stages:
    """Of one package; `known` says what classes keep."""

    def __init__(self, known: Frequencies) -> None:
        self.known, self.modules = known, known.modules
        self._prepares: dict[Definition, bool] = {}
        self._objects: dict[Definition, bool | None] = {}
        self._ways: dict[tuple[Definition, frozenset[Definition]], list[int]] = {}
        self._steps: dict[int, tuple[Mention, Reach]] = {}  # by identity: to compare them takes long
        self._read: dict[Definition, list[Mention]] = {}
        self._drives: dict[Definition, list[_Drive]] = {}
        self._below: dict[Definition, Reach] = {}

    def prepares(self, found: Definition) -> bool:
        """Whether a function runs only before the steps of a solver, once for all of them."""
        while "<locals>" in found.name:
            found = Definition(found.path, found.name.partition(".<locals>.")[0])
        if found not in self._prepares:
            self._prepares[found] = self._of_function(found, (), frozenset()) is True
        return self._prepares[found]

    # -- upwards ------------------------------------------------------------------------------------------------------

    def _of_function(self, found: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        """The same for a function; levels: the classes below it, the lowest first, that it makes objects of."""
        owner = self.known.owner(found)
        if found in seen or len(seen) > HIGHEST:
            return False
        seen |= {found}
        if self._drives_below([found]):
            return bool(levels) and self._is_before([found], levels)
        if (
            owner is not None
            and not levels
            and self._has_objects(owner)
            and not self._drives_below(self._methods(owner))
        ):
            if owner not in self._objects:
                self._objects[owner] = self._of_class(owner, (), seen)
            return self._objects[owner]
        return self._of_callers(found, levels, seen)

    def _of_callers(self, found: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        answers: list[bool | None] = []
        for path, m in self._callers(found):
            if Definition(path, m.by) == found:
                continue
            if m.role not in ("call", "kept") or m.by == MODULE:
                return False
            by = Definition(path, m.by)
            named = (*levels[:-1], self._named(path, m, levels[-1])) if levels else levels
            owner = self.known.owner(by)
            if levels and owner is not None and self._drives_below(self._methods(owner)):
                answers.append(self._is_before(self._methods(owner), named))
            elif levels and owner is not None and m.role == "kept" and by.name.endswith(".__init__"):
                answers.append(self._of_class(owner, named, seen))
            elif not levels and self._drives_below([by]):
                answers.append(self._is_called_before(by, found))
            else:
                answers.append(self._of_function(by, named, seen))
            if answers[-1] is False:
                return False
        if levels and not answers and found.name.endswith(".__init__"):
            return self._is_used_once(self.known.owner(found), levels)
        return any(answers) or (None if answers else False)

    def _of_class(self, owner: Definition, levels: tuple[Level, ...], seen: frozenset[Definition]) -> bool | None:
        """The same for the methods of the objects of a class, which hold those of the levels below."""
        if owner in seen or len(seen) > HIGHEST or self._repeats(owner):
            return False
        seen |= {owner}
        answers: list[bool | None] = []
        for path, m in self.known.mentioned(owner):
            if m.role == "base":
                answers.append(self._of_class(Definition(path, m.inside), levels, seen))
            elif m.role in ("call", "kept"):
                by = Definition(path, m.by)
                if m.by == MODULE:
                    return False
                answers.append(
                    self._of_maker(by, path, m, (*levels, self._named(path, m, Level(owner, frozenset()))), seen)
                )
            elif m.role not in SILENT | {"through"}:
                return False
            if answers and answers[-1] is False:
                return False
        return any(answers) or (None if answers else False)

    def _of_maker(
        self, by: Definition, path: str, m: Mention, levels: tuple[Level, ...], seen: frozenset[Definition]
    ) -> bool | None:
        """The same for the objects that a function makes."""
        holder = self.known.owner(by)
        if holder is not None and (m.role == "kept" or by.name.endswith(".__init__")):
            if self._drives_below(self._methods(holder)):
                return self._is_before(self._methods(holder), levels)
            return self._of_class(holder, levels, seen)
        return self._of_function(by, levels, seen)

    def _is_used_once(self, top: Definition | None, levels: tuple[Level, ...]) -> bool | None:
        """None where a class that comes to no solver's loop uses what it holds, and in no loop: that says nothing."""
        below = self._below_of(self._methods(top)) if top is not None else Reach()
        for f in below.functions:
            for m in self._mentions(f):
                if m.loops and self._touches(self._reach(f, m), levels[-1]):
                    return False
        return None if below.functions else False

    def _has_objects(self, owner: Definition) -> bool:
        held = self.modules.class_(owner)
        return held is not None and (held.is_module or any(m.role == "kept" for _, m in self.known.mentioned(owner)))

    def _methods(self, owner: Definition) -> list[Definition]:
        held = self.modules.class_(owner)
        return [Definition(owner.path, name) for name in held.methods.values()] if held is not None else []

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
        names = {m.kept} if m.kept else set()
        held = self.modules.mentions(path)
        if held is not None:
            for attribute, stores in held.handed.items():
                names |= {attribute for by, value in stores if by == m.by and _is_on(value, m.line)}
            for name, values in held.bound.get(m.by, {}).items():
                names |= {name for value in values if value is not None and _is_on(value, m.line)}
            for attribute, stores in held.handed.items():
                names |= {attribute for by, v in stores if by == m.by and isinstance(v, ast.Name) and v.id in names}
        return Level(level.owner, level.kept | names)

    def _repeats(self, owner: Definition) -> bool:
        """Whether the methods of a class run again and again what they hold, other than one layer after another."""
        for method in self._methods(owner):
            held = self.modules.mentions(method.path)
            for loop in held.loops if held is not None else ():
                if loop.by == method.name and self.known.is_driving(method, loop):
                    return True
        return False

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _drives_below(self, functions: Sequence[Definition]) -> list[_Drive]:
        """The loops of solvers that these functions come to."""
        below = self._below_of(functions)
        return [d for f in sorted(below.functions, key=str) for d in self._own_drives(f)]

    def _own_drives(self, found: Definition) -> list[_Drive]:
        if found not in self._drives:
            self._drives[found] = []
            held = self.modules.mentions(found.path)
            own = self._mentions(found)
            loops = [loop for loop in held.loops if loop.by == found.name] if held is not None else []
            loops = [loop for loop in loops if loop.steps or self._steps_by_call(found, loop, own)]
            drives = [_Drive(found, loop, tuple(m for m in own if loop in m.loops)) for loop in loops]
            drives += self._handed(found, own)
            self._drives[found] = [d for d in drives if self._runs_a_model(d)]
        return self._drives[found]

    def _steps_by_call(self, found: Definition, loop: Loop, own: Sequence[Mention]) -> bool:
        """Whether a loop hands its value to a function that takes a step."""
        for m in own if loop.by_call else ():
            if m.role == "call" and m.text in loop.by_call and loop in m.loops:
                for f in self._reach(found, m).functions:
                    held = self.modules.mentions(f.path)
                    if held is not None and f.name in held.steps:
                        return True
        return False

    def _handed(self, found: Definition, own: Sequence[Mention]) -> Iterator[_Drive]:
        """`solve(step, x)`, where solve has the loop, and calls what it is given."""
        for m in own:
            for solver in self._reach(found, m).functions if m.role == "call" and m.given else ():
                held, function = self.modules.mentions(solver.path), self.modules.function(solver)
                given = {p.name for p in function.parameters} if function is not None else set()
                inner = held.by_function.get(solver.name, ()) if held is not None else ()
                if any(n.role == "call" and n.text in given and any(at.steps for at in n.loops) for n in inner):
                    names = {v.id for v in (m.given or {}).values() if isinstance(v, ast.Name)}
                    inside = [
                        n
                        for name in names
                        for n in self._mentions(Definition(found.path, f"{found.name}.<locals>.{name}"))
                    ]
                    yield _Drive(found, Loop(found.name, m.line, m.line), tuple(inside))

    def _runs_a_model(self, drive: _Drive) -> bool:
        reached = self._all(drive.by, drive.body)
        return any(self.known.is_model(c) for c in reached.classes)

    def _is_before(self, functions: Sequence[Definition], levels: tuple[Level, ...]) -> bool | None:
        """Whether something that is kept below is used before a loop of a solver, and not in it, nor after it."""
        below = self._below_of(functions)
        if len(below.functions) > MOST:
            return False
        drives = self._drives_below(functions)
        for level in reversed(levels):
            inside = [self._all(d.by, d.body) for d in drives]
            if not any(self._touches(r, level) for r in inside):
                return self._is_used_before(below, drives, level)
            if not all(level.owner in r.classes or not self._touches(r, level) for r in inside):
                return False  # what of it is called in the loop can't be told
        return False

    def _is_used_before(self, below: Reach, drives: Sequence[_Drive], level: Level) -> bool | None:
        """None where no use of it is seen."""
        driving = frozenset(d.by for d in drives)
        used = False
        for f in below.functions:
            if any(m.loops and self._calls(f, m, level) for m in self._mentions(f)):
                return False  # it may be run as often there: a model that writes the prompt anew
            ways = self._ways_to(f, drives)
            for m in self._mentions(f) if ways else ():
                reached = self._all(f, [m])
                if reached.functions & driving or not self._touches(reached, level):
                    continue
                if m.line > min(ways) or any(not loop.later for loop in m.loops):
                    return False
                used = True
        return used or None

    def _calls(self, by: Definition, m: Mention, level: Level) -> bool:
        """Whether a place calls an object itself, or what may be one by its name."""
        named = m.text.rpartition(".")[2] in level.kept
        return m.role == "call" and (named or level.owner in self._reach(by, m).classes)

    def _ways_to(self, found: Definition, drives: Sequence[_Drive]) -> list[int]:
        """The lines of a function where such loops begin, or from where one is come to."""
        key = (found, frozenset(d.by for d in drives))
        if key not in self._ways:
            ways = [m.line for m in self._mentions(found) if self._below_of_mention(found, m).functions & key[1]]
            self._ways[key] = ways + [d.loop.first for d in drives if d.by == found]
        return self._ways[key]

    def _is_called_before(self, by: Definition, found: Definition) -> bool:
        """Whether a function that comes to a loop of a solver calls another before that alone."""
        drives = self._drives_below([by])
        if any(found in self._all(d.by, d.body).functions for d in drives):
            return False
        ways = self._ways_to(by, drives)
        calls = [m for m in self._mentions(by) if found in self._reach(by, m).functions]
        return bool(calls and ways) and all(m.line < min(ways) and not m.loops for m in calls)

    def _touches(self, reached: Reach, level: Level) -> bool:
        return level.owner in reached.classes or bool(level.kept & reached.names)

    # -- downwards ----------------------------------------------------------------------------------------------------

    def _below_of(self, functions: Sequence[Definition]) -> Reach:
        out = Reach()
        for f in functions:
            if f not in self._below:
                self._below[f] = self._all(f, self._mentions(f))
                self._below[f].functions.add(f)
            out.add(self._below[f])
        return out

    def _below_of_mention(self, by: Definition, m: Mention) -> Reach:
        return self._below_of(sorted(self._reach(by, m).functions, key=str))

    def _all(self, by: Definition, places: Sequence[Mention]) -> Reach:
        """What places of a function may come to."""
        out, waiting, seen = Reach(), [(by, m) for m in places], set[Definition]()
        while waiting and len(seen) <= MOST:
            at, m = waiting.pop()
            reached = self._reach(at, m)
            out.add(reached)
            for f in reached.functions - seen:
                seen.add(f)
                waiting += [(f, n) for n in self._mentions(f)]
        return out

    def _mentions(self, found: Definition) -> Sequence[Mention]:
        """What a function reads, and those inside it."""
        if found not in self._read:
            held = self.modules.mentions(found.path)
            inner = held.by_function.items() if held is not None else ()
            self._read[found] = [
                m
                for by, all_ in inner
                if by == found.name or by.startswith(f"{found.name}.<locals>.")
                for m in all_
                if m.role not in SILENT
            ]
        return self._read[found]

    def _reach(self, by: Definition, m: Mention) -> Reach:
        """What a place calls or names itself."""
        if id(m) not in self._steps:
            self._steps[id(m)] = m, Reach()
            self._steps[id(m)] = m, self._found_at(Definition(by.path, m.by), m)
        return self._steps[id(m)][1]

    def _found_at(self, by: Definition, m: Mention) -> Reach:
        out = Reach()
        parts = [p for p in m.text.split(".") if p not in ("self", "cls", "super", "?", "")]
        out.names.update(parts)
        summary = self.modules.summary(by.path)
        name = summary.resolve(m.text, by.name) if summary is not None else None
        if name is not None:
            found = None if name.startswith("mlx.") else self.modules.resolve(by.path, name)
            if found is not None and self.modules.class_(found) is not None:
                if m.role in ("call", "kept"):
                    self._object(found, out, "__init__")
                out.classes.add(found)
            elif found is not None and self.modules.function(found) is not None:
                out.functions.add(found)
            return out
        head, *rest = m.text.split(".")
        if head in ("self", "cls", "super"):
            owner = self.known.owner(by)
            holders = {owner} if owner is not None else set()
        else:
            holders = set(self._of_name(by, head))
            if not rest and m.role != "through":
                for h in holders:
                    self._object(h, out, "__call__")
                for n in self._bound(by, m):
                    out.add(self._reach(by, n))
        for part in rest[:-1]:
            holders = {c for h in holders for c in self._kept(h, part)}
        for h in holders if rest else ():
            method = self.modules.method(h, rest[-1])
            if method is not None:
                out.functions.add(method)
                if head != "self" or len(rest) > 1:
                    out.classes.add(h)
            for c in self._kept(h, rest[-1]) if m.role != "through" else ():
                self._object(c, out, "__call__")
        return out

    def _object(self, owner: Definition, out: Reach, method: str) -> None:
        out.classes.add(owner)
        found = self.modules.method(owner, method)
        if found is not None:
            out.functions.add(found)

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
                if isinstance(value, ast.Name) and by.startswith(f"{at.name}."):
                    yield from self._of_name(Definition(at.path, by), value.id)

    def _annotated(self, path: str, annotation: str) -> Iterator[Definition]:
        for word in annotation.replace("|", " ").replace("[", " ").replace("]", " ").replace(",", " ").split():
            found = self.modules.resolve(path, word.strip("\"'"))
            if found is not None and self.modules.class_(found) is not None:
                yield found

    def _bound(self, by: Definition, m: Mention) -> Iterator[Mention]:
        """What a local name is, that is called: the names in the expression which it is bound to."""
        held = self.modules.mentions(by.path)
        if held is None or m.role != "call":
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
    return value.lineno <= line <= (value.end_lineno or value.lineno)
