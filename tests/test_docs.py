from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fuselint.config import FORMATS, READERS
from support import NORM, Ran

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
        ("docs/index.md", ("check", "fix")),
        ("docs/safety.md", ("check", "fix")),
        ("docs/faq.md", ("check", "report")),
        ("docs/configuration.md", ("check", "fix")),
        ("docs/editors.md", ("check", "fix")),
        ("docs/notebooks.md", ("check", "fix")),
        ("docs/output.md", ("check", "fix")),
        ("docs/ci.md", ("check", "fix")),
        ("docs/report.md", ("report", "check")),
        ("docs/suppression.md", ("check", "baseline")),
        ("docs/trace.md", ("trace",)),
        ("docs/budget.md", ("budget",)),
    ],
)
def test_options_of_the_pages_exist(fuselint: Callable[..., Ran], page: str, commands: tuple[str, ...]) -> None:
    known = "".join(fuselint(command, "--help").out for command in commands)
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", (ROOT / page).read_text())):
        assert option in known, option


@pytest.mark.parametrize("page", ["README.md", "docs/configuration.md"])
def test_settings_of_the_pages_exist(page: str) -> None:
    block = re.search(r"```toml\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert block
    assert set(toml.loads(block[1])["tool"]["fuselint"]) <= set(READERS)


def test_every_format_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/output.md").read_text(), re.M) == list(FORMATS)


def test_every_setting_is_documented() -> None:
    table = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/configuration.md").read_text(), re.M)
    assert {name for cell in table for name in re.findall(r"`([^`]+)`", cell)} == set(READERS)


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


def test_the_first_page_does_what_it_says(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    blocks = {kind: text for kind, text in re.findall(r"```(\w+)\n(.*?)```", page, re.S)}
    model = tmp_path / "model.py"
    model.write_text(blocks["python"])
    assert fuselint("check", "model.py").out.startswith(blocks["text"])
    assert blocks["diff"] in fuselint("fix", "model.py").out
    fuselint("fix", "--apply", "--no-verify", "model.py")
    assert blocks["diff"].splitlines()[-1].removeprefix("+") in model.read_text()
    for command in re.findall(r"`fuselint (explain [^`]*|rule [^`]*)`", page):
        model.write_text(blocks["python"])
        assert fuselint(*command.split()).code == 0


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    """Strictly: every page is in it, and every link leads somewhere."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(ROOT / ".ci/mkdocs.yml")]
    ran = subprocess.run([*command, "-d", str(tmp_path / "site")], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "<h1" in (tmp_path / "site" / "rules" / "FUS201" / "index.html").read_text()


def test_the_snippets_for_editors_work(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    """They parse, their commands run, and the problem matcher reads what is printed."""
    page = (ROOT / "docs" / "editors.md").read_text()
    blocks = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```", page, re.S)]
    [helix] = [toml.loads(text) for kind, text in blocks if kind == "toml"]
    server = helix["language-server"]["fuselint"]
    assert (server["command"], server["args"]) == ("fuselint", ["server"])
    parsed = [json.loads(text if text[0] in "[{" else f"{{{text}}}") for kind, text in blocks if kind == "json"]
    [[zed], code_actions, vs_code] = parsed
    assert code_actions == {"editor.codeActionsOnSave": {"source.fixAll.fuselint": "explicit"}}
    (tmp_path / "norm.py").write_text(NORM)
    for task in (zed, vs_code):
        command, *options = task["command"].split()
        ran = fuselint(*options)
        assert command == "fuselint" and ran.code == 1 and "norm.py:14:16: FUS201" in ran.out
    matcher = vs_code["problemMatcher"]["pattern"]
    found = re.search(matcher["regexp"], ran.out.splitlines()[0])
    assert found
    parts = {name: found[matcher[name]] for name in ("file", "line", "column", "code", "message")}
    assert list(parts.values())[:4] == ["norm.py", "14", "16", "FUS201"] and parts["message"].startswith("hand-written")
