"""Giving an operand a name where none holds it at the new call: before it is rebound, or in a dead statement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Binding, Graph, Node, Statement
from fuselint.source.dead import names_read
from fuselint.source.express import Place, Writer, Written
from fuselint.source.layout import one_line
from fuselint.source.removal import above, line_start
from fuselint.source.tree import CONDITIONAL


@dataclass(frozen=True)
class Saved:
    """`name = text`, put before a statement that stays, or instead of one that dies. names: what the text reads."""

    name: str
    node: Node
    text: str
    names: frozenset[str]
    before: cst.CSTNode | None = None
    instead: cst.CSTNode | None = None
    moved: tuple[cst.CSTNode, ...] = ()
    made: tuple[Node, ...] = ()

    @property
    def reader(self) -> cst.CSTNode:
        """The syntax whose evaluation the text is a part of, for liveness."""
        at = self.before if self.before is not None else self.instead
        assert at is not None
        if isinstance(at, (cst.If, cst.While)):
            return at.test
        if isinstance(at, cst.For):
            return at.iter
        return at.value if self.instead is not None and isinstance(at, cst.Assign) else at


def save(writer: Writer, node: Node, wished: str, place: Place, taken: Iterable[str]) -> Saved | None:
    """A name for a value that is lost before the new call, or None."""
    found = _instead(writer, node, place)
    if found is None and node.op not in ("const", "attr", "global"):
        found = _before(writer, node, wished, place, frozenset(taken))
    return found


def bind(writer: Writer, node: Node, found: Written, wished: str, place: Place, taken: Iterable[str]) -> Saved | None:
    """A name for an expression that is read more than once, given right above the statement of the new call."""
    stmt, names = writer.graph.statements[place.at.index], set(taken)
    if writer.tree.between(place.expr, stmt.cst, CONDITIONAL) or not isinstance(stmt.line, cst.SimpleStatementLine):
        return None
    if stmt.line.body[0] is not stmt.cst or isinstance(writer.tree.parents.get(stmt.line), cst.SimpleStatementSuite):
        return None
    name = next(n for n in (wished, *(f"{wished}{i}" for i in range(2, 1000))) if n not in names)
    return Saved(name, node, found.text, found.names, before=stmt.cst, moved=found.moved, made=found.made)


def _instead(writer: Writer, node: Node, place: Place) -> Saved | None:
    """`s = nn.silu(self.gate(x))`, which dies, becomes `s = self.gate(x)`."""
    stmt = node.stmt
    if stmt is None or stmt not in place.dead or not stmt.block.encloses(place.at.block):
        return None
    target = _only_target(stmt)
    if target is None or any(
        stmt.index < b.index < place.at.index and (b.stmt is None or b.stmt not in place.dead)
        for b in writer.graph.bindings.get(target, ())
    ):
        return None
    for e in writer.at_node.get(node, ()):
        if isinstance(e, cst.BaseExpression) and writer.tree.statement(e) is stmt.cst:
            if writer.tree.between(e, stmt.cst, CONDITIONAL):
                continue
            code = writer.source.code(e)
            names = frozenset(n.removesuffix(".shape") for n in names_read(e))
            return Saved(target, node, one_line(code) or code, names, instead=stmt.cst, moved=(e,))
    return None


def _only_target(stmt: Statement) -> str | None:
    """The one name that a statement on a line of its own assigns."""
    at = stmt.cst
    if not isinstance(at, cst.Assign) or len(at.targets) != 1 or not isinstance(at.targets[0].target, cst.Name):
        return None
    alone = isinstance(stmt.line, cst.SimpleStatementLine) and len(stmt.line.body) == 1
    return at.targets[0].target.value if alone else None


def _before(writer: Writer, node: Node, wished: str, place: Place, taken: frozenset[str]) -> Saved | None:
    """`raw_keys = keys`, before `keys` is rebound."""
    graph = writer.graph
    for name, bindings in graph.bindings.items():
        for b in bindings:
            if b.node is not node or not b.block.encloses(place.at.block) or b.index >= place.at.index:
                continue
            rebinding = _lost_at(graph, b, place)
            if rebinding is None or not _may_stand_before(rebinding, writer):
                continue
            new = next(n for n in (f"raw_{name}", f"raw_{name}_{wished}", f"raw_{name}_2") if n not in taken)
            return Saved(new, node, name, frozenset({name}), before=rebinding.cst)
    return None


def _lost_at(graph: Graph, binding: Binding, place: Place) -> Statement | None:
    """The statement of the binding's suite from which on its name holds something else."""
    for b in graph.bindings[binding.name]:
        if b.index <= binding.index or (b.stmt is not None and b.stmt in place.dead):
            continue
        if b.index >= place.at.index or b.stmt is None:
            return None
        at: Statement | None = b.stmt
        while at is not None and at.block is not binding.block:
            at = at.block.owner
        return at
    return None


def _may_stand_before(stmt: Statement, writer: Writer) -> bool:
    if isinstance(stmt.cst, cst.AugAssign) or not isinstance(
        stmt.cst, (cst.Assign, cst.AnnAssign, cst.If, cst.For, cst.While)
    ):
        return False
    if isinstance(stmt.cst, cst.If) and isinstance(writer.tree.parents.get(stmt.cst), cst.If):
        return False  # an `elif`
    if isinstance(stmt.line, cst.SimpleStatementLine):
        return stmt.line.body[0] is stmt.cst
    return stmt.line is stmt.cst


def saving_edit(writer: Writer, saved: Saved) -> Edit:
    source = writer.source
    file = source.file
    if saved.instead is not None:
        return Edit(*source.span(saved.instead), f"{saved.name} = {saved.text}")
    assert saved.before is not None
    start = source.span(saved.before)[0]
    first = line_start(file, start)
    at = first if saved.moved else above(file, first)
    return Edit(at, at, f"{file.text[first:start]}{saved.name} = {saved.text}{file.newline}")
