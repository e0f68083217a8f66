"""Edits as people make them, at random: what is shown with the cache is what is shown without."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from fuselint import world as worlds
from fuselint.cli import main
from tests.test_cache_edits import FILES, HEAD, write

Files = dict[str, str]

MORE = {
    "pack/hub.py": HEAD
    + """
WIDE = 128


def mask_of(n: int, offset: int = 0, window=None):
    rows = mx.arange(offset + n)
    columns = mx.arange(offset, offset + n) if offset else rows
    mask = columns[:, None] >= rows[None]
    if window is not None:
        mask = mask & (columns[:, None] < rows[None] + window)
    return mask


def gated(x: mx.array, y: mx.array) -> mx.array:
    return mx.sigmoid(x) * mx.tanh(y) * y


def flat_of(x: mx.array) -> mx.array:
    return x.reshape(-1, 32)


def doubled(x: mx.array) -> mx.array:
    y = x.astype(mx.float32)
    return mx.concatenate([y, y], axis=1)


def half_of(d: int) -> int:
    return d // 2


class Store:
    step = 256

    def __init__(self, n: int = 0):
        self.offset = n
        self.kept = None

    def update(self, k):
        self.offset += k.shape[1]
        self.kept = k if self.kept is None else mx.concatenate([self.kept, k], axis=1)
        return self.kept

    def make_mask(self, n):
        return mask_of(n, self.offset)
""",
    "pack/one.py": HEAD
    + """
from .hub import Store, gated, half_of, mask_of
from .norms import Norm


class One(nn.Module):
    def __init__(self, d: int = 64):
        super().__init__()
        self.norm = Norm(half_of(d), 1e-5)
        self.store = Store(3)

    def __call__(self, x: mx.array, y: mx.array):
        m = mask_of(x.shape[1], window=8)
        s = mx.where(m, self.store.update(x), 0.0)
        z = gated(self.norm(s), y)
        return z * mx.sigmoid(z) * mx.tanh(y)
""",
    "pack/two.py": HEAD
    + """
from . import hub
from .hub import WIDE, Store
from .one import One


class Two(One):
    def rotate(self, x: mx.array):
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return mx.concatenate([-b, a], axis=-1) * WIDE


def run(x: mx.array, n: int = 3):
    two = Two(WIDE)
    for _ in range(n):
        x = two(x, hub.gated(x, x))
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


step = mx.compile(hub.gated)
""",
    "pack/three.py": HEAD
    + """
from .hub import doubled, flat_of


def flat(x: mx.array, y: mx.array):
    z = flat_of(x)
    return mx.sigmoid(z) * mx.tanh(y) * z


def wide(x: mx.array, y: mx.array):
    z = doubled(x)
    return mx.sigmoid(z) * mx.tanh(y) * z


def both(x: mx.array):
    z = flat_of(doubled(x))
    return (z - mx.mean(z, axis=-1, keepdims=True)) * mx.rsqrt(mx.var(z, axis=-1, keepdims=True) + 1e-5)
""",
}

BLOCKS = """
from .sizes import BIAS, Config, Gate


class {name}MLP(nn.Module):
    def __init__(self, d: int = 32, act: str = "silu"):
        super().__init__()
        self.gate = nn.Linear(d, d)
        self.up = nn.Linear(d, d)
        self.act = act
        self.shared = Gate(d)

    def __call__(self, x):
        if self.act == "tanh":
            return mx.sigmoid(x) * mx.tanh(x) * x
        return nn.silu(self.gate(x)) * self.up(x) + self.shared(x, BIAS)


