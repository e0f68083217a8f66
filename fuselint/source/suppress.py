"""Comments that silence findings.

`# noqa`, `# noqa: FUS201, FUS301`, `# fuselint: ignore[FUS201] -- reason` and `# fuselint: ignore` stand on a line of
the statement, or on the `def` or decorator lines; `# fuselint: skip-file` anywhere. A code may be a prefix (`FUS2`),
or a rule's name.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from fuselint.finding import Edit
from fuselint.source.text import FileText

_HINT = re.compile(r"#[^\n\r]*(?:noqa|fuselint:)", re.IGNORECASE)
_OURS = re.compile(r"#[^\n\r]*(?:fuselint:|noqa:[^\n\r]*\bFUS[0-9])", re.IGNORECASE)
"""Files without these have no suppressions, and are not tokenised, which takes as long as all the rest."""

_CODE = r"(?:[A-Z]+[0-9]+|ALL|[a-z0-9]+(?:-[a-z0-9]+)+)"
_DIRECTIVE = re.compile(
    rf"(?P<what>\#\s*(?:"
    rf"(?P<noqa>noqa)\b(?:\s*:\s*(?P<codes>{_CODE}(?:[\s,]+{_CODE})*))?"
    rf"|fuselint:\s*(?:(?P<skip>skip-file)\b|(?P<ignore>ignore)\b(?:\s*\[(?P<list>[^\]\n]*)\])?)"
    rf"))(?:\s*--\s*(?P<reason>.*\S))?",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Suppression:
    """One directive of a comment. start, end: its offsets, with its reason.

    codes: upper-case codes, prefixes, or lower-case names; none stands for all. spans: where each stands.
    stop: where the directive ends and its reason begins. comment_end: where the whole comment does.
    used: the codes that silenced something; "" where the directive names none.
    """

    line: int
    start: int
    end: int
    stop: int
    comment_end: int
    codes: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    is_noqa: bool = False
    used: set[str] = field(default_factory=set)

    def takes(self, code: str, name: str = "") -> str | None:
        """The word of this comment that silences a rule, "" where the comment silences all; None if it doesn't."""
        if not self.codes:
            return ""
        return next((c for c in self.codes if c in ("ALL", name) or (c.isupper() and code.startswith(c))), None)


@dataclass(slots=True)
class Suppressions:
    """The suppressions of a file. skips: those that silence all of it. certain: whether its comments are known."""

    by_line: dict[int, list[Suppression]] = field(default_factory=dict)
    skips: list[Suppression] = field(default_factory=list)
    certain: bool = True

    @property
    def skip_file(self) -> bool:
        """Nothing of the file is reported."""
        return bool(self.skips)

    @classmethod
    def of(cls, file: FileText, *, ours: bool = False) -> Suppressions:
        """ours: only in a file that has some of our own."""
        out = cls()
        if (_OURS if ours else _HINT).search(file.text):
            for line, start, comment in out._comments(file):
                for found in _DIRECTIVE.finditer(comment):
                    entry = _entry(found, line, start)
                    (out.skips if found["skip"] else out.by_line.setdefault(line, [])).append(entry)
        return out

    def covers(self, code: str, first_line: int, last_line: int, def_lines: Iterable[int] = (), name: str = "") -> bool:
        """Whether a finding is silenced, whose statement stands on these lines (both included) of a function."""
        for entry in self.skips:
            entry.used.add("")
        covered = bool(self.skips)
        if not self.by_line:
            return covered
        for line in {*range(first_line, last_line + 1), *def_lines}:
            for entry in self.by_line.get(line, ()):
                word = entry.takes(code, name)
                if word is not None:
                    entry.used.add(word)
                    covered = True
        return covered

    def unused(self, names: Collection[str] = ()) -> Iterator[tuple[Suppression, tuple[str, ...]]]:
        """The comments that silenced nothing, and which of their words.

        A `noqa` speaks to other linters too: of it only words that begin like our codes, and `names`, count.
        """
        for entry in [*self.skips, *(e for entries in self.by_line.values() for e in entries)]:
            words = entry.codes or ("",)
            ours = [w for w in words if not entry.is_noqa or w.startswith("FUS") or w in names]
            idle = tuple(w for w in ours if w not in entry.used)
            if idle:
                yield entry, idle

    def _comments(self, file: FileText) -> Iterator[tuple[int, int, str]]:
        """Line, offset and text of each comment. Where the tokenizer gives up, what looks like one counts as one."""
        text = re.sub(r"\r\n?", "\n", file.text)  # tokenize knows no lone \r; lines and columns stay the same
        done = 0
        try:
            for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
                if token.type == tokenize.COMMENT:
                    done = token.start[0]
                    yield done, file.starts[done - 1] + token.start[1], token.string
        except (tokenize.TokenError, SyntaxError):
            self.certain = False
            for line in range(done + 1, file.lines + 1):
                comment = file.line(line)
                at = comment.find("#")
                if at >= 0:
                    yield line, file.starts[line - 1] + at, comment[at:]


def _entry(found: re.Match[str], line: int, offset: int) -> Suppression:
    group = "codes" if found["codes"] else "list"
    words = [] if not found[group] else list(re.finditer(r"[^\s,]+", found[group]))
    first = offset + found.start(group)
    return Suppression(
        line,
        offset + found.start(),
        offset + found.end(),
        offset + found.end("what"),
        offset + len(found.string),
        tuple(w[0].lower() if "-" in w[0] else w[0].upper() for w in words),
        tuple((first + w.start(), first + w.end()) for w in words),
        found["reason"] or "",
        found["noqa"] is not None,
    )


# -- taking one away ---------------------------------------------------------------------------------------------------


def spoken(comment: str) -> str:
    """A comment without its directives: what it says to people."""
    return _DIRECTIVE.sub("", comment).strip(" \t#")


def without(file: FileText, entry: Suppression, words: Collection[str]) -> Edit:
    """The edit that takes words, or all, out of a directive. What else the comment says stays."""
    kept, done = "", 0
    for (start, end), word in zip(entry.spans, entry.codes, strict=True):
        if word not in words:
            kept += file.text[done if kept else start : end]
        done = end
    if kept:
        return Edit(entry.spans[0][0], entry.spans[-1][1], kept)
    rest = file.text[entry.stop : entry.comment_end].strip().removeprefix("--").strip()
    if rest:
        return Edit(entry.start, entry.comment_end, rest if rest.startswith("#") else f"# {rest}")
    start, end = file.line_span(entry.line)
    before = file.text[start : entry.start].rstrip()
    if before:
        return Edit(start + len(before), entry.comment_end, "")
    return Edit(start, file.starts[entry.line] if entry.line < file.lines else end, "")
