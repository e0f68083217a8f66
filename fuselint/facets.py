"""What an edit of a file changes for others: the leaves of `notes` that are not what they were.

Others read of a file which names it binds, calls, stores and mentions, and in which lines: of most edits inside a
function they see nothing.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import os
import tokenize
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuselint.errors import UnreadableFile
from fuselint.package import reads_of
from fuselint.source.mentions import EVERY, Loop, Mention
from fuselint.source.modules import (
    compiles_more,
    differentiates,
    functions_naming,
    imports_of,
    links_of,
    mentions_in,
    names_of,
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
    NAMES,
    NAMING,
    OUTLINE,
    RENAMED,
    SUMMARY,
    TEXT,
    WHOLE,
    file_of,
    folder_of,
    key_in,
    kind_of,
    mentions_of,
    of_file,
    word_in,
)
from fuselint.source.project import MODULE, ModuleSummary
from fuselint.source.screen import parse
from fuselint.source.spans import FunctionSpan
from fuselint.source.text import FileText, read
from fuselint.source.watched import said_of, unit_of
from fuselint.world import Changes

UNSEEN = {FunctionSpan: frozenset({"start", "end"})}
"""Fields that don't matter to other files."""

LINES = frozenset({"line", "header"})
"""Fields of summaries and links that are lines: who shows one rests on the text of the file."""

OUTSIDE_OUTLINES = LINES | {"local"}
"""Fields that nobody who asks for an outline reads: what a name stands for in a function, its mentions tell."""

UNSEEN_PARTS = ("lines",)
OUTSIDE_OUTLINES_PARTS = ("calls", "references", "attribute_reads", "names")
"""Parts of summaries that are lines, and such as no outline has."""

FACETS: dict[str, tuple[Callable[[str, str], object], bool]] = {
    LINKS: (links_of, True),
    CALLS: (links_of, False),
    NAMES: (reads_of, True),
}
"""What a file's text says, and whether with its lines."""


@dataclasses.dataclass
class Leaves:
    """What changed: leaves, and all leaves of some packages and of some files. texts: of other files, those before and
    after: what is kept by a key of them is looked at where somebody asks."""

    single: set[str] = dataclasses.field(default_factory=set)
    folders: set[str] = dataclasses.field(default_factory=set)
    files: set[str] = dataclasses.field(default_factory=set)
    texts: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)

    def __contains__(self, leaf: object) -> bool:
        assert isinstance(leaf, str)
        if leaf in self.single:
            return True
        if leaf.startswith((NAMING, RENAMED)) and (texts := self.texts.get(file_of(leaf) or "")) is not None:
            return _by_key(leaf, texts[0]) != _by_key(leaf, texts[1])
        return (bool(self.folders) and folder_of(leaf) in self.folders) or (
            bool(self.files) and file_of(leaf) in self.files
        )


def edited(path: str, before: str, after: str) -> Iterator[str]:
    """The leaves about a file that are others with a text of it than they were with another; of what is said of its
    places that read names, those that are not there any more, too."""
    yield path
    for start, (made, lines) in FACETS.items():
        if not _is_same(made(path, before), made(path, after), lines):
            yield f"{start}{path}"
    yield from _units_changed(path, before, after)
    yield from (mentions_of(path, part) for part in _mentions_changed(path, before, after))


def _by_key(leaf: str, text: str) -> object:
    """What a file has by a key."""
    summary = summary_in(file_of(leaf) or "", text)
    assert summary is not None, "who has a syntax error has changed in all"
    return functions_naming(summary, text, key_in(leaf)) if leaf.startswith(NAMING) else names_of(summary, key_in(leaf))


