"""Files in order, claims, standing, rounds, writing."""

from __future__ import annotations

import ast
import gc
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import fuselint.engine as engine
from fuselint.analysis import Proposal, analyse
from fuselint.config import Settings
from fuselint.engine import check_file, check_paths, choose, fix_paths, fix_text, unified
from fuselint.finding import Applicability, Edit, Finding, Fix, Traffic, Verification
from fuselint.graph.canonical import Canonical
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.known import KnownFacts
from fuselint.graph.leftovers import taken_apart
from fuselint.graph.program import Program
from fuselint.rulebook import NoFix
from fuselint.source.project import summarise
from fuselint.source.screen import parse
from fuselint.source.text import FileText
from support import NORM, PLAIN

HELPER = """\
import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.weight = mx.ones((dims,))

    def _norm(self, x):
        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5)

    def __call__(self, x):
        return self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)
"""


def places(text: str, **settings: object) -> list[tuple[str, str]]:
    found = check_file(FileText("m.py", text), Settings(**settings)).findings  # type: ignore[arg-type]
    return [(f.code, f.function) for f in found]


def test_a_helper_that_is_inlined_at_every_call_has_no_finding_of_its_own() -> None:
    assert places(HELPER) == [("FUS201", "Norm.__call__")]


def test_a_helper_that_is_also_called_where_it_is_not_covered_keeps_its_finding() -> None:
    text = HELPER + "\n    def raw(self, x):\n        return apply(self._norm, x)\n"
    assert ("FUS201", "Norm._norm") in places(text)


STEPS = """\
import mlx.core as mx
import mlx.nn as nn


class Heads(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.q_weight = mx.ones((dims,))
        self.k_weight = mx.ones((dims,))

    def __call__(self, q: mx.array, k: mx.array):
        q, k = (t * mx.rsqrt(mx.mean(mx.square(t), axis=-1, keepdims=True) + 1e-5) for t in (q, k))
        return q @ k.swapaxes(-1, -2)
"""
UNIT = "mx.rsqrt(mx.mean(mx.square(t), axis=-1, keepdims=True) + 1e-5)"


def test_one_edit_serves_every_step_of_a_comprehension() -> None:
    assert places(STEPS) == [("FUS201", "Heads.__call__")]
    fixed = fix_text(FileText("m.py", STEPS), Settings()).after
    assert "        q, k = (mx.fast.rms_norm(t, None, 1e-5) for t in (q, k))\n" in fixed
    weighted = STEPS.replace(f"t * {UNIT} for t in (q, k)", f"t * {UNIT} * w for t, w in ((q, self.q_weight), (k, 2))")
    assert places(weighted) == [("FUS201", "Heads.__call__")]
    assert "(mx.fast.rms_norm(t, None, 1e-5) * w for t, w in" in fix_text(FileText("m.py", weighted), Settings()).after


def test_what_takes_every_step_in_waits_for_the_comprehension() -> None:
    text = STEPS.replace("return q @ k", "q = q * self.q_weight\n        k = k * self.k_weight\n        return q @ k")
    assert places(text) == [("FUS201", "Heads.__call__")]
    fixed = fix_text(FileText("m.py", text), Settings()).after
    assert "q, k = (mx.fast.rms_norm(t, None, 1e-5) for t in (q, k))\n        q = q * self.q_weight\n" in fixed


def test_the_facts_of_every_step_of_a_comprehension_are_known() -> None:
    text = """\
import mlx.core as mx


def attend(q, k, v):
    q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
    return mx.softmax((q * 0.125) @ k.swapaxes(-1, -2), axis=-1) @ v
"""
    (found,) = check_file(FileText("m.py", text), Settings()).findings
    assert found.code == "FUS211" and found.fix is not None and found.fix.applicability == "safe"


def test_what_one_step_refutes_is_found_in_none() -> None:
    text = """\
import mlx.core as mx


def attend(q: mx.array, k: mx.array, v: mx.array, mask: mx.array):
    B, H, L, D = q.shape
    k, v = k.reshape(B, H, -1, D), v.reshape(B, H, -1, D)
    return [mx.softmax(0.125 * (q @ t.swapaxes(-1, -2)) + m, axis=-1) @ t for t, m in ((k, mask), (v, mask))]
"""
    assert places(text) == [("FUS211", "attend")]
    assert places(text.replace("(v, mask)", "(v, mask.astype(mx.bool_))")) == []


WHOLE = """\
import mlx.core as mx
import mlx.nn as nn


def unit(h: mx.array, eps: float) -> mx.array:
    dtype = h.dtype
    h = h.astype(mx.float32)
    return (h * mx.rsqrt(h.square().mean(-1, keepdims=True) + eps)).astype(dtype)


class Heads(nn.Module):
    def __init__(self, heads: int):
        super().__init__()
        self.gain = mx.ones((heads,))

    def __call__(self, q, k):
        q = unit(q, 1e-6) * self.gain[:, None]
        k = unit(k, 1e-6) * self.gain[:, None]
        return q @ k.swapaxes(-1, -2)
"""


