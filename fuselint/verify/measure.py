"""Times of regions on this machine's GPU, each in a child process. On the CPU nothing is timed: it says nothing of one.

region -> sizes of a prefill and a decode step -> child -> Measured by phase
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fuselint.config import LONG_DTYPES, Settings
from fuselint.finding import Finding, Measured, Region, Timing
from fuselint.verify.phases import MEASURED, lead, sizes
from fuselint.verify.process import environment
from fuselint.verify.timing import ROUNDS, fastest

NO_CPU = "no speed is measured on the CPU: it says nothing of a GPU"
SECONDS = 120.0


@functools.cache
def gpu() -> bool:
    """Whether MLX runs on a GPU here. Asked in a child process: the parent imports no MLX."""
    code = "import mlx.core as mx; print(mx.default_device() == mx.gpu)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    return done.stdout.strip() == "True"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was timed of one region, by phase; what is fastest; and what was no alternative, with the reason."""

    by_phase: Mapping[str, Measured] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""

    def fastest(self, usual: str) -> dict[str, str]:
        """By phase, `usual` where nothing is faster beyond noise."""
        return {p: fastest(m.timings, usual) for p, m in self.by_phase.items() if m.timings}


def measure(
    region: Region,
    finding: Finding,
    settings: Settings,
    *,
    every: bool = False,
    device: str = "",
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Choice:
    """Time a region before and after its fix; with `every`, all ways to write it. device: "" for the GPU."""
    if region.not_verifiable:
        return Choice(reason=f"can't be run by itself: {region.not_verifiable}")
    if not device and not gpu():
        return Choice(reason=NO_CPU)
    long = {short: name for name, short in LONG_DTYPES.items()}
    names = _names(region)
    at = {p: sizes(region, finding.traffic, names, p) for p in MEASURED}
    job = {
        "region": asdict(region),
        "phases": {p: {"sizes": at[p], "lead": lead(region, p)} for p in MEASURED},
        "dtype": long[settings.activation],
        "device": device,
        "every": every,
        "seed": seed,
        "rounds": rounds,
    }
    with tempfile.TemporaryDirectory(prefix="fuselint-measure-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "fuselint.verify.measuring"],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment(),
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Choice(reason=f"timed out after {SECONDS:g} s")
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return Choice(reason=f"crashed: {last[0][:300]}")
    found = json.loads(done.stdout)
    by_phase = {
        p: Measured(found["device"], at[p], {n: Timing(**t) for n, t in m["timings"].items()}, m["reason"])
        for p, m in found["phases"].items()
    }
    return Choice(by_phase, found["refused"])


def _names(region: Region) -> list[str]:
    """The names of sizes in the shapes of a region."""
    import ast

    out: dict[str, None] = {"rows of an unknown shape": None, "width of an unknown shape": None}
    for given in region.inputs:
        for text in (*(given.shape or ()), *([given.symbol] if given.symbol else [])):
            if text != "...":
                out.update((ast.unparse(n), None) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name))
    return list(out)
