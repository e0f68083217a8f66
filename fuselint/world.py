"""What stands on the disk: fingerprints of files and folders, and which of them changed since they were taken.

A file whose size, times and inode are as they were is not read again, unless it was written so shortly before it was
read that a second write could look the same.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuselint.errors import UnreadableFile
from fuselint.source.folders import package_folder
from fuselint.source.text import fingerprint, read

SETTLED = 2.0
"""Seconds after which a second write of a file has another time, on any file system."""

MOST = 50_000
"""Entries. A world that grew beyond is begun anew."""

MISSING = "missing"
LINK = "link to "


@dataclass
class Changes:
    """What is another than it was. files: with the hashes of their texts before, None where there was no such file."""

    files: dict[str, str | None] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)  # of which the list is another
    kinds: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.files or self.folders or self.kinds)


@dataclass
class World:
    """What is known of the disk. entries: fingerprints, by the absolute path of a file, or that of a folder with a
    separator at its end. kinds: by folder, the signature that it had, and what the names in it are.

    A folder whose signature is as it was holds the same names, of the same kinds; but a link may lead elsewhere.
    """

    entries: dict[str, tuple[str, str]] = field(default_factory=dict)  # key -> its signature and its fingerprint
    folders: set[str] = field(default_factory=set)  # packages of which every folder and Python file is known
    kinds: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    changed: bool = False  # since it was loaded

    def refresh(self) -> Changes:
        """Look again at all that is known; what is another now."""
        found = Changes()
        for key, (signature, known) in list(self.entries.items()):
            if signature and signature == _signature(key):
                continue
            self.entries[key] = new = _taken(key)
            self.changed |= new != (signature, known)
            if new[1] == known and (new[0] == MISSING) == (signature == MISSING):
                continue
            if key.endswith(os.sep):  # it may hold other files now
                found.folders.add(key[:-1])
            else:
                found.files[key] = None if signature == MISSING else known
        self._refresh_kinds(found)
        if found.folders or found.kinds:
            before = set(self.entries)
            looked = {f for f in self.folders if any((at + os.sep).startswith(f + os.sep) for at in found.folders)}
            self.folders -= looked
            for folder in {*looked, *map(package_folder, [*self.folders, *looked])}:
                self.know(folder)
            new_keys = self.entries.keys() - before
            found.files.update({key: None for key in new_keys if not key.endswith(os.sep)})
            found.folders.update(key[:-1] for key in new_keys if key.endswith(os.sep))
        return found

    def _refresh_kinds(self, found: Changes) -> None:
        for folder, (signature, names) in self.kinds.items():
            same = bool(signature) and signature == _signature(folder)
            looked = [name for name, kind in names.items() if not same or kind.startswith(LINK)]
            if not looked:
                continue
            now = _settled_signature(folder)
            new = {name: _kind(os.path.join(folder, name)) for name in looked}
            found.kinds |= {os.path.join(folder, n) for n in looked if _plain(new[n]) != _plain(names[n])}
            self.changed |= any(new[n] != names[n] for n in looked)
            self.kinds[folder] = now, {**names, **new}

    def know(self, folder: str) -> None:
        """Take every folder and Python file of a package; of a folder that is none, what lies directly in it."""
        if folder in self.folders:
            return
        self.folders.add(folder)
        self.changed = True
        is_package = os.path.isfile(os.path.join(folder, "__init__.py"))
        for at, inner, names in os.walk(folder):
            self.take(at + os.sep)
            for name in names:
                if name.endswith(".py"):
                    self.take(os.path.join(at, name))
            if not is_package:
                inner.clear()
        self.take_kind(os.path.join(folder, "__init__.py"))
        self.take_kind(os.path.join(os.path.dirname(folder), "__init__.py"))

    def take(self, key: str) -> str:
        """The fingerprint of a file or folder, "" where there is nothing to be read."""
        if key not in self.entries:
            self.entries[key] = _taken(key)
            self.changed = True
        return self.entries[key][1]

    def take_kind(self, path: str) -> str:
        """What a path is: "file", "folder", or "" for neither."""
        folder, name = os.path.split(path)
        if folder not in self.kinds:
            self.kinds[folder] = _settled_signature(folder), {}
        names = self.kinds[folder][1]
        if name not in names:
            names[name] = _kind(path)
            self.changed = True
        return _plain(names[name])

    def stands(self) -> bool:
        """Whether everything still is as it was taken."""
        return all(
            signature == _signature(key) if signature else _taken(key)[1] == known
            for key, (signature, known) in self.entries.items()
        ) and all(_have_same_kinds(folder, *held) for folder, held in self.kinds.items())

    def absorb(self, other: World) -> None:
        """Take what another one knows besides, that agrees."""
        self.entries = {**other.entries, **self.entries}
        self.folders |= other.folders
        for folder, (signature, names) in other.kinds.items():
            known = self.kinds.get(folder)
            self.kinds[folder] = (signature, names) if known is None else ("", {**names, **known[1]})

    def agrees(self, other: World) -> bool:
        """Whether another says the same of all that both know."""
        return all(
            _same(entry, other.entries[key]) for key, entry in self.entries.items() if key in other.entries
        ) and all(
            _plain(kind) == _plain(other.kinds[folder][1].get(name, kind))
            for folder, (_, names) in self.kinds.items()
            if folder in other.kinds
            for name, kind in names.items()
        )

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {"entries": self.entries, "folders": sorted(self.folders), "kinds": self.kinds}

    @staticmethod
    def of(plain: Mapping[str, object]) -> World:
        """What `plain` gave. Raises ValueError where that has grown too large."""
        entries, folders, kinds = plain["entries"], plain["folders"], plain["kinds"]
        assert isinstance(entries, dict) and isinstance(folders, list) and isinstance(kinds, dict)
        if len(entries) + len(kinds) > MOST:
            raise ValueError("too much")
        return World(
            {k: (s, f) for k, (s, f) in entries.items()}, set(folders), {k: (s, n) for k, (s, n) in kinds.items()}
        )


def _same(one: tuple[str, str], other: tuple[str, str]) -> bool:
    return one[1] == other[1] and (one[0] == MISSING) == (other[0] == MISSING)


def _have_same_kinds(folder: str, signature: str, names: Mapping[str, str]) -> bool:
    same = bool(signature) and signature == _signature(folder)
    looked = ((name, kind) for name, kind in names.items() if not same or kind.startswith(LINK))
    return all(_plain(_kind(os.path.join(folder, name))) == _plain(kind) for name, kind in looked)


def is_older(path: str, when: float) -> bool:
    """Whether a file or folder, or the first one above that is there, was not touched since before a time."""
    while (status := _stat(path)) is None and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return status is not None and max(status.st_mtime, status.st_ctime) < when - SETTLED


def _stat(key: str) -> os.stat_result | None:
    try:
        return os.stat(key)
    except (OSError, ValueError):
        return None


def _signature(key: str) -> str:
    """What tells that a file was written, or a folder's list changed."""
    try:
        at = os.stat(key)
    except (OSError, ValueError):
        return MISSING
    return f"{at.st_mtime_ns} {at.st_ctime_ns} {at.st_size} {at.st_ino}"


def _settled_signature(key: str) -> str:
    """A signature; "" of what was written so lately that it may be written again and look the same."""
    signature, now = _signature(key), time.time()
    settled = signature == MISSING or all(int(t) < (now - SETTLED) * 1e9 for t in signature.split()[:2])
    return signature if settled else ""


def _taken(key: str) -> tuple[str, str]:
    before = _settled_signature(key)
    made = _list(key) if key.endswith(os.sep) else _text(key)
    return (before if before == _signature(key) else ""), made


def _kind(path: str) -> str:
    """As modules ask for it, with a mark before that of a link."""
    status = _stat(path)
    mode = 0 if status is None else status.st_mode
    kind = "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else ""
    return LINK + kind if os.path.islink(path) else kind


def _plain(kind: str) -> str:
    return kind.removeprefix(LINK)


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
