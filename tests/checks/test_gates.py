"""What rules ask first, before anything that costs time, loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mutation.forms import forms

from fuselint.checks.activation import KINDS, SHOWING, _arguments
from fuselint.graph.chains import chains, may_chain
from fuselint.graph.model import Graph
from fuselint.graph.norms import ROOT, ROOTING
from fuselint.graph.ops import EXPONENTIALS
from fuselint.graph.program import Program
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
