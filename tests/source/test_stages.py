"""What a pipeline does once, before the steps of a solver over another model."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.engine import check_paths
from fuselint.source.modules import Definition, Modules
from fuselint.source.stepping import is_step, takes_steps

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
MODEL = """
class {name}MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, d)
        self.up = nn.Linear(d, d)

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)


class {name}Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.RMSNorm(d)
        self.mlp = {name}MLP(d)

    def __call__(self, x):
        return x + self.mlp(self.norm(x))


class {name}(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.layers = [{name}Block(d) for _ in range(n)]

    def __call__(self, x, t=None):
        for layer in self.layers:
            x = layer(x)
        return x
"""
PIPELINE = """
from .encoder import Encoder
from .denoiser import Denoiser


class Pipeline(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.encoder = Encoder(d, 4)
        self.denoiser = Denoiser(d, 24)

    def encode(self, prompt):
        return self.encoder(prompt)

    def generate(self, prompt, scheduler, steps):
        text = self.encode(prompt)
        x = mx.random.normal(text.shape)
        for t in range(steps):
            {step}
        return {end}
"""
STEP = "x = x + 0.1 * self.denoiser(x + text, t)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    write(folder, encoder=MODEL.format(name="Encoder"), denoiser=MODEL.format(name="Denoiser"))
    pipeline(folder)
    return folder


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))


def pipeline(folder: Path, step: str = STEP, end: str = "x") -> None:
    write(folder, pipeline=PIPELINE.format(step=step, end=end))


def how(folder: Path, name: str = "encoder", qualname: str = "EncoderMLP.__call__") -> str:
    path = str(folder / f"{name}.py")
    return Modules().frequencies(path, on_metal=True).of(Definition(path, qualname)).how


def told(folder: Path, name: str) -> tuple[list[str], int]:
    (result,) = check_paths([str(folder / f"{name}.py")], Settings())
    assert not result.errors
    return [f.function for f in result.findings], result.idle


ONCE = "once before the steps of a solver"


def test_the_layers_of_what_encodes_a_prompt_are_silent_beside_the_steps(package: Path) -> None:
    assert how(package) == ONCE
    assert told(package, "encoder") == ([], 1)


def test_the_model_that_takes_the_steps_is_reported(package: Path) -> None:
    assert how(package, "denoiser", "DenoiserMLP.__call__") == "often"
    assert told(package, "denoiser") == (["DenoiserMLP.__call__"], 0)


@pytest.mark.parametrize(
    "step",
    [
        "noise = self.denoiser(x, t)\n            x = scheduler.step(noise, t, x)",
        "noise = self.denoiser(mx.concatenate([x, text]), t)[:, : x.shape[1]]\n"
        "            x = (x - 0.1 * noise).astype(x.dtype)",
        "x += 0.1 * self.denoiser(x, t)",
        "x = self.refined(x, t)\n        return x\n\n    def refined(self, x, t):\n        v = self.denoiser(x, t)"
        "\n        x = x + v\n        return x\n\n    def other(self, x, n):\n        for _ in range(n):\n"
        "            x = mx.exp(x)",
    ],
)
def test_steps_are_told_by_what_a_round_makes(package: Path, step: str) -> None:
    pipeline(package, step)
    assert how(package) == ONCE


@pytest.mark.parametrize(
    ("step", "end"),
    [
        (STEP, "self.encoder(x)"),  # after the loop too: it may have as much to do as one step
        ("x = x + 0.1 * self.denoiser(x + self.encode(prompt), t)", "x"),  # in each step
        ("y = mx.argmax(self.denoiser(x, t))\n            x = mx.concatenate([x, y])", "x"),  # decodes
        ("n = int(self.denoiser(x[t]).item())\n            x = x + n", "x"),
        ("x = x + 1", "self.denoiser(x)"),  # no model in the loop
    ],
)
def test_what_runs_in_the_loop_or_after_it_or_beside_no_steps_is_reported(package: Path, step: str, end: str) -> None:
    pipeline(package, step, end)
    assert how(package) == "often"


def test_a_class_that_both_models_are_made_of_is_reported(package: Path) -> None:
    shared = MODEL.format(name="Encoder") + "\n\nclass Denoiser(Encoder):\n    pass\n"
    write(package, encoder=shared, denoiser="from .encoder import Denoiser\n")
    assert how(package) == "often"


def test_an_encoder_that_a_pipeline_is_given_by_a_function_that_loads_it(package: Path) -> None:
    write(
        package,
        pipeline="""
        from .encoder import Encoder
        from .denoiser import Denoiser


        def load(model, d):
            model.encoder = Encoder(d, 4)
            model.denoiser = Denoiser(d, 24)


        def solve(f, x, times):
            y = x
            for t in times:
                y = y + f(t, y) * 0.1
            return y


        class Pipeline(nn.Module):
            encoder: Encoder
            denoiser: Denoiser

            def __init__(self, d):
                super().__init__()
                load(self, d)

            def generate(self, prompt, times):
                text = self.encoder(prompt)

                def velocity(t, x):
                    return self.denoiser(x + text, t)

                return solve(velocity, mx.random.normal(text.shape), times)
        """,
    )
    assert how(package) == ONCE
    assert how(package, "denoiser", "DenoiserMLP.__call__") == "often"


def test_a_model_that_decodes_before_the_steps_is_reported(package: Path) -> None:
    """A speech model makes tokens one by one; then a few steps make sound of them all."""
    encoder = MODEL.format(name="Encoder") + textwrap.indent(
        textwrap.dedent(
            """
            def decode(self, tokens, n):
                for _ in range(n):
                    y = mx.argmax(self(tokens), axis=-1)
                    tokens = mx.concatenate([tokens, y])
                return tokens
            """
        ),
        "    ",
    )
    text = PIPELINE.format(step=STEP, end="x").replace("self.encoder(prompt)", "self.encoder.decode(prompt, 9)")
    write(package, encoder=encoder, pipeline=text)
    assert how(package) == "often"


def test_a_model_that_a_function_runs_for_each_token_of_a_prompt_is_reported(package: Path) -> None:
    text = PIPELINE.format(step=STEP, end="x").replace("self.encoder(prompt)", "written(self.encoder, prompt, 9)")
    written = """
        def written(encoder: Encoder, tokens, n):
            for _ in range(n):
                tokens = mx.concatenate([tokens, mx.argmax(encoder(tokens), axis=-1)])
            return tokens
    """
    write(package, pipeline=text + "\n\n" + textwrap.dedent(written))
    assert how(package) == "often"


def test_waiting_in_each_round_of_a_loop_is_reported(package: Path) -> None:
    waits = (
        "return self.encoder(prompt)",
        "ids = mx.argmax(self.encoder(prompt), axis=-1)[0]\n"
        "        return [ids[i].item() for i in range(ids.shape[0])]",
    )
    write(package, pipeline=PIPELINE.format(step=STEP, end="x").replace(*waits))
    assert how(package, "pipeline", "Pipeline.encode") == ONCE
    assert told(package, "pipeline")[0] == ["Pipeline.encode"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for layer in layers:\n    x = x + layer(x)", False),
        ("for i in range(n):\n    x = x + layers[i](x)", False),
        ("for t in times:\n    h = cell(x, h)", False),
        ("for t in times:\n    x = x + dt * model(x, t)", True),
        ("while t < 1:\n    v = model(x, t)\n    w = v * 2\n    x = x + w", True),
        ("while n < m:\n    y = model(y)\n    n = n + len(y)", False),
        ("while n < m:\n    out = model(tokens)\n    tokens = tokens + [out]", False),
    ],
)
def test_loops_that_refine_a_value(text: str, expected: bool) -> None:
    (loop,) = ast.parse(text).body
    assert isinstance(loop, (ast.For, ast.While))
    assert takes_steps(loop) is expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x + dt * model(x)", True),
        ("v = model(x)\n    x = x + v\n    return x", True),
        ("return model(x)", False),
        ("return dt * model(x)", False),
    ],
)
def test_functions_that_take_a_step(body: str, expected: bool) -> None:
    (function,) = ast.parse(f"def f(x, dt):\n    {body}").body
    assert isinstance(function, ast.FunctionDef)
    assert is_step(function) is expected
