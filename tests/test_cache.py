"""The cache may cost time, and never changes a result."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import fuselint.engine as engine
from fuselint import world as worlds
from fuselint.cache import FILE, Store, check_paths, scope_of
from fuselint.config import Settings
from fuselint.finding import FileResult
from fuselint.plain import dumps, loads

NORM = """import mlx.core as mx

from .helpers import factor


class Norm:
    def __call__(self, x: mx.array) -> mx.array:
        return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) * factor(x)
"""
HELPERS = """import mlx.core as mx


def factor(x: mx.array) -> mx.array:
    return mx.ones((x.shape[-1],))
"""
CHAIN = """import mlx.core as mx


def f(x: mx.array, y: mx.array) -> mx.array:
    return mx.sigmoid(x) * mx.tanh(y) * y + x
"""


PLAIN = Settings()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "pack"
    folder.mkdir()
    for name, text in (("__init__.py", ""), ("norm.py", NORM), ("helpers.py", HELPERS), ("chain.py", CHAIN)):
        write(folder / name, text)
    monkeypatch.chdir(tmp_path)
    return folder


def write(path: Path, text: str) -> None:
    """A file that was written long ago: its times can be trusted."""
    path.write_text(text)
    past = time.time() - 1000 + random.Random(text).random()
    os.utime(path, (past, past))


@pytest.fixture
def analysed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that were analysed, in order."""
    names: list[str] = []
    original = engine._check

    def check(task: tuple[str, Settings, object]) -> FileResult:
        names.append(os.path.basename(task[0]))
        return original(task)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "_check", check)
    monkeypatch.setattr(worlds, "SETTLED", 0.0)
    return names


def paths() -> list[str]:
    return [os.path.join("pack", n) for n in ("__init__.py", "chain.py", "helpers.py", "norm.py")]


def cached(settings: Settings = PLAIN, files: Sequence[str] = ()) -> list[FileResult]:
    return [replace(r, reads=(), basis=()) for r in check_paths(files or paths(), settings, 1, Path("cache"))]


def fresh(settings: Settings = PLAIN) -> list[FileResult]:
    return [replace(r, reads=(), basis=()) for r in check_paths(paths(), settings, 1, None)]


def database() -> Path:
    return Path("cache", FILE)


