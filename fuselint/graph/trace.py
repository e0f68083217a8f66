"""A function's nodes as a tape of MLX arrays: what eager MLX runs, and what mx.compile starts from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import libcst as cst

from fuselint.graph import expand_fused, expand_index, expand_losses, expand_products, expand_reduce, expand_views
from fuselint.graph import ops_rules as rules
from fuselint.graph import tape_views as v
from fuselint.graph.dtypes import DType
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.fuse import compiled
from fuselint.graph.gates import Gates
from fuselint.graph.likely import likely
from fuselint.graph.model import Node, Slice, operands
from fuselint.graph.op import REFUSED, Op
from fuselint.graph.ops import TABLE, function_of
from fuselint.graph.primitives import ACTIVATIONS, COMPOSITES
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import SHARED, Array, Operand, Scalar, Tracer, concrete, names
from fuselint.graph.unstated import counted

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

EXPANDED: dict[str, Expand] = {
    **expand_views.EXPANDED,
    **expand_reduce.EXPANDED,
    **expand_products.EXPANDED,
    **expand_fused.EXPANDED,
    **expand_losses.EXPANDED,
}

NOT_ARRAYS = names(
    """
    param const global attr shape dtype ndim size dim tuple list dict compare not and or new function star starred
    """
)
"""Structural ops: values that MLX does not compute."""

OPAQUE = "Opaque"
"""What stands for a value that isn't MLX's own computation: a join of branches, or a call that isn't understood."""

PARAMETERS = frozenset({"weight", "bias"})
"""Attributes that are arrays, whatever they are of."""

Traced = Array | Scalar | tuple[Array, ...] | None


