"""Shapes as costs take them, where the rank isn't proven: an axis that the code makes is 1, whatever is around it.

`scale[:, None]` is one row for many, though nothing says how many axes `scale` has. Such shapes prove nothing, and only
traffic reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from fuselint.graph.across import MARK
from fuselint.graph.indexing import indexed
from fuselint.graph.model import Node, Slice
from fuselint.graph.op import REFUSED
from fuselint.graph.ops import TABLE, resolve_call
from fuselint.graph.ops_rules import same
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import joined

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

DEEPEST = 64
"""Operations that a shape is followed through."""

STEPS = 8
"""Operations between one of a sequence and what is computed of it."""

EQUALITIES = frozenset({"equal", "not_equal"})

RANK = 4
"""Of images, whose axes are summed over by their numbers."""

FILLED = frozenset({"zeros", "ones", "full"})
JOINS = frozenset({"phi", "loop"})

REPEATS = frozenset({"repeat", "tile", "broadcast_to"})

TURNED = frozenset({"swapaxes", "transpose"})
"""Operations whose result has as many axes as their operand."""

LEAST, LONGEST = 2, 3
"""Parts of an index that takes one of a sequence."""

MANY_AXES = 2
"""Axes that an index names one by one before a new one at its end: those are all there are."""

SAME_SHAPE = frozenset({"unary", "cast", "activation"})
NAMELESS = SAME_SHAPE | {"view", "copy", "gather", "layer", "conv"}
"""Kinds of operations whose operand may be better known than its rank is proven."""

ONE = Expr.of(1)


def likely(node: Node, facts: KnownFacts, depth: int = 0) -> Shape | None:
    """A node's shape: what is known of it, or what the axes that it is given suggest."""
    shape = facts.shape(node)
    if (shape is not None and shape.lead is None and not _is_nameless(node, shape)) or depth > DEEPEST:
        return shape
    if node not in facts.likely_shapes:
        facts.likely_shapes[node] = shape  # what it is where it depends on itself
        facts.likely_shapes[node] = _likely(node, facts, shape, depth)
    return facts.likely_shapes[node]


def _is_nameless(node: Node, shape: Shape) -> bool:
    """Whether the number of axes is all that is known of some value: its axes are called after it."""
    op = TABLE.get(node.op)
    may = node.op in (*JOINS, "call", "param", "index") or (op is not None and op.kind in NAMELESS)
    called_after = ".shape[" if may else f"%{node.id}.shape["
    return any(called_after in name for d in shape.dims for name in d.names)


def _likely(node: Node, facts: KnownFacts, shape: Shape | None, depth: int) -> Shape | None:
    found = _made(node, facts, shape, depth)
    if found is None or (shape is not None and found.lead is not None):
        return shape
    if (
        shape is not None
        and shape.lead is None
        and (len(shape.dims) != len(found.dims) or not _says_more(found, shape))
    ):
        return shape
    return found


def _says_more(found: Shape, shape: Shape) -> bool:
    def nameless(s: Shape) -> int:
        return sum(any(".shape[" in n for n in d.names) for d in s.dims)

    return nameless(found) < nameless(shape)


