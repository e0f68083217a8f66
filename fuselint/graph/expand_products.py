"""Products, as primitives."""

from __future__ import annotations

from functools import reduce

from fuselint.graph import tape_views as v
from fuselint.graph.expand import Applied, Expand, Result
from fuselint.graph.expand_reduce import summed
from fuselint.graph.expand_views import arange
from fuselint.graph.ops_products import einsum_terms
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import product
from fuselint.graph.tape import Array, Tracer, joined
from fuselint.graph.tape_views import known


def _matmul(w: Applied) -> Result:
    return v.matmul(w.t, w.t.array(w.given[0]), w.t.array(w.given[1]), w.shape)


def _addmm(w: Applied) -> Result:
    c, a, b = (w.t.array(x) for x in w.given[:3])
    return v.addmm(w.t, c, a, b, w.shape)


def _outer(w: Applied) -> Result | None:
    a, b = (w.t.array(x) for x in w.given[:2])
    count = None if a.shape is None else a.shape.elements()
    if count is None:
        return None
    column = v.reshape(w.t, a, Shape(None, (count, v.ONE)))
    return w.t.binary("Multiply", column, v.flatten(w.t, b))


def tensordot(t: Tracer, a: Array, b: Array, left: list[int], right: list[int]) -> Array | None:
    dims_a, dims_b = known(a), known(b)
    if dims_a is None or dims_b is None:
        return None
    left, right = [i % len(dims_a) for i in left], [i % len(dims_b) for i in right]
    rows, columns = ([i for i in range(len(d)) if i not in gone] for d, gone in ((dims_a, left), (dims_b, right)))
    inner = product(dims_a[i] for i in left)
    size_a, size_b = product(dims_a[i] for i in rows), product(dims_b[i] for i in columns)
    x = v.reshape(t, v.transpose(t, a, [*rows, *left]), Shape(None, (size_a, inner)))
    y = v.reshape(t, v.transpose(t, b, [*right, *columns]), Shape(None, (inner, size_b)))
    sizes = (*(dims_a[i] for i in rows), *(dims_b[i] for i in columns))
    return v.reshape(t, v.matmul(t, x, y), Shape(None, sizes))


def _tensordot(w: Applied) -> Result | None:
    a, b = (w.t.array(x) for x in w.given[:2])
    axes, n = w.attr("axes"), w.integer("axes")
    if n is not None:
        return tensordot(w.t, a, b, list(range(-n, 0)), list(range(n)))
    if isinstance(axes, tuple) and len(axes) == 2:
        left, right = ([i for i in x if isinstance(i, int)] for x in (p if isinstance(p, tuple) else () for p in axes))
        return tensordot(w.t, a, b, left, right)
    return None


def _inner(w: Applied) -> Result | None:
    if any(known(w.t.array(x)) == () for x in w.given[:2]):
        return w.t.binary("Multiply", w.given[0], w.given[1])
    return tensordot(w.t, w.t.array(w.given[0]), w.t.array(w.given[1]), [-1], [-1])


def _vecdot(w: Applied) -> Result | None:
    a, b, axis = w.t.array(w.given[0]), w.t.array(w.given[1]), w.integer("axis")
    both = w.t.binary("Multiply", a, b)
    kept = None if both.shape is None or axis is None else both.shape.replace(axis, (v.ONE,))
    if axis is None:
        return None
    return v.squeeze(w.t, w.t.reduce("sum", both, kept, summed(both.dtype)), [axis])


# -- einsum ------------------------------------------------------------------------------------------------------------


def _einsum(w: Applied) -> Result | None:
    """Of one operand or two: of more, the order depends on their sizes."""
    t, operands = w.t, w.arrays
    dims = [known(a) for a in operands]
    if None in dims or len(operands) != len(w.given) or len(operands) > 2:
        return None
    found = einsum_terms(w.attr("subscripts"), [len(d) for d in dims if d is not None])
    if found is None:
        return None
    terms, out = found
    if any(len(set(term)) < len(term) for term in terms):
        return None
    terms, operands = _summed(t, terms, out, operands)
    if len(operands) == 2 and set(terms[0]) - set(out):
        return _contracted(t, terms, out, operands)
    return _multiplied(t, terms, out, operands)


def _summed(t: Tracer, terms: list[str], out: str, operands: list[Array]) -> tuple[list[str], list[Array]]:
    """Letters of one operand alone are summed first."""
    letters = "".join(terms)
    kept, arrays = [], []
    for term, a in zip(terms, operands, strict=True):
        axes = [i for i, ch in enumerate(term) if ch not in out and letters.count(ch) == 1]
        if axes:
            dims = known(a) or ()
            few = Shape(None, tuple(v.ONE if i in axes else d for i, d in enumerate(dims)))
            arrays.append(v.squeeze(t, t.reduce("sum", a, few, summed(a.dtype)), axes))
        else:
            arrays.append(a)
        kept.append("".join(ch for i, ch in enumerate(term) if i not in axes))
    return kept, arrays


