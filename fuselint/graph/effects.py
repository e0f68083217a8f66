"""Aliasing and mutation, by Python object.

Assignment, containers, attributes, `nn.Identity` and unknown calls hand on the object that they are given; every other
MLX op returns a fresh one. `a op= b` is `a = a op b` only where a's object is fresh and nothing else holds it, or can't
be changed at all; else it is an Effect, and every name of that object holds the new value from then on.

`heap` has two kinds of entry: `@12` is what the object that node 12 made holds now, `12.scale` what was last assigned
to that attribute of it. `versions` counts what else may have changed an attribute: two versions are two values.

House assumption: calls don't change their array arguments in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.model import Effect, Node
from fuselint.graph.state import ASSIGNED, CHANGED, DETACHED, DISPLAYS, HOLDS, JOINS, MADE, State

INDEXED = frozenset({"index", "index_update"})
PLAIN = frozenset({"int", "float", "bool", "str", "tuple", "bytes", "complex", "mlx.core.Dtype"})
IMMUTABLE = frozenset({"const", "dim", "ndim", "size", "shape", "dtype", "compare", "not", "function", "global"})
SCALAR_CALLS = frozenset(
    f"builtins.{n}" for n in "int float bool str len range tuple isinstance hasattr callable type any all".split()
)
SAME_OBJECT = frozenset({"nn.Identity", "nn.Dropout", "nn.Dropout2d", "nn.Dropout3d"})
ELSEWHERE = frozenset({"attr", "item", "call", "new"})
"""Operations whose result may be an object that was given away."""


class Effects(State):
    """What is known of objects, and what changes them."""

    @staticmethod
    def is_array(node: Node) -> bool:
        """Whether a value is known to be an MLX array."""
        return is_array(node)

    def is_container(self, node: Node, surely: bool = False) -> bool:
        """Whether a value is, or `surely` must be, a list, dict or set that this function made."""
        seen: set[Node] = set()
        stack = [node]
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if n.op in ("list", "dict") or (n.op == "opaque" and n.attrs["reason"].startswith(MADE)):
                if not surely:
                    return True
            elif n.op in ("phi", "loop", "or", "add") and n.inputs:
                stack.extend(n.inputs)
            elif n.op == "multiply" and any(i.op == "list" for i in n.inputs):
                stack.extend(i for i in n.inputs if i.op == "list")
            elif n.op == "opaque" and ("join" in n.attrs or n.attrs["reason"] in (ASSIGNED, HOLDS)):
                stack.extend(n.inputs[:1])
            elif surely:
                return False
        return surely

    def immutable(self, node: Node, deeply: bool = False) -> bool:
        """Whether an object can't be changed in place: a number, string, shape, tuple; `deeply`: nor what it holds."""
        stack, seen = [node], set()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            op = ops.TABLE.get(n.op)
            if n.op in IMMUTABLE or (n.op == "tuple" and not deeply):
                continue
            if (
                n.op == "tuple"
                or n.op in ("phi", "and", "or", "loop")
                or (op is not None and op.kind in ("unary", "binary"))
            ):
                stack.extend(n.inputs)
            elif n.op == "param":
                if n.attrs["annotation"] not in PLAIN or (deeply and n.attrs["annotation"] == "tuple"):
                    return False
            elif n.op == "call":
                if n.attrs["target"] not in SCALAR_CALLS:
                    return False
            elif n.op == "item":
                if not self._counts(n):
                    return False
            elif n.op == "opaque":
                if n.attrs["reason"] != "f-string":
                    return False
            elif op is None or op.result not in ("scalar", "dtype"):
                return False
        return True

    @staticmethod
    def _counts(node: Node) -> bool:
        """Whether an element is a number: of a range, of a shape, or the count of enumerate."""
        base = node.inputs[0]
        if base.op == "shape":
            return True
        target = base.attrs["target"] if base.op == "call" else None
        return target == "builtins.range" or (target == "builtins.enumerate" and node.attrs["index"] == 0)

    def fresh(self, node: Node) -> bool:
        """Whether an object was made here by MLX, and is held by nothing but names."""
        stack, seen = [node], {node}
        while stack:
            n = stack.pop()
            if n in self.leaked or n in self.was or any(p not in seen for p in self.joined.get(n, ())):
                return False
            op = ops.TABLE.get(n.op)
            if n.op in JOINS:
                more = [i for i in n.inputs if i not in seen]
                seen.update(more)
                stack.extend(more)
            elif n.op == "item":
                base = ops.TABLE.get(n.inputs[0].op)
                if base is None or base.result != "arrays" or self.holders(n.inputs[0]) > 0:
                    return False
            elif n.attrs.get("fresh"):
                continue
            elif n.op not in INDEXED and (op is None or op.result != "array" or n.op in SAME_OBJECT):
                if self.immutable(n):
                    continue
                return False
        return True

    def holders(self, node: Node) -> int:
        """How many names and attributes hold this very object."""
        count = sum(self.now(v) is node or _reads(v, node) for s in self.scopes for v in s.env.values())
        return count + sum((v is node and "." in k) or _reads(v, node) for k, v in self.heap.items())

    def rebinds(self, node: Node) -> bool:
        """Whether `name op= value`, with `node` in the name, can be taken as `name = name op value`."""
        if self.immutable(node):
            return True
        return self.fresh(node) and self.holders(node) <= 1

    # Changes

    def effect(
        self,
        kind: Literal["mutation", "store", "unknown"],
        targets: Sequence[Node],
        path: str = "",
        value: Node | None = None,
    ) -> None:
        stmt = self.scopes[0].statement
        if stmt is not None:
            stmt = self.graph.statements[stmt.index]  # not that of a comprehension or the head of a loop
            self.graph.effects.append(Effect(stmt, kind, tuple(targets), path, value, len(self.graph.nodes)))

    def unknown_effect(self, inputs: Sequence[Node]) -> None:
        """Something runs that may do anything, such as the caller at a `yield`."""
        self.effect("unknown", inputs)
        self.clock += 1
        self.versions[""] = self.clock
        for key in [k for k in self.heap if "." in k]:
            del self.heap[key]

    def mutate(self, node: Node, new: Node, value: Node | None = None) -> None:
        """The object of `node` is changed in place: it holds `new` from here on, whatever its name."""
        self.effect("mutation", (node,), value=value)
        held = self._held()
        self.spend(len(held))
        mine = Origin(self.roots(node), self)
        others = [v for v in held if v is not node and v.op not in DISPLAYS and mine.may_be(self.roots(v))]
        others = [v for v in others if not self.immutable(v)]
        holders = [v for v in held if v.op not in DISPLAYS and mine.may_be(self.roots(v, inside=True))]
        displays = {v: list(map(self.now, v.inputs)) for v in held if v.op in DISPLAYS}
        for n in by_id(mine.roots):
            if n.op == "attr":
                self.tick(f"*.{n.attrs['name']}")
            elif _from_elsewhere(n):
                self.tick("")
        self.was.setdefault(new, node)
        self.replace(node, new)
        for other in others:
            self.replace(other, self.lazy("may have been changed in place through another name", (other, new)))
        changed = {node, *others}
        for v in holders:
            if v not in changed:
                changed.add(v)
                self.replace(v, self.lazy(HOLDS, (v, new), join=False))
        for v in by_id(displays):
            if v not in changed and not changed.isdisjoint(displays[v]):
                changed.add(v)
                inputs = tuple(map(self.now, v.inputs))
                self.replace(v, Node(DETACHED, v.op, inputs, v.attrs, None, None, self.scope.frame))

    def _held(self) -> list[Node]:
        """What names and attributes hold, and what is inside the displays among it."""
        stack = [self.now(v) for s in self.scopes for v in s.env.values()]
        stack += [self.now(v) for k, v in self.heap.items() if "." in k]
        out: dict[Node, None] = {}
        while stack:
            v = stack.pop()
            if v not in out and v.id != DETACHED:
                out[v] = None
                if v.op in DISPLAYS:
                    stack.extend(map(self.now, v.inputs))
        return by_id(out)

    def replace(self, node: Node, new: Node) -> None:
        """Names and containers that hold `node` hold `new`."""
        root = self.scopes[0]
        self.changed.append(node)
        self.heap[f"@{node.id}"] = new
        self.tick(str(node.id))
        for name in [n for n, held in root.env.items() if held is not new and self.now(held) is new]:
            self.record(name, self.current(root.env[name]), root.statement)

    def now(self, node: Node) -> Node:
        """As `current`, without reading."""
        while (changed := self.heap.get(f"@{node.id}")) is not None:
            node = changed
        return node

    def roots(self, node: Node, inside: bool = False) -> frozenset[Node]:
        """The nodes any of which may have made the object of `node`; `inside`: those of objects that it may hold."""
        known = self.cache.get((node, inside))
        if known is not None:
            return known
        if node not in self.was:
            if node.op in IMMUTABLE:
                return frozenset()
            if not inside:
                leaf, more = _alike(node)
                if not more:  # most values: nothing but what made them
                    found = self.cache[node, False] = frozenset((node,)) if leaf else frozenset()
                    return found
        out: set[Node] = set()
        done: set[tuple[Node, bool]] = set()
        stack = [(node, inside)]
        while stack:
            at = stack.pop()
            if at in done:
                continue
            done.add(at)
            known = self.cache.get(at)
            if known is not None:
                out |= known
                continue
            n, within = at
            if n in self.was:
                stack.append((self.was[n], within))
                if not within:
                    continue
            if within:
                known_array = self.arrays.get(n)
                if known_array is None:
                    known_array = self.arrays[n] = is_array(n)
                if known_array:
                    continue
            leaf, more = _inside(n) if within else _alike(n)
            if leaf and n.op not in IMMUTABLE:
                out.add(n)
            stack.extend(more)
        found = self.cache[node, inside] = frozenset(out)
        return found

    def given_away(self) -> set[Node]:
        """The objects that something else than names holds, as roots."""
        leaks, away, cache = self.leaks, self.away, self.cache
        for node in leaks[self.counted :]:
            found = cache.get((node, False))
            away |= self.roots(node) if found is None else found
        self.counted = len(leaks)
        return away

    def recount(self) -> None:
        """Loop nodes have got other operands: what was known of objects is out of date."""
        self.cache.clear()
        self.arrays.clear()
        self.away.clear()
        self.counted = 0

    def handed_on(self, nodes: Iterable[Node]) -> None:
        """Objects are given to code that isn't known: it may change lists, dicts and attributes, but no array."""
        nodes = list(nodes)
        for n in nodes:
            if n.op in ("list", "dict"):
                self.replace(n, self.lazy(f"a {n.op} that was given to a call", nodes))
                self.handed_on(n.inputs)
            elif n.op == "tuple":
                self.handed_on(n.inputs)
            elif not self.immutable(n) and not self.is_array(n):
                self.tick(str(n.id))
                for key in [k for k in self.heap if k.startswith(f"{n.id}.")]:
                    del self.heap[key]

    def tick(self, key: str) -> None:
        self.clock += 1
        self.versions[key] = self.clock

    # Attributes and items

    def version(self, base: Node, name: str | None) -> int:
        v = self.versions
        if not v:
            return 0
        own = 0 if name is None else max(v.get(f"{base.id}.{name}", 0), v.get(f"*.{name}", 0))
        return max(own, v.get(str(base.id), 0), v.get("", 0))

    def known_attribute(self, base: Node, name: str) -> tuple[Node | None, Node | None]:
        """What is known of `base.name`: its value in this graph, or else what `__init__` assigned."""
        here = self.heap.get(f"{base.id}.{name}")
        if here is not None:
            return self.current(here), None
        if self.versions.get(f"{base.id}.{name}") or self.versions.get(f"*.{name}"):
            return None, None
        return None, self.initial(base, name)

    def initial(self, base: Node, name: str) -> Node | None:
        class_name: Any = None
        if base is self.scopes[0].self_node:
            class_name = self.scopes[0].class_name
            if class_name is not None and self.graph.context.qualname.endswith(".__init__"):
                return None
        elif base.op == "attr":
            init = base.attrs["init"]
            if init is not None and init.op == "new":
                class_name = init.attrs["target"]
        if class_name is None or class_name not in self.module.classes:
            return None
        init_graph = self.program.init(class_name)
        return None if init_graph is None else init_graph.stored.get(name)

    def read_attribute(self, base: Node, name: str, at: cst.CSTNode | None) -> Node:
        here, init = self.known_attribute(base, name)
        if here is not None:
            return here
        attrs: dict[str, Any] = {"name": name, "path": self.path(base, name), "init": init}
        version = self.version(base, name)
        if version:
            attrs["version"] = version
        return self.emit("attr", (base,), attrs, at)

    @staticmethod
    def path(base: Node, name: str) -> str | None:
        if base.op == "param":
            return f"{base.attrs['name']}.{name}"
        if base.op == "attr" and base.attrs["path"] is not None:
            return f"{base.attrs['path']}.{name}"
        if base.op == "global":
            return f"{base.attrs['name']}.{name}"
        return None

    def store_attribute(self, base: Node, name: str, value: Node) -> None:
        path = self.path(base, name) or f"?.{name}"
        self.effect("store", (base,), path, value)
        self.leak((value,))
        for key in [k for k in self.heap if k.endswith(f".{name}")]:
            del self.heap[key]
        self.clock += 1
        self.versions[f"*.{name}"] = self.clock
        self.heap[f"{base.id}.{name}"] = value
        if base is self.scopes[0].self_node:
            self.graph.stored[name] = value

    def is_module_class(self, class_name: str | None) -> bool:
        """Whether a class of this file is an nn.Module, whose attributes are its items too."""
        summary = self.module.classes.get(class_name or "")
        return summary is not None and summary.is_module


