"""Every fixer, on the examples of its rule: the fix passes, and each way to break it is caught, or changes nothing."""

from collections import Counter
from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

from verify.faults import TWELVE, OneLost, changes_nothing, example_fixes, form_fixes, planted  # noqa: E402

from fuselint.rulebook import rules  # noqa: E402
from fuselint.verify import verify  # noqa: E402

FIXES = dict(example_fixes())
FIXES |= {name: whole for name, whole in form_fixes() if any(planted(whole, (OneLost,)))}  # no example has it
BROKEN = {(name, fault.says): made for name, whole in FIXES.items() for fault, made in planted(whole)}


@pytest.fixture(scope="module")
def outcomes():
    everything = FIXES | BROKEN
    return dict(zip(everything, verify(list(everything.values()), device="cpu"), strict=True))


def raises(outcome, region):
    """Whether there is nothing to compare with: FUS402 mends code that raises in half precision."""
    return region.code == "FUS402" and outcome.reason.startswith("the code before raises")


def test_every_fixer_that_edits_is_here():
    """But for those whose examples are all advice."""
    assert {r.code for r in rules() if r.fix} - {r.code for r in FIXES.values()} == NO_REGION


NO_REGION = {
    "FUS103", "FUS108", "FUS109", "FUS242", "FUS303", "FUS304", "FUS305", "FUS401", "FUS403", "FUS404", "FUS405",
    "FUS406", "FUS407",
}  # fmt: skip


@pytest.mark.parametrize("fault", TWELVE, ids=lambda f: f.__name__)
def test_each_of_the_twelve_breaks_a_fix(fault):
    assert any(says == fault.says for _, says in BROKEN)


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_passes(outcomes, name):
    if raises(outcomes[name], FIXES[name]):
        return
    assert outcomes[name].outcome == "passed", (outcomes[name], FIXES[name])


@pytest.mark.parametrize("name", BROKEN, ids=": ".join)
def test_a_broken_fix_fails(outcomes, name):
    whole, _ = name
    if raises(outcomes[whole], FIXES[whole]) or outcomes[name].outcome == "failed":
        return
    assert changes_nothing(BROKEN[name]), (outcomes[name], BROKEN[name])


def test_few_faults_change_nothing(outcomes):
    """Else the test above would pass for want of faults."""
    survived = Counter(says for name, says in BROKEN if outcomes[name, says].outcome != "failed")
    assert sum(survived.values()) < len(BROKEN) / 20, survived


def test_a_fault_is_not_taken_for_nothing():
    """The proof that a fault changes nothing refuses those that change something."""
    name = "FUS261 example 0, line 8"
    made = {says: made for (n, says), made in BROKEN.items() if n == name}
    assert len(made) > 3 and not any(changes_nothing(m) for m in made.values())
    assert changes_nothing(replace(FIXES[name], after=f"{FIXES[name].after}result = result.astype(x.dtype)\n"))
