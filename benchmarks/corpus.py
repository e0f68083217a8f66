"""Check and fix whole packages, and look at what the fixes did to them.

    python benchmarks/corpus.py CACHE [--only mlx-lm mflux==0.24.0] [--python VENV/bin/python] [--verify [SHARE]]
    python benchmarks/corpus.py CACHE --report

The packages are the pinned ones of packages.py: CACHE keeps what was downloaded. Each is checked, a copy gets the
safe fixes, another all. Of every changed file the invariants of invariants.py are looked at, and a second run of all
may change nothing. `--python` names an interpreter with MLX, and whatever else the packages import: a module that it
imports before has to import after. `--verify` runs the fixes before and after, or a share of them, always the same;
what fails stays in the copies. The copies stay under CACHE/fixed, what was found under CACHE/results, of which
`--report` makes the tables again. Exit code 1 where anything is violated.
"""

from __future__ import annotations

import argparse
import pickle
import random
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from invariants import importable, linted, modules, of_file, still_formatted
from packages import chosen, unpacked

from fuselint.api import check_paths
from fuselint.config import layer
from fuselint.engine import FixedFile, fix_paths
from fuselint.finding import Finding, Region, Verification
from fuselint.layers import Layers
from fuselint.source.discovery import python_files
from fuselint.verify import verify


@dataclass
class Fixed:
    """What one run of `fix --apply` did to a copy of a package."""

    folder: Path
    files: list[FixedFile]
    seconds: float
    violations: list[str] = field(default_factory=list)
    formatted: tuple[int, int] = (0, 0)
    imported: int = 0
    made: list[tuple[Finding, Region | None]] = field(default_factory=list)

    @property
    def changed(self) -> list[FixedFile]:
        return [f for f in self.files if f.before != f.after]

    @property
    def paths(self) -> list[str]:
        return [str(Path(f.path).relative_to(self.folder)) for f in self.changed]

    @property
    def applied(self) -> list[Finding]:
        return [a for f in self.files for a in f.applied]


@dataclass
class Package:
    name: str
    folder: Path
    findings: list[Finding]
    errors: list[str]
    files: int
    seconds: float
    safe: Fixed | None = None
    all: Fixed | None = None
    share: float = 0
    outcomes: list[tuple[Finding, Verification]] = field(default_factory=list)
    verifying: float = 0


def checked(name: str, folder: Path) -> Package:
    started = time.perf_counter()
    results = list(check_paths([folder], isolated=True, cache=False))
    seconds = time.perf_counter() - started
    findings = [f for r in results for f in r.findings]
    return Package(name, folder, findings, [e for r in results for e in r.errors], len(results), seconds)


def fixed(source: Path, folder: Path, *, unsafe: bool, again: bool) -> Fixed:
    """A copy of a package in `folder`, fixed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    started = time.perf_counter()
    made: list[tuple[Finding, Region | None]] = []
    files = _fix(folder, unsafe, made)
    out = Fixed(folder, files, time.perf_counter() - started, made=made)
    out.violations += [e for f in files for e in f.remaining.errors]
    for f, path in zip(out.changed, out.paths, strict=True):
        found = of_file((source / path).read_bytes(), (folder / path).read_bytes(), f.applied)
        out.violations += [f"{path}: {v}" for v in found]
    if again:
        more = [f for f in _fix(folder, unsafe, []) if f.applied or f.before != f.after]
        out.violations += [f"{f.path}: the second run changes it" for f in more]
    out.violations += [f"ruff: {v}" for v in linted(source, folder, out.paths)]
    out.formatted = still_formatted(source, folder, out.paths)
    return out


def _fix(folder: Path, unsafe: bool, made: list[tuple[Finding, Region | None]]) -> list[FixedFile]:
    def note(finding: Finding, region: Region | None) -> tuple[Finding, bool]:
        made.append((finding, region))
        return finding, True

    stated = layer({"unsafe-fixes": unsafe, "cache": False}, str, Path())
    layers = Layers(None, True, [stated])
    return fix_paths(python_files([str(folder)], layers), layers, write=True, jobs=1, judge=note)


def verify_some(package: Package, share: float) -> None:
    """Run a share of the package's fixes before and after."""
    assert package.all
    package.share = share
    dice = random.Random(package.name)
    drawn = [(f, r) for f, r in package.all.made if dice.random() < share]
    started = time.perf_counter()
    outcomes = iter(verify([r for _, r in drawn if r], jobs=1))
    nothing = Verification("not verifiable", "its region can't be run by itself")
    package.outcomes = [(f, next(outcomes) if r else nothing) for f, r in drawn]
    package.verifying = time.perf_counter() - started


def imports(python: str, source: Path, run: Fixed) -> None:
    """Note the modules that can be imported before, and can't after."""
    if not run.changed:
        return
    names = modules(source)
    before, after = (importable(python, folder, names) for folder in (source, run.folder))
    good = [name for name in names if not before[name]]
    run.imported = len(good)
    run.violations += [f"{name} doesn't import any more: {after[name]}" for name in good if after[name]]


# -- the report --------------------------------------------------------------------------------------------------------


def report(packages: Sequence[Package]) -> str:
    parts = ["## Findings", _by_code(packages), "## Fixes", _fixes(packages), "## Why there is no fix", _why(packages)]
    parts += ["## What unsafe fixes need", _needs(packages)]
    verified = [_verification(packages)] if any(p.outcomes for p in packages) else []
    violated = [f"- {p.name}: {v}" for p in packages for run in (p.safe, p.all) if run for v in run.violations]
    return "\n\n".join([*parts, *verified, "## Violations", "\n".join(dict.fromkeys(violated)) or "None."])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _by_code(packages: Sequence[Package]) -> str:
    codes = sorted({f.code for p in packages for f in p.findings})
    counted = [Counter(f.code for f in p.findings) for p in packages]
    rows = [
        (p.name, p.files, n.total(), *(n[c] or "" for c in codes), f"{p.seconds:.0f} s")
        for p, n in zip(packages, counted, strict=True)
    ]
    total = sum(counted, Counter[str]())
    rows.append(("all", sum(p.files for p in packages), total.total(), *(total[c] for c in codes), ""))
    return _table(("package", "files", "findings", *codes, "time"), rows)


