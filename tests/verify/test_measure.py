"""Timing: its arithmetic, its alternatives, and that nothing is claimed of a CPU."""

import dataclasses
import json
import re

import pytest

from support import NORM

mx = pytest.importorskip("mlx.core")

from fuselint.analysis import analyse  # noqa: E402
from fuselint.config import Settings  # noqa: E402
from fuselint.finding import Measured, Region, RegionInput, Timing, Verification  # noqa: E402
from fuselint.rulebook import rules  # noqa: E402
from fuselint.source.text import FileText  # noqa: E402
from fuselint.tuning import Tuner, pays  # noqa: E402
from fuselint.verify.alternatives import AS_IT_IS, FIXED, ONCE, alternatives  # noqa: E402
from fuselint.verify.judge import judge  # noqa: E402
from fuselint.verify.measure import NO_CPU, Choice, measure  # noqa: E402
from fuselint.verify.phases import lead, sizes  # noqa: E402
from fuselint.verify.timing import faster, fastest, interleaved  # noqa: E402

SMALL = Settings(shape={"T": 32, "D": 64, "dims": 64, "L": 8}, dtype="f32")


def found(text, settings=SMALL, code="FUS201"):
    _, proposals = analyse(FileText("m.py", text), settings, lambda name: False)
    return next((p.region, p.finding) for p in proposals if p.finding.code == code)


# --- times -----------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that calls move."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self, seconds, log=None, name=""):
        def run(count):
            self.now += seconds * count
            if log is not None:
                log.append(name)

        return run


def test_the_median_of_calls():
    clock = Clock()
    got = interleaved({"a": clock.work(1e-3), "b": clock.work(5e-6)}, clock=clock)
    assert got["a"].seconds == pytest.approx(1e-3) and got["b"].seconds == pytest.approx(5e-6)
    assert got["a"].spread == pytest.approx(0, abs=1e-9)


def test_calls_take_turns():
    clock, log = Clock(), []
    interleaved({n: clock.work(1.0, log, n) for n in "ab"}, rounds=4, clock=clock)
    assert "".join(log[-8:]) == "abbaabba"


def test_short_calls_are_taken_together():
    clock, counts = Clock(), []

    def run(count):
        counts.append(count)
        clock.now += 1e-6 * count

    interleaved({"a": run}, rounds=2, clock=clock, sample=1e-4)
    assert counts[-1] == 128


def test_what_noise_hides_is_not_faster():
    quick, slow = Timing(1.0, 0.2), Timing(1.3, 0.2)
    assert not faster(quick, slow) and faster(quick, Timing(1.5, 0.2))
    assert fastest({AS_IT_IS: slow, FIXED: quick}, AS_IT_IS) == AS_IT_IS
    assert fastest({AS_IT_IS: Timing(2.0, 0.1), FIXED: quick}, AS_IT_IS) == FIXED


def choice(**phases):
    def measured(old, fix):
        return Measured("gpu", {}, {AS_IT_IS: Timing(old, 0.1), FIXED: Timing(fix, 0.1)})

    return Choice({phase: measured(*times) for phase, times in phases.items()})


@pytest.mark.parametrize(
    ("phases", "kept"),
    [
        ({"prefill": (2, 1), "decode": (1, 1)}, True),
        ({"prefill": (1, 1), "decode": (1, 1)}, False),
        ({"prefill": (2, 1), "decode": (1, 2)}, False),
        ({"prefill": (1, 2), "decode": (1, 2)}, False),
        ({}, True),  # not timed: nothing speaks against it
    ],
)
def test_which_fixes_pay(phases, kept):
    assert pays(choice(**phases)) is kept


# --- on the CPU ------------------------------------------------------------------------------------------------------


def test_nothing_is_claimed_of_a_cpu(fuselint, tmp_path, monkeypatch):
    monkeypatch.setattr("fuselint.verify.measure.gpu", lambda: False)
    assert measure(*found(NORM), SMALL) == Choice(reason=NO_CPU)
    (tmp_path / "m.py").write_text(NORM)
    ran = fuselint("tune", "m.py")
    assert ran.code == 2 and NO_CPU in ran.err and not ran.out
    ran = fuselint("fix", "m.py", "--measure")
    assert NO_CPU in ran.err and "mx.fast.rms_norm" in ran.out and "+-" not in ran.err