@dataclass(eq=False)
class Trace:
    """The arrays of a set of nodes. What they read and don't hold is an input.

    eager: as eager MLX runs it, where a function of mlx.nn that MLX compiles is kernels of its own.
    counted: what dtypes that nobody states are counted as, by their symbols.
    """

    facts: KnownFacts
    tracer: Tracer
    made: dict[Node, Traced]
    counted: Mapping[str, str]
    gates: Gates = field(default_factory=Gates)
    eager: bool = False
    weights: dict[tuple[Hashable, str], Array] = field(default_factory=dict)

    def array(self, node: Node) -> Array | None:
        """The array that holds the node's value."""
        value = self.made.get(node)
        return value if isinstance(value, Array) else None

    def results(self, node: Node) -> tuple[Array, ...]:
        """The array of the node, or the arrays of several results."""
        value = self.made.get(node)
        return value if isinstance(value, tuple) else (value,) if isinstance(value, Array) else ()

    def shape(self, node: Node) -> Shape | None:
        """The shape to count the node's value with."""
        return likely(node, self.facts)

    def dtype(self, node: Node) -> str:
        """The dtype to count the node's value with."""
        return concrete(self.facts.dtype(node).bound(self.counted), self.gates.dtype)

    # -- operands -----------------------------------------------------------------------------------------------------

    def operand(self, node: Node) -> Operand | None:
        if node not in self.made:
            self.made[node] = self.outside(node)
        value = self.made[node]
        return None if isinstance(value, tuple) else value

    def outside(self, node: Node) -> Traced:
        """A value that the traced nodes don't compute."""
        if node.op == "const":
            return _scalar(node.attrs.get("value"))
        if self.facts.kind(node) == "scalar" or is_configured(node, self.facts):
            return self.number(node)
        given = self.facts.dtype(node).bound(self.counted)
        if self.facts.kind(node) == "unknown" and given.weak:  # as the package's calls give it
            return Scalar(node, "int" if given == DType({"weak int"}) else "float")
        if self.facts.kind(node) in ("array", "unknown"):
            made = self.tracer.input(self.shape(node), self.dtype(node))
            made.node = node
            return made
        return None

    def operands(self, node: Node) -> list[Operand]:
        return [x for n in node.inputs if (x := self.operand(n)) not in (None, NOTHING)]

    def weight(self, node: Node, name: str, sizes: Iterable[Expr | None], dtype: str) -> Array:
        """A parameter of the layer that a node calls."""
        owner = node.attrs.get("path") or node.attrs.get("new") or node
        found = self.weights.get((owner, name))
        if found is None:
            dims = tuple(sizes)
            shape = None if None in dims else Shape(None, tuple(d for d in dims if d is not None))
            before, self.tracer.node = self.tracer.node, None
            found = self.weights[owner, name] = self.tracer.input(shape, dtype)
            self.tracer.node = before
        return found

    # -- nodes --------------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        self.tracer.node = node
        op = TABLE.get(node.op)
        self.tracer.arguments = None if op is not None and op.elementwise else self.key(node)
        try:
            self.made[node] = self.value(node)
        except REFUSED:
            given = [x for n in operands(node) if isinstance(x := self.operand(n), Array)]
            self.made[node] = self.opaque(given, node)

    def key(self, node: Node) -> Hashable:
        """The arguments of a node's primitives. Two nodes of one op with equal keys and inputs compute the same."""
        attrs = {k: v for k, v in node.attrs.items() if k not in ("new", "init", "default")}
        axis, rank = attrs.get("axis"), self.facts.rank(node.inputs[0]) if node.inputs else None
        if type(axis) is int and axis < 0 and rank:
            attrs["axis"] = axis + rank
        return (node.op, *sorted((k, _frozen(v)) for k, v in attrs.items()))

    def value(self, node: Node) -> Traced:
        op = TABLE.get(node.op)
        if node.op == "const":
            return _scalar(node.attrs.get("value"))
        if node.op in NOT_ARRAYS:
            return self.outside(node) if node.op in ("param", "global", "attr") else self.not_array(node)
        if self.facts.kind(node) == "scalar":
            return self.number(node)
        if op is None:
            return self.structural(node)
        if op.operator is not None and self.facts.kind(node) not in ("array", "unknown"):
            return None  # `[x] * n`
        return self.operation(node, op)

    def not_array(self, node: Node) -> Traced:
        return self.number(node) if self.facts.kind(node) == "scalar" else None

    def number(self, node: Node) -> Scalar:
        """A Python number that the graph doesn't know: sizes are ints, the rest counts as floats."""
        if "complex64" in self.facts.dtype(node):
            return Scalar(node, "complex")
        return Scalar(node, "int" if node.op in ("dim", "ndim", "size") else "float")

    def structural(self, node: Node) -> Traced:
        if node.op == "index":
            return self.index(node)
        if node.op == "item":
            return self.item(node)
        arrays = [x for n in operands(node) if isinstance(x := self.operand(n), Array)]
        # A join, or a call that isn't understood: it reads its operands, and nothing is fused across it.
        return self.tracer.make(OPAQUE, arrays, self.shape(node), self.dtype(node), NotImplemented)

    def item(self, node: Node) -> Traced:
        """One of several results, or a row of an array that a loop goes through or that is unpacked."""
        if self.facts.kind(node) not in ("array", "unknown"):
            return self.not_array(node)
        source = self.made.get(node.inputs[0]) if node.inputs else None
        index = node.attrs.get("index")
        if isinstance(source, tuple) and isinstance(index, int) and -len(source) <= index < len(source):
            return source[index]
        whole = source[0] if isinstance(source, tuple) and source else source
        if isinstance(whole, Array) and whole.primitive == "Split" and node.inputs[0].op == "split":
            key = (self.key(node.inputs[0]), index)  # one of unknown length, or whichever a step takes
            return self.tracer.make("Split", whole.inputs, self.shape(node), self.dtype(node), key)
        arrays = [x for n in operands(node) if isinstance(x := self.operand(n), Array)]
        if isinstance(source, tuple):
            arrays = [source[0]]
        if not arrays:
            return self.opaque((), node)
        if isinstance(node.cst, cst.Subscript) and self.facts.kind(node.inputs[0]) == "array":
            return self.index(node)
        return self.make("Item", arrays[:1], node)

    def operation(self, node: Node, op: Op) -> Traced:
        """As MLX makes it: Python numbers among the operands take an array's dtype."""
        known = [self.operand(n) for n in self.spelt_out(node)]
        given = [NOTHING if x is None else x for x in known]  # an argument that is None keeps its place
        if op.name in ("add", "multiply") and len(given) == 2 and isinstance(given[0], Scalar) and _is_operator(node):
            given.reverse()  # `2 * x` is x.__rmul__(2), which multiplies x by 2
        if given and all(x == NOTHING for x in given) and op.kind not in ("create", "random"):
            return self.opaque((), node)
        if op.name == "array":
            return self.constant(node)
        numbers = [x for x in given if isinstance(x, Scalar) and x != NOTHING]
        if op.operator is not None and given and len(numbers) == len(given):
            whole = op.name != "divide" and all(x.kind == "int" for x in numbers)
            return Scalar(node, "int" if whole else "float")
        if self.is_numpys(node):
            return self.opaque([x for x in given if isinstance(x, Array)], node)  # NumPy computes on the host
        unknown = None in known  # neither an array nor a number
        if is_compiled(node) and self.eager and not unknown:
            return self.own_kernels(node, op, given)
        return self.expanded(Applied(self, self.tracer, node, op, given), unknown=unknown)

    def is_numpys(self, node: Node) -> bool:
        """`np.sqrt(2.0) * x`: NumPy's scalar stands first, so that its operator takes the array."""
        at = node.inputs[0] if _is_operator(node) and len(node.inputs) == 2 else None
        known, way = self.facts.from_numpy, []
        while at is not None and at not in known and at.op in TABLE and _is_operator(at) and at.inputs:
            way.append(at)
            at = next((n for n in at.inputs if n.op == "call"), at.inputs[0])
        if at is None:
            return False
        is_call = at.op == "call" and str(at.attrs.get("target")).startswith("numpy.")
        found = known.get(at, is_call)
        known.update(dict.fromkeys(way, found))
        return found

    def spelt_out(self, node: Node) -> list[Node]:
        """The inputs, with each element of a list that is repeated in its place, once."""
        out: list[Node] = []
        for n in node.inputs:
            listed = next((k for k in n.inputs if k.op in ("list", "tuple")), None) if n.op == "multiply" else None
            out.extend(listed.inputs if listed is not None and self.facts.kind(n) == "tuple" else (n,))
        return out

    def expanded(self, w: Applied, *, unknown: bool = False) -> Traced:
        """The primitives of one call."""
        op, t, given = w.op, w.t, [x for x in w.given if x != NOTHING]
        elementwise = COMPOSITES.get(op.name) or ACTIVATIONS.get(function_of(w.node) or op.name)
        if elementwise is not None:
            if unknown:
                return self.opaque([x for x in given if isinstance(x, Array)], w.node)
            return elementwise(t, w.given, w.node.attrs)
        if op.kind == "cast":
            return t.astype(t.array(given[0]), self.dtype(w.node))
        if op.kind == "unary":
            return self.unary(w, t.array(given[0]))
        if op.kind == "binary" and len(given) == 2:
            return self.binary(op, given)
        if op.name == "stop_gradient":
            return t.unary("StopGradient", t.array(given[0]))
        expand = EXPANDED.get(op.function or "") or EXPANDED.get(op.name)
        found = None if expand is None else expand(w)
        return self.settled(w, found) if found is not None else self.listed(w, [t.array(x) for x in given])

    def unary(self, w: Applied, a: Array) -> Array:
        op, t = w.op, w.t
        is_complex = a.dtype == "complex64"
        if op.name in ("real", "conjugate") and not is_complex:
            return a
        if op.name == "imag" and not is_complex:
            return t.full(a.shape, a.dtype, 0)
        if op.name == "logical_not":
            a = t.astype(a, "bool_")
        dtype = "float32" if is_complex and op.name in ("real", "imag") else ""
        key = op.name if op.primitives[0] in SHARED else None
        out = t.unary(op.primitives[0], a, floating=op.dtype in rules.FLOATING, dtype=dtype, key=key)
        return t.astype(out, "float32") if is_complex and op.name == "abs" else out

    def settled(self, w: Applied, found: Result) -> Result:
        """The result, with the node's shape where the expansion couldn't tell."""
        shape = self.shape(w.node)
        own = isinstance(found, Array) and found.node is w.node and found.primitive not in ("", "Broadcast")
        if own and shape is not None and isinstance(found, Array) and (found.shape is None or found.shape.lead):
            found.shape = shape
        return found

    def own_kernels(self, node: Node, op: Op, given: list[Operand]) -> Traced:
        """A function of mlx.nn, as it is compiled alone."""
        t = Tracer(shapeless=True, activation=self.gates.dtype, node=node)
        t.arguments = self.tracer.arguments
        stands_for: dict[Array, Array] = {}
        inside: list[Operand] = []
        for x in given:
            if isinstance(x, Array):
                a = next((a for a, b in stands_for.items() if b is x), None) or t.input(x.shape, x.dtype)
                stands_for[a] = x
                inside.append(a)
            else:
                inside.append(x)
        root = self.expanded(Applied(self, t, node, op, inside))
        if not isinstance(root, Array):
            return self.opaque(stands_for.values(), node)
        for g in compiled([root], shapeless=True):
            inputs = [self._outer(a, stands_for) for a in g.inputs]
            stands_for[g.root] = self.tracer.make(g.name, inputs, g.root.shape, g.root.dtype, g.root.key)
        return stands_for.get(root) or self._outer(root, stands_for)

    def _outer(self, a: Array, stands_for: dict[Array, Array]) -> Array:
        if a not in stands_for:
            assert isinstance(a.value, tuple)
            stands_for[a] = self.tracer.constant(*a.value)
        return stands_for[a]

    def constant(self, node: Node) -> Array:
        """`mx.array(0.5)`: in memory before anything runs."""
        a = self.tracer.input(self.shape(node), self.dtype(node))
        value = self.facts.const(node.inputs[0]) if node.inputs else None
        if isinstance(value, (bool, int, float)):
            a.value = (value, a.dtype)
        return a

    def binary(self, op: Op, given: list[Operand]) -> Array:
        t, primitive = self.tracer, op.primitives[0]
        if op.name in ("logical_and", "logical_or"):
            return t.logical(primitive, given[0], given[1])
        dtype = "bool_" if op.dtype is rules.BOOLEAN else ""
        out = t.binary(primitive, given[0], given[1], floating=op.dtype in rules.FLOATING, dtype=dtype)
        out.key = op.name if primitive == "BitwiseBinary" else None
        return out

    def listed(self, w: Applied, arrays: list[Array]) -> Array | tuple[Array, ...]:
        """The primitives that the op table names, one after the other."""
        node, op = w.node, w.op
        results = self.facts.of(node).parts if op.result == "arrays" else None
        if results and len(op.primitives) == 1:
            dtypes = (concrete(r.dtype.bound(self.counted), self.gates.dtype) for r in results)
            parts = zip(results, dtypes, strict=True)
            keys = ((w.t.arguments, i) for i in range(len(results)))
            made = (w.t.make(op.primitives[0], arrays, r.shape, d, k) for (r, d), k in zip(parts, keys, strict=True))
            return v.together(made)
        if op.shape is rules.same and len(op.primitives) == 1 and arrays:
            dtype = self.dtype(node)
            return w.t.make(op.primitives[0], arrays, arrays[0].shape, dtype, w.t.arguments)
        for name in op.primitives or (op.name,):
            arrays = [w.make(name, arrays)]
        return arrays[0]

    def index(self, node: Node) -> Traced:
        """`x[...]`: slices and new axes are views, an int or array takes a copy; an int beside slices is a view."""
        given = [x for x in self.operands(node) if isinstance(x, Array)]
        if not given:
            return self.opaque((), node)
        found = expand_index.indexed(Applied(self, self.tracer, node, INDEX, list(given)))
        if found is not None:
            return found
        index = node.attrs.get("index")
        parts = index if isinstance(index, tuple) else (index,)
        gathers = len(given) > 1 or (len(parts) == 1 and not isinstance(parts[0], (Slice, type(None), type(...))))
        return self.make("Gather" if gathers else "Slice", given, node)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def make(self, primitive: str, arrays: Iterable[Array], node: Node) -> Array:
        """A primitive whose value has the node's shape and dtype."""
        return self.tracer.make(primitive, arrays, self.shape(node), self.dtype(node), self.tracer.arguments)

    def opaque(self, arrays: Iterable[Array], node: Node) -> Array:
        """What isn't understood: never equal to another."""
        dtype = self.dtype(node)
        return self.tracer.make(OPAQUE, arrays, self.shape(node), dtype, NotImplemented)