def test_a_helper_that_holds_all_of_its_callers_matches_is_reported_once() -> None:
    assert places(WHOLE) == [("FUS201", "unit")]
    once = WHOLE.replace("        k = unit(k, 1e-6) * self.gain[:, None]\n", "")
    assert places(once) == [("FUS201", "unit")]


def test_a_helper_inside_a_helper_is_reported_once() -> None:
    text = WHOLE.replace("class Heads", "def both(q, k):\n    return unit(q, 1e-6), unit(k, 1e-6)\n\n\nclass Heads")
    assert places(text.replace("q = unit(q, 1e-6)", "q, k = both(q, k)")) == [("FUS201", "unit")]


def test_a_caller_whose_match_takes_more_in_keeps_its_finding_beside_the_helpers() -> None:
    text = WHOLE.replace("mx.ones((heads,))", "mx.ones((heads,))\n        self.weight = mx.ones((64,))")
    text = text.replace("k = unit(k, 1e-6) * self.gain[:, None]", "k = unit(k, 1e-6) * self.weight")
    assert places(text) == [("FUS201", "unit"), ("FUS201", "Heads.__call__")]
    fixed = fix_text(FileText("m.py", text), Settings()).after
    assert "mx.fast.rms_norm(h, None, eps)" in fixed and "mx.fast.rms_norm(k, self.weight, 1e-6)" in fixed


def test_a_helper_that_knows_less_than_its_callers_has_no_finding_of_its_own() -> None:
    text = """\
import mlx.core as mx


def attend(q, k, v):
    return mx.softmax(q @ k.swapaxes(-1, -2), axis=-1) @ v


def first(x):
    B, H, L, D = x.shape
    return attend(x, x, x)


def second(x, y):
    B, H, L, D = x.shape
    return attend(x, y, y)
"""
    assert places(text) == [("FUS211", "first"), ("FUS211", "second")]


def test_a_helper_without_callers_is_reported() -> None:
    text = HELPER.replace("self._norm(x.astype(mx.float32)).astype(x.dtype)", "x")
    assert places(text) == [("FUS201", "Norm._norm")]


ATTENTION = """\
import mlx.core as mx
import mlx.nn as nn


def attend(query, key, value):
    scale = 1 / mx.sqrt(query.shape[-1])
    return mx.softmax((query * scale) @ key.transpose(0, 1, 3, 2), axis=-1) @ value


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(64, 64)

    def __call__(self, x):
        q = self.q(x).reshape(1, -1, 4, 16).transpose(0, 2, 1, 3)
        return attend(q, q, q)
"""


def test_a_helper_that_can_be_rewritten_keeps_the_finding_whether_its_caller_can_or_not() -> None:
    assert places(ATTENTION, select=("FUS211",)) == [("FUS211", "attend")]
    inlined = ATTENTION.replace("1 / mx.sqrt(query.shape[-1])", "0.25")
    assert places(inlined, select=("FUS211",)) == [("FUS211", "attend")]


def test_ids_survive_moved_lines_and_layout_and_tell_twins_apart() -> None:
    def ids(text: str) -> list[str]:
        return [f.id for f in check_file(FileText("m.py", text), Settings()).findings]

    assert ids(NORM) == ids("# a comment\n\n" + NORM) == ids(NORM.replace("self.weight * h", "self.weight  *  h"))
    both = ids(NORM + "\n\n" + NORM.replace("class Norm", "class Other").split("nn\n", 1)[1])
    assert len(set(both)) == 2


def test_many_files_give_the_same_in_processes_and_in_order(tmp_path: Path) -> None:
    paths = []
    for number in range(12):
        path = tmp_path / f"m{number}.py"
        path.write_text(random.Random(number).choice([NORM, PLAIN, "x = (\nimport mlx\n"]))
        paths.append(str(path))
    alone = list(check_paths(paths, Settings(), jobs=1))
    assert alone == list(check_paths(paths, Settings(), jobs=2))
    assert [r.path for r in alone] == paths
    assert {f.code for r in alone for f in r.findings} == {"FUS000", "FUS201"}


def test_suppressed_findings_are_silent() -> None:
    quiet = NORM.replace("astype(x.dtype)\n", "astype(x.dtype)  # noqa: FUS201\n")
    assert quiet != NORM and places(quiet) == []


def test_known_small_savings_are_hidden_and_counted_unknown_sizes_are_not() -> None:
    file = FileText("m.py", NORM)
    known = Settings(min_saving=10**9, shape={"T": 2, "D": 8, "dims": 8})
    result = check_file(file, known)
    assert result.findings == () and result.below_min_saving == 1
    assert len(check_file(file, Settings(min_saving=10**15)).findings) == 1


