"""Traces many functions in one process: jobs as JSON on stdin, their kernels as JSON on stdout. Run as a program."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    from fuselint.trace.replacing import install

    recorder = install()
    import mlx.core as mx

    from fuselint.trace.cost import kernels
    from fuselint.trace.expand import Expander
    from fuselint.trace.recording import ORIGINALS, arrays_in
    from fuselint.trace.tape import Tape

    def traced(job: dict[str, Any]) -> dict[str, Any]:
        space: dict[str, Any] = {}
        exec(compile(job["source"], "traced.py", "exec"), space)
        arguments = [mx.zeros(s, getattr(mx, d)) for s, d in zip(job["shapes"], job["dtypes"], strict=True)]
        ORIGINALS["eval"](arguments)
        for a in arguments:
            recorder.value(a)
        recorder.calls = []
        recorder.on = True
        try:
            result = space["f"](*arguments)
        finally:
            recorder.on = False
        held = [recorder.value(a) for a in arrays_in([result, arguments])]
        outputs = [v for v in held if v.call is not None]
        out: dict[str, Any] = {}
        for name in ("eager", "compiled"):
            tape = Tape(Expander(job["backend"]))
            groups = (tape.eager if name == "eager" else tape.compiled)(recorder.calls, outputs)
            out[name] = [
                {"name": k.name, "fused": g.fused, "bytes": k.bytes, "launches": k.launches}
                for g, k in kernels(groups, tape.roots(held))
            ]
        return out

    print(json.dumps([traced(job) for job in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
