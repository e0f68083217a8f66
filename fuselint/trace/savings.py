"""What the fixes of the traced files would delete from a pass: findings on its lines, at the sizes that it ran with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fuselint.config import LONG_DTYPES, Settings
from fuselint.engine import check_paths, fix_paths
from fuselint.finding import Finding, Traffic
from fuselint.graph.symbols import evaluate
from fuselint.trace.lines import dtype_of
from fuselint.trace.model import Request, Traced
from fuselint.trace.process import Tracing


@dataclass(frozen=True, slots=True)
class Saving:
    """A finding that the traced pass ran through. runs: how often. assumed: sizes that the trace didn't show; typical:
    those of them that nothing else says either."""

    finding: Finding
    runs: int
    bytes: int
    launches: int
    assumed: tuple[str, ...] = ()
    typical: tuple[str, ...] = ()


def files(traced: Traced) -> list[str]:
    """The source files whose lines led to MLX."""
    paths = sorted({shown(a.path) for a in traced.activations if a.path.endswith(".py")})
    return [p for p in paths if os.path.isfile(p)]


def savings(tracing: Tracing, settings: Settings) -> list[Saving]:
    """The findings with a fix on lines that the pass ran, the largest saving first."""
    dtype = LONG_DTYPES.get(dtype_of(tracing.traced.eager.kernels))
    results = check_paths(files(tracing.traced), replace(settings, dtype=dtype or settings.dtype))
    moved = moved_by(tracing.traced)
    out = [s for r in results for f in r.findings if (s := _saving(tracing, f, moved)) is not None]
    return sorted(out, key=lambda s: -s.bytes)


def fixed(request: Request, traced: Traced, settings: Settings) -> Traced | None:
    """The same call of the code that `fuselint fix` would write, traced too. None where there is nothing to fix.

    Raises FuselintError where the fixed code can't be traced.
    """
    changed = [f for f in fix_paths(files(traced), settings) if f.after != f.before]
    if not changed:
        return None
    texts = {os.path.realpath(f.path): f.after for f in changed}
    with Tracing(replace(request, overlay=texts)) as again:
        return again.traced


def shown(path: str) -> str:
    """A path as the user would write it: relative where the file lies below the current folder."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return path if relative.startswith("..") else relative


def _saving(tracing: Tracing, finding: Finding, moved: Mapping[int, int]) -> Saving | None:
    fix, traffic = finding.fix, finding.traffic
    if fix is None or fix.applicability == "none" or traffic is None:
        return None
    runs = list(_runs(tracing, finding))
    saved = launches = 0
    assumed: set[str] = set()
    for activation in runs:
        at, unknown = sizes(tracing, activation, traffic)
        saved += min(evaluate(traffic.bytes_now, at) - evaluate(traffic.bytes_fused, at), moved.get(activation, 0))
        launches += traffic.launches_fewer
        assumed.update(unknown)
    typical = tuple(name for name in traffic.typical if name in assumed)
    return Saving(finding, len(runs), saved, launches, tuple(sorted(assumed)), typical) if runs else None


def moved_by(traced: Traced) -> Mapping[int, int]:
    """The bytes that each run of a function moves, with what it calls: no fix can delete more."""
    out: dict[int, int] = {}
    for kernel, number in zip(traced.eager.kernels, traced.eager.places, strict=True):
        for activation in {a for a, _ in traced.places[number]}:
            out[activation] = out.get(activation, 0) + kernel.bytes
    return out


def _runs(tracing: Tracing, finding: Finding) -> Iterator[int]:
    """The runs of the finding's function that came to its lines."""
    name = finding.function.rpartition(".")[2]
    for number, a in enumerate(tracing.traced.activations):
        own = shown(a.path) == finding.path and a.name.rpartition(".")[2] == name
        if own and any(finding.line <= line <= finding.end_line for line in a.lines):
            yield number


def sizes(tracing: Tracing, activation: int, traffic: Traffic) -> tuple[Mapping[str, int], set[str]]:
    """Numbers for the names of a finding's formulas in one run, and which of those that matter it didn't show."""
    asked = {name: expressions(name, traffic.symbols) for name in traffic.symbols}
    flat = list(dict.fromkeys(e for listed in asked.values() for e in listed))
    known = dict(zip(flat, tracing.sizes(activation, flat), strict=True))
    at, unknown = dict(traffic.numbers), set()
    for name, listed in asked.items():
        found = next((n for e in listed if (n := known[e]) is not None), None)
        if found is not None:
            at[name] = found
        elif name in traffic.at:
            unknown.add(name)
    return at, unknown


ROWS, LAST_AXIS = "rows of ", "last axis of "


def expressions(name: str, meanings: Mapping[str, str]) -> Sequence[str]:
    """What to look up for the name of a size, the surest first.

    A name that isn't the code's own says what it stands for: `T` the rows of x, `D` its last axis or a weight's size.
    """
    meaning = meanings.get(name, name)
    if meaning.startswith(ROWS):
        x = meaning.removeprefix(ROWS)
        return [f"{x}.size // {x}.shape[-1]"]
    if meaning.startswith(LAST_AXIS):
        return [f"{meaning.removeprefix(LAST_AXIS)}.shape[-1]"]
    if meaning == name:
        return [name]
    rows = next((m.removeprefix(ROWS) for m in meanings.values() if m.startswith(ROWS)), None)
    return [meaning, *([f"{rows}.shape[-1]"] if rows is not None else [])]
