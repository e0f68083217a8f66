"""Load a model file out of an unpacked package, without the package's own imports (tokenizers, hubs)."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any


def load(package: Path, module: str) -> Any:
    """Import `module` (such as models.llama) of the package in the folder `package` (such as .../mlx_lm).

    The package's `__init__` is not run: only the modules that the model itself imports are.
    """
    name = package.name
    for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[loaded]
    root = types.ModuleType(name)
    root.__path__ = [str(package)]
    sys.modules[name] = root
    return importlib.import_module(f"{name}.{module}")


def model_args(args_class: Any, wished: dict[str, Any]) -> Any:
    """The package's config dataclass from those of the wished values that it knows."""
    known = args_class.__dataclass_fields__
    return args_class(**{k: v for k, v in wished.items() if k in known})
