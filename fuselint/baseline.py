"""Findings that are known and accepted: later runs show only new ones.

    paths -> findings -> .fuselint-baseline.json; later: findings without those of the file

A finding is known by its file and its id, which is made of its rule, its function and its text, not of its line. The
known findings of a file that is gone count for any other file: it was renamed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuselint import jsonfile
from fuselint.source.text import write_atomic

if TYPE_CHECKING:
    from fuselint.finding import FileResult

FILE = ".fuselint-baseline.json"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Baseline:
    """root: the folder that files are relative to. known: by file and id, what it is: `FUS201 Norm.__call__`."""

    root: Path
    known: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def name(self, path: str) -> str:
        """A file as the baseline has it."""
        return Path(os.path.relpath(os.path.abspath(path), self.root)).as_posix()

    def new(self, results: Sequence[FileResult]) -> tuple[list[FileResult], int]:
        """The results without what is known, and how many findings are."""
        homeless = Counter(i for file, ids in self.known.items() if not (self.root / file).exists() for i in ids)
        out, count = [], 0
        for r in results:
            ids = self.known.get(self.name(r.path))
            shown = []
            for f in r.findings:
                if ids is None and homeless[f.id] > 0:
                    homeless[f.id] -= 1
                elif ids is None or not f.id or f.id not in ids:
                    shown.append(f)
            count += len(r.findings) - len(shown)
            out.append(replace(r, findings=tuple(shown)))
        return out, count

    def taken(self, results: Iterable[FileResult], paths: Collection[str]) -> Baseline:
        """The baseline with today's findings of `paths` in place of those that it had there."""
        within = [self.name(p) for p in paths]
        kept = {file: ids for file, ids in self.known.items() if not any(_below(file, p) for p in within)}
        kept = {file: ids for file, ids in kept.items() if (self.root / file).exists()}
        for r in results:
            ids = {f.id: f"{f.code} {f.function}".strip() for f in r.findings if f.id}
            if ids:
                kept[self.name(r.path)] = ids
        return Baseline(self.root, kept)

    def __len__(self) -> int:
        return sum(len(ids) for ids in self.known.values())


def _below(file: str, folder: str) -> bool:
    return folder in (".", file) or file.startswith(f"{folder}/")


def find(start: Path) -> Path | None:
    """The nearest baseline, from `start` upwards."""
    return next((p for folder in (start, *start.parents) if (p := folder / FILE).is_file()), None)


def load(path: Path) -> Baseline:
    """Raises ConfigError for what isn't a baseline."""
    data = jsonfile.load(path, "; write it anew with `fuselint baseline`")
    version = data["version"]
    if version.as_(int) != VERSION:
        raise version.wrong("that of another version of fuselint")
    known = {file: {i: what.as_(str) for i, what in ids.items()} for file, ids in data["findings"].items()}
    return Baseline(path.resolve().parent, known)


def save(baseline: Baseline, path: Path) -> None:
    """Sorted, one finding a line: a change of the code is a small change of the file."""
    findings = {file: dict(sorted(ids.items())) for file, ids in sorted(baseline.known.items())}
    text = json.dumps({"version": VERSION, "findings": findings}, indent=1) + "\n"
    write_atomic(path, text.encode("ascii"))
