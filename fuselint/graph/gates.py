"""Where a fused op of MLX really runs as one kernel. Elsewhere it runs the steps that it stands for.

After mlx/backend/metal/scaled_dot_product_attention.cpp of MLX 0.23 to 0.32; on the CPU nothing is fused, on CUDA
cuDNN takes head dimensions up to 128 that are multiples of 8.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr

Backend = Literal["metal", "cuda", "cpu"]
Version = tuple[int, int, int]

NEWEST: Version = (0, 32, 4)
"""The MLX that these tables were read from."""

FEW_QUERIES = 8
"""Up to here Metal takes the kernel for decoding, above it the one for prefill."""
MANY_QUERY_HEADS = 32
"""The decoding kernel takes at most so many queries x query heads of one K and V head."""
PREFILL_HEADS = frozenset({64, 72, 80, 96, 128})
DECODE_HEADS = frozenset({64, 96, 128, 256})
DECODE_UNEQUAL_HEADS = frozenset({(192, 128)})
CUDA_LARGEST_HEAD = 128
CUDA_FEW_QUERIES = 4
CUDA_DECODE_HEADS = frozenset({64, 96, 128})
"""What CUDA's own kernel takes: fewer queries than those, without a mask of numbers."""

SINCE: dict[str, Version] = {
    "prefill 128": (0, 23, 2),
    "prefill 72": (0, 32, 1),
    "prefill 96": (0, 32, 1),
    "decode 256": (0, 24, 2),
    "decode 192/128": (0, 32, 0),
    "few query heads": (0, 30, 4),
    "cross_entropy": (0, 32, 2),
}
"""The MLX that first had it."""


ARGUMENTS: dict[tuple[str, str], Version] = {
    ("scaled_dot_product_attention", "sinks"): (0, 29, 1),
    ("scaled_dot_product_attention", "force_fused"): (0, 32, 2),
    ("quantized_matmul", "mode"): (0, 29, 0),
    ("gather_qmm", "mode"): (0, 29, 0),
    ("dequantize", "mode"): (0, 29, 0),
}
FUNCTIONS: dict[str, Version] = {"fast.cross_entropy": SINCE["cross_entropy"], "nn.relu2": (0, 29, 1)}
NO_WEIGHT: Version = (0, 23, 2)
"""The MLX in which rms_norm takes None for its weight."""
CAUSAL: Version = (0, 24, 0)
"""And the one in which a mask may be "causal"."""


def version_of(text: str) -> Version:
    """Of `0.30.5`; of `0.30`, the last of it; of "", the newest."""
    if not text:
        return NEWEST
    major, minor, *patch = map(int, text.split("."))
    return major, minor, patch[0] if patch else 99


def newest_use(template: str) -> tuple[Version, str] | None:
    """Of what an expression of a fix uses, the last that MLX got, and in which version. `{name}` stands for a value."""
    try:
        tree = ast.parse(re.sub(r"\{(\w+)\}", r"\1", template).strip(), mode="eval")
    except SyntaxError:
        return None
    found: list[tuple[Version, str]] = []
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and n.value == "causal":
            found.append((CAUSAL, 'mask="causal"'))
        if not isinstance(n, ast.Call):
            continue
        path = ast.unparse(n.func)
        name = path.rpartition(".")[2]
        found += [(v, path) for f, v in FUNCTIONS.items() if path.endswith(f)]
        found += [(ARGUMENTS[name, k.arg], f"{k.arg}=") for k in n.keywords if k.arg and (name, k.arg) in ARGUMENTS]
        if name == "rms_norm" and any(isinstance(a, ast.Constant) and a.value is None for a in n.args[1:2]):
            found.append((NO_WEIGHT, f"{path} without a weight"))
    return max(found, default=None)


