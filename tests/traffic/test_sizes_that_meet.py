"""Operands whose sizes follow from each other: by what they are broadcast to, and by what their axes stand above.

Each formula is set beside the bytes that MLX moves for arrays of small, different sizes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def cost(path: Path, text: str, code: str = "FUS301") -> Traffic:
    path.write_text(HEAD + text)
    (result,) = check_paths([path], select=[code], cache=False)
    (traffic,) = [f.traffic for f in result.findings if f.traffic is not None]
    return traffic


def moved(*kernels: tuple[mx.array, ...]) -> int:
    """The bytes of kernels, each given by its operands and result."""
    return sum(a.nbytes for k in kernels for a in k)


def zeros(*shape: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    return mx.zeros(shape, dtype)


def at(traffic: Traffic, **sizes: int) -> dict[str, int]:
    return {name: sizes[name.split(".")[0]] for name in traffic.symbols}


TILED = """
def turn(x: mx.array):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([-b, a], axis=-1)


def rotate(q, angles):
    dtype = q.dtype
    cos = mx.tile(mx.expand_dims(mx.cos(angles), axis=1), (1, 1, 2))
    sin = mx.tile(mx.expand_dims(mx.sin(angles), axis=1), (1, 1, 2))
    return (q * cos[None] + turn(q) * sin[None]).astype(dtype)


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int = 16):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dims, 3 * dims)

    def __call__(self, x: mx.array, angles: mx.array):
        n = x.shape[0]
        q, k, v = self.qkv(x).reshape(n, 3, self.heads, -1).transpose(1, 0, 2, 3)
        q, k = rotate(mx.expand_dims(q, 0), angles), rotate(mx.expand_dims(k, 0), angles)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)
"""


def test_what_is_repeated_to_a_width_is_a_part_of_it(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", TILED).otherwise
    assert t is not None
    assert t.dtype == "f32"
    q, cos = zeros(1, 5, 3, 8, dtype=mx.float32), mx.tile(mx.cos(zeros(5, 4, dtype=mx.float32))[:, None], (1, 1, 2))
    assert (q * cos[None]).shape == q.shape
    sizes = {"L": 5, "H": 3, "N": 8}  # and none for half of them
    assert evaluate(t.bytes_now, sizes) == moved((q, cos, q), (q, cos, q), (q, q, q))
    assert evaluate(t.bytes_fused, sizes) == moved((q, cos, q, cos, q))


PARTED = """
class Block(nn.Module):
    def __init__(self, dims: int, mix):
        super().__init__()
        self.gates = nn.Linear(dims, 4 * dims)
        self.mix = mix

    def __call__(self, x, t, test):
        mixed = self.mix(x)
        a, b, c, d = mx.split(self.gates(t), 4, axis=-1)
        chosen = mx.where(test[..., None], a[:, None], b[:, None])
        return x + chosen * mx.tanh(mixed)
"""


def test_parts_of_a_layer_are_as_wide_as_what_they_scale(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", PARTED)
    x, test, part = zeros(2, 5, 8), zeros(2, 5, 1, dtype=mx.bool_), zeros(2, 1, 8)
    chosen = mx.where(test, part, part)
    sizes = {"T": 10, "D": 8, "x.size": x.size, "test.size": test.size}  # and none for the parts
    now = moved((test, part, part, chosen), (x, x), (chosen, x, x), (x, x, x))
    assert evaluate(t.bytes_now, sizes) == now - moved((test, part, part))  # these are negligible


CHOSEN = """
def drop(parts, dropped: mx.array):
    codes = mx.stack(parts)[:, :, 0, :]
    rows = mx.reshape(dropped, (dropped.shape[0], dropped.shape[1], 1))
    return mx.where(rows, mx.zeros_like(codes), codes)
