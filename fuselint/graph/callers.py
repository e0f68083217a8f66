"""The dtypes and shapes that the package gives a function's arguments: what costs count them as, and no proof.

A table made of `mx.cos` is float32 wherever it comes from, though the function that multiplies by it doesn't say so.
So the calls of the function in the package are looked at, in turn with their own callers, and also the places where a
helper is inlined. An argument has the dtype, and as many axes, as all calls of which something is known give it,
or the dtype that its docstring states.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.graph.across import Reach, bind, call_arguments
from fuselint.graph.documented import documented
from fuselint.graph.dtypes import UNKNOWN, DType
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.facts import Facts
from fuselint.graph.likely import likely
from fuselint.graph.makers import is_part, made_sizes, rests_on
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.supplied import MODEL, Frame, Path, Supplied
from fuselint.graph.symbols import Expr
from fuselint.graph.trace import is_configured
from fuselint.graph.unstated import from_outside, wide_weights
from fuselint.source.modules import Definition
from fuselint.source.project import Parameter

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

FLOAT32 = DType({"float32"})

DEEPEST = 4
"""Calls above one another that are looked at."""

MOST = 12
"""Calls of one function that are looked at."""

SEVERAL = 2
"""Axes from which on, if none is 1, the shape at a caller says less than what is done with an argument here."""

HEADED = 4
"""Axes of what attention computes with."""

GRAPHS = 40
"""Functions that are searched for them."""

Given = tuple[Node, Node]
"""A value of the function, and the one of its caller that it is."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What calls make of an axis: the number that it always is, or in the call that gives the fewest elements, and
    what they call it. every: whether nothing is left open of any call."""

    number: int | None
    least: int | None
    sizes: frozenset[Expr]
    every: bool = True


class Callers:
    """What the callers of functions say, as one file's analysis asks: each is looked at once."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self.elsewhere = elsewhere
        self._usual: dict[Graph, KnownFacts] = {}
        self._given: dict[tuple[Graph, int], dict[str, str]] = {}
        self._calls: dict[Graph, list[tuple[Graph, list[Given]]]] = {}
        self._shapes: dict[tuple[Graph, int], dict[Node, Shape]] = {}
        self._named_axes: dict[tuple[Graph, int], dict[str, Axis]] = {}
        self._absent: dict[Graph, frozenset[Node]] = {}
        self._is_given: dict[tuple[Graph, Node], bool] = {}
        self._shaped_facts: dict[tuple[Graph, int], KnownFacts] = {}
        self._wrapping: dict[Definition, bool] = {}
        self._last_axes: dict[tuple[Graph, int], dict[Node, Axis]] = {}
        self._made_sizes: dict[KnownFacts, dict[str, int]] = {}

    def dtypes(self, graph: Graph, facts: KnownFacts, depth: int = 0) -> dict[str, str]:
        """By the symbol of an argument's dtype: what the package's calls give it or the docstring, or MODEL."""
        if depth >= DEEPEST:
            return {}
        if (graph, depth) not in self._given:
            self._given[graph, depth] = self._dtypes(graph, facts, depth)
        return self._given[graph, depth]

    def _dtypes(self, graph: Graph, facts: KnownFacts, depth: int) -> dict[str, str]:
        found: dict[str, set[str]] = {}
        cast, silent = set[str](), set[str]()
        for caller, pairs in self.calls(graph):
            frame = self._frame(caller, depth + 1)
            outer, known = frame.facts, frame.symbols
            for own, given in pairs:
                argument, element = _unpacked(own, given, pairs)
                for symbol, path, dtype in _stated(facts, own, outer, argument, element):
                    number = "weak float" if element is None and is_configured(argument, outer) else None
                    said = dtype.name or number or Supplied(self.elsewhere, self._facts).of(frame, argument, path)
                    said = said or _said(dtype.bound(known), partial(from_outside, argument, outer))
                    if said:
                        found.setdefault(symbol, set()).add(said)
                        cast.update({symbol} if argument.op == "astype" else ())
                    else:
                        silent.add(symbol)
        for symbol in cast & silent:
            del found[symbol]  # that one call casts it says nothing of the others
        for node in graph.nodes:
            if node.op == "attr" and facts.kind(node) == "unknown" and self._is_made_a_number(graph, node):
                found.update((symbol, {"weak float"}) for symbol in _symbol(facts, node))
            elif node.op == "attr" and facts.kind(node) == "array" and self._is_made_anew(graph, facts, node):
                found.update((symbol, {"float32"}) for symbol in _symbol(facts, node))
        one = {symbol: next(iter(said)) for symbol, said in found.items() if len(said) == 1}
        return {**dict(documented(graph, facts)), **one}

    def _is_made_a_number(self, graph: Graph, attribute: Node) -> bool:
        """Whether every call that makes the object in the package gives a number for an attribute."""
        made, owner = attribute.attrs.get("init"), graph.context.class_name
        if not isinstance(made, Node) or made.op != "param" or owner is None:
            return False
        found = Definition(self.elsewhere.path_of(graph), owner)
        method = self.elsewhere.method(found, "__init__")
        summary = None if method is None else self.elsewhere.function(method)
        said = []
        for caller, call in islice(self.elsewhere.uses(found), MOST) if summary is not None else ():
            given = call_arguments(call)
            bound = None if given is None or summary is None else bind(summary.parameters[1:], *given)
            argument = (bound or {}).get(made.attrs["name"])
            if argument is not None and not self.elsewhere.is_test(caller):
                said.append(_is_number(argument, self._facts(caller)))
        return bool(said) and all(said)

    def _is_made_anew(self, graph: Graph, facts: KnownFacts, attribute: Node) -> bool:
        """Whether a weight is float32 as the constructor makes it, no checkpoint's: that of a layer which a method of
        its class wraps around one that is there, `LoRALinear.from_base(linear)`."""
        made, owner = attribute.attrs.get("init"), graph.context.class_name
        if not isinstance(made, Node) or owner is None or facts.dtype(made) != FLOAT32:
            return False
        found = Definition(self.elsewhere.path_of(graph), owner)
        if found not in self._wrapping:
            calls = islice(self.elsewhere.uses(found), MOST)
            self._wrapping[found] = any(
                caller.context.class_name == owner
                and self.elsewhere.path_of(caller) == found.path
                and not caller.context.qualname.endswith(".__init__")
                and any(_is_weight_of_a_parameter(n) for n in caller.nodes)
                for caller, _ in calls
            )
        return self._wrapping[found]

    def shapes(self, graph: Graph, facts: KnownFacts, depth: int = 0) -> dict[Node, Shape]:
        """By the parameter, where the function doesn't say its rank: a shape of as many axes as the package's calls
        give it, of which those are 1 that always are. For what the function calls in turn, other numbers stand, too."""
        if depth >= DEEPEST:
            return {}
        if (graph, depth) not in self._shapes:
            self._shapes[graph, depth] = {}  # of a function that calls itself
            self._shapes[graph, depth] = dict(reversed(list(self._ranked(graph, facts, depth))))
        return self._shapes[graph, depth]

    def _ranked(self, graph: Graph, facts: KnownFacts, depth: int) -> Iterator[tuple[Node, Shape]]:
        for own, axes in self._axes(graph, depth):
            if facts.rank(own) is None:
                numbers = [1 if a.sizes == {Expr.of(1)} else a.number if depth else None for a in axes]
                if depth or len(numbers) < SEVERAL or any(n is not None for n in numbers):
                    named = zip(numbers, _axes_of(own, len(numbers)), strict=True)
                    yield own, Shape(None, tuple(axis if n is None else Expr.of(n) for n, axis in named))
        for own in self._lasts(graph, depth):
            if facts.shape(own) is None and facts.kind(own) == "unknown":
                yield own, Shape(own.attrs["name"], ())  # an array whose last axis the calls know

    def axes(self, graph: Graph, facts: KnownFacts, depth: int = 0) -> dict[str, Axis]:
        """By the name of a size of a parameter: what all of the package's calls make it."""
        if (graph, depth) in self._named_axes:
            return self._named_axes[graph, depth]
        out = self._named_axes[graph, depth] = {}
        for own, axes in self._axes(graph, depth):
            shape = facts.shape(own)
            ranked = shape is not None and shape.lead is None
            ways = (
                [shape.dims]
                if shape is not None and ranked
                else [_axes_of(own, len(axes)), _from_first(own, len(axes))]
            )
            for dims in ways:
                if len(dims) == len(axes):
                    out.update((d.bare, axis) for d, axis in zip(dims, axes, strict=True) if d.bare is not None)
        for own, last in self._lasts(graph, depth).items():
            shape = facts.shape(own)
            named = last_axis(own) if shape is None else shape.axis(-1)
            if named is not None and named.bare is not None:
                out.setdefault(named.bare, last)
        return out

    def _called(self, size: Expr, caller: Graph, depth: int) -> frozenset[Expr]:
        """What a size is called: of an argument that is handed on, what the caller's own calls call it."""
        if size.bare is None or ".shape[" not in size.bare or depth >= DEEPEST:
            return frozenset({size})
        above = self.axes(caller, caller.facts, depth).get(size.bare)
        return frozenset({size}) if above is None else above.sizes

    def ranks(self, graph: Graph) -> dict[Node, int]:
        """By the parameter: as many axes as all of the package's calls give it."""
        return {own: len(axes) for own, axes in self._axes(graph, 0)}

    def _axes(self, graph: Graph, depth: int) -> Iterator[tuple[Node, list[Axis]]]:
        """The parameters to which all calls, as far as is known, give as many axes, and those."""
        found: dict[Node, list[list[tuple[frozenset[Expr], int | None]]]] = {}
        calls, silent = self.calls(graph), set[Node]()
        for caller, pairs in calls:
            outer = self._shaped(caller, depth + 1)
            for own, argument in pairs:
                shape = likely(argument, outer) if own.op == "param" else None
                if shape is not None and shape.lead is None and outer.kind(argument) != "scalar":
                    dims = shape.dims
                    axes = [(self._called(d, caller, depth + 1), self._number(d, outer, depth + 1)) for d in dims]
                    found.setdefault(own, []).append(axes)
                else:
                    silent.add(own)
        for own, given in found.items():
            if len({len(axes) for axes in given}) == 1:
                every = own not in silent and len(calls) < MOST
                known = max(sum(n is not None for _, n in axes) for axes in given)
                told = [axes for axes in given if sum(n is not None for _, n in axes) == known]
                smallest = min(told, key=lambda axes: math.prod(n or 1 for _, n in axes))
                sizes = zip(zip(*given, strict=True), smallest, strict=True)
                yield own, [_axis(axis, least, every) for axis, (_, least) in sizes]

    def _lasts(self, graph: Graph, depth: int) -> dict[Node, Axis]:
        """By the parameter: what the calls make its last axis, of those that say it, however many axes they give."""
        if depth >= DEEPEST:
            return {}
        if (graph, depth) not in self._last_axes:
            self._last_axes[graph, depth] = {}  # of a function that calls itself
            found: dict[Node, list[tuple[frozenset[Expr], int | None]]] = {}
            numbers: dict[Node, list[tuple[bool, int]]] = {}
            silent = set[Node]()
            for caller, pairs in self.calls(graph):
                outer = self._shaped(caller, depth + 1)
                for own, argument in pairs:
                    shape = likely(argument, outer) if own.op == "param" and outer.kind(argument) != "scalar" else None
                    last = None if shape is None or shape.rank == 0 else shape.axis(-1)
                    number = None if last is None else self._number(last, outer, depth + 1)
                    headed = shape is not None and shape.lead is None and len(shape.dims) >= HEADED
                    if shape is not None and shape.lead is None and not headed and not number:
                        silent.add(own)
                    if last is not None and number:
                        found.setdefault(own, []).append((self._called(last, caller, depth + 1), number))
                        # What has heads has more rows than tokens: its width is not the least of others'.
                        numbers.setdefault(own, []).append((headed, number))
            least = {own: min(n) for own, n in numbers.items()}
            found = {own: s for own, s in found.items() if not (least[own][0] and own in silent)}
            self._last_axes[graph, depth] = {own: _axis(s, least[own][1]) for own, s in found.items()}
        return self._last_axes[graph, depth]

    def _number(self, size: Expr, facts: KnownFacts, depth: int) -> int | None:
        """A size of a caller as a number: by defaults, as the package makes its object, or by what is given to it."""
        number, rests = facts.usual(size)
        if not size.names or (number is not None and all(d.owner != facts.graph.context.class_name for d in rests)):
            return number
        if facts not in self._made_sizes:
            self._made_sizes[facts] = {}
            never = facts.graph.context.class_name if is_part(facts.graph) else None
            defaults = facts.reach.numbers.items()
            known = {name: n for name, (n, rests) in defaults if not rests_on(rests, never)}
            self._made_sizes[facts] = {**known, **made_sizes(facts, known)}
        numbers = self._made_sizes[facts]
        if any(".shape[" in name for name in size.names - numbers.keys()):
            lasts = self._lasts(facts.graph, depth)
            given = ((s.axis(-1), a.least) for p, a in lasts.items() if (s := facts.shape(p)) is not None)
            numbers = {**{d.bare: n for d, n in given if d is not None and d.bare and n}, **numbers}
        found = size.substitute(numbers).met().value()
        return number if found is None and not rests_on(rests, facts.graph.context.class_name) else found

    def absent(self, graph: Graph, depth: int = 0) -> frozenset[Node]:
        """Parameters that are None by default, and that no call in the package gives anything else."""
        optional = {p for p in graph.params.values() if _is_none(p.attrs.get("default"))}
        if depth >= DEEPEST or not optional:
            return frozenset()
        if graph not in self._absent:
            self._absent[graph] = frozenset()  # of a function that calls itself
            calls = self.calls(graph)
            for caller, pairs in calls:
                if any(n.frame.qualname == graph.context.qualname for n in caller.nodes):
                    optional.clear()  # inlined: its operands say nothing of what was left out
                outer = self.absent(caller, depth + 1)
                optional -= {own for own, n in pairs if not _is_none(n) and n not in outer}
            self._absent[graph] = frozenset(optional if 0 < len(calls) < MOST else ())
        return self._absent[graph]

    def is_given(self, graph: Graph, parameter: Node, depth: int = 0) -> bool:
        """Whether some call in the package, perhaps one of the method that a base class has in its place, gives an
        argument, or hands one on that is given."""
        if depth >= DEEPEST:
            return False
        if (graph, parameter) not in self._is_given:
            self._is_given[graph, parameter] = False  # of a function that calls itself
            self._is_given[graph, parameter] = self._gives(graph, parameter, depth)
        return self._is_given[graph, parameter]

    def _gives(self, graph: Graph, parameter: Node, depth: int) -> bool:
        for version in (graph, *self._overridden(graph)):
            for caller, pairs in self.calls(version):
                for own, n in pairs:
                    if own.op != "param" or own.attrs["name"] != parameter.attrs["name"] or _is_none(n):
                        continue
                    if n.op != "param" or n is own or self.is_given(caller, n, depth + 1):
                        return True
        return False

    def _overridden(self, graph: Graph) -> Iterator[Graph]:
        """The methods of base classes that a method stands in the place of: what calls them may run it."""
        owner, name = graph.context.class_name, graph.context.qualname.rpartition(".")[2]
        bases = [] if owner is None else self.elsewhere.lineage(Definition(self.elsewhere.path_of(graph), owner))[0][1:]
        for base in bases:
            method = self.elsewhere.method(base, name)
            above = None if method is None else self.elsewhere.graph(method)
            if above is not None and above is not graph:
                yield above

    def arguments(self, graph: Graph, parameter: Node) -> list[tuple[KnownFacts, Node]]:
        """See arguments."""
        out: list[tuple[KnownFacts, Node]] = []
        at = next((i for i, p in enumerate(graph.params.values()) if p is parameter), None)
        for version in (graph, *self._overridden(graph)):
            own = None if at is None else next(islice(version.params.values(), at, None), None)
            calls = [c for c in self.calls(version) if version is graph or self._runs(graph, c[0])]
            if len(calls) >= MOST:
                return []
            for caller, pairs in calls:
                given = next((n for p, n in pairs if p is own), None)  # an inlined one is read more than once
                if given is not None:
                    out.append((self._shaped(caller, 1), given))
        return out

    def _runs(self, graph: Graph, caller: Graph) -> bool:
        """Whether an object with a method runs a method of one of its bases: nothing stands in the place of that."""
        owner, around = graph.context.class_name, caller.context.class_name
        name = caller.context.qualname.rpartition(".")[2]
        if owner is None or around is None or caller.context.qualname != f"{around}.{name}":
            return False
        above = Definition(self.elsewhere.path_of(caller), around)
        for at in self.elsewhere.lineage(Definition(self.elsewhere.path_of(graph), owner))[0]:
            if at == above:
                return True
            held = self.elsewhere.class_(at)
            if held is not None and not self.elsewhere.modules.runs(at, held, name):
                return False
        return False

    def always_array(self, graph: Graph, parameter: Node, depth: int = 0) -> bool:
        """Whether every call in the package gives an array for a parameter, or what its own callers give so."""
        calls = self.calls(graph) if depth < DEEPEST else []
        if not 0 < len(calls) < MOST:
            return False
        kinds: list[bool] = []
        for caller, pairs in calls:
            facts = self._facts(caller)
            for own, n in pairs:
                if own is parameter and not _is_none(n):
                    passed_on = facts.kind(n) == "unknown" and n.op == "param" and n is not parameter
                    known = facts.kind(n) == "array"
                    kinds.append(known or (passed_on and self.always_array(caller, n, depth + 1)))
        return bool(kinds) and all(kinds)

    def _shaped(self, graph: Graph, depth: int) -> KnownFacts:
        """The facts of a function, and likely shapes of its arguments."""
        if (graph, depth) not in self._shaped_facts:
            facts = Facts(graph, Reach(usual=True, elsewhere=self.elsewhere))
            facts.likely_shapes.update(self.shapes(graph, facts, depth))
            self._shaped_facts[graph, depth] = facts
        return self._shaped_facts[graph, depth]

    def calls(self, graph: Graph) -> list[tuple[Graph, list[Given]]]:
        """The calls of a function, each with what it gives the function."""
        if graph not in self._calls:
            self._calls[graph] = list(islice(_calls(self.elsewhere, graph, self._facts), MOST))
        return self._calls[graph]

    def _frame(self, graph: Graph, depth: int) -> Frame:
        facts = self._facts(graph)
        symbols = {**wide_weights(facts), **self.dtypes(graph, facts, depth)}
        return Frame(facts, symbols, outer=partial(self._part, graph, depth))

    def _part(self, graph: Graph, depth: int, parameter: Node, path: Path) -> str | None:
        """The dtype of an element of a tuple or list that the calls of a function give it."""
        if depth >= DEEPEST:
            return None
        said: set[str] = set()
        for caller, pairs in self.calls(graph):
            for own, argument in pairs:
                if own is parameter:
                    frame = self._frame(caller, depth + 1)
                    said.update(filter(None, [Supplied(self.elsewhere, self._facts).of(frame, argument, path)]))
        return said.pop() if len(said) == 1 else None

    def _facts(self, graph: Graph) -> KnownFacts:
        if graph not in self._usual:
            self._usual[graph] = Facts(graph, Reach(usual=True, elsewhere=self.elsewhere))
        return self._usual[graph]


