from __future__ import annotations

import ast
import importlib.util
import sys
import textwrap
from pathlib import Path

import libcst as cst
import pytest
from libcst._nodes.internal import CodegenState

import fuselint
from fuselint.errors import TooComplex
from fuselint.source import function
from fuselint.source.function import FunctionSource, parse_function, walk
from fuselint.source.spans import FunctionSpan, functions
from fuselint.source.text import FileText, read


def spans(text: str) -> dict[str, FunctionSpan]:
    file = FileText("m.py", text)
    return {span.qualname: span for span, _ in functions(file, ast.parse(text))}


def parse(text: str, qualname: str) -> FunctionSource:
    return parse_function(FileText("m.py", text), spans(text)[qualname])


ODD = '''\
import mlx.core as mx
é = 1

class A:
\t"""doc"""

\t@staticmethod
\t@decorate( # @ not this one
\t\tx=1)
\tdef f(é, x,
\t      y=(1,
\t         2)):  # noqa
\t\ts = """one
  two é😀
\t"""
\t\treturn (x
\t\t        + é) * y  # trailing
\t# after

\tg = lambda x, é=2: (x +
\t\té)
\x0c
if é:
    async def h(x):
        def inner(y): return y; z = 1
        return [inner(v) async for v in x]
else:
    def h(x): return x
last = lambda: 0'''


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("qualname", ["A.f", "A.g", "h", "h.<locals>.inner", "last"])
def test_a_function_is_parsed_as_it_stands(qualname: str, newline: str) -> None:
    text = ODD.replace("\n", newline)
    source = parse(text, qualname)
    assert source.span(source.node) == (source.start, source.end)
    starts = {
        "A.f": "@staticmethod",
        "A.g": "lambda x, é",
        "h": "def h",
        "h.<locals>.inner": "def inner",
        "last": "lambda:",
    }
    ends = {"A.f": ") * y", "A.g": "é)", "h": "return x", "h.<locals>.inner": "z = 1", "last": "0"}
    assert source.text.startswith(starts[qualname])
    assert source.text.endswith(ends[qualname])


def test_spans_know_class_outer_function_lines_and_indentation() -> None:
    found = spans(ODD)
    assert list(found) == ["A.f", "A.g", "h", "h.<locals>.inner", "last"]
    f = found["A.f"]
    assert (f.class_name, f.outer, f.line, f.header) == ("A", None, 10, (7, 12))
    assert (found["h.<locals>.inner"].class_name, found["h.<locals>.inner"].outer) == (None, "h")
    assert found["last"].is_lambda
    assert parse(ODD, "A.f").indent == "\t"
    assert parse(ODD, "last").indent == ""


def test_the_parentheses_of_an_expression_can_be_had_or_not() -> None:
    text = "def f(x, y):\n    return ((x + y)) * (x, (y)) + sum(i for i in (x))\n"
    source = parse(text, "f")
    found = {source.code(n): n for n in walk(source.node) if isinstance(n, cst.BaseExpression)}
    assert {"x + y", "(x, (y))", "i for i in (x)"} <= set(found)
    start, end = source.outer_span(found["x + y"])
    assert text[start:end] == "((x + y))"


def test_lines_of_a_compound_statement_are_its_header() -> None:
    text = "def f(x):\n    if (x and\n        x):  # here\n        y = (1 +\n            2)\n    for i in x: y = i\n"
    source = parse(text, "f")
    kinds = (cst.If, cst.For, cst.SimpleStatementLine)
    assert [source.lines(n) for n in walk(source.node) if isinstance(n, kinds)] == [(2, 3), (4, 5), (6, 6)]


def test_walk_goes_in_source_order_and_sees_no_layout() -> None:
    source = parse("@d\ndef f(a, *b, c=1, **e) -> r:\n    return [x if y else z for y in w]\n", "f")
    names = [n.value for n in walk(source.node) if isinstance(n, cst.Name)]
    assert names == ["d", "f", "a", "b", "c", "e", "r", "x", "y", "z", "y", "w"]
    assert not [n for n in walk(source.node) if isinstance(n, (cst.SimpleWhitespace, cst.Comma, cst.Comment))]


