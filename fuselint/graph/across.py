"""KnownFacts across calls: what a function, a method or an object of the package gives back for these very arguments.

The callee is not lowered into the caller. Its own graph is read, with the facts of its arguments: so a call stays one
opaque value for the rules, and only what is known of that value grows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.dtypes import CONCRETE, DType
from fuselint.graph.fact import MISSING, WEIGHTS, Default, Fact, Place, annotated, array_fact, constant_fact, members
from fuselint.graph.model import Graph, Node, Statement
from fuselint.graph.op import REFUSED, Op
from fuselint.graph.symbols import Expr
from fuselint.records import record, replace
from fuselint.source.modules import Definition
from fuselint.source.project import MISSING as NO_DEFAULT
from fuselint.source.project import ClassSummary, Field, FunctionSummary, Parameter

if TYPE_CHECKING:
    from fuselint.graph.elsewhere import Elsewhere
    from fuselint.graph.known import KnownFacts

DEEPEST = 4
"""Calls inside one another that facts follow."""

MOST = 200
"""Calls that the facts of one function follow."""

OBJECTS = 3
"""Objects that a call may be of, if it is followed into all of them."""

LARGEST = 400
"""Nodes of a function that facts follow a call into."""

MARK = "\N{SECTION SIGN}"
"""Around the number of a function that is followed: it sets its names apart from those of all others."""

OUTSIDE = ("builtins.", "math.", "mlx.", "numpy.")
"""What targets start with that are of no package that is analysed."""

SELF, FIELDS = "self", "<fields>"
"""Paths of objects: the one whose method is analysed, and a dataclass object before its `__post_init__`."""

PROPERTIES = frozenset({"property", "builtins.property", "functools.cached_property"})
REMEMBERING = frozenset({"functools.lru_cache", "functools.cache"})
TRANSPARENT = frozenset({"staticmethod", "builtins.staticmethod", "mlx.core.compile"}) | PROPERTIES | REMEMBERING
"""Decorators with which a call still gives back what the body returns."""

Given = Mapping[str, "tuple[KnownFacts, Node]"]
"""Arguments by the names of parameters, each with the facts that know it."""


@dataclass(eq=False)
class Reach:
    """What the facts of one function share with those of all functions that they follow.

    usual: whether defaults of configurations count. left: calls that may still be followed.
    numbers: names of sizes that are a number by such defaults. made: the constructors that were followed. asking: the
    attributes that are being followed.
    """

    usual: bool = False
    elsewhere: Elsewhere | None = None
    left: int = MOST
    marks: int = 0
    numbers: dict[str, tuple[int, frozenset[Default]]] = field(default_factory=dict)
    made: dict[Any, Inside | None] = field(default_factory=dict)
    asking: set[Any] = field(default_factory=set)

    def mark(self) -> str:
        self.marks += 1
        return f"{MARK}{self.marks}{MARK}"


@record(frozen=True, eq=False)
class Instance:
    """An object of a class of the package (`found`), or of a layer of MLX (`op`).

    maker: the node that makes it, and the facts that know its arguments; None where only an annotation says its class.
    path: how the analysed code reads it, which names its weights; "" where that isn't known.
    """

    found: Definition | None
    op: Op | None = None
    maker: tuple[KnownFacts, Node] | None = None
    path: str = ""


@record(frozen=True, eq=False)
class Inside:
    """A function that a call runs, with the facts of its values for the arguments of that call."""

    graph: Graph
    facts: KnownFacts

    @cached_property
    def returns(self) -> list[Node | None]:
        """What it may return for these arguments; None stands for falling off its end."""
        out: list[Node | None] = []
        for stmt, node in self.graph.returns:
            reached = self.reached(stmt)
            if reached is not False:
                out.append(node)
            if reached:
                return out
        return [*out, None] if self.graph.falls_off else out

    def reached(self, stmt: Statement | None) -> bool | None:
        """Whether control comes to a statement, as far as the tests around it are known."""
        surely: bool | None = True
        block = None if stmt is None else stmt.block
        while block is not None and block.kind != "function":
            owner = None if block.owner is None else block.owner.cst
            test = self.graph.values.get(owner.test) if isinstance(owner, cst.If) else None
            known = None if test is None or block.kind not in ("then", "else") else self.facts.truth(test)
            if known is not None and known is not (block.kind == "then"):
                return False
            surely = surely if known is not None else None
            block = block.parent
        return surely


class Across:
    """The calls and objects of one graph, as its facts see them."""

    def __init__(self, facts: KnownFacts, elsewhere: Elsewhere) -> None:
        self.facts, self.elsewhere, self.modules = facts, elsewhere, elsewhere.modules
        self.graph, self.reach = facts.graph, facts.reach
        self._into: dict[Node, tuple[Inside, ...]] = {}

    # -- objects ------------------------------------------------------------------------------------------------------

    def own(self) -> Instance | None:
        """`self`: an object of the class that the function is a method of, or of one derived from it."""
        name = self.graph.context.class_name
        return None if name is None else Instance(Definition(self.elsewhere.path_of(self.graph), name), path=SELF)

    def annotated(self, annotation: Any) -> Fact | None:
        """An object of which an annotation says the class."""
        return self._object_of(self.elsewhere.path_of(self.graph), annotation)

    def _object_of(self, path: str, annotation: Any) -> Fact | None:
        named = members(annotation)
        found = self.elsewhere.resolved(path, named[0]) if len(named) == 1 else None
        if found is None or self.elsewhere.class_(found) is None:
            return None
        return Fact("object", instances=(Instance(found),), why=f"it is annotated {annotation}")

    def constant(self, target: str | None) -> Fact | None:
        """A constant that another module defines; `Class.SIZE` where defaults count."""
        found = self.elsewhere.resolve(self.graph, target) if target else None
        owner, _, name = (target or "").rpartition(".")
        if self.reach.usual and owner and (held := self._by_class(owner, name)) is not None:
            return held
        value = NO_DEFAULT if found is None else self.modules.constant(found)
        summary = None if found is None else self.modules.summary(found.path)
        if found is not None and summary is not None and (array := array_fact(summary, found.name)) is not None:
            return replace(array, places=self._places(found.path, summary.lines.get(found.name, 1)))
        if found is None or summary is None or not (value is None or isinstance(value, (bool, int, float, str))):
            return None
        return replace(constant_fact(value), places=self._places(found.path, summary.lines.get(found.name, 1)))

    def _by_class(self, owner: str, name: str) -> Fact | None:
        """What a class says of one of its attributes, which somebody might set to something else."""
        stated = self._stated_field(owner, name)
        return None if stated is None else self._default(stated[0], name, stated[1], exact=False)

    def _stated_field(self, owner: str, name: str) -> tuple[Definition, Field] | None:
        found = self.elsewhere.resolve(self.graph, owner)
        if found is None or self.elsewhere.class_(found) is None:
            return None
        return next(((at, c.fields[name]) for at, c in self.elsewhere.classes(found) if name in c.fields), None)

    def usual_dtype(self, target: str | None) -> str:
        """The dtype that a class says of one of its attributes."""
        owner, _, name = (target or "").rpartition(".")
        stated = self._stated_field(owner, name) if owner else None
        return "" if stated is None or stated[1].dtype not in CONCRETE else stated[1].dtype

    def made(self, node: Node) -> Fact | None:
        """The object that a call of a class makes."""
        target = node.attrs.get("target") or ""
        op = ops.resolve_call(target) if node.op == "new" else None
        found = None
        if op is None:
            found = self.elsewhere.resolve(self.graph, target) if target else None
            if found is None or self.elsewhere.class_(found) is None:
                return self._made_by_a_method(target)
        instance = Instance(found, op, (self.facts, node))
        return Fact("object", instances=(instance,), why=f"an instance of {target.rpartition('.')[2]}", present=True)

    def _made_by_a_method(self, target: str) -> Fact | None:
        """The object that `Config.from_dict(...)` makes, of which only the class is known."""
        owner, _, name = target.rpartition(".")
        found = self.elsewhere.resolve(self.graph, owner) if owner else None
        method = None if found is None or self.elsewhere.class_(found) is None else self.elsewhere.method(found, name)
        summary = None if method is None else self.elsewhere.function(method)
        if found is None or method is None or summary is None or summary.kind != "classmethod":
            return None
        stated = {m.rpartition(".")[2] for m in members(summary.returns)} <= {found.name, "Self"}
        if not (summary.returns and stated) and not self._calls_its_class(method):
            return None
        present = not re.search(r"\b(None|Optional)\b", summary.returns or "")
        return Fact("object", instances=(Instance(found),), why=f"{target} makes it", present=present)

    def _calls_its_class(self, method: Definition) -> bool:
        """Whether all that a class method returns is `cls(...)`."""
        graph = self.elsewhere.graph(method)
        if graph is None or graph.falls_off or not graph.returns:
            return False
        own = next(iter(graph.params.values()), None)
        return all(n.op == "call" and n.attrs.get("callee") is own for _, n in graph.returns)

    def attribute(self, instance: Instance, name: str) -> Fact | None:
        """An attribute of an object: a dataclass's field, what `__init__` assigns, a property, a class's constant."""
        if instance.found is None:
            return None
        classes = self.elsewhere.classes(instance.found)
        if any(c.is_dataclass for _, c in classes):
            return self._field(instance, name) or self._property(instance, name)
        if instance.maker is None and instance.path != SELF:
            return None  # nothing says that it is as its constructor made it
        return self._assigned(instance, name) or self._property(instance, name) or self._class_constant(classes, name)

    def lacks(self, instance: Instance, name: str) -> bool:
        """Whether an object of a dataclass surely has no attribute of that name."""
        if instance.found is None or not self.elsewhere.lineage(instance.found)[1]:
            return False
        classes = [c for _, c in self.elsewhere.classes(instance.found)]
        after = self._after(instance.found)
        if not any(c.is_dataclass for c in classes) or (after is not None and name in after[1].stored):
            return False
        return not any(name in c.fields or name in c.methods for c in classes)

    def _places(self, path: str, line: int) -> frozenset[Place]:
        place = self.elsewhere.place(path, line)
        return frozenset({place} if self.elsewhere.is_other(place) else ())

    def _class_constant(self, classes: Sequence[tuple[Definition, ClassSummary]], name: str) -> Fact | None:
        for at, c in classes:
            if name in c.fields:
                stated = c.fields[name]
                if stated.default is NO_DEFAULT or any(name in other.reassigned for _, other in classes):
                    return None
                return replace(constant_fact(stated.default), places=self._places(at.path, stated.line))
        return None

    # -- dataclasses --------------------------------------------------------------------------------------------------

    def _after(self, found: Definition) -> tuple[Definition, Graph] | None:
        """The `__post_init__` of a dataclass."""
        method = self.elsewhere.method(found, "__post_init__")
        graph = None if method is None else self.elsewhere.graph(method)
        return None if method is None or graph is None else (method, graph)

    def _field(self, instance: Instance, name: str) -> Fact | None:
        """A field as the constructor and `__post_init__` leave it."""
        assert instance.found is not None
        after = None if instance.path == FIELDS else self._after(instance.found)
        if after is None or name not in after[1].stored:
            return self._given_field(instance, name)
        method, graph = after
        bare = Fact("object", instances=(replace(instance, path=FIELDS),), present=True)
        inside = self._enter(method, graph, {next(iter(graph.params), SELF): bare}, {})
        return None if inside is None else self._brought(inside, graph.stored[name])

    def _given_field(self, instance: Instance, name: str) -> Fact | None:
        """A field as the constructor is given it: an argument, else the default where that counts, else any value."""
        assert instance.found is not None
        fields = self._fields(instance.found)
        if name not in fields:
            return None
        at, field = fields[name]
        given = self._arguments(instance, list(fields))
        if given is not None and name in given:
            facts, node = given[name]
            return facts.of(node)
        exact = given is not None
        found = self._default(at, name, field, exact) if exact or self.reach.usual else None
        if found is not None and (exact or found.kind != "none"):
            return found
        if found is None and self.reach.usual and (stated := self._configured(at, instance.found, name)) is not None:
            return stated
        made = self._any_value(at, name, field)  # an object that may be None is made when the configuration is read
        return found if found is not None and (made is None or made.kind != "object") else made

    def _configured(self, at: Definition, found: Definition, name: str) -> Fact | None:
        """A field that has no default: the number that a call of the package gives it."""
        for graph, call in self.elsewhere.uses(found):
            if self.elsewhere.is_test(graph):
                continue
            facts = self.elsewhere.usual(graph)
            given = self._arguments(Instance(found, maker=(facts, call)), list(self._fields(found)))
            number = MISSING if given is None or name not in given else facts.const(given[name][1])
            if type(number) in (int, float):
                place = self.elsewhere.place_of(graph, call)
                places = frozenset({place} if self.elsewhere.is_other(place) else ())
                fact = replace(constant_fact(number), why=f"a {found.name} is made so", places=places)
                return replace(fact, rests=frozenset({Default(name, number, at.name, place)}))
        return None

    def _default(self, at: Definition, name: str, stated: Field, exact: bool) -> Fact | None:
        places, shown = self._places(at.path, stated.line), at.name
        if stated.default is not NO_DEFAULT:
            default = Default(name, stated.default, shown, self.elsewhere.place(at.path, stated.line))
            fact = replace(constant_fact(stated.default), why=f"the default of {shown}.{name}", places=places)
            return fact if exact else replace(fact, rests=frozenset({default}))
        made = self.elsewhere.resolved(at.path, stated.factory) if stated.factory else None
        if made is None or self.elsewhere.class_(made) is None:
            return None
        return Fact("object", instances=(Instance(made),), places=places, why=f"the default of {shown}.{name}")

    def _any_value(self, at: Definition, name: str, stated: Field) -> Fact | None:
        places = self._places(at.path, stated.line)
        fact = self._object_of(at.path, stated.annotation) or annotated(stated.annotation, f"{at.name}.{name}")
        return None if fact is None or fact.kind not in ("object", "scalar") else replace(fact, places=places)

    def _fields(self, found: Definition) -> dict[str, tuple[Definition, Field]]:
        """The fields of a dataclass in the order of its constructor: those of bases come first."""
        out: dict[str, tuple[Definition, Field]] = {}
        for at, held in reversed(self.elsewhere.classes(found)):
            for name, stated in held.fields.items():
                out[name] = (at, stated)
        return out

    def _arguments(self, instance: Instance, names: Sequence[str]) -> Given | None:
        """The arguments that a dataclass object was made with; None where they aren't known."""
        facts, node = instance.maker or (None, None)
        given = None if node is None else call_arguments(node)
        if facts is None or given is None or len(given[0]) > len(names):
            return None
        named = (*zip(names, given[0], strict=False), *given[1].items())
        return {k: (facts, n) for k, n in named}

    # -- other classes ------------------------------------------------------------------------------------------------

    def _assigned(self, instance: Instance, name: str) -> Fact | None:
        """What the constructor assigns to an attribute, unless a method does too."""
        assert instance.found is not None
        if any(name in c.reassigned for _, c in self.elsewhere.classes(instance.found)):
            return None
        key = (instance.found, instance.maker, name)
        inside = None if key in self.reach.asking else self.constructed(instance)
        if inside is None:
            return None  # also where the value is made of itself
        self.reach.asking.add(key)
        try:
            return self._stored(inside, instance, name)
        finally:
            self.reach.asking.remove(key)

    def constructed(self, instance: Instance) -> Inside | None:
        """The constructor of an object, with the facts of its arguments."""
        init = None if instance.found is None else self.elsewhere.method(instance.found, "__init__")
        return None if init is None else self._construct(init, instance, *(instance.maker or (self.facts, None)))

    def _construct(self, init: Definition, instance: Instance, facts: KnownFacts, call: Node | None) -> Inside | None:
        """A constructor of an object, or of a base of it, for the arguments of a call that `facts` know."""
        key = (init, instance.found, instance.maker)
        if key not in self.reach.made:
            self.reach.made[key] = None  # while it is being worked out
            self.reach.made[key] = self._constructor(init, instance, facts, call)
        return self.reach.made[key]

    def _constructor(self, init: Definition, instance: Instance, facts: KnownFacts, call: Node | None) -> Inside | None:
        summary, graph = self.elsewhere.function(init), self.elsewhere.graph(init)
        if summary is None or graph is None or not summary.parameters:
            return None
        this = {summary.parameters[0].name: Fact("object", instances=(instance,), present=True)}
        given = None if call is None else call_arguments(call)
        bound = None if given is None else bind(summary.parameters[1:], *given)
        return self._enter(init, graph, this, None if bound is None else {k: (facts, n) for k, n in bound.items()})

    def _stored(self, inside: Inside, instance: Instance, name: str) -> Fact | None:
        node = inside.graph.stored.get(name)
        if node is not None:
            return self._as_weight(self._brought(inside, node), instance, name)
        for call in inside.graph.nodes:
            target = call.attrs.get("target") or "" if call.op == "call" else ""
            base = self.elsewhere.resolve(inside.graph, target) if target.endswith(".__init__") else None
            if base is not None and is_super(call):
                above = self._construct(base, instance, inside.facts, call)
                return None if above is None else self._stored(above, instance, name)
        return None

    def _as_weight(self, fact: Fact, instance: Instance, name: str) -> Fact:
        """An array that loading may replace has a dtype of its own."""
        if fact.kind != "array" or name.startswith("_") or fact.dtype.integral:
            return fact
        owner = instance.path or (instance.found.name if instance.found is not None else "")
        return replace(fact, dtype=DType({f"{owner}.{name}.dtype"}), assumed=fact.assumed | {WEIGHTS})

    def _property(self, instance: Instance, name: str) -> Fact | None:
        assert instance.found is not None
        found = self.elsewhere.method(instance.found, name)
        summary = None if found is None else self.elsewhere.function(found)
        if found is None or summary is None or summary.kind != "property":
            return None
        inside = self._follow(found, summary, instance, [], {})
        return None if inside is None else self._result(inside)

    # -- calls --------------------------------------------------------------------------------------------------------

    def result(self, node: Node) -> Fact | None:
        """What a call gives back, where it enters the package, or calls a layer of MLX that another function made."""
        made = self.made(node)
        if made is not None:
            return made
        callees = self.callees(node)
        layers = [c for c in callees if c.op is not None]
        insides = self.into(node)
        if len(insides) + len(layers) < max(1, len(callees)):
            return None
        results = [self._layer(node, layer) for layer in layers]
        results += [self._result(i) for i in insides]
        known = [r for r in results if r is not None]
        return self.facts.joined(known, ("result", node)) if known and len(known) == len(results) else None

    def into(self, node: Node) -> tuple[Inside, ...]:
        """The functions that a `call` may run, one for each object that may be called; none where they aren't known."""
        if node not in self._into:
            self._into[node] = ()  # while it is being worked out
            if node.op == "call":
                self._into[node] = tuple(self._followed(node))
        return self._into[node]

    def _followed(self, node: Node) -> list[Inside]:
        given = call_arguments(node)
        if given is None:
            return []
        callees = self.callees(node)
        if len(callees) > OBJECTS:
            return []
        if callees:
            name = self._method_name(node)
            found = [self._method(c, name, given) for c in callees if c.op is None]
            return [i for i in found if i is not None] if all(found) else []
        chosen = _one_of(node.attrs.get("callee"))
        if chosen is not None:
            names = [n.attrs["qualname"] for n in chosen] if len(chosen) <= OBJECTS else []
            found = [self._plain(Definition(self.elsewhere.path_of(self.graph), n), given) for n in names]
            return [i for i in found if i is not None] if all(found) else []
        target = node.attrs.get("target") or ""
        function = None if not target or target.startswith(OUTSIDE) else self.elsewhere.resolve(self.graph, target)
        summary = None if function is None else self.elsewhere.function(function)
        if function is None or summary is None:
            return []
        is_bound = isinstance(node.attrs.get("callee"), Node)  # a value that is called is the method's first argument
        inside = self._follow(function, summary, self.own() if is_super(node) else None, *given, is_bound=is_bound)
        return [] if inside is None else [inside]

    def _plain(self, function: Definition, given: tuple[list[Node], dict[str, Node]]) -> Inside | None:
        """A function of a module, which no other encloses."""
        summary = self.elsewhere.function(function)
        if summary is None or summary.kind != "function" or "." in function.name:
            return None
        return self._follow(function, summary, None, *given)

    def callees(self, node: Node) -> tuple[Instance, ...]:
        """The objects that a call may be of, or whose method it calls."""
        held, callee = node.attrs.get("new") or node.attrs.get("init"), node.attrs.get("callee")
        if isinstance(held, Node):
            path = self.facts.path(node)
            return tuple(replace(i, path=path) for i in self.facts.of(held).instances)
        if not isinstance(callee, Node):
            return ()
        called = self.facts.of(callee).instances
        return called or (self.facts.of(callee.inputs[0]).instances if callee.op == "attr" and callee.inputs else ())

    def _method_name(self, node: Node) -> str:
        callee = node.attrs.get("callee")
        if not isinstance(callee, Node) or "path" in node.attrs or self.facts.of(callee).instances:
            return "__call__"
        return str(callee.attrs.get("name"))

    def _method(self, instance: Instance, name: str, given: tuple[list[Node], dict[str, Node]]) -> Inside | None:
        if instance.found is None or instance.maker is None:
            return None  # of an annotation, it may be of a derived class
        found = self.elsewhere.method(instance.found, name)
        summary = None if found is None else self.elsewhere.function(found)
        if found is None or summary is None or not self._has_its_init(instance.found, found, summary):
            return None
        inside = self._follow(found, summary, instance, *given)
        if inside is not None:
            init = self.constructed(instance)
            inside.facts.init = None if init is None else init.facts
        return inside

    def _has_its_init(self, class_: Definition, method: Definition, summary: FunctionSummary) -> bool:
        """Whether the class that has a method has the constructor of the object too: a method reads what that set."""
        owner = Definition(method.path, summary.class_name or "")
        return self.elsewhere.method(owner, "__init__") == self.elsewhere.method(class_, "__init__")

    def _follow(
        self,
        found: Definition,
        summary: FunctionSummary,
        receiver: Instance | None,
        positional: Sequence[Node],
        keywords: Mapping[str, Node],
        is_bound: bool = False,
    ) -> Inside | None:
        """A function with what a call gives it. receiver: the object whose method it is, None where that isn't known.
        is_bound: whether there is one."""
        graph = self.elsewhere.graph(found) if self._gives_what_it_returns(found, summary) else None
        parameters: Sequence[Parameter] = summary.parameters
        this: dict[str, Fact] = {}
        if receiver is not None and summary.kind in ("method", "property") and parameters:
            this[parameters[0].name] = Fact("object", instances=(receiver,), present=True)
            parameters = parameters[1:]
        elif is_bound and summary.kind == "method":
            parameters = parameters[1:]
        bound = bind(parameters, positional, keywords)
        if graph is None or bound is None:
            return None
        return self._enter(found, graph, this, {k: (self.facts, n) for k, n in bound.items()})

    def _gives_what_it_returns(self, found: Definition, summary: FunctionSummary) -> bool:
        """Whether a call of a function gives back what its body returns."""
        module = self.modules.summary(found.path)
        info = None if module is None else module.compiled.get(found.name)
        allowed = TRANSPARENT | ({"functools.partial"} if info is not None and info.how == "decorated" else set())
        odd = summary.redefined or summary.is_async or summary.is_generator
        return not odd and summary.kind != "classmethod" and allowed.issuperset(summary.decorators)

    def _enter(self, found: Definition, graph: Graph, this: Mapping[str, Fact], given: Given | None) -> Inside | None:
        """A function with the facts of its arguments; None for `given`: they aren't known."""
        facts = self.facts
        if len(facts.chain) >= DEEPEST or found in facts.chain or self.reach.left <= 0 or len(graph.nodes) > LARGEST:
            return None
        self.reach.left -= 1
        inner = facts.inner(graph, found)
        for name, node in graph.params.items():
            default = node.attrs.get("default")
            if name in this:
                inner.give(node, this[name])
            elif given is not None and name in given:
                inner.pass_on(node, *given[name])
            elif given is not None and isinstance(default, Node):
                inner.give(node, inner.of(default))
        return Inside(graph, inner)

    def _result(self, inside: Inside) -> Fact | None:
        """What a followed function gives back."""
        facts = [constant_fact(None) if n is None else self._brought(inside, n) for n in inside.returns]
        return inside.facts.joined(facts, ("result", inside.graph)) if facts else None

    def _brought(self, inside: Inside, node: Node) -> Fact:
        """A fact of a followed function, with the line that says it."""
        fact, place = inside.facts.of(node), self.elsewhere.place_of(inside.graph, node)
        return replace(fact, places=fact.places | {place}) if self.elsewhere.is_other(place) else fact

    def _layer(self, node: Node, layer: Instance) -> Fact | None:
        """A call of a layer of MLX that another function made."""
        given = call_arguments(node)
        if layer.op is None or layer.maker is None or given is None:
            return None
        try:
            bound = ops.bind(layer.op, *given)
        except ops.CannotBind:
            return None
        facts, new = layer.maker
        settings = set(new.attrs.get("args", {}).values())

        def size(value: Any) -> Expr | None:
            return (facts if isinstance(value, Node) and value in settings else self.facts).size(value)

        attrs = {**bound.attrs, "new": new, "path": layer.path or None}
        call = replace(self.facts.call_of(layer.op, bound.inputs, attrs, node), size=size)
        try:
            shape, dtype = layer.op.shape(call), layer.op.dtype(call)
        except REFUSED:
            return None
        if layer.op.result != "array" or not isinstance(dtype, DType) or isinstance(shape, tuple):
            return None
        return Fact("array", shape, dtype, why=f"{layer.op.name} of its operands", present=True)


