"""FUS211 unfused-attention: attention written out as matmul, softmax, matmul.

What it does: finds `softmax(q @ k.T * scale + mask) @ v` in any spelling: the scale on queries, keys, scores or split
between them; a mask that is added, selected by `where`, or guarded by `is not None`; casts around the softmax; keys
transposed in any way, or an `mx.einsum` for each product; attention sinks as a column that is joined to the scores and
cut off the weights; query heads in groups of a fifth axis, over which keys and values broadcast. Finds keys and values
of zeros that are put in front of the others to make room for sinks in the mask.

Why: the scores, batch x heads x queries x keys, are written to memory and read back by every step. At 4,096 tokens
that is most of what attention moves. `mx.fast.scaled_dot_product_attention` keeps them on chip.

When not to: where the weights are returned or used again, where something other than a mask stands between the two
matmuls (a soft cap, dropout). Where MLX has no fused kernel for the head dimension, as far as the code, defaults of
configurations and the calls that make the layer say it, it runs the same steps: there padding to the next size is
advice, or nothing is said. One head that is as wide as the input is left alone where nothing says how wide that is.

Fix safety: safe where operands are of rank 4 and of one dtype, and there is no mask or one of their dtype. Unsafe where
the mask's dtype is not known (a float32 mask on half-precision queries raises) and where the result's dtype changes.
Casts of queries and keys to float32 are kept, and the result is cast back as it was. Sinks are cast to the queries'
dtype, which is unsafe where nothing says that they have it. Zeros in front of keys and values are advice: the mask,
the cache and its offset change with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.around import ahead
from fuselint.graph.fact import COMPARISONS
from fuselint.graph.gates import Version
from fuselint.graph.heads import Heads, of_operands, padded_to, target_of, without_kernel
from fuselint.graph.identities import none_test
from fuselint.graph.identities_linear import composed, permuted, swap
from fuselint.graph.identities_views import FULL
from fuselint.graph.model import PROPERTIES, Graph, Node, region
from fuselint.graph.ops import EXPONENTIALS
from fuselint.graph.shapes import Shape
from fuselint.graph.values import ONE, Value
from fuselint.rulebook import Example, FusedKernel, Hole, Match, Synthesised

CODE, NAME = "FUS211", "unfused-attention"

FUSED = "fast.scaled_dot_product_attention"

WHOLE = frozenset({"bool_", "int32", "int64", "uint8"})
"""Dtypes that promote to any floating one."""

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    import mlx.core as mx

    scores = (q * scale) @ k.swapaxes(-1, -2) + mask
    return mx.softmax(scores, axis=-1, precise=True) @ v


def fused(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    import mlx.core as mx

    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Attention as it is written in a graph.

    root: the value that it ends in; weights: the softmax; scores: the matmul of queries and keys.
    keys_axes: how the keys' node has to be transposed to be (batch, heads, length, head dimension); None: not at all.
    queries_axes, values_axes: the same of queries and values. result_axes: how the result has to be transposed; None:
    not at all. mask is a boolean keep-mask where `keep`.
    sinks: one more score for each head, which takes weight and has no value; None: there are none.
    """

    root: Node
    weights: Node
    q: Node
    k: Node
    v: Node
    scale: Hole
    mask: Hole | None
    keep: bool
    keys_axes: tuple[int, ...] | None
    result_axes: tuple[int, ...] | None
    guarded: bool
    problem: str = ""
    sinks: Node | None = None
    queries_axes: tuple[int, ...] | None = None
    values_axes: tuple[int, ...] | None = None

    @property
    def has_heads_first(self) -> bool:
        """Whether keys and values are (batch, heads, length, head dimension) as they are."""
        return self.keys_axes is None and self.values_axes is None


def recognise(graph: Graph) -> Iterator[Attention]:
    """The attentions of a graph, whatever their obligations."""
    for node in () if graph.ops.isdisjoint(EXPONENTIALS) else graph.nodes:
        if node.op in ("matmul", "einsum"):
            found = _Reader(graph, node).read()
            if found is not None:
                yield found


