"""[tool.fuselint] and the command line's options -> one frozen Settings."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fuselint.errors import ConfigError
from fuselint.modelconfig import ModelConfig
from fuselint.modelconfig import load as load_model_config

DTYPES = {"f32": 4, "f16": 2, "bf16": 2}
"""What activations may be assumed to be, with the bytes of one element."""

PHASES = ("prefill", "decode", "train")
"""What a model may be doing: see docs/traffic.md."""

DEFAULT_CHIP = "m3-max"
CHIP_NAMES = (
    *(f"m{n}{variant}" for n in (1, 2, 3) for variant in ("", "-pro", "-max", "-ultra")),
    *(f"m{n}{variant}" for n in (4, 5) for variant in ("", "-pro", "-max")),
    *("a100", "h100", "h200", "b200", "gb10", "rtx-4090", "rtx-5090", "cpu"),
)

MOST_DIGITS = 12
"""Of a size."""

LONG_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a run depends on, besides the text of the files.

    select, ignore: rule codes, code prefixes, rule names or ALL.
    shape: sizes that the user states, by `symbol` or `function.symbol`.
    dtype: of activations, where the source does not say.
    phase: what the model is doing, one of PHASES; "" for prefill, as an assumption.
    model_config: the model's configuration, whose numbers the code's names stand for.
    chip: that times are for, one of CHIP_NAMES; "" for this machine's, or else DEFAULT_CHIP.
    target_mlx: the version of MLX that the code runs on, "" for the newest known.
    min_kernels: the shortest elementwise chain that is reported whatever its operations are.
    min_saving: bytes; findings that are known to save less aren't shown.
    facts: the file that `fuselint record` wrote, "" for none.
    cache: whether outcomes of verification are kept in .fuselint_cache of the current folder.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    shape: Mapping[str, int] = field(default_factory=dict)
    dtype: str = "bf16"
    phase: str = ""
    model_config: ModelConfig | None = None
    chip: str = ""
    target_mlx: str = ""
    min_kernels: int = 3
    min_saving: int = 0
    near_misses: bool = False
    unsafe_fixes: bool = False
    exact: bool = False
    facts: str = ""
    cache: bool = True

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


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing where nothing is close."""
    known = list(known)
    folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f'; did you mean "{folded[close[0]]}"?' if close else ""


def dtype_name(text: str, where: str) -> str:
    name = LONG_DTYPES.get(text, text)
    if name not in DTYPES:
        raise ConfigError(f'{where}: unknown dtype "{text}"{nearest(text, [*DTYPES, *LONG_DTYPES])}')
    return name


def phase_name(text: str, where: str) -> str:
    if text not in PHASES:
        raise ConfigError(f'{where}: unknown phase "{text}"{nearest(text, PHASES)}')
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


def find_file(start: Path) -> Path | None:
    """The nearest pyproject.toml with a [tool.fuselint] table, from `start` upwards."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        try:
            if path.is_file() and b"tool.fuselint" in path.read_bytes():
                return path
        except OSError:
            continue
    return None


def load(path: Path) -> Settings:
    """Settings of a TOML file's [tool.fuselint]."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text).get("tool", {}).get("fuselint", {})
    except OSError as e:
        raise ConfigError(f"{path}: can't be read: {e.strerror}") from e
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as e:
        raise ConfigError(f"{path}: not valid TOML: {e}") from e
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: tool.fuselint is not a table")
    return replace(Settings(), **{_field(k, path, text): _value(k, v, path, text) for k, v in table.items()})


def _at(key: str, path: Path, text: str) -> str:
    """`path:line` of a key, for messages. TOML readers keep no positions, so the key's line is looked for."""
    spellings = (key, f'"{key}"', f"'{key}'")
    for number, line in enumerate(text.splitlines(), 1):
        if line.split("=")[0].strip() in spellings:
            return f"{path}:{number}"
    return str(path)


def _field(key: str, path: Path, text: str) -> str:
    known = {f.name.replace("_", "-"): f.name for f in fields(Settings)}
    if key not in known:
        raise ConfigError(f'{_at(key, path, text)}: unknown setting "{key}" in [tool.fuselint]{nearest(key, known)}')
    return known[key]


def _value(key: str, value: Any, path: Path, text: str) -> Any:
    where = _at(key, path, text)
    default = getattr(Settings(), key.replace("-", "_"))
    if key == "shape":
        if not isinstance(value, dict):
            raise ConfigError(f'{where}: "shape" is a table of sizes, such as {{ T = 2048 }}')
        return shape_entries((f"{name}={size}" for name, size in _flat(value)), where)
    if key == "min-saving":
        return byte_size(str(value), where)
    named = {"dtype": dtype_name, "phase": phase_name, "chip": chip_name, "target-mlx": mlx_version}
    if key in named:
        if not isinstance(value, str):
            raise ConfigError(f'{where}: "{key}" is a text in quotes')
        return named[key](value, where)
    if key == "model-config":
        if not isinstance(value, str):
            raise ConfigError(f'{where}: "{key}" is the path of a config.json, or a family, in quotes')
        return load_model_config(value, where, path.parent)
    if key == "facts":
        if not isinstance(value, str):
            raise ConfigError(f'{where}: "facts" is the path of a file of `fuselint record`, in quotes')
        return str(path.parent / value) if value else ""
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigError(f'{where}: "{key}" is a list of strings')
        return tuple(value)
    if type(value) is not type(default):
        wanted = {bool: "true or false", int: "a whole number"}[type(default)]
        raise ConfigError(f'{where}: "{key}" is {wanted}')
    return value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Dotted names of nested tables: TOML reads `Attention.L = 1` as a table in a table."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