INDEX = Op("index", "gather", (), rules.same, rules.same_dtype)
"""What `x[...]` is given as: it is no op of the table."""


def is_compiled(node: Node) -> bool:
    """A function of mlx.nn that MLX compiles: called from eager code it is one kernel, or a few."""
    op = TABLE.get(node.op)
    function = function_of(node) if op is not None and op.kind == "layer" else node.op
    return function in ACTIVATIONS or function in expand_reduce.COMPILED


def trace(
    nodes: Iterable[Node],
    facts: KnownFacts,
    *,
    shapeless: bool = False,
    eager: bool = False,
    gates: Gates | None = None,
    made: Callable[[Trace, Node], bool] = lambda so_far, node: False,
    instead: Mapping[Node, Node] | None = None,
) -> Trace:
    """The tape of `nodes`, in evaluation order.

    made: whether it has made a node's value itself, or left it out. instead: nodes that others take the place of.
    """
    ordered = sorted(nodes, key=lambda n: n.id)
    told = counted(ordered, facts) if gates is None else counted(ordered, facts, gates.given, narrow=gates.narrow)
    gates = gates or Gates()
    out = Trace(facts, Tracer(shapeless, gates.dtype), {}, told, gates, eager)
    for node in ordered:
        if not made(out, node):
            taken = (instead or {}).get(node, node)
            out.add(taken)
            out.made[node] = out.made[taken]
    _lead_products(out.tracer.arrays)
    return out


