"""Right rewrites pass; every planted fault is caught; a region that crashes or hangs costs itself only."""

import dataclasses
import time

import pytest

mx = pytest.importorskip("mlx.core")

from fuselint.finding import Region, RegionInput  # noqa: E402
from fuselint.verify import Limits, verify  # noqa: E402


def array(name, *shape, dtype="activation"):
    return RegionInput(name, "array", shape or None, dtype)


NORM = (array("x", "...", "D"), array("self.weight", "D", dtype="weight"), RegionInput("self.eps", "scalar"))
LLAMA = """
h = x.astype(mx.float32)
h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)
result = self.weight * h.astype(x.dtype)
"""
PLAIN_NORM = "result = x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5) * self.weight"
OFFSET_NORM = "result = x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5) * (1 + self.weight)"
HEADS = (
    array("q", "B", "n*G", "L", "D"),
    array("k", "B", "G", "S", "D"),
    array("v", "B", "G", "S", "D"),
    RegionInput("mask", "none", ("L", "S"), "mask"),
    RegionInput("self.n", "scalar", symbol="n"),
)
ATTENTION = """
keys, values = map(lambda a: mx.repeat(a, self.n, axis=1), (k, v))
scores = (q * q.shape[-1] ** -0.5) @ keys.transpose(0, 1, 3, 2)
if mask is not None:
    scores = scores + mask
scores = mx.softmax(scores.astype(mx.float32), axis=-1).astype(scores.dtype)
result = scores @ values
"""
SDPA = "result = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)"
GATE = (array("g"), array("u"))
SWIGLU = """
@mx.compile
def swiglu(gate, up):
    return nn.silu(gate) * up
"""
BIAS = (array("x", "B", "L", "D"), array("w", "E", "D", dtype="weight"), array("b", "E", dtype="weight"))
ROPE = (
    array("x", "B", "H", "L", "2*D"),
    RegionInput("offset", "scalar", value=5),
    RegionInput("self.dims", "scalar", symbol="2*D"),
)
ROTATE = """
half = self.dims // 2
freqs = mx.exp(-mx.arange(half) * (math.log(10000.0) / half))
theta = (mx.arange(x.shape[-2]) + offset)[:, None] * freqs
c, s = mx.cos(theta), mx.sin(theta)
a, b = x[..., :half], x[..., half:]
result = mx.concatenate([a * c - b * s, a * s + b * c], axis=-1).astype(x.dtype)
"""


def rope(**changes):
    args = {"traditional": "False", "base": "10000.0", "scale": "1.0", "offset": "offset"} | changes
    return f"result = mx.fast.rope(x, self.dims, {', '.join(f'{k}={v}' for k, v in args.items())})"


def region(inputs, before, after, **more):
    return Region("FUS000", tuple(inputs), before, after, **more)


RIGHT = {
    "llama norm": region(NORM, LLAMA, "result = mx.fast.rms_norm(x, self.weight, self.eps)"),
    "norm in the dtype": region(NORM, PLAIN_NORM, "result = mx.fast.rms_norm(x, self.weight, 1e-5)"),
    "offset norm": region(NORM, OFFSET_NORM, "result = mx.fast.rms_norm(x, 1 + self.weight, 1e-5)"),
    "norm by a helper": region(
        NORM,
        "result = self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)",
        "result = mx.fast.rms_norm(x, self.weight, self.eps)",
        support_before=(
            "class Self:\n    def _norm(self, x):\n"
            "        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)\n"
        ),
    ),
    "attention": region(HEADS, ATTENTION, SDPA),
    "swiglu": region(GATE, "result = nn.silu(g) * u", "result = swiglu(g, u)", support_after=SWIGLU),
    "shapeless swiglu": region(
        GATE,
        "result = g * mx.sigmoid(g) * u",
        "result = swiglu(g, u)",
        support_after=SWIGLU.replace("@mx.compile", "@partial(mx.compile, shapeless=True)"),
    ),
    "bias": region(BIAS, "result = x @ w.T + b", "result = mx.addmm(b, x, w.T)"),
    "rope": region(ROPE, ROTATE, rope()),
    "two results": region(
        (array("a", "D"), array("b", "D")), "result = (a + b, {'d': a - b})", "result = (b + a, {'d': -(b - a)})"
    ),
    "softmax over masked rows": region(
        (array("s", "B", "L", "S"), array("m", "L", "S", dtype="bool")),
        "p = mx.where(m, s, -mx.inf)\n"
        "p = mx.exp(p - mx.max(p, -1, keepdims=True))\n"
        "result = p / p.sum(-1, keepdims=True)",
        "result = mx.softmax(mx.where(m, s, -mx.inf), axis=-1, precise=True)",
    ),
}

