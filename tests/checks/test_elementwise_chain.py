"""FUS301: which chains are found, where they end, and what makes them advice."""

from __future__ import annotations

from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import FixedFile, check_file, fix_text
from fuselint.finding import Finding
from fuselint.rulebook import Match
from fuselint.rulebook import rules as all_rules
from fuselint.source.text import FileText
from tests.graph.functions import HEAD, graph_of

(RULE,) = [r for r in all_rules() if r.code == "FUS301"]


def found(body: str, arguments: str = "x: mx.array, y: mx.array, z: mx.array") -> list[Match]:
    """The matches of a function, as `--min-kernels` 3 reports them."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    return reported(f"{HEAD}def f({arguments}):\n{lines}")


def reported(source: str, qualname: str = "f") -> list[Match]:
    matches = RULE.find(graph_of(source, qualname))
    return [m for m in matches if m.data["kernels"] >= 3 or m.data["gated"]]


def ops(match: Match) -> list[str]:
    return [n.op for n in match.data["nodes"]]


def test_a_chain_may_span_statements() -> None:
    (m,) = found("h = mx.sin(x * y)\nh = h * h\nreturn x + h / (y + 1e-9)")
    assert ops(m) == ["multiply", "sin", "multiply", "add", "divide", "add"]
    assert list(m.holes) == ["x", "y"]
    assert m.data["kernels"] == 6


def test_two_kernels_are_enough_for_a_gate() -> None:
    assert [ops(m) for m in found("return nn.silu(x) * y")] == [["nn.silu", "multiply"]]
    assert [ops(m) for m in found("return x * mx.sigmoid(y)")] == [["sigmoid", "multiply"]]
    assert found("return x * y + z") == []
    assert found("return 2 * mx.sigmoid(x)") == []  # nothing is gated


def test_a_layer_that_is_an_activation_counts_as_its_function() -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.act = nn.SiLU()
        self.proj = nn.Linear(d, d)

    def __call__(self, x):
        return self.act(self.proj(x)) * x
"""
    (m,) = reported(source, "M.__call__")
    assert m.data["kernels"] == 2


def test_what_something_else_reads_stays_in_memory() -> None:
    (m,) = found("h = mx.exp(x)\nreturn mx.tanh(h * y + 1), h @ z")
    assert ops(m) == ["multiply", "add", "tanh"]
    (root,) = [n for n in m.holes.values() if n.op == "exp"]
    assert root not in m.region


def test_residuals_around_a_layer_are_not_one_chain() -> None:
    # x1 feeds the matmul too: a kernel that held both additions would need its own result
    assert found("x1 = x + y\nx2 = x1 + x1 @ z\nreturn x2 * 2") == []


def test_a_kernel_does_not_reach_into_a_loop() -> None:
    body = "s = mx.exp(x) * y + 1\nfor i in range(3):\n    z = mx.tanh(z * s)\nreturn z"
    assert [ops(m) for m in found(body)] == [["exp", "multiply", "add"]]


def test_a_long_chain_is_one_finding_of_several_kernels() -> None:
    chain = "x"
    for _ in range(14):
        chain = f"mx.exp({chain})"
    (m,) = found(f"return {chain}")
    assert len(ops(m)) == m.data["kernels"] == 14
    assert [k.op for k in m.fused] == ["mx.compile", "mx.compile"]
    assert not m.data["shapeless"]


def test_a_deep_binary_chain_is_compiled_with_its_shapes() -> None:
    (short,) = found("return x + y * (x + y * (x + y))")
    (deep,) = found("return x + y * (x + y * (x + y * (x + y)))")
    assert (short.data["shapeless"], deep.data["shapeless"]) == (True, False)


def test_a_number_that_depends_on_a_size_is_compiled_with_its_shapes() -> None:
    (m,) = found("return mx.tanh(x * x.shape[-1] ** -0.5 + y)")
    assert not m.data["shapeless"]
    assert m.data["no_fix"] == ""


def test_several_reads_of_an_attribute_are_one_parameter() -> None:
    source = f"""{HEAD}class Cap(nn.Module):
    def __init__(self, cap: float):
        super().__init__()
        self.cap = cap

    def __call__(self, x: mx.array):
        return mx.tanh(x / self.cap) * self.cap
"""
    (m,) = reported(source, "Cap.__call__")
    assert list(m.holes) == ["x", "cap"]
    assert list(m.data["aliases"].values()) == ["cap"]
    assert m.data["scalars"] == {"cap"}


def test_a_last_cast_to_the_dtype_of_another_value_stays_outside() -> None:
    (m,) = found("return (x.astype(mx.float32) * 2 + 1).astype(y.dtype)")
    assert (ops(m), list(m.holes)) == (["astype", "multiply", "add"], ["x"])
    (m,) = found("return (x.astype(mx.float32) * 2 + 1).astype(x.dtype)")  # x is there anyway
    assert ops(m) == ["astype", "multiply", "add", "astype"]


