"""Arrays that get longer at every step: by what is appended to them in a loop, or from call to call."""

from __future__ import annotations

from itertools import islice

import libcst as cst

from fuselint.graph.model import Effect, Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.source.modules import Definition

KEEPS_SIZES = frozenset({"unary", "binary", "ternary", "composite", "activation", "cast", "view", "copy", "matmul"})
"""Operations whose result has the axes of their operands."""


def grows(graph: Graph, value: Node) -> Node | None:
    """The concatenation that makes a value longer at every round of a loop or at every call, if one is known."""
    stack, seen = [value], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "concatenate" and (_is_carried(n) or stored_back(graph, n)):
            return n
        op = TABLE.get(n.op)
        if n.op in ("phi", "loop", "concatenate", "tuple", "list") or (op is not None and op.kind in KEEPS_SIZES):
            stack.extend(n.inputs)
    return None


def _is_carried(node: Node) -> bool:
    """Whether a loop appends to what it carries along."""
    loops = {b for n in node.inputs for b in branches(n) if b.op == "loop"}
    return any(node in branches(loop.inputs[-1]) for loop in loops)


def stored_back(graph: Graph, node: Node) -> bool:
    """Whether the longer array replaces the attribute that it was made from."""
    old = node.inputs[0]
    path = old.attrs.get("path") if old.op == "attr" else None
    stores = [e for e in graph.effects if path and e.kind == "store" and e.path == path and e.value is not None]
    after = [e for e in stores if e.at > node.id or e.value is node]
    return any(node in branches(e.value) for e in after if e.value is not None) and not any(
        node not in branches(e.value) and e.value.inputs for e in after if e.value is not None
    )


def branches(node: Node) -> set[Node]:
    """The values that a join may be, also behind a cast."""
    out: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n not in out:
            out.add(n)
            stack.extend(n.inputs if n.op == "phi" else n.inputs[:1] if n.op == "astype" else ())
    return out


MOST = 12
"""Places that make objects of a class, at most."""


def is_one_of_many(graph: Graph) -> bool:
    """Whether every object of a method's class that the package makes is one element of a longer list,
    `caches[-1] = Cache()`: the cache of one layer, beside those of the others."""
    if graph.program is None or graph.context.class_name is None:
        return False
    elsewhere = graph.program.elsewhere
    owner = Definition(elsewhere.path_of(graph), graph.context.class_name)
    made = [(caller, call) for caller, call in islice(elsewhere.uses(owner), MOST) if not elsewhere.is_test(caller)]
    if not made or len(made) != elsewhere.calls_written(owner):
        return False
    return all(any(_sets_one(e, call) for e in caller.effects) for caller, call in made)


def _sets_one(effect: Effect, value: Node) -> bool:
    """Whether a statement puts a value at one place of a list, by its number."""
    statement = effect.stmt.cst
    if effect.value is not value or not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    at = statement.targets[0].target
    index = at.slice[0].slice if isinstance(at, cst.Subscript) and len(at.slice) == 1 else None
    number = index.value if isinstance(index, cst.Index) else None
    if isinstance(number, cst.UnaryOperation) and isinstance(number.operator, cst.Minus):
        number = number.expression
    return isinstance(number, cst.Integer)
