"""The reference text of a graph computes what the source computes, in float64."""

import ast
import textwrap

import pytest

mx = pytest.importorskip("mlx.core")

from fuselint.graph.lower import Program  # noqa: E402
from fuselint.rulebook import Match  # noqa: E402
from fuselint.source.project import summarise  # noqa: E402
from fuselint.source.text import FileText  # noqa: E402
from fuselint.verify import compare, judge  # noqa: E402
from fuselint.verify.reference import reference, text_of  # noqa: E402

HEAD = "import math\nimport mlx.core as mx\nimport mlx.nn as nn\n"


def graph_of(source, name="f"):
    text = HEAD + textwrap.dedent(source)
    file = FileText("m.py", text, "\n", "utf-8", False)
    return Program(file, summarise(file, ast.parse(text))).graph(name)


def written(source, name="f", **holes):
    """The reference of what a function returns."""
    graph = graph_of(source, name)
    return text_of(graph, [graph.returns[-1][1]], {graph.params[k]: v for k, v in holes.items()})


def run(text, values):
    with mx.stream(mx.cpu):
        got = judge.Program(text, "", list(values), double=True)(values)
        mx.eval(got)
    return got


def double(*shape, seed=0):
    with mx.stream(mx.cpu):
        return mx.random.normal(shape, key=mx.random.key(seed)).astype(mx.float64)


BODIES = {
    "a rebound input": """
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + 1e-5)
        return (w * h).astype(x.dtype)
        """,
    "an inlined helper": """
        def norm(a, eps):
            return a * mx.rsqrt(a.square().mean(-1, keepdims=True) + eps)
        return w * norm(x, 1e-5)
        """,
    "scalars of shapes": "return (x * x.shape[-1] ** -0.5) / math.sqrt(x.shape[-1])",
    "views and slices": "return mx.concatenate([x[..., 4:], -x[..., :4]], axis=-1).reshape(2, -1).T[None][0, ::2]",
    "permutations": "return x.transpose(0, 2, 1).swapaxes(1, 2).moveaxis(0, -1)",
    "new axes": "return x[:, None, :, None] * w",
    "several results": """
        a, b = mx.split(x, 2, axis=-1)
        return a * mx.sigmoid(b), b
        """,
    "activations": "return nn.silu(x) + nn.gelu(x) + nn.gelu_approx(x) + mx.erf(x) + mx.logaddexp(x, 0)",
    "reductions": "return mx.softmax(x, axis=-1) + mx.logsumexp(x, axis=-1, keepdims=True) + x.var(-1, keepdims=True)",
    "fused": "return mx.fast.rms_norm(x, w, 1e-5) + mx.fast.layer_norm(x, w, None, 1e-5)",
    "where and clip": "return mx.where(x > 0, x, 0.1 * x) + mx.clip(x, -0.5, 0.5) + mx.maximum(x, 0)",
    "products": "return mx.einsum('bij,bkj->bik', x, x) + x @ x.transpose(0, 2, 1)",
    "powers": "return x**2 + (x * x) ** 0.25 + 2**x - (-x) ** 3",
    "made arrays": "return x + x * mx.arange(8) + mx.full((8,), 0.3) + mx.zeros_like(x) + mx.array([0.1, 0.2] * 4)",
    "repeats": "return mx.repeat(x, 2, axis=1).reshape(2, 4, 2, 8).mean(2) + mx.tile(x, (1, 1, 1))",
}


@pytest.mark.parametrize("name", BODIES)
def test_it_is_the_source(name):
    body = textwrap.dedent(BODIES[name]).strip()
    text = written("def f(x, w):\n" + textwrap.indent(body, "    "))
    values = {"x": double(2, 4, 8), "w": double(8, seed=1)}
    want = run(f"def f(x, w):\n{textwrap.indent(body, '    ')}\nresult = f(x, w)\n", values)
    got = run(text, values)
    assert compare.structure(want, got) == ""
    for (_, a), (_, b) in zip(compare.leaves(want), compare.leaves(got), strict=True):
        assert a.dtype == mx.float64
        assert compare.relative(a, b) < 1e-14


def test_a_join_computes_its_own_branch_only():
    text = written(
        """
        def f(x, mask=None):
            scores = x @ x.T
            if mask is not None:
                scores = scores + mask[None]
            return mx.softmax(scores, axis=-1)
        """
    )
    x = double(3, 4)
    assert run(text, {"x": x, "mask": None}).shape == (3, 3)
    assert run(text, {"x": x, "mask": double(3)}).shape == (3, 3)


def test_holes_and_self():
    source = """
        class Norm(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.weight = mx.ones((dims,))
                self.eps = 1e-6

            def _norm(self, x):
                return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)

            def __call__(self, x):
                return self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)
        """
    graph = graph_of(source, "Norm.__call__")
    root = graph.returns[-1][1]
    match = Match("FUS201", root, {"rows": graph.params["x"]}, "", [], frozenset())
    by_hole, by_name = reference(graph, match), reference(graph, match, {graph.params["x"]: "x"})
    assert "rows" in by_hole
    assert "rows" not in by_name
    for text in (by_hole, by_name):
        assert "self.weight" in text
        assert "self.eps" in text
        assert "_norm" not in text


def test_float_constants_are_float64_arrays():
    text = written("def f(x):\n    return x * 0.1 + 2\n")
    assert "mx.array(0.1, dtype=mx.float64)" in text
    assert "+ 2" in text
    assert run(text, {"x": mx.ones((1,), dtype=mx.int32)}).item() == 0.1 + 2


@pytest.mark.parametrize(
    "body",
    [
        "return unknown(x)",
        "for _ in range(3):\n    x = x * 2\nreturn x + 1",
        "return x.tolist()",
    ],
)
def test_what_has_no_text(body):
    graph = graph_of("def f(self, x, unknown):\n" + textwrap.indent(body, "    "))
    assert text_of(graph, [graph.returns[-1][1]], {}) is None


def test_a_long_chain_needs_no_deep_stack():
    body = "\n".join("x = x * 1.5 + 0.5" for _ in range(900))
    text = written("def f(x):\n" + textwrap.indent(body, "    ") + "\n    return x\n")
    assert text.count("\n") > 1800
