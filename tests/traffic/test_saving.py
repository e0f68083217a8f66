"""What a finding says of bytes and launches: formulas in the code's names, numbers, and what was assumed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from fractions import Fraction

import mlx.core as mx

from fuselint.config import Settings
from fuselint.finding import Saved, Traffic
from fuselint.graph.callers import given_dtypes
from fuselint.graph.supplied import MODEL
from fuselint.graph.symbols import Expr, evaluate
from fuselint.rulebook import rules
from fuselint.traffic import saving
from fuselint.traffic.known import Known
from fuselint.traffic.sizes import Sizes
from tests.graph.functions import HEAD, graph_of

NORM = """
class RMSNorm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def _norm(self, x):
        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)

    def __call__(self, x):
        output = self._norm(x.astype(mx.float32)).astype(x.dtype)
        return self.weight * output
"""


def savings(source: str, code: str, qualname: str = "f", settings: Settings | None = None) -> Iterator[Traffic]:
    graph = graph_of(HEAD + source, qualname)
    (rule,) = [r for r in rules() if r.code == code]
    for match in rule.find(graph):
        yield saving(graph, match, settings or Settings())


def test_a_llama_norm_moves_nine_times_what_it_has_to() -> None:
    (t,) = savings(NORM, "FUS201", "RMSNorm.__call__")
    assert (t.bytes_now, t.bytes_fused) == ("36*T*D", "4*T*D")
    assert (t.kernels_now, t.kernels_fused) == (9, 1)
    assert t.symbols == {"T": "rows of x", "D": "dims"}
    assert (t.at, t.assumed) == ({"T": 2048, "D": 4096}, ("D", "T", "dtype"))


def test_a_saving_is_a_share_and_a_formula() -> None:
    (t,) = savings(NORM, "FUS201", "RMSNorm.__call__")
    assert (dict(t.sources), t.typical) == ({"D": "typical", "T": "assumed"}, ("D",))
    assert t.saves == Saved("32*T*D", 1 - 4 / 36, exact=True)
    assert t.otherwise is not None and t.otherwise.less is True
    assert t.otherwise.saves == Saved("20*T*D", float(1 - Fraction(8, 28)), exact=True)
    (stated,) = savings(NORM, "FUS201", "RMSNorm.__call__", Settings(shape={"D": 64}))
    assert stated.typical == () and stated.saves == t.saves


GATED = """def f(x: mx.array, {}):
    return mx.tanh(mx.sigmoid({}) * x)
"""


def test_a_share_is_told_of_where_sizes_hardly_change_it() -> None:
    """A vector is small beside rows, whatever it is exactly; what may be as large as the rows or not decides."""
    (small,) = savings(GATED.format("weight", "weight"), "FUS301", settings=Settings(dtype="bf16"))
    assert small.typical == ("D", "weight.size")
    assert small.saves is not None and not small.saves.exact and small.saves.share is not None
    sizes = {"T": 512, "D": 640, "weight.size": 640}
    now, fused = (evaluate(text, sizes) for text in (small.bytes_now, small.bytes_fused))
    assert abs(small.saves.share - (1 - fused / now)) < 0.01
    (large,) = savings(GATED.format("y", "y"), "FUS301", settings=Settings(dtype="bf16"))
    assert large.saves is not None and large.saves.share is None
    stated = Settings(dtype="bf16", shape={**sizes, "x.size": 7})
    (said,) = savings(GATED.format("y", "y"), "FUS301", settings=stated)
    assert said.saves is not None and said.saves.share is not None


def kernels_of(function: Callable[..., mx.array], *arrays: mx.array) -> int:
    """The kernels that MLX's own export of a call names."""
    mx.eval(arrays)
    out = io.StringIO()
    mx.export_to_dot(out, function(*arrays))
    names = [line for line in out.getvalue().splitlines() if "label" in line and "rectangle" in line]
    return sum(not any(v in n for v in ("Split", "Broadcast", "Slice")) for n in names)


