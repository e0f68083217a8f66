"""FUS403 compile-on-method: `mx.compile` where it can't work, or where it traces anew at every call.

What it does: finds methods under `@mx.compile`; and compiled functions that are made inside a layer's `__call__`, or in
a loop, and called there once, so that nothing keeps the trace.

Why: what `mx.compile` returns is no descriptor, so `obj.method(x)` calls it without `self` and raises. With `self`
passed by hand it raises too: an argument must be a tree of arrays and constants. And a compiled function that is made
for one call traces Python code, simplifies the graph and looks its kernels up at that call, then drops it all.

Traffic: none. A method fails; a fresh trace costs tens of microseconds, and a new constant a kernel's compilation.

When not to: `@staticmethod` above `@mx.compile` works, and so does a function made once and kept.

Fix safety: none is made. A compiled function at module level that takes the arrays of `self` as arguments is right, but
which of them change is for the author to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.compiling import calls_of, compilations, decorator, loop_between, made_here
from fuselint.graph.flow import callers
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS403", "compile-on-method"

HEAD = "from functools import partial\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(x: Any) -> Any:
    """Raises: the compiled function does not get `self`."""
    import mlx.core as mx

    class Scale:
        def apply(self, x: Any) -> Any:
            return x * 2

    Scale.apply = mx.compile(Scale.apply)  # type: ignore[method-assign]
    return Scale().apply(x)


def fused(x: Any) -> Any:
    import mlx.core as mx

    def scaled(x: Any) -> Any:
        return x * 2

    class Scale:
        apply = staticmethod(mx.compile(scaled))

    return Scale().apply(x)


def find(graph: Graph) -> Iterator[Match]:
    yield from _on_method(graph)
    yield from _in_call_path(graph)


# -- methods -----------------------------------------------------------------------------------------------------------


def _on_method(graph: Graph) -> Iterator[Match]:
    summary = graph.module.functions[graph.context.qualname]
    if summary.kind not in ("method", "classmethod"):
        return
    if summary.kind == "method" and not _takes_self(graph):
        return
    for c in compilations(graph):
        root = decorator(graph, c) if c.how == "decorator" else None
        if root is None:
            continue
        name = graph.context.qualname.rpartition(".")[2]
        gets = "the class" if summary.kind == "classmethod" else "self"
        yield Match(
            code=CODE,
            root=root,
            holes={},
            message=f"mx.compile on the method {name}: a compiled function is not bound, so a call gets no {gets}",
            obligations=[
                Obligation("the decorator is mx.compile", "proven", f"in line {c.line}"),
                Obligation("the function is a method", "proven", f"its first parameter is {gets}"),
            ],
            region=frozenset({root}),
            data={"method": True},
            has_traffic=False,
        )
        return


def _takes_self(graph: Graph) -> bool:
    """Whether the first parameter is the object: its attributes are read, or nothing of it while others follow."""
    names = list(graph.params)
    if not names:
        return False
    first = graph.params[names[0]]
    users = graph.users.get(first, ())
    if any(u.op == "attr" for u in users) or any(_is_own_call(u, first) for u in graph.nodes):
        return True
    return not users and first not in graph.escaping and len(names) > 1 and names[0] not in graph.captured


def _is_own_call(node: Node, first: Node) -> bool:
    callee = node.attrs.get("callee")
    return node.op == "call" and isinstance(callee, Node) and first in callee.inputs


# -- in the call path --------------------------------------------------------------------------------------------------


def _in_call_path(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.context.compiled:
        return
    for made in made_here(graph):
        calls = calls_of(graph, made)
        if not calls or made.stmt is None:
            continue
        block = made.stmt.block
        looped = any(loop_between(block, n.stmt.block) for n in calls if n.stmt is not None)
        if looped or not (block.in_loop or _is_hot(graph)):
            continue
        where = "in every round of a loop" if block.in_loop else f"at every call of {graph.context.qualname}"
        yield Match(
            code=CODE,
            root=made,
            holes={},
            message=f"mx.compile {where}: the compiled function is new each time, and traced again",
            obligations=[
                Obligation("nothing keeps the compiled function", "proven", "it is only called here"),
                Obligation("it is made again and again", "proven", where),
            ],
            region=frozenset({made}),
            data={"method": False},
            has_traffic=False,
        )


def _is_hot(graph: Graph) -> bool:
    """Whether the function is a layer's `__call__`, or called by one, or in a loop of this file."""
    qualname, module = graph.context.qualname, graph.module

    def is_call_of_layer(name: str) -> bool:
        owner = module.functions[name].class_name if name in module.functions else None
        found = module.classes.get(owner or "")
        return found is not None and found.is_module and name == f"{owner}.__call__"

    callees_of_layers = (called for q, called in module.calls.items() if is_call_of_layer(q))
    if is_call_of_layer(qualname) or any(qualname in called for called in callees_of_layers):
        return True
    return any(call.stmt is not None and call.stmt.block.in_loop for _, call in callers(graph))


EXAMPLES = [
    Example(
        HEAD + "class Gate(nn.Module):\n"
        "    def __init__(self, dims: int):\n"
        "        super().__init__()\n"
        "        self.weight = mx.ones((dims,))\n\n"
        "    @mx.compile\n"
        "    def __call__(self, x, y):\n"
        "        return x * mx.sigmoid(y) * self.weight\n",
        applicability="none",
    ),
    Example(
        HEAD + "class Gate(nn.Module):\n"
        "    @classmethod\n"
        "    @partial(mx.compile, shapeless=True)\n"
        "    def apply(cls, x, y):\n"
        "        return x * mx.sigmoid(y)\n",
        applicability="none",
    ),
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __call__(self, x, decoder):\n"
        "        decoder = mx.compile(decoder)\n"
        "        return decoder(x)\n",
        applicability="none",
    ),
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __call__(self, x, scale):\n"
        "        @mx.compile\n"
        "        def gate(y):\n"
        "            return mx.sigmoid(y) * scale\n\n"
        "        return gate(x)\n",
        applicability="none",
    ),
    Example(
        HEAD + "def run(batches, f):\n"
        "    out = []\n"
        "    for x in batches:\n"
        "        out.append(mx.compile(f)(x))\n"
        "    return out\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "class Gate(nn.Module):\n"
        "    @staticmethod\n"
        "    @mx.compile\n"
        "    def apply(x, y):\n"
        "        return x * mx.sigmoid(y)\n",
        why="a static method has no self",
    ),
    Example(
        HEAD + "class Ops:\n    @mx.compile\n    def gate(x, y):\n        return x * mx.sigmoid(y)\n",
        why="called on the class, it works",
    ),
    Example(
        HEAD + "def train(f, batches):\n    step = mx.compile(f)\n    for x in batches:\n        mx.eval(step(x))\n",
        why="compiled once, called many times",
    ),
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __call__(self, x):\n"
        "        if self._step is None:\n"
        "            self._step = mx.compile(self.forward)\n"
        "        return self._step(x)\n",
        why="it is kept in an attribute",
    ),
    Example(
        HEAD + "class Model(nn.Module):\n"
        "    def __call__(self, x, n: int):\n"
        "        @mx.compile\n"
        "        def step(y):\n"
        "            return mx.sigmoid(y) * 2\n\n"
        "        for _ in range(n):\n"
        "            x = step(x)\n"
        "        return x\n",
        why="traced once for all rounds",
    ),
    Example(
        HEAD + "def make(f):\n    return mx.compile(f)\n",
        why="it is returned",
    ),
]
