"""FUS304: what a gradient does to compiled activations, what is said of a step, and where the rule stays silent."""

from __future__ import annotations

import io
import re
import shutil
import textwrap
from typing import Any

import pytest

from fuselint.analysis import analyse
from fuselint.checks import unfused_under_grad as rule
from fuselint.config import Settings
from fuselint.finding import Finding
from fuselint.graph.tape import RESHAPES, VIEWS
from fuselint.source.text import FileText

mx = pytest.importorskip("mlx.core")
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

LOSS = """
def loss_fn(model, x):
    return (model(x) ** 2).mean()
"""


def findings(text: str, **settings: Any) -> list[Finding]:
    file = FileText("m.py", rule.HEAD + textwrap.dedent(text))
    result, found = analyse(file, Settings(select=("FUS304",), **settings), None)
    assert not result.errors, result.errors[0]
    return [*(p.finding for p in found), *result.near_misses]


def verdicts(found: Finding) -> dict[str, str]:
    return {o.claim: o.verdict for o in found.obligations}


# -- what MLX does ----------------------------------------------------------------------------------------------------


def kernels(*outputs: Any) -> int:
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    names = re.findall(r'label ="([^"]*)"', dot.getvalue())
    return sum(n not in VIEWS and n not in RESHAPES for n in names)


@needs_compiler
def test_a_gradient_undoes_what_an_activation_was_compiled_for() -> None:
    x = mx.random.normal((4, 8))
    mx.eval(x)
    assert (kernels(*rule.unfused(x)), kernels(*rule.fused(x))) == (23, 6)


@needs_compiler
def test_a_compiled_step_is_fused_and_computes_the_same_bits() -> None:
    nn, optim = pytest.importorskip("mlx.nn"), pytest.importorskip("mlx.optimizers")
    from mlx.utils import tree_flatten

    def run(compiled: bool) -> tuple[int, list[float]]:
        mx.random.seed(0)
        model, optimizer = nn.Sequential(nn.Linear(8, 16), nn.gelu_approx, nn.Linear(16, 8)), optim.Adam(1e-3)
        optimizer.init(model.trainable_parameters())
        state = [model.state, optimizer.state]
        x = mx.random.normal((4, 8))
        mx.eval(state, x)
        loss_and_grad = nn.value_and_grad(model, lambda model, x: (model(x) ** 2).mean())

        def step(x: Any) -> Any:
            loss, grads = loss_and_grad(model, x)
            optimizer.update(model, grads)
            return loss

        if compiled:
            step = mx.compile(step, inputs=state, outputs=state)
        loss = step(x)
        count = kernels(loss, *(v for _, v in tree_flatten(state) if isinstance(v, mx.array)))
        return count, [loss.item(), *(step(x).item() for _ in range(3))]

    (eager, losses), (fused, same) = run(False), run(True)
    assert (eager, fused) == (86, 22)
    assert losses == same


# -- what is said -----------------------------------------------------------------------------------------------------


def test_the_activation_is_found_in_the_layers_of_a_layer() -> None:
    (found,) = findings(
        """
        class Block(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.proj = nn.Linear(dims, dims)
                self.act = nn.GELU(approx="tanh")
            def __call__(self, x):
                return x + self.act(self.proj(x))
        class Model(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.layers = [Block(dims) for _ in range(4)]
                self.dropout = nn.Dropout(0.1)
            def __call__(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.dropout(x)
        def loss_fn(model, x):
            return (model(x) ** 2).mean()
        def train(model: Model, optimizer, batches):
            loss_and_grad = nn.value_and_grad(model, loss_fn)
            for x in batches:
                loss, grads = loss_and_grad(model, x)
                optimizer.update(model, grads)
                mx.eval(model.state, optimizer.state)
        """
    )
    assert "nn.gelu_approx runs unfused" in found.message
    assert verdicts(found)["it runs activations that MLX compiles"] == "proven"
    assert found.fix is not None
    assert "state = [model.state, optimizer.state, mx.random.state]" in found.fix.message
    assert "@partial(mx.compile, inputs=state, outputs=state)" in found.fix.message


def test_a_helper_that_is_compiled_counts_too() -> None:
    (found,) = findings(
        """
        @mx.compile
        def gate(x):
            return x * mx.sigmoid(x) + 1
        def loss_fn(w, x):
            return gate(x @ w).sum()
        def train(w, optimizer, x):
            loss, grads = mx.value_and_grad(loss_fn)(w, x)
            w = optimizer.apply_gradients(grads, w)
            return loss, w
        """
    )
    assert "gate runs unfused" in found.message
    assert found.fix is not None and "state = [optimizer.state]," in found.fix.message