LAYERS = (
    array("x", "B", "L", "D"),
    RegionInput("self.up", "object", value="nn.Linear(D, 4 * D)"),
    RegionInput("self.norm", "object", value="nn.RMSNorm(D, eps=1e-6)"),
)
RIGHT["layers"] = region(
    LAYERS,
    "result = nn.silu(self.up(self.norm(x))) * self.up(x)",
    "result = swiglu(self.up(mx.fast.rms_norm(x, self.norm.weight, 1e-6)), self.up(x))",
    support_after=SWIGLU,
)
RIGHT["an unpacked shape"] = region(
    (array("x", "...", "D"),),
    "B, L, D = x.shape\nresult = x.reshape(B * L, D).reshape(B, L, D) * D",
    "result = x * x.shape[-1]",
)
RIGHT["a mask that is not said to be boolean"] = region(
    (array("a"), array("b"), array("x")), "result = mx.where(a & b, x, 0)", "result = mx.where(b & a, x, 0.0)"
)
RIGHT["shapes that do not fit"] = region(
    (array("a", "L", "D"), array("b", "L", "(D * 3 + 1)")), "result = a * b + a", "result = a + b * a"
)
RIGHT["a size that can not be computed"] = region((array("x", "D ** 2"),), "result = x + x", "result = 2 * x")
RIGHT["an offset that must be an int"] = region(
    (
        array("x", "B", "H", "T", "2*D"),
        RegionInput("offset", "scalar"),
        RegionInput("self.dims", "scalar", symbol="2*D"),
    ),
    ROTATE,
    rope(),
)
RIGHT["sizes that can be negative"] = region(
    (array("a", "L - M - 90"), array("b", "M")), "result = a * b", "result = b * a"
)
RIGHT["a table of rows"] = region(
    (array("ids"), RegionInput("self.embed", "object", value="nn.Embedding(V, D)")),
    "h = self.embed(ids)\nresult = h * 2 + h",
    "result = self.embed(ids) * 3",
)
RIGHT["an array by its shape"] = region(
    (array("x", "...", "D"), RegionInput("q", "scalar")), "result = x * q.shape[-1]", "result = q.shape[-1] * x"
)
RIGHT["a condition"] = region(
    (array("x", "...", "D"), RegionInput("keep", "scalar")),
    "result = mx.where(keep, x, mx.zeros_like(x))",
    "result = mx.where(keep, x, 0)",
)
RIGHT["an exact gelu"] = region(
    (array("x", "...", "D"),), "result = x * (1 + mx.erf(x * 0.5**0.5)) * 0.5", "result = nn.gelu(x)"
)
RIGHT["a sum of exponentials that overflows"] = region(
    (array("x", "...", "D"),),
    "result = mx.log(mx.sum(mx.exp(x), -1))",
    "result = mx.logsumexp(x, -1)",
    needs=("x is not empty",),
)
RIGHT["no dtype of its own"] = region(
    (array("x", "...", "D"),), "result = x * mx.array(0.5)", "result = x * 0.5", numerics="different dtype"
)
CAPTURED = """
class Self:
    def scaled(self, x):
        return x * self.kept()[0]

    def kept(self, kept=[]):
        if not kept:
            kept.append(self.weight)
        return kept
"""
FAULTS = {
    "the weights of the first call": region(
        (array("x", "B", "L"), array("self.weight", dtype="weight")),
        "result = x * self.weight.sum()",
        "result = self.scaled(x)",
        support_after=CAPTURED.replace("(self.weight)", "(self.weight.sum())"),
    ),
    "a condition forgotten": region(
        (array("x", "...", "D"), RegionInput("keep", "scalar")), "result = mx.where(keep, x, 0.0)", "result = x"
    ),
    "no gradient where the reference needs one": region(
        (array("x", "...", "D"),),
        "result = x * (1 + mx.erf(x * 0.5**0.5)) * 0.5",
        "result = mx.stop_gradient(nn.gelu(x))",
    ),
    "a wider dtype than before": region(
        (array("x", "...", "D"),), "result = x + x", "result = (2 * x).astype(mx.float32)", numerics="different dtype"
    ),
    "another padding": region(
        (array("s", "L", "S"), array("m", "L", "S", dtype="mask")),
        "result = mx.softmax(s + m, -1, precise=True)",
        "result = mx.softmax(mx.maximum(s + m, -9.0), -1, precise=True)",
    ),
    "a mask that is only right where something is let through": region(
        (array("s", "L", "S"), array("m", "L", "S", dtype="bool")),
        "result = mx.where(m, mx.abs(s), 0).sum(-1)",
        "result = mx.where(m, mx.abs(s), 0).sum(-1) + mx.logical_not(m.any(-1))",
    ),
    "a branch for batches of none": region(
        (array("x", "B", "D"),), "result = x.sum(0)", "result = x.sum(0) + (0 if x.size else 1)"
    ),
    "precision lost over wide rows only": region(
        (array("s", "B", "L"),), "result = mx.softmax(s, axis=-1, precise=True)", "result = mx.softmax(s, axis=-1)"
    ),
    "norm of a layer forgotten": region(LAYERS, "result = self.up(self.norm(x))", "result = self.up(x)"),
    "another weight of a layer": region(LAYERS, "result = self.norm(x)", "result = mx.fast.rms_norm(x, None, 1e-6)"),
    "eps dropped": region(NORM, LLAMA, "result = mx.fast.rms_norm(x, self.weight, 0.0)"),
    "eps outside the root": region(
        NORM, LLAMA, "result = self.weight * (x / (mx.sqrt(x.square().mean(-1, keepdims=True)) + self.eps))"
    ),
    "eps taken for a constant": region(NORM, LLAMA, "result = mx.fast.rms_norm(x, self.weight, 1e-5)"),
    "normalised twice": region(
        NORM, LLAMA, "result = mx.fast.rms_norm(mx.fast.rms_norm(x, None, self.eps), self.weight, self.eps)"
    ),
    "weight dropped": region(NORM, LLAMA, "result = mx.fast.rms_norm(x, None, self.eps)"),
    "weight + 1 lost": region(NORM, OFFSET_NORM, "result = mx.fast.rms_norm(x, self.weight, 1e-5)"),
    "dtype changed": region(NORM, LLAMA, "result = mx.fast.rms_norm(x.astype(mx.float32), self.weight, self.eps)"),
    "wrong axis": region(
        (array("s", "B", "L", "S"),), "result = mx.softmax(s, axis=-1)", "result = mx.softmax(s, axis=-2)"
    ),
    "scale squared": region(HEADS, ATTENTION, SDPA.replace("-0.5", "-1")),
    "mask forgotten": region(HEADS, ATTENTION, SDPA.replace("mask=mask", "mask=None")),
    "mask taken for causal": region(HEADS, ATTENTION, SDPA.replace("mask=mask", 'mask="causal"')),
    "K and V swapped": region(HEADS, ATTENTION, SDPA.replace("q, k, v", "q, v, k")),
    "heads tiled": region(
        HEADS, ATTENTION.replace("mx.repeat(a, self.n, axis=1)", "mx.tile(a, (1, self.n, 1, 1))"), SDPA
    ),
    "gate and up swapped": region(GATE, "result = nn.silu(g) * u", "result = swiglu(u, g)", support_after=SWIGLU),
    "another activation": region(GATE, "result = nn.gelu(g) * u", "result = nn.gelu_approx(g) * u"),
    "shape baked into a helper": region(
        GATE,
        "result = nn.silu(g) * u * g.shape[-1]",
        "result = swiglu(g, u) * 1.0",
        support_after=SWIGLU.replace("@mx.compile", "@partial(mx.compile, shapeless=True)").replace(
            "* up", "* up * gate.shape[-1]"
        ),
    ),
    "bias doubled": region(BIAS, "result = x @ w.T + b", "result = mx.addmm(b, x, w.T, beta=2.0)"),
    "bias dropped": region(BIAS, "result = x @ w.T + b", "result = x @ w.T"),
    "traditional flipped": region(ROPE, ROTATE, rope(traditional="True")),
    "offset ignored": region(ROPE, ROTATE, rope(offset="0")),
    "base changed": region(ROPE, ROTATE, rope(base="1000.0")),
    "axis kept": region((array("x", "B", "D"),), "result = x.mean(-1)", "result = x.mean(-1, keepdims=True)"),
    "one result of two": region((array("x", "D"),), "result = (x, x + 1)", "result = (x,)"),
    "changes its input": region((array("x", "D"),), "result = x + 1", "x += 1\nresult = x + 0"),
    "less accurate in half precision": region(
        (array("s", "B", "512"),),
        "result = mx.softmax(s, axis=-1, precise=True)",
        "result = mx.softmax(s, axis=-1)",
    ),
    "overflows in half precision": region(
        (array("x", "B", "D"),),
        "result = mx.sqrt(x.astype(mx.float32).square().sum(-1)).astype(x.dtype)",
        "result = mx.sqrt(x.square().sum(-1))",
    ),
    "raises": region((array("x", "B", "D"),), "result = x + 1", "result = x.reshape(-1, 1000003) + 1"),
    "no gradient": region(
        (array("x", "B", "D"),), "result = x * mx.abs(x)", "result = x * mx.stop_gradient(mx.abs(x))"
    ),
}


