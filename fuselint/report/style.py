"""The few ANSI styles that reports use, or none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    on: bool

    def _as(self, text: str, number: str) -> str:
        return f"\x1b[{number}m{text}\x1b[0m" if self.on and text else text

    def bold(self, text: str) -> str:
        return self._as(text, "1")

    def code(self, text: str) -> str:
        return self._as(text, "1;31")

    def frame(self, text: str) -> str:
        return self._as(text, "34")

    def mark(self, text: str) -> str:
        return self._as(text, "33")

    def removed(self, text: str) -> str:
        return self._as(text, "31")

    def added(self, text: str) -> str:
        return self._as(text, "32")
