"""A finding with its source lines, its evidence, its fix and what is unproven. For people."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from fuselint.finding import Edit, Finding, Fix, ModelSaving, Seconds, Traffic
from fuselint.report import Source, duration, escape, percent, plural, saving, size
from fuselint.report.style import Style

MOST_LINES = 6
"""Of a finding's source, before its middle is left out."""


def render(findings: Sequence[Finding], source: Source, color: bool = False, diffs: bool = False) -> str:
    """diffs: with what each fix changes."""
    style = Style(color)
    return "\n".join("\n".join(_finding(f, source(f), style, diffs)) + "\n" for f in findings)


def _finding(f: Finding, text: str, style: Style, diffs: bool) -> Iterator[str]:
    place = f"{escape.line(f.place)}:{f.line}:{f.column}"
    yield f"{style.bold(place)} {style.code(f.code)} {escape.line(f.message)}"
    lines = _lines(text)
    shown = range(f.line - 1 if f.line > 1 else 1, min(f.end_line, len(lines)) + 1)
    width = max(3, len(str(f.end_line)))
    bar = style.frame(" " * width + "|")
    note = _note(f)
    if text and shown:
        yield bar
        skipped = False
        for number in shown:
            if len(shown) > MOST_LINES and f.line + 2 <= number < f.end_line:
                if not skipped:
                    yield style.frame("..." + " " * (width - 3) + "|")
                skipped = True
                continue
            line = lines[number - 1].replace("\f", " ")
            yield style.frame(f"{number:>{width - 1}} |") + f" {_shown(line)}".rstrip()
            if number == f.line == f.end_line or (number == f.end_line and f.end_line > f.line):
                yield f"{bar} {style.mark(_carets(f, line))}{' ' + note if note else ''}"
    elif note:
        yield f"{bar} {note}"
    for r in f.related[1:] if note else f.related:
        yield f"{bar} {_place(r.path, r.line, f.place)}: {escape.line(r.message)}"
    if f.traffic is not None:
        yield from (f"{bar} {escape.line(line)}" for line in _saving(f.traffic))
    if diffs and text and f.fix and f.fix.edits and not f.cell:
        yield from (" " * width + line for line in _diff(text, f.fix.edits, style))
    yield from (" " * width + escape.line(line) for line in _advice(f))


def _diff(text: str, edits: Sequence[Edit], style: Style) -> Iterator[str]:
    """The lines that edits change, before and after, each run of them under its line number."""
    changed, done = "", 0
    for e in edits:
        changed, done = changed + text[done : e.start] + e.text, e.end
    changed += text[done:]
    before, after = (re.split(r"\r\n|\r|\n", t) for t in (text, changed))
    for line in list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]:
        if line.startswith("@@"):
            yield style.frame(f"| line {line.split()[1].lstrip('-').partition(',')[0]}")
        else:
            shown = f"{line[0]} {_shown(line[1:])}".rstrip()
            yield style.removed(shown) if line[0] == "-" else style.added(shown)


def explained(f: Finding) -> Iterator[str]:
    """All that is said of a finding besides its message and its source."""
    for r in f.related:
        yield escape.line(f"{_place(r.path, r.line, f.place)}: {r.message}")
    if f.traffic is not None:
        yield from map(escape.line, _saving(f.traffic))
    yield from (escape.line(line.removeprefix("= ")) for line in _advice(f))


def _note(f: Finding) -> str:
    """The first related place, beside the carets."""
    if not f.related:
        return ""
    first = f.related[0]
    return f"{escape.line(first.message)} ({_place(first.path, first.line, f.place)})"


def _place(path: str, line: int, here: str) -> str:
    return f"line {line}" if path == here else f"{escape.line(path)}:{line}"


@lru_cache(maxsize=4)  # findings come file by file
def _lines(text: str) -> list[str]:
    return re.split(r"\r\n|\r|\n", text)


def _shown(line: str) -> str:
    """A source line as it is printed. What comes before a place is printed the same whatever follows it."""
    return escape.line(line).expandtabs(4)


