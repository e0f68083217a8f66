"""What several tests share: model source, and what a run of the command line gave."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


NORM = """\
import mlx.core as mx
import mlx.nn as nn


class Norm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)
        return self.weight * h.astype(x.dtype)
"""

PLAIN = """\
import mlx.core as mx


def double(x):
    return mx.matmul(x, x)
"""
