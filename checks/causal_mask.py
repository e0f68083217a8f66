"""FUS102 materialised-causal-mask: a triangular mask that is built as an array and only given to attention.

What it does: finds a square additive or boolean mask that hides every later position, and follows it, through the
calls of this file, to every reader. If all of them are attention, `mask="causal"` says the same.

Why: the mask is an array of tokens x tokens that several kernels write and every layer reads. The fused attention
kernel knows where the diagonal is, and skips the hidden half of the scores.

When not to: where something else stands in the mask (padding, a window, a bias), where it is read by anything but
attention, and where its diagonal is not at the lower right: a square mask of the new tokens can only be added to
square scores, so there it is.

Fix safety: safe. The hidden weights are zero either way: same values, same gradients. It asks for MLX 0.24, and where
the cache makes keys longer than queries for 0.30.5. `requires: FUS211` where the reader is still hand-written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.checks.attention import recognise
from fuselint.finding import Obligation, RegionInput
from fuselint.graph.around import is_made_with
from fuselint.graph.flow import Reader, readers
from fuselint.graph.model import Graph, Node, Slice, operands, region
from fuselint.rulebook import Example, Match, Probe

CODE, NAME = "FUS102", "materialised-causal-mask"
NUMBERS = (-1e9,)

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

BUILDER = "nn.MultiHeadAttention.create_additive_causal_mask"

FUSED = "fast.scaled_dot_product_attention"


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
        if length is None:
            continue
        boolean = node.op in KEEPS
        root = _cast(graph, node)
        if boolean is (graph.facts.dtype(root).name == "bool_") and (boolean or not graph.facts.dtype(root).integral):
            match = _match(graph, node, root, length, boolean)
            if match is not None:
                yield match


KEEPS = ("greater_equal", "less_equal")
"""Comparisons that make a boolean mask: True keeps a position. As numbers, 1 and 0, they would be added."""


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
    if node.op in KEEPS:
        return _compared(graph, node, keeps=True)
    return None


def _attr_node(node: Node, name: str) -> Node | None:
    value = node.attrs.get(name)
    return value if isinstance(value, Node) else None


def _full_of(graph: Graph, node: Node) -> Node | None:
    """N of mx.full((N, N), fill) with a fill of -1e9 or below."""
    if node.op != "full":
        return None
    shape = node.attrs.get("shape")
    fill = graph.facts.const(node.inputs[0]) if node.inputs else node.attrs.get("vals")
    if not isinstance(shape, tuple) or len(shape) != 2 or not _hides(fill):
        return None
    rows, columns = shape
    if not isinstance(rows, Node) or not isinstance(columns, Node):
        return None
    return rows if graph.canonical.of(rows) is graph.canonical.of(columns) else None


def _hides(fill: object) -> bool:
    return isinstance(fill, (int, float)) and not isinstance(fill, bool) and fill <= -1e9


def _scaled_comparison(graph: Graph, node: Node) -> Node | None:
    """N of (arange(N)[:, None] < arange(N)[None]) * -1e9."""
    for condition, fill in (node.inputs, node.inputs[::-1]):
        if _hides(graph.facts.const(fill)) and graph.facts.const(fill) != float("-inf"):  # 0 * -inf is NaN
            inner = condition.inputs[0] if condition.op == "astype" else condition
            if inner.op in ("less", "greater"):
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
    """N of a comparison of a column of positions with a row of them, where that keeps (or hides) what lies below."""
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


def _positions(graph: Graph, node: Node) -> tuple[str, Node] | None:
    """("column" or "row", N) of arange(N)[:, None], arange(N)[None]."""
    index = node.attrs.get("index")
    if node.op != "index" or not node.inputs or node.inputs[0].op != "arange":
        return None
    start, stop, step = (node.inputs[0].attrs.get(k) for k in ("start", "stop", "step"))
    facts = graph.facts
    plain = [v if not isinstance(v, Node) else facts.const(v) for v in (start, step)]
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
    """The mask after the casts that only it goes through."""
    users = graph.users.get(node, ())
    while len(users) == 1 and users[0].op == "astype" and node not in graph.escaping:
        node = users[0]
        users = graph.users.get(node, ())
    return node


def _match(graph: Graph, node: Node, root: Node, length: Node, boolean: bool) -> Match | None:
    reached = [*readers(graph, root, lambda reader: _is_attention(reader, boolean))]
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


def _is_attention(reader: Reader, boolean: bool) -> bool:
    """Whether a reader takes the value as the mask of attention, boolean or added, and for nothing else."""
    if reader.node.op == FUSED:
        q, k, v = reader.node.inputs[:3]
        return reader.value not in (q, k, v) and reader.node.attrs.get("sinks") is not reader.value
    for found in recognise(reader.graph):
        if found.mask is reader.value and found.keep is boolean:
            own = set(region(found.root, [found.q, found.k, found.v, reader.value]))
            if reader.node in own:
                return True
    return False


def _is_whole_axis(graph: Graph, length: Node) -> bool:
    """The length of an axis of an array of this function: the number of new tokens."""
    return length.op == "dim" or (length.op == "item" and bool(length.inputs) and length.inputs[0].op == "shape")


def _list(ends: list[Reader]) -> str:
    places = sorted({r.graph.context.qualname for r in ends})
    return f"followed to {', '.join(places)}"


EXAMPLES = [
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
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, scale: float):\n"
        "    at = mx.arange(q.shape[2])\n"
        "    mask = mx.where(at[:, None] <= at[None], 0.0, -1e9)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        why="it hides the earlier positions",
    ),
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
]
