"""The arithmetic of a region: floating-point operations, counted as rooflines do.

A product counts two for each multiply-add, elementwise work one for each primitive and element (an exponential too,
whatever it costs), a reduction one for each element that it reads. What only moves or casts counts nothing. A fix
computes the same, so a region has one number, counted from its kernels before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import FUSABLE, Array, names
from fuselint.traffic.kernels import Kernel
from fuselint.traffic.sizes import FEATURES, LENGTH, Sizes

MOVES = names(
    """
    Arange AsStrided AsType Broadcast Concatenate Contiguous Copy DynamicSlice DynamicSliceUpdate Flatten Full Gather
    GatherAxis Pad Reshape Scatter ScatterAxis SliceUpdate Transpose Unflatten
    """
)
PRODUCTS = names("AddMM BlockMaskedMM GatherMM GatherQMM Matmul QuantizedMatmul")
OF_INPUT = names("ArgReduce LogSumExp Reduce Scan")
"""Count one for each element that they read; LogSumExp subtracts, exponentiates and adds."""
PER_ELEMENT = {"LayerNorm": 8, "LogSumExp": 3, "RMSNorm": 4, "RoPE": 3, "Softmax": 5}

_STEP = re.compile("|".join(sorted(FUSABLE, key=len, reverse=True)))


@dataclass(frozen=True, slots=True)
class Work:
    """products: operations of matrix products, which chips have units for; rest: all others."""

    products: Expr
    rest: Expr

    def __add__(self, other: Work) -> Work:
        return Work(self.products + other.products, self.rest + other.rest)


NONE = Work(Expr.of(0), Expr.of(0))


def steps_of(name: str) -> tuple[str, ...]:
    """The primitives that a compiled kernel's name lists."""
    return tuple(_STEP.findall(name.removeprefix("Compiled")))


def work(kernels: Iterable[Kernel], sizes: Sizes) -> Work:
    return sum((_of(k, sizes) for k in kernels), NONE)


def _of(kernel: Kernel, sizes: Sizes) -> Work:
    out = kernel.writes[0]
    given = out.inputs or list(kernel.reads)
    each: Expr | None = None  # multiply-adds for an element
    if kernel.op in PRODUCTS and given:
        each = _size(given[0], -1, sizes)
    elif kernel.op == "Convolution" and len(given) > 1 and given[1].shape is not None:
        each = sizes.elements(Shape(None, given[1].shape.dims[1:]))
    elif kernel.op == "ScaledDotProductAttention" and len(given) > 1:
        each = _size(given[1], -2, sizes) * 2
    if each is not None:
        return Work(sizes.elements(out.shape) * each * 2, NONE.rest)
    return Work(NONE.products, _elementwise(kernel, given, sizes))


def _size(array: Array, axis: int, sizes: Sizes) -> Expr:
    found = None if array.shape is None else array.shape.axis(axis)
    return Expr.name(FEATURES if axis == -1 else LENGTH) if found is None else sizes.elements(Shape(None, (found,)))


def _elementwise(kernel: Kernel, given: list[Array], sizes: Sizes) -> Expr:
    if kernel.op in MOVES:
        return Expr.of(0)
    each = PER_ELEMENT.get(kernel.op, 1)
    if kernel.op.startswith("Compiled"):
        each = sum(step not in MOVES for step in steps_of(kernel.op))
    counted = given[0] if kernel.op in OF_INPUT and given else kernel.writes[0]
    return sizes.elements(counted.shape) * each
