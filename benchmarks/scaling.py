"""Time of a check against the size of one function: statements, nesting, products, branches, cases, helpers.

    python benchmarks/scaling.py [--most 10000] [--plot docs/scaling.svg] [SHAPES]

Each line is a shape, CPU seconds by size, and the exponent between the two largest sizes that were analysed to the end:
1 is linear, 2 quadratic. A size that is given up is marked with `*`.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from fuselint.config import Settings
from fuselint.engine import check_file
from fuselint.finding import UNREADABLE
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\n\n\n"
DEEPEST = 90
"""Suites in one another: Python allows some 100, and 20 loops."""


def statements(n: int) -> str:
    """A chain of n statements, each of the one before."""
    return "def f(x, w):\n" + "".join(f"    x = mx.exp(x) * w + {i}\n" for i in range(n)) + "    return x\n"


def apart(n: int) -> str:
    """n statements, none of which needs another, and a finding in each."""
    body = "".join(f"    a{i} = mx.tanh(x) * {i} + w\n" for i in range(n))
    return f"def f(x, w):\n{body}    return [{', '.join(f'a{i}' for i in range(n))}]\n"


def products(n: int) -> str:
    """One product of n factors."""
    return f"def f(x, w):\n    return {' * '.join(['x', 'w'] * (n // 2))}\n"


def sums(n: int) -> str:
    """n sums of products, one in another."""
    return "def f(x, w):\n" + "".join(f"    x = x * w + x * {i}.5\n" for i in range(n)) + "    return x\n"


def norms(n: int) -> str:
    """n norms, each of the one before."""
    norm = "x * mx.rsqrt(mx.mean(mx.square(x), -1, keepdims=True) + 1e-5) * w"
    return "def f(x, w):\n" + f"    x = {norm}\n" * n + "    return x\n"


def halves(n: int) -> str:
    """n rotations of halves, whose sizes hold the sizes before them."""
    step = "    a, b = mx.split(x, 2, axis=-1)\n    x = x * cos + mx.concatenate([-b, a], axis=-1) * sin\n"
    return "def f(x, cos, sin):\n" + step * n + "    return x\n"


def branches(n: int) -> str:
    """n branches, one after the other."""
    body = "".join(f"    if a == {i}:\n        x = mx.exp(x) * w\n" for i in range(n))
    return f"def f(x, w, a):\n{body}    return x\n"


def returns(n: int) -> str:
    """n branches that return, each with a finding."""
    body = "".join(f"    if a == {i}:\n        return mx.exp(x) * w + {i}\n" for i in range(n))
    return f"def f(x, w, a):\n{body}    return x\n"


def elifs(n: int) -> str:
    """One branch of n arms, which nest."""
    body = "".join(f"    elif a == {i}:\n        x = mx.exp(x) * w\n" for i in range(1, n))
    return f"def f(x, w, a):\n    if a == 0:\n        x = w\n{body}    return x\n"


def cases(n: int) -> str:
    """A `match` of n cases."""
    body = "".join(f"        case {i}:\n            x = mx.exp(x) * w\n" for i in range(n))
    return f"def f(x, w, a):\n    match a:\n{body}    return x\n"


def nesting(n: int) -> str:
    """n branches in one another."""
    lines = "".join(
        f"{'    ' * (i + 1)}if a > {i}:\n{'    ' * (i + 2)}x = mx.exp(x) * w\n" for i in range(min(n, DEEPEST))
    )
    return f"def f(x, w, a):\n{lines}    return x\n"


def depth(n: int) -> str:
    """n calls in one another."""
    return f"def f(x, w):\n    return {'mx.exp(' * n}x{')' * n} * w\n"


def loops(n: int) -> str:
    """n loops, one after the other."""
    body = "".join(f"    for i in range({i + 2}):\n        x = mx.exp(x) * w\n" for i in range(n))
    return f"def f(x, w):\n{body}    return x\n"


def stores(n: int) -> str:
    """n attributes that are stored, with a finding in each."""
    body = "".join(f"        self.a{i} = mx.exp(x) * w + {i}\n" for i in range(n))
    return f"class A:\n    def f(self, x, w):\n{body}        return x\n"


def changes(n: int) -> str:
    """n changes of one object in place."""
    return "def f(x, w):\n" + "".join(f"    x += mx.cumsum(w, axis={i})\n" for i in range(n)) + "    return x\n"


def calls(n: int) -> str:
    """n calls of a helper that is inlined."""
    body = "".join("    x = g(x, w)\n" for _ in range(n))
    return f"def g(x, w):\n    return mx.exp(x) * w\n\n\ndef f(x, w):\n{body}    return x\n"


Shape = Callable[[int], str]
SHAPES: tuple[Shape, ...] = (
    statements,
    apart,
    products,
    sums,
    norms,
    halves,
    branches,
    returns,
    elifs,
    cases,
    nesting,
    depth,
    loops,
    stores,
    changes,
    calls,
)
SIZES = (10, 30, 100, 300, 1000, 3000, 10000)
Times = list[tuple[int, float, bool]]
"""Size, CPU seconds, and whether the function was analysed to the end."""


def seconds(text: str) -> tuple[float, bool]:
    """CPU seconds of checking a text, and whether all of it was analysed."""
    gc.collect()  # what others left behind is not this one's
    begun = time.process_time()
    result = check_file(FileText("f.py", HEAD + text), Settings())
    given_up = result.not_understood or any(f.code == UNREADABLE for f in result.findings)
    return time.process_time() - begun, not given_up


def exponent(times: Times) -> float:
    """Between the two largest sizes that were analysed to the end."""
    known = [(n, t) for n, t, whole in times if whole]
    if len(known) < 2:
        return math.nan
    (a, before), (b, after) = known[-2:]
    return math.log(after / before) / math.log(b / a)


# -- the plot ---------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 560, 60, 20, 130, 40
SECONDS = (0.01, 0.1, 1.0, 10.0, 100.0)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a6c00", "#56b4e9", "#444444", "#8c564b")
DASHES = ("", "6 3")


def plot(found: Sequence[tuple[str, Times]]) -> str:
    """Seconds against size, both on logarithmic axes, as SVG. An open circle is a size that is given up."""

    def x(n: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(n / SIZES[0]) / math.log(SIZES[-1] / SIZES[0])

    def y(t: float) -> float:
        share = math.log(max(t, SECONDS[0]) / SECONDS[0]) / math.log(SECONDS[-1] / SECONDS[0])
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def line(points: Sequence[tuple[float, float]], style: str) -> str:
        shown = " ".join(f"{x(n):.1f},{y(t):.1f}" for n, t in points)
        return f'<polyline points="{shown}" fill="none" {style}/>'

    def text(at_x: float, at_y: float, shown: str, more: str = "") -> str:
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" {more}>{escape(shown)}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<title>CPU seconds of a check against the size of one function</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    grid = 'stroke="#dddddd" stroke-width="1"'
    for n in SIZES:
        out += [
            line([(n, SECONDS[0]), (n, SECONDS[-1])], grid),
            text(x(n), HEIGHT - 22, f"{n:,}", 'text-anchor="middle"'),
        ]
    for t in SECONDS:
        out += [line([(SIZES[0], t), (SIZES[-1], t)], grid), text(LEFT - 8, y(t) + 4, f"{t:g} s", 'text-anchor="end"')]
    scale = SECONDS[0] / (SIZES[0] * math.log(SIZES[0]))
    out.append(line([(n, scale * n * math.log(n)) for n in SIZES], 'stroke="#999999" stroke-width="6" opacity="0.4"'))
    out.append(text(x(SIZES[-1]) + 8, y(scale * SIZES[-1] * math.log(SIZES[-1])) + 4, "n log n", 'fill="#777777"'))
    labels: list[tuple[float, float, str, str]] = []
    for i, (name, times) in enumerate(found):
        color, dash = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
        out.append(
            line([(n, t) for n, t, _ in times], f'stroke="{color}" stroke-width="1.5" stroke-dasharray="{dash}"')
        )
        for n, t, whole in times:
            fill = color if whole else "white"
            out.append(f'<circle cx="{x(n):.1f}" cy="{y(t):.1f}" r="3" fill="{fill}" stroke="{color}"/>')
        labels.append((y(times[-1][1]), x(times[-1][0]), name, color))
    below = HEIGHT - BOTTOM + 12.0
    for at, last, name, color in sorted(labels, reverse=True):  # from below, so that none covers another
        if last < x(SIZES[-1]):
            out.append(text(last + 6, at - 6, name, f'fill="{color}"'))
            continue
        below = min(below - 13, at + 4)
        out.append(text(x(SIZES[-1]) + 8, below, name, f'fill="{color}"'))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "size of the function", 'text-anchor="middle"'))
    return "\n".join([*out, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=", ".join(s.__name__ for s in SHAPES))
    parser.add_argument("--most", type=int, default=1000)
    parser.add_argument("--plot", type=Path, help="an SVG file")
    options = parser.parse_args()
    sizes = [n for n in SIZES if n <= options.most]
    print("shape".ljust(12), *(str(n).rjust(9) for n in sizes), "exponent")
    seconds(statements(10))
    found: list[tuple[str, Times]] = []
    for shape in SHAPES:
        if options.shapes and shape.__name__ not in options.shapes:
            continue
        times = [(n, *seconds(shape(n))) for n in sizes if shape is not nesting or n <= DEEPEST + 10]
        found.append((shape.__name__, times))
        cells = (f"{t:8.2f}{' ' if whole else '*'}" for _, t, whole in times)
        print(shape.__name__.ljust(12), *cells, f"{exponent(times):8.2f}", flush=True)
    if options.plot:
        options.plot.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
