"""FUS104 cast-sandwich: a cast to float32 and back around an operation that computes in float32 by itself.

What it does: finds `op(x.astype(mx.float32)).astype(x.dtype)` where op is softmax or logsumexp over the last axis, a
maximum or minimum, mx.fast.rms_norm or mx.fast.layer_norm, or one of MLX's layers nn.RMSNorm and nn.LayerNorm, also
that which a class derives from; the cast is the operation's own operand, and the cast back its only reader.

Why it is bad: the float32 copy is written and read again, in twice the bytes, before and after the operation.
`mx.softmax(x, axis=-1, precise=True)` and the fused norms accumulate in float32 anyway: the same bits for one kernel
instead of three.

Traffic: 20 bytes an element against 4 (half precision).

Fix safety: safe for softmax, logsumexp, max and min, and for norms without weight and bias: bit-identical. Unsafe for
norms with them: they are then applied in half precision, which is less accurate. A norm whose weight is float32 casts
x itself, so nothing would be saved, and nothing is reported. The gradient of softmax differs by one rounding.

When not to: sums, means and variances, which MLX's GPU kernels accumulate in the dtype of their operand; softmax over
another axis, which has no kernel of its own; any arithmetic between the cast and the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.callers import given_dtypes
from fuselint.graph.canonical import number_text
from fuselint.graph.dtypes import DType
from fuselint.graph.model import Graph, Node
from fuselint.graph.op import ELEMENTWISE
from fuselint.graph.ops import TABLE, operand
from fuselint.graph.ops_nn import weight_dtype
from fuselint.graph.origins import stated_dtype
from fuselint.rulebook import Example, FusedKernel, Hole, Match, Synthesised

CODE, NAME = "FUS104", "cast-sandwich"

FLOAT32 = DType({"float32"})

ROWWISE = {"softmax": "softmax", "nn.softmax": "softmax", "logsumexp": "logsumexp"}
EXACT = frozenset({"max", "min"})
LAYERS = frozenset({"nn.RMSNorm", "nn.LayerNorm"})
NORMS = {"fast.rms_norm": ("weight",), "fast.layer_norm": ("weight", "bias")}


def unfused(x: Any) -> Any:
    import mlx.core as mx

    return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)


def fused(x: Any) -> Any:
    import mlx.core as mx

    return mx.softmax(x, axis=-1, precise=True)


def nearly(graph: Graph) -> Iterator[Node]:
    return (
        n
        for n in graph.nodes
        if (n.op in ROWWISE or n.op in NORMS or n.op in LAYERS) and is_made_with(n, ("astype",), 2)
    )


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for back in graph.nodes:
        inner = back.inputs[0] if back.op == "astype" else back
        wide = inner.inputs[0] if inner.inputs else inner
        if inner is back or wide.op != "astype":
            continue
        x = wide.inputs[0]
        if _only_reader(graph, inner) is back and _only_reader(graph, wide) is inner and _is_widened(graph, x, wide):
            match = _match(graph, back, inner, wide, x)
            if match is not None:
                yield match


def _cast_back(graph: Graph, back: Node, made: DType, holes: dict[str, Hole], obligations: list[Obligation]) -> str:
    """The cast that stays: "" for none, else its dtype by name, or "{dtype}" for the hole that holds it."""
    claim = "the result keeps its dtype"
    written = graph.facts.dtype(back)
    if written and written == made:
        obligations.append(Obligation(claim, "proven", f"{written} before and after"))
        return ""
    if (
        written and written <= made
    ):  # a promotion of that dtype is itself, or float32, which was cast down as written too
        obligations.append(Obligation(claim, "proven", f"the cast to {written} stays"))
    else:
        known = f"{made}, cast to {written}"
        why = "nothing says which dtypes they have" if "%" in known else known  # values without a name
        obligations.append(Obligation("the operand has the dtype that it is cast back to", "unknown", why))
    to = back.attrs.get("dtype")
    if isinstance(to, Node):
        holes["dtype"] = to
        return "{dtype}"
    return f"{{mx}}.{to}"


def _of_layer(graph: Graph, layer: Node, x: Node) -> DType:
    """The dtype that a norm of MLX's gives x itself: with a weight, what both promote to."""
    call = graph.facts.call(layer)
    affine = layer.op == "nn.RMSNorm" or call.setting("affine") is not False
    return graph.facts.dtype(x) | weight_dtype(call) if affine else graph.facts.dtype(x)


def _only_reader(graph: Graph, node: Node) -> Node | None:
    readers = graph.users.get(node, ())
    return readers[0] if len(readers) == 1 and node not in graph.escaping else None


