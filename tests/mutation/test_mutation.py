"""Mutants of true forms: what is still matched is still what the fix computes, in float64 on hostile inputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("mlx.core")
pytest.importorskip("numpy")

from mutation.forms import HEAD, Form, forms
from mutation.judge import Judgement, Mutant, judge, mutant
from mutation.running import FAULTS, cases, load, run

MUTANTS = 2000


def wrong(judgements: list[Judgement]) -> list[str]:
    return [f"{j.code}: {j.because}\n{j.mutant.source}\n{j.fixed}" for j in judgements if j.verdict == "wrong"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_fixes_of_mutants_compute_what_the_mutants_do(part: int) -> None:
    judgements = [j for seed in range(part * MUTANTS // 4, (part + 1) * MUTANTS // 4) for j in judge(mutant(seed))]
    assert wrong(judgements) == []
    right = [j for j in judgements if j.verdict == "right"]
    assert len(right) > MUTANTS // 8
    assert len({j.code for j in right}) > 15
    assert len([j for j in judgements if j.verdict == "unmet"]) < len(right) // 100 + 2


@pytest.mark.parametrize("form", [pytest.param(f, id=f.name) for f in forms()])
def test_a_form_is_matched_by_its_rule_and_rightly(form: Form) -> None:
    judgements = list(judge(Mutant(1, form, form.source)))
    assert wrong(judgements) == []
    assert form.name.split()[0] in [j.code for j in judgements]
    assert any(_runs(form, n) for n in range(3))


def _runs(form: Form, number: int) -> bool:
    try:
        run(load(form.source), form.entry, form.init, form.takes, list(cases(1))[number])
    except FAULTS:
        return False
    return True


def _function(name: str, takes: str, body: str, arguments: str = "") -> Form:
    arguments = arguments or ", ".join(part.split(":")[0].strip() for part in takes.split(","))
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return Form(name, f"{HEAD}def f({arguments}):\n{lines}", takes)


HEADS = "q: B H L D, k: B H S D, v: B H S D"
ROTATED = """B, H, L, D = x.shape
angles = mx.arange(L)[:, None] * 10000.0 ** (-{frequencies} / D)
c, s = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
a, b = mx.split(x, 2, axis=-1)
return mx.concatenate([a * c - b * s, a * s + b * c], axis=-1)"""

ONCE_WRONG = [  # the code of the rule that took it for its own
    _function(
        "FUS101 the queries are repeated keys",
        "k: B G S D, v: B G S D, n: =H//G",
        "k, v = mx.repeat(k, n, axis=1), mx.repeat(v, n, axis=1)\n"
        "return mx.fast.scaled_dot_product_attention(k, k, v, scale=0.3)",
        "k, v, n: int",
    ),
    _function(
        "FUS102 a boolean causal mask is added as numbers",
        "q: B H L D, k: B H L D, v: B H L D",
        "at = mx.arange(q.shape[2])\n"
        "mask = (at[:, None] >= at[None]).astype(q.dtype)\n"
        "return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)",
    ),
    _function(
        "FUS102 a boolean causal mask is added to the scores",
        "q: B H L D, k: B H L D, v: B H L D",
        "at = mx.arange(q.shape[2])\n"
        "return mx.softmax(q @ k.swapaxes(-1, -2) + (at[:, None] >= at[None]), axis=-1) @ v",
    ),
    _function(
        "FUS102 an additive causal mask selects",
        "q: B H L D, k: B H L D, v: B H L D",
        "mask = mx.triu(mx.full((q.shape[2], q.shape[2]), -1e9), k=1)\n"
        "return mx.softmax(mx.where(mask, q @ k.swapaxes(-1, -2), -1e9), axis=-1) @ v",
    ),
    _function(
        "FUS201 a sum over a parameter whose default is no length",
        "x: B L D",
        "return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) / eps)",
        "x, eps=1e-6",
    ),
    _function("FUS203 x as its own eps", "x: B L D", "return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + x)"),
    _function("FUS201 x as its own eps", "x: B L D", "return x * mx.rsqrt((x * x).mean(-1, keepdims=True) - x)"),
    _function(
        "FUS211 a mask of integers selects",
        f"{HEADS}, mask: bool L S",
        "scores = mx.where(mask.astype(mx.int32), q @ k.swapaxes(-1, -2) * 0.3, -1e9)\n"
        "return mx.softmax(scores, axis=-1) @ v",
    ),
    _function(
        "FUS211 the keys select",
        "q: B H L L, k: B H L L, v: B H L L",
        "return mx.softmax(mx.where(k, q @ k.swapaxes(-1, -2) * 0.3, -1e9), axis=-1) @ v",
    ),
    _function(
        "FUS211 a boolean mask is added",
        f"{HEADS}, m: mask L S",
        "return mx.softmax(q @ k.swapaxes(-1, -2) * 0.3 + (m > 0), axis=-1) @ v",
    ),
    _function(
        "FUS211 a number is added",
        HEADS,
        "return mx.softmax(q @ k.swapaxes(-1, -2) * 0.3 + math.sqrt(q.shape[-1]), axis=-1) @ v",
    ),
    _function("FUS221 one frequency, of the batch", "x: 2 H L D", ROTATED.format(frequencies="mx.arange(0, B, 2)")),
    _function(
        "FUS221 frequencies of a third",
        "x: 4 4 4 4",
        ROTATED.format(frequencies="mx.arange(0, D // 3)").replace("/ D)", "/ (D // 3))"),
    ),
    _function("FUS221 a frequency less than pairs", "x: B H L D", ROTATED.format(frequencies="mx.arange(2, D, 2)")),
]


@pytest.mark.parametrize("form", [pytest.param(f, id=f.name) for f in ONCE_WRONG])
def test_what_was_once_fixed_wrongly_is_left(form: Form) -> None:
    judgements = list(judge(Mutant(1, form, form.source)))
    assert wrong(judgements) == []
    assert form.name.split()[0] not in [j.code for j in judgements]
    assert any(_runs(form, n) for n in range(3))


@pytest.mark.parametrize(
    "body",
    [
        "return mx.fast.rms_norm(x.astype(mx.float32), 1e-6, None).astype(x.dtype)",
        "return mx.dequantize(x, x, x, group_size=64, bits=0)[0]",
        "r = mx.cos(x.mean(-1))\nreturn x * mx.expand_dims(-1, r) + mx.exp(x.max(-1))[..., None]",
        "a, b = mx.split(x, 0, axis=-1)\nreturn a * mx.sigmoid(b) * a",
        "n = x.shape[-1] // 0\nreturn x * mx.exp(x) * n",
    ],
)
def test_code_that_raises_is_analysed(body: str) -> None:
    form = _function("raises", "x: B L D", body)
    assert wrong(list(judge(Mutant(1, form, form.source)))) == []


def test_the_benchmark_runs_and_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "mutants.py"
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec and spec.loader
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    assert benchmark.main(["--count", "4", "--seed", "5"]) == 0
    assert "mutants 5 to 8: " in capsys.readouterr().out
    form = forms()[0]
    bad = Judgement(Mutant(7, form, form.source), "FUS101", "wrong", "differs", "repeated", ("n is 2",), "fixed = 1\n")
    monkeypatch.setattr(benchmark, "judge", lambda mutant: [bad])
    assert benchmark.main(["--count", "1", "--save", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "FUS101          1        0        1" in out and "1 wrong" in out
    saved = (tmp_path / "FUS101-7.py").read_text()
    assert form.source in saved and "# differs" in saved and saved.endswith("fixed = 1\n")
