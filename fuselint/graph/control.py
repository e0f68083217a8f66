"""Compound statements: joins after `if`, loops as regions, and what `try`, `with` and `match` do to names.

A name that differs at a join is a `phi` after `if`, a `loop` node around a loop, and opaque elsewhere. A name that only
some branches bind is opaque too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from fuselint.graph.effects import by_id
from fuselint.graph.expressions import Expressions
from fuselint.graph.model import Binding, Block, BlockKind, Effect, Node, Statement
from fuselint.graph.scan import Changes, assigned_names, changed_by, changed_in
from fuselint.graph.state import DETACHED, GiveUp, Loop, Return, Snapshot


def differing(envs: Sequence[Mapping[str, Node]]) -> list[str]:
    """The names that don't hold the same node in all of them, in alphabetical order."""
    first = envs[0].items()
    return sorted({name for other in envs[1:] for name, _ in first ^ other.items()})


PASSES = 4
"""How often a loop's body is lowered, at most, until it is known which objects it changes."""

AGAIN = 2_000
"""What lowering a body again costs of the budget, besides its nodes: loops inside loops multiply."""

Join = Callable[[list[Node], str], Node]


@dataclass(frozen=True, eq=False)
class Step:
    """A lowered loop body: the state at its head, those that it ends or breaks in, and the nodes of carried names."""

    first: int
    head: Snapshot
    ends: list[Snapshot]
    breaks: list[Snapshot]
    heads: dict[str, Node]
    endless: bool

    @property
    def leaving(self) -> list[Snapshot]:
        return [*self.ends, *self.breaks]


