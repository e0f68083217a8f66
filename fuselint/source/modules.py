"""The files of a package as modules: which file a dotted name belongs to, and what that file says of it.

Nothing is imported. A relative import goes by folders; an absolute one starts at the folder that holds the package,
then at those above it, up to the project's root. The summary of a module is made when it is first asked for.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from fuselint.errors import UnreadableFile
from fuselint.plain import dumps, loads
from fuselint.source.folders import package_folder, python_files
from fuselint.source.mentions import EVERY
from fuselint.source.notes import (
    CALLS,
    COMPILED,
    COMPILING,
    FILES,
    FREQUENCY,
    HALF,
    IMPORTS,
    LAYERS,
    NAMING,
    ON_METAL,
    OTHER_VERSION,
    OUTLINE,
    OVERRIDDEN,
    PACKAGE,
    PREPARING,
    RENAMED,
    ROUNDS,
    SHOWN,
    SOLVING,
    SUMMARY,
    TEXT,
    USERS,
    Notes,
    Trail,
    file_of,
    key_in,
    kind_of,
    mentions_of,
    of_file,
    word_in,
)
from fuselint.source.project import ANY_STAR, MISSING, ClassSummary, FunctionSummary, ModuleSummary, summarise, unit_of
from fuselint.source.screen import parse
from fuselint.source.stepping import solver_loops
from fuselint.source.text import FileText, content, read, slashed
from fuselint.source.watched import PRESENT, WatchedLinks, WatchedSummary

if TYPE_CHECKING:
    from fuselint.source.compiled import Compiled, Verdict
    from fuselint.source.frequency import Frequencies, Frequency
    from fuselint.source.links import Links
    from fuselint.source.mentions import Mentions
    from fuselint.source.scopes import Scopes

K = TypeVar("K")
V = TypeVar("V")

HIGHEST = 6
"""Folders above a package that an absolute import is looked for in, at most."""

LONGEST = 16
"""Imports that hand a name on, at most."""

KEPT = 128
"""Files whose texts and summaries are kept for the next that asks."""

INDICES = 2
"""Packages whose words and imports are kept."""

INSTALLED = frozenset({"site-packages", "dist-packages"})
ROOTS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
"""What tells a project's root."""

OUTSIDE = ("mlx.", "abc.", "typing.", "builtins.", "object", "enum.", "collections.", "Protocol", "Generic")
"""What bases start with that are of no package that is analysed."""

_UNRELEASED = r"tests?|benchmarks?|conftest\.py|test_[^/\\]*\.py|bench[^/\\]*\.py|[^/\\]*_test\.py"
UNRELEASED = re.compile(rf"(^|[/\\])({_UNRELEASED})([/\\]|$)")
"""Paths of files that only tests and benchmarks run."""

TESTS = re.compile(rf"(^|[/\\])({_UNRELEASED}|testing|examples?)([/\\]|$)")
"""Paths of files whose calls don't count."""


def is_test(path: str, top: str) -> bool:
    """Whether a file of the package in the folder `top` holds tests, benchmarks or examples."""
    return TESTS.search(os.path.relpath(path, top)) is not None


def is_unreleased(path: str, top: str) -> bool:
    """Whether a file of the package in the folder `top` holds tests or benchmarks."""
    return UNRELEASED.search(os.path.relpath(path, top)) is not None


BESIDE = " of a loop"
"""How the part of a question ends that asks about a loop itself."""

HALF_WORDS = ("bfloat16", "float16", "set_dtype", "torch_dtype", "bf16", "fp16")
"""What speaks of half precision in the text of a package that runs in it."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, class or constant by its file and its qualname there; "" is the module itself."""

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def _definition(shown: str) -> Definition:
    """The definition that shows itself so."""
    path, _, name = shown.rpartition(":")
    return Definition(path, name)


Remembered = dict[K, tuple[V, Trail]]
"""Answers by what was asked, each with what was read for it."""


