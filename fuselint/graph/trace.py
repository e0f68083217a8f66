"""A function's nodes as a tape of MLX arrays: what eager MLX runs, and what mx.compile starts from."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import libcst as cst

from fuselint.graph import ops_rules as rules
from fuselint.graph.likely import likely
from fuselint.graph.model import Node, Slice, operands
from fuselint.graph.op import Op
from fuselint.graph.ops import TABLE, function_of
from fuselint.graph.primitives import ACTIVATIONS, COMPOSITES, OTHER_AXIS, REDUCTIONS
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import SHARED, VIEWS, Array, Operand, Scalar, Tracer, concrete, names
from fuselint.graph.unstated import counted

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

NOT_ARRAYS = names(
    """
    param const global attr shape dtype ndim size dim tuple list dict compare not and or new function star starred
    """
)
"""Structural ops: values that MLX does not compute."""

FLOATING = (rules.floated, rules.promoted_float)
"""dtype rules of ops that turn integers into float32 before they compute."""

Traced = Array | Scalar | None


@dataclass(eq=False)
class Trace:
    """The arrays of a set of nodes. What they read and don't hold is an input.

    counted: what dtypes that nobody states are counted as, by their symbols.
    """

    facts: Facts
    tracer: Tracer
    made: dict[Node, Traced]
    counted: Mapping[str, str]

    def array(self, node: Node) -> Array | None:
        """The array that holds the node's value."""
        value = self.made.get(node)
        return value if isinstance(value, Array) else None

    def shape(self, node: Node) -> Shape | None:
        """The shape to count the node's value with."""
        return likely(node, self.facts)

    def dtype(self, node: Node) -> str:
        """The dtype to count the node's value with."""
        return concrete(self.facts.dtype(node).bound(self.counted))

    # -- operands -----------------------------------------------------------------------------------------------------

    def operand(self, node: Node) -> Operand | None:
        if node not in self.made:
            self.made[node] = self.outside(node)
        return self.made[node]

    def outside(self, node: Node) -> Traced:
        """A value that the traced nodes don't compute."""
        if node.op == "const":
            return _scalar(node.attrs.get("value"))
        if self.facts.kind(node) == "scalar":
            return self.number(node)
        if self.facts.kind(node) in ("array", "unknown"):
            made = self.tracer.input(self.shape(node), self.dtype(node))
            made.node = node
            return made
        return None

    def operands(self, node: Node) -> list[Operand]:
        return [x for x in self.arguments(node) if x != NOTHING]

    def arguments(self, node: Node) -> list[Operand]:
        """The operands by position: an argument that is None keeps its place."""
        return [x for n in node.inputs if (x := self.operand(n)) is not None]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def add(self, node: Node) -> None:
        self.tracer.node = node
        op = TABLE.get(node.op)
        self.tracer.arguments = None if op is not None and op.elementwise else _key(node)
        self.made[node] = self.value(node)

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
        arrays = [x for n in operands(node) if isinstance(x := self.operand(n), Array)]
        if node.op == "item" and arrays:
            copies = isinstance(node.cst, cst.Subscript) and self.facts.kind(node.inputs[0]) == "array"
            return self.make("Gather" if copies else "Item", arrays[:1], node)
        # A join, or a call that isn't understood: it reads its operands, and nothing is fused across it.
        return self.tracer.make("Opaque", arrays, self.shape(node), self.dtype(node), NotImplemented)

    def operation(self, node: Node, op: Op) -> Traced:
        """As MLX makes it: Python numbers among the operands take an array's dtype."""
        given = self.operands(node)
        t = self.tracer
        if op.name in ("add", "multiply") and len(given) == 2 and isinstance(given[0], Scalar) and _is_operator(node):
            given.reverse()  # `2 * x` is x.__rmul__(2), which multiplies x by 2
        if not given and op.kind not in ("create", "random"):
            return self.opaque((), node)
        if op.name == "array":
            return self.constant(node)
        if op.kind == "cast":
            return t.astype(t.array(given[0]), self.dtype(node))
        composite = COMPOSITES.get(op.name) or ACTIVATIONS.get(function_of(node) or op.name)
        if composite is not None:
            arguments = self.arguments(node)
            if len(arguments) < len(node.inputs):  # some are neither arrays nor numbers
                return self.opaque([x for x in arguments if isinstance(x, Array)], node)
            return composite(t, arguments, node.attrs)
        if op.kind == "unary":
            floating, boolean = op.dtype in FLOATING, op.name == "logical_not"
            a = t.astype(t.array(given[0]), "bool_") if boolean else t.array(given[0])
            return t.unary(op.primitives[0], a, floating=floating, key=op.name if op.primitives[0] in SHARED else None)
        if op.kind == "binary" and len(given) == 2:
            return self.binary(op, given)
        if op.name == "stop_gradient":
            return t.unary("StopGradient", t.array(given[0]))
        return self.other(node, op, [t.array(x) for x in given])

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
        out = t.binary(primitive, given[0], given[1], floating=op.dtype in FLOATING, dtype=dtype)
        out.key = op.name if primitive == "BitwiseBinary" else None
        return out

    def other(self, node: Node, op: Op, arrays: list[Array]) -> Array:
        """Reductions, views, and what can't be fused."""
        reduction = REDUCTIONS.get(op.name)
        if op.name in OTHER_AXIS and not self.over_last(node):
            reduction = OTHER_AXIS[op.name]
        if reduction is not None and arrays:
            return self.squeezed(node, reduction(self.tracer, arrays[0], self.kept(node)))
        if op.kind == "reduce" and arrays:
            dtype = self.dtype(node)
            reduced = self.tracer.reduce(op.name, arrays[0], self.kept(node), dtype, op.primitives[0])
            return self.squeezed(node, reduced)
        if op.shape is rules.same and len(op.primitives) == 1 and arrays:
            dtype = self.dtype(node)
            return self.tracer.make(op.primitives[0], arrays, arrays[0].shape, dtype, self.tracer.arguments)
        primitives = op.primitives or (op.name,)
        if op.kind == "copy" and any(n in VIEWS for n in primitives):
            *before, last = primitives  # repeat: a broadcast, then a reshape that has to copy it
            arrays = [self.make(n, arrays, node) for n in before][-1:] or arrays
            return self.make(last, arrays, node)
        for name in primitives:
            arrays = [self.make(name, arrays, node)]
        return arrays[0]

    def index(self, node: Node) -> Array:
        """`x[...]`: slices and new axes are views, an int or array takes a copy; an int beside slices is a view."""
        arrays = [x for x in self.operands(node) if isinstance(x, Array)]
        index = node.attrs.get("index")
        parts = index if isinstance(index, tuple) else (index,)
        gathers = len(arrays) > 1 or (len(parts) == 1 and not isinstance(parts[0], (Slice, type(None), type(...))))
        return self.make("Gather" if gathers else "Slice", arrays, node)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def make(self, primitive: str, arrays: Iterable[Array], node: Node) -> Array:
        """A primitive whose value has the node's shape and dtype."""
        return self.tracer.make(primitive, arrays, self.shape(node), self.dtype(node), self.tracer.arguments)

    def opaque(self, arrays: Iterable[Array], node: Node) -> Array:
        """What isn't understood: never equal to another."""
        dtype = self.dtype(node)
        return self.tracer.make("Opaque", arrays, self.shape(node), dtype, NotImplemented)

    def kept(self, node: Node) -> Shape | None:
        """The shape of the reduction with its axes kept as 1."""
        shape = self.shape(node.inputs[0])
        axis = node.attrs.get("axis")
        if shape is None:
            return self.shape(node) if node.attrs.get("keepdims") is True else None
        if axis is None:
            return Shape.of(*[1] * shape.rank) if shape.rank is not None else Shape.of(1)
        for a in axis if isinstance(axis, tuple) else (axis,):
            back = shape.from_end(a) if isinstance(a, int) else None
            replaced = None if back is None else shape.replace(back, (Expr.of(1),))
            if replaced is None:
                return None
            shape = replaced
        return shape

    def squeezed(self, node: Node, out: Array) -> Array:
        keeps = node.attrs.get("keepdims") is True or "keepdims" not in node.attrs
        return out if keeps else self.make("Squeeze", (out,), node)

    def over_last(self, node: Node) -> bool:
        """Whether the axis is the last one. Where that isn't known, it is taken to be."""
        axis, shape = node.attrs.get("axis"), self.shape(node.inputs[0])
        if isinstance(axis, tuple) and len(axis) == 1:
            axis = axis[0]
        if axis is None:
            return shape is not None and shape.rank == 1
        if not isinstance(axis, int) or axis == -1:
            return True
        return shape is None or shape.from_end(axis) in (None, -1)


def trace(nodes: Iterable[Node], facts: Facts, *, shapeless: bool = False) -> Trace:
    """The tape of `nodes`, in evaluation order."""
    ordered = sorted(nodes, key=lambda n: n.id)
    out = Trace(facts, Tracer(shapeless), {}, counted(ordered, facts))
    for node in ordered:
        out.add(node)
    return out


def _scalar(value: Any) -> Scalar:
    for sort, kind in ((bool, "bool"), (int, "int"), (complex, "complex")):
        if isinstance(value, sort):
            return Scalar(value, kind)
    return Scalar(value, "float")


NOTHING = _scalar(None)
"""An argument that is None."""


def _is_operator(node: Node) -> bool:
    return isinstance(node.cst, (cst.BinaryOperation, cst.AugAssign))


def _key(node: Node) -> Hashable:
    """The arguments of a node's primitives. Two nodes of one op with equal keys and inputs compute the same."""
    return (node.op, *sorted((k, _frozen(v)) for k, v in node.attrs.items() if k not in ("new", "init", "default")))


def _frozen(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.id}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(map(_frozen, value)) + ")"
    if isinstance(value, Slice):
        return f"{_frozen(value.start)}:{_frozen(value.stop)}:{_frozen(value.step)}"
    return repr(value)
