"""A committed ceiling for what functions launch and move, like a check of a bundle's size.

    paths -> census of each function -> .fuselint-budget.json; later: census against the file -> changes

Functions are compared at the same sizes and dtype, whatever has become the assumption since. The file holds no line
numbers, so that it changes where the code's traffic does and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fuselint import __version__, jsonfile
from fuselint.config import DTYPES, Settings
from fuselint.engine import each
from fuselint.errors import ConfigError, FuselintError, UnreadableFile
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.program import Program
from fuselint.graph.symbols import evaluate
from fuselint.jsonfile import Value
from fuselint.package import Package
from fuselint.source.cold import overridden
from fuselint.source.project import summarise
from fuselint.source.screen import screen
from fuselint.source.text import FileText, read, write_atomic
from fuselint.traffic.census import census

FILE = ".fuselint-budget.json"
SLACK = 1000
"""Formulas leave out terms that don't matter: bytes may grow by one part in so many."""
ALIKE = 0.5
"""The share of equal lines from which a function counts as another one renamed."""

Key = tuple[str, str]
"""A file, relative to the budget's folder, and a function's qualified name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One function. lines: by a digest of a line's text, its launches and bytes. Not in the file: line, texts, and
    typical, the sizes that nothing says."""

    launches: int
    bytes: int
    formula: str
    at: Mapping[str, int]
    lines: Mapping[str, tuple[int, int]]
    line: int = 0
    texts: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    typical: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """paths: what it was made of. shape, dtype: the sizes that were stated, and of activations."""

    functions: Mapping[Key, Entry]
    paths: tuple[str, ...] = (".",)
    dtype: str = "bf16"
    shape: Mapping[str, int] = field(default_factory=dict)
    version: str = __version__


Kind = Literal["raised", "lowered", "same", "new", "gone"]


@dataclass(frozen=True, slots=True)
class Change:
    """A function before and now, at the same sizes. was: its key in the file, where it is another one.

    bytes_before: at the sizes that `after` is at. lines: (line, text, more launches, more bytes) that are new.
    """

    kind: Kind
    key: Key
    before: Entry | None
    after: Entry | None
    was: Key | None = None
    bytes_before: int = 0
    lines: tuple[tuple[int, str, int, int], ...] = ()


# -- counting ---------------------------------------------------------------------------------------------------------


def measure(files: Sequence[str], settings: Settings, root: Path, jobs: int | None = None) -> tuple[Budget, list[str]]:
    """The functions of files, and what could not be read. Keys are relative to `root`."""
    functions: dict[Key, Entry] = {}
    problems: list[str] = []
    for path, (entries, said) in zip(files, each(_of_file, [(f, settings) for f in files], jobs), strict=True):
        functions.update({(relative(path, root), name): e for name, e in entries.items()})
        problems += said
    return Budget(functions, dtype=settings.activation, shape=settings.shape), problems


def _of_file(task: tuple[str, Settings]) -> tuple[dict[str, Entry], list[str]]:
    path, settings = task
    try:
        file = read(path)
    except UnreadableFile as e:
        return {}, [str(e)]
    screened = screen(file)
    if not screened.mlx or screened.tree is None:
        return {}, []
    program = Program(file, overridden(summarise(file, screened.tree), settings.hot, settings.cold))
    program.elsewhere = Elsewhere(program, Package().modules())
    entries: dict[str, Entry] = {}
    problems = []
    for span in screened.functions:
        try:
            entry = _entry(file, program, span.qualname, settings)
        except Exception as e:
            problems.append(f"{path}: internal error in {span.qualname}: {type(e).__name__}: {e}; please report this")
            continue
        if entry is not None:
            entries[span.qualname] = entry
    return entries, problems


def _entry(file: FileText, program: Program, qualname: str, settings: Settings) -> Entry | None:
    graph = program.graph(qualname)
    if graph is None or graph.not_understood or graph.context.cold:
        return None
    counted = census(graph, settings)
    if counted is None:
        return None
    all_lines = file.text.splitlines()
    lines: dict[str, tuple[int, int]] = {}
    texts: dict[str, tuple[int, str]] = {}
    for c in counted.lines:
        text = all_lines[c.line - 1].strip() if c.line <= len(all_lines) else ""
        digest = hashlib.sha256("".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:8]
        launches, moved = lines.get(digest, (0, 0))
        lines[digest] = (launches + len(c.kernels), moved + c.bytes)
        texts.setdefault(digest, (c.line, text))
    line = file.position(graph.source.start)[0]
    return Entry(counted.launches, counted.bytes, counted.formula, counted.at, lines, line, texts, counted.typical)


