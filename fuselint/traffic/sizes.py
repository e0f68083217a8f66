"""Sizes of arrays as formulas in the names of the user's code, and what numbers to take for names nobody stated.

Where an array's rank is unknown it has T rows of its last axis; the last axis of such arrays prints as D.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr, product

ROWS, FEATURES, BATCH, LENGTH = "T", "D", "B", "L"

USUAL: dict[int, tuple[int, ...]] = {
    1: (4096,),
    2: (2048, 4096),
    3: (1, 2048, 4096),
    4: (1, 32, 2048, 128),
}
"""Sizes of the axes of an activation by its rank: rows of features, batch x length x features, and attention heads."""
LETTERS = {"B": 1, "H": 32, "G": 8, "L": 2048, "S": 2048, "F": 64, ROWS: 2048}
"""Sizes of axes that rules, and most code, name so: batch, heads, K and V heads, lengths of queries and keys, pairs."""

NEGLIGIBLE = 1000
"""A term this many times smaller than one that contains it isn't worth printing."""


@dataclass(slots=True)
class Sizes:
    """The sizes of one region: made of all its shapes, so that one axis has one name."""

    rows: str = ""  # whose rows T counts, where some rank is unknown
    features: Expr | None = None  # what D stands for, where the code names it
    renamed: dict[str, Expr] = field(default_factory=dict)
    usual: dict[str, int] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)  # of names that aren't the code's own

    @classmethod
    def of(cls, shapes: Iterable[Shape | None], equal: Iterable[tuple[Shape | None, Shape | None]] = ()) -> Sizes:
        """`equal`: shapes of operands and results of elementwise operations, whose axes are the same ones."""
        out = cls()
        for operand, result in equal:
            out._equate(operand, result)
        listed = [None if s is None else out._renamed(s) for s in shapes]
        free = [s for s in listed if s is None or s.lead is not None]
        if free:
            out._name_rows(free, listed)
        out.renamed = {name: size.substitute(out.renamed) for name, size in out.renamed.items()}
        for shape in listed:
            if shape is not None:
                out._note_usual(shape)
        return out

    def _equate(self, operand: Shape | None, result: Shape | None) -> None:
        """`scale.shape[1]` of `x * scale` is what x's axis is called."""
        if operand is None or result is None:
            return
        for a, b in zip(reversed(operand.dims), reversed(result.tail(len(operand.dims)) or ()), strict=False):
            name = str(a)
            if b in (a, 1) or a != Expr.name(name) or ".shape[" not in name or name in self.renamed:
                continue
            if name not in b.substitute(self.renamed).names:
                self.renamed[name] = b.substitute(self.renamed)

    def _renamed(self, shape: Shape) -> Shape:
        return Shape(shape.lead, tuple(d.substitute(self.renamed) for d in shape.dims))

    def _name_rows(self, free: list[Shape | None], listed: list[Shape | None]) -> None:
        first = next((s.lead for s in free if s is not None and s.lead is not None), "")
        self.rows = (first or "").split("[", 1)[0].split(" & ", 1)[0]
        lasts = [a for s in listed if s is not None and (a := s.axis(-1)) is not None and (s.lead or s.rank == 1)]
        named = [a for a in lasts if a.value() is None]
        stated = [a for a in named if ".shape[" not in str(a)]
        # An axis of the code's own (a weight's size) says more than `x.shape[-1]`; a number says most.
        number = next((a for a in lasts if (a.value() or 0) > 1), None)
        self.features = number or next(iter(stated), None)
        last = number if number is not None else Expr.name(FEATURES)
        for a in named:
            if len(a.names) == 1 and a == Expr.name(next(iter(a.names))):
                self.renamed[next(iter(a.names))] = last
        self._name_outer_axes(listed)
        if number is None:
            self.usual[FEATURES] = USUAL[2][-1]
        self.usual[ROWS] = LETTERS[ROWS]

    def _name_outer_axes(self, listed: list[Shape | None]) -> None:
        """`x.shape[-3]` of an x of unknown rank is its batch, `x.shape[-2]` its length."""
        for name in {n for s in listed if s is not None for d in s.dims for n in d.names}:
            outer = re.fullmatch(r".*\.shape\[-([2-9])\]", name)
            if outer is not None:
                self.renamed.setdefault(name, Expr.name(LENGTH if outer.group(1) == "2" else BATCH))

    def _note_usual(self, shape: Shape) -> None:
        dims = shape.dims
        usual = USUAL.get(len(dims) if shape.lead is None else 3) or USUAL[max(USUAL)]
        usual = (1,) * (len(dims) - len(usual)) + usual[-len(dims) :] if dims else ()
        for d, n in zip(dims, usual, strict=True):
            for name in d.substitute(self.renamed).names:
                self.usual.setdefault(name, LETTERS.get(name, n))

    def elements(self, shape: Shape | None) -> Expr:
        if shape is None:
            return Expr.name(ROWS) * self._last(None)
        count = product(d.substitute(self.renamed) for d in shape.dims)
        if shape.lead is None:
            return count
        if len(shape.dims) > 1:
            return Expr.name(BATCH) * count
        if shape.lead.endswith("]") or shape.dims:
            return Expr.name(ROWS) * count
        return Expr.name(ROWS) * self._last(shape)

    def _last(self, shape: Shape | None) -> Expr:
        last = shape.axis(-1) if shape is not None else None
        if last is not None:
            return last.substitute(self.renamed)
        return self.renamed.get(FEATURES, Expr.name(FEATURES)) if self.features is None else self._feature()

    def _feature(self) -> Expr:
        assert self.features is not None
        return self.features if self.features.value() is not None else Expr.name(FEATURES)

    def meaning(self, name: str) -> str:
        """What a name stands for, in the code's own words where it has them."""
        if name in self.meanings:
            return self.meanings[name]
        whose = self.rows if self.rows.isidentifier() else "an activation"
        if name == ROWS and ROWS in self.usual:
            return f"rows of {whose}"
        if name == FEATURES and FEATURES in self.usual and self.rows:
            return str(self.features) if self.features is not None else f"last axis of {whose}"
        return name

    def leading(self, formula: Expr) -> Expr:
        """The formula without terms that another contains and outweighs. Rows are rows of each of a batch."""
        sizes = {n: self.usual.get(n, LETTERS.get(n, 1)) for n in formula.names}
        terms = [(m, c, Expr({m: abs(c)})) for m, c in formula.terms]

        def outweighs(large: Expr, small: Expr) -> bool:
            spread = {ROWS: Expr.name(BATCH) * Expr.name(ROWS)}
            whole = Expr({m: Fraction(1) for m, _ in large.substitute(spread).terms})
            part = Expr({m: Fraction(1) for m, _ in small.terms})
            ratio = (large.substitute(sizes).value() or 0) / (small.substitute(sizes).value() or 1)
            return ratio >= NEGLIGIBLE and part.divides(whole)

        kept = {m: c for m, c, term in terms if not any(outweighs(o, term) for n, _, o in terms if n != m)}
        return Expr(kept)

    def numbers(self, formula: Expr, stated: Callable[[str], int | None]) -> tuple[dict[str, int], tuple[str, ...]]:
        """A number for each name of the formula, and which of them nobody stated."""
        at: dict[str, int] = {}
        assumed: list[str] = []
        for name in sorted(formula.names):
            given = stated(name)
            if given is None:
                assumed.append(name)
            at[name] = self.usual.get(name, LETTERS.get(name, 1)) if given is None else given
        return at, tuple(assumed)