def _lead_products(arrays: Iterable[Array]) -> None:
    """A product of unknown rank has the leading axes of what it is added to, which the sum has."""
    for a in arrays:
        whole = a.shape if a.fusable else None
        for factor in map(_unbroadcast, a.inputs if whole is not None and whole.lead is None else ()):
            own = factor.shape if factor.primitive == "Matmul" else None
            more = 0 if whole is None or own is None or own.lead is None else len(whole.dims) - len(own.dims)
            if whole is not None and own is not None and more > 0:
                factor.shape = Shape(None, (*whole.dims[:more], *own.dims))


def _unbroadcast(a: Array) -> Array:
    while a.primitive == "Broadcast":
        a = a.inputs[0]
    return a


def _scalar(value: Any) -> Scalar:
    for sort, kind in ((bool, "bool"), (int, "int"), (complex, "complex")):
        if isinstance(value, sort):
            return Scalar(value, kind)
    return Scalar(value, "float")


NOTHING = _scalar(None)
"""An argument that is None."""


def _is_operator(node: Node) -> bool:
    return isinstance(node.cst, (cst.BinaryOperation, cst.AugAssign))


def is_configured(node: Node, facts: KnownFacts) -> bool:
    """`self.scale` where the constructor assigns `config.scale`, or `self.config.scale`: of what nothing is known but
    that it is an argument's of the constructor, a number."""
    if node.op != "attr" or facts.kind(node) != "unknown" or node.attrs.get("name") in PARAMETERS:
        return False
    at, inside = node, False
    while at.op == "attr" and at.inputs:
        made = at.attrs.get("init")
        inside |= at is not node
        at = made if isinstance(made, Node) else at.inputs[0]
        if isinstance(made, Node):
            inside |= made.op == "attr"
        if at.op in ("or", "phi"):  # `config or Config()`
            at = next((n for n in at.inputs if n.op == "param"), at)
    return inside and at.op == "param" and at.attrs.get("name") != "self"


def _frozen(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.id}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(map(_frozen, value)) + ")"
    if isinstance(value, Slice):
        return f"{_frozen(value.start)}:{_frozen(value.stop)}:{_frozen(value.step)}"
    return repr(value)