class _Reader:
    """Reads the canonical value of one matmul as attention."""

    def __init__(self, graph: Graph, root: Node) -> None:
        self.graph, self.root, self.canonical = graph, root, graph.canonical
        self.algebra = self.canonical.algebra
        self.slice = region(root, ())
        self.known = set(self.slice)

    def read(self) -> Attention | None:
        value, result_axes = self.canonical.of(self.root), None
        if value.op == "permute":
            result_axes, value = value.param("perm"), value.args[0]
        if value.op != "matmul":
            return None
        weights, values = value.args
        first = _cut(weights)
        if first is not None:
            weights = weights.args[0]
        if weights.op != "softmax" or weights.param("axes") != (-1,):
            return None
        scores, sinks = weights.args[0], None
        if first is not None:
            joined = self.joined(scores, first)
            if joined is None:
                return None
            scores, sinks = joined
        softmax = self.node_of(weights, ("softmax", "nn.softmax", "divide", "multiply"))
        v, values_axes = self.turned(values)
        if softmax is None or v is None:
            return None
        read = self.scores(scores)
        if read is None:
            return None
        product, scale, mask, keep, guarded, problem = read
        queries, transposed = product.args
        k_value, keys_axes = self.keys(transposed)
        q, queries_axes = self.turned(queries)
        if k_value is None or q is None:
            return None
        k = self.written(k_value)
        hole = self.scale(scale, q)
        grouped = k is not None and _is_grouped(self.graph, q, k, v)
        if k is None or hole is None or not (grouped or _shaped_like_keys(self.graph, q, k, keys_axes)):
            return None
        if grouped and (sinks is not None or any(a is not None for a in (keys_axes, result_axes, queries_axes))):
            return None
        if mask is not None and not isinstance(mask, Synthesised) and mask not in self.known:
            return None
        if keys_axes is not None and len(keys_axes) > 4:
            return None
        if sinks is not None and (sinks in (q, k, v) or not self.graph.facts.dtype(q).floating):
            return None  # they are cast to the queries' dtype
        turns = (None if a is None else _of_rank_4(a) for a in (keys_axes, result_axes, queries_axes, values_axes))
        keys, out, *others = turns
        return Attention(self.root, softmax, q, k, v, hole, mask, keep, keys, out, guarded, problem, sinks, *others)

    # -- operands --------------------------------------------------------------------------------------------------

    def node_of(self, value: Value, ops: tuple[str, ...] = ()) -> Node | None:
        """The last node of the slice that has this value, of one of the operations where any are named."""
        nodes = [n for n in self.canonical.nodes(value) if n in self.known]
        named = [n for n in nodes if n.op in ops]
        return (named or nodes or [None])[-1]

    def written(self, value: Value) -> Node | None:
        """The value as the matmul gets it: a cast to float32 before it is kept, for the fused op computes so too."""
        return self.node_of(value)

    def turned(self, value: Value) -> tuple[Node | None, tuple[int, ...] | None]:
        """Queries or values, and the permutation of all but their last axis that is left to do: an einsum's."""
        node = self.written(value)
        if node is not None or value.op != "permute":
            return node, None
        axes: tuple[int, ...] = value.param("perm")
        return (self.written(value.args[0]), axes) if axes[-1] == -1 and len(axes) <= 4 else (None, None)

    def scale(self, value: Value, q: Node) -> Hole | None:
        """The scale as written, or as what it is of the queries."""
        hole = self.canonical.as_hole(value)
        head_dim = self.canonical.size_of(q, -1)
        if isinstance(hole, Synthesised) and value is self.algebra.power(head_dim, Fraction(-1, 2)):
            # A name that the code has for the size reads better, and doesn't evaluate the queries again.
            named = all(n.op in ("attr", "param", "const") for n in hole.operands.values())
            return hole if named else Synthesised("{q}.shape[-1] ** -0.5", {"q": q})
        return hole

    def keys(self, transposed: Value) -> tuple[Value | None, tuple[int, ...] | None]:
        """The keys whose transpose this is, and the permutation left to do, where it isn't just the last two axes."""
        if transposed.op == "permute":
            keys = permuted(self.canonical, transposed, swap(-1, -2))
            if self.node_of(keys) is not None:
                return keys, None
            return transposed.args[0], composed(swap(-1, -2), transposed.param("perm"))
        if transposed.op == "swapaxes" and transposed.param("pair") == (2, 3):  # of rank 4, as the fused op asks
            return transposed.args[0], None
        node = self.written(transposed)
        if node is None or self.graph.facts.rank(node) != 4:
            return None, None
        return transposed, swap(-1, -2)  # kept as (batch, heads, head dimension, length): in a cache, too

    def joined(self, value: Value, first: bool) -> tuple[Value, Node] | None:
        """(scores, sinks) of a column that is joined to the scores, in front of them or behind."""
        if value.op != "concatenate" or value.param("axis") not in (-1, 3) or len(value.args) != 2:
            return None
        column, scores = value.args if first else value.args[::-1]
        if column.op in ("broadcast_to", "tile"):
            given = column.param("shape" if column.op == "broadcast_to" else "reps")
            if not isinstance(given, tuple) or len(given) < 3:
                return None
            heads, _, width = given[-3:]
            if not _is_one(width) or (column.op == "tile" and not _is_one(heads)):
                return None
            column = column.args[0]
        added = column.op == "expand_dims" and column.param("axes") in ((-4, -2, -1), (0, 2, 3))
        shaped = column.op == "reshape" and [d.number for d in column.args[1:]] == [1, -1, 1, 1]
        if not added and not shaped:
            return None
        sinks = self.node_of(column.args[0])
        return None if sinks is None or self.graph.facts.rank(sinks) not in (1, None) else (scores, sinks)

    # -- scores ----------------------------------------------------------------------------------------------------

    def scores(self, value: Value) -> tuple[Value, Value, Hole | None, bool, bool, str] | None:
        """(matmul, scale, mask, whether True keeps, whether the mask may be None, what stands in the way)."""
        selected = self.selected(value)
        if selected is not None:
            inner, mask, guarded = selected
            split = self.split(inner)
            if split is None or split[2]:
                return None
            return split[0], split[1], mask, True, guarded, ""
        split = self.split(value)
        if split is None:
            return None
        product, scale, terms = split
        if not terms:
            return product, scale, None, False, False, ""
        if any(term.scalar for term, _ in terms):
            return None  # a number is no mask
        if any(c != 1.0 for _, c in terms) and len(terms) == 1:
            whole = self.node_of(self.algebra.scale(*terms[0]))
            return None if whole is None else (product, scale, whole, False, False, "")
        names: dict[str, Node] = {}
        guards, problem = 0, ""
        for i, (term, c) in enumerate(terms):
            guards += term.op == "guarded"
            if term.op == "guarded" and term.args[0] is not term.param("by"):
                problem = "the mask that is added is not the value whose `is not None` guards it"
            node = self.mask_node(term.args[0] if term.op == "guarded" else self.algebra.scale(term, c))
            if node is None:
                return None
            names[f"m{i}"] = node
        if len(names) == 1:
            return product, scale, names["m0"], False, bool(guards), problem
        if guards:
            problem = problem or "one of several masks may be None"
        return product, scale, Synthesised(" + ".join(f"{{{n}}}" for n in names), names), False, bool(guards), problem

    def mask_node(self, value: Value) -> Node | None:
        """A mask as written last: its casts are meant for the scores' dtype."""
        return self.node_of(value)

    def split(self, value: Value) -> tuple[Value, Value, list[tuple[Value, float]]] | None:
        """scale x matmul + the other terms."""
        found: tuple[Value, Value] | None = None
        others: list[tuple[Value, float]] = []
        if value.constant:
            return None
        for term, c in self.terms(value):
            outer = [(b, e) for b, e in term.factors if b.scalar]
            inner = [(b, e) for b, e in term.factors if not b.scalar]
            if found is None and len(inner) == 1 and inner[0][0].op == "matmul" and inner[0][1] == 1:
                found = inner[0][0], self.algebra.product(c * term.coefficient, outer)
            else:
                others.append((term, c))
        return None if found is None else (*found, others)

    def terms(self, value: Value) -> list[tuple[Value, float]]:
        """The terms of a sum, or of scalars times a sum: those are multiplied in."""
        if value.op == "product":
            sums = [b for b, e in value.factors if b.op == "sum" and e == 1]
            rest = [(b, e) for b, e in value.factors if not (b.op == "sum" and e == 1)]
            if len(sums) == 1 and all(b.scalar for b, _ in rest) and not sums[0].constant:
                return [(self.algebra.product(value.coefficient * c, [*rest, (m, ONE)]), 1.0) for m, c in sums[0].terms]
        return list(value.terms)

    def selected(self, value: Value) -> tuple[Value, Hole, bool] | None:
        """where(mask, scores, -inf), perhaps under `mask is not None`."""
        guarded = False
        if value.op == "phi":
            phi = self.node_of(value, ("phi",))
            test = None if phi is None or phi.op != "phi" else none_test(self.canonical, phi.attrs["test"])
            if test is None:
                return None
            marker, present = test
            then, other = value.args if present else value.args[::-1]
            if then.op != "where" or then.args[0] is not marker:
                return None
            if other not in then.args[1:]:
                return None
            value, guarded = then, True
        if value.op != "where" or len(value.args) != 3:
            return None
        condition, kept, dropped = value.args
        mask = self.node_of(condition)
        if mask is None:
            return None
        if _is_fill(self, dropped):
            return kept, mask, guarded
        if _is_fill(self, kept) and not guarded:
            return dropped, Synthesised("{mx}.logical_not({m})", {"m": mask}), False
        return None


