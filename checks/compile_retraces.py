"""FUS407 compile-retraces: a Python number that changes from call to call, as an argument of a compiled function.

What it does: finds calls of compiled functions that pass a number that a loop counts or carries along, or that was read
out of an array (`x.item()`, `float(x)`).

Why: Python numbers are part of what a trace is for. A new number is a new trace, and since it stands in the kernel's
source as a constant, a new kernel is compiled too: 300 values took 300 traces of 427 ms each on a CPU, the same values
as arrays one trace. The cache of traces only grows.

Traffic: none to DRAM; the time is spent in Python and in the kernel compiler.

When not to: a number of few values, such as a flag or a size of the model, is traced once for each. Numbers that stay
the same are best left as they are.

Fix safety: none is made. `mx.array(value, x.dtype)` is bit-identical to the number; without a dtype, it turns
half-precision arrays into float32. A value that the function takes as an index or a shape can't be an array.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.facts import MISSING
from fuselint.graph.flow import arguments, callee
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS407", "compile-retraces"

HEAD = "from functools import partial\nimport mlx.core as mx\n\n\n"

FEW = 16
"""Up to so many values are an enumeration."""

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "floor_divide", "power", "remainder", "negative"})
COMPUTES = ARITHMETIC | {"maximum", "minimum", "where", "less", "greater", "less_equal", "greater_equal"}


def unfused(x: Any) -> Any:
    """A trace for each of the values."""
    import mlx.core as mx

    step = mx.compile(lambda a, t: a * t + 1)
    for i in range(4):
        x = step(x, i / 8)
    return x


def fused(x: Any) -> Any:
    import mlx.core as mx

    step = mx.compile(lambda a, t: a * t + 1)
    for i in range(4):
        x = step(x, mx.array(i / 8, x.dtype))
    return x


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.context.compiled:
        return
    compiled = {c.target for c in graph.module.compilations if c.how == "decorator" and c.direct}
    for node in graph.nodes:
        name = _compiled(node, compiled)
        if name is None:
            continue
        for position, argument in enumerate(node.inputs):
            because = _changes(graph, argument, set())
            if because and _enters_arithmetic(graph, node, argument):
                yield _match(node, name, position, argument, because)
                break


def _compiled(node: Node, decorated: set[str | None]) -> str | None:
    """The name of the compiled function that a node calls."""
    if node.op != "call":
        return None
    target, function = node.attrs.get("target"), node.attrs.get("callee")
    if target in decorated and target is not None:
        return str(target).rpartition(".")[2]
    made = isinstance(function, Node) and function.op == "call" and function.attrs.get("target") == "mlx.core.compile"
    return "the compiled function" if made else None


def _changes(graph: Graph, node: Node, seen: set[Node]) -> str:
    """Why a value is a Python number that changes from call to call; "" if that isn't certain."""
    if node in seen:
        return ""
    seen.add(node)
    if node.op in ARITHMETIC:
        if any(graph.facts.kind(n) == "array" for n in node.inputs):
            return ""
        reasons = [_changes(graph, n, seen) for n in node.inputs]
        numbers = [bool(r) or graph.facts.const(n) is not MISSING for r, n in zip(reasons, node.inputs, strict=True)]
        return next(filter(None, reasons), "") if all(numbers) else ""
    if node.op == "item":
        return "it is read out of an array" if _method(node.inputs[0]) == "tolist" else _counted(graph, node)
    if node.op == "call":
        name = node.attrs.get("target") or ""
        if name in ("builtins.float", "builtins.int") and len(node.inputs) == 1:
            inner = node.inputs[0]
            if graph.facts.kind(inner) == "array":
                return "it is read out of an array"
            return _changes(graph, inner, seen)
        if _method(node) == "item":
            return "it is read out of an array"
    if node.op == "loop" and node.inputs[-1].op in ARITHMETIC:
        done: set[Node] = set()
        if all(_is_number(graph, n, node, seen, done) for n in node.inputs):
            return "a loop carries it along"
    return ""


