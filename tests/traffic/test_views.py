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


class Of:
    heads, size = H, D


def is_copied(view: str) -> bool:
    """Whether a norm copies a view of `qkv`."""
    qkv = mx.arange(B * L * 3 * H * D).reshape(B, L, 3 * H * D)
    return copies(eval(view, {"mx": mx, "qkv": qkv, "self": Of, "B": B, "L": L}))


def copies(a: mx.array) -> bool:
    """As set_output of MLX's normalization.cpp decides it."""
    x = np.asarray(memoryview(a))
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


BASE = """import mlx.core as mx
import mlx.nn as nn


class Base(nn.Module):
    def __init__(self, dim: int, heads: int, size: int):
        super().__init__()
        self.heads, self.size = heads, size
        self.project = nn.Linear(dim, 3 * heads * size)

    def normalize(self, q: mx.array, k: mx.array):
        BODY

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        qkv = self.project(x)
        q, k, v = GIVEN
        q, k = self.normalize(q, k)
        return q + k + v
"""

DERIVED = """import mlx.core as mx

from .base import Base


DECORATOR
def unit(x):
    return x * mx.rsqrt(mx.sum(mx.square(x), axis=-1, keepdims=True) + 1e-6)


class Derived(Base):
    def normalize(self, queries: mx.array, keys: mx.array):
        keys = FORM
        return queries, keys
MORE"""

UNIT = "keys * mx.rsqrt(mx.sum(mx.square(keys), axis=-1, keepdims=True) + 1e-6)"

OWN_CALL = """
    def __call__(self, x: mx.array):
        return self.normalize(x, x)
"""

PARTS = "[t.reshape(B, L, self.heads, self.size) for t in mx.split(qkv, 3, axis=-1)]"
ZIPPED = "[t.reshape(B, L, h, self.size) for t, h in zip(mx.split(qkv, 3, axis=-1), [self.heads] * 3)]"
TURNED = "(qkv.reshape(B, L, 3 * self.heads, self.size).transpose(0, 2, 1, 3),) * 3"
PERMUTED = "qkv.reshape(B, L, 3, self.heads, self.size).transpose(2, 0, 1, 3, 4)"
ARGUMENTS = {
    "mx.split(qkv, 3, axis=-1)": True,
    PARTS: True,
    ZIPPED: True,
    "[mx.contiguous(t) for t in mx.split(qkv, 3, axis=-1)]": False,
    "[t.transpose(0, 2, 1, 3).reshape(B, -1, self.size) for t in " + PARTS + "]": False,
    "qkv[..., : self.size], qkv[..., self.size : 2 * self.size], qkv": True,
    "qkv, qkv, qkv": False,
    "qkv, qkv.reshape(B, L, 3 * self.heads, self.size), qkv": False,
    "qkv, qkv.reshape(B, L, 3 * self.heads, self.size).transpose(0, 2, 1, 3), qkv": True,
    "qkv, mx.moveaxis(qkv, 1, 2), qkv": True,
    "qkv, mx.swapaxes(qkv, 1, 2).reshape(B, -1, self.size), qkv": False,
}


NORMED = "return mx.fast.rms_norm(q, None, 1e-6), mx.fast.rms_norm(k, None, 1e-6)"


def fused(folder: Path, given: str, form: str = UNIT, more: str = "", decorator: str = "", body: str = NORMED) -> int:
    """The kernels after the fix of the norm in the derived class."""
    (folder / "base.py").write_text(BASE.replace("GIVEN", given).replace("BODY", body))
    derived = DERIVED.replace("FORM", form).replace("MORE", more).replace("DECORATOR", decorator)
    (folder / "derived.py").write_text(derived)
    (folder / "__init__.py").touch()
    (result,) = check_paths([folder / "derived.py"], select=["FUS203"], hot=["*"], cache=False, dtype="bf16")
    place = "unit" if form != UNIT else "Derived.normalize"
    (t,) = [f.traffic for f in result.findings if f.traffic is not None and f.function == place]
    return t.kernels_fused


