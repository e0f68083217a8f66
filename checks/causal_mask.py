"""FUS102 materialised-causal-mask: a mask that is built as an array of numbers and only given to attention.

What it does: finds a square additive or boolean mask that hides every later position, made of a comparison or of a
triangle of ones, and follows it, through the calls of this file, to every reader. If all of them are attention,
`mask="causal"` says the same. Finds additive masks of two long axes that are made of a condition (a window, padding and
a triangle together) and hold nothing but 0 and a number that hides: attention takes the condition itself.

Why: the mask is an array of tokens x tokens that several kernels write and every layer reads. The fused attention
kernel knows where the diagonal is, and skips the hidden half of the scores. Where that is not enough, a boolean mask
has a half or a quarter of an additive one's bytes, and never has the wrong dtype.

When not to: where something else stands in the mask (a bias, a slope), where it is read by anything but attention, and
where it is small at every call, such as a position for each codebook. For "causal", where its diagonal is not at the
lower right: a square mask of the new tokens can only be added to square scores, so there it is.

Fix safety: safe. The hidden weights are zero either way: same values, same gradients. It asks for MLX 0.24, and where
the cache makes keys longer than queries for 0.30.5. A boolean mask is unsafe: a query that sees no key at all gets NaN
or the mean of all values from numbers, and from a boolean mask what the backend gives. It is advice where the mask
leaves the file, for a reader elsewhere that adds it would have to change too. `requires: FUS211` where the reader is
still hand-written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.checks.attention import recognise
from fuselint.finding import Obligation, RegionInput
from fuselint.graph.around import is_made_with
from fuselint.graph.callers import given_numbers
from fuselint.graph.flow import Reader, callers, readers
from fuselint.graph.model import Graph, Node, Slice, operands, region
from fuselint.graph.ops import TABLE, may_be_a_number
from fuselint.rulebook import Example, FusedKernel, Match, Probe

CODE, NAME = "FUS102", "materialised-causal-mask"
NUMBERS = (-1e9,)

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

BUILDER = "nn.MultiHeadAttention.create_additive_causal_mask"

FUSED = "fast.scaled_dot_product_attention"

HIDES = -1e9
"""At most this, added to a score, leaves no weight. float16 has -inf for it."""

FLOAT32_LOWEST = -3.4028235e38
FINFO = frozenset({"mlx.core.finfo", "numpy.finfo"})


def unfused(q: Any, k: Any, v: Any, scale: float) -> Any:
    import mlx.core as mx
    import mlx.nn as nn

    mask = nn.MultiHeadAttention.create_additive_causal_mask(q.shape[-2]).astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def fused(q: Any, k: Any, v: Any, scale: float) -> Any:
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        if n.op == FUSED and any(is_made_with(i, MASKS, 4) for i in operands(n)):
            yield n


MASKS = (BUILDER, "triu", "tril", "less", "less_equal", "greater", "greater_equal")


def find(graph: Graph) -> Iterator[Match]:
    for node in graph.nodes:
        length = built(graph, node)
        match = None
        if length is not None:
            root = _cast(graph, node)
            match = _match(graph, root, length) if _stays_a_mask(graph, node, root) else None
        if match is None and (additive := _additive(graph, node)) is not None:
            match = _boolean(graph, node, additive)
        if match is not None and not _is_small(graph, node):
            yield match


FEW = 64
"""So many positions at most are no sequence: codebooks, the tokens of a block."""


def _is_small(graph: Graph, node: Node) -> bool:
    """Whether both long axes of a mask are few numbers wherever the package makes it."""
    facts = graph.usual
    shape, given = facts.shape(node), {facts.name_of(p): p for p in graph.params.values()}
    numbers: list[int | None] = []
    for side in () if shape is None else shape.dims[-2:]:
        known = facts.usual(side)[0]
        argument = given.get(side.bare or "")
        numbers += [known] if known is not None or argument is None else given_numbers(graph, argument)
    copies = () if node.frame.depth else _placed(graph, node)
    placed = [_is_small(other, n) for other, n in copies if n.frame.depth]
    return bool(numbers or placed) and all(placed) and all(n is not None and n <= FEW for n in numbers)


def _placed(graph: Graph, node: Node) -> Iterator[tuple[Graph, Node]]:
    """The same value in other functions of the file, which have this one in place of their calls."""
    for other in map(graph.program.graph, graph.module.functions) if graph.program is not None else ():
        for n in other.nodes if other is not None and other is not graph else ():
            if n.cst is node.cst and n.op == node.op and other is not None:
                yield other, n


KEEPS = ("greater_equal", "less_equal")
"""Comparisons that make a boolean mask: True keeps a position. As numbers, 1 and 0, they would be added."""


def _stays_a_mask(graph: Graph, node: Node, root: Node) -> bool:
    """Whether a mask is still what it was made for after its cast: booleans that select, numbers that are added."""
    dtype = graph.facts.dtype(root)
    return (
        dtype.name == "bool_"
        if graph.facts.dtype(node).name == "bool_"
        else dtype.name != "bool_" and not dtype.integral
    )


def built(graph: Graph, node: Node) -> Node | None:
    """The length of the square causal mask that this node is: 0 or False above the diagonal hides, at most -1e9."""
    if node.op == BUILDER:
        return _attr_node(node, "N")
    if node.op == "triu" and node.attrs.get("k") == 1:
        return _full_of(graph, node.inputs[0])
    if node.op == "multiply":
        return _scaled_comparison(graph, node)
    if node.op == "where" and len(node.inputs) == 3:
        return _selected(graph, node)
    length = _compared(graph, node, keeps=True) if node.op in KEEPS or node.op in TRIANGLES else None
    return length if node.op in KEEPS or length is None or graph.facts.dtype(node).name == "bool_" else None


def _attr_node(node: Node, name: str) -> Node | None:
    value = node.attrs.get(name)
    return value if isinstance(value, Node) else None


def _full_of(graph: Graph, node: Node) -> Node | None:
    """N of mx.full((N, N), fill) with a fill of -1e9 or below."""
    fill = graph.facts.const(node.inputs[0]) if node.inputs else node.attrs.get("vals")
    return _side(graph, node) if node.op == "full" and _hides(fill) else None


def _side(graph: Graph, node: Node) -> Node | None:
    """N of an array of (N, N)."""
    shape = node.attrs.get("shape")
    if not isinstance(shape, tuple) or len(shape) != 2:
        return None
    rows, columns = shape
    if not isinstance(rows, Node) or not isinstance(columns, Node):
        return None
    return rows if graph.canonical.of(rows) is graph.canonical.of(columns) else None


def _hides(fill: object) -> bool:
    return isinstance(fill, (int, float)) and not isinstance(fill, bool) and fill <= HIDES


def _scaled_comparison(graph: Graph, node: Node) -> Node | None:
    """N of (arange(N)[:, None] < arange(N)[None]) * -1e9."""
    for condition, fill in (node.inputs, node.inputs[::-1]):
        inner = condition.inputs[0] if condition.op == "astype" else condition
        number = graph.facts.const(fill) if inner.op in ("less", "greater") or inner.op in TRIANGLES else None
        if _hides(number) and number != float("-inf"):  # 0 * -inf is NaN
            return _compared(graph, inner, keeps=False)
    return None


def _selected(graph: Graph, node: Node) -> Node | None:
    """N of where(rows >= columns, 0, fill), or of the comparison the other way round with 0 and fill exchanged."""
    condition, kept, other = node.inputs
    values = [graph.facts.const(n) for n in (kept, other)]
    for lower, (low, high) in ((True, values), (False, values[::-1])):
        if low == 0 and not isinstance(low, bool) and _hides(high):
            return _compared(graph, condition, keeps=lower)
    return None


def _compared(graph: Graph, node: Node, keeps: bool) -> Node | None:
    """N of a comparison of a column of positions with a row of them, where that keeps (or hides) what lies below, or of
    a triangle of ones."""
    triangle = _triangle(graph, node)
    if triangle is not None:
        return triangle[0] if triangle[1] is keeps else None
    if len(node.inputs) != 2:
        return None
    left, right = (_positions(graph, n) for n in node.inputs)
    if left is None or right is None or left[0] is right[0]:
        return None
    if graph.canonical.of(left[1]) is not graph.canonical.of(right[1]):
        return None
    rows_first = left[0] == "column"
    wanted = {True: KEEPS, False: ("less", "greater")}[keeps]
    return left[1] if node.op == wanted[0 if rows_first else 1] else None


TRIANGLES = frozenset({"tril", "triu", "tri", "astype", "logical_not", "subtract", "equal", "not_equal"})


def _triangle(graph: Graph, node: Node) -> tuple[Node, bool] | None:
    """(N, True) of an N x N array of ones on and below the diagonal, and of zeros above it; (N, False) of the other way
    round. 1 - x, x == 0 and `logical_not(x)` turn one into the other."""
    if node.op in ("tril", "triu"):
        ones, side = node.inputs[0], _side(graph, node.inputs[0])
        fits = node.attrs.get("k") == (0 if node.op == "tril" else 1) and ones.op == "ones"
        return (side, node.op == "tril") if fits and side is not None else None
    if node.op == "tri":
        side = _attr_node(node, "n")
        fits = node.attrs.get("k") == 0 and node.attrs.get("m") in (None, side)
        return (side, True) if fits and side is not None else None
    if node.op not in TRIANGLES or not node.inputs:
        return None
    turns = node.op == "logical_not"
    found = _triangle(graph, node.inputs[-1] if node.op == "subtract" else node.inputs[0])
    if found is not None and len(node.inputs) == 2:
        number = graph.facts.const(node.inputs[0] if node.op == "subtract" else node.inputs[1])
        if isinstance(number, bool) or number not in ((1,) if node.op == "subtract" else (0, 1)):
            return None
        turns = node.op == "subtract" or (number == 0) is (node.op == "equal")
    return None if found is None else (found[0], found[1] is not turns)


def _positions(graph: Graph, node: Node) -> tuple[str, Node] | None:
    """("column" or "row", N) of arange(N)[:, None], arange(N)[None]."""
    index = node.attrs.get("index")
    if node.op != "index" or not node.inputs or node.inputs[0].op != "arange":
        return None
    start, stop, step = (node.inputs[0].attrs.get(k) for k in ("start", "stop", "step"))
    plain = [v if not isinstance(v, Node) else graph.facts.const(v) for v in (start, step)]
    if plain[0] not in (None, 0) or plain[1] not in (None, 1) or not isinstance(stop, Node):
        return None
    shape = tuple("new" if e is None else "all" if _everything(e) else "?" for e in index or ())
    if shape == ("all", "new"):
        return "column", stop
    if shape in (("new",), ("new", "all")):
        return "row", stop
    return None


def _everything(entry: object) -> bool:
    return entry is Ellipsis or (isinstance(entry, Slice) and entry.takes_all)


def _cast(graph: Graph, node: Node) -> Node:
    """The mask after the casts that only it goes through. A boolean that is cast is no mask any more: it adds one."""
    if graph.facts.dtype(node).name == "bool_":
        return node
    users = graph.users.get(node, ())
    while len(users) == 1 and users[0].op == "astype" and node not in graph.escaping:
        node = users[0]
        users = graph.users.get(node, ())
    return node


def _match(graph: Graph, root: Node, length: Node) -> Match | None:
    reached = [*readers(graph, root, _takes(graph.facts.dtype(root).name == "bool_"))]
    reasons = [r for r in reached if isinstance(r, str)]
    ends = [r for r in reached if isinstance(r, Reader)]
    if not ends or reasons or not _is_whole_axis(graph, length):
        return None
    by_hand = [r for r in ends if r.node.op != FUSED]
    inside = region(root, [length])
    lowest = "they are at most -1e9, or False"
    obligations = [
        Obligation("every reader of the mask is attention", "proven", _list(ends)),
        Obligation(
            "the diagonal is at the lower right",
            "proven",
            "the mask is square in the new tokens, and a square mask fits only scores with as many keys as queries",
        ),
        Obligation("hidden positions weigh nothing", "proven", lowest),
    ]
    return Match(
        code=CODE,
        root=root,
        holes={"length": length},
        message='a causal mask is built as an array; attention takes mask="causal"',
        obligations=obligations,
        region=frozenset(n for n in inside if n.op not in ("param", "const")),
        fused=(),
        numerics="bit-identical",
        probe=Probe(
            "result = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=result)",
            tuple(RegionInput(name, "array", ("B", "H", "length", "64")) for name in "qkv"),
        ),
        data={"requires": ("FUS211",) if by_hand else ()},
    )


def _takes(selects: bool) -> Callable[[Reader], bool]:
    """Whether a reader takes the value as the mask of attention, and for nothing else. selects: a boolean mask."""

    def is_attention(reader: Reader) -> bool:
        if reader.node.op == FUSED:
            q, k, v = reader.node.inputs[:3]
            return reader.value not in (q, k, v) and reader.node.attrs.get("sinks") is not reader.value
        for found in recognise(reader.graph):
            if found.mask is reader.value and found.keep == selects:  # a boolean that is added hides nothing
                own = set(region(found.root, [found.q, found.k, found.v, reader.value]))
                if reader.node in own:
                    return True
        return False

    return is_attention


def _is_whole_axis(graph: Graph, length: Node) -> bool:
    """The length of an axis of an array of this function: the number of new tokens."""
    return length.op == "dim" or (length.op == "item" and bool(length.inputs) and length.inputs[0].op == "shape")


def _list(ends: list[Reader]) -> str:
    places = sorted({r.graph.context.qualname for r in ends})
    return f"followed to {', '.join(places)}"


# -- additive masks that a condition says as well ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Additive:
    """A mask of 0 where a condition is `keeps`, and a number that hides where it is not."""

    condition: Node
    keeps: bool


def _additive(graph: Graph, node: Node) -> _Additive | None:
    """`hidden * -1e9`, `where(kept, 0, -inf)` and the like."""
    found = None
    if node.op == "multiply":
        for condition, fill in (node.inputs, node.inputs[::-1]):
            number = _number(graph, fill)
            if number is not None and number <= HIDES and number != float("-inf"):  # 0 * -inf is NaN
                inner = condition.inputs[0] if condition.op == "astype" else condition
                found = _Additive(inner, False)
    elif node.op == "where" and len(node.inputs) == 3:
        then, other = (_number(graph, n) for n in node.inputs[1:])
        if then == 0 and other is not None and other <= HIDES:
            found = _Additive(node.inputs[0], True)
        elif other == 0 and then is not None and then <= HIDES:
            found = _Additive(node.inputs[0], False)
    if found is None or graph.facts.dtype(found.condition).name != "bool_":
        return None
    return found if graph.facts.kind(found.condition) == "array" else None


def _number(graph: Graph, node: Node) -> float | None:
    """The number that fills an array or a literal; the lowest of a dtype counts as that of float32."""
    if node.op == "array" and node.inputs:
        node = node.inputs[0]
    if node.op in ("zeros", "zeros_like"):
        return 0.0
    if node.op == "attr" and node.attrs["name"] == "min" and node.inputs[0].attrs.get("target") in FINFO:
        return FLOAT32_LOWEST
    value = graph.facts.const(node) if may_be_a_number(node) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _boolean(graph: Graph, node: Node, additive: _Additive) -> Match | None:
    """The match of an additive mask whose readers, as far as they are seen, are all attention."""
    pairs = list(_pairs(graph, additive.condition))
    if graph.context.cold or node.frame.depth > 0 or not pairs:  # a helper's own is found where it is read by itself
        return None
    name, root, problem = graph.context.qualname, _cast(graph, node), ""
    leaves = f"it leaves {name}"
    ends = _reached(graph, root, casts=False)
    followed = leaves not in ends or (len(set(ends)) > 1 and _is_followed(graph))
    if not followed or not all(isinstance(e, Reader) for e in ends - {leaves}):
        root, problem = node, leaves if leaves in ends else "it is cast on its way to attention"
        ends = _reached(graph, root, casts=True)
        if not all(isinstance(e, Reader) or e.startswith("it leaves") for e in ends):
            return None
    found = [e for e in ends if isinstance(e, Reader)]
    if not found and not any(_is_of_positions(graph, n) for n in pairs):
        return None  # nothing says that attention reads it
    claim = "every reader of the mask is attention"
    readers_seen = Obligation(claim, "unknown", problem) if problem else Obligation(claim, "proven", _list(found))
    if not problem and leaves in ends:
        readers_seen = Obligation(claim, "unknown", f"in this file they are; others may call {name}")
    return Match(
        code=CODE,
        root=root,
        holes={"condition": additive.condition},
        message="a mask of 0 and a number that hides is built; attention takes the condition, of a byte an entry",
        obligations=[readers_seen, SEEN],
        region=frozenset(n for n in region(root, [additive.condition]) if n.op not in ("param", "const")),
        fused=() if additive.keeps else (FusedKernel("logical_not", (additive.condition,), additive.condition),),
        shapes={"condition": ("L", "S")},
        dtypes={"condition": "bool"},
        probe=OPENED,
        data={
            "requires": ("FUS211",) if any(r.node.op != FUSED for r in found) else (),
            "boolean": True,
            "keeps": additive.keeps,
            "problem": problem,
        },
    )


OPENED = Probe(
    "first = mx.zeros_like(result[:, :1])\n"
    "first = first == 0 if result.dtype == mx.bool_ else first\n"
    "whole = mx.concatenate([first, result], axis=1)\n"
    "result = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=whole)",
    (
        RegionInput("q", "array", ("B", "H", "L", "64"), "float32"),
        RegionInput("k", "array", ("B", "H", "S + 1", "64"), "float32"),
        RegionInput("v", "array", ("B", "H", "S + 1", "64"), "float32"),
    ),
)
"""Attention with a first key that every query sees: see SEEN."""


SEEN = Obligation(
    "every query sees a key",
    "unknown",
    "without one, the added numbers give a mean of the values or NaN, and what a boolean mask gives differs by backend",
)


def _ends(graph: Graph, value: Node, casts: bool = False) -> Iterator[Reader | str]:
    """Who reads a mask in the end, through new axes and, where that is asked for, through casts."""

    def passes(reader: Reader) -> bool:
        node = reader.node
        if node.op == "index":
            return all(e is None or _everything(e) for e in node.attrs.get("index") or ())
        return node.op == "expand_dims" or (casts and node.op == "astype" and reader.value is node.inputs[0])

    is_attention = _takes(selects=False)
    for end in readers(graph, value, lambda reader: passes(reader) or is_attention(reader)):
        if isinstance(end, Reader) and passes(end):
            yield from _ends(end.graph, end.node, casts)
        else:
            yield end


def _reached(graph: Graph, value: Node, casts: bool) -> set[Reader | str]:
    """Who reads a mask in the end, also where other functions of the file have the function inlined."""
    out: set[Reader | str] = set(_ends(graph, value, casts))
    for other, n in _placed(graph, value):
        out |= set(_ends(other, n, casts))
    for other, call in callers(graph):
        out |= set(_ends(other, call, casts))
    return out


def _is_followed(graph: Graph) -> bool:
    """Whether all uses of the function in this file are calls that are lowered in place."""
    name = graph.context.qualname
    named = any(name in names for names in graph.module.references.values())
    return not named and not any(True for _ in callers(graph))


def _pairs(graph: Graph, condition: Node) -> Iterator[Node]:
    """The operations of a condition that combine a column with a row."""
    stack, seen = [condition], set()
    while stack:
        n = stack.pop()
        op = TABLE.get(n.op)
        if n in seen or not (n.op in ("phi", "index", "expand_dims") or (op is not None and op.elementwise)):
            continue
        seen.add(n)
        stack.extend(n.inputs)
        shapes = [graph.facts.shape(k) for k in n.inputs]
        ends = [(*([1] * (2 - len(s.dims))), *s.dims)[-2:] if s is not None else (1, 1) for s in shapes]
        if any(a[1] == 1 != a[0] and b[0] == 1 != b[1] for a in ends for b in ends):
            yield n


def _is_of_positions(graph: Graph, pair: Node) -> bool:
    """Whether all arrays that are combined are made of ranges and numbers."""
    arrays = [n for n in region(pair, ()) if graph.facts.kind(n) == "array"]
    return all(n.op == "arange" or any(graph.facts.kind(k) == "array" for k in n.inputs) for n in arrays)


WINDOW = (
    "def attend(q, k, v, window: int, scale: float):\n"
    "    rows, columns = mx.arange(q.shape[2])[:, None], mx.arange(k.shape[2])[None]\n"
    "    hidden = (rows < columns) | (rows > columns + window)\n"
)
ATTEND = "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n"


EXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    mask = mx.tril(mx.ones((q.shape[2], q.shape[2]), dtype=mx.bool_))\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        fixed=HEAD + "def attend(q, k, v, scale: float):\n"
        '    mask = "causal"\n'
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        applicability="safe",
    ),
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    mask = nn.MultiHeadAttention.create_additive_causal_mask(q.shape[2])\n"
        "    mask = mask.astype(q.dtype)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        fixed=HEAD + "def attend(q, k, v, scale: float):\n"
        '    mask = "causal"\n'
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        applicability="safe",
    ),
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    at = mx.arange(q.shape[2])\n"
        "    mask = mx.where(at[:, None] >= at[None], 0.0, -1e9).astype(q.dtype)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        fixed=HEAD + "def attend(q, k, v, scale: float):\n"
        '    mask = "causal"\n'
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
    ),
    Example(
        HEAD + WINDOW + "    mask = (hidden * -1e9).astype(mx.bfloat16)\n" + ATTEND,
        fixed=HEAD + WINDOW + "    mask = mx.logical_not(hidden)\n" + ATTEND,
        applicability="unsafe",
        why="nothing says that the window leaves each query a key",
    ),
    Example(
        HEAD + WINDOW + "    mask = mx.where(hidden, -mx.inf, 0.0).astype(q.dtype)\n" + ATTEND,
        fixed=HEAD + WINDOW + "    mask = mx.logical_not(hidden)\n" + ATTEND,
        applicability="unsafe",
        why="a query that sees no key gets NaN before, and some number after",
    ),
    Example(
        HEAD + "def create_mask(n: int, offset: int, window: int):\n"
        "    rows, columns = mx.arange(offset, offset + n)[:, None], mx.arange(offset + n)[None]\n"
        "    return ((rows < columns) | (rows > columns + window)) * -1e9\n",
        applicability="none",
        why="attention reads it in another file",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, scale: float, padding):\n"
        "    mask = nn.MultiHeadAttention.create_additive_causal_mask(q.shape[2]) + padding\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        why="padding is part of the mask",
    ),
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    mask = nn.MultiHeadAttention.create_additive_causal_mask(q.shape[2])\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask), mask\n",
        why="the mask is returned",
    ),
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    mask = mx.triu(mx.full((q.shape[2], q.shape[2]), -100.0), k=1)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        why="-100 does not hide a position whose score is large",
    ),
    Example(
        HEAD + WINDOW + "    return hidden * -1e9 + mx.abs(rows - columns) * -0.1\n",
        why="a slope is added to the mask",
    ),
    Example(
        HEAD + "def filtered(logits, top: int):\n"
        "    rank = mx.argsort(mx.argsort(-logits, axis=-1), axis=-1)\n"
        "    return mx.where(rank < top, 0.0, -mx.inf)\n",
        why="it is made of values, and nothing says that attention reads it",
    ),
    Example(
        HEAD + "def attend(q, k, v, lengths, scale: float):\n"
        "    mask = mx.where(mx.arange(k.shape[2]) < lengths[:, None, None, None], 0.0, -1e9).astype(q.dtype)\n"
        + ATTEND,
        why="a row a sequence: there is little to save",
    ),
    Example(
        "from dataclasses import dataclass\n\n" + HEAD + "def causal(length: int):\n"
        "    at = mx.arange(length)\n"
        "    return mx.where(at[:, None] >= at[None], 0.0, -mx.inf)\n\n\n"
        "@dataclass\nclass Config:\n    codebooks: int = 8\n\n\n"
        "class Head(nn.Module):\n"
        "    def __init__(self, config: Config):\n"
        "        super().__init__()\n"
        "        self.codebooks = config.codebooks\n\n"
        "    def __call__(self, q, k, v):\n"
        "        mask = causal(self.codebooks).astype(q.dtype)\n"
        "        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask=mask)\n",
        why="a position for each codebook: 8 x 8",
    ),
]