def _cut(weights: Value) -> bool | None:
    """True where all but the first weight of each row are taken, False where all but the last."""
    if weights.op != "index":
        return None
    index = weights.param("index")
    *before, last = index[:4] if index[4:] == ("...",) else index  # of rank 4, as the fused op asks
    if before not in (["..."], [FULL] * 3):
        return None
    if not isinstance(last, tuple) or last[0] != "slice" or last[3] is not None:
        return None
    start, stop = (None if e is None else e.number for e in last[1:3])
    return {(1, None): True, (None, -1): False}.get((start, stop))


def _is_one(size: Value | int | None) -> bool:
    return size is not None and (size == 1 if isinstance(size, int) else size.is_number(1.0))


def _is_fill(reader: _Reader, value: Value) -> bool:
    """A number so low that its weight is zero: -1e9 or below, -inf, the dtype's lowest."""
    if value.number is not None:
        return value.number <= -1e9
    if value.op == "number":
        return value.param("value") == "-inf"
    if value.op == "product" and value.coefficient == -1.0 and len(value.factors) == 1:
        inner = value.factors[0][0]
        return inner.op == "number" and inner.param("value") == "inf"
    return False


def _of_rank_4(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + 4 for a in [*range(-4, -len(perm)), *perm])


def _shaped_like_keys(graph: Graph, q: Node, k: Node, axes: tuple[int, ...] | None) -> bool:
    """Where the ranks are known, they are those of attention: 4, or 3 on both sides."""
    ranks = graph.facts.rank(q), graph.facts.rank(k)
    known = [r for r in ranks if r is not None]
    return all(r in (3, 4) for r in known) and len(set(known)) <= 1 and not (3 in known and axes is not None)