def _made(node: Node, facts: KnownFacts, shape: Shape | None, depth: int) -> Shape | None:
    """By what a value is made of."""
    if node in facts.arguments:
        outer, argument = facts.arguments[node]
        return likely(argument, outer, depth + 1)
    if node.op in FILLED:
        length = facts.size(node.attrs.get("shape"))  # `mx.ones(channels)`: a number, where nothing says a tuple
        return None if length is None else Shape(None, (length,))
    source = node.inputs[0] if node.inputs else None
    if source is None:
        return None
    found = None
    if node.op in JOINS or _is_binary(node):
        found = _made_equal(node, facts, depth) or _met(node, facts, depth) or _joined(node, facts, depth)
    elif _is_a_step(node):
        tail = (likely(source, facts, depth + 1) or Shape(f"%{source.id}", ())).tail(3)
        found = None if tail is None else Shape(None, (tail[0], tail[2]))
    elif node.op == "attr" and isinstance(node.attrs.get("init"), Node):
        found = likely(node.attrs["init"], facts, depth + 1)  # a weight, or None where there is none
    elif node.op == "attr":
        found = _of_layer(node, source, facts)
    elif node.op == "index":
        whole = likely(source, facts, depth + 1)
        index = node.attrs.get("index")
        whole = _named_axes(whole, index) or whole
        found = (
            _beside(node, whole, index, facts)
            or _indexed(whole, index, _rank_met(node, facts))
            or _cut(whole, index, facts)
            or _sliced(node, whole, facts)
        )
    elif node.op == "item" and _is_picked(node, source, facts):
        found = SCALAR
    elif node.op == "expand_dims":
        whole, axis = likely(source, facts, depth + 1), _number(node.attrs.get("axis"), facts)
        found = _expanded(whole, axis, _rank_met(node, facts))
    elif node.attrs.get("keepdims") is True:
        found = _kept(likely(source, facts, depth + 1), node.attrs.get("axis"))
    elif node.op == "item" and source.op == "split":
        found = _split(likely(source.inputs[0], facts, depth + 1), source.attrs.get("axis"), node, shape)
    elif node.op == "item" and source.op == "call":
        found = _cached(node, source, facts, depth)
    elif node.op == "call" and any(c.op is not None and c.op.shape is same for c in facts.callees(node)):
        found = likely(source, facts, depth + 1)
    elif node.op == "call":
        found = _returned(node, facts, depth) or _of_listed(node, source, facts, depth)
    elif node.op == "fast.scaled_dot_product_attention":
        found = likely(source, facts, depth + 1)
        width = _width(node.inputs[2], facts, depth + 1) if len(node.inputs) > 2 else None
        found = found.replace(-1, (width,)) if found is not None and width is not None else found
    elif node.op == "take_along_axis" and node.attrs.get("axis") is not None:
        found = likely(node.inputs[1], facts, depth + 1)  # as many axes, and what it isn't taken along meets
    elif node.op == "reshape":
        found = _reshaped(node.attrs.get("shape"), facts, depth) or _parted(node, source, facts, depth)
    elif node.op in TABLE and TABLE[node.op].kind in SAME_SHAPE:
        found = likely(source, facts, depth + 1)
    return found if found is not None else _by_rule(node, facts, depth)


def _width(node: Node, facts: KnownFacts, depth: int) -> Expr | None:
    """The last axis of the values that attention takes, and gives back, where something says it."""
    if node in facts.arguments:
        outer, argument = facts.arguments[node]
        return _width(argument, outer, depth + 1) if depth <= DEEPEST else None
    shape = likely(node, facts, depth + 1)
    last = None if shape is None else shape.axis(-1)
    if last is not None and not any(".shape[" in name for name in last.names):
        return last
    ways = node.inputs if node.op == "phi" and depth <= STEPS * 2 else ()
    return next((w for n in ways[::-1] if n.id < node.id and (w := _width(n, facts, depth + 1)) is not None), None)


LAYER_WEIGHTS = {
    ("nn.Linear", "weight"): ("output_dims", "input_dims"), ("nn.Linear", "bias"): ("output_dims",),
    ("nn.Embedding", "weight"): ("num_embeddings", "dims"), ("nn.RMSNorm", "weight"): ("dims",),
    ("nn.LayerNorm", "weight"): ("dims",), ("nn.LayerNorm", "bias"): ("dims",),
}  # fmt: skip
"""The axes of the weights of MLX's layers, by the arguments of their constructors."""


def _of_layer(node: Node, owner: Node, facts: KnownFacts) -> Shape | None:
    """`self.out.weight` of a layer that the constructor makes; quantized, it would be another layer."""
    for instance in facts.of(owner).instances:
        named = LAYER_WEIGHTS.get((instance.op.name if instance.op is not None else "", node.attrs["name"]))
        if named is None or instance.maker is None:
            continue
        maker, new = instance.maker
        sizes = [maker.size(arg) if isinstance(arg := new.attrs["args"].get(n), Node) else None for n in named]
        if None not in sizes:
            return Shape(None, tuple(s for s in sizes if s is not None))
    of_self = owner.op == "param" and owner is next(iter(facts.graph.params.values()), None)
    for base in facts.graph.module.lineage(facts.graph.context.class_name or "") if of_self else ():
        inherited = LAYER_WEIGHTS.get((base.removeprefix("mlx."), node.attrs["name"]))
        if inherited is not None:
            return Shape(None, tuple(map(Expr.name, inherited)))
    return None


