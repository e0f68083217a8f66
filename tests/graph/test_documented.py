"""Dtypes that a docstring states: costs count them, facts don't know them."""

from __future__ import annotations

import pytest
from graph.functions import HEAD, graph_of

from fuselint.graph.callers import given_dtypes

CASES = {
    "Google": ("Args:\n        x: (N, 3) float32 points\n        y (mx.array): any", {"x.dtype": "float32"}),
    "with its type": ("Args:\n        x (mx.array, mx.float16): points", {"x.dtype": "float16"}),
    "NumPy": ("Parameters\n        ----------\n        y : (N, 3) float32 array", {"y.dtype": "float32"}),
    "reStructuredText": (":param x: a `bfloat16` array", {"x.dtype": "bfloat16"}),
    "two dtypes": ("Args:\n        x: float32 or float16 points", {}),
    "what it is cast to": ("Args:\n        x: points, cast to float32\n        y: taken in float32", {}),
    "another's": ("Args:\n        z: float32 points\n    Returns:\n        float32", {}),
    "none": ("Adds up x: both of them.", {}),
}


@pytest.mark.parametrize(("text", "given"), CASES.values(), ids=CASES)
def test_a_docstring_says_what_its_arguments_are(text: str, given: dict[str, str]) -> None:
    graph = graph_of(f'{HEAD}def f(x: mx.array, y: mx.array):\n    """Sums.\n\n    {text}\n    """\n    return x + y\n')
    assert given_dtypes(graph) == given
    assert graph.facts.dtype(graph.params["x"]).name is None


def test_what_a_call_gives_counts_more() -> None:
    source = (
        'def f(x, y):\n    """Args:\n        x: float32 points\n    """\n    return x + y\n\n\n'
        "def g(y):\n    return f(y.astype(mx.bfloat16), y)\n"
    )
    assert given_dtypes(graph_of(HEAD + source)) == {"x.dtype": "bfloat16"}