def test_a_cast_that_a_chain_needs_takes_the_value_along() -> None:
    (m,) = found("return (x.astype(mx.float32) * 2).astype(y.dtype)")  # two kernels without it
    assert list(m.holes) == ["x", "y"]


NUMERICS = {
    "products alone": ("return mx.tanh(x * y) * z", "bit-identical"),
    "a sum of sums": ("return mx.tanh(x + y) + mx.exp(z)", "bit-identical"),
    "a product and a sum": ("return mx.tanh(x * y + z)", "reassociated"),
    "a difference from an activation": ("return z - nn.silu(x)", "reassociated"),
    "a square": ("return mx.tanh(mx.exp(x) ** 2)", "reassociated"),
    "a power of another array": ("return mx.tanh(mx.exp(x) ** y)", "bit-identical"),
}


@pytest.mark.parametrize(("body", "numerics"), NUMERICS.values(), ids=NUMERICS)
def test_bit_identical_is_claimed_where_no_compiler_rounds_otherwise(body: str, numerics: str) -> None:
    (m,) = found(body)
    assert m.numerics == numerics


def test_a_compiled_square_rounds_otherwise() -> None:
    """Why a power by a literal isn't bit-identical: on the CPU a few float32 values differ in the last digit."""
    mx = pytest.importorskip("mlx.core")
    from tests.graph.test_fuse import kernel_names

    x = mx.random.normal((200_000,), key=mx.random.key(0))
    mx.eval(x)

    def f(x: object) -> object:
        return mx.abs(x**2)  # type: ignore[operator]

    eager, fused = f(x), mx.compile(f)(x)
    assert len(kernel_names(fused)) == 1
    worst = mx.max(mx.abs(eager - fused) / mx.maximum(eager, 1e-30)).item()
    assert worst <= 2**-23


ADVICE = {
    "a number from outside": ("return nn.silu(x * s) * y", "x: mx.array, y: mx.array, s: float", "may change"),
    "a loop's number": (
        "for i in range(4):\n    x = nn.silu(x * (i + 1)) * y\nreturn x", "x: mx.array, y: mx.array", "may change",
    ),
    "a dtype from outside": (
        "return mx.exp((x.astype(mx.float32) + 1).astype(d) * 2)", "x: mx.array, d: mx.Dtype", "dtype",
    ),
    "a length": (
        "return nn.silu(x * (y.shape[1] - 1)) * y", "x: mx.array, y: mx.array", "`y.shape[1] - 1` is a number that may",
    ),
    "a count": ("return nn.silu(x * len(y)) * y", "x: mx.array, y: mx.array", "`len(y)` is a number that may"),
    "a width that is no scale": ("return nn.silu(x * x.shape[-1]) * y", "x: mx.array, y: mx.array", "may change"),
    "a negative zero": ("return mx.tanh(x * -0.0) + y", "x: mx.array, y: mx.array", "-0.0"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "arguments", "because"), ADVICE.values(), ids=ADVICE)
def test_advice_says_why(body: str, arguments: str, because: str) -> None:
    (m,) = found(body, arguments)
    assert because in m.data["no_fix"]


def attribute(value: str) -> Match:
    source = f"""import numpy as np
{HEAD}class M(nn.Module):
    def __init__(self, config, d: int):
        super().__init__()
        self.scale = {value}

    def __call__(self, x: mx.array, y: mx.array):
        return mx.tanh(x * self.scale) + y
"""
    (m,) = reported(source, "M.__call__")
    return m


def test_attributes_must_be_what_a_compiled_function_takes() -> None:
    for value in ("d ** -0.5", "mx.ones((d,))", "0.5"):
        m = attribute(value)
        assert (m.data["no_fix"], m.obligations) == ("", [])
    assert [o.claim for o in attribute("config.scale").obligations] == ["`self.scale` is an array or a Python number"]
    assert "neither" in attribute("np.float32(0.5)").data["no_fix"]  # mx.compile raises ValueError


def test_a_cast_of_what_may_be_a_number_does_not_count() -> None:
    assert found("return x.astype(mx.float32) * s", "x: mx.array, s") == []
    assert len(found("return x.astype(mx.float32) * y * s", "x: mx.array, y: mx.array, s")) == 1


def test_advice_without_mlx_at_the_top_of_the_module() -> None:
    source = "def f(x):\n    import mlx.core as mx\n\n    return mx.tanh(mx.exp(x) * 2) + 1\n"
    (m,) = reported(source)
    assert "not imported" in m.data["no_fix"]


def test_mlx_core_is_imported_beside_mlx_nn() -> None:
    source = """from mlx import nn


def f(x, w):
    return nn.silu(x @ w) * (x @ w)
"""
    fixed = fix_text(FileText("m.py", source), Settings(select=(RULE.code,))).after
    assert fixed.startswith("from functools import partial\n\nimport mlx.core as mx\nfrom mlx import nn\n\n\n")
    assert "@partial(mx.compile, shapeless=True)\ndef swiglu(" in fixed


