"""SARIF 2.1.0, for code scanning: rules with their pages, findings with their fixes as replacements.

Columns count code points, as `columnKind` says. A finding is known again by its id, which moved lines don't change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from fuselint import __version__
from fuselint.finding import Finding, Fix
from fuselint.report import Source, advice, escape, level, pages
from fuselint.report.gitlab import fingerprint
from fuselint.rulebook import Rule, documented
from fuselint.source.text import FileText

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    rules = {r.code: r for r in documented()}
    used = sorted({f.code for f in findings})
    texts: dict[str, FileText] = {}
    results = []
    for f in findings:
        if f.path not in texts:
            texts[f.path] = FileText(f.path, source(f))
        results.append(_result(f, used.index(f.code), texts[f.path]))
    driver = {
        "name": "fuselint",
        "semanticVersion": __version__,
        "rules": [_rule(rules[c]) for c in used if c in rules],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return escape.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    summary, _, rest = rule.page.partition("\n\n")
    title = " ".join(summary.split()).partition(": ")[2] or rule.name
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": title},
        "fullDescription": {"text": " ".join(rest.split()) or title},
        "help": {"text": pages.text(rule), "markdown": pages.markdown(rule)},
        "properties": {"tags": ["performance", "mlx"]},
    }


def _result(f: Finding, rule: int, file: FileText) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": f.code,
        "ruleIndex": rule,
        "level": level(f),
        "message": {"text": "\n".join([f"cell {f.cell}: {f.message}" if f.cell else f.message, *advice(f)])},
        "locations": [_location(f.path, _region(f.line, f.column, f.end_line, f.end_column))],
        "partialFingerprints": {"fuselint/v1": fingerprint(f)},
    }
    if f.function:
        result["locations"][0]["logicalLocations"] = [{"fullyQualifiedName": f.function, "kind": "function"}]
    if f.related:
        result["relatedLocations"] = [
            {**_location(r.path, {"startLine": r.line}), "message": {"text": r.message}} for r in f.related
        ]
    if f.fix and f.fix.edits and file.text and not f.cell:
        result["fixes"] = [_fix(f.path, f.fix, file)]
    if f.traffic:
        t = f.traffic
        result["properties"] = {
            "bytesNow": t.bytes_now,
            "bytesFused": t.bytes_fused,
            "kernelsNow": t.kernels_now,
            "kernelsFused": t.kernels_fused,
            **({} if t.saved_at is None or t.typical else {"bytesSaved": t.saved_at}),
        }
    return result


def _fix(path: str, fix: Fix, file: FileText) -> dict[str, Any]:
    replacements = [
        {
            "deletedRegion": _region(*file.position(e.start), *file.position(e.end)),
            "insertedContent": {"text": e.text},
        }
        for e in fix.edits
    ]
    return {
        "description": {"text": f"{fix.message} ({fix.applicability}, {fix.numerics})"},
        "artifactChanges": [{"artifactLocation": {"uri": uri(path)}, "replacements": replacements}],
    }


def _location(path: str, region: Mapping[str, int]) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": {"uri": uri(path)}, "region": dict(region)}}


def _region(line: int, column: int, end_line: int, end_column: int) -> dict[str, int]:
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def uri(path: str) -> str:
    """A path as a URI reference: relative to where fuselint ran, or with its scheme."""
    if os.path.isabs(path):
        return "file://" + quote(os.fsencode(PurePath(path).as_posix()))
    return quote(os.fsencode(PurePath(path).as_posix()))
