"""The three formats, on findings made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fuselint.finding import Edit, Finding, Fix, Obligation, Related, Traffic, Verification
from fuselint.report import FORMATS, renderer, size

SOURCE = """\
def _norm(x):
    return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + eps)

def call(self, x):
    output = _norm(x)
    return self.weight * output
"""

FINDING = Finding(
    code="FUS201",
    name="unfused-rms-norm",
    message="hand-written RMSNorm: 9 kernels move 36*T*D bytes a call; mx.fast.rms_norm: 1 kernel, 4*T*D",
    path="m.py",
    line=6,
    column=12,
    end_line=6,
    end_column=32,
    function="call",
    related=(Related("m.py", 2, "with `_norm`"), Related("other.py", 7, "the weight")),
    fix=Fix(
        "unsafe",
        "mx.fast.rms_norm(x, self.weight, self.eps)",
        (Edit(10, 12, "é"),),
        ("weight is 1-D", "MLX 0.24"),
        ("FUS211",),
        "reassociated",
        Verification("passed", "", "cpu", "0.32.4", 1e-7, 2e-7, 12),
    ),
    obligations=(
        Obligation("axis is the last", "proven", "axis=-1"),
        Obligation("weight is 1-D", "unknown", "no init"),
    ),
    traffic=Traffic(
        symbols={"T": "rows of x", "D": "D"},
        bytes_now="36*T*D",
        bytes_fused="4*T*D",
        kernels_now=9,
        kernels_fused=1,
        dtype="bf16",
        at={"T": 2048, "D": 4096},
        saved_at=268435456,
        assumed=("T",),
    ),
    id="0123456789ab",
)

BARE = Finding("FUS000", "unreadable-file", "invalid syntax", "bad.py", 1, 1, 1, 1)


def render(name: str, *findings: Finding, text: str = SOURCE, color: bool = False) -> str:
    return renderer(name)(findings, lambda path: text, color)


def test_full_shows_source_evidence_fix_and_what_is_unproven() -> None:
    assert (
        render("full", FINDING)
        == """\
m.py:6:12 FUS201 hand-written RMSNorm: 9 kernels move 36*T*D bytes a call; mx.fast.rms_norm: 1 kernel, 4*T*D
   |
 5 |     output = _norm(x)
 6 |     return self.weight * output
   |            ^^^^^^^^^^^^^^^^^^^^ with `_norm` (line 2)
   | other.py:7: the weight
   | saves 268 MB at T=2048 D=4096 bf16 (T assumed); 8 launches fewer (counted) [T: rows of x]
   = fix (unsafe, reassociated): mx.fast.rms_norm(x, self.weight, self.eps)
   = needs: MLX 0.24
   = after FUS211 is fixed: fix again
   = verification passed
   = not proven: weight is 1-D (no init)
   = fuselint rule FUS201 | silence: # noqa: FUS201
"""
    )


def test_full_leaves_out_the_middle_of_a_long_finding() -> None:
    text = "\n".join(f"line {n}" for n in range(1, 21)) + "\n"
    shown = render("full", replace(FINDING, line=3, column=1, end_line=15, end_column=8, related=()), text=text)
    assert " 3 | line 3\n 4 | line 4\n...|\n15 | line 15\n   | ^^^^^^^\n" in shown


@pytest.mark.parametrize(
    ("line", "column", "end", "carets"),
    [
        ("\treturn wide", 2, 8, "    ^^^^^^"),
        ("名 = 値 + x", 5, 6, "     ^^"),
    ],
)
def test_carets_stand_below_what_they_mark(line: str, column: int, end: int, carets: str) -> None:
    found = replace(FINDING, line=1, column=column, end_line=1, end_column=end, related=())
    assert f"   | {carets}\n" in render("full", found, text=line + "\n")


def test_full_takes_advice_and_a_file_without_text() -> None:
    advice = replace(FINDING, fix=Fix("none", "x is rebound"), related=(), traffic=None, obligations=())
    assert "= no fix: x is rebound\n" in render("full", advice)
    assert render("full", BARE, text="") == "bad.py:1:1 FUS000 invalid syntax\n"


def test_concise_is_one_line_a_finding() -> None:
    assert render("concise", FINDING, BARE) == (
        f"m.py:6:12: FUS201 [unsafe] {FINDING.message}\nbad.py:1:1: FUS000 invalid syntax\n"
    )


def test_json_has_the_documented_keys_in_order() -> None:
    first, second = json.loads(render("json", FINDING, BARE))
    assert " ".join(first) == (
        "id code name message path line column end_line end_column function related fix obligations traffic"
    )
    assert " ".join(first["fix"]) == "applicability message edits needs requires numerics verification"
    assert " ".join(first["traffic"]) == (
        "symbols bytes_now bytes_fused kernels_now kernels_fused dtype at saved_at assumed"
    )
    assert first["fix"]["edits"] == [{"start": 10, "end": 12, "text": "é"}]
    assert first["related"][1] == {"path": "other.py", "line": 7, "message": "the weight"}
    assert first["obligations"][1] == {"claim": "weight is 1-D", "verdict": "unknown", "because": "no init"}
    assert first["fix"]["verification"]["outcome"] == "passed"
    assert second["fix"] is None and second["traffic"] is None


@pytest.mark.parametrize("name", FORMATS)
def test_only_people_get_color_and_nothing_gives_nothing(name: str) -> None:
    assert json.loads(render(name) or "[]") == []
    assert ("\x1b[" in render(name, FINDING, color=True)) == (name != "json")
    assert "\x1b[" not in render(name, FINDING)


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 268435456, 16777216, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "268 MB",
        "16.8 MB",
        "3 TB",
    ]
