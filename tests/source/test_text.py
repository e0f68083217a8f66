from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuselint.errors import FuselintError, UnreadableFile
from fuselint.source import text as text_module
from fuselint.source.text import FileText, decode, read, write_atomic


def refusal(path: str, data: bytes) -> UnreadableFile:
    with pytest.raises(UnreadableFile) as caught:
        decode(path, data)
    return caught.value


@pytest.mark.parametrize(
    ("data", "text", "newline", "encoding", "bom"),
    [
        (b"x = 1\n", "x = 1\n", "\n", "utf-8", False),
        (b"", "", "\n", "utf-8", False),
        (b"x = 1\r\ny = 2\r\n", "x = 1\r\ny = 2\r\n", "\r\n", "utf-8", False),
        (b"x = 1\ry = 2\r", "x = 1\ry = 2\r", "\r", "utf-8", False),
        (b"a\r\nb\nc\r\n", "a\r\nb\nc\r\n", "\r\n", "utf-8", False),
        (b"\xef\xbb\xbfx = 1\n", "x = 1\n", "\n", "utf-8", True),
        (b"# -*- coding: latin-1 -*-\ns = '\xe9'\n", "# -*- coding: latin-1 -*-\ns = 'é'\n", "\n", "iso8859-1", False),
        (b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\ns = '\x80'\n", None, "\n", "cp1252", False),
        (b"# coding: utf-8-sig\nx = 1\n", "# coding: utf-8-sig\nx = 1\n", "\n", "utf-8", False),
        (b"\r# coding: latin-1\rs = '\xe9'\r", "\r# coding: latin-1\rs = 'é'\r", "\r", "iso8859-1", False),
    ],
)
def test_a_file_decodes_and_encodes_back(data: bytes, text: str | None, newline: str, encoding: str, bom: bool) -> None:
    file = decode("m.py", data)
    assert text is None or file.text == text
    assert (file.newline, file.encoding, file.bom) == (newline, encoding, bom)
    assert file.encode(file.text) == data


@pytest.mark.parametrize(
    "data", [b"x = 1\n# coding: latin-1\n", b'"""coding: latin-1"""\n', b"\n\n# coding: latin-1\n"]
)
def test_a_coding_line_counts_only_where_python_looks_for_it(data: bytes) -> None:
    assert decode("m.py", data).encoding == "utf-8"


@pytest.mark.parametrize(
    ("data", "line", "column", "reason"),
    [
        (b"import mlx\ns = '\xe9'\n", 2, 6, "byte 0xe9 is not UTF-8; name its encoding in a coding line"),
        (b"import mlx\r\n'\xc3\xa9' + '\xff'\r\n", 2, 8, "byte 0xff is not UTF-8"),
        (b"\n# coding: klingon\nimport mlx\n", 2, 1, "unknown encoding, 'klingon'"),
        (b"# coding: hex\nimport mlx\n", 1, 1, "no text encoding"),
        (b"# coding: ascii\nimport mlx  # \xe9\n", 2, 15, "byte 0xe9 is not ascii"),
        (b"# coding: utf-16\nimport mlx\n", 1, 1, "does not come back from utf-16"),
        (b"\xef\xbb\xbf# coding: latin-1\nimport mlx\n", 1, 1, "byte order mark"),
    ],
)
def test_bytes_that_are_not_text_are_refused_at_their_place(data: bytes, line: int, column: int, reason: str) -> None:
    error = refusal("m.py", data)
    assert reason in error.reason
    assert (error.line, error.column) == (line, column)
    assert str(error).startswith(f"m.py:{line}:{column}: ")


@pytest.mark.parametrize("data", [b"s = '\xe9'\n", b"# coding: klingon\n", b"\xff\xfe\x00\x01", b"\xef\xbb\xbf\xff"])
def test_undecodable_bytes_that_do_not_name_mlx_are_no_error_and_come_back(data: bytes) -> None:
    file = decode("m.py", data)
    assert file.encode(file.text) == data


def test_text_that_the_encoding_lacks_is_not_written() -> None:
    file = decode("m.py", b"# coding: latin-1\n")
    with pytest.raises(FuselintError, match=r"m\.py: '→' can't be written in this file's encoding"):
        file.encode("# →\n")


# Lines: every character that some part of Python takes for a line end, beside ordinary, wide and empty ones.
TEXTS = st.lists(st.sampled_from(["a", "\n", "\r", "\r\n", "\f", "\v", "\u2028", "\x85", "\x1c", "é", "😀"])).map(
    "".join
)


@given(TEXTS)
def test_offsets_and_positions_are_inverse(text: str) -> None:
    file = FileText("m.py", text)
    for offset in range(len(text) + 1):
        line, column = file.position(offset)
        assert file.starts[line - 1] + column - 1 == offset
        if text[offset - 1 : offset + 1] != "\r\n":
            assert file.offset(line, column) == offset
    assert "".join(text[a:b] for a, b in zip(file.starts, [*file.starts[1:], len(text)], strict=True)) == text


@given(
    st.lists(
        st.sampled_from(["x = 'é😀'", "\fy = 1", "s = '\u2028\x85\x1c'", "", "# é", "if x: z = '😀' + y"]), max_size=8
    )
)
def test_lines_and_columns_agree_with_ast(lines: list[str]) -> None:
    for newline in ("\n", "\r\n", "\r"):
        file = FileText("m.py", newline.join(lines))
        for node in ast.walk(ast.parse(file.text)):
            if isinstance(node, ast.Name):
                offset = file.ast_offset(node.lineno, node.col_offset)
                assert file.text.startswith(node.id, offset)


def test_positions_outside_the_text_are_errors() -> None:
    file = FileText("m.py", "ab\r\nc")
    assert [file.line(n) for n in (1, 2)] == ["ab", "c"]
    assert file.offset(1, 3) == 2
    for bad in ((1, 4), (1, 0), (3, 1), (0, 1)):
        with pytest.raises(ValueError, match=r"m\.py has no"):
            file.offset(*bad)
    with pytest.raises(ValueError, match="outside"):
        file.position(6)


def test_what_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dangling.py").symlink_to("nowhere.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    os.mkfifo(tmp_path / "pipe.py")
    for name, reason in [
        (".", "is a folder, not a file"),
        ("gone.py", "no such file"),
        ("dangling.py", "is a symbolic link to nothing"),
        ("loop.py", "can't be read: "),
        ("pipe.py", "is not a regular file"),
    ]:
        with pytest.raises(UnreadableFile) as caught:
            read(tmp_path / name)
        assert caught.value.reason.startswith(reason)
    monkeypatch.setattr("builtins.open", lambda *a: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    (tmp_path / "secret.py").touch()
    with pytest.raises(UnreadableFile, match="permission denied"):
        read(tmp_path / "secret.py")


def test_a_huge_file_is_refused_only_where_it_names_mlx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "LARGEST", 1_000_000)
    (tmp_path / "data.py").write_bytes(b"x = 1\n" * 200_000)
    (tmp_path / "model.py").write_bytes(b"x = 1\n" * 200_000 + b"import mlx\n")
    assert read(tmp_path / "data.py").text == ""
    with pytest.raises(UnreadableFile, match="has 1 MB; files above 1 MB are not analysed"):
        read(tmp_path / "model.py")


def test_writing_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_bytes(b"old")
    path.chmod(0o750)
    write_atomic(path, b"new", expected=b"old")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    write_atomic(tmp_path / "report.html", b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.py", "report.html"]


def test_writing_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "m.py").write_bytes(b"old")
    (tmp_path / "m.py").symlink_to("real/m.py")
    write_atomic(tmp_path / "m.py", b"new")
    assert (tmp_path / "m.py").is_symlink()
    assert (tmp_path / "real" / "m.py").read_bytes() == b"new"


def test_what_cannot_be_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.py"
    path.write_bytes(b"old")
    with pytest.raises(FuselintError, match="changed on disk since it was read"):
        write_atomic(path, b"new", expected=b"other")
    path.chmod(0o444)
    with pytest.raises(FuselintError, match="the file is read-only"):
        write_atomic(path, b"new")
    path.chmod(0o644)
    with pytest.raises(FuselintError, match="not a regular file"):
        write_atomic(tmp_path, b"new")
    with pytest.raises(FuselintError, match="no longer exists"):
        write_atomic(tmp_path / "gone" / "m.py", b"new")
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FuselintError, match=r"m\.py: can't be written: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["m.py"]
