"""FUS402 sdpa-mask-raises: a float32 mask for half-precision queries.

What it does: finds `mx.fast.scaled_dot_product_attention`, also in a helper, with an additive mask of a wider dtype
than that of the result: one built by `zeros`, `full`, `where` or `triu` without a dtype is float32, also where a
function of another file builds it.

Why: MLX takes a mask whose dtype promotes to that of the result, and raises "Mask type must promote to output type
bfloat16" for any other. Code that was tried in float32 fails when the model is loaded in half precision.

Traffic: none. It raises.

When not to: boolean masks are always taken, and are smaller; so is any mask where an operand is float32.

Fix safety: unsafe. `mask.astype(q.dtype)` makes the call run; a finite fill such as -1e9 is -inf in float16, which
makes a row that hides every position NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.dtypes import DType
from fuselint.graph.fact import Fact
from fuselint.graph.flow import Run, run_at
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Hole, Match, Synthesised

CODE, NAME = "FUS402", "sdpa-mask-raises"

HEAD = "import mlx.core as mx\n\n\n"

FUSED = "fast.scaled_dot_product_attention"

HALF = frozenset({"float16", "bfloat16"})


def unfused(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    """Raises where q, k and v are half-precision and the mask is float32."""
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


def fused(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask.astype(q.dtype))


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op in (FUSED, "call"):
            found = (_match(graph, run) for run in run_at(graph.facts, node, FUSED) if len(run.there.inputs) > 3)
            match = next(filter(None, found), None)
            if match is not None:
                yield match


def _match(graph: Graph, run: Run) -> Match | None:
    facts, node = run.facts, run.there
    q, k, v, mask = node.inputs[:4]
    given = _wider(facts.of(mask))
    if given is None:
        return None
    operands = [facts.dtype(n) for n in (q, k, v)]
    result = operands[0] | operands[1] | operands[2]
    name = result.name
    if name in HALF and name != given:
        verdict = Obligation("the result is of half precision", "proven", f"it is {name}")
    elif given == "float32" and _is_one_activation(graph, operands):
        verdict = Obligation("the model runs in float32", "unknown", f"queries, keys and values are {result}")
    else:
        return None
    direct = run.here is node
    when = f"a {name} result" if name else "half precision, as soon as the model runs in it"
    always = "" if facts.kind(mask) == "array" else "where there is a mask, "
    return Match(
        code=CODE,
        root=run.here,
        holes=_holes(node) if direct else {},
        message=f"attention raises: {always}its mask is {given}, which does not promote to {when}",
        obligations=[Obligation(f"the mask is {given}", "proven", facts.why(mask)), verdict],
        region=frozenset({run.here}),
        related=[(mask, f"the mask, {given}")],
        data={
            "plain": direct
            and len(node.inputs) == 4
            and facts.kind(mask) == "array"
            and not node.attrs.get("sinks")
            and not node.attrs.get("force_fused")
        },
        has_traffic=False,
    )


def _wider(mask: Fact) -> str | None:
    """The floating dtype of an additive mask; of one that may be None or "causal", where it is an array."""
    arrays = [f for f in (mask.options or (mask,)) if f.kind == "array"]
    names = {f.dtype.name for f in arrays}
    name = names.pop() if len(names) == 1 else None
    return name if name in ("float32", "float16", "bfloat16") else None


def _holes(node: Node) -> dict[str, Hole]:
    scale = node.attrs.get("scale")
    holes: dict[str, Hole] = dict(zip(("q", "k", "v", "mask"), node.inputs[:4], strict=True))
    holes["scale"] = scale if isinstance(scale, Node) else Synthesised(repr(scale))
    return holes


def _is_one_activation(graph: Graph, operands: list[DType]) -> bool:
    """Whether queries, keys and values have the dtype of one argument and of weights: half wherever the model is."""
    symbols = {s for d in operands for s in d}
    own = {s for s in symbols if s.startswith("self.")}
    arguments = {f"{name}.dtype" for name in graph.params}
    return len(symbols - own) == 1 and symbols - own <= arguments


EXAMPLES = [
    Example(
        HEAD + "def attend(q, n: int):\n"
        "    q = q.astype(mx.bfloat16)\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    out = mx.fast.scaled_dot_product_attention(q, q, q, scale=1.0, mask=mask)\n"
        "    return out\n",
        fixed=HEAD + "def attend(q, n: int):\n"
        "    q = q.astype(mx.bfloat16)\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    out = mx.fast.scaled_dot_product_attention(\n"
        "        q, q, q, scale=1.0, mask=mask.astype(q.dtype)\n"
        "    )\n"
        "    return out\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def attend(x, n: int):\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    return mx.fast.scaled_dot_product_attention(x, x, x, scale=0.125, mask=mask)\n",
        fixed=HEAD + "def attend(x, n: int):\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    return mx.fast.scaled_dot_product_attention(\n"
        "        x, x, x, scale=0.125, mask=mask.astype(x.dtype)\n"
        "    )\n",
        applicability="unsafe",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def attend(x, n: int):\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2).astype(x.dtype)\n"
        "    return mx.fast.scaled_dot_product_attention(x, x, x, scale=0.125, mask=mask)\n",
        why="the mask has the dtype of the queries",
    ),
    Example(
        HEAD + "def attend(x, n: int):\n"
        "    mask = mx.arange(n)[:, None] + 2 >= mx.arange(n)[None]\n"
        "    return mx.fast.scaled_dot_product_attention(x, x, x, scale=0.125, mask=mask)\n",
        why="a boolean mask is taken with any dtype",
    ),
    Example(
        HEAD + "def attend(x, n: int):\n"
        "    x = x.astype(mx.float32)\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    return mx.fast.scaled_dot_product_attention(x, x, x, scale=0.125, mask=mask)\n",
        why="the queries are float32",
    ),
    Example(
        HEAD + "def attend(q, k, v, n: int):\n"
        "    mask = mx.triu(mx.full((n, n), -1e9), k=2)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.125, mask=mask)\n",
        why="rotary embeddings may have made queries and keys float32 before",
    ),
]
