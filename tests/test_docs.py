from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

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


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md", "CHANGELOG.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_folders_that_the_architecture_names_are_there() -> None:
    table = re.findall(r"^\| (`.*`) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    named = [name for cell in table for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "fuselint" / name).exists(), name
