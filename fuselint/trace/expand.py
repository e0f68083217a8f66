"""The primitives that one call of MLX is made of, as MLX itself exports them.

`mx.export_function` builds the graph of a call from shapes alone. It merges what is computed twice, which eager MLX
doesn't; a single call computes nothing twice but broadcasts, so calls are exported one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from fuselint.graph.gates import Backend
from fuselint.trace.recording import OWN_KERNEL, RECORDER, Call, Ref, Value, arrays_in, dtype_name, mapped, unseen

Kind = tuple[tuple[int, ...], str]
"""Shape and dtype."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """inputs, outputs: places in the expansion's list of arrays."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    key: Hashable = None


@dataclass(slots=True)
class Expansion:
    """The call's operands come first among `arrays`. constants: of scalars, what makes them equal to others.

    owners: for each primitive the call inside this one that it belongs to, where it has such calls. outside: values
    that are no operands, but are read all the same.
    """

    arrays: list[Kind]
    constants: dict[int, Hashable] = field(default_factory=dict)
    primitives: list[Primitive] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
    owners: list[Call | None] = field(default_factory=list)
    outside: dict[int, Value] = field(default_factory=dict)

    @staticmethod
    def of(call: Call) -> Expansion:
        return Expansion([kind(v) for v in call.inputs])

    def add(self, name: str, inputs: Sequence[int], *made: Kind, key: Hashable = None) -> int:
        """A primitive more; the place of its first output."""
        first = len(self.arrays)
        self.arrays.extend(made)
        self.primitives.append(Primitive(name, tuple(inputs), tuple(range(first, len(self.arrays))), key))
        return first

    def astype(self, at: int, dtype: str) -> int:
        shape, own = self.arrays[at]
        return at if own == dtype else self.add("AsType", [at], (shape, dtype), key=(dtype,))


def kind(value: Value) -> Kind:
    return value.shape, value.dtype


class Expander:
    """Expands calls, equal ones once. unknown: names of those that MLX can't export."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[Hashable, Expansion] = {}
        self.unknown: set[str] = set()

    def expand(self, call: Call, shapeless: bool) -> Expansion:
        key = (call.name, id(call.function), repr((call.args, call.kwargs)), shapeless, *map(kind, call.inputs))
        if key not in self._known:
            self._known[key] = self._expanded(call, shapeless)
        return self._known[key]

    def _expanded(self, call: Call, shapeless: bool) -> Expansion:
        from fuselint.trace.fused import fused
        from fuselint.trace.gradients import GRADIENTS, sorted_out

        if call.function is unseen or call.name.startswith(OWN_KERNEL):
            return opaque(call)
        if call.name == "stop_gradient":
            return unchanged(call)
        kernels = fused(call, self._backend)
        if kernels is not None:
            return kernels
        marks: list[Call] | None = [] if call.name in GRADIENTS else None
        if call.name in NOT_EXPORTED:
            return opaque(call, NOT_EXPORTED[call.name])
        known = exported(call, shapeless, marks)
        if known is not None and marks:
            return sorted_out(known, marks, self._backend)
        if known is None:
            self.unknown.add(call.name)
        return known or opaque(call)


NOT_EXPORTED = {"contiguous": "Contiguous", "bitwise_invert": "BitwiseInvert"}
"""Calls of one primitive that MLX can't export, by that primitive's name."""


def opaque(call: Call, name: str = "") -> Expansion:
    """One kernel that reads the operands and writes the results: all that is known where MLX can't export the call."""
    out = Expansion.of(call)
    name = name or call.name
    if name == call.name and not name.startswith(OWN_KERNEL):
        name = "".join(part[:1].upper() + part[1:] for part in name.rpartition(".")[2].strip("_").split("_"))
    first = out.add(name, range(len(call.inputs)), *map(kind, call.outputs))
    out.outputs = tuple(range(first, len(out.arrays)))
    return out


def unchanged(call: Call) -> Expansion:
    """`mx.stop_gradient`: MLX's export leaves it out, but its fuser sees it."""
    out = Expansion.of(call)
    out.outputs = (out.add("StopGradient", [0], kind(call.outputs[0])),)
    return out


def exported(call: Call, shapeless: bool = False, marks: list[Call] | None = None) -> Expansion | None:
    """The call as MLX exports it, or None where it can't. marks: is given the calls inside it."""
    reader = _Reader(Expansion([]))
    stand_ins = [mx.zeros(v.shape, _dtype(v.dtype)) for v in call.inputs]
    try:
        with RECORDER.export(marks):
            mx.export_function(reader.read, _runner(call), *stand_ins, shapeless=shapeless)
    except (ValueError, RuntimeError, TypeError):
        return None
    return reader.out


def _dtype(name: str) -> Any:
    return getattr(mx, name)


def _runner(call: Call) -> Callable[..., list[Any]]:
    def run(*arrays: Any) -> list[Any]:
        args, kwargs = _filled(call.args, arrays), _filled(call.kwargs, arrays)
        result = call.function(*args, **kwargs)
        return list(arrays_in(args[call.changes] if call.changes is not None else result))

    return run


def _filled(argument: Any, arrays: Sequence[Any]) -> Any:
    return mapped(argument, lambda ref: arrays[ref.index], leaf=Ref)


@dataclass(slots=True)
class _Reader:
    """Reads what `mx.export_function` calls back with."""

    out: Expansion
    places: dict[str, int] = field(default_factory=dict)

    def read(self, data: dict[str, Any]) -> None:
        match data["type"]:
            case "inputs":
                self._at(data["inputs"])
            case "outputs":
                self.out.outputs = self._at(data["outputs"])
            case "constants":
                for name, array in data["constants"]:
                    (at,) = self._at([(name, array.shape, array.dtype)])
                    if array.size == 1:
                        self.out.constants[at] = (array.item(), dtype_name(array.dtype), array.ndim)
            case "primitive":
                key = frozen(data["arguments"])
                inputs, outputs = self._at(data["inputs"]), self._at(data["outputs"])
                self.out.primitives.append(Primitive(data["name"], inputs, outputs, key))

    def _at(self, named: Sequence[tuple[str, Any, Any]]) -> tuple[int, ...]:
        places = []
        for name, shape, dtype in named:
            if name not in self.places:
                self.places[name] = len(self.out.arrays)
                self.out.arrays.append((tuple(shape), dtype_name(dtype)))
            places.append(self.places[name])
        return tuple(places)


def frozen(arguments: Any) -> Hashable:
    """A primitive's arguments as something hashable."""
    if isinstance(arguments, (list, tuple)):
        return tuple(map(frozen, arguments))
    if isinstance(arguments, (bool, int, float, str, type(None))):
        return arguments
    return str(arguments)
