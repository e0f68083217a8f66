"""A list of findings as JSON: the keys are stable, columns are 1-based code points, ends are exclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fuselint.finding import Finding, Fix, Traffic, Verification
from fuselint.report import Source, escape


def render(findings: Sequence[Finding], source: Source, color: bool = False) -> str:
    return escape.dumps([finding(f) for f in findings], indent=1) + "\n"


def finding(f: Finding) -> dict[str, Any]:
    return {
        "id": f.id,
        "code": f.code,
        "name": f.name,
        "message": f.message,
        "path": f.path,
        "cell": f.cell or None,
        "line": f.line,
        "column": f.column,
        "end_line": f.end_line,
        "end_column": f.end_column,
        "function": f.function,
        "related": [asdict(r) for r in f.related],
        "fix": _fix(f.fix) if f.fix else None,
        "obligations": [asdict(o) for o in f.obligations],
        "traffic": _traffic(f.traffic) if f.traffic else None,
    }


def proof(seen: Verification) -> dict[str, Any]:
    """Without the seconds that it took, which differ from run to run."""
    return {name: value for name, value in asdict(seen).items() if name != "took"}


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "applicability": fix.applicability,
        "message": fix.message,
        "edits": [asdict(e) for e in fix.edits],
        "needs": list(fix.needs),
        "requires": list(fix.requires),
        "numerics": fix.numerics,
        "verification": proof(fix.verification) if fix.verification else None,
    }


def _traffic(t: Traffic) -> dict[str, Any]:
    return {
        "symbols": dict(t.symbols),
        "bytes_now": t.bytes_now,
        "bytes_fused": t.bytes_fused,
        "kernels_now": t.kernels_now,
        "kernels_fused": t.kernels_fused,
        "launches_fewer": t.launches_fewer,
        "dtype": t.dtype,
        "at": dict(t.at),
        "saved_at": t.saved_at,
        "assumed": list(t.assumed),
        "sources": dict(t.sources),
        "chip": t.chip,
        "phase": t.phase,
        "seconds": asdict(t.seconds) if t.seconds else None,
        "model": asdict(t.model) if t.model else None,
        "calls": t.calls,
        "otherwise": asdict(t.otherwise) if t.otherwise else None,
        "saves": asdict(t.saves) if t.saves else None,
    }
