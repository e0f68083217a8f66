"""A fact, and those that Python itself states: of constants, annotations and arithmetic."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from fuselint.graph import dtypes
from fuselint.graph.dtypes import DType
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.symbols import Expr
from fuselint.records import record
from fuselint.source.project import ModuleSummary, is_wanted

if TYPE_CHECKING:
    import libcst as cst

    from fuselint.graph.across import Instance
    from fuselint.source.function import FunctionSource

Kind = Literal["array", "scalar", "tuple", "none", "str", "dtype", "function", "object", "unknown"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final[Any] = _Missing()
"""The value of what isn't a constant."""

FLOATING = "activations are real floating arrays of rank >= 1"
WEIGHTS = "a weight has the rank that __init__ gives it, axes longer than 1, and the dtype that loading gives it"
CONFIGURED = "a constructor's arguments and their attributes are Python values where it computes with them"
FITS = "an operand of unknown shape adds no axes to the other"

MAX_TERMS = 64
"""Of the product of two sizes."""


@record(frozen=True, slots=True)
class Place:
    """A line of another file: the one stated, or that of an expression of a function."""

    path: str
    line: int
    source: FunctionSource | None = None
    expression: cst.CSTNode | None = None

    @property
    def exact(self) -> int:
        """The line; positions in a function are worked out only when somebody asks."""
        if self.source is None or self.expression is None:
            return self.line
        return self.source.file.position(self.source.span(self.expression)[0])[0]

    def __str__(self) -> str:
        return f"{self.path}:{self.exact}"


@dataclass(frozen=True, slots=True)
class Default:
    """A value that only a default says: that of `name` of `owner`."""

    name: str
    value: Any
    owner: str
    place: Place


@record(frozen=True, slots=True)
class Fact:
    """What is known of a value.

    size: of a scalar, as an Expr; of a tuple, how often its parts are repeated (`[x] * n`), None for once.
    extent: of a tuple of sizes, as a Shape. parts: of a tuple, or several results, each.
    present: whether it is surely not None. options: what an unknown value may be, where that is all it may be.
    instances: the objects that it may be, where they are known.
    places: the lines of other files that say so. rests: the defaults that make a scalar a constant.
    """

    kind: Kind
    shape: Shape | None = None
    dtype: DType = dtypes.UNKNOWN
    const: Any = MISSING
    size: Expr | None = None
    extent: Shape | None = None
    parts: tuple[Fact, ...] | None = None
    why: str = ""
    assumed: frozenset[str] = frozenset()
    present: bool = False
    options: tuple[Fact, ...] = ()
    instances: tuple[Instance, ...] = ()
    places: frozenset[Place] = frozenset()
    rests: frozenset[Default] = frozenset()

    def resting(self, assumed: frozenset[str], places: frozenset[Place], rests: frozenset[Default]) -> Fact:
        """The fact with what it rests on. Nearly every value asks for it, and `replace` takes five times as long."""
        return Fact(
            self.kind, self.shape, self.dtype, self.const, self.size, self.extent, self.parts, self.why,
            assumed, self.present, self.options, self.instances, places, rests,
        )  # fmt: skip

    def typed(self, shape: Shape | None, dtype: DType, assumed: frozenset[str]) -> Fact:
        """The fact with another shape and dtype, and what these are assumed by."""
        return Fact(
            self.kind, shape, dtype, self.const, self.size, self.extent, self.parts, self.why,
            assumed, self.present, self.options, self.instances, self.places, self.rests,
        )  # fmt: skip


UNKNOWN = Fact("unknown")


def scalar_fact(dtype: str, *, const: Any = MISSING, size: Expr | None = None, why: str = "") -> Fact:
    if size is None and type(const) is int:
        size = Expr.of(const)
    return Fact("scalar", SCALAR, dtypes.of(dtype), const, size, why=why, present=const is not MISSING)


@lru_cache(maxsize=4096, typed=True)  # `True == 1`
def _whole(value: int) -> Fact:
    """The fact of a number that code writes often."""
    return scalar_fact("weak bool" if isinstance(value, bool) else "weak int", const=value, why=f"the constant {value}")


def constant_fact(value: Any, kind: str | None = None) -> Fact:
    """The fact of a Python constant."""
    if kind == "dtype":
        return Fact("dtype", dtype=DType({value}), const=value, why=f"the dtype {value}")
    if value is None:
        return Fact("none", const=None, why="the constant None")
    if isinstance(value, str):
        return Fact("str", const=value, why="a constant", present=True)
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return scalar_fact("weak float", const=value, why=f"the constant {value}")
    if isinstance(value, complex):  # it isn't weak: what it meets becomes complex
        return scalar_fact("complex64", const=value, why=f"the constant {value}")
    if isinstance(value, tuple):
        return Fact("tuple", const=value, parts=tuple(map(constant_fact, value)), why="a constant")
    return Fact("object", const=value, why="a constant")


