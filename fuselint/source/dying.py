"""Which statements may go with the code that a fix replaces: those that do nothing but bind local names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from fuselint.graph.model import Block, Graph, Node, Statement, operands
from fuselint.source.confirm import SIZES, is_impure, uncast
from fuselint.source.function import children, walk
from fuselint.source.sites import Site, is_own


@dataclass
class Dying:
    """operands: the values of the graph that the new code reads."""

    graph: Graph
    sites: Sequence[Site]
    operands: Sequence[Node]

    def gone(self, dead: Collection[cst.CSTNode]) -> frozenset[Statement]:
        return frozenset(self.statements[n] for n in dead if n in self.statements)

    @cached_property
    def _by_statement(self) -> dict[cst.CSTNode, list[Node]]:
        out: dict[cst.CSTNode, list[Node]] = {}
        for n in self.graph.nodes:
            top = n.top_stmt
            if top is not None:
                out.setdefault(self.graph.statements[top.index].cst, []).append(n)
        return out

    @cached_property
    def statements(self) -> dict[cst.CSTNode, Statement]:
        return {s.cst: s for s in self.graph.statements}

    @cached_property
    def _with_effects(self) -> set[cst.CSTNode]:
        return {self.graph.statements[e.stmt.index].cst for e in self.graph.effects}

    @cached_property
    def _closure(self) -> set[Node]:
        """The holes and all that they are computed from; what the new code computes around a loop is not."""
        seen = {s.part.root for s in self.sites}.difference(self.operands)
        stack = [*self.operands, *self._called()]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend([uncast(n.inputs[0])] if n.op in SIZES else operands(n))
        return seen

    def _called(self) -> Iterator[Node]:
        """The nested functions whose calls make an operand."""
        for node in self.operands:
            frame = node.frame
            while frame.parent is not None:
                values = frame.parent.values if frame.parent.parent is not None else self.graph.values
                called = values.get(frame.site.func) if isinstance(frame.site, cst.Call) else None
                if called is not None:
                    yield called
                frame = frame.parent

    @cached_property
    def _holding(self) -> set[cst.CSTNode]:
        """Statements that give a hole, or what one is computed from, a name."""
        return {
            b.stmt.cst
            for bindings in self.graph.bindings.values()
            for b in bindings
            if b.stmt is not None and b.node in self._closure
        }

    def may_die(self, node: cst.CSTNode) -> bool:
        """As `deletable`, where what the statement makes on the way to an operand is made elsewhere then."""
        return node not in self._holding and self.deletable(node, self._closure)

    def deletable(self, node: cst.CSTNode, kept: Collection[Node] = ()) -> bool:
        """Whether all that a statement does is bind local names (an `if`: test something)."""
        if isinstance(node, cst.FunctionDef):
            return not node.decorators and not any(
                p.default is not None and not isinstance(p.default, (cst.Integer, cst.Float, cst.Name))
                for p in (*node.params.params, *node.params.kwonly_params, *node.params.posonly_params)
            )
        stmt = self.statements.get(node)
        if stmt is None or node in self._with_effects:
            return False
        if any(b.kind in ("try", "except") for b in _blocks(stmt)) and not any(
            stmt.block is s.stmt.block for s in self.sites
        ):
            return False
        if isinstance(node, cst.If):
            return self._pure(node.test, ()) and not any(map(is_impure, self._by_statement.get(node, ())))
        if isinstance(node, cst.Assign) and not all(_plain_target(t.target) for t in node.targets):
            return False
        if isinstance(node, (cst.AnnAssign, cst.AugAssign)) and not isinstance(node.target, cst.Name):
            return False
        if isinstance(node, cst.AugAssign) and not all(
            is_own(self.graph, n, stmt) for n in self._by_statement.get(node, ()) if n.cst is node
        ):
            return False
        if any(is_impure(n) and n not in kept for n in self._by_statement.get(node, ())):
            return False
        value = getattr(node, "value", None)
        return value is not None and self._pure(value, kept)

    def spare(self, after: Mapping[cst.CSTNode, frozenset[str]]) -> dict[cst.Assign, frozenset[str]]:
        """Of `x, y = a, b` the names that nobody reads any more, where others stay and their values do nothing else.

        after: the names live after each statement.
        """
        out = {}
        for stmt in after:
            pairs = paired(stmt) if isinstance(stmt, cst.Assign) and stmt not in self._with_effects else []
            unread = {
                name for name, value in pairs if not {name, f"{name}.shape"} & after[stmt] and self._does_nothing(value)
            }
            if unread and len(unread) < len(pairs) and not any(stmt is s.stmt.cst for s in self.sites):
                assert isinstance(stmt, cst.Assign)
                out[stmt] = frozenset(unread)
        return out

    def _does_nothing(self, value: cst.BaseExpression) -> bool:
        held = (self.graph.values.get(n) for n in walk(value) if isinstance(n, cst.BaseExpression))
        return self._pure(value, ()) and not any(n is not None and is_impure(n) for n in held)

    def _pure(self, expr: cst.CSTNode, kept: Collection[Node]) -> bool:
        """Whether all calls inside are understood."""
        stack: list[cst.CSTNode] = [expr]
        while stack:
            n = stack.pop()
            if isinstance(n, (cst.Await, cst.Yield, cst.NamedExpr)):
                return False
            if isinstance(n, cst.Call):
                value = self.graph.values.get(n)
                if value is None or (is_impure(value) and value not in kept):
                    return False
            if not isinstance(n, (cst.Lambda, cst.BaseComp)):
                stack += children(n)
        return True


def paired(stmt: cst.Assign) -> list[tuple[str, cst.BaseExpression]]:
    """The names of `x, y = a, b`, all of them different, each with its value; else nothing."""
    target, value = stmt.targets[0].target, stmt.value
    if len(stmt.targets) != 1 or not isinstance(target, cst.Tuple) or not isinstance(value, cst.Tuple):
        return []
    names = [e.value.value for e in target.elements if isinstance(e.value, cst.Name)]
    values = [e.value for e in value.elements if isinstance(e, cst.Element)]
    if not len(set(names)) == len(target.elements) == len(values) == len(value.elements):
        return []
    return list(zip(names, values, strict=True))


def _blocks(stmt: Statement) -> Iterator[Block]:
    at: Block | None = stmt.block
    while at is not None:
        yield at
        at = at.parent


def _plain_target(target: cst.BaseExpression) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(_plain_target(e.value) for e in target.elements)
    return isinstance(target, cst.Name)