def call_arguments(node: Node) -> tuple[list[Node], dict[str, Node]] | None:
    """The positional and keyword arguments of a `call` or `new` node; None where a `*argument` hides some."""
    if any(n.op == "star" for n in node.inputs) or node.attrs.get("starred"):
        return None
    if node.op == "new":
        args: Mapping[str, Node] = node.attrs["args"]
        if len(args) != len(node.inputs):
            return None
        return [n for k, n in args.items() if k.isdigit()], {k: n for k, n in args.items() if not k.isdigit()}
    keywords = node.attrs.get("keywords", ())
    count = len(node.inputs) - len(keywords)
    return list(node.inputs[:count]), dict(zip(keywords, node.inputs[count:], strict=True))


def bind(
    parameters: Sequence[Parameter], positional: Sequence[Node], keywords: Mapping[str, Node]
) -> dict[str, Node] | None:
    """Arguments by the names of parameters; None where they don't fit."""
    out: dict[str, Node] = {}
    rest = list(positional)
    for p in parameters:
        if p.kind in ("positional", "plain") and rest:
            out[p.name] = rest.pop(0)
    kinds = {p.kind for p in parameters}
    names = {p.name for p in parameters if p.kind in ("plain", "keyword")}
    if (rest and "*" not in kinds) or not out.keys().isdisjoint(keywords):
        return None
    if not keywords.keys() <= names and "**" not in kinds:
        return None
    out.update((k, n) for k, n in keywords.items() if k in names)
    needed = (p.name for p in parameters if p.kind in ("positional", "plain", "keyword") and not p.has_default)
    return out if all(name in out for name in needed) else None


def _one_of(callee: Any) -> list[Node] | None:
    """The functions of the file that `turn = turn_pairs if paired else turn_halves` may be; None of anything else."""
    if not isinstance(callee, Node) or callee.op != "phi":
        return None
    found = [_one_of(n) if n.op == "phi" else [n] if n.op == "function" else None for n in callee.inputs]
    return None if None in found else [n for ns in found if ns is not None for n in ns]


def is_super(node: Node) -> bool:
    """Whether a call is written `super().method(...)`."""
    function = node.cst.func if isinstance(node.cst, cst.Call) else None
    owner = function.value if isinstance(function, cst.Attribute) else None
    return isinstance(owner, cst.Call) and isinstance(owner.func, cst.Name) and owner.func.value == "super"


__all__ = ["MISSING", "Across", "Inside", "Instance", "Reach", "bind", "call_arguments", "is_super"]
