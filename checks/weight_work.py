"""FUS108 weight-work-per-call: arithmetic on weights that gives the same result at every call.

What it does: finds methods of modules that compute with parameters alone: `1 + self.weight` on its way into
mx.fast.rms_norm, a matrix that is scaled, cast to float32, stacked or concatenated with others.

Why: the weight is read and a new one written at each call, for each token in decoding. A matrix that is scaled moves
three times the bytes of the product that reads it; `1 + w` costs a launch a norm.

Traffic: the weight, read and written once a call.

When not to: in training, where the weights change at every step. Views of a weight (`.T`, slices) cost nothing, and a
cast to the dtype that it has costs nothing.

Fix safety: advice. The result belongs into the parameter itself when the weights are loaded, in `sanitize` or in the
conversion, which changes what a checkpoint holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE, operand
from fuselint.graph.origins import stated_dtype
from fuselint.graph.worth import finds_nearest
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS108", "weight-work-per-call"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

WORK = frozenset({"unary", "binary", "ternary", "composite", "reduce"})
JOINS = frozenset({"concatenate", "stack"})
NORMS = frozenset({"fast.rms_norm", "fast.layer_norm"})
READERS = NORMS | {name for name, op in TABLE.items() if op.kind in ("matmul", "conv")}
"""What a value of parameters alone is the weight of, or a matrix for."""

MATRICES = frozenset({"mlx.nn.Linear", "mlx.nn.Conv1d", "mlx.nn.Conv2d", "mlx.nn.Conv3d", "mlx.nn.Embedding"})


def unfused(x: Any, weight: Any) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, 1.0 + weight, 1e-6)


def fused(x: Any, weight_plus_one: Any) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, weight_plus_one, 1e-6)


def find(graph: Graph) -> Iterator[Match]:
    held = graph.module.classes.get(graph.context.class_name or "")
    if graph.context.cold or held is None or not held.is_module or graph.ops.isdisjoint(READERS):
        return
    derived: dict[Node, int] = {}  # values made of parameters alone -> how much work is in them
    for node in graph.nodes:
        work = _work(graph, node, derived)
        if work is not None:
            derived[node] = work
    for node, work in derived.items():
        readers = [u for u in graph.users.get(node, ()) if u.op not in ("shape", "dim", "dtype", "ndim")]
        ends = bool(readers) and not any(u in derived for u in readers)
        if not work or not ends or node in graph.escaping or (finds_nearest(graph, node) and not graph.context.hot):
            continue
        if _is_worth_it(graph, node, readers, derived):
            yield _match(graph, node, derived)


def _is_parameter(graph: Graph, node: Node) -> bool:
    """An array that `__init__` makes, or the matrix of a layer that it makes; not one that the class assigns later."""
    if node.op != "attr" or not node.inputs or any(e.kind == "store" and e.path == _path(node) for e in graph.effects):
        return False
    base, init = node.inputs[0], node.attrs.get("init")
    of_self = base.op == "param" and base is next(iter(graph.params.values()), None)
    if isinstance(init, Node):
        return of_self and graph.facts.kind(node) == "array"
    if of_self and node.attrs.get("name") == "weight":
        return not MATRICES.isdisjoint(graph.module.lineage(graph.context.class_name or ""))
    layer = base.attrs.get("init") if base.op == "attr" else None
    made = isinstance(layer, Node) and layer.op == "new" and layer.attrs.get("target") in MATRICES
    return made and node.attrs.get("name") == "weight"


def _path(node: Node) -> str:
    return str(node.attrs.get("path") or "")


def _work(graph: Graph, node: Node, derived: dict[Node, int]) -> int | None:
    """How many kernels make a value of parameters alone; None for any other value."""
    if _is_parameter(graph, node):
        return 0
    op = TABLE.get(node.op)
    if op is None or derived.keys().isdisjoint(node.inputs):
        return None
    arrays = [n for n in node.inputs if graph.facts.kind(n) != "scalar"]
    if any(n not in derived for n in arrays):
        return None
    before = sum(derived[n] for n in arrays)
    if op.kind == "view":
        return before
    if op.kind in WORK or node.op in JOINS:
        return before + 1
    if op.kind == "cast":
        if before:
            return before + 1
        x = node.inputs[0]
        widens = node.attrs.get("dtype") == "float32" != stated_dtype(x) and graph.facts.dtype(x).name != "float32"
        return 1 if widens else None
    return None


def _is_worth_it(graph: Graph, node: Node, readers: list[Node], derived: dict[Node, int]) -> bool:
    """Whether it is the weight of a fused norm, or a matrix that a product reads."""
    if any(u.op in NORMS and operand(u, "weight") is node for u in readers):
        return node.op != "astype"
    matrix = any(_is_large(n) or (graph.facts.rank(n) or 0) >= 2 for n in _leaves(graph, node))
    return matrix and any(_multiplies_an_activation(u, derived) for u in readers)


def _multiplies_an_activation(reader: Node, derived: dict[Node, int]) -> bool:
    """Whether a product reads the value with one that isn't of parameters: those of two are adapters in training."""
    op = TABLE.get(reader.op)
    return op is not None and op.kind in ("matmul", "conv") and any(n not in derived for n in reader.inputs)


