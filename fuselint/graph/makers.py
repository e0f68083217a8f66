"""How the package makes the object whose method a function is: facts for each call of its class.

A library's class can be made by anyone, so what follows from these calls is likely, and no proof. The arguments of a
call may come from the constructor that it stands in, and so on: each chain of constructors is looked at as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from fuselint.graph.across import SELF, Inside, Instance, Reach
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.fact import Place
from fuselint.graph.facts import Facts
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.symbols import Expr
from fuselint.source.modules import Definition

CHAIN = 3
"""Constructors that call one another, at most."""

MOST = 12
"""Calls of one class that are looked at, at most."""

T = TypeVar("T")

Way = tuple[Inside, tuple[Place, ...]]
"""A constructor with the facts of its arguments, and the calls that lead to it."""


def as_made(graph: Graph, ask: Callable[[Facts], T | None]) -> Iterator[tuple[T, tuple[Place, ...]]]:
    """What `ask` finds in the facts of a method for each way that the package makes its object, and those calls.

    Where it finds nothing, the constructors around the call are looked at in their turn. Defaults of configurations
    count.
    """
    name, program = graph.context.class_name, graph.program
    if name is None or program is None or graph.context.qualname.endswith(".__init__"):
        return
    elsewhere = program.elsewhere
    found = Definition(elsewhere.path_of(graph), name)

    def asked(inside: Inside) -> T | None:
        facts = Facts(graph, inside.facts.reach)
        facts.init = inside.facts
        return ask(facts)

    yield from _ways(elsewhere, found, asked, (found,))


def is_left_out(graph: Graph) -> bool:
    """Whether the package makes the object of a method only where defaults say that it makes another one."""
    name, program = graph.context.class_name, graph.program
    if name is None or program is None:
        return False
    elsewhere = program.elsewhere
    calls = list(islice(elsewhere.uses(Definition(elsewhere.path_of(graph), name)), MOST + 1))
    return 0 < len(calls) <= MOST and all(_is_left_out(elsewhere, *call) for call in calls)


def _is_left_out(elsewhere: Elsewhere, caller: Graph, call: Node) -> bool:
    """Whether defaults say that control never comes to a call, or that `a if test else b` is the other value."""
    facts = Facts(caller, Reach(usual=True, elsewhere=elsewhere))
    if Inside(caller, facts).reached(call.top_stmt) is False:
        return True
    users = caller.users.get(call, ())
    tests = [(n.inputs[0] is call, n.attrs.get("test")) for n in users if n.op == "phi" and len(n.inputs) > 1]
    known = [(taken, facts.truth(test)) for taken, test in tests if isinstance(test, Node)]
    return len(known) == len(users) > 0 and all(truth is not None and truth is not taken for taken, truth in known)


def _ways(
    elsewhere: Elsewhere, found: Definition, ask: Callable[[Inside], T | None], chain: tuple[Definition, ...]
) -> Iterator[tuple[T, tuple[Place, ...]]]:
    for caller, call in islice(elsewhere.uses(found), MOST):
        if elsewhere.is_test(caller):
            continue  # its sizes are small, and no model's
        place = elsewhere.place_of(caller, call)
        inside = _made(Facts(caller, Reach(usual=True, elsewhere=elsewhere)), found, call)
        answer = None if inside is None else ask(inside)
        if answer is not None:
            yield answer, (place,)
            continue
        around = caller.context.class_name
        owner = None if around is None else Definition(elsewhere.path_of(caller), around)
        if owner is None or owner in chain or len(chain) >= CHAIN:
            continue

        def through(outer: Inside, caller: Graph = caller, call: Node = call) -> T | None:
            facts: KnownFacts = outer.facts
            if outer.graph is not caller:
                facts = Facts(caller, outer.facts.reach)
                facts.init = outer.facts
            inside = _made(facts, found, call)
            return None if inside is None else ask(inside)

        for answer, places in _ways(elsewhere, owner, through, (*chain, owner)):
            yield answer, (place, *places)


def _made(facts: KnownFacts, found: Definition, call: Node) -> Inside | None:
    """The constructor of a class as a call runs it."""
    return facts.constructed(Instance(found, maker=(facts, call), path=SELF))


def made_sizes(facts: KnownFacts, known: Mapping[str, int]) -> dict[str, int]:
    """The sizes that the object of a method has by its constructor's arguments, where the package's calls of that give
    numbers. Where these differ, those of the smallest object. known: sizes that are numbers anyway."""
    attributes = [n for n in facts.graph.nodes if n.op == "attr" and facts.kind(n) in ("scalar", "array")]
    nodes = attributes + [n for n in facts.graph.nodes if n.op in TABLE and TABLE[n.op].kind == "layer"]
    wanted = {s.bare for n in attributes if facts.kind(n) == "scalar" and (s := facts.size(n)) is not None}
    wanted -= known.keys() | {None}
    ways: list[dict[str, int]] = []

    def ask(made: Facts) -> bool | None:
        found: dict[str, int] = {}
        sizes = list(numbered(nodes, facts, made))
        found.update((size.bare, n) for size, n in sizes if size.bare is not None)
        solve(sizes, found)
        ways.append(found)
        return True if wanted <= found.keys() else None

    if nodes:
        list(as_made(facts.graph, ask))
    out: dict[str, int] = {}
    for way in sorted(ways, key=lambda way: (-len(way), math.prod(way.values()))):
        out = {**way, **out}
    return out


def numbered(nodes: Sequence[Node], facts: KnownFacts, likely_facts: KnownFacts) -> Iterator[tuple[Expr, int]]:
    """The sizes of values, and the numbers that they are in other facts of them."""
    for node in nodes:
        sizes = [(facts.size(node), likely_facts.size(node))] if facts.kind(node) == "scalar" else []
        shape, likely_shape = facts.shape(node), likely_facts.shape(node)
        if shape is not None and likely_shape is not None:
            dims = shape.tail(len(likely_shape.dims)) or shape.dims  # of an unknown rank too
            sizes += zip(reversed(dims), reversed(likely_shape.dims), strict=False)
        for size, likely_size in sizes:
            number = None if size is None else likely_facts.usual(likely_size)[0]
            if size is not None and number is not None and number > 0:
                yield size, number


def solve(sizes: Sequence[tuple[Expr, int]], known: dict[str, int]) -> None:
    """Adds the names that one size alone leaves open: of 3*n, which is 384, where n is."""
    for size, number in sizes:
        if size.bare is not None or not size.names:
            continue
        rest = size.substitute(known)
        (name, *more) = rest.names or ("",)
        factor = rest.substitute({name: 1}).value() or 0
        if not more and rest == Expr.name(name) * factor and factor and number % factor == 0:
            known.setdefault(name, number // factor)
