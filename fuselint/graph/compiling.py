"""Where and how the function of a graph is given to mx.compile."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fuselint.finding import Obligation
from fuselint.graph.flow import callee
from fuselint.graph.model import Block, Graph, Node
from fuselint.graph.state import DETACHED
from fuselint.source.project import Compilation


def compilations(graph: Graph, qualname: str = "") -> list[Compilation]:
    """Every place of the file that compiles the graph's function, or another one, by mx.compile itself."""
    wanted = qualname or graph.context.qualname
    return [c for c in graph.module.compilations if c.target == wanted and c.direct]


UNCOMPILED = "it runs uncompiled too"


def both_ways(graph: Graph) -> list[Obligation]:
    """What to add to a claim about code that is not compiled, where that holds for some of the function's calls."""
    also = graph.context.partly
    return [Obligation(UNCOMPILED, "proven", also)] if also else []


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


def made_here(graph: Graph) -> Iterator[Node]:
    """Values that are freshly compiled functions: `mx.compile(f)`, or an inner function under the decorator."""
    inner = {
        c.target
        for c in graph.module.compilations
        if c.how == "decorator" and c.direct and c.by == graph.context.qualname
    }
    for node in graph.nodes:
        if node.frame.depth:
            continue
        compiles = node.op == "call" and node.attrs.get("target") == "mlx.core.compile"
        if compiles or (node.op == "function" and node.attrs["qualname"] in inner):
            yield node


def calls_of(graph: Graph, made: Node) -> list[Node]:
    """The calls of a compiled function, if there is no other use of it; else nothing."""
    held, calls, waiting = {made}, [], [made]
    while waiting:
        value = waiting.pop()
        if value in graph.escaping or _is_captured(graph, value):
            return []
        for user in graph.users.get(value, ()):
            if user.op == "phi" and value in user.inputs:
                if user not in held:
                    held.add(user)
                    waiting.append(user)
            elif user.op == "call" and user.attrs.get("callee") is value and value not in user.inputs:
                calls.append(user)
            elif user.op != "phi":
                return []
    if made.op == "function":
        calls += [n for n in graph.nodes if n.op == "call" and n.attrs.get("target") == made.attrs["qualname"]]
    return calls


def _is_captured(graph: Graph, value: Node) -> bool:
    """Whether an inner function reads a name that holds the value."""
    if value.op == "function":  # the text of its own definition holds its name too
        name, module = value.attrs["qualname"], graph.module
        users = {q for uses in (module.calls, module.references) for q, used in uses.items() if name in used}
        return bool(users - {graph.context.qualname}) or name in module.references.get(graph.context.qualname, ())
    return any(b.node is value for name in graph.captured for b in graph.bindings.get(name, ()))


def loop_between(outer: Block, inner: Block) -> bool:
    """Whether a loop lies around `inner` that isn't around `outer`."""
    at: Block | None = inner
    while at is not None and not at.encloses(outer):
        if at.kind in ("loop", "comprehension"):
            return True
        at = at.parent
    return False
