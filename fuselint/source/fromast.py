"""LibCST nodes of a function, made from Python's own tree of it: without white space, commas and parentheses.

LibCST's parser takes ten times as long, and two thirds of the nodes that it makes are white space, which only the
place of a fix asks for (see `function.py`). What this module doesn't know for certain it refuses, and LibCST parses.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import libcst as cst

from fuselint.source.spans import COMPOUND
from fuselint.source.text import FileText

T = TypeVar("T", bound=cst.CSTNode)


class Unsure(Exception):
    """LibCST may see something else in a text."""


def converted(text: str) -> cst.Module:
    """The module that a text is, of nodes that lack the fields of layout. Raises Unsure, or as `ast.parse` does."""
    if _ODD.search(text) or unicodedata.normalize("NFKC", text) != text:  # `ast` has the normal form of names
        raise Unsure
    tree = ast.parse(text)
    return _made(cst.Module, body=_Converter(text).statements(tree.body))


_ODD = re.compile(r"\\\r?\n|\\\r|\f|\r(?!\n)")
"""Where lines go on, or end, in a way that has statements begin where no line does."""

_ONE_STRING = re.compile(
    r"[a-zA-Z]{0,2}(?:'''(?:[^'\\]|\\.|'(?!''))*'''|\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*\"\"\""
    r"|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")",
    re.DOTALL,
)

_OPERATORS: dict[type[ast.AST], type[cst.CSTNode]] = {
    ast.Add: cst.Add,
    ast.Sub: cst.Subtract,
    ast.Mult: cst.Multiply,
    ast.MatMult: cst.MatrixMultiply,
    ast.Div: cst.Divide,
    ast.FloorDiv: cst.FloorDivide,
    ast.Mod: cst.Modulo,
    ast.Pow: cst.Power,
    ast.LShift: cst.LeftShift,
    ast.RShift: cst.RightShift,
    ast.BitAnd: cst.BitAnd,
    ast.BitOr: cst.BitOr,
    ast.BitXor: cst.BitXor,
    ast.And: cst.And,
    ast.Or: cst.Or,
    ast.Not: cst.Not,
    ast.Invert: cst.BitInvert,
    ast.UAdd: cst.Plus,
    ast.USub: cst.Minus,
    ast.Eq: cst.Equal,
    ast.NotEq: cst.NotEqual,
    ast.Lt: cst.LessThan,
    ast.LtE: cst.LessThanEqual,
    ast.Gt: cst.GreaterThan,
    ast.GtE: cst.GreaterThanEqual,
    ast.Is: cst.Is,
    ast.IsNot: cst.IsNot,
    ast.In: cst.In,
    ast.NotIn: cst.NotIn,
}
_ASSIGNING: dict[type[ast.AST], type[cst.CSTNode]] = {
    ast.Add: cst.AddAssign,
    ast.Sub: cst.SubtractAssign,
    ast.Mult: cst.MultiplyAssign,
    ast.MatMult: cst.MatrixMultiplyAssign,
    ast.Div: cst.DivideAssign,
    ast.FloorDiv: cst.FloorDivideAssign,
    ast.Mod: cst.ModuloAssign,
    ast.Pow: cst.PowerAssign,
    ast.LShift: cst.LeftShiftAssign,
    ast.RShift: cst.RightShiftAssign,
    ast.BitAnd: cst.BitAndAssign,
    ast.BitOr: cst.BitOrAssign,
    ast.BitXor: cst.BitXorAssign,
}
_NUMBERS: dict[type, type[Any]] = {int: cst.Integer, float: cst.Float, complex: cst.Imaginary}


_new, _set = object.__new__, object.__setattr__


def _made(kind: type[T], **fields: Any) -> T:
    """A node with some of its fields: neither defaults for the others, nor LibCST's checks."""
    node = _new(kind)
    for name, value in fields.items():
        _set(node, name, value)
    return node


def _name(text: str) -> cst.Name:
    return _made(cst.Name, value=text)


def _dotted(text: str) -> cst.Name | cst.Attribute:
    before, _, last = text.rpartition(".")
    return _made(cst.Attribute, value=_dotted(before), attr=_name(last)) if before else _name(last)


def _operator(op: ast.AST) -> cst.CSTNode:
    return _made(cst.NotEqual, value="!=") if type(op) is ast.NotEq else _made(_OPERATORS[type(op)])


