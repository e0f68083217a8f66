"""Results that need one another."""

from __future__ import annotations

from itertools import permutations

import pytest

from fuselint.graph.program import Once

NEEDS = {"a": "b", "b": "c", "c": "b", "d": "c", "e": "e", "f": "", "g": "fe"}
"""b and c are a circle, e one of its own."""


def ask(once: Once[str], key: str, made: list[str]) -> str:
    def make() -> str:
        made.append(key)
        return key + "(" + "".join(ask(once, n, made) for n in NEEDS[key]) + ")"

    return once.get(key, make, "?")


def test_a_result_is_the_same_whoever_asked_first() -> None:
    alone = {key: ask(Once(), key, []) for key in NEEDS}
    assert alone["b"] == "b(c(?))" and alone["c"] == "c(b(?))" and alone["a"] == "a(b(c(?)))"
    for order in permutations("abcdeg"):
        once: Once[str] = Once()
        assert {key: ask(once, key, []) for key in order} == {key: alone[key] for key in order}


def test_a_result_is_made_once() -> None:
    once, made = Once[str](), list[str]()
    for key in "gfgaab":
        ask(once, key, made)
    assert made.count("f") == made.count("g") == 1
    before = list(made)
    for key in "gab":
        ask(once, key, made)
    assert made == before


def test_a_failure_is_not_repeated() -> None:
    once, tried = Once[str](), list[int]()

    def fail() -> str:
        tried.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        once.get("x", fail, "cut")
    assert once.get("x", fail, "cut") == "cut" and len(tried) == 1
