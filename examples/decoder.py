"""A small decoder with every operation written out by hand, the way a first port to MLX often looks.

Nothing here is wrong. It moves its activations through memory far more often than it has to:

    fuselint check examples
"""

import math

import mlx.core as mx
import mlx.nn as nn


class RootMeanSquareNorm(nn.Module):
    """Scales each row to a root mean square of one, in float32."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight = mx.ones((width,))
        self.eps = eps

    def __call__(self, x):
        wide = x.astype(mx.float32)
        power = mx.mean(mx.square(wide), axis=-1, keepdims=True)
        return self.weight * (wide * mx.rsqrt(power + self.eps)).astype(x.dtype)


class GroupedAttention(nn.Module):
    """Attention with fewer key and value heads than query heads."""

    def __init__(self, width: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_width = width // heads
        self.query = nn.Linear(width, heads * self.head_width, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_width, bias=False)
        self.out = nn.Linear(heads * self.head_width, width, bias=False)
        self.rotate = nn.RoPE(self.head_width)

    def __call__(self, x, mask=None):
        B, L, _ = x.shape
        q = self.query(x).reshape(B, L, self.heads, self.head_width).transpose(0, 2, 1, 3)
        k = self.key(x).reshape(B, L, self.kv_heads, self.head_width).transpose(0, 2, 1, 3)
        v = self.value(x).reshape(B, L, self.kv_heads, self.head_width).transpose(0, 2, 1, 3)

        k = mx.repeat(k, self.heads // self.kv_heads, axis=1)
        v = mx.repeat(v, self.heads // self.kv_heads, axis=1)

        scores = self.rotate(q) @ self.rotate(k).swapaxes(-1, -2) / math.sqrt(self.head_width)
        if mask is not None:
            scores = scores + mask
        attended = mx.softmax(scores, axis=-1) @ v
        return self.out(attended.transpose(0, 2, 1, 3).reshape(B, L, -1))


class GatedFeedForward(nn.Module):
    """Two projections, one of which gates the other."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def __call__(self, x):
        return self.down(nn.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.before_attention = RootMeanSquareNorm(width)
        self.attention = GroupedAttention(width, heads, kv_heads)
        self.before_feed_forward = RootMeanSquareNorm(width)
        self.feed_forward = GatedFeedForward(width, hidden)

    def __call__(self, x, mask=None):
        x = x + self.attention(self.before_attention(x), mask)
        return x + self.feed_forward(self.before_feed_forward(x))


class Decoder(nn.Module):
    """Token ids of shape (batch, length) -> logits of shape (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int = 256, width: int = 64, heads: int = 4, kv_heads: int = 2, layers: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = [Layer(width, heads, kv_heads, 3 * width) for _ in range(layers)]
        self.norm = RootMeanSquareNorm(width)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        length = tokens.shape[1]
        places = mx.arange(length)
        mask = mx.where(places[:, None] >= places[None, :], 0.0, -1e9).astype(x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return self.embedding.as_linear(self.norm(x))
