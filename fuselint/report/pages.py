"""A rule's page, made from the rule itself: its docstring, its claim as runnable MLX, its examples."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence

from fuselint.rulebook import HOUSE_ASSUMPTIONS, OWN, UNUSED, Example, Rule


def listing(rules: Sequence[Rule]) -> str:
    return "".join(f"{r.code}  {r.name}\n" for r in rules)


def render(rules: Sequence[Rule], form: str) -> str:
    if form == "json":
        return json.dumps([_data(r) for r in rules], indent=1, ensure_ascii=False) + "\n"
    page = markdown if form == "markdown" else text
    return "\n".join(page(r) for r in rules)


def markdown(rule: Rule) -> str:
    """The page of docs/rules."""
    return "\n".join(_markdown(rule)).rstrip() + "\n"


def text(rule: Rule) -> str:
    """The same page for a terminal: code is indented instead of fenced."""
    lines = []
    fenced = False
    for line in _markdown(rule):
        if line.startswith("```"):
            fenced = not fenced
        else:
            lines.append(f"    {line}".rstrip() if fenced else line.lstrip("#").lstrip() if line[:1] == "#" else line)
    return "\n".join(lines).rstrip() + "\n"


def _markdown(rule: Rule) -> Iterator[str]:
    title, _, body = rule.page.partition("\n")
    yield f"# {rule.code} {rule.name}"
    yield ""
    said = title.partition(": ")[2] if title.startswith(rule.code) else title
    yield from [said, *body.rstrip().split("\n")]
    unfused, fused = getattr(rule.check, "unfused", None), getattr(rule.check, "fused", None)
    if unfused and fused:
        yield from ["", "## The claim", "", "```python"]
        yield from f"{_source(unfused)}\n\n\n{_source(fused)}".split("\n")
        yield "```"
    if rule.examples:
        yield from ["", "## Reported"]
        for example in rule.examples:
            yield from _example(example)
    if rule.counterexamples:
        yield from ["", "## Not reported"]
        for example in rule.counterexamples:
            yield from _example(example)
    if rule.code not in OWN:
        yield from ["", "## Taken for granted", ""]
        yield from (f"- {assumption}" for assumption in HOUSE_ASSUMPTIONS)
        place = f"with `# noqa: {rule.code}`, on any line of its statement or on the `def` line"
        yield from ["", f"Silence one place {place}."]
    elif rule.code == UNUSED:
        yield from ["", f"Silence one place with `# fuselint: ignore[{UNUSED}]` or `# noqa: {UNUSED}` in its line."]


def _source(function: object) -> str:
    return inspect.getsource(function).rstrip()  # type: ignore[arg-type]


def _example(example: Example) -> Iterator[str]:
    if example.why:
        yield from ["", example.why[0].upper() + example.why[1:] + ("" if example.why.endswith(".") else ".")]
    yield from ["", "```python", *example.source.strip("\n").split("\n"), "```"]
    if example.fixed is not None:
        yield from ["", f"becomes ({example.applicability})", "", "```python"]
        yield from [*example.fixed.strip("\n").split("\n"), "```"]


def _data(rule: Rule) -> dict[str, object]:
    def examples(chosen: Sequence[Example]) -> list[dict[str, str | None]]:
        return [{"source": e.source, "fixed": e.fixed, "applicability": e.applicability, "why": e.why} for e in chosen]

    return {
        "code": rule.code,
        "name": rule.name,
        "page": rule.page,
        "has_fix": rule.fix is not None or rule.code == UNUSED,
        "examples": examples(rule.examples),
        "counterexamples": examples(rule.counterexamples),
        "assumptions": [] if rule.code in OWN else list(HOUSE_ASSUMPTIONS),
    }
