"""Where arrays lie in memory: which reshapes and norms copy, and how many elements an operand really holds.

After mlx/backend/common: views share the memory of what they are views of, elementwise results keep the layout of
operands without holes, all else is written in row order. Strides are sizes; an array of unknown rank is in row order
until it is permuted or cut. Names of sizes stand for numbers above 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fuselint.graph.gates import FEW_QUERIES, Backend
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr, product
from fuselint.graph.tape import FUSABLE, RESHAPES, Array
from fuselint.traffic.sizes import HEADED_RANK, reduced

ONE, ZERO = Expr.of(1), Expr.of(0)

ATTENTION = "ScaledDotProductAttention"
"""Also the key of what stands for the result of a function that returns attention."""
Sizes = tuple[Expr, ...]

SOME_STEP = Expr.name("from row to row")
"""Where nothing is known of the rows of an array but that a part of each is taken."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where an array lies.

    base: the array that owns the memory. shape: of the elements in memory, where an axis that is broadcast is 1.
    strides: None where the rank isn't known. offset: of the first element, or the cuts that led there.
    contiguous: without holes; row, col: in row or column order. scalar: one element in memory.
    step: where the rank isn't known, and each row is dense, from one to the next: parts of the last axis of an array;
    without holes, rows in another order.
    """

    base: Array
    shape: Shape | None
    strides: Sizes | None
    offset: Hashable = ZERO
    contiguous: bool = True
    row: bool = True
    col: bool = False
    step: Expr | None = None

    @property
    def scalar(self) -> bool:
        return self.shape is not None and self.shape.lead is None and all(d == 1 for d in self.shape.dims)

    @property
    def key(self) -> Hashable:
        """Equal for two places that hold the same elements."""
        if self.strides is None or self.shape is None or self.shape.lead is not None:
            return (self.base, self.offset)
        pairs = list(zip(self.shape.dims, self.strides, strict=True))
        offset = self.offset
        if isinstance(offset, Expr):  # of the lowest element
            offset = offset + sum((s * (d - 1) for d, s in pairs if _negative(s)), ZERO)
        steps = [(d, s * -1 if _negative(s) else s) for d, s in pairs if d != 1 and s != 0]
        return (self.base, offset, frozenset(_merged(steps)))


def _merged(steps: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
    """Axes that follow each other without a gap as one, in whatever order they stand."""
    found = True
    while found:
        found = False
        for i, (n, s) in enumerate(steps):
            j = next((j for j, (m, r) in enumerate(steps) if j != i and r * m == s), None)
            if j is not None:
                m, r = steps[j]
                steps = [p for k, p in enumerate(steps) if k not in (i, j)]
                steps.append((n * m, r))
                found = True
                break
    return steps


class Layout:
    """The places of the arrays of a tape, and those of reshapes, norms and softmax that copy their operand first.

    given: places of arrays that come from outside.
    """

    def __init__(
        self, arrays: Iterable[Array], backend: Backend = "metal", given: Mapping[Array, Place] | None = None
    ) -> None:
        self.backend = backend
        self.given = given or {}
        self.places: dict[Array, Place] = dict(self.given)
        self.copies: set[Array] = set()
        for a in arrays:
            self.of(a)

    def without_copies(self, arrays: Iterable[Array], ones: frozenset[str]) -> None:
        """Where these sizes are 1, fewer copy."""
        small, fewer = self.at_ones(arrays, ones)
        self.copies = {a for a in self.copies if small[a] in fewer.copies}

    def at_ones(self, arrays: Iterable[Array], ones: frozenset[str]) -> tuple[dict[Array, Array], Layout]:
        """What the arrays are where these sizes are 1, and how those lie."""
        sizes = {name: 1 for name in ones}
        small: dict[Array, Array] = {}

        def at_one(a: Array) -> Array:
            if a not in small:
                shape = (
                    None if a.shape is None else Shape(a.shape.lead, tuple(d.substitute(sizes) for d in a.shape.dims))
                )
                small[a] = replace(a, inputs=[at_one(b) for b in a.inputs], shape=shape)
            return small[a]

        tape = [at_one(a) for a in arrays]
        given = {small[a]: _with(p, sizes) for a, p in self.given.items() if a in small}
        return small, Layout(tape, self.backend, given)

    def of(self, a: Array) -> Place:
        found = self.places.get(a)
        return found if found is not None else self.add(a)

    def add(self, a: Array) -> Place:
        place = self._place(a)
        self.places[a] = place
        return place

    def _place(self, a: Array) -> Place:
        if not a.inputs:
            return fresh(a)
        if a.primitive in RESHAPES:
            return self._reshape(a)
        view = VIEWED.get(a.primitive)
        if view is not None:
            return view(a, self.of(a.inputs[0]))
        if a.primitive in FUSABLE:
            return self._elementwise(a)
        if a.primitive in KEEPING[self.backend]:
            return _along_axis(a, self.of(a.inputs[0]))
        if a.primitive.startswith("Compiled"):
            return self.kernel(a, a.inputs)
        special = SPECIAL.get(ATTENTION if a.key == ATTENTION else a.primitive)
        return fresh(a) if special is None else special(self, a)

    def _reshape(self, a: Array) -> Place:
        source = self.of(a.inputs[0])
        if a.primitive == "Contiguous":
            shared = source if source.row else None
        else:
            shared = _reshaped(a, a.inputs[0].shape, source)
        if shared is None:
            self.copies.add(a)
            return fresh(a)
        return shared

    # -- results of elementwise work ----------------------------------------------------------------------------------

    def _elementwise(self, a: Array) -> Place:
        given = [self.of(b) for b in a.inputs[: 3 if a.primitive == "Select" else 2]]
        if len(given) == 1:
            return like(a, given[0]) if given[0].contiguous else fresh(a)
        if len(given) == 2:
            return self._binary(a, given[0], given[1])
        if all(p.scalar for p in given) or all(p.row for p in given) or all(p.col for p in given):
            return like(a, given[1])
        return fresh(a)

    def _binary(self, a: Array, x: Place, y: Place) -> Place:
        if x.scalar and y.scalar:
            return like(a, x)
        if x.scalar and y.contiguous:
            return like(a, y)
        if y.scalar and x.contiguous:
            return like(a, x)
        return like(a, x) if (x.row and y.row) or (x.col and y.col) else fresh(a)

    def kernel(self, out: Array, inputs: Sequence[Array]) -> Place:
        """Where a fused kernel writes: mlx/backend/common/compiled.cpp."""
        given = [(b, self.of(b)) for b in inputs if b.value is None and not _is_number(b)]
        same = all(_equal(b.shape, out.shape) for b, _ in given)
        if len(given) == 1:
            kept = same and given[0][1].contiguous
        else:
            kept = bool(given) and same and (all(p.row for _, p in given) or all(p.col for _, p in given))
        return like(out, given[0][1]) if kept else fresh(out)

    def is_streamed(self, out: Array, inputs: Iterable[Array]) -> bool:
        """Whether elementwise work on a GPU reads its operands in the order of their memory, but for single numbers."""
        given = [(b, self.of(b)) for b in inputs]
        if out.primitive == "Select" and any(b.value is not None or p.scalar for b, p in given):
            return False
        many = [(b, p) for b, p in given if b.value is None and p.base.value is None and not p.scalar]
        kept = all(_equal(b.shape, out.shape) for b, _ in many)
        in_order = all(p.row for _, p in many) or all(p.col for _, p in many)
        return kept and (in_order or (len(many) == 1 and many[0][1].contiguous))


def _with(place: Place, sizes: Mapping[str, int]) -> Place:
    """Where names of sizes are numbers."""
    if place.shape is None or place.strides is None or not isinstance(place.offset, Expr):
        return place
    shape = Shape(place.shape.lead, tuple(d.substitute(sizes) for d in place.shape.dims))
    strides = tuple(s.substitute(sizes) for s in place.strides)
    return replace(place, shape=shape, strides=strides, offset=place.offset.substitute(sizes))


def _is_number(a: Array) -> bool:
    return a.shape is not None and a.shape.rank == 0


def _equal(a: Shape | None, b: Shape | None) -> bool:
    """Equal, or not known to differ."""
    return a == b or a is None or b is None or (a.lead is not None and b.lead is not None)


# -- places ------------------------------------------------------------------------------------------------------------


def fresh(a: Array) -> Place:
    """Memory of its own, in row order."""
    strides = contiguous(a.shape)
    dims = a.shape.dims if a.shape is not None and a.shape.lead is None else None
    flat = dims is not None and sum(d != 1 for d in dims) <= 1
    return Place(a, a.shape, strides, col=flat)


def like(a: Array, p: Place) -> Place:
    """Memory of its own, laid out like another."""
    if p.strides is None or a.shape is None or a.shape.lead is not None or len(a.shape.dims) != len(p.strides):
        return replace(fresh(a), contiguous=p.contiguous, row=p.row, col=p.col)
    dims = _held(a.shape.dims, p.strides)
    if p.scalar:
        dims = (ONE,) * len(dims)
    return Place(a, Shape(None, dims), p.strides, ZERO, p.contiguous, p.row, p.col)


def _held(dims: Iterable[Expr], strides: Iterable[Expr]) -> Sizes:
    """How many elements of each axis lie in memory: one of a broadcast axis, unless it is empty."""
    return tuple(ONE if s == 0 and d != 0 else d for d, s in zip(dims, strides, strict=True))


def contiguous(shape: Shape | None) -> Sizes | None:
    if shape is None or shape.lead is not None:
        return None
    out: list[Expr] = []
    n = ONE
    for d in reversed(shape.dims):
        out.append(n)
        n = n * d
    return tuple(reversed(out))


def _in_order(sizes: Iterable[Expr], strides: Iterable[Expr]) -> bool:
    """Whether each stride is the number of elements before it."""
    step = ONE
    for d, s in zip(sizes, strides, strict=True):
        if s != step and d != 1:
            return False
        step = step * d
    return True


# -- views -------------------------------------------------------------------------------------------------------------


def _same(a: Array, p: Place) -> Place:
    return p


def _other_rank(a: Array, p: Place, *, ordered: bool = True) -> Place:
    """A view whose strides aren't known, of the same elements."""
    return replace(p, strides=None, row=p.row and ordered, col=p.col and ordered)


