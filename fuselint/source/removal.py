"""Deleting statements from a function's text: their lines, with the comments kept.

A suite that loses every statement but stays gets a `pass`. A comment inside or right above a deleted statement moves
to the code that replaces it; a trailing comment to a tool (`# noqa`) goes with its line.
"""

from __future__ import annotations

import io
import re
import tokenize
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from fuselint.finding import Edit
from fuselint.source.function import FunctionSource, children, walk
from fuselint.source.guard import PRAGMA
from fuselint.source.text import FileText


@lru_cache(maxsize=4)
def comment_table(file: FileText) -> tuple[tuple[int, str], ...]:
    """Offset and text of each comment of a file, in order."""
    found = []
    for t in tokenize.generate_tokens(io.StringIO(file.text, newline="").readline):
        if t.type == tokenize.COMMENT:
            found.append((file.starts[t.start[0] - 1] + t.start[1], t.string))
    return tuple(found)


def comments_in(file: FileText, start: int, end: int) -> list[tuple[int, str]]:
    table = comment_table(file)
    at = bisect_left(table, (start, ""))
    out = []
    while at < len(table) and table[at][0] < end:
        out.append(table[at])
        at += 1
    return out


def line_start(file: FileText, offset: int) -> int:
    return file.starts[file.position(offset)[0] - 1]


def line_end(file: FileText, offset: int) -> int:
    """The start of the line after the one that holds `offset`, or the end of the text."""
    line = file.position(offset)[0]
    return file.starts[line] if line < file.lines else len(file.text)


def above(file: FileText, start: int) -> int:
    """The start of the block of comment lines that ends right above the line at `start` (a line start)."""
    line = file.position(start)[0]
    while (
        line > 1
        and file.line(line - 1).lstrip(" \t").startswith("#")
        and comments_in(file, file.starts[line - 2], file.starts[line - 1])
    ):
        line -= 1
    return file.starts[line - 1]


def blank_before(file: FileText, start: int) -> int:
    """How many blank lines stand right above the line at `start`."""
    line, count = file.position(start)[0], 0
    while line - count > 1 and not file.line(line - count - 1).strip():
        count += 1
    return count


def blank_after(file: FileText, end: int) -> int:
    """How many blank lines stand from the line start `end` on."""
    if end >= len(file.text):
        return 0
    line, count = file.position(end)[0], 0
    while (
        line + count <= file.lines
        and not file.line(line + count).strip()
        and file.starts[line + count - 1] < len(file.text)
    ):
        count += 1
    return count


