"""Across functions: where an argument goes, who calls whom, what becomes of a result, what a call runs.

A `call` node whose target is a function of the file leads into that function's graph. What isn't understood ends the
walk with a reason: nothing is assumed of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuselint.graph.model import Graph, Node

if TYPE_CHECKING:
    from fuselint.graph.across import Inside
    from fuselint.graph.known import KnownFacts

DEEPEST = 8
"""Calls inside one another that a walk follows."""


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """An operation that a function runs: itself, or in a function that it calls.

    here: the operation's node, or the call that leads to it. there: the operation's node, and the facts that know it.
    """

    here: Node
    facts: KnownFacts
    there: Node


def runs(facts: KnownFacts, op: str) -> Iterator[Run]:
    """Where a function runs an operation, itself or in plain functions of the package that it calls by name."""
    for node in facts.graph.nodes:
        yield from run_at(facts, node, op)


def run_at(facts: KnownFacts, node: Node, op: str) -> list[Run]:
    """What `runs` finds at one node."""
    if node.op == op:
        return [Run(node, facts, node)]
    if node.op != "call" or not node.attrs.get("target") or "path" in node.attrs:
        return []
    program = facts.graph.program
    if program is not None and op not in (facts.reach.elsewhere or program.elsewhere).ops_of(facts.graph, node):
        return []
    return [Run(node, run.facts, run.there) for inside in facts.into(node) for run in _inside(inside, op)]


def _inside(inside: Inside, op: str) -> Iterator[Run]:
    graph = inside.graph
    if graph.context.class_name is not None or not (op in graph.ops or "call" in graph.ops):
        return
    for run in runs(inside.facts, op):
        if inside.reached(run.here.top_stmt) is not False:
            yield run


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """A node that reads a value, in the graph it stands in."""

    graph: Graph
    node: Node
    value: Node


def arguments(graph: Graph, call: Node) -> dict[str, Node] | None:
    """The arguments of a `call` of a function of this file, by parameter name (`self` excluded); None if unknown."""
    summary = graph.module.functions.get(call.attrs.get("target") or "")
    if call.op != "call" or summary is None or call.attrs.get("starred"):
        return None
    keywords = call.attrs.get("keywords", ())
    names = [p.name for p in summary.parameters if p.kind == "plain"]
    if summary.kind == "method":
        names = names[1:]
    positional = len(call.inputs) - len(keywords)
    if positional > len(names):
        return None
    return {**dict(zip(names, call.inputs, strict=False)), **dict(zip(keywords, call.inputs[positional:], strict=True))}


def callee(graph: Graph, call: Node) -> Graph | None:
    """The graph of the function of this file that a `call` enters."""
    target = call.attrs.get("target")
    if graph.program is None or not isinstance(target, str) or target not in graph.module.functions:
        return None
    return graph.program.graph(target)


def callers(graph: Graph) -> Iterator[tuple[Graph, Node]]:
    """The `call` nodes of this file that enter the graph's function."""
    if graph.program is None:
        return
    for qualname in graph.module.functions:
        other = graph.program.graph(qualname)
        if other is None:
            continue
        for node in other.nodes:
            if node.op == "call" and node.attrs.get("target") == graph.context.qualname:
                yield other, node


def is_none(node: Node) -> bool:
    return node.op == "const" and node.attrs.get("value") is None and "kind" not in node.attrs


def is_none_test(node: Node) -> bool:
    """`x is None` or `x is not None`."""
    return node.op == "compare" and node.attrs.get("op") in ("is", "is not") and any(is_none(i) for i in node.inputs)


def readers(
    graph: Graph, value: Node, enough: Callable[[Reader], bool], depth: int = 0, seen: set[Node] | None = None
) -> Iterator[Reader | str]:
    """Who reads a value, through joins with None and through calls of this file's functions.

    `enough(reader)` says whether a reader is one that the caller understands: it is yielded. A call of a function of
    this file is followed into it. Any other reader is yielded as a reason (str).
    """
    seen = set() if seen is None else seen
    if value in seen:
        return
    seen.add(value)
    if value in graph.escaping:
        yield f"it leaves {graph.context.qualname}"
    for user in graph.users.get(value, ()):
        reader = Reader(graph, user, value)
        if enough(reader):
            yield reader
        elif is_none_test(user) or user.op in ("not", "and", "or"):
            continue
        elif user.op == "phi" and value in user.inputs:
            other = user.inputs[1] if user.inputs[0] is value else user.inputs[0]
            if is_none(other) or other in seen:
                yield from readers(graph, user, enough, depth, seen)
            else:
                yield f"it is joined with another value in {graph.context.qualname}"
        elif user.op == "phi":
            continue  # only its test reads the value
        elif user.op == "call":
            yield from _into(graph, user, value, enough, depth, seen)
        else:
            yield f"`{user.op}` reads it in {graph.context.qualname}"


def _into(
    graph: Graph, call: Node, value: Node, enough: Callable[[Reader], bool], depth: int, seen: set[Node]
) -> Iterator[Reader | str]:
    inner, given = callee(graph, call), arguments(graph, call)
    name = call.attrs.get("target") or "a function that is not known"
    if inner is None or given is None or depth >= DEEPEST or inner.not_understood:
        yield f"it is given to {name}"
        return
    for parameter, argument in given.items():
        if argument is not value:
            continue
        held = inner.params.get(parameter)
        if held is None:
            yield f"it is given to {name}"
        else:
            yield from readers(inner, held, enough, depth + 1, seen)