def _axis(given: Sequence[tuple[frozenset[Expr], int | None]], least: int | None, every: bool = True) -> Axis:
    numbers = {n for _, n in given}
    sizes = frozenset[Expr]().union(*(sizes for sizes, _ in given))
    every = every and None not in numbers
    return Axis(numbers.pop() if len(numbers) == 1 else None, least, sizes, every)


def last_axis(parameter: Node) -> Expr:
    """What the last axis of a parameter is called of which nothing else is known."""
    return Expr.name(f"{parameter.attrs['name']}.shape[-1]")


def _axes_of(parameter: Node, count: int) -> tuple[Expr, ...]:
    """What so many axes of a parameter are called."""
    return tuple(Expr.name(f"{parameter.attrs['name']}.shape[{-i}]") for i in range(count, 0, -1))


def _from_first(parameter: Node, count: int) -> tuple[Expr, ...]:
    """What they are called where they are counted from the first."""
    return tuple(Expr.name(f"{parameter.attrs['name']}.shape[{i}]") for i in range(count))


def given_dtypes(graph: Graph) -> dict[str, str]:
    """By the symbol of an argument's dtype: the dtype that the package's calls of the function give it, or MODEL."""
    callers = _callers(graph)
    return {} if callers is None else callers.dtypes(graph, graph.facts)


