"""What an op of the table is, and how the arguments of a call bind to it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union

from fuselint.graph.dtypes import DType
from fuselint.graph.model import Node
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.records import record

Kind = Literal[
    "cast",  # astype
    "unary", "binary", "ternary",  # elementwise: one fusable primitive
    "composite",  # several primitives
    "activation",  # an mlx.nn function, which MLX itself compiles
    "reduce", "scan", "sort", "rowwise",  # rowwise: one primitive over rows, same shape (softmax)
    "view", "copy", "create", "gather", "scatter",
    "matmul", "conv", "fast", "random", "linalg", "fft", "layer", "loss", "other",
]  # fmt: skip

Role = Literal["array", "arrays", "value"]

ELEMENTWISE = frozenset({"cast", "unary", "binary", "ternary"})


REFUSED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What an op's entries may raise for a call that MLX refuses too: axes that aren't there, operands that are missing."""


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an op. `array` operands go to node.inputs, `arrays` (a list of them) too, one by one."""

    name: str
    role: Role = "value"
    default: Any = None
    required: bool = True
    variadic: bool = False  # `*shape`: one tuple, or the rest of the positional arguments
    keyword_only: bool = False


@record(frozen=True, slots=True)
class Value:
    """What a rule may know of an operand. A Python scalar has the shape () and a weak dtype.

    elements: of a tuple or list, each; count: how often they are repeated (`[x] * n`), None for once.
    """

    kind: str
    shape: Shape | None
    dtype: DType
    const: Any = None
    elements: tuple[Value, ...] | None = None
    count: Expr | None = None


@record(frozen=True, slots=True)
class Call:
    """A call of an op, as its rules see it.

    size: a number or Node as a size; sizes: a tuple of them as a Shape; dtype_value: a dtype name or Node as a DType;
    fresh: the name of an axis of the result that is like no other size.
    """

    op: Op
    values: tuple[Value | None, ...]
    attrs: Mapping[str, Any]
    size: Callable[[Any], Expr | None]
    sizes: Callable[[Any], Shape | None]
    dtype_value: Callable[[Any], DType]
    fresh: Callable[[int], Expr]

    @property
    def arrays(self) -> tuple[Value, ...]:
        """The operands that are there: not None, and one by one where they are in a list."""
        out: list[Value] = []
        for v in self.values:
            if v is None or v.kind == "none":
                continue
            listed = v.elements if v.kind == "tuple" and v.elements is not None else (v,)
            out.extend(listed)
        return tuple(out)

    def setting(self, name: str) -> Any:
        """An argument of a layer's constructor, from its `new` node; the default where it isn't given."""
        new = self.attrs.get("new")
        given = new.attrs.get("args", {}) if isinstance(new, Node) else {}
        if name in given:
            return literal(given[name])
        return next((p.default for p in self.op.constructor if p.name == name), None)

    def operand(self, name: str) -> Value | None:
        """The value of an array parameter; None where it is absent or None."""
        at = self.op.position(name)
        value = self.values[at] if at is not None and at < len(self.values) else None
        return None if value is None or value.kind == "none" else value

    def shape(self, at: int = 0) -> Shape | None:
        value = self.values[at] if at < len(self.values) else None
        return None if value is None else value.shape

    def rank(self, at: int = 0) -> int | None:
        shape = self.shape(at)
        return None if shape is None else shape.rank

    def dtype(self, at: int = 0) -> DType:
        value = self.values[at] if at < len(self.values) else None
        return DType() if value is None else value.dtype

    def integer(self, name: str) -> int | None:
        """An attribute that must be a known int."""
        value = self.attrs.get(name)
        if isinstance(value, bool) or value is None:
            return None
        size = self.size(value)
        return None if size is None else size.value()

    def flag(self, name: str) -> bool | None:
        """An attribute's truth, where it is a constant."""
        value = self.attrs.get(name)
        return None if isinstance(value, Node) else bool(value)


Shapes = Union[Shape, None, "tuple[Shape | None, ...]"]
DTypes = Union[DType, "tuple[DType, ...]"]
ShapeRule = Callable[[Call], Shapes]
DTypeRule = Callable[[Call], DTypes]
PrimitiveRule = Callable[[Call], "tuple[str, ...]"]