def _is_grouped(graph: Graph, q: Node, k: Node, v: Node) -> bool:
    """Whether queries are (batch, heads of keys, group, length, head dimension), and keys and values broadcast over the
    groups: flattened, these are the heads that the fused op repeats keys for."""
    shapes = [s for n in (q, k, v) if (s := graph.facts.shape(n)) is not None and s.rank == 5]
    if len(shapes) < 3:
        return False
    return all(s.axis(-3) == 1 and s.axis(-4) == shapes[0].axis(-4) for s in shapes[1:])


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        if n.op in ("softmax", "nn.softmax", "exp") and any(u.op in ("matmul", "einsum") for u in ahead(graph, n, 4)):
            yield n


def find(graph: Graph) -> Iterator[Match]:
    for found in recognise(graph):
        match = _match(graph, found)
        if match is not None:
            yield match
    yield from _rooms_for_sinks(graph)


def _match(graph: Graph, found: Attention) -> Match | None:
    facts = graph.facts
    root = found.root
    sinks = [found.sinks] if found.sinks is not None else []
    arrays = [found.q, found.k, found.v]
    if found.mask in arrays:
        return None  # broadcast as the one, of rank 4 as the other
    mask = _cast_to_queries(graph, found)
    masks = [n for n in _mask_nodes(mask) if n is not found.q]
    scale_nodes = _scale_nodes(found.scale)
    inside = region(root, [*arrays, *masks, *sinks, *scale_nodes])
    if found.weights not in inside:
        return None
    rank = next((r for r in (facts.rank(n) for n in arrays) if r is not None), None)
    length = -2 if found.queries_axes is None else found.queries_axes[-2] - 4
    heads = without_kernel(
        graph, lambda known: of_operands(known, arrays, length), lambda known: [known.shape(n) for n in arrays[:1]]
    )
    obligations = [_rank(graph, arrays, rank), _unread(graph, root, inside, [*arrays, *masks])]
    if heads is None and rank == 3 and _is_one_head_of_all_channels(graph, found.q):
        return None
    gate = _Gate(heads, target_of(graph))
    obligations += gate.obligations
    numerics, dtype, cast_back = _dtypes(graph, found, root, inside)
    obligations.append(dtype)
    if mask is not None:
        obligations.append(_mask_dtype(graph, found, mask, masks))
    holes: dict[str, Hole] = {"q": found.q, "k": found.k, "v": found.v, "scale": found.scale}
    dtypes: dict[str, str] = {}
    if mask is not None:
        holes["mask"] = mask
    cast_sinks = found.sinks is not None and not facts.dtype(found.sinks) <= facts.dtype(found.q)
    if found.sinks is not None:
        holes["sinks"] = found.sinks
        obligations.append(_sinks(graph, found))
        numerics = "different dtype" if cast_sinks else numerics
    batch = ("B", "H") if rank != 3 else ("H",)
    shapes = {"q": (*batch, "L", "D"), "k": (*batch, "S", "D"), "v": (*batch, "S", "D"), "sinks": ("H",)}
    if rank == 5:
        shapes |= {"q": ("B", "H", "G", "L", "D"), "k": ("B", "H", "1", "S", "D"), "v": ("B", "H", "1", "S", "D")}
        obligations += [_has_two_axes(graph, m) for m in masks]
    for key, node in _mask_keys(mask, masks):
        shapes[key] = _mask_shape(facts.shape(node), facts.shape(found.q), rank)
        dtypes[key] = "bool" if found.keep else "mask"
    turns = {"q": found.queries_axes, "k": found.keys_axes, "v": found.values_axes}
    shapes |= {key: _permuted_back(shapes[key], axes) for key, axes in turns.items() if axes is not None}
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=f"hand-written attention: the scores go to memory and back at every step{gate.said}",
        obligations=obligations,
        region=frozenset(inside),
        fused=(FusedKernel(FUSED, (*arrays, *masks, *sinks), root),) if gate.is_open else (),
        has_traffic=gate.is_open,
        shapes=shapes,
        dtypes=dtypes,
        numerics=numerics,
        related=[(found.weights, "the softmax over keys")],
        data={
            "axes": turns,
            "result_axes": found.result_axes,
            "rank": rank,
            "cast_back": cast_back,
            "problem": found.problem or gate.problem,
            "cast_sinks": cast_sinks,
        },
    )


