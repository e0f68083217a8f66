"""The canonical form of a graph: a side table from nodes to values in normal form.

Total and terminating: each node is visited once, in evaluation order, and its value is made from the values of its
inputs by the identities of `identities.TABLE` and the algebra of `values.Algebra`. There is no search. What has no
identity is an atom of its operation, and what isn't understood is an atom of its own.

Casts between floating dtypes are transparent: the value of `u.astype(mx.float32)` is the value of `u`. The graph keeps
the cast nodes, so that a rule can say which cast policy was written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from fractions import Fraction
from functools import cached_property
from typing import Any

from fuselint.graph import identities
from fuselint.graph.leftovers import forget, leave
from fuselint.graph.model import FOREIGN, Graph, Node, Slice, operands, region
from fuselint.graph.ops import TABLE
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Apply, Expr
from fuselint.graph.values import Algebra, Value, text
from fuselint.rulebook import Hole, Synthesised

STRUCTURAL = frozenset("param attr global shape dtype ndim size tuple list dict item compare not and or".split())
"""Operations beside those of the table that give the same value for the same operands."""

NAMES = {"param": "name", "attr": "path", "global": "name"}


class Canonical:
    """The values of one graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.facts = graph.facts
        self.algebra = Algebra(self._note)
        self._values: dict[Node, Value] = {}
        self._nodes: dict[Value, list[Node]] = {}
        self._notes: dict[Node, tuple[str, ...]] = {}
        self._current: dict[str, None] = {}
        self._changing = self._changing_attributes()
        self.algebra.known_size = self._known_size
        leave(self)
        for node in graph.nodes:
            self._place(node)

    def take_apart(self) -> None:
        """Nobody asks any more."""
        forget(self.graph, self)
        self.algebra.take_apart()
        self.__dict__.clear()

    def _note(self, identity: str) -> None:
        self._current[identity] = None

    def _place(self, node: Node) -> Value:
        self._current = {}
        try:
            value = self._make(node)
        except (ArithmeticError, ValueError):  # constants beyond the range of numbers: a value of its own
            value = self.own(node)
        self._values[node] = value
        self._nodes.setdefault(value, []).append(node)
        if self._current:
            self._notes[node] = tuple(self._current)
        return value

    # -- reading ---------------------------------------------------------------------------------------------------

    def of(self, node: Node) -> Value:
        """The value of a node."""
        value = self._values.get(node)
        return self._place(node) if value is None else value

    def nodes(self, value: Value) -> list[Node]:
        """The nodes that have this value, in evaluation order. Casts of it are among them."""
        return list(self._nodes.get(value, ()))

    def last_in(self, root: Node, value: Value) -> Node | None:
        """The last node with this value that `root` is computed from."""
        known = set(region(root, ()))
        return next((n for n in reversed(self.nodes(value)) if n in known and n is not root), None)

    def explain(self, node: Node) -> list[str]:
        """The identities that led to the node's value, its operands' first, each once."""
        found: dict[str, None] = {}
        seen: set[Node] = set()
        stack = [node]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend(operands(n))
        for n in sorted(seen, key=lambda n: n.id):
            found.update(dict.fromkeys(self._notes.get(n, ())))
        return list(found)

    def text(self, node: Node) -> str:
        """The node's value, for people."""
        return text(self.of(node))

    def as_hole(self, value: Value) -> Hole | None:
        """A value back as source: the node that was written, or for a scalar the text of an equal expression.

        Arrays are given back only where one node has the value: casts would make several, of different dtypes.
        """
        nodes = self.nodes(value)
        if nodes and (value.scalar or len(nodes) == 1):
            return min(
                nodes, key=lambda n: (n.frame.depth, n.op not in ("param", "attr", "const", "dim", "global"), n.id)
            )
        if not value.scalar and value.number is None:
            return None
        names: dict[str, Node] = {}
        template = _Writer(self, names).write(value, 0)
        return None if template is None else Synthesised(template, names)

    # -- making ----------------------------------------------------------------------------------------------------

    def own(self, node: Node) -> Value:
        """A value that only this node has."""
        kind = self.facts.kind(node)
        return self.algebra.atom(node.op, params=(("node", node.id),), name=f"%{node.id}", scalar=kind == "scalar")

    def _make(self, node: Node) -> Value:
        rule = identities.TABLE.get(node.op)
        if rule is not None:
            value = rule(self, node)
            if value is not None:
                return value
        op = TABLE.get(node.op)
        pure = node.op in STRUCTURAL if op is None else op.kind != "random" and node.op != "nn.Dropout"
        return self.generic(node) if pure and not self._is_changing(node) else self.own(node)

    def generic(self, node: Node) -> Value:
        """The node's operation as an atom on its operands' values."""
        kind = self.facts.kind(node)
        args = [self.of(n) for n in node.inputs]
        if node.op in identities.COMMUTATIVE:
            args.sort(key=lambda v: (*v.order, v.id))
        name = str(node.attrs.get(NAMES[node.op]) or node.attrs.get("name")) if node.op in NAMES else ""
        skip = {"name", "path"} if name else set()
        params = [(k, self.frozen(v)) for k, v in sorted(node.attrs.items()) if k not in FOREIGN and k not in skip]
        return self.algebra.atom(
            node.op, args, params, name=name, scalar=kind == "scalar", nonnegative=node.op in identities.NONNEGATIVE
        )

    def frozen(self, value: Any) -> Any:
        """An attribute as a hashable: Nodes become values."""
        if isinstance(value, Node):
            return self.of(value)
        if isinstance(value, Slice):
            return ("slice", *(self.frozen(p) for p in (value.start, value.stop, value.step)))
        if isinstance(value, (tuple, list)):
            return tuple(self.frozen(p) for p in value)
        if isinstance(value, dict):
            return tuple((k, self.frozen(v)) for k, v in value.items())
        if isinstance(value, float) and math.isnan(value):
            return "nan"
        return value if isinstance(value, (int, float, str, bool, type(None))) else repr(value)

    def _changing_attributes(self) -> set[str] | None:
        """Names of attributes that are assigned in this function: two reads may differ. None: any may."""
        names: set[str] = set()
        for e in self.graph.effects:
            if e.kind == "unknown":
                return None
            if e.kind == "store":
                names.add(e.path.split("[")[0].rsplit(".", 1)[-1])
        return names

    def _is_changing(self, node: Node) -> bool:
        return node.op == "attr" and (self._changing is None or node.attrs.get("name") in self._changing)

    def _known_size(self, value: Value, axis: int) -> Value | None:
        """The length of an axis of a value that nodes have, as facts know it."""
        for node in self._nodes.get(value, ())[:1]:
            return self.size(node, axis)
        return None

    def size(self, node: Node, axis: int) -> Value | None:
        """The length of an axis of a node, as facts know it."""
        shape = self.facts.shape(node)
        length = None if shape is None else shape.axis(axis)
        return None if length is None else self.size_value(length)

    def length(self, node: Node) -> Value | None:
        """A scalar that is the length of an axis of some array of this function, as that size."""
        size = self.facts.size(node) if self.facts.kind(node) == "scalar" else None
        return self.size_value(size) if size is not None and size.names and self._are_lengths(size.names) else None

    def _are_lengths(self, names: AbstractSet[str]) -> bool:
        """Whether some axes have sizes of these names. Arrays are looked at one by one, until they do."""
        while not names <= self._lengths:
            shape = next(self._shapes, None)
            if shape is None:
                return False
            self._lengths.update(name for d in shape.dims for name in d.names)
        return True

    @cached_property
    def _lengths(self) -> set[str]:
        """The names of the sizes of axes that were looked at."""
        return set()

    @cached_property
    def _shapes(self) -> Iterator[Shape]:
        """The known shapes that were not looked at."""
        return (shape for n in self.graph.nodes if (shape := self.facts.shape(n)) is not None)

    def size_value(self, size: Expr) -> Value:
        """A size of the facts as a value: sizes are made of named sizes, which are equal where their names are."""
        constant, terms = 0.0, []
        for monomial, c in size.terms:
            if not monomial:
                constant = float(c)
                continue
            factors = [(self._named(atom), Fraction(e)) for atom, e in monomial]
            terms.append((self.algebra.product(1.0, factors), float(c)))
        return self.algebra.sum(constant, terms)

    def _named(self, atom: str | Apply) -> Value:
        return self.algebra.atom("size", name=str(atom), scalar=True, nonnegative=True)

    # -- what identities ask ---------------------------------------------------------------------------------------

    def operand(self, value: Any) -> Value | None:
        """An attribute that may be a number or a Node, as a value."""
        if isinstance(value, Node):
            return self.of(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self.algebra.number(float(value))
        return None

    def rank(self, node: Node) -> int | None:
        return self.facts.rank(node)

    def size_of(self, node: Node, axis: int) -> Value:
        """The length of an axis of a node, from facts or else from what its value is made of."""
        known = self.size(node, axis)
        return self.algebra.size(self.of(node), axis) if known is None else known

    def axis(self, node: Node, axis: int) -> int:
        """An axis of node counted from the end, where the rank is known or it was written so."""
        shape = self.facts.shape(node)
        end = None if shape is None else shape.from_end(axis)
        return axis if end is None else end

    def axes(self, node: Node, axis: Any) -> tuple[int, ...] | str | None:
        """The axes of an attribute, from the end and in order; None stands for all, "?" for what isn't an int."""
        if axis is None:
            rank = self.rank(node)
            return tuple(range(-rank, 0)) if rank else None
        listed = axis if isinstance(axis, (tuple, list)) else (axis,)
        ints: list[int] = []
        for a in listed:
            n = self.facts.const(a) if isinstance(a, Node) else a
            if not isinstance(n, int) or isinstance(n, bool):
                return "?"
            ints.append(self.axis(node, n))
        return tuple(sorted(ints))


class _Writer:
    """A scalar value as Python text. `names` collects the nodes that `{a}`, `{b}`... stand for."""

    def __init__(self, canonical: Canonical, names: dict[str, Node]) -> None:
        self.canonical, self.names = canonical, names

    def write(self, value: Value, precedence: int) -> str | None:
        """precedence of the place: 0 any, 1 operand of +, 2 operand of *, 3 operand of **."""
        if value.number is not None:
            return number_text(value.number)
        if value.op in ("product", "sum"):
            out = self._product(value) if value.op == "product" else self._sum(value)
            if out is None:
                return None
            written, own = out
            return f"({written})" if own < precedence else written
        return self._atom(value)

    def _atom(self, value: Value) -> str | None:
        nodes = self.canonical.nodes(value)
        if nodes:
            return self._name(min(nodes, key=lambda n: (n.frame.depth, n.id)))
        if value.op == "size":
            axis = value.param("axis")
            held = self.canonical.nodes(value.args[0]) if value.args else []
            for node in sorted(held or self.canonical.graph.nodes, key=lambda n: (n.frame.depth, n.id)):
                for a in (-1, -2, -3, -4) if axis is None else (axis,):
                    if self.canonical.facts.kind(node) == "array" and self.canonical.size_of(node, a) is value:
                        return f"{self._name(node)}.shape[{a}]"
        return None

    def _name(self, node: Node) -> str:
        for name, held in self.names.items():
            if held is node:
                return f"{{{name}}}"
        name = f"v{len(self.names)}"
        self.names[name] = node
        return f"{{{name}}}"

    def _product(self, value: Value) -> tuple[str, int] | None:
        parts: list[str] = []
        below: list[str] = []
        for base, e in value.factors:
            inner = self.write(base, 2 if abs(e) == 1 else 3)
            if inner is None:
                return None
            if e == -1:
                below.append(inner)
            else:
                parts.append(inner if e == 1 else f"{inner} ** {_exponent(e)}")
        if value.coefficient != 1.0 or not parts:
            parts.insert(0, number_text(value.coefficient))
        if len(parts) == 1 and not below:
            return parts[0], 2
        return " / ".join([" * ".join(parts), *below]), 2

    def _sum(self, value: Value) -> tuple[str, int] | None:
        out = ""
        for m, c in value.terms:
            inner = self.write(self.canonical.algebra.scale(m, abs(c)), 2)
            if inner is None:
                return None
            out += ((" - " if c < 0 else " + ") if out else "-" if c < 0 else "") + inner
        if value.constant:
            out += f"{' - ' if value.constant < 0 else ' + '}{number_text(abs(value.constant))}"
        return out, 1


def number_text(c: float) -> str:
    """A constant as people write it: `1e-6`, `4096`, `0.125`."""
    return str(int(c)) if c == int(c) and abs(c) < 1e6 else repr(c).replace("e-0", "e-")


def _exponent(e: Fraction) -> str:
    return str(e.numerator) if e.denominator == 1 else repr(float(e))


def walk(value: Value) -> Iterator[Value]:
    """The value and all values it is made of, each once."""
    seen: set[Value] = set()
    stack = [value]
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        yield v
        stack.extend(parts(v))


def parts(value: Value) -> Iterable[Value]:
    """What a value is made of."""
    if value.op == "product":
        return [b for b, _ in value.factors]
    if value.op == "sum":
        return [m for m, _ in value.terms]
    found = list(value.args)
    pending = [p for _, p in value.params]
    while pending:
        p = pending.pop()
        if isinstance(p, Value):
            found.append(p)
        elif isinstance(p, tuple):
            pending.extend(p)
    return found
