"""The parent's side of a recording: starts the user's command, and gathers what its Python processes saw."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuselint.errors import ConfigError, FuselintError
from fuselint.record import observer
from fuselint.recorded import FILE, FOLDER, merged

START = """
import importlib.util, os, sys
sys.path.remove({folder!r})
spec = importlib.util.spec_from_file_location("_fuselint_observer", {observer!r})
module = importlib.util.module_from_spec(spec)
try:
    spec.loader.exec_module(module)
    module.main()
except Exception as e:
    print("fuselint record:", e, file=sys.stderr)
del sys.modules["sitecustomize"]
try:
    import sitecustomize
except ImportError:
    sys.modules["sitecustomize"] = module
finally:
    sys.path.insert(0, {folder!r})
"""
"""Python imports `sitecustomize` before the program: ours, which then makes way for the user's own."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A finished run. code: its exit code. path: the facts, or None where nothing was recorded."""

    code: int
    path: Path | None
    functions: int = 0
    calls: int = 0
    files: int = 0


def record(command: Sequence[str], paths: Sequence[str], root: Path) -> Recording:
    """Run a command, and write what the functions below `paths` were called with to `root`/.fuselint/facts.json."""
    roots = [os.path.realpath(p) for p in paths]
    for given, found in zip(paths, roots, strict=True):
        if not os.path.exists(found):
            raise ConfigError(f"record: there is no {given}")
    # What the command leaves running, such as multiprocessing's tracker, may still write while the folder goes.
    with tempfile.TemporaryDirectory(prefix="fuselint-record-", ignore_cleanup_errors=True) as folder:
        hook = Path(folder) / "hook"
        hook.mkdir()
        start = START.format(folder=str(hook), observer=os.path.abspath(observer.__file__))
        (hook / "sitecustomize.py").write_text(start, encoding="utf-8")
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(hook), environment.get("PYTHONPATH"))))
        environment["FUSELINT_RECORD"] = json.dumps({"roots": roots, "folder": folder})
        try:
            code = subprocess.run(list(command), env=environment, check=False).returncode
        except OSError as e:
            raise FuselintError(f"record: {command[0]}: can't be run: {e.strerror}") from e
        parts = [_read(p) for p in sorted(Path(folder).glob("*.json"))]
    facts = merged([p for p in parts if p], root, command)
    functions = [f for file in facts["files"].values() for f in file["functions"].values()]
    if not functions:
        return Recording(code, None)
    target = root / FOLDER / FILE
    try:
        target.parent.mkdir(exist_ok=True)
        (target.parent / ".gitignore").write_text("*\n", encoding="utf-8")
        target.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as e:
        raise FuselintError(f"{target}: can't be written: {e.strerror}") from e
    return Recording(code, target, len(functions), sum(f["calls"] for f in functions), len(facts["files"]))


def _read(path: Path) -> dict[str, Any]:
    """The file of one process; nothing where that was ended while it wrote."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return found
