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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from fuselint.graph.angles import (
    NAMED,
    UNARY,
    Angles,
    axes_from_end,
    is_number,
    is_slice,
    outer_parts,
    picked_rows,
    read_angles,
)
from fuselint.graph.canonical import Canonical
from fuselint.graph.identities_views import FULL, expanded
from fuselint.graph.model import Node
from fuselint.graph.values import ONE, Value

Pairing = Literal["halves", "pairs"]
Lanes = tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class Rotation:
    """x: what is rotated. dims: the leading part of its last axis that is rotated; None: all of it.

    factor: what the result is multiplied by. inverse: by the negative angles. even: whether x's last axis is known
    to be cut in the middle; where it isn't, width: what must be as long as the axis: n in `x[..., : n // 2]`.
    """

    x: Value
    pairing: Pairing
    angles: Angles
    factor: Value
    inverse: bool
    even: bool
    dims: Value | None = None
    written: Pairing | None = None  # how the results are put together, where not as they were read
    width: Value | None = None


@dataclass(frozen=True, slots=True)
class Turned:
    """x, whose lanes are mixed by two tables: a rotary embedding, where these are cosines and sines of its angles.

    pairing: how lanes of x are read. written: how they are put together again. whole_rows: a table is as long as x.
    """

    x: Value
    tables: tuple[Value, ...]
    pairing: Pairing
    written: Pairing
    whole_rows: bool


JOINED = frozenset({"concatenate", "sum", "product", "reshape", "flatten"})

PAIRINGS: tuple[Pairing, ...] = ("halves", "pairs")


def read(c: Canonical, value: Value) -> Rotation | None:
    """The value as a rotary embedding."""
    if value.scalar or value.op not in JOINED:
        return None
    for pairing in PAIRINGS:
        found = _Reader(c, pairing).read(value)
        if found is not None:
            return found
    return None


def read_permuted(c: Canonical, value: Value) -> Rotation | None:
    """The value as a rotary embedding of neighbours, whose results are written as halves."""
    return _Reader(c, "pairs", "halves").read(value) if value.op == "concatenate" else None


def turned(c: Canonical, value: Value) -> Turned | None:
    """The value as what is a rotary embedding if its tables, of which nothing needs to be known, are right."""
    if value.scalar or value.op not in JOINED:
        return None
    for pairing in PAIRINGS:
        found = _Reader(c, pairing).turned(value)
        if found is not None:
            return found
    return _Reader(c, "pairs", "halves").turned(value) if value.op == "concatenate" else None


