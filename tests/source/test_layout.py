"""How new code is laid out."""

from __future__ import annotations

import ast

import pytest

from fuselint.source.layout import brackets, chain, delimited, fit, is_atom, one_line, width_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(\n    a,\n    b + c,\n)", "f(a, b + c)"),
        ("(\n    a,\n)", "(a,)"),
        ("a  +  b", "a  +  b"),
        ("a\n+ b", "a + b"),
        ("x[\n    1:2,\n]", "x[1:2,]"),
        ("f(\n    # why\n    a\n)", None),
        ('f("""a\nb""")', None),
    ],
)
def test_one_line(text: str, expected: str | None) -> None:
    assert one_line(text) == expected


def test_is_atom() -> None:
    assert all(map(is_atom, ["a", "a.b", "a(b)", "a[b]", "[a]", "(a, b)", "'a'", "None"]))
    assert not any(map(is_atom, ["a + b", "-a", "a if b else c", "lambda: a", "a, b", "1.5", "not a", "a < b"]))


def test_delimited() -> None:
    assert delimited("f(", ", b)") and delimited("f(a=", ")") and delimited("", "")
    assert not delimited("f(", ".T)") and not delimited("a * ", "") and not delimited("a == ", "")


def test_a_call_and_its_methods() -> None:
    assert chain("mx.f(a.b(c)).d(e)[0].g()") == ["mx.f(a.b(c)).d(e)[0].g()"]
    assert chain("mx.f(a.b(c)).d(e).g()") == ["mx.f(a.b(c))", ".d(e)", ".g()"]
    assert chain("mx.é(ü).d(e)") == ["mx.é(ü)", ".d(e)"]


def test_brackets() -> None:
    assert [(b.parts) for b in brackets("f(a, g(b, c), *d)[1, 2].h()")] == [("a", "g(b, c)", "*d"), ("1", "2")]


@pytest.mark.parametrize("width", [10, 20, 30, 40, 88])
@pytest.mark.parametrize(
    "text",
    [
        "f(aaaa, bbbb(cccc, dddd), eeee=ffff).g(h)",
        "f(*args)",
        "f(a for a in b)",
        "name",
        "f(a=1 / (bbbbbbb if cccccccc else ddd))",
        "a * (bbbbb + ccccc)",
        "x[aaaaaaaaa + bbbbb:c]",
        "(aaaaaaaaaaa, )",
        "a if (bbbbbbbbb) else [ccccccccccc]",
        "f(a)(bbbbbbbb + ccccccc)[dddddddddddddddd]",
    ],
)
def test_broken_code_means_the_same_and_keeps_to_the_width(text: str, width: int) -> None:
    done = fit("x = ", text, "", "", "    ", width, "\n")
    assert ast.dump(ast.parse("x = " + done)) == ast.dump(ast.parse("x = " + text))
    if width >= 30:
        assert max(map(len, ("x = " + done).split("\n"))) <= width


def test_the_width_of_a_file() -> None:
    assert width_of("a = 1\n") == 88
    assert width_of(("x" * 95 + "\n") * 3) == 100
    assert width_of("x" * 95 + "\n") == 100
    broken = f"y = call(\n    {'a' * 80}\n)\n"
    assert width_of(("x" * 95 + "\n") * 2 + broken) == 88, "what would fit 95 columns is broken: they slipped in"
    assert width_of(("x" * 95 + "\n") * 3 + broken) == 100
    assert width_of("x" * 95 + "\n" + broken.replace("a\n", "a,\n")) == 100, "a comma keeps it broken at any width"
    assert width_of(("x" * 130 + "\n") * 5) == 120


def test_a_long_formula_is_cut_before_its_operators_as_ruff_does() -> None:
    text = (
        "-(mx.log(aaaaaaaaaa * (bbbbbbbbbb + 2 * cccccccccc + dddddddddd * (1 - eeeeeeeeee)) + 1e-8)"
        " - 2 * mx.log(mx.abs(aaaaaaaaaa + (bbbbbbbbbb - cccccccccc) * dddddddddd) + 1e-8))"
    )
    assert (
        fit("    return ", text, "", "    ", "    ", 60, "\n")
        == """\
-(
        mx.log(
            aaaaaaaaaa
            * (
                bbbbbbbbbb
                + 2 * cccccccccc
                + dddddddddd * (1 - eeeeeeeeee)
            )
            + 1e-8
        )
        - 2
        * mx.log(
            mx.abs(
                aaaaaaaaaa
                + (bbbbbbbbbb - cccccccccc) * dddddddddd
            )
            + 1e-8
        )
    )"""
    )


def test_the_last_call_of_several_is_broken_where_the_others_fit() -> None:
    text = "mx.fast.rms_norm(values, weight, self.eps).astype(dtype)"
    assert fit("return ", text, "", "", "    ", 60, "\n") == (
        "mx.fast.rms_norm(values, weight, self.eps).astype(\n    dtype\n)"
    )
    assert fit("return ", text, "", "", "    ", 50, "\n") == (
        "mx.fast.rms_norm(\n    values, weight, self.eps\n).astype(dtype)"
    )


def test_strings_and_comments_say_nothing_of_the_width() -> None:
    assert width_of("x = 1  # " + "x" * 95 + "\n" + ('y = "' + "y" * 95 + '"\n') * 3) == 88
