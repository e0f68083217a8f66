"""The kernels of a fused op that a rule proposes: with the casts that MLX hides in it, and where MLX has no kernel for
it, the steps that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuselint.graph import expand_fused as fused
from fuselint.graph.gates import Gates
from fuselint.graph.model import Node
from fuselint.graph.tape import Array, Tracer
from fuselint.traffic.kernels import Kernel, of_tape

Fused = Callable[[Tracer, Gates, Sequence[Array], Array], "Array | None"]
"""Of a tracer, what is fused, the operands, and the array that holds the result."""


def kernels_of(op: str, reads: Sequence[Array], writes: Array, node: Node, gates: Gates) -> list[Kernel]:
    expand = FUSED.get(op)
    t = Tracer(activation=gates.dtype, node=node)
    result = None if expand is None or not reads else expand(t, gates, reads, writes)
    if result is None:
        return [Kernel(op, node, tuple(reads), (writes,))]
    if result.shape is None or result.shape.lead is not None:
        result.shape = writes.shape
    result = t.astype(result, writes.dtype)
    return of_tape(t.arrays, gates, (result,))


def _rms_norm(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array:
    return fused.rms_norm(t, gates, reads[0], reads[1] if len(reads) > 1 else None)


def _layer_norm(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array:
    weight, bias = (*reads[1:], None, None)[:2]
    return fused.layer_norm(t, gates, reads[0], weight, bias)


def _attention(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    if len(reads) < 3:
        return None
    mask = reads[3] if len(reads) > 3 else None
    return fused.attention(t, gates, fused.Attention(reads[0], reads[1], reads[2], mask), writes.shape)


FUSED: dict[str, Fused] = {
    "fast.rms_norm": _rms_norm, "fast.layer_norm": _layer_norm, "fast.scaled_dot_product_attention": _attention,
}  # fmt: skip
