"""A function's tree -> its Graph. Here: simple statements; the rest is in the other files of this room.

state -> effects -> names -> inline -> expressions -> control -> lower: each class adds one concern to the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import libcst as cst

from fuselint.graph.control import Control
from fuselint.graph.expressions import BINARY
from fuselint.graph.model import Block, Context, Frame, Graph, Node, Slice, Statement
from fuselint.graph.program import Program
from fuselint.graph.scan import bound_by, names_read, parameters, rebinds_outer, target_names
from fuselint.graph.state import ASSIGNED, JOINS, MOST_NODES, GiveUp, Scope, TooMuch
from fuselint.source.function import FunctionSource, recursion_limit
from fuselint.source.project import ModuleSummary

__all__ = ["Program", "lower"]

RECURSION = 6_000
"""Python frames: two for each level of an expression, four for each of statements, times the inlined calls."""


def lower(source: FunctionSource, module: ModuleSummary, program: Program) -> Graph:
    """The graph of one function. It never fails: what isn't understood is an opaque node."""
    graph = Graph(module, source, _context(source, module), program=program)
    with recursion_limit(RECURSION):
        try:
            Lowerer(graph, module, program).run(source)
        except RecursionError:
            return _given_up(graph, "its statements are nested too deeply")
        except TooMuch:
            return _given_up(graph, "it has too many statements, or changes too many objects in place")
    return graph


def _given_up(graph: Graph, reason: str) -> Graph:
    """A graph that claims nothing."""
    out = Graph(graph.module, graph.source, graph.context, program=graph.program)
    out.not_understood = reason
    out.notes = [reason]
    return out


def _context(source: FunctionSource, module: ModuleSummary) -> Context:
    compiled = module.compiled.get(source.qualname)
    return Context(
        source.qualname,
        source.class_name,
        compiled is not None,
        compiled is not None and compiled.shapeless,
        module.partly.get(source.qualname, ""),
        module.cold.get(source.qualname, ""),
        source.qualname in module.hot,
    )


