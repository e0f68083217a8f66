"""Regions as they are cut out of source: each can be run, and its fix passes."""

import textwrap
from dataclasses import replace

import pytest

pytest.importorskip("mlx.core")

from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.source.text import FileText
from fuselint.verify import verify

SOURCES = {
    "a static method": """
        class A(nn.Module):
            @staticmethod
            def rotate(x, y, cos, sin):
                return x * cos + y * sin * 2
        """,
    "a helper called by its class": """
        class Norm(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.weight = mx.ones((dims,))

            @staticmethod
            def normalise(x, eps):
                return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + eps)

            def __call__(self, x):
                return self.weight * Norm.normalise(x.astype(mx.float32), 1e-6).astype(x.dtype)
        """,
    "a dtype in a name": """
        def route(logits):
            dtype = mx.bfloat16
            scores = (mx.sigmoid(logits.astype(mx.float32)) * 2 + 1).astype(dtype)
            return scores @ scores.T
        """,
    "an activation that is a layer by default": """
        class MLP(nn.Module):
            def __init__(self, dims, act=nn.SiLU()):
                super().__init__()
                self.up = nn.Linear(dims, dims)
                self.act = act

            def __call__(self, gate, x):
                up = self.up(x)
                return self.act(gate) * up
        """,
    "an activation that is a function by default": """
        class MLP(nn.Module):
            def __init__(self, dims, act=nn.gelu_approx):
                super().__init__()
                self.up = nn.Linear(dims, dims)
                self.act = act

            def __call__(self, gate, x):
                up = self.up(x)
                return self.act(gate) * up
        """,
    "a number that an operation makes": """
        def gelu_new(x):
            inner = mx.sqrt(2.0 / mx.pi) * (x + 0.044715 * mx.power(x, 3.0))
            return 0.5 * x * (1.0 + mx.tanh(inner))
        """,
    "a layer of a width that another name says, and a dtype that is given": """
        class Attention(nn.Module):
            def __init__(self, dims, heads, dim_head):
                super().__init__()
                self.heads, self.dim_head = heads, dim_head
                self.norm = nn.RMSNorm(dim_head, eps=1e-5)

            def __call__(self, x, dtype):
                batch, length, _ = x.shape
                q = x.reshape(batch, length, self.heads, self.dim_head)
                return self.norm(q.astype(mx.float32)).astype(dtype)
        """,
    "a dtype of what operands are made of": """
        class Attention(nn.Module):
            def __init__(self, dims, heads):
                super().__init__()
                self.heads, self.scale = heads, (dims // heads) ** -0.5
                self.wq, self.wk, self.wv = nn.Linear(dims, dims), nn.Linear(dims, dims), nn.Linear(dims, dims)

            def __call__(self, x, bias, causal):
                B, L, _ = x.shape
                q = self.wq(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
                k = self.wk(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
                v = self.wv(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
                scores = (q @ k.transpose(0, 1, 3, 2)) * self.scale
                scores = scores + bias + causal
                return mx.softmax(scores.astype(mx.float32), axis=-1).astype(x.dtype) @ v
        """,
    "a module whose `partial` is something else": """
        def partial(width):
            return int(width * 0.5)

        def gate(x: mx.array, y: mx.array):
            return mx.tanh(x) * y * partial(2)
        """,
    "a constant beside a helper": """
        LIMIT = 30.0

        def _cap(x):
            return mx.tanh(x / LIMIT)

        def scores(x, y):
            return _cap(x + y) * LIMIT
        """,
    "a weight that is cast": """
        class Norm(nn.Module):
            def __init__(self, dims, eps=1e-6):
                super().__init__()
                self.weight = mx.zeros((dims,))
                self.eps = eps

            def __call__(self, x):
                dtype = x.dtype
                wide = x.astype(mx.float32)
                scale = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
                return (wide * scale * (self.weight.astype(mx.float32) + 1)).astype(dtype)
        """,
    "one bound": """
        def gate(gate, up):
            gate = mx.clip(gate, a_min=None, a_max=7.0)
            up = mx.clip(up, a_min=-7.0, a_max=None)
            return (up + 1.0) * gate * mx.sigmoid(1.702 * gate)
        """,
    "an attribute that is read twice": """
        class Snake(nn.Module):
            def __init__(self, dims):
                super().__init__()
                self.alpha = mx.ones((dims,))

            def __call__(self, x):
                return x + mx.sin(self.alpha * x) ** 2 / (self.alpha + 1e-9)
        """,
    "an argument without a use": """
        def _norm(x, dims, eps=1e-6):
            return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + eps)

        def block(x, config):
            dims = config.dims
            y = x.reshape(-1, dims)
            return _norm(x, dims) @ y
        """,
    "an optional mask": """
        def attend(q, k, v, scale, mask=None):
            scores = (q * scale) @ k.transpose(0, 1, 3, 2)
            if mask is not None:
                scores = scores + mask
            return mx.softmax(scores, axis=-1, precise=True) @ v
        """,
}


@pytest.mark.parametrize("name", SOURCES)
def test_it_passes(name):
    text = "import mlx.core as mx\nimport mlx.nn as nn\n\n" + textwrap.dedent(SOURCES[name])
    result, proposals = analyse(FileText("m.py", text), Settings(min_kernels=2), lambda _: False)
    assert not result.errors
    found = [p.region for p in proposals if p.finding.fix and p.finding.fix.edits]
    assert found
    for region, outcome in zip(found, verify(found, device="cpu"), strict=True):
        assert outcome.outcome == "passed", (outcome, region)


LAYERS = """
import mlx.core as mx
import mlx.nn as nn


class Head(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.head = nn.Linear(args.dims, 4 * args.vocab_size, bias=False)

    def __call__(self, x):
        logits = self.head(x)
        return logits[:, -1, :]
"""


def regions(text, code):
    _, proposals = analyse(FileText("m.py", text), Settings(select=(code,)), lambda _: False)
    return [p.region for p in proposals if p.region is not None and p.finding.fix.edits]


def test_layers_get_weights_of_their_own():
    """Stand-ins of mlx.nn, of the arguments that `__init__` gives them: nothing of the module runs."""
    (last,) = regions(LAYERS, "FUS107")
    (layer,) = (i for i in last.inputs if i.kind == "object")
    assert (layer.name, layer.value) == (
        "self.head",
        "nn.Linear(input_dims=size0, output_dims=4 * size1, bias=False)",
    )
    (got,) = verify([last], device="cpu")
    assert got.outcome == "passed", got
    assert set(got.ulp) == {"float32", "float16", "bfloat16"}


@pytest.mark.parametrize(("right", "wrong"), [("-1", "0"), ("self.head(", "-self.head("), ("self.head(", "2 * (")])
def test_a_wrong_fix_around_a_layer_is_caught(right, wrong):
    (last,) = regions(LAYERS, "FUS107")
    assert right in last.after
    (got,) = verify([replace(last, after=last.after.replace(right, wrong))], device="cpu")
    assert got.outcome == "failed", got
