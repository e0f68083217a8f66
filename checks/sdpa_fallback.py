"""FUS401 sdpa-falls-back: attention whose head dimension no fused kernel takes.

What it does: finds `mx.fast.scaled_dot_product_attention`, also in a helper that queries are handed to, where the head
dimension is known and Metal has no fused kernel of that size for many queries. It is known as a constant, by the
defaults of a configuration, or by the calls that make the layer, in any file of the package.

Why: MLX then runs the steps that attention stands for: the scores of all queries and keys are written to memory and
read back by the softmax and the second matmul. On Metal the kernels for many queries take head dimensions of 64, 72,
80, 96 and 128, those for up to 8 queries 64, 96, 128 and 256, and 192 with values of 128 (MLX 0.32).

Traffic: 6 passes over the scores, batch x heads x queries x keys, which the fused kernel keeps on chip.

When not to: where there are few queries and keys (silent where the package says that their scores are fewer than a
million, but with `--hot`), where the model runs on CUDA (multiples of 8 up to 128 are fused) or
on the CPU (nothing is), and under a gradient, where Metal never takes the fused kernel. Where two defaults of a
configuration divide to no multiple of 16, a checkpoint may well say another number: the finding is `possible` then. On
M5 causal attention of 256 is fused by default from 1,024 queries on.

Fix safety: none is made. Zeros behind the head dimension of queries, keys and values, up to the next size, leave the
result as it is but for zeros that are cut off again; the scale stays that of the original size. `force_fused=True`
(MLX 0.32.2) takes the kernels for 192 and 256, and raises where there is none: it is the assertion at run time. In
float32 those need more threadgroup memory than Apple's GPUs have.
MLX does not choose them, since its steps are faster there: what they spare is the memory of the scores. So where
queries and values are both as wide as such a kernel, the finding is silent, but with `--hot`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.callers import given_axes
from fuselint.graph.fact import Place
from fuselint.graph.flow import Run, run_at
from fuselint.graph.gates import Version, heads_taken
from fuselint.graph.heads import FORCED, MANY, Heads, of_operands, target_of, without_kernel
from fuselint.graph.known import KnownFacts
from fuselint.graph.likely import likely
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import Shape
from fuselint.rulebook import Example, Match
from fuselint.traffic import by_default

CODE, NAME = "FUS401", "sdpa-falls-back"

HEAD = "from dataclasses import dataclass\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

FUSED = "fast.scaled_dot_product_attention"

RANK = 4
FEW = 1 << 20
"""Scores of each of a batch that are a pass or two over what the padding copies."""

CAUSAL_ON_M5 = frozenset({256})
"""Those with a forced kernel that M5 takes by itself, for 1,024 causal queries or more in half precision."""


def unfused(q: Any, k: Any, v: Any, scale: float) -> Any:
    """q, k, v of shape (B, H, L, 120)."""
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)


def fused(q: Any, k: Any, v: Any, scale: float) -> Any:
    import mlx.core as mx

    q, k, v = (mx.pad(x, [(0, 0)] * 3 + [(0, 8)]) for x in (q, k, v))
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)[..., :-8]


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op in (FUSED, "call") and _runs(graph.facts, node):
            heads = without_kernel(graph, partial(_known, node=node), partial(_queries, node=node))
            if heads is not None:
                match = _match(node, heads, target_of(graph))
                match.data["few"] = _are_few(graph, node)
                yield match


def _are_few(graph: Graph, node: Node) -> bool:
    """Whether the package says that there are so few queries and keys that their scores are nothing."""
    given = given_axes(graph)
    numbers = {name: n for name, n in by_default(graph).items() if name not in given or given[name].every}
    runs = _runs(graph.usual, node)
    for run in runs:
        q, k = (likely(n, run.facts) for n in run.there.inputs[:2])
        if q is None or k is None or q.rank != k.rank or q.rank != RANK:
            return False
        sizes = [run.facts.usual(d.substitute(numbers))[0] for d in (q.dims[1], q.dims[2], k.dims[2])]
        if math.prod(n or FEW for n in sizes) >= FEW:
            return False
    return bool(runs)


def _runs(facts: KnownFacts, node: Node) -> list[Run]:
    return [r for r in run_at(facts, node, FUSED) if len(r.there.inputs) >= 3 and not r.there.attrs.get("force_fused")]


def _queries(facts: KnownFacts, node: Node) -> list[Shape | None]:
    return [run.facts.shape(run.there.inputs[0]) for run in _runs(facts, node)]


def _known(facts: KnownFacts, node: Node) -> Heads | None:
    """The head dimensions of all attention that a node runs, where they are known and the same. What a helper makes of
    values on a way of its own (of a quantised cache), it makes as wide as the others."""
    found = {of_operands(run.facts, run.there.inputs[:3]) for run in _runs(facts, node)}
    heads = {h for h in found if h is not None}
    if None in found or len({h.head for h in heads}) != 1:
        return None
    wide = any(h.wide for h in heads)
    told = {replace(h, wide=wide) for h in heads if h.values is not None} or heads
    return told.pop() if len(told) == 1 else None


def _match(node: Node, heads: Heads, target: Version) -> Match:
    many, few = (heads_taken(n, target) for n in (MANY, 1))
    what, which = ("prefill", " of many queries") if heads.is_fused(1, target) else ("attention", "")
    forced = heads.is_forced(target)
    unchosen = forced and heads.is_even  # there is a kernel that MLX doesn't choose
    claim = "no fused kernel takes it" + (" by default" if unchosen else "")
    lacking = f"no fused kernel{which} takes a head dimension of {heads.size}"
    if unchosen:
        lacking = f"MLX does not choose its fused kernel{which} for a head dimension of {heads.size}"
        lacking += ", but on M5 for causal ones" if heads.head in CAUSAL_ON_M5 else ""
    elif heads.wide and heads.largest in FORCED:
        lacking += " in float32"
    where = f" ({heads.owners})" if heads.is_likely else ""
    what = f"possible: {what}" if heads.is_odd_quotient else what
    related: list[tuple[Node | Place, str]] = [
        (r.place, f"{r.name} = {r.value} by default") for r in sorted(heads.rests, key=lambda r: (r.place.line, r.name))
    ]
    related += [(place, "makes the layer") for place in heads.calls]
    return Match(
        code=CODE,
        root=node,
        holes={},
        message=f"{what} falls back to its steps on Metal: {lacking}{where}",
        obligations=[
            Obligation(
                f"the head dimension is {heads.size}",
                "unknown" if heads.is_likely else "proven",
                heads.because if heads.is_likely else "it is a constant",
            ),
            Obligation(
                claim,
                "proven",
                f"for many queries there are {_listed(many)}, for few {_listed(few)}",
            ),
        ],
        region=frozenset({node}),
        numerics="reassociated",
        related=related,
        data={"heads": heads, "forced": forced, "slower": unchosen},
        has_traffic=False,
    )


def _listed(heads: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(heads)))


EXAMPLES = [
    Example(
        HEAD + "class Attention(nn.Module):\n"
        "    def __init__(self, dims: int, n_heads: int):\n"
        "        super().__init__()\n"
        "        self.n_heads = n_heads\n"
        "        self.query = nn.Linear(dims, n_heads * 120)\n\n"
        "    def __call__(self, x):\n"
        "        B, L, _ = x.shape\n"
        "        q = self.query(x).reshape(B, L, self.n_heads, 120).transpose(0, 2, 1, 3)\n"
        "        return mx.fast.scaled_dot_product_attention(q, q, q, scale=0.1)\n",
        applicability="none",
    ),
    Example(
        HEAD + "@dataclass\nclass Config:\n    width: int = 1408\n    heads: int = 16\n\n\n"
        "class Attention(nn.Module):\n"
        "    def __init__(self, config: Config):\n"
        "        super().__init__()\n"
        "        self.n_heads = config.heads\n"
        "        self.head_dim = config.width // config.heads\n"
        "        self.query = nn.Linear(config.width, config.width)\n\n"
        "    def __call__(self, x):\n"
        "        B, L, _ = x.shape\n"
        "        q = self.query(x).reshape(B, L, self.n_heads, self.head_dim).transpose(0, 2, 1, 3)\n"
        "        return mx.fast.scaled_dot_product_attention(q, q, q, scale=0.1)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, n: int):\n"
        "    B, L, D = q.shape\n"
        "    q, k, v = (x.reshape(B, L, n, 128).swapaxes(1, 2) for x in (q, k, v))\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1)\n",
        why="128 is fused",
    ),
    Example(
        HEAD + "def attend(q, k, v):\n    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1)\n",
        why="the head dimension is not known",
    ),
    Example(
        HEAD + "def attend(x, n: int):\n"
        "    B, L, D = x.shape\n"
        "    q = x.reshape(B, L, n, 256).swapaxes(1, 2)\n"
        "    return mx.fast.scaled_dot_product_attention(q, q, q, scale=0.1, force_fused=True)\n",
        why="force_fused takes the kernel or raises",
    ),
]
