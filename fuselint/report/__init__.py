"""Findings -> text. One module a format, each with `render(findings, source, color) -> str`.

`source` gives the text of a finding's file; only the full format asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

from fuselint.finding import Finding

FORMATS = ("full", "concise", "json")

Source = Callable[[str], str]
"""Path -> the text that the finding's lines and columns count in."""


class Renderer(Protocol):
    def __call__(self, findings: Sequence[Finding], source: Source, color: bool = False) -> str: ...


def renderer(name: str) -> Renderer:
    return cast(Renderer, import_module(f"fuselint.report.{name}").render)


def size(number: int) -> str:
    """Bytes for people: 268435456 -> 268 MB."""
    amount = float(number)
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
