"""What the other files of a package say, and read: dead code is removed only where nothing else uses it."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import monotonic_ns

from fuselint.errors import UnreadableFile
from fuselint.source.folders import python_files
from fuselint.source.modules import Modules
from fuselint.source.notes import FILES, NAMES, READING, Notes, word_in
from fuselint.source.text import content, decode


@dataclass(frozen=True, slots=True)
class Reads:
    """The names that a file reads.

    modules: last components of the modules that it imports. own: attributes read from
    `self`: they reach another file's class only by way of an import. names: plain names, which do so by `import *`.
    attributes: all other attributes, imported names, and identifiers in strings (`getattr`, `__all__`).
    """

    modules: frozenset[str] = frozenset()
    starred: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    anything: bool = False  # it can't be read, so it may read any name

    def of(self, name: str, module: str) -> bool:
        """Whether the file may read `name` of the module with that last component."""
        if self.anything or name in self.attributes:
            return True
        if name in self.own and module in self.modules:
            return True
        return name in self.names and module in self.starred


@dataclass(frozen=True)
class Package:
    """A package as it stands on disk, with the texts of `overlay` (absolute paths) in place of their files.

    run: tells one run from another, which may find other files. given: answers to questions that are known to hold.
    """

    overlay: Mapping[str, str] = field(default_factory=dict, compare=False)
    run: int = field(default_factory=monotonic_ns)
    given: Mapping[str, str] = field(default_factory=dict, compare=False)

    def modules(self) -> Modules:
        """The files of the package as modules, shared by all that this process analyses in this run."""
        return _modules(self)

    def answer(self, question: str) -> Notes:
        """What a question is answered now, with the leaves that this rests on."""
        modules = self.modules()
        if not question.startswith(READING):
            return modules.ask_again(question)
        name, _, path = question.removeprefix(READING).partition(" of ")
        with modules.noting() as notes:
            modules.ask(question, lambda: str(self.others_read(path)(name)))
        return notes

    def others_read(self, path: str) -> Callable[[str], bool]:
        """Whether any other file of the package of `path` reads a name."""
        here = os.path.abspath(path)
        module = Path(here).parent.name if Path(here).name == "__init__.py" else Path(here).stem

        def is_read(name: str) -> bool:
            word, modules = re.compile(rb"\b%s\b" % re.escape(name.encode())), self.modules()
            folder = modules.package(os.path.dirname(here))
            modules.note(word_in(folder, name))
            modules.note(f"{FILES}{folder}")
            for other, data in _contents(folder, self.run):
                text = self.overlay.get(other, data)
                if other == here:
                    continue
                if text is None:
                    modules.note(f"{NAMES}{other}")
                    return True  # nobody knows
                holds = name in text if isinstance(text, str) else word.search(text) is not None
                if holds:
                    modules.note(f"{NAMES}{other}")
                    if reads_of(other, text).of(name, module):
                        return True
            return False

        return is_read


@lru_cache(maxsize=1)  # files come package by package
def _contents(folder: str, run: int) -> tuple[tuple[str, bytes | None], ...]:
    """The Python files of a package, with what is in them; of a folder, where it is none."""
    return tuple((path, content(path)) for path in python_files(folder) if os.path.isfile(path))


@lru_cache(maxsize=2)
def _modules(package: Package) -> Modules:
    return Modules(package.overlay, package.given)


def reads_of(path: str, content: bytes | str) -> Reads:
    """The names that a file reads."""
    if isinstance(content, bytes):
        try:
            content = decode(path, content).text
        except UnreadableFile:
            return Reads(anything=True)
    return _reads_of_text(content)


@lru_cache(maxsize=1024)
def _reads_of_text(text: str) -> Reads:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Reads(anything=True)
    modules, starred, own, names, attributes = (set[str]() for _ in range(5))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            through_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            (own if through_self else attributes).add(node.attr)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Import):
            modules.update(a.name.rpartition(".")[2] for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").rpartition(".")[2]
            imported = {a.name for a in node.names}
            modules.update({module, *imported})
            attributes |= imported
            if "*" in imported:
                starred.add(module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            attributes.add(node.value)
    return Reads(frozenset(modules), frozenset(starred), frozenset(own), frozenset(names), frozenset(attributes))
