"""The LibCST tree of one function, made alone, with the way back to offsets in its file."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import zip_longest
from typing import Any

import libcst as cst
from libcst._nodes.internal import CodegenState

from fuselint.errors import TooComplex
from fuselint.records import reader
from fuselint.source.fromast import Unsure, converted
from fuselint.source.spans import FunctionSpan
from fuselint.source.text import FileText

DEEPEST = 300
"""Levels of syntax. LibCST's own code recurses several frames a level, and its parser ends the process near 1,000."""


LONGEST = 300_000
"""Characters. LibCST takes a kilobyte of memory for each of them, and what is longer is data, or nobody wrote it."""


class FunctionSource:
    """A function as text and tree.

    node: the FunctionDef, or the Lambda, without the fields of layout. start, end: its offsets in the file, decorators
    included. indent: the white space before its first line.
    """

    def __init__(
        self, file: FileText, span: FunctionSpan, node: cst.FunctionDef | cst.Lambda, shift: int, text: str
    ) -> None:
        self.file = file
        self.at = span
        self.node = node
        self._shift = shift  # from offsets in the parsed text to offsets in the file
        self._parsed = text

    @property
    def qualname(self) -> str:
        return self.at.qualname

    @property
    def class_name(self) -> str | None:
        return self.at.class_name

    @property
    def start(self) -> int:
        return self.at.start

    @property
    def end(self) -> int:
        return self.at.end

    @property
    def text(self) -> str:
        return self.file.text[self.start : self.end]

    @cached_property
    def indent(self) -> str:
        line, _ = self.file.position(self.start)
        text = self.file.line(line)
        return text[: len(text) - len(text.lstrip(" \t\f"))]

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """The offsets of a node of this tree in the file, without the white space and parentheses around it.

        As in `ast`, the parentheses of a tuple or generator belong to it. A function or class begins at its first
        decorator.
        """
        start, end = self._positions.span(self._exact[node])
        return start + self._shift, end + self._shift

    def outer_span(self, node: cst.CSTNode) -> tuple[int, int]:
        """As `span`, with the parentheses that belong to the node."""
        start, end = self.span(node)
        exact = self._exact[node]
        for left in getattr(exact, "lpar", ())[:1]:
            start = self._positions.inner[left][0] + self._shift
        for right in getattr(exact, "rpar", ())[-1:]:
            end = self._positions.inner[right][1] + self._shift
        return start, end

    def code(self, node: cst.CSTNode) -> str:
        """The text of a node as the file has it."""
        start, end = self.span(node)
        return self.file.text[start:end]

    def lines(self, statement: cst.CSTNode) -> tuple[int, int]:
        """The first and last line of a statement; of a compound one, those of its header alone."""
        start, end = self.span(statement)
        first, last = self.file.position(start)[0], self.file.position(end)[0]
        body = getattr(statement, "body", None)
        if isinstance(body, cst.BaseSuite):
            last = max(first, self.file.position(self.span(body)[0])[0] - 1)
        return first, last

    @cached_property
    def _module(self) -> cst.Module:
        """The text as LibCST parses it, white space and all."""
        return cst.parse_module(self._parsed)

    @cached_property
    def _exact(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        """Each node of the tree as LibCST parses it."""
        out: dict[cst.CSTNode, cst.CSTNode] = {}
        stack: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(self.node, _definition(self._module))]
        while stack:
            node, exact = stack.pop()
            if exact is None or type(node) is not type(exact):
                raise self._unplaced()
            out[node] = exact
            stack.extend(zip_longest(children(node), children(exact)))
        return out

    @cached_property
    def _positions(self) -> _Positions:
        state = _Positions(self._module.default_indent, self._module.default_newline)
        with recursion_limit(DEEPEST * 20):
            self._module._codegen(state)
        start, end = state.span(self._exact[self.node])
        if (start + self._shift, end + self._shift) != (self.start, self.end):  # a LibCST that prints otherwise
            raise self._unplaced()
        return state

    def _unplaced(self) -> TooComplex:
        return TooComplex(f"{self.file.path}:{self.at.line}: {self.qualname}: positions can't be told")


