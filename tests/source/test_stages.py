"""What a pipeline does once, before the steps of a solver over another model."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from fuselint import cache
from fuselint.config import Settings
from fuselint.engine import check_paths
from fuselint.explain import explain
from fuselint.source.modules import Definition, Modules
from fuselint.source.stepping import solver_loops

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


def prepares(folder: Path, name: str = "encoder", qualname: str = "EncoderMLP.__call__") -> bool:
    path = str(folder / f"{name}.py")
    return Modules().prepares(Definition(path, qualname))


def told(folder: Path, name: str, **settings: Any) -> tuple[list[str], int]:
    (result,) = check_paths([str(folder / f"{name}.py")], Settings(**settings))
    assert not result.errors
    return [f.function for f in result.findings], result.idle


def test_the_layers_of_what_encodes_a_prompt_are_silent_beside_the_steps(package: Path) -> None:
    assert prepares(package)
    assert told(package, "encoder") == ([], 1)


def test_explain_says_so(package: Path) -> None:
    path = package / "encoder.py"
    line = next(i for i, text in enumerate(path.read_text().split("\n"), 1) if "nn.silu" in text)
    said = [text.strip() for text in explain(str(path), line, Settings()).split("\n")]
    assert f"line {line} runs before the steps of a solver, once for all of them" in said


def test_the_model_that_takes_the_steps_is_reported(package: Path) -> None:
    assert not prepares(package, "denoiser", "DenoiserMLP.__call__")
    assert told(package, "denoiser") == (["DenoiserMLP.__call__"], 0)


@pytest.mark.parametrize(
    "step",
    [
        "noise = self.denoiser(x, t)\n            x = scheduler.step(noise, t, x)",
        "noise = self.denoiser(mx.concatenate([x, text]), t)[:, : x.shape[1]]\n"
        "            x = (x - 0.1 * noise).astype(x.dtype)",
        "x += 0.1 * self.denoiser(x, t)",
    ],
)
def test_steps_are_told_by_what_a_round_makes(package: Path, step: str) -> None:
    pipeline(package, step)
    assert prepares(package)


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
    assert not prepares(package)


def test_a_class_that_both_models_are_made_of_is_reported(package: Path) -> None:
    shared = MODEL.format(name="Encoder") + "\n\nclass Denoiser(Encoder):\n    pass\n"
    write(package, encoder=shared, denoiser="from .encoder import Denoiser\n")
    assert not prepares(package)


def test_an_encoder_that_a_pipeline_is_given_by_a_function_that_loads_it(package: Path) -> None:
    write(
        package,
        pipeline="""
        from .encoder import Encoder
        from .denoiser import Denoiser


        def load(model, d):
            model.encoder = Encoder(d, 4)
            model.denoiser = Denoiser(d, 24)


        class Pipeline(nn.Module):
            encoder: Encoder
            denoiser: Denoiser

            def __init__(self, d):
                super().__init__()
                load(self, d)

            def generate(self, prompt, times):
                text = self.encoder(prompt)
                x = mx.random.normal(text.shape)
                for t in times:
                    x = x + 0.1 * self.denoiser(x + text, t)
                return x
        """,
    )
    assert prepares(package)
    assert not prepares(package, "denoiser", "DenoiserMLP.__call__")


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
    assert not prepares(package)


def test_a_model_that_a_function_runs_for_each_token_of_a_prompt_is_reported(package: Path) -> None:
    text = PIPELINE.format(step=STEP, end="x").replace("self.encoder(prompt)", "written(self.encoder, prompt, 9)")
    written = """
        def written(encoder: Encoder, tokens, n):
            for _ in range(n):
                tokens = mx.concatenate([tokens, mx.argmax(encoder(tokens), axis=-1)])
            return tokens
    """
    write(package, pipeline=text + "\n\n" + textwrap.dedent(written))
    assert not prepares(package)


def test_waiting_in_each_round_of_a_loop_is_reported(package: Path) -> None:
    waits = (
        "return nn.silu(self.gate(x)) * self.up(x)",
        "ids = mx.argmax(self.gate(x), axis=-1)[0]\n        return [ids[i].item() for i in range(ids.shape[0])]",
    )
    (package / "encoder.py").write_text((package / "encoder.py").read_text().replace(*waits))
    assert prepares(package)
    assert told(package, "encoder") == (["EncoderMLP.__call__"], 0)


def test_other_rules_are_reported(package: Path) -> None:
    """A norm by hand is worth a reader's time in every layer of a large encoder."""
    norm = "x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-6)"
    text = (package / "encoder.py").read_text().replace("self.mlp(self.norm(x))", f"self.mlp({norm})")
    (package / "encoder.py").write_text(text)
    assert told(package, "encoder") == (["EncoderBlock.__call__"], 1)


def test_who_trains_or_says_that_it_is_hot_is_told(package: Path) -> None:
    assert told(package, "encoder", phase="train") == (["EncoderMLP.__call__"], 0)
    assert told(package, "encoder", hot=("*",)) == (["EncoderMLP.__call__"], 0)


def test_what_a_loop_of_the_encoder_does_is_reported(package: Path) -> None:
    text = (package / "encoder.py").read_text()
    once = "return nn.silu(self.gate(x)) * self.up(x)"
    again = "for t in range(x.shape[1]):\n            x = nn.silu(self.gate(x)) * self.up(x)\n        return x"
    assert once in text
    (package / "encoder.py").write_text(text.replace(once, again))
    assert told(package, "encoder") == (["EncoderMLP.__call__"], 0)


