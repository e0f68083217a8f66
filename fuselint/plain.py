"""Frozen dataclasses as JSON text, and back by their annotations. What doesn't fit a class raises."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def dumps(value: object) -> str:
    """A dataclass as JSON: fields that have their default are left out."""
    return json.dumps(value, default=_fields, separators=(",", ":"))


def loads(kind: type[T], text: str) -> T:
    """The dataclass that `dumps` wrote. Raises ValueError, TypeError or KeyError for any other text."""
    made: T = _reader(kind)(json.loads(text))  # type: ignore[arg-type]
    return made


def _fields(value: Any) -> dict[str, Any]:
    held = ((f, getattr(value, f.name)) for f in dataclasses.fields(value))
    return {f.name: v for f, v in held if f.default is dataclasses.MISSING or v != f.default}


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """What makes a value of an annotated type of its JSON."""
    if dataclasses.is_dataclass(kind):
        return _reader_of_fields(kind)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        (inner,) = (_reader(a) for a in args if a is not NoneType)
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        readers = [_reader(a) for a in args if a is not Ellipsis]
        if len(readers) == 1:
            return lambda value: tuple(map(readers[0], value))
        return lambda value: tuple(read(v) for read, v in zip(readers, value, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item = _reader(args[1])
        return lambda value: {key: item(v) for key, v in value.items()}
    return lambda value: value


def _reader_of_fields(kind: Any) -> Callable[[Any], Any]:
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind).items()}

    def read(value: Mapping[str, Any]) -> Any:
        return kind(**{name: readers[name](held) for name, held in value.items()})

    return read
