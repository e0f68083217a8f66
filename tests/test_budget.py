"""`fuselint budget`: a file that changes where traffic does, and a check that fails where a change raises it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fuselint.budget import FILE
from fuselint.graph.symbols import evaluate
from support import NORM, PLAIN, Ran

Run = Callable[..., Ran]

FUSED = """\
import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        return mx.fast.rms_norm(x, self.weight, self.eps)
"""
OTHER = """\
def other(x: mx.array, y: mx.array):
    a = mx.exp(x) * y
    b = mx.tanh(a)
    return mx.softmax(b, axis=-1)
"""
HEAD = "import mlx.core as mx\n\n\n"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(FUSED)
    return path


def entries(folder: Path) -> dict[str, dict[str, object]]:
    data = json.loads((folder / FILE).read_text())
    return {f"{file}:{name}": e for file, listed in data["functions"].items() for name, e in listed.items()}


def test_a_budget_holds_bytes_and_launches_of_each_function(fuselint: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    ran = fuselint("budget")
    assert ran == Ran(0, "", f"2 functions: 2 new; written to {FILE}\n")
    norm = entries(tmp_path)["model.py:Norm.__call__"]
    assert (norm["launches"], norm["formula"], norm["at"]) == (1, "4*T*D", {"D": 4096, "T": 2048})
    assert norm["bytes"] == 4 * 2048 * 4096
    text = (tmp_path / FILE).read_text()
    assert fuselint("budget").code == 0 and (tmp_path / FILE).read_text() == text
    assert len([line for line in text.splitlines() if "__call__" in line]) == 1  # one line a function
    assert fuselint("budget", "--check") == Ran(0, "", "2 functions: none changed\n")


def test_a_change_that_raises_fails_and_names_its_lines(fuselint: Run, model: Path, tmp_path: Path) -> None:
    fuselint("budget")
    before = (tmp_path / FILE).read_text()
    model.write_text(NORM)
    ran = fuselint("budget", "--check")
    assert ran.code == 1
    first, *lines = ran.out.splitlines()
    assert first == (
        "model.py:11 Norm.__call__: raised: 1 launch, 33.6 MB -> 9 launches, 302 MB"
        " [4*T*D -> 36*T*D bytes at D=4096 T=2048 (D of a typical model)]"
    )
    assert [line.split(": ")[0].strip() for line in lines] == ["model.py:12", "model.py:13", "model.py:14"]
    assert lines[1].startswith("  model.py:13: 6 launches more, ") and lines[1].endswith(
        ": h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)"
    )
    assert "1 function: 1 raised; `fuselint budget` accepts it" in ran.err
    assert (tmp_path / FILE).read_text() == before
    assert fuselint("budget").code == 0  # accepted
    assert fuselint("budget", "--check").code == 0


def test_a_change_that_lowers_passes_and_update_keeps_it(fuselint: Run, model: Path, tmp_path: Path) -> None:
    model.write_text(NORM)
    fuselint("budget")
    before = (tmp_path / FILE).read_text()
    model.write_text(FUSED)
    ran = fuselint("budget", "--check")
    assert ran.code == 0 and ": lowered: 9 launches, 302 MB -> 1 launch, 33.6 MB" in ran.out
    assert (tmp_path / FILE).read_text() == before
    assert fuselint("budget", "--check", "--update").code == 0
    model.write_text(NORM)
    assert fuselint("budget", "--check", "--update").code == 1  # the ratchet holds: raises are never written
    assert entries(tmp_path)["model.py:Norm.__call__"]["launches"] == 1


def test_one_more_kernel_among_many_is_found(fuselint: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(HEAD + OTHER)
    fuselint("budget")
    path.write_text(HEAD + "# a comment\n" + OTHER.replace("    b = ", "    a = mx.maximum(a, 0)\n    b = "))
    ran = fuselint("budget", "--check")
    assert ran.code == 1
    assert ran.out.splitlines()[1:] == ["  m.py:7: 1 launch more, 33.6 MB more: a = mx.maximum(a, 0)"]


def test_more_bytes_in_as_many_launches_are_found(fuselint: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.py"
    path.write_text(HEAD + OTHER)
    fuselint("budget")
    path.write_text(HEAD + OTHER.replace("mx.tanh(a)", "a.astype(mx.float32)"))
    ran = fuselint("budget", "--check")
    assert ran.code == 1 and "raised: 4 launches, 151 MB -> 4 launches, 201 MB" in ran.out
    assert ran.out.splitlines()[1:] == [
        "  m.py:6: 1 launch more, 50.3 MB more: b = a.astype(mx.float32)",
        "  m.py:7: 33.6 MB more: return mx.softmax(b, axis=-1)",
    ]


HELPER = """\
def gate(x: mx.array, y: mx.array):
    return nn.silu(x) * y
