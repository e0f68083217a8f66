"""The page of `fuselint report`: one file that needs nothing else. Charts are drawn by Chart.js, which is in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fuselint import __version__
from fuselint.page import Page, Shown
from fuselint.report import escape, saving
from fuselint.report.json import finding, proof

PARTS = Path(__file__).parent.parent / "data" / "page"

AROUND = 2
"""Lines of source shown before and after a finding."""

MOST_LINES = 60


def render(page: Page, title: str) -> str:
    values = {
        "title": escape.xml(escape.line(title)),
        "css": _part("page.css"),
        "data": _in_script(escape.dumps(_data(page))),
        "chart": _part("chart.min.js"),
        "treemap": _part("treemap.min.js"),
        "script": _part("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda m: values[m[1]], _part("page.html"))


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _in_script(data: str) -> str:
    """JSON that can't end the element that it stands in."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(page: Page) -> dict[str, Any]:
    chip = {
        "name": page.chip.name,
        "origin": page.origin,
        "bandwidth": page.chip.bandwidth,
        "products": page.chip.peak.products(page.dtype),
        "vector": page.chip.peak.vector,
    }
    keys = {(s.finding.path, s.finding.id): _key(number) for number, s in enumerate(page.shown)}
    return {
        "version": __version__,
        "chip": chip,
        "dtype": page.dtype,
        "files": page.files,
        "functions": [
            {**asdict(f), "ids": [keys[f.path, i] for i in f.ids if (f.path, i) in keys]} for f in page.functions
        ],
        "findings": [_shown(s, number) for number, s in enumerate(page.shown)],
        "errors": [e.split("\n", 1)[0] for e in page.errors],
    }


def _key(number: int) -> str:
    """Ids of findings are those of a file: the same text in two files has the same."""
    return f"n{number}"


def _shown(s: Shown, number: int) -> dict[str, Any]:
    return {
        **finding(s.finding),
        "id": _key(number),
        "place": s.finding.place,
        "saves": saving.brief(s.finding.traffic),
        "typical": list(s.finding.traffic.typical) if s.finding.traffic else [],
        "source": _excerpt(s.source, s.finding.line, s.finding.end_line),
        "before": asdict(s.before) if s.before else None,
        "after": asdict(s.after) if s.after else None,
        "verification": proof(s.verification) if s.verification else None,
    }


def _excerpt(text: str, first: int, last: int) -> Sequence[tuple[int, str]]:
    lines = re.split(r"\r\n|\r|\n", text)
    start, end = max(1, first - AROUND), min(len(lines), last + AROUND, first + MOST_LINES)
    return [(n, escape.line(lines[n - 1])) for n in range(start, end + 1)] if text else []
