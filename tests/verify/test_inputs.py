"""The made-up inputs: sizes agree, values and layouts are what they say, the same seed gives the same."""

import dataclasses
import math

import pytest

mx = pytest.importorskip("mlx.core")

from fuselint.finding import Region, RegionInput  # noqa: E402
from fuselint.verify.inputs import (  # noqa: E402
    BadInput,
    Case,
    Inputs,
    assignments,
    cases,
    eps_names,
    eps_values,
    scalar_choices,
    size,
)


def region(*inputs, before="result = x", **more):
    return Region("FUS000", inputs, before, before, **more)


def made(given, case, seed=0):
    return Inputs(region(given), case, seed).array(given.name)


X = RegionInput("x", "array", ("...", "D"))


def test_sizes():
    assert size("64", {}) == 64
    assert size("4*D // n + 1", {"D": 6, "n": 3}) == 9
    assert size("self.dims * 2", {"self.dims": 5}) == 10
    for bad in ("D", "D ** 2", "D // 0"):
        with pytest.raises(BadInput):
            size(bad, {"D": 2} if bad != "D" else {})


def test_an_axis_that_leaves_no_rest_is_a_multiple():
    w, s = (RegionInput(n, "array", ("N", axis), "activation") for n, axis in (("w", "D*3/32"), ("s", "D/24")))
    for sizes in assignments(region(w, s)):
        assert sizes["D"] % 96 == 0 and size("D*3/32", sizes) * 32 == 3 * sizes["D"]


def test_assignments_tell_axes_apart():
    q, k = RegionInput("q", "array", ("B", "H", "L", "D")), RegionInput("k", "array", ("B", "H", "S", "D"))
    for sizes in assignments(region(q, k))[:2]:
        assert len(set(sizes.values())) == len(sizes) == 5
    assert any(set(sizes.values()) == {8} for sizes in assignments(region(q, k)))
    assert any(sizes["D"] % 2 for sizes in assignments(region(q, k)))


def test_large_inputs_are_not_made():
    with pytest.raises(BadInput, match="too large"):
        made(RegionInput("x", "array", ("D", "D", "D", "D")), Case({"D": 64}))


def test_shapes_and_dtypes():
    case = Case({"D": 6}, lead=(2, 3), dtype="bfloat16")
    assert made(X, case).shape == (2, 3, 6)
    assert made(X, case).dtype == mx.bfloat16
    weight = RegionInput("w", "array", ("D",), "weight")
    assert made(weight, Case({"D": 6}, dtype="bfloat16", weight_dtype="float32")).dtype == mx.float32
    assert made(RegionInput("t", "array", ("D",), "float32"), case).dtype == mx.float32
    ids = made(RegionInput("ids", "array", ("D",), "int"), case)
    assert ids.dtype == mx.int32
    assert 0 <= ids.min().item() <= ids.max().item() < 6
    assert made(RegionInput("m", "array", ("D", "D"), "bool"), case).dtype == mx.bool_


def test_unknown_shapes_broadcast():
    given = region(RegionInput("a", "array"), RegionInput("b", "array"), RegionInput("w", "array", dtype="weight"))
    for sizes in assignments(given):
        inputs = Inputs(given, Case(sizes, lead=(2,)), 0)
        assert inputs.array("a").shape == inputs.array("b").shape
        assert inputs.array("w").shape == inputs.array("a").shape[-1:]


def test_values():
    big = made(X, Case({"D": 8}, (64,), "float16", style="large"))
    assert 200 < mx.abs(big).max().item() <= 300
    small = region(X, RegionInput("eps", "scalar", value=1e-6))
    rows = Inputs(small, Case({"D": 64}, (8,), style="small rows"), 0).array("x")
    scales = mx.sqrt(rows.square().mean(-1)).tolist()
    assert 0.0 in scales
    assert any(0.5e-3 < s < 2e-3 for s in scales)
    special = made(X, Case({"D": 8}, (12,), style="special"))
    assert {0.0, 1.0, 8.0} <= set(special.square().sum(-1).tolist())
    assert any(math.copysign(1, v) < 0 for v in special[1].tolist())  # the row of negative zeros


def test_masks_leave_no_row_without_a_key():
    additive, boolean = RegionInput("m", "array", ("L", "S"), "mask"), RegionInput("m", "array", ("L", "S"), "bool")
    for turn in range(6):
        case = Case({"L": 9, "S": 5}, turn=turn)
        assert (made(additive, case).max(-1) > -10).all().item()
        assert made(boolean, case).any(-1).all().item()
    kinds = [made(additive, Case({"L": 9, "S": 5}, turn=t)) for t in range(3)]
    assert [bool((k < -1e8).any().item()) for k in kinds] == [True, True, False]


def test_none_takes_turns():
    mask = RegionInput("mask", "none", ("L",), "mask")
    got = {Inputs(region(mask), Case({"L": 4}, turn=t), 0).fresh()[0]["mask"] is None for t in range(2)}
    assert got == {True, False}


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "offset view", "broadcast"])
def test_layouts_hold_the_same_values(layout):
    inputs = Inputs(region(X), Case({"D": 6}, (3, 4), layout=layout), 0)
    values, arrays = inputs.fresh()
    assert mx.array_equal(values["x"], inputs.array("x")).item()
    values["x"][0] = 7.0
    assert not mx.array_equal(arrays["x"], inputs.array("x")).item()  # a run that writes into its input shows
    assert mx.array_equal(inputs.fresh()[0]["x"], inputs.array("x")).item()


