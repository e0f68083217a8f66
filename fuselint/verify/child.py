"""The child process: reads a job as JSON, judges its regions one after another, and says so in lines of JSON.

    {"start": 3}                                     region 3 begins
    {"at": "before" | "after" | "between"}           what runs now
    {"done": 3, "outcome": "{...}", "lasting": true}   region 3 ends

What a region prints goes nowhere. Limits are the operating system's where it has them, and a watchdog's.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuselint.finding import Region, RegionInput, Took, Verification
from fuselint.orphan import end_with_parent
from fuselint.plain import dumps


def region_of(data: dict[str, Any]) -> Region:
    """A region as it was before it became JSON."""

    def given(d: dict[str, Any]) -> RegionInput:
        return RegionInput(**{**d, "shape": None if d["shape"] is None else tuple(d["shape"])})

    inputs = tuple(given(d) for d in data["inputs"])
    return Region(**{**data, "inputs": inputs, "needs": tuple(data["needs"])})


def limit(memory: int, output: int, device: str | None) -> None:
    """Cap memory and written files. A GPU maps far more address space than it uses: there only the watchdog counts.

    What MLX has mapped when it was loaded doesn't count: its CUDA build alone is gigabytes.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (output, output))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux" and device == "cpu":
        with contextlib.suppress(ValueError, OSError):
            mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (mapped + memory, mapped + memory))
    scale = 1 if sys.platform == "darwin" else 1024

    def watch() -> None:
        while True:
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale > memory:
                os.write(2, b"out of memory\n")
                os._exit(77)
            time.sleep(0.05)

    threading.Thread(target=watch, daemon=True).start()


def _now() -> Took:
    """The clock, and the CPU time of all compilers that have ended."""
    try:
        import resource
    except ImportError:  # Windows
        return Took(time.monotonic())
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(time.monotonic(), ended.ru_utime + ended.ru_stime)


def _since(began: Took) -> Took:
    now = _now()
    return Took(now.seconds - began.seconds, now.compiling - began.compiling)


def main() -> None:
    end_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    job = json.loads(sys.stdin.buffer.read())

    def say(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")
        out.flush()

    import mlx.core as mx

    if job["device"] is not None:
        mx.set_default_device(mx.cpu if job["device"] == "cpu" else mx.gpu)
    limit(job["memory"], job["output"], "cpu" if mx.default_device() == mx.cpu else None)

    from fuselint.verify.judge import judge

    for number, data in job["regions"]:
        say(start=number)
        began = _now()
        lasting = True
        try:
            outcome = judge(region_of(data), job["seed"], lambda at: say(at=at))
        except MemoryError:
            outcome, lasting = Verification("not verifiable", "out of memory"), False
        except Exception as e:
            outcome = Verification(
                "not verifiable", f"the verifier failed: {type(e).__name__}: {e}", mlx=mx.__version__
            )
            lasting = False
        say(done=number, outcome=dumps(replace(outcome, took=_since(began))), lasting=lasting)


if __name__ == "__main__":
    main()
