"""A child process ends with its parent, also where that is killed and can't end it."""

from __future__ import annotations

import os
import threading
import time

EVERY = 1.0
"""Seconds between looks."""


def end_with_parent() -> None:
    """From now on this process ends within a second or two of its parent. On Windows a parent's number stays: no-op."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(EVERY)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()
