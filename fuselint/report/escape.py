"""Text from code and file names, made harmless for what it is printed into.

A name or a string literal may hold bytes that move a terminal's cursor, that turn the reading direction round, or that
end the line, the cell or the annotation that they stand in. All of them are shown as escapes.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SPOILS = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL = re.compile(f"[{_SPOILS}\n]")
_CONTROL_IN_LINES = re.compile(f"[{_SPOILS}]")
_NAMES = {"\n": "\\n", "\r": "\\r", "\f": "\\f"}


def line(text: str) -> str:
    """Text for one line of a terminal."""
    return _CONTROL.sub(_shown, text)


def lines(text: str) -> str:
    """Text for a terminal, with its own line ends."""
    return _CONTROL_IN_LINES.sub(_shown, text)


def _shown(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMES.get(found[0]) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def dumps(data: Any, indent: int | None = None) -> str:
    """JSON that is harmless too: what JSON lets stand in a string but a terminal or an encoder doesn't is escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return _CONTROL_IN_LINES.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def xml(text: str) -> str:
    """Text for XML, in an element or in an attribute."""
    for sign, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(sign, name)
    return lines(text).replace("\t", "&#9;").replace("\n", "&#10;")


def markdown(text: str) -> str:
    """Text for one cell of a Markdown table, with no sign of it taken for markup."""
    return re.sub(r"([\\`*_{}\[\]<>|#~$@!])", r"\\\1", line(text)).replace("\t", " ")


def code(text: str) -> str:
    """One line of code for a Markdown table: in as many backticks as it takes."""
    shown = line(text).replace("|", "\\|")
    fence = "`" * (max((len(run) for run in re.findall("`+", shown)), default=0) + 1)
    space = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{space}{shown}{space}{fence}"
