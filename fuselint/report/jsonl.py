"""One JSON object a line, with the keys of the JSON format."""

from __future__ import annotations

from collections.abc import Sequence

from fuselint.finding import Finding
from fuselint.report import Source, escape
from fuselint.report.json import finding


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    return "".join(f"{escape.dumps(finding(f))}\n" for f in findings)
