"""FUS201 unfused-rms-norm: RMS normalisation written out, instead of mx.fast.rms_norm.

What it does: finds `x * rsqrt(mean(x^2) + eps)` over the last axis, with or without a weight, in any spelling: square,
power or product; mean or sum over length; rsqrt, division by a square root, power -0.5 or reciprocal; over several
statements, helpers and methods; with the casts of Llama (cast back, then the weight) or of Gemma (the weight, then
cast back).

Why it is bad: each operation is a kernel that reads its operand from DRAM and writes its result back. With a float32
copy of x that is 9 kernels and 18 times the bytes of x; mx.compile can't cross the mean, and still moves 12 times.
The fused kernel reads x once and writes the result once, and sums in float32 by itself, so no cast is needed.

Traffic: 36 bytes an element with float32 inside, 14 without, against 4 (half precision).

Fix safety: safe where the weight is multiplied after the cast back to x's dtype (equal but for the order in which the
kernel adds a row up), or where everything is in x's dtype (the fused kernel is more accurate: half precision can even
overflow in the square, from a root mean square of 4 at 4096 columns). Where the result stays float32, so does the
cast before it, if there is one. Unsafe where the weight is multiplied in float32 and the product is cast (Gemma's
order): the fused kernel rounds before that multiplication. `mx.fast.rms_norm(x, w.astype(mx.float32),
eps).astype(x.dtype)` keeps that order, and saves half. Unsafe where the result's dtype may change, and where nothing
says that the weight has one axis.

When not to: eps outside the root, `x / max(norm, eps)`, another axis than the last, or an unbiased variance are other
functions, and are not reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.norm_operands import (
    POLICIES,
    Learned,
    best_matches,
    dtype_stays,
    eps_hole,
    held,
    helpers,
    is_number,
    narrow,
    numerator,
    numerics_of,
    policy_of,
    weight_of,
    wide_operand,
)
from fuselint.graph.norms import LAST, readings, roots
from fuselint.graph.values import Value
from fuselint.rulebook import Example, FusedKernel, Hole, Match

CODE, NAME = "FUS201", "unfused-rms-norm"
nearly = roots
ONE_VALUE = True


def unfused(x: Any, weight: Any, eps: Any) -> Any:
    import mlx.core as mx

    return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps) * weight


def fused(x: Any, weight: Any, eps: Any) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, weight, eps)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    yield from best_matches(graph, "rms", _match)


def _match(graph: Graph, chain: list[Node], *, wide: bool = False) -> Match | None:
    """wide: x with its cast to float32, so that a result that stays float32 keeps its dtype."""
    c, read, root = graph.canonical, readings(graph, "rms"), chain[-1]
    norm = read[root]
    if norm is None or norm.axes != LAST or (found := numerator(graph, root, norm)) is None:
        return None
    written, ratio = found
    x = narrow(graph, written)
    weight = weight_of(graph, root, norm, x)
    eps = eps_hole(graph, root, c.algebra.scale(norm.eps, ratio * ratio))
    if weight is None or eps is None or eps in weight.nodes or graph.facts.dtype(x).integral:
        return None
    length = _length(graph, norm.length, weight)
    if length is not None and length.verdict == "contradicted":
        return None
    policy, cast = policy_of(graph, chain, read, x), False
    kept = dtype_stays(graph, root, (x, *weight.nodes), eps)
    if wide:
        (x, cast), kept = wide_operand(graph, written, x), dtype_stays(graph, root, (written, *weight.nodes), eps)
        if kept.verdict != "proven":
            return None
    holes: dict[str, Hole] = {"x": x}
    if weight.hole is not None:
        holes["weight"] = weight.hole
    holes["eps"] = eps
    owned = region(root, [n for h in holes.values() for n in held(h)])
    reads = (x, *weight.nodes)
    label = "llama" if policy == "float32" and kept.verdict == "proven" else policy
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=f"hand-written RMSNorm{POLICIES[label]}",
        obligations=[
            Obligation("the mean is over the last axis", "proven", "its axis is -1, or the rank says so"),
            Obligation("the value that is squared is the value that is scaled", "proven", "they are one value"),
            *([length] if length is not None else []),
            is_number(graph, eps),
            *weight.obligations,
            kept,
        ],
        region=frozenset(owned),
        fused=(FusedKernel("fast.rms_norm", reads, root, wide=cast),),
        shapes={"x": ("...", "D"), **({"weight": ("D",)} if weight.hole is not None else {})},
        scalars={norm.length: "D"} if norm.length is not None and norm.length.number is None else {},
        dtypes={"weight": "weight"} if weight.hole is not None else {},
        numerics=numerics_of(graph, "none" if wide else policy, written if wide else x, kept),
        related=helpers(root, owned),
        data={"policy": policy, "keeps_dtype": kept.verdict == "proven", "cast": cast},
    )


def _length(graph: Graph, n: Value | None, weight: Learned) -> Obligation | None:
    """Whether a sum was divided by x's length, where it wasn't by x.shape[-1]."""
    if n is None:
        return None
    claim = "the sum is divided by the length of x's last axis"
    for node in weight.nodes:
        shape = graph.facts.shape(node)
        if shape is not None and shape.rank == 1 and graph.canonical.size_value(shape.dims[0]) is n:
            return Obligation(claim, "proven", "the weight, which multiplies that axis, has as many entries")
    named = [k for k in graph.canonical.nodes(n) if k.op in ("attr", "param")]
    origin = named[0].attrs.get("init") if named else None
    computed = isinstance(origin, Node) and origin.op not in ("attr", "param")
    if n.op == "size" or not named or computed or _is_fraction(graph, origin if isinstance(origin, Node) else named[0]):
        return Obligation(claim, "contradicted", f"it is divided by {n}")
    return Obligation(claim, "unknown", f"it is divided by {n}")


def _is_fraction(graph: Graph, node: Node) -> bool:
    """Whether a parameter is a float, by its default or its annotation: no length."""
    default = node.attrs.get("default")
    usual = graph.facts.const(default) if isinstance(default, Node) else None
    return isinstance(usual, float) or "weak float" in graph.facts.dtype(node)


HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

EXAMPLES = [
    Example(
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def _norm(self, x):
        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)

    def __call__(self, x):
        output = self._norm(x.astype(mx.float32)).astype(x.dtype)
        return self.weight * output
""",
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, self.eps)
""",
        why="the weight is multiplied after the cast back",
    ),
    Example(
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        dtype = x.dtype
        x = x.astype(mx.float32)
        variance = mx.mean(mx.power(x, 2), axis=-1, keepdims=True)
        x = x / mx.sqrt(variance + self.eps)
        return self.weight * x.astype(dtype)
""",
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, self.eps)
""",
        why="x is rebound: the fused kernel takes the one that came in",
    ),
    Example(
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.zeros((dims,))
        self.eps = eps

    def __call__(self, x):
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(h * h, axis=-1, keepdims=True) + self.eps)
        return (h * self.weight).astype(x.dtype)
""",
        HEAD
        + """class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.zeros((dims,))
        self.eps = eps

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, self.eps)
""",
        applicability="unsafe",
        why="Gemma multiplies the weight in float32, the fused kernel after rounding",
    ),
    Example(
        HEAD + "def unit(x):\n    return x * (mx.sum(x**2, axis=-1, keepdims=True) / x.shape[-1] + 1e-6) ** -0.5\n",
        HEAD + "def unit(x):\n    return mx.fast.rms_norm(x, None, 1e-6)\n",
        why="no weight, another spelling",
    ),
    Example(
        HEAD + "def norm(x, w):\n    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) * (1 + w)\n",
        HEAD + "def norm(x, w):\n    return mx.fast.rms_norm(x, 1 + w, 1e-5)\n",
        applicability="unsafe",
        why="nothing says that w has one axis",
    ),
    Example(
        HEAD
        + """class T5Norm(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.weight = mx.ones((dims,))

    def __call__(self, x):
        variance = x.astype(mx.float32).square().mean(-1, keepdims=True)
        return self.weight * (x * mx.rsqrt(variance + 1e-6))
""",
        HEAD
        + """class T5Norm(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.weight = mx.ones((dims,))

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, 1e-6)
""",
        applicability="unsafe",
        why="the result was float32 also for half precision x, and is x's dtype afterwards",
    ),
    Example(
        HEAD
        + """def scores(x, scale, shift):
    h = x.astype(mx.float32)
    h = h * mx.rsqrt(mx.mean(h * h, axis=-1, keepdims=True) + 1e-6)
    return h * scale[:, None] + shift[:, None]
""",
        HEAD
        + """def scores(x, scale, shift):
    h = x.astype(mx.float32)
    h = mx.fast.rms_norm(h, None, 1e-6)
    return h * scale[:, None] + shift[:, None]
""",
        why="float32 goes on from here, so the cast stays",
    ),
]


