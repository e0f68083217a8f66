"""Liveness: which statements die when an expression goes."""

from __future__ import annotations

from textwrap import dedent

import libcst as cst
import pytest

from fuselint.source.dead import dead_statements, names_read, own_statements
from fuselint.source.function import walk


def dead(source: str, removed: str) -> list[str]:
    """First lines of the statements that die with an expression, without those inside others that do."""
    module = cst.parse_module(dedent(source).lstrip("\n"))
    function = module.body[0]
    assert isinstance(function, cst.FunctionDef)
    gone = [n for n in walk(function) if isinstance(n, cst.BaseExpression) and module.code_for_node(n) == removed]
    assert gone
    already = dead_statements(function, lambda n: True)
    found = dead_statements(function, lambda n: n not in already, gone[-1:])
    order = [s for s in own_statements(function) if s in found]
    return [module.code_for_node(s).strip().split("\n")[0] for s in order]


@pytest.mark.parametrize(
    ("source", "removed", "expected"),
    [
        ("def f(x):\n    a = x\n    b = a\n    return g(b)\n", "g(b)", ["a = x", "b = a"]),
        ("def f(x):\n    a = x\n    b = a\n    return g(b), a\n", "g(b)", ["b = a"]),
        ("def f(x):\n    a, b = x\n    return g(a), b\n", "g(a)", []),
        ("def f(x):\n    a = b = x\n    return g(a), b\n", "g(a)", []),
        ("def f(x):\n    a = x\n    a += 1\n    return g(a)\n", "g(a)", ["a = x", "a += 1"]),
        ("def f(x):\n    a = x\n    for i in x:\n        a = a + i\n    return g(a)\n", "g(a)", []),
        ("def f(x):\n    for i in x:\n        a = i\n        print(g(a))\n", "g(a)", ["a = i"]),
        ("def f(x):\n    a = 0\n    for i in x:\n        print(g(a))\n        a = i\n", "g(a)", ["a = 0", "a = i"]),
        ("def f(x):\n    a = 0\n    while a:\n        print(g(a))\n        a = x\n", "g(a)", []),
        ("def f(x):\n    a = x\n    h = lambda: a\n    return g(a), h\n", "g(a)", []),
        ("def f(x):\n    def h():\n        return x\n    return g(h)\n", "g(h)", ["def h():"]),
        ("def f(x):\n    a = x\n    def h():\n        return a\n    return g(h)\n", "g(h)", ["a = x", "def h():"]),
        ("def f(x):\n    a = x\n    return g(a), [b for b in a]\n", "g(a)", []),
        ("def f(x):\n    a = x\n    return g(a), locals()\n", "g(a)", []),
        ("def f(x):\n    a = x\n    mx.eval(x)\n    return g(a, vars=x.dir)\n", "g(a, vars=x.dir)", ["a = x"]),
        ("def f(x):\n    a = x\n    h = eval\n    return g(a), h\n", "g(a)", []),
        ("def f(x):\n    global a\n    a = x\n    return g(a)\n", "g(a)", []),
        (
            "def f(x):\n    a = x\n    try:\n        b = h(x)\n    except E:\n        return a\n    return g(a)\n",
            "g(a)",
            [],
        ),
        ("def f(x):\n    a = x\n    try:\n        return g(a)\n    finally:\n        print(a)\n", "g(a)", []),
        ("def f(x):\n    a = x\n    if x:\n        a = 1\n    return g(a)\n", "g(a)", ["a = x", "if x:", "a = 1"]),
        (
            "def f(x):\n    if x:\n        a = 1\n    elif h:\n        a = 2\n    return g(a)\n",
            "g(a)",
            ["if x:", "a = 1", "if h:", "a = 2"],
        ),
        ("def f(x):\n    if x:\n        a = 1\n    else:\n        return 2\n    return g(a)\n", "g(a)", ["a = 1"]),
        ("def f(x):\n    a = x\n    x.y = a\n    return g(a)\n", "g(a)", []),
        ("def f(x):\n    a = x\n    a[0] = 1\n    return g(a)\n", "g(a)", []),
        ("def f(x):\n    a = x\n    del a\n    return g(1)\n", "g(1)", []),
        ("def f(x):\n    a = x\n    with a as b:\n        return g(b)\n", "g(b)", []),
        ("def f(x):\n    a = x\n    match a:\n        case 1:\n            return g(a)\n", "g(a)", []),
    ],
)
def test_what_dies(source: str, removed: str, expected: list[str]) -> None:
    assert dead(source, removed) == expected


def test_sizes_may_be_read_before_a_cast() -> None:
    """`x = x.astype(...)` dies though `x.shape` is read later, but not if x itself is."""
    source = "def f(x):\n    x = x.astype(t)\n    n = x.shape[-1]\n    return g(x), n\n"
    assert dead(source, "g(x)") == ["x = x.astype(t)"]
    assert dead(source.replace("x.shape[-1]", "len(x)"), "g(x)") == []
    assert dead(source.replace("x.astype(t)", "x.T"), "g(x)") == []


def test_code_that_was_dead_before_is_left_alone() -> None:
    assert dead("def f(x):\n    unused = x\n    a = x\n    return g(a)\n", "g(a)") == ["a = x"]


def test_targets_are_not_read() -> None:
    statement = cst.parse_statement("a.b, c[d], e = f = g\n")
    assert names_read(statement) == {"a", "c", "d", "g"}
