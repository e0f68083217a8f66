"""FUS221 unfused-rope: rotary position embeddings written out with cos and sin.

What it does: finds `x*cos + rotate_half(x)*sin`, split halves or interleaved pairs that are rotated and put together
again, in any spelling, where the function itself (with the helpers that it calls) makes the angles: positions that
count up from an offset, times frequencies that are powers of a base or a table.

Why: the tables of cosines and sines, the rotated halves, the products and the joined result each go to memory and come
back: five kernels that move five times what they must. `mx.fast.rope` reads x and writes the result.

When not to: tables that come from elsewhere may hold anything. Positions that are gathered, of several axes (images,
video) or different in each row are not one offset. Pairs that are read interleaved and written as halves are another
function.

Fix safety: safe where cosines and sines are cast to x's dtype. Unsafe where the rotation is done in float32 and cast
back: MLX's GPU kernels rotate in float32 too, but on the CPU in x's dtype; where a float32 table makes the result
float32, which then has x's dtype; where the code computes angles in half precision, which is wrong at large positions
and which the fused kernel repairs; where the tables hold a factor; and where an offset or a number of positions can't
be proven. Angles differ in their last bits: at positions in the thousands that shows in the result as 1e-4 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.canonical import Canonical, number_text
from fuselint.graph.model import Frame, Graph, Node, operands, region
from fuselint.graph.rotations import Rotation, read, with_rest
from fuselint.graph.symbols import Expr
from fuselint.graph.values import Value
from fuselint.rulebook import Example, FusedKernel, Hole, Match, Synthesised

CODE, NAME = "FUS221", "unfused-rope"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

ROOTS = frozenset("concatenate add subtract reshape flatten".split())

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
    if graph.context.cold or not any(n.op == "cos" for n in graph.nodes):
        return
    taken: set[Node] = set()
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
    return with_rest(graph.canonical, value) or read(graph.canonical, value)


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
    if policy is None:
        return None
    x = policy.x
    rank = _least_rank(graph, x)
    problem = ""
    ranks = {r for r in (facts.rank(x), facts.rank(root)) if r is not None}
    if len(ranks) > 1:
        return None  # the tables have more axes than x
    if (rank == 2 and facts.rank(x) == 2) or facts.dtype(x).integral or angles.axis not in (-2, -3):
        return None
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
            Obligation("pairs are written as they are read", "proven", PAIRINGS[rotation.pairing]),
            Obligation(
                "the last axis is cut in the middle",
                "proven" if rotation.even else "unknown",
                "both parts meet the same cosines" if rotation.even else "nothing says that the cut is its half",
            ),
            _positions(graph, x, rotation),
            _offset(graph, complete.get("offset"), angles.offset),
            _one_each(graph, x, rotation, table),
            *_frequencies(graph, table),
            _precision(graph, root, inside, x),
            policy.obligation,
        ],
        region=frozenset(inside),
        fused=(FusedKernel("fast.rope", (x, *((table,) if table is not None else ())), root),),
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
    middle = ("T", "H") if rotation.angles.axis == -3 else ("H", "T")
    lead = ("B", "H", "T")[-(c.facts.rank(x) or 4) + 1 :] if middle[0] == "H" else ("B", "T", "H")
    length, named = c.size_of(x, rotation.angles.axis), rotation.angles.frequencies.length
    if named is not None and named.number is None:
        scalars.setdefault(named, "2*F")
    if rotation.angles.length is not None and rotation.angles.length.number is None:
        scalars.setdefault(rotation.angles.length, "T")
    if length.number is None:
        scalars[length] = "T"
    else:
        lead = tuple(str(int(length.number)) if a == "T" else a for a in lead)
    return {"x": (*lead, last)}, scalars


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
    if frequencies.count is not None and (count := _size(graph, frequencies.count)) is not None:
        given = count * 2
    elif made is not None and made.dims:
        given = made.dims[-1] * 2
    if given is not None and rotated is not None and shape is not None:
        another = given in [d for d in shape.dims[:-1] if d.value() is None]
        if another or (given.names == rotated.names and not all(_at(given, n) == _at(rotated, n) for n in (8, 24))):
            return Obligation(claim, "contradicted", f"there are {given} // 2 of them, for {rotated} // 2 pairs")
    if given is None and table is not None and table.op not in ("attr", "param"):
        return Obligation(claim, "unknown", "nothing in this function says how many are made")
    return Obligation(claim, "proven", "they are multiplied with the pairs' axis")


def _size(graph: Graph, value: Value) -> Expr | None:
    nodes = graph.canonical.nodes(value)
    return graph.facts.size(nodes[0]) if nodes else None


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
        "    return mx.fast.rope(\n"
        "        x, dims, traditional=False, base=100.0, scale=1.0, offset=offset\n"
        "    )\n",
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
        why="nothing is known of the tables",
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
]