def parse_function(file: FileText, span: FunctionSpan, before: FunctionSource | None = None) -> FunctionSource:
    """Parse one function alone. before: as it was in a text before this one: where it has not changed, that is taken.

    An indented function is parsed as it stands, inside `if True:`. Removing its indentation would also change its
    multi-line strings.
    """
    if span.depth > DEEPEST:
        raise TooComplex(f"{file.path}:{span.line}: {span.qualname} is {span.depth} levels deep (at most {DEEPEST})")
    if span.end - span.start > LONGEST:
        raise TooComplex(
            f"{file.path}:{span.line}: {span.qualname} has {span.end - span.start:,} characters (at most {LONGEST:,})"
        )
    line, _ = file.position(span.start)
    text = file.text
    if span.is_lambda:
        prefix, begin, end, suffix = "(", span.start, span.end, ")"
    else:
        begin = file.starts[line - 1]
        _, end = file.line_span(file.position(span.end)[0])  # with a comment that follows the last statement
        indented = text[begin : span.start].strip("\f") != ""
        begin = begin if indented else span.start
        prefix, suffix = (f"if True:{file.newline}" if indented else ""), file.newline
    whole = prefix + text[begin:end] + suffix
    if before is not None and before._parsed == whole:
        return FunctionSource(file, span, before.node, begin - len(prefix), whole)
    try:
        module = _parsed(whole)
    except (cst.ParserSyntaxError, cst.CSTValidationError, RecursionError, UnicodeError) as e:
        reason = getattr(e, "message", None) or type(e).__name__
        raise TooComplex(f"{file.path}:{span.line}: {span.qualname} can't be parsed alone: {reason}") from None
    node = _definition(module)
    if node is None:
        raise TooComplex(f"{file.path}:{span.line}: {span.qualname} can't be parsed alone")
    return FunctionSource(file, span, node, begin - len(prefix), whole)


def _parsed(text: str) -> cst.Module:
    """The tree of a text, of nodes that may lack the fields of layout."""
    try:
        with warnings.catch_warnings(), recursion_limit(DEEPEST * 20):
            warnings.simplefilter("ignore")
            return converted(text)
    except (Unsure, SyntaxError, ValueError, RecursionError, MemoryError, cst.ParserSyntaxError):
        return cst.parse_module(text)  # which can, or says why not


def _definition(module: cst.Module) -> cst.FunctionDef | cst.Lambda | None:
    """The function that `parse_function` wrapped."""
    if len(module.body) != 1:
        return None
    statement: cst.CSTNode = module.body[0]
    if isinstance(statement, cst.If) and len(statement.body.body) == 1:
        statement = statement.body.body[0]
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(statement.body[0], cst.Expr):
        statement = statement.body[0].value
    return statement if isinstance(statement, (cst.FunctionDef, cst.Lambda)) else None


_LAYOUT = (
    cst.BaseParenthesizableWhitespace,
    cst.TrailingWhitespace,
    cst.EmptyLine,
    cst.Newline,
    cst.Comment,
    cst.Comma,
    cst.Semicolon,
    cst.Dot,
    cst.Colon,
    cst.AssignEqual,
    cst.Asynchronous,
    cst.LeftParen,
    cst.RightParen,
    cst.LeftSquareBracket,
    cst.RightSquareBracket,
    cst.LeftCurlyBrace,
    cst.RightCurlyBrace,
)
_LAYOUT_FIELDS = frozenset(
    """asynchronous colon comma dot equal first_colon footer header indent lbrace lbracket leading_lines
    leading_whitespace lines_after_decorators lpar newline rbrace rbracket rpar second_colon semicolon star
    trailing_whitespace""".split()
)
_IN_SOURCE_ORDER = {
    cst.FunctionDef: ("decorators", "name", "params", "returns", "body"),
    cst.ClassDef: ("decorators", "name", "bases", "keywords", "body"),
    cst.ExceptHandler: ("type", "name", "body"),
    cst.ExceptStarHandler: ("type", "name", "body"),
    cst.IfExp: ("body", "test", "orelse"),
    cst.Arg: ("keyword", "value"),
    cst.Module: ("body",),
    cst.Parameters: ("posonly_params", "params", "star_arg", "kwonly_params", "star_kwarg"),
}


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """The child nodes in source order, without white space, comments, commas and parentheses."""
    out: list[cst.CSTNode] = []
    for value in _values[type(node)](node):
        kind = type(value)
        if kind is tuple or kind is list:
            out += [v for v in value if _is_child[type(v)]]
        elif _is_child[kind]:
            out.append(value)
    return out


