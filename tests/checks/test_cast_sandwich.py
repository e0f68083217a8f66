"""FUS104: what is a sandwich, and that the bits are the same without it."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as mx_nn
import pytest
from graph.functions import HEAD, graph_of

from fuselint import check_paths
from fuselint.checks import cast_sandwich
from fuselint.rulebook import Match


def found(body: str, arguments: str = "x, w, b") -> list[Match]:
    lines = "".join(f"    {line}\n" for line in body.strip().split("\n"))
    return list(cast_sandwich.find(graph_of(f"{HEAD}def f({arguments}):\n{lines}")))


SANDWICHES = {
    # body -> what the fix keeps of the cast back, numerics
    "softmax": ("return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)", "", "bit-identical"),
    "nn.softmax": ("return nn.softmax(x.astype(mx.float32)).astype(x.dtype)", "", "bit-identical"),
    "precise already": (
        "return mx.softmax(x.astype(mx.float32), -1, precise=True).astype(x.dtype)",
        "",
        "bit-identical",
    ),
    "a rank that says the axis": (
        "b, n, d = x.shape\nreturn mx.softmax(x.astype(mx.float32), axis=2).astype(x.dtype)",
        "",
        "bit-identical",
    ),
    "steps": (
        "h = x.astype(mx.float32)\nh = mx.softmax(h, axis=-1)\nh = h.astype(x.dtype)\nreturn h",
        "",
        "bit-identical",
    ),
    "the dtype of an operand": (
        "s = x @ w\nreturn mx.softmax(s.astype(mx.float32), axis=-1).astype(x.dtype)",
        "{dtype}",
        "bit-identical",
    ),
    "another dtype": (
        "return mx.softmax(x.astype(mx.float32), axis=-1).astype(mx.float16)",
        "{mx}.float16",
        "bit-identical",
    ),
    "a maximum": ("return x.astype(mx.float32).max(-1, keepdims=True).astype(x.dtype)", "", "bit-identical"),
    "layer norm": (
        "return mx.fast.layer_norm(x.astype(mx.float32), None, None, 1e-5).astype(x.dtype)",
        "",
        "bit-identical",
    ),
    "layer norm with weight": (
        "return mx.fast.layer_norm(x.astype(mx.float32), w, b, 1e-5).astype(x.dtype)",
        "{dtype}",
        "less accurate",
    ),
}


@pytest.mark.parametrize("name", SANDWICHES)
def test_sandwiches(name: str) -> None:
    body, kept, numerics = SANDWICHES[name]
    (match,) = found(body)
    assert (match.data["to"], match.numerics) == (kept, numerics)
    assert match.holes["x"] in match.root.inputs[0].inputs[0].inputs


NONE = {
    "another axis": "return mx.softmax(x.astype(mx.float32), axis=-2).astype(x.dtype)",
    "an axis that may not be the last": "return mx.softmax(x.astype(mx.float32), axis=2).astype(x.dtype)",
    "all axes": "return mx.softmax(x.astype(mx.float32)).astype(x.dtype)",
    "work before": "return mx.softmax(x.astype(mx.float32) + w, axis=-1).astype(x.dtype)",
    "work after": "return (mx.softmax(x.astype(mx.float32), axis=-1) * w).astype(x.dtype)",
    "the float32 result is read too": "p = mx.softmax(x.astype(mx.float32), axis=-1)\nreturn p, p.astype(x.dtype)",
    "the float32 operand is read too": "h = x.astype(mx.float32)\nreturn mx.softmax(h, axis=-1).astype(x.dtype) + h",
    "a sum": "return mx.sum(x.astype(mx.float32), axis=-1).astype(x.dtype)",
    "a variance": "return mx.var(x.astype(mx.float32), axis=-1).astype(x.dtype)",
    "float16": "return mx.softmax(x.astype(mx.float16), axis=-1).astype(x.dtype)",
    "no cast back": "return mx.softmax(x.astype(mx.float32), axis=-1)",
    "integers": "return mx.softmax((x > 0).astype(mx.float32), axis=-1).astype(x.dtype)",
    "a float32 weight": "return mx.fast.rms_norm(x.astype(mx.float32), w.astype(mx.float32), 1e-5).astype(x.dtype)",
    "a rotation": (
        "h = x.astype(mx.float32)\n"
        "return mx.fast.rope(h, 64, traditional=False, base=1e4, scale=1.0, offset=0).astype(x.dtype)"
    ),
}


@pytest.mark.parametrize("name", NONE)
def test_no_sandwich(name: str) -> None:
    assert found(NONE[name]) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_bits_are_the_same(dtype: str) -> None:
    mx = pytest.importorskip("mlx.core")
    x = (mx.random.normal((16, 300), key=mx.random.key(0)) * 8).astype(getattr(mx, dtype))
    f32 = mx.float32
    pairs = [
        (cast_sandwich.unfused(x), cast_sandwich.fused(x)),
        (mx.logsumexp(x.astype(f32), axis=-1).astype(x.dtype), mx.logsumexp(x, axis=-1)),
        (mx.max(x.astype(f32), axis=-1).astype(x.dtype), mx.max(x, axis=-1)),
        (mx.fast.rms_norm(x.astype(f32), None, 1e-5).astype(x.dtype), mx.fast.rms_norm(x, None, 1e-5)),
        (mx.fast.layer_norm(x.astype(f32), None, None, 1e-5).astype(x.dtype), mx.fast.layer_norm(x, None, None, 1e-5)),
    ]
    layer = mx_nn.LayerNorm(300, affine=False)
    pairs.append((layer(x.astype(f32)).astype(x.dtype), layer(x)))
    for before, after in pairs:
        assert before.dtype == after.dtype and mx.array_equal(before, after)


MASKED = """import mlx.core as mx
import mlx.nn as nn


