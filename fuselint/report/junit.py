"""JUnit XML: a suite for each file, a failed case for each finding. Advice is a skipped case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuselint.finding import Finding
from fuselint.report import Source, advice, by_file, level
from fuselint.report.escape import xml

HEAD = '<?xml version="1.0" encoding="UTF-8"?>'


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    lines = [HEAD, f'<testsuites name="fuselint" {_counts(findings)}>']
    for path, found in by_file(findings).items():
        lines += _suite(path, found)
    if not findings:
        lines += ['<testsuite name="fuselint" tests="1" failures="0" skipped="0" errors="0">']
        lines += ['<testcase classname="fuselint" name="no findings"/>', "</testsuite>"]
    return "\n".join([*lines, "</testsuites>", ""])


def _counts(findings: Sequence[Finding]) -> str:
    levels = [level(f) for f in findings]
    counted = {"tests": len(levels) or 1, "failures": levels.count("warning"), "skipped": levels.count("note")}
    return " ".join(f'{name}="{number}"' for name, number in {**counted, "errors": levels.count("error")}.items())


def _suite(path: str, findings: Sequence[Finding]) -> Iterator[str]:
    yield f'<testsuite name="{xml(path)}" {_counts(findings)}>'
    for f in findings:
        yield f'<testcase classname="{xml(path)}" name="{f.code} {f.name} ({f.line}:{f.column})" line="{f.line}">'
        element = {"warning": "failure", "note": "skipped", "error": "error"}[level(f)]
        said = "\n".join([f"{f.place}:{f.line}:{f.column}: {f.message}", *advice(f)])
        yield f'<{element} type="{f.code}" message="{xml(f.message)}">{xml(said)}</{element}>'
        yield "</testcase>"
    yield "</testsuite>"
