"""FUS242 gathered-matmul: matrices are picked by an index, written out, and multiplied once.

What it does: finds `x @ W[indices]` and `x @ mx.take(W, indices, axis=0)`, also with the picked matrices transposed,
where W is a stack of matrices and nothing else reads what was picked.

Why: picking copies a whole matrix for each index: the weights of experts are read, written and read again.
`mx.gather_mm` reads them where they are.

Traffic: two of three passes over the picked matrices.

When not to: where few matrices are picked once and used for many rows: a copy costs little then.

Fix safety: advice. How the axes of x and of the index broadcast changes with the form of the call; in float32 the
values are the same. Sorted indices make it faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.identities_linear import swap
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS242", "gathered-matmul"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(x: Any, w: Any, indices: Any) -> Any:
    return x @ w[indices]


def fused(x: Any, w: Any, indices: Any) -> Any:
    import mlx.core as mx

    return mx.gather_mm(x, w, rhs_indices=indices)


def nearly(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op == "matmul" and is_made_with(n.inputs[1], ("index", "take"), 2))


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op == "matmul" and not node.frame.depth:
            match = _match(graph, node)
            if match is not None:
                yield match


def _match(graph: Graph, root: Node) -> Match | None:
    x, right = root.inputs
    if not any(n.op in ("take", "index") for n in (right, *right.inputs[:1])):
        return None
    picked = _untransposed(graph, right)
    indices = _indices(picked)
    if indices is None or not _read_once(graph, root, right, picked):
        return None
    weights = picked.inputs[0]
    if graph.facts.rank(weights) != 3 or not _is_index_array(graph, indices):
        return None
    return Match(
        code=CODE,
        root=root,
        holes={"x": x, "w": weights, "indices": indices},
        message="matrices are picked by an index and written out for one product",
        obligations=[
            Obligation("w is a stack of matrices", "proven", graph.facts.why(weights)),
            Obligation("the index is an array", "proven", graph.facts.why(indices)),
            Obligation("nothing else reads the picked matrices", "proven", "this product alone"),
            Obligation("the picked matrices are large beside x", "unknown", "many rows for a matrix repay the copy"),
        ],
        region=frozenset({root, right, picked}),
        related=[(picked, "they are picked")],
        has_traffic=False,  # how many matrices are picked decides, and nothing here says
    )


def _untransposed(graph: Graph, node: Node) -> Node:
    """The value whose last two axes this swaps, or the value itself."""
    if not node.inputs:
        return node
    value, inner = graph.canonical.of(node), node.inputs[0]
    turned = value.op == "permute" and value.param("perm") == swap(-1, -2)
    return inner if turned and value.args[0] is graph.canonical.of(inner) else node


def _indices(node: Node) -> Node | None:
    """The array that picks along the first axis."""
    if node.op == "take":
        return node.inputs[1] if node.attrs.get("axis") == 0 and len(node.inputs) == 2 else None
    index = node.attrs.get("index") if node.op == "index" else None
    only = index[0] if isinstance(index, tuple) and len(index) == 1 else None
    return only if isinstance(only, Node) else None


def _is_index_array(graph: Graph, node: Node) -> bool:
    """Whether it is proven to be an array with an axis: a number picks one matrix, which is a view."""
    rank = graph.facts.rank(node)
    shape = graph.facts.shape(node)
    return graph.facts.kind(node) == "array" and rank != 0 and shape is not None


def _read_once(graph: Graph, root: Node, right: Node, picked: Node) -> bool:
    readers = {picked: right if right is not picked else root, right: root}
    return all(n not in graph.escaping and graph.users.get(n, ()) == (user,) for n, user in readers.items())


LAYER = (
    "class Experts(nn.Module):\n"
    "    def __init__(self, experts: int, dims: int, hidden: int):\n"
    "        super().__init__()\n"
    "        self.weight = mx.zeros((experts, dims, hidden))\n\n"
)

EXAMPLES = [
    Example(
        HEAD + LAYER + "    def __call__(self, x: mx.array, indices: mx.array):\n"
        "        return x @ self.weight[indices]\n",
        applicability="none",
    ),
    Example(
        HEAD + LAYER + "    def __call__(self, x: mx.array, gates: mx.array):\n"
        "        best = mx.argmax(gates, axis=-1)\n"
        "        return x @ mx.take(self.weight, best, axis=0).swapaxes(-1, -2)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + LAYER + "    def __call__(self, x: mx.array, expert: int):\n        return x @ self.weight[expert]\n",
        why="one matrix is a view",
    ),
    Example(
        HEAD + "def scores(x: mx.array, table: mx.array, ids: mx.array):\n"
        "    V, D = table.shape\n"
        "    return x @ table[ids].T\n",
        why="rows of a table, not matrices",
    ),
    Example(
        HEAD + LAYER + "    def __call__(self, x: mx.array, indices: mx.array):\n"
        "        w = self.weight[indices]\n"
        "        return x @ w, w\n",
        why="the picked matrices are returned too",
    ),
]