def normalised(text: str, edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Edits in order, those that touch made one, whole lines that stay as they are left out."""
    out: list[Edit] = []
    for e in sorted(dict.fromkeys(edits), key=lambda e: (e.start, e.end)):
        if out and e.start <= out[-1].end:
            last = out.pop()
            if e.start < last.end < e.end and not (last.text or e.text):
                out.append(Edit(last.start, e.end, ""))
            elif e.start < last.end < e.end:
                raise ValueError("edits overlap")
            elif e.start < last.end:  # inside a deletion
                if e.text:
                    raise ValueError("edits overlap")
                out.append(last)
            else:
                out.append(Edit(last.start, e.end, last.text + e.text))
        else:
            out.append(e)
    if out and not out[-1].text and not text[out[-1].end :].strip():  # no blank lines at the end of the file
        last = out.pop()
        blank = re.search(r"\n(\s*)\Z", text[out[-1].end if out else 0 : last.start])
        out.append(Edit(last.start - len(blank[1]), len(text), "") if blank else last)
    return tuple(t for e in out if (t := _trimmed(text, e)) is not None)


def _trimmed(text: str, e: Edit) -> Edit | None:
    """An edit without the whole lines that it starts or ends with and does not change."""
    start, end, new = e.start, e.end, e.text
    for line in _whole_lines(new):
        if not text.startswith(line, start) or start + len(line) > end:
            break
        start, new = start + len(line), new[len(line) :]
    for line in reversed(_whole_lines(new)):
        at_line_start = end - len(line) == 0 or text[end - len(line) - 1 : end - len(line)] == "\n"
        if (
            end - len(line) < start
            or text[end - len(line) : end] != line
            or not new.endswith(line)
            or not at_line_start
        ):
            break
        end, new = end - len(line), new[: -len(line)]
    return None if text[start:end] == new else Edit(start, end, new)


def _whole_lines(text: str) -> list[str]:
    """The lines of a text that end; a pattern would look at the last one again from each of its characters."""
    return [f"{line}\n" for line in text.split("\n")[:-1]]


@dataclass
class Removal:
    """What deleting statements comes to.

    cuts: spans to delete, with what stands there instead. comments: those to keep, in order.
    """

    source: FunctionSource
    dead: Collection[cst.CSTNode]
    cuts: list[Edit] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    lines: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert isinstance(self.source.node, cst.FunctionDef)
        self.file = self.source.file
        self._suite(self.source.node.body)
        self._close_gaps()

    @property
    def edits(self) -> list[Edit]:
        return self.cuts + [Edit(a, b, "") for a, b in self.lines]

    def _suite(self, suite: cst.CSTNode) -> bool:
        """Delete what is dead in a suite that stays. Whether it becomes empty."""
        body: Sequence[cst.CSTNode] = getattr(suite, "body", ())
        if isinstance(suite, cst.SimpleStatementSuite):
            if all(s in self.dead for s in body):
                self._replace(self.source.span(body[0])[0], self.source.span(body[-1])[1], "pass")
                return True
            self._line(body)
            return False
        gone = [self._gone(s) for s in body]
        for s, g in zip(body, gone, strict=True):
            if g:
                self._delete(s)
            elif isinstance(s, cst.SimpleStatementLine):
                self._line(s.body)
            else:
                self._compound(s)
        if all(gone):
            a, _ = self.lines[-len(gone)]
            first = line_start(self.file, self._span(body[0])[0])
            indent = self.file.text[first : self._span(body[0])[0]]
            newline = self.file.newline
            self.cuts.append(Edit(a, a, f"{indent}pass{newline}"))
            return True
        return False

    def _gone(self, stmt: cst.CSTNode) -> bool:
        if isinstance(stmt, cst.SimpleStatementLine):
            return all(s in self.dead for s in stmt.body)
        return stmt in self.dead

    def _compound(self, stmt: cst.CSTNode) -> None:
        """A compound statement that stays, or one of its parts."""
        if isinstance(stmt, (cst.FunctionDef, cst.ClassDef)):
            return
        for part in children(stmt):
            if isinstance(stmt, cst.If) and part is stmt.orelse:
                if isinstance(part, cst.If):
                    if part in self.dead:
                        self._delete(part)
                    else:
                        self._compound(part)
                elif isinstance(part, cst.Else) and all(self._gone(s) for s in part.body.body):
                    self._delete(part)
                elif isinstance(part, cst.Else):
                    self._suite(part.body)
            elif isinstance(part, (cst.IndentedBlock, cst.SimpleStatementSuite)):
                self._suite(part)
            elif isinstance(part, (cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase)):
                self._suite(part.body)

    def _line(self, body: Sequence[cst.CSTNode]) -> None:
        """Delete the dead ones of several statements on one line."""
        i = 0
        while i < len(body):
            if body[i] not in self.dead:
                i += 1
                continue
            j = i
            while j < len(body) and body[j] in self.dead:
                j += 1
            start, end = self._span(body[i])[0], self._span(body[j - 1])[1]
            if j < len(body):
                end = self._span(body[j])[0]
            else:
                start = self._span(body[i - 1])[1]
            self._replace(start, end, "")
            i = j

    def _replace(self, start: int, end: int, text: str) -> None:
        self.comments += [c for _, c in comments_in(self.file, start, end)]
        self.cuts.append(Edit(start, end, text))

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        return span_of(self.source, node)

    def _delete(self, node: cst.CSTNode) -> None:
        """Delete the lines of a statement, with the comment lines right above it."""
        start, end = self._span(node)
        first, after = line_start(self.file, start), line_end(self.file, end)
        first = above(self.file, first)
        for at, comment in comments_in(self.file, first, after):
            own = not self.file.text[line_start(self.file, at) : at].strip()
            if own or not PRAGMA.match(comment):
                self.comments.append(comment)
        self.lines.append((first, after))

    def _close_gaps(self) -> None:
        """Where lines go between blank lines, one side of the blank lines goes too."""
        merged: list[tuple[int, int]] = []
        for a, b in sorted(self.lines):
            if merged and not self.file.text[merged[-1][1] : a].strip():
                merged[-1] = (merged[-1][0], max(b, merged[-1][1]))
            else:
                merged.append((a, b))
        passes = {e.start for e in self.cuts if e.start == e.end}
        self.lines = [(a, b) if a in passes else without_gap(self.file, a, b) for a, b in merged]


def without_gap(file: FileText, start: int, end: int) -> tuple[int, int]:
    """A span of whole lines that goes, with the blank lines on one side that would be too many without it."""
    before, after = blank_before(file, start), blank_after(file, end)
    line = file.position(start)[0] - before - 1
    opens = line >= 1 and file.line(line).split("#")[0].rstrip().endswith(":")
    drop = after if opens else min(before, after)
    if drop and end < len(file.text):
        line = file.position(end)[0] + drop
        end = file.starts[line - 1] if line <= file.lines else len(file.text)
    return start, end


def span_of(source: FunctionSource, node: cst.CSTNode) -> tuple[int, int]:
    """From the first to the last code of a statement, the comments after it apart."""
    start, end = source.span(node)
    if isinstance(node, (cst.BaseCompoundStatement, cst.Else)):
        last = [n for n in walk(node) if isinstance(n, cst.BaseSmallStatement)]
        if last:
            end = max(source.span(n)[1] for n in last)
    if isinstance(node, cst.FunctionDef) and node.decorators:
        start = source.span(node.decorators[0])[0]
    return start, end
