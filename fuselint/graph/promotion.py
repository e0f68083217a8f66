"""Where a float32 array comes from that nobody computed from activations: a constant, a table, a weight cast up.

The walk goes back from a value through the operations that made it, into `__init__` for attributes, into followed calls
for what they return, and back out to the caller for a parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fuselint.graph.across import bind, call_arguments
from fuselint.graph.dtypes import HALF, DType
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

FLOATS = frozenset(
    """nn.Linear nn.RMSNorm nn.LayerNorm nn.RoPE nn.Conv1d nn.Conv2d fast.rms_norm fast.layer_norm fast.rope
    fast.scaled_dot_product_attention""".split()
)
"""Operations whose result is no constant, and never of integers."""

FLOATS_OF_FLOATS = frozenset(
    """abs add subtract multiply divide power maximum minimum negative exp log sqrt rsqrt square sigmoid tanh sin cos
    erf where clip mean sum max min softmax logsumexp cumsum take matmul einsum gather_mm gather_qmm quantized_matmul
    reshape flatten unflatten squeeze expand_dims transpose matrix_transpose swapaxes moveaxis broadcast_to split
    concatenate stack repeat tile pad""".split()
) | {name for name, op in TABLE.items() if op.kind == "activation"}
"""Operations whose result is no integer where one of the operands that promote it is none."""

NO_ARRAYS = frozenset("const dict function global shape dim ndim size dtype compare not star new".split())
"""What is no array, or none of which it is known who makes it."""

MOST_WRITTEN = 100
"""Values that are looked at as they are written, before anything is asked of facts."""

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
    if node.op in NO_ARRAYS or (node.op in TABLE and TABLE[node.op].kind not in KEEPS and node.op not in MADE):
        return False
    if node.op == "attr" and not isinstance(node.attrs.get("init"), Node):
        return False
    program = facts.graph.program
    return program is None or _written(facts, program.elsewhere).may(node)


@dataclass(frozen=True, eq=False)
class _At:
    """A function in which values are looked at. given: what its call gives its parameters; None of the first one."""

    graph: Graph
    given: Mapping[str, tuple[_At, Node]] | None = None


def _written(facts: KnownFacts, elsewhere: Elsewhere) -> _Written:
    """What is known of the values of a function, for as long as its facts: a chain asks the same of all its steps."""
    if facts.written is None:
        facts.written = _Written(facts, elsewhere)
    found: _Written = facts.written
    return found


class _Written:
    """Whether a walk back may go on to a source, or to a constant, as far as this can be told without facts."""

    def __init__(self, facts: KnownFacts, elsewhere: Elsewhere) -> None:
        self.facts, self.elsewhere = facts, elsewhere
        self.here = _At(facts.graph)
        self.left = 0
        self.known: dict[tuple[_At, Node], bool] = {}

    def may(self, node: Node) -> bool:
        """Of a value of the function that the facts are of."""
        self.left = MOST_WRITTEN
        return self.may_go_on(self.here, node)

    def may_go_on(self, at: _At, node: Node) -> bool:
        key = at, node
        if key not in self.known:
            self.left -= 1
            self.known[key] = True  # while it is looked at
            self.known[key] = self.left <= 0 or self._may_go_on(at, node)
        return self.known[key]

    def _may_go_on(self, at: _At, node: Node) -> bool:
        if node.op in FLOATS_OF_FLOATS or node.op == "phi":
            return all(self.may_go_on(at, n) for n in (node.inputs[1:] if node.op == "where" else node.inputs))
        if node.op in ("item", "index") or (node.op == "astype" and node.attrs.get("dtype") in (*HALF, "float32")):
            return self.may_go_on(at, node.inputs[0])
        if node.op == "param" and at.given is None:
            fact = self.facts.of(node)
            return node in self.facts.arguments or fact.kind in CONSTANT or fact.dtype.integral
        if node.op == "param" and at.given is not None and node.attrs["name"] in at.given:
            return self.may_go_on(*at.given[node.attrs["name"]])
        return self._may_return(at, node) if node.op == "call" else node.op not in FLOATS

    def _may_return(self, at: _At, call: Node) -> bool:
        """Whether a call may give back a source or a constant."""
        entered, arguments = self.elsewhere.entered(at.graph, call), call_arguments(call)
        if entered is None or arguments is None:
            return entered is None
        for graph in entered:
            summary = self.elsewhere.function(Definition(self.elsewhere.path_of(graph), graph.context.qualname))
            parameters = () if summary is None else summary.parameters[summary.kind == "method" :]
            bound = bind(parameters, *arguments) or {}
            there = _At(graph, {name: (at, n) for name, n in bound.items()})
            if any(self.may_go_on(there, value) for _, value in graph.returns):
                return True
        return False


CONSTANT = frozenset({"scalar", "none", "dtype", "str"})
"""Kinds of values that no activation goes into."""


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
        if fact.kind in CONSTANT or fact.dtype.integral:
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
