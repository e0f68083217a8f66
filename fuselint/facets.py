"""What an edit of a file changes for others: the leaves of `notes` that are not what they were.

Others read of a file which names it binds, calls, stores and mentions, and in which lines: of most edits inside a
function they see nothing.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuselint.errors import UnreadableFile
from fuselint.package import reads_of
from fuselint.source.mentions import Mentions
from fuselint.source.modules import (
    compiles_more,
    differentiates,
    imports_of,
    links_of,
    mentions_of,
    summary_in,
    words_of,
)
from fuselint.source.notes import (
    ANYTHING,
    COMPILING,
    FILES,
    IMPORTS,
    LINKS,
    MENTIONS,
    NAMES,
    SUMMARY,
    kind_of,
    word_in,
)
from fuselint.source.project import ModuleSummary
from fuselint.source.spans import FunctionSpan
from fuselint.source.text import read
from fuselint.world import Changes

UNSEEN = {
    FunctionSpan: frozenset({"start", "end"}),  # who reads a function's text reads the file's
    ModuleSummary: frozenset({"path", "attribute_reads", "names"}),  # only asked of the file that is analysed
    Mentions: frozenset({"by_name", "by_function"}),  # `all` has the same
}
"""Fields that don't matter to other files."""

FACETS = {SUMMARY: summary_in, LINKS: links_of, MENTIONS: mentions_of, NAMES: reads_of}


def changed(path: str, before: str | None, after: str | None) -> Iterator[str]:
    """The leaves that are others with a text of a file than they were with another; None for no such file."""
    yield path
    for start, made in FACETS.items():
        if before is None or after is None or not _same(made, path, before, after):
            yield f"{start}{path}"
    old, new = ((text or "").encode("utf-8", "replace") for text in (before, after))
    folders = list(_above(path))
    for word in words_of(old) ^ words_of(new):
        yield from (word_in(folder, word) for folder in folders)
    if imports_of(old) != imports_of(new):
        yield from (f"{IMPORTS}{folder}" for folder in folders)
    if (compiles_more(old), differentiates(old)) != (compiles_more(new), differentiates(new)):
        yield from (f"{COMPILING}{folder}" for folder in folders)


def seen(changes: Changes, texts: Mapping[str, str | None]) -> tuple[set[str], set[str]]:
    """The leaves that are others after some changes, and the packages of which every leaf is.

    texts: of each changed file before, None where that is not known.
    """
    out, folders = {ANYTHING}, set[str]()
    for path, known in changes.files.items():
        before, after = texts[path], None
        with contextlib.suppress(UnreadableFile):
            after = read(path).text
        was, is_there = known is not None, os.path.lexists(path)
        out.update(changed(path, before, after))
        if (was and before is None) or (is_there and after is None):  # nobody knows which words are in it
            folders.update(_above(path))
        if was != is_there:
            out.update(f"{FILES}{folder}" for folder in _above(path))
            if os.path.basename(path) == "__init__.py":
                folders.add(os.path.dirname(path))
    out.update(kind_of(path, kind) for path in changes.kinds for kind in ("file", "folder", ""))
    return out, folders


def _above(path: str) -> Iterator[str]:
    """The folders that a path lies in."""
    above = os.path.dirname(path)
    while above != path:
        yield above
        path, above = above, os.path.dirname(above)


def _same(made: Any, path: str, before: str, after: str) -> bool:
    try:
        return bool(_plain(made(path, before)) == _plain(made(path, after)))
    except (RecursionError, MemoryError):
        return False


def _plain(value: Any) -> object:
    """A value without what doesn't matter to other files, so that equal ones are the same in all that does."""
    if isinstance(value, (str, int, float, bytes, complex, type(None))):
        return value if isinstance(value, str) else repr(value)
    if isinstance(value, ast.AST):
        parts = [_plain(getattr(value, name, None)) for name in value._fields]
        return type(value).__name__, getattr(value, "lineno", 0), parts
    if dataclasses.is_dataclass(value):
        unseen = UNSEEN.get(type(value), frozenset())
        return [
            type(value).__name__,
            *(_plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.name not in unseen),
        ]
    if isinstance(value, Mapping):
        return "map", [(_plain(k), _plain(v)) for k, v in value.items()]
    if isinstance(value, Sequence):
        return [_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return "set", sorted(repr(_plain(v)) for v in value)
    return repr(value)
