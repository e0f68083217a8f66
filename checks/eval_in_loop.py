"""FUS303 eval-in-loop: an array that a loop reads out element by element.

What it does: finds loops in which `.item()`, `int(x[i])`, `float(x[i])` or `bool(x[i])` reads an element of an array
that was made before the loop, one in each round.

Why: MLX is lazy. Each read evaluates what the element needs, with a kernel of its own to gather it, and waits for the
GPU before Python goes on. `x.tolist()` waits once, and gives the same numbers.

Traffic: no bytes to speak of; a launch and a wait for each round but one.

When not to: where each round computes what it reads, as generation does with each token: one read a step is right;
where there are few rounds: one for each of a batch, or one that does much else.

Fix safety: none is made: `x.tolist()` has to be put before the loop. A float32 array gives the same Python floats, an
integer array the same ints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from fuselint.finding import Obligation
from fuselint.graph.model import Block, Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.scan import dotted
from fuselint.rulebook import Example, Match

CODE, NAME = "FUS303", "eval-in-loop"

HEAD = "import mlx.core as mx\n\n\n"

NUMBERS = frozenset({"builtins.int", "builtins.float", "builtins.bool"})

FEW = 2
"""So many rounds are not worth a report."""
BATCH = re.compile(r"(?:n_|num_)?(?:b|bs|bsz|batch(?:_size)?)", re.IGNORECASE)
"""What a batch's size is called."""
CHEAP = frozenset({"view", "cast", "create"})
MUCH = 4
"""From so many launches on, a round does the work of an image or a segment, and there are few of those."""


def unfused(x: Any) -> Any:
    """One evaluation an element."""
    return [x[i].item() for i in range(x.shape[0])]


def fused(x: Any) -> Any:
    return x.tolist()


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.context.compiled:
        return
    read: dict[Block, dict[Node, Node]] = {}  # loop -> array -> the first read
    for node in graph.nodes:
        element = _evaluated(node)
        array = None if element is None else _element_of(graph, element)
        if element is None or array is None or node.stmt is None:
            continue
        loop = _loop_of(element)
        if loop is not None and _is_made_before(array, loop):
            read.setdefault(loop, {}).setdefault(array, node)
    for loop, arrays in read.items():
        if not _is_long_work(loop, graph):
            yield _match(graph, arrays)


def _is_long_work(loop: Block, graph: Graph) -> bool:
    """Whether each round launches so much that there are few of them, as one for each image of a prompt."""
    work = 0
    for node in graph.nodes:
        op = TABLE.get(node.op)
        if op is not None and op.kind not in CHEAP and node.stmt is not None and loop.encloses(node.stmt.block):
            work += 1
    return work >= MUCH


def _evaluated(node: Node) -> Node | None:
    """The array that a node reads out: `x.item()`, `int(x)`."""
    if node.op != "call" or node.frame.depth:
        return None
    if node.attrs.get("target") in NUMBERS and len(node.inputs) == 1:
        return node.inputs[0]
    function = node.attrs.get("callee")
    if isinstance(function, Node) and function.op == "attr" and function.attrs["name"] == "item" and not node.inputs:
        return function.inputs[0]
    return None


def _element_of(graph: Graph, element: Node) -> Node | None:
    """The array of which a value is an element that changes with the rounds of a loop."""
    if not element.inputs:
        return None
    array = element.inputs[0]
    steps = element.op == "item" and element.attrs["index"] is None  # for v in x
    if not steps and not (element.op == "index" and _is_counted(graph, array, element.attrs.get("index"))):
        return None
    is_array = graph.facts.kind(array) == "array" and _is_of_mlx(graph, array) and not _is_tested(graph, array)
    return array if is_array else None


def _is_of_mlx(graph: Graph, array: Node) -> bool:
    """Whether an array is one of MLX for sure: a method or an operator may be that of a NumPy array too."""
    waiting, seen = [array], {array}
    while waiting:
        node = waiting.pop()
        if node.op.startswith(("nn.", "fast.", "random.")) or node.attrs.get("annotation") == "mlx.core.array":
            return True
        if isinstance(node.cst, cst.Call) and _is_function_of_mlx(graph, node.cst):
            return True
        if node.op in TABLE or node.op == "index":
            new = [n for n in node.inputs if n not in seen]
            seen.update(new)
            waiting += new
    return False


def _is_function_of_mlx(graph: Graph, call: cst.Call) -> bool:
    name = dotted(call.func)
    target = graph.module.resolve(name, graph.context.qualname) if name else None
    return target is not None and target.startswith("mlx.")


def _is_tested(graph: Graph, array: Node) -> bool:
    """Whether the code asks whether a value is an array: it may be a list where it is read."""
    return any(
        u.op == "call" and u.attrs.get("target") in ("builtins.isinstance", "builtins.hasattr")
        for u in graph.users.get(array, ())
    )


