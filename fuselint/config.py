"""What a run depends on besides the text of the files: one frozen Settings, and how each of its values is read.

Where values come from, and which of them counts, is `layers.py`'s business.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fuselint.errors import ConfigError
from fuselint.modelconfig import ModelConfig
from fuselint.modelconfig import load as load_model_config

DTYPES = {"f32": 4, "f16": 2, "bf16": 2}
"""What activations may be assumed to be, with the bytes of one element."""

PHASES = ("prefill", "decode", "train")
"""What a model may be doing: see docs/traffic.md."""

FORMATS = ("full", "concise", "grouped", "json", "jsonl", "sarif", "github", "gitlab", "junit", "markdown")
"""Of findings: one module each in `report/`."""

DEFAULT_CHIP = "m3-max"
DEFAULT_DTYPE = "bf16"
CHIP_NAMES = (
    *(f"m{n}{variant}" for n in (1, 2, 3) for variant in ("", "-pro", "-max", "-ultra")),
    *(f"m{n}{variant}" for n in (4, 5) for variant in ("", "-pro", "-max")),
    *("a100", "h100", "h200", "b200", "gb10", "rtx-4090", "rtx-5090", "cpu"),
)

MOST_DIGITS = 12
"""Of a size."""

SHORTEST_CHAIN = 2
"""Of elementwise kernels: one alone can't be fused."""

LONG_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Selection:
    """What one layer of configuration says about which rules are on. where: for messages."""

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Globs:
    """.gitignore patterns, relative to `folder`."""

    folder: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileIgnores:
    """The rules that are off in the files of one pattern: those outside it, where the pattern begins with `!`."""

    glob: Globs
    codes: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run depends on, besides the text of the files.

    select, extend_select, ignore: rule codes, code prefixes, rule names or ALL. selections: what lower layers say of
    them, the lowest first; a layer with `select` starts anew.
    per_file_ignores: the rules that are off in some files.
    exclude, extend_exclude: what a walk through folders leaves out, besides what is never source.
    notebooks: whether a walk takes .ipynb files too; those that are named are always taken.
    shape: sizes that the user states, by `symbol` or `function.symbol`.
    dtype: of activations, where the source does not say; "" for what is assumed.
    phase: what the model is doing, one of PHASES; "" for prefill, as an assumption.
    model_config: the model's configuration, whose numbers the code's names stand for.
    chip: that times are for, one of CHIP_NAMES; "" for this machine's, or else DEFAULT_CHIP.
    target_mlx: the version of MLX that the code runs on, "" for the newest known.
    facts: the file that `fuselint record` wrote, "" for none.
    min_kernels: the shortest elementwise chain that is reported whatever its operations are.
    min_saving: bytes; findings that are known to save less aren't shown.
    hot, cold: patterns of qualified names of functions that are, or aren't, on the hot path.
    cache: whether results, and outcomes of verification, are kept in .fuselint_cache of the current folder.
    origins: where each value comes from, by its name here; nothing for what is as it always is.
    """

    select: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    selections: tuple[Selection, ...] = ()
    per_file_ignores: tuple[FileIgnores, ...] = ()
    exclude: tuple[Globs, ...] = ()
    extend_exclude: tuple[Globs, ...] = ()
    notebooks: bool = False
    force_exclude: bool = False
    respect_gitignore: bool = True
    shape: Mapping[str, int] = field(default_factory=dict)
    dtype: str = ""
    phase: str = ""
    model_config: ModelConfig | None = None
    chip: str = ""
    target_mlx: str = ""
    facts: str = ""
    min_kernels: int = 3
    min_saving: int = 0
    hot: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()
    near_misses: bool = False
    unsafe_fixes: bool = False
    exact: bool = False
    output_format: str = "full"
    cache: bool = True
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    def of(self, path: str) -> Settings:
        """The settings of a file: these, whichever it is."""
        return self

    of_folder = of

    @property
    def activation(self) -> str:
        """The dtype that activations are counted in."""
        return self.dtype or DEFAULT_DTYPE

    def size(self, function: str, symbol: str) -> int | None:
        """The stated size of `symbol` in the function of that qualified name: the longest statement that fits wins.

        `Attention.__call__.L`, `__call__.L`, `Attention.L` and `L` all fit `L` of `Attention.__call__`.
        """
        parts = function.split(".")
        for length in range(len(parts), -1, -1):
            for start in range(len(parts) - length, -1, -1):
                stated = self.shape.get(".".join([*parts[start : start + length], symbol]))
                if stated is not None:
                    return stated
        return None


class Configuration(Protocol):
    """The settings of each file: Settings are the same for all, Layers find those that count where it lies."""

    def of(self, path: str) -> Settings: ...

    def of_folder(self, path: str) -> Settings: ...


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing where nothing is close."""
    known = list(known)
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


# -- values as text ---------------------------------------------------------------------------------------------------


def dtype_name(text: str, where: str) -> str:
    name = LONG_DTYPES.get(text, text)
    if name not in DTYPES:
        raise ConfigError(f'{where}: unknown dtype "{text}"{nearest(text, [*DTYPES, *LONG_DTYPES])}')
    return name


