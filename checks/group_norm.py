"""FUS204 unfused-group-norm: a group or instance norm written out, instead of mx.fast.layer_norm over reshaped rows.

What it does: finds `(x - mean(x)) * rsqrt(var(x) + eps)` over the last two or three axes, as after
`x.reshape(B, G, C // G, H, W)`; over the axis before the last, as in an instance norm of [B, L, C]; or over both axes
of an image [B, H, W, C].

Why it is bad: the mean and the variance each read x, and so does each step after them, in kernels of their own.
The axes that a statistic runs over are one row once they are flattened, and mx.fast.layer_norm reads a row once.

Traffic: 24 bytes an element in half precision against 4 where the axes are the last ones; against 8 where they are
not, since the kernel copies rows that are not contiguous.

Fix safety: safe where the result is x's dtype: in float32 the same values, in half precision more accurate. Scale and
shift stay outside: they belong to channels, and the rows run over pixels.

When not to: where the rank is not known, and so which axes are meant; a norm over everything but the batch, of which
there are too few rows to keep a GPU busy; groups that are not contiguous, such as axes (1, 3) of [B, H * W, G, C // G],
where transposing costs what is saved. nn.GroupNorm by default groups channels by their remainder: another function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.norm_operands import (
    POLICIES,
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
    wide_operand,
)
from fuselint.graph.norms import Axes, readings, roots
from fuselint.graph.shapes import Shape
from fuselint.graph.worth import is_read_out
from fuselint.rulebook import Example, FusedKernel, Hole, Match
from fuselint.standing import is_value_of_its_call

CODE, NAME = "FUS204", "unfused-group-norm"
nearly = roots

SHORT = 16
"""Rows below this length are left alone."""


def unfused(x: Any, eps: Any) -> Any:
    import mlx.core as mx

    mean = mx.mean(x, axis=(-2, -1), keepdims=True)
    return (x - mean) * mx.rsqrt(mx.var(x, axis=(-2, -1), keepdims=True) + eps)


def fused(x: Any, eps: Any) -> Any:
    import mlx.core as mx

    return mx.fast.layer_norm(x.flatten(-2), None, None, eps).reshape(x.shape)


NORM = "{mx}.fast.layer_norm(%s, None, None, {eps})"

TRANSPOSED: dict[tuple[Axes, int | None], str] = {
    ((-2,), None): NORM % "{x}.swapaxes(-1, -2)" + ".swapaxes(-1, -2)",
    ((-3, -2), 4): f"{{mx}}.unflatten({NORM % '{x}.transpose(0, 3, 1, 2).flatten(-2)'}, -1, {{x}}.shape[1:3])"
    ".transpose(0, 2, 3, 1)",
}
"""Axes before the last, with the rank that it takes: they become the last one, and come back."""


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.context.shapeless:  # a shape would stay that of the first call
        return
    for best in best_matches(graph, "layer", _match):
        if is_value_of_its_call(graph, best.root):  # else it is the helper's own finding
            yield best


def _match(graph: Graph, chain: list[Node], *, wide: bool = False) -> Match | None:
    """wide: x with its cast to float32, so that a result that stays float32 keeps its dtype."""
    read, root = readings(graph, "layer"), chain[-1]
    norm = read[root]
    if norm is None or norm.rest or norm.bias is not None or (found := numerator(graph, root, norm)) is None:
        return None
    written, ratio = found
    x = narrow(graph, written)
    shape = graph.facts.shape(x)
    rows = None if shape is None else _as_rows(shape, norm.axes)
    eps = eps_hole(graph, root, graph.canonical.algebra.scale(norm.eps, ratio * ratio))
    if shape is None or rows is None or eps is None or graph.facts.dtype(x).integral:
        return None
    policy, cast = policy_of(graph, chain, read, x), False
    kept = dtype_stays(graph, root, (x,), eps)
    if wide:
        (x, cast), kept = wide_operand(graph, written, x), dtype_stays(graph, root, (written,), eps)
        if kept.verdict != "proven":
            return None
    holes: dict[str, Hole] = {"x": x, "eps": eps}
    owned = region(root, [n for h in holes.values() for n in held(h)])
    label = "llama" if policy == "float32" and kept.verdict == "proven" else policy
    numerics = numerics_of(graph, "none" if wide else policy, written if wide else x, kept)
    if is_read_out(graph, root):
        return None
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=f"hand-written norm over axes {_listed(norm.axes)}{POLICIES[label]}",
        obligations=[
            Obligation("the axes are one row of the reshaped array", "proven", f"axes {_listed(norm.axes)} of {shape}"),
            Obligation("the variance is x's own, and biased", "proven", "the mean of the squares of x - mean(x)"),
            is_number(graph, eps),
            kept,
        ],
        region=frozenset(owned),
        fused=_kernels(norm.axes, x, root),
        shapes={"x": _example(shape)},
        numerics=numerics,
        related=helpers(root, owned),
        data={"policy": policy, "keeps_dtype": kept.verdict == "proven", "cast": cast, "call": rows},
    )


def _as_rows(shape: Shape, axes: Axes) -> str | None:
    """The norm with the axes as the last one, as a template. None: they can't be, or the rows are too few or short."""
    known = [d.value() for d in (shape.axis(a) for a in axes) if d is not None]
    if len(known) == len(axes) and all(n is not None for n in known):
        length = 1
        for n in known:
            length *= n or 0
        if length < SHORT:
            return None
    if axes == tuple(range(-len(axes), 0)):
        if not 2 <= len(axes) <= 3 or shape.rank is None or shape.rank < len(axes) + 2:
            return None
        return NORM % f"{{x}}.flatten({-len(axes)})" + ".reshape({x}.shape)"
    return TRANSPOSED.get((axes, shape.rank)) or TRANSPOSED.get((axes, None))


