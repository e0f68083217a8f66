"""Where and how the function of a graph is given to mx.compile."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fuselint.graph.flow import callee
from fuselint.graph.model import Graph, Node
from fuselint.graph.state import DETACHED
from fuselint.source.project import Compilation


def compilations(graph: Graph, qualname: str = "") -> list[Compilation]:
    """Every place of the file that compiles the graph's function, or another one, by mx.compile itself."""
    wanted = qualname or graph.context.qualname
    return [c for c in graph.module.compilations if c.target == wanted and c.direct]


def decorator(graph: Graph, compilation: Compilation) -> Node | None:
    """A value that stands for the decorator: it has a place in the source, but none in the data flow."""
    definition = graph.source.node
    if not isinstance(definition, cst.FunctionDef):
        return None
    position = graph.source.file.position
    for d in definition.decorators:
        if position(graph.source.span(d.decorator)[0])[0] == compilation.line:
            return Node(DETACHED, "opaque", (), {"reason": "a decorator"}, d.decorator, None, graph.frames[0])
    return None


def reached(graph: Graph, seen: set[str] | None = None) -> Iterator[tuple[Node, Node, Graph]]:
    """The nodes that run when the function runs, those of other functions of the file too that it calls, each as
    (node of this graph that leads there, node, the node's graph). Functions that are compiled themselves are left out.
    """
    seen = {graph.context.qualname} if seen is None else seen
    for node in graph.nodes:
        yield node, node, graph
        inner = callee(graph, node) if node.op == "call" else None
        if inner is None or inner.context.qualname in seen or inner.not_understood:
            continue
        if compilations(inner):
            continue
        seen.add(inner.context.qualname)
        for _, found, where in reached(inner, seen):
            yield node, found, where
