"""`fuselint verify PATHS`: what running each fix showed."""

import json
import re

import pytest

mx = pytest.importorskip("mlx.core")

from fuselint.finding import Finding, Fix, Measured, Timing, Verification  # noqa: E402
from fuselint.report.proof import closing, render  # noqa: E402

MODEL = """import mlx.core as mx
import mlx.nn as nn


def norm(x, w):
    h = x.astype(mx.float32)
    h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + 1e-5)
    return w * h.astype(x.dtype)


def plain(x):
    return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5)
"""


@pytest.fixture
def verified(fuselint, tmp_path):
    (tmp_path / "m.py").write_text(MODEL)
    return lambda *options: fuselint("verify", "m.py", "--no-cache", *options)


def test_each_fix_says_what_it_was_proved_by(verified, tmp_path):
    ran = verified()
    assert ran.code == 0
    took, closing = ran.err.splitlines()
    assert took.startswith("verification of 2 fixes took ") and closing == "2 fixes: 2 passed"
    assert f"  run        on cpu, MLX {mx.__version__}, " in ran.out
    assert "seed 0" in ran.out and "gradients  within" in ran.out
    assert "kernels    9 before, 1 after" in ran.out
    plain = ran.out[ran.out.index("m.py:12") :]
    assert "values that overflowed or had lost their digits are right now" in plain  # x * x in float16
    assert (tmp_path / "m.py").read_text() == MODEL


def test_json_has_the_same(verified):
    found = json.loads(verified("--report", "json").out)
    for f in found:
        v = f["fix"]["verification"]
        assert v["outcome"] == "passed" and v["mlx"] == mx.__version__ and v["device"] == "cpu" and v["seed"] == 0
        assert set(v["ulp"]) == {"float32", "float16", "bfloat16"}
        assert all(after <= before + 1 for before, after in v["ulp"].values())
        assert all(after < 8 for _, after in v["ulp"].values())
        assert v["gradient"] < 1e-4
    assert [f["fix"]["verification"]["repaired"] > 0 for f in found] == [False, True]


@pytest.mark.slow
def test_what_takes_the_time_is_said(fuselint, tmp_path, monkeypatch):
    (tmp_path / "m.py").write_text("import mlx.core as mx\n\n\ndef f(x, y):\n    return mx.sin(x) * mx.tanh(y) + x\n")
    (tmp_path / "kernels").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "kernels"))  # MLX keeps compiled kernels there
    first = fuselint("verify", "m.py").err
    found = re.fullmatch(r"verification of 1 fix took ([\d.]+) (m?)s, ([\d.]+) (m?)s of them in the C.*\n.*\n", first)
    assert found, first
    whole, compiling = (float(found[i]) * (1e-3 if found[i + 1] else 1) for i in (1, 3))
    assert 0.02 < compiling < whole  # an object per dtype and rank
    assert fuselint("verify", "m.py").err == "1 fix: 1 passed\n"  # kept


def test_a_report_of_findings_does_not_hold_seconds(verified):
    assert "took" not in verified("--report", "json").out


def test_a_page_stands_alone(verified, tmp_path):
    verified("--report", "html", "-o", "p.html")
    text = (tmp_path / "p.html").read_text()
    assert text.startswith("<!doctype html>") and "<script" not in text and "http" not in text
    assert "2 fixes: 2 passed" in text and "ulp from float64" in text and 'class="wrong"' not in text


def finding(outcome, reason="", **more):
    fix = Fix("safe", "<b>", verification=Verification(outcome, reason, **more))
    return Finding("FUS201", "unfused-rms-norm", "m", "m.py", 3, 1, 3, 9, fix=fix)


def test_failures_show(fuselint, tmp_path):
    bad, odd = finding("failed", "x < y"), finding("not verifiable", "why")
    text = render([bad, odd], "text")
    assert "m.py:3:1 FUS201 failed: x < y" in text and "not verifiable: why" in text
    page = render([bad, odd], "html")
    assert page.count('class="wrong"') == 2 and "x &lt; y" in page and "&lt;b&gt;" in page
    assert closing([bad, odd]) == "2 fixes: 1 failed, 1 not verifiable"
    assert closing([]) == "0 fixes: none"


def test_times_show():
    measured = {"decode": Measured("gpu", {}, {"fixed": Timing(1e-5, 1e-7, 1000)}), "prefill": Measured(reason="no")}
    text = render([finding("passed", "ran", measured=measured)], "text")
    assert "decode     fixed: 10 us +- 100 ns, peak 1 kB" in text
    assert "prefill    not timed: no" in text


def test_notes_that_nothing_else_says():
    reason = "float32: error 1e-7, before 1e-7; gradients within 0; needed: with float32 weights the dtype is other"
    text = render([finding("passed", reason)], "text")
    assert "note       needed: with float32 weights" in text and "error" not in text


def test_entry_takes_two_versions(fuselint, tmp_path):
    ran = fuselint("verify", "a", "--entry", "m:f")
    assert ran.code == 2 and "two versions" in ran.err