@pytest.mark.parametrize("given", ARGUMENTS)
def test_an_argument_is_copied_as_the_calls_of_a_base_class_give_it(tmp_path: Path, given: str) -> None:
    qkv = mx.arange(B * L * 3 * H * D).reshape(B, L, 3 * H * D)
    names = {"mx": mx, "qkv": qkv, "self": Of, "B": B, "L": L}
    assert copies(eval(given, names)[1]) is ARGUMENTS[given]
    assert fused(tmp_path, given) == 2 + ARGUMENTS[given]


def test_a_base_class_may_leave_its_method_open(tmp_path: Path) -> None:
    assert fused(tmp_path, PARTS, body="raise NotImplementedError") == 3


@pytest.mark.parametrize("given", [PARTS, "qkv, qkv, qkv"])
def test_a_compiled_norm_copies_its_argument_too(tmp_path: Path, given: str) -> None:
    assert fused(tmp_path, given, "unit(keys)", decorator="@mx.compile") == 2 + ARGUMENTS[given]


def test_calls_of_a_method_that_the_class_has_a_version_of_say_nothing(tmp_path: Path) -> None:
    assert fused(tmp_path, PARTS, more=OWN_CALL) == 2


MANY = """import mlx.core as mx


class Norms:
    def unit(self, x: mx.array):
        return x * mx.rsqrt(mx.sum(mx.square(x), axis=-1, keepdims=True) + 1e-6)

    def handed(self, x: mx.array):
        return self.unit(x)


def one(norms: Norms, x: mx.array):
    return Norms().FIRST(mx.split(x, 2, axis=-1)[0])


def other(norms: Norms, x: mx.array):
    return Norms().unit(SECOND)
"""


@pytest.mark.parametrize(
    ("first", "second", "copied"),
    [
        ("unit", "mx.split(x, 3, axis=-1)[1]", True),
        ("handed", "mx.split(x, 3, axis=-1)[1]", True),
        ("unit", "x * 2", False),  # as often as not
        ("unit", "load(x)", False),  # nobody knows
    ],
)
def test_most_calls_say_where_an_argument_lies(tmp_path: Path, first: str, second: str, copied: bool) -> None:
    (tmp_path / "a.py").write_text(MANY.replace("FIRST", first).replace("SECOND", second))
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS203"], hot=["*"], cache=False, dtype="bf16")
    (t,) = [f.traffic for f in result.findings if f.traffic is not None]
    assert t.kernels_fused == 2 + copied


CHOSEN = """import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.weight = mx.ones((dims,))

    def __call__(self, x: mx.array):
        x = x - mx.mean(x, axis=-1, keepdims=True)
        return self.weight * (x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-6))


class Encoder(nn.Module):
    def __init__(self, dims: int, n: int):
        super().__init__()
        self.conv = nn.Conv1d(dims, dims, 1)
        self.blocks = []
        for _ in range(n):
            self.blocks.extend([nn.Linear(dims, dims), Norm(dims)])

    def __call__(self, x: mx.array):
        for block in self.blocks:
            x = self.conv(x)
            if isinstance(block, KIND):
                x = block(x.transpose(0, 2, 1)).transpose(0, 2, 1)
            else:
                x = block(x)
        return x
"""


@pytest.mark.parametrize(("kind", "copied"), [("Norm", True), ("nn.Linear", False)])
def test_a_test_says_of_which_class_what_is_called_is(tmp_path: Path, kind: str, copied: bool) -> None:
    (tmp_path / "a.py").write_text(CHOSEN.replace("KIND", kind))
    (result,) = check_paths([tmp_path / "a.py"], select=["FUS202"], hot=["*"], cache=False, dtype="bf16")
    (t,) = [f.traffic for f in result.findings if f.traffic is not None]
    assert t.kernels_fused == 1 + copied
