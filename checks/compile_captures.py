"""FUS406 compile-captures-weights: a compiled function that uses, or updates, weights which it does not know of.

What it does: finds compiled functions that update a model (`optimizer.update(model, gradients)`) without the model's
state as both inputs and outputs; and compiled functions that read a model which the code around them updates, without
its state as an input.

Why: an array that a compiled function finds outside its arguments is a constant of the trace. After an update it goes
on with the old weights, in silence. An update inside leaves the model holding arrays of the trace, which have no
value: the next use raises "array without a primitive". With the state as outputs only, the weights never change.

Traffic: none. It is wrong, not slow.

When not to: where weights stay as they are, as at inference after loading, a constant is what one wants.

Fix safety: none is made. `state = [model.state, optimizer.state]`, and `partial(mx.compile, inputs=state,
outputs=state)`; with dropout, `mx.random.state` belongs in the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.compiling import compilations
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS406", "compile-captures-weights"

HEAD = "from functools import partial\nimport mlx.core as mx\nimport mlx.nn as nn\nimport mlx.optimizers as optim\n\n\n"


def unfused(model: Any, x: Any) -> Any:
    """The old weights, after an update."""
    import mlx.core as mx

    forward = mx.compile(model)
    forward(x)
    model.update({"weight": model.weight * 2})
    return forward(x)


def fused(model: Any, x: Any) -> Any:
    import mlx.core as mx

    forward = mx.compile(model, inputs=model.state)
    forward(x)
    model.update({"weight": model.weight * 2})
    return forward(x)


def find(graph: Graph) -> Iterator[Match]:
    yield from _updates_inside(graph)
    yield from _reads_what_is_updated(graph)
    yield from _model_compiled_and_updated(graph)


def _updates(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """(call, model) of each `optimizer.update(model, gradients)`: no other `update` takes two arguments."""
    for node in graph.nodes:
        function = node.attrs.get("callee") if node.op == "call" else None
        if not isinstance(function, Node) or function.op != "attr" or function.attrs["name"] != "update":
            continue
        if len(node.inputs) == 2 and not node.attrs["keywords"] and not node.attrs["starred"]:
            yield node, node.inputs[0]


def _is_outer(node: Node) -> bool:
    """Whether a value is an object from outside: a name of the function around, or an attribute of `self`."""
    if node.op == "attr":
        return _is_outer(node.inputs[0]) or (node.inputs[0].op == "param" and bool(node.attrs.get("path")))
    return node.op == "global" and node.attrs["target"] is None


def _updates_inside(graph: Graph) -> Iterator[Match]:
    bad = [c for c in compilations(graph) if not c.inputs or not c.outputs]
    if not bad:
        return
    c = bad[0]
    for node, model in _updates(graph):
        if not _is_outer(model):
            continue
        if c.outputs:
            what = "the state is in outputs= but not in inputs=: every call goes on with the first call's weights"
        elif c.inputs:
            what = "the state is in inputs= but not in outputs=: the next use of the weights raises"
        else:
            what = "its state is neither in inputs= nor in outputs=: the update is lost, and the next use raises"
        yield _match(graph, node, f"a compiled function updates a model, and {what}", c.line)
        return


def _reads_what_is_updated(graph: Graph) -> Iterator[Match]:
    """A compiled inner function that calls a model, which the function around it updates."""
    bad = [c for c in compilations(graph) if not c.inputs]
    summary = graph.module.functions[graph.context.qualname]
    outer = graph.program.graph(summary.span.outer) if bad and summary.span.outer and graph.program else None
    if outer is None or outer.not_understood:
        return
    updated = {n for call, m in _updates(outer) if call.stmt is not None for n in outer.names_of(m, call.stmt)}
    for node in graph.nodes:
        function = node.attrs.get("callee") if node.op == "call" else None
        if isinstance(function, Node) and _is_outer(function) and function.attrs.get("name") in updated:
            name = function.attrs["name"]
            message = f"a compiled function reads {name}, which {outer.context.qualname} updates: its weights are stale"
            yield _match(graph, node, message, bad[0].line)
            return


def _model_compiled_and_updated(graph: Graph) -> Iterator[Match]:
    """`f = mx.compile(model)`, and an update of the model in the same function."""
    updated = {model for _, model in _updates(graph)}
    for node in graph.nodes:
        compiles = node.op == "call" and node.attrs.get("target") == "mlx.core.compile" and bool(node.inputs)
        if compiles and node.inputs[0] in updated and "inputs" not in node.attrs["keywords"] and len(node.inputs) == 1:
            message = "a model is compiled without its state, and updated later: the compiled one keeps the old weights"
            yield _match(graph, node, message, 0)


def _match(graph: Graph, root: Node, message: str, line: int) -> Match:
    return Match(
        code=CODE,
        root=root,
        holes={},
        message=message,
        obligations=[
            Obligation("the function is compiled", "proven", f"in line {line}" if line else "here"),
            Obligation("the weights change", "proven", "an optimizer updates them"),
        ],
        region=frozenset({root}),
        has_traffic=False,
    )


EXAMPLES = [
    Example(
        HEAD + "def train(model, batches, loss_fn):\n"
        "    optimizer = optim.Adam(1e-3)\n"
        "    loss_and_grad = nn.value_and_grad(model, loss_fn)\n\n"
        "    @mx.compile\n"
        "    def step(x, y):\n"
        "        loss, grads = loss_and_grad(model, x, y)\n"
        "        optimizer.update(model, grads)\n"
        "        return loss\n\n"
        "    for x, y in batches:\n"
        "        mx.eval(step(x, y))\n",
        applicability="none",
    ),
    Example(
        HEAD + "def train(model, optimizer, batches, loss_and_grad):\n"
        "    @mx.compile\n"
        "    def forward(x):\n"
        "        return mx.softmax(model(x), axis=-1)\n\n"
        "    for x, y in batches:\n"
        "        loss, grads = loss_and_grad(model, x, y)\n"
        "        optimizer.update(model, grads)\n"
        "        mx.eval(forward(x), model.parameters())\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def train(model, batches, loss_fn):\n"
        "    optimizer = optim.Adam(1e-3)\n"
        "    loss_and_grad = nn.value_and_grad(model, loss_fn)\n"
        "    state = [model.state, optimizer.state]\n\n"
        "    @partial(mx.compile, inputs=state, outputs=state)\n"
        "    def step(x, y):\n"
        "        loss, grads = loss_and_grad(model, x, y)\n"
        "        optimizer.update(model, grads)\n"
        "        return loss\n\n"
        "    for x, y in batches:\n"
        "        mx.eval(step(x, y), state)\n",
        why="the state goes in and comes out",
    ),
    Example(
        HEAD + "def generate(model, batches):\n"
        "    @mx.compile\n"
        "    def forward(x):\n"
        "        return mx.softmax(model(x), axis=-1)\n\n"
        "    return [forward(x) for x in batches]\n",
        why="the weights stay as they are",
    ),
    Example(
        HEAD + "def step(model, optimizer, loss_and_grad, x):\n"
        "    loss, grads = loss_and_grad(model, x)\n"
        "    optimizer.update(model, grads)\n"
        "    return mx.mean(loss)\n",
        why="it is not compiled",
    ),
]
