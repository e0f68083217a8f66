"""FUS202 unfused-layer-norm: layer normalisation written out, instead of mx.fast.layer_norm.

What it does: finds `(x - mean(x)) * rsqrt(var(x) + eps)` over the last axis, with or without a weight and a bias, in
any spelling: the mean as a sum over the length; the variance by mx.var, as the mean of the squares, or as
`mean(x^2) - mean(x)^2`; rsqrt, division by a square root, power -0.5; over several statements, helpers and methods.

Why it is bad: each operation is a kernel that reads its operand from DRAM and writes its result back, and the mean and
the variance each read x once more; mx.compile can't cross them. The fused kernel reads x once, writes the result once,
and computes in float32 by itself, so no cast is needed.

Traffic: 24 bytes an element in half precision, 44 with float32 inside, against 4.

Fix safety: safe where weight and bias come after the cast back to x's dtype, or where everything is in x's dtype: the
fused kernel is more accurate then, most of all where the mean is large, and for `mean(x^2) - mean(x)^2`, which cancels.
Unsafe where weight or bias are applied in float32 and the result is cast: the fused kernel rounds before them.
Unsafe where the result's dtype may change, and where nothing says that the weight has one axis.

When not to: eps outside the root, a variance with ddof=1, another axis than the last. A scale and shift for each sample
(adaptive layer norm) are no weight and bias: mx.fast.layer_norm takes those with one axis only. They stay outside, and
so does a bias without a weight. `x * weight + bias if weight is not None else x` is one call too, safe where no call in
the package gives a bias alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.norm_operands import (
    POLICIES,
    best_matches,
    bias_of,
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
from fuselint.graph.norms import LAST, Norm, readings, roots
from fuselint.graph.worth import is_read_out
from fuselint.rulebook import Example, FusedKernel, Hole, Match
from fuselint.standing import is_value_of_its_call

CODE, NAME = "FUS202", "unfused-layer-norm"
nearly = roots
ONE_VALUE = True


def unfused(x: Any, weight: Any, bias: Any, eps: Any) -> Any:
    import mlx.core as mx

    mean = mx.mean(x, axis=-1, keepdims=True)
    return (x - mean) * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + eps) * weight + bias


def fused(x: Any, weight: Any, bias: Any, eps: Any) -> Any:
    import mlx.core as mx

    return mx.fast.layer_norm(x, weight, bias, eps)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for best in best_matches(graph, "layer", _match):
        if is_value_of_its_call(graph, best.root):  # else it is the helper's own finding
            yield best


def _match(graph: Graph, chain: list[Node], *, wide: bool = False) -> Match | None:
    """wide: x with its cast to float32, so that a result that stays float32 keeps its dtype."""
    c, read, root = graph.canonical, readings(graph, "layer"), chain[-1]
    norm = read[root]
    if norm is None or norm.axes != LAST or (found := numerator(graph, root, norm)) is None:
        return None
    written, ratio = found
    x = narrow(graph, written)
    weight = weight_of(graph, root, norm, x, modulated=False)
    eps = eps_hole(graph, root, c.algebra.scale(norm.eps, ratio * ratio))
    if weight is None or eps is None or graph.facts.dtype(x).integral:
        return None
    bias = bias_of(graph, root, norm, x, weight)
    if bias is None or eps in (*weight.nodes, *bias.nodes):  # an array is no eps
        return None
    policy, cast = policy_of(graph, chain, read, x), False
    kept = dtype_stays(graph, root, (x, *weight.nodes, *bias.nodes), eps)
    if wide:
        (x, cast), kept = (
            wide_operand(graph, written, x),
            dtype_stays(graph, root, (written, *weight.nodes, *bias.nodes), eps),
        )
        if kept.verdict != "proven":
            return None
    holes: dict[str, Hole] = {"x": x}
    if weight.hole is not None:
        holes["weight"] = weight.hole
    if bias.hole is not None:
        holes["bias"] = bias.hole
    holes["eps"] = eps
    learned = [name for name in ("weight", "bias") if name in holes]
    owned = region(root, [n for h in holes.values() for n in held(h)])
    label = "llama" if policy == "float32" and kept.verdict == "proven" else policy
    numerics = numerics_of(graph, "none" if wide else policy, written if wide else x, kept)
    if norm.moments and numerics == "reassociated":
        numerics = "more accurate"
    moments = "; mean(x^2) - mean(x)^2 cancels" if norm.moments else ""
    if is_read_out(graph, root):
        return None
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=f"hand-written LayerNorm{POLICIES[label]}{moments}",
        obligations=[
            Obligation("mean and variance are over the last axis", "proven", "the axis is -1, or the rank says so"),
            Obligation("the variance is x's own, and biased", "proven", "the mean of the squares of x - mean(x)"),
            is_number(graph, eps),
            *weight.obligations,
            *bias.obligations,
            kept,
        ],
        region=frozenset(owned),
        fused=(FusedKernel("fast.layer_norm", (x, *weight.nodes, *bias.nodes), root, wide=cast),),
        shapes={"x": ("...", "D"), **{name: ("D",) for name in learned}},
        dtypes={name: "weight" for name in learned},
        numerics=numerics,
        related=helpers(root, owned),
        data={"policy": policy, "keeps_dtype": kept.verdict == "proven", "cast": cast, "beside": _beside(norm)},
    )


def _beside(norm: Norm) -> dict[str, str]:
    """The bias is None where the weight is, where it is added for there being a weight."""
    bias = norm.bias
    goes_with = bias is not None and bias.op == "guarded" and bias.args[0] is not bias.param("by")
    return {"bias": "weight"} if goes_with else {}


HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

INIT = """class LayerNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.bias = mx.zeros((dims,))
        self.eps = eps

    def __call__(self, x):