def _expression(expression: str, why: str, arguments: str = "x, w") -> Example:
    return Example(f"{HEAD}def f({arguments}):\n    return {expression}\n", why=why)


COUNTEREXAMPLES = [
    _expression("x / (mx.sqrt(mx.mean(x * x, axis=-1, keepdims=True)) + 1e-5) * w", "eps outside the root"),
    _expression("x * mx.rsqrt(mx.mean(x * x, axis=1, keepdims=True) + 1e-5) * w", "another axis"),
    _expression("x * mx.rsqrt(mx.mean(x * x) + 1e-5) * w", "all axes"),
    _expression("x * mx.rsqrt(mx.mean(x * x, axis=-1) + 1e-5) * w", "the mean loses its axis: rows and columns mix"),
    _expression("2 * x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)", "twice the norm"),
    _expression("(x + 1) * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)", "another numerator"),
    _expression(
        "x * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5) * w", "the variance of a value that isn't centred"
    ),
    _expression("x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) / x.shape[1] + 1e-5)", "another axis' length"),
    _expression(
        "x / mx.maximum(mx.linalg.norm(x, axis=-1, keepdims=True), 1e-6)", "a floor under the norm, not an eps inside"
    ),
    _expression("x * mx.rsqrt(mx.mean(mx.abs(x) ** 3, axis=-1, keepdims=True) + 1e-5)", "cubes"),
    _expression(
        "(x - x.mean(-1, keepdims=True)) * mx.rsqrt(x.var(-1, keepdims=True) + 1e-5)",
        "centred: a layer norm, which is FUS202's",
    ),
]
