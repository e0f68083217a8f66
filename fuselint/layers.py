"""Where settings come from: built in, files with what they extend, the command line; the later over the earlier.

a recorded run  <-  fuselint.toml or pyproject.toml, the nearest above each file
  <-  --config KEY=VALUE  <-  the other options
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselint.config import Layer, Settings, folded, layer
from fuselint.errors import ConfigError
from fuselint.recorded import find as find_facts

NAMES = (".fuselint.toml", "fuselint.toml", "pyproject.toml")
"""Of configuration files, the first of a folder counts. A pyproject.toml is one where it has [tool.fuselint]."""


@dataclass
class Layers:
    """The settings of each file: of the nearest configuration file above it, or of `file`, under `over`.

    isolated: no file counts. under: what counts where no file says otherwise.
    Raises ConfigError where a file is asked for whose configuration is wrong.
    """

    file: Path | None = None
    isolated: bool = False
    over: Sequence[Layer] = ()
    under: Sequence[Layer] = ()
    _nearest: dict[Path, Path | None] = field(default_factory=dict)
    _settings: dict[Path | None, Settings] = field(default_factory=dict)
    _of: dict[tuple[str, str], Settings] = field(default_factory=dict)  # by the current folder, and one from there

    def of(self, path: str) -> Settings:
        """The settings of a file, which need not exist."""
        key = os.getcwd(), os.path.dirname(path)
        if key not in self._of:
            self._of[key] = self.of_folder(os.path.dirname(os.path.abspath(path)))
        return self._of[key]

    def of_folder(self, path: str) -> Settings:
        """The settings of files that lie directly in a folder."""
        chosen = self.file or (None if self.isolated else self.nearest(Path(os.path.abspath(path))))
        if chosen not in self._settings:
            self._settings[chosen] = folded([*self.under, *(file_layers(chosen) if chosen else ()), *self.over])
        return self._settings[chosen]

    def nearest(self, folder: Path) -> Path | None:
        """The configuration file that counts in a folder: its own, or that of the nearest folder above."""
        if folder not in self._nearest:
            own = _own(folder)
            above = folder.parent
            self._nearest[folder] = own or (None if above == folder else self.nearest(above))
        return self._nearest[folder]


def recorded_layers(folder: Path) -> list[Layer]:
    """The facts of the nearest recorded run, as the lowest layer; none where nothing was recorded."""
    found = find_facts(folder)
    return [] if found is None else [Layer({"facts": str(found)}, {"facts": str(found)})]


def _own(folder: Path) -> Path | None:
    for name in NAMES:
        path = folder / name
        try:
            if path.is_file() and _table(path, path.read_text(encoding="utf-8")) is not None:
                return path
        except OSError:
            continue
        except UnicodeDecodeError as e:
            if name != "pyproject.toml" or b"fuselint" in path.read_bytes():
                raise ConfigError(f"{path}: not valid TOML: it is not UTF-8 at byte {e.start}") from e
    return None


def load(path: Path) -> Settings:
    """The settings of one file, and of those that it extends."""
    return folded(file_layers(path))


def file_layers(path: Path, extended_by: Sequence[Path] = ()) -> list[Layer]:
    """A file's layer on top of those of the files that it extends. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: can't be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"{path}: not valid TOML: it is not UTF-8 at byte {e.start}") from e
    table = {**(_table(path, text) or {})}
    below: list[Layer] = []
    if "extend" in table:
        other = table.pop("extend")
        where = _at("extend", path, text)
        if not isinstance(other, str):
            raise ConfigError(f'{where}: "extend" is the path of a file, in quotes')
        base = Path(os.path.normpath(path.parent / os.path.expanduser(other)))
        if base in (*extended_by, path):
            raise ConfigError(f"{where}: {base} is extended already: files extend each other in a circle")
        if not base.is_file():
            raise ConfigError(f"{where}: {base}: no such file")
        below = file_layers(base, (*extended_by, path))
    inside = " in [tool.fuselint]" if path.name == "pyproject.toml" else ""
    return [*below, layer(table, lambda key: _at(key, path, text), path.parent, inside)]


def _table(path: Path, text: str) -> Mapping[str, Any] | None:
    """Our table of a TOML file: [tool.fuselint] of a pyproject.toml, where it has one, else the whole."""
    is_shared = path.name == "pyproject.toml"
    if is_shared and "fuselint" not in text:
        return None
    table: Any = _toml(text, str(path))
    for name in ("tool", "fuselint") if is_shared else ():
        table = table.get(name) if isinstance(table, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.fuselint is not a table")
    return table


def _toml(text: str, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{where}: not valid TOML: {e}") from e
    return table


def _at(key: str, path: Path, text: str) -> str:
    """`path:line` of a key, for messages. TOML readers keep no positions, so the key's line is looked for."""
    spellings = (key, f'"{key}"', f"'{key}'")
    for number, line in enumerate(text.splitlines(), 1):
        head = line.split("=")[0].strip().strip("[]")
        if head in spellings or head.rpartition(".")[2] in spellings:
            return f"{path}:{number}"
    return str(path)


def given(texts: Sequence[str]) -> tuple[Path | None, list[Layer]]:
    """What --config says: at most one file, and layers of `KEY=VALUE` as TOML has it."""
    files: list[Path] = []
    layers = []
    for text in texts:
        key, equals, _ = text.partition("=")
        if not equals or os.path.isfile(text):
            files.append(Path(text))
            continue
        try:
            table = _toml(text, "--config")
        except ConfigError as e:
            hint = f"""; values are written as in TOML: --config '{key.strip()} = ["a", "b"]', or "text", true, 3"""
            raise ConfigError(f"{e}{hint}") from e
        layers.append(layer(table, lambda key: f"--config {key}", Path()))
    if len(files) > 1:
        raise ConfigError(f"--config: {files[0]} and {files[1]}: only one file can be given; one may `extend` another")
    return Path(os.path.abspath(files[0])) if files else None, layers
