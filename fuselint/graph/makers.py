"""How the package makes the object whose method a function is: facts for each call of its class.

A library's class can be made by anyone, so what follows from these calls is likely, and no proof. The arguments of a
call may come from the constructor that it stands in, and so on: each chain of constructors is looked at as one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

from fuselint.graph.across import SELF, Inside, Instance, Reach
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.fact import Default, Place
from fuselint.graph.facts import Facts
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node
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


def stated_quotient(graph: Graph, node: Node) -> int | None:
    """The quotient of two sizes of a method's object that the package states, both: by numbers of the code, or by
    defaults that are numbers, and that it gives nothing else for. It is the same one for each object that it makes."""

    def ask(facts: Facts) -> int | None:
        number, rests = facts.const(node), facts.of(node).rests
        stated = len(rests) > 1 and all(type(r.value) is int and not is_overridden(graph, r) for r in rests)
        return number if type(number) is int and stated else None

    number = graph.facts.const(node)
    if type(number) is int:
        return number
    name, program = graph.context.class_name, graph.program
    if name is None or program is None:
        return None
    elsewhere = program.elsewhere
    uses = list(islice(elsewhere.uses(Definition(elsewhere.path_of(graph), name)), MOST + 1))
    uses = [use for use in uses if not elsewhere.is_test(use[0])]
    made = list(as_made(graph, ask)) if len(uses) <= MOST else []
    numbers = {number for number, _ in made}
    known = {str(places[0]) for _, places in made}  # the line of each call
    return numbers.pop() if len(numbers) == 1 and len(known) == len(uses) else None


def is_overridden(graph: Graph, default: Default) -> bool:
    """Whether the package gives a constructor something else than a default."""
    if graph.program is None:
        return False
    path = os.path.abspath(default.place.path)
    known = graph.program.elsewhere.modules.frequencies(path)
    return known.is_given_otherwise(Definition(path, default.owner), default.name)


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
