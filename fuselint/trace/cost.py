"""The kernels of a graph in evaluation order, each with the bytes that it reads and writes.

Shapes are numbers here, so strides are followed exactly: which reshapes copy, how much of a buffer a view covers, and
how many bytes lie behind a broadcast. A kernel reads each distinct byte of its operands once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from fuselint.graph.dtypes import ITEMSIZE
from fuselint.graph.fuse import Group
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import FUSABLE, RESHAPES, VIEWS, Array
from fuselint.trace.fused import COPY_OF_ROPE, FEW_QUERIES
from fuselint.trace.model import Kernel, Moved
from fuselint.traffic import layout

Strides = tuple[int, ...]

MANY_KEYS = 1024
REDUCTIONS = ("And", "Or", "Sum", "Prod", "Min", "Max")
OVERWRITING = {"SliceUpdate": 4, "Scatter": 4, "ScatterAxis": 1}
"""The number of an update that puts its values in place of the old; the others add them, or the like."""
GATHERS = ("Gather", "GatherAxis")
EXPERTS = ("GatherMM", "GatherQMM", "GatherQQMM")
UPDATES = ("SliceUpdate", "DynamicSliceUpdate", "Scatter", "ScatterAxis", "MaskedScatter")
"""Primitives that change a part of their first operand: in place where nothing else holds it."""


@lru_cache(maxsize=4096)
def viewed(shape: Strides, strides: Strides, new: Strides) -> Strides | None:
    """Strides of a new shape over the same memory, or None: it takes a copy."""
    sizes: tuple[list[Expr], ...] = tuple([Expr.of(n) for n in axes] for axes in (shape, strides, new))
    out = layout.viewed(*sizes)
    return None if out is None else tuple(e.value() or 0 for e in out)


@lru_cache(maxsize=4096)
def contiguous(shape: tuple[int, ...]) -> Strides:
    out, n = [], 1
    for d in reversed(shape):
        out.append(n)
        n *= d
    return tuple(reversed(out))


def dims(array: Array) -> tuple[int, ...]:
    """The sizes of an array's axes: in a trace all are known."""
    assert array.shape is not None
    return tuple(d.value() or 0 for d in array.shape.dims)


@dataclass(eq=False)
class Memory:
    """Where the arrays of a graph lie: each in a buffer of its own, or as a view of another's."""

    shapes: dict[Array, tuple[int, ...]] = field(default_factory=dict)
    strides: dict[Array, Strides] = field(default_factory=dict)
    buffers: dict[Array, Array] = field(default_factory=dict)

    def shape(self, a: Array) -> tuple[int, ...]:
        if a not in self.shapes:
            self.shapes[a] = dims(a)
        return self.shapes[a]

    def layout(self, a: Array) -> Strides:
        if a not in self.strides:
            self.own(a, contiguous(self.shape(a)))
        return self.strides[a]

    def buffer(self, a: Array) -> Array:
        self.layout(a)
        return self.buffers[a]

    def own(self, a: Array, strides: Strides) -> None:
        self.strides[a], self.buffers[a] = strides, a

    def view(self, a: Array, of: Array, strides: Sequence[int]) -> None:
        buffer = self.buffer(of)
        self.strides[a], self.buffers[a] = tuple(strides), buffer

    def size(self, a: Array) -> int:
        return prod(self.shape(a)) * ITEMSIZE[a.dtype]

    def touched(self, a: Array) -> int:
        """Bytes behind a view: broadcast axes count once."""
        axes = zip(self.shape(a), self.layout(a), strict=True)
        return min(prod(d for d, s in axes if s) * ITEMSIZE[a.dtype], self.size(self.buffer(a)))

    def is_contiguous(self, a: Array) -> bool:
        wanted = contiguous(self.shape(a))
        return all(d == 1 or s == w for d, s, w in zip(self.shape(a), self.layout(a), wanted, strict=True))

    # -- views ---------------------------------------------------------------------------------------------------------

    def place(self, a: Array) -> bool:
        """Lay an array out; whether that takes a kernel."""
        source = a.inputs[0] if a.inputs else None
        if source is None or (a.primitive not in PLACES and a.primitive not in VIEWS):
            self.own(a, self.elementwise(a, a.inputs) if a.primitive in FUSABLE else contiguous(self.shape(a)))
            return bool(a.primitive)
        strides = PLACES.get(a.primitive, _same)(self, a, source)
        if strides is None:
            self.own(a, contiguous(self.shape(a)))
            return True
        self.view(a, source, strides)
        return False

    def elementwise(self, a: Array, operands: Iterable[Array]) -> Strides:
        """An elementwise result keeps the order of axes that its full-sized operands agree on."""
        shape = self.shape(a)
        full = {self.layout(b) for b in operands if self.shape(b) == shape and prod(shape) > 1}
        if len(full) == 1:
            (only,) = full
            if 0 not in only and _is_dense(shape, only):
                return only
        return contiguous(shape)


def _is_dense(shape: tuple[int, ...], strides: Strides) -> bool:
    """Whether the strides are those of a permuted contiguous array."""
    n = 1
    for s, d in sorted((s, d) for d, s in zip(shape, strides, strict=True) if d != 1):
        if s != n:
            return False
        n *= d
    return True


