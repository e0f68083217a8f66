"""Chips, and the time that bytes and launches take on them: an estimate with its band, modelled, not measured.

    time = bytes / (share x bandwidth) + launches x (launch + buffer / launches a buffer)

Bandwidth is what the makers state. Elementwise kernels reach 70 to 93 % of it, mostly 84 %; a small dependent kernel
costs 2.4 to 5.8 us, mostly 2.5; a command buffer (a graph, on CUDA) costs about 20 us, and MLX commits one after so
many operations. Where all that a region moves fits half the last-level cache, what is written and read back may cost
half: the low end of the band counts it so.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fuselint.config import CHIP_NAMES, DEFAULT_CHIP

if TYPE_CHECKING:
    from fuselint.graph.gates import Backend

TERA, GIGA, MEGA = 1e12, 1e9, 1e6

MOST = 1e300
"""Of what is counted: sizes that nobody means may have more digits than a float takes."""

SHARE = (0.93, 0.84, 0.70)
"""Of the stated bandwidth, what kernels reach: at best, mostly, at worst."""
SIDE = 0.07
"""How far the time of either side of a fix may be off that was made of times of single kernels: rates.py."""
LAUNCH = {"metal": (2.4e-6, 2.5e-6, 5.8e-6), "cuda": (1.5e-6, 2.5e-6, 5e-6), "cpu": (0.3e-6, 1e-6, 5e-6)}
"""Seconds of one more dependent kernel."""
BUFFER_SECONDS = (0.0, 20e-6, 23e-6)
"""Of one more command buffer on Metal; at best it overlaps with the work."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Floating-point operations, in TFLOP/s and without sparsity. vector: elementwise ones in float32; f32, half:
    those of matrix products in float32, and in bfloat16 and float16."""

    vector: float
    f32: float
    half: float

    def products(self, dtype: str) -> float:
        return self.f32 if dtype == "f32" else self.half


@dataclass(frozen=True, slots=True)
class Chip:
    """bandwidth: stated, in GB/s. cache: the last level's bytes, None where no reliable figure is known.

    ops, megabytes: after so many MLX commits a command buffer; 0 where there are none.
    """

    key: str
    name: str
    backend: Backend
    bandwidth: float
    peak: Peak
    cache: int | None = None
    ops: int = 0
    megabytes: int = 0


@dataclass(frozen=True, slots=True)
class Seconds:
    """An estimate and the band around it."""

    low: float
    estimate: float
    high: float

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.low + other.low, self.estimate + other.estimate, self.high + other.high)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.low * times, self.estimate * times, self.high * times)


NOTHING = Seconds(0.0, 0.0, 0.0)

BANDWIDTHS = {
    "m1": (68, 200, 400, 800), "m2": (100, 200, 400, 800), "m3": (100, 150, 400, 819), "m4": (120, 273, 546, None),
    "m5": (153, 307, 614, None),
}  # fmt: skip
"""Of the base chip, Pro, Max and Ultra, the best bin of each."""
CACHES = {"m1": (8, 24, 48, 96), "m2": (8, 24, 48, None)}
"""System-level caches in MB; of later families no reliable figure is known."""
CLOCKS = {"m1": 1.29, "m2": 1.4, "m3": 1.4, "m4": 1.58, "m5": 1.62}
"""Of the GPU in GHz, as it was measured; and its cores. Each has 128 lanes that multiply and add in a cycle, in 16 bits
as in 32."""
CORES = {
    "m1": (8, 16, 32, 64), "m2": (10, 19, 38, 76), "m3": (10, 18, 40, 80), "m4": (10, 20, 40, None),
    "m5": (10, 20, 40, None),
}  # fmt: skip
MATRIX_UNITS = {"m5": 4}
"""How many times that 16-bit products reach: M5 is stated with over four times the peak of M4."""
VARIANTS = (("", 40), ("-pro", 40), ("-max", 50), ("-ultra", 50))
"""And the operations, and megabytes, after which MLX commits: mlx/backend/metal/device.cpp."""


def _apple() -> dict[str, Chip]:
    chips = {}
    for family, bandwidths in BANDWIDTHS.items():
        caches = CACHES.get(family, (None,) * 4)
        columns = zip(VARIANTS, bandwidths, caches, CORES[family], strict=True)
        for (suffix, buffered), bandwidth, megabytes, cores in columns:
            if bandwidth is not None and cores is not None:
                key = family + suffix
                name = " ".join([family.upper(), *([suffix[1:].title()] if suffix else [])])
                size = None if megabytes is None else int(megabytes * MEGA)
                tera = round(cores * 128 * 2 * CLOCKS[family] / 1000, 1)
                peak = Peak(tera, tera, tera * MATRIX_UNITS.get(family, 1))
                chips[key] = Chip(key, name, "metal", bandwidth, peak, size, buffered, buffered)
    return chips


HOPPER = Peak(67, 495, 989)

CHIPS: dict[str, Chip] = {
    **_apple(),
    "a100": Chip("a100", "A100 80 GB", "cuda", 2039, Peak(19.5, 156, 312), int(40 * MEGA), 20, 400),
    "h100": Chip("h100", "H100 SXM", "cuda", 3350, HOPPER, int(50 * MEGA), 100, 1000),
    "h200": Chip("h200", "H200", "cuda", 4800, HOPPER, int(50 * MEGA), 100, 1000),
    "b200": Chip("b200", "B200", "cuda", 8000, Peak(80, 1100, 2250), int(126 * MEGA), 100, 1000),
    "gb10": Chip("gb10", "GB10 (DGX Spark)", "cuda", 273, Peak(31, 62, 125), int(24 * MEGA), 20, 100),
    "rtx-4090": Chip("rtx-4090", "RTX 4090", "cuda", 1008, Peak(82.6, 82.6, 165), int(72 * MEGA), 20, 100),
    "rtx-5090": Chip("rtx-5090", "RTX 5090", "cuda", 1792, Peak(104.8, 104.8, 209.5), int(96 * MEGA), 20, 100),
    "cpu": Chip("cpu", "a CPU with two DDR5 channels", "cpu", 90, Peak(1, 1, 1), int(32 * MEGA)),
}
"""NVIDIA's peaks are those of its data sheets, dense, with sums in float32. Products in float32 are TF32 there, which
is MLX's default. GB10 is stated in FP4 alone: an eighth of that, as on its larger kin. The CPU's are eight cores of
AVX2 at 4 GHz."""
assert set(CHIPS) == set(CHIP_NAMES)


def chosen(name: str) -> tuple[Chip, str]:
    """The chip of that name, or this machine's, or else the default; and where that comes from."""
    if name:
        return CHIPS[name], "stated"
    here = this_machine()
    return (CHIPS[here], "this machine") if here else (CHIPS[DEFAULT_CHIP], "assumed")


