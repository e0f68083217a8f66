"""FUS221 where cosines and sines come from other functions: what it advises is right, and where it is silent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuselint import check_paths
from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.finding import Finding
from fuselint.graph.model import region
from fuselint.graph.program import Program
from fuselint.graph.symbols import evaluate
from fuselint.graph.wholes import wholes
from fuselint.source.project import summarise
from fuselint.source.screen import screen
from fuselint.source.text import FileText

HEAD = """\
import mlx.core as mx
import mlx.nn as nn


"""

HALF = """\
def turn(x):
    half = x.shape[-1] // 2
    return mx.concatenate([-x[..., half:], x[..., :half]], axis=-1)


"""

BOTH = """\
def rotate(q, k, cos, sin):
    return q * cos + turn(q) * sin, k * cos + turn(k) * sin


"""

TABLES = """\
class Angles(nn.Module):
    def __init__(self, dims, base=1000.0):
        super().__init__()
        self._inverse = 1.0 / (base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims))

    def __call__(self, positions, dtype):
        a = positions[:, None].astype(mx.float32) * self._inverse[None, :]
        a = mx.concatenate([a, a], axis=-1)
        return mx.cos(a).astype(dtype), mx.sin(a).astype(dtype)


"""

ATTENTION = """\
class Attention(nn.Module):
    def __call__(self, x, cos, sin):
        B, T, D = x.shape
        q = x.reshape(B, T, 4, D // 4).transpose(0, 2, 1, 3)
        q, k = rotate(q, q, cos, sin)
        return mx.fast.scaled_dot_product_attention(q, k, k, scale=1.0)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def __call__(self, x, cos, sin):
        return x + self.attention(x, cos, sin)


"""

MODEL = """\
class Model(nn.Module):
    def __init__(self, dims, count):
        super().__init__()
        self.angles = Angles(dims)
        self.layers = [Layer() for _ in range(count)]

    def __call__(self, x, offset: int = 0):
        cos, sin = self.angles(mx.arange(offset, offset + x.shape[1]), x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x
"""

LAYERS = HEAD + HALF + BOTH + TABLES + ATTENTION + MODEL


@dataclass(frozen=True)
class Case:
    """A module, the function where the finding stands, and code that makes `expected` and what the advised call reads.

    The code finds `mx`, `dtype` and x of shape (2, 3, 5, 16), or (2, 5, 3, 16) as `y`, in its names.
    """

    source: str
    function: str
    made: str
    unknown: tuple[str, ...] = ()


CASES = {
    "tables of a class, through all layers": Case(
        LAYERS,
        "rotate",
        """
self = Angles(16)
offset = 7
q = x
expected, _ = rotate(q, q, *self(mx.arange(offset, offset + 5), dtype))
""",
    ),
    "tables that a class keeps, with a factor": Case(
        HEAD
        + """\
class Rope(nn.Module):
    def __init__(self, dims, base, factor):
        super().__init__()
        self.dims, self.base, self.factor = dims, base, factor
        self._cos = None
        self._sin = None
        self.extend(64)

    def extend(self, length):
        inverse = 1.0 / (self.base ** (mx.arange(0, self.dims, 2, dtype=mx.float32) / self.dims))
        self._frequencies = inverse / 2
        a = mx.outer(mx.arange(length, dtype=mx.float32), self._frequencies)
        self._cos = mx.cos(a) * self.factor
        self._sin = mx.sin(a) * self.factor

    def __call__(self, x, offset: int = 0):
        end = offset + x.shape[-2]
        cos, sin = self._cos[offset:end].astype(x.dtype), self._sin[offset:end].astype(x.dtype)
        a, b = mx.split(x, 2, axis=-1)
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
""",
        "Rope.__call__",
        """
self = Rope(16, 500.0, 1.25)
offset = 3
expected = self(x, offset)
""",
    ),
    "neighbours, before heads and positions change places": Case(
        HEAD
        + """\
def rotate(x, cos, sin, heads, size):
    length = x.shape[1]
    x = x.reshape(x.shape[0], length, heads, size)
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    out = mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return out.reshape(x.shape[0], length, heads, size).reshape(x.shape[0], length, heads * size)


def tables(positions, size, base):
    inverse = 1.0 / (base ** (mx.arange(0, size, 2, dtype=mx.float32) / size))
    a = positions[:, None].astype(mx.float32) * inverse[None, :]
    return mx.cos(a), mx.sin(a)


class Attention(nn.Module):
    def __init__(self, heads, size):
        super().__init__()
        self.heads, self.size = heads, size

    def __call__(self, x, cos, sin):
        q = rotate(x, cos, sin, self.heads, self.size)
        k = rotate(x, cos, sin, self.heads, self.size)
        return q.reshape(x.shape[0], -1, self.heads, self.size).transpose(0, 2, 1, 3), k


class Model(nn.Module):
    def __init__(self, heads, size):
        super().__init__()
        self.size, self.base = size, 777.0
        self.attention = Attention(heads, size)

    def __call__(self, x, start: int):
        cos, sin = tables(mx.arange(start, start + x.shape[1]), self.size, self.base)
        return self.attention(x, cos, sin)
""",
        "Attention.__call__",
        """
self = Model(3, 16)
start, length, heads, size = 11, 5, 3, 16
x = y
cos, sin = tables(mx.arange(start, start + 5), 16, 777.0)
expected = rotate(y.reshape(2, 5, 48), cos.astype(dtype), sin.astype(dtype), 3, 16).reshape(2, 5, 3, 16)
""",
    ),
    "the first dimensions": Case(
        HEAD
        + HALF
        + TABLES
        + """\
def partly(x, cos, sin):
    n = cos.shape[-1]
    part = x[..., :n]
    part = part * cos + turn(part) * sin
    return mx.concatenate([part, x[..., n:]], axis=-1)


class Attention(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.angles = Angles(dims)

    def __call__(self, q, k, start: int):
        cos, sin = self.angles(mx.arange(q.shape[2]) + start, q.dtype)
        return partly(q, cos, sin), partly(k, cos, sin)
""",
        "partly",
        """
self = Angles(8)
start = 2
cos, sin = self(mx.arange(5) + start, dtype)
n = 8
expected = partly(x, cos, sin)
""",
    ),
    "a product of a column and a row, for each of a batch": Case(
        HEAD
        + HALF
        + """\
class Angles:
    def __init__(self, dims):
        self._inverse = 100.0 ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)

    def __call__(self, x, ids):
        column = mx.broadcast_to(self._inverse[None, :, None], (ids.shape[0], self._inverse.shape[0], 1))
        row = mx.expand_dims(ids.astype(mx.float32), 1)
        a = (column @ row).swapaxes(1, 2)
        a = mx.concatenate([a, a], axis=-1)
        return mx.cos(a).astype(x.dtype), mx.sin(a).astype(x.dtype)


def rotate(x, cos, sin, axis=1):
    cos, sin = mx.expand_dims(cos, axis), mx.expand_dims(sin, axis)
    return x * cos + turn(x) * sin


class Model:
    def __init__(self, dims):
        self.angles = Angles(dims)

    def __call__(self, x, offset: int):
        ids = mx.broadcast_to(mx.arange(offset, offset + x.shape[2])[None], (x.shape[0], x.shape[2]))
        cos, sin = self.angles(x, ids)
        return rotate(x, cos, sin)
""",
        "rotate",
        """
self = Angles(16)
offset = 4
ids = mx.broadcast_to(mx.arange(offset, offset + 5)[None], (2, 5))
expected = rotate(x, *self(x, ids))
""",
    ),
    "rows that a range picks, and half of tables that were doubled": Case(
        HEAD
        + """\
class Rope:
    def __init__(self, dims):
        inverse = 300.0 ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        a = mx.arange(50, dtype=mx.float32)[:, None] * inverse
        a = mx.concatenate([a, a], axis=-1)
        self._cos, self._sin = mx.cos(a), mx.sin(a)
        self.inverse = inverse

    def __call__(self, x, offset: int):
        rows = mx.arange(offset, offset + x.shape[2])
        half = x.shape[-1] // 2
        cos, sin = self._cos[rows].astype(x.dtype), self._sin[rows].astype(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return mx.concatenate(
            [a * cos[..., :half] - b * sin[..., :half], b * cos[..., half:] + a * sin[..., half:]], axis=-1
        )
""",
        "Rope.__call__",
        """
self = Rope(16)
offset = 6
inverse = self.inverse
expected = self(x, offset)
""",
    ),
    "positions divided, and turned back": Case(
        HEAD
        + """\
class Angles(nn.Module):
    def __init__(self, size, factor: float):
        super().__init__()
        self.size, self.factor = size, factor

    def __call__(self, length: int):
        inverse = 1.0 / (1000.0 ** (mx.arange(0, self.size, 2, dtype=mx.float32) / self.size))
        a = mx.outer(mx.arange(length, dtype=mx.float32) / self.factor, inverse)
        return mx.cos(a), mx.sin(a)


def back(x, pair):
    cos, sin = pair
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return mx.stack([a * cos + b * sin, b * cos - a * sin], axis=-1).reshape(*x.shape)


class Attention(nn.Module):
    def __init__(self, size, factor: float):
        super().__init__()
        self.angles = Angles(size, factor)

    def __call__(self, q, k):
        pair = self.angles(q.shape[-2])
        return back(q, pair), back(k, pair)
""",
        "back",
        """
self = Angles(16, 4.0)
expected = back(x, self(5))
""",
        unknown=("positions are multiplied, not divided: a quotient is rounded once more",),
    ),
    "neighbours that are written as halves, for queries and keys": Case(
        HEAD
        + """\
class Rope:
    def __init__(self, dims):
        self.inverse = 300.0 ** (-mx.arange(0, dims, 2, dtype=mx.float32) / dims)
        self.dims = dims

    def tables(self, offset, length):
        a = mx.outer(mx.arange(offset, offset + length), self.inverse)
        return mx.cos(a), mx.sin(a)

    def turn(self, x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    def __call__(self, q, k, offset: int):
        cos, sin = self.tables(offset, q.shape[-2])
        return self.turn(q, cos, sin), self.turn(k, cos, sin)
""",
        "Rope.turn",
        """
self = Rope(16)
offset, q = 5, x
cos, sin = self.tables(offset, 5)
a = self.turn(x, cos.astype(dtype), sin.astype(dtype))
expected = mx.stack([a[..., :8], a[..., 8:]], axis=-1).reshape(x.shape)
""",
        unknown=("pairs are written as they are read",),
    ),
    "positions that nobody in the file makes": Case(
        HEAD
        + HALF
        + BOTH
        + TABLES
        + ATTENTION
        + MODEL.replace("offset: int = 0", "ids").replace("mx.arange(offset, offset + x.shape[1])", "ids"),
        "rotate",
        """
self = Angles(16)
offset, q = 9, x
expected, _ = rotate(q, q, *self(mx.arange(offset, offset + 5), dtype))
""",
        unknown=("positions count up by one",),
    ),
}


def findings(source: str, *codes: str) -> list[Finding]:
    result, found = analyse(FileText("m.py", source), Settings(select=codes or ("FUS221",)), lambda name: False)
    assert not result.errors, result.errors[0]
    return [p.finding for p in found]


def names_of(case: Case, dtype: Any) -> dict[str, Any]:
    import mlx.core as mx

    x = mx.random.normal((2, 3, 5, 16), key=mx.random.key(1)).astype(dtype)
    names: dict[str, Any] = {"dtype": dtype, "x": x, "y": x.swapaxes(1, 2)}
    exec(case.source, names)
    exec(case.made, names)
    return names


@pytest.mark.parametrize("name", CASES)
def test_advice_stands_once_and_says_what_is_not_proven(name: str) -> None:
    (found,) = findings(CASES[name].source)
    assert found.function == CASES[name].function
    assert found.fix is not None and found.fix.applicability == "none" and not found.fix.edits
    unknown = {o.claim for o in found.obligations if o.verdict == "unknown"}
    assert set(CASES[name].unknown) <= unknown
    assert unknown & {claim for case in CASES.values() for claim in case.unknown} == set(CASES[name].unknown)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_call_that_is_advised_computes_the_same(name: str, dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    (found,) = findings(CASES[name].source)
    assert found.fix is not None
    call = re.match(r"`(mx\.fast\.rope\(.*?)` computes it", found.fix.message)
    assert call is not None, found.fix.message
    names = names_of(CASES[name], getattr(mx, dtype))
    now = eval(call.group(1), names)
    assert now.shape == names["expected"].shape
    error = mx.abs(now.astype(mx.float32) - names["expected"].astype(mx.float32)).max().item()
    assert error < (1e-5 if dtype == "float32" else 5e-2)


def test_the_compiled_helper_for_the_products_is_still_offered() -> None:
    found = findings(LAYERS, "FUS221", "FUS301")
    assert sorted((f.code, f.fix.applicability) for f in found if f.fix) == [
        ("FUS221", "none"), ("FUS301", "safe"), ("FUS301", "safe"),  # every call gives arrays
    ]  # fmt: skip


def test_queries_and_keys_are_one_finding() -> None:
    (found,) = findings(LAYERS)
    assert [r.line for r in found.related] == [found.line]


CALLER = """\
def use(q, k, offset: int):
    cos, sin = tables(q.shape[-2], q.shape[-1])
    return rotate(q, k, cos, sin)
"""


def tables(angles: str, turns: str = "mx.cos(a), mx.sin(a)", parameters: str = "length, size") -> str:
    return (
        HEAD + HALF + BOTH + f"def tables({parameters}):\n"
        "    inverse = 1.0 / (1000.0 ** (mx.arange(0, size, 2, dtype=mx.float32) / size))\n"
        f"{angles}"
        "    a = mx.concatenate([a, a], axis=-1)\n"
        f"    return {turns}\n\n\n"
    )


OUTER = "    a = mx.outer(mx.arange(length), inverse)\n"

SILENT = {
    "tables of another file": HEAD + HALF + BOTH,
    "sines for cosines": tables(OUTER, "mx.sin(a), mx.cos(a)") + CALLER,
    "sines of other angles": tables(OUTER, "mx.cos(a), mx.sin(a * 2)") + CALLER,
    "every second position": tables(OUTER.replace("mx.arange(length)", "mx.arange(0, 2 * length, 2)")) + CALLER,
    "rows and columns of an image": tables(
        "    p = mx.arange(length)\n"
        "    a = mx.concatenate([mx.outer(p // 8, inverse[::2]), mx.outer(p % 8, inverse[::2])], axis=-1)\n"
    )
    + CALLER,
    "positions of three axes, by sections": tables(
        "    a = ids[..., None].astype(mx.float32) * inverse\n"
        "    a = mx.concatenate([a[0, ..., :2], a[1, ..., 2:5], a[2, ..., 5:]], axis=-1)\n",
        parameters="ids, size",
    )
    + CALLER.replace("q.shape[-2], q", "offset, q"),
    "positions that padding shifts": tables(OUTER.replace("mx.arange(length)", "length"))
    + CALLER.replace("q.shape[-2], q", "mx.cumsum(mask) - 1, q").replace("offset: int", "mask"),
    "rows that an array of any positions picks": tables(OUTER)
    + CALLER.replace("offset: int", "ids").replace("return", "cos, sin = cos[ids], sin[ids]\n    return"),
    "neighbours written as halves, once": HEAD
    + "def tables(length, size):\n"
    + "    a = mx.outer(mx.arange(length), 10.0 ** (-mx.arange(0, size, 2) / size))\n"
    + "    return mx.cos(a), mx.sin(a)\n\n\n"
    + "def rotate(x):\n"
    + "    cos, sin = tables(x.shape[-2], x.shape[-1])\n"
    + "    a, b = x[..., ::2], x[..., 1::2]\n"
    + "    return mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)\n",
    "a factor that may be an array": (tables(OUTER) + CALLER)
    .replace("offset: int", "grow")
    .replace("return rotate", "cos, sin = cos * grow, sin * grow\n    return rotate"),
    "halves that are exchanged": tables(OUTER).replace(
        "[-x[..., half:], x[..., :half]]", "[x[..., half:], x[..., :half]]"
    )
    + CALLER,
}


def test_the_frame_of_the_silent_cases_is_reported() -> None:
    assert [f.function for f in findings(tables(OUTER) + CALLER)] == ["rotate"]


def test_a_helper_that_turns_by_other_tables_too_is_silent() -> None:
    other = CALLER.replace("use", "other").replace("tables(q.shape[-2], q.shape[-1])", "mx.cos(q) * 2, mx.sin(k)")
    assert "rotate" not in [f.function for f in findings(tables(OUTER) + CALLER + other)]


@pytest.mark.parametrize("name", SILENT)
def test_what_is_no_rotary_embedding_of_one_axis_is_silent(name: str) -> None:
    assert [f.message for f in findings(SILENT[name])] == []


def program(source: str) -> Program:
    file = FileText("m.py", source)
    screened = screen(file)
    assert screened.tree is not None
    return Program(file, summarise(file, screened.tree))


def test_each_caller_is_a_way_of_its_own_and_what_nobody_gives_is_outside() -> None:
    source = HEAD + (
        "def double(x):\n    return x * 2\n\n\n"
        "def first(y):\n    return double(mx.cos(y))\n\n\n"
        "def second(z):\n    return double(mx.sin(z))\n"
    )
    graph = program(source).graph("double")
    assert graph is not None
    root = graph.returns[0][1]
    found = [w for w in wholes(graph, root, frozenset(region(root, ()))) if w is not None]
    assert [[n.op for n in w.graph.nodes if n.op in ("cos", "sin")] for w in found] == [["cos"], ["sin"]]
    assert [[n.attrs["name"] for n in w.outside] for w in found] == [["y"], ["z"]]
    assert [w.through for w in found] == [("first",), ("second",)]
    assert all(w.original[w.root] == (graph, root) for w in found)


def test_functions_that_call_each_other_end() -> None:
    source = HEAD + "def a(x, n):\n    return b(x * 2, n)\n\n\ndef b(x, n):\n    return a(x + 1, n) if n else x\n"
    graph = program(source).graph("a")
    assert graph is not None
    root = graph.returns[0][1]
    assert list(wholes(graph, root, frozenset(region(root, ()))))


def test_callers_that_are_not_followed_may_count_otherwise() -> None:
    rotation = """
def tables(length, dims, base=10000.0):
    angles = mx.arange(length)[:, None] * base ** (-mx.arange(0, dims, 2) / dims)
    return mx.cos(angles), mx.sin(angles)


def rotate(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    return mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)


def attend(q, k):
    cos, sin = tables(q.shape[-2], 64)
    return rotate(q, cos, sin) @ rotate(k, cos, sin).swapaxes(-1, -2)
"""
    outside = "\n\ndef strided(x, cos, sin):\n    return rotate(x, cos, sin)\n"
    claims = [
        {o.claim: o.verdict for f in findings("import mlx.core as mx\n" + text) for o in f.obligations}
        for text in (rotation, rotation + outside)
    ]
    assert ["positions count up by one where callers are followed" in c for c in claims] == [False, True]


LEFT_OUT = """import mlx.core as mx


def rotate(q, offset=0, positions=None):
    if positions is None:
        positions = (mx.arange(q.shape[-2], dtype=mx.float32) + offset)[None]
    angles = positions[..., None] * 10000.0 ** (-mx.arange(0, 64, 2, dtype=mx.float32) / 64)
    angles = mx.concatenate([angles, angles], axis=-1)
    cos, sin = mx.cos(angles)[:, None].astype(q.dtype), mx.sin(angles)[:, None].astype(q.dtype)
    first, second = mx.split(q, 2, axis=-1)
    return q * cos + mx.concatenate([-second, first], axis=-1) * sin
"""


@pytest.mark.parametrize("given", [True, False])
def test_positions_that_another_file_gives_are_not_counted_here(given: bool, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "turn.py").write_text(LEFT_OUT)
    rows = "mx.stack([mx.arange(8), mx.maximum(mx.arange(8) - 2, 0)])" if given else "None"
    text = f"import mlx.core as mx\nfrom .turn import rotate\n\n\ndef f(q):\n    return rotate(q, positions={rows})\n"
    (tmp_path / "use.py").write_text(text)
    (result,) = check_paths([tmp_path / "turn.py"], select=["FUS221", "FUS301"], cache=False)
    codes = {f.code for f in result.findings}
    assert codes == ({"FUS301"} if given else {"FUS221", "FUS301"})


PARTIAL = """
def turn(x):
    return mx.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)


def rotate(q, k, cos, sin):
    n = cos.shape[-1]
    q1, q2 = q[..., :n], q[..., n:]
    k1, k2 = k[..., :n], k[..., n:]
    q1 = q1 * cos + turn(q1) * sin
    k1 = k1 * cos + turn(k1) * sin
    return mx.concatenate([q1, q2], axis=-1), mx.concatenate([k1, k2], axis=-1)


"""


def test_keys_that_keep_a_rest_are_counted_as_queries_are() -> None:
    (found,) = findings(
        HEAD
        + PARTIAL
        + TABLES.replace("mx.concatenate([a, a], axis=-1)", "mx.repeat(a, 2, axis=-1)")
        + ATTENTION
        + MODEL
    )
    t = found.traffic
    assert t is not None
    numbers = {**dict.fromkeys(t.symbols, 6), "H": 4, "G": 2}
    both, alone = (evaluate(t.bytes_now, {**numbers, **n}) for n in ({}, {"G": 0}))
    none = evaluate(t.bytes_now, {**numbers, "H": 0, "G": 0})
    assert "T" not in t.symbols or "rows" not in t.symbols["T"]
    assert (both - alone) * 2 == alone - none