def given_shapes(graph: Graph) -> dict[Node, Shape]:
    """By the parameter: a shape of as many axes as the package's calls give it."""
    callers = _callers(graph)
    return {} if callers is None else callers.shapes(graph, graph.facts)


def given_ranks(graph: Graph) -> dict[Node, int]:
    """See Callers.ranks."""
    callers = _callers(graph)
    return {} if callers is None else callers.ranks(graph)


def given_axes(graph: Graph) -> dict[str, Axis]:
    """See Callers.axes."""
    callers = _callers(graph)
    return {} if callers is None else callers.axes(graph, graph.facts)


def absent_arguments(graph: Graph) -> frozenset[Node]:
    """See Callers.absent."""
    callers = _callers(graph)
    return frozenset() if callers is None else callers.absent(graph)


def is_given(graph: Graph, parameter: Node) -> bool:
    """See Callers.is_given."""
    callers = _callers(graph)
    return callers is not None and callers.is_given(graph, parameter)


def is_given_an_array(graph: Graph, parameter: Node) -> bool:
    """See Callers.always_array."""
    callers = _callers(graph)
    return callers is not None and callers.always_array(graph, parameter)


def goes_with(graph: Graph, one: Node, other: Node) -> bool:
    """Whether every call in the package that gives one parameter gives the other too, or neither."""
    callers = _callers(graph)
    calls = [] if callers is None else callers.calls(graph)
    given = [{own for own, n in pairs if not _is_none(n)} for _, pairs in calls]
    return 0 < len(given) < MOST and all(other in own for own in given if one in own)


