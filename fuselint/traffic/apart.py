"""Operands whose shape nobody states: each has a size of its own, `cos.size`, unless the result has its shape.

What such an operand holds is assumed by what it is for: a step of a schedule is one number, an attribute of an object a
weight as long as an axis, a table of angles has a row for each position, and anything else is as large as the result.
Where operands of unknown shape meet, the result has the shape of the largest kind of them: `alpha * x` that of x.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import libcst as cst

from fuselint.graph.callers import has_rows
from fuselint.graph.model import Graph, Node, Slice, region
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import RESHAPES, Array
from fuselint.graph.trace import OPAQUE, Trace
from fuselint.graph.unstated import is_from_outside

Use = Literal["number", "vector", "table", "activation"]
"""What an operand is for, as far as its name says, from the smallest to the largest."""

LONGEST = 32
"""An expression up to so many characters is a name to read."""

SPOKEN = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BinaryOperation)
"""Expressions that may name an operand."""

USES: tuple[tuple[str, Use], ...] = (
    (r"(^|_)att(entio)?n_?(weights?|scores?|probs?|logits)|(^|_)masks?$", "activation"),
    (r"(^|_)(cos|sin|freqs?|rope|angles?)(\d|_|$|ines?)", "table"),
    (r"(^|_)(sigma|timestep|dt|eps|epsilon|guidance|temperature)(_(next|prev|hat|scale|from|to|cur))?$", "number"),
    (r"(^|_)((logit_?|soft_?)?cap(ping)?|softcapping|(residual|logit)_?(scale|multiplier)|limit)$", "number"),
    (r"(^|_)(weight|bias|gamma|beta|scale|shift|alpha|mean|var|std|window)s?(_|$)", "vector"),
)

LARGER: Mapping[Use, int] = {use: i for i, use in enumerate(get_args(Use))}
RESULT = len(LARGER)
"""How large an array is that isn't apart: as the result."""
ONES = 0.5
"""How much less an axis of 1 makes of it."""


MODULATING = 4
"""Parts of a layer's result that scale, shift and gate others; what attention takes is three."""

NORMS = r"norm|(^|_)(ln|bn|gn)(\d|_|$)|scale"
"""What layers are called whose weight is as long as an axis."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of unknown shape. lead: what shapes made of its own are called after; size: its elements.

    shape: its own, where its last axes are known."""

    lead: str
    size: Expr
    use: Use
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """The elements of an array: of which operand, if that has a size of its own, and in which shape."""

    own: Operand | None
    shape: Shape | None
    parts: int = 1  # it has one of so many parts of them

    def rank(self) -> float:
        """Which of several that meet is the largest, as far as that can be told."""
        shape, free = self.shape, self.shape is None or self.shape.lead is not None
        one = shape is not None and any(d == 1 for d in shape.dims)
        if self.own is not None:
            return LARGER[self.own.use] - ONES * one
        is_vector = shape is not None and not free and sum(d != 1 for d in shape.dims) < 2
        return LARGER["vector"] if is_vector else LARGER["activation"] - ONES if one else RESULT


