"""Draw findings for people to read, and make a table of their verdicts.

    fuselint check --isolated --output-format json PACKAGES > findings.json
    python benchmarks/review.py draw findings.json --seed 1 > drawn.tsv
    python benchmarks/review.py table drawn.tsv findings.json

Of each code at least `--least` findings are drawn, as far as there are so many; the others are drawn from the rest,
each as likely as any. Whoever reads a finding in its file writes true, false or worthless (true, but not worth a
reader's time) into `verdict`, and why into `note`.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

COLUMNS = ("verdict", "note", "code", "place", "function", "fix", "message")
VERDICTS = ("true", "false", "worthless")


def draw(findings: list[dict[str, Any]], count: int, least: int, seed: int) -> list[dict[str, Any]]:
    """`count` findings, in the order of code and place."""
    dice = random.Random(seed)
    shuffled = dice.sample(findings, len(findings))
    drawn: list[dict[str, Any]] = []
    of_code: Counter[str] = Counter()
    rest = []
    for finding in shuffled:
        if of_code[finding["code"]] < least:
            of_code[finding["code"]] += 1
            drawn.append(finding)
        else:
            rest.append(finding)
    drawn = drawn[:count] + rest[: max(count - len(drawn), 0)]
    return sorted(drawn, key=lambda f: (f["code"], f["path"], f["line"]))


def write(findings: list[dict[str, Any]]) -> None:
    out = csv.DictWriter(sys.stdout, COLUMNS, delimiter="\t", lineterminator="\n")
    out.writeheader()
    for f in findings:
        place = f"{f['path']}:{f['line']}"
        fix = f["fix"]["applicability"] if f["fix"] else "none"
        row = {"code": f["code"], "place": place, "function": f["function"], "fix": fix, "message": f["message"]}
        out.writerow(dict.fromkeys(COLUMNS, "") | row)


def table(rows: list[dict[str, str]], findings: list[dict[str, Any]]) -> str:
    """Verdicts by code; the shares of all are weighted by how many findings each code has."""
    everywhere = Counter(f["code"] for f in findings)
    verdicts: dict[str, Counter[str]] = {}
    for row in rows:
        if row["verdict"] not in VERDICTS:
            raise SystemExit(f"{row['place']}: the verdict is {row['verdict']!r}, not one of {', '.join(VERDICTS)}")
        verdicts.setdefault(row["code"], Counter())[row["verdict"]] += 1
    lines = ["| rule | findings | read | true | false | worthless |", "|---|---|---|---|---|---|"]
    for code, counted in sorted(verdicts.items()):
        cells = " | ".join(str(counted[v]) for v in VERDICTS)
        lines.append(f"| {code} | {everywhere[code]} | {counted.total()} | {cells} |")
    total = sum(verdicts.values(), Counter[str]())
    lines.append(f"| all | {len(findings)} | {total.total()} | {' | '.join(str(total[v]) for v in VERDICTS)} |")
    known = sum(everywhere[c] for c in verdicts)
    shares = [sum(everywhere[c] * n[v] / n.total() for c, n in verdicts.items()) / known for v in VERDICTS]
    lines.append(f"| of all that is reported, estimated | | | {' | '.join(f'{s:.1%}' for s in shares)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    drawing = commands.add_parser("draw")
    drawing.add_argument("findings", type=Path)
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("--least", type=int, default=6, help="findings of each code")
    drawing.add_argument("--seed", type=int, required=True)
    counting = commands.add_parser("table")
    counting.add_argument("reviewed", type=Path)
    counting.add_argument("findings", type=Path)
    args = parser.parse_args()
    findings = json.loads(args.findings.read_text())
    if args.command == "draw":
        write(draw(findings, args.count, args.least, args.seed))
    else:
        with args.reviewed.open(newline="") as file:
            print(table(list(csv.DictReader(file, delimiter="\t")), findings))


if __name__ == "__main__":
    main()
