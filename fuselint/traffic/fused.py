"""The kernels of a fused op that a rule proposes: with the casts that MLX hides in it, and where MLX has no kernel for
it, the steps that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuselint.graph import expand_fused as fused
from fuselint.graph.expand_losses import entropy_steps
from fuselint.graph.gates import Gates
from fuselint.graph.model import Node
from fuselint.graph.ops import TABLE
from fuselint.graph.tape import FUSABLE, Array, Tracer
from fuselint.traffic.kernels import Kernel, of_tape

Fused = Callable[[Tracer, Gates, Sequence[Array], Array], "Array | None"]
"""Of a tracer, what is fused, the operands, and the array that holds the result."""


def kernels_of(op: str, reads: Sequence[Array], writes: Array, node: Node, gates: Gates) -> list[Kernel]:
    t = Tracer(activation=gates.dtype, node=node)
    result = _expanded(t, op, reads, writes, gates)
    if result is None:
        return [Kernel(op, node, tuple(reads), (writes,))]
    return of_tape(t.arrays, gates, (result,))


def computed(t: Tracer, op: str, reads: Sequence[Array], writes: Array, gates: Gates) -> Array:
    """The fused op among the arrays of a tracer. writes: an array of the result's shape and dtype."""
    result = _expanded(t, op, reads, writes, gates)
    if result is not None:
        return result
    row = TABLE.get(op)
    fusable = row is not None and row.primitives[:1] and row.primitives[0] in FUSABLE
    return t.make(row.primitives[0] if row is not None and fusable else op, reads, writes.shape, writes.dtype)


def _expanded(t: Tracer, op: str, reads: Sequence[Array], writes: Array, gates: Gates) -> Array | None:
    """The casts and the kernel, or the steps; None of an op that is one kernel everywhere."""
    expand = FUSED.get(op)
    result = None if expand is None or not reads else expand(t, gates, reads, writes)
    if result is None:
        return None
    if result.shape is None or result.shape.lead is not None:
        result.shape = writes.shape
    return t.astype(result, writes.dtype)


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


def _rope(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    dims = None if reads[0].shape is None else reads[0].shape.axis(-1)
    if gates.fuses_rope or dims is None:
        return None
    offset = t.constant(0, "int32")
    return fused.rope(t, gates, reads[0], fused.Rotation(dims, False, offset, reads[1] if len(reads) > 1 else None))


def _cross_entropy(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    return None if gates.fuses_cross_entropy or len(reads) < 2 else entropy_steps(t, reads[0], reads[1])


FUSED: dict[str, Fused] = {
    "fast.rms_norm": _rms_norm, "fast.layer_norm": _layer_norm, "fast.scaled_dot_product_attention": _attention,
    "fast.rope": _rope, "fast.cross_entropy": _cross_entropy,
}  # fmt: skip
