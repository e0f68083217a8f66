"""One line a finding: `path:line:column: CODE [applicability] message`."""

from __future__ import annotations

from collections.abc import Sequence

from fuselint.finding import Finding
from fuselint.report import Source, escape
from fuselint.report.style import Style


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    style = Style(color)
    return "".join(_line(f, style) + "\n" for f in findings)


def _line(f: Finding, style: Style) -> str:
    place = style.bold(f"{escape.line(f.place)}:{f.line}:{f.column}:")
    level = f" [{f.fix.applicability}]" if f.fix else ""
    return f"{place} {style.code(f.code)}{level} {escape.line(f.message)}"
