"""Where a float32 array comes from that nobody computed from activations: a constant, a table, a weight cast up.

The walk goes back from a value through the operations that made it, into `__init__` for attributes, into followed calls
for what they return, and back out to the caller for a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fuselint.graph.dtypes import DType
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.source.modules import Definition

if TYPE_CHECKING:
    from fuselint.graph.elsewhere import Elsewhere

FLOAT32 = DType({"float32"})

MADE = frozenset({"array", "zeros", "ones", "full", "eye", "identity", "tri", "linspace", "arange"})
"""Operations that make an array of numbers."""

KEEPS = frozenset("unary binary ternary composite activation reduce rowwise scan view copy matmul gather cast".split())
"""Kinds of operations whose result is a constant where their operands are."""

FLOATS = frozenset({"nn.Linear", "nn.RMSNorm", "nn.LayerNorm", "fast.rms_norm", "fast.layer_norm"}) | {
    "fast.rope",
    "fast.scaled_dot_product_attention",
    "nn.RoPE",
    "nn.Conv1d",
    "nn.Conv2d",
}
"""Operations whose result is no constant, and never of integers."""

NO_ARRAYS = frozenset("const dict function global shape dim ndim size dtype compare not star new".split())
"""What is no array, or none of which it is known who makes it."""

FARTHEST_WRITTEN = 8
"""Operations that are looked at one behind the other before anything is asked of facts."""

FARTHEST = 100
"""Values that a walk looks at."""

How = Literal["default", "stated"]


@dataclass(frozen=True, eq=False)
class Source:
    """The value that is float32 first. how: by default, since nobody said a dtype, or because the code says so."""

    facts: KnownFacts
    node: Node
    how: How


Found = Source | bool
"""A source; True: a constant that is not float32 by itself; False: something of an activation, or not known."""


def source(facts: KnownFacts, node: Node) -> Source | None:
    """What makes a value float32 that doesn't depend on activations; None where it does, or that isn't known."""
    if facts.kind(node) != "array" or facts.dtype(node) != FLOAT32:
        return None
    found = _Walk().back(facts, node)
    return found if isinstance(found, Source) else None


def may_have_source(facts: KnownFacts, node: Node) -> bool:
    """Whether `source` may find one, by what is written alone: no layer ends the walk back."""
    graph = facts.graph
    if node.op in NO_ARRAYS:
        return False
    if node.op == "param":
        return node in facts.arguments
    if node.op == "attr":
        return isinstance(node.attrs.get("init"), Node)
    if graph.program is None:
        return True
    if node.op in TABLE and TABLE[node.op].kind not in KEEPS:
        return node.op in MADE
    return _may_go_on(graph, node, graph.program.elsewhere, FARTHEST_WRITTEN)


def _may_go_on(graph: Graph, node: Node, elsewhere: Elsewhere, left: int) -> bool:
    op = TABLE.get(node.op)
    if not left or node.op in MADE:
        return True
    if op is not None and op.kind in KEEPS:
        operands = node.inputs[1:] if node.op == "where" else node.inputs
        return all(_may_go_on(graph, n, elsewhere, left - 1) for n in operands)
    if node.op in ("item", "index"):
        return _may_go_on(graph, node.inputs[0], elsewhere, left - 1)
    if node.op == "call":
        entered = elsewhere.entered(graph, node)
        return entered is None or any(
            _may_go_on(g, value, elsewhere, left - 1) for g in entered for _, value in g.returns
        )
    return node.op not in FLOATS


class _Walk:
    def __init__(self) -> None:
        self.left = FARTHEST
        self.known: dict[Node, Found] = {}

    def back(self, facts: KnownFacts, node: Node) -> Found:
        if node not in self.known:
            self.left -= 1
            self.known[node] = False  # while it is looked at: a circle is not understood
            self.known[node] = self.left > 0 and self._back(facts, node)
        return self.known[node]

    def _back(self, facts: KnownFacts, node: Node) -> Found:
        fact = facts.of(node)
        if fact.kind in ("scalar", "none", "dtype", "str") or fact.dtype.integral:
            return True
        op = TABLE.get(node.op)
        if op is not None:
            if node.op in MADE:
                return self._made(facts, node)
            if op.kind not in KEEPS:
                return False
            return self._all(facts, node, list(node.inputs[1:] if node.op == "where" else node.inputs))
        if node.op in ("index", "phi", "item", "list", "tuple"):
            called = node.inputs[0] if node.op == "item" else None
            if called is not None and called.op == "call":
                return self._returned(facts, called, node.attrs.get("index"))
            return self._all(facts, node, list(node.inputs[:1] if node.op in ("index", "item") else node.inputs))
        if node.op == "call":
            return self._returned(facts, node, None)
        if node.op == "attr":
            init = node.attrs.get("init")
            if fact.dtype == FLOAT32 and _is_set_anew(facts, node):
                return False
            if isinstance(init, Node) and fact.dtype == FLOAT32:
                return self.back(facts, init)
            return facts.hangs_off_self(node)
        if node.op == "param" and node in facts.arguments:
            return self.back(*facts.arguments[node])
        return False

    def _made(self, facts: KnownFacts, node: Node) -> Found:
        stated = node.attrs.get("dtype")
        if stated not in (None, "float32"):
            return True
        if node.op == "array" and node.inputs and not _is_literal(facts, node.inputs[0]):
            return False
        return Source(facts, node, "default" if stated is None else "stated")

    def _all(self, facts: KnownFacts, node: Node, operands: list[Node]) -> Found:
        found = [self.back(facts, n) for n in operands]
        if not all(found):
            return False
        first = next((f for f in found if isinstance(f, Source)), None)
        if first is not None or facts.dtype(node) != FLOAT32:
            return first or True
        # mx.sqrt(2.0), mx.where(keep, 0.0, 1.0), integers divided: float32 of what isn't
        return Source(facts, node, "stated" if node.op == "astype" else "default")

    def _returned(self, facts: KnownFacts, call: Node, index: object) -> Found:
        found = list(self._results(facts, call, index))
        if not found or not all(found):
            return False
        return next((f for f in found if isinstance(f, Source)), True)

    def _results(self, facts: KnownFacts, call: Node, index: object) -> Iterator[Found]:
        for inside in facts.into(call):
            for node in inside.returns:
                part = node
                if node is not None and type(index) is int:
                    several = node.op in ("tuple", "list") and -len(node.inputs) <= index < len(node.inputs)
                    part = node.inputs[index] if several else None
                yield part is not None and self.back(inside.facts, part)


def _is_set_anew(facts: KnownFacts, node: Node) -> bool:
    """Whether something else than a constructor sets an attribute too, or one that a property of that name reads:
    `model.tower._table = table.astype(dtype)`."""
    elsewhere, name = facts.reach.elsewhere, facts.graph.context.class_name
    if elsewhere is None or name is None:
        return False
    path, attribute = elsewhere.path_of(facts.graph), str(node.attrs.get("name"))
    found = elsewhere.graph(Definition(path, f"{name}.{attribute}"))
    inner = found.nodes if found is not None else ()
    attributes = {attribute, *(str(n.attrs.get("name")) for n in inner if n.op == "attr")}
    for at in (path, *elsewhere.modules.users(Definition(path, name))):
        held = elsewhere.modules.mentions(at)
        stores = [s for a in attributes for s in (held.stored.get(a, ()) if held is not None else ())]
        for by, value in stores:
            of_this_class = at == path and by.startswith(f"{name}.")
            if not by.endswith(".__init__") and (value is None or of_this_class):
                return True
    return False


def _is_literal(facts: KnownFacts, node: Node) -> bool:
    listed = node.op in ("list", "tuple") and all(_is_literal(facts, n) for n in node.inputs)
    return facts.kind(node) == "scalar" or listed
