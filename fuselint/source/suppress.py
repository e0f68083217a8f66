"""Comments that silence findings.

`# noqa`, `# noqa: FUS201, FUS301`, `# fuselint: ignore[FUS201] -- reason` and `# fuselint: ignore` stand on a line of
the statement, or on the `def` or decorator lines; `# fuselint: skip-file` and `# fuselint: file-ignore[FUS201]`
anywhere; `# fuselint: off[FUS201]` and `# fuselint: on[FUS201]` around statements. A code may be a prefix (`FUS2`), or
a rule's name.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fuselint.finding import Edit
from fuselint.source.text import FileText

_OUR_CODE = re.compile(r"\bfus[0-9]")
_LAYOUT = frozenset([tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING])

_CODE = r"(?:[A-Z]+[0-9]+|ALL|[a-z0-9]+(?:-[a-z0-9]+)+)"
_DIRECTIVE = re.compile(
    rf"(?P<what>\#\s*(?:"
    rf"(?P<noqa>noqa)\b(?:\s*:\s*(?P<codes>{_CODE}(?:[\s,]+{_CODE})*))?"
    rf"|fuselint:\s*(?P<word>skip-file\b|(?:file-ignore|ignore|off|on|disable|enable)\b(?:\s*\[(?P<list>[^\[\]\n]*)\])?)"
    rf"))(?:\s*--\s*(?P<reason>.*\S))?",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Suppression:
    """One directive of a comment. start, end: its offsets, with its reason.

    codes: upper-case codes, prefixes, or lower-case names; none stands for all. spans: where each stands.
    stop: where the directive ends and its reason begins. comment_end: where the whole comment does.
    used: the codes that silenced something; "" where the directive names none.
    ends: of a block, the lines where its codes are on again; of an `on`, `used` are those that were off.
    whole_file: it holds on all lines. is_block: it holds from its line on. is_end: it is an `on`.
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
    ends: dict[str, int] = field(default_factory=dict)
    whole_file: bool = False
    is_block: bool = False
    is_end: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return self.codes or ("",)

    def takes(self, code: str, name: str = "") -> str | None:
        """The word of this comment that silences a rule, "" where the comment silences all; None if it doesn't."""
        return next(self.taking(code, name), None)

    def taking(self, code: str, name: str) -> Iterator[str]:
        for word in self.words:
            if word in ("", "ALL", name) or (word.isupper() and code.startswith(word)):
                yield word

    def reaches(self, first_line: int, last_line: int) -> bool:
        """Whether any word of it can count on these lines."""
        if self.is_block:
            return any(self.holds(word, first_line, last_line) for word in self.words)
        return first_line <= self.line <= last_line

    def holds(self, word: str, first_line: int, last_line: int) -> bool:
        """Whether a block's word counts somewhere on these lines."""
        return self.whole_file or (self.line <= last_line and first_line <= self.ends.get(word, last_line))


