"""What must hold of every graph. Tests call it on each graph that they make."""

from __future__ import annotations

from fuselint.graph.model import Graph, Node, operands
from fuselint.graph.ops import TABLE
from fuselint.graph.state import DETACHED

STRUCTURAL = frozenset(
    "param const global attr shape dim dtype ndim size tuple list dict star item index index_update phi compare "
    "not and or loop call new function opaque".split()
)
ARITY = {"phi": 2, "compare": 2, "attr": 1, "shape": 1, "dim": 1, "dtype": 1, "ndim": 1, "size": 1, "not": 1, "star": 1}
NEEDED = {
    "param": ("name", "default", "annotation", "star"), "const": ("value",), "global": ("name", "target"),
    "attr": ("name", "path", "init"), "dim": ("axis",), "item": ("index",), "index": ("index",), "phi": ("test",),
    "compare": ("op",), "loop": ("name",), "call": ("target", "callee", "keywords"), "new": ("target", "args"),
    "function": ("qualname",), "opaque": ("reason",), "dict": ("keys",),
}  # fmt: skip


def check_graph(graph: Graph) -> None:
    """Raises AssertionError, saying which node or binding is wrong."""
    here = set(graph.nodes)
    for i, n in enumerate(graph.nodes):
        _check_node(graph, here, i, n)
    for stmt, value in graph.returns:
        assert value in here, f"returned value {value} is not in the graph"
        assert stmt in graph.statements, f"the return of {value} is no statement"
    for i, stmt in enumerate(graph.statements):
        assert stmt.index == i, f"statement {i} has index {stmt.index}"
        assert i < stmt.end <= len(graph.statements), f"statement {i} ends at {stmt.end}"
    for name, bindings in graph.bindings.items():
        last = -1
        for b in bindings:
            assert b.name == name
            assert b.node in here, f"{name} is bound to {b.node}, which is not in the graph"
            assert b.index >= last, f"bindings of {name} are out of order"
            last = b.index
    for e in graph.effects:
        assert e.stmt in graph.statements, f"effect {e.kind} has no statement"
        assert all(t in here for t in e.targets), f"effect {e.kind} on nodes outside the graph"
        assert e.value is None or e.value in here
    for name, value in graph.stored.items():
        assert value in here, f"self.{name} holds {value}, which is not in the graph"
    for value in graph.values.values():
        parts = value.inputs if value.id == DETACHED else (value,)  # a tuple that was taken apart at once
        assert all(p in here or p.id == DETACHED for p in parts), f"{value} is the value of code, but not in the graph"
    assert all(v in here for v in graph.params.values())


def _check_node(graph: Graph, here: set[Node], i: int, n: Node) -> None:
    assert n.id == i, f"node {n} stands at {i}"
    assert n.op in STRUCTURAL or n.op in TABLE, f"{n.op} is no operation"
    for k in operands(n):
        assert k in here, f"{n} reads {k}, which is not in the graph"
        assert k.id < i or n.op == "loop", f"{n} reads {k}, which comes later"
    if n.op in ARITY:
        assert len(n.inputs) == ARITY[n.op], f"{n} has {len(n.inputs)} inputs"
    for key in NEEDED.get(n.op, ()):
        assert key in n.attrs, f"{n} lacks {key}"
    if n.op == "phi":
        assert isinstance(n.attrs["test"], Node)
    if n.op == "const":
        assert not isinstance(n.attrs["value"], Node)
    assert n.frame in graph.frames, f"{n} is of no frame of the graph"
