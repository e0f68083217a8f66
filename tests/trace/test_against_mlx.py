"""A trace of code that runs on the CPU against MLX's own graph of it: the same kernels, eager and compiled."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fuselint.graph.tape import RESHAPES, VIEWS
from tests.graph.functions import HEAD, random_function

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

BATCH = Path(__file__).with_name("batch.py")
RENAMED = {"Log2": "Log", "Log10": "Log", "CumSum": "Scan", "NaNEqual": "Equal"}
MOVES_NOTHING = (*VIEWS, *RESHAPES)


def traced(sources: Sequence[str], shapes: Sequence[Sequence[tuple[int, ...]]], **more: Any) -> list[Any]:
    jobs = [
        {"source": s, "shapes": sh, "dtypes": more.get("dtypes", ["float32"] * len(sh)), "backend": "cpu"}
        for s, sh in zip(sources, shapes, strict=True)
    ]
    ran = subprocess.run([sys.executable, BATCH], input=json.dumps(jobs), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return list(json.loads(ran.stdout))


def counted(kernels: Sequence[dict[str, Any]]) -> Counter[str]:
    """Names of kernels as MLX's graph has them."""
    out: Counter[str] = Counter()
    for k in kernels:
        parts = [re.sub(r"\(.*\)", "", p).strip() for p in k["name"].split(" + ")]
        out["Compiled" + "".join(parts) if k["fused"] else parts[0]] += 1
    return Counter({n: c for n, c in out.items() if n not in MOVES_NOTHING})


