"""One trace from request to report: the call as it stands, compiled whole, and as `fuselint fix` would write it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuselint.chips import chosen
from fuselint.config import Settings
from fuselint.errors import FuselintError
from fuselint.report import plural, size
from fuselint.trace.lines import Line, Totals, by_line, totals
from fuselint.trace.model import Request, Traced
from fuselint.trace.process import Tracing
from fuselint.trace.savings import Saving, fixed, savings


@dataclass(frozen=True, slots=True)
class Survey:
    """A finished trace. totals: of each reading: eager, compiled, and fixed where there was something to fix.

    notes: what a reader has to know of the numbers, a line each.
    """

    target: str
    backend: str
    mlx: str
    chip: str
    peak_memory: int
    lines: Sequence[Line]
    totals: Mapping[str, Totals]
    savings: Sequence[Saving]
    notes: Sequence[str]


def survey(request: Request, settings: Settings, fixes: bool = True) -> Survey:
    """Trace, and unless `fixes` is off, trace again with the fixes that `settings` allow. Raises FuselintError."""
    chip, _ = chosen(settings.chip)
    with Tracing(request) as tracing:
        traced = tracing.traced
        found = savings(tracing, settings) if fixes else []
    runs = {"eager": traced.eager, "compiled": traced.compiled}
    sums = {name: totals(run, traced.evaluations, chip) for name, run in runs.items()}
    notes = list(_notes(traced))
    if found:
        try:
            after = fixed(request, traced, settings)
        except FuselintError as e:
            after = None
            notes.append(f"the fixed code can't be traced: {e}")
        if after is not None:
            sums["fixed"] = totals(after.eager, after.evaluations, chip)
    return Survey(
        target=request.target,
        backend=request.backend,
        mlx=traced.mlx,
        chip=chip.name,
        peak_memory=traced.peak_memory,
        lines=by_line(traced, runs),
        totals=sums,
        savings=found,
        notes=notes,
    )


def _notes(traced: Traced) -> Iterator[str]:
    yield f"nothing was evaluated: MLX held {size(traced.peak_memory)} at most"
    if traced.evaluations:
        yield f"{plural(traced.evaluations, 'call')} of mx.eval on the way: no mx.compile can hold the whole"
    if traced.unknown:
        yield f"counted as one kernel each, because MLX can't export them: {', '.join(traced.unknown)}"
