"""What compiles its argument in a file: mx.compile by any name, partials of it, and functions that hand theirs on."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from fuselint.source.project import ModuleSummary
from fuselint.source.scopes import Scope, Scopes, dotted

COMPILE = "mlx.core.compile"
PARTIAL = "functools.partial"


@dataclass
class Compilers:
    """names: those whose call compiles, and whether shapelessly. last: the last parts of names that may compile."""

    known: Scopes
    module: ModuleSummary
    names: dict[str, bool] = field(default_factory=dict)
    last: set[str] = field(default_factory=lambda: {"compile"})

    def __post_init__(self) -> None:
        module = self.module
        for imports in (module.imports, *module.function_imports.values()):
            self.last.update(name for name, target in imports.items() if target == COMPILE)
        for name, bindings in self.known.module.bindings.items():
            values = [what for how, what in bindings if how == "is"]
            if len(values) == 1 and isinstance(values[0], ast.Call):
                shapeless = self.partial_compile(values[0], "")
                if shapeless is not None:
                    self.names[name] = shapeless
                    self.last.add(name)
        for scope in self.known.functions:
            shapeless = self._compiles_its_argument(scope)
            if shapeless is not None:
                self.names[scope.qualname] = shapeless
                self.last.add(scope.qualname.rpartition(".")[2])

    def _compiles_its_argument(self, scope: Scope) -> bool | None:
        """Whether a function hands its first parameter to mx.compile, as a decorator does."""
        function = self.module.functions[scope.qualname]
        first = function.parameters[0].name if function.parameters else ""
        for call in scope.calls:
            given = call.args[0] if call.args else None
            if isinstance(given, ast.Name) and given.id == first:
                shapeless = self.is_compile(call.func, scope.qualname)
                if shapeless is not None:
                    return shapeless or flag(call, "shapeless")
        return None

    def is_compile(self, node: ast.expr, scope: str) -> bool | None:
        """None if calling `node` does not compile its argument; else whether it does so shapelessly."""
        if isinstance(node, ast.Call):
            return self.partial_compile(node, scope)
        last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if last not in self.last:
            return None
        if self.resolves(node, scope, COMPILE):
            return False
        return self.names.get(self.module.resolve(last, scope) or last) if isinstance(node, ast.Name) else None

    def partial_compile(self, node: ast.Call, scope: str) -> bool | None:
        """As is_compile, for the call `partial(mx.compile, ...)`."""
        if self.resolves(node.func, scope, PARTIAL) and node.args:
            inner = self.is_compile(node.args[0], scope)
            return None if inner is None else inner or flag(node, "shapeless")
        return None

    def resolves(self, node: ast.expr, scope: str, qualified: str) -> bool:
        """Whether an expression is a name of something of another module."""
        name = dotted(node)
        return name is not None and self.module.resolve(name, scope) == qualified


def flag(call: ast.Call, name: str) -> bool:
    return any(k.arg == name and isinstance(k.value, ast.Constant) and bool(k.value.value) for k in call.keywords)
