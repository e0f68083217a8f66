"""A package on disk and the graphs of its functions, for tests of facts across files."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.facts import Facts
from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.source.modules import Modules
from fuselint.source.project import summarise
from fuselint.source.text import read

HEAD = "import math\nfrom dataclasses import dataclass\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """The package `pack` in a folder, with these files: each gets the usual imports on top."""
    package = folder / "pack"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + text)
    return package


def graph(path: Path, qualname: str, modules: Modules | None = None) -> Graph:
    """The graph of a function of a file, which knows the other files of its package."""
    file = read(path)
    program = Program(file, summarise(file, ast.parse(file.text)))
    program.elsewhere = Elsewhere(program, modules or Modules())
    found = program.graph(qualname)
    assert found is not None
    return found


def returned(of: Graph) -> Node:
    """The value of its last return."""
    return of.returns[-1][1]


def facts(of: Graph, usual: bool = False) -> Facts:
    return of.usual if usual else of.facts
