"""How often a function of a package runs: again and again within one pass of a model, once for each pass, or never.

A pass is one call of a whole model: a class that keeps a list of layers, or holds such a class. From a function its
callers are followed upwards through the files of the package, by their text. It runs often where a loop calls it, or
where its object is one of many. Where the callers lead to a model, and to no loop below, it runs once for each pass.
Where a caller can't be told, it is taken to run often: nothing is silent because it is not known.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath

from fuselint.source.conditions import outcome
from fuselint.source.folders import python_files
from fuselint.source.mentions import Loop, Mention, Suites, Test
from fuselint.source.modules import Definition, Modules, Remembered, is_test, is_unreleased
from fuselint.source.notes import FILES
from fuselint.source.project import MISSING, MODULE, FunctionSummary, unit_of
from fuselint.source.scopes import dotted
from fuselint.source.stages import Stages

MOST = 300
"""Callers that are followed from one function, at most."""
MOST_OUTSIDE = 40
"""Callers of what no layer calls, at most."""

DEEPEST = 12
"""Classes inside one another, and values that depend on one another."""

CALLS = frozenset({"call", "kept"})
PASSIVE = frozenset({"type", "import", "string", "exported", "alias"})
"""Mentions that run nothing by themselves."""

ELSEWHERE = frozenset({"text", "string", "exported"})
"""Strings: they say no more than a name."""

PLAIN = frozenset({"property", "staticmethod", "classmethod", "dataclasses.dataclass", "abc.abstractmethod"})
"""Decorators that hand nothing on."""

EMBEDDING = "mlx.nn.Embedding"

FREE = frozenset({"staticmethod", "classmethod"})
"""Methods that take no object."""

PARTS = 2
"""A layer is made of so many modules at least: a list of convolutions is none of layers."""

FEW = 3
"""Files in a folder, without `__init__.py`, that say nothing of how another one there is used."""

PROCESSING = ("Processor", "ProcessorMixin", "FeatureExtractor", "Tokenizer")
"""How transformers calls the classes that prepare one input: what they hold runs before the model."""

ON_METAL = {
    ("mlx.core.metal.is_available", True): True,
    ("mlx.core.cuda.is_available", True): False,
    ("mlx.core.default_device", True): "gpu",
    ("mlx.core.gpu", False): "gpu",
    ("mlx.core.cpu", False): "cpu",
}
"""What MLX's names are on Apple's GPUs, called or not."""

OFTEN, SELDOM, NEVER = "often", "seldom", "never"


@dataclass(frozen=True, slots=True)
class Frequency:
    """How often: OFTEN, SELDOM (once for each pass of a model, or rarer) or NEVER. why: for those who ask. again: in a
    loop of the function itself. of_tokens: what runs seldom may be of a whole prompt, which its model embeds."""

    how: str = OFTEN
    why: str = ""
    again: bool = False
    of_tokens: bool = False


@dataclass(frozen=True, slots=True)
class _Edge:
    """A call from `by`; None where it is not known who calls. own: on `self`. again: inside a loop."""

    by: Definition | None
    again: bool = False
    own: bool = False
    passing: bool = False


WRAPPED = 2
"""Models around the one that embeds tokens, at most."""

UNKNOWN = _Edge(None)
ANY = Mention(MODULE, "", "", "call")
"""A call with any arguments."""


@dataclass(frozen=True, slots=True)
class Part:
    """What an object makes and keeps: in which attribute, whether it makes several, of which class by its qualified
    name, and its definition where that is in the package."""

    kept: str
    many: bool
    name: str
    made: Definition | None


class Frequencies:
    """The functions of a package. top: its folder. on_metal: as they run for inference on Apple's GPUs. beside: where
    they run otherwise, what names what is the same there."""

    def __init__(self, modules: Modules, top: str, on_metal: bool = False, beside: Frequencies | None = None) -> None:
        self.modules, self.top, self.on_metal = modules, top, on_metal
        self._known: Remembered[Definition, Frequency] = {}
        self._models: Remembered[Definition, bool] = {}
        self._many: Remembered[Definition, bool] = {}
        self._passing: Remembered[Definition, bool] = {}
        self._unused: Remembered[Definition, bool] = {}
        self._unmade: Remembered[tuple[Definition, int], bool] = {}
        self._mentioned: Remembered[Definition, Sequence[tuple[str, Mention]]] = (
            {} if beside is None else beside._mentioned
        )
        self._calls: Remembered[Definition, Sequence[tuple[str, Mention]]] = {}
        self._deciding = 0
        self._layered: Remembered[Definition, bool] = {}
        self._by_all: Remembered[tuple[Definition, str, int], object] = {}
        self._recall = modules.remembered
        self.stages = Stages(self)

    # -- answers ------------------------------------------------------------------------------------------------------

    def of(self, found: Definition) -> Frequency:
        """How often a function runs."""
        return self._recall(self._known, found, lambda: self._of(found))

    def at(self, found: Definition, first: int, *, beside_innermost: bool = False) -> Frequency:
        """How often lines of a function run, by the first: as often as it does, but for loops, handlers and branches
        inside it.

        beside_innermost: the innermost loop itself is what is looked at.
        """
        whole = self.of(found)
        held = self.modules.mentions(found.path)
        if whole.how == NEVER or held is None:
            return whole
        suites = held.suites.get(unit_of(found.name), Suites()).around(found.name, first)
        if suites.handlers:
            return Frequency(NEVER, "it stands where something failed")
        for _, test in suites.branches:
            if self.is_decided(found, test):
                return Frequency(NEVER, f"the package never makes `{ast.unparse(test[0])}` {_said(test[1])}")
        loops = suites.loops
        if beside_innermost:
            loops = sorted(loops, key=lambda loop: loop.last - loop.first)[1:]
        if any(self.repeats(found, loop) for loop in loops):
            return Frequency(OFTEN, "it stands in a loop", again=True)
        return whole

    def _of(self, found: Definition) -> Frequency:
        if is_unreleased(found.path, self.top):
            return Frequency(NEVER, "a test or benchmark")
        if self.is_unused(found):
            return Frequency(NEVER, "nothing in the package uses it")
        waiting, seen = [(found, False)], {(found, False)}
        ends: list[str] = []
        of_tokens = False
        while waiting:
            at, passed = waiting.pop()
            if len(seen) > MOST:
                return Frequency(OFTEN, "too many call it")
            owner = self.owner(at)
            if owner is not None:
                if self.is_many(owner):
                    return Frequency(OFTEN, f"there may be many objects of {owner.name}")
                passed = passed or self.is_model(owner)
                of_tokens = of_tokens or self._embeds(owner)
                if self._prepares(owner):
                    ends.append(f"{owner.name} prepares an input")
                    continue
            if self.makes_pass(at):
                ends.append(f"{at.name} calls a whole model")
                continue
            edges = list(self._edges(at, owner, passed))
            if passed and owner is not None:
                ends.append(f"{owner.name} is a model, and calls it once a pass" if at == found else at.name)
            elif not edges or any(e.by is None for e in edges):
                return Frequency(OFTEN, f"what calls {at.name} is not known")
            for edge in edges:
                if edge.passing:
                    ends.append("called beside each pass of a model")
                    continue
                if passed and (not edge.own or edge.by is None):
                    continue
                if edge.again:
                    return Frequency(OFTEN, f"a loop of {edge.by.name if edge.by else ''} calls {at.name}")
                if edge.by is not None and (edge.by, passed) not in seen:
                    seen.add((edge.by, passed))
                    waiting.append((edge.by, passed))
        return (
            Frequency(SELDOM, ends[0], of_tokens=of_tokens)
            if ends
            else Frequency(OFTEN, "nothing that calls it is a model")
        )

    def _embeds(self, owner: Definition, depth: int = 0) -> bool:
        """Whether a model embeds tokens, or one that it holds does."""
        held = list(self.parts(owner))
        return any(part.name == EMBEDDING for part in held) or (
            depth < WRAPPED and any(self._embeds(p.made, depth + 1) for p in held if p.made is not None and not p.many)
        )

    def is_of_layers(self, found: Definition) -> bool:
        """Whether objects of which there may be many call a function, as far as its callers are known."""
        return self._recall(self._layered, found, lambda: self._are_called_by_layers(found))

    def _are_called_by_layers(self, found: Definition) -> bool:
        if not self._is_package():
            return True
        waiting, seen = [(found, False)], {(found, False)}
        while waiting:
            at, passed = waiting.pop()
            owner = self.owner(at)
            if len(seen) > MOST_OUTSIDE or (owner is not None and self.is_many(owner)):
                return True
            if passed and owner is not None:
                continue
            whole = owner is not None and self.is_model(owner)
            for edge in self._edges(at, owner, False):
                # A pass of the model begins where others call it: what calls these in turn is no layer around it.
                new = None if edge.by is None else (edge.by, passed or (whole and not edge.own))
                if new is not None and new not in seen:
                    seen.add(new)
                    waiting.append(new)
        return False

    # -- classes ------------------------------------------------------------------------------------------------------

    def owner(self, found: Definition) -> Definition | None:
        """The class whose method a function is, or lies in."""
        summary, at = self.modules.summary(found.path), found.name
        while summary is not None and at in summary.functions:
            function = summary.functions[at]
            if function.class_name is not None:
                return Definition(found.path, function.class_name)
            at = function.span.outer or ""
        return None

    def _prepares(self, owner: Definition) -> bool:
        names = [owner.name]
        for at in self.modules.lineage(owner)[0]:
            held = self.modules.class_(at)
            if held is not None and held.is_module:
                return False
            names += held.bases if held is not None else ()
        return any(n.endswith(PROCESSING) for n in names)

    def parts(self, owner: Definition) -> Iterator[Part]:
        """What the methods of a class, or of its bases, make and keep."""
        for at in self.modules.lineage(owner)[0]:
            held, summary = self.modules.mentions(at.path), self.modules.summary(at.path)
            for method in summary.classes[at.name].methods.values() if held and summary else ():
                for m in held.by_function.get(method, ()) if held else ():
                    if m.role == "kept" and m.name[:1].isalpha() and m.name[:1].isupper() and summary is not None:
                        name = summary.resolve(m.text, m.by) or ""
                        yield Part(m.kept, bool(m.loops), name, self._class_of(at.path, name))

    def kept(self, owner: Definition, name: str, depth: int = 0) -> Iterator[Definition]:
        """The classes of the package that an attribute of an object may be of, as far as the text says."""
        for part in self.parts(owner):
            if part.kept == name and not part.many and part.made is not None:
                yield part.made
        for at in self.modules.lineage(owner)[0]:
            held = self.modules.mentions(at.path)
            for by, value in held.stored.get(name, ()) if held is not None else ():
                if not by.startswith(f"{at.name}."):
                    continue
                match value:
                    case ast.Name():
                        yield from self._stated(Definition(at.path, by), value.id)
                    case ast.Attribute(value=ast.Name(id=given)) if given != "self" and depth < DEEPEST:
                        for held_by in self._stated(Definition(at.path, by), given):
                            yield from self.kept(held_by, value.attr, depth + 1)

    def _stated(self, by: Definition, name: str) -> Iterator[Definition]:
        """The class that an annotation gives a parameter, or a call of the package."""
        function = self.modules.function(by)
        for index, p in enumerate(function.parameters if function is not None else ()):
            if p.name != name:
                continue
            found = self.modules.resolve(by.path, p.annotation.strip("\"'")) if p.annotation else None
            if found is not None and self.modules.class_(found) is not None:
                yield found
            if by.name.endswith(".__init__"):
                yield from self._given_objects(Definition(by.path, by.name.removesuffix(".__init__")), name, index - 1)

    def _given_objects(self, owner: Definition, name: str, index: int) -> Iterator[Definition]:
        """The classes of what a parameter is given where an object is made: `Sampler(Model(...))`, `Sampler(self)`."""
        for path, m in self.mentioned(owner):
            value = (m.given or {}).get(name, (m.given or {}).get(index))
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                found = self._class_named(path, Mention(m.by, value.func.id, value.func.id, "call"))
            else:
                is_self = isinstance(value, ast.Name) and value.id == "self"
                found = self.owner(Definition(path, m.by)) if is_self and m.by != MODULE else None
            if found is not None:
                yield found

    def _class_named(self, path: str, m: Mention) -> Definition | None:
        summary = self.modules.summary(path)
        name = summary.resolve(m.text, m.by) if summary is not None else None
        return self._class_of(path, name or "")

    def _class_of(self, path: str, name: str) -> Definition | None:
        found = self.modules.resolve(path, name) if name and not name.startswith("mlx.") else None
        return found if found is not None and self.modules.class_(found) is not None else None

    def is_model(self, owner: Definition) -> bool:
        """Whether a class keeps a list of layers, or an object that does."""
        return self._recall(self._models, owner, lambda: self._keeps_layers(owner), (False,))

    def _keeps_layers(self, owner: Definition) -> bool:
        layers = any(part.many and part.made != owner and self._is_layer(part) for part in self.parts(owner))
        return layers or self._is_around_another(owner) or any(self.is_model(made) for made in self._all_kept(owner))

    def _is_around_another(self, owner: Definition) -> bool:
        """Whether a class is what a package is loaded for, around a module of another package: a model whole.

        A layer of the package's own would be named by what has it.
        """
        held = self.modules.class_(owner)
        if held is None or not self._is_package():
            return False
        parts = [p.name for p in self.parts(owner) if p.made is None] if held.is_module else []
        if not any(map(self._is_of_another_package, (*parts, *held.bases))) or not self._is_entry(owner.path):
            return False
        named = (m for _, m in self.named(owner.name, {owner.path}) if m.text == owner.name)
        return not any(m.role not in PASSIVE | {"through"} and not m.by.startswith(f"{owner.name}.") for m in named)

    def _is_of_another_package(self, name: str) -> bool:
        head = name.partition(".")[0]
        return "." in name and head not in sys.stdlib_module_names | {"", "mlx", "numpy", os.path.basename(self.top)}

    def _all_kept(self, owner: Definition) -> Iterator[Definition]:
        for at in self.modules.lineage(owner)[0]:
            held = self.modules.mentions(at.path)
            names = held.stored if held is not None else {}
            for name, stores in names.items():
                if any(by.startswith(f"{at.name}.") for by, _ in stores):
                    yield from self.kept(owner, name)

    def _is_layer(self, part: Part) -> bool:
        """Whether a class is one of layers: of this package, one made of several modules; of another, none of MLX's."""
        if part.made is None:
            return "." in part.name and not part.name.startswith("mlx.")  # of another package, or not found
        return len({inner.kept for inner in self.parts(part.made)}) >= PARTS

    def is_many(self, owner: Definition) -> bool:
        """Whether a model has many objects of a class, or it can't be told."""
        return self._recall(self._many, owner, lambda: self._has_many(owner), (False,))

    def _has_many(self, owner: Definition) -> bool:
        for path, m in self.mentioned(owner):
            if m.role == "base":
                derived = Definition(path, m.inside)
                if derived != owner and self.is_many(derived):
                    return True
            elif m.role in PASSIVE or m.role in ("text", "through") or self._is_off(path, m):
                continue
            elif m.role == "named" or (m.loops and not self._is_main(m) and not self._is_made_once(path, m)):
                return True
            elif m.by != MODULE:
                by = Definition(path, m.by)
                holder = self.owner(by)
                if holder is None:
                    if self._is_called_again(by, whole=self.is_model(owner)):
                        return True
                elif holder != owner and self.is_many(holder):
                    return True
        return False

    def _is_made_once(self, path: str, m: Mention) -> bool:
        """Whether the loops around what makes an object have one round, by what the package gives for their number:
        `[Layer(d) for _ in range(n)]` of `n=1`."""
        by = Definition(path, m.by)
        return all(loop.rounds is not None and self._value(by, loop.rounds) == 1 for loop in m.loops)

    def _is_main(self, m: Mention) -> bool:
        return m.by == MODULE and m.role == "call"

    def _is_called_again(self, maker: Definition, whole: bool, depth: int = 0) -> bool:
        """Whether a function that makes objects may make many of them. whole: each is a model of its own, so that a
        loader which is handed on, or stands in a lambda, says nothing."""
        for path, m in self.mentioned(maker):
            if m.role in CALLS:
                if any(not (whole and loop.later) for loop in m.loops):
                    return True
                by = Definition(path, m.by)
                if m.by not in (MODULE, maker.name) and depth < 3 and self._is_called_again(by, whole, depth + 1):
                    return True
            elif m.role == "named" and not whole:
                return True
        return False

    # -- who reads a name ---------------------------------------------------------------------------------------------

    def mentioned(self, found: Definition) -> Sequence[tuple[str, Mention]]:
        """The places of the package, tests apart, that name a function of a module, or a class."""
        return self._recall(self._mentioned, found, lambda: list(self._mentions_of(found)))

    def _mentions_of(self, found: Definition) -> Iterator[tuple[str, Mention]]:
        last = found.name.rpartition(".")[2]
        importing = {found.path, *self.modules.users(found)}
        for path, m in self.named(last, self.reaching(found)):
            if path not in importing and m.role != "text" and not self._is_of_import(path, m):
                continue
            summary = self.modules.summary(path)
            if summary is None:
                continue
            if m.role in ELSEWHERE:
                if m.role == "text" or path == found.path:
                    yield path, m
                continue
            if m.text.startswith(("?.", "self.", "cls.", "super.")):
                continue
            name = m.text if m.role == "import" and path == found.path else summary.resolve(m.text, m.by)
            if m.role == "import" or (m.kept and m.role == "alias"):
                bound = m.kept or last
                name = summary.imports.get(bound) or summary.function_imports.get(m.by, {}).get(bound)
            if name and self.modules.resolve(path, name) == found:
                yield path, m
                if m.role == "alias" and m.kept:
                    yield from self._by_another_name(path, m.kept, found)

    def _is_of_import(self, path: str, m: Mention) -> bool:
        """Whether the head of a dotted name is imported."""
        head, dot, _ = m.text.partition(".")
        held = self.modules.mentions(path)
        named = held.by_name.get(head, ()) if dot and held is not None else ()
        return any(n.role == "import" for n in named) or (held is not None and bool(dot) and head in held.renamed)

    def _by_another_name(self, path: str, last: str, found: Definition) -> Iterator[tuple[str, Mention]]:
        """The places of a file that name what it imports under another name."""
        held, summary = self.modules.mentions(path), self.modules.summary(path)
        for m in held.by_name.get(last, ()) if held is not None and summary is not None else ():
            if m.text == last and m.role not in (*ELSEWHERE, "text", "import") and summary is not None:
                name = summary.resolve(last, m.by)
                if name and self.modules.resolve(path, name) == found:
                    yield path, m

    def reaching(self, found: Definition) -> set[str]:
        """The files that may name a definition: its own, those that import it, and those that import its module."""
        stem = PurePath(found.path).stem
        stem = PurePath(found.path).parent.name if stem == "__init__" else stem
        return {found.path, *self.modules.users(found), *self.modules.with_word(self.top, stem)}

    def named(self, last: str, among: set[str] | None = None) -> Iterator[tuple[str, Mention]]:
        """The places of the package, tests apart, whose name ends so."""
        for path in self.modules.with_word(self.top, last):
            if (among is not None and path not in among) or is_test(path, self.top):
                continue
            held = self.modules.mentions(path)
            yield from ((path, m) for m in (held.by_name.get(last, ()) if held is not None else ()))

    # -- callers ------------------------------------------------------------------------------------------------------

    def _edges(self, at: Definition, owner: Definition | None, passed: bool) -> Iterator[_Edge]:
        """Who calls a function. A class whose objects are handed on may be called by anyone.

        passed: a model was met on the way, so that only calls on `self` matter.
        """
        function = self.modules.function(at)
        if function is None:
            yield UNKNOWN
        elif "<locals>" in at.name and function.class_name is None:
            yield from self._local_edges(at)
        elif function.class_name is None:
            yield from self._plain_edges(at)
        elif owner is not None:
            name = at.name.rpartition(".")[2]
            if function.kind == "property" or self._decorated(function):
                yield UNKNOWN
            yield from self._method_edges(at, owner, name, passed)
            if name == "__call__" and not passed:
                yield from self._object_edges(owner)

    def _decorated(self, function: FunctionSummary) -> bool:
        return bool(set(function.decorators) - PLAIN - {"mlx.core.compile"})

    def _local_edges(self, at: Definition) -> Iterator[_Edge]:
        outer, _, name = at.name.rpartition(".<locals>.")
        held = self.modules.mentions(at.path)
        for m in held.by_name.get(name, ()) if held is not None else ():
            if m.by == outer or m.by.startswith(f"{outer}.<locals>."):
                yield self._edge(at.path, m, at)

    def _plain_edges(self, at: Definition) -> Iterator[_Edge]:
        for path, m in self.mentioned(at):
            if m.role not in PASSIVE - {"alias"} and m.by != at.name and not self._is_off(path, m):
                for call in self._by_local_name(path, m) or [m]:
                    yield self._edge(path, call, at)

    def _by_local_name(self, path: str, m: Mention) -> Sequence[Mention]:
        """The calls of a local name that is given a function, and only called: `mix = soft if smooth else hard`."""
        held = self.modules.mentions(path)
        bound = held.bound.get(m.by, {}) if held is not None and m.role == "named" and m.by != MODULE else {}
        for name, values in bound.items():
            if any(v is not None and _is_or_chooses(v, m) for v in values):
                uses = [u for u in held.by_function[m.by] if u.text == name] if held is not None else []
                return uses if all(u.role in CALLS for u in uses) else ()
        return ()

    def _edge(self, path: str, m: Mention, at: Definition, own: bool = False) -> _Edge:
        if m.role not in CALLS:
            return _Edge(None, own=own)
        if m.by == MODULE:
            return UNKNOWN
        by = Definition(path, m.by)
        repeated = any(self.repeats(by, loop) for loop in m.loops)
        return _Edge(by, repeated, own, not repeated and any(self.is_driving(by, loop) for loop in m.loops))

    def _method_edges(self, at: Definition, owner: Definition, name: str, passed: bool) -> Iterator[_Edge]:
        """The calls of a method, by its name: on `self`, only in its own class and those of its line."""
        among = self.reaching(owner) if passed or name == "__call__" else None
        for path, m in self.named(name, among):
            if m.role in PASSIVE or m.role == "base" or self._is_off(path, m):
                continue
            if m.text in (f"self.{name}", f"cls.{name}", f"super.{name}"):
                by = Definition(path, m.by)
                if by != at and self.is_of_line(self.owner(by), owner):
                    yield self._edge(path, m, at, own=True)
            elif m.role == "text":
                if name != "__call__":
                    yield UNKNOWN
            elif "." in m.text and name != "__call__" and not self._is_of_another(path, m, owner):
                yield self._edge(path, m, at)

    def _is_of_another(self, path: str, m: Mention, owner: Definition | None) -> bool:
        """Whether `mx.where`, `self.model.encode` is no method or attribute of the class."""
        summary, head = self.modules.summary(path), m.text.partition(".")[0]
        if summary is None or owner is None:
            return False
        if summary.resolve(head, m.by) is not None:
            found = summary.resolve(m.text, m.by) or ""
            return self.modules.resolve(path, found) != Definition(owner.path, f"{owner.name}.{m.name}")
        parts = m.text.split(".")
        if parts[0] == "self" and len(parts) == 3:
            around = self.owner(Definition(path, m.by))
            made = [p for p in self.parts(around) if p.kept == parts[1]] if around is not None else []
            return bool(made) and not any(p.made is None or self.is_of_line(p.made, owner) for p in made)
        return False

    def is_of_line(self, one: Definition | None, other: Definition) -> bool:
        """Whether one class derives from the other, or the other way round."""
        if one is None:
            return False
        return one == other or other in self.modules.lineage(one)[0] or one in self.modules.lineage(other)[0]

    def _object_edges(self, owner: Definition) -> Iterator[_Edge]:
        """Who calls the objects of a class, and of those that derive from it."""
        for path, m in self.mentioned(owner):
            if m.role == "base":
                derived = Definition(path, m.inside)
                held = self.modules.class_(derived)
                if derived != owner and held is not None and "__call__" not in held.methods:
                    yield from self._object_edges(derived)
            elif m.role in PASSIVE - {"alias"} or self._is_off(path, m):
                continue
            elif m.role != "kept" or m.by == MODULE:
                yield UNKNOWN
            else:
                yield from self._kept_edges(path, m)

    def _kept_edges(self, path: str, made: Mention) -> Iterator[_Edge]:
        """Who calls what is kept in an attribute: `self.kept(x)`, or `model.kept(x)` elsewhere."""
        found = False
        for at, m in self._reads_of_kept(path, made):
            if not self._is_off(at, m):
                found = True
                each = made.inside == "many" or (made.loops and self._is_made_once(path, made))
                for call in self._once_each(at, m) if each else [m]:
                    yield self._edge(at, call, Definition(path, made.by))
        if not found:
            yield UNKNOWN

    def _once_each(self, path: str, read: Mention) -> Iterator[Mention]:
        """The calls of one of several objects that are kept together, in a loop that goes through them: it is no loop
        for the one."""
        for _, m in self._calls_of_elements(path, read):
            inner = [loop for loop in m.loops if loop not in read.loops]
            yield m if m is ANY else replace(m, loops=(*read.loops, *inner[1:]))

    def _reads_of_kept(self, path: str, made: Mention) -> Iterator[tuple[str, Mention]]:
        """The places that read what is kept in an attribute: methods of that class, and others of the same file."""
        holder = self.owner(Definition(path, made.by))
        for at, m in self.named(made.kept, self.reaching(holder) if holder is not None else {path}):
            if m.role in PASSIVE or m.role in ("base", "through", "text") or "." not in m.text:
                continue
            if m.text == f"self.{made.kept}":
                if holder is not None and m.by != made.by and self.is_of_line(self.owner(Definition(at, m.by)), holder):
                    yield at, m
            elif at == path and not self._is_function(at, m) and not self._is_of_another(at, m, holder):
                yield at, m

    def _is_function(self, path: str, m: Mention) -> bool:
        summary = self.modules.summary(path)
        return summary is not None and summary.resolve(m.text, m.by) is not None

    def repeats(self, by: Definition, loop: Loop) -> bool:
        """Whether the rounds of a loop are more than one for each pass, or for each input of one."""
        return not loop.sizes and not self.is_driving(by, loop)

    # -- passes -------------------------------------------------------------------------------------------------------

    def is_driving(self, by: Definition, loop: Loop) -> bool:
        """Whether a loop calls a whole model in each round, as one that generates does: one round is a pass."""
        held = self.modules.mentions(by.path)
        for m in held.by_function.get(by.name, ()) if held is not None else ():
            if m.role in CALLS and loop in m.loops and self._passes(by, m):
                return True
        return False

    def _passes(self, by: Definition, m: Mention) -> bool:
        """Whether a call is a pass of a whole model."""
        owner = self.owner(by)
        parts = m.text.split(".")
        if owner is not None and m.text == "self":
            return self.is_model(owner) and not by.name.endswith(".__call__")
        if owner is not None and parts[0] == "self":
            holders = {owner}
            for part in parts[1:-1]:
                holders = {c for h in holders for c in self.kept(h, part)}
            return any(self._passes_by(by, h, parts[-1]) for h in holders)
        if len(parts) == 1:
            outer = by
            while "<locals>" in outer.name:
                outer = Definition(by.path, outer.name.rpartition(".<locals>.")[0])
            return any(self.is_model(c) for c in self._stated(outer, m.text))
        return False

    def _passes_by(self, by: Definition, holder: Definition, name: str) -> bool:
        """Whether `holder.name(...)` is a pass of a whole model: a method that makes one, or the model."""
        method = self.modules.method(holder, name)
        if method is not None:
            return method != by and self.makes_pass(method)
        return any(self.is_model(c) and not self.is_many(c) for c in self.kept(holder, name))

    def makes_pass(self, found: Definition) -> bool:
        """Whether a function calls a whole model, itself or in a loop of its own, so that it runs once a pass."""
        return self._recall(self._passing, found, lambda: self._calls_a_model(found), (False,))

    def _calls_a_model(self, found: Definition) -> bool:
        held = self.modules.mentions(found.path)
        return any(
            m.role in CALLS and self._passes(Definition(found.path, by), m)
            for by in (held.within.get(unit_of(found.name), ()) if held is not None else ())
            if by == found.name or by.startswith(f"{found.name}.<locals>.")
            for m in (held.by_function[by] if held is not None else ())
        )

    # -- what never runs ----------------------------------------------------------------------------------------------

    def is_unused(self, found: Definition) -> bool:
        """Whether nothing in a package of several files names a function or its class, but what is unused itself."""
        function = self.modules.function(found)
        if function is None or "<locals>" in found.name or not self._is_package():
            return False
        if function.class_name is None:
            return not self._decorated(function) and self._is_unnamed(found)
        owner = Definition(found.path, function.class_name)
        if "." in owner.name:
            return False
        unnamed = self._is_unnamed(owner) or self.is_never_made(owner)
        return unnamed or self._is_unnamed_method(found, owner, function)

    def is_never_made(self, owner: Definition) -> bool:
        """Whether the package makes objects of a class only in places that are never reached: `A if exact else B` where
        all calls give the same. What only asks whether something is one of them makes none."""
        key = (owner, self._deciding)  # as in _parameter
        return self._recall(self._unmade, key, lambda: self._is_made_by_none(owner), (False,))

    def _is_made_by_none(self, owner: Definition) -> bool:
        makes = [(path, m) for path, m in self.mentioned(owner) if m.role not in ("type", "import")]
        return (
            bool(makes)
            and all(m.role in CALLS | {"named"} and self._is_off(path, m) for path, m in makes)
            and not self._is_exported(owner)
            and not self._is_entry(owner.path)
        )

    def _is_unnamed_method(self, found: Definition, owner: Definition, function: FunctionSummary) -> bool:
        """Whether nothing but itself names a private method, or one that takes no object, and no base that isn't known
        may call it. Another method is for users who have an object."""
        name = found.name.rpartition(".")[2]
        if not self._is_of_package(owner, function, name) or self._decorated(function):
            return False
        others = ((path, m) for path, m in self.named(name) if path != found.path or m.by != found.name)
        named = any(self._may_name(found, owner, path, m) for path, m in others)
        return not named and self.modules.lineage(owner)[1]

    def _is_of_package(self, owner: Definition, function: FunctionSummary, name: str) -> bool:
        """Whether none but the package calls a method: a private one, or one that takes no object of a class that the
        package uses itself, and doesn't offer."""
        private = name.startswith("_") and not name.startswith("__")
        free = not name.startswith("_") and function.kind in FREE
        return private or (free and self._is_used_otherwise(owner))

    def _may_name(self, found: Definition, owner: Definition, path: str, m: Mention) -> bool:
        """Whether a place may speak of a method, and not of a function, or another class's method, of that name."""
        if m.role in ELSEWHERE:
            return True
        head, dot, _ = m.text.partition(".")
        if m.role == "import":
            return False
        if not dot:
            return path == found.path and m.by == MODULE  # in the class itself
        if head in ("self", "cls", "super"):
            around = self.owner(Definition(path, m.by)) if m.by != MODULE else None
            if around is None or m.text != f"{head}.{m.name}" or self.is_of_line(around, owner):
                return True
            return self.modules.method(around, m.name) is None
        summary = self.modules.summary(path)
        name = summary.resolve(m.text, m.by) if summary is not None else None
        if name is None:
            return True
        held = self.modules.resolve(path, name.rpartition(".")[0])
        if held is None:  # of another package, or a value of this one
            return name.startswith(".") or self.modules.module(name.partition(".")[0], path) is not None
        if held.name and self.modules.class_(held) is None:
            return True
        return bool(held.name) and self.modules.method(held, m.name) in (None, found)

    def _is_entry(self, path: str) -> bool:
        """Whether a file that no other imports may be loaded by its name, or be meant for users.

        Not so among files of which most are imported.
        """
        imported = self.modules.imported(self.top)
        if path in imported:
            return False
        self.modules.note(f"{FILES}{self.top}")
        beside = [p for p in python_files(self.top) if os.path.dirname(p) == os.path.dirname(path) and p != path]
        beside = [p for p in beside if not p.endswith("__init__.py")]
        return len(beside) < FEW or 2 * sum(p in imported for p in beside) <= len(beside)

    def _is_used_otherwise(self, owner: Definition) -> bool:
        """Whether the package uses a class of its own, and doesn't offer it."""
        used = any(m.role not in PASSIVE for _, m in self.mentioned(owner))
        return used and not self._is_entry(owner.path) and not self._is_exported(owner)

    def _is_exported(self, owner: Definition) -> bool:
        """Whether a package says that a name of one of its files is for others, or looks one up by a text."""
        return any(
            m.role in ("exported", "text", "string") or (m.role in ("import", "alias") and path.endswith("__init__.py"))
            for path, m in self.named(owner.name)
        )

    def _is_package(self) -> bool:
        return os.path.isfile(os.path.join(self.top, "__init__.py"))

    def _is_unnamed(self, found: Definition) -> bool:
        return self._recall(self._unused, found, lambda: self._is_named_by_none(found), (False,))

    def _is_named_by_none(self, found: Definition) -> bool:
        named = self._is_imported(found) or not all(self._is_its_own(found, path, m) for path, m in self._naming(found))
        return not named and not self._is_entry(found.path)

    def _is_imported(self, found: Definition) -> bool:
        return any(not is_test(p, self.top) and self._takes(p, found) for p in self.modules.users(found))

    def _takes(self, path: str, found: Definition) -> bool:
        """Whether a file imports a name itself, or all of those that a file offers."""
        held, last = self.modules.mentions(path), found.name
        if held is None:
            return True
        if any(m.role == "import" for m in held.by_name.get(last, ())):
            return True
        return bool(held.by_name.get("*")) and not last.startswith("_")

    def _naming(self, found: Definition) -> Iterator[tuple[str, Mention]]:
        """What may speak of a name of this file: its own names, attributes and texts that something is looked up by
        anywhere, and other texts of files that may name it."""
        reaching = self.reaching(found)
        for path, m in self.named(found.name):
            if path == found.path:
                if m.text.partition(".")[0] not in ("self", "super"):
                    yield path, m
            elif m.role == "string":
                if path in reaching or os.path.dirname(path) == os.path.dirname(found.path):
                    yield path, m
            elif m.role == "text" or ("." in m.text and m.role != "import" and self._may_be(found, path, m)):
                yield path, m

    def _may_be(self, found: Definition, path: str, m: Mention) -> bool:
        """Whether `a.name` is that of a module which nobody knows, or of the one that has it."""
        head, summary = m.text.partition(".")[0], self.modules.summary(path)
        if head in ("self", "cls", "super") or summary is None:
            return False
        name = summary.resolve(m.text, m.by)
        return name is None or self.modules.resolve(path, name) == found

    def _is_its_own(self, found: Definition, path: str, m: Mention) -> bool:
        """Whether the place that names it is part of it, or never runs itself."""
        if path != found.path or m.by == MODULE:
            return m.role == "base" and path == found.path and self._is_unnamed(Definition(path, m.inside))
        if m.by == found.name or m.by.startswith(f"{found.name}."):
            return True
        if self._is_off(path, m):
            return True
        by = Definition(path, m.by.partition(".")[0])
        return self._is_unnamed(by)

    # -- branches -----------------------------------------------------------------------------------------------------

    def _is_off(self, path: str, m: Mention) -> bool:
        """Whether a place is never reached, as far as the constants say that the package gives."""
        return m.by != MODULE and any(self.is_decided(Definition(path, m.by), test) for test in m.tests)

    def is_decided(self, by: Definition, test: Test) -> bool:
        """Whether the condition of a branch is always the other way."""
        if self._deciding > DEEPEST:
            return False
        self._deciding += 1
        try:
            holds = outcome(test[0], partial(self._value, by))
        finally:
            self._deciding -= 1
        return holds is not None and holds is not test[1]

    def _value(self, by: Definition, node: ast.expr) -> object:
        """The constant that an expression always is, or MISSING."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                found = self._parameter(by, node)
                return self._local(by, node) if found is MISSING else found
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not()) | ast.Compare():
                holds = outcome(node, partial(self._value, by))
                return MISSING if holds is None else holds
            case ast.Attribute(attr="training") if self.on_metal and dotted(node) is not None:
                return False  # the attribute of MLX's modules
            case ast.Attribute(value=ast.Name(id="self")):
                return self._attribute(by, node.attr)
            case ast.Attribute(value=ast.Name(id=given)):
                found = self._field(set(self._stated(by, given)), node.attr)
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=kept)):
                owner = self.owner(by)
                found = self._field(set(self.kept(owner, kept)) if owner is not None else set(), node.attr)
            case _:
                found = MISSING
        if found is not MISSING:
            return found
        return self._device(by, node) if self.on_metal else MISSING

    def _device(self, by: Definition, node: ast.expr) -> object:
        """What MLX says of the device."""
        called = node.func if isinstance(node, ast.Call) else node
        summary, name = self.modules.summary(by.path), dotted(called)
        found = summary.resolve(name, by.name) if summary is not None and name is not None else None
        return ON_METAL.get((found or "", called is not node), MISSING)

    def _local(self, by: Definition, read: ast.Name) -> object:
        """What a name is that a function assigns once, before it is read."""
        held, function = self.modules.mentions(by.path), self.modules.function(by)
        bound = held.bound.get(by.name, {}).get(read.id, []) if held is not None else []
        if len(bound) != 1 or bound[0] is None or bound[0].lineno >= read.lineno or self._deciding > DEEPEST:
            return MISSING
        if function is None or any(p.name == read.id for p in function.parameters):
            return MISSING
        self._deciding += 1
        try:
            return self._value(by, bound[0])
        finally:
            self._deciding -= 1

    def _attribute(self, by: Definition, name: str) -> object:
        """What `__init__` sets an attribute to from a parameter, where nothing else does."""
        owner, held = self.owner(by), self.modules.mentions(by.path)
        if owner is None or held is None or len(self.modules.lineage(owner)[0]) > 1:
            return MISSING
        stored = [(at, value) for at, value in held.stored.get(name, ()) if value is None or at.startswith(owner.name)]
        if len(stored) != 1 or stored[0][0] != f"{owner.name}.__init__" or stored[0][1] is None:
            return MISSING
        return self._value(Definition(by.path, stored[0][0]), stored[0][1])

    def _field(self, held: set[Definition], name: str) -> object:
        """What a field of a dataclass is in all objects that the package makes of it, each by a call that says what it
        gives, and by no file that may give anything."""
        owner = next(iter(held)) if len(held) == 1 else None
        found = self.modules.class_(owner) if owner is not None else None
        if owner is None or found is None or not found.is_dataclass or name not in found.fields or found.bases:
            return MISSING
        if self._is_set_elsewhere(owner, name) or any(m.role in CALLS for _, m in self.named("cls", {owner.path})):
            return MISSING
        calls = self._used(self._all_calls(self.mentioned(owner)))
        index = list(found.fields).index(name)
        default = found.fields[name].default
        return _common([self._given_at(p, m, name, index, default) for p, m in calls])

    def _is_set_elsewhere(self, owner: Definition, name: str) -> bool:
        """Whether anything may assign an attribute of an object that exists."""
        for path in self.modules.with_word(self.top, name):
            held = self.modules.mentions(path)
            for by, value in held.stored.get(name, ()) if held is not None else ():
                if value is None or (path == owner.path and by.startswith(f"{owner.name}.")):
                    return True
            if held is not None and any(name in (m.given or {}) for m in held.by_name.get("replace", ())):
                return True  # dataclasses.replace(config, name=...)
            named = held.by_name.get(name, ()) if held is not None and "setattr" in held.by_name else ()
            if any(m.role in ("string", "text") for m in named):
                return True
        return False

    def _parameter(self, by: Definition, read: ast.Name) -> object:
        """What all calls in the package give a parameter. Of what others may call too, nothing is known."""
        name = read.id
        function = self.modules.function(by)
        held = self.modules.mentions(by.path)
        if function is None or held is None:
            return MISSING
        before = [tests for line, tests in held.assigned.get(by.name, {}).get(name, ()) if line < read.lineno]
        if not all(before):
            return MISSING
        index = next((i for i, p in enumerate(function.parameters) if p.name == name), None)
        if index is None or function.parameters[index].kind in ("*", "**"):
            return MISSING
        if by.name.endswith(".__call__") and not function.parameters[index].has_default:
            return MISSING  # an array: objects are called with it
        key = (by, name, self._deciding)  # what is found depends on how deep it may still be looked for
        given = self._recall(self._by_all, key, lambda: self._given_by_all(by, function, index))
        return given if given is MISSING or all(self._is_barred(by, t, name, given) for t in before) else MISSING

    def _is_barred(self, by: Definition, tests: Sequence[Test], name: str, given: object) -> bool:
        """Whether a place, which tests decide of, is never reached as long as a name is what it is given."""

        def value(node: ast.expr) -> object:
            return given if isinstance(node, ast.Name) and node.id == name else self._value(by, node)

        return any(outcome(test, value) is (not wanted) for test, wanted in tests)

    def _given_by_all(self, by: Definition, function: FunctionSummary, index: int) -> object:
        """What all calls that are reached give a parameter."""
        name = function.parameters[index].name
        others = [(path, m) for path, m in self._calls_of(by, function) if not _hands_on(by, name, path, m)]
        calls = self._used([(path, m) for path, m in others if not self._is_off(path, m)])
        shift = 1 if function.class_name is not None and function.kind != "staticmethod" else 0
        return _common([self._given(path, m, function, index, shift) for path, m in calls])

    def _used(self, calls: Sequence[tuple[str, Mention]]) -> Sequence[tuple[str, Mention]]:
        """Without those in functions that nothing uses; all where there are no others."""
        used = [(path, m) for path, m in calls if m.by == MODULE or not self.is_unused(Definition(path, m.by))]
        return used or calls

    def _given(self, path: str, m: Mention, function: FunctionSummary, index: int, shift: int) -> object:
        parameter = function.parameters[index]
        at = index - shift if parameter.kind != "keyword" else None
        return self._given_at(path, m, parameter.name, at, parameter.default if parameter.has_default else MISSING)

    def _given_at(self, path: str, m: Mention, name: str, index: int | None, default: object) -> object:
        """What a call gives for a name, or by its position."""
        if m.given is None or self._deciding > DEEPEST:
            return MISSING
        node = m.given.get(name, m.given.get(index) if index is not None else None)
        if node is None:
            return default
        self._deciding += 1
        try:
            return self._value(Definition(path, m.by), node) if m.by != MODULE else MISSING
        finally:
            self._deciding -= 1

    def _calls_of(self, by: Definition, function: FunctionSummary) -> Sequence[tuple[str, Mention]]:
        """All calls of a function, or of a class for its `__init__`; none where some aren't known."""
        return self._recall(self._calls, by, lambda: self._all_calls_of(by, function))

    def _all_calls_of(self, by: Definition, function: FunctionSummary) -> Sequence[tuple[str, Mention]]:
        if "<locals>" in by.name or self._decorated(function):
            return ()
        name = by.name.rpartition(".")[2]
        if function.class_name is None:
            found = self.mentioned(by)
        elif name == "__init__":
            owner = Definition(by.path, function.class_name)
            makes = self._makes_itself(owner)
            found = [(path, m) for path, m in self.mentioned(owner) if m.role != "through" or makes]
        else:
            return self._calls_of_method(by, function, name)
        return self._all_calls([(p, call) for p, m in found for call in self._by_local_name(p, m) or [m]])

    def is_given_otherwise(self, owner: Definition, name: str) -> bool:
        """Whether a place of the package that makes objects of a class may give an argument that isn't its default."""
        init = self.modules.method(owner, "__init__")
        function = self.modules.function(init) if init is not None else None
        names = [p.name for p in function.parameters] if function is not None else []
        if function is None or name not in names:
            return False
        index, default = names.index(name), function.parameters[names.index(name)].default
        calls = [(path, m) for path, m in self.mentioned(owner) if m.role in CALLS and not self._is_off(path, m)]
        return any(self._given(path, m, function, index, 1) != default for path, m in self._used(calls))

    def _makes_itself(self, owner: Definition) -> bool:
        """Whether `Class.method(...)` may make an object of the class."""
        lineage, complete = self.modules.lineage(owner)
        among = {at.path for at in lineage}
        called = any(
            m.role in CALLS and (m.by == MODULE or self.is_of_line(self.owner(Definition(path, m.by)), owner))
            for path, m in self.named("cls", among)
        )
        return called or not complete or any(m.text == f"{owner.name}.__init__" for _, m in self.named("__init__"))

    def _all_calls(self, found: Sequence[tuple[str, Mention]]) -> Sequence[tuple[str, Mention]]:
        """The calls among the places that name a function or class; none where others may call it too."""
        exported = any(m.role in ("text", "named", "alias", "base", "through") for _, m in found)
        top = os.path.join(self.top, "__init__.py")
        return (
            () if exported or any(path == top for path, _ in found) else [(p, m) for p, m in found if m.role in CALLS]
        )

    def _calls_of_method(self, by: Definition, function: FunctionSummary, name: str) -> Sequence[tuple[str, Mention]]:
        """The calls of a private method on `self`, and of objects that are kept where they are made."""
        if name == "__call__":
            owner = Definition(by.path, function.class_name or "")
            found = self.mentioned(owner)
            if all(self._makes_nothing(owner, path, m) for path, m in found):
                return list(self._calls_by_itself(owner))
            return list(self._calls_of_objects(owner)) if self._all_calls(found) else ()
        owner = Definition(by.path, function.class_name or "")
        if not self._is_of_package(owner, function, name):
            return ()
        named = [(path, m) for path, m in self.named(name) if self._may_name(by, owner, path, m)]
        return named if all(self._is_own_call(by, function, path, m) for path, m in named) else ()

    def _is_own_call(self, by: Definition, function: FunctionSummary, path: str, m: Mention) -> bool:
        """Whether a place calls a method on `self`, or one that takes no object on its class."""
        head, _, rest = m.text.partition(".")
        if m.role not in CALLS or m.by == MODULE:
            return False
        if rest == m.name and (head in ("self", "super") or self._is_object(Definition(path, m.by), head)):
            return True
        summary = self.modules.summary(path)
        name = summary.resolve(m.text, m.by) if summary is not None else None
        called = (rest == m.name and head == "cls") or (name is not None and self.modules.resolve(path, name) == by)
        return function.kind in FREE and called

    def _is_object(self, by: Definition, name: str) -> bool:
        """Whether a local name of a function is the result of a call, and so no class: `new = cls.__new__(cls)`."""
        held = self.modules.mentions(by.path)
        bound = held.bound.get(by.name, {}).get(name, []) if held is not None else []
        return bool(bound) and all(isinstance(value, ast.Call) for value in bound)

    def _makes_nothing(self, owner: Definition, path: str, m: Mention) -> bool:
        """Whether a place that names a class neither makes an object nor is given one from elsewhere."""
        own = m.role == "type" and self._around(path, m) == owner
        return own or m.role in PASSIVE - {"type", "alias"}

    def _around(self, path: str, m: Mention) -> Definition | None:
        """The class in whose method a name stands, also in its header: `def __init__(self, block=Block)`."""
        if m.by != MODULE:
            return self.owner(Definition(path, m.by))
        file, summary = self.modules.file(path), self.modules.summary(path)
        for name, f in summary.functions.items() if file is not None and summary is not None else ():
            if file is not None and f.span.line <= m.line <= file.position(f.span.end)[0]:
                return self.owner(Definition(path, name))
        return None

    def _calls_by_itself(self, owner: Definition) -> Iterator[tuple[str, Mention]]:
        """`self(x)`: how a model runs that is loaded by its name, and has its own loop."""
        held = self.modules.mentions(owner.path)
        for m in held.by_name.get("self", ()) if held is not None else ():
            if m.role in CALLS and m.text == "self" and self.owner(Definition(owner.path, m.by)) == owner:
                yield owner.path, m

    def _calls_of_objects(self, owner: Definition) -> Iterator[tuple[str, Mention]]:
        """The calls `self.kept(x)` of all objects of a class, or of each in a loop through several, and a call of
        which nothing is known where there may be others."""
        for path, m in self.mentioned(owner):
            if m.role in PASSIVE:
                continue
            reads = list(self._reads_of_kept(path, m)) if m.role == "kept" and m.by != MODULE else []
            if m.loops or m.inside == "many":
                yield from (call for read in reads or [(path, ANY)] for call in self._calls_of_elements(*read))
            else:
                yield from ((at, read if read.role in CALLS else ANY) for at, read in reads or [(path, ANY)])

    def _calls_of_elements(self, path: str, read: Mention) -> Iterator[tuple[str, Mention]]:
        """The calls of the elements that the loop at `self.kept` goes through."""
        held = self.modules.mentions(path)
        loops = held.elements.get(read.name, ()) if held is not None and read.text == f"self.{read.name}" else ()
        named = [name for by, name, line in loops if (by, line) == (read.by, read.line)]
        uses = [m for m in held.by_function.get(read.by, ()) if m.text in named] if held is not None else []
        if not uses:
            yield path, ANY
        yield from ((path, m if m.role in CALLS else ANY) for m in uses if m.role != "type")


def _common(values: Sequence[object]) -> object:
    """The constant that all of them are, or MISSING."""
    first = values[0] if values else MISSING
    same = all(type(v) is type(first) and v == first for v in values)
    return first if same and MISSING not in values else MISSING


def _is_or_chooses(value: ast.expr, m: Mention) -> bool:
    """Whether an expression is what a mention names, or that or another."""
    if isinstance(value, ast.IfExp):
        return _is_or_chooses(value.body, m) or _is_or_chooses(value.orelse, m)
    return isinstance(value, ast.Name) and (value.id, value.lineno) == (m.text, m.line)


def _hands_on(by: Definition, name: str, path: str, m: Mention) -> bool:
    """Whether a function calls itself, and gives a parameter what it was given."""
    given = (m.given or {}).get(name)
    return Definition(path, m.by) == by and isinstance(given, ast.Name) and given.id == name


def _said(outcome: bool) -> str:
    return "true" if outcome else "false"
