"""Input that nobody wishes for: each costs one clear line, and the other files are still done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fuselint.source.text as texts
from fuselint.config import Settings
from fuselint.engine import check_paths, fix_paths
from fuselint.package import Package
from fuselint.source.text import content
from support import NORM, Ran

Run = Callable[..., Ran]

IMPORT = "import mlx.core as mx\n"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "zz_good.py"
    path.write_text(NORM)
    return path


def codes(ran: Ran) -> list[tuple[str, str]]:
    """(file, code) of concise lines."""
    return [(line.split(":")[0], line.split()[1]) for line in ran.out.splitlines()]


GOOD = ("zz_good.py", "FUS201")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"import mlx.core as mx\ndef f(:\n    pass\n", "bad.py:2:"),
        (b"import mlx.core as mx\nname = '\xe9'\n", "bad.py:2:9: FUS000 byte 0xe9 is not UTF-8"),
        (b"import mlx.core as mx\0\n", "null byte"),
        (b"# coding: no-such-codec\nimport mlx.core as mx\n", "no-such-codec"),
        (IMPORT.encode() + b"x = " + b"(" * 2000 + b"1" + b")" * 2000 + b"\n", "bad.py:2:"),
    ],
    ids=["syntax error", "not utf-8", "null byte", "unknown coding", "2,000 parentheses"],
)
def test_an_unreadable_file_is_a_finding(fuselint: Run, tmp_path: Path, good: Path, data: bytes, said: str) -> None:
    (tmp_path / "bad.py").write_bytes(data)
    ran = fuselint("check", "--output-format", "concise")
    assert codes(ran) == [("bad.py", "FUS000"), GOOD]
    assert said in ran.out.splitlines()[0]
    assert ran.code == 1
    assert fuselint("fix", "--apply", "--no-verify").code == 1
    assert "mx.fast.rms_norm" in good.read_text()
    assert (tmp_path / "bad.py").read_bytes() == data


def test_an_unreadable_file_without_mlx_is_none_of_our_business(fuselint: Run, tmp_path: Path, good: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"def f(:\n '\xe9'\n")
    assert codes(fuselint("check", "--output-format", "concise")) == [GOOD]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n" * 5,
        "\f\n" + IMPORT + "\f\ndef f(x):\n    return mx.exp(x) @ x\n",
        IMPORT + "def f(x):\n" + "    x = mx.matmul(x, x)\n" * 2 + "\n# end\n" * 9_000,
        IMPORT + "def f(x):\n    return " + " + ".join(["x"] * 1000) + "\n",
        IMPORT + "def f(x):\n    return " + "(" * 150 + "mx.exp(x)" + ")" * 150 + "\n",
        IMPORT + "def f(x):\n" + "".join("    " * (n + 1) + "if x:\n" for n in range(90)) + "    " * 91 + "mx.exp(x)\n",
        IMPORT + "def f(x):\n    return x" + ".swapaxes(0, 1)" * 900 + "\n",
        IMPORT + "def f(x):\n    return f(x)\ndef g(x):\n    return h(mx.exp(x))\ndef h(x):\n    return g(mx.exp(x))\n",
        IMPORT + "def f(x):\n    for*y, z in x:\n        x = mx.exp(y)\n    return x\n",
        IMPORT + "STEP = 1e-5 << 1\ndef f(x, y):\n    return mx.exp(x) * y + STEP\n",
        IMPORT
        + "def f(x, y):\n    return x\ndef g(on=-(2.5)):\n    if -on:\n        return mx.compile(f)\n    return f\n",
    ],
    ids=[
        "empty",
        "blank",
        "form feeds",
        "long",
        "1,000 operators",
        "150 parens",
        "90 ifs",
        "900 calls",
        "recursion",
        "for*",
        "a float that is shifted",
        "a condition that is a negative number",
    ],
)
def test_odd_text_is_analysed_or_given_up_quietly(fuselint: Run, tmp_path: Path, good: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    ran = fuselint("check", "--output-format", "concise", "--verbose")
    assert GOOD in codes(ran)
    assert ran.code == 1, ran.err
    assert "internal error" not in ran.err


@pytest.mark.slow
def test_a_file_of_20000_lines(fuselint: Run, tmp_path: Path, good: Path) -> None:
    body = "".join(f"def f{n}(x, w):\n    y = mx.exp(x)\n    return y @ w\n\n\n" for n in range(4_000))
    (tmp_path / "long.py").write_text(IMPORT + body)
    ran = fuselint("check", "--output-format", "concise")
    assert codes(ran) == [GOOD]
    assert "4002 functions" in ran.err or "4001 functions" in ran.err


@pytest.mark.parametrize(
    ("text", "data"),
    [
        (NORM.replace("\n", "\r\n"), None),
        (NORM.replace("    ", "\t"), None),
        ("# coding: latin-1\n# Caf\xe9\n" + NORM, ("# coding: latin-1\n# Caf\xe9\n" + NORM).encode("latin-1")),
        ("\ufeff" + NORM, None),
        (NORM.replace("class", "\f\nclass"), None),
        (NORM.removesuffix("\n"), None),
        ("# 名前 𝕏\n" + NORM.replace("dims: int", "größe: int").replace("(dims,)", "(größe,)"), None),
    ],
    ids=["crlf", "tabs", "latin-1", "bom", "form feeds", "no newline at the end", "wide"],
)
def test_a_fix_keeps_every_other_byte(fuselint: Run, tmp_path: Path, text: str, data: bytes | None) -> None:
    path = tmp_path / "norm.py"
    before = data if data is not None else text.encode()
    path.write_bytes(before)
    assert fuselint("fix", "--apply", "--no-verify").code == 0
    after = path.read_bytes()
    assert b"return mx.fast.rms_norm(x, self.weight, self.eps)" in after
    head = before.partition(b"def __call__(self, x):")[0]
    assert after.startswith(head + b"def __call__(self, x):")
    assert after.endswith(b"\n") == before.endswith(b"\n")
    assert after.count(b"\r\n") == (after.count(b"\n") if b"\r\n" in before else 0)


def test_a_file_that_vanishes_costs_one_line(tmp_path: Path, good: Path) -> None:
    paths = [str(tmp_path / "gone.py"), str(good)]
    gone, done = check_paths(paths, Settings())
    assert [f.code for f in gone.findings] == ["FUS000"] and "no such file" in gone.findings[0].message
    assert [f.code for f in done.findings] == ["FUS201"]
    fixed = fix_paths(paths, Settings(), write=True)
    assert [f.code for f in fixed[0].remaining.findings] == ["FUS000"]
    assert "mx.fast.rms_norm" in good.read_text()


@pytest.mark.skipif(os.geteuid() == 0 and not hasattr(os, "chmod"), reason="needs file modes")
def test_a_read_only_file_costs_one_line(fuselint: Run, tmp_path: Path, good: Path) -> None:
    locked = tmp_path / "locked.py"
    locked.write_text(NORM)
    locked.chmod(0o444)
    ran = fuselint("fix", "--apply", "--no-verify")
    assert ran.code == 2
    assert "locked.py: can't be written: the file is read-only" in ran.err
    assert "1 fix written to 1 file" in ran.err
    assert locked.read_text() == NORM and "mx.fast.rms_norm" in good.read_text()


def test_a_link_that_loops_costs_one_line(fuselint: Run, tmp_path: Path, good: Path) -> None:
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "round").symlink_to(tmp_path)
    ran = fuselint("check", "--output-format", "concise")
    assert codes(ran) == [GOOD]
    assert sum("loop.py" in line for line in ran.err.splitlines()) == 1
    ran = fuselint("check", "loop.py")
    assert ran.code == 2 and "loop.py" in ran.err and len(ran.err.splitlines()) == 1


def test_a_link_is_fixed_where_it_points(fuselint: Run, tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text(NORM)
    (tmp_path / "link.py").symlink_to("real.txt")
    assert fuselint("fix", "link.py", "--apply", "--no-verify").code == 0
    assert (tmp_path / "link.py").is_symlink() and "mx.fast.rms_norm" in real.read_text()


def test_no_arguments_mean_the_current_folder(fuselint: Run, good: Path) -> None:
    assert codes(fuselint("check", "--output-format", "concise")) == [GOOD]


def test_an_empty_folder_is_clean(fuselint: Run) -> None:
    ran = fuselint("check")
    assert ran.code == 0 and ran.err.startswith("0 files; ")


def again_and_again(first: str, line: str, last: str, times: int = 60) -> str:
    body = "".join(f"    {line}\n" for _ in range(times))
    return f"import mlx.core as mx\n\n\ndef f(x):\n    {first}\n{body}    return {last}\n"


DOUBLED = {
    "number": again_and_again("n = 3", "n = n * n", "mx.exp(x) * x * n"),
    "array": again_and_again("y = x * 3", "y = y * y", "mx.exp(y) * x"),
    "power": again_and_again("y = x * 3", "y = y ** 9", "mx.exp(y) * x"),
    "axis": again_and_again("y = x", "y = mx.concatenate([y, y], axis=0)", "mx.exp(y) * y"),
    "list": again_and_again("t = [x, x]", "t = t + t", "mx.exp(t[0]) * x"),
    "tuple": again_and_again("t = (x, x)", "t = (*t, *t)", "mx.exp(t[0]) * x"),
    "text": again_and_again("s = 'ij'", "s = s + s", "mx.einsum(s, x) * mx.exp(x)"),
    "rebound constant": "N = 7\n" + "N = N * N\n" * 60 + again_and_again("pass", "pass", "mx.exp(x) * x * N", 1),
    "constants": "N0 = 10 ** 60\n"
    + "".join(f"N{i + 1} = N{i} * N{i}\n" for i in range(60))
    + again_and_again("pass", "pass", "mx.exp(x) * x * N60", 1),
    "literals": again_and_again(
        "t = [x] * 10**9", "x = x.reshape(2**10**9, -1)", "x * t[5] * (9**9**9) * (1 << 10**12)", 1
    ),
}
HALVES = again_and_again(
    "y = x", "a, b = mx.split(x, 2, -1); x = x * y + mx.concatenate([-b, a], -1) * y", "mx.exp(x) * y"
)


@pytest.mark.parametrize(
    "texts", [DOUBLED, pytest.param({"halves": HALVES}, marks=pytest.mark.slow)], ids=["one by one", "halves"]
)
def test_what_doubles_again_and_again_has_an_end(texts: dict[str, str]) -> None:
    """In a process of its own, of a gigabyte at most: where it had none, it took all memory."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
    code = limit if sys.platform == "linux" else ""
    code += "import json, sys\nfrom fuselint.api import check_source\nfor name, text in json.load(sys.stdin).items():\n"
    code += "    print(name, check_source(text).errors)"
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(texts), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == [f"{name} ()" for name in texts] and not done.stderr


