"""Comments that silence findings.

`# noqa`, `# noqa: FUS201, FUS301`, `# fuselint: ignore[FUS201] -- reason` and `# fuselint: ignore` stand on a line of
the statement, or on the `def` or decorator lines; `# fuselint: skip-file` anywhere. A code may be a prefix (`FUS2`),
or a rule's name.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fuselint.source.text import FileText

_HINT = re.compile(r"#[^\n\r]*(?:noqa|fuselint:)", re.IGNORECASE)
"""Files without this have no suppressions, and are not tokenised, which takes as long as all the rest."""

_CODE = r"(?:[A-Z]+[0-9]+|ALL|[a-z0-9]+(?:-[a-z0-9]+)+)"
_DIRECTIVE = re.compile(
    rf"\#\s*(?:"
    rf"(?P<noqa>noqa)\b(?:\s*:\s*(?P<codes>{_CODE}(?:[\s,]+{_CODE})*))?"
    rf"|fuselint:\s*(?:(?P<skip>skip-file)\b|(?P<ignore>ignore)\b(?:\s*\[(?P<list>[^\]\n]*)\])?)"
    rf"(?:\s*--\s*(?P<reason>.*\S))?"
    rf")",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Suppression:
    """One comment. codes: upper-case codes, prefixes, or lower-case names; none stands for all. start, end: offsets."""

    line: int
    start: int
    end: int
    codes: tuple[str, ...] = ()
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
    """The suppressions of a file. skip_file: nothing of it is reported."""

    by_line: dict[int, list[Suppression]] = field(default_factory=dict)
    skip_file: bool = False

    @classmethod
    def of(cls, file: FileText) -> Suppressions:
        out = cls()
        if _HINT.search(file.text):
            for line, start, comment in _comments(file):
                for found in _DIRECTIVE.finditer(comment):
                    if found["skip"]:
                        out.skip_file = True
                    else:
                        entry = _entry(found, line, start)
                        out.by_line.setdefault(line, []).append(entry)
        return out

    def covers(self, code: str, first_line: int, last_line: int, def_lines: Iterable[int] = (), name: str = "") -> bool:
        """Whether a finding is silenced, whose statement stands on these lines (both included) of a function."""
        covered = self.skip_file
        if not self.by_line:
            return covered
        for line in {*range(first_line, last_line + 1), *def_lines}:
            for entry in self.by_line.get(line, ()):
                word = entry.takes(code, name)
                if word is not None:
                    entry.used.add(word)
                    covered = True
        return covered

    def unused(self) -> Iterator[tuple[Suppression, tuple[str, ...]]]:
        """The comments that silenced nothing, and which of their words. A `noqa` speaks to other linters too: of it
        only words that begin like our codes count."""
        for entries in self.by_line.values():
            for entry in entries:
                words = entry.codes or ("",)
                ours = [w for w in words if not entry.is_noqa or w.startswith("FUS")]
                idle = tuple(w for w in ours if w not in entry.used)
                if idle:
                    yield entry, idle


def _entry(found: re.Match[str], line: int, start: int) -> Suppression:
    words = re.split(r"[\s,]+", found["codes"] or found["list"] or "")
    codes = tuple(w.lower() if "-" in w else w.upper() for w in words if w)
    return Suppression(
        line, start + found.start(), start + found.end(), codes, found["reason"] or "", found["noqa"] is not None
    )


def _comments(file: FileText) -> Iterator[tuple[int, int, str]]:
    """Line, offset and text of each comment. Where the tokenizer gives up, what looks like a comment counts as one."""
    text = re.sub(r"\r\n?", "\n", file.text)  # tokenize knows no lone \r; lines and columns stay the same
    done = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
            if token.type == tokenize.COMMENT:
                done = token.start[0]
                yield done, file.starts[done - 1] + token.start[1], token.string
    except (tokenize.TokenError, SyntaxError):
        for line in range(done + 1, file.lines + 1):
            comment = file.line(line)
            at = comment.find("#")
            if at >= 0:
                yield line, file.starts[line - 1] + at, comment[at:]
