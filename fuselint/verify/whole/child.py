"""The child process of one version: imports it, gives it weights and inputs, runs it, and stays to be timed.

    -> {"question": {...}, "root": ..., "folder": ..., "version": "before" | "after"}
    <- {"ran": {...}} or {"error": {"message": ..., "detail": ...}}
    -> {"time": 5}
    <- {"seconds": [...]}

Results go to `<folder>/<version>.safetensors`, weights of the version before to `<folder>/weights.safetensors`.
What the user's code prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

from fuselint.orphan import end_with_parent
from fuselint.verify.whole.model import Question

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


def main() -> None:
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    job = json.loads(questions.readline())
    here = os.getcwd()
    sys.path[:] = [job["root"], here, *(p for p in sys.path if p not in ("", here))]
    try:
        work = Version(Question(**job["question"]), job["root"], Path(job["folder"]), job["version"])
        _say(answers, {"ran": work.run()})
        for line in questions:
            _say(answers, {"seconds": work.time(json.loads(line)["time"])})
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also what the user's code ends itself with
        detail = "".join(traceback.format_exception(e))
        known = type(e).__name__ == "BadRequest"
        message = str(e) if known else f"{type(e).__name__}: {str(e).split(chr(10), 1)[0]}"
        _say(answers, {"error": {"message": message, "detail": "" if known else detail}})


def _say(to: IO[str], line: dict[str, Any]) -> None:
    to.write(json.dumps(line) + "\n")
    to.flush()


def _imported(root: str) -> int:
    """How many modules were imported from a folder."""
    inside = os.path.realpath(root) + os.sep
    files = (vars(m).get("__file__") for m in list(sys.modules.values()) if hasattr(m, "__dict__"))
    return sum(isinstance(f, str) and os.path.realpath(f).startswith(inside) for f in files)


class Version:
    """One version of the code, ready to run."""

    def __init__(self, question: Question, root: str, folder: Path, version: str) -> None:
        import mlx.core as mx

        from fuselint.verify.child import limit

        if question.device:
            mx.set_default_device(mx.cpu if question.device == "cpu" else mx.gpu)
        self.question, self.root, self.folder, self.version = question, root, folder, version
        self.on_cpu = mx.default_device() == mx.cpu
        limit(question.memory, 1 << 40, None)
        self._seed()
        from fuselint.trace.model import Request
        from fuselint.verify.whole.target import Target

        request = Request(question.entry, init=question.init, factory=question.factory, dtype=question.dtype)
        self.target = Target(request, self._seed)

    def _seed(self) -> None:
        import mlx.core as mx

        mx.random.seed(self.question.seed)
        random.seed(self.question.seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(self.question.seed % 2**32)

    def run(self) -> dict[str, Any]:
        """The result, saved; and what the parent has to know of the run."""
        import mlx.core as mx

        from fuselint.verify.judge import device_name
        from fuselint.verify.whole.results import save

        weights = self._weights()
        self.target.make_inputs()
        given = self.target.given()
        mx.reset_peak_memory()
        held = mx.get_active_memory()
        result = self._call()
        peak = mx.get_peak_memory()
        leaves = save(self.folder / f"{self.version}.safetensors", {"result": result, **given})
        said = {"leaves": leaves, "device": device_name(), "mlx": mx.__version__, "peak": peak, "held": held}
        if self.version == "before":
            said["moved"] = self._moved(weights)
        return {
            **said,
            "files": _imported(self.root),
            "weights": len(weights),
            "notes": self.target.notes,
            "cpu": self.on_cpu,
        }

    def _weights(self) -> dict[str, Any]:
        """The parameters, the same in both versions: those of the version before, by their paths."""
        import mlx.core as mx

        path = self.folder / "weights.safetensors"
        if self.version == "after":
            self.target.load(dict(mx.load(str(path))) if path.is_file() else {})
            return self.target.weights()
        self.target.vary(self.question.seed)
        weights = self.target.weights()
        if weights:
            mx.save_safetensors(str(path), weights)
        return weights

    def _call(self) -> Any:
        import mlx.core as mx

        from fuselint.verify.whole.results import arrays

        self._seed()
        result = self.target.call()
        mx.eval([a for _, a in arrays(result)])
        return result

    def _moved(self, weights: dict[str, Any]) -> bool:
        """Run once more with each weight moved by one rounding: how far that moves the result is what rounding does."""
        import mlx.core as mx

        from fuselint.verify.compare import short
        from fuselint.verify.whole.results import save

        floats = {n: a for n, a in weights.items() if short(a.dtype) in ROUNDING}
        if not floats:
            return False
        for number, (name, a) in enumerate(sorted(floats.items())):
            up = mx.random.bernoulli(0.5, a.shape, key=mx.random.key(number))
            step = 2 * ROUNDING[short(a.dtype)]
            self.target.set(name, (a.astype(mx.float32) * mx.where(up, 1 + step, 1 - step)).astype(a.dtype))
        self.target.make_inputs()
        given = self.target.given()
        save(self.folder / "moved.safetensors", {"result": self._call(), **given})
        for name, a in floats.items():
            self.target.set(name, a)
        return True

    def time(self, count: int) -> list[float]:
        """Seconds of so many calls, each on inputs of its own."""
        import mlx.core as mx

        seconds = []
        for _ in range(count):
            self.target.make_inputs()
            mx.eval([])
            mx.synchronize()
            start = time.perf_counter()
            self._call()
            mx.synchronize()
            seconds.append(time.perf_counter() - start)
        return seconds


if __name__ == "__main__":
    main()
