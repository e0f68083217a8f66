"""Nested results as flat lists of arrays and other values, on disk and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

DEEPEST = 20


def leaves(value: Any, path: str, deep: int = 0) -> Iterator[tuple[str, Any]]:
    """The arrays and plain values of a nested value, each with where it stands. Of objects: what they hold."""
    if deep > DEEPEST or value is None or isinstance(value, (mx.array, bool, int, float, complex, str, bytes)):
        yield path, value
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from leaves(value[key], f"{path}[{key!r}]", deep + 1)
    elif isinstance(value, (list, tuple)):
        for n, item in enumerate(value):
            yield from leaves(item, f"{path}[{n}]", deep + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for f in fields(value):
            yield from leaves(getattr(value, f.name, None), f"{path}.{f.name}", deep + 1)
    elif isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
        for name in sorted(vars(value)):
            yield from leaves(vars(value)[name], f"{path}.{name}", deep + 1)


def arrays(value: Any) -> Iterator[tuple[str, mx.array]]:
    for path, leaf in leaves(value, ""):
        if isinstance(leaf, mx.array):
            yield path, leaf


def save(file: Path, named: Mapping[str, Any]) -> list[list[Any]]:
    """Write the arrays to a file. Returns (path, place in the file or None, text of what is no array)."""
    said: list[list[Any]] = []
    kept: dict[str, mx.array] = {}
    for name, value in named.items():
        for path, leaf in leaves(value, name):
            if isinstance(leaf, mx.array):
                key = str(len(kept))
                kept[key] = mx.contiguous(leaf) if leaf.size else leaf
                said.append([path, key, ""])
            else:
                said.append([path, None, repr(leaf)])
    mx.eval(kept)
    mx.save_safetensors(str(file), kept or {"": mx.zeros(1)})
    return said