@pytest.mark.parametrize(
    "body",
    [
        "return " + " + ".join(["x"] * 1000),
        "return " + "-" * 1000 + "x",
        "return x" + ".y" * 1000,
        "if x: pass\n" + "".join(f"    elif x == {i}: pass\n" for i in range(500)),
        "return (x\n" + "".join("    + x\n" for _ in range(500)) + ")",
        "return " + " and ".join(["x"] * 20_000),
        "return (" + "'a' " * 1000 + ")",
        "return [x " + "for y in x " * 400 + "]",
        "if " + " or ".join(["x"] * 1000) + ": pass",
        "def g(y=" + "-" * 400 + "1): pass",
        "g = lambda: " + "not " * 400 + "x",
        "class A:\n        @d(" + "-" * 400 + "1)\n        def g(self): pass",
    ],
    ids=[
        "operators",
        "signs",
        "attributes",
        "elifs",
        "lines",
        "ands",
        "texts",
        "fors",
        "test",
        "default",
        "lambda",
        "decorator",
    ],
)
def test_what_is_too_deep_for_libcst_is_refused_before_it_is_parsed(body: str) -> None:
    text = f"def f(x):\n    {body}\n"
    with pytest.raises(TooComplex, match=r"m\.py:1: f is \d+ levels deep \(at most 300\)"):
        parse(text, "f")


@pytest.mark.parametrize(
    "expression",
    [
        " + ".join(["x"] * 250),
        " and ".join(["x"] * 250),
        "'a' " * 250 + "'b'",
        "(" * 150 + "x" + ")" * 150,
        "f(" * 140 + "x" + ")" * 140,
        "x" + ".y(1)" * 140,
    ],
    ids=["operators", "ands", "texts", "parentheses", "calls", "methods"],
)
def test_what_is_deep_but_not_too_deep_has_positions(expression: str) -> None:
    source = parse(f"def f(x):\n    return {expression}\n", "f")
    assert source.span(source.node) == (source.start, source.end)
    bare = expression.strip("()") if expression.startswith("((") else expression
    assert bare in [source.code(n) for n in walk(source.node)]


def test_a_long_function_of_short_statements_is_not_deep() -> None:
    text = "def f(x):\n" + "    x = g(x)\n" * 5_000
    assert spans(text)["f"].depth < 10
    assert parse(text, "f").lines is not None


def packages() -> list[Path]:
    """Real code: this package, and MLX's own layers where MLX is installed."""
    out = [Path(fuselint.__file__).parent]
    found = importlib.util.find_spec("mlx")
    if found is not None and found.submodule_search_locations:
        out.append(Path(next(iter(found.submodule_search_locations))) / "nn")
    return out


PARTS = 4
"""Each Python looks at one of so many parts of the code by itself, and one of them at all of it."""


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part == sys.version_info.minor % PARTS else pytest.mark.slow)
        for part in range(PARTS)
    ],
)
def test_every_expression_of_real_code_has_the_position_that_ast_gives_it(part: int) -> None:
    count = 0
    for path in [path for package in packages() for path in sorted(package.rglob("*.py"))][part::PARTS]:
        file = read(path)
        assert file.encode(file.text) == path.read_bytes()
        for span, node in functions(file, ast.parse(file.text)):
            if span.outer is not None:
                continue
            source = parse_function(file, span)
            known = {
                (file.ast_offset(e.lineno, e.col_offset), file.ast_offset(e.end_lineno or 0, e.end_col_offset or 0))
                for e in ast.walk(node)
                if isinstance(e, ast.expr)
            }
            assert source.span(source.node) == (source.start, source.end)
            for expression in walk(source.node):
                if isinstance(expression, (cst.Call, cst.BinaryOperation, cst.Subscript, cst.IfExp, cst.Comparison)):
                    assert source.span(expression) in known
                    count += 1
    assert count > 1000


def test_a_libcst_that_prints_otherwise_gives_no_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    source = parse("def f(x):\n    return x\n", "f")
    monkeypatch.setattr(function._Positions, "record_syntactic_position", CodegenState.record_syntactic_position)
    with pytest.raises(TooComplex, match="positions can't be told"):
        source.span(source.node)


def test_strings_keep_their_indentation() -> None:
    text = textwrap.dedent(
        '''
        class A:
            def f(self):
                return """
            inside
        at the margin
        """
        '''
    )
    source = parse(text, "A.f")
    found = next(n for n in walk(source.node) if isinstance(n, cst.SimpleString))
    assert found.evaluated_value == "\n    inside\nat the margin\n"