@dataclass(frozen=True, eq=False)
class Apart:
    """The operands of a region that have sizes of their own. like: the result, which activations are as large as.

    operands: by what shapes made of theirs are called after; nodes: by the values that they are.
    """

    operands: Mapping[str, Operand]
    nodes: Mapping[Node, Operand]
    like: Shape | None
    found: dict[Array, Measure] = field(default_factory=dict)

    def of(self, array: Array) -> Measure:
        """Whose elements an array has: those of an operand that it is, or computes a value for each of, or those of
        its shape; of operands of unknown shape that meet, those of the largest."""
        if array not in self.found:
            self.found[array] = self._of(array)
        return self.found[array]

    def _of(self, array: Array) -> Measure:
        own = self.nodes.get(array.node) if array.node is not None and _comes_in(array) else None
        if own is not None:
            return Measure(own, array.shape)
        by_value = array.fusable and array.primitive != "Broadcast"
        read = [unbroadcast(a) for a in array.inputs if a.value is None]
        measures = [self.of(a) for a in read if a.shape is None or a.shape.lead is not None or a.shape.dims]
        if array.shape is not None and array.shape.lead is None:
            return self._beside_weights(array, measures) if by_value else Measure(None, array.shape)
        if array.primitive == "Split" and array.shape is None and measures:
            whole, parts = measures[0], 1 + len((array.first or array).others)
            return replace(whole, parts=whole.parts * parts)
        if not measures or not (by_value or (array.primitive in KEEPING and len(read) == 1)):
            return Measure(self.of_shape(array.shape), array.shape)
        largest = max(measures, key=Measure.rank)
        if by_value and (met := self._beside_known(array, measures)) is not None:
            return met
        if largest.own is None and largest.parts == 1 and self.of_shape(array.shape) is None:
            is_told = array.shape is None and all(m.own is None and m.shape is not None for m in measures)
            return Measure(None, largest.shape if is_told else array.shape)
        named = by_value and largest.own is not None and array.shape is not None
        return replace(largest, shape=array.shape) if named and self.of_shape(array.shape) is largest.own else largest

    def _beside_known(self, array: Array, measures: Sequence[Measure]) -> Measure | None:
        """Of one operand of unknown shape beside known ones: as many as it has in each of their axes, and of a vector
        beside several axes what these have."""
        free = [m for m in measures if m.own is not None or m.shape is None or m.shape.lead is not None]
        known = [m.shape for m in measures if m not in free and m.shape is not None]
        own = free[0].own if len(free) == 1 else None
        if own is None or not known or free[0].parts != 1:
            return None
        if array.shape is not None:
            return Measure(own, array.shape) if self.of_shape(array.shape) is own else None
        widest = max(known, key=lambda s: len(s.dims))
        if own.use != "vector" or len(widest.dims) < 2 or widest.dims[-1] == 1:
            return None
        return Measure(None, widest)

    def _beside_weights(self, array: Array, measures: Sequence[Measure]) -> Measure:
        """Of weights of several axes beside an activation of unknown rank: the result has the activation's shape."""
        free = [m for m in measures if m.shape is None or m.shape.lead is not None]
        weights = [m for m in measures if m.own is not None and m.own.use == "vector"]
        others = [m for m in measures if m not in weights]
        if weights and others and all(m in free for m in others):
            return max(others, key=Measure.rank)
        if len(measures) == 1 and (len(array.inputs) == 1 or measures[0].shape == array.shape):
            return measures[0]
        return Measure(None, array.shape)

    def of_shape(self, shape: Shape | None) -> Operand | None:
        return None if shape is None or shape.lead is None else self.operands.get(base(shape.lead))


KEEPING = RESHAPES | {"ExpandDims", "Squeeze", "Transpose", "Copy", "StopGradient"}
"""Primitives whose results have all elements of their operand, and no more."""


def apart(traced: Trace, region: Collection[Node], results: Iterable[Node], also: Iterable[Array] = ()) -> Apart:
    """Which operands of a region have a size of their own: those that nothing says a shape of, but for the one whose
    shape the results have. also: arrays of another trace that kernels read."""
    results = list(results)
    shapes = [_shape(traced, n) for n in results]
    like = next(iter(shapes), None)
    found: dict[str, Operand] = {}
    nodes: dict[Node, Operand] = {}
    unnamed = False
    outside = {**dict(_others(also, region)), **dict(_outside(traced, region))}
    for node, array in outside.items():
        name = traced.facts.name_of(node)
        lead = name if array.shape is None or array.shape.lead is None else base(array.shape.lead)
        whole = _whole(node)
        cut = array.shape if array.shape is not None and array.shape.dims else None
        text = _readable(whole, lead if whole is node and cut is None else traced.facts.name_of(whole))
        if _is_total(array):
            text = text or node.op
        use = "vector" if _is_total(array) else _use(traced.facts.graph, whole, text)
        if cut is not None and cut.lead is None and use != "vector":
            continue  # its shape is known
        unnamed = unnamed or (not text and use == "activation" and lead.startswith("%"))
        if text:
            found.setdefault(lead, Operand(lead, Expr.name(f"{text}.size"), use, cut))
            nodes[node] = found[lead]
    if any(s is None or s.lead is not None for s in shapes):
        for lead in _mains(shapes, found, unnamed):
            found.pop(lead)
    out = Apart(found, {n: o for n, o in nodes.items() if o.lead in found}, like)
    first = next((a for n in results if (a := traced.array(n)) is not None), None)
    counted = None if first is None else out.of(first)
    return out if counted is None or counted.own is not None else replace(out, like=counted.shape)


def shapes_of_tables(traced: Trace) -> Iterator[Shape]:
    """The shapes in which tables of cosines, sines or angles are read, views of them among these."""
    for node, array in traced.made.items():
        if isinstance(array, Array) and not array.primitive and array.shape is not None:
            whole = _whole(node)
            if _use(traced.facts.graph, whole, _readable(whole, traced.facts.name_of(whole))) == "table":
                yield array.shape


def _comes_in(array: Array) -> bool:
    """Whether an array is there before the region, or a sum of which nothing says what is summed over."""
    return array.value is None and (array.primitive in ("", OPAQUE) or _is_total(array))


def _is_total(array: Array) -> bool:
    return array.primitive == "Reduce" and array.shape is None


def unbroadcast(a: Array) -> Array:
    while a.primitive == "Broadcast":
        a = a.inputs[0]
    return a


