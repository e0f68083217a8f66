"""FUS231 unfused-matmul-add: a bias or a residual added to a matrix product, which `mx.addmm` adds as it writes.

What it does: finds `x @ W.T + b`, `h + x @ W.T`, `beta * h + alpha * (x @ W)` and `h - x @ W`, in either order.

Why: the product is written to memory, read back and written again. `mx.addmm` adds in the matmul's own epilogue.

Traffic: three passes over the result become one.

When not to: where the product is read elsewhere too; where the addend has more axes than the product; where a float32
addend would turn a half-precision matmul into a float32 one with two casts; where mx.compile already makes the addition
part of an elementwise kernel next to it. Scores of attention plus a mask are
FUS211's. MLX has no epilogue for activations, and none for quantized matmuls. nn.Linear does this already.

Fix safety: safe where the addend is known to fit the product: the same values in float32, one rounding less in half
precision. Unsafe where nothing says the addend's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import TABLE
from fuselint.graph.worth import finds_nearest, is_read_out
from fuselint.rulebook import Example, FusedKernel, Hole, Match, Synthesised

CODE, NAME = "FUS231", "unfused-matmul-add"

IN, OUT = "in_dims", "out_dims"
"""What the axes of the matrix are called where the code has no names for them."""

MATRIX = 2
"""Its axes; more are those of a batch."""

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(c: Any, a: Any, b: Any) -> Any:
    return a @ b + c


def fused(c: Any, a: Any, b: Any) -> Any:
    import mlx.core as mx

    return mx.addmm(c, a, b)


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A value times a scalar. scale None: once; negative: the sign of the term."""

    value: Node
    scale: Node | None = None
    number: float | None = None
    divided: bool = False
    negative: bool = False

    def hole(self) -> Hole | None:
        """The factor as text; None where it is 1."""
        if self.scale is None:
            return Synthesised("-1.0") if self.negative else None
        if self.number is not None:
            factor = (1 / self.number if self.divided else self.number) * (-1 if self.negative else 1)
            return Synthesised(repr(float(factor)))
        template = "1 / {s}" if self.divided else "{s}"
        if self.negative:
            template = f"-({template})" if self.divided else "-{s}"
        return self.scale if template == "{s}" else Synthesised(template, {"s": self.scale})


def nearly(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op in ("add", "subtract") and is_made_with(n, ("matmul",), 2))


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op not in ("add", "subtract") or len(node.inputs) != 2:
            continue
        for product, addend in ((0, 1), (1, 0)):
            match = _match(graph, node, product, addend)
            if match is not None:
                yield match
                break


def _match(graph: Graph, root: Node, product: int, addend: int) -> Match | None:
    facts = graph.facts
    minus = root.op == "subtract"
    scaled = _scaled(graph, root.inputs[product], negative=minus and product == 1)
    other = root.inputs[addend]
    if scaled.value.op != "matmul" or facts.kind(other) not in ("array", "unknown") or facts.kind(root) != "array":
        return None
    rest = _scaled(graph, other, negative=minus and addend == 1)
    if rest.value.op == "matmul" and addend < product:
        return None  # a sum of two products: the first is the addend of the second
    a, b = scaled.value.inputs
    c = rest.value
    if not _weightlike(graph, a, b):
        return None
    alpha, beta = scaled.hole(), rest.hole()
    holes: dict[str, Hole] = {"c": c, "a": a, "b": b}
    holes |= {name: hole for name, hole in (("alpha", alpha), ("beta", beta)) if hole is not None}
    stops = [a, b, c, *(s.scale for s in (scaled, rest) if s.scale is not None)]
    inside = region(root, stops)
    if any(n in inside for n in (a, b, c)):
        return None
    obligations = [
        _read_once(graph, root, inside),
        _fits(graph, scaled.value, c),
        _dtype(graph, a, b, c),
    ]
    if is_read_out(graph, root) or (finds_nearest(graph, root) and not graph.context.hot):
        return None
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message="a matrix product is written, read back and added to",
        obligations=obligations,
        region=frozenset(inside),
        fused=(FusedKernel("addmm", (c, a, b), root),),
        shapes={
            "a": ("...", IN),
            "b": (IN, OUT) if _is_matrix(graph, b) else ("...", IN, OUT),
            "c": _shape(graph, c, scaled.value),
        },
        dtypes={"b": "weight", "c": "weight" if c.op == "attr" else "activation"},
        numerics="more accurate",
        related=[(scaled.value, "the product")],
    )


