"""What a module says about its names: imports, classes, functions, constants. One summary a file.

Summaries are plain data that crosses processes, and are made of the standard library's syntax tree only: also files
without MLX work have one, since they hold the helpers and configurations of those that have.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fuselint.source.spans import FunctionSpan
from fuselint.source.text import FileText

MODULE = "<module>"
"""The qualname that stands for module-level code."""


def unit_of(qualname: str) -> str:
    """The name of the module, the class or the method that a qualname lies in: what stands in a function is of that."""
    return qualname.partition(".<locals>.")[0]


ANY_STAR = "*."
"""Stands before a name that one of several `from m import *` may have bound."""


class Missing:
    """The type of MISSING: no value, where None would be one."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = Missing()

MOST_BITS = 1023
"""Of a whole number. A longer one may be no float, and numbers that are multiplied again and again have no end."""


def is_wanted(number: Any) -> bool:
    """Whether it is worth knowing a number."""
    return not isinstance(number, complex) and not (isinstance(number, int) and number.bit_length() > MOST_BITS)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. kind: "positional" (only), "plain", "keyword" (only), "*" or "**".

    annotation: dotted names are qualified ("mlx.core.array"), anything else is text. default: a literal, or MISSING.
    """

    name: str
    kind: str = "plain"
    annotation: str | None = None
    default: Any = MISSING
    has_default: bool = False


@dataclass(frozen=True, slots=True)
class FunctionSummary:
    """A function. kind: "function", "method", "staticmethod", "classmethod", "property" or "lambda".

    decorators: qualified dotted names of them, "" for one that has none; of a call, that of what is called.
    local: the names that it binds itself, but for imports and inner functions that are bound in one way only.
    """

    span: FunctionSpan
    kind: str
    parameters: tuple[Parameter, ...] = ()
    decorators: tuple[str, ...] = ()
    returns: str | None = None
    is_async: bool = False
    is_generator: bool = False
    local: frozenset[str] = frozenset()
    redefined: bool = False  # the file defines this qualname more than once

    @property
    def qualname(self) -> str:
        return self.span.qualname

    @property
    def class_name(self) -> str | None:
        return self.span.class_name


@dataclass(frozen=True, slots=True)
class Field:
    """A class-level name with an annotation or a literal value: a dataclass field, or a class attribute.

    factory: the class, qualified, of which its default is a new instance. dtype: the one of MLX that its default is.
    """

    annotation: str | None = None
    default: Any = MISSING
    line: int = 0
    factory: str = ""
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """A class. bases: qualified names; those of this file are their qualnames. methods: name -> qualname.

    attributes: of each attribute that `__init__` sets from a call of a class, that class, qualified. A list or dict
    display, or a comprehension, of such calls counts as its elements' class, with "[]" behind it.
    reassigned: the attributes that other methods than `__init__` assign.
    """

    name: str
    line: int
    bases: tuple[str, ...] = ()
    methods: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Field] = field(default_factory=dict)
    is_module: bool = False
    is_dataclass: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    reassigned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CompileInfo:
    """Why a function runs inside mx.compile. how: "decorated", "wrapped", or "called" (from compiled ones only).

    rebound: of a wrapped one, whether its own name became that of the compiled one. elsewhere: the place in another
    file, or further out in this one, from where it is called.
    """

    how: str
    shapeless: bool = False
    line: int = 0
    by: str = ""
    rebound: bool = False
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Compilation:
    """A place that compiles: a decorator (how "decorator") or a call of mx.compile (how "call").

    by: the function where it stands. target: the function of this file that is compiled, where known.
    inputs, outputs: what captures the state: "" for no such argument, "random" where the random state is part of it,
    "other" where it is known not to be, else "unknown". direct: by mx.compile or a partial of it, not through a
    function that compiles.
    """

    how: str
    by: str
    line: int
    target: str | None = None
    shapeless: bool = False
    inputs: str = ""
    outputs: str = ""
    direct: bool = True


@dataclass(frozen=True)
class ConstantArray:
    """An array that a module makes of literals: its shape, and the name of its dtype."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class ModuleSummary:
    """What is known of a file without looking into the data flow of its functions.

    imports: module-level names that stand for something of another module, aliases such as `sdpa = mx.fast.rope`
        included. function_imports: the same for names that a function binds, by its qualname.
    functions, classes: by qualname, nested ones too. constants: module-level literals that are never rebound.
    arrays: those that are made of literals, likewise.
    compiled: functions that only run inside mx.compile. partly: those that do so in one place of the package and
    not in another, with both places. compilations: every place that compiles.
    cold: why a function is not on the hot path. hot: those that the user says are.
    calls, references: which functions of this file each function (or MODULE) calls, and which it otherwise names.
    attribute_reads, names: how often an attribute, or any name, is read in the file; a string that spells one counts.
    bound: all module-level names. unclear: those that are bound in several ways: they resolve to nothing.
    stars: the modules of `from m import *`. exported: the names in `__all__`, where it is one literal list.
    lines: where constants and arrays are bound.
    """

    path: str
    imports: Mapping[str, str] = field(default_factory=dict)
    function_imports: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    functions: Mapping[str, FunctionSummary] = field(default_factory=dict)
    classes: Mapping[str, ClassSummary] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, ConstantArray] = field(default_factory=dict)
    compiled: Mapping[str, CompileInfo] = field(default_factory=dict)
    partly: Mapping[str, str] = field(default_factory=dict)
    compilations: tuple[Compilation, ...] = ()
    calls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cold: Mapping[str, str] = field(default_factory=dict)
    hot: frozenset[str] = frozenset()
    attribute_reads: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, int] = field(default_factory=dict)
    references: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bound: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()
    stars: tuple[str, ...] = ()
    exported: tuple[str, ...] | None = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def resolve(self, name: str, scope: str = MODULE) -> str | None:
        """The qualified name of a dotted name as the function `scope` reads it, or None.

        A name that the scope, or a function around it, binds itself (a parameter, a local variable) is None. A
        function or class of this file is its qualname.
        """
        head, dot, rest = name.partition(".")
        target = self._head(head, scope)
        return None if target is None else normalise(target + dot + rest)

    def _head(self, head: str, scope: str) -> str | None:
        at: str | None = scope if scope in self.functions else None
        while at is not None:
            found = self.function_imports.get(at, {}).get(head)
            if found is not None:
                return found
            if head in self.functions[at].local:
                return None
            inner = f"{at}.<locals>.{head}"
            if inner in self.functions or inner in self.classes:
                return inner
            at = self.functions[at].span.outer
        if head in self.imports:
            return self.imports[head]
        if head in self.bound:
            return head if head not in self.unclear and (head in self.classes or head in self.functions) else None
        return self._starred(head)

    def _starred(self, name: str) -> str | None:
        """What a name stands for that nothing but `from mlx.core import *`, or of a module nearby, can have bound."""
        if not self.stars:
            return None
        ours = len(self.stars) == 1 and self.stars[0].partition(".")[0] == "mlx"
        if hasattr(builtins, name) and not (ours and name in _ALSO_OF_MLX):
            return None
        return f"{self.stars[0]}.{name}" if ours else f"{ANY_STAR}{name}"

    def method(self, class_name: str, name: str) -> str | None:
        """The qualname of a method, looked up in the class and in its bases of this file."""
        found = (self.classes[c].methods.get(name) for c in self.lineage(class_name) if c in self.classes)
        return next(filter(None, found), None)

    def attribute(self, class_name: str, name: str) -> str:
        """The class that an attribute of an instance is an instance of, "" if not known."""
        found = (self.classes[c].attributes.get(name) for c in self.lineage(class_name) if c in self.classes)
        return next(filter(None, found), "")

    def lineage(self, class_name: str) -> tuple[str, ...]:
        """The class and all its known bases, nearest first; those of other modules by their qualified names."""
        if class_name not in self._lineages:
            found = dict.fromkeys([class_name])
            queue = [class_name]
            for at in queue:
                bases = self.classes[at].bases if at in self.classes else ()
                queue += [b for b in bases if b not in found]
                found.update(dict.fromkeys(bases))
            self._lineages[class_name] = tuple(found)
        return self._lineages[class_name]

    @cached_property
    def _lineages(self) -> dict[str, tuple[str, ...]]:
        return {}

    def defined(self, qualified: str) -> bool:
        """Whether a qualified name is a function or class of this file."""
        return qualified in self.functions or qualified in self.classes


