"""FUS221 in many spellings: what it is fixed to computes the same."""

from __future__ import annotations

from typing import Any

import pytest

from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.source.text import FileText

HEAD = """\
import math

import mlx.core as mx


def rotate_half(x):
    half = x.shape[-1] // 2
    return mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def f(x, offset: int = 3):
    B, H, L, D = x.shape
"""

TURN = """\
    c, s = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return mx.concatenate([a * c - b * s, a * s + b * c], axis=-1)
"""

WHOLE = """\
    angles = mx.concatenate([angles, angles], axis=-1)
    return x * mx.cos(angles).astype(x.dtype) + rotate_half(x) * mx.sin(angles).astype(x.dtype)
"""

PAIRS = """\
    c, s = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return mx.stack([a * c - b * s, b * c + a * s], axis=-1).reshape(B, H, L, D)
"""

SPELLINGS = {
    "exp of a logarithm": """\
    angles = mx.arange(L)[:, None] * mx.exp(-mx.arange(0, D // 2) * (math.log(500.0) / (D // 2)))
"""
    + TURN,
    "power of a base, outer": """\
    angles = mx.outer(mx.arange(offset, offset + L), 1.0 / 10000 ** (mx.arange(0, D, 2) / D))
"""
    + WHOLE,
    "einsum of two ranges": """\
    inverse = 10000.0 ** (-mx.arange(D // 2) / (D // 2))
    angles = mx.einsum("i,j->ij", mx.arange(L, dtype=mx.float32), inverse)
"""
    + PAIRS,
    "an exponent over another length": """\
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / 32))
"""
    + TURN,
    "rows of a table": """\
    angles = (mx.arange(100)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D)))[offset : offset + L]
"""
    + TURN,
    "positions times a number": """\
    angles = (mx.arange(L) + offset)[:, None] * 0.25 * (10000.0 ** (-mx.arange(0, D, 2) / D))[None, :]
"""
    + WHOLE,
    "tables of four axes": """\
    angles = (mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D)))[None, None]
"""
    + PAIRS,
    "tables that are repeated": """\
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    c, s = mx.repeat(mx.cos(angles), 2, axis=-1), mx.repeat(mx.sin(angles), 2, axis=-1)
    y = x.reshape(B, H, L, D // 2, 2)
    turned = mx.stack([-y[..., 1], y[..., 0]], axis=-1).reshape(x.shape)
    return x * c.astype(x.dtype) + turned * s.astype(x.dtype)
""",
    "the first dimensions": """\
    angles = mx.arange(L)[:, None] * (100.0 ** (-mx.arange(0, 8, 2) / 8))
    angles = mx.concatenate([angles, angles], axis=-1)
    part = x[..., :8]
    part = part * mx.cos(angles).astype(x.dtype) + rotate_half(part) * mx.sin(angles).astype(x.dtype)
    return mx.concatenate([part, x[..., 8:]], axis=-1)
""",
    "halves of tables that were doubled": """\
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    c, s = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    c, s = mx.concatenate([c, c], axis=-1)[None, None], mx.concatenate([s, s], axis=-1)[None, None]
    a, b = x[..., : D // 2], x[..., D // 2 :]
    a, b = a * c[..., : D // 2] - b * s[..., : D // 2], b * c[..., D // 2 :] + a * s[..., D // 2 :]
    return mx.concatenate([a, b], axis=-1)
""",
    "a column times a row": """\
    inverse = 100.0 ** (-mx.arange(0, D, 2) / D)
    angles = (inverse[:, None] @ mx.arange(offset, offset + L, dtype=mx.float32)[None]).T
"""
    + WHOLE,
    "angles of a whole batch": """\
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    angles = mx.broadcast_to(angles[None, None], (B, 1, L, D // 2))
"""
    + PAIRS.replace("reshape(B, H, L, D)", "reshape(*x.shape)"),
    "dimensions that are counted first": """\
    n = min(8, D)
    angles = mx.outer(mx.arange(L), 100.0 ** (-mx.arange(0, n, 2) / n))
    angles = mx.concatenate([angles, angles], axis=-1)
    part = x[..., :n]
    turned = mx.concatenate([-part[..., n // 2 :], part[..., : n // 2]], axis=-1)
    part = part * mx.cos(angles).astype(x.dtype) + turned * mx.sin(angles).astype(x.dtype)
    return mx.concatenate([part, x[..., n:]], axis=-1)
""",
    "a factor of the tables": """\
    m = 0.1 * math.log(40) + 1
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    c, s = (mx.cos(angles) * m).astype(x.dtype), (mx.sin(angles) * m).astype(x.dtype)
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * c - b * s, a * s + b * c], axis=-1)
""",
}