def _callers(graph: Graph) -> Callers | None:
    if graph.program is None:
        return None
    elsewhere = graph.program.elsewhere
    if elsewhere.callers is None:
        elsewhere.callers = Callers(elsewhere)
    return elsewhere.callers


def _is_weight_of_a_parameter(node: Node) -> bool:
    source = node.inputs[0] if node.op == "attr" and node.attrs.get("name") == "weight" else None
    return source is not None and source.op == "param" and source.attrs.get("name") not in ("self", "cls")


def _is_none(node: object) -> bool:
    return isinstance(node, Node) and node.op == "const" and node.attrs.get("value") is None


def _is_number(node: Node, facts: KnownFacts) -> bool:
    """Also `config.theta` in a constructor: an attribute of its argument."""
    root = node
    while root.op == "attr" and root.inputs:
        root = root.inputs[0]
    configured = root is not node and root.op == "param" and root.attrs.get("name") != "self"
    return facts.kind(node) == "scalar" or (configured and facts.graph.context.qualname.endswith(".__init__"))


def given_numbers(graph: Graph, parameter: Node) -> list[int | None]:
    """The number that each call of the function in the package gives an argument, by constants and defaults; None where
    that isn't known. A helper that is lowered where it is called is no call there."""
    found: list[int | None] = []
    for caller, argument in given(graph, parameter):
        facts = Facts(caller, Reach(usual=True, elsewhere=caller.program.elsewhere if caller.program else None))
        found.append(facts.usual(facts.size(argument))[0])
    return found