def test_what_is_not_known_is_said() -> None:
    (found,) = findings(
        f"""
        {textwrap.indent(LOSS, "        ").strip()}
        def train(model, optimizer, batches):
            loss_and_grad = nn.value_and_grad(model, loss_fn)
            for x in batches:
                loss, grads = loss_and_grad(model, x)
                optimizer.update(model, grads)
        """
    )
    assert verdicts(found) == {
        "the step is not compiled": "proven",
        "it runs activations that MLX compiles": "unknown",
        "its loss changes nothing outside": "unknown",
        "nothing is read out on the way to the update": "proven",
        "all that it changes is named: the model, the optimizer, the random state": "proven",
        "its batches have few shapes": "unknown",
        "no argument is a Python number that changes": "proven",
    }


def step(
    between: str = "", call: str = "model, x", make: str = "", update: str = "optimizer.update(model, grads)"
) -> str:
    return textwrap.dedent(
        f"""
        def loss_fn(model, x, i=0):
            return (model(x) ** 2).mean()
        def train(model, optimizer, batches, n):
            loss_and_grad = nn.value_and_grad(model, loss_fn)
            {make or "pass"}
            for i in range(n):
                x = batches[i]
                loss, grads = loss_and_grad({call})
                {between or "pass"}
                {update}
                mx.eval(model.state, optimizer.state)
        """
    )


CONTRADICTED = {
    "a loss that is printed": (step("print(loss.item())"), "line 16 needs a value"),
    "gradients that are evaluated": (step("mx.eval(grads)"), "line 16 needs a value"),
    "a loss that is tested": (step("assert not mx.isnan(loss)"), "line 16 tests an array"),
    "a loss that becomes a number": (step("total = float(loss)"), "line 16 needs a value"),
    "the number of the step": (step(call="model, x, i"), "a loop counts one"),
}


@pytest.mark.parametrize(("text", "why"), CONTRADICTED.values(), ids=CONTRADICTED)
def test_a_step_that_can_not_be_compiled_is_a_near_miss(text: str, why: str) -> None:
    assert len(findings(step())) == 1
    assert findings(text) == []
    (near,) = findings(text, near_misses=True)
    assert near.fix is not None and why in near.fix.message


def test_a_helper_that_reads_the_loss_is_seen() -> None:
    text = "def finite(loss):\n    return bool(mx.isfinite(loss))\n" + step("ok = finite(loss)")
    assert findings(text) == []


def test_clipped_gradients_and_keywords_are_followed() -> None:
    assert len(findings(step("grads, _ = optim.clip_grad_norm(grads, 1.0)"))) == 1
    assert len(findings(step(update="optimizer.update(model=model, gradients=grads)"))) == 1


def test_an_update_of_something_else_is_no_training_step() -> None:
    assert findings(step(update="metrics.update(loss)")) == []
    assert findings(step(update="seen.update(model, x)")) == []


def test_a_gradient_function_is_followed_where_it_is_passed() -> None:
    text = """
        def loss_fn(model, x):
            return (model(x) ** 2).mean()
        def step(model, optimizer, x, loss_and_grad):
            loss, grads = loss_and_grad(model, x)
            optimizer.update(model, grads)
            return loss
        def train(model, optimizer, batches):
            loss_and_grad = nn.value_and_grad(model, loss_fn)
            for x in batches:
                step(model, optimizer, x, loss_and_grad=loss_and_grad)
        """
    (found,) = findings(text)
    assert found.message.startswith("step takes a gradient")
    compiled = "fast = mx.compile(step)\n"
    assert findings(textwrap.dedent(text) + compiled) == []


def test_a_step_that_is_handed_on_may_be_compiled_there() -> None:
    text = """
        def loss_fn(model, x):
            return (model(x) ** 2).mean()
        def train(model, optimizer, run):
            def step(x):
                loss, grads = nn.value_and_grad(model, loss_fn)(model, x)
                optimizer.update(model, grads)
                return loss
            run(step)
        """
    assert findings(text) == []


def test_a_step_inside_a_compiled_one_is_compiled() -> None:
    text = """
        def loss_fn(model, x):
            return (model(x) ** 2).mean()
        def train(model, optimizer, batches):
            def one(x):
                loss, grads = nn.value_and_grad(model, loss_fn)(model, x)
                optimizer.update(model, grads)
                return loss
            @mx.compile
            def step(x):
                return one(x)
            for x in batches:
                step(x)
        """
    assert findings(text) == []
