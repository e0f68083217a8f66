"""Every place of a file that reads a name: called or not, kept in which attribute, inside which loops.

It goes by the syntax alone, so that it is cheap: whole packages are asked who may call a function.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from fuselint.records import record, replace
from fuselint.source.project import MODULE, unit_of
from fuselint.source.scopes import dotted
from fuselint.source.spans import children

LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
ASKING = frozenset({"isinstance", "issubclass"})
"""What only asks about a class, its second argument."""
SHOWING = frozenset({"len", "inspect.signature", "dataclasses.fields", "typing.get_type_hints", "type", "super"})
"""What only asks about its argument."""
KERNELS = frozenset({"metal_kernel", "cuda_kernel"})
"""What makes kernels: their name is a text that nothing is looked up by."""
ADDING = frozenset({"append", "insert", "add"})
HOLDERS = frozenset({"Sequential", "list", "tuple", "dict", "ModuleList"})
"""What only puts together what it is given, to be kept as a whole."""

Test = tuple[ast.expr, bool]
"""A condition, and what it must give for control to come to a place."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of a function: the lines that run once a round. sizes: it goes through the sizes of inputs, one a round:
    `for t, h, w in grid.tolist()`, once an image. later: a lambda, which may run at any time. rounds: of
    `range(rounds)`, the outline of how many."""

    by: str
    first: int
    last: int
    sizes: bool = False
    later: bool = False
    rounds: ast.expr | None = field(default=None, compare=False)


@record(frozen=True, slots=True)
class Mention:
    """A place in the function `by` that reads a name whose last part is `name`; text: all of it, "" where it is more.

    role: "call"; "kept" for a call whose result becomes (a part of) the attribute `kept` of self; "base" of a class;
    "type" in an annotation, or where something is only asked about it; "through" for `a` in `a.b`; "import"; "text" for
    a string that something is looked up by; "string" for another, "exported" for one in `__all__`; "alias" for
    `name = other` and `import other as name`, the latter with that name in `kept`; "named" for anything else.
    inside: for "base", the class. loops: those around it. tests: what decides whether it is reached. given: of a call,
    the outlines of its arguments by position or name; None where they can't be told, or MLX is called.
    """

    by: str
    name: str
    text: str
    role: str
    kept: str = ""
    inside: str = ""
    loops: tuple[Loop, ...] = ()
    tests: tuple[Test, ...] = ()
    given: dict[int | str, ast.expr] | None = field(default=None, compare=False)
    line: int = 0


V = TypeVar("V")
EVERY = "*"
"""Which keys a part has."""


class Part(Mapping[str, V]):
    """A part of a file's mentions, that tells which of its keys are looked up. name: what it is called."""

    def __init__(self, name: str, held: Mapping[str, V], tell: Callable[[str], None]) -> None:
        self._name, self._held, self._tell = name, held, tell

    def __getitem__(self, key: str) -> V:
        self._tell(f"{self._name} {key}")
        return self._held[key]

    def __iter__(self) -> Iterator[str]:
        self._tell(f"{self._name} {EVERY}")
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@dataclass(frozen=True)
class Suites:
    """Lines of a function that do not run as often as it does: in its loops, in branches, with what decides whether
    they run, and where something failed."""

    loops: list[Loop] = field(default_factory=list)
    branches: list[tuple[Loop, Test]] = field(default_factory=list)
    handlers: list[Loop] = field(default_factory=list)

    def around(self, by: str, line: int) -> Suites:
        """Those around a line of a function, or of one inside it."""

        def holds(loop: Loop) -> bool:
            inside = loop.by == by or loop.by.startswith(f"{by}.<locals>.")
            return inside and loop.first <= line <= loop.last

        return Suites(
            [h for h in self.loops if holds(h)],
            [(h, test) for h, test in self.branches if holds(h)],
            [h for h in self.handlers if holds(h)],
        )

    def __bool__(self) -> bool:
        return bool(self.loops or self.branches or self.handlers)