@pytest.fixture(scope="module")
def outcomes():
    """All regions in one call: they share a child process."""
    regions = RIGHT | FAULTS
    return dict(zip(regions, verify(list(regions.values()), device="cpu"), strict=True))


@pytest.mark.parametrize("name", RIGHT)
def test_right_rewrites_pass(outcomes, name):
    got = outcomes[name]
    assert got.outcome == "passed", got.reason
    assert got.cases >= 6
    assert got.device == "cpu"
    assert got.mlx == mx.__version__


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_caught(outcomes, name):
    assert outcomes[name].outcome == "failed", outcomes[name]


def test_what_a_pass_says(outcomes):
    llama = outcomes["llama norm"]
    assert {"float32", "float16", "bfloat16"} <= {part.partition(":")[0] for part in llama.reason.split("; ")}
    assert llama.error_after <= llama.error_before + 2**-7
    assert (
        "overflowed or lost their digits are right now" in outcomes["norm in the dtype"].reason
    )  # the squares overflow float16 by hand
    assert "scaled_dot_product_attention works in half precision" in outcomes["attention"].reason


def test_what_a_repair_says(outcomes):
    """The values that overflow by hand are right now, and nothing else is different."""
    got = outcomes["norm in the dtype"]
    assert got.repaired > 0
    assert got.gradient is not None and got.gradient < 1e-4
    assert got.ulp["float16"][1] <= 1 < got.ulp["float16"][0]
    assert outcomes["bias"].repaired == 0


