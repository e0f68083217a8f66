"""A comparison of two versions as text, JSON, or a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from html import escape

from fuselint.report import duration, plural, size
from fuselint.report.page import page, table
from fuselint.verify.whole.model import VERSIONS, Comparison, Cost, Leaf

MOST_LEAVES = 20
NO_TIME = "no time is measured on the CPU: it says nothing of a GPU"


def render(found: Comparison, form: str) -> str:
    if form == "json":
        return json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n"
    if form == "html":
        return _page(found)
    return "\n".join(_text(found)) + "\n"


def headline(found: Comparison) -> str:
    wrong = sum(bool(leaf.wrong) for leaf in found.leaves)
    what = f"{found.question.entry}: "
    if found.same:
        return what + f"the same: {plural(len(found.leaves), 'value')}, within rounding"
    return what + f"DIFFERENT: {wrong} of {plural(len(found.leaves), 'value')}"


def _text(found: Comparison) -> Iterator[str]:
    yield headline(found)
    yield from (f"  {line}" for line in _about(found))
    yield ""
    yield from _columns([LEAF_HEAD, *map(_leaf, _shown(found.leaves))])
    if hidden := len(found.leaves) - len(_shown(found.leaves)):
        yield f"  and {plural(hidden, 'value')} more, the same"
    yield ""
    yield from _columns([("", *VERSIONS), *_costs(found)])
    yield from (f"  {note}" for note in _notes(found))


def _about(found: Comparison) -> Iterator[str]:
    q = found.question
    yield f"before {q.before}, after {q.after}"
    yield f"on {found.device}, MLX {found.mlx}, seed {q.seed}, dtype {q.dtype or 'as it is'}"
    if found.files:
        loaded = ", ".join(f"{n} {version}" for version, n in found.files.items())
        yield f"files imported: {loaded}; weights: {found.weights}"


LEAF_HEAD = ("value", "shape", "dtype", "difference", "allowed", "")


def _leaf(leaf: Leaf) -> tuple[str, ...]:
    exact = "0" if leaf.dtype and not leaf.gap else ""
    gap = f"{leaf.gap:.1e}" if leaf.gap else exact
    shape = "x".join(map(str, leaf.shape)) if leaf.dtype else ""
    return leaf.path, shape, leaf.dtype, gap, f"{leaf.allowed:.1e}" if leaf.allowed else "", leaf.wrong or "same"


def _shown(leaves: Sequence[Leaf]) -> list[Leaf]:
    """What is wrong, and the results before the arguments, as many as a reader wants."""
    order = sorted(leaves, key=lambda leaf: (not leaf.wrong, not leaf.path.startswith("result"), -leaf.gap))
    return order[:MOST_LEAVES]


def _costs(found: Comparison) -> Iterator[tuple[str, ...]]:
    """Rows of what each version takes."""

    def row(name: str, texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
        if any(texts):
            yield (name, *texts)

    costs = [found.costs.get(v, Cost(0)) for v in VERSIONS]
    yield from row("kernels", ["" if c.kernels is None else str(c.kernels) for c in costs])
    yield from row("bytes moved", ["" if c.bytes is None else size(c.bytes) for c in costs])
    yield from row("peak memory", [size(c.peak_memory) if c.peak_memory else "" for c in costs])
    yield from row("time", ["" if c.seconds is None else _time(c) for c in costs])


def _time(cost: Cost) -> str:
    return f"{duration(cost.seconds or 0.0)} +- {duration(cost.spread or 0.0)}"


def _notes(found: Comparison) -> Iterator[str]:
    if found.device.startswith("cpu"):
        yield NO_TIME
    elif found.costs:
        yield speed(*(found.costs[v] for v in VERSIONS))
    yield from found.notes


def speed(before: Cost, after: Cost) -> str:
    """What two measured times say: faster, slower, or no difference beyond their noise."""
    if before.seconds is None or after.seconds is None:
        return "not timed"
    noise = (before.spread or 0.0) + (after.spread or 0.0)
    if abs(before.seconds - after.seconds) <= noise:
        return "no faster beyond noise"
    ratio = before.seconds / after.seconds
    return f"{ratio:.2f} times as fast" if ratio > 1 else f"slower: {1 / ratio:.2f} times as long"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(r, widths, strict=True)).rstrip()


def _page(found: Comparison) -> str:
    body = [
        *(f"<p>{escape(line)}</p>" for line in _about(found)),
        table([LEAF_HEAD, *map(_leaf, sorted(found.leaves, key=lambda leaf: not leaf.wrong))], wrong="same"),
        table([("", *VERSIONS), *_costs(found)]),
        *(f"<p>{escape(note)}</p>" for note in _notes(found)),
    ]
    return page(headline(found), body)
