"""Kill `fuselint fix --apply` again and again, and look at what it leaves.

    python benchmarks/interrupted.py PACKAGE [--kills 50] [--seed 0]

Each time a copy of PACKAGE is fixed, and the process killed (SIGKILL): every other time at a random moment of the run,
else at one while it writes, some milliseconds after a random number of files was written. Then every file must hold
its old bytes or its new ones, and another run must end where one that nobody killed does, byte for byte. States that
were seen before aren't run again.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIX = [sys.executable, "-m", "fuselint", "fix", "--apply", "--unsafe-fixes", "--no-verify", "--isolated", "--no-cache"]

State = dict[str, bytes]


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [*FIX, "--quiet", "--exit-zero", "--output-format", "concise", "."]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def state(folder: Path) -> State:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def stamps(folder: Path) -> dict[Path, int]:
    return {p: p.stat().st_ino for p in folder.rglob("*.py")}


def copied(package: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(package, to, ignore=shutil.ignore_patterns("__pycache__", ".fuselint_cache"))
    return to


def written(paths: list[Path], before: dict[Path, int]) -> int:
    """How many files were replaced: the new one is another file of the same name."""
    return sum(p.stat().st_ino != before[p] for p in paths)


def kill(folder: Path, seconds: float, changing: list[Path], after: int) -> None:
    """Kill a fix so long after it has written that many of the files that it changes."""
    before = stamps(folder)
    process = start(folder)
    while after and process.poll() is None and written(changing, before) < after:
        pass
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def problems(found: State, old: State, new: State) -> list[str]:
    wrong = [name for name in old if found.get(name) not in (old[name], new[name])]
    return wrong + [name for name in found if name not in old and not is_temporary(name)]


def is_temporary(name: str) -> bool:
    return Path(name).name.startswith(".fuselint-")


def digest(found: State) -> str:
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = copied(given.package, Path(temporary) / "package")
        old, begun = state(folder), time.perf_counter()
        start(folder).wait()
        whole = time.perf_counter() - begun
        new = state(folder)
        changing = [folder / name for name in old if old[name] != new[name]]
        changed = len(changing)
        print(f"{given.package.name}: {changed} of {len(old)} files change in {whole:.1f} s", flush=True)
        seen = {digest(old): True}
        torn = different = partly = left = 0
        for number in range(given.kills):
            copied(given.package, folder)
            late = number % 2 == 1 and changed > 1
            after = rng.randrange(1, changed) if late else 0
            kill(folder, rng.uniform(0, 0.01 if late else whole), changing, after)
            found = state(folder)
            torn += bool(problems(found, old, new))
            left += any(map(is_temporary, found))
            files = {name: text for name, text in found.items() if not is_temporary(name)}
            partly += 0 < sum(files[name] != old[name] for name in old) < changed
            if digest(files) not in seen:
                start(folder).wait()
                again = {name: text for name, text in state(folder).items() if not is_temporary(name)}
                seen[digest(files)] = again == new
            different += not seen[digest(files)]
        print(
            f"{given.kills} kills: {partly} with some files written and others not, {len(seen)} different states; "
            f"{torn} left a file that is neither old nor new, {different} ended elsewhere when run again, "
            f"{left} left a temporary file behind"
        )
        sys.exit(bool(torn or different))


if __name__ == "__main__":
    main()
