"""What an identity is: a function from a node to its value in the canonical form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fuselint.graph.model import Node
from fuselint.graph.values import ONE, Value

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

Identity = Callable[["Canonical", Node], "Value | None"]
"""The value of a node, or None where the identity doesn't hold: then the node is an atom."""


def into(table: dict[str, Identity]) -> Callable[..., Callable[[Identity], Identity]]:
    """A decorator that enters a function into a table, under the names of its operations."""

    def identity(*ops: str) -> Callable[[Identity], Identity]:
        def enter(rule: Identity) -> Identity:
            table.update(dict.fromkeys(ops, rule))
            return rule

        return enter

    return identity


def linear(c: Canonical, v: Value, make: Callable[[Value], Value]) -> Value:
    """make(scalar * rest) = scalar * make(rest): what every linear operation does with a scalar."""
    outer = [(b, e) for b, e in v.factors if b.scalar]
    rest = [(b, e) for b, e in v.factors if not b.scalar]
    if not rest or (not outer and v.coefficient == 1.0):
        return make(v)
    c.algebra.note("a scalar moves out of a linear operation")
    return c.algebra.product(v.coefficient, [*outer, (make(c.algebra.product(1.0, rest)), ONE)])


def ints(value: Any) -> tuple[int, ...] | None:
    """The value as a tuple of plain ints."""
    if not isinstance(value, (tuple, list)) or not all(isinstance(a, int) and not isinstance(a, bool) for a in value):
        return None
    return tuple(value)