def test_a_region_is_timed():
    """What a GPU would do, here on the CPU: the code runs, in both phases, at the sizes that are stated."""
    got = measure(*found(NORM), SMALL, device="cpu", rounds=2)
    assert not got.reason and not got.refused
    assert set(got.by_phase) == {"prefill", "decode"}
    for measured in got.by_phase.values():
        assert set(measured.timings) == {AS_IT_IS, FIXED}
        assert all(t.seconds > 0 for t in measured.timings.values())
        assert measured.sizes["D"] == 64
    peaks = {n: t.peak_memory for n, t in got.by_phase["prefill"].timings.items()}
    assert peaks[FIXED] > 0 and peaks[AS_IT_IS] >= peaks[FIXED]


@pytest.mark.slow
def test_every_way_to_write_it_is_timed():
    got = measure(*found(NORM), SMALL, every=True, device="cpu", rounds=2)
    ways = {AS_IT_IS, FIXED, "compiled", "compiled, shapeless", "fixed and compiled", "fixed and compiled, shapeless"}
    assert set(got.by_phase["prefill"].timings) == ways, got.refused


def test_what_differs_is_no_alternative():
    region, finding = found(NORM)
    wrong = Region(**{**{f: getattr(region, f) for f in region.__dataclass_fields__}, "after": "result = x * 2.0\n"})
    got = measure(wrong, finding, SMALL, device="cpu", rounds=2)
    assert FIXED in got.refused and "differs" in got.refused[FIXED]
    assert set(got.by_phase["prefill"].timings) == {AS_IT_IS}


@pytest.mark.parametrize("rule", rules(), ids=lambda r: r.code)
def test_alternatives_of_every_rule_are_texts(rule):
    for example in rule.examples:
        file = FileText("m.py", example.source.lstrip("\n"))
        _, proposals = analyse(file, Settings(select=(rule.code,)), lambda n: False)
        for p in proposals:
            if p.region is not None and not p.region.not_verifiable:
                made = alternatives(p.region)
                assert [a.name for a in made[:2]] == [AS_IT_IS, FIXED]
                assert len({a.name for a in made}) == len(made)
                for a in made:
                    compile(f"{a.setup}\n{a.support}\n{a.text}", "m", "exec")


def test_a_compiled_helper_has_the_other_shape_rule():
    after = "result = f(x)\n"
    whole, plain = "partial(mx.compile, shapeless=True)", "mx.compile"
    for written, name in ((whole, "fixed, not shapeless"), (plain, "fixed, shapeless")):
        region = Region("FUS301", (), "result = x + 1\n", after, support_after=f"@{written}\ndef f(x):\n    return x\n")
        assert [a.name for a in alternatives(region)] == [AS_IT_IS, FIXED, name]


def test_a_weight_is_dequantized_once():
    inputs = tuple(RegionInput(n, "array") for n in ("x", "w", "s", "b"))
    region = Region("FUS241", inputs, "d = mx.dequantize(w, s, b)\nresult = x @ d.T\n", "result = x\n")
    once = next(a for a in alternatives(region) if a.name == ONCE)
    assert once.setup == "_dense = mx.dequantize(w, s, b)\n" and "mx.dequantize" not in once.text


def test_sizes_of_a_phase():
    region, finding = found(NORM, Settings())
    names = ["D", "L", "B", "self.n_heads"]
    assert sizes(region, finding.traffic, names, "prefill") == {"D": 4096, "L": 2048, "B": 1, "self.n_heads": 32}
    assert sizes(region, None, ["L"], "decode") == {"L": 1}
    stated = found(NORM, Settings(shape={"D": 128}))
    assert sizes(stated[0], stated[1].traffic, ["D"], "prefill") == {"D": 128}


# --- what becomes of fixes -------------------------------------------------------------------------------------------


def judged(monkeypatch, fuselint, tmp_path, command, *options, **phases):
    monkeypatch.setattr("fuselint.verify.measure.gpu", lambda: True)
    monkeypatch.setattr("fuselint.tuning.measure", lambda region, finding, settings, every: choice(**phases))
    (tmp_path / "m.py").write_text(NORM)
    return fuselint(command, "m.py", "--select", "FUS201", *options)


def test_a_fix_that_is_not_faster_is_withheld(monkeypatch, fuselint, tmp_path):
    ran = judged(monkeypatch, fuselint, tmp_path, "fix", "--measure", prefill=(1, 1), decode=(1, 1))
    assert ran.code == 0 and not ran.out
    assert "left as it is: the fix is not faster here" in ran.err
    ran = judged(monkeypatch, fuselint, tmp_path, "fix", "--measure", prefill=(4, 1), decode=(1, 1))
    assert ran.code == 1 and "mx.fast.rms_norm" in ran.out
    assert "4 s +- 100 ms" in ran.err


