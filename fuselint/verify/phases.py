"""Real sizes for the inputs of a region: those that are known, and of a prefill and a decode step where none are."""

from __future__ import annotations

from collections.abc import Iterable

from fuselint.finding import Region, Traffic
from fuselint.traffic.known import BY_RANK, PHASE, TYPICAL, role

MEASURED = ("prefill", "decode")
KNOWN = frozenset({"stated", "recorded", "config"})


def sizes(region: Region, traffic: Traffic | None, names: Iterable[str], phase: str) -> dict[str, int]:
    """A number for each name of a size in the region's shapes."""
    known = {n: v for n, v in traffic.at.items() if traffic.sources.get(n) in KNOWN} if traffic is not None else {}
    places = _places(region)
    given = PHASE[phase]
    by_phase = {"batch": given.batch, "length": given.length, "keys": given.keys, "rows": given.tokens}
    out = {}
    for name in names:
        what = role(name, places.get(name, "other"))
        out[name] = known.get(name, by_phase.get(what, TYPICAL.get(what, 1)))
    return out


def _places(region: Region) -> dict[str, str]:
    """What the axes of arrays are for, by their place in a shape."""
    out: dict[str, str] = {}
    for given in region.inputs:
        shape = given.shape or ()
        axes = ("batch", "length", *shape[1:]) if shape[:1] == ("...",) else shape
        roles = BY_RANK.get(len(axes), ())
        for axis, what in zip(reversed(axes), reversed(roles), strict=False):
            out.setdefault(axis, "features" if given.dtype == "weight" else what)
    return out


def lead(region: Region, phase: str) -> tuple[int, ...]:
    """What "..." stands for: the batch, and the length where no axis after it has a name for that."""
    named = max((len(i.shape) - 1 for i in region.inputs if i.shape and i.shape[0] == "..."), default=0)
    return (PHASE[phase].batch,) if named > 1 else (PHASE[phase].batch, PHASE[phase].length)
