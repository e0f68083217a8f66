"""What MLX records while it runs a function: one Array for each primitive, with shape and dtype.

Our graph has a node for each call in the source. MLX has a primitive for each kernel or view: `mx.mean` is a Sum and a
Multiply, `x * w` with a 1-D `w` is a Broadcast and a Multiply, a bfloat16 operand of a float32 one gets an AsType. A
Tracer makes them as mlx/ops.cpp does, so that kernels can be counted and mx.compile's fuser followed exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce

from fuselint.graph.dtypes import BOOL, CONCRETE, HALF, INTEGER, DType, promote_names
from fuselint.graph.model import Node
from fuselint.graph.shapes import SCALAR, Shape, broadcast
from fuselint.graph.symbols import Expr, product

ACTIVATION = "activation"
"""The dtype of a floating value that nobody stated: what `--dtype` says."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FUSABLE = names(
    """
    Abs ArcCos ArcCosh ArcSin ArcSinh ArcTan ArcTanh AsType BitwiseInvert Ceil Conjugate Cos Cosh Erf ErfInv Exp Expm1
    Floor Imag Log Log1p LogicalNot Negative Real Round Sigmoid Sign Sin Sinh Sqrt Square Tan Tanh
    Add ArcTan2 BitwiseBinary Divide Equal FloorDivide Greater GreaterEqual Less LessEqual LogAddExp LogicalAnd
    LogicalOr Maximum Minimum Multiply NotEqual Power Remainder Subtract
    Select Broadcast
    """
)
"""mlx/compile.cpp, is_fusable, by the names of mx.export_function; 0.32.4 added FloorDivide."""

SHARED = {"Sqrt": "sqrt", "Log": "log"}
"""Primitives of several ops, which an argument tells apart, and the op that is meant where none is named."""

NEVER_SHARED = names("Expm1 Log1p")
"""Primitives that MLX takes for equal to no other (they have no is_equivalent): what repeats them is not merged."""

NO_OPS = names("Copy StopGradient")
VIEWS = names(
    """
    AsStrided Broadcast BroadcastAxes Copy Depends ExpandDims Item NumberOfElements Slice Split Squeeze StopGradient
    Transpose View
    """
)
"""Primitives without a kernel. Reshape, Flatten and Unflatten are views too, unless the layout makes them copy."""
RESHAPES = frozenset({"Reshape", "Flatten", "Unflatten", "Contiguous"})


@dataclass(slots=True, eq=False)
class Array:
    """An MLX array of a trace. Compared by identity.

    primitive: MLX's name of what computes it; "" for an input, a constant, or a value from outside.
    key: the primitive's own arguments (axes, dtype): two equal ones on equal inputs are the same computation.
    value: of a constant, what makes it equal to another.
    node: the node of our graph that it belongs to; several arrays may, where the op is a composite.
    first: of a primitive with several results, the first one. others: of the first, the others.
    """

    primitive: str
    inputs: list[Array]
    shape: Shape | None
    dtype: str
    node: Node | None = None
    key: Hashable = None
    value: Hashable = None
    first: Array | None = None
    others: tuple[Array, ...] = ()

    @property
    def fusable(self) -> bool:
        return self.primitive in FUSABLE

    def __repr__(self) -> str:
        return f"<{self.primitive or 'input'} {self.shape} {self.dtype}>"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A Python number: a literal, or a value that differs from call to call (then `value` is its node)."""

    value: Hashable
    kind: str = "float"  # "float", "int", "bool" or "complex"


Operand = Array | Scalar
"""What an op is given."""


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """Whether MLX would see equal shapes, and so no Broadcast between them. Unknown sizes count as equal."""
    if a is None or b is None:
        known = a or b
        return known is None or (_is_full(known) and (known.lead is not None or len(known.dims) > 1))
    if a.lead is None and b.lead is None:
        return len(a.dims) == len(b.dims) and all(map(_same_size, a.dims, b.dims))
    if a.lead is not None and b.lead is not None:
        count = max(len(a.dims), len(b.dims))
        return all(map(_same_size, a.tail(count) or (), b.tail(count) or ()))
    fixed, free = (a, b) if a.lead is None else (b, a)
    # Free leading axes are at least one, and hold more than one element: an activation has rows.
    more = len(fixed.dims) - max(len(free.dims), 1)
    if more <= 0 or any(d == 1 for d in fixed.dims[:more]):
        return False
    return all(map(_same_size, reversed(fixed.dims), reversed(free.dims)))


HEADED = 3
"""Axes of attention's heads, besides the batch."""


