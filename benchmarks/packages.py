"""Packages that use MLX, at pinned versions; and their model files, loaded without the packages' own imports."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
import types
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PINNED = {
    "mlx-lm==0.0.3": "5981276d73b891562ac5dffe8318f8cba4429535f69b56509f41ac9ec294eeb7",
    "mlx-lm==0.0.14": "e85e13c713d208359167021cfc5019a9cb5a3a8e4a50dcd6cb6832735778805d",
    "mlx-lm==0.10.0": "e9a02f16d2a28356afb9334a6c046351e25b8279985f85b20b24e65a5dd2a631",
    "mlx-lm==0.32.2": "5c0991248cfff5872503d74f466d2532dd8cb7fb3670cb9be7a06d7305dadc04",
    "mlx-vlm==0.7.10": "f112ddaaf1bf0dd1efa702b5675a27df3345614e69e3996d3fbd09d838b8333d",
    "mlx-audio==0.6.2": "db57a552bd0ab16aa1fcc435d5fdb1c692d78e64926fa1f73669805c782e5731",
    "mflux==0.24.0": "682368f04a1b2b0871144a8d57b7f7866e84dd0fd2bc3a765d1d57918e21237e",
    "mlx-whisper==0.4.3": "6b82b6597a994643a3e5496c7bc229a672e5ca308458455bfe276e76ae024489",
    "mlx-embeddings==0.1.0": "3fe1feaa786d3b546ccd8909f6b4c22bd3bcce097616fce83173ededd30e6630",
    "mlx-image==0.1.10": "05fdb73a008195b670d3ca88d401458b44146cb6aed9647a8cf7db08caf1399e",
    "mimm==0.0.2": "a61db46ee8b51d51b56fee69d4730a7fc10f367bc1c4e434b0ad57bea3fe9a1f",
    "f5-tts-mlx==0.2.6": "bfb7d4c5c9020436f8bb16a8051d8a42c8a83b940b634a71a127024bb6554ec4",
    "demucs-mlx==1.6.1": "a24635d9a1a1e712180738420fa84d69f8cd35a8125f6f7de2f639558cf737c1",
    "parakeet-mlx==0.7.0": "768552ddc362af86e0a5911585f8e151cec48d40035193b077af91513b8e56e3",
    "mlx-arsenal==0.17.0": "378ae9547d8ed4a60bf53e04d3c051bfb2a2339bc458f115dec7e4da81f3b96d",
}
"""The wheels by what pip calls them, each with its sha256."""


def chosen(names: Iterable[str]) -> list[str]:
    """The pinned packages that begin with one of the names; all without one."""
    wanted = tuple(names)
    return [p for p in PINNED if not wanted or p.startswith(wanted)]


def unpacked(cache: Path, packages: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Each pinned package with the folder that its wheel was unpacked into; downloads what `cache` doesn't hold."""
    for package in packages:
        name, version = package.split("==")
        folder = cache / f"{name.replace('-', '_')}-{version}"
        if not folder.is_dir():
            part = folder.with_suffix(".part")
            with zipfile.ZipFile(_wheel(cache, package)) as wheel:
                wheel.extractall(part)
            part.rename(folder)
        yield package, folder


def _wheel(cache: Path, package: str) -> Path:
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    cache.mkdir(parents=True, exist_ok=True)
    if not any(cache.glob(pattern)):
        what = ["--no-deps", "--only-binary", ":all:", "--dest", str(cache), package]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *what], check=True)
    (wheel,) = cache.glob(pattern)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != PINNED[package]:
        raise SystemExit(f"{wheel}: not the file that was pinned")
    return wheel


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