class Modules:
    """The modules on disk, with the texts of `overlay` in place of their files. All paths are absolute.

    given: answers to questions that are known to hold.
    """

    def __init__(self, overlay: Mapping[str, str] | None = None, given: Mapping[str, str] | None = None) -> None:
        self._overlay, self._given = overlay or {}, {} if given is None else given
        self._kinds: dict[str, str] = {}
        self._modules: Remembered[tuple[str, str], str | None] = {}
        self._asked: Remembered[str, str] = {}
        self._analysed: tuple[str, FileText, ModuleSummary] | None = None
        self._watched: OrderedDict[str, WatchedSummary] = OrderedDict()
        self._files: OrderedDict[str, FileText | None] = OrderedDict()
        self._prints: dict[str, str] = {}  # of each file that was read, the hash
        self._indices: dict[str, Index] = {}
        self._links: dict[str, Links | None] = {}
        self._compiled: dict[str, tuple[Compiled, Trail]] = {}
        self._mentions: dict[str, Mentions | None] = {}
        self._frequencies: dict[tuple[str, bool], Frequencies] = {}
        self._imports: Remembered[str, Mapping[str, frozenset[str]]] = {}
        self._imported: Remembered[str, frozenset[str]] = {}
        self._solvers: Remembered[str, frozenset[str]] = {}
        self._importers: Remembered[str, frozenset[str]] = {}
        self._importers_of: Remembered[str, Mapping[str, Sequence[str]]] = {}
        self._notes: Notes | None = None
        self._trail: Trail | None = None
        self._by_outline = False  # whether no line of what is read matters

    # -- files --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def noting(self) -> Iterator[Notes]:
        """Collects what is read meanwhile, and is there when that is over: it belongs to the key of a cached result."""
        before, self._notes = self._notes, Notes()
        notes, trail = self._notes, Trail()
        try:
            with self._on(trail):
                yield notes
        finally:
            self._notes = before
            own = None if self._analysed is None else self._analysed[0]
            for leaf in trail.leaves():
                about = file_of(leaf)
                if about is None or about != own:
                    notes[leaf] = "" if about is None else self._prints.get(about, "")

    @contextlib.contextmanager
    def _on(self, trail: Trail) -> Iterator[None]:
        """Keeps what is read meanwhile on a trail, and on no other."""
        before, self._trail = self._trail, trail
        try:
            yield
        finally:
            self._trail = before

    def note(self, leaf: str) -> None:
        """That a leaf is read."""
        if self._trail is not None:
            self._trail.held.add(leaf)

    def remembered(self, known: Remembered[K, V], key: K, make: Callable[[], V], meanwhile: tuple[V, ...] = ()) -> V:
        """`known[key]`, made where it isn't there, with what was read for it. meanwhile: what it is until then."""
        held = known.get(key)
        if held is None:
            trail = Trail()
            for value in meanwhile:
                known[key] = value, trail
            with self._on(trail):
                held = known[key] = make(), trail
        if self._trail is not None:
            self._trail.held.add(held[1])
        return held[0]

    def ask(self, question: str, make: Callable[[], str]) -> str:
        """The answer to a question about a whole package, as a text. Within another one's, it is a part of that."""
        notes = self._notes
        if notes is None:
            return self.remembered(self._asked, question, make)
        if question in self._given:
            notes[question] = self._given[question]
            return notes[question]
        self._notes = None
        try:
            with self._on(Trail()):
                notes[question] = self.remembered(self._asked, question, make)
        finally:
            self._notes = notes
        notes.basis[question] = self._asked[question][1].flatten()
        return notes[question]

    def _ask_outlines(self, question: str, make: Callable[[], str]) -> str:
        """As `ask`, where it doesn't matter in which lines anything stands that a summary speaks of."""
        self._by_outline = True
        try:
            return self.ask(question, make)
        finally:
            self._by_outline = False

    def note_package(self, path: str) -> None:
        """That a file's result rests on which package it belongs to: that tells tests from what runs."""
        self.ask(f"{PACKAGE}{path}", lambda: self.package(os.path.dirname(path)))

    def package(self, folder: str) -> str:
        """The folder of a package, as `package_folder` finds it."""
        top = package_folder(folder)
        at = folder
        while at != top:
            self._kind(os.path.join(at, "__init__.py"))
            at = os.path.dirname(at)
        for at in (top, os.path.dirname(top)):
            self._kind(os.path.join(at, "__init__.py"))
        return top

    def ask_again(self, question: str) -> Notes:
        """What a question is answered now. `package.Package` answers those about what is read."""
        with self.noting() as notes:
            if question.startswith(COMPILED):
                self.compiled(question[len(COMPILED) :])
            elif question.startswith(USERS):
                self.users(_definition(question[len(USERS) :]))
            elif question.startswith(PACKAGE):
                self.note_package(question[len(PACKAGE) :])
            elif question.startswith(HALF):
                self.may_be_half(question[len(HALF) :])
            elif question.startswith(OTHER_VERSION):
                names, _, rest = question[len(OTHER_VERSION) :].partition(" in ")
                function, _, named = rest.partition(" of ")
                self.other_version(_definition(named), function, names.split(","))
            elif question.startswith(LAYERS):
                where, _, named = question.partition(" of ")
                self.is_of_layers(_definition(named), on_metal=where.endswith(ON_METAL))
            elif question.startswith(PREPARING):
                where, _, named = question.partition(" of ")
                self.prepares(_definition(named), on_metal=where.endswith(ON_METAL))
            elif question.startswith(OVERRIDDEN):
                name, _, named = question[len(OVERRIDDEN) :].partition(" in ")
                self.is_given_otherwise(_definition(named), name)
            elif question.startswith(FREQUENCY):
                where, _, named = question[len(FREQUENCY) :].partition(" in ")
                line = where.removesuffix(ON_METAL)
                found, on_metal = _definition(named), where.endswith(ON_METAL)
                if line:
                    number = int(line.removesuffix(BESIDE))
                    self._frequency_at(found, number, beside_innermost=line.endswith(BESIDE), on_metal=on_metal)
                else:
                    self._frequency_of(found, on_metal)
        return notes

    def file(self, path: str) -> FileText | None:
        """A file, by its path from the current folder where it lies below that; None where it can't be read."""
        self.note(path)
        return self._file(path)

    def shown(self, path: str) -> str:
        """How a file is called in what is shown."""
        file = self._file(path)
        return path if file is None else file.path

    def note_shown(self, shown: str) -> None:
        """That a text, as JSON, is what is said of other files: it may show their lines where it names them."""
        assert self._trail is not None
        for leaf in self._trail.leaves():
            path = file_of(leaf) if leaf.startswith((SUMMARY, TEXT)) else None
            if path is not None and dumps(os.path.basename(path))[1:-1] in shown:
                self.note(of_file(SHOWN, key_in(leaf), path))

    def _file(self, path: str) -> FileText | None:
        if self._analysed is not None and path == self._analysed[0]:
            return self._analysed[1]
        if path in self._files:
            self._files.move_to_end(path)
            return self._files[path]
        found = self._files[path] = self._read(path)
        self._prints[path] = "" if found is None else found.fingerprint
        if len(self._files) > KEPT:
            self._files.popitem(last=False)
        return found

    def _read(self, path: str) -> FileText | None:
        try:
            found = read(path)
        except UnreadableFile:
            return None
        shown = slashed(os.path.relpath(path))
        text = self._overlay.get(path, found.text)
        return replace(found, text=text, path=path if shown.startswith(os.pardir) else shown)

    def know(self, file: FileText, summary: ModuleSummary) -> None:
        """The file that is analysed: it is known until another is."""
        self._analysed = os.path.abspath(file.path), file, summary

    def summary(self, path: str) -> ModuleSummary | None:
        """What a file says of its names; None where it can't be read, or isn't Python. What of it is read is noted."""
        plain = self._plain(path)
        if plain is None:
            return None
        known = self._watched.get(path)
        if known is None or known.plain is not plain:
            known = self._watched[path] = WatchedSummary(plain, self._noting_units(path))
            if len(self._watched) > KEPT:
                self._watched.popitem(last=False)
        return known

    def _noting_units(self, path: str) -> Callable[[str], None]:
        """What notes that something is read which the summary of a file says of a name."""
        whole, outline = self._noting(SUMMARY, path), self._noting(OUTLINE, path)

        def note(key: str) -> None:
            if self._trail is not None:
                (outline if self._by_outline else whole)(unit_of(key))

        return note

    def _plain(self, path: str) -> ModuleSummary | None:
        """The summary of a file; only that there is one is noted."""
        self.note(of_file(OUTLINE if self._by_outline else SUMMARY, PRESENT, path))
        if self._analysed is not None and path == self._analysed[0]:
            return self._analysed[2]
        file = self._file(path)
        return None if file is None else summary_in(file.path, file.text)

    def read(self, path: str) -> tuple[FileText, ModuleSummary] | None:
        """A file and its summary, of which only is noted that they are there: who reads more of them notes that."""
        plain, file = self._plain(path), self._file(path)
        return None if plain is None or file is None else (file, plain)

    def naming(self, path: str, pattern: str) -> list[str]:
        """The functions of a file in whose text a pattern is found, in order."""
        self.note(of_file(NAMING, pattern, path))
        known = self.read(path)
        return [] if known is None else functions_naming(known[1], known[0].text, pattern)

    def renamed(self, path: str, name: str) -> set[str]:
        """What a file's imports call a function or class of another."""
        self.note(of_file(RENAMED, name, path))
        plain = self._plain(path)
        return set() if plain is None else names_of(plain, name)

    def _kind(self, path: str) -> str:
        """ "file", "folder", or "" for neither."""
        if path not in self._kinds:
            self._kinds[path] = "file" if os.path.isfile(path) else "folder" if os.path.isdir(path) else ""
        self.note(kind_of(path, self._kinds[path]))
        return self._kinds[path]

    # -- modules ------------------------------------------------------------------------------------------------------

    def module(self, name: str, path: str) -> str | None:
        """The file that a module's name stands for in the file `path`, or the folder of a namespace package.

        `.base` and `..models.base` are relative; a name without a dot in front is absolute.
        """
        folder = os.path.dirname(path)
        return self.remembered(self._modules, (folder, name), lambda: self._module(folder, name))

    def _module(self, folder: str, name: str) -> str | None:
        parts = [p for p in name.split(".") if p]
        level = len(name) - len(name.lstrip("."))
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._below(folder, parts)
        if not parts or parts[0] in sys.stdlib_module_names or parts[0] == "mlx":
            return None
        found = (self._below(at, parts) for at in self._search_path(folder, parts[0]))
        return next((f for f in found if f is not None), None)

    def _search_path(self, folder: str, package: str) -> Iterator[str]:
        """The folders in which an absolute import is looked for: those of the same project."""
        own = ""
        while self._kind(os.path.join(folder, "__init__.py")):
            folder, own = os.path.split(folder)
        for _ in range(HIGHEST):
            if os.path.basename(folder) in INSTALLED and package != own:
                return  # another distribution
            yield folder
            yield os.path.join(folder, "src")
            above, name = os.path.split(folder)
            if above == folder or any(self._kind(os.path.join(folder, mark)) for mark in ROOTS):
                return
            folder, own = above, name

    def _below(self, folder: str, parts: list[str]) -> str | None:
        for i, part in enumerate(parts):
            inner = os.path.join(folder, part)
            last = i == len(parts) - 1
            if last and self._kind(f"{inner}.py") == "file" and not self._kind(os.path.join(inner, "__init__.py")):
                return f"{inner}.py"
            if self._kind(inner) != "folder":
                return None
            folder = inner
        init = os.path.join(folder, "__init__.py")
        return init if self._kind(init) == "file" else folder

    # -- names --------------------------------------------------------------------------------------------------------

    def resolve(self, path: str, name: str) -> Definition | None:
        """What a name of the file `path` stands for, given as `ModuleSummary.resolve` gives it.

        None where no file of the package says: a name of another library, or one that is bound in several ways.
        """
        return self._resolve(path, name, 0)

    def _resolve(self, path: str, name: str, depth: int) -> Definition | None:
        if depth > LONGEST or not name:
            return None
        if name.startswith(ANY_STAR):
            return self._starred(path, name[len(ANY_STAR) :].split("."), depth)
        parts = [p for p in name.split(".") if p]
        level = len(name) - len(name.lstrip("."))
        if level:
            base = self.module("." * level, path)
        else:
            own = self._own(path, parts)
            if own is not None:
                return own
            base, parts = self.module(parts[0], path), parts[1:]
        return None if base is None else self._member(base, parts, depth)

    def _own(self, path: str, parts: list[str]) -> Definition | None:
        """A function, class or constant that the file itself defines; a method also where a base class has it."""
        summary = self.summary(path)
        if summary is None:
            return None
        name = ".".join(parts)
        if summary.defined(name) or name in summary.constants or name in summary.arrays:
            return Definition(path, name)
        owner = ".".join(parts[:-1])
        return self.method(Definition(path, owner), parts[-1]) if owner in summary.classes else None

    def _member(self, module: str, parts: list[str], depth: int) -> Definition | None:
        """What `parts` name inside a module, which is a file or the folder of a namespace package."""
        if not parts:
            return Definition(module, "")
        if not module.endswith(".py"):
            return self._submodule(module, parts, depth)
        summary = self.summary(module)
        if summary is None or "__getattr__" in summary.functions:
            return None
        head = parts[0]
        target = summary.imports.get(head)
        if target is not None and not self._is_of(module, target, head):
            return self._resolve(module, ".".join([target, *parts[1:]]), depth + 1)
        if head in summary.bound and target is None:
            return None if head in summary.unclear else self._own(module, parts)
        found = self._starred(module, parts, depth) if target is None else None
        if found is None and os.path.basename(module) == "__init__.py":
            return self._submodule(os.path.dirname(module), parts, depth)
        return found

    def _is_of(self, module: str, target: str, name: str) -> bool:
        """Whether an imported name is a part of the module itself: `from . import layers` in its `__init__.py`."""
        owner, _, last = target.rpartition(".")
        return last == name and self.module(owner or ".", module) == module

    def _submodule(self, folder: str, parts: list[str], depth: int) -> Definition | None:
        below = self._below(folder, parts[:1])
        return None if below is None else self._member(below, parts[1:], depth)

    def _starred(self, path: str, parts: list[str], depth: int) -> Definition | None:
        """What a name stands for that only `from m import *` can have bound: the last that has it gives it."""
        summary = self.summary(path)
        for star in reversed(summary.stars if summary is not None else ()):
            if star.partition(".")[0] == "mlx":
                continue
            module = self.module(star, path)
            inner = None if module is None or not module.endswith(".py") else self.summary(module)
            if module is None or inner is None or (inner.exported is None and "__all__" in inner.bound):
                return None  # it may have any name
            hidden = parts[0].startswith("_") if inner.exported is None else parts[0] not in inner.exported
            found = None if hidden or depth > LONGEST else self._member(module, parts, depth + 1)
            if found is not None or (not hidden and parts[0] in inner.bound):
                return found
        return None

    # -- classes ------------------------------------------------------------------------------------------------------

    def function(self, found: Definition) -> FunctionSummary | None:
        summary = self.summary(found.path)
        return None if summary is None else summary.functions.get(found.name)

    def class_(self, found: Definition) -> ClassSummary | None:
        summary = self.summary(found.path)
        return None if summary is None else summary.classes.get(found.name)

    def constant(self, found: Definition) -> Any:
        """The value of a module-level constant, or MISSING."""
        summary = self.summary(found.path)
        return MISSING if summary is None else summary.constants.get(found.name, MISSING)

    def lineage(self, found: Definition) -> tuple[list[Definition], bool]:
        """A class and its bases in the package, nearest first, and whether no other base may be of the package."""
        out: dict[Definition, None] = {found: None}
        waiting, complete = [found], True
        while waiting:
            at = waiting.pop(0)
            held = self.class_(at)
            for base in held.bases if held is not None else ():
                known = self.resolve(at.path, base) if base else None
                if known is None or self.class_(known) is None:
                    complete &= base.startswith(OUTSIDE)
                elif known not in out:
                    out[known] = None
                    waiting.append(known)
        return list(out), complete

    def method(self, found: Definition, name: str) -> Definition | None:
        """A method of a class, its own or a base's; None where a base that isn't known may have it."""
        lineage, complete = self.lineage(found)
        for at in lineage if complete else lineage[:1]:
            held = self.class_(at)
            if held is not None and name in held.methods:
                return Definition(at.path, held.methods[name])
        return None

    # -- calls --------------------------------------------------------------------------------------------------------

    def links(self, path: str) -> Links | None:
        """The calls of a file; None where it can't be read. Who tells of one's line notes that."""
        self.note(of_file(CALLS, PRESENT, path))
        if path not in self._links:
            file = self._file(path)
            found = None if file is None else links_of(file.path, file.text)
            self._links[path] = None if found is None else WatchedLinks(found, self._noting(CALLS, path))
        return self._links[path]

    def _noting(self, start: str, path: str) -> Callable[[str], None]:
        """What notes that a unit of a file is read."""
        leaves: dict[str, str] = {}

        def note(unit: str) -> None:
            if self._trail is not None:
                leaf = leaves.get(unit)
                if leaf is None:
                    leaf = leaves[unit] = of_file(start, unit, path)
                self._trail.held.add(leaf)

        return note

    def compiled(self, path: str) -> Verdict:
        """What of a file the other files of its package compile, and what they also run without that."""
        from fuselint.source.compiled import Verdict

        return loads(Verdict, self._ask_outlines(f"{COMPILED}{path}", lambda: dumps(self._compiled_of(path))))

    def _compiled_of(self, path: str) -> Verdict:
        from fuselint.source.compiled import Compiled

        top = self.package(os.path.dirname(path))
        if top not in self._compiled:
            self._compiled.clear()  # files come package by package
            self._links.clear()
            trail = Trail()
            with self._on(trail):
                self.note(f"{COMPILING}{top}")
                self.note(f"{FILES}{top}")
                index = self._index(top)
                self._compiled[top] = Compiled(self, top, index.compiling, index.differentiating), trail
        known, trail = self._compiled[top]
        with self._on(trail):  # an answer rests on all that was found out so far
            found = known.of(path)
        if self._trail is not None:
            self._trail.held.add(trail)
        return found

    # -- how often ----------------------------------------------------------------------------------------------------

    def mentions(self, path: str) -> Mentions | None:
        """The places of a file that read names; None where it can't be read."""
        self.note(mentions_of(path, EVERY))
        if path not in self._mentions:
            file = self._file(path)
            found = None if file is None else mentions_in(file.path, file.text)
            told = None if found is None else found.watched(lambda part: self.note(mentions_of(path, part)))
            self._mentions[path] = told
        return self._mentions[path]

    def with_word(self, folder: str, word: str) -> list[str]:
        """The files of a package that hold a word."""
        self.note(word_in(folder, word))
        self.note(f"{FILES}{folder}")
        return self._index(folder).words.get(word, [])

    def may_be_half(self, path: str) -> bool:
        """Whether the files of a folder of a package, tests apart, say anything of half precision: one of many models
        says nothing of another. What is no package may be used by anything."""
        return self.ask(f"{HALF}{path}", lambda: str(self._may_be_half(path))) == str(True)

    def _may_be_half(self, path: str) -> bool:
        own = os.path.dirname(path)
        top = self.package(own)
        return not os.path.isfile(os.path.join(top, "__init__.py")) or any(
            found.startswith(own + os.sep) and not is_test(found, top)
            for word in HALF_WORDS
            for found in self.with_word(top, word)
        )

    def frequencies(self, path: str, on_metal: bool = False) -> Frequencies:
        """How often the functions of a file's package run."""
        from fuselint.source.frequency import Frequencies

        top = self.package(os.path.dirname(path))
        if all(known != top for known, _ in self._frequencies):
            self._frequencies.clear()  # files come package by package
            self._mentions.clear()
        if (top, on_metal) not in self._frequencies:
            self._frequencies[top, on_metal] = Frequencies(
                self, top, on_metal, self._frequencies.get((top, not on_metal))
            )
        return self._frequencies[top, on_metal]

    def imported(self, folder: str) -> frozenset[str]:
        """The files of a package that another one imports, or imports something from."""
        self.note(f"{IMPORTS}{folder}")
        self.note(f"{FILES}{folder}")
        return self.remembered(self._imported, folder, lambda: frozenset().union(*self._importing(folder).values()))

    def _importing(self, folder: str) -> Mapping[str, frozenset[str]]:
        """The files of a package, tests apart, that import others, and which."""
        self.note(f"{IMPORTS}{folder}")
        self.note(f"{FILES}{folder}")
        return self.remembered(self._imports, folder, lambda: self._index(folder).imported(self))

    def solver_loops(self, found: Definition) -> list[int]:
        """The lines in which the rounds of a solver begin in a function, and in those inside it."""
        unit = unit_of(found.name)
        self.note(of_file(ROUNDS, unit, found.path))
        known, start = self.read(found.path), self._line(found)
        return [] if known is None else [start + line for line in rounds_in(known[1], known[0].text, unit)]

    def solving(self, folder: str) -> list[str]:
        """The files of a package, tests apart, that have the loop of a solver."""
        self.note(f"{SOLVING}{folder}")
        self.note(f"{FILES}{folder}")
        return [p for p in self._index(folder).solving if not is_test(p, folder)]

    def solvers(self, folder: str) -> frozenset[str]:
        """Those files, and the files that come to one by what they import."""
        return self.remembered(self._solvers, folder, lambda: self.and_importers(folder, self.solving(folder)))

    def importers(self, folder: str, path: str) -> frozenset[str]:
        """A file of a package, and those that come to it by what they import."""
        return self.remembered(self._importers, path, lambda: self.and_importers(folder, [path]))

    def _importers_in(self, folder: str) -> Mapping[str, Sequence[str]]:
        """By each file of a package, those that import it or something from it."""
        by: dict[str, list[str]] = {}
        index = self._index(folder)
        for importer, imported in (*self._importing(folder).items(), *index.imported_whole(self).items()):
            for one in imported:
                by.setdefault(one, []).append(importer)
        return by

    def and_importers(self, folder: str, paths: Sequence[str]) -> frozenset[str]:
        """Files of a package, and those that come to one of them by what they import."""
        by = self.remembered(self._importers_of, folder, lambda: self._importers_in(folder))
        found, waiting = set(paths), list(paths)
        while waiting:
            new = set(by.get(waiting.pop(), ())) - found
            found |= new
            waiting += new
        return frozenset(found)

    def frequency(self, found: Definition, first: int, *, beside_innermost: bool, on_metal: bool = False) -> Frequency:
        """How often lines of a function run, by the first of them: see `Frequencies.at`."""
        line = self._line_inside(found, first)
        if line is None:
            return self._frequency_of(found, on_metal)
        return self._frequency_at(found, line, beside_innermost=beside_innermost, on_metal=on_metal)

    def _line_inside(self, found: Definition, line: int) -> int | None:
        """A line of a function as it is counted in there; None where no loop, branch or handler is around it."""
        from fuselint.source.mentions import Suites

        held, unit = self.mentions(found.path), unit_of(found.name)
        if held is None or not held.suites.get(unit, Suites()).around(found.name, line):
            return None
        return line - self._line(found)

    def _line(self, found: Definition) -> int:
        """The line where the outermost function begins that a function lies in: lines in there are told from it on."""
        summary = self._plain(found.path)
        function = None if summary is None else summary.functions.get(unit_of(found.name))
        return 0 if function is None else function.span.line

    def _frequency_of(self, found: Definition, on_metal: bool) -> Frequency:
        """How often a function runs."""
        question = f"{FREQUENCY}{ON_METAL if on_metal else ''} in {found}"
        return self._frequency(question, lambda: self.frequencies(found.path, on_metal).of(found))

    def _frequency_at(self, found: Definition, line: int, *, beside_innermost: bool, on_metal: bool) -> Frequency:
        """How often a line of a function runs, as it is counted in there."""
        where = f"{line}{BESIDE if beside_innermost else ''}{ON_METAL if on_metal else ''}"

        def make() -> Frequency:
            known = self.frequencies(found.path, on_metal)
            return known.at(found, self._line(found) + line, beside_innermost=beside_innermost)

        return self._frequency(f"{FREQUENCY}{where} in {found}", make)

    def _frequency(self, question: str, make: Callable[[], Frequency]) -> Frequency:
        from fuselint.source.frequency import Frequency

        def text() -> str:
            known = make()
            return f"{known.how} {known.again} {known.of_tokens} {known.why}"

        how, again, of_tokens, why = self._ask_outlines(question, text).split(" ", 3)
        return Frequency(how, why, again == str(True), of_tokens == str(True))

    def is_of_layers(self, found: Definition, on_metal: bool = False) -> bool:
        """Whether layers of which a model has many call a function: see `Frequencies.is_of_layers`."""
        question = f"{LAYERS}{ON_METAL if on_metal else ''} of {found}"

        def make() -> str:
            return str(self.frequencies(found.path, on_metal).is_of_layers(found))

        return self._ask_outlines(question, make) == str(True)

    def prepares(self, found: Definition, on_metal: bool = False) -> bool:
        """Whether a function only runs once before the steps of a solver: see `Stages`."""
        found = Definition(found.path, found.name.partition(".<locals>.")[0])
        question = f"{PREPARING}{ON_METAL if on_metal else ''} of {found}"

        def make() -> str:
            return str(self.frequencies(found.path, on_metal).stages.prepares(found))

        return self._ask_outlines(question, make) == str(True)

    def is_given_otherwise(self, owner: Definition, name: str) -> bool:
        """Whether the package gives a constructor something else than a default: see
        `Frequencies.is_given_otherwise`."""

        def make() -> str:
            return str(self.frequencies(owner.path).is_given_otherwise(owner, name))

        return self._ask_outlines(f"{OVERRIDDEN}{name} in {owner}", make) == str(True)

    # -- derived classes ----------------------------------------------------------------------------------------------

    def other_version(self, owner: Definition, function: str, names: Sequence[str]) -> str:
        """The first class that derives from one, runs its function, and has methods or attributes of its own of one of
        these names, with that name: `Other.act (models/other.py:7)`; "" where none has."""
        question = f"{OTHER_VERSION}{','.join(names)} in {function} of {owner}"
        return self.ask(question, lambda: next(self._other_versions(owner, function, names), ""))

    def _other_versions(self, owner: Definition, function: str, names: Sequence[str]) -> Iterator[str]:
        seen, waiting = {owner}, [owner]
        while waiting:
            at = waiting.pop()
            mentioned, beside = self.frequencies(owner.path).mentioned(at), self.summary(at.path)
            derived = {Definition(path, m.inside) for path, m in mentioned if m.role == "base"}
            if beside is not None:  # of a text that is on no disk, too
                derived |= {Definition(at.path, name) for name, c in beside.classes.items() if at.name in c.bases}
            derived -= seen
            seen |= derived
            for found in sorted(derived, key=str):
                held, stored = self.class_(found), self.mentions(found.path)
                if held is None or stored is None:
                    continue
                waiting.append(found)
                own = {name for name in names if name in held.methods or name in held.fields}
                own |= {n for n in names if any(by.startswith(f"{found.name}.") for by, _ in stored.stored.get(n, ()))}
                if own and self.runs(found, held, function):
                    shown = slashed(os.path.relpath(found.path))
                    yield f"{found.name}.{min(own)} ({shown}:{held.line})"

    def runs(self, found: Definition, held: ClassSummary, function: str) -> bool:
        """Whether objects of a class run their base's function: they have none of their own, or it calls the base's."""
        own = self.function(Definition(found.path, held.methods.get(function, "")))
        file = self.file(found.path)
        return own is None or file is None or "super()" in file.text[own.span.start : own.span.end]

    # -- users --------------------------------------------------------------------------------------------------------

    def users(self, found: Definition) -> list[str]:
        """The other files of the package that import a function or class by its name, in order."""
        answer = self.ask(f"{USERS}{found}", lambda: "\0".join(self._users(found)))
        return answer.split("\0") if answer else []

    def _users(self, found: Definition) -> list[str]:
        top = self.package(os.path.dirname(found.path))
        self.note(f"{IMPORTS}{top}")
        self.note(f"{FILES}{top}")
        return self._index(top).importing(found, self)

    def _index(self, folder: str) -> Index:
        if folder not in self._indices:
            if len(self._indices) >= INDICES:
                self._indices.pop(next(iter(self._indices)))
            self._indices[folder] = Index(folder, self._overlay)
        return self._indices[folder]


