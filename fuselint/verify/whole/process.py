"""The parent's side: a child for each version, with limits; what they answer, and what becomes of one that dies."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fuselint
from fuselint.errors import ConfigError, FuselintError
from fuselint.trace.inputs import split_target
from fuselint.trace.model import Request
from fuselint.trace.process import Tracing
from fuselint.verify.whole.model import VERSIONS, Comparison, Cost, Leaf, Question

ROUNDS = 15
"""Timed calls of each version, one by one in turns."""


class VerifyFailed(FuselintError):
    """A comparison that can't be made. detail: the child's traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(f"verify: {message}")
        self.detail = detail


class Died(Exception):
    """A version that crashed, hung or raised."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


def root_of(path: str) -> str:
    """The folder that a version is imported from: a package's parent, a module's folder, or the folder itself."""
    at = Path(path)
    if not at.exists():
        raise ConfigError(f"verify: there is no {path}")
    at = at.resolve()
    if at.is_file():
        at = at.parent
    while (at / "__init__.py").is_file():
        at = at.parent
    return str(at)


def verify_whole(question: Question) -> Comparison:
    """Run both versions and compare. Raises FuselintError where the version before can't be run."""
    split_target(question.entry)
    if not question.memory:
        question = replace(question, memory=_most_memory())
    roots = {"before": root_of(question.before), "after": root_of(question.after)}
    if roots["before"] == roots["after"]:
        raise ConfigError(f"verify: both versions are imported from {roots['before']}")
    with tempfile.TemporaryDirectory(prefix="fuselint-verify-") as folder, contextlib.ExitStack() as children:
        ran: dict[str, dict[str, Any]] = {}
        running: dict[str, _Child] = {}
        for version in VERSIONS:
            child = running[version] = children.enter_context(_Child(question, roots[version], folder, version))
            try:
                ran[version] = child.ran()
            except Died as e:
                if version == "before":
                    raise VerifyFailed(f"{question.before}: {e}", e.detail) from e
                return _dead(question, ran["before"], str(e))
            if not ran[version]["files"]:
                path = question.before if version == "before" else question.after
                raise VerifyFailed(f"{question.entry} imports nothing from {path} ({roots[version]})")
        leaves = _compared(question, folder, ran)
        try:
            seconds, untimed = ({} if ran["before"]["cpu"] else _timed(running)), []
        except Died as e:
            seconds, untimed = {}, [f"not timed: a version {e}"]
    notes = [
        *untimed,
        *(f"before: {n}" for n in ran["before"]["notes"]),
        *(f"after: {n}" for n in ran["after"]["notes"]),
    ]
    costs = {}
    for version in VERSIONS:
        kernels, moved, note = _traced(question, roots[version])
        notes += [f"{version}: {note}"] if note else []
        median, spread = seconds.get(version, (None, None))
        peak = max(0, ran[version]["peak"] - ran[version]["held"])
        costs[version] = Cost(peak, kernels, moved, median, spread)
    return Comparison(
        question,
        all(not leaf.wrong for leaf in leaves),
        leaves,
        ran["before"]["device"],
        ran["before"]["mlx"],
        costs,
        {v: ran[v]["files"] for v in VERSIONS},
        ran["before"]["weights"],
        tuple(dict.fromkeys(notes)),
    )