def array_fact(module: ModuleSummary, name: str) -> Fact | None:
    """The fact of an array that a module makes of literals."""
    held = module.arrays.get(name)
    if held is None or held.dtype not in dtypes.CONCRETE:
        return None
    return Fact("array", Shape.of(*held.shape), DType({held.dtype}), why=f"{name} is made of literals", present=True)


_ANNOTATIONS: dict[str, Kind] = {
    "mlx.core.array": "array", "mx.array": "array",
    "int": "scalar", "float": "scalar", "bool": "scalar", "str": "str",
    "numpy.ndarray": "object", "np.ndarray": "object", "torch.Tensor": "object", "jax.Array": "object",
    "mlx.core.Dtype": "dtype", "mx.Dtype": "dtype",
}  # fmt: skip


_NUMBERS = re.compile(r"(?:list|sequence|tuple)\[((?:int|float)(?:,(?:int|float|\.\.\.))*)\]", re.IGNORECASE)
"""Several numbers, such as `tuple[float, float]`."""

_WRAPPER = re.compile(r"\b(\w+\.)+(?=(Optional|Union)\[)")
"""The module of a wrapper: typing, typing_extensions, beartype.typing, or what one of them is imported as."""


def members(annotation: Any) -> list[str]:
    """The types that an annotation allows; Optional counts as what it wraps."""
    if not isinstance(annotation, str) or not annotation:
        return []
    text = _WRAPPER.sub("", annotation.replace(" ", "").strip("\"'"))
    for wrapper in ("Optional[", "Union["):
        if text.startswith(wrapper) and text.endswith("]"):
            text = text[len(wrapper) : -1]
            if wrapper == "Union[" and "[" not in text:
                text = text.replace(",", "|")
    return list(dict.fromkeys(m for m in text.split("|") if m not in ("None", "NoneType")))


def annotated(annotation: Any, name: str) -> Fact | None:
    """The fact that an annotation states; Optional counts as what it wraps."""
    named = members(annotation)
    if len(named) != 1:
        return None
    text = named[0]
    kind = _ANNOTATIONS.get(text)
    why = f"{name} is annotated {annotation}"
    if kind == "scalar":
        return scalar_fact({"int": "weak int", "float": "weak float", "bool": "weak bool"}[text], why=why)
    if kind == "dtype":
        return Fact("dtype", dtype=DType({name}), why=why)
    return None if kind is None else Fact(kind, why=why)


def element(annotation: Any, name: str) -> Fact | None:
    """The fact that an annotation states of each element, where all are numbers."""
    named = members(annotation)
    numbers = _NUMBERS.fullmatch(named[0].rpartition("typing.")[2]) if len(named) == 1 else None
    sort = "weak int" if numbers is None or "float" not in numbers[1] else "weak float"
    return None if numbers is None else scalar_fact(sort, why=f"an element of {name}, annotated {annotation}")


COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})

_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
_UNARY: dict[str, Callable[..., Any]] = {"-": operator.neg, "+": operator.pos, "~": operator.invert, "abs": abs}

PURE: dict[str, Callable[..., Any]] = {
    "builtins.int": int, "builtins.float": float, "builtins.round": round, "builtins.abs": abs,
    "builtins.max": max, "builtins.min": min, "builtins.bool": bool,
    **{f"math.{n}": getattr(math, n) for n in "sqrt log log2 log10 exp floor ceil pow sin cos prod".split()},
    "numpy.sqrt": math.sqrt, "numpy.log": math.log, "numpy.exp": math.exp,
}  # fmt: skip


def compute(symbol: str, values: Sequence[Any]) -> Any:
    """An operator on constants, where the result is a reasonable number."""
    if any(not isinstance(v, (bool, int, float)) for v in values):
        return MISSING
    if symbol == "**" and (abs(values[0]) > 2**64 or abs(values[1]) > 64):
        return MISSING
    if symbol in ("<<", ">>") and not 0 <= values[1] <= 64:
        return MISSING
    try:
        result = (_UNARY if len(values) == 1 else _OPERATORS)[symbol](*values)
    except (ArithmeticError, TypeError, ValueError, KeyError):
        return MISSING
    return result if is_wanted(result) else MISSING
