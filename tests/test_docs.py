from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from fuselint.config import Settings
from support import Ran

toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

ROOT = Path(__file__).parent.parent


@pytest.fixture
def make_rules() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_rules", ROOT / "docs" / "make_rules.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_of_the_rules_are_fresh(make_rules: ModuleType) -> None:
    assert make_rules.stale() == [], "run python docs/make_rules.py"


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_sample_of_the_readme_is_what_is_printed(
    fuselint: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    block = re.search(r"```text\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert block and block[1] in fuselint("check", "examples").out


def test_the_commands_of_the_readme_are_those_that_ci_runs() -> None:
    readme = (ROOT / "README.md").read_text()
    for part in ["fuselint check examples", "python -m pytest"]:
        assert readme.count(part) == 1, f"{part}: .ci/run takes the first line that holds it"


@pytest.mark.parametrize(
    ("page", "commands"),
    [
        ("README.md", ("check", "fix", "budget", "verify")),
        ("docs/verify.md", ("verify", "fix")),
        ("docs/record.md", ("record", "check")),
        ("docs/tune.md", ("tune", "fix")),
        ("docs/trace.md", ("trace",)),
        ("docs/budget.md", ("budget",)),
    ],
)
def test_options_of_the_pages_exist(fuselint: Callable[..., Ran], page: str, commands: tuple[str, ...]) -> None:
    known = "".join(fuselint(command, "--help").out for command in commands)
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text())):
        assert option in known, option


def test_settings_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    settings = toml.loads(re.search(r"```toml\n(.*?)```", readme, re.S)[1])  # type: ignore[index]
    assert {k.replace("-", "_") for k in settings["tool"]["fuselint"]} <= {f.name for f in fields(Settings)}


def test_the_sample_model_runs() -> None:
    mx = pytest.importorskip("mlx.core")
    spec = importlib.util.spec_from_file_location("decoder", ROOT / "examples" / "decoder.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits = module.Decoder()(mx.array([[1, 2, 3], [4, 5, 6]]))
    assert logits.shape == (2, 3, 256) and mx.all(mx.isfinite(logits)).item()


def test_the_folders_that_the_architecture_names_are_there() -> None:
    table = re.findall(r"^\| (`.*`) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    named = [name for cell in table for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "fuselint" / name).exists(), name
