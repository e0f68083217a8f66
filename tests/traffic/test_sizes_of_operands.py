"""What operands are counted as where no shape is stated: by what they meet, by what they are made of, by defaults.

Each formula is set beside the bytes that MLX moves for arrays of small, different sizes.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def costs(path: Path, text: str, code: str = "FUS301") -> list[Traffic]:
    path.write_text(HEAD + text)
    (result,) = check_paths([path], select=[code], cache=False)
    return [f.traffic for f in result.findings if f.traffic is not None]


def kernels_of(function: Callable[..., mx.array], *arrays: mx.array) -> int:
    """The kernels that MLX's own export of a call names."""
    mx.eval(arrays)
    out = io.StringIO()
    mx.export_to_dot(out, function(*arrays))
    names = [line for line in out.getvalue().splitlines() if "label" in line and "rectangle" in line]
    return sum(not any(v in n for v in ("Split", "Broadcast", "Slice", "Transpose")) for n in names)


def moved(*kernels: tuple[mx.array, ...]) -> int:
    """The bytes of kernels, each given by its operands and result."""
    return sum(a.nbytes for k in kernels for a in k)


def at(t: Traffic, **sizes: int) -> dict[str, int]:
    """The sizes of a formula; own ones by the operand's name."""
    numbers = t.numbers
    return {name: sizes.get(name.split(".")[0], numbers[name]) for name in numbers}


ACTIVATION = """
def act(x, alpha, beta):
    return mx.where(x > 0, alpha * mx.square(x) + beta * x, mx.expm1(x) * alpha + beta * x)
"""


