"""Results of checks, kept between runs in a SQLite file: what nothing touched since is not analysed again.

A result is valid for a file's text, the settings, the version of fuselint and of what it stands on, and all that its
analysis read of other files (`FileResult.reads`). Where nothing at all changed, which the times of the files tell
(`world.py`), every result of that state is valid. Else each is asked for what it read.

A cache that is damaged, locked, read-only, of another version or on a full disk costs time, and never changes a
result: every row has a checksum, and whatever goes wrong with the file means that there is nothing in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as once
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fuselint.chips import chosen
from fuselint.config import Configuration, Settings
from fuselint.errors import UnreadableFile
from fuselint.finding import UNREADABLE, FileResult
from fuselint.plain import dumps, loads
from fuselint.plugins import packages
from fuselint.source.modules import COMPILED, FILES, KIND, package_folder
from fuselint.source.text import fingerprint, read
from fuselint.world import World

if TYPE_CHECKING:
    from fuselint.package import Package

FOLDER = ".fuselint_cache"
FILE = "results-1.sqlite"
"""Its number is that of the tables."""

Key = tuple[str, str]
"""A scope, and the path of a file as it was given."""

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError)
"""What reading a text that nobody wrote may raise."""

SCOPES = 16
"""Settings, versions and folders whose results are kept: those that were used last."""

WAIT = 2.0
"""Seconds to wait for another process that writes."""

TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of fuselint: it can be removed at any time.\n"
TABLES = """
CREATE TABLE IF NOT EXISTS world (id INTEGER PRIMARY KEY, state TEXT, checksum TEXT);
CREATE TABLE IF NOT EXISTS scopes (scope TEXT PRIMARY KEY, used INTEGER);
CREATE TABLE IF NOT EXISTS results (scope TEXT, path TEXT, text TEXT, generation TEXT, result TEXT, checksum TEXT,
    reads TEXT, PRIMARY KEY (scope, path));
"""


def check_paths(
    paths: Sequence[str], configuration: Configuration, jobs: int | None, folder: Path | None
) -> Iterator[FileResult]:
    """As `engine.check_paths`, with what the cache in `folder` knows; without a folder, with none."""
    if folder is None:
        from fuselint.engine import check_paths as check

        yield from check(paths, configuration, jobs)
        return
    run = _Run(paths, configuration, Store(folder))
    yield from run.results(jobs)


# -- what a result depends on -----------------------------------------------------------------------------------------


def scope_of(settings: Settings) -> str:
    """A hash of all that results depend on, besides the text of files."""
    what = replace(
        settings, output_format="full", cache=True, exclude=(), extend_exclude=(), notebooks=False, origins={}
    )
    return fingerprint(repr((what, chosen(settings.chip)[0].key, os.getcwd(), _version())))


@once
def _version() -> str:
    """This fuselint, its rules and plugins, and what parses for them."""
    names = ["fuselint", "libcst", *(value.partition(".")[0] for _, value in packages())]
    parts = [sys.version, repr(packages())]
    for name in names:
        spec = find_spec(name)
        for where in spec.submodule_search_locations or () if spec is not None else ():
            parts += _stamps(where, deep=name != "libcst")
    here = Path(__file__).parent
    for rules in ("checks", "fixers"):  # in a checkout they stand beside the package
        parts += _stamps(os.fspath(here.parent / rules)) if not (here / rules).is_dir() else []
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _stamps(folder: str, deep: bool = True) -> list[str]:
    """The files of a folder, with their sizes and times."""
    out: list[str] = []
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            if entry.is_dir():
                out += _stamps(entry.path) if deep and entry.name != "__pycache__" else []
            elif not entry.name.endswith(".pyc"):
                at = entry.stat()
                out.append(f"{entry.path} {at.st_size} {at.st_mtime_ns}")
    return out


# -- one run ----------------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A kept result."""

    path: str
    text: str
    generation: str
    result: str
    checksum: str