def _units_changed(path: str, before: str, after: str) -> Iterator[str]:
    """The leaves about units of a file that are others."""
    old, new = summary_in(path, before), summary_in(path, after)
    assert old is not None and new is not None, "a file with a syntax error has changed in all"
    if [f for f in old.functions if f in new.functions] != [f for f in new.functions if f in old.functions]:
        raise ValueError("other lines come first")
    for start, unseen, parts in (
        (SUMMARY, LINES, UNSEEN_PARTS),
        (OUTLINE, OUTSIDE_OUTLINES, (*UNSEEN_PARTS, *OUTSIDE_OUTLINES_PARTS)),
    ):
        plain = _Plain(unseen)
        said = [
            {u: [(w, plain.of(v)) for w, v in held if w.partition(" ")[0] not in parts] for u, held in s.items()}
            for s in (said_of(old), said_of(new))
        ]
        for unit in dict.fromkeys([*said[0], *said[1]]):
            if said[0].get(unit) != said[1].get(unit):
                yield of_file(start, unit, path)
    for unit in dict.fromkeys(map(unit_of, [*old.functions, *new.functions])):
        if _text_of(old, before, unit) != _text_of(new, after, unit):
            yield of_file(TEXT, unit, path)


def _text_of(summary: ModuleSummary, text: str, unit: str) -> object:
    """The text of a function, as far as it matters to other files."""
    function = summary.functions.get(unit)
    return None if function is None else _written(text[function.span.start : function.span.end])


def _written(text: str) -> object:
    """A text without comments and empty lines."""
    try:
        found = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):  # of a lambda in brackets
        return text
    return [(t.type, t.string, t.start[1]) for t in found if t.type not in (tokenize.COMMENT, tokenize.NL)]


def _mentions_changed(path: str, before: str, after: str) -> Iterator[str]:
    old, new = mentions_in(path, before), mentions_in(path, after)
    assert old is not None and new is not None, "a file with a syntax error has other words"
    if not _is_same(old.all, new.all) or not _is_same(
        (old.loops, old.branches, old.handlers), (new.loops, new.branches, new.handlers)
    ):
        yield WHOLE
    shown = _Placed.of_file(path, before), _Placed.of_file(path, after)
    for (name, held), now in zip(old.parts().items(), new.parts().values(), strict=True):
        if list(held) != list(now):
            yield f"{name} {EVERY}"
        for key in held.keys() | now.keys():
            parts = [s.part(name, key, p[key]) if key in p else None for s, p in zip(shown, (held, now), strict=True)]
            if parts[0] != parts[1]:
                yield f"{name} {key}"


def words_changed(path: str, before: str, after: str) -> Iterator[str]:
    """The leaves about packages that are others with a text of a file than they were with another."""
    old, new = (text.encode("utf-8", "replace") for text in (before, after))
    folders = list(_above(path))
    for word in words_of(old) ^ words_of(new):
        yield from (word_in(folder, word) for folder in folders)
    if imports_of(old) != imports_of(new):
        yield from (f"{IMPORTS}{folder}" for folder in folders)
    if (compiles_more(old), differentiates(old)) != (compiles_more(new), differentiates(new)):
        yield from (f"{COMPILING}{folder}" for folder in folders)


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
            if before is None or after is None or None in (mentions_in(path, before), mentions_in(path, after)):
                raise ValueError(path)
            out.single.update(edited(path, before, after))
            out.texts[path] = before, after
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


def _is_same(one: object, other: object, lines: bool = True) -> bool:
    plain = _Plain(frozenset() if lines else OUTSIDE_OUTLINES)
    return plain.of(one) == plain.of(other)


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

    def __init__(self, summary: ModuleSummary | None, statements: Sequence[int]) -> None:
        super().__init__()
        self._summary, self._statements = summary, statements
        self._by, self._first = MODULE, 0

    @staticmethod
    def of_file(path: str, text: str) -> _Placed:
        return _Placed(summary_in(path, text), [s.lineno for s in parse(FileText(path, text)).body])

    def part(self, name: str, key: str, value: Any) -> object:
        """What a part of the mentions has by a key."""
        if name in ("by_name", "by_function"):
            return [self.of(m) for m in value]
        if name == "stored":
            return [(by, self._from(by, getattr(held, "lineno", 0), held)) for by, held in value]
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
        if self._summary is not None and outermost in self._summary.functions:
            return self._summary.functions[outermost].span.line
        at = bisect_right(self._statements, line)
        return self._statements[at - 1] if at else 0

    def of(self, value: Any) -> object:
        plain = super().of(value)
        return (plain, self._target(value.id)) if isinstance(value, ast.Name) else plain

    def _target(self, name: str) -> str | None:
        """What a name stands for in the function that is looked at."""
        return None if self._summary is None else self._summary.resolve(name, self._by)

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
