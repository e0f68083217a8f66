"""Who calls whom in a file; what only ever runs compiled, and what is not on the hot path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fuselint.source.cold import cold
from fuselint.source.compilers import COMPILE, PARTIAL, Compilers, flag
from fuselint.source.project import MODULE, Compilation, CompileInfo, ModuleSummary
from fuselint.source.scopes import Scope, Scopes, dotted
from fuselint.source.spans import children

_IN_COMPILE = {"<compiled>": False, "<compiled shapelessly>": True}
"""Stand for the caller of what a lambda given to mx.compile calls, with whether that is shapeless."""


def usage(known: Scopes, module: ModuleSummary) -> ModuleSummary:
    """The summary with calls, references, compiled and cold filled in."""
    uses = _Uses(known, module)
    references = {q: tuple(u) for q, u in uses.references.items()}
    return replace(
        module,
        calls={q: tuple(u) for q, u in uses.calls.items()},
        references=references,
        compiled=_compiled(uses, module),
        compilations=tuple(_compilations(uses)),
        cold=cold(known, module, uses.calls, references),
    )


@dataclass
class _Uses:
    known: Scopes
    module: ModuleSummary
    calls: dict[str, list[str]] = field(default_factory=dict)  # one entry a call
    references: dict[str, dict[str, None]] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)  # function -> who calls or names it
    wrapped: dict[str, CompileInfo] = field(default_factory=dict)
    wraps: list[Compilation] = field(default_factory=list)
    compilers: Compilers = field(init=False)
    telling: frozenset[str] = frozenset()  # last parts of names that may reach a function of this file

    def __post_init__(self) -> None:
        module = self.module
        self.compilers = Compilers(self.known, module)
        self.telling = frozenset(q.rpartition(".")[2] for q in (*module.functions, *module.classes)) | {
            n for c in module.classes.values() for names in (c.methods, c.attributes) for n in names
        }
        for scope in [self.known.module, *self.known.functions]:
            self._scope(scope)

    def _scope(self, scope: Scope) -> None:
        user = scope.qualname or MODULE
        called: set[int] = set()
        compiled: dict[int, str] = {}  # nodes inside a lambda that is compiled
        for call in scope.calls:
            shapeless = self.compilers.is_compile(call.func, scope.qualname)
            if shapeless is None or not call.args:
                continue
            shapeless = shapeless or flag(call, "shapeless")
            given = call.args[0]
            if isinstance(given, ast.Call) and self.compilers.resolves(given.func, scope.qualname, PARTIAL):
                given = given.args[0] if given.args else given
            if isinstance(given, ast.Lambda):
                by = next(name for name, flag in _IN_COMPILE.items() if flag is shapeless)
                compiled.update((id(n), by) for n in _inside(given))
            target = self.target(given, scope.qualname)
            self.wraps.append(self.compilation("call", user, call, call, target, scope))
            if target is not None:
                rebound = self._takes_its_name(call, given, scope)
                self.wrapped[target] = CompileInfo("wrapped", shapeless, call.lineno, user, rebound)
                called.add(id(given))  # to wrap it isn't to use it
        for call in scope.calls:
            target = self.target(call.func, scope.qualname)
            if target is not None:
                called.add(id(call.func))
                by = compiled.get(id(call), user)
                self.calls.setdefault(user, []).append(target)
                self.users.setdefault(target, set()).add(by)
        for load in scope.loads:
            if id(load) not in called:
                target = self.target(load, scope.qualname)
                if target is not None and not target.endswith("__init__"):  # to name a class is not to call it
                    by = compiled.get(id(load), user)
                    self.references.setdefault(user, {})[target] = None
                    self.users.setdefault(target, set()).add(by)

    def _takes_its_name(self, call: ast.Call, given: ast.expr, scope: Scope) -> bool:
        """`f = mx.compile(f)`, `self.f = mx.compile(self.f)`: who reads the name afterwards gets the compiled one."""
        if isinstance(given, ast.Name):
            return any(how == "is" and what is call for how, what in scope.bindings.get(given.id, ()))
        return any(value is call and dotted(at) == dotted(given) for at, value in scope.stores)

    def compilation(
        self, how: str, by: str, at: ast.expr, given: ast.expr, target: str | None, scope: Scope
    ) -> Compilation:
        """What the compiling expression `given` says of state, as `scope` reads it."""
        function = given.func if isinstance(given, ast.Call) else given
        partial = isinstance(given, ast.Call) and self.compilers.resolves(function, scope.qualname, PARTIAL)
        calls = [given] if isinstance(given, ast.Call) else []
        if isinstance(function, ast.Call):  # partial(mx.compile, ...)(f)
            calls.append(function)
            function, partial = function.func, True
        if partial and calls and calls[-1].args:
            function = calls[-1].args[0]
        direct = self.compilers.resolves(function, scope.qualname, COMPILE)
        state = {"inputs": "", "outputs": ""}
        for call in calls:
            for keyword in call.keywords:
                if keyword.arg in state:
                    state[keyword.arg] = self._state(keyword.value, scope)
                elif keyword.arg is None:
                    state = dict.fromkeys(state, "unknown")
            if not partial and len(call.args) > 1:
                state = dict.fromkeys(state, "unknown")
        shapeless = any(flag(c, "shapeless") for c in calls) or bool(
            self.compilers.is_compile(function, scope.qualname)
        )
        return Compilation(how, by, at.lineno, target, shapeless, state["inputs"], state["outputs"], direct)

    def _state(self, node: ast.expr, scope: Scope) -> str:
        """Whether captured state holds the random one: "random", "other" or "unknown"."""
        name = dotted(node)
        if name is not None and self.module.resolve(name, scope.qualname) == "mlx.core.random.state":
            return "random"
        if isinstance(node, (ast.List, ast.Tuple)):
            found = {self._state(e, scope) for e in node.elts}
            return "random" if "random" in found else "unknown" if "unknown" in found else "other"
        if isinstance(node, ast.Name):
            values = [what for how, what in scope.bindings.get(node.id, ()) if how == "is"]
            stores = sum(how == "value" for how, _ in scope.bindings.get(node.id, ()))
            if len(values) == stores == 1 and isinstance(values[0], (ast.List, ast.Tuple)):
                return self._state(values[0], scope)
            return "unknown"
        if isinstance(node, ast.Attribute) and node.attr == "state":
            return "other"  # of a model or an optimizer
        return "unknown"

    def target(self, node: ast.expr, scope: str) -> str | None:
        """The function of this file that an expression names: f, self.m, Class.m, super().m, an instance of a class."""
        module = self.module
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if last not in self.telling:
            return None
        if isinstance(node, ast.Attribute):
            owner = self._owner(node.value, scope)
            if owner is not None:
                method = module.method(owner, node.attr)
                if method is not None:
                    return method if method in module.functions else None
                made = module.attribute(owner, node.attr)
                return module.method(made, "__call__") if made in module.classes else None
        name = dotted(node)
        found = module.resolve(name, scope) if name else None
        if found in module.functions:
            return found
        if found in module.classes and found is not None:
            return module.method(found, "__init__")
        if found is not None and "." in found:
            owner, _, attr = found.rpartition(".")
            return module.method(owner, attr) if owner in module.classes else None
        return None

    def _owner(self, node: ast.expr, scope: str) -> str | None:
        """The class whose methods `node.name` reaches: self, cls or super()."""
        class_name, first = self._self(scope)
        if class_name is None:
            return None
        if isinstance(node, ast.Name) and node.id == first:
            return class_name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            bases = self.module.classes[class_name].bases
            return next((b for b in bases if b in self.module.classes), None)
        return None

    def _self(self, scope: str) -> tuple[str | None, str]:
        """The class of the method that a scope is or lies in, and the name of that method's first parameter."""
        at: str | None = scope
        while at:
            found = self.module.functions[at]
            if found.class_name is not None:
                if found.kind == "staticmethod" or not found.parameters or found.class_name not in self.module.classes:
                    return None, ""
                return found.class_name, found.parameters[0].name
            at = found.span.outer
        return None, ""


