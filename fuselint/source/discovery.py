"""Paths -> the Python files to look at, in a stable order: folders are walked, .gitignore and excludes are kept to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from fuselint.config import Configuration, Globs, Settings
from fuselint.errors import FuselintError
from fuselint.source.text import slashed

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NEVER = frozenset(
    {
        ".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pytest_cache",
        ".ruff_cache", ".svn", ".tox", ".venv", "__pycache__", "__pypackages__", "_build", "build", "dist",
        "node_modules", "site-packages", "venv",
    }
)  # fmt: skip
"""Folders that a walk does not enter, unless a setting takes them back. One named on the command line is walked."""


@dataclass(frozen=True)
class Ignore:
    """Patterns of one .gitignore, or of a setting, relative to `base`."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """True: ignored, False: explicitly not ignored, None: nothing said. `path` is absolute."""
        if path == self.base or not path.startswith(self.base.rstrip(os.sep) + os.sep):
            return None
        relative = path[len(self.base) :].lstrip(os.sep)
        return self.spec.check_file(relative + "/" if is_dir else relative).include


def python_files(
    paths: Sequence[str],
    configuration: Configuration,
    skipped: Callable[[str, str], None] = lambda path, why: None,
) -> list[str]:
    """The files of `paths`, each once, folders in sorted order. `skipped` hears of links that lead nowhere.

    A file that has several names, by symbolic links, goes by the first. The order is that of walking through all of
    them, whatever order they are given in.
    """
    found: dict[str, str] = {}  # by real path
    folders: dict[str, str] = {}

    def add(path: str) -> None:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folders[folder], name)
        found[real] = min(found.get(real, path), path, key=_place)

    for path in paths:
        try:
            is_dir = os.path.isdir(path) if os.stat(path) else False
        except OSError as e:
            raise FuselintError(f"{path}: {e.strerror}") from e
        if is_dir:
            for file in _walk(path, configuration, skipped):
                add(file)
        elif not (configuration.of(path).force_exclude and is_excluded(path, configuration)):
            add(os.path.normpath(path))
    return [slashed(path) for path in sorted(found.values(), key=_place)]


def _place(path: str) -> list[tuple[bool, str]]:
    """Where a walk comes by: the files of a folder, and then those of the folders in it."""
    *folders, name = path.split(os.sep)
    return [*((True, folder) for folder in folders), (False, name)]


def covers(globs: Globs, path: str) -> bool:
    """Whether a file, or a folder that it lies in, matches; where the only pattern begins with `!`, it does not."""
    absolute = os.path.abspath(path)
    if len(globs.patterns) == 1 and globs.patterns[0].startswith("!"):
        return not _compiled(Globs(globs.folder, (globs.patterns[0][1:],))).verdict(absolute, False)
    return bool(_compiled(globs).verdict(absolute, False))


@cache
def _compiled(globs: Globs) -> Ignore:
    return _spec(globs.folder, globs.patterns)


def is_excluded(path: str, configuration: Configuration) -> bool:
    """Whether the settings leave out a file, or a folder that it lies in, where a walk would come by."""
    at, here = os.path.abspath(path), os.getcwd()
    is_dir = False
    while (folder := os.path.dirname(at)) != at:
        if _left_out(at, is_dir, configuration.of_folder(folder), never=at.startswith(here + os.sep)):
            return True
        at, is_dir = folder, True
    return False


def _left_out(path: str, is_dir: bool, settings: Settings, never: bool = True) -> bool:
    """`path` is absolute. The last pattern that fits decides, and `!` takes back, also what is never source."""
    for globs in reversed((*settings.exclude, *settings.extend_exclude)):
        verdict = _compiled(globs).verdict(path, is_dir)
        if verdict is not None:
            return verdict
    return never and is_dir and os.path.basename(path) in NEVER


def _spec(base: str, lines: Sequence[str]) -> Ignore:
    from pathspec import GitIgnoreSpec

    return Ignore(os.path.abspath(base), GitIgnoreSpec.from_lines(lines))


def _gitignore(folder: str) -> Ignore | None:
    path = Path(folder, ".gitignore")
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return None
    return _spec(folder, text.splitlines()) if text.strip() else None


def _above(folder: str) -> list[Ignore]:
    """The .gitignore files between the repository's root and `folder`, which is not included."""
    here = Path(os.path.abspath(folder))
    parents = []
    for parent in here.parents:
        parents.append(parent)
        if (parent / ".git").exists():
            return [i for p in reversed(parents) if (i := _gitignore(str(p)))]
    return []


def _walk(root: str, configuration: Configuration, skipped: Callable[[str, str], None]) -> Iterator[str]:
    inside_git, real = (Path(root) / ".git").exists(), os.path.join(os.path.realpath(root), "")
    stack: list[tuple[str, list[Ignore]]] = [(os.path.normpath(root), [] if inside_git else _above(root))]
    while stack:
        folder, above = stack.pop()
        settings = configuration.of_folder(folder)
        own = _gitignore(folder)
        ignores = [*above, own] if own else above
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as e:
            skipped(folder, e.strerror or "can't be listed")
            continue
        suffixes = (".py", ".ipynb") if settings.notebooks else (".py",)
        folders = []
        for entry in entries:
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                if not (is_dir or entry.name.endswith(suffixes)) or _ignored(entry.path, is_dir, ignores, settings):
                    continue
                if is_dir:
                    folders.append((entry.path, ignores))
                elif entry.is_symlink() and not os.path.isfile(entry.path):
                    os.stat(entry.path)  # a link to a folder is not followed; one that leads nowhere says why
                elif entry.is_symlink() and not os.path.realpath(entry.path).startswith(real):
                    skipped(entry.path, f"a link that leads out of {root}")
                else:
                    yield os.path.normpath(entry.path)
            except OSError as e:
                skipped(entry.path, e.strerror or "can't be read")
        stack.extend(reversed(folders))


def _ignored(path: str, is_dir: bool, ignores: Sequence[Ignore], settings: Settings) -> bool:
    said = ignores or settings.exclude or settings.extend_exclude
    absolute = os.path.abspath(path) if said else path
    if _left_out(absolute, is_dir, settings):
        return True
    for ignore in reversed(ignores if settings.respect_gitignore else ()):  # the deepest file has the last word
        verdict = ignore.verdict(absolute, is_dir)
        if verdict is not None:
            return verdict
    return False
