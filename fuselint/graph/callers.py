"""The dtypes that the package gives a function's arguments: what costs count them as, and no proof.

A table made of `mx.cos` is float32 wherever it comes from, though the function that multiplies by it doesn't say so. So the
calls of the function in the package are looked at, in turn with their own callers, and also the places where a helper is
inlined. An argument that all calls of which something is known give one dtype has that dtype.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from fuselint.graph.across import bind, call_arguments
from fuselint.graph.dtypes import DType
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.source.modules import Definition

if TYPE_CHECKING:
    from fuselint.graph.elsewhere import Elsewhere
    from fuselint.graph.known import KnownFacts

DEEPEST = 3
"""Calls above one another that are looked at."""

MOST = 12
"""Calls of one function that are looked at."""

GRAPHS = 40
"""Functions that are searched for them."""

MODEL = "the model's dtype"
"""What stands for the dtype of weights, and of what is computed with them."""

Given = tuple[Node, Node]
"""A value of the function, and the one of its caller that it is."""


def given_dtypes(graph: Graph, facts: KnownFacts, depth: int = 0) -> dict[str, str]:
    """By the symbol of an argument's dtype: the dtype that the package's calls give it, or MODEL."""
    if depth >= DEEPEST or graph.program is None:
        return {}
    found: dict[str, set[str]] = {}
    for caller, pairs in islice(_calls(graph), MOST):
        outer = caller.usual
        known = given_dtypes(caller, outer, depth + 1)
        free = {s for n in caller.nodes if n.op in ("param", "call", "global") for s in outer.dtype(n).symbols}
        for own, argument in pairs:
            for symbol, dtype in _stated(facts, own, outer, argument):
                said = _said(dtype.bound(known), free)
                if said:
                    found.setdefault(symbol, set()).add(said)
    return {symbol: next(iter(said)) for symbol, said in found.items() if len(said) == 1}


def _said(dtype: DType, free: set[str]) -> str | None:
    """A dtype by its name; MODEL for that of a weight, None where nothing is known."""
    if dtype.name is not None:
        return dtype.name
    return MODEL if dtype and not dtype.weak and dtype.symbols - free else None


def _stated(facts: KnownFacts, own: Node, outer: KnownFacts, argument: Node) -> Iterator[tuple[str, DType]]:
    """The symbols of a value, or of the parts of a tuple, with their dtypes at the caller."""
    parts = outer.of(argument).parts
    if parts is not None:
        for item in facts.graph.nodes:
            index = item.attrs.get("index")
            if item.op == "item" and item.inputs[0] is own and isinstance(index, int) and 0 <= index < len(parts):
                yield from _symbol(facts, item, parts[index].dtype)
    elif outer.kind(argument) in ("array", "unknown"):
        yield from _symbol(facts, own, outer.dtype(argument))


def _symbol(facts: KnownFacts, own: Node, dtype: DType) -> Iterator[tuple[str, DType]]:
    mine = facts.dtype(own)
    if len(mine) == 1 and mine.symbols:
        yield next(iter(mine)), dtype


def _calls(graph: Graph) -> Iterator[tuple[Graph, list[Given]]]:
    """The calls of a function in the package, each with what it gives the function."""
    assert graph.program is not None
    elsewhere = graph.program.elsewhere
    found = Definition(elsewhere.path_of(graph), graph.context.qualname)
    summary = elsewhere.function(found)
    if summary is None:
        return
    parameters = summary.parameters[1:] if summary.kind in ("method", "classmethod") else summary.parameters
    for caller in islice(_candidates(elsewhere, found, graph), GRAPHS):
        if caller is graph or elsewhere.is_test(caller):
            continue
        pairs = _inlined(graph, caller)
        if pairs:
            yield caller, pairs
        for node in caller.nodes:
            given = call_arguments(node) if node.op == "call" and _calls_it(elsewhere, caller, node, found, graph) else None
            bound = None if given is None else bind(parameters, *given)
            if bound:
                yield caller, [(graph.params[k], n) for k, n in bound.items() if k in graph.params]


def _inlined(graph: Graph, caller: Graph) -> list[Given]:
    """The operands of a helper's operations where the caller has them inlined."""
    ours = {n.cst: n for n in graph.nodes if n.cst is not None and n.op in TABLE}
    out: list[Given] = []
    for theirs in caller.nodes:
        own = ours.get(theirs.cst) if theirs.frame.qualname == graph.context.qualname else None
        if own is not None and own.op == theirs.op and len(own.inputs) == len(theirs.inputs):
            out += zip(own.inputs, theirs.inputs, strict=True)
    return out


def _calls_it(elsewhere: Elsewhere, caller: Graph, node: Node, found: Definition, graph: Graph) -> bool:
    target, name = node.attrs.get("target"), found.name.rpartition(".")[2]
    if isinstance(target, str) and elsewhere.resolve(caller, target) == found:
        return True
    if graph.context.class_name is None:
        return False
    callee = node.attrs.get("callee")
    called = callee.attrs.get("name") if isinstance(callee, Node) and callee.op == "attr" else None
    if name != "__call__" and called != name:
        return False
    objects = [c.found for c in caller.usual.callees(node) if c.found is not None]
    return any(elsewhere.method(o, name) == found for o in objects)


def _candidates(elsewhere: Elsewhere, found: Definition, graph: Graph) -> Iterator[Graph]:
    """The functions that may call one, by their text: those of its file, and of files that import it or its class."""
    owner = found if graph.context.class_name is None else Definition(found.path, graph.context.class_name)
    name = found.name.rpartition(".")[2]
    for path in [found.path, *elsewhere.modules.users(owner)]:
        program = elsewhere.program(path)
        if program is None:
            continue
        words = _held(elsewhere, path, owner) if name == "__call__" else {name, *_renamed(program.summary.imports, name)}
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, sorted(words)))})\s*\(") if words else None
        for qualname, function in program.summary.functions.items():
            text = program.file.text[function.span.start : function.span.end]
            if pattern is None or not pattern.search(text) or qualname.startswith(f"{found.name}."):
                continue
            caller = elsewhere.graph(Definition(path, qualname))
            if caller is not None:
                yield caller


def _renamed(imports: Mapping[str, str], name: str) -> set[str]:
    return {k for k, target in imports.items() if target.rpartition(".")[2] == name}


def _held(elsewhere: Elsewhere, path: str, owner: Definition) -> set[str]:
    """The attributes of a file's classes that hold objects of a class."""
    summary = elsewhere.modules.summary(path)
    classes = summary.classes.values() if summary is not None else ()
    return {
        name
        for c in classes
        for name, made in c.attributes.items()
        if not made.endswith("[]") and elsewhere.resolved(path, made) == owner
    }