def phase_name(text: str, where: str) -> str:
    if text not in PHASES:
        raise ConfigError(f'{where}: unknown phase "{text}"{nearest(text, PHASES)}')
    return text


def format_name(text: str, where: str) -> str:
    if text not in FORMATS:
        raise ConfigError(f'{where}: unknown format "{text}"{nearest(text, FORMATS)}; there are {", ".join(FORMATS)}')
    return text


def chip_name(text: str, where: str) -> str:
    """`M3 Max`, `m3_max` and `m3-max` -> m3-max."""
    name = "-".join(text.lower().replace("_", " ").replace("-", " ").split())
    if name not in CHIP_NAMES:
        raise ConfigError(f'{where}: unknown chip "{text}"{nearest(name, CHIP_NAMES)}')
    return name


def mlx_version(text: str, where: str) -> str:
    """`0.30.5`, or `0.30`."""
    parts = text.strip().split(".")
    if not 2 <= len(parts) <= 3 or not all(p.isdecimal() for p in parts):
        raise ConfigError(f'{where}: expected a version of MLX such as 0.30.5, not "{text}"')
    return text.strip()


def shape_entries(texts: Iterable[str], where: str) -> dict[str, int]:
    """`["T=2048", "Attention.L=1,D=64"]` -> sizes by name."""
    sizes: dict[str, int] = {}
    for entry in (part for text in texts for part in text.split(",") if part.strip()):
        name, equals, number = (piece.strip() for piece in entry.partition("="))
        if not equals or not name or not number.isdecimal() or len(number) > MOST_DIGITS or int(number) < 1:
            raise ConfigError(f'{where}: expected symbol=size or function.symbol=size, such as T=2048, not "{entry}"')
        sizes[name] = int(number)
    return sizes


def byte_size(text: str, where: str) -> int:
    """`1MB`, `500 kB` or `4096` -> bytes."""
    units = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(number) :].strip().lower()
    if unit not in units or not number.replace(".", "", 1).isdecimal():
        raise ConfigError(f'{where}: expected a size in bytes such as 4096 or 1MB, not "{text}"')
    return int(float(number) * units[unit])


# -- settings as TOML has them ----------------------------------------------------------------------------------------

Reader = Callable[[str, Any, str, Path], Any]
"""(key, value as TOML has it, where, folder that paths are relative to) -> the value of Settings."""


def _strings(key: str, value: Any, where: str, folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f'{where}: "{key}" is a list of strings')
    return tuple(value)


def _flag(key: str, value: Any, where: str, folder: Path) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f'{where}: "{key}" is true or false')
    return value


def _globs(key: str, value: Any, where: str, folder: Path) -> tuple[Globs, ...]:
    return (Globs(os.path.abspath(folder), _strings(key, value, where, folder)),)


def _text(read: Callable[[str, str], str]) -> Reader:
    def reader(key: str, value: Any, where: str, folder: Path) -> str:
        if not isinstance(value, str):
            raise ConfigError(f'{where}: "{key}" is a text in quotes')
        return read(value, where)

    return reader


def _chain(key: str, value: Any, where: str, folder: Path) -> int:
    if type(value) is not int:
        raise ConfigError(f'{where}: "{key}" is a whole number')
    if value < SHORTEST_CHAIN:
        raise ConfigError(f'{where}: "{key}" is {SHORTEST_CHAIN} or more: one kernel alone can\'t be fused')
    return value


def _bytes(key: str, value: Any, where: str, folder: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f'{where}: "{key}" is a size in bytes, such as 4096 or "1MB"')
    return byte_size(str(value), where)


def _shape(key: str, value: Any, where: str, folder: Path) -> dict[str, int]:
    if not isinstance(value, dict):
        raise ConfigError(f'{where}: "{key}" is a table of sizes, such as {{ T = 2048 }}')
    return shape_entries((f"{name}={size}" for name, size in _flat(value)), where)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted names of nested tables: TOML reads `Attention.L = 1` as a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _model(key: str, value: Any, where: str, folder: Path) -> ModelConfig:
    if not isinstance(value, str):
        raise ConfigError(f'{where}: "{key}" is the path of a config.json, or a family, in quotes')
    return load_model_config(value, where, folder)


def _path(key: str, value: Any, where: str, folder: Path) -> str:
    if not isinstance(value, str):
        raise ConfigError(f'{where}: "{key}" is the path of a file of `fuselint record`, in quotes')
    return str(folder / value) if value else ""


def _file_ignores(key: str, value: Any, where: str, folder: Path) -> tuple[FileIgnores, ...]:
    if not isinstance(value, dict):
        raise ConfigError(f'{where}: "{key}" is a table of rules by pattern, such as {{ "tests/*" = ["FUS301"] }}')
    for pattern, codes in value.items():
        if not isinstance(codes, list) or not all(isinstance(c, str) for c in codes):
            raise ConfigError(f'{where}: "{key}" has a list of rules for each pattern; "{pattern}" has none')
    return tuple(FileIgnores(Globs(os.path.abspath(folder), (p,)), tuple(codes), where) for p, codes in value.items())


