"""FUS101 repeated-kv-heads: keys and values copied once for each query head before attention.

What it does: finds keys and values that are repeated along the head axis (by `repeat`, by a broadcast or a
concatenation along a new axis that is then merged into the heads) and only read by attention, also through rotary
embeddings, casts and the concatenation with a cache, which act on every head alike.

Why: the copy writes and reads heads/groups times the bytes of the keys and values at every step, and a cache that is
filled with the copies holds that many times too much. `mx.fast.scaled_dot_product_attention` takes grouped heads.

When not to: where heads are tiled (`tile`, `concatenate([k] * n, axis=1)`): attention groups them in interleaved
order. Where something between treats heads differently.

Fix safety: safe where the copies are read by attention alone. Unsafe where they are returned as a cache: its layout
changes, so a cache that was saved before can't be read any more. Where attention is written by hand, FUS211 goes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuselint.checks.attention import recognise
from fuselint.finding import Obligation, RegionInput
from fuselint.graph.around import is_made_with
from fuselint.graph.flow import callers, is_none_test
from fuselint.graph.model import Graph, Node, Slice, region
from fuselint.graph.values import Value
from fuselint.rulebook import Example, Match, Probe

CODE, NAME = "FUS101", "repeated-kv-heads"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

FUSED = "fast.scaled_dot_product_attention"

HEADS = 1
"""The head axis of (batch, heads, length, head dimension)."""


def unfused(q: Any, k: Any, v: Any, n: int, scale: float) -> Any:
    import mlx.core as mx

    k, v = mx.repeat(k, n, axis=1), mx.repeat(v, n, axis=1)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)


def fused(q: Any, k: Any, v: Any, n: int, scale: float) -> Any:
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)


@dataclass(eq=False)
class Repeats:
    """The repeats behind one operand of attention. `path`: the values between them and attention."""

    roots: list[tuple[Node, Node, Value]] = field(default_factory=list)  # (repeated, its source, how often)
    path: set[Node] = field(default_factory=set)
    cached: list[Node] = field(default_factory=list)  # what comes out of a cache
    stopped: bool = False


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        if n.op == FUSED and any(is_made_with(i, COPIES, 6) for i in n.inputs[1:3]):
            yield n


COPIES = ("repeat", "tile", "concatenate", "stack", "broadcast_to")


def find(graph: Graph) -> Iterator[Match]:
    seen: set[Node] = set()
    for node in graph.nodes:
        if node.op == FUSED and len(node.inputs) >= 3:
            k, v = node.inputs[1:3]
            others = [n for i, n in enumerate(node.inputs) if i not in (1, 2)]
            match = _match(graph, node, k, v, others, {node}, "")
            if match is not None and match.root not in seen:
                seen.add(match.root)
                yield match
    for found in recognise(graph):
        if found.has_heads_first:
            own = set(region(found.root, [found.q, found.k, found.v]))
            match = _match(graph, found.root, found.k, found.v, [found.q], own, "FUS211")
            if match is not None and match.root not in seen:
                seen.add(match.root)
                yield match


def _match(
    graph: Graph, attention: Node, k: Node, v: Node, others: Sequence[Node], own: set[Node], requires: str
) -> Match | None:
    """others: what attention reads besides keys and values, which needs the heads as they are."""
    keys, values = (_trace(graph, n) for n in (k, v))
    if keys.stopped or values.stopped or len(keys.roots) != 1 or len(values.roots) != 1:
        return None
    (k_root, k_source, k_times), (v_root, v_source, v_times) = keys.roots[0], values.roots[0]
    if k_times is not v_times or k_root is v_root or any(n in keys.path | values.path for n in others):
        return None
    escapes = _escapes(graph, keys.path | values.path, own)
    if escapes is None:
        return None
    inside = {*region(k_root, [k_source]), *region(v_root, [v_source])}
    obligations = [
        Obligation("keys and values are repeated equally often", "proven", "both by the same number"),
        Obligation("heads are repeated in interleaved order", "proven", "each head is copied next to itself"),
        Obligation(
            "what lies between acts on every head alike",
            "proven",
            "rotary embedding, cast, concatenation along the length",
        ),
    ]
    if escapes:
        obligations.append(
            Obligation(
                "no cache saved in the old layout", "unknown", "keys and values are returned as this function's cache"
            )
        )
        obligations.append(_handed_back(graph))
    else:
        obligations.append(Obligation("the copies are read by attention alone", "proven", "no other reader"))
    names = _Names(graph, k_source, k_times)
    match = Match(
        code=CODE,
        root=k_root,
        holes={"k": k_source, "v": v_source},
        message="keys and values are copied for every query head; attention takes grouped heads as they are",
        obligations=obligations,
        region=frozenset(inside),
        also=(v_root,),
        shapes={"k": names.grouped, "v": names.grouped},
        scalars=names.scalars(k_root),
        probe=names.probe if repeated(graph, k_root, HEADS) else None,
        numerics="bit-identical",
        related=[(attention, "the attention that reads them")],
        data={"roots": (k_root, v_root), "requires": (requires,) if requires else ()},
    )
    if match.probe is None:
        match.data["observe"] = attention
    return match


class _Names:
    """Names for the sizes of keys and values: the code's own for batch and length, G groups of n heads of D."""

    def __init__(self, graph: Graph, source: Node, times: Value) -> None:
        self.graph, self.times = graph, times
        shape = graph.facts.shape(source)
        dims = [str(d) for d in shape.dims] if shape is not None and shape.lead is None else []
        batch, length = (
            (d if d.isidentifier() else other for d, other in ((dims[0], "B"), (dims[2], "S"))) if dims else "BS"
        )
        n = "n" if times.number is None else str(int(times.number))
        self.heads = f"{n}*G"
        self.grouped = (batch, "G", length, "D")
        queries = RegionInput("query", "array", (batch, self.heads, length, "D"))
        attend = "mx.fast.scaled_dot_product_attention(query, {}, {}, scale=0.125)"
        twice = [f"mx.concatenate([result[{i}], result[{i}]], axis=2)" for i in (0, 1)]
        self.probe = Probe(f"result = ({attend.format('result[0]', 'result[1]')}, {attend.format(*twice)})", (queries,))

    def scalars(self, root: Node) -> dict[Value, str]:
        """The sizes of the scalars that the repeat reads."""
        out = {} if self.times.number is not None else {self.times: "n"}
        shape = root.attrs.get("shape")
        heads = self.graph.canonical.operand(shape[HEADS]) if isinstance(shape, tuple) else None
        if heads is not None and heads.number is None:
            out[heads] = self.heads
        return out


