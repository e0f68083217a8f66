"""Which of a function's branches costs count: one of each `if`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.graph.fact import compute
from fuselint.graph.model import Graph, Node, Statement
from fuselint.graph.ops import TABLE

if TYPE_CHECKING:
    from fuselint.rulebook import Match


def one_way(graph: Graph, match: Match, absent: Collection[Node]) -> set[Node]:
    """The region without what another branch of an `if` computes: of each, the one that computes more stays; where the
    test asks for an argument that the package never gives, the one without it. What is found stays."""
    arms: dict[Statement, dict[str, set[Node]]] = {}
    for node in match.region:
        stmt = node.top_stmt
        at = None if stmt is None else stmt.block
        while at is not None:
            if at.kind in ("then", "else") and at.owner is not None:
                arms.setdefault(at.owner, {}).setdefault(at.kind, set()).add(node)
            at = at.parent
    kept = set(match.region)
    for owner, ways in arms.items():
        never = _never_taken(graph, owner, absent)
        if never in ways and match.root not in ways[never]:
            kept -= ways[never]
        elif len(ways) > 1:
            then, other = (ways[kind] & kept for kind in ("then", "else"))
            kept -= other if len(then) >= len(other) else then
    return kept


def contradicted(graph: Graph, stmt: Statement | None, numbers: Mapping[str, int]) -> frozenset[str]:
    """The names of sizes that can't be these numbers where control comes to a statement: `if n_kv != n:` around it."""
    out: set[str] = set()
    at = None if stmt is None else stmt.block.branch
    while at is not None:
        owner = at.owner.cst if at.owner is not None else None
        test = graph.values.get(owner.test) if isinstance(owner, cst.If) else None
        tests = test.inputs if test is not None and test.op == "and" and at.kind == "then" else (test,)
        for compared in tests:
            op = None if compared is None else TABLE.get(compared.op)
            sizes = [] if compared is None or op is None else [graph.facts.size(n) for n in compared.inputs]
            values = [None if s is None else s.substitute(numbers).value() for s in sizes]
            holds = compute((op.operator if op is not None else None) or "", values)
            if isinstance(holds, bool) and holds is not (at.kind == "then"):
                out.update(name for s in sizes if s is not None for name in s.names)
        at = None if at.parent is None else at.parent.branch
    return frozenset(out)


def _never_taken(graph: Graph, owner: Statement, absent: Collection[Node]) -> str:
    """The branch of `if mask is not None` that an argument which is always None leaves out; "" where that isn't so."""
    test = owner.cst.test if isinstance(owner.cst, cst.If) else None
    asked = test.left if isinstance(test, cst.Comparison) and len(test.comparisons) == 1 else None
    if not absent or not isinstance(test, cst.Comparison) or not isinstance(asked, cst.Name):
        return ""
    compared = test.comparisons[0]
    if not isinstance(compared.comparator, cst.Name) or compared.comparator.value != "None":
        return ""
    if graph.lookup(asked.value, owner) not in absent:
        return ""
    return {cst.IsNot: "then", cst.Is: "else"}.get(type(compared.operator), "")
