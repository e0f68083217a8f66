"""Which package a folder belongs to, and which Python files that has."""

from __future__ import annotations

import os


def package_folder(folder: str) -> str:
    """The topmost folder of the package that holds `folder`; `folder` itself, where it is none."""
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        above = os.path.dirname(folder)
        if not os.path.isfile(os.path.join(above, "__init__.py")):
            break
        folder = above
    return folder


def python_files(folder: str) -> list[str]:
    """The Python files of a package, in order; those of the folder alone, where it is none."""
    if not os.path.isfile(os.path.join(folder, "__init__.py")):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            return []  # the name of what stdin holds, in a folder that isn't there
        return [os.path.join(folder, name) for name in names if name.endswith(".py")]
    out: list[str] = []
    for at, folders, held in os.walk(folder):
        folders.sort()
        out += [os.path.join(at, name) for name in sorted(held) if name.endswith(".py")]
    return out
