"""What fuselint reports: frozen plain data that crosses processes, the cache and JSON.

Offsets are code points into the file's decoded text (line endings as they stand, without a byte order mark).
Lines and columns are 1-based, columns count code points, ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["proven", "unknown", "contradicted"]
Applicability = Literal["safe", "unsafe", "none"]
Numerics = Literal["bit-identical", "reassociated", "more accurate", "different dtype", "less accurate"]


@dataclass(frozen=True, slots=True)
class Obligation:
    """One condition of a rewrite, with its verdict and the evidence for it."""

    claim: str
    verdict: Verdict
    because: str


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the code points [start, end) of a file by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median of all samples, and half the distance between their quartiles.

    peak_memory: bytes that MLX held during a call, without what it held before.
    """

    seconds: float
    spread: float
    peak_memory: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was timed at some sizes on one device: by name, such as `as it is` and `fixed`. reason: why nothing was."""

    device: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds by the clock that judging a fix took, and of CPU time that the C++ compiler took which mx.compile calls.

    Both are 0 where the outcome was kept from an earlier run.
    """

    seconds: float = 0.0
    compiling: float = 0.0


@dataclass(frozen=True, slots=True)
class Verification:
    """What running a fix before and after showed.

    Errors are the largest absolute difference from the float64 reference, divided by the reference's largest value.
    `ulp` is that by dtype, before and after, in units of the last place of that value. gradient: the largest difference
    of float32 gradients, by the same measure; None where there is none. repaired: values that overflowed or had lost
    their digits before, and are right now. measured: by phase, where times were asked for. took: what judging took,
    which no report of findings holds, since it is another each time.
    """

    outcome: Literal["passed", "failed", "not verifiable"]
    reason: str
    device: str = ""
    mlx: str = ""
    error_before: float | None = None
    error_after: float | None = None
    cases: int = 0
    seed: int = 0
    ulp: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    gradient: float | None = None
    repaired: int = 0
    measured: Mapping[str, Measured] = field(default_factory=dict)
    took: Took = field(default=Took(), compare=False)


@dataclass(frozen=True, slots=True)
class Fix:
    """A rewrite: its edits, how far it can be trusted, and what it still needs.

    `edits` is empty where applicability is none, and where `requires` names a rule that has to go first.
    """

    applicability: Applicability
    message: str
    edits: tuple[Edit, ...] = ()
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    numerics: Numerics = "bit-identical"
    verification: Verification | None = None


UNREADABLE = "FUS000"
"""The code of files that can't be analysed."""

Source = Literal["stated", "recorded", "config", "phase", "assumed", "typical"]
"""Where a number comes from: --shape, a recorded run, --model-config, --phase, what the package itself does or the
usual phase, or nowhere: a typical model has such a size."""

UNSTATED: frozenset[Source] = frozenset({"assumed", "typical"})
"""Sources of numbers that no user gave."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """An estimate of time with the band around it."""

    low: float
    estimate: float
    high: float


@dataclass(frozen=True, slots=True)
class ModelSaving:
    """What a fix saves in one pass of a whole model, in the objects that the file's classes make.

    objects: how many run the code. bytes, launches, seconds: saved in a pass. tokens: of a pass.
    share: of the bytes that this file's part of the model moves, which `moved` are. typical: sizes that the saving
    depends on and nothing says.
    """

    objects: int
    bytes: int
    launches: int
    seconds: Seconds
    tokens: int
    moved: int
    share: float
    typical: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """What one pass of a model moves in one file's classes. functions: counted; unknown: calls that aren't. typical:
    the bytes of it at sizes that nothing says."""

    functions: int
    moved: int
    launches: int
    seconds: Seconds
    tokens: int
    unknown: tuple[str, ...] = ()
    typical: int = 0


@dataclass(frozen=True, slots=True)
class Saved:
    """The bytes that a fix saves, as a formula and as a share of those that move now.

    share: None where sizes that nobody states decide it. exact: whether it is the same whatever the sizes are.
    """

    bytes: str
    share: float | None
    exact: bool


@dataclass(frozen=True, slots=True)
class InDtype:
    """A region's traffic where the arrays of which nobody states the dtype have this one.

    less: whether the fix saves less of it than in the first dtype, whatever the sizes are; None where they decide.
    """

    dtype: str
    bytes_now: str
    bytes_fused: str
    kernels_now: int
    kernels_fused: int
    launches_fewer: int
    saved_at: int | None
    saves: Saved | None = None
    less: bool | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of DRAM traffic and kernel launches of a region, before and after its fix.

    Formulas are text in the names of the user's code, all of which `symbols` has with their meanings. `at` holds the
    sizes that `saved_at` (bytes) depends on, and others only where they are known; `sources` has where each comes from,
    `assumed` those of them that nobody stated, and "dtype" for that of arrays. Where one of them is typical, `saved_at`
    and `seconds` are for ranking alone, and `saves` is what can be said.
    Where `dtype` is assumed, `otherwise` is the same region in the other width, and `saved_at`, `launches_fewer` and
    what is made of them are the smaller ones of both; `most` is bytes and launches in the width that saves more.
    `uses`: what the sizes in `at` are for, in order: heads, rows.
    `seconds` is what the fix saves in one call on `chip`. `model` is there where the model's configuration is known,
    `calls` where a run was recorded.
    """

    symbols: Mapping[str, str]
    bytes_now: str
    bytes_fused: str
    kernels_now: int
    kernels_fused: int
    dtype: str
    at: Mapping[str, int]
    saved_at: int | None
    launches_fewer: int = 0
    assumed: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)
    chip: str = ""
    phase: str = ""
    seconds: Seconds | None = None
    model: ModelSaving | None = None
    calls: int | None = None
    otherwise: InDtype | None = None
    saves: Saved | None = None
    most: tuple[int, int] = (0, 0)
    uses: tuple[str, ...] = ()

    @property
    def typical(self) -> tuple[str, ...]:
        """The sizes that the saving depends on and nothing says."""
        return tuple(name for name in self.at if self.sources.get(name) == "typical")

    @property
    def numbers(self) -> Mapping[str, int]:
        """`at`, and 1 for the names that make no difference to what is saved: numbers for all that formulas name."""
        return {**dict.fromkeys(self.symbols, 1), **self.at}

    @property
    def least(self) -> str:
        """What to say before a saving: that it is the smaller one of two."""
        return "at least " if self.otherwise is not None else ""

    @property
    def dtypes(self) -> str:
        return self.dtype if self.otherwise is None else f"{self.dtype} or {self.otherwise.dtype}"

    @property
    def assumes_sizes(self) -> bool:
        """Whether some size is assumed, and not only a dtype."""
        return any(name in self.at for name in self.assumed)


