"""What a whole function moves: its axes are not mixed up, however many arrays end in different ones."""

from __future__ import annotations

import textwrap

from fuselint.config import Settings
from fuselint.page import _Work
from fuselint.source.text import decode
from fuselint.traffic.census import Census, census

HEAD = """
import mlx.core as mx
import mlx.nn as nn


"""


def counted(body: str, name: str) -> Census:
    work = _Work.read(decode("model.py", (HEAD + textwrap.dedent(body)).encode()), Settings())
    assert work.analysis is not None
    graph = work.analysis.program.graph(name)
    assert graph is not None
    found = census(graph, Settings())
    assert found is not None
    return found


def test_a_mask_is_as_long_as_the_prompt_and_not_as_wide_as_the_vocabulary() -> None:
    found = counted(
        """
        class Model(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.model = Inner(config)
                self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)

            def __call__(self, x):
                mask = nn.MultiHeadAttention.create_additive_causal_mask(x.shape[1]).astype(x.dtype)
                y, cache = self.model(x, mask)
                return self.lm_head(y), cache
        """,
        "Model.__call__",
    )
    assert found.formula == "2*T*D + 2*T*config.vocab_size + 20*L*L + 2*D*config.vocab_size"
    assert found.at == {"D": 4096, "L": 2048, "T": 2048, "config.vocab_size": 128256}
    assert found.bytes == 2 * 2048 * (4096 + 128256) + 20 * 2048 * 2048 + 2 * 4096 * 128256


def test_scores_are_as_long_as_the_keys() -> None:
    """`k.shape[2]` ends the transposed keys, and is no head's width for that."""
    found = counted(
        """
        class Attention(nn.Module):
            def __init__(self, args):
                super().__init__()
                self.heads = args.num_heads
                self.qkv = nn.Linear(args.hidden_size, 3 * args.kv_channels * args.num_heads)

            def __call__(self, x, cache):
                q, k, v = mx.split(self.qkv(x), 3, axis=-1)
                B, L, _ = q.shape
                q = q.reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
                k = k.reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
                if cache is not None:
                    k = mx.concatenate([cache, k], axis=2)
                return mx.exp(q @ k.transpose(0, 1, 3, 2))
        """,
        "Attention.__call__",
    )
    assert found.at["args.kv_channels"] == 128
    [scores] = [line.bytes for line in found.lines if "Exp" in line.kernels]
    heads, length, head = 32, 2048, 128
    q_and_k = 2 * heads * length * head * 2
    assert scores == q_and_k + 3 * heads * length * length * 2  # written by the product, read and written by exp