def _leaves(graph: Graph, node: Node) -> list[Node]:
    out, stack = [], [node]
    while stack:
        n = stack.pop()
        if _is_parameter(graph, n):
            out.append(n)
        else:
            stack.extend(n.inputs)
    return out


def _is_large(parameter: Node) -> bool:
    """Whether a parameter is the matrix of a layer."""
    return not isinstance(parameter.attrs.get("init"), Node)


def _match(graph: Graph, root: Node, derived: dict[Node, int]) -> Match:
    inside, stack = set(), [root]
    while stack:
        n = stack.pop()
        if n not in inside and n in derived and not _is_parameter(graph, n):
            inside.add(n)
            stack.extend(n.inputs)
    leaves = list(dict.fromkeys(_leaves(graph, root)))
    names = ", ".join(f"`{_path(n)}`" for n in leaves)
    return Match(
        code=CODE,
        root=root,
        holes={f"w{i}": n for i, n in enumerate(leaves)},
        message=f"the same value is computed from {names} at every call",
        obligations=[
            Obligation("the value depends on parameters alone", "proven", "nothing else goes into it"),
            Obligation("the parameters do not change between calls", "unknown", "they do in training"),
        ],
        region=frozenset(inside),
        also=tuple(sorted(inside - {root}, key=lambda n: n.id)),  # what else reads them can be stored too
        shapes={},
    )


NORM = (
    HEAD + "class Norm(nn.Module):\n"
    "    def __init__(self, dims: int, eps: float = 1e-6):\n"
    "        super().__init__()\n"
    "        self.weight = mx.ones((dims,))\n"
    "        self.eps = eps\n\n"
    "    def __call__(self, x):\n"
)

PROJECTION = (
    HEAD + "class Projection(nn.Module):\n"
    "    def __init__(self, dims: int):\n"
    "        super().__init__()\n"
    "        self.weight = mx.zeros((dims, dims))\n"
    "        self.other = mx.zeros((dims, dims))\n"
    "        self.scale = dims**-0.5\n\n"
    "    def __call__(self, x):\n"
)

EXAMPLES = [
    Example(
        NORM + "        return mx.fast.rms_norm(x, 1.0 + self.weight, self.eps)\n",
        applicability="none",
        why="as Gemma's norms are written",
    ),
    Example(PROJECTION + "        return x @ (self.weight * self.scale).T\n", applicability="none"),
    Example(PROJECTION + "        return x @ mx.concatenate([self.weight, self.other])\n", applicability="none"),
    Example(PROJECTION + "        return x @ self.weight.astype(mx.float32)\n", applicability="none"),
    Example(
        HEAD + "def ternary(w):\n"
        "    s = 1 / mx.maximum(mx.abs(w.astype(mx.float32)).mean(), 1e-5)\n"
        "    return (mx.clip(mx.round(w * s), -1, 1) / s).astype(w.dtype)\n\n\n"
        "class BitLinear(nn.Linear):\n"
        "    def __call__(self, x):\n"
        "        return x @ ternary(self.weight).T\n",
        applicability="none",
        why="a matrix that is rounded anew at every call, by a function of the file",
    ),
]

COUNTEREXAMPLES = [
    Example(
        PROJECTION + "        unit = self.weight / mx.linalg.norm(self.weight, axis=-1, keepdims=True)\n"
        "        return mx.argmax(-(1.0 - x @ unit.T), axis=-1)\n",
        why="the nearest entry of a codebook: done once, with what comes in",
    ),
    Example(NORM + "        return mx.fast.rms_norm(x, self.weight, self.eps)\n", why="no work"),
    Example(NORM + "        return x @ (self.weight[:, None] * 2.0)\n", why="a vector, whatever its axes"),
    Example(
        PROJECTION.replace("self.other", "self._table") + "        return x @ self._table.astype(mx.float32)\n",
        why="it is float32 already: loading does not change it",
    ),
    Example(
        PROJECTION.replace("mx.zeros((dims, dims))", "mx.zeros((dims, dims), dtype=mx.float32)", 1)
        + "        return x.astype(mx.float32) @ self.weight.astype(mx.float32)\n",
        why="a weight that is meant to be float32: the cast guards that, and costs nothing",
    ),
    Example(PROJECTION + "        return x @ self.weight.T\n", why="a view costs nothing"),
    Example(
        PROJECTION + "        return x @ self.weight.astype(x.dtype)\n", why="free where it has that dtype already"
    ),
    Example(PROJECTION + "        return (x * self.scale) @ self.weight\n", why="the activation is scaled"),
    Example(
        PROJECTION + "        return x + (self.weight * self.scale) @ self.other\n",
        why="a product of parameters, as in adapters, which are trained",
    ),
    Example(
        HEAD + "def f(x, weight):\n    return mx.fast.rms_norm(x, 1.0 + weight, 1e-6)\n",
        why="nothing says that the argument is a parameter",
    ),
]
