"""Rotary position embeddings in the canonical form.

The last axis of a value is read as two lanes of half its length, which are rotated against each other:

| pairing | lanes of x |
|---|---|
| halves | x[..., :d/2] and x[..., d/2:] |
| pairs | x[..., ::2] and x[..., 1::2] |

A value is a rotary embedding of x where its lanes are `x0*cos(u) - x1*sin(u)` and `x0*sin(u) + x1*cos(u)`, with angles
`u = scale * (offset + arange) x frequencies`. So tables of half or of full length, helpers such as rotate_half, split,
stacked or concatenated lanes are one thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from fuselint.graph.canonical import Canonical
from fuselint.graph.identities_views import FULL, expanded
from fuselint.graph.model import Node
from fuselint.graph.values import ONE, Value, close

Pairing = Literal["halves", "pairs"]
Lanes = tuple[Value, Value]

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
    """scale * (offset + arange(length)) along `axis` of x, counted from the end. length None: not known."""

    scale: Value
    offset: Value
    length: Value | None
    axis: int
    frequencies: Frequencies


@dataclass(frozen=True, slots=True)
class Rotation:
    """x: what is rotated. dims: the leading part of its last axis that is rotated; None: all of it.

    factor: what the result is multiplied by. inverse: by the negative angles. even: whether x's last axis is known
    to be cut in the middle.
    """

    x: Value
    pairing: Pairing
    angles: Angles
    factor: Value
    inverse: bool
    even: bool
    dims: Value | None = None


def read(c: Canonical, value: Value) -> Rotation | None:
    """The value as a rotary embedding."""
    if value.scalar or value.op not in ("concatenate", "sum", "product", "reshape", "flatten"):
        return None
    for pairing in ("halves", "pairs"):
        found = _Reader(c, pairing).read(value)
        if found is not None:
            return found
    return None


class _Reader:
    def __init__(self, c: Canonical, pairing: Pairing) -> None:
        self.c, self.algebra, self.pairing = c, c.algebra, pairing

    def read(self, value: Value) -> Rotation | None:
        both = self.lanes(value)
        if both is None:
            return None
        first, second = (self._terms(v) for v in both)
        if first is None or second is None or len(first) != 2 or len(second) != 2:
            return None
        try:
            (x, m, u), (y, n, w) = first[0, "cos"], first[1, "sin"]
            (p, k, t), (q, j, s) = second[0, "sin"], second[1, "cos"]
        except KeyError:
            return None
        if not (x[0] is y[0] is p[0] is q[0] and u is w is t is s and m is j and n is self.algebra.scale(k, -1.0)):
            return None
        if n is self.algebra.scale(m, -1.0):
            inverse = False
        elif n is m:
            inverse = True
        else:
            return None
        cuts = {lane[1] for lane in (x, y, p, q)} - {None}
        if len(cuts) > 1:
            return None
        angles = read_angles(self.c, u, self.algebra.size(x[0], -1))
        if angles is None:
            return None
        # Lanes that were cut at one place and multiplied by one table have one length; a whole x was not cut.
        cut = next(iter(cuts), None)
        sliced = all(lane[1] is not None for lane in (x, y, p, q))
        even = cut is None or sliced or self._halves(x[0], cut)
        if not even and cut is not None and not self._may_halve(x[0], cut):
            return None
        return Rotation(x[0], self.pairing, angles, m, inverse, even)

    def _may_halve(self, x: Value, cut: Value) -> bool:
        """A name, or the half of a name: of the length itself it would be known."""
        name = cut.args[0] if cut.op == "floor_divide" and cut.args[1].is_number(2.0) else cut
        return (name.op == "size" or name.op in NAMED) and name is not self.algebra.size(x, -1)

    def _halves(self, x: Value, cut: Value) -> bool:
        size = self.algebra.size(x, -1)
        if size.number is not None and cut.number is not None:
            return 2 * cut.number == size.number
        if cut.op == "floor_divide" and cut.args[0] is size and cut.args[1].is_number(2.0):
            return True
        return self.algebra.scale(cut, 2.0) is size

    def _terms(self, value: Value) -> dict[tuple[int, str], tuple[tuple[Value, Value | None], Value, Value]] | None:
        """Each term as lane of x, cos or sin -> (x and where it was cut, factor, angles)."""
        found: dict[tuple[int, str], tuple[tuple[Value, Value | None], Value, Value]] = {}
        if value.number is not None or value.constant:
            return None
        outer: list[tuple[Value, Fraction]] = []
        terms = value.terms
        if value.op == "product":
            sums = [b for b, e in value.factors if b.op == "sum" and e == 1]
            outer = [(b, e) for b, e in value.factors if not (b.op == "sum" and e == 1)]
            if len(sums) != 1 or sums[0].constant or not all(b.scalar for b, _ in outer):
                return None
            terms = tuple((m, k * value.coefficient) for m, k in sums[0].terms)
        for m, k in terms:
            lane = turn = None
            rest = list(outer)
            for b, e in m.factors:
                if b.op == "lane" and e == 1 and lane is None:
                    lane = b
                elif b.op in UNARY and not b.scalar and e == 1 and turn is None:
                    turn = b
                elif b.scalar:
                    rest.append((b, e))
                else:
                    return None
            if lane is None or turn is None:
                return None
            key = (lane.param("index"), turn.op)
            if key in found:
                return None
            cut = lane.param("cut")
            factor = self.algebra.product(k * m.coefficient, rest)
            found[key] = ((lane.args[0], cut), factor, turn.args[0])
        return found

    # -- lanes -----------------------------------------------------------------------------------------------------

    def lane(self, x: Value, index: int, cut: Value | None = None) -> Value:
        return self.algebra.atom("lane", (x,), (("index", index), ("cut", cut)))

    def lanes(self, v: Value, depth: int = 0) -> Lanes | None:
        """The two lanes of the last axis of v."""
        if depth > 24:
            return None
        if v.scalar or v.number is not None:
            return v, v
        if v.op == "product":
            return self._each([(b, e) for b, e in v.factors], depth, lambda p: self.algebra.product(v.coefficient, p))
        if v.op == "sum":
            return self._each(list(v.terms), depth, lambda p: self.algebra.sum(v.constant, p))
        if v.op in UNARY:
            inner = self.lanes(v.args[0], depth + 1)
            return None if inner is None else (self._turn(v.op, inner[0]), self._turn(v.op, inner[1]))
        if v.op == "expand_dims":
            axes = _from_end(self.c, v)
            if axes is not None and -1 in axes:
                return v, v
            if axes is not None:
                return self._mapped(v.args[0], depth, lambda u: self._expanded(u, axes))
        if v.op == "reshape" and v.args[-1].is_number(1.0):
            return v, v
        both = _outer(v)
        if both is not None:
            inner = self.lanes(both[1], depth + 1)
            return None if inner is None else (self._outer(v, both[0], inner[0]), self._outer(v, both[0], inner[1]))
        if v.op == "index" and _picked(v.param("index")) is not None:
            return self._mapped(v.args[0], depth, lambda u: self._indexed(u, v.params))
        made = self._joined(v)
        if made is not None:
            return self.lane_of(made[0]), self.lane_of(made[1])
        return (self.lane(v, 0), self.lane(v, 1))

    def _expanded(self, u: Value, axes: tuple[int, ...]) -> Value:
        """New axes go inside: cos(u)[None] is cos(u[None])."""
        if u.op in UNARY and not u.scalar:
            return self._turn(u.op, self._expanded(u.args[0], axes))
        if u.op == "product":
            return self.algebra.product(
                u.coefficient, [(b if b.scalar else self._expanded(b, axes), e) for b, e in u.factors]
            )
        return expanded(self.c, u, axes)

    def _outer(self, v: Value, positions: Value, frequencies: Value) -> Value:
        return self.algebra.atom(v.op, (positions, frequencies), v.params)

    def _mapped(self, v: Value, depth: int, make: Callable[[Value], Value]) -> Lanes | None:
        inner = self.lanes(v, depth + 1)
        if inner is None or any(_has_lane(u) for u in inner):
            return None
        return make(inner[0]), make(inner[1])

    def _each(self, parts: list[tuple[Value, Any]], depth: int, make: Callable[[Any], Value]) -> Lanes | None:
        inner = [(self.lanes(b, depth + 1), e) for b, e in parts]
        if any(both is None for both, _ in inner):
            return None
        return (
            make([(both[0], e) for both, e in inner if both is not None]),
            make([(both[1], e) for both, e in inner if both is not None]),
        )

    def _turn(self, op: str, u: Value) -> Value:
        return self.algebra.atom(op, (u,), scalar=u.scalar)

    def _indexed(self, u: Value, params: Any) -> Value:
        """Positions taken from a table: cos(u)[i] is cos(u[i])."""
        if u.op in UNARY and not u.scalar:
            return self._turn(u.op, self._indexed(u.args[0], params))
        if u.op == "product" and len(u.factors) > 1 and any(b.scalar for b, _ in u.factors):
            outer = [(b, e) for b, e in u.factors if b.scalar]
            inner = [(b, e) for b, e in u.factors if not b.scalar]
            if inner:
                return self.algebra.product(
                    u.coefficient, [*outer, (self._indexed(self.algebra.product(1.0, inner), params), ONE)]
                )
        return self.algebra.atom("index", (u,), params)

    def _joined(self, v: Value) -> Lanes | None:
        """What v was put together from."""
        if self.pairing == "halves":
            if v.op == "concatenate" and len(v.args) == 2 and v.param("axis") == -1:
                return v.args[0], v.args[1]
            if v.op == "tile" and _doubles(v.param("reps")):
                return v.args[0], v.args[0]
            return None
        if v.op == "repeat" and v.param("axis") == -1 and v.param("repeats") == 2:
            return v.args[0], v.args[0]
        stacked = v.args[0] if v.op in ("reshape", "flatten") and v.args else None
        if stacked is None or not self._merges(v, stacked):
            return None
        if stacked.op == "stack" and stacked.param("axis") == -1 and len(stacked.args) == 2:
            return stacked.args[0], stacked.args[1]
        if stacked.op == "concatenate" and stacked.param("axis") == -1 and len(stacked.args) == 2:
            parts = [_last_axis_added(self.c, a) for a in stacked.args]
            if parts[0] is not None and parts[1] is not None:
                return parts[0], parts[1]
        return None

    def _merges(self, v: Value, stacked: Value) -> bool:
        """Whether the reshape or flatten merges the last two axes, and changes no other."""
        if v.op == "flatten":
            return bool(v.param("start_axis") == -2 and v.param("end_axis") == -1)
        held, inner = self.c.nodes(v), self.c.nodes(stacked)
        if not held or not inner:
            return False
        out, have = self.c.facts.shape(held[0]), self.c.facts.shape(inner[0])
        ranks = [None if s is None else s.rank for s in (out, have)]
        if ranks[0] is not None and ranks[1] is not None and ranks[0] != ranks[1] - 1:
            return False
        return self._same_lead(held[0])

    def _same_lead(self, node: Node) -> bool:
        """The shape that is asked for is that of an array whose lanes were stacked, but for the last axis."""
        shape = node.attrs.get("shape")
        sources = {id(a): a for a in self._sources(self.c.of(node).args[0])}
        if len(sources) != 1:
            return False
        x = next(iter(sources.values()))
        if not isinstance(shape, (tuple, list)):
            return isinstance(shape, Node) and shape.op == "shape" and self.c.of(shape.inputs[0]) is x
        held = self.c.nodes(x)
        facts = self.c.facts.shape(held[0]) if held else None
        star = [d for d in shape if isinstance(d, Node) and d.op == "star"]
        if star:  # (*x.shape[:-1], -1)
            inner = star[0].inputs[0]
            whole = inner.inputs[0] if inner.op == "item" else None
            index = inner.attrs.get("index") if whole is not None else None
            if whole is None or whole.op != "shape" or len(shape) != 2 or shape[0] is not star[0]:
                return False
            if getattr(index, "start", 0) is not None or getattr(index, "stop", None) != -1:
                return False
            return self.c.of(whole.inputs[0]) is x
        if facts is None or facts.rank != len(shape):
            return False
        for i, d in enumerate(shape[:-1]):
            size = self.c.operand(d)
            if size is None or (size is not self.algebra.size(x, i - len(shape)) and not size.is_number(-1.0)):
                return False
        return True

    def _sources(self, v: Value) -> Iterable[Value]:
        stack, seen = [v], set()
        while stack:
            u = stack.pop()
            if u in seen:
                continue
            seen.add(u)
            lane = self.sliced(u)
            if lane is not None:
                yield lane.args[0]
                continue
            if u.op in UNARY:
                continue
            stack.extend([*u.args, *(b for b, _ in u.factors if b is not u), *(m for m, _ in u.terms if m is not u)])

    def lane_of(self, v: Value, depth: int = 0) -> Value:
        """A lane with the slices of x in it as lanes of x."""
        if v.scalar or depth > 24:
            return v
        if v.op == "product":
            return self.algebra.product(v.coefficient, [(self.lane_of(b, depth + 1), e) for b, e in v.factors])
        if v.op == "sum":
            return self.algebra.sum(v.constant, [(self.lane_of(m, depth + 1), k) for m, k in v.terms])
        if v.op == "index" and _picked(v.param("index")) is not None and v.args[0].op in UNARY:
            return self._indexed(v.args[0], v.params) if not _has_lane(v) else v
        if v.op == "expand_dims" and v.args[0].op in UNARY:
            u, axes = v.args[0], _from_end(self.c, v)
            return v if axes is None else self._expanded(u, axes)
        return self.sliced(v) or v

    def sliced(self, v: Value) -> Value | None:
        """A slice of x as a lane of x, where it is one of this pairing."""
        if v.op == "item" and v.args and v.args[0].op == "split":
            parts = v.args[0]
            index = v.param("index")
            if self.pairing == "halves" and parts.param("axis") == -1 and index in (0, 1):
                x = parts.args[0]
                if parts.param("indices_or_sections") == 2:
                    half = self.algebra.atom("floor_divide", (self.algebra.size(x, -1), self.algebra.number(2.0)))
                    return self.lane(x, index, half)
            return None
        if v.op != "index":
            return None
        index, x = v.param("index"), v.args[0]
        if len(index) == 2 and index[0] == "..." and _is_slice(index[1]):
            _, start, stop, step = index[1]
            if step is None and self.pairing == "halves":
                if start is None and isinstance(stop, Value):
                    return self.lane(x, 0, stop)
                if stop is None and isinstance(start, Value):
                    return self.lane(x, 1, start)
            elif isinstance(step, Value) and step.is_number(2.0) and stop is None and self.pairing == "pairs":
                if start is None:
                    return self.lane(x, 0)
                if isinstance(start, Value) and start.is_number(1.0):
                    return self.lane(x, 1)
            return None
        return self._of_reshaped(index, x)

    def _of_reshaped(self, index: Any, folded: Value) -> Value | None:
        """x.reshape(..., d/2, 2)[..., i] and x.reshape(..., 2, d/2)[..., i, :]."""
        tail = index[1:]
        held = [n for n in self.c.nodes(folded) if n.op in ("reshape", "unflatten")]
        if index[0] != "..." or not held or folded.op not in ("reshape", "unflatten"):
            return None
        x = held[0].inputs[0]
        out, have = self.c.facts.shape(held[0]), self.c.facts.shape(x)
        if out is None or have is None or len(out.dims) < 2:
            return None
        which = -1 if self.pairing == "pairs" else -2
        if (self.pairing == "pairs") != (len(tail) == 1) or (len(tail) == 2 and tail[1] != FULL) or len(tail) > 2:
            return None
        if out.dims[which].value() != 2 or tail[0] not in (0, 1) or isinstance(tail[0], bool):
            return None
        if have.dims:
            same = (out.lead, out.dims[:-2]) == (have.lead, have.dims[:-1])
        else:  # x of unknown rank, by x.shape[:-1]
            same = len(out.dims) == 2 and out.lead == f"{have.lead}[:-1]"
        if not same:
            return None
        return self.lane(self.c.of(x), tail[0])


def _from_end(c: Canonical, v: Value) -> tuple[int, ...] | None:
    """The new axes of an expand_dims counted from the end, where that is known."""
    axes: tuple[int, ...] | None = v.param("axes")
    if axes is None:
        return None
    if all(a < 0 for a in axes):
        return axes
    rank = _rank(c, v.args[0])
    return None if rank is None else tuple(sorted(a if a < 0 else a - rank - len(axes) for a in axes))


def _rank(c: Canonical, v: Value) -> int | None:
    """The rank of a table: of ranges, outer products and arithmetic on those."""
    if v.op == "expand_dims":
        inner = _rank(c, v.args[0])
        return None if inner is None else inner + len(v.param("axes"))
    if v.op in UNARY:
        return _rank(c, v.args[0])
    if _outer(v) is not None:
        return 2
    if _is_vector(c, v):
        return 1
    if v.op == "product":
        ranks = [_rank(c, b) for b, _ in v.factors if not b.scalar]
        return None if None in ranks or not ranks else max(r for r in ranks if r is not None)
    if v.op == "concatenate":
        return _rank(c, v.args[0])
    return next((c.facts.rank(n) for n in c.nodes(v)[:1]), None)


def _is_slice(entry: Any) -> bool:
    return isinstance(entry, tuple) and entry[:1] == ("slice",)


def _picked(index: Any) -> Any:
    """The slice of positions that an index of a table takes: of its first axis, or of the last but one."""
    if isinstance(index, tuple) and len(index) == 2 and index[1] == "..." and _is_slice(index[0]):
        return index[0]
    if isinstance(index, tuple) and len(index) == 3 and index[0] == "..." and _is_slice(index[1]) and index[2] == FULL:
        return index[1]
    return None


def _picked_entries(index: Any) -> Any:
    """The slice that an index of a 1-D value takes."""
    if isinstance(index, tuple) and len(index) == 2 and "..." in index:
        entry = index[0] if index[1] == "..." else index[1]
        return entry if _is_slice(entry) else None
    return None


def _doubles(reps: Any) -> bool:
    listed = reps if isinstance(reps, tuple) else (reps,)
    return bool(listed) and listed[-1] == 2 and all(r == 1 for r in listed[:-1])


def _last_axis_added(c: Canonical, v: Value) -> Value | None:
    """u of u[..., None], also of arithmetic on such."""
    if v.op == "expand_dims":
        return v.args[0] if v.param("axes") == (-1,) else None
    return None


def _has_lane(v: Value) -> bool:
    stack, seen = [v], set[Value]()
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        if u.op == "lane":
            return True
        stack.extend([*u.args, *(b for b, _ in u.factors if b is not u), *(m for m, _ in u.terms if m is not u)])
    return False


# -- angles ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Table:
    """scale x 1-D factors with their exponents, each along an axis counted from the end."""

    scale: Value
    factors: tuple[tuple[Value, int, Fraction], ...]


def read_angles(c: Canonical, u: Value, whole: Value) -> Angles | None:
    """u as scale * (offset + arange) x frequencies. whole: the length that is rotated, which is even."""
    start = taken = None
    scalars = c.algebra.product(u.coefficient, [(b, e) for b, e in u.factors if b.scalar])
    arrays = [(b, e) for b, e in u.factors if not b.scalar]
    if len(arrays) == 1 and arrays[0][0].op == "index" and arrays[0][1] == 1:  # some positions of a table
        picked = arrays[0][0]
        entry = _picked(picked.param("index"))
        if entry is None:
            return None
        _, first, stop, step = entry
        if step is not None:
            return None
        start = first if isinstance(first, Value) else c.algebra.zero
        taken = c.algebra.subtract(stop, start) if isinstance(stop, Value) else None
        table = _opened(c, picked.args[0], ONE)
        if (
            table is None
            or min((axis for _, axis, _ in table.factors), default=0) != -2
            or _rank(c, picked.args[0]) != 2
        ):
            return None
        table = replace(table, scale=c.algebra.multiply(scalars, table.scale))
    else:
        table = _opened(c, u, ONE)
    if table is None:
        return None
    positions = [(core, axis, e) for core, axis, e in table.factors if axis < -1]
    rest = [(core, e) for core, axis, e in table.factors if axis == -1]
    if len(positions) != 1 or positions[0][2] != 1 or not rest:
        return None
    core, axis, _ = positions[0]
    counted = _positions(c, core)
    frequencies = read_frequencies(c, rest, whole)
    if counted is None or frequencies is None:
        return None
    offset, length = counted
    if start is not None:
        offset, length = c.algebra.add(offset, start), taken
    return Angles(table.scale, offset, length, axis, frequencies)


def _opened(c: Canonical, v: Value, e: Fraction, depth: int = 0) -> _Table | None:
    """Products, outer products and new axes, down to 1-D factors."""
    if depth > 12:
        return None
    if v.scalar:
        return _Table(c.algebra.power(v, e), ())
    if v.op == "product":
        scale = c.algebra.power(c.algebra.number(v.coefficient), e)
        parts = [_opened(c, b, k * e, depth + 1) for b, k in v.factors]
        return _together(c, scale, parts)
    both = _outer(v)
    if both is not None and e == 1:
        inner = [_opened(c, b, e, depth + 1) for b in both]
        if any(t is None or any(axis != -1 for _, axis, _ in t.factors) for t in inner):
            return None
        first = inner[0]
        assert first is not None
        inner[0] = replace(first, factors=tuple((core, -2, k) for core, _, k in first.factors))
        return _together(c, c.algebra.one, inner)
    if v.op == "expand_dims":
        axes, table = _from_end(c, v), _opened(c, v.args[0], e, depth + 1)
        if axes is None or table is None:
            return None
        return replace(table, factors=tuple((core, _shifted(axis, axes), k) for core, axis, k in table.factors))
    if v.op == "reshape":
        dims = v.args[1:]
        long = [i - len(dims) for i, d in enumerate(dims) if not d.is_number(1.0)]
        return (
            _Table(c.algebra.one, ((v.args[0], long[0], e),)) if len(long) == 1 and _is_vector(c, v.args[0]) else None
        )
    return _Table(c.algebra.one, ((v, -1, e),)) if _is_vector(c, v) else None


def _together(c: Canonical, scale: Value, parts: list[_Table | None]) -> _Table | None:
    factors: list[tuple[Value, int, Fraction]] = []
    for t in parts:
        if t is None:
            return None
        scale = c.algebra.multiply(scale, t.scale)
        factors += t.factors
    return _Table(scale, tuple(factors))


def _shifted(axis: int, new: tuple[int, ...]) -> int:
    """Where an axis is after new ones were inserted, all counted from the end."""
    at = 0
    for _ in range(-axis):
        at -= 1
        while at in new:
            at -= 1
    return at


def _outer(v: Value) -> Lanes | None:
    if v.op == "outer" and len(v.args) == 2:
        return v.args[0], v.args[1]
    if v.op == "einsum" and len(v.args) == 2:
        text = str(v.param("subscripts") or "").replace(" ", "")
        if len(text) == 7 and text[1] == "," and text[3:5] == "->" and text[0] + text[2] == text[5:] != 2 * text[0]:
            return v.args[0], v.args[1]
    return None


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
        return v.args[0].scalar and _is_vector(c, v.args[1])
    if v.op == "index":
        return _picked_entries(v.param("index")) is not None and _is_vector(c, v.args[0])
    return v.op in ("exp", "log", "reciprocal") and _is_vector(c, v.args[0])


def _made_in_init(c: Canonical, v: Value) -> tuple[Canonical, Value] | None:
    """An attribute that `__init__` makes as frequencies: its value there, in that graph's canonical form."""
    for node in c.nodes(v)[:1]:
        init = node.attrs.get("init") if node.op == "attr" else None
        program, owner = c.graph.program, c.graph.context.class_name
        if init is None or program is None or owner is None:
            return None
        made = program.init(owner)
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
        if _grows(*factors[0]):
            return None
    value = c.algebra.product(1.0, factors)
    if c.nodes(value):
        return Frequencies(table=value)
    wavelengths = c.algebra.power(value, Fraction(-1))
    if c.nodes(wavelengths):
        return Frequencies(table=wavelengths, inverse=True)
    return None


