"""The kernels of a fused op that a rule proposes: with the casts that MLX hides in it, and where MLX has no kernel for
it, the steps that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from fuselint.graph import expand_fused as fused
from fuselint.graph.expand_losses import entropy_steps
from fuselint.graph.fuse import compiled
from fuselint.graph.gates import Gates
from fuselint.graph.model import Node
from fuselint.graph.ops import TABLE
from fuselint.graph.primitives import ACTIVATIONS
from fuselint.graph.tape import FUSABLE, Array, Tracer
from fuselint.graph.tape_views import ONE, addmm
from fuselint.traffic.kernels import Kernel, group_kernels, of_tape
from fuselint.traffic.layout import Place

Fused = Callable[[Tracer, Gates, Sequence[Array], Array], "Array | None"]
"""Of a tracer, what is fused, the operands, and the array that holds the result."""


def kernels_of(
    op: str,
    reads: Sequence[Array],
    writes: Array,
    node: Node,
    gates: Gates,
    *,
    wide: bool = False,
    places: Mapping[Array, Place] | None = None,
) -> list[Kernel]:
    """wide: the first operand is cast to float32. places: of operands."""
    if op in ACTIVATIONS and reads:
        return _activation(op, reads[0], gates)
    if op == "fast.rope" and reads and gates.fuses_rope:
        return [Kernel(op, node, tuple(reads), (Array("", [], writes.shape, reads[0].dtype, node),))]
    t = Tracer(activation=gates.dtype, node=node)
    if wide and reads:
        reads = [t.astype(reads[0], "float32"), *reads[1:]]
    result = _expanded(t, op, reads, writes, gates)
    if result is None and op in ROW_WISE and reads:
        row_wise = t.make(ROW_WISE[op], reads, writes.shape, writes.dtype)
        return [replace(k, op=op) if row_wise in k.writes else k for k in of_tape((row_wise,), gates, (), places)]
    if result is None:
        return [Kernel(op, node, tuple(reads), (writes,))]
    return of_tape(t.arrays, gates, (result,), places)


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
    return result if op in NORMS else t.astype(result, writes.dtype)


def _activation(op: str, x: Array, gates: Gates) -> list[Kernel]:
    """A function of mlx.nn, as MLX compiles it alone: one kernel, or more where its chain is too long for one."""
    t = Tracer(shapeless=True, activation=gates.dtype)
    result = t.array(ACTIVATIONS[op](t, [t.input(x.shape, x.dtype)], {}))
    return group_kernels(compiled([result], shapeless=True), gates.backend)


def _rms_norm(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array:
    return fused.rms_norm(t, gates, reads[0], reads[1] if len(reads) > 1 else None)


def _layer_norm(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array:
    weight, bias = (*reads[1:], None, None)[:2]
    return fused.layer_norm(t, gates, reads[0], weight, bias)


def _attention(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    if len(reads) < 3:
        return None
    more = list(reads[3:])
    sinks = more.pop() if more and more[-1].shape is not None and more[-1].shape.rank == 1 else None
    mask = reduce(lambda a, b: t.array(t.binary("Add", a, b)), more) if more else None  # one sum of what was added
    return fused.attention(t, gates, fused.Attention(reads[0], reads[1], reads[2], mask, sinks), writes.shape)


def _addmm(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    if len(reads) != 3:
        return None  # a product with itself, or a sum with an operand
    c, a, b = reads
    return addmm(t, c, a, b, writes.shape)


def _log_softmax(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array:
    """What it becomes: mx.core has none."""
    x = reads[0]
    kept = None if x.shape is None else x.shape.replace(-1, (ONE,))
    return t.binary("Subtract", x, t.make("LogSumExp", (x,), kept, x.dtype, t.arguments))


def _rope(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    dims = None if reads[0].shape is None else reads[0].shape.axis(-1)
    if gates.fuses_rope or dims is None:
        return None
    offset = t.constant(0, "int32")
    return fused.rope(t, gates, reads[0], fused.Rotation(dims, False, offset, reads[1] if len(reads) > 1 else None))


def _cross_entropy(t: Tracer, gates: Gates, reads: Sequence[Array], writes: Array) -> Array | None:
    return None if gates.fuses_cross_entropy or len(reads) < 2 else entropy_steps(t, reads[0], reads[1])


ROW_WISE = {"nn.RMSNorm": "RMSNorm", "nn.LayerNorm": "LayerNorm", "softmax": "Softmax"}
"""Fused ops that are one primitive, and copy an operand that doesn't lie in row order."""

NORMS = ("fast.rms_norm", "fast.layer_norm")
"""Fused ops whose result is taken as it is: in the dtype of what they are given."""

FUSED: dict[str, Fused] = {
    "fast.rms_norm": _rms_norm, "fast.layer_norm": _layer_norm, "fast.scaled_dot_product_attention": _attention,
    "addmm": _addmm, "x - mx.logsumexp(x)": _log_softmax,
    "fast.rope": _rope, "fast.cross_entropy": _cross_entropy,
}  # fmt: skip
