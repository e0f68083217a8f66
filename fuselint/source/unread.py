"""What a fix leaves unread outside of its function: private helpers, private methods, attributes of `__init__`.

A private method or function goes where no file of the package reads its name. A public attribute goes only with a fix
that is unsafe anyway, and where the package is known to have no reader.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Graph
from fuselint.source.confirm import is_impure
from fuselint.source.dead import dead_statements
from fuselint.source.function import FunctionSource, walk
from fuselint.source.guard import PRAGMA
from fuselint.source.hoist import end_of, parsed, start_of
from fuselint.source.removal import Removal, above, comments_in, line_end, without_gap
from fuselint.source.screen import nodes
from fuselint.source.text import FileText

if TYPE_CHECKING:
    from fuselint.graph.program import Program


@dataclass
class Leftovers:
    """comments_at, indent: where comments of deleted code go.

    notes: what goes, for the message. spans: the statements deleted. unsafe: why that makes the fix unsafe, or "".
    """

    graph: Graph
    program: Program
    is_read: Callable[[str], bool] | None
    is_unsafe: bool
    comments_at: int
    indent: str
    notes: list[str] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    unsafe: str = ""

    def edits(self, removed: Sequence[cst.CSTNode], made: Iterable[Edit]) -> list[Edit]:
        """More edits, given the code that goes and the edits made so far."""
        file = self.graph.source.file
        out: list[Edit] = []
        deleted: list[tuple[int, int]] = [(e.start, e.end) for e in made if e.end > e.start]
        names = _names([n for r in removed for n in walk(r)])
        kept = "".join(e.text for e in made)
        comments: list[str] = []
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name in seen:
                continue
            definition: ast.FunctionDef | ast.Import | ast.ImportFrom | None
            definition = self._private(name) or self._import(name)
            # What other files read is asked last: it may take reading all of them.
            more = None
            if definition is None and self.is_unsafe and self.is_read is not None:
                more = self._attribute(name)
            if (definition is None and more is None) or self._read(
                name, deleted, kept, isinstance(definition, (ast.Import, ast.ImportFrom))
            ):
                continue
            seen.add(name)
            if definition is not None:
                start, end = above(file, start_of(file, definition)), line_end(file, end_of(file, definition))
                if start == 0:  # no blank lines at the top of the file
                    end += len(file.text[end:]) - len(file.text[end:].lstrip("\r\n"))
                span = without_gap(file, start, end)
                out.append(Edit(*span, ""))
                deleted.append(span)
                comments += [c for _, c in comments_in(file, *span) if not PRAGMA.match(c)]
                what = f"`{name}`" if isinstance(definition, ast.FunctionDef) else f"`{ast.unparse(definition)}`"
                self.notes.append(f"{what} goes, nothing else reads it")
                self.spans.append(span)
                names += _ast_names(definition)
            elif more is not None:
                out += more.edits
                spans = [(e.start, e.end) for e in more.edits if e.end > e.start]
                deleted += spans
                self.spans += spans
                comments += more.comments
                self.notes.append(f"`self.{name}` goes, nothing else reads it")
                if not name.startswith("_"):
                    self.unsafe = f"no code outside of the package reads `{name}`"
                names += _names([n for d in more.dead for n in walk(d)])
        if comments:
            text = "".join(f"{self.indent}{c}{file.newline}" for c in comments)
            out.append(Edit(self.comments_at, self.comments_at, text))
        return out

    def _read(self, name: str, deleted: Sequence[tuple[int, int]], kept: str, here: bool = False) -> bool:
        """Whether the file, without what is deleted, or (unless `here`) another file reads a name."""
        file = self.graph.source.file
        if re.search(rf"\b{re.escape(name)}\b", kept):
            return True
        for at in _mentions(file).reads.get(name, ()):
            if not any(a <= at <= b for a, b in deleted):
                return True
        return not here and self.is_read is not None and self.is_read(name)

    def _import(self, name: str) -> ast.Import | ast.ImportFrom | None:
        """The line `import math` or `from functools import partial`, which does nothing but bind the name."""
        tree = parsed(self.graph.source.file)
        found = _imports(self.graph.source.file).get(name, [])
        only = found[0] if len(found) == 1 else None
        if (
            only is None
            or only not in tree.body
            or len(only.names) != 1
            or (isinstance(only, ast.ImportFrom) and only.level)
        ):
            return None
        module = only.module if isinstance(only, ast.ImportFrom) else only.names[0].name
        return only if module in WITHOUT_EFFECT else None

    def _private(self, name: str) -> ast.FunctionDef | None:
        """The one function or method of a private name that the file defines."""
        if not name.startswith("_") or name.startswith("__"):
            return None
        tree = parsed(self.graph.source.file)
        found = [
            f
            for body in (tree.body, *(c.body for c in tree.body if isinstance(c, ast.ClassDef)))
            for f in body
            if isinstance(f, ast.FunctionDef) and f.name == name
        ]
        if len(found) != 1 or any(not _is_static(d) for d in found[0].decorator_list):
            return None
        if _mentions(self.graph.source.file).defined[name] != 1:
            return None
        holder = next(
            (c for c in tree.body if found[0] in getattr(c, "body", ()) and isinstance(c, ast.ClassDef)), None
        )
        return None if holder is not None and len(holder.body) == 1 else found[0]

    def _attribute(self, name: str) -> Removal | None:
        """The statements of `__init__` that only serve a scalar attribute."""
        class_name = self.graph.source.class_name
        if class_name is None or _mentions(self.graph.source.file).stored[name] != 1:
            return None
        qualname = (
            self.graph.module.classes[class_name].methods.get("__init__")
            if class_name in self.graph.module.classes
            else None
        )
        source = self.program.function(qualname) if qualname else None
        init = self.program.graph(qualname) if qualname else None
        if source is None or init is None or not isinstance(source.node, cst.FunctionDef) or init.not_understood:
            return None
        value = init.stored.get(name)
        if value is None or init.facts.kind(value) != "scalar":
            return None
        for stmt in init.statements:
            node = stmt.cst
            if (
                isinstance(node, cst.Assign)
                and len(node.targets) == 1
                and _is_own(node.targets[0].target, name, source)
            ):
                if any(n.top_stmt is stmt and is_impure(n) for n in init.nodes):
                    return None
                return Removal(source, self._with_locals(source, init, node))
        return None

    def _with_locals(self, source: FunctionSource, init: Graph, node: cst.CSTNode) -> set[cst.CSTNode]:
        assert isinstance(source.node, cst.FunctionDef)
        effects = {e.stmt.cst for e in init.effects}
        impure = {n.top_stmt.cst for n in init.nodes if n.top_stmt is not None and is_impure(n)}
        plain = {
            s.cst
            for s in init.statements
            if isinstance(s.cst, cst.Assign) and all(isinstance(t.target, cst.Name) for t in s.cst.targets)
        }

        def deletable(n: cst.CSTNode) -> bool:
            return n in plain and n not in effects and n not in impure

        before = dead_statements(source.node, deletable)
        return dead_statements(source.node, lambda n: n not in before and deletable(n), (), {}, {node})


WITHOUT_EFFECT = frozenset({"functools", "math"})
"""Modules whose import does nothing else, and whose names nobody imports from another module."""


@dataclass
class _Mentions:
    """What a file does with names: where it reads them, and how often it defines a function of one, or stores it as an
    attribute."""

    reads: dict[str, list[int]] = field(default_factory=dict)
    defined: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)


@lru_cache(maxsize=4)  # many fixes of one file ask
def _mentions(file: FileText) -> _Mentions:
    out = _Mentions()

    def read(name: str, line: int, column: int) -> None:
        out.reads.setdefault(name, []).append(file.ast_offset(line, column))

    for n in nodes(file.text):
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load):
            read(n.attr, n.end_lineno or n.lineno, n.end_col_offset or 0)
        elif isinstance(n, ast.Attribute):
            out.stored[n.attr] += 1
        elif isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store):
            read(n.id, n.lineno, n.col_offset)
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and re.fullmatch(r"[\w.]*", n.value):
            read(n.value.rpartition(".")[2], n.lineno, n.col_offset)
        elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Attribute):
            read(n.target.attr, n.lineno, n.col_offset)
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            out.defined[n.name] += 1
    return out


@lru_cache(maxsize=4)
def _imports(file: FileText) -> dict[str, list[ast.Import | ast.ImportFrom]]:
    """By the names that they bind."""
    out: dict[str, list[ast.Import | ast.ImportFrom]] = {}
    for n in nodes(file.text):
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            for name in _bound(n):
                out.setdefault(name, []).append(n)
    return out


def _bound(node: ast.Import | ast.ImportFrom) -> list[str]:
    return list(dict.fromkeys(a.asname or a.name for a in node.names))


def _names(nodes: Iterable[cst.CSTNode]) -> list[str]:
    """Names that code reads: attributes, and plain names that may be functions."""
    out: dict[str, None] = {}
    for n in nodes:
        if isinstance(n, cst.Attribute):
            out[n.attr.value] = None
        elif isinstance(n, cst.Name):
            out[n.value] = None
    return list(out)


def _ast_names(node: ast.AST) -> list[str]:
    return [
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in ast.walk(node)
        if isinstance(n, (ast.Attribute, ast.Name))
    ]


def _is_static(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "staticmethod"


def _is_own(target: cst.BaseExpression, name: str, source: FunctionSource) -> bool:
    params = source.node.params.params
    return (
        isinstance(target, cst.Attribute)
        and target.attr.value == name
        and isinstance(target.value, cst.Name)
        and bool(params)
        and target.value.value == params[0].name.value
    )
