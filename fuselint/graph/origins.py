"""Where a value comes from: an activation, a weight, a table of constants, the rows' statistics.

Size decides whether work is worth fusing, and origin says what shapes don't: a rotary table, a schedule, a mask or a
norm's statistics are small whatever the batch; an activation is not.
"""

from __future__ import annotations

from typing import Literal

from fuselint.graph.model import Graph, Node, Slice, operands
from fuselint.graph.op import Op
from fuselint.graph.ops import TABLE

Origin = Literal["computed", "given", "unknown", "weight", "table", "reduced", "identity", "number", "foreign"]
"""
computed: what a layer, a matmul or another call made of activations
given: an array argument
unknown: an argument, or the result of a call, that may be an array
weight: an attribute of self; work on it is the same at every call
table: made of constants: arange, zeros, linspace, angles of a rotation
reduced: a few values a row: a sum, mean or maximum, one coordinate, what a router selected
identity: names of things: tokens, positions, what is tested for equality or used as an index
number: a Python number
foreign: another library's array
"""

FOREIGN_MODULES = ("numpy", "torch", "jax", "cv2", "PIL", "scipy", "tensorflow", "librosa")
SAME_VALUES = frozenset(
    {"unary", "binary", "ternary", "cast", "composite", "activation", "view", "copy", "scan", "sort"}
)


class Origins:
    """The origins of a graph's values: sets, since an operation mixes what its operands are."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.facts = graph, graph.facts
        self.angles = _angles(graph)
        self.identities = _identities(graph)
        self._of: dict[Node, frozenset[Origin]] = {}
        for node in graph.nodes:
            self._of[node] = self._find(node)

    def of(self, node: Node) -> frozenset[Origin]:
        found = self._of.get(node)
        return found if found is not None else frozenset({"unknown"})

    def _union(self, nodes: tuple[Node, ...]) -> frozenset[Origin]:
        return frozenset().union(*(self.of(n) for n in nodes)) or frozenset({"table"})

    def _find(self, node: Node) -> frozenset[Origin]:
        kind = self.facts.kind(node)
        if kind == "scalar" or node.op == "const":
            return frozenset({"number"})
        if node in self.angles:
            return frozenset({"table"})
        if node in self.identities or (kind == "array" and self.facts.dtype(node).integral):
            return frozenset({"identity"})
        op = TABLE.get(node.op)
        if op is not None:
            return self._operation(node, op)
        if node.op == "param":
            return frozenset({"given" if kind == "array" else "foreign" if kind == "object" else "unknown"})
        if node.op == "attr":
            base = self.of(node.inputs[0]) if node.inputs else frozenset()
            if "foreign" in base and node.inputs[0].op != "param":
                return frozenset({"foreign"})
            return frozenset({"weight"}) if _is_self(self.graph, node) else frozenset({"unknown"})
        if node.op == "call":
            return self._call(node)
        if node.op == "index" and self._is_coordinate(node):
            return frozenset({"reduced"})
        if node.op in ("phi", "item", "index", "tuple", "list"):
            return self._union(node.inputs[:1] if node.op in ("item", "index") else node.inputs)
        if node.op == "global":
            target = node.attrs.get("target") or ""
            return frozenset({"foreign"}) if target.split(".")[0] in FOREIGN_MODULES else frozenset({"table"})
        return frozenset({"unknown"})

    def _operation(self, node: Node, op: Op) -> frozenset[Origin]:
        inputs = self._union(node.inputs)
        if op.kind == "create":
            return inputs if op.name == "array" and "foreign" in inputs else frozenset({"table"})
        if op.kind == "random":
            return frozenset({"given"})
        if "foreign" in inputs:
            return frozenset({"foreign"})
        if op.kind == "reduce" or op.name in ("mean", "var", "std", "linalg.norm", "median", "all", "any"):
            return frozenset({"reduced"}) if inputs & ACTIVATIONS else inputs
        if op.name in ("take_along_axis", "topk") or op.kind == "loss":
            return frozenset({"reduced"})
        if any(self.of(n) == {"table"} and self.facts.dtype(n).integral for n in node.inputs):
            return frozenset({"table"})  # positions: an arange, shifted and scaled
        if op.kind == "gather":
            return self.of(node.inputs[0]) if "table" in self.of(node.inputs[0]) else frozenset({"computed"})
        if op.kind in SAME_VALUES:
            return _settled(inputs)
        made = inputs & (ACTIVATIONS | {"reduced"})
        if made or op.kind in ("layer", "fast"):
            return frozenset({"computed"})
        return inputs

    def _is_coordinate(self, node: Node) -> bool:
        """`boxes[..., 2]`: one number of each row. Of a reshaped value it may be half of the row."""
        index = node.attrs.get("index")
        base = node.inputs[0]
        if not isinstance(index, tuple) or len(index) < 2 or not isinstance(index[-1], int):
            return False
        whole = all(i is Ellipsis or (isinstance(i, Slice) and (i.start, i.stop) == (None, None)) for i in index[:-1])
        return (
            whole and base.op not in RESHAPED and (index[0] is Ellipsis or self.facts.rank(base) in (None, len(index)))
        )

    def _call(self, node: Node) -> frozenset[Origin]:
        target = node.attrs.get("target") or ""
        if target.split(".")[0] in FOREIGN_MODULES:
            return frozenset({"foreign"})
        inputs = frozenset().union(*(self.of(n) for n in operands(node)))
        if "foreign" in inputs:
            return frozenset({"foreign"})
        return frozenset({"unknown"})


RESHAPED = frozenset({"reshape", "unflatten"})


ACTIVATIONS: frozenset[Origin] = frozenset({"computed", "given", "unknown"})


def _settled(inputs: frozenset[Origin]) -> frozenset[Origin]:
    """What an elementwise mix is: numbers say nothing."""
    return inputs - {"number"} or inputs


def _angles(graph: Graph) -> set[Node]:
    """Values of which both the sine and the cosine are taken: angles of a rotation or of a sinusoidal embedding."""
    sines = {n.inputs[0] for n in graph.nodes if n.op == "sin" and n.inputs}
    cosines = {n.inputs[0] for n in graph.nodes if n.op == "cos" and n.inputs}
    return sines & cosines


def _identities(graph: Graph) -> set[Node]:
    """Values that are compared for equality with something, or are indices."""
    out: set[Node] = set()
    for n in graph.nodes:
        if n.op in ("equal", "not_equal"):
            out.update(k for k in n.inputs if k.op not in ("const", "attr"))
        elif n.op in ("take", "take_along_axis", "index"):
            out.update(n.inputs[1:2])
    return out


def _is_self(graph: Graph, node: Node) -> bool:
    """Whether an attribute hangs off self, directly or through other attributes."""
    at = node
    while at.op == "attr" and at.inputs:
        at = at.inputs[0]
    return at.op == "param" and at is next(iter(graph.params.values()), None) and graph.context.class_name is not None