def _is_one_head_of_all_channels(graph: Graph, q: Node) -> bool:
    """Whether queries are as wide as the images that the function is given: only its caller knows how wide that is, and
    in image models it is more than any fused kernel takes."""
    queries = graph.facts.shape(q)
    batch, width = (None, None) if queries is None else (queries.axis(-3), queries.axis(-1))
    given = (graph.facts.shape(n) for n in graph.nodes if n.op == "param")
    whole = ((s.axis(0), s.axis(-1)) for s in given if s is not None and s.lead is None and len(s.dims) > 3)
    return None not in (batch, width) and (batch, width) in whole


@dataclass(frozen=True, slots=True)
class _Gate:
    """What follows from a head dimension for which MLX has no fused kernel of many queries; of None, nothing."""

    heads: Heads | None
    target: Version

    @property
    def is_open(self) -> bool:
        return self.heads is None

    @property
    def decodes(self) -> bool:
        return self.heads is not None and self.heads.is_fused(1, self.target)

    @property
    def room(self) -> int | None:
        return None if self.heads is None else padded_to(self.heads, self.target)

    @property
    def obligations(self) -> list[Obligation]:
        if self.heads is None or self.decodes or self.room:
            return []
        claim = f"MLX has a fused kernel for a head dimension of {self.heads.size}"
        return [Obligation(claim, "contradicted", self.heads.because if self.heads.is_likely else "it is a constant")]

    @property
    def said(self) -> str:
        if self.heads is None:
            return ""
        where = f" ({self.heads.owners})" if self.heads.is_likely else ""
        size = f"a head dimension of {self.heads.size}{where}"
        if self.decodes:
            return f"; for {size} MLX chooses its fused kernel on Metal where there are few queries"
        padded = f": padded with zeros to {self.room}, one does" if self.room else ""
        return f"; no fused kernel on Metal takes {size}{padded}"

    @property
    def problem(self) -> str:
        if self.heads is None or self.decodes or not self.room:
            return ""
        return (
            f"pad queries, keys and values with zeros to a head dimension of {self.room}, keep the scale, and cut the"
            " result: else the fused op runs the same steps on Metal"
        )


def _mask_nodes(mask: Hole | None) -> list[Node]:
    if mask is None:
        return []
    return list(mask.operands.values()) if isinstance(mask, Synthesised) else [mask]


def _mask_keys(mask: Hole | None, masks: list[Node]) -> Iterator[tuple[str, Node]]:
    """What a match calls the arrays of its mask."""
    if isinstance(mask, Synthesised) and len(mask.operands) > 1:
        yield from ((f"mask.{name}", node) for name, node in mask.operands.items() if node in masks)
    else:
        yield from (("mask", node) for node in masks)


def _cast_to_queries(graph: Graph, found: Attention) -> Hole | None:
    """The mask, cast to the queries' dtype where it is cast to that of the scores, or only where there is one."""
    mask = found.mask
    if not isinstance(mask, Node) or mask.op != "astype" or found.keep:
        return mask
    base = mask
    while base.op == "astype":
        base = base.inputs[0]
    dtype = mask.attrs.get("dtype")
    own = isinstance(dtype, Node) and dtype.op == "dtype" and dtype.inputs[0] in region(found.root, _operands(found))
    cast = Synthesised("{m}.astype({q}.dtype)", {"m": base, "q": found.q})
    if found.guarded:
        return Synthesised(f"None if {{m}} is None else {cast.template}", cast.operands)
    return cast if own else mask


def _operands(found: Attention) -> list[Node]:
    return [found.q, found.k, found.v, *_mask_nodes(found.mask), *_scale_nodes(found.scale)]


def _scale_nodes(scale: Hole) -> list[Node]:
    return list(scale.operands.values()) if isinstance(scale, Synthesised) else [scale]


