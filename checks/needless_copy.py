"""FUS106 needless-copy: an array that is written and read again only to hold zeros, or the values of another one.

What it does: finds `mx.where(m, x, mx.zeros_like(x))` and `mx.maximum(x, mx.zeros_like(x))`, where a Python zero does
the same; `x[0]`, which gathers and so copies, where `x[0, ...]` is a view; and a cast to float32 that is cast back at
once, `x.astype(mx.float32).astype(x.dtype)`.

Why: an array of zeros is written to memory, and read back by the operation that takes it. `mx.compile` does not remove
it. A cast to a wider dtype and back writes the array twice.

Traffic: one launch and two passes over an activation less for the zeros; two launches and 12 bytes an element less for
the casts (half precision).

When not to: where the zeros are read elsewhere too, which then are written anyway, or have another dtype or shape than
the operand. A method that makes the input of a prompt or an image runs once, and its zeros stay. Casts to a narrower
dtype and back round, and stay. A view keeps the whole array alive, so `x[0]` is left where the entry is returned,
stored or handed on, and so it is where a reshape would copy the view. Shapeless compiled code accepts a gather and
refuses a slice.

Fix safety: safe. The same bits: a Python zero takes the dtype of the array, and widening loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import libcst as cst

from fuselint.finding import Obligation
from fuselint.graph.dtypes import HALF
from fuselint.graph.facts import FITS
from fuselint.graph.model import PROPERTIES, Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.trace import trace
from fuselint.rulebook import Example, FusedKernel, Hole, Match
from fuselint.traffic.kernels import launches

CODE, NAME = "FUS106", "needless-copy"

HEAD = "import mlx.core as mx\n\n\n"

WITH_ZEROS = {"where": (1, 2), "maximum": (0, 1), "minimum": (0, 1)}
"""Operations, and their operands of which one may be zeros."""


# An operation of these kinds makes an array of its own from its operands.
COMPUTES = frozenset(
    {"unary", "binary", "ternary", "composite", "activation", "reduce", "rowwise", "matmul", "conv", "fast"}
)


def unfused(m: Any, x: Any) -> Any:
    import mlx.core as mx

    return mx.where(m, x, mx.zeros_like(x))


def fused(m: Any, x: Any) -> Any:
    import mlx.core as mx

    return mx.where(m, x, 0)


LOOKING = frozenset({"index", "take", "take_along_axis"})


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        entry = n.op in ("index", "item") and n.attrs.get("index") in ((0,), (-1,), 0, -1)
        if n.op == "zeros_like" or (entry and graph.facts.kind(n.inputs[0]) == "array"):
            yield n


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        match = _zeros(graph, node)
        match = match or _there_and_back(graph, node)
        if match is not None:
            yield match
    yield from _rows(graph)


def _read_once(graph: Graph, node: Node) -> bool:
    readers = [u for u in graph.users.get(node, ()) if u.op not in PROPERTIES]
    return len(readers) == 1 and node not in graph.escaping


def _zeros(graph: Graph, root: Node) -> Match | None:
    """where(m, x, zeros_like(x)): the zeros are those of the other operand, and nothing else reads them."""
    if root.op not in WITH_ZEROS:
        return None
    pair = [root.inputs[i] for i in WITH_ZEROS[root.op]]
    for zeros, x in (pair, pair[::-1]):
        if zeros.op != "zeros_like" or not zeros.inputs or graph.facts.kind(x) != "array":
            continue
        if zeros.attrs.get("dtype") is not None or not _alike(graph, zeros.inputs[0], x):
            continue
        dtype = graph.facts.dtype(x)
        if dtype.name == "bool_" or not dtype.floating or not _read_once(graph, zeros):
            continue
        if _is_looked_up(graph, root) or _is_told_apart(graph, root.inputs[0], x):
            continue  # positions, counts and tokens are small
        holes: dict[str, Hole] = {"x": x}
        if zeros.inputs[0] is not x:
            holes["alike"] = zeros.inputs[0]  # which the new code doesn't read
        reads = [x]
        given = "{x}, 0" if pair[0] is x else "0, {x}"
        if root.op == "where":
            holes["m"] = root.inputs[0]
            reads.insert(0, root.inputs[0])
            given = f"{{m}}, {given}"
        return Match(
            code=CODE,
            root=root,
            holes=holes,
            message="an array of zeros is written and read again, where the number 0 does",
            obligations=[
                Obligation("the zeros have the shape and dtype of the other operand", "proven", "zeros_like of it"),
                Obligation("nothing else reads the zeros", "proven", f"only mx.{root.op}"),
            ],
            region=frozenset({root, zeros}),
            fused=(FusedKernel(root.op, tuple(reads), root),),
            shapes={"x": ("...", "D"), "m": ("...", "D"), "alike": ("...", "D")},
            dtypes={"m": "bool"},
            data={"parts": ((root, f"{{mx}}.{root.op}({given})"),)},
        )
    return None


def _is_told_apart(graph: Graph, condition: Node, x: Node) -> bool:
    """Whether x itself is compared with a whole number, or with a name of which nothing is known: `x == mask_id`."""
    if condition.op not in ("equal", "not_equal") or x not in condition.inputs:
        return False
    other = next(n for n in condition.inputs if n is not x)
    return isinstance(graph.facts.const(other), int) or (
        other.op in ("param", "attr") and graph.facts.kind(other) != "array"
    )


def _is_looked_up(graph: Graph, node: Node) -> bool:
    """Whether something is read at its entries, as it is or in another view: they are tokens, or places."""
    for r in graph.users.get(node, ()):
        op = TABLE.get(r.op)
        if r.op in ("nn.Embedding", "nn.QuantizedEmbedding") or (r.op in LOOKING and node in r.inputs[1:]):
            return True
        is_view = r.op == "index" or (op is not None and op.kind == "view")
        if is_view and r.inputs[0] is node and _is_looked_up(graph, r):
            return True
    return False


def _alike(graph: Graph, a: Node, b: Node) -> bool:
    """Whether two arrays are one, or are known to have the same shape and dtype."""
    if a is b:
        return True
    first, second = graph.facts.of(a), graph.facts.of(b)
    if FITS in first.assumed | second.assumed or first.shape is None or not first.dtype:
        return False
    return first.shape == second.shape and first.dtype == second.dtype


AXES = {2: ("L", "D"), 3: ("B", "L", "D"), 4: ("B", "H", "L", "D"), 5: ("N", "B", "H", "L", "D")}
"""What the axes of an array are called, by its rank."""


def _rows(graph: Graph) -> Iterator[Match]:
    """x[0]: MLX gathers one entry of the first axis, and copies it. `x[0, ...]` is a view.

    `q, k, v = qkv[0], qkv[1], qkv[2]` is one finding.
    """
    found: dict[Node, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        at = _single_index(graph, node)
        if at is not None and _spares_a_copy(graph, node, at):
            found.setdefault(node.inputs[0], []).append((node, at))
    for x, entries in found.items():
        first, *others = [node for node, _ in entries]
        rank = graph.facts.rank(x) or 0
        axes = AXES.get(rank) or (*(f"A{i}" for i in range(rank - 4)), *AXES[4])
        yield Match(
            code=CODE,
            root=first,
            holes={"x": x},
            message="ints as the only indices gather, which copies the entries"
            if others
            else "an int as the only index gathers, which copies the entry",
            obligations=[
                Obligation("the array has two axes or more", "proven", graph.facts.why(x)),
                Obligation("the view does not outlive the function", "proven", "it is only computed with"),
            ],
            region=frozenset({first, *others}),
            also=tuple(others),
            related=[(n, "and here") for n in others],
            shapes={"x": (_length(graph, x, entries), *axes[1:])},
            data={"parts": tuple((node, f"{{x}}[{at}, ...]") for node, at in entries)},
        )


def _length(graph: Graph, x: Node, entries: Sequence[tuple[Node, int]]) -> str:
    """The size of the first axis, or one that has the entries."""
    shape = graph.facts.shape(x)
    size = None if shape is None else shape.axis(0)
    known = None if size is None else size.value()
    return str(known or max(at + 1 if at >= 0 else -at for _, at in entries))


def _single_index(graph: Graph, node: Node) -> int | None:
    """The int of `x[int]` that may be a view."""
    if node.op not in ("index", "item") or len(node.inputs) != 1 or not isinstance(node.cst, cst.Subscript):
        return None
    if node.stmt is not None and isinstance(node.stmt.cst, cst.AugAssign) and node.stmt.cst.target is node.cst:
        return None  # it is assigned to
    x, index = node.inputs[0], node.attrs.get("index")
    at = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    rank = graph.facts.rank(x)
    if type(at) is not int or graph.facts.kind(x) != "array" or rank is None or rank < 2:
        return None
    if graph.context.shapeless or node.frame.depth or node in graph.escaping or not _is_used_up(graph, node):
        return None
    return at


def _spares_a_copy(graph: Graph, entry: Node, at: int) -> bool:
    """Whether the copy is gone for good: a reshape of a view may take one where that of a copy takes none."""
    nodes = {entry}
    source = entry.inputs[0]
    while _is_view(source) and len(source.inputs) == 1:
        nodes.add(source)
        source = source.inputs[0]
    stack = [entry]
    while stack:
        readers = [r for r in graph.users.get(stack.pop(), ()) if _is_view(r) and r not in nodes]
        nodes.update(readers)
        stack.extend(readers)
    view = replace(entry, op="index", attrs={**entry.attrs, "index": (at, Ellipsis)})
    now, then = (launches(trace(nodes, graph.facts, eager=True, instead=i)) for i in ({}, {entry: view}))
    return len(then) < len(now)


def _is_view(node: Node) -> bool:
    op = TABLE.get(node.op)
    return op is not None and op.kind == "view"


def _is_used_up(graph: Graph, node: Node) -> bool:
    """Whether every reader makes an array of its own: a view of the entry would keep the whole alive."""
    stack, read = [node], False
    while stack:
        n = stack.pop()
        if n in graph.escaping:
            return False
        for user in graph.users.get(n, ()):
            op = TABLE.get(user.op)
            if op is not None and op.kind == "view":
                stack.append(user)
            elif op is not None and op.kind in COMPUTES:
                read = True
            elif user.op not in PROPERTIES:
                return False
    return read


def _there_and_back(graph: Graph, root: Node) -> Match | None:
    """x.astype(float32).astype(x.dtype)."""
    if root.op != "astype" or root.inputs[0].op != "astype" or not _read_once(graph, root.inputs[0]):
        return None
    wide = root.inputs[0]
    x = wide.inputs[0]
    narrow, between, back = (graph.facts.dtype(n) for n in (x, wide, root))
    if graph.facts.kind(x) != "array" or not narrow or narrow != back or between.name != "float32":
        return None
    if narrow.name not in HALF and narrow.symbols != narrow:
        return None
    if root in graph.escaping or not _is_used_up(graph, root):
        return None  # the array itself, and no copy: what is changed in place later would change it
    return Match(
        code=CODE,
        root=root,
        holes={"x": x},
        message="a cast to float32 and back at once is the array itself",
        obligations=[
            Obligation("the cast back is to the dtype that the array has", "proven", graph.facts.why(x)),
            Obligation("the cast widens", "proven", "activations are no wider than float32"),
        ],
        region=frozenset({root, wide}),
        shapes={"x": ("...", "D")},
        data={"parts": ((root, "{x}"),)},
    )


def _example(expression: str, arguments: str = "m: mx.array, x: mx.array") -> str:
    return HEAD + f"def f({arguments}):\n    return {expression}\n"


def _entry(result: str, entry: str) -> str:
    return HEAD + f"def f(x: mx.array, y: mx.array):\n    B, L, D = x.shape\n    first = {entry}\n    return {result}\n"


HEADS = "    B, N, C = x.shape\n    qkv = x.reshape(B, N, 3, 8, -1).transpose(2, 0, 3, 1, 4)\n    q, k, v = {}\n"

EXAMPLES = [
    Example(
        HEAD + "def f(x: mx.array):\n" + HEADS.format("qkv[0], qkv[1], qkv[2]") + "    return mx.exp(q * k - v)\n",
        fixed=HEAD
        + "def f(x: mx.array):\n"
        + HEADS.format("qkv[0, ...], qkv[1, ...], qkv[2, ...]")
        + "    return mx.exp(q * k - v)\n",
    ),
    Example(_entry("mx.exp(first + y)", "x[0]"), fixed=_entry("mx.exp(first + y)", "x[0, ...]")),
    Example(_example("mx.where(m, x, mx.zeros_like(x))"), fixed=_example("mx.where(m, x, 0)")),
    Example(_example("mx.where(m, mx.zeros_like(x), x)"), fixed=_example("mx.where(m, 0, x)")),
    Example(_example("mx.maximum(x, mx.zeros_like(x))"), fixed=_example("mx.maximum(x, 0)")),
    Example(
        HEAD + "def f(m: mx.array, x: mx.array):\n    zeros = mx.zeros_like(x)\n    return mx.where(m, x, zeros)\n",
        fixed=_example("mx.where(m, x, 0)"),
    ),
    Example(
        _example("mx.exp(x.astype(mx.float32).astype(x.dtype)) + 1.0", "x: mx.array"),
        fixed=_example("mx.exp(x) + 1.0", "x: mx.array"),
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def f(x: mx.array):\n    B, L, D = x.shape\n    x[0] += 1.0\n    return mx.exp(x)\n",
        why="an entry that is assigned to",
    ),
    Example(_entry("[first], mx.exp(y) + 1.0", "x[0]"), why="a view that is handed on keeps all of x alive"),
    Example(_entry("first, mx.exp(y) + 1.0", "x[0]"), why="a view that is returned keeps all of x alive"),
    Example(_entry("mx.exp(first + y)", "x[:, 0]"), why="a view already"),
    Example(_entry("mx.exp(first + y)", "x[0, ...]"), why="a view already"),
    Example(HEAD + "def f(x: mx.array):\n    return mx.exp(x[0] + 1.0)\n", why="x may have one axis"),
    Example(
        "from functools import partial\n\n" + HEAD + "@partial(mx.compile, shapeless=True)\n"
        "def f(x: mx.array, y: mx.array):\n    B, L, D = x.shape\n    return mx.exp(x[0] + y)\n",
        why="shapeless code refuses slices",
    ),
    Example(
        HEAD + "def f(m: mx.array, a: mx.array, b: mx.array):\n    x = a > b\n"
        "    return mx.where(m, x, mx.zeros_like(x))\n",
        why="a bool array and 0 make int32",
    ),
    Example(_example("mx.where(m, x, 0)"), why="nothing is written"),
    Example(_example("mx.where(m, x, mx.zeros_like(m))"), why="zeros of another dtype promote"),
    Example(
        HEAD + "def f(m: mx.array, x: mx.array):\n    z = mx.zeros_like(x)\n    return mx.where(m, x, z), z\n",
        why="the zeros are returned too",
    ),
    Example(_example("x.astype(mx.float32).astype(x.dtype)", "x: mx.array"), why="the caller may change the copy"),
    Example(_example("x.astype(mx.float16).astype(x.dtype)", "x: mx.array"), why="float16 rounds"),
    Example(_example("x.astype(mx.float32).astype(mx.bfloat16)", "x: mx.array"), why="x may be float32"),
    Example(_example("mx.exp(x.astype(mx.float32)).astype(x.dtype)", "x: mx.array"), why="work in float32 between"),
    Example(
        HEAD
        + "def f(x: mx.array):\n"
        + HEADS.format("qkv[0], qkv[1], qkv[2]")
        + "    q = q.reshape(B * 8, N, -1)\n    k = k.reshape(B * 8, N, -1)\n    v = v.reshape(B * 8, N, -1)\n"
        + "    return mx.exp(q * k - v)\n",
        why="heads of a batch aren't next to each other: the reshape would copy what the gather doesn't",
    ),
    Example(
        HEAD.rstrip() + "\nimport mlx.nn as nn\n\n\nclass Text(nn.Module):\n    def __init__(self, n, dims):\n"
        "        super().__init__()\n        self.table = nn.Embedding(n, dims)\n\n"
        "    def __call__(self, tokens: mx.array, dropped):\n"
        "        tokens = mx.where(dropped, mx.zeros_like(tokens), tokens)\n        return self.table(tokens)\n",
        why="tokens are small",
    ),
    Example(
        HEAD + "def rows(keys: mx.array, at: mx.array, valid: mx.array, n):\n"
        "    at = at[..., None] * n + mx.arange(8)\n"
        "    safe = mx.where(valid, at, mx.zeros_like(at))\n"
        "    return mx.take_along_axis(keys, mx.broadcast_to(safe[:, None], keys.shape), axis=2)\n",
        why="places, read in another view: they are small",
    ),
    Example(
        HEAD.rstrip() + "\nimport mlx.nn as nn\nfrom layers import Layer\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self, n: int):\n        super().__init__()\n"
        "        self.layers = [Layer() for _ in range(n)]\n\n"
        "    def prepare(self, embeds: mx.array, padded: mx.array):\n"
        "        return mx.where(padded, mx.zeros_like(embeds), embeds)\n\n"
        "    def __call__(self, embeds: mx.array):\n        for layer in self.layers:\n"
        "            embeds = layer(embeds)\n        return embeds\n",
        why="a model's method beside its layers: it makes the input, once for each prompt",
    ),
    Example(
        HEAD + "def shown(x: mx.array, hidden: int):\n"
        "    x = x.reshape(-1, 8)\n    return mx.where(x == hidden, mx.zeros_like(x), x)\n",
        why="what is told apart by a number are tokens",
    ),
]