class _Run:
    """The results of some files: kept ones, and those of the others made and kept."""

    def __init__(self, paths: Sequence[str], configuration: Configuration, store: Store) -> None:
        self.paths, self.configuration, self.store = paths, configuration, store
        self.settings = {path: configuration.of(path) for path in paths}
        scopes = {id(s): scope_of(s) for s in {id(s): s for s in self.settings.values()}.values()}
        self.scopes = {path: scopes[id(s)] for path, s in self.settings.items()}
        self.all_scopes = {*scopes.values(), scope_of(configuration.of_folder("."))}
        self._answers: dict[str, str] = {}

    def results(self, jobs: int | None) -> Iterator[FileResult]:
        rows = self.store.load(self.all_scopes)
        world = self.store.world
        world.refresh()
        absolute = [os.path.abspath(path) for path in self.paths]
        for folder in sorted({package_folder(at) for at in {os.path.dirname(a) for a in absolute}}):
            world.know(folder)
        for at in absolute:
            world.take(at)
        kept = {p: r for p in self.paths if (r := self._kept(p, rows.get((self.scopes[p], p)))) is not None}
        made: dict[Key, FileResult] = {}
        try:
            yield from self._all(kept, made, jobs)
        finally:
            self.store.save(made, self.all_scopes)

    def _all(
        self, kept: Mapping[str, FileResult], made: dict[Key, FileResult], jobs: int | None
    ) -> Iterator[FileResult]:
        missing = [p for p in self.paths if p not in kept]
        if not missing and self.all_scopes <= self.store.scopes:  # whose selection of rules is known to be right
            yield from (kept[p] for p in self.paths)
            return
        from fuselint.engine import check_paths as check

        fresh = check(missing, self.configuration, jobs, self._package)
        for path in self.paths:
            result = kept[path] if path in kept else next(fresh)
            if path not in kept and _lasts(result):
                made[self.scopes[path], path] = result
            yield result
        yield from fresh  # nothing is left, but where nothing was missing its settings are looked at

    def _kept(self, path: str, row: _Row | None) -> FileResult | None:
        """The result of a row, if it still holds."""
        world = self.store.world
        if row is None or row.text != world.take(os.path.abspath(path)):
            return None
        try:
            if row.generation != world.generation:
                if not self._holds(path):
                    return None
                self.store.confirmed.append((self.scopes[path], path))
            return _with_text(loads(FileResult, row.result) if row.result else FileResult(path))
        except MALFORMED:
            return None

    def _holds(self, path: str) -> bool:
        """Whether all that a result read of other files is as it was."""
        reads = self.store.reads((self.scopes[path], path))
        settings = self.settings[path]
        if (settings.hot or settings.cold) and any(note.startswith(COMPILED) for note in reads):
            return False  # they change what the file says of its functions
        return all(self._answer(note) == said for note, said in reads.items())

    def _answer(self, note: str) -> str:
        known = self.store.world.entries.get(note)
        if known is not None:
            return known[1]
        if note not in self._answers:
            self._answers[note] = self._package.answer(note)
        return self._answers[note]

    @cached_property
    def _package(self) -> Package:
        from fuselint.package import Package

        return Package()


def _lasts(result: FileResult) -> bool:
    """Whether a result is worth keeping: no fault, no file that can't be read, no notebook, and a name that is text."""
    if result.errors or result.cells or any(f.code == UNREADABLE for f in result.findings):
        return False
    return not any("\ud800" <= c <= "\udfff" for c in result.path)


def _with_text(result: FileResult) -> FileResult:
    """A kept result with the file's text, where there is something to show."""
    if not result.findings and not result.near_misses:
        return result
    with contextlib.suppress(UnreadableFile):
        return replace(result, text=read(result.path).text)
    raise ValueError(result.path)  # gone meanwhile


