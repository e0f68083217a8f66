"""Where a value comes from: an activation, a weight, a table of constants, the rows' statistics.

Size decides whether work is worth fusing, and origin says what shapes don't: a rotary table, a schedule, a mask or a
norm's statistics are small whatever the batch; an activation is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal

from fuselint.graph.effects import is_called
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

ONE_BY_ONE = frozenset({"unary", "binary", "ternary", "cast", "composite", "activation", "view", "copy"})
FOREIGN_MODULES = ("numpy", "torch", "jax", "cv2", "PIL", "scipy", "tensorflow", "librosa")
SAME_VALUES = frozenset(
    {"unary", "binary", "ternary", "cast", "composite", "activation", "view", "copy", "scan", "sort"}
)


def stated_dtype(weight: Node) -> str:
    """The dtype that `__init__` asks for in so many words: `mx.ones((n,), dtype=mx.float32)`. "" for none."""
    init = weight.attrs.get("init")
    dtype = init.attrs.get("dtype") if isinstance(init, Node) else None
    return dtype if isinstance(dtype, str) else ""


class Origins:
    """The origins of a graph's values: sets, since an operation mixes what its operands are.

    given: those of parameters, where the callers say them.
    """

    def __init__(self, graph: Graph, given: Mapping[Node, frozenset[Origin]] | None = None) -> None:
        self.graph, self.facts, self.given = graph, graph.facts, given or {}
        angles = _angles(graph)
        self.angles = angles | _all_readers(graph, lambda r: r in angles)
        self.identities = _identities(graph)
        self.totals = _all_readers(graph, _is_total)
        self.points = _all_readers(graph, lambda r: _makes_points(graph, r))
        self._of: dict[Node, frozenset[Origin]] = {}
        for node in graph.nodes:
            self._of[node] = self._find(node)

    def of(self, node: Node) -> frozenset[Origin]:
        found = self._of.get(node)
        return found if found is not None else frozenset({"unknown"})

    @cached_property
    def speaks_of_arrays(self) -> bool:
        """Whether a function calls MLX itself, or the file holds layers."""
        layers = any(held.is_module for held in self.graph.module.classes.values())
        return layers or any(n.op in TABLE and is_called(n) for n in self.graph.nodes)

    def _union(self, nodes: tuple[Node, ...]) -> frozenset[Origin]:
        return frozenset().union(*(self.of(n) for n in nodes)) or frozenset({"table"})

    def _find(self, node: Node) -> frozenset[Origin]:
        if node in self.given:
            return self.given[node]
        kind = self.facts.kind(node)
        if kind == "scalar" or node.op == "const":
            return frozenset({"number"})
        op = TABLE.get(node.op)
        if node in self.angles or (op is not None and op.kind == "create" and op.name != "array"):
            return frozenset({"table"})
        if node in self.identities or (kind == "array" and self.facts.dtype(node).integral):
            return frozenset({"identity"})
        found = self._operation(node, op) if op is not None else self._structural(node, kind)
        return frozenset({"reduced"}) if found & ACTIVATIONS and self._has_short_rows(node) else found

    def _structural(self, node: Node, kind: str) -> frozenset[Origin]:
        if node.op == "param":
            foreign = kind == "object" and not self.facts.of(node).instances
            return frozenset({"given" if kind == "array" else "foreign" if foreign else "unknown"})
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

    def _has_short_rows(self, node: Node) -> bool:
        """Colours, boxes, codes: rows of a few numbers. Rows of two are pairs that a rotation turns."""
        size = self._row(node)
        return size is not None and 3 <= size <= SHORT_ROW

    def _row(self, node: Node) -> int | None:
        """The length of the last axis, where it is a number."""
        shape = self.facts.shape(node)
        last = None if shape is None or (shape.lead is not None and not shape.dims) else shape.axis(-1)
        return None if last is None else last.value()

    def _operation(self, node: Node, op: Op) -> frozenset[Origin]:
        inputs = self._union(node.inputs)
        if op.kind == "create":
            return inputs if "foreign" in inputs else frozenset({"table"})
        if op.kind == "random":
            return frozenset({"given"})
        if "foreign" in inputs:
            return frozenset({"foreign"})
        if op.kind == "reduce" or op.name in ("mean", "var", "std", "linalg.norm", "median", "all", "any"):
            return frozenset({"reduced"}) if inputs & ACTIVATIONS else inputs
        if op.name in ("take_along_axis", "topk") or op.kind == "loss":
            return frozenset({"reduced"})
        if op.name == "squeeze" and inputs & ACTIVATIONS and self._row(node.inputs[0]) == 1:
            return frozenset({"reduced"})
        if any(self.of(n) == {"table"} and self.facts.dtype(n).integral for n in node.inputs):
            return frozenset({"table"})  # positions: an arange, shifted and scaled
        if op.kind == "gather" and self._is_fixed_lookup(node):
            return frozenset({"weight"})
        if op.kind == "gather":
            return self.of(node.inputs[0]) if "table" in self.of(node.inputs[0]) else frozenset({"computed"})
        if op.kind in SAME_VALUES:
            pairs = "reduced" in inputs and any(self._row(n) == 2 for n in node.inputs)
            return frozenset({"reduced"}) if pairs else _settled(inputs)
        made = inputs & (ACTIVATIONS | {"reduced"})
        if made or op.kind in ("layer", "fast"):
            return frozenset({"computed"})
        return inputs

    def _is_fixed_lookup(self, node: Node) -> bool:
        """Rows of a learned table at places that don't depend on activations."""
        base, *places = (self.of(n) for n in node.inputs)
        return base == {"weight"} and all(p <= {"table", "identity", "number"} for p in places)

    def _is_coordinate(self, node: Node) -> bool:
        """`boxes[..., 2]`, `rotation[:, 0, 1]`, `camera[:, 1:2]`: few numbers of each row. Of pairs it is half."""
        index = node.attrs.get("index")
        if not isinstance(index, tuple) or len(index) < 2:
            return False
        base, rest = node.inputs[0], list(index)
        taken = 0
        while rest and _is_few(rest[-1]):
            rest.pop()
            taken += 1
        if not taken or not rest or not all(i is Ellipsis or _is_whole(i) for i in rest):
            return False
        shape = self.facts.shape(base)
        pairs = taken == 1 and base.op in RESHAPED and shape is not None and shape.axis(-1) == 2
        return not pairs and (rest[0] is Ellipsis or self.facts.rank(base) in (None, len(index)))

    def _call(self, node: Node) -> frozenset[Origin]:
        target = node.attrs.get("target") or ""
        if target.split(".")[0] in FOREIGN_MODULES:
            return frozenset({"foreign"})
        inputs = frozenset().union(*(self.of(n) for n in operands(node)))
        if "foreign" in inputs:
            return frozenset({"foreign"})
        return frozenset({"unknown"})


