"""The engine's own check of a fix's text, whatever rule made it.

A result is refused unless it parses, keeps every comment, reads no name that wasn't there, and differs from the
original only in the statements that the fix named.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import itertools
import keyword
import re
import tokenize
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fuselint.finding import Edit
from fuselint.rulebook import NoFix
from fuselint.source.screen import nodes, syntax
from fuselint.source.suppress import spoken

PRAGMA = re.compile(
    r"#\s*(noqa|type:\s*ignore|pyright:|mypy:|pylint:|pragma:|fmt:|isort:|ruff:|fuselint:)", re.IGNORECASE
)
"""Comments to a tool about the code on their line: they go with it."""

_BUILTINS = frozenset(dir(builtins))
_UNREADABLE = (SyntaxError, ValueError, tokenize.TokenError, RecursionError, MemoryError)
_Body = tuple[str, list[ast.stmt]]


@lru_cache(maxsize=4)
def comments(text: str) -> tuple[str, ...]:
    """The comments of a Python text, in order. Raises SyntaxError or tokenize.TokenError where it can't be read."""
    tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
    return tuple(t.string for t in tokens if t.type == tokenize.COMMENT)


def guard(text: str, new_text: str, edits: Sequence[Edit], statements: Sequence[tuple[int, int]]) -> NoFix | None:
    """Why the edits must not be made, or None. `statements` are the spans of `text` that they may change."""
    for a, b in itertools.pairwise(edits):
        if b.start <= a.end:
            return NoFix("two of its edits touch")
    try:
        known = _read(text)
        touched = _touched(text, new_text, edits, statements, known)
        if touched is not None:
            with contextlib.suppress(*_UNREADABLE):  # a part that can't be read alone
                return _refused(*touched)
        return _refused(text, new_text, edits, statements, known.names)
    except _UNREADABLE as error:
        return NoFix(f"the result doesn't parse: {error}")


def _refused(
    text: str,
    new_text: str,
    edits: Sequence[Edit],
    statements: Sequence[tuple[int, int]],
    names: Collection[str],
) -> NoFix | None:
    """As `guard`, where other code than this binds or reads `names`."""
    old, new = syntax(text), syntax(new_text)
    lost = _said(text) - _said(new_text) if _touches_comments(text, edits) else Counter[str]()
    kept = [c for c in lost if c and not PRAGMA.match(f"# {c}")]
    if kept:
        return NoFix(f"a comment would be lost: # {kept[0]}")
    unknown = set() if _written(new_text, edits) <= {*names, *_BUILTINS} else _unbound(new, names)
    if unknown:
        return NoFix(f"the result reads a name that isn't there: {', '.join(sorted(unknown))}")
    why = _Comparison(text, new_text, edits, statements).differs(old, new)
    if why and ast.dump(old) != ast.dump(new):  # else only a comment in a statement changes
        return NoFix(why)
    return None


@dataclass(frozen=True)
class _Known:
    """A file's names, and where each of its parts begins: top-level statements, each with the lines up to the next."""

    names: frozenset[str]
    parts: tuple[int, ...]
    bound: tuple[frozenset[str], ...]  # by each part

    def part_at(self, offset: int) -> int:
        return bisect_right(self.parts, offset) - 1


@lru_cache(maxsize=2)
def _read(text: str) -> _Known:
    """What is known of a file. Many fixes of one are checked in a row."""
    tree = syntax(text)
    names = frozenset(n.id for n in nodes(text) if isinstance(n, ast.Name))
    starts, parts = Offsets(text).starts, [0]
    held: list[list[ast.stmt]] = [[]]
    last = 0
    for stmt in tree.body:
        first = min([stmt.lineno, *(d.lineno for d in getattr(stmt, "decorator_list", []))])
        if last < first and held[-1]:
            parts.append(starts[first - 1])
            held.append([])
        held[-1].append(stmt)
        last = stmt.end_lineno or first
    bound = [frozenset().union(*(_names_of(s)[1] for s in part)) for part in held]
    return _Known(names, tuple(parts), tuple(bound))