def _mask_shape(mask: Shape | None, q: Shape | None, of: int | None) -> tuple[str, ...]:
    """A mask has a row for each query and key, the same for all heads, unless its own shape says otherwise."""
    full = ["B", "1", "L", "S"] if of != 3 else ["1", "L", "S"]
    rank = None if mask is None else mask.rank
    if mask is None or rank is None or not 2 <= rank <= len(full):
        return ("L", "S")
    heads = None if q is None else q.axis(-3)
    if rank > 2 and heads is not None and heads != 1 and mask.axis(-3) == heads:
        full[-3] = "H"
    if rank > 3 and mask.axis(-4) == 1:
        full[-4] = "1"
    return tuple(full[-rank:])


def _permuted_back(shape: tuple[str, ...], axes: tuple[int, ...]) -> tuple[str, ...]:
    out = [""] * len(shape)
    for i, a in enumerate(axes):
        out[a] = shape[i]
    return tuple(out)


def _rank(graph: Graph, arrays: list[Node], rank: int | None) -> Obligation:
    claim = "queries, keys and values have rank 4"
    if rank == 3:
        return Obligation(
            "queries, keys and values have rank 3, the first axis stands for heads", "proven", _why(graph, arrays)
        )
    if rank == 4:
        return Obligation(claim, "proven", _why(graph, arrays))
    if rank == 5:
        claim = "queries are grouped by the head of keys that they share, over which keys and values broadcast"
        return Obligation(claim, "proven", _why(graph, arrays))
    return Obligation(claim, "unknown", "nothing in this function says their rank")


def _has_two_axes(graph: Graph, mask: Node) -> Obligation:
    claim = "the mask has two axes"
    rank = graph.facts.rank(mask)
    if rank is None:
        return Obligation(claim, "unknown", "nothing in this function says its rank")
    return Obligation(claim, "proven" if rank <= 2 else "contradicted", graph.facts.why(mask))


def _why(graph: Graph, arrays: list[Node]) -> str:
    known = next(n for n in arrays if graph.facts.rank(n) is not None)
    return graph.facts.why(known)


def _unread(graph: Graph, root: Node, inside: list[Node], holes: list[Node]) -> Obligation:
    claim = "scores and attention weights are read by nothing else"
    own = set(inside)
    hot: set[Node] = set()  # what depends on the operands: a shared constant or size may well be read elsewhere
    for n in inside:
        if any(i in hot or i in holes for i in n.inputs) and graph.facts.kind(n) in ("array", "unknown"):
            hot.add(n)
    for n in hot - {root}:
        read = n in graph.escaping or any(u not in own and u.op not in PROPERTIES for u in graph.users.get(n, ()))
        if read and not _is_prepared_operand(n, own):
            return Obligation(claim, "contradicted", f"`{n.op}` is also used outside")
    return Obligation(claim, "proven", "every value between the operands and the result has one reader")


def _is_prepared_operand(node: Node, own: set[Node]) -> bool:
    """Queries or keys that were scaled, cast or transposed: they stay where they are needed elsewhere."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen or n not in own:
            continue
        seen.add(n)
        if n.op in ("matmul", "einsum", "softmax", "nn.softmax", "exp"):
            return False
        stack.extend(n.inputs)
    return True


def _dtypes(graph: Graph, found: Attention, root: Node, inside: list[Node]) -> tuple[Numerics, Obligation, bool]:
    """What the rewrite does to precision and dtype, and whether the result has to be cast back to the values' dtype."""
    facts = graph.facts
    joint = facts.dtype(found.q) | facts.dtype(found.k) | facts.dtype(found.v)
    result = facts.dtype(root)
    claim = "the result keeps its dtype"
    if "float32" in result and "float32" not in joint:
        because = "the attention weights are float32 and are not cast back"
        return "different dtype", Obligation(claim, "unknown", because), False
    precise = bool(found.weights.attrs.get("precise")) or "float32" in facts.dtype(found.weights.inputs[0])
    numerics: Numerics = "reassociated" if precise else "more accurate"
    if "float32" in joint and "float32" not in result:
        if result != facts.dtype(found.v):
            return (
                "different dtype",
                Obligation(claim, "unknown", "queries or keys are float32, the result is not"),
                False,
            )
        because = "queries or keys are float32, the result has the values' dtype: it is cast back"
        return numerics, Obligation(claim, "proven", because), True
    return numerics, Obligation(claim, "proven", "operands and result have the activations' dtype"), False


def _sinks(graph: Graph, found: Attention) -> Obligation:
    claim = "the sinks are one number a head, of the queries' dtype"
    assert found.sinks is not None
    if graph.facts.rank(found.sinks) is None:
        return Obligation(claim, "unknown", "nothing says their rank")
    if graph.facts.dtype(found.sinks) <= graph.facts.dtype(found.q):
        return Obligation(claim, "proven", graph.facts.why(found.sinks))
    return Obligation(claim, "unknown", "they are cast to it")