def test_what_a_fault_says(outcomes):
    twice = outcomes["normalised twice"]
    assert "error" in twice.reason
    assert "x (" in twice.reason  # the shapes of the case
    assert "shape of result" in outcomes["axis kept"].reason
    assert "changed in place" in outcomes["changes its input"].reason
    assert "gradient by x" in outcomes["no gradient"].reason


def test_normalising_twice_shows_on_small_rows_only():
    """It agrees to 3e-7 on ordinary inputs, so the rows at the scale of sqrt(eps) are what catches it."""
    x = mx.random.normal((4, 256))
    once = mx.fast.rms_norm(x, None, 1e-6)
    assert mx.abs(mx.fast.rms_norm(once, None, 1e-6) - once).max().item() < 5e-6
    wide = (array("x", "B", "256"),)
    before = "result = x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-6)"
    after = "result = mx.fast.rms_norm(mx.fast.rms_norm(x, None, 1e-6), None, 1e-6)"
    (got,) = verify([region(wide, before, after)], device="cpu")
    assert got.outcome == "failed"
    assert "small rows" in got.reason


def test_a_wrong_analysis_shows():
    """The reference comes from the graph: where the source computes something else, no fix is to be trusted."""
    norm = RIGHT["llama norm"]
    right = "result = self.weight * (x * mx.rsqrt(mx.mean(x * x, -1, keepdims=True) + self.eps))"
    wrong = right.replace("-1, keepdims", "0, keepdims")
    good, bad = verify(
        [dataclasses.replace(norm, reference=right), dataclasses.replace(norm, reference=wrong)], device="cpu"
    )
    assert good.outcome == "passed", good.reason
    assert bad.outcome == "failed"
    assert "the analysed code is not the source" in bad.reason


