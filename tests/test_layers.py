"""Which settings count for a file: nested files, what they extend, --config, options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.errors import ConfigError
from fuselint.layers import Layers, load
from fuselint.rulebook import chosen_codes
from support import NORM, Ran

Run = Callable[..., Ran]

CHAIN = """\


def loud(x, y):
    return mx.exp(x * y) + mx.sin(x)
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def codes(ran: Ran) -> list[tuple[str, str]]:
    return [(line.split(":")[0], line.split(": ")[1][:6]) for line in ran.out.splitlines()]


def test_each_file_goes_by_the_nearest_configuration(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[tool.fuselint]\nselect = ["FUS201"]\n')
    write(tmp_path / "norm.py", NORM + CHAIN)
    write(tmp_path / "inner/fuselint.toml", 'select = ["FUS301"]\n')
    write(tmp_path / "inner/norm.py", NORM + CHAIN)
    write(tmp_path / "inner/deep/norm.py", NORM + CHAIN)
    expected = [("inner/deep/norm.py", "FUS301"), ("inner/norm.py", "FUS301"), ("norm.py", "FUS201")]
    assert sorted(codes(fuselint("check", "--output-format", "concise"))) == expected
    diff = fuselint("fix", "--unsafe-fixes").out
    assert diff.count("mx.fast.rms_norm(x") == 1 and diff.count("mx.compile") == 2


def test_the_files_of_one_folder_have_an_order(tmp_path: Path) -> None:
    shared = write(tmp_path / "pyproject.toml", "[tool.fuselint]\n")
    assert Layers().nearest(tmp_path) == shared
    own = write(tmp_path / "fuselint.toml", "")
    assert Layers().nearest(tmp_path) == own
    hidden = write(tmp_path / ".fuselint.toml", "")
    assert Layers().nearest(tmp_path) == hidden


def test_a_pyproject_without_our_table_is_none_of_ours(tmp_path: Path) -> None:
    outer = write(tmp_path / "pyproject.toml", "[tool]\nfuselint.exact = true\n")
    write(tmp_path / "a/pyproject.toml", "# tool.fuselint stands above\n[tool.ruff]\n")
    assert Layers().nearest(tmp_path / "a") == outer
    assert Layers().of(str(tmp_path / "a" / "m.py")).exact


def test_a_file_extends_another(tmp_path: Path) -> None:
    write(
        tmp_path / "base/shared.toml",
        'dtype = "f16"\nmin-saving = "1MB"\nexclude = ["a"]\nextend-exclude = ["b"]\n[shape]\nT = 1\nL = 2\n',
    )
    top = write(
        tmp_path / "pyproject.toml",
        '[tool.fuselint]\nextend = "base/shared.toml"\nmin-saving = 5\nexclude = ["c"]\nextend-exclude = ["d"]\n'
        "shape = { T = 7 }\n",
    )
    found = load(top)
    assert (found.dtype, found.min_saving, found.shape) == ("f16", 5, {"T": 7, "L": 2})
    assert [(Path(g.folder).name, g.patterns) for g in found.exclude] == [(tmp_path.name, ("c",))]
    assert [(Path(g.folder).name, g.patterns) for g in found.extend_exclude] == [
        ("base", ("b",)),
        (tmp_path.name, ("d",)),
    ]
    assert found.origins["shape"] == (f"{tmp_path / 'base/shared.toml'}:5", f"{top}:6")


def test_files_that_extend_each_other_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.toml", 'extend = "b.toml"\n')
    write(tmp_path / "b.toml", 'extend = "a.toml"\n')
    with pytest.raises(ConfigError, match=r"b\.toml:1: .*a\.toml is extended already"):
        load(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("table", "options", "expected"),
    [
        ('select = ["FUS2"]\nignore = ["FUS20"]', [], {"FUS211", "FUS221"}),
        ('select = ["FUS2"]\nignore = ["FUS20"]\nextend-select = ["FUS203"]', [], {"FUS203", "FUS211", "FUS221"}),
        ('ignore = ["FUS2"]\nselect = ["ALL"]\nextend-select = ["unfused-rope"]', [], {"FUS221", "FUS301"}),
        ('select = ["FUS301"]\nignore = ["FUS301"]', [], set()),
        ('ignore = ["FUS301"]', ["--select", "FUS3"], {"FUS301"}),
        ('ignore = ["FUS301"]', ["--extend-select", "FUS3"], {"FUS203", "FUS211", "FUS221", "FUS301"}),
        ('select = ["FUS301", "FUS203"]', ["--ignore", "FUS3"], {"FUS203"}),
        ('select = ["FUS301"]', ["--config", 'extend-select = ["FUS211"]', "--ignore", "FUS30"], {"FUS211"}),
    ],
)
def test_which_rules_are_on(fuselint: Run, tmp_path: Path, table: str, options: list[str], expected: set[str]) -> None:
    write(tmp_path / "fuselint.toml", table)
    data = json.loads(fuselint("config", "--format", "json", *options).out)
    watched = {"FUS203", "FUS211", "FUS221", "FUS301"}
    assert set(data["rules"]) & watched == expected


def test_rules_are_off_in_some_files(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "fuselint.toml", '[per-file-ignores]\n"tests/" = ["FUS2"]\n"!*/kept.py" = ["FUS301"]\n')
    for name in ["tests/a.py", "src/a.py", "src/kept.py"]:
        write(tmp_path / name, NORM + CHAIN)
    found = codes(fuselint("check", "--output-format", "concise"))
    assert sorted(found) == [("src/a.py", "FUS201"), ("src/kept.py", "FUS201"), ("src/kept.py", "FUS301")]
    found = codes(fuselint("check", "--output-format", "concise", "--per-file-ignores", "src/kept.py:FUS201,FUS301"))
    assert found == [("src/a.py", "FUS201")]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--config", "selct = ['FUS2']"], '--config selct: unknown setting "selct"; did you mean "select"?'),
        (["--config", "select=FUS2"], "values are written as in TOML"),
        (["--config", "nowhere.toml"], "nowhere.toml: can't be read"),
        (["--config", "a.toml", "--config", "b.toml"], "only one file can be given"),
        (["--config", "a.toml", "--isolated"], "--isolated reads no file"),
        (["--per-file-ignores", "tests"], "expected PATTERN:RULES"),
        (["--per-file-ignores", "a.py:FUS2O1"], 'per-file-ignores: no rule "FUS2O1"'),
        (["--min-kernels", "1"], '"min-kernels" is 2 or more'),
        (["--output-format", "jsn"], '--output-format: unknown format "jsn"; did you mean "json"?'),
    ],
)
def test_a_wrong_option_says_what_is_right(fuselint: Run, tmp_path: Path, args: list[str], said: str) -> None:
    ran = fuselint("check", *args)
    assert ran.code == 2 and said in ran.err, ran.err


