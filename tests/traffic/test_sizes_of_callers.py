"""Sizes that the package itself states: where it makes an object, calls a function, or reads a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

TYPICAL = 4096
"""A width that nothing states."""


def costs(path: Path, text: str, code: str = "FUS301") -> Traffic:
    path.write_text(HEAD + text)
    (result,) = check_paths([path], select=[code], cache=False)
    (traffic,) = [f.traffic for f in result.findings if f.traffic is not None]
    return traffic


ROTATED = """
def turn(x, cos: mx.array, sin: mx.array):
    return x * cos + mx.tanh(x) * sin


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.width = heads, dim // heads
        self.q = nn.Linear(dim, dim)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        B, L, _ = x.shape
        return turn(self.q(x).reshape(B, L, self.heads, self.width), cos, sin)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int = 4):
        super().__init__()
        self.attention = Attention(dim, heads)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(96, heads=6) for _ in range(2)]
"""


def test_a_caller_gives_what_its_own_object_is_made_with(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", ROTATED)
    assert t.at["D"] == 96 // 6
    assert t.at["T"] == 2048 * 6


GELU = """
def act(x):
    return 0.5 * x * (1 + mx.tanh(0.8 * (x + 0.04 * x**3)))


class MLP(nn.Module):
    def __init__(self, dim: int, ratio: int = 4):
        super().__init__()
        self.up = nn.Linear(dim, int(dim * ratio))

    def __call__(self, x):
        return act(self.up(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = MLP(WIDTHS)
"""


def test_a_last_axis_is_known_though_the_rank_is_not(tmp_path: Path) -> None:
    assert costs(tmp_path / "a.py", GELU.replace("WIDTHS", "48, ratio=3")).at["D"] == 144
    assert costs(tmp_path / "a.py", GELU.replace("WIDTHS", "48")).at["D"] == 192


def test_of_several_sizes_the_smallest_counts(tmp_path: Path) -> None:
    several = GELU.replace("self.mlp = MLP(WIDTHS)", "self.a, self.b, self.c = MLP(64), MLP(32), MLP(48)")
    assert costs(tmp_path / "a.py", several).at["D"] == 128


NORMED = """
class Block(nn.Module):
    def __init__(self, dim: int = 512):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def __call__(self, x, gate: mx.array):
        return x + mx.tanh(gate) * self.norm(x)
"""


@pytest.mark.parametrize(
    ("made", "width"),
    [
        ("class Model(nn.Module):\n    def __init__(self):\n        self.block = Block(96)\n", 96),
        ("class Model(nn.Module):\n    def __init__(self):\n        self.block = Block()\n", 512),
        ("class Model(nn.Module):\n    def __init__(self, dim: int = 64):\n        self.block = Block(dim)\n", 64),
        ("class Model(nn.Module):\n    def __init__(self, dim):\n        self.block = Block(dim)\n", TYPICAL),
        ("def load(config):\n    return Block(config['dim'])\n", 512),
        ("def load(config):\n    return Block(**config)\n", 512),
        ("def load(config):\n    return Block(int(config.get('dim', 128)))\n", 128),
        ("def load(config):\n    return Block(getattr(config, 'dim', 128))\n", 128),
        ("def load(config):\n    return Block(config.get('dim'))\n", 512),
        ("", 512),
    ],
)
def test_a_default_counts_where_the_package_gives_nothing_else(tmp_path: Path, made: str, width: int) -> None:
    assert costs(tmp_path / "a.py", f"{NORMED}\n\n{made}").at["D"] == width


CONFIGURED = """
from dataclasses import dataclass


@dataclass
class Config:
    width: int
    hidden: int


class MLP(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden)
        self.up = nn.Linear(config.width, config.hidden)

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)


class Model(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.mlp = MLP(config)
"""


def test_a_configuration_that_the_package_makes_says_what_its_fields_have_no_default_for(tmp_path: Path) -> None:
    assert costs(tmp_path / "a.py", CONFIGURED).saved_at == 4 * 2048 * 14336  # typical, too
    made = "\n\ndef small():\n    return Config(width=48, hidden=160)\n"
    assert costs(tmp_path / "a.py", CONFIGURED + made).saved_at == 4 * 2048 * 160


PARTED = """
def turn(x, cos: mx.array, sin: mx.array):
    return x * cos + mx.tanh(x) * sin


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)

    def __call__(self, x: mx.array, cos: mx.array, sin: mx.array):
        return turn(self.q(x).reshape(x.shape[0], self.heads, -1), cos, sin)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention(96, 6)
"""


def test_a_width_of_heads_is_part_of_the_width(tmp_path: Path) -> None:
    assert costs(tmp_path / "a.py", PARTED).numbers["D"] == 96 // 6


LOOPED = """
def act(x):
    return 0.5 * x * (1 + mx.tanh(0.8 * (x + 0.04 * x**3)))


class Model(nn.Module):
    def __init__(self, dim: int = 80):
        super().__init__()
        self.first = nn.Linear(24, dim)
        self.rest = [nn.Linear(dim, dim) for _ in range(3)]

    def __call__(self, x):
        h = self.first(x)
        for layer in self.rest:
            h = act(layer(h) + h)
        return h
"""


def test_what_a_loop_carries_is_as_wide_as_it_starts(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text(HEAD + LOOPED)
    (result,) = check_paths([path], select=["FUS301"], cache=False)
    assert {f.traffic.at.get("D", 80) for f in result.findings if f.traffic is not None} == {80}


WRAPPED = """
class Adapted(nn.Module):
    @staticmethod
    def from_base(linear: nn.Linear, rank: int = 4):
        out, inner = linear.weight.shape
        made = Adapted(inner, out, rank)
        made.linear = linear
        return made

    def __init__(self, inner: int, out: int, rank: int):
        super().__init__()
        self.linear = nn.Linear(inner, out)
        self.down = mx.random.uniform(-0.1, 0.1, (inner, rank))
        self.up = mx.zeros((rank, out))

    def __call__(self, x: mx.array):
        y = x @ self.down
        return mx.tanh(y) * mx.sigmoid(y)
"""


def test_what_a_wrapped_layer_is_given_besides_is_float32(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", WRAPPED)
    assert evaluate(t.bytes_now, dict.fromkeys(t.symbols, 1)) == 4 * (2 + 2 + 3)
    assert t.otherwise is None
    loaded = WRAPPED.replace("linear.weight.shape", "sizes").replace("linear: nn.Linear", "sizes")
    t = costs(tmp_path / "a.py", loaded.replace("        made.linear = linear\n", ""))
    assert evaluate(t.bytes_now, dict.fromkeys(t.symbols, 1)) == 2 * (2 + 2 + 3)


def test_a_default_that_only_chooses_a_branch_leaves_the_size(tmp_path: Path) -> None:
    text = """
from dataclasses import dataclass


@dataclass
class Config:
    width: int = 48
    hidden: int = 160


def act(gate, x):
    return mx.sigmoid(gate) * gate * x


class MLP(nn.Module):
    def __init__(self, config: Config, index: int = 0):
        super().__init__()
        hidden = config.hidden * (2 if index > 20 else 1)
        self.gate = nn.Linear(config.width, hidden)
        self.up = nn.Linear(config.width, hidden)

    def __call__(self, x):
        return act(self.gate(x), self.up(x))


class Model(nn.Module):
    def __init__(self, config: Config, layers: int):
        super().__init__()
        self.layers = [MLP(config, i) for i in range(layers)]
"""
    assert costs(tmp_path / "a.py", text).at["D"] == 160


GUARDED = """
class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads=None):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads if kv_heads is not None else heads
        self.head_dim = width // heads
        self.k = nn.Linear(width, self.kv_heads * self.head_dim)
        self.v = nn.Linear(width, self.kv_heads * self.head_dim)

    def __call__(self, q: mx.array, x: mx.array):
        B, L, _ = x.shape
        k = self.k(x).reshape(B, L, self.kv_heads, self.head_dim).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(B, L, self.kv_heads, self.head_dim).transpose(0, 2, 1, 3)
        if self.kv_heads != self.heads:
            k = mx.repeat(k, self.heads // self.kv_heads, axis=1)
            v = mx.repeat(v, self.heads // self.kv_heads, axis=1)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=self.head_dim**-0.5)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = Attention(320, 5, 5)
        self.smaller = Attention(256, 4)
        self.large = Attention(768, 12, kv_heads=3)
"""


def test_the_smallest_object_is_one_that_runs_the_code(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", GUARDED, "FUS101")
    numbers = {t.symbols[n]: size for n, size in t.at.items()}
    assert (numbers["heads"], numbers["head_dim"]) == (12, 64)
    assert 3 in t.at.values()
    k, repeated = 2048 * 3 * 64, 2048 * 12 * 64
    assert t.saved_at == 2 * 2 * (k + repeated)


@pytest.mark.parametrize("test", ["self.kv_heads != self.heads", "self.kv_heads < self.heads and L > 1"])
def test_sizes_with_which_the_code_never_runs_are_none_that_are_said(tmp_path: Path, test: str) -> None:
    """By defaults there is nothing to repeat: a checkpoint that needs it has other numbers."""
    text = GUARDED[: GUARDED.index("class Model")].replace("self.kv_heads != self.heads", test)
    text = text.replace("width: int, heads: int, kv_heads=None", "width: int = 512, heads: int = 8, kv_heads: int = 8")
    text = text.replace("kv_heads if kv_heads is not None else heads", "kv_heads")
    t = costs(tmp_path / "a.py", text, "FUS101")
    assert {t.sources[n] for n, meaning in t.symbols.items() if "heads" in meaning} == {"typical"}
    fewer = text.replace("kv_heads: int = 8", "kv_heads: int = 2")
    t = costs(tmp_path / "a.py", fewer, "FUS101")
    assert {t.sources[n] for n, meaning in t.symbols.items() if "heads" in meaning} == {"assumed"}
    assert t.saved_at == 2 * 2 * 2048 * 64 * (2 + 8)


def test_none_by_default_is_no_size_where_calls_give_one(tmp_path: Path) -> None:
    layer = "def __init__(self, dim: int, hidden=None):\n        super().__init__()\n        hidden = hidden or dim\n"
    text = GELU.replace("def __init__(self, dim: int, ratio: int = 4):\n        super().__init__()\n", layer)
    text = text.replace("int(dim * ratio)", "hidden")
    assert costs(tmp_path / "a.py", text.replace("WIDTHS", "48, 144")).at["D"] == 144
    assert costs(tmp_path / "a.py", text.replace("WIDTHS", "48")).at["D"] == 48
    assert costs(tmp_path / "a.py", text.replace("WIDTHS", "48, hidden=int(48 * 2.5)")).at["D"] == 120
    several = text.replace("self.mlp = MLP(WIDTHS)", "self.a, self.b = MLP(64), MLP(32, 256)")
    assert costs(tmp_path / "a.py", several).at["D"] == 64


def test_what_a_layer_makes_is_no_length_where_it_is_moved_forward(tmp_path: Path) -> None:
    text = """
class Block(nn.Module):
    def __init__(self, inputs: int, planes: int):
        super().__init__()
        self.conv = nn.Conv1d(inputs, planes, 3, padding=1)

    def __call__(self, x: mx.array, mask: mx.array):
        x = mx.swapaxes(self.conv(mx.swapaxes(x, 1, 2)), 1, 2)
        return mx.tanh(x) * mx.sigmoid(x) * mask
"""
    t = costs(tmp_path / "a.py", text)
    assert t.at["planes"] == TYPICAL
    assert t.sources["planes"] == "typical"


STAGES = """
from dataclasses import dataclass, field


@dataclass
class Config:
    widths: list[int] = field(default_factory=lambda: [96, 192, 384])
    heads: tuple[int, ...] = (3, 6, 12)
    depths: tuple[int, ...] = (2, 1, 5)
    ratio: int = 4


def act(gate, x):
    return mx.sigmoid(gate) * gate * x


class MLP(nn.Module):
    def __init__(self, width: int, heads: int, ratio: int):
        super().__init__()
        self.heads = heads
        self.gate = nn.Linear(width, ratio * width)
        self.up = nn.Linear(width, ratio * width)

    def __call__(self, x):
        return act(self.gate(x), self.up(x))


class Model(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.widths = config.widths
        self.stages = []
        MADE
"""


@pytest.mark.parametrize(
    ("made", "width"),
    [
        (
            "for i in range(len(self.widths)): self.stages.append(MLP(self.widths[i], config.heads[i], config.ratio))",
            96,
        ),
        ("self.stages = [MLP(w, 1, config.ratio) for w in config.widths]", 96),
        ("self.stages = [MLP(config.widths[i], h, 2 * config.ratio) for i, h in enumerate(config.heads)]", 2 * 96),
        ("self.stages = [MLP(w // h, h, 64) for w, h in zip(config.widths, config.heads)]", 16 * 32),
        ("self.stages = [MLP(config.widths[-1], 12, 1)]", 96),
        ("self.stages = [[MLP(config.widths[i], 1, 4) for j in range(n)] for i, n in enumerate(config.depths)]", 96),
    ],
)
def test_lists_of_a_configuration_are_read_step_by_step(tmp_path: Path, made: str, width: int) -> None:
    assert costs(tmp_path / "a.py", STAGES.replace("MADE", made)).at["D"] == 4 * width


@pytest.mark.parametrize(("default", "width"), [("=(96, 192, 384)", 32), ("", 32)])
def test_lists_that_an_outer_constructor_gives_are_read_step_by_step(tmp_path: Path, default: str, width: int) -> None:
    made = f"""
class Model(nn.Module):
    def __init__(self, widths{default}):
        super().__init__()
        self.stages = [MLP(widths[i], 1, 4) for i in range(len(widths))]


class Top(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = Model((32, 64))
"""
    t = costs(tmp_path / "a.py", STAGES[: STAGES.index("class Model")] + made)
    assert t.at["D"] == 4 * width


def test_heads_are_known_where_each_stage_has_its_own(tmp_path: Path) -> None:
    """32 wide in all stages: no fused kernel on Metal takes that."""
    text = """
class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)

    def __call__(self, x: mx.array):
        B, L, D = x.shape
        q, k, v = mx.split(self.qkv(x).reshape(B, L, 3 * self.heads, D // self.heads).transpose(0, 2, 1, 3), 3, axis=1)
        scores = mx.softmax(q @ k.swapaxes(-1, -2) * (D // self.heads) ** -0.5, axis=-1)
        return (scores @ v).transpose(0, 2, 1, 3).reshape(B, L, D)


class Model(nn.Module):
    def __init__(self, widths=(96, 192), heads=(3, 6)):
        super().__init__()
        self.stages = [Attention(widths[i], heads[i]) for i in range(2)]
"""
    path = tmp_path / "a.py"
    for heads, found in (("(3, 6)", True), ("(1, 2)", False)):
        path.write_text(HEAD + text.replace("(3, 6)", heads))
        (result,) = check_paths([path], select=["FUS211"], cache=False)
        messages = [f.message for f in result.findings]
        assert ["no fused kernel on Metal takes a head dimension of 32" in m for m in messages] == [found]


def test_a_batch_of_windows_is_more_than_a_batch(tmp_path: Path) -> None:
    text = """
def attend(x: mx.array, side: int, heads: int):
    B, H, W, C = x.shape
    n = B * (H // side) * (W // side)
    y = x.reshape(n, side * side, heads, 64).transpose(0, 2, 1, 3)
    scores = mx.softmax(y @ y.transpose(0, 1, 3, 2) * 64**-0.5, axis=-1)
    return scores @ y
"""
    t = costs(tmp_path / "a.py", text, "FUS211")
    (batch,) = [n for n, meaning in t.symbols.items() if meaning.startswith("B*")]
    assert t.sources[batch] == "typical"
    whole = text.replace("n = B * (H // side) * (W // side)", "n = B")
    t = costs(tmp_path / "a.py", whole.replace("side * side", "H * W"), "FUS211")
    (batch,) = [n for n, meaning in t.symbols.items() if n in ("B", "batch")]
    assert (t.at[batch], t.sources[batch]) == (1, "assumed")


NORMS = """
class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.ones((dim,))
        self.eps = eps

    def __call__(self, x):
        y = x.astype(mx.float32)
        y = y * mx.rsqrt(mx.mean(mx.square(y), axis=-1, keepdims=True) + self.eps)
        return self.weight * y.astype(x.dtype)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.q = nn.Linear(dim, dim)
        self.norm = RMSNorm(self.head_dim)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        return self.norm(self.q(x).reshape(B, L, self.heads, self.head_dim))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(384, heads=6), RMSNorm(384)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        return self.attention(self.norm(x))
"""


def test_a_norm_of_heads_has_more_rows_than_others(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", NORMS, "FUS201")
    assert (t.at["D"], t.at["T"]) == (384, 2048)
    alone = NORMS.replace(
        "self.attention, self.norm = Attention(384, heads=6), RMSNorm(384)",
        "self.attention, self.norm = Attention(384, heads=6), nn.RMSNorm(384)",
    )
    t = costs(tmp_path / "a.py", alone, "FUS201")
    assert t.at["D"] == 64
    assert t.at["T"] == 6 * 2048


@pytest.mark.parametrize(
    "order", ["reshape(L, self.heads, self.width)", "reshape(L, self.heads, self.width).transpose(1, 0, 2)"]
)
def test_heads_are_rows_wherever_they_stand_among_three_axes(tmp_path: Path, order: str) -> None:
    text = ROTATED.replace("B, L, _ = x.shape", "L, _ = x.shape")
    text = text.replace("reshape(B, L, self.heads, self.width)", order)
    t = costs(tmp_path / "a.py", text)
    assert (t.at["D"], t.at["T"]) == (16, 2048 * 6)


def test_an_argument_that_is_handed_on_has_the_heads_that_callers_give(tmp_path: Path) -> None:
    turned, rest = ROTATED.split("class Attention", 1)
    rest = rest.replace("return turn(", "return both(").replace("self, dim, heads)", "self, dim, heads: int)")
    (tmp_path / "model.py").write_text(f"{HEAD}from turned import both\n\n\nclass Attention{rest}")
    t = costs(tmp_path / "turned.py", turned + "def both(x, cos, sin):\n    return turn(x, cos, sin)\n")
    assert (t.at["D"], t.at["T"]) == (16, 2048 * 6)


def test_a_call_of_which_nothing_is_known_is_not_the_smallest(tmp_path: Path) -> None:
    text = GELU.replace("def __call__(self, x):", "def __call__(self, x: mx.array):\n        B, L, _ = x.shape")
    text = (
        text.replace("WIDTHS", "48, ratio=3")
        + """
        self.adapter = Adapter(load("dims"))


class Adapter(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.fc = nn.Linear(dims, dims)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        return act(self.fc(x))
"""
    )
    t = costs(tmp_path / "a.py", text)
    assert t.at["D"] == 144
    assert t.sources["D"] == "assumed"


LISTED = """
class Decoder(nn.Module):
    def __init__(self, dims, count):
        super().__init__()
        self.layers = [nn.Linear(dims, dims) for _ in range(count)]

    def __call__(self, x):
        for layer in self.layers:
            x = nn.relu(layer(x)) ** 2
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder(320, 3)

    def __call__(self, hidden, weights: mx.array):
        return self.decoder(hidden.reshape(GIVEN)) * weights
"""


def test_what_a_list_of_layers_is_given_as_one_vector_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(HEAD + LISTED.replace("GIVEN", "-1"))
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS261"], cache=False)
    assert not result.findings
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS261"], cache=False, hot=["*"])
    (found,) = result.findings
    assert found.traffic is not None
    assert not {"rows", "length", "batch"} & {*found.traffic.uses}


def test_what_a_list_of_layers_is_given_in_rows_has_them(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", LISTED.replace("GIVEN", "-1, 320"), "FUS261")
    assert 2048 in t.at.values()
    assert t.saved_at is not None
    assert t.saved_at >= 4 * 2048 * 320


COMPILED_NORM = """
@mx.compile
def unit(a, b):
    a = a * mx.rsqrt(mx.square(a).sum(axis=-1, keepdims=True) + 1e-5)
    b = b * mx.rsqrt(mx.square(b).sum(axis=-1, keepdims=True) + 1e-5)
    return a * 0.25, b


def run(x: mx.array):
    a, b = mx.split(x, 2, axis=-1)
    return unit(a, b)
"""


def test_a_norm_that_copies_parts_first_and_spares_no_launch_is_too_little(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(HEAD + COMPILED_NORM)
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS203"], cache=False)
    assert not result.findings
    whole = COMPILED_NORM.replace("a, b = mx.split(x, 2, axis=-1)", "a, b = mx.exp(x), mx.tanh(x)")
    (tmp_path / "a.py").write_text(HEAD + whole)
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS203"], cache=False)
    assert [f.traffic is not None and f.traffic.launches_fewer > 0 for f in result.findings] == [True, True]