def _mask_dtype(graph: Graph, found: Attention, mask: Hole | None, masks: list[Node]) -> Obligation:
    """Of an added mask: True adds one, but the fused op reads it as a position to keep."""
    claim = "the mask is no boolean, and its dtype promotes to the queries'"
    facts = graph.facts
    if found.keep:
        return _selects(graph, found)
    if masks and all(_is_boolean(graph, m) for m in masks):
        return Obligation(claim, "contradicted", "a boolean is added, and hides nothing")
    joint = facts.dtype(found.q) | facts.dtype(found.k) | facts.dtype(found.v)
    if mask is not found.mask and isinstance(found.mask, Node):
        if facts.dtype(found.mask) == facts.dtype(found.q):
            return Obligation(claim, "proven", "it is cast to the queries' dtype")
        return Obligation("queries have the dtype to which the mask is cast", "unknown", "nothing says so")
    dtypes = [facts.dtype(m) for m in masks]
    if all(d <= joint or d <= WHOLE for d in dtypes):
        return Obligation(claim, "proven", "the mask is made in the queries' dtype")
    because = "a float32 mask on half-precision queries raises; nothing here says the mask's dtype"
    if any(d.name == "float32" for d in dtypes):
        because = "it is float32, which half-precision queries refuse; nothing here says theirs"
    return Obligation(claim, "unknown", because)


# -- keys and values of zeros ------------------------------------------------------------------------------------------


def _rooms_for_sinks(graph: Graph) -> Iterator[Match]:
    """A key of zeros scores what the mask says; a value of zeros adds nothing: together they are a sink."""
    longer = [n for n in graph.nodes if _starts_with_zeros(graph, n)]
    for i, k in enumerate(longer):
        for v in longer[i + 1 :]:
            axes = {n.attrs["axis"] for n in (k, v)}
            if len(axes) == 1 and k.inputs[1] is not v.inputs[1] and _read_together(graph, k, v):
                yield Match(
                    code=CODE,
                    root=k,
                    holes={"k": k.inputs[1], "v": v.inputs[1]},
                    message="a key and a value of zeros make room for an attention sink; attention takes sinks",
                    obligations=[
                        Obligation("the mask's first column holds the sinks", "unknown", "it is made elsewhere")
                    ],
                    region=frozenset({k, v, k.inputs[0], v.inputs[0]}),
                    related=[(v, "the values with zeros in front")],
                    data={"problem": ROOM},
                    has_traffic=False,
                )
                return


ROOM = (
    "leave the zeros out of keys, values and cache, and the first column out of the mask,"
    " and pass that column, one number a head, as sinks="
)


def _starts_with_zeros(graph: Graph, node: Node) -> bool:
    """Whether one row of zeros stands before all of another array's rows, along neither the first nor the last axis."""
    axis = node.attrs.get("axis")
    if node.op != "concatenate" or not isinstance(axis, int) or axis in (0, -1, 3) or len(node.inputs) != 2:
        return False
    zeros, rest = node.inputs
    shape = zeros.attrs.get("shape")
    if zeros.op != "zeros" or not isinstance(shape, tuple) or len(shape) != 4:
        return False
    size = graph.canonical.operand(shape[axis])
    return size is not None and size.is_number(1.0) and rest.op != "index"  # `x[:, :-1]`: a shift


def _read_together(graph: Graph, k: Node, v: Node) -> bool:
    """Whether something reads both, through joins: attention, a cache, or a function that is not of this file."""
    readers = []
    for node in (k, v):
        seen, stack = set[Node](), [node]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend(u for u in graph.users.get(n, ()) if u.op == "phi")
        readers.append({u for n in seen for u in graph.users.get(n, ()) if u.op in ("call", FUSED)})
    return bool(readers[0] & readers[1])


def _selects(graph: Graph, found: Attention) -> Obligation:
    """Whether a mask that `where` selects by is boolean: the fused kernel adds another one."""
    claim = "the mask is boolean"
    if not isinstance(found.mask, Node):
        return Obligation(claim, "proven", "it is negated")
    if _is_boolean(graph, found.mask):
        return Obligation(claim, "proven", graph.facts.why(found.mask))
    other = graph.facts.dtype(found.mask).name is not None or found.mask in (found.q, found.k, found.v)
    return Obligation(claim, "contradicted" if other else "unknown", graph.facts.why(found.mask))


def _is_boolean(graph: Graph, mask: Node) -> bool:
    return graph.facts.dtype(mask).name == "bool_" or mask.op in COMPARISONS or mask.op.startswith("logical_")


