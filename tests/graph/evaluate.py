"""Runs a Graph on MLX arrays: what lowering says a function computes, to be compared with what Python does."""

from __future__ import annotations

import operator
from typing import Any

import mlx.core as mx

from fuselint.graph.model import Node, Slice
from fuselint.graph.ops import TABLE


class Unknown(Exception):
    """The value depends on something that lowering says it doesn't understand."""


CONDITIONS = {
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
OPERATORS = {
    op.name: f
    for op in TABLE.values()
    if (f := {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "@": operator.matmul,
        "**": operator.pow, "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
        "==": operator.eq, "!=": operator.ne,
    }.get(op.operator or "")) is not None and len(op.params) == 2
}  # fmt: skip


class Evaluator:
    """Values of nodes for given arguments. `attributes` are those of `self` before the call."""

    def __init__(self, arguments: dict[str, Any], attributes: dict[str, Any]) -> None:
        self.arguments, self.attributes = arguments, attributes
        self.done: dict[Node, Any] = {}

    def __call__(self, node: Node) -> Any:
        if node not in self.done:
            self.done[node] = self._run(node)
        return self.done[node]

    def _run(self, n: Node) -> Any:
        if n.op == "param":
            return self.arguments[n.attrs["name"]]
        if n.op == "const":
            return n.attrs["value"]
        if n.op == "phi":
            return self(n.inputs[0] if self(n.attrs["test"]) else n.inputs[1])
        if n.op == "attr" and n.inputs[0].op == "param" and n.inputs[0].attrs["name"] == "self":
            if n.attrs.get("version"):
                raise Unknown("a changed attribute")
            return self.attributes[n.attrs["name"]]
        if n.op in ("loop", "opaque", "call", "attr", "global", "new"):
            raise Unknown(n.op)
        values = [self(i) for i in n.inputs]
        if n.op == "tuple":
            return tuple(values)
        if n.op == "list":
            return values
        if n.op == "compare":
            return CONDITIONS[n.attrs["op"]](*values)
        if n.op == "not":
            return not values[0]
        if n.op in ("and", "or"):
            out = values[0]
            for v in values[1:]:
                out = (out and v) if n.op == "and" else (out or v)
            return out
        if n.op in ("item", "index"):
            return values[0][self._index(n.attrs["index"])]
        if n.op == "index_update":
            out = mx.array(values[0])
            out[self._index(n.attrs["index"])] = values[1]
            return out
        if n.op in OPERATORS:
            return OPERATORS[n.op](*values)
        if n.op == "negative":
            return -values[0]
        raise Unknown(n.op)

    def _index(self, index: Any) -> Any:
        if isinstance(index, Node):
            return self(index)
        if isinstance(index, Slice):
            return slice(*(self._index(p) for p in (index.start, index.stop, index.step)))
        if isinstance(index, tuple):
            return tuple(self._index(i) for i in index)
        return index
