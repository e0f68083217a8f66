"""Times on Apple chips that others have published, and what fuselint says of the same code.

    python benchmarks/published.py

Kernels and bytes are counted from the source below; the time follows from them as for a finding. Nothing is fitted to
these figures but where the last column says so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuselint.chips import CHIPS, Chip, Seconds, seconds
from fuselint.graph.dtypes import DType
from fuselint.graph.model import region
from fuselint.graph.program import Program
from fuselint.graph.shapes import Shape
from fuselint.report import plural
from fuselint.source.project import summarise
from fuselint.source.screen import screen
from fuselint.source.text import FileText
from fuselint.traffic.kernels import Bytes, compiled_kernels, kernels
from fuselint.traffic.sizes import Sizes

HEAD = "import math\n\nimport mlx.core as mx\n\n\n"
GELU = "def f(x):\n    return x * (1 + mx.erf(x / math.sqrt(2))) / 2\n"
ADD_NORM = "def f(x, r, w):\n    h = x + r\n    return h, mx.fast.rms_norm(h, w, 1e-5)\n"

GELU_SIZE = {"x": ((32, 1000, 4096), "float32")}


@dataclass(frozen=True)
class Figure:
    """milliseconds: as published. floor: what is in it of starting and waiting. how: where ours is from."""

    what: str
    where: str
    milliseconds: float
    ours: Seconds
    how: str
    floor: float = 0.0


def counted(source: str, arguments: dict[str, tuple[tuple[int, ...], str]]) -> tuple[int, int]:
    """Launches and bytes of one call."""
    file = FileText("published.py", HEAD + source)
    tree = screen(file).tree
    assert tree is not None
    graph = Program(file, summarise(file, tree)).graph("f")
    assert graph is not None and not graph.not_understood
    for name, (shape, dtype) in arguments.items():
        graph.facts.state(graph.params[name], Shape.of(*shape), DType({dtype}), "an argument")
    value = graph.returns[0][1]
    roots = list(value.inputs) if value.op == "tuple" else [value]
    nodes = list(dict.fromkeys(n for r in roots for n in region(r, ())))
    if graph.context.compiled:
        found = compiled_kernels(nodes, roots, graph.facts, shapeless=False)
    else:
        found = kernels(nodes, graph.facts)
    moved = Bytes(Sizes.of([a.shape for k in found for a in (*k.reads, *k.writes)])).total(found).value()
    assert moved is not None
    return len(found), moved


def from_source(source: str, arguments: dict[str, tuple[tuple[int, ...], str]], chip: Chip) -> tuple[Seconds, str]:
    launches, moved = counted(source, arguments)
    return seconds(moved, launches, chip), f"{plural(launches, 'kernel')}, {moved / 1e6:.1f} MB"


def figures() -> Iterator[Figure]:
    for source, what, ms in ((GELU, "GELU, eager", 15.5), (f"@mx.compile\n{GELU}", "GELU, compiled", 3.1)):
        ours, how = from_source(source, GELU_SIZE, CHIPS["m1-max"])
        yield Figure(f"{what}, 32 x 1000 x 4096 float32, M1 Max", "MLX's page on compilation", ms, ours, how)
    for rows, ms in ((512, 0.445), (1024, 0.704), (2048, 1.230), (4096, 2.180)):
        arguments = {n: ((rows, 4096), "float16") for n in ("x", "r")} | {"w": ((4096,), "float16")}
        ours, how = from_source(ADD_NORM, arguments, CHIPS["m3"])
        what = f"sum and RMSNorm of arrays of {rows * 4096 * 2 / 1e6:.1f} MB, M3"
        how += "; sizes as its times and its bandwidth of 81 GB/s say; less the time of one row"
        yield Figure(what, "mlx #4259", ms, ours, how, floor=0.134)
    norms, kernels_each = 65, 6
    ours = seconds(0, norms * (kernels_each - 1), CHIPS["m2-ultra"])
    saved = 1e3 / 79.413 - 1e3 / 85.172
    how = f"{norms} norms of {kernels_each} kernels become one each (assumed), launches alone"
    yield Figure("a token of Mistral 7B in 4 bits: what fast RMSNorm saves, M2 Ultra", "mlx #862", saved, ours, how)
    for ops, ms in ((50, 8.8), (200, 7.7)):
        ours = seconds(0, 3200, replace(CHIPS["m3-ultra"], ops=ops))
        what = f"3200 small kernels, {ops} a command buffer, M3 Ultra"
        yield Figure(what, "mlx #4521", ms, ours, "launches alone; our launch and buffer costs come from this figure")


def main() -> None:
    print("| published | where | ms | ours, ms (band) | ours / published | counted |\n|---|---|---|---|---|---|")
    for f in figures():
        low, ours, high = (1e3 * s for s in (f.ours.low, f.ours.estimate, f.ours.high))
        measured = f.milliseconds - f.floor
        print(
            f"| {f.what} | {f.where} | {measured:.3g} | {ours:.3g} ({low:.3g} to {high:.3g}) | {ours / measured:.2f} "
            f"| {f.how} |"
        )


if __name__ == "__main__":
    main()
