"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from support import NORM, PLAIN, Ran

Run = Callable[..., Ran]
ROOT = Path(__file__).parent.parent


def test_the_command_line_imports_nothing_heavy() -> None:
    heavy = ["libcst", "mlx", "multiprocessing", "importlib.metadata", "concurrent.futures", "pathspec", "tomllib"]
    program = f"import sys, fuselint.cli; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_version_comes_fast() -> None:
    start = time.perf_counter()
    out = subprocess.run([sys.executable, "-m", "fuselint", "--version"], capture_output=True, text=True).stdout
    assert out.startswith("fuselint 0.")
    assert time.perf_counter() - start < 1.0  # it takes 0.1 s; a busy machine gets some air


def test_alone_it_prints_help(fuselint: Run) -> None:
    ran = fuselint()
    assert ran.code == 0 and "Commands:" in ran.out


def test_check_reports_on_stdout_and_closes_on_stderr(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "plain.py").write_text(PLAIN)
    ran = fuselint("check", "--chip", "M3 Max", "--shape", "D=4096")
    assert ran.code == 1
    assert ran.out.startswith("norm.py:14:16 FUS201 ")
    assert " bytes a call in bf16, or " in ran.out
    assert ran.err == (
        "times are estimates for M3 Max (stated)\n"
        "2 files; 2 functions with MLX work; 0 not understood; 1 finding (1 safe); 0 below --min-saving\n"
    )
    assert "times are estimates" not in fuselint("check", "--chip", "M3 Max").err  # nothing says the width
    assert fuselint("check", "plain.py", "--quiet") == Ran(0, "", "")
    assert fuselint("check", "norm.py", "--exit-zero").code == 0


def test_check_as_json(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    ran = fuselint("check", "--output-format", "json")
    [finding] = json.loads(ran.out)
    assert finding["code"] == "FUS201" and finding["function"] == "Norm.__call__"
    assert finding["fix"]["applicability"] == "safe" and finding["fix"]["edits"]
    assert finding["traffic"]["kernels_now"] > finding["traffic"]["kernels_fused"] == 1
    assert json.loads(fuselint("check", "--output-format", "json", "--ignore", "ALL").out) == []


def test_selection_by_code_prefix_and_name(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    for chosen in ["FUS201", "FUS2", "unfused-rms-norm", "all"]:
        assert "FUS201" in fuselint("check", "--select", chosen).out, chosen
    for silenced in [["--ignore", "FUS201"], ["--select", "FUS211,FUS301"], ["--ignore", "unfused-rms-norm"]]:
        assert fuselint("check", *silenced).code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["check", "--select", "FUS2O1"], 'fuselint: --select: no rule "FUS2O1"; did you mean "FUS2'),
        (["check", "--select", "FUS201", "--ignore", "FUS999"], 'fuselint: --ignore: no rule "FUS999"'),
        (["check", "--extend-select", "FUS999"], 'fuselint: --extend-select: no rule "FUS999"'),
        (["check", "--per-file-ignores", "a:FUS999"], 'fuselint: --per-file-ignores: no rule "FUS999"'),
        (["check", "--ignore", "unfused-rmsnorm"], 'did you mean "unfused-rms-norm"?'),
        (["rule", "FUS999"], 'rule: no rule "FUS999"'),
        (["check", "--selct", "FUS201"], "--select"),
        (["check", "nowhere.py"], "nowhere.py: No such file or directory"),
        (["check", "--shape", "T"], "expected symbol=size"),
        (["check", "--dtype", "bf17"], 'unknown dtype "bf17"; did you mean "bf16"?'),
        (["check", "--min-saving", "much"], "expected a size in bytes"),
        (["check", "-", "a.py"], "can't be given together"),
        (["explain", "a.py"], "expected FILE:LINE"),
        (["chekc"], 'no command "chekc"; did you mean "check"?'),
    ],
)
def test_a_wrong_call_ends_with_2_and_says_what_is_right(fuselint: Run, args: list[str], said: str) -> None:
    ran = fuselint(*args)
    assert ran.code == 2 and ran.out == ""
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_wrong_setting_ends_with_2(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.fuselint]\nselct = ["FUS201"]\n')
    ran = fuselint("check")
    assert ran.code == 2 and 'did you mean "select"?' in ran.err
    assert fuselint("check", "--isolated").code == 0


