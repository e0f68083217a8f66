"""FUS205 normed-matmul: a matrix product divided by the root mean square of its rows' input.

What it does: finds `(x @ W) * rsqrt(mean(x^2) + eps)`, where the product is of the x that is squared, and nothing else
reads it.

Why it is bad: the mean of the squares reads x once more, in three kernels of its own, and the product is read and
written again to be scaled. `mx.fast.rms_norm(x, None, eps) @ W` normalises x in one kernel before the product: the
scale of a row moves through the matmul.

Traffic: three passes over x and one over the product against one of x.

Fix safety: always unsafe. The values of x are rounded after they are scaled and before they are summed: better on
centred data, but with a common mean that the weights cancel, twenty times less accurate in half precision.
In half precision the product can also overflow before it is scaled, and the square of x; that is repaired.

When not to: where the product is read elsewhere too; where the norm is of another value, or over another axis than the
one that the product contracts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.canonical import Canonical
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.norm_operands import dtype_stays, eps_hole, held, helpers, is_number
from fuselint.graph.norms import LAST, ROOT, ROOTING, may_be_eps, root_mean_squares, roots
from fuselint.graph.values import ONE, Value, close
from fuselint.rulebook import Example, FusedKernel, Hole, Match
from fuselint.standing import is_value_of_its_call

CODE, NAME = "FUS205", "normed-matmul"
ONE_VALUE = True


def unfused(x: Any, w: Any, eps: Any) -> Any:
    import mlx.core as mx

    return (x @ w) * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps)


def fused(x: Any, w: Any, eps: Any) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, None, eps) @ w


@dataclass(frozen=True, slots=True)
class Scaled:
    """A value read as product * (mean(x^2) + eps)^(-1/2), where product = x @ w."""

    product: Value
    eps: Value


def nearly(graph: Graph) -> Iterator[Node]:
    if any(n.op == "matmul" for n in graph.nodes):
        yield from roots(graph)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.ops.isdisjoint(ROOTING):
        return
    for node in graph.nodes:
        if node.op in ("multiply", "divide") and (scaled := _read(graph.canonical, graph.canonical.of(node))):
            match = _match(graph, node, scaled)
            if match is not None:
                yield match


def _read(c: Canonical, value: Value) -> Scaled | None:
    products = [b for b, e in value.factors if b.op == "matmul" and e == ONE]
    roots = [b for b, e in value.factors if e == ROOT]
    if len(value.factors) != 2 or len(products) != 1 or len(roots) != 1:
        return None
    for mean in root_mean_squares(c, roots[0]):
        core = c.algebra.multiply(products[0], c.algebra.power(c.algebra.scale(roots[0], 1 / mean.coefficient), ROOT))
        same = close(value.coefficient, core.coefficient, 1e-9)
        if mean.kind != "mean" or mean.axes != LAST or not same or not may_be_eps(c, mean.eps):
            continue
        if mean.x is products[0].args[0]:
            return Scaled(products[0], mean.eps)
    return None


def _match(graph: Graph, root: Node, scaled: Scaled) -> Match | None:
    c = graph.canonical
    products = [n for n in region(root, ()) if n.op == "matmul" and c.of(n) is scaled.product]
    if len(products) != 1:
        return None
    x, w = products[0].inputs
    eps = eps_hole(graph, root, scaled.eps)
    if c.of(x) is not scaled.product.args[0] or eps is None or graph.facts.rank(x) == 1 or graph.facts.rank(w) == 1:
        return None
    if any(graph.facts.dtype(n).integral for n in (x, w)):
        return None
    holes: dict[str, Hole] = {"x": x, "w": w, "eps": eps}
    owned = region(root, [n for h in holes.values() for n in held(h)])
    own = set(owned)
    if own & {x, w} or any(_is_read_outside(graph, n, own) for n in own - {root}):
        return None
    if not is_value_of_its_call(graph, root):  # it is the helper's own finding
        return None
    kept = dtype_stays(graph, root, (x, w), eps)
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message="a matrix product is scaled by the root mean square of its input",
        obligations=[
            Obligation("the norm is over the axis that the product contracts", "proven", "the last axis of x"),
            Obligation("the value that is squared is the one that is multiplied", "proven", "they are one value"),
            Obligation("the product is read once", "proven", "by the scaling alone"),
            is_number(graph, eps),
            kept,
        ],
        region=frozenset(owned),
        fused=(FusedKernel("fast.rms_norm", (x,), x), FusedKernel("matmul", (x, w), root)),
        shapes={"x": ("...", "M", "K"), "w": ("K", "N")},
        dtypes={"w": "weight"},
        numerics="reassociated" if kept.verdict == "proven" else "different dtype",
        related=[(products[0], "the product"), *helpers(root, owned)],
    )


def _is_read_outside(graph: Graph, node: Node, own: set[Node]) -> bool:
    """Whether an array that would no longer be computed is read elsewhere too."""
    if graph.facts.kind(node) != "array" or node.op in ("param", "attr"):
        return False
    return node in graph.escaping or any(u not in own for u in graph.users.get(node, ()))


HEAD = "import mlx.core as mx\n\n\n"

EXAMPLES = [
    Example(
        HEAD
        + """def project(x, w):
    r = mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return (x @ w) * r
""",
        HEAD + "def project(x, w):\n    return mx.fast.rms_norm(x, None, 1e-6) @ w\n",
        applicability="unsafe",
    ),
    Example(
        HEAD
        + """def mixes(x, w, eps=1e-6):
    x = x.flatten(-2)
    y = x @ w.T
    return y / mx.sqrt(x.square().mean(-1, keepdims=True) + eps)
""",
        HEAD
        + """def mixes(x, w, eps=1e-6):
    x = x.flatten(-2)
    return mx.fast.rms_norm(x, None, eps) @ w.T
""",
        applicability="unsafe",
    ),
]


def _function(body: str, why: str) -> Example:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    return Example(f"{HEAD}def f(x, w):\n{lines}", why=why)


R = "mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-6)"

COUNTEREXAMPLES = [
    _function(f"y = x @ w\nreturn y * {R}, y", "the product is read elsewhere"),
    _function(f"return (w @ x) * {R}", "the norm is not of the value that is contracted"),
    _function(
        "return (x @ w) * mx.rsqrt(mx.mean(x * x, axis=-2, keepdims=True) + 1e-6)", "over another axis than the product"
    ),
    _function("return (x @ w) * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-6)", "a sum, not a mean"),
    _function(f"return (2 * x @ w) * {R}", "twice that"),
    _function("y = x @ w\nreturn y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + 1e-6)", "a norm of the product"),
    _function("return (x @ w) / (mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True)) + 1e-6)", "eps outside the root"),
    _function(f"r = {R}\nreturn (x @ w) * r, r", "the root is read elsewhere"),
]