# -- where the operand comes from --------------------------------------------------------------------------------------


def _trace(graph: Graph, node: Node) -> Repeats:
    out = Repeats()
    _walk(graph, node, HEADS, out)
    return out


def _walk(graph: Graph, node: Node, axis: int, out: Repeats) -> None:
    """Back from attention to the repeats, through what acts on every head alike. `axis` is the head axis here."""
    repeat = repeated(graph, node, axis)
    out.path.add(node)
    if repeat is not None:
        out.roots.append((node, *repeat))
    elif node.op == "phi":
        _walk_join(graph, node, axis, out)
    elif node.op in ("fast.rope", "nn.RoPE", "astype", "contiguous"):
        _walk(graph, node.inputs[0], axis, out)
    elif node.op == "transpose" and node.attrs.get("axes") is not None:
        axes = node.attrs["axes"]
        if isinstance(axes, tuple) and len(axes) == 4 and all(isinstance(a, int) for a in axes):
            _walk(graph, node.inputs[0], axes[axis] % 4, out)
        else:
            out.stopped = True
    elif node.op == "concatenate" and node.attrs.get("axis") in (2, -2) and axis == HEADS:
        for part in node.inputs:
            if _from_cache(part):
                out.cached.append(part)
            else:
                _walk(graph, part, axis, out)
    else:
        out.stopped = True


