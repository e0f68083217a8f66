"""Shape and dtype rules of products and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, ShapeRule
from fuselint.graph.shapes import Shape, broadcast
from fuselint.graph.symbols import Expr

DEFAULT_GROUPS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
"""group_size and bits of each mode of quantisation."""


def matmul(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    return matmul_shape(a, b)


def matmul_shape(a: Shape | None, b: Shape | None) -> Shape | None:
    if b is None or a is None:
        return None
    if b.rank == 1:
        front = a.front(1)
        return None if front is None else Shape(*front)
    if a.rank == 1:
        tail, front = b.tail(2), b.front(2)
        return None if tail is None or front is None else Shape(front[0], (*front[1], tail[1]))
    left, right = a.tail(2), b.tail(2)
    lead_a, lead_b = a.front(2), b.front(2)
    if right is None or lead_b is None:
        return None
    if lead_b == (None, ()):  # a matrix: a's leading axes, whatever their number
        front = a.front(1)
        return None if front is None else Shape(front[0], (*front[1], right[1]))
    if left is None or lead_a is None:
        return None
    batch = broadcast(Shape(*lead_a), Shape(*lead_b))
    return None if batch is None else Shape(batch.lead, (*batch.dims, left[0], right[1]))


def addmm(c: Call) -> Shape | None:
    return broadcast(matmul_shape(c.shape(1), c.shape(2)), c.shape(0))


def einsum(c: Call) -> Shape | None:
    """Each letter is a size; the result is spelt after `->`."""
    text = c.attrs.get("subscripts")
    found = einsum_terms(text, [c.rank(i) for i in range(len(c.values))])
    if found is None:
        return None
    terms, out = found
    sizes: dict[str, Expr] = {}
    for i, term in enumerate(terms):
        shape = c.shape(i)
        tail = None if shape is None else shape.tail(len(term))
        if tail is None:
            continue
        for ch, d in zip(term, tail, strict=True):
            if ch not in sizes or sizes[ch] == 1 or (sizes[ch].value() is None and d.value() is not None):
                sizes[ch] = d
    return Shape(None, tuple(sizes[ch] for ch in out)) if all(ch in sizes for ch in out) else None


def einsum_terms(text: object, ranks: Sequence[int | None]) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result, an ellipsis spelt out; None where that takes a rank unknown."""
    if not isinstance(text, str):
        return None
    left, arrow, out = text.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        return None
    spare = [ch for ch in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if ch not in text]
    most = 0
    for i, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if "..." in term:
            if rank is None:
                return None
            n = rank - len(term) + 3
            most = max(most, n)
            terms[i] = term.replace("...", "".join(spare[len(spare) - n :]))
    if not arrow:
        letters = "".join(terms)
        out = "".join(sorted(ch for ch in set(letters) if letters.count(ch) == 1))
    return terms, out.replace("...", "".join(spare[len(spare) - most :]))


def einsum_primitives(c: Call) -> tuple[str, ...]:
    """What is computed, without the views around it: they depend on how the letters lie."""
    text = c.attrs.get("subscripts")
    left, _, out = (text if isinstance(text, str) else "").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) == 1:
        return ("Reduce", "Squeeze") if set(left) - set(out) else ()
    contracts = bool(set(left) - {","} - set(out))
    return ("Matmul" if contracts else "Multiply",) * (len(terms) - 1)


def gathered_product(c: Call) -> Shape | None:
    """gather_mm and gather_qmm: the indices' axes, then rows and columns."""
    x, w = c.shape(0), c.shape(1)
    if x is None or w is None:
        return None
    rows, columns = x.axis(-2), _columns(c)
    batches = []
    for name, operand in (("lhs_indices", x), ("rhs_indices", w)):
        given = c.operand(name)
        front = operand.front(2)
        batches.append(given.shape if given is not None else None if front is None else Shape(*front))
    batch = reduce(broadcast, batches)
    if batch is None or rows is None or columns is None:
        return None
    return Shape(batch.lead, (*batch.dims, rows, columns))


def _columns(c: Call) -> Expr | None:
    """The columns of a product with a matrix, which may be quantised and transposed."""
    w = c.shape(1)
    if w is None or "transpose" not in c.attrs:
        return None if w is None else w.axis(-1)
    transpose = c.flag("transpose")
    if transpose is None:
        return None
    return w.axis(-2) if transpose else unpacked(c, w.axis(-1))


def unpacked(c: Call, words: Expr | None) -> Expr | None:
    """How many values a row of 32-bit words holds."""
    bits = quantisation(c)[1]
    return None if words is None or bits is None else words * 32 // bits


def quantisation(c: Call) -> tuple[int | None, int | None]:
    """group_size and bits, where they are known, and numbers that MLX takes."""
    default = DEFAULT_GROUPS.get(str(c.attrs.get("mode")), (None, None))
    size, bits = (
        default[i] if c.attrs.get(name) is None else c.integer(name) for i, name in enumerate(("group_size", "bits"))
    )
    return size or None, bits or None


def quantised(c: Call) -> Shape | None:
    x, columns = c.shape(0), _columns(c)
    return None if x is None or columns is None else x.replace(-1, (columns,))


