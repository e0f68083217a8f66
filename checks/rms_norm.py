"""FUS201 unfused-rms-norm: RMS normalisation written out, instead of mx.fast.rms_norm.

What it does: finds `x * rsqrt(mean(x^2) + eps)` over the last axis, with or without a weight, in any spelling: square,
power or product; mean or sum over length; rsqrt, division by a square root, power -0.5 or reciprocal; over several
statements, helpers and methods; with the casts of Llama (cast back, then the weight) or of Gemma (the weight, then
cast back).

Why it is bad: each operation is a kernel that reads its operand from DRAM and writes its result back. With a float32
copy of x that is 9 kernels and 18 times the bytes of x; mx.compile can't cross the mean, and still moves 12 times.
The fused kernel reads x once and writes the result once, and sums in float32 by itself, so no cast is needed.

Traffic: 36 bytes an element with float32 inside, 14 without, against 4 (half precision).

Fix safety: safe where the weight is multiplied after the cast back to x's dtype (bit-identical), or where everything
is in x's dtype (the fused kernel is more accurate: half precision can even overflow in the square, from a root mean
square of 4 at 4096 columns). Where the result stays float32, so does the cast before it, if there is one. Unsafe where
the weight is multiplied in float32 and the product is cast (Gemma's order): the fused kernel rounds before that
multiplication. `mx.fast.rms_norm(x, w.astype(mx.float32), eps).astype(x.dtype)` is bit-identical then, and saves half.
Unsafe where the result's dtype may change, and where nothing says that the weight has one axis.

When not to: eps outside the root, `x / max(norm, eps)`, another axis than the last, or an unbiased variance are other
functions, and are not reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import libcst as cst

from fuselint.finding import Numerics, Obligation
from fuselint.graph.canonical import Canonical
from fuselint.graph.dtypes import DType
from fuselint.graph.model import Graph, Node, operands, region
from fuselint.graph.ops import TABLE
from fuselint.graph.values import HALF, Value, close
from fuselint.rulebook import Example, FusedKernel, Hole, Match, Synthesised

CODE, NAME = "FUS201", "unfused-rms-norm"

FLOAT32 = DType({"float32"})


def unfused(x: Any, weight: Any, eps: Any) -> Any:
    import mlx.core as mx

    return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps) * weight


def fused(x: Any, weight: Any, eps: Any) -> Any:
    import mlx.core as mx

    return mx.fast.rms_norm(x, weight, eps)


@dataclass(frozen=True, slots=True)
class Norm:
    """A value read as x * (mean(x^2) + eps)^(-1/2) * rest. `length` is what a sum was divided by, if not x's own."""

    x: Value
    eps: Value
    rest: tuple[tuple[Value, Fraction], ...]
    length: Value | None = None

    def same(self, other: Norm | None) -> bool:
        return other is not None and (self.x, self.eps, self.length) == (other.x, other.eps, other.length)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    read = {n: _read(graph.canonical, graph.canonical.of(n)) for n in graph.nodes}
    for node, norm in read.items():
        if norm is None or any(norm.same(read[i]) for i in node.inputs if i in read):
            continue
        chain, roots = [node], [node]
        while (above := _readers(graph, chain[-1])) and all(norm.same(read[n]) for n in above):
            chain += above
            if above[-1].op != "phi" or isinstance(above[-1].cst, cst.IfExp):  # a join of statements is no expression
                roots.append(above[-1])
        heads = {n: chain[: chain.index(n) + 1] for n in roots}
        found = [m for head in heads.values() if (m := _match(graph, head, read)) is not None]
        if found:
            best = max(found, key=lambda m: (m.data["keeps_dtype"], m.root.id))
            if best.data["policy"] == "float32" and not best.data["keeps_dtype"]:
                best = _match(graph, heads[best.root], read, wide=True) or best
            yield best


def _readers(graph: Graph, node: Node) -> list[Node]:
    """The one reader of a value, or both of `y * w if w is not None else y`; nothing where others read it too."""
    readers = graph.users.get(node, ())
    if node in graph.escaping or not 0 < len(readers) <= 2:
        return []
    first, join = readers[0], readers[-1]
    if join is first or (join.op == "phi" and set(join.inputs) == {node, first} and graph.users.get(first) == (join,)):
        return list(readers)
    return []


# -- the value ---------------------------------------------------------------------------------------------------------


def _read(c: Canonical, value: Value) -> Norm | None:
    for base, e in value.factors:
        if e == -HALF and (norm := _with_root(c, value, base)) is not None:
            return norm
    for supposed, length in _supposing(c, value):
        norm = _read(c, supposed)
        if norm is not None and norm.length is None:
            return replace(norm, length=length)
    return None