def _returned(node: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """What a function of the package gives back for the likely shapes of its arguments: what it computes, and at its
    end, where it may also leave early."""
    returned = [(n, inside.facts) for inside in facts.into(node) for n in reversed(inside.returns) if n is not None]
    shapes = [likely(n, f, depth + 1) for n, f in sorted(returned, key=lambda r: r[0].op == "param")]
    fit = [s for s in shapes if s is not None and s.lead is None]
    return next((s for s in fit if not any(MARK in name for d in s.dims for name in d.names)), None)


def _of_listed(node: Node, source: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """What one of a list of MLX's layers gives, `for layer in self.layers: x = layer(x)`: the axes of its argument, of
    which a product with a weight has another last one."""
    owner, _, method = (node.attrs.get("target") or "").rpartition(".")
    op = resolve_call(owner) if method == "__call__" else None
    shape = likely(source, facts, depth + 1) if op is not None and op.kind in ("layer", "activation") else None
    if op is None or shape is None or shape.lead is not None or not shape.dims:
        return None
    if op.shape is same:
        return shape
    return shape.replace(-1, (Expr.name(f"{facts.name_of(node)}.shape[-1]"),)) if op.name == "nn.Linear" else None


def _by_rule(node: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """By the rule of MLX's operation, of operands of their likely shapes."""
    op = TABLE.get(node.op)
    if op is None or op.result != "array" or not node.inputs:
        return None
    shapes = [likely(n, facts, depth + 1) for n in node.inputs]
    if not any(
        s is not None and s.lead is None and s != facts.shape(n) for s, n in zip(shapes, node.inputs, strict=True)
    ):
        return None
    call = facts.call(node)
    if len(call.values) != len(shapes):
        return None
    given = tuple(None if v is None else replace(v, shape=s) for v, s in zip(call.values, shapes, strict=True))
    try:
        found = op.shape(replace(call, values=given))
    except REFUSED:
        return None
    return found if isinstance(found, Shape) and found.lead is None else None


def _joined(node: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """Of branches that join, the longest whose shape is known, of several one that repeats what another has, else the
    last; of a loop, the value before the first round."""
    ways = {"phi": node.inputs[::-1], "loop": node.inputs[:1]}.get(node.op, ())
    found = [(n, likely(n, facts, depth + 1)) for n in ways]
    found.sort(key=lambda way: way[0].op not in REPEATS)
    shapes = [s for _, s in found if s is not None and s.lead is None]
    longest = min(shapes, key=lambda s: (not s.dims, sum(d == 1 for d in s.dims)), default=None)
    if longest is None and node.op == "loop":
        return found[0][1]  # of unknown rank
    unknown = [n for n, s in found if (s is None or s.lead is not None) and facts.kind(n) in ("array", "unknown")]
    if longest is not None and ONE in longest.dims and any(n.op in TABLE or n.op == "call" for n in unknown):
        return None  # one row where there may be many
    if any(n.op == "reshape" and s == longest and n.inputs[0] in unknown and _is_folded(n) for n, s in found):
        return None  # a row where it isn't folded
    return longest


def _made_equal(node: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """`if x.shape != y.shape: y = shifted(y)` gives y the shape of x."""
    test = node.attrs.get("test") if node.op == "phi" else None
    if not isinstance(test, Node) or test.op not in EQUALITIES or [n.op for n in test.inputs] != ["shape", "shape"]:
        return None
    sides = [n.inputs[0] for n in test.inputs]
    same = node.inputs[test.op == "not_equal"]  # what it is where the shapes are the same
    if same not in sides or sides[0] is sides[1]:
        return None
    found = likely(sides[sides[0] is same], facts, depth + 1)
    return found if found is not None and found.lead is None else None


def _is_folded(reshape: Node) -> bool:
    """`x.reshape(-1, n)`"""
    sizes = reshape.attrs.get("shape")
    return isinstance(sizes, tuple) and len(sizes) == 2 and sizes[0] == -1


def _met(node: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """Of values that meet: that of one of a sequence, or of the one that is an array, or the one that all have."""
    step = next((n for n in node.inputs if _is_of_a_step(n)), None)
    arrays = [step] if step is not None else [n for n in node.inputs if facts.kind(n) != "scalar"]
    shapes = {likely(n, facts, depth + 1) for n in arrays}
    if len(shapes) == 1 and (len(arrays) == 1 or node.op in JOINS):
        return shapes.pop()
    if node.op in JOINS or step is not None or not arrays:
        return None
    met = reduce(joined, (likely(n, facts, depth + 1) for n in arrays))
    return met if met is not None and met.lead is None else None


def _is_a_step(node: Node) -> bool:
    """`x[..., t, :]`, `x[:, t]` or `x[t, ...]` for the t of a loop: one of a sequence. `x[t]` may be one of a batch."""
    parts = node.attrs.get("index") if node.op == "index" else None
    if not isinstance(parts, tuple) or not LEAST <= len(parts) <= LONGEST:
        return False
    steps = [p for p in parts if isinstance(p, Node)]
    rest = [p for p in parts if not isinstance(p, Node)]
    if len(steps) != 1 or not all(p is Ellipsis or (isinstance(p, Slice) and p.takes_all) for p in rest):
        return False
    if not any(p is steps[0] for p in parts[:2]):
        return False
    return steps[0].op == "item" and not isinstance(steps[0].attrs.get("index"), int)


def _is_of_a_step(node: Node) -> bool:
    """Whether a value is computed of one of a sequence, value by value."""
    ring, seen = [node], {node}
    for _ in range(STEPS):
        if any(map(_is_a_step, ring)):
            return True
        ring = [n for n in dict.fromkeys(k for r in ring for k in _value_by_value(r)) if n not in seen]
        seen.update(ring)
    return any(map(_is_a_step, ring))


def _value_by_value(node: Node) -> Sequence[Node]:
    """The operands of what computes each element of its own ones."""
    op = TABLE.get(node.op)
    if node.op == "item" and node.inputs and node.inputs[0].op == "split":
        return node.inputs[0].inputs[:1]
    fits = node.op in JOINS or (op is not None and op.kind in (*SAME_SHAPE, "binary"))
    return node.inputs if fits else ()


def _is_picked(node: Node, source: Node, facts: KnownFacts) -> bool:
    """`self.weights[0]`, of which nothing is known: a configuration's number, or one of an array."""
    return source.op == "attr" and facts.kind(node) == "unknown" and isinstance(node.attrs.get("index"), int)


def _number(axis: Any, facts: KnownFacts) -> Any:
    """An axis that is an argument is its default."""
    if isinstance(axis, Node) and isinstance(axis.attrs.get("default"), Node):
        axis = axis.attrs["default"]
    return facts.const(axis) if isinstance(axis, Node) else axis


def _kept(shape: Shape | None, axis: Any) -> Shape | None:
    """A sum over axes of an x of unknown rank, which are kept as 1: one axis at least follows the first two."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    if shape is None or not axes or not all(isinstance(a, int) for a in axes):
        return None
    count = len(shape.dims) if shape.lead is None else max(max(axes) + (2 if max(axes) < RANK - 1 else 1), -min(axes))
    sizes = shape.tail(count) if all(-count <= a < count for a in axes) else None
    if sizes is None or (shape.lead is not None and max(axes) < 0):
        return None
    gone = {a % count for a in axes}
    return Shape(None, tuple(ONE if i in gone else d for i, d in enumerate(sizes)))


def _beside(node: Node, whole: Shape | None, index: Any, facts: KnownFacts) -> Shape | None:
    """`slopes[:, None, None]` of slopes of unknown rank, beside an array of three axes: it has three, too."""
    parts = index if isinstance(index, tuple) else (index,)
    if whole is None or whole.lead is None or whole.dims or None not in parts:
        return None
    others = {n for u in facts.graph.users.get(node, ()) if _is_binary(u) for n in u.inputs if n is not node}
    ranks = {s.rank for n in others if facts.kind(n) == "array" and (s := facts.shape(n)) is not None}
    if ranks != {len(parts)} or not all(p is None or (isinstance(p, Slice) and p.takes_all) for p in parts):
        return None
    axes = (Expr.name(f"{whole.lead}.shape[{i}]") for i in range(len(parts)))
    return Shape(None, tuple(ONE if p is None else next(axes) for p in parts))


def _is_binary(node: Node) -> bool:
    return node.op in TABLE and TABLE[node.op].kind == "binary"


def _rank_met(node: Node, facts: KnownFacts) -> int | None:
    """The axes of what a value meets, in elementwise work or a product: those that it gets new ones to stand beside."""
    ring, ranks = {node}, set[int]()
    for _ in range(STEPS):
        users = {u for n in ring for u in facts.graph.users.get(n, ())}
        meets = [(n, u) for u in users if _is_binary(u) or u.op == "matmul" for n in u.inputs if n not in ring]
        ranks |= {r for n, _ in meets if (r := _rank(n, facts)) is not None}
        ring = {u for u in users if u.op in TURNED or (u.op in TABLE and TABLE[u.op].kind in (*SAME_SHAPE, "binary"))}
    return max(ranks, default=None)


def _rank(node: Node, facts: KnownFacts, depth: int = 0) -> int | None:
    """How many axes a value has, or what it is computed of element by element."""
    if (rank := facts.rank(node) or facts.likely_ranks.get(node)) is not None or depth > STEPS:
        return rank
    if _is_binary(node):
        return max((r for n in node.inputs if (r := _rank(n, facts, depth + 1)) is not None), default=None)
    keeps = _is_part(node) or (node.op in TABLE and TABLE[node.op].kind in SAME_SHAPE)
    return _rank(node.inputs[0], facts, depth + 1) if keeps else None


def _is_part(node: Node) -> bool:
    """`x[..., :n]`, which has the axes of x."""
    parts = node.attrs.get("index") if node.op == "index" else None
    return isinstance(parts, tuple) and all(p is Ellipsis or isinstance(p, Slice) for p in parts)


def _indexed(shape: Shape | None, index: Any, rank: int | None = None) -> Shape | None:
    """`x[:, None, :]` of an x of unknown rank names all its axes, so does `mask[:, :, None]`, and `x[:, None]` all but
    one, or as many as it takes to meet another array. rank: of that."""
    parts = index if isinstance(index, tuple) else (index,)
    if shape is not None and shape.lead is None and len(parts) == 2 and parts[0] is Ellipsis and _is_one(parts[1]):
        return Shape(None, shape.dims[:-1]) if shape.dims else None
    if not all(p is None or (isinstance(p, Slice) and p.takes_all) for p in parts):
        return None
    given = sum(p is not None for p in parts)
    if shape is None or None not in parts:
        return None
    if given == 0 if shape.lead is not None else len(shape.dims) < given:
        return None
    ends = parts[-1] is None and given < MANY_AXES and len(parts) < RANK  # `x[:, None, None, None]` has no further axis
    count = len(shape.dims) if shape.lead is None else given + ends
    if rank is not None and shape.lead is not None and parts[-1] is None and rank - parts.count(None) >= given:
        count = max(rank - parts.count(None), len(shape.dims))
    sizes = shape.tail(count)
    if sizes is None:
        return None
    if count == given and shape.lead is not None and not shape.dims:
        sizes = tuple(Expr.name(f"{shape.lead}.shape[{i}]") for i in range(count))
    rest = iter(sizes)
    return Shape(None, (*(ONE if p is None else next(rest) for p in parts), *rest))


def _cut(shape: Shape | None, index: Any, facts: KnownFacts) -> Shape | None:
    """`x[:, :n]` and `x[..., -n:]` take as many as they say: n is a number of them."""
    parts = index if isinstance(index, tuple) else (index,)
    if shape is None or not all(p is Ellipsis or isinstance(p, Slice) for p in parts):
        return None
    spread = parts[0] is Ellipsis
    taken = parts[1:] if spread else parts
    if Ellipsis in taken or (shape.lead is not None and not spread) or shape.tail(len(taken)) is None:
        return None
    sizes = list(shape.tail(len(taken)) or ()) if spread else list(shape.dims[: len(taken)])
    new = [d if p.takes_all else _length(p, facts) for p, d in zip(taken, sizes, strict=False)]
    if len(new) != len(taken) or None in new:
        return None
    cut = tuple(d for d in new if d is not None)
    if not spread:
        return Shape(None, (*cut, *shape.dims[len(taken) :]))
    front = shape.front(len(taken))
    return None if front is None else Shape(front[0], (*front[1], *cut))


def _named_axes(shape: Shape | None, index: Any) -> Shape | None:
    """The x of `x[:, :, n:, :]`, which has as many axes: its last part takes all of one, and would else say nothing."""
    parts = index if isinstance(index, tuple) else ()
    if shape is None or shape.lead is None or shape.dims or len(parts) <= MANY_AXES:
        return None
    if not all(isinstance(p, Slice) for p in parts) or not parts[-1].takes_all:
        return None
    return Shape(None, tuple(Expr.name(f"{shape.lead}.shape[{i}]") for i in range(len(parts))))


def _sliced(node: Node, shape: Shape | None, facts: KnownFacts) -> Shape | None:
    """What slices leave of a value whose rank is only likely."""
    index = node.attrs.get("index")
    parts = index if isinstance(index, tuple) else (index,)
    if shape is None or shape.lead is not None or not all(p is Ellipsis or isinstance(p, Slice) for p in parts):
        return None
    return indexed(shape, parts, facts, lambda i: Expr.name(f"%{node.id}.shape[{i}]"))


def _length(part: Slice, facts: KnownFacts) -> Expr | None:
    """How many a slice from the start, or of the last ones, takes by its own word."""
    if part.step is not None:
        return None
    if part.start in (None, 0) and isinstance(part.stop, Node):
        count: Any = part.stop
    elif part.stop is None and isinstance(part.start, Node) and part.start.op == "negative":
        count = part.start.inputs[0]
    else:
        return None
    size = facts.size(count) if facts.kind(count) in ("scalar", "unknown") else None
    return size if size is not None and size.bare is not None else None


def _is_one(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _expanded(shape: Shape | None, axis: Any, rank: int | None) -> Shape | None:
    """`expand_dims(x, 1)` is `x[:, None]`."""
    if not isinstance(axis, int) or axis < 0:
        return None
    return _indexed(shape, (*[Slice()] * axis, None), rank)


def _split(shape: Shape | None, axis: Any, node: Node, known: Shape | None) -> Shape | None:
    back = shape.from_end(axis) if shape is not None and isinstance(axis, int) else None
    if shape is None or back is None:
        return None
    size = known.axis(back) if known is not None and len(known.dims) >= -back else None
    return shape.replace(back, (size if size is not None else Expr.name(f"%{node.id}.shape[{back}]"),))


def _cached(node: Node, call: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """`k, v = cache.update(k, v)`: a method that is given arrays and gives back as many, which may be longer."""
    index, method = node.attrs.get("index"), call.attrs.get("callee")
    if not isinstance(index, int) or not isinstance(method, Node) or method.op != "attr":
        return None
    given = [n for n in call.inputs if facts.kind(n) == "array"]
    if len(given) < 2 or len(given) != node.attrs.get("count") or not 0 <= index < len(given):
        return None
    shape = likely(given[index], facts, depth + 1)
    if shape is None or shape.lead is not None or len(shape.dims) != 4:
        return None
    name = facts.graph.bound_names.get(node, "values")
    return shape.replace(2, (Expr.name(f"cached_{name}.shape[2]"),))


def _reshaped(sizes: Any, facts: KnownFacts, depth: int) -> Shape | None:
    """`x.reshape(n, 1, *[1] * count)`: however many axes of 1 there are, they hold nothing.

    `x.reshape(*x.shape[:-1], n, 2)` has the axes that x is likely to have.
    """
    dims: list[Expr] = []
    for size in sizes if isinstance(sizes, tuple) else (None,):
        if isinstance(size, Node) and size.op == "star":
            repeated = size.inputs[0]
            if repeated.op == "item" and repeated.inputs[0].op == "shape":
                taken = _part_of(likely(repeated.inputs[0].inputs[0], facts, depth + 1), repeated.attrs.get("index"))
                if taken is None:
                    return None
                dims += taken
                continue
            display = next((n for n in repeated.inputs if n.op in ("list", "tuple")), repeated)
            if not display.inputs or any(facts.const(n) != 1 for n in display.inputs):
                return None
            dims.append(ONE)
            continue
        found = facts.size(size)
        if found is None or found == -1:
            return None
        dims.append(found)
    return Shape(None, tuple(dims))


def _parted(node: Node, source: Node, facts: KnownFacts, depth: int) -> Shape | None:
    """`x.reshape(n, self.heads, -1)` of an x whose rank isn't proven parts its last axis, where that is known."""
    sizes = node.attrs.get("shape")
    if not isinstance(sizes, tuple) or len(sizes) < LONGEST or facts.size(sizes[-1]) != -1:
        return None
    parts, whole = sizes[-2], likely(source, facts, depth + 1)
    fits = whole is not None and (whole.lead is not None or len(whole.dims) == len(sizes) - 1)
    last = whole.axis(-1) if whole is not None and fits else None
    counts = isinstance(parts, int) or (isinstance(parts, Node) and parts.op in ("attr", "const"))
    if last is None or not counts or any(".shape[" in name or name.startswith("%") for name in last.names):
        return None
    dims = [facts.size(s) for s in sizes[:-1]]
    if None in dims or -1 in dims or 0 in dims:
        return None
    known = tuple(d for d in dims if d is not None)
    return Shape(None, (*known, last // known[-1]))


def _part_of(shape: Shape | None, part: Any) -> tuple[Expr, ...] | None:
    """`x.shape[:-1]`"""
    if shape is None or shape.lead is not None or not isinstance(part, Slice) or part.step is not None:
        return None
    ends = (part.start, part.stop)
    return shape.dims[slice(*ends)] if all(e is None or isinstance(e, int) for e in ends) else None
