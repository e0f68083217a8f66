"""Angles of rotations in the canonical form: positions that count up, times frequencies that are the same for each.

| part | read as |
|---|---|
| positions | offset + arange(length), along one axis |
| frequencies | base^(-2i/d), or a table of one axis: themselves, or their inverse |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fuselint.graph.canonical import Canonical
from fuselint.graph.identities_views import FULL
from fuselint.graph.values import ONE, Value, close

UNARY = frozenset(("cos", "sin"))

NAMED = frozenset("param attr item global".split())

ELEMENTWISE = frozenset(
    "where maximum minimum clip less greater less_equal greater_equal logical_and logical_or logical_not".split()
)
"""Operations, beside products and sums, that frequencies are adjusted with."""


@dataclass(frozen=True, slots=True)
class Frequencies:
    """Angles per position. base: frequencies are base^(-2i/d); else `table` is 1-D: what they are, or their inverse."""

    base: Value | None = None
    power: Value | None = None  # the base's exponent, where the exponents were not divided by the rotated length
    table: Value | None = None
    inverse: bool = False  # the table holds wavelengths
    length: Value | None = None  # what the exponents call the rotated length
    count: Value | None = None  # how many there are, where a range counts them one by one


@dataclass(frozen=True, slots=True)
class Angles:
    """scale * positions along `axis` of x, counted from the end, times frequencies.

    positions: offset + arange(length). offset None: they are not known to count up. length None: not known.
    vague: positions or frequencies, of which nothing is known, are taken for vectors.
    """

    scale: Value
    positions: Value
    offset: Value | None
    length: Value | None
    axis: int
    frequencies: Frequencies
    vague: bool = False


@dataclass(frozen=True, slots=True)
class _Table:
    """scale x 1-D factors with their exponents, each along an axis counted from the end.

    rows: the first position that is taken of it, and how many, where not all are.
    """

    scale: Value
    factors: tuple[tuple[Value, int, Fraction], ...]
    rows: tuple[Value, Value | None] | None = None

    def moved(self, axis: Callable[[int], int]) -> _Table:
        return replace(self, factors=tuple((core, axis(a), e) for core, a, e in self.factors))


def read_angles(c: Canonical, u: Value, whole: Value) -> Angles | None:
    """u as scale * (offset + arange) x frequencies. whole: the length that is rotated, which is even."""
    table = _opened(c, u, ONE)
    if table is None:
        return None
    positions = [(core, axis, e) for core, axis, e in table.factors if axis < -1]
    rest = [(core, e) for core, axis, e in table.factors if axis == -1]
    if len(positions) != 1 or positions[0][2] != 1 or not rest:
        return None
    core, axis, _ = positions[0]
    scale, frequencies = table.scale, read_frequencies(c, rest, whole)
    number = scale.number
    if frequencies is None and number is not None and not _grow(rest):  # a sign or a factor that belongs to them
        scale, frequencies = c.algebra.one, _named(c, c.algebra.product(number, rest))
    if frequencies is None:
        return None
    vague = not all(_is_vector(c, f) for f, _ in rest)
    counted = _positions(c, core)
    if counted is None:
        return Angles(scale, core, None, None, axis, frequencies, vague=True) if _is_given(c, core) else None
    offset, length = counted
    if table.rows is not None:
        offset, length = c.algebra.add(offset, table.rows[0]), table.rows[1]
    return Angles(scale, core, offset, length, axis, frequencies, vague)


def _opened(c: Canonical, v: Value, e: Fraction, depth: int = 0) -> _Table | None:
    """Products, outer products and views, down to 1-D factors."""
    if depth > 12:
        return None
    if v.scalar:
        return _Table(c.algebra.power(v, e), ())
    if v.op == "product":
        scale = c.algebra.power(c.algebra.number(v.coefficient), e)
        numbers = [b for b, _ in v.factors if not b.scalar and is_number(c, b)]
        if len(numbers) == len(v.factors):
            numbers = []
        scale = c.algebra.multiply(scale, c.algebra.product(1.0, [(b, k * e) for b, k in v.factors if b in numbers]))
        return _together(c, scale, [_opened(c, b, k * e, depth + 1) for b, k in v.factors if b not in numbers])
    both = outer_parts(v)
    if both is not None:
        inner = [_opened(c, b, e, depth + 1) for b in both]
        if any(t is None or any(axis != -1 for _, axis, _ in t.factors) for t in inner):
            return None
        return _together(c, c.algebra.one, [inner[0] and inner[0].moved(lambda _: -2), inner[1]])
    if v.op == "matmul" and _is_new(c, v.args[0], -1) and _is_new(c, v.args[1], -2):  # a column times a row
        return _together(c, c.algebra.one, [_opened(c, b, e, depth + 1) for b in v.args])
    view = _VIEWS.get(v.op)
    if view is not None:
        return view(c, v, e, depth)
    return _vector(c, v, e)


def _vector(c: Canonical, v: Value, e: Fraction) -> _Table | None:
    return _Table(c.algebra.one, ((v, -1, e),)) if _is_vector(c, v) or _is_unknown(c, v) or _is_given(c, v) else None


def _of_expanded(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    axes, table = axes_from_end(c, v), _opened(c, v.args[0], e, depth + 1)
    if axes is None and v.param("axes") == (1,) and _is_unknown(c, v.args[0]):
        axes = (-1,)  # positions[:, None]: with more axes than one it would not meet frequencies
    return None if axes is None or table is None else table.moved(lambda axis: _shifted(axis, axes))


def _of_reshaped(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    dims = v.args[1:]
    long = [i - len(dims) for i, d in enumerate(dims) if not d.is_number(1.0)]
    return _Table(c.algebra.one, ((v.args[0], long[0], e),)) if len(long) == 1 and _is_vector(c, v.args[0]) else None


def _of_permuted(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    if v.param("perm") != (-1, -2):
        return None
    table = _opened(c, v.args[0], e, depth + 1)
    return None if table is None else table.moved(lambda axis: {-1: -2, -2: -1}.get(axis, axis))


def _of_reversed(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    """The transpose of an array whose rank isn't stated."""
    table = _opened(c, v.args[0], e, depth + 1)
    rank = None if table is None else rank_of(c, v.args[0])
    return table.moved(lambda axis: -1 - rank - axis) if table is not None and rank is not None else None