def _scaled(graph: Graph, node: Node, negative: bool) -> Scaled:
    """The value without the Python number that multiplies it."""
    if node.op == "negative":
        inner = _scaled(graph, node.inputs[0], not negative)
        return inner if inner.value.op == "matmul" else Scaled(node, negative=negative)
    if node.op in ("multiply", "divide") and len(node.inputs) == 2:
        x, s = node.inputs
        if node.op == "multiply" and graph.facts.kind(x) == "scalar":
            x, s = s, x
        number = graph.facts.const(s)
        if graph.facts.kind(s) == "scalar" and graph.facts.kind(x) == "array" and number != 0:
            known = float(number) if isinstance(number, (int, float)) else None
            return Scaled(x, s, known, node.op == "divide", negative)
    return Scaled(node, negative=negative)


def _weightlike(graph: Graph, a: Node, b: Node) -> bool:
    """Whether the second operand may be a matrix: products of two batches are attention's, those of vectors small."""
    left, right = (graph.facts.shape(n) for n in (a, b))
    if any(s is not None and (d := s.axis(-1)) is not None and d.value() == 1 for s in (left, right)):
        return False
    rank = graph.facts.rank(b)
    if rank is None and b.op == "param" and graph.context.qualname.endswith(".__call__"):
        return False  # what a layer is given is an activation
    return rank in (None, 2) and graph.facts.rank(a) != 1


def _is_matrix(graph: Graph, b: Node) -> bool:
    """Whether it has two axes, as far as is known: what is itself computed may well have those of a batch."""
    if graph.facts.rank(b) is not None:
        return graph.facts.rank(b) == MATRIX
    while b.inputs and (b.op == "astype" or (b.op in TABLE and TABLE[b.op].kind == "view")):
        if b.op == "unflatten" and type(b.attrs.get("axis")) is int and b.attrs["axis"] > 0:
            return False  # its axes, those of what is unflattened, and those before them
        b = b.inputs[0]
    return b.op not in TABLE


def _read_once(graph: Graph, root: Node, inside: list[Node]) -> Obligation:
    claim = "the product is read once"
    own = set(inside)
    for n in own - {root}:
        if graph.facts.kind(n) == "array" and (
            n in graph.escaping or any(u not in own for u in graph.users.get(n, ()))
        ):
            return Obligation(claim, "contradicted", "it is also used elsewhere")
    return Obligation(claim, "proven", "by the addition alone")


def _fits(graph: Graph, product: Node, c: Node) -> Obligation:
    claim = "the addend broadcasts to the product"
    facts = graph.facts
    shape, whole = facts.shape(c), facts.shape(product)
    rank, of = facts.rank(c), facts.rank(product)
    if rank is not None and of is not None and rank > of:
        return Obligation(claim, "contradicted", "it has more axes")
    if rank is not None and rank <= 1:
        return Obligation(claim, "proven", facts.why(c))
    if shape is not None and whole is not None and shape == whole:
        return Obligation(claim, "proven", "it has the product's shape")
    least = of if of is not None or whole is None else len(whole.dims)
    if rank is not None and least is not None and rank <= least and rank <= 2:
        return Obligation(
            claim, "proven", f"it has {rank} axes, the product {'' if least == of else 'at least '}{least}"
        )
    return Obligation(claim, "unknown", "nothing says its shape")


def _dtype(graph: Graph, a: Node, b: Node, c: Node) -> Obligation:
    claim = "the addend does not widen the matmul"
    facts = graph.facts
    if "float32" in facts.dtype(c) and "float32" not in facts.dtype(a) | facts.dtype(b):
        return Obligation(claim, "contradicted", "it is float32: addmm would cast both matrices")
    if _accumulates(graph, c) and "float32" not in facts.dtype(a) | facts.dtype(b):
        return Obligation(claim, "contradicted", "it is a sum that begins in float32: addmm would cast both matrices")
    return Obligation(claim, "proven", "its dtype is the operands', or that of a weight as loaded")


def _accumulates(graph: Graph, c: Node) -> bool:
    """Whether an attribute is no weight but a sum: methods assign it anew, and `__init__` begins it in float32."""
    begun = c.attrs.get("init") if c.op == "attr" else None
    owner = graph.module.classes.get(graph.context.class_name or "")
    if owner is None or not isinstance(begun, Node) or c.attrs["name"] not in owner.reassigned:
        return False
    return begun.op in MADE and begun.attrs.get("dtype") in (None, "float32")


MADE = frozenset({"array", "zeros", "ones", "full"})
"""What begins a sum; of numbers, in float32."""