def _is_number(graph: Graph, node: Node, carried: Node, seen: set[Node], done: set[Node]) -> bool:
    """Whether a value is made of constants, counted numbers and the carried value alone."""
    if node is carried or node in done:
        return True
    known = graph.facts.const(node)
    if isinstance(known, (int, float)):
        return not isinstance(known, bool)
    if node.op in ARITHMETIC:
        done.add(node)  # one that is no number ends the search
        return all(_is_number(graph, n, carried, seen, done) for n in node.inputs)
    return bool(_changes(graph, node, seen))


def _method(node: Node) -> str:
    """The name of the method that a `call` calls, of something that isn't known."""
    function = node.attrs.get("callee") if node.op == "call" else None
    return str(function.attrs["name"]) if isinstance(function, Node) and function.op == "attr" else ""


def _counted(graph: Graph, node: Node) -> str:
    """The variable of `for i in range(n)`."""
    base = node.inputs[0]
    if node.attrs["index"] is None and base.op == "call" and base.attrs.get("target") == "builtins.range":
        return "range counts it" if _many(graph, base) else ""
    return ""


def _many(graph: Graph, counter: Node) -> bool:
    """Whether a range is not known to be short; the number of items of something is, such as of layers."""
    end = counter.inputs[1 if len(counter.inputs) > 1 else 0]
    known = graph.facts.const(end)
    if known is not MISSING:
        return isinstance(known, int) and known > FEW
    return not (end.op == "call" and end.attrs.get("target") == "builtins.len")


def _enters_arithmetic(graph: Graph, call: Node, argument: Node) -> bool:
    """Whether the compiled function, where it is known, computes with the number; else it is assumed to."""
    inner, given = callee(graph, call), arguments(graph, call)
    if inner is None or given is None:
        return True
    held = [inner.params[name] for name, value in given.items() if value is argument and name in inner.params]
    return any(u.op in COMPUTES for h in held for u in inner.users.get(h, ()))


def _match(node: Node, name: str, position: int, argument: Node, because: str) -> Match:
    return Match(
        code=CODE,
        root=node,
        holes={},
        message=f"argument {position + 1} of {name}, which is compiled, is a Python number that changes: "
        "each value is a new trace",
        obligations=[
            Obligation("the function is compiled", "proven", name),
            Obligation("the argument is a Python number that changes", "proven", because),
        ],
        region=frozenset({node}),
        related=[(argument, because)],
        has_traffic=False,
    )


EXAMPLES = [
    Example(
        HEAD + "@mx.compile\ndef step(x, t):\n    return x * t + mx.sin(x)\n\n\n"
        "def sample(x, n: int):\n"
        "    for i in range(n):\n"
        "        x = step(x, i / 10)\n"
        "    return x\n",
        applicability="none",
    ),
    Example(
        HEAD + "@mx.compile\ndef step(x, t):\n    return x * t + mx.sin(x)\n\n\n"
        "def sample(x, times: mx.array):\n"
        "    for i in range(100):\n"
        "        x = step(x, times[i].item())\n"
        "    return x\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "@mx.compile\ndef step(x, t):\n    return x * t + mx.sin(x)\n\n\n"
        "def sample(x, times: mx.array):\n"
        "    for i in range(100):\n"
        "        x = step(x, times[i])\n"
        "    return x\n",
        why="an array is no constant of the trace",
    ),
    Example(
        HEAD + "@mx.compile\ndef step(x, t):\n    return x * t + mx.sin(x)\n\n\n"
        "def sample(x, scale: float):\n"
        "    for _ in range(100):\n"
        "        x = step(x, scale)\n"
        "    return x\n",
        why="the number stays the same",
    ),
    Example(
        HEAD + "@mx.compile\ndef step(x, t):\n    return x * t + mx.sin(x)\n\n\n"
        "def sample(x):\n"
        "    for i in range(4):\n"
        "        x = step(x, i)\n"
        "    return x\n",
        why="four values are four traces, once",
    ),
]