def _grows(v: Value, e: Fraction) -> bool:
    """Whether angles grow along the pairs: base^(2i/d) are wavelengths, not frequencies."""
    return (v.op == "exp" and v.args[0].coefficient * e > 0) or (v.op == "pow" and v.args[1].coefficient * e > 0)


def _of_base(c: Canonical, v: Value, e: Fraction, whole: Value) -> Frequencies | None:
    """base^(-2i/d)."""
    base: Value | None = None
    if v.op == "exp":
        exponent = v.args[0]
    elif v.op == "pow" and v.args[0].scalar:
        base, exponent = v.args
    else:
        return None
    if e not in (1, -1):
        return None
    exponent = c.algebra.scale(exponent, float(e))
    ranges = [b for b, k in exponent.factors if b.op in ("arange", "index") and k == 1]
    rest = [(b, k) for b, k in exponent.factors if b not in ranges]
    if len(ranges) != 1 or not all(b.scalar for b, _ in rest) or exponent.coefficient >= 0:
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


def with_rest(c: Canonical, value: Value) -> Rotation | None:
    """concatenate(rotated part of x, the rest of x): x's leading dims are rotated."""
    if value.op != "concatenate" or value.param("axis") != -1 or len(value.args) not in (2, 3):
        return None
    rest = value.args[-1]
    if rest.op != "index" or len(rest.param("index")) != 2 or rest.param("index")[0] != "...":
        return None
    cut = rest.param("index")[1]
    if not _is_slice(cut) or not isinstance(cut[1], Value) or cut[2] is not None or cut[3] is not None:
        return None
    dims, x = cut[1], rest.args[0]
    head = value.args[0]
    if len(value.args) == 3:
        head = c.algebra.atom("concatenate", value.args[:2], value.params)
    found = read(c, head)
    if found is None or found.x.op != "index" or found.x.args[0] is not x:
        return None
    want = ("...", ("slice", None, dims, None))
    return replace(found, x=x, dims=dims) if found.x.param("index") == want else None
