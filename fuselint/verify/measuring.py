"""The child process that times one region: its alternatives, each verified, in turns, at the sizes of each phase.

-> {"region": {...}, "phases": {phase: {"sizes": {...}, "lead": [...]}}, "dtype": ..., "device": ..., ...}
<- {"device": ..., "phases": {phase: {"timings": {...}, "reason": ...}}, "refused": {name: reason}}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import mlx.core as mx

from fuselint.finding import Region, Timing
from fuselint.verify import compare
from fuselint.verify import inputs as made
from fuselint.verify.alternatives import AS_IT_IS, FIXED, Alternative, alternatives
from fuselint.verify.child import region_of
from fuselint.verify.inputs import BadInput, Case, Inputs, readings, scalar_choices
from fuselint.verify.judge import Program, device_name
from fuselint.verify.timing import ROUNDS, interleaved

MOST_ELEMENTS = 1 << 28


def measure(
    region: Region,
    phases: Mapping[str, Mapping[str, Any]],
    dtype: str,
    every: bool,
    seed: int = 0,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Time the code as it is and its fix, or with `every` all alternatives."""
    chosen = [a for a in alternatives(region) if every or a.name in (AS_IT_IS, FIXED)]
    refused: dict[str, str] = {}
    found: dict[str, Any] = {}
    for phase, given in phases.items():
        try:
            found[phase] = _phase(region, given, dtype, chosen, refused, seed, rounds)
        except BadInput as e:
            found[phase] = {"timings": {}, "reason": str(e)}
    return {"device": device_name(), "phases": found, "refused": refused}


def _phase(
    region: Region,
    given: Mapping[str, Any],
    dtype: str,
    chosen: list[Alternative],
    refused: dict[str, str],
    seed: int,
    rounds: int,
) -> dict[str, Any]:
    values, names, why = _inputs(region, given, dtype, seed)
    if values is None:
        return {"timings": {}, "reason": f"the code does not run at these sizes: {why}"}
    calls: dict[str, Callable[[int], None]] = {}
    reference: Any = None
    for a in chosen:
        try:
            call = _prepared(a, names, values)
            result = call()
            mx.eval([v for _, v in compare.leaves(result) if isinstance(v, mx.array)])
        except Exception as e:
            refused.setdefault(a.name, f"{type(e).__name__}: {str(e)[:200]}")
            continue
        if reference is None:
            reference = result
        elif wrong := _differs(reference, result, region):
            refused.setdefault(a.name, wrong)
            continue
        calls[a.name] = _timed(call)
    peaks = {name: _peak(call) for name, call in calls.items()}
    timings = interleaved(calls, rounds)
    return {
        "timings": {n: asdict(Timing(t.seconds, t.spread, peaks[n])) for n, t in timings.items()},
        "reason": "",
    }


def _inputs(
    region: Region, given: Mapping[str, Any], dtype: str, seed: int
) -> tuple[dict[str, Any] | None, list[str], str]:
    """The names and arrays that the code as it is runs with."""
    made.MOST_ELEMENTS = MOST_ELEMENTS
    why = ""
    for reading in readings(region):
        names = [i.name for i in reading.inputs]
        program = Program(reading.before, reading.support_before, names)
        for scalars in scalar_choices(reading):
            for lead in (tuple(given["lead"]), tuple(given["lead"])[-1:], (given["lead"][0], 1, given["lead"][-1])):
                try:
                    case = Case(given["sizes"], lead, dtype, scalars=scalars)
                    values, _ = Inputs(reading, case, seed).fresh(program.kind)
                    mx.eval([v for _, v in compare.leaves(program(values)) if isinstance(v, mx.array)])
                except Exception as e:
                    why = why or f"{type(e).__name__}: {str(e)[:200]}"
                    continue
                return values, names, ""
    return None, [], why


def _prepared(a: Alternative, names: list[str], values: dict[str, Any]) -> Callable[[], Any]:
    if not a.setup:
        program = Program(a.text, a.support, names)
        return lambda: program(values)
    once = Program(f"{a.setup}result = {_bound(a.setup)}\n", "", names)(values)
    mx.eval([v for _, v in compare.leaves(once) if isinstance(v, mx.array)])
    program = Program(a.text, a.support, [*names, _bound(a.setup)])
    return lambda: program({**values, _bound(a.setup): once})


def _bound(setup: str) -> str:
    return "_dense" if setup.startswith("_dense") else "_compiled"


def _timed(call: Callable[[], Any]) -> Callable[[int], None]:
    def run(count: int) -> None:
        mx.eval([v for _ in range(count) for _, v in compare.leaves(call()) if isinstance(v, mx.array)])
        mx.synchronize()

    return run


def _peak(call: Callable[[int], None]) -> int:
    call(1)
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    call(1)
    return max(0, int(mx.get_peak_memory() - held))


def _differs(reference: Any, result: Any, region: Region) -> str:
    """A coarse check: verification has judged the fix itself, on inputs that show more."""
    declared = region.numerics == "different dtype"
    if wrong := compare.structure(reference, result, dtypes="any" if declared else "same"):
        return wrong
    for (path, a), (_, b) in zip(compare.leaves(reference), compare.leaves(result), strict=True):
        if isinstance(a, mx.array) and mx.issubdtype(a.dtype, mx.floating):
            gap = compare.relative(a, b)
            if gap > 32 * max(compare.ROUNDING.get(x.dtype, 2.0**-20) for x in (a, b)):
                return f"{path} differs by {gap:.1e} of the largest value"
    return ""


def main() -> None:
    job = json.loads(sys.stdin.read())
    if job["device"]:
        mx.set_default_device(mx.cpu if job["device"] == "cpu" else mx.gpu)
    found = measure(region_of(job["region"]), job["phases"], job["dtype"], job["every"], job["seed"], job["rounds"])
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
