"""FUS221 unfused-rope: rotary position embeddings written out with cos and sin.

What it does: finds `x*cos + rotate_half(x)*sin`, split halves or interleaved pairs that are rotated and put together
again, in any spelling, where the function itself (with the helpers that it calls) makes the angles: positions that
count up from an offset, times frequencies that are powers of a base or a table. Where the tables of cosines and sines
are arguments, results or attributes, they are followed to the functions of the file that make them, and all ways there
must give such angles.

Why: the tables of cosines and sines, the rotated halves, the products and the joined result each go to memory and come
back: five kernels that move five times what they must. `mx.fast.rope` reads x and writes the result.

When not to: tables that come from elsewhere may hold anything. Positions that are gathered, of several axes (images,
video) or different in each row are not one offset. Pairs that are read interleaved and written as halves are another
function; where queries and keys are both rotated so, their products don't see it.

Fix safety: safe where cosines and sines are cast to x's dtype. Unsafe where the rotation is done in float32 and cast
back: MLX's GPU kernels rotate in float32 too, but on the CPU in x's dtype; where a float32 table makes the result
float32, which then has x's dtype; where the code computes angles in half precision, which is wrong at large positions
and which the fused kernel repairs; where the tables hold a factor; and where an offset or a number of positions can't
be proven. Angles differ in their last bits: at positions in the thousands that shows in the result as 1e-4 in float32.
Tables that another function makes are advice: the call to write instead, in the names of the functions that hold its
parts; the offset then goes where the tables went. It stands in the helper that rotates, once, or where that rotates
before heads and positions change places and one function calls it, in that function, behind whose transpose it belongs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.canonical import Canonical, number_text
from fuselint.graph.model import Frame, Graph, Node, operands, region
from fuselint.graph.rotary_tables import ROOTS, Tabled, Way, tabled
from fuselint.graph.rotations import Rotation, read, with_rest
from fuselint.graph.symbols import Expr
from fuselint.graph.values import Value
from fuselint.graph.wholes import Whole
from fuselint.rulebook import Example, FusedKernel, Hole, Made, Match, Synthesised
from fuselint.source.layout import one_line

CODE, NAME = "FUS221", "unfused-rope"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

FLOAT32 = frozenset({"float32"})
HALF = frozenset({"float16", "bfloat16"})


def unfused(x: Any, offset: int, base: float) -> Any:
    import mlx.core as mx

    length, dims = x.shape[-2:]
    inverse = 1.0 / (base ** (mx.arange(0, dims, 2) / dims))
    angles = mx.arange(offset, offset + length)[:, None] * inverse
    cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)
    x1, x2 = mx.split(x, 2, axis=-1)
    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)


def fused(x: Any, offset: int, base: float) -> Any:
    import mlx.core as mx

    return mx.fast.rope(x, x.shape[-1], traditional=False, base=base, scale=1.0, offset=offset)


def nearly(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op == "cos")


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    taken: set[Node] = set()
    if any(n.op == "cos" for n in graph.nodes):
        yield from _made_here(graph, taken)
    for found in tabled(graph, taken):
        match = _advice(graph, found)
        if match is not None:
            yield match


def _made_here(graph: Graph, taken: set[Node]) -> Iterator[Match]:
    """The rotations whose angles the function makes."""
    for node in graph.nodes:
        if node in taken or node.op not in ROOTS or graph.facts.kind(node) == "scalar":
            continue
        if any(n in taken for n in node.inputs):  # the rest of x joins what others read too
            continue
        rotation = _read(graph, node)
        if rotation is None:
            continue
        chain = [node]
        while (above := _reader(graph, chain[-1])) is not None:
            further = _read(graph, above) if above.op in ROOTS or above.op == "astype" else None
            if further is None or (further.pairing, further.angles) != (rotation.pairing, rotation.angles):
                break
            rotation = further
            chain.append(above)
        taken.update(chain)
        if _is_helpers_own(chain[-1]):
            continue
        match = _match(graph, chain[-1], rotation)
        if match is not None:
            yield match


def _read(graph: Graph, node: Node) -> Rotation | None:
    value = graph.canonical.of(node)
    found = with_rest(graph.canonical, value) or read(graph.canonical, value)
    return None if found is None or found.angles.vague else found


def _is_helpers_own(root: Node) -> bool:
    """Whether a helper makes the angles as well: the finding stands there, not at each of its calls."""
    turns = [n for n in region(root, ()) if n.op in ("cos", "sin")]
    return root.frame.depth > 0 and all(_within(n.frame, root.frame) for n in turns)


def _within(frame: Frame | None, outer: Frame) -> bool:
    while frame is not None and frame is not outer:
        frame = frame.parent
    return frame is outer


def _reader(graph: Graph, node: Node) -> Node | None:
    """The one reader of a value."""
    users = graph.users.get(node, ())
    return users[0] if len(users) == 1 and node not in graph.escaping else None


@dataclass(frozen=True, slots=True)
class _Policy:
    """Which x the fused call takes, and what becomes of dtypes."""

    x: Node
    numerics: Numerics
    obligation: Obligation


def _match(graph: Graph, root: Node, rotation: Rotation) -> Match | None:
    c, facts, angles = graph.canonical, graph.facts, rotation.angles
    policy = _policy(graph, root, rotation)
    if policy is None or angles.offset is None or not _is_possible(graph, root, policy.x, rotation):
        return None
    if not all(b.scalar for b, _ in rotation.factor.factors):
        return None  # an array of factors may differ along the axes
    x = policy.x
    rank = _least_rank(graph, x)
    problem = ""
    last = c.size_of(x, -1)
    dims = c.as_hole(rotation.dims if rotation.dims is not None else last)
    holes: dict[str, Hole | None] = {"x": x, "dims": dims}
    scale = c.algebra.scale(angles.scale, -1.0) if rotation.inverse else angles.scale
    holes["scale"] = _number(c, scale)
    scaled = scale.number is not None and math.frexp(abs(scale.number))[0] != 0.5  # it may have been a quotient
    if any(e < 0 for _, e in scale.factors):
        problem = (
            "positions are divided, and mx.fast.rope multiplies them: by a rounded quotient, so angles lose digits"
        )
    holes["offset"] = _number(c, angles.offset, whole=True)
    frequencies = angles.frequencies
    table: Node | None = None
    if frequencies.base is not None:
        holes["base"] = _number(c, frequencies.base)
        if frequencies.power is not None:
            holes["power"] = c.as_hole(frequencies.power)
    elif frequencies.table is not None:
        table = _table(graph, root, frequencies.table)
        holes["freqs"] = table
    factor = rotation.factor
    if not factor.is_number(1.0):
        known = set(region(root, ()))
        held = [n for n in c.nodes(factor) if n in known and n.op != "const"]
        holes["factor"] = held[-1] if held else _number(c, factor)
        if rotation.dims is not None:
            problem = "only the rotated part is multiplied by the tables' factor"
    complete = {k: h for k, h in holes.items() if h is not None}
    if len(complete) < len(holes):
        missing = next(k for k, h in holes.items() if h is None)
        problem = f"no expression of the function holds the {WORDS[missing]}"
    if "x" not in complete or (table is None and frequencies.base is None):
        return None
    inside = region(root, [n for h in complete.values() for n in _held(h)])
    shapes, scalars = _shapes(c, x, rotation, rank)
    if table is not None:
        shapes["freqs"] = ("F",)
    return Match(
        code=CODE,
        root=root,
        holes=complete,
        message="hand-written rotary embedding",
        obligations=[
            _rank(graph, x, rank),
            _pairing(rotation),
            _cut(rotation),
            _positions(graph, x, rotation),
            _offset(graph, complete.get("offset"), angles.offset),
            _one_each(graph, x, rotation, table),
            *_frequencies(graph, table),
            *_numbers(rotation),
            _precision(graph, root, inside, x),
            policy.obligation,
        ],
        region=frozenset(inside),
        fused=(_fused_call(root, x, table, inverse=frequencies.inverse),),
        shapes=shapes,
        scalars=scalars,
        dtypes={"freqs": "float32"} if table is not None else {},
        numerics="less accurate" if scaled and policy.numerics == "reassociated" else policy.numerics,
        data={
            "pairing": rotation.pairing,
            "swapped": angles.axis == -3,
            "problem": problem,
            "made": frozenset(inside) - set(_depending(inside, {x})),
            "inverse": frequencies.inverse,
            "narrow": table is not None and facts.dtype(table) != FLOAT32,
        },
    )


def _fused_call(root: Node, x: Node, table: Node | None, *, inverse: bool) -> FusedKernel:
    """The fused call, which takes one over the frequencies."""
    if table is None or inverse:
        return FusedKernel("fast.rope", (x,) if table is None else (x, table), root)
    return FusedKernel("fast.rope", (x,), root, made=(Made("divide", table, (table,)),))


def _is_possible(graph: Graph, root: Node, x: Node, rotation: Rotation) -> bool:
    facts = graph.facts
    ranks = {r for r in (facts.rank(x), facts.rank(root)) if r is not None}
    if len(ranks) > 1:
        return False  # the tables have more axes than x
    return facts.rank(x) != 2 and not facts.dtype(x).integral and rotation.angles.axis in (-2, -3)


PAIRINGS = {
    "halves": "the first half of the last axis with the second",
    "pairs": "neighbours of the last axis, interleaved again",
}

WORDS = {
    "dims": "number of rotated dimensions",
    "scale": "scale of the positions",
    "offset": "first position",
    "base": "base of the frequencies",
    "power": "exponent of the base",
    "freqs": "frequencies",
    "factor": "factor of the tables",
    "x": "rotated array",
}


def _held(hole: Hole) -> Iterable[Node]:
    return hole.operands.values() if isinstance(hole, Synthesised) else (hole,)


def _number(c: Canonical, value: Value, *, whole: bool = False) -> Hole | None:
    """A scalar as written, or a literal: a float, where not a whole number is meant."""
    if value.number is None:
        nodes = [n for n in c.nodes(value) if c.facts.kind(n) != "array"]
        return min(nodes, key=lambda n: (n.frame.depth, n.id)) if nodes else c.as_hole(value)
    if whole:
        return Synthesised(str(int(value.number))) if value.number == int(value.number) else None
    text = number_text(value.number)
    return Synthesised(text if any(s in text for s in ".en") else text + ".0")


def _table(graph: Graph, root: Node, value: Value) -> Node | None:
    known = set(region(root, ()))
    nodes = [n for n in graph.canonical.nodes(value) if n in known and graph.facts.rank(n) in (None, 1)]
    return nodes[-1] if nodes else None


# -- x -----------------------------------------------------------------------------------------------------------------


def _policy(graph: Graph, root: Node, rotation: Rotation) -> _Policy | None:
    """x as written, without a cast to float32 that is undone at the end."""
    facts = graph.facts
    inside = region(root, ())
    known = set(inside)
    held = [n for n in graph.canonical.nodes(rotation.x) if n in known]
    if not held:
        return None
    used = [n for n in held if any(u in known and u not in held for u in graph.users.get(n, ()))]
    written = (used or held)[-1]
    narrow = written
    while narrow.op == "astype" and facts.dtype(written) == FLOAT32 and not facts.dtype(narrow.inputs[0]).integral:
        narrow = narrow.inputs[0]
    claim = "the result keeps its dtype, and the precision of the rotation"
    result, own = facts.dtype(root), facts.dtype(narrow)
    between = {
        facts.dtype(n)
        for n in _depending(inside, {narrow})
        if facts.kind(n) == "array" and n not in (narrow, root) and n.op != "astype"
    }
    if result == own and between <= {own}:
        return _Policy(narrow, "reassociated", Obligation(claim, "proven", f"{own}, all through"))
    if result == own:
        because = "it is float32 inside and cast back: MLX's GPU kernels do so too, its CPU code rotates in x's dtype"
        return _Policy(narrow, "less accurate", Obligation(claim, "unknown", because))
    if result == facts.dtype(written) and between <= {result, own}:
        return _Policy(written, "reassociated", Obligation(claim, "proven", f"x is cast to {result}, as it was"))
    because = f"the result is {result}, for the cosines are; the fused kernel's has x's dtype, {own}"
    return _Policy(narrow, "different dtype", Obligation(claim, "unknown", because))


def _depending(nodes: Iterable[Node], on: set[Node]) -> list[Node]:
    hot = set(on)
    out = []
    for n in nodes:
        if n.op not in ("shape", "dim", "dtype", "ndim", "size") and any(i in hot for i in operands(n)):
            hot.add(n)
            out.append(n)
    return out


def _least_rank(graph: Graph, x: Node) -> int | None:
    shape = graph.facts.shape(x)
    return None if shape is None else len(shape.dims)


def _rank(graph: Graph, x: Node, least: int | None) -> Obligation:
    claim = "x has rank 3 or more"
    if least is not None and least >= 3:
        return Obligation(claim, "proven", graph.facts.why(x))
    return Obligation(claim, "unknown", "nothing in this function says its rank")


def _shapes(
    c: Canonical, x: Node, rotation: Rotation, rank: int | None
) -> tuple[dict[str, tuple[str, ...]], dict[Value, str]]:
    """Example shapes: whole sizes stand where the code states them."""
    size = c.size_of(x, -1)
    last = "2*F" if size.number is None else str(int(size.number))
    scalars: dict[Value, str] = {}
    if rotation.dims is not None and size.number is None:
        last = "2*F + R" if rotation.dims.number is None else f"{int(rotation.dims.number)} + R"
    if rotation.dims is not None and rotation.dims.number is None:
        scalars[rotation.dims] = "2*F"
    if size.number is None:
        scalars[size] = last
    if rotation.width is not None and rotation.width.number is None:
        scalars[rotation.width] = last
    half = _half(c, x) if size.number is None and rotation.dims is None else None
    last = last if half is None else str(2 * half)
    middle = ("T", "H") if rotation.angles.axis == -3 else ("H", "T")
    lead = ("B", "H", "T")[-(c.facts.rank(x) or 4) + 1 :] if middle[0] == "H" else ("B", "T", "H")
    length, named = c.size_of(x, rotation.angles.axis), rotation.angles.frequencies.length
    if named is not None and named.number is None:
        scalars.setdefault(named, "2*F")
    power = rotation.angles.frequencies.power
    if power is not None and power.coefficient == 2.0:  # 2 * count / named: there are so many frequencies
        scalars |= {base: "F" for base, e in power.factors if e == 1 and base not in scalars}
    if rotation.angles.length is not None and rotation.angles.length.number is None:
        scalars.setdefault(rotation.angles.length, "T")
    if length.number is None:
        scalars[length] = "T"
    else:
        lead = tuple(str(int(length.number)) if a == "T" else a for a in lead)
    return {"x": (*lead, last)}, scalars


def _half(c: Canonical, x: Node) -> int | None:
    """As many entries as x is cut at, `x[..., :64]`: half of its last axis."""
    for node in c.graph.users.get(x, ()):
        shape = c.facts.shape(node) if node.op == "index" else None
        size = None if shape is None or not shape.dims else shape.dims[-1].value()
        if size is not None and size > 1:
            return size
    return None


# -- angles ------------------------------------------------------------------------------------------------------------


def _positions(graph: Graph, x: Node, rotation: Rotation) -> Obligation:
    claim = "positions count up by one, along the axis before the last" + (
        " but one" if rotation.angles.axis == -3 else ""
    )
    length = graph.canonical.size_of(x, rotation.angles.axis)
    if rotation.angles.length is length:
        return Obligation(claim, "proven", f"a range as long as x: {length}")
    return Obligation(claim, "unknown", f"the range has {rotation.angles.length} entries, x {length}")


def _offset(graph: Graph, hole: Hole | None, value: Value) -> Obligation:
    claim = "the first position is an int, or an int array of one entry"
    if value.number is not None:
        return Obligation(claim, "proven", f"it is {value.number:g}")
    nodes = list(_held(hole)) if hole is not None else []
    if nodes and all(_is_int(graph, n) for n in nodes):
        return Obligation(claim, "proven", graph.facts.why(nodes[0]))
    return Obligation(claim, "unknown", "nothing in this function says so")


def _is_int(graph: Graph, node: Node, depth: int = 0) -> bool:
    if depth > 8:
        return False
    const = graph.facts.const(node)
    if isinstance(const, int) and not isinstance(const, bool):
        return True
    if node.op == "dim":
        return True
    if node.op == "param":
        default = node.attrs.get("default")
        stated = graph.facts.const(default) if isinstance(default, Node) else None
        return node.attrs.get("annotation") == "int" or (isinstance(stated, int) and not isinstance(stated, bool))
    if node.op in ("add", "subtract", "multiply", "floor_divide", "phi"):
        return all(_is_int(graph, n, depth + 1) for n in node.inputs)
    return False


def _one_each(graph: Graph, x: Node, rotation: Rotation, table: Node | None) -> Obligation:
    """Whether the frequencies are as many as the pairs: one alone would be multiplied with all of them."""
    claim = "each pair has a frequency of its own"
    facts, frequencies = graph.facts, rotation.angles.frequencies
    shape, made = facts.shape(x), None if table is None else facts.shape(table)
    last = None if shape is None else shape.axis(-1)
    rotated = last if rotation.dims is None else _size(graph, rotation.dims)
    given = None if frequencies.length is None else _size(graph, frequencies.length)
    if frequencies.count is not None:
        count = _whole_size(graph, frequencies.count)
        if count is None:
            return Obligation(claim, "unknown", "nothing in this function says how many are made")
        given = count * 2
    elif made is not None and made.dims:
        given = made.dims[-1] * 2
    if given is not None and given.value() == 2 and rotated != given:
        return Obligation(claim, "contradicted", "there is one of them, for all pairs")
    if given is not None and rotated is not None and shape is not None:
        others = {name for d in shape.dims[:-1] for name in d.names}
        others |= {name for name in given.names - rotated.names if name.startswith(f"{shape.lead}.shape[")}
        another = given != rotated and not others.isdisjoint(given.names)  # it may be one, and be broadcast
        if another or (given.names == rotated.names and not all(_at(given, n) == _at(rotated, n) for n in (8, 24))):
            return Obligation(claim, "contradicted", f"there are ({given}) // 2 of them, for {rotated} // 2 pairs")
        divided = frequencies.power is not None and frequencies.power.number is None
        if divided and given.names.isdisjoint(rotated.names):
            return Obligation(claim, "unknown", f"there are {given} // 2 of them, whose exponents {rotated} divides")
    if given is None and table is not None and table.op not in ("attr", "param"):
        return Obligation(claim, "unknown", "nothing in this function says how many are made")
    return Obligation(claim, "proven", "they are multiplied with the pairs' axis")


def _size(graph: Graph, value: Value) -> Expr | None:
    nodes = graph.canonical.nodes(value)
    return graph.facts.size(nodes[0]) if nodes else None


def _whole_size(graph: Graph, value: Value) -> Expr | None:
    """The same of a sum with whole numbers, which may be written as floats: `D // 2 - 1.0`."""
    size = _size(graph, value)
    if size is None and value.number is not None and value.number % 1 == 0:
        return Expr.of(int(value.number))
    if size is not None or value.op != "sum" or any(k % 1 for k in (value.constant, *(k for _, k in value.terms))):
        return size
    out = Expr.of(int(value.constant))
    for term, k in value.terms:
        part = _size(graph, term)
        if part is None:
            return None
        out = out + part * int(k)
    return out


def _at(size: Expr, number: int) -> int | None:
    """A size where all names stand for one number."""
    return size.substitute(dict.fromkeys(size.names, number)).value()


def _frequencies(graph: Graph, table: Node | None) -> Iterator[Obligation]:
    if table is None:
        return
    claim = "the frequencies are not trained: MLX has no gradient for them"
    private = table.op != "attr" or str(table.attrs.get("name")).startswith("_") or graph.context.class_name is None
    if private:
        because = "they are made in the function" if table.op != "attr" else "a module's parameters have no underscore"
        yield Obligation(claim, "proven", because)
    else:
        yield Obligation(claim, "unknown", f"{table.attrs.get('path')} is an array that the module holds")


def _numbers(rotation: Rotation) -> Iterator[Obligation]:
    angles = rotation.angles
    used = (rotation.factor, angles.scale, angles.frequencies.base, angles.frequencies.power)
    if not all(n is None or all(b.scalar for b, _ in n.factors) for n in used):
        claim = "base, scale and factor are numbers"
        yield Obligation(claim, "unknown", "nothing in this function says so")


def _precision(graph: Graph, root: Node, inside: list[Node], x: Node) -> Obligation:
    """Whether what makes the angles is float32 (or whole numbers)."""
    claim = "the angles are float32"
    facts = graph.facts
    turns = [n for n in inside if n.op in ("cos", "sin") and facts.kind(n) == "array"]
    narrow = HALF | {d for d in facts.dtype(x) if d != "float32"}
    for node in sorted({k for t in turns for k in region(t.inputs[0], ())}, key=lambda n: n.id):
        if facts.kind(node) == "array" and facts.dtype(node) & narrow:
            dtype = " or ".join(sorted(facts.dtype(node)))
            because = f"`{node.op}` is {dtype}: what half precision loses at large positions, the fused kernel keeps"
            return Obligation(claim, "unknown", because)
    if any(facts.dtype(t.inputs[0]) != FLOAT32 for t in turns):
        return Obligation(claim, "unknown", "nothing in this function says their dtype")
    return Obligation(claim, "proven", "positions and frequencies are")


# -- tables from elsewhere ---------------------------------------------------------------------------------------------


def _advice(graph: Graph, found: Tabled) -> Match | None:
    """What to write instead: who owns the tables changes, so it is no edit of this function alone."""
    way = found.ways[0]
    whole, rotation = way.whole, way.rotation
    there = whole.graph
    policy = _policy(there, whole.root, rotation)
    if policy is None or not _is_possible(there, whole.root, policy.x, rotation):
        return None
    owner, x = whole.original[policy.x]
    if owner is not graph:
        return None
    inside = region(whole.root, ())
    last = rotation.angles.frequencies.table
    given = [_before_casts(whole, t) for t in found.tables]
    tables = [t for t, _ in given]
    dtypes = [dtype or _made_as(there, inside) for _, dtype in given]
    made = " and ".join(m for m in found.makers if m != graph.context.qualname)
    return Match(
        code=CODE,
        root=found.root,
        holes={
            "x": x,
            **{f"x{i}": other for i, (_, other) in enumerate(found.others)},
            **{f"table{i}": t for i, t in enumerate(tables)},
        },
        message="hand-written rotary embedding" + (f" by tables of {made}" if made else ""),
        obligations=[
            _rank(there, policy.x, _least_rank(there, policy.x)),
            _pairing(rotation),
            _cut(rotation),
            _counting(way, found.open),
            *_division(rotation),
            *([_left_open()] if found.open else []),
            *_frequencies(there, _table(there, whole.root, last) if last is not None else None),
            *_numbers(rotation),
            _precision(there, whole.root, inside, policy.x),
            *_rounding(there, whole.root),
            policy.obligation,
        ],
        region=frozenset(
            n for root, rotated in ((found.root, x), *found.others) for n in region(root, (rotated, *tables))
        ),
        fused=tuple(FusedKernel("fast.rope", (r,), root) for root, r in ((found.root, x), *found.others)),
        shapes=_operand_shapes(
            found, _shapes(there.canonical, policy.x, rotation, _least_rank(there, policy.x))[0]["x"]
        ),
        dtypes={f"table{i}": dtype for i, dtype in enumerate(dtypes) if dtype},
        numerics=policy.numerics,
        related=[(n, "rotated by the same tables") for n, _ in found.others if n.frame.depth == 0],
        data={"problem": _instead(graph, found, policy.x)},
        is_shared=True,
    )


def _pairing(rotation: Rotation) -> Obligation:
    claim = "pairs are written as they are read"
    if rotation.written is None:
        return Obligation(claim, "proven", PAIRINGS[rotation.pairing])
    because = "neighbours are written as halves: products of queries and keys don't see the order, a cache of keys does"
    return Obligation(claim, "unknown", because)


def _cut(rotation: Rotation) -> Obligation:
    claim = "the last axis is cut in the middle"
    if rotation.even:
        return Obligation(claim, "proven", "both parts meet the same cosines")
    return Obligation(claim, "unknown", "nothing says that the cut is its half")


def _counting(way: Way, is_open: bool) -> Obligation:
    angles = way.rotation.angles
    claim = "positions count up by one" + (
        " where callers are followed" if is_open and angles.offset is not None else ""
    )
    names = _Names(way)
    if angles.offset is None:
        return Obligation(
            claim, "unknown", f"they are {names.of(angles.positions)}, which no caller in this file makes"
        )
    return Obligation(claim, "proven", f"they are {names.of(angles.positions) or 'a range'}")


def _division(rotation: Rotation) -> Iterator[Obligation]:
    if any(e < 0 for _, e in rotation.angles.scale.factors):
        claim = "positions are multiplied, not divided: a quotient is rounded once more"
        yield Obligation(claim, "unknown", "angles lose digits by it")


def _operand_shapes(found: Tabled, x: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Example shapes: the heads of what else is rotated, the keys, may be fewer."""
    row = "2*F" if found.whole_rows else "F"
    if x[-1].isdecimal():
        row = x[-1] if found.whole_rows else str(int(x[-1]) // 2)
    table = ("T", "1", row) if found.ways[0].rotation.angles.axis == -3 else ("T", row)
    other = tuple("G" if axis == "H" else axis for axis in x)
    return {
        "x": x,
        **{f"x{i}": other for i in range(len(found.others))},
        **{f"table{i}": table for i in range(len(found.tables))},
    }


def _before_casts(whole: Whole, table: Node) -> tuple[Node, str]:
    """What a table is cast from at every call, and its dtype; the table itself, and "", where it isn't cast."""
    copy = next((n for n, (_, own) in whole.original.items() if own is table), None)
    if table.op != "astype" or copy is None:
        return table, ""
    while table.op == "astype" and copy.op == "astype":
        table, copy = table.inputs[0], copy.inputs[0]
    return table, whole.graph.facts.dtype(copy).name or ""


def _made_as(graph: Graph, inside: list[Node]) -> str:
    """The dtype in which the tables meet what they rotate, or ""."""
    turned = set(_depending(inside, {n for n in inside if n.op in ("cos", "sin")}))
    turned |= {n for n in inside if n.op in ("cos", "sin")}
    for node in inside:
        tables = [n for n in node.inputs if n in turned] if node.op == "multiply" else []
        if len(tables) == 1 and len(node.inputs) == 2:
            return graph.facts.dtype(tables[0]).name or ""
    return ""


def _left_open() -> Obligation:
    claim = "tables and positions that callers give which are not followed are such, too"
    return Obligation(claim, "unknown", "they are arguments, or a default stands in for them")


def _rounding(graph: Graph, root: Node) -> Iterator[Obligation]:
    """Whether the tables lose digits that the rotation has."""
    inside = region(root, ())
    turns = {n for n in inside if n.op in ("cos", "sin")}
    for node in _depending(inside, turns):
        rounded = node.attrs.get("dtype") if node.op == "astype" else None
        if rounded in HALF and rounded not in graph.facts.dtype(root):
            because = f"they are rounded to {rounded}: the fused kernel's are not"
            yield Obligation("cosines and sines are as precise as the rotation", "unknown", because)
            return


def _instead(graph: Graph, found: Tabled, x: Node) -> str:
    """The call that computes the same, in the names of the functions that hold its parts."""
    way = found.ways[0]
    names = _Names(way, graph)
    call = _call(names, x)
    text = f"`{call}` computes it without tables" if call else "one call of mx.fast.rope computes it without tables"
    angles = way.rotation.angles
    if angles.offset is None:
        text += f", if {names.of(angles.positions)} count up by one from offset"
    if names.foreign and call:
        text += "; " + ", ".join(names.elsewhere())
    elsewhere = {_angle_arguments(_Names(w)) for w in found.ways[1:]} - {_angle_arguments(_Names(way)), None}
    if elsewhere:
        text += "; elsewhere " + " or ".join(sorted(str(e) for e in elsewhere))
    if found.open:
        text += "; callers that were not followed may count otherwise"
    if way.rotation.written is not None:
        text += "; it leaves pairs in place, where this code writes halves: rotate queries and keys alike"
    return text


class _Names:
    """Values of a rotation that several functions make, as the code calls them.

    foreign: names of other functions than the rotating one, and which.
    """

    def __init__(self, way: Way, home: Graph | None = None) -> None:
        self.way, self.home = way, home
        self.c = way.whole.graph.canonical
        self.foreign: dict[str, str] = {}

    def elsewhere(self) -> Iterator[str]:
        """The foreign names, by function."""
        for where in dict.fromkeys(self.foreign.values()):
            yield " and ".join(f"`{name}`" for name, w in self.foreign.items() if w == where) + f" as in {where}"

    def of(self, value: Value) -> str | None:
        return self.hole(_number(self.c, value) if value.scalar else self.array(value))

    def array(self, value: Value) -> Node | None:
        return next(iter(self.c.nodes(value)), None)

    def hole(self, hole: Hole | None) -> str | None:
        if hole is None:
            return None
        if isinstance(hole, Node):
            return self.node(hole)
        parts = {name: self.node(n) for name, n in hole.operands.items()}
        return None if None in parts.values() else hole.template.format(**parts)

    def node(self, copy: Node) -> str | None:
        graph, node = self.way.whole.original[copy]
        name, where = _name(graph, node), node.frame.qualname
        if name is not None and node.op != "const" and (self.home is None or where != self.home.context.qualname):
            self.foreign.setdefault(name, where)
        return name


def _name(graph: Graph, node: Node) -> str | None:
    """A value as the code has it."""
    if node.op == "const":
        return repr(node.attrs["value"])
    if node.op in ("param", "global"):
        return str(node.attrs["name"])
    if node.op == "attr" and node.attrs.get("path"):
        return str(node.attrs["path"])
    bound = [name for name, held in graph.bindings.items() if any(b.node is node for b in held)]
    if bound:
        return bound[0]
    if node.cst is None or node.frame.source is None:
        return None
    return one_line(node.frame.source.code(node.cst))


def _call(names: _Names, x: Node) -> str | None:
    rotation = names.way.rotation
    rotated, arguments = names.node(x), _angle_arguments(names)
    dims = None if rotation.dims is None else names.of(rotation.dims)
    factor = "1.0" if rotation.factor.is_number(1.0) else names.of(rotation.factor)
    if rotated is None or arguments is None or factor is None:
        return None
    if rotation.dims is not None and (dims is None or factor != "1.0"):
        return None  # only a part of x is multiplied by the factor
    swapped = ".swapaxes(-3, -2)" if rotation.angles.axis == -3 else ""
    scaled = rotated + swapped + (f" * {_bracketed(factor)}" if factor != "1.0" else "")
    traditional = rotation.pairing == "pairs"
    return f"mx.fast.rope({scaled}, {dims or f'{rotated}.shape[-1]'}, traditional={traditional}, {arguments}){swapped}"


def _angle_arguments(names: _Names) -> str | None:
    """base, scale, offset and freqs, where the code has names for them."""
    angles, c = names.way.rotation.angles, names.c
    scale = names.of(c.algebra.scale(angles.scale, -1.0) if names.way.rotation.inverse else angles.scale)
    offset = "offset" if angles.offset is None else names.hole(_number(c, angles.offset, whole=True)) or "offset"
    base, table, power = "None", angles.frequencies.table, angles.frequencies.power
    said = [f"scale={scale}", f"offset={offset}"]
    if table is not None:
        named = names.of(table)
        said += [f"freqs={named if angles.frequencies.inverse else f'1.0 / {_bracketed(named or str())}'}"]
    elif angles.frequencies.base is not None:
        named = names.of(angles.frequencies.base)
        raised = "1.0" if power is None else names.of(power)
        base = f"{_bracketed(named or '')} ** {_bracketed(raised or '')}" if power is not None else str(named)
        named = raised and named
    return None if scale is None or named is None else ", ".join([f"base={base}", *said])


def _bracketed(text: str) -> str:
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


ROTATE_HALF = (
    HEAD + "def rotate_half(x):\n"
    "    x1, x2 = mx.split(x, 2, axis=-1)\n"
    "    return mx.concatenate([-x2, x1], axis=-1)\n\n\n"
)
ANGLES = "    angles = mx.arange(L)[:, None] * (10000.0 ** (-mx.arange(0, D, 2) / D))\n"
TABLES = ANGLES + "    cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)\n"
SPLIT = "    x1, x2 = mx.split(x, 2, axis=-1)\n"
FOUR = "    B, H, L, D = x.shape\n"


EXAMPLES = [
    Example(
        ROTATE_HALF + "def rope(x, offset: int = 0, base: float = 10000.0):\n"
        "    B, H, L, D = x.shape\n"
        "    inverse = 1.0 / (base ** (mx.arange(0, D, 2, dtype=mx.float32) / D))\n"
        "    angles = mx.arange(offset, offset + L)[:, None] * inverse\n"
        "    angles = mx.concatenate([angles, angles], axis=-1)\n"
        "    cos = mx.cos(angles).astype(x.dtype)\n"
        "    sin = mx.sin(angles).astype(x.dtype)\n"
        "    return x * cos + rotate_half(x) * sin\n",
        fixed=ROTATE_HALF + "def rope(x, offset: int = 0, base: float = 10000.0):\n"
        "    B, H, L, D = x.shape\n"
        "    return mx.fast.rope(x, D, traditional=False, base=base, scale=1.0, offset=offset)\n",
    ),
    Example(
        HEAD + "def rope(x):\n"
        "    B, L, H, D = x.shape\n"
        "    angles = mx.arange(L)[:, None] / 500.0 ** (mx.arange(0, D, 2) / D)\n"
        "    cos, sin = mx.cos(angles)[:, None, :], mx.sin(angles)[:, None, :]\n"
        "    pairs = x.astype(mx.float32).reshape(B, L, H, D // 2, 2)\n"
        "    a, b = pairs[..., 0], pairs[..., 1]\n"
        "    out = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)\n"
        "    return out.reshape(B, L, H, D).astype(x.dtype)\n",
        fixed=HEAD + "def rope(x):\n"
        "    B, L, H, D = x.shape\n"
        "    return mx.fast.rope(\n"
        "        x.swapaxes(-3, -2), D, traditional=True, base=500.0, scale=1.0, offset=0\n"
        "    ).swapaxes(-3, -2)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def rope(x: mx.array, dims: int, offset: int):\n"
        "    B, H, L, D = x.shape\n"
        "    rotated = x[..., :dims]\n"
        "    angles = mx.arange(offset, offset + L)[:, None] * (100.0 ** (-mx.arange(0, dims, 2) / dims))\n"
        "    cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)\n"
        "    a, b = mx.split(rotated, 2, axis=-1)\n"
        "    return mx.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., dims:]], axis=-1)\n",
        fixed=HEAD + "def rope(x: mx.array, dims: int, offset: int):\n"
        "    return mx.fast.rope(x, dims, traditional=False, base=100.0, scale=1.0, offset=offset)\n",
    ),
    Example(
        HEAD + "class Rope(nn.Module):\n"
        "    def __init__(self, dims, factor):\n"
        "        super().__init__()\n"
        "        inverse = 10000.0 ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)\n"
        "        self._inverse = mx.where(inverse < 0.1, inverse / factor, inverse)\n\n"
        "    def __call__(self, x):\n"
        "        B, H, L, D = x.shape\n"
        "        angles = mx.outer(mx.arange(L), self._inverse)\n"
        "        cos, sin = mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)\n"
        "        a, b = x[..., ::2], x[..., 1::2]\n"
        "        return mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).flatten(-2)\n",
        fixed=HEAD + "class Rope(nn.Module):\n"
        "    def __init__(self, dims, factor):\n"
        "        super().__init__()\n"
        "        inverse = 10000.0 ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)\n"
        "        self._inverse = mx.where(inverse < 0.1, inverse / factor, inverse)\n\n"
        "    def __call__(self, x):\n"
        "        B, H, L, D = x.shape\n"
        "        return mx.fast.rope(\n"
        "            x,\n"
        "            D,\n"
        "            traditional=True,\n"
        "            base=None,\n"
        "            scale=1.0,\n"
        "            offset=0,\n"
        "            freqs=1.0 / self._inverse,\n"
        "        )\n",
    ),
    Example(
        ROTATE_HALF + "class Angles(nn.Module):\n"
        "    def __init__(self, dims, base):\n"
        "        super().__init__()\n"
        "        self._inverse = 1.0 / (base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims))\n\n"
        "    def __call__(self, positions):\n"
        "        angles = positions[:, None] * self._inverse[None, :]\n"
        "        angles = mx.concatenate([angles, angles], axis=-1)\n"
        "        return mx.cos(angles), mx.sin(angles)\n\n\n"
        "def rotate(q, k, cos, sin):\n"
        "    cos, sin = cos.astype(q.dtype), sin.astype(q.dtype)\n"
        "    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin\n\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, dims):\n"
        "        super().__init__()\n"
        "        self.angles = Angles(dims, 10000.0)\n\n"
        "    def __call__(self, q, k, offset: int):\n"
        "        cos, sin = self.angles(mx.arange(offset, offset + q.shape[2]))\n"
        "        return rotate(q, k, cos, sin)\n",
        applicability="none",
    ),
    Example(
        HEAD
        + "def rotated_back(x):\n"
        + FOUR
        + TABLES
        + SPLIT
        + "    return mx.concatenate([x1 * cos + x2 * sin, x2 * cos - x1 * sin], axis=-1)\n",
        fixed=HEAD
        + "def rotated_back(x):\n"
        + FOUR
        + "    return mx.fast.rope(x, D, traditional=False, base=10000.0, scale=-1.0, offset=0)\n",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD
        + "def rope(x, cos, sin):\n"
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="nothing in the file says what the tables hold",
    ),
    Example(
        HEAD + "def rope(x):\n" + FOUR + TABLES + "    x1, x2 = x[..., ::2], x[..., 1::2]\n"
        "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="pairs are read interleaved and written as halves",
    ),
    Example(
        HEAD
        + "def rope(x, positions):\n"
        + FOUR
        + TABLES.replace("mx.arange(L)", "positions")
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="positions may be any",
    ),
    Example(
        HEAD + "def tables(length, dims):\n"
        "    angles = mx.arange(length)[:, None] * (10000.0 ** (-mx.arange(0, dims, 2) / dims))\n"
        "    return mx.cos(angles), mx.sin(angles)\n\n\n"
        "def rope(x, cos, sin):\n"
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n\n\n"
        "def rotate(x, positions):\n"
        "    cos, sin = tables(4096, x.shape[-1])\n"
        "    return rope(x, cos[positions], sin[positions])\n",
        why="rows that any positions pick from the tables",
    ),
    Example(
        HEAD
        + "def rope(x):\n"
        + FOUR
        + TABLES
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x2 * cos - x1 * sin], axis=-1)\n",
        why="a sign that no rotation has",
    ),
    Example(
        HEAD + "def rope(x):\n" + FOUR + TABLES + "    x2, x1 = mx.split(x, 2, axis=-1)\n"
        "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="halves that are exchanged",
    ),
    Example(
        ROTATE_HALF + "def rope(x, rows, columns):\n" + FOUR + "    inverse = 10000.0 ** (-mx.arange(0, D, 4) / D)\n"
        "    position = mx.arange(L)[:, None]\n"
        "    angles = mx.concatenate([position // 8 * inverse, position % 8 * inverse], axis=-1)\n"
        "    angles = mx.concatenate([angles, angles], axis=-1)\n"
        "    return x * mx.cos(angles) + rotate_half(x) * mx.sin(angles)\n",
        why="positions of two axes",
    ),
    Example(
        HEAD
        + "def rope(x):\n"
        + FOUR
        + TABLES.replace("(-mx.arange(0, D, 2) / D)", "(mx.arange(0, D, 2) / D)")
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="wavelengths taken for frequencies: angles too large for float32",
    ),
    Example(
        HEAD + "def rope(x):\n" + FOUR + ANGLES + "    angles = mx.concatenate([angles, angles], axis=-1)\n"
        "    cut = D // 4\n"
        "    turned = mx.concatenate([-x[..., cut:], x[..., :cut]], axis=-1)\n"
        "    return x * mx.cos(angles) + turned * mx.sin(angles)\n",
        why="not cut in the middle",
    ),
    Example(
        HEAD
        + "def rope(x):\n"
        + FOUR
        + TABLES.replace("mx.arange(0, D, 2)", "mx.arange(0, H, 2)")
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="as many frequencies as there are heads: one alone is multiplied with all pairs",
    ),
    Example(
        HEAD + "def rope(x):\n"
        "    exponents = mx.arange(0, x.shape[0], 2) / x.shape[-1]\n"
        "    angles = mx.arange(x.shape[-2])[:, None] * 10000.0 ** -exponents\n"
        "    cos, sin = mx.cos(angles), mx.sin(angles)\n"
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="as many frequencies as there are batches",
    ),
    Example(
        HEAD + "def rope(x, positions=None):\n" + FOUR + "    if positions is None:\n"
        "        positions = mx.arange(L)[None]\n"
        "    angles = positions[:, None, :, None] * 10000.0 ** (-mx.arange(0, D, 2) / D)\n"
        "    cos, sin = mx.cos(angles), mx.sin(angles)\n"
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n\n\n"
        "def both(x, padding):\n"
        "    positions = mx.arange(x.shape[2])\n"
        "    return rope(x, mx.stack([positions, mx.maximum(positions - padding, 0)]))\n",
        why="positions that are counted where nobody gives others, and a call that gives one row for each of a batch",
    ),
    Example(
        HEAD + "def rope(x):\n" + FOUR + "    count = D // 2 - 1.0\n"
        "    angles = mx.outer(mx.arange(L), 1.0 / 10000.0 ** (mx.arange(0, count) / count))\n"
        "    cos, sin = mx.cos(angles), mx.sin(angles)\n"
        + SPLIT
        + "    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)\n",
        why="one frequency fewer than pairs: of two pairs, one for both",
    ),
]