@cache
def this_machine() -> str:
    """The chip of the machine that this runs on; "" where it is none of the table."""
    text = _apple_brand() if sys.platform == "darwin" else _nvidia_model()
    return chip_of(text)


def chip_of(text: str) -> str:
    """`Apple M3 Max` or `NVIDIA H200` -> the key of the chip."""
    words = text.lower().replace("-", " ").split()
    found = [key for key in CHIPS if all(part in words for part in key.split("-"))]
    return max(found, key=len, default="")


def _apple_brand() -> str:
    command = ["sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _nvidia_model() -> str:
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("Model:"):
                    return line
        except OSError:
            return ""
    return ""


def seconds(moved: float, launches: float, chip: Chip, cached: float = 0.0) -> Seconds:
    """The time of kernels that move `moved` bytes in all, one after the other. cached: bytes of it that may stay in
    the last-level cache between the kernel that writes them and the one that reads them."""
    moved, cached = held(moved), held(cached)
    rate = chip.bandwidth * GIGA
    best, mostly, worst = SHARE
    launch = [t + (b / chip.ops if chip.ops else 0) for t, b in zip(LAUNCH[chip.backend], BUFFER_SECONDS, strict=True)]
    return Seconds(
        (moved - cached / 2) / (best * rate) + launches * launch[0],
        moved / (mostly * rate) + launches * launch[1],
        moved / (worst * rate) + launches * launch[2],
    )


def between(before: float, after: float) -> Seconds:
    """What is saved, where both were made of times of single kernels."""
    saved, off = before - after, SIDE * (before + after)
    return Seconds(saved - off, saved, saved + off)


def computing(products: float, rest: float, chip: Chip, dtype: str) -> float:
    """The seconds that operations take at the chip's peaks."""
    return (held(products) / chip.peak.products(dtype) + held(rest) / chip.peak.vector) / TERA


def held(number: float) -> float:
    """A number as one that a float holds."""
    return max(-MOST, min(number, MOST))


def fits(size: float, chip: Chip) -> bool:
    """Whether so many bytes may stay in the last-level cache until they are read again."""
    return chip.cache is not None and size <= chip.cache / 2
