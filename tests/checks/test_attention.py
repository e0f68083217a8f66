"""FUS211, FUS102, FUS101: masks and sinks as the fused kernel takes them, and what the fixed code computes."""

from __future__ import annotations

from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.finding import Finding
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

SELECTED = ("FUS211", "FUS102", "FUS101")


def fixed(text: str) -> tuple[str, list[Finding]]:
    """The text with every fix made, and the findings that led there."""
    done = fix_text(FileText("m.py", text), Settings(select=SELECTED, unsafe_fixes=True))
    assert not done.remaining.errors, done.remaining.errors
    return done.after, [*done.applied, *done.remaining.findings]


def attend(body: str, arguments: str = "q, k, v, mask=None") -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return f"{HEAD}def f({arguments}):\n    B, H, L, D = q.shape\n{lines}"


def run(text: str, *args: Any) -> Any:
    names: dict[str, Any] = {}
    exec(compile(text, "m.py", "exec"), names)
    return names["f"](*args)


def same(before: str, after: str, *args: Any) -> None:
    mx = pytest.importorskip("mlx.core")
    a, b = run(before, *args), run(after, *args)
    assert a.dtype == b.dtype and mx.allclose(a, b, rtol=1e-4, atol=1e-5).item(), mx.abs(a - b).max()


def arrays(*shapes: tuple[int, ...]) -> list[Any]:
    mx = pytest.importorskip("mlx.core")
    return [mx.random.normal(s, key=mx.random.key(i)) for i, s in enumerate(shapes)]


CAST = """
scores = q @ k.swapaxes(-1, -2)
if mask is not None:
    scores = scores + mask.astype({})
return mx.softmax(scores, axis=-1) @ v
"""


@pytest.mark.parametrize(("dtype", "needs"), [("q.dtype", 0), ("scores.dtype", 1)])
def test_a_mask_that_may_be_none_is_cast_where_there_is_one(dtype: str, needs: int) -> None:
    before = attend(CAST.format(dtype))
    after, findings = fixed(before)
    assert "mask=None if mask is None else mask.astype(q.dtype)" in after and "softmax" not in after
    assert [len(f.fix.needs) for f in findings if f.fix] == [needs]
    q, k, v, mask = arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7))
    same(before, after, q, k, v, mask)
    same(before, after, q, k, v, mask > 0)  # cast, it is added
    same(before, after, q, k, v)


def test_a_mask_cast_to_the_scores_dtype_is_cast_to_the_queries() -> None:
    before = attend("s = q @ k.swapaxes(-1, -2)\nreturn mx.softmax(s + mask.astype(s.dtype), axis=-1) @ v")
    after, _ = fixed(before)
    assert "mask=mask.astype(q.dtype)" in after and "s = " not in after
    same(before, after, *arrays((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (5, 7)))


CAUSAL = "mask = mx.arange(L)[:, None] >= mx.arange(L)[None]\n"


def test_a_boolean_that_is_added_to_scores_is_no_mask() -> None:
    for body in (
        CAUSAL + "return mx.softmax(q @ k.swapaxes(-1, -2) + mask, axis=-1) @ v",
        "return mx.softmax(q @ k.swapaxes(-1, -2) + (mask > 0), axis=-1) @ v",
    ):
        assert fixed(attend(body)) == (attend(body), [])


def test_a_boolean_that_is_added_as_numbers_stays_numbers() -> None:
    body = CAUSAL + "return mx.softmax(q @ k.swapaxes(-1, -2) + mask.astype(q.dtype), axis=-1) @ v"
    after, findings = fixed(attend(body))
    assert [f.code for f in findings] == ["FUS211"] and "mask=mask.astype(q.dtype)" in after
    same(attend(body), after, *arrays((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)))


def test_a_boolean_that_selects_scores_is_a_mask() -> None:
    body = CAUSAL + "s = q @ k.swapaxes(-1, -2)\nreturn mx.softmax(mx.where(mask, s, -mx.inf), axis=-1) @ v"
    after, _ = fixed(attend(body))
    assert '"causal"' in after
    same(attend(body), after, *arrays((2, 3, 5, 8), (2, 3, 5, 8), (2, 3, 5, 8)))