"""
COMPILED = HELPER.replace("def gate", "@partial(mx.compile, shapeless=True)\ndef gate")


def test_helpers_of_other_files_count_where_they_are_called(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    helpers = tmp_path / "pack" / "helpers.py"
    head = "from functools import partial\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"
    helpers.write_text(head + COMPILED)
    call = "from .helpers import gate\n\n\ndef f(x: mx.array, y: mx.array):\n    z = gate(x, y)\n    return mx.exp(z)\n"
    (tmp_path / "pack" / "model.py").write_text(f"import mlx.core as mx\n\n{call}")
    assert fuselint("budget").code == 0
    entry = entries(tmp_path)["pack/model.py:f"]
    assert (entry["launches"], entry["bytes"]) == (2, 2 * 2048 * 4096 * (3 + 2))
    helpers.write_text(head + HELPER)
    ran = fuselint("budget", "--check")
    assert ran.code == 1
    assert "pack/model.py:6 f: raised: 2 launches, 83.9 MB -> 3 launches, 117 MB" in ran.out
    assert "  pack/model.py:7: 1 launch more, 33.6 MB more: z = gate(x, y)" in ran.out
    helpers.write_text(head + COMPILED)
    assert fuselint("budget", "--check").code == 0


def test_names_of_other_functions_are_the_same_after_other_calls_came(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        "import mlx.core as mx\n\n\ndef outer(x):\n    return mx.exp(mx.arange(x.shape[0]))[:, None] * mx.exp(x)\n\n\n"
        "def pick(x):\n    return x\n"
    )
    path = tmp_path / "model.py"
    head = "import mlx.core as mx\nfrom helpers import outer, pick\n\n\n"
    path.write_text(f"{head}def f(a, b):\n    return mx.tanh(mx.exp(outer(a)))\n")
    assert fuselint("budget").code == 0
    before = entries(tmp_path)["model.py:f"]
    assert "\N{SECTION SIGN}" not in str(before)
    path.write_text(f"{head}def f(a, b):\n    b = pick(b)\n    return mx.tanh(mx.exp(outer(a)))\n")
    assert fuselint("budget").code == 0
    assert entries(tmp_path)["model.py:f"]["formula"] == before["formula"]


def test_scores_are_as_large_as_queries_times_keys_and_a_mask_as_its_length(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(ATTENTION)
    assert fuselint("budget").code == 0
    found = entries(tmp_path)
    scores = 2 * 32 * 2048 * 2048
    moved = found["model.py:Attention.__call__"]["bytes"]
    assert isinstance(moved, int)
    assert 5 * scores < moved < 7 * scores  # written and read by three kernels
    last = found["model.py:Model.__call__"]["bytes"]
    assert isinstance(last, int)
    assert last < 24 * 2048 * 2048 + 2 * 128256 * (4096 + 2 * 2048) + 10**6  # the mask isn't as wide as a vocabulary


ATTENTION = """\
import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.n_heads = args.num_attention_heads
        self.head_dim = args.hidden_size // args.num_attention_heads
        self.proj = nn.Linear(args.hidden_size, 3 * args.hidden_size, bias=False)

    def __call__(self, x, cache=None):
        q, k, v = mx.split(self.proj(x), 3, axis=-1)
        B, L, _ = q.shape
        q = q.reshape(B, L, self.n_heads, -1).transpose(0, 2, 1, 3)
        k = k.reshape(B, L, self.n_heads, -1).transpose(0, 2, 1, 3)
        v = v.reshape(B, L, self.n_heads, -1).transpose(0, 2, 1, 3)
        if cache is not None:
            k = mx.concatenate([cache[0], k], axis=2)
            v = mx.concatenate([cache[1], v], axis=2)
        return mx.softmax(q @ k.transpose(0, 1, 3, 2), axis=-1) @ v


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.model = Attention(args)
        self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, x, cache=None):
        mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1])
        y = self.model(x, mask.astype(x.dtype), cache)
        return self.lm_head(y)