def _supposing(c: Canonical, value: Value) -> Iterator[tuple[Value, Value]]:
    """The value with sum / n as a mean, and n: for numbers that may be the length of the axis, as `self.dims` is."""
    for base, e in value.factors:
        if e != -HALF:
            continue
        if base.op == "reduce_sum":
            for n in [b for b, k in value.factors if b.scalar and k == HALF]:
                yield _replaced(c, c.algebra.divide(value, c.algebra.power(n, HALF)), base, _as_mean(c, base)), n
        for m, k in base.terms:
            total = [b for b, _ in m.factors if b.op == "reduce_sum"]
            below = [b for b, x in m.factors if b.scalar and x == -1]
            number = base.op == "sum" and len(m.factors) == 1 and k > 0
            if len(total) != 1 or not (number or (len(below) == 1 and len(m.factors) == 2)):
                continue
            n = c.algebra.number(1 / k) if number else below[0]
            others = [(t, q) for t, q in base.terms if t is not m]
            root = c.algebra.sum(base.constant, [*others, (_as_mean(c, total[0]), 1.0 if number else k)])
            yield _replaced(c, value, base, root), n


def _as_mean(c: Canonical, total: Value) -> Value:
    return c.algebra.atom("mean", total.args, total.params, nonnegative=total.nonnegative)


def _replaced(c: Canonical, value: Value, old: Value, new: Value) -> Value:
    return c.algebra.product(value.coefficient, [(new if b is old and e == -HALF else b, e) for b, e in value.factors])


def _with_root(c: Canonical, value: Value, root: Value) -> Norm | None:
    """value as a norm whose root is of `root` = mean(x^2) + eps."""
    means = [(m, k) for m, k in root.terms if m.op == "mean" and m.param("axes") == (-1,)]
    if len(means) != 1:
        return None
    mean, k = means[0]
    others = [(m, q) for m, q in root.terms if m is not mean]
    if k <= 0 or not all(_may_be_number(c, m) for m, _ in others):
        return None
    square = mean.args[0]
    if (
        square.coefficient != 1.0
        or any(e.denominator != 1 or e.numerator % 2 for _, e in square.factors)
        or not square.factors
    ):
        return None
    x = c.algebra.product(1.0, [(b, e / 2) for b, e in square.factors])
    if _is_centred(x):
        return None
    eps = c.algebra.sum(root.constant / k, [(m, q / k) for m, q in others])
    if eps.number is not None and eps.number < 0:
        return None
    core = c.algebra.multiply(x, c.algebra.power(c.algebra.add(mean, eps), -HALF))
    if not close(value.coefficient, core.coefficient, 1e-9):
        return None
    left = {(b, e > 0): e for b, e in value.factors}
    for b, e in core.factors:
        have = left.get((b, e > 0), Fraction(0))
        if abs(have) < abs(e):
            return None
        left[(b, e > 0)] = have - e
    return Norm(x, eps, tuple((b, e) for (b, _), e in left.items() if e))


def _may_be_number(c: Canonical, value: Value) -> bool:
    """eps: a Python number, or a name that nothing is known of."""
    return value.scalar or any(
        c.facts.kind(n) == "unknown" and n.op in ("param", "attr", "global", "phi") for n in c.nodes(value)[:1]
    )


def _is_centred(x: Value) -> bool:
    """x - mean(x): a layer norm, which has a rule of its own."""
    return x.op == "sum" and any(m.op == "mean" for m, _ in x.terms)


# -- the operands ------------------------------------------------------------------------------------------------------


def _match(graph: Graph, chain: list[Node], read: dict[Node, Norm | None], *, wide: bool = False) -> Match | None:
    """wide: x with its cast to float32, so that a result that stays float32 keeps its dtype."""
    c, facts, root = graph.canonical, graph.facts, chain[-1]
    norm = read[root]
    assert norm is not None
    found = _numerator(graph, root, norm.x)
    if found is None:
        return None
    written, ratio = found
    x = _narrow(graph, written)
    weight = _weight(graph, root, norm, x)
    eps = _eps(graph, root, c.algebra.scale(norm.eps, ratio * ratio))
    if weight is None or eps is None or facts.dtype(x).integral:
        return None
    length = _length(graph, norm.length, weight)
    if length is not None and length.verdict == "contradicted":
        return None
    policy = _policy(graph, chain, read, x)
    kept = _dtype_stays(graph, root, x, weight, eps)
    if wide:
        x, kept = written, _dtype_stays(graph, root, written, weight, eps)
        if kept.verdict != "proven":
            return None
    holes: dict[str, Hole] = {"x": x}
    if weight.hole is not None:
        holes["weight"] = weight.hole
    holes["eps"] = eps
    owned = region(root, [n for h in holes.values() for n in _held(h)])
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
            _number(graph, eps),
            *weight.obligations,
            kept,
        ],
        region=frozenset(owned),
        fused=(FusedKernel("fast.rms_norm", reads, root),),
        shapes={"x": ("...", "D"), **({"weight": ("D",)} if weight.hole is not None else {})},
        scalars={norm.length: "D"} if norm.length is not None and norm.length.number is None else {},
        dtypes={"weight": "weight"} if weight.hole is not None else {},
        numerics=_numerics(graph, owned, "none" if wide else policy, x, kept),
        related=_helpers(root, owned),
        data={"policy": policy, "keeps_dtype": kept.verdict == "proven"},
    )