def by_id(nodes: Iterable[Node]) -> list[Node]:
    """Nodes in order of evaluation: sets have none."""
    return sorted(nodes, key=lambda n: n.id)


def is_array(node: Node) -> bool:
    """Whether a value is known to be an MLX array."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        op = ops.TABLE.get(n.op)
        if op is not None:
            if op.result != "array" or (op.kind in ("unary", "binary") and not is_called(n) and not _array_operand(n)):
                return False
        elif n.op == "param":
            if n.attrs["annotation"] != "mlx.core.array":
                return False
        elif n.op == "item":
            base = ops.TABLE.get(n.inputs[0].op)
            if base is None or base.result != "arrays":
                return False
        elif n.op == "attr":
            init = n.attrs["init"]
            if init is None:
                return False
            stack.append(init)
        elif n.op in ("phi", "loop"):
            stack.extend(n.inputs)
        elif n.op not in INDEXED and not n.attrs.get("fresh"):
            return False
    return True


def is_called(node: Node) -> bool:
    """Whether an operation is written as a call of MLX, whose result is an array whatever the operands are."""
    at = node.cst
    return isinstance(at, cst.Call) and not (isinstance(at.func, cst.Name) and at.func.value == "abs")


def _array_operand(node: Node) -> bool:
    """Whether arithmetic is that of arrays: one operand is, for sure, not a Python number."""
    stack, budget = list(node.inputs), 40
    while stack and budget:
        n = stack.pop()
        budget -= 1
        op = ops.TABLE.get(n.op)
        if n.op in INDEXED or (n.op == "param" and n.attrs["annotation"] == "mlx.core.array"):
            return True
        if op is not None:
            if op.result == "array" and op.kind not in ("unary", "binary"):
                return True
            stack.extend(n.inputs)
        elif n.op == "attr" and n.attrs["init"] is not None:
            stack.append(n.attrs["init"])
        elif n.op == "phi":
            stack.extend(n.inputs)
    return False


class Origin:
    """The objects that a value may be, to be compared with those of others."""

    def __init__(self, roots: frozenset[Node], effects: Effects) -> None:
        self.roots, self.effects = roots, effects
        self.attributes = {n.attrs["name"] for n in roots if n.op == "attr"}
        self.elsewhere = any(map(_from_elsewhere, roots))
        self.away = self._given_away(roots)

    def _given_away(self, roots: frozenset[Node]) -> bool:
        return any(not self.effects.immutable(n) for n in roots & self.effects.given_away())

    def may_be(self, others: frozenset[Node]) -> bool:
        """Whether one of `others` may be the same object."""
        if not others:
            return False
        if not others.isdisjoint(self.roots) and any(not self.effects.immutable(n) for n in others & self.roots):
            return True
        if self.attributes and any(n.op == "attr" and n.attrs["name"] in self.attributes for n in others):
            return True
        if self.away and any(map(_from_elsewhere, others)):
            return True
        return self.elsewhere and self._given_away(others)


_MADE_HERE = (*MADE, "f-string")


def _from_elsewhere(node: Node) -> bool:
    """Whether an object may be any that was given away."""
    if node.op == "opaque":
        return not node.attrs["reason"].startswith(_MADE_HERE)
    return node.op in ELSEWHERE and not node.attrs.get("fresh")


Part = tuple[Node, bool]
"""A value, or (True) what it holds."""


def _alike(n: Node) -> tuple[bool, list[Part]]:
    """Whether a node may make its object, and what that may be instead."""
    if n.op in JOINS or n.op in SAME_OBJECT or "join" in n.attrs:
        return False, [(i, False) for i in n.inputs]
    if n.op == "opaque":
        if n.attrs["reason"].startswith(CHANGED):
            return False, [(n.inputs[0], False)]
        if n.attrs["reason"].startswith(_MADE_HERE):
            return True, []
    if n.op in ("call", "opaque") and not n.attrs.get("fresh"):
        return True, [(i, within) for i in n.inputs for within in (False, True)]
    if n.op == "item":
        return True, [(n.inputs[0], True)]
    return True, []


def _inside(n: Node) -> tuple[bool, list[Part]]:
    """The same for what an object holds."""
    if n.op in JOINS or n.op in SAME_OBJECT or "join" in n.attrs or n.op in ("add", "multiply", "item"):
        return False, [(i, True) for i in n.inputs[: 1 if n.op == "item" else None]]
    if n.op == "opaque" and n.attrs["reason"].startswith(CHANGED):
        return False, [(n.inputs[0], True), *((i, within) for i in n.inputs[1:] for within in (False, True))]
    if n.op in DISPLAYS or (n.op in ("call", "new", "opaque", "star") and not n.attrs.get("fresh")):
        return False, [(i, within) for i in n.inputs for within in (False, True)]
    return False, []


def _reads(node: Node, other: Node) -> bool:
    """Whether a value that isn't in the graph yet would hold an object."""
    return node.id == DETACHED and (other in node.inputs or any(_reads(n, other) for n in node.inputs))
