"""Does the new text mean what the fix says? The changed function is lowered again and compared with the old graph.

In the old graph each root is taken as one `fused` operation on its holes; in the new one, so is the call that stands
for it. With that, every statement that stays must bind, test, return and store equal values, and whatever may have an
effect must happen in the same order. So a name that holds another value at the new place can't slip through, however
the place was chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from fuselint.graph.model import FOREIGN, Effect, Frame, Graph, Node, Slice, Statement, operands
from fuselint.graph.ops import TABLE
from fuselint.source.function import children, walk
from fuselint.source.project import summarise
from fuselint.source.screen import syntax
from fuselint.source.text import FileText
from fuselint.source.tree import Tree

if TYPE_CHECKING:
    from fuselint.graph.program import Program

PURE = frozenset(
    f"builtins.{n}"
    for n in "abs bool enumerate float int isinstance len max min range round str sum tuple type zip".split()
) | {"mlx.core.finfo", "mlx.core.iinfo"}
PURE_MODULES = ("math.", "numpy.")
RANDOM = "numpy.random."


def is_impure(node: Node) -> bool:
    """Whether evaluating a value may do something besides, or give another result the next time."""
    if node.op == "call":
        target = node.attrs.get("target") or ""
        return not (target in PURE or (target.startswith(PURE_MODULES) and not target.startswith(RANDOM)))
    if node.op == "opaque":
        return node.attrs.get("reason") != "f-string" and "join" not in node.attrs
    return node.op == "new" or node.op.startswith(("random.", "nn.Dropout"))


SAME_OBJECT = frozenset({"nn.Identity", "nn.Dropout", "nn.Dropout2d", "nn.Dropout3d"})
"""Layers that may give back the very array that they are given."""

SIZES = frozenset({"shape", "dim", "ndim", "size"})


def uncast(node: Node) -> Node:
    """The value before its casts: it has the same sizes."""
    while node.op == "astype":
        node = node.inputs[0]
    return node


@dataclass(frozen=True)
class Slot:
    """A root and what stands for it: `template` is an expression in which the names of `values` stand for values."""

    root: Node
    template: str
    values: Mapping[str, Node]


@dataclass(frozen=True)
class Changes:
    """What a fix says that it does to a function.

    gone: the statements that it deletes. inserted: names that new statements `name = value` bind. rewritten: the
    statements that now bind their name to something else. narrowed: the names that statements bind no more.
    """

    slots: Sequence[Slot]
    gone: Collection[cst.CSTNode]
    inserted: frozenset[str] = frozenset()
    rewritten: frozenset[cst.CSTNode] = frozenset()
    narrowed: Mapping[cst.Assign, frozenset[str]] = field(default_factory=dict)


class _Different(Exception):
    pass


def confirm(graph: Graph, new_text: str, program: Program, changes: Changes) -> str:
    """Why the new text must not be written, or ""."""
    from fuselint.graph.program import Program

    old_file = graph.source.file
    file = FileText(old_file.path, new_text, old_file.newline, old_file.encoding, old_file.bom)
    changed = Program(file, summarise(file, syntax(new_text)), program)
    try:
        new = changed.graph(graph.context.qualname)
        if new is None or new.not_understood:
            return "the changed function can't be read again"
        _Comparison(graph, new, changes).run()
    except _Different as why:
        return f"the new code would not compute the same: {why}"
    finally:
        changed.take_apart()
    return ""


class _Keys:
    """Numbers for the values of a graph: equal computations have equal numbers, also those of two graphs."""

    def __init__(self, graph: Graph, table: dict[Any, int], ordinals: Mapping[int, int]) -> None:
        self.graph, self.table, self.ordinals = graph, table, ordinals
        self.known: dict[Node, int] = {}
        self.fused: dict[Node, tuple[Any, tuple[Node, ...]]] = {}  # what it computes, from which values
        self.loops: dict[Node, int] = {}
        self.before_casts: dict[int, int] = {}  # of casts, the value that is cast
        self.sequence = {n: i for i, n in enumerate(n for n in graph.nodes if is_impure(n))}
        versions = sorted({n.attrs["version"] for n in graph.nodes if n.attrs.get("version")})
        self.versions = {v: i for i, v in enumerate(versions)}
        self._same: dict[tuple[str, int | None], int] = {}

    def number(self, key: Any) -> int:
        return self.table.setdefault(key, len(self.table))

    def of(self, node: Node) -> int:
        stack = [node]
        while stack:
            n = stack[-1]
            if n in self.known:
                stack.pop()
                continue
            if n.op == "loop" and n not in self.fused:
                self.known[n] = self._loop(n)
                continue
            needs = self._needs(n)
            missing = [m for m in needs if m not in self.known]
            if missing:
                stack += missing
                continue
            self.known[n] = self._key(n)
            stack.pop()
        return self.known[node]

    def _needs(self, n: Node) -> tuple[Node, ...]:
        if n in self.fused:
            return self.fused[n][1]
        return tuple(operands(n))

    def _loop(self, n: Node) -> int:
        where = self.ordinals.get(n.top_stmt.index) if n.top_stmt is not None else None
        name = n.attrs["name"]
        count = self._same[name, where] = self._same.get((name, where), -1) + 1
        key = self.number(("loop", name, where, count))
        self.loops[n] = key
        return key

    def _key(self, n: Node) -> int:
        if n in self.fused:
            what, values = self.fused[n]
            given = tuple(self.known[v] for v in values)
            return given[0] if what is None else self.number(("fused", what, given))
        inputs = tuple(self.known[i] for i in n.inputs)
        if n.op == "phi" and inputs[0] == inputs[1]:
            return inputs[0]
        if n.op in SIZES:  # a cast has its operand's
            inputs = tuple(self.before_casts.get(i, i) for i in inputs)
        attrs = tuple(sorted((k, self._plain(v, k)) for k, v in n.attrs.items() if k not in FOREIGN))
        key = self.number((n.op, inputs, attrs))
        if n.op == "astype":
            self.before_casts[key] = self.before_casts.get(inputs[0], inputs[0])
        return key

    def _plain(self, value: Any, key: str = "") -> str:
        if isinstance(value, Node):
            return f"%{self.known[value]}"
        if isinstance(value, Slice):
            return f"slice({self._plain(value.start)}, {self._plain(value.stop)}, {self._plain(value.step)})"
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self._plain, value))})"
        if key == "version":
            return str(self.versions.get(value))
        return f"{type(value).__name__}:{value!r}"


class _Comparison:
    def __init__(self, old: Graph, new: Graph, changes: Changes) -> None:
        self.old, self.new, self.changes = old, new, changes
        self.slots = changes.slots
        kept = [s for s in old.statements if s.cst not in changes.gone]
        fresh = [
            s for s in new.statements if not isinstance(s.cst, cst.Pass) and not _is_inserted(s.cst, changes.inserted)
        ]
        kept = [s for s in kept if not isinstance(s.cst, cst.Pass)]
        if len(kept) != len(fresh):
            raise _Different("other statements are gone than it says")
        self.pairs = list(zip(kept, fresh, strict=True))
        table: dict[Any, int] = {}
        ordinals = {s.index: i for i, s in enumerate(kept)}
        self.sites = [s.index for slot in self.slots if (s := slot.root.top_stmt) is not None]
        self.first = min((ordinals[i] for i in self.sites if i in ordinals), default=-1)
        self.a = _Keys(old, table, ordinals)
        placed = {s.index: i for i, s in enumerate(fresh)}
        for s in reversed(new.statements):  # what is inserted counts as a part of the statement that follows
            placed.setdefault(s.index, placed.get(s.index + 1, len(fresh)))
        self.b = _Keys(new, table, placed)
        self.partner = {a.index: b for a, b in self.pairs}
        self.old_tree, self.new_tree = Tree(old.source), Tree(new.source)
        self.written: set[cst.CSTNode] = set()  # syntax of the new function that the templates wrote
        self.kept: set[str] = set()  # attributes whose calls the templates repeat

    def run(self) -> None:
        for slot in self.slots:
            if slot.template in slot.values:
                self._same_object(slot.root, slot.values[slot.template])
        self._fuse()
        for a, b in self.pairs:
            self._statement(a, b)
        self._same("what it returns", [n for _, n in self.old.returns], [n for _, n in self.new.returns])
        self._happenings()
        self._effects()
        self._loops()

    def _same_object(self, root: Node, hole: Node) -> None:
        """An operand that stands for the root itself is another object than the root was: nobody may tell."""
        changed = [n.inputs[0] for n in self.old.nodes if isinstance(n.cst, cst.AugAssign) or n.op == "index_update"]
        changed += [t for e in self.old.effects if e.kind == "mutation" for t in e.targets]
        if {root, hole} & _may_be(changed):
            raise _Different("an array that is changed in place would have another name")
        either = {n for n in self.old.nodes if n.op == "phi" and {root, hole} == set(n.inputs)}  # one in the new code
        leaving = _may_be(self.old.escaping, either)
        held = _may_be([hole])
        made = all(is_fresh(n) or n.op == "phi" for n in held)
        if (root in leaving or either & leaving) and (held & leaving or not made):
            raise _Different("an array that leaves the function would be the one that came in")

    # The new calls

    def _fuse(self) -> None:
        for i, slot in enumerate(self.slots):
            if slot.template in slot.values:
                self.a.fused[slot.root] = (None, (slot.values[slot.template],))
            else:
                self.a.fused[slot.root] = (i, tuple(slot.values.values()))
            for frame in self.old.steps(slot.root.cst):
                given = tuple(self._in_step(frame, v) for v in slot.values.values())
                alone = slot.template in slot.values
                self.a.fused[frame.values[slot.root.cst]] = (None if alone else i, given)  # type: ignore[index]
        for i, slot in enumerate(self.slots):
            if slot.template not in slot.values:
                self._find(i, slot)

    def _in_step(self, frame: Frame, value: Node) -> Node:
        """What a value of a comprehension's expressions is in one of its steps."""
        for e, step in frame.values.items():
            if self.old.values.get(e) is value:
                return step
        if value.stmt is None or value.stmt.block.kind != "comprehension":
            return value
        raise _Different("an operand is not understood in each step of a comprehension")

    def _find(self, i: int, slot: Slot) -> None:
        """The expression of the new function that a template made."""
        stmt = slot.root.top_stmt
        at = self.partner.get(stmt.index) if stmt is not None else None
        if at is None:
            raise _Different("the statement of the new call is gone")
        template = cst.parse_expression(slot.template)
        for e in _own(at.cst):
            found: dict[str, cst.CSTNode] = {}
            node = self.new.values.get(e)
            if node is None or node in self.b.fused or not _fits(template, e, slot.values, found):
                continue
            given = [self.new.values.get(found[name]) for name in slot.values]
            if any(g is None for g in given):
                continue
            values = tuple(g for g in given if g is not None)
            if all(self.a.of(o) == self.b.of(v) for o, v in zip(slot.values.values(), values, strict=True)):
                self.b.fused[node] = (i, values)
                for frame in self.new.steps(e):
                    self.b.fused[frame.values[e]] = (i, tuple(frame.values[found[name]] for name in slot.values))
                self.b.known.clear()
                self.b.loops.clear()
                self.b._same.clear()
                self.written |= _without(e, found.values())
                self._understood()
                return
        raise _Different("an operand of the new call holds another value there")

    def _understood(self) -> None:
        """The new calls are of the functions that they name, which are not bound to anything else there, or of an
        attribute that the old code calls."""
        called = {n.attrs.get("path") for s in self.changes.slots for n in s.root.inputs if n.op == "call"} - {None}
        for n in self.written:
            held = self.new.values.get(n) if isinstance(n, cst.Call) else None
            if held is None or held.op != "call" or held.attrs.get("target") is not None:
                continue
            if held.attrs.get("path") in called:
                self.kept.add(held.attrs["path"])
            else:
                raise _Different(f"`{self.new.source.code(n)[:60]}` may call something else")

    # Statement by statement

    def _statement(self, a: Statement, b: Statement) -> None:
        site = a.index in self.sites
        rewritten = a.cst in self.changes.rewritten
        if type(a.cst) is not type(b.cst) and not (site and isinstance(b.cst, cst.Assign)):
            raise _Different(f"a {type(a.cst).__name__} became a {type(b.cst).__name__}")
        if a.block.kind != b.block.kind or (a.block.owner is None) != (b.block.owner is None):
            raise _Different("a statement is in another suite")
        if a.block.owner is not None and self.partner.get(a.block.owner.index) is not b.block.owner:
            raise _Different("a statement is in another suite")
        ours, theirs = _bound(self.old, a), _bound(self.new, b)
        gone = self.changes.narrowed.get(a.cst, frozenset()) if isinstance(a.cst, cst.Assign) else frozenset()
        if not site and set(ours) - gone != set(theirs):
            raise _Different("a statement binds other names")
        for name in () if rewritten else theirs:
            self._same(f"`{name}`", ours.get(name, []), theirs[name])
        for x, y in zip(_control(a.cst), _control(b.cst), strict=True):
            v, w = self.old.values.get(x), self.new.values.get(y)
            if v is not None and w is not None:
                self._same("a condition or an expression statement", [v], [w])
            elif (v is None) != (w is None):
                raise _Different("a condition changed")

    def _same(self, what: str, old: Sequence[Node], new: Sequence[Node]) -> None:
        if [self.a.of(n) for n in old] != [self.b.of(n) for n in new]:
            raise _Different(f"{what} would change")

    # Effects

    def _happenings(self) -> None:
        """Calls that are not understood, random draws, new objects: the same ones, in the same order and suites."""
        kept = {
            n for s in self.changes.slots for n in s.root.inputs if n.op == "call" and n.attrs.get("path") in self.kept
        }
        ours = [(self._ordinal(n, self.a, True), self.a.of(n)) for n in self.a.sequence if n not in kept]
        theirs = [(self._ordinal(n, self.b, False), self.b.of(n)) for n in self.b.sequence if n.cst not in self.written]
        if ours != theirs:
            raise _Different("a call that may have an effect would go, be repeated or move")

    def _ordinal(self, node: Node, keys: _Keys, old: bool) -> tuple[int, tuple[str, ...]]:
        """Where a value is evaluated: in which statement, and in which of its parts that are not always evaluated."""
        stmt = node.top_stmt
        if stmt is None:
            return -1, ()
        way = (self.old_tree if old else self.new_tree).way(node.top_cst)
        found = keys.ordinals.get(stmt.index)
        if found is None and old:  # from a statement that goes: it may only have moved to the new call
            if self._may_leave(stmt.index, min(self.sites)):
                raise _Different("a call that may have an effect would run after the function may have returned")
            return self.first, way
        return (-1 if found is None else found), way

    def _may_leave(self, start: int, end: int) -> bool:
        """Whether control may leave between two statements."""
        exits = (cst.Return, cst.Raise, cst.Break, cst.Continue, cst.Assert)
        return any(isinstance(s.cst, exits) for s in self.old.statements[start + 1 : end])

    def _effects(self) -> None:
        for a, b in zip(self.old.effects, self.new.effects, strict=False):
            if (a.kind, a.path) != (b.kind, b.path) or self.ordinals_differ(a, b):
                raise _Different("an assignment to an object would move")
            self._same(
                "an object",
                [*a.targets, *([a.value] if a.value else [])],
                [*b.targets, *([b.value] if b.value else [])],
            )
        if len(self.old.effects) != len(self.new.effects):
            raise _Different("an assignment to an object would go")

    def ordinals_differ(self, a: Effect, b: Effect) -> bool:
        return self.a.ordinals.get(a.stmt.index) != self.b.ordinals.get(b.stmt.index)

    def _loops(self) -> None:
        """What loops carry around, as far as anything compared so far depends on it."""
        done: set[int] = set()
        while True:
            theirs = {k: n for n, k in self.b.loops.items() if k not in done}
            ours = {k: n for n, k in self.a.loops.items()}
            if not theirs:
                return
            for key, n in theirs.items():
                done.add(key)
                if key in ours:
                    self._same(f"`{n.attrs['name']}` in a loop", ours[key].inputs, n.inputs)


