"""The parent's side of a trace: the child process that runs the user's code, and what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import fuselint
from fuselint.errors import FuselintError
from fuselint.trace.inputs import parse_input, split_target
from fuselint.trace.model import Activation, Kernel, Moved, Request, Run, Traced


class Tracing:
    """A child process that traces one request, and then answers for the sizes that its functions ran with.

        with Tracing(request) as tracing:
            tracing.traced, tracing.sizes(activation, ["B", "x.shape[1]"])

    The child has the caller's folder first on its path (`folder` before it), and the environment of the caller. A
    crash of the user's code ends the child only. Raises FuselintError where the trace fails, and says why.
    """

    def __init__(self, request: Request, folder: str | None = None) -> None:
        split_target(request.target)
        for text in request.inputs:
            parse_input(text, request.sizes)
        self._request, self._folder = request, folder
        self.traced: Traced

    def __enter__(self) -> Tracing:
        environment = dict(os.environ)
        root = str(Path(fuselint.__file__).resolve().parent.parent)
        here = os.getcwd() if self._folder else None
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (here, environment.get("PYTHONPATH"), root)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuselint.trace.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=self._folder,
            text=True,
            encoding="utf-8",
            start_new_session=os.name == "posix",
        )
        try:
            answer = self._ask({"request": asdict(self._request)})
            if "error" in answer:
                raise TraceFailed(answer["error"]["message"], answer["error"]["detail"])
            self.traced = traced(answer["traced"])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        with contextlib.suppress(OSError):  # the child, and what it started, which may live on after it
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()

    def sizes(self, activation: int, expressions: Sequence[str]) -> list[int | None]:
        """What the expressions were in one run of a function, None where they aren't whole numbers."""
        answer: list[list[int | None]] = self._ask({"sizes": [[activation, list(expressions)]]})["sizes"]
        return answer[0]

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: the reading says so
        line = self._process.stdout.readline()
        if not line:
            raise TraceFailed(f"{self._request.target}: the traced code ended the process: {self._death()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _death(self) -> str:
        code = self._process.wait(5)
        if code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"


class TraceFailed(FuselintError):
    """A trace that the user's code, or the request, made impossible. detail: the child's own traceback."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(f"trace: {message}")
        self.detail = detail


def traced(data: dict[str, Any]) -> Traced:
    """The child's answer as data."""
    places = tuple(tuple((a, line) for a, line in place) for place in data["places"])
    activations = tuple(Activation(path, name, first, tuple(lines)) for path, name, first, lines in data["activations"])

    def run(listed: list[dict[str, Any]]) -> Run:
        return Run(tuple(_kernel(k) for k in listed), tuple(k["place"] for k in listed))

    return Traced(
        eager=run(data["eager"]),
        compiled=run(data["compiled"]),
        places=places,
        activations=activations,
        evaluations=data["evaluations"],
        mlx=data["mlx"],
        peak_memory=data["peak_memory"],
        unknown=tuple(data["unknown"]),
    )


def _kernel(k: dict[str, Any]) -> Kernel:
    reads, writes = (tuple(Moved(tuple(s), d, n) for s, d, n in k[side]) for side in ("reads", "writes"))
    return Kernel(k["name"], reads, writes, k["launches"], tuple((b, n) for b, n in k["buffers"]))
