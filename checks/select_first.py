"""FUS107 compute-then-select: work on every row, then a few rows are kept.

What it does: finds a layer applied to all positions of which one is read (`self.head(h)[:, -1]`), a dequantized table
of which rows are taken, and the largest entry of a softmax.

Why: the last position of a vocabulary projection is one row in thousands; a dequantized embedding table is written
whole to read a few rows of it. Selecting first does the work that is kept.

When not to: where the other rows are read too. Where the layer looks at more than its own row.

Fix safety: rows of a table and of a linear layer are bit-identical: safe. The largest entry of a softmax is that of its
logits, except where rounding makes two weights equal, and for NaN: advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.model import Graph, Node, Slice
from fuselint.rulebook import Example, FusedKernel, Hole, Match

CODE, NAME = "FUS107", "compute-then-select"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

ROWWISE = frozenset({"nn.Linear", "nn.QuantizedLinear"})
"""Layers that compute each row of their output from the same row of their input."""

SOFTMAX = frozenset({"softmax", "nn.softmax", "nn.log_softmax"})


def unfused(logits: Any) -> Any:
    import mlx.core as mx

    return mx.argmax(mx.softmax(logits, axis=-1), axis=-1)


def fused(logits: Any) -> Any:
    import mlx.core as mx

    return mx.argmax(logits, axis=-1)


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        best = n.op in ("argmax", "argmin") and is_made_with(n, ("softmax",), 3)
        if best or (n.op in ("index", "take") and is_made_with(n, ("dequantize", "nn.Linear"), 1)):
            yield n


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        match = _layer(graph, node) or _table(graph, node) or _largest(graph, node)
        if match is not None:
            yield match


def _read_once(graph: Graph, node: Node, reader: Node) -> bool:
    """Whether nothing else needs the array: its shape and dtype are known without it."""
    others = [u for u in graph.users.get(node, ()) if u is not reader and u.op not in ("shape", "dim", "dtype", "ndim")]
    return not others and node not in graph.escaping


ONE_READER = "the other rows are not read"


def _layer(graph: Graph, root: Node) -> Match | None:
    """layer(h)[:, -1]: one position of a projection of all."""
    if root.op != "index" or len(root.inputs) != 1 or root.inputs[0].op not in ROWWISE:
        return None
    layer = root.inputs[0]
    index, rank = root.attrs.get("index"), graph.facts.rank(layer)
    path = layer.attrs.get("path")
    if not isinstance(index, tuple) or not path or not _read_once(graph, layer, root):
        return None
    text = _written(index)
    if text is None or not _selects(index) or not _leaves_features(index, rank) or _drops_batch(graph, layer, index):
        return None
    h = layer.inputs[0]
    obligations = [Obligation(ONE_READER, "proven", "nothing else reads the layer's result")]
    return Match(
        code=CODE,
        root=root,
        holes={"h": h},
        message="a layer computes every position, and one is kept",
        obligations=obligations,
        region=frozenset({root, layer}),
        fused=(FusedKernel("nn.Linear of the kept rows", (root,), root),),
        data={"template": f"{path}({{h}}[{text}])", "message": "select first"},
    )


def _takes_all(entry: object) -> bool:
    return isinstance(entry, Slice) and entry.takes_all


def _selects(rows: tuple[object, ...]) -> bool:
    """Whether an index keeps one position of some axis, and whole axes else."""
    ints = [e for e in rows if isinstance(e, int) and not isinstance(e, bool)]
    return len(ints) == 1 and all(e is Ellipsis or _takes_all(e) or e in ints for e in rows)


def _leaves_features(index: tuple[object, ...], rank: int | None) -> bool:
    """Whether the last axis is whole: it is taken whole, or the index ends before it."""
    return _takes_all(index[-1]) or (rank is not None and Ellipsis not in index and len(index) < rank)


def _drops_batch(graph: Graph, layer: Node, index: tuple[object, ...]) -> bool:
    """Whether the one entry is all there is, as of a batch of one: of the first of three axes, or of an axis of one."""
    at = next(i for i, e in enumerate(index) if isinstance(e, int))
    first = at == 0 and graph.facts.rank(layer) != 2
    shape = graph.facts.shape(layer)
    size = shape.axis(at - len(index) if Ellipsis in index[:at] else at) if shape is not None else None
    return first or (size is not None and size.value() == 1)


def _written(index: tuple[object, ...]) -> str | None:
    parts = []
    for e in index:
        if e is Ellipsis:
            parts.append("...")
        elif isinstance(e, int) and not isinstance(e, bool):
            parts.append(str(e))
        elif _takes_all(e):
            parts.append(":")
        else:
            return None
    return ", ".join(parts)


def _table(graph: Graph, root: Node) -> Match | None:
    """dequantize(table)[ids]: rows of a table that is dequantized whole."""
    if root.op == "index":
        index = root.attrs.get("index")
        by_rows = isinstance(index, tuple) and len(index) == 1 and isinstance(index[0], Node) and len(root.inputs) >= 1
        ids = index[0] if by_rows and isinstance(index, tuple) else None
    else:
        ids = root.inputs[1] if root.op == "take" and root.attrs.get("axis") == 0 and len(root.inputs) == 2 else None
    if not isinstance(ids, Node) or not root.inputs or root.inputs[0].op != "dequantize":
        return None
    whole = root.inputs[0]
    if not _read_once(graph, whole, root) or graph.facts.kind(ids) not in ("array", "unknown"):
        return None
    array = graph.facts.kind(ids) == "array"
    names = ("w", "scales", "biases")[: len(whole.inputs)]
    options = []
    for key in ("group_size", "bits", "mode", "dtype"):
        value = whole.attrs.get(key)
        if value is None or (key == "mode" and value == "affine"):
            continue
        if not isinstance(value, (int, str)) or key == "dtype":
            return None
        options.append(f"{key}={value!r}")
    rows = [f"{{{n}}}[{{ids}}]" for n in names]
    holes: dict[str, Hole] = {**dict(zip(names, whole.inputs, strict=True)), "ids": ids}
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message="a table is dequantized whole, and rows of it are taken",
        obligations=[
            Obligation(ONE_READER, "proven", "nothing else reads the dequantized table"),
            Obligation("the index is an array", "proven" if array else "unknown", graph.facts.why(ids)),
        ],
        region=frozenset({root, whole}),
        fused=(FusedKernel("dequantize", (), root),),
        shapes={"w": ("V", "8"), "scales": ("V", "1"), "biases": ("V", "1"), "ids": ("N",)},
        dtypes={"w": "uint32", "ids": "int"},
        data={"template": f"{{mx}}.dequantize({', '.join([*rows, *options])})", "message": "take the rows first"},
    )


def _largest(graph: Graph, root: Node) -> Match | None:
    """argmax(softmax(x))."""
    if root.op != "argmax" or not root.inputs or root.inputs[0].op not in SOFTMAX:
        return None
    weights = root.inputs[0]
    axis, over = root.attrs.get("axis"), weights.attrs.get("axis", -1)
    if axis != over or not isinstance(axis, int) or not _read_once(graph, weights, root):
        return None
    x = weights.inputs[0]
    keep = ", keepdims=True" if root.attrs.get("keepdims") is True else ""
    return Match(
        code=CODE,
        root=root,
        holes={"x": x},
        message="a softmax is computed for its largest entry, which is that of its argument",
        obligations=[
            Obligation(ONE_READER, "proven", "nothing else reads the softmax"),
        ],
        region=frozenset({root, weights}),
        fused=(FusedKernel("argmax", (x,), root),),
        shapes={"x": ("...", "D")},
        data={
            "no_fix": f"mx.argmax(x, axis={axis}{keep}) takes another of two entries whose weights round to the same"
        },
    )


EXAMPLES = [
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __init__(self, dims: int, vocabulary: int):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(dims, vocabulary)\n\n"
        "    def __call__(self, h: mx.array):\n"
        "        B, L, D = h.shape\n"
        "        logits = self.head(h)\n"
        "        return logits[:, -1, :]\n",
        fixed=HEAD + "class Model(nn.Module):\n"
        "    def __init__(self, dims: int, vocabulary: int):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(dims, vocabulary)\n\n"
        "    def __call__(self, h: mx.array):\n"
        "        B, L, D = h.shape\n"
        "        return self.head(h[:, -1, :])\n",
    ),
    Example(
        HEAD + "def rows(w: mx.array, scales: mx.array, biases: mx.array, ids: mx.array):\n"
        "    table = mx.dequantize(w, scales, biases, group_size=64, bits=4)\n"
        "    return table[ids]\n",
        fixed=HEAD + "def rows(w: mx.array, scales: mx.array, biases: mx.array, ids: mx.array):\n"
        "    return mx.dequantize(w[ids], scales[ids], biases[ids], group_size=64, bits=4)\n",
    ),
    Example(
        HEAD + "def greedy(logits: mx.array):\n    return mx.argmax(mx.softmax(logits, axis=-1), axis=-1)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __init__(self, dims: int, vocabulary: int):\n"
        "        super().__init__()\n"
        "        self.head = nn.Linear(dims, vocabulary)\n\n"
        "    def __call__(self, h: mx.array):\n"
        "        B, L, D = h.shape\n"
        "        logits = self.head(h)\n"
        "        return logits[:, -1, :], logits\n",
        why="all logits are returned too",
    ),
    Example(
        HEAD + "class Out(nn.Module):\n"
        "    def __init__(self, dims: int):\n"
        "        super().__init__()\n"
        "        self.proj = nn.Linear(dims, dims)\n\n"
        "    def __call__(self, h: mx.array, n: int):\n"
        "        y = self.proj(h.reshape(1, n, -1))\n"
        "        return y[0]\n",
        why="a batch of one: nothing is left out",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    p = mx.softmax(x, axis=-1)\n    return mx.argmax(p, axis=-1), p\n",
        why="the probabilities are returned too",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    return mx.argmax(mx.softmax(x, axis=0), axis=-1)\n",
        why="the largest along another axis than the softmax",
    ),
]
