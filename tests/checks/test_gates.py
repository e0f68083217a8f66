"""What rules ask first, before anything that costs time, loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import pytest
from mutation.forms import forms

from fuselint.checks.activation import KINDS, SHOWING, _arguments
from fuselint.checks.promoting_operand import _match_call, _may_promote
from fuselint.graph import cuts
from fuselint.graph.chains import chains, may_chain
from fuselint.graph.flow import _inside
from fuselint.graph.model import Graph
from fuselint.graph.norms import ROOT, ROOTING
from fuselint.graph.ops import EXPONENTIALS, may_be_a_number
from fuselint.graph.origins import Origins
from fuselint.graph.program import Program
from fuselint.graph.promotion import may_have_source, source
from fuselint.rulebook import Rule, rules
from fuselint.source.project import summarise
from fuselint.source.screen import parse
from fuselint.source.text import FileText


def graphs(source: str) -> Iterator[Graph]:
    """All functions of a text."""
    file = FileText("m.py", source)
    program = Program(file, summarise(file, parse(file)))
    for qualname in program.summary.functions:
        graph = program.graph(qualname)
        if graph is not None and not graph.not_understood:
            yield graph


def holds(graph: Graph) -> None:
    """What costs little to ask is true wherever what costs much is."""
    assert may_chain(graph) or not list(chains(graph))
    canonical = graph.canonical
    values = {canonical.of(n) for n in graph.nodes}
    if graph.ops.isdisjoint(EXPONENTIALS):
        assert not any(v.op == "softmax" for v in values)
    if graph.ops.isdisjoint(SHOWING):
        assert not any(list(_arguments(v, kind, canonical)) for v in values for kind in KINDS)
    facts = graph.facts
    for node in graph.nodes:
        assert source(facts, node) is None or may_have_source(facts, node), node
        assert may_be_a_number(node) or not isinstance(facts.const(node), (int, float)), node
        if node.op == "call":
            runs = {r.there.op for inside in facts.into(node) for op in inside.graph.ops for r in _inside(inside, op)}
            assert runs <= graph.program.elsewhere.ops_of(graph, node), node
            assert _may_promote(graph, node) or _match_call(graph, Origins(graph), node) is None, node
    if graph.ops.isdisjoint(ROOTING):
        assert not any(e == ROOT and not base.scalar for v in values for base, e in v.factors)


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.code)
def test_of_examples_and_counterexamples(rule: Rule) -> None:
    for example in (*rule.examples, *rule.counterexamples):
        for graph in graphs(example.source):
            holds(graph)


def test_of_all_true_forms() -> None:
    for form in forms():
        for graph in graphs(form.source):
            holds(graph)


CALLS = """
import mlx.core as mx
import mlx.nn as nn


def halves(x):
    return mx.where(x > 0, 0.0, 1.0)


def signs(x):
    return (x > 0) * mx.array(0.5)


def table(n, other=None):
    return mx.arange(n) / 2 if other is None else other


def scaled(x, by):
    return x * by


class Inner(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.linear = nn.Linear(dims, dims)
        self._scale = mx.array(0.5)

    def __call__(self, x, by=None):
        return self.linear(x) if by is None else by * self._scale


class Rows(nn.Module):
    def __call__(self, n, by):
        return by * mx.arange(n) / 2


class Outer(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.inner = Inner(dims)
        self.table = table(dims)
        self.rows = Rows()

    def __call__(self, x, n: int):
        y = self.inner(x)
        y = y + self.inner(x, mx.ones((4,)))
        y = y + signs(self.inner(x)) + halves(y) * self.inner(x)
        y = y * self.rows(n, 2) + self.rows(n, y)
        return scaled(y, table(n)) + scaled(y, self.inner._scale) + table(n, y)
"""


def test_of_constants_that_come_through_calls() -> None:
    found = list(graphs(CALLS))
    for graph in found:
        holds(graph)
    outer = next(g for g in found if g.context.qualname == "Outer.__call__")
    calls = [n for n in outer.nodes if n.op == "call"]
    assert {may_have_source(outer.facts, n) for n in calls} == {True, False}


@pytest.mark.parametrize("shapeless", [False, True], ids=["shapes", "shapeless"])
@pytest.mark.parametrize("dtypes", [("float32",), ("float16", "float32"), ("float32", "int32", "bool_")])
def test_of_compiled_functions(shapeless: bool, dtypes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    few = 0
    for body in BODIES:
        head = "from functools import partial\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"
        decorator = "@partial(mx.compile, shapeless=True)" if shapeless else "@mx.compile"
        (graph,) = graphs(f"{head}{decorator}\ndef f(a, b, c):\n    return {body}\n")
        symbols = [s for p in graph.params.values() for s in sorted(graph.facts.dtype(p).symbols)]
        given = dict(zip(symbols, cycle(dtypes), strict=False))
        monkeypatch.setattr(cuts, "given_dtypes", lambda _, given=given: given)
        may = cuts._may_be_cut_up(cuts.Tape.of(graph, shapeless, "", {}), shapeless)
        with monkeypatch.context() as every:
            every.setattr(cuts, "_may_be_cut_up", lambda tape, shapeless: True)
            assert may or not list(cuts.cuts(graph)), body
        few += not may
    assert few > 1


BODIES = [
    "nn.silu(a) * b",
    "nn.silu(a) * b * c",
    "a + b",
    "mx.where(a > b, a, c)",
    "mx.tanh(a / b) * c",
    "mx.maximum(a, 0) + mx.exp(b)",
    "mx.exp(-mx.exp(a) * nn.softplus(b + c))",
    "(a * b).reshape(-1, 4) + c",
    "mx.sum(a * b, axis=-1) * c",
    "nn.gelu_approx(a) * b",
    "mx.sigmoid(mx.sigmoid(a)) * mx.sigmoid(b)",
]
