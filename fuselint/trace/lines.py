"""A trace's kernels by the source line that made them, and what a whole pass takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fuselint.chips import Chip, Seconds, seconds
from fuselint.trace.model import Kernel, Run, Traced

READINGS = ("eager", "compiled")


@dataclass(slots=True)
class Counted:
    """How often something runs, and the bytes that it moves then."""

    kernels: int = 0
    bytes: int = 0

    def add(self, moved: int) -> None:
        self.kernels += 1
        self.bytes += moved


@dataclass(slots=True)
class Row:
    """Equal kernels of one line."""

    kernel: Kernel
    runs: dict[str, Counted] = field(default_factory=dict)


@dataclass(slots=True)
class Line:
    """A line of the traced code. path: "" for kernels that no line of it made."""

    path: str
    line: int
    function: str
    runs: dict[str, Counted] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one pass. seconds: estimated."""

    kernels: int
    launches: int
    command_buffers: int
    read: int
    written: int
    seconds: Seconds

    @property
    def bytes(self) -> int:
        return self.read + self.written


def by_line(traced: Traced, runs: dict[str, Run]) -> list[Line]:
    """The lines, those that move the most first. A kernel that mx.compile fused counts for the line it ends on."""
    lines: dict[tuple[str, int], Line] = {}
    rows: dict[tuple[object, ...], Row] = {}
    for name, run in runs.items():
        for kernel, number in zip(run.kernels, run.places, strict=True):
            line = _line(traced, number, lines)
            line.runs.setdefault(name, Counted()).add(kernel.bytes)
            key = (line.path, line.line, kernel.name, kernel.reads, kernel.writes)
            if key not in rows:
                rows[key] = Row(kernel)
                line.rows.append(rows[key])
            rows[key].runs.setdefault(name, Counted()).add(kernel.bytes)
    return sorted(lines.values(), key=lambda x: (-_most(x), x.path, x.line))


def _line(traced: Traced, number: int, lines: dict[tuple[str, int], Line]) -> Line:
    place = traced.places[number]
    path, at, function = "", 0, ""
    if place:
        activation = traced.activations[place[0][0]]
        path, at, function = activation.path, place[0][1], activation.name
    return lines.setdefault((path, at), Line(path, at, function))


def _most(line: Line) -> int:
    return max((c.bytes for c in line.runs.values()), default=0)


def totals(run: Run, evaluations: int, chip: Chip) -> Totals:
    return Totals(
        kernels=len(run.kernels),
        launches=run.launches,
        command_buffers=command_buffers(run.kernels, chip) + max(0, evaluations - 1),
        read=sum(k.read for k in run.kernels),
        written=sum(k.written for k in run.kernels),
        seconds=seconds(run.bytes, run.launches, chip),
    )


def command_buffers(kernels: Iterable[Kernel], chip: Chip) -> int:
    """How many command buffers MLX commits for kernels that run one after the other, with one mx.eval at the end.

    What MLX calls megabytes of a buffer are 2**20 elements of distinct arrays.
    """
    if not chip.ops:
        return 0
    count, launches, elements = 0, 0, 0
    seen: set[int] = set()
    for k in kernels:
        launches += k.launches
        elements += sum(n for buffer, n in k.buffers if buffer not in seen)
        seen.update(buffer for buffer, _ in k.buffers)
        if launches > chip.ops or elements >> 20 > chip.megabytes:
            count, launches, elements = count + 1, 0, 0
            seen.clear()
    return count + bool(launches)


def dtype_of(kernels: Sequence[Kernel]) -> str:
    """The dtype that most of the matrix products' operands have: that of the activations."""
    amounts: dict[str, int] = {}
    for weight, chosen in ((1 << 40, ("Matmul", "AddMM", "QuantizedMatmul", "Convolution")), (1, None)):
        for k in kernels:
            if chosen is None or k.name in chosen:
                for m in (*k.reads[:1], *k.writes):
                    amounts[m.dtype] = amounts.get(m.dtype, 0) + weight * m.bytes
    return max((d for d in amounts if "float" in d), key=lambda d: amounts[d], default="")
