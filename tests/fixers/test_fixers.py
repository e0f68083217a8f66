"""All fixers on whole modules: text before and after, the same results on MLX, and what must hold of every fix."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import FixedFile, fix_text
from fuselint.source.text import FileText

NORM = (
    '''
import mlx.core as mx
import mlx.nn as nn


class RootMeanSquare(nn.Module):
    """Scale to unit root mean square."""

    def __init__(self, width: int, tiny: float = 1e-6):
        super().__init__()
        self.gain = mx.ones((width,))
        self.tiny = tiny

    def _scaled(self, t):
        # the mean is over features
        return t * mx.rsqrt(mx.mean(t * t, axis=-1, keepdims=True) + self.tiny)

    def __call__(self, rows: mx.array) -> mx.array:
        kind = rows.dtype
        rows = rows.astype(mx.float32)  # half precision overflows
        rows = self._scaled(rows)

        return self.gain * rows.astype(kind)
''',
    '''
import mlx.core as mx
import mlx.nn as nn


class RootMeanSquare(nn.Module):
    """Scale to unit root mean square."""

    def __init__(self, width: int, tiny: float = 1e-6):
        super().__init__()
        self.gain = mx.ones((width,))
        self.tiny = tiny

    def __call__(self, rows: mx.array) -> mx.array:
        # half precision overflows
        # the mean is over features
        return mx.fast.rms_norm(rows, self.gain, self.tiny)
''',
)

ATTENTION = (
    """
import mlx.core as mx
import mlx.nn as nn


class Heads(nn.Module):
    def __init__(self, width: int, count: int):
        super().__init__()
        self.count = count
        self.factor = (width // count) ** -0.5
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)

    def __call__(self, rows: mx.array, bias=None) -> mx.array:
        B, L, _ = rows.shape
        q, k, v = mx.split(self.inward(rows), 3, axis=-1)
        q = q.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)
        k = k.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)
        v = v.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)

        # scores of all pairs
        q = q * self.factor
        weights = q @ k.swapaxes(-1, -2)
        if bias is not None:
            # such as a causal mask
            weights = weights + bias
        weights = mx.softmax(weights, axis=-1, precise=True)
        mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, -1)
        return self.outward(mixed)
""",
    """
import mlx.core as mx
import mlx.nn as nn


class Heads(nn.Module):
    def __init__(self, width: int, count: int):
        super().__init__()
        self.count = count
        self.factor = (width // count) ** -0.5
        self.inward = nn.Linear(width, 3 * width, bias=False)
        self.outward = nn.Linear(width, width, bias=False)

    def __call__(self, rows: mx.array, bias=None) -> mx.array:
        B, L, _ = rows.shape
        q, k, v = mx.split(self.inward(rows), 3, axis=-1)
        q = q.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)
        k = k.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)
        v = v.reshape(B, L, self.count, -1).transpose(0, 2, 1, 3)

        # scores of all pairs
        # such as a causal mask
        mixed = (
            mx.fast.scaled_dot_product_attention(q, k, v, scale=self.factor, mask=bias)
            .transpose(0, 2, 1, 3)
            .reshape(B, L, -1)
        )
        return self.outward(mixed)
""",
)

GATES = (
    """
import mlx.core as mx
from mlx import nn