def _touched(
    text: str, new_text: str, edits: Sequence[Edit], statements: Sequence[tuple[int, int]], known: _Known
) -> tuple[str, str, list[Edit], list[tuple[int, int]], frozenset[str]] | None:
    """The parts of a file that edits touch as a file of their own, and all names of the others; None: all parts.

    So a fix is checked in the time that its own function takes, however long the file is.
    """
    touched = sorted({p for e in edits for p in range(known.part_at(max(e.start - 1, 0)), known.part_at(e.end) + 1)})
    if len(touched) == len(known.parts) or not touched or new_text != _made(text, edits):
        return None
    ends = (*known.parts[1:], len(text))
    moved: dict[int, int] = {}
    old = ""
    inside: list[Edit] = []
    for p in touched:
        start, end = known.parts[p], ends[p]
        moved[p] = len(old) - start
        old += text[start:end]
    for e in edits:
        by = moved[known.part_at(e.start)]
        inside.append(Edit(e.start + by, e.end + by, e.text))
    spans = [(a + moved[p], b + moved[p]) for a, b in statements if (p := known.part_at(a)) in moved]
    others = (names for p, names in enumerate(known.bound) if p not in moved)
    return old, _made(old, inside), inside, spans, known.names.union(*others)


def _made(text: str, edits: Iterable[Edit]) -> str:
    """The text after edits, in order."""
    out, at = "", 0
    for e in edits:
        out += text[at : e.start] + e.text
        at = e.end
    return out + text[at:]


_QUOTES = re.compile(r"[#'\"\\]")
_NAME = re.compile(r"(?<![\w.])[^\W\d]\w*\b(?!\s*=(?!=))")
"""A name that may be read: no attribute, and neither bound nor a keyword of a call."""


def _touches_comments(text: str, edits: Sequence[Edit]) -> bool:
    """Whether edits may take a comment away, or turn one into something else."""
    return any(_QUOTES.search(e.text) or _QUOTES.search(text, e.start, e.end) for e in edits)


def _written(new_text: str, edits: Sequence[Edit]) -> set[str]:
    """What may be names in what the edits wrote, with what they join it to."""
    out, shift = set[str](), 0
    for e in sorted(edits, key=lambda e: (e.start, e.end)):
        start = e.start + shift
        end = start + len(e.text)
        shift += len(e.text) - (e.end - e.start)
        while start > 0 and (new_text[start - 1].isalnum() or new_text[start - 1] == "_"):
            start -= 1
        while end < len(new_text) and (new_text[end].isalnum() or new_text[end] == "_"):
            end += 1
        out.update(unicodedata.normalize("NFKC", m[0]) for m in _NAME.finditer(new_text, start, end))
    return out.difference(keyword.kwlist)


def _said(text: str) -> Counter[str]:
    """What the comments say, without our own directives: those come and go with the findings that they silence."""
    return Counter(map(spoken, comments(text)))


def _unbound(tree: ast.AST, known: Collection[str]) -> set[str]:
    """Names that a text reads, besides those known, and binds nowhere."""
    read, bound = _names_of(tree)
    return read.difference(known) - bound - _BUILTINS


def _names_of(tree: ast.AST) -> tuple[set[str], set[str]]:
    """The names that code reads, and those that it binds."""
    read: set[str] = set()
    bound: set[str] = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Name):
            (bound if isinstance(n.ctx, ast.Store) else read).add(n.id)
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(n.name)
        elif isinstance(n, ast.arg):
            bound.add(n.arg)
        elif isinstance(n, ast.alias):
            bound.add((n.asname or n.name).split(".")[0])
        elif isinstance(n, ast.ExceptHandler) and n.name:
            bound.add(n.name)
    return read, bound


