"""What has to hold of a file after its fixes, looked at without any of fuselint's own guards.

Each function gives the violations as text, none where all is well.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuselint.finding import Finding
from fuselint.source.guard import PRAGMA

RULES = "F401,F811,F821,F841"
"""Of ruff: unused imports, redefinitions, names that aren't there, unused locals."""

LENGTHS = (79, 80, 88, 99, 100, 110, 119, 120)


def of_file(before: bytes, after: bytes, applied: Sequence[Finding]) -> list[str]:
    """The violations of one changed file; `applied` are its fixes."""
    try:
        old, new = before.decode("utf-8-sig"), after.decode("utf-8-sig")
        compile(new, "fixed", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return [f"doesn't compile: {error}"]
    return [*_bytes(before, after), *_comments(old, new), *_elsewhere(old, new, applied), *_style(old, new)]


def _bytes(before: bytes, after: bytes) -> Iterator[str]:
    if before.startswith(b"\xef\xbb\xbf") != after.startswith(b"\xef\xbb\xbf"):
        yield "the byte order mark came or went"
    new = set(re.findall(rb"\r\n|\r|\n", after)) - set(re.findall(rb"\r\n|\r|\n", before))
    if new:
        yield f"other line endings: {sorted(new)}"
    if before[-1:] in b"\r\n" and after[-1:] not in b"\r\n":
        yield "the newline at the end is gone"


def _comments(old: str, new: str) -> Iterator[str]:
    lost = _said(old) - _said(new)
    for comment in lost:
        if not PRAGMA.match(comment):
            yield f"a comment is gone: {comment}"


def _said(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text, newline="").readline)
    return Counter(t.string for t in tokens if t.type == tokenize.COMMENT)


def _style(old: str, new: str) -> Iterator[str]:
    kept = set(old.splitlines())
    lines = [line for line in new.splitlines() if line not in kept]
    if any(line != line.rstrip() for line in lines):
        yield "trailing blanks"
    if not re.search(r"^\t", old, re.MULTILINE) and any(line.startswith("\t") for line in lines):
        yield "tabs in a file without any"
    quotes = [{q for q in "'\"" if any(q in line for line in some)} for some in (old.splitlines(), lines)]
    if len(quotes[0]) == 1 and not quotes[1] <= quotes[0]:
        yield "other quotes"
    widest = max(map(len, kept), default=0)
    allowed = next((w for w in (88, 100, 120) if widest <= w), widest)
    if max(map(len, lines), default=0) > allowed:
        yield f"a longer line than any before: {max(lines, key=len).strip()}"


# -- only what the fixes name changes -------------------------------------------------------------------------------


@dataclass
class _Parts:
    """Functions by qualified name, and all other statements of modules and classes."""

    functions: dict[str, str] = field(default_factory=dict)
    compiled: set[str] = field(default_factory=set)
    others: Counter[str] = field(default_factory=Counter)


def _parts(text: str) -> _Parts:
    parts = _Parts()
    lines = text.splitlines(keepends=True)
    _collect(ast.parse(text).body, "", lines, parts)
    return parts


def _collect(body: Iterable[ast.AST], prefix: str, lines: Sequence[str], parts: _Parts) -> None:
    for s in body:
        if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{prefix}{s.name}"
            while name in parts.functions:  # one that is defined again
                name += "'"
            first = min([s.lineno, *(d.lineno for d in s.decorator_list)])
            parts.functions[name] = "".join(lines[first - 1 : s.end_lineno])
            if any("compile" in ast.unparse(d) for d in s.decorator_list):
                parts.compiled.add(name)
        elif isinstance(s, ast.ClassDef):
            parts.others[f"class {prefix}{s.name} {[ast.unparse(x) for x in (*s.decorator_list, *s.bases)]}"] += 1
            _collect(s.body, f"{prefix}{s.name}.", lines, parts)
        elif isinstance(s, (ast.If, ast.Try, ast.With)):
            _collect([c for c in ast.iter_child_nodes(s) if isinstance(c, ast.stmt)], prefix, lines, parts)
        else:
            parts.others[f"{prefix}{ast.unparse(s)}"] += 1