def _same(memory: Memory, a: Array, source: Array) -> Strides | None:
    own = memory.layout(source)
    return own if len(own) == len(memory.shape(a)) else contiguous(memory.shape(a))


def _broadcast(memory: Memory, a: Array, source: Array) -> Strides | None:
    shape, old, own = memory.shape(a), memory.shape(source), memory.layout(source)
    pad = len(shape) - len(old)
    grown = (0 if old[i] == 1 and shape[pad + i] != 1 else own[i] for i in range(len(old)))
    return (*(0,) * pad, *grown)


def _transpose(memory: Memory, a: Array, source: Array) -> Strides | None:
    assert isinstance(a.key, tuple) and isinstance(a.key[0], tuple)
    own = memory.layout(source)
    return tuple(own[i] for i in a.key[0])


def _slice(memory: Memory, a: Array, source: Array) -> Strides | None:
    own = memory.layout(source)
    steps = a.key[2] if isinstance(a.key, tuple) and len(a.key) == 3 else None
    return own if not isinstance(steps, tuple) else tuple(s * k for s, k in zip(own, steps, strict=True))


def _reshape(memory: Memory, a: Array, source: Array) -> Strides | None:
    if prod(memory.shape(a)) == 0:
        return contiguous(memory.shape(a))
    return viewed(memory.shape(source), memory.layout(source), memory.shape(a))


def _contiguous(memory: Memory, a: Array, source: Array) -> Strides | None:
    return memory.layout(source) if memory.is_contiguous(source) else None


def _as_strided(memory: Memory, a: Array, source: Array) -> Strides | None:
    strides = a.key[1] if isinstance(a.key, tuple) and len(a.key) > 1 else None
    return strides if isinstance(strides, tuple) else contiguous(memory.shape(a))


def _retyped(memory: Memory, a: Array, source: Array) -> Strides | None:
    """`x.view(dtype)`: of another size, over contiguous data only."""
    same = ITEMSIZE[a.dtype] == ITEMSIZE[source.dtype]
    if same:
        return memory.layout(source)
    return contiguous(memory.shape(a)) if memory.is_contiguous(source) else None


PLACES: Mapping[str, Callable[[Memory, Array, Array], Strides | None]] = {
    "Broadcast": _broadcast,
    "BroadcastAxes": _broadcast,
    "Transpose": _transpose,
    "Slice": _slice,
    "Contiguous": _contiguous,
    "AsStrided": _as_strided,
    "View": _retyped,
    **dict.fromkeys((*RESHAPES, "ExpandDims", "Squeeze"), _reshape),
}


# -- kernels ----------------------------------------------------------------------------------------------------------


def kernels(groups: Sequence[Group], kept: Iterable[Array]) -> list[tuple[Group, Kernel]]:
    """The groups that launch something. kept: arrays that are still held at the end, or that the caller holds."""
    memory = Memory()
    readers: dict[Array, int] = {}
    results: dict[Array, list[Array]] = {}
    for g in groups:
        for a in set(g.inputs):
            readers[a] = readers.get(a, 0) + 1
        if g.root.primitive == "Item":
            results.setdefault(g.root.inputs[0], []).append(g.root)
    held = set(kept)
    out = []
    for g in groups:
        if g.fused:
            for a in g.outputs:
                memory.own(a, memory.elementwise(a, g.inputs))
        elif g.root.primitive == "Item":
            memory.own(g.root, contiguous(memory.shape(g.root)))
            continue
        elif not memory.place(g.root):
            continue
        if g.root.primitive == "ScaledDotProductAttention":
            _place_attended(memory, g.root)
        donated = g.root.primitive in UPDATES and _is_donated(memory, g, readers, held)
        if donated:
            memory.view(g.root, g.inputs[0], memory.layout(g.inputs[0]))
        out.append((g, _kernel(memory, g, results.get(g.root, []), donated)))
    return out


def _place_attended(memory: Memory, a: Array) -> None:
    """The kernel for many queries writes its result as batch x length x heads x features."""
    batch, heads, length, width = memory.shape(a)
    if length > FEW_QUERIES:
        memory.own(a, (length * heads * width, width, heads * width, 1))
    assert batch


def _is_donated(memory: Memory, g: Group, readers: Mapping[Array, int], held: set[Array]) -> bool:
    """Whether an update may be made in place: nothing else reads the array, or holds it."""
    source = g.inputs[0]
    if memory.buffer(source) is not source:
        return False
    return readers.get(source, 0) <= 1 and source not in held


def _kernel(memory: Memory, g: Group, more: Sequence[Array], donated: bool) -> Kernel:
    outputs = [*g.outputs, *more]
    reads, writes = _reads(memory, g, donated), _writes(memory, g, outputs, donated)
    buffers = dict.fromkeys(b for a in (*g.inputs, *outputs) if (b := memory.buffer(a)).value is None)
    sizes = tuple((id(b), prod(memory.shape(b))) for b in buffers)
    return Kernel(name(g), tuple(reads), tuple(writes), launches(memory, g, donated), sizes)