def test_fix_prints_a_diff_that_git_applies(fuselint: Run, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "norm.py"
    path.parent.mkdir()
    path.write_text(NORM)
    ran = fuselint("fix")
    assert ran.code == 1
    assert path.read_text() == NORM
    assert "1 fix for 1 file; 0 findings remain" in ran.err
    patch = tmp_path / "fix.patch"
    patch.write_text(ran.out)
    subprocess.run(["git", "apply", "fix.patch"], cwd=tmp_path, check=True)
    assert "mx.fast.rms_norm(x, self.weight, self.eps)" in path.read_text()
    assert fuselint("fix", "sub").code == 0


def test_fix_applies(fuselint: Run, tmp_path: Path) -> None:
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    path.chmod(0o640)
    ran = fuselint("fix", "--apply", "--no-verify")
    assert ran.code == 0
    assert "1 fix written to 1 file; 0 findings remain" in ran.err
    assert "return mx.fast.rms_norm(x, self.weight, self.eps)\n" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o640
    once = path.read_text()
    assert fuselint("fix", "--apply", "--no-verify").code == 0
    assert path.read_text() == once


def test_fix_from_stdin_gives_the_fixed_text(fuselint: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NORM.encode())))
    assert "mx.fast.rms_norm(x, self.weight, self.eps)" in fuselint("fix", "-").out
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NORM.encode())))
    assert fuselint("check", "-", "--stdin-filename", "a/b.py").out.startswith("a/b.py:14:16 FUS201")


def test_rules_print_their_pages(fuselint: Run) -> None:
    listed = fuselint("rule").out
    assert "FUS201  unfused-rms-norm\n" in listed
    page = fuselint("rule", "FUS201").out
    assert page == fuselint("rule", "unfused-rms-norm").out
    assert "mx.fast.rms_norm" in page and "activations are real floating-point arrays" in page
    data = json.loads(fuselint("rule", "--all", "--format", "json").out)
    assert len(data) == len(listed.splitlines())
    assert fuselint("rule", "--all", "--format", "markdown").out.startswith("# FUS")


