"""The child process of a trace: reads a request, traces, answers; then looks up sizes until its input ends.

    -> {"request": {...}}
    <- {"traced": {...}} or {"error": {"message": ..., "detail": ...}}
    -> {"sizes": [[activation, [expression, ...]], ...]}
    <- {"sizes": [[number or null, ...], ...]}

What the user's code prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import IO, Any

from fuselint.errors import FuselintError
from fuselint.orphan import end_with_parent
from fuselint.trace.model import Request


def main() -> None:
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    request = Request(**json.loads(questions.readline())["request"])
    try:
        work = Work(request)
        _say(answers, {"traced": work.traced()})
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # also what the user's code ends itself with
        _say(answers, {"error": _error(request, e)})
        return
    for line in questions:
        _say(answers, {"sizes": [work.sizes(*asked) for asked in json.loads(line)["sizes"]]})


def _say(to: IO[str], line: dict[str, Any]) -> None:
    to.write(json.dumps(line) + "\n")
    to.flush()


def _error(request: Request, e: BaseException) -> dict[str, str]:
    from fuselint.trace.recording import NoValue, is_users

    detail = "".join(traceback.format_exception(e))
    if type(e).__name__ == "BadRequest" or isinstance(e, FuselintError):
        return {"message": str(e), "detail": ""}
    frames = [f for f in traceback.extract_tb(e.__traceback__) if is_users(f.filename)]
    at = f" ({os.path.relpath(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    if isinstance(e, NoValue):
        return {
            "message": f"{request.target}: {e}{at}; a trace computes none: pass numbers in as inputs",
            "detail": detail,
        }
    if isinstance(e, ModuleNotFoundError) and e.name in ("mlx", "mlx.core") and not frames:
        return {"message": 'a trace runs the code on MLX: pip install "fuselint[cpu]"', "detail": ""}
    if isinstance(e, ModuleNotFoundError) and not frames:
        return {"message": f"can't import {request.target.rpartition(':')[0]}: {e} (looked in {os.getcwd()} first)",
                "detail": ""}  # fmt: skip
    said = str(e).split("\n", 1)[0]
    return {"message": f"{request.target} raised {type(e).__name__}: {said}{at}", "detail": detail}


class Work:
    """One trace, with the frames that it ran through."""

    def __init__(self, request: Request) -> None:
        from fuselint.trace.recording import arrays_held
        from fuselint.trace.replacing import install

        self.request = request
        self.recorder = install()
        from fuselint.trace.target import prepare, remember_initials

        self.initials = remember_initials()
        target = prepare(request)
        for a in arrays_held(target.state):
            self.recorder.value(a)
        self.recorder.on = True
        try:
            result = target.call()
        finally:
            self.recorder.on = False
        self.held = list(dict.fromkeys(self.recorder.value(a) for a in arrays_held([result, *target.state])))
        self.activations: list[Any] = []

    def traced(self) -> dict[str, Any]:
        import mlx.core as mx

        from fuselint.trace.expand import Expander
        from fuselint.trace.tape import Tape

        r, expander = self.recorder, Expander(self.request.backend)
        places: dict[Any, int] = {}
        outputs = [v for v in self.held if v.call is not None]
        views = {}
        for name in ("eager", "compiled"):
            tape = Tape(expander)
            groups = (tape.eager if name == "eager" else tape.compiled)(r.calls, outputs)
            views[name] = list(self._kernels(tape, groups, places))
        self.activations = list(r.activations.values())
        number = {id(a): i for i, a in enumerate(self.activations)}
        return {
            **views,
            "places": [[[number[id(a)], line] for a, line in place] for place in places],
            "activations": [[a.path, a.name, a.first_line, sorted(a.lines)] for a in self.activations],
            "evaluations": len(r.evaluations),
            "mlx": mx.__version__,
            "peak_memory": mx.get_peak_memory(),
            "unknown": sorted(expander.unknown),
        }

    def _kernels(self, tape: Any, groups: Sequence[Any], places: dict[Any, int]) -> Iterable[dict[str, Any]]:
        from fuselint.trace.cost import kernels

        numbers: dict[int, int] = {}
        for group, k in kernels(groups, tape.roots(self.held)):
            call = tape.made_by.get(group.root)
            place = call.place if call is not None else ()
            yield {
                "name": k.name,
                "reads": [[m.shape, m.dtype, m.bytes] for m in k.reads],
                "writes": [[m.shape, m.dtype, m.bytes] for m in k.writes],
                "launches": k.launches,
                "buffers": [[numbers.setdefault(b, len(numbers)), n] for b, n in k.buffers],
                "place": places.setdefault(place, len(places)),
            }

    def sizes(self, activation: int, expressions: Sequence[str]) -> list[int | None]:
        """Numbers of expressions in the names that a run of a function had, or the `__init__` of its object.

        `k'` is k after it was bound again: what the name held in the end.
        """
        a = self.activations[activation]
        made = self.initials.get(id(a.locals.get("self")))
        init = {} if made is None else made.f_locals
        early, late = {**init, **a.frame.f_locals, **a.locals}, {**init, **a.locals, **a.frame.f_locals}

        def number(text: str) -> int | None:
            names = late if "'" in text else early
            return _number(text.replace("'", ""), {**a.frame.f_globals, **names})

        return [number(text) for text in expressions]


def _number(text: str, space: dict[str, Any]) -> int | None:
    try:
        found = eval(text, space)
    except Exception:
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


if __name__ == "__main__":
    main()