def test_without_measure_the_text_is_the_same_everywhere(monkeypatch, fuselint, tmp_path):
    ran = judged(monkeypatch, fuselint, tmp_path, "fix", prefill=(1, 9), decode=(1, 9))
    assert "mx.fast.rms_norm" in ran.out


def test_tune_keeps_the_fastest(monkeypatch, fuselint, tmp_path):
    ran = judged(monkeypatch, fuselint, tmp_path, "tune", "--apply", prefill=(1, 3), decode=(1, 1))
    assert (tmp_path / "m.py").read_text() == NORM
    assert "prefill on gpu: as it is" in ran.out
    assert re.fullmatch(r"timed m.py:\d+:\d+ FUS201: fastest: prefill as it is, decode as it is\n", ran.err)  # at once
    ran = judged(monkeypatch, fuselint, tmp_path, "tune", "--apply", "--output-format", "json", prefill=(3, 1))
    assert "mx.fast.rms_norm" in (tmp_path / "m.py").read_text()
    (region,) = json.loads(ran.out)
    assert region["kept"] and region["fastest"] == {"prefill": FIXED}


def test_what_was_measured_goes_into_the_report():
    region, finding = found(NORM)
    tuner = Tuner(SMALL, measuring=lambda region, finding: choice(prefill=(3, 1)))
    kept, stays = tuner(finding, region)
    assert stays and kept.fix.verification.measured["prefill"].timings[FIXED].seconds == 1
    assert tuner(finding, None) == (finding, True)


PACKED = """import mlx.core as mx


def project(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array):
    return x @ mx.dequantize(w, scales, biases, group_size=64, bits=4).T
"""


def test_tune_says_what_it_could_not_time(monkeypatch, fuselint, tmp_path):
    monkeypatch.setattr("fuselint.verify.measure.gpu", lambda: True)
    (tmp_path / "m.py").write_text(PACKED)
    ran = fuselint("tune", "m.py")
    assert ran.code == 0 and ran.err == "fuselint: nothing was timed; 1 fix more with --unsafe-fixes\n"
    bad = Verification("failed", "the value differs")
    monkeypatch.setattr("fuselint.verify.verify", lambda regions, cache=None: [bad for _ in regions])
    ran = fuselint("tune", "m.py", "--unsafe-fixes")
    assert re.match(r"m.py:5:\d+ FUS241 withheld: the value differs; please report this\n", ran.err)
    assert ran.err.endswith("fuselint: nothing was timed\n")


@pytest.mark.parametrize("rows", [2, 3])
def test_a_kernel_that_the_device_lacks_is_no_failure(monkeypatch, rows):
    """CUDA has no quantized_matmul of packed weights that are views; other inputs judge the fix."""
    multiply = mx.quantized_matmul

    def lacking(x, *more, **options):
        if x.shape[0] == rows:
            raise RuntimeError("[quantized_matmul] No implementation for problem shape: 2x4x128x1")
        return multiply(x, *more, **options)

    monkeypatch.setattr(mx, "quantized_matmul", lacking)
    region, _ = found(PACKED, code="FUS241")
    seen = judge(region, 0, lambda which: None)
    assert seen.outcome == "passed", seen.reason
    assert "not run where this device has no kernel" in seen.reason
    monkeypatch.setattr(mx, "quantized_matmul", lambda *_, **__: lacking(mx.zeros((rows,))))
    seen = judge(region, 0, lambda which: None)
    assert seen.outcome == "not verifiable" and "no kernel" in seen.reason


@pytest.mark.slow
def test_a_named_length_is_none_of_the_leading_axes():
    """x of (..., L, in_dims) in a prefill of 2,048: one batch of them, not 2,048."""
    region, finding = found(PACKED, code="FUS241")
    named = ("L", "in_dims", "out_dims")
    assert sizes(region, finding.traffic, named, "prefill")["L"] == 2048
    assert lead(region, "prefill") == lead(region, "decode") == (1,)
    assert lead(found(NORM)[0], "prefill") == (1, 2048)
    settings = dataclasses.replace(SMALL, shape={"in_dims": 64, "out_dims": 8, "D": 8, "T": 2048, "L": 2048})
    got = measure(*found(PACKED, settings, "FUS241"), settings, device="cpu", rounds=1)
    assert all(m.timings for m in got.by_phase.values()), got
