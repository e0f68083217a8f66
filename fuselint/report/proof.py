"""What running each fix before and after showed: as text, JSON, or a page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from fuselint.finding import Finding, Traffic, Verification
from fuselint.report import duration, plural, size
from fuselint.report.json import finding as as_json
from fuselint.report.page import page, table
from fuselint.report.saving import brief

OUTCOMES = ("passed", "failed", "not verifiable")


def render(found: Sequence[Finding], form: str) -> str:
    """found: those whose fix was made or withheld."""
    if form == "json":
        return json.dumps([as_json(f) for f in found], indent=1, ensure_ascii=False) + "\n"
    if form == "html":
        return _page(found)
    return "".join(f"{line}\n" for f in found for line in _text(f))


def closing(found: Sequence[Finding]) -> str:
    counts = Counter[str](_seen(f).outcome for f in found)
    return f"{plural(len(found), 'fix')}: {', '.join(f'{counts[o]} {o}' for o in OUTCOMES if counts[o]) or 'none'}"


def _seen(f: Finding) -> Verification:
    seen = f.fix.verification if f.fix is not None else None
    return seen or Verification("not verifiable", "there is nothing to run")


def _text(f: Finding) -> Iterator[str]:
    v = _seen(f)
    yield f"{f.path}:{f.line}:{f.column} {f.code} {v.outcome}{'' if v.outcome == 'passed' else f': {v.reason}'}"
    for name, what in _rows(f):
        yield f"  {name:<10} {what}"


def _rows(f: Finding) -> Iterator[tuple[str, str]]:
    """What there is to say of one fix, by what it is about."""
    v = _seen(f)
    if v.device:
        yield "run", f"on {v.device}, MLX {v.mlx}, {plural(v.cases, 'case')}, seed {v.seed}"
    for dtype, (before, after) in sorted(v.ulp.items()):
        yield dtype, f"{before:.2g} ulp from float64 before, {after:.2g} after"
    if v.gradient is not None:
        yield "gradients", f"within {v.gradient:.1e} of the largest"
    if v.repaired:
        yield "repairs", f"{plural(v.repaired, 'value')} that overflowed or had lost their digits are right now"
    for note in _notes(v):
        yield "note", note
    if f.traffic is not None:
        yield from _traffic(f.traffic)
    for phase, measured in v.measured.items():
        for name, t in measured.timings.items():
            yield phase, f"{name}: {duration(t.seconds)} +- {duration(t.spread)}, peak {size(t.peak_memory)}"
        if measured.reason:
            yield phase, f"not timed: {measured.reason}"


def _notes(v: Verification) -> Iterator[str]:
    """Parts of the reason that nothing else says."""
    if v.outcome != "passed":
        return
    for part in v.reason.split("; "):
        known = ": error " in part or part.startswith("gradients within") or part.endswith("are right now")
        if not known and part != "ran":
            yield part


def _traffic(t: Traffic) -> Iterator[tuple[str, str]]:
    yield "kernels", f"{t.kernels_now} before, {t.kernels_fused} after"
    at = " at " + " ".join(f"{n}={v}" for n, v in t.at.items()) if t.at and not t.typical else ""
    saved = f"; {brief(t)} saved{at}" if t.saved_at else ""
    yield "bytes", f"{t.bytes_now} before, {t.bytes_fused} after{saved}"


def _page(found: Sequence[Finding]) -> str:
    rows = [("place", "rule", "why not", "outcome")]
    for f in found:
        v = _seen(f)
        rows.append((f"{f.path}:{f.line}", f.code, v.reason if v.outcome != "passed" else "", v.outcome))
    body = [table(rows, wrong="passed")]
    for f in found:
        body.append(f"<h2>{escape(f'{f.path}:{f.line}:{f.column} {f.code} {f.name}')}</h2>")
        body.append(f"<p>{escape(f.fix.message if f.fix is not None else '')}</p>")
        body.append(table([("", _seen(f).outcome), *_rows(f)]))
    return page(f"fuselint: {closing(found)}", body)
