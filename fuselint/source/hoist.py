"""Module-level code that a fix needs: aliases of MLX's modules, imports, compiled helpers."""

from __future__ import annotations

import ast
import builtins
import itertools
import sys
from dataclasses import dataclass, field
from functools import lru_cache

from fuselint.finding import Edit
from fuselint.rulebook import HoistedHelper
from fuselint.source.layout import Page, has_spaced_powers, width_of
from fuselint.source.project import MODULE, ModuleSummary
from fuselint.source.removal import above, blank_before, line_end
from fuselint.source.screen import nodes, syntax
from fuselint.source.text import FileText

CORE, NN, PARTIAL = "mlx.core", "mlx.nn", "functools.partial"


class Refused(Exception):
    """A replacement can't be placed; the message says why."""


def parsed(file: FileText) -> ast.Module:
    """The tree of a file, which nobody changes."""
    return syntax(file.text)


def start_of(file: FileText, stmt: ast.stmt) -> int:
    """The offset of a statement's first line, decorators included."""
    decorators: list[ast.expr] = getattr(stmt, "decorator_list", [])
    line = min([stmt.lineno, *(d.lineno for d in decorators)])
    return file.starts[line - 1]


def end_of(file: FileText, stmt: ast.stmt) -> int:
    assert stmt.end_lineno is not None and stmt.end_col_offset is not None
    return file.ast_offset(stmt.end_lineno, stmt.end_col_offset)


@lru_cache(maxsize=4)
def indent_of(file: FileText) -> str:
    """One level of indentation of a file: that of its first suite."""
    for stmt in parsed(file).body:
        body: list[ast.stmt] = getattr(stmt, "body", [])
        if body and body[0].lineno > stmt.lineno:
            line = file.line(body[0].lineno)
            return line[: len(line) - len(line.lstrip(" \t"))] or "    "
    return "    "


@lru_cache(maxsize=4)
def page_of(file: FileText) -> Page:
    """How lines of a file are laid out."""
    return Page(indent_of(file), width_of(file.text), file.newline, has_spaced_powers(file.text))


