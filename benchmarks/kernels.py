"""Random functions, counted by fuselint and run by MLX: whether kernels and bytes are equal.

    python benchmarks/kernels.py [FIRST] [LAST]

Each seed is a function of elementwise work, reductions, products, gathers, casts and views. It is run eagerly, eagerly
with its sizes known by name only, under mx.compile, and under mx.compile(shapeless=True). Prints, by way of running,
how many are equal, how many MLX refuses to compile, and those that differ. Ends with 1 where any differs.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import mlx.core as mx

from tests.traffic import mlx_kernels as real
from tests.traffic.predicted import compiled, eager
from tests.traffic.random_code import random_code

MODES = ("eager", "named", "compiled", "shapeless")


def outcome(seed: int, mode: str) -> str:
    """`equal`, `refused` by MLX, `different`, or `unrecorded` where MLX lays a result out anew when it runs again."""
    code = random_code(seed, mode if mode in ("named", "shapeless") else "")
    try:
        if mode in ("eager", "named"):
            want = real.eager(code.function(), code.arguments())
        else:
            want = real.compiled(code.function(), code.arguments(), mode == "shapeless")
    except (IndexError, ValueError):
        return "refused"
    except AssertionError:
        return "unrecorded"
    if mode in ("eager", "named"):
        return "equal" if eager(code, named=mode == "named") == want else "different"
    return "equal" if compiled(code, mode == "shapeless") == want else "different"


def main(first: int, last: int) -> int:
    mx.set_default_device(mx.cpu)
    counts: dict[str, Counter[str]] = {mode: Counter() for mode in MODES}
    for seed in range(first, last):
        for mode in MODES:
            found = outcome(seed, mode)
            counts[mode][found] += 1
            if found in ("different", "unrecorded"):
                print(f"seed {seed}, {mode}: {found}", flush=True)
    for mode, c in counts.items():
        compared = last - first - c["refused"] - c["unrecorded"]
        print(
            f"{mode:<10} {c['equal']} of {compared} equal, {c['refused']} refused by MLX, {c['unrecorded']} unrecorded"
        )
    return int(any(c["different"] for c in counts.values()))


if __name__ == "__main__":
    bounds = [int(a) for a in sys.argv[1:3]]
    sys.exit(main(bounds[0] if bounds else 0, bounds[1] if len(bounds) > 1 else 2000))
