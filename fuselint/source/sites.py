"""Where a replacement goes: the expressions of the function that compute its roots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from fuselint.graph.model import Graph, Node, Statement
from fuselint.rulebook import Part
from fuselint.source.confirm import is_fresh
from fuselint.source.hoist import Refused
from fuselint.source.tree import Tree


@dataclass
class Site:
    """Where a part goes. element: the position of its root in a tuple that the expression makes, or None.

    text: what stands there now; names: what it reads.
    """

    part: Part
    expr: cst.CSTNode
    stmt: Statement
    element: int | None = None
    template: str = ""
    text: str = ""
    names: frozenset[str] = frozenset()


def find_sites(graph: Graph, tree: Tree, parts: Sequence[Part]) -> list[Site]:
    """Raises Refused where a root has no expression of its own in the function."""
    sites = [_site(graph, p) for p in parts]
    for i, s in enumerate(sites):
        if tree.between(s.expr, tree.source.node.body, (cst.Lambda, cst.FunctionDef, cst.ClassDef)):
            raise Refused("it is computed in a nested function")
        for other in sites[:i]:
            if other.expr is not s.expr and (other.expr in tree.up(s.expr) or s.expr in tree.up(other.expr)):
                raise Refused("its parts lie inside one another")
    return sites


def _site(graph: Graph, part: Part) -> Site:
    root, expr, stmt = part.root, part.root.top_cst, part.root.top_stmt
    if expr is None or stmt is None:
        raise Refused("its value joins several branches, and no expression computes it")
    held = graph.values.get(expr)
    if isinstance(expr, cst.AugAssign):
        if root.frame.depth > 0 or not isinstance(expr.target, cst.Name):
            raise Refused("it is computed by an assignment in place")
        if not is_own(graph, root, stmt):
            raise Refused("it is computed in place, in an array that may have other names")
        return Site(part, expr, stmt)
    if not isinstance(expr, cst.BaseExpression):
        raise Refused("its value joins several branches, and no expression computes it")
    if held is root:
        return Site(part, expr, stmt)
    if held is not None and held.op in ("tuple", "list") and root in held.inputs:
        return Site(part, expr, stmt, held.inputs.index(root))
    if root.frame.depth > 0:
        raise Refused(f"it lies inside `{root.frame.qualname}`, which does more than that")
    raise Refused("the expression that computes it is evaluated in another way")


def is_own(graph: Graph, changed: Node, stmt: Statement) -> bool:
    """Whether `name op= value` changes an array that MLX made here and that only this name holds.

    changed: the value after it. A value that joins branches or goes around a loop may be an array of other names.
    """
    before = changed.inputs[0] if changed.inputs else changed
    return graph.facts.kind(before) == "scalar" or (is_fresh(before) and len(graph.names_of(before, stmt)) <= 1)
