"""Which fixes pay on this machine: each is timed against the code as it is, or against every other way to write it.

A judge for the engine (`engine.Judge`): what has no time, or is timed nowhere, stays as verification left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fuselint.config import Configuration
from fuselint.finding import Finding, Region, Verification
from fuselint.verify.alternatives import AS_IT_IS, FIXED
from fuselint.verify.measure import Choice, measure
from fuselint.verify.timing import faster

Measure = Callable[[Region, Finding], Choice]


@dataclass(slots=True)
class Tried:
    """One region: what was timed, and whether the fix stays."""

    finding: Finding
    choice: Choice
    kept: bool

    @property
    def best(self) -> dict[str, str]:
        """By phase, the fastest way; the fix where nothing is faster than it, the code as it is where that ties."""
        return self.choice.fastest(AS_IT_IS)


@dataclass(slots=True)
class Tuner:
    """every: try all ways to write a region, not only the code as it is and the fix. telling: hears of each at once."""

    configuration: Configuration
    every: bool = False
    measuring: Measure | None = None
    telling: Callable[[Tried], None] | None = None
    tried: list[Tried] = field(default_factory=list)

    def __call__(self, finding: Finding, region: Region | None) -> tuple[Finding, bool]:
        if region is None or finding.fix is None:
            return finding, True
        choice = self._measured(region, finding)
        kept = pays(choice)
        seen = finding.fix.verification or Verification("not verifiable", "it was not run")
        finding = replace(finding, fix=replace(finding.fix, verification=replace(seen, measured=choice.by_phase)))
        self.tried.append(Tried(finding, choice, kept))
        if self.telling is not None:
            self.telling(self.tried[-1])
        return finding, kept

    def _measured(self, region: Region, finding: Finding) -> Choice:
        if self.measuring is not None:
            return self.measuring(region, finding)
        return measure(region, finding, self.configuration.of(finding.path), every=self.every)


def pays(choice: Choice) -> bool:
    """Whether a fix is faster than the code as it is in one phase, beyond noise, and slower in none."""
    pairs = [
        (m.timings[AS_IT_IS], m.timings[FIXED])
        for m in choice.by_phase.values()
        if AS_IT_IS in m.timings and FIXED in m.timings
    ]
    if not pairs:
        return True
    return any(faster(fix, old) for old, fix in pairs) and not any(faster(old, fix) for old, fix in pairs)