def relative(path: str, root: Path) -> str:
    return Path(os.path.relpath(os.path.abspath(path), root)).as_posix()


def covered(key: Key, files: Iterable[str], paths: Sequence[str], root: Path) -> bool:
    """Whether a measure of `files`, found in `paths`, would hold the function if it still were where it was."""
    path = root / key[0]
    measured = {relative(f, root) for f in files}
    inside = any(os.path.isdir(p) and not relative(str(path), Path(p).resolve()).startswith("..") for p in paths)
    return key[0] in measured or inside or not path.exists()


def outcome(
    old: Budget | None, files: Sequence[str], paths: Sequence[str], settings: Settings, root: Path, jobs: int | None
) -> tuple[Budget, list[Change], list[str]]:
    """Count the files again: the new budget, what changed against the old one, and what could not be read."""
    new, problems = measure(files, settings, root, jobs)
    before = old or Budget({})
    gone = [k for k in before.functions if k not in new.functions and covered(k, files, paths, root)]
    return new, compare(before, new, gone), problems


# -- the file ---------------------------------------------------------------------------------------------------------


def find(start: Path) -> Path | None:
    """The nearest budget, from `start` upwards."""
    return next((p for folder in (start, *start.parents) if (p := folder / FILE).is_file()), None)


def load(path: Path) -> Budget:
    """Raises ConfigError for what isn't a budget."""
    data = jsonfile.load(path, "; write it anew with `fuselint budget`")
    functions = {
        (file, name): _read_entry(entry) for file, listed in data["functions"].items() for name, entry in listed.items()
    }
    dtype = data["dtype"]
    if dtype.as_(str) not in DTYPES:
        raise dtype.wrong(f'"{dtype.value}", which is none of {", ".join(DTYPES)}')
    paths = tuple(p.as_(str) for p in data["paths"].elements())
    return Budget(functions, paths, dtype.value, _sizes(data["shape"]), data["fuselint"].as_(str))


def _read_entry(entry: Value) -> Entry:
    at, formula = _sizes(entry["at"]), entry["formula"]
    try:
        evaluate(formula.as_(str), at)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise formula.wrong(f'no formula of sizes in "at": {e}') from e
    lines = {line: _counted(both) for line, both in entry["lines"].items()}
    return Entry(entry["launches"].as_(int), entry["bytes"].as_(int), formula.value, at, lines)


def _counted(both: Value) -> tuple[int, int]:
    """Launches and bytes."""
    numbers = [n.as_(int) for n in both.elements()]
    if len(numbers) != 2:
        raise both.wrong("not two numbers")
    return numbers[0], numbers[1]


def _sizes(data: Value) -> dict[str, int]:
    return {name: size.as_(int) for name, size in data.items()}


def save(budget: Budget, path: Path) -> None:
    """Write the file, in one step and only where it changes. One line a function, sorted."""
    data = rendered(budget).encode("utf-8", "backslashreplace")  # names of files may be no text
    try:
        old = path.read_bytes() if path.exists() else None
        if old != data:
            write_atomic(str(path), data, expected=old)
    except OSError as e:
        raise FuselintError(f"{path}: can't be written: {e.strerror}") from e


def rendered(budget: Budget) -> str:
    def line(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)

    files: dict[str, dict[str, Entry]] = {}
    for (file, name), entry in sorted(budget.functions.items()):
        files.setdefault(file, {})[name] = entry
    listed = []
    for file, entries in files.items():
        inner = ",\n".join(f"   {line(name)}: {_entry_text(e)}" for name, e in entries.items())
        listed.append(f"  {line(file)}: {{\n{inner}\n  }}")
    head = {"fuselint": budget.version, "paths": list(budget.paths), "dtype": budget.dtype, "shape": dict(budget.shape)}
    parts = [*(f" {line(k)}: {line(v)}" for k, v in head.items()), ' "functions": {\n' + ",\n".join(listed) + "\n }"]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _entry_text(e: Entry) -> str:
    fields = {
        "launches": e.launches,
        "bytes": e.bytes,
        "formula": e.formula,
        "at": dict(sorted(e.at.items())),
        "lines": {k: list(v) for k, v in sorted(e.lines.items())},
    }
    return json.dumps(fields, ensure_ascii=False)


