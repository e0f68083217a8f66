"""Which reshapes copy: strides of arrays, as far as their shapes are known.

A reshape is free where the old strides allow the new shape; of a transposed, broadcast or inner-sliced array they
often don't, and MLX copies. Strides are sizes; an array whose rank is unknown is contiguous until it is permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuselint.graph.model import Node, Slice
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import FUSABLE, RESHAPES, Array

ONE = Expr.of(1)
Strides = tuple[Expr, ...]


class Layout:
    """Strides of the arrays of a tape, and the reshapes that take a kernel."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.strides: dict[Array, Strides | None] = {}
        self.permuted: set[Array] = set()  # of unknown rank or unknown order, but not contiguous
        self.copies: set[Array] = set()
        for a in arrays:
            self._place(a)

    def _place(self, a: Array) -> None:
        self.strides[a] = contiguous(a.shape)
        source = a.inputs[0] if a.inputs else None
        if source is None:
            return
        if a.primitive in RESHAPES or a.primitive in ("ExpandDims", "Squeeze"):
            self._reshape(a, source)
        elif a.primitive == "Broadcast":
            self._broadcast(a, source)
        elif a.primitive == "Transpose":
            self._transpose(a, source)
        elif a.primitive == "Slice" and a.node is not None and a.node.op == "index":
            self._slice(a, source, a.node)
        elif a.primitive in ("Slice", "Split", "Item", "StopGradient", "Copy", "Depends"):
            self._same(a, source)
        elif a.primitive in FUSABLE:
            self._elementwise(a)

    def _same(self, a: Array, source: Array) -> None:
        old = self.strides.get(source)
        if source in self.permuted:
            self.permuted.add(a)
        if old is not None and a.shape is not None and a.shape.rank == len(old):
            self.strides[a] = old

    def _slice(self, a: Array, source: Array, node: Node) -> None:
        old = self.strides.get(source)
        index = node.attrs.get("index")
        parts = index if isinstance(index, tuple) else (index,)
        new = None if old is None else sliced(old, parts)
        if new is not None and a.shape is not None and a.shape.rank == len(new):
            self.strides[a] = new
        elif source in self.permuted or any(p is not None for p in parts[1:]):
            self.permuted.add(a)  # inner axes may be cut

    def _reshape(self, a: Array, source: Array) -> None:
        old = self.strides.get(source)
        if source.primitive == "Broadcast" and a.primitive in RESHAPES:
            self.copies.add(a)
        elif source in self.permuted:
            if a.primitive in RESHAPES:
                self.copies.add(a)
            else:
                self.permuted.add(a)
        elif old is not None and old == contiguous(source.shape):
            return  # whatever the sizes, such as 2 and D // 2 of D
        elif old is not None and source.shape is not None and a.shape is not None and a.shape.rank is not None:
            new = viewed(source.shape.dims, old, a.shape.dims)
            if new is not None:
                self.strides[a] = new
            elif a.primitive in RESHAPES:
                self.copies.add(a)

    def _broadcast(self, a: Array, source: Array) -> None:
        old = self.strides.get(source)
        if old is None or a.shape is None or a.shape.rank is None or source.shape is None:
            self.strides[a] = None
            return
        pad = a.shape.rank - len(old)
        zero = Expr.of(0)
        grown = [
            zero if i < pad or (source.shape.dims[i - pad] == 1 and d != 1) else old[i - pad]
            for i, d in enumerate(a.shape.dims)
        ]
        self.strides[a] = tuple(grown)

    def _transpose(self, a: Array, source: Array) -> None:
        old = self.strides.get(source)
        order = None if old is None or a.node is None else permutation(a.node, len(old))
        if old is None or order is None:
            self.permuted.add(a)
        else:
            self.strides[a] = tuple(old[i] for i in order)

    def _elementwise(self, a: Array) -> None:
        """The result of an elementwise op keeps its full-sized operands' layout, where they agree."""
        full = [b for b in a.inputs if b.shape == a.shape and b.primitive != "Broadcast"]
        if full and all(b in self.permuted for b in full):
            self.permuted.add(a)
        layouts = {self.strides.get(b) for b in full}
        if len(layouts) == 1:
            (only,) = layouts
            if only is not None:
                self.strides[a] = only


def contiguous(shape: Shape | None) -> Strides | None:
    if shape is None or shape.rank is None:
        return None
    out: list[Expr] = []
    n = ONE
    for d in reversed(shape.dims):
        out.append(n)
        n = n * d
    return tuple(reversed(out))


def viewed(old: Sequence[Expr], strides: Sequence[Expr], new: Sequence[Expr]) -> Strides | None:
    """Strides of the new shape over the same memory, or None: it takes a copy. Axes of 1 have no say."""
    merged: list[tuple[Expr, Expr]] = []
    for d, s in zip(old, strides, strict=True):
        if d == 1:
            continue
        if merged and merged[-1][1] == d * s:
            merged[-1] = (merged[-1][0] * d, s)
        else:
            merged.append((d, s))
    out: list[Expr] = []
    at, rest = 0, ONE
    for d in new:
        if d == 1:
            out.append(ONE)
            continue
        if rest == 1:
            if at >= len(merged):
                return None
            rest, at = merged[at][0], at + 1
        if not d.divides(rest):
            return None
        rest = rest // d
        out.append(rest * merged[at - 1][1])
    return tuple(out) if rest == 1 and at == len(merged) else None


def permutation(node: Node, rank: int) -> tuple[int, ...] | None:
    """The order of axes of a transpose, swapaxes or moveaxis."""
    attrs, axes = node.attrs, list(range(rank))
    if node.op == "transpose":
        given = attrs.get("axes")
        if given is None or given == ():
            return tuple(reversed(axes))
        if isinstance(given, tuple) and all(isinstance(i, int) for i in given) and len(given) == rank:
            return tuple(i % rank for i in given)
        return None
    if node.op == "matrix_transpose" and rank > 1:
        return (*axes[:-2], axes[-1], axes[-2])
    pair = ("axis1", "axis2") if node.op == "swapaxes" else ("source", "destination")
    a, b = (attrs.get(k) for k in pair)
    if not isinstance(a, int) or not isinstance(b, int) or not (-rank <= a < rank and -rank <= b < rank):
        return None
    if node.op == "swapaxes":
        axes[a], axes[b] = axes[b], axes[a]
    else:
        axes.insert(b % rank, axes.pop(a))
    return tuple(axes)


def sliced(strides: Strides, parts: Sequence[Any]) -> Strides | None:
    """Strides after `x[parts]`; None where the index isn't one of slices, ints and new axes."""
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    out: list[Expr] = []
    rest = list(strides)
    for p in parts if Ellipsis in parts else (*parts, Ellipsis):
        if p is None:
            out.append(ONE)
        elif p is Ellipsis:
            kept = len(rest) - (taken if p in parts else 0)
            out.extend(rest[:kept])
            rest = rest[kept:]
        elif not rest:
            return None
        elif isinstance(p, Slice):
            if not isinstance(p.step, (int, type(None))):
                return None
            out.append(rest.pop(0) * (1 if p.step is None else p.step))
            taken -= 1
        elif isinstance(p, int):
            rest.pop(0)
            taken -= 1
        else:
            return None
    return tuple(out)
