"""Ops of mlx.core that multiply matrices, and convolutions."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.graph import ops_products as pr
from fuselint.graph import ops_rules as r
from fuselint.graph.dtypes import DType
from fuselint.graph.op import Call, Op, PrimitiveRule
from fuselint.graph.ops_row import row
from fuselint.graph.shapes import SCALAR, Shape


def products() -> Iterator[Op]:
    yield row("matmul", "matmul", "a: A, b: A", "Matmul", pr.matmul, r.promoted_float, operator="@", recorded=_matmul)
    addmm = "c: A, a: A, b: A, alpha=1.0, beta=1.0"
    yield row("addmm", "matmul", addmm, "AddMM", pr.addmm, r.promoted_float, recorded=_addmm)
    yield row(
        "einsum", "matmul", "subscripts, *operands: L", "Matmul", pr.einsum, r.promoted, recorded=pr.einsum_primitives
    )
    yield row("inner", "matmul", "a: A, b: A", "Transpose Transpose Matmul", _inner, _inner_dtype, recorded=_contracted)
    yield row("outer", "composite", "a: A, b: A", "Reshape Multiply", _outer, r.promoted)
    yield row(
        "tensordot",
        "matmul",
        "a: A, b: A, axes=2",
        "Transpose Transpose Matmul",
        _tensordot,
        r.promoted_float,
        recorded=_contracted,
    )
    yield row("vecdot", "composite", "a: A, b: A, *, axis=-1", "Multiply Reduce Squeeze", _vecdot, r.promoted)
    quantised = "scales: A, biases: A = None"
    how = "group_size=None, bits=None, mode='affine'"
    yield row(
        "quantized_matmul",
        "matmul",
        f"x: A, w: A, {quantised}, transpose=True, {how}",
        "QuantizedMatmul",
        pr.quantised,
        pr.quantised_dtype,
    )
    indices = "lhs_indices: A = None, rhs_indices: A = None"
    yield row(
        "gather_qmm",
        "matmul",
        f"x: A, w: A, {quantised}, {indices}, transpose=True, {how}, global_scale=None, *, sorted_indices=False",
        "GatherQMM",
        pr.gathered_product,
        pr.quantised_dtype,
        recorded=_gathered("GatherQMM"),
    )
    yield row(
        "gather_mm",
        "matmul",
        f"a: A, b: A, {indices}, *, sorted_indices=False",
        "GatherMM",
        pr.gathered_product,
        _two_dtypes,
        recorded=_gathered("GatherMM"),
    )
    yield row(
        "gather_qqmm",
        "matmul",
        f"x: A, w: A, scales: A = None, {indices}, group_size=None, bits=None, mode='nvfp4', global_scale_x=None, "
        "global_scale_w=None, *, sorted_indices=False",
        "GatherQQMM",
        r.unknown,
    )
    masks = "mask_out: A = None, mask_lhs: A = None, mask_rhs: A = None"
    yield row(
        "block_masked_mm",
        "matmul",
        f"a: A, b: A, block_size=64, {masks}",
        "BlockMaskedMM",
        pr.matmul,
        _two_dtypes,
        recorded=_masked,
    )
    yield row("segmented_mm", "matmul", "a: A, b: A, segments: A", "SegmentedMM", _segmented, _two_dtypes)
    qq = f"x: A, w: A, scales: A = None, {how.replace('affine', 'nvfp4')}, global_scale_x=None, global_scale_w=None"
    yield row("qqmm", "matmul", qq, "QQMatmul", _by_rows)
    quantise = f"w: A, {how}, *, global_scale=None"
    yield row("quantize", "other", quantise, "Quantize", pr.quantise, pr.quantise_dtypes, result="arrays")
    dequantise = f"w: A, {quantised}, {how}, global_scale=None, dtype=None"
    yield row(
        "dequantize", "other", dequantise, "Dequantize", pr.dequantised, pr.dequantised_dtype, fallback=DEQUANTISE
    )


DEQUANTISE = (
    f"{'BitwiseBinary BitwiseBinary ExpandDims ' * 8}Concatenate Reshape ExpandDims Multiply ExpandDims Add Reshape"
)
"""Of 4 bits: one pair for each value in a word."""


def _two_dtypes(c: Call) -> DType:
    return (c.dtype(0) | c.dtype(1)).floated()


def _matmul(c: Call) -> tuple[str, ...]:
    """A vector is made a matrix; rows of all leading axes are one matrix, where the right operand is one."""
    a, b = c.shape(0), c.shape(1)
    if a is None or b is None:
        return ("Matmul",)
    if b.rank == 1:
        if a.rank == 1:
            return ("ExpandDims", "ExpandDims", "Matmul", "Squeeze")
        fold = ("Flatten", "ExpandDims", "Matmul", "Unflatten", "Squeeze")
        return fold if (a.rank or 3) > 2 else ("ExpandDims", "Matmul", "Squeeze")
    if a.rank == 1:
        return ("ExpandDims", "Matmul", "Squeeze")
    folds = b.rank == 2 and (a.rank or 3) > 2
    return ("Flatten", "Matmul", "Unflatten") if folds else ("Matmul",)


def _addmm(c: Call) -> tuple[str, ...]:
    z, a, b = c.shape(0), c.shape(1), c.shape(2)
    folds = a is not None and b is not None and z is not None
    if (
        folds
        and b is not None
        and b.rank == 2
        and a is not None
        and (a.rank or 3) > 2
        and z is not None
        and z.rank in (0, 1)
    ):
        return ("Reshape", "AddMM", "Reshape")
    return ("AddMM",)


def _inner(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    if a is None or b is None:
        return None
    if SCALAR in (a, b):
        return r.broadcasted(c)
    left, right = a.front(1), b.front(1)
    if left is None or right is None or right[0] is not None:
        return None
    return Shape(left[0], (*left[1], *right[1]))


def _inner_dtype(c: Call) -> DType:
    """Of numbers, a product; else one of matrices."""
    return r.promoted(c) if SCALAR in (c.shape(0), c.shape(1)) else r.promoted_float(c)


def _outer(c: Call) -> Shape | None:
    a, b = c.shape(0), c.shape(1)
    x, y = (None if s is None else s.elements() for s in (a, b))
    return None if x is None or y is None else Shape(None, (x, y))


def _tensordot(c: Call) -> Shape | None:
    a, b, axes = c.shape(0), c.shape(1), c.attrs.get("axes")
    if a is None or b is None:
        return None
    if isinstance(axes, int):
        left = a.front(axes)
        if left is None or b.lead is not None or axes > len(b.dims):
            return None
        return Shape(left[0], (*left[1], *b.dims[axes:]))
    if isinstance(axes, tuple) and len(axes) == 2 and a.lead is None and b.lead is None:
        if not all(isinstance(listed, tuple) for listed in axes):
            return None  # axes that a constructor was given
        drop = [{d % len(s.dims) for d in listed if isinstance(d, int)} for s, listed in ((a, axes[0]), (b, axes[1]))]
        if any(len(d) != len(x) for d, x in zip(drop, axes, strict=True)):
            return None
        kept = [d for s, gone in ((a, drop[0]), (b, drop[1])) for i, d in enumerate(s.dims) if i not in gone]
        return Shape(None, tuple(kept))
    return None


def _contracted(c: Call) -> tuple[str, ...]:
    """Both operands as matrices."""

    def flat(shape: Shape | None) -> tuple[str, ...]:
        return ("Reshape",) if shape is not None and shape.rank != 2 else ()

    out = c.op.shape(c)
    assert not isinstance(out, tuple)
    return ("Transpose", *flat(c.shape(0)), "Transpose", *flat(c.shape(1)), "Matmul", *flat(out))


def _vecdot(c: Call) -> Shape | None:
    shape, axis = r.broadcasted(c), c.integer("axis")
    return None if shape is None or axis is None else shape.replace(axis, ())


def _gathered(primitive: str) -> PrimitiveRule:
    """Indices that aren't given are counted up."""

    def rule(c: Call) -> tuple[str, ...]:
        missing = [n for n in ("lhs_indices", "rhs_indices") if c.operand(n) is None]
        shape = c.shape(0 if missing == ["lhs_indices"] else 1)
        reshaped = ("Reshape",) if shape is not None and (shape.rank or 3) > 3 else ()
        return (*(("Arange", *reshaped) * len(missing)), primitive)

    return rule


