"""What an analysis leaves behind knows itself: graphs know their facts, and facts their graph.

It is taken apart as soon as nobody needs it: then it goes at once, and the garbage collector has little to look for.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Leftover(Protocol):
    """What can be taken apart."""

    def take_apart(self) -> None: ...


class _Open(threading.local):
    """What the analysis of a thread leaves behind; None: none runs."""

    left: list[Leftover] | None = None


_open = _Open()


@contextlib.contextmanager
def taken_apart() -> Iterator[None]:
    """Takes apart what is left behind meanwhile, at the end."""
    before, _open.left = _open.left, []
    try:
        yield
    finally:
        left, _open.left = _open.left, before
        for one in left:
            one.take_apart()


def forget(holder: object, one: object) -> None:
    """Drop what an object knows of something else that goes: it may be asked again."""
    held = vars(holder)
    for name in [n for n, value in held.items() if value is one]:
        del held[name]


def leave(one: Leftover) -> None:
    """Have it taken apart at the end of the analysis that runs, if one does."""
    if _open.left is not None:
        _open.left.append(one)
