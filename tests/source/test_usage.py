from __future__ import annotations

import ast
import textwrap

import pytest

from fuselint.source.project import MODULE, ModuleSummary, summarise
from fuselint.source.text import FileText

HEAD = "from functools import partial\nimport functools\nimport mlx.core as mx\nimport mlx.nn as nn\n"


def summary(text: str) -> ModuleSummary:
    file = FileText("m.py", HEAD + textwrap.dedent(text))
    return summarise(file, ast.parse(file.text))


def compiled(text: str) -> dict[str, tuple[str, bool]]:
    return {q: (info.how, info.shapeless) for q, info in summary(text).compiled.items()}


def cold(text: str) -> dict[str, str]:
    return {q: reason for q, reason in summary(text).cold.items() if q != MODULE}


# -- who calls whom ---------------------------------------------------------------------------------------------------


def test_calls_are_seen_through_self_class_super_instances_and_scopes() -> None:
    module = summary(
        """
        def helper(x): return x
        class Base(nn.Module):
            def _norm(self, x): return x
            @staticmethod
            def fold(x): return x
        class Inner(nn.Module):
            def __call__(self, x): return x
        class A(Base):
            def __init__(self):
                super().__init__()
                self.inner = Inner()
            def __call__(self, x):
                def local(y): return self._norm(y)
                a = helper(helper(x))
                b = self.fold(A.fold(x))
                c = super()._norm(local(x))
                self.other(a)
                return self.inner(map(helper, (a, b, c)))
        A()
        """
    )
    assert module.calls["A.__call__"].count("helper") == 2
    assert sorted(module.calls["A.__call__"]) == [
        "A.__call__.<locals>.local", "Base._norm", "Base.fold", "Base.fold", "Inner.__call__", "helper", "helper",
    ]  # fmt: skip
    assert module.calls["A.__call__.<locals>.local"] == ("Base._norm",)
    assert module.calls[MODULE] == ("A.__init__",)
    assert module.references["A.__call__"] == ("helper",)


# -- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "how", "shapeless"),
    [
        ("@mx.compile\ndef f(x): return x", "decorated", False),
        ("@partial(mx.compile, shapeless=True)\ndef f(x): return x", "decorated", True),
        ("@functools.partial(mx.compile, inputs=s, outputs=s)\ndef f(x): return x", "decorated", False),
        ("from mlx.core import compile as c\n@c\ndef f(x): return x", "decorated", False),
        ("jit = partial(mx.compile, shapeless=True)\n@jit\ndef f(x): return x", "decorated", True),
        ("def jit(g):\n    return mx.compile(g, shapeless=True)\n@jit\ndef f(x): return x", "decorated", True),
        ("def f(x): return x\ng = mx.compile(f)", "wrapped", False),
        ("def f(x): return x\ng = mx.compile(f, shapeless=True)\ng(1)", "wrapped", True),
        ("def f(x): return x\ng = mx.compile(partial(f, 1))", "wrapped", False),
        ("def f(x): return x\ng = partial(mx.compile, shapeless=True)(f)", "wrapped", True),
        ("def f(x): return x\nf = mx.compile(f)\ndef h(x): return f(x)", "wrapped", False),
        ("def f(x): return x\nf = partial(mx.compile, shapeless=True)(f)\nf(2)", "wrapped", True),
        ("def f(x): return x\ng = mx.compile(lambda x: f(x) + 1)", "called", False),
        ("def f(x): return x\ng = mx.compile(lambda x: f(x) + 1, shapeless=True)", "called", True),
        ("def f(x): return f(x)\n@mx.compile\ndef g(x): return f(x)", "called", False),
        ("def f(x): return x\n@partial(mx.compile, shapeless=True)\ndef g(x): return map(f, x)", "called", True),
        ("def f(x): return x\ndef h(x): return f(x)\n@mx.compile\ndef g(x): return h(x)", "called", False),
    ],
)
def test_a_function_that_only_runs_compiled_is_known(text: str, how: str, shapeless: bool) -> None:
    assert compiled(text)["f"] == (how, shapeless)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x): return x",
        "@compile\ndef f(x): return x",
        "@mx.custom_function\ndef f(x): return x",
        "def f(x): return x\ng = mx.compile(f)\ndef h(x): return f(x)",
        "def f(x): return x\ng = mx.compile(f) if fast else f",
        "def f(x): return x\n@mx.compile\ndef g(x): return f(x)\ndef h(x): return f(x)",
        "def f(x): return x\n@mx.compile\ndef g(x): return f(x)\ntable = {'f': f}",
        "def g(x):\n    return mx.compile(g)\ndef f(x): return g(x)",
        "def f(x): return f(x)",
        "def f(mx):\n    g = mx.compile(f)",
    ],
)
def test_a_function_that_may_run_uncompiled_is_not_compiled(text: str) -> None:
    assert "f" not in compiled(text)


