"""Norms of views: what MLX's GPU backends copy into row order first, by the strides of the arrays that MLX makes."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

B, L, H, D = 2, 5, 3, 8

LAYER = """import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, size: int):
        super().__init__()
        self.heads, self.size = heads, size
        self.project = nn.Linear(dim, 3 * heads * size)
        self.norm = nn.RMSNorm(size)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        qkv = self.project(x)
        q = VIEW
        return FORM
"""

VIEWS = {
    "mx.split(qkv, 3, axis=-1)[0].reshape(B, L, self.heads, self.size)": True,
    "mx.split(qkv, 3, axis=-1)[0].reshape(B, L, self.heads, self.size).transpose(0, 2, 1, 3)": True,
    "qkv.reshape(B, L, 3 * self.heads, self.size)": False,
    "qkv.reshape(B, L, 3 * self.heads, self.size).transpose(0, 2, 1, 3)": True,
    "mx.contiguous(qkv.reshape(B, L, 3 * self.heads, self.size).transpose(0, 2, 1, 3))": False,
}

HAND_WRITTEN = "q * mx.rsqrt(mx.mean(q * q, axis=-1, keepdims=True) + 1e-6)"
BETWEEN_CASTS = "self.norm(q.astype(mx.float32)).astype(mx.bfloat16)"


def cost(path: Path, view: str, form: str, code: str) -> Traffic:
    path.write_text(LAYER.replace("VIEW", view).replace("FORM", form))
    (result,) = check_paths([path], select=[code], cache=False, dtype="bf16", chip="m3-max")
    (t,) = [f.traffic for f in result.findings if f.traffic is not None]
    return t


def is_copied(view: str) -> bool:
    """As set_output of MLX's normalization.cpp decides it."""

    class Sizes:
        heads, size = H, D

    qkv = mx.arange(B * L * 3 * H * D).reshape(B, L, 3 * H * D)
    x = np.asarray(memoryview(eval(view, {"mx": mx, "qkv": qkv, "self": Sizes, "B": B, "L": L})))
    dense = sorted(zip(x.strides, x.shape, strict=True))
    step, has_holes = x.itemsize, False
    for stride, size in dense:
        has_holes |= stride != step
        step *= size
    return has_holes or x.strides[-1] != x.itemsize or x.strides[-2] != x.shape[-1] * x.itemsize


@pytest.mark.parametrize("view", VIEWS)
def test_a_norm_copies_rows_that_are_not_in_order(tmp_path: Path, view: str) -> None:
    t = cost(tmp_path / "a.py", view, HAND_WRITTEN, "FUS201")
    q = mx.zeros((B, L, H if "split" in view else 3 * H, D), mx.bfloat16)
    assert is_copied(view) is VIEWS[view]
    assert t.kernels_fused == 1 + VIEWS[view]
    sizes = {name: {"B": B, "L": L, "self.heads": H, "heads": H, "self.size": D, "size": D}[name] for name in t.at}
    assert evaluate(t.bytes_fused, sizes) == 2 * q.nbytes * t.kernels_fused


def test_a_cast_before_a_norm_puts_a_view_in_order(tmp_path: Path) -> None:
    """So what goes with it comes back as the copy; the weight needs no cast, either."""
    view = next(iter(VIEWS))
    t = cost(tmp_path / "a.py", view, BETWEEN_CASTS, "FUS104")
    assert (t.kernels_now, t.kernels_fused) == (4, 2)
    sizes = {name: {"B": B, "L": L, "heads": H, "size": D}[name] for name in t.at}
    half, wide = mx.zeros((B, L, H, D), mx.bfloat16), mx.zeros((B, L, H, D))
    assert evaluate(t.bytes_now, sizes) == 2 * (half.nbytes + wide.nbytes) + 2 * wide.nbytes
    assert evaluate(t.bytes_fused, sizes) == 4 * half.nbytes


CHANNELS = """
class Norm(nn.Module):
    def __call__(self, x: mx.array):
        y = mx.transpose(x, (0, 2, 1))
        y = y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + 1e-5)
        return mx.transpose(y, (0, 2, 1))


class Block(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        self.norm = Norm()

    def __call__(self, x: mx.array, w: mx.array):
        return self.norm(GIVEN)
"""


@pytest.mark.parametrize(
    ("given", "kernels"),
    [
        ("mx.conv1d(x, w)", 2),  # it lies in row order: turned, it is copied
        ("mx.transpose(mx.conv1d(x, w), (0, 2, 1))", 1),  # turned back
        ("x + self.conv(x)", 1),  # nobody knows
    ],
)
def test_an_argument_may_be_turned_back_to_how_it_lies(tmp_path: Path, given: str, kernels: int) -> None:
    path = tmp_path / "a.py"
    path.write_text("import mlx.core as mx\nimport mlx.nn as nn\n\n\n" + CHANNELS.replace("GIVEN", given))
    (result,) = check_paths([path], select=["FUS201"], cache=False)
    (t,) = [f.traffic for f in result.findings if f.traffic is not None and f.function == "Norm.__call__"]
    assert t.kernels_fused == kernels