def _walk_join(graph: Graph, node: Node, axis: int, out: Repeats) -> None:
    """A join: of a repeat with what it repeats (`if n > 1`), or of two ways to the same repeat (`if cache is None`)."""
    then, other = node.inputs
    for repeat_side, plain in ((then, other), (other, then)):
        repeat = repeated(graph, repeat_side, axis)
        if repeat is not None and repeat[0] is plain:
            out.path.add(repeat_side)
            out.roots.append((repeat_side, *repeat))
            return
    sides = [Repeats(), Repeats()]
    for side, value in zip(sides, node.inputs, strict=True):
        _walk(graph, value, axis, side)
        out.path |= side.path
        out.cached += side.cached
        out.stopped |= side.stopped
    roots = {r[0]: r for side in sides for r in side.roots}
    out.roots += roots.values()


def _from_cache(node: Node) -> bool:
    """An element of an argument, such as `key_cache, value_cache = cache`, or `cache[0]`."""
    while node.op in ("item", "index") and node.inputs:
        node = node.inputs[0]
    return node.op == "param"


def repeated(graph: Graph, node: Node, axis: int) -> tuple[Node, Value] | None:
    """(source, times) of a node that repeats its source's heads in interleaved order."""
    if node.op == "repeat":
        times = graph.canonical.operand(node.attrs.get("repeats"))
        own = node.attrs.get("axis")
        rank = graph.facts.rank(node.inputs[0])
        if isinstance(own, int) and times is not None and (own == axis or (own < 0 and own + (rank or 4) == axis)):
            return node.inputs[0], times
        return None
    if node.op != "reshape" or not _merges(graph, node, axis):
        return None
    return _copied(graph, node.inputs[0], axis + 1)


def _copied(graph: Graph, node: Node, axis: int) -> tuple[Node, Value] | None:
    """(source, times) of a node with copies of its source along a new axis."""
    canonical = graph.canonical
    if node.op in ("concatenate", "stack") and node.attrs.get("axis") == axis and len(node.inputs) == 1:
        display = node.inputs[0]
        if display.op == "multiply" and len(display.inputs) == 2:
            listed, times = display.inputs if display.inputs[0].op == "list" else display.inputs[::-1]
            if listed.op == "list" and len(listed.inputs) == 1:
                source = listed.inputs[0] if node.op == "stack" else _new_axis(graph, listed.inputs[0], axis)
                return None if source is None else (source, canonical.of(times))
        return None
    if node.op in ("concatenate", "stack") and node.attrs.get("axis") == axis and len(set(node.inputs)) == 1:
        source = node.inputs[0] if node.op == "stack" else _new_axis(graph, node.inputs[0], axis)
        return None if source is None else (source, canonical.algebra.number(float(len(node.inputs))))
    if node.op in ("broadcast_to", "repeat") and node.inputs:
        source = _new_axis(graph, node.inputs[0], axis)
        if source is None:
            return None
        if node.op == "repeat":
            times = canonical.operand(node.attrs.get("repeats"))
            return (source, times) if node.attrs.get("axis") == axis and times is not None else None
        shape = node.attrs.get("shape")
        times = canonical.operand(shape[axis]) if isinstance(shape, tuple) and len(shape) == 5 else None
        return None if times is None else (source, times)
    return None


def _new_axis(graph: Graph, node: Node, axis: int) -> Node | None:
    """The value that gets a new axis here."""
    if node.op == "expand_dims" and node.attrs.get("axis") in (axis, (axis,)):
        return node.inputs[0]
    if node.op == "index":
        index = node.attrs.get("index") or ()
        before = index[:axis]
        rest = index[axis + 1 :]
        if len(index) > axis and index[axis] is None and all(_everything(e) for e in (*before, *rest)):
            return node.inputs[0]
    return None


def _everything(entry: object) -> bool:
    return entry is Ellipsis or (isinstance(entry, Slice) and entry.takes_all)


def _merges(graph: Graph, node: Node, axis: int) -> bool:
    """Whether a reshape to rank 4 merges the axis after the heads into the heads, and leaves the others alone."""
    shape = node.attrs.get("shape")
    if not isinstance(shape, tuple) or len(shape) != 4:
        return False
    wide = graph.facts.rank(node.inputs[0])
    if wide is not None and wide != 5:
        return False
    copied = _copied(graph, node.inputs[0], axis + 1)
    if copied is None:
        return False
    source, canonical = copied[0], graph.canonical
    free = 0
    for i, entry in enumerate(shape):
        size = canonical.operand(entry)
        if i == axis:
            free += size is not None and size.is_number(-1.0)
            continue
        if size is not None and size.is_number(-1.0):
            free += 1
        elif size is not canonical.size_of(source, i) and size is not canonical.size_of(source, i - 4):
            return False
    return free <= 1


