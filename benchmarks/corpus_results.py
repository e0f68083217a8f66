"""What corpus.py finds of each package, kept in files, and the tables that are made of it."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuselint.finding import Finding, Verification


@dataclass
class Checked:
    """What `check` found. seconds: of all processors together."""

    files: int
    findings: list[Finding]
    errors: list[str]
    seconds: float


@dataclass
class Fixed:
    """What `fix --apply` did to a copy, by the path of each file that it changed.

    made: fixes in the order of the rounds. run_again: whether a second run was made. seconds: of all processors.
    """

    applied: dict[str, list[Finding]]
    remain: int
    seconds: float
    violations: list[str] = field(default_factory=list)
    made: int = 0
    outcomes: list[tuple[Finding, Verification]] = field(default_factory=list)
    formatted: tuple[int, int] = (0, 0)
    imported: int = 0
    run_again: bool = False

    @property
    def fixes(self) -> int:
        return sum(map(len, self.applied.values()))


@dataclass
class Package:
    name: str
    check: Checked | None = None
    safe: Fixed | None = None
    all: Fixed | None = None

    @property
    def findings(self) -> list[Finding]:
        return self.check.findings if self.check else []


PARTS = ("check", "safe", "all")


def keep(cache: Path, name: str, part: str, found: Checked | Fixed) -> None:
    file = _file(cache, name, part)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(found))


def kept(cache: Path, name: str) -> Package:
    """What was found of a package; None for the parts that did not run."""
    files = {part: _file(cache, name, part) for part in PARTS}
    return Package(name, **{part: pickle.loads(f.read_bytes()) for part, f in files.items() if f.exists()})


def _file(cache: Path, name: str, part: str) -> Path:
    return cache / "results" / f"{name}.{part}.pickle"


# -- the report --------------------------------------------------------------------------------------------------------


def report(packages: Sequence[Package]) -> str:
    parts = ["## Findings", _by_code(packages), "## Fixes", _fixes(packages), "## Why there is no fix", _why(packages)]
    parts += ["## What unsafe fixes need", _needs(packages), "## Verification", _verification(packages)]
    violated = [f"- {p.name}: {v}" for p in packages for run in (p.safe, p.all) if run for v in run.violations]
    violated += [f"- {p.name}: no second run" for p in packages for run in (p.safe, p.all) if run and not run.run_again]
    return "\n\n".join([*parts, "## Violations", "\n".join(dict.fromkeys(violated)) or "None."])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _by_code(packages: Sequence[Package]) -> str:
    codes = sorted({f.code for p in packages for f in p.findings})
    counted = [(p, p.check, Counter(f.code for f in p.findings)) for p in packages if p.check]
    rows = [
        (p.name, c.files, n.total(), *(n[code] or "" for code in codes), f"{c.seconds:.0f} s") for p, c, n in counted
    ]
    total = sum((n for *_, n in counted), Counter[str]())
    files, seconds = sum(c.files for _, c, _ in counted), sum(c.seconds for _, c, _ in counted)
    rows.append(("all", files, total.total(), *(total[c] for c in codes), f"{seconds:.0f} s"))
    return _table(("package", "files", "findings", *codes, "CPU time"), rows)


def _fixes(packages: Sequence[Package]) -> str:
    head = (
        "package", "safe", "unsafe", "withheld", "files: safe", "files: all", "fixed: safe", "fixed: all", "remain",
        "formatted: before", "after", "imported", "CPU time",
    )  # fmt: skip
    nothing = Fixed({}, 0, 0)
    rows = []
    for p in packages:
        trusted = Counter(f.fix.applicability if f.fix else "none" for f in p.findings)
        safe, every = p.safe or nothing, p.all or nothing
        rows.append([
            p.name, trusted["safe"], trusted["unsafe"], trusted["none"], len(safe.applied), len(every.applied),
            safe.fixes, every.fixes, every.remain, *every.formatted, every.imported, round(every.seconds),
        ])  # fmt: skip
    sums = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    return _table(head, [[*row[:-1], f"{row[-1]} s"] for row in [*rows, ["all", *sums]]])


def _why(packages: Sequence[Package]) -> str:
    """The reasons of findings without a fix that rules make one for, most frequent first."""
    fixable = {f.code for p in packages for f in p.findings if f.fix and f.fix.edits}
    why = Counter(
        (f.code, without_names(f.fix.message))
        for p in packages for f in p.findings
        if f.code in fixable and f.fix and f.fix.applicability == "none"
    )  # fmt: skip
    return _table(("rule", "findings", "reason"), [(code, n, text) for (code, text), n in why.most_common(15)])


def _needs(packages: Sequence[Package]) -> str:
    """What unsafe fixes need to be right, most frequent first; of how many it is all that they need."""
    unsafe = [f for p in packages for f in p.findings if f.fix and f.fix.applicability == "unsafe"]
    needs, alone = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for f in unsafe:
        assert f.fix
        said = {without_names(need) for need in f.fix.needs} or {"nothing: it gives another dtype or value"}
        needs.update((f.code, need) for need in said)
        alone.update((f.code, need) for need in said if len(said) == 1)
    rows = [(code, n, alone[code, text], text) for (code, text), n in needs.most_common(20)]
    return _table(("rule", "fixes", "alone", "need"), rows)


def without_names(text: str) -> str:
    return re.sub(r"`[^`]*`", "`...`", text)


def _verification(packages: Sequence[Package]) -> str:
    names = ("passed", "failed", "not verifiable")
    rows, failed, why = [], [], Counter[tuple[str, str]]()
    for p in packages:
        if not p.all:
            continue
        counted = Counter[str](v.outcome for _, v in p.all.outcomes)
        rows.append((p.name, p.all.made, len(p.all.outcomes), *(counted[n] for n in names)))
        failed += [
            f"- {p.name} {f.path}:{f.line} {f.code}: {v.reason}" for f, v in p.all.outcomes if v.outcome == names[1]
        ]
        why.update((f.code, without_names(v.reason)) for f, v in p.all.outcomes if v.outcome == names[2])
    sums = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    table = _table(("package", "fixes", "run", *names), [*rows, ("all", *sums)])
    reasons = _table(("rule", "fixes", "not verifiable"), [(code, n, text) for (code, text), n in why.most_common(20)])
    return "\n\n".join([table, "\n".join(failed) or "None failed.", reasons])
