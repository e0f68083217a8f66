"""A file's summary, and its links, that tell what of them is read: a result rests on that, and on nothing else of the
file.

What it says is told by the *unit* that it speaks of (`project.unit_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeVar

from fuselint.source.links import Call, Expr, Links, Site
from fuselint.source.project import Compilation, ModuleSummary, unit_of

V = TypeVar("V")

MAPS = (
    "imports",
    "function_imports",
    "functions",
    "classes",
    "constants",
    "arrays",
    "compiled",
    "partly",
    "calls",
    "cold",
    "references",
    "lines",
)
SETS = ("hot", "bound", "unclear")
REST = ("compilations", "stars", "exported")
"""The fields of a summary: by name, sets of names, and what is read as a whole."""

EVERY, KEYS = "*", "?"
"""How the units begin that stand for a whole field, and for its keys."""

COUNTS, COUNT = ("attribute_reads", "names"), "#"
"""The fields that count what is read in the file, which are told apart from what the names stand for, and how their
units begin."""

PRESENT = "-"
"""The unit that stands for there being a summary at all."""


class PartOfSummary(Mapping[str, V]):
    """A field of a summary by name."""

    __slots__ = ("_held", "_name", "_tell")

    def __init__(self, name: str, held: Mapping[str, V], tell: Callable[[str], None]) -> None:
        self._name, self._held, self._tell = name, held, tell

    def __getitem__(self, key: str) -> V:
        self._tell(key)
        return self._held[key]

    def get(self, key: str, default: Any = None) -> Any:
        self._tell(key)
        return self._held.get(key, default)

    def __contains__(self, key: object) -> bool:
        self._tell(str(key))
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        self._tell(f"{KEYS}{self._name}")
        return iter(self._held)

    def keys(self) -> Any:
        self._tell(f"{KEYS}{self._name}")
        return self._held.keys()

    def items(self) -> Any:
        self._tell(f"{EVERY}{self._name}")
        return self._held.items()

    def values(self) -> Any:
        self._tell(f"{EVERY}{self._name}")
        return self._held.values()

    def __len__(self) -> int:
        self._tell(f"{KEYS}{self._name}")
        return len(self._held)


class NamesOfSummary(Set[str]):
    """A field of a summary that is a set of names."""

    __slots__ = ("_held", "_name", "_tell")

    def __init__(self, name: str, held: frozenset[str], tell: Callable[[str], None]) -> None:
        self._name, self._held, self._tell = name, held, tell

    def __contains__(self, key: object) -> bool:
        self._tell(str(key))
        return key in self._held

    def __iter__(self) -> Iterator[str]:
        self._tell(f"{EVERY}{self._name}")
        return iter(self._held)

    def __len__(self) -> int:
        self._tell(f"{EVERY}{self._name}")
        return len(self._held)


class WatchedSummary(ModuleSummary):
    """A summary, of which `tell` is told the units that are read. plain: the summary itself."""

    plain: ModuleSummary

    def __init__(self, plain: ModuleSummary, tell: Callable[[str], None]) -> None:
        held: dict[str, Any] = {"path": plain.path, "plain": plain, "_tell": tell}
        held.update((name, PartOfSummary(name, getattr(plain, name), tell)) for name in MAPS)
        for name in COUNTS:
            held[name] = PartOfSummary(name, getattr(plain, name), lambda key: tell(f"{COUNT}{key}"))
        held.update((name, NamesOfSummary(name, getattr(plain, name), tell)) for name in SETS)
        self.__dict__.update(held)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> Any:
        return plain_of, (self.plain,)

    def _rest(self, name: str) -> Any:
        self.__dict__["_tell"](f"{EVERY}{name}")
        return getattr(self.plain, name)

    @property
    def compilations(self) -> tuple[Compilation, ...]:
        found: tuple[Compilation, ...] = self._rest("compilations")
        return found

    @property
    def stars(self) -> tuple[str, ...]:
        found: tuple[str, ...] = self._rest("stars")
        return found

    @property
    def exported(self) -> tuple[str, ...] | None:
        found: tuple[str, ...] | None = self._rest("exported")
        return found

    def lineage(self, class_name: str) -> tuple[str, ...]:
        found = self.plain.lineage(class_name)
        tell = self.__dict__["_tell"]
        for name in found:
            tell(name)
        return found


def plain_of(summary: ModuleSummary) -> ModuleSummary:
    """A summary that tells nobody."""
    return summary.plain if isinstance(summary, WatchedSummary) else summary


# -- links ------------------------------------------------------------------------------------------------------------

SITES = "+"
"""The unit that stands for the places that compile, or differentiate."""


def of_stores(name: str) -> str:
    """The unit that stands for what is stored in an attribute."""
    return f".{name}"


def of_name(name: str) -> str:
    """The unit that stands for the calls and other places that name something."""
    return f"@{name}"


class PartOfLinks(Mapping[Any, V]):
    """A field of links by a key, which is looked up one by one or as a whole."""

    __slots__ = ("_held", "_tell", "_unit")

    def __init__(self, held: Mapping[Any, V], unit: Callable[[Any], str], tell: Callable[[str], None]) -> None:
        self._held, self._unit, self._tell = held, unit, tell

    def __getitem__(self, key: Any) -> V:
        self._tell(self._unit(key))
        return self._held[key]

    def get(self, key: Any, default: Any = None) -> Any:
        self._tell(self._unit(key))
        return self._held.get(key, default)

    def __contains__(self, key: object) -> bool:
        self._tell(self._unit(key))
        return key in self._held

    def __iter__(self) -> Iterator[Any]:
        self._tell(EVERY)
        return iter(self._held)

    def items(self) -> Any:
        self._tell(EVERY)
        return self._held.items()

    def __len__(self) -> int:
        self._tell(EVERY)
        return len(self._held)


def _scope(key: tuple[str, str]) -> str:
    return unit_of(key[0])


class WatchedLinks(Links):
    """Links, of which `tell` is told the units that are read."""

    def __init__(self, plain: Links, tell: Callable[[str], None]) -> None:
        held = {
            "calls": PartOfLinks(plain.calls, unit_of, tell),
            "returns": PartOfLinks(plain.returns, unit_of, tell),
            "stores": PartOfLinks(plain.stores, of_stores, tell),
            "variables": PartOfLinks(plain.variables, _scope, tell),
            "flags": PartOfLinks(plain.flags, _scope, tell),
            "calls_by_name": PartOfLinks(plain.calls_by_name, of_name, tell),
        }
        self.__dict__.update(held, _plain=plain, _tell=tell)

    def _told(self, unit: str) -> Links:
        self.__dict__["_tell"](unit)
        plain: Links = self.__dict__["_plain"]
        return plain

    @property
    def mentions(self) -> Sequence[tuple[str, Expr]]:
        return self._told(EVERY).mentions

    @property
    def compiled(self) -> Sequence[Site]:
        return self._told(SITES).compiled

    @property
    def differentiated(self) -> Sequence[Site]:
        return self._told(SITES).differentiated

    def within(self, how: str) -> list[Call]:
        return self._told(SITES).within(how)

    def hands_on(self, name: str) -> bool:
        return self._told(of_name(name)).hands_on(name)
