"""What the use of a value says of it: array or scalar, how many axes, and the names that the code gives to its axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fuselint.graph.model import Graph, Node, Slice
from fuselint.graph.op import Op
from fuselint.graph.ops import TABLE

SCALAR_TAKING = frozenset({"binary", "ternary", "create", "random"})
"""Kinds of ops whose operands may be Python numbers."""

NOT_SIZES = frozenset({"offset", "mask", "key", "dtype", "new", "path", "freqs", "base", "stream"})
"""Attributes that may be arrays, or say nothing of their value."""

NUMERIC_CALLS = frozenset({"builtins.int", "builtins.float", "builtins.range", "builtins.round"})

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "floor_divide", "remainder", "power", "negative"})
"""Operators whose result is a Python number only if all operands are."""

RANK_OF_OPERANDS = {"fast.scaled_dot_product_attention": (("q", 4), ("k", 4), ("v", 4)), "fast.rope": ()}


@dataclass
class Evidence:
    """Of one value. `axes`: by axis as written, the `dim` nodes that read it."""

    array: str = ""  # why it is an array, or ""
    scalar: str = ""
    rank: int | None = None
    rank_why: str = ""
    integer: bool = False  # used as indices: not an activation
    axes: dict[int, list[Node]] = field(default_factory=dict)


class Usage:
    """The evidence of a graph, gathered in one pass."""

    def __init__(self, graph: Graph):
        self._of: dict[Node, Evidence] = {}
        self._rank_tested: set[Node] = set()
        for node in graph.nodes:
            self._node(node)
        for value in self._rank_tested:
            self._of[value].rank = None  # the code handles several ranks

    def of(self, node: Node) -> Evidence | None:
        return self._of.get(node)

    def _at(self, node: Node) -> Evidence:
        return self._of.setdefault(node, Evidence())

    def _node(self, node: Node) -> None:
        op = TABLE.get(node.op)
        if op is not None:
            self._table(node, op)
        elif node.op == "dim":
            self._dim(node)
        elif node.op in ("shape", "dtype", "ndim", "size", "index") and node.inputs:
            e = self._at(node.inputs[0])
            e.array = e.array or (f"its {node.op} is read" if node.op != "index" else "it is indexed with slices")
            if node.op == "ndim":
                self._rank_tested.add(node.inputs[0])
            if node.op == "index":
                for n in _scalars(node.attrs.get("index")):
                    if n not in node.inputs:
                        self._scalar(n, "a bound of a slice")
                for n in node.inputs[1:]:
                    self._at(n).integer = True
        elif node.op == "call":
            target = node.attrs.get("target") or ""
            if target in NUMERIC_CALLS or target.startswith("math."):
                for n in node.inputs:
                    self._scalar(n, f"an argument of {target.removeprefix('builtins.')}")
            elif target == "builtins.len" and node.inputs and node.inputs[0].op == "shape":
                self._at(node.inputs[0].inputs[0])
                self._rank_tested.add(node.inputs[0].inputs[0])

    def _table(self, node: Node, op: Op) -> None:
        if op.name == "matmul" or (op.kind not in SCALAR_TAKING and isinstance(node.cst, cst.Call)):
            many = any(p.role == "arrays" for p in op.params)
            for n in node.inputs[: len(node.inputs) if many or op.name == "matmul" else 1]:
                e = self._at(n)
                e.array = e.array or f"an operand of {op.name}"
        if op.kind == "gather" and len(node.inputs) > 1:
            self._at(node.inputs[1]).integer = True
        if op.name == "nn.Embedding" and node.inputs:
            self._at(node.inputs[0]).integer = True
        for key, value in node.attrs.items():
            if key not in NOT_SIZES:
                for n in _scalars(value):
                    self._scalar(n, f"{key} of {op.name}")
        if not unconditional(node):
            return
        for name, rank in RANK_OF_OPERANDS.get(op.name, ()):
            at = op.position(name)
            if at is not None and at < len(node.inputs):
                self._rank(node.inputs[at], rank, f"{name} of {op.name}")
        if op.name == "einsum":
            for operand, labels in zip(node.inputs, _labels(node.attrs.get("subscripts")), strict=False):
                self._rank(operand, len(labels), "its labels of an einsum")
        axes = node.attrs.get("axes")
        if op.name == "transpose" and isinstance(axes, tuple) and axes:
            self._rank(node.inputs[0], len(axes), f"transposed by {len(axes)} axes")

    def _dim(self, node: Node) -> None:
        e = self._at(node.inputs[0])
        e.array = e.array or "its shape is read"
        axis, rank = node.attrs.get("axis"), node.attrs.get("rank")
        if isinstance(axis, int):
            e.axes.setdefault(axis, []).append(node)
        if isinstance(rank, int) and unconditional(node):
            self._rank(node.inputs[0], rank, f"its shape is unpacked into {rank} names")

    def _rank(self, node: Node, rank: int, why: str) -> None:
        e = self._at(node)
        if e.rank is None:
            e.rank, e.rank_why = rank, why

    def _scalar(self, node: Node, why: str) -> None:
        """A number; so are the operands of arithmetic whose result it is, and the values that a join takes it from."""
        e = self._at(node)
        if e.scalar:
            return
        e.scalar = why
        if node.op == "phi" or (node.op in ARITHMETIC and not isinstance(node.cst, cst.Call)):
            for n in node.inputs:
                if n.op != "const":
                    self._scalar(n, why)


def _labels(subscripts: Any) -> list[str]:
    """Those of each operand of an einsum, none where some stand for any number of axes."""
    text = subscripts.replace(" ", "") if isinstance(subscripts, str) else "..."
    return [] if "..." in text else text.partition("->")[0].split(",")


def _scalars(value: Any) -> Iterator[Node]:
    """Nodes that stand where a number must."""
    if isinstance(value, Node):
        if value.op not in ("shape", "tuple", "list", "star"):
            yield value
    elif isinstance(value, Slice):
        for part in (value.start, value.stop, value.step):
            yield from _scalars(part)
    elif isinstance(value, tuple):
        for part in value:
            yield from _scalars(part)


def unconditional(node: Node) -> bool:
    """Whether the node is evaluated whenever the function returns at its end: not in a branch or a loop."""
    stmt = node.top_stmt
    block = None if stmt is None else stmt.block
    while block is not None:
        if block.kind not in ("function", "with", "try"):
            return False
        block = block.parent
    return True