@dataclass(slots=True)
class Suppressions:
    """The suppressions of a file. skips: those that silence all of it. certain: whether its comments are known.

    blocks: those that hold from their line on; of the whole file, from line 0. ons: what ends blocks.
    logical: the first and last line of the logical line that each line of several belongs to.
    """

    by_line: dict[int, list[Suppression]] = field(default_factory=dict)
    skips: list[Suppression] = field(default_factory=list)
    blocks: list[Suppression] = field(default_factory=list)
    ons: list[Suppression] = field(default_factory=list)
    certain: bool = True
    logical: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def skip_file(self) -> bool:
        """Nothing of the file is reported."""
        return bool(self.skips)

    @property
    def is_empty(self) -> bool:
        """Nothing silences anything."""
        return not (self.skips or self.blocks or self.by_line)

    @classmethod
    def of(cls, file: FileText, *, ours: bool = False) -> Suppressions:
        """ours: only in a file that has some of our own."""
        return cls.tokenised(file) if _may_silence(file.text, ours) else cls()

    @classmethod
    def tokenised(cls, file: FileText) -> Suppressions:
        """The same, with the logical lines also of a file that has no suppressions."""
        out = cls()
        for line, start, comment in out._comments(file):
            for found in _DIRECTIVE.finditer(comment):
                out._add(_entry(found, line, start), _kind(found))
        return out

    def _add(self, entry: Suppression, word: str) -> None:
        if word == "skip-file":
            self.skips.append(entry)
        elif word in ("off", "disable", "file-ignore"):
            self.blocks.append(entry)
            entry.is_block, entry.whole_file = True, word == "file-ignore"
        elif word in ("on", "enable"):
            self._end(entry)
        else:
            self.by_line.setdefault(entry.line, []).append(entry)

    def _end(self, on: Suppression) -> None:
        """An `on` ends the words that it names in all open blocks; without words, every block."""
        self.ons.append(on)
        on.is_end = True
        for block in self.blocks:
            for word in block.words if not block.whole_file else ():
                if word not in block.ends and (not on.codes or word in on.codes):
                    block.ends[word] = on.line
                    on.used.add(word if on.codes else "")

    def covers(self, code: str, first_line: int, last_line: int, def_lines: Iterable[int] = (), name: str = "") -> bool:
        """Whether a finding is silenced, whose statement stands on these lines (both included) of a function."""
        for entry in self.skips:
            entry.used.add("")
        covered = bool(self.skips)
        if not self.by_line and not self.blocks:
            return covered
        first_line, last_line = self.logical_lines(first_line, last_line)
        for block in self.blocks:
            words = [w for w in block.taking(code, name) if block.holds(w, first_line, last_line)]
            block.used.update(words[:1])
            covered |= bool(words)
        for line in {*range(first_line, last_line + 1), *def_lines}:
            for entry in self.by_line.get(line, ()):
                word = entry.takes(code, name)
                if word is not None:
                    entry.used.add(word)
                    covered = True
        return covered

    def unused(self, known: Collection[str] = ()) -> Iterator[tuple[Suppression, tuple[str, ...]]]:
        """The comments that silenced nothing, and which of their words.

        A `noqa` speaks to other linters too: of it only words that begin like our codes count, and those `known`.
        """
        for entry in [*self.skips, *self.blocks, *self.ons, *(e for entries in self.by_line.values() for e in entries)]:
            ours = [w for w in entry.words if not entry.is_noqa or w.startswith("FUS") or w in known]
            idle = tuple(w for w in ours if w not in entry.used)
            if idle:
                yield entry, idle

    def logical_lines(self, first: int, last: int) -> tuple[int, int]:
        """Lines, with the rest of the logical lines that they begin and end in: of a statement, or of its header."""
        return self.logical.get(first, (first, first))[0], self.logical.get(last, (last, last))[1]

    def _comments(self, file: FileText) -> Iterator[tuple[int, int, str]]:
        """Line, offset and text of each comment. Where the tokenizer gives up, what looks like one counts as one."""
        text = re.sub(r"\r\n?", "\n", file.text)  # tokenize knows no lone \r; lines and columns stay the same
        done = 0
        first: int | None = None  # of the logical line
        try:
            for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
                if token.type == tokenize.NEWLINE:
                    if first is not None and first < token.start[0]:
                        span = first, token.start[0]
                        self.logical.update(dict.fromkeys(range(span[0], span[1] + 1), span))
                    first = None
                elif first is None and token.type not in _LAYOUT:
                    first = token.start[0]
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


def _may_silence(text: str, ours: bool) -> bool:
    """Whether a comment may hold a directive, or one of our own. Files without are not tokenised, which takes as long
    as all the rest. It looks at each line once, however many signs of a comment it has."""
    text = text.lower()
    if "noqa" not in text and "fuselint:" not in text:
        return False
    for line in re.split(r"[\n\r]", text):
        _, _, comment = line.partition("#")
        noqa = "noqa:" if ours else "noqa"
        at = comment.find(noqa)
        if "fuselint:" in comment or (at >= 0 and (not ours or _OUR_CODE.search(comment, at))):
            return True
    return False


def _kind(found: re.Match[str]) -> str:
    """`off` of `# fuselint: off[FUS201]`; "" of a `noqa`."""
    return (found["word"] or "").partition("[")[0].strip().lower()


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
    """A comment without what it silences in its statement: what it says to people, and of other lines."""
    return _DIRECTIVE.sub(lambda m: "" if m["noqa"] or _kind(m) in ("", "ignore") else m[0], comment).strip(" \t#")


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


# -- adding some -------------------------------------------------------------------------------------------------------


def noqa(file: FileText, codes: Mapping[int, Collection[str]], reason: str = "") -> tuple[Edit, ...]:
    """The edits that silence codes in the statements that hold given lines. Nothing where the text has no tokens.

    A comment stands at the end of its logical line: there is always room for it, and it counts for all of it.
    """
    there = Suppressions.tokenised(file)
    if not there.certain:
        return ()
    wanted: dict[int, set[str]] = {}
    for line, more in codes.items():
        wanted.setdefault(there.logical_lines(line, line)[1], set()).update(more)
    edits = []
    for line in sorted(wanted):
        listed = ", ".join(sorted(wanted[line]))
        said = next((e for e in there.by_line.get(line, ()) if e.is_noqa and e.codes), None)
        if said is not None:
            edits.append(Edit(said.spans[-1][1], said.spans[-1][1], f", {listed}"))
            continue
        start, end = file.line_span(line)
        at = start + len(file.text[start:end].rstrip())
        said_why = f" -- {' '.join(reason.split())}" if reason.strip() else ""
        edits.append(Edit(at, end, f"  # noqa: {listed}{said_why}"))
    return tuple(edits)