def _masked(c: Call) -> tuple[str, ...]:
    masks = ("mask_out", "mask_lhs", "mask_rhs")
    return ("BlockMaskedMM",) if any(c.operand(m) is not None for m in masks) else ("Matmul",)


def _segmented(c: Call) -> Shape | None:
    a, b, segments = c.shape(0), c.shape(1), c.shape(2)
    if a is None or b is None or segments is None or segments.lead is not None:
        return None
    rows, columns = a.axis(-2), b.axis(-1)
    return None if rows is None or columns is None else Shape(None, (*segments.dims[:-1], rows, columns))


def _by_rows(c: Call) -> Shape | None:
    x, w = c.shape(0), c.shape(1)
    rows = None if w is None else w.axis(-2)
    return None if x is None or rows is None else x.replace(-1, (rows,))


def convolutions() -> Iterator[Op]:
    for n in (1, 2, 3):
        signature = "input: A, weight: A, stride=1, padding=0, dilation=1, groups=1"
        yield row(f"conv{n}d", "conv", signature, "Convolution", pr.convolution(n), r.promoted_float)
        transposed = signature.replace("dilation=1", "dilation=1, output_padding=0")
        shape = pr.transposed_convolution(n)
        yield row(f"conv_transpose{n}d", "conv", transposed, "Convolution", shape, r.promoted_float)
    general = "input: A, weight: A, stride=1, padding=0, kernel_dilation=1, input_dilation=1, groups=1, flip=False"
    yield row("conv_general", "conv", general, "Convolution", pr.general_convolution, r.promoted_float)
    parts = "Reshape Slice Reshape Convolution Reshape"
    same = ("Reshape", "Pad", "Slice", "Reshape", "Convolution", "Reshape")
    yield row(
        "convolve",
        "conv",
        "a: A, v: A, mode='full'",
        parts,
        _convolved,
        r.promoted_float,
        recorded=lambda c: same if c.attrs.get("mode") == "same" else c.op.primitives,
    )


def _convolved(c: Call) -> Shape | None:
    a, v, mode = c.shape(0), c.shape(1), c.attrs.get("mode")
    x, y = (None if s is None else s.elements() for s in (a, v))
    if x is None or y is None:
        return None
    if mode == "full":
        return Shape(None, (x + y - 1,))
    m, n = x.value(), y.value()
    if m is None or n is None:
        return None
    return Shape.of(max(m, n)) if mode == "same" else Shape.of(max(m, n) - min(m, n) + 1)


def table() -> Iterator[Op]:
    for part in (products, convolutions):
        yield from part()