READERS: dict[str, Reader] = {
    "select": _strings,
    "extend-select": _strings,
    "ignore": _strings,
    "per-file-ignores": _file_ignores,
    "exclude": _globs,
    "extend-exclude": _globs,
    "notebooks": _flag,
    "force-exclude": _flag,
    "respect-gitignore": _flag,
    "shape": _shape,
    "dtype": _text(dtype_name),
    "phase": _text(phase_name),
    "model-config": _model,
    "chip": _text(chip_name),
    "target-mlx": _text(mlx_version),
    "facts": _path,
    "min-kernels": _chain,
    "min-saving": _bytes,
    "hot": _strings,
    "cold": _strings,
    "near-misses": _flag,
    "unsafe-fixes": _flag,
    "exact": _flag,
    "output-format": _text(format_name),
    "cache": _flag,
}
"""Every setting, in the order in which `fuselint config` prints them."""


def field_of(key: str) -> str:
    return key.replace("-", "_")


# -- layers -----------------------------------------------------------------------------------------------------------

SELECTING = ("select", "extend-select", "ignore")


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file, or the command line, says: values by key, and where each stands."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]


def layer(table: Mapping[str, Any], where: Callable[[str], str], folder: Path, inside: str = "") -> Layer:
    """A table as TOML has it, read. inside: what the table is called. Raises ConfigError, which says what is right."""
    values, origins = {}, {}
    for key, value in table.items():
        if key not in READERS:
            raise ConfigError(f'{where(key)}: unknown setting "{key}"{inside}{nearest(key, READERS)}')
        origins[key] = where(key)
        values[key] = READERS[key](key, value, origins[key], folder)
    return Layer(values, origins)


def folded(layers: Sequence[Layer]) -> Settings:
    """One layer over the other: the last word counts, but sizes, ignores of files and `extend-` ones add up."""
    settings = Settings()
    for top in layers:
        changed = {field_of(key): _over(settings, key, value) for key, value in top.values.items()}
        dropped = {field_of(key) for key in SELECTING} if top.values.get("select") else set()
        origins = {name: where for name, where in settings.origins.items() if name not in dropped}
        for key, where in top.origins.items():
            more = origins.get(field_of(key), ()) if key in ADDING else ()
            origins[field_of(key)] = (*more, where)
        if any(key in top.values for key in SELECTING):
            changed.update(_selecting(settings, top))
        settings = replace(settings, **changed, origins=origins)
    return settings


ADDING = frozenset(["shape", "per-file-ignores", "extend-exclude", "hot", "cold", "extend-select", "ignore"])
"""Settings whose layers add up."""


def _over(settings: Settings, key: str, value: Any) -> Any:
    if key == "shape":
        return {**settings.shape, **value}
    if key in ADDING:
        return (*getattr(settings, field_of(key)), *value)
    return value


def _selecting(settings: Settings, top: Layer) -> dict[str, Any]:
    """What a layer says of rules stands over what the lower ones do, whose words it may take back."""
    said = {field_of(key): tuple(top.values.get(key, ())) for key in SELECTING}
    below = () if said["select"] else selections(settings)
    return {**said, "selections": below}


def selections(settings: Settings) -> tuple[Selection, ...]:
    """What each layer says of rules, the lowest first; nothing of those that say nothing."""
    where = next((w[-1] for key in SELECTING if (w := settings.origins.get(field_of(key)))), "")
    own = Selection(settings.select, settings.extend_select, settings.ignore, where)
    said = own.select or own.extend_select or own.ignore
    return (*settings.selections, own) if said else settings.selections


def options_layer(options: Mapping[str, Any]) -> Layer:
    """The command line's options, by their names as parameters, as the topmost layer. What wasn't given says nothing.

    Lists may be given repeatedly and with commas. `PATTERN:RULES` and `NAME=SIZE` stand for tables.
    """
    table: dict[str, Any] = {}
    for key in READERS:
        value = options.get(field_of(key))
        if value is None or value == ():
            continue
        if key == "shape":
            value = shape_entries(value, "--shape")
        elif key == "per-file-ignores":
            value = _pairs(value)
        elif isinstance(value, tuple):
            value = [part.strip() for text in value for part in text.split(",") if part.strip()]
        table[key] = value
    if options.get("no_cache"):
        table["cache"] = False
    if options.get("no_facts"):
        table["facts"] = ""
    return layer(table, lambda key: f"--{key}", Path())


def _pairs(texts: Iterable[str]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for text in texts:
        pattern, colon, codes = text.rpartition(":")
        if not colon or not pattern or not codes.strip():
            raise ConfigError(f'--per-file-ignores: expected PATTERN:RULES, such as tests/*:FUS301, not "{text}"')
        table.setdefault(pattern, []).extend(c.strip() for c in codes.split(",") if c.strip())
    return table