def test_float32_weights_on_half_precision_activations():
    before = "result = (x * mx.rsqrt(x.square().mean(-1, keepdims=True) + 1e-5)) * self.weight"
    after = "result = mx.fast.rms_norm(x, self.weight.astype(x.dtype), 1e-5)"
    plain = region(NORM[:2], before, after)
    needing = dataclasses.replace(plain, needs=("self.weight has the dtype of x",))
    unneeded, needed = verify([plain, needing], device="cpu")
    assert unneeded.outcome == "failed"
    assert "dtype of result is bfloat16 instead of float32" in unneeded.reason
    assert needed.outcome == "passed", needed.reason
    assert "needed: with float32 weights the dtype" in needed.reason


def test_activations_of_two_dtypes():
    """The values are judged; a dtype that only they change is named."""
    two = (array("q", "B", "L"), array("k", "B", "L"))
    cast = region(two, "result = q * k.astype(q.dtype)", "result = q * k")
    wrong = region(two, "result = q + k", "result = q + k * (1 if q.dtype == k.dtype else 2)")
    named, caught = verify([cast, wrong], device="cpu")
    assert named.outcome == "passed", named.reason
    assert "needed: with float32 beside bfloat16 the dtype of result is float32 instead of bfloat16" in named.reason
    assert caught.outcome == "failed"
    assert "beside float32" in caught.reason


LIMITS = Limits(seconds=10, memory=3 << 28)
SEGFAULT = "result = mx.contiguous(mx.as_strided(x, (4096,), (1 << 40,), 0)) + 1"
HOG = "rows = []\nwhile True:\n    rows.append([0] * (1 << 26))"
HANG = "while True:\n    pass"
X = (array("x", "D"),)
UNRULY = {
    "crash after": (region(X, "result = x + 1", SEGFAULT), "failed", "the fixed code: crashed"),
    "crash before": (region(X, SEGFAULT, "result = x + 1"), "not verifiable", "crashed"),
    "hang after": (region(X, "result = x + 1", HANG), "failed", f"the fixed code: timed out after {LIMITS.seconds} s"),
    "hang before": (region(X, HANG, "result = x + 1"), "not verifiable", f"timed out after {LIMITS.seconds} s"),
    "hog after": (region(X, "result = x + 1", HOG), "failed", "emory"),
    "hog before": (region(X, HOG, "result = x + 1"), "not verifiable", "emory"),
    "fine": (region(X, "result = x + 1", "result = 1 + x"), "passed", ""),
    "endless recursion": (
        region(X, "result = x + 1", "result = f(x)", support_after="def f(x):\n    return f(x)\n"),
        "failed",
        "recursion",
    ),
    "prints": (
        region(X, "result = x + 1", "result = f(x)", support_after="def f(x):\n    print(x)\n    return x + 1\n"),
        "not verifiable",
        "reads `print`",
    ),
}


@pytest.mark.slow
def test_unruly_regions_cost_themselves_only():
    start = time.monotonic()
    got = verify([r for r, _, _ in UNRULY.values()], device="cpu", limits=LIMITS)
    assert time.monotonic() - start < 60
    for (name, (_, outcome, reason)), v in zip(UNRULY.items(), got, strict=True):
        assert v.outcome == outcome, (name, v)
        assert reason in v.reason, (name, v)