"""


def test_functions_that_moved_or_were_renamed_are_the_same_ones(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(HEAD + OTHER)
    fuselint("budget")
    (tmp_path / "a.py").unlink()
    (tmp_path / "b.py").write_text(HEAD + OTHER)
    ran = fuselint("budget", "--check")
    assert (ran.code, ran.out) == (0, "b.py:4 other (was a.py other): the same\n")
    (tmp_path / "b.py").write_text(HEAD + OTHER.replace("def other", "def renamed"))
    ran = fuselint("budget", "--check")
    assert (ran.code, ran.out) == (0, "b.py:4 renamed (was a.py other): the same\n")
    raised = OTHER.replace("def other", "def renamed").replace("    b = ", "    a = a + 1\n    b = ")
    (tmp_path / "b.py").write_text(HEAD + raised)
    ran = fuselint("budget", "--check")
    assert ran.code == 1 and "b.py:4 renamed (was a.py other): raised: 4 launches" in ran.out
    fuselint("budget")
    assert list(entries(tmp_path)) == ["b.py:renamed"]


def test_new_and_gone_functions_are_told_and_fail_nothing(fuselint: Run, model: Path, tmp_path: Path) -> None:
    fuselint("budget")
    model.write_text(PLAIN)
    ran = fuselint("budget", "--check")
    assert ran.code == 0
    assert ran.out.splitlines()[0].startswith("model.py:4 double: new: 1 launch, ")
    assert ran.out.splitlines()[1] == "model.py Norm.__call__: gone, or no longer understood"


def test_sizes_are_those_of_the_budget(fuselint: Run, model: Path, tmp_path: Path) -> None:
    """What became the assumption or the setting since changes no comparison."""
    fuselint("budget", "--shape", "T=4,D=8", "--dtype", "f32")
    assert entries(tmp_path)["model.py:Norm.__call__"]["bytes"] == 8 * 4 * 8
    (tmp_path / "pyproject.toml").write_text('[tool.fuselint]\ndtype = "f16"\n[tool.fuselint.shape]\nT = 2048\n')
    assert fuselint("budget", "--check").code == 0
    larger = fuselint("budget", "--check", "--shape", "T=1024")
    assert larger.code == 0 and larger.out == ""
    other = fuselint("budget", "--check", "--dtype", "bf16")
    assert other.code == 2 and "counted in f32, not bf16" in other.err


def test_a_renamed_variable_changes_names_and_nothing_else(fuselint: Run, tmp_path: Path) -> None:
    source = HEAD + "def f(x: mx.array):\n    B, L, D = x.shape\n    return mx.exp(x.reshape(B * L, D)) + 1\n"
    (tmp_path / "m.py").write_text(source)
    fuselint("budget")
    (tmp_path / "m.py").write_text(source.replace("L", "length"))
    ran = fuselint("budget", "--check")
    assert (ran.code, ran.out) == (0, "")


def test_names_that_only_the_graph_has_are_the_same_after_other_code_came(fuselint: Run, tmp_path: Path) -> None:
    source = HEAD + (
        "def f(x: mx.array, n):\n    y = n.project(x)\n"
        "    return mx.exp(mx.tanh(y[..., : n.size()]).reshape(4, n.rows(), -1)) + 1\n"
    )
    (tmp_path / "m.py").write_text(source)
    fuselint("budget")
    before = (tmp_path / FILE).read_text()
    assert "%3" not in before
    (tmp_path / "m.py").write_text(source.replace("    y = ", "    print(x.ndim, n)\n    y = "))
    fuselint("budget")
    assert (tmp_path / FILE).read_text() == before


def test_a_part_is_checked_against_its_part(fuselint: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(HEAD + OTHER.replace("other", name))
    fuselint("budget")
    assert fuselint("budget", "--check", "a.py") == Ran(0, "", "1 function: none changed\n")
    (tmp_path / "a.py").write_text(HEAD + OTHER.replace("other", "a").replace("mx.tanh(a)", "a"))
    fuselint("budget", "a.py")
    assert {k: e["launches"] for k, e in entries(tmp_path).items()} == {"a.py:a": 3, "b.py:b": 4}


def test_a_budget_is_found_from_a_folder_below(fuselint: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.py").write_text(HEAD + OTHER)
    fuselint("budget", "sub")
    assert list(entries(tmp_path)) == ["sub/m.py:other"]
    monkeypatch.chdir(tmp_path / "sub")
    assert fuselint("budget", "--check") == Ran(0, "", "1 function: none changed\n")
    assert fuselint("budget", "--check", "m.py").code == 0


def test_json(fuselint: Run, model: Path) -> None:
    fuselint("budget")
    model.write_text(NORM)
    [change] = json.loads(fuselint("budget", "--check", "--output-format", "json").out)
    assert (change["kind"], change["function"], change["line"]) == ("raised", "Norm.__call__", 11)
    assert change["before"]["launches"] == 1 and change["after"]["launches"] == 9
    assert [line["line"] for line in change["lines"]] == [12, 13, 14]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", f"{FILE}:1:2: not valid JSON: Expecting property name enclosed in double quotes"),
        ("[]", f"{FILE}: it is a list, not an object; write it anew with `fuselint budget`"),
        ('{"functions": {}}', 'has no "dtype"'),
        ('{"functions": {}, "dtype": "f64"}', '"dtype" is "f64", which is none of '),
        ('{"functions": {"m.py": {"f": {"at": {"T": "x"}, "formula": "T"}}}}', '"functions.m.py.f.at.T" is a string'),
        (
            '{"fuselint": "1", "paths": ["."], "dtype": "bf16", "shape": {}, "functions": {"m.py": {"f": {'
            '"launches": 1, "bytes": 2, "formula": "__import__(1)", "at": {}, "lines": {}}}}}',
            '"functions.m.py.f.formula" is no formula of sizes in "at": ',
        ),
    ],
)
def test_a_file_that_is_no_budget_is_an_error(fuselint: Run, model: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / FILE).write_text(text)
    ran = fuselint("budget", "--check")
    assert ran.code == 2 and said in ran.err


def test_without_a_budget_there_is_nothing_to_check(fuselint: Run, model: Path) -> None:
    ran = fuselint("budget", "--check")
    assert ran.code == 2 and f"there is no {FILE} here or above" in ran.err


def test_a_file_that_cannot_be_read_is_an_error_and_nothing_is_written(
    fuselint: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("import mlx.core as mx\ndef f(:\n")
    ran = fuselint("budget")
    assert ran.code == 2 and "broken.py:2" in ran.err and not (tmp_path / FILE).exists()


@pytest.mark.parametrize(
    ("text", "at", "value"),
    [
        ("36*T*D", {"T": 2, "D": 3}, 216),
        ("2*B*x.shape[1] + x.shape[-1] - 1", {"B": 3, "x.shape[1]": 5, "x.shape[-1]": 7}, 36),
        ("4*(H//G)*self.n_heads", {"H": 9, "G": 2, "self.n_heads": 3}, 48),
        ("3*L/2", {"L": 3}, 5),
        ("max(a, b.c)*2", {"a": 1, "b.c": 4}, 8),
        ("L*keys'.shape[2]", {"L": 2, "keys'.shape[2]": 3}, 6),
        ("L*LL", {"L": 2, "LL": 3}, 6),
        ("0", {}, 0),
        ("T//(B//2)", {"T": 8, "B": 1}, 8),
    ],
)
def test_a_printed_formula_has_a_number(text: str, at: dict[str, int], value: int) -> None:
    assert evaluate(text, at) == value


@pytest.mark.parametrize("text", ["T*D", "__import__('os')", "1.5*T", "T**2", "(lambda: 1)()"])
def test_nothing_but_a_formula_is_evaluated(text: str) -> None:
    with pytest.raises(ValueError, match="not a formula"):
        evaluate(text, {"T": 1})


def test_a_file_whose_name_is_no_text(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.py")).write_text(PLAIN)
    assert fuselint("budget").code == 0
    assert "\\udcff.py" in (tmp_path / FILE).read_text()
    assert fuselint("budget", "--check").code == 0
