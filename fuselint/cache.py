"""Results of checks, kept between runs in a SQLite file: what nothing touched since is not analysed again.

A result is valid for a file's text, the settings, the version of fuselint and of what it stands on, and all that its
analysis read of other files (`FileResult.reads`). All results in the file are valid in one state of the disk, which
the times of the files tell (`world.py`). Where that is another now, what the changes are to others (`facets.py`)
breaks results and brings answers into doubt (`ledger.py`).

A cache that is damaged, locked, read-only, of another version or on a full disk costs time, and never changes a
result: everything has a checksum, and whatever goes wrong with the file means that there is nothing in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import sys
import time
import zlib
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
from fuselint.ledger import Claim, Key, Ledger
from fuselint.plain import dumps, loads
from fuselint.plugins import packages
from fuselint.source.folders import package_folder
from fuselint.source.notes import KIND, file_of, folder_of, is_question, kind_in
from fuselint.source.text import fingerprint, read
from fuselint.world import World, is_older

if TYPE_CHECKING:
    from fuselint.package import Package

FOLDER = ".fuselint_cache"
FILE = "results-2.sqlite"
"""Its number is that of the tables."""

MALFORMED = (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError)
"""What reading a text that nobody wrote may raise."""

SCOPES = 16
"""Settings, versions and folders whose results are kept: those that were used last."""

WAIT = 2.0
"""Seconds to wait for another process that writes."""

TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# A cache of fuselint: it can be removed at any time.\n"
TABLES = """
CREATE TABLE IF NOT EXISTS world (id INTEGER PRIMARY KEY, state TEXT, checksum TEXT);
CREATE TABLE IF NOT EXISTS ledger (id INTEGER PRIMARY KEY, state TEXT);
CREATE TABLE IF NOT EXISTS texts (path BLOB PRIMARY KEY, fingerprint TEXT, text BLOB);
CREATE TABLE IF NOT EXISTS scopes (scope TEXT PRIMARY KEY, used INTEGER);
CREATE TABLE IF NOT EXISTS results (scope TEXT, path TEXT, text TEXT, result TEXT, PRIMARY KEY (scope, path));
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
    """A kept result. text: the fingerprint of its file's."""

    path: str
    text: str
    result: str


FEW = 100
"""Files that are analysed in this process at most: others are not handed what is known of their packages."""


class _Run:
    """The results of some files: kept ones, and those of the others made and kept."""

    def __init__(self, paths: Sequence[str], configuration: Configuration, store: Store) -> None:
        self.paths, self.configuration, self.store = paths, configuration, store
        self.settings = {path: configuration.of(path) for path in paths}
        scopes = {id(s): scope_of(s) for s in {id(s): s for s in self.settings.values()}.values()}
        self.scopes = {path: scopes[id(s)] for path, s in self.settings.items()}
        self.all_scopes = {*scopes.values(), scope_of(configuration.of_folder("."))}
        self.absolute = {path: os.path.abspath(path) for path in paths}
        self._given: dict[str, str] = {}

    def results(self, jobs: int | None) -> Iterator[FileResult]:
        store, world = self.store, self.store.load(self.all_scopes)
        store.look_again()
        for folder in sorted({package_folder(at) for at in {os.path.dirname(a) for a in self.absolute.values()}}):
            world.know(folder)
        for at in self.absolute.values():
            world.take(at)
        kept = {p: r for p in self.paths if (r := self._kept(p)) is not None}
        made: dict[Key, Made] = {}
        try:
            yield from self._all(kept, made, jobs)
        finally:
            store.save(made, self.all_scopes)

    def _all(self, kept: Mapping[str, FileResult], made: dict[Key, Made], jobs: int | None) -> Iterator[FileResult]:
        missing = [p for p in self.paths if p not in kept]
        if not missing and self.all_scopes <= self.store.scopes:  # whose selection of rules is known to be right
            yield from (kept[p] for p in self.paths)
            return
        from fuselint.engine import check_paths as check

        hand_picked = {p for p, s in self.settings.items() if s.hot or s.cold}
        if len(missing) < FEW and not hand_picked:
            self._given.update(self.store.ledger.certain())
        fresh = check(missing, self.configuration, jobs, self._package)
        for path in self.paths:
            result = kept[path] if path in kept else next(fresh)
            if path not in kept and _lasts(result):
                made[self.scopes[path], path] = Made(result, path not in hand_picked)
            yield result
        yield from fresh  # nothing is left, but where nothing was missing its settings are looked at

    def _kept(self, path: str) -> FileResult | None:
        """The kept result of a file, if it still holds."""
        key = self.scopes[path], path
        row = self.store.rows.get(key)
        if row is None or row.text != self.store.world.take(self.absolute[path]):
            return None
        try:
            if not self._holds(key):
                return None
            return _with_text(_result(path, row.result))
        except MALFORMED:
            return None

    def _holds(self, key: Key) -> bool:
        """Whether all that a result was told of its package is as it was."""
        if not self.store.has_doubts:
            return True
        if key not in self.store.ledger.reads:
            return False
        for claim in self.store.ledger.claims_of(key):
            if claim.in_doubt:
                notes = self._package.answer(claim.question)
                self.store.settle(claim, notes[claim.question], notes.basis[claim.question])
            if claim.is_wrong:
                return False
        return True

    @cached_property
    def _package(self) -> Package:
        from fuselint.package import Package

        return Package(given=self._given)