def _shape(graph: Graph, c: Node, product: Node) -> tuple[str, ...]:
    """What is read of an object is a bias, but what is added to a product of two weights is a weight."""
    rank = graph.facts.rank(c)
    if rank == 0:
        return ()
    if rank == 1:
        return (OUT,)
    held = c.op in ("attr", "param") and not all(n.op == "attr" for n in _weights(product))
    return (OUT,) if rank is None and held else ("...", OUT)


def _weights(product: Node) -> Iterator[Node]:
    """The operands of a product, as the object holds them."""
    for operand in product.inputs:
        n = operand
        while n.inputs and (n.op in ("astype", "multiply") or (n.op in TABLE and TABLE[n.op].kind == "view")):
            n = next((k for k in n.inputs if k.attrs.get("init") is not None), n.inputs[-1])
        yield n


EXAMPLES = [
    Example(
        HEAD + "class Head(nn.Module):\n"
        "    def __init__(self, dims, classes):\n"
        "        super().__init__()\n"
        "        self.weight = mx.zeros((classes, dims))\n"
        "        self.bias = mx.zeros((classes,))\n\n"
        "    def __call__(self, x):\n"
        "        y = x @ self.weight.T\n"
        "        return y + self.bias\n",
        fixed=HEAD + "class Head(nn.Module):\n"
        "    def __init__(self, dims, classes):\n"
        "        super().__init__()\n"
        "        self.weight = mx.zeros((classes, dims))\n"
        "        self.bias = mx.zeros((classes,))\n\n"
        "    def __call__(self, x):\n"
        "        return mx.addmm(self.bias, x, self.weight.T)\n",
        applicability="safe",
    ),
    Example(
        HEAD + "def step(h: mx.array, x: mx.array, w: mx.array):\n    return h - 0.5 * (x @ w)\n",
        fixed=HEAD + "def step(h: mx.array, x: mx.array, w: mx.array):\n    return mx.addmm(h, x, w, alpha=-0.5)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def distances(x: mx.array, codes: mx.array):\n"
        "    b, d, t = x.shape\n"
        "    rows = x.swapaxes(1, 2).reshape(b * t, d)\n"
        "    return mx.sum(rows * rows, 1, keepdims=True) - rows @ codes.T\n",
        fixed=HEAD + "def distances(x: mx.array, codes: mx.array):\n"
        "    b, d, t = x.shape\n"
        "    rows = x.swapaxes(1, 2).reshape(b * t, d)\n"
        "    return mx.addmm(mx.sum(rows * rows, 1, keepdims=True), rows, codes.T, alpha=-1.0)\n",
        applicability="safe",
        why="the addend has two axes, and the product of two axes or more no fewer",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def f(x, w, b):\n    y = x @ w\n    return y + b, y\n",
        why="the product is returned as well",
    ),
    Example(
        HEAD + "@mx.compile\ndef gate(x: mx.array, w: mx.array, b: mx.array):\n    return mx.sigmoid(x @ w + b)\n",
        why="one kernel adds and takes the sigmoid",
    ),
    Example(
        HEAD + "@mx.compile\ndef step(h: mx.array, g: mx.array, x: mx.array, w: mx.array):\n    return h * g + x @ w\n",
        why="one kernel multiplies and adds",
    ),
    Example(
        HEAD + "def f(x, w):\n    return x @ w + 1.0\n",
        why="a number is not an array to add",
    ),
    Example(
        HEAD + "def f(x, w, b):\n    return (x @ w).astype(mx.float16) + b.astype(mx.float32)\n",
        why="a cast stands between",
    ),
    Example(
        HEAD + "def ridge(x: mx.array, y: mx.array, amount: float):\n"
        "    x = x.astype(mx.float32)\n"
        "    gram = x.T @ x + amount * mx.eye(64)\n"
        "    return mx.linalg.solve(gram, x.T @ y, stream=mx.cpu)\n",
        why="a decomposition on the CPU reads it: that is calibration",
    ),
    Example(
        HEAD + "def codes(x: mx.array, table: mx.array):\n    far = mx.sum(table**2, axis=-1) - 2 * (x @ table.T)\n"
        "    return mx.argmin(far, axis=-1)\n",
        why="the nearest entry of a codebook: done once, with what comes in",
    ),
    Example(
        HEAD + "class Catcher(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.H = mx.array(0.0)\n\n"
        "    def __call__(self, x):\n"
        "        x = x.flatten(0, -2)\n"
        "        self.H = self.H + x.T @ x\n"
        "        return x\n",
        why="the sum is float32: addmm would cast both matrices and multiply in float32",
    ),
    Example(
        HEAD + "class Mix(nn.Module):\n"
        "    def __call__(self, x, weights, out):\n"
        "        return out[:, :, None] + weights @ x\n",
        why="what a layer is given is an activation: this is a product of two batches",
    ),
]