def test_a_fix_that_costs_on_the_chip_is_hidden() -> None:
    """cuDNN takes no float32: attention falls back to its steps there, with a scale besides."""
    body = "    return mx.softmax(q @ k.swapaxes(-1, -2) + mask, axis=-1) @ v\n"
    file = FileText("m.py", f"import mlx.core as mx\n\n\ndef attend(q, k, v, mask):\n{body}")
    on = {chip: check_file(file, Settings(chip=chip, dtype="f32", shape={"D": 64})) for chip in ("m3-max", "h200")}
    assert [f.code for f in on["m3-max"].findings] == ["FUS211"]
    assert (on["h200"].findings, on["h200"].below_min_saving) == ((), 1)


def proposal(line: int, saved: int | None, *edits: tuple[int, int], **fix: object) -> Proposal:
    made = Fix(**{"applicability": "safe", "message": "", "edits": tuple(Edit(a, b, "") for a, b in edits), **fix})  # type: ignore[arg-type]
    traffic = Traffic({}, "", "", 2, 1, "bf16", {}, saved)
    return Proposal(Finding("FUS201", "n", "m", "p", line, 1, line, 2, fix=made, traffic=traffic, id=str(line)))


def test_a_round_takes_the_largest_of_touching_fixes() -> None:
    small, large, apart = proposal(1, 10, (0, 5)), proposal(2, 99, (5, 9)), proposal(3, None, (20, 25))
    assert choose([small, large, apart], Settings()) == [large, apart]


def test_only_allowed_fixes_are_made() -> None:
    unsafe = proposal(1, 1, (0, 1), applicability="unsafe")
    later = proposal(2, 1, (3, 4), requires=("FUS211",))
    close = proposal(3, 1, (6, 7), numerics="reassociated")
    assert choose([unsafe, later, close], Settings()) == [close]
    assert choose([unsafe, later, close], Settings(unsafe_fixes=True, exact=True)) == [unsafe]


def test_the_last_of_fixes_that_share_a_statement_takes_it_away() -> None:
    text = """\
import mlx.core as mx


def turned(x: mx.array, y: mx.array, offset: int):
    B, H, L, D = x.shape
    angles = mx.arange(offset, offset + L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))
    cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    return _turn(x, cos, sin), _turn(y[..., :D], cos, sin)


def _turn(x, cos, sin):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
"""
    fixed = fix_text(FileText("m.py", text), Settings(unsafe_fixes=True))
    assert fixed.after.count("mx.fast.rope(") == 2
    assert not any(gone in fixed.after for gone in ("angles", "sin", "_turn"))


def test_names_that_only_two_fixes_read_go_with_the_second() -> None:
    text = """\
import mlx.core as mx


def step(noise: mx.array, latents: mx.array, s: mx.array, t: mx.array):
    sample = latents
    clean = sample - t * noise * 2
    return clean @ sample, (sample + (1 - t) * noise) * s
"""
    fixed = fix_text(FileText("m.py", text), Settings())
    assert len(fixed.applied) == 2 and "sample = latents" in fixed.after  # it is read besides
    fixed = fix_text(FileText("m.py", text.replace("clean @ sample", "clean @ noise")), Settings())
    assert len(fixed.applied) == 2 and "sample" not in fixed.after


def test_what_a_match_looks_at_is_fixed() -> None:
    text = "import mlx.core as mx\n\n\ndef f(x: mx.array, y: mx.array):\n    match mx.sin(x) * y + 1:\n"
    text += "        case z:  # each\n            return z\n"
    fixed = fix_text(FileText("m.py", text), Settings())
    assert not fixed.remaining.errors
    assert fixed.after.endswith("    match sin_multiply_add(x, y):\n        case z:  # each\n            return z\n")


def test_what_a_helper_made_moves_as_its_call() -> None:
    text = """\
import mlx.core as mx


def half_turned(x):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([-b, a], axis=-1)


def turned(k: mx.array, cos: mx.array, sin: mx.array):
    k_out = (k * cos) + (half_turned(k) * sin)
    return k_out.astype(mx.bfloat16)
"""
    fixed = fix_text(FileText("m.py", text), Settings(unsafe_fixes=True))
    assert fixed.after.endswith("    return sum_of_products_bfloat16(k, cos, half_turned(k), sin)\n")
    seen = text.replace("def turned(k", "def turned(seen: list, k").replace(
        "    return k_out", "    seen.append(k)\n    return k_out"
    )
    seen = seen.replace("    a, b = mx", "    if len(SEEN) > 3:\n        SEEN.clear()\n    a, b = mx")
    fixed = fix_text(FileText("m.py", seen), Settings(unsafe_fixes=True))
    assert fixed.after == seen  # the call changes something, and would come after `seen.append`