@dataclass(frozen=True, eq=False)
class Op:
    """One MLX operation, whatever its spelling.

    `primitives` are those of a call with floating arrays, over the last axis where there is one, with the other
    arguments at their defaults, without the AsType and Broadcast that only adapt operands.
    """

    name: str
    kind: Kind
    params: tuple[Param, ...]
    shape: ShapeRule
    dtype: DTypeRule
    primitives: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    method: str | None = None
    method_params: tuple[Param, ...] | None = None
    operator: str | None = None
    result: Literal["array", "arrays", "same"] = "array"  # same: what its first operand is
    constructor: tuple[Param, ...] = ()  # of a layer: the parameters of its __init__
    function: str | None = None  # of a layer: the op that its call is ("nn.silu" for nn.SiLU)
    compiled: bool = False  # MLX compiles it itself (shapeless), so that alone it is one kernel
    recorded: PrimitiveRule | None = None  # where the primitives depend on the arguments
    fallback: tuple[str, ...] = ()  # of a fused op: what it is made of where its kernel isn't taken, as on the CPU
    adjust: Callable[[dict[str, Any], frozenset[str]], None] | None = None  # of attrs; given: the names of arguments
    _positions: Mapping[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        arrays = [p.name for p in self.params if p.role != "value"]
        object.__setattr__(self, "_positions", {n: i for i, n in enumerate(arrays)})

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    @property
    def elementwise(self) -> bool:
        return self.kind in ELEMENTWISE

    def primitives_of(self, call: Call) -> tuple[str, ...]:
        """What mx.export_function reports of a call on the CPU, without AsType and Broadcast."""
        return self.recorded(call) if self.recorded is not None else self.fallback or self.primitives

    def position(self, name: str) -> int | None:
        """Where an array parameter stands in node.inputs."""
        return self._positions.get(name)


@record(frozen=True, slots=True)
class Bound:
    """Arguments by role. An input is None where an optional array is left out before one that is given."""

    inputs: tuple[Node | None, ...]
    attrs: Mapping[str, Any]


class CannotBind(Exception):
    """The arguments don't fit: the call isn't understood."""


def literal(node: Any) -> Any:
    """A node as an attribute: constants as Python values, tuples and lists as tuples, the rest as Nodes."""
    if not isinstance(node, Node):
        return node
    if node.op == "const":
        return node.attrs.get("value")
    if node.op in ("tuple", "list"):
        return tuple(literal(n) for n in node.inputs)
    if node.op == "negative" and node.inputs:
        inner = literal(node.inputs[0])
        if isinstance(inner, (int, float)) and not isinstance(inner, bool):
            return -inner
    return node


def _elements(node: Node) -> tuple[Node, ...]:
    """The arrays of a list of arrays; the list itself where its elements aren't known."""
    return node.inputs if node.op in ("tuple", "list") and not any(n.op == "star" for n in node.inputs) else (node,)


def bind(op: Op, args: Sequence[Node], keywords: Mapping[str, Node], *, method: bool = False) -> Bound:
    """Binds the arguments of a call as MLX would. args[0] of a method is the array.

    A `*argument` is a node with op `star`; only variadic parameters (`x.reshape(*s, n)`) take one.
    """
    params = op.method_params if method and op.method_params is not None else op.params
    given: dict[str, Any] = {}
    rest = list(args)
    for p in params:
        if p.keyword_only:
            break
        if not rest:
            break
        if p.variadic:
            given[p.name] = rest
            rest = []
        elif rest[0].op == "star":
            raise CannotBind(f"`*` argument of {op.name}")
        else:
            given[p.name] = rest.pop(0)
    if rest:
        raise CannotBind(f"too many arguments for {op.name}")
    names = {p.name for p in params}
    for name, node in keywords.items():
        if name == "stream" and name not in names:
            continue
        if name not in names or name in given:
            raise CannotBind(f"{op.name} has no argument {name}")
        given[name] = node
    inputs: list[Node | None] = []
    attrs: dict[str, Any] = {}
    for p in params:
        value = given.get(p.name)
        if value is None and p.required:
            raise CannotBind(f"{op.name} lacks {p.name}")
        if p.role == "array":
            inputs.append(value)
        elif p.role == "arrays":
            if isinstance(value, list):
                inputs.extend(value)
            elif value is not None:
                inputs.extend(_elements(value))
        elif value is None:
            attrs[p.name] = p.default
        elif isinstance(value, list):
            listed = tuple(literal(v) for v in value)
            if len(listed) == 1 and isinstance(listed[0], Node) and listed[0].op == "star":
                listed = listed[0].inputs  # `*shape` alone is that shape
            whole = len(listed) == 1 and (listed[0] is None or isinstance(listed[0], (tuple, Node)))
            attrs[p.name] = listed[0] if whole else listed  # one Node: a tuple, or a number
        else:
            attrs[p.name] = literal(value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    if op.adjust is not None:
        op.adjust(attrs, frozenset(given))
    return Bound(tuple(inputs), attrs)


_ROLES: dict[str, Role] = {"A": "array", "L": "arrays"}


def parse_params(signature: str) -> tuple[Param, ...]:
    """Parameters from a signature such as `a: A, axis=None, *, precise=False`.

    `: A` is an array or a scalar in the place of one, `: L` a list of arrays; `*shape` takes the rest.
    """
    out: list[Param] = []
    keyword_only = False
    for part in _top_level(signature):
        if part == "*":
            keyword_only = True
            continue
        declared, has_default, default = part.partition("=")
        name, _, role = (text.strip() for text in declared.partition(":"))
        variadic = name.startswith("*")
        value = ast.literal_eval(default.strip()) if has_default else None
        required = not has_default and not variadic
        out.append(Param(name.lstrip("*"), _ROLES.get(role, "value"), value, required, variadic, keyword_only))
        keyword_only = keyword_only or variadic
    return tuple(out)


def _top_level(text: str) -> list[str]:
    """The parts between commas that are outside parentheses."""
    parts, depth = [""], 0
    for ch in text:
        depth += (ch == "(") - (ch == ")")
        if ch == "," and not depth:
            parts.append("")
        else:
            parts[-1] += ch
    return [p.strip() for p in parts if p.strip()]
