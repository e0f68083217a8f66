"""fuselint: a fusion-opportunity linter for MLX code.

`check_source`, `check_paths` and `fix_source` are the library: see fuselint/api.py and docs/api.md. They and the data
that they give are imported when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselint.api import check_paths, check_source, fix_source
    from fuselint.engine import FixedFile
    from fuselint.errors import ConfigError, FuselintError
    from fuselint.finding import Edit, FileResult, Finding, Fix, Obligation, Related, Traffic, Verification

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "Edit",
    "FileResult",
    "Finding",
    "Fix",
    "FixedFile",
    "FuselintError",
    "Obligation",
    "Related",
    "Traffic",
    "Verification",
    "__version__",
    "check_paths",
    "check_source",
    "fix_source",
]

_HOMES = {
    **dict.fromkeys(("check_paths", "check_source", "fix_source"), "fuselint.api"),
    "FixedFile": "fuselint.engine",
    **dict.fromkeys(("ConfigError", "FuselintError"), "fuselint.errors"),
    **dict.fromkeys(("Edit", "FileResult", "Finding", "Fix", "Obligation"), "fuselint.finding"),
    **dict.fromkeys(("Related", "Traffic", "Verification"), "fuselint.finding"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