@pytest.mark.parametrize("then", ["", ".reshape(k.shape)"])
def test_a_second_round_makes_what_waited_for_a_helper_of_the_first(then: str) -> None:
    text = f"""\
import mlx.core as mx


def half_turned(x):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([-b, a], axis=-1)


def turned(q, k, cos, sin):
    q_out = (q * cos) + (half_turned(q) * sin)
    k_out = (k * cos) + (half_turned(k) * sin)
    return q_out, k_out{then}
"""
    fixed = fix_text(FileText("m.py", text), Settings(unsafe_fixes=True))
    assert len(fixed.applied) == 2 and fixed.after.count("sum_of_products(") == 3
    assert not fixed.remaining.findings


def test_a_compiled_helper_keeps_none_of_its_arguments() -> None:
    text = """\
import mlx.core as mx

from .scores import Score


def scores(rows, model, hidden, last, durations):
    B, S, *_ = rows.shape
    if hidden is None:
        hidden = list([None] * B)
    if last is None:
        last = list([None] * B)
    out = []
    for row in range(B):
        found = []
        step = 0
        while step < S:
            after, (state, cell) = model(mx.array([[last[row]]]) if last[row] is not None else None, hidden[row])
            logits = after[0]
            token = int(mx.argmax(logits))
            p = mx.softmax(logits, axis=-1)
            entropy = -mx.sum(p * mx.log(p + 1e-10), axis=-1)
            sure = float(1.0 - entropy)
            if token:
                found.append(Score(token, sure))
                last[row] = token
                hidden[row] = state, cell
            step += durations[token]
        out.append(found)
    return out, hidden
"""
    fixed = fix_text(FileText("m.py", text), Settings(unsafe_fixes=True, hot=("*",)))  # the host reads all of it
    assert "-mx.sum(add_log_multiply(p), axis=-1)" in fixed.after


def test_a_name_of_several_that_nobody_reads_any_more_goes() -> None:
    text = """\
import mlx.core as mx


def pair(a: mx.array, b: mx.array, w: mx.array):
    t = a * 3
    x, y = mx.exp(t) * 2 + b, a @ w
    return mx.tanh(x) * b, y


def calls(a: mx.array, b: mx.array, store):
    x, y = a, store.next()
    z, u = a, b @ b
    return mx.tanh(x) * b + x, y, u


def stays(a: mx.array, b: mx.array, w: mx.array):
    x, unused = mx.exp(a) * 2 + b, a @ w
    return mx.tanh(x) * b
"""
    fixed = fix_text(FileText("m.py", text), Settings())
    assert "    y = a @ w\n    return fused_pair(a, b), y\n" in fixed.after  # `t` too
    assert "    y = store.next()\n" in fixed.after
    assert "    z, u = a, b @ b\n" in fixed.after  # nobody read it before
    assert fixed.after.count("mx.exp") == 2 and not fixed.remaining.findings


def test_what_a_loop_hands_on_dies_with_the_value_that_is_replaced() -> None:
    text = """\
import mlx.core as mx


def steps(x, w, hidden, cell):
    out = []
    for t in range(x.shape[1]):
        i, f, g, o = mx.split(x[:, t] @ w, 4, axis=-1)
        i = mx.sigmoid(i)
        f = mx.sigmoid(f)
        g = mx.tanh(g)
        o = mx.sigmoid(o)
        cell = f * cell + i * g
        hidden = o * mx.tanh(cell)
        out.append(hidden)
    return mx.stack(out, axis=1)
"""
    fixed = fix_text(FileText("m.py", text), Settings(unsafe_fixes=True))
    assert len(fixed.applied) == 2 and "raw_" not in fixed.after and not fixed.remaining.findings
    assert fixed.after.endswith("""\
        i, f, g, o = mx.split(x[:, t] @ w, 4, axis=-1)
        cell = fused_steps(f, cell, i, g)
        hidden = sigmoid_tanh_multiply(o, cell)
        out.append(hidden)
    return mx.stack(out, axis=1)
""")


def test_code_that_may_raise_is_not_computed_twice() -> None:
    text = """\
import mlx.core as mx


def velocity(x: mx.array, y: mx.array, sigma: mx.array):
    if sigma.item() == 0:
        raise ValueError("sigma is zero")
    return (x - y) / sigma * 3


def step(x: mx.array, y: mx.array, sigma: mx.array):
    v = velocity(x, y, sigma)
    return x + v * 0.5
"""
    fixed = fix_text(FileText("m.py", text), Settings(select=("FUS301",), unsafe_fixes=True))
    assert "v = velocity(x, y, sigma)\n    return x + v * 0.5" in fixed.after


