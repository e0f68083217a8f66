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


def plural(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}{'es' if word.endswith(('ch', 'x')) else 's'}"
