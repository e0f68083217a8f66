"""What an edit of a file changes for others: the leaves of `notes` that are not what they were.

Others read of a file which names it binds, calls, stores and mentions: of most edits inside a function they see
nothing. What is asked for is worked out, of the functions whose text is another, or a name in it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import os
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from fuselint.errors import UnreadableFile
from fuselint.graph.dtypes import FLOAT
from fuselint.package import reads_of
from fuselint.source.links import Call, Links
from fuselint.source.mentions import EVERY as EVERY_KEY
from fuselint.source.mentions import Loop, Mention, Mentions
from fuselint.source.modules import (
    compiles_more,
    differentiates,
    functions_naming,
    imports_of,
    links_of,
    mentions_in,
    modules_of,
    names_of,
    rounds_in,
    summary_in,
    words_of,
)
from fuselint.source.notes import (
    ANYTHING,
    CALLS,
    COMPILING,
    FILES,
    IMPORTS,
    LINKS,
    MENTIONS,
    NAMES,
    NAMING,
    OUTLINE,
    RENAMED,
    ROUNDS,
    SHOWN,
    SOLVING,
    SUMMARY,
    TEXT,
    file_of,
    folder_of,
    key_in,
    kind_of,
    mentions_of,
    of_file,
    split,
    word_in,
)
from fuselint.source.project import MODULE, ModuleSummary, unit_of
from fuselint.source.screen import parse
from fuselint.source.spans import FunctionSpan
from fuselint.source.stepping import solver_loops
from fuselint.source.text import FileText, read
from fuselint.source.watched import COUNT, COUNTS, EVERY, KEYS, MAPS, REST, SETS, SITES, of_name, of_stores
from fuselint.world import Changes

UNSEEN = {FunctionSpan: frozenset({"start", "end"})}
"""Fields that don't matter to other files."""

LINES = frozenset({"line", "header"})
"""Fields of summaries and links that are lines: they only matter to who shows them."""

OUTSIDE_OUTLINES = LINES | {"local"}
"""Fields that nobody who asks for an outline reads: what a name stands for in a function, its mentions tell."""

OUTSIDE_OUTLINES_PARTS = frozenset({"lines", "calls", "references", *COUNTS})
"""Parts of summaries that no outline has."""

_WORD = re.compile(r"\w+")


@dataclasses.dataclass
class Leaves:
    """What changed: leaves, all leaves of some packages and of some files, and those of others that an edit changes."""

    single: set[str] = dataclasses.field(default_factory=set)
    folders: set[str] = dataclasses.field(default_factory=set)
    files: set[str] = dataclasses.field(default_factory=set)
    edits: dict[str, Edit] = dataclasses.field(default_factory=dict)

    def __contains__(self, leaf: object) -> bool:
        assert isinstance(leaf, str)
        if leaf in self.single:
            return True
        if self.folders and folder_of(leaf) in self.folders:
            return True
        if not leaf.endswith(self._ends):
            return False
        path = file_of(leaf)
        edit = self.edits.get(path or "")
        return path in self.files or (edit is not None and edit.changes(leaf))

    def touches(self, about: str) -> bool:
        """Whether leaves about a file or folder may be among them."""
        return about in self.files or about in self.edits or about in self.folders or about in self._about

    @cached_property
    def _about(self) -> frozenset[str]:
        return frozenset(split(leaf)[1] for leaf in self.single)

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        return (*self.files, *self.edits)


