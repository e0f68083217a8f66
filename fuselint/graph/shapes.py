"""Shapes with names, and with leading axes that nobody counted.

`Shape(None, (B, L, D))` has rank 3. `Shape("x", ())` is the shape of x, whatever its rank; `Shape("x[:-1]", (D,))` is
x's axes but the last, then D. Shapes are normal: the last axis of an unknown x is `x.shape[-1]`, and
`Shape("x[:-1]", (x.shape[-1],))` is `Shape("x", ())`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuselint.graph.symbols import Expr, Size, product
from fuselint.records import record

_CUT = re.compile(r"^(.*)\[:-(\d+)\]$", re.DOTALL)


def _split(lead: str) -> tuple[str, int]:
    """The array whose leading axes these are, and how many of its last axes are left out."""
    m = _CUT.match(lead)
    return (m.group(1), int(m.group(2))) if m else (lead, 0)


def _join(base: str, cut: int) -> str:
    return f"{base}[:-{cut}]" if cut else base


@record(frozen=True)
class Shape:
    """`lead` names leading axes whose number isn't known (None: there are none); `dims` are the axes after them."""

    lead: str | None
    dims: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if self.lead is None:
            return
        base, cut = _split(self.lead)
        dims = self.dims
        while cut and dims and dims[0] == Expr.name(f"{base}.shape[-{cut}]"):
            cut, dims = cut - 1, dims[1:]
        object.__setattr__(self, "lead", _join(base, cut))
        object.__setattr__(self, "dims", dims)

    @staticmethod
    def of(*sizes: Size) -> Shape:
        return Shape(None, tuple(Expr.of(s) for s in sizes))

    @property
    def rank(self) -> int | None:
        return len(self.dims) if self.lead is None else None

    def tail(self, count: int) -> tuple[Expr, ...] | None:
        """The last `count` axes; None if the rank is known and smaller."""
        known = len(self.dims)
        if count <= known:
            return self.dims[known - count :]
        if self.lead is None:
            return None
        base, cut = _split(self.lead)
        more = range(cut + count - known, cut, -1)
        return (*(Expr.name(f"{base}.shape[-{k}]") for k in more), *self.dims)

    def front(self, count: int) -> tuple[str | None, tuple[Expr, ...]] | None:
        """The axes before the last `count`: (lead, dims)."""
        known = len(self.dims)
        if count <= known:
            return (self.lead, self.dims[: known - count])
        if self.lead is None:
            return None
        base, cut = _split(self.lead)
        return (_join(base, cut + count - known), ())

    def axis(self, axis: int) -> Expr | None:
        """The size of one axis; axes count from the end where the rank isn't known."""
        if axis < 0:
            tail = self.tail(-axis)
            return None if tail is None else tail[0]
        if self.lead is None:
            return self.dims[axis] if axis < len(self.dims) else None
        base, cut = _split(self.lead)
        return Expr.name(f"{base}.shape[{axis}]") if cut == 0 and not self.dims else None

    def from_end(self, axis: int) -> int | None:
        """The axis as a negative number; None where that takes a rank that isn't known, or is out of range."""
        if axis < 0:
            return axis if self.lead is not None or -axis <= len(self.dims) else None
        if self.lead is None and axis < len(self.dims):
            return axis - len(self.dims)
        return None

    def replace(self, axis: int, new: Sequence[Expr]) -> Shape | None:
        """This shape with one axis replaced by none, one or several."""
        back = self.from_end(axis)
        if back is None:
            return None
        tail, front = self.tail(-back), self.front(-back)
        if tail is None or front is None:
            return None
        return Shape(front[0], (*front[1], *new, *tail[1:]))

    def certain(self, count: int) -> bool:
        """Whether the last `count` axes surely exist: an array has at least one."""
        if self.lead is None or count <= len(self.dims):
            return count <= len(self.dims)
        return count == 1 and not self.dims and _split(self.lead)[1] == 0

    def elements(self) -> Expr | None:
        """The number of elements, where the rank is known."""
        return product(self.dims) if self.lead is None else None

    def __str__(self) -> str:
        parts = [str(d) for d in self.dims]
        if self.lead is not None:
            parts.insert(0, f"*{self.lead}")
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


SCALAR = Shape(None, ())

JOINED = " & "
"""Between the names of leading axes that broadcast together."""


def _meet(a: Expr, b: Expr) -> Expr:
    """The size of an axis where two operands meet: equal, or one is 1."""
    if b in (a, 1):
        return a
    if a == 1:
        return b
    for x, y in ((a, b), (b, a)):
        if x.value() is not None and y.value() is None:
            return x  # a number other than 1 says what the other, a name, is
    return Expr.max(a, b)


def broadcast(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape that two arrays broadcast to."""
    if a is None or b is None:
        return None
    if b in (a, SCALAR):
        return a
    if a == SCALAR:
        return b
    if a.lead is None and b.lead is None:
        n = max(len(a.dims), len(b.dims))
        one = Expr.of(1)
        left = (one,) * (n - len(a.dims)) + a.dims
        right = (one,) * (n - len(b.dims)) + b.dims
        return Shape(None, tuple(_meet(x, y) for x, y in zip(left, right, strict=True)))
    # Trailing axes meet one by one; leading axes are either the same ones, or the result's are new.
    n = _depth(a, b)
    left_tail, right_tail = a.tail(n), b.tail(n)
    left_front, right_front = a.front(n), b.front(n)
    if left_tail is None or right_tail is None or left_front is None or right_front is None:
        return None
    dims = tuple(_meet(x, y) for x, y in zip(left_tail, right_tail, strict=True))
    for nothing, front in ((left_front, right_front), (right_front, left_front)):
        if nothing == (None, ()):
            return Shape(front[0], (*front[1], *dims))
    return Shape(_lead(left_front, right_front), dims)


def _depth(a: Shape, b: Shape) -> int:
    """How many trailing axes are compared one by one."""
    if a.lead is not None and b.lead is not None:
        (base_a, cut_a), (base_b, cut_b) = _split(a.lead), _split(b.lead)
        if base_a == base_b and cut_a - len(a.dims) == cut_b - len(b.dims):
            return max(len(a.dims), len(b.dims))
        return min(len(a.dims), len(b.dims))
    fixed, free = (a, b) if a.lead is None else (b, a)
    assert free.lead is not None
    sure = len(free.dims) or (1 if _split(free.lead)[1] == 0 else 0)  # an array has at least one axis
    return min(sure, len(fixed.dims))


def _lead(a: tuple[str | None, tuple[Expr, ...]], b: tuple[str | None, tuple[Expr, ...]]) -> str | None:
    if a == b and not a[1]:
        return a[0]
    if a == (None, ()):
        return _front_name(b) if b[1] else b[0]
    if b == (None, ()):
        return _front_name(a) if a[1] else a[0]
    return JOINED.join(sorted({_front_name(a), _front_name(b)}))


def _front_name(front: tuple[str | None, tuple[Expr, ...]]) -> str:
    lead, dims = front
    if not dims and lead is not None:
        return lead
    return str(Shape(lead, dims))