def test_where_nobody_states_a_dtype_both_widths_are_counted_and_the_smaller_saving_stands() -> None:
    """In float32 the casts are nothing."""
    (t,) = savings(NORM, "FUS201", "RMSNorm.__call__")

    def norm(x: mx.array, weight: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        return weight * (wide * mx.rsqrt(wide.square().mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)

    ran = {d: kernels_of(norm, mx.zeros((4, 8), d), mx.zeros((8,), d)) for d in (mx.bfloat16, mx.float32)}
    other = t.otherwise
    assert other is not None
    assert (t.dtype, t.kernels_now, other.dtype, other.kernels_now) == ("bf16", ran[mx.bfloat16], "f32", 7)
    assert other.kernels_now == ran[mx.float32]
    assert (other.bytes_now, other.bytes_fused) == ("28*T*D", "8*T*D")
    assert t.saved_at == other.saved_at == 20 * 2048 * 4096
    assert t.launches_fewer == other.launches_fewer == 6


def test_a_stated_dtype_is_the_only_one() -> None:
    for dtype, saved in (("bf16", 32), ("f32", 20)):
        (t,) = savings(NORM, "FUS201", "RMSNorm.__call__", Settings(dtype=dtype))
        assert (t.otherwise, t.assumed, t.saved_at) == (None, ("D", "T"), saved * 2048 * 4096)


def test_what_meets_float32_may_be_narrower() -> None:
    """`x` counts as float32, as the ones beside it; of a bfloat16 one MLX makes a float32 one first."""
    source = "def f(x: mx.array, n: int):\n    w = mx.ones((n,))\n    return mx.tanh(x * w) * w + w\n"
    (t,) = savings(source, "FUS301")
    ones = mx.ones((8,), mx.float32)
    ran = {
        d: kernels_of(lambda x, w: mx.tanh(x * w) * w + w, mx.zeros((4, 8), d), ones) for d in (mx.bfloat16, mx.float32)
    }
    other = t.otherwise
    assert other is not None
    assert (t.dtype, t.kernels_now, other.dtype, other.kernels_now) == ("f32", ran[mx.float32], "bf16", 5)
    assert other.kernels_now == ran[mx.bfloat16]


def test_a_packed_weight_is_as_wide_as_its_values() -> None:
    """4 bits a value, 2 bytes of scale and 2 of bias a group of 64; dequantized: written and read in 2 bytes."""
    for layer in ("x @ w.T", "x @ w.swapaxes(-1, -2)"):
        source = f"def f(x, w, s, b):\n    w = mx.dequantize(w, s, b, group_size=64, bits=4)\n    return {layer}\n"
        (t,) = savings(source, "FUS241")
        assert t.at == {"D": 4096, "in_dims": 4096}
        packed, whole = 4096 * 4096 * (1 / 2 + 4 / 64), 2 * 2 * 4096 * 4096
        ends = 2 * 2048 * (4096 + 4096)
        assert evaluate(t.bytes_now, {**t.at, "T": 2048}) == ends + packed + whole
        assert evaluate(t.bytes_fused, {**t.at, "T": 2048}) == ends + packed


def test_stated_sizes_are_not_assumed() -> None:
    (t,) = savings(NORM, "FUS201", "RMSNorm.__call__", Settings(shape={"RMSNorm.T": 16, "D": 64}))
    assert (t.at, t.assumed, t.saved_at) == ({"T": 16, "D": 64}, ("dtype",), 20 * 16 * 64)


def test_float32_activations_take_twice_the_bytes() -> None:
    source = "def f(g, u):\n    return nn.silu(g) * u\n"
    (half,) = savings(source, "FUS301")
    (single,) = savings(source, "FUS301", settings=Settings(dtype="f32"))
    assert (half.bytes_now, half.bytes_fused) == ("8*T*D + 2*u.size", "4*T*D + 2*u.size")
    assert (single.bytes_now, single.bytes_fused) == ("16*T*D + 4*u.size", "8*T*D + 4*u.size")
    assert "dtype" in half.assumed
    assert "dtype" not in single.assumed


def test_sizes_print_in_the_names_of_the_code() -> None:
    body = "B, N, C = x.shape\n    return x * (1 + scale[:, None, :]) + shift[:, None, :]"
    source = f"def f(x, scale, shift):\n    {body}\n"
    (t,) = savings(source, "FUS301")
    assert (t.bytes_now, t.bytes_fused) == ("8*B*N*C", "4*B*N*C")  # the scale is one row of each of B


def test_a_value_that_is_read_elsewhere_is_still_computed() -> None:
    source = "def f(x):\n    a = mx.exp(x)\n    b = mx.tanh(a * 2 + 1)\n    return a, b\n"
    (t,) = savings(source, "FUS301")
    assert (t.kernels_now, t.kernels_fused) == (3, 1)  # the exp is no part of it


ROTATIONS = """
def rotate(q, k, cos, sin):
    a, b, c, d = q[..., ::2], q[..., 1::2], k[..., ::2], k[..., 1::2]
    q = mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(q.shape)
    k = mx.stack([c * cos - d * sin, d * cos + c * sin], axis=-1).reshape(k.shape)
    return q, k


def tables(length: int):
    angles = mx.outer(mx.arange(length), 100.0 ** (-mx.arange(0, 64, 2) / 64))
    return mx.cos(angles), mx.sin(angles)


def f(q, k):
    cos, sin = tables(q.shape[2])
    return rotate(q, k, cos, sin)
"""


def test_each_kernel_of_a_fix_spares_what_it_writes() -> None:
    (t,) = savings(ROTATIONS, "FUS221", "rotate")
    assert (t.kernels_now, t.kernels_fused) == (14, 2)
    assert (
        t.bytes_now == "72*B*T*H*F + 72*B*T*G*F + 32*T*F"
    )  # float32, as the tables: 4 products of 8, 2 sums of 12, a stack of 16; the half of 2*F is F
    assert t.bytes_fused == "16*B*T*H*F + 16*B*T*G*F"


def test_casts_count_at_the_size_of_each_side() -> None:
    source = "def f(x: mx.array):\n    return (x.astype(mx.float32) * 2 + 1).astype(x.dtype)\n"
    (t,) = savings(source, "FUS301")
    assert t.bytes_now == "28*T*D"  # 2 + 4, 4 + 4, 4 + 4, 4 + 2
    assert t.bytes_fused == "4*T*D"


def test_code_under_mx_compile_is_counted_as_compiled() -> None:
    (t,) = savings(NORM.replace("    def __call__", "    @staticmethod\n    @mx.compile\n    def norm(x, weight):\n"
                                "        y = x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5)\n"
                                "        return weight * y\n\n    def __call__"), "FUS201", "RMSNorm.norm")  # fmt: skip
    assert (t.kernels_now, t.kernels_fused) == (3, 1)


ATTENTION = """def f(q: mx.array, k: mx.array, v: mx.array):
    q = q.reshape(1, 8, 512, {d})
    k = k.reshape(1, 8, 512, {d})
    v = v.reshape(1, 8, 512, {d})
    return mx.softmax(q @ k.swapaxes(-1, -2) * 0.125, axis=-1) @ v
"""


def test_attention_by_hand_becomes_one_kernel() -> None:
    (fused,) = savings(ATTENTION.format(d=64), "FUS211")
    assert (fused.kernels_now, fused.kernels_fused, fused.saved_at) == (4, 1, 6 * 2 * 8 * 512 * 512)


def test_both_copies_of_repeated_heads_go() -> None:
    source = (
        "def f(q, k, v, n: int):\n    k = mx.repeat(k, n, axis=1)\n    v = mx.repeat(v, n, axis=1)\n"
        "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)\n"
    )
    (t,) = savings(source, "FUS101")
    assert (t.kernels_now, t.kernels_fused, t.bytes_fused) == (2, 0, "0")


def test_what_a_fix_makes_for_its_kernel_counts() -> None:
    source = "def f(x: mx.array):\n    return x * mx.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6)\n"
    (t,) = savings(source, "FUS203")
    assert (t.kernels_now, t.kernels_fused, t.bytes_fused) == (5, 2, "4*T*D")  # mx.full, and the norm


def test_a_weight_that_a_fix_scales_is_a_kernel() -> None:
    source = (
        "class N(nn.Module):\n    def __init__(self, dims):\n        super().__init__()\n"
        "        self.scale = mx.ones((dims,))\n    def __call__(self, x):\n"
        "        return x / mx.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) * self.scale\n"
    )
    (t,) = savings(source, "FUS203", "N.__call__")
    assert (t.kernels_now, t.kernels_fused) == (6, 2)


def test_an_activation_counts_as_mlx_compiles_it() -> None:
    """nn.gelu_approx is a Power and the rest: shapeless=True, so a broadcast stands before each operand."""
    source = "def f(x: mx.array):\n    return 0.5 * x * (1 + mx.tanh(0.7978845608 * (x + 0.044715 * x**3)))\n"
    (t,) = savings(source, "FUS261")
    assert (t.kernels_now, t.kernels_fused) == (8, 2)
    assert t.bytes_fused == "10*T*D"  # 2 + 2, and 2 + 2 + 2


def test_the_logarithm_of_a_softmax_becomes_two_kernels() -> None:
    (t,) = savings("def f(x: mx.array):\n    return mx.log(mx.softmax(x, axis=-1))\n", "FUS251")
    assert (t.kernels_now, t.kernels_fused, t.bytes_now, t.bytes_fused) == (2, 2, "8*T*D", "6*T*D")


def test_a_cast_of_an_operand_stays_with_the_fused_product() -> None:
    source = (
        "class M(nn.Module):\n    def __init__(self, d, n):\n        super().__init__()\n"
        "        self.weight = mx.zeros((d, n))\n        self.bias = mx.zeros((n,))\n"
        "    def __call__(self, x: mx.array):\n"
        "        return x.astype(mx.float32) @ self.weight + self.bias\n"
    )
    (t,) = savings(source, "FUS231", "M.__call__")
    assert (t.kernels_now, t.kernels_fused) == (4, 3)  # both parameters are cast, before and after


def test_the_width_that_a_product_sums_over_is_not_that_of_its_result() -> None:
    source = "def f(x: mx.array, w: mx.array, b: mx.array):\n    return x @ w + b\n"
    (t,) = savings(source, "FUS231")
    assert t.bytes_now == "6*T*D + 2*T*in_dims + 2*D*in_dims"  # x, w; the product and the sum
    assert t.bytes_fused == "2*T*D + 2*T*in_dims + 2*D*in_dims"
    assert t.at == {"T": 2048, "D": 4096}


def test_a_loss_that_is_cast_back_is_two_kernels() -> None:
    source = (
        "def f(logits: mx.array, targets: mx.array):\n"
        "    return mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]\n"
    )
    (t,) = savings(source, "FUS252")
    assert (t.kernels_now, t.kernels_fused) == (3, 2)


def test_an_axis_that_broadcasts_has_the_name_of_the_code() -> None:
    source = (
        "def f(x: mx.array, mask: mx.array):\n    B, H, L, S = x.shape\n"
        "    return mx.exp(x + mask[:, None, :, :]) * 2\n"
    )
    (t,) = savings(source, "FUS301")
    assert t.bytes_fused == "4*B*H*L*S + 2*B*L*S"  # the mask is the same for every head


ATTEND = (
    "def f(q: mx.array, k: mx.array, v: mx.array, {arguments}):\n"
    "    q, k, v = (a.reshape(1, 8, 512, 64) for a in (q, k, v))\n"
    "    s = q @ k.swapaxes(-1, -2) * 0.125\n{mask}"
    "    return mx.softmax(s, axis=-1) @ v\n"
)


def test_a_mask_that_is_made_in_either_way_is_read_before_and_after() -> None:
    mask = (
        "    if mask is not None:\n        if mask.ndim == 2:\n"
        "            m = mx.where(mask[None, None], -1e9, 0.0).astype(q.dtype)\n"
        "        else:\n            m = mx.where(mask[:, None], -1e9, 0.0).astype(q.dtype)\n        s = s + m\n"
    )
    (t,) = savings(ATTEND.format(arguments="mask=None", mask=mask), "FUS211")
    assert (t.kernels_now, t.kernels_fused) == (5, 1)  # the product, its scale, the mask; softmax; the values
    assert t.bytes_now.endswith(" + 524288")  # 2*512*512
    assert t.bytes_fused.endswith(" + 524288")


def test_masks_that_are_added_one_by_one_are_summed_first() -> None:
    mask = "    s = s + a.astype(q.dtype)[None]\n    s = s + b.astype(q.dtype)\n"
    body = ATTEND.format(arguments="a: mx.array, b: mx.array", mask=mask)
    (t,) = savings(
        body.replace("    s = q", "    a, b = a.reshape(8, 512, 512), b.reshape(512, 512)\n    s = q"), "FUS211"
    )
    assert (t.kernels_now, t.kernels_fused) == (6, 2)  # product, scale, two sums, softmax, values; a sum, attention


def test_a_dtype_parameter_has_its_default() -> None:
    source = (
        "def f(n: int, m: int, dtype: mx.Dtype = mx.float32):\n"
        "    mask = mx.full((n, m), -1e9, dtype=dtype)\n"
        "    hidden = mx.arange(n)[:, None] < mx.arange(m)\n"
        "    return mx.where(hidden, mx.zeros_like(mask), mask)\n"
    )
    (t,) = savings(source, "FUS106")
    assert (t.bytes_now, t.bytes_fused) == ("17*m*n", "9*m*n")  # float32: zeros 4; 1, 4 and 4, and 4


def test_heads_are_heads_where_the_code_has_no_name_for_them() -> None:
    source = (
        "class A(nn.Module):\n    def __init__(self, n: int, groups: int):\n        super().__init__()\n"
        "        self.n, self.groups = n, groups\n    def attend(self, q, k, v):\n"
        "        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)\n"
        "        k = mx.repeat(k, self.n // self.groups, axis=1)\n"
        "        v = mx.repeat(v, self.n // self.groups, axis=1)\n"
        "        return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0)\n"
    )
    (t,) = savings(source, "FUS101", "A.attend")
    assert t.at["G"] == 8


def test_h_between_a_length_and_a_width_is_heads() -> None:
    source = (
        "def f(q: mx.array, k: mx.array):\n    b, t, h, d = q.shape\n"
        "    return mx.sigmoid(q.reshape(b, t, h, d)) * 2 + k.reshape(b, t, h, d)\n"
    )
    (t,) = savings(source, "FUS301")
    assert (t.at["h"], t.at["t"]) == (32, 2048)


TABLES = """
def halves(x):
    a, b = mx.split(x, 2, axis=-1)
    return mx.concatenate([-b, a], axis=-1)


class Tables(nn.Module):
    def __init__(self, dims, base=10000.0):
        super().__init__()
        self.dims, self.base = dims, base

    def __call__(self, x):
        widths = self.base ** (mx.arange(0, self.dims, 2, dtype=mx.float32) / self.dims)
        a = mx.outer(mx.arange(x.shape[1], dtype=mx.float32), 1.0 / widths)
        a = mx.concatenate([a, a], axis=-1)
        return mx.cos(a)[None, :, None, :], mx.sin(a)[None, :, None, :]


class Attention(nn.Module):
    def __init__(self, dims, heads):
        super().__init__()
        self.heads, self.hd = heads, dims // heads
        self.q = nn.Linear(dims, dims)

    def __call__(self, x: mx.array, tables):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, self.heads, self.hd)
        cos, sin = tables
        return q * cos + halves(q) * sin


class Model(nn.Module):
    def __init__(self, dims, heads):
        super().__init__()
        self.rope = Tables(dims // heads)
        self.attention = Attention(dims, heads)

    def __call__(self, x):
        return self.attention(x, self.rope(x))
"""


def test_float32_tables_widen_what_they_rotate() -> None:
    (t,) = savings(TABLES, "FUS221", "Attention.__call__")
    assert (t.kernels_now, t.kernels_fused) == (7, 1)  # -b, both halves; two casts and two products; the sum
    assert t.bytes_now.startswith("92*B*L*F*heads")  # 4 + 8, 12 + 12 for casts, 16 + 16 for products, 24
    assert t.bytes_fused == "8*B*L*F*heads"


def test_a_norm_that_is_not_cast_back_has_one_kernel() -> None:
    source = (
        "class N(nn.Module):\n    def __init__(self, dims):\n        super().__init__()\n"
        "        self.weight = mx.ones((dims,))\n    def __call__(self, x: mx.array):\n"
        "        mean = mx.mean(x.astype(mx.float32) ** 2, axis=-1, keepdims=True)\n"
        "        return self.weight * (x * mx.rsqrt(mean + 1e-6))\n"
    )
    (t,) = savings(source, "FUS201", "N.__call__")
    assert (t.kernels_fused, t.bytes_fused) == (1, "4*T*D")  # the result takes x's dtype, which the fix says


def test_a_value_of_a_loop_has_the_shape_that_it_had_before() -> None:
    source = (
        "def f(q: mx.array, v: mx.array, n: int):\n"
        "    B, H, L, K = q.shape\n    state = mx.zeros((B, H, K, K))\n    out = []\n"
        "    for i in range(n):\n        out.append(state)\n        state = state * 0.5 + q.swapaxes(-1, -2) @ q\n"
        "    return mx.stack(out)\n"
    )
    (t,) = savings(source, "FUS301")
    assert (t.bytes_now, t.bytes_fused) == ("20*B*H*K*K", "12*B*H*K*K")  # 8 and 12


def test_pairs_of_a_head_are_few_where_the_code_does_not_say() -> None:
    sizes = Sizes()
    sizes.meanings["F"] = Expr.name("x.shape[-1]") // 2
    sizes.meanings["D"] = Expr.name("x.shape[-1]")
    assert sizes.number("F", Known()) == (64, "typical")  # not half of a model's width
    assert sizes.number("D", Known()) == (4096, "typical")


ROTATED = """
def rotated(q, k, table):
    q, k = q.astype(mx.float32), k.astype(mx.float32)
    return table * q, table * k


def f(x, v: mx.array, n: int, table=None):
    B, L, H, D = x.shape
    q = k = x.transpose(0, 2, 1, 3)
    if table is not None:
        {rotate}
    k = mx.repeat(k, n, axis=1)
    v = mx.repeat(v, n, axis=1)
    return mx.fast.scaled_dot_product_attention(q.astype(v.dtype), k.astype(v.dtype), v, scale=1.0)
"""


def test_what_a_branch_computes_has_the_dtype_that_it_gives() -> None:
    (wide,) = savings(ROTATED.format(rotate="q, k = rotated(q, k, table)"), "FUS101")
    (half,) = savings(ROTATED.format(rotate="k = k * 2"), "FUS101")
    assert wide.bytes_now == "6*B*H*L*D*n + 6*B*H*L*D"  # keys of 4 bytes, values of 2
    assert half.bytes_now == "4*B*H*L*D*n + 4*B*H*L*D"


def test_a_mask_of_rows_has_no_other_axes() -> None:
    source = (
        "def f(x, mask, weight: mx.array):\n    h = nn.Linear(8, 16)(x)\n"
        "    return mx.where(mask[:, :, None].astype(mx.bool_), h, mx.zeros_like(h))\n"
    )
    (t,) = savings(source, "FUS106")
    assert (t.bytes_now, t.bytes_fused) == ("B*L + 128*T", "B*L + 64*T")


AFFINE = """
class Norm(nn.Module):
    def __init__(self, dims, affine=True):
        super().__init__()
        self.affine = affine
        if affine:
            self.weight = mx.ones((dims,))
            self.bias = mx.zeros((dims,))
        else:
            self.weight = None
            self.bias = None

    @mx.compile
    def __call__(self, x):
        y = (x - mx.mean(x, axis=-1, keepdims=True)) * mx.rsqrt(mx.var(x, axis=-1, keepdims=True) + 1e-5)
        {affine}
        return y
"""


def test_what_a_branch_of_a_compiled_function_adds_is_in_its_kernels() -> None:
    (t,) = savings(
        AFFINE.format(affine="if self.affine:\n            y = y * self.weight + self.bias"), "FUS202", "Norm.__call__"
    )
    (plain,) = savings(AFFINE.format(affine="pass"), "FUS202", "Norm.__call__")
    assert (t.kernels_now, t.kernels_fused) == (plain.kernels_now, 2)
    assert (t.bytes_now, t.bytes_fused) == (plain.bytes_now, "8*T*D")
    assert (plain.kernels_fused, plain.bytes_fused) == (1, "4*T*D")


BIASED = """
def attend(q, k, v, bias):
    scores = q @ k.swapaxes(-1, -2)
    return mx.softmax(scores + bias, axis=-1) @ v


def f(x, bias: mx.array):
    B, L, D = x.shape
    q = x.reshape(B, L, 8, 64).transpose(0, 2, 1, 3)
    bias = bias.reshape(1, {heads}, L, L)
    {rotate}
    return attend(q, q, q, bias)
"""


def test_a_bias_of_each_head_is_as_many_masks() -> None:
    (each,) = savings(BIASED.format(heads=8, rotate="pass"), "FUS211")
    (one,) = savings(BIASED.format(heads=1, rotate="pass"), "FUS211")
    assert each.bytes_fused == "2048*B*L + 16*L*L"
    assert one.bytes_fused == "2048*B*L + 2*L*L"


def test_scores_of_rotated_queries_have_the_dtype_of_the_table() -> None:
    rotate = "if bias is not None:\n        q = q * mx.cos(mx.arange(64).astype(mx.float32))"
    (t,) = savings(BIASED.format(heads=1, rotate=rotate), "FUS211")
    assert "192*B*L*L" in t.bytes_now  # 6 passes over 8 heads of 4 bytes


BOTH = """
def f(q, k, base: float):
    batch, heads, time, dim = q.shape
    angles = mx.arange(time)[:, None] * mx.exp(mx.arange(dim // 2) * (-math.log(base) * 2.0 / dim))
    cos, sin = mx.cos(angles), mx.sin(angles)
    out = []
    a, b = q[..., 0::2], q[..., 1::2]
    c, d = k[..., 0::2], k[..., 1::2]
    q = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(q.shape)
    k = mx.stack([c * cos - d * sin, c * sin + d * cos], axis=-1).reshape(k.shape)
    return q, k
"""


def test_keys_have_the_axes_that_queries_name() -> None:
    queries, keys = savings("import math\n" + BOTH, "FUS221")
    assert queries.bytes_now == keys.bytes_now.replace("B*H*F*time", "F*batch*heads*time")
    assert queries.at["F"] == keys.at["F"] == 64 and keys.at["time"] == 2048


CAST = """
HALF = 64


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(1536, 1536)

    def __call__(self, x, cos, sin):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, 12, 128).transpose(0, 2, 1, 3)
        return rotate(q, cos, sin), rotate(q * 2, cos, sin)


def rotate(x, cos, sin):
    cos, sin = cos.astype(x.dtype), sin.astype(x.dtype)
    a, b = x[..., :HALF], x[..., HALF:]
    return x * cos + mx.concatenate([-b, a], axis=-1) * sin


class Model(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.layers = [Attention() for _ in range(n)]

    def __call__(self, x):
        angles = mx.arange(x.shape[1])[:, None] * (1.0 / 1e4 ** (mx.arange(0, 128, 2) / 128))[None]
        angles = mx.concatenate([angles, angles], axis=-1)
        cos, sin = mx.cos(angles), mx.sin(angles)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x
"""


def test_tables_that_every_call_casts_are_kernels() -> None:
    (t,) = savings(CAST, "FUS221", "rotate")
    assert t.kernels_now == 7  # two casts, -b, both halves, two products, the sum
    assert t.bytes_now == "2560*B*T*H + 2048*T"
    assert t.bytes_fused == "512*B*T*H"


def test_a_number_of_numpy_on_the_left_computes_on_the_host() -> None:
    body = "def f(x: mx.array):\n    return 0.5 * x * (1.0 + mx.tanh({} * (x + 0.044715 * (x**3))))\n"
    (host,) = savings("import numpy as np\n" + body.format("np.sqrt(2 / np.pi)"), "FUS261")
    (plain,) = savings("import math\n" + body.format("math.sqrt(2 / math.pi)"), "FUS261")
    assert (host.kernels_now, plain.kernels_now) == (7, 8)


def test_a_product_has_the_leading_axes_of_what_it_is_added_to() -> None:
    source = (
        "def f(k, v: mx.array, n: int, heads: int):\n    state = mx.zeros((n, heads, 64, 32))\n"
        "    k = k * mx.exp(k.sum(-1, keepdims=True))\n    return state + k.swapaxes(-1, -2) @ v\n"
    )
    (t,) = savings(source, "FUS231")
    assert t.dtype == "f32"
    saved = evaluate(t.bytes_now, t.at) - evaluate(t.bytes_fused, t.at)
    assert saved == 2 * 4 * 32 * t.at["n"] * 64 * 32


def test_a_table_that_is_added_to_a_product_of_weights_has_its_own_size() -> None:
    source = (
        "class Adapted(nn.Module):\n    def __init__(self, inner, n, dims, r=8):\n        super().__init__()\n"
        "        self.inner = inner\n        self.a = mx.zeros((n, r))\n        self.b = mx.zeros((r, dims))\n"
        "    def __call__(self):\n        return self.inner.weight + (2.0 * self.a) @ self.b\n"
    )
    (t,) = savings(source, "FUS231", "Adapted.__call__")
    assert "2*self.inner.weight.size" in t.bytes_now and "2*self.inner.weight.size" in t.bytes_fused
    assert set(t.at) == {"n", "dims", "r"} and t.at["r"] == 8  # the rank is the constructor's default


def test_the_width_of_a_rotation_is_that_of_a_head() -> None:
    sizes = Sizes()
    sizes.meanings["F"] = (Expr.name("dims") + Expr.of(1)) // 2
    assert sizes.number("F", Known()) == (64, "typical")
    assert sizes.number("dims", Known()) == (128, "typical")  # beside those pairs, not a model's width
    assert Sizes().number("dims", Known()) == (4096, "typical")
    assert sizes.number("config.rotary_dim", Known()) == (128, "typical")


PAIRS = """def rotate(q: mx.array, cos: mx.array, sin: mx.array):
    *shape, d = q.shape
    pairs = q.astype(mx.float32).reshape(*shape, d // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c = cos.reshape(1, 1, -1, cos.shape[-1])
    s = sin.reshape(1, 1, -1, sin.shape[-1])
    return mx.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(*shape, d).astype(q.dtype)
"""


def test_what_is_saved_is_what_the_formulas_say() -> None:
    """In both dtypes, at the sizes that are named."""
    for t in savings(PAIRS, "FUS301", "rotate"):
        assert t.otherwise is not None
        for one in (t, t.otherwise):
            saved = eval(f"({one.bytes_now}) - ({one.bytes_fused})", {}, dict(t.at))
            assert t.saved_at is not None and saved >= t.saved_at
        assert t.saved_at == 16 * t.at["T"] * (t.at["d"] // 2)


CONSTANTS = """
NH, HD = 16, 64
H = 1024


def attend(q: mx.array, k: mx.array, v: mx.array):
    B, T, _ = q.shape
    q = q.reshape(B, T, {heads}).transpose(0, 2, 1, 3)
    k = k.reshape(B, T, {heads}).transpose(0, 2, 1, 3)
    v = v.reshape(B, T, {heads}).transpose(0, 2, 1, 3)
    return (mx.softmax(q @ k.swapaxes(-1, -2) * 0.125, axis=-1) @ v).transpose(0, 2, 1, 3).reshape(B, T, H)
"""


def test_constants_of_a_module_are_sizes() -> None:
    (t,) = savings(CONSTANTS.format(heads="NH, HD"), "FUS211", "attend")
    assert (t.bytes_fused, t.at["T"]) == ("8192*B*T", 2048)
    assert t.saved_at == 6 * 2 * 16 * 2048 * 2048


def test_no_letter_of_a_rule_is_a_constant_of_the_module() -> None:
    (t,) = savings(CONSTANTS.format(heads="-1, 64"), "FUS211", "attend")
    assert "H" not in t.at and t.at["heads"] == 32


GIVEN_CAST = """
class Tables:
    def __init__(self, dims: int):
        self._freq = 1.0 / 1e4 ** (mx.arange(0, dims, 2).astype(mx.float32) / dims)

    def __call__(self, x, positions):
        angles = positions.astype(mx.float32)[..., None] * self._freq
        angles = mx.concatenate([angles, angles], axis=-1)
        return mx.cos(angles).astype(x.dtype), mx.sin(angles).astype(x.dtype)


class Attention(nn.Module):
    def __init__(self, paired: bool):
        super().__init__()
        self.q = nn.Linear(1536, 1536)
        self.tables = Tables(128)
        self.paired = paired

    def __call__(self, x, tables=None):
        B, L, _ = x.shape
        q = self.q(x).reshape(B, L, 12, 128).transpose(0, 2, 1, 3)
        if tables is None:
            tables = self.tables(x, mx.arange(L)[None])
        return self._rotated(q, tables)

    def _rotated(self, q, tables):
        cos, sin = tables
        return rotated(q, cos, sin, self.paired)


def turned_pairs(x):
    a, b = x[..., ::2], x[..., 1::2]
    return mx.stack([-b, a], axis=-1).flatten(-2)


def turned_halves(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return mx.concatenate([-b, a], axis=-1)


def rotated(q, cos, sin, paired):
    cos, sin = mx.expand_dims(cos, axis=1), mx.expand_dims(sin, axis=1)
    turned = turned_pairs if paired else turned_halves
    return (q * cos + turned(q) * sin).astype(q.dtype)
"""


def test_tables_that_are_cast_where_they_are_made_are_not_wider() -> None:
    (t,) = savings(GIVEN_CAST, "FUS301", "rotated")

    def rotated(q: mx.array, turned: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        return (q * cos + turned * sin).astype(q.dtype)

    q, table = mx.zeros((1, 2, 3, 8), mx.bfloat16), mx.zeros((1, 1, 3, 8), mx.bfloat16)
    assert t.kernels_now == kernels_of(rotated, q, q, table, table) == 3
    assert (t.dtype, t.bytes_now, t.bytes_fused) == ("bf16", "14*T*D + 4*L*D", "6*T*D + 4*L*D")


def test_a_call_of_one_of_several_functions_gives_what_they_all_give() -> None:
    graph = graph_of(HEAD + GIVEN_CAST, "rotated")
    (call,) = [n for n in graph.nodes if n.op == "call"]
    assert graph.facts.kind(call) == "array" and graph.facts.dtype(call) == {"q.dtype"}
    other = GIVEN_CAST.replace(
        "mx.concatenate([-b, a], axis=-1)", "mx.concatenate([-b, a], axis=-1).astype(mx.float32)"
    )
    graph = graph_of(HEAD + other, "rotated")
    (call,) = [n for n in graph.nodes if n.op == "call"]
    assert graph.facts.kind(call) == "array" and graph.facts.dtype(call).name is None


ROUNDED_TABLES = """
class Rotation(nn.Module):
    def __init__(self, head_dim: int, base: float, longest: int):
        super().__init__()
        freqs = 1.0 / (base ** (mx.arange(0, head_dim, 2, dtype=mx.float32)[: head_dim // 2] / head_dim))
        angles = mx.arange(longest, dtype=mx.float32)[:, None] * freqs[None, :]
        self._cos = mx.cos(angles).astype(mx.bfloat16)
        self._sin = mx.sin(angles).astype(mx.bfloat16)

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        length = x.shape[2]
        cos = self._cos[offset : offset + length][None, None, :, :]
        sin = self._sin[offset : offset + length][None, None, :, :]
        wide = x.astype(mx.float32).reshape(*x.shape[:-1], -1, 2)
        a, b = wide[..., 0], wide[..., 1]
        out = mx.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
        return out.reshape(x.shape).astype(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(32000, 1536)
        self.q = nn.Linear(1536, 1536)
        self.rotation = Rotation(128, 1e4, 4096)

    def __call__(self, tokens):
        x = self.words(tokens.astype(mx.int32))
        rows = [self.q(x)]
        return self.rotation(mx.concatenate(rows).reshape(1, 12, -1, 128))
"""


def test_what_is_rounded_is_widened_where_activations_are_float32() -> None:
    """13 kernels in bfloat16: x is cast, and back. In float32 it isn't, but the tables are, each of four times."""
    (t,) = savings(ROUNDED_TABLES, "FUS221", "Rotation.__call__")

    def rotated(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        a, b = mx.split(x.astype(mx.float32), 2, axis=-1)
        return mx.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)

    table = mx.zeros((3, 4), mx.bfloat16)
    ran = {d: kernels_of(rotated, mx.zeros((1, 2, 3, 8), d), table, table) for d in (mx.bfloat16, mx.float32)}
    assert t.otherwise is not None
    assert (t.kernels_now, t.otherwise.kernels_now) == (ran[mx.bfloat16], ran[mx.float32]) == (13, 11)
    assert (t.bytes_now, t.bytes_fused) == ("96*B*T*H*F + 40*T*F", "8*B*T*H*F")
    assert (t.otherwise.bytes_now, t.otherwise.bytes_fused) == ("72*B*T*H*F + 40*T*F", "16*B*T*H*F")


def test_tokens_that_are_looked_up_are_no_activation() -> None:
    """The dtype of a list's elements is asked for where no fact has it."""
    graph = graph_of(HEAD + ROUNDED_TABLES, "Rotation.__call__")
    assert given_dtypes(graph).get("x.dtype") in (MODEL, None)


CAST_BY_ONE = """
def wide(q, k, v):
    return mixed(q.astype(mx.float32), k, v)


def plain(q, k, v):
    return mixed(q, k, v)


def mixed(q, k, v):
    scores = mx.softmax(q @ k.swapaxes(-1, -2), axis=-1)
    return (scores @ v + q @ v).astype(q.dtype)
"""


def test_a_cast_by_one_caller_says_nothing_of_the_others() -> None:
    """Nor does the cast back say that what is multiplied as matrices is wider."""
    (t,) = savings(CAST_BY_ONE, "FUS231", "mixed")
    assert (t.dtype, t.bytes_now[:6]) == ("bf16", "6*T*D ")
    assert t.otherwise is not None and t.otherwise.bytes_now[:6] == "12*T*D"
    alone = CAST_BY_ONE.replace("def plain(q, k, v):\n    return mixed(q, k, v)", "")
    assert given_dtypes(graph_of(HEAD + alone, "mixed")) == {"q.dtype": "float32"}
    assert given_dtypes(graph_of(HEAD + CAST_BY_ONE, "mixed")) == {}


GROUPS = """
class Norm(nn.Module):
    def __init__(self, channels, groups=32):
        super().__init__()
        self.weight = mx.ones(channels)
        self.bias = mx.zeros(channels)
        self.groups = min(groups, channels)

    def __call__(self, x):
        h = x.astype(mx.float32).reshape(x.shape[0], self.groups, -1)
        h = (h - h.mean(axis=(0, 2), keepdims=True)).reshape(x.shape)
        return (h * self.weight + self.bias).astype(x.dtype)
"""


def test_a_weight_that_is_made_with_one_number_is_a_vector() -> None:
    """Two casts of a vector, a product and a sum in float32, a cast back: 8 + 8 + 6 bytes an element."""
    (t,) = savings(GROUPS, "FUS301", "Norm.__call__")

    def scaled(h: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        return (h * weight + bias).astype(weight.dtype)

    h, vectors = mx.zeros((4, 8)), {d: mx.zeros((8,), d) for d in (mx.bfloat16, mx.float32)}
    assert t.otherwise is not None
    assert t.kernels_now == kernels_of(scaled, h, *[vectors[mx.bfloat16]] * 2) == 5
    assert t.otherwise.kernels_now == kernels_of(scaled, h, *[vectors[mx.float32]] * 2) == 2
    assert (t.bytes_now, t.bytes_fused) == ("22*T*D", "6*T*D")
    assert (t.otherwise.bytes_now, t.otherwise.bytes_fused) == ("16*T*D", "8*T*D")
