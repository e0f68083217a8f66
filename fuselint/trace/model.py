"""What a trace is asked, and what it answers: frozen plain data that crosses processes and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fuselint.graph.gates import Backend


@dataclass(frozen=True, slots=True)
class Request:
    """What to trace, and with what.

    target: `module:path.to.callable`, or a file instead of the module. init: arguments of a class, as Python text.
    inputs: `name=f16[1,2048]`, `name=expression`, or either without the name. factory: `module:function` that makes
    them all. dtype: MLX's name of what floating weights of a module are cast to, "" for as they are. overlay: texts
    to take in place of files, by path.
    """

    target: str
    init: str = ""
    inputs: tuple[str, ...] = ()
    factory: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    dtype: str = ""
    backend: Backend = "metal"
    overlay: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moved:
    """An operand or a result of a kernel, and the bytes of it that the kernel reads or writes."""

    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One primitive that runs, or several that mx.compile fused. launches: on the device.

    buffers: a number for each distinct buffer that it touches, with its elements: what MLX cuts command buffers by.
    """

    name: str
    reads: tuple[Moved, ...]
    writes: tuple[Moved, ...]
    launches: int = 1
    buffers: tuple[tuple[int, int], ...] = ()

    @property
    def read(self) -> int:
        return sum(m.bytes for m in self.reads)

    @property
    def written(self) -> int:
        return sum(m.bytes for m in self.writes)

    @property
    def bytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Activation:
    """One run of a function of the traced code, and the lines of it that led to MLX."""

    path: str
    name: str
    first_line: int
    lines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels in evaluation order. places: for each, which of the trace's places it belongs to."""

    kernels: tuple[Kernel, ...]
    places: tuple[int, ...]

    @property
    def launches(self) -> int:
        return sum(k.launches for k in self.kernels)

    @property
    def bytes(self) -> int:
        return sum(k.bytes for k in self.kernels)


@dataclass(frozen=True, slots=True)
class Traced:
    """A trace. places: lines that led to MLX, as (activation, line), the innermost first.

    evaluations: how many times the code called mx.eval. peak_memory: of MLX in the child, in bytes.
    unknown: functions that MLX could not export.
    """

    eager: Run
    compiled: Run
    places: tuple[tuple[tuple[int, int], ...], ...]
    activations: tuple[Activation, ...]
    evaluations: int
    mlx: str
    peak_memory: int
    unknown: tuple[str, ...] = ()