def _elsewhere(old: str, new: str, applied: Sequence[Finding]) -> Iterator[str]:
    before, after = _parts(old), _parts(new)
    fixed = {f.function.split(".<locals>")[0] for f in applied}
    messages = " ".join(f.fix.message for f in applied if f.fix)
    goes = set(re.findall(r"`(?:self\.)?([\w ]+)` goes", messages))  # names, and whole imports
    for name, code in before.functions.items():
        last = name.rpartition(".")[2]
        if name not in after.functions:
            if last not in goes:
                yield f"{name} is gone, which no fix says"
        elif after.functions[name] != code and name not in fixed and not (last == "__init__" and goes):
            yield f"{name} changes, which no fix names"
    for name in after.functions.keys() - before.functions.keys():
        if name not in after.compiled:
            yield f"{name} is new, and no compiled helper"
    for statement in before.others - after.others:
        if statement not in goes:
            yield f"gone: {statement}"
    for statement in after.others - before.others:
        if not statement.startswith(("import ", "from ")):
            yield f"new: {statement}"


# -- by ruff ---------------------------------------------------------------------------------------------------------


def linted(before: Path, after: Path, changed: Sequence[str]) -> list[str]:
    """What ruff finds after, and didn't before."""
    old, new = (_ruff_findings(folder, changed) for folder in (before, after))
    return [f"{path}: {code} {message}" for path, code, message in (new - old).elements()]


def _ruff_findings(folder: Path, changed: Sequence[str]) -> Counter[tuple[str, str, str]]:
    out = _ruff(folder, "check", "--isolated", "--no-cache", "--select", RULES, "--output-format", "json", *changed)
    found = json.loads(out)
    root = folder.resolve()
    return Counter((str(Path(f["filename"]).relative_to(root)), f["code"], f["message"]) for f in found)


def formatted(folder: Path, changed: Sequence[str]) -> dict[str, set[int]]:
    """The line lengths at which each file is formatted as black would."""
    out: dict[str, set[int]] = {path: set() for path in changed}
    root = folder.resolve()
    for length in LENGTHS:
        said = _ruff(folder, "format", "--isolated", "--no-cache", "--check", "--line-length", str(length), *changed)
        otherwise = {line.removeprefix("Would reformat: ") for line in said.splitlines() if line.startswith("Would")}
        for path in changed:
            if path not in otherwise and str(root / path) not in otherwise:
                out[path].add(length)
    return out


def unformatted(before: Path, after: Path, changed: Sequence[str]) -> tuple[int, list[str]]:
    """How many files were formatted before, and those that are at none of the same line lengths any more."""
    old, new = formatted(before, changed), formatted(after, changed)
    return sum(map(bool, old.values())), [path for path in changed if old[path] and not old[path] & new[path]]


def _ruff(folder: Path, *arguments: str) -> str:
    if not arguments[-1].endswith(".py"):
        return "[]"
    ran = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments], check=False, cwd=folder, capture_output=True, text=True
    )
    return ran.stdout


# -- by Python --------------------------------------------------------------------------------------------------------

IMPORTER = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
told, sys.stdout = sys.stdout, sys.stderr
out = {}
for name in json.load(sys.stdin):
    try:
        importlib.import_module(name)
        out[name] = ""
    except BaseException as e:
        out[name] = f"{type(e).__name__}: {e}"
json.dump(out, told)
"""


def importable(python: str, folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Each module with why it can't be imported, or "". In a child process of `python`."""
    ran = subprocess.run(
        [python, "-c", IMPORTER, str(folder)],
        check=True, cwd="/", input=json.dumps(list(names)), capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    return dict(json.loads(ran.stdout))


def modules(folder: Path) -> list[str]:
    """The modules of the packages in a folder."""
    out = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if "__main__" not in parts and "tests" not in parts and all(p.isidentifier() for p in parts):
            out.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return out
