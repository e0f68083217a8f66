"""FUS211 and FUS401: head dimensions for which MLX has no fused kernel, and what says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.engine import check_file, check_paths
from fuselint.finding import Finding
from fuselint.source.text import FileText

HEAD = "from dataclasses import dataclass\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"
ATTENTION = """@dataclass
class Config:
    width: int = {width}
    heads: int = 8


class Attention(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.heads = config.heads
        self.head_dim = config.width // config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)

    def __call__(self, x):
        B, L, _ = x.shape
        q, k, v = mx.split(self.qkv(x), 3, axis=-1)
        q = q.reshape(B, L, self.heads, self.head_dim).transpose(0, 2, 1, 3){cast}
        k = k.reshape(B, L, self.heads, self.head_dim).transpose(0, 2, 1, 3){cast}
        v = v.reshape(B, L, self.heads, self.head_dim).transpose(0, 2, 1, 3){cast}
        {attend}
"""
BY_HAND = "return mx.softmax(q @ k.swapaxes(-1, -2) * 0.1, axis=-1) @ v"
FUSED = "return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1)"
WIDE = ".astype(mx.float32)"


def finding(tmp_path: Path, width: int, attend: str, cast: str = "", hot: tuple[str, ...] = ()) -> Finding | None:
    path = tmp_path / "attention.py"
    path.write_text(HEAD + ATTENTION.format(width=width, attend=attend, cast=cast))
    settings = Settings(select=("FUS211", "FUS401"), hot=hot)
    found = [f for r in check_paths([str(path)], settings) for f in r.findings]
    assert len(found) < 2
    return found[0] if found else None


def test_a_head_dimension_with_a_kernel(tmp_path: Path) -> None:
    found = finding(tmp_path, 512, BY_HAND)
    assert found is not None and found.fix is not None and found.fix.edits and found.traffic is not None
    assert "head dimension" not in found.message
    assert finding(tmp_path, 512, FUSED) is None


@pytest.mark.parametrize(("width", "room"), [(256, 64), (704, 96), (960, 128)])
def test_hand_written_attention_is_padded_where_defaults_say_that_there_is_no_kernel(
    tmp_path: Path, width: int, room: int
) -> None:
    found = finding(tmp_path, width, BY_HAND)
    assert found is not None and found.fix is not None
    assert f"takes a head dimension of {width // 8} (by the defaults of Config)" in found.message
    assert f"to {room}, one does" in found.message and "1 kernel" not in found.message
    assert not found.fix.edits and f"a head dimension of {room}" in found.fix.message


def test_a_kernel_for_few_queries_keeps_the_fix(tmp_path: Path) -> None:
    found = finding(tmp_path, 8 * 256, BY_HAND)
    assert found is not None and found.fix is not None and found.fix.edits and found.traffic is None
    assert "where there are few queries" in found.message


def test_hand_written_attention_is_all_there_is_for_larger_ones(tmp_path: Path) -> None:
    assert finding(tmp_path, 8 * 512, BY_HAND) is None


@pytest.mark.parametrize(
    ("cast", "message", "advice"),
    [
        ("", "MLX does not choose its fused kernel", "force_fused=True takes the kernel for 256"),
        (WIDE, "no fused kernel of many queries takes a head dimension of 256 in float32", "half precision only"),
    ],
)
def test_the_largest_kernels_take_no_float32(tmp_path: Path, cast: str, message: str, advice: str) -> None:
    found = finding(tmp_path, 8 * 256, FUSED, cast, hot=("*",))
    assert found is not None and found.fix is not None
    assert message in found.message and advice in found.fix.message


def test_a_kernel_that_mlx_finds_slower_is_no_advice(tmp_path: Path) -> None:
    assert finding(tmp_path, 8 * 256, FUSED) is None
    assert finding(tmp_path, 8 * 256, FUSED, WIDE) is not None


def test_narrower_values_are_padded_for_a_forced_kernel(tmp_path: Path) -> None:
    path = tmp_path / "attention.py"
    text = ATTENTION.format(width=8 * 192, attend=FUSED, cast="").replace(
        "v = v.reshape(B, L, self.heads, self.head_dim)", "v = v.reshape(B, L, -1, 128)"
    )
    path.write_text(HEAD + text)
    (result,) = check_paths([str(path)], Settings(select=("FUS401",)))
    (found,) = result.findings
    assert found.fix is not None and "192, of values 128" in found.message
    assert "the narrower of them padded with zeros to 192, force_fused=True" in found.fix.message


@pytest.mark.parametrize(("width", "possible"), [(320, True), (704, True), (256, False), (1280, False)])
def test_a_quotient_of_defaults_that_is_no_common_size_is_only_possible(
    tmp_path: Path, width: int, possible: bool
) -> None:
    """Heads of 40 and 88; of 32 and 160."""
    found = finding(tmp_path, width, FUSED)
    assert found is not None and found.message.startswith("possible: ") is possible


CHOSEN = """

class Detector(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.attention = Attention(config)
        self.score = nn.Linear(config.width, 1)
        self.chosen = {chosen}

    def __call__(self, x):
        best = mx.argsort(-self.score(x)[..., 0], axis=1)[:, : self.chosen]
        places = mx.broadcast_to(best[:, :, None], (x.shape[0], self.chosen, x.shape[-1]))
        return self.attention(mx.stop_gradient(mx.take_along_axis(x, places, axis=1))){more}
"""


@pytest.mark.parametrize(
    ("chosen", "more", "hot", "count"),
    [
        ("300", "", (), 0),  # 8 heads of 300 x 300 scores
        ("300", "", ("*",), 1),
        ("400", "", (), 1),
        ("config.count", "", (), 1),
        ("300", " + self.attention(x)", (), 1),
        ("300", " + self.attention(mx.reshape(x, (x.shape[0], -1, 256)))", (), 1),
    ],
)
def test_attention_of_few_chosen_queries(chosen: str, more: str, hot: tuple[str, ...], count: int) -> None:
    text = HEAD + ATTENTION.format(width=8 * 32, cast="", attend=FUSED) + CHOSEN.format(chosen=chosen, more=more)
    result = check_file(FileText("attention.py", text), Settings(select=("FUS401",), hot=hot))
    assert (len(result.findings), result.idle) == (count, 1 - count)
