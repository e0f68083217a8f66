"""Classes that derive from a fixed one, and have another version of what the new code would compute for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.engine import check_paths, fix_text
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
MIXTURE = """class Block(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.gate = nn.Linear(dim, 1)
        self.expert = nn.Linear(dim, dim)
        self.act = nn.SiLU()

    def _scale(self, x):
        return mx.sigmoid(self.gate(x))

    def __call__(self, x: mx.array) -> mx.array:
        s = self.expert(x)
        s = self._scale(x) * s
        return x + s


class Gate(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.up = nn.Linear(dim, dim)
        self.act = nn.SiLU()

    def __call__(self, x: mx.array) -> mx.array:
        return self.act(self.up(x)) * x


class Norm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dim,))
        self.eps = eps

    def _norm(self, x):
        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)

    def __call__(self, x):
        return self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)
"""
FUNCTIONS = {"Block.__call__", "Gate.__call__", "Norm.__call__"}


def rewritten(folder: Path, derived: str) -> set[str]:
    """The functions of which a call is computed by other code, where a file beside them has more classes."""
    package = folder / "blocks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text(HEAD + MIXTURE)
    (package / "more.py").write_text(derived)
    (result,) = check_paths([str(package / "base.py")], Settings(select=("FUS301", "FUS201")))
    return {f.function for f in result.findings if f.fix is not None and f.fix.edits} & FUNCTIONS


IMPORTED = HEAD + "from .base import Block, Gate, Norm\n\n\n"
SCALE = "class Other(Block):\n    def _scale(self, x):\n        return mx.tanh(self.gate(x))\n"
ACT = "class Other(Gate):\n    def __init__(self, dim):\n        super().__init__(dim)\n        self.act = nn.GELU()\n"
NORM = "class Other(Norm):\n    def _norm(self, x):\n        return x * mx.rsqrt(x.square().sum(-1, keepdims=True))\n"
OTHERS = {
    "none": ("", set()),
    "another method": (IMPORTED + SCALE, {"Block.__call__"}),
    "another activation": (IMPORTED + ACT, {"Gate.__call__"}),
    "a class attribute": (IMPORTED + "class Other(Gate):\n    act = nn.GELU()\n", {"Gate.__call__"}),
    "another norm": (IMPORTED + NORM, {"Norm.__call__"}),
    "through the module": (
        HEAD + "from . import base\n\nUSED = base.Gate, base.Norm\n\n\n" + SCALE.replace("(Block)", "(base.Block)"),
        {"Block.__call__"},
    ),
    "further down": (
        IMPORTED + "class Middle(Block):\n    pass\n\n\n" + SCALE.replace("(Block)", "(Middle)"), {"Block.__call__"}
    ),
    "with a call of its own": (IMPORTED + SCALE + "\n    def __call__(self, x):\n        return x\n", set()),
    "with a call that calls the base's": (
        IMPORTED + SCALE + "\n    def __call__(self, x):\n        return super().__call__(x) * 2\n", {"Block.__call__"}
    ),
    "what the new code does not compute": (
        IMPORTED + "class Other(Block):\n    def expert(self, x):\n        return x * 2\n", set()
    ),
}  # fmt: skip


@pytest.mark.parametrize(("derived", "kept"), OTHERS.values(), ids=OTHERS)
def test_what_another_file_has_in_its_place(tmp_path: Path, derived: str, kept: set[str]) -> None:
    assert rewritten(tmp_path, derived) == FUNCTIONS - kept


@pytest.mark.parametrize("derived", [SCALE, ACT, NORM])
def test_what_the_same_file_has_in_its_place(derived: str) -> None:
    text = f"{HEAD}{MIXTURE}\n\n{derived}"
    base = derived.partition("(")[2].partition(")")[0]
    done = fix_text(FileText("m.py", text), Settings(select=("FUS301", "FUS201"), unsafe_fixes=True))
    before, after = (t[t.index(f"class {base}(") :].partition("\n\n\n")[0] for t in (text, done.after))
    assert after.rpartition("def __call__")[2] == before.rpartition("def __call__")[2]
