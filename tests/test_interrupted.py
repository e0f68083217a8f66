"""What is left of files where a fix is killed, interrupted, overtaken or run twice at once; and --require-clean."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselint import engine
from fuselint.errors import FuselintError
from fuselint.source import text
from support import NORM, PLAIN, Ran

Run = Callable[..., Ran]
FILES = 12
FIX = (sys.executable, "-m", "fuselint", "fix", "--apply", "--no-verify", "--exit-zero", "--quiet", ".")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    for n in range(FILES):
        (folder / f"m{n:02}.py").write_text(NORM.replace("Norm", f"Norm{n}"))
    return folder


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(FIX, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def state(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(folder.glob("*.py"))}


def wait_for_a_write(folder: Path, process: subprocess.Popen[bytes], old: dict[str, str]) -> None:
    while process.poll() is None and state(folder) == old:
        time.sleep(0.002)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it has no SIGKILL")
def test_a_killed_fix_leaves_files_old_or_new_and_is_repeated(package: Path) -> None:
    old = state(package)
    start(package).communicate()
    new = state(package)
    assert all(old[name] != new[name] for name in old)
    for delay in (0.0, 0.004, 0.012):
        for name, before in old.items():
            (package / name).write_text(before)
        process = start(package)
        wait_for_a_write(package, process, old)
        time.sleep(delay)
        process.kill()
        process.communicate()
        found = state(package)
        assert set(found) == set(old) and all(found[name] in (old[name], new[name]) for name in old)
        start(package).communicate()
        assert state(package) == new


@pytest.mark.slow
def test_two_fixes_at_once_end_as_one_does(package: Path) -> None:
    both = [start(package) for _ in range(2)]
    said = [p.communicate()[1] for p in both]
    assert [p.returncode for p in both] == [0, 0] and said == [b"", b""]
    assert all("mx.fast.rms_norm" in source for source in state(package).values())


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it has no SIGINT for one process")
def test_ctrl_c_says_what_was_written(package: Path) -> None:
    old = state(package)
    process = start(package)
    wait_for_a_write(package, process, old)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    found = state(package)
    written = [f"./{name}" if f"./{name}".encode() in err else name for name in old if found[name] != old[name]]
    if process.returncode == 0:
        pytest.skip("it had ended before it was interrupted")
    assert process.returncode == 130 and out == b""
    files = "1 file" if len(written) == 1 else f"{len(written)} files"
    assert err.decode() == f"fuselint: interrupted; {files} written: {', '.join(written)}\n"


def test_ctrl_c_while_writing_names_the_files(fuselint: Run, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: str, data: bytes, expected: bytes | None = None) -> None:
        text.write_atomic(path, data, expected)
        if path.endswith("m02.py"):
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "write_atomic", interrupted)
    old = state(package)
    ran = fuselint("fix", "--apply", "--no-verify", "package")
    names = ["m00.py", "m01.py", "m02.py"]
    assert ran == Ran(130, "", f"fuselint: interrupted; 3 files written: {', '.join(f'package/{n}' for n in names)}\n")
    assert [name for name, now in state(package).items() if now != old[name]] == names


def test_ctrl_c_before_anything_was_written(fuselint: Run, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "_propose", interrupted)
    old = state(package)
    for command in ("check", "fix"):
        assert fuselint(command, "package") == Ran(130, "", "fuselint: interrupted; no code was changed\n")
    assert state(package) == old


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="it has no process groups")
def test_ctrl_c_in_a_pool_ends_at_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Workers die without a word, and the command says one line."""
    for n in range(engine.POOL_FROM + 200):
        (tmp_path / f"m{n}.py").write_text(NORM)
    command = (sys.executable, "-m", "fuselint", "check", "-j", "2", "--no-cache", ".")
    codes = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    for delay in (0.4, 0.8, 1.2, 1.6, 2.0, 2.4):
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        time.sleep(delay)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        codes.append(process.returncode)
        if process.returncode == 130:
            assert err == b"fuselint: interrupted; no code was changed\n"
    assert 130 in codes


