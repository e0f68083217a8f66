"""The float64 reference is exact to float64, and MLX's own float64 is known op by op."""

import math

import pytest

mx = pytest.importorskip("mlx.core")
np = pytest.importorskip("numpy")

from fuselint.verify import exact  # noqa: E402


def sample(shape=(4, 8), seed=0, scale=2.0):
    return np.random.RandomState(seed).randn(*shape) * scale


def to_mlx(a):
    with mx.stream(mx.cpu):
        return mx.array(a.tolist(), dtype=mx.float64)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


X, Y = sample(), sample((8, 8), 1)
ERF = np.vectorize(math.erf)
UNARY = {
    "exp": np.exp,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "erf": ERF,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(),
    "logsumexp": lambda x: np.log(np.exp(x).sum()),
    "abs": np.abs,
    "arcsinh": np.arcsinh,
    "arctan": np.arctan,
    "expm1": np.expm1,
    "log1p": lambda x: np.log1p(x * x),
    "log": lambda x: np.log(x * x + 1),
    "log2": lambda x: np.log2(x * x + 1),
    "log10": lambda x: np.log10(x * x + 1),
    "rsqrt": lambda x: 1 / np.sqrt(x * x + 1),
    "sqrt": lambda x: np.sqrt(x * x + 1),
    "square": np.square,
    "tanh": np.tanh,
    "arccos": lambda x: np.arccos(np.tanh(x)),
    "arcsin": lambda x: np.arcsin(np.tanh(x)),
    "arctanh": lambda x: np.arctanh(np.tanh(x)),
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "degrees": np.degrees,
}
MADE_POSITIVE = {"log": 1, "log2": 1, "log10": 1, "rsqrt": 1, "sqrt": 1, "log1p": 0}


def close(got, want, tolerance=1e-13):
    got = np.array(got.tolist())
    assert got.shape == np.shape(want)
    assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    core = exact.modules()["mlx.core"]
    with mx.stream(mx.cpu):
        x = to_mlx(X)
        if name in MADE_POSITIVE:
            x = x * x + MADE_POSITIVE[name]
        if name.startswith("arc") and name in ("arccos", "arcsin", "arctanh"):
            x = mx.tanh(x)
        got = getattr(core, name)(x)
        assert got.dtype == mx.float64
        close(got, UNARY[name](X))


def test_limits():
    with mx.stream(mx.cpu):
        x = mx.array([-math.inf, math.inf, -800.0, 0.0], dtype=mx.float64)
        assert exact.exp(x).tolist() == [0.0, math.inf, 0.0, 1.0]
        assert exact.sigmoid(x).tolist() == [0.0, 1.0, 0.0, 0.5]
        assert exact.softplus(x).tolist() == [0.0, math.inf, 0.0, math.log(2)]
        assert exact.logsumexp(mx.array([-math.inf, -math.inf], dtype=mx.float64), axis=-1).item() == -math.inf
        assert exact.erfinv(mx.array([-1.0, 0.5], dtype=mx.float64)).tolist() == pytest.approx(
            [-math.inf, 0.4769362762044699], rel=1e-15
        )


def test_fused_operations():
    ms = (X * X).mean(-1, keepdims=True)
    with mx.stream(mx.cpu):
        x, y, w = to_mlx(X), to_mlx(Y), to_mlx(Y[0])
        close(exact.rms_norm(x, w, 1e-5), X / np.sqrt(ms + 1e-5) * Y[0])
        centred = X - X.mean(-1, keepdims=True)
        norm = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        close(exact.layer_norm(x, w, w, 1e-5), norm * Y[0] + Y[0])
        close(exact.addmm(x, x, y, alpha=0.1, beta=0.3), 0.3 * X + 0.1 * X @ Y)
        close(exact.cross_entropy(x, mx.array([0, 3, 7, 2])), -np.log(softmax(X))[range(4), [0, 3, 7, 2]])
        close(exact.array([0.1, 0.2]), np.array([0.1, 0.2]))


@pytest.mark.parametrize("mask", [None, "causal", "bool", "additive"])
def test_attention(mask):
    q, k, v = sample((2, 4, 3, 8), 2), sample((2, 2, 5, 8), 3), sample((2, 2, 5, 6), 4)
    allowed = np.arange(3)[:, None] + 2 >= np.arange(5)[None]
    kk, vv = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    scores = q @ kk.swapaxes(-1, -2) * 0.3
    if mask is not None:
        scores = np.where(allowed, scores, -np.inf)
    given = {"bool": mx.array(allowed), "additive": mx.array(np.where(allowed, 0, -np.inf).tolist())}.get(mask, mask)
    with mx.stream(mx.cpu):
        got = exact.scaled_dot_product_attention(to_mlx(q), to_mlx(k), to_mlx(v), scale=0.3, mask=given)
        close(got, softmax(scores) @ vv)


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("offset", [0, 5, "array"])
@pytest.mark.parametrize("freqs", [False, True])
def test_rope_is_mlx_rope(traditional, offset, freqs):
    a = sample((2, 3, 5, 8), 5)
    at = mx.array([2, 7]) if offset == "array" else offset
    how = {"base": None, "freqs": mx.array([1.0, 3.0, 9.0])} if freqs else {"base": 100.0, "freqs": None}
    with mx.stream(mx.cpu):
        got = exact.rope(to_mlx(a), 6, traditional=traditional, scale=0.5, offset=at, **how)
        want = mx.fast.rope(mx.array(a.astype(np.float32)), 6, traditional=traditional, scale=0.5, offset=at, **how)
        close(got, np.array(want.tolist()), 1e-5)


@pytest.mark.parametrize("name", sorted(exact.NN))
def test_activations_are_those_of_nn(name):
    from mlx import nn

    with mx.stream(mx.cpu):
        got = getattr(exact.modules()["mlx.nn"], name)(to_mlx(X))
        want = getattr(nn, name)(mx.array(X.astype(np.float32)))
        assert got.dtype == mx.float64
        close(got, np.array(want.tolist()), 1e-6)


def test_the_text_of_a_region_runs_in_float64():
    core = exact.modules()["mlx.core"]
    with mx.stream(mx.cpu):
        x = to_mlx(X)
        y = x.astype(core.float32) * core.rsqrt(core.mean(x.astype(core.float32) ** 2, -1, keepdims=True) + 1e-5)
        close(y.astype(core.bfloat16), X / np.sqrt((X * X).mean(-1, keepdims=True) + 1e-5), 1e-12)
        with pytest.raises(NotImplementedError):
            core.random.normal((2,))
