"""Check and fix whole packages, and look at what the fixes did to them.

    python benchmarks/corpus.py CACHE [--only mlx-lm mflux==0.24.0] [--python VENV/bin/python] [--verify]

The packages are the pinned ones of packages.py: CACHE keeps what was downloaded. Each is checked, a copy gets the
safe fixes, another all. Of every changed file the invariants of invariants.py are looked at, and a second run of all
may change nothing. `--python` names an interpreter with MLX, and whatever else the packages import: a module that it
imports before has to import after. The copies stay under CACHE/fixed. Exit code 1 where anything is violated.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from invariants import importable, linted, modules, of_file, unformatted
from packages import chosen, unpacked

from fuselint.api import check_paths
from fuselint.config import layer
from fuselint.engine import FixedFile, fix_paths
from fuselint.finding import Finding
from fuselint.layers import Layers
from fuselint.source.discovery import python_files


@dataclass
class Fixed:
    """What one run of `fix --apply` did to a copy of a package."""

    folder: Path
    files: list[FixedFile]
    seconds: float
    violations: list[str] = field(default_factory=list)
    formatted: int = 0
    imported: int = 0

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


def checked(name: str, folder: Path) -> Package:
    started = time.perf_counter()
    results = list(check_paths([folder], isolated=True, cache=False))
    seconds = time.perf_counter() - started
    findings = [f for r in results for f in r.findings]
    return Package(name, folder, findings, [e for r in results for e in r.errors], len(results), seconds)


def fixed(source: Path, folder: Path, *, unsafe: bool, verify: bool) -> Fixed:
    """A copy of a package in `folder`, fixed."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    started = time.perf_counter()
    files = _fix(folder, unsafe, verify)
    out = Fixed(folder, files, time.perf_counter() - started)
    out.violations += [e for f in files for e in f.remaining.errors]
    for f, path in zip(out.changed, out.paths, strict=True):
        found = of_file((source / path).read_bytes(), (folder / path).read_bytes(), f.applied)
        out.violations += [f"{path}: {v}" for v in found]
    if unsafe and not verify:
        again = [f for f in _fix(folder, unsafe, verify) if f.applied or f.before != f.after]
        out.violations += [f"{f.path}: the second run changes it" for f in again]
    out.violations += [f"ruff: {v}" for v in linted(source, folder, out.paths)]
    out.formatted, bad = unformatted(source, folder, out.paths)
    out.violations += [f"{path}: formatted before, and isn't any more" for path in bad]
    return out


def _fix(folder: Path, unsafe: bool, verify: bool) -> list[FixedFile]:
    stated = layer({"unsafe-fixes": unsafe, "cache": False}, str, Path())
    layers = Layers(None, True, [stated])
    return fix_paths(python_files([str(folder)], layers), layers, write=True, verify=verify, jobs=1)


def imports(python: str, source: Path, run: Fixed) -> None:
    """Note the modules that can be imported before, and can't after."""
    if not run.changed:
        return
    before = {n for n, why in importable(python, source, modules(source)).items() if not why}
    after = importable(python, run.folder, sorted(before))
    run.imported = len(before)
    run.violations += [f"{name} doesn't import any more: {why}" for name, why in after.items() if why]


# -- the report --------------------------------------------------------------------------------------------------------


def report(packages: Sequence[Package]) -> str:
    parts = ["## Findings", _by_code(packages), "## Fixes", _fixes(packages), "## Why there is no fix", _why(packages)]
    verified = [_verification(packages)] if any(_outcomes(p.all) for p in packages) else []
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
        "formatted", "imported", "time",
    )  # fmt: skip
    rows = []
    for p in packages:
        assert p.safe and p.all
        trusted = Counter(f.fix.applicability if f.fix else "none" for f in p.findings)
        remain = sum(len(f.remaining.findings) for f in p.all.files)
        rows.append([
            p.name, trusted["safe"], trusted["unsafe"], trusted["none"], len(p.safe.changed), len(p.all.changed),
            len(p.safe.applied), len(p.all.applied), remain, p.all.formatted, p.all.imported, round(p.all.seconds),
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


def _outcomes(run: Fixed | None) -> Counter[str]:
    fixes = [a.fix for f in run.files for a in (*f.applied, *f.withheld) if a.fix] if run else []
    return Counter(f.verification.outcome for f in fixes if f.verification)


def _verification(packages: Sequence[Package]) -> str:
    names = ("passed", "failed", "not verifiable")
    rows = [(p.name, *(_outcomes(p.all)[n] for n in names)) for p in packages]
    lines = ["## Verification", _table(("package", *names), rows)]
    for p in packages:
        for f in p.all.files if p.all else ():
            lines += [
                f"- {p.name} {w.path}:{w.line} {w.code}: {w.fix.verification.reason}"
                for w in f.withheld if w.fix and w.fix.verification
            ]  # fmt: skip
    return "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="packages that begin so")
    parser.add_argument("--python", help="of an environment that imports the packages")
    parser.add_argument("--verify", action="store_true", help="run each fix before and after")
    options = parser.parse_args()
    cache = options.cache.absolute()
    packages = []
    for name, folder in unpacked(cache, chosen(options.only)):
        print(name, file=sys.stderr, flush=True)
        package = checked(name, folder)
        copies = cache / "fixed"
        package.safe = fixed(folder, copies / "safe" / folder.name, unsafe=False, verify=options.verify)
        package.all = fixed(folder, copies / "all" / folder.name, unsafe=True, verify=options.verify)
        if options.python:
            imports(options.python, folder, package.all)
        for v in package.all.violations:
            print(f"    {v}", file=sys.stderr, flush=True)
        packages.append(package)
    print(report(packages))
    return any(run.violations for p in packages for run in (p.safe, p.all) if run)


if __name__ == "__main__":
    raise SystemExit(main())