# -- who else reads the copies -----------------------------------------------------------------------------------------


def _escapes(graph: Graph, path: set[Node], own: set[Node]) -> bool | None:
    """Whether the copies are returned; None where something else reads them."""
    returned = False
    for node in path:
        for user in graph.users.get(node, ()):
            if user in path or user in own or is_none_test(user):
                continue
            if user.op in ("dtype", "ndim") or (user.op == "dim" and user.attrs.get("axis") not in (HEADS, HEADS - 4)):
                continue
            if user.op == "shape" and all(
                u.op == "dim" and u.attrs.get("axis") not in (HEADS, HEADS - 4) for u in graph.users.get(user, ())
            ):
                continue
            if user.op == "tuple" and _only_returned(graph, user):
                returned = True
                continue
            if user.op == "tuple" and not graph.users.get(user) and user not in graph.escaping:
                continue  # a tuple that was unpacked at once
            return None
        if node in graph.escaping:
            return None
    return returned


def _only_returned(graph: Graph, display: Node) -> bool:
    users = graph.users.get(display, ())
    if not users:
        return any(n is display for _, n in graph.returns)
    return display not in graph.escaping and all(u.op == "tuple" and _only_returned(graph, u) for u in users)


def _handed_back(graph: Graph) -> Obligation:
    """Whether the callers in this file give the returned cache back to this function, and do nothing else with it."""
    claim = "callers only hand the cache back"
    places = []
    for caller, call in callers(graph):
        for item in caller.users.get(call, ()):
            if item.op != "item" or item.attrs.get("index") in (0, None):
                continue
            for user in caller.users.get(item, ()):
                if user.op not in ("tuple", "list", "call", "phi", "loop") and not is_none_test(user):
                    return Obligation(claim, "unknown", f"`{user.op}` reads it in {caller.context.qualname}")
        places.append(caller.context.qualname)
    if not places:
        return Obligation(claim, "unknown", "no caller in this file")
    return Obligation(claim, "proven", f"in {', '.join(sorted(set(places)))}")


EXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, n: int, scale: float):\n"
        "    k = mx.repeat(k, n, axis=1)\n"
        "    v = mx.repeat(v, n, axis=1)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)\n",
        fixed=HEAD + "def attend(q, k, v, n: int, scale: float):\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)\n",
        applicability="safe",
    ),
    Example(
        HEAD + "def attend(q, k, v, n: int, scale: float, mask=None):\n"
        "    k = k.astype(q.dtype)\n"
        "    if n > 1:\n"
        "        k = mx.repeat(k, n, axis=1)\n"
        "        v = mx.repeat(v, n, axis=1)\n"
        "    if mask is not None:\n"
        "        length = k.shape[2]\n"
        "        mask = mask[..., :length]\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        fixed=HEAD + "def attend(q, k, v, n: int, scale: float, mask=None):\n"
        "    k = k.astype(q.dtype)\n"
        "    if mask is not None:\n"
        "        length = k.shape[2]\n"
        "        mask = mask[..., :length]\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)\n",
        applicability="safe",
        why="the length of the copies is that of the keys",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def attend(q, k, v, n: int, scale: float):\n"
        "    k = mx.tile(k, (1, n, 1, 1))\n"
        "    v = mx.tile(v, (1, n, 1, 1))\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)\n",
        why="tiled heads stand in another order",
    ),
    Example(
        HEAD + "def attend(q, k, v, n: int, scale: float):\n"
        "    k = mx.concatenate([k] * n, axis=1)\n"
        "    v = mx.concatenate([v] * n, axis=1)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)\n",
        why="concatenated along the heads, they stand in tiled order",
    ),
    Example(
        HEAD + "def attend(q, k, v, n: int, bias, scale: float):\n"
        "    k = mx.repeat(k, n, axis=1) + bias\n"
        "    v = mx.repeat(v, n, axis=1)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale)\n",
        why="a bias stands between, which may differ from head to head",
    ),
]
