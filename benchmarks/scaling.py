"""Time of a check against the size of one function: statements, nesting, products, branches, helpers.

    python benchmarks/scaling.py [--most 10000]

Each line is a shape, CPU seconds by size, and the exponent between the two largest sizes: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

from fuselint.config import Settings
from fuselint.engine import check_file
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\n\n\n"


def statements(n: int) -> str:
    """A chain of n statements, each of the one before."""
    return "def f(x, w):\n" + "".join(f"    x = mx.exp(x) * w + {i}\n" for i in range(n)) + "    return x\n"


def apart(n: int) -> str:
    """n statements, none of which needs another."""
    body = "".join(f"    a{i} = mx.tanh(x) * {i} + w\n" for i in range(n))
    return f"def f(x, w):\n{body}    return [{', '.join(f'a{i}' for i in range(n))}]\n"


def products(n: int) -> str:
    """One product of n factors."""
    return f"def f(x, w):\n    return {' * '.join(['x', 'w'] * (n // 2))}\n"


def sums(n: int) -> str:
    """n sums of products, one in another."""
    return "def f(x, w):\n" + "".join(f"    x = x * w + x * {i}.5\n" for i in range(n)) + "    return x\n"


def branches(n: int) -> str:
    """n branches, one after the other."""
    body = "".join(f"    if a == {i}:\n        x = mx.exp(x) * w\n" for i in range(n))
    return f"def f(x, w, a):\n{body}    return x\n"


def nesting(n: int) -> str:
    """Branches in one another, of which Python allows 90 or so."""
    depth = min(n, 90)
    lines = "".join(f"{'    ' * (i + 1)}if a > {i}:\n{'    ' * (i + 2)}x = mx.exp(x) * w\n" for i in range(depth))
    return f"def f(x, w, a):\n{lines}    return x\n"


def loops(n: int) -> str:
    """n loops, one after the other."""
    body = "".join(f"    for i in range({i + 2}):\n        x = mx.exp(x) * w\n" for i in range(n))
    return f"def f(x, w):\n{body}    return x\n"


def calls(n: int) -> str:
    """n calls of a helper that is inlined."""
    body = "".join("    x = g(x, w)\n" for _ in range(n))
    return f"def g(x, w):\n    return mx.exp(x) * w\n\n\ndef f(x, w):\n{body}    return x\n"


SHAPES: tuple[Callable[[int], str], ...] = (statements, apart, products, sums, branches, nesting, loops, calls)


def seconds(text: str) -> float:
    """CPU seconds of checking a text."""
    begun = time.process_time()
    check_file(FileText("f.py", HEAD + text), Settings())
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1000)
    most = parser.parse_args().most
    sizes = [n for n in (10, 30, 100, 300, 1000, 3000, 10000) if n <= most]
    print("shape".ljust(12), *(str(n).rjust(8) for n in sizes), "exponent")
    seconds(statements(10))
    for shape in SHAPES:
        times = [seconds(shape(n)) for n in sizes]
        power = math.log(times[-1] / times[-2]) / math.log(sizes[-1] / sizes[-2])
        print(shape.__name__.ljust(12), *(f"{t:8.2f}" for t in times), f"{power:8.2f}", flush=True)


if __name__ == "__main__":
    main()