def given(graph: Graph, parameter: Node) -> Iterator[tuple[Graph, Node]]:
    """What the package's calls of the function give an argument: each caller, and the value there."""
    if graph.program is None:
        return
    elsewhere = graph.program.elsewhere
    elsewhere.callers = elsewhere.callers or Callers(elsewhere)
    for caller, pairs in elsewhere.callers.calls(graph):
        yield from ((caller, argument) for own, argument in pairs if own is parameter)


def arguments(graph: Graph, parameter: Node) -> list[tuple[KnownFacts, Node]]:
    """What the package's calls give an argument, also those that name the method of a base class in whose place this
    one stands, with the caller's facts; nothing where there are more than are looked at."""
    callers = _callers(graph)
    return [] if callers is None else callers.arguments(graph, parameter)


def has_rows(graph: Graph, parameter: Node) -> bool:
    """Whether every call in the package that is found gives an argument with an axis of rows before the last: one that
    is longer than 1, or for which another array that it is made of got a new one, `a + b[:, None]`."""
    given = arguments(graph, parameter)
    return bool(given) and all(_has_rows(*g) for g in given)


def _has_rows(facts: KnownFacts, node: Node) -> bool:
    shape = likely(node, facts)
    if shape is not None and shape.lead is None:
        return len(shape.dims) > SEVERAL and shape.dims[-2] != 1
    grown = [n.op in ("index", "expand_dims") and _new_axis(facts, n) for n in node.inputs]
    return node.op in TABLE and TABLE[node.op].kind == "binary" and grown.count(True) == 1 and len(grown) == 2


