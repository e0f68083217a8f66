"""Operands whose shape nobody states: each has a size of its own, `cos.size`, unless the result has its shape.

What such an operand holds is assumed by what it is for: an attribute of an object is a weight as long as an axis, a
table of angles has a row for each position, and anything else is as large as the result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fuselint.graph.model import Node, Slice
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import RESHAPES, Array
from fuselint.graph.trace import Trace

Use = Literal["vector", "table", "activation"]
"""What an operand is for, as far as its name says."""

LONGEST = 32
"""An expression up to so many characters is a name to read."""

USES: tuple[tuple[str, Use], ...] = (
    (r"(^|_)(cos|sin|freqs?|rope|angles?)(\d|_|$|ines?)", "table"),
    (r"(^|_)(weight|bias|gamma|beta|scale|shift|alpha|eps|epsilon|mean|var|std)s?(_|$)", "vector"),
)


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


@dataclass(frozen=True, eq=False)
class Apart:
    """The operands of a region that have sizes of their own. like: the result, which activations are as large as."""

    operands: Mapping[str, Operand]
    arrays: Mapping[Array, Operand]
    like: Shape | None

    def of(self, array: Array) -> Operand | None:
        """The operand that an array has all elements of: itself, or a value for each of its own."""
        at: Array | None = array
        while at is not None and at not in self.arrays and (at.shape is None or at.shape.lead is not None):
            made_of = [a for a in at.inputs if a.value is None]
            keeps = (at.fusable and at.primitive != "Broadcast") or at.primitive in KEEPING
            at = made_of[0] if keeps and len(made_of) == 1 else None
        return self.of_shape(array.shape) if at is None else self.arrays.get(at)

    def of_shape(self, shape: Shape | None) -> Operand | None:
        return None if shape is None or shape.lead is None else self.operands.get(_base(shape.lead))


KEEPING = RESHAPES | {"ExpandDims", "Squeeze", "Transpose", "Copy", "StopGradient"}
"""Primitives whose results have all elements of their operand, and no more."""


def apart(traced: Trace, region: Collection[Node], results: Iterable[Node]) -> Apart:
    """Which operands of a region have a size of their own: those that nothing says a shape of, but for the one whose
    shape the results have."""
    shapes = [_shape(traced, n) for n in results]
    like = next(iter(shapes), None)
    found: dict[str, Operand] = {}
    arrays: dict[Array, Operand] = {}
    for node, array in _outside(traced, region):
        name = traced.facts.name_of(node)
        lead = name if array.shape is None else _base(array.shape.lead or "")
        whole = _whole(node)
        cut = array.shape if array.shape is not None and array.shape.dims else None
        text = _readable(whole, lead if whole is node and cut is None else traced.facts.name_of(whole))
        if text:
            found.setdefault(lead, Operand(lead, Expr.name(f"{text}.size"), _use(whole, text), cut))
            arrays[array] = found[lead]
    if any(s is None or s.lead is not None for s in shapes):
        for lead in _mains(shapes, found):
            found.pop(lead)
    return Apart(found, {a: o for a, o in arrays.items() if o.lead in found}, like)


def _outside(traced: Trace, region: Collection[Node]) -> Iterator[tuple[Node, Array]]:
    for node, array in traced.made.items():
        if node in region or not isinstance(array, Array) or array.primitive or array.value is not None:
            continue
        if array.shape is None or array.shape.lead is not None:
            yield node, array


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


def _mains(shapes: Iterable[Shape | None], found: Mapping[str, Operand]) -> list[str]:
    """The operands that the results have the shape of: those that they are called after, else the likeliest one."""
    bases = {_base(s.lead) for s in shapes if s is not None and s.lead is not None}
    named = [lead for lead in found if lead in bases]
    if named or not bases <= found.keys() | {""}:
        named = named or [o.lead for o in found.values() if o.use == "activation"][:1]
    return named or list(found)[:1]


def _base(lead: str) -> str:
    """The array whose leading axes these are."""
    return lead.split("[:-", 1)[0]


def _readable(node: Node, lead: str) -> str:
    """What to call an operand; "" for one that the code has no short name for."""
    if not lead.startswith("%"):
        return lead if " " not in lead else ""
    source = node.frame.source
    text = "" if source is None or node.cst is None else source.code(node.cst).strip()
    return text if len(text) <= LONGEST and re.fullmatch(r"[A-Za-z_][\w.]*(\(.*\)|\[.*\])?", text) else ""


def _use(node: Node, text: str) -> Use:
    owner = re.search(r"(\w+)\.weight'*$", text)
    if owner is not None and owner.group(1) != "self" and not re.search(NORMS, owner.group(1).lower()):
        return "activation"  # of a layer: a matrix
    last = text.rstrip("'").rsplit(".", 1)[-1].lower()
    said = next((use for pattern, use in USES if re.search(pattern, last)), None)
    return said or ("vector" if node.op in ("attr", "global") else "activation")
