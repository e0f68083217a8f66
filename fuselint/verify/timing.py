"""Times of calls, taken in turns, and what they say. Imports nothing of MLX."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from fuselint.finding import Timing

WARM_UP = 3
ROUNDS = 25
SAMPLE_SECONDS = 2e-3
"""A sample takes at least so long, of as many calls as that takes: a clock has its own noise."""
MOST_CALLS = 256


def interleaved(
    calls: Mapping[str, Callable[[int], None]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    sample: float = SAMPLE_SECONDS,
) -> dict[str, Timing]:
    """Time callables that do their work n times, each once a round, so that what drifts meets all of them."""
    for run in calls.values():
        for _ in range(WARM_UP):
            run(1)
    counts = {name: _count(run, clock, sample) for name, run in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            start = clock()
            calls[name](counts[name])
            samples[name].append((clock() - start) / counts[name])
    return {name: summed(taken) for name, taken in samples.items()}


def _count(run: Callable[[int], None], clock: Callable[[], float], sample: float) -> int:
    count = 1
    while count < MOST_CALLS:
        start = clock()
        run(count)
        if clock() - start >= sample:
            break
        count *= 2
    return count


def summed(samples: Sequence[float]) -> Timing:
    first, middle, third = statistics.quantiles(samples, n=4)
    return Timing(middle, (third - first) / 2)


def faster(one: Timing, other: Timing) -> bool:
    """Whether `one` takes less time, by more than the noise of both."""
    return other.seconds - one.seconds > one.spread + other.spread


def fastest(timings: Mapping[str, Timing], usual: str) -> str:
    """The name of the fastest, `usual` where nothing is faster than it beyond noise."""
    best = min(timings, key=lambda n: timings[n].seconds)
    return best if usual not in timings or faster(timings[best], timings[usual]) else usual
