"""What a comparison is asked, and what it answers: frozen plain data that crosses processes and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERSIONS = ("before", "after")


@dataclass(frozen=True, slots=True)
class Question:
    """What to run in both versions.

    before, after: a folder that packages are imported from, a package, or a module's file. entry: `module:path.to` of
    a callable; classes on the way are built with `init`, the text of their arguments. factory: `module:function` that
    makes the inputs, given the callable's object where it takes one argument. dtype: what floating weights are cast
    to, by MLX's name, "" for as they are. device: "cpu", "gpu", or "" for MLX's default. seconds: for each run.
    memory: bytes. only: paths of the values that count, such as `result[0]`, with all that they hold; () for all.
    tolerance: largest difference relative to the largest value of a leaf; None for what rounding allows.
    """

    before: str
    after: str
    entry: str
    init: str = ""
    factory: str = ""
    dtype: str = ""
    device: str = ""
    seed: int = 0
    seconds: float = 600
    memory: int = 0
    only: tuple[str, ...] = ()
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array or other value of the result, in both versions.

    gap: the largest difference relative to the largest value before. allowed: what of it rounding explains.
    wrong: what is wrong, or "".
    """

    path: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    gap: float = 0.0
    allowed: float = 0.0
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one version takes. kernels, bytes: of one call on a GPU, traced; None where it can't be.

    peak_memory: bytes that MLX held during the call. seconds: median of calls, None on the CPU.
    """

    peak_memory: int
    kernels: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    spread: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A finished comparison. same: whether every leaf is. costs: by version. notes: a line each."""

    question: Question
    same: bool
    leaves: tuple[Leaf, ...]
    device: str
    mlx: str
    costs: Mapping[str, Cost] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    weights: int = 0
    notes: tuple[str, ...] = ()