class Edit:
    """A file with a text before and another after. Raises ValueError where it can't be told what differs."""

    def __init__(self, path: str, before: str, after: str) -> None:
        self.path, self.texts = path, (before, after)
        old, new = (summary_in(path, text) for text in self.texts)
        if old is None or new is None:
            raise ValueError(f"{path} has a syntax error")
        self.summaries = old, new
        if [f for f in old.functions if f in new.functions] != [f for f in new.functions if f in old.functions]:
            raise ValueError("other lines come first")

    def changes(self, leaf: str) -> bool:
        """Whether a leaf about the file is another, or can't be told."""
        try:
            if leaf.startswith((NAMING, RENAMED)):
                return self._by_key(leaf, 0) != self._by_key(leaf, 1)
            if leaf.startswith((SUMMARY, OUTLINE, SHOWN)):
                return leaf in self.said
            if leaf.startswith(TEXT):
                unit = key_in(leaf)
                return self._text(unit, 0) != self._text(unit, 1) and self._written(unit, 0) != self._written(unit, 1)
            if leaf.startswith((CALLS, LINKS)):
                return leaf in self.linked
            if leaf.startswith(ROUNDS):
                return self._rounds(key_in(leaf), 0) != self._rounds(key_in(leaf), 1)
            if leaf.startswith(MENTIONS):
                return leaf in self.mentioned
            if leaf.startswith(NAMES):
                return reads_of(self.path, self.texts[0]) != reads_of(self.path, self.texts[1])
            return True
        except (ValueError, RecursionError, MemoryError):
            return True

    def _by_key(self, leaf: str, which: int) -> object:
        """What a text has by a key."""
        summary, key = self.summaries[which], key_in(leaf)
        return functions_naming(summary, self.texts[which], key) if leaf.startswith(NAMING) else names_of(summary, key)

    def _rounds(self, unit: str, which: int) -> object:
        """Where the rounds of solvers begin in a function."""
        return rounds_in(self.summaries[which], self.texts[which], unit)

    # -- functions ----------------------------------------------------------------------------------------------------

    def _text(self, unit: str, which: int) -> str | None:
        """The text of a function; None where there is none."""
        function = self.summaries[which].functions.get(unit)
        return None if function is None else self.texts[which][function.span.start : function.span.end]

    def _written(self, unit: str, which: int) -> object:
        """The text of a function without comments, empty lines and what its docstring says of no dtype."""
        text = self._text(unit, which)
        if text is None:
            return None
        try:
            found = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except (tokenize.TokenError, SyntaxError):  # of a lambda in brackets
            return text
        found = [t for t in found if t.type not in (tokenize.COMMENT, tokenize.NL)]
        written = [(t.type, t.string, t.start[1]) for t in found]
        prose = _prose(found)
        if prose is not None:
            written[prose : prose + 2] = [(tokenize.STRING, "", found[prose].start[1])]  # with the end of its line
        return written

    @cached_property
    def alike(self) -> frozenset[str]:
        """The functions of a module or class of which the text is the same, and what each name stands for in there."""
        old, new = self.summaries
        if old.stars != new.stars:
            return frozenset()
        others = _others(old.imports, new.imports)
        for by in old.function_imports.keys() | new.function_imports.keys():
            others |= _others(old.function_imports.get(by, {}), new.function_imports.get(by, {}))
        others |= (old.bound ^ new.bound) | (old.unclear ^ new.unclear)
        qualnames = (old.functions.keys() ^ new.functions.keys()) | (old.classes.keys() ^ new.classes.keys())
        imports = [{line for line in text.splitlines() if "import" in line} for text in self.texts]
        words = {word for name in (*others, *qualnames, *(imports[0] ^ imports[1])) for word in _WORD.findall(name)}
        units = {unit_of(q) for q in old.functions} & {unit_of(q) for q in new.functions}
        return frozenset(
            u
            for u in units
            if (text := self._text(u, 0)) is not None
            and text == self._text(u, 1)
            and words.isdisjoint(_WORD.findall(text))
        )

    def _start(self, unit: str, which: int) -> int:
        return self.summaries[which].functions[unit].span.line

    # -- summaries ----------------------------------------------------------------------------------------------------

    @cached_property
    def said(self) -> frozenset[str]:
        """The leaves about what summaries say that are others."""
        return frozenset(of_file(start, unit, self.path) for start, unit in self._said())

    def _said(self) -> Iterator[tuple[str, str]]:
        old, new = self.summaries
        for name in (*MAPS, *COUNTS):
            mark = COUNT if name in COUNTS else ""
            starts = [SHOWN, SUMMARY, OUTLINE] if name not in OUTSIDE_OUTLINES_PARTS else [SHOWN, SUMMARY]
            starts = starts if name != "lines" else [SHOWN]
            held = getattr(old, name), getattr(new, name)
            if list(held[0]) != list(held[1]):
                yield from ((start, f"{mark}{sign}{name}") for start in starts for sign in (KEYS, EVERY))
            for key in dict.fromkeys(chain(*held)):
                for start in starts:
                    if all(key in h for h in held) and self._is_said(start, name, key, 0) == self._is_said(
                        start, name, key, 1
                    ):
                        break  # who sees less sees no difference either
                    yield start, f"{mark}{unit_of(key)}"
                    yield start, f"{mark}{EVERY}{name}"
        for name in SETS:
            differing = getattr(old, name) ^ getattr(new, name)
            for start in (SHOWN, SUMMARY, OUTLINE) if differing else ():
                yield start, f"{EVERY}{name}"
                yield from ((start, unit_of(key)) for key in differing)
        for name in REST:
            for start, unseen in ((SHOWN, frozenset[str]()), (SUMMARY, LINES), (OUTLINE, OUTSIDE_OUTLINES)):
                if _Plain(unseen).of(getattr(old, name)) != _Plain(unseen).of(getattr(new, name)):
                    yield start, f"{EVERY}{name}"

    def _is_said(self, start: str, name: str, key: str, which: int) -> object:
        """What a summary says, as far as it is seen; what is shown has its lines, and the text of a function."""
        value = getattr(self.summaries[which], name)[key]
        if name != "functions":
            return _Plain({SHOWN: frozenset(), SUMMARY: LINES, OUTLINE: OUTSIDE_OUTLINES}[start]).of(value)
        unit = unit_of(key)
        shown = (value.span.line, self._text(unit, which)) if start == SHOWN else None
        if unit in self.alike:
            return value.redefined, shown
        return _Plain(OUTSIDE_OUTLINES if start == OUTLINE else LINES).of(value), shown

    # -- links --------------------------------------------------------------------------------------------------------

    @cached_property
    def linked(self) -> frozenset[str]:
        """The leaves about calls that are others."""
        links = [links_of(self.path, text) for text in self.texts]
        if links[0] is None or links[1] is None:
            raise ValueError(self.path)
        old, new = (dict(self._linked(found, i)) for i, found in enumerate(links) if found is not None)
        units = [unit for unit in dict.fromkeys([*old, *new]) if old.get(unit) != new.get(unit)]
        lines = [_lines_of(found) for found in links if found is not None]
        whole = [f"{LINKS}{self.path}"] if units or lines[0] != lines[1] else []
        return frozenset([*(of_file(CALLS, unit, self.path) for unit in [*units, *([EVERY] if units else [])]), *whole])

    def _linked(self, links: Links, which: int) -> Iterator[tuple[str, object]]:
        """What links say, by the unit that it is told by."""
        plain = _Plain(LINES)
        found: dict[str, list[object]] = {}

        def call(c: Call) -> object:
            unit = unit_of(c.by)
            if unit in self.alike:
                return c.by, c.line - self._start(unit, which), c.called.last, c.within
            return plain.of(c)

        for name in ("calls", "returns", "variables", "flags"):
            for key, value in getattr(links, name).items():
                unit = unit_of(key if isinstance(key, str) else key[0])
                if unit not in self.alike:
                    found.setdefault(unit, []).append((name, key, plain.of(value)))
        yield from found.items()
        for name, stores in links.stores.items():
            told = [(s.by, len(stores)) if unit_of(s.by) in self.alike else plain.of(s) for s in stores]
            yield of_stores(name), told
        handed_on = {e.last for _, e in links.mentions}
        for name in dict.fromkeys([*links.calls_by_name, *sorted(handed_on)]):
            yield of_name(name), ([call(c) for c in links.calls_by_name.get(name, ())], name in handed_on)
        sites = [links.compiled, links.differentiated]
        yield SITES, (plain.of(sites), [call(c) for how in ("compiled", "differentiated") for c in links.within(how)])
        mentions = [(by, e.last) if unit_of(by) in self.alike else (by, plain.of(e)) for by, e in links.mentions]
        yield EVERY, (mentions, list(links.calls), list(links.returns), list(links.stores), list(links.variables))

    # -- mentions -----------------------------------------------------------------------------------------------------

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """The leaves about places that read names that are others, or are not there any more."""
        found = [mentions_in(self.path, text) for text in self.texts]
        if found[0] is None or found[1] is None:
            raise ValueError(self.path)
        return frozenset(mentions_of(self.path, part) for part in self._mentioned(found[0], found[1]))

    def _mentioned(self, old: Mentions, new: Mentions) -> Iterator[str]:
        files = [FileText(self.path, text) for text in self.texts]
        placed = [_Placed.of_file(f, s, self.alike) for f, s in zip(files, self.summaries, strict=True)]
        for (name, held), now in zip(old.parts().items(), new.parts().values(), strict=True):
            if list(held) != list(now):
                yield f"{name} {EVERY_KEY}"
            for key in held.keys() | now.keys():
                if name in BY_FUNCTION and unit_of(key) in self.alike:
                    continue
                parts = zip(placed, (held, now), strict=True)
                before, after = (at.part(name, key, part[key]) if key in part else None for at, part in parts)
                if before != after:
                    yield f"{name} {key}"


