"""How facts are asked for and worked out: in order of need, once, with names for what the code doesn't name.

`across` follows calls; a followed function has facts of its own, whose names are marked until they come home.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, reduce
from typing import Any

from fuselint.graph import dtypes
from fuselint.graph.across import MARK, Across, Inside, Instance, Reach
from fuselint.graph.dtypes import DType
from fuselint.graph.fact import FLOATING, MISSING, Default, Fact, Kind, constant_fact, scalar_fact
from fuselint.graph.leftovers import forget, leave
from fuselint.graph.model import FOREIGN, Graph, Node, operands
from fuselint.graph.op import Call, Op
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.unstated import unstated
from fuselint.graph.usage import Usage
from fuselint.records import replace
from fuselint.source.modules import Definition

_MARKED = re.compile(f"{MARK}\\d+{MARK}")


def unmarked(name: str) -> str:
    """A name of a function that is followed, as the function itself has it."""
    return _MARKED.sub("", name)


class KnownFacts:
    """The facts of a graph's values, each worked out when first asked for. How, the rules of `Facts` say.

    reach: what is shared with the functions that these facts follow a call into; for such a function, `chain` says
    which calls led to it, `mark` sets its names apart, and `init` knows the constructor of its object.
    """

    def __init__(
        self, graph: Graph, reach: Reach | None = None, chain: tuple[Definition, ...] = (), mark: str = ""
    ) -> None:
        self.graph = graph
        self.reach = reach or Reach()
        self.chain, self.mark = chain, mark
        self.init: KnownFacts | None = None
        self._given: dict[Node, Fact] = {}
        self.arguments: dict[Node, tuple[KnownFacts, Node]] = {}  # by parameter, of a function that is followed
        self._open: set[Node] = set()
        self._facts: dict[Node, Fact] = {}
        self._unsteady: set[tuple[Node, Fact]] = set()  # what values of loops turned out not to stay
        self._names: dict[Any, str] = {}
        self._taken: dict[str, int] = {}
        self._weight_sizes: set[Expr] = set()
        self.likely_shapes: dict[Node, Shape | None] = {}  # see likely.py
        self.likely_ranks: dict[Node, int] = {}  # of parameters, likewise
        self.input_axes: dict[str, Expr] = {}  # last axes of what layers are given, and what these are made for
        self.counted: dict[Any, tuple[Mapping[str, str], AbstractSet[str]]] = {}  # see unstated.py
        self.merged: frozenset[str] | None = None  # likewise, once it is asked for
        self.wide_weights: Mapping[str, str] | None = None  # likewise
        self.from_numpy: dict[Node, bool] = {}  # see trace.py
        self.written: Any = None  # see promotion.py
        leave(self)

    def take_apart(self) -> None:
        """Nobody asks any more."""
        forget(self.graph, self)
        self.__dict__.clear()

    # -- what others ask ----------------------------------------------------------------------------------------------

    def kind(self, node: Node) -> Kind:
        return self.of(node).kind

    def shape(self, node: Node) -> Shape | None:
        return self.of(node).shape

    def rank(self, node: Node) -> int | None:
        shape = self.of(node).shape
        return None if shape is None else shape.rank

    def dtype(self, node: Node) -> DType:
        """The dtype, a set of names and symbols whose promotion it is; of a `dtype` value, the dtype that it names."""
        return self.of(node).dtype

    def const(self, node: Node) -> Any:
        """The Python value, or MISSING."""
        return self.of(node).const

    def size(self, value: Any) -> Expr | None:
        """A number as a size: an int, or the Node of a scalar. What a division gives is
        none, but for a half, which is whole where something is split in two: `arange` rounds it up."""
        if isinstance(value, Node):
            fact = self.of(value)
            if "weak float" in fact.dtype and not self._is_half(value, fact.size):
                return None
            if fact.size is None and fact.kind in ("unknown", "scalar") and fact.const is MISSING:
                return Expr.name(self._name(value))
            return fact.size
        return Expr.of(value) if isinstance(value, int) and not isinstance(value, bool) else None

    def _is_half(self, node: Node, size: Expr | None) -> bool:
        if size is not None:
            return all(c.denominator <= 2 for _, c in size.terms)
        return node.op == "divide" and self.const(node.inputs[1]) == 2

    def sizes(self, value: Any) -> Shape | None:
        """A tuple of sizes, such as the argument of reshape, as a Shape: `(*x.shape[:-1], n)` has leading axes."""
        if isinstance(value, Node):
            return self.of(value).extent
        return self._extent(value) if isinstance(value, tuple) else None

    def usual(self, size: Expr | None) -> tuple[int | None, frozenset[Default]]:
        """A size as a number, by the defaults of configurations where these facts count them; and by which ones."""
        if size is None:
            return None, frozenset()
        known = {n: self.reach.numbers[n] for n in size.names if n in self.reach.numbers}
        value = size.substitute({n: number for n, (number, _) in known.items()}).met().value()
        return value, frozenset().union(*(rests for _, rests in known.values()))

    def truth(self, node: Node) -> bool | None:
        """What a condition is, where that is known."""
        fact = self.of(node)
        return False if fact.kind == "none" else None if fact.const is MISSING else bool(fact.const)

    def into(self, node: Node) -> tuple[Inside, ...]:
        """The functions that a `call` may run, with their facts for its arguments; none where they aren't known."""
        return () if self._across is None else self._across.into(node)

    def callees(self, node: Node) -> tuple[Instance, ...]:
        """The objects that a `call` may be of, or whose method it calls, where they are known."""
        return () if self._across is None else self._across.callees(node)

    @cached_property
    def unstated(self) -> frozenset[str]:
        """The symbols of dtypes that nothing says anything of."""
        return unstated(self.graph, self)

    def usual_dtype(self, node: Node) -> str:
        """The dtype that a `global` is, `Config.precision`, where a class of the package says so; "" of any other."""
        return "" if self._across is None else self._across.usual_dtype(node.attrs.get("target"))

    def state(self, node: Node, shape: Shape, dtype: DType, why: str) -> None:
        """Makes a fact of an array known from elsewhere, such as a recorded run. Before anything is asked."""
        self._facts[node] = Fact("array", shape, dtype, why=why)

    def why(self, node: Node) -> str:
        """Where what is known of the value comes from, with the house assumptions that it rests on."""
        fact = self.of(node)
        text = fact.why or "nothing is known of it"
        if fact.kind in ("array", "unknown"):
            text += f"; shape {fact.shape or 'unknown'}, dtype {fact.dtype}"
        text += f" ({', '.join(sorted(map(str, fact.places)))})" if fact.places else ""
        return text + "".join(f" (assumed: {a})" for a in sorted(fact.assumed))

    # -- calls --------------------------------------------------------------------------------------------------------

    @cached_property
    def _across(self) -> Across | None:
        program = self.graph.program
        elsewhere = self.reach.elsewhere or (None if program is None else program.elsewhere)
        self.reach.elsewhere = elsewhere
        return None if elsewhere is None else Across(self, elsewhere)

    def constructed(self, instance: Instance) -> Inside | None:
        """The constructor of an object, with the facts of its arguments."""
        return None if self._across is None else self._across.constructed(instance)

    def inner(self, graph: Graph, found: Definition) -> KnownFacts:
        """The facts of a function that is followed."""
        return type(self)(graph, self.reach, (*self.chain, found), self.reach.mark())

    def give(self, parameter: Node, fact: Fact) -> None:
        """States what a parameter is, before anything is asked."""
        self._given[parameter] = fact

    def pass_on(self, parameter: Node, maker: KnownFacts, argument: Node) -> None:
        """States what a parameter is by its argument, a value that the caller's facts know and have a name for."""
        self.give(parameter, maker.of(argument))
        self.arguments[parameter] = (maker, argument)
        self._names[parameter] = maker.name_of(argument)

    def where(self, given: Mapping[Node, Fact]) -> KnownFacts:
        """The facts of the same function where some values are known besides; none that were worked out are kept."""
        reach = replace(self.reach, numbers=dict(self.reach.numbers), made=dict(self.reach.made))
        out = type(self)(self.graph, reach, self.chain, self.mark)
        out.init, out.arguments = self.init, dict(self.arguments)
        out._given = {**self._given, **given}
        out._names, out._taken = dict(self._names), dict(self._taken)
        out.likely_shapes, out.likely_ranks = dict(self.likely_shapes), dict(self.likely_ranks)
        return out

    def hangs_off_self(self, node: Node) -> bool:
        """Whether an attribute is one of the object whose method this is."""
        base = node
        while base.op == "attr" and base.inputs:
            base = base.inputs[0]
        return base.op == "param" and base.attrs.get("name") == "self"

    def name_of(self, node: Node) -> str:
        """The name of a value in shapes and dtypes."""
        return self._name(node)

    def path(self, node: Node) -> str:
        """The path of an attribute, as the code that is analysed would write it."""
        path = node.attrs.get("path") or ""
        if not self.mark or not path:
            return path
        head, _, rest = path.partition(".")
        held = self._given.get(self.graph.params.get(head, node))
        if held is not None and len(held.instances) == 1 and held.instances[0].path:
            return f"{held.instances[0].path}.{rest}"
        return f"{self.mark}{path}"

    def joined(self, facts: Sequence[Fact], key: Any) -> Fact:
        """What is known of a value that is one of several."""
        first, rest = facts[0], facts[1:]
        kind = first.kind if all(f.kind == first.kind for f in rest) else "unknown"
        shape = reduce(lambda a, b: self._join(key, a, b), (f.shape for f in facts)) if kind == "array" else None
        dtype = first.dtype if all(f.dtype == first.dtype for f in rest) else dtypes.UNKNOWN
        const = first.const if all(_same(f.const, first.const) for f in rest) else MISSING
        size = first.size if all(f.size == first.size for f in rest) else None
        if kind == "scalar":
            shape, dtype = SCALAR, dtype or reduce(lambda a, b: a | b, (f.dtype for f in facts))
        extent = first.extent if all(f.extent == first.extent for f in rest) else None
        same = kind == "tuple" and len({len(f.parts) if f.parts is not None else -1 for f in facts}) == 1
        parts = None
        if same and first.parts is not None:
            parts = tuple(
                self.joined([f.parts[i] for f in facts if f.parts is not None], (key, i))
                for i in range(len(first.parts))
            )
        known = all(f.instances for f in facts)
        return Fact(
            kind, shape, dtype, const, size, extent, parts,
            why=first.why if not rest else "one of several values",
            assumed=frozenset().union(*(f.assumed for f in facts)),
            present=all(f.present for f in facts),
            options=tuple(o for f in facts for o in (f.options or (f,))) if kind == "unknown" else (),
            instances=tuple(dict.fromkeys(i for f in facts for i in f.instances)) if known else (),
            places=frozenset().union(*(f.places for f in facts)),
            rests=frozenset().union(*(f.rests for f in facts)) if const is not MISSING else frozenset(),
        )  # fmt: skip

    def _join(self, key: Any, a: Shape | None, b: Shape | None) -> Shape | None:
        """A shape that is either of two: the axes that differ get names of their own."""
        if a is None or b is None or a == b:
            return a if a == b else None
        known = min(len(a.dims), len(b.dims))
        name = self._name(key) if isinstance(key, Node) else self._unique(key, "result")
        pairs = zip(a.dims[len(a.dims) - known :], b.dims[len(b.dims) - known :], strict=True)
        whole = a.lead == b.lead and len(a.dims) == len(b.dims)
        spelt = range(known) if whole and a.lead is None else range(-known, 0)
        dims = tuple(
            x if x == y else Expr.name(self._unique(("fresh", key, i), f"{name}.shape[{i}]"))
            for (x, y), i in zip(pairs, spelt, strict=True)
        )
        return Shape(a.lead if whole else f"{name}[:-{known}]" if known else name, dims)

    def _unmarked(self, fact: Fact, name: str) -> Fact:
        """A fact that a followed function gives of the value called `name`, in names of this function."""
        if self.mark:
            return fact
        parts = fact.parts and tuple(self._unmarked(p, f"{name}[{i}]") for i, p in enumerate(fact.parts))
        return replace(
            fact,
            shape=self._unmarked_shape(fact.shape, name),
            extent=self._unmarked_shape(fact.extent, name),
            size=None if fact.size is None else self._unmarked_size(fact.size),
            dtype=DType(f"{name}.dtype" if MARK in n else n for n in fact.dtype),
            parts=parts,
            options=tuple(self._unmarked(o, name) for o in fact.options),
        )

    def _unmarked_shape(self, shape: Shape | None, name: str) -> Shape | None:
        if shape is None:
            return None
        dims = tuple(map(self._unmarked_size, shape.dims))
        marked = shape.lead is not None and MARK in shape.lead
        return Shape((f"{name}[:-{len(dims)}]" if dims else name) if marked else shape.lead, dims)

    def _unmarked_size(self, size: Expr) -> Expr:
        marked = [n for n in size.names if MARK in n]
        new = {n: self._unique(("followed", n), unmarked(n)) for n in sorted(marked)}
        for old, name in new.items():
            if old in self.reach.numbers:
                self.reach.numbers[name] = self.reach.numbers[old]
        return size.substitute({old: Expr.name(name) for old, name in new.items()})

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def of(self, node: Node) -> Fact:
        """The fact of a value of this graph, or of the `__init__` graph that its attributes come from."""
        facts = self._facts
        known = facts.get(node)
        if known is not None:
            return known
        stack = [node]
        while stack:
            top = stack[-1]
            if top in facts:
                stack.pop()
                continue
            if top.op == "const":  # nothing else says anything of it
                facts[top] = constant_fact(top.attrs.get("value"), top.attrs.get("kind"))
                continue
            if top in self._open:  # a call that is followed needs the very value that it is worked out for
                why = "a value that is made of itself"
                facts[top] = Fact("unknown", size=Expr.name(self._name(top)), why=why)
                continue
            if self.init is not None and not self._owns(top):
                facts[top] = self.init.of(top)
                continue
            waiting = [n for n in self._needs(top) if n not in facts]
            if waiting:
                stack.extend(waiting)
                continue
            self._open.add(top)
            fact = self._refine(top, self._evaluate(top))
            self._open.discard(top)
            facts[top] = self._inherit(top, fact)
            stack.pop()
        return facts[node]

    def _needs(self, node: Node) -> tuple[Node, ...]:
        """What must be known before a node: its operands, and those that belong to other graphs."""
        found = self.graph.needs.get(node)
        if found is None:
            found = self.graph.needs[node] = tuple(_needs(node))
        return found

    def _owns(self, node: Node) -> bool:
        nodes = self.graph.nodes
        return 0 <= node.id < len(nodes) and nodes[node.id] is node

    def _inherit(self, node: Node, fact: Fact) -> Fact:
        """A fact with what those that it is made of rest on."""
        assumed, places, rests = fact.assumed, fact.places, fact.rests
        facts = self._facts
        for n in self._needs(node):
            f = facts[n]
            assumed = assumed if f.assumed <= assumed else assumed | f.assumed
            places = places if f.places <= places else places | f.places
            if f.rests and fact.const is not MISSING:
                rests |= f.rests
        if assumed is not fact.assumed or places is not fact.places or rests is not fact.rests:
            fact = fact.resting(assumed, places, rests)
        if rests and type(fact.const) is int:
            size = fact.size if fact.size is not None and fact.size.names else Expr.name(self._name(node))
            if size.bare is not None:
                self.reach.numbers.setdefault(size.bare, (fact.const, rests))
            fact = replace(fact, size=size)
        elif rests and isinstance(fact.const, float) and fact.const.is_integer():  # a ratio of sizes
            self.reach.numbers.setdefault(self._name(node), (int(fact.const), rests))
        return fact

    @cached_property
    def _usage(self) -> Usage:
        return self.graph.usage

    @cached_property
    def _bound_names(self) -> Mapping[Node, str]:
        return self.graph.bound_names

    @cached_property
    def _init_names(self) -> Mapping[Node, str]:
        """The names that `__init__` gives its values."""
        program, name = self.graph.program, self.graph.context.class_name
        init = None if program is None or name is None else program.init(name)
        if init is None or init is self.graph:
            return {}
        kept = {node: attribute for attribute, node in init.stored.items() if node.op == "item"}
        return {**kept, **init.bound_names}

    @cached_property
    def _labels(self) -> dict[Node, str]:
        """Values of `__init__` that are read here as an attribute, by that attribute's name."""
        out: dict[Node, str] = {}
        for node in self.graph.nodes:
            init = node.attrs.get("init") if node.op == "attr" else None
            if isinstance(init, Node) and init.op in ("attr", "floor_divide", "item", "or", "phi"):
                out.setdefault(init, node.attrs.get("name") or "?")
        return out

    def _name(self, node: Node) -> str:
        """A name for a value that is like no other value's: as in the code, where the code names it."""
        found = self._names.get(node)
        if found is None:
            found = self._names[node] = self._new_name(node)
        return found

    def _new_name(self, node: Node) -> str:
        key: Any = node
        text = self._bound_names.get(node, "") or self._labels.get(node, "") or self._init_names.get(node, "")
        if node.op == "param":
            text = node.attrs.get("name", text)
        elif node.op == "attr" and node in self._labels:
            text, key = self._labels[node], ("attr", node.inputs[0] if node.inputs else None, node.attrs.get("name"))
        elif node.op == "attr":
            path = node.attrs.get("path") or node.attrs.get("name") or ""
            stores = any(e.kind == "store" and e.path == path for e in self.graph.effects)
            if path and not stores:
                text, key = path, ("attr", node.inputs[0] if node.inputs else None, node.attrs.get("name"))
        elif not text and node.op == "loop":
            text = node.attrs.get("name", "")
        return self._unique(key, text or f"%{node.id}")

    def _unique(self, key: Any, text: str) -> str:
        found = self._names.get(key)
        if found is None:
            n = self._taken.get(text, 0)
            self._taken[text] = n + 1
            found = self._names[key] = self.mark + text + "'" * n
        return found

    # -- what use says ------------------------------------------------------------------------------------------------

    def _refine(self, node: Node, fact: Fact) -> Fact:
        """A fact with what the use of the value adds."""
        seen = self._usage.of(node)
        if fact.kind == "unknown" and seen is not None:
            if seen.array and not seen.scalar:
                fact = replace(fact, kind="array", why=f"{fact.why or node.op}: an array, {seen.array}")
            elif seen.scalar and not seen.array:
                why = f"{fact.why or node.op}: a number, {seen.scalar}"
                return replace(scalar_fact("weak number", size=fact.size or Expr.name(self._name(node)), why=why))
        if fact.kind not in ("array", "unknown"):
            return fact
        if not fact.dtype:
            fact = fact.typed(fact.shape, dtypes.of(f"{self._name(node)}.dtype"), fact.assumed | {FLOATING})
        if fact.kind == "unknown":
            return fact
        shape = fact.shape if fact.shape is not None else Shape(self._name(node), ())
        if shape.lead is not None and seen is not None:
            shape, why = self._shape_by_use(node, shape)
            if why:
                fact = replace(fact, why=f"{fact.why}; {why}" if fact.why else why)
        assumed = fact.assumed | {FLOATING} if shape.lead is not None and fact.shape is None else fact.assumed
        if any(d.is_endless for d in shape.dims):
            shape = self._ended(node, shape)
        if shape is fact.shape and assumed is fact.assumed:
            return fact
        return fact.typed(shape, fact.dtype, assumed)

    def _ended(self, node: Node, shape: Shape) -> Shape:
        """With a name of its own for each size that has no end."""
        named = (
            Expr.name(self._unique(("endless", d), f"{self._name(node)}.shape[{i}]")) if d.is_endless else d
            for i, d in enumerate(shape.dims, -len(shape.dims))
        )
        return Shape(shape.lead, tuple(named))

    def _shape_by_use(self, node: Node, shape: Shape) -> tuple[Shape, str]:
        seen = self._usage.of(node)
        assert seen is not None
        rank = seen.rank
        if rank is None:
            deepest = max((-a for a in seen.axes if a < 0), default=0)
            return (self._named(node, shape, deepest, None), "") if deepest > len(shape.dims) else (shape, "")
        if len(shape.dims) > rank:
            return shape, ""
        return self._named(node, shape, rank, rank), seen.rank_why

    def _named(self, node: Node, shape: Shape, count: int, rank: int | None) -> Shape:
        """The last `count` axes with the code's own names; all axes where the rank is known."""
        seen = self._usage.of(node)
        assert seen is not None
        tail, front = shape.tail(count), shape.front(count)
        if tail is None or front is None:
            return shape
        base = self._name(node)
        dims: list[Expr] = []
        for i, d in enumerate(tail):
            if i >= count - len(shape.dims):
                dims.append(d)  # known already
                continue
            axis = i - count
            spelt = (axis,) if rank is None else (axis + rank, axis)
            readers = [n for a in spelt for n in seen.axes.get(a, ())]
            name = next((self._bound_names[n] for n in readers if n in self._bound_names), "")
            key = next((n for n in readers if n in self._bound_names), (node, axis))
            text = name or f"{base}.shape[{axis if rank is None else axis + rank}]"
            dims.append(Expr.name(self._unique(("dim", key), text)))
        return Shape(None, tuple(dims)) if rank is not None else Shape(front[0], (*front[1], *dims))

    # -- what the rules provide ---------------------------------------------------------------------------------------

    def _evaluate(self, node: Node) -> Fact:
        raise NotImplementedError

    def _extent(self, elements: Sequence[Any]) -> Shape | None:
        raise NotImplementedError

    def call(self, node: Node) -> Call:
        raise NotImplementedError

    def call_of(self, op: Op, inputs: Sequence[Node | None], attrs: Mapping[str, Any], at: Node) -> Call:
        raise NotImplementedError


def _needs(node: Node) -> Iterator[Node]:
    """What must be known before a node: its operands, and those that belong to other graphs."""
    if node.op == "loop":  # carried around: all inputs but the first come after it
        yield from node.inputs[:1]
        return
    yield from operands(node)
    for key in FOREIGN:
        value = node.attrs.get(key)
        if isinstance(value, Node):
            yield value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a is not MISSING and bool(a == b)
