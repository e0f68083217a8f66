"""Who owns a place, which rules there are, what a selector means."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fuselint.errors import ConfigError, FuselintError
from fuselint.rulebook import Match, _discover, claim, rules, selectors


class Node(SimpleNamespace):
    __hash__ = object.__hash__


NODES = {c: Node(id=i, op="const" if c.isupper() else "add") for i, c in enumerate("abcdefABC")}


def match(code: str, region: str) -> Match:
    own: Any = [NODES[c] for c in region]
    return Match(code, own[0], {}, "", [], frozenset(own))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("FUS201:abc FUS301:abc", "FUS201:abc"),
        ("FUS302:ab FUS201:abc", "FUS201:abc"),
        ("FUS302:ab FUS106:ab", "FUS106:ab"),
        ("FUS304:a FUS302:bc", "FUS302:bc FUS304:a"),
        ("FUS301:ab FUS211:abcd", "FUS211:abcd"),
        ("FUS104:ab FUS301:cd", "FUS104:ab FUS301:cd"),
        ("FUS201:ab FUS201:abc", "FUS201:abc"),
        ("FUS201:ab FUS104:bc", "FUS201:ab FUS104:bc"),
        ("FUS261:ab FUS301:abc", "FUS301:abc"),
        ("FUS261:abA FUS301:abc", "FUS301:abc"),
        ("FUS261:ab FUS301:ab", "FUS261:ab"),
        ("FUS261:ab FUS301:abc FUS231:c", "FUS261:ab FUS231:c"),
        ("FUS201:abA FUS104:abB", "FUS201:abA"),
        ("FUS211:ab FUS301:bc", "FUS211:ab"),
    ],
)
def test_claims(given: str, kept: str) -> None:
    made = {text: match(*text.split(":")) for text in given.split()}
    assert {id(m) for m in claim(made.values())} == {id(made[text]) for text in kept.split()}
    assert claim(reversed(list(made.values()))) == claim(made.values())


def test_rules_are_found_by_walking_and_each_once() -> None:
    found = rules()
    assert [r.code for r in found] == sorted({r.code for r in found})
    assert all(r.check.__name__.startswith("fuselint.checks.") for r in found)
    assert all(r.fixer is None or r.fixer.__name__.startswith("fuselint.fixers.") for r in found)


def test_selectors() -> None:
    known = {r.code for r in rules()}
    assert selectors(["ALL"], "x") == known | {"FUS000", "FUS900"}
    assert selectors(["fus201"], "x") == selectors(["unfused-rms-norm"], "x") == {"FUS201"}
    assert selectors(["FUS1"], "x") == {c for c in known if c.startswith("FUS1")}
    with pytest.raises(ConfigError, match='x: no rule "FUS777"'):
        selectors(["FUS777"], "x")
    with pytest.raises(ConfigError):
        selectors([""], "x")


def test_two_rules_of_one_code_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import fuselint.checks.attention as attention

    monkeypatch.setattr(attention, "CODE", "FUS201")
    _discover.cache_clear()
    rules.cache_clear()
    with pytest.raises(FuselintError, match="FUS201 is the code of two rules"):
        rules()
    monkeypatch.undo()
    _discover.cache_clear()
    rules.cache_clear()
    assert rules()
