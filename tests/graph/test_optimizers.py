"""What MLX gives the methods of an optimizer, as facts."""

from __future__ import annotations

import mlx.core as mx
import mlx.optimizers as optim
import pytest

from fuselint.graph.model import Graph
from fuselint.graph.shapes import SCALAR
from tests.graph.functions import graph_of, result, shape

HEAD = """from typing import List

import mlx.core as mx
import mlx.optimizers as optim
from mlx.optimizers import Optimizer
"""

INIT = 'state["m"] = mx.zeros_like(parameter)'


def stepping(step: str, init: str = INIT, base: str = "Optimizer", more: str = "") -> Graph:
    """The graph of an optimizer's `apply_single`."""
    indent = "\n        "
    return graph_of(
        f"{HEAD}\n\nclass Own({base}):\n    def __init__(self, learning_rate, betas: List[float]):\n"
        f"        super().__init__()\n        self.betas = betas\n        self.learning_rate = learning_rate\n\n"
        f"    def init_single(self, parameter, state):\n        {indent.join(init.splitlines())}\n\n"
        f"    def apply_single(self, gradient, parameter, state):\n        {indent.join(step.splitlines())}\n{more}",
        "Own.apply_single",
    )


@pytest.mark.parametrize("base", ["Optimizer", "optim.Optimizer", "optim.SGD"])
def test_a_step_gets_arrays_of_one_shape(base: str) -> None:
    graph = stepping('m = 0.9 * state["m"] + gradient\nstate["m"] = m\nreturn parameter - m', base=base)
    assert shape(graph) == "(*parameter,)"
    assert {graph.facts.kind(n) for n in graph.nodes if n.op in ("item", "add", "subtract")} == {"array"}


def test_of_another_class_nothing_is_known() -> None:
    graph = stepping('return state["m"]', base="Base")
    assert graph.facts.kind(result(graph)) == "unknown"


@pytest.mark.parametrize(
    ("init", "step"),
    [
        (INIT, 'state["m"] = state["m"].sum(axis=-1)'),
        (INIT, 'state["m"] = state["m"].reshape(-1)'),
        (INIT, "change(state)"),
        (f'{INIT}\nstate["m"] = mx.zeros((2, 3))', 'state["m"] = state["m"] + gradient'),
        ('state["n"] = mx.zeros_like(parameter)', 'state["m"] = gradient'),
        ("make(state)", 'state["m"] = gradient'),
    ],
)
def test_an_entry_that_need_not_keep_its_shape_has_none(init: str, step: str) -> None:
    graph = stepping(f'm = state["m"]\n{step}\nreturn m', init)
    assert graph.facts.kind(result(graph)) == "unknown"


def test_what_an_entry_is_made_of_that_changes_changes_too() -> None:
    init = f'{INIT}\nstate["v"] = mx.zeros_like(parameter)'
    step = 'm, v = state["m"], state["v"]\nstate["m"] = m[0]\nstate["v"] = v + m\nreturn v'
    assert stepping(step, init).facts.kind(result(stepping(step, init))) == "unknown"


def test_an_entry_of_one_branch() -> None:
    step = (
        'if parameter.ndim > 1:\n    state["m"] = 0.9 * state["m"] + gradient\nm = state["m"]\nstate["m"] = m\nreturn m'
    )
    assert shape(stepping(step)) == "(*parameter,)"


def test_one_number_of_a_parameter() -> None:
    init = 'state["count"] = mx.array(0.0)'
    step = 'state["count"] = state["count"] + 1\nreturn state["count"]'
    graph = stepping(step, init)
    assert graph.facts.shape(result(graph)) == SCALAR


@pytest.mark.parametrize(
    "text", ["self.learning_rate", "self.step", 'self.state["step"]', 'self.state["learning_rate"]']
)
def test_the_step_and_the_learning_rate_are_single_numbers(text: str) -> None:
    graph = stepping(f"return {text}")
    fact = graph.facts.of(result(graph))
    assert (fact.kind, fact.shape) == ("array", SCALAR)
    assert ("uint64" in fact.dtype) is ("step" in text)


def test_a_property_of_its_own_is_something_else() -> None:
    more = "\n    @property\n    def step(self):\n        return 3\n"
    graph = stepping("return self.step", more=more)
    assert graph.facts.shape(result(graph)) != SCALAR or graph.facts.kind(result(graph)) != "array"


def test_numbers_of_a_list_that_is_annotated() -> None:
    graph = stepping("b1, b2 = self.betas\nreturn b1 * gradient + (1 - b2) * parameter")
    items = [n for n in graph.nodes if n.op == "item"]
    assert [graph.facts.kind(n) for n in items] == ["scalar", "scalar"]
    assert shape(graph) == "(*parameter,)"


def test_mlx_does_so() -> None:
    seen: list[tuple[object, ...]] = []

    class Own(optim.Optimizer):
        def __init__(self) -> None:
            super().__init__()
            self.learning_rate = 0.1

        def init_single(self, parameter: mx.array, state: dict[str, mx.array]) -> None:
            state["m"] = mx.zeros_like(parameter)

        def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, mx.array]) -> mx.array:
            seen.append((gradient.shape, parameter.shape, state["m"].shape))
            seen.append((self.learning_rate.shape, self.state["step"].shape, self.step.dtype))
            return parameter

    weights = {"a": mx.ones((2, 3)), "b": [mx.ones((4,))]}
    Own().apply_gradients(weights, weights)
    assert seen[::2] == [((2, 3),) * 3, ((4,),) * 3]
    assert seen[1] == ((), (), mx.uint64)
