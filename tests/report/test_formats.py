"""The formats, on findings made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fuselint.config import FORMATS
from fuselint.finding import (
    Edit,
    Finding,
    Fix,
    InDtype,
    ModelSaving,
    Obligation,
    Related,
    Saved,
    Seconds,
    Traffic,
    Verification,
)
from fuselint.report import duration, percent, renderer, size

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
        launches_fewer=8,
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


KNOWN = replace(
    FINDING.traffic or Traffic({}, "", "", 0, 0, "", {}, None),
    sources={"T": "phase", "D": "config"},
    assumed=(),
    chip="m3-max",
    phase="prefill",
    seconds=Seconds(0.00074, 0.00082, 0.001),
    model=ModelSaving(65, 17_400_000_000, 520, Seconds(0.048, 0.053, 0.066), 2048, 186_000_000_000, 0.0935),
)


def saving_lines(**changed: object) -> list[str]:
    text = render("full", replace(FINDING, traffic=replace(KNOWN, **changed)))
    return [line.removeprefix("   | ") for line in text.splitlines() if "saves" in line or "costs" in line]


def test_full_says_times_sources_and_what_a_whole_model_saves() -> None:
    assert saving_lines() == [
        "saves 268 MB and 820 us (740 us to 1 ms) on m3-max at T=2048 D=4096 bf16 (D from the config); "
        "8 launches fewer (counted) [T: rows of x]",
        "the model, 65 times: saves 17.4 GB and 53 ms (48 ms to 66 ms) a prefill of 2048 tokens on m3-max, "
        "26 us a token; 9.3 % of the 186 GB that this file moves",
    ]


def test_full_says_what_a_token_saves() -> None:
    model = ModelSaving(32, 1_840_000, 32, Seconds(8e-5, 1e-4, 2e-4), 1, 17_200_000_000, 0.0001)
    assert saving_lines(phase="decode", model=model)[1] == (
        "the model, 32 times: saves 1.84 MB and 100 us (80 us to 200 us) a token on m3-max; "
        "0.01 % of the 17.2 GB that this file moves"
    )


def test_full_says_that_nothing_is_saved_and_what_it_costs() -> None:
    nothing = ModelSaving(32, 0, 0, Seconds(0, 0, 0), 16384, 10**12, 0.0)
    assert saving_lines(
        phase="train", saved_at=0, kernels_fused=9, launches_fewer=0, seconds=Seconds(0, 0, 0), model=nothing
    ) == [
        "saves nothing at T=2048 D=4096 bf16 (D from the config); MLX runs the original under a gradient [T: rows of x]"
    ]
    (line,) = saving_lines(saved_at=-2_000_000, seconds=Seconds(-6e-6, -5e-6, 4e-6), model=None)
    assert line.startswith("costs 2 MB and 5 us (-4 us to 6 us) on m3-max at ")


HALF = Saved("20*T*D", 0.5, exact=True)
UNSIZED: dict[str, object] = {"sources": {"T": "phase", "D": "typical"}, "assumed": ("D",), "model": None}


def narrow(t: Traffic, saves: Saved | None, less: bool | None) -> InDtype:
    return InDtype("f32", t.bytes_now, t.bytes_fused, 9, 1, 8, t.saved_at, saves, less)


@pytest.mark.parametrize(
    ("changed", "said"),
    {
        "whatever the sizes": ({"saves": HALF}, "saves 50 % of these bytes, 20*T*D"),
        "much the same": ({"saves": Saved("20*T*D", 0.5, exact=False)}, "saves about 50 % of these bytes, 20*T*D"),
        "decided by sizes": ({"saves": Saved("20*T*D", None, exact=False)}, "saves 20*T*D of these bytes"),
        "all": ({"saves": Saved("20*T*D", 1.0, exact=True)}, "saves all of these bytes"),
        "nearly all": ({"saves": Saved("20*T*D", 0.9999, exact=True)}, "saves more than 99 % of these bytes, 20*T*D"),
        "a long formula": ({"saves": Saved("T*D" * 30, 0.5, exact=True)}, "saves 50 % of these bytes"),
        "a cost": ({"saves": Saved("-20*T*D", -0.25, exact=True)}, "costs 25 % more bytes"),
        "less in the other dtype": (
            {"saves": HALF, "otherwise": narrow(KNOWN, Saved("8*T*D", 0.2, exact=True), True)},
            "saves at least 20 % of these bytes, 8*T*D",
        ),
        "the same share in both": (
            {"saves": HALF, "otherwise": narrow(KNOWN, Saved("40*T*D", 0.5, exact=True), False)},
            "saves 50 % of these bytes, at least 20*T*D",
        ),
        "less of one, by the sizes": (
            {"saves": HALF, "otherwise": narrow(KNOWN, Saved("8*D*D", 0.2, exact=False), None)},
            "saves at least about 20 % of these bytes",
        ),
        "no share of one": (
            {"saves": HALF, "otherwise": narrow(KNOWN, Saved("40*T*D", None, exact=False), False)},
            "saves at least 20*T*D of these bytes",
        ),
        "nothing in one": (
            {"saves": HALF, "otherwise": narrow(KNOWN, Saved("0", 0.0, exact=True), True), "saved_at": 0},
            "saves 50 % of these bytes in bf16, 20*T*D; saves nothing in f32",
        ),
    }.values(),
)
def test_full_gives_a_share_and_a_formula_where_nothing_says_a_size(changed: dict[str, object], said: str) -> None:
    """Neither bytes nor time: they would be those of another model."""
    (line,) = saving_lines(**{**UNSIZED, **changed})
    assert line == (
        f"{said}; 8 launches fewer (counted); "
        "nothing says D: --shape D=N, --model-config or a recorded run gives bytes and time [T: rows of x]"
    )


@pytest.mark.parametrize(("dtype", "other"), [("bf16", "f32"), ("f32", "bf16")])
def test_what_saves_in_one_dtype_alone_says_so(dtype: str, other: str) -> None:
    """Not that nothing is saved: in the other dtype the code does nothing that could be spared."""
    t = replace(KNOWN, saved_at=0, launches_fewer=0, most=(268_000_000, 2), model=None, saves=HALF)
    nothing = narrow(t, Saved("0", 0.0, exact=True), True)
    t = replace(t, otherwise=nothing)
    if dtype == "f32":
        saves = replace(nothing, saved_at=268_000_000, saves=t.saves)
        t = replace(t, otherwise=saves, saves=nothing.saves)
    text = render("full", replace(FINDING, traffic=t))
    assert (
        f"saves 268 MB in {dtype}, saves nothing in {other} at T=2048 D=4096 bf16 or f32 (D from the config); "
        f"2 launches fewer in {dtype} (counted)"
    ) in text
    assert f"| 268 MB in {dtype} |" in render("markdown", replace(FINDING, traffic=t))
    unsized = replace(t, sources={"T": "phase", "D": "typical"}, assumed=("D",))
    assert f"| 50 % in {dtype} |" in render("markdown", replace(FINDING, traffic=unsized))


def test_full_says_how_sizes_can_be_said() -> None:
    at = dict.fromkeys("ABCDE", 8)
    (line,) = saving_lines(**{**UNSIZED, "saves": HALF, "at": at, "sources": dict.fromkeys(at, "typical")})
    assert "nothing says A, B, C or 2 more: --shape, --model-config or a recorded run gives" in line
    sources = {"T": "config", "D": "typical"}
    (line,) = saving_lines(**{**UNSIZED, "saves": HALF, "sources": sources, "calls": 3})
    assert "called 3 times in the recorded run; nothing says D: --shape D=N gives bytes and time" in line


def test_full_adds_no_guesses_up_in_a_model() -> None:
    assert KNOWN.model
    text = render("full", replace(FINDING, traffic=replace(KNOWN, model=replace(KNOWN.model, typical=("K",)))))
    assert (
        "   | the model, 65 times: 520 launches fewer (counted) a prefill of 2048 tokens; "
        "its configuration doesn't say K\n"
    ) in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (3e-9, "3 ns"), (3.26e-5, "33 us"), (0.00123, "1.2 ms"), (0.0996, "100 ms"), (1.5, "1.5 s")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
    assert duration(-seconds) == (f"-{text}" if seconds else text)


@pytest.mark.parametrize(
    ("share", "text"), [(0.65, "65 %"), (0.0935, "9.3 %"), (0.00034, "0.034 %"), (1e-9, "less than 0.01 %"), (0, "0 %")]
)
def test_shares_are_for_people(share: float, text: str) -> None:
    assert percent(share) == text


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
        "id code name message path cell line column end_line end_column function related fix obligations traffic"
    )
    assert " ".join(first["fix"]) == "applicability message edits needs requires numerics verification"
    assert " ".join(first["traffic"]) == (
        "symbols bytes_now bytes_fused kernels_now kernels_fused launches_fewer dtype at saved_at assumed "
        "sources chip phase seconds model calls otherwise saves"
    )
    assert first["fix"]["edits"] == [{"start": 10, "end": 12, "text": "é"}]
    assert first["related"][1] == {"path": "other.py", "line": 7, "message": "the weight"}
    assert first["obligations"][1] == {"claim": "weight is 1-D", "verdict": "unknown", "because": "no init"}
    assert first["fix"]["verification"]["outcome"] == "passed"
    assert second["fix"] is None and second["traffic"] is None
    assert first["traffic"]["seconds"] is None and first["traffic"]["model"] is None
    (known,) = json.loads(render("json", replace(FINDING, traffic=KNOWN)))
    assert known["traffic"]["sources"] == {"T": "phase", "D": "config"}
    assert known["traffic"]["seconds"] == {"low": 0.00074, "estimate": 0.00082, "high": 0.001}
    assert " ".join(known["traffic"]["model"]) == "objects bytes launches seconds tokens moved share typical"


@pytest.mark.parametrize("name", FORMATS)
def test_only_people_get_color(name: str) -> None:
    for_people = name in ("full", "concise", "grouped")
    assert ("\x1b[" in render(name, FINDING, color=True)) == for_people
    assert "\x1b[" not in render(name, FINDING)


def test_nothing_gives_nothing_or_an_empty_report() -> None:
    for name in ("full", "concise", "grouped", "jsonl", "github"):
        assert render(name) == ""
    assert json.loads(render("json")) == json.loads(render("gitlab")) == []
    assert json.loads(render("sarif"))["runs"][0]["results"] == []
    assert render("markdown") == "### fuselint: 0 findings\n"


def test_sizes_for_people() -> None:
    assert [size(n) for n in (0, 999, 1000, 268435456, 16777216, 3 * 10**12)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "268 MB",
        "16.8 MB",
        "3 TB",
    ]


def test_full_shows_what_a_fix_changes() -> None:
    from fuselint.report.full import render as full

    start = SOURCE.index("self.weight * output")
    fix = Fix("safe", "fused", (Edit(0, 0, "import x\n"), Edit(start, start + 20, "\x1b fused(\n    )")))
    shown = full([replace(FINDING, fix=fix)], lambda f: SOURCE, diffs=True)
    assert (
        "   | line 0\n   + import x\n   | line 6\n   -     return self.weight * output\n"
        "   +     return \\x1b fused(\n   +     )\n   = fix (safe, bit-identical): fused\n"
    ) in shown
    assert "+ import x" not in full([replace(FINDING, fix=fix)], lambda f: SOURCE)
    assert "\x1b[32m+ import x\x1b[0m" in full([replace(FINDING, fix=fix)], lambda f: SOURCE, True, diffs=True)
