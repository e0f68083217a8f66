"""Errors that a user can act on. Each says what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class FuselintError(Exception):
    """Ends a command with exit code 2 and its message on stderr."""


class ConfigError(FuselintError):
    """A setting or option that can't be taken: names the file and key, and the closest valid one."""


class UnreadableFile(FuselintError):
    """A file that can't be analysed. Carries the position, so that it can be reported as FUS000."""

    def __init__(self, path: str, reason: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{path}:{line}:{column}: {reason}")
        self.path, self.reason, self.line, self.column = path, reason, line, column


class TooComplex(FuselintError):
    """A function beyond the analyser's budget: it is skipped with a note, never a hang."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while files were being written. Each is whole; `written` are those that are new."""

    def __init__(self, written: Sequence[str]) -> None:
        super().__init__()
        self.written = tuple(written)
