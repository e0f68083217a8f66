from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fuselint.config import Settings
from fuselint.engine import check_file, fix_paths, fix_text
from fuselint.finding import FileResult
from fuselint.rulebook import Example
from fuselint.source.text import FileText
from fuselint.unused import COUNTEREXAMPLES, EXAMPLES
from support import Ran

HEAD = "import mlx.core as mx\n\n\n"
NORM = "x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)"
PLAIN = "mx.matmul(x, x)"


def function(expression: str, comment: str = "", header: str = "") -> str:
    return HEAD + f"def f(x):{header}\n    return {expression}{comment}\n"


def checked(text: str, **settings: object) -> FileResult:
    result = check_file(FileText("m.py", text), Settings(**settings))  # type: ignore[arg-type]
    assert not result.errors
    return result


def messages(text: str, **settings: object) -> list[str]:
    return [f.message for f in checked(text, **settings).findings if f.code == "FUS900"]


def fixed(text: str, **settings: object) -> str:
    done = fix_text(FileText("m.py", text), Settings(**settings))  # type: ignore[arg-type]
    assert not done.remaining.errors
    return done.after


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples(example: Example) -> None:
    findings = checked(example.source).findings
    assert [(f.code, f.fix.applicability, f.fix.numerics) for f in findings if f.fix] == [
        ("FUS900", "safe", "bit-identical")
    ]
    assert fixed(example.source) == example.fixed


@pytest.mark.parametrize("example", COUNTEREXAMPLES)
def test_counterexamples(example: Example) -> None:
    assert messages(example.source) == []
    assert fixed(example.source, select=("FUS900",)) == example.source


@pytest.mark.parametrize(
    ("comment", "said", "left"),
    [
        ("  # noqa: FUS201", "`# noqa: FUS201` silences nothing", ""),
        ("  # noqa:FUS2,FUS301", "`# noqa:FUS2,FUS301` silences nothing", ""),
        ("  # noqa: unfused-rms-norm", "`# noqa: unfused-rms-norm` silences nothing", ""),
        ("  # noqa: E501 FUS201", "`FUS201` silences nothing", "  # noqa: E501"),
        ("  # noqa: FUS201,E501,W1", "`FUS201` silences nothing", "  # noqa: E501,W1"),
        ("  # noqa: FUS201, E501, FUS301", "`FUS201` and `FUS301` silence nothing", "  # noqa: E501"),
        ("  # noqa: E501, FUS201 -- long", "`FUS201` silences nothing", "  # noqa: E501 -- long"),
        ("  # noqa: FUS201 because slow", "`# noqa: FUS201` silences nothing", "  # because slow"),
        ("  # type: ignore # noqa: FUS201", "`# noqa: FUS201` silences nothing", "  # type: ignore"),
        ("  # square # fuselint: ignore", "`# fuselint: ignore` silences nothing", "  # square"),
        ("  # fuselint: ignore[FUS201]  # noqa", "`# fuselint: ignore[FUS201]` silences nothing", "  # noqa"),
        ("  # fuselint: ignore[FUS201] -- slow", "`# fuselint: ignore[FUS201]` silences nothing", "  # slow"),
        ("  # fuselint: ignore[ALL]", "`# fuselint: ignore[ALL]` silences nothing", ""),
        ("  # fuselint: skip-file", "`# fuselint: skip-file` silences nothing", ""),
        ("  # noqa: FUS900", "`# noqa: FUS900` silences nothing", ""),
        ("  # noqa: FUS000", "`# noqa: FUS000` silences nothing", ""),
        ("  # noqa: FUS209", 'no rule `FUS209`; did you mean "FUS20', ""),
        ("  # noqa: FUS209, FUS201", 'no rule `FUS209`; did you mean "FUS20', ""),
        ("  # fuselint: ignore[E501]", "no rule `E501`", ""),
        ("  # fuselint: ignore[unfused-rms-norms]", 'did you mean "unfused-rms-norm"?', ""),
        ("  # noqa", "", "  # noqa"),
        ("  # noqa: E501", "", "  # noqa: E501"),
        ("  # noqa: re-export", "", "  # noqa: re-export"),
        ("  # fuselint: ignore[FUS201, FUS900]", "", "  # fuselint: ignore[FUS201, FUS900]"),
        ("  # noqa: FUS201  # fuselint: ignore[FUS9]", "", "  # noqa: FUS201  # fuselint: ignore[FUS9]"),
        ("  # fuselint: ignore # noqa: unused-suppression", "", "  # fuselint: ignore # noqa: unused-suppression"),
    ],
)
def test_comments_where_nothing_is_found(comment: str, said: str, left: str) -> None:
    text = function(PLAIN, comment)
    found = messages(text)
    assert len(found) == bool(said) and said in "".join(found)
    assert fixed(text) == function(PLAIN, left)


