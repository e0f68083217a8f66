"""How new code is laid out."""

from __future__ import annotations

import ast

import pytest

from fuselint.source.layout import Page, brackets, chain, delimited, has_spaced_powers, is_atom, one_line, width_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(\n    a,\n    b + c,\n)", "f(a, b + c)"),
        ("(\n    a,\n)", "(a,)"),
        ("a  +  b", "a  +  b"),
        ("a\n+ b", "a + b"),
        ("x[\n    1:2,\n]", "x[1:2,]"),
        ("f(a)\n.b(c)\n.d", "f(a).b(c).d"),
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
    assert chain("mx.f(a.b(c)).d(e)[0].g()") == ["mx.f(a.b(c))", ".d(e)[0]", ".g()"]
    assert chain("((a + b)).T.g(c.d())") == ["((a + b))", ".T.g(c.d())"]
    assert chain("a.b.c(d).e") == ["a.b.c(d)", ".e"]
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
        "[f(aaa, bb) for aaa, bb in ((ccc, dd), (eee, ff)) if aaa if (bb or ccc)]",
        "f(lambda a, b: a + b, cccccccc, [d for d, in eeee for _ in f])",
    ],
)
def test_broken_code_means_the_same_and_keeps_to_the_width(text: str, width: int) -> None:
    done = Page("    ", width, "\n").value("x = ", text, "", "")
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
        Page("    ", 60, "\n").value("    return ", text, "", "    ")
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
    assert Page("    ", 60, "\n").value("return ", text, "", "") == (
        "mx.fast.rms_norm(values, weight, self.eps).astype(\n    dtype\n)"
    )
    assert Page("    ", 50, "\n").value("return ", text, "", "") == (
        "mx.fast.rms_norm(\n    values, weight, self.eps\n).astype(dtype)"
    )


def test_strings_and_comments_say_nothing_of_the_width() -> None:
    assert width_of("x = 1  # " + "x" * 95 + "\n" + ('y = "' + "y" * 95 + '"\n') * 3) == 88


CALL = "mx.fast.rope(queries_of_the_layer, dims_of_a_head)"
SHORT = "mx.fast.rope(queries, dims)"


@pytest.mark.parametrize(
    ("before", "text", "lines"),
    [
        ("h = ", f"{SHORT}.reshape(shape_of_the_queries)", (f"{SHORT}.reshape(", "    shape_of_the_queries", ")")),
        ("return ", f"{CALL}.T.T.T", ("mx.fast.rope(", "    queries_of_the_layer, dims_of_a_head", ").T.T.T")),
        (
            "return ",
            f"{CALL}.transpose(0, 2)[0].astype(mx.float32)",
            ("(", f"    {CALL}", "    .transpose(0, 2)[0]", "    .astype(mx.float32)", ")"),
        ),
        ("return ", f"{SHORT} + {CALL}", (f"{SHORT} + mx.fast.rope(", "    queries_of_the_layer, dims_of_a_head", ")")),
        ("return ", f"{CALL} + {CALL} * w", ("(", f"    {CALL}", f"    + {CALL} * w", ")")),
        ("return ", f"{CALL} + {SHORT}[:, None]", ("(", f"    {CALL}", f"    + {SHORT}[:, None]", ")")),
        ("return ", f"{CALL} + x + {CALL}", ("(", f"    {CALL}", "    + x", f"    + {CALL}", ")")),
        ("x = ", f"({CALL} + y) * cosines", ("(", f"    {CALL} + y", ") * cosines")),
        ("x, y = ", f"{CALL}, {CALL}", ("(", f"    {CALL},", f"    {CALL},", ")")),
        ("return ", f"{SHORT}, {CALL}", (f"{SHORT}, mx.fast.rope(", "    queries_of_the_layer, dims_of_a_head", ")")),
        ("return ", f"[{CALL}, y]", ("[", f"    {CALL},", "    y,", "]")),
        (
            "return ",
            f"[{SHORT} for queries, dims in (a, b) if queries]",
            ("[", f"    {SHORT}", "    for queries, dims in (a, b)", "    if queries", "]"),
        ),
        ("return ", f"{CALL} if cosines else None", ("(", f"    {CALL}", "    if cosines", "    else None", ")")),
    ],
)
def test_values_are_broken_as_ruff_breaks_them(before: str, text: str, lines: tuple[str, ...]) -> None:
    assert Page("    ", 60, "\n").value(before, text, "", "").split("\n") == list(lines)
    assert Page("\t", 60, "\r\n").value(before, text, "", "").split("\r\n") == [x.replace("    ", "\t") for x in lines]
    assert Page("    ", 150, "\n").value(before, text, "", "") == text


def test_docstrings_say_nothing_of_the_width() -> None:
    assert width_of(f'def f():\n    """Said\n    in {"so many words " * 8}\n    """\n' * 3) == 88


def test_powers_are_spelled_as_the_file_spells_them() -> None:
    text = "f(d ** -0.5, a.b ** 2, x[0] ** 2, g(y) ** 2, x ** g(y), c ** d.e)"
    assert (
        Page("    ", 88, "\n").value("", text, "", "") == "f(d**-0.5, a.b**2, x[0] ** 2, g(y) ** 2, x ** g(y), c**d.e)"
    )
    assert Page("    ", 88, "\n", spaced=True).fit("", text, "", "") == text
    assert has_spaced_powers("y = x ** 2\n")
    assert not has_spaced_powers('"""x ** 2"""\ny = x**2 + f(x) ** 2  # x ** 2\n')


@pytest.mark.parametrize("text", ["f(" * 290 + "a + b" + ")" * 290, " + ".join(map("a{}".format, range(3000)))])
def test_what_is_too_deep_stays_on_its_line(text: str) -> None:
    assert Page("    ", 88, "\n").value("x = ", text, "", "") == text
    assert Page("    ", 88, "\n").fit("x = ", text, "", "") == text
