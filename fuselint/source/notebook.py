"""A Jupyter notebook as Python text, and its way back: its code cells in a row, with a marker line before each.

What isn't Python (`%magic`, `!command`, a whole `%%cell`) stands there as a call of `get_ipython`, of which nothing is
known, in as many lines. Only the sources of changed cells are written back: outputs, metadata and layout of the file
stay as they are, byte for byte.
"""

from __future__ import annotations

import ast
import codecs
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fuselint.errors import FuselintError, UnreadableFile
from fuselint.source.text import FileText

FORMAT = 4
"""The notebook format that is read; those before it keep their cells elsewhere."""

MARKER = "# %% cell {}"
_MARKER = re.compile(r"^# %% cell (\d+)$", re.M)

_MAGIC = re.compile(
    r"^\s*(?:(?P<target>[\w.,\s\[\]]+?)=\s*)?(?:%(?![=\s])|!(?!=))|^\s*[\w.]+\?{1,2}\s*$|^\s*\?{1,2}[\w.]+\s*$"
)
"""`%magic`, `!command`, `x = !command`, `name?` and `?name`."""

_PYTHON_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%mprun")
"""Magics of whole cells whose cell is Python all the same."""


@dataclass(frozen=True)
class Notebook(FileText):
    """The joined text of a notebook.

    raw: the file. original: the text as it was read. numbers: of its code cells, counting all cells from 1.
    magics: by number, the lines that are not Python and what stands in their place. spans: where each source is in raw.
    """

    raw: str = ""
    original: str = ""
    numbers: tuple[int, ...] = ()
    magics: Mapping[int, tuple[tuple[str, str], ...]] = field(default_factory=dict, compare=False)
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict, compare=False)

    def encode(self, text: str) -> bytes:
        """The notebook with the cells of a joined text. Raises FuselintError where that has lost a cell or a magic."""
        sources = self._sources(text)
        before = self._sources(self.original)
        raw = self.raw
        for number in sorted(self.numbers, reverse=True):
            if sources[number] != before[number]:
                start, end = self.spans[number]
                raw = raw[:start] + _spelled(sources[number], raw, start, end) + raw[end:]
        return (codecs.BOM_UTF8 if self.bom else b"") + raw.encode("utf-8", "surrogatepass")

    def problem(self, text: str) -> str:
        try:
            self._sources(text)
        except FuselintError as e:
            return str(e)
        return ""

    def _sources(self, text: str) -> dict[int, str]:
        """The cells' sources, with their magics."""
        found = list(_MARKER.finditer(text))
        if tuple(int(m[1]) for m in found) != self.numbers:
            raise FuselintError("it would move code from one cell to another")
        out = {}
        for m, following in zip(found, [*found, None][1:], strict=True):
            end = following.start() - 1 if following else len(text) - text.endswith("\n")
            source = text[m.end() + 1 : end]
            number = int(m[1])
            lines = source.split("\n")
            for magic, stands in self.magics[number]:
                if lines.count(stands) != 1:
                    raise FuselintError("it would move a line that is not Python")
                lines[lines.index(stands)] = magic
            out[number] = "\n".join(lines)
        return out

    @cached_property
    def _lines(self) -> tuple[int, ...]:
        """The lines of the markers."""
        return tuple(self.position(m.start())[0] for m in _MARKER.finditer(self.text))

    def locate(self, line: int) -> tuple[int, int]:
        """The cell of a line, and its line there."""
        at = max(0, bisect_right(self._lines, line) - 1)
        return self.numbers[at], max(1, line - self._lines[at])

    def cells(self) -> dict[int, str]:
        """What each cell holds, as its findings count in it."""
        return self._sources(self.text)


def decode(path: str, data: bytes) -> Notebook:
    """The notebook in a file's bytes. Raises UnreadableFile for what isn't one."""
    bom = data.startswith(codecs.BOM_UTF8)
    try:
        raw = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
        spans = dict(_source_spans(raw))
        parsed = json.loads(raw)
    except UnicodeDecodeError as e:
        raise UnreadableFile(path, f"not UTF-8 at byte {e.start}") from None
    except (ValueError, RecursionError) as e:
        raise UnreadableFile(path, f"not a notebook: {e}") from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("cells"), list):
        raise UnreadableFile(path, f"not a notebook of format {FORMAT}")
    numbers, magics, pieces = [], {}, []
    for number, cell in enumerate(parsed["cells"] if _is_python(parsed) else [], 1):
        source = _source(cell)
        if source is None or number not in spans or _MARKER.search(source):
            continue
        text, replaced = _without_magics(source)
        numbers.append(number)
        magics[number] = replaced
        pieces.append(f"{MARKER.format(number)}\n{text}\n")
    text = "".join(pieces)
    return Notebook(path, text, "\n", "utf-8", bom, raw, text, tuple(numbers), magics, spans)