class Made(NamedTuple):
    """A new result. lasts: see `Ledger.enter`."""

    result: FileResult
    lasts: bool


def _lasts(result: FileResult) -> bool:
    """Whether a result is worth keeping: no fault, no file that can't be read, no notebook, and a name that is text."""
    if result.errors or result.cells or any(f.code == UNREADABLE for f in result.findings):
        return False
    return not any("\ud800" <= c <= "\udfff" for c in result.path)


def _plain(result: FileResult) -> str:
    """A result as a text: of most, the number of functions says it all."""
    bare = replace(result, text="", reads=(), basis=())
    return str(bare.functions) if bare == FileResult(bare.path, functions=bare.functions) else dumps(bare)


def _result(path: str, plain: str) -> FileResult:
    return FileResult(path, functions=int(plain)) if plain.isdecimal() else loads(FileResult, plain)


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
    """The SQLite file in a folder: results, and the state of the disk that they are valid in.

    started: when this run did. rows: the results of the scopes that were asked for.
    """

    folder: Path
    started: float = field(default_factory=time.time)
    world: World = field(default_factory=World)
    scopes: set[str] = field(default_factory=set)  # that had results before
    rows: dict[Key, _Row] = field(default_factory=dict)
    has_doubts: bool = False
    _ledger: Ledger | None = None
    _digests: dict[str, str] = field(default_factory=dict)  # of the results of each scope
    _before: str = ""  # the world as it was loaded
    _broken: set[Key] = field(default_factory=set)
    _damaged: bool = False

    # -- loading ------------------------------------------------------------------------------------------------------

    def load(self, scopes: Iterable[str]) -> World:
        """The state of the disk that results are kept for, and the results of some scopes."""
        try:
            with self._opened() as db:
                self._load(db, scopes)
        except (sqlite3.Error, OSError, *MALFORMED) as e:
            self._forget_all(e)
        return self.world

    def _load(self, db: sqlite3.Connection, scopes: Iterable[str]) -> None:
        found = db.execute("SELECT state, checksum FROM world").fetchone()
        if found is None:
            return
        if fingerprint(found[0]) != found[1]:
            raise ValueError("another state than was written")
        plain = json.loads(found[0])
        self._before, self.world = found[0], World.of(plain)
        self.has_doubts, self._digests = plain["doubts"], plain["digests"]
        self.scopes = {scope for (scope,) in db.execute("SELECT scope FROM scopes")}
        for scope in scopes:
            rows = _rows(db, scope)
            if _digest(rows) == self._digests.get(scope):
                self.rows.update(((scope, row.path), row) for row in rows)

    def _forget_all(self, why: Exception) -> None:
        self._damaged = not (isinstance(why, OSError) or "locked" in str(why) or "unable to open" in str(why))
        self.world, self.scopes, self.rows, self._digests = World(), set(), {}, {}
        self.has_doubts, self._before, self._ledger = False, "", Ledger()

    @property
    def ledger(self) -> Ledger:
        """What the results rest on; where that can't be read, there are no results."""
        if self._ledger is None:
            self._ledger = Ledger()
            if self._before:
                try:
                    with self._opened() as db:
                        self._ledger = _ledger(db, self._digests)
                except (sqlite3.Error, OSError, *MALFORMED) as e:
                    self._forget_all(e)
        assert self._ledger is not None
        return self._ledger

    def look_again(self) -> None:
        """What changed since the results were kept: those that read it are broken, and what rests on it is in doubt."""
        changes = self.world.refresh()
        if changes:
            texts = {path: self._text_before(path, known) for path, known in changes.files.items()}
            from fuselint.facets import seen

            self._broken |= self.ledger.change(seen(changes, texts))
            for key in self._broken:
                self.rows.pop(key, None)
            self.has_doubts = any(c.in_doubt for c in self.ledger.claims)

    def _text_before(self, path: str, known: str | None) -> str | None:
        """The text that a file had; None where it is not known."""
        with contextlib.suppress(sqlite3.Error, OSError, zlib.error, *MALFORMED), self._opened() as db:
            (data,) = db.execute("SELECT text FROM texts WHERE path = ?", (os.fsencode(path),)).fetchone()
            text: str = zlib.decompress(data).decode("utf-8", "surrogatepass")
            return text if fingerprint(text) == known else None
        return None

    def settle(self, claim: Claim, answer: str, basis: Iterable[str]) -> None:
        """What a question in doubt is answered now."""
        self.ledger.settle(claim, answer, basis)
        self.world.changed = True

    # -- saving -------------------------------------------------------------------------------------------------------

    def save(self, made: Mapping[Key, Made], scopes: Iterable[str]) -> None:
        """Keep results, where the disk still is as it was before they were made."""
        is_new = bool(made) or not self.scopes.issuperset(scopes)
        if not is_new and not self.world.changed:
            return
        ledger = self.ledger if is_new else self._ledger
        if not self._settled(made):
            return
        with contextlib.suppress(sqlite3.Error, OSError, *MALFORMED):
            if _is_led_out(self.folder):
                return
            self._prepare()
            with self._opened() as db:
                db.executescript(TABLES)
                db.execute("BEGIN IMMEDIATE")
                found = db.execute("SELECT state FROM world").fetchone()
                if (found[0] if found is not None else "") == self._before:
                    if ledger is None:
                        self._write_world(db)
                    else:
                        self._write(db, ledger, made, scopes, self._broken | ledger.wrong())
                else:  # another process has written meanwhile
                    other = Store(self.folder)
                    other._load(db, ())
                    if not other.world.agrees(self.world):
                        return
                    other.world.absorb(self.world)
                    other._write(db, _ledger(db, other._digests), made, scopes, set())
                db.execute("COMMIT")

    def _settled(self, made: Mapping[Key, Made]) -> bool:
        """Takes what the results read; whether all is as they read it."""
        known = set(self.world.entries)
        for result, _ in made.values():
            notes = ((note, said) for note, said in result.reads if not is_question(note))
            basis = ((leaf, None) for _, leaves in result.basis for leaf in leaves)
            if not all(self._is_as_read(leaf, said) for leaf, said in {**dict(basis), **dict(notes)}.items()):
                return False
        new = (key for key in self.world.entries if key not in known)
        return all(is_older(key, self.started) for key in new) and self.world.stands()

    def _is_as_read(self, leaf: str, said: str | None) -> bool:
        """Whether a leaf is as it was read, as far as that is told."""
        if leaf.startswith(KIND):
            path, kind = kind_in(leaf)
            return self.world.take_kind(path) == kind
        folder, file = folder_of(leaf), file_of(leaf)
        if folder is not None:
            self.world.know(folder)
        return file is None or self.world.take(file) == said or said is None

    def _write(
        self,
        db: sqlite3.Connection,
        ledger: Ledger,
        made: Mapping[Key, Made],
        scopes: Iterable[str],
        broken: set[Key],
    ) -> None:
        dropped = self._use(db, scopes)
        touched = {scope for scope, _ in (*broken, *made)}
        dropped |= {scope for scope in touched if _digest(_rows(db, scope)) != self._digests.get(scope, NOTHING)}
        db.executemany("DELETE FROM results WHERE scope = ?", [(s,) for s in dropped])
        gone = (broken | {key for key in ledger.reads if key[0] in dropped}) - made.keys()
        for key in gone:
            ledger.reads.pop(key, None)
        for key, (result, lasts) in made.items():
            ledger.enter(key, result, lasts)
        db.executemany("DELETE FROM results WHERE scope = ? AND path = ?", list(gone))
        db.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", [self._row(*m) for m in made.items()])
        for scope in touched | dropped:
            self._digests[scope] = _digest(_rows(db, scope))
        state = json.dumps(ledger.plain(), separators=(",", ":"))
        self.has_doubts = any(c.in_doubt for c in ledger.claims)
        self._digests = {**{s: d for s, d in self._digests.items() if d != NOTHING}, "": fingerprint(state)}
        db.execute("INSERT OR REPLACE INTO ledger VALUES (1, ?)", (state,))
        self._write_world(db)

    def _write_world(self, db: sqlite3.Connection) -> None:
        self._write_texts(db)
        told = {"doubts": self.has_doubts, "digests": self._digests}
        plain = json.dumps({**self.world.plain(), **told}, separators=(",", ":"))
        db.execute("INSERT OR REPLACE INTO world VALUES (1, ?, ?)", (plain, fingerprint(plain)))

    def _row(self, key: Key, made: Made) -> tuple[str, ...]:
        scope, path = key
        return scope, path, self.world.take(os.path.abspath(path)), _plain(made.result)

    def _write_texts(self, db: sqlite3.Connection) -> None:
        """Keep the text of each file, so that it can be told what of it changes."""
        held = dict(db.execute("SELECT path, fingerprint FROM texts"))
        for path, (_, known) in self.world.entries.items():
            if known and not path.endswith(os.sep) and held.get(os.fsencode(path)) != known:
                with contextlib.suppress(UnreadableFile):
                    data = zlib.compress(read(path).text.encode("utf-8", "surrogatepass"), 1)
                    db.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?)", (os.fsencode(path), known, data))

    def _use(self, db: sqlite3.Connection, scopes: Iterable[str]) -> set[str]:
        """Note that scopes were used; those of which that was longest ago, whose results are dropped."""
        (last,) = db.execute("SELECT max(used) FROM scopes").fetchone()
        db.executemany("INSERT OR REPLACE INTO scopes VALUES (?, ?)", [(s, (last or 0) + 1) for s in scopes])
        dropped = {s for (s,) in db.execute("SELECT scope FROM scopes ORDER BY used DESC LIMIT -1 OFFSET ?", (SCOPES,))}
        db.executemany("DELETE FROM scopes WHERE scope = ?", [(s,) for s in dropped])
        return dropped

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


def _rows(db: sqlite3.Connection, scope: str) -> list[_Row]:
    columns = ", ".join(_Row._fields)
    return list(map(_Row._make, db.execute(f"SELECT {columns} FROM results WHERE scope = ? ORDER BY path", (scope,))))


def _digest(rows: Iterable[_Row]) -> str:
    return fingerprint("\0".join(part for row in rows for part in row))


NOTHING = _digest(())


def _ledger(db: sqlite3.Connection, digests: Mapping[str, str]) -> Ledger:
    (state,) = db.execute("SELECT state FROM ledger").fetchone()
    if fingerprint(state) != digests.get(""):
        raise ValueError("another ledger than was written")
    return Ledger.of(json.loads(state))
