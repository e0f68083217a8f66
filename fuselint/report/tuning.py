"""What was timed, as text or JSON: each region, phase and way to write it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from fuselint.finding import Measured
from fuselint.report import duration, size
from fuselint.tuning import Tried


def render(tried: Sequence[Tried], form: str) -> str:
    if form == "json":
        return json.dumps([_data(t) for t in tried], indent=1, ensure_ascii=False) + "\n"
    return "".join(f"{line}\n" for t in tried for line in lines(t))


def lines(t: Tried) -> Iterator[str]:
    f = t.finding
    yield f"{f.path}:{f.line}:{f.column} {f.code} {'fixed' if t.kept else 'left as it is: the fix is not faster here'}"
    if t.choice.reason:
        yield f"  not timed: {t.choice.reason}"
    for phase, measured in t.choice.by_phase.items():
        yield from _phase(phase, measured, t.best.get(phase, ""))
    for name, why in t.choice.refused.items():
        yield f"  no alternative: {name}: {why}"


def brief(t: Tried) -> str:
    """One line for each that is timed, which takes many seconds."""
    f = t.finding
    best = ", ".join(f"{phase} {name}" for phase, name in t.best.items())
    return (
        f"timed {f.path}:{f.line}:{f.column} {f.code}: {f'fastest: {best}' if best else t.choice.reason or 'nothing'}"
    )


def _phase(phase: str, measured: Measured, best: str) -> Iterator[str]:
    sizes = " ".join(f"{n}={v}" for n, v in measured.sizes.items() if n.isidentifier())
    yield f"  {phase} on {measured.device}{f', {sizes}' if sizes else ''}: {measured.reason or best}"
    for name, timing in sorted(measured.timings.items(), key=lambda item: item[1].seconds):
        time = f"{duration(timing.seconds)} +- {duration(timing.spread)}"
        yield f"    {name:<30} {time:<22} peak {size(timing.peak_memory)}"


def _data(t: Tried) -> dict[str, object]:
    f = t.finding
    where = {"path": f.path, "line": f.line, "column": f.column, "code": f.code, "id": f.id}
    return {**where, "kept": t.kept, "fastest": t.best, **asdict(t.choice)}
