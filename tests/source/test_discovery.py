from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuselint.errors import FuselintError
from fuselint.source.discovery import python_files


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ["b.py", "a.py", "notes.txt", "sub/c.py", "sub/deep/d.py", ".venv/x.py", "build/y.py", "made/z.py"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_are_walked_in_order_without_what_is_never_source(tree: Path) -> None:
    assert python_files(["."]) == ["a.py", "b.py", "made/z.py", "sub/c.py", "sub/deep/d.py"]


def test_a_named_path_is_always_taken_and_nothing_twice(tree: Path) -> None:
    assert python_files(["build", "notes.txt", "a.py", "./a.py"]) == ["build/y.py", "notes.txt", "a.py"]


def test_gitignore_is_kept_to_and_the_deepest_file_has_the_last_word(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("made/\nd.py\n")
    assert python_files(["."]) == ["a.py", "b.py", "sub/c.py"]
    assert python_files(["sub"]) == ["sub/c.py"]
    (tree / "sub" / ".gitignore").write_text("!d.py\nc.py\n")
    assert python_files(["."]) == ["a.py", "b.py", "sub/deep/d.py"]


def test_excludes_cover_named_files_only_when_forced(tree: Path) -> None:
    assert python_files(["."], exclude=["sub/deep", "b.py"]) == ["a.py", "made/z.py", "sub/c.py"]
    assert python_files(["sub/deep/d.py"], exclude=["sub/deep"]) == ["sub/deep/d.py"]
    assert python_files(["sub/deep/d.py", ".venv/x.py", "a.py"], ["sub/deep"], force_exclude=True) == ["a.py"]


def test_links_that_loop_or_lead_nowhere_are_named_and_the_rest_is_done(tree: Path) -> None:
    (tree / "loop.py").symlink_to("loop.py")
    (tree / "gone.py").symlink_to("nowhere.py")
    (tree / "sub" / "up").symlink_to(tree)
    heard: list[tuple[str, str]] = []
    files = python_files(["."], skipped=lambda path, why: heard.append((path, why)))
    assert files == ["a.py", "b.py", "made/z.py", "sub/c.py", "sub/deep/d.py"]
    assert [Path(path).name for path, _ in heard] == ["gone.py", "loop.py"]
    assert all(why for _, why in heard)


def test_a_missing_path_is_an_error(tree: Path) -> None:
    with pytest.raises(FuselintError, match="missing: No such file"):
        python_files(["missing"])


def test_a_file_with_several_names_is_taken_once(tree: Path) -> None:
    (tree / "z.py").symlink_to("a.py")
    (tree / "linked").symlink_to("sub")
    assert python_files(["z.py", "linked", "."]) == ["z.py", "linked/c.py", "linked/deep/d.py", "b.py", "made/z.py"]


def test_names_with_odd_bytes_are_found(tree: Path) -> None:
    odd = os.fsdecode(b"odd-\xff \n.py")
    (tree / odd).touch()
    assert odd in python_files(["."])
