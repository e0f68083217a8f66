"""GitLab's code quality report: shown in merge requests, where findings are told apart by their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from fuselint.finding import Finding
from fuselint.report import Source, escape, level

SEVERITIES = {"error": "critical", "warning": "minor", "note": "info"}


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    return escape.dumps([_issue(f) for f in findings], indent=1) + "\n"


def _issue(f: Finding) -> dict[str, Any]:
    return {
        "description": f"{f.code} {f'cell {f.cell}: ' if f.cell else ''}{f.message}",
        "check_name": f.name,
        "fingerprint": fingerprint(f),
        "severity": SEVERITIES[level(f)],
        "location": {"path": f.path.removeprefix("./"), "lines": {"begin": f.line, "end": f.end_line}},
    }


def fingerprint(f: Finding) -> str:
    """Of a finding in its file; it stays the same where only lines move."""
    key = "\0".join([f.path, f.code, f.id or f"{f.line}:{f.column} {f.message}"])
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
