"""The closing lines of commands, and the counts by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fuselint.report import duration, escape, plural, saving, size

if TYPE_CHECKING:
    from fuselint.config import Settings
    from fuselint.engine import FixedFile
    from fuselint.finding import FileResult, Finding, Verification
    from fuselint.tuning import Tried

MOST_REASONS = 3
"""Of functions that were not understood, on the closing line."""


def closing(results: Sequence[FileResult], known: int = 0) -> str:
    """Files, functions with MLX work, those not understood and why, findings, and how many are too small to show.

    known: findings that the baseline has.
    """
    findings = [f for r in results for f in r.findings]
    levels = Counter[str](f.fix.applicability for f in findings if f.fix)
    kinds = [f"{levels[level]} {name}" for level, name in LEVELS if levels[level]]
    reasons = Counter(reason for r in results for _, reason in r.not_understood)
    top = [f"{reason} {number}" for reason, number in reasons.most_common(MOST_REASONS)]
    idle = sum(r.idle for r in results)
    return "; ".join(
        [
            plural(len(results), "file"),
            f"{plural(sum(r.functions for r in results), 'function')} with MLX work",
            f"{reasons.total()} not understood{_in_brackets(top)}",
            f"{plural(len(findings), 'finding')}{_in_brackets(kinds)}",
            f"{sum(r.below_min_saving for r in results)} below --min-saving",
            *([f"{idle} where it runs seldom or never (--hot '*' shows them)"] if idle else []),
            *([f"{known} in the baseline"] if known else []),
        ]
    )


MOST_CALLS = 4
"""Of calls that aren't counted, in the line of a model."""


LITTLE = 0.01
"""What makes no difference to a sum of bytes."""


def by_saving(finding: Finding) -> tuple[int, float]:
    """What saves most in a pass of the model first: bytes, then time."""
    m = finding.traffic.model if finding.traffic else None
    return (-m.bytes, -m.seconds.estimate) if m else (0, 0.0)


def by_calls(finding: Finding) -> float:
    """What saves most in a recorded run first: bytes of all calls."""
    t = finding.traffic
    return -(t.saved_at or 0) * (t.calls or 0) if t else 0


def models(results: Iterable[FileResult], settings: Settings) -> Iterator[str]:
    """What a pass of each file's model moves, and what that doesn't count; and whose times they are."""
    from fuselint.chips import chosen

    chip, origin = chosen(settings.chip)
    for r in results:
        m = r.model
        if m is None or settings.model_config is None:
            continue
        tokens = "a token" if m.tokens == 1 else f"a pass of {m.tokens} tokens"
        left = f"; not counted: {', '.join(m.unknown[:MOST_CALLS])}" if m.unknown else ""
        guessed = f", {size(m.typical)} of them {saving.TYPICAL}," if m.typical > LITTLE * m.moved else ""
        more = f" and {len(m.unknown) - MOST_CALLS} more" if len(m.unknown) > MOST_CALLS else ""
        time = f"{duration(m.seconds.low)} to {duration(m.seconds.high)}"
        yield (
            f"{r.path}: {settings.model_config.name} moves {size(m.moved)} {tokens}{guessed} in "
            f"{plural(m.functions, 'class')}, {plural(m.launches, 'launch')}; memory alone: {time}{left}{more}"
        )
    numbers = (f.traffic for r in results for f in r.findings if f.traffic is not None)
    if any(not t.typical for t in numbers) or any(r.model is not None for r in results):
        yield f"times are estimates for {chip.name} ({origin})"


LEVELS = (("safe", "safe"), ("unsafe", "unsafe"), ("none", "advice"))


def fix_closing(fixed: Sequence[FixedFile], written: bool, known: int = 0) -> str:
    """What was fixed and how sure that is, and what remains. known: of that, what the baseline has."""
    outcomes = Counter[str](v.outcome for f in fixed for x in f.applied if (v := verification(x)))
    checked = [f"{outcomes[o]} {name}" for o, name in (("passed", "verified"), ("not verifiable",) * 2) if outcomes[o]]
    count = sum(len(f.applied) for f in fixed)
    changed = sum(f.after != f.before for f in fixed)
    remaining = [x for f in fixed for x in f.remaining.findings]
    unsafe = sum(bool(x.fix and x.fix.applicability == "unsafe" and x.fix.edits) for x in remaining)
    where = f"{'written to' if written else 'for'} {plural(changed, 'file')}"
    return "; ".join(
        [
            f"{plural(count, 'fix')} {where}{_in_brackets(checked)}",
            f"{plural(len(remaining), 'finding')} {'remains' if len(remaining) == 1 else 'remain'}"
            + _in_brackets(
                [f"{unsafe} with --unsafe-fixes"] * bool(unsafe) + [f"{known} in the baseline"] * bool(known)
            ),
        ]
    )


