"""Watches the calls of a program: arguments and attributes of self, by function. Runs inside the user's process.

It stands alone: the program's Python may have neither fuselint nor MLX, and may be older than this one. Whatever goes
wrong in here must not reach the program. Of an array it reads shape and dtype, which evaluates nothing.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

FIRST = 8
"""Calls of a function that are looked at one by one; then every call whose number is a power of two."""
MOST_SIGNATURES = 32
MOST_PARTS = 4
MOST_NUMBERS = 200
OPTIMIZED = 1
"""The flag of a function's code: the body of a class or module has it not."""
PLAIN = (bool, int, float, str, type(None))


class Function:
    """What is known of one function. signatures: what it was called with, as text, and how often that was seen."""

    __slots__ = ("calls", "code", "names", "signatures")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.calls = 0
        self.signatures: dict[str, int] = {}
        count = code.co_argcount + code.co_kwonlyargcount
        self.names = code.co_varnames[:count]

    def call(self, frame: FrameType) -> None:
        self.calls += 1
        n = self.calls
        if n > FIRST and n & (n - 1):
            return
        local = frame.f_locals
        seen = {name: described(local[name]) for name in self.names if name in local}
        first = self.names[0] if self.names else ""
        if first == "self" and first in local:
            seen.pop(first)
            held = attributes(local[first])
            seen.update(("self." + k, v) for k, v in held.items())
        key = json.dumps(seen, sort_keys=True)
        if key in self.signatures or len(self.signatures) < MOST_SIGNATURES:
            self.signatures[key] = self.signatures.get(key, 0) + 1


def is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ == "array" and kind.__module__.startswith("mlx.")


def described(value: Any, deep: int = 0) -> dict[str, Any]:
    """A value as JSON: what kind it is, and what of it doesn't need its numbers."""
    if is_array(value):
        return {"array": list(value.shape), "dtype": str(value.dtype).rpartition(".")[2]}
    if isinstance(value, PLAIN):
        return {"value": value[:80] if isinstance(value, str) else value}
    if isinstance(value, (list, tuple)) and deep < 2:
        return {"items": [described(v, deep + 1) for v in value[:MOST_PARTS]], "length": len(value)}
    kind = type(value)
    if kind.__name__ == "Dtype":
        return {"value": str(value).rpartition(".")[2], "kind": "dtype"}
    return {"object": kind.__module__ + "." + kind.__qualname__, "numbers": numbers(value)}


def numbers(owner: Any) -> dict[str, Any]:
    """The plain numbers that an object holds, such as a configuration."""
    held = getattr(owner, "__dict__", None)
    found = held.items() if isinstance(held, dict) else ()
    plain = {k: v for k, v in found if isinstance(v, (bool, int, float)) and k[:1] != "_"}
    return plain if len(plain) <= MOST_NUMBERS else {}


def attributes(owner: Any) -> dict[str, Any]:
    """Arrays, numbers and layers that an object holds. mlx.nn keeps arrays and layers as items of the module."""
    out: dict[str, Any] = {}
    items: dict[Any, Any] = dict(owner) if isinstance(owner, dict) else {}
    plain = getattr(owner, "__dict__", None)
    items.update(plain if isinstance(plain, dict) else {})
    for name, value in items.items():
        if not isinstance(name, str):
            continue
        if is_array(value) or (isinstance(value, PLAIN) and not isinstance(value, str)):
            out[name] = described(value)
        elif type(value).__module__.startswith("mlx.nn") and isinstance(value, dict):
            layer = described(value)
            layer["holds"] = {k: described(v) for k, v in value.items() if is_array(v)}
            out[name] = layer
    return out


class Observer:
    """Calls of the functions of files below `roots`, until `write`."""

    def __init__(self, roots: list[str], folder: str) -> None:
        self.roots = tuple(roots)
        self.folder = folder
        self.functions: dict[CodeType, Function | None] = {}
        self.hashes: dict[str, str] = {}

    def wanted(self, code: CodeType) -> Function | None:
        """The record of a function, None for one that isn't in the checked paths."""
        path = code.co_filename
        if not code.co_flags & OPTIMIZED or code.co_name.startswith("<") or not path.endswith(".py"):
            return None
        path = os.path.realpath(path)
        inside = [r for r in self.roots if path == r or path.startswith(r + os.sep)]
        if not inside or any("site-packages" in path[len(r) :] for r in inside):
            return None
        if path not in self.hashes:
            try:
                with open(path, "rb") as file:
                    self.hashes[path] = hashlib.sha256(file.read()).hexdigest()
            except OSError:
                return None
        return Function(code)

    def start(self) -> None:
        if hasattr(sys, "monitoring"):
            self._monitor()
        else:
            self._profile()
        atexit.register(self.write)

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
        tool = next((t for t in (4, 3, 1, 2, 5) if monitoring.get_tool(t) is None), None)
        if tool is None:
            return
        monitoring.use_tool_id(tool, "fuselint")
        functions, wanted, frame_of = self.functions, self.wanted, sys._getframe

        def started(code: CodeType, _offset: int) -> Any:
            try:
                if code not in functions:
                    functions[code] = wanted(code)
                found = functions[code]
                if found is None:
                    return monitoring.DISABLE
                found.call(frame_of(1))
            except Exception:
                return None
            return None

        monitoring.register_callback(tool, monitoring.events.PY_START, started)
        monitoring.set_events(tool, monitoring.events.PY_START)

    def _profile(self) -> None:
        functions, wanted = self.functions, self.wanted

        def called(frame: FrameType, event: str, _argument: Any) -> None:
            if event != "call":
                return
            try:
                code = frame.f_code
                if code not in functions:
                    functions[code] = wanted(code)
                found = functions[code]
                if found is not None:
                    found.call(frame)
            except Exception:
                return

        threading.setprofile(called)
        sys.setprofile(called)

    def write(self) -> None:
        """What was seen, as a file of this process."""
        files: dict[str, Any] = {}
        for code, found in list(self.functions.items()):
            if found is None or not found.calls:
                continue
            path = os.path.realpath(code.co_filename)
            names = files.setdefault(path, {"sha256": self.hashes[path], "functions": {}})["functions"]
            name = getattr(code, "co_qualname", None) or qualname(path, code)
            signatures = [{"seen": n, "values": json.loads(key)} for key, n in found.signatures.items()]
            known = names.setdefault(name, {"line": code.co_firstlineno, "calls": 0, "signatures": []})
            known["calls"] += found.calls
            known["signatures"] += signatures
        target = os.path.join(self.folder, f"{os.getpid()}.json")
        try:
            with open(target, "w", encoding="utf-8") as file:
                json.dump({"files": files}, file)
        except OSError:
            return  # a process that outlived the recording


def qualname(path: str, code: CodeType) -> str:
    """The qualified name of a function, where its code doesn't tell (before Python 3.11)."""
    try:
        with open(path, "rb") as file:
            stack: list[tuple[str, ast.AST]] = [("", n) for n in ast.parse(file.read()).body]
    except (OSError, SyntaxError, ValueError):
        return code.co_name
    while stack:
        prefix, node = stack.pop()
        inner = prefix
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno] + [d.lineno for d in node.decorator_list])
            if node.name == code.co_name and code.co_firstlineno in (first, node.lineno):
                return prefix + node.name
            inner = prefix + node.name + ("." if isinstance(node, ast.ClassDef) else ".<locals>.")
        stack.extend((inner, child) for child in ast.iter_child_nodes(node))
    return code.co_name


def main() -> None:
    job = json.loads(os.environ["FUSELINT_RECORD"])
    Observer(job["roots"], job["folder"]).start()
