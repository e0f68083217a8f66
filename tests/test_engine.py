"""Files in order, claims, standing, rounds, writing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import fuselint.engine as engine
from fuselint.analysis import Proposal, analyse
from fuselint.config import Settings
from fuselint.engine import check_file, check_paths, choose, fix_paths, fix_text, unified
from fuselint.finding import Edit, Finding, Fix, Traffic, Verification
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


def test_a_helper_without_callers_is_reported() -> None:
    text = HELPER.replace("self._norm(x.astype(mx.float32)).astype(x.dtype)", "x")
    assert places(text) == [("FUS201", "Norm._norm")]


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


@pytest.mark.parametrize(("cache", "folder"), [(True, ".fuselint_cache"), (False, None)])
def test_outcomes_of_verification_are_kept(cache: bool, folder: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def verify(regions: Sequence[object], cache: object) -> list[Verification]:
        asked.append(cache)
        return [Verification("passed", "") for _ in regions]

    monkeypatch.setattr("fuselint.verify.verify", verify)
    fix_text(FileText("m.py", NORM), Settings(cache=cache), verify=True)
    assert set(asked) == {folder}
