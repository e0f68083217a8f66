"""Text edits: what a fix does to a file.

An edit replaces the code points [start, end) of the file's text. `place` turns a fixer's template over holes into
edits; `apply` carries edits out; `compatible` says whether two fixes can be made in one round, `merge` and `joined`
make one list of their edits; `guard` (guard.py) checks the result.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from fuselint.finding import Edit, Region
from fuselint.source.guard import guard

if TYPE_CHECKING:
    from fuselint.graph.lower import Program
    from fuselint.graph.model import Graph
    from fuselint.rulebook import Match, NoFix, Replacement

__all__ = ["Placement", "apply", "compatible", "guard", "joined", "merge", "place"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and how a replacement goes into the file.

    edits: on the file's text, in order. shown: the new code in one line, for messages. statements: the spans of the
    old text that the edits may change, with all else left as it is. unsafe: why placing it made the fix unsafe
    (a public attribute goes), or "". notes: what else goes, such as "`_norm` goes, nothing else reads it".
    """

    edits: tuple[Edit, ...]
    shown: str
    region: Region | None = None
    notes: tuple[str, ...] = ()
    statements: tuple[tuple[int, int], ...] = ()
    unsafe: str = ""


def apply(text: str, edits: Iterable[Edit]) -> str:
    """The text after the edits. They must not overlap; two insertions at one place keep their order."""
    out: list[str] = []
    at = 0
    for e in sorted(edits, key=lambda e: (e.start, e.end)):
        if not at <= e.start <= e.end <= len(text):
            raise ValueError(f"edit {e.start}..{e.end} overlaps another or lies outside of the text")
        out += [text[at : e.start], e.text]
        at = e.end
    out.append(text[at:])
    return "".join(out)


def compatible(a: Iterable[Edit], b: Iterable[Edit]) -> bool:
    """Whether the edits of two fixes can be made in one round: none overlap or touch, and no helper is defined twice.

    Edits that both fixes make alike (the same import, the same helper, the same deletion) count once: see `merge`.
    Helpers that go to the same place don't touch: they stand one below the other, see `joined`.
    """
    left, right = set(a), set(b)
    shared = left & right
    left, right = left - shared, right - shared
    if _defined(left) & _defined(right) or _rebinds(left, right) or _rebinds(right, left):
        return False
    return not any(_touch(x, y) for x in left for y in right) and not any(
        _touch(x, y) for x in shared for y in left | right
    )


def _touch(x: Edit, y: Edit) -> bool:
    if x.start == x.end == y.start == y.end and _is_helper(x.text) and _is_helper(y.text):
        return False
    return x.start <= y.end and y.start <= x.end


@lru_cache(maxsize=1024)
def _is_helper(text: str) -> bool:
    """Whether a text is one decorated function and blank lines, and whole lines."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return False
    return (
        len(body) == 1
        and isinstance(body[0], ast.FunctionDef)
        and bool(body[0].decorator_list)
        and text.endswith(("\n", "\r"))
        and "#" not in text
    )


def joined(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits with helpers that go to one place as one edit, in the order they come, two blank lines apart."""
    out: list[Edit] = []
    for e in edits:
        last = out[-1] if out else None
        if last is not None and last.start == last.end == e.start == e.end:
            out[-1] = Edit(e.start, e.end, last.text + e.text.lstrip("\r\n"))
        else:
            out.append(e)
    return tuple(out)


def _rebinds(a: Iterable[Edit], b: Iterable[Edit]) -> bool:
    """Whether an edit of `b` may assign a name that `a` defines as a helper."""
    names = {n for e in a for n in re.findall(r"^def (\w+)", e.text, re.MULTILINE)}
    return any(re.search(rf"(?<![\w.]){n}\s*:?=(?!=)", e.text) for n in names for e in b if not _is_helper(e.text))


def _defined(edits: Iterable[Edit]) -> set[str]:
    """The helpers that edits define, by name and by what they compute.

    Two fixes that want one of the same are made one after the other: the second then finds that of the first.
    """
    return {name for e in edits for name in _definitions(e.text)}


@lru_cache(maxsize=1024)
def _definitions(text: str) -> frozenset[str]:
    out = set(re.findall(r"^def (\w+)", text, re.MULTILINE))
    with contextlib.suppress(SyntaxError):  # a helper between other code
        out.update(_computation(f) for f in ast.parse(text).body if isinstance(f, ast.FunctionDef))
    return frozenset(out)


def _computation(function: ast.FunctionDef) -> str:
    """The body of a function with its parameters numbered as it reads them."""
    names = {a.arg for a in function.args.args}
    order: dict[str, str] = {}
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    for s in body:
        for n in ast.walk(s):
            if isinstance(n, ast.Name) and n.id in names:
                n.id = order.setdefault(n.id, f"p{len(order)}")
    return "; ".join(map(ast.dump, body))


def merge(a: Iterable[Edit], b: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits of two compatible fixes together, each once, in order; at one place, those of `a` come first."""
    return tuple(sorted(dict.fromkeys([*a, *b]), key=lambda e: (e.start, e.end)))


def place(
    graph: Graph,
    match: Match,
    replacement: Replacement,
    program: Program,
    is_read: Callable[[str], bool] | None = None,
) -> Placement | NoFix:
    """Put a replacement into the file, or say why it can't be put there.

    is_read: whether any other file of the package reads a name (as an attribute, a name or an import).
    """
    from fuselint.source.placement import place as placing

    return placing(graph, match, replacement, program, is_read)