def _is_inserted(stmt: cst.CSTNode, names: Collection[str]) -> bool:
    """Whether a statement is `name = value`, for one of the names."""
    if not isinstance(stmt, cst.Assign) or len(stmt.targets) != 1:
        return False
    target = stmt.targets[0].target
    return isinstance(target, cst.Name) and target.value in names


def _own(stmt: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The expressions of a statement, of a compound one those before its suites."""
    for part in _parts(stmt):
        for n in walk(part):
            if isinstance(n, cst.BaseExpression):
                yield n


def _parts(stmt: cst.CSTNode) -> list[cst.CSTNode]:
    if isinstance(stmt, cst.BaseCompoundStatement):
        return [
            c
            for c in children(stmt)
            if not isinstance(
                c,
                (cst.BaseSuite, cst.If, cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler, cst.MatchCase),
            )
        ]
    return [stmt]


def _control(stmt: cst.CSTNode) -> list[cst.CSTNode]:
    """Expressions whose value matters besides what a statement binds and returns."""
    if isinstance(stmt, (cst.If, cst.While, cst.Assert)):
        return [stmt.test, *([stmt.msg] if isinstance(stmt, cst.Assert) and stmt.msg is not None else [])]
    if isinstance(stmt, cst.For):
        return [stmt.iter]
    if isinstance(stmt, cst.With):
        return [i.item for i in stmt.items]
    if isinstance(stmt, cst.Match):
        return [stmt.subject]
    if isinstance(stmt, cst.Expr):
        return [stmt.value]
    if isinstance(stmt, cst.Raise):
        return [e for e in (stmt.exc, stmt.cause.item if stmt.cause else None) if e is not None]
    return []


def _may_be(nodes: Iterable[Node], closed: Collection[Node] = ()) -> set[Node]:
    """The values whose objects the nodes may be or hold, without looking into those that are closed."""
    out: set[Node] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if n not in out:
            out.add(n)
            if not is_fresh(n) and n not in closed:
                stack.extend(n.inputs)
    return out


def is_fresh(node: Node) -> bool:
    """Whether MLX makes a new array for the value."""
    op = TABLE.get(node.op)
    return op is not None and op.result == "array" and node.op not in SAME_OBJECT


def _bound(graph: Graph, stmt: Statement) -> dict[str, list[Node]]:
    out: dict[str, list[Node]] = {}
    if isinstance(stmt.cst, cst.BaseCompoundStatement) and not isinstance(stmt.cst, (cst.FunctionDef, cst.ClassDef)):
        return out  # its own bindings are joins: what reads them is compared
    for name, bindings in graph.bindings.items():
        for b in bindings:
            if b.stmt is stmt and "join" not in b.node.attrs:  # what reads that is compared too
                out.setdefault(name, []).append(b.node)
    return out


def _without(e: cst.CSTNode, holes: Any) -> set[cst.CSTNode]:
    """The syntax of an expression without that of its holes."""
    stop = set(holes)
    out: set[cst.CSTNode] = set()
    stack = [e]
    while stack:
        n = stack.pop()
        if n not in stop:
            out.add(n)
            stack += children(n)
    return out


def _fits(template: cst.CSTNode, e: cst.CSTNode, names: Mapping[str, Node], found: dict[str, cst.CSTNode]) -> bool:
    """Whether an expression is the template with some expression for each of its names."""
    stack = [(template, e)]
    while stack:
        t, x = stack.pop()
        if isinstance(t, cst.Name) and t.value in names:
            if not isinstance(x, cst.BaseExpression):
                return False
            found[t.value] = x
            continue
        if type(t) is not type(x):
            return False
        if isinstance(t, (cst.Name, cst.Integer, cst.Float, cst.SimpleString, cst.Imaginary)):
            if t.value != x.value:  # type: ignore[attr-defined]
                return False
            continue
        inner, other = children(t), children(x)
        if len(inner) != len(other):
            return False
        stack += zip(inner, other, strict=True)
    return len(found) == len(names)
