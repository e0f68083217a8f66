"""Write docs/rules: one page a rule, made from the rule itself.

usage: python docs/make_rules.py [--check]     --check: write nothing, exit 1 where a page is stale
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fuselint.report.pages import markdown
from fuselint.rulebook import documented

FOLDER = Path(__file__).parent / "rules"


def pages() -> dict[str, str]:
    """The pages by file name."""
    ours = [r for r in documented() if r.is_ours]
    wanted = {f"{r.code}.md": markdown(r) for r in ours}
    index = [f"- [{r.code} {r.name}]({r.code}.md)\n" for r in ours]
    wanted["README.md"] = "# Rules\n\n" + "".join(index)
    return wanted


def stale() -> list[str]:
    """The names of pages that are missing, out of date, or of no rule."""
    wanted = pages()
    there = {p.name: p.read_text(encoding="utf-8") for p in FOLDER.glob("*.md")}
    return sorted(name for name in {**wanted, **there} if wanted.get(name) != there.get(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    names = stale()
    if parser.parse_args().check:
        sys.exit(f"stale: {', '.join(names)}; run python docs/make_rules.py" if names else 0)
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for name in names:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()


if __name__ == "__main__":
    main()