def _of_broadcast(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    return _opened(c, v.args[0], e, depth + 1)


def _of_indexed(c: Canonical, v: Value, e: Fraction, depth: int) -> _Table | None:
    """Some positions of a table, or the first of rows that are all alike."""
    index, entry = v.param("index"), picked_rows(v.param("index"))
    if index == (0, "..."):
        rank, table = rank_of(c, v.args[0]), _opened(c, v.args[0], e, depth + 1)
        if table is not None and rank is not None:
            return table if all(axis != -rank for _, axis, _ in table.factors) else None
    if entry is None or (_picked_entries(index) is not None and _is_vector(c, v.args[0])):
        return _vector(c, v, e)
    _, first, stop, step = entry
    table = _opened(c, v.args[0], e, depth + 1)
    if table is None or table.rows is not None or step is not None or e != 1:
        return None
    if min((axis for _, axis, _ in table.factors), default=0) != -2 or (
        index[0] != "..." and rank_of(c, v.args[0]) != 2
    ):
        return None
    start = first if isinstance(first, Value) else c.algebra.zero
    return replace(table, rows=(start, c.algebra.subtract(stop, start) if isinstance(stop, Value) else None))


_VIEWS: dict[str, Callable[[Canonical, Value, Fraction, int], _Table | None]] = {
    "expand_dims": _of_expanded,
    "reshape": _of_reshaped,
    "permute": _of_permuted,
    "reverse_axes": _of_reversed,
    "broadcast_to": _of_broadcast,
    "index": _of_indexed,
}


def _is_new(c: Canonical, v: Value, axis: int) -> bool:
    """Whether an axis of a value has the length 1, for it was put in."""
    if v.op == "broadcast_to":
        shape = v.param("shape")
        kept = isinstance(shape, tuple) and len(shape) >= -axis and shape[axis] in (1, c.algebra.one)
        return kept and _is_new(c, v.args[0], axis)
    return v.op == "expand_dims" and axis in (axes_from_end(c, v) or ())


def _is_unknown(c: Canonical, v: Value) -> bool:
    """Whether nothing says how many axes a value has: an argument, or a part of one."""
    held = c.nodes(v)[:1]
    return (v.op in NAMED or v.op == "index") and bool(held) and c.facts.rank(held[0]) is None


def _is_given(c: Canonical, v: Value) -> bool:
    """Whether a value is an argument, or the first row of one: it may count up, in each row of a batch."""
    while v.op == "index" and v.param("index") == (0, "..."):
        v = v.args[0]
    return v.op == "param" and all(c.facts.rank(n) in (None, 1, 2) for n in c.nodes(v)[:1])


def is_number(c: Canonical, v: Value) -> bool:
    """Whether a value is a scalar, or a name of which nothing is known: it is taken for one."""
    held = c.nodes(v)[:1]
    return v.scalar or (v.op in NAMED and bool(held) and c.facts.kind(held[0]) == "unknown")


def _together(c: Canonical, scale: Value, parts: list[_Table | None]) -> _Table | None:
    factors: list[tuple[Value, int, Fraction]] = []
    rows = None
    for t in parts:
        if t is None:
            return None
        scale = c.algebra.multiply(scale, t.scale)
        factors += t.factors
        if t.rows is not None and rows is not None:
            return None
        rows = t.rows or rows
    return _Table(scale, tuple(factors), rows)


def _shifted(axis: int, new: tuple[int, ...]) -> int:
    """Where an axis is after new ones were inserted, all counted from the end."""
    at = 0
    for _ in range(-axis):
        at -= 1
        while at in new:
            at -= 1
    return at


def _is_vector(c: Canonical, v: Value) -> bool:
    """Whether v is 1-D: a range, arithmetic on one and scalars, or what facts call so."""
    if v.op == "arange":
        return True
    if any(c.facts.rank(n) == 1 for n in c.nodes(v)[:1]) or _made_in_init(c, v) is not None:
        return True
    if v.op in ("sum", "product", *ELEMENTWISE):
        below = [m for m, _ in v.terms] if v.op == "sum" else [b for b, _ in v.factors] if v.op == "product" else v.args
        arrays = [b for b in below if not b.scalar]
        ranges = [b for b in arrays if _is_vector(c, b)]
        # Names that nothing is known of are taken for numbers: an offset says so as an obligation of its own.
        return bool(ranges) and all(b in ranges or b.op in NAMED for b in arrays)
    if v.op == "pow":
        return is_number(c, v.args[0]) and _is_vector(c, v.args[1])
    if v.op == "index":
        return _picked_entries(v.param("index")) is not None and _is_vector(c, v.args[0])
    return v.op in ("exp", "log", "reciprocal") and _is_vector(c, v.args[0])


def _made_in_init(c: Canonical, v: Value) -> tuple[Canonical, Value] | None:
    """An attribute that `__init__` makes as frequencies: its value there, in that graph's canonical form."""
    for node in c.nodes(v)[:1]:
        init = node.attrs.get("init") if node.op == "attr" else None
        frame = None if init is None else init.frame
        while frame is not None and frame.parent is not None:
            frame = frame.parent
        made = c.graph.program.graph(frame.qualname) if frame is not None and c.graph.program is not None else None
        if made is None or init not in set(made.nodes):
            return None
        there = made.canonical
        value = there.of(init)
        if _is_vector(there, value):
            return there, value
    return None


def _positions(c: Canonical, v: Value) -> tuple[Value, Value | None] | None:
    """offset and length of offset + arange(length)."""
    ranges = [(m, k) for m, k in v.terms if m.op == "arange"]
    if len(ranges) != 1 or ranges[0][1] != 1.0:
        return None
    counted = ranges[0][0]
    bounds = [
        c.operand(counted.param(p)) if not isinstance(counted.param(p), Value) else counted.param(p)
        for p in ("start", "stop", "step")
    ]
    first, stop, step = bounds
    if first is None or stop is None or step is None or not step.is_number(1.0):
        return None
    others = [(m, k) for m, k in v.terms if m is not counted]
    if not all(m.scalar or m.op in NAMED for m, _ in others):
        return None
    offset = c.algebra.add(first, c.algebra.sum(v.constant, others))
    return offset, c.algebra.subtract(stop, first)


def read_frequencies(c: Canonical, factors: list[tuple[Value, Fraction]], whole: Value) -> Frequencies | None:
    """What angles a position adds, by pair."""
    if len(factors) == 1:
        found = _of_base(c, *factors[0], whole)
        if found is not None:
            return found
    if _grow(factors):
        return None
    return _named(c, c.algebra.product(1.0, factors))


def _named(c: Canonical, value: Value) -> Frequencies | None:
    """Frequencies that some expression of the code holds, or their inverse."""
    if c.nodes(value):
        return Frequencies(table=value)
    wavelengths = c.algebra.power(value, Fraction(-1))
    if c.nodes(wavelengths):
        return Frequencies(table=wavelengths, inverse=True)
    return None


def _grow(factors: list[tuple[Value, Fraction]]) -> bool:
    """Whether angles grow along the pairs: base^(2i/d) are wavelengths, not frequencies."""
    if len(factors) != 1:
        return False
    v, e = factors[0]
    return (v.op == "exp" and v.args[0].coefficient * e > 0) or (v.op == "pow" and v.args[1].coefficient * e > 0)


def _of_base(c: Canonical, v: Value, e: Fraction, whole: Value) -> Frequencies | None:
    """base^(-2i/d)."""
    base: Value | None = None
    if v.op == "exp":
        exponent = v.args[0]
    elif v.op == "pow" and is_number(c, v.args[0]):
        base, exponent = v.args
    else:
        return None
    if e not in (1, -1) or (base is not None and base.coefficient <= 0):  # of a negative base only NaN is left
        return None
    exponent = c.algebra.scale(exponent, float(e))
    ranges = [b for b, k in exponent.factors if b.op in ("arange", "index") and k == 1]
    rest = [(b, k) for b, k in exponent.factors if b not in ranges]
    if len(ranges) != 1 or not all(is_number(c, b) for b, _ in rest) or exponent.coefficient >= 0:
        return None
    length = _range_length(c, ranges[0])
    if length is None:
        return None
    halved = length.op == "floor_divide" and length.args[1].is_number(2.0)
    rotated = length.args[0] if halved else length if _steps_by_two(c, ranges[0]) else None
    count = None if _steps_by_two(c, ranges[0]) else length
    power = c.algebra.multiply(c.algebra.product(-exponent.coefficient, rest), length)
    power = _cancelled(c, power, whole)
    if base is None:
        logs = [b for b, k in power.factors if b.op == "log" and k == 1 and b.scalar]
        if logs:
            base = logs[0].args[0]
            if base.coefficient <= 0:
                return None
            power = c.algebra.product(power.coefficient, [(b, k) for b, k in power.factors if b is not logs[0]])
        else:
            number = _rounded(math.exp(power.coefficient)) if abs(power.coefficient) < 700 else 0.0
            if number <= 1.0:
                return None
            base, power = c.algebra.number(number), c.algebra.product(1.0, power.factors)
    if power.number is not None and base.number is not None:
        return Frequencies(c.algebra.number(_rounded(base.number**power.number)), length=rotated, count=count)
    return Frequencies(base, None if power.is_number(1.0) else power, length=rotated, count=count)


def _rounded(number: float) -> float:
    near = float(round(number))
    return near if close(near, number, 1e-9) else number


def _range_length(c: Canonical, v: Value) -> Value | None:
    """The length that is rotated, as arange(0, d, 2) or arange(d/2) says it, in steps of the exponent."""
    if v.op == "index":
        entry = _picked_entries(v.param("index"))
        if entry is None or entry[1] is not None or entry[3] is not None or v.args[0].op != "arange":
            return None
        whole = _range_length(c, v.args[0])
        stop, step = entry[2], v.args[0].param("step")
        if whole is None or not isinstance(stop, Value) or step not in (2, c.algebra.number(2.0)):
            return None
        half = stop.op == "floor_divide" and stop.args[0] is whole and stop.args[1].is_number(2.0)
        return whole if half or c.algebra.scale(stop, 2.0) is whole else None
    start, stop, step = (
        p if isinstance(p, Value) else c.operand(p) for p in (v.param("start"), v.param("stop"), v.param("step"))
    )
    if start is None or stop is None or step is None or not start.is_number(0.0):
        return None
    parts = [stop.constant, *(2 * k for _, k in stop.terms)] if stop.op == "sum" else [2 * stop.coefficient]
    if any(p % 1 for p in parts):
        return None  # there are as many as the next whole number: `D / 1.5`, and not D / 2 where that rotates pairs
    return stop if step.is_number(1.0) or step.is_number(2.0) else None


def _steps_by_two(c: Canonical, v: Value) -> bool:
    step = (v.args[0] if v.op == "index" else v).param("step")
    return step == 2 or (isinstance(step, Value) and step.is_number(2.0))


def _cancelled(c: Canonical, v: Value, whole: Value) -> Value:
    """v with a / a as 1 and whole // 2 as a half of it: these are lengths, above zero, and whole is even."""
    total: dict[Value, Fraction] = {}
    scale = c.algebra.number(v.coefficient)
    for b, e in v.factors:
        halved = b.op == "floor_divide" and b.args[0] is whole and b.args[1].is_number(2.0)
        if halved:
            scale = c.algebra.multiply(scale, c.algebra.power(c.algebra.number(0.5), e))
        of = whole if halved else b
        total[of] = total.get(of, Fraction(0)) + e
    return c.algebra.multiply(scale, c.algebra.product(1.0, [(b, e) for b, e in total.items() if e]))


def outer_parts(v: Value) -> tuple[Value, Value] | None:
    if v.op == "outer" and len(v.args) == 2:
        return v.args[0], v.args[1]
    if v.op == "einsum" and len(v.args) == 2:
        text = str(v.param("subscripts") or "").replace(" ", "")
        if len(text) == 7 and text[1] == "," and text[3:5] == "->" and text[0] + text[2] == text[5:] != 2 * text[0]:
            return v.args[0], v.args[1]
    return None


def axes_from_end(c: Canonical, v: Value) -> tuple[int, ...] | None:
    """The new axes of an expand_dims counted from the end, where that is known."""
    axes: tuple[int, ...] | None = v.param("axes")
    if axes is None or all(a < 0 for a in axes):
        return axes
    rank = rank_of(c, v.args[0])
    return None if rank is None else tuple(sorted(a if a < 0 else a - rank - len(axes) for a in axes))


def rank_of(c: Canonical, v: Value) -> int | None:
    """The rank of a table: of ranges, outer products and arithmetic on those."""
    if v.op == "expand_dims":
        inner = rank_of(c, v.args[0])
        return None if inner is None else inner + len(v.param("axes"))
    if v.op in UNARY:
        return rank_of(c, v.args[0])
    if outer_parts(v) is not None:
        return 2
    if _is_vector(c, v):
        return 1
    if v.op == "product":
        ranks = [rank_of(c, b) for b, _ in v.factors if not b.scalar]
        return None if None in ranks or not ranks else max(r for r in ranks if r is not None)
    if v.op == "concatenate" or (v.op == "index" and picked_rows(v.param("index")) is not None):
        return rank_of(c, v.args[0])
    known = next((c.facts.rank(n) for n in c.nodes(v)[:1]), None)
    return 1 if known is None and v.op in NAMED and _is_vector(c, v) else known


def is_slice(entry: Any) -> bool:
    return isinstance(entry, tuple) and entry[:1] == ("slice",)


def picked_rows(index: Any) -> Any:
    """The slice of positions that an index of a table takes: of its first axis, or of the last but one."""
    if isinstance(index, tuple) and len(index) == 2 and index[1] == "...":
        return index[0] if is_slice(index[0]) else _counted(index[0])
    if isinstance(index, tuple) and len(index) == 3 and index[0] == "..." and index[2] == FULL:
        return index[1] if is_slice(index[1]) else _counted(index[1])
    return None


def _counted(entry: Any) -> Any:
    """An array of indices that count up, as the slice that takes the same."""
    while isinstance(entry, Value) and entry.op == "astype":
        entry = entry.args[0]
    if not isinstance(entry, Value) or entry.op != "arange" or entry.param("step") != 1:
        return None
    start, stop = entry.param("start"), entry.param("stop")
    known = all(isinstance(p, Value) or p == 0 for p in (start, stop))
    return ("slice", start if isinstance(start, Value) else None, stop, None) if known else None


def _picked_entries(index: Any) -> Any:
    """The slice that an index of a 1-D value takes."""
    if isinstance(index, tuple) and len(index) == 2 and "..." in index:
        entry = index[0] if index[1] == "..." else index[1]
        return entry if is_slice(entry) else None
    return None