class Gated(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up_proj = nn.Linear(width, 2 * width)
        self.gate_proj = nn.Linear(width, 2 * width)
        self.down_proj = nn.Linear(2 * width, width)

    def __call__(self, x: mx.array) -> mx.array:
        up = self.up_proj(x)
        gate = nn.silu(self.gate_proj(x))
        return self.down_proj(gate * up)


class Twice(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def __call__(self, x: mx.array) -> mx.array:
        return nn.silu(self.a(x)) * self.b(x)
""",
    """
from functools import partial

import mlx.core as mx
from mlx import nn


@partial(mx.compile, shapeless=True)
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return nn.silu(gate) * up


class Gated(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up_proj = nn.Linear(width, 2 * width)
        self.gate_proj = nn.Linear(width, 2 * width)
        self.down_proj = nn.Linear(2 * width, width)

    def __call__(self, x: mx.array) -> mx.array:
        up = self.up_proj(x)
        return self.down_proj(swiglu(self.gate_proj(x), up))


class Twice(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def __call__(self, x: mx.array) -> mx.array:
        return swiglu(self.a(x), self.b(x))
""",
)

SNAKE = (
    """
import mlx.core as mx
import mlx.nn as nn


class Snake(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.alpha = mx.ones((channels,))
        self.scale = 0.5

    def __call__(self, x: mx.array) -> mx.array:
        wave = mx.sin(self.alpha * x)
        return x + (1.0 / (self.alpha + 1e-9)) * mx.square(wave) * self.scale
""",
    """
from functools import partial

import mlx.core as mx
import mlx.nn as nn


@partial(mx.compile, shapeless=True)
def snake(x: mx.array, alpha: mx.array, scale: float) -> mx.array:
    return x + 1.0 / (alpha + 1e-9) * mx.square(mx.sin(alpha * x)) * scale


class Snake(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.alpha = mx.ones((channels,))
        self.scale = 0.5

    def __call__(self, x: mx.array) -> mx.array:
        return snake(x, self.alpha, self.scale)
""",
)

CASES = {"norm": NORM, "attention": ATTENTION, "gates": GATES, "snake": SNAKE}
MODELS = {
    "norm": ("RootMeanSquare(16)", (2, 5, 16)),
    "attention": ("Heads(32, 4)", (2, 5, 32)),
    "gates": ("nn.Sequential(Gated(16), Twice(16))", (2, 5, 16)),
    "snake": ("Snake(16)", (2, 5, 16)),
}


def fixed(text: str, newline: str = "\n") -> FixedFile:
    return fix_text(FileText("m.py", text, newline), Settings(unsafe_fixes=True))


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str) -> None:
    before, after = CASES[name]
    assert fixed(before).after == after


@pytest.mark.parametrize("name", MODELS)
def test_a_second_run_changes_nothing(name: str) -> None:
    once = fixed(source(name)).after
    assert once != source(name)
    assert fixed(once).after == once


@pytest.mark.parametrize("name", MODELS)
def test_windows_line_endings_make_no_difference(name: str) -> None:
    before = source(name)
    after = fixed(before).after
    assert fixed(before.replace("\n", "\r\n"), "\r\n").after == after.replace("\n", "\r\n")


@pytest.mark.parametrize("name", MODELS)
def test_names_make_no_difference(name: str) -> None:
    """Locals and arguments are renamed, with as many letters, so that lines break alike."""
    before = source(name)
    own = set(re.findall(r"^ {8}(\w+) = |(?<=\(self, )(\w+)", before, re.M))
    names = {n for pair in own for n in pair if n and not n.startswith("_")}
    if name in ("gates", "snake"):
        names -= {"x", "up", "gate"}  # a helper's parameters are named after them
    swap = {n: n[:-1] + ("z" if n[-1] != "z" else "y") if len(n) > 1 else n.swapcase() for n in names}

    def renamed(text: str) -> str:
        return re.sub(r"(?<![.\w])\w+\b", lambda m: swap.get(m[0], m[0]), text)

    assert fixed(renamed(before)).after == renamed(fixed(before).after)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_results_on_mlx(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    make, shape = MODELS[name]
    mx.random.seed(3)
    x = mx.random.normal(shape)
    before, after = run(source(name), make), run(fixed(source(name)).after, make)
    after.update(before.parameters())
    for value in (x, x * 1e-3, x[:1, :1]):
        assert mx.allclose(before(value), after(value), rtol=1e-5, atol=1e-6).item()
    assert before(x.astype(mx.bfloat16)).dtype == after(x.astype(mx.bfloat16)).dtype


def source(name: str) -> str:
    return CASES[name][0]


def run(text: str, make: str) -> Any:
    import mlx.nn as nn

    space: dict[str, Any] = {"__name__": "m"}
    exec(compile(text, "m.py", "exec"), space)
    return eval(make, {**space, "nn": nn})