def test_explain_shows_what_is_known_of_a_place(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    out = fuselint("explain", "norm.py:13").out
    for part in ["Norm.__call__", "rsqrt", "FUS201", "kernels", "proven"]:
        assert part in out, part
    ran = fuselint("explain", "norm.py:1")
    assert ran.code == 2 and "no function" in ran.err


def test_explain_says_once_how_often_a_line_runs(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("""import mlx.core as mx
import mlx.nn as nn
import other


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = [other.Layer() for _ in range(n)]

    def __call__(self, x: mx.array):
        for layer in self.layers:
            x = mx.tanh(layer(x)) * 2
        return mx.tanh(x) * 2
""")

    def said(line: int, *options: str) -> list[str]:
        return [t.strip() for t in fuselint("explain", f"net.py:{line}", *options).out.split("\n") if " runs " in t]

    assert said(13) == ["line 13 runs often: it stands in a loop"]
    assert said(14) == ["line 14 runs seldom: Net is a model, and calls it once a pass"]
    assert said(14, "--hot", "*") == ["line 14 runs often: a setting"]


def test_statistics_count_by_rule(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    out = fuselint("check", "--statistics").out
    assert out.split()[:3] == ["1", "FUS201", "unfused-rms-norm"]


def test_output_goes_to_a_file(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    ran = fuselint("check", "--output-format", "json", "-o", "found.json")
    assert ran.out == "" and ran.code == 1
    assert json.loads((tmp_path / "found.json").read_text())[0]["code"] == "FUS201"


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    for number in range(400):  # more than a pipe holds
        (tmp_path / f"{'long' * 50}{number}.py").write_text("import mlx.core\n(")
    program = f"{sys.executable} -m fuselint check {tmp_path} | head -n 1"
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert "FUS000" in ran.stdout and "Traceback" not in ran.stderr and "BrokenPipe" not in ran.stderr


def test_excluded_files_are_skipped_when_forced(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "pyproject.toml").write_text('[tool.fuselint]\nexclude = ["norm.py"]\n')
    assert fuselint("check", "norm.py").code == 1
    assert fuselint("check", "norm.py", "--force-exclude").code == 0
    assert fuselint("check").code == 0


@pytest.mark.skipif(os.name == "nt", reason="no colors there")
def test_color_is_for_terminals(fuselint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" not in fuselint("check").out
    assert "\x1b[" in fuselint("check", "--color", "always").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in fuselint("check").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in fuselint("check").out


def test_the_hooks_run_as_pre_commit_runs_them(fuselint: Run, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    hooks = {h["id"]: h for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"fuselint", "fuselint-fix", "fuselint-budget"}
    for name, hook in hooks.items():
        assert hook["types_or"] == ["python"]
        if name == "fuselint-budget":
            assert hook["pass_filenames"] is False  # it compares the whole: a function may have moved
        else:
            assert hook["require_serial"] and "--force-exclude" in hook["entry"]
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    assert fuselint(*hooks["fuselint"]["entry"].split()[1:], "norm.py").code == 1
    assert path.read_text() == NORM
    assert fuselint(*hooks["fuselint-fix"]["entry"].split()[1:], "norm.py").code == 0
    assert "mx.fast.rms_norm" in path.read_text()
    budget = hooks["fuselint-budget"]["entry"].split()[1:]
    assert fuselint(*budget).code == 2  # there is none yet
    fuselint("budget")
    assert fuselint(*budget).code == 0
    path.write_text(NORM)
    assert fuselint(*budget).code == 1


def test_near_misses_say_what_is_against_them(fuselint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuselint import analysis
    from fuselint.finding import Obligation
    from fuselint.rulebook import rules

    def contradicted(rule):  # type: ignore[no-untyped-def]
        def find(graph):  # type: ignore[no-untyped-def]
            for match in rule.find(graph):
                yield replace(match, obligations=[Obligation("it may be", "contradicted", "it may not")])

        return replace(rule, find=find)

    monkeypatch.setattr(analysis, "rules", lambda: [contradicted(r) for r in rules() if r.code == "FUS201"])
    (tmp_path / "norm.py").write_text(NORM)
    assert fuselint("check") == Ran(0, "", fuselint("check").err)
    ran = fuselint("check", "--near-misses")
    assert ran.code == 0
    assert "near miss: hand-written RMSNorm" in ran.out and "not so: it may be (it may not)" in ran.out


@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals there")
def test_a_terminal_is_shown_color_and_how_far_the_work_is(tmp_path: Path) -> None:
    import pty

    for number in range(60):
        (tmp_path / f"m{number}.py").write_text(NORM if number == 7 else PLAIN)
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}

    def run(term: str, *options: str) -> str:
        parent, child = pty.openpty()
        command = [sys.executable, "-m", "fuselint", "check", "-j", "1", *options]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=child, stderr=child, env={**environment, "TERM": term}
        ) as process:
            os.close(child)
            shown = b""
            while True:
                try:
                    data = os.read(parent, 65536)
                except OSError:  # the other side is closed
                    break
                if not data:
                    break
                shown += data
        os.close(parent)
        assert process.returncode == 1
        return shown.decode()

    shown = run("xterm")
    assert "\x1b[1mm7.py:14:16\x1b[0m" in shown and "checking" in shown and "100%" in shown
    assert "\x1b" not in run("dumb", "--quiet")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_what_the_shell_takes(fuselint: Run, shell: str) -> None:
    script = fuselint("completion", shell).out
    assert "_FUSELINT_COMPLETE" in script
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_commands_and_options_are_completed() -> None:
    words = {"COMP_WORDS": "fuselint che", "COMP_CWORD": "1", "_FUSELINT_COMPLETE": "bash_complete"}
    program = "import sys; sys.argv[0] = 'fuselint'; from fuselint.cli import main; main(prog_name='fuselint')"

    def complete(**more: str) -> str:
        environment = {**os.environ, **words, **more}
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment).stdout

    assert complete() == "plain,check\n"
    assert "plain,--select\n" in complete(COMP_WORDS="fuselint check --sel", COMP_CWORD="2")


def test_check_shows_the_diff_where_it_is_asked_for(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "norm.py").write_text(NORM)
    shown = fuselint("check", "--show-diff").out
    assert "+         return mx.fast.rms_norm(x, self.weight, self.eps)\n" in shown
    assert "-         h = x.astype(mx.float32)\n" in shown
    assert "+  " not in fuselint("check").out