def _cells(text: str) -> int:
    """Terminal cells that `text` takes after expanding tabs."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1 for c in text)


def _carets(f: Finding, line: str) -> str:
    first = f.column - 1 if f.line == f.end_line else len(line) - len(line.lstrip())
    before = _shown(line[:first])
    marked = _shown(line[: f.end_column - 1])[len(before) :]
    return " " * _cells(before) + "^" * max(1, _cells(marked))


def _saving(t: Traffic) -> Iterator[str]:
    """What the fix saves in one call, and in a pass of the model."""
    parts = []
    launches = t.launches_fewer
    if t.saved_at is not None and t.typical:
        parts.append(saving.in_shares(t))
    elif t.saved_at is not None:
        sizes = " ".join(f"{name}={value}" for name, value in t.at.items())
        at = f" at {sizes} {t.dtypes}" if sizes else f" in {t.dtypes}"
        parts.append(f"{_amount(t, launches)}{at}{_sources(t)}")
        if t.phase == "train" and not t.saved_at and not launches:
            parts.append("MLX runs the original under a gradient")
    if launches > 0:
        fewest = t.least if t.otherwise is not None and t.otherwise.kernels_now != t.kernels_now else ""
        parts.append(f"{fewest}{plural(launches, 'launch')} fewer (counted)")
    elif t.most[1] > 0 and (dtype := saving.only_in(t)):
        parts.append(f"{plural(t.most[1], 'launch')} fewer in {dtype} (counted)")
    names = ", ".join(f"{name}: {meaning}" for name, meaning in t.symbols.items() if meaning and meaning != name)
    if t.calls is not None:
        parts.append(f"called {plural(t.calls, 'time')} in the recorded run")
    if t.saved_at is not None and t.typical:
        parts.append(saving.unsaid(t))
    if parts:
        yield "; ".join(parts) + (f" [{names}]" if names else "")
    if t.model is not None and (t.model.bytes or t.model.launches):
        yield _in_model(t.model, t)


def _amount(t: Traffic, launches: int) -> str:
    assert t.saved_at is not None
    if not t.saved_at and not launches and t.otherwise is None:
        return "saves nothing"
    if (dtype := saving.only_in(t)) and t.otherwise is not None:
        less = f"costs {size(-t.saved_at)}" if t.saved_at else "saves nothing"
        other = t.dtype if dtype == t.otherwise.dtype else t.otherwise.dtype
        return f"saves {size(t.most[0])} in {dtype}, {less} in {other}"
    if t.saved_at < 0:
        s = t.seconds
        costs = "costs" if t.otherwise is None else "may cost"
        return f"{costs} {size(-t.saved_at)}" + _time(s and Seconds(-s.high, -s.estimate, -s.low), t.chip)
    return f"saves {t.least}{size(t.saved_at)}" + _time(t.seconds, t.chip)


def _time(seconds: Seconds | None, chip: str) -> str:
    if seconds is None or not chip:
        return ""
    return f" and {duration(seconds.estimate)} ({duration(seconds.low)} to {duration(seconds.high)}) on {chip}"


def _sources(t: Traffic) -> str:
    """Which sizes nobody stated, and which a configuration did."""
    configured = [name for name, source in t.sources.items() if source == "config"]
    ran = [name for name, source in t.sources.items() if source == "recorded"]
    parts = [f"{', '.join(configured)} from the config"] if configured else []
    parts += [f"{', '.join(ran)} recorded"] if ran else []
    parts += [f"{', '.join(t.assumed)} assumed"] if t.assumed else []
    return f" ({'; '.join(parts)})" if parts else ""


PASSES = {"prefill": "a prefill of {tokens} tokens", "decode": "a token", "train": "a forward pass of {tokens} tokens"}


def _in_model(m: ModelSaving, t: Traffic) -> str:
    tokens = "" if m.tokens == 1 else f", {duration(m.seconds.estimate / m.tokens)} a token"
    objects, of_pass = plural(m.objects, "time"), PASSES[t.phase].format(tokens=m.tokens)
    if m.typical:
        fewer = f"{plural(m.launches, 'launch')} fewer (counted) {of_pass}; " if m.launches > 0 else ""
        return f"the model, {objects}: {fewer}its configuration doesn't say {saving.listed(m.typical)}"
    return (
        f"the model, {objects}: saves {size(m.bytes)} and {duration(m.seconds.estimate)} "
        f"({duration(m.seconds.low)} to {duration(m.seconds.high)}) {of_pass} on "
        f"{t.chip}{tokens}; {percent(m.share)} of the {size(m.moved)} that this file moves"
    )


def _advice(f: Finding) -> Iterator[str]:
    if f.fix:
        yield f"= {_fix_line(f.fix)}"
        unproven = {o.claim for o in f.obligations if o.verdict != "proven"}
        needs = [n for n in f.fix.needs if n not in unproven]
        if needs:
            yield f"= needs: {'; '.join(needs)}"
        if f.fix.requires:
            yield f"= after {', '.join(f.fix.requires)} is fixed: fix again"
        if f.fix.verification:
            v = f.fix.verification
            yield f"= verification {v.outcome}{f': {v.reason}' if v.reason else ''}"
    for o in f.obligations:
        if o.verdict != "proven":
            yield f"= not proven: {o.claim} ({o.because})"
    if f.code != "FUS000":
        yield f"= fuselint rule {f.code} | silence: # noqa: {f.code}"


def _fix_line(fix: Fix) -> str:
    if fix.applicability == "none":
        return f"no fix: {fix.message}"
    if fix.requires and not fix.edits:
        return f"fix later: {fix.message}"
    return f"fix ({fix.applicability}, {fix.numerics}): {fix.message}"