def test_an_argument_that_may_be_a_number_is_an_unknown_obligation() -> None:
    (m,) = found("return mx.tanh(x * s) + y", "x: mx.array, y: mx.array, s")
    assert [(o.claim, o.verdict) for o in m.obligations] == [("`s` is an array", "unknown")]


SILENT = {
    "rotary tables": "t = mx.arange(64) / 64\nreturn x @ (1.0 / (10000.0 ** (t * 2.0 + 1.0)))",
    "angles": "a = x[:, None] * z * 2 + 1\nreturn mx.cos(a) @ y, mx.sin(a) @ y",
    "positions": "p = mx.arange(x.shape[1]) + y\nq = p * 2.0 + 1.0 - y\nreturn x @ mx.log(q)",
    "a boolean mask": "return mx.logical_and(x > 0, mx.logical_not(y < 1)) @ z",
    "an additive mask": "return (1.0 - x.astype(mx.float32)) * -1e9",
    "statistics of rows": "v = x.var(-1, keepdims=True)\nreturn x @ mx.rsqrt(v * 2 + 1e-5)",
    "coordinates": "return (x[:, 0] * 0.5 + x[:, 1]) * 2 + x[:, 2]",
    "sampling points": "B, Q, D = x.shape\no = (x @ y).reshape(B, Q, 8, 4, 2)\n"
    "return z[:, :, None, :, :2] + o / 4 * z[:, :, None, :, 2:] * 0.5",
    "rows of a few codes": "h = mx.tanh((x @ y).reshape(-1, 8)) * 0.999\nreturn (h + 1) * 2 - 1",
    "boxes": "b = x.reshape(-1, 4)\nreturn mx.clip(b * 2 - 1, 0, 1) * 0.5",
    "points": "return (x * 2 + 0.5) / mx.array([y.shape[0], y.shape[1]]) - 1",
    "indices": "i = mx.clip(x * 0.5 + 1, 0, 9)\nreturn mx.take_along_axis(y, i.astype(mx.int32), axis=-1)",
    "what only a selection reads": "s = mx.exp(x * 2) + y\nreturn mx.argpartition(-s, 4, axis=-1)",
    "a loss": "return mx.mean(mx.square(x - y) * z + 1)",
    "angles before they are repeated": "a = x.astype(mx.float32) * y * 2\ne = mx.concatenate([a, a], axis=-1)\n"
    "return mx.cos(e) @ z, mx.sin(e) @ z",
    "a mask of infinities": "return mx.where(x > 0, mx.array(0.0), mx.array(-float('inf'))) + y",
    "losses of tokens": "l = nn.losses.cross_entropy(x, y)\nreturn (l * 2 + 1).astype(mx.float32) * 0.5",
    "an image for the eye": "return mx.clip(x / 2 + 0.5, 0, 1)",
    "an image in bytes": "return mx.round(mx.clip((x.astype(mx.float32) + 1) * 127.5, 0.0, 255.0))",
    "a uint8 image": "return mx.clip(x * 127.5 + 127.5, 0, 255).astype(mx.uint8)",
    "codes": "return (((x * y + 1) * z).sum(axis=-1) + 0.5).astype(mx.int32)",
    "a mask of the lowest number": "m = x.astype(mx.float32) * 2\nreturn (1.0 - m) * mx.finfo(mx.float32).min + y",
    "a sample": "return x + mx.exp(0.5 * y) * mx.random.normal(x.shape)",
    "a spectrum": "return x * mx.cos(y) + 1j * (x * mx.sin(y))",
    "what a transform takes": "s = (x * y).astype(mx.float32) + 1j * (x * z)\n"
    "return mx.fft.irfft(s.transpose(0, 2, 1), n=512, axis=-1)",
    "features of a signal": "p = mx.abs(mx.fft.rfft(x, axis=-1)) ** 2\nreturn mx.log10(mx.maximum(p @ y, 1e-10)) * 10",
    "a sample with a positive deviation": "return x + nn.softplus(y) * mx.random.normal(x.shape) / 2",
    "decibels, scaled": "l = mx.log10(x @ y)\nreturn (mx.maximum(l, l.max() - 8.0) + 4.0) / 4.0",
    "powers of a signal": "return mx.square(mx.abs(mx.fft.rfft(x * y))).astype(x.dtype) * 2",
    "phases": "return mx.arctan2(x.astype(mx.float32), y.astype(mx.float32)).astype(x.dtype)",
    "neighbours on a grid": "g = (mx.arange(64) + 0.5) * 0.3 - 0.5\ni = mx.floor(g).astype(mx.int32)\n"
    "w = (g - i)[:, None]\nreturn x[i] * (1 - w) + x[mx.minimum(i + 1, 8)] * w",
    "neighbours on a grid whose ends are clipped": "g = mx.clip((mx.arange(9) + 0.5) / 3 - 0.5, 0, 8)\n"
    "i = g.astype(mx.int32)\nw = (g - i)[:, None]\nreturn x[i] * (1 - w) + x[mx.minimum(i + 1, 8)] * w",
    "lengths": "return (x + 2 - 1 * (3 - 1) - 1) // 2 + 1",
    "positions that are whole": "p = x[:, None] + (mx.arange(64)[None] * y[:, None]).astype(mx.int32)\n"
    "return z[mx.where(p < 9, p, 8)]",
    "decays that all pairs are made of": "c = mx.cumsum(mx.log(mx.clip(x * 2, 1e-6, 1.0)), axis=-1)\n"
    "return mx.exp(c[..., :, None] - c[..., None, :]) @ (mx.exp(c)[..., None] * y)",
    "gates of heads": "return z * (2 * mx.sigmoid(x @ y))[..., None]",
    "latents of another model": "m = z.norm.running_mean.reshape(1, -1, 1).astype(x.dtype)\n"
    "return (x - m) / mx.sqrt(z.norm.running_var.reshape(1, -1, 1) + z.norm.eps).astype(x.dtype) * 2 + y",
    "a number a token": "h = (x @ y).reshape(4, 64, 1).squeeze(-1)\nreturn mx.log(1 + mx.exp(h * 2)) @ z",
    "numbers of rows": "return z * (mx.exp(x * 2) + y)[..., None]",
    "some entries": "v = x[:, z]\nx[:, z] = mx.where(v < 0, v * y, v / 3)\nreturn x",
    "a parameter of a layer": "z.weight = (1.0 + z.weight.astype(mx.float32)) / y - 1.0",
    "a gate of channels": "B, H, W, C = x.shape\nreturn x * mx.sigmoid(mx.mean(x, axis=(1, 2), keepdims=True) @ y)",
}


