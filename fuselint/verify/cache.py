"""Outcomes kept between runs.

A SQLite file, so that several processes may use it at once. Losing it costs time only.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from dataclasses import asdict, replace
from functools import cache as once
from pathlib import Path
from types import TracebackType

import fuselint
from fuselint.finding import Region, Took, Verification
from fuselint.plain import dumps, loads


@once
def _judge_hash() -> str:
    """A hash of this package's own source: a changed judge forgets what it said."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Cache:
    """Outcomes by a hash of the region's text and inputs, the judge, and `scope` (MLX version, device, seed)."""

    def __init__(self, folder: Path | str | None, scope: str) -> None:
        self._scope = f"{_judge_hash()} {getattr(fuselint, '__version__', '')} {scope}"
        self._folder = Path(folder) if folder is not None else None
        self._db: sqlite3.Connection | None = None

    def __enter__(self) -> Cache:
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                (self._folder / ".gitignore").write_text("*\n")
                self._db = sqlite3.connect(self._folder / "verify.sqlite", timeout=5)
                self._db.execute("CREATE TABLE IF NOT EXISTS outcomes (key TEXT PRIMARY KEY, outcome TEXT)")
            except (OSError, sqlite3.Error):
                self._db = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._db is not None:
            self._db.close()

    def key(self, region: Region) -> str:
        text = json.dumps(asdict(region), sort_keys=True, default=str)
        return hashlib.sha256(f"{self._scope}\n{text}".encode()).hexdigest()

    def get(self, key: str) -> Verification | None:
        if self._db is None:
            return None
        try:
            row = self._db.execute("SELECT outcome FROM outcomes WHERE key = ?", (key,)).fetchone()
            return replace(loads(Verification, row[0]), took=Took()) if row else None
        except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError):
            return None

    def put(self, key: str, outcome: Verification) -> None:
        if self._db is None:
            return
        try:
            with self._db:
                row = (key, dumps(outcome))
                self._db.execute("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", row)
        except sqlite3.Error:
            return