EXAMPLES = [
    Example(
        HEAD + "class Attention(nn.Module):\n"
        "    def __init__(self, dims, heads):\n"
        "        super().__init__()\n"
        "        self.heads = heads\n"
        "        self.scale = (dims // heads) ** -0.5\n"
        "        self.qkv = nn.Linear(dims, 3 * dims)\n"
        "        self.out = nn.Linear(dims, dims)\n\n"
        "    def __call__(self, x):\n"
        "        B, L, D = x.shape\n"
        "        qkv = self.qkv(x).reshape(B, L, 3 * self.heads, -1).transpose(0, 2, 1, 3)\n"
        "        q, k, v = mx.split(qkv, 3, axis=1)\n"
        "        scores = (q * self.scale) @ k.swapaxes(-1, -2)\n"
        "        weights = mx.softmax(scores.astype(mx.float32), axis=-1).astype(scores.dtype)\n"
        "        y = (weights @ v).transpose(0, 2, 1, 3).reshape(B, L, D)\n"
        "        return self.out(y)\n",
        fixed=HEAD + "class Attention(nn.Module):\n"
        "    def __init__(self, dims, heads):\n"
        "        super().__init__()\n"
        "        self.heads = heads\n"
        "        self.scale = (dims // heads) ** -0.5\n"
        "        self.qkv = nn.Linear(dims, 3 * dims)\n"
        "        self.out = nn.Linear(dims, dims)\n\n"
        "    def __call__(self, x):\n"
        "        B, L, D = x.shape\n"
        "        qkv = self.qkv(x).reshape(B, L, 3 * self.heads, -1).transpose(0, 2, 1, 3)\n"
        "        q, k, v = mx.split(qkv, 3, axis=1)\n"
        "        y = (\n"
        "            mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale)\n"
        "            .transpose(0, 2, 1, 3)\n"
        "            .reshape(B, L, D)\n"
        "        )\n"
        "        return self.out(y)\n",
        applicability="safe",
    ),
    Example(
        HEAD + "def attend(q, k, v, sinks: mx.array, scale: float):\n"
        "    B, H, L, D = q.shape\n"
        "    column = mx.broadcast_to(sinks.reshape(1, -1, 1, 1), (B, H, L, 1))\n"
        "    scores = mx.concatenate([(q * scale) @ k.swapaxes(-1, -2), column], axis=-1)\n"
        "    return mx.softmax(scores, axis=-1, precise=True)[..., :-1] @ v\n",
        fixed=HEAD + "def attend(q, k, v, sinks: mx.array, scale: float):\n"
        "    return mx.fast.scaled_dot_product_attention(\n"
        "        q, k, v, scale=scale, sinks=sinks.astype(q.dtype)\n"
        "    )\n",
        applicability="unsafe",
        why="the sinks may have another dtype",
    ),
    Example(
        HEAD + "def keys_and_values(k, v, cache):\n"
        "    B, H, L, D = k.shape\n"
        "    zeros = mx.zeros((B, H, 1, D), dtype=k.dtype)\n"
        "    k = mx.concatenate([zeros, k], axis=2)\n"
        "    v = mx.concatenate([zeros, v], axis=2)\n"
        "    return cache.update_and_fetch(k, v)\n",
        applicability="none",
        why="the mask, the cache and its offset change too",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def f(q, k, v):\n    return mx.softmax(mx.tanh(q @ k.swapaxes(-1, -2) / 30) * 30, axis=-1) @ v\n",
        why="a soft cap stands between the matmul and the softmax",
    ),
    Example(
        HEAD + "def f(q, k, v):\n    w = mx.softmax(q @ k.swapaxes(-1, -2), axis=-1)\n    return w @ v, w\n",
        why="the weights are returned",
    ),
    Example(
        HEAD + "def f(q, k, v):\n    return mx.softmax(q @ k.swapaxes(-1, -2), axis=-1)[..., 1:] @ v\n",
        why="the first key takes weight and has no value, and it is no sink",
    ),
    Example(
        HEAD + "def shifted(k, v, attend):\n"
        "    B, H, L, D = k.shape\n"
        "    zeros = mx.zeros((B, H, 1, D))\n"
        "    k = mx.concatenate([zeros, k[:, :, :-1]], axis=2)\n"
        "    return attend(k, mx.concatenate([zeros, v[:, :, :-1]], axis=2))\n",
        why="keys and values move on by one position",
    ),
    Example(
        HEAD + "def f(q, k, v, mask):\n    return mx.softmax((q @ k.swapaxes(-1, -2) + mask) * 0.125, axis=-1) @ v\n",
        why="the mask is scaled too",
    ),
    Example(
        HEAD + "def f(q, k, v):\n    return mx.softmax(q @ k.swapaxes(-1, -2), axis=-2) @ v\n",
        why="softmax over queries",
    ),
    Example(HEAD + "def f(q, k, v):\n    return mx.softmax(q @ k, axis=-1) @ v\n", why="the keys are not transposed"),
]
