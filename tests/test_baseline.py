"""Known findings stay silent, wherever they move; new ones don't. And comments that silence all that is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselint.source.suppress import noqa
from fuselint.source.text import FileText
from support import NORM, PLAIN, Ran

Run = Callable[..., Ran]

SECOND = """

def unit(x):
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)
"""


@pytest.fixture
def known(fuselint: Run, tmp_path: Path) -> Path:
    """A file with one finding, which the baseline has."""
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    ran = fuselint("baseline")
    assert ran.code == 0 and "1 finding recorded in .fuselint-baseline.json; 1 of them new" in ran.err
    return path


def test_what_is_known_is_not_shown(fuselint: Run, known: Path) -> None:
    ran = fuselint("check")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith("; 0 findings; 0 below --min-saving; 1 in the baseline\n")
    assert fuselint("check", "--no-baseline").code == 1


def test_new_findings_are_shown(fuselint: Run, known: Path) -> None:
    known.write_text(NORM + SECOND)
    ran = fuselint("check", "--output-format", "concise")
    assert ran.code == 1 and [line.split(":")[1] for line in ran.out.splitlines()] == ["18"]
    assert "2 findings recorded" in fuselint("baseline").err
    assert fuselint("check").code == 0


@pytest.mark.parametrize(
    "changed",
    [
        "\n\n# moved\n" + NORM,
        NORM.replace("    def __call__", "    def other(self, x):\n        return x\n\n    def __call__"),
        NORM.replace("keepdims=True) + self.eps)", "keepdims=True)\n            + self.eps\n        )"),
        NORM.replace("return self.weight * h.astype(x.dtype)", "return self.weight * h.astype(\n  x.dtype,\n  )"),
    ],
)
def test_moved_lines_and_another_layout_are_the_same_finding(fuselint: Run, known: Path, changed: str) -> None:
    known.write_text(changed)
    assert fuselint("check").code == 0


def test_a_renamed_file_keeps_its_findings(fuselint: Run, known: Path) -> None:
    known.rename(known.parent / "renamed.py")
    assert fuselint("check").code == 0
    (known.parent / "copy.py").write_text(NORM)
    assert fuselint("check").code == 1  # a second one is new


def test_a_second_finding_of_the_same_text_is_new(fuselint: Run, tmp_path: Path) -> None:
    line = "    x = x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)\n"
    head = "import mlx.core as mx\n\n\ndef f(x):\n"
    path = tmp_path / "m.py"
    path.write_text(f"{head}{line}    return x\n")
    fuselint("baseline")
    path.write_text(f"{head}{line}    x = x @ x\n{line}    return x\n")
    ran = fuselint("check")
    assert ran.code == 1 and "1 finding (1 safe)" in ran.err


def test_it_is_found_from_a_folder_below_and_files_are_relative_to_it(
    fuselint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "norm.py").write_text(NORM)
    fuselint("baseline")
    monkeypatch.chdir(inner)
    assert fuselint("check").code == 0
    data = json.loads((tmp_path / ".fuselint-baseline.json").read_text())
    assert list(data["findings"]) == ["a/b/norm.py"]
    assert list(data["findings"]["a/b/norm.py"].values()) == ["FUS201 Norm.__call__"]


def test_recording_some_paths_leaves_the_others(fuselint: Run, known: Path) -> None:
    (known.parent / "more").mkdir()
    (known.parent / "more" / "m.py").write_text("import mlx.core as mx\n" + SECOND)
    assert "2 findings recorded" in fuselint("baseline", "more").err
    assert fuselint("check").code == 0
    known.write_text(PLAIN)
    assert "1 finding recorded" in fuselint("baseline").err


def test_fix_repairs_what_is_known_and_counts_what_remains(fuselint: Run, known: Path) -> None:
    known.write_text("import mlx.core as mx\n\n\ndef loud(x, y):\n    return mx.exp(x * y) + mx.sin(x)\n")
    fuselint("baseline")
    ran = fuselint("fix", "--apply", "--no-verify")  # it is unsafe
    assert ran.code == 0 and "1 in the baseline" in ran.err
    known.write_text(NORM)
    assert "mx.fast.rms_norm" in fuselint("fix").out


def test_a_broken_baseline_is_an_error(fuselint: Run, tmp_path: Path) -> None:
    for text in ["", "[]", '{"findings": {}}', '{"version": 0, "findings": {}}', '{"version": 1, "findings": []}']:
        (tmp_path / ".fuselint-baseline.json").write_text(text)
        ran = fuselint("check")
        assert ran.code == 2 and "write it anew with `fuselint baseline`" in ran.err, text
    assert fuselint("check", "--baseline", "gone.json").code == 2


def test_an_unreadable_file_is_never_known(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("import mlx.core as mx\n(")
    fuselint("baseline")
    assert fuselint("check").code == 1


# -- comments ---------------------------------------------------------------------------------------------------------


def test_comments_silence_all_that_is_there(fuselint: Run, tmp_path: Path) -> None:
    path = tmp_path / "norm.py"
    path.write_bytes((NORM + SECOND).replace("\n", "\r\n").encode())
    ran = fuselint("check", "--add-noqa")
    assert ran.code == 0 and "2 comments added to 1 file" in ran.err
    text = path.read_bytes().decode()
    assert text.count("  # noqa: FUS201\r\n") == 2 and text.count("\n") == text.count("\r\n")
    assert fuselint("check").code == 0
    assert "0 comments added to 0 files" in fuselint("check", "--add-noqa").err
    path.write_text(NORM)
    fuselint("check", "--add-noqa", "--reason", "measured:\nslower", "norm.py")
    assert "  # noqa: FUS201 -- measured: slower\n" in path.read_text()


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("x = f(\n    a,\n    b,\n)\ny\n", 2, "x = f(\n    a,\n    b,\n)  # noqa: FUS201\ny\n"),
        ("x = '''\n\n'''\ny\n", 1, "x = '''\n\n'''  # noqa: FUS201\ny\n"),
        ("x = a + \\\n    b\ny\n", 1, "x = a + \\\n    b  # noqa: FUS201\ny\n"),
        ("if (\n    a\n):\n    y\n", 2, "if (\n    a\n):  # noqa: FUS201\n    y\n"),
        ("x = a  # noqa: E501\n", 1, "x = a  # noqa: E501, FUS201\n"),
        ("x = a  # noqa: E501 -- long\n", 1, "x = a  # noqa: E501, FUS201 -- long\n"),
        ("x = a  # type: ignore\n", 1, "x = a  # type: ignore  # noqa: FUS201\n"),
        ("x = a   \n", 1, "x = a  # noqa: FUS201\n"),
        ("x = a", 1, "x = a  # noqa: FUS201"),
        ("x = (a\n", 1, "x = (a\n"),
    ],
)
def test_where_a_comment_goes(text: str, line: int, wanted: str) -> None:
    from fuselint.source.edit import apply

    assert apply(text, noqa(FileText("m.py", text), {line: {"FUS201"}})) == wanted


def test_a_reason_is_that_of_comments(fuselint: Run) -> None:
    for args, said in ((["--reason", "x"], "give that too"), (["--add-noqa", "-"], "can't to stdin")):
        ran = fuselint("check", *args)
        assert ran.code == 2 and said in ran.err
