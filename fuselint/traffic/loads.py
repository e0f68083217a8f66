"""What each kernel has to do, as rates.py tells kinds apart: as MLX's CUDA backend has kernels for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fuselint.graph.dtypes import FLOAT, ITEMSIZE
from fuselint.graph.ops import TABLE
from fuselint.graph.symbols import Expr
from fuselint.graph.tape import ACTIVATION, RESHAPES, Array
from fuselint.rates import COMPILED, INDEXED, Load
from fuselint.traffic.kernels import Bytes, Kernel
from fuselint.traffic.work import steps_of, work

ROW_WISE = ("ArgReduce", "LayerNorm", "LogSumExp", "RMSNorm", "Reduce rows", "Scan", "Softmax")
NORMS = ("LayerNorm", "RMSNorm")
ATTENTION = "ScaledDotProductAttention"

PROPOSED = "mx.compile"
"""A compiled kernel that a rule proposes."""
WITH_MASK = 4
"""Operands of attention, where one is a mask."""


def loads(
    kernels: Sequence[Kernel], sizes: Bytes, number: Callable[[Expr], float], kept: Callable[[float], bool]
) -> Iterator[Load]:
    """number: of a formula. kept: whether so many bytes stay in the last-level cache between the kernel that writes
    them and the one that reads them: then they cost half."""
    written = {a for k in kernels for a in k.writes}
    passed = written & {a for k in kernels for a in k.reads}

    def moved(array: Array) -> float:
        count = number(sizes.of(array))
        return count / 2 if array in passed and kept(count) else count

    for k in kernels:
        out, given = k.writes[0], _given(k)
        kind = kind_of(k)
        counted = given if kind.split(" ")[0] in ("ArgReduce", "LogSumExp", "Reduce") else out
        operations = number(work([k], sizes.sizes).products)
        elements = number(sizes.sizes.elements_of(counted))
        if kind == "QuantizedMatmul" and elements == number(_last(out)):
            kind, elements, operations = f"{kind} of a row", operations / 2, 0.0  # one for each weight
        broadcast = sum(number(sizes.sizes.elements_of(a)) < elements for a in k.reads)
        if kind == PROPOSED:
            kind = COMPILED + INDEXED * bool(broadcast)
        yield Load(
            kind=kind,
            itemsize=_itemsize(given if _is_floating(given) else out, sizes),
            moved=sum(map(moved, (*k.reads, *k.writes))),
            elements=elements,
            row=number(_last(given)) if kind.startswith(ROW_WISE) else 0.0,
            operands=len(k.reads),
            broadcast=broadcast if kind == COMPILED + INDEXED else 0,
            steps=_steps(k) if kind.startswith(COMPILED) else (),
            operations=operations,
            launches=k.launches,
        )


def _steps(kernel: Kernel) -> tuple[str, ...]:
    """A compiled kernel's operations: by its name, or those between what it reads and what it writes."""
    if kernel.op != PROPOSED:
        return steps_of(kernel.op)
    found: dict[Array, None] = {}
    todo = [a for a in kernel.writes if a not in kernel.reads]
    while todo:
        a = todo.pop()
        if a not in found:
            found[a] = None
            todo += [b for b in a.inputs if b not in kernel.reads]
    return tuple(a.primitive for a in found if a.fusable)


def _given(kernel: Kernel) -> Array:
    """The operand that a kernel goes through: as the primitive is given it, where that is known."""
    return (kernel.writes[0].inputs or kernel.reads or kernel.writes)[0]


def _last(array: Array) -> Expr:
    found = None if array.shape is None else array.shape.axis(-1)
    return Expr.of(1) if found is None else found


def _is_floating(array: Array) -> bool:
    return array.dtype == ACTIVATION or array.dtype in FLOAT


def _itemsize(array: Array, sizes: Bytes) -> int:
    return sizes.itemsize if array.dtype == ACTIVATION else ITEMSIZE[array.dtype]


def kind_of(kernel: Kernel) -> str:
    """A primitive's name, with what more MLX chooses its kernel by."""
    row = TABLE.get(kernel.op)
    op = row.primitives[0] if row is not None and row.primitives else kernel.op
    out = kernel.writes[0]
    if op.startswith(COMPILED):
        return COMPILED + INDEXED * kernel.indexed
    if kernel.indexed:
        return op + INDEXED
    if op == "Reduce":
        return f"Reduce {_reduced(out)}"
    if op == "Concatenate":
        return f"Concatenate {_joined(out)}"
    if op == "Softmax" and out.key is True:
        return "Softmax precise"
    if op in NORMS and len(kernel.reads) == 1:
        return f"{op} without weight"
    if op == ATTENTION and len(kernel.reads) >= WITH_MASK:
        return f"{ATTENTION} with a mask"
    return "Copy" if op in RESHAPES else op


def _reduced(out: Array) -> str:
    shape = out.shape
    if shape is None or shape.lead is not None or any(d != 1 for d in shape.dims):
        return "rows" if shape is None or shape.axis(-1) == 1 else "columns"
    return "all"


def _joined(out: Array) -> str:
    """Along which axis, by how its parts lie in the result."""
    parts = [a.shape for a in out.inputs if a.shape is not None]
    if out.shape is None or not parts or parts[0].axis(-1) == out.shape.axis(-1):
        return "outer"
    return "single" if all(p.axis(-1) == 1 for p in parts) else "last"