@pytest.mark.parametrize(
    "comment",
    ["# noqa", "# noqa: FUS201", "# fuselint: ignore[unfused-rms-norm]", "# fuselint: ignore", "# fuselint: skip-file"],
)
def test_what_silences_a_finding_stays(comment: str) -> None:
    assert checked(function(NORM, f"  {comment}")).findings == ()
    assert checked(function(NORM, header=f"  {comment}")).findings == ()
    assert messages(function(NORM, "  # noqa: FUS201, FUS301")) == ["`FUS301` silences nothing"]


def test_a_skipped_file_has_no_other_report() -> None:
    text = "# fuselint: skip-file\n" + function(NORM, "  # noqa: FUS301")
    assert checked(text).findings == ()


def test_what_is_not_selected_is_not_known_to_be_unused() -> None:
    for comment in ("# noqa: FUS301", "# fuselint: ignore", "# noqa: FUS3", "# fuselint: skip-file"):
        text = function(PLAIN, f"  {comment}")
        assert messages(text) != []
        assert messages(text, select=("FUS201", "FUS900")) == []
        assert messages(text, ignore=("FUS301",)) == []
        assert messages(text, ignore=("FUS900",)) == []
    assert messages(function(PLAIN, "  # noqa: FUS201"), select=("FUS201", "FUS900")) != []
    assert messages(function(PLAIN, "  # noqa: FUS999"), select=("FUS201",)) == []


def test_what_only_a_limit_hides_is_there() -> None:
    text = function(NORM, "  # noqa: FUS201")
    shape = {"x.shape[-1]": 4}
    assert messages(text, min_saving=1 << 40, shape=shape) == []
    chain = HEAD + "def f(x: mx.array):\n    return mx.tanh(x) * x + mx.exp(x)  # noqa: FUS301\n"
    assert messages(chain) == messages(chain, min_kernels=20) == []


def test_a_near_miss_does_not_use_a_comment() -> None:
    text = function("mx.softmax(x @ x.swapaxes(-1, -2) + (x > 0), axis=-1) @ x", "  # noqa: FUS211")
    assert len(messages(text)) == len(messages(text, near_misses=True)) == 1


def test_a_function_that_is_not_understood_keeps_its_comments() -> None:
    deep = "x" + " * x" * 400
    text = function(deep, "  # noqa: FUS301") + "\n\ndef g(x):\n    return x @ x  # noqa: FUS301\n"
    assert checked(text).not_understood
    assert [f.line for f in checked(text).findings if f.code == "FUS900"] == [9]
    assert messages("# fuselint: skip-file\n" + text) == []


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_comment_on_a_line_of_its_own_goes_with_its_line(newline: str) -> None:
    text = (HEAD + "def f(x):\n    # noqa: FUS201\n    return x  # kept\n").replace("\n", newline)
    assert fixed(text) == (HEAD + "def f(x):\n    return x  # kept\n").replace("\n", newline)
    assert fixed(text.removesuffix(newline) + newline + "# fuselint: ignore") == fixed(text)


def test_a_comment_inside_a_statement() -> None:
    text = HEAD + "def f(x):\n    return mx.matmul(\n        x,  # fuselint: ignore[FUS201]\n        x,\n    )\n"
    assert fixed(text) == text.replace("  # fuselint: ignore[FUS201]", "")


