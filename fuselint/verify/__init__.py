"""Does a rewrite compute what the code before it computed? Both are run, in child processes, and compared.

    regions -> vet (which names may run) -> cases (inputs) -> before, after, float64 reference -> compare -> outcomes

Nothing of the user's module is imported: only a region's text runs, on made-up inputs, with `mx`, `nn` and `math`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fuselint.finding import Region, Verification
from fuselint.verify.cache import Cache
from fuselint.verify.process import Limits, run

__all__ = ["Limits", "mlx_version", "verify"]


def mlx_version() -> str | None:
    """The version of the MLX that a child process would import, or None."""
    try:
        if importlib.util.find_spec("mlx.core") is None:
            return None
        return importlib.metadata.version("mlx")
    except (ImportError, ValueError):
        return None


def verify(
    regions: Sequence[Region],
    *,
    device: str | None = None,
    timeout_s: float = 60,
    seed: int = 0,
    cache: Path | str | None = None,
    limits: Limits | None = None,
    jobs: int | None = None,
) -> list[Verification]:
    """One outcome a region, in order.

    device: "cpu" or "gpu"; None is MLX's default. timeout_s: for each region. cache: a folder that keeps outcomes.
    jobs: child processes at a time; None chooses by the number of regions and cores.
    """
    version = mlx_version()
    limits = limits or Limits(seconds=timeout_s)
    outcomes: dict[str, Verification] = {}
    with Cache(cache, f"{version} {device} {seed}") as kept:
        keys = [kept.key(r) for r in regions]
        waiting: dict[str, Region] = {}
        for key, region in zip(keys, regions, strict=True):
            if region.not_verifiable:
                outcomes[key] = Verification("not verifiable", region.not_verifiable, mlx=version or "")
            elif version is None:
                outcomes[key] = Verification("not verifiable", "MLX can't be imported")
            elif (old := kept.get(key)) is not None:
                outcomes[key] = old
            else:
                waiting[key] = region
        for key, (outcome, lasting) in zip(
            waiting, run(list(waiting.values()), device, seed, limits, version or "", jobs), strict=True
        ):
            outcomes[key] = outcome
            if lasting:
                kept.put(key, outcome)
    return [outcomes[key] for key in keys]
