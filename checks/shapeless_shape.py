"""FUS405 shapeless-bakes-shape: what the first call's shape decides inside `mx.compile(..., shapeless=True)`.

What it does: finds functions compiled with `shapeless=True` in which a size of an argument becomes a number (`x.shape`,
`len(x)`, `x.size`), or an operation that MLX can't trace without shapes.

Why: a shapeless trace serves every later shape, so a size that Python read is a constant of the first call: later calls
with another shape compute with it, or read outside the array, and most say nothing. `arange`, `zeros`, `full`,
`reshape`, `tril` and `addmm` (so `nn.Linear` with a bias) take such constants. Slices, splits, padding and random
numbers have no shape rule: they raise at the first call.

Traffic: none. It is wrong, not slow.

When not to: where the size is the same at every call, plain `mx.compile` traces once as well and is safe.

Fix safety: none is made. Leave `shapeless=True` out where shapes are few; a reshape can keep sizes with -1,
`zeros_like` follows its argument, and a mean knows how many elements there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.compiling import compilations
from fuselint.graph.facts import MISSING
from fuselint.graph.model import Graph, Node, Slice, operands
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS405", "shapeless-bakes-shape"

HEAD = "from functools import partial\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

WITHOUT_SHAPE_RULE = {
    "split": "split", "pad": "pad", "roll": "roll", "topk": "topk", "median": "median", "nn.glu": "nn.glu",
    "random.normal": "a random number", "random.uniform": "a random number", "random.bernoulli": "a random number",
    "random.categorical": "a random number", "random.gumbel": "a random number",
}  # fmt: skip
"""Operations that raise "cannot infer output shapes" at the first call."""

BAKED = frozenset({"tril", "triu", "diagonal", "repeat", "tile"})
"""Operations that read sizes of their operand themselves."""

SIZES = frozenset({"dim", "size"})
COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
SCALARS = frozenset({"add", "subtract", "multiply", "divide", "floor_divide", "power", "negative", "remainder"})


def unfused(x: Any) -> Any:
    """The first call's number of columns at every call."""
    import mlx.core as mx

    return mx.compile(lambda a: a.sum(-1) / a.shape[-1], shapeless=True)(x)


def fused(x: Any) -> Any:
    import mlx.core as mx

    return mx.compile(lambda a: a.mean(-1), shapeless=True)(x)


def find(graph: Graph) -> Iterator[Match]:
    places = [c for c in compilations(graph) if c.shapeless]
    if not places:
        return
    found = [(n, *said) for n in graph.nodes if (said := _fault(graph, n)) is not None]
    if not found:
        return
    root, what, raises = found[0]
    later = "raises at the first call" if raises else "a call with another shape goes on with the first one's"
    yield Match(
        code=CODE,
        root=root,
        holes={},
        message=f"{what} under shapeless=True: {later}",
        obligations=[
            Obligation("the function is compiled with shapeless=True", "proven", f"in line {places[0].line}"),
            Obligation("its trace depends on a shape", "proven", what),
        ],
        region=frozenset({root}),
        related=[(n, text) for n, text, _ in found[1:]],
        data={"raises": raises},
        has_traffic=False,
    )


def _fault(graph: Graph, node: Node) -> tuple[str, bool] | None:
    """What a node takes from a shape, and whether that raises at once."""
    if node.op in WITHOUT_SHAPE_RULE:
        return f"{WITHOUT_SHAPE_RULE[node.op]} has no shape rule", True
    if node.op == "index" and graph.facts.kind(node.inputs[0]) == "array" and _slices(node.attrs.get("index")):
        return "a slice has no shape rule", True
    if node.op in BAKED and not _has_one_shape(graph, node.inputs[0]):
        return f"{node.op} reads its operand's shape", False
    if node.op == "addmm" or (node.op == "nn.Linear" and _has_bias(node)):
        name = "mx.addmm" if node.op == "addmm" else "nn.Linear with a bias"
        return f"{name} adds to an array of the first call's shape", False
    if _is_size(graph, node) and _is_used(graph, node):
        return f"{_text(node)} is a number of the first call", False
    if node.op == "shape" and any(_takes_whole(u, node) for u in graph.users.get(node, ())):
        return "a shape is a constant of the first call", False
    return None


def _has_bias(node: Node) -> bool:
    """Whether a layer has a bias, which it has unless it is made without."""
    new = node.attrs.get("new")
    given = new.attrs["args"].get("bias") if isinstance(new, Node) else None
    return given is None or (given.op == "const" and bool(given.attrs["value"]))