def test_what_nothing_touched_is_not_analysed_again(package: Path, analysed: list[str]) -> None:
    first = cached()
    assert first == fresh() and any(r.findings for r in first)
    analysed.clear()
    assert cached() == first
    assert analysed == []
    assert (database().parent / ".gitignore").read_text() == "*\n"
    assert (database().parent / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


def test_a_changed_file_is_and_what_read_it(package: Path, analysed: list[str]) -> None:
    cached()
    analysed.clear()
    write(package / "helpers.py", HELPERS.replace("mx.ones((x.shape[-1],))", "x * 2.0 + x"))
    assert cached() == fresh()
    again = analysed[: len(analysed) - len(paths())]
    assert "helpers.py" in again and "norm.py" in again and "chain.py" not in again


def test_a_change_of_the_same_size_and_time_is_seen(package: Path, analysed: list[str]) -> None:
    cached()
    at = (package / "chain.py").stat()
    (package / "chain.py").write_text(CHAIN.replace("mx.tanh(y) * y + x", "mx.tanh(y) + y + x"))
    os.utime(package / "chain.py", ns=(at.st_atime_ns, at.st_mtime_ns))
    assert cached() == fresh()


def test_a_file_of_the_package_that_appears_or_goes_is_seen(package: Path, analysed: list[str]) -> None:
    cached()
    (package / "helpers.py").rename(package / "other.py")
    files = [p for p in paths() if not p.endswith("helpers.py")]
    now = [replace(r, reads=(), basis=()) for r in check_paths(files, Settings(), 1, None)]
    assert cached(files=files) == now
    (package / "other.py").rename(package / "helpers.py")
    assert cached() == fresh()


def test_settings_have_their_own_results(package: Path, analysed: list[str]) -> None:
    both = [Settings(), Settings(select=("FUS301",)), Settings(dtype="float32"), Settings(near_misses=True)]
    for _ in range(2):
        for settings in both:
            assert cached(settings) == fresh(settings)
    assert len({scope_of(s) for s in both}) == 4
    assert scope_of(Settings(output_format="json")) == scope_of(Settings()), "how it is shown doesn't matter"


def test_a_wrong_selection_is_an_error_where_everything_is_kept(package: Path) -> None:
    cached()
    with pytest.raises(Exception, match="no rule"):
        cached(Settings(select=("NOPE",)))


def damages() -> Iterator[tuple[str, object]]:
    yield "empty", lambda data: b""
    yield "no database", lambda data: b"\0" * 100
    yield "text", lambda data: b"hello, world" * 1000
    yield "cut", lambda data: data[: len(data) // 2]
    yield "cut after its head", lambda data: data[:4096]
    for seed in range(12):

        def flip(data: bytes, seed: int = seed) -> bytes:
            chosen, out = random.Random(seed), bytearray(data)
            for _ in range(30):
                out[chosen.randrange(100, len(out))] ^= 1 << chosen.randrange(8)
            return bytes(out)

        yield f"flipped bits {seed}", flip


@pytest.mark.parametrize(("what", "damage"), [*damages()])
def test_a_damaged_file_costs_time_only(package: Path, what: str, damage: object) -> None:
    first = cached()
    data = database().read_bytes()
    database().write_bytes(damage(data))  # type: ignore[operator]
    assert cached() == first
    assert cached() == first


def test_a_row_that_says_something_else_is_not_believed(package: Path) -> None:
    first = cached()
    with sqlite3.connect(database()) as db:
        db.execute("UPDATE results SET result = ''")
    assert cached() == first


def test_a_file_of_another_version_is_written_anew(package: Path, analysed: list[str]) -> None:
    cached()
    with sqlite3.connect(database()) as db:
        db.execute("DROP TABLE results")
        db.execute("CREATE TABLE results (something TEXT)")
    cached()
    analysed.clear()
    cached()
    assert analysed == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_folder_that_is_none_or_in_the_way(package: Path) -> None:
    Path("cache").write_text("a file")
    assert cached() == fresh()
    Path("cache").unlink()
    Path("cache").mkdir()
    database().mkdir()
    assert cached() == fresh()


def test_a_locked_file_is_left_alone(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fuselint.cache

    monkeypatch.setattr(fuselint.cache, "WAIT", 0.05)
    first = cached()
    with sqlite3.connect(database(), isolation_level=None) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert cached() == first
    assert cached() == first


def test_a_full_disk_costs_time_only(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Store, *args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "_write", full)
    assert cached() == fresh()
    assert cached() == fresh()


def test_a_file_that_changes_meanwhile_is_not_kept_as_it_was(package: Path) -> None:
    results = check_paths(paths(), Settings(), 1, Path("cache"))
    next(results)
    write(package / "helpers.py", HELPERS + "\n\nY = 1\n")
    list(results)
    assert cached() == fresh()


@pytest.mark.slow
def test_two_processes_at_once(package: Path) -> None:
    command = [sys.executable, "-m", "fuselint", "check", "pack", "--output-format", "json", "--cache-dir", "cache"]
    alone = subprocess.run([*command, "--no-cache"], capture_output=True, check=False).stdout
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [p.communicate()[0] for p in running] == [alone] * 3
    assert subprocess.run(command, capture_output=True, check=False).stdout == alone


def test_results_survive_as_text(package: Path) -> None:
    for result in check_paths(paths(), Settings(near_misses=True), 1, None):
        bare = replace(result, text="")
        assert loads(FileResult, dumps(bare)) == bare


def test_the_cache_is_off_with_no_cache(package: Path) -> None:
    subprocess.run([sys.executable, "-m", "fuselint", "check", "pack", "--no-cache"], capture_output=True, check=False)
    assert not Path(".fuselint_cache").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_name_that_is_no_text_is_analysed_each_time(package: Path, analysed: list[str]) -> None:
    odd = os.path.join("pack", os.fsdecode(b"\xff.py"))
    write(Path(odd), CHAIN)
    for _ in range(2):
        assert [r.path for r in cached(files=[*paths(), odd]) if r.findings] == ["pack/chain.py", "pack/norm.py", odd]
    assert sorted(analysed) == sorted([*map(os.path.basename, paths()), *[os.path.basename(odd)] * 2])


def test_links_in_a_caches_place_have_nothing_written(package: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    Path(".fuselint_cache").symlink_to(other)
    subprocess.run([sys.executable, "-m", "fuselint", "check", "pack"], capture_output=True, check=False)
    assert list(other.iterdir()) == []
    for name in (FILE, f"{FILE}-journal", ".gitignore"):
        Path("cache").mkdir()
        Path("cache", name).symlink_to(other / "target")
        assert cached() == fresh()
        assert list(other.iterdir()) == []
        Path("cache", name).unlink()
        Path("cache").rmdir()