def _outside(traced: Trace, region: Collection[Node]) -> Iterator[tuple[Node, Array]]:
    for node, array in traced.made.items():
        if node in region or not isinstance(array, Array) or array.primitive or array.value is not None:
            continue
        if _is_unknown(array.shape):
            yield node, array


def _others(arrays: Iterable[Array], region: Collection[Node]) -> Iterator[tuple[Node, Array]]:
    for array in arrays:
        node = array.node
        if (
            node is not None
            and _comes_in(array)
            and _is_unknown(array.shape)
            and (node not in region or _is_total(array))
        ):
            yield node, array


def _is_unknown(shape: Shape | None) -> bool:
    """Whether a shape says too little: no rank, or of several axes no size."""
    if shape is None or shape.lead is not None:
        return True
    return len(shape.dims) > 1 and all(any(".shape[" in n for n in d.names) for d in shape.dims)


def _shape(traced: Trace, node: Node) -> Shape | None:
    array = traced.array(node)
    own = None if array is None else array.shape
    return own if own is not None and own.lead is None else traced.shape(node)


def _whole(node: Node) -> Node:
    """What a value is a view of, with all its elements: cos of `expand_dims(cos, 0)` and of `cos[:, None]`."""
    while node.inputs:
        op, parts = TABLE.get(node.op), node.attrs.get("index")
        parts = parts if isinstance(parts, tuple) else (parts,)
        grows = node.op == "index" and all(
            p is None or p is ... or (isinstance(p, Slice) and p.takes_all) for p in parts
        )
        if (
            not grows
            and node.op != "astype"
            and not (op is not None and KEEPING.issuperset(op.primitives) and op.primitives)
        ):
            break
        node = node.inputs[0]
    return node


def _mains(shapes: Iterable[Shape | None], found: Mapping[str, Operand], unnamed: bool) -> list[str]:
    """The operands that the results have the shape of: those that they are called after, else the likeliest one, which
    may be one that has no name."""
    bases = {base(s.lead) for s in shapes if s is not None and s.lead is not None}
    named = [lead for lead in found if lead in bases]
    if unnamed and not named:
        return []
    activations = [o.lead for o in found.values() if o.use == "activation"]
    return [lead for lead in named if lead in activations] or activations[:1] or named or list(found)[:1]


def base(lead: str) -> str:
    """The array whose leading axes these are."""
    return lead.split("[:-", 1)[0]


def _readable(node: Node, lead: str) -> str:
    """What to call an operand; "" for one that the code has no short name for."""
    if not lead.startswith("%"):
        return lead if " " not in lead else ""
    source = node.frame.source
    text = "" if source is None or node.cst is None else source.code(node.cst).strip()
    if len(text) > LONGEST or "\n" in text or not isinstance(node.cst, SPOKEN):
        return ""
    return f"({text})" if isinstance(node.cst, cst.BinaryOperation) else text


def _use(graph: Graph, node: Node, text: str) -> Use:
    if isinstance(node.cst, cst.BinaryOperation) and text.startswith("("):
        parts = re.split(r"\s[-+*/@%]+\s", text[1:-1])  # as large as its largest part
        return max((_use_of_name(p) or "activation" for p in parts), key=lambda use: LARGER[use])
    if node.op in TABLE and TABLE[node.op].kind == "gather":
        return "activation"  # a row for each token
    if node.op in ("cos", "sin"):
        return "table"
    if (whole := _modulation(node)) is not None:
        made_of = [n for n in region(whole, ()) if n.op == "param"]
        return "activation" if any(has_rows(graph, n) for n in made_of) else "vector"
    owner = re.search(r"(\w+)\.weight'*$", text)
    if owner is not None and owner.group(1) != "self" and not re.search(NORMS, owner.group(1).lower()):
        return "activation"  # of a layer: a matrix
    said = _use_of_name(text)
    is_weight = node.op in ("attr", "global") and not is_from_outside(node)
    return said or ("vector" if is_weight else "activation")


def _modulation(node: Node) -> Node | None:
    """layer(t) of `_, _, gate, _ = mx.split(layer(t), 4, axis=-1)`, or of what is computed of that: no activation has
    so many parts."""
    while (op := TABLE.get(node.op)) is not None and op.kind in ("unary", "cast", "binary"):
        arrays = [n for n in node.inputs if n.op != "const"]
        if len(arrays) != 1:
            return None
        node = arrays[0]
    split = node.inputs[0] if node.op == "item" and node.inputs else None
    if split is None or split.op != "split" or not isinstance(parts := split.attrs.get("indices_or_sections"), int):
        return None
    return split.inputs[0] if parts >= MODULATING and split.attrs.get("axis") == -1 else None


def _use_of_name(text: str) -> Use | None:
    last = text.rstrip("'\"])").rsplit(".", 1)[-1].lower()
    return next((use for pattern, use in USES if re.search(pattern, last)), None)