class _Values(dict[type, Callable[[Any], tuple[Any, ...]]]):
    """What reads the fields of a type that may hold children, in source order."""

    def __missing__(self, kind: Any) -> Callable[[Any], tuple[Any, ...]]:
        names: tuple[str, ...] = _IN_SOURCE_ORDER.get(kind) or tuple(
            n for n in kind.__dataclass_fields__ if n not in _LAYOUT_FIELDS and not n.startswith("whitespace")
        )
        found = self[kind] = reader(names)
        return found


_values = _Values()


class _Children(dict[type, bool]):
    """Whether a node of a type is a child. Remembered: isinstance with LibCST's abstract classes is slow."""

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, cst.CSTNode) and not issubclass(kind, _LAYOUT)
        return found


_is_child = _Children()


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything inside it, parents first, in source order. A stack, so no depth is too deep for it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


class _Positions(CodegenState):
    """Prints the tree, and notes where each node begins and ends in what is printed."""

    def __init__(self, default_indent: str, default_newline: str) -> None:
        super().__init__(default_indent, default_newline)
        self.at = 0
        self.inner: dict[cst.CSTNode, tuple[int, int]] = {}
        self._begun: list[int] = []

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        start, end = self.inner[node]
        if isinstance(node, (cst.Tuple, cst.GeneratorExp)) and node.lpar:
            start, end = self.inner[node.lpar[-1]][0], self.inner[node.rpar[0]][1]
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            start, _ = self.inner[node.decorators[0]]
        return start, end

    def add_indent_tokens(self) -> None:
        self.at += sum(map(len, self.indent_tokens))

    def add_token(self, value: str) -> None:
        self.at += len(value)

    def pop_trailing_newline(self) -> None:
        pass  # the last token of the module: no node of the function ends after it

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._begun.append(self.at)

    def after_codegen(self, node: cst.CSTNode) -> None:
        begun = self._begun.pop()
        self.inner.setdefault(node, (begun, self.at))

    def record_syntactic_position(self, node: cst.CSTNode, *, start_node: Any = None, end_node: Any = None) -> Any:
        return _Recording(self, node, start_node, end_node)


class _Recording:
    """Notes a node that begins where another one does, or ends so. Half of all nodes do: no generator for each."""

    __slots__ = ("begun", "first", "last", "node", "positions")

    def __init__(
        self, positions: _Positions, node: cst.CSTNode, first: cst.CSTNode | None, last: cst.CSTNode | None
    ) -> None:
        self.positions, self.node, self.first, self.last = positions, node, first, last

    def __enter__(self) -> None:
        self.begun = self.positions.at

    def __exit__(self, *error: object) -> None:
        positions, first, last = self.positions, self.first, self.last
        if error[0] is None:
            start = self.begun if first is None else positions.inner[first][0]
            positions.inner[self.node] = (start, positions.at if last is None else positions.inner[last][1])


@contextlib.contextmanager
def recursion_limit(limit: int) -> Iterator[None]:
    """Allow at least so deep a recursion within: deeply nested code takes one call a level."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, limit))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
