"""Findings under the name of their file, in columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuselint.finding import Finding
from fuselint.report import Source, by_file, escape
from fuselint.report.style import Style


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    style = Style(color)
    groups = by_file(findings).items()
    return "\n".join("".join(f"{line}\n" for line in _file(path, found, style)) for path, found in groups)


def _file(path: str, findings: Sequence[Finding], style: Style) -> Iterator[str]:
    yield style.bold(f"{escape.line(path)}:")
    places = [f"{f.line}:{f.column}" for f in findings]
    levels = [f"[{f.fix.applicability}]" if f.fix else "" for f in findings]
    place_width, level_width = (max(map(len, column)) for column in (places, levels))
    for f, place, level in zip(findings, places, levels, strict=True):
        columns = f"{place:>{place_width}}  {style.code(f.code)}  {level:<{level_width}}"
        yield f"  {columns}  {escape.line(f.message)}"
