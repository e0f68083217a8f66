"""How the package makes the object whose method a function is: facts for each call of its class.

A library's class can be made by anyone, so what follows from these calls is likely, and no proof. The arguments of a
call may come from the constructor that it stands in, and so on: each chain of constructors is looked at as one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import islice
from typing import TypeVar

from fuselint.graph.across import SELF, Inside, Instance, Reach, call_arguments
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.fact import Default, Fact, Place, constant_fact
from fuselint.graph.facts import Facts
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node, Statement, region
from fuselint.graph.ops import TABLE
from fuselint.graph.symbols import Expr
from fuselint.source.modules import Definition

CHAIN = 3
"""Constructors that call one another, at most."""

MOST = 12
"""Calls of one class that are looked at, at most."""

COUNTING = ("builtins.range", "builtins.enumerate")
"""What loops take numbers of steps from."""

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


def is_overridden(graph: Graph, default: Default) -> bool:
    """Whether the package gives a constructor something else than a default."""
    if graph.program is None:
        return False
    path = os.path.abspath(default.place.path)
    return graph.program.elsewhere.modules.is_given_otherwise(Definition(path, default.owner), default.name)


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
        around = caller.context.class_name
        owner = None if around is None else Definition(elsewhere.path_of(caller), around)
        if owner in chain or len(chain) >= CHAIN:
            owner = None
        for facts, step in _steps(Facts(caller, Reach(usual=True, elsewhere=elsewhere)), call):
            # What a constructor has by default is not what the package's calls give it.
            left_open = owner is not None and _rests_on_defaults(facts, call, owner) and _is_made(elsewhere, owner)
            answer = None if left_open else _asked(facts, found, call, ask)
            if answer is not None:
                yield answer, (place,)
                continue

            def through(
                outer: Inside, caller: Graph = caller, call: Node = call, wanted: int | None = step
            ) -> T | None:
                facts: KnownFacts = outer.facts
                if outer.graph is not caller:
                    facts = Facts(caller, outer.facts.reach)
                    facts.init = outer.facts
                steps = (at for at, step in _steps(facts, call) if step is None or wanted in (None, step))
                answers = (_asked(at, found, call, ask) for at in steps)
                return next((answer for answer in answers if answer is not None), None)

            ways = iter(()) if owner is None else _ways(elsewhere, owner, through, (*chain, owner))
            counts = left_open and owner is not None and not _is_made(elsewhere, owner, in_constructors=True)
            for answer, places in ways:
                yield answer, (place, *places)
                counts = False
            if counts and (answer := _asked(facts, found, call, ask)) is not None:
                yield answer, (place,)  # a configuration that is read may say otherwise


def _steps(facts: KnownFacts, call: Node) -> Iterator[tuple[KnownFacts, int | None]]:
    """The facts at each step of the loops over sequences of known numbers that the arguments of a call are taken from,
    `Block(dims[i], heads[i])`, and which step it is; else the facts as they are."""
    parts = {n: p for n in _taken_by_step(call) for p in [facts.of(n.inputs[0]).parts] if p}
    counters = [n.attrs["index"] for n in parts if n.attrs["index"] is not None]
    counts = {len(p) for p in parts.values()}
    if len(counts) != 1 or (count := counts.pop()) > MOST:
        yield facts, None
        return
    for step in range(count):
        given: dict[Node, Fact] = {n: constant_fact(step) for n in counters}
        given |= {n: p[step] for n, p in parts.items() if n.attrs["index"] is None}
        yield facts.where(given), step


def _taken_by_step(call: Node) -> list[Node]:
    """What the arguments of a call are made of that a loop takes of a sequence: an element for each step, or by its
    number."""
    items = [n for n in region(call, ()) if n.op == "item"]
    counted = {n for n in items if n.inputs[0].op == "call" and n.inputs[0].attrs.get("target") in COUNTING}
    return sorted(
        (n for n in items if n not in counted and (n.attrs["index"] is None or n.attrs["index"] in counted)),
        key=lambda n: n.id,
    )


def is_part(graph: Graph) -> bool:
    """Whether a constructor of the package makes the object of a method, and so says what its sizes are."""
    name, program = graph.context.class_name, graph.program
    if name is None or program is None:
        return False
    found = Definition(program.elsewhere.path_of(graph), name)
    return _is_made(program.elsewhere, found, in_constructors=True)


def _is_made(elsewhere: Elsewhere, found: Definition, *, in_constructors: bool = False) -> bool:
    """Whether the package, besides its tests, makes an object of a class by calls that show their arguments."""
    for caller, call in elsewhere.uses(found):
        inside = caller.context.qualname.endswith(".__init__")
        if (inside or not in_constructors) and call_arguments(call) is not None and not elsewhere.is_test(caller):
            return True
    return False


def _rests_on_defaults(facts: KnownFacts, call: Node, owner: Definition) -> bool:
    """Whether an argument of a call is made of what the constructor around it has by default."""
    return any(d.owner == owner.name for n in call.inputs for d in facts.of(n).rests)


def _asked(facts: KnownFacts, found: Definition, call: Node, ask: Callable[[Inside], T | None]) -> T | None:
    inside = _made(facts, found, call)
    return None if inside is None else ask(inside)


def _made(facts: KnownFacts, found: Definition, call: Node) -> Inside | None:
    """The constructor of a class as a call runs it."""
    return facts.constructed(Instance(found, maker=(facts, call), path=SELF))


def made_sizes(
    facts: KnownFacts,
    known: Mapping[str, int],
    stmt: Statement | None = None,
    last: Callable[[str], bool] | None = None,
) -> dict[str, int]:
    """The sizes that the object of a method has by its constructor's arguments, where the package's calls of that give
    numbers. Where these differ, those of the smallest object, and rather of one that runs a statement. known: sizes
    that are numbers anyway. last: what calls name arguments whose objects count only where there are no others."""
    attributes = [n for n in facts.graph.nodes if n.op == "attr" and facts.kind(n) in ("scalar", "array")]
    nodes = attributes + [n for n in facts.graph.nodes if n.op in TABLE and TABLE[n.op].kind == "layer"]
    wanted = {name for n in nodes for s in _own_sizes(n, facts) for name in s.names if ".shape[" not in name}
    wanted = (wanted | facts.input_axes.keys()) - known.keys()
    program, owner = facts.graph.program, facts.graph.context.class_name
    init = None if program is None or owner is None else program.init(owner)
    arguments = [] if init is None else [p for name, p in init.params.items() if name != "self"]
    parts: list[dict[str, int]] = []
    passing_by: list[dict[str, int]] = []

    def ask(made: Facts) -> dict[str, int] | None:
        found: dict[str, int] = {}
        sizes = list(numbered(nodes, facts, made))
        for p in arguments:
            size, number = facts.size(p), made.usual(made.size(p))[0]
            sizes += [(size, number)] if size is not None and number is not None and number > 0 else []
        found.update((size.bare, n) for size, n in sizes if size.bare is not None)
        solve(sizes, found)
        given = ((name, made.usual(size)[0]) for name, size in made.input_axes.items())
        found.update((name, n) for name, n in given if n is not None and n > 0)
        given_to = made.init.arguments.values() if made.init is not None and last is not None else ()
        is_last = last is not None and any(map(last, (name for maker, n in given_to for name in _names(maker, n))))
        if is_last or Inside(facts.graph, made).reached(stmt) is False:
            passing_by.append(found)
        elif wanted <= found.keys():
            return found
        else:
            parts.append(found)
        return None

    ways = [found for found, _ in as_made(facts.graph, ask)] if nodes else []
    out: dict[str, int] = {}
    for some in (ways, parts, passing_by):
        for way in sorted(some, key=lambda way: _length(way, wanted)):
            out = {**way, **out}
    return out


def _names(facts: KnownFacts, node: Node) -> Iterator[str]:
    """What a constructor calls a value."""
    yield facts.name_of(node)
    yield from (name for name, stored in facts.graph.stored.items() if stored is node)
    yield from (name for name, bound in facts.graph.bindings.items() if any(b.node is node for b in bound))


def _length(way: Mapping[str, int], wanted: Set[str]) -> tuple[int, ...]:
    """How small an object is, of which some sizes are wanted: one of which more are known comes first."""
    numbers = [n for name, n in way.items() if name in wanted]
    return -len(numbers), math.prod(numbers), -len(way), math.prod(way.values())


def _own_sizes(node: Node, facts: KnownFacts) -> list[Expr]:
    """Of what a constructor makes: a number, the axes of a weight, the last axis that a layer gives."""
    if facts.kind(node) == "scalar":
        return [s for s in [facts.size(node)] if s is not None]
    shape = facts.shape(node)
    dims = () if shape is None else shape.dims if node.op == "attr" else shape.dims[-1:]
    return list(dims)


def numbered(
    nodes: Sequence[Node], facts: KnownFacts, likely_facts: KnownFacts, never: str | None = None
) -> Iterator[tuple[Expr, int]]:
    """The sizes of values, and the numbers that they are in other facts of them. never: whose defaults don't count."""
    for node in nodes:
        sizes = [(facts.size(node), likely_facts.size(node))] if facts.kind(node) == "scalar" else []
        shape, likely_shape = facts.shape(node), likely_facts.shape(node)
        if shape is not None and likely_shape is not None:
            dims = shape.tail(len(likely_shape.dims)) or shape.dims  # of an unknown rank too
            sizes += zip(reversed(dims), reversed(likely_shape.dims), strict=False)
        for size, likely_size in sizes:
            number, rests = likely_facts.usual(likely_size)
            if size is not None and number is not None and number > 0 and not rests_on(rests, never):
                yield size, number


def rests_on(rests: Set[Default], owner: str | None) -> bool:
    """Whether nothing says a number but the defaults of one constructor; of a configuration, they say more."""
    return bool(rests) and all(d.owner == owner for d in rests)


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
