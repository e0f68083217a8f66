"""What a name stands for: a local value, a closed-over one, or something of the module, of MLX or of Python."""

from __future__ import annotations

import builtins

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.effects import Effects
from fuselint.graph.model import Node
from fuselint.graph.scan import assigned_names, dotted
from fuselint.graph.state import DETACHED, Scope

SINGLETONS = {"True": True, "False": False, "None": None, "NotImplemented": NotImplemented}


class Names(Effects):
    """How names are read."""

    def name(self, node: cst.Name) -> Node:
        if node.value in SINGLETONS:
            return self.constant(SINGLETONS[node.value], node)
        return self.read(node.value, node)

    def read(self, name: str, at: cst.CSTNode) -> Node:
        held = self.local(name)
        if held is None:
            return self.read_global(name, at)
        if isinstance(held, str):
            return self.opaque(f"{name} {held}", (), at)
        return held

    def local(self, name: str) -> Node | str | None:
        """What a name of this scope, or of one around it, holds; why that isn't known; None if it is no local name."""
        scope: Scope | None = self.scope
        while scope is not None:
            if name in scope.boxed:
                return "may be rebound by other code"
            found = scope.env.get(name)
            if found is not None:
                if found.id == DETACHED:
                    found = scope.env[name] = self.attach(found)
                return self.current(found)
            if scope.assigned is None:
                binds = self.program.binds_in_expressions
                scope.assigned = self.program.scanned(assigned_names, scope.definition, binds)
            if name in scope.assigned:
                return "may not be bound here"
            scope = scope.outer
        return None

    def read_global(self, name: str, at: cst.CSTNode) -> Node:
        target = self.global_target(name)
        if target is None and not self.is_free(name):
            value = self.module.constants.get(name, ...)
            if value is None or isinstance(value, (bool, int, float, str)):
                return self.constant(value, at)
        return self.named(target, name, at)

    def named(self, target: str | None, name: str, at: cst.CSTNode) -> Node:
        """A qualified name as a value: a dtype or number of MLX, a function of this file, or a `global`."""
        if target is not None:
            known = ops.constant(target)
            if known is not None:
                return self.emit("const", (), known, at)
            if target in self.module.functions:
                return self.emit("function", (), {"qualname": target}, at)
        return self.emit("global", (), {"name": name, "target": target}, at)

    def global_target(self, name: str) -> str | None:
        """The qualified name of what is no local name: `mlx.core` for `mx`, what this file defines, a builtin."""
        found = self.module.resolve(name, self.scope.qualname)
        if found is not None:
            return found
        if name in self.module.unclear or self.is_free(name) or not hasattr(builtins, name):
            return None
        return None if name in self.module.bound else f"builtins.{name}"

    def is_free(self, name: str) -> bool:
        """Whether a name belongs to a function around the one that is lowered."""
        summary = self.module.functions.get(self.scope.qualname)
        at = None if summary is None else summary.span.outer
        while at is not None and at in self.module.functions:
            if name in self.module.functions[at].local:
                return True
            at = self.module.functions[at].span.outer
        return False

    def qualified(self, node: cst.BaseExpression) -> str | None:
        """The qualified name of a dotted name that starts at an import, a class, a function or a builtin."""
        text = dotted(node)
        if not text:
            return None
        head, _, rest = text.partition(".")
        held = self.local(head)
        if held is None:
            target = self.global_target(head)
        elif isinstance(held, Node) and held.op == "global":
            target = held.attrs["target"]
        elif isinstance(held, Node) and held.op == "function" and held not in self.closures:
            target = held.attrs["qualname"]
        else:
            target = None
        if target is None:
            return None
        return self.normal(f"{target}.{rest}" if rest else target)

    @staticmethod
    def normal(target: str) -> str:
        from fuselint.source.project import normalise

        return normalise(target)
