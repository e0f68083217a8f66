"""What lies around a value: what it is made of, and what is made of it, a few steps away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from fuselint.graph.model import Graph, Node, operands

Passes = Callable[[Node], bool]
"""Whether to go on from a value."""


def behind(node: Node, steps: int, passes: Passes = lambda node: True) -> Iterator[Node]:
    """The value and what it is made of, the nearest first."""
    return _walk(node, steps, lambda n: operands(n) if passes(n) else ())


def ahead(graph: Graph, node: Node, steps: int, passes: Passes = lambda node: True) -> Iterator[Node]:
    """The value and what is made of it."""
    return _walk(node, steps, lambda n: graph.users.get(n, ()) if passes(n) else ())


def is_made_with(node: Node, ops: Collection[str], steps: int = 4) -> bool:
    """Whether a value, or one at most so many steps behind it, is the result of one of the operations."""
    return any(n.op in ops for n in behind(node, steps))


def _walk(start: Node, steps: int, following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    seen: set[Node] = set()
    level = [start]
    for _ in range(steps + 1):
        fresh = [n for n in dict.fromkeys(level) if n not in seen]
        seen.update(fresh)
        yield from fresh
        level = [m for n in fresh for m in following(n)]
