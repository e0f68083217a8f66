"""One call of an op of the table, as the primitives that MLX records of it: what an expansion may ask, and which exist.

An op without an expansion here is elementwise (primitives.py), or the primitives that the table names, one after the
other. An expansion returns None where too little is known for more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuselint.graph.gates import Gates
from fuselint.graph.model import Node
from fuselint.graph.op import Call, Op
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import ACTIVATION, Array, Operand, Scalar, Tracer
from fuselint.graph.tape_views import Sizes, known

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts
    from fuselint.graph.trace import Trace


@dataclass(frozen=True, eq=False)
class Applied:
    """given: the operands by position; NOTHING for an argument that is None."""

    trace: Trace
    t: Tracer
    node: Node
    op: Op
    given: list[Operand]

    @property
    def gates(self) -> Gates:
        return self.trace.gates

    @property
    def facts(self) -> KnownFacts:
        return self.trace.facts

    # -- operands -----------------------------------------------------------------------------------------------------

    @property
    def a(self) -> Array:
        """The first operand."""
        return self.t.array(self.given[0])

    def operand(self, name: str) -> Operand | None:
        at = self.op.position(name)
        value = self.given[at] if at is not None and at < len(self.given) else None
        return None if value is None or (isinstance(value, Scalar) and value.value is None) else value

    def array(self, name: str) -> Array | None:
        value = self.operand(name)
        return None if value is None else self.t.array(value)

    @property
    def arrays(self) -> list[Array]:
        return [x for x in self.given if isinstance(x, Array)]

    # -- arguments ----------------------------------------------------------------------------------------------------

    def attr(self, name: str) -> Any:
        return self.node.attrs.get(name)

    def size(self, value: Any) -> Expr | None:
        return self.facts.size(value)

    def sizes(self, name: str) -> Shape | None:
        """A tuple of sizes, or one."""
        value = self.attr(name)
        found = self.facts.sizes(value)
        if found is not None or isinstance(value, tuple):
            return found
        one = self.size(value)
        return None if one is None else Shape(None, (one,))

    def integer(self, name: str) -> int | None:
        return self.number(self.attr(name))

    def number(self, value: Any) -> int | None:
        if isinstance(value, bool) or value is None:
            return None
        size = self.size(value)
        return None if size is None else size.value()

    def axes(self, name: str = "axis") -> list[int] | None:
        """The axes of an argument as they are written; None where they aren't known, or it is None."""
        value = self.attr(name)
        listed = value if isinstance(value, tuple) else (value,)
        numbers = [self.number(v) for v in listed]
        return None if None in numbers else [n for n in numbers if n is not None]

    def flag(self, name: str) -> bool:
        return self.attr(name) is True

    @property
    def call(self) -> Call:
        return self.facts.call(self.node)

    def setting(self, name: str) -> Any:
        """An argument of a layer's constructor."""
        return self.call.setting(name)

    def setting_size(self, name: str) -> Expr | None:
        return self.call.size(self.setting(name))

    # -- results ------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Shape | None:
        return self.trace.shape(self.node)

    @property
    def dtype(self) -> str:
        return self.trace.dtype(self.node)

    def make(self, primitive: str, arrays: list[Array], shape: Shape | None = None) -> Array:
        """A primitive with the node's dtype, and its shape unless another is given."""
        return self.t.make(primitive, arrays, shape or self.shape, self.dtype, self.t.arguments)

    def weight(self, name: str, *sizes: Expr | None, dtype: str = ACTIVATION) -> Array:
        """A layer's parameter: one array, however often the layer is called."""
        return self.trace.weight(self.node, name, sizes, dtype)

    def dims(self, a: Array) -> Sizes | None:
        return known(a)


Result = Array | tuple[Array, ...]
Expand = Callable[[Applied], "Result | None"]
