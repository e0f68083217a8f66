"""FUS404 compile-random-without-state: a compiled function that draws random numbers and forgets that it did.

What it does: finds functions under `mx.compile` that draw from MLX's global random state, themselves or in functions
that they call, where that state is not both an input and an output of the compiled function.

Why: `mx.compile` traces the function once. The state that it read then is a constant of the trace, so every call
returns the first call's draw, also after `mx.random.seed`; only a new shape, dtype or number, which traces it again,
draws anew. With the state as an input but not as an output it is worse: the trace leaves the global state without a
value, and the next draw anywhere raises "array without a primitive".

Traffic: none. It is wrong, not slow.

When not to: where a `key` is passed to the draw, and where the function only runs inside another compiled function
that captures the state.

Fix safety: none is made. `@partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state)` makes the draws
differ, which changes results by design; a `key` argument keeps the function pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.compiling import calls_of, compilations, loop_between, made_here, reached
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.rulebook import Example, Match
from fuselint.source.project import Compilation

CODE, NAME = "FUS404", "compile-random-without-state"

HEAD = "from functools import partial\nimport mlx.core as mx\n\n\n"


def unfused(logits: Any) -> Any:
    """The same draw at every call."""
    import mlx.core as mx

    return mx.compile(mx.random.categorical)(logits)


def fused(logits: Any) -> Any:
    import mlx.core as mx

    return mx.compile(mx.random.categorical, inputs=mx.random.state, outputs=mx.random.state)(logits)


def find(graph: Graph) -> Iterator[Match]:
    bad = [c for c in compilations(graph) if _forgets(c)]
    if not bad or _runs_inside_one_that_captures(graph) or _is_traced_each_time(graph):
        return
    for site, node, where in reached(graph):
        if _draws(node):
            yield _match(graph, site, node, where, bad[0])
            return


def _forgets(c: Compilation) -> bool:
    return c.inputs in ("", "other") or (c.inputs == "random" and c.outputs in ("", "other"))


def _draws(node: Node) -> bool:
    """Whether a node draws from the global state: a random op without a key."""
    op = TABLE.get(node.op)
    if op is None or op.kind != "random":
        return False
    at = op.position("key")
    if at is None or any(p.name == "key" and p.required for p in op.params):
        return False  # mx.random.key and mx.random.split
    given = node.inputs[at] if at < len(node.inputs) else None
    return given is None or (given.op == "const" and given.attrs["value"] is None)


def _runs_inside_one_that_captures(graph: Graph) -> bool:
    """Whether all callers are compiled with the random state captured, or only called from such ones."""
    me = graph.context.qualname
    callers = [q for q, called in graph.module.calls.items() if me in called and q != me]
    return bool(callers) and all(_captured(graph, q, frozenset({me, q})) for q in callers)


def _captured(graph: Graph, qualname: str, seen: frozenset[str]) -> bool:
    places = compilations(graph, qualname)
    if any(c.inputs in ("random", "unknown") and c.outputs in ("random", "unknown") for c in places):
        return True
    callers = [q for q, called in graph.module.calls.items() if qualname in called and q not in seen]
    return bool(callers) and all(_captured(graph, q, seen | {q}) for q in callers)


def _is_traced_each_time(graph: Graph) -> bool:
    """Whether the function is defined, compiled and called once in the function around it: each trace draws anew."""
    around = graph.module.functions[graph.context.qualname].span.outer
    outer = graph.program.graph(around) if around and graph.program else None
    if outer is None:
        return False
    for made in made_here(outer):
        if made.op == "function" and made.attrs["qualname"] == graph.context.qualname and made.stmt is not None:
            calls = calls_of(outer, made)
            block = made.stmt.block
            return len(calls) == 1 and not any(c.stmt and loop_between(block, c.stmt.block) for c in calls)
    return False


def _match(graph: Graph, site: Node, node: Node, where: Graph, c: Compilation) -> Match:
    name = graph.context.qualname.rpartition(".")[2]
    draw = f"mx.{node.op}"
    through = "" if where is graph else f" (in {where.context.qualname})"
    if c.inputs == "random":
        message = (
            f"{name} draws with {draw}{through} under mx.compile with the random state in inputs= but not in outputs=: "
            "the next draw anywhere raises"
        )
    else:
        message = (
            f"{name} draws with {draw}{through} under mx.compile without the random state: "
            "every call returns the first call's draw"
        )
    return Match(
        code=CODE,
        root=site,
        holes={},
        message=message,
        obligations=[
            Obligation("the function is compiled", "proven", f"in line {c.line}"),
            Obligation("no key is given to the draw", "proven", "the global state is read"),
            Obligation("the random state is not captured both ways", "proven", f"in line {c.line}"),
        ],
        region=frozenset({site}),
        data={"compilation": c},
        has_traffic=False,
    )


EXAMPLES = [
    Example(
        HEAD + "@mx.compile\ndef categorical(logits, temp):\n    return mx.random.categorical(logits / temp)\n",
        applicability="none",
    ),
    Example(
        HEAD + "@partial(mx.compile, inputs=mx.random.state)\n"
        "def noisy(x):\n    return x + mx.random.normal(x.shape)\n",
        applicability="none",
    ),
    Example(
        HEAD + "def drop(x):\n    return mx.where(mx.random.bernoulli(0.5, x.shape), x, 0)\n\n\n"
        "def forward(x):\n    return drop(x) * 2\n\n\n"
        "step = mx.compile(forward)\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "@partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state)\n"
        "def categorical(logits, temp):\n    return mx.random.categorical(logits / temp)\n",
        why="the state goes in and comes out",
    ),
    Example(
        HEAD + "@mx.compile\ndef noisy(x, key):\n    return x + mx.random.normal(x.shape, key=key)\n",
        why="the key is an argument",
    ),
    Example(
        HEAD + "def train(model, optimizer, loss, batches):\n"
        "    state = [model.state, optimizer.state, mx.random.state]\n\n"
        "    @partial(mx.compile, inputs=state, outputs=state)\n"
        "    def step(x):\n"
        "        return loss(x + mx.random.normal(x.shape))\n\n"
        "    for batch in batches:\n"
        "        step(batch)\n",
        why="the state is part of a list that is captured",
    ),
    Example(
        HEAD + "@mx.compile\ndef noisy(x):\n    return x + mx.random.normal(x.shape)\n\n\n"
        "@partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state)\n"
        "def step(x):\n    return noisy(x) * 2\n",
        why="it only runs inside a compiled function that captures the state",
    ),
    Example(
        HEAD + "def noisy(x):\n"
        "    @mx.compile\n"
        "    def add(y):\n"
        "        return y + mx.random.normal(y.shape)\n\n"
        "    return add(x)\n",
        why="traced at every call, it draws at every call",
    ),
]
