"""FUS109 growing-cache: keys and values that are copied into a longer array at every step.

What it does: finds functions that append to two or more cached arrays with `mx.concatenate` along an axis other than
the first, and keep the results: as the attributes that they were read from, or in the cache that is returned.

Why: a step of decoding adds one row and copies all rows before it. Over T steps that is T * T / 2 rows of traffic, and
the old array and the new one are in memory at once.

Traffic: twice the cache a step, where writing into spare room moves the new rows only.

When not to: where a cache is appended to once or twice, such as a prompt in two parts. Where it is a window, which
this function or a caller cuts back, nothing is found; nothing is reported where a package makes only one layer's cache
so (`caches[-1] = Cache()`).

Fix safety: advice. Allocate room for some hundreds of steps, write with `cache[..., n : n + L, :] = keys`, and return
the slice `cache[..., : n + L, :]`; the size of the room, and who counts the rows, are decisions of the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.growth import branches, stored_back
from fuselint.graph.model import Graph, Node, Slice
from fuselint.graph.ops import TABLE
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS109", "growing-cache"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(cache: Any, keys: Any) -> Any:
    import mlx.core as mx

    return mx.concatenate([cache, keys], axis=2)


def fused(room: Any, keys: Any, length: int) -> Any:
    room[:, :, length : length + keys.shape[2]] = keys
    return room[:, :, : length + keys.shape[2]]


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    appends = [n for n in graph.nodes if _appends(graph, n)]
    by_axis: dict[int, list[Node]] = {}
    for node in appends:
        if stored_back(graph, node):
            by_axis.setdefault(node.attrs["axis"], []).append(node)
    returned = _returned_caches(graph, appends)
    for group in [*by_axis.values(), *returned]:
        if len({graph.canonical.of(n.inputs[0]) for n in group}) >= 2:
            yield _match(graph, group)
            return  # one finding a function: the others are the same cache


def _appends(graph: Graph, node: Node) -> bool:
    """Whether it puts new rows after what may be a cached array. Zeros are room that is allocated, not rows."""
    if node.op != "concatenate" or len(node.inputs) != 2 or node.frame.depth:
        return False
    axis = node.attrs.get("axis")
    op = TABLE.get(node.inputs[1].op)
    created = op is not None and op.kind == "create"
    return isinstance(axis, int) and axis not in (0, -1) and not created


def _returned_caches(graph: Graph, appends: list[Node]) -> Iterator[list[Node]]:
    """Appends to elements of one argument, that are together in a tuple which is an element of what is returned."""
    if len(appends) < 2:  # asking callers has the whole file lowered
        return
    for _, value in graph.returns:
        for branch in branches(value):
            if branch.op != "tuple":
                continue
            for position, element in enumerate(branch.inputs):
                parts = [p for c in branches(element) if c.op in ("tuple", "list") for p in c.inputs]
                if not any(n in appends for p in parts for n in branches(p)) or is_cut_by_callers(graph, position):
                    continue
                for cache in branches(element):
                    inside = cache.inputs if cache.op in ("tuple", "list") else ()
                    kept = [
                        n for n in appends if any(n in branches(p) for p in inside) and _of_argument(graph, n.inputs[0])
                    ]
                    for first in kept:
                        yield [
                            n
                            for n in kept
                            if n.inputs[0].inputs[0] is first.inputs[0].inputs[0]
                            and n.attrs["axis"] == first.attrs["axis"]
                        ]


FARTHEST = 3
"""Functions that hand a cache on to the one that cuts it, at most."""


def is_cut_by_callers(graph: Graph, position: int, depth: int = 0) -> bool:
    """Whether a caller in this file takes rows off the front of an element of what a function returns: a window."""
    if graph.program is None or depth > FARTHEST:
        return False
    for qualname in graph.module.functions:
        caller = graph.program.graph(qualname)
        for call in caller.nodes if caller is not None and caller is not graph else ():
            if caller is None or call.op != "call" or not _enters(call, graph):
                continue
            held = _held(caller, [n for n in caller.users.get(call, ()) if n.attrs.get("index") == position])
            if any(n.op == "index" and _takes_off_front(n) for n in held):
                return True
            for _, value in caller.returns:
                for at, element in enumerate(value.inputs if value.op == "tuple" else ()):
                    if not held.isdisjoint(branches(element)) and is_cut_by_callers(caller, at, depth + 1):
                        return True
    return False


def _enters(call: Node, graph: Graph) -> bool:
    """Whether a call is of a function, or of a method of that name of an object that isn't known."""
    callee, name = call.attrs.get("callee"), graph.context.qualname
    if call.attrs.get("target"):
        return bool(call.attrs["target"] == name)
    is_method = isinstance(callee, Node) and callee.op == "attr" and graph.context.class_name is not None
    return is_method and callee.attrs.get("name") == name.rpartition(".")[2]  # type: ignore[union-attr]