def _is_widened(graph: Graph, x: Node, wide: Node) -> bool:
    if x.op == "attr" or _may_be_wide(graph, x):
        return False  # a parameter's own softmax is small, and FUS108's
    dtype = graph.facts.dtype(x)
    return graph.facts.dtype(wide) == FLOAT32 and dtype != FLOAT32 and "float64" not in dtype and dtype.floating is True


def _may_be_wide(graph: Graph, x: Node) -> bool:
    """Whether a branch has made it float32 already, or what the package's calls give it, such as a mask: the casts do
    nothing then, until that is mended (FUS105)."""
    stack, seen, given = [x], set(), given_dtypes(graph)
    if graph.facts.dtype(x).bound(given) == FLOAT32:
        return True
    while stack:
        n = stack.pop()
        op = TABLE.get(n.op)
        if n in seen or (n.op != "phi" and (op is None or op.kind not in (*ELEMENTWISE, "activation"))):
            continue
        seen.add(n)
        dtypes = [graph.facts.dtype(k) for k in n.inputs]
        if n.op == "phi" and FLOAT32 in dtypes:
            return True
        if any(d != FLOAT32 and d.bound(given) == FLOAT32 for d in dtypes):
            return True
        stack.extend(n.inputs)
    return False


def _match(graph: Graph, back: Node, inner: Node, wide: Node, x: Node) -> Match | None:
    holes: dict[str, Hole] = {"x": x}
    obligations = [
        Obligation(
            "the cast is the operation's own operand, and the cast back its only reader", "proven", "one use each"
        ),
    ]
    numerics: Numerics = "bit-identical"
    made = graph.facts.dtype(x)
    reads = [x]
    if inner.op in ROWWISE or inner.op in EXACT:
        axes = graph.canonical.axes(x, inner.attrs.get("axis", -1))
        if not isinstance(axes, tuple) or isinstance(inner.attrs.get("keepdims"), Node):
            return None
        if inner.op in ROWWISE and axes != (-1,):
            return None
        obligations.append(Obligation("the axis is the last", "proven", "its axis is -1, or the rank says so"))
        data: dict[str, Any] = {
            "op": ROWWISE.get(inner.op, inner.op),
            "axes": axes,
            "keepdims": inner.attrs.get("keepdims"),
        }
    elif inner.op in NORMS:
        learned = {name: n for name in NORMS[inner.op] if (n := operand(inner, name)) is not None}
        if any(graph.facts.dtype(n) == FLOAT32 or stated_dtype(n) == "float32" for n in learned.values()):
            return None
        eps = inner.attrs.get("eps")
        if not isinstance(eps, (Node, int, float)):
            return None  # MLX refuses the call
        holes |= learned
        holes["eps"] = eps if isinstance(eps, Node) else Synthesised(number_text(eps))
        reads += learned.values()
        for n in learned.values():
            made = made | graph.facts.dtype(n)
        if learned:
            numerics = "less accurate"
        data = {"op": inner.op, "learned": tuple(NORMS[inner.op])}
    elif inner.op in LAYERS and not inner.frame.depth and isinstance(inner.attrs.get("path"), str):
        made = _of_layer(graph, inner, x)
        if made != graph.facts.dtype(x):
            numerics = "less accurate"  # with its weight in half precision
        path = inner.attrs["path"]
        data = {"op": inner.op, "callee": "super().__call__" if inner.attrs.get("super") else path}
    else:
        return None
    data["to"] = _cast_back(graph, back, made, holes, obligations)
    name = str(data["op"]).rsplit(".", 1)[-1]
    return Match(
        code=CODE,
        root=back,
        holes=holes,
        message=f"cast to float32 and back around {name}, which computes in float32 by itself",
        obligations=obligations,
        region=frozenset({back, inner, wide}),
        fused=(FusedKernel(str(data["op"]), tuple(reads), back),),
        shapes={"x": ("...", "D"), **{k: ("D",) for k in ("weight", "bias") if k in holes}},
        dtypes={k: "weight" for k in ("weight", "bias") if k in holes},
        numerics=numerics,
        data=data,
    )


HEAD = "import mlx.core as mx\n\n\n"
LAYERED = (
    HEAD.replace("core as mx\n", "core as mx\nimport mlx.nn as nn\n")
    + """class Head(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.norm = {made}

    def __call__(self, x):
        return self.norm({x}){back}
"""
)

DERIVED = (
    HEAD.replace("core as mx\n", "core as mx\nimport mlx.nn as nn\n")
    + """class LayerNorm(nn.LayerNorm):
    def __call__(self, x):
        return super().__call__({x}).astype(x.dtype)
"""
)

