"""FUS103 quantize-dequantize-round-trip: values that are packed and unpacked again, or unpacked whole at every step.

What it does: finds `mx.dequantize` of what `mx.quantize` made in the same function; keys or values that are dequantized
on their way into `mx.fast.scaled_dot_product_attention`; and a cache that packs new rows, adds them to those it holds,
and returns all of them unpacked.

Why: the pair rounds the values and saves no memory. A packed cache that is dequantized whole loses its purpose: for
4,096 positions of 8 heads of 128 a step reads 2.4 MB packed, writes 8.4 MB and reads them again, for the keys and for
the values. The bytes of a finding are those of the dequantize kernel alone, at the number of keys `S`.

When not to: where the rounding is the purpose, in quantization-aware training and calibration: a pair whose result is
compared with the original (a difference, `stop_gradient`), or only returned, is not reported.

Fix safety: advice. Without the pair values differ by up to a tenth of the largest. Attention on packed keys and values
takes two `mx.quantized_matmul` and a softmax between them, which is slower for long prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.growth import branches
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS103", "quantize-dequantize-round-trip"

HEAD = "import mlx.core as mx\n\n\n"

COMPARES = frozenset({"subtract", "stop_gradient", "allclose"})
ATTENTION = "fast.scaled_dot_product_attention"


def unfused(x: Any) -> Any:
    import mlx.core as mx

    return mx.dequantize(*mx.quantize(x, group_size=64, bits=8), group_size=64, bits=8)


def fused(x: Any) -> Any:
    return x


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op != "dequantize" or node.frame.depth:
            continue
        packed = _packed_by(node)
        if packed is not None:
            if _is_used(graph, node):
                yield _pair(node, packed)
        elif _feeds_attention(graph, node):
            yield _whole(node, "packed keys or values are dequantized whole for attention", "as keys or values")
        elif _is_history(graph, node):
            yield _whole(node, "a packed cache is dequantized whole at every step", "it is returned to it")


def _packed_by(node: Node) -> Node | None:
    """The quantize call that made all operands."""
    sources = {n.inputs[0] if n.op in ("item", "star") and n.inputs else n for n in node.inputs}
    source = sources.pop() if len(sources) == 1 else None
    return source if source is not None and source.op == "quantize" else None


def _through_views(graph: Graph, node: Node) -> Iterator[Node]:
    """The readers of a value and of its views and casts."""
    stack, seen = [node], {node}
    while stack:
        for user in graph.users.get(stack.pop(), ()):
            if user in seen:
                continue
            seen.add(user)
            yield user
            op = TABLE.get(user.op)
            if user.op == "phi" or (op is not None and op.kind in ("view", "cast")):
                stack.append(user)


def _is_used(graph: Graph, node: Node) -> bool:
    """Whether the function computes with it, other than to measure the rounding; a helper that returns it rounds."""
    readers = list(_through_views(graph, node))
    computing = [u for u in readers if (op := TABLE.get(u.op)) is not None and op.kind not in ("view", "cast")]
    return bool(computing) and not any(u.op in COMPARES for u in readers)


def _feeds_attention(graph: Graph, node: Node) -> bool:
    """Whether attention reads it as keys or values."""
    seen = {node, *_through_views(graph, node)}
    return any(n.op == ATTENTION and any(k in seen for k in n.inputs[1:3]) for n in seen)


def _pair(node: Node, packed: Node) -> Match:
    x = packed.inputs[0]
    return Match(
        code=CODE,
        root=node,
        holes={"x": x},
        message="an array is quantized and dequantized again",
        obligations=[
            Obligation("one call packs what the other unpacks", "proven", "all operands are its results"),
            Obligation("the rounding is not the purpose", "unknown", "the code doesn't say"),
        ],
        region=frozenset({node, packed}),
        related=[(packed, "it is quantized")],
        data={"no_fix": "use the array itself, or keep it packed for mx.quantized_matmul: either changes the values"},
    )


def _is_history(graph: Graph, node: Node) -> bool:
    """Whether it unpacks what the object holds, to which the function adds rows that it packs."""
    changed = {e.path for e in graph.effects if e.kind == "store"}
    changed |= {t.attrs.get("path") for e in graph.effects if e.kind == "mutation" for t in e.targets}
    returned = {n for _, value in graph.returns for v in branches(value) for n in (v, *_elements(v))}
    return (
        node in returned
        and any(n.op == "quantize" for n in graph.nodes)
        and all(not changed.isdisjoint(_held(n)) for n in node.inputs)
    )


def _elements(value: Node) -> Sequence[Node]:
    return value.inputs if value.op in ("tuple", "list") else ()


HELD = frozenset({"concatenate", "index", "index_update", "opaque", "phi", "slice_update"})
"""What keeps rows: their first operand; a join keeps those of each."""


def _held(node: Node) -> set[str]:
    """The attributes that a value holds rows of."""
    out, stack, seen = set[str](), [node], set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op == "attr" and n.attrs.get("path"):
            out.add(n.attrs["path"])
        elif n.op in HELD:
            stack.extend(n.inputs if n.op == "phi" else n.inputs[:1])
    return out


def _whole(node: Node, message: str, reader: str) -> Match:
    packed = dict(zip(("packed", "scales", "biases"), node.inputs, strict=False))
    group, bits = node.attrs.get("group_size"), node.attrs.get("bits")
    known = isinstance(group, int) and isinstance(bits, int) and 32 % bits == 0
    last = {"packed": f"D//{32 // bits}"} if known else {}
    return Match(
        code=CODE,
        root=node,
        holes=dict(packed),
        message=message,
        obligations=[
            Obligation("attention reads the result", "proven", reader),
            Obligation("few queries attend at once", "unknown", "for long prompts dequantizing can be faster"),
        ],
        region=frozenset({node}),
        shapes={name: ("B", "G", "S", last.get(name, f"D//{group}")) for name in packed} if known else {},
        dtypes={"packed": "uint32"},
        data={"no_fix": "two mx.quantized_matmul with a softmax between them read the packed arrays"},
    )


CACHE = HEAD + "class Cache:\n    def __init__(self):\n        self.w = self.scales = self.biases = None\n\n"

EXAMPLES = [
    Example(
        HEAD + "def rounded(x: mx.array):\n"
        "    w, scales, biases = mx.quantize(x, group_size=64, bits=4)\n"
        "    return mx.dequantize(w, scales, biases, group_size=64, bits=4) * 2\n",
        applicability="none",
    ),
    Example(
        HEAD + "def attend(q: mx.array, k: mx.array, ks: mx.array, kb: mx.array, v: mx.array):\n"
        "    keys = mx.dequantize(k, ks, kb, group_size=64, bits=4)\n"
        "    return mx.fast.scaled_dot_product_attention(q, keys, v, scale=1.0)\n",
        applicability="none",
    ),
    Example(
        CACHE + "    def update(self, keys: mx.array):\n"
        "        packed = mx.quantize(keys, group_size=64, bits=4)\n"
        "        if self.w is None:\n"
        "            self.w, self.scales, self.biases = packed\n"
        "        else:\n"
        "            self.w = mx.concatenate([self.w, packed[0]], axis=2)\n"
        "            self.scales = mx.concatenate([self.scales, packed[1]], axis=2)\n"
        "            self.biases = mx.concatenate([self.biases, packed[2]], axis=2)\n"
        "        return mx.dequantize(self.w, self.scales, self.biases, group_size=64, bits=4)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        CACHE + "    def keys(self):\n"
        "        return mx.dequantize(self.w, self.scales, self.biases, group_size=64, bits=4)\n",
        why="nothing is added there: it may be read once",
    ),
    Example(
        CACHE + "    def update(self, keys: mx.array):\n"
        "        w, scales, biases = mx.quantize(keys, group_size=64, bits=4)\n"
        "        self.w = mx.concatenate([self.w, w], axis=2)\n"
        "        self.scales = mx.concatenate([self.scales, scales], axis=2)\n"
        "        self.biases = mx.concatenate([self.biases, biases], axis=2)\n"
        "        return self.w, self.scales, self.biases\n",
        why="it stays packed",
    ),
    Example(
        HEAD + "def straight_through(x: mx.array):\n"
        "    w, scales, biases = mx.quantize(x, group_size=64, bits=4)\n"
        "    rounded = mx.dequantize(w, scales, biases, group_size=64, bits=4)\n"
        "    return x + mx.stop_gradient(rounded - x)\n",
        why="training with rounded values",
    ),
    Example(
        HEAD + "def rounded(x: mx.array):\n    return mx.dequantize(*mx.quantize(x, bits=4), bits=4)\n",
        why="a helper whose purpose is the rounding",
    ),
    Example(
        HEAD + "def unpack(w: mx.array, scales: mx.array, biases: mx.array):\n"
        "    return mx.dequantize(w, scales, biases, group_size=64, bits=4)\n",
        why="nothing tells who reads the result",
    ),
]
