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


TOWER = """import mlx.core as mx
import mlx.nn as nn


class Tower(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.up, self.down = nn.Linear(dims, dims), nn.Linear(dims, dims)
        self._table = mx.zeros((8, dims))

    @property
    def table(self):
        return self._table

    def __call__(self, x: mx.array):
        h = mx.tanh(self.up(x))
        return self.down(h + {read}[: h.shape[1]])

{more}
"""
CASTS = "def load(model):\n    model.tower._table = model.tower._table.astype(model.dtype)\n"
OWN = "    def cast(self, dtype):\n        self._table = self._table.astype(dtype)\n"
OTHER = "class Other(nn.Module):\n    def cast(self, dtype):\n        self._table = None\n"
HALF = "DTYPE = mx.bfloat16\n"


def promoted(folder: Path, text: str, package: bool = True) -> list[str]:
    if package:
        (folder / "__init__.py").write_text("")
    path = folder / "tower.py"
    path.write_text(text)
    (result,) = check_paths([path], select=["FUS105"], cache=False)
    return [f.message for f in result.findings]


@pytest.mark.parametrize("read", ["self._table", "self.table"])
@pytest.mark.parametrize(("more", "count"), [("", 1), (OTHER, 1), (CASTS, 0), (OWN, 0)])
def test_a_table_that_something_else_casts(tmp_path: Path, read: str, more: str, count: int) -> None:
    assert len(promoted(tmp_path, TOWER.format(read=read, more=more) + HALF)) == count


def test_a_file_that_imports_the_class_casts_its_table(tmp_path: Path) -> None:
    text = TOWER.format(read="self._table", more="") + HALF
    (tmp_path / "load.py").write_text("from .tower import Tower\n\n\n" + CASTS)
    assert not promoted(tmp_path, text)


@pytest.mark.parametrize(("more", "package", "count"), [("", True, 0), (HALF, True, 1), ("", False, 1)])
def test_a_package_that_says_nothing_of_half_precision(tmp_path: Path, more: str, package: bool, count: int) -> None:
    assert len(promoted(tmp_path, TOWER.format(read="self._table", more=more), package)) == count


@pytest.mark.parametrize(("folder", "count"), [("tower", 1), ("other", 0), (".", 0)])
def test_a_model_says_nothing_of_another(tmp_path: Path, folder: str, count: int) -> None:
    """Of many models in a package, each takes inputs of its own: spectrograms and noise are float32."""
    for name in ("tower", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / folder / "options.py").write_text("import mlx.core as mx\n\n" + HALF)
    assert len(promoted(tmp_path / "tower", TOWER.format(read="self._table", more=""))) == count


def test_several_operands_that_are_float32_are_counted() -> None:
    text = HEAD + "    return mx.concatenate([x, mx.zeros((4, 8)), mx.ones((4, 8)), mx.zeros((4, 8))])\n"
    result, _ = analyse(FileText("m.py", text), Settings(select=("FUS105",)), None)
    assert [", as 2 more of the operands do" in f.message for f in result.findings] == [True]
