"""Chips, and the time that bytes and launches take on them. Modelled, not measured."""

from __future__ import annotations

from dataclasses import dataclass

GIGA = 1e9
ACHIEVED = 0.84
"""The share of a chip's stated bandwidth that elementwise kernels reach."""
LAUNCH_SECONDS = 2.5e-6
"""What one more dependent kernel costs."""


@dataclass(frozen=True, slots=True)
class Chip:
    """bandwidth: stated, in GB/s."""

    name: str
    bandwidth: float


CHIPS = {
    key: Chip(name, bandwidth)
    for key, name, bandwidth in (
        ("m1", "M1", 68),
        ("m1-pro", "M1 Pro", 200),
        ("m1-max", "M1 Max", 400),
        ("m1-ultra", "M1 Ultra", 800),
        ("m2", "M2", 100),
        ("m2-pro", "M2 Pro", 200),
        ("m2-max", "M2 Max", 400),
        ("m2-ultra", "M2 Ultra", 800),
        ("m3", "M3", 100),
        ("m3-pro", "M3 Pro", 150),
        ("m3-max", "M3 Max", 400),
        ("m3-ultra", "M3 Ultra", 819),
        ("m4", "M4", 120),
        ("m4-pro", "M4 Pro", 273),
        ("m4-max", "M4 Max", 546),
        ("m5", "M5", 153),
        ("m5-pro", "M5 Pro", 307),
        ("m5-max", "M5 Max", 614),
        ("h200", "H200", 4800),
    )
}
DEFAULT = CHIPS["m3-max"]


def seconds(moved: float, launches: int, chip: Chip = DEFAULT) -> float:
    """The time of kernels that move `moved` bytes in all, one after the other."""
    return moved / (ACHIEVED * chip.bandwidth * GIGA) + launches * LAUNCH_SECONDS
