"""The parent's side of verification: children with limits, and what becomes of one that crashes or hangs.

Several regions share one child, which reports each as it starts and ends it (child.py). When it dies, only the region
that it was at is lost; a new child takes the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import fuselint
from fuselint.finding import Region, Verification
from fuselint.plain import loads

START_SECONDS = 120.0
"""A child that takes longer than this to import MLX and report itself is given up."""
FEW = 8
"""So many regions are not worth a second child, which takes a second to import MLX."""
LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a child may use: seconds for each region, bytes of memory for all, bytes written to files or stderr."""

    seconds: float = 60
    memory: int = 8 << 30
    output: int = 64 << 20


Outcome = tuple[Verification, bool]
"""An outcome, and whether it would be the same another time (a crash or a timeout may not be)."""


def run(
    regions: Sequence[Region], device: str | None, seed: int, limits: Limits, version: str, jobs: int | None = None
) -> list[Outcome]:
    """Judge the regions, in `jobs` children at a time: what takes long is the compiler that mx.compile calls."""
    if jobs is None:
        jobs = min(4, (os.cpu_count() or 1) // 2, len(regions) // FEW)
    if jobs < 2:
        return _run(regions, device, seed, limits, version)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(lambda i: _run(regions[i::jobs], device, seed, limits, version), range(jobs))
        by_part = [iter(part) for part in parts]
    return [next(by_part[i % jobs]) for i in range(len(regions))]


def _run(regions: Sequence[Region], device: str | None, seed: int, limits: Limits, version: str) -> list[Outcome]:
    """Judge the regions in children, one after another."""
    done: dict[int, Outcome] = {}
    while len(done) < len(regions):
        left = [i for i in range(len(regions)) if i not in done]
        reached = False
        with _Child([(i, regions[i]) for i in left], device, seed, limits) as child:
            for i, outcome in child.outcomes(version):
                done[i] = outcome
                reached = True
        if not reached:
            for i in left:
                done[i] = (Verification("not verifiable", child.why_unusable(), mlx=version), False)
    return [done[i] for i in range(len(regions))]


def _lost(reason: str, by_fix: bool, version: str) -> Outcome:
    """A region that its child did not survive. Where the fixed code did it, the code before had run: the fix failed."""
    if by_fix:
        return Verification("failed", f"the fixed code: {reason}", mlx=version), False
    return Verification("not verifiable", reason, mlx=version), False


def environment() -> dict[str, str]:
    """That of a child that runs nothing of the user's module."""
    out = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    out["PYTHONPATH"] = str(Path(fuselint.__file__).resolve().parent.parent)
    out.pop("MLX_DISABLE_COMPILE", None)
    out["MLX_ENABLE_TF32"] = "0"  # a float32 matmul in TF32 would hide or fake a difference
    return out


class _Child:
    """A process that judges regions, and the threads that read what it says."""

    def __init__(self, regions: list[tuple[int, Region]], device: str | None, seed: int, limits: Limits) -> None:
        self._limits = limits
        job = {
            "device": device,
            "seed": seed,
            "memory": limits.memory,
            "output": limits.output,
            "regions": [[i, asdict(r)] for i, r in regions],
        }
        self._folder = tempfile.TemporaryDirectory(prefix="fuselint-verify-")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuselint.verify.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,  # empty: no file of the user's shadows a module
            env=environment(),
            start_new_session=os.name == "posix",
        )
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._errors = bytearray()
        self._threads = [
            threading.Thread(target=f, args=a, daemon=True)
            for f, a in (
                (self._feed, (self._process.stdin, json.dumps(job).encode())),
                (self._read, (self._process.stdout,)),
                (self._keep, (self._process.stderr,)),
            )
        ]
        for t in self._threads:
            t.start()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        for t in self._threads:
            t.join(5)
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def outcomes(self, version: str) -> Iterator[tuple[int, Outcome]]:
        """Each region that got an outcome, until the child ends or has to be ended."""
        at: int | None = None
        phase, since = "", 0.0
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self._kill()
                if at is not None:
                    hangs = phase == "after" and time.monotonic() - since > self._limits.seconds / 2
                    yield at, _lost(f"timed out after {self._limits.seconds:g} s", hangs, version)
                return
            if line is None:
                if at is not None:
                    yield at, _lost(f"crashed: {self._death()}", phase == "after", version)
                return
            if "start" in line:
                at = int(line["start"])
                phase, since = "", time.monotonic()
                end = since + self._limits.seconds
            elif "at" in line:
                phase, since = str(line["at"]), time.monotonic()
            elif "done" in line:
                at = None
                yield int(line["done"]), (loads(Verification, line["outcome"]), bool(line["lasting"]))
                end = time.monotonic() + START_SECONDS

    def why_unusable(self) -> str:
        return f"the child process could not start: {self._death()}"

    def _feed(self, pipe: IO[bytes], text: bytes) -> None:
        with contextlib.suppress(OSError), pipe:
            pipe.write(text)

    def _read(self, pipe: IO[bytes]) -> None:
        """Lines of the child; the end, or a line that is none of its own, ends the child's part."""
        with pipe:
            while line := pipe.readline(LINE_BYTES):
                try:
                    said = json.loads(line)
                except ValueError:
                    break
                self._lines.put(said if isinstance(said, dict) else None)
        self._lines.put(None)

    def _keep(self, pipe: IO[bytes]) -> None:
        """The tail of stderr. A child that floods it is killed."""
        seen = 0
        with pipe:
            while chunk := pipe.read1(1 << 16):  # type: ignore[attr-defined]
                seen += len(chunk)
                self._errors += chunk
                del self._errors[:-4096]
                if seen > self._limits.output:
                    self._errors += b"\ntoo much output"
                    self._kill()
                    return

    def _death(self) -> str:
        """How the child ended, in words."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._threads[2].join(2)
        code = self._process.returncode
        text = bytes(self._errors).decode("utf-8", "replace").strip().splitlines()
        how = "it went on without reporting"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = signal.Signals(-code).name
        elif code is not None:
            how = f"exit code {code}"
        return f"{how}: {text[-1][:300]}" if text else how

    def _kill(self) -> None:
        """End the child and what it started (g++)."""
        with contextlib.suppress(OSError):
            if self._process.poll() is not None:
                return
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