def test_what_was_edited_meanwhile_is_read_again(
    fuselint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the edit comes in the last moment: after the new text was made, before it takes its place."""
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    fsync, edited = os.fsync, "# edited meanwhile\n" + NORM

    def edit(fd: int) -> None:
        fsync(fd)
        if not path.read_text().startswith("# edited"):
            path.write_text(edited)

    monkeypatch.setattr(os, "fsync", edit)
    fuselint("fix", "--apply", "--no-verify", "norm.py")
    now = path.read_text()
    assert now.startswith("# edited meanwhile\n") and "mx.fast.rms_norm" in now
    assert [p.name for p in tmp_path.iterdir() if p.name != ".fuselint_cache"] == ["norm.py"]


def test_what_a_killed_fix_left_over_is_removed(fuselint: Run, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = (f"{gone.pid}-a", f"{gone.pid}-b", f"{os.getpid()}-c", "x")
    left, fresh, running, other = (tmp_path / f".fuselint-{name}.tmp" for name in names)
    for path in (left, fresh, running, other):
        path.write_text("")
        os.utime(path, None if path is fresh else (1, 1))
    (tmp_path / "norm.py").write_text(NORM)
    fuselint("fix", "--apply", "--no-verify", "norm.py")
    assert [p.exists() for p in (left, fresh, running, other)] == [False, True, True, True]


# -- --require-clean ------------------------------------------------------------------------------------------------


def git(folder: Path, *command: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "norm.py").write_text(NORM)
    (tmp_path / "plain.py").write_text(PLAIN)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "start")
    return tmp_path


def test_require_clean_fixes_a_clean_tree(fuselint: Run, repository: Path) -> None:
    (repository / "notes.txt").write_text("nothing that is fixed, and nothing that is tracked")
    ran = fuselint("fix", "--apply", "--no-verify", "--require-clean", "norm.py")
    assert ran.code == 0 and "mx.fast.rms_norm" in (repository / "norm.py").read_text()
    ran = fuselint("fix", "--apply", "--no-verify", "--require-clean", "plain.py")
    assert ran.code == 2 and "not committed: norm.py" in ran.err


@pytest.mark.parametrize("staged", [False, True])
def test_require_clean_refuses_what_is_not_committed(fuselint: Run, repository: Path, staged: bool) -> None:
    edited = NORM + "\n# mine\n"
    (repository / "norm.py").write_text(edited)
    if staged:
        git(repository, "add", ".")
    ran = fuselint("fix", "--apply", "--no-verify", "--require-clean")
    line = "fuselint: --require-clean: not committed: norm.py; commit or stash it first\n"
    assert ran == Ran(2, "", line) and (repository / "norm.py").read_text() == edited
    ran = fuselint("fix", "--apply", "--no-verify")
    assert ran.code == 0 and "# mine" in (repository / "norm.py").read_text()


def test_require_clean_refuses_what_git_does_not_know(fuselint: Run, repository: Path) -> None:
    (repository / ".gitignore").write_text("ignored.py\n")
    git(repository, "add", ".")
    git(repository, "commit", "-m", "ignore")
    (repository / "new.py").write_text(NORM)
    assert "not committed: new.py;" in fuselint("fix", "--require-clean").err
    (repository / "new.py").rename(repository / "ignored.py")
    assert "not committed: ignored.py;" in fuselint("fix", "--require-clean", "ignored.py").err
    assert fuselint("fix", "--require-clean").code == 1  # it isn't looked for


def test_require_clean_names_a_few(fuselint: Run, repository: Path) -> None:
    git(repository, "mv", "plain.py", "moved.py")
    for n in range(6):
        (repository / f"n{n}.py").write_text(NORM)
    ran = fuselint("fix", "--require-clean")
    assert "not committed: moved.py, n0.py, n1.py, n2.py, n3.py and 2 more;" in ran.err


def test_require_clean_outside_of_git(fuselint: Run, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(package.parent))
    ran = fuselint("fix", "--apply", "--no-verify", "--require-clean", "package")
    assert ran.code == 2 and "--require-clean asks git, and package is no work tree of it: " in ran.err
    monkeypatch.setenv("PATH", "")
    ran = fuselint("fix", "--apply", "--no-verify", "--require-clean", "package")
    assert ran.code == 2 and "--require-clean asks git, which can't be run: " in ran.err


def test_require_clean_and_stdin() -> None:
    command = (sys.executable, "-m", "fuselint", "fix", "--require-clean", "-")
    ran = subprocess.run(command, input=NORM, capture_output=True, text=True)
    assert ran.returncode == 2 and "--require-clean asks git of files" in ran.stderr


def test_a_file_that_is_written_over_is_no_success(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"new")
    with pytest.raises(FuselintError, match="changed on disk"):
        text.write_atomic(path, b"ours", expected=b"old")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]