@dataclass(frozen=True)
class Mentions:
    """Of one file. suites: by the outermost function. within: by that, the functions in it that read names, itself too.

    stored: the outline (see `outline`) of what is assigned to each attribute, by which function; None where that is no
    plain assignment to one of self's. assigned: the names that each function binds itself, with the lines that do, 0 in
    a loop, which may come round, and what decides whether they are reached. bound: the outlines of the expressions
    that a function's local names are assigned; None for what binds them otherwise.
    elements: by attribute of self, the loops through what it holds: their function, an element's name, and the line.
    renamed: the names that imports give to what is called otherwise.
    handed: by function, the attributes of something else than self that it assigns, with the outline of what.
    """

    suites: Mapping[str, Suites]
    by_name: Mapping[str, Sequence[Mention]]
    by_function: Mapping[str, Sequence[Mention]]
    within: Mapping[str, Sequence[str]]
    stored: Mapping[str, Sequence[tuple[str, ast.expr | None]]]
    assigned: Mapping[str, Mapping[str, Sequence[tuple[int, tuple[Test, ...]]]]]
    bound: Mapping[str, Mapping[str, Sequence[ast.expr | None]]]
    elements: Mapping[str, Sequence[tuple[str, str, int]]]
    renamed: Container[str]
    handed: Mapping[str, Sequence[tuple[str, ast.expr]]]

    def watched(self, tell: Callable[[str], None]) -> Mentions:
        """The same, with its parts: which of their keys is looked up is told. Who reads the others tells it himself."""
        parts = {name: Part(name, held, tell) for name, held in self.parts().items()}
        return replace(self, **parts)

    def parts(self) -> dict[str, Mapping[str, object]]:
        """What is looked up by a key, by the field."""
        assert isinstance(self.renamed, frozenset)
        return {
            "suites": self.suites,
            "by_name": self.by_name,
            "by_function": self.by_function,
            "within": self.within,
            "stored": self.stored,
            "assigned": self.assigned,
            "bound": self.bound,
            "elements": self.elements,
            "renamed": dict.fromkeys(sorted(self.renamed), True),
            "handed": self.handed,
        }


def mentions(tree: ast.Module) -> Mentions:
    walker = _Walker()
    for statement in tree.body:
        walker.visit(statement, _At())
    found = _repeated(walker.found)
    by_name: dict[str, list[Mention]] = {}
    by_function: dict[str, list[Mention]] = {}
    for m in found:
        by_name.setdefault(m.name, []).append(m)
        by_function.setdefault(m.by, []).append(m)
    within: dict[str, list[str]] = {}
    for by in by_function:
        within.setdefault(unit_of(by), []).append(by)
    renamed = frozenset(m.kept for m in found if m.role == "alias" and m.kept)
    return Mentions(
        walker.suites,
        by_name,
        by_function,
        within,
        walker.stored,
        walker.assigned,
        walker.bound,
        walker.elements,
        renamed,
        walker.handed,
    )


def _repeated(found: list[Mention]) -> list[Mention]:
    """`self.layers = [Layer(), Layer()]` makes several, as a loop would."""
    times = Counter((m.by, m.text, m.kept) for m in found if m.role == "kept" and m.inside == "many")
    out = []
    for m in found:
        several = m.role == "kept" and m.inside == "many" and times[m.by, m.text, m.kept] > 1
        out.append(replace(m, loops=(*m.loops, Loop(m.by, m.line, m.line))) if several else m)
    return out


@record(frozen=True, slots=True)
class _At:
    by: str = MODULE
    prefix: str = ""
    loops: tuple[Loop, ...] = ()
    tests: tuple[Test, ...] = ()
    kept: str = ""
    inside: str = ""  # "many" for an element of what is kept
    role: str = ""  # what for: "type" inside an annotation, "text" where something is looked up, "exported", "alias"

    def plain(self, role: str | None = None) -> _At:
        """The same place, for what is no part of what is kept there."""
        if not self.kept and not self.inside and role is None:
            return self
        return _At(self.by, self.prefix, self.loops, self.tests, "", "", self.role if role is None else role)


