"""Aliasing and mutation, by Python object.

Assignment, containers, attributes, `nn.Identity` and unknown calls hand on the object that they are given; every other
MLX op returns a fresh one. `a op= b` is `a = a op b` only where a's object is fresh and nothing else holds it, or can't
be changed at all; else it is an Effect, and every name of that object holds the new value from then on.

`heap` has two kinds of entry: `@12` is what the object that node 12 made holds now, `12.scale` what was last assigned to
that attribute of it. `versions` counts what else may have changed an attribute, so that two reads aren't taken as one.

House assumption: calls don't change their array arguments in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.model import Effect, Node
from fuselint.graph.state import State

PLAIN = frozenset({"int", "float", "bool", "str", "tuple", "bytes", "complex", "mlx.core.Dtype"})
IMMUTABLE = frozenset({"const", "dim", "ndim", "size", "shape", "dtype", "compare", "not", "function", "global"})
SCALAR_CALLS = frozenset(
    f"builtins.{n}" for n in "int float bool str len range tuple isinstance hasattr callable type any all".split()
)
SAME_OBJECT = frozenset({"nn.Identity", "nn.Dropout", "nn.Dropout2d", "nn.Dropout3d"})
ALIASES = frozenset({"phi", "loop", "and", "or", "tuple", "list", "dict", "item", *SAME_OBJECT})


class Effects(State):
    """What is known of objects, and what changes them."""

    def is_array(self, node: Node) -> bool:
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
                if op.result != "array" or not (op.kind not in ("unary", "binary") or self._array_operand(n)):
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
            elif n.op != "index":
                return False
        return True

    def _array_operand(self, node: Node) -> bool:
        """Whether arithmetic is that of arrays: one operand is, for sure, not a Python number."""
        stack, budget = list(node.inputs), 40
        while stack and budget:
            n = stack.pop()
            budget -= 1
            op = ops.TABLE.get(n.op)
            if n.op == "index" or (n.op == "param" and n.attrs["annotation"] == "mlx.core.array"):
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

    def immutable(self, node: Node) -> bool:
        """Whether an object can't be changed in place: numbers, strings, tuples, shapes."""
        stack, seen = [node], set()
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            op = ops.TABLE.get(n.op)
            if n.op in IMMUTABLE or n.op == "tuple":
                continue
            if n.op in ("phi", "and", "or", "loop") or (op is not None and op.kind in ("unary", "binary")):
                stack.extend(n.inputs)
            elif n.op == "param":
                if n.attrs["annotation"] not in PLAIN:
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
            if n in self.leaked or any(p not in seen for p in self.joined.get(n, ())):
                return False
            op = ops.TABLE.get(n.op)
            if n.op in ("phi", "loop"):
                more = [i for i in n.inputs if i not in seen]
                seen.update(more)
                stack.extend(more)
            elif n.op == "item":
                base = ops.TABLE.get(n.inputs[0].op)
                if base is None or base.result != "arrays" or self.holders(n.inputs[0]) > 0:
                    return False
            elif n.op != "index" and (op is None or op.result != "array" or n.op in SAME_OBJECT):
                if not self.immutable(n):
                    return False
        return True

    def holders(self, node: Node) -> int:
        """How many names and attributes hold this very object."""
        count = sum(1 for s in self.scopes for v in s.env.values() if v is node or self.current(v) is node)
        return count + sum(1 for k, v in self.heap.items() if "." in k and v is node)

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
        self.replace(node, new)
        for other in self._aliases(node):
            self.replace(other, self.opaque("may have been changed in place through another name", (other, new)))

    def replace(self, node: Node, new: Node) -> None:
        """Names and containers that hold `node` hold `new`."""
        root = self.scopes[0]
        self.heap[f"@{node.id}"] = new
        self.tick(str(node.id))
        if node.op == "attr":
            self.tick(f"{node.inputs[0].id}.{node.attrs['name']}")
        for name, held in root.env.items():
            if held is node or (held is not new and self.current(held) is new):
                self.record(name, new, root.statement)

    def _aliases(self, node: Node) -> list[Node]:
        """Other values that names hold and that may be this object, or one that it may be."""
        mine = self._may_be(node)
        out: list[Node] = []
        held = {self.current(v): None for s in self.scopes for v in s.env.values()}
        for other in [*held, *mine]:
            if other is node or other in out or self.immutable(other):
                continue
            if other.op in ("tuple", "list", "dict"):
                continue  # they read their elements through `current`
            if other in mine or node in self._may_be(other) or (mine - {node}) & self._may_be(other):
                out.append(other)
        return [n for n in out if f"@{n.id}" not in self.heap]

    @staticmethod
    def _may_be(node: Node) -> set[Node]:
        """The node, and the nodes whose object it may be."""
        out, stack = {node}, [node]
        while stack:
            n = stack.pop()
            if n.op in ("phi", "loop", "and", "or") or n.op in SAME_OBJECT:
                more = [i for i in n.inputs if i not in out]
                out.update(more)
                stack.extend(more)
        return out

    def handed_on(self, nodes: Iterable[Node]) -> None:
        """Objects are given to code that isn't known: it may change lists, dicts and attributes, but no array."""
        for node in nodes:
            n = node
            if n.op in ("list", "dict"):
                self.replace(n, self.opaque(f"a {n.op} that was given to a call", (n,)))
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
        self.leaked.add(value)
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
