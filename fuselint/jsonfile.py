"""JSON files of a project. What is wrong with one is said with its file and key."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fuselint.errors import ConfigError

T = TypeVar("T")

KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a file. key: where it stands, "" for the whole. advice: what to do where it is not as it should be."""

    path: Path
    value: Any
    key: str = ""
    advice: str = ""

    def __getitem__(self, key: str) -> Value:
        held = self.as_(dict)
        if key not in held:
            raise ConfigError(f'{self.path}: has no "{self._below(key)}"{self.advice}')
        return Value(self.path, held[key], self._below(key), self.advice)

    def items(self) -> Iterator[tuple[str, Value]]:
        """The members of an object."""
        for key in self.as_(dict):
            yield key, self[key]

    def elements(self) -> Iterator[Value]:
        """Those of a list."""
        for number, value in enumerate(self.as_(list)):
            yield Value(self.path, value, self._below(str(number)), self.advice)

    def as_(self, kind: type[T]) -> T:
        """The value itself, which has to be of a kind: bool is no int. Raises ConfigError."""
        if not isinstance(self.value, kind) or (isinstance(self.value, bool) and kind is not bool):
            raise self.wrong(f"{KINDS.get(type(self.value), 'something else')}, not {KINDS[kind]}")
        return self.value

    def wrong(self, why: str) -> ConfigError:
        """That the value is wrong."""
        named = f'"{self.key}" is {why}' if self.key else f"it is {why}"
        return ConfigError(f"{self.path}: {named}{self.advice}")

    def _below(self, key: str) -> str:
        return f"{self.key}.{key}" if self.key else key


def load(path: Path, advice: str = "") -> Value:
    """A file's whole content. Raises ConfigError where there is none that can be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe may have no end
            raise ConfigError(f"{path}: can't be read: not a regular file")
        return Value(path, json.loads(path.read_text(encoding="utf-8-sig")), advice=advice)
    except OSError as e:
        raise ConfigError(f"{path}: can't be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not UTF-8 at byte {e.start}{advice}") from e
    except json.JSONDecodeError as e:
        raise ConfigError(f"{path}:{e.lineno}:{e.colno}: not valid JSON: {e.msg}{advice}") from e
    except RecursionError as e:
        raise ConfigError(f"{path}: nested too deeply{advice}") from e
    except ValueError as e:  # a number of more digits than Python reads
        raise ConfigError(f"{path}: not valid JSON: {e}{advice}") from e
