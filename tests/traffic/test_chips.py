"""Chips, their names, and the time that bytes and launches take on them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuselint import chips
from fuselint.chips import CHIPS, chip_of, chosen, computing, fits, seconds
from fuselint.config import CHIP_NAMES, DEFAULT_CHIP, chip_name
from fuselint.errors import ConfigError


def test_every_chip_has_a_bandwidth_that_its_maker_states() -> None:
    assert set(CHIPS) == set(CHIP_NAMES)
    assert (CHIPS["m1"].bandwidth, CHIPS["m3-max"].bandwidth, CHIPS["m4-max"].bandwidth) == (68, 400, 546)
    assert CHIPS["h200"].bandwidth == 4800
    for family in ("m1", "m2", "m3", "m4", "m5"):
        rising = [c.bandwidth for c in CHIPS.values() if c.key.split("-")[0] == family]
        assert rising == sorted(rising)


def test_peaks() -> None:
    assert CHIPS["m1-max"].peak.half == CHIPS["m1-max"].peak.f32 == 10.6
    assert (CHIPS["h200"].peak.products("bf16"), CHIPS["h200"].peak.products("f32")) == (989, 495)
    for chip in CHIPS.values():
        assert 0 < chip.peak.vector <= chip.peak.f32 <= chip.peak.half
    h200 = CHIPS["h200"]
    assert computing(989e12, 0, h200, "f16") == 1 and computing(0, 134e12, h200, "f16") == 2


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Apple M3 Max", "m3-max"),
        ("Apple M1\n", "m1"),
        ("Apple M2 Ultra", "m2-ultra"),
        ("Model: \t\t NVIDIA H200", "h200"),
        ("Model: NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Intel(R) Xeon(R)", ""),
        ("", ""),
    ],
)
def test_a_chip_by_what_the_system_calls_it(text: str, key: str) -> None:
    assert chip_of(text) == key


def test_the_chip_is_the_one_named_or_this_machines_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (chosen("m1-pro")[0].key, chosen("m1-pro")[1]) == ("m1-pro", "stated")
    monkeypatch.setattr(chips, "this_machine", lambda: "m2")
    assert (chosen("")[0].key, chosen("")[1]) == ("m2", "this machine")
    monkeypatch.setattr(chips, "this_machine", lambda: "")
    assert (chosen("")[0].key, chosen("")[1]) == (DEFAULT_CHIP, "assumed")


def test_names_of_chips_are_read_in_several_spellings() -> None:
    assert {chip_name(t, "--chip") for t in ("m3-max", "M3 Max", "m3_max")} == {"m3-max"}
    with pytest.raises(ConfigError, match=r'--chip: unknown chip "m3-mx"; did you mean "m3-max"\?'):
        chip_name("m3-mx", "--chip")


def test_time_is_bytes_over_the_bandwidth_that_kernels_reach() -> None:
    t = seconds(336e9, 0, CHIPS["m3-max"])
    assert t.estimate == pytest.approx(1.0)  # 84 % of 400 GB/s
    assert (t.low, t.high) == (pytest.approx(336 / 372), pytest.approx(336 / 280))


def test_launches_take_time_and_so_do_the_command_buffers_that_they_fill() -> None:
    many, few = (seconds(0, 100, CHIPS[key]).estimate for key in ("m3", "m3-max"))
    assert many == pytest.approx(100 * (2.5e-6 + 20e-6 / 40))  # a buffer of 40 operations
    assert few == pytest.approx(100 * (2.5e-6 + 20e-6 / 50))
    assert seconds(0, 100, CHIPS["cpu"]).estimate < few


def test_what_stays_in_the_cache_may_cost_half() -> None:
    chip = CHIPS["m1-max"]
    assert fits(20e6, chip) and not fits(40e6, chip)
    assert not fits(1, CHIPS["m3-max"])  # no reliable figure
    cold, warm = seconds(20e6, 0, chip), seconds(20e6, 0, chip, cached=20e6)
    assert (warm.low, warm.estimate, warm.high) == (pytest.approx(cold.low / 2), cold.estimate, cold.high)


def test_the_table_of_peaks_is_fresh() -> None:
    page = (Path(__file__).parents[2] / "docs" / "traffic.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", page, re.M)
    assert [r for r in rows if r[0] in CHIPS] == [
        (c.key, f"{c.peak.half:g}", f"{c.peak.f32:g}", f"{c.peak.vector:g}") for c in CHIPS.values()
    ]
