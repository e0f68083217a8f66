"""What is imported when, and that results depend on nothing but what they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("libcst", "mlx", "multiprocessing", "concurrent", "importlib.metadata", "rich", "numpy", "asyncio")

CODE = """import mlx.core as mx


def f(x: mx.array, y: mx.array) -> mx.array:
    b, h, s, d = x.shape
    return (mx.sigmoid(x) * mx.tanh(y) * y + x).reshape(b, h, s, d)


def g(q, k, v):
    return mx.softmax(q @ k.swapaxes(-1, -2), axis=-1) @ v
"""


def imported(program: str, folder: Path) -> set[str]:
    """The heavy modules that a program imports."""
    shown = f"import sys; {program}; print('\\n'.join(sys.modules), file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", shown], cwd=folder, capture_output=True, text=True, check=True)
    return {m for m in run.stderr.split() for h in HEAVY if m == h or m.startswith(f"{h}.")}


def command(*arguments: str) -> str:
    return f"from fuselint.cli import main; main({list(arguments)!r}, standalone_mode=False)"


@pytest.mark.parametrize("program", ["import fuselint", "import fuselint.cli", "import fuselint.world, fuselint.cache"])
def test_importing_is_light(program: str, tmp_path: Path) -> None:
    assert imported(program, tmp_path) == set()


def test_a_version_is_light(tmp_path: Path) -> None:
    assert imported(command("--version"), tmp_path) == set()


@pytest.mark.parametrize("form", ["full", "json", "concise"])
def test_kept_results_are_shown_without_what_makes_them(form: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(CODE)
    check = command("check", "m.py", "--isolated", "--output-format", form)
    assert imported(check, tmp_path) >= {"libcst"}
    assert imported(check, tmp_path) == set()


def outcome(folder: Path, *options: str, seed: str = "0") -> bytes:
    command = [sys.executable, "-m", "fuselint", "check", "--isolated", "--output-format", "json", *options]
    run = subprocess.run(
        command, cwd=folder, capture_output=True, check=False, env={**os.environ, "PYTHONHASHSEED": seed}
    )
    assert run.returncode == 1, run.stderr
    return run.stdout


@pytest.mark.slow
def test_findings_depend_on_neither_seed_nor_jobs_nor_cache(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    for i in range(6):
        text = CODE.replace("def f", f"def f{i}") + (f"\n\nfrom .m{i - 1} import g as other\n" if i else "")
        (tmp_path / f"m{i}.py").write_text(text)
    first = outcome(tmp_path, ".", "--no-cache")
    for options in (["--no-cache", "-j", "2"], ["--no-cache", "-j", "3"], ["-j", "1"], []):
        assert outcome(tmp_path, ".", *options, seed=str(len(options))) == first
    assert outcome(tmp_path, ".", "--no-cache", seed="7") == first
    named = sorted(p.name for p in tmp_path.glob("*.py"))
    for paths in (named[::-1], ["m3.py", "./", "m0.py"], [f"./{name}" for name in named], ["./."]):
        assert outcome(tmp_path, *paths, "--no-cache") == first
    link = tmp_path.with_name(tmp_path.name + "-link")
    link.symlink_to(tmp_path)
    assert outcome(link, ".", "--no-cache") == first
