"""Findings -> text. One module a format, each with `render(findings, source, color) -> str`.

`source` gives the text that a finding stands in; only the full format and SARIF ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

from fuselint.finding import UNREADABLE, Finding

Source = Callable[[Finding], str]
"""Finding -> the text that its lines and columns count in."""


class Renderer(Protocol):
    def __call__(self, findings: Sequence[Finding], source: Source, color: bool = False) -> str: ...


def renderer(name: str) -> Renderer:
    return cast(Renderer, import_module(f"fuselint.report.{name}").render)


def size(number: int) -> str:
    """Bytes for people: 268435456 -> 268 MB."""
    amount = float(min(number, 10**300))  # sizes that nobody means may be no floats
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def duration(seconds: float) -> str:
    """Time for people: 0.00032 -> 0.32 ms."""
    amount, sign = abs(seconds), "-" if seconds < 0 else ""
    for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if amount < 999.5 * scale:
            return (
                f"{sign}{amount / scale:.2g} {unit}" if amount < 99.5 * scale else f"{sign}{amount / scale:.0f} {unit}"
            )
    return f"{sign}{amount:.3g} s"


def percent(share: float) -> str:
    """0.0415 -> 4.2 %."""
    if 0 < share < 0.0001:
        return "less than 0.01 %"
    return f"{100 * share:.2g} %" if abs(share) < 0.0995 else f"{100 * share:.0f} %"


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{'es' if word.endswith(('ch', 'x', 's')) else 's'}"


def by_file(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    """Files (of a notebook, cells) in the order of their first findings, however these are sorted."""
    groups: dict[str, list[Finding]] = {}
    for f in findings:
        groups.setdefault(f.place, []).append(f)
    return groups


def level(f: Finding) -> str:
    """How much a finding weighs, in SARIF's words: error, warning, note."""
    if f.code == UNREADABLE:
        return "error"
    return "warning" if f.counts else "note"


def advice(f: Finding) -> list[str]:
    """What can be done, and what is not proven of it, a line each."""
    if f.fix is None:
        return []
    if f.fix.applicability == "none":
        return [f"no fix: {f.fix.message}"]
    needs = [f"needs: {'; '.join(f.fix.needs)}"] if f.fix.needs else []
    return [f"fix ({f.fix.applicability}, {f.fix.numerics}): {f.fix.message}", *needs]
