"""What an expression of a package may stand for when it is called: functions, methods, objects, by the text alone.

Objects come from what methods store, what annotations say, and, for a parameter without one, what the calls in the
package give it. What none of these tells is left out: nothing is assumed of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fuselint.source.links import Call, Expr, Links, Store
from fuselint.source.modules import Definition, Modules, is_test
from fuselint.source.project import MODULE, FunctionSummary, ModuleSummary

DEEPEST = 40
"""Steps from an expression to what it stands for."""

ABSTRACT = frozenset({"abc.abstractmethod", "abstractmethod"})

ONE = re.compile(r"^(?:typing\.)?(?:Optional|Annotated|Final|ClassVar)\[(.*)\]$")
SEVERAL = re.compile(r"^(?:typing\.|collections\.abc\.)?(?:[Ll]ist|[Tt]uple|Sequence|Iterable|Iterator)\[(.*)\]$")


@dataclass(frozen=True, slots=True)
class Value:
    """What may be called. kind: "function", "class", "object" (of a class), "many" or "wrapped" (of `inner`).

    owner: of a method, the class of the object that it is called on.
    """

    kind: str
    found: Definition | None = None
    owner: Definition | None = None
    inner: frozenset[Value] = frozenset()


Values = frozenset[Value]
NOTHING: Values = frozenset()


@dataclass(frozen=True, slots=True)
class Where:
    """A function of the package, and the class of the object that it is called on."""

    found: Definition
    owner: Definition | None = None


class Evaluation:
    """What expressions of the files of a package stand for. top: its folder."""

    def __init__(self, modules: Modules, top: str) -> None:
        self.modules, self._top = modules, top
        self._known: dict[tuple[str, Expr, Definition | None], Values] = {}
        self._open: dict[tuple[str, Expr, Definition | None], int] = {}  # what is being worked out, in order
        self._lowest = math.inf  # the first of those that the current one needs
        self._users: dict[Definition, list[str]] = {}
        self._wrapped: set[tuple[Definition, str]] = set()

    def wrap(self, attributes: set[tuple[Definition, str]]) -> None:
        """From now on, these attributes of classes hold something that is compiled in its place."""
        self._wrapped |= attributes
        self._known.clear()

    def links(self, path: str) -> Links | None:
        return self.modules.links(path)

    def of(self, path: str, expr: Expr, owner: Definition | None = None) -> Values:
        """What an expression of a file may stand for; owner: the class of `self` there."""
        key = (path, expr, owner)
        if key in self._known:
            return self._known[key]
        if key in self._open or len(self._open) > DEEPEST:
            self._lowest = min(self._lowest, self._open.get(key, math.inf))
            return NOTHING
        at, outer = len(self._open), self._lowest
        self._open[key], self._lowest = at, math.inf
        found = self._of(path, expr, owner)
        del self._open[key]
        if self._lowest >= at:  # else it is part of a circle, and may be more when asked from elsewhere
            self._known[key], self._lowest = found, math.inf
        self._lowest = min(self._lowest, outer)
        return found

    def _of(self, path: str, expr: Expr, owner: Definition | None) -> Values:
        if expr.kind == "name":
            return self._named(path, expr.name)
        if expr.kind == "local":
            return self._local(path, expr, owner)
        if expr.kind == "param":
            return self._parameter(path, expr, owner)
        if expr.kind == "super":
            return self._super(path, expr.scope, owner)
        if expr.kind not in ("attr", "item", "call", "many", "any", "wrapped"):
            return NOTHING
        parts = frozenset(v for part in expr.parts for v in self.of(path, part, owner))
        if expr.kind == "any":
            return parts
        if expr.kind in ("many", "wrapped"):
            return frozenset({Value(expr.kind, inner=parts)}) if parts else NOTHING
        if expr.kind == "item":
            return frozenset(i for v in parts if v.kind == "many" for i in v.inner)
        if expr.kind == "attr":
            return frozenset(i for v in parts for i in self.attribute(v, expr.name))
        return frozenset(i for v in parts for i in self._result(v))

    def _named(self, path: str, name: str) -> Values:
        found = self.modules.resolve(path, name)
        if found is None:
            return NOTHING
        if self.modules.function(found) is not None:
            return self._function(found, None)
        return frozenset({Value("class", found)}) if self.modules.class_(found) is not None else NOTHING

    def _function(self, found: Definition, owner: Definition | None) -> Values:
        """A function as its name reads it: one that its decorator, or `f = mx.compile(f)`, compiles is wrapped."""
        value = Value("function", found, owner)
        summary = self.modules.summary(found.path)
        info = None if summary is None else summary.compiled.get(found.name)
        if info is not None and (info.how == "decorated" or info.rebound):
            return frozenset({Value("wrapped", inner=frozenset({value}))})
        return frozenset({value})

    def _super(self, path: str, scope: str, owner: Definition | None) -> Values:
        around = self.owner(path, scope)
        held = None if around is None else self.modules.class_(around)
        bases = (self.modules.resolve(path, b) for b in (held.bases if held is not None else ()) if b)
        return frozenset(Value("object", b, owner) for b in bases if b is not None and self.modules.class_(b))

    def _local(self, path: str, expr: Expr, owner: Definition | None) -> Values:
        links = self.links(path)
        return NOTHING if links is None else self.of(path, links.variables[expr.scope, expr.name], owner)

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _parameter(self, path: str, expr: Expr, owner: Definition | None) -> Values:
        module = self.modules.summary(path)
        if module is None:
            return NOTHING
        function = module.functions[expr.scope]
        names = [p.name for p in function.parameters]
        if function.class_name is not None and names[0] == expr.name and function.kind != "staticmethod":
            own = owner or Definition(path, function.class_name)
            return frozenset({Value("class" if function.kind == "classmethod" else "object", own)})
        stated = function.parameters[names.index(expr.name)].annotation
        found = self.annotated(path, stated) if stated else NOTHING
        return found or self._given(Definition(path, expr.scope), expr.name)

    def annotated(self, path: str, text: str) -> Values:
        """The objects that an annotation speaks of."""
        out: set[Value] = set()
        for part in _alternatives(text.strip("\"' ")):
            one, several = ONE.match(part), SEVERAL.match(part)
            if one is not None:
                out |= self.annotated(path, one[1])
            elif several is not None:
                inner = self.annotated(path, several[1].removesuffix(", ..."))
                out |= {Value("many", inner=inner)} if inner else set()
            else:
                out |= {replace(v, kind="object") for v in self._named(path, part) if v.kind == "class"}
        return frozenset(out)

    def _given(self, found: Definition, name: str) -> Values:
        """What the calls of a function give one of its parameters."""
        out: set[Value] = set()
        for path, call, owner in self.callers(found):
            given = self.argument(found, name, call)
            if given is not None:
                out |= self.of(path, given, owner)
        return frozenset(out)

    def argument(self, found: Definition, name: str, call: Call) -> Expr | None:
        """What a call of a function gives a parameter."""
        function = self.modules.function(found)
        if function is None:
            return None
        names = [p.name for p in function.parameters if p.kind in ("positional", "plain")]
        if function.class_name is not None and function.kind != "staticmethod":
            names = names[1:]
        given = {**dict(zip(names, call.arguments, strict=False)), **dict(call.keywords)}
        return given.get(name)

    def callers(self, found: Definition) -> Iterator[tuple[str, Call, Definition | None]]:
        """The calls of a function in its own file and in those that import it or its class."""
        function = self.modules.function(found)
        if function is None:
            return
        name, class_name = found.name.rpartition(".")[2], function.class_name
        if name == "__init__" and class_name is not None:
            name = class_name.rpartition(".")[2]
        for path in self.users(found):
            links = self.links(path)
            for call in links.calls_by_name.get(name, ()) if links is not None else ():
                owner = self.owner(path, call.by)
                if any(self._enters(v, found) for v in self.of(path, call.called, owner)):
                    yield path, call, owner

    def users(self, found: Definition) -> list[str]:
        """The files that may call a function: its own, and where it is no inner one, those that import it."""
        if found not in self._users:
            inner = "<locals>" in found.name
            others = () if inner else (p for p in self.modules.users(found) if not self.is_test(p))
            self._users[found] = [found.path, *others]
        return self._users[found]

    def is_test(self, path: str) -> bool:
        """Whether the calls of a file don't count."""
        return is_test(path, self._top)

    def owner(self, path: str, scope: str) -> Definition | None:
        """The class whose method a function is or lies in."""
        summary = self.modules.summary(path)
        name = None if summary is None or scope == MODULE else _class_around(summary, scope)
        return None if name is None else Definition(path, name)

    def _enters(self, value: Value, found: Definition) -> bool:
        if value.kind == "class" and value.found is not None:
            return self.modules.method(value.found, "__init__") == found
        return value.kind == "function" and value.found == found

    # -- attributes ---------------------------------------------------------------------------------------------------

    def attribute(self, value: Value, name: str) -> Values:
        """What an attribute of an object or class may be."""
        if value.kind == "many":
            inner = {"values": value.inner, "copy": value.inner}.get(name, NOTHING)
            return frozenset({Value("iterator", inner=inner)}) if inner else NOTHING
        if value.kind not in ("object", "class") or value.found is None:
            return NOTHING
        this = value.owner or value.found
        out: set[Value] = set()
        method = self.modules.method(value.found, name)
        function = None if method is None else self.modules.function(method)
        if method is not None and function is not None:
            if function.kind == "property":
                return self._returned(method, this) if value.kind == "object" else NOTHING
            out |= self._function(method, None if function.kind == "staticmethod" else this)
            if self._is_abstract(method, function):
                for derived in self.derived(value.found):
                    out |= self.attribute(Value(value.kind, derived), name)
        for at in self.modules.lineage(value.found)[0]:
            out |= self._assigned(at, name, this)
            if (at, name) in self._wrapped:
                return frozenset({Value("wrapped", inner=frozenset(out))})
        return frozenset(out)

    def _is_abstract(self, method: Definition, function: FunctionSummary) -> bool:
        owner = self.modules.class_(Definition(method.path, function.class_name or ""))
        protocol = owner is not None and any(b.rpartition(".")[2] == "Protocol" for b in owner.bases)
        return protocol or bool(ABSTRACT.intersection(function.decorators))

    def derived(self, found: Definition) -> Iterator[Definition]:
        """The classes of the package that derive from one directly."""
        last = found.name.rpartition(".")[2]
        for path in self.users(found):
            summary = self.modules.summary(path)
            for name, held in summary.classes.items() if summary is not None else ():
                if any(b.endswith(last) and self.modules.resolve(path, b) == found for b in held.bases):
                    yield Definition(path, name)

    def _assigned(self, at: Definition, name: str, this: Definition) -> Values:
        """What the methods of a class store in an attribute, or its annotation says of it."""
        links, held = self.links(at.path), self.modules.class_(at)
        if links is None or held is None:
            return NOTHING
        out: set[Value] = set()
        for store in links.stores.get(name, ()):
            if self._is_own(store, at):
                out |= self.of(at.path, store.value, this)
        stated = held.fields.get(name)
        if not out and stated is not None and stated.annotation:
            out |= self.annotated(at.path, stated.annotation)
        return frozenset(out)

    def _is_own(self, store: Store, class_: Definition) -> bool:
        function = self.modules.function(Definition(class_.path, store.by))
        if function is None or function.class_name != class_.name or not function.parameters:
            return False
        return store.owner == Expr("local", function.parameters[0].name, scope=store.by)

    def _result(self, value: Value) -> Values:
        """What a call gives back."""
        if value.kind == "iterator":
            return frozenset({Value("many", inner=value.inner)})
        if value.kind == "class" and value.found is not None:
            return frozenset({Value("object", value.found)})
        if value.kind == "function" and value.found is not None:
            return self._returned(value.found, value.owner)
        return NOTHING

    def _returned(self, found: Definition, owner: Definition | None) -> Values:
        links, function = self.links(found.path), self.modules.function(found)
        if links is None or function is None:
            return NOTHING
        owner = owner or self.owner(found.path, found.name)
        out: set[Value] = set()
        for returned in links.returns.get(found.name, ()):
            out |= self.of(found.path, returned, owner)
        return frozenset(out) or (self.annotated(found.path, function.returns) if function.returns else NOTHING)

    # -- calls --------------------------------------------------------------------------------------------------------

    def entered(self, values: Iterable[Value], inside: bool) -> Iterator[Where]:
        """The functions that a call of one of these values runs. inside: those that are wrapped too."""
        values = frozenset(values)
        wrapped = {i for v in values if v.kind == "wrapped" for i in v.inner}
        if wrapped and inside:
            yield from self.entered(wrapped, True)
        for value in values - wrapped:  # `return f if slow else mx.compile(f)`: the compiled one is what counts
            if value.kind == "function" and value.found is not None:
                yield Where(value.found, value.owner)
            elif value.kind == "object" and value.found is not None:
                method = self.modules.method(value.found, "__call__")
                if method is not None:
                    yield Where(method, value.owner or value.found)
            elif value.kind == "many":
                yield from self.entered(value.inner, inside)


def _class_around(module: ModuleSummary, scope: str) -> str | None:
    at: str | None = scope
    while at is not None and at in module.functions:
        if module.functions[at].class_name is not None:
            return module.functions[at].class_name
        at = module.functions[at].span.outer
    return None


def _alternatives(text: str) -> list[str]:
    """The members of a union: the text at its top-level bars."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c == "[") - (c == "]")
        if c == "|" and not depth:
            out.append(text[start:i].strip("\"' "))
            start = i + 1
    return [*out, text[start:].strip("\"' ")]
