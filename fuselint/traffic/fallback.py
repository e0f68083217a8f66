"""What a fused op costs where MLX has no kernel for it: the steps that it stands for."""

from __future__ import annotations

from collections.abc import Callable

from fuselint.graph.gates import attention_is_fused
from fuselint.graph.shapes import Shape
from fuselint.graph.tape import Array
from fuselint.traffic.kernels import Kernel
from fuselint.traffic.sizes import USUAL

ATTENTION = "fast.scaled_dot_product_attention"

USUAL_QUERIES = USUAL[4][2]

Stated = Callable[[str], "int | None"]
"""The size of a name, where the user states it."""


def steps(kernel: Kernel, scores: Shape | None, stated: Stated) -> list[Kernel]:
    """The kernels that run for a fused one: itself, unless its head dimension is known to have none.

    scores: batch x heads x queries x keys.
    """
    if kernel.op != ATTENTION or scores is None or len(kernel.reads) < 3:
        return [kernel]
    q, k, v, *mask = kernel.reads
    head, value_head = _last(q, stated), _last(v, stated)
    if head is None or value_head is None or attention_is_fused(head, value_head, _queries(scores, stated)):
        return [kernel]
    scaled, attended = _like(q, q.shape), [_like(q, scores) for _ in range(3)]
    masked = [Kernel("Add", kernel.node, (attended[0], *mask), (attended[1],))] if mask else []
    weighed = attended[1] if mask else attended[0]
    return [
        Kernel("Multiply", kernel.node, (q,), (scaled,)),
        Kernel("Matmul", kernel.node, (scaled, k), (attended[0],)),
        *masked,
        Kernel("Softmax", kernel.node, (weighed,), (attended[2],)),
        Kernel("Matmul", kernel.node, (attended[2], v), kernel.writes),
    ]


def _last(array: Array, stated: Stated) -> int | None:
    """The size of the last axis, where the code or the user says it."""
    size = None if array.shape is None else array.shape.axis(-1)
    if size is None:
        return None
    return size.substitute({n: s for n in size.names if (s := stated(n)) is not None}).value()


def _queries(scores: Shape, stated: Stated) -> int:
    size = scores.axis(-2)
    known = None if size is None else size.substitute({n: stated(n) or USUAL_QUERIES for n in size.names}).value()
    return known or USUAL_QUERIES


def _like(array: Array, shape: Shape | None) -> Array:
    return Array("", [], shape, array.dtype)
