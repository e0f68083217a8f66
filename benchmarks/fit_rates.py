"""From times of single kernels (cuda_kernels.py) to the figures of a chip (fuselint/data/chips), and how well these
tell the times of the pairs of dram_counters.py, to none of which they are fitted.

    python benchmarks/fit_rates.py fit kernels.json [more.json ...] > fuselint/data/chips/h200.json
    python benchmarks/fit_rates.py pairs times.json        a table of predicted and measured times and ratios
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dram_counters import launches_of

from fuselint.chips import CHIPS, fits
from fuselint.graph.symbols import Expr
from fuselint.rates import COMPILED, INDEXED, Load, figures_of, of_figures, rates_of, total
from fuselint.traffic.loads import loads

LARGE, MANY = 1.3e8, 5e10
"""Bytes, or operations of products, from which a kernel's time is its own, and not that of handing it over."""
BOUND, CLEARLY = 1.04, 1.15
"""How much longer than memory takes a kernel takes that is bound by something else too."""
SIMPLE = ("Add", "Maximum", "Multiply", "Negative", "Subtract")
"""Operations that cost the same where operands are looked up by their index."""
MEMORY_BOUND = ("unary", "binary", "select", "cast to float32", "cast from float32", "rms_norm", "full", "sum of all")
UNSEEN = "unseen"
"""How cases are labelled that nothing is fitted to."""
WIDTH = {2: 0, 4: 1}
CHAINED_ROWS, FEW_ROWS = 10_000, 256
"""Of chains whose kernels take long, and of those that take no time on the GPU."""


@dataclass(frozen=True)
class Timed:
    """One case: its kernels, and microseconds a call."""

    label: str
    dtype: str
    rows: int
    loads: tuple[Load, ...]
    us: float

    @property
    def moved(self) -> float:
        return sum(k.moved for k in self.loads)


def read(paths: Iterable[Path]) -> list[Timed]:
    found = [c for p in paths for c in json.loads(p.read_text())["cases"]]
    return [
        Timed(c["label"], c["dtype"], c["sizes"].get("T", 0), loads_of(c, lambda _: False), c["us"])
        for c in found
        if "us" in c and not c["label"].startswith(UNSEEN)
    ]


def loads_of(case: dict[str, Any], kept: Callable[[float], bool]) -> tuple[Load, ...]:
    launched, sizes = launches_of(case)

    def number(formula: Expr) -> float:
        found = formula.value()
        assert found is not None, (case["source"], formula)
        return found

    return tuple(loads(launched, sizes, number, kept))


# -- fitting ----------------------------------------------------------------------------------------------------------


