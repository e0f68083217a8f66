"""Fix mutants of true forms, and compare each fixed one with the mutant in float64.

    python benchmarks/mutants.py --count 200000 --seed 0 --save wrong/

Mutant number n is always the same one, so a run goes on where another ended: --seed says which number is the first.
What a mutant is, and what makes a fix of one wrong, stands in tests/mutation.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from mutation.judge import Judgement, judge, mutant

CHUNK = 200


def judged(start: int, count: int) -> list[Judgement]:
    return [j for seed in range(start, start + count) for j in judge(mutant(seed))]


def chunks(start: int, count: int, jobs: int) -> Iterator[tuple[int, list[Judgement]]]:
    """The judgements of all mutants, in order, and how many mutants each list is of."""
    starts = range(start, start + count, CHUNK)
    counts = [min(CHUNK, start + count - s) for s in starts]
    if jobs == 1:
        yield from zip(counts, map(judged, starts, counts), strict=True)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(counts, pool.map(judged, starts, counts), strict=True)


def report(j: Judgement) -> str:
    """A wrong fix as a file: what is wrong, the mutant, and its fixed text."""
    m = j.mutant
    about = [f"mutant {m.seed}, of {m.form.name}", f"{j.code}: {j.message}", j.because, f"needs: {'; '.join(j.needs)}"]
    head = "".join(f"# {line}\n" for text in about for line in text.splitlines())
    return f"{head}\n{m.source}\n# fixed:\n\n{j.fixed}"


def reason(j: Judgement) -> str:
    """Why a match was not judged, without the code's own names."""
    return re.sub(r"`[^`]*`", "...", j.because)


def table(tally: Counter[tuple[str, str, str]]) -> Iterator[str]:
    verdicts = ("right", "wrong", "unmet", "skipped")
    yield f"{'rule':8}{'matched':>9}" + "".join(f"{v:>9}" for v in verdicts)
    for code in sorted({code for code, _, _ in tally if code}):
        of = [sum(n for (c, w, _), n in tally.items() if (c, w) == (code, v)) for v in verdicts]
        yield f"{code:8}{sum(of):9}" + "".join(f"{n:9}" for n in of)
        for (c, verdict, why), n in tally.most_common():
            if (c, verdict) == (code, "skipped"):
                yield f"{'':44}{n:9}  {why[:100]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", type=Path, help="a folder for the wrong ones, one file each")
    options = parser.parse_args(arguments)
    tally: Counter[tuple[str, str, str]] = Counter()
    started, done, wrong = time.monotonic(), 0, 0
    for count, judgements in chunks(options.seed, options.count, options.jobs):
        done += count
        for j in judgements:
            tally[j.code, j.verdict, reason(j) if j.verdict == "skipped" else ""] += 1
            if j.verdict == "wrong":
                wrong += 1
                print(report(j))
                if options.save:
                    options.save.mkdir(parents=True, exist_ok=True)
                    (options.save / f"{j.code or 'error'}-{j.mutant.seed}.py").write_text(report(j), encoding="utf-8")
        if done % (10 * CHUNK) == 0 or done == options.count:
            rate = done / (time.monotonic() - started)
            print(f"{done} of {options.count} mutants, {wrong} wrong, {rate:.0f} a second", file=sys.stderr)
    print("\n".join(table(tally)))
    none = sum(n for (code, _, _), n in tally.items() if not code)
    print(f"mutants {options.seed} to {options.seed + done - 1}: {none} without a match, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
