"""Whatever is done to any file of a package, a kept result says what an analysis would say."""

from __future__ import annotations

import ast
import os
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fuselint.engine as engine
from fuselint import world as worlds
from fuselint.cache import check_paths
from fuselint.config import Settings
from fuselint.finding import FileResult
from fuselint.package import Package
from fuselint.source.modules import Definition
from fuselint.source.notes import Notes

SETTINGS = Settings()
HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n"

FILES = {
    "pack/__init__.py": "from .model import Model\nfrom .steps import *\n",
    "pack/arguments.py": """from dataclasses import dataclass

from common.numbers import SMALL


@dataclass
class Arguments:
    dim: int = 64
    eps: float = SMALL
    scale: float = 1.0
    bias: bool = False

    def __post_init__(self):
        self.heads = self.dim // 16
""",
    "pack/helpers.py": HEAD
    + """from common import numbers


def factor(x: mx.array) -> mx.array:
    return mx.ones((x.shape[-1],)) * numbers.SMALL


def angles(n: int, d: int):
    freqs = mx.power(10000.0, -mx.arange(0, d, 2) / d)
    t = mx.arange(n)[:, None] * freqs
    return mx.cos(t), mx.sin(t)


def flatten(x):
    return x.reshape(-1, x.shape[-1])
""",
    "pack/norms.py": HEAD
    + """
from .helpers import factor


class Base(nn.Module):
    eps = 1e-6

    def scaled(self, x: mx.array) -> mx.array:
        return x * factor(x)


def _square(x):
    return x * x


class Norm(Base):
    def __init__(self, dims, eps):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        y = x * mx.rsqrt(mx.mean(_square(x), axis=-1, keepdims=True) + self.eps)
        return self.weight * y
""",
    "pack/attention.py": HEAD
    + """
from .arguments import Arguments
from .helpers import angles, flatten
from .norms import Base, Norm


class Attention(Base):
    def __init__(self, args: Arguments):
        super().__init__()
        self.q = nn.Linear(args.dim, args.dim, bias=args.bias)
        self.k = nn.Linear(args.dim, args.dim, bias=args.bias)
        self.v = nn.Linear(args.dim, args.dim, bias=args.bias)
        self.heads = args.heads
        self.scale = args.scale
        self.norm = Norm(args.dim, args.eps)

    def __call__(self, x, cos, sin, mask=None):
        B, L, D = x.shape
        q = self.q(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        k = self.k(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        v = self.v(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
        q = q * mx.concatenate([cos, cos], axis=-1)
        scores = (q * self.scale) @ k.swapaxes(-1, -2)
        if mask is not None:
            scores = scores + mask
        out = mx.softmax(scores.astype(mx.float32), axis=-1).astype(scores.dtype) @ v
        return self.scaled(flatten(out))
""",
    "pack/feed.py": HEAD
    + """

class Feed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, dim)
        self.up = nn.Linear(dim, dim)

    def __call__(self, x):
        return nn.silu(self.gate(x)) * self.up(x)


class Projector(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.feed = Feed(dim)
        self.gate = nn.Linear(dim, dim)

    def __call__(self, x):
        return mx.sigmoid(self.gate(x)) * mx.tanh(x) + self.feed(x)
""",
    "pack/model.py": HEAD
    + """
from .arguments import Arguments
from .attention import Attention
from .feed import Feed, Projector
from .helpers import angles
from .norms import Norm


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.attention = Attention(args)
        self.feed = Feed(args.dim)
        self.norm = Norm(args.dim, args.eps)

    def __call__(self, x, cos, sin, mask):
        x = x + self.attention(self.norm(x), cos, sin, mask)
        return x + self.feed(self.norm(x))


class Model(nn.Module):
    def __init__(self, args: Arguments, n=4):
        super().__init__()
        self.layers = [Block(args) for _ in range(n)]
        self.projector = Projector(args.dim)

    def __call__(self, x, mask=None):
        cos, sin = angles(x.shape[1], 16)
        cos = cos.astype(mx.bfloat16)
        x = self.projector(x)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return x
""",
    "pack/steps.py": HEAD
    + """
__all__ = ["smooth", "swing"]


def smooth(x: mx.array, y: mx.array) -> mx.array:
    return mx.sigmoid(x) * mx.tanh(y) * y + x


def swing(x: mx.array, eps=1e-5) -> mx.array:
    z = smooth(x, x)
    return (z - mx.mean(z, axis=-1, keepdims=True)) * mx.rsqrt(mx.var(z, axis=-1, keepdims=True) + eps)


def seldom(x: mx.array, y: mx.array) -> mx.array:
    return mx.exp(x) * mx.tanh(y) * y + x
""",
    "pack/train.py": """import mlx.core as mx

from . import steps
from .model import Model
from .steps import smooth

fast = mx.compile(smooth)


def run(model: Model, x):
    for _ in range(10):
        x = fast(x, model(x))
        x = steps.swing(x)
    return x
""",
    "pack/tests/test_steps.py": "from pack.steps import seldom\n\n\ndef test_it(x):\n    seldom(x, x)\n",
    "common/__init__.py": "",
    "common/numbers.py": "SMALL = 1e-5\n",
}

