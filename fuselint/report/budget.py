"""Changes against a budget as lines: what was raised and by which lines first, then the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fuselint.budget import Change, Entry
from fuselint.report import escape, plural, size
from fuselint.report.style import Style

ORDER = ("raised", "lowered", "new", "gone")


def render(changes: Sequence[Change], form: str, color: bool = False) -> str:
    shown = sorted((c for c in changes if c.kind != "same" or c.was), key=lambda c: (_rank(c), c.key))
    if form == "json":
        return escape.dumps([_data(c) for c in shown], indent=1) + "\n"
    return "".join(line + "\n" for c in shown for line in _lines(_harmless(c), Style(color)))


def _harmless(c: Change) -> Change:
    """With nothing in names and code that a terminal would obey."""
    path, function = c.key
    lines = tuple((n, escape.line(text), launches, moved) for n, text, launches, moved in c.lines)
    was = (escape.line(c.was[0]), c.was[1]) if c.was else None
    return replace(c, key=(escape.line(path), function), lines=lines, was=was)


def closing(changes: Sequence[Change]) -> str:
    counts = Counter[str](c.kind for c in changes if c.kind != "gone")
    gone = sum(c.kind == "gone" for c in changes)
    kinds = [f"{counts[k]} {k}" for k in ORDER if counts[k]] + ([f"{gone} gone"] if gone else [])
    return f"{plural(counts.total(), 'function')}: {', '.join(kinds) if kinds else 'none changed'}"


def _rank(c: Change) -> int:
    return ORDER.index(c.kind) if c.kind in ORDER else len(ORDER)


def _lines(c: Change, style: Style) -> Iterator[str]:
    path, name = c.key
    place = f"{path}:{c.after.line}" if c.after is not None else path
    was = f" (was {c.was[0]} {c.was[1]})" if c.was else ""
    yield f"{style.bold(place)} {name}{was}: {_said(c)}"
    for line, text, launches, moved in c.lines:
        more = [f"{plural(launches, 'launch')} more"] if launches > 0 else []
        yield f"  {path}:{line}: {', '.join([*more, f'{size(moved)} more'] if moved > 0 else more)}: {text}"


def _said(c: Change) -> str:
    if c.after is None:
        return "gone, or no longer understood"
    now = _cost(c.after, c.after.bytes)
    if c.before is None:
        return f"new: {now}"
    if c.kind == "same":
        return "the same"
    formulas = f"{c.before.formula} -> {c.after.formula}" if c.before.formula != c.after.formula else c.after.formula
    at = " ".join(f"{name}={value}" for name, value in c.after.at.items())
    typical = f" ({', '.join(c.after.typical)} of a typical model)" if c.after.typical else ""
    sizes = f" at {at}{typical}" if at else ""
    return f"{c.kind}: {_cost(c.before, c.bytes_before)} -> {now} [{formulas} bytes{sizes}]"


def _cost(e: Entry, moved: int) -> str:
    return f"{plural(e.launches, 'launch')}, {size(moved)}"


def _data(c: Change) -> dict[str, Any]:
    def cost(e: Entry | None, moved: int) -> dict[str, Any] | None:
        return None if e is None else {"launches": e.launches, "bytes": moved, "formula": e.formula, "at": dict(e.at)}

    return {
        "kind": c.kind,
        "path": c.key[0],
        "function": c.key[1],
        "line": c.after.line if c.after else None,
        "was": {"path": c.was[0], "function": c.was[1]} if c.was else None,
        "before": cost(c.before, c.bytes_before),
        "after": cost(c.after, c.after.bytes if c.after else 0),
        "lines": [{"line": n, "text": t, "launches": more, "bytes": moved} for n, t, more, moved in c.lines],
    }