def name(g: Group) -> str:
    """What a kernel is called: its primitives, without what moves no data."""
    parts = [_title(a) for a in g.arrays if a.primitive != "Broadcast" or len(g.arrays) == 1]
    return " + ".join(parts)


def _title(a: Array) -> str:
    key = a.key if isinstance(a.key, tuple) else ()
    if a.primitive == "Reduce" and key and isinstance(key[0], int):
        return REDUCTIONS[key[0]]
    if a.primitive == "Sqrt" and key == (True,):
        return "Rsqrt"
    if a.primitive == "AsType":
        return f"AsType({a.dtype})"
    return f"{a.primitive} (copies)" if a.primitive in RESHAPES else a.primitive


def _reads(memory: Memory, g: Group, donated: bool) -> list[Moved]:
    """Each distinct operand once, and of one buffer never more than there is."""
    left: dict[Array, int] = {}
    out = []
    for position, a in _distinct(g.inputs):
        buffer = memory.buffer(a)
        if buffer.value is not None:
            continue  # a constant: part of the kernel
        rest = left.setdefault(buffer, memory.size(buffer))
        amount = min(rest, _read(memory, g, position, a, donated))
        left[buffer] = rest - amount
        out.append(Moved(memory.shape(a), a.dtype, amount))
    return out


def _distinct(arrays: Sequence[Array]) -> list[tuple[int, Array]]:
    first: dict[Array, int] = {}
    for i, a in enumerate(arrays):
        first.setdefault(a, i)
    return [(i, a) for a, i in first.items()]


def _read(memory: Memory, g: Group, position: int, a: Array, donated: bool) -> int:
    touched, primitive = memory.touched(a), g.root.primitive
    if g.fused:
        return touched
    if a.primitive == COPY_OF_ROPE and primitive == "RoPE":
        return _rotated(memory, g)
    if primitive in GATHERS and position == 0:
        return min(touched, memory.size(g.root))  # the rows that are asked for
    if primitive in EXPERTS and memory.shape(a)[:-2] and position in _weights(primitive, len(g.inputs)):
        return min(touched, touched // prod(memory.shape(a)[:-2]) * _picked(memory, g))
    if primitive in UPDATES and position == 0 and donated:
        return 0 if _overwrites(g.root) else _update(memory, g)
    return touched


def _overwrites(update: Array) -> bool:
    """Whether an update puts new values in place of the old, and doesn't add them or the like."""
    reduction = update.key[0] if isinstance(update.key, tuple) and update.key else None
    return update.primitive not in OVERWRITING or reduction == OVERWRITING[update.primitive]


def _weights(primitive: str, operands: int) -> range:
    """Which operands of a product with picked matrices are picked from: those between the rows and the indices."""
    return range(1, operands - 2)


def _picked(memory: Memory, g: Group) -> int:
    """How many matrices are picked at most: one a row of the indices, which come last."""
    return prod(memory.shape(g.inputs[-1])) or 1


def _writes(memory: Memory, g: Group, outputs: Sequence[Array], donated: bool) -> list[Moved]:
    if g.root.primitive in UPDATES and not g.fused:
        changed = _update(memory, g)
        whole = 0 if donated else memory.size(g.root)
        return [Moved(memory.shape(g.root), g.root.dtype, whole + changed)]
    if g.inputs and g.inputs[0].primitive == COPY_OF_ROPE and g.root.primitive == "RoPE":
        return [Moved(memory.shape(g.root), g.root.dtype, _rotated(memory, g))]
    return [Moved(memory.shape(a), a.dtype, memory.touched(a)) for a in outputs]


def _rotated(memory: Memory, g: Group) -> int:
    """Bytes of the features that a rotary embedding of a part of each row rotates."""
    rotated = dict(g.root.key)["dims"] if isinstance(g.root.key, tuple) else 0
    return memory.size(g.root) * rotated // memory.shape(g.root)[-1]


def _update(memory: Memory, g: Group) -> int:
    """Bytes of the part that an update changes."""
    at = len(g.inputs) - 1 if g.root.primitive in ("Scatter", "ScatterAxis", "MaskedScatter") else 1
    update = g.inputs[at]
    return min(prod(memory.shape(update)) * ITEMSIZE[update.dtype], memory.size(g.root))


def launches(memory: Memory, g: Group, donated: bool) -> int:
    """Launches of one kernel: a concatenation has one an operand, padding fills first, an update copies first."""
    if g.fused:
        return 1
    primitive = g.root.primitive
    if primitive == "Concatenate":
        return len(g.inputs)
    if primitive == "Pad":
        return 2
    if primitive in UPDATES:
        return 1 if donated else 2
    if primitive == "ScaledDotProductAttention":
        return 2 if _in_two_passes(memory, g) else 1
    return 1


def _in_two_passes(memory: Memory, g: Group) -> bool:
    """Few queries on many keys are attended in parts, as on Max and Ultra chips."""
    q, k = (memory.shape(a) for a in g.inputs[:2])
    return q[2] <= FEW_QUERIES and k[2] >= MANY_KEYS