def test_methods_and_nested_functions_are_compiled_too() -> None:
    found = compiled(
        """
        class A(nn.Module):
            def __init__(self):
                self._step = mx.compile(self._run)
                self._again = mx.compile(self._again)
            def _run(self, x): return self._norm(x)
            def _again(self, x): return x
            def _norm(self, x): return x
            @staticmethod
            @partial(mx.compile, shapeless=True)
            def fold(x):
                def inner(y): return y
                return inner(x)
            def __call__(self, x): return self._step(self._again(x))
        def train(model):
            def step(x): return x
            step = mx.compile(step, inputs=model.state)
            for x in data: step(x)
        """
    )
    assert found == {
        "A._run": ("wrapped", False),
        "A._again": ("wrapped", False),
        "A._norm": ("called", False),
        "A.fold": ("decorated", True),
        "A.fold.<locals>.inner": ("called", True),
        "train.<locals>.step": ("wrapped", False),
    }


# -- cold -------------------------------------------------------------------------------------------------------------


def test_what_builds_a_model_is_cold_and_what_runs_it_is_not() -> None:
    found = cold(
        """
        def freqs(n): return mx.arange(n) / n
        def act(x): return x * 2
        def both(x): return x + 1
        class A(nn.Module):
            def __init__(self, n):
                self.table = self._table(n)
                self.act = act
                self.f = both(n)
            def _table(self, n): return freqs(n)
            def __call__(self, x): return both(self.act(x))
        """
    )
    assert found == {
        "A.__init__": "__init__",
        "A._table": "called only from __init__",
        "freqs": "called only from __init__",
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f(w):\n    return {k.replace('attn', 'b'): v for k, v in w.items()}", "weight conversion"),
        (
            "def f(w):\n    for k, v in w.items():\n        if 'norm' in k: v = v + 1\n        w[k] = v",
            "weight conversion",
        ),
        (
            "def f(w):\n    for k in list(w.keys()):\n        if k.startswith(('x', 'model.')): w.pop(k)",
            "weight conversion",
        ),
        ("def f(w):\n    return {k: w[k] for k in sorted(w) if not k.endswith('.scale')}", "weight conversion"),
        ("def f(w):\n    w['model.norm.weight'] = w['a'] + 1\n    return w", "weight conversion"),
        ("def f(w, p):\n    return w.pop(f'{p}.weight') + 1", "weight conversion"),
        ("@functools.lru_cache(maxsize=None)\ndef f(n): return mx.arange(n) * 2", "cached"),
        (
            "def f(layer):\n    new = nn.Linear(1, 1)\n    new.weight = layer.weight * 2\n    return new",
            "builds a layer",
        ),
        ("def f(model, leaves):\n    model.update_modules(leaves)", "replaces modules"),
        ("def f(cache):\n    return [c.to_quantized(64) for c in cache]", ""),
        ("def f(path):\n    return 1", ""),
        ("def load_f(path):\n    return mx.load(path)", "weight loading"),
        ("def f(path):\n    return mx.load(path)", ""),
        ("def load(x, y):\n    return x * y + 1", ""),
        ("def sanitize(x):\n    return x * 2 + 1", ""),
        ("def f(x, **options):\n    for k, v in options.items():\n        if 'x' in k: x = x + v\n    return x", ""),
        ("def f(w, x):\n    return x @ w['layers.0.weight'] + w['layers.0.bias']", ""),
        ("def f(x, layers):\n    return [x * 2 + 1 for l in layers if 'bias' in l]", ""),
        ("def f(m):\n    for k, v in m.items():\n        if k.startswith('num_'): m[k] = v * 2 + 1", ""),
        ("def f(cache):\n    state = Cache()\n    state.keys = cache.keys * 2\n    return state", ""),
    ],
)
def test_what_a_function_does_makes_it_cold(text: str, reason: str) -> None:
    found = cold(text)
    assert (not found) if not reason else [r.startswith(reason) for r in found.values()] == [True]