def _is_python(notebook: Mapping[str, Any]) -> bool:
    metadata = _object(notebook.get("metadata"))
    kernel, info = _object(metadata.get("kernelspec")), _object(metadata.get("language_info"))
    return (kernel.get("language") or info.get("name")) in (None, "python")


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _source(cell: Any) -> str | None:
    """The text of a code cell."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    source = cell.get("source")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    return source if isinstance(source, str) and "\r" not in source else None


def is_python(text: str) -> bool:
    """Whether a text parses, whatever the compiler thinks of its escapes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _without_magics(source: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A cell as Python, and the lines that were replaced. Of a cell that is none even so, every line is."""
    if is_python(source):
        return source, ()
    lines = source.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if not first.startswith("%%") or first.split()[0] in _PYTHON_CELLS:
        replaced = {i: line for i, line in enumerate(lines) if _MAGIC.match(line)}
        text, pairs = _replacing(lines, replaced)
        if is_python(text):
            return text, pairs
    return _replacing(lines, dict(enumerate(lines)), flat=True)


def _replacing(
    lines: list[str], replaced: Mapping[int, str], flat: bool = False
) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The cell with calls in place of some lines, and which stands for which. flat: of all lines, each by itself."""
    out, pairs = list(lines), []
    for i, line in replaced.items():
        found = None if flat else _MAGIC.match(line)
        target = (found["target"] or "").strip() if found else ""
        indent = line[: len(line) - len(line.lstrip())] if found else ""
        out[i] = f"{indent}{f'{target} = ' if target else ''}get_ipython()  # line {i + 1} is not Python"
        pairs.append((line, out[i]))
    return "\n".join(out), tuple(pairs)


# -- the file ---------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def _source_spans(raw: str) -> Iterator[tuple[int, tuple[int, int]]]:
    """Where in a notebook's JSON the source of each cell stands, by the cell's number."""
    path: list[str | int] = []
    key: str | None = None
    expects_key = False
    start = 0
    for m in _TOKEN.finditer(raw):
        token = m[0]
        if expects_key and token[0] == '"':
            key, expects_key = token, False
            continue
        if token == ":":
            continue
        if token == ",":
            if path and isinstance(path[-1], int):
                path[-1] += 1
            else:
                expects_key = True
            continue
        if token in "{[":
            if _is_source(path, key):
                start = m.start()
            path += [key] if key is not None else []
            key = None
            path.append(0 if token == "[" else "{")
            expects_key = token == "{"
            continue
        if token in "}]":
            if path:
                path.pop()
            expects_key = False
            if path and isinstance(path[-1], str) and path[-1] != "{":
                key = str(path.pop())
                if token == "]" and _is_source(path, key):
                    yield int(path[2]) + 1, (start, m.end())
            key = None
            continue
        if _is_source(path, key):
            yield int(path[2]) + 1, m.span()
        key = None


def _is_source(path: list[str | int], key: str | None) -> bool:
    """Whether the value of `key` is the source of a cell: cells[i].source."""
    return key == '"source"' and len(path) == 4 and path[:2] == ["{", '"cells"'] and path[3] == "{"


def _spelled(source: str, raw: str, start: int, end: int) -> str:
    """A source as the one that stands there is spelled: a string, or a list of lines with its layout."""
    old = raw[start:end]
    escapes = raw.isascii() and "\\u" in raw

    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=escapes)

    if not old.startswith("["):
        return quoted(source)
    lines = re.findall(r"[^\n]*\n|[^\n]+$", source)
    first = re.match(r"\[(\s*)", old)
    last = re.search(r"(\s*)\]$", old)
    opening, closing = first[1] if first else "", last[1] if last else ""
    if "\n" not in opening:
        return f"[{', '.join(map(quoted, lines))}]"
    return f"[{opening}{f',{opening}'.join(map(quoted, lines))}{closing}]"
