"""A page that stands alone: one file, no scripts, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1c1c1c; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .6rem; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; } tr.wrong td { background: #fdecea; }
pre { background: #f6f6f6; padding: .7rem; overflow-x: auto; font-size: 13px; }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #ddd; } th, td { border-color: #444; } pre { background: #222; }
  tr.wrong td { background: #4a1f1c; }
}
"""


def page(title: str, body: Iterable[str]) -> str:
    """body: HTML."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def table(rows: Sequence[Sequence[str]], wrong: str | None = None) -> str:
    """The first row is the head. wrong: rows that end otherwise than in this word are marked."""
    head, *rest = rows
    if not rest:
        return ""
    lines = ["<table>", f"<tr>{''.join(f'<th>{escape(c)}</th>' for c in head)}</tr>"]
    for row in rest:
        mark = ' class="wrong"' if wrong is not None and row[-1] != wrong else ""
        lines.append(f"<tr{mark}>{''.join(f'<td>{escape(c)}</td>' for c in row)}</tr>")
    return "\n".join([*lines, "</table>"])
