from __future__ import annotations

import pytest

from fuselint.source.suppress import Suppressions
from fuselint.source.text import FileText


def of(text: str) -> Suppressions:
    return Suppressions.of(FileText("m.py", text))


@pytest.mark.parametrize(
    ("comment", "code", "covered"),
    [
        ("# noqa", "FUS201", True),
        ("#NOQA", "FUS201", True),
        ("# noqa: FUS201", "FUS201", True),
        ("# noqa:fus201", "FUS201", True),
        ("# noqa: E501, FUS201,FUS301", "FUS301", True),
        ("# noqa: E501 FUS201", "FUS201", True),
        ("# noqa: FUS2", "FUS201", True),
        ("# noqa: ALL", "FUS201", True),
        ("# noqa: unfused-rms-norm", "FUS201", True),
        ("# noqa: FUS201 -- the slow path", "FUS201", True),
        ("# noqa: FUS201 because it is slow", "FUS201", True),
        ("# type: ignore  # noqa: FUS201", "FUS201", True),
        ("# noqa: E501", "FUS201", False),
        ("# noqa: FUS301", "FUS201", False),
        ("# noqa: FUS2011", "FUS201", False),
        ("# noqa: re-export", "FUS201", False),
        ("# noqable", "FUS201", False),
        ("# fuselint: ignore", "FUS201", True),
        ("# fuselint: ignore[FUS201]", "FUS201", True),
        ("# fuselint:ignore[fus301, unfused-rms-norm] -- measured: slower", "FUS201", True),
        ("# fuselint: ignore[FUS301]", "FUS201", False),
        ("# fuselint: ignores", "FUS201", False),
        ("# fuselint: skip-file", "FUS201", True),
        ("# mentions fuselint: and noqa", "FUS201", False),
    ],
)
def test_what_a_comment_silences(comment: str, code: str, covered: bool) -> None:
    assert of(f"x = 1  {comment}\n").covers(code, 1, 1, name="unfused-rms-norm") is covered


def test_any_line_of_the_statement_or_of_the_header_counts() -> None:
    found = of("a\n# noqa: FUS1\nb\n")
    assert found.covers("FUS101", 1, 3)
    assert found.covers("FUS101", 2, 2)
    assert found.covers("FUS101", 3, 3, def_lines=[1, 2])
    assert not found.covers("FUS101", 3, 9, def_lines=[1])


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_texts_and_docstrings_silence_nothing(newline: str) -> None:
    text = newline.join(['"""# noqa', '# fuselint: skip-file"""', "s = '# noqa'  # noqa: FUS201", "t = f'{x} # noqa'"])
    found = of(text)
    assert not found.skip_file
    assert [n for n in range(1, 5) if found.covers("FUS201", n, n)] == [3]
    entry = found.by_line[3][0]
    assert text[entry.start : entry.end] == "# noqa: FUS201"


def test_a_reason_is_kept() -> None:
    entry = of("x  # fuselint: ignore[FUS201] -- slower on M1  \n").by_line[1][0]
    assert (entry.codes, entry.reason) == (("FUS201",), "slower on M1")


def test_what_silenced_nothing_is_known() -> None:
    found = of("a  # noqa: E501, FUS201, FUS301\nb  # noqa\nc  # fuselint: ignore[FUS201]\nd  # fuselint: ignore\n")
    assert found.covers("FUS301", 1, 1)
    assert [(entry.line, words) for entry, words in found.unused()] == [(1, ("FUS201",)), (3, ("FUS201",)), (4, ("",))]
    for line in (3, 4):
        assert found.covers("FUS201", line, line)
    assert [entry.line for entry, _ in found.unused()] == [1]


def test_a_text_that_cannot_be_tokenised_keeps_its_comments() -> None:
    assert of("x = (1,  # noqa\n").covers("FUS201", 1, 1)
    assert of("x = '''\n# noqa\n").covers("FUS201", 2, 2)


BLOCKS = """\
a
# fuselint: off[FUS301, unfused-rms-norm] -- measured
b
c  # fuselint: on[FUS301]
d
# fuselint: on
e
"""


def lines_of(text: str, code: str, name: str = "") -> list[int]:
    found = of(text)
    return [n for n in range(1, text.count("\n") + 1) if found.covers(code, n, n, name=name)]


def test_a_block_holds_until_its_codes_are_on_again() -> None:
    assert lines_of(BLOCKS, "FUS301") == [2, 3, 4]
    assert lines_of(BLOCKS, "FUS201", "unfused-rms-norm") == [2, 3, 4, 5, 6]
    assert lines_of(BLOCKS, "FUS202") == []
    assert lines_of("a\n# fuselint: off\nb\n# fuselint: on[FUS201]\nc\n", "FUS201") == [2, 3, 4, 5]
    assert lines_of("a\n# fuselint: disable[FUS2]\nb\n# fuselint: enable[FUS2]\nc\n", "FUS201") == [2, 3, 4]


def test_a_file_can_be_silenced_for_some_codes() -> None:
    text = "a\nb  # fuselint: file-ignore[FUS3] -- generated\nc\n# fuselint: on[FUS3]\n"
    assert lines_of(text, "FUS301") == [1, 2, 3, 4]
    assert lines_of(text, "FUS201") == []
    assert not of(text).skip_file


def test_blocks_and_ends_that_do_nothing_are_known() -> None:
    found = of(BLOCKS)
    assert found.covers("FUS301", 3, 3)
    assert not found.covers("FUS201", 7, 7, name="unfused-rms-norm")
    assert [(e.line, w) for e, w in found.unused()] == [(2, ("unfused-rms-norm",))]
    assert [(e.line, w) for e, w in of("# fuselint: on[FUS201, FUS202]\n").unused()] == [(1, ("FUS201", "FUS202"))]
    off = of("# fuselint: off[FUS201]\n# fuselint: on[FUS201, FUS202]\n")
    assert [(e.line, w) for e, w in off.unused()] == [(1, ("FUS201",)), (2, ("FUS202",))]


def test_any_line_of_the_logical_line_counts() -> None:
    """A comment at the end of a header stands below what it silences."""
    found = of("if (\n    a and\n    b\n):  # noqa: FUS201\n    c\n")
    assert found.covers("FUS201", 2, 2)
    assert not found.covers("FUS201", 5, 5)
    found = of("x = '''\n'''; y = 2  # noqa\n\n\nz = 3\n")
    assert found.covers("FUS201", 1, 1) and not found.covers("FUS201", 5, 5)
