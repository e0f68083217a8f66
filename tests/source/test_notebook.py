"""Notebooks: joined, checked in their cells, fixed in place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.errors import UnreadableFile
from fuselint.source.notebook import Notebook, decode
from support import Ran

Run = Callable[..., Ran]

IMPORTS = "import mlx.core as mx\nimport mlx.nn as nn"
NORM = """\
%timeit
class Norm(nn.Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)
        return self.weight * h.astype(x.dtype)"""


def code(source: str | list[str], **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source,
    }
    return {**made, **more}


def notebook(*cells: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {"cells": list(cells), "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


OUTPUT = {"data": {"text/plain": ["\u001b[31m 'é'"]}, "output_type": "execute_result", "metadata": {}}
REAL = notebook(
    {"cell_type": "markdown", "metadata": {}, "source": ["# Norms\n", "h = h * mx.rsqrt(x)"]},
    code(lines(f"!pip install mlx\n{IMPORTS}\nfiles = !ls\nnn.Linear?")),
    code(lines("%%bash\nls -l | grep 'mlx'")),
    code(lines(NORM), outputs=[OUTPUT], execution_count=3, metadata={"source": ["not this"], "cells": [{"source": 1}]}),
    code("for i in range(3):\n    %time Norm(8)(mx.ones((2, 8)))"),
    code("this is no python"),
    kernelspec={"language": "python", "name": "python3"},
)


@pytest.mark.parametrize("layout", [{"indent": 1, "ensure_ascii": False}, {"indent": 1}, {"indent": 4}, {}])
def test_only_the_source_of_a_fixed_cell_changes(layout: dict[str, Any], tmp_path: Path, fuselint: Run) -> None:
    path = tmp_path / "norm.ipynb"
    raw = json.dumps(REAL, **layout) + "\n"
    path.write_text(raw)
    assert fuselint("fix", "--apply", "--no-verify", "norm.ipynb").code == 0
    text = path.read_text()
    old, new = json.loads(raw), json.loads(text)
    [changed] = [i for i, (a, b) in enumerate(zip(old["cells"], new["cells"], strict=True)) if a != b]
    assert changed == 3
    assert "".join(new["cells"][3]["source"]).endswith("        return mx.fast.rms_norm(x, self.weight, self.eps)")
    assert new["cells"][3]["source"][0] == "%timeit\n"
    new["cells"][3]["source"] = old["cells"][3]["source"]
    assert new == old
    assert json.dumps(json.loads(text), **layout) + "\n" == text  # the layout of the file stays


def test_findings_stand_in_their_cells(tmp_path: Path, fuselint: Run) -> None:
    (tmp_path / "norm.ipynb").write_text(json.dumps(REAL))
    ran = fuselint("check", "norm.ipynb")
    assert ran.code == 1
    assert ran.out.startswith("norm.ipynb:cell 4:11:16 FUS201 ")
    assert "\n11 |         return self.weight * h.astype(x.dtype)\n" in ran.out
    [found] = json.loads(fuselint("check", "norm.ipynb", "--output-format", "json").out)
    assert (found["path"], found["cell"], found["line"]) == ("norm.ipynb", 4, 11)
    assert fuselint("check", "norm.ipynb", "--output-format", "concise").out.startswith(
        "norm.ipynb:cell 4:11:16: FUS201"
    )
    [result] = json.loads(fuselint("check", "norm.ipynb", "--output-format", "sarif").out)["runs"][0]["results"]
    assert result["message"]["text"].startswith("cell 4: ") and "fixes" not in result


def test_they_are_off_by_default(tmp_path: Path, fuselint: Run) -> None:
    (tmp_path / "norm.ipynb").write_text(json.dumps(REAL))
    assert fuselint("check").code == 0
    assert fuselint("check", "--notebooks").code == 1
    (tmp_path / "fuselint.toml").write_text("notebooks = true\n")
    assert fuselint("check").code == 1
    assert fuselint("check", "--no-notebooks").code == 0


def test_the_diff_is_one_that_git_applies(tmp_path: Path, fuselint: Run) -> None:
    path = tmp_path / "norm.ipynb"
    path.write_text(json.dumps(REAL, indent=1) + "\n")
    ran = fuselint("fix", "norm.ipynb")
    assert ran.code == 1
    (tmp_path / "fix.patch").write_text(ran.out)
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert fuselint("check", "norm.ipynb").code == 0


def test_comments_silence_and_a_baseline_knows(tmp_path: Path, fuselint: Run) -> None:
    path = tmp_path / "norm.ipynb"
    path.write_text(json.dumps(notebook(code(IMPORTS), code(NORM + "  # noqa: FUS201"))))
    assert fuselint("check", "norm.ipynb").code == 0
    path.write_text(json.dumps(notebook(code(IMPORTS), code(NORM))))
    ran = fuselint("check", "norm.ipynb", "--add-noqa")
    assert ran.code == 2 and "a notebook" in ran.err
    fuselint("baseline", "norm.ipynb")
    path.write_text(json.dumps(notebook(code(IMPORTS), code("x = 1"), code(NORM))))
    assert fuselint("check", "norm.ipynb").code == 0


def read(*cells: dict[str, Any], **metadata: Any) -> Notebook:
    return decode("a.ipynb", json.dumps(notebook(*cells, **metadata)).encode())


@pytest.mark.parametrize(
    "source",
    [
        "%matplotlib inline\nx = 1", "!ls\n", "x = !ls -l", "a, b = %magic c", "if x:\n    !ls\n    y = 2", "x?", "?x",
        "x.y??", "%%time\nx = 1", "%%timeit -n 3\nx = f(1)\n", "%%bash\nls | x", "not python at all", "", "%%html\n<b>",
        "\n\n%cd a\n\n",
        "s = '''\n%d\n!x'''\n!ls", "x = 5 % 3", "x = (5\n% 3)", "await f()", "  %indented", "def f(:\n  !ls",
    ],
)  # fmt: skip
def test_every_cell_comes_back(source: str) -> None:
    import ast

    made = read(code(IMPORTS), code(source), code(lines(source)), code("z = 1"))
    assert made.cells() == {1: IMPORTS, 2: source, 3: source, 4: "z = 1"}
    assert made.encode(made.text) == made.raw.encode()
    ast.parse(made.text)
    grown = made.text.replace("z = 1", "z = 2\nw = 3")
    assert made.encode(grown) == made.raw.replace('"z = 1"', '"z = 2\\nw = 3"').encode()


def test_python_stays_python() -> None:
    assert "get_ipython" not in read(code("x = 5 % 3\ns = '''\n%d'''")).text
    made = read(code("x = !ls\nif x:\n    %cd a\ny = 1"))
    assert [line.partition("  #")[0] for line in made.text.splitlines()[1:]] == [
        "x = get_ipython()", "if x:", "    get_ipython()", "y = 1"
    ]  # fmt: skip


def test_lines_are_found_in_their_cells() -> None:
    made = read({"cell_type": "markdown", "metadata": {}, "source": "a"}, code("x\ny"), code("\nz"))
    assert made.numbers == (2, 3)
    for line, text in enumerate(made.text.split("\n"), 1):
        if text in ("x", "y", "z"):
            assert made.locate(line) == {"x": (2, 1), "y": (2, 2), "z": (3, 2)}[text]


def test_a_text_that_lost_a_cell_or_a_magic_is_refused() -> None:
    made = read(code("x = 1\n!ls"), code("y"))
    assert made.problem(made.text) == ""
    assert "from one cell to another" in made.problem(made.text.replace("# %% cell 2\n", ""))
    assert "not Python" in made.problem(made.text.replace("get_ipython()", "pass"))


@pytest.mark.parametrize("language", ["R", "julia"])
def test_other_languages_have_no_text(language: str) -> None:
    assert read(code("x"), kernelspec={"language": language}).text == ""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"mlx", "not a notebook"),
        (b'["mlx"]', "not a notebook of format 4"),
        (b'{"worksheets": [], "x": "mlx"}', "not a notebook of format 4"),
        (b'{"cells": "mlx\xff"}', "not UTF-8"),
    ],
)
def test_what_is_no_notebook_is_a_finding(data: bytes, said: str, tmp_path: Path, fuselint: Run) -> None:
    with pytest.raises(UnreadableFile, match=said):
        decode("a.ipynb", data)
    (tmp_path / "a.ipynb").write_bytes(data)
    assert f"a.ipynb:1:1: FUS000 {said}" in fuselint("check", "--output-format", "concise", "a.ipynb").out


def test_odd_cells_are_left_alone() -> None:
    made = read(code("x"), {"cell_type": "code"}, code(["y", 1]), code("a\r\nb"), {"source": "z"}, code("# %% cell 9"))
    assert made.numbers == (1,)


def test_a_helper_that_nothing_else_reads_stays() -> None:
    """Another cell, or whoever works there, may call it."""
    source = "def _norm(x):\n    return x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + 1e-5)"
    use = "def f(x, w):\n    return w * _norm(x)"
    fixed = fix_text(read(code(IMPORTS), code(source), code(use)), Settings(unsafe_fixes=True))
    assert not fixed.remaining.errors
    assert "_norm" in "".join(json.loads(fixed.after)["cells"][1]["source"])