def _has_one_shape(graph: Graph, node: Node) -> bool:
    """Whether an array's shape is the same at every call: it is made of constants."""
    shape = graph.facts.shape(node)
    return shape is not None and shape.lead is None and all(d.value() is not None for d in shape.dims)


def _slices(index: Any) -> bool:
    """Whether an index cuts: a slice with an end, or a number behind the first axis."""
    entries = index if isinstance(index, tuple) else (index,)
    cut = [e for e in entries if isinstance(e, Slice) and not e.takes_all]
    numbers = [i for i, e in enumerate(entries) if isinstance(e, int) and not isinstance(e, bool)]
    return bool(cut) or (bool(numbers) and len(entries) > 1)


def _is_size(graph: Graph, node: Node) -> bool:
    """Whether a node is a size of an array that comes from outside, and not known."""
    is_length = node.op == "call" and node.attrs.get("target") == "builtins.len" and _is_array(graph, node.inputs)
    return (node.op in SIZES or is_length) and graph.facts.const(node) is MISSING


def _is_array(graph: Graph, inputs: tuple[Node, ...]) -> bool:
    return len(inputs) == 1 and graph.facts.kind(inputs[0]) == "array"


def _is_used(graph: Graph, node: Node) -> bool:
    """Whether a size reaches an operation on arrays, through arithmetic on numbers."""
    waiting, seen = [node], {node}
    while waiting:
        at = waiting.pop()
        for user in graph.users.get(at, ()):
            if user in seen:
                continue
            seen.add(user)
            counts_on = user.op in SCALARS and graph.facts.kind(user) == "scalar"
            if counts_on or user.op in ("tuple", "list") or (user.op == "phi" and at in user.inputs):
                waiting.append(user)
            elif not _only_decides(graph, user):
                return True
    return False


def _only_decides(graph: Graph, user: Node) -> bool:
    """Whether a reader of a size compares it, prints it, or hands it to a call that isn't understood."""
    if user.op in COMPARISONS:
        return all(graph.facts.kind(n) == "scalar" for n in user.inputs)
    if user.op == "call":
        return bool(user.attrs.get("target") != "builtins.range")
    return user.op in ("phi", "compare", "not", "and", "or", "opaque")


def _takes_whole(user: Node, shape: Node) -> bool:
    """Whether an op that makes an array takes a whole shape; a reshape to the shape that is there changes nothing."""
    made = user.op in ("zeros", "ones", "full", "broadcast_to", "eye")
    return made and any(o is shape for o in operands(user))


def _text(node: Node) -> str:
    if node.op == "dim":
        return f"shape[{node.attrs['axis']}]"
    return "size" if node.op == "size" else "len()"


EXAMPLES = [
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\ndef mean(x):\n    return x.sum(-1) / x.shape[-1]\n",
        applicability="none",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def positions(x):\n"
        "    B, L, D = x.shape\n"
        "    return x * mx.arange(L)[:, None]\n",
        applicability="none",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def gate(x: mx.array):\n"
        "    a, b = mx.split(x, 2, axis=-1)\n"
        "    return a * mx.sigmoid(b)\n",
        applicability="none",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\ndef project(x, w, b):\n    return nn.silu(mx.addmm(b, x, w))\n",
        applicability="none",
    ),
    Example(
        HEAD + "def causal(x):\n    return mx.tril(x) * 2\n\n\nmasked = mx.compile(causal, shapeless=True)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "@mx.compile\ndef mean(x):\n    return x.sum(-1) / x.shape[-1]\n",
        why="each shape has its own trace",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def norm(x, eps):\n"
        "    if x.ndim == 3:\n"
        "        x = x[:, None]\n"
        "    return (x - x.mean(-1, keepdims=True)).astype(x.dtype)\n",
        why="rank and dtype are part of what a trace is for",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def flat(x):\n"
        "    B, L, D = x.shape\n"
        "    return mx.zeros_like(x) + x.flatten(1)[..., None].reshape(-1, 2, 4) * mx.arange(4)\n",
        why="the sizes are not used",
    ),
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def masked(x):\n    return x * mx.tril(mx.ones((8, 8))) + mx.repeat(mx.array([1.0, 2.0]), 4)\n",
        why="constants have the same shape at every call",
    ),
]