def _new_axis(facts: KnownFacts, node: Node) -> bool:
    """Whether a view has an axis of 1 before the last that the array has not."""
    shape = likely(node, facts)
    return shape is not None and len(shape.dims) > 1 and shape.dims[-2] == 1


def every_given(graph: Graph, parameter: Node) -> list[tuple[Graph, Node]]:
    """See given; nothing where there are more calls than are looked at."""
    callers = _callers(graph)
    return list(given(graph, parameter)) if callers is not None and len(callers.calls(graph)) < MOST else []


def _said(dtype: DType, free: Callable[[], frozenset[str]]) -> str | None:
    """A dtype by its name; MODEL for that of a weight, None where nothing is known."""
    if dtype.name is not None or dtype.weak:
        return dtype.name or min(dtype)
    symbols = dtype.symbols
    return MODEL if symbols and symbols - free() else None


def _unpacked(own: Node, given: Node, pairs: Sequence[Given]) -> tuple[Node, int | None]:
    """What a call gives a parameter: of `*rope`, the tuple and which of its elements."""
    if given.op != "star":
        return given, None
    return given.inputs[0], [o for o, n in pairs if n is given].index(own)


def _stated(
    facts: KnownFacts, own: Node, outer: KnownFacts, argument: Node, element: int | None = None
) -> Iterator[tuple[str, Path, DType]]:
    """The symbols of a value, or of the parts of a tuple, with which part it is, and their dtypes at the caller.
    element: which of a tuple the value is."""
    parts = outer.of(argument).parts
    if element is not None:
        part = UNKNOWN if parts is None or element >= len(parts) else parts[element].dtype
        yield from ((symbol, (element,), part) for symbol in _symbol(facts, own))
        return
    for item in facts.graph.nodes:
        index = item.attrs.get("index")
        if item.op == "item" and item.inputs[0] is own and isinstance(index, int) and index >= 0:
            part = UNKNOWN if parts is None or index >= len(parts) else parts[index].dtype
            yield from ((symbol, (index,), part) for symbol in _symbol(facts, item))
    if parts is None and outer.kind(argument) in ("array", "unknown", "scalar"):
        yield from ((symbol, (), outer.dtype(argument)) for symbol in _symbol(facts, own))


