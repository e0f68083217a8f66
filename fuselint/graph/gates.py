"""Where a fused op of MLX really runs as one kernel. Elsewhere it runs the steps that it stands for.

After mlx/backend/metal/scaled_dot_product_attention.cpp of MLX 0.30.5 to 0.32; on the CPU nothing is fused, on CUDA
cuDNN takes head dimensions up to 128 that are multiples of 8.
"""

from __future__ import annotations

from typing import Literal

Backend = Literal["metal", "cuda", "cpu"]

FEW_QUERIES = 8
"""Up to here Metal takes the kernel for decoding, above it the one for prefill."""
MANY_QUERY_HEADS = 32
"""The decoding kernel takes at most so many queries x query heads of one K and V head."""
PREFILL_HEADS = frozenset({64, 72, 80, 96, 128})
DECODE_HEADS = frozenset({64, 96, 128, 256})
DECODE_UNEQUAL_HEADS = frozenset({(192, 128)})
CUDA_LARGEST_HEAD = 128


def attention_is_fused(
    head: int, value_head: int, queries: int, group: int = 1, training: bool = False, backend: Backend = "metal"
) -> bool:
    """Whether scaled_dot_product_attention is one kernel.

    head, value_head: head dimension of queries and keys, and of values. queries: their number. group: query heads of
    one K and V head. training: under a gradient.
    """
    if backend == "cpu":
        return False
    if backend == "cuda":
        return head % 8 == 0 and head <= CUDA_LARGEST_HEAD and value_head <= CUDA_LARGEST_HEAD
    if training:
        return False
    if queries > FEW_QUERIES:
        return head == value_head and head in PREFILL_HEADS
    known = head in DECODE_HEADS if head == value_head else (head, value_head) in DECODE_UNEQUAL_HEADS
    return known and queries * group <= MANY_QUERY_HEADS