def _contracted(t: Tracer, terms: list[str], out: str, operands: list[Array]) -> Array:
    """One product of matrices, batched over the letters that both operands and the result have."""
    left, right = terms
    a, b = operands
    gone = [i for i, ch in enumerate(left) if ch not in out]
    batch = [i for i, ch in enumerate(left) if ch in out and ch in right]
    rows = [i for i, ch in enumerate(left) if ch in out and ch not in right]
    gone_b, batch_b = [right.index(left[i]) for i in gone], [right.index(left[i]) for i in batch]
    columns = [i for i, ch in enumerate(right) if ch in out and ch not in left]
    sizes_a, sizes_b = list(known(a) or ()), list(known(b) or ())
    for i, j in zip((*gone, *batch), (*gone_b, *batch_b), strict=True):
        sizes_a[i] = sizes_b[j] = sizes_b[j] if sizes_a[i] == 1 else sizes_a[i]
    a, b = (v.broadcast_to(t, x, Shape(None, tuple(s))) for x, s in ((a, sizes_a), (b, sizes_b)))
    sizes = (*(sizes_a[i] for i in (*batch, *rows)), *(sizes_b[i] for i in columns))
    x, y = _as_matrices(t, a, batch, rows, gone), _as_matrices(t, b, batch_b, gone_b, columns)
    made = v.reshape(t, v.matmul(t, x, y), Shape(None, sizes))
    letters = [*(left[i] for i in (*batch, *rows)), *(right[i] for i in columns)]
    return v.transpose(t, made, [letters.index(ch) for ch in out])


def _as_matrices(t: Tracer, a: Array, batch: list[int], rows: list[int], columns: list[int]) -> Array:
    dims = known(a) or ()
    sizes = (*(dims[i] for i in batch), product(dims[i] for i in rows), product(dims[i] for i in columns))
    return v.reshape(t, v.transpose(t, a, [*batch, *rows, *columns]), Shape(None, sizes))


def _multiplied(t: Tracer, terms: list[str], out: str, operands: list[Array]) -> Array:
    """Operands with axes in one order, multiplied, and summed over what the result lacks."""
    order = "".join(dict.fromkeys("".join(terms)))
    ready = []
    for term, a in zip(terms, operands, strict=True):
        dims = known(a) or ()
        wide = v.reshape(t, a, Shape(None, (*dims, *[v.ONE] * (len(order) - len(dims)))))
        letters = [*term, *(ch for ch in order if ch not in term)]
        axes = [letters.index(ch) for ch in order]
        ready.append(wide if axes == sorted(axes) else v.transpose(t, wide, axes))
    made = reduce(lambda x, y: t.binary("Multiply", x, y), ready)
    gone = [i for i, ch in enumerate(order) if ch not in out]
    if gone:
        few = Shape(None, tuple(v.ONE if i in gone else d for i, d in enumerate(known(made) or ())))
        made = v.squeeze(t, t.reduce("sum", made, few, summed(made.dtype)), gone)
    left = [ch for ch in order if ch in out]
    return v.transpose(t, made, [left.index(ch) for ch in out])


# -- products with other operands --------------------------------------------------------------------------------------


def _quantised(w: Applied) -> Result:
    """Scales and biases are cast to the result's dtype, and x too."""
    t = w.t
    x, weight = w.a, w.array("w")
    dtype = w.dtype
    rest = [a for n in ("scales", "biases") if (a := w.array(n)) is not None]
    if w.attr("mode") == "affine":
        x, rest = t.astype(x, dtype), [t.astype(a, dtype) for a in rest]
    return w.make("QuantizedMatmul", [x, *([weight] if weight is not None else []), *rest])


def _gathered(primitive: str, first: str, second: str) -> Expand:
    """Indices that aren't given are counted up."""

    def expand(w: Applied) -> Result:
        t = w.t
        operands = [w.t.array(x) for n in (first, second, "scales", "biases") if (x := w.operand(n)) is not None]
        indices = []
        for name, of in (("lhs_indices", first), ("rhs_indices", second)):
            given = w.array(name)
            indices.append(given if given is not None else _counted(t, w.array(of)))
        shape = reduce(_joined, (i.shape for i in indices))
        wide = [i if shape is None or i.shape is None else v.broadcast_to(t, i, shape) for i in indices]
        return w.make(primitive, [*operands, *wide])

    return expand


def _joined(a: Shape | None, b: Shape | None) -> Shape | None:
    return None if a is None or b is None else joined(a, b)


def _counted(t: Tracer, a: Array | None) -> Array:
    """The places of matrices in their leading axes."""
    front = None if a is None or a.shape is None else a.shape.front(2)
    sizes = front[1] if front is not None and front[0] is None else None
    n = None if sizes is None else product(sizes)
    out = arange(t, n, "uint32", str(n))
    return out if sizes is None or len(sizes) == 1 else v.reshape(t, out, Shape(None, sizes))


def _transform(w: Applied) -> Result:
    """A Fourier transform: of real numbers in float32, of others in complex64."""
    dtype = "float32" if w.op.name.startswith("fft.rfft") else "complex64"
    return w.make("FFT", [w.t.astype(w.a, dtype)])


EXPANDED: dict[str, Expand] = {
    **{f"fft.{name}{axes}": _transform for name in ("fft", "ifft", "rfft", "irfft") for axes in ("", "2", "n")},
    "matmul": _matmul, "addmm": _addmm, "outer": _outer, "tensordot": _tensordot, "inner": _inner, "vecdot": _vecdot,
    "einsum": _einsum, "quantized_matmul": _quantised, "gather_mm": _gathered("GatherMM", "a", "b"),
    "gather_qmm": _gathered("GatherQMM", "x", "w"),
}  # fmt: skip