def built(outputs: Sequence[Any]) -> Counter[str]:
    """The primitives of a lazy graph that are kernels."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    names = [n.split(" ")[0].replace("Broadcast", "") for n in re.findall(r'label ="([^"]*)"', dot.getvalue())]
    names = [re.sub("|".join(RENAMED), lambda m: RENAMED[m.group()], n) for n in names]
    return Counter(n for n in names if n and n not in MOVES_NOTHING)


def real(source: str, shapes: Sequence[tuple[int, ...]], compiled: bool, dtypes: Sequence[str] = ()) -> Counter[str]:
    space: dict[str, Any] = {}
    exec(source, space)
    arguments = [mx.ones(s, getattr(mx, d)) for s, d in zip(shapes, dtypes or ["float32"] * len(shapes), strict=True)]
    mx.eval(arguments)
    out = (mx.compile(space["f"]) if compiled else space["f"])(*arguments)
    return built(out if isinstance(out, (tuple, list)) else [out])


def assert_equal(sources: Sequence[str], shapes: Sequence[Sequence[tuple[int, ...]]]) -> None:
    for source, own, found in zip(sources, shapes, traced(sources, shapes), strict=True):
        assert counted(found["eager"]) == real(source, own, compiled=False), source
        assert counted(found["compiled"]) == real(source, own, compiled=True), source


@pytest.mark.slow
def test_random_functions() -> None:
    functions = [random_function(seed) for seed in range(200, 240)]
    assert_equal([f.source for f in functions], [f.shapes for f in functions])


BODIES = [
    "x.mean(-1, keepdims=True) * mx.var(x, axis=-1, keepdims=True) + mx.std(x)",
    "mx.softmax(x, axis=1) + mx.logsumexp(x, axis=-1, keepdims=True)",
    "mx.linalg.norm(x, axis=-1, keepdims=True)",
    "mx.clip(x, 0, 1) @ x.swapaxes(-1, -2)",
    "mx.repeat(x, 2, axis=1), mx.tile(x, (1, 2, 1)), mx.concatenate([x, x], axis=-1)",
    "x[..., :2] + x[..., 2:4], x[0], x[:, 0], x[:, None] * x[:, :, None]",
    "mx.exp(x) + mx.exp(x)",
    "x.astype(mx.bfloat16) * mx.array(0.5)",
    "mx.take(x, mx.array([0, 1]), axis=1), mx.take_along_axis(x, mx.argmax(x, axis=-1, keepdims=True), axis=-1)",
    "nn.gelu_approx(x), nn.silu(x) * x, nn.log_softmax(x), nn.gelu(x)",
    "mx.maximum(x, mx.zeros_like(x)), mx.arange(4) + x[0, :, 0], mx.full((2, 4), 3.0)",
    "mx.fast.rms_norm(x, x[0, 0], 1e-5), mx.fast.layer_norm(x, x[0, 0], x[0, 1], 1e-5)",
    "mx.fast.rope(x, 8, traditional=False, base=1e4, scale=1.0, offset=3)",
    "mx.fast.scaled_dot_product_attention(x[None], x[None], x[None], scale=0.5, mask='causal')",
    "[r * 2 for r in x][1], mx.split(x, 2, axis=-1)[0] * 2, -x, abs(x), 2 - x, x.T * 2, x > 1, ~(x > 0)",
    "x.at[0].add(x[1]), mx.sort(x), mx.cumsum(x, axis=0), mx.pad(x, 1), mx.tril(x)",
    "mx.einsum('bij,bkj->bik', x, x), mx.conv1d(x, mx.ones((3, 2, 8))), mx.addmm(x, x, mx.ones((8, 8)))",
    "mx.quantized_matmul(mx.ones((4, 64)), *mx.quantize(mx.ones((8, 64))))",
    "mx.isclose(x, x + 1), mx.isfinite(x), mx.nan_to_num(x), mx.round(x, 2), mx.divmod(x, 2.0)",
    "mx.stop_gradient(x) * 2, mx.view(x, mx.int32), mx.array(x, mx.float16) + 1, mx.stack([x, x]), x.flatten(1)",
    "mx.bitwise_invert(x.astype(mx.int32)) * 2, mx.contiguous(x.T) + 1",
]


def test_operations() -> None:
    sources = [f"{HEAD}def f(x):\n    return {body}\n" for body in BODIES]
    assert_equal(sources, [[(2, 4, 8)]] * len(sources))


STATEMENTS = {
    "in place": "    y = x + 1\n    y += x\n    y *= 2\n    y[0] = x[1]\n    return y\n",
    "an alias changes with it": "    y = x * 2\n    z = y\n    z += 1\n    return y, z\n",
    "what nobody reads doesn't run": "    mx.exp(x)\n    return x * 2\n",
    "imported by name": "    from mlx.core import exp, tanh as t\n    return exp(x) * t(x)\n",
    "compiled, with a constant": "    g = mx.compile(lambda a, b: mx.exp(a) * b + 0.5)\n    return g(x, x[0, 0]) * 2\n",
    "compiled without shapes": "    g = mx.compile(lambda a, b: ((a + b) * b - a) * b + a * b, shapeless=True)\n"
    "    return g(x, x[0, 0]) * 2\n",
    "compiled, nested": "    h = mx.compile(lambda a: mx.exp(a) * 2)\n    g = mx.compile(lambda a: h(a) + h(a * 2))\n"
    "    return g(x) + h(x)\n",
    "compiled, some results unread": "    g = mx.compile(lambda a: (mx.exp(a) * 2, mx.tanh(a) + 1))\n"
    "    return g(x)[1]\n",
    "compiled, an argument comes out": "    g = mx.compile(lambda a: (a, a * 2 + 1))\n    y, z = g(x + 1)\n"
    "    return y * z\n",
}


@pytest.mark.parametrize("body", STATEMENTS.values(), ids=STATEMENTS)
def test_statements(body: str) -> None:
    source = f"{HEAD}def f(x):\n{body}"
    [found] = traced([source], [[(2, 4, 8)]])
    assert counted(found["eager"]) == real(source, [(2, 4, 8)], compiled=False)


GRADIENTS = {
    "a chain": "mx.grad(lambda a: (mx.tanh(a * 2) * mx.exp(a)).sum())(x)",
    "what is computed twice": "mx.grad(lambda a: (mx.exp(a) * 2 + mx.exp(a) * 3).sum())(x)",
    "with its value, and two arguments": "mx.value_and_grad(lambda a, b: (mx.exp(a) * b).sum(), (0, 1))(x, x[0])",
    "softmax and products": "mx.grad(lambda a: (mx.softmax(a @ a.swapaxes(-1, -2), axis=-1) @ a).mean())(x)",
    "a norm": "mx.grad(lambda a: mx.fast.rms_norm(a, x[0, 0], 1e-5).sum())(x)",
    "views": "mx.grad(lambda a: (a.reshape(8, 8)[:, 1:5].T * 3).sum())(x)",
    "a compiled function": "mx.grad(lambda a: (nn.silu(a) * a).sum())(x)",
    "of what was computed before": "(lambda h: mx.grad(lambda a: (a * h * h).sum())(x) + h)(mx.exp(x) * 2)",
    "vmap": "mx.vmap(lambda r: mx.exp(r) * r.sum())(x)",
    "vmap in a gradient": "mx.grad(lambda a: mx.vmap(lambda r: mx.exp(r).sum())(a).sum())(x)",
    "vjp": "mx.vjp(lambda a: mx.exp(a) * 2, [x], [x + 1])[1][0]",
    "jvp": "mx.jvp(lambda a: mx.exp(a) * 2, [x], [x + 1])[1][0]",
}


@pytest.mark.parametrize("body", GRADIENTS.values(), ids=GRADIENTS)
def test_transformed_functions(body: str) -> None:
    source = f"{HEAD}def f(x):\n    return {body}\n"
    [found] = traced([source], [[(2, 4, 8)]])
    assert counted(found["eager"]) == real(source, [(2, 4, 8)], compiled=False)
    # The order in which MLX names what a kernel fused depends on who made it first.
    compiled, wanted = counted(found["compiled"]), real(source, [(2, 4, 8)], compiled=True)
    assert sorted(map(sorted, compiled.elements())) == sorted(map(sorted, wanted.elements()))