def test_what_meets_an_activation_is_as_large_as_that(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", ACTIVATION)
    x, one, test = mx.zeros((6, 8), mx.bfloat16), mx.zeros((), mx.bfloat16), mx.zeros((6, 8), mx.bool_)
    scaled, mapped, both = (one, x, x), (x, x), (x, x, x)
    now = moved((x, test), mapped, scaled, scaled, both, mapped, scaled, scaled, both, (test, x, x, x))
    sizes = at(t, T=6, D=8, alpha=1, beta=1)
    assert evaluate(t.bytes_now, sizes) == now
    assert evaluate(t.bytes_fused, sizes) == moved((x, one, one, x))


PROJECTED = """
def f(y, v):
    part = (y * v).sum(-1, keepdims=True)
    return (part * v) * mx.tanh(y) + y
"""


def test_a_sum_over_the_last_axis_holds_one_number_a_row(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", PROJECTED)
    (part,) = [n for name, n in t.at.items() if name.startswith("part")] or [t.at["T"]]
    assert part == t.at["T"]


def test_rows_taken_for_tokens_are_as_many_as_the_tokens(tmp_path: Path) -> None:
    body = "    scale = mx.take(scale, rows, axis=0)\n    shift = mx.take(shift, rows, axis=0)\n"
    (t,) = costs(
        tmp_path / "a.py",
        "def f(x: mx.array, scale, shift, rows):\n" + body + "    return mx.tanh(x) * (1 + scale) + shift\n",
    )
    assert {t.at[n] for n in t.at if n.endswith(".size")} == {t.at["T"] * t.at["D"]}


def test_a_step_of_a_schedule_is_a_number(tmp_path: Path) -> None:
    (t,) = costs(
        tmp_path / "a.py", "def f(x: mx.array, v: mx.array, sigma):\n    return mx.tanh(x - sigma * v) * sigma\n"
    )
    assert t.at["sigma.size"] == 1


def test_an_attribute_that_starts_empty_is_no_weight(tmp_path: Path) -> None:
    text = """
class Stepper(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = None

    def __call__(self, x: mx.array):
        u = x.astype(mx.float32)
        return nn.silu(u - self.before) * u
"""
    (t,) = costs(tmp_path / "a.py", text)
    assert t.kernels_now == 4  # the cast of x, and no cast of `before`
    (again,) = costs(tmp_path / "a.py", text.replace("- self.before) * u", "- mx.square(self.before)) * u"))
    assert again.at["self.before.size"] == again.at["T"] * again.at["D"]


POOLED = """
class Gate(nn.Module):
    def __init__(self, dims, inner):
        super().__init__()
        self.one = nn.Conv1d(dims, inner, 1)
        self.two = nn.Conv1d(inner, dims, 1)

    def __call__(self, x: mx.array, mask=None):
        if mask is not None:
            mask = mask[:, :, None]
            s = (x * mask).sum(1, keepdims=True) / mask.sum(1, keepdims=True)
        else:
            s = x.mean(1, keepdims=True)
        s = mx.tanh(self.two(nn.relu(self.one(s))))
        return s * x * x
"""


def test_layers_keep_an_axis_that_was_summed_over(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", POOLED)
    x = mx.zeros((2, 30, 8), mx.bfloat16)
    s = mx.zeros((2, 1, 8), mx.bfloat16)
    sizes = {name: {"B": 2, "x.size": x.size}.get(name, 8) for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((s, s), (s, x, x), (x, x, x))
    assert evaluate(t.bytes_fused, sizes) == moved((s, x, x))


ATTENTION = """
from attention import attend


class Attention(nn.Module):
    def __init__(self, dims, heads):
        super().__init__()
        self.heads, self.size = heads, dims // heads
        self.q = nn.Linear(dims, dims)
        self.k = nn.Linear(dims, dims)
        self.v = nn.Linear(dims, dims)
        self.gate = nn.Linear(dims, dims)

    def __call__(self, x: mx.array, mask=None):
        B, L, D = x.shape
        q = self.q(x).reshape(B, L, self.heads, self.size).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(B, L, self.heads, self.size).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(B, L, self.heads, self.size).transpose(0, 2, 1, 3)
        out = attend(q, k, v, mask).transpose(0, 2, 1, 3).reshape(B, L, -1)
        return out * mx.sigmoid(self.gate(x))
"""


def test_attention_of_another_file_has_the_shape_of_the_queries(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "attention.py").write_text(
        HEAD + "def attend(q, k, v, mask):\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)\n"
    )
    (t,) = costs(tmp_path / "model.py", ATTENTION.replace("from attention", "from .attention"))
    out = mx.zeros((2, 5, 12), mx.bfloat16)
    sizes = {name: {"B": 2, "L": 5, "dims": 12, "heads": 3, "size": 4}[name] for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((out, out), (out, out, out))


STATE = """
def f(u: mx.array, w0: mx.array, w1: mx.array, state=None):
    B, H, L, D = u.shape
    if state is None:
        state = mx.zeros((B, H, 1, D), u.dtype)
    if L > 1:
        before = mx.concatenate([state, u[:, :, :-1]], axis=2)
    else:
        before = state
    return before * mx.tanh(u) + u
"""


def test_of_branches_the_longest_counts(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", STATE)
    u = mx.zeros((2, 3, 5, 4), mx.bfloat16)
    assert evaluate(t.bytes_now, {"B": 2, "H": 3, "L": 5, "D": 4}) == moved((u, u), (u, u, u), (u, u, u))


CHOSEN = """
def rows(params, mask):
    if mask is None:
        return params[:, None]
    return mx.where(mask.reshape(1, -1, 1), params[:-1][:, None], params[-1:][None])


def f(x: mx.array, gate, mask):
    return x + mx.tanh(rows(gate, mask)) * mx.sin(x)
"""


def test_a_branch_of_unknown_shape_may_be_the_longer_one(tmp_path: Path) -> None:
    costly = [t for t in costs(tmp_path / "a.py", CHOSEN) if t.kernels_now > 2]
    x = mx.zeros((6, 8), mx.bfloat16)
    for t in costly:
        sizes = {name: 48 if name.endswith("size") else {"T": 6, "D": 8}[name] for name in t.symbols}
        assert evaluate(t.bytes_now, sizes) == moved((x, x), (x, x), (x, x, x), (x, x, x))
    assert costly


CONFIG = """
from dataclasses import dataclass


@dataclass
class Config:
    width: int = 96
    mlp_ratio: float = 3.0


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate = nn.Linear(config.width, int(config.width * config.mlp_ratio))
        self.up = nn.Linear(config.width, int(config.width * config.mlp_ratio))

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)
"""


def test_sizes_are_those_of_the_packages_own_defaults(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", CONFIG)
    hidden = 96 * 3
    assert t.saved_at == 4 * 2048 * hidden


def test_a_ratio_that_nothing_states_is_no_width(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", CONFIG.replace(" = 96", "").replace(" = 3.0", ""))
    assert t.saved_at == 4 * 2048 * 4096 * 4


def test_heads_stand_between_a_length_and_a_head(tmp_path: Path) -> None:
    text = "def f(x: mx.array, y: mx.array):\n    B, T, nh, hd = x.shape\n"
    (t,) = costs(tmp_path / "a.py", text + "    return nn.silu(x) * y.reshape(B, T, nh, hd) + x\n")
    assert (t.at["nh"], t.at["T"]) == (32, 2048)


NORM = """
@mx.compile
def head_norm(x, gamma):
    xf = x.astype(mx.float32)
    y = xf * mx.rsqrt(mx.maximum(mx.sum(xf * xf, axis=-1, keepdims=True), 1e-24))
    return (y * gamma * 8.0).astype(x.dtype)
"""


def test_a_weight_of_compiled_code_is_no_activation(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", NORM, "FUS302")
    x, wide = mx.zeros((6, 8), mx.bfloat16), mx.zeros((6, 8))
    sizes = {"T": 6, "D": 8, "gamma.size": 0}
    assert evaluate(t.bytes_now, sizes) == moved((x, wide), (wide, wide), (wide, x))
    assert evaluate(t.bytes_fused, sizes) == moved((x, wide), (x, x))


GROUPS = """
@mx.compile
def norm(x: mx.array, weight: mx.array, groups: int):
    g = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    axes = tuple(range(2, g.ndim))
    mean = g.mean(axis=axes, keepdims=True)
    y = (g - mean) * mx.rsqrt(mx.var(g, axis=axes, keepdims=True) + 1e-5)
    return y.reshape(x.shape) * weight.reshape([1, -1] + [1] * (x.ndim - 2))
"""


def test_a_mean_over_unknown_axes_is_small(tmp_path: Path) -> None:
    (t, *_) = costs(tmp_path / "a.py", GROUPS, "FUS302")
    x = mx.zeros((6, 8), mx.bfloat16)
    sizes = {name: {"T": 6, "D": 8}.get(name, 0) for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((x, x), (x, x))
    assert evaluate(t.bytes_fused, sizes) == moved((x, x))


@pytest.mark.parametrize("limit", ["args.limit", "7.0"])
def test_a_number_that_callers_give_compiled_code_has_no_bytes(tmp_path: Path, limit: str) -> None:
    text = f"""
from functools import partial


@partial(mx.compile, shapeless=True)
def inner(a, b, limit):
    a = mx.where(mx.isinf(a), a, mx.clip(a, a_min=None, a_max=limit))
    b = mx.where(mx.isinf(b), b, mx.clip(b, a_min=-limit, a_max=limit))
    return a * mx.sigmoid(1.702 * a) * (b + 1.0)


def outer(x, limit):
    return inner(x[..., ::2], x[..., 1::2], limit)


class MLP(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.limit = {limit}

    def __call__(self, x: mx.array):
        return outer(x, self.limit)
"""
    (t,) = costs(tmp_path / "a.py", text, "FUS302")
    assert not [name for name in t.at if name.startswith("limit")]


def test_equal_axes_keep_the_numbers_of_their_own_names(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass


@dataclass
class Config:
    heads: int = 10
    kv: int = 2
    size: int = 16


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.kv, self.size = config.heads, config.kv, config.size
        self.groups = self.heads // self.kv

    def expand(self, v):
        if self.groups == 1:
            return v
        return mx.repeat(v, self.groups, axis=2)

    def __call__(self, q: mx.array, k: mx.array):
        B, L, _ = q.shape
        q = q.reshape(B, L, self.heads, self.size)
        v = self.expand(k.reshape(B, L, self.kv, self.size))
        return nn.silu(q) * v + q
"""
    (t,) = costs(tmp_path / "a.py", text)
    q = 2048 * 10 * 16 * 2
    assert evaluate(t.bytes_now, t.at) == 8 * q
    assert evaluate(t.bytes_fused, t.at) == 3 * q


def test_caps_are_numbers_and_windows_vectors(tmp_path: Path) -> None:
    text = "def f(x: mx.array, softcap, window):\n    y = mx.tanh(x / softcap) * softcap\n"
    (t,) = costs(tmp_path / "a.py", text + "    return (y + window) * window\n")
    own = {name.split(".size")[0]: n for name, n in t.at.items() if ".size" in name}
    assert (own["softcap"], own["window"]) == (1, t.at["D"])


def test_places_of_a_grid_are_a_length(tmp_path: Path) -> None:
    text = (
        "def f(x: mx.array, gh: int, gw: int):\n    y = x.reshape(1, gh * gw, -1)\n    return nn.silu(y) * mx.sin(y)\n"
    )
    (t,) = costs(tmp_path / "a.py", text)
    assert (t.at["gh"], t.at["gw"]) == (32, 32)


def test_the_first_axis_of_one_of_several_is_the_batch(tmp_path: Path) -> None:
    text = "def f(x: mx.array):\n    a, b, c, d = x.shape\n    y = x[0]\n    return nn.silu(y) * mx.sin(y) + y\n"
    (t,) = costs(tmp_path / "a.py", text)
    x = mx.zeros((3, 2, 5, 8), mx.bfloat16)[0]
    assert evaluate(t.bytes_now, {"b": 2, "c": 5, "d": 8}) == moved((x, x), (x, x), (x, x, x), (x, x, x))


GIVEN = """
def decayed(x: mx.array, rate: mx.array, level: mx.array, base):
    return mx.tanh(x * mx.exp(rate)) * level + base * x


class Decay(nn.Module):
    def __init__(self, width, base):
        super().__init__()
        self.rate = mx.zeros((width,))
        self.base = base

    def __call__(self, x: mx.array, level: mx.array):
        return decayed(x, self.rate, level[:, None, :], self.base)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.decay = Decay(config.width, config.base)

    def __call__(self, x, level):
        return self.decay(x, level)
"""


def test_an_argument_has_as_many_axes_as_the_package_gives_it(tmp_path: Path) -> None:
    """A weight of one axis, a row for each of a batch, and a number of a configuration, which no kernel reads."""
    t = max(costs(tmp_path / "a.py", GIVEN), key=lambda t: t.kernels_now)
    x, rate, level = mx.zeros((2, 5, 4), mx.bfloat16), mx.zeros((4,), mx.bfloat16), mx.zeros((2, 1, 4), mx.bfloat16)
    now = moved((rate, rate), (x, rate, x), (x, x), (x, level, x), (x, x), (x, x, x))
    sizes = {name: {"B": 2, "D": 4, "T": 10, "level.size": 8}[name] for name in t.symbols}
    small = moved((rate, rate), (rate,), (level,))
    assert t.kernels_now == 6
    assert now - small <= evaluate(t.bytes_now, sizes) <= now  # small terms aren't printed


MASKED = """
class Attention(nn.Module):
    def __init__(self, nearest: int | None = None):
        super().__init__()
        self.nearest = nearest

    def mask(self, lengths: mx.array, n: int, dtype: mx.Dtype):
        at = mx.arange(n)
        allowed = at[None, None, None, :] < lengths[:, None, None, None]
        allowed = allowed & (at[None, None, :, None] >= at[None, None, None, :])
        NEARER
        return mx.where(allowed, 0.0, mx.finfo(dtype).min).astype(dtype)

    def __call__(self, q, k, v, lengths: mx.array):
        mask = self.mask(lengths, k.shape[2], q.dtype)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)
"""

NEARER = """if self.nearest is not None:
            allowed = allowed & (at[None, None, :, None] < self.nearest)"""


@pytest.mark.parametrize("nearer", ["pass", NEARER])
def test_lengths_before_three_new_axes_have_one_and_numbers_none(tmp_path: Path, nearer: str) -> None:
    (t,) = costs(tmp_path / "a.py", MASKED.replace("NEARER", nearer), "FUS102")
    allowed, wide, mask = (mx.zeros((3, 1, 5, 5), d) for d in (mx.bool_, mx.float32, mx.bfloat16))
    assert evaluate(t.bytes_now, {"B": 3, "n": 5}) == moved((allowed, wide), (wide, mask))


GROUPED = """
class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int = None):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads or heads
        self.size = width // heads
        self.groups = heads // self.kv_heads
        self.q = nn.Linear(width, heads * self.size)
        self.k = nn.Linear(width, self.kv_heads * self.size)
        self.v = nn.Linear(width, self.kv_heads * self.size)

    @staticmethod
    def repeated(x: mx.array, n: int):
        b, h, l, d = x.shape
        return mx.broadcast_to(x[:, :, None], (b, h, n, l, d)).reshape(b, h * n, l, d)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, self.heads, self.size).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(B, L, self.kv_heads, self.size).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(B, L, self.kv_heads, self.size).transpose(0, 2, 1, 3)
        if self.kv_heads != self.heads:
            k, v = self.repeated(k, self.groups), self.repeated(v, self.groups)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=self.size**-0.5)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = Attention(config.width, config.heads, config.kv_heads)
"""


def test_copies_that_are_there_repeat_more_than_once(tmp_path: Path) -> None:
    """By its defaults the layer has as many heads for keys as for queries: then it makes no copies."""
    (t,) = costs(tmp_path / "a.py", GROUPED, "FUS101")
    assert t.at["groups"] == 4


def test_of_what_modulates_the_activation_has_the_size_of_the_result(tmp_path: Path) -> None:
    text = "def f(x: mx.array, shift: mx.array, scale: mx.array):\n    return x * (1 + scale) + shift\n"
    (t,) = costs(tmp_path / "a.py", text)
    x, row = mx.zeros((6, 8), mx.bfloat16), mx.zeros((8,), mx.bfloat16)
    assert evaluate(t.bytes_now, at(t, T=6, D=8, shift=8, scale=8)) == moved((row, row), (x, row, x), (x, row, x))
    assert evaluate(t.bytes_fused, at(t, T=6, D=8, shift=8, scale=8)) == moved((x, row, row, x))


ADAPTER = """
class Adapter(nn.Module):
    def __init__(self, width: int, out: int, r: int = 8):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.a = mx.zeros((width, r))
        self.b = mx.zeros((r, out))

    def __call__(self, x: mx.array):
        return self.linear(x) + 2.0 * ((x @ self.a.astype(x.dtype)) @ self.b.astype(x.dtype))
"""


def test_the_rank_of_an_adapter_is_not_its_width(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", ADAPTER, "FUS231")
    low, b, y = mx.zeros((6, 3), mx.bfloat16), mx.zeros((3, 8), mx.bfloat16), mx.zeros((6, 8), mx.bfloat16)
    sizes = {"T": 6, "r": 3, "D": 8}
    assert evaluate(t.bytes_now, sizes) == moved((low, b, y), (y, y), (y, y, y))
    assert evaluate(t.bytes_fused, sizes) == moved((low, b, y, y))


MASKED_SCORES = """
def attention(q: mx.array, k: mx.array, v: mx.array, mask=None):
    B, H, L, D = q.shape
    S = k.shape[2]
    k, v = k.reshape(B, H, S, D), v.reshape(B, H, S, D)
    scores = q @ k.transpose(0, 1, 3, 2)
    if mask is not None:
        scores = scores + mx.where(mask, 0.0, -1e9)
    return mx.softmax(scores.astype(mx.float32), axis=-1).astype(q.dtype) @ v
"""


def test_a_cast_of_scores_that_a_mask_made_float32_is_nothing(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", MASKED_SCORES, "FUS211")
    q, mask = mx.zeros((1, 2, 4, 8), mx.bfloat16), mx.ones((4, 4), mx.bool_)

    def run(q: mx.array, mask: mx.array) -> mx.array:
        scores = q @ q.transpose(0, 1, 3, 2) + mx.where(mask, 0.0, -1e9)
        return mx.softmax(scores.astype(mx.float32), axis=-1).astype(q.dtype) @ q

    assert t.kernels_now == kernels_of(run, q, mask) - 1 == 6  # but for the mask, which is made after the fix too


IMAGE = """
class Block(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def __call__(self, x: mx.array):
        return mx.tanh(self.conv(x)) * mx.sin(x) + x
"""


def test_between_a_batch_and_channels_stand_the_sides_of_an_image(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", IMAGE)
    own = {name: n for name, n in t.at.items() if ".size" not in name}
    assert sorted(own.values()) == [1, 32, 32, 4096]


PAIRED = """
def rotated(x: mx.array, freqs: mx.array):
    pairs = x.reshape(*x.shape[:-1], -1, 1, 2)
    return freqs[..., 0] * pairs[..., 0] + freqs[..., 1] * pairs[..., 1]
"""


def test_pairs_of_rows_are_as_many_as_the_rows_have(tmp_path: Path) -> None:
    """(6, 4, 1) numbers of six rows meet (4, 2) of a freqs."""
    (t,) = costs(tmp_path / "a.py", PAIRED)
    pairs, freqs, out = (mx.zeros(s, mx.bfloat16) for s in ((6, 4, 1), (4, 2), (6, 4, 2)))
    assert t.symbols["N"] == "freqs.shape[-2]"
    assert t.at["N"] == 1  # nothing says how long it is
    sizes = {name: {"T": 6, "M": 8, "N": 2, "freqs.size": freqs.size}[name] for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((pairs, freqs, out), (pairs, freqs, out), (out, out, out))


ROUTER = """
from dataclasses import dataclass


@dataclass
class Config:
    width: int = 640
    experts: int = 128


class Router(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate = nn.Linear(config.width, config.experts)

    def __call__(self, x: mx.array):
        return x.astype(mx.float32) @ self.gate.weight.astype(mx.float32).T + self.gate.bias.astype(mx.float32)
"""


def test_the_weight_of_a_layer_has_the_sizes_that_the_layer_is_made_with(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", ROUTER, "FUS231")
    rows, width, experts = 2048, 640, 128
    x, w, y = (mx.zeros(s) for s in ((rows, width), (width, experts), (rows, experts)))
    small = mx.zeros((experts,)).nbytes
    assert moved((x, w, y), (y, y)) <= evaluate(t.bytes_now, t.at) <= moved((x, w, y), (y, y)) + small
    assert t.saved_at == 2 * y.nbytes


CHUNKS = """
def chunked(scores: mx.array, v: mx.array, cross: mx.array, cross_scale: mx.array, count: int, size: int):
    v = mx.unflatten(v, 2, (count, size)).astype(mx.float32)
    return mx.tril(scores) @ v + cross * cross_scale
"""


def test_a_batch_of_products_has_a_batch_of_second_factors(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", CHUNKS, "FUS231")
    assert len([name for name in t.symbols if ".size" in name]) == 2  # the second factor, and what is added


WINDOWS = """
class Windows(nn.Module):
    def __init__(self, window_size, heads: int):
        super().__init__()
        self.window_size = window_size
        self.heads = heads

    def __call__(self, x: mx.array):
        B, H, W, C = x.shape
        rows, columns = H // self.window_size[0], W // self.window_size[1]
        x = x.reshape(B, rows, self.window_size[0], columns, self.window_size[1], C)
        return mx.tanh(x) * mx.sin(x) + x
"""


def test_one_of_several_numbers_is_one_size_wherever_it_is_read(tmp_path: Path) -> None:
    """Windows tile the image: all of them have as many places as it."""
    (t,) = costs(tmp_path / "a.py", WINDOWS)
    x = mx.zeros((1, 32, 32, 4096), mx.bfloat16)
    assert {name: t.at[name] for name in ("B", "H", "W", "C")} == {"B": 1, "H": 32, "W": 32, "C": 4096}
    assert evaluate(t.bytes_now, t.at) == moved((x, x), (x, x), (x, x, x), (x, x, x))


MEETING = """
def f(state, queries: mx.array, keys: mx.array):
    b, h, m, l, d = queries.shape
    scores = mx.einsum("bhmld,bhtd->bhmlt", queries, keys)
    first = state.first.astype(mx.float32)[:, :, None, None, :]
    second = state.second.astype(mx.float32)[:, :, None, None, :]
    return second * (first * scores) + mx.tanh(scores)
"""


def test_axes_that_meet_by_way_of_a_third_are_one(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", MEETING)
    assert all(".shape[" not in name for name in t.at)


PREFIXED = """
def half_turned(x: mx.array):
    d = x.shape[-1] // 2
    return mx.concatenate([-x[..., d:], x[..., :d]], axis=-1)


def f(q: mx.array, sin: mx.array, cos: mx.array, prefix: int):
    sin, cos = sin[None, None, :, :], cos[None, None, :, :]
    return q[:, :, prefix:, :] * cos + half_turned(q[:, :, prefix:, :]) * sin
"""


def test_slices_that_name_all_axes_tell_the_rank_and_differences_have_a_letter(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", PREFIXED)
    q, table = mx.zeros((2, 3, 5, 8), mx.bfloat16), mx.zeros((5, 8), mx.bfloat16)
    assert t.symbols == {"B": "q.shape[0]", "H": "q.shape[1]", "L": "-prefix + q.shape[2]", "N": "q.shape[3]"}
    assert (t.at["L"], t.at["H"], t.at["N"]) == (2048, 32, 128)
    sizes = {"B": 2, "H": 3, "L": 5, "N": 8}
    assert evaluate(t.bytes_now, sizes) == moved((q, table, q), (q, table, q), (q, q, q))
    assert evaluate(t.bytes_fused, sizes) == moved((q, table, q, table, q))


TURNED = """
def f(k, turned, cos: mx.array, sin: mx.array, batch: int, length: int):
    cos = cos.reshape(batch, 1, length, -1).astype(mx.float32)
    sin = sin.reshape(batch, 1, length, -1).astype(mx.float32)
    return k.astype(mx.float32) * cos + turned.astype(mx.float32) * sin
"""


def test_what_meets_a_row_for_all_heads_has_heads(tmp_path: Path) -> None:
    (t,) = [t for t in costs(tmp_path / "a.py", TURNED) if "D" in t.at]
    assert (t.at["T"], t.at["D"]) == (2048 * 32, 128)
    k, table = mx.zeros((1, 32, 2048, 128)), mx.zeros((2048, 128))
    assert evaluate(t.bytes_fused, t.at) - 4 * table.nbytes < 4 * k.nbytes


STREAMS = """
def mixed(projected: mx.array, count: int, width: int):
    return mx.tanh(mx.sigmoid(projected).reshape(*projected.shape[:-1], count, width)) * 2 + 1
"""


def test_parts_of_a_row_are_no_length(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", STREAMS)
    assert t.at == {"T": 2048, "D": 4096, "count": 4}
    x = mx.zeros((2048, 4, 4096), mx.bfloat16)
    assert evaluate(t.bytes_now, t.at) == moved(*[(x, x)] * 3)


def test_halves_of_an_array_that_meets_four_axes_are_of_heads(tmp_path: Path) -> None:
    text = "def f(x, cos: mx.array, sin: mx.array):\n    even, odd = x[..., 0::2], x[..., 1::2]\n"
    text += "    cos, sin = cos[None, :, None, :], sin[None, :, None, :]\n    return even * sin + odd * cos\n"
    (t,) = costs(tmp_path / "a.py", text)
    assert t.at == {"T": 2048 * 32, "N": 128}
    half, table = mx.zeros((32, 2048, 64), mx.bfloat16), mx.zeros((2048, 64), mx.bfloat16)
    assert evaluate(t.bytes_now, {**t.numbers, "L": 2048}) == moved(
        (half, table, half), (half, table, half), (half, half, half)
    )


def test_widths_behind_heads_are_those_of_heads(tmp_path: Path) -> None:
    text = (
        "def f(x: mx.array, state: mx.array):\n    batch, heads, length, k_dim = x.shape\n    v_dim = state.shape[-1]\n"
    )
    text += "    state = state.reshape(batch, heads, k_dim, v_dim)\n    return mx.tanh(state) * mx.sin(state) + state\n"
    (t,) = costs(tmp_path / "a.py", text)
    assert sorted(t.at.values()) == [1, 32, 128, 128]


def test_a_last_axis_without_a_name_makes_no_image(tmp_path: Path) -> None:
    text = "def f(x: mx.array, sin: mx.array):\n    y = x[..., 0::2]\n"
    text += "    return y * sin.transpose(0, 2, 1, 3) + mx.tanh(y)\n"
    (t,) = costs(tmp_path / "a.py", text)
    assert {n for name, n in t.at.items() if ".size" not in name} <= {1, 32, 128, 2048}


CELL = """
class Cell(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def __call__(self, x: mx.array):
        h = mx.zeros((x.shape[1], self.width), dtype=x.dtype)
        for t in range(x.shape[0]):
            h = mx.tanh(h) * mx.sigmoid(h) + x[t]
        return h
"""


def test_what_a_recurrence_goes_through_step_by_step_has_a_batch_behind_its_length(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", CELL)
    named = {t.symbols[name]: n for name, n in t.at.items()}
    assert named["x.shape[1]"] == 1
    assert t.saved_at is not None and t.saved_at < 1 << 20


def test_what_meets_a_table_is_no_smaller_than_the_heads(tmp_path: Path) -> None:
    """cos has one row for all heads: a product of it has the heads."""
    text = """
def turn(x, cos, sin):
    return x[..., 0::2] * cos - x[..., 1::2] * sin


class Vision(nn.Module):
    def __init__(self, n_heads: int, head_dim: int):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        q = x.reshape(1, x.shape[0], self.n_heads, self.head_dim)
        return turn(q, cos, sin)
"""
    (t,) = [t for t in costs(tmp_path / "a.py", text) if "cos.size" in t.symbols]
    half, table = mx.zeros((1, 2048, 32, 64), mx.bfloat16), mx.zeros((1, 2048, 1, 64), mx.bfloat16)
    numbers = {**t.numbers, "cos.size": table.size, "sin.size": table.size}
    assert evaluate(t.bytes_now, numbers) == moved((half, table, half), (half, table, half), (half, half, half))
    assert evaluate(t.bytes_fused, numbers) == moved((half, half, table, table, half))


def test_a_helper_that_repeats_heads_does(tmp_path: Path) -> None:
    text = """
class Attention(nn.Module):
    def __init__(self, heads: int, few: int, width: int):
        super().__init__()
        self.heads, self.few, self.width = heads, few, width
        self.times = heads // few

    def __call__(self, x: mx.array, v: mx.array):
        B, L, _ = x.shape
        y = x.reshape(B, L, self.heads, self.width)
        v = self.spread(v.reshape(B, L, self.few, self.width))
        return y * mx.sigmoid(v) + v

    def spread(self, v):
        if v.shape[2] < self.heads:
            return mx.repeat(v, self.times, axis=2)
        return v
"""
    (t,) = costs(tmp_path / "a.py", text)
    sizes = {"B": 2, "L": 3, "heads": 6, "few": 2, "times": 3, "width": 4, "self.heads": 6, "self.few": 2}
    y = mx.zeros((2, 3, 6, 4), mx.bfloat16)
    assert evaluate(t.bytes_now, {n: sizes[n.split(".")[-1]] for n in t.symbols}) == moved((y, y), (y, y, y), (y, y, y))


def test_a_slope_for_each_head_is_no_batch(tmp_path: Path) -> None:
    text = """
class Attention(nn.Module):
    def __call__(self, q: mx.array, k: mx.array, v: mx.array, slopes: mx.array):
        B, H, T, D = q.shape
        far = mx.arange(T)[None, :] - mx.arange(T)[:, None]
        bias = slopes[:, None, None] * far[None, :, :].astype(q.dtype)
        scores = mx.tanh(q @ k.transpose(0, 1, 3, 2)) * 2.0 + bias
        return mx.softmax(scores, axis=-1) @ v
"""
    (t,) = costs(tmp_path / "a.py", text)
    scores, bias = mx.zeros((3, 4, 5, 5), mx.bfloat16), mx.zeros((4, 5, 5), mx.bfloat16)
    far, cast = mx.zeros((5, 5), mx.int32), mx.zeros((5, 5), mx.bfloat16)
    made = moved((far, cast), (cast, bias))  # with the slopes, which are too few to be named
    want = made + moved((scores, scores), (scores, scores), (scores, bias, scores))
    sizes = {"B": 3, "H": 4, "T": 5}
    assert evaluate(t.bytes_now, {n: sizes[n] for n in t.symbols}) == want


def test_a_weight_that_is_folded_is_no_activation(tmp_path: Path) -> None:
    text = """
def norm(x, weight, group):
    y = x.astype(mx.float32)
    if group is not None:
        y = y.reshape(*y.shape[:-1], -1, group)
        weight = weight.reshape(-1, group)
    y = mx.tanh(y) * (1.0 + weight.astype(mx.float32))
    return y.reshape(x.shape).astype(x.dtype)
"""
    (t,) = costs(tmp_path / "a.py", text)
    assert evaluate(t.bytes_now, {"T": 1, "D": 0, "weight''.size": 8}) == 8 * (2 + 4 + 4 + 4 + 4)  # one row
    assert evaluate(t.bytes_now, {"T": 6, "D": 8, "weight''.size": 0}) == 6 * 8 * 4 * (2 + 2)


TURNED_BY = """
HEADS, WIDTH = 6, 10


def turn(x, freqs: mx.array):
{unpacked}    c, s = mx.cos(freqs)[None, :, None], mx.sin(freqs)[None, :, None]
    return x * c + mx.tanh(x) * s


class Attention(nn.Module):
    def __call__(self, x: mx.array, freqs: mx.array):
        B, T, _ = x.shape
        q = self.q(x).reshape(B, T, HEADS, WIDTH)
        k = self.k(x).reshape(B, T, HEADS, WIDTH)
        return turn(q, freqs), turn(k, freqs)
"""


@pytest.mark.parametrize("unpacked", ["    b, n, heads, width = x.shape\n", ""])
def test_an_axis_has_the_number_that_all_calls_give_it(tmp_path: Path, unpacked: str) -> None:
    (t,) = costs(tmp_path / "a.py", TURNED_BY.format(unpacked=unpacked))
    x, table = mx.zeros((1, 2048, 6, 10), mx.bfloat16), mx.zeros((1, 2048, 1, 10), mx.bfloat16)
    saved = moved((x, table, x), (x, x), (x, table, x), (x, x, x)) - moved((x, table, table, x))
    assert (t.saved_at, set(t.sources.values())) == (saved, {"assumed"})


@pytest.mark.parametrize("ones", ["1", "1, 1"])
def test_an_axis_is_for_what_all_callers_name_it_for(tmp_path: Path, ones: str) -> None:
    """One image of n patches: the axis before the last is that of the heads, and no length."""
    text = """
class Vision(nn.Module):
    def __init__(self, n_heads: int = 6, head_dim: int = 10):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, head_dim

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        q = x.reshape(ONES, x.shape[0], self.n_heads, self.head_dim)
        return turn(q, cos, sin)


def turn(x, cos, sin):
    return x[..., 0::2] * cos - x[..., 1::2] * sin
"""
    (t,) = [t for t in costs(tmp_path / "a.py", text.replace("ONES", ones)) if "cos.size" in t.symbols]
    assert t.symbols["L"] == "x.shape[-3]" and t.symbols["H"] == "x.shape[-2]"
    half = mx.zeros((1, 2048, 6, 5), mx.bfloat16)
    table = mx.zeros((1, 2048, 1, 5), mx.bfloat16)
    numbers = {**t.numbers, "cos.size": table.size, "sin.size": table.size}
    assert evaluate(t.bytes_now, numbers) == moved((half, table, half), (half, table, half), (half, half, half))


def test_what_is_parted_after_a_product_is_as_wide_as_the_parts(tmp_path: Path) -> None:
    text = """
def attend(x: mx.array, weight: mx.array, bias: mx.array, heads: int):
    B, L, C = x.shape
    qkv = mx.matmul(x, weight.T) + bias
    q, k, v = mx.split(qkv.reshape(B, L, 3, heads, C // heads), 3, axis=2)
    return q * k + v
"""
    (t,) = costs(tmp_path / "a.py", text, "FUS231")
    sizes = {"B": 2, "L": 5, "C": 8}
    x, w, y = (mx.zeros(s, mx.bfloat16) for s in ((2, 5, 8), (24, 8), (2, 5, 24)))
    numbers = {n: sizes.get(n, 8) for n in t.symbols}  # 8: what the product sums over
    assert evaluate(t.bytes_now, numbers) == moved((x, w, y), (y, y))  # the bias is too small to be named
    assert (t.at["C"], t.saved_at) == (4096, 2 * 2048 * 3 * 4096 * 2)


def test_one_of_many_parts_of_a_layer_is_a_modulation(tmp_path: Path) -> None:
    """Of six parts each is a row, of three it may be q, k or v: of a row less is written and read again."""
    text = """
class Block(nn.Module):
    def __call__(self, x: mx.array, t: mx.array):
        {names} = mx.split(self.layer(t), {parts}, axis=-1)
        return x * mx.sigmoid(x) + mx.tanh(b) * self.part(x)
"""
    saved = []
    for names in ("a, b, c", "a, b, c, d, e, f"):
        (t,) = costs(tmp_path / "a.py", text.format(names=names, parts=len(names.split(", "))))
        saved.append(t.saved_at or 0)
    x, row = mx.zeros((2048, 4096), mx.bfloat16), mx.zeros((4096,), mx.bfloat16)
    assert saved[0] - saved[1] == 2 * (x.nbytes - row.nbytes)


@pytest.mark.parametrize("given", ["config", "config or Config()"])
def test_a_configuration_that_may_be_left_out_holds_numbers(tmp_path: Path, given: str) -> None:
    text = f"""
from somewhere import Config


class Decoder(nn.Module):
    def __init__(self, config: Config | None = None):
        super().__init__()
        self.config = {given}

    def __call__(self, x: mx.array):
        return mx.tanh(x / self.config.part.first + self.config.part.second)
"""
    (t,) = costs(tmp_path / "a.py", text)
    assert set(t.symbols) == {"T", "D"}
    x = mx.zeros((6, 8), mx.bfloat16)
    assert evaluate(t.bytes_now, {"T": 6, "D": 8}) == moved(*[(x, x)] * 3)


@pytest.mark.parametrize(("name", "number"), [("attn_weights", 2048 * 4096), ("out_weight", 4096)])
def test_weights_of_attention_are_no_vector(tmp_path: Path, name: str, number: int) -> None:
    text = f"""
class Attention(nn.Module):
    def __call__(self, given, x: mx.array, cap):
        {name} = given.read(x)
        {name} = {name} / cap
        return x * mx.exp({name}) + {name}
"""
    (t,) = costs(tmp_path / "a.py", text)
    assert t.at.get(f"{name}.size", 2048 * 4096) == number


def test_a_length_is_that_of_what_the_only_caller_stacks(tmp_path: Path) -> None:
    """Three rows go through a list of layers, each of which hands them to its attention."""
    text = """
class Attention(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.heads, self.width = heads, dims // heads
        self.q = nn.Linear(dims, dims)

    def __call__(self, x: mx.array):
        B, T, _ = x.shape
        q = self.q(x).reshape(B, T, self.heads, self.width).transpose(0, 2, 1, 3)
        scores = (q @ q.transpose(0, 1, 3, 2)) * self.width**-0.5
        return mx.softmax(scores, axis=-1) @ q


class Block(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.norm = nn.RMSNorm(dims)
        self.attention = Attention(dims, heads)

    def __call__(self, x: mx.array):
        return x + self.attention(self.norm(x))


class Model(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.layers = [Block(dims, heads) for _ in range(3)]

    def run(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def __call__(self, a: mx.array):
        B, D = a.shape
        return self.run(mx.stack([a, a + 1, a + 2], axis=1))
"""
    (t,) = costs(tmp_path / "a.py", text, "FUS211")
    assert (t.at["T"], t.sources["T"]) == (3, "assumed")


@pytest.mark.parametrize("front", ["B, T, ", "T, "])
def test_rows_of_what_has_heads_are_those_of_each_token(tmp_path: Path, front: str) -> None:
    text = f"""
def turn(x, cos, sin):
    return x * cos + mx.tanh(x) * sin


class Attention(nn.Module):
    def __init__(self, heads: int = 6, width: int = 10):
        super().__init__()
        self.heads, self.width = heads, width

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        {front}_ = x.shape
        return turn(x.reshape({front}self.heads, self.width), cos, sin)
"""
    (t,) = costs(tmp_path / "a.py", text)
    assert t.at == {"T": 2048 * 6, "D": 10}
    x = mx.zeros((2048, 6, 10), mx.bfloat16)
    assert t.saved_at == moved((x, x), (x, x), (x, x), (x, x, x)) - moved((x, x))


def test_a_norm_of_heads_is_as_wide_as_a_head(tmp_path: Path) -> None:
    text = """
class Norm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.weight = mx.ones((dim,))

    def __call__(self, x: mx.array):
        y = x.astype(mx.float32)
        y = y * mx.rsqrt(mx.mean(mx.square(y), axis=-1, keepdims=True) + 1e-6)
        return (y * self.weight).astype(x.dtype)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_heads, self.head_dim = config.n_heads, config.head_dim
        self.norm = Norm(self.head_dim)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        return self.norm(x.reshape(B, L, self.n_heads, self.head_dim))
"""
    (t,) = costs(tmp_path / "a.py", text, "FUS201")
    assert t.at == {"T": 2048 * 32, "D": 128}


SCALED = """
LARGEST = mx.array(1 / 6, dtype=mx.float32)


@mx.compile
def scale_of(largest, inverse):
    return mx.exp(largest * inverse)


def f(x, block=4):
    xb = x.astype(mx.float32).reshape(*x.shape[:-1], x.shape[-1] // block, block)
    s = scale_of(mx.max(mx.abs(xb), axis=-1, keepdims=True), LARGEST)
    return mx.tanh(mx.clip(xb / s, -6.0, 6.0)) * s
"""


def test_a_helper_gives_the_shape_of_its_operand_times_a_number_of_the_module(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", SCALED)
    xb, s = mx.zeros((6, 2, 4)), mx.zeros((6, 2, 1))
    now = moved((xb, s, xb), *[(xb, xb)] * 3, (xb, s, xb))  # clip is two kernels
    sizes = {**at(t, T=6, N=8), "D": 4}
    assert evaluate(t.bytes_now, sizes) == now
    assert evaluate(t.bytes_fused, sizes) == moved((xb, s, xb))


MIXED = """
@mx.compile
def mix(projected, normed, count: int, width: int):
    weights = mx.sigmoid(projected).reshape(*projected.shape[:-1], count, width)
    streams = normed.reshape(*normed.shape[:-1], count, width)
    return mx.mean(weights * streams, axis=-2)
"""


def test_a_last_axis_that_a_reshape_splits_is_the_product_of_its_parts(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", MIXED, "FUS302")
    x = mx.zeros((6, 4, 8), mx.bfloat16)
    sizes = {**at(t, T=6, D=8, normed=x.size), "count": 4}
    assert evaluate(t.bytes_now, sizes) == moved((x, x), (x, x, x))
    assert evaluate(t.bytes_fused, sizes) == moved((x, x, x))


WIDE_VALUES = """
class Attention(nn.Module):
    def __init__(self, dims, heads, key_dim, value_dim):
        super().__init__()
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.q = nn.Linear(dims, heads * key_dim)
        self.k = nn.Linear(dims, heads * key_dim)
        self.v = nn.Linear(dims, heads * value_dim)
        self.gate = nn.Linear(dims, heads * value_dim)

    def __call__(self, x: mx.array):
        B, L, D = x.shape
        q = self.q(x).reshape(B, L, self.heads, self.key_dim).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(B, L, self.heads, self.key_dim).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(B, L, self.heads, self.value_dim).transpose(0, 2, 1, 3)
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)
        return out.transpose(0, 2, 1, 3).reshape(B, L, -1) * mx.sigmoid(self.gate(x))
"""


def test_attention_gives_back_rows_as_wide_as_the_values(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "model.py", WIDE_VALUES)
    out = mx.zeros((2, 5, 12), mx.bfloat16)
    sizes = {name: {"B": 2, "L": 5, "heads": 3, "value_dim": 4}[name] for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((out, out), (out, out, out))


SHARED = """
def rotate(x: mx.array, cos: mx.array, sin: mx.array):
    x1, x2 = mx.split(x, 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return x1 * cos - x2 * sin
"""


def test_a_table_that_all_heads_share_has_a_row_for_each_position(tmp_path: Path) -> None:
    (t,) = costs(tmp_path / "a.py", SHARED)
    x, cos = mx.zeros((6, 4, 8), mx.bfloat16), mx.zeros((6, 1, 8), mx.bfloat16)
    sizes = {name: {"T": 6 * 4, "L": 6, "D": 8, "N": 16}[name] for name in t.symbols}
    assert evaluate(t.bytes_now, sizes) == moved((x, cos, x), (x, cos, x), (x, x, x))


SCORED = """import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, fill: float):
        super().__init__()
        self.scores = Scores(fill)
        self.fill = fill

    def __call__(self, query_blocks, key_blocks, valid: mx.array, places: mx.array, causal: mx.array):
        seen = valid[:, places]
        mask = {mask}
        logits = self.scores(query_blocks, key_blocks)
        logits = mx.tanh(logits / 30.0) * 30.0
        logits = mx.where(mask, logits, self.fill)
        return mx.softmax(logits, axis=-1)
"""


@pytest.mark.parametrize(
    ("mask", "moved"),
    [
        ("seen[:, None, :, None, :] & causal[None, None, None, :, :]", "2*B*N*K*M + B*N*M + 16*T*M + K*M"),
        ("seen[:, None, :, :, None]", "B*N*L + 16*T*D"),  # one for each row says nothing of how long that is
    ],
)
def test_masked_scores_are_as_long_as_a_row_of_the_mask(tmp_path: Path, mask: str, moved: str) -> None:
    (t,) = costs(tmp_path / "a.py", SCORED.format(mask=mask))
    assert t.bytes_now == moved
    assert ("D" in t.at) is ("D" in moved)