def test_a_long_file_beside_is_not_read(fuselint: Run, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LARGEST", 10_000)
    (good.parent / "data.py").write_text(IMPORT + "x = 1\n" * 5000)
    assert codes(fuselint("check", "zz_good.py", "--output-format", "concise")) == [GOOD]
    said = fuselint("check", "--output-format", "concise").out
    assert "data.py:1:1: FUS000 has 0 MB; files above 0 MB are not analysed" in said and "zz_good.py" in said
    assert content(str(good.parent / "data.py")) is None
    assert Package().others_read(str(good))("whatever"), "what it reads is not known"


def test_a_number_of_too_many_digits(fuselint: Run, good: Path) -> None:
    good.write_text(NORM + f"\nN = {'9' * 5000}\n")
    assert "FUS000 holds a number of more digits than Python reads" in fuselint("check").out


def test_links_that_lead_out_of_a_folder_are_not_followed(fuselint: Run, tmp_path: Path) -> None:
    """A repository must not have others changed, or shown. Who names the link wants it."""
    outside, inside = tmp_path / "outside.py", tmp_path / "repository"
    outside.write_text(NORM)
    (inside / "sub").mkdir(parents=True)
    (inside / "sub" / "out.py").symlink_to(outside)
    (inside / "sub" / "real.py").write_text(NORM)
    (inside / "within.py").symlink_to(inside / "sub" / "real.py")
    ran = fuselint("fix", "repository", "--apply", "--no-verify")
    assert outside.read_text() == NORM and "out.py: skipped: a link that leads out of repository" in ran.err
    assert "mx.fast.rms_norm" in (inside / "sub" / "real.py").read_text() and (inside / "within.py").is_symlink()
    assert fuselint("fix", "repository/sub/out.py", "--apply", "--no-verify").code == 0
    assert "mx.fast.rms_norm" in outside.read_text()


LONG = 40_000


@pytest.mark.parametrize(
    "text",
    [
        NORM + "#" * LONG * 20 + "\n",
        NORM + "# noqa: x " * LONG + "\n",
        NORM + "# fuselint: ignore[ " * LONG + "\n",
        NORM + '"""mlx ' + "import " * LONG + '"""\n',
        NORM + '"""\n' + "from a import (\n" * LONG + '"""\n',
        NORM + '"""\n' + "@mx.compile\n" * LONG + '"""\n',
    ],
    ids=["#", "noqa", "brackets", "import", "parentheses", "decorators"],
)
def test_patterns_take_the_time_of_one_look(fuselint: Run, tmp_path: Path, text: str) -> None:
    """A pattern that begins anew at each sign took minutes for these."""
    (tmp_path / "pack").mkdir()
    for name in ("__init__.py", "a.py"):
        (tmp_path / "pack" / name).write_text(text)
    begun = time.process_time()
    assert fuselint("check", "pack", "--no-cache", "--select", "FUS201").code == 1
    assert time.process_time() - begun < 30


def test_a_function_of_a_megabyte_is_given_up(fuselint: Run, tmp_path: Path, good: Path) -> None:
    (tmp_path / "long.py").write_text(
        IMPORT + "def f(x):\n    s = '" + "a" * 1_000_000 + "'\n    return mx.exp(x) * x * 2\n"
    )
    ran = fuselint("check", "--output-format", "concise", "--verbose")
    assert codes(ran) == [GOOD] and "long.py: f: not understood" in ran.err and "1,000,0" in ran.err


BIG = f"0x{'F' * 6000}"


@pytest.mark.parametrize(
    "value",
    [
        BIG,
        pytest.param(f"-{BIG}", marks=pytest.mark.slow),
        "9" * 4000,
        f"0x{'F' * 255}",
        "2**1023",
        "1e308 * 10",
        "-1e308",
    ],
    ids=lambda v: v[:12],
)
def test_numbers_that_are_no_floats(fuselint: Run, tmp_path: Path, value: str) -> None:
    text = f"""N = {value}


def f(x: mx.array, y: mx.array, n={value}):
    z = mx.exp(x) * {value} * x + N - n
    z = mx.where(z > 0, z, {value}) + mx.zeros(({value}, {value}))
    return mx.softmax(z * y * {value}, axis={value}) + x[{value}], (x + z) * mx.exp(z) * y
"""
    (tmp_path / "big.py").write_text(IMPORT + text)
    for command in ("check", "explain", "fix", "budget", "report"):
        ran = fuselint(command, f"big.py{':8' * (command == 'explain')}")
        assert ran.code in (0, 1) and "internal error" not in ran.out + ran.err, ran.err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize(
    "names",
    [["a.py", ".gitignore", "pyproject.toml"], ["fuselint.toml", "__init__.py", ".fuselint-baseline.json"]],
    ids=" ".join,
)
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path, good: Path, names: list[str]) -> None:
    for name in names:
        os.mkfifo(tmp_path / name)
    command = [sys.executable, "-m", "fuselint", "check", "--output-format", "concise"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "zz_good.py:14:16: FUS201" in done.stdout and ("a.py:1:1: FUS000" in done.stdout) == ("a.py" in names)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device without an end")
@pytest.mark.parametrize("key", ["facts", "model-config", "extend"])
def test_a_device_that_a_configuration_names_is_not_read(fuselint: Run, tmp_path: Path, good: Path, key: str) -> None:
    (tmp_path / "fuselint.toml").write_text(f'{key} = "/dev/zero"\n')
    ran = fuselint("check")
    assert ran.code == 2 and "/dev/zero" in ran.err and len(ran.err.splitlines()) == 1
