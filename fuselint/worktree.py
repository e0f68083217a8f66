"""What git can't bring back: files with changes that nobody committed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence

from fuselint.errors import ConfigError


def uncommitted(files: Sequence[str]) -> list[str]:
    """The changed files of the work trees that hold `files`, and those of `files` that git doesn't track, sorted.

    Raises ConfigError where a file is in no work tree, or there is no git.
    """
    by_root: dict[str, set[str]] = {}
    roots = {folder: _root(folder) for folder in {os.path.dirname(os.path.realpath(f)) for f in files}}
    for file in map(os.path.realpath, files):
        by_root.setdefault(roots[os.path.dirname(file)], set()).add(file)
    found: set[str] = set()
    for root, named in by_root.items():
        found.update(_changed(root))
        tracked = {os.path.join(root, name) for name in _git(root, "ls-files", "-z").split("\0")}
        found.update(named - tracked)
    return sorted(os.path.relpath(file) for file in found)


def _changed(root: str) -> Iterator[str]:
    """Files that are tracked and differ from the last commit: in the index, on disk, or both."""
    entries = iter(_git(root, "status", "--porcelain=v1", "-z", "--untracked-files=no").split("\0"))
    for entry in entries:
        if entry:
            yield os.path.join(root, entry[3:])
            if entry[0] in "RC":
                next(entries, "")  # where it was before


def _root(folder: str) -> str:
    return os.path.realpath(_git(folder, "rev-parse", "--show-toplevel").rstrip("\n"))


def _git(folder: str, *command: str) -> str:
    try:
        ran = subprocess.run(["git", "-C", folder, *command], capture_output=True, check=False)
    except OSError as e:
        raise ConfigError(f"--require-clean asks git, which can't be run: {e.strerror or e}") from None
    if ran.returncode:
        said = os.fsdecode(ran.stderr).strip().split("\n")[0]
        raise ConfigError(f"--require-clean asks git, and {os.path.relpath(folder)} is no work tree of it: {said}")
    return os.fsdecode(ran.stdout)