class Lowerer(Control):
    """How simple statements are lowered."""

    def run(self, source: FunctionSource) -> None:
        definition = source.node
        frame = Frame(source.qualname, source)
        scope = Scope(frame, definition, source.qualname, source.class_name, None, Block("function", None, None))
        self.scopes.append(scope)
        self.graph.frames.append(frame)
        self._parameters(scope)
        if isinstance(definition, cst.Lambda):
            stmt = self.begin(definition, definition)
            self.graph.returns.append((stmt, self.value(definition.body)))
        else:
            self.graph.falls_off = self.body(definition.body)
        self.graph.effects.sort(key=lambda e: e.at)  # some are known only at the end of a loop

    def _parameters(self, scope: Scope) -> None:
        summary = self.module.functions.get(scope.qualname)
        known = {} if summary is None else {p.name: p for p in summary.parameters}
        definition = scope.definition
        params = parameters(definition)
        defaults = {p: self.value(p.default) for p in params if p.default is not None}
        for param in params:
            name = param.name.value
            about = known.get(name)
            star = param.star if isinstance(param.star, str) else ""
            attrs: dict[str, Any] = {
                "name": name,
                "default": defaults.get(param),
                "annotation": "" if about is None else about.annotation or "",
                "star": star,
            }
            node = self.emit("param", (), attrs, param)
            self.graph.params[name] = node
            self.bind(name, node)
        if summary is not None and summary.kind == "method" and params and not getattr(params[0], "star", ""):
            scope.self_node = self.graph.params[params[0].name.value]

    # Suites

    def body(self, node: cst.BaseSuite) -> bool:
        """Lower a suite; whether control leaves it at its end."""
        falls = True
        for line in node.body:
            parts: Sequence[cst.CSTNode] = (line,)
            if isinstance(line, cst.SimpleStatementLine):
                parts = line.body
            elif isinstance(node, cst.SimpleStatementSuite):
                for part in parts:
                    falls = self._statement(part, node) if falls else self._dead(part, node)
                continue
            for part in parts:
                falls = self._statement(part, line) if falls else self._dead(part, line)
        return falls

    def _dead(self, node: cst.CSTNode, line: cst.CSTNode) -> bool:
        self.begin(node, line)
        return False

    def _statement(self, node: cst.CSTNode, line: cst.CSTNode) -> bool:
        if len(self.graph.nodes) > MOST_NODES:
            raise TooMuch
        stmt = self.begin(node, line)
        compound = _COMPOUND.get(type(node))
        if compound is not None:
            return compound(self, node, stmt)
        simple = _SIMPLE.get(type(node))
        if simple is None:
            self.note(f"{type(node).__name__} is not understood")
            self.unknown_effect(())
            return True
        return simple(self, node) is not False

    # Assignment

    def assignment(self, node: cst.Assign) -> None:
        apart = len(node.targets) == 1 and isinstance(node.targets[0].target, (cst.Tuple, cst.List))
        steps = self.each_step(node.value) if apart and isinstance(node.value, cst.GeneratorExp) else None
        value = steps or self.argument(node.value)
        if not apart:
            value = self.attach(value)
        for target in node.targets:
            self.assign(target.target, value, node)

    def annotated(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value), node)

    def assign(self, target: cst.BaseExpression, value: Node, at: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            self._assign_name(target.value, self.attach(value))
        elif isinstance(target, (cst.Tuple, cst.List)):
            parts = [self.attach(n) for n in self.unpack(value, target)]
            for element, part in zip(target.elements, parts, strict=True):
                self.assign(element.value, part, at)
        elif isinstance(target, cst.Attribute):
            self.store_attribute(self.value(target.value), target.attr.value, self.attach(value))
        elif isinstance(target, cst.Subscript):
            base = self.value(target.value)
            self._store_item(target, base, self.index(target.slice), self.attach(value), at)
        else:
            self.unknown_effect((self.attach(value),))

    def _assign_name(self, name: str, value: Node) -> None:
        if name in self.scope.boxed:
            self.effect("store", (), name, value)
            self.leak((value,))
        self.bind(name, value)

    def _store_item(self, target: cst.Subscript, base: Node, index: Any, value: Node, at: cst.CSTNode) -> None:
        own = self.scopes[0].self_node
        if base is own and isinstance(index, str) and self.is_module_class(self.scopes[0].class_name):
            self.store_attribute(base, index, value)
            return
        entries = [n for n in (index if isinstance(index, tuple) else (index,)) if isinstance(n, Node)]
        array = self.is_array(base)
        if array:
            new = self.emit("index_update", (base, value, *entries), {"index": index}, at)
        else:
            key = {"index": index} if isinstance(index, str) else {}
            new = self.emit("opaque", (base, value, *entries), {"reason": ASSIGNED, **key}, at)
        self._change(target.value, base, new, value if not array else None)

    def _change(self, target: cst.BaseExpression, old: Node, new: Node, kept: Node | None) -> None:
        """The object in `target` is changed in place to `new`; a plain assignment where nothing else can tell."""
        if isinstance(target, cst.Name) and self._plain(old, new):
            self.bind(target.value, new)
        else:
            self.mutate(old, new, kept)
            if isinstance(target, cst.Name) and self.scope.env.get(target.value) is None:
                self.bind(target.value, new)

    def _plain(self, old: Node, new: Node) -> bool:
        if not self.is_array(old) and not self.immutable(old):
            return False
        if not self.rebinds(old):
            return False
        carried = self._carriers(old)
        loops = self.scope.loops
        stmt = self.scopes[0].statement
        if stmt is not None:
            stmt = self.graph.statements[stmt.index]
        if carried and loops and stmt is not None and not self.immutable(old):
            for loop in loops:
                loop.changed.extend((n, stmt, new) for n in carried)
        return True

    @staticmethod
    def _carriers(node: Node) -> list[Node]:
        """The loop nodes that a value may come from unchanged."""
        out: dict[Node, None] = {}
        stack, seen = [node], {node}
        while stack:
            n = stack.pop()
            if n.op == "loop":
                out[n] = None
            if n.op in JOINS:
                more = [i for i in n.inputs if i not in seen]
                seen.update(more)
                stack.extend(more)
        return list(out)

    def augmented(self, node: cst.AugAssign) -> None:
        operator = BINARY[type(node.operator)]
        target = node.target
        if isinstance(target, cst.Name):
            old = self.value(target)
            value = self.value(node.value)
            old = self.refreshed(old)
            new = self.arithmetic(operator, old, value, node)
            if self.immutable(old) or (self.fresh(old) and self._plain(old, new)):
                self.bind(target.value, new)
            else:
                self.mutate(old, new)
                self.bind(target.value, new)
            return
        if isinstance(target, cst.Attribute):
            base = self.value(target.value)
            old = self.attribute_of(base, target.attr.value, target)
            value = self.value(node.value)
            old = self.refreshed(old)
            new = self.arithmetic(operator, old, value, node)
            if not self.immutable(old):
                self.mutate(old, new)
            self.store_attribute(base, target.attr.value, new)
            return
        if isinstance(target, cst.Subscript):
            base, index = self.value(target.value), self.index(target.slice)
            old = self.select(base, index, target)
            value = self.value(node.value)
            base, old = self.refreshed(base), self.refreshed(old)
            new = self.arithmetic(operator, old, value, node)
            if not self.is_array(base) and not isinstance(index, (Slice, tuple)) and not self.immutable(old):
                self.mutate(old, new)  # the element is changed in place before it is stored
                base = self.current(base)
            self._store_item(target, base, index, new, node)
            return
        self.unknown_effect((self.value(node.value),))

    # Other simple statements

    def expression(self, node: cst.Expr) -> None:
        if not isinstance(node.value, (cst.SimpleString, cst.ConcatenatedString)):
            self.value(node.value)

    def return_(self, node: cst.Return) -> bool:
        scope = self.scope
        value = self.constant(None, node) if node.value is None else self.value(node.value)
        if scope.is_root:
            if scope.statement is not None:
                self.graph.returns.append((scope.statement, value))
        else:
            if not scope.may_return:
                raise GiveUp("it returns from inside a loop, a try or a match")
            scope.result = value
        return False

    def raise_(self, node: cst.Raise) -> bool:
        if node.exc is not None:
            self.value(node.exc)
        if node.cause is not None:
            self.value(node.cause.item)
        return False

    def assert_(self, node: cst.Assert) -> None:
        self.value(node.test)
        if node.msg is not None:
            self.value(node.msg)

    def delete(self, node: cst.Del) -> None:
        for t in self._targets(node.target):
            if isinstance(t, cst.Name):
                held = self.scope.env.pop(t.value, None)
                if held is not None and self.scope.is_root:
                    self.record(t.value, self.opaque(f"{t.value} is deleted", (held,), t), self.scope.statement)
            elif isinstance(t, cst.Attribute):
                base = self.value(t.value)
                self.store_attribute(base, t.attr.value, self.opaque("a deleted attribute", (base,), t))
            elif isinstance(t, cst.Subscript):
                base = self.value(t.value)
                self.mutate(base, self.opaque("an item was deleted", (base,), t))

    @staticmethod
    def _targets(target: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        stack = [target]
        while stack:
            t = stack.pop()
            if isinstance(t, (cst.Tuple, cst.List)):
                stack.extend(e.value for e in reversed(t.elements))
            else:
                yield t

    def global_(self, node: cst.Global | cst.Nonlocal) -> None:
        self.scope.boxed.update(n.name.value for n in node.names)

    def import_(self, node: cst.Import | cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar):
            self.note("import * inside a function")
            return
        for alias in node.names:
            for name in bound_by(alias) if alias.asname is None else target_names(alias.asname.name):
                target = self.module.resolve(name, self.scope.qualname)
                self.bind(name, self.emit("global", (), {"name": name, "target": target}, alias))

    def nothing(self, node: cst.CSTNode) -> None:
        pass

    def break_(self, node: cst.Break) -> bool:
        return self.leave_loop("break")

    def continue_(self, node: cst.Continue) -> bool:
        return self.leave_loop("continue")

    # Definitions

    def define(self, node: cst.FunctionDef, stmt: Statement) -> bool:
        scope = self.scope
        for d in node.decorators:
            self.value(d.decorator)
        scope.boxed.update(rebinds_outer(node))
        name = node.name.value
        function = self.closure(node, f"{scope.qualname}.<locals>.{name}", node)
        if node.decorators:
            del self.closures[function]
        self.bind(name, function)
        return True

    def define_class(self, node: cst.ClassDef, stmt: Statement) -> bool:
        if self.scope.is_root:
            self.graph.captured.update(names_read(node))
        self.bind(node.name.value, self.opaque("a class inside a function", (), node))
        return True


_COMPOUND: dict[type, Callable[[Lowerer, Any, Statement], bool]] = {
    cst.If: Lowerer.if_,
    cst.For: Lowerer.for_,
    cst.While: Lowerer.while_,
    cst.Try: Lowerer.try_,
    cst.TryStar: Lowerer.try_,
    cst.With: Lowerer.with_,
    cst.Match: Lowerer.match_,
    cst.FunctionDef: Lowerer.define,
    cst.ClassDef: Lowerer.define_class,
}
_SIMPLE: dict[type, Callable[[Lowerer, Any], bool | None]] = {
    cst.Assign: Lowerer.assignment,
    cst.AnnAssign: Lowerer.annotated,
    cst.AugAssign: Lowerer.augmented,
    cst.Expr: Lowerer.expression,
    cst.Return: Lowerer.return_,
    cst.Raise: Lowerer.raise_,
    cst.Assert: Lowerer.assert_,
    cst.Del: Lowerer.delete,
    cst.Global: Lowerer.global_,
    cst.Nonlocal: Lowerer.global_,
    cst.Import: Lowerer.import_,
    cst.ImportFrom: Lowerer.import_,
    cst.Pass: Lowerer.nothing,
    cst.Break: Lowerer.break_,
    cst.Continue: Lowerer.continue_,
}
