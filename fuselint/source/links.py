"""Where the names of a file may lead: what each function calls, returns and stores, as far as its text says.

An `Expr` is an expression without what doesn't matter to that: the other files of the package are not needed for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fuselint.source.compilers import PARTIAL, Compilers, flag
from fuselint.source.project import MODULE, ModuleSummary
from fuselint.source.scopes import Scope, Scopes
from fuselint.source.spans import Definition, children, suites

GRADIENTS = frozenset({"mlx.nn.value_and_grad", "mlx.core.value_and_grad", "mlx.core.grad"})
SAME = frozenset({"mlx.core.checkpoint", "mlx.nn.utils.checkpoint", "mlx.core.vmap", "mlx.core.custom_function"})
"""Functions of MLX that give back their argument, to be called as before."""

ORDER = frozenset({"builtins.list", "builtins.tuple", "builtins.reversed", "builtins.iter"})
SEQUENTIAL = "mlx.nn.Sequential"


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression. kind, and what `name` and `parts` are then:

    "name": a qualified name, as `ModuleSummary.resolve` gives it. "local": a variable of `scope`. "param": what a
    parameter of `scope` is given. "attr": of parts[0].
    "item": an element of parts[0]. "call": of parts[0], with the other parts as its arguments. "many": a list of them.
    "any": one of them. "wrapped": parts[0], compiled or differentiated. "super": the bases of the class of `scope`.
    "constant": a literal that may be a flag, its text. "unknown": anything else.
    """

    kind: str
    name: str = ""
    parts: tuple[Expr, ...] = ()
    scope: str = ""

    @property
    def last(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


UNKNOWN = Expr("unknown")
CALLABLE = frozenset({"name", "local", "attr", "item", "call", "any", "wrapped"})
LONGEST_FLAG = 16
FLAGS = (ast.Constant, ast.Name, ast.Compare, ast.BoolOp, ast.UnaryOp)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call in the function `by`, or in a lambda inside it. within: "compiled" or "differentiated" where that lambda
    is. arguments: those in order up to the first starred one. keywords: those by name.
    """

    by: str
    line: int
    called: Expr
    arguments: tuple[Expr, ...] = ()
    keywords: tuple[tuple[str, Expr], ...] = ()
    within: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A place where `given` is compiled, or differentiated.

    by: the function where it stands. kept: the attribute that the result is stored in, and nothing else is done with
    it. owner: what has that attribute. tests: the conditions under which it is done, each with what it must be.
    """

    by: str
    line: int
    given: Expr
    shapeless: bool = False
    kept: str = ""
    owner: Expr = UNKNOWN
    tests: tuple[tuple[ast.expr, bool], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """`owner.name = value` in the function `by`. text: the value itself, where it may be a flag."""

    by: str
    owner: Expr
    value: Expr
    text: ast.expr | None = None


@dataclass(frozen=True, eq=False)
class Links:
    """The calls, returns and stores of one file.

    calls: by the function where they stand. mentions: what a function names without calling it, or giving it to
    mx.compile. stores: by the attribute. variables: what each may be, by function and name. flags: the
    text of those that may be one.
    """

    calls: Mapping[str, Sequence[Call]]
    mentions: Sequence[tuple[str, Expr]]
    returns: Mapping[str, Sequence[Expr]]
    stores: Mapping[str, Sequence[Store]]
    variables: Mapping[tuple[str, str], Expr]
    flags: Mapping[tuple[str, str], ast.expr]
    compiled: Sequence[Site]
    differentiated: Sequence[Site]

    @cached_property
    def calls_by_name(self) -> dict[str, list[Call]]:
        """The calls by the last part of the name that is called."""
        out: dict[str, list[Call]] = {}
        for calls in self.calls.values():
            for call in calls:
                out.setdefault(call.called.last, []).append(call)
        return out

    def within(self, how: str) -> list[Call]:
        """The calls in lambdas that are compiled, or differentiated."""
        return [c for calls in self.calls.values() for c in calls if c.within == how]

    def hands_on(self, name: str) -> bool:
        """Whether anything that ends so is named without being called."""
        return any(e.last == name for _, e in self.mentions)


def links(known: Scopes, module: ModuleSummary) -> Links:
    """The links of a file. The syntax tree is not kept: it is a hundred times as large."""
    return _Reader(known, module).read()


class _Reader:
    def __init__(self, known: Scopes, module: ModuleSummary) -> None:
        self.module = module
        self.compilers = Compilers(known, module)
        self.scopes: dict[str, Scope] = {s.qualname: s for s in reversed(known.functions)}
        self.scopes[MODULE] = known.module
        self._functions = {id(s.node): s.qualname for s in known.functions}
        self._pending: list[tuple[str, str]] = []
        self._bound: tuple[str, str, ast.expr] | None = None  # the variable whose value is being read, and that value

    def read(self) -> Links:
        calls, mentions, stores = self._calls(), self._mentions(), self._stores()
        returns = {q: found for q in self.scopes if (found := self._returns(q))}
        compiled, differentiated = self._compiled(), self._differentiated()
        variables: dict[tuple[str, str], Expr] = {}
        flags: dict[tuple[str, str], ast.expr] = {}
        while self._pending:
            scope, name = self._pending.pop()
            if (scope, name) not in variables:
                variables[scope, name] = self._variable(name, scope)
        names = {n.id for site in compiled for test, _ in site.tests for n in ast.walk(test) if isinstance(n, ast.Name)}
        for by, scope_ in self.scopes.items() if names else ():
            for name in names & scope_.bindings.keys():
                values = [what for how, what in scope_.bindings[name] if how == "is"]
                if len(values) == 1:
                    flags[by, name] = values[0]
        return Links(calls, mentions, returns, stores, variables, flags, compiled, differentiated)

    # -- expressions --------------------------------------------------------------------------------------------------

    def expr(self, node: ast.expr | None, scope: str) -> Expr:
        """An expression as the function `scope` reads it."""
        match node:
            case ast.Name():
                return self._name(node.id, scope)
            case ast.Attribute():
                return self._member(self.expr(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.Subscript(slice=ast.Slice()):
                return self.expr(node.value, scope)
            case ast.Subscript():
                return Expr("item", "", (self.expr(node.value, scope),))
            case ast.IfExp():
                return self._any(scope, node.body, node.orelse)
            case ast.BoolOp():
                return self._any(scope, *node.values)
            case ast.Await() | ast.NamedExpr():
                return self.expr(node.value, scope)
            case ast.List() | ast.Tuple() | ast.Set():
                return Expr("many", "", tuple(self.expr(e, scope) for e in node.elts))
            case ast.Dict():
                return Expr("many", "", tuple(self.expr(e, scope) for e in node.values))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return Expr("many", "", (self.expr(node.elt, scope),))
            case ast.DictComp():
                return Expr("many", "", (self.expr(node.value, scope),))
            case ast.Starred():
                return Expr("item", "", (self.expr(node.value, scope),))
            case ast.Constant():
                return Expr("constant", repr(node.value)) if _is_flag(node.value) else UNKNOWN
            case ast.Lambda():
                name = self._functions.get(id(node))
                return UNKNOWN if name is None else Expr("name", name)
        return UNKNOWN

    def _any(self, scope: str, *nodes: ast.expr) -> Expr:
        return Expr("any", "", tuple(self.expr(n, scope) for n in nodes))

    def _member(self, owner: Expr, attr: str) -> Expr:
        return Expr("name", f"{owner.name}.{attr}") if owner.kind == "name" else Expr("attr", attr, (owner,))

    def _name(self, name: str, scope: str) -> Expr:
        at: str | None = scope
        while at is not None:
            held = self.scopes[at].bindings.get(name)
            hows = {how for how, _ in held or ()}
            if "value" in hows or "is" in hows:
                if self._bound is not None and self._bound[:2] == (at, name):
                    return self._before(name, at, self._bound[2])
                self._pending.append((at, name))
                return Expr("local", name, scope=at)
            if held:
                break
            at = self._around(at)
        resolved = self.module.resolve(name, scope)
        return Expr("name", resolved) if resolved else UNKNOWN

    def _around(self, scope: str) -> str | None:
        return None if scope == MODULE else self.module.functions[scope].span.outer or MODULE

    def _call(self, node: ast.Call, scope: str) -> Expr:
        given = node.args[0] if node.args else None
        if given is not None and self.compilers.is_compile(node.func, _scope(scope)) is not None:
            return Expr("wrapped", "", (self.expr(given, scope),))
        called = self.expr(node.func, scope)
        if called.kind == "name":
            if called.name in GRADIENTS:
                return Expr("wrapped", "", (self.expr(_differentiated(called, node), scope),))
            if called.name in SAME | {PARTIAL} and given is not None:
                return self.expr(given, scope)
            if called.name == SEQUENTIAL:
                return Expr("many", "", tuple(self.expr(a, scope) for a in node.args))
            if called.name.startswith("mlx."):
                return UNKNOWN
        elif called.kind == "unknown" and isinstance(node.func, ast.Name):
            return self._builtin(node, scope)
        return Expr("call", "", (called,)) if called.kind != "unknown" else UNKNOWN

    def _builtin(self, node: ast.Call, scope: str) -> Expr:
        name, given = getattr(node.func, "id", ""), node.args[0] if node.args else None
        if name == "super":
            return Expr("super", scope=scope)
        if f"builtins.{name}" in ORDER and given is not None:
            return self.expr(given, scope)
        if name == "getattr" and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            return Expr("attr", str(node.args[1].value), (self.expr(given, scope),))
        return UNKNOWN

    def _variable(self, name: str, scope: str) -> Expr:
        """What is assigned to a variable, and what loops take out of something for it."""
        at, found = self.scopes[scope], [self._before(name, scope, None)]
        for how, what in at.bindings.get(name, ()):
            if how == "is":
                self._bound = (scope, name, what)
                found.append(self.expr(what, scope))
                self._bound = None
        found += [e for target, iterated in at.loops if (e := self._element(target, iterated, name, scope))]
        return Expr("any", "", tuple(found))

    def _before(self, name: str, scope: str, value: ast.expr | None) -> Expr:
        """What a variable may be where `value` is worked out for it: an argument, a function, another value."""
        found, bindings = [], self.scopes[scope].bindings.get(name, ())
        function = self.module.functions.get(scope)
        if function is not None and any(p.name == name for p in function.parameters):
            found.append(Expr("param", name, scope=scope))
        if any(how == "def" for how, _ in bindings):
            found.append(Expr("name", name if scope == MODULE else f"{scope}.<locals>.{name}"))
        for how, what in bindings if value is not None else ():
            if how == "is" and what is not value and not _reads(what, name):
                found.append(self.expr(what, scope))
        return Expr("any", "", tuple(found))

    def _element(self, target: ast.expr, iterated: ast.expr, name: str, scope: str) -> Expr | None:
        """What a loop over `iterated` gives a name of its target."""
        if isinstance(target, ast.Name):
            return Expr("item", "", (self.expr(iterated, scope),)) if target.id == name else None
        if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(iterated, ast.Call):
            return None
        sources: list[ast.expr | None] = []
        match iterated.func:
            case ast.Name(id="zip"):
                sources = list(iterated.args)
            case ast.Name(id="enumerate") if iterated.args:
                sources = [None, iterated.args[0]]
            case ast.Attribute(attr="items"):
                sources = [None, iterated.func.value]
        for part, source in zip(target.elts, sources, strict=False):
            found = None if source is None else self._element(part, source, name, scope)
            if found is not None:
                return found
        return None

    # -- what functions do --------------------------------------------------------------------------------------------

    def _calls(self) -> dict[str, list[Call]]:
        out: dict[str, list[Call]] = {}
        for by, scope in self.scopes.items():
            within = {id(n): how for how, given in self._lambdas(scope, by) for n in _walk(given)}
            for node in scope.calls:
                called = self.expr(node.func, by)
                if called.kind in CALLABLE and not _is_foreign(called):
                    out.setdefault(by, []).append(self._call_of(node, by, called, within.get(id(node), "")))
        return out

    def _call_of(self, node: ast.Call, by: str, called: Expr, within: str) -> Call:
        given = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                break
            given.append(self.expr(argument, by))
        keywords = tuple((k.arg, self.expr(k.value, by)) for k in node.keywords if k.arg is not None)
        return Call(by, node.lineno, called, tuple(given), keywords, within)

    def _lambdas(self, scope: Scope, by: str) -> Iterator[tuple[str, ast.Lambda]]:
        """Nameless functions that are compiled or differentiated where they stand."""
        for node in scope.calls:
            for given in (*node.args, *(k.value for k in node.keywords)):
                if isinstance(given, ast.Lambda) and id(given) not in self._functions:
                    if self.compilers.is_compile(node.func, _scope(by)) is not None:
                        yield "compiled", given
                    elif self.expr(node.func, by).name in GRADIENTS:
                        yield "differentiated", given

    def _mentions(self) -> list[tuple[str, Expr]]:
        ours = {q.rpartition(".")[2] for q in self.module.functions} | set(self.module.imports)
        for imports in self.module.function_imports.values():
            ours |= set(imports)
        out = []
        for by, scope in self.scopes.items():
            called = {id(c.func) for c in scope.calls}
            for node in scope.calls:
                if node.args and self.compilers.is_compile(node.func, _scope(by)) is not None:
                    called |= {id(n) for n in _walk(node.args[0])}
            for load in scope.loads:
                last = load.attr if isinstance(load, ast.Attribute) else load.id
                if id(load) not in called and last in ours:
                    found = self.expr(load, by)
                    if found.kind in ("attr", "local", "name") and not _is_foreign(found):
                        out.append((by, found))
        return out

    def _returns(self, function: str) -> list[Expr]:
        scope = self.scopes[function]
        if isinstance(scope.node, ast.Lambda):
            return [self.expr(scope.node.body, function)]
        return [self.expr(e, function) for e in scope.returns]

    def _stores(self) -> dict[str, list[Store]]:
        out: dict[str, list[Store]] = {}
        for by, scope in self.scopes.items():
            for target, value in scope.stores:
                if value is not None:
                    text = value if isinstance(value, FLAGS) else None
                    store = Store(by, self.expr(target.value, by), self.expr(value, by), text)
                    out.setdefault(target.attr, []).append(store)
        return out

    # -- where something is compiled ----------------------------------------------------------------------------------

    def _compiled(self) -> list[Site]:
        """Every place that compiles something, by a decorator or a call."""
        out = []
        for by, scope in self.scopes.items():
            function = self.module.functions.get(by)
            for decorator in getattr(scope.node, "decorator_list", ()):
                shapeless = self.compilers.is_compile(decorator, "" if function is None else function.span.outer or "")
                if shapeless is not None and function is not None:
                    out.append(Site(function.span.outer or MODULE, decorator.lineno, Expr("name", by), shapeless))
            for node in scope.calls:
                shapeless = self.compilers.is_compile(node.func, _scope(by)) if node.args else None
                if shapeless is not None:
                    kept, owner = self._kept(node, scope, by)
                    given, tests = self._given(node, scope, by), tuple(conditions(scope.node, node))
                    flagged = shapeless or flag(node, "shapeless")
                    out.append(Site(by, node.lineno, given, flagged, kept, owner, tests))
        return out

    def _differentiated(self) -> list[Site]:
        """Every place that makes a gradient function."""
        out = []
        for by, scope in self.scopes.items():
            for node in scope.calls:
                called = self.expr(node.func, by)
                if called.name in GRADIENTS:
                    out.append(Site(by, node.lineno, self.expr(_differentiated(called, node), by)))
        return out

    def _given(self, node: ast.Call, scope: Scope, by: str) -> Expr:
        """What is compiled; in `f = mx.compile(f)`, what f was before."""
        given = node.args[0]
        for how, what in scope.bindings.get(given.id, ()) if isinstance(given, ast.Name) else ():
            if how == "is" and any(n is node for n in _walk(what)):
                self._bound = (by, getattr(given, "id", ""), what)
        found = self.expr(given, by)
        self._bound = None
        return found

    def _kept(self, node: ast.Call, scope: Scope, by: str) -> tuple[str, Expr]:
        for target, value in scope.stores:
            if value is node:
                return target.attr, self.expr(target.value, by)
        return "", UNKNOWN


def _differentiated(called: Expr, node: ast.Call) -> ast.expr | None:
    """The function whose gradient a call makes: `nn.value_and_grad(model, f)`, `mx.grad(f)`."""
    for keyword in node.keywords:
        if keyword.arg in ("fn", "fun"):
            return keyword.value
    at = 1 if called.name.startswith("mlx.nn.") else 0
    return node.args[at] if len(node.args) > at else None


def _reads(value: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in _walk(value))


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, (bool, int)) or (isinstance(value, str) and len(value) < LONGEST_FLAG)


def _is_foreign(called: Expr) -> bool:
    return called.kind == "name" and called.name.partition(".")[0] in ("mlx", "numpy", "math", "os")


def _scope(by: str) -> str:
    return "" if by == MODULE else by


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in children(node):
        yield from _walk(child)


def conditions(function: Definition | ast.Module | None, wanted: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that decide whether control comes to an expression, each with what it must give."""
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)):
        found = _on_the_way(function.body, wanted)
        yield from found or ()


def _on_the_way(body: list[ast.stmt], wanted: ast.expr) -> list[tuple[ast.expr, bool]] | None:
    """None where the expression is not in these statements."""
    before: list[tuple[ast.expr, bool]] = []
    for statement in body:
        if isinstance(statement, ast.If):
            for inner, outcome in ((statement.body, True), (statement.orelse, False)):
                found = _on_the_way(inner, wanted)
                if found is not None:
                    return [*before, (statement.test, outcome), *found]
            if _leaves(statement.body):
                before.append((statement.test, False))
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            held = list(suites(statement))
            found = _on_the_way(held, wanted) if held else None
            if found is not None:
                return [*before, *found]
            within = _within(statement, wanted, bool(held))
            if within is not None:
                return [*before, *within]
    return None


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue))


def _within(node: ast.AST, wanted: ast.expr, is_compound: bool) -> list[tuple[ast.expr, bool]] | None:
    for child in children(node):
        if is_compound and isinstance(child, ast.stmt):
            continue
        found = [] if child is wanted else _within(child, wanted, False)
        if found is not None:
            chosen = isinstance(node, ast.IfExp) and child is not node.test
            return [(node.test, child is node.body), *found] if chosen else found  # type: ignore[attr-defined]
    return None
