from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fuselint.config import Globs, Settings
from fuselint.errors import FuselintError
from fuselint.layers import Layers
from fuselint.source.discovery import python_files
from fuselint.source.text import slashed


def excluding(*patterns: str) -> Settings:
    return Settings(exclude=(Globs(os.getcwd(), patterns),))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ["b.py", "a.py", "notes.txt", "sub/c.py", "sub/deep/d.py", ".venv/x.py", "build/y.py", "made/z.py"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_are_walked_in_order_without_what_is_never_source(tree: Path) -> None:
    assert python_files(["."], Settings()) == ["a.py", "b.py", "made/z.py", "sub/c.py", "sub/deep/d.py"]


def test_a_named_path_is_always_taken_and_nothing_twice(tree: Path) -> None:
    assert python_files(["build", "notes.txt", "a.py", "./a.py"], Settings()) == ["a.py", "notes.txt", "build/y.py"]


def test_the_order_of_files_is_not_that_in_which_they_are_named(tree: Path) -> None:
    every = python_files(["."], Settings())
    for named in (every[::-1], ["sub", *every], ["sub/deep", "b.py", "made", "sub", "a.py"]):
        assert python_files(named, Settings()) == every


def test_paths_are_written_as_on_every_platform() -> None:
    assert slashed("sub\\deep\\d.py", "\\") == "sub/deep/d.py"
    assert slashed("odd\\name.py", "/") == "odd\\name.py"


@pytest.mark.parametrize("named", ["./sub", "sub/", "sub/.", "sub/../sub", "./sub//deep/.."])
def test_a_folder_has_one_name(tree: Path, named: str) -> None:
    assert python_files([named], Settings()) == ["sub/c.py", "sub/deep/d.py"]


def test_a_current_folder_that_is_a_link_makes_no_difference(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.parent / "link").symlink_to(tree)
    here = python_files(["sub", "a.py"], Settings())
    monkeypatch.chdir(tree.parent / "link")
    assert python_files(["sub", "a.py"], Settings()) == here


def test_gitignore_is_kept_to_and_the_deepest_file_has_the_last_word(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("made/\nd.py\n")
    assert python_files(["."], Settings()) == ["a.py", "b.py", "sub/c.py"]
    assert python_files(["sub"], Settings()) == ["sub/c.py"]
    (tree / "sub" / ".gitignore").write_text("!d.py\nc.py\n")
    assert python_files(["."], Settings()) == ["a.py", "b.py", "sub/deep/d.py"]


def test_excludes_cover_named_files_only_when_forced(tree: Path) -> None:
    assert python_files(["."], excluding("sub/deep", "b.py")) == ["a.py", "made/z.py", "sub/c.py"]
    assert python_files(["sub/deep/d.py"], excluding("sub/deep")) == ["sub/deep/d.py"]
    forced = replace(excluding("sub/deep"), force_exclude=True)
    named = ["sub/deep/d.py", ".venv/x.py", "a.py"]
    assert python_files(named, forced) == ["a.py"]
    assert python_files([str(tree / n) for n in named], forced) == [str(tree / "a.py")]


def test_a_pattern_takes_back_what_is_never_source_or_excluded_before(tree: Path) -> None:
    assert python_files(["."], excluding("!build")) == [
        "a.py",
        "b.py",
        "build/y.py",
        "made/z.py",
        "sub/c.py",
        "sub/deep/d.py",
    ]
    later = replace(excluding("sub", "made"), extend_exclude=(Globs(str(tree), ("!sub",)),))
    assert python_files(["."], later) == ["a.py", "b.py", "sub/c.py", "sub/deep/d.py"]


def test_patterns_are_relative_to_where_they_are_written(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = excluding("sub/c.py")
    monkeypatch.chdir(tree / "sub")
    assert python_files(["."], settings) == ["deep/d.py"]


def test_gitignore_can_be_ignored(tree: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".gitignore").write_text("*.py\n")
    assert python_files(["."], Settings()) == []
    assert "a.py" in python_files(["."], Settings(respect_gitignore=False))


def test_the_settings_nearest_to_a_folder_count_there(tree: Path) -> None:
    (tree / "fuselint.toml").write_text('exclude = ["b.py", "d.py"]\n')
    (tree / "sub" / "fuselint.toml").write_text('exclude = ["c.py"]\n')
    assert python_files(["."], Layers()) == ["a.py", "made/z.py", "sub/deep/d.py"]
    (tree / "fuselint.toml").write_text('exclude = ["sub"]\nforce-exclude = true\n')
    (tree / "sub" / "fuselint.toml").write_text("force-exclude = true\n")
    assert python_files(["sub/deep/d.py", "a.py"], Layers()) == ["a.py"]


def test_links_that_loop_or_lead_nowhere_are_named_and_the_rest_is_done(tree: Path) -> None:
    (tree / "loop.py").symlink_to("loop.py")
    (tree / "gone.py").symlink_to("nowhere.py")
    (tree / "sub" / "up").symlink_to(tree)
    heard: list[tuple[str, str]] = []
    files = python_files(["."], Settings(), skipped=lambda path, why: heard.append((path, why)))
    assert files == ["a.py", "b.py", "made/z.py", "sub/c.py", "sub/deep/d.py"]
    assert [Path(path).name for path, _ in heard] == ["gone.py", "loop.py"]
    assert all(why for _, why in heard)


def test_a_missing_path_is_an_error(tree: Path) -> None:
    with pytest.raises(FuselintError, match="missing: No such file"):
        python_files(["missing"], Settings())


def test_a_file_with_several_names_is_taken_once(tree: Path) -> None:
    (tree / "z.py").symlink_to("a.py")
    (tree / "linked").symlink_to("sub")
    taken = ["a.py", "b.py", "linked/c.py", "linked/deep/d.py", "made/z.py"]
    assert python_files(["z.py", "linked", "."], Settings()) == taken
    assert python_files([".", "linked", "z.py"], Settings()) == taken


def test_names_with_odd_bytes_are_found(tree: Path) -> None:
    odd = os.fsdecode(b"odd-\xff \n.py")
    (tree / odd).touch()
    assert odd in python_files(["."], Settings())