class _Converter:
    """Has a method for each kind of node of `ast`."""

    def __init__(self, text: str) -> None:
        self.file = FileText("", text)

    def __call__(self, node: Any) -> Any:
        method = _METHODS.get(type(node))
        if method is None:
            raise Unsure
        return method(self, node)

    def _start(self, node: Any) -> int:
        return self.file.ast_offset(node.lineno, node.col_offset)

    def _text(self, node: Any) -> str:
        return self.file.text[self._start(node) : self.file.ast_offset(node.end_lineno, node.end_col_offset)]

    def _parsed(self, node: ast.expr) -> cst.BaseExpression:
        """An expression as LibCST parses it."""
        return cst.parse_expression(f"({self._text(node)})")

    # -- statements ---------------------------------------------------------------------------------------------------

    def statements(self, statements: Iterable[ast.stmt]) -> tuple[Any, ...]:
        """Compound statements, and lines of simple ones."""
        out: list[Any] = []
        line: list[Any] = []
        for statement in statements:
            if isinstance(statement, COMPOUND):
                out.append(self(statement))
                continue
            if self._begins_a_line(statement):
                line = []
                out.append(line)
            line.append(self(statement))
        return tuple(_made(cst.SimpleStatementLine, body=tuple(s)) if type(s) is list else s for s in out)

    def _begins_a_line(self, statement: ast.stmt) -> bool:
        start = self.file.starts[statement.lineno - 1]
        return not self.file.text[start : self._start(statement)].strip(" \t")

    def _suite(self, statements: Sequence[ast.stmt]) -> cst.BaseSuite:
        if not isinstance(statements[0], COMPOUND) and not self._begins_a_line(statements[0]):
            return _made(cst.SimpleStatementSuite, body=tuple([self(s) for s in statements]))
        return _made(cst.IndentedBlock, body=self.statements(statements))

    def _else(self, statements: Sequence[ast.stmt]) -> cst.Else | None:
        return _made(cst.Else, body=self._suite(statements)) if statements else None

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> cst.FunctionDef:
        if getattr(node, "type_params", None):
            raise Unsure
        return _made(
            cst.FunctionDef,
            name=_name(node.name),
            params=self._parameters(node.args),
            body=self._suite(node.body),
            decorators=self._decorators(node.decorator_list),
            returns=self._annotation(node.returns),
            asynchronous=_asynchronous(isinstance(node, ast.AsyncFunctionDef)),
            type_parameters=None,
        )

    def _ClassDef(self, node: ast.ClassDef) -> cst.ClassDef:
        if getattr(node, "type_params", None) or any(isinstance(b, ast.Starred) for b in node.bases):
            raise Unsure
        return _made(
            cst.ClassDef,
            name=_name(node.name),
            body=self._suite(node.body),
            bases=tuple(map(self._argument, node.bases)),
            keywords=tuple(map(self._argument, node.keywords)),
            decorators=self._decorators(node.decorator_list),
            type_parameters=None,
        )

    def _decorators(self, decorators: Iterable[ast.expr]) -> tuple[cst.Decorator, ...]:
        return tuple(_made(cst.Decorator, decorator=self(d)) for d in decorators)

    def _annotation(self, node: ast.expr | None) -> cst.Annotation | None:
        return None if node is None else _made(cst.Annotation, annotation=self(node))

    def _parameters(self, node: ast.arguments) -> cst.Parameters:
        plain = [*node.posonlyargs, *node.args]
        defaults = [None] * (len(plain) - len(node.defaults)) + node.defaults
        made = tuple(map(self._parameter, plain, defaults))
        star: Any = cst.MaybeSentinel.DEFAULT
        if node.vararg is not None:
            star = self._parameter(node.vararg, None, "*")
        elif node.kwonlyargs:
            star = _made(cst.ParamStar)
        count = len(node.posonlyargs)
        return _made(
            cst.Parameters,
            params=made[count:],
            star_arg=star,
            kwonly_params=tuple(map(self._parameter, node.kwonlyargs, node.kw_defaults)),
            star_kwarg=None if node.kwarg is None else self._parameter(node.kwarg, None, "**"),
            posonly_params=made[:count],
        )

    def _parameter(self, node: ast.arg, default: ast.expr | None, star: str = "") -> cst.Param:
        if isinstance(node.annotation, ast.Starred):
            raise Unsure
        return _made(
            cst.Param,
            name=_name(node.arg),
            annotation=self._annotation(node.annotation),
            default=None if default is None else self(default),
            star=star,
        )

    def _If(self, node: ast.If) -> cst.If:
        orelse: cst.If | cst.Else | None
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If) and self._is_elif(node.orelse[0]):
            orelse = self._If(node.orelse[0])
        else:
            orelse = self._else(node.orelse)
        return _made(cst.If, test=self(node.test), body=self._suite(node.body), orelse=orelse)

    def _is_elif(self, node: ast.If) -> bool:
        return self.file.text.startswith("elif", self._start(node))

    def _For(self, node: ast.For | ast.AsyncFor) -> cst.For:
        return _made(
            cst.For,
            target=self(node.target),
            iter=self(node.iter),
            body=self._suite(node.body),
            orelse=self._else(node.orelse),
            asynchronous=_asynchronous(isinstance(node, ast.AsyncFor)),
        )

    def _While(self, node: ast.While) -> cst.While:
        return _made(cst.While, test=self(node.test), body=self._suite(node.body), orelse=self._else(node.orelse))

    def _With(self, node: ast.With | ast.AsyncWith) -> cst.With:
        items = []
        for item in node.items:
            target = item.optional_vars
            asname = None if target is None else _made(cst.AsName, name=self(target))
            items.append(_made(cst.WithItem, item=self(item.context_expr), asname=asname))
        asynchronous = _asynchronous(isinstance(node, ast.AsyncWith))
        return _made(cst.With, items=tuple(items), body=self._suite(node.body), asynchronous=asynchronous)

    def _Try(self, node: ast.Try) -> cst.Try:
        handlers = tuple(
            _made(
                cst.ExceptHandler,
                body=self._suite(h.body),
                type=None if h.type is None else self(h.type),
                name=None if h.name is None else _made(cst.AsName, name=_name(h.name)),
            )
            for h in node.handlers
        )
        final = _made(cst.Finally, body=self._suite(node.finalbody)) if node.finalbody else None
        body, orelse = self._suite(node.body), self._else(node.orelse)
        return _made(cst.Try, body=body, handlers=handlers, orelse=orelse, finalbody=final)

    def _Expr(self, node: ast.Expr) -> cst.Expr:
        return _made(cst.Expr, value=self(node.value))

    def _Assign(self, node: ast.Assign) -> cst.Assign:
        targets = tuple([_made(cst.AssignTarget, target=self(t)) for t in node.targets])
        return _made(cst.Assign, targets=targets, value=self(node.value))

    def _AnnAssign(self, node: ast.AnnAssign) -> cst.AnnAssign:
        if self.file.text[self._start(node)] == "(":  # LibCST knows no `(x): int`
            raise Unsure
        value = None if node.value is None else self(node.value)
        annotation = self._annotation(node.annotation)
        return _made(cst.AnnAssign, target=self(node.target), annotation=annotation, value=value)

    def _AugAssign(self, node: ast.AugAssign) -> cst.AugAssign:
        operator = _made(_ASSIGNING[type(node.op)])
        return _made(cst.AugAssign, target=self(node.target), operator=operator, value=self(node.value))

    def _Return(self, node: ast.Return) -> cst.Return:
        return _made(cst.Return, value=None if node.value is None else self(node.value))

    def _Raise(self, node: ast.Raise) -> cst.Raise:
        cause = None if node.cause is None else _made(cst.From, item=self(node.cause))
        return _made(cst.Raise, exc=None if node.exc is None else self(node.exc), cause=cause)

    def _Assert(self, node: ast.Assert) -> cst.Assert:
        return _made(cst.Assert, test=self(node.test), msg=None if node.msg is None else self(node.msg))

    def _Pass(self, node: ast.Pass) -> cst.Pass:
        return _made(cst.Pass)

    def _Break(self, node: ast.Break) -> cst.Break:
        return _made(cst.Break)

    def _Continue(self, node: ast.Continue) -> cst.Continue:
        return _made(cst.Continue)

    def _Global(self, node: ast.Global) -> cst.Global:
        return _made(cst.Global, names=_items(node.names))

    def _Nonlocal(self, node: ast.Nonlocal) -> cst.Nonlocal:
        return _made(cst.Nonlocal, names=_items(node.names))

    def _Import(self, node: ast.Import) -> cst.Import:
        return _made(cst.Import, names=_aliases(node.names))

    def _ImportFrom(self, node: ast.ImportFrom) -> cst.ImportFrom:
        return _made(
            cst.ImportFrom,
            module=None if node.module is None else _dotted(node.module),
            names=_made(cst.ImportStar) if node.names[0].name == "*" else _aliases(node.names),
            relative=tuple(_made(cst.Dot) for _ in range(node.level)),
        )

    # -- expressions --------------------------------------------------------------------------------------------------

    def _Name(self, node: ast.Name) -> cst.Name:
        return _name(node.id)

    def _Attribute(self, node: ast.Attribute) -> cst.Attribute:
        return _made(cst.Attribute, value=self(node.value), attr=_name(node.attr))

    def _Constant(self, node: ast.Constant) -> cst.BaseExpression:
        value = node.value
        if value is None or value is True or value is False:
            return _name(str(value))
        if value is ...:
            return _made(cst.Ellipsis)
        if isinstance(value, (str, bytes)):
            text = self._text(node)
            return _made(cst.SimpleString, value=text) if _ONE_STRING.fullmatch(text) else self._parsed(node)
        number: cst.BaseNumber = _made(_NUMBERS[type(value)], value=self._text(node))
        return number

    def _JoinedStr(self, node: ast.JoinedStr) -> cst.BaseExpression:
        return self._parsed(node)

    def _BinOp(self, node: ast.BinOp) -> cst.BinaryOperation:
        left, right = self(node.left), self(node.right)
        return _made(cst.BinaryOperation, left=left, operator=_operator(node.op), right=right)

    def _BoolOp(self, node: ast.BoolOp) -> cst.BooleanOperation:
        out = self(node.values[0])
        for value in node.values[1:]:
            out = _made(cst.BooleanOperation, left=out, operator=_operator(node.op), right=self(value))
        return out  # type: ignore[no-any-return]

    def _UnaryOp(self, node: ast.UnaryOp) -> cst.UnaryOperation:
        return _made(cst.UnaryOperation, operator=_operator(node.op), expression=self(node.operand))

    def _Compare(self, node: ast.Compare) -> cst.Comparison:
        others = [
            _made(cst.ComparisonTarget, operator=_operator(op), comparator=self(c))
            for op, c in zip(node.ops, node.comparators, strict=True)
        ]
        return _made(cst.Comparison, left=self(node.left), comparisons=tuple(others))

    def _Call(self, node: ast.Call) -> cst.Call:
        args: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        if node.keywords and any(isinstance(a, ast.Starred) for a in node.args):  # `f(a=1, *b)`
            args.sort(key=lambda a: (a.lineno, a.col_offset))
        return _made(cst.Call, func=self(node.func), args=tuple(map(self._argument, args)))

    def _argument(self, node: ast.expr | ast.keyword) -> cst.Arg:
        if isinstance(node, ast.keyword):
            keyword, star = (None, "**") if node.arg is None else (_name(node.arg), "")
            return _made(cst.Arg, value=self(node.value), keyword=keyword, star=star)
        if isinstance(node, ast.Starred):
            return _made(cst.Arg, value=self(node.value), keyword=None, star="*")
        return _made(cst.Arg, value=self(node), keyword=None, star="")

    def _Subscript(self, node: ast.Subscript) -> cst.BaseExpression:
        index = node.slice
        comma: Any = cst.MaybeSentinel.DEFAULT
        entries = [index]
        if isinstance(index, ast.Tuple):
            if not index.elts or self._text(index).startswith("("):  # of one index, or of several that begin so
                return self._parsed(node)
            entries, comma = index.elts, _made(cst.Comma)
        elements = [_made(cst.SubscriptElement, slice=self._entry(e), comma=comma) for e in entries]
        return _made(cst.Subscript, value=self(node.value), slice=tuple(elements))

    def _entry(self, node: ast.expr) -> cst.BaseSlice:
        if not isinstance(node, ast.Slice):
            return _made(cst.Index, value=self(node), star=None)
        lower, upper, step = (None if n is None else self(n) for n in (node.lower, node.upper, node.step))
        return _made(cst.Slice, lower=lower, upper=upper, step=step)

    def _Tuple(self, node: ast.Tuple) -> cst.Tuple:
        return _made(cst.Tuple, elements=self._elements(node.elts))

    def _List(self, node: ast.List) -> cst.List:
        return _made(cst.List, elements=self._elements(node.elts))

    def _Set(self, node: ast.Set) -> cst.Set:
        return _made(cst.Set, elements=self._elements(node.elts))

    def _elements(self, nodes: Iterable[ast.expr]) -> tuple[cst.BaseElement, ...]:
        return tuple(
            _made(cst.StarredElement, value=self(n.value))
            if isinstance(n, ast.Starred)
            else _made(cst.Element, value=self(n))
            for n in nodes
        )

    def _Dict(self, node: ast.Dict) -> cst.Dict:
        elements: list[cst.BaseDictElement] = [
            _made(cst.StarredDictElement, value=self(value))
            if key is None
            else _made(cst.DictElement, key=self(key), value=self(value))
            for key, value in zip(node.keys, node.values, strict=True)
        ]
        return _made(cst.Dict, elements=tuple(elements))

    def _Lambda(self, node: ast.Lambda) -> cst.Lambda:
        return _made(cst.Lambda, params=self._parameters(node.args), body=self(node.body))

    def _IfExp(self, node: ast.IfExp) -> cst.IfExp:
        return _made(cst.IfExp, test=self(node.test), body=self(node.body), orelse=self(node.orelse))

    def _ListComp(self, node: ast.ListComp) -> cst.ListComp:
        return _made(cst.ListComp, elt=self(node.elt), for_in=self._clauses(node.generators))

    def _SetComp(self, node: ast.SetComp) -> cst.SetComp:
        return _made(cst.SetComp, elt=self(node.elt), for_in=self._clauses(node.generators))

    def _GeneratorExp(self, node: ast.GeneratorExp) -> cst.GeneratorExp:
        return _made(cst.GeneratorExp, elt=self(node.elt), for_in=self._clauses(node.generators))

    def _DictComp(self, node: ast.DictComp) -> cst.DictComp:
        key, value = self(node.key), self(node.value)
        return _made(cst.DictComp, key=key, value=value, for_in=self._clauses(node.generators))

    def _clauses(self, clauses: Sequence[ast.comprehension]) -> cst.CompFor:
        inner: cst.CompFor | None = None
        for clause in reversed(clauses):
            inner = _made(
                cst.CompFor,
                target=self(clause.target),
                iter=self(clause.iter),
                ifs=tuple(_made(cst.CompIf, test=self(test)) for test in clause.ifs),
                inner_for_in=inner,
                asynchronous=_asynchronous(bool(clause.is_async)),
            )
        assert inner is not None
        return inner

    def _NamedExpr(self, node: ast.NamedExpr) -> cst.NamedExpr:
        return _made(cst.NamedExpr, target=self(node.target), value=self(node.value))

    def _Await(self, node: ast.Await) -> cst.Await:
        return _made(cst.Await, expression=self(node.value))

    def _Yield(self, node: ast.Yield) -> cst.Yield:
        return _made(cst.Yield, value=None if node.value is None else self(node.value))

    def _YieldFrom(self, node: ast.YieldFrom) -> cst.Yield:
        return _made(cst.Yield, value=_made(cst.From, item=self(node.value)))

    _AsyncFunctionDef, _AsyncFor, _AsyncWith = _FunctionDef, _For, _With


_METHODS: dict[type[ast.AST], Callable[[_Converter, Any], Any]] = {
    getattr(ast, name[1:]): method for name, method in vars(_Converter).items() if hasattr(ast, name[1:])
}


def _asynchronous(is_so: bool) -> cst.Asynchronous | None:
    return _made(cst.Asynchronous) if is_so else None


def _items(names: Iterable[str]) -> tuple[cst.NameItem, ...]:
    return tuple(_made(cst.NameItem, name=_name(n)) for n in names)


def _aliases(names: Iterable[ast.alias]) -> tuple[cst.ImportAlias, ...]:
    return tuple(
        _made(
            cst.ImportAlias,
            name=_dotted(n.name),
            asname=None if n.asname is None else _made(cst.AsName, name=_name(n.asname)),
        )
        for n in names
    )