def test_a_fix_beside_it() -> None:
    """The rewritten line's comment goes in the next round."""
    assert fixed(function(NORM, "  # noqa: FUS301")) == function("mx.fast.rms_norm(x, None, 1e-5)")


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # noqa: FUS201\n",  # no MLX at all
        HEAD + "x = 1  # noqa: FUS201\n",  # no function
        HEAD + "def f():\n    return 1  # noqa: FUS201\n",  # no MLX work
    ],
)
def test_files_without_work(text: str) -> None:
    assert messages(text) == ["`# noqa: FUS201` silences nothing"]
    assert fixed(text) == text.replace("  # noqa: FUS201", "")


def test_texts_are_no_comments() -> None:
    assert messages(HEAD + 's = "# noqa: FUS201"\n') == []
    assert messages("x = (1,  # noqa: FUS201\n") == []  # can't be tokenised


def test_the_command_line(fuselint: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(function(PLAIN, "  # noqa: FUS201"))
    ran = fuselint("check", "m.py", "--output-format", "concise")
    assert ran.code == 1
    assert ran.out == "m.py:5:29: FUS900 [safe] `# noqa: FUS201` silences nothing\n"
    assert fuselint("check", "m.py", "--ignore", "FUS900").code == 0
    ran = fuselint("fix", "m.py", "--apply")
    assert ran.code == 0 and "1 fix written" in ran.err and "not verified" not in ran.err
    assert path.read_text() == function(PLAIN)
    for code, name in (("FUS900", "unused-suppression"), ("FUS000", "unreadable-file")):
        assert name in fuselint("rule", code).out
        assert f"{code}  {name}\n" in fuselint("rule").out


def test_ids_are_stable(tmp_path: Path) -> None:
    text = function(PLAIN, "  # noqa: FUS201")
    assert checked(text).findings[0].id == checked("\n\n" + text).findings[0].id != ""
    path = tmp_path / "m.py"
    path.write_text(text)
    assert [f.code for f in fix_paths([str(path)], Settings(), write=True)[0].applied] == ["FUS900"]


def test_blocks_and_file_comments_that_silence_nothing_go() -> None:
    for comment in (
        "# fuselint: off",
        "# fuselint: off[FUS2]",
        "# fuselint: file-ignore[FUS301]",
        "# fuselint: file-ignore",
    ):
        assert messages(f"{comment}\n{function(PLAIN)}") == [f"`{comment}` silences nothing"]
        assert fixed(f"{comment}\n{function(PLAIN)}# fuselint: on\n") == function(PLAIN)
        assert messages(f"{comment}\n{function(PLAIN)}", select=("FUS201", "FUS900")) == []
    for comment in ("# fuselint: off[FUS201]", "# fuselint: file-ignore[FUS2]"):
        text = f"{comment}\n{function(NORM)}"
        assert checked(text).findings == ()
        assert fixed(text) == text
    assert messages(f"# fuselint: off[FUS201, FUS301]\n{function(NORM)}") == ["`FUS301` silences nothing"]


def test_an_end_that_ends_nothing_goes() -> None:
    assert messages(function(PLAIN) + "# fuselint: on[FUS201]\n") == ["`# fuselint: on[FUS201]` ends nothing"]
    assert fixed(function(PLAIN) + "# fuselint: on[FUS201]\n") == function(PLAIN)
    ended = f"# fuselint: off[FUS201]\n{function(NORM)}# fuselint: on[FUS201]\n"
    assert checked(ended).findings == ()


def test_a_block_may_silence_unused_comments() -> None:
    text = function(PLAIN, "  # noqa: FUS201")
    assert messages(f"# fuselint: file-ignore[FUS900]\n{text}") == []
    assert messages(f"# fuselint: off[FUS900]\n{text}") == []
    assert len(messages(f"# fuselint: off[FUS900]\n# fuselint: on[FUS900]\n{text}")) > 0


def test_a_block_over_a_function_that_is_not_understood_stays() -> None:
    text = "# fuselint: off[FUS301]\n" + function("x" + " * x" * 400)
    assert checked(text).not_understood and messages(text) == []