def functions_naming(summary: ModuleSummary, text: str, pattern: str) -> list[str]:
    """The functions in whose text a pattern is found, in order."""
    found = re.compile(pattern)
    return [q for q, f in summary.functions.items() if found.search(text[f.span.start : f.span.end])]


def names_of(summary: ModuleSummary, name: str) -> set[str]:
    """What imports call a function or class of another file."""
    return {k for k, target in summary.imports.items() if target.rpartition(".")[2] == name}


def rounds_in(summary: ModuleSummary, text: str, unit: str) -> list[int]:
    """Where the rounds of solvers begin in a function, in its own lines."""
    function = summary.functions.get(unit)
    if function is None:
        return []
    first, last = function.span.line, text.count("\n", 0, function.span.end) + 1
    return [line - first for line in _solver_loops(text) if first <= line <= last]


@lru_cache(maxsize=8)
def _solver_loops(text: str) -> tuple[int, ...]:
    return solver_loops(text.encode("utf-8", "replace"))


_FROM = re.compile(rb"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]*(\([^()]*\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(rb"^[ \t]*import[ \t]+([\w., \t]+)", re.MULTILINE)
_COMMENT = re.compile(rb"#[^\n]*")
_COMPILE = re.compile(rb"(?<!\bre\.)(?<!\w)compile\b")
_DECORATED = re.compile(rb"@[^\n]*\n(?:@[^\n]*\n){0,50}def [^\n]*\n(?:\)[^\n]*\n|[ \t][^\n]*\n|[ \t]*\n)*")
"""A function of the module with a decorator of one line, whole."""

_WORD = re.compile(rb"\w+")
_OTHERS = sys.stdlib_module_names | {"mlx", "numpy"}


class Index:
    """Which files of a package import which names from which modules, as their texts have it."""

    def __init__(self, folder: str, overlay: Mapping[str, str]) -> None:
        self._folder, self._overlay = folder, overlay

    @cached_property
    def _imports(self) -> dict[str, dict[str, list[str]]]:
        """Name, or "*" for all -> file -> the modules that it imports the name from."""
        out: dict[str, dict[str, list[str]]] = {}
        for path in python_files(self._folder):
            for name, modules in imports_of(self._data(path)).items():
                out.setdefault(name, {})[path] = modules
        return out

    @cached_property
    def words(self) -> dict[str, list[str]]:
        """Word -> the files that hold it, in order."""
        out: dict[str, list[str]] = {}
        for path in python_files(self._folder):
            for word in words_of(self._data(path)):
                out.setdefault(word, []).append(path)
        return out

    def imported(self, modules: Modules) -> dict[str, frozenset[str]]:
        """The files, tests apart, that import others or something from them, and which."""
        stems = {os.path.splitext(os.path.basename(p))[0] for p in python_files(self._folder)}
        out: dict[str, set[str]] = {}
        for name, files in self._imports.items():
            for path, sources in files.items():
                if is_test(path, self._folder):
                    continue
                for source in sources:
                    inner = f"{source}{'' if source.endswith('.') else '.'}{name}" if name in stems else source
                    found = modules.module(source, path), modules.module(inner, path)
                    out.setdefault(path, set()).update(f for f in found if f and f != path)
        return {path: frozenset(found) for path, found in out.items()}

    def imported_whole(self, modules: Modules) -> dict[str, list[str]]:
        """The files that import other modules as such, and which."""
        wholes = ((path, modules_of(self._data(path))) for path in python_files(self._folder))
        found = ((path, [f for name in names if (f := modules.module(name, path))]) for path, names in wholes)
        return {path: files for path, files in found if files}

    @cached_property
    def compiling(self) -> list[str]:
        """The files that may compile something that leads to another file."""
        return [p for p in python_files(self._folder) if compiles_more(self._data(p))]

    @cached_property
    def solving(self) -> list[str]:
        """The files that have the loop of a solver."""
        return [p for p in python_files(self._folder) if solver_loops(self._data(p))]

    @cached_property
    def differentiating(self) -> list[str]:
        """The files that may take a gradient."""
        return [p for p in python_files(self._folder) if differentiates(self._data(p))]

    def _data(self, path: str) -> bytes:
        text = self._overlay.get(path)
        if text is not None:
            return text.encode("utf-8", "replace")
        return content(path) or b""

    def importing(self, found: Definition, modules: Modules) -> list[str]:
        """The files that import a definition by name, from its own module or from one that hands it on."""
        name = found.name.partition(".")[0]
        candidates = [(p, m) for key in ("*", name) for p, froms in self._imports.get(key, {}).items() for m in froms]
        sources, more = {found.path}, {found.path}
        while more:
            more = {p for p, m in candidates if p not in sources and modules.module(m, p) in sources}
            sources |= more
        return sorted(sources - {found.path})


def imports_of(data: bytes) -> dict[str, list[str]]:
    """Name, or "*" for all -> the modules that a file imports it from."""
    out: dict[str, list[str]] = {}
    for m in _FROM.finditer(data):
        for part in _COMMENT.sub(b"", m[2]).strip(b"() \t").split(b","):
            words = part.decode("utf-8", "replace").split()
            if words:
                out.setdefault(words[0], []).append(m[1].decode())
    return out


def modules_of(data: bytes) -> list[str]:
    """The modules that a file imports as such."""
    names = (part.split()[0].decode() for m in _IMPORT.finditer(data) for part in m[1].split(b",") if part.strip())
    return [name for name in names if name.partition(".")[0] not in _OTHERS]


def words_of(data: bytes) -> set[str]:
    """The words of a file, as far as they are ASCII."""
    return {word.decode("utf-8", "replace") for word in set(_WORD.findall(data))}


def compiles_more(data: bytes) -> bool:
    """Whether a file compiles anything but functions of its own that call nothing which the package defines."""
    if b"compile" not in data or b"mlx" not in data:
        return False
    imports = imports_of(data).items()
    names = {name.encode() for name, froms in imports if any(m.partition(".")[0] not in _OTHERS for m in froms)}
    for m in _COMPILE.finditer(data):
        decorated = _DECORATED.match(data, data.rfind(b"\n", 0, m.start()) + 1)
        if decorated is None:
            line = data[data.rfind(b"\n", 0, m.start()) + 1 : m.start()]
            if b"#" not in line:
                return True
        elif names.intersection(_WORD.findall(decorated[0])):
            return True
    return False


def differentiates(data: bytes) -> bool:
    """Whether a file may take a gradient."""
    return b"grad" in data and b"mlx" in data


_summaries: OrderedDict[tuple[str, str], ModuleSummary | None] = OrderedDict()


def summary_in(path: str, text: str) -> ModuleSummary | None:
    key = (path, text)
    if key not in _summaries:
        return _kept(key, _summarised(path, text))
    _summaries.move_to_end(key)
    return _summaries[key]


def _summarised(path: str, text: str) -> ModuleSummary | None:
    from fuselint.source.summarise import summary

    known = _scoped(path, text)
    with contextlib.suppress(RecursionError, MemoryError):
        return None if known is None else summary(path, known)
    return None


def summary_of(file: FileText, tree: ast.Module) -> ModuleSummary:
    """The summary of a file whose syntax is known: other files of its package ask for it too."""
    found = _summaries.get((file.path, file.text))
    if found is None:
        found = summarise(file, tree)
        _kept((file.path, file.text), found)
    return found


def _kept(key: tuple[str, str], summary: ModuleSummary | None) -> ModuleSummary | None:
    _summaries[key] = summary
    if len(_summaries) > KEPT:
        _summaries.popitem(last=False)
    return summary


@lru_cache(maxsize=KEPT)
def links_of(path: str, text: str) -> Links | None:
    from fuselint.source.links import links

    module, known = summary_in(path, text), _scoped(path, text)
    with contextlib.suppress(RecursionError, MemoryError):
        return None if module is None or known is None else links(known, module)
    return None


@lru_cache(maxsize=KEPT)
def mentions_in(path: str, text: str) -> Mentions | None:
    from fuselint.source.mentions import mentions

    with contextlib.suppress(UnreadableFile, RecursionError, MemoryError):
        return mentions(parse(FileText(path, text)))
    return None


@lru_cache(maxsize=2)
def _scoped(path: str, text: str) -> Scopes | None:
    """The syntax of a file, for the one or two that ask at once."""
    from fuselint.source.summarise import scoped

    file = FileText(path, text)
    with contextlib.suppress(UnreadableFile, RecursionError, MemoryError):
        return scoped(file, parse(file))
    return None