def _squeezed(a: Array, p: Place) -> Place:
    axes = _numbers(a.key)
    if p.strides is None or axes is None or p.shape is None:
        return _other_rank(a, p)
    kept = [i for i in range(len(p.strides)) if i not in axes]
    dims = Shape(None, tuple(p.shape.dims[i] for i in kept))
    return replace(p, shape=dims, strides=tuple(p.strides[i] for i in kept))


def _expanded(a: Array, p: Place) -> Place:
    axes = _numbers(a.key)
    if p.strides is None or axes is None or p.shape is None:
        return _other_rank(a, p)
    dims, strides = list(p.shape.dims), list(p.strides)
    for axis in axes:
        dims.insert(axis, ONE)
        strides.insert(axis, ONE)
    return replace(p, shape=Shape(None, tuple(dims)), strides=tuple(strides))


def _transposed(a: Array, p: Place) -> Place:
    axes = _numbers(a.key)
    if p.strides is None or axes is None or p.shape is None:
        return _other_rank(a, p, ordered=False)
    dims, strides = tuple(p.shape.dims[i] for i in axes), tuple(p.strides[i] for i in axes)
    row, col = p.row, p.col
    if p.contiguous and 0 not in strides and a.shape is not None:
        row, col = _in_order(reversed(a.shape.dims), reversed(strides)), _in_order(a.shape.dims, strides)
    return replace(p, shape=Shape(None, dims), strides=strides, row=row, col=col)