def test_failed_verification_withholds_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Verification("failed", "differs")
    monkeypatch.setattr("fuselint.verify.verify", lambda regions, **_: [failed for _ in regions])
    fixed = fix_text(FileText("m.py", NORM), Settings(), verify=True)
    assert fixed.after == NORM and fixed.applied == ()
    [finding] = fixed.withheld
    assert finding.fix and finding.fix.verification == Verification("failed", "differs")
    assert len(fixed.remaining.findings) == 1


def test_what_cannot_be_verified_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = Verification("not verifiable", "no inputs")
    monkeypatch.setattr("fuselint.verify.verify", lambda regions, **_: [unknown for _ in regions])
    fixed = fix_text(FileText("m.py", NORM), Settings(), verify=True)
    [finding] = fixed.applied
    assert "mx.fast.rms_norm" in fixed.after and finding.fix and finding.fix.verification == unknown


def test_a_file_that_changes_under_a_fix_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.py"
    path.write_text(NORM)
    rounds = engine._rounds

    def meddle(*args: object, **options: object) -> None:
        rounds(*args, **options)  # type: ignore[arg-type]
        if "# mine" not in path.read_text():
            path.write_text("# mine\n" + NORM)

    monkeypatch.setattr(engine, "_rounds", meddle)
    [fixed] = fix_paths([str(path)], Settings(), write=True)
    assert path.read_text() == fixed.after
    assert path.read_text().startswith("# mine\n") and "mx.fast.rms_norm" in path.read_text()
    assert not fixed.remaining.errors


def test_an_edit_that_breaks_the_text_is_dropped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    file = FileText("m.py", NORM)
    _, [found] = analyse(file, Settings(), None)
    assert found.finding.fix
    broken = replace(found, finding=replace(found.finding, fix=replace(found.finding.fix, edits=(Edit(0, 3, "("),))))
    monkeypatch.setattr(engine, "analyse", lambda *args: (check_file_result, [broken]))
    check_file_result = engine.FileResult("m.py")
    fixed = fix_text(file, Settings())
    assert fixed.after == NORM
    assert "the fix of FUS201 was dropped" in fixed.remaining.errors[0]


FUNCTIONS = "sin cos tan exp tanh square log1p expm1".split()


def chains(class_names: Sequence[str] = ("Block",), body: str = "mx.{f}(a * mx.exp(y) + a) * y") -> str:
    """A module whose classes hold one elementwise chain a method, each its own computation."""
    text = "import mlx.core as mx\nimport mlx.nn as nn\n"
    for i, name in enumerate(class_names):
        text += f"\n\nclass {name}(nn.Module):"
        for f in FUNCTIONS[i :: len(class_names)]:
            method = f"def with_{f}(self, x, y):\n        a = mx.softmax(x, axis=-1)\n        return {body.format(f=f)}"
            text += f"\n    {method}\n"
    return text


def rounds_taken(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[engine.FixedFile, int]:
    """The fixed text, and in how many rounds it got a fix."""
    taken: list[int] = []
    with monkeypatch.context() as patch:
        make = engine._make
        patch.setattr(engine, "_make", lambda w, proposals: (taken.append(len(proposals)), make(w, proposals)))
        fixed = fix_text(FileText("m.py", text), Settings(select=("FUS301",)))
    return fixed, sum(1 for n in taken if n)


def one_at_a_time(text: str, monkeypatch: pytest.MonkeyPatch) -> engine.FixedFile:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "choose", lambda proposals, settings: choose(proposals, settings)[:1])
        patch.setattr(engine, "MOST_ROUNDS", 30)
        return fix_text(FileText("m.py", text), Settings(select=("FUS301",)))


def statements(text: str) -> list[str]:
    return sorted(ast.unparse(s) for s in ast.parse(text).body)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("class_names", [["Block"], ["Block", "Other"]])
