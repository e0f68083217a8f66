"""Calls that MLX refuses: wrong arguments in every place of every op's samples cost no analysis its life."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from functools import cache

import pytest
from graph import samples
from graph.functions import program_of
from graph.test_ops import facts_with, used

from fuselint.traffic.kernels import kernels

WRONG = (
    "other",
    "other(x)",
    "None",
    "-1",
    "()",
    "[other, 2]",
    "other.shape",
    "True",
    "1.5",
    "'text'",
    "(other, other)",
)
EACH = 12
"""One of so many is tried: all of them take half a minute."""


def expressions() -> list[str]:
    texts = [text for text in vars(samples).values() if isinstance(text, str) and " | " in text]
    return [
        e.strip()
        for text in texts
        for line in text.splitlines()
        for e in line.split(" | ")
        if e.strip() and " @ ." not in e
    ]


def spoilt(expression: str) -> Iterator[str]:
    """The expression with one operand or argument put wrong, each in turn."""
    tree = ast.parse(expression, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            continue
        for field, value in ast.iter_fields(node):
            if isinstance(node, ast.Call) and field == "func":
                continue
            held = value if isinstance(value, list) else [value]
            for i, old in enumerate(held):
                if not isinstance(old, ast.expr):
                    continue
                for text in WRONG:
                    new = ast.parse(text, mode="eval").body
                    setattr(node, field, [*held[:i], new, *held[i + 1 :]] if isinstance(value, list) else new)
                    yield ast.unparse(tree)
                setattr(node, field, value)


@cache
def cases() -> list[list[str]]:
    """In ten parts."""
    all_of_them = [s for e in expressions() for s in spoilt(e)]
    drawn = random.Random(0).sample(all_of_them, len(all_of_them) // EACH)
    return [drawn[i::10] for i in range(10)]


@pytest.mark.parametrize("part", range(10))
def test_wrong_arguments_are_no_fault_of_ours(part: int) -> None:
    for text in cases()[part]:
        names = "".join(f"{n}: mx.array, " for n in used(text) if n != "other")
        head = "import math\nimport mlx.core as mx\nimport mlx.nn as nn\n\n"
        graph = program_of(f"{head}def sample({names}other):\n    return {text}\n").graph("sample")
        if graph is None:
            continue
        facts = facts_with(graph, "float32")
        try:
            for node in graph.nodes:
                facts.of(node)
            kernels(graph.nodes, facts)
        except Exception as error:
            pytest.fail(f"{text}: {type(error).__name__}: {error}")