def _held(graph: Graph, first: list[Node]) -> set[Node]:
    """Values, their elements, and what holds or cuts them."""
    stack, seen = list(first), set(first)
    while stack:
        new = [n for n in graph.users.get(stack.pop(), ()) if n.op in HOLDING and n not in seen]
        seen.update(new)
        stack += new
    return seen


HOLDING = frozenset({"item", "index", "phi", "tuple", "list"})


def _takes_off_front(node: Node) -> bool:
    """`keys[:, -n:]`"""
    index = node.attrs.get("index")
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(p, Slice) and p.start not in (None, 0) and p.stop is None for p in parts[1:])


def _of_argument(graph: Graph, node: Node) -> bool:
    """Whether it is an element of an argument that holds several: `cache[0]`, `keys, values = cache`."""
    if node.op not in ("item", "index") or len(node.inputs) != 1 or node.inputs[0].op != "param":
        return False
    if node.inputs[0] in _objects(graph):
        return False
    index = node.attrs.get("index")
    return isinstance(index[0] if isinstance(index, tuple) and len(index) == 1 else index, int)


def _objects(graph: Graph) -> set[Node]:
    """Arguments whose methods are called: where a cache object is given, a tuple is what is left for other callers."""
    called = (n.attrs.get("callee") for n in graph.nodes if n.op == "call")
    return {c.inputs[0] for c in called if isinstance(c, Node) and c.op == "attr" and c.inputs}


def _match(graph: Graph, group: list[Node]) -> Match:
    root = group[0]
    return Match(
        code=CODE,
        root=root,
        holes={},
        message="a cache is copied whole at every step to append to it",
        obligations=[
            Obligation("the longer arrays are the cache of the next step", "proven", "stored or returned as it"),
            Obligation("the function runs once a step", "unknown", "its callers decide"),
        ],
        region=frozenset(group),
        related=[(n, "and here") for n in group[1:]],
        has_traffic=False,  # how long the cache is decides, and nothing here says
    )


ATTENTION = (
    "class Attention(nn.Module):\n"
    "    def __init__(self, dims: int):\n"
    "        super().__init__()\n"
    "        self.k_proj = nn.Linear(dims, dims)\n"
    "        self.v_proj = nn.Linear(dims, dims)\n\n"
)