def test_helpers_above_one_class_are_made_in_one_round(
    class_names: list[str], newline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = chains(class_names).replace("\n", newline)
    fixed, rounds = rounds_taken(text, monkeypatch)
    assert len(fixed.applied) == len(FUNCTIONS) and rounds <= 3 and not fixed.remaining.errors
    single = one_at_a_time(text, monkeypatch)
    assert len(single.applied) == len(FUNCTIONS) and statements(fixed.after) == statements(single.after)
    assert sorted(fixed.after.split(newline)) == sorted(single.after.split(newline)), "blank lines too"
    assert newline * 4 not in fixed.after
    assert fix_text(FileText("m.py", fixed.after), Settings(select=("FUS301",))).after == fixed.after


@pytest.mark.slow
def test_helpers_made_in_one_round_are_the_same_in_every_run() -> None:
    code = (
        "from fuselint.engine import fix_text; from fuselint.config import Settings\n"
        "from fuselint.source.text import FileText; import sys\n"
        "print(fix_text(FileText('m.py', sys.stdin.read()), Settings(select=('FUS301',))).after)"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=chains(),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1 and "@partial" in outs.pop()


def test_one_helper_serves_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    body = "mx.sin(a * mx.exp(y) + a) * y"
    text = chains(body=body)
    fixed, rounds = rounds_taken(text, monkeypatch)
    assert fixed.after.count("mx.compile") == 1 and body not in fixed.after.split("class Block")[1]
    assert len(fixed.applied) == len(FUNCTIONS) and rounds <= 3


def test_helpers_that_want_one_name_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """\
import mlx.core as mx
import mlx.nn as nn


class Block(nn.Module):
    def __call__(self, x, y):
        a = mx.softmax(x, axis=-1)
        b = mx.sin(a * mx.exp(y) + a) * y
        c = mx.cos(a * mx.exp(y) + a) * y
        return b @ c
"""
    fixed, rounds = rounds_taken(text, monkeypatch)
    assert len(fixed.applied) == 2 and rounds == 2 and fixed.after.count("mx.compile") == 2
    assert statements(fixed.after) == statements(one_at_a_time(text, monkeypatch).after)


def test_what_only_fails_beside_others_waits_for_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = engine._guarded

    def strict(text: str, proposals: Sequence[Proposal]) -> str | NoFix:
        return NoFix("no company") if len(proposals) > 1 else guarded(text, proposals)

    monkeypatch.setattr(engine, "_guarded", strict)
    monkeypatch.setattr(engine, "MOST_ROUNDS", 30)
    fixed, rounds = rounds_taken(chains(), monkeypatch)
    assert len(fixed.applied) == rounds == len(FUNCTIONS) and not fixed.withheld and not fixed.remaining.errors


def test_an_internal_error_names_the_rule_and_spares_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselint import analysis
    from fuselint.rulebook import rules

    def broken(graph: object) -> object:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(
        analysis, "rules", lambda: [replace(r, find=broken) if r.code == "FUS211" else r for r in rules()]
    )
    result = check_file(FileText("m.py", NORM), Settings())
    assert [f.code for f in result.findings] == ["FUS201"]
    assert result.errors[0].startswith("m.py: internal error in FUS211 on Norm.__call__: ZeroDivisionError: oh; please")


def test_a_diff_of_text_without_a_final_newline() -> None:
    assert unified("./a.py", "x\ny", "x\nz") == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n x\n"
        "-y\n\\ No newline at end of file\n+z\n\\ No newline at end of file\n"
    )
    assert unified("a.py", "x\r\n", "y\r\n").endswith("-x\r\n+y\r\n")
    assert unified("a.py", "x\n", "x\n") == ""


ODD = [
    "line\nend.py",
    'quote".py',
    "tab\t.py",
    "back\\slash.py",
    "\x1b[31m.py",
    "spaces in it.py",
    "ü.py",
    os.fsdecode(b"\xff.py"),
]


@pytest.mark.parametrize("name", ODD)
def test_git_takes_the_diff_of_a_file_of_any_name(name: str, tmp_path: Path) -> None:
    """A line end in a name would begin another line of the diff: that of another file, perhaps."""
    (tmp_path / name).write_text("x\n")
    diff = os.fsencode(unified(name, "x\n", "y\n"))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply"], cwd=tmp_path, input=diff, check=True)
    assert (tmp_path / name).read_text() == "y\n"


@pytest.mark.parametrize(("cache", "folder"), [(True, ".fuselint_cache"), (False, None)])
def test_outcomes_of_verification_are_kept(cache: bool, folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def verify(regions: Sequence[object], cache: object) -> list[Verification]:
        asked.append(cache)
        return [Verification("passed", "") for _ in regions]

    monkeypatch.setattr("fuselint.verify.verify", verify)
    fix_text(FileText("m.py", NORM), Settings(cache=cache), verify=True)
    assert set(asked) == {folder}


def test_a_fix_waits_for_the_file_that_its_facts_come_from() -> None:
    """Where that file changes unsafely in the same round; first come, first served, so that a circle goes on."""

    def work(name: str) -> engine._Work:
        file = FileText(name, "")
        return engine._Work(file, file, engine.FileResult(name), Settings())

    def fix(rests_on: str = "", how: Applicability = "safe") -> Proposal:
        made = Proposal(Finding("FUS105", "n", "m", "p", 1, 1, 1, 2, fix=Fix(how, "")))
        return replace(made, rests_on=frozenset({os.path.abspath(rests_on)} if rests_on else ()))

    a, b = work("a.py"), work("b.py")
    free, waits, unsafe = fix(), fix("a.py"), fix(how="unsafe")
    assert engine._apart([a, b], [[unsafe], [free, waits]]) == [[unsafe], [free]]
    assert engine._apart([b, a], [[free, waits], [unsafe]]) == [[free, waits], []]
    assert engine._apart([a, b], [[free], [waits]]) == [[free], [waits]]
    both = fix("b.py", "unsafe"), fix("a.py", "unsafe")
    assert engine._apart([a, b], [[both[0]], [both[1]]]) == [[both[0]], []]


def test_a_fix_of_one_file_may_make_one_of_another_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose analysis read another one is looked at again once that has changed, and no other file is."""
    for name in ("first", "second", "third"):
        (tmp_path / f"{name}.py").write_text(NORM)
    seen: list[str] = []

    def waiting(file: FileText, *rest: object) -> tuple[object, list[Proposal]]:
        """Nothing is found in the first file before the second is fixed."""
        seen.append(Path(file.path).stem)
        result, proposals = analyse(file, *rest)  # type: ignore[arg-type]
        if seen[-1] != "first":
            return result, proposals
        other = os.path.abspath(tmp_path / "second.py")
        changed: dict[str, str] = rest[-1]._overlay  # type: ignore[attr-defined]
        done = "rms_norm" in changed.get(other, Path(other).read_text())
        result = replace(result, reads=((other, "hash"),), findings=result.findings if done else ())
        return result, proposals if done else []

    monkeypatch.setattr(engine, "analyse", waiting)
    paths = [str(tmp_path / f"{name}.py") for name in ("first", "second", "third")]
    fixed = fix_paths(paths, Settings(), write=True, jobs=1)
    assert [[f.code for f in file.applied] for file in fixed] == [["FUS201"]] * 3
    assert seen == ["first", "second", "third", "second", "third", "first", "first"]
    assert not [f.applied for f in fix_paths(paths, Settings(), write=True, jobs=1) if f.applied]


def test_an_attribute_that_is_made_of_itself_is_no_fault() -> None:
    text = """\
import mlx.core as mx
import mlx.nn as nn


class Fusion(nn.Module):
    def __init__(self, dims, layers):
        super().__init__()
        self.mlp = [nn.Linear(dims, dims)]
        for _ in range(layers):
            self.mlp += [nn.Linear(dims, dims), nn.GELU()]

    def __call__(self, x: mx.array):
        for layer in self.mlp:
            x = layer(x)
        return x * mx.sigmoid(x) + 1
"""
    assert check_file(FileText("m.py", text), Settings()).errors == ()


def test_what_an_analysis_leaves_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs and facts know each other: without a full collection those of every file stay."""

    class Ring:
        def __init__(self) -> None:
            self.own = self

    monkeypatch.setattr(engine, "ENOUGH", 500)
    garbage = engine._Garbage()
    for rings, collected in ((5000, True), (100, False)):
        with garbage.seldom():
            held = [Ring() for _ in range(rings)]
            left = weakref.ref(held[0])
            held.clear()
        assert (left() is None) is collected


def test_what_an_analysis_learns_goes_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts and canonical values know their graph, and it them: they are taken apart, and need no collector."""
    made: list[weakref.ref[object]] = []

    def noting(kind: type, make: Callable[..., None]) -> Callable[..., None]:
        def init(self: object, *args: object, **options: object) -> None:
            made.append(weakref.ref(self))
            make(self, *args, **options)

        return init

    for kind in (KnownFacts, Canonical, Elsewhere):
        monkeypatch.setattr(kind, "__init__", noting(kind, kind.__init__))
    gc.collect()
    gc.disable()
    try:
        assert check_file(FileText("m.py", CHAIN), Settings()).findings
        assert len(made) > 2
        assert [r() for r in made if r() is not None] == []
    finally:
        gc.enable()


def test_outside_an_analysis_nothing_is_taken_apart() -> None:
    file = FileText("m.py", CHAIN)
    graph = Program(file, summarise(file, parse(file))).graph("f")
    assert graph is not None
    facts = graph.facts
    check_file(file, Settings())
    assert facts.kind(facts.graph.params["x"]) == "array"


def test_a_graph_that_is_kept_is_asked_again() -> None:
    """Other files share the graphs of a file: what one analysis learns of them goes, and the next learns it anew."""
    file = FileText("m.py", CHAIN)
    program = Program(file, summarise(file, parse(file)))
    graph = program.graph("f")
    assert graph is not None
    kinds = []
    for _ in range(2):
        with taken_apart():
            kinds.append(graph.facts.kind(graph.params["x"]))
            assert graph.canonical.of(graph.nodes[-1]).op and program.elsewhere.root is program
    assert kinds == ["array", "array"]


CHAIN = """import mlx.core as mx


def f(x: mx.array, y: mx.array) -> mx.array:
    return mx.sigmoid(x) * mx.tanh(y) * y + x
"""


FEW_NUMBERS = """import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.gate = nn.Linear(heads * head_dim, {width})

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        gate = self.gate(x).reshape(B, L, {shape})
        return mx.softmax({work}, axis=-1)
"""


@pytest.mark.parametrize(
    ("width", "shape", "work", "shown"),
    [
        ("heads", "self.heads", "mx.tanh(gate) * 2", 0),  # a number for each head and token, and one launch
        ("heads", "self.heads", "mx.tanh(gate) * 2 + mx.exp(gate)", 1),  # three launches
        ("heads * head_dim", "self.heads, self.head_dim", "mx.tanh(gate) * 2", 1),
    ],
)
def test_one_launch_for_a_few_numbers_is_not_shown(width: str, shape: str, work: str, shown: int) -> None:
    text = FEW_NUMBERS.format(width=width, shape=shape, work=work)
    asked = {"select": ("FUS301",), "min_kernels": 2}
    result = check_file(FileText("m.py", text), Settings(**asked))  # type: ignore[arg-type]
    assert (len(result.findings), result.idle) == (shown, 1 - shown)
    for more in ({"hot": ("*",)}, {"phase": "decode"}):  # of one token all is little
        assert len(check_file(FileText("m.py", text), Settings(**asked, **more)).findings) == 1  # type: ignore[arg-type]


GATES = """from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn


@dataclass
class Config:
    width: int
    heads: list[int]
    gate: bool | str = {default}

    def __post_init__(self):
        if self.gate is True:
            self.gate = "each"


class Attention(nn.Module):
    def __init__(self, config: Config, i: int):
        super().__init__()
        self.heads = config.heads[i]
        size = self.heads if config.gate == "each" else config.width
        self.gate = nn.Linear(config.width, size)

    def __call__(self, x: mx.array):
        B, L, _ = x.shape
        return mx.softmax(mx.tanh(self.gate(x)) * 2, axis=-1)
"""


@pytest.mark.parametrize(("default", "shown"), [("True", 0), ("'each'", 0), ("'whole'", 1)])
def test_a_size_is_what_it_is_by_the_default_of_a_switch(default: str, shown: int) -> None:
    """A number for each head, though nothing says how many heads."""
    settings = Settings(select=("FUS301",), min_kernels=2)
    result = check_file(FileText("m.py", GATES.format(default=default)), settings)
    assert (len(result.findings), result.idle) == (shown, 1 - shown)


VECTOR = """import mlx.core as mx


def decayed(x: mx.array, decay: mx.array):
    ({size},) = decay.shape
    return mx.softmax(x, axis=-1) @ {work}
"""


@pytest.mark.parametrize(
    ("size", "work", "shown"),
    [
        ("heads", "(-mx.exp(decay))", 0),
        ("hidden_size", "(-mx.exp(decay))", 1),  # one token, of maybe many that follow
        ("heads", "mx.tanh(-mx.exp(decay) * 2)", 1),  # three launches
        ("heads", "(-mx.exp(x))", 1),
    ],
)
def test_one_launch_for_a_number_a_head_is_not_shown(size: str, work: str, shown: int) -> None:
    result = check_file(
        FileText("m.py", VECTOR.format(size=size, work=work)), Settings(select=("FUS301",), min_kernels=2)
    )
    assert (len(result.findings), result.idle) == (shown, 1 - shown)


HANDED_ON = """import mlx.core as mx
import mlx.nn as nn


class Mixer(nn.Module):
    def __init__(self, {name}: int):
        super().__init__()
        self.{name} = {name}
        self.decay = mx.zeros(({name}, 1))

    def __call__(self, x: mx.array):
        return update(x, self.decay)


def update(x: mx.array, decay: mx.array):
    for _ in range(x.shape[0]):
        if x.shape[0] > 1:
            return attend(x, decay)
    return x


def attend(x: mx.array, decay: mx.array):
    for _ in range(x.shape[0]):
        if x.shape[0] > 2:
            return x
    return mx.softmax(x, axis=-1) @ (-mx.exp(decay).astype(x.dtype))
"""


def test_a_size_is_called_what_the_callers_of_callers_call_it() -> None:
    settings = Settings(select=("FUS301",), min_kernels=2, hot=("*",))
    at = {}
    for name in ("num_heads", "width"):
        (finding,) = check_file(FileText("m.py", HANDED_ON.format(name=name)), settings).findings
        assert finding.function == "attend" and finding.traffic is not None
        at[name] = list(finding.traffic.at.values())
    assert at == {"num_heads": [32], "width": [2048]}


def test_sizes_that_may_be_anything_hide_nothing() -> None:
    """A convolution whose kernel counts as long as what it goes over leaves nothing, in the sizes that are assumed."""
    body = "    y = mx.tanh(mx.conv1d(x, w)) * 2\n    return mx.softmax(y)\n"
    text = f"import mlx.core as mx\n\n\ndef f(x: mx.array, w: mx.array):\n{body}"
    result = check_file(FileText("m.py", text), Settings(select=("FUS301",), min_kernels=2))
    (traffic,) = (f.traffic for f in result.findings)
    assert traffic is not None and traffic.saved_at is not None and traffic.saved_at < 1 << 20
