"""FUS105: which operands promote a half-precision activation. MLX says so, expression by expression."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fuselint import check_paths
from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.source.text import FileText

HEAD = "import math\nimport mlx.core as mx\n\ndef f(x, c):\n    x = x.astype(mx.bfloat16)\n    i = c.astype(mx.int32)\n"

STAYS = [
    "x * 0.5",
    "x / 3",
    "x**2",
    "2**x",
    "x * math.sqrt(8)",
    "x * mx.pi",
    "x * mx.array(2)",
    "x * i",
    "x / i",
    "x + mx.arange(8)",
    "mx.where(c, x, 0.0)",
    "mx.where(c, x, -math.inf)",
    "mx.where(c, mx.array(0.0, x.dtype), -1e9) + x",
    "mx.maximum(x, 0)",
    "x * mx.ones_like(x)",
    "mx.fast.rms_norm(x, None, 1e-5)",
    "mx.concatenate([x, mx.zeros((4, 8), x.dtype)])",
]

PROMOTES = [
    "x * mx.array(0.5)",
    "x * mx.array([0.5])",
    "mx.power(x, mx.array(2.0))",
    "mx.logaddexp(x, mx.array(0.0))",
    "x * mx.sqrt(2.0)",
    "mx.rsqrt(8.0) * x",
    "x * mx.exp(1.0)",
    "mx.where(c, x, mx.array(0.0))",
    "mx.where(c, x, mx.array(-math.inf))",
    "mx.where(c, x, mx.zeros((4, 8)))",
    "mx.where(c, 0.0, -math.inf) + x",
    "x * mx.where(c, 1.0, 0.0)",
    "mx.maximum(x, mx.array(0.0))",
    "mx.minimum(x, mx.array(1.0))",
    "x + mx.ones(8)",
    "x + mx.eye(4, 8)",
    "x + mx.triu(mx.full((4, 8), -math.inf))",
    "x + mx.arange(8.0)",
    "x + mx.linspace(0, 1, 8)",
    "mx.concatenate([x, mx.zeros((4, 8))])",
]


def is_reported(expression: str) -> bool:
    file = FileText("m.py", f"{HEAD}    return {expression}\n")
    result, _ = analyse(file, Settings(select=("FUS105",)), lambda name: False)
    assert not result.errors
    return bool(result.findings)


@pytest.mark.parametrize("expression", STAYS + PROMOTES)
def test_what_is_reported_is_what_promotes(expression: str) -> None:
    mx = pytest.importorskip("mlx.core")
    names = {"mx": mx, "math": math, "x": mx.ones((4, 8), mx.bfloat16), "c": mx.ones((4, 8)) > 0}
    result = eval(expression, names | {"i": names["c"].astype(mx.int32)})
    assert (result.dtype == mx.float32) == (expression in PROMOTES)
    assert is_reported(expression) == (expression in PROMOTES)


CLIPPED = """import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __call__(self, x):
        return mx.fast.rms_norm(x, None, 1e-6)


class Block(nn.Module):
    def __init__(self, dims: int, most: float):
        super().__init__()
        self._most = mx.array(most)
        self.norm = Norm()
        self.post = nn.Linear(dims, dims)

    def __call__(self, x: mx.array):
        {first}
        y = self.post(self.norm(x))
        return x + self.norm(mx.clip(y, -self._most, self._most))
"""


@pytest.mark.parametrize(("first", "count"), [("x = mx.clip(x, -self._most, self._most)", 0), ("x = mx.tanh(x)", 1)])
def test_an_activation_that_is_float32_already_is_not_promoted_again(tmp_path: Path, first: str, count: int) -> None:
    path = tmp_path / "block.py"
    path.write_text(CLIPPED.replace("{first}", first))
    (result,) = check_paths([path], select=["FUS105"], cache=False)
    at = path.read_text().splitlines().index("        return x + self.norm(mx.clip(y, -self._most, self._most))") + 1
    assert sum(f.line == at for f in result.findings) == count
