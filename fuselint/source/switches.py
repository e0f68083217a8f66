"""Whether a place that compiles does so unless somebody says otherwise."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import partial

from fuselint.source.conditions import outcome
from fuselint.source.links import Expr, Links, Site
from fuselint.source.modules import Definition
from fuselint.source.project import MISSING, MODULE, ModuleSummary
from fuselint.source.values import Evaluation

DEEPEST = 6
"""Steps from a flag to what sets it."""


@dataclass(frozen=True)
class Switches:
    """The tests around the places of one file that compile."""

    evaluation: Evaluation
    path: str
    links: Links
    module: ModuleSummary

    def is_on(self, site: Site) -> bool:
        """Whether something is compiled by default. What only the machine decides, such as a chip's name, is on."""
        for test, wanted in site.tests:
            known = outcome(test, partial(self._default, site.by))
            if known is not None and known is not wanted:
                return False
        return not site.kept or self._is_switched(site)

    def _is_switched(self, site: Site) -> bool:
        """Not so where a function only puts the compiled in the place of another, and nobody calls that function."""
        function = self.module.functions.get(site.by)
        if function is None or site.by.endswith("__init__"):
            return True
        if any(c.called.last == site.kept for c in self.links.calls.get(site.by, ())):
            return True
        name = site.by.rpartition(".")[2]
        files = self.evaluation.users(Definition(self.path, function.class_name or site.by))
        return any(name in found.calls_by_name for p in files if (found := self.evaluation.links(p)) is not None)

    def _default(self, scope: str, node: ast.expr, depth: int = 0) -> object:
        """The value that an expression has by default, or MISSING."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._variable(scope, node.id, depth)
            case ast.Attribute(value=ast.Name()):
                return self._attribute(scope, node, depth)
            case ast.Call(func=ast.Attribute(attr="lower" | "strip", value=of)):
                return self._default(scope, of, depth + 1)
            case ast.Call(func=ast.Attribute(attr="get" | "getenv", value=of)) if _is_environment(of, node):
                default = node.args[1] if len(node.args) > 1 else None
                return None if default is None else self._default(scope, default, depth + 1)
            case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.BoolOp() if depth < DEEPEST:
                found = outcome(node, partial(self._default, scope, depth=depth + 1))
                return MISSING if found is None else found
        return MISSING

    def _variable(self, scope: str, name: str, depth: int) -> object:
        at: str | None = scope
        while at is not None and at != MODULE and depth < DEEPEST:
            if any(p.name == name for p in self.module.functions[at].parameters):
                return self._parameter(at, name, depth)
            if (at, name) in self.links.flags:
                return self._default(at, self.links.flags[at, name], depth + 1)
            at = self.module.functions[at].span.outer
        if name in self.module.constants:
            return self.module.constants[name]
        flag = self.links.flags.get((MODULE, name)) if depth < DEEPEST else None
        return MISSING if flag is None else self._default(MODULE, flag, depth + 1)

    def _parameter(self, scope: str, name: str, depth: int) -> object:
        """A parameter's default, else what the calls in the package give it: on, if one of them says so."""
        stated = next(p for p in self.module.functions[scope].parameters if p.name == name)
        if stated.has_default:
            return stated.default
        called = Definition(self.path, scope)
        found = []
        for path, call, _ in self.evaluation.callers(called):
            given = self.evaluation.argument(called, name, call)
            value = MISSING if given is None else self._given(path, given, depth + 1)
            if value is not MISSING:
                found.append(value)
        return next(filter(None, found), found[0] if found else MISSING)

    def _given(self, path: str, given: Expr, depth: int) -> object:
        if given.kind == "constant":
            return ast.literal_eval(given.name)
        links, module = self.evaluation.links(path), self.evaluation.modules.summary(path)
        if given.kind != "local" or links is None or module is None:
            return MISSING
        return Switches(self.evaluation, path, links, module)._variable(given.scope, given.name, depth)

    def _attribute(self, scope: str, node: ast.Attribute, depth: int) -> object:
        """`self.flag`: as `__init__` sets it, or the class has it."""
        owner = self.evaluation.owner(self.path, scope)
        held = None if owner is None else self.module.classes.get(owner.name)
        if owner is None or held is None or depth >= DEEPEST:
            return MISSING
        for store in self.links.stores.get(node.attr, ()):
            if store.by == f"{owner.name}.__init__":
                return MISSING if store.text is None else self._default(store.by, store.text, depth + 1)
        stated = held.fields.get(node.attr)
        return MISSING if stated is None else stated.default


def _is_environment(of: ast.expr, call: ast.Call) -> bool:
    """`os.environ.get(...)` or `os.getenv(...)`."""
    name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
    return bool(call.args) and name in ("environ", "os")