class Scores(nn.Module):
    def __call__(self, q: mx.array, mask=None):
        scores = q @ q.swapaxes(-1, -2)
        if mask is not None:
            scores = scores + mask
        return mx.softmax(scores.astype(mx.float32), axis=-1).astype(scores.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = Scores()

    def extended(self, mask):
        return (1.0 - mask[:, None]) * -10000.0

    def __call__(self, q: mx.array, mask=None):
        if mask is None:
            mask = mx.ones(q.shape[:2])
        return self.scores(q, {given})
"""


@pytest.mark.parametrize(("given", "count"), [("self.extended(mask)", 0), ("(mx.arange(4) > 2)", 1)])
def test_a_float32_mask_has_made_the_scores_float32(tmp_path: Path, given: str, count: int) -> None:
    """MLX: bfloat16 scores and a float32 mask are float32, and the casts around softmax are no kernels."""
    path = tmp_path / "model.py"
    path.write_text(MASKED.replace("{given}", given))
    (result,) = check_paths([path], select=["FUS104"], cache=False)
    assert len(result.findings) == count
    half, wide = mx.ones((2, 2), dtype=mx.bfloat16), (1.0 - mx.ones((2, 2))) * -10000.0
    assert (half + wide).dtype == mx.float32


DERIVED = """import mlx.core as mx
import mlx.nn as nn


class Norm({bases}):
    def __call__(self, x):
        return super().__call__(x.astype(mx.float32)).astype(x.dtype)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)

    def __call__(self, x: mx.array):
        return self.norm({given})
"""


@pytest.mark.parametrize(
    ("bases", "given", "count"),
    [
        ("nn.LayerNorm", "x", 1),
        ("nn.RMSNorm", "x", 1),
        ("nn.LayerNorm", "x.astype(mx.float32)", 0),
        ("Mixin, nn.LayerNorm", "x", 0),
        ("nn.GroupNorm", "x", 0),
    ],
)
def test_the_norm_that_a_class_derives_from(tmp_path: Path, bases: str, given: str, count: int) -> None:
    """Not where the package gives it float32, nor what MLX computes in the operand's dtype."""
    path = tmp_path / "model.py"
    path.write_text(DERIVED.format(bases=bases, given=given))
    (result,) = check_paths([path], select=["FUS104"], cache=False)
    assert len(result.findings) == count
    for f in result.findings:
        assert f.fix is not None and f.fix.applicability == "unsafe" and f.fix.numerics == "less accurate"
        assert f.traffic is not None and (f.traffic.bytes_now, f.traffic.bytes_fused) == ("20*T*D", "4*T*D")


def test_a_layer_that_a_helper_is_given_stays(tmp_path: Path) -> None:
    """The helper's text names no layer."""
    path = tmp_path / "model.py"
    path.write_text(
        "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
        "def wide(norm, x):\n    return norm(x.astype(mx.float32)).astype(x.dtype)\n\n\n"
        "class Model(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.norm = nn.RMSNorm(8)\n\n"
        "    def __call__(self, x):\n        return wide(self.norm, x)\n"
    )
    (result,) = check_paths([path], select=["FUS104"], cache=False)
    assert not [f for f in result.findings if f.fix and f.fix.edits]


@pytest.mark.parametrize(("dtype", "count"), [("", 1), ("bfloat16", 1), ("float32", 0)])
def test_casts_to_the_dtype_that_is_stated_are_no_kernels(tmp_path: Path, dtype: str, count: int) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import mlx.core as mx\n\n\n"
        "def f(x: mx.array):\n    return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)\n"
    )
    (result,) = check_paths([path], select=["FUS104"], cache=False, **({"dtype": dtype} if dtype else {}))
    assert len(result.findings) == count
