"""What is known of a value's dtype, and how dtypes promote.

A DType is a frozen set of names: MLX dtypes (`bfloat16`) and symbols (`x.dtype`: whatever x has). The value's dtype is
the promotion of all of them; so the promotion of two DTypes is their union, where float32 absorbs what it is never
narrower than. `weak` names are Python scalars, which take the other operand's dtype.

House assumption: a symbol stands for a real floating dtype no wider than float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache, reduce
from typing import Any

BOOL = ("bool_",)
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
SIGNED = ("int8", "int16", "int32", "int64")
INTEGER = UNSIGNED + SIGNED
HALF = ("float16", "bfloat16")
FLOAT = (*HALF, "float32", "float64")
CONCRETE = frozenset((*BOOL, *INTEGER, *FLOAT, "complex64"))
ITEMSIZE = {
    "bool_": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8,
}  # fmt: skip

WEAK = {"weak bool": "bool_", "weak int": "int32", "weak float": "float32"}
"""Python scalars, and the dtype that each has as an array of its own. A `weak number` is an int or a float."""

_WEAK_ORDER = [*WEAK, "weak number"]
_WEAK = frozenset(_WEAK_ORDER)

_BYTES = {n: ITEMSIZE[n] for n in INTEGER}


def _integers(a: str, b: str) -> str:
    """Promotion of two integer dtypes, NumPy's rules; MLX's uint64 with a signed one is float32."""
    if a == b:
        return a
    if (a in UNSIGNED) == (b in UNSIGNED):
        return a if _BYTES[a] > _BYTES[b] else b
    unsigned, signed = (a, b) if a in UNSIGNED else (b, a)
    if unsigned == "uint64":
        return "float32"
    if _BYTES[signed] > _BYTES[unsigned]:
        return signed
    return f"int{16 * _BYTES[unsigned]}"


def promote_names(a: str, b: str) -> str:
    """MLX's promotion of two concrete dtypes."""
    if a == b:
        return a
    if "complex64" in (a, b):
        return "complex64"
    for first, second in ((a, b), (b, a)):
        if first == "bool_":
            return second
    if a in INTEGER and b in INTEGER:
        return _integers(a, b)
    if a in INTEGER or b in INTEGER:
        return b if a in INTEGER else a
    if "float64" in (a, b):
        return "float64"
    return "float32"


class DType(frozenset[str]):
    """A set of dtype names and symbols. `|` promotes."""

    __slots__ = ()

    def __new__(cls, names: Iterable[str] = ()) -> DType:
        return super().__new__(cls, names)

    def __or__(self, other: AbstractSet[Any]) -> DType:
        return promote(self, DType(other))

    @property
    def weak(self) -> bool:
        """A Python scalar: it takes the dtype of what it meets."""
        return bool(self) and _WEAK.issuperset(self)

    @property
    def name(self) -> str | None:
        """The one dtype it must be, or None: the set is a symbol, or a promotion with one."""
        if len(self) == 1:
            (only,) = self
            return only if only in CONCRETE else None
        return None

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(n for n in self if n not in CONCRETE and not n.startswith("weak "))

    @property
    def floating(self) -> bool | None:
        """Whether it is a real floating dtype; None if that isn't known."""
        if any(n in FLOAT for n in self) or self.symbols:
            return "complex64" not in self
        return False if self else None

    @property
    def integral(self) -> bool:
        return bool(self) and all(n in INTEGER or n in BOOL for n in self)

    @property
    def itemsize(self) -> int | None:
        """Bytes an element, where the dtype is known."""
        name = self.settle().name
        return None if name is None else ITEMSIZE[name]

    def settle(self) -> DType:
        """The dtype of an array made of it: a Python float alone makes float32."""
        if self.isdisjoint(_WEAK):
            return self
        return UNKNOWN if "weak number" in self else DType(WEAK.get(n, n) for n in self)

    def bound(self, names: Mapping[str, str]) -> DType:
        """The dtype with some symbols replaced by dtypes."""
        return _normal(names.get(n, n) for n in self) if names and not self.isdisjoint(names) else self

    def floated(self) -> DType:
        """The dtype after an op that computes in floating point: integers become float32."""
        return DType({"float32"}) if self.settle().integral else self.settle()

    def __str__(self) -> str:
        return " | ".join(sorted(self)) or "unknown"

    __repr__ = __str__


UNKNOWN = DType()


@lru_cache(maxsize=4096)
def of(*names: str) -> DType:
    return DType(names)


def promote(a: DType, b: DType) -> DType:
    """The dtype of an op on two operands; unknown where one of them is."""
    if a.weak and b.weak:
        return DType({max(*a, *b, key=_WEAK_ORDER.index)})
    if a.weak or b.weak:
        return _meet_scalar(b, a) if a.weak else _meet_scalar(a, b)
    if not a or not b:
        return UNKNOWN
    return _normal([*a, *b])


def _meet_scalar(strong: DType, weak: DType) -> DType:
    """An array with a Python scalar: the array's dtype, unless the scalar is of a wider sort."""
    if not strong:
        return UNKNOWN
    if "weak number" in weak and strong.integral:
        return UNKNOWN
    if "weak float" in weak and strong.integral:
        return DType({"float32"})
    if "weak int" in weak and strong.name == "bool_":
        return DType({"int32"})
    return strong


def _normal(found: Iterable[str]) -> DType:
    names = list(found)
    concrete = [n for n in names if n in CONCRETE]
    symbols = {n for n in names if n not in CONCRETE}
    if not concrete:
        return DType(symbols)
    joined = reduce(promote_names, concrete)
    if not symbols:
        return DType({joined})
    if joined in ("complex64", "float64", "float32"):
        return DType({joined})
    if joined in INTEGER or joined in BOOL:
        return DType(symbols)  # integers do not promote a floating dtype
    return DType({joined, *symbols})
