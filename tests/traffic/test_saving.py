"""What a finding says of bytes and launches: formulas in the code's names, numbers, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.config import Settings
from fuselint.finding import Traffic
from fuselint.rulebook import rules
from fuselint.traffic import saving
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
    assert (t.at, t.assumed) == ({"T": 2048, "D": 4096}, ("D", "T"))
    assert t.saved_at == 32 * 2048 * 4096


def test_stated_sizes_are_not_assumed() -> None:
    (t,) = savings(NORM, "FUS201", "RMSNorm.__call__", Settings(shape={"RMSNorm.T": 16, "D": 64}))
    assert (t.at, t.assumed, t.saved_at) == ({"T": 16, "D": 64}, (), 32 * 16 * 64)


def test_float32_activations_take_twice_the_bytes() -> None:
    source = "def f(g, u):\n    return nn.silu(g) * u\n"
    (half,) = savings(source, "FUS301")
    (single,) = savings(source, "FUS301", settings=Settings(dtype="f32"))
    assert (half.bytes_now, half.bytes_fused) == ("10*T*D", "6*T*D")
    assert (single.bytes_now, single.bytes_fused) == ("20*T*D", "12*T*D")


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
        t.bytes_now == "36*B*T*H*F + 36*B*T*G*F + 16*T*F"
    )  # 4 products of 4, 2 sums of 6, a stack of 8; the half of 2*F is F
    assert t.bytes_fused == "8*B*T*H*F + 8*B*T*G*F"


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


def test_nothing_is_saved_where_attention_has_no_kernel() -> None:
    (fused,) = savings(ATTENTION.format(d=64), "FUS211")
    (steps,) = savings(ATTENTION.format(d=100), "FUS211")
    assert (fused.kernels_now, fused.kernels_fused) == (4, 1)
    assert (steps.kernels_now, steps.kernels_fused) == (4, 4)
    scores = 2 * 8 * 512 * 512
    assert (fused.saved_at, steps.saved_at) == (6 * scores, 2 * scores - 2 * 2 * 8 * 512 * 100)  # it scales q instead
