"""Where the functions of a module stand. Standard library only: it sees every file that names mlx."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fuselint.records import reader
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


@dataclass(slots=True)
class _Found:
    """A function while its module is walked. level: how deep it stands. deepest: how deep what is in it goes."""

    node: Definition
    qualname: str
    class_name: str | None
    outer: _Found | None
    level: int
    deepest: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement stands."""

    prefix: str = ""
    class_name: str | None = None
    function: _Found | None = None
    level: int = 0


@lru_cache(maxsize=2)  # the screen and the summary of a file ask in turn
def functions(file: FileText, tree: ast.Module) -> tuple[tuple[FunctionSpan, Definition], ...]:
    """Every function of a module with its syntax tree, in source order; outer ones come before inner ones."""
    found: list[_Found] = []
    stack: list[tuple[ast.stmt, _Place]] = [(s, _Place()) for s in reversed(tree.body)]
    while stack:
        statement, at = stack.pop()
        level, around = at.level + 1, at.function
        if around is not None:
            around.deepest = max(around.deepest, level + _depth_of_parts(file, statement))
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            qualname = at.prefix + statement.name
            one = _Found(statement, qualname, at.class_name, around, level, level + _depth_of_parts(file, statement))
            found.append(one)
            inner: Iterable[ast.stmt] = statement.body
            at = _Place(f"{qualname}.<locals>.", None, one, level)
        elif isinstance(statement, ast.ClassDef):
            class_name = at.prefix + statement.name
            inner = statement.body
            at = _Place(f"{class_name}.", class_name, around, level)
        elif isinstance(statement, COMPOUND):
            inner = suites(statement)
            at = _Place(at.prefix, at.class_name, around, level)
        else:
            name = _named_lambda(statement)
            if name is not None:
                value = statement.value  # type: ignore[attr-defined]
                deepest = level + _depth(file, value)
                found.append(_Found(value, at.prefix + name, at.class_name, around, level, deepest))
            continue
        stack.extend((s, at) for s in reversed(list(inner)))
    for one in reversed(found):
        if one.outer is not None:
            one.outer.deepest = max(one.outer.deepest, one.deepest)
    return tuple((_span(file, one), one.node) for one in found)


def _named_lambda(statement: ast.stmt) -> str | None:
    """The name that a statement gives to a lambda."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or not isinstance(statement.value, ast.Lambda):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else None


def suites(statement: ast.stmt) -> Iterator[ast.stmt]:
    """The statements directly inside a compound statement, of all its suites."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for part in getattr(statement, name, ()):
            if isinstance(part, ast.stmt):
                yield part
            else:  # an except handler or a case
                yield from part.body


def _span(file: FileText, found: _Found) -> FunctionSpan:
    node = found.node
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
    outer = found.outer.qualname if found.outer is not None else None
    deep = found.deepest - found.level
    return FunctionSpan(
        found.qualname, found.class_name, start, end, node.lineno, (first, last), deep, outer, is_lambda
    )


# -- depth ------------------------------------------------------------------------------------------------------------

COMPOUND = (
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
    *((ast.TryStar,) if hasattr(ast, "TryStar") else ()),
)
"""Statements that hold statements."""

_SHORT = 200
"""Characters. What is shorter can't be deep: every level takes at least one."""


def _depth_of_parts(file: FileText, statement: ast.stmt) -> int:
    """How deep the expressions of a statement are, without those of statements inside it."""
    if not isinstance(statement, COMPOUND):
        return _depth(file, statement)
    deepest = 0
    stack = [p for p in children(statement) if not isinstance(p, ast.stmt)]
    while stack:
        part = stack.pop()
        if hasattr(part, "lineno") and not isinstance(part, ast.ExceptHandler):
            deepest = max(deepest, _depth(file, part))
        else:  # an except handler, a case, arguments: what they hold has positions
            stack.extend(p for p in children(part) if not isinstance(p, ast.stmt))
    return deepest


def _depth(file: FileText, node: ast.AST) -> int:
    """How many levels deep LibCST makes an expression, or 1 where it is too short to be deep.

    LibCST nests what `ast` has flat: operands of `and`, pieces of a text, `for` clauses.
    """
    if _is_short(file, node):
        return 1
    deepest = 0
    stack = [(node, 1)]
    while stack:
        at, level = stack.pop()
        if isinstance(at, ast.BoolOp):
            level += len(at.values)
        elif isinstance(at, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            level += len(at.generators)
        elif isinstance(at, (ast.Constant, ast.JoinedStr)) and not _is_short(file, at):
            start, end = _offsets(file, at)
            level += (file.text.count("'", start, end) + file.text.count('"', start, end)) // 2
        deepest = max(deepest, level)
        stack.extend((child, level + 1) for child in children(at))
    return deepest


def _is_short(file: FileText, node: ast.AST) -> bool:
    line, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
    if line == last:
        return bool(node.end_col_offset - node.col_offset < _SHORT)  # type: ignore[attr-defined]
    starts = file.starts
    end = starts[last] if last < len(starts) else len(file.text)
    return bool(end - starts[line - 1] < _SHORT)


def _offsets(file: FileText, node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return file.ast_offset(node.lineno, node.col_offset), file.ast_offset(node.end_lineno, node.end_col_offset)


def children(node: ast.AST) -> list[ast.AST]:
    """The child nodes in field order, without contexts and operators, which hold nothing."""
    out: list[ast.AST] = []
    for value in _values[type(node)](node):
        if value is None:
            continue
        if type(value) is list:
            out += [v for v in value if v is not None and isinstance(v, ast.AST)]
        elif isinstance(value, ast.AST):
            out.append(value)
    return out


class _Values(dict[type[ast.AST], Callable[[Any], tuple[Any, ...]]]):
    """What reads the fields of a type that may hold nodes. Python's parser sets all of them."""

    def __missing__(self, kind: type[ast.AST]) -> Callable[[Any], tuple[Any, ...]]:
        found = self[kind] = reader(tuple(f for f in kind._fields if f not in _NO_NODES))
        return found


_values = _Values()
_NO_NODES = frozenset("ctx op ops id attr arg kind conversion names rest kwd_attrs module level".split())
"""Fields that hold no nodes with anything in them."""