def quantised_dtype(c: Call) -> DType:
    """x's with the scales' and biases'; the floating-point modes' scales are bytes."""
    if c.attrs.get("mode") != "affine":
        return c.dtype(0).settle()
    scales = [v.dtype for n in ("scales", "biases") if (v := c.operand(n)) is not None]
    return reduce(dtypes.promote, scales, c.dtype(0)).settle()


def quantise(c: Call) -> tuple[Shape | None, ...]:
    """Packed words, scales, and biases in affine mode."""
    w = c.shape(0)
    group, bits = quantisation(c)
    columns = None if w is None else w.axis(-1)
    parts = 3 if c.attrs.get("mode") == "affine" else 2
    if w is None or columns is None or group is None or bits is None:
        return (None,) * parts
    scales = w.replace(-1, (columns // group,))
    return (w.replace(-1, (columns * bits // 32,)), scales, scales)[:parts]


def quantise_dtypes(c: Call) -> tuple[DType, ...]:
    words = DType({"uint32"})
    if c.attrs.get("mode") != "affine":
        return (words, DType({"uint8"}))
    return (words, c.dtype(0), c.dtype(0))


def dequantised(c: Call) -> Shape | None:
    w = c.shape(0)
    columns = None if w is None else unpacked(c, w.axis(-1))
    return None if w is None or columns is None else w.replace(-1, (columns,))


def dequantised_dtype(c: Call) -> DType:
    if c.attrs.get("dtype") is not None:
        return c.dtype_value(c.attrs["dtype"])
    return c.dtype(1).settle() if c.attrs.get("mode") == "affine" else DType({"bfloat16"})


# -- convolutions: batch, axes, channels ------------------------------------------------------------------------------


def each(c: Call, value: Any, n: int) -> list[Expr] | None:
    """An int for every axis, or one for each."""
    listed = value if isinstance(value, tuple) else (value,) * n
    sizes = [c.size(v) for v in listed]
    return [s for s in sizes if s is not None] if len(listed) == n and all(s is not None for s in sizes) else None


def convolved(size: Expr, kernel: Expr, stride: Expr, padding: Expr, dilation: Expr) -> Expr:
    """The output size of a convolution along one axis."""
    return (size + padding * 2 - dilation * (kernel - 1) - 1) // stride + 1


def transposed(size: Expr, kernel: Expr, stride: Expr, padding: Expr, dilation: Expr, output: Expr) -> Expr:
    return (size - 1) * stride - padding * 2 + dilation * (kernel - 1) + output + 1


def convolution(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        w = c.shape(1)
        ws = None if w is None else w.tail(n + 2)
        return None if ws is None else convolution_shape(c, n, c.attrs.get, ws[0], ws[1:-1])

    return rule


def transposed_convolution(n: int) -> ShapeRule:
    def rule(c: Call) -> Shape | None:
        w = c.shape(1)
        ws = None if w is None else w.tail(n + 2)
        return None if ws is None else transposed_shape(c, n, c.attrs.get, ws[0], ws[1:-1])

    return rule


Setting = Callable[[str], Any]


def convolution_shape(c: Call, n: int, setting: Setting, channels: Expr, kernel: Sequence[Expr]) -> Shape | None:
    """Of input 0 under a kernel; `setting` looks up stride, padding and dilation."""
    x = c.shape(0)
    stride, padding, dilation = (each(c, setting(k), n) for k in ("stride", "padding", "dilation"))
    xs = None if x is None else x.tail(n + 2)
    if xs is None or stride is None or padding is None or dilation is None or len(kernel) != n:
        return None
    axes = zip(xs[1:-1], kernel, stride, padding, dilation, strict=True)
    return Shape(None, (xs[0], *(convolved(*a) for a in axes), channels))


def transposed_shape(c: Call, n: int, setting: Setting, channels: Expr, kernel: Sequence[Expr]) -> Shape | None:
    x = c.shape(0)
    names = ("stride", "padding", "dilation", "output_padding")
    stride, padding, dilation, output = (each(c, setting(k), n) for k in names)
    xs = None if x is None else x.tail(n + 2)
    if xs is None or stride is None or padding is None or dilation is None or output is None or len(kernel) != n:
        return None
    axes = zip(xs[1:-1], kernel, stride, padding, dilation, output, strict=True)
    return Shape(None, (xs[0], *(transposed(*a) for a in axes), channels))


def general_convolution(c: Call) -> Shape | None:
    """Padding alike on both sides, and no input dilation."""
    x, w, padding = c.shape(0), c.shape(1), c.attrs.get("padding")
    n = None if x is None or x.rank is None else x.rank - 2
    ws = None if w is None or n is None else w.tail(n + 2)
    if n is None or ws is None or c.attrs.get("input_dilation") != 1:
        return None
    if isinstance(padding, tuple) and any(isinstance(p, tuple) for p in padding):
        return None

    def setting(name: str) -> Any:
        return c.attrs.get("kernel_dilation" if name == "dilation" else name)

    return convolution_shape(c, n, setting, ws[0], ws[1:-1])