def test_every_layout_is_another():
    plain = Inputs(region(X), Case({"D": 6}, (3, 4)), 0).fresh()[0]["x"]
    strided = Inputs(region(X), Case({"D": 6}, (3, 4), layout="transposed"), 0).fresh()[0]["x"]
    assert memoryview(plain).c_contiguous
    assert not memoryview(strided).c_contiguous


def test_self():
    given = region(
        RegionInput("self.weight", "array", ("D",), "weight"), RegionInput("self.args.eps", "scalar", value=2.0)
    )
    values, _ = Inputs(given, Case({"D": 3}), 0).fresh()
    assert values["self"].weight.shape == (3,)
    assert values["self"].args.eps == 2.0


def test_seeds():
    case = Case({"D": 8}, (4,))
    assert mx.array_equal(made(X, case, 1), made(X, case, 1)).item()
    assert not mx.array_equal(made(X, case, 1), made(X, case, 2)).item()


def test_eps_by_use():
    eps, c = RegionInput("self.delta", "scalar"), RegionInput("c", "scalar")
    given = region(X, eps, c, before="result = c * x * mx.rsqrt(mx.mean(x * x) + self.delta)")
    assert eps_names(given) == {"self.delta"}
    assert {choice["self.delta"] for choice in scalar_choices(given)} == {1e-5}
    assert eps_values(region(X, before="result = x + 1e-6 + 0.001 + 0.5 + 1e5")) == [1e-6, 0.001]


def test_cases_cover_what_they_should():
    weight = RegionInput("w", "array", ("D",), "weight")
    given = region(X, weight)
    got = list(cases(given, assignments(given), {}, compiled=False))
    assert {c.dtype for c in got} == {"float32", "float16", "bfloat16"}
    assert {c.style for c in got} == {"normal", "small rows", "large", "huge", "tiny", "offset", "special"}
    assert {c.layout for c in got} == {"plain", "transposed", "strided", "offset view", "broadcast"}
    assert any(c.weight_dtype == "float32" and c.dtype == "bfloat16" for c in got)
    assert any(0 in c.lead for c in got)
    assert len({tuple(c.sizes.items()) for c in got}) > 4
    assert len({c.turn % 2 for c in got if c.dtype == "float32"}) == 2


def test_hostile_values():
    def drawn(style, dtype="float16"):
        return made(X, Case({"D": 9}, (4,), dtype, style=style)).astype(mx.float32)

    assert 300 <= mx.abs(drawn("large")).max().item() <= 300
    assert 10_000 < mx.abs(drawn("huge")).max().item() <= 60_000
    tiny = mx.abs(drawn("tiny"))
    assert mx.any((tiny > 0) & (tiny < 6.1e-5)).item()  # subnormal in float16
    assert mx.any(tiny > 0.1).item()
    special = made(X, Case({"D": 9}, (6,), style="special"))
    assert mx.all(special[:2] == 0).item()
    assert mx.all(1 / special[1] == -mx.inf).item()  # negative zeros
    assert special[2].sum().item() == special[2].max().item() == 1


def test_masks():
    mask = RegionInput("m", "array", ("L", "S"), "mask")
    bools = RegionInput("b", "array", ("L", "S"), "bool")
    sizes = {"L": 4, "S": 6}
    assert made(mask, Case(sizes, turn=3)).min().item() == -mx.inf
    assert made(mask, Case(sizes, turn=0)).min().item() == -1e9
    for given in (mask, bools):
        whole = made(given, Case(sizes, masked=True))
        let = whole if given is bools else whole == 0
        assert not mx.any(let[0]).item()
        assert mx.all(mx.any(let[1:], -1)).item()
        assert mx.all(mx.any(made(given, Case(sizes)) == (0 if given is mask else True), -1)).item()


def test_mixed_dtypes():
    two = region(X, dataclasses.replace(X, name="y"))
    for mixed, dtypes in (("second", (mx.bfloat16, mx.float32)), ("last", (mx.bfloat16, mx.float32)), ("", None)):
        inputs = Inputs(two, Case({"D": 8}, (2,), "bfloat16", mixed=mixed), 0)
        assert (inputs.array("x").dtype, inputs.array("y").dtype) == (dtypes or (mx.bfloat16,) * 2)


def test_layouts_of_all_arrays():
    weight = RegionInput("w", "array", ("D", "E"), "weight")
    _, arrays = Inputs(region(X, weight), Case({"D": 8, "E": 4}, (2,), layout="transposed"), 0).fresh()
    assert not memoryview(arrays["w"]).c_contiguous


def test_only_a_batch_is_empty():
    """An axis that is reduced must not be: MLX's layer_norm may hang on it."""
    named = region(RegionInput("x", "array", ("B", "L", "C")))
    assert [c.sizes for c in cases(named, [{"B": 2, "L": 4, "C": 6}], {}) if 0 in c.sizes.values()] == [
        {"B": 0, "L": 4, "C": 6}
    ]
    other = region(RegionInput("x", "array", ("L", "C")))
    assert not any(0 in c.sizes.values() for c in cases(other, [{"L": 4, "C": 6}], {}))