def _symbol(facts: KnownFacts, own: Node) -> Iterator[str]:
    mine = facts.dtype(own)
    if len(mine) == 1 and mine.symbols:
        yield next(iter(mine))


def _calls(
    elsewhere: Elsewhere, graph: Graph, facts: Callable[[Graph], KnownFacts]
) -> Iterator[tuple[Graph, list[Given]]]:
    """The calls of a function in the package, each with what it gives the function."""
    found = Definition(elsewhere.path_of(graph), graph.context.qualname)
    summary = elsewhere.function(found)
    if summary is None:
        return
    parameters = summary.parameters[1:] if summary.kind in ("method", "classmethod") else summary.parameters
    for caller in islice(_candidates(elsewhere, found, graph), GRAPHS):
        if caller is graph or elsewhere.is_test(caller):
            continue
        pairs = _inlined(graph, caller)
        if pairs:
            yield caller, pairs
        for node in caller.nodes:
            calls = node.op == "call" and _calls_it(elsewhere, facts(caller), node, found, graph)
            whole = summary.kind == "method" and node.attrs.get("callee") is None and "path" not in node.attrs
            whole = whole and _names_it(elsewhere, caller, node, found)
            bound = _bound(summary.parameters if whole else parameters, node) if calls else None
            if bound:
                yield caller, [(graph.params[k], n) for k, n in bound.items() if k in graph.params]


def _bound(parameters: Sequence[Parameter], call: Node) -> dict[str, Node] | None:
    """Arguments by the names of parameters; of a last `*rope`, its node for each parameter that it may be for."""
    given = call_arguments(call)
    if given is not None:
        return bind(parameters, *given)
    keywords = call.attrs.get("keywords", ())
    positional = list(call.inputs[: len(call.inputs) - len(keywords)])
    if not positional or [i for i, n in enumerate(positional) if n.op == "star"] != [len(positional) - 1]:
        return None
    names = [p.name for p in parameters if p.kind in ("positional", "plain") and p.name not in keywords]
    positional += positional[-1:] * (len(names) - len(positional))
    return {
        **dict(zip(names, positional, strict=False)),
        **dict(zip(keywords, call.inputs[-len(keywords) :], strict=False)),
    }


def _inlined(graph: Graph, caller: Graph) -> list[Given]:
    """The operands of a helper's operations where the caller has them inlined."""
    inside = [n for n in caller.nodes if n.frame.qualname == graph.context.qualname and _reads(n)]
    ours = {_place(n): n for n in graph.nodes if _reads(n)} if inside else {}
    out: list[Given] = []
    for theirs in inside:
        own = ours.get(_place(theirs))
        if own is not None and len(own.inputs) == len(theirs.inputs):
            out += zip(own.inputs, theirs.inputs, strict=True)
    loops = [(o, t) for o, t in dict.fromkeys(out) if o.op == t.op == "loop"]
    return out + [(o.inputs[0], t.inputs[0]) for o, t in loops if o.inputs and t.inputs]  # before the first round


def _reads(node: Node) -> bool:
    return node.op in TABLE or node.op in ("item", "index", "call")


def _place(node: Node) -> Hashable:
    """What is alike for a helper's operation and the same one where it is inlined."""
    return _span(node), node.op, str(node.attrs.get("index")) if node.op == "item" else ""