def _length(graph: Graph, n: Value | None, weight: Weight) -> Obligation | None:
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
    if n.op == "size" or not named or (isinstance(origin, Node) and origin.op not in ("attr", "param")):
        return Obligation(claim, "contradicted", f"it is divided by {n}")
    return Obligation(claim, "unknown", f"it is divided by {n}")


def _held(hole: Hole) -> Iterable[Node]:
    return hole.operands.values() if isinstance(hole, Synthesised) else (hole,)


def _numerator(graph: Graph, root: Node, x: Value) -> tuple[Node, float] | None:
    """The value as written that is scaled, and what it is of x: c * x."""

    def ratio(node: Node) -> float | None:
        v = graph.canonical.of(node)
        one = v.factors == x.factors and v.coefficient > 0 and x.coefficient > 0
        return v.coefficient / x.coefficient if one else None

    stack, seen = [root], set[Node]()
    while stack:
        n = stack.pop()
        r = ratio(n)
        if r is not None:
            return n, r
        if n in seen or n.op not in ("multiply", "divide", "astype"):
            continue
        seen.add(n)
        stack.extend(reversed(n.inputs[:1] if n.op in ("divide", "astype") else n.inputs))
    for n in reversed(region(root, ())):  # x * (mask * r): only the square holds x * mask
        if (r := ratio(n)) is not None and graph.facts.kind(n) in ("array", "unknown"):
            return n, r
    return None


def _narrow(graph: Graph, node: Node) -> Node:
    """The value before casts to float32 and casts to its own dtype: the fused kernel computes in float32 anyway."""
    while node.op == "astype":
        inner, to = graph.facts.dtype(node.inputs[0]), graph.facts.dtype(node)
        if inner.integral or not (to == inner or (to == FLOAT32 and "float64" not in inner)):
            break
        node = node.inputs[0]
    return node


def _eps(graph: Graph, root: Node, value: Value) -> Hole | None:
    if value.is_number(0.0):
        return Synthesised("0.0")
    inside = [n for n in region(root, ()) if graph.canonical.of(n) is value]
    if inside:
        return min(inside, key=lambda n: (n.frame.depth, n.op == "astype", n.id))
    return graph.canonical.as_hole(value)


def _number(graph: Graph, eps: Hole) -> Obligation:
    claim = "eps is a Python number, inside the root"
    if isinstance(eps, Synthesised) or graph.facts.kind(eps) == "scalar":
        return Obligation(claim, "proven", "it is added to the mean")
    if eps.op == "attr" and graph.facts.kind(eps) == "unknown":
        return Obligation(
            claim, "proven", f"{eps.attrs.get('path')} (assumed: a module's or configuration's own number)"
        )
    return Obligation(claim, "unknown", graph.facts.why(eps))


# -- the weight --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Weight:
    hole: Hole | None
    nodes: tuple[Node, ...]
    obligations: tuple[Obligation, ...] = ()


def _weight(graph: Graph, root: Node, norm: Norm, x: Node) -> Weight | None:
    """The operands beside the norm as one weight of one axis. None: something among them isn't a weight."""
    if not norm.rest:
        return Weight(None, ())
    c = graph.canonical
    whole = c.algebra.product(1.0, norm.rest)
    if whole.op == "optional" and whole.args[0] is whole.param("by"):  # None is a weight too
        whole = whole.args[0]
    nodes = [n for n in region(root, [x]) if c.of(n) is whole]
    if nodes:
        node = _narrow(graph, nodes[-1])
        claim = _is_weight(graph, node, x)
        return None if claim is None else Weight(node, (node,), (claim,))
    parts: list[Node] = []
    claims: list[Obligation] = []
    for base, e in norm.rest:
        held = [n for n in region(root, [x]) if c.of(n) is base]
        claim = _is_weight(graph, held[-1], x) if held and e == 1 else None
        if claim is None:
            return None
        parts.append(_narrow(graph, held[-1]))
        claims.append(claim)
    if sum(k.verdict == "unknown" for k in claims) > 1:  # one bare parameter may be the weight, two hardly are
        return None
    names = [f"weight{i}" for i in range(len(parts))]
    product = Synthesised(" * ".join(f"{{{n}}}" for n in names), dict(zip(names, parts, strict=True)))
    return Weight(product, tuple(parts), tuple(claims))