def compiles(value: ast.expr, name: str) -> bool:
    """Whether an expression looks like `mx.compile(name)`, with `partial(mx.compile, ...)` or by another name of it."""
    if not isinstance(value, ast.Call) or not value.args or not isinstance(value.args[0], ast.Name):
        return False
    function = value.func
    if isinstance(function, ast.Call) and function.args:
        function = function.args[0]
    return value.args[0].id == name and "compile" in (dotted(function) or "").rpartition(".")[2]


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(children(at))


def _compilations(uses: _Uses) -> Iterator[Compilation]:
    by_name = {s.qualname: s for s in uses.known.functions}
    for scope in uses.known.functions:
        if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and scope.span is not None:
            around = by_name.get(scope.span.outer or "", uses.known.module)
            for decorator in scope.node.decorator_list:
                if uses.compilers.is_compile(decorator, around.qualname) is not None:
                    by = around.qualname or MODULE
                    yield uses.compilation("decorator", by, decorator, decorator, scope.qualname, around)
    yield from uses.wraps


def _compiled(uses: _Uses, module: ModuleSummary) -> dict[str, CompileInfo]:
    out: dict[str, CompileInfo] = {}
    for scope in uses.known.functions:
        if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and scope.span is not None:
            for decorator in scope.node.decorator_list:
                shapeless = uses.compilers.is_compile(decorator, scope.span.outer or "")
                if shapeless is not None:
                    out[scope.qualname] = CompileInfo("decorated", shapeless, decorator.lineno)
    inner: dict[str, list[str]] = {}
    for qualname, function in module.functions.items():
        if function.span.outer is not None:
            inner.setdefault(function.span.outer, []).append(qualname)
    used_by: dict[str, set[str]] = {}
    for target, users in uses.users.items():
        for user in users - {target}:
            used_by.setdefault(user, set()).add(target)
    # A function waits for those of its users that are not known to be compiled; the last one that is found decides.
    pending = {q: len(users - {q}) for q, users in uses.users.items()}
    for qualname, info in uses.wrapped.items():
        if info.rebound or not pending.get(qualname):
            out.setdefault(qualname, info)
    waiting = [*out, *_IN_COMPILE]
    while waiting:
        at = waiting.pop()
        shapeless = out[at].shapeless if at in out else _IN_COMPILE[at]
        used = used_by.get(at, set())
        for qualname in used:
            pending[qualname] -= 1
        for qualname in sorted([*(q for q in used if not pending[q]), *inner.get(at, ())]):
            if qualname not in out:
                out[qualname] = uses.wrapped.get(qualname) or CompileInfo("called", shapeless, by=at)
                waiting.append(qualname)
    return out
