"""Checks and fixers of other packages, by the entry point group `fuselint.plugins`.

An entry point names a package that is laid out as ours: `checks` with a module for each rule, `fixers` with modules of
the same names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache

from fuselint.errors import FuselintError

GROUP = "fuselint.plugins"


@cache
def packages() -> tuple[tuple[str, str], ...]:
    """The plugins that are installed, by name: each entry point's name, and the package that it names."""
    if not any(map(_declares, _folders())):  # importlib.metadata takes longer than all of this
        return ()
    from importlib.metadata import entry_points

    found = {(e.name, e.value) for e in entry_points(group=GROUP)}
    for name, value in found:
        if not all(part.isidentifier() for part in value.split(".")):
            raise FuselintError(f'plugin "{name}": its entry point "{value}" is not a package, such as "acme.fuselint"')
    return tuple(sorted(found))


def _folders() -> Iterator[str]:
    """The metadata folders of installed packages."""
    for path in dict.fromkeys(sys.path):
        try:
            yield from (e.path for e in os.scandir(path or ".") if e.name.endswith((".dist-info", ".egg-info")))
        except OSError:
            continue


def _declares(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "entry_points.txt"), "rb") as f:
            return GROUP.encode() in f.read()
    except OSError:
        return False
