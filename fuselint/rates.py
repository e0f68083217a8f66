"""Chips on which single kernels were timed: the seconds that one takes, by its kind.

    time = launch + sqrt(memory^2 + work^2), where memory = bytes / bandwidth, work = elements x what one takes

Most kernels are bound by memory. Those that look each element up by its index, that compute a lot, or that have a
block of threads for each short row take so much for each element too; products, for each operation. Where both are
about equal, neither hides the other wholly. The figures are in data/chips; benchmarks/fit_rates.py makes them from
what benchmarks/cuda_kernels.py measures, on kernels alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

Pair = Sequence[float]
"""A figure for elements of 2 bytes, and one for those of 4."""

PICO, MICRO, GIGA, TERA = 1e-12, 1e-6, 1e9, 1e12
COMPILED = "Compiled"
INDEXED = " indexed"

MEASURED = {"h200": "h200", "h100": "h200"}
"""Chips, and the one whose figures are theirs: an H100 is the same processor beside slower memory."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one kernel has to do.

    itemsize: bytes of an element. moved: bytes. row: how long the rows are of what works row by row. operands: of a
    compiled kernel; broadcast: those of them that are smaller than the result. steps: its operations. operations: of
    products.
    """

    kind: str
    itemsize: int
    moved: float
    elements: float = 0.0
    row: float = 0.0
    operands: int = 0
    broadcast: int = 0
    steps: tuple[str, ...] = ()
    operations: float = 0.0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Rates:
    """memory: bytes a second. launch: seconds of a kernel that does nothing. handing: those in which Python and MLX
    hand one over.

    elements: picoseconds for each, by kind; those bound by memory aren't among them. rows: the same by the length of a
    row. steps: of a compiled kernel's operations; operand, broadcast: of each of its operands, where they are indexed.
    products: TFLOP/s.
    """

    memory: float
    launch: float
    handing: float
    elements: Mapping[str, Pair]
    rows: Mapping[str, Sequence[tuple[float, Pair]]]
    operand: Pair
    broadcast: Pair
    steps: Mapping[str, Pair]
    products: Mapping[str, Pair]

    def seconds(self, load: Load) -> float:
        return load.launches * self.launch + math.hypot(load.moved / self.memory, self._work(load))

    def _work(self, load: Load) -> float:
        width = 0 if load.itemsize <= 2 else 1
        if load.operations:
            kinds = (load.kind, load.kind.split(" ")[0], "Matmul")
            rate = next(self.products[kind][width] for kind in kinds if kind in self.products)
            return load.operations / (rate * TERA)
        return load.elements * self._element(load, width) * PICO

    def _element(self, load: Load, width: int) -> float:
        """Picoseconds; 0 where memory alone counts."""
        if load.kind.startswith(COMPILED):
            computed = sum(self.steps[s][width] for s in load.steps if s in self.steps)
            if not load.kind.endswith(INDEXED):
                return computed
            whole = self.operand[width] * (load.operands - load.broadcast)
            return computed + whole + self.broadcast[width] * load.broadcast
        if load.kind in self.rows:
            return _between(self.rows[load.kind], load.row, width)
        usual = self.elements.get(INDEXED.strip(), (0.0, 0.0)) if load.kind.endswith(INDEXED) else (0.0, 0.0)
        return self.elements.get(load.kind, usual)[width]


def _between(measured: Sequence[tuple[float, Pair]], row: float, width: int) -> float:
    """By the length of a row, between the two that were measured."""
    below = [m for m in measured if m[0] <= row] or measured[:1]
    above = [m for m in measured if m[0] >= row] or measured[-1:]
    (short, few), (long, many) = below[-1], above[0]
    share = (row - short) / (long - short) if long > short else 0.0
    return few[width] + share * (many[width] - few[width])


@cache
def rates_of(chip: str, bandwidth: float) -> Rates | None:
    """Of a chip of which kernels were timed, or of one with the same processor. bandwidth: stated, in GB/s."""
    measured = MEASURED.get(chip)
    if measured is None:
        return None
    figures = figures_of(measured)
    memory, launch, handing = figures["share"] * bandwidth * GIGA, figures["launch"], figures["handing"][1]
    return of_figures(figures, memory, launch * MICRO, handing * MICRO)


def of_figures(figures: Mapping[str, Any], memory: float, launch: float = 0.0, handing: float = 0.0) -> Rates:
    """Those of a file of a chip. memory: bytes a second. launch, handing: seconds."""
    return Rates(
        memory=memory,
        launch=launch,
        handing=handing,
        elements=figures["elements"],
        rows={kind: [(row, pair) for row, *pair in many] for kind, many in figures["rows"].items()},
        operand=figures["operand"],
        broadcast=figures["broadcast"],
        steps=figures["steps"],
        products=figures["products"],
    )


@cache
def figures_of(chip: str) -> Mapping[str, Any]:
    """The file of a chip: times in us, those of elements in ps, the share of the stated bandwidth."""
    text = resources.files("fuselint").joinpath(f"data/chips/{chip}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def total(loads: Iterable[Load], rates: Rates) -> float:
    """The seconds of kernels that run one after the other: those of handing them over, where these are more."""
    many = list(loads)
    return max(sum(map(rates.seconds, many)), rates.handing * sum(k.launches for k in many))
