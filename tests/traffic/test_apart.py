"""Operands of unknown shape: formulas with sizes of their own, and dtypes as the package gives them, against MLX."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from fuselint import check_paths
from fuselint.finding import Traffic
from fuselint.graph.symbols import evaluate

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

ROTATE = """def rotate(x, cos, sin):
    x1, x2 = mx.split(x, 2, axis=-1)
    return x1 * cos - x2 * sin
"""

MIX = """def rotary(q, cos, sin):
    def mix(x):
        return x * cos + mx.abs(x) * sin
    return mix(q.astype(mx.float32))
"""

CALLER = """from tables import rotate

import mlx.core as mx


def run(x: mx.array, n: int):
    angles = mx.arange(n).astype(mx.float32)
    return rotate(x.astype(mx.bfloat16), mx.cos(angles), mx.sin(angles))
"""


def costs(path: Path, code: str, **settings: str | dict[str, int]) -> list[Traffic]:
    (result,) = check_paths([path], select=[code], cache=False, **settings)  # type: ignore[arg-type]
    return [f.traffic for f in result.findings if f.traffic is not None]


def moved(*kernels: tuple[mx.array, ...]) -> int:
    """The bytes of kernels, each given by its operands and result."""
    return sum(a.nbytes for k in kernels for a in k)


def kernels_of(function: object, *arrays: mx.array) -> int:
    """The kernels that MLX's own export of a call names."""
    import io

    out = io.StringIO()
    mx.export_to_dot(out, function(*arrays))  # type: ignore[operator]
    names = [line for line in out.getvalue().splitlines() if "label" in line and "rectangle" in line]
    views = ("Split", "Broadcast", "Slice")
    return sum(not any(v in n for v in views) for n in names)


def test_a_table_has_a_size_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    path.write_text(HEAD + ROTATE)
    (t,) = costs(path, "FUS301")
    x, table = mx.zeros((4, 6, 16), mx.bfloat16), mx.zeros((6, 8), mx.bfloat16)
    half = x[..., :8]
    want = moved((half, table, half), (half, table, half), (half, half, half))
    numbers = {name: 0 for name in t.symbols} | {"T": 24, "N": 16, "cos.size": 48, "sin.size": 48}
    assert evaluate(t.bytes_now, numbers) == want


def test_an_operand_that_makes_no_difference_gets_no_number(tmp_path: Path) -> None:
    """cos is read once before the fix and once after: of any size, what is saved is the same."""
    path = tmp_path / "tables.py"
    path.write_text(HEAD + ROTATE)
    (t,) = costs(path, "FUS301", dtype="bf16")
    assert {"cos.size", "sin.size"} <= t.symbols.keys()
    assert (sorted(t.at), t.assumed, sorted(t.sources)) == (["N", "T"], ("N", "T"), ["N", "T"])
    sizes = {"T": 24, "N": 16}
    x, table = mx.zeros((4, 6, 16), mx.bfloat16), mx.zeros((4, 6, 8), mx.bfloat16)
    half = x[..., :8]
    now = moved((half, table, half), (half, table, half), (half, half, half))
    saved = now - moved((half, half, table, table, half))
    small, large = ({**t.numbers, **sizes, "cos.size": n, "sin.size": n} for n in (1, table.size))
    assert {evaluate(t.bytes_now, n) - evaluate(t.bytes_fused, n) for n in (small, large)} == {saved}
    (said,) = costs(path, "FUS301", dtype="bf16", shape=sizes)
    assert said.saved_at == saved


def test_an_operand_that_is_read_again_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "again.py"
    path.write_text(HEAD + "def f(x: mx.array, sigma):\n    return mx.tanh(x * sigma) * sigma\n")
    (t,) = costs(path, "FUS301", dtype="bf16")
    assert t.at["sigma.size"] == 1 and "sigma.size" in t.assumed
    assert t.sources["sigma.size"] == "assumed"  # a step of a schedule is one number in any model