def _most_memory() -> int:
    """Nine tenths of what the machine has left, in bytes: where a child takes more, the system may kill any process."""
    with contextlib.suppress(OSError, ValueError, KeyError):  # not Linux
        told = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(0.9 * 1024 * int(told["MemAvailable"].split()[0]))
    try:
        return int(0.9 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # Windows
        return 16 << 30


def _dead(question: Question, before: Mapping[str, Any], why: str) -> Comparison:
    leaf = Leaf("result", wrong=f"the version after {why}")
    return Comparison(question, False, (leaf,), before["device"], before["mlx"], weights=before["weights"])


def _compared(question: Question, folder: str, ran: Mapping[str, Mapping[str, Any]]) -> tuple[Leaf, ...]:
    job = {v: ran[v]["leaves"] for v in VERSIONS}
    rest = {"folder": folder, "moved": ran["before"]["moved"], "tolerance": question.tolerance}
    done = subprocess.run(
        [sys.executable, "-m", "fuselint.verify.whole.comparing"],
        input=json.dumps({**job, **rest}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=folder,  # no file of the user's shadows a module
        env=_environment(),
        timeout=question.seconds,
        check=False,
    )
    if done.returncode:
        raise VerifyFailed(f"the results can't be compared: {done.stderr.strip().splitlines()[-1:]}", done.stderr)
    found = tuple(Leaf(**{**leaf, "shape": tuple(leaf["shape"])}) for leaf in json.loads(done.stdout))
    chosen = tuple(leaf for leaf in found if _within(leaf.path, question.only))
    if not chosen:
        raise VerifyFailed(f"no value {' or '.join(question.only)}; there are {', '.join(f.path for f in found[:5])}")
    return chosen


def _within(path: str, only: Sequence[str]) -> bool:
    return not only or any(path == o or path.startswith((f"{o}[", f"{o}.")) for o in only)


def _timed(running: Mapping[str, _Child]) -> dict[str, tuple[float, float]]:
    """Median and spread (half the distance of the quartiles) of the calls of each version, in turns."""
    taken: dict[str, list[float]] = {v: [] for v in VERSIONS}
    for _ in range(2):  # warm-up
        for version in VERSIONS:
            running[version].time(1)
    for _ in range(ROUNDS):
        for version in VERSIONS:
            taken[version] += running[version].time(1)
    out = {}
    for version, seconds in taken.items():
        first, _, third = statistics.quantiles(seconds, n=4)
        out[version] = statistics.median(seconds), (third - first) / 2
    return out


def _traced(question: Question, root: str) -> tuple[int | None, int | None, str]:
    """Kernels and bytes of one call on a GPU, traced with nothing evaluated; else why there is no number."""
    request = Request(question.entry, init=question.init, factory=question.factory, dtype=question.dtype)
    try:
        with Tracing(request, folder=root) as tracing:
            eager = tracing.traced.eager
    except FuselintError as e:
        return None, None, f"kernels not counted: {str(e).removeprefix('trace: ')}"
    return eager.launches, eager.bytes, ""


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    root = str(Path(fuselint.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), root)))
    environment["MLX_ENABLE_TF32"] = "0"  # a float32 matmul in TF32 would hide or fake a difference
    return environment


class _Child:
    """A process that runs one version, and then calls of it to be timed."""

    def __init__(self, question: Question, root: str, folder: str, version: str) -> None:
        self._seconds = question.seconds
        self._job = {"question": asdict(question), "root": root, "folder": folder, "version": version}

    def __enter__(self) -> _Child:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuselint.verify.whole.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            text=True,
            encoding="utf-8",
            start_new_session=os.name == "posix",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._kill()
        self._reader.join(5)

    def ran(self) -> dict[str, Any]:
        answer = self._ask(self._job)
        if "error" in answer:
            raise Died(f"raised {answer['error']['message']}", answer["error"]["detail"])
        ran: dict[str, Any] = answer["ran"]
        return ran

    def time(self, count: int) -> list[float]:
        seconds: list[float] = self._ask({"time": count})["seconds"]
        return seconds

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the reading says so
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        try:
            line = self._lines.get(timeout=self._seconds)
        except queue.Empty:
            self._kill()
            raise Died(f"timed out after {self._seconds:g} s") from None
        if not line:
            raise Died(f"crashed: {self._death()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for line in _until_end(out):
                self._lines.put(line)
        self._lines.put("")

    def _death(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        if code == 77:
            return "out of memory"
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"

    def _kill(self) -> None:
        """End the child and what it started, which may live on after it."""
        with contextlib.suppress(OSError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


def _until_end(pipe: Any) -> Iterator[str]:
    with contextlib.suppress(ValueError, OSError):
        yield from pipe
