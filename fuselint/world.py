"""What stands on the disk: fingerprints of files and folders, and which of them changed since they were taken.

A file whose size, times and inode are as they were is not read again, unless it was written so shortly before it was
read that a second write could look the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fuselint.errors import UnreadableFile
from fuselint.source.modules import KIND, package_folder
from fuselint.source.text import fingerprint, read

SETTLED = 2.0
"""Seconds after which a second write of a file has another time, on any file system."""

MOST = 50_000
"""Entries. A world that grew beyond is begun anew."""


@dataclass
class World:
    """Fingerprints by key: the absolute path of a file, that of a folder with a separator at its end, or `kind of`
    a path.

    generation: a name for this state; it changes whenever anything that was known changes.
    """

    generation: str = ""
    entries: dict[str, tuple[str, str]] = field(default_factory=dict)  # key -> its signature and its fingerprint
    folders: set[str] = field(default_factory=set)  # packages of which every folder and Python file is known
    changed: bool = False  # since it was loaded

    def refresh(self) -> None:
        """Look again at all that is known."""
        differs, changed_folders = not self.generation, set[str]()
        for key, (signature, known) in list(self.entries.items()):
            if signature and signature == _signature(key):
                continue
            self.entries[key] = new = _taken(key)
            self.changed |= new != (signature, known)
            if new[1] != known:
                differs = True
                if key.endswith(os.sep):  # it may hold other files now
                    changed_folders |= {f for f in self.folders if key.startswith(f + os.sep)}
        if differs:
            self.folders -= changed_folders
            for folder in {package_folder(f) for f in [*self.folders, *changed_folders]}:
                self.know(folder)
            self.generation = os.urandom(16).hex()
            self.changed = True

    def know(self, folder: str) -> None:
        """Take every folder and Python file of a package; of a folder that is none, what lies directly in it."""
        if folder in self.folders:
            return
        self.folders.add(folder)
        self.changed = True
        is_package = os.path.isfile(os.path.join(folder, "__init__.py"))
        for at, inner, names in os.walk(folder):
            self.take(at + os.sep)
            self.take_all(os.path.join(at, name) for name in names if name.endswith(".py"))
            if not is_package:
                inner.clear()
        self.take_all([f"{KIND}{os.path.join(folder, '__init__.py')}"])
        self.take_all([f"{KIND}{os.path.join(os.path.dirname(folder), '__init__.py')}"])

    def take(self, key: str) -> str:
        """The fingerprint of a key, "" where there is nothing to be read."""
        if key not in self.entries:
            self.entries[key] = _taken(key)
            self.changed = True
        return self.entries[key][1]

    def take_all(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.take(key)

    def stands(self) -> bool:
        """Whether everything still is as it was taken."""
        return all(
            signature == _signature(key) if signature else _taken(key)[1] == known
            for key, (signature, known) in self.entries.items()
        )

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {"generation": self.generation, "entries": self.entries, "folders": sorted(self.folders)}

    @staticmethod
    def of(plain: Mapping[str, object]) -> World:
        """What `plain` gave; an empty world where that has grown too large."""
        entries, folders = plain["entries"], plain["folders"]
        assert isinstance(entries, dict) and isinstance(folders, list)
        if len(entries) > MOST:
            return World()
        return World(str(plain["generation"]), {k: (s, f) for k, (s, f) in entries.items()}, set(folders))


def _signature(key: str) -> str:
    """What tells that a file was written, or a folder's list changed; a kind is told by itself."""
    if key.startswith(KIND):
        return f"kind {_kind(key[len(KIND) :])}"
    try:
        at = os.stat(key)
    except OSError:
        return "missing"
    return f"{at.st_mtime_ns} {at.st_ctime_ns} {at.st_size} {at.st_ino}"


def _taken(key: str) -> tuple[str, str]:
    if key.startswith(KIND):
        kind = _kind(key[len(KIND) :])
        return f"kind {kind}", fingerprint(kind)
    before, now = _signature(key), time.time()
    made = _list(key) if key.endswith(os.sep) else _text(key)
    settled = before == "missing" or all(int(t) < (now - SETTLED) * 1e9 for t in before.split()[:2])
    return (before if settled and before == _signature(key) else ""), made


def _kind(path: str) -> str:
    """As modules ask for it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return ""
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else ""


def _text(path: str) -> str:
    """The fingerprint of a file's text, as a note of it has it."""
    try:
        return read(path).fingerprint
    except UnreadableFile:
        return ""


def _list(folder: str) -> str:
    """The fingerprint of the Python files and folders in a folder."""
    try:
        held = sorted(e.name + "/" * e.is_dir() for e in os.scandir(folder) if e.name.endswith(".py") or e.is_dir())
    except OSError:
        return ""
    return fingerprint("\n".join(n for n in held if n != "__pycache__/"))