def fitted(cases: Sequence[Timed], bandwidth: float) -> dict[str, Any]:
    alone, memory = _line([(c.moved, c.us) for c in cases if c.label in MEMORY_BOUND and c.moved > LARGE])
    call, handing = _of_a_call(cases)
    large = [c for c in cases if len(c.loads) == 1 and (c.moved > LARGE or c.loads[0].operations > MANY)]
    single = [replace(c, us=c.us - alone) for c in large]
    figures = _figures(single, memory)
    return {
        "measured": "MLX 0.32.4; microseconds, picoseconds an element (16 bits, 32 bits), TFLOP/s",
        "share": round(memory / (bandwidth * 1e3), 3),
        "launch": round(alone - call, 2),
        "call": round(call, 1),
        "handing": [round(h, 2) for h in handing],
        "error": round(_error(single, memory, figures), 3),
        **figures,
    }


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Microseconds of no bytes, and bytes a microsecond: least squares of relative errors."""
    weighted = [(1 / us**2, x, us) for x, us in points]
    weight = sum(w for w, _, _ in weighted)
    x0 = sum(w * x for w, x, _ in weighted) / weight
    y0 = sum(w * y for w, _, y in weighted) / weight
    slope = sum(w * (x - x0) * (y - y0) for w, x, y in weighted) / sum(w * (x - x0) ** 2 for w, x, _ in weighted)
    return y0 - slope * x0, 1 / slope


def _of_a_call(cases: Sequence[Timed]) -> tuple[float, tuple[float, float]]:
    """Of a call with one mx.eval: what the GPU takes besides its kernels, where they are large; and what Python and MLX
    take for it and for each kernel, where they are small."""
    chains: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for c in cases:
        if c.label.startswith("chain ") and c.label != "chain of numbers":
            chains[c.label.rstrip("0123456789"), c.dtype, c.rows][len(c.loads)] = c.us
        elif c.label == "binary":
            chains["chain of sums ", c.dtype, c.rows][1] = c.us
    idle, calls, kernels = [], [], []
    for (label, _, rows), us in chains.items():
        few, many = min(us), max(us)
        if few == 1 and many > 1:
            slope = (us[many] - us[2]) / (many - 2)
            if rows >= CHAINED_ROWS:
                idle.append(us[1] - slope)
            elif rows <= FEW_ROWS and label == "chain ":
                calls.append(us[1] - slope)
                kernels.append(slope)
    return statistics.mean(idle), (statistics.median(calls), statistics.median(kernels))


def _figures(cases: Sequence[Timed], memory: float) -> dict[str, Any]:
    """Of kernels alone, less what a call takes."""
    works: dict[str, dict[float, list[dict[str, list[float]]]]] = {}
    products: dict[str, list[list[float]]] = {}
    for c in sorted(cases, key=lambda c: c.moved):
        (k,) = c.loads
        if k.operations:
            rest = math.sqrt(max(c.us**2 - (k.moved / memory) ** 2, 0.0))
            if k.operations > MANY and rest:
                products.setdefault(k.kind, [[], []])[WIDTH[k.itemsize]].append(k.operations / rest / 1e6)
        elif not k.kind.startswith(COMPILED):
            kind = INDEXED.strip() if k.kind in [name + INDEXED for name in SIMPLE] else k.kind
            by_row = works.setdefault(kind, {}).setdefault(k.row, [{}, {}])
            by_row[WIDTH[k.itemsize]].setdefault(c.label, []).append(_work(c, memory))
    found = {kind: {row: _pair(both) for row, both in sorted(rows.items())} for kind, rows in works.items()}
    elements = {kind: rows[0.0] for kind, rows in found.items() if set(rows) == {0.0}}
    return {
        "products": {
            kind: _pair([{"": [statistics.median(p)]} if p else {} for p in both], 0) for kind, both in products.items()
        },
        "elements": {kind: pair for kind, pair in sorted(elements.items()) if any(pair)},
        "rows": {
            kind: [[row, *pair] for row, pair in rows.items()]
            for kind, rows in sorted(found.items())
            if set(rows) != {0.0} and any(map(any, rows.values()))
        },
        **_of_compiled(cases, memory),
    }


def _pair(both: Sequence[dict[str, list[float]]], digits: int = 2) -> list[float]:
    """For each width the median of the cases, each at its largest size; none where most are bound by memory alone."""
    out = []
    for by_label in both:
        largest = [found[-1] for found in by_label.values()]
        bound = [w for w in largest if w > 0]
        out.append(round(statistics.median(bound), digits) if len(bound) * 2 > len(largest) else 0.0)
    if not both[1]:
        out[1] = out[0]  # in 16 bits only
    return out


def _work(case: Timed, memory: float, bound: float = BOUND) -> float:
    """Picoseconds for each element, besides what memory takes; 0 where that is all."""
    (k,) = case.loads
    least = k.moved / memory
    if case.us < bound * least or not k.elements:
        return 0.0
    return math.sqrt(case.us**2 - least**2) * 1e6 / k.elements


def _of_compiled(cases: Sequence[Timed], memory: float) -> dict[str, Any]:
    """A step's figure is that of the shortest chain of it that memory doesn't hide: of one, or of more, each of which
    computes with what the one before made. Where operands are indexed, each adds the same."""
    works: list[dict[tuple[str, int], float]] = [{}, {}]
    for c in sorted(cases, key=lambda c: c.moved):  # the largest of a kind counts
        (k,) = c.loads
        steps = [s for s in k.steps if s not in ("Broadcast", "Abs")]
        if k.kind == COMPILED and k.operands == 1 and steps and len(set(steps)) == 1:
            works[WIDTH[k.itemsize]][steps[0], len(steps)] = _work(c, memory, CLEARLY)
    for c in sorted(cases, key=lambda c: c.moved):
        (k,) = c.loads
        found = works[WIDTH[k.itemsize]]
        if (k.kind, 2) in found and "compiled" not in c.label:
            found[k.kind, 1] = _work(c, memory, CLEARLY)
    steps_found: dict[str, list[float]] = {}
    for i, found in enumerate(works):
        for (name, length), work in sorted(found.items()):
            pair = steps_found.setdefault(name, [0.0, 0.0])
            pair[i] = pair[i] or round(work / length, 2)
    looked_up: list[list[tuple[int, int, float]]] = [[], []]
    for c in cases:
        (k,) = c.loads
        i = WIDTH[k.itemsize]
        work = _work(c, memory) - sum(steps_found.get(s, (0.0, 0.0))[i] for s in k.steps)
        if k.kind == COMPILED + INDEXED and work > 0:
            looked_up[i].append((k.operands - k.broadcast, k.broadcast, work))
    solved = [_two(found) for found in looked_up]
    return {
        "steps": {name: pair for name, pair in sorted(steps_found.items()) if any(pair)},
        "operand": [round(whole, 2) for whole, _ in solved],
        "broadcast": [round(part, 2) for _, part in solved],
    }


def _two(points: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Least squares of a x first + b x second."""
    xx, xy, yy = (
        sum(f(x, y) for x, y, _ in points) for f in (lambda x, _: x * x, lambda x, y: x * y, lambda _, y: y * y)
    )
    xz, yz = sum(x * z for x, _, z in points), sum(y * z for _, y, z in points)
    by = xx * yy - xy * xy
    return (xz * yy - yz * xy) / by, (yz * xx - xz * xy) / by


