"""The op table: every MLX operation once, whatever its spelling.

`resolve_call` finds the op of a qualified name, `method` that of an array method, `binary` and `unary` those of
operators; `op.bind` puts a call's arguments in their places. Rules for shapes, dtypes and primitives are in the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from fuselint.graph import (
    ops_arrays,
    ops_elementwise,
    ops_losses,
    ops_matmul,
    ops_modules,
    ops_nn,
    ops_reduce,
    ops_views,
)
from fuselint.graph.dtypes import CONCRETE
from fuselint.graph.model import Node
from fuselint.graph.op import Bound, Call, CannotBind, Op, Param, Value, bind, literal

__all__ = [
    "PROPERTIES",
    "TABLE",
    "Bound",
    "Call",
    "CannotBind",
    "Op",
    "Param",
    "Value",
    "binary",
    "bind",
    "constant",
    "literal",
    "may_be_a_number",
    "method",
    "operand",
    "resolve_call",
    "unary",
]  # fmt: skip

PARTS = (ops_elementwise, ops_reduce, ops_views, ops_matmul, ops_arrays, ops_modules, ops_nn, ops_losses)

TABLE: dict[str, Op] = {op.name: op for part in PARTS for op in part.table()}
_SPELLINGS = {s: op for op in TABLE.values() for s in op.spellings}
_METHODS = {op.method: op for op in TABLE.values() if op.method}
_BINARY = {op.operator: op for op in TABLE.values() if op.operator and len(op.params) == 2}
_UNARY = {op.operator: op for op in TABLE.values() if op.operator and len(op.params) == 1}

PROPERTIES = {"T": "transpose", "mT": "matrix_transpose"}
"""Array properties that are ops; shape, dtype, ndim and size are structural."""


def resolve_call(qualified: str) -> Op | None:
    """The op that a qualified name calls: `mlx.core.softmax`, `mlx.nn.silu`, `mlx.nn.Linear` (the layer's own call)."""
    found = _SPELLINGS.get(qualified)
    if found is None and qualified.startswith("mlx.nn."):
        return _SPELLINGS.get(re.sub(r"^mlx\.nn\.layers\.(\w+\.)?", "mlx.nn.", qualified))
    return found


_NUMBERS = {"inf": math.inf, "pi": math.pi, "nan": math.nan, "e": math.e, "newaxis": None}
_CONSTANTS: dict[str, Mapping[str, Any]] = {
    **{f"mlx.core.{d}": {"value": d, "kind": "dtype"} for d in CONCRETE},
    **{f"{module}.{n}": {"value": v} for n, v in _NUMBERS.items() for module in ("mlx.core", "numpy")},
    **{f"math.{n}": {"value": v} for n, v in _NUMBERS.items() if v is not None},
    "math.tau": {"value": math.tau},
    "mlx.core.euler_gamma": {"value": 0.5772156649015329},
    "numpy.euler_gamma": {"value": 0.5772156649015329},
}


def constant(qualified: str) -> Mapping[str, Any] | None:
    """The attrs of the `const` node that a qualified name is: a number, or a dtype of MLX."""
    return _CONSTANTS.get(qualified)


def method(name: str) -> Op | None:
    """The op of an array method: `sum`, `astype`, `reshape`."""
    return _METHODS.get(name)


def binary(operator: str) -> Op | None:
    """The op of a binary operator: `+`, `@`, `<`."""
    return _BINARY.get(operator)


def unary(operator: str) -> Op | None:
    """The op of a unary operator: `-`, `+`, `~`, or `abs` of the built-in function."""
    return _UNARY.get(operator)


EXPONENTIALS = frozenset(n for n in TABLE if any(part in n.lower() for part in ("exp", "softm", "sigm", "silu")))
"""Operations of which one is in every softmax, however it is written."""


def function_of(node: Node) -> str | None:
    """The function that an activation layer's node calls: `nn.silu` for nn.SiLU; of nn.GELU it depends on `approx`."""
    op = TABLE.get(node.op)
    if op is None or op.name != "nn.GELU":
        return None if op is None else op.function
    new = node.attrs.get("new")
    given = new.attrs.get("args", {}) if isinstance(new, Node) else {}
    return ops_nn.GELU.get(literal(given["approx"]) if "approx" in given else "none")


def operand(node: Node, name: str) -> Node | None:
    """The input of an op node by parameter name; None where it is absent or the constant None."""
    op = TABLE.get(node.op)
    at = None if op is None else op.position(name)
    if at is None or at >= len(node.inputs):
        return None
    value = node.inputs[at]
    return None if value.op == "const" and value.attrs.get("value") is None else value


def may_be_a_number(node: Node, depth: int = 8) -> bool:
    """Whether a value may be a Python number by what is written alone: an operator on what may be numbers, or what no
    operation of the table and no layer makes. It spares the question of what is known of arrays."""
    op = TABLE.get(node.op)
    if not depth or (op is not None and op.result == "same"):
        return True
    if op is not None:
        return op.operator is not None and all(may_be_a_number(n, depth - 1) for n in node.inputs)
    if node.op == "call":
        return not ("path" in node.attrs and isinstance(node.attrs.get("new") or node.attrs.get("init"), Node))
    made_of = {"phi": node.inputs, "item": node.inputs[:1], "index": node.inputs[:1]}.get(node.op, ())
    return all(may_be_a_number(n, depth - 1) for n in made_of)
