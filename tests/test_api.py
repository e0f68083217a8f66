"""The library: what it gives, and that it reads and writes nothing that it isn't told to."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import fuselint
from fuselint.api import Options
from fuselint.config import READERS, field_of
from support import NORM, PLAIN

ROOT = Path(__file__).parent.parent


def test_a_text_is_checked() -> None:
    result = fuselint.check_source(NORM, "a/norm.py")
    [finding] = result.findings
    assert isinstance(finding, fuselint.Finding)
    assert (finding.path, finding.line, finding.code) == ("a/norm.py", 14, "FUS201")
    assert result.errors == () and result.functions == 1
    assert fuselint.check_source(NORM.encode("latin-1"), Path("norm.py")).findings[0].id == finding.id
    assert pickle.loads(pickle.dumps(result)) == result


def test_bytes_that_are_no_text_are_an_error() -> None:
    for function in (fuselint.check_source, fuselint.fix_source):
        with pytest.raises(fuselint.FuselintError, match=r"norm\.py:2:1: byte 0xff"):
            function(b"import mlx\n\xff", "norm.py")


def test_a_text_is_fixed_and_nothing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = fuselint.fix_source(NORM, "norm.py")
    assert "return mx.fast.rms_norm(x, self.weight, self.eps)\n" in fixed.after
    assert [f.code for f in fixed.applied] == ["FUS201"] and fixed.remaining.findings == ()
    assert fixed.diff.startswith("--- a/norm.py\n+++ b/norm.py\n")
    assert list(tmp_path.iterdir()) == []


def test_settings_are_keywords() -> None:
    assert fuselint.check_source(NORM, select=("FUS3",)).findings == ()
    assert fuselint.check_source(NORM, min_saving="1MB", shape={"T": 1, "D": 8}).findings == ()
    [finding] = fuselint.check_source(NORM, shape={"T": 4, "D": 8}, dtype="float32").findings
    assert finding.traffic and dict(finding.traffic.at) == {"T": 4, "D": 8} and finding.traffic.dtype == "f32"
    assert fuselint.check_source(NORM, "tests/norm.py", per_file_ignores={"tests/": ["ALL"]}).findings == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"selct": ["FUS2"]}, 'unknown setting "selct"; did you mean "select"?'),
        ({"select": "FUS2"}, '"select" is a list of strings'),
        ({"select": ["FUS2O1"]}, 'select: no rule "FUS2O1"; did you mean'),
        ({"config": "gone.toml"}, "gone.toml: can't be read"),
    ],
)
def test_a_wrong_setting_says_what_is_right(settings: dict[str, object], said: str) -> None:
    with pytest.raises(fuselint.ConfigError, match=re.escape(said)):
        fuselint.check_source(NORM, **settings)  # type: ignore[arg-type]


def test_configuration_files_count_for_paths_and_when_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fuselint.toml").write_text('ignore = ["FUS201"]\n')
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "plain.py").write_text(PLAIN)

    def found(**settings: object) -> list[tuple[str, int]]:
        return [(r.path, len(r.findings)) for r in fuselint.check_paths(["."], **settings)]  # type: ignore[arg-type]

    assert found() == [("norm.py", 0), ("plain.py", 0)]
    assert found(isolated=True) == [("norm.py", 1), ("plain.py", 0)]
    assert found(isolated=True, jobs=2) == [("norm.py", 1), ("plain.py", 0)]
    assert found(extend_select=["FUS201"]) == [("norm.py", 1), ("plain.py", 0)]
    assert len(fuselint.check_source(NORM, "norm.py").findings) == 1
    assert len(fuselint.check_source(NORM, "norm.py", config="fuselint.toml").findings) == 0
    with pytest.raises(fuselint.FuselintError, match="gone"):
        fuselint.check_paths(["gone"])


def test_what_is_no_python_is_a_finding() -> None:
    assert [f.code for f in fuselint.check_source("import mlx.core as mx\n(").findings] == ["FUS000"]


def test_every_setting_is_a_keyword() -> None:
    assert set(typing.get_type_hints(Options)) == {field_of(key) for key in READERS}


def test_all_names_are_there_and_come_late() -> None:
    for name in fuselint.__all__:
        assert getattr(fuselint, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'chek_source'"):
        _ = fuselint.chek_source  # type: ignore[attr-defined]
    program = "import sys, fuselint; print('check_paths' in dir(fuselint), [m for m in sys.modules if 'libcst' in m])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True []\n"


def test_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    block = re.search(r"```python\n(.*?)```", page, re.S)
    assert block
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "norm.py").write_text(NORM)
    (tmp_path / "run.py").write_text(block[1])
    ran = subprocess.run([sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, env={**os.environ})
    assert ran.returncode == 0, ran.stderr
    assert "norm.py:5: FUS201" in ran.stdout and "+    return mx.fast.rms_norm(" in ran.stdout
    assert ran.stdout.endswith(f"{os.path.join('src', 'norm.py')} 1\n")


@pytest.mark.slow
def test_it_is_typed(tmp_path: Path) -> None:
    """As someone else's type checker sees it."""
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text(
        "import fuselint\n"
        "reveal_type(fuselint.check_source('', select=['FUS2']).findings[0].line)\n"
        "reveal_type(fuselint.fix_source('').after)\n"
        "fuselint.check_source('', selct=[])\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "use.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}  # it doesn't see editable installs
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert 'use.py:2: note: Revealed type is "int"' in ran.stdout.replace("builtins.", "")
    assert 'use.py:3: note: Revealed type is "str"' in ran.stdout.replace("builtins.", "")
    assert "use.py:4: error: Unexpected keyword argument" in ran.stdout
