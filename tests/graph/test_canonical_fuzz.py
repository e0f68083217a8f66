"""Mutants of norms, attention, activations and rotations: their canonical value is their value.

Each mutant is run as source in float64, and its canonical value is evaluated on the same arguments.
"""

from __future__ import annotations

import ast
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graph.functions import HEAD, graph_of
from graph.real import Array, Evaluation, Unsupported, modules
from mutation.mutate import mutate

from fuselint.graph.model import Graph

MUTANTS = 2000

FUNCTIONS = """
def f(x, w):
    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 0.1) * w

def f(x, w):
    s = mx.sum(mx.square(x), axis=-1, keepdims=True) / x.shape[-1]
    return w * (x / mx.sqrt(0.1 + s))

def f(x, w):
    h = x.astype(mx.float32)
    h = h * (mx.power(h, 2).mean(-1, keepdims=True) + 0.1) ** -0.5
    return (1 + w) * h.astype(x.dtype)

def f(x, w):
    n = mx.linalg.norm(x, axis=-1, keepdims=True)
    return x / n * math.sqrt(x.shape[-1]) * w

def f(x, w):
    r = mx.rsqrt(mx.mean(x * x, axis=-1) + 0.1)
    return mx.multiply(x * mx.expand_dims(r, -1), w) + mx.exp(mx.max(x, axis=-1) * 2)[..., None]

def f(x, w, b):
    m = x.mean(-1, keepdims=True)
    v = mx.var(x, axis=-1, keepdims=True)
    return (x - m) * mx.rsqrt(v + 0.1) * w + b

def f(x, w, b):
    m = mx.mean(x, axis=-1, keepdims=True)
    r = w * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) - m * m + 0.1)
    return x * r + (b - m * r)

def f(q, k, v, mask):
    s = (q * (q.shape[-1] ** -0.5)) @ k.swapaxes(-1, -2)
    return mx.softmax(s + mask, axis=-1) @ v

def f(q, k, v, mask):
    s = mx.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return mx.matmul(mx.softmax(s.astype(mx.float32), axis=-1).astype(q.dtype), v).transpose(0, 2, 1, 3)

def f(q, k, v, mask):
    s = mx.matmul(q, mx.transpose(k, (0, 1, 3, 2))) * 0.125 + mask
    s = mx.exp(s - s.max(-1, keepdims=True))
    s = s / s.sum(-1, keepdims=True)
    return s @ v

def f(x, y):
    return x * mx.sigmoid(x) * y

def f(x, y):
    return y * x / (1 + mx.exp(-x))

def f(x, y):
    return nn.silu(x) * y + nn.gelu(y)

def f(x):
    return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))

def f(x):
    return x * 0.5 * (1.0 + mx.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))

def f(x):
    e = mx.exp(x - mx.max(x, axis=-1, keepdims=True))
    return e / mx.sum(e, axis=-1, keepdims=True)

def f(x, y):
    return x - mx.logsumexp(x, axis=-1, keepdims=True) + mx.log(mx.sum(mx.exp(y), axis=-1, keepdims=True))

def f(x):
    a = mx.arange(x.shape[-2])[:, None] * (10.0 ** (-mx.arange(0, x.shape[-1], 2) / x.shape[-1]))
    lo, hi = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return mx.concatenate([lo * mx.cos(a) - hi * mx.sin(a), lo * mx.sin(a) + hi * mx.cos(a)], axis=-1)

def f(x, y):
    s = mx.sqrt(mx.square(x) * mx.abs(y)) / (x * x + 0.3) - (x - y) / 3
    return s * s - x / (y * x) + mx.mean(3 * x * y + 0.5, axis=1, keepdims=True) * x.shape[1]
"""


def sources() -> list[str]:
    return ["def f" + part for part in FUNCTIONS.split("\ndef f")[1:]]


def arguments(source: str, r: random.Random) -> dict[str, Any]:
    """Arrays for the function's parameters: lengths that all differ, or all agree."""
    b, h, q, k, d = (2, 3, 4, 5, 6) if r.random() < 0.6 else (4, 4, 4, 4, 4)
    shapes = {
        "x": (b, q, d), "y": (b, q, d), "w": (d,), "b": (d,),
        "q": (b, h, q, d), "k": (b, h, k, d), "v": (b, h, k, d), "mask": (q, k),
    }  # fmt: skip
    rng = np.random.default_rng(r.randrange(2**32))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    return {a.arg: rng.normal(size=shapes[a.arg]).view(Array) for a in function.args.args}


def run(source: str, given: dict[str, Any]) -> Any:
    """The value of the source; None where it doesn't run, or gives no finite number."""
    space = modules()
    exec(source, space)
    try:
        out = np.asarray(space["f"](**given), dtype=np.float64)
    except (ValueError, TypeError, IndexError, ArithmeticError, AttributeError, NameError):
        return None
    return out if out.size and np.isfinite(out).any() else None


def mutants(count: int, seed: int) -> Iterator[tuple[str, Graph, dict[str, Any], Any]]:
    """Sources that run, with their graphs, arguments and values."""
    r = random.Random(seed)
    bases = sources()
    made = 0
    while made < count:
        source = mutate(bases[made % len(bases)], r)
        given = arguments(source, r)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = run(source, given)
        if value is not None:
            made += 1
            yield source, graph_of(HEAD + "import math\n\n\n" + source), given, value


def assert_same(got: Any, want: Any, about: str) -> None:
    """Equal wherever the source gives a finite number, up to the rounding of sums that cancel."""
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}\n{about}"
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=1e-30)
    assert np.allclose(got[finite], want[finite], rtol=1e-6, atol=1e-7 * scale), about


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_mutants(seed: int) -> None:
    evaluated = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for source, graph, given, want in mutants(MUTANTS // 4, seed):
            root = graph.returns[0][1]
            try:
                got = Evaluation(given).of(graph.canonical.of(root))
            except Unsupported:
                continue
            evaluated += 1
            assert_same(got, want, f"{source}\n{graph.canonical.text(root)}")
    assert evaluated > 0.9 * MUTANTS // 4