# -- the file ---------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """The SQLite file in a folder, and the state of the disk that it was written for."""

    folder: Path
    world: World = field(default_factory=World)
    scopes: set[str] = field(default_factory=set)  # that had results before
    confirmed: list[Key] = field(default_factory=list)  # rows that still hold although something changed
    _before: str = ""  # the world as it was loaded
    _damaged: bool = False

    def load(self, scopes: Iterable[str]) -> dict[Key, _Row]:
        """The kept results of some scopes, without those that are damaged; none where the file is."""
        out: dict[Key, _Row] = {}
        try:
            with self._opened() as db:
                found = db.execute("SELECT state, checksum FROM world").fetchone()
                if found is None:
                    return {}
                if fingerprint(found[0]) != found[1]:
                    raise ValueError("another state than was written")
                self._before, self.world = found[0], World.of(json.loads(found[0]))
                self.scopes = {scope for (scope,) in db.execute("SELECT scope FROM scopes")}
                for scope in scopes:
                    rows = db.execute(f"SELECT {', '.join(_Row._fields)} FROM results WHERE scope = ?", (scope,))
                    for row in map(_Row._make, rows):
                        if row.checksum == _checksum(scope, row.path, row.text, row.result):
                            out[scope, row.path] = row
        except (sqlite3.Error, OSError, *MALFORMED) as e:
            self._damaged = not (isinstance(e, OSError) or "locked" in str(e) or "unable to open" in str(e))
            self.world, self.scopes, self._before = World(), set(), ""
            return {}
        return out

    def reads(self, key: Key) -> dict[str, str]:
        """What a kept result read of other files, by note. Raises ValueError where that is damaged."""
        try:
            with self._opened() as db:
                (text,) = db.execute("SELECT reads FROM results WHERE scope = ? AND path = ?", key).fetchone()
            checksum, _, plain = text.partition(" ")
            if checksum == _checksum(*key, plain):
                found: dict[str, str] = json.loads(plain)
                return found
        except (sqlite3.Error, OSError, *MALFORMED) as e:
            raise ValueError("damaged") from e
        raise ValueError("damaged")

    def save(self, made: Mapping[Key, FileResult], scopes: Iterable[str]) -> None:
        """Keep results, where the disk still is as it was before they were made."""
        if not (made or self.confirmed or self.world.changed or not self.scopes.issuperset(scopes)):
            return
        is_new = self._know_folders(made)
        if not self._settled(made):
            return
        with contextlib.suppress(sqlite3.Error, OSError):
            if _is_led_out(self.folder):
                return
            self._prepare()
            with self._opened() as db:
                db.executescript(TABLES)
                db.execute("BEGIN IMMEDIATE")
                found = db.execute("SELECT state FROM world").fetchone()
                if found is None or found[0] == self._before:
                    state = json.dumps(self.world.plain(), separators=(",", ":"))
                    db.execute("INSERT OR REPLACE INTO world VALUES (1, ?, ?)", (state, fingerprint(state)))
                    self._write(db, made, "" if is_new else self.world.generation)
                else:  # another process has written of another state: results are asked for what they read
                    self._write(db, made, "")
                self._forget(db, scopes)
                db.execute("COMMIT")

    def _know_folders(self, made: Mapping[Key, FileResult]) -> bool:
        """Takes the packages that results asked about; whether one was new, and may have changed since it was asked."""
        asked = {n[len(FILES) :] for r in made.values() for n, _ in r.reads if n.startswith(FILES)}
        new = asked - self.world.folders
        for folder in new:
            self.world.know(folder)
        return bool(new)

    def _settled(self, made: Mapping[Key, FileResult]) -> bool:
        """Takes what the results read besides; whether all is as they read it."""
        for result in made.values():
            for note, said in result.reads:
                if (os.path.isabs(note) or note.startswith(KIND)) and self.world.take(note) != said:
                    return False
        return self.world.stands()

    def _write(self, db: sqlite3.Connection, made: Mapping[Key, FileResult], generation: str) -> None:
        again = [(generation, *key) for key in self.confirmed]
        db.executemany("UPDATE results SET generation = ? WHERE scope = ? AND path = ?", again)
        rows = (self._row(key, result, generation) for key, result in made.items())
        db.executemany(f"INSERT OR REPLACE INTO results VALUES ({', '.join('?' * 7)})", rows)

    def _row(self, key: Key, result: FileResult, generation: str) -> tuple[str, ...]:
        scope, path = key
        text = self.world.take(os.path.abspath(path))
        bare = replace(result, text="", reads=())
        plain = "" if bare == FileResult(path) else dumps(bare)
        reads = json.dumps(dict(result.reads), separators=(",", ":"))
        checked = f"{_checksum(scope, path, reads)} {reads}"
        return scope, path, text, generation, plain, _checksum(scope, path, text, plain), checked

    def _forget(self, db: sqlite3.Connection, scopes: Iterable[str]) -> None:
        """Note that scopes were used, and drop the results of those that were not for longest."""
        (last,) = db.execute("SELECT max(used) FROM scopes").fetchone()
        db.executemany("INSERT OR REPLACE INTO scopes VALUES (?, ?)", [(s, (last or 0) + 1) for s in scopes])
        kept = "SELECT scope FROM scopes ORDER BY used DESC LIMIT ?"
        db.execute(f"DELETE FROM scopes WHERE scope NOT IN ({kept})", (SCOPES,))
        db.execute("DELETE FROM results WHERE scope NOT IN (SELECT scope FROM scopes)")

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((".gitignore", "*\n"), ("CACHEDIR.TAG", TAG)):
            if not os.path.lexists(self.folder / name):
                (self.folder / name).write_text(text, encoding="utf-8")
        if self._damaged:
            (self.folder / FILE).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if not self.folder.is_dir():
            raise FileNotFoundError(self.folder)
        if _is_led_out(self.folder):
            raise OSError("a link: what is written must stay in the folder")
        db = sqlite3.connect(self.folder / FILE, timeout=WAIT, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")  # what a crash leaves half done, checksums tell
            yield db
        finally:
            db.close()


def _is_led_out(folder: Path) -> bool:
    """Whether a link would have others written to: a repository may bring one along, under the cache's name."""
    if folder.name == FOLDER and folder.is_symlink():
        return True
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return any(entry.is_symlink() for entry in entries)
    return False


def _checksum(*parts: str) -> str:
    return fingerprint("\0".join(parts))
