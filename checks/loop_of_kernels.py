"""FUS305 loop-of-kernels: a Python loop of products over slices of arrays, whose results are stacked again.

What it does: finds lists of `a[i] @ b[i]`, made by a comprehension or by `append` in a loop over `range`, that go into
`mx.stack` or `mx.concatenate`.

Why: each product is a launch of its own on a small part of the data, and stacking copies all results once more. A
product of arrays with leading axes is one kernel.

When not to: where the slices have different sizes, or a step needs the one before; neither is reported.

Fix safety: advice. Which axes become batch axes is a decision on layouts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS305", "loop-of-kernels"

HEAD = "import mlx.core as mx\n\n\n"


def unfused(a: Any, b: Any) -> Any:
    import mlx.core as mx

    return mx.stack([a[i] @ b[i] for i in range(a.shape[0])])


def fused(a: Any, b: Any) -> Any:
    return a @ b


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op not in ("stack", "concatenate") or len(node.inputs) != 1 or node.frame.depth:
            continue
        product = _collected(graph, node.inputs[0])
        if product is not None and _of_slices(product):
            yield _match(node, product)


def _collected(graph: Graph, container: Node) -> Node | None:
    """The one product that a comprehension or a loop of appends puts into a list."""
    if container.op == "opaque" and container.attrs.get("reason") == "comprehension":
        value = container.inputs[-1]
    else:
        appended = [e for e in graph.effects if e.kind == "mutation" and container in e.targets and e.value is not None]
        if container.op != "loop" or len(appended) != 1 or appended[0].value is None:
            return None
        value = appended[0].value
    return value if value.op == "matmul" and value.stmt is not None else None


def _of_slices(product: Node) -> bool:
    """Whether an operand is a slice by the loop's counter, and the other one too or the same at every step."""
    sliced = [_slice(n) for n in product.inputs]
    counters = {counter for counter in sliced if counter is not None}
    others = [n for n, counter in zip(product.inputs, sliced, strict=True) if counter is None]
    return len(counters) == 1 and all(_is_given(n) for n in others)


def _slice(node: Node) -> Node | None:
    """The counter `i` of `range` in `x[i]`, `x[:, i]`, also behind views."""
    at = node
    while (op := TABLE.get(at.op)) is not None and op.kind == "view" and at.op != "index" and len(at.inputs) == 1:
        at = at.inputs[0]
    if at.op not in ("item", "index") or not at.inputs or not _is_given(at.inputs[0]):
        return None
    index = at.attrs.get("index")
    entries = index if isinstance(index, tuple) else (index,)
    nodes = [e for e in entries if isinstance(e, Node)]
    return nodes[0] if len(nodes) == 1 and _counts(nodes[0]) else None


def _counts(node: Node) -> bool:
    """Whether it is the current number of a loop over `range`."""
    source = node.inputs[0] if node.op == "item" and node.attrs.get("index") is None and node.inputs else None
    return source is not None and source.op == "call" and source.attrs.get("target") == "builtins.range"


def _is_given(node: Node) -> bool:
    """Whether the value is there before the loop."""
    return node.op in ("param", "attr") or (node.stmt is not None and not node.stmt.block.in_loop and node.op in TABLE)


def _match(root: Node, product: Node) -> Match:
    return Match(
        code=CODE,
        root=root,
        holes={},
        message="a Python loop multiplies slice by slice, and the results are joined",
        obligations=[
            Obligation("no step needs the one before", "proven", "the operands are there before the loop"),
            Obligation("the loop has several steps", "unknown", "the range decides"),
        ],
        region=frozenset({root, product}),
        related=[(product, "one product a step")],
        has_traffic=False,
    )


EXAMPLES = [
    Example(
        HEAD + "def products(a: mx.array, b: mx.array):\n"
        "    return mx.stack([a[i] @ b[i] for i in range(a.shape[0])])\n",
        applicability="none",
    ),
    Example(
        HEAD + "def products(a: mx.array, b: mx.array):\n"
        "    out = []\n"
        "    for i in range(a.shape[1]):\n"
        "        out.append(a[:, i] @ b[i].T)\n"
        "    return mx.stack(out, axis=1)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def powers(a: mx.array, n: int):\n"
        "    out = []\n"
        "    h = a\n"
        "    for i in range(n):\n"
        "        h = h @ a[i]\n"
        "        out.append(h)\n"
        "    return mx.stack(out)\n",
        why="each step needs the one before",
    ),
    Example(
        HEAD + "def products(a: mx.array, b: mx.array, starts: list):\n"
        "    return mx.concatenate([a[s : s + 8] @ b for s in starts])\n",
        why="slices that the loop doesn't count",
    ),
]
