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
from fuselint.source.modules import READING, Modules, package_folder, python_files
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

    run: tells one run from another, which may find other files.
    """

    overlay: Mapping[str, str] = field(default_factory=dict, compare=False)
    run: int = field(default_factory=monotonic_ns)

    def modules(self) -> Modules:
        """The files of the package as modules, shared by all that this process analyses in this run."""
        return _modules(self)

    def answer(self, note: str) -> str:
        """What a note of `FileResult.reads` would say now."""
        modules = self.modules()
        answer = modules.ask_again(note)
        if answer is not None:
            return answer
        name, _, path = note.removeprefix(READING).partition(" of ")
        with modules.noting() as notes:
            modules.note_reading(path, name, self.others_read(path)(name))
        return notes[note]

    def others_read(self, path: str) -> Callable[[str], bool]:
        """Whether any other file of the package of `path` reads a name."""
        here = os.path.abspath(path)
        module = Path(here).parent.name if Path(here).name == "__init__.py" else Path(here).stem

        def is_read(name: str) -> bool:
            word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
            for other, data in _contents(package_folder(os.path.dirname(here)), self.run):
                text = self.overlay.get(other, data)
                if other == here:
                    continue
                if text is None:
                    return True  # nobody knows
                holds = name in text if isinstance(text, str) else word.search(text) is not None
                if holds and _reads(other, text).of(name, module):
                    return True
            return False

        return is_read


@lru_cache(maxsize=1)  # files come package by package
def _contents(folder: str, run: int) -> tuple[tuple[str, bytes | None], ...]:
    """The Python files of a package, with what is in them; of a folder, where it is none."""
    return tuple((path, content(path)) for path in python_files(folder) if os.path.isfile(path))


@lru_cache(maxsize=2)
def _modules(package: Package) -> Modules:
    return Modules(package.overlay)


def _reads(path: str, content: bytes | str) -> Reads:
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
