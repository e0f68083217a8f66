"""Which dtypes nobody states, and which of them are those of what comes into a loop or branch."""

from __future__ import annotations

import pytest
from graph.functions import HEAD, graph_of

from fuselint.graph.unstated import counted, merged

CASES = {
    "a loop's value": ("for _ in range(n):\n        a = mx.tanh(a) * b\n    return a", {"a'"}),
    "a branch's value": ("h = first(a)\n    if n:\n        h = first(b)\n    return mx.exp(h)", {"h''"}),
    "a second value of the same name": ("a = first(a)\n    a = first(a)\n    return mx.tanh(a) * b", set()),
}


@pytest.mark.parametrize(("body", "names"), CASES.values(), ids=CASES)
def test_what_comes_into_a_loop_or_branch_has_no_dtype_of_its_own(body: str, names: set[str]) -> None:
    graph = graph_of(f"{HEAD}def f(a: mx.array, b: mx.array, first, n):\n    {body}\n")
    assert merged(graph, graph.facts) == {f"{name}.dtype" for name in names}


PRECISION = """
class Config:
    precision: mx.Dtype = mx.bfloat16
    other = mx.float16


def f(a):
    return mx.exp(a.astype(Config.precision)) + mx.tanh(a.astype(Config.other))
"""


def test_a_dtype_that_a_class_states_is_counted_as_that() -> None:
    graph = graph_of(f"{HEAD}{PRECISION}")
    dtypes = {n.op: graph.facts.dtype(n) for n in graph.nodes}
    known = counted(graph.nodes, graph.facts, {})
    assert dtypes["exp"].bound(known) == {"bfloat16"}
    assert dtypes["tanh"].bound(known) == {"float16"}
