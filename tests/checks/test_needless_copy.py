from __future__ import annotations

import pytest

from fuselint.config import Settings
from fuselint.engine import check_file, fix_text
from fuselint.finding import Finding
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\n\n\ndef f(qkv: mx.array):\n    _, B, L, D = qkv.shape\n"
ATTEND = "    return mx.softmax(q @ k.swapaxes(-1, -2), axis=-1) @ v\n"


def found(text: str) -> list[Finding]:
    return list(check_file(FileText("m.py", HEAD + text), Settings(select=("FUS106",))).findings)


@pytest.mark.parametrize(
    "text",
    ["    q, k, v = qkv[0], qkv[1], qkv[2]\n", "    q = qkv[0]\n    k = qkv[1]\n    v = qkv[2]\n"],
)
def test_entries_of_one_array_are_one_finding(text: str) -> None:
    (finding,) = found(text + ATTEND)
    assert finding.traffic is not None and len(finding.related) == 2
    assert (finding.traffic.kernels_now, finding.traffic.kernels_fused) == (3, 0)
    fixed = fix_text(FileText("m.py", HEAD + text + ATTEND), Settings(select=("FUS106",)), verify=True)
    assert not fixed.withheld, "the first axis has three entries where it is run"
    assert [fixed.after.count(f"qkv[{i}, ...]") for i in range(3)] == [1, 1, 1]


def test_entries_of_two_arrays_are_two_findings() -> None:
    first, second = found("    q, more = qkv[0], qkv + 1\n    k, v = more[1], more[2]\n" + ATTEND)
    assert first.traffic is not None and first.traffic.kernels_now == 1
    assert second.traffic is not None and second.traffic.kernels_now == 2


def test_an_entry_that_is_handed_on_stays() -> None:
    (finding,) = found("    q, k, v = qkv[0], qkv[1], qkv[-1]\n    return v, mx.exp(q @ k)\n")
    assert finding.traffic is not None and finding.traffic.kernels_now == 2


def test_zeros_like_another_array_are_zeros_where_it_is_run() -> None:
    """The quotient has the shape and dtype of what the zeros are like."""
    body = (
        "    dot = mx.sum(qkv, axis=1)\n    return mx.where(dot == 0, mx.zeros_like(dot), dot / mx.max(qkv, axis=1))\n"
    )
    fixed = fix_text(FileText("m.py", HEAD + body), Settings(select=("FUS106",)), verify=True)
    assert "mx.where(dot == 0, 0, dot / mx.max(qkv, axis=1))" in fixed.after
    (applied,) = fixed.applied
    assert applied.fix is not None and applied.fix.verification is not None
    assert applied.fix.verification.outcome == "passed"