def test_two_pipelines_count(package: Path) -> None:
    """What one does once, another may do in each step."""
    write(package, other=PIPELINE.format(step=STEP, end="x").replace("Pipeline", "Other"))
    assert prepares(package)
    each = "x = x + 0.1 * self.denoiser(x + self.encode(prompt), t)"
    write(package, other=PIPELINE.format(step=each, end="x").replace("Pipeline", "Other"))
    assert not prepares(package)


def test_a_kept_result_holds_as_long_as_the_pipeline_is_as_it_was(package: Path, tmp_path: Path) -> None:
    def idle() -> int:
        (result,) = cache.check_paths([str(package / "encoder.py")], Settings(), 1, tmp_path / "cache")
        return result.idle

    assert idle() == 1
    pipeline(package, STEP, "self.encoder(x)")
    assert idle() == 0
    pipeline(package)
    assert idle() == 1
    pipeline(package, STEP.replace("x + 0.1 *", "x @ "))  # no solver any more, by the same names
    assert idle() == 0


@pytest.mark.parametrize(
    "body",
    [
        "for _ in range(n):\n            x = mx.argmax(self.encoder(x), axis=-1)\n        return x",
        "return self.encoder(x)",
    ],
)
def test_what_is_of_use_without_a_solver_is_reported(package: Path, body: str) -> None:
    """A language model that writes prompts, or gives embeddings."""
    other = PIPELINE.replace("Pipeline", "Other")
    other = other[: other.index("    def generate")] + f"    def other(self, x, n):\n        {body}\n"
    write(package, other=other)
    assert not prepares(package)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("for layer in layers:\n    x = x + layer(x)", False),
        ("for i in range(n):\n    x = x + layers[i](x)", False),
        ("for layer, c in zip(layers, cache):\n    h = layer.norm(x)\n    x = x + layer.mlp(h)", False),
        ("for t in times:\n    h = cell(x, h)", False),
        ("for t in times:\n    x = x + dt * model(x, t)", True),
        ("for t in times:\n    x = x + dt * model(x, t.item())", True),
        ("for t in tqdm(\n    times\n):\n    v = model(x, t)\n    x = (\n        x\n        + dt * v\n    )", True),
        ("while t < 1:\n    v = model(x, t)\n    w = v * 2\n    x = x + w", True),
        ("while n < m:\n    y = model(y)\n    n = n + len(y)", False),
        ("while n < m:\n    out = model(tokens)\n    tokens = tokens + [out]", False),
        ("for t in times:\n    y = model(n)\n    n = n - y\n    if n <= 0:\n        break", False),
        ("for i in times:\n    y = model(token)\n    y = y + scale * (y - model(y))\n    token = sample(y)", False),
        ("for name, w in weights:\n    w = w * scale(w)", False),
        ("for t in times:\n    v = model(x, t)\n    y = s.step(v, t, x)\n    x = y", True),
        ("for t in times:\n    v = model(x, t)\n    y = s.step(v, t, x[n:])\n    x = mx.concatenate([x[:n], y])", True),
        ("for t in times:\n    y = x[:n] + model(x, t)\n    x = mx.concatenate([y, x[n:]], axis=0)", True),
        # one more entry, a window that moves on, and the step of another part
        ("for t in times:\n    v = model(x, t)\n    y = s.step(v, t, x[-1])\n    x = mx.concatenate([x, y])", False),
        (
            "for t in times:\n    v = model(x, t)\n    y = s.step(v, t, x[1:])\n    x = mx.concatenate([x[1:], y])",
            False,
        ),
        (
            "for t in times:\n    v = model(x, t)\n    y = s.step(v, t, x[m:])\n    x = mx.concatenate([x[:n], y])",
            False,
        ),
        # of the round before, and of one of two
        ("for t in times:\n    x = y\n    y = s.step(model(x), t, x)", False),
        ("for t in times:\n    y = s.step(model(x), t, x)\n    y = look(y)\n    x = y", False),
        ("for t in times:\n    y = x + dt * model(x, t)\n    x = y", True),
        ("for i in range(n):\n    h = layers[i](x)\n    y = x + h\n    x = y", False),
        # by a function of the file
        ("def step(x, t):\n    return x + model(x, t)\n\n\nfor t in times:\n    x = step(x, t)", True),
        ("def step(x, t):\n    v = model(x)\n    return x - v * t\n\n\nfor t in times:\n    y = step(y, t=t)", True),
        (
            "def step(x):\n    if any(x):\n        return x\n    return x + g(x)\n\n\nfor t in times:\n    x = step(x)",
            False,
        ),
        ("def step(t, x):\n    return x + model(x, t)\n\n\nfor t in times:\n    x = step(x, t)", False),
        ("for t in times:\n    x = step(x, t)", False),
        ("def cell(x, h):\n    return model(x, h)\n\n\nfor t in times:\n    h = cell(x, h)", False),
    ],
)
def test_loops_that_refine_a_value(text: str, expected: bool) -> None:
    assert bool(solver_loops(f"import mlx\n\n{text}\n".encode())) is expected


def test_where_the_rounds_of_a_solver_begin() -> None:
    text = "def f(x):\n    for i in n:\n        for t in times:\n            x = x + model(x, t)\n    return x\n"
    assert solver_loops(text.encode()) == (3, 4)