def _error(cases: Sequence[Timed], memory: float, figures: dict[str, Any]) -> float:
    """How far the figures are from the kernels that they were made of: the mean of the relative errors."""
    rates = of_figures(figures, memory * 1e6)
    return statistics.mean(abs(rates.seconds(c.loads[0]) * 1e6 / c.us - 1) for c in cases)


# -- judging ----------------------------------------------------------------------------------------------------------

WITHIN = 0.2
PRODUCTS = ("normed product", "attention", "repeated K and V", "causal mask", "product and", "contraction")
OF_WEIGHTS = ("dequantized weight", "scaled weight")


def judged(path: Path, chip: str) -> Iterator[dict[str, Any]]:
    """Each pair at each size: microseconds a call, predicted and measured."""
    found = CHIPS[chip]
    rates, figures = rates_of(chip, found.bandwidth), figures_of(chip)
    assert rates is not None
    for before, after in _pairs(json.loads(path.read_text())):
        sides = []
        for case in (before, after):
            many = loads_of(case, lambda size: fits(size, found))
            handing = figures["handing"][0] + figures["handing"][1] * sum(k.launches for k in many)
            sides.append(max(handing, figures["call"] + total(many, rates) * 1e6))
        yield {
            "rule": before.get("rule", before.get("dtype")),
            "name": before.get("name", before.get("label")),
            "sizes": before["sizes"],
            "measured": [before["us"], after["us"]],
            "predicted": sides,
        }


def _pairs(measured: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Those of dram_counters.py; or of cuda_kernels.py what nothing is fitted to, as it is and compiled."""
    if isinstance(measured, list):
        yield from ((b, a) for b, a in zip(measured[::2], measured[1::2], strict=True) if "us" in b)
        return
    cases = {(c["label"], c["dtype"], *c["sizes"].values()): c for c in measured["cases"] if "us" in c}
    for (label, *rest), case in cases.items():
        name = label.removeprefix(f"{UNSEEN}: ")
        compiled = cases.get((f"{UNSEEN}, compiled: {name}", *rest))
        if name != label and compiled is not None:
            yield case | {"label": name}, compiled


def is_bound_by_memory(name: str) -> bool:
    """Before and after the fix."""
    return not name.startswith((*PRODUCTS, *OF_WEIGHTS))


def table(path: Path, chip: str) -> None:
    """Ratios by size, those first that are bound by memory before and after the fix."""
    rows: dict[tuple[bool, str, str], list[str]] = defaultdict(list)
    within: dict[int, list[bool]] = defaultdict(list)
    for p in judged(path, chip):
        predicted, measured = (p[k][0] / p[k][1] for k in ("predicted", "measured"))
        bound = is_bound_by_memory(p["name"])
        row = rows[not bound, p["rule"], p["name"]]
        row.append(f"{predicted:.2f} / {measured:.2f} ({predicted / measured - 1:+.0%})")
        if bound:
            within[len(row)].append(abs(predicted / measured - 1) <= WITHIN)
    columns = max(map(len, rows.values()))
    print(f"| rule | pair |{''.join(f' size {i + 1} |' for i in range(columns))}\n|---|---|{'---|' * columns}")
    for (_, rule, name), cells in sorted(rows.items(), key=lambda r: r[0][0]):
        print(f"| {rule} | {name} | {' | '.join(cells)} |")
    print("\nbound by memory, within 20 %:", ", ".join(f"{sum(good)} of {len(good)}" for good in within.values()))


def written(figures: dict[str, Any]) -> str:
    """JSON with a line for each figure."""
    text = json.dumps(figures, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda m: " ".join(m[0].split()).replace("[ ", "[").replace(" ]", "]"), text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["fit", "pairs"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--chip", default="h200")
    given = parser.parse_args()
    if given.step == "fit":
        print(written(fitted(read(given.files), CHIPS[given.chip].bandwidth)))
    else:
        table(given.files[0], given.chip)


if __name__ == "__main__":
    main()
