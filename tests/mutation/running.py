"""Source in float64: a module's text runs with float64 stand-ins for MLX, and its entry is called on made-up inputs.

A float literal, or a float computed from one, enters arithmetic with arrays as a float64 array (MLX would round it
through float32), and a quotient of integer arrays is a float64 one.
"""

from __future__ import annotations

import ast
import importlib
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.utils
import numpy as np

from fuselint.verify import compare, exact

# -- a module in float64 -----------------------------------------------------------------------------------------------

ARITHMETIC = (
    "add subtract multiply divide power maximum minimum where outer floor_divide remainder clip square sqrt rsqrt abs "
    "negative reciprocal tanh log log1p expm1 logaddexp"
).split()
OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip


def _is_integral(value: Any) -> bool:
    return isinstance(value, mx.array) and not mx.issubdtype(value.dtype, mx.floating)


def _wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """An operation whose floats are arrays of float64."""

    def call(*args: Any, **keywords: Any) -> Any:
        return f(*map(exact.real, args), **{n: exact.real(v) for n, v in keywords.items()})

    return call


def _binary(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    if isinstance(a, mx.array) or isinstance(b, mx.array):
        a, b = exact.real(a), exact.real(b)
        if f is operator.truediv:
            a, b = (v.astype(mx.float64) if _is_integral(v) else v for v in (a, b))
    return f(a, b)


def _noisy(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose results are off in the 13th digit, or by a unit of the smallest number."""

    def call(*args: Any, **keywords: Any) -> Any:
        out = f(*args, **keywords)
        if isinstance(out, mx.array) and out.dtype == mx.float64:
            noise = mx.random.uniform(-1, 1, out.shape).astype(mx.float64)
            unit = mx.where(out != 0, exact.real(1e-323), exact.real(0.0))  # next to 0, numbers have few digits
            return out + noise * mx.maximum(exact.real(1e-13) * mx.abs(out), unit)
        return out

    return call


class _Noisy:
    """A module whose functions are a little off."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        if isinstance(found, exact.Module):
            return _Noisy(found)
        return _noisy(found) if callable(found) and not isinstance(found, type | mx.Dtype) else found


def _item(value: Any, index: Any) -> Any:
    """A subscript. An int beyond an axis, which MLX reads whatever lies there for, raises, and so does a step of 0,
    which ends the process."""
    if isinstance(value, mx.array):
        entries = [e for e in (index if isinstance(index, tuple) else (index,)) if e is not None]
        before = entries.index(...) if ... in [e for e in entries if not isinstance(e, mx.array)] else len(entries)
        axes = [*range(before), *range(before - len(entries) + 1, 0)]
        if any(isinstance(e, slice) and e.step == 0 for e in entries):
            raise ValueError("a step of 0")
        for axis, e in zip(axes, (e for e in entries if e is not ...), strict=False):
            if type(e) is int and not -value.shape[axis] <= e < value.shape[axis]:
                raise IndexError(f"{e} in an axis of length {value.shape[axis]}")
            if isinstance(e, mx.array) and _is_integral(e) and e.dtype != mx.bool_:
                _check(e, value.shape[axis])
    return value[index]


def _check(indices: mx.array, length: int) -> None:
    if mx.any((indices >= length) | (indices < -length)).item():
        raise IndexError("an index beyond its axis")


def _take(x: mx.array, indices: Any, axis: int | None = None) -> mx.array:
    if isinstance(indices, mx.array):
        _check(indices, x.size if axis is None else x.shape[axis])
    return mx.take(x, indices, axis=axis)


def _take_along_axis(x: mx.array, indices: mx.array, axis: int | None = None) -> mx.array:
    _check(indices, x.size if axis is None else x.shape[axis])
    return mx.take_along_axis(x, indices, axis=axis)


def _reshape(x: mx.array, *shape: Any) -> mx.array:
    """MLX takes two negative lengths whose product fits, and the process ends."""
    lengths = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    if any(n < -1 for n in lengths):
        raise ValueError(f"a shape of {lengths}")
    return mx.reshape(x, lengths)


def _astype(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """What NaN or a number out of range becomes as an integer is nobody's promise."""
    rounds = mx.issubdtype(dtype, mx.integer) and not _is_integral(x)
    if rounds and not mx.all(mx.isfinite(x) & (mx.abs(x) < exact.real(2.0**31))).item():
        raise ValueError("no integer")
    return x.astype(dtype)


def _of_floats(name: str) -> Callable[..., Any]:
    """A mean or variance, which MLX computes in float32 for integers."""

    def call(x: mx.array, *args: Any, **keywords: Any) -> mx.array:
        x = x.astype(mx.float64) if _is_integral(x) else x
        return getattr(mx, name)(x, *args, **keywords)  # type: ignore[no-any-return]

    return call


GUARDED: dict[str, Callable[..., Any]] = {
    "reshape": _reshape, "astype": _astype, **{n: _of_floats(n) for n in ("mean", "var", "std")},
}  # fmt: skip
"""Array methods that end the process, promise nothing, or compute in float32."""


def _method(name: str, target: Any, *args: Any, **options: Any) -> Any:
    if isinstance(target, mx.array) and name in GUARDED:
        return GUARDED[name](target, *args, **options)
    return exact.method(name, target, *args, **options)


def _modules() -> dict[str, Any]:
    """Stand-ins by qualified name: those of fuselint.verify.exact, with literals in float64."""
    modules = dict(exact.modules())
    core = exact.CORE | {n: _wide(exact.CORE.get(n, getattr(mx, n))) for n in ARITHMETIC}
    core |= {"divide": partial(_binary, operator.truediv), "take": _take, "take_along_axis": _take_along_axis}
    core |= {n: f for n, f in GUARDED.items() if n != "astype"}
    modules["mlx.core"] = exact.Module(mx, core | {"fast": modules["mlx.core.fast"]}, ["random", "quantize"])
    return modules


MODULES = _modules()


class _Double(ast.NodeTransformer):
    """Arithmetic and the methods that MLX has only in float32, by functions that compute in float64."""

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        node.names = [a for a in node.names if a.name not in MODULES]
        return node if node.names else None

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        name = ast.Name(f"_{type(node.op).__name__}", ast.Load())
        return ast.Call(ast.Name("_binary", ast.Load()), [name, node.left, node.right], [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            return node
        index = _as_value(node.slice)
        return ast.Call(ast.Name("_item", ast.Load()), [node.value, index], [])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):  # a float stays one unless it meets an array
            node.value = ast.Call(
                ast.Name("_beside", ast.Load()), [ast.Name(node.target.id, ast.Load()), node.value], []
            )
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        f = node.func
        is_module = (
            isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id in ("mx", "nn", "math")
        )
        if isinstance(f, ast.Attribute) and f.attr in (*exact.METHODS, *GUARDED) and not is_module:
            return ast.Call(ast.Name("_method", ast.Load()), [ast.Constant(f.attr), f.value, *node.args], node.keywords)
        return node


def _as_value(index: ast.expr) -> ast.expr:
    """What stands between brackets, as an expression."""
    if isinstance(index, ast.Tuple):
        return ast.Tuple([_as_value(e) for e in index.elts], ast.Load())
    if isinstance(index, ast.Slice):
        parts = [p or ast.Constant(None) for p in (index.lower, index.upper, index.step)]
        return ast.Call(ast.Name("slice", ast.Load()), parts, [])
    return index


def _beside(target: Any, value: Any) -> Any:
    return exact.real(value) if isinstance(target, mx.array) else value


def load(source: str, noisy: bool = False) -> dict[str, Any]:
    """The namespace of a module's text, in float64. noisy: with arithmetic that is a little off."""
    tree = ast.parse(source)
    space: dict[str, Any] = {"__name__": "mutant", "_beside": _beside, "_method": _method, "_item": _item}
    space["_binary"] = _noisy(_binary) if noisy else _binary
    space |= {f"_{kind.__name__}": f for kind, f in OPERATORS.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in node.names:
                module = MODULES.get(a.name) or importlib.import_module(a.name)
                space[a.asname or a.name] = _Noisy(module) if noisy and a.name in MODULES else module
    exec(compile(ast.fix_missing_locations(_Double().visit(tree)), "<mutant>", "exec"), space)
    return space


# -- inputs ------------------------------------------------------------------------------------------------------------

SIZES: tuple[Mapping[str, int], ...] = (
    {"B": 2, "H": 6, "G": 3, "L": 5, "S": 7, "D": 8, "E": 10, "V": 11},
    {"B": 4, "H": 4, "G": 4, "L": 4, "S": 4, "D": 4, "E": 4, "V": 4},
    {"B": 3, "H": 2, "G": 1, "L": 6, "S": 9, "D": 7, "E": 5, "V": 13},
)
"""All different, so that a mixed-up axis shows; all alike, so that one runs at all; and rows of odd length."""

ROWS = (1.0, 3e-3, 1.0, 1e-3, 8.0)
"""The size of rows: 1e-5 and 1e-6, the usual eps, are the squares of the small ones."""


@dataclass(frozen=True, slots=True)
class Case:
    """sizes by letter; positive: no negative numbers, whose roots and logarithms are NaN; zeros: some rows are 0."""

    sizes: Mapping[str, int]
    seed: int
    positive: bool = False
    zeros: bool = False


def cases(seed: int) -> Iterator[Case]:
    yield Case(SIZES[0], seed)
    yield Case(SIZES[1], seed + 1, zeros=True)
    yield Case(SIZES[2], seed + 2, positive=True)


def arguments(takes: str, case: Case) -> dict[str, Any]:
    """Values for `x: B L D, w: D, ids: int:V B L, m: bool B L, mask: mask L S, packed: uint V 8, n: =H//G`."""
    out: dict[str, Any] = {}
    rng = np.random.default_rng([case.seed, len(takes)])
    for entry in filter(None, (part.strip() for part in takes.split(","))):
        name, _, spec = entry.partition(":")
        out[name.strip()] = _argument(spec.strip(), case, rng)
    return out


def _argument(spec: str, case: Case, rng: np.random.Generator) -> Any:
    if spec.startswith("="):
        return eval(spec[1:], {}, dict(case.sizes))
    words = spec.split()
    kind = words.pop(0) if re.match(r"(int:|bool\b|mask\b|uint\b)", spec) else ""
    shape = tuple(eval(w, {}, dict(case.sizes)) for w in words)
    if kind.startswith("int:"):
        return mx.array(rng.integers(0, eval(kind[4:], {}, dict(case.sizes)), shape).tolist(), dtype=mx.int32)
    if kind == "bool":
        return mx.array((rng.random(shape) < 0.6).tolist())
    if kind == "uint":
        return mx.array(rng.integers(0, 2**32, shape).tolist(), dtype=mx.uint32)
    if kind == "mask":
        return _array(np.where(rng.random(shape) < 0.3, -1e9, rng.normal(size=shape)))
    return _array(_real(shape, case, rng))


def _array(values: Any) -> mx.array:
    return mx.array(np.asarray(values).reshape(-1).tolist(), dtype=mx.float64).reshape(np.shape(values))


def _real(shape: tuple[int, ...], case: Case, rng: np.random.Generator) -> Any:
    """Rows of several sizes, one of them far from zero."""
    out = rng.normal(size=shape)
    if len(shape) > 1:
        rows = rng.choice(ROWS, size=shape[:-1])
        if case.zeros:
            rows = rows * (rng.random(shape[:-1]) < 0.8)
        out = out * rows[..., None] + (rng.random(shape[:-1]) < 0.15)[..., None] * 5.0
    return np.abs(out) + 1e-4 if case.positive else out


# -- runs --------------------------------------------------------------------------------------------------------------

FAULTS = (
    ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, AttributeError, NameError,
    RuntimeError, NotImplementedError, AssertionError, RecursionError, MemoryError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """What a call gave: its result, and what became of its arguments."""

    result: Any
    arguments: dict[str, Any]


def run(space: dict[str, Any], entry: str, init: str, takes: str, case: Case) -> Run:
    """Call a function, or an instance of a class with its parameters made up. Raises what the code raises."""
    given = arguments(takes, case)
    with mx.stream(mx.cpu), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        called = space[entry]
        if isinstance(called, type):
            called = called(**arguments(init, case))
            _parametrise(called, case)
        result = called(**given)
        mx.eval([v for _, v in compare.leaves([result, given]) if isinstance(v, mx.array)])
    return Run(result, given)


def _parametrise(module: Any, case: Case) -> None:
    """Give each parameter made-up numbers: the same for the same shape and order."""
    rng = np.random.default_rng(case.seed)
    named = mlx.utils.tree_flatten(module.parameters())
    module.update(mlx.utils.tree_unflatten([(n, _array(rng.normal(size=p.shape))) for n, p in sorted(named)]))