class Control(Expressions):
    """How compound statements are lowered. Each method returns whether control can leave at the end."""

    def suite(
        self, kind: BlockKind, body: cst.BaseSuite, owner: Statement, entry: Mapping[str, Node | None] | None = None
    ) -> bool:
        """Lower a suite in a block of its own, where the names of `entry` hold other values than before it."""
        scope = self.scope
        outer = scope.block
        scope.block = Block(kind, outer, owner)
        for name, node in (entry or {}).items():
            if node is None:
                continue
            scope.env[name] = self.attach(node)
            if scope.is_root:
                self._note(Binding(name, scope.env[name], scope.count - 1, scope.block, None))
        falls = self.body(body)
        scope.block = outer
        return falls

    def finish(self, stmt: Statement) -> None:
        """The parts of a compound statement are done."""
        stmt.end = self.scope.count
        self.scope.statement = stmt

    # Joins

    def truth(self, test: Node) -> bool | None:
        """What a condition is, where an inlined call's arguments decide it."""
        if len(self.scopes) == 1:
            return None
        if test.op == "const":
            value: object = test.attrs["value"]
            return bool(value)
        if test.op == "not":
            inner = self.truth(test.inputs[0])
            return None if inner is None else not inner
        if test.op != "compare" or test.attrs["op"] not in ("is", "is not"):
            return None
        left, right = test.inputs
        if right.op != "const" or right.attrs["value"] is not None:
            return None
        if left.op == "const":
            same = left.attrs["value"] is None
        elif self.is_array(left) or left.op in ("tuple", "list", "shape", "dim", "new", "function"):
            same = False
        else:
            return None
        return same is (test.attrs["op"] == "is")

    def join(self, states: Sequence[Snapshot], before: Snapshot, stmt: Statement, different: Join) -> None:
        """Go on after `stmt` with what holds in all states; `different` makes the value of what they disagree on."""
        self.finish(stmt)
        self._merge(states, different)
        self.settle(before, stmt)

    def ways(self, states: Sequence[Snapshot], before: Snapshot) -> None:
        """Go on inside a statement after a part of it that may not have run, or one of two."""
        if all(s.env == before.env and s.heap == before.heap for s in states):
            return
        self._merge(states, self.mixed("after a part that may not run"))
        root = self.scopes[0]
        stale = before if self.scope is root else Snapshot(root.env, before.heap, before.versions)
        for name, node in list(root.env.items()):
            if any(s.now(s.env.get(name, node)) is not stale.held(name) for s in (*states, self.snapshot())):
                root.env[name] = self.attach(self.current(node))
                self.record(name, root.env[name], root.statement)

    def _merge(self, states: Sequence[Snapshot], different: Join) -> None:
        first = states[0]
        if len(states) == 1:
            self.resume(first)
        else:
            self.heap, self.versions = self._join_heap(states, different)
            env = dict(first.env)
            for name in differing([s.env for s in states]):
                held = [None if (v := s.held(name)) is None else self.settled(v) for s in states]
                values = [v for v in held if v is not None]
                if len(values) < len(held):
                    env[name] = self.lazy(f"{name} is bound in only some branches", values)
                elif all(v is values[0] for v in values[1:]):
                    env[name] = values[0]
                else:
                    env[name] = different(values, name)
            self.scope.env = env

    def _join_heap(self, states: Sequence[Snapshot], different: Join) -> tuple[dict[str, Node], dict[str, int]]:
        heap: dict[str, Node] = {}
        versions = dict(states[0].versions)
        for key in dict.fromkeys(k for s in states for k in s.versions):
            if any(s.versions.get(key) != versions.get(key) for s in states):
                self.clock += 1
                versions[key] = self.clock
        for key in dict.fromkeys(k for s in states for k in s.heap):
            raw = [None if (v := s.heap.get(key)) is None else self.settled(v) for s in states]
            if all(v is raw[0] for v in raw[1:]):
                assert raw[0] is not None
                heap[key] = raw[0]
            elif key.startswith("@"):
                node = self.graph.nodes[int(key[1:])]
                values = [self.settled(s.now(node)) for s in states]
                heap[key] = values[0] if all(v is values[0] for v in values[1:]) else different(values, key)
            else:
                values = [s.now(v) for s, v in zip(states, raw, strict=True) if v is not None]
                base, _, name = key.partition(".")
                root = self.scopes[0].self_node
                partly = len(values) < len(raw) and root is not None and base == str(root.id)
                if partly and root is not None and self._fills_fields():
                    # the branches that assign nothing leave what the constructor was given
                    given = self.emit("attr", (root,), {"name": name, "path": self.path(root, name), "init": None})
                    values = [given if v is None else s.now(v) for s, v in zip(states, raw, strict=True)]
                if len(values) == len(raw):
                    value = different(values, key)
                elif self.graph.context.qualname.endswith(".__init__"):
                    value = values[0] if all(v is values[0] for v in values) else different(values, key)
                else:
                    self.clock += 1
                    versions[f"*.{name}"] = self.clock
                    continue
                heap[key] = value = self.attach(value)
                if root is not None and base == str(root.id):
                    self.graph.stored[name] = value
        return heap, versions

    def _fills_fields(self) -> bool:
        """Whether the attributes have values already that the function may replace."""
        return self.graph.context.qualname.endswith(".__post_init__")

    def settle(self, before: Snapshot, stmt: Statement) -> None:
        """Note in the graph which names of the root function hold something else after a compound statement."""
        scope, root = self.scope, self.scopes[0]
        if scope is root:
            heap = before.heap.keys() | self.heap.keys()
            for name in list(scope.env) if heap else differing([before.env, scope.env]):
                if name not in scope.env:
                    continue
                node = scope.env[name]
                now = self.now(node)
                if before.held(name) is now:
                    continue
                if now.id == DETACHED and name in before.env:
                    now = self.attach(now) if now is node else self.current(node)
                    scope.env[name] = now
                if now.id != DETACHED:
                    self._note(Binding(name, now, stmt.end - 1, scope.block, None))
            for name in sorted(before.env.keys() - scope.env.keys()):
                gone = self.opaque(f"{name} is deleted", (self.attach(before.env[name]),))
                self._note(Binding(name, gone, stmt.end - 1, scope.block, None))
        elif self.heap is not before.heap:
            for name, node in root.env.items():
                if before.now(node) is not self.now(node):
                    self.record(name, self.current(node), root.statement)

    def _note(self, binding: Binding) -> None:
        self.graph.bindings.setdefault(binding.name, []).append(binding)

    def mixed(self, what: str) -> Join:
        return lambda values, name: self.lazy(f"differs {what}", values)

    # if

    def if_(self, node: cst.If, stmt: Statement) -> bool:
        scope = self.scope
        test = self.value(node.test)
        known = self.truth(test)
        before = self.snapshot()
        if known is not None:
            return self._decided(node, stmt, known, before)
        earlier, scope.returns = scope.returns, []
        ways: list[tuple[Snapshot | None, Node | None]] = []
        pending: list[Return] = []
        for side in (True, False):
            self.resume(before)
            scope.result = None
            falls = self._branch(node, stmt, side)
            result = None
            if falls:
                if scope.returns:
                    raise GiveUp("it returns from a nested branch")
            elif scope.result is not None:
                self._same_heap(scope.returns)
                result = self.merge(scope.returns, scope.result)
            elif scope.returns:
                raise GiveUp("it returns from a nested branch")
            ways.append((self.snapshot(), result) if falls or result is not None else (None, None))
            if result is not None:
                pending.append(Return(test, side, result, dict(self.heap)))
            if not falls:
                ways[-1] = (None, result)
            scope.returns = []
        scope.returns, scope.result = earlier, None
        open_ways = [s for s, _ in ways if s is not None]
        if not open_ways:
            self.finish(stmt)
            self.resume(before)
            results = [r for _, r in ways if r is not None]
            if len(results) == 2:
                if pending[0].heap != pending[1].heap:
                    raise GiveUp("it changes objects in one branch and returns")
                self.heap = pending[0].heap
                scope.result = self.phi(test, results[0], results[1], node)
            elif results:
                scope.result = results[0]
            return False
        scope.returns += pending
        self.join(open_ways, before, stmt, lambda values, name: self._phi_of(test, values, node))
        return True

    def _phi_of(self, test: Node, values: Sequence[Node], at: cst.CSTNode) -> Node:
        return self.phi(test, self.attach(values[0]), self.attach(values[1]), at)

    def _same_heap(self, returns: Sequence[Return]) -> None:
        if any(r.heap != self.heap for r in returns):
            raise GiveUp("it changes objects after a branch that returns")

    def _branch(self, node: cst.If, stmt: Statement, then: bool) -> bool:
        if then:
            return self.suite("then", node.body, stmt)
        if node.orelse is None:
            return True
        if isinstance(node.orelse, cst.Else):
            return self.suite("else", node.orelse.body, stmt)
        scope = self.scope
        outer = scope.block
        scope.block = Block("else", outer, stmt)
        falls = self.if_(node.orelse, self.begin(node.orelse, node.orelse))
        scope.block = outer
        return falls

    def _decided(self, node: cst.If, stmt: Statement, known: bool, before: Snapshot) -> bool:
        falls = self._branch(node, stmt, known)
        self.finish(stmt)
        if falls:
            self.settle(before, stmt)
        return falls

    # Loops

    def for_(self, node: cst.For, stmt: Statement) -> bool:
        iterable = self.value(node.iter)
        return self._loop(node, stmt, iterable)

    def while_(self, node: cst.While, stmt: Statement) -> bool:
        return self._loop(node, stmt, None)

    def _loop(self, node: cst.For | cst.While, stmt: Statement, iterable: Node | None) -> bool:
        """Lower the body once; again, where it turns out to change objects that it reads under other names."""
        scope = self.scope
        before, block = self.snapshot(), scope.block
        changes = self.program.scanned(changed_in, node)
        stale: dict[str, Node] = {}
        kept: dict[str, set[Node]] = {}
        for _ in range(PASSES):
            taken, objects = self.checkpoint(), len(self.changed)
            step = self._step(node, stmt, iterable, changes, stale, kept)
            scope.block, scope.statement = block, stmt
            more = self._changed_objects(before, step.leaving, step.first) - stale.keys()
            later = self._kept(step) if len(self.changed) > objects else kept
            if not more and later.items() <= kept.items():
                break
            stale.update((k, self.graph.nodes[int(k[1:])]) for k in sorted(more))
            kept = later
            self.spend(AGAIN)
            self.take_back(taken)
            self.resume(before)
        else:
            self.note("a loop that changes objects under too many names")
            step = self._step(node, stmt, iterable, changes, stale, kept)
            scope.block, scope.statement = block, stmt
        self.changed += stale.values()
        exits = [*([] if step.endless else [step.head]), *step.breaks]
        if node.orelse is not None and not step.endless:
            self._leave([step.head], before, step)
            self.finish(stmt)
            exits = list(step.breaks)
            if self.suite("else", node.orelse.body, stmt):
                exits.insert(0, self.snapshot())
        self.finish(stmt)
        if not exits:
            self.resume(before)
            return False
        self._leave(exits, before, step)
        self.settle(before, stmt)
        return True

    def _step(
        self,
        node: cst.For | cst.While,
        stmt: Statement,
        iterable: Node | None,
        changes: Changes,
        stale: Mapping[str, Node],
        kept: Mapping[str, set[Node]],
    ) -> Step:
        """One step of a loop, from any state that a step before it may have left.

        stale: the objects that steps change under other names. kept: for each carried name, the objects from before
        the loop that a step may leave in it.
        """
        scope = self.scope
        first = len(self.graph.nodes)
        scope.block = Block("loop", scope.block, stmt)
        scope.statement = Statement(stmt.index, node, node, scope.block, stmt.end)
        may_return, scope.may_return = scope.may_return, scope.is_root
        self._forget_attributes(changes.attributes, changes.calls)
        for key, changed in stale.items():
            self.heap[key] = self.lazy("changed in place in a loop", (self.now(changed),))
        heads: dict[str, Node] = {}
        for name in list(scope.env):
            held = scope.env[name]
            if self._carried(name, changes):
                more = by_id(kept.get(name, ()))
                held = self.emit("loop", (self.attach(self.current(held)), *more), {"name": name}, node)
                heads[name] = scope.env[name] = held
            elif self.now(held).id != DETACHED or held.id == DETACHED:
                continue
            if scope.is_root:
                self._note(Binding(name, self.current(held), stmt.index, scope.block, None))
        loop = Loop()
        scope.loops.append(loop)
        endless = False
        head = self.snapshot()
        if isinstance(node, cst.For):
            assert iterable is not None
            self.assign(node.target, self.element_of(iterable, node.target), node)
        else:
            test = self.value(node.test)
            endless = test.op == "const" and bool(test.attrs["value"])
            head = self.snapshot()
        falls = self.body(node.body)
        ends = [*loop.continues, *([self.snapshot()] if falls else [])]
        scope.loops.pop()
        for name, carried in heads.items():
            back = [self.attach(v) for s in ends if (v := s.held(name)) is not None and v is not carried]
            carried.inputs = (carried.inputs[0], *dict.fromkeys(back))
            for v in back:
                self.joined.setdefault(v, []).append(carried)
        self.recount()
        self._judge(loop)
        self._newer_reads(first, [*ends, *loop.breaks])
        scope.may_return = may_return
        return Step(first, head, ends, loop.breaks, heads, endless)

    def _kept(self, step: Step) -> dict[str, set[Node]]:
        """The objects from before the loop that a step may leave in a carried name that did not hold them."""
        out = {}
        for name, carried in step.heads.items():
            new = self.roots(carried) - self.roots(carried.inputs[0])
            found = {n for n in new if n.id < step.first and not self.immutable(n)}
            if found:
                out[name] = found
        return out

    @staticmethod
    def _changed_objects(before: Snapshot, after: Iterable[Snapshot], first: int) -> set[str]:
        """The objects from before node `first` that have been changed in place since."""
        return {
            key
            for s in after
            for key, node in s.heap.items()
            if key.startswith("@") and int(key[1:]) < first and before.heap.get(key) is not node
        }

    def _carried(self, name: str, changes: Changes) -> bool:
        """Whether a step of the loop may leave another value in a name, or change the object that it holds."""
        if name in changes.names:
            return True
        node = self.current(self.scope.env[name])
        if name in changes.given and node.op in ("list", "dict"):
            return True
        return name in changes.items and node is not self.scope.self_node

    def _leave(self, exits: Sequence[Snapshot], before: Snapshot, step: Step) -> None:
        """Go on after a loop, which is left in one of the states `exits`."""
        carried = {f"@{n.id}" for n in step.heads.values()}
        ends = step.leaving
        env: dict[str, Node] = {}
        for name in dict.fromkeys(n for s in exits for n in s.env):
            values = list(dict.fromkeys(s.now(s.env[name]) for s in exits if name in s.env))
            if sum(name in s.env for s in exits) < len(exits):
                env[name] = self.lazy(f"{name} is bound only inside a loop", values)
            elif len(values) == 1:
                env[name] = values[0]
            else:
                env[name] = self.emit("loop", [self.attach(v) for v in values], {"name": name})
        self.scope.env = env
        heap: dict[str, Node] = {}
        versions = dict(before.versions)
        for s in (*ends, *exits):
            for key, v in s.versions.items():
                if before.versions.get(key) != v:
                    self.clock += 1
                    versions[key] = self.clock
        self.versions = versions
        for key in dict.fromkeys(k for s in (before, *ends, *exits) for k in s.heap):
            if key.startswith("@"):
                if key in carried:
                    continue
                made = self.graph.nodes[int(key[1:])]
                values = list(dict.fromkeys(s.now(made) for s in (before, *ends, *exits)))
                same = len(values) == 1
                heap[key] = values[0] if same else self.lazy("changed in place in a loop", values)
            elif key in before.heap:
                base, _, name = key.partition(".")
                if all(before.versions.get(k) == versions.get(k) for k in (f"*.{name}", base, "")):
                    heap[key] = before.heap[key]
        self.heap = heap

    def _forget_attributes(self, stored: Iterable[str], calls: bool) -> None:
        """At the head of a loop, attributes that its body may change are not known."""
        names = set(stored)
        for key in [k for k in self.heap if "." in k and (calls or k.partition(".")[2] in names)]:
            del self.heap[key]
        for name in sorted(names):
            self.tick(f"*.{name}")

    def _newer_reads(self, first: int, ends: Sequence[Snapshot]) -> None:
        """What the body reads and then changes is, from the second step on, another value than before the loop."""
        for n in self.graph.nodes[first:]:
            if n.op not in ("attr", "item"):
                continue
            base, name = n.inputs[0], n.attrs.get("name")
            keys = [str(base.id), ""] + ([f"{base.id}.{name}", f"*.{name}"] if n.op == "attr" else [])
            if any(s.versions.get(k, 0) > n.attrs.get("version", 0) for s in ends for k in keys):
                self.clock += 1
                n.attrs = {**n.attrs, "version": self.clock}

    def _judge(self, loop: Loop) -> None:
        """`h += x` of a value that the loop carries is an assignment only if nothing else keeps it by the end."""
        for node, stmt, new in loop.changed:
            if not self.fresh(node):
                self.graph.effects.append(Effect(stmt, "mutation", (node,), "", new, new.id))

    def leave_loop(self, by: str) -> bool:
        loops = self.scope.loops
        if loops:
            (loops[-1].breaks if by == "break" else loops[-1].continues).append(self.snapshot())
        return False

    # try, with, match

    def try_(self, node: cst.Try | cst.TryStar, stmt: Statement) -> bool:
        scope = self.scope
        before, objects = self.snapshot(), len(self.changed)
        may_return, scope.may_return = scope.may_return, scope.is_root
        falls = self.suite("try", node.body, stmt)
        done = self.snapshot()
        assigned = self._rebound(node.body)
        blurred = self._blur(before, done, assigned, objects)
        ways: list[Snapshot] = []
        if falls and node.orelse is not None:
            falls = self.suite("else", node.orelse.body, stmt)
            done = self.snapshot()
        if falls:
            ways.append(done)
        for handler in node.handlers:
            self.resume(blurred)
            scope.statement = stmt
            if handler.type is not None:
                self.value(handler.type)
            entry = {n: blurred.held(n) for n in before.env if blurred.held(n) is not before.held(n)}
            if handler.name is not None and isinstance(handler.name.name, cst.Name):
                entry[handler.name.name.value] = self.opaque("a caught exception", (), handler)
            if self.suite("except", handler.body, stmt, entry):
                if handler.name is not None and isinstance(handler.name.name, cst.Name):
                    scope.env.pop(handler.name.name.value, None)
                ways.append(self.snapshot())
        alive = bool(ways)
        self.join(ways or [blurred], before, stmt, self.mixed("after try"))
        if node.finalbody is not None:
            alive &= self._finally(node, stmt, before, objects)
        scope.may_return = may_return
        return alive

    def _finally(self, node: cst.Try | cst.TryStar, stmt: Statement, before: Snapshot, objects: int) -> bool:
        """The suite that also runs after a `return` or an exception, from wherever that was."""
        assert node.finalbody is not None
        scope = self.scope
        joined = self.snapshot()
        names = self._rebound(node.body, *node.handlers)
        blurred = self._blur(before, joined, names, objects)
        self.resume(blurred)
        entry = {n: blurred.held(n) for n in before.env if blurred.held(n) is not before.held(n)}
        falls = self.suite("try", node.finalbody.body, stmt, entry)
        done = self.snapshot()
        own = assigned_names(node.finalbody.body)
        env = {n: v for n, v in joined.env.items() if n not in own or n in done.env}
        env.update((n, done.env[n]) for n in own if n in done.env)
        scope.env = env
        self.heap = {
            key: v if blurred.heap.get(key) is done.heap.get(key) else done.heap[key]
            for key, v in joined.heap.items()
            if key in done.heap or key not in blurred.heap
        }
        self.heap.update((k, v) for k, v in done.heap.items() if blurred.heap.get(k) is not v)
        self.versions = {**joined.versions, **done.versions}
        self.finish(stmt)
        self.settle(before, stmt)
        return falls

    def _rebound(self, *nodes: cst.CSTNode) -> frozenset[str]:
        """Names that may hold something else after code: `x[0] = y` may be lowered as an assignment too."""
        changes = self.program.scanned(changed_by, *nodes)
        return changes.names | changes.items

    def _blur(self, before: Snapshot, after: Snapshot, names: Iterable[str], objects: int) -> Snapshot:
        """The state after some of a suite has run. objects: how many had been changed in place before it."""
        env = dict(before.env)
        for name in sorted(names):
            values = [v for v in (before.held(name), after.held(name)) if v is not None]
            env[name] = self.lazy(f"{name} may have been rebound in try", list(dict.fromkeys(values)))
        heap = {k: v for k, v in before.heap.items() if k.startswith("@") or after.heap.get(k) is v}
        for node in self.changed[objects:]:
            heap[f"@{node.id}"] = self.lazy("may have been changed in try", (before.now(node), after.now(node)))
        versions = dict(after.versions)
        for key, version in after.versions.items():
            if version != before.versions.get(key):
                self.clock += 1
                versions[key] = self.clock
        return Snapshot(env, heap, versions)

    def with_(self, node: cst.With, stmt: Statement) -> bool:
        before = self.snapshot()
        suppresses = False
        for item in node.items:
            context = self.value(item.item)
            suppresses |= context.op == "call" and context.attrs["target"] == "contextlib.suppress"
            if item.asname is not None:
                held = self.opaque("what a context manager gives", (context,), item)
                assert isinstance(item.asname.name, cst.BaseExpression)
                self.assign(item.asname.name, held, node)
        middle, objects = self.snapshot(), len(self.changed)
        may_return = self.scope.may_return
        self.scope.may_return = may_return and (not suppresses or self.scope.is_root)
        falls = self.suite("with", node.body, stmt)
        self.scope.may_return = may_return
        if suppresses:
            done = self.snapshot()
            blurred = self._blur(middle, done, self._rebound(node.body), objects)
            self.join([done, blurred] if falls else [blurred], before, stmt, self.mixed("after with"))
            return True
        self.finish(stmt)
        if falls:
            self.settle(before, stmt)
        return falls

    def match_(self, node: cst.Match, stmt: Statement) -> bool:
        scope = self.scope
        subject = self.value(node.subject)
        before = self.snapshot()
        may_return, scope.may_return = scope.may_return, scope.is_root
        ways: list[Snapshot] = []
        exhaustive = False
        for case in node.cases:
            self.resume(before)
            scope.statement = stmt
            names = sorted(assigned_names(case.pattern))
            captured = {n: self.opaque("captured by a pattern", (subject,), case) for n in names}
            scope.env.update(captured)
            if case.guard is not None:
                self.value(case.guard)
            elif isinstance(case.pattern, cst.MatchAs) and case.pattern.pattern is None:
                exhaustive = True
            if self.suite("match", case.body, stmt, captured):
                ways.append(self.snapshot())
        if not exhaustive:
            ways.append(before)
        scope.may_return = may_return
        if not ways:
            self.finish(stmt)
            self.resume(before)
            return False
        self.join(ways, before, stmt, self.mixed("after match"))
        return True