class _Reader:
    """written: how lanes are put together, where not as they are read."""

    def __init__(self, c: Canonical, pairing: Pairing, written: Pairing | None = None) -> None:
        self.c, self.algebra, self.pairing, self.written = c, c.algebra, pairing, written or pairing
        self._known: dict[Value, Lanes | None] = {}

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
        even = cut is None or sliced or self._halves(x[0], cut) or self._is_half_of(cut, angles.frequencies.length)
        if not even and cut is not None and not self._may_halve(x[0], cut):
            return None
        if cut is not None and angles.offset is not None and self._stem(cut) is angles.offset:
            return None  # where it starts to count is no width: a lane of 1 would do there, too
        written = self.written if self.written != self.pairing else None
        halved = cut is not None and not even and self._stem(cut) is not cut
        width = self._stem(cut) if halved and cut is not None else None
        return Rotation(x[0], self.pairing, angles, m, inverse, even, written=written, width=width)

    def _may_halve(self, x: Value, cut: Value) -> bool:
        """A name, or the half of a name: of the length itself it would be known."""
        name = self._stem(cut)
        return (name.op == "size" or name.op in NAMED) and name is not self.algebra.size(x, -1)

    def _stem(self, cut: Value) -> Value:
        return cut.args[0] if cut.op == "floor_divide" and cut.args[1].is_number(2.0) else cut

    def _halves(self, x: Value, cut: Value) -> bool:
        return self._is_half_of(cut, self.algebra.size(x, -1))

    def _is_half_of(self, cut: Value, size: Value | None) -> bool:
        if size is None:
            return False
        if size.number is not None and cut.number is not None:
            return 2 * cut.number == size.number
        if cut.op == "floor_divide" and cut.args[0] is size and cut.args[1].is_number(2.0):
            return True
        return self.algebra.scale(cut, 2.0) is size

    def _terms(self, value: Value) -> dict[tuple[int, str], tuple[tuple[Value, Value | None], Value, Value]] | None:
        """Each term as lane of x, cos or sin -> (x and where it was cut, factor, angles)."""
        found: dict[tuple[int, str], tuple[tuple[Value, Value | None], Value, Value]] = {}
        addends = self._addends(value)
        if addends is None:
            return None
        terms, outer = addends
        for m, k in terms:
            lane = turn = None
            rest = list(outer)
            for b, e in m.factors:
                if b.op == "lane" and e == 1 and lane is None:
                    lane = b
                elif b.op in UNARY and not b.scalar and e == 1 and turn is None:
                    turn = b
                elif is_number(self.c, b):
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

    def _addends(self, value: Value) -> tuple[list[tuple[Value, float]], list[tuple[Value, Fraction]]] | None:
        """The terms of a sum, and the scalars that it is multiplied by."""
        if value.number is not None or value.constant:
            return None
        if value.op != "product":
            return list(value.terms), []
        sums = [b for b, e in value.factors if b.op == "sum" and e == 1]
        outer = [(b, e) for b, e in value.factors if not (b.op == "sum" and e == 1)]
        if len(sums) != 1 or sums[0].constant or not all(is_number(self.c, b) for b, _ in outer):
            return None
        return [(m, k * value.coefficient) for m, k in sums[0].terms], outer

    def turned(self, value: Value) -> Turned | None:
        both = self.lanes(value)
        addends = None if both is None else [self._addends(v) for v in both]
        if addends is None or any(a is None or len(a[0]) != 2 for a in addends):
            return None
        products = [[dict(m.factors) for m, _ in terms] for a in addends if a is not None for terms in (a[0],)]
        if not all(e == 1 for terms in products for m in terms for b, e in m.items() if not b.scalar):
            return None
        for x in {b.args[0]: None for b in products[0][0] if b.op == "lane"}:
            tables = self._tables(x, products)
            if tables is not None:
                whole_rows = any(b.op == "lane" and b.args[0] in tables for b in products[0][0])
                return Turned(x, tables, self.pairing, self.written, whole_rows)
        return None

    def _tables(self, x: Value, products: list[list[dict[Value, Fraction]]]) -> tuple[Value, ...] | None:
        """What the lanes of x are multiplied by, where each of the sums takes both lanes once."""
        tables: dict[Value, None] = {}
        for terms in products:
            indices = set()
            for m in terms:
                own = [b for b in m if b.op == "lane" and b.args[0] is x]
                rest = [b for b in m if b not in own and not b.scalar]
                if len(own) != 1 or not rest:
                    return None
                indices.add(own[0].param("index"))
                tables.update(dict.fromkeys(b.args[0] if b.op == "lane" else b for b in rest))
            if len(indices) != 2:
                return None
        return tuple(tables) if len(tables) > 1 else None

    # -- lanes -----------------------------------------------------------------------------------------------------

    def lane(self, x: Value, index: int, cut: Value | None = None) -> Value:
        return self.algebra.atom("lane", (x,), (("index", index), ("cut", cut)))

    def lanes(self, v: Value, depth: int = 0) -> Lanes | None:
        """The two lanes of the last axis of v."""
        if depth > 24:
            return None
        if v not in self._known:
            self._known[v] = self._lanes(v, depth)
        return self._known[v]

    def _lanes(self, v: Value, depth: int) -> Lanes | None:
        if v.scalar or v.number is not None:
            return v, v
        if self.written != self.pairing:
            made = self._joined(v)
            return None if made is None else (self.lane_of(made[0]), self.lane_of(made[1]))
        if v.op == "product":
            return self._each([(b, e) for b, e in v.factors], depth, lambda p: self.algebra.product(v.coefficient, p))
        if v.op == "sum":
            return self._each(list(v.terms), depth, lambda p: self.algebra.sum(v.constant, p))
        if v.op in UNARY:
            inner = self.lanes(v.args[0], depth + 1)
            return None if inner is None else (self._turn(v.op, inner[0]), self._turn(v.op, inner[1]))
        if v.op == "expand_dims":
            axes = axes_from_end(self.c, v)
            if axes is not None and -1 in axes:
                return v, v
            if axes is not None:
                return self._mapped(v, depth)
        if v.op == "reshape" and v.args[-1].is_number(1.0):
            return v, v
        both = outer_parts(v)
        if both is not None:
            inner = self.lanes(both[1], depth + 1)
            return None if inner is None else (self._outer(v, both[0], inner[0]), self._outer(v, both[0], inner[1]))
        if _takes_rows(v) or v.op == "broadcast_to":
            return self._mapped(v, depth)
        made = self._joined(v)
        if made is not None:
            return self.lane_of(made[0]), self.lane_of(made[1])
        return (self.lane(v, 0), self.lane(v, 1))

    def _outer(self, v: Value, positions: Value, frequencies: Value) -> Value:
        return self.algebra.atom(v.op, (positions, frequencies), v.params)

    def _mapped(self, v: Value, depth: int) -> Lanes | None:
        """The lanes of a view of an array: those of the array, viewed."""
        inner = self.lanes(v.args[0], depth + 1)
        if inner is None:
            return None
        if all(u.op == "lane" and u.args[0] is v.args[0] for u in inner):  # nothing is known of the array
            return self.lane(v, 0), self.lane(v, 1)
        return None if any(_has_lane(u) for u in inner) else (self._viewed(v, inner[0]), self._viewed(v, inner[1]))

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

    def _viewed(self, v: Value, u: Value) -> Value:
        """The view v, of u: a view of cos(u) is the cosine of that view of u."""
        if u.op in UNARY and not u.scalar:
            return self._turn(u.op, self._viewed(v, u.args[0]))
        if v.op == "expand_dims":
            axes = axes_from_end(self.c, v)
            if axes is None:
                return self.algebra.atom(v.op, (u,), v.params)
            if u.op == "product":
                parts = [(b if is_number(self.c, b) else self._viewed(v, b), e) for b, e in u.factors]
                return self.algebra.product(u.coefficient, parts)
            return expanded(self.c, u, axes)
        outer = [(b, e) for b, e in u.factors if is_number(self.c, b)]
        inner = [(b, e) for b, e in u.factors if not is_number(self.c, b)]
        if u.op == "product" and inner and (outer or u.coefficient != 1.0):
            rest = self.algebra.product(1.0, inner)
            return self.algebra.product(u.coefficient, [*outer, (self._viewed(v, rest), ONE)])
        return self.algebra.atom(v.op, (u, *v.args[1:]), v.params)

    def _settled(self, v: Value, depth: int = 0) -> Value:
        """A value with the cosines and sines in it outside of views."""
        if depth > 12 or not v.args:
            return v
        if v.op == "index" and self._is_half(v):
            both = _Reader(self.c, "halves").lanes(v.args[0])
            return both[0] if both is not None and both[0] is both[1] and not _has_lane(both[0]) else v
        if not (v.op in ("expand_dims", "broadcast_to", "reshape") or _takes_rows(v)):
            return v
        inner = self._settled(v.args[0], depth + 1)
        turns = inner.op in UNARY or any(b.op in UNARY for b, _ in inner.factors if b is not inner)
        return self._viewed(v, inner) if turns and not _has_lane(inner) else v

    def _is_half(self, v: Value) -> bool:
        """Whether a value is the first or second half of another's last axis."""
        index = v.param("index")
        if len(index) != 2 or index[0] != "..." or not is_slice(index[1]) or index[1][3] is not None:
            return False
        cuts = [p for p in index[1][1:3] if p is not None]
        return len(cuts) == 1 and isinstance(cuts[0], Value) and self._halves(v.args[0], cuts[0])

    def _joined(self, v: Value) -> Lanes | None:
        """What v was put together from."""
        if self.written == "halves":
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
            size, axis = self.c.operand(d), i - len(shape)
            if size is None or not (size.is_number(-1.0) or size is self.algebra.size(x, axis)):
                stated = self.c.facts.size(d)
                if stated is None or stated != facts.axis(axis):
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
                yield from lane.args[:1]  # a slice of a number has none
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
        return self.sliced(v) or self._settled(v)

    def sliced(self, v: Value) -> Value | None:
        """A slice of x as a lane of x, where it is one of this pairing."""
        found = self._slice(v)
        if found is not None and found.args[0].op not in NAMED and found.args[0] is not v:
            both = self.lanes(found.args[0])
            if both is not None and both[0] is both[1] and not _has_lane(both[0]):  # a half of a table that was doubled
                return both[0]
        return found

    def _slice(self, v: Value) -> Value | None:
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
        if len(index) == 2 and index[0] == "..." and is_slice(index[1]):
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


