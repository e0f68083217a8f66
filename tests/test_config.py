from __future__ import annotations

from pathlib import Path

import pytest

from fuselint.config import Settings, dtype_name, shape_entries
from fuselint.errors import ConfigError
from fuselint.layers import Layers, load


def write(folder: Path, text: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(text)
    return path


def test_a_table_becomes_settings(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        [tool.fuselint]
        select = ["FUS201"]
        min-kernels = 2
        dtype = "float16"
        exact = true

        [tool.fuselint.shape]
        T = 128
        Attention.L = 1
        """,
    )
    assert load(path) == Settings(
        select=("FUS201",), min_kernels=2, dtype="f16", exact=True, shape={"T": 128, "Attention.L": 1}
    )


def test_settings_of_the_model_and_the_machine(tmp_path: Path) -> None:
    """A path is one beside the file."""
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "num_hidden_layers": 2}')
    path = write(
        tmp_path,
        """
        [tool.fuselint]
        phase = "decode"
        chip = "M4 Pro"
        target-mlx = "0.30"
        model-config = "config.json"
        """,
    )
    found = load(path)
    assert (found.phase, found.chip, found.target_mlx) == ("decode", "m4-pro", "0.30")
    assert found.model_config is not None
    assert found.model_config.data == {"hidden_size": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("selct = []", 'pyproject.toml:2: unknown setting "selct" in [tool.fuselint]; did you mean "select"?'),
        ('select = "FUS201"', '"select" is a list of strings'),
        ("exact = 1", '"exact" is true or false'),
        ("min-kernels = true", '"min-kernels" is a whole number'),
        ("min-kernels = 1", '"min-kernels" is 2 or more'),
        ("min-saving = true", '"min-saving" is a size in bytes'),
        ("per-file-ignores = []", '"per-file-ignores" is a table of rules by pattern'),
        ('per-file-ignores = { "a.py" = "FUS301" }', 'a list of rules for each pattern; "a.py" has none'),
        ("hot = true", '"hot" is a list of strings'),
        ("cold = [1]", '"cold" is a list of strings'),
        ('output-format = "jsn"', 'unknown format "jsn"; did you mean "json"?'),
        ("extend = 1", '"extend" is the path of a file'),
        ('extend = "gone.toml"', "gone.toml: no such file"),
        ('dtype = "bf17"', 'unknown dtype "bf17"; did you mean "bf16"?'),
        ("shape = { T = 0 }", "expected symbol=size"),
        ("shape = { T = 10000000000000 }", "expected symbol=size"),
        ('phase = "prefil"', 'unknown phase "prefil"; did you mean "prefill"?'),
        ('chip = "m9"', 'unknown chip "m9"'),
        ("chip = 3", '"chip" is a text in quotes'),
        ("target-mlx = 0.30", '"target-mlx" is a text in quotes'),
        ('target-mlx = "new"', "expected a version of MLX such as 0.30.5"),
        ("model-config = 8", '"model-config" is the path of a config.json, or a family, in quotes'),
        ('model-config = "lama-3-8b"', "can't be read"),
        ("select = [", "not valid TOML"),
    ],
)
def test_a_wrong_setting_names_the_file_the_key_and_what_is_valid(tmp_path: Path, line: str, said: str) -> None:
    path = write(tmp_path, f"[tool.fuselint]\n{line}\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert said in str(error.value) and str(path) in str(error.value)


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    wanted = write(tmp_path, "[tool.fuselint]\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[tool.ruff]\n")
    assert Layers().nearest(inner) == wanted


def test_the_most_specific_size_counts() -> None:
    settings = Settings(shape=shape_entries(["L=7,D=4", "Attention.L=1", "__call__.L=2"], "--shape"))
    assert settings.size("Attention.__call__", "L") == 2
    assert settings.size("Attention.other", "L") == 1
    assert settings.size("helper", "L") == 7
    assert settings.size("helper", "D") == 4
    assert settings.size("helper", "B") is None


def test_long_dtype_names_are_taken() -> None:
    assert dtype_name("bfloat16", "--dtype") == "bf16"
