"""The worked example of docs/plugins.md, installed as a package is and run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fuselint.rulebook import claim_rank, rules

toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

PAGE = (Path(__file__).parent.parent / "docs" / "plugins.md").read_text()
MODEL = """\
import mlx.core as mx
import mlx.nn as nn


class MLP(nn.Module):
    def __init__(self, dims, hidden):
        super().__init__()
        self.gate = nn.Linear(dims, hidden)
        self.up = nn.Linear(dims, hidden)

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as pip leaves it: the package, and what it declares."""
    folder = tmp_path / "site"
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.S):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    listed = re.search(r"```text\n(.*?)```", PAGE, re.S)
    assert listed
    for name in listed[1].split():
        if name.endswith("__init__.py"):
            (folder / name).touch()
        assert (folder / name).is_file(), name
    declared = re.search(r"```toml\n(.*?)```", PAGE, re.S)
    assert declared
    install(folder, **toml.loads(declared[1])["project"]["entry-points"]["fuselint.plugins"])
    return folder


def install(folder: Path, **entries: str) -> None:
    info = folder / "acme-0.1.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 0.1\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[fuselint.plugins]\n{lines}")


def run(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    (site.parent / "m.py").write_text(MODEL) if not (site.parent / "m.py").exists() else None
    return subprocess.run(
        [sys.executable, "-m", "fuselint", *args],
        cwd=site.parent,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )


IN_A_ROW = """
import contextlib, io, json, sys
from fuselint.cli import main
out = []
for args in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            code = main(args, standalone_mode=False)
        except SystemExit as end:
            code = end.code
    out.append([code, said.getvalue()])
print(json.dumps(out))
"""


def in_a_row(site: Path, *commands: Sequence[str]) -> list[tuple[int, str]]:
    """The exit code and output of several commands, in one process: to start takes longer than what they do."""
    program = [sys.executable, "-c", IN_A_ROW, json.dumps(commands)]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(program, cwd=site.parent, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    return [(code or 0, said) for code, said in json.loads(ran.stdout)]


@pytest.mark.slow
def test_its_rule_reports_and_fixes(site: Path) -> None:
    ran = run(site, "check", "m.py", "--output-format", "concise")
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout == (
        "m.py:12:16: ACME101 [unsafe] nn.silu and multiply run one by one: 2 kernels move 10*T*D bytes a call in bf16; "
        "kernels.silu_mul: 1 kernel, 6*T*D\n"
    )
    ran = run(site, "fix", "m.py", "--apply", "--unsafe-fixes")
    said = ran.stderr
    text = (site.parent / "m.py").read_text()
    assert text.startswith("import mlx.core as mx\nimport mlx.nn as nn\nfrom acme import kernels\n\n\nclass MLP")
    assert text.endswith("        return kernels.silu_mul(self.gate(x), self.up(x))\n")
    pytest.importorskip("mlx.core")
    assert "ACME101 fixed, not verified: calls kernels.silu_mul" in said
    program = "import m, mlx.core as mx; x = mx.ones((2, 4)); print(m.MLP(4, 3)(x).shape)"
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{site.parent}"}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert ran.stdout == "(2, 3)\n", ran.stderr


def test_its_rule_is_selected_silenced_and_documented(site: Path) -> None:
    line = "        return nn.silu(self.gate(x)) * self.up(x)"
    idle = "        return mx.softmax(self.up(x))  # noqa: ACME101, E501"
    (site.parent / "m.py").write_text(MODEL)
    (site.parent / "silenced.py").write_text(MODEL.replace(line, f"{line}  # noqa: ACME101"))
    (site.parent / "idle.py").write_text(MODEL.replace(line, idle))
    others, named, listed, page, silenced, unused = in_a_row(
        site,
        ["check", "m.py", "--select", "FUS2"],
        ["check", "m.py", "--select", "unfused-silu-mul"],
        ["rule"],
        ["rule", "ACME101"],
        ["check", "silenced.py"],
        ["check", "idle.py", "--output-format", "concise"],
    )
    assert others[0] == 0
    assert "ACME101" in named[1]
    assert "ACME101  unfused-silu-mul" in listed[1]
    assert "for which there is a Metal kernel" in page[1] and "kernels.silu_mul(a, b)" in page[1]
    assert silenced[0] == 0
    assert "FUS900 [safe] `ACME101` silences nothing" in unused[1]


def test_its_examples_hold(site: Path) -> None:
    (_, said), *_ = in_a_row(site, ["rule", "ACME101", "--format", "json"])
    examples = json.loads(said)[0]["examples"]
    for i, example in enumerate(examples):
        (site.parent / f"m{i}.py").write_text(example["source"])
    fix = ["--apply", "--unsafe-fixes", "--no-verify"]
    in_a_row(site, *(["fix", f"m{i}.py", *fix] for i in range(len(examples))))
    for i, example in enumerate(examples):
        assert (site.parent / f"m{i}.py").read_text() == example["fixed"]


def test_it_claims_before_the_rule_that_it_names(site: Path) -> None:
    check = site / "acme/fuselint_rules/checks/silu_mul.py"
    check.write_text(check.read_text().replace('CLAIMS_BEFORE = "FUS301"', 'CLAIMS_BEFORE = ""'))
    assert "FUS301" in run(site, "check", "m.py", "--output-format", "concise").stdout


@pytest.mark.parametrize(
    ("entries", "old", "new", "said"),
    [
        ({"acme": "acme.gone"}, "", "", "acme.gone can't be loaded: ModuleNotFoundError"),
        ({"acme": "acme.fuselint_rules:x"}, "", "", "is not a package"),
        ({}, '"ACME101"', '"FUS999"', "codes that begin with FUS"),
        ({}, '"ACME101"', '"acme"', "expected such as ACME101"),
        ({}, "yield Match(", "yield Match[", "can't be loaded: SyntaxError"),
        ({"b": "acme.others"}, "", "", "ACME101 is the code of another rule"),
    ],
)
def test_a_broken_plugin_is_named(site: Path, entries: dict[str, str], old: str, new: str, said: str) -> None:
    if entries:
        install(site, **{"acme": "acme.fuselint_rules", **entries})
    check = site / "acme/fuselint_rules/checks/silu_mul.py"
    check.write_text(check.read_text().replace(old, new) if old else check.read_text())
    shutil.copytree(site / "acme/fuselint_rules", site / "acme/others")
    ran = run(site, "check", "m.py")
    assert ran.returncode == 2 and 'plugin "' in ran.stderr and said in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_plugins_nothing_is_looked_up() -> None:
    program = "import sys; from fuselint.rulebook import rules; rules(); print('importlib.metadata' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "False\n", ran.stderr
    assert all(r.is_ours for r in rules())
    assert claim_rank("FUS301") < claim_rank("ACME101")