def _span(node: Node) -> tuple[str, int, int] | None:
    """Where the expression of a value stands."""
    source = node.frame.source
    return None if source is None or node.cst is None else (source.file.path, *source.span(node.cst))


def _calls_it(elsewhere: Elsewhere, facts: KnownFacts, node: Node, found: Definition, graph: Graph) -> bool:
    target, name = node.attrs.get("target"), found.name.rpartition(".")[2]
    if isinstance(target, str) and elsewhere.resolve(facts.graph, target) == found:
        return True
    if _names_it(elsewhere, facts.graph, node, found):
        return True
    if _may_be(elsewhere, facts.graph, node.attrs.get("callee"), found):
        return True
    if graph.context.class_name is None:
        return False
    callee = node.attrs.get("callee")
    called = callee.attrs.get("name") if isinstance(callee, Node) and callee.op == "attr" else None
    if name not in ("__call__", called):
        return False
    if name == "__call__" and _is_narrowed(
        elsewhere, facts.graph, node, Definition(found.path, graph.context.class_name)
    ):
        return True
    objects = [c.found for c in facts.callees(node) if c.found is not None]
    return any(elsewhere.method(o, name) == found for o in objects)


def _is_narrowed(elsewhere: Elsewhere, caller: Graph, call: Node, owner: Definition) -> bool:
    """Whether what is called is of a class by the test around it: `if isinstance(block, Norm): x = block(x)`."""
    block = call.stmt.block if call.stmt is not None and not call.frame.depth else None
    while block is not None and block.owner is not None:
        test = caller.values.get(block.owner.cst.test) if isinstance(block.owner.cst, cst.If) else None
        if block.kind == "then" and test is not None and test.attrs.get("target") == "builtins.isinstance":
            value, kind = test.inputs if len(test.inputs) == 2 else (None, None)
            name = None if kind is None else kind.attrs.get("target")
            if value is call.attrs.get("callee") and isinstance(name, str) and elsewhere.resolve(caller, name) == owner:
                return True
        block = block.parent
    return False


def _names_it(elsewhere: Elsewhere, caller: Graph, node: Node, found: Definition) -> bool:
    """Whether a call names a method of its file by the class, as `self.method(x)` is lowered."""
    return node.attrs.get("target") == found.name and elsewhere.path_of(caller) == found.path


def _may_be(elsewhere: Elsewhere, caller: Graph, callee: object, found: Definition) -> bool:
    """Whether `rotate = rotate_pairs if paired else rotate_halves` may be a function."""
    if not isinstance(callee, Node) or callee.op != "phi":
        return False
    for node in callee.inputs:
        name = node.attrs.get("qualname") if node.op == "function" else node.attrs.get("target")
        if node.op == "phi" and node.id < callee.id and _may_be(elsewhere, caller, node, found):
            return True
        if node.op in ("function", "global") and isinstance(name, str) and elsewhere.resolve(caller, name) == found:
            return True
    return False


def _candidates(elsewhere: Elsewhere, found: Definition, graph: Graph) -> Iterator[Graph]:
    """The functions that may call one, by their text: those of its file, and of files that import it or its class."""
    owner = found if graph.context.class_name is None else Definition(found.path, graph.context.class_name)
    name = found.name.rpartition(".")[2]
    for path in [found.path, *elsewhere.modules.users(owner)]:
        if name == "__call__":
            words = [rf"\.{re.escape(w)}\b" for w in sorted(_held(elsewhere, path, owner))]
            named = sorted({owner.name, *elsewhere.modules.renamed(path, owner.name)})
            words += [rf"\bisinstance\([^()]*\b{re.escape(w)}\b" for w in named]
        else:
            names = map(re.escape, sorted({name, *elsewhere.modules.renamed(path, name)}))
            words = [rf"\b{w}(?=\s*\(|\s+if\b)|(?:\belse|=)\s*{w}\b" for w in names]  # also one of two that is called
        for qualname in elsewhere.modules.naming(path, "|".join(words)) if words else ():
            if qualname.startswith(f"{found.name}."):
                continue
            caller = elsewhere.graph(Definition(path, qualname))
            if caller is not None:
                yield caller


def _held(elsewhere: Elsewhere, path: str, owner: Definition) -> set[str]:
    """The attributes of a file's classes that hold an object of a class, or several."""
    summary = elsewhere.modules.summary(path)
    return {
        name
        for c in (summary.classes.values() if summary is not None else ())
        for name, made in c.attributes.items()
        if elsewhere.resolved(path, made.removesuffix("[]")) == owner
    }