def unverified(fixed: Iterable[FixedFile]) -> Iterator[str]:
    """One line for each fix that was made without a proof, or not made for want of one."""
    for file in fixed:
        for f in (*file.applied, *file.withheld):
            v = verification(f)
            place = f"{f.place}:{f.line}:{f.column} {f.code}"
            if v and v.outcome == "failed":
                yield f"{place} withheld: {v.reason}; please report this"
            elif v and v.outcome == "not verifiable":
                yield f"{place} fixed, not verified: {v.reason}"


def untimed(fixed: Sequence[FixedFile], tried: Sequence[Tried]) -> Iterator[str]:
    """One line for each fix that could not be timed, and one where there was none to time."""
    yield from unverified(fixed)
    if not tried:
        told = {f.id for file in fixed for f in file.withheld}
        found = (f for file in fixed for f in file.remaining.findings if f.id not in told)
        waiting = [f for f in found if f.fix and f.fix.applicability == "unsafe"]
        more = f"; {plural(len(waiting), 'fix')} more with --unsafe-fixes" if waiting else ""
        yield f"fuselint: nothing was timed{more}"


def proving(findings: Iterable[Finding]) -> Iterator[str]:
    """One line that says what running fixes took, unless all outcomes were kept from an earlier run."""
    took = [v.took for f in findings if (v := verification(f))]
    judged = sum(t.seconds > 0 for t in took)
    if judged:
        compiling = sum(t.compiling for t in took)
        yield (
            f"verification of {plural(judged, 'fix')} took {duration(sum(t.seconds for t in took))}, "
            f"{duration(compiling)} of them in the C++ compiler that mx.compile calls"
        )


def timed(tried: Iterable[Tried]) -> Iterator[str]:
    """The lines of each fix that was timed."""
    from fuselint.report.tuning import lines

    return (line for t in tried for line in lines(t))


def verification(finding: Finding) -> Verification | None:
    return finding.fix.verification if finding.fix else None


@dataclass(frozen=True, slots=True)
class Count:
    """The findings of one rule: how many, how many with a fix, and what they would save together.

    bytes: for ranking also those of findings of which nothing says some size: `unsized` many, with `bytes_unsized`.
    """

    code: str
    name: str
    count: int
    fixable: int
    bytes: int
    launches: int
    unsized: int
    bytes_unsized: int


def counts(findings: Iterable[Finding]) -> list[Count]:
    """By rule, the most frequent first."""
    rows: dict[tuple[str, str], list[Finding]] = {}
    for f in findings:
        rows.setdefault((f.code, f.name), []).append(f)
    out = []
    for (code, name), found in rows.items():
        fixable = sum(bool(f.fix and f.fix.edits) for f in found)
        counted = [f.traffic for f in found if f.traffic]
        unsized = [t for t in counted if t.saved_at is not None and t.typical]
        saved, at_typical = (sum(t.saved_at or 0 for t in many) for many in (counted, unsized))
        launches = sum(t.launches_fewer for t in counted)
        out.append(Count(code, name, len(found), fixable, saved, launches, len(unsized), at_typical))
    return sorted(out, key=lambda c: (-c.count, c.code))


def statistics(findings: Iterable[Finding], form: str = "full") -> str:
    """The counts as columns, or where the findings would be JSON, as JSON."""
    rows = counts(findings)
    if form == "json":
        return escape.dumps([asdict(c) for c in rows], indent=1) + "\n"
    if form == "jsonl":
        return "".join(escape.dumps(asdict(c)) + "\n" for c in rows)
    width = max((len(c.name) for c in rows), default=0)
    return "".join(
        f"{c.count:>6}  {c.code}  {c.name:<{width}} {c.fixable:>5} fixable"
        f" {c.launches:>5} launches {size(c.bytes - c.bytes_unsized):>9}{_more(c)}\n"
        for c in rows
    )


def _more(count: Count) -> str:
    return f" + {count.unsized} of unknown size" if count.unsized else ""


def _in_brackets(parts: Sequence[str]) -> str:
    return f" ({', '.join(parts)})" if parts else ""