"""

FIXED = INIT + "        return mx.fast.layer_norm(x, self.weight, self.bias, self.eps)\n"

EXAMPLES = [
    Example(
        HEAD
        + INIT
        + """        mean = mx.mean(x, axis=-1, keepdims=True)
        var = mx.var(x, axis=-1, keepdims=True)
        return self.weight * ((x - mean) * mx.rsqrt(var + self.eps)) + self.bias
""",
        HEAD + FIXED,
        why="all in x's dtype: the fused kernel is more accurate",
    ),
    Example(
        HEAD
        + INIT
        + """        h = x.astype(mx.float32)
        u = h.mean(-1, keepdims=True)
        s = mx.power(h - u, 2).mean(-1, keepdims=True)
        h = ((h - u) / mx.sqrt(s + self.eps)).astype(x.dtype)
        return h * self.weight + self.bias
""",
        HEAD + FIXED,
        why="weight and bias after the cast back",
    ),
    Example(
        HEAD
        + INIT
        + """        dtype = x.dtype
        x = x.astype(mx.float32)
        mean = x.mean(-1, keepdims=True)
        x = (x - mean) * mx.rsqrt(x.var(-1, keepdims=True) + self.eps)
        return (x * self.weight + self.bias).astype(dtype)
""",
        HEAD + FIXED,
        applicability="unsafe",
        why="weight and bias in float32, before rounding",
    ),
    Example(
        HEAD
        + """def normalised(x):
    mean = mx.sum(x, axis=-1, keepdims=True) / x.shape[-1]
    var = mx.mean(x * x, axis=-1, keepdims=True) - mean * mean
    return (x - mean) / mx.sqrt(var + 1e-6)
""",
        HEAD + "def normalised(x):\n    return mx.fast.layer_norm(x, None, None, 1e-6)\n",
        why="E[x^2] - E[x]^2",
    ),
    Example(
        HEAD
        + """def adaptive(x, scale, shift):
    mean = mx.mean(x, axis=-1, keepdims=True)
    var = mx.var(x, axis=-1, keepdims=True)
    y = (x - mean) * mx.rsqrt(var + 1e-6)
    return y * (1 + scale[:, None]) + shift[:, None]
""",
        HEAD
        + """def adaptive(x, scale, shift):
    y = mx.fast.layer_norm(x, None, None, 1e-6)
    return y * (1 + scale[:, None]) + shift[:, None]
""",
        why="a scale and a shift for each sample stay outside",
    ),
    Example(
        HEAD
        + """def norm(x, w, b):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * (x.var(-1, keepdims=True) + 1e-5) ** -0.5 * w + b
""",
        HEAD + "def norm(x, w, b):\n    return mx.fast.layer_norm(x, w, b, 1e-5)\n",
        applicability="unsafe",
        why="nothing says that w and b have one axis",
    ),
]


def _expression(expression: str, why: str, arguments: str = "x, w, b") -> Example:
    return Example(f"{HEAD}def f({arguments}):\n    return {expression}\n", why=why)


CENTRED = "(x - mx.mean(x, axis=-1, keepdims=True))"

COUNTEREXAMPLES = [
    _expression("x * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5) * w + b", "the numerator isn't centred"),
    _expression(f"{CENTRED} / (mx.std(x, axis=-1, keepdims=True) + 1e-5) * w + b", "eps outside the root"),
    _expression(f"{CENTRED} * mx.rsqrt(mx.var(x, axis=-1, keepdims=True, ddof=1) + 1e-5)", "an unbiased variance"),
    _expression(
        "(x - mx.mean(x, axis=1, keepdims=True)) * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5)", "two axes"
    ),
    _expression(
        "(x + mx.mean(x, axis=-1, keepdims=True)) * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5)",
        "the mean is added",
    ),
    _expression(f"{CENTRED} * mx.rsqrt(mx.var(w, axis=-1, keepdims=True) + 1e-5)", "another array's variance"),
    _expression(
        "(x - mx.mean(x, axis=1, keepdims=True)) * mx.rsqrt(mx.var(x, axis=1, keepdims=True) + 1e-5)", "another axis"
    ),
    _expression(f"{CENTRED} * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)", "the second moment of x"),
    _expression(f"-{CENTRED} * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5)", "the negative"),
    Example(
        HEAD + "def levels(model, audio: mx.array):\n"
        "    mean = mx.mean(audio, axis=-1, keepdims=True)\n"
        "    audio = (audio - mean) / mx.sqrt(mx.var(audio, axis=-1, keepdims=True) + 1e-7)\n"
        "    return model(audio).tolist()\n",
        why="once for a whole input: the result goes to the host",
    ),
]