def test_a_wrong_selector_names_its_file(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "fuselint.toml", 'exact = true\nignore = ["FUS3O1"]\n')
    ran = fuselint("check")
    assert ran.code == 2 and 'fuselint.toml:2: ignore: no rule "FUS3O1"; did you mean' in ran.err


def test_a_wrong_nested_file_is_an_error_too(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "inner/fuselint.toml", "exact = 1\n")
    write(tmp_path / "inner/norm.py", NORM)
    ran = fuselint("check")
    assert ran.code == 2 and '"exact" is true or false' in ran.err


def test_config_prints_what_counts_and_where_it_comes_from(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "fuselint.toml", 'ignore = ["FUS3"]\n[shape]\nT = 7\n')
    ran = fuselint("config", "--shape", "L=2", "--config", 'dtype = "f16"', "--select", "FUS2")
    assert ran.code == 0
    lines = {line.split(" = ")[0]: line for line in ran.out.splitlines()}
    assert lines["shape"].startswith('shape = {"T" = 7, "L" = 2} ')
    assert lines["shape"].endswith(" # fuselint.toml:2, --shape")
    assert lines["dtype"].endswith("# --config dtype")
    assert lines["ignore"].endswith("# default")  # --select starts anew
    assert lines["exact"].endswith("# default")
    (tmp_path / "again.toml").write_text(ran.out)
    again = load(tmp_path / "again.toml")
    assert (again.shape, again.dtype, again.select) == ({"T": 7, "L": 2}, "f16", ("FUS2",))


def test_config_of_a_file_is_that_of_its_folder(fuselint: Run, tmp_path: Path) -> None:
    write(tmp_path / "inner/fuselint.toml", "exact = true\n")
    assert "exact = true " in fuselint("config", "inner/new.py").out
    assert "exact = true " in fuselint("config", "inner").out
    assert "exact = false " in fuselint("config").out


def test_every_setting_can_be_given_and_is_printed(fuselint: Run) -> None:
    from dataclasses import fields

    from fuselint.config import READERS, field_of

    made = {"selections", "origins"}
    assert {field_of(k) for k in READERS} == {f.name for f in fields(Settings)} - made
    data = json.loads(fuselint("config", "--format", "json").out)
    assert set(data) == {*READERS, "rules"}
    help_text = fuselint("check", "--help").out + fuselint("fix", "--help").out
    for key in READERS:
        assert f"--{key}" in help_text or f"--no-{key}" in help_text, key


def test_hot_and_cold_are_the_users_word(fuselint: Run, tmp_path: Path) -> None:
    source = """\
import mlx.core as mx


class Model:
    def sanitize(self, weights):
        return {k.replace("a.", "b."): mx.exp(w * w) + mx.sin(w) for k, w in weights.items()}

    def table(self, x):
        return self.inner(x)

    def inner(self, x):
        return mx.exp(x * x) + mx.sin(x)
"""
    write(tmp_path / "m.py", source)
    assert [c for _, c in codes(fuselint("check", "--output-format", "concise"))] == ["FUS301"]
    assert fuselint("check", "--cold", "Model.inner").code == 0
    assert fuselint("check", "--cold", "table").code == 0  # `inner` is called from nowhere else
    assert fuselint("check", "--cold", "Model.*", "--hot", "inner").code == 1
    assert "cold: a setting" in fuselint("explain", "m.py:12", "--cold", "inner").out


def test_the_default_selection_is_all() -> None:
    assert {"FUS000", "FUS201", "FUS900"} <= chosen_codes(Settings())
