"""How a row of the op table is written.

Signatures are those of MLX 0.32.4; primitives are named as mx.export_function reports them on the CPU.
"""

from __future__ import annotations

from typing import Any

from fuselint.graph import ops_rules as r
from fuselint.graph.op import DTypeRule, Kind, Op, ShapeRule, parse_params

AXIS = "a: A, axis=None, keepdims=False"


def row(
    name: str,
    kind: Kind,
    signature: str,
    primitives: str,
    shape: ShapeRule = r.same,
    dtype: DTypeRule = r.same_dtype,
    *,
    module: str = "mlx.core",
    method: str | bool = False,
    named: str | None = None,
    aliases: str = "",
    fallback: str = "",
    constructor: str = "",
    **more: Any,
) -> Op:
    """An op. `method` is True where the array method takes the same arguments, or its own signature.

    named: the array method's name, where it is another. aliases: other names in the module, or elsewhere in full.
    """
    prefix = module.removeprefix("mlx.core").removeprefix("mlx.").lstrip(".")
    return Op(
        f"{prefix}.{name}" if prefix else name,
        kind,
        parse_params(signature),
        shape,
        dtype,
        tuple(primitives.split()),
        spellings=tuple(n if n.startswith("mlx.") else f"{module}.{n}" for n in (name, *aliases.split())),
        method=named if named is not None else name if method else None,
        method_params=parse_params(method) if isinstance(method, str) else None,
        fallback=tuple(fallback.split()),
        constructor=parse_params(constructor),
        **more,
    )