def run(text: str, x: Any) -> Any:
    names: dict[str, Any] = {}
    exec(text, names)
    return names["f"](x)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_is_fixed_to_the_same_values(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    source = HEAD + SPELLINGS[name]
    after = fix_text(FileText("m.py", source), Settings(select=("FUS221",), unsafe_fixes=True)).after
    assert after.count("mx.fast.rope(") == 1
    for shape in ((2, 3, 5, 16), (1, 2, 1, 32)):
        x = mx.random.normal(shape, key=mx.random.key(0))
        before, now = run(source, x), run(after, x)
        assert now.shape == before.shape
        assert mx.abs(now - before).max().item() < 1e-5


NEAR = {
    "positions divided, which rounds": (
        "    angles = (mx.arange(L) / offset)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n" + TURN,
        1,
    ),
    "angles in half precision": (
        "    angles = mx.arange(L, dtype=x.dtype)[:, None] * (1e4 ** (-mx.arange(0, D, 2, dtype=x.dtype) / D))\n"
        + TURN,
        1,
    ),
    "pairs written as halves": (
        "    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n"
        + TURN.replace("x[..., : D // 2], x[..., D // 2 :]", "x[..., ::2], x[..., 1::2]"),
        0,
    ),
    "two tables of angles": (
        "    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n"
        + TURN.replace("mx.sin(angles)", "mx.sin(2 * angles)"),
        0,
    ),
    "a step of two": (
        "    angles = mx.arange(0, 2 * L, 2)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n" + TURN,
        0,
    ),
    "tables with more axes than x": (
        "    angles = (mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D)))[None, None, None]\n" + TURN,
        0,
    ),
}


@pytest.mark.parametrize("name", NEAR)
def test_what_is_almost_one_is_never_a_safe_fix(name: str) -> None:
    body, findings = NEAR[name]
    file = FileText("m.py", HEAD + body)
    _, found = analyse(file, Settings(select=("FUS221",)), lambda attribute: False)
    assert len(found) == findings
    assert all(p.finding.fix is None or p.finding.fix.applicability != "safe" for p in found)


def test_a_helper_that_makes_its_own_tables_is_reported_once() -> None:
    body = "    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n" + TURN
    source = HEAD + body + "\n\ndef both(q, k):\n    return f(q), f(k)\n"
    _, found = analyse(FileText("m.py", source), Settings(select=("FUS221",)), lambda attribute: False)
    assert [p.finding.function for p in found] == ["f"]


NAMED_HALF = """\
import mlx.core as mx


def f(x: mx.array, half: int):
    B, H, L, D = x.shape
    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    angles = mx.concatenate([angles, angles], axis=-1)
    turned = mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x * mx.cos(angles).astype(x.dtype) + turned * mx.sin(angles).astype(x.dtype)
"""


def test_a_half_that_only_a_name_says_is_no_safe_fix() -> None:
    _, found = analyse(FileText("m.py", NAMED_HALF), Settings(select=("FUS221",)), lambda attribute: False)
    assert [p.finding.fix.applicability for p in found if p.finding.fix] == ["unsafe"]


@pytest.mark.parametrize("base", ["(-10000.0)", "(-base)"])
def test_a_negative_base_is_never_passed_as_one(base: str) -> None:
    """Its powers are NaN, as the code computes; the fused kernel takes the logarithm of a base, and raises."""
    angles = f"    angles = mx.arange(offset, offset + L)[:, None] * ({base} ** (-mx.arange(0, D, 2) / D))\n"
    source = HEAD.replace("offset: int", "base: float, offset: int") + angles + TURN
    after = fix_text(FileText("m.py", source), Settings(select=("FUS221",), unsafe_fixes=True)).after
    assert "base=-" not in after and "base=(-" not in after


def test_frequencies_of_another_number_than_pairs_are_no_safe_fix() -> None:
    angles = "    angles = mx.arange(offset, offset + L)[:, None] * (100.0 ** (-mx.arange(0, n, 2) / D))\n"
    source = HEAD.replace("offset: int", "n: int, offset: int") + angles + TURN
    _, found = analyse(FileText("m.py", source), Settings(select=("FUS221",)), lambda attribute: False)
    assert [p.finding.fix.applicability for p in found if p.finding.fix] == ["unsafe"]


def test_one_frequency_for_all_pairs_is_no_fix() -> None:
    """The code broadcasts it; the fused kernel asks for one a pair, and raises."""
    angles = "    angles = mx.outer(mx.arange(L), 1.0 / 10000.0 ** (mx.arange(1, 2) / 2))\n"
    source = HEAD + angles + TURN
    assert fix_text(FileText("m.py", source), Settings(select=("FUS221",), unsafe_fixes=True)).after == source


def test_a_range_that_ends_between_two_numbers_has_no_half() -> None:
    angles = (
        "    half = D // 2 - 0.001\n"
        "    angles = mx.outer(mx.arange(L), 1.0 / (10000.0 ** (mx.arange(0, half) / half)))\n"
    )
    after = fix_text(FileText("m.py", HEAD + angles + TURN), Settings(select=("FUS221",), unsafe_fixes=True)).after
    assert "base=10000.0" not in after


def test_frequencies_that_another_arrays_size_counts_are_run_in_that_number() -> None:
    """`dim // 2` is half of k's last axis, which the reshape says, and so is what is run."""
    text = """import mlx.core as mx


def turn(q: mx.array, k: mx.array, period: float, offset: int = 0):
    _, _, time, dim = q.shape
    freqs = mx.exp(mx.arange(dim // 2, dtype=mx.float32) * (-math.log(float(period)) * 2.0 / dim))
    phase = mx.arange(offset, offset + time, dtype=mx.float32)[None, None, :, None] * freqs
    cos, sin = mx.cos(phase), mx.sin(phase)
    pairs = k.astype(mx.float32).reshape(*k.shape[:-1], dim // 2, 2)
    r, i = pairs[..., 0], pairs[..., 1]
    return mx.stack([r * cos - i * sin, r * sin + i * cos], axis=-1).reshape(k.shape).astype(k.dtype)
"""
    settings = Settings(select=("FUS221",), unsafe_fixes=True)
    fixed = fix_text(FileText("m.py", "import math\n\n" + text), settings, verify=True)
    (applied,) = fixed.applied
    assert applied.fix is not None and applied.fix.verification is not None
    assert applied.fix.verification.outcome == "passed"


@pytest.mark.parametrize(
    ("half", "rotates"),
    [("D // 2", True), ("D / 2", True), ("D // 2 / 1.5", False), ("(D + 1) / 3", False)],
)
def test_a_range_that_is_rounded_up_counts_other_pairs(half: str, rotates: bool) -> None:
    text = (
        HEAD + f"    half = {half}\n    angles = mx.outer(mx.arange(L), 1e-4 ** (mx.arange(0, half) / half))\n" + PAIRS
    )
    fixed = fix_text(FileText("m.py", text), Settings(select=("FUS221",)))
    assert ("base=" in fixed.after) is rotates


def test_where_positions_start_is_no_width() -> None:
    text = HEAD + "    half = offset // 2\n    inverse = mx.exp(-mx.arange(0, half) * (math.log(1000.0) / half))\n"
    text += "    angles = mx.outer(mx.arange(offset, offset + L), inverse)\n" + TURN.replace("D // 2", "half")
    for start in ("offset", "D"):
        fixed = fix_text(
            FileText("m.py", text.replace("half = offset", f"half = {start}")), Settings(select=("FUS221",))
        )
        assert ("mx.fast.rope" in fixed.after) is (start == "D")


def test_what_the_axis_is_cut_by_half_of_is_run_as_long_as_the_axis() -> None:
    """The object's own width, beside frequencies of a table: made up apart, they would contradict each other."""
    text = """import mlx.core as mx
import mlx.nn as nn


class Rope(nn.Module):
    def __init__(self, width: int, base: float = 10000.0):
        super().__init__()
        self.width = width
        self._freqs = 1.0 / (base ** (mx.arange(0, width, 2).astype(mx.float32) / width))

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        angles = mx.arange(offset, offset + x.shape[2]).astype(mx.float32)[:, None] * self._freqs[None, :]
        both = mx.concatenate([angles, angles], axis=-1)
        a, b = x[..., : self.width // 2], x[..., self.width // 2 :]
        turned = mx.concatenate([-b, a], axis=-1)
        return (x * mx.cos(both) + turned * mx.sin(both)).astype(x.dtype)
"""
    fixed = fix_text(FileText("m.py", text), Settings(select=("FUS221",), unsafe_fixes=True), verify=True)
    (applied,) = fixed.applied
    assert applied.fix is not None and applied.fix.verification is not None
    assert applied.fix.verification.outcome == "passed"
    assert "the last axis is cut in the middle" in applied.fix.needs
