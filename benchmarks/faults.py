"""Break every fix in every way that applies, and see whether verification catches it.

    python benchmarks/faults.py > table.md

The fixes are those of the rules' examples and of the further spellings in tests/mutation; the ways to break them, and
what makes a fault none, stand in tests/verify/faults.py. Exit code 1 where a fault was missed, or a right fix refused.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from verify.faults import FAULTS, TWELVE, changes_nothing, example_fixes, form_fixes, planted

from fuselint.verify import verify


def main() -> int:
    fixes = dict(example_fixes()) | dict(form_fixes())
    outcomes = dict(zip(fixes, verify(list(fixes.values()), device="cpu"), strict=True))
    passed = {name: whole for name, whole in fixes.items() if outcomes[name].outcome == "passed"}
    refused = [name for name, o in outcomes.items() if o.outcome == "failed"]
    broken = {(name, fault): made for name, whole in passed.items() for fault, made in planted(whole)}
    found = dict(zip(broken, verify(list(broken.values()), device="cpu"), strict=True))
    applied, caught, none = Counter[str](), Counter[str](), Counter[str]()
    missed: list[str] = []
    for (name, fault), made in broken.items():
        applied[fault.says] += 1
        if found[name, fault].outcome == "failed":
            caught[fault.says] += 1
        elif changes_nothing(made):
            none[fault.says] += 1
        else:
            missed.append(f"{name}: {fault.says}: {found[name, fault].reason}")
    print("| fault | planted | caught | changes nothing | missed |\n|---|---|---|---|---|")
    for group, heading in ((TWELVE, "the twelve"), (FAULTS[len(TWELVE) :], "finer ones")):
        names = [f.says for f in group]
        for n in names:
            print(f"| {n} | {applied[n]} | {caught[n]} | {none[n]} | {applied[n] - caught[n] - none[n]} |")
        sums = [sum(c[n] for n in names) for c in (applied, caught, none)]
        print(f"| *{heading}* | {' | '.join(map(str, sums))} | {sums[0] - sums[1] - sums[2]} |")
    print(f"\n{len(passed)} fixes of {len({w.code for w in passed.values()})} rules; refused: {refused or 'none'}")
    print("\n".join(missed), file=sys.stderr)
    return 1 if missed or refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
