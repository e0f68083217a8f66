"""Which methods of a model run once for each pass, and which attributes hold its layers."""

from __future__ import annotations

import ast

import pytest

from fuselint.source.project import ModuleSummary, summarise
from fuselint.source.text import FileText

LAYER = """
class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.width = d, d
        self.up = nn.Linear(d, d)
        self.down = nn.Linear(d, d)

    def __call__(self, x):
        return self.down(self.up(x)) + self.halved(x)

    def halved(self, x):
        return x / 2


"""


def summary(classes: str) -> ModuleSummary:
    text = f"import other\nimport mlx.nn as nn\n\n{classes}"
    return summarise(FileText("m.py", text), ast.parse(text))


def model(made: str, methods: str = "") -> str:
    return f"""class Model(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.parts = {made}

    def __call__(self, x):
        return x
{methods}
"""


LISTS = {
    "layers": (LAYER, "[Layer(d) for _ in range(n)]", True),
    "layers of another file": ("", "[other.Layer(d) for _ in range(n)]", True),
    "convolutions": ("", "[nn.Conv1d(d, d, 3) for _ in range(n)]", False),
    "one layer": (LAYER, "Layer(d)", False),
    "layers of one part": (
        "class Layer(nn.Module):\n    def __init__(self, d):\n        self.up = nn.Linear(d, d)\n\n\n",
        "[Layer(d) for _ in range(n)]", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layer", "made", "expected"), LISTS.values(), ids=LISTS)
def test_a_model_keeps_a_list_of_layers(layer: str, made: str, expected: bool) -> None:
    found = summary(layer + model(made))
    assert found.layers == ({"Model": frozenset({"parts"})} if expected else {})


def test_a_layer_with_layers_of_its_own_is_no_model() -> None:
    """The experts of a layer."""
    block = "class Block(nn.Module):\n    def __init__(self, d):\n        self.experts = [Layer(d) for _ in range(8)]\n"
    block += "        self.norm = nn.RMSNorm(d)\n\n    def route(self, x):\n        return x\n\n\n"
    found = summary(LAYER + block + model("[Block(d) for _ in range(n)]"))
    assert set(found.layers) == {"Model"}
    assert found.seldom == frozenset()


def test_what_holds_a_model_is_one() -> None:
    outer = "class Outer(nn.Module):\n    def __init__(self, d):\n        self.model = Model(d, 2)\n\n"
    outer += "    def logits(self, x):\n        return x\n"
    found = summary(LAYER + model("[Layer(d) for _ in range(n)]") + outer)
    assert found.layers["Outer"] == frozenset()
    assert found.seldom == {"Outer.logits"}


METHODS = {
    "an entry of its own": ("def encode(self, x):\n        return x\n", {"encode"}),
    "a part of the call": ("def embed(self, x):\n        return x\n", {"embed"}),
    "called in a loop": (
        "def run(self, x):\n        for _ in range(9):\n            x = self.step(x)\n\n"
        "    def step(self, x):\n        return self.inner(x)\n\n    def inner(self, x):\n        return x\n",
        {"run"},
    ),
    "called in a comprehension": (
        "def run(self, x):\n        return [self.step(y) for y in x]\n\n    def step(self, x):\n        return x\n",
        {"run"},
    ),
    "what a layer calls": ("def halved(self, x):\n        return x\n", set()),
    "another name of the call": ("def forward_features(self, x):\n        return x\n", set()),
    "a function": ("@staticmethod\n    def rotated(x):\n        return x\n", set()),
}  # fmt: skip


@pytest.mark.parametrize(("methods", "expected"), METHODS.values(), ids=METHODS)
def test_what_neither_loops_nor_layers_call_runs_seldom(methods: str, expected: set[str]) -> None:
    found = summary(LAYER + model("[Layer(d) for _ in range(n)]", f"\n    {methods}"))
    assert found.seldom == {f"Model.{name}" for name in expected}


def test_what_makes_the_caches_of_a_generation_runs_once_for_it() -> None:
    functions = """from mlx_lm.models.cache import make_prompt_cache


def warm(model, x):
    cache = make_prompt_cache(model)
    return model(x, cache=cache)


class Wrapper:
    def start(self, x):
        return self.model(x, self.model.make_cache())

    def __call__(self, x, cache=None):
        return self.model(x, cache or self.model.make_cache())
"""
    assert summary(functions).seldom == {"warm", "Wrapper.start"}