def _is_weight(graph: Graph, node: Node, x: Node) -> Obligation | None:
    """Whether a value may be a weight of one axis: not if it is computed from activations, or has another rank."""
    facts = graph.facts
    claim = "the weight has one axis, as long as x's last"
    leaves = _leaves(node)
    if leaves is None or facts.kind(node) not in ("array", "unknown"):
        return None
    if any(n.op == "param" for n in leaves if n in region(x, ())):
        return None
    shape = facts.shape(node)
    if shape is not None:
        if shape.rank == 1:
            return Obligation(claim, "proven", facts.why(node))
        if shape.rank is not None or len(shape.dims) > 1:
            return None
    if sum(n.op == "param" for n in leaves) > 1:
        return None
    return Obligation(claim, "unknown", facts.why(node))


def _leaves(node: Node) -> list[Node] | None:
    """The parameters and attributes that a value is made of, where that takes arithmetic only."""
    out: list[Node] = []
    stack, seen = [node], set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op in ("param", "attr", "global"):
            out.append(n)
        elif n.op not in ("const", "dtype"):
            op = TABLE.get(n.op)
            if op is None or op.kind not in ("cast", "unary", "binary", "create"):
                return None
            stack.extend(operands(n))
    return out


# -- dtypes ------------------------------------------------------------------------------------------------------------

POLICIES = {
    "none": "",
    "llama": ", in float32",
    "gemma": ", in float32, with the weight",
    "float32": ", in float32, and not cast back",
}


def _policy(graph: Graph, chain: list[Node], read: dict[Node, Norm | None], x: Node) -> str:
    """Where float32 was written: nowhere, around the norm, around norm and weight, or to the end."""
    facts = graph.facts
    if facts.dtype(x) == FLOAT32 or facts.dtype(chain[0]) != FLOAT32:
        return "none"
    weighted = next((i for i, n in enumerate(chain) if (norm := read[n]) is not None and norm.rest), None)
    if weighted is not None and (weighted == 0 or facts.dtype(chain[weighted - 1]) == FLOAT32):
        return "float32" if facts.dtype(chain[-1]) == FLOAT32 else "gemma"
    before = chain if weighted is None else chain[:weighted]
    return "float32" if facts.dtype(before[-1]) == FLOAT32 else "llama"


def _dtype_stays(graph: Graph, root: Node, x: Node, weight: Weight, eps: Hole) -> Obligation:
    made, written = graph.facts.dtype(x), graph.facts.dtype(root)
    if isinstance(eps, Node) and graph.facts.kind(eps) == "unknown" and _number(graph, eps).verdict == "proven":
        written = DType(written - graph.facts.dtype(eps))
    for n in weight.nodes:
        made = made | graph.facts.dtype(n)
    if root.op == "phi" and graph.canonical.of(root) is not graph.canonical.of(root.inputs[0]):  # an optional weight
        written = max((graph.facts.dtype(n) for n in root.inputs), key=len)
        if any(not graph.facts.dtype(n) <= written for n in root.inputs):
            written = DType()
    if written and written == made:
        return Obligation("the result keeps its dtype", "proven", f"{written} before and after")
    return Obligation("the result keeps its dtype", "unknown", f"{written} as written, {made} from the fused kernel")


EXACT = frozenset(
    {"astype", "multiply", "square", "mean", "add", "rsqrt", "const", "attr", "param", "dtype", "phi", "compare"}
)
"""The operations that mx.fast.rms_norm itself consists of: with these only, float32 arithmetic agrees to the bit."""


def _numerics(graph: Graph, owned: Iterable[Node], policy: str, x: Node, kept: Obligation) -> Numerics:
    if policy == "gemma":
        return "less accurate"
    if kept.verdict != "proven":
        return "different dtype"
    if policy == "none" and graph.facts.dtype(x) != FLOAT32:
        return "more accurate"
    return "bit-identical" if all(n.op in EXACT for n in owned) else "reassociated"


def _helpers(root: Node, owned: Iterable[Node]) -> list[tuple[Node, str]]:
    """The helpers that hold a part of it."""
    found: dict[str, Node] = {}
    for n in owned:
        if n.frame is not root.frame and n.cst is not None:
            found.setdefault(n.frame.qualname, n)
    return [(n, f"with `{name.rsplit('.', 1)[-1]}`") for name, n in found.items()]


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
        why="the weight is multiplied after the cast back: bit-identical",
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