EXAMPLES = [
    Example(
        HEAD + ATTENTION + "    def __call__(self, x: mx.array, cache=None):\n"
        "        B, L, D = x.shape\n"
        "        keys = self.k_proj(x).reshape(B, L, 8, -1).transpose(0, 2, 1, 3)\n"
        "        values = self.v_proj(x).reshape(B, L, 8, -1).transpose(0, 2, 1, 3)\n"
        "        if cache is not None:\n"
        "            key_cache, value_cache = cache\n"
        "            keys = mx.concatenate([key_cache, keys], axis=2)\n"
        "            values = mx.concatenate([value_cache, values], axis=2)\n"
        "        return mx.fast.scaled_dot_product_attention(x, keys, values, scale=1.0), (keys, values)\n",
        applicability="none",
    ),
    Example(
        HEAD + "class Cache:\n"
        "    def __init__(self):\n"
        "        self.keys = None\n"
        "        self.values = None\n\n"
        "    def update(self, keys: mx.array, values: mx.array):\n"
        "        if self.keys is None:\n"
        "            self.keys, self.values = keys, values\n"
        "        else:\n"
        "            self.keys = mx.concatenate([self.keys, keys], axis=2)\n"
        "            self.values = mx.concatenate([self.values, values], axis=2)\n"
        "        return self.keys, self.values\n",
        applicability="none",
    ),
    Example(
        HEAD + ATTENTION + "    def step(self, x: mx.array, cache=None):\n"
        "        keys, values = self.k_proj(x), self.v_proj(x)\n"
        "        if cache is not None:\n"
        "            keys = mx.concatenate([cache[0], keys], axis=1)\n"
        "            values = mx.concatenate([cache[1], values], axis=1)\n"
        "        return mx.softmax(x @ keys.swapaxes(1, 2)) @ values, (keys, values)\n\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, dims: int):\n"
        "        super().__init__()\n"
        "        self.layers = [Attention(dims) for _ in range(4)]\n\n"
        "    def step(self, x: mx.array, caches):\n"
        "        kept = []\n"
        "        for layer, cache in zip(self.layers, caches):\n"
        "            x, cache = layer.step(x, cache)\n"
        "            kept.append(tuple(cache))\n"
        "        return x[:, -1:], kept\n",
        applicability="none",
        why="the caller cuts what it computes, and keeps the cache whole",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "class Cache:\n"
        "    def grow(self, keys: mx.array, values: mx.array):\n"
        "        self.keys = mx.concatenate([self.keys, mx.zeros(keys.shape)], axis=2)\n"
        "        self.values = mx.concatenate([self.values, mx.zeros(values.shape)], axis=2)\n",
        why="room for many steps is allocated",
    ),
    Example(
        HEAD + "class Cache:\n"
        "    def extend(self, other):\n"
        "        self.keys = mx.concatenate([self.keys, other.keys], axis=0)\n"
        "        self.values = mx.concatenate([self.values, other.values], axis=0)\n",
        why="sequences join a batch",
    ),
    Example(
        HEAD + "class Window:\n"
        "    def update(self, keys: mx.array, values: mx.array):\n"
        "        self.keys = mx.concatenate([self.keys, keys], axis=2)[:, :, -128:]\n"
        "        self.values = mx.concatenate([self.values, values], axis=2)[:, :, -128:]\n"
        "        return self.keys, self.values\n",
        why="a window does not grow",
    ),
    Example(
        HEAD + "def attend(q, k: mx.array, v: mx.array, cache=None):\n"
        '    if hasattr(cache, "update"):\n'
        "        k, v = cache.update(k, v)\n"
        "    elif cache is not None:\n"
        "        k = mx.concatenate([cache[0], k], axis=2)\n"
        "        v = mx.concatenate([cache[1], v], axis=2)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0), (k, v)\n",
        why="a cache object is taken too: the tuple is there for other callers",
    ),
    Example(
        HEAD + ATTENTION + "    def step(self, x: mx.array, cache=None):\n"
        "        keys, values = self.k_proj(x), self.v_proj(x)\n"
        "        if cache is not None:\n"
        "            keys = mx.concatenate([cache[0], keys], axis=1)\n"
        "            values = mx.concatenate([cache[1], values], axis=1)\n"
        "        return mx.softmax(x @ keys.swapaxes(1, 2)) @ values, (keys, values)\n\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self, dims: int, window: int):\n"
        "        super().__init__()\n"
        "        self.layers = [Attention(dims) for _ in range(4)]\n"
        "        self.window = window\n\n"
        "    def step(self, x: mx.array, caches):\n"
        "        kept = []\n"
        "        for layer, cache in zip(self.layers, caches):\n"
        "            x, cache = layer.step(x, cache)\n"
        "            kept.append(tuple(t[:, -self.window :] for t in cache))\n"
        "        return x, kept\n",
        why="the caller cuts it back to a window",
    ),
]