class _Walker:
    def __init__(self) -> None:
        self.found: list[Mention] = []
        self.suites: dict[str, Suites] = {}
        self.stored: dict[str, list[tuple[str, ast.expr | None]]] = {}
        self.assigned: dict[str, dict[str, list[tuple[int, tuple[Test, ...]]]]] = {}
        self.bound: dict[str, dict[str, list[ast.expr | None]]] = {}
        self.elements: dict[str, list[tuple[str, str, int]]] = {}
        self.handed: dict[str, list[tuple[str, ast.expr]]] = {}
        self.mlx: set[str] = set()  # modules of MLX, by the names that imports give them

    def visit(self, node: ast.AST, at: _At) -> None:
        kind = type(node)
        if kind not in _RULES:
            _RULES[kind] = getattr(_Walker, f"_{kind.__name__}", None)
        rule = _RULES[kind]
        if rule is not None:
            rule(self, node, at)
        else:
            plain = at.plain()
            for child in children(node):
                self.visit(child, plain)

    def _suites(self, by: str) -> Suites:
        return self.suites.setdefault(unit_of(by), Suites())

    def _all(self, nodes: Iterator[ast.AST] | Sequence[ast.AST], at: _At) -> None:
        for node in nodes:
            self.visit(node, at)

    def _loop(
        self,
        at: _At,
        first: ast.AST,
        last: ast.AST,
        sizes: bool = False,
        later: bool = False,
        rounds: ast.expr | None = None,
    ) -> _At:
        loop = Loop(at.by, first.lineno, last.end_lineno or 0, sizes, later, rounds)  # type: ignore[attr-defined]
        self._suites(at.by).loops.append(loop)
        return replace(at, loops=(*at.loops, loop))

    # -- definitions --------------------------------------------------------------------------------------------------

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, at: _At) -> None:
        qualname = at.prefix + node.name
        typed = replace(at, role="type")
        self._all(node.decorator_list, at)
        a = node.args
        for argument in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
            if argument.annotation is not None:
                self.visit(argument.annotation, typed)
        self._all([*a.defaults, *(d for d in a.kw_defaults if d is not None)], at)
        if node.returns is not None:
            self.visit(node.returns, typed)
        self._body(node.body, _At(qualname, f"{qualname}.<locals>."))

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef, at: _At) -> None:
        qualname = at.prefix + node.name
        self._all([*node.decorator_list, *node.keywords], at)
        for base in node.bases:
            name = dotted(base)
            if name is not None:
                self._mention(base, name, replace(at, inside=qualname), "base")
            else:
                self.visit(base, at)
        self._body(node.body, replace(at, prefix=f"{qualname}.", loops=(), tests=()))

    def _Lambda(self, node: ast.Lambda, at: _At) -> None:
        inner = self._loop(at.plain(), node.body, node.body, later=True)
        self.visit(node.body, inner)

    # -- statements ---------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[ast.stmt], at: _At) -> None:
        for i, statement in enumerate(body):
            self.visit(statement, at)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body) and body[i + 1 :]:
                rest = Loop(at.by, body[i + 1].lineno, body[-1].end_lineno or 0)
                self._suites(at.by).branches.append((rest, (statement.test, False)))
                at = replace(at, tests=(*at.tests, (statement.test, False)))

    def _If(self, node: ast.If, at: _At) -> None:
        self._test(node.test, at)
        for body, outcome in ((node.body, True), (node.orelse, False)):
            if body:
                test = (node.test, outcome)
                self._suites(at.by).branches.append((Loop(at.by, body[0].lineno, body[-1].end_lineno or 0), test))
                self._body(body, replace(at, tests=(*at.tests, test)))

    def _IfExp(self, node: ast.IfExp, at: _At) -> None:
        self._test(node.test, at)
        self.visit(node.body, replace(at, tests=(*at.tests, (node.test, True))))
        self.visit(node.orelse, replace(at, tests=(*at.tests, (node.test, False))))

    def _For(self, node: ast.For | ast.AsyncFor, at: _At) -> None:
        self._all([node.iter, node.target], at)
        for attribute, name in _elements(node.target, node.iter):
            self.elements.setdefault(attribute, []).append((at.by, name, node.iter.lineno))
        self._body(node.body, self._loop(at, node.body[0], node.body[-1], _are_sizes(node), rounds=_rounds(node.iter)))
        self._body(node.orelse, at)

    _AsyncFor = _For

    def _While(self, node: ast.While, at: _At) -> None:
        inner = self._loop(at, node.test, node.body[-1])
        self.visit(node.test, inner)
        self._body(node.body, inner)
        self._body(node.orelse, at)

    def _Try(self, node: ast.Try, at: _At) -> None:
        self._body(node.body, at)
        for handler in node.handlers:
            self._suites(at.by).handlers.append(Loop(at.by, handler.body[0].lineno, handler.body[-1].end_lineno or 0))
            if handler.type is not None:
                self.visit(handler.type, at)
            self._body(handler.body, at)
        self._body(node.orelse, at)
        self._body(node.finalbody, at)

    _TryStar = _Try

    def _With(self, node: ast.With | ast.AsyncWith, at: _At) -> None:
        self._all(node.items, at)
        self._body(node.body, at)

    _AsyncWith = _With

    def _Assign(self, node: ast.Assign, at: _At) -> None:
        first = node.targets[0]
        if isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and first.value.id == "self":
            self.stored.setdefault(first.attr, []).append((at.by, outline(node.value)))
            self._all(node.targets[1:], at)
            self.visit(node.value, replace(at, kept=first.attr))
        else:
            plain = first if len(node.targets) == 1 and isinstance(first, ast.Name) and not at.loops else None
            self._all([] if plain else node.targets, at)
            if isinstance(first, ast.Attribute):
                self.handed.setdefault(at.by, []).append((first.attr, outline(node.value)))
            if plain is not None:
                self._bind(plain, at, outline(node.value))
            self.visit(node.value, replace(at, role=_of_module(first, node.value)) if at.by == MODULE else at)

    def _AnnAssign(self, node: ast.AnnAssign, at: _At) -> None:
        self.visit(node.annotation, replace(at, role="type"))
        if node.value is not None:
            self._Assign(ast.Assign([node.target], node.value), at)

    def _Import(self, node: ast.Import | ast.ImportFrom, at: _At) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import) and alias.asname and alias.name.partition(".")[0] == "mlx":
                self.mlx.add(alias.asname)
            last = alias.name.rpartition(".")[2]
            renamed = alias.asname if alias.asname not in (None, last) else None
            inner = at if renamed is None else replace(at, kept=renamed)
            self._mention(node, alias.name, inner, "import" if renamed is None else "alias")

    _ImportFrom = _Import

    # -- expressions --------------------------------------------------------------------------------------------------

    def _comprehension(self, node: ast.AST, at: _At) -> None:
        generators: list[ast.comprehension] = node.generators  # type: ignore[attr-defined]
        self.visit(generators[0].iter, at.plain())
        inner = self._loop(at, node, node, rounds=_rounds(generators[0].iter) if len(generators) == 1 else None)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]  # type: ignore[attr-defined]
        self._all(parts, inner)
        rest = [g.iter for g in generators[1:]] + [test for g in generators for test in g.ifs]
        self._all(rest, inner.plain())

    _ListComp = _SetComp = _DictComp = _GeneratorExp = _comprehension

    def _display(self, node: ast.List | ast.Tuple | ast.Dict, at: _At) -> None:
        inner = replace(at, inside="many") if at.kept else at
        parts = [*filter(None, node.keys), *node.values] if isinstance(node, ast.Dict) else node.elts
        self._all(parts, inner)

    _List = _Tuple = _Dict = _display

    def _BinOp(self, node: ast.BinOp, at: _At) -> None:
        repeats = isinstance(node.op, ast.Mult) and any(isinstance(n, ast.List) for n in (node.left, node.right))
        adds = isinstance(node.op, ast.Add) and at.kept
        inner = self._loop(at, node, node) if repeats else at if adds else at.plain()
        self._all([node.left, node.right], inner)

    def _Starred(self, node: ast.Starred, at: _At) -> None:
        self.visit(node.value, at)

    def _Call(self, node: ast.Call, at: _At) -> None:
        name = _name(node.func)
        last = name.rpartition(".")[2]
        if name:
            given = None if name.partition(".")[0] in self.mlx else _given(node)
            self._mention(node.func, name, at, "kept" if at.kept else "call", given)
            self._prefix(node.func, at, called=True)
        else:
            self.visit(node.func, at.plain())
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if name in ASKING and len(node.args) == 2:
            self.visit(node.args[0], at)
            self.visit(node.args[1], replace(at, role="type"))
        elif name in SHOWING:
            self._all(arguments, at.plain("type"))
        elif last in KERNELS:
            self._all([*node.args[1:], *(k.value for k in node.keywords if k.arg != "name")], at.plain())
        elif name in ("getattr", "hasattr"):
            self._all(arguments, at.plain("text"))
        elif last in HOLDERS and at.kept:
            self._all(arguments, replace(at, inside="many"))
        elif last in ADDING and name.startswith("self.") and name.count(".") == 2:
            self._all(arguments, replace(at, kept=name.split(".")[1], inside="many"))
        else:
            self._all(arguments, at.plain())

    def _Attribute(self, node: ast.Attribute, at: _At) -> None:
        name = _name(node)
        last = node.attr
        if isinstance(node.ctx, ast.Load):
            self._mention(node, name or f"?.{last}", at, "named")
        else:
            self.stored.setdefault(last, []).append((at.by, None))
        self._prefix(node, at)

    def _prefix(self, node: ast.expr, at: _At, called: bool = False) -> None:
        """What a dotted name goes through. `a[0].b` only asks about an element of a, unless it is called."""
        if isinstance(node, ast.Attribute):
            inner = node.value
            if isinstance(inner, (ast.Name, ast.Attribute)):
                name = _name(inner)
                if name and name not in ("self", "cls"):
                    self._mention(inner, name, at, "through")
                self._prefix(inner, at, called)
                if isinstance(inner, ast.Attribute) and not name:
                    return
            elif isinstance(inner, ast.Subscript) and not called:
                self.visit(inner.value, at.plain("type"))
                self.visit(inner.slice, at.plain())
            else:
                self.visit(inner, at.plain())

    def _Name(self, node: ast.Name, at: _At) -> None:
        if isinstance(node.ctx, ast.Load):
            self._mention(node, node.id, at, "named")
        else:
            self._bind(node, at, None)

    def _bind(self, node: ast.Name, at: _At, value: ast.expr | None) -> None:
        line = 0 if at.loops else node.lineno
        self.assigned.setdefault(at.by, {}).setdefault(node.id, []).append((line, at.tests))
        self.bound.setdefault(at.by, {}).setdefault(node.id, []).append(value)

    def _Compare(self, node: ast.Compare, at: _At) -> None:
        """`x is None` asks about x, and does nothing with it."""
        plain = at.plain()
        none = any(isinstance(c, ast.Constant) and c.value is None for c in node.comparators)
        self.visit(node.left, plain.plain("type") if none else plain)
        self._all(node.comparators, plain)

    def _test(self, node: ast.expr, at: _At) -> None:
        plain = at.plain()
        is_name = isinstance(node, (ast.Name, ast.Attribute))
        self.visit(node, plain.plain("type") if is_name else plain)

    def _Constant(self, node: ast.Constant, at: _At) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            role = at.role if at.role in ("text", "exported") else "string"
            self._mention(node, node.value, at, role)

    def _mention(
        self, node: ast.AST, text: str, at: _At, role: str, given: dict[int | str, ast.expr] | None = None
    ) -> None:
        if at.role == "type" and role in ("named", "through", "string"):
            role = "type"
        elif at.role == "alias" and role == "named":
            role = "alias"
        line, text = getattr(node, "lineno", 0), sys.intern(text)
        last = sys.intern(text.rpartition(".")[2])
        kept = at.kept if role in ("kept", "alias") else ""
        self.found.append(Mention(at.by, last, text, role, kept, at.inside, at.loops, at.tests, given, line))


