"""The syntax tree of a function with the way up: what stands around an expression."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from fuselint.source.function import FunctionSource, children, walk

SCOPES = (cst.Lambda, cst.FunctionDef, cst.ClassDef, cst.BaseComp)
CONDITIONAL = (cst.IfExp, cst.BooleanOperation, *SCOPES)
"""Expressions whose parts are not always evaluated, or not once."""


@lru_cache(maxsize=4)  # many fixes of one function are placed in a row
def parents(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode]:
    """Around each node inside another, what it stands in."""
    out: dict[cst.CSTNode, cst.CSTNode] = {}
    stack = [root]
    while stack:
        n = stack.pop()
        for c in children(n):
            out[c] = n
            stack.append(c)
    return out


class Tree:
    """The syntax tree of a function, with the way up."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source
        self.parents = parents(source.node)

    def up(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        at = self.parents.get(node)
        while at is not None:
            yield at
            at = self.parents.get(at)

    def between(self, inner: cst.CSTNode, outer: cst.CSTNode, kinds: tuple[type, ...]) -> bool:
        """Whether a node of one of the kinds stands between: `outer` counts, `inner` doesn't."""
        if inner is outer:
            return False
        for n in self.up(inner):
            if isinstance(n, kinds):
                return True
            if n is outer:
                return False
        return True

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The small or compound statement of the function itself that holds a node."""
        found = node
        for n in (node, *self.up(node)):
            if isinstance(n, (cst.BaseSmallStatement, cst.BaseCompoundStatement)) and n is not self.source.node:
                return n
            found = n
        return found

    def way(self, node: cst.CSTNode | None) -> tuple[str, ...]:
        """Under which parts of its statement, not always evaluated, an expression stands: `orelse of IfExp`."""
        out = []
        while node is not None:
            parent = self.parents.get(node)
            if isinstance(parent, cst.IfExp) and node is not parent.test:
                out.append("body of IfExp" if node is parent.body else "orelse of IfExp")
            elif isinstance(parent, cst.BooleanOperation) and node is parent.right:
                out.append("right of BooleanOperation")
            elif isinstance(parent, SCOPES):
                out.append(type(parent).__name__)
            node = None if isinstance(parent, (cst.BaseSmallStatement, cst.BaseCompoundStatement)) else parent
        return tuple(out)

    def comprehension_names(self, node: cst.CSTNode) -> set[str]:
        """Names that the comprehensions around an expression bind."""
        out: set[str] = set()
        for n in self.up(node):
            if isinstance(n, cst.BaseComp):
                part: cst.CompFor | None = n.for_in
                while part is not None:
                    out |= {x.value for x in walk(part.target) if isinstance(x, cst.Name)}
                    part = part.inner_for_in
        return out