def test_regions_that_can_not_be_judged():
    regions = {
        "given up": region(X, "", "", not_verifiable="calls self.cache.update"),
        "an object": region((*X, RegionInput("self.proj", "object")), "result = self.proj(x)", "result = self.proj(x)"),
        "always raises": region(X, "result = x.reshape(7, 11, 13)", "result = x"),
        "no result": region(X, "y = x", "result = x"),
    }
    got = dict(zip(regions, verify(list(regions.values()), device="cpu"), strict=True))
    assert {v.outcome for v in got.values()} == {"not verifiable"}, got
    assert got["given up"].reason == "calls self.cache.update"
    assert "self.proj" in got["an object"].reason
    assert "reshape" in got["always raises"].reason
    assert "result" in got["no result"].reason


def test_without_mlx(monkeypatch):
    monkeypatch.setattr("fuselint.verify.mlx_version", lambda: None)
    (got,) = verify([RIGHT["bias"]])
    assert got.outcome == "not verifiable"
    assert got.reason == "MLX can't be imported"


def test_children_side_by_side():
    names = ["bias", "two results", "llama norm"]
    got = verify([RIGHT[n] for n in names] + [UNRULY["crash after"][0]], device="cpu", limits=LIMITS, jobs=3)
    assert [v.outcome for v in got] == ["passed"] * 3 + ["failed"]
    assert "crashed" in got[3].reason


def test_nothing_to_do():
    assert verify([]) == []


def test_the_same_region_is_judged_once_and_the_same_way(monkeypatch):
    import fuselint.verify as package

    seen = []
    run = package.run
    monkeypatch.setattr(package, "run", lambda regions, *a: seen.append(len(regions)) or run(regions, *a))
    first = verify([RIGHT["bias"], RIGHT["bias"]], device="cpu")
    assert seen == [1]
    assert first[0] == first[1] == verify([RIGHT["bias"]], device="cpu")[0]


def test_outcomes_are_kept(tmp_path, monkeypatch):
    regions = [RIGHT["bias"], FAULTS["bias doubled"], UNRULY["crash before"][0]]
    first = verify(regions, device="cpu", cache=tmp_path)
    asked = []
    monkeypatch.setattr("fuselint.verify.run", lambda regions, *_: asked.extend(regions) or [(first[2], False)])
    assert verify(regions, device="cpu", cache=tmp_path) == first
    assert asked == [regions[2]]  # a crash may be another time's success: it is not kept


def test_a_broken_cache_costs_time_only(tmp_path):
    (tmp_path / "verify.sqlite").write_bytes(b"no database" * 100)
    (got,) = verify([RIGHT["bias"]], device="cpu", cache=tmp_path)
    assert got.outcome == "passed"


def test_without_a_compiler(monkeypatch, tmp_path):
    """Without g++ on the path mx.compile does nothing on the CPU: then nothing was proved."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (got,) = verify([RIGHT["swiglu"]], device="cpu")
    assert got.outcome == "not verifiable"
    assert "no-op" in got.reason


def test_gradients_that_vanish_at_some_sizes():
    """Two values without their mean, over their deviation, are 1 and -1 whatever they are: the next size tells."""
    before = "d = x - x.mean(0, keepdims=True)\nresult = d / mx.sqrt((d * d).mean(0, keepdims=True))"
    after = "result = mx.fast.layer_norm(x.T, None, None, 0.0).T"
    right = region((array("x", "L", "C"),), before, after)
    wrong = dataclasses.replace(right, after=f"{after} + 0\nresult = mx.stop_gradient(result)")
    good, bad = verify([right, wrong], device="cpu")
    assert good.outcome == "passed", good.reason
    assert good.gradient is not None
    assert bad.outcome == "failed" and "gradient by x" in bad.reason


def test_a_range_that_a_fix_gives_up_is_told():
    """float16 ends at 65504: a fix that says that it keeps half precision passes, and one that says nothing fails."""
    inputs = (array("x", "L", "D"),)
    before, after = "result = x * mx.array(16.0) * 2**-10", "result = x * 16.0 * 2**-10"
    (told,) = verify([region(inputs, before, after, numerics="different dtype")])
    assert told.outcome == "passed", told.reason
    assert "needed: no value on the way passes the range of float16" in told.reason
    (silent,) = verify([region(inputs, before, after)])
    assert silent.outcome == "failed"
