"""What a check costs: CPU seconds and peak memory beside parsers and other linters, warm and cold, and by stage.

    python benchmarks/speed.py PACKAGE [PACKAGE ...] [--stages] [--peers]

Every line is a process of its own over the same files, in a copy of the packages, where some are changed meanwhile.
The last column is its CPU time over that of `ast.parse`. Peers are run where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARSE = "import sys, {module}\nfor path in open(sys.argv[1]).read().split():\n    {call}(open(path, 'rb').read())"
PEERS = {
    "ruff": ["ruff", "check", "--isolated", "--no-cache", "--quiet"],
    "pyflakes": ["-m", "pyflakes"],
    "flake8": ["-m", "flake8", "--isolated", "-j", "1"],
    "pylint": ["-m", "pylint", "--rcfile=/dev/null", "-j", "1"],
}


def cost(command: list[str], folder: str) -> tuple[float, float, float]:
    """CPU seconds, wall seconds and peak MB of a process and its children."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return used.ru_utime + used.ru_stime, time.perf_counter() - begun, used.ru_maxrss / 1024


def commands(files: list[str], listed: str, cache: str, peers: bool) -> Iterator[tuple[str, list[str]]]:
    """What is timed, by name, in order: the cold run fills the cache of the warm one. Some change a file before."""
    python = sys.executable
    check = [python, "-m", "fuselint", "check", "--isolated", "-q", "--output-format", "json", "-j", "1"]
    kept = [*check, "--cache-dir", cache]
    several = with_mlx(files)[:3]
    yield "ast.parse", [python, "-c", PARSE.format(module="ast", call="ast.parse"), listed]
    yield "libcst", [python, "-c", PARSE.format(module="libcst", call="libcst.parse_module"), listed]
    yield "fuselint --version", [python, "-m", "fuselint", "--version"]
    yield "fuselint, no cache", [*check, "--no-cache", *files]
    yield "fuselint, cold", [*kept, *files]
    yield "fuselint, warm", [*kept, *files]
    change(several[0])
    yield "one changed file", [*kept, *files]
    yield "3 files, no cache", [*check, "--no-cache", *several]
    for path in several:
        change(path)
    yield "3 changed, pre-commit", [*kept, "--force-exclude", *several]
    yield "fix, one file", [python, "-m", "fuselint", "fix", "--isolated", "-q", "--no-verify", several[0]]
    for name, command in PEERS.items() if peers else ():
        if command[0] == "-m" and importlib.util.find_spec(name) is not None:
            yield name, [python, *command, *files]
        elif command[0] != "-m" and shutil.which(name):
            yield name, [*command, *files]


def with_mlx(files: list[str]) -> list[str]:
    """The files that import MLX, from the middle of the list on."""
    found = [f for f in files if b"import mlx" in Path(f).read_bytes()] or files
    return found[len(found) // 2 :] + found[: len(found) // 2]


def change(path: str) -> None:
    """Add a function to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n\ndef added(number):\n    return number + 1\n")


def copied(packages: list[str], folder: str) -> list[str]:
    """The folders of packages, copied, Python files alone."""

    def others(at: str, names: list[str]) -> list[str]:
        return [n for n in names if not (n.endswith(".py") or os.path.isdir(os.path.join(at, n)))]

    out = []
    for i, package in enumerate(map(Path, packages)):
        out.append(os.path.join(folder, str(i), package.resolve().name))
        shutil.copytree(package, out[-1], ignore=others)
    return out


def python_files(packages: list[str]) -> list[str]:
    return sorted(str(p) for package in packages for p in Path(package).resolve().rglob("*.py"))


STAGES = (
    ("screen", "fuselint.analysis", "screen"),
    ("summary", "fuselint.analysis", "summary_of"),
    ("parse", "fuselint.graph.program", "parse_function"),
    ("lower", "fuselint.graph.lower", "lower"),
    ("facts", "fuselint.graph.facts", "Facts.of"),
    ("canonical", "fuselint.graph.canonical", "Canonical.__init__"),
    ("rules", "fuselint.analysis", "Analysis.found"),
    ("compiled", "fuselint.analysis", "in_package"),
    ("place", "fuselint.analysis", "place"),
    ("traffic", "fuselint.analysis", "Analysis.traffic"),
    ("near misses", "fuselint.nearly", "near_misses"),
    ("garbage", "gc", "collect"),
)


class Stages:
    """CPU time by stage, each without the stages inside it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._open[-1] if self._open else "other"] += now - self._since
        self._since = now

    def wrap(self, stage: str, owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            if self._open and self._open[-1] == stage:
                return original(*args, **options)
            self._turn()
            self._open.append(stage)
            try:
                return original(*args, **options)
            finally:
                self._turn()
                self._open.pop()

        setattr(owner, name, timed)


def stages(files: list[str]) -> None:
    """Print which stage takes which share of a check, in this process."""
    from fuselint.config import Settings
    from fuselint.engine import check_paths

    timed = Stages()
    for stage, module, name in STAGES:
        owner: Any = importlib.import_module(module)
        *classes, last = name.split(".")
        for part in classes:
            owner = getattr(owner, part)
        timed.wrap(stage, owner, last)
    for _ in check_paths(files, Settings(), jobs=1):
        pass
    timed._turn()
    total = sum(timed.seconds.values())
    for stage, spent in timed.seconds.most_common():
        print(f"{stage:14}{spent:8.2f} s{spent / total:8.0%}")
    print(f"{'total':14}{total:8.2f} s; {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+")
    parser.add_argument("--stages", action="store_true", help="Only the share of each stage.")
    parser.add_argument("--peers", action="store_true", help="Other linters too.")
    options = parser.parse_args()
    if options.stages:
        stages(python_files(options.packages))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = python_files(copied(options.packages, folder))
        listed = os.path.join(folder, "files")
        Path(listed).write_text("\n".join(files))
        print(f"{len(files)} files\n{'':22}{'CPU s':>9}{'wall s':>9}{'MB':>7}{'x ast':>8}")
        unit = 0.0
        for name, command in commands(files, listed, os.path.join(folder, "cache"), options.peers):
            cpu, wall, peak = cost(command, folder)
            unit = unit or cpu
            print(f"{name:22}{cpu:9.2f}{wall:9.2f}{peak:7.0f}{cpu / unit:8.1f}", flush=True)


if __name__ == "__main__":
    main()
