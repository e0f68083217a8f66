"""Every rule, on its own examples: source in, finding and fixed text out; and the fix is run on MLX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fuselint.analysis import Proposal, analyse
from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.rulebook import Example, Rule, rules
from fuselint.source.text import FileText

RULES = rules()


def cases(kind: str) -> Iterator[Any]:
    for rule in RULES:
        for number, example in enumerate(getattr(rule, kind)):
            yield pytest.param(rule, example, id=f"{rule.code}-{number}")


def proposals(rule: Rule, example: Example) -> list[Proposal]:
    file = FileText("example.py", example.source.lstrip("\n"))
    result, found = analyse(file, Settings(select=(rule.code,)), lambda name: False)
    assert not result.errors, result.errors[0]
    return found


@pytest.mark.parametrize(("rule", "example"), list(cases("examples")))
def test_an_example_is_reported_and_fixed_as_it_says(rule: Rule, example: Example) -> None:
    findings = [p.finding for p in proposals(rule, example)]
    assert findings, "not reported"
    assert {f.code for f in findings} == {rule.code}
    assert [f.fix.applicability for f in findings if f.fix] == [example.applicability] * len(findings)
    everything = Settings(select=(rule.code,), unsafe_fixes=True)
    fixed = fix_text(FileText("example.py", example.source.lstrip("\n")), everything)
    assert not fixed.remaining.errors
    assert fixed.after == (example.fixed if example.fixed is not None else example.source).lstrip("\n")
    if example.fixed is not None:
        again = fix_text(FileText("example.py", fixed.after), everything)
        assert again.after == fixed.after, "fixing again changes it again"


@pytest.mark.parametrize(("rule", "example"), list(cases("counterexamples")))
def test_a_counterexample_is_not_reported(rule: Rule, example: Example) -> None:
    assert [p.finding.message for p in proposals(rule, example)] == []


@pytest.mark.slow
@pytest.mark.parametrize("rule", [pytest.param(r, id=r.code) for r in RULES if any(e.fixed for e in r.examples)])
def test_fixes_of_examples_hold_on_mlx(rule: Rule) -> None:
    pytest.importorskip("mlx.core")
    from fuselint.verify import verify

    found = [p for e in rule.examples for p in proposals(rule, e) if p.finding.fix and p.finding.fix.edits]
    assert all(p.region for p in found), "a fix without a region can't be verified"
    outcomes = verify([p.region for p in found if p.region])
    assert [o.reason for o in outcomes if o.outcome == "failed"] == []
    assert any(o.outcome == "passed" for o in outcomes), [o.reason for o in outcomes]


@pytest.mark.parametrize("rule", [pytest.param(r, id=r.code) for r in RULES])
def test_a_rule_explains_itself(rule: Rule) -> None:
    assert rule.page.startswith(f"{rule.code} {rule.name}: ")
    assert rule.examples and rule.counterexamples
    assert callable(rule.check.unfused) and callable(rule.check.fused)


def test_there_are_rules() -> None:
    assert len(RULES) == len({r.name for r in RULES}) > 0