EXAMPLES = [
    Example(
        HEAD + "def probabilities(x):\n    return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)\n",
        HEAD + "def probabilities(x):\n    return mx.softmax(x, axis=-1, precise=True)\n",
    ),
    Example(
        HEAD
        + """def weights(q, k, mask):
    scores = q @ k.swapaxes(-1, -2) + mask
    scores = mx.softmax(scores.astype(mx.float32), axis=-1)
    return scores.astype(q.dtype)
""",
        HEAD
        + """def weights(q, k, mask):
    scores = q @ k.swapaxes(-1, -2) + mask
    return mx.softmax(scores, axis=-1, precise=True).astype(q.dtype)
""",
        why="scores may be wider than q: the cast stays, and costs nothing where they aren't",
    ),
    Example(
        HEAD + "def total(x):\n    return mx.logsumexp(x.astype(mx.float32), axis=-1, keepdims=True).astype(x.dtype)\n",
        HEAD + "def total(x):\n    return mx.logsumexp(x, axis=-1, keepdims=True)\n",
    ),
    Example(
        HEAD + "def unit(x):\n    return mx.fast.rms_norm(x.astype(mx.float32), None, 1e-6).astype(x.dtype)\n",
        HEAD + "def unit(x):\n    return mx.fast.rms_norm(x, None, 1e-6)\n",
    ),
    Example(
        HEAD + "def norm(x, w):\n    return mx.fast.rms_norm(x.astype(mx.float32), w, 1e-6).astype(x.dtype)\n",
        HEAD + "def norm(x, w):\n    return mx.fast.rms_norm(x, w, 1e-6).astype(x.dtype)\n",
        applicability="unsafe",
        why="the weight is multiplied in half precision then",
    ),
    Example(
        LAYERED.format(made="nn.LayerNorm(dims, affine=False)", x="x.astype(mx.float32)", back=".astype(x.dtype)"),
        LAYERED.format(made="nn.LayerNorm(dims, affine=False)", x="x", back=""),
        why="a layer of MLX's, without weights",
    ),
    Example(
        LAYERED.format(made="nn.RMSNorm(dims)", x="x.astype(mx.float32)", back=".astype(x.dtype)"),
        LAYERED.format(made="nn.RMSNorm(dims)", x="x", back=".astype(x.dtype)"),
        applicability="unsafe",
        why="a layer of MLX's with a weight",
    ),
    Example(
        DERIVED.format(x="x.astype(mx.float32)"),
        DERIVED.format(x="x"),
        applicability="unsafe",
        why="the layer that the class derives from",
    ),
    Example(
        HEAD + "def top(x):\n    return mx.max(x.astype(mx.float32), axis=-1).astype(x.dtype)\n",
        HEAD + "def top(x):\n    return mx.max(x, axis=-1)\n",
    ),
]


def _expression(expression: str, why: str, arguments: str = "x") -> Example:
    return Example(f"{HEAD}def f({arguments}):\n    return {expression}\n", why=why)


COUNTEREXAMPLES = [
    _expression(
        "mx.softmax(x.astype(mx.float32), axis=1).astype(x.dtype)", "another axis: seven kernels, precise or not"
    ),
    _expression("mx.softmax(x.astype(mx.float32) * 0.5, axis=-1).astype(x.dtype)", "the product is in float32 too"),
    _expression("mx.softmax(x.astype(mx.float32), axis=-1)", "the result is float32"),
    _expression("mx.mean(x.astype(mx.float32), axis=-1).astype(x.dtype)", "GPU kernels sum in the operand's dtype"),
    _expression(
        "mx.fast.rms_norm(x.astype(mx.float32), w.astype(mx.float32), 1e-6).astype(x.dtype)",
        "a float32 weight: the kernel would cast x itself",
        "x, w",
    ),
    Example(
        """import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.weight = mx.ones((dims,), dtype=mx.float32)

    def __call__(self, x):
        return mx.fast.rms_norm(x.astype(mx.float32), self.weight, 1e-6).astype(x.dtype)
""",
        why="a weight that is meant to be float32",
    ),
    Example(
        HEAD + "def f(x, allowed=None):\n    if allowed is not None:\n"
        "        x = mx.where(allowed, x, mx.array(-1e9))\n"
        "    return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)\n",
        why="where a mask is given, the float32 array has made x float32 (FUS105), and both casts do nothing",
    ),
    Example(
        HEAD
        + "import mlx.nn as nn\n\n\nclass Mix(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.logits = mx.zeros((n,))\n\n    def __call__(self, x):\n"
        "        return x * mx.softmax(self.logits.astype(mx.float32), axis=-1).astype(x.dtype)\n",
        why="a parameter: a few numbers, the same at every call (FUS108)",
    ),
]
