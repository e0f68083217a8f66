"""Which file of a package a name belongs to."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fuselint.source.modules as modules_module
from fuselint.source.modules import Definition, Modules
from fuselint.source.notes import SUMMARY, kind_of, of_file
from fuselint.source.project import summarise
from fuselint.source.text import FileText


def project(tmp_path: Path, files: dict[str, str]) -> Path:
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


BASE = "EPS = 1e-5\n\n\ndef mask(n):\n    return n\n\n\nclass Norm:\n    def __call__(self, x):\n        return x\n"
FILES = {
    "pack/__init__.py": "from .models import mask as top_mask\n",
    "pack/models/__init__.py": "from .base import mask, Norm\nfrom . import layers\n",
    "pack/models/base.py": BASE,
    "pack/models/layers.py": "from .base import Norm\n\n\nclass Big(Norm):\n    pass\n",
    "pack/models/llama.py": "",
    "pack/models/star.py": "from .base import *\nfrom .listed import *\n",
    "pack/models/listed.py": "__all__ = ['_shown', 'mask']\n\n\n"
    "def _shown():\n    pass\n\n\ndef mask():\n    pass\n\n\ndef other():\n    pass\n",
    "pack/models/computed.py": "from .base import *\n\n__all__ = [n for n in dir()]\n",
    "pack/models/loop_a.py": "from .loop_b import f\n",
    "pack/models/loop_b.py": "from .loop_a import f\n",
    "pack/models/broken.py": "def f(:\n",
    "pack/models/lazy.py": "def __getattr__(name):\n    return 1\n\n\ndef known():\n    pass\n",
    "pack/models/twice.py": "if x:\n    from .base import mask\nelse:\n    from .listed import mask\n",
    "pack/models/fallback.py": "try:\n    from .base import mask\nexcept ImportError:\n    mask = None\n",
    "pack/space/tools.py": "def tool():\n    pass\n",
    "run.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return project(tmp_path, FILES)


@pytest.mark.parametrize(
    ("where", "name", "found"),
    [
        ("pack/models/llama.py", ".base.mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", ".base.EPS", "pack/models/base.py:EPS"),
        ("pack/models/llama.py", ".base.Norm.__call__", "pack/models/base.py:Norm.__call__"),
        ("pack/models/llama.py", ".base", "pack/models/base.py:"),
        ("pack/models/llama.py", "..models.base.mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", "...pack.models.base.mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", "pack.models.base.mask", "pack/models/base.py:mask"),
        ("run.py", "pack.models.base.mask", "pack/models/base.py:mask"),
        ("run.py", "pack.top_mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", ".mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", "..top_mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", ".layers.Big", "pack/models/layers.py:Big"),
        ("run.py", "pack.models.layers.Big", "pack/models/layers.py:Big"),
        ("pack/models/llama.py", ".layers.Big.__call__", "pack/models/base.py:Norm.__call__"),
        ("pack/models/llama.py", ".layers.Norm", "pack/models/base.py:Norm"),
        ("pack/models/llama.py", ".star.Norm", "pack/models/base.py:Norm"),
        ("pack/models/llama.py", ".star.mask", "pack/models/listed.py:mask"),
        ("pack/models/llama.py", ".star._shown", "pack/models/listed.py:_shown"),
        ("pack/models/star.py", "*._shown", "pack/models/listed.py:_shown"),
        ("pack/models/llama.py", ".fallback.mask", "pack/models/base.py:mask"),
        ("pack/models/llama.py", "..space.tools.tool", "pack/space/tools.py:tool"),
        ("run.py", "pack.space.tools.tool", "pack/space/tools.py:tool"),
        ("pack/models/base.py", "Norm.__call__", "pack/models/base.py:Norm.__call__"),
        # What no file says for sure.
        ("pack/models/llama.py", ".star.other", None),
        ("pack/models/star.py", "*.other", None),
        ("pack/models/llama.py", ".loop_a.f", None),
        ("pack/models/llama.py", ".broken.f", None),
        ("pack/models/llama.py", ".missing.f", None),
        ("pack/models/llama.py", ".base.missing", None),
        ("pack/models/llama.py", ".lazy.known", None),
        ("pack/models/llama.py", ".twice.mask", None),
        ("pack/models/llama.py", "numpy.array", None),
        ("pack/models/llama.py", "mlx.core.array", None),
        ("pack/models/llama.py", "builtins.len", None),
        ("pack/models/llama.py", "base.mask", None),
    ],
)
def test_a_name_leads_to_its_definition(root: Path, where: str, name: str, found: str | None) -> None:
    got = Modules().resolve(str(root / where), name)
    assert got == (None if found is None else Definition(str(root / found.split(":")[0]), found.split(":")[1]))


def test_scripts_beside_one_another_import_each_other(tmp_path: Path) -> None:
    project(tmp_path, {"base.py": BASE, "run.py": ""})
    assert Modules().resolve(str(tmp_path / "run.py"), "base.mask") == Definition(str(tmp_path / "base.py"), "mask")


def test_an_installed_package_knows_itself_only(tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    site.mkdir()
    project(site, {"one/__init__.py": "", "one/a.py": BASE, "two/__init__.py": "", "two/b.py": ""})
    modules = Modules()
    assert modules.resolve(str(site / "one" / "__init__.py"), "one.a.mask") is not None
    assert modules.resolve(str(site / "two" / "b.py"), "one.a.mask") is None


def test_a_text_that_is_not_written_yet_counts(root: Path) -> None:
    base = str(root / "pack/models/base.py")
    modules = Modules({base: "def fresh():\n    pass\n"})
    assert modules.resolve(str(root / "run.py"), "pack.models.base.fresh") is not None
    assert modules.resolve(str(root / "run.py"), "pack.models.base.mask") is None


def test_bases_of_other_files_count_and_unknown_ones_are_said(root: Path) -> None:
    modules = Modules()
    big = Definition(str(root / "pack/models/layers.py"), "Big")
    assert [d.name for d in modules.lineage(big)[0]] == ["Big", "Norm"]
    assert modules.lineage(big)[1]
    (root / "pack/models/layers.py").write_text("from elsewhere import Norm\n\n\nclass Big(Norm):\n    pass\n")
    assert not Modules().lineage(big)[1]


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("from .base import Norm\n", True),
        ("from .base import (\n    mask,  # a comment\n    Norm as N,\n)\n", True),
        ("from . import Norm\n", True),
        ("from .base import *\n", True),
        ("from pack.models.layers import Norm\n", True),
        ("from .listed import Norm\n", False),
        ("from .base import mask\n", False),
        ("Norm = 3\n", False),
    ],
)
def test_who_imports_a_class(root: Path, text: str, uses: bool) -> None:
    user = root / "pack/models/user.py"
    user.write_text(text)
    users = Modules().users(Definition(str(root / "pack/models/base.py"), "Norm"))
    assert (str(user) in users) is uses
    assert users == sorted(users)


def test_what_was_read_is_noted_with_its_hash(root: Path) -> None:
    modules, here = Modules(), str(root / "pack/models/llama.py")
    base = of_file(SUMMARY, "mask", str(root / "pack/models/base.py"))
    with modules.noting() as first:
        modules.resolve(here, ".base.mask")
        modules.resolve(here, ".missing.f")
    with modules.noting() as second:
        modules.resolve(here, ".base.mask")
        modules.resolve(here, ".missing.f")
    assert first == second, "also what is known from before is noted"
    assert first[base] and kind_of(str(root / "pack/models/missing"), "") in first, "what is nothing counts too"
    (root / "pack/models/base.py").write_text(BASE + "\n")
    changed = Modules()
    with changed.noting() as third:
        changed.resolve(here, ".base.mask")
    assert third[base] != first[base]


def test_few_files_are_kept_and_the_analysed_one_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules_module, "KEPT", 2)
    root = project(tmp_path, FILES)
    modules, here = Modules(), root / "pack/models/llama.py"
    text = "from .layers import Big\n\n\ndef unsaved():\n    return Big()\n"
    analysed = FileText(str(here), text)
    modules.know(analysed, summarise(analysed, ast.parse(text)))
    for name in FILES:
        if name != "pack/models/llama.py":
            modules.file(str(root / name))
            assert len(modules._files) <= 2
    held = modules.file(str(here))
    assert held is not None and held.text == text and held.path == str(here)
    assert modules.resolve(str(here), "unsaved") == Definition(str(here), "unsaved")
    assert modules.resolve(str(here), ".layers.Big") == Definition(str(root / "pack/models/layers.py"), "Big")
    other = FileText(str(root / "run.py"), "")
    modules.know(other, summarise(other, ast.parse("")))
    again = modules.file(str(here))
    assert again is not None and again.text == ""  # as it is on disk
