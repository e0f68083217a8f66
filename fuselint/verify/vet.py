"""Which text of a region may run: calls of MLX operations, Python's arithmetic, and the region's own definitions.

This is the fence between `fix` and the user's code: a region that names anything else is not verifiable, and is not
run. The text then runs without Python's builtins, save the few listed here.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Iterable, Mapping

from fuselint.graph import ops

DEFAULT_IMPORTS = {
    "mx": "mlx.core", "nn": "mlx.nn", "math": "math", "partial": "functools.partial", "functools": "functools",
}  # fmt: skip
MODULES = (
    "mlx.core mlx.core.fast mlx.core.linalg mlx.core.random mlx.core.fft mlx.nn mlx.nn.losses math functools"
).split()
DTYPES = (
    "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 "
    "floating integer inexact number generic Dtype"
).split()
CONSTANTS = "pi e inf nan newaxis array finfo iinfo compile issubdtype".split()
OTHERS = {"functools.partial", "functools.reduce", "typing.Optional", "typing.Any", "typing.Tuple", "typing.Union"}
BUILTINS = (
    "abs all any bool dict divmod enumerate filter float int isinstance len list map max min pow range reversed round "
    "set slice sorted staticmethod property str sum tuple zip "
    "ValueError TypeError NotImplementedError RuntimeError AssertionError Exception"
).split()
PLAIN_METHODS = "append extend index count keys values items get copy pop insert reverse".split()
"""Methods of Python's own containers."""

STATEMENTS = (
    ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.If, ast.For, ast.While, ast.Break,
    ast.Continue, ast.Pass, ast.Assert, ast.Raise, ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom,
)  # fmt: skip
BARRED = (ast.Await, ast.Yield, ast.YieldFrom)


class Barred(Exception):
    """Why a text may not run."""


def safe_builtins() -> dict[str, object]:
    """What the text finds as `__builtins__`. A class statement needs `__build_class__`, which the text can't name."""
    return {n: getattr(builtins, n) for n in (*BUILTINS, "__build_class__")} | {"__name__": "region"}


def imports(tree: ast.Module) -> dict[str, str]:
    """Local names of the modules and functions that a text imports, by their qualified name."""
    out: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                if a.asname:
                    out[a.asname] = a.name
                else:
                    out[a.name.split(".")[0]] = a.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module == "__future__":
                continue
            for a in node.names:
                out[a.asname or a.name] = f"{node.module}.{a.name}"
    return out


def importable(target: str) -> bool:
    return target in MODULES or target == "mlx" or target in OTHERS or _allowed_member(target)


def _allowed_member(target: str) -> bool:
    """Whether a qualified name is an operation or constant that a region may use."""
    module, _, name = target.rpartition(".")
    if any(part.startswith("_") for part in target.split(".")):
        return False
    if module == "math":
        return hasattr(math, name)
    if module == "mlx.core" and (name in DTYPES or name in CONSTANTS):
        return True
    return target.startswith("mlx.") and ops.resolve_call(target) is not None


def vet(text: str, support: str, inputs: Iterable[str]) -> ast.Module:
    """The parsed text, or Barred. `inputs`: the names that the region is given, such as `x` and `self.weight`."""
    tree, defs = _parse(text), _parse(support)
    fence = _Fence(tree, defs, inputs)
    fence.check(defs)
    fence.check(tree)
    return tree


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        raise Barred(f"does not parse: {e}") from e


