"""Calls that a GPU runs as one kernel although MLX's CPU graph shows their steps: mx.fast, and quantising.

What runs there besides is added: the casts that norms and attention make of their operands, and the copy of a rotary
embedding that rotates a part of each row. Where the GPU has no kernel (graph/gates.py) the steps stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fuselint.graph.gates import Backend, attention_is_fused
from fuselint.trace.expand import Expansion, kind
from fuselint.trace.recording import Call, Ref

FEW_QUERIES = 8
COPY_OF_ROPE = "Copy of RoPE"
"""Where a rotary embedding leaves features as they are, everything is copied first and the rest rotated in place."""


def fused(call: Call, backend: Backend, training: bool = False) -> Expansion | None:
    """The kernels that a GPU runs for the call; None where they are the call's own primitives."""
    if backend == "cpu":
        return None
    make = HANDLERS.get(call.name)
    if make is None:
        return None
    if call.name.startswith("fast.scaled") and not _attention_has_a_kernel(call, backend, training):
        return None
    out = Expansion.of(call)
    make(call, out)
    return out


def bound(call: Call, names: str) -> dict[str, Any]:
    """The call's arguments by name."""
    return {**dict(zip(names.split(), call.args, strict=False)), **call.kwargs}


def _ref(argument: Any) -> int | None:
    return argument.index if isinstance(argument, Ref) else None


def _norm(primitive: str, names: str, *weights: str) -> Callable[[Call, Expansion], None]:
    def make(call: Call, out: Expansion) -> None:
        """Operands are cast to the type of the result first."""
        given = bound(call, names)
        result = kind(call.outputs[0])
        operands = [i for n in ("x", *weights) if (i := _ref(given.get(n))) is not None]
        cast = [out.astype(i, result[1]) for i in operands]
        out.outputs = (out.add(primitive, cast, result, key=given.get("eps")),)

    return make


def _rope(call: Call, out: Expansion) -> None:
    given = bound(call, "a dims")
    at = _ref(given["a"])
    assert at is not None
    shape, dtype = out.arrays[at]
    tables = [i for n in ("offset", "freqs") if (i := _ref(given.get(n))) is not None]
    key = tuple((k, v) for k, v in sorted(given.items()) if not isinstance(v, Ref) and isinstance(v, (int, float)))
    dims = given["dims"]
    if isinstance(dims, int) and dims < shape[-1]:
        at = out.add(COPY_OF_ROPE, [at], (shape, dtype), key=key)
    out.outputs = (out.add("RoPE", [at, *tables], (shape, dtype), key=key),)


def _attention(call: Call, out: Expansion) -> None:
    given = bound(call, "q k v")
    result = kind(call.outputs[0])
    operands = [i for n in "qkv" if (i := _ref(given.get(n))) is not None]
    cast = [out.astype(i, result[1]) for i in operands]
    more = [i for n in ("mask", "sinks") if (i := _ref(given.get(n))) is not None]
    key = (given.get("scale"), given.get("mask") if isinstance(given.get("mask"), str) else None)
    out.outputs = (out.add("ScaledDotProductAttention", [*cast, *more], result, key=key),)


def _attention_has_a_kernel(call: Call, backend: Backend, training: bool) -> bool:
    given = bound(call, "q k v")
    if any(_ref(given.get(n)) is None for n in "qkv"):
        return False
    q, k, v = (call.inputs[given[n].index].shape for n in "qkv")
    if given.get("force_fused") is True:
        return True
    queries, keys = q[2], k[2]
    if queries > keys and (queries <= FEW_QUERIES or given.get("mask") == "causal"):
        return False
    return attention_is_fused(q[-1], v[-1], queries, q[1] // k[1], training, backend)


def _one(primitive: str) -> Callable[[Call, Expansion], None]:
    def make(call: Call, out: Expansion) -> None:
        first = out.add(
            primitive, range(len(call.inputs)), *map(kind, call.outputs), key=repr((call.args, call.kwargs))
        )
        out.outputs = tuple(range(first, len(out.arrays)))

    return make


HANDLERS: Mapping[str, Callable[[Call, Expansion], None]] = {
    "fast.rms_norm": _norm("RMSNorm", "x weight eps", "weight"),
    "fast.layer_norm": _norm("LayerNorm", "x weight bias eps", "weight", "bias"),
    "fast.rope": _rope,
    "fast.scaled_dot_product_attention": _attention,
    "fast.cross_entropy": _one("CrossEntropy"),
    "fast.gated_delta_update": _one("GatedDeltaUpdate"),
    "quantize": _one("Quantize"),
    "dequantize": _one("Dequantize"),
}
