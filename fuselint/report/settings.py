"""Effective settings as TOML with where each comes from, or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from fuselint.config import READERS, SELECTING, Globs, Settings, field_of, selections

DEFAULT = "default"


def render(settings: Settings, codes: frozenset[str], form: str) -> str:
    """codes: the rules that are on."""
    if form == "json":
        data = {key: {"value": _value(settings, key), "from": _from(settings, key)} for key in READERS}
        return json.dumps({**data, "rules": sorted(codes)}, indent=1, ensure_ascii=False) + "\n"
    lines = [(_line(key, _value(settings, key)), ", ".join(_from(settings, key))) for key in READERS]
    width = min(60, max(len(line) for line, _ in lines))
    text = "".join(f"{line:<{width}}  # {origin}\n" for line, origin in lines)
    return text + "".join(f"# {line}\n" for line in _notes(settings, codes))


UNSET = {
    "dtype": "bf16 is assumed, or f32 where that saves less",
    "phase": "prefill is assumed",
    "model-config": "sizes are those that the code says",
    "chip": "this machine's",
    "target-mlx": "the newest",
    "facts": "of no recorded run",
}
"""What it means that a setting is empty."""


def _line(key: str, value: Any) -> str:
    return f"# {key}: {UNSET[key]}" if value == "" else f"{key} = {toml(value)}"


def _notes(settings: Settings, codes: frozenset[str]) -> Iterator[str]:
    for below in selections(settings)[:-1]:
        said = {key: getattr(below, field_of(key)) for key in SELECTING}
        spelled = ", ".join(f"{key} = {toml(list(value))}" for key, value in said.items() if value)
        yield f"before that: {spelled}  ({shown(below.where)})"
    yield f"rules: {', '.join(sorted(codes))}"


def _from(settings: Settings, key: str) -> list[str]:
    return [shown(where) for where in settings.origins.get(field_of(key), (DEFAULT,))]


def shown(where: str) -> str:
    """An origin, with the path of a file relative to here where that is shorter."""
    if not os.path.isabs(where):
        return where
    return min(where, os.path.relpath(where), key=len)


def _value(settings: Settings, key: str) -> Any:
    value = getattr(settings, field_of(key))
    if key in ("exclude", "extend-exclude"):
        return [p for globs in value for p in _placed(globs)]
    if key == "per-file-ignores":
        return {p: list(i.codes) for i in value for p in _placed(i.glob)}
    if key == "model-config":
        return value.name if value is not None else ""
    if key == "facts":
        return shown(value)
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _placed(globs: Globs) -> list[str]:
    """Patterns as they would be written here."""
    folder = os.path.relpath(globs.folder)
    if folder == os.curdir:
        return list(globs.patterns)
    return [f"{folder}/{p.lstrip('/')}" if "/" in p.strip("/") else p for p in globs.patterns]


def toml(value: Any) -> str:
    """A value as TOML spells it. JSON's strings and lists are TOML's, but for DEL."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