_RULES: dict[type[ast.AST], Callable[[_Walker, Any, _At], None] | None] = {}
"""By the kind of a node, the method that visits it; None: its children are visited."""


def _elements(target: ast.expr, over: ast.expr) -> Iterator[tuple[str, str]]:
    """`for layer in self.layers`, `for i, layer in enumerate(self.layers)`, `for layer, c in zip(self.layers, cache)`:
    (layers, layer)."""
    match over, target:
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute), ast.Name(id=name):
            yield attribute, name
        case ast.Call(func=ast.Name(id="reversed"), args=[inner]), _:
            yield from _elements(target, inner)
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]), ast.Tuple(elts=[_, element]):
            yield from _elements(element, inner)
        case ast.Call(func=ast.Name(id="zip"), args=parts), ast.Tuple(elts=names):
            for element, part in zip(names, parts, strict=False):
                yield from _elements(element, part)


def _are_sizes(loop: ast.For | ast.AsyncFor) -> bool:
    """`for t, h, w in grid.tolist()`: the rows of a table, each of several numbers that are read as a shape."""
    target, over = loop.target, loop.iter
    if isinstance(over, ast.Call) and _name(over.func) == "enumerate" and len(over.args) == 1:
        over = over.args[0]
        target = target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Attribute) or over.func.attr != "tolist":
        return False
    return isinstance(target, ast.Tuple) or any(_reads_shape(n, target) for s in loop.body for n in ast.walk(s))