@dataclass
class Surroundings:
    """The module around one function, and what a fix adds to it."""

    file: FileText
    summary: ModuleSummary
    qualname: str
    start: int  # of the function
    edits: list[Edit] = field(default_factory=list)
    added: set[str] = field(default_factory=set)  # names that the edits bind
    definition: str = ""  # of the helper

    def alias(self, target: str, scope: str | None = None) -> str:
        """How code in `scope` (the function, by default) writes a module, which is imported where it isn't yet."""
        scope = self.qualname if scope is None else scope
        names = [*self.summary.imports]
        for inner in self.summary.function_imports.values():
            names += inner
        found = [n for n in dict.fromkeys(names) if self.summary.resolve(n, scope) == target]
        if found:
            common = {CORE: "mx", NN: "nn", PARTIAL: "partial"}.get(target)
            return common if common in found else found[0]
        parent, _, last = target.rpartition(".")
        for name in dict.fromkeys(names):
            if parent and self.summary.resolve(name, scope) == parent and self._imports_submodule(parent, last):
                return f"{name}.{last}"
        return self._import(target, scope)

    def _imports_submodule(self, parent: str, last: str) -> bool:
        """Whether `parent.last` may be written: an attribute of a plain module, or a submodule that is imported."""
        if parent == "functools":
            return True
        return any(
            isinstance(n, ast.alias) and n.name == f"{parent}.{last}" and not n.asname for n in nodes(self.file.text)
        )

    def _import(self, target: str, scope: str) -> str:
        if target == CORE:
            name, line = "mx", "import mlx.core as mx"
        elif target == NN:
            name, line = "nn", "import mlx.nn as nn"
        elif target == PARTIAL and "partial" in taken_names(self.file):
            name, line = "functools", "import functools"
        elif target == PARTIAL:
            name, line = "partial", "from functools import partial"
        else:
            parent, _, name = target.rpartition(".")
            line = f"from {parent} import {name}" if parent else f"import {name}"
        written = target if name == "functools" else name
        if name in self.added:
            return written
        if name in taken_names(self.file) or self.summary.stars:
            raise Refused(f"{target} is not imported, and `{name}` may be something else here")
        places = {CORE: self._before_mlx, NN: self._after_mlx, PARTIAL: self._among_stdlib}
        at = places.get(target, self._after_imports)()
        if at is None:
            raise Refused(f"{target} is not imported, and there is no place for the import")
        position, before, after = at
        first = (
            0 if target == PARTIAL else len(self.edits)
        )  # of imports at one place, the standard library's come first
        self.edits.insert(first, Edit(position, position, before + line + after))
        self.added.add(name)
        return written

    def _before_mlx(self) -> tuple[int, str, str] | None:
        """Before the first module-level import of MLX."""
        for s in parsed(self.file).body:
            if isinstance(s, (ast.Import, ast.ImportFrom)) and _root(s) == "mlx":
                return (start_of(self.file, s), "", self.file.newline)
        return None

    def _after_mlx(self) -> tuple[int, str, str] | None:
        """After the module-level import of mlx.core."""
        for s in parsed(self.file).body:
            if isinstance(s, (ast.Import, ast.ImportFrom)) and _names_core(s):
                return self._behind(s)
        return None

    def _after_imports(self) -> tuple[int, str, str] | None:
        """After the last import before the first function or class."""
        last: ast.stmt | None = None
        for s in parsed(self.file).body:
            if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            if isinstance(s, (ast.Import, ast.ImportFrom)):
                last = s
        return None if last is None else self._behind(last)

    def _behind(self, stmt: ast.stmt) -> tuple[int, str, str]:
        newline = self.file.newline
        end = line_end(self.file, end_of(self.file, stmt))
        missing = "" if self.file.text[:end].endswith(("\n", "\r")) else newline
        return (end, missing, newline if not missing else "")

    def _among_stdlib(self) -> tuple[int, str, str] | None:
        """Where isort puts `from functools import ...`."""
        newline = self.file.newline
        imports = [s for s in parsed(self.file).body if isinstance(s, (ast.Import, ast.ImportFrom))]
        usable = [s for s in imports if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")]
        if not usable:
            return None
        standard = [s for s in usable if _root(s) in sys.stdlib_module_names]
        if not standard:
            return (start_of(self.file, usable[0]), "", newline * 2)
        behind = [s for s in standard if isinstance(s, ast.Import) or (s.module or "") < "functools"]
        if not behind:
            return (start_of(self.file, standard[0]), "", newline)
        end = line_end(self.file, end_of(self.file, behind[-1]))
        return (end, "", newline) if self.file.text[:end].endswith(("\n", "\r")) else None

    # Helpers

    def helper(self, helper: HoistedHelper) -> tuple[str, tuple[int, ...]]:
        """The name of a compiled module-level function of that body, made if there is none, and its arguments' order:
        entry i is the index in `helper.params` of its i-th parameter."""
        core = self.alias(CORE, MODULE)
        if core not in self.added and not self._always_bound(core.partition(".")[0]):
            raise Refused("mlx.core may be missing where the helper would be made: its import stands under a condition")
        text = "\n".join((*helper.statements, helper.body))
        nn = self.alias(NN, MODULE) if "{nn}" in text else ""
        body = [s.replace("{mx}", core).replace("{nn}", nn) for s in (*helper.statements, f"return {helper.body}")]
        found = self._existing(helper, body)
        if found is not None:
            return found
        name = self._unique(helper.name)
        at = self._place(helper, body)
        text = self._definition(name, helper, body, core, at)
        self.definition = text.strip() + "\n"
        self.edits.append(Edit(at, at, text))
        self.added.add(name)
        return name, tuple(range(len(helper.params)))

    def _always_bound(self, name: str) -> bool:
        """Whether the module binds a name by an import of its own, not inside try or if."""
        imports = [s for s in parsed(self.file).body if isinstance(s, (ast.Import, ast.ImportFrom))]
        return any(name in _module_binds(s) for s in imports)

    def _existing(self, helper: HoistedHelper, body: list[str]) -> tuple[str, tuple[int, ...]] | None:
        try:
            wanted = ast.parse("\n".join(body).replace("return ", "_ = ")).body
        except SyntaxError as e:
            raise Refused(f"the helper's body doesn't parse: {e}") from None
        for s in parsed(self.file).body:
            if not isinstance(s, ast.FunctionDef) or s.name in self.summary.unclear:
                continue
            info = self.summary.compiled.get(s.name)
            if (
                info is None
                or info.how != "decorated"
                or info.shapeless != helper.shapeless
                or len(s.decorator_list) != 1
            ):
                continue
            a = s.args
            if a.vararg or a.kwarg or a.kwonlyargs or a.posonlyargs or a.defaults or len(a.args) != len(helper.params):
                continue
            if self.summary.resolve(s.name, self.qualname) != s.name:
                continue
            own = [x for x in s.body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]
            if len(own) != len(body) or not isinstance(own[-1], ast.Return) or own[-1].value is None or len(a.args) > 5:
                continue
            theirs = [ast.dump(x) for x in own[:-1]] + [ast.dump(own[-1].value)]
            for order in itertools.permutations(range(len(a.args))):
                renamed = {helper.params[j]: a.args[i].arg for i, j in enumerate(order)}
                if [_dump(w, renamed) for w in wanted] == theirs:
                    self.definition = self.file.text[start_of(self.file, s) : end_of(self.file, s)] + "\n"
                    return s.name, order
        return None

    def _unique(self, wished: str) -> str:
        taken = taken_names(self.file) | self.added | set(dir(builtins))
        for name in (wished, f"fused_{wished}", *(f"fused_{wished}_{i}" for i in range(2, 100))):
            if name not in taken and name.isidentifier():
                return name
        raise Refused(f"no free name for a helper like {wished}")

    def _place(self, helper: HoistedHelper, body: list[str]) -> int:
        """Above the module-level statement that holds the function, and the comments right above that."""
        tree = parsed(self.file)
        holder = next((s for s in tree.body if start_of(self.file, s) <= self.start < end_of(self.file, s)), None)
        if holder is None:
            raise Refused("its module-level statement was not found")
        read = {
            n.id for line in body for n in ast.walk(ast.parse(line.replace("return ", ""))) if isinstance(n, ast.Name)
        }
        read -= set(helper.params)
        read.add(self.alias(CORE, MODULE).split(".")[0])
        for s in tree.body[tree.body.index(holder) :]:
            late = _module_binds(s) & read
            if late and not any(_module_binds(e) & late for e in tree.body[: tree.body.index(holder)]):
                raise Refused(f"`{sorted(late)[0]}` is bound below the place of the helper")
        return above(self.file, start_of(self.file, holder))

    def _definition(self, name: str, helper: HoistedHelper, body: list[str], core: str, at: int) -> str:
        page = page_of(self.file)
        newline, unit = page.newline, page.unit
        decorator = f"@{core}.compile"
        if helper.shapeless:
            decorator = f"@{self.alias(PARTIAL, MODULE)}({core}.compile, shapeless=True)"
        kinds = {p: helper.annotations.get(p, f"{core}.array") for p in helper.params}
        signature = ", ".join(f"{p}: {kind}" if kind else p for p, kind in kinds.items())
        head = "def " + page.fit("def ", f"{name}({signature})", f" -> {core}.array:", "")
        lines = [decorator, f"{head} -> {core}.array:"]
        if helper.doc:
            lines.append(f'{unit}"""{helper.doc}"""')
        for s in body:
            start, _, value = s.partition("return ") if s.startswith("return ") else s.partition(" = ")
            first = unit + ("return " if s.startswith("return ") else f"{start} = ")
            lines.append(first + page.value(first, value, "", unit))
        blank = 2 - blank_before(self.file, at) if at and self.file.text[:at].strip() else 0
        return newline * max(0, blank) + newline.join(lines) + newline * 3


def _dump(stmt: ast.stmt, renamed: dict[str, str]) -> str:
    """A statement of a wanted helper with its parameters renamed; the last one is an assignment of what it returns."""
    copy = ast.parse(ast.unparse(stmt)).body[0]
    for n in ast.walk(copy):
        if isinstance(n, ast.Name):
            n.id = renamed.get(n.id, n.id)
    if isinstance(copy, ast.Assign) and isinstance(copy.targets[0], ast.Name) and copy.targets[0].id == "_":
        return ast.dump(copy.value)
    return ast.dump(copy)


def _names_core(stmt: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(stmt, ast.Import):
        return any(a.name == CORE for a in stmt.names)
    return stmt.module == "mlx" and any(a.name == "core" for a in stmt.names)


def _root(stmt: ast.Import | ast.ImportFrom) -> str:
    if isinstance(stmt, ast.ImportFrom):
        return "." if stmt.level else (stmt.module or "").split(".")[0]
    return stmt.names[0].name.split(".")[0]


def _module_binds(stmt: ast.stmt) -> set[str]:
    """Names that a module-level statement binds when it runs."""
    out: set[str] = set()
    stack: list[ast.AST] = [stmt]
    while stack:
        n = stack.pop()
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.add(n.name)
        elif isinstance(n, ast.Name):
            if isinstance(n.ctx, ast.Store):
                out.add(n.id)
        elif isinstance(n, ast.alias):
            out.add((n.asname or n.name).split(".")[0])
        elif not isinstance(n, ast.Lambda):
            stack += ast.iter_child_nodes(n)
    return out


@lru_cache(maxsize=4)
def taken_names(file: FileText) -> frozenset[str]:
    """Every name that a file reads or binds anywhere."""
    out: set[str] = set()
    for n in nodes(file.text):
        if isinstance(n, ast.Name):
            out.add(n.id)
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            out.add(n.name)
        elif isinstance(n, ast.arg):
            out.add(n.arg)
        elif isinstance(n, ast.alias):
            out.add((n.asname or n.name).split(".")[0])
        elif isinstance(n, (ast.Global, ast.Nonlocal)):
            out.update(n.names)
    return frozenset(out)
