"""pre-commit and GitHub's action, run for real: each installs this tree into an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import NORM, PLAIN

ROOT = Path(__file__).parent.parent
ACTION = ROOT / ".github" / "actions" / "fuselint" / "action.yml"
FILES = 1600


def load(path: Path) -> Any:
    return pytest.importorskip("yaml").safe_load(path.read_text())


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Many files, one with a finding, and one with the same that is excluded."""
    folder = tmp_path / "repository"
    (folder / "many").mkdir(parents=True)
    (folder / "vendored").mkdir()
    for number in range(FILES):
        (folder / "many" / f"m{number}.py").write_text(PLAIN if number % 100 == 0 else f"x = {number}\n")
    (folder / "norm.py").write_text(NORM)
    (folder / "vendored" / "norm.py").write_text(NORM)
    (folder / "pyproject.toml").write_text('[tool.fuselint]\nextend-exclude = ["vendored"]\n')
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "start")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """This tree as a repository, whether it is one here or not."""
    folder = tmp_path / "source"
    left = shutil.ignore_patterns(
        ".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(ROOT, folder, ignore=left)
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "as it stands")
    return folder


@pytest.mark.slow
def test_pre_commit_runs_the_hooks(repository: Path, source: Path, tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}

    def run(*hooks: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pre_commit", "try-repo", str(source), *hooks, "--all-files", "--verbose"]
        ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, env=environment)
        return ran.returncode, ran.stdout + ran.stderr

    code, out = run()
    said = dict(re.findall(r"^- hook id: (\S+)\n(.*?)(?=^- hook id: |\Z)", out, re.M | re.S))
    check, fix, budget = (said[name] for name in ("fuselint", "fuselint-fix", "fuselint-budget"))
    assert code == 1, out
    assert "exit code: 1" in check and "norm.py:14:16 FUS201" in check
    assert re.findall(r"^(\d+) files; ", check, re.M) == [str(FILES + 1)]  # in one process, and nothing of vendored/
    assert "files were modified by this hook" in fix
    assert "1 fix written to 1 file" in fix
    assert "exit code: 2" in budget and "write one with" in budget
    assert "mx.fast.rms_norm" in (repository / "norm.py").read_text()
    assert (repository / "vendored" / "norm.py").read_text() == NORM
    code, out = run("fuselint")
    assert code == 0 and "Passed" in out, out


def test_the_action_is_valid() -> None:
    checker = pytest.importorskip("check_jsonschema")
    jsonschema = pytest.importorskip("jsonschema")
    schema = Path(checker.__file__).parent / "builtin_schemas" / "vendor" / "github-actions.json"
    jsonschema.validate(load(ACTION), json.loads(schema.read_text()))


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="bash is elsewhere there")
def test_the_action_runs(repository: Path, source: Path, tmp_path: Path) -> None:
    action = load(ACTION)
    files = {name: tmp_path / name.lower() for name in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.touch()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PYTHON")},
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_ACTION_PATH": str(source / ACTION.parent.relative_to(ROOT)),
        **{name: str(path) for name, path in files.items()},
    }

    def run(step: dict[str, Any], **given: str) -> subprocess.CompletedProcess[str]:
        inputs = {name: given.get(name.replace("-", "_"), str(i["default"])) for name, i in action["inputs"].items()}
        stated = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: inputs[m[1]], text)
            for name, text in step.get("env", {}).items()
        }
        kept = dict(line.split("=", 1) for line in files["GITHUB_ENV"].read_text().splitlines())
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]  # as the runner does
        return subprocess.run(
            command, cwd=repository, capture_output=True, text=True, env={**environment, **kept, **stated}
        )

    install, check = action["runs"]["steps"]
    ran = run(install)
    assert ran.returncode == 0, ran.stderr
    ran = run(check)
    assert ran.returncode == 1
    assert "::warning title=FUS201 unfused-rms-norm,file=norm.py,line=14," in ran.stdout
    assert "| `norm.py:14` | FUS201 |" in files["GITHUB_STEP_SUMMARY"].read_text()
    ran = run(check, fail="false", sarif_file="out.sarif", args="--select FUS2", paths="norm.py vendored")
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads((repository / "out.sarif").read_text())["runs"][0]["results"]) == 1
    assert run(check, args="--selct x", fail="false").returncode == 2
    assert run(check, paths="$(touch owned)", fail="false").returncode == 2 and not (repository / "owned").exists()