def _broadcast(a: Array, p: Place) -> Place:
    source = a.inputs[0].shape
    grows = source is not None and a.shape is not None and source != a.shape
    if p.strides is None or a.shape is None or a.shape.lead is not None or source is None or p.shape is None:
        return _other_rank(a, p, ordered=not grows)
    pad = len(a.shape.dims) - len(p.strides)
    if pad < 0:
        return _other_rank(a, p, ordered=not grows)
    strides = (ZERO,) * pad + tuple(ZERO if d == 1 else s for d, s in zip(source.dims, p.strides, strict=True))
    dims = (ONE,) * pad + p.shape.dims
    return replace(p, shape=Shape(None, dims), strides=strides, row=p.row and not grows, col=p.col and not grows)


def _sliced(a: Array, p: Place) -> Place:
    key = a.key
    cuts = key if isinstance(key, tuple) and key and all(isinstance(c, tuple) and len(c) == 3 for c in key) else None
    known = p.strides is not None and cuts is not None and isinstance(p.offset, Expr) and p.shape is not None
    if not known or a.shape is None or a.shape.lead is not None or not isinstance(cuts, tuple):
        return replace(p, shape=a.shape, strides=None, offset=(p.offset, key), contiguous=False, row=False, col=False)
    assert p.strides is not None
    assert p.shape is not None
    assert isinstance(p.offset, Expr)
    offset = p.offset + sum((start * s for (start, _, _), s in zip(cuts, p.strides, strict=True)), ZERO)
    strides = tuple(s * step for (_, step, _), s in zip(cuts, p.strides, strict=True))
    return _cut(a, p, strides, offset)


