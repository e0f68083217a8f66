"""Is each fix of a mutant right? The mutant and the fixed text are run in float64, on the same hostile inputs.

This judges finder, fixer and placement at once: whatever is changed must not change a value.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
from mutation.forms import Form, forms
from mutation.mutate import mutate
from mutation.running import FAULTS, Case, Run, cases, load, run

from fuselint.analysis import Proposal, analyse
from fuselint.config import Settings
from fuselint.engine import choose
from fuselint.finding import Edit
from fuselint.source.edit import apply, joined, merge
from fuselint.source.text import FileText
from fuselint.verify import compare

Verdict = Literal["right", "wrong", "unmet", "skipped"]
"""unmet: wrong, by a fix that is unsafe and names a need which the mutant doesn't meet."""
TOLERANCE = 1e-7
ROUGHER = {"the constants are the activation's": 1e-3}
"""What a fix that names this need may differ by."""
NOT_MET = frozenset(
    {
        "the mask is boolean",
        "every query sees a key",
        "the activation is half precision",
        "callers only hand the cache back",
        "eps is a Python number, inside the root",
        "each pair has a frequency of its own",
        "positions count up by one, along the axis before the last",
        "positions count up by one, along the axis before the last but one",
    }
)
"""Needs that a change of operands can break: that the fix names them is all that can be asked of it."""
EVERYTHING = Settings(unsafe_fixes=True)


@dataclass(frozen=True, slots=True)
class Mutant:
    """seed names it: the same one makes the same mutant."""

    seed: int
    form: Form
    source: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one match of one mutant, or, with the code "together", of all fixes of a round.

    because: what differs, or why it was not judged.
    """

    mutant: Mutant
    code: str
    verdict: Verdict
    because: str = ""
    message: str = ""
    needs: tuple[str, ...] = ()
    fixed: str = ""


def mutant(seed: int) -> Mutant:
    r = random.Random(seed)
    form = forms()[seed % len(forms())]
    return Mutant(seed, form, mutate(form.source, r))


def judge(m: Mutant) -> Iterator[Judgement]:
    """One judgement a match; one without a code where there is none or nothing runs."""
    try:
        ast.parse(m.source)
        result, proposals = analyse(FileText("mutant.py", m.source), EVERYTHING, lambda name: False)
    except (SyntaxError, RecursionError) as e:
        yield Judgement(m, "", "skipped", f"does not parse: {type(e).__name__}")
        return
    if result.errors:
        yield Judgement(m, "", "wrong", result.errors[0])
    if not proposals:
        yield Judgement(m, "", "skipped", "no match")
        return
    before = list(_runs(m))
    alone = [_judged(m, p, before) for p in proposals]
    yield from alone
    together = choose(proposals, EVERYTHING)
    if before and len(together) > 1 and all(j.verdict != "unmet" for j in alone):
        fixed = _fixed(m, together)
        needs = tuple(n for p in together if p.finding.fix for n in p.finding.fix.needs)
        wrong = _difference(m, fixed, before, _tolerance(needs))
        yield Judgement(m, "together", "wrong" if wrong else "right", wrong, "all fixes of a round", needs, fixed)


def _fixed(m: Mutant, proposals: Sequence[Proposal]) -> str:
    edits: tuple[Edit, ...] = ()
    for p in proposals:
        assert p.finding.fix is not None
        edits = merge(edits, p.finding.fix.edits)
    return apply(m.source, joined(edits))


def _tolerance(needs: Sequence[str]) -> float:
    return max((ROUGHER.get(n, TOLERANCE) for n in needs), default=TOLERANCE)


def _judged(m: Mutant, p: Proposal, before: list[tuple[Case, Run]]) -> Judgement:
    f, fix = p.finding, p.finding.fix
    if fix is None or not fix.edits:
        why = "advice" if fix is None or fix.applicability != "none" else fix.message
        return Judgement(m, f.code, "skipped", f"no fix: {why}", f.message)
    if not before:
        return Judgement(m, f.code, "skipped", "the mutant does not run", f.message)
    fixed = _fixed(m, [p])
    wrong = _difference(m, fixed, before, _tolerance(fix.needs))
    verdict: Verdict = "right" if not wrong else "wrong" if NOT_MET.isdisjoint(fix.needs) else "unmet"
    return Judgement(m, f.code, verdict, wrong, f.message, fix.needs, fixed)


def _runs(m: Mutant) -> Iterator[tuple[Case, Run]]:
    try:
        space = load(m.source)
    except FAULTS:
        return
    for case in cases(m.seed):
        try:
            yield case, run(space, m.form.entry, m.form.init, m.form.takes, case)
        except FAULTS:
            continue


def _difference(m: Mutant, fixed: str, before: list[tuple[Case, Run]], tolerance: float) -> str:
    try:
        space = load(fixed)
    except FAULTS as e:
        return f"the fixed text raises {type(e).__name__}: {e}"
    for case, old in before:
        try:
            new = run(space, m.form.entry, m.form.init, m.form.takes, case)
        except FAULTS as e:
            return f"the fixed code raises {type(e).__name__}: {e} ({case})"
        wrong, gap = _unlike(old, new)
        if gap > tolerance and gap > 10 * _noise(m, case, old):
            return f"{wrong} ({case})"
    return ""


def _unlike(old: Run, new: Run) -> tuple[str, float]:
    """What differs most, and how far, relative to the largest value of a row."""
    a, b = [old.result, old.arguments], [new.result, new.arguments]
    if wrong := compare.structure(a, b, dtypes=False):
        return wrong, math.inf
    worst = "", 0.0
    for (path, x), (_, y) in zip(compare.leaves(a), compare.leaves(b), strict=True):
        if isinstance(x, mx.array) and x.size:
            wrong, gap = _unlike_arrays(x, y)
            worst = max(worst, (f"{path}: {wrong}", gap), key=lambda w: w[1])
    return worst


def _unlike_arrays(x: mx.array, y: mx.array) -> tuple[str, float]:
    """A row that had NaN or infinity may have them elsewhere."""
    with mx.stream(mx.cpu):
        if mx.issubdtype(x.dtype, mx.floating) != mx.issubdtype(y.dtype, mx.floating):
            return f"dtype {y.dtype}, not {x.dtype}", math.inf
        a, b = x.astype(mx.float64), y.astype(mx.float64)
        known = mx.isfinite(a)
        lost = known & ~mx.isfinite(b)
        if mx.any(lost & (mx.all(known, axis=-1, keepdims=True) if a.ndim else known)).item():
            return "not finite where it was", math.inf
        known = known & ~lost
        zero = mx.zeros_like(a)
        a, b = mx.where(known, a, zero), mx.where(known, b, zero)
        size = mx.max(mx.abs(a), axis=-1, keepdims=True) if a.ndim else mx.abs(a)
        gap: float = mx.max(mx.abs(a - b) / mx.maximum(size, mx.array(1e-30, dtype=mx.float64))).item()
        return f"differs by {gap:.1e} of its row's largest value", gap


def _noise(m: Mutant, case: Case, old: Run) -> float:
    """How far the mutant's own result goes where its arithmetic is off in the 13th digit."""
    space = load(m.source, noisy=True)
    return max(_unlike(old, run(space, m.form.entry, m.form.init, m.form.takes, case))[1] for _ in range(4))