ADDED = {
    "pack/extra.py": [
        "from .steps import seldom\n\n\ndef f(x):\n    for _ in range(3):\n        x = seldom(x, x)\n    return x\n",
        "import mlx.core as mx\nfrom .steps import swing\n\ng = mx.compile(swing)\n",
        "from .norms import _square\nfrom .helpers import flatten\n\nprint(_square, flatten(1))\n",
        "from .attention import Attention\nclass Own(Attention):\n    def scaled(self, x):\n        return x\n",
        "import mlx.core as mx\nfrom .feed import Projector\nfrom .arguments import Arguments\n\n"
        "a = Arguments(dim=8, eps=2.0, scale=3)\np = [Projector(8) for _ in range(9)]\n",
    ],
    "pack/helpers/__init__.py": [HEAD + "def factor(x):\n    return 2.0\n"],
    "pack/tests/__init__.py": [""],
    "common/extra.py": ["from pack.steps import smooth\nfrom pack.norms import Norm\nn = Norm(3, 2.0)\n"],
    "__init__.py": [""],
    "numbers.py": ["SMALL = 7\n"],
    "common/numbers/__init__.py": ["SMALL = None\n"],
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(worlds, "SETTLED", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    for name, text in FILES.items():
        write(Path(name), text)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    past = time.time() - 1000 + random.Random(text).random()
    os.utime(path, (past, past))


def paths() -> list[str]:
    return sorted(os.fspath(p) for p in Path("pack").rglob("*.py"))


def bare(result: FileResult) -> FileResult:
    return replace(result, reads=(), basis=())


def cached() -> dict[str, FileResult]:
    return {r.path: bare(r) for r in check_paths(paths(), SETTINGS, 1, Path("cache"))}


def fresh() -> dict[str, FileResult]:
    return {r.path: bare(r) for r in check_paths(paths(), SETTINGS, 1, None)}


Edit = tuple[str, str | None]
"""A file, and its text then; None for none."""


def edits() -> Iterator[Edit]:
    """Each file deleted, emptied, broken, and without each of its statements; each constant another; files added."""
    for name, text in FILES.items():
        yield from ((name, None), (name, ""), (name, text + "\ndef (:\n"))
        yield from ((name, changed) for changed in without_a_statement(text))
        yield from ((name, changed) for changed in with_another_constant(text))
    for name, texts in ADDED.items():
        yield from ((name, text) for text in texts)


def without_a_statement(text: str) -> Iterator[str]:
    bodies = [
        n.body for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.For))
    ]
    lines = text.splitlines(keepends=True)
    for stmt in (s for body in bodies for s in body):
        indent = " " * stmt.col_offset
        yield "".join([*lines[: stmt.lineno - 1], f"{indent}pass\n", *lines[stmt.end_lineno :]])


def with_another_constant(text: str) -> Iterator[str]:
    lines = text.splitlines(keepends=True)
    for n in ast.walk(ast.parse(text)):
        if isinstance(n, ast.Constant) and n.value is not None and n.lineno == n.end_lineno:
            line = lines[n.lineno - 1]
            new = {True: "False", False: "True"}.get(n.value, "3" if n.value != 3 else "4")  # type: ignore[arg-type]
            new = repr("run") if isinstance(n.value, str) else new
            changed = line[: n.col_offset] + new + line[n.end_col_offset :]
            yield "".join([*lines[: n.lineno - 1], changed, *lines[n.lineno :]])


