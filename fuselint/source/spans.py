"""Where the functions of a module stand. Standard library only: it sees every file that names mlx."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fuselint.source.text import FileText

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class FunctionSpan:
    """A function: [start, end) are offsets, from its first decorator to the end of its last statement.

    qualname: as Python gives it, such as `Attention.__call__` or `make.<locals>.step`. A lambda that a module or
    class gives a name has that name; the span is then that of the lambda alone.
    class_name: the qualname of the class whose body holds it, or None.
    outer: the qualname of the function whose body holds it, or None.
    line: of the `def` (or `lambda`). header: the first and last line of its decorators and signature.
    depth: how many levels deep its syntax is; what is too short to be deep counts as one level.
    """

    qualname: str
    class_name: str | None
    start: int
    end: int
    line: int
    header: tuple[int, int] = (0, 0)
    depth: int = 0
    outer: str | None = None
    is_lambda: bool = False


def functions(file: FileText, tree: ast.Module) -> Iterator[tuple[FunctionSpan, Definition]]:
    """Every function of a module with its syntax tree, in source order; outer ones come before inner ones."""
    stack: list[tuple[ast.stmt, str, str | None, str | None]] = [(s, "", None, None) for s in reversed(tree.body)]
    while stack:
        statement, prefix, class_name, outer = stack.pop()
        inner: list[ast.stmt] = []
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            qualname = prefix + statement.name
            yield span_of(file, statement, qualname, class_name, outer), statement
            inner, prefix, class_name, outer = statement.body, f"{qualname}.<locals>.", None, qualname
        elif isinstance(statement, ast.ClassDef):
            class_name = prefix + statement.name
            inner, prefix = statement.body, f"{class_name}."
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            if isinstance(statement.value, ast.Lambda):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if len(targets) == 1 and isinstance(targets[0], ast.Name):
                    qualname = prefix + targets[0].id
                    yield span_of(file, statement.value, qualname, class_name, outer), statement.value
            continue
        else:
            inner = list(suites(statement))
        stack.extend((s, prefix, class_name, outer) for s in reversed(inner))


def suites(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements directly inside a compound statement, of all its suites."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for part in getattr(statement, name, ()):
            if isinstance(part, ast.stmt):
                yield part
            else:  # an except handler or a case
                yield from part.body


def span_of(
    file: FileText, node: Definition, qualname: str, class_name: str | None = None, outer: str | None = None
) -> FunctionSpan:
    assert node.end_lineno is not None and node.end_col_offset is not None
    start = file.ast_offset(node.lineno, node.col_offset)
    end = file.ast_offset(node.end_lineno, node.end_col_offset)
    first = last = node.lineno
    is_lambda = isinstance(node, ast.Lambda)
    if not isinstance(node, ast.Lambda):
        last = max(last, min(s.lineno for s in (node.body[0], *getattr(node.body[0], "decorator_list", ()))) - 1)
        if node.decorator_list:
            first = node.decorator_list[0].lineno
            while not (text := file.line(first)).lstrip(" \t\f").startswith("@"):
                first -= 1  # `@(` or `@\` stands above the expression
            start = file.starts[first - 1] + text.index("@")
    deep = _depth(file, node)
    return FunctionSpan(qualname, class_name, start, end, node.lineno, (first, last), deep, outer, is_lambda)


def _depth(file: FileText, node: ast.AST) -> int:
    """How many levels deep a function's syntax is. Walks level by level, so no depth is too deep for it.

    A simple statement counts as one level where it is too short to be deep: every level takes a character.
    """
    level, count = [node], 0
    while level:
        level = [child for n in level if not _short(file, n) for child in children(n)]
        count += 1
    return count


def _short(file: FileText, node: ast.AST) -> bool:
    if not isinstance(node, ast.stmt) or isinstance(node, _COMPOUND) or node.end_lineno is None:
        return False
    starts = file.starts
    end = starts[node.end_lineno] if node.end_lineno < len(starts) else len(file.text)
    return end - starts[node.lineno - 1] < _SHORT


_SHORT = 200
_COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.Match,
)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The child nodes in field order, without the contexts and operators, which hold nothing."""
    for value in node.__dict__.values():
        if isinstance(value, list):
            for item in value:
                if isinstance(item, ast.AST):
                    yield item
        elif isinstance(value, ast.AST) and value._fields:
            yield value