@dataclass(frozen=True, slots=True)
class Related:
    path: str
    line: int
    message: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One report about one place.

    cell: of a notebook, counting all of its cells from 1; lines are then those of the cell. 0 in any other file.
    """

    code: str
    name: str
    message: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str = ""
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    obligations: tuple[Obligation, ...] = ()
    traffic: Traffic | None = None
    id: str = ""
    cell: int = 0

    @property
    def place(self) -> str:
        """The file, and in a notebook the cell that lines count in."""
        return f"{self.path}:cell {self.cell}" if self.cell else self.path

    @property
    def counts(self) -> bool:
        """Whether this finding changes the exit code: advice does not."""
        return self.fix is None or self.fix.applicability != "none"


@dataclass(frozen=True, slots=True)
class FileResult:
    """What checking one file gave. `text` is kept where there is something to show.

    functions: how many hold MLX work. not_understood: (function, reason) of those that were given up.
    model: what a pass of the model moves in the file's classes, where a configuration is given.
    idle: findings that are silent, since what they find never runs in the package, or too seldom for what it saves.
    cells: of a notebook, what each cell with a finding holds, in place of `text`.
    errors: one message each, its first line for everyone, the rest a trace.
    reads: what was read of other files, with its hash, and questions about whole packages, with their answers: with the
        file's own text, the settings and the version they decide the result (`source.notes`). basis: what the answers
        rest on, by the question; it may be more than that, for what was asked before in the same process.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    near_misses: tuple[Finding, ...] = ()
    text: str = ""
    functions: int = 0
    not_understood: tuple[tuple[str, str], ...] = ()
    below_min_saving: int = 0
    idle: int = 0
    errors: tuple[str, ...] = ()
    model: ModelTraffic | None = None
    reads: tuple[tuple[str, str], ...] = ()
    basis: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), compare=False)
    cells: tuple[tuple[int, str], ...] = ()

    def source(self, finding: Finding) -> str:
        """The text that a finding's lines count in."""
        return dict(self.cells).get(finding.cell, "") if finding.cell else self.text


@dataclass(frozen=True, slots=True)
class RegionInput:
    """One free value of a region: `name` as the region's text reads it, such as `x` or `self.weight`."""

    name: str
    kind: Literal["array", "scalar", "bool", "none", "dtype", "object"]  # none: None, or now and then an array
    shape: tuple[str, ...] | None = None  # symbol names, numbers or `2*D`; "..." stands for free leading axes
    dtype: str = "activation"  # activation, weight, mask (additive), int, bool, or a fixed dtype such as float32
    value: float | int | bool | str | None = None  # of a scalar that the source states; `nn.Linear(D, 8)` of an object
    symbol: str | None = None  # of a scalar that is the size of an axis
    beside: str = ""  # of "none": the input that it is None with, always


@dataclass(frozen=True, slots=True)
class Region:
    """A rewrite as two runnable texts, for verification in a child process: nothing else of the module is run.

    `before`, `after` and `reference` are statements that leave their value in the name `result`; `support` holds
    the definitions they call (inlined helpers, hoisted helpers, `self` methods under a class named `Self`).
    `reference` is written from the graph, with every float cast mapped to float64.
    """

    code: str
    inputs: tuple[RegionInput, ...]
    before: str
    after: str
    support_before: str = ""
    support_after: str = ""
    reference: str | None = None
    not_verifiable: str | None = None
    needs: tuple[str, ...] = ()  # the fix's: what inputs have to satisfy
    numerics: Numerics = "reassociated"  # the fix's
    notes: Mapping[str, str] = field(default_factory=dict)