def made(edit: Edit) -> None:
    name, text = edit
    path = Path(name)
    if text is None:
        path.unlink(missing_ok=True)
    elif not path.parent.is_file():
        write(path, text)


def undone(edit: Edit) -> None:
    path = Path(edit[0])
    if edit[0] in FILES:
        write(path, FILES[edit[0]])
    else:
        path.unlink(missing_ok=True)
        if path.parent.name in ("helpers", "numbers"):
            path.parent.rmdir()


@pytest.mark.slow
def test_what_is_kept_is_what_an_analysis_says_after_any_edit(root: Path) -> None:
    chosen = random.Random(5).sample(list(edits()), 16)
    differed = 0
    whole = cached()
    for edit in chosen:
        made(edit)
        now = fresh()
        assert cached() == now, edit
        differed += any(whole.get(p) != r for p, r in now.items() if p != edit[0])
        undone(edit)
    assert cached() == whole == fresh()
    assert differed > 1, "an edit changes what is said of other files"


@pytest.mark.slow
def test_edits_that_pile_up(root: Path) -> None:
    chosen = random.Random(6)
    cached()
    for edit in chosen.sample(list(edits()), 8):
        made(edit)
        assert cached() == fresh(), edit


def test_a_file_that_appears_in_another_package(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that rests on the files of a package of which none is checked."""
    found = Definition(os.path.abspath("common/numbers.py"), "SMALL")

    def check(task: tuple[str, Settings, Package]) -> FileResult:
        modules = task[2].modules()
        with modules.noting() as notes:
            users = modules.users(found)
        return FileResult(task[0], functions=len(users), reads=tuple(notes.items()), basis=notes.of_questions())

    monkeypatch.setattr(engine, "_check", check)
    for _ in range(3):
        assert cached() == fresh()
    for name in ("one", "two"):
        write(Path(f"common/{name}.py"), "from .numbers import SMALL\n")
        assert cached() == fresh()
    write(Path("common/inner/__init__.py"), "from ..numbers import SMALL\n")
    assert cached() == fresh() and {r.functions for r in fresh().values()} == {3}


def analysed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are analysed from now on, in order."""
    names: list[str] = []
    original = engine._check

    def check(task: tuple[str, Settings, Package]) -> FileResult:
        names.append(task[0])
        return original(task)

    monkeypatch.setattr(engine, "_check", check)
    return names


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions about whole packages that are asked again from now on, in order."""
    questions: list[str] = []
    original = Package.answer

    def answer(self: Package, question: str) -> Notes:
        questions.append(question)
        return original(self, question)

    monkeypatch.setattr(Package, "answer", answer)
    return questions


def edited(name: str, old: str, new: str) -> Edit:
    assert old in FILES[name]
    return name, FILES[name].replace(old, new)


APART = (
    HEAD
    + """

class Apart(nn.Module):
    def __call__(self, x, y):
        scale = y.shape[-1] ** -0.5
        return mx.sigmoid(x) * mx.tanh(y) * y + 1.5 * scale


def gate(x, y):
    return mx.exp(x) * mx.tanh(y) * y + x
"""
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.5", "2.5"),
        ("mx.tanh(y) * y + x", "mx.sin(y) * y + x"),
        ("        return mx.sig", "        # a comment\n        return mx.sig"),
        (HEAD, f'"""What stands apart."""\n\n{HEAD}'),
        ("-0.5", "-0.25"),
    ],
)
def test_an_edit_that_others_see_nothing_of(root: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    write(Path("pack/apart.py"), APART)
    cached()
    again, questions = analysed(monkeypatch), asked(monkeypatch)
    assert old in APART
    write(Path("pack/apart.py"), APART.replace(old, new))
    now = cached()
    assert again == ["pack/apart.py"]
    assert not questions
    assert now == fresh()


@pytest.mark.parametrize(
    ("before", "after", "is_seen"),
    [
        ('"""Angles of each place."""', '"""The angles at each place."""', False),
        ('"""Angles of each place."""', "'Angles.'", False),
        ('"""Angles.\n\n    d: a size.\n    """', '"""Angles.\n\n    d: the size.\n    """', False),
        ('"""Angles.\n\n    n: float16 array.\n    """', '"""Angles.\n\n    n: float32 array.\n    """', True),
        ('"""Angles.\n\n    n: an array.\n    """', '"""Angles.\n\n    n: float32 array.\n    """', True),
        ('"""Angles."""', 'f"""{n}"""', True),
        ('f"""{n}"""', 'f"""{(n := 2)}"""', True),
        ('"""Angles."""', "n = 4", True),
        ('note = "Angles"', 'note = "angles"', True),
    ],
)
def test_a_docstring_that_says_no_dtype(
    root: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, is_seen: bool
) -> None:
    """Of a function that another file inlines."""
    head = "def angles(n: int, d: int):\n"
    name, text = edited("pack/helpers.py", head, f"{head}    {before}\n")
    assert text is not None
    write(Path(name), text)
    cached()
    again = analysed(monkeypatch)
    write(Path(name), text.replace(before, after))
    now = cached()
    assert ("pack/model.py" in again) == is_seen
    assert now == fresh()


def test_an_edit_that_answers_rest_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who calls a function is asked again; who is told the same is not analysed again."""
    write(Path("pack/apart.py"), APART)
    cached()
    again, questions = analysed(monkeypatch), asked(monkeypatch)
    write(Path("pack/apart.py"), f"{APART}\n\ndef smooth(swing):\n    return swing(gate)\n")
    now = cached()
    assert {q.rpartition(":")[2] for q in questions} >= {"smooth", "swing"}
    assert again == ["pack/apart.py"]
    assert now == fresh()


SHADOWS = [
    edited("pack/train.py", "    for _ in range(10):", "    steps = model\n    for _ in range(10):"),
    edited("pack/train.py", "    for _ in range(10):", "    from .feed import Feed as steps\n    for _ in range(10):"),
    edited("pack/train.py", "def run(model: Model, x):", "def run(model: Model, x, fast, steps=None):"),
    edited("pack/model.py", "        cos, sin = angles(", "        angles = tuple\n        cos, sin = angles("),
    edited("pack/model.py", "        self.layers = [", "        Block = list\n        self.layers = ["),
    edited("pack/norms.py", "        y = x * mx", "        _square = abs\n        y = x * mx"),
    edited("pack/attention.py", "        self.norm = Norm(", "        Norm = dict\n        self.norm = Norm("),
    edited("pack/steps.py", "    z = smooth(x, x)", "    smooth = max\n    z = smooth(x, x)"),
]


@pytest.mark.parametrize("edit", SHADOWS)
def test_a_function_that_binds_a_name_itself(root: Path, edit: Edit) -> None:
    """The names that it reads are others then, though nothing else of them is."""
    whole = cached()
    made(edit)
    assert cached() == fresh()
    undone(edit)
    assert cached() == whole


CALLED = (
    HEAD
    + """

def spread(x: mx.array, y: mx.array) -> mx.array:
    return mx.sigmoid(x) * mx.tanh(y) * y + x
"""
)
COMPILES = "import mlx.core as mx\n\nfrom .called import spread\n\nfast = mx.compile(spread)\n"
CALLS = "from .called import spread\n\n\ndef other(x):\n    # spread(x, x)\n    print(x)\n    return 1\n"


def test_a_call_more_in_a_function_that_others_know(root: Path) -> None:
    """Nothing else is new: no word, no import, no name."""
    for name, text in (("called", CALLED), ("compiles", COMPILES), ("calls", CALLS)):
        write(Path(f"pack/{name}.py"), text)
    compiled = cached()["pack/called.py"]
    write(Path("pack/calls.py"), CALLS.replace("    print(x)\n", "    print(x)\n    spread(x, x)\n"))
    both = cached()
    assert both == fresh()
    assert both["pack/called.py"] != compiled


KNOWN = [
    ("pack/helpers.py", "\n\ndef more(x):\n    return x + 1\n", ""),
    ("pack/norms.py", "\n\nclass More(Base):\n    pass\n", ""),
    ("pack/helpers.py", "def flatten(x):\n", "def flatten(x):\n    # a comment\n\n"),
    ("pack/helpers.py", HEAD, f'"""What helps."""\n\n{HEAD}'),
    ("pack/model.py", "\n\ndef more(x):\n    return x + 1\n", ""),
]


@pytest.mark.parametrize(("name", "old", "new"), KNOWN)
def test_what_nobody_reads_of_a_file_that_all_read(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    cached()
    again = analysed(monkeypatch)
    write(Path(name), FILES[name].replace(old, new) if new else FILES[name] + old)
    now = cached()
    assert again == [name]
    assert now == fresh()


def test_a_line_that_is_shown_of_a_file_that_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shows it is analysed again, and nobody else who reads the file."""
    whole = cached()
    shown = [p for p, r in whole.items() if p != "pack/helpers.py" and "helpers.py" in repr(r.findings)]
    again = analysed(monkeypatch)
    write(Path("pack/helpers.py"), FILES["pack/helpers.py"].replace(HEAD, f"{HEAD}\n"))
    now = cached()
    assert sorted(again) == sorted({*shown, "pack/helpers.py"})
    assert now == fresh()


OUTSIDE = [
    edited("common/numbers.py", "1e-5", "1e-6"),
    ("common/numbers.py", None),
    ("common/numbers/__init__.py", "SMALL = 3.0\n"),  # instead of the file beside it
    ("pack/common.py", "numbers = None\n"),
    ("pack/common/__init__.py", ""),
    ("common/more.py", "from .numbers import SMALL\n"),
    ("common/__init__.py", "numbers = None\n"),
    ("src/common/numbers.py", "SMALL = 2.0\n"),
]


@pytest.mark.parametrize("edit", OUTSIDE)
def test_a_file_of_another_package_is_another(root: Path, edit: Edit) -> None:
    """Also where it appears in a place that comes before the one that was found."""
    whole = cached()
    made(edit)
    assert cached() == fresh()
    path = Path(edit[0])
    if edit[0] in FILES:
        write(path, FILES[edit[0]])
    else:
        path.unlink()
        for folder in [p for p in path.parents if p.name and p.is_dir() and not any(p.iterdir())]:
            folder.rmdir()
    assert cached() == whole


def both() -> list[str]:
    return sorted(os.fspath(p) for p in [*Path("pack").rglob("*.py"), *Path("other").rglob("*.py")])


@pytest.mark.slow
def test_two_packages_in_one_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in one of them matters to the other where that imports it, and nowhere else."""
    for name, text in FILES.items():
        if name.startswith("pack/"):
            write(Path("other") / name.removeprefix("pack/"), text.replace("from pack.", "from other."))
    write(
        Path("other/user.py"),
        HEAD + "from pack.helpers import flatten\n\n\ndef f(x, y):\n    z = flatten(x)\n    "
        "return mx.sigmoid(z) * mx.tanh(y) * z\n",
    )

    def of_both(folder: Path | None) -> dict[str, FileResult]:
        return {r.path: bare(r) for r in check_paths(both(), SETTINGS, 1, folder)}

    of_both(Path("cache"))
    again = analysed(monkeypatch)
    for edit in (
        edited("pack/helpers.py", "x.reshape(-1, x.shape[-1])", "x.reshape(-1, 8)"),
        edited("pack/feed.py", "self.up = nn", "self.down = nn"),
        ("pack/extra.py", "from .steps import seldom\nseldom(1, 2)\n"),
    ):
        made(edit)
        again.clear()
        now = of_both(Path("cache"))
        others = {p for p in again if p.startswith("other")}
        assert others == ({"other/user.py"} if edit[0] == "pack/helpers.py" else set())
        assert now == of_both(None)


def test_a_doubt_that_a_run_does_not_need_stays_for_the_next(root: Path) -> None:
    cached()
    made(edited("pack/train.py", "x = steps.swing(x)", "pass"))
    for part in (["pack/feed.py"], ["pack/train.py"]):
        list(check_paths(part, SETTINGS, 1, Path("cache")))
    assert cached() == fresh()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_parts_of_a_package_and_other_settings_in_between(root: Path, seed: int) -> None:
    chosen = random.Random(seed)
    others = [Settings(dtype="float32"), Settings(hot=("smooth",)), Settings(cold=("swing",))]
    for edit in chosen.sample(list(edits()), 5):
        made(edit)
        some = chosen.sample(paths(), len(paths()) // 2)
        for settings in [SETTINGS, *chosen.sample(others, 1)]:
            kept = {r.path: bare(r) for r in check_paths(some, settings, 1, Path("cache"))}
            assert kept == {r.path: bare(r) for r in check_paths(some, settings, 1, None)}, (edit, settings)
    assert cached() == fresh()