# -- comparing --------------------------------------------------------------------------------------------------------


def compare(old: Budget, new: Budget, gone: Iterable[Key]) -> list[Change]:
    """What became of each function. gone: keys of the old budget that the new one would hold if they still were there.

    A function that isn't in the file is taken for one that is gone: of the same name in another file, or of mostly the
    same lines.
    """
    left = {k: old.functions[k] for k in gone if k not in new.functions}
    changes = []
    fresh: list[Key] = []
    for key, after in new.functions.items():
        if key in old.functions:
            changes.append(_change(key, old.functions[key], after))
        else:
            fresh.append(key)
    for key in fresh:
        was = _earlier(key, new.functions[key], left)
        if was is None:
            changes.append(Change("new", key, None, new.functions[key]))
        else:
            changes.append(replace(_change(key, left.pop(was), new.functions[key]), was=was))
    changes += [Change("gone", key, before, None) for key, before in left.items()]
    return sorted(changes, key=lambda c: c.key)


def _earlier(key: Key, entry: Entry, left: Mapping[Key, Entry]) -> Key | None:
    moved = [k for k in left if k[1] == key[1]]
    if len(moved) == 1:
        return moved[0]
    best = max(left, key=lambda k: _likeness(entry, left[k]), default=None)
    return best if best is not None and _likeness(entry, left[best]) >= ALIKE else None


def _likeness(a: Entry, b: Entry) -> float:
    """The share of lines that both have."""
    both = len(a.lines.keys() & b.lines.keys())
    return both / len(a.lines.keys() | b.lines.keys()) if both else 0.0


def _change(key: Key, before: Entry, after: Entry) -> Change:
    bytes_before = evaluate(before.formula, {**before.at, **after.at})
    kind: Kind = "same"
    if after.launches > before.launches or after.bytes > bytes_before + bytes_before // SLACK:
        kind = "raised"
    elif after.launches < before.launches or after.bytes < bytes_before - bytes_before // SLACK:
        kind = "lowered"
    lines = tuple(_new_lines(before, after)) if kind == "raised" else ()
    return Change(kind, key, before, after, None, bytes_before, lines)


def _new_lines(before: Entry, after: Entry) -> Iterator[tuple[int, str, int, int]]:
    for digest, (launches, moved) in after.lines.items():
        old_launches, old_moved = before.lines.get(digest, (0, 0))
        if launches > old_launches or (moved > old_moved + old_moved // SLACK and after.launches <= before.launches):
            line, text = after.texts[digest]
            yield line, text, launches - old_launches, moved - old_moved


def merged(old: Budget | None, new: Budget, changes: Sequence[Change], paths: Sequence[str], raise_too: bool) -> Budget:
    """The old budget with the changes made; those that raise it only where that is wanted."""
    functions = dict(old.functions) if old else {}
    for c in changes:
        if c.kind == "raised" and not raise_too:
            continue
        if c.was is not None:
            functions.pop(c.was, None)
        if c.after is None:
            functions.pop(c.key, None)
        else:
            functions[c.key] = c.after
    known = old.paths if old else ()
    more = [p for p in paths if not any(_below(p, k) for k in known)]
    return replace(new, functions=functions, paths=(*known, *more))


def _below(path: str, folder: str) -> bool:
    return folder in (".", path) or path.startswith(f"{folder}/")


def assumptions(
    settings: Settings, old: Budget | None, path: Path, shape_given: Sequence[str], dtype_given: str | None
) -> Settings:
    """The sizes and dtype to count at: those of the budget, with the command line's sizes over them."""
    if old is None:
        return settings
    if dtype_given and settings.dtype != old.dtype:
        raise ConfigError(f"{path}: counted in {old.dtype}, not {settings.dtype}: remove it to start anew")
    given = settings.shape if shape_given else {}
    return replace(settings, dtype=old.dtype, shape={**old.shape, **given})
