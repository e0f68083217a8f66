"""What lowering carries along: the graph that grows, and the scope that it grows in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from fuselint.graph.model import Binding, Block, Frame, Graph, Node, Statement
from fuselint.records import record

if TYPE_CHECKING:
    from fuselint.graph.program import Program
    from fuselint.source.project import ModuleSummary

Definition = cst.FunctionDef | cst.Lambda


BUDGET = 500_000
"""Nodes made, those taken back included, and values looked at for changes in place: seconds of work."""


MOST_NODES = 10_000
"""Of one graph: rules look through all of it for each chain that they find. Code for people has 3,500 at most."""


class TooMuch(Exception):
    """The function is beyond the budget."""


class GiveUp(Exception):
    """A call can't be inlined: what was lowered of it is taken back, and it becomes an opaque call."""


@dataclass(eq=False)
class Return:
    """A `return` of an inlined callee in one branch of an `if`: its value where the test is `when`."""

    test: Node
    when: bool
    value: Node
    heap: dict[str, Node]


@record(frozen=True, eq=False)
class Snapshot:
    """What names and objects hold at one point of the code."""

    env: dict[str, Node]
    heap: dict[str, Node]
    versions: dict[str, int]

    def held(self, name: str) -> Node | None:
        node = self.env.get(name)
        return None if node is None else self.now(node)

    def now(self, node: Node) -> Node:
        while (changed := self.heap.get(f"@{node.id}")) is not None:
            node = changed
        return node


@dataclass(eq=False)
class Loop:
    """A loop that is being lowered: where its `break` and `continue` statements leave from."""

    breaks: list[Snapshot] = field(default_factory=list)
    continues: list[Snapshot] = field(default_factory=list)
    changed: list[tuple[Node, Statement, Node]] = field(default_factory=list)
    """In-place changes of values that the loop carries, to be judged at its end: (object, statement, new value)."""


@dataclass(eq=False)
class Scope:
    """One activation of a function while it is lowered.

    env: what each local name holds; a name that isn't there is unbound, or belongs to an outer scope.
    outer: the activation that the function was defined in, for the names that it closes over.
    """

    frame: Frame
    definition: Definition
    qualname: str
    class_name: str | None
    outer: Scope | None
    block: Block
    env: dict[str, Node] = field(default_factory=dict)
    self_node: Node | None = None
    statement: Statement | None = None
    count: int = 0  # statements so far
    boxed: set[str] = field(default_factory=set)  # names that a nested function may rebind, or that are global
    assigned: frozenset[str] | None = None  # all names that the function binds, made when first needed
    returns: list[Return] = field(default_factory=list)
    may_return: bool = True  # not inside a loop, a try or a match of an inlined callee
    loops: list[Loop] = field(default_factory=list)
    result: Node | None = None  # of an inlined callee: what it returns for sure, once it has

    @property
    def is_root(self) -> bool:
        return self.frame.parent is None


@dataclass(eq=False)
class Closure:
    """A nested function or lambda: its code and the activation that it was defined in."""

    definition: Definition
    qualname: str
    scope: Scope


HOLDERS = frozenset({"tuple", "list", "dict", "call", "new", "opaque", "star", "nn.Identity"})
"""Operations whose result may be, or keep, the very objects that they read."""

JOINS = frozenset({"phi", "loop", "and", "or"})
ASSIGNED = "an item was assigned"
MADE = ("a container", "comprehension", "set")
HOLDS = "holds an object that was changed in place"
CHANGED = (ASSIGNED, MADE[0], HOLDS)
"""Reasons of opaque nodes: the first operand, with its items changed; a new container."""

DISPLAYS = frozenset({"tuple", "list", "dict"})
DETACHED = -1
"""The id of a node that is not in the graph: a tuple or list before it is known whether it is taken apart at once, or
an opaque value that may never be read. `State.attach` puts it into the graph."""


