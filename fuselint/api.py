"""fuselint as a library: text or paths in, frozen data out. `fuselint.check_source` and the others are these.

Settings are keywords with the names and values of configuration files: `select=["FUS2"]`, `min_saving="1MB"`,
`shape={"T": 2048}`. A wrong one raises ConfigError, which says what is right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from fuselint.config import Configuration, layer
from fuselint.engine import FixedFile
from fuselint.engine import check_file as _check_file
from fuselint.engine import check_paths as _check_paths
from fuselint.engine import fix_text as _fix_text
from fuselint.finding import FileResult
from fuselint.layers import Layers
from fuselint.source.discovery import python_files
from fuselint.source.text import FileText, decode

if TYPE_CHECKING:
    from typing_extensions import Unpack

NAMELESS = "<source>"

Path_ = str | os.PathLike[str]
"""A path in whatever form."""


class Options(TypedDict, total=False):
    """Settings as keywords: see docs/configuration.md."""

    select: Sequence[str]
    extend_select: Sequence[str]
    ignore: Sequence[str]
    per_file_ignores: Mapping[str, Sequence[str]]
    exclude: Sequence[str]
    extend_exclude: Sequence[str]
    notebooks: bool
    force_exclude: bool
    respect_gitignore: bool
    shape: Mapping[str, int]
    dtype: str
    phase: str
    model_config: str
    chip: str
    target_mlx: str
    facts: str
    min_kernels: int
    min_saving: int | str
    hot: Sequence[str]
    cold: Sequence[str]
    near_misses: bool
    unsafe_fixes: bool
    exact: bool
    output_format: str
    cache: bool


def check_source(
    source: str | bytes, path: Path_ = NAMELESS, *, config: Path_ | None = None, **settings: Unpack[Options]
) -> FileResult:
    """The findings of a text, in `.findings`; `.errors` is empty unless fuselint itself failed.

    path: what findings name, and where the other files of the package are looked for; it need not exist.
    config: a configuration file. Without one nothing but `settings` counts.
    A text that isn't Python gives a finding FUS000. Raises ConfigError, and FuselintError for bytes that are no text.
    """
    return _check_file(_file(source, path), _stated(config, settings).of(os.fspath(path)))


def check_paths(
    paths: Iterable[Path_],
    *,
    config: Path_ | None = None,
    isolated: bool = False,
    jobs: int = 1,
    **settings: Unpack[Options],
) -> Iterator[FileResult]:
    """The results of files and folders, as `fuselint check` finds them: folders are walked, one result a file.

    config: a configuration file for all; else the nearest of each file counts, or none where `isolated`.
    jobs: worker processes; with more than one, call this under `if __name__ == "__main__"`.
    Raises ConfigError, and FuselintError where a path does not exist.
    """
    layers = _stated(config, settings) if isolated or config is not None else _layered(None, settings)
    return _check_paths(python_files([os.fspath(p) for p in paths], layers), layers, jobs)


def fix_source(
    source: str | bytes,
    path: Path_ = NAMELESS,
    *,
    config: Path_ | None = None,
    verify: bool = False,
    **settings: Unpack[Options],
) -> FixedFile:
    """A text with its safe fixes made, in `.after`; `.applied` and `.remaining` say which findings, `.diff` how.

    Nothing is written. verify: run each fix before and after on MLX, and withhold what differs.
    `unsafe_fixes=True` takes what isn't proven too. path, config: as of `check_source`, with its errors.
    """
    return _fix_text(_file(source, path), _stated(config, settings).of(os.fspath(path)), verify)


def _file(source: str | bytes, path: Path_) -> FileText:
    if isinstance(source, bytes):
        return decode(os.fspath(path), source)
    return FileText(os.fspath(path), source)


def _stated(config: Path_ | None, settings: Options) -> Configuration:
    return _layered(config, settings, isolated=config is None)


def _layered(config: Path_ | None, settings: Options, isolated: bool = False) -> Layers:
    table = {name.replace("_", "-"): _plain(value) for name, value in settings.items()}
    over = layer(table, lambda key: key.replace("-", "_"), Path())
    return Layers(Path(os.path.abspath(config)) if config is not None else None, isolated, [over])


def _plain(value: object) -> object:
    """Any sequence and mapping as TOML has it."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