class Offsets:
    """Code point offsets of ast positions (line, UTF-8 column)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]
        self.ascii = text.isascii()

    def __call__(self, line: int, column: int) -> int:
        start = self.starts[line - 1]
        if self.ascii:
            return start + column
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return start + len(self.text[start:end].encode()[:column].decode(errors="ignore"))

    def span(self, stmt: ast.stmt) -> tuple[int, int]:
        """From the first decorator to the end."""
        first: ast.expr | ast.stmt = stmt
        decorators: list[ast.expr] = getattr(stmt, "decorator_list", [])
        if decorators:
            first = decorators[0]
        assert stmt.end_lineno is not None and stmt.end_col_offset is not None
        return self(first.lineno, first.col_offset), self(stmt.end_lineno, stmt.end_col_offset)


def _bodies(stmt: ast.AST) -> Iterator[_Body]:
    """The suites of a compound statement, those of its except handlers and cases too."""
    for field in ("body", "orelse", "finalbody"):
        body = getattr(stmt, field, None)
        if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
            yield field, body
    for field in ("handlers", "cases"):
        for i, part in enumerate(getattr(stmt, field, [])):
            yield f"{field}{i}", part.body


def _header(stmt: ast.AST) -> str:
    """A compound statement without its suites, as text to compare."""
    parts = [type(stmt).__name__]
    for field, value in ast.iter_fields(stmt):
        if field in ("body", "orelse", "finalbody"):
            continue
        if field in ("handlers", "cases"):
            parts += [_header(part) for part in value]
            continue
        for item in value if isinstance(value, list) else [value]:
            parts.append(ast.dump(item) if isinstance(item, ast.AST) else repr(item))
    return "|".join(parts)


class _Comparison:
    """Old and new trees, statement by statement, by where the edits put each."""

    def __init__(self, text: str, new_text: str, edits: Sequence[Edit], statements: Sequence[tuple[int, int]]) -> None:
        self.text, self.new_text = text, new_text
        self.edits = sorted(edits, key=lambda e: (e.start, e.end))
        self.allowed = list(statements)
        self.old_at, self.new_at = Offsets(text), Offsets(new_text)
        self.shift: list[int] = []  # by which offsets after edit i move
        total = 0
        for e in self.edits:
            total += len(e.text) - (e.end - e.start)
            self.shift.append(total)
        self.starts = [e.start for e in self.edits]

    def moved(self, offset: int) -> int:
        """Where an offset of the old text lies in the new: at an edit's start, its start; inside it, where it ends."""
        i = bisect_right(self.starts, offset) - 1
        if i < 0:
            return offset
        if self.edits[i].start == offset < self.edits[i].end:
            return offset + (self.shift[i - 1] if i else 0)
        if offset < self.edits[i].end:
            return self.edits[i].end + self.shift[i]
        return offset + self.shift[i]

    def touched(self, start: int, end: int) -> bool:
        return any(e.start < end and start < e.end for e in self.edits) or any(
            start < e.start < end for e in self.edits
        )

    def added(self, start: int, end: int) -> bool:
        """Whether [start, end) of the new text reaches into what an edit wrote."""
        for e, shift in zip(self.edits, self.shift, strict=True):
            last = e.end + shift
            if start < last and last - len(e.text) < end:
                return True
        return False

    def differs(self, old: ast.AST, new: ast.AST) -> str:
        before, after = dict(_bodies(old)), dict(_bodies(new))
        for field in {**before, **after}:
            why = self.bodies_differ(before.get(field, []), after.get(field, []))
            if why:
                return why
        return ""

    def bodies_differ(self, before: list[ast.stmt], after: list[ast.stmt]) -> str:
        placed = {}
        for s in after:
            placed[self.new_at.span(s)[0]] = s
        for s in before:
            start, end = self.old_at.span(s)
            inside = any(a <= start and end <= b for a, b in self.allowed)
            partner = placed.pop(self.moved(start), None)
            if not self.touched(start, end):
                if partner is None or self.new_text[slice(*self.new_at.span(partner))] != self.text[start:end]:
                    return f"a statement that it doesn't name changes: {self.text[start:end][:60]!r}"
                continue
            if inside:
                deleted = any(e.start <= start < e.end and not e.text for e in self.edits)  # then what follows moved up
                if partner is not None and (deleted or not self.added(*self.new_at.span(partner))):
                    placed[self.new_at.span(partner)[0]] = partner
                continue
            header = any(a <= start < b < end for a, b in self.allowed)  # a compound statement's own line may change
            if partner is None or type(partner) is not type(s) or not any(_bodies(s)):
                return f"a statement that it doesn't name changes: {self.text[start:end][:60]!r}"
            if not header and _header(s) != _header(partner):
                return f"a statement that it doesn't name changes: {self.text[start:end][:60]!r}"
            why = self.differs(s, partner)
            if why:
                return why
        for s in placed.values():
            if not self.added(*self.new_at.span(s)):
                return "a statement appears that no edit wrote"
        return ""
