"""FUS252 unfused-cross-entropy: the log-probability of one class of the last axis, written out.

What it does: finds `logsumexp(logits) - take_along_axis(logits, targets)`, and `take_along_axis` of
`log_softmax(logits)`, `logits - logsumexp(logits)` or `log(softmax(logits))`, with its sign turned or not.

Why: log-probabilities of every class are written to memory, and one of each row is read. `mx.fast.cross_entropy` reads
the logits once and writes one number a row.

Traffic: up to four passes over rows x classes become one read.

When not to: where the log-probabilities are needed for more than the target. Label smoothing, class weights and soft
targets read all of them. Another axis than the last. `nn.losses.cross_entropy` calls the fused kernel itself.

Fix safety: unsafe. `mx.fast.cross_entropy` came with MLX 0.32.2; it raises where the targets would have broadcast
against the logits. Its result is float32: the fix casts it back to the dtype of the logits. On the CPU it reduces in
the dtype of the logits, so an upcast of the logits stays. A target out of range, such as -100, has no defined value
before or after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.around import ahead, is_made_with
from fuselint.graph.model import Graph, Node, Slice, region
from fuselint.rulebook import Example, FusedKernel, Match

CODE, NAME = "FUS252", "unfused-cross-entropy"
ONE_VALUE = True

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

LAST = (-1,)


def unfused(logits: Any, targets: Any) -> Any:
    import mlx.core as mx

    picked = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    return mx.logsumexp(logits, axis=-1) - picked


def fused(logits: Any, targets: Any) -> Any:
    import mlx.core as mx

    return mx.fast.cross_entropy(logits, targets).astype(logits.dtype)


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        if n.op == "take_along_axis" and any(is_made_with(u, LOGARITHMS) for u in ahead(graph, n, 3)):
            yield n


LOGARITHMS = ("log", "logsumexp", "nn.log_softmax", "nn.LogSoftmax")


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        match = _difference(graph, node) or _log_probability(graph, node)
        if match is not None:
            yield match


def _difference(graph: Graph, root: Node) -> Match | None:
    """logsumexp(x) - take_along_axis(x, targets), or its negative."""
    if root.op != "subtract" or len(root.inputs) != 2:
        return None
    for total, picked, negative in ((0, 1, False), (1, 0, True)):
        norm, norm_keeps = _narrowed(graph, root.inputs[total])
        take, take_keeps = _narrowed(graph, root.inputs[picked])
        targets = _targets(graph, take)
        x = _of_logsumexp(graph, norm)
        if targets is None or x is None or take.inputs[0] is not x:
            continue
        norm_keeps = norm_keeps and norm.attrs.get("keepdims") is True
        if negative and _is_probability(graph, root):
            continue
        if norm_keeps is take_keeps and (take_keeps or not _cut_twice(norm, root.inputs[total])):
            return _made(graph, root, x, targets, negative, take_keeps, "logsumexp less the target's logit")
    return None


def _is_probability(graph: Graph, node: Node) -> bool:
    """Whether only `exp` reads it: the confidence in a drawn token. The fused loss, cast and negated, takes as many
    kernels, and there is no gradient to save."""
    readers = graph.users.get(node, ())
    return bool(readers) and node not in graph.escaping and all(r.op == "exp" for r in readers)


def _log_probability(graph: Graph, root: Node) -> Match | None:
    """take_along_axis(log-probabilities of x, targets), or its negative."""
    negative = root.op != "negative"
    take, keeps = _narrowed(graph, root if negative else root.inputs[0])
    targets = _targets(graph, take)
    x = None if targets is None else _of_log_softmax(graph, take.inputs[0])
    if targets is None or x is None:
        return None
    return _made(graph, root, x, targets, negative, keeps, "the log-probability of the target, of all that are made")


def _narrowed(graph: Graph, node: Node) -> tuple[Node, bool]:
    """What is below a removal of the last axis, and whether that axis is kept: there is no such removal."""
    if node.op == "squeeze":
        axis = node.attrs.get("axis")
        removes = axis is not None and graph.canonical.axes(node.inputs[0], axis) == LAST
    else:
        removes = node.op == "index" and len(node.inputs) == 1 and _takes_first_of_last(graph, node)
    return (node.inputs[0], False) if removes else (node, True)


def _takes_first_of_last(graph: Graph, node: Node) -> bool:
    """`x[..., 0]`, or `x[:, 0]` of two axes."""
    index = node.attrs.get("index")
    if not isinstance(index, (tuple, list)) or not index:
        return False
    *before, last = index
    if isinstance(last, bool) or last not in (0, -1):
        return False
    if before == [Ellipsis]:
        return True
    whole = all(isinstance(e, Slice) and e.takes_all for e in before)
    return whole and graph.facts.rank(node.inputs[0]) == len(index)


def _cut_twice(norm: Node, written: Node) -> bool:
    """Whether an axis goes from what logsumexp already reduced."""
    return written is not norm and norm.attrs.get("keepdims") is not True


def _targets(graph: Graph, take: Node) -> Node | None:
    """The targets, where a node takes one entry of the last axis for each: without the axis that it adds."""
    if take.op != "take_along_axis" or len(take.inputs) != 2 or take.attrs.get("axis") is None:
        return None
    x, indices = take.inputs
    if graph.canonical.axes(x, take.attrs["axis"]) != LAST or indices.op not in ("expand_dims", "index"):
        return None
    targets = indices.inputs[0]
    value = graph.canonical.of(indices)
    if value.op != "expand_dims" or value.param("axes") != LAST or value.args[0] is not graph.canonical.of(targets):
        return None
    return targets


def _of_logsumexp(graph: Graph, node: Node) -> Node | None:
    if node.op != "logsumexp" or not isinstance(node.attrs.get("keepdims", False), (bool, type(None))):
        return None
    axis = node.attrs.get("axis")
    return node.inputs[0] if axis is not None and graph.canonical.axes(node.inputs[0], axis) == LAST else None


def _of_log_softmax(graph: Graph, node: Node) -> Node | None:
    """x, where a node is the log-softmax of its last axis."""
    if node.op in ("nn.log_softmax", "nn.LogSoftmax"):
        x = node.inputs[0]
        return x if graph.canonical.axes(x, node.attrs.get("axis", -1)) == LAST else None
    if node.op == "log" and len(node.inputs) == 1 and node.inputs[0].op in ("softmax", "nn.softmax"):
        inner = node.inputs[0]
        axis = inner.attrs.get("axis")
        return inner.inputs[0] if axis is not None and graph.canonical.axes(inner.inputs[0], axis) == LAST else None
    if node.op == "subtract" and len(node.inputs) == 2:
        x, norm = node.inputs
        kept = norm.attrs.get("keepdims") is True
        return x if kept and _of_logsumexp(graph, norm) is x else None
    return None


def _made(graph: Graph, root: Node, x: Node, targets: Node, negative: bool, keeps: bool, how: str) -> Match | None:
    facts = graph.facts
    if facts.kind(root) != "array" or facts.kind(x) != "array" or facts.dtype(x).floating is False:
        return None
    if x.op == "astype" and graph.facts.dtype(x) == graph.facts.dtype(targets):
        return None  # cast to integers
    inside = region(root, [x, targets])
    own = set(inside)
    if any(
        facts.kind(n) == "array" and (n in graph.escaping or any(u not in own for u in graph.users.get(n, ())))
        for n in own - {root}
    ):
        return None  # the log-probabilities are needed anyway
    same = facts.dtype(root) == facts.dtype(x)
    float32 = facts.dtype(x).name == "float32"
    numerics: Numerics = "reassociated" if same else "different dtype"
    obligations = [
        Obligation("the classes are the last axis", "proven", how),
        Obligation("the targets are integers", "proven", "they index an array"),
        _one_each(graph, x, targets),
        Obligation(
            "the result keeps its dtype",
            "proven" if same else "unknown",
            f"{facts.dtype(x)} in, {facts.dtype(root)} out",
        ),
    ]
    if any(n.op == "log" for n in inside):
        numerics = "more accurate" if same else numerics
        obligations.append(
            Obligation("the array is not empty", "unknown", "mx.fast.cross_entropy raises for one, the code does not")
        )
    return Match(
        code=CODE,
        root=root,
        holes={"x": x, "targets": targets},
        message="cross entropy written out",
        obligations=obligations,
        region=frozenset(inside),
        fused=(
            FusedKernel("fast.cross_entropy", (x, targets), root),
            *(FusedKernel(op, (root,), root) for op, runs in (("astype", not float32), ("negative", negative)) if runs),
        ),
        shapes={"x": ("...", "V"), "targets": ("...",)},
        dtypes={"targets": "int"},
        numerics=numerics,
        data={"negative": negative, "keeps": keeps, "float32": float32},
    )


def _one_each(graph: Graph, x: Node, targets: Node) -> Obligation:
    claim = "there is one target for each row of logits"
    logits, given = graph.facts.shape(x), graph.facts.shape(targets)
    if logits is not None and given is not None and logits.replace(-1, ()) == given:
        return Obligation(claim, "proven", f"targets {given}, logits {logits}")
    return Obligation(claim, "unknown", "mx.fast.cross_entropy raises where they would broadcast")


EXAMPLES = [
    Example(
        HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    picked = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)\n"
        "    return mx.logsumexp(logits, axis=-1) - picked\n",
        fixed=HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    return mx.fast.cross_entropy(logits, targets).astype(logits.dtype)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    logp = nn.log_softmax(logits.astype(mx.float32), axis=-1)\n"
        "    return -mx.take_along_axis(logp, mx.expand_dims(targets, -1), axis=-1)[..., 0]\n",
        fixed=HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    return mx.fast.cross_entropy(logits.astype(mx.float32), targets)\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def score(logits: mx.array, targets: mx.array):\n"
        "    logp = logits - mx.logsumexp(logits, axis=-1, keepdims=True)\n"
        "    return mx.take_along_axis(logp, targets[..., None], axis=-1).squeeze(-1).sum()\n",
        fixed=HEAD + "def score(logits: mx.array, targets: mx.array):\n"
        "    return (-mx.fast.cross_entropy(logits, targets).astype(logits.dtype)).sum()\n",
        applicability="unsafe",
    ),
    Example(
        HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    logp = mx.log(mx.softmax(logits, axis=-1))\n"
        "    return -mx.take_along_axis(logp, targets[..., None], axis=-1)\n",
        fixed=HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    return mx.fast.cross_entropy(logits, targets).astype(logits.dtype)[..., None]\n",
        applicability="unsafe",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def loss(logits: mx.array, targets: mx.array):\n"
        "    logp = mx.log(mx.softmax(logits.astype(targets.dtype), axis=-1))\n"
        "    return -mx.take_along_axis(logp, targets[..., None], axis=-1)\n",
        why="logits that are cast to integers",
    ),
    Example(
        HEAD + "def f(logits: mx.array, targets: mx.array):\n"
        '    return nn.losses.cross_entropy(logits, targets, reduction="none")\n',
        why="fused already",
    ),
    Example(
        HEAD + "def f(logits: mx.array, targets: mx.array):\n"
        "    logp = nn.log_softmax(logits, axis=-1)\n"
        "    nll = -mx.take_along_axis(logp, targets[..., None], axis=-1).squeeze(-1)\n"
        "    return 0.9 * nll - 0.1 * logp.mean(axis=-1)\n",
        why="label smoothing reads every log-probability",
    ),
    Example(
        HEAD + "def f(logits: mx.array, targets: mx.array):\n"
        "    picked = mx.take_along_axis(logits, targets[:, None, :], axis=1)\n"
        "    return mx.logsumexp(logits, axis=1, keepdims=True) - picked\n",
        why="another axis than the last",
    ),
    Example(
        HEAD + "def f(logits: mx.array, targets: mx.array):\n"
        "    picked = mx.take_along_axis(logits, targets[..., None], axis=-1)\n"
        "    return mx.logsumexp(logits, axis=-1) - picked\n",
        why="one side has kept the axis: every row meets every target",
    ),
    Example(
        HEAD + "def f(logits: mx.array, best: mx.array):\n"
        "    logp = nn.log_softmax(logits, axis=-1)\n"
        "    return -mx.take_along_axis(logp, best, axis=-1)\n",
        why="several entries of each row",
    ),
    Example(
        HEAD + "def f(logits: mx.array, other: mx.array, targets: mx.array):\n"
        "    picked = mx.take_along_axis(other, targets[..., None], axis=-1).squeeze(-1)\n"
        "    return mx.logsumexp(logits, axis=-1) - picked\n",
        why="two different logits",
    ),
    Example(
        HEAD + "def confidence(logits: mx.array, token: mx.array):\n"
        "    picked = mx.take_along_axis(logits, token[..., None], axis=-1)[..., 0]\n"
        "    return mx.exp(picked - mx.logsumexp(logits, axis=-1))\n",
        why="a probability, not a loss: the fused loss is cast and negated, and has no gradient to save",
    ),
]