RESHAPED = frozenset({"reshape", "unflatten"})

SHORT, SHORT_ROW = 4, 8
"""So many parts of rows, or of a row that holds no more, are a few numbers."""


def _is_whole(part: Any) -> bool:
    return part is None or (isinstance(part, Slice) and (part.start, part.stop) == (None, None))


def _is_few(part: Any) -> bool:
    if isinstance(part, Slice):
        start, stop = part.start or 0, part.stop
        if stop is None:  # `boxes[..., 2:]`
            return isinstance(start, int) and 1 < start <= SHORT
        return isinstance(start, int) and isinstance(stop, int) and 0 < stop - start <= SHORT
    return isinstance(part, int)


ACTIVATIONS: frozenset[Origin] = frozenset({"computed", "given", "unknown"})


def _settled(inputs: frozenset[Origin]) -> frozenset[Origin]:
    """What an elementwise mix is: numbers say nothing."""
    return inputs - {"number"} or inputs


def _angles(graph: Graph) -> set[Node]:
    """Values of which both the sine and the cosine are taken: angles of a rotation or of a sinusoidal embedding."""
    sines = {n.inputs[0] for n in graph.nodes if n.op == "sin" and n.inputs}
    cosines = {n.inputs[0] for n in graph.nodes if n.op == "cos" and n.inputs}
    return sines & cosines


def _all_readers(graph: Graph, ends: Callable[[Node], bool]) -> set[Node]:
    """Values that end in some readers and nowhere else, through operations that keep what they are."""
    out: set[Node] = set()
    for n in reversed(graph.nodes):
        readers = graph.users.get(n, ())
        if readers and n not in graph.escaping and all(ends(r) or (r in out and _keeps(r)) for r in readers):
            out.add(n)
    return out


def _keeps(node: Node) -> bool:
    """Whether an operation works value by value, or only moves them."""
    op = TABLE.get(node.op)
    return node.op in ("index", "phi") or (op is not None and op.kind in ONE_BY_ONE)


def _is_total(reader: Node) -> bool:
    """A sum or mean of everything: a loss, or a figure for people."""
    return reader.op in ("sum", "mean") and reader.attrs.get("axis") is None


def _makes_points(graph: Graph, reader: Node) -> bool:
    """A stack of two to four values along a new last axis that stays: points, boxes. A reshape merges rotated pairs."""
    if reader.op != "stack" or reader.attrs.get("axis") != -1 or not 2 <= len(reader.inputs) <= SHORT:
        return False
    return not any(u.op in ("reshape", "flatten") for u in graph.users.get(reader, ()))


def _identities(graph: Graph) -> set[Node]:
    """Values that are compared for equality with something, or that indices are made of."""
    out = {k for n in graph.nodes if n.op in ("equal", "not_equal") for k in n.inputs if k.op not in ("const", "attr")}
    out.update(n for n in graph.nodes if n.op in ("floor_divide", "remainder"))
    indices: set[Node] = set()
    for n in reversed(graph.nodes):
        if any(_makes_an_index(r, n, indices) for r in graph.users.get(n, ())):
            indices.add(n)
    return out | indices


def _makes_an_index(reader: Node, node: Node, indices: set[Node]) -> bool:
    """Whether `reader` takes `node` as an index, compares it with positions, or makes an index of it."""
    if reader.op in ("take", "take_along_axis", "index") and node not in reader.inputs[:1]:
        return True
    if reader.op in ("less", "less_equal", "greater", "greater_equal"):
        return any(_is_a_range(k) for k in reader.inputs if k is not node)
    return reader in indices and _keeps(reader)


def _is_a_range(node: Node) -> bool:
    while node.op == "index" or (node.op in TABLE and TABLE[node.op].kind == "view" and node.inputs):
        node = node.inputs[0]
    return node.op == "arange"


def _is_self(graph: Graph, node: Node) -> bool:
    """Whether an attribute hangs off self, directly or through other attributes."""
    at = node
    while at.op == "attr" and at.inputs:
        at = at.inputs[0]
    return at.op == "param" and at is next(iter(graph.params.values()), None) and graph.context.class_name is not None