@pytest.mark.parametrize("body", SILENT.values(), ids=SILENT)
def test_small_values_are_not_worth_a_kernel(body: str) -> None:
    assert found(body) == []


STEP = "latents + 0.5 * (velocity - x) * 2.0"
LOOPS = {
    "a sampler": (f"for t in times:\n    velocity = model(latents, t)\n    latents = {STEP}\nreturn latents", 0),
    "layers": (f"for layer in times:\n    velocity = layer(latents)\n    latents = {STEP}\nreturn latents", 1),
    "layers by number": (
        f"for i in range(8):\n    velocity = times[i](latents)\n    latents = {STEP}\nreturn latents", 1,
    ),
    "layers by name": (
        f'for i in range(8):\n    velocity = model(latents, f"blocks.{{i}}")\n    latents = {STEP}\nreturn latents', 1,
    ),
    "a recurrence": (
        f"for t in range(8):\n    velocity = model(x[:, t], latents)\n    latents = {STEP}\nreturn latents", 1,
    ),
    "a layer whose result the loop does not carry": (
        f"for t in times:\n    velocity = model(x, t)\n    out = {STEP}\nreturn out", 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("body", "count"), LOOPS.values(), ids=LOOPS)
def test_steps_around_a_whole_model_are_rare(body: str, count: int) -> None:
    arguments = "x: mx.array, latents: mx.array, model, times"
    assert len(found(body.replace("velocity - x", "velocity - x[0]") if "t]" in body else body, arguments)) == count


SCHEDULES = {
    "a number of a list": ("s = mx.array(t[k])", 0),
    "a number that is given": ("s = mx.array(k)", 0),
    "an element of a table": ("s = mx.linspace(0, 1, 9)[k]", 0),
    "an element of a list of the object": ("s = (o.sigmas[i + 1] - o.sigmas[i]) / 2", 0),
    "what lies between two elements": ("u = mx.linspace(0, 1, 9)\ns = u[k + 1] - u[k]", 0),
    "an element of an array that is kept": ("s = self.sigmas[k]", 0),
    "a ratio of what is computed of two": (
        "a, b = self.sigmas[k], self.sigmas[k + 1]\ns = mx.exp(a) * 2 / mx.exp(b)",
        0,
    ),
    "an element, or the last one": ("s = self.sigmas[k] if k < 8 else self.last", 0),
    "a number that gets axes": ("s = mx.array(k)\nwhile s.ndim < x.ndim:\n    s = mx.expand_dims(s, -1)", 0),
    "a number that stays": ("s = mx.array(0.3)", 1),
    "a row": ("s = mx.ones((9, 64))[k]", 1),
}


@pytest.mark.parametrize(("made", "count"), SCHEDULES.values(), ids=SCHEDULES)
def test_numbers_of_a_schedule_make_steps(made: str, count: int) -> None:
    body = made.replace("\n", "\n        ")
    source = f"""{HEAD}class Scheduler:
    def __init__(self):
        self.sigmas = mx.linspace(0, 1, 9)
        self.last = mx.array(1.0)

    def step(self, x: mx.array, y: mx.array, t: list, k: int, i: int, o):
        {body}
        return (1 - s) * x + s * mx.tanh(y)
"""
    assert len(reported(source, "Scheduler.step")) == count


def test_a_row_of_a_layers_table_is_no_step() -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.scales = mx.ones((n, d))

    def __call__(self, x: mx.array, y: mx.array, k: int):
        s = self.scales[k]
        return (1 - s) * x + s * mx.tanh(y)
"""
    assert len(reported(source, "M.__call__")) == 1


GUIDANCE = {
    "guidance": ("(1 + s) * y.astype(mx.float32) - s * x.astype(mx.float32)", "s", 0),
    "guidance from the other end": ("x + s * (y - x) + 0.0", "s", 0),
    "noise": ("s * x + (1.0 - s) * y", "s", 0),
    "a gate": ("s * x + (1.0 - s) * y", "s: mx.array", 1),
    "a scale and a sum": ("(1 + s) * x + y * 2.0 * s", "s", 1),
    "a residual": ("x + s * (y - x) * 0.5", "s", 1),
}


@pytest.mark.parametrize(("expression", "argument", "count"), GUIDANCE.values(), ids=GUIDANCE)
def test_a_line_through_two_values_at_a_number_is_a_step(expression: str, argument: str, count: int) -> None:
    assert len(found(f"return {expression}", f"x: mx.array, y: mx.array, {argument}")) == count


MIXED = {
    "by options": ("x + (o.s - 1) * (x - y) + o.t * (x - z)", "x: mx.array, y: mx.array, z: mx.array, o", 0),
    "or numbers": ("x + s * (x - y) + t * (x - z)", "x: mx.array, y: mx.array | float, z, s: float, t: float", 0),
    "of which one may be off": ("x + o.s * (x - y) + 0.0 * z", "x: mx.array, y: mx.array, z: mx.array, o", 0),
    "by arrays": (
        "x + s * (x - y) + t * (x - z)",
        "x: mx.array, y: mx.array, z: mx.array, s: mx.array, t: mx.array",
        1,
    ),
    "a sum": ("x + o.s * (x - y) + o.t * (x + z)", "x: mx.array, y: mx.array, z: mx.array, o", 1),
    "by none": ("x + 2.0 * (x - y) + 3.0 * (x - z)", "x: mx.array, y: mx.array, z: mx.array, o", 1),
}


@pytest.mark.parametrize(("expression", "arguments", "count"), MIXED.values(), ids=MIXED)
def test_a_mixture_of_several_predictions_is_a_step(expression: str, arguments: str, count: int) -> None:
    assert len(found(f"return {expression}", arguments)) == count


def test_a_mixture_by_what_a_layer_learns_is_worth_it() -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.s, self.t = mx.ones((d,)), mx.ones((d,))

    def __call__(self, x: mx.array, y: mx.array, z: mx.array):
        return x + self.s * (x - y) + self.t * (x - z)
"""
    assert len(reported(source, "M.__call__")) == 1


def test_a_modulation_by_a_row_is_worth_it() -> None:
    (m,) = found("return x * (1 + y[:, None]) + z[:, None]")
    assert m.data["kernels"] == 3


def test_a_number_is_one_where_arithmetic_of_it_must_be() -> None:
    body = (
        "if n is None:\n    n = x.shape[0] // step\ni = mx.arange(n)\nreturn mx.where(i < n, mx.exp(x * y) + 1, 0) * z"
    )
    assert found(body, "x: mx.array, y: mx.array, z: mx.array, step, n=None") == []  # each n would be compiled again


def test_pairs_that_a_rotation_turns_are_worth_it() -> None:
    (m,) = found("p = x.reshape(*x.shape[:-1], -1, 2)\nreturn mx.tanh(p * y[..., None]) + p * z[..., None]")
    assert m.data["kernels"] == 4


def test_weights_alone_are_another_rule() -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a = mx.ones((d,))
        self.b = mx.zeros((d,))

    def __call__(self, x):
        return x @ (mx.exp(self.a) * 2 + self.b)
"""
    assert reported(source, "M.__call__") == []


FOREIGN = {
    "an annotation": f"import numpy as np\n{HEAD}def f(x: np.ndarray):\n    return np.tanh(x * x + 1) * x\n",
    "a call": f"import numpy as np\n{HEAD}def f(p):\n    x = np.load(p)\n    return mx.array(x * 2 + 1) @ x\n",
    "torch": f"import torch\n{HEAD}def f(p):\n    x = torch.load(p)\n    return torch.exp(x * 2 + 1) * x\n",
}


@pytest.mark.parametrize("source", FOREIGN.values(), ids=FOREIGN)
def test_other_libraries_are_left_alone(source: str) -> None:
    assert reported(source) == []


@pytest.mark.parametrize("name", ["_double", "triple"])
def test_a_chain_inside_a_helper_is_the_helpers(name: str) -> None:
    source = f"""{HEAD}def {name}(x: mx.array, y: mx.array):
    return mx.tanh(x * y + 1)


def f(x: mx.array, y: mx.array, z: mx.array):
    return {name}(x, y) @ {name}(y, z)
"""
    assert reported(source) == []
    assert len(reported(source, name)) == 1


def test_a_chain_through_a_helper_is_the_callers() -> None:
    source = f"""{HEAD}def half(x: mx.array):
    return x * 0.5


def f(x: mx.array, y: mx.array):
    return mx.tanh(half(x + y)) @ y
"""
    (m,) = reported(source)
    assert ops(m) == ["add", "multiply", "tanh"]


def test_the_chain_is_what_the_compiler_fuses_alone() -> None:
    """The helper of a chain has the kernels that the finding says."""
    mx = pytest.importorskip("mlx.core")
    from tests.graph.test_fuse import kernel_names

    (m,) = found("return mx.tanh(x * y + 1) * nn.silu(z)")
    helper = mx.compile(lambda x, y, z: mx.tanh(x * y + 1) * (z * mx.sigmoid(z)))
    arguments = [mx.ones((4, 8)) for _ in range(3)]
    mx.eval(arguments)
    assert len(kernel_names(helper(*arguments))) == len(m.fused) == 1


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("x * y + z * w", "sum_of_products"),
        ("x * y - z * w", "difference_of_products"),
        ("x + y + z + w", "sum_of_four"),
        ("x * y * z * w", "product_of_four"),
        ("x + w * (y - x)", "lerp"),
        ("(1 - w) * x + w * y", "lerp"),
        ("x + w * (x - y)", "subtract_multiply_add"),
        ("(1 - w) * x + z * y", "fused_rotate"),
        ("x * (1 + y) + z", "modulate"),
        ("mx.tanh(x / 5.0) * 5.0", "softcap"),
        ("x * mx.sigmoid(x) * y", "swiglu"),
        ("x * mx.sigmoid(y.astype(mx.float32))", "sigmoid_gate_float32"),
        ("mx.tanh(x) * mx.square(y) + z", "fused_rotate"),
        ("nn.silu(x.astype(mx.float32)).astype(x.dtype)", "silu_float32"),
        ("mx.round(x * 2 / 3)", "multiply_divide_round"),
    ],
)
def test_a_helper_is_named_for_what_it_computes(expression: str, name: str) -> None:
    method = "    def rotate(self, x: mx.array, y: mx.array, z: mx.array, w: mx.array):\n"
    text = f"{HEAD}class A:\n{method}        t = {expression}\n        return mx.max(t) @ x\n"
    after = fix_text(FileText("m.py", text), Settings(select=("FUS301",), min_kernels=2)).after
    assert f"\ndef {name}(" in after, after


def test_a_helper_is_named_for_the_function_that_it_is() -> None:
    text = f"{HEAD}def denormalised(x: mx.array):\n    return mx.clip(x / 3 + 0.5, 0, 1)\n"
    after = fix_text(FileText("m.py", text), Settings(select=("FUS301",))).after
    assert "def fused_denormalised(" in after


def test_a_helper_hides_no_builtin() -> None:
    text = f"{HEAD}def abs_(x: mx.array):\n    return mx.sqrt(x * x + 1e-9)\n"
    after = fix_text(FileText("m.py", text), Settings(select=("FUS301",))).after
    assert "def fused_abs(" in after


def fixed(source: str, *, verify: bool = False, unsafe: bool = False) -> FixedFile:
    if verify:
        pytest.importorskip("mlx.core")
    return fix_text(FileText("m.py", source), Settings(select=(RULE.code,), unsafe_fixes=unsafe), verify)


def test_complex_values_are_compiled_too() -> None:
    source = f"""{HEAD}def rotate(x: mx.array, y: mx.array, freqs: mx.array) -> mx.array:
    turned = (x.astype(mx.float32) + 1j * y.astype(mx.float32)) * freqs
    return mx.real(turned) @ mx.imag(turned).T
"""
    out = fixed(source, verify=True)
    assert [len(out.applied), len(out.withheld)] == [1, 0]
    assert "return (x.astype(mx.float32) + 1j * y.astype(mx.float32)) * freqs" in out.after


SIGNATURES = {
    "an int and a float of an instance": (
        "return mx.tanh(x * self.n + self.scale) + y", "(x: mx.array, n: int, scale: float, y: mx.array)",
    ),
    "a name of Python's own": ("min = mx.exp(x)\n        return mx.tanh(min * x + y) @ min", "(min_: mx.array, "),
    "what may be a number": ("return mx.tanh(x * self.other.gain + 1) + y", "(x: mx.array, gain, y: mx.array)"),
    "a part of a value": ("return mx.tanh(x[:, 0] * y + 1) @ x", "(x: mx.array, y: mx.array)"),
    "parts beside the value": ("return mx.tanh(x[:, 0] * x + 1) + y", "(x2: mx.array, x: mx.array, y: mx.array)"),
    "a product without a name": ("return mx.tanh((x @ y) * x + 1)", "(y: mx.array, x: mx.array)"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "signature"), SIGNATURES.values(), ids=SIGNATURES)
def test_the_helpers_parameters_say_what_they_are(body: str, signature: str) -> None:
    source = f"""{HEAD}class M(nn.Module):
    def __init__(self, other, n: int, scale: float):
        super().__init__()
        self.other, self.n, self.scale = other, n, scale

    def __call__(self, x: mx.array, y: mx.array):
        {body}
"""
    after = fixed(source, unsafe=True).after
    assert signature in after.replace("\n    ", "").replace(",)", ")"), after


def test_needs_are_in_the_words_of_the_code() -> None:
    (m,) = found("return mx.tanh(x * half(x, 2)) + y", "x: mx.array, y: mx.array, half")
    assert [o.claim for o in m.obligations] == ["`half(x, 2)` is an array"]


def test_functions_that_say_so_return_arrays() -> None:
    stated = "@later\ndef half(x) -> mx.array:\n    return give(x)\n\n\n"
    source = f"{HEAD}{stated}def f(x: mx.array, y: mx.array):\n    return mx.tanh(x * half(x)) + y\n"
    (m,) = reported(source)
    assert m.obligations == []


def test_what_a_loop_carries_is_an_array_where_its_steps_make_one() -> None:
    body = "out = mx.zeros((4, 4096, 512))\nfor i in range(3):\n    out = mx.tanh(out * x) + y\nreturn out"
    (m,) = found(body)
    assert m.obligations == []


def test_functools_where_partial_is_another_name() -> None:
    after = fixed(f"{HEAD}def f(x: mx.array, y: mx.array, partial=None):\n    return nn.silu(x) * y\n").after
    assert after.startswith("import functools\n\nimport mlx.core as mx\n")
    assert "@functools.partial(mx.compile, shapeless=True)" in after


# -- activations that the constructor is given ------------------------------------------------------------------------


def gated(default: str, product: str = "self.act(gate) * up") -> str:
    return f"""{HEAD}class M(nn.Module):
    def __init__(self, d: int, act={default}):
        super().__init__()
        self.a = nn.Linear(d, d)
        self.b = nn.Linear(d, d)
        self.act = act

    def __call__(self, x):
        gate = self.a(x)
        up = self.b(x)
        return {product}
"""


@pytest.mark.parametrize(
    ("default", "test", "silent"),
    [("nn.SiLU()", "isinstance(self.act, nn.SiLU)", "nn.ReLU()"), ("nn.silu", "self.act is nn.silu", "nn.relu")],
)
def test_the_new_code_asks_which_activation_was_given(default: str, test: str, silent: str) -> None:
    mx, nn = pytest.importorskip("mlx.core"), pytest.importorskip("mlx.nn")
    source = gated(default)
    after = fix_text(FileText("m.py", source), Settings(select=("FUS301",))).after
    assert test in after
    assert fix_text(FileText("m.py", after), Settings(select=("FUS301",))).after == after
    spaces: list[dict[str, Any]] = [{}, {}]
    for text, space in zip((source, after), spaces, strict=True):
        exec(text, space)
    x = mx.random.normal((3, 8))
    for given in (default, silent):
        mx.random.seed(0)
        old = spaces[0]["M"](8, eval(given, {"nn": nn}))
        new = spaces[1]["M"](8, eval(given, {"nn": nn}))
        new.update(old.parameters())
        assert mx.allclose(old(x), new(x)).item()


@pytest.mark.parametrize(
    ("default", "product"),
    [
        ("nn.ELU()", "self.act(gate) * up"),  # what it computes is settable
        ("nn.SiLU()", "self.act(self.a(x)) * up"),  # a call that would stand there twice
    ],
)
def test_other_given_activations_are_advice(default: str, product: str) -> None:
    (finding,) = fixed(gated(default, product), unsafe=True).remaining.findings
    assert finding.fix is not None and finding.fix.applicability == "none"


def test_a_choice_by_the_activation_is_left_alone() -> None:
    choice = "nn.silu(gate) if isinstance(self.act, nn.SiLU) else self.act(gate) * up"
    assert reported(gated("nn.SiLU()", choice), "M.__call__") == []


def test_what_runs_once_is_told_of_where_the_user_says_that_it_is_hot() -> None:
    source = (
        f"{HEAD}class Scheduler:\n    def __init__(self):\n        self.sigmas = mx.linspace(1.0, 0.0, 50)\n\n"
        "    def step(self, x: mx.array, v: mx.array, i: int):\n"
        "        sigma = self.sigmas[i]\n        return (x + v * sigma) * 0.5 - x * sigma\n"
    )
    found = [check_file(FileText("m.py", source), Settings(select=("FUS301",), hot=h)).findings for h in ((), ("*",))]
    assert [len(f) for f in found] == [0, 1]


SCALED = f"""{HEAD}def warp(x: mx.array):
    return 1127.0 * mx.log(1.0 + x / 700.0)


def bank(low: float, count: int, step: float):
    floor = float(warp(mx.array(low)))
    return warp(step * mx.arange(count)) + floor


class Stepper:
    def __init__(self, sigmas: mx.array):
        self.sigmas = sigmas
        self.points = mx.arange(0, 200.0)

    def step(self, i: int):
        at = self.sigmas[i + 1]
        return warp(at) + mx.sum(warp(at + self.points * 0.1))
"""


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ("", 0),
        ("def spread(x: mx.array):\n    return warp(x)\n", 1),
        ("def spread(layer: nn.Linear, x):\n    return warp(layer(x))\n", 1),
    ],
)
def test_what_every_call_gives_tables_or_single_numbers_is_small(more: str, count: int) -> None:
    assert len(told(f"{SCALED}\n\n{more}")) == count
    assert len(told(f"{HEAD}def warp(x: mx.array):\n    return 1127.0 * mx.log(1.0 + x / 700.0)\n")) == 1


def told(text: str, *, code: str = "FUS301", function: str = "warp") -> list[Finding]:
    found = check_file(FileText("m.py", text), Settings(select=(code,))).findings
    return [f for f in found if f.function == function]


POSITIONS = f"""{HEAD}class Tau(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.alpha = mx.zeros((heads,))

    def __call__(self, x: mx.array, positions: mx.array):
        at = mx.log(positions + 1.0)
        tau = 1.0 + (mx.sigmoid(self.alpha[:, None] * at[None, :]) - 0.5)
        return x @ tau


class Attention(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.tau = Tau(heads)

    def __call__(self, x: mx.array, offset: int):
        return self.tau({{first}}, {{second}})
"""
ROWS = "mx.arange(offset, offset + x.shape[1])"


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("x", ROWS, 0),
        ("x", f"{ROWS} * self.tau.alpha[0]", 0),
        ("x", "mx.softmax(x[0, :, 0])", 1),
        (ROWS, ROWS, 1),  # a layer that is given nothing else may be called with an activation elsewhere
    ],
)
def test_positions_that_a_layer_is_given_are_small(first: str, second: str, count: int) -> None:
    found = told(POSITIONS.format(first=first, second=second), function="Tau.__call__")
    assert len([f for f in found if "sigmoid" in f.message]) == count


CUBIC = f"""from functools import lru_cache

{HEAD}def cubic(t: mx.array):
    return mx.where(mx.abs(t) < 2.0, mx.exp(t), mx.zeros_like(t))


{{cached}}def weights(size, scale):
    at = (mx.arange(size) + 0.5) / scale
    return cubic(at[:, None] - mx.floor(at)[:, None])


def resized(x: mx.array, size):
    def along(at, n):
        return cubic(at[:, None] - mx.arange(n))

    at = mx.arange(x.shape[0]) + 0.5
    return x @ weights(x.shape[1], size) @ along(at, x.shape[0]){{more}}
"""


@pytest.mark.parametrize(
    ("cached", "more", "count"),
    [
        ("@lru_cache\n", "", 0),
        ("", "", 1),  # nothing says that the scale is a number
        ("@lru_cache\n", " @ cubic(x)", 1),
    ],
)
def test_zeros_in_tables_are_small(cached: str, more: str, count: int) -> None:
    assert len(told(CUBIC.format(cached=cached, more=more), code="FUS106", function="cubic")) == count


LIMITED = f"""from dataclasses import dataclass

{HEAD}@dataclass
class Config:
    limit: float = 1e4


class Limited(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self._limit = mx.array(config.limit)  # no parameter: it stays in float32, and x is cast

    def __call__(self, x: mx.array, y: mx.array) -> mx.array:
        return {{}}
"""


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("mx.clip(x, -self._limit, self._limit)", 0),  # as with limits that are Python numbers
        ("mx.clip(x, -(self._limit + 1) * 2, self._limit)", 0),
        ("mx.clip(x * y, -self._limit, self._limit)", 1),
        ("mx.clip(x, -y, y) * self._limit", 1),
    ],
)
def test_a_clip_alone_is_no_chain_whatever_its_limits_are_made_of(value: str, count: int) -> None:
    assert len(reported(LIMITED.format(value), "Limited.__call__")) == count


def test_an_entry_that_is_read_twice_is_given_once() -> None:
    source = f"""{HEAD}from mlx.optimizers import Optimizer


class Own(Optimizer):
    def init_single(self, parameter, state):
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient, parameter, state):
        m = gradient / (1 - 0.9 ** self.state["step"])
        v = state["v"] / (1 - 0.99 ** self.state["step"])
        return m / (mx.sqrt(v) + 1e-8)
"""
    (m,) = reported(source, "Own.apply_single")
    assert [o.verdict for o in m.obligations if o.verdict != "proven"] == []
    assert [n.attrs.get("index") for n in m.holes.values()] == ["step", None, "v"]
    changed = source.replace("        v = state", '        self.state["step"] = gradient\n        v = state')
    assert all(len({*m.holes.values()}) == len(m.holes) for m in reported(changed, "Own.apply_single"))
    assert not any(m.data["aliases"] for m in reported(changed, "Own.apply_single"))
