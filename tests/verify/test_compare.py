"""When two results count as equal."""

import math
from dataclasses import replace

import pytest

from fuselint.finding import Region, RegionInput

mx = pytest.importorskip("mlx.core")

from fuselint.verify.compare import structure, values  # noqa: E402
from fuselint.verify.judge import judge  # noqa: E402


def array(*numbers, dtype=mx.float32):
    return mx.array(list(numbers), dtype=dtype)


def judged(before, after, reference, dtype=mx.float32, **more):
    with mx.stream(mx.cpu):
        return values(
            array(*before, dtype=dtype), array(*after, dtype=dtype), array(*reference, dtype=mx.float64), **more
        )


def test_structure():
    x = array(1.0, 2.0)
    assert structure((x, {"a": x}), [x, {"a": x}]) == ""
    assert "1 values instead of 2" in structure((x, x), (x,))
    assert "shape of result[0]" in structure((x,), (x[None],))
    assert "dtype of result is float16" in structure(x, x.astype(mx.float16))
    assert (
        structure(x, x.astype(mx.float16), dtypes="any") == structure(x, x.astype(mx.float16), dtypes="no wider") == ""
    )
    assert "dtype of result is float32" in structure(x.astype(mx.float16), x, dtypes="no wider")
    assert "a float instead of an array" in structure(x, 1.0)
    assert "3 instead of 2" in structure(2, 3)


def test_one_rounding_is_allowed_and_no_more():
    assert not judged([1, 2], [1 + 5e-7, 2], [1, 2]).wrong
    assert judged([1, 2], [1 + 5e-6, 2], [1, 2]).wrong
    assert not judged([1, 2], [1 + 2e-3, 2], [1, 2], mx.float16).wrong
    assert judged([1, 2], [1 + 8e-3, 2], [1, 2], mx.float16).wrong


def test_an_error_before_is_allowed_after():
    assert not judged([1.001, 2], [1.001, 2], [1, 2]).wrong
    assert judged([1.001, 2], [1.01, 2], [1, 2]).wrong


def test_not_judged_values_must_still_be_finite():
    assert not judged([1, 2], [1.5, 2], [1, 2], mx.float16, judged=False).wrong
    assert judged([1, 2], [math.nan, 2], [1, 2], mx.float16, judged=False).wrong


def test_repairs():
    got = judged([math.inf, math.nan, 0, 2], [1, 1, 1, 2], [1, 1, 1, 2])
    assert not got.wrong
    assert got.repaired == 3
    assert got.before == 0  # lost values say nothing of the rest


def test_a_lost_value_hides_nothing():
    """Where one value overflowed before, the others are still judged, and it must not get worse."""
    assert judged([math.inf, 2], [1, 2.01], [1, 2]).wrong
    assert judged([math.inf, 2], [5, 2], [1, 2]).wrong
    assert judged([0, 2], [-5, 2], [1, 2]).wrong
    assert not judged([0, 2], [0, 2], [1, 2]).wrong
    assert not judged([math.inf, 2], [math.inf, 2], [1, 2]).wrong


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [(math.nan, math.nan, True), (math.inf, math.inf, True), (math.inf, -math.inf, False), (math.nan, 0.0, False)],
)
def test_true_infinities_and_nans_stay(before, after, same):
    reference = math.nan if math.isnan(before) else before
    assert bool(judged([before, 1], [after, 1], [reference, 1]).wrong) is not same


def test_what_was_finite_stays_finite():
    assert "were finite" in judged([1, 1], [math.inf, 1], [1, 1]).wrong


def test_a_value_beyond_the_dtype_is_infinite():
    assert not judged([math.inf, 1], [math.inf, 1], [1e6, 1], mx.float16).wrong


def test_integers_are_exact():
    assert not values(mx.array([1, 2]), mx.array([1, 2]), mx.array([1, 2])).wrong
    assert "1 of 2 values differ" in values(mx.array([1, 2]), mx.array([1, 3]), mx.array([1, 2])).wrong


def test_nothing_to_compare():
    assert not values(mx.zeros((0, 3)), mx.zeros((0, 3)), mx.zeros((0, 3))).wrong


ANGLES = """n = mx.arange(22, dtype=mx.float32)
f = 1.0 / {powers}
result = mx.minimum(mx.abs(x) + 2, mx.sin(n[:, None] * f))
"""
POWERS = "(10000.0 ** (mx.arange(0, 64, 2, dtype=mx.float32) / 64))"
BY_EXP = "mx.exp(mx.arange(32, dtype=mx.float32) / 32 * {log})"


def test_roundings_of_the_steps_before_count_as_its_error() -> None:
    """A sine of large angles keeps few digits, whoever computes them: 4 ulp by powers here, 12 by exp."""
    by_exp = ANGLES.format(powers=BY_EXP.format(log=math.log(10000)))
    inputs = (RegionInput("x", "array", ("22", "32"), dtype="float32"),)
    region = Region("FUS221", inputs, ANGLES.format(powers=POWERS), by_exp)
    assert judge(region, 0, lambda text: None).outcome == "passed"
    wrong = ANGLES.format(powers=BY_EXP.format(log=math.log(10001)))
    assert judge(replace(region, after=wrong), 0, lambda text: None).outcome == "failed"


def test_a_lucky_result_is_no_bound_for_another() -> None:
    reference = mx.array([1.0, 0.5], dtype=mx.float64)
    before, after = mx.array([1.0, 0.5]), mx.array([1.0 + 2.0**-19, 0.5])
    assert values(before, after, reference).wrong
    assert not values(before, after, reference, inherent=2.0**-20).wrong
    assert values(before, after, reference, inherent=2.0**-23).wrong
