"""FUS232 unfused-contraction: a matrix product written as broadcast, multiply and sum.

What it does: finds `(a[:, :, None] * w[None]).sum(1)`, which is `a @ w`, and `(a[:, None] * w[None]).sum(-1)`, which
is `a @ w.T`; with leading batch axes too.

Why: every product of the sum is written to memory and read back: rows x columns x terms of them. A matmul keeps them
in registers, and uses the matrix units.

Traffic: two passes over rows x columns x terms become one read of each operand.

When not to: where the products are needed elsewhere too; where float32 results must not change (see below). Products
of integers: MLX multiplies only floating matrices.

Fix safety: unsafe. A float32 matmul may run in TF32 on a GPU, with 10 bits of mantissa: the code may have been written
to avoid that (`MLX_ENABLE_TF32=0` does it too). In half precision a matmul is more accurate: it rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.model import Graph, Node, region
from fuselint.rulebook import Example, FusedKernel, Match

CODE, NAME = "FUS232", "unfused-contraction"

HEAD = "import mlx.core as mx\n\n\n"


def unfused(a: Any, b: Any) -> Any:
    return (a[..., None] * b).sum(-2)


def fused(a: Any, b: Any) -> Any:
    return a @ b


def nearly(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op == "sum" and is_made_with(n, ("multiply",), 1))


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op != "sum" or node.attrs.get("keepdims") not in (False, None) or node.attrs.get("axis") is None:
            continue
        product = node.inputs[0]
        if product.op != "multiply" or len(product.inputs) != 2:
            continue
        axes = graph.canonical.axes(product, node.attrs["axis"])
        if axes not in ((-2,), (-1,)):
            continue
        for left, right in (product.inputs, product.inputs[::-1]):
            match = _match(graph, node, product, left, right, transposed=axes == (-1,))
            if match is not None:
                yield match
                break


def _match(graph: Graph, root: Node, product: Node, left: Node, right: Node, transposed: bool) -> Match | None:
    """left has the rows, `(..., M, K, 1)` or, where the last axis is summed, `(..., M, 1, K)`; right the columns."""
    facts = graph.facts
    a = _without_axes(graph, left, -2 if transposed else -1)
    b = _columns(graph, left, right)
    if a is None or b is None or facts.kind(product) != "array" or _is_read_elsewhere(graph, product):
        return None
    if not all(facts.kind(n) == "array" and facts.dtype(n).floating is not False for n in (a, b)):
        return None
    rows, columns = facts.shape(a), facts.shape(b)
    if rows is None or columns is None:
        return None
    inner, k, n = rows.axis(-1), columns.axis(-1 if transposed else -2), columns.axis(-2 if transposed else -1)
    m = rows.axis(-2)
    if inner is None or k is None or n is None or m is None or 1 in [s.value() for s in (inner, k, m, n)]:
        return None  # nothing to sum, or a product with a vector
    same = inner == k
    if not same and inner.value() is not None and k.value() is not None:
        return None
    batched = facts.rank(b) != 2
    turned = transposed
    if transposed and not batched and b.op == "transpose" and b.attrs.get("axes") is None:
        b, turned = b.inputs[0], False  # w.T of w.T
    inside = region(root, [a, b])
    if a in inside or b in inside:
        return None
    return Match(
        code=CODE,
        root=root,
        holes={"a": a, "b": b},
        message="a matrix product written as broadcast, multiply and sum",
        obligations=[
            Obligation("the ranks are known", "proven", f"{rows} and {columns}"),
            Obligation(
                "both operands have the summed axis",
                "proven" if same else "unknown",
                f"of length {inner}" if same else f"{inner} and {k}: a matmul does not broadcast it",
            ),
            Obligation("a rounding like TF32's is fine", "unknown", "a float32 matmul may use it on a GPU"),
        ],
        region=frozenset(inside),
        fused=(FusedKernel("matmul", (a, b), root),),
        shapes={
            "a": _axes(graph, a, ("M", "K")),
            "b": _axes(graph, b, ("N", "K") if turned else ("K", "N")),
        },
        numerics="reassociated",
        related=[(product, "the products, all written to memory")],
        data={"transposed": turned, "batched": batched},
    )


def _without_axes(graph: Graph, node: Node, *added: int) -> Node | None:
    """The array to which a node adds just these axes."""
    if node.op not in ("index", "expand_dims") or len(node.inputs) != 1:
        return None
    value = graph.canonical.of(node)
    inner = node.inputs[0]
    if value.op != "expand_dims" or value.args[0] is not graph.canonical.of(inner):
        return None
    return inner if value.param("axes") == tuple(sorted(added)) else None


def _columns(graph: Graph, left: Node, right: Node) -> Node | None:
    """The matrix on the right: an axis for the rows is put before its last two, by `None` or by broadcasting."""
    b = _without_axes(graph, right, -3)
    rank = graph.facts.rank
    if b is None:
        return right if rank(right) == 2 and (rank(left) or 0) >= 3 else None
    ranks = rank(b), rank(left)
    if ranks[0] is None or ranks[1] is None or ranks[0] < 2:
        return None
    return b


def _is_read_elsewhere(graph: Graph, product: Node) -> bool:
    return product in graph.escaping or len(graph.users.get(product, ())) != 1


def _axes(graph: Graph, node: Node, last: tuple[str, str]) -> tuple[str, ...]:
    rank = graph.facts.rank(node)
    return (*(f"B{i}" for i in range((rank or 2) - 2)), *last)


EXAMPLES = [
    Example(
        HEAD + "def project(a: mx.array, w: mx.array):\n"
        "    rows, terms = a.shape\n"
        "    terms, columns = w.shape\n"
        "    return (a[:, :, None] * w[None]).sum(1)\n",
        fixed=HEAD + "def project(a: mx.array, w: mx.array):\n"
        "    rows, terms = a.shape\n"
        "    terms, columns = w.shape\n"
        "    return a @ w\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def similarity(a: mx.array, b: mx.array):\n"
        "    n, d = a.shape\n"
        "    m, d = b.shape\n"
        "    return mx.sum(mx.expand_dims(a, 1) * b[None, :, :], axis=-1)\n",
        fixed=HEAD + "def similarity(a: mx.array, b: mx.array):\n"
        "    n, d = a.shape\n"
        "    m, d = b.shape\n"
        "    return a @ b.T\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def similarity(a: mx.array, b: mx.array):\n"
        "    s, n, d = a.shape\n"
        "    s, m, d = b.shape\n"
        "    return (b[:, None] * a[:, :, None]).sum(axis=3)\n",
        fixed=HEAD + "def similarity(a: mx.array, b: mx.array):\n"
        "    s, n, d = a.shape\n"
        "    s, m, d = b.shape\n"
        "    return a @ b.swapaxes(-1, -2)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def project(a: mx.array, w: mx.array):\n"
        "    s, rows, terms = a.shape\n"
        "    terms, columns = w.shape\n"
        "    return (a[:, :, None] * w.T).sum(-1)\n",
        fixed=HEAD + "def project(a: mx.array, w: mx.array):\n"
        "    s, rows, terms = a.shape\n"
        "    terms, columns = w.shape\n"
        "    return a @ w\n",
        applicability="unsafe",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def f(a: mx.array, w: mx.array):\n    return (a[:, :, None] * w[None]).sum(1)\n",
        why="nothing says how many axes there are",
    ),
    Example(
        HEAD + "def f(a: mx.array, w: mx.array):\n"
        "    n, k = a.shape\n"
        "    k, m = w.shape\n"
        "    return (a[:, :, None] * w[None]).sum(0)\n",
        why="the sum is over the rows",
    ),
    Example(
        HEAD + "def f(a: mx.array, w: mx.array):\n"
        "    n, k = a.shape\n"
        "    k, m = w.shape\n"
        "    products = a[:, :, None] * w[None]\n"
        "    return products.sum(1), products.max(1)\n",
        why="the products are needed anyway",
    ),
    Example(
        HEAD + "def f(a: mx.array, b: mx.array):\n    n, k = a.shape\n    n, k = b.shape\n    return (a * b).sum(-1)\n",
        why="a dot product of each row: no matrix product",
    ),
    Example(
        HEAD + "def f(a: mx.array, b: mx.array):\n"
        "    n, k = a.shape\n"
        "    m, k = b.shape\n"
        "    return ((a[:, None] - b[None]) * (a[:, None] - b[None])).sum(-1)\n",
        why="a distance",
    ),
    Example(
        HEAD + "def f(a: mx.array, w: mx.array):\n"
        "    n, k = a.shape\n"
        "    k, m = w.shape\n"
        "    return (a.astype(mx.int32)[:, :, None] * w.astype(mx.int32)[None]).sum(1)\n",
        why="MLX has no matmul of integers",
    ),
]
