"""Paths -> the Python files to look at, in a stable order: folders are walked, .gitignore and excludes are kept to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuselint.errors import FuselintError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

NEVER = frozenset(
    {
        ".bzr", ".direnv", ".eggs", ".git", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pytest_cache",
        ".ruff_cache", ".svn", ".tox", ".venv", "__pycache__", "__pypackages__", "_build", "build", "dist",
        "node_modules", "site-packages", "venv",
    }
)  # fmt: skip
"""Folders that a walk does not enter. A folder named on the command line is always walked."""


@dataclass(frozen=True)
class Ignore:
    """Patterns of one .gitignore, or of --exclude, relative to `base`."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """True: ignored, False: explicitly not ignored, None: nothing said. `path` is absolute."""
        relative = os.path.relpath(path, self.base)
        if relative.startswith(os.pardir):
            return None
        return self.spec.check_file(relative + "/" if is_dir else relative).include


def python_files(
    paths: Sequence[str],
    exclude: Sequence[str] = (),
    force_exclude: bool = False,
    skipped: Callable[[str, str], None] = lambda path, why: None,
) -> list[str]:
    """The files of `paths`, each once, folders in sorted order. `skipped` hears of links that lead nowhere.

    A file that has several names, by symbolic links, goes by the first.
    """
    excluded = _spec(os.getcwd(), exclude) if exclude else None
    found: dict[str, str] = {}  # by real path
    folders: dict[str, str] = {}

    def add(path: str) -> None:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folders[folder], name)
        found.setdefault(real, path)

    for path in paths:
        try:
            is_dir = os.path.isdir(path) if os.stat(path) else False
        except OSError as e:
            raise FuselintError(f"{path}: {e.strerror}") from e
        if is_dir:
            for file in _walk(path, excluded, skipped):
                add(file)
        elif not (force_exclude and (_is_excluded(path, excluded) or _in_ignored_folder(path))):
            add(os.path.normpath(path))
    return list(found.values())


def _spec(base: str, lines: Sequence[str]) -> Ignore:
    from pathspec import GitIgnoreSpec

    return Ignore(os.path.abspath(base), GitIgnoreSpec.from_lines(lines))


def _gitignore(folder: str) -> Ignore | None:
    try:
        text = Path(folder, ".gitignore").read_text(encoding="utf-8", errors="replace")
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


def _is_excluded(path: str, excluded: Ignore | None) -> bool:
    """Whether --exclude covers the file or a folder that it lies in."""
    if excluded is None:
        return False
    at = os.path.abspath(path)
    is_dir = False
    while len(at) > len(excluded.base):
        if excluded.verdict(at, is_dir):
            return True
        at, is_dir = os.path.dirname(at), True
    return False


def _in_ignored_folder(path: str) -> bool:
    return any(part in NEVER for part in Path(path).parts[:-1])


def _walk(root: str, excluded: Ignore | None, skipped: Callable[[str, str], None]) -> Iterator[str]:
    inside_git = (Path(root) / ".git").exists()
    stack: list[tuple[str, list[Ignore]]] = [(os.path.normpath(root), [] if inside_git else _above(root))]
    while stack:
        folder, above = stack.pop()
        own = _gitignore(folder)
        ignores = [*above, own] if own else above
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as e:
            skipped(folder, e.strerror or "can't be listed")
            continue
        folders = []
        for entry in entries:
            try:
                is_dir = entry.is_dir(follow_symlinks=False)
                wanted = entry.name not in NEVER if is_dir else entry.name.endswith(".py")
                if not wanted or _ignored(entry.path, is_dir, ignores, excluded):
                    continue
                if is_dir:
                    folders.append((entry.path, ignores))
                elif entry.is_symlink() and not os.path.isfile(entry.path):
                    os.stat(entry.path)  # a link to a folder is not followed; one that leads nowhere says why
                else:
                    yield os.path.normpath(entry.path)
            except OSError as e:
                skipped(entry.path, e.strerror or "can't be read")
        stack.extend(reversed(folders))


def _ignored(path: str, is_dir: bool, ignores: Sequence[Ignore], excluded: Ignore | None) -> bool:
    absolute = os.path.abspath(path) if ignores or excluded else path
    if excluded is not None and excluded.verdict(absolute, is_dir):
        return True
    for ignore in reversed(ignores):  # the deepest file has the last word
        verdict = ignore.verdict(absolute, is_dir)
        if verdict is not None:
            return verdict
    return False
