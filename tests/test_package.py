"""What other files of a package read."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuselint.package import Package

SUBCLASS = "from .llama import Attention\nclass A(Attention):\n    x = lambda self: self.repeats\n"
MODEL = "class Attention:\n    def __init__(self):\n        self.repeats = 2\n\n\ndef _norm(x):\n    return x\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "pack"
    (folder / "models").mkdir(parents=True)
    for name in ["__init__.py", "models/__init__.py"]:
        (folder / name).write_text("")
    (folder / "models" / "llama.py").write_text(MODEL)
    return folder


@pytest.mark.parametrize(
    ("where", "text", "name", "read"),
    [
        ("models/other.py", "class A:\n    def f(self):\n        return self.repeats\n", "repeats", False),
        ("models/other.py", SUBCLASS, "repeats", True),
        ("models/other.py", "def f(model):\n    return model.repeats\n", "repeats", True),
        ("run.py", "def f(model):\n    return getattr(model, 'repeats')\n", "repeats", True),
        ("models/other.py", "def f(model):\n    model.repeats = 3\n", "repeats", False),
        ("models/other.py", "repeats = 3\nprint(repeats)\n", "repeats", False),
        ("models/other.py", "def _norm(x):\n    return x\n\n\ny = _norm(1)\n", "_norm", False),
        ("models/other.py", "from .llama import _norm\n", "_norm", True),
        ("models/other.py", "from . import llama\n\n\ny = llama._norm(1)\n", "_norm", True),
        ("models/other.py", "from .llama import *\n\n\ny = _norm(1)\n", "_norm", True),
        ("models/other.py", "repeats = (\n", "repeats", True),
        ("models/other.py", "# repeats\n", "repeats", False),
    ],
)  # fmt: skip
def test_a_name_is_read_where_it_may_mean_this_file(
    package: Path, where: str, text: str, name: str, read: bool
) -> None:
    (package / where).write_text(text)
    assert Package().others_read(str(package / "models" / "llama.py"))(name) is read


def test_outside_of_a_package_the_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "llama.py").write_text(MODEL)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "far.py").write_text("x.repeats\n")
    is_read = Package().others_read(str(tmp_path / "llama.py"))
    assert not is_read("repeats")
    (tmp_path / "near.py").write_text("x.repeats\n")
    assert not is_read("repeats"), "one run looks once"
    assert Package().others_read(str(tmp_path / "llama.py"))("repeats")


def test_texts_not_yet_written_count_in_place_of_their_files(package: Path) -> None:
    other = package / "models" / "other.py"
    other.write_text("def f(model):\n    return model.repeats\n")
    here = str(package / "models" / "llama.py")
    assert not Package({str(other): "pass\n"}).others_read(here)("repeats")
    assert Package({str(other): "x.heads\n"}).others_read(here)("heads")
