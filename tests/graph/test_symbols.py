"""Sizes: exact arithmetic, and the text that a person would write."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuselint.graph.symbols import Expr, evaluate, product, readable

B, T, H, L, S, D, G = (Expr.name(n) for n in "BTHLSDG")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (2 * D * T, "2*T*D"),
        (D * L * B * 36, "36*B*L*D"),
        (B * H * L * L, "B*H*L*L"),
        ((L + S) * D, "L*D + S*D"),
        (S - L + 1, "-L + S + 1"),
        (D - D, "0"),
        (-L, "-L"),
        ((3 * L) / 2, "3*L/2"),
        (L // 2, "L//2"),
        (B * (H // G), "B*(H//G)"),
        ((L + 1) // 2 * D, "D*((L + 1)//2)"),
        (Expr.max(L, S) * D, "D*max(L, S)"),
        (Expr.name("args.hidden_size") * B, "B*args.hidden_size"),
        (Expr.name("x.shape[-1]") * 4 * T, "4*T*x.shape[-1]"),
        (Expr.name("x.shape[-1]") // 2, "x.shape[-1]//2"),
        (Expr.of(0), "0"),
        (Expr.of(7), "7"),
    ],
)
def test_text(expression: Expr, text: str) -> None:
    assert str(expression) == text


def test_division_is_exact_where_it_can_be() -> None:
    assert (H * G * D) // G == H * D
    assert (L * D + S * D) // (L + S) == D
    assert (L * L - 1) // (L - 1) == L + 1
    assert (6 * L) // 4 == (3 * L) // 2
    assert str((6 * L) // 4) == "3*L//2"
    assert (B * L * D) // (B * L * H) == D // H
    assert Expr.of(7) // 2 == 3
    assert (2 * L) // 2 == L
    assert (2 * L + 1) // 2 == L
    assert (4 * L * D - 1) // 2 == 2 * L * D - 1


def test_a_division_that_is_not_exact_is_an_opaque_size() -> None:
    quotient = H // G
    assert quotient * G != H
    assert quotient == H // G
    assert quotient.substitute({"H": 32, "G": 8}) == 4
    assert quotient.substitute({"G": 1}) == H
    with pytest.raises(ValueError, match="does not divide"):
        _ = H / G


def test_maximum_of_sizes_that_broadcast() -> None:
    assert Expr.max(L, 1) == L
    assert Expr.max(1, L) == L
    assert Expr.max(L, L) == L
    assert Expr.max(3, 5) == 5
    assert Expr.max(L, S) == Expr.max(S, L)
    assert Expr.max(Expr.max(L, S), L) == Expr.max(L, S)
    assert Expr.max(L, S).substitute({"L": 3, "S": 7}) == 7


def test_values_and_names() -> None:
    assert (2 * T * D).substitute({"T": 3}) == 6 * D
    assert (2 * T * D).substitute({"T": 3, "D": 4}).value() == 24
    assert (2 * T * D).value() is None
    assert (T * D + H // G).names == {"T", "D", "H", "G"}
    assert product((B, 2, L)) == 2 * B * L
    assert Expr.of(Fraction(7, 2)).value() == 4, "half a byte is a byte"


def test_equal_sizes_are_one_key() -> None:
    assert {L * D: 1}[D * L] == 1
    assert hash(Expr.of(3)) == hash(3) and Expr.of(3) == 3
    assert L != "L"


names = st.sampled_from("BHLSD")
sizes = st.recursive(
    st.one_of(st.integers(-4, 9).map(Expr.of), names.map(Expr.name)),
    lambda inner: st.tuples(inner, inner, st.sampled_from("+-*")).map(
        lambda t: t[0] + t[1] if t[2] == "+" else t[0] - t[1] if t[2] == "-" else t[0] * t[1]
    ),
    max_leaves=6,
)
values = {"B": 2, "H": 3, "L": 5, "S": 7, "D": 11}


@settings(max_examples=150, deadline=None)
@given(sizes, sizes)
def test_arithmetic_is_that_of_integers(a: Expr, b: Expr) -> None:
    x, y = a.substitute(values).value(), b.substitute(values).value()
    assert x is not None and y is not None
    assert (a + b).substitute(values) == x + y
    assert (a - b).substitute(values) == x - y
    assert (a * b).substitute(values) == x * y
    if y:
        assert (a // b).substitute(values) == x // y
    if b != 0:
        assert (a * b) // b == a


@settings(max_examples=150, deadline=None)
@given(sizes)
def test_text_is_the_size(a: Expr) -> None:
    assert eval(str(a), dict(values)) == a.substitute(values).value()


def test_a_divisor_that_assumed_numbers_make_nothing_is_one() -> None:
    size = Expr.name("T") // (Expr.name("B") // 2)
    assert size.substitute({"B": 1, "T": 8}) == 8


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ("2*T*D + 2*K*D", "2*T*D + 2*K*D"),  # short enough
        (
            "4*batch*head_dim*groups*kv_heads*length + 4*batch*head_dim*kv_heads*length",
            "4*batch*head_dim*kv_heads*length*(groups + 1)",
        ),
        (
            "20*B*L*d_model - 20*B*d_model*kernel_size + 40*B*d_model*((kernel_size - 1)//2)",
            "20*B*d_model*(L - kernel_size + 2*((kernel_size - 1)//2))",
        ),
        ("44*B*T*T*n_heads + 12*B*T*head_dim*n_heads + 4*B*T*T", "4*B*T*n_heads*(11*T + 3*head_dim) + 4*B*T*T"),
        (
            "6*B*N*rows*columns - 2*in_dims*out_dims - 2*B*rows*columns",
            "2*B*columns*rows*(3*N - 1) - 2*in_dims*out_dims",
        ),
    ],
)
def test_a_long_formula_is_read_with_brackets(terms: str, text: str) -> None:
    names = {n: Expr.name(n) for n in re.findall(r"[A-Za-z_]\w*", terms)}
    size = eval(terms, dict(names))
    assert readable(size) == text
    at = {n: 3 + i for i, n in enumerate(sorted(names))}
    assert evaluate(text, at) == evaluate(str(size), at)