def _row(a: Array, p: Place) -> Place:
    """An element of a container, or a row of an array."""
    return replace(fresh(a), offset=(p.base, p.offset))


def _split(a: Array, p: Place) -> Place:
    found = _parted(a, p)
    if found.strides is not None or _axis_of(a.key) != -1 or not (p.row or p.step is not None):
        return found
    source = a.inputs[0].shape
    step = p.step if p.step is not None else None if source is None else source.axis(-1)
    return replace(found, step=SOME_STEP if step is None else step)


def _axis_of(key: Hashable) -> int | None:
    """The axis of a split, as its key says it."""
    said = key[0] if isinstance(key, tuple) and key and isinstance(key[0], tuple) else ()
    named = next((v for k, v in (s for s in said if isinstance(s, tuple) and len(s) == 2) if k == "axis"), None)
    axis = named if named is not None else said[-1] if said else None
    return int(axis) if isinstance(axis, (int, str)) and re.fullmatch(r"-?\d+", str(axis)) else None


def _parted(a: Array, p: Place) -> Place:
    key = a.key
    if not (isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], tuple) and isinstance(key[0][0], tuple)):
        if p.strides is not None and a.shape is not None and a.shape.lead is None:
            return replace(_cut(a, p, p.strides, ZERO), offset=(p.offset, key))
        return replace(p, shape=a.shape, strides=None, offset=(p.offset, key), contiguous=False, row=False, col=False)
    (ends, axis), part = key
    if p.strides is None or not isinstance(p.offset, Expr) or a.shape is None or p.shape is None:
        return replace(p, shape=a.shape, strides=None, offset=(p.offset, key), contiguous=False, row=False, col=False)
    start = ZERO if part == 0 else ends[part - 1]
    return _cut(a, p, p.strides, p.offset + start * p.strides[axis])


def _cut(a: Array, p: Place, strides: Sizes, offset: Expr) -> Place:
    assert a.shape is not None
    dims = _held(a.shape.dims, strides)
    pairs = list(zip(a.shape.dims, strides, strict=True))
    forward = product(d for d, s in pairs if not _negative(s) and s != 0)
    span = ONE + sum(((d - 1) * (s * -1 if _negative(s) else s) for d, s in pairs), ZERO)
    row, col = _in_order(reversed(a.shape.dims), reversed(strides)), _in_order(a.shape.dims, strides)
    return Place(p.base, Shape(None, dims), strides, offset, forward == span, row, col)


def _negative(size: Expr) -> bool:
    return bool(size.terms) and all(c < 0 for _, c in size.terms)