def _rounds(over: ast.expr) -> ast.expr | None:
    """How many rounds a loop has that goes through a range."""
    match over:
        case ast.Call(func=ast.Name(id="range"), args=[count], keywords=[]):
            return outline(count)
    return None


def _reads_shape(node: ast.AST, row: ast.expr) -> bool:
    """`t, h, w = row`, `row == x.shape[:2]`"""
    match node:
        case ast.Assign(targets=[ast.Tuple()], value=ast.Name(id=name)):
            return isinstance(row, ast.Name) and name == row.id
        case ast.Compare(left=ast.Name(id=name), comparators=[ast.Subscript(value=ast.Attribute(attr="shape"))]):
            return isinstance(row, ast.Name) and name == row.id
    return False


def _of_module(target: ast.expr, value: ast.expr) -> str:
    """What the names and strings are for that stand in an assignment of a module."""
    if isinstance(target, ast.Name) and target.id == "__all__":
        return "exported"
    if isinstance(value, (ast.Dict, ast.List, ast.Tuple, ast.Set)):
        return "text"  # a table of names
    return "alias" if isinstance(target, ast.Name) and isinstance(value, ast.Name) else ""


def _name(node: ast.expr) -> str:
    """A dotted name, with "super" for `super()`, "?" for another expression, and an element for what holds it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = node.value
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super":
            return f"super.{node.attr}"
        return f"{_name(owner) or '?'}.{node.attr}"
    return ""


def _given(call: ast.Call) -> dict[int | str, ast.expr] | None:
    """The arguments of a call; None where a starred one hides some."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    given: dict[int | str, ast.expr] = {i: outline(a) for i, a in enumerate(call.args)}
    given.update((k.arg, outline(k.value)) for k in call.keywords if k.arg is not None)
    return given


FEW_ELEMENTS = 8
"""Of a display that is kept."""


def outline(node: ast.expr) -> ast.expr:
    """What anybody asks about of an expression: conditions, constants and names as they are, of a call what is called,
    of a display its elements, and of any other its line alone. Whole packages are kept so."""
    if isinstance(node, (ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp)):
        return node
    if isinstance(node, ast.Constant):
        return ast.Constant(node.value, lineno=node.lineno)
    if isinstance(node, ast.Name):
        return ast.Name(node.id, lineno=node.lineno)
    if isinstance(node, ast.Attribute) and dotted(node) is not None:
        return ast.Attribute(outline(node.value), node.attr, lineno=node.lineno)
    if isinstance(node, ast.Call) and dotted(node.func) is not None:
        return ast.Call(outline(node.func), [], [], lineno=node.lineno)
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) <= FEW_ELEMENTS:
        return type(node)([outline(e) for e in node.elts], ast.Load(), lineno=node.lineno)
    return _other(node.lineno)


@lru_cache(maxsize=4096)
def _other(line: int) -> ast.expr:
    """An expression of which nothing is known."""
    return ast.Slice(lineno=line)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue))
