"""FUS403 to FUS407, FUS402 and FUS303: what MLX does with such code, and where the rules stay silent."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from fuselint.analysis import analyse
from fuselint.checks import compile_on_method, eval_in_loop, sdpa_mask, shapeless_shape
from fuselint.config import Settings
from fuselint.source.text import FileText

HEAD = """
from functools import partial
import numpy as np
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
"""


def messages(code: str, text: str) -> list[str]:
    file = FileText("m.py", HEAD + textwrap.dedent(text))
    result, found = analyse(file, Settings(select=(code,)), None)
    assert not result.errors, result.errors[0]
    return [p.finding.message for p in found]


# -- what MLX does ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mx() -> Any:
    return pytest.importorskip("mlx.core")


def test_a_compiled_method_raises(mx: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        compile_on_method.unfused(mx.ones(3))
    assert compile_on_method.fused(mx.ones(3)).tolist() == [2.0] * 3


def test_a_compiled_draw_repeats_itself(mx: Any) -> None:
    def draws(**state: Any) -> int:
        draw = mx.compile(mx.random.categorical, **state)
        return len({draw(mx.zeros(1000)).item() for _ in range(5)})

    assert draws() == 1
    assert draws(inputs=mx.random.state, outputs=mx.random.state) > 1


def test_a_shapeless_trace_keeps_the_first_size(mx: Any) -> None:
    mean = mx.compile(lambda a: a.sum(-1) / a.shape[-1], shapeless=True)
    assert mean(mx.ones((2, 4))).tolist() == [1.0, 1.0]
    assert mean(mx.ones((2, 8))).tolist() == [2.0, 2.0]
    assert shapeless_shape.fused(mx.ones((2, 8))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["split", "pad", "roll", "topk", "median", "random.normal"])
def test_operations_without_a_shape_rule_raise(mx: Any, name: str) -> None:
    assert name in shapeless_shape.WITHOUT_SHAPE_RULE
    run = {
        "split": lambda x: mx.split(x, 2)[0],
        "pad": lambda x: mx.pad(x, 1),
        "roll": lambda x: mx.roll(x, 1, 0),
        "topk": lambda x: mx.topk(x, 2),
        "median": mx.median,
        "random.normal": lambda x: x + mx.random.normal((4,)),
    }[name]
    with pytest.raises(ValueError, match="cannot infer output shapes"):
        mx.eval(mx.compile(run, shapeless=True)(mx.ones((4, 4))))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_refuses_a_float32_mask(mx: Any, dtype: str) -> None:
    q = mx.zeros((1, 2, 4, 8), getattr(mx, dtype))
    with pytest.raises(ValueError, match="Mask type must promote"):
        mx.eval(sdpa_mask.unfused(q, q, q, mx.zeros((4, 4)), 1.0))
    assert sdpa_mask.fused(q, q, q, mx.zeros((4, 4)), 1.0).dtype == q.dtype
    mx.eval(sdpa_mask.unfused(q, q, q, mx.ones((4, 4), mx.bool_), 1.0))


def test_a_list_holds_the_same_numbers(mx: Any) -> None:
    x = mx.random.normal((7,))
    assert eval_in_loop.unfused(x) == eval_in_loop.fused(x)


def test_an_update_without_its_state_is_lost(mx: Any) -> None:
    nn, optim = pytest.importorskip("mlx.nn"), pytest.importorskip("mlx.optimizers")

    def losses(**captured: bool) -> list[float]:
        mx.random.seed(0)
        model, optimizer = nn.Linear(3, 1), optim.SGD(0.1)
        mx.eval(model.parameters())
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        loss_and_grad = nn.value_and_grad(model, lambda m, x: (m(x) ** 2).mean())

        def step(x: Any) -> Any:
            loss, grads = loss_and_grad(model, x)
            optimizer.update(model, grads)
            return loss

        compiled = mx.compile(step, **{name: state for name in captured})
        x = mx.ones((4, 3))
        return [compiled(x).item() for _ in range(3)]

    assert len(set(losses(inputs=True, outputs=True))) == 3
    assert len(set(losses())) == 1
    assert len(set(losses(outputs=True))) == 1
    with pytest.raises(RuntimeError, match="without a primitive"):
        losses(inputs=True)


# -- what is reported -------------------------------------------------------------------------------------------------


def test_the_state_may_stand_in_a_list_of_another_name() -> None:
    text = """
        def train(model, optimizer, batches):
            {state}
            @partial(mx.compile, inputs=state, outputs=state)
            def step(x):
                return model(x + mx.random.normal(x.shape))
            for x in batches:
                step(x)
        """
    assert messages("FUS404", text.format(state="state = [model.state, mx.random.state]")) == []
    assert messages("FUS404", text.format(state="state = everything(model)")) == []
    assert len(messages("FUS404", text.format(state="state = [model.state, optimizer.state]"))) == 1


def test_a_draw_in_a_helper_counts_for_the_compiled_function() -> None:
    found = messages(
        "FUS404",
        """
        def noise(x, n):
            for _ in range(n):
                x = x + mx.random.normal(x.shape)
            return x
        def step(x):
            return noise(x, 3) * 2
        fast = mx.compile(step)
        """,
    )
    assert len(found) == 1 and "step draws with mx.random.normal" in found[0]


def test_a_screened_function_may_be_as_short_as_one_division() -> None:
    text = "def mean(x):\n    return x / x.shape[-1]\nfast = mx.compile(mean, shapeless=True)\n"
    assert len(messages("FUS405", text)) == 1


def test_a_size_that_only_decides_is_not_a_number() -> None:
    text = """
        @partial(mx.compile, shapeless=True)
        def f(x, y):
            assert x.shape[-1] == y.shape[-1]
            return x * y
        """
    assert messages("FUS405", text) == []


def test_numbers_of_few_values_are_left_alone() -> None:
    text = """
        @mx.compile
        def step(x, i):
            return x * i
        def run(layers, x):
            for i in range(len(layers)):
                x = step(x, i)
            return x
        """
    assert messages("FUS407", text) == []


def test_a_number_that_is_no_operand_is_left_alone() -> None:
    text = """
        @mx.compile
        def step(x, i):
            return x[i] * 2
        def run(x, n):
            return [step(x, i) for i in range(n)]
        """
    assert messages("FUS407", text) == []


def test_arrays_of_numpy_are_read_without_waiting() -> None:
    text = """
        def labels(scores):
            top = np.argsort(scores).astype(np.int64)
            top = top[top >= 0]
            return [int(t) for t in top], mx.array(top)
        """
    assert messages("FUS303", text) == []


def test_arrays_of_one_loop_are_one_finding() -> None:
    text = """
        def spans(starts: mx.array, ends: mx.array):
            out = []
            for start, end in zip(starts, ends):
                out.append((int(start), int(end)))
            return out, mx.max(starts)
        """
    (found,) = messages("FUS303", text)
    assert found.startswith("starts and ends are read out")


def test_compiled_methods_that_only_look_like_one() -> None:
    text = """
        class Ops:
            @staticmethod
            @partial(mx.compile, shapeless=True)
            def gate(x, y):
                return x * mx.sigmoid(y)
            @mx.compile
            def scale(x, y):
                return x * y
        """
    assert messages("FUS403", text) == []


def test_an_update_of_a_dict_is_no_update_of_weights() -> None:
    text = """
        def run(seen, batches):
            @mx.compile
            def step(x):
                seen.update({"x": 1})
                return mx.exp(x) * 2
            return [step(x) for x in batches]
        """
    assert messages("FUS406", text) == []


def test_a_bias_is_added_in_the_first_shape(mx: Any) -> None:
    """With two axes, where it raises nothing, MLX reads outside the array: three tell the same without that."""
    project = mx.compile(lambda x, w, b: mx.addmm(b, x, w), shapeless=True)
    w, b = mx.ones((6, 6)), mx.ones((6,))
    mx.eval(project(mx.ones((2, 4, 6)), w, b))
    with pytest.raises(ValueError, match="Cannot reshape"):
        mx.eval(project(mx.ones((3, 5, 6)), w, b))


@pytest.mark.parametrize(("bias", "found"), [("", 1), (", bias=True", 1), (", bias=False", 0)])
def test_a_layer_without_bias_has_no_shape(bias: str, found: int) -> None:
    text = f"""
        class Gate(nn.Module):
            def __init__(self, dims: int):
                super().__init__()
                self.up = nn.Linear(dims, dims{bias})
                self.gate = mx.compile(self._gate, shapeless=True)
            def _gate(self, x):
                return nn.silu(self.up(x)) * x
        """
    assert len(messages("FUS405", text)) == found