def test_methods_that_convert_and_their_helpers_are_cold_by_what_they_do() -> None:
    found = cold(
        """
        class A(nn.Module):
            def sanitize(self, weights):
                return {k: self._fix(v) for k, v in weights.items() if "rotary" not in k}
            def _fix(self, v): return v + 1
            def __call__(self, x, **kw):
                for k, v in x.items():
                    if "x" in k: x = v
                return x
            @classmethod
            def from_linear(cls, linear):
                obj = cls(1)
                obj.weight = linear.weight * 2
                return obj
        """
    )
    assert found == {
        "A.sanitize": "sanitize",
        "A._fix": "called only from sanitize",
        "A.from_linear": "builds a layer from another",
    }


def test_what_a_quantizer_calls_or_hands_on_is_cold() -> None:
    text = """
        def loss(x, y): return (x - y) ** 2
        def clip(w): return mx.clip(w - loss(w, 1), 0, 1)
        def block_of(block):
            def clipped(path, w): return clip(w)
            return mx.utils.tree_map_with_path(clipped, block)
        def shown(x): return x * 2 + 1
        def quantize(model, data):
            for block in model.layers:
                block_of(block)
                block.update_modules(capture(block))
            return shown
        def main():
            quantize(1, 2)
        {}
    """
    outer = "called only from quantize"
    cold_ = {"quantize": "replaces modules of a model", "block_of": outer, "block_of.<locals>.clipped": outer}
    assert cold(text.format("")) == {**cold_, "clip": outer, "loss": outer}
    assert cold(text.format("def __call__(x): return loss(x, 1)")) == {**cold_, "clip": outer}


def test_tests_are_cold_and_so_is_what_only_they_call() -> None:
    text = """
        import unittest
        class TestModel(unittest.TestCase):
            def test_norm(self): self.expected(mx.zeros(3))
            def expected(self, x): return x * 2 + 1
        def test_all(x): return x * 2 + 1
    """
    assert cold(text) == {"TestModel.test_norm": "a test", "TestModel.expected": "called only from test_norm"}
    file = FileText("tests/test_model.py", HEAD + textwrap.dedent(text))
    assert summarise(file, ast.parse(file.text)).cold["test_all"] == "a test"


def test_who_loads_weights_may_also_run_them() -> None:
    found = cold(
        """
        def denoise(x): return x * 2 + 1
        def main():
            denoise(load_model(1))
        def load_model(path):
            w = mx.load(path)
            return denoise(w)
        main()
        """
    )
    assert found == {"load_model": "weight loading"}


def test_compilations_say_what_state_they_capture() -> None:
    module = summary(
        """
        @mx.compile
        def a(x): return x
        @partial(mx.compile, inputs=mx.random.state, outputs=[mx.random.state])
        def b(x): return x
        def train(model, opt, more):
            state = [model.state, opt.state]
            @partial(mx.compile, inputs=state, outputs=state + more)
            def step(x): return x
        c = mx.compile(a, shapeless=True)
        def wrap(f): return mx.compile(f)
        @wrap
        def d(x): return x
        """
    )
    found = {(c.target, c.how): (c.shapeless, c.inputs, c.outputs, c.direct) for c in module.compilations}
    assert found == {
        ("a", "decorator"): (False, "", "", True),
        ("b", "decorator"): (False, "random", "random", True),
        ("train.<locals>.step", "decorator"): (False, "other", "unknown", True),
        ("a", "call"): (True, "", "", True),
        (None, "call"): (False, "", "", True),
        ("d", "decorator"): (False, "", "", False),
    }
