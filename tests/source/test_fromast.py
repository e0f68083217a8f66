from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

import libcst as cst
import pytest

from fuselint.errors import TooComplex
from fuselint.source import function
from fuselint.source.fromast import Unsure, converted
from fuselint.source.function import children, parse_function
from fuselint.source.spans import functions
from fuselint.source.text import read
from tests.source.test_function import packages, parse

FORMS = '''\
if True:
    @staticmethod
    @a.b(c)
    def f(a, /, b: int = 1, *c, d, e: "x" = 2, **g) -> (int):
        """doc"""
        pass; x = y = 1;
        x.y[0], (*z, w) = q; x: int; x: int = 3; x += 1; x @= y; x //= 2; x **= 3; x >>= 1
        if a: return
        elif b:
            pass
        else: x; y
        if a:
            pass
        else:
            if b: pass
        for i, j in a, b:
            break
        else:
            continue
        while not a: x
        else: y
        with a as b, c(d) as (e, f), g: pass
        with (
            a as b,
            c,
        ):
            pass
        try:
            raise A from b
        except (B, c.D) as e: raise
        except B:
            raise x()
        except: pass
        else: pass
        finally:
            assert a, "b"
        import a.b.c as d, e
        from . import x
        from ..a.b import (c, d as e)
        global m, n
        def inner():
            nonlocal x
            yield
            y = yield a, b
            yield from c
        class A(B, c.D, metaclass=E, **kw): x = 1
        return x
    async def g(*, a, b=1):
        async with a as b: pass
        async for x in y: await z
        return [x async for x in y if a if b for z in w], {a: b for a, b in c}, {a for a in b}, (a for a in b)
    def h(*a, b): return lambda x, *y, z=1, **w: (x, y)
    def k():
        # numbers and texts
        a = 1_000, 0xFF, 1e-5, 1.j, -3, ..., None, True, not False, ~a, +b
        b = "a" 'b' f"c{d!r:>{w}}", r"\\n", b"x", u'y', \'\'\'three "quotes"\'\'\', """a
        b""", "it\\'s", '', "" "", ("a"
            "b")
        c = a + b * c @ d / e // f % g ** h << i >> j & k | l ^ m
        d = a and b and (c or d) or not e and f
        e = a < b <= c != d is not e is f not in g in h == i > j >= k
        f(a, *b, c=1, *d, **e); f(x for x in y); f((a, b)); f(a)(b).c[d]
        g = x[0], x[a, b], x[a,], x[(a, b)], x[(a), (b)], x[()], x[a:b, ::c, ..., :, None], x[(a):(b)], x[(a) + b, c]
        h = a if b else c, (y := 1), [*a, b], {*a, b}, {**a, b: c}, (), [], {}, (a,), ((a), b)
        print((yield))
'''


def same(left: cst.CSTNode, right: cst.CSTNode) -> bool:
    """Whether two trees say the same, but for layout, of which one may have nothing."""
    if type(left) is not type(right):
        return False
    for name in type(left).__dataclass_fields__:
        if hasattr(left, name):
            one, other = getattr(left, name), getattr(right, name)
            if isinstance(other, str) and one != other:
                return False
            if isinstance(other, Sequence) or name == "asynchronous":
                assert type(one) is type(other)
    if isinstance(left, cst.Subscript) and isinstance(right, cst.Subscript) and len(right.slice) == 1:  # `x[a,]`
        assert type(left.slice[0].comma) is type(right.slice[0].comma)
    ours, theirs = children(left), children(right)
    return len(ours) == len(theirs) and all(map(same, ours, theirs))


def test_every_form_is_as_libcst_parses_it() -> None:
    assert same(converted(FORMS), cst.parse_module(FORMS))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_change_nothing(newline: str) -> None:
    text = FORMS.replace("\n", newline)
    assert same(converted(text), cst.parse_module(text))


def test_names_that_are_no_ascii_stay_as_they_are() -> None:
    text = "def f(é, x):\n    return é.ü + 'ﬁ and ｗ'.replace('x', é)\n"
    with pytest.raises(Unsure):  # one of the texts has another normal form, as a name might have
        converted(text)
    text = "def f(é, x):\n    return é.ü + '日本'.replace('x', é)[(é):'日本', 1]\n"
    assert same(converted(text), cst.parse_module(text))


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    match x:\n        case 1: pass\n",
        "def f(x):\n    del x, y\n",
        "def f(x):\n    if x: \\\n        y = 1\n",
        "def f(x):\n    return ｗidth\n",
        "def f(x):\n\x0c    return x\n",
        "def f(x):\r    return x\r",
    ],
)
def test_what_is_unsure_is_left_to_libcst(text: str) -> None:
    with pytest.raises(Unsure):
        converted(text)
    source = parse(text.replace("\r", "\n"), "f")
    assert source.span(source.node) == (source.start, source.end)


def test_what_libcst_cannot_parse_is_refused_at_once() -> None:
    with pytest.raises(TooComplex, match="can't be parsed alone"):
        parse("def f(x):\n    (x): int = 1\n", "f")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_type_parameters_are_left_to_libcst() -> None:
    with pytest.raises(Unsure):
        converted("def f[T](x: T) -> T:\n    return x\n")


def test_functions_of_real_code_are_as_libcst_parses_them() -> None:
    count = refused = 0
    for path in [path for package in packages() for path in sorted(package.rglob("*.py"))][::7]:
        file = read(path)
        for span, _ in functions(file, ast.parse(file.text)):
            source = parse_function(file, span)
            exact = function._definition(cst.parse_module(source._parsed))
            assert exact is not None
            assert same(source.node, exact)
            count += 1
            try:
                converted(source._parsed)
            except Unsure:
                refused += 1
    assert count > 300
    assert refused < count / 20


def test_a_tree_that_libcst_has_otherwise_has_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    source = parse("def f(x):\n    return x\n", "f")
    monkeypatch.setattr(function.cst, "parse_module", lambda text: cst.Module([]))
    with pytest.raises(TooComplex, match="positions can't be told"):
        source.span(source.node)


def test_only_what_asks_for_a_place_has_layout_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function.cst, "parse_module", lambda text: pytest.fail("parsed"))
    assert isinstance(children(parse("def f(x):\n    return x\n", "f").node)[0], cst.Name)