def attention_is_fused(
    head: int,
    value_head: int,
    queries: int,
    group: int = 1,
    training: bool = False,
    backend: Backend = "metal",
    version: Version = NEWEST,
    dtype: str = "",
    masked: bool = False,
) -> bool:
    """Whether scaled_dot_product_attention is one kernel.

    head, value_head: head dimension of queries and keys, and of values. queries: their number. group: query heads of
    one K and V head. training: under a gradient. version: of MLX. dtype: of queries, "" for half precision. masked: by
    an array.
    """
    if backend == "cpu":
        return False
    if backend == "cuda" and dtype == "float32":  # not by cuDNN
        return queries < CUDA_FEW_QUERIES and head == value_head and head in CUDA_DECODE_HEADS and not masked
    if backend == "cuda":
        return head % 8 == 0 and head <= CUDA_LARGEST_HEAD and value_head <= CUDA_LARGEST_HEAD
    if training:
        return False
    if queries > FEW_QUERIES:
        return head == value_head and head in PREFILL_HEADS and _has(f"prefill {head}", version)
    if head != value_head:
        known = (head, value_head) in DECODE_UNEQUAL_HEADS and _has(f"decode {head}/{value_head}", version)
    else:
        known = head in DECODE_HEADS and _has(f"decode {head}", version)
    return known and (queries * group <= MANY_QUERY_HEADS or not _has("few query heads", version))


def heads_taken(queries: int, version: Version = NEWEST) -> frozenset[int]:
    """The head dimensions that Metal has a kernel for."""
    heads = PREFILL_HEADS if queries > FEW_QUERIES else DECODE_HEADS
    return frozenset(h for h in heads if attention_is_fused(h, h, queries, version=version))


def _has(feature: str, version: Version) -> bool:
    return version >= SINCE.get(feature, (0, 0, 0))


def _nothing(name: str) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class Gates:
    """What is fused for one target. size: what the user states of a name. queries: their number where nothing says it.
    dtype: MLX's name of what activations are, where nothing says it; "" for any. ones: names of sizes that are 1.
    given: dtypes by their symbols, as the package's calls of the function give them. narrow: what nobody states is no
    float32 for meeting one.

    What isn't known is taken to be fused.
    """

    backend: Backend = "metal"
    version: Version = NEWEST
    training: bool = False
    size: Callable[[str], int | None] = _nothing
    queries: int = 2048
    dtype: str = ""
    ones: frozenset[str] = frozenset()
    given: Mapping[str, str] = field(default_factory=dict)
    narrow: bool = False

    @property
    def fuses_norms(self) -> bool:
        return self.backend != "cpu"

    @property
    def fuses_rope(self) -> bool:
        return self.backend != "cpu"

    @property
    def fuses_cross_entropy(self) -> bool:
        return self.backend != "cpu" and _has("cross_entropy", self.version)

    def attention(
        self,
        q: Shape | None,
        k: Shape | None,
        v: Shape | None,
        forced: bool = False,
        dtype: str = "",
        masked: bool = False,
    ) -> bool:
        """Whether attention on operands of these shapes is one kernel.

        forced: force_fused, which else raises. dtype: of q, "" where nothing says it. masked: by an array.
        """
        if self.backend == "cpu":
            return False
        if forced:
            return True
        if self.training and self.backend == "metal":
            return False
        head, value_head = self._axis(q, -1), self._axis(v, -1)
        if head is None or value_head is None:
            return True
        queries = self._axis(q, -2) or self.queries
        heads, kept = self._axis(q, -3), self._axis(k, -3)
        group = heads // kept if heads and kept else 1
        dtype = dtype or self.dtype
        return attention_is_fused(
            head, value_head, queries, group, self.training, self.backend, self.version, dtype, masked
        )

    def _axis(self, shape: Shape | None, axis: int) -> int | None:
        size = None if shape is None else shape.axis(axis)
        return None if size is None else self.number(size)

    def number(self, size: Expr) -> int | None:
        """A size, where the code or the user states it."""
        return size.substitute({n: s for n in size.names if (s := self.size(n)) is not None}).value()