def _fixes(packages: Sequence[Package]) -> str:
    head = (
        "package", "safe", "unsafe", "withheld", "files: safe", "files: all", "fixed: safe", "fixed: all", "remain",
        "formatted: before", "after", "imported", "time",
    )  # fmt: skip
    rows = []
    for p in packages:
        assert p.all
        trusted = Counter(f.fix.applicability if f.fix else "none" for f in p.findings)
        remain = sum(len(f.remaining.findings) for f in p.all.files)
        rows.append([
            p.name, trusted["safe"], trusted["unsafe"], trusted["none"],
            len(p.safe.changed) if p.safe else 0, len(p.all.changed),
            len(p.safe.applied) if p.safe else 0, len(p.all.applied), remain,
            *p.all.formatted, p.all.imported, round(p.all.seconds),
        ])  # fmt: skip
    sums = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    return _table(head, [[*row[:-1], f"{row[-1]} s"] for row in rows] + [["all", *sums[:-1], f"{sums[-1]} s"]])


def _why(packages: Sequence[Package]) -> str:
    """The reasons of findings without a fix that rules make one for, most frequent first."""
    fixable = {f.code for p in packages for f in p.findings if f.fix and f.fix.edits}
    why = Counter(
        (f.code, re.sub(r"`[^`]*`", "`...`", f.fix.message))
        for p in packages for f in p.findings
        if f.code in fixable and f.fix and f.fix.applicability == "none"
    )  # fmt: skip
    return _table(("rule", "findings", "reason"), [(code, n, text) for (code, text), n in why.most_common(15)])


def _needs(packages: Sequence[Package]) -> str:
    """What unsafe fixes need to be right, most frequent first."""
    needs = Counter(
        (f.code, re.sub(r"`[^`]*`", "`...`", need))
        for p in packages for f in p.findings if f.fix and f.fix.applicability == "unsafe"
        for need in f.fix.needs or ("nothing: it gives another dtype or value",)
    )  # fmt: skip
    return _table(("rule", "fixes", "need"), [(code, n, text) for (code, text), n in needs.most_common(20)])


def _verification(packages: Sequence[Package]) -> str:
    names = ("passed", "failed", "not verifiable")
    rows, failed, why = [], [], Counter[str]()
    for p in packages:
        counted = Counter[str](v.outcome for _, v in p.outcomes)
        assert p.all
        rows.append((p.name, f"{len(p.outcomes)} of {len(p.all.made)}", *(counted[n] for n in names)))
        failed += [f"- {p.name} {_place(p, f)} {f.code}: {v.reason}" for f, v in p.outcomes if v.outcome == "failed"]
        why.update(re.sub(r"`[^`]*`", "`...`", v.reason) for _, v in p.outcomes if v.outcome == "not verifiable")
    sums = [sum(column) for column in list(zip(*rows, strict=True))[2:]]
    run, made = sum(len(p.outcomes) for p in packages), sum(len(p.all.made) for p in packages if p.all)
    table = _table(("package", "run", *names), [*rows, ("all", f"{run} of {made}", *sums)])
    reasons = _table(("not verifiable", "fixes"), why.most_common(8))
    return "\n\n".join(["## Verification", table, "\n".join(failed), reasons])


def _place(p: Package, f: Finding) -> str:
    assert p.all
    return f"{Path(f.path).relative_to(p.all.folder)}:{f.line}"


def _file(cache: Path, name: str) -> Path:
    return cache / "results" / f"{name}.pickle"


def _keep(cache: Path, package: Package) -> None:
    file = _file(cache, package.name)
    file.parent.mkdir(exist_ok=True)
    if package.all:
        package.all.made = [(f, None) for f, _ in package.all.made]
    file.write_bytes(pickle.dumps(package))


def _kept(cache: Path, name: str) -> Package | None:
    file = _file(cache, name)
    return pickle.loads(file.read_bytes()) if file.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="packages that begin so")
    parser.add_argument("--python", help="of an environment that imports the packages")
    parser.add_argument("--verify", type=float, nargs="?", const=1.0, default=0.0, metavar="SHARE")
    parser.add_argument("--once", action="store_true", help="only all fixes, and no second run")
    parser.add_argument("--report", action="store_true", help="only the tables of what ran before")
    options = parser.parse_args()
    cache = options.cache.absolute()
    if options.report:
        print(report([p for name in chosen(options.only) if (p := _kept(cache, name))]))
        return 0
    packages = []
    for name, folder in unpacked(cache, chosen(options.only)):
        print(name, file=sys.stderr, flush=True)
        package = checked(name, folder)
        copies = cache / "fixed"
        if not options.once:
            safe = copies / "safe" / folder.name
            package.safe = fixed(folder, safe, unsafe=False, again=False)
        package.all = fixed(folder, copies / "all" / folder.name, unsafe=True, again=not options.once)
        if options.verify:
            verify_some(package, options.verify)
        if options.python:
            imports(options.python, folder, package.all)
        for v in package.all.violations:
            print(f"    {v}", file=sys.stderr, flush=True)
        packages.append(package)
        _keep(cache, package)
    print(report(packages))
    return any(run.violations for p in packages for run in (p.safe, p.all) if run)


if __name__ == "__main__":
    raise SystemExit(main())