def normalise(qualified: str) -> str:
    """One name for what MLX offers under several: `mlx.nn.layers.activations.silu` is `mlx.nn.silu`."""
    if qualified.startswith("mlx.nn.layers."):
        parts = qualified.split(".")
        if len(parts) == 4:  # a module of layers, or what mlx.nn.layers itself offers
            return qualified if parts[3] in _LAYER_MODULES else f"mlx.nn.{parts[3]}"
        if parts[3] in _LAYER_MODULES:
            return ".".join(["mlx", "nn", *parts[4:]])
    return qualified


_LAYER_MODULES = frozenset(
    [
        "activations",
        "base",
        "containers",
        "convolution",
        "convolution_transpose",
        "distributed",
        "dropout",
        "embedding",
        "linear",
        "normalization",
        "pooling",
        "positional_encoding",
        "quantized",
        "recurrent",
        "transformer",
        "upsample",
    ]
)


_ALSO_OF_MLX = frozenset(["abs", "all", "any", "compile", "divmod", "eval", "max", "min", "pow", "round", "sum"])
"""Names of Python's own functions that mlx.core has too."""


def summarise(file: FileText, tree: ast.Module) -> ModuleSummary:
    """The summary of a file."""
    from fuselint.source.summarise import scoped, summary

    return summary(file.path, scoped(file, tree))