def test_an_own_size_can_be_stated(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    path.write_text(HEAD + ROTATE)
    (t,) = costs(path, "FUS301", shape={"cos.size": 48})
    assert (t.at["cos.size"], t.sources["cos.size"]) == (48, "stated")
    assert "cos.size" not in t.assumed


def test_a_scale_is_as_long_as_the_rows_of_what_it_scales(tmp_path: Path) -> None:
    path = tmp_path / "modulate.py"
    path.write_text(HEAD + "def f(x: mx.array, shift, scale):\n    return x * (1 + scale) + shift\n")
    (t,) = costs(path, "FUS301", dtype="bf16", shape={"D": 640})
    assert t.at == {"D": 640, "T": 2048, "scale.size": 640}
    assert t.sources == {"D": "stated", "T": "assumed", "scale.size": "assumed"} and not t.typical
    (t,) = costs(path, "FUS301", dtype="bf16")
    assert t.typical == ("D", "scale.size")  # as long as what nothing says


@pytest.mark.parametrize("view", ["cos[None]", "mx.expand_dims(cos, 0)"])
def test_a_view_of_a_table_is_as_large_as_the_table(tmp_path: Path, view: str) -> None:
    path = tmp_path / "tables.py"
    path.write_text(HEAD + f"def f(x, cos):\n    c = {view}\n    return nn.silu(x) * c + x\n")
    (t,) = costs(path, "FUS301")
    assert "cos.size" in t.bytes_now
    assert "cos.shape" not in t.bytes_now


def test_dtypes_come_from_the_calls_in_other_files(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "tables.py").write_text(HEAD + ROTATE)
    (alone,) = costs(tmp_path / "tables.py", "FUS301")
    (tmp_path / "model.py").write_text(CALLER.replace("from tables", "from .tables"))
    (called,) = costs(tmp_path / "tables.py", "FUS301")
    x, table = mx.zeros((4, 6, 16), mx.bfloat16), mx.zeros((8,), mx.float32)
    mx.eval(x, table)

    def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        a, b = mx.split(x, 2, axis=-1)
        return a * cos - b * sin

    assert called.kernels_now == kernels_of(rotate, x, table, table) == 5
    assert (alone.kernels_now, "dtype" in alone.assumed) == (3, True)


def test_a_nested_function_has_the_dtype_of_what_it_is_called_with(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    path.write_text(HEAD + MIX)
    t, _ = costs(path, "FUS301")
    x = mx.zeros((4, 8), mx.float32)
    want = moved((x, x, x), (x, x), (x, x, x), (x, x, x))
    numbers = {name: 0 for name in t.symbols} | {"T": 4, "D": 8, "cos.size": 32, "sin.size": 32}
    assert evaluate(t.bytes_now, numbers) == want


def test_a_configuration_is_a_number_and_no_array(tmp_path: Path) -> None:
    path = tmp_path / "norm.py"
    path.write_text(
        HEAD + "class Norm(nn.Module):\n    def __init__(self, config):\n        super().__init__()\n"
        "        self.config = config\n"
        "    def __call__(self, x):\n        h = x.reshape(*x.shape[:2], -1).astype(mx.float32)\n"
        "        h = h * mx.rsqrt(mx.mean(h * h, axis=-1, keepdims=True) + self.config.eps)\n"
        "        return h.astype(x.dtype)\n"
    )
    (t,) = costs(path, "FUS201")
    assert t.bytes_now == "32*T*D"


def test_the_weight_that_a_fix_makes_is_a_kernel_under_compile_too(tmp_path: Path) -> None:
    path = tmp_path / "unit.py"
    body = "    return x * mx.rsqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)\n"
    path.write_text(HEAD + "@mx.compile\ndef f(x: mx.array):\n" + body)
    (t,) = costs(path, "FUS203")
    assert (t.kernels_now, t.kernels_fused) == (3, 2)


TABLES = """import mlx.core as mx
import mlx.nn as nn


class Tables:
    def __init__(self, sizes):
        self.kept = Tables.made(sizes)

    @staticmethod
    def made(sizes):
        out = []
        for n in sizes:
            out.append(mx.cos(mx.arange(n, dtype=mx.float32)))
        return out

    def angles(self, at):
        cosines, sines = [], []
        for i in range(3):
            cosines.append(self.kept[i][at])
            sines.append(self.kept[i][at])
        return mx.concatenate(cosines, axis=-1), mx.concatenate(sines, axis=-1)


def rotate(x, cos, sin):
    return x * cos - mx.abs(x) * sin


class Attention(nn.Module):
    def __call__(self, x, tables):
        cos, sin = tables
        return rotate(x, cos, sin)


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.tables = Tables([n, n, n])
        self.layer = Attention()

    def __call__(self, x: mx.array, at: mx.array):
        return self.layer(x.astype(mx.bfloat16), self.tables.angles(at))
"""


def test_tables_of_lists_tuples_and_attributes_are_float32(tmp_path: Path) -> None:
    """Two bfloat16 operands meet float32 tables: MLX casts x and abs(x), and computes in float32."""
    path = tmp_path / "tables.py"
    path.write_text(TABLES)
    (cost,) = costs(path, "FUS301")
    n = 96
    x, table = mx.ones((n,), dtype=mx.bfloat16), mx.cos(mx.arange(n, dtype=mx.float32))
    mx.eval(x, table)  # what is computed already is no kernel of the call
    assert cost.kernels_now == kernels_of(lambda a, c, s: a * c - mx.abs(a) * s, x, table, table) == 6
    at = {name: n for name in cost.symbols} | {"T": 1, "D": n}
    wide = x.astype(mx.float32)
    products = [(wide, table, wide)] * 2
    assert evaluate(cost.bytes_now, at) == moved((x, x), (x, wide), (x, wide), *products, (wide, wide, wide))


NORMED = """import mlx.core as mx
import mlx.nn as nn


def rotate(x, cos, sin):
    a, b = mx.split(x, 2, axis=-1)
    return a * cos - b * sin


class Norm(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.weight = mx.ones((dims,))

    def __call__(self, x):
        dtype = x.dtype
        x = x.astype(mx.float32)
        return (x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True)) * self.weight).astype(dtype)


class Attention(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.q = nn.Linear(dims, dims)
        self.norm = Norm(dims)

    def __call__(self, x, n: int):
        angles = mx.arange(n).astype(mx.float32)
        return rotate(PROJECTED, mx.cos(angles), mx.sin(angles))
"""


@pytest.mark.parametrize("projected", ["self.norm(self.q(x))", "mx.split(self.q(x), 3, axis=0)[0]", "self.q(x)"])
def test_what_a_layer_makes_has_the_dtype_of_its_weights(tmp_path: Path, projected: str) -> None:
    """MLX casts both halves to the table's float32."""
    path = tmp_path / "model.py"
    path.write_text(NORMED.replace("PROJECTED", projected))
    (cost,) = [t for t in costs(path, "FUS301") if t.kernels_fused == 1 and "N" in t.at]
    x, table = mx.zeros((4, 6, 16), mx.bfloat16), mx.zeros((8,), mx.float32)
    mx.eval(x, table)

    def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        a, b = mx.split(x, 2, axis=-1)
        return a * cos - b * sin

    assert cost.kernels_now == kernels_of(rotate, x, table, table) == 5


def test_a_cast_back_says_that_what_was_met_is_wider(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    text = "    return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)\n"
    path.write_text(HEAD + "def rotate(x, cos, sin):\n    a, b = mx.split(x, 2, axis=-1)\n" + text)
    assert {(t.kernels_now, "dtype" in t.assumed) for t in costs(path, "FUS301")} == {(5, True)}


def test_a_call_that_is_not_followed_makes_float32_of_float32(tmp_path: Path) -> None:
    path = tmp_path / "scores.py"
    text = "        q = mx.exp(x.astype(mx.float32))\n        logits = self.scorer(q, q)\n"
    text += "        return mx.tanh(logits / 3.0) * 3.0 + q\n"
    path.write_text(HEAD + f"class Scores(nn.Module):\n    def __call__(self, x: mx.array):\n{text}")
    (cost,) = [t for t in costs(path, "FUS301") if t.kernels_now == 4]
    logits = mx.zeros((4, 8), mx.float32)
    numbers = {name: {"T": 4, "D": 8}.get(name, 32) for name in cost.symbols}
    assert evaluate(cost.bytes_now, numbers) == moved(*[(logits, logits)] * 3, (logits,) * 3)


def test_what_is_computed_twice_is_no_operand_of_the_fused_kernel(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(
        HEAD + "def f(x: mx.array, b: mx.array):\n    return mx.where(x > 0, mx.exp(x) + b * x, mx.sin(x) - b * x)\n"
    )
    (cost,) = costs(path, "FUS301")
    x = mx.zeros((4, 8), mx.bfloat16)
    numbers = {name: {"T": 4, "D": 8, "b.size": 32}[name] for name in cost.symbols}
    assert evaluate(cost.bytes_fused, numbers) == moved((x, x, x))


def test_a_weight_that_is_made_float32_in_so_many_words_is_float32(tmp_path: Path) -> None:
    path = tmp_path / "weights.py"
    body = (
        "    def __call__(self, x: mx.array):\n        return nn.silu(x.astype(mx.float32) * self.scale + self.base)\n"
    )
    made = "        super().__init__()\n        self.scale = mx.ones((d,)DTYPE)\n"
    made += "        self.base = mx.zeros((d,)DTYPE)\n\n"
    counts = {}
    for dtype in (", dtype=mx.float32", ""):
        path.write_text(
            HEAD + "class Scale(nn.Module):\n    def __init__(self, d):\n" + made.replace("DTYPE", dtype) + body
        )
        (cost,) = costs(path, "FUS301")
        counts[dtype] = cost.kernels_now
    x, scale, base = mx.zeros((4, 8), mx.bfloat16), mx.zeros((8,)), mx.zeros((8,))
    mx.eval(x, scale, base)
    run = kernels_of(lambda a, s, b: mx.tanh(a.astype(mx.float32) * s + b), x, scale, base)
    assert counts == {", dtype=mx.float32": run, "": run + 2}


def test_a_table_of_four_axes_has_a_length(tmp_path: Path) -> None:
    path = tmp_path / "tables.py"
    body = (
        "    cos = mx.tile(mx.expand_dims(mx.cos(freqs), axis=1), (1, 1, 2))[None]\n    return nn.silu(x) * cos + cos\n"
    )
    path.write_text(HEAD + "def f(x: mx.array, freqs: mx.array):\n" + body)
    (cost,) = costs(path, "FUS301")
    assert cost.at["L"] == 2048


ENCODER = """import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __call__(self, q: mx.array, k: mx.array, v: mx.array, mask=None):
        B, H, L, D = q.shape
        k, v = k.reshape(B, H, L, D), v.reshape(B, H, L, D)
        scores = q @ k.transpose(0, 1, 3, 2)
        if mask is not None:
            scores = scores + mask
        return mx.softmax(scores, axis=-1) @ v


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def __call__(self, x: mx.array, mask=None):
        return self.attention(x, x, x, mask=mask)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Layer()

    def __call__(self, x: mx.array):
        return self.layer(x)GIVEN
"""


@pytest.mark.parametrize("given", ["", " + self.layer(x, mx.zeros((4, 4)))"])
def test_a_mask_that_no_call_gives_is_no_operand(tmp_path: Path, given: str) -> None:
    path = tmp_path / "encoder.py"
    path.write_text(ENCODER.replace("GIVEN", given))
    (t,) = costs(path, "FUS211")
    q = mx.zeros((1, 2, 4, 8), mx.bfloat16)
    keys = mx.zeros((1, 2, 8, 4), mx.bfloat16)
    mx.eval(q, keys)
    plain = kernels_of(lambda q, k: mx.softmax(q @ k, axis=-1) @ q, q, keys)
    assert t.kernels_now == plain + bool(given)
    scores = mx.zeros((1, 2, 4, 4), mx.bfloat16)
    if not given:
        sizes = {"B": 1, "H": 2, "L": 4, "D": 8}
        assert evaluate(t.bytes_now, sizes) == moved((q, q, scores), (scores, scores), (scores, q, q))
        assert evaluate(t.bytes_fused, sizes) == moved((q, q, q, q))


OPTIONAL_WEIGHT = """import mlx.core as mx
import mlx.nn as nn


class Attention(nn.Module):
    def __init__(self, dims: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dims, 3 * dims)

    def __call__(self, x: mx.array):
        b, n, d = x.shape
        q, k, v = mx.split(self.qkv(x).reshape(b, n, 3 * self.heads, -1).transpose(0, 2, 1, 3), 3, axis=1)
        return mx.softmax((q @ k.transpose(0, 1, 3, 2)) * d**-0.5, axis=-1) @ v


class Layer(nn.Module):
    def __init__(self, dims: int):
        super().__init__()
        self.attention = Attention(dims, 4)

    def __call__(self, x: mx.array):
        return x + self.attention(x)


class Encoder(nn.Module):
    def __init__(self, dims: int, first: bool):
        super().__init__()
        self.embed = nn.Linear(3, dims)
        if first:
            self.token = mx.zeros((1, 1, dims))
        else:
            self.token = None
        self.layers = [Layer(dims) for _ in range(4)]

    def __call__(self, x: mx.array):
        x = self.embed(x)
        if self.token is not None:
            x = mx.concatenate([mx.broadcast_to(self.token, (x.shape[0], 1, 8)), x], axis=1)
        for layer in self.layers:
            x = layer(x)
        return x
"""


def test_a_weight_that_may_be_none_has_the_dtype_that_loading_gives_it(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(OPTIONAL_WEIGHT)
    (t,) = costs(path, "FUS211")
    assert t.dtype == "bf16"
    scores, q = mx.zeros((2, 4, 5, 5), mx.bfloat16), mx.zeros((2, 4, 5, 2), mx.bfloat16)
    now = moved((q, q, scores), (scores, scores), (scores, scores), (scores, q, q))
    sizes = {"b": 2, "n": 5, "heads": 4, "D": 2, "d": 8, "B": 2, "H": 4, "L": 5, "S": 5}
    assert evaluate(t.bytes_now, {n: sizes[n.rsplit(".", 1)[-1]] for n in t.symbols}) == now


BY_FRAME = """
class Block(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.parts = nn.Linear(dim, 6 * dim)

    def __call__(self, x, c):
        a, b, d, e, f, g = mx.split(self.parts(c), 6, axis=-1)
        return self.norm(x) * (1 + a) + b


class Model(nn.Module):
    def __init__(self, dim: int = 48):
        super().__init__()
        self.frames, self.times = nn.Linear(7, dim), nn.Linear(1, dim)
        self.blocks = [Block(dim) for _ in range(2)]

    def __call__(self, x, frames, t):
        c = GIVEN
        for block in self.blocks:
            x = block(x, c)
        return x
"""


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("self.frames(frames) + self.times(t)[:, None, :]", 2048 * 48),
        ("self.frames(frames)[:, None] + self.times(t)[:, None]", 48),
        ("self.frames(frames) + self.times(t)", 48),
        ("self.times(t)[:, None]", 48),
    ],
)
def test_what_modulates_each_row_is_as_large_as_the_rows(tmp_path: Path, given: str, size: int) -> None:
    path = tmp_path / "a.py"
    path.write_text("import mlx.core as mx\nimport mlx.nn as nn\n" + BY_FRAME.replace("GIVEN", given))
    (result,) = check_paths([path], select=["FUS301"], cache=False)
    (t,) = [f.traffic for f in result.findings if f.traffic is not None]
    assert t.saved_at == 2 * 2 * (2048 * 48 + size)