def _takes_rows(v: Value) -> bool:
    """Whether a value is some of the rows of another, or the first of several."""
    return v.op == "index" and (picked_rows(v.param("index")) is not None or v.param("index") == (0, "..."))


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


def with_rest(c: Canonical, value: Value) -> Rotation | None:
    """concatenate(rotated part of x, the rest of x): x's leading dims are rotated."""
    parts = _before_rest(c, value)
    found = None if parts is None else read(c, parts[0])
    if parts is None or found is None or not _is_start(found.x, parts):
        return None
    return replace(found, x=parts[2], dims=parts[1])


def turned_with_rest(c: Canonical, value: Value) -> Turned | None:
    """As `turned`, of x's leading dims."""
    parts = _before_rest(c, value)
    found = None if parts is None else turned(c, parts[0])
    if parts is None or found is None or not _is_start(found.x, parts):
        return None
    return replace(found, x=parts[2])


def _before_rest(c: Canonical, value: Value) -> tuple[Value, Value, Value] | None:
    """head, d and x of concatenate(head, x[..., d:])."""
    if value.op != "concatenate" or value.param("axis") != -1 or len(value.args) not in (2, 3):
        return None
    rest = value.args[-1]
    if rest.op != "index" or len(rest.param("index")) != 2 or rest.param("index")[0] != "...":
        return None
    cut = rest.param("index")[1]
    if not is_slice(cut) or not isinstance(cut[1], Value) or cut[2] is not None or cut[3] is not None:
        return None
    head = value.args[0]
    if len(value.args) == 3:
        head = c.algebra.atom("concatenate", value.args[:2], value.params)
    return head, cut[1], rest.args[0]


def _is_start(x: Value, parts: tuple[Value, Value, Value]) -> bool:
    """Whether a value is x[..., :d]."""
    want = ("...", ("slice", None, parts[1], None))
    return x.op == "index" and x.args[0] is parts[2] and bool(x.param("index") == want)
