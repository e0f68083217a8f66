"""A value with all that goes into it, across the functions of one file.

`wholes` makes a graph in which chosen values of a function are followed to where they are made: arguments to the calls
that give them, results of calls into the functions that return them, attributes to the methods that store them. There
the canonical form sees in one piece what the code has in several. Where a file offers several (more callers than one,
branches, methods), there is one such graph for each, and what nobody in the file gives stays a name.

These graphs are for reading only: their nodes are copies, and `Whole.original` leads back.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fuselint.graph.flow import arguments, callee, is_none
from fuselint.graph.model import FOREIGN, PROPERTIES, Graph, Node, Slice, region
from fuselint.graph.ops import TABLE

DEEPEST = 8
"""Functions inside one another that are followed."""

DEEPEST_ORIGIN = 60
"""Steps behind one another from a value to where it is made."""

LARGEST = 4_000
"""Nodes of one graph."""

MOST = 12
"""Graphs of one value: beyond it, further callers and branches are not looked at."""

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
}

LEADING = frozenset({"index", "expand_dims"})


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """One way in which a file makes a value.

    original: each node's origin, and the graph that it belongs to. outside: copies of arguments that are followed, but
    that nobody in the file gives. through: the functions that were entered.
    """

    graph: Graph
    root: Node
    original: Mapping[Node, tuple[Graph, Node]]
    outside: frozenset[Node]
    through: tuple[str, ...]


class _Beyond(Exception):
    """Too many nodes, or too many functions inside one another."""


@dataclass(eq=False)
class _Activation:
    """A function that takes part.

    given: its arguments, where each comes from; None: not looked for yet. entered: it was reached from the call that
    gives them, not by looking for one.
    """

    graph: Graph
    depth: int
    given: dict[str, tuple[_Activation, Node]] | None = None
    entered: bool = False
    receiver: tuple[_Activation, Node] | None = None  # the object that is `self`, where known
    copies: dict[Node, Node] = field(default_factory=dict)
    outlines: dict[Node, Node] = field(default_factory=dict)  # of arrays of which only properties are read
    origins: dict[Node, tuple[_Activation, Node]] = field(default_factory=dict)
    results: dict[Node, tuple[_Activation, Node] | None] = field(default_factory=dict)


@dataclass(eq=False)
class _Choices:
    """Which of several possibilities is taken, by what they are possibilities of."""

    taken: list[int]
    counts: list[int] = field(default_factory=list)
    keys: dict[Any, int] = field(default_factory=dict)

    def choose(self, key: Any, count: int) -> int:
        if key not in self.keys:
            at = self.keys[key] = len(self.counts)
            self.counts.append(count)
            if at == len(self.taken):
                self.taken.append(0)
        return self.taken[self.keys[key]]

    def further(self) -> list[int] | None:
        """The next combination."""
        taken = self.taken[: len(self.counts)]
        while taken:
            if taken[-1] + 1 < self.counts[len(taken) - 1]:
                return [*taken[:-1], taken[-1] + 1]
            taken.pop()
        return None


def wholes(graph: Graph, root: Node, followed: frozenset[Node]) -> Iterator[Whole | None]:
    """The ways in which the file makes `root`, where the nodes in `followed` are looked for in other functions too.

    None stands for one that is too large to look at, or for those beyond `MOST`.
    """
    taken: list[int] = []
    for _ in range(MOST):
        choices = _Choices(taken)
        try:
            yield _Splice(graph, root, followed, choices).whole()
        except _Beyond:
            yield None
        further = choices.further()
        if further is None:
            return
        taken = further
    yield None


class _Splice:
    def __init__(self, graph: Graph, root: Node, followed: frozenset[Node], choices: _Choices) -> None:
        self.graph, self.root, self.followed, self.choices = graph, root, followed, choices
        self.main = _Activation(graph, 0)
        self.nodes: list[Node] = []
        self.original: dict[Node, tuple[Graph, Node]] = {}
        self.outside: set[Node] = set()
        self.through: dict[str, None] = {}
        self.nested = 0
        self.attributes: dict[tuple[Any, ...] | None, Node] = {}
        self.methods: dict[Graph, _Activation] = {}  # those that store what is read

    def whole(self) -> Whole:
        for node in region(self.root, ()):
            if node not in self.followed:
                self.copy(self.main, node)
        root = self.copy(self.main, self.root)
        params = {name: self.main.copies[n] for name, n in self.graph.params.items() if n in self.main.copies}
        made = Graph(
            self.graph.module,
            self.graph.source,
            self.graph.context,
            self.nodes,
            params,
            frames=self.graph.frames,
            program=self.graph.program,
        )
        return Whole(made, root, self.original, frozenset(self.outside), tuple(self.through))

    # -- copies ----------------------------------------------------------------------------------------------------

    def copy(self, here: _Activation, node: Node, depth: int = 0) -> Node:
        """The node's copy, with what it is made from."""
        here, node = self.origin(here, node)
        known = here.copies.get(node)
        if known is not None:
            return known
        if depth > 150 or len(self.nodes) > LARGEST:
            raise _Beyond
        if node.op == "loop":  # what it is carried from reads it again
            inputs: tuple[Node, ...] = ()
        elif node.op in PROPERTIES and here is not self.main:  # sizes are names: how the array is made doesn't matter
            inputs = tuple(self.bare(here, n) for n in node.inputs)
        else:
            inputs = tuple(self.copy(here, n, depth + 1) for n in node.inputs)
        attrs = {
            k: v if k in FOREIGN else self.mapped(here, v, depth)
            for k, v in node.attrs.items()
            if k != "version" and (k != "test" or here is self.main)
        }
        op = node.op
        if op == "item" and inputs and _is_array(inputs[0]) and isinstance(attrs.get("index"), (Slice, tuple)):
            index = attrs["index"]
            op, attrs = "index", {"index": index if isinstance(index, tuple) else (index,)}
        if op == "param" and here is not self.main:
            attrs["of"] = here.graph.context.class_name or here.graph.context.qualname
        key = (*inputs, attrs["name"]) if op == "attr" else None
        if key in self.attributes:  # reads of one attribute are one value: what the use of each says holds for all
            here.copies[node] = self.attributes[key]
            return here.copies[node]
        copy = here.copies[node] = self.made(here, node, op, inputs, attrs)
        if key is not None:
            self.attributes[key] = copy
        if op == "param" and (here is not self.main or node in self.followed) and attrs["name"] != "self":
            self.outside.add(copy)
        return copy

    def made(self, here: _Activation, node: Node, op: str, inputs: tuple[Node, ...], attrs: dict[str, Any]) -> Node:
        copy = Node(len(self.nodes), op, inputs, attrs, node.cst, node.stmt, node.frame)
        self.nodes.append(copy)
        self.original[copy] = here.graph, node
        return copy

    def bare(self, here: _Activation, node: Node) -> Node:
        """An array of which only a property is read."""
        while node.op == "param" and here.entered and here.given and node.attrs["name"] in here.given:
            here, node = here.given[node.attrs["name"]]
        if node in here.copies or node in here.outlines:
            return here.copies.get(node) or here.outlines[node]
        if node.op == "param":
            attrs = {**node.attrs, "of": here.graph.context.qualname}
        else:
            attrs = {"reason": "only its properties are read"}
        here.outlines[node] = self.made(here, node, "param" if node.op == "param" else "opaque", (), attrs)
        return here.outlines[node]

    def mapped(self, here: _Activation, value: Any, depth: int) -> Any:
        """An attribute with copies of the nodes in it."""
        if isinstance(value, Node):
            known = self.origin(here, value)[1]
            if known is not value and known.op == "const" and "kind" not in known.attrs:
                return known.attrs["value"]
            return self.copy(here, value, depth + 1)
        if isinstance(value, Slice):
            return Slice(*(self.mapped(here, p, depth) for p in (value.start, value.stop, value.step)))
        if isinstance(value, tuple):
            return tuple(self.mapped(here, v, depth) for v in value)
        return [self.mapped(here, v, depth) for v in value] if isinstance(value, list) else value

    # -- origins ---------------------------------------------------------------------------------------------------

    def origin(self, here: _Activation, node: Node) -> tuple[_Activation, Node]:
        """Where a value is made: behind arguments, results, attributes and branches."""
        if here is self.main and node not in self.followed:
            return here, node
        found = here.origins.get(node)
        if found is None:
            if self.nested > DEEPEST_ORIGIN:
                raise _Beyond
            self.nested += 1
            step = self.step(here, node)
            found = here.origins[node] = (here, node) if step is None else self.origin(*step)
            self.nested -= 1
        return found

    def step(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        if node.op == "param":
            return self.argument(here, node)
        if node.op in ("item", "index"):
            return self.element(here, node)
        if node.op == "call":
            return self.result(here, node)
        if node.op == "attr":
            return self.stored(here, node)
        if node.op == "phi":
            return self.branch(here, node)
        if node.op == "opaque" and node.attrs.get("join") and node.inputs:  # it may have changed: as it was before
            return here, node.inputs[0]
        if node.op == "loop" and len(node.inputs) == 2 and _adds_axes(node.inputs[1], node):
            return here, node.inputs[0]
        return None

    def argument(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        name = node.attrs["name"]
        if name in ("self", "cls") or node.attrs.get("star"):
            return here.receiver if name == "self" else None
        default = node.attrs.get("default")
        if not here.entered and here.graph.facts.kind(node) == "scalar":  # its name says more than what a caller puts
            unused = isinstance(default, Node) and default.op == "const" and _never_given(here.graph, name)
            return (here, default) if unused and isinstance(default, Node) else None
        if here.given is None:
            here.given = self.caller(here)
        given = here.given.get(name)
        return given or ((here, default) if here.given and isinstance(default, Node) else None)

    def caller(self, here: _Activation) -> dict[str, tuple[_Activation, Node]]:
        """The arguments of one of the calls in the file."""
        found = list(calls(here.graph))[:MOST]
        if not found:
            return {}
        other, given = found[self.choices.choose((here.graph, "caller"), len(found))]
        there = self.enter(other, here)
        return {name: (there, value) for name, value in given.items()}

    def enter(self, graph: Graph, here: _Activation) -> _Activation:
        if here.depth >= DEEPEST:
            raise _Beyond
        self.through[graph.context.qualname] = None
        return _Activation(graph, here.depth + 1)

    def element(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        index = node.attrs.get("index")
        if isinstance(index, tuple) and len(index) == 1:
            index = index[0]
        if not isinstance(index, int) or isinstance(index, bool):
            return None
        there, base = self.origin(here, node.inputs[0])
        if base.op not in ("tuple", "list") or any(n.op == "star" for n in base.inputs):
            return None
        return (there, base.inputs[index]) if -len(base.inputs) <= index < len(base.inputs) else None

    def result(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        if node not in here.results:
            here.results[node] = self.returned(here, node)
        return here.results[node]

    def returned(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        inner, given = callee(here.graph, node), arguments(here.graph, node)
        if inner is None or given is None or inner.not_understood or inner.falls_off or not inner.returns:
            return None
        summary = here.graph.module.functions[inner.context.qualname]
        if summary.is_async or summary.is_generator or summary.redefined:
            return None
        there = self.enter(inner, here)
        there.given, there.entered = {name: (here, value) for name, value in given.items()}, True
        chosen = self.choices.choose((inner, "return"), len(inner.returns))
        return there, inner.returns[chosen][1]

    def stored(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        """The value of an attribute that is an array of several axes; frequencies and numbers keep their name."""
        if node not in here.results:
            found = self.stores(here, node)
            here.results[node] = None
            if found:
                graph, value = found[self.choices.choose(tuple(g for g, _ in found), len(found))]
                if graph not in self.methods:
                    there = self.methods[graph] = self.enter(graph, here)
                    there.given, there.receiver = {}, (here, node.inputs[0])
                here.results[node] = self.methods[graph], value
        return here.results[node]

    def stores(self, here: _Activation, node: Node) -> list[tuple[Graph, Node]]:
        """What methods store in the attribute, each expression once."""
        base, name = node.inputs[0] if node.inputs else None, node.attrs["name"]
        module, program = here.graph.module, here.graph.program
        owner = here.graph.context.class_name
        if base is None or program is None:
            return []
        if base.op == "attr":
            init = base.attrs.get("init")
            owner = init.attrs["target"] if isinstance(init, Node) and init.op == "new" else None
        elif base.op != "param" or base.attrs["name"] != "self":
            return []
        found: dict[cst.CSTNode | None, tuple[Graph, Node]] = {}
        lineage = [name for name in module.lineage(owner or "") if name in module.classes]
        for class_name in lineage:
            for qualname in module.classes[class_name].methods.values():
                graph = program.graph(qualname)
                value = None if graph is None else graph.stored.get(name)
                if graph is None or value is None or not _turns(graph, value, name):
                    continue
                if value.cst not in found or value.frame.depth == 0:  # not what `__init__` lowered in place
                    found[value.cst] = graph, value
        return list(found.values())

    def branch(self, here: _Activation, node: Node) -> tuple[_Activation, Node] | None:
        """One side of a join. What is a vector or a number on both sides stays joined."""
        facts = here.graph.facts
        if all(facts.kind(n) == "scalar" or facts.rank(n) == 1 for n in node.inputs):
            return None
        known = self.decided(here, node.attrs.get("test"))
        inputs = node.inputs if known is None else node.inputs[:1] if known else node.inputs[1:]
        sides = list(dict.fromkeys(self.origin(here, n) for n in inputs if not is_none(n)))
        if not sides:
            return None
        return sides[self.choices.choose((here.graph, node.attrs.get("test")), len(sides)) if len(sides) > 1 else 0]

    def decided(self, here: _Activation, test: Any) -> bool | None:
        """What a test of a rank, or for None, gives, where the argument is known."""
        if not isinstance(test, Node) or len(test.inputs) != 2:
            return None
        left, right = test.inputs
        if test.op == "compare":
            there, value = self.origin(here, left)
            if not is_none(right) or (value.op == "param" and not is_none(value)):
                return None
            if is_none(value) or there.graph.facts.kind(value) in ("array", "scalar"):
                return bool(is_none(value) == (test.attrs["op"] == "is"))
            return None
        compare = COMPARISONS.get(test.op)
        if compare is None or left.op != "ndim" or right.op != "const":
            return None
        there, value = self.origin(here, left.inputs[0])
        rank = there.graph.facts.rank(value)
        return None if rank is None else bool(compare(rank, right.attrs["value"]))


def calls(graph: Graph) -> Iterator[tuple[Graph, dict[str, Node]]]:
    """The calls in the file that enter the graph's function: where they stand, and their arguments by parameter."""
    program, mine = graph.program, graph.context.qualname
    if program is None:
        return
    for qualname in graph.module.functions:
        other = program.graph(qualname)
        if other is None or other is graph or other.not_understood:
            continue
        for frame in other.frames:  # calls that are lowered in place
            if frame.depth == 1 and frame.qualname == mine and isinstance(frame.site, cst.Call):
                given = _written(other, graph, frame.site)
                if given is not None:
                    yield other, given
        for node in other.nodes:
            if node.op == "call" and node.attrs.get("target") == mine and node.frame.depth == 0:
                given = arguments(other, node)
                if given is not None:
                    yield other, given


def _written(other: Graph, graph: Graph, site: cst.Call) -> dict[str, Node] | None:
    """The arguments of a call as it is written."""
    summary = graph.module.functions[graph.context.qualname]
    names = [p.name for p in summary.parameters if p.kind == "plain"]
    if summary.kind == "method":
        names = names[1:]
    given: dict[str, Node] = {}
    for arg in site.args:
        value = other.values.get(arg.value)
        if arg.star or (arg.keyword is None and not names):
            return None
        name = names.pop(0) if arg.keyword is None else arg.keyword.value
        if value is not None:
            given[name] = value
    return given


def _never_given(graph: Graph, name: str) -> bool:
    """Whether calls of the file enter the function, and none says what the parameter is."""
    found = list(calls(graph))
    return bool(found) and all(name not in given for _, given in found)


def _is_array(node: Node) -> bool:
    op = TABLE.get(node.op)
    return node.op == "index" or (op is not None and op.result == "array")


def _adds_axes(step: Node, loop: Node) -> bool:
    """Whether a loop does nothing to a value but to put new axes before it."""
    while step is not loop:
        if step.op not in LEADING or not step.inputs:
            return False
        index = step.attrs.get("index")
        if step.op == "index" and not (isinstance(index, tuple) and all(i is None for i in index)):
            return False
        if step.op == "expand_dims" and step.attrs.get("axis") != 0:
            return False
        step = step.inputs[0]
    return True


def _turns(graph: Graph, value: Node, name: str) -> bool:
    """Whether a stored value is made of cosines or sines, or by a function of the file; not of itself, recast."""
    nodes = region(value, ())
    if any(n.op == "attr" and n.attrs["name"] == name for n in nodes):
        return False
    return any(n.op in ("cos", "sin") or (n.op == "call" and callee(graph, n) is not None) for n in nodes)