def joined(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a op b. Shapes without facts count as equal: of two, the one that says more is kept.

    An axis of 1 says nothing of the result: `gate * y` with a gate of (rows, 1) has y's shape.
    """
    if a is None or b is None:
        known = a or b
        if known is None or not _is_full(known):
            return None
        return known if known.lead is not None or len(known.dims) > 1 else None
    if a.lead is None and b.lead is None:
        return Shape(None, _meet(a.dims, b.dims))
    if a.lead is not None and b.lead is not None:
        long, short = (a, b) if len(a.dims) >= len(b.dims) else (b, a)
        deep, count = len(long.dims), max(len(short.dims), 1)
        if any(d == 1 for d in long.dims[: max(deep - count, 0)]):
            return Shape(short.lead, _meet(short.dims, long.dims[deep - count :]) if short.dims else ())
        return Shape(long.lead, _meet(long.dims, short.tail(deep) or ()))
    more, less = (a, b) if a.lead is None else (b, a)
    if len(more.dims) <= max(len(less.dims), 1):
        return broadcast(a, b)  # a weight, and an activation of unknown rank
    count = len(more.dims) - len(less.dims)
    if not _is_full(more):
        return Shape(less.lead, _meet(less.dims, more.dims[count:]))  # one row for many, or one number for a row
    return Shape(more.lead, _meet(more.dims, less.dims))


def _is_full(shape: Shape) -> bool:
    """Whether no axis is 1, so that what is combined with it may well have this shape. In `(1, length, heads, width)`
    the 1 is a batch of one."""
    ones = next((i for i, d in enumerate(shape.dims) if d != 1), len(shape.dims))
    rest = shape.dims[ones:]
    return 1 not in rest and (not ones or len(rest) >= HEADED)


def _meet(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Axis by axis from the last: the size that isn't 1, a number rather than a name, a name of the code's own."""
    if len(a) < len(b):
        a, b = b, a
    front = len(a) - len(b)
    return (*a[:front], *(max(pair, key=_says) for pair in zip(a[front:], b, strict=True)))


def _says(size: Expr) -> int:
    """How much is known of a size."""
    if size.value() is not None:
        return 0 if size == 1 else 3
    text = str(size)
    return 1 if ".shape[" in text and size == Expr.name(text) else 2


def _same_size(a: Expr, b: Expr) -> bool:
    m, n = a.value(), b.value()
    if m is not None and n is not None:
        return m == n
    return m != 1 and n != 1


def concrete(dtype: DType, activation: str = "") -> str:
    """The one dtype to count with: where only symbols are known, an activation's. activation: see Tracer."""
    if dtype.name is not None:
        return dtype.name
    if dtype.weak:
        return next(iter(dtype.settle()), "float32")
    stated = [n for n in sorted(dtype) if n in CONCRETE]
    return _promote(ACTIVATION, stated[0], activation) if stated else ACTIVATION


def _promote(a: str, b: str, activation: str) -> str:
    """The dtype of a op b: an activation yields to any stated floating dtype not narrower, and absorbs integers."""
    if ACTIVATION not in (a, b):
        return promote_names(a, b)
    other = b if a == ACTIVATION else a
    narrower = other in HALF and activation == "float32"
    return ACTIVATION if narrower or other in INTEGER or other in BOOL else other


def at_least_float(dtype: str) -> str:
    return "float32" if dtype in INTEGER or dtype in BOOL else dtype


@dataclass(eq=False)
class Tracer:
    """Makes Arrays as mlx/ops.cpp does. `shapeless`: as under mx.compile(shapeless=True).

    activation: the dtype that activations are taken to have; "" for any.
    """

    shapeless: bool = False
    activation: str = ""
    arrays: list[Array] = field(default_factory=list)
    node: Node | None = None  # what is being expanded
    arguments: Hashable = None  # of its call, as the key of its primitives

    def make(
        self, primitive: str, inputs: Iterable[Array], shape: Shape | None, dtype: str, key: Hashable = None
    ) -> Array:
        a = Array(primitive, list(inputs), shape, dtype, self.node, key)
        self.arrays.append(a)
        return a

    def promote(self, *dtypes: str) -> str:
        """The dtype in which an operation computes with operands of several."""
        return reduce(lambda a, b: _promote(a, b, self.activation), dtypes)

    def input(self, shape: Shape | None, dtype: str) -> Array:
        """A value from outside."""
        return self.make("", (), shape, dtype)

    def astype(self, a: Array, dtype: str) -> Array:
        same = a.dtype == dtype or {a.dtype, dtype} == {ACTIVATION, self.activation}
        return a if same else self.make("AsType", (a,), a.shape, dtype, dtype)

    def unary(
        self, primitive: str, a: Array, *, floating: bool = False, dtype: str = "", key: Hashable = None
    ) -> Array:
        if floating:
            a = self.astype(a, at_least_float(a.dtype))
        return self.make(primitive, (a,), a.shape, dtype or a.dtype, key or SHARED.get(primitive))

    def broadcast_to(self, a: Array, shape: Shape | None, others: Sequence[Array] = ()) -> Array:
        return self.make("Broadcast", (a, *others), shape, a.dtype, repr(shape))

    def broadcast_arrays(self, arrays: Sequence[Array]) -> list[Array]:
        shape = arrays[0].shape
        for a in arrays[1:]:
            shape = joined(shape, a.shape)
        if self.shapeless:
            others = [[*arrays[:i], *arrays[i + 1 :]] for i in range(len(arrays))]
            return [self.broadcast_to(a, shape, o) for a, o in zip(arrays, others, strict=True)]
        return [a if same_shape(a.shape, shape) else self.broadcast_to(a, shape) for a in arrays]

    def binary(self, primitive: str, x: Operand, y: Operand, *, floating: bool = False, dtype: str = "") -> Array:
        a, b = self.pair(x, y)
        common = self.promote(a.dtype, b.dtype)
        if floating:
            common = at_least_float(common)
        a, b = self.astype(a, common), self.astype(b, common)
        if primitive != "Power" or not same_shape(a.shape, b.shape):
            a, b = self.broadcast_arrays((a, b))
        return self.make(primitive, (a, b), joined(a.shape, b.shape), dtype or common)

    def logical(self, primitive: str, x: Operand, y: Operand) -> Array:
        a, b = self.pair(x, y)
        a, b = self.broadcast_arrays((self.astype(a, "bool_"), self.astype(b, "bool_")))
        return self.make(primitive, (a, b), joined(a.shape, b.shape), "bool_")

    def select(self, condition: Operand, x: Operand, y: Operand) -> Array:
        a, b = self.pair(x, y)
        common = self.promote(a.dtype, b.dtype)
        arrays = (self.astype(self.array(condition), "bool_"), self.astype(a, common), self.astype(b, common))
        c, a, b = self.broadcast_arrays(arrays)
        return self.make("Select", (c, a, b), joined(joined(c.shape, a.shape), b.shape), common)

    def array(self, x: Operand, like: Operand | None = None) -> Array:
        """x as an array: a Python number takes the dtype of the array beside it, if that can hold it."""
        if isinstance(x, Array):
            return x
        own = {"bool": "bool_", "int": "int32", "float": "float32", "complex": "complex64"}[x.kind]
        dtype = like.dtype if isinstance(like, Array) and x.kind in ("int", "float") else own
        if x.kind == "float":
            dtype = at_least_float(dtype)
        if x.kind == "int" and dtype == "bool_":
            dtype = own
        return self.constant(x.value, dtype)

    def reduce(self, operation: str, a: Array, kept: Shape | None, dtype: str = "", primitive: str = "Reduce") -> Array:
        """A reduction with its axes kept as 1. Over axes of 1 it is nothing, unless shapes may change."""
        if kept is not None and kept == a.shape and not self.shapeless:
            return self.astype(a, dtype or a.dtype)
        axes = self.arguments if kept is None else str(kept)
        return self.make(primitive, (a,), kept, dtype or a.dtype, (operation, axes))

    def full(self, shape: Shape | None, dtype: str, value: Hashable) -> Array:
        """An array of one number, written to memory."""
        number = self.constant(value, dtype)
        wide = number if shape == SCALAR else self.broadcast_to(number, shape)
        return self.make("Full", (wide,), shape, dtype)

    def constant(self, value: Hashable, dtype: str) -> Array:
        """A Python number as an array: no kernel reads it from memory."""
        a = self.make("", (), SCALAR, dtype)
        a.value = (value, dtype)
        return a

    def inverse_count(self, a: Array, kept: Shape | None) -> Operand:
        """What a mean multiplies its sum by: a constant, but computed where shapes may change."""
        if self.shapeless:
            axes = self.arguments if kept is None else str(kept)
            return self.make("NumberOfElements", (a,), SCALAR, at_least_float(a.dtype), axes)
        count = self.count(a, kept)
        return Scalar(1 / count if count else ("1/", str(a.shape), str(kept)))

    def count(self, a: Array, kept: Shape | None) -> int | None:
        """How many values each result of a reduction is made of, where that is known."""
        many, few = (None if s is None or s.lead else product(s.dims).value() for s in (a.shape, kept))
        return many // few if many and few else None

    def pair(self, a: Operand, b: Operand) -> tuple[Array, Array]:
        return self.array(a, b), self.array(b, a)