def _numbers(key: Hashable) -> tuple[int, ...] | None:
    return key if isinstance(key, tuple) and all(isinstance(i, int) and i >= 0 for i in key) else None


VIEWED: dict[str, Callable[[Array, Place], Place]] = {
    "StopGradient": _same, "Copy": _same, "Depends": _same, "Squeeze": _squeezed, "ExpandDims": _expanded,
    "Transpose": _transposed, "Broadcast": _broadcast, "BroadcastAxes": _broadcast, "Slice": _sliced, "Split": _split,
    "Item": _row,
}  # fmt: skip


def _reshaped(a: Array, old: Shape | None, p: Place) -> Place | None:
    """The same memory under the new shape, or None: it takes a copy."""
    if p.row:
        if a.shape is None or a.shape.lead is not None:
            return _other_rank(a, p)
        flat = sum(d != 1 for d in a.shape.dims) <= 1
        return replace(p, shape=a.shape, strides=contiguous(a.shape), col=flat)
    if p.strides is None and p.step is not None and old is not None and a.shape is not None:
        return _split_rows(a.shape, old, p, p.step)
    if p.strides is None or old is None or old.lead is not None or a.shape is None or a.shape.lead is not None:
        # Of unknown rank: a broadcast or permuted array is copied, one with holes may or may not be.
        return None
    strides = viewed(old.dims, p.strides, a.shape.dims)
    if strides is None:
        return None
    dims = _held(a.shape.dims, strides)
    return replace(p, shape=Shape(None, dims), strides=strides)


def _split_rows(new: Shape, old: Shape, p: Place, step: Expr) -> Place | None:
    """Rows that each become some axes, and whatever axes they stand in."""
    row, dims = old.axis(-1), new.dims
    cut = next((i for i in range(len(dims)) if reduced(product(dims[i:])) == row), None)
    if cut is None and old.lead is not None and not old.dims and new.lead is None and len(dims) >= HEADED_RANK:
        cut = len(dims) - 2  # nothing is known of any axis: (B, L, C) becomes (B, L, heads, width)
    if cut is None:
        return None
    inner = contiguous(Shape(None, dims[cut:])) or ()
    if new.lead is not None:
        return replace(p, shape=new, step=step if len(inner) == 1 else None)
    outer = tuple(product(dims[i + 1 : cut]) * step for i in range(cut))
    return replace(p, shape=new, strides=(*outer, *inner), step=None)


def viewed(old: Sequence[Expr], strides: Sequence[Expr], new: Sequence[Expr]) -> Sizes | None:
    """Strides of the new shape over the same memory, or None: prepare_reshape of mlx/backend/common/common.cpp."""
    if not old:
        return (ZERO,) * len(new)
    sizes, steps = _collapsed(old, strides)
    out: list[Expr] = []
    at = 0
    for i, d in enumerate(new):
        if len(out) > i:
            continue
        if at < len(sizes) and d.divides(sizes[at]):
            sizes[at] = sizes[at] // d
            out.append(sizes[at] * steps[at])
            at += sizes[at] == 1
        elif d == 1:
            out.append(out[-1])
        elif at < len(sizes) and (count := _filling(sizes[at], new[i:]) or _rest(sizes, at, new[i:])):
            out.extend(product(new[j + 1 : i + count]) * steps[at] for j in range(i, i + count))
            at += 1
        else:
            return None
    return tuple(out)


def _filling(size: Expr, new: Sequence[Expr]) -> int:
    """How many of the sizes are the parts of one axis: `n` and `m // n` are those of m."""
    return next((n for n in range(2, len(new) + 1) if reduced(product(new[:n])) == size), 0)


def _rest(sizes: Sequence[Expr], at: int, new: Sequence[Expr]) -> int:
    """How many sizes the last axis is made into: all that are left, since both shapes hold as many elements."""
    return len(new) if at == len(sizes) - 1 and -1 not in new else 0


