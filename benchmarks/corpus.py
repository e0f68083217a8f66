"""Check and fix whole packages, and look at what the fixes did to them.

    python benchmarks/corpus.py CACHE [--only mlx-lm mflux==0.24.0] [--jobs 4] [--verify [SHARE]] [--python PYTHON]
    python benchmarks/corpus.py CACHE --parts all --verify --deadline 500      # makes and keeps one part, and no more
    python benchmarks/corpus.py CACHE --parts --python VENV/bin/python         # looks at what was made before

The packages are the pinned ones of packages.py: CACHE keeps what was downloaded. Each is checked (*check*), a copy gets
the safe fixes (*safe*), another all (*all*). Of every changed file the invariants of invariants.py are looked at, and a
second run may change nothing. `--verify` runs the fixes of *all* before and after, or a share of them, always the same;
what fails stays in the copies. The copies stay under CACHE/fixed, what was found under CACHE/results.

The parts of all packages may be made by several processes at once, and on another machine, which needs no network and
no ruff. What is looked at afterwards is the copies: by ruff, and by `--python`, an interpreter with MLX and whatever
else the packages import: a module that it imports before has to import after. Exit code 1 where anything is violated.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from corpus_results import PARTS, Checked, Fixed, Package, keep, kept, report
from invariants import importable, linted, modules, of_file, still_formatted
from packages import chosen, unpacked

from fuselint.api import check_paths
from fuselint.config import layer
from fuselint.engine import FixedFile, fix_paths
from fuselint.finding import Finding, Region, Verification
from fuselint.layers import Layers
from fuselint.source.discovery import python_files
from fuselint.verify import verify

Made = list[tuple[Finding, Region | None]]


def checked(folder: Path, jobs: int) -> Checked:
    started = _processor_seconds()
    results = list(check_paths([folder], isolated=True, jobs=jobs, cache=False))
    findings = [replace(f, path=str(Path(f.path).relative_to(folder))) for r in results for f in r.findings]
    return Checked(len(results), findings, [e for r in results for e in r.errors], _processor_seconds() - started)


def fixed(source: Path, folder: Path, *, unsafe: bool, jobs: int) -> tuple[Fixed, Made]:
    """A copy of a package in `folder`, fixed, and each fix with what verifies it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    started = _processor_seconds()
    made: Made = []
    files = _fix(folder, unsafe, made, jobs)
    applied = {str(Path(f.path).relative_to(folder)): list(f.applied) for f in files if f.before != f.after}
    remain = sum(len(f.remaining.findings) for f in files)
    out = Fixed(applied, remain, _processor_seconds() - started, made=len(made))
    out.violations += [e for f in files for e in f.remaining.errors]
    for path, findings in applied.items():
        found = of_file((source / path).read_bytes(), (folder / path).read_bytes(), findings)
        out.violations += [f"{path}: {v}" for v in found]
    return out, [(replace(f, path=str(Path(f.path).relative_to(folder))), region) for f, region in made]


def again(folder: Path, *, unsafe: bool, jobs: int) -> list[str]:
    """What a second run changes."""
    more = [f for f in _fix(folder, unsafe, [], jobs) if f.applied or f.before != f.after]
    return [f"{Path(f.path).relative_to(folder)}: the second run changes it" for f in more]


def _fix(folder: Path, unsafe: bool, made: Made, jobs: int) -> list[FixedFile]:
    def note(finding: Finding, region: Region | None) -> tuple[Finding, bool]:
        made.append((finding, region))
        return finding, True

    stated = layer({"unsafe-fixes": unsafe, "cache": False}, str, Path())
    layers = Layers(None, True, [stated])
    return fix_paths(python_files([str(folder)], layers), layers, write=True, jobs=jobs, judge=note)


def verified(made: Made, jobs: int, end: float) -> Iterator[list[tuple[Finding, Verification]]]:
    """The outcomes of fixes that are run before and after, some at a time, until it is `end`."""
    nothing = Verification("not verifiable", "its region can't be run by itself")
    yield [(f, nothing) for f, region in made if not region]
    runnable = [(f, region) for f, region in made if region]
    at_once = 4 * jobs
    for first in range(0, len(runnable), at_once):
        if time.time() > end:
            return
        some = runnable[first : first + at_once]
        outcomes = verify([region for _, region in some], jobs=jobs, timeout_s=120)
        yield [(f, outcome) for (f, _), outcome in zip(some, outcomes, strict=True)]


def make(cache: Path, name: str, source: Path, parts: Sequence[str], options: argparse.Namespace) -> None:
    """Make parts of what is known of a package, and keep them."""
    jobs = options.jobs
    if "check" in parts:
        keep(cache, name, "check", checked(source, jobs))
    for part in PARTS[1:]:
        if part not in parts:
            continue
        copy, unsafe = cache / "fixed" / part / source.name, part == "all"
        out, made = fixed(source, copy, unsafe=unsafe, jobs=jobs)
        keep(cache, name, part, out)
        if part == "all" and options.verify:
            dice = random.Random(name)
            drawn = [one for one in made if dice.random() < options.verify]
            dice.shuffle(drawn)  # where time runs out, what ran is a fair sample
            for some in verified(drawn, jobs, options.end):
                out.outcomes += some
                keep(cache, name, part, out)
        out.violations += again(copy, unsafe=unsafe, jobs=jobs)
        out.run_again = True
        keep(cache, name, part, out)


def _processor_seconds() -> float:
    """Of this process, and of those that it started and that ended."""
    return sum(os.times()[:4])


def look(cache: Path, package: Package, source: Path, python: str | None) -> None:
    """Note what ruff and, where it is named, an interpreter say of the copies."""
    for part in PARTS[1:]:
        run: Fixed | None = getattr(package, part)
        if run is None:
            continue
        copy = cache / "fixed" / part / source.name
        paths = sorted(run.applied)
        run.violations += [f"ruff: {v}" for v in linted(source, copy, paths)]
        run.formatted = still_formatted(source, copy, paths)
        if python and paths and part == "all":
            _import(python, source, copy, run)


def _import(python: str, source: Path, copy: Path, run: Fixed) -> None:
    """Note the modules that can be imported before, and can't after."""
    names = modules(source)
    before, after = (importable(python, folder, names) for folder in (source, copy))
    good = [name for name in names if not before[name]]
    run.imported = len(good)
    run.violations += [f"{name} doesn't import any more: {after[name]}" for name in good if after[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="packages that begin so")
    parser.add_argument("--parts", nargs="*", choices=PARTS, help="make these and no tables; without one, only tables")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--python", help="of an environment that imports the packages")
    parser.add_argument("--verify", type=float, nargs="?", const=1.0, default=0.0, metavar="SHARE")
    parser.add_argument("--deadline", type=float, default=float("inf"), help="seconds after which no more is verified")
    options = parser.parse_args()
    options.end = time.time() + options.deadline
    cache = options.cache.absolute()
    packages = []
    for name, folder in unpacked(cache, chosen(options.only)):
        print(name, file=sys.stderr, flush=True)
        make(cache, name, folder, PARTS if options.parts is None else options.parts, options)
        if not options.parts:
            packages.append(kept(cache, name))
            look(cache, packages[-1], folder, options.python)
    if packages:
        print(report(packages))
    return any(run.violations for p in packages for run in (p.safe, p.all) if run)


if __name__ == "__main__":
    raise SystemExit(main())
