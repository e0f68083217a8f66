"""What makes the tables of a rotation in the same call goes with them, where nothing else reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

ROTATION = """
class Rotary(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self._timescale = 100.0 ** (mx.arange(0, dims, 2) / dims)

    def __call__(self, x, position):
        angles = position[..., None].astype(mx.float32) / self._timescale
        cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
        a, b = mx.split(x, 2, axis=-1)
        return RESULT


class Attention(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.rotary = Rotary(dims)

    def __call__(self, q: mx.array, offset: int):
        B, H, L, D = q.shape
        return self.rotary(q, mx.arange(offset, offset + L))
"""

ROTATED = "mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)"


def costs(path: Path, result: str) -> Traffic:
    path.write_text(HEAD + ROTATION.replace("RESULT", result))
    (found,) = check_paths([path], select=["FUS221"], cache=False)
    (traffic,) = [f.traffic for f in found.findings if f.traffic is not None]
    return traffic


def test_they_are_kernels_that_the_fused_rotation_spares(tmp_path: Path) -> None:
    t = costs(tmp_path / "a.py", ROTATED)
    # a cast, a quotient, a cosine, a sine, two casts; four products, a difference, a sum, a concatenation
    assert (t.kernels_now, t.kernels_fused) == (13, 1)
    numbers = {"B": 1, "H": 5, "T": 7, "F": 3}
    tables = 7 * 3 * (4 + 8 + 8 + 6 + 6)  # the quotient is written; each product reads one of them
    rotated = 5 * 7 * 3 * 2 * (4 * 2 + 2 * 3 + 4)
    assert evaluate(t.bytes_now, numbers) == tables + rotated + 4 * 2 * 7 * 3


@pytest.mark.parametrize(
    ("read", "gone"),
    [("angles", 13 - 2), ("cos", 13 - 4), ("position", 13)],  # all but the cast and the quotient; the cosine, its cast
)
def test_what_is_read_besides_stays(tmp_path: Path, read: str, gone: int) -> None:
    t = costs(tmp_path / "a.py", f"{ROTATED}, {read}")
    assert t.kernels_now - t.kernels_fused == gone - 1