def _kernels(axes: Axes, x: Node, root: Node) -> tuple[FusedKernel, ...]:
    norm = FusedKernel("fast.layer_norm", (x,), root)
    return (norm,) if axes[-1] == -1 else (FusedKernel("contiguous", (x,), x), norm)


def _listed(axes: Axes) -> str:
    return ", ".join(map(str, axes))


def _example(shape: Shape) -> tuple[str, ...]:
    """A shape for verification: known sizes as they are, the code's own names, and a letter for the others."""
    taken = {str(d) for d in shape.dims}
    letters = (n for n in "NGKLMPQR" if n not in taken)
    named: list[str] = []
    for d in shape.dims:
        known = d.value()
        named.append(str(known) if known is not None else str(d) if str(d).isidentifier() else next(letters))
    return (*(["..."] if shape.rank is None else []), *named) if named else ("...", "L", "C")


HEAD = "import mlx.core as mx\n\n\n"

EXAMPLES = [
    Example(
        HEAD
        + """def group_norm(x, groups, eps=1e-5):
    B, C, H, W = x.shape
    x = x.reshape(B, groups, C // groups, H, W)
    mean = mx.mean(x, axis=(2, 3, 4), keepdims=True)
    var = mx.var(x, axis=(2, 3, 4), keepdims=True)
    x = (x - mean) * mx.rsqrt(var + eps)
    return x.reshape(B, C, H, W)
""",
        HEAD
        + """def group_norm(x, groups, eps=1e-5):
    B, C, H, W = x.shape
    x = x.reshape(B, groups, C // groups, H, W)
    x = mx.fast.layer_norm(x.flatten(-3), None, None, eps).reshape(x.shape)
    return x.reshape(B, C, H, W)
""",
        why="channels first: a group is contiguous",
    ),
    Example(
        HEAD
        + """def instance_norm(x, scale, shift):
    mean = x.mean(-2, keepdims=True)
    var = x.var(-2, keepdims=True)
    y = (x - mean) / mx.sqrt(var + 1e-5)
    return y * scale + shift
""",
        HEAD
        + """def instance_norm(x, scale, shift):
    y = mx.fast.layer_norm(x.swapaxes(-1, -2), None, None, 1e-5).swapaxes(-1, -2)
    return y * scale + shift
""",
        why="over the length of [B, L, C]; scale and shift stay outside",
    ),
    Example(
        HEAD
        + """def instance_norm(x):
    B, H, W, C = x.shape
    mean = mx.mean(x, axis=(1, 2), keepdims=True)
    var = mx.mean((x - mean) ** 2, axis=(1, 2), keepdims=True)
    return (x - mean) * mx.rsqrt(var + 1e-5)
""",
        HEAD
        + """def instance_norm(x):
    B, H, W, C = x.shape
    return mx.unflatten(
        mx.fast.layer_norm(x.transpose(0, 3, 1, 2).flatten(-2), None, None, 1e-5),
        -1,
        x.shape[1:3],
    ).transpose(0, 2, 3, 1)
""",
        why="over the pixels of an image",
    ),
]


def _function(axes: str, why: str, shape: str = "B, H, W, C = x.shape") -> Example:
    body = f"""def f(x):
    {shape}
    mean = mx.mean(x, axis={axes}, keepdims=True)
    return (x - mean) * mx.rsqrt(mx.var(x, axis={axes}, keepdims=True) + 1e-5)
"""
    return Example(HEAD + body, why=why)


COUNTEREXAMPLES = [
    _function("-1", "the last axis: FUS202's"),
    _function("(1, 3)", "the axes are not next to each other"),
    _function("(1, 2, 3)", "one row a sample: too few rows"),
    _function("(1, 2)", "nothing says which axes are the last", "n = x.size"),
    _function("(2, 3)", "very short rows", "x = x.reshape(2, -1, 2, 3)"),
    Example(
        HEAD
        + """def f(x):
    B, C, H, W = x.shape
    mean = mx.mean(x, axis=(2, 3), keepdims=True)
    return (x - mean) * mx.rsqrt(mx.var(x, axis=(2, 3), keepdims=True, ddof=1) + 1e-5)
""",
        why="an unbiased variance",
    ),
    Example(
        HEAD
        + """def f(x):
    B, C, H, W = x.shape
    mean = mx.mean(x, axis=(2, 3), keepdims=True)
    return (x - mean) / (mx.std(x, axis=(2, 3), keepdims=True) + 1e-5)
""",
        why="eps outside the root",
    ),
]