class _Fence:
    def __init__(self, tree: ast.Module, support: ast.Module, inputs: Iterable[str]) -> None:
        self.imports: Mapping[str, str] = {**DEFAULT_IMPORTS, **imports(support), **imports(tree)}
        self.paths = set(inputs)
        self.bound = {p.split(".")[0] for p in self.paths} | _bound(tree) | _bound(support)
        self.methods = {
            f.name
            for c in ast.walk(support)
            if isinstance(c, ast.ClassDef)
            for f in c.body
            if isinstance(f, ast.FunctionDef)
        }
        for name in sorted(self.bound & set(self.imports)):
            if any(name == p.split(".")[0] for p in self.paths) or name not in imports(tree) | imports(support):
                self.imports = {k: v for k, v in self.imports.items() if k != name}
        for target in self.imports.values():
            if not importable(target):
                raise Barred(f"imports {target}")

    def check(self, tree: ast.Module) -> None:
        inner: set[ast.AST] = set()  # parts of a dotted name already judged as a whole
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and not isinstance(node, STATEMENTS):
                raise Barred(f"has a `{_word(node)}` statement")
            if isinstance(node, BARRED):
                raise Barred(f"has a `{_word(node)}` expression")
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name.startswith("__"):
                if node.name != "__call__":
                    raise Barred(f"defines {node.name}")
            elif isinstance(node, ast.Attribute):
                self._attribute(node, inner)
            elif isinstance(node, ast.Name) and node not in inner:
                self._name(node)
            elif isinstance(node, (ast.arg, ast.keyword)) and (node.arg or "").startswith("__"):
                raise Barred(f"names {node.arg}")
            if isinstance(node, ast.Call):
                self._call(node)

    def _name(self, node: ast.Name) -> None:
        if node.id.startswith("__"):
            raise Barred(f"names {node.id}")
        if isinstance(node.ctx, ast.Load) and node.id not in self.bound and node.id not in BUILTINS:
            target = self.imports.get(node.id)
            if target is None:
                raise Barred(f"reads `{node.id}`, which is not known here")
            if target in MODULES or target == "mlx":
                raise Barred(f"uses the module {target} as a value")

    def _attribute(self, node: ast.Attribute, inner: set[ast.AST]) -> None:
        if node.attr.startswith("__") or node.attr in ("format", "format_map", "mro"):
            raise Barred(f"reads the attribute {node.attr}")
        if node.attr.startswith(("f_", "gi_", "cr_", "tb_", "func_", "ag_")):
            raise Barred(f"reads the attribute {node.attr}")
        if node in inner:
            return
        dotted = self.module_path(node)
        if dotted is None:
            return
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            at = at.value
            inner.add(at)
        owner, _, name = dotted.rpartition(".")
        of_array = owner == "mlx.core.array" and ops.method(name) is not None
        of_dtype = owner.rpartition(".")[2] in DTYPES and name == "size"
        if _allowed_member(dotted) or dotted in OTHERS or of_array or of_dtype:
            return
        if dotted in MODULES or dotted == "mlx":
            raise Barred(f"uses the module {dotted} as a value")
        raise Barred(f"calls {self._spelled(node)}")

    def module_path(self, node: ast.Attribute) -> str | None:
        """The qualified name of a dotted expression that starts at an imported name."""
        parts: list[str] = []
        at: ast.expr = node
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if not isinstance(at, ast.Name) or at.id not in self.imports:
            return None
        return ".".join([self.imports[at.id], *reversed(parts)])

    def _spelled(self, node: ast.expr) -> str:
        try:
            return ast.unparse(node)
        except RecursionError:
            return "something deep"

    def _call(self, node: ast.Call) -> None:
        f = node.func
        if not isinstance(f, ast.Attribute) or self.module_path(f) is not None:
            return
        spelled = self._spelled(f)
        if f.attr in self.methods or spelled in self.paths:
            return
        if ops.method(f.attr) is not None or f.attr in PLAIN_METHODS or f.attr in ("item", "tolist", "astype"):
            return
        raise Barred(f"calls {spelled}")


def _bound(tree: ast.Module) -> set[str]:
    """Names that the text itself binds, anywhere."""
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            out.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            out.add(node.name)
        elif isinstance(node, ast.arg):
            out.add(node.arg)
    return out


def _word(node: ast.AST) -> str:
    return {"AsyncFunctionDef": "async def", "With": "with", "Try": "try", "Delete": "del", "TryStar": "try"}.get(
        type(node).__name__, type(node).__name__.lower()
    )