BY_FUNCTION = frozenset({"suites", "by_function", "within", "assigned", "bound", "handed"})
"""Parts of mentions whose keys are functions."""


def _prose(tokens: Sequence[tokenize.TokenInfo]) -> int | None:
    """Which token of a function is its docstring, if that is a plain one that names no dtype: of docstrings, nothing
    else is read (`graph.documented`). That there is one still counts."""
    at = next((i for i, t in enumerate(tokens) if t.type == tokenize.INDENT), None)
    if at is None or [t.type for t in tokens[at + 1 : at + 3]] != [tokenize.STRING, tokenize.NEWLINE]:
        return None
    text = tokens[at + 1].string
    is_plain = text[0] in "\"'" and "\\" not in text  # an f-string computes, an escape hides what is named
    return at + 1 if is_plain and not any(dtype in text for dtype in FLOAT) else None


def _others(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def _lines_of(links: Links) -> list[tuple[str, int]]:
    """The lines that links have."""
    calls: Iterable[Call] = chain.from_iterable(links.calls.values())
    return [(c.by, c.line) for c in calls] + [(s.by, s.line) for s in (*links.compiled, *links.differentiated)]


def words_changed(path: str, before: str, after: str) -> Iterator[str]:
    """The leaves about packages that are others with a text of a file than they were with another."""
    old, new = (text.encode("utf-8", "replace") for text in (before, after))
    folders = list(_above(path))
    for word in words_of(old) ^ words_of(new):
        yield from (word_in(folder, word) for folder in folders)
    if (imports_of(old), modules_of(old)) != (imports_of(new), modules_of(new)):
        yield from (f"{IMPORTS}{folder}" for folder in folders)
    if (compiles_more(old), differentiates(old)) != (compiles_more(new), differentiates(new)):
        yield from (f"{COMPILING}{folder}" for folder in folders)
    if bool(solver_loops(old)) != bool(solver_loops(new)):
        yield from (f"{SOLVING}{folder}" for folder in folders)


def seen(changes: Changes, texts: Mapping[str, str | None]) -> Leaves:
    """The leaves that are others after some changes. texts: of each changed file before, None where nobody knows."""
    out = Leaves({ANYTHING})
    for path, known in changes.files.items():
        before, after = texts[path], None
        with contextlib.suppress(UnreadableFile):
            after = read(path).text
        was, is_there = known is not None, os.path.lexists(path)
        if (was and before is None) or (is_there and after is None):  # nobody knows which words are in it
            out.folders.update(_above(path))
        else:
            out.single.update(words_changed(path, before or "", after or ""))
        try:
            if before is None or after is None:
                raise ValueError(path)
            out.edits[path] = Edit(path, before, after)
        except (ValueError, RecursionError, MemoryError):
            out.files.add(path)
        if was != is_there:
            out.single.update(f"{FILES}{folder}" for folder in _above(path))
            if os.path.basename(path) == "__init__.py":
                out.folders.add(os.path.dirname(path))
    out.single.update(kind_of(path, kind) for path in changes.kinds for kind in ("file", "folder", ""))
    return out


def _above(path: str) -> Iterator[str]:
    """The folders that a path lies in."""
    above = os.path.dirname(path)
    while above != path:
        yield above
        path, above = above, os.path.dirname(above)


class _Plain:
    """Values without what doesn't matter to other files, so that equal ones are the same in all that does."""

    def __init__(self, unseen: frozenset[str] = frozenset()) -> None:
        self._unseen = unseen

    def of(self, value: Any) -> object:
        if isinstance(value, (str, int, float, bytes, complex, type(None))):
            return value if isinstance(value, str) else (type(value).__name__, repr(value))
        if isinstance(value, ast.AST):
            parts = [self.of(getattr(value, name, None)) for name in value._fields]
            line = self.line(value.lineno) if hasattr(value, "lineno") and not self._unseen else None
            return type(value).__name__, line, parts
        if dataclasses.is_dataclass(value):
            return self._fields(value)
        if isinstance(value, Mapping):
            return "map", [(self.of(k), self.of(v)) for k, v in value.items()]
        if isinstance(value, Sequence):
            return [self.of(v) for v in value]
        if isinstance(value, (set, frozenset)):
            return "set", sorted(repr(self.of(v)) for v in value)
        return repr(value)

    def _fields(self, value: Any) -> list[object]:
        unseen = UNSEEN.get(type(value), frozenset()) | self._unseen
        return [
            type(value).__name__,
            *(self.of(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in unseen),
        ]

    def line(self, line: int) -> int:
        return line


class _Placed(_Plain):
    """Mentions, with the lines that they have in their function, or in their statement of the module: in other files,
    lines are only held against others of the same function."""

    def __init__(self, summary: ModuleSummary, statements: Sequence[int], alike: frozenset[str]) -> None:
        super().__init__()
        self._summary, self._statements, self._alike = summary, statements, alike
        self._by, self._first = MODULE, 0

    @staticmethod
    def of_file(file: FileText, summary: ModuleSummary, alike: frozenset[str]) -> _Placed:
        """alike: functions that are the same in the text that it is held against: where in them is enough to tell."""
        return _Placed(summary, [s.lineno for s in parse(file).body], alike)

    def part(self, name: str, key: str, value: Any) -> object:
        """What a part of the mentions has by a key."""
        if name in ("by_name", "by_function"):
            return [self._mention(m) for m in value]
        if name == "suites":
            branches = [(self.of(loop), self._from(loop.by, loop.first, test)) for loop, test in value.branches]
            return [self.of(loop) for loop in value.loops], branches, [self.of(loop) for loop in value.handlers]
        if name == "stored":
            return [(by, self._stored(by, held)) for by, held in value]
        if name == "handed":
            return [(attribute, self._from(key, held.lineno, held)) for attribute, held in value]
        if name == "elements":
            return [(by, element, line - self._start(by, line)) for by, element, line in value]
        if name == "assigned":
            return [
                (n, [(line and line - self._start(key, line), self._from(key, line, tests)) for line, tests in held])
                for n, held in value.items()
            ]
        if name == "bound":
            return [(n, [self._from(key, getattr(v, "lineno", 0), v) for v in held]) for n, held in value.items()]
        return self.of(value)

    def line(self, line: int) -> int:
        return line - self._first

    def _mention(self, m: Mention) -> object:
        if unit_of(m.by) not in self._alike:
            return self.of(m)
        return m.by, m.line - self._start(m.by, m.line), m.name, m.text, m.role, m.kept, m.inside

    def _stored(self, by: str, held: ast.expr | None) -> object:
        line = getattr(held, "lineno", 0)
        return line and line - self._start(by, line) if unit_of(by) in self._alike else self._from(by, line, held)

    def _from(self, by: str, line: int, value: Any) -> object:
        """A value in a function, with its lines from the start of that on."""
        before = self._by, self._first
        self._by, self._first = by, self._start(by, line)
        try:
            return self.of(value)
        finally:
            self._by, self._first = before

    def _start(self, by: str, line: int) -> int:
        outermost = by.partition(".<locals>.")[0]
        if outermost in self._summary.functions:
            return self._summary.functions[outermost].span.line
        at = bisect_right(self._statements, line)
        return self._statements[at - 1] if at else 0

    def of(self, value: Any) -> object:
        plain = super().of(value)
        return (plain, self._target(value.id)) if isinstance(value, ast.Name) else plain

    def _target(self, name: str) -> str | None:
        """What a name stands for in the function that is looked at."""
        return self._summary.resolve(name, self._by)

    def _fields(self, value: Any) -> list[object]:
        if not isinstance(value, (Mention, Loop)):
            return super()._fields(value)
        before = self._by, self._first
        self._by = value.by
        self._first = self._start(value.by, value.line if isinstance(value, Mention) else value.first)
        try:
            lines = {"line", "first", "last"}
            parts = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            plain = [self.line(held) if name in lines else self.of(held) for name, held in parts]
            return [*plain, self._target(value.text.partition(".")[0])] if isinstance(value, Mention) else plain
        finally:
            self._by, self._first = before