class State:
    """The graph under construction. `heap` holds what is known of objects: see effects.py."""

    def __init__(self, graph: Graph, module: ModuleSummary, program: Program) -> None:
        self.graph = graph
        self.module = module
        self.program = program
        self.scopes: list[Scope] = []
        self.heap: dict[str, Node] = {}
        self.versions: dict[str, int] = {}
        self.clock = 0
        self.already: dict[Node, Node] = {}  # detached opaque values that were read, and their nodes
        self.was: dict[Node, Node] = {}  # the value that an object had before it was changed in place to this one
        self.changed: list[Node] = []  # objects that were changed in place, in order
        self.leaked: set[Node] = set()  # values that something else than a name holds
        self.leaks: list[Node] = []  # the same, in order
        self.away: set[Node] = set()  # the roots of the first `counted` of them
        self.counted = 0
        self.cache: dict[tuple[Node, bool], frozenset[Node]] = {}
        self.arrays: dict[Node, bool] = {}  # which values are arrays, as far as `roots` has asked
        self.work = 0
        self.joined: dict[Node, list[Node]] = {}  # the joins that may be this very object
        self.closures: dict[Node, Closure] = {}
        self.inlined = 0  # nodes ever made in inlined calls, those taken back included
        self.refused: set[Definition] = set()  # helpers that can't be inlined

    @property
    def scope(self) -> Scope:
        return self.scopes[-1]

    def emit(
        self,
        op: str,
        inputs: Sequence[Node] = (),
        attrs: Mapping[str, Any] | None = None,
        at: cst.CSTNode | None = None,
    ) -> Node:
        self._require_few(inputs)
        scope = self.scopes[-1]
        node = Node(len(self.graph.nodes), op, tuple(inputs), attrs or {}, at, scope.statement, scope.frame)
        self.graph.nodes.append(node)
        self.spend(1)
        if len(self.scopes) > 1:
            self.inlined += 1
        if op in JOINS or "join" in node.attrs:
            for n in inputs:
                self.joined.setdefault(n, []).append(node)
        elif op in HOLDERS and node.attrs.get("keeps", True):
            self.leak(inputs[1:] if node.attrs.get("reason", "").startswith(CHANGED) else inputs)
        return node

    def _require_few(self, inputs: Sequence[Node]) -> None:
        """A list that is added to itself again and again has no end."""
        if len(inputs) > MOST_NODES:
            raise TooMuch

    def leak(self, nodes: Sequence[Node]) -> None:
        """Something else than a name holds these objects from now on."""
        for n in nodes:
            if n not in self.leaked:
                self.leaked.add(n)
                self.leaks.append(n)

    def spend(self, work: int) -> None:
        self.work += work
        if self.work > BUDGET:
            raise TooMuch

    def opaque(self, reason: str, inputs: Sequence[Node] = (), at: cst.CSTNode | None = None) -> Node:
        return self.emit("opaque", inputs, {"reason": reason}, at)

    def constant(self, value: object, at: cst.CSTNode | None = None) -> Node:
        return self.emit("const", (), {"value": value}, at)

    def detached(self, kind: str, elements: Sequence[Node], at: cst.CSTNode | None) -> Node:
        """A tuple or list that may be taken apart before anything holds it."""
        self._require_few(elements)
        return Node(DETACHED, kind, tuple(elements), {}, at, None, self.scope.frame)

    def note(self, text: str) -> None:
        if text not in self.graph.notes:
            self.graph.notes.append(text)

    # Branches

    def snapshot(self) -> Snapshot:
        return Snapshot(dict(self.scope.env), dict(self.heap), dict(self.versions))

    def resume(self, at: Snapshot) -> None:
        self.scope.env, self.heap, self.versions = dict(at.env), dict(at.heap), dict(at.versions)

    def ways(self, states: Sequence[Snapshot], before: Snapshot) -> None:
        raise NotImplementedError  # in control.py

    # Names

    def bind(self, name: str, node: Node) -> None:
        """`name = node` at the current statement."""
        scope = self.scope
        scope.env[name] = node
        if scope.is_root:
            self.record(name, node, scope.statement)

    def record(self, name: str, node: Node, stmt: Statement | None) -> None:
        """Note in the graph that a name of the root function holds another value after the current statement."""
        index = -1 if stmt is None else stmt.index
        block = self.scopes[0].block
        stmt = None if stmt is None else self.graph.statements[index]
        self.graph.bindings.setdefault(name, []).append(Binding(name, node, index, block, stmt))

    def current(self, node: Node) -> Node:
        """What the object that `node` made holds now: another value, if it was changed in place since."""
        heap = self.heap
        while heap:
            changed = heap.get(f"@{node.id}")
            if changed is None:
                break
            if changed.id == DETACHED:
                changed = heap[f"@{node.id}"] = self.attach(changed)
            node = changed
        return node

    def refreshed(self, node: Node) -> Node:
        """An operand that was evaluated before others, which may have changed its object in place."""
        if not self.heap:
            return node
        if node.id == DETACHED and node.op in DISPLAYS:
            return self.detached(node.op, [self.refreshed(n) for n in node.inputs], node.cst)
        return self.current(node)

    def lazy(self, reason: str, inputs: Sequence[Node], join: bool = True) -> Node:
        """An opaque value, one of `inputs` or a changed one, that gets into the graph only if it is read."""
        attrs = {"reason": reason, "join": True} if join else {"reason": reason}
        return Node(DETACHED, "opaque", tuple(inputs), attrs, None, None, self.scope.frame)

    # Statements

    def begin(self, node: cst.CSTNode, line: cst.CSTNode) -> Statement:
        scope = self.scope
        stmt = Statement(scope.count, node, line, scope.block, scope.count + 1)
        scope.count += 1
        scope.statement = stmt
        if scope.is_root:
            self.graph.statements.append(stmt)
        return stmt

    def attach(self, node: Node) -> Node:
        """The node itself, or a node in the graph for a detached one."""
        if node.id != DETACHED:
            return node
        known = self.settled(node)
        if known is not node:
            return known
        inputs = node.inputs
        if node.op in DISPLAYS and self.heap:
            inputs = tuple(map(self.current, inputs))
        out = self.emit(node.op, [self.attach(n) for n in inputs], node.attrs, node.cst)
        if node.cst is not None:
            self.remember(node.cst, out)
        if node.op == "opaque":
            self.already[node] = out
        return out

    def remember(self, expr: cst.CSTNode, value: Node) -> None:
        """What an expression computes, in the function itself or in the call that is being lowered."""
        (self.graph.values if len(self.scopes) == 1 else self.scope.frame.values)[expr] = value

    def settled(self, node: Node) -> Node:
        """The node in the graph of an opaque value that has been read, or the node itself."""
        known = self.already.get(node)
        nodes = self.graph.nodes
        return node if known is None or known.id >= len(nodes) or nodes[known.id] is not known else known

    # What the other files provide

    def value(self, node: cst.BaseExpression) -> Node:
        raise NotImplementedError

    def body(self, node: cst.BaseSuite) -> bool:
        raise NotImplementedError

    def assign(self, target: cst.BaseExpression, value: Node, at: cst.CSTNode) -> None:
        raise NotImplementedError