"""


def test_where_has_the_shape_of_all_three(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", CHOSEN, "FUS106")
    codes, dropped = zeros(2, 5, 8), zeros(2, 5, 1, dtype=mx.bool_)
    assert mx.where(dropped, 0.0, codes).shape == codes.shape
    sizes = at(t, T=10, D=8, B=2, L=5)
    assert evaluate(t.bytes_now, sizes) == moved((codes,), (dropped, codes, codes, codes))
    assert evaluate(t.bytes_fused, sizes) == moved((dropped, codes, codes))


PADDED = """
class Condition(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.project = nn.Linear(dims, dims)
        self.padding = mx.zeros((1, 1, dims))

    def __call__(self, given):
        x, mask = self.project(given.tensor), mx.expand_dims(given.mask, axis=-1)
        return x * mask + self.padding * (1 - mask)
"""


def test_a_row_for_each_number_of_a_mask_is_as_large_as_both(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", PADDED)
    x, mask, padding = zeros(2, 5, 8), zeros(2, 5, 1), zeros(1, 1, 8)
    both = padding * (1 - mask)
    sizes = {name: {"T": 10, "D": 8, "given.mask.size": mask.size}[name] for name in t.symbols}
    now = moved((x, mask, x), (mask, mask), (padding, mask, both), (x, both, x))
    assert evaluate(t.bytes_now, sizes) == now - moved((mask,)) * 4 - moved((padding,))  # these are negligible
    assert t.at["given.mask.size"] == t.at["T"]


MODULATED = """
def modulate(x: mx.array, t: mx.array, weights: dict[str, mx.array], name: str):
    parts = t[:, :, 0, :]
    shift = parts[..., 0][:, None] + weights[f"{name}_shift"]
    scale = parts[..., 1][:, None] + weights[f"{name}_scale"]
    return x * scale + shift
"""


def test_a_weight_beside_a_row_for_each_of_a_batch_is_such_a_row(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", MODULATED)
    x = zeros(2, 500, 8)
    large = evaluate(t.bytes_now, {name: {"T": 1000, "D": 8, "B": 2}.get(name, 8) for name in t.symbols})
    row = zeros(2, 1, 8)
    weight = zeros(8)
    now = moved((row, weight, row), (row, weight, row), (x, row, x), (x, row, x))
    assert now - moved((row,)) * 6 <= large <= now


BROADER = """
def expand(y: mx.array, x, post):
    return (x.astype(mx.float32) + post[..., None] * y[:, :, None, :].astype(mx.float32)).astype(x.dtype)
"""


def test_the_axes_of_an_argument_are_counted_without_new_ones(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", BROADER)
    y, x, post = zeros(2, 5, 8), zeros(2, 5, 3, 8), zeros(2, 5, 3, 1)
    wide, product = x.astype(mx.float32), post * y[:, :, None, :].astype(mx.float32)
    assert product.shape == x.shape
    assert set(t.symbols) == {"B", "L", "T", "D", "post.size"}
    sizes = {"B": 2, "L": 5, "T": 30, "D": 8, "post.size": 30}
    tall = y.astype(mx.float32)
    now = moved((x, wide), (y, tall), (post, tall, product), (wide, product, wide), (wide, x))
    assert evaluate(t.bytes_now, sizes) == now - moved((post,))  # which is negligible, read once


@pytest.mark.parametrize("width", [48, 96])
def test_of_sizes_that_meet_all_have_the_number_of_one(tmp_path: Path, width: int) -> None:
    text = f"""
class Block(nn.Module):
    def __init__(self, dims: int = {width}):
        super().__init__()
        self.norm = nn.RMSNorm(dims)

    def __call__(self, x: mx.array, other, third):
        return mx.tanh(third) * mx.tanh(other) + self.norm(x)
"""
    t = cost(tmp_path / "a.py", text)
    assert t.at["D"] == width


SCORED = """
class Index(nn.Module):
    def __init__(self, dims: int, heads: int, width: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.q = nn.Linear(dims, heads * width)
        self.weigh = nn.Linear(dims, heads)

    def __call__(self, x: mx.array, past):
        b, n, _ = x.shape
        q, keys = self.q(x).reshape(b, n, self.heads, self.width).astype(mx.float32), past.astype(mx.float32)
        scores = mx.maximum(mx.matmul(q, keys[:, None].swapaxes(-1, -2)), 0.0) * (self.width**-0.5)
        return (scores * self.weigh(x).astype(mx.float32)[..., None]).sum(axis=2)
"""


def test_a_new_axis_lets_an_array_stand_beside_another_of_one_more(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", SCORED)
    q, keys = zeros(2, 3, 4, 8, dtype=mx.float32), zeros(2, 5, 8, dtype=mx.float32)
    scores = q @ keys[:, None].swapaxes(-1, -2)
    assert scores.shape == (2, 3, 4, 5)
    sizes = {"b": 2, "n": 3, "heads": 4, "S": 5}
    assert evaluate(t.bytes_now, sizes) == moved((scores, scores)) * 3  # and weights, which are negligible


TURNED = """
class Turn(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.steps = 10000 ** -(mx.arange(0, dims, 2) / dims)

    def __call__(self, x, places):
        angles = mx.concatenate([places[..., None] * self.steps, places[..., None] * self.steps], axis=-1)[:, None]
        return x * mx.cos(angles) + mx.abs(x)


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dims, dims)
        self.turn = Turn(dims // heads)

    def __call__(self, x: mx.array, places):
        b, n, d = x.shape
        return self.turn(self.q(x).reshape(b, n, self.heads, -1).transpose(0, 2, 1, 3), places)
"""


def test_callers_say_how_many_axes_a_new_one_stands_beside(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", TURNED)
    x, table = zeros(2, 3, 5, 8), zeros(2, 1, 5, 8)
    sizes = {"B": 2, "T": 30, "L": 5, "D": 8}
    now = moved((table, table), (x, table, x), (x, x), (x, x, x))
    assert evaluate(t.bytes_now, sizes) == now
    assert evaluate(t.bytes_fused, sizes) == moved((x, table, x))


PARTS = """
def turn(x):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([-b, a], axis=-1)


def rotate(x, places, base=100.0):
    width, count = x.shape[-1], places.shape[-1]
    part = 2 * (width // (2 * count))
    out = []
    for i in range(count):
        own = x[..., i * part : (i + 1) * part]
        steps = mx.power(base, (2.0 / part) * mx.arange(0, part // 2).astype(mx.float32))
        angles = places[..., i : i + 1].astype(mx.float32) / steps
        cos = mx.expand_dims(mx.concatenate([mx.cos(angles), mx.cos(angles)], axis=-1).astype(x.dtype), axis=2)
        sin = mx.expand_dims(mx.concatenate([mx.sin(angles), mx.sin(angles)], axis=-1).astype(x.dtype), axis=2)
        out.append(own * cos + turn(own) * sin)
    return mx.concatenate(out, axis=-1)


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int = 12, head_dim: int = 64):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.q = nn.Linear(dims, heads * head_dim)

    def __call__(self, x: mx.array, rows: mx.array, columns: mx.array):
        b, n, _ = x.shape
        q = self.q(x).reshape(b, n, self.heads, self.head_dim)
        return rotate(q, mx.stack([rows.reshape(b, n), columns.reshape(b, n)], axis=-1))
"""


def test_the_codes_name_for_an_axis_has_the_number_that_calls_give(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", PARTS)
    assert {name: t.at[name] for name in ("width", "count")} == {"width": 64, "count": 2}
    own, table = zeros(2, 5, 12, 32), zeros(2, 5, 1, 32)
    now = moved((own, table, own), (own, table, own), (own, own, own))
    assert evaluate(t.bytes_now, {"T": 2 * 5 * 12, "B": 2, "L": 5, "width": 64, "count": 2}) == now
    assert t.saved_at == 4 * 2048 * 12 * 32 * 2


MASKED = """
class Attention(nn.Module):
    def __init__(self, dims: int, heads: int, width: int):
        super().__init__()
        self.heads, self.width = heads, width
        self.qkv = nn.Linear(dims, 3 * heads * width)

    def __call__(self, x: mx.array, mask: mx.array | None = None):
        b, n, d = x.shape
        q, k, v = mx.split(self.qkv(x).reshape(b, n, 3 * self.heads, self.width).transpose(0, 2, 1, 3), 3, axis=1)
        scores = (q @ k.transpose(0, 1, 3, 2)) * self.width**-0.5
        if mask is not None:
            if mask.ndim == 2:
                added = mx.where(mask[None, None, :, :], mx.array(float("-inf")), mx.array(0.0))
            elif mask.ndim == 3:
                added = mx.where(mask[:, None, :, :], mx.array(float("-inf")), mx.array(0.0))
            else:
                added = mx.array(0.0)
            scores = scores + added
        return mx.softmax(scores, axis=-1) @ v
"""


def test_of_masks_made_in_branches_the_largest_is_read_before_and_after(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", MASKED, "FUS211").otherwise
    assert t is not None
    assert t.dtype == "f32"
    q, scores, mask = (zeros(*s, dtype=mx.float32) for s in ((2, 4, 5, 8), (2, 4, 5, 5), (2, 1, 5, 5)))
    sizes = {"b": 2, "n": 5, "heads": 4, "width": 8}
    now = moved((q, q, scores), (scores, scores), (scores, mask, scores), (scores, scores), (scores, q, q))
    assert (t.kernels_now, t.kernels_fused) == (5, 1)
    assert evaluate(t.bytes_now, sizes) == now
    assert evaluate(t.bytes_fused, sizes) == moved((q, q, q, mask, q))


WINDOWED = """
from dataclasses import dataclass


@dataclass
class Config:
    dims: int = 192
    heads: int = 3
    window_size: int = 12


class Windows(nn.Module):
    def __init__(self, dims: int, heads: int, window_size: int):
        super().__init__()
        self.heads, self.window_size = heads, window_size
        self.qkv = nn.Linear(dims, 3 * dims)

    def __call__(self, x: mx.array):
        c = x.shape[-1]
        x = x.reshape(-1, self.window_size * self.window_size, c)
        b, n, _ = x.shape
        q, k, v = mx.split(self.qkv(x).reshape(b, n, 3 * self.heads, 64).transpose(0, 2, 1, 3), 3, axis=1)
        return mx.softmax((q @ k.transpose(0, 1, 3, 2)) * 64**-0.5, axis=-1) @ v


class Block(nn.Module):
    def __init__(self, dims: int, heads: int, window_size: int):
        super().__init__()
        self.attention = Windows(dims, heads, window_size)


class Model(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.blocks = [Block(config.dims, config.heads, config.window_size) for _ in range(4)]
"""


def test_a_size_is_what_constructors_hand_on_from_a_configuration(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", WINDOWED, "FUS211")
    assert t.at["heads"] == 3
    assert {t.at[name] for name in ("L", "S", "n") if name in t.at} == {144}


HELD = """
class Chunks(nn.Module):
    SIZE = 48

    def __call__(self, x: mx.array):
        n = Chunks.SIZE
        parts = x.reshape(-1, n)
        return mx.tanh(parts) * mx.exp(parts) + parts
"""


def test_a_constant_of_a_class_is_a_size(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", HELD)
    assert t.at["n"] == 48


GATED = """
from dataclasses import dataclass


@dataclass
class Config:
    dims: int = 512
    inner: int = 48


class Layer(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.inner = getattr(config, "inner", 0)
        if self.inner:
            self.gate = nn.Linear(config.dims, self.inner)
        else:
            self.gate = None

    def __call__(self, x: mx.array, other: mx.array):
        if self.gate is not None:
            return nn.gelu_approx(self.gate(x)) * mx.tanh(other)
        return x
"""


def test_a_layer_that_may_be_none_is_as_wide_as_the_configuration_says(tmp_path: Path) -> None:
    assert cost(tmp_path / "a.py", GATED).at["D"] == 48


RECURRENT = """
def step(k, v: mx.array, state: mx.array):
    batch, heads, key_dim, value_dim = state.shape
    return state + (k * mx.exp(k)).swapaxes(-1, -2) @ v
"""


def test_a_width_behind_heads_is_one_wherever_it_stands(tmp_path: Path) -> None:
    t = cost(tmp_path / "a.py", RECURRENT, "FUS231")
    assert (t.at["heads"], t.at["key_dim"]) == (32, 128)
    state = zeros(32, 128, 128)
    assert t.saved_at == state.nbytes * 2  # the product, written and read


LETTERED = """
def rotate(q, k, v, w, cos: mx.array, sin: mx.array):
    a, b = q[..., 0::2], q[..., 1::2]
    c, d = k[..., 0::2], k[..., 1::2]
    e, f = v[..., 0::2], v[..., 1::2]
    g, h = w[..., 0::2], w[..., 1::2]
    return a * cos - b * sin, c * cos - d * sin, e * cos - f * sin, g * cos - h * sin


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dims, dims)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        q = self.q(x).reshape(x.shape[0], x.shape[1], self.heads, -1)
        return rotate(q, mx.tanh(q), mx.exp(q), mx.abs(q), cos, sin)
"""


@pytest.mark.slow
def test_letters_do_not_depend_on_the_order_of_sets(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD + LETTERED)
    command = [
        sys.executable,
        "-m",
        "fuselint",
        "check",
        "--isolated",
        "--no-cache",
        "--output-format",
        "json",
        str(path),
    ]
    told = {
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=False).stdout
        for seed in "123"
    }
    assert len(told) == 1
    assert b"FUS301" in told.pop()