class {name}(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.layers = [{name}MLP(config.width) for _ in range(config.depth)]

    def __call__(self, x, t=None):
        for layer in self.layers:
            x = layer(x)
        return mx.sigmoid(x) * mx.tanh(x) * x
"""
SOLVED = {
    "pack/__init__.py": "from .pipeline import Pipeline\n",
    "pack/sizes.py": HEAD
    + """
from dataclasses import dataclass

BIAS = mx.array([0.5, 1.0], mx.float32)


@dataclass
class Config:
    width: int
    depth: int = 4
    rotate: str = "half"


class Gate(nn.Module):
    precision = mx.float32

    def __init__(self, d):
        super().__init__()
        self.weight = mx.ones((d,))

    def __call__(self, x, scale):
        y = (x * scale[0]).astype(self.precision)
        return self.norm_of(y, self.weight)

    def norm_of(self, y, w):
        return y * mx.rsqrt(mx.mean(y * y, axis=-1, keepdims=True) + 1e-5) * w
""",
    "pack/encoder.py": HEAD + BLOCKS.format(name="Encoder"),
    "pack/denoiser.py": HEAD + BLOCKS.format(name="Denoiser"),
    "pack/turns.py": HEAD
    + """
def halves(x, cos, sin):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def pairs(x, cos, sin):
    return mx.sigmoid(x) * mx.tanh(cos) * x


def turned(x, scale, paired=False):
    turn = pairs if paired else halves
    return turn(x, mx.cos(scale), mx.sin(scale))


def filtered(x, table):
    return mx.sigmoid(table) * mx.tanh(table) * table


class Kept:
    def __init__(self):
        self.cache = {}

    def stepped(self, x, y):
        return mx.sigmoid(x) * mx.tanh(y) * y

    def of(self, x, y):
        found = self.cache.get("k")
        if found is None:
            found = self.stepped(x, y)
        step = mx.compile(self.stepped)
        for _ in range(9):
            x = step(x, y)
        return x + found
""",
    "pack/pipeline.py": HEAD
    + """
from . import turns
from .denoiser import Denoiser, DenoiserMLP
from .encoder import Encoder
from .sizes import Config
from .turns import Kept, filtered


class Pipeline(nn.Module):
    def __init__(self, width: int = 32):
        super().__init__()
        self.encoder = Encoder(Config(width=64, depth=2))
        self.denoiser = Denoiser(Config(width=width))
        self.other = DenoiserMLP(8, "tanh")
        self.kept = Kept()
        self.kept.late = Encoder(Config(8))

    def encode(self, prompt):
        return turns.turned(self.encoder(prompt), mx.arange(4) * 0.5)

    def generate(self, prompt, steps):
        text = self.encode(prompt)
        x = self.other(mx.random.normal(text.shape))
        for t in range(steps):
            x = x + 0.1 * self.denoiser(x + text, t)
        return filtered(self.kept.of(x, text), self.bank(3))

    def bank(self, n):
        return mx.arange(n) * 2.0
""",
}
"""A pipeline with a solver's loop, sizes that callers give, and what is compiled beside what runs once."""

NAMES = ("gated", "mask_of", "Store", "half_of", "Norm", "smooth", "swing", "flatten", "factor", "Base", "Feed")
NAMES += ("turned", "filtered", "Encoder", "Denoiser", "Config", "Kept", "Gate", "halves")


def functions_of(text: str) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]


def lines_of(node: ast.stmt) -> tuple[int, int]:
    return node.lineno - 1, node.end_lineno or node.lineno


def some_file(files: Files, r: Random) -> str:
    return r.choice(sorted(files))


def a_function_more(files: Files, r: Random) -> None:
    name = some_file(files, r)
    calls = r.choice(["x", "gated(x, x)", "smooth(x, x)", "mx.sigmoid(x) * mx.tanh(x) * x", "hub.mask_of(3)"])
    files[name] += f"\n\ndef added_{r.randrange(99)}(x):\n    return {calls}\n"


def a_function_less(files: Files, r: Random) -> None:
    name = some_file(files, r)
    found = functions_of(files[name])
    if found:
        first, last = lines_of(node := r.choice(found))
        lines = files[name].splitlines(keepends=True)
        files[name] = "".join([*lines[:first], " " * node.col_offset + "pass\n", *lines[last:]])


def another_name(files: Files, r: Random) -> None:
    """Of a function, where it is defined, or everywhere."""
    name = some_file(files, r)
    found = functions_of(files[name])
    if found:
        old = r.choice(found).name
        new = f"{old.strip('_')}_{r.randrange(9)}"
        for at in [name] if r.random() < 0.5 else list(files):
            files[at] = re.sub(rf"\b{old}\b", new, files[at])


def another_constant(files: Files, r: Random) -> None:
    name = some_file(files, r)
    numbers = [m for m in re.finditer(r"\b\d+(\.\d+|e-\d+)?\b", files[name])]
    if numbers:
        m = r.choice(numbers)
        files[name] = files[name][: m.start()] + str(r.choice([0, 1, 2, 0.5, 64])) + files[name][m.end() :]


def another_base(files: Files, r: Random) -> None:
    name = some_file(files, r)
    bases = list(re.finditer(r"(?<=^class )(\w+)\(([\w.]+)\)", files[name], re.MULTILINE))
    if bases:
        m = r.choice(bases)
        base = r.choice(["nn.Module", "Base", "One", "Store", "object", "Feed"])
        files[name] = f"{files[name][: m.start()]}{m[1]}({base}){files[name][m.end() :]}"


def a_line_more(files: Files, r: Random) -> None:
    """In any function: a call of something else, too."""
    into(files, some_file(files, r), r)


def another_constant_in_the_hub(files: Files, r: Random) -> None:
    held = {name: files[name] for name in ("pack/hub.py",) if name in files}
    another_constant(held or files, r)
    files.update(held)


def a_line_in_the_hub(files: Files, r: Random) -> None:
    into(
        files,
        r.choice([n for n in ("pack/hub.py", "pack/helpers.py", "pack/norms.py") if n in files] or sorted(files)),
        r,
    )


def into(files: Files, name: str, r: Random) -> None:
    found = functions_of(files[name])
    if found:
        stmt = r.choice(r.choice(found).body)
        lines = files[name].splitlines(keepends=True)
        called = r.choice(NAMES)
        text = r.choice(
            ["n_more = 1", "# a comment", "print(1)", f"{called}(x, x)", f"q = {called}(x)", "x = x * 1.5", ""]
        )
        lines.insert(stmt.lineno - 1, " " * stmt.col_offset + text + "\n")
        files[name] = "".join(lines)


