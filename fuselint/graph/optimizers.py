"""What MLX gives the methods of an optimizer: `apply_single(gradient, parameter, state)` gets arrays of one shape.

`Optimizer.apply_gradients` maps it over the trees of gradients, parameters and states. An entry of a state has the
shape that `init_single` gives it where each step keeps that. The step and the learning rate are single numbers, as
arrays: the class of MLX makes an array of a number that is assigned to `learning_rate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.fact import UNKNOWN, Fact
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.state import ASSIGNED
from fuselint.source.modules import Definition

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

MODULE = "mlx.optimizers."

APPLY, INIT = "apply_single", "init_single"

NUMBERS = {"step": DType({"uint64"}), "learning_rate": dtypes.UNKNOWN}
"""What every optimizer keeps, by the name of the attribute and of the entry of its state, with the dtype."""

DRIVING = ("apply_gradients", "init", "state", "step", "learning_rate")
"""Methods and properties of MLX's class that say what is stated here."""

ROUNDS = 8
"""How often entries are looked at anew, because one of them turned out to change."""


class Optimizer:
    """A class that derives from one of MLX's optimizers, as the facts of one of its methods see it."""

    def __init__(self, facts: KnownFacts, elsewhere: Elsewhere, found: Definition) -> None:
        self.facts, self.elsewhere, self.found = facts, elsewhere, found
        self.method = facts.graph.context.qualname.rpartition(".")[2]
        self._entries: dict[Node, Fact] | None = None

    def argument(self, node: Node) -> Fact | None:
        """An array that a method gets which MLX calls for each weight by itself."""
        arrays, _ = arguments(self.facts.graph, self.method)
        if node not in arrays:
            return None
        if node is arrays[-1]:
            return Fact("array", why="a parameter that is optimized", present=True)
        shape = self.facts.shape(arrays[-1])
        return Fact("array", shape, why="a gradient, of the shape of its parameter", present=True)

    def attribute(self, node: Node) -> Fact | None:
        """`self.step` and `self.learning_rate`."""
        return self._number(node.attrs.get("name")) if self._is_own(node) else None

    def item(self, node: Node) -> Fact | None:
        """`self.state["step"]`, or an entry of the state of one parameter."""
        base, index = node.inputs[0], node.attrs.get("index")
        if base.op == "attr":
            return self._number(index) if base.attrs.get("name") == "state" and self._is_own(base) else None
        if self.method != APPLY or not isinstance(index, str):
            return None
        if self._entries is None:
            self._entries = self._kept()
        return self._entries.get(node)

    def _is_own(self, node: Node) -> bool:
        base = node.inputs[0] if node.inputs else None
        return base is not None and base.op == "param" and base.attrs.get("name") == "self"

    def _number(self, name: object) -> Fact | None:
        if not isinstance(name, str) or name not in NUMBERS:
            return None
        return Fact("array", SCALAR, NUMBERS[name], why=f"the optimizer's {name}, one number", present=True)

    def _kept(self) -> dict[Node, Fact]:
        """The entries of a state that are read, each of the shape that every step leaves."""
        graph = self.facts.graph
        made = self._made()
        read = {n: str(n.attrs["index"]) for n in _read(graph) if n.attrs["index"] in made}
        stored = list(_stored(graph, APPLY))
        for _ in range(ROUNDS if read and _is_plain(graph, APPLY) else 0):
            why = "an entry of the optimizer's state, of the shape that init_single gives it"
            known = {n: Fact("array", made[k], why=why, present=True) for n, k in read.items()}
            inner = self.facts.where({n: known.get(n, UNKNOWN) for n in _read(graph)})
            lost = {k for k, value in stored if k in made and not _is(inner.of(value), made[k])}
            if not lost:
                return known
            made = {k: shape for k, shape in made.items() if k not in lost}
            read = {n: k for n, k in read.items() if k in made}
        return {}

    def _made(self) -> dict[str, Shape]:
        """What `init_single` stores, where that is as large as the parameter, or one number."""
        method = self.elsewhere.method(self.found, INIT)
        graph = None if method is None else self.elsewhere.graph(method)
        if graph is None or not _is_plain(graph, INIT):
            return {}
        arrays, _ = arguments(graph, INIT)
        mine = self.facts.shape(arguments(self.facts.graph, APPLY)[0][-1])
        whole = graph.facts.shape(arrays[-1])
        out: dict[str, Shape | None] = {}
        for key, value in _stored(graph, INIT):
            fact = graph.facts.of(value)
            known = fact.kind == "array" and fact.shape in (SCALAR, whole)
            shape = None if not known else SCALAR if fact.shape == SCALAR else mine
            out[key] = shape if out.get(key, shape) == shape else None
        return {key: shape for key, shape in out.items() if shape is not None}


def optimizer(facts: KnownFacts, elsewhere: Elsewhere | None) -> Optimizer | None:
    """The optimizer whose method a function is."""
    name = facts.graph.context.class_name
    if elsewhere is None or name is None:
        return None
    found = Definition(elsewhere.path_of(facts.graph), name)
    held = [c for at in elsewhere.lineage(found)[0] if (c := elsewhere.class_(at)) is not None]
    if not any(base.startswith(MODULE) for c in held for base in c.bases):
        return None
    return None if any(name in c.methods for c in held for name in DRIVING) else Optimizer(facts, elsewhere, found)


def arguments(graph: Graph, method: str) -> tuple[list[Node], Node | None]:
    """The arrays that a method gets, the parameter last, and the state."""
    given = list(graph.params.values())[1:]
    count = {APPLY: 2, INIT: 1}.get(method, 0)
    return (given[:count], given[count]) if count and len(given) == count + 1 else ([], None)


def _is(fact: Fact, shape: Shape) -> bool:
    return fact.kind == "array" and fact.shape == shape


def _states(graph: Graph, method: str) -> dict[Node, None]:
    """The state, and what it is after each entry that is assigned, in one branch or in all."""
    state = arguments(graph, method)[1]
    found: dict[Node, None] = {} if state is None else {state: None}
    for n in graph.nodes if found else ():
        if _is_assignment(n, found) or (n.op == "phi" and all(k in found for k in n.inputs)):
            found[n] = None
    return found


def _is_assignment(node: Node, states: Mapping[Node, None]) -> bool:
    assigned = node.op == "opaque" and node.attrs.get("reason") == ASSIGNED and "index" in node.attrs
    return assigned and node.inputs[0] in states and node.inputs[1] not in states


def _stored(graph: Graph, method: str) -> Iterator[tuple[str, Node]]:
    """The keys of the entries that are assigned, and the values."""
    states = _states(graph, method)
    yield from ((n.attrs["index"], n.inputs[1]) for n in states if _is_assignment(n, states))


def _read(graph: Graph) -> list[Node]:
    """The entries that are read."""
    users = (u for s in _states(graph, APPLY) for u in graph.users.get(s, ()))
    return [u for u in users if u.op == "item" and isinstance(u.attrs.get("index"), str)]


def _is_plain(graph: Graph, method: str) -> bool:
    """Whether nothing but what is seen here changes a state: it is handed to nobody."""
    states = _states(graph, method)
    users = [u for s in states for u in graph.users.get(s, ())]
    returned = any(n in states for _, n in graph.returns)
    return bool(states) and not returned and all(u in states or u.op in ("item", "compare") for u in users)
