"""The facts of a real run, as `fuselint record` wrote them: what functions were called with, and how often.

Read by the analysis. A file that has changed since is not believed; where the source says otherwise, it wins.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fuselint import jsonfile
from fuselint.jsonfile import Value
from fuselint.source.text import content

FOLDER, FILE = ".fuselint", "facts.json"
VERSION = 1
_MLX = {"bool": "bool_"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One function: how often it was called, and what with: values by name (`x`, `self.weight`) of each signature."""

    calls: int
    signatures: tuple[Mapping[str, Any], ...]

    def arrays(self, name: str) -> list[tuple[tuple[int, ...], str]]:
        """The shapes and dtypes of an argument that was an array wherever it was not None; else nothing."""
        values = [v for s in self.signatures if (v := s.get(name)) != {"value": None}]
        if not values or not all(isinstance(v, dict) and "array" in v for v in values):
            return []
        return [(tuple(v["array"]), _MLX.get(v["dtype"], v["dtype"])) for v in values if v is not None]

    def number(self, name: str) -> int | None:
        """A whole number that was the same in every call: of an argument, or of an object that it is (`args.dims`)."""
        found = {json.dumps(_number(s, name)) for s in self.signatures}
        value = json.loads(found.pop()) if len(found) == 1 else None
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def layer(self, name: str) -> Mapping[str, Any] | None:
        """A layer of mlx.nn, the same in every call: its class, what it holds, and its numbers."""
        values = [s.get(name) for s in self.signatures]
        if not values or not isinstance(values[0], dict) or "holds" not in values[0]:
            return None
        return values[0] if all(v == values[0] for v in values) else None


@dataclass(frozen=True, slots=True)
class RecordedFile:
    sha256: str
    functions: Mapping[str, Recorded]


@dataclass(frozen=True, slots=True)
class Recording:
    """The facts of a file of facts. files: by absolute path."""

    path: str
    files: Mapping[str, RecordedFile] = field(default_factory=dict)

    def of(self, path: str) -> Mapping[str, Recorded]:
        """What was recorded of a file's functions, if the file on the disk is still the same."""
        found = self.files.get(os.path.realpath(path))
        return {} if found is None or self.is_stale(path) else found.functions

    def is_stale(self, path: str) -> bool:
        """Whether a file was recorded and has changed since."""
        found = self.files.get(os.path.realpath(path))
        if found is None:
            return False
        data = content(path)
        return data is None or found.sha256 != hashlib.sha256(data).hexdigest()


def _number(signature: Mapping[str, Any], name: str) -> Any:
    value = signature.get(name)
    if isinstance(value, dict):
        return value.get("value")
    owner, _, attribute = name.rpartition(".")
    held = signature.get(owner)
    return held.get("numbers", {}).get(attribute) if isinstance(held, dict) else None


def find(start: Path) -> Path | None:
    """The nearest .fuselint/facts.json, from `start` upwards."""
    return next((p for folder in (start, *start.parents) if (p := folder / FOLDER / FILE).is_file()), None)


@cache
def loaded(path: str) -> Recording:
    """The facts of a file, read once a process."""
    return load(Path(path))


def load(path: Path) -> Recording:
    """Raises ConfigError for a file that is none of ours."""
    data = jsonfile.load(path, ": record again with `fuselint record`")
    version = data["version"]
    if version.as_(int) != VERSION:
        raise version.wrong("that of another version")
    folder = path.resolve().parent
    root = folder.parent if folder.name == FOLDER else folder
    return Recording(str(path), {os.path.realpath(root / name): _file(f) for name, f in data["files"].items()})


def _file(data: Value) -> RecordedFile:
    functions = {
        name: Recorded(f["calls"].as_(int), tuple(_values(s["values"]) for s in f["signatures"].elements()))
        for name, f in data["functions"].items()
    }
    return RecordedFile(data["sha256"].as_(str), functions)


def _values(data: Value) -> Mapping[str, Any]:
    """The values of a signature. Arrays are checked, for costs are worked out of them."""
    for _, value in data.items():
        if isinstance(value.value, dict) and "array" in value.value:
            value["dtype"].as_(str)
            for size in value["array"].elements():
                if size.as_(int) < 0:
                    raise size.wrong("less than 0")
    held: dict[str, Any] = data.as_(dict)
    return held


def merged(parts: Sequence[Mapping[str, Any]], root: Path, command: Sequence[str]) -> dict[str, Any]:
    """The facts of several processes as one file's content; paths relative to `root`."""
    files: dict[str, Any] = {}
    for part in parts:
        for path, f in part["files"].items():
            known = files.setdefault(os.path.relpath(path, root), {"sha256": f["sha256"], "functions": {}})
            for name, function in f["functions"].items():
                into = known["functions"].setdefault(name, {"line": function["line"], "calls": 0, "signatures": []})
                into["calls"] += function["calls"]
                for signature in function["signatures"]:
                    same = next((s for s in into["signatures"] if s["values"] == signature["values"]), None)
                    if same is None:
                        into["signatures"].append(dict(signature))
                    else:
                        same["seen"] += signature["seen"]
    return {"version": VERSION, "command": list(command), "files": dict(sorted(files.items()))}