def an_import_more(files: Files, r: Random) -> None:
    name = some_file(files, r)
    files[name] = r.choice(["from .hub import *\n", "from .hub import gated as smooth\n", "import os\n"]) + files[name]


def another_order(files: Files, r: Random) -> None:
    """Of the statements of a module: its last comes first, after the imports."""
    name = some_file(files, r)
    body = ast.parse(files[name]).body
    if len(body) > 3:
        lines, (first, last) = files[name].splitlines(keepends=True), lines_of(body[-1])
        at = lines_of(next((s for s in body if not isinstance(s, (ast.Import, ast.ImportFrom))), body[-1]))[0]
        files[name] = "".join([*lines[:at], *lines[first:last], "\n\n", *lines[at:first], *lines[last:]])


def a_loop_more(files: Files, r: Random) -> None:
    """Around a statement, of which each round may refine a value."""
    name = some_file(files, r)
    found = [stmt for f in functions_of(files[name]) for stmt in f.body if isinstance(stmt, ast.Assign)]
    if found:
        stmt = r.choice(found)
        lines, (first, last) = files[name].splitlines(keepends=True), lines_of(stmt)
        inside = [f"    {line}" for line in lines[first:last]]
        head = " " * stmt.col_offset + "for _ in range(3):\n"
        files[name] = "".join([*lines[:first], head, *inside, *lines[last:]])


def no_step_more(files: Files, r: Random) -> None:
    """Of a solver, in any file; or it is one again."""
    for name, text in files.items():
        other = {"x = x + 0.1 *": "x =", "x = self.denoiser": "x = x + 0.1 * self.denoiser"}
        files[name] = next((text.replace(a, b) for a, b in other.items() if a in text), text)


def another_word(files: Files, r: Random) -> None:
    """For an option, wherever one is given or stated."""
    words = [(name, m) for name in sorted(files) for m in re.finditer('"(silu|tanh|half)"', files[name])]
    if words:
        name, m = r.choice(words)
        files[name] = files[name][: m.start()] + r.choice(['"silu"', '"tanh"']) + files[name][m.end() :]


def a_file_more(files: Files, r: Random) -> None:
    called = r.choice(NAMES)
    source = r.choice(["hub", "steps", "norms", "helpers", "feed"])
    files[f"pack/more_{r.randrange(9)}.py"] = (
        f"{HEAD}from .{source} import {called}\n\n\ndef use(x, y):\n    for _ in range(3):\n"
        f"        x = {called}(x, y)\n    return mx.sigmoid(x) * mx.tanh(y) * x\n"
    )


def a_file_less(files: Files, r: Random) -> None:
    files.pop(some_file(files, r))


def a_file_of_another_name(files: Files, r: Random) -> None:
    name = some_file(files, r)
    new = f"{os.path.dirname(name)}/{r.choice(['hub', 'other', 'steps', 'renamed'])}.py"
    text = files.pop(name)
    files[new] = text


EDITS: list[Callable[[Files, Random], None]] = [
    a_function_more,
    a_function_less,
    another_name,
    another_constant,
    another_base,
    a_line_more,
    a_line_in_the_hub,
    a_line_in_the_hub,
    another_constant_in_the_hub,
    another_constant_in_the_hub,
    an_import_more,
    another_order,
    a_loop_more,
    no_step_more,
    another_word,
    another_word,
    a_file_more,
    a_file_less,
    a_file_of_another_name,
]


def shown(*options: str) -> str:
    made = CliRunner().invoke(main, ["check", "--isolated", "--chip", "m3-max", "-j", "1", *options, "pack"])
    assert made.exception is None or isinstance(made.exception, SystemExit), made.exception
    return made.output


def check_edits(seed: int, number: int, files: Files) -> None:
    r, files = Random(seed), {**files}
    for name, text in files.items():
        write(Path(name), text)
    shown("--cache-dir", "cache")
    for _ in range(number):
        edit, before = r.choice(EDITS), dict(files)
        try:
            edit(files, r)
        except SyntaxError:
            continue
        if not files:
            break
        for name in before.keys() - files.keys():
            Path(name).unlink()
        for name in sorted(files):
            if before.get(name) != files[name]:
                write(Path(name), files[name])
        for options in ((), ("--output-format", "json")):
            warm = shown("--cache-dir", "cache", *options)
            assert warm == shown("--no-cache", *options), (seed, edit.__name__)


@pytest.fixture(autouse=True)
def _at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "SETTLED", 0.0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")


PACKAGES = [{**FILES, **MORE}, SOLVED]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("files", PACKAGES, ids=["model", "pipeline"])
def test_edits_as_people_make_them(seed: int, files: Files) -> None:
    check_edits(seed, 8, files)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 12))
@pytest.mark.parametrize("files", PACKAGES, ids=["model", "pipeline"])
def test_many_edits_as_people_make_them(seed: int, files: Files) -> None:
    check_edits(seed, 12, files)