def _is_counted(graph: Graph, array: Node, index: Any) -> bool:
    """Whether an index is made of loop variables. With constants in it, it reads a table of few rows, such as sizes."""
    entries = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(e, Node) for e in entries):
        return False
    return any(_counts(graph, n, array) for e in entries for n in (e, *e.inputs))


def _counts(graph: Graph, node: Node, array: Node) -> bool:
    """Whether a value is the variable of `for i in range(n)` or `for i, y in enumerate(...)`.

    Not where it goes through the first axis of another array: that is a batch, of few entries.
    """
    if node.op != "item" or node.inputs[0].op != "call":
        return False
    counter = node.inputs[0]
    name = counter.attrs.get("target")
    if name == "builtins.enumerate":
        return bool(node.attrs["index"] == 0)
    if name != "builtins.range" or node.attrs["index"] is not None:
        return False
    end = counter.inputs[min(1, len(counter.inputs) - 1)]
    if end.op == "dim" and end.attrs["axis"] == 0 and end.inputs[0] is not array:
        return False
    if node.stmt is not None and any(BATCH.fullmatch(n) for n in graph.names_of(end, node.stmt)):
        return False
    known = graph.facts.const(end)
    return bool(known > FEW) if isinstance(known, int) else True


def _loop_of(element: Node) -> Block | None:
    """The innermost loop around an element."""
    at = element.stmt.block if element.stmt is not None else None
    while at is not None and at.kind not in ("loop", "comprehension"):
        at = at.parent
    return at


def _is_made_before(array: Node, loop: Block) -> bool:
    """Whether an array was made outside a loop, and is the same in every round."""
    if array.op in ("loop", "phi") or array.frame.depth:
        return False
    return array.stmt is None or not loop.encloses(array.stmt.block)


def _match(graph: Graph, arrays: dict[Node, Node]) -> Match:
    """What is found in one loop: the arrays, each with its first read."""
    array, node = next(iter(arrays.items()))
    names = [n for a, at in arrays.items() if at.stmt is not None for n in graph.names_of(a, at.stmt)[:1]]
    subject = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'}" if names else "an array is"
    return Match(
        code=CODE,
        root=node,
        holes={},
        message=f"{subject} read out element by element: each round of the loop waits for the GPU",
        obligations=[
            Obligation("it is an array", "proven", graph.facts.why(array)),
            Obligation("it is the same in every round", "proven", "it was made before the loop"),
        ],
        region=frozenset(arrays.values()),
        related=[(a, "the array") for a in arrays],
        data={"names": names},
        has_traffic=False,
    )


EXAMPLES = [
    Example(
        HEAD + "def spread(x: mx.array, counts: mx.array):\n"
        "    out = []\n"
        "    for i in range(counts.shape[0]):\n"
        "        out.append(mx.repeat(x[i], counts[i].item(), axis=0))\n"
        "    return mx.concatenate(out)\n",
        applicability="none",
    ),
    Example(
        HEAD + "def best(scores: mx.array):\n    top = mx.argmax(scores, axis=-1)\n    return [int(t) for t in top]\n",
        applicability="none",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def cut(x: mx.array, lengths: mx.array):\n"
        "    return [x[i, :n] for i, n in enumerate(lengths.tolist())]\n",
        why="read out at once",
    ),
    Example(
        HEAD + "def generate(step, token: mx.array, n: int):\n"
        "    out = []\n"
        "    for _ in range(n):\n"
        "        token = mx.argmax(step(token), axis=-1)\n"
        "        out.append(token.item())\n"
        "    return out\n",
        why="each round computes the token that it reads",
    ),
    Example(
        HEAD + "def cut(x: mx.array, lengths: mx.array):\n"
        "    return [x[i, : int(lengths[i])] for i in range(x.shape[0])]\n",
        why="a batch has few entries",
    ),
    Example(
        HEAD + "def cut(x: mx.array, lengths: mx.array):\n"
        "    batch_size = lengths.shape[0]\n"
        "    return [x[i, : int(lengths[i])] for i in range(batch_size)]\n",
        why="a batch has few entries",
    ),
    Example(
        HEAD + "def pool(x: mx.array, ends: mx.array):\n"
        "    out = []\n"
        "    for i in range(1, ends.shape[0]):\n"
        "        part = x[int(ends[i - 1]) : int(ends[i])]\n"
        "        scores = mx.softmax(part @ part.T, axis=-1)\n"
        "        out.append(mx.mean(mx.tanh(scores @ part), axis=0))\n"
        "    return mx.stack(out)\n",
        why="there are few rounds, each of much work",
    ),
    Example(
        HEAD + "def spread(counts):\n"
        "    if isinstance(counts, mx.array):\n"
        "        return mx.repeat(mx.arange(3), int(counts.sum()))\n"
        "    return [int(n) for n in counts]\n",
        why="it is no array there",
    ),
    Example(
        HEAD + "def total(x: mx.array):\n    return float(x.sum()) + float(x[0].max())\n",
        why="there is no loop",
    ),
]
