"""Findings that take what other files of the package say: head dimensions, masks, what promotes an activation."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph.packages import write

from fuselint.config import Settings
from fuselint.engine import check_paths
from fuselint.finding import Finding
from fuselint.source.notes import file_of

BASE = """def scaled_dot_product_attention(queries, keys, values, cache, scale, mask=None):
    if hasattr(cache, "bits"):
        return mx.zeros(queries.shape)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)


def padded(q, k, v, scale):
    d = q.shape[-1]
    if d < 128:
        pad = [(0, 0)] * 3 + [(0, 128 - d)]
        q, k, v = mx.pad(q, pad), mx.pad(k, pad), mx.pad(v, pad)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)[..., :d]


def initialize_rope(dims, scaling=None):
    if scaling is None:
        return nn.RoPE(dims)
    return Scaled(dims, scaling)


class Scaled(nn.Module):
    def __init__(self, dims, scaling):
        super().__init__()
        self.dims, self.scaling = dims, scaling

    def __call__(self, x, offset=0):
        return mx.fast.rope(
            x, self.dims, traditional=False, base=1e4, scale=self.scaling, offset=offset
        )


def additive_mask(n):
    return mx.triu(mx.full((n, n), -1e9), k=1)


class Rotary(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self._freqs = 1.0 / (1e4 ** (mx.arange(0, dims, 2) / dims))

    def __call__(self, n):
        angles = mx.arange(n)[:, None] * self._freqs[None]
        return mx.cos(angles), mx.sin(angles)


def rotate(x, cos, sin):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
"""

CONFIG = """@dataclass
class Common:
    hidden_size: int = 1408


@dataclass
class VisionConfig(Common):
    num_heads: int = 16
    head_dim: int | None = None

    def __post_init__(self):
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_heads


@dataclass
class ModelConfig:
    vision: VisionConfig
"""

ATTENTION = """from .base import Rotary, additive_mask, initialize_rope, padded, rotate, scaled_dot_product_attention
from .config import ModelConfig, VisionConfig


class Attention(nn.Module):
    def __init__(self, {parameters}):
        super().__init__()
        self.heads = {heads}
        {more}
        self.q = nn.Linear({dims}, {dims})
        self.rope = initialize_rope({dims} // {heads})

    def __call__(self, x, mask=None, cache=None):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        q = self.rope(q, offset=cache.offset) if cache is not None else self.rope(q)
        k, v = cache.update_and_fetch(q, q)
        return {call}
"""

CALL = "scaled_dot_product_attention(q, k, v, cache, scale=1.0, mask=mask)"
BY_CONFIG = {
    "parameters": "config: VisionConfig",
    "heads": "config.num_heads",
    "dims": "config.hidden_size",
    "more": "",
}
BY_PARTS = {k: v.replace("config.", "config.vision.").replace("Vision", "Model") for k, v in BY_CONFIG.items()}
BY_NUMBERS = {"parameters": "dims, heads=8", "heads": "heads", "dims": "dims", "more": ""}


def attention(call: str = CALL, **how: str) -> str:
    return ATTENTION.format(call=call, **{**BY_CONFIG, **how})


def found(folder: Path, code: str, jobs: int = 1, reverse: bool = False, hot: tuple[str, ...] = ()) -> list[Finding]:
    paths = sorted(str(p) for p in folder.rglob("*.py"))
    results = list(check_paths(paths[::-1] if reverse else paths, Settings(select=(code,), hot=hot), jobs))
    assert not [e for r in results for e in r.errors]
    return sorted((f for r in results for f in r.findings), key=lambda f: (f.path, f.line))


MAKER = "from .attention import Attention\nfrom .config import VisionConfig\n\n\nclass Layer(nn.Module):\n"


@pytest.mark.parametrize(
    ("files", "head", "says"),
    [
        ({"attention.py": attention()}, 88, ["hidden_size = 1408", "num_heads = 16"]),
        (
            {"attention.py": attention(**BY_PARTS)},
            88,
            ["hidden_size = 1408", "num_heads = 16"],
        ),
        (
            {
                "attention.py": attention(**BY_NUMBERS),
                "layer.py": MAKER + "    def __init__(self):\n        self.attention = Attention(1200)\n",
            },
            150,
            ["layer.py:14"],
        ),
        (
            {
                "attention.py": attention(**BY_NUMBERS),
                "layer.py": MAKER
                + "    def __init__(self, n, config: VisionConfig):\n"
                "        self.attention = Attention(config.hidden_size, n)\n\n\n"
                "class Model(nn.Module):\n    def __init__(self, config: VisionConfig):\n"
                "        self.layers = [Layer(8, config)]\n",
            },
            176,
            ["hidden_size = 1408", "layer.py:14", "layer.py:19"],
        ),
    ],
)  # fmt: skip
def test_the_head_dimension_comes_from_other_files(
    tmp_path: Path, files: dict[str, str], head: int, says: list[str]
) -> None:
    package = write(tmp_path, {"base.py": BASE, "config.py": CONFIG, **files})
    (finding,) = found(package, "FUS401")
    assert finding.path.endswith("attention.py"), "not in the helper, nor in the file that says the number"
    assert f"head dimension of {head}" in finding.message
    claim = finding.obligations[0]
    assert claim.verdict == "unknown" and all(text in claim.because for text in says)
    assert finding.fix is not None and not finding.fix.edits


@pytest.mark.parametrize(
    ("files"),
    [
        {"attention.py": attention(call="padded(q, k, v, 1.0)")},
        {"attention.py": attention(), "config.py": CONFIG.replace("1408", "1024")},
        {"attention.py": attention(), "config.py": CONFIG.replace(": int = 1408", ": int")},
        {"attention.py": attention(**BY_NUMBERS)},
        {
            "attention.py": attention(**BY_NUMBERS),
            "layer.py": MAKER + "    def __init__(self):\n        self.attention = Attention(512)\n",
        },
        {"attention.py": attention(), "base.py": BASE.replace("mx.fast.scaled", "mx.slow.scaled")},
        {
            "attention.py": attention(**BY_NUMBERS),
            "test_layer.py": MAKER + "    def __init__(self):\n        self.attention = Attention(96)\n",
        },
    ],
)
def test_no_head_dimension_is_made_up(tmp_path: Path, files: dict[str, str]) -> None:
    package = write(tmp_path, {"base.py": BASE, "config.py": CONFIG, **files})
    assert not found(package, "FUS401")


def test_findings_are_the_same_in_any_order_and_by_any_number_of_workers(tmp_path: Path) -> None:
    files = {"base.py": BASE, "config.py": CONFIG}
    for i in range(4):
        files[f"attention{i}.py"] = attention(**(BY_NUMBERS if i % 2 else BY_CONFIG))
        files[f"layer{i}.py"] = MAKER.replace(".attention", f".attention{i}") + (
            f"    def __init__(self):\n        self.attention = Attention({i + 11} * 8)\n"
        )
    package = write(tmp_path, files)
    first = found(package, "FUS401")
    assert len(first) == 4
    assert found(package, "FUS401", reverse=True) == first
    assert found(package, "FUS401", jobs=2) == first


HALF = {"load.py": "def load(model):\n    return model.set_dtype(mx.bfloat16)\n"}

DIRECT = "mx.fast.scaled_dot_product_attention(x, x, x, scale=1.0, mask=mask)"
HELPED = "scaled_dot_product_attention(x, x, x, None, 1.0, mask=mask)"
MASKED = """from .base import additive_mask, scaled_dot_product_attention


def attend(x, n: int):
    {cast}
    mask = {mask}
    return {call}
"""


@pytest.mark.parametrize(
    ("cast", "mask", "call", "raises"),
    [
        ("x = x.astype(mx.bfloat16)", "additive_mask(n)", DIRECT, True),
        ("pass", "additive_mask(n)", HELPED, True),
        ("pass", "additive_mask(n) if n > 1 else None", HELPED, True),
        ("pass", "additive_mask(n).astype(x.dtype)", HELPED, False),
        ("pass", "additive_mask(n) > 0", HELPED, False),
        ("x = x.astype(mx.float32)", "additive_mask(n)", HELPED, False),
    ],
)  # fmt: skip
def test_a_mask_that_another_file_makes(tmp_path: Path, cast: str, mask: str, call: str, raises: bool) -> None:
    package = write(tmp_path, {"base.py": BASE, "user.py": MASKED.format(cast=cast, mask=mask, call=call)})
    findings = found(package, "FUS402")
    assert len(findings) == raises
    for f in findings:
        assert f.path.endswith("user.py") and "base.py:" in f.obligations[0].because


BLOCK = """from .base import Rotary, additive_mask, rotate


class Block(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.up, self.down = nn.Linear(dims, dims), nn.Linear(dims, dims)
        self.rotary = Rotary(dims)
        self._scale = mx.array(0.5)

    def __call__(self, x: mx.array):
        h = nn.silu(self.up(x))
        {body}
        return self.down(h)
"""


@pytest.mark.parametrize(
    ("body", "source"),
    [
        ("h = h * self._scale", "user.py:16"),
        ("h = h + additive_mask(4)", "base.py:40"),
        ("cos, sin = self.rotary(h.shape[1])\n        h = rotate(h, cos, sin)", "base.py:46"),
        ("h = h * self.rotary(8)[0]", "base.py:46"),
        ("h = mx.clip(h, -self._scale, self._scale)", "user.py:16"),
        ("h = mx.fast.rms_norm(h, mx.ones((8,)), 1e-5)", ""),
    ],
)
def test_what_makes_an_activation_float32_is_named(tmp_path: Path, body: str, source: str) -> None:
    package = write(tmp_path, {"base.py": BASE, "user.py": BLOCK.format(body=body), **HALF})
    (finding,) = found(package, "FUS105")
    assert finding.path.endswith("user.py")
    assert finding.message.startswith("possible: where the activation is half precision")
    # the weight and the bias of the layer after it are cast up, at every call
    assert finding.message.endswith(
        "1 kernel after it, 1 of them products, then moves twice the bytes, and 2 more cast what they meet"
    )
    assert not source or source in [f"{Path(r.path).name}:{r.line}" for r in finding.related]
    assert finding.fix is not None and finding.fix.applicability != "safe"


@pytest.mark.parametrize(
    "body",
    [
        "cos, sin = self.rotary(h.shape[1])\n        h = rotate(h, cos.astype(h.dtype), sin.astype(h.dtype))",
        "cos, sin = self.rotary(h.shape[1])\n        h = rotate(h, cos, sin).astype(x.dtype)",
        "h = h * self._scale.astype(h.dtype)",
        "h = mx.clip(h, -0.5, 0.5)",
        "h = h * mx.array(0.5, dtype=mx.float32)",
    ],
)
def test_what_does_not_or_is_meant_to_is_not(tmp_path: Path, body: str) -> None:
    package = write(tmp_path, {"base.py": BASE, "user.py": BLOCK.format(body=body), **HALF})
    assert not found(package, "FUS105")


def test_a_fix_says_which_other_files_its_facts_come_from(tmp_path: Path) -> None:
    helpers = "def half(x):\n    return x[..., : x.shape[-1] // 2]\n"
    user = (
        "from .helpers import half\n\n\ndef f(x: mx.array, y: mx.array):\n    z = half(y)\n"
        "    return mx.sigmoid(x) * z + mx.tanh(x) * z\n"
    )
    package = write(tmp_path, {"helpers.py": helpers, "user.py": user})
    (finding,) = found(package, "FUS301")
    assert finding.fix is not None and finding.fix.applicability == "safe"
    (said,) = [o for o in finding.obligations if "helpers.py:9" in o.because]
    assert said.verdict == "proven"
    (package / "helpers.py").unlink()
    (finding,) = found(package, "FUS301")
    assert finding.fix is not None and finding.fix.applicability == "unsafe"


def test_a_result_lists_what_it_read_of_other_files(tmp_path: Path) -> None:
    package = write(tmp_path, {"base.py": BASE, "config.py": CONFIG, "attention.py": attention()})

    def reads() -> dict[str, str]:
        (result,) = check_paths([str(package / "attention.py")], Settings())
        return dict(result.reads)

    before = reads()
    assert before == reads()
    assert {file_of(k) for k, v in before.items() if v} >= {str(package / "base.py"), str(package / "config.py")}
    (package / "config.py").write_text((package / "config.py").read_text() + "\n")
    after = reads()
    assert {file_of(k) for k in before if before[k] != after.get(k)} == {str(package / "config.py")}


LATENT_CONFIG = """@dataclass
class LatentConfig:
    heads: int = 16
    nope: int = 128
    rope: int = 64
    wide: int = {wide}
    kind: str = "latent"

    def __post_init__(self):
        if self.nope == 0:
            self.kind = "plain"
"""
LATENT = """from .base import scaled_dot_product_attention
from .config import LatentConfig


class Latent(nn.Module):
    def __init__(self, config: LatentConfig):
        super().__init__()
        self.heads, self.nope, self.wide = config.heads, config.nope, config.wide
        self.head = config.nope + config.rope
        self.q = nn.Linear(1024, config.heads * self.head)
        self.kv = nn.Linear(1024, config.heads * (config.nope + config.wide))

    def __call__(self, x, pe, cache=None):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, self.heads, self.head).transpose(0, 2, 1, 3)
        kv = self.kv(x).reshape(B, L, self.heads, self.nope + self.wide).transpose(0, 2, 1, 3)
        nope, values = mx.split(kv, [self.nope], axis=-1)
        keys = mx.concatenate([nope, pe], axis=-1)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        return scaled_dot_product_attention(q, keys, values, cache, scale=1.0)


class Layer(nn.Module):
    def __init__(self, config: LatentConfig):
        super().__init__()
        self.attention = Latent(config) if config.kind == "{kind}" else nn.Linear(8, 8)
"""
"""Attention whose values have a width of their own, behind a branch with a cache."""

SPLIT_BASE = BASE.replace(
    "        return mx.zeros(queries.shape)\n",
    "        keys, values = cache.dequantize(keys, values)\n"
    "        return mx.fast.scaled_dot_product_attention(queries, keys, values.astype(queries.dtype), scale=scale)\n",
)


@pytest.mark.parametrize("base", [BASE, SPLIT_BASE])
@pytest.mark.parametrize(
    ("wide", "says"),
    [
        (
            128,
            "prefill falls back to its steps on Metal: no fused kernel of many queries takes a head dimension of 192",
        ),
        (96, "attention falls back to its steps on Metal: no fused kernel takes a head dimension of 192, of values 96"),
        (192, "MLX does not choose its fused kernel for a head dimension of 192"),
    ],
)
def test_the_width_of_values_behind_a_cache(tmp_path: Path, base: str, wide: int, says: str) -> None:
    files = {"base.py": base, "config.py": LATENT_CONFIG.format(wide=wide), "latent.py": LATENT.format(kind="latent")}
    (finding,) = found(write(tmp_path, files), "FUS401", hot=("*",))
    assert says in finding.message


def test_an_object_that_defaults_never_make(tmp_path: Path) -> None:
    files = {"base.py": BASE, "config.py": LATENT_CONFIG.format(wide=128), "latent.py": LATENT.format(kind="plain")}
    assert not found(write(tmp_path, files), "FUS401")


RAYS = """def encode(n: int, dtype):
    return mx.arange(n).astype({dtype})[:, None] * mx.ones((n, 3), dtype)


class Rays(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(3, 8)

    def __call__(self, x):
        return self.condition(x, {given})

    def condition(self, x, rays):
        rays = nn.AvgPool2d(2)(rays)
        both = mx.concatenate([rays, mx.ones((*rays.shape[:-1], 1))], axis=-1)
        return mx.concatenate([self.up(x), both], axis=-1)
"""


@pytest.mark.parametrize(
    ("given", "count"),
    [("mx.arange(8).astype(mx.float32).reshape(1, 2, 2, 2)", 0), ("self.up(x)", 1)],
)
def test_what_the_calls_give_in_float32_is_not_made_wider(tmp_path: Path, given: str, count: int) -> None:
    package = write(tmp_path, {"rays.py": RAYS.format(given=given, dtype="mx.float32"), **HALF})
    findings = [f for f in found(package, "FUS105") if "mx.ones((*rays" in f.message]
    assert len(findings) == count


ROTATE = """def rotate(q: mx.array, k: mx.array, cos, sin):
    return q * cos + k * sin


def handed_on(q, k, cos, sin):
    return rotate(q, k, cos, sin)
"""
CALLS = """from .rotary import handed_on


def attend(q: mx.array, k: mx.array, angles: mx.array):
    return handed_on(q, k, {cos}, mx.sin(angles))
"""


@pytest.mark.parametrize(("cos", "applicability"), [("mx.cos(angles)", "safe"), ("0.5", "unsafe")])
def test_what_all_calls_give_arrays_is_an_array(tmp_path: Path, cos: str, applicability: str) -> None:
    package = write(tmp_path, {"rotary.py": ROTATE, "attention.py": CALLS.format(cos=cos)})
    results = check_paths([str(package / "rotary.py")], Settings(select=("FUS301",)))
    (found,) = [f for result in results for f in result.findings]
    assert found.fix is not None and found.fix.applicability == applicability
    said = {o.claim: (o.verdict, o.because) for o in found.obligations}
    assert said["`sin` is an array"] == ("proven", "every call in the package gives one")


NORM_OF_SIZES = """\
import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, size, eps: float = 1e-6):
        super().__init__()
        if isinstance(size, int):
            size = (size,)
        self.weight = mx.ones(size)
        self.eps = eps

    def __call__(self, x: mx.array):
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)
        return (h * self.weight).astype(x.dtype)
"""


@pytest.mark.parametrize(
    ("made", "weighted"),
    [
        ("Norm(dims)", True),
        ("Norm((heads, dims))", False),
        ("Norm(size=[heads, dims])", False),
        ("Norm(dims, eps=(1, 2)[0])", True),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_a_weight_that_a_call_makes_of_several_sizes_is_none_of_a_norm(
    tmp_path: Path, made: str, weighted: bool, apart: bool
) -> None:
    user = f"class Heads(nn.Module):\n    def __init__(self, heads, dims):\n        self.norm = {made}\n"
    (tmp_path / "__init__.py").write_text("")
    norm = tmp_path / "norm.py"
    norm.write_text(NORM_OF_SIZES + ("" if apart else f"\n\n{user}"))
    (tmp_path / "heads.py").write_text(f"from mlx import nn\nfrom .norm import Norm\n\n\n{user}" if apart else "")
    (one,) = found(tmp_path, "FUS201", hot=("*",))
    assert one.fix is not None and ("self.weight" in one.fix.message) is weighted
    assert one.fix.applicability == ("unsafe" if weighted else "safe")
