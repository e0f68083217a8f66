"""FUS401 sdpa-falls-back: attention whose head dimension no fused kernel takes.

What it does: finds `mx.fast.scaled_dot_product_attention` where the head dimension is known, as a constant or as the
default of a configuration in the same file, and Metal has no fused kernel of that size for many queries.

Why: MLX then runs the steps that attention stands for: the scores of all queries and keys are written to memory and
read back by the softmax and the second matmul. On Metal the kernels for many queries take head dimensions of 64, 72,
80, 96 and 128, those for up to 8 queries 64, 96, 128 and 256 (MLX 0.32).

Traffic: 6 passes over the scores, batch x heads x queries x keys, which the fused kernel keeps on chip.

When not to: where there are few queries and keys, where the model runs on CUDA (multiples of 8 up to 128 are fused) or
on the CPU (nothing is), and under a gradient, where Metal never takes the fused kernel.

Fix safety: none is made. Zeros behind the head dimension of queries, keys and values, up to the next size, leave the
result as it is but for zeros that are cut off again; the scale stays that of the original size. `force_fused=True`
(MLX 0.32.2) takes the kernels for 192 and 256, and raises where there is none: it is the assertion at run time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.facts import MISSING
from fuselint.graph.gates import NEWEST, attention_is_fused, heads_taken
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Match
from fuselint.source.project import MISSING as NO_DEFAULT

CODE, NAME = "FUS401", "sdpa-falls-back"

HEAD = "from dataclasses import dataclass\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

FUSED = "fast.scaled_dot_product_attention"

MANY = 64
"""Queries of a prompt: more than the kernel for decoding takes."""

FORCED = frozenset({192, 256})
"""Head dimensions whose kernel for many queries is only taken with force_fused=True."""


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
        if node.op == FUSED and len(node.inputs) >= 3 and not node.attrs.get("force_fused"):
            match = _match(graph, node)
            if match is not None:
                yield match


def _match(graph: Graph, node: Node) -> Match | None:
    sizes = _Sizes(graph)
    head, value_head = sizes.last(node.inputs[0]), sizes.last(node.inputs[2])
    target = NEWEST if graph.program is None else graph.program.target
    if head is None or value_head is None or attention_is_fused(head, value_head, MANY, version=target):
        return None
    queries = graph.facts.shape(node.inputs[0])
    length = queries.axis(-2) if queries is not None else None
    if length is not None and length.value() is not None and length.value() <= MANY:  # type: ignore[operator]
        return None
    many, few = (heads_taken(n, target) for n in (MANY, 1))
    size = str(head) if head == value_head else f"{head}, of values {value_head},"
    what = "prefill" if attention_is_fused(head, value_head, 1, version=target) else "attention"
    where = f" ({sizes.because})" if sizes.because else ""
    return Match(
        code=CODE,
        root=node,
        holes={},
        message=f"{what} falls back to its steps on Metal: no fused kernel takes a head dimension of {size}{where}",
        obligations=[
            Obligation(
                f"the head dimension is {size}",
                "unknown" if sizes.because else "proven",
                sizes.because or "it is a constant",
            ),
            Obligation(
                "no fused kernel takes it",
                "proven",
                f"for many queries there are {_listed(many)}, for few {_listed(few)}",
            ),
        ],
        region=frozenset({node}),
        data={"head": head, "value_head": value_head},
        has_traffic=False,
    )


def _listed(heads: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(heads)))


class _Sizes:
    """Sizes as numbers, where constants and the defaults of configurations say them. because: which default."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.because = ""

    def last(self, node: Node) -> int | None:
        shape = self.graph.facts.shape(node)
        size = shape.axis(-1) if shape is not None else None
        if size is None or size.value() is not None:
            return None if size is None else size.value()
        known = {}
        for n in self.graph.nodes:
            if n.op == "attr":
                name = self.graph.facts.size(n)
                if name is not None and name.names <= size.names and len(name.names) == 1:
                    value = self._value(n, 0)
                    if value is not None and str(name) in size.names:
                        known[str(name)] = value
        return size.substitute(known).value()

    def _value(self, node: Node, depth: int) -> int | None:
        """A number that `__init__` works out, with the configuration's defaults."""
        if depth > 16:
            return None
        if node.op == "const":
            value = node.attrs["value"]
            return value if isinstance(value, int) and not isinstance(value, bool) else None
        if node.op == "attr":
            init = node.attrs.get("init")
            return self._value(init, depth + 1) if isinstance(init, Node) else self._default(node)
        if node.op in ("floor_divide", "multiply") and len(node.inputs) == 2:
            left, right = (self._value(n, depth + 1) for n in node.inputs)
            if left is None or right is None or (node.op == "floor_divide" and not right):
                return None
            return left // right if node.op == "floor_divide" else left * right
        return None

    def _default(self, node: Node) -> int | None:
        """The default of a field of a configuration of this file."""
        base = node.inputs[0] if node.inputs else None
        if base is None or base.op != "param":
            return None
        held = self.graph.module.classes.get(base.attrs.get("annotation") or "")
        field = None if held is None else held.fields.get(node.attrs["name"])
        if held is None or field is None or field.default is NO_DEFAULT or field.default is MISSING:
            return None
        if not isinstance(field.default, int) or isinstance(field.default, bool):
            return None
        self.because = f"by the defaults of {held.name}"
        return field.default


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
