"""A table for the summary of a CI job, or a comment on a change: what saves most first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuselint.finding import Finding
from fuselint.report import Source, escape, plural, saving

MOST_ROWS = 200
"""GitHub takes a comment of 65,536 characters."""


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    return "".join(f"{line}\n" for line in _lines(findings))


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    files = len({f.path for f in findings})
    where = f" in {plural(files, 'file')}" if findings else ""
    yield from [f"### fuselint: {plural(len(findings), 'finding')}{where}"]
    if not findings:
        return
    yield from ["", "| where | rule | finding | saves | fix |", "|---|---|---|---:|---|"]
    ordered = sorted(findings, key=lambda f: -(f.traffic.saved_at or 0) if f.traffic else 0)
    for f in ordered[:MOST_ROWS]:
        cells = (escape.code(f"{f.place}:{f.line}"), f.code, escape.markdown(f.message), _saves(f), _fix(f))
        yield f"| {' | '.join(cells)} |"
    if len(ordered) > MOST_ROWS:
        yield from ["", f"and {len(ordered) - MOST_ROWS} more"]


def _saves(f: Finding) -> str:
    t, saved = f.traffic, escape.markdown(saving.brief(f.traffic))
    is_number = t is not None and saved and not t.typical
    return f"{saved} ({escape.markdown(', '.join(t.assumed))} assumed)" if t and is_number and t.assumed else saved


def _fix(f: Finding) -> str:
    if f.fix is None:
        return ""
    if f.fix.applicability == "none":
        return f"none: {escape.markdown(f.fix.message)}"
    return f"{f.fix.applicability}: {escape.code(f.fix.message)}"
