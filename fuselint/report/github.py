"""Workflow commands of GitHub Actions: an annotation beside the code of each finding."""

from __future__ import annotations

from collections.abc import Sequence

from fuselint.finding import Finding
from fuselint.report import Source, advice, escape, level

COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    return "".join(_annotation(f) + "\n" for f in findings)


def _annotation(f: Finding) -> str:
    properties = {"title": f"{f.code} {f.name}", "file": f.path, "line": f.line, "endLine": f.end_line}
    if f.line == f.end_line:  # columns of several lines are refused
        properties |= {"col": f.column, "endColumn": f.end_column}
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    said = "\n".join([f"cell {f.cell}: {f.message}" if f.cell else f.message, *advice(f)])
    return f"::{COMMANDS[level(f)]} {listed}::{_data(said)}"


def _data(text: str) -> str:
    return escape.lines(text.replace("%", "%25")).replace("\n", "%0A")


def _property(text: str) -> str:
    return escape.line(text.replace("%", "%25")).replace(":", "%3A").replace(",", "%2C")
