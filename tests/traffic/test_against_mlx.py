"""Kernels and bytes of whole functions against MLX: what it launches when it runs them, and what each launch moves."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.modelconfig import ModelConfig
from fuselint.traffic.model import Model
from tests.graph.functions import HEAD, program_of
from tests.traffic.models import KEYS, MODELS
from tests.traffic.predicted import compiled, eager
from tests.traffic.random_code import RandomCode, random_code

mx = pytest.importorskip("mlx.core")

from tests.traffic import mlx_kernels as real  # noqa: E402


@pytest.fixture(autouse=True)
def _on_the_cpu() -> Iterator[None]:
    """Where nothing of mx.fast is a kernel of its own, so that all steps can be compared."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


# -- random functions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [*range(0, 2000, 50), 51418])
def test_eager_code(seed: int) -> None:
    code = random_code(seed)
    assert eager(code) == real.eager(code.function(), code.arguments()), code.source


@pytest.mark.parametrize("seed", range(1, 2000, 50))
def test_eager_code_whose_sizes_are_names(seed: int) -> None:
    code = random_code(seed, "named")
    assert eager(code, named=True) == real.eager(code.function(), code.arguments()), code.source


@pytest.mark.parametrize("kind", ["", "shapeless"])
@pytest.mark.parametrize("seed", [*range(2, 2000, 50), 50501, 51156, 60348, 81567])
def test_compiled_code(seed: int, kind: str) -> None:
    code = random_code(seed, kind)
    try:
        want = real.compiled(code.function(), code.arguments(), kind == "shapeless")
    except ValueError as refused:  # by MLX, as mx.arange is of sizes that depend on a shape
        pytest.skip(str(refused))
    assert compiled(code, kind == "shapeless") == want, code.source


@pytest.mark.parametrize("call", ["mx.log1p(x)", "mx.expm1(x)", "mx.sin(x)", "mx.divmod(x, y)[1]", "mx.real(x)",
                                  "mx.quantize(x)[1]", "mx.abs(mx.fft.rfft(x.astype(mx.float16)))",
                                  "mx.imag(mx.fft.fft(x))", "mx.conj(x)"])  # fmt: skip
def test_what_compiled_code_repeats(call: str) -> None:
    """MLX computes it once, but for what it takes for equal to nothing: log1p and expm1."""
    source = f"{HEAD}def f(x, y):\n    a, b = {call}, {call}\n    return mx.cumsum(a * 2.0, axis=0), mx.sort(b + 1.0)\n"
    code = RandomCode(source, ((64, 64), (64, 64)), ("float32", "float32"))
    assert compiled(code) == real.compiled(code.function(), code.arguments())
    assert eager(code) == real.eager(code.function(), code.arguments())


# -- one op at a time --------------------------------------------------------------------------------------------------

OPS = """
2  mx.mean(x, axis=-1)
2  mx.mean(x)
3  mx.mean(i, axis=-1)
6  mx.var(x, axis=-1)
8  mx.var(x, axis=-1, ddof=1)
7  mx.std(x, axis=-1, keepdims=True)
1  mx.softmax(x, axis=-1)
5  mx.softmax(x, axis=1)
5  mx.softmax(x)
2  mx.softmax(x.astype(mx.float16), axis=-1, precise=True)
1  mx.logsumexp(x, axis=-1)
10 mx.logsumexp(x, axis=1)
3  mx.linalg.norm(x, axis=-1)
2  mx.linalg.norm(x, ord=1, axis=-1)
6  mx.median(x, axis=-1)
1  mx.topk(x, 2)
1  mx.argpartition(x, 2, axis=-1)
2  mx.clip(x, 0, 1)
1  mx.repeat(x, 2, axis=1)
1  mx.tile(x, (1, 2, 1))
2  mx.concatenate([x, x * 2], axis=-1)
2  mx.stack([x, x + 1])
1  mx.pad(x, 1)
1  mx.roll(x, 1, axis=-1)
4  mx.tril(x)
6  mx.eye(4, k=-1) * x[..., :4]
5  mx.diag(x[0, 0], k=2) * 1
5  mx.trace(x[0])
1  mx.take(x, mx.array([0, 1]), axis=1)
2  mx.take_along_axis(x, mx.argmax(x, axis=-1, keepdims=True), axis=-1)
1  x @ x.swapaxes(-1, -2)
4  mx.addmm(x, x, x[0].T @ x[0])
1  mx.einsum("bij,bkj->bik", x, x)
1  mx.tensordot(x, x, axes=[[2], [2]])
1  mx.outer(x[0, 0], x[0, 1])
3  mx.kron(x[0], x[1])
2  mx.divmod(x, 3)[1] * 2
19 mx.isclose(x, x)
20 mx.allclose(x, x)
6  mx.nan_to_num(x)
0  x[:, 0]
1  x[..., ::2] * 2
2  x[i] + 1
2  mx.exp(x.swapaxes(0, 1)).reshape(-1)
3  mx.exp(x) + mx.exp(x)
1  mx.broadcast_to(x[:, :, None], (2, 4, 3, 8)).reshape(2, -1)
3  x.astype(mx.bfloat16) * mx.array(0.5)
4  nn.log_softmax(x)
1  nn.gelu(x)
2  nn.gelu_approx(x)
2  nn.silu(x) * x
5  nn.losses.mse_loss(x, x * 2)
7  nn.losses.cross_entropy(x, i, reduction="mean")
7  mx.fast.rms_norm(x, w, 1e-5)
6  mx.fast.rms_norm(x, None, 1e-5)
9  mx.fast.rms_norm(x.astype(mx.float16), w, 1e-5)
11 mx.fast.layer_norm(x, w, w, 1e-5)
13 mx.fast.layer_norm(x.astype(mx.bfloat16), w, w, 1e-5)
17 mx.fast.rope(q, 8, traditional=False, base=10000, scale=1.0, offset=0)
18 mx.fast.rope(q, 4, traditional=True, base=10000, scale=1.0, offset=3)
4  mx.fast.scaled_dot_product_attention(q, q, q, scale=0.3)
8  mx.fast.scaled_dot_product_attention(q, q[:, :1], q[:, :1], scale=0.3, mask="causal")
6  mx.fast.scaled_dot_product_attention(q, q, q, scale=0.3, mask=q[0, 0] @ q[0, 0].T)
"""
ARGUMENTS = {
    "x": ((2, 4, 8), "float32"),
    "w": ((8,), "float32"),
    "q": ((1, 2, 4, 8), "float32"),
    "i": ((2, 4), "int32"),
}