def _collapsed(sizes: Sequence[Expr], strides: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Axes that follow each other without a gap as one: collapse_contiguous_dims of mlx/backend/common/utils.cpp."""
    counts: list[Expr] = []
    steps: list[Expr] = []
    for n, s in zip(sizes, strides, strict=True):
        if n == 1:
            continue
        if steps and steps[-1] == s * n:
            counts[-1], steps[-1] = counts[-1] * n, s
        else:
            counts.append(n)
            steps.append(s)
    return counts or [ONE], steps or [ZERO]


# -- kernels that don't write in row order -----------------------------------------------------------------------------


def _along_axis(a: Array, p: Place) -> Place:
    """Unless the axis is a broadcast one."""
    axis = a.key[0] if isinstance(a.key, tuple) else None
    strides = p.strides or ()
    wide = isinstance(axis, int) and -len(strides) <= axis < len(strides) and strides[axis] == 0
    return like(a, p) if p.contiguous and not wide else fresh(a)


def _full(layout: Layout, a: Array) -> Place:
    p = layout.of(a.inputs[0])
    return like(a, p) if p.contiguous and not p.scalar else fresh(a)


def _row_wise(layout: Layout, a: Array) -> Place:
    """Norms and softmax keep a layout whose last axis is dense, and copy what isn't so into row order first: set_output
    of normalization.cpp and softmax.cpp of MLX's GPU backends."""
    p = layout.of(a.inputs[0])
    if layout.backend != "cpu" and _is_copied(a, p):
        layout.copies.add(a)
        return fresh(a)
    dense = p.row if p.strides is None else bool(p.strides) and p.strides[-1] == 1
    return like(a, p) if p.contiguous and dense else fresh(a)


def _is_copied(a: Array, p: Place) -> bool:
    """Whether the operand of a norm or of softmax is known to have holes, or rows that aren't dense or in order."""
    if p.row or not p.contiguous:
        return not p.row
    if p.strides is None and p.step is not None:
        return a.primitive != "Softmax"
    if not p.strides or p.shape is None or p.shape.lead is not None:
        return False
    dims = p.shape.dims
    if p.strides[-1] != 1 and dims[-1] != 1:
        return True
    if a.primitive == "Softmax" or len(dims) == 1:
        return False
    return not (p.strides[-2] in (0, dims[-1]) or dims[-2] == 1)


def _log_sum_exp(layout: Layout, a: Array) -> Place:
    p, source = layout.of(a.inputs[0]), a.inputs[0].shape
    dense = p.strides is not None and p.strides[-1:] == (ONE,)
    if p.row or not p.contiguous or not dense or p.strides is None or source is None or source.lead is not None:
        return fresh(a)
    last = source.dims[-1] if source.dims else ONE
    if a.shape is None or a.shape.rank != source.rank or not all(last.divides(s) for s in p.strides[:-1]):
        return fresh(a)
    strides = (*(s // last for s in p.strides[:-1]), ZERO)
    dims = _held(a.shape.dims, strides)
    return Place(a, Shape(None, dims), strides, ZERO, p.contiguous, row=False, col=False)


def _attention(layout: Layout, a: Array) -> Place:
    """Prefill on Metal writes (B, L, heads, D), so that merging heads is free."""
    dims = a.shape.dims if a.shape is not None and a.shape.rank == 4 else None
    length = None if dims is None else dims[2].value()
    if dims is None or layout.backend != "metal" or (length is not None and length <= FEW_QUERIES):
        return fresh(a)
    _, heads, rows, width = dims
    strides = (rows * heads * width, width, heads * width, ONE)
    return Place(a, a.shape, strides, ZERO, True, row=False, col=False)


SPECIAL: dict[str, Callable[[Layout, Array], Place]] = {
    "Full": _full, "Softmax": _row_wise, "RMSNorm": _row_wise, "LayerNorm": _row_wise, "LogSumExp": _log_sum_exp,
    ATTENTION: _attention,
}  # fmt: skip

KEEPING: dict[Backend, frozenset[str]] = {
    "metal": frozenset({"Scan"}), "cuda": frozenset({"Scan"}), "cpu": frozenset({"Sort", "Partition"}),
}  # fmt: skip
"""Kernels whose result lies like their operand."""