def one_op(body: str) -> RandomCode:
    shapes, dtypes = zip(*ARGUMENTS.values(), strict=True)
    return RandomCode(f"{HEAD}def f({', '.join(ARGUMENTS)}):\n    return {body}\n", shapes, dtypes)


@pytest.mark.parametrize("line", OPS.strip().split("\n"))
def test_an_op(line: str) -> None:
    number, body = line.split(maxsplit=1)
    code = one_op(body)
    found = eager(code)
    assert found == real.eager(code.function(), code.arguments())
    assert found.total() == int(number)


LOSSES = """
mse_loss(x, y, reduction="none")
l1_loss(x, y)
smooth_l1_loss(x, y, beta=0.5, reduction="sum")
huber_loss(x, y, delta=0.5, reduction="mean")
hinge_loss(x, y)
log_cosh_loss(x, y)
gaussian_nll_loss(x, y, x)
margin_ranking_loss(x, y, x, 0.1, "mean")
binary_cross_entropy(x, y)
kl_div_loss(x, y, axis=0, reduction="mean")
nll_loss(x, i)
triplet_loss(x, y, x)
cosine_similarity_loss(x, y, axis=-1, reduction="mean")
cross_entropy(x.astype(mx.float16), i, reduction="sum")
"""


@pytest.mark.parametrize("call", LOSSES.strip().split("\n"))
def test_a_loss(call: str) -> None:
    source = f"{HEAD}def f(x, y, i):\n    return nn.losses.{call}\n"
    code = RandomCode(source, ((2, 4, 8), (2, 4, 8), (2, 4)), ("float32", "float32", "int32"))
    assert eager(code) == real.eager(code.function(), code.arguments())


# -- whole models ------------------------------------------------------------------------------------------------------


def launched(source: str, made: str, arguments: Sequence[Any], dtype: Any) -> Counter[tuple[str, int]]:
    """What an object of the source launches, called once: names and bytes moved."""
    space: dict[str, Any] = {}
    exec(compile(source, "model", "exec"), space)
    model = eval(made, space)
    model.set_dtype(dtype)
    mx.eval(model.parameters())
    return _moved(real.eager(model, arguments))


def foretold(source: str, settings: Settings) -> Counter[tuple[str, int]]:
    """What Model counts of all the objects that the source makes."""
    program = program_of(source)
    model = Model(program, ast.parse(source), settings)
    out: Counter[tuple[str, int]] = Counter()
    for name, objects in model.objects.items():
        graph = model.graph(name)
        assert graph is not None
        for o in objects:
            for x in model.launches(graph, o.made)[0]:
                out[x.kernel.op, x.bytes] += x.times * o.count
    assert model.total is not None
    assert (model.total.moved, model.total.launches) == (sum(n * c for (_, n), c in out.items()), out.total())
    return out


def _moved(kernels: Mapping[tuple[str, int, int], int]) -> Counter[tuple[str, int]]:
    out: Counter[tuple[str, int]] = Counter()
    for (name, read, written), count in kernels.items():
        out[name, read + written] += count
    return out


def settings(dtype: str, **shape: int) -> Settings:
    return Settings(model_config=ModelConfig("a small one", KEYS), shape=shape, dtype=dtype, chip="cpu")


@pytest.mark.parametrize(("dtype", "length"), [("f32", 16), ("bf16", 16), ("bf16", 1)])
def test_a_pass_of_the_sample_decoder(dtype: str, length: int) -> None:
    """All but the mask, whose size its reader isn't told: it is taken to be as large as an activation."""
    source = (Path(__file__).parents[2] / "examples" / "decoder.py").read_text()
    really = mx.float32 if dtype == "f32" else mx.bfloat16
    want = launched(source, "Decoder()", [mx.zeros((1, length), dtype=mx.int32)], really)
    found = foretold(source, settings(dtype, B=1, L=length))
    itemsize = 4 if dtype == "f32" else 2
    scores, mask, activation = 4 * length**2 * itemsize, length**2 * itemsize, 64 * length * itemsize
    assert found - want == Counter({("Add", 2 * scores + activation): 2})
    assert want - found == Counter({("Add", 2 * scores + mask): 2})


@pytest.mark.parametrize("length", [1, 16])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_pass_of_a_model(name: str, dtype: str, length: int) -> None:
    source, made = MODELS[name]
    tokens = mx.zeros((1, length), dtype=mx.int32)
    want = launched(source, made, [tokens], mx.float32 if dtype == "f32" else mx.bfloat16)
    assert foretold(source, settings(dtype, B=1, L=length)) == want
