"""Which files and functions can hold anything at all. First the bytes, then one pass over the standard syntax tree.

It may let through what holds nothing, which costs time; it must not lose what a rule could report.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from fuselint.errors import UnreadableFile
from fuselint.source.spans import Definition, FunctionSpan, functions, suites
from fuselint.source.text import FileText

_IMPORTS_MLX = re.compile(r"\b(?:import|from)\b(?:(?!\b(?:import|from)\b)[^\n])*\bmlx\b")
"""True of every file that imports MLX, and of some that don't."""


@dataclass(frozen=True)
class Screen:
    """mlx: whether the file imports MLX. tree: its syntax, where it was parsed. functions: those worth lowering."""

    mlx: bool
    tree: ast.Module | None = None
    functions: list[FunctionSpan] = field(default_factory=list)


def screen(file: FileText) -> Screen:
    """Raises UnreadableFile for a file that imports MLX and isn't Python as this interpreter knows it."""
    if not _IMPORTS_MLX.search(file.text):
        return Screen(False)
    tree = parse(file)
    heads = _Heads(tree)
    if not heads.mlx:
        return Screen(False, tree)
    return Screen(True, tree, _worth_lowering(file, tree, heads))


def parse(file: FileText) -> ast.Module:
    """The syntax tree of a file. Raises UnreadableFile, with the position where there is one."""
    null = file.text.find("\0")
    if null >= 0:
        raise UnreadableFile(file.path, "holds a null byte", *file.position(null))
    try:
        return syntax(file.text)
    except SyntaxError as e:
        line = min(max(e.lineno or 1, 1), file.lines)
        reason = f"not valid Python: {e.msg}"
        if "Exceeds the limit" in reason:
            reason = "holds a number of more digits than Python reads"
        elif _valid_elsewhere(file.text):
            here = ".".join(map(str, sys.version_info[:2]))
            reason = f"valid Python, but newer than the {here} that fuselint runs under: run it under a newer one"
        column = min(max(e.offset or 1, 1), len(file.line(line)) + 1)
        raise UnreadableFile(file.path, reason, line, column) from None
    except (RecursionError, MemoryError):
        raise UnreadableFile(file.path, "nested too deeply for Python's own parser") from None
    except ValueError as e:  # such as lone surrogates
        raise UnreadableFile(file.path, f"not valid Python: {e}") from None


@lru_cache(maxsize=6)  # several ask about a file at once, and all that place its fixes
def syntax(text: str) -> ast.Module:
    """The tree of a text, which nobody changes. Raises SyntaxError, ValueError, RecursionError or MemoryError."""
    collecting = gc.isenabled()
    gc.disable()  # a tree is built of many small objects that all stay: collecting in between finds nothing
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler thinks of the user's escapes is not our business
            return ast.parse(text)
    finally:
        if collecting:
            gc.enable()


@lru_cache(maxsize=2)
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a text's tree. Of a file that is fixed, several ask for them."""
    return tuple(ast.walk(syntax(text)))


def _valid_elsewhere(text: str) -> bool:
    """Whether LibCST, which knows newer syntax, can parse a text that this interpreter can't."""
    if nesting(text) > 100:
        return False  # LibCST's parser ends the process on deep nesting
    import libcst

    try:
        libcst.parse_module(text)
    except Exception:
        return False
    return True


def nesting(text: str) -> int:
    """At most how deep brackets nest in a text. Those in strings and comments count too."""
    deepest = at = 0
    for m in re.finditer(r"[\[({]|[\])}]", text):
        at = at + 1 if m[0] in "[({" else max(at - 1, 0)
        deepest = max(deepest, at)
    return deepest


ELEMENTWISE = frozenset(
    """abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh astype bitwise_and bitwise_invert
    bitwise_or bitwise_xor ceil celu clip conj conjugate cos cosh degrees divide divmod elu equal erf erfinv exp
    expm1 floor floor_divide gelu greater greater_equal hard_shrink hard_tanh hardswish imag isfinite isinf isnan
    isneginf isposinf leaky_relu left_shift less less_equal log log10 log1p log2 log_sigmoid logaddexp logical_and
    logical_not logical_or maximum minimum mish multiply nan_to_num negative norm not_equal power radians real
    reciprocal relu relu2 relu6 remainder right_shift round rsqrt selu sigmoid sign silu sin sinh softplus
    soft_shrink softshrink softsign sqrt square step stop_gradient subtract tan tanh where zeros_like ones_like
    full_like array""".split()
)
"""Calls of which one alone is nothing to report, two are."""

TELLING = frozenset(
    """addmm all any arange argmax argmin argpartition argsort async_eval average block_masked_mm broadcast_to
    causal_mask clip compile concatenate contiguous conv1d conv2d conv3d conv_general create_additive_causal_mask
    cross_entropy cumsum cummax cummin cumprod custom_function dequantize dropout einsum eval expand_dims eye flatten
    from_fp8 gather_mm gather_qmm gelu_approx gelu_fast_approx glu grad identity inner item kron l1_norm
    layer_norm linspace log_softmax logcumsumexp logsumexp masked_fill matmul max mean median min moveaxis
    normal one_hot outer pad prod quantize quantized_matmul repeat rms_norm rope scaled_dot_product_attention
    segmented_mm softmax softmin sort split std sum swapaxes take take_along_axis tensordot tile to_fp8 tolist
    topk tri tril triu uniform value_and_grad var vjp vmap bernoulli categorical gumbel randint""".split()
)
"""Calls of which one alone may be reported, or may be what makes a report of what it is given."""

PYTHONS = frozenset(["all", "any", "max", "min"])
"""Called by their plain names, these are Python's own, where no import says otherwise."""

_ENOUGH = 2


@dataclass(slots=True)
class _Work:
    """What stands in one function: a score of its work, and the other names that it calls."""

    span: FunctionSpan
    score: int = 0
    calls: list[str] = field(default_factory=list)


class _Heads:
    """What the file's imports bind: `mlx` names something of MLX, `near` of this package, `foreign` something else."""

    def __init__(self, tree: ast.Module) -> None:
        self.mlx: dict[str, str] = {}
        self.near: set[str] = set()
        self.foreign: set[str] = set()
        stack: list[ast.stmt] = list(tree.body)
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add(alias.asname or alias.name.partition(".")[0], alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._add(alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}")
            else:
                for name in ("body", "handlers", "orelse", "finalbody", "cases"):
                    for part in getattr(node, name, ()):
                        stack.extend([part] if isinstance(part, ast.stmt) else part.body)
        self.foreign -= set(self.mlx)

    def is_pythons(self, name: str) -> bool:
        """Whether a plain name that is called is a function of Python that MLX has too: nothing else binds it."""
        return name in PYTHONS and self.mlx.keys().isdisjoint((name, "*")) and self.near.isdisjoint((name, "*"))

    def _add(self, name: str, target: str) -> None:
        if target.partition(".")[0] == "mlx":
            self.mlx[name] = target
        elif target.startswith("."):
            self.near.add(name)
        else:
            self.foreign.add(name)


def _worth_lowering(file: FileText, tree: ast.Module, heads: _Heads) -> list[FunctionSpan]:
    found = functions(file, tree)
    work = [_measure(span, node, heads) for span, node in found]
    meanings = _meanings(tree, found, heads)
    for w in work:
        w.score += sum(_value(meanings.get(name, "")) for name in w.calls)
    compiled = _compiled_names(tree) if "compile" in file.text else ()
    for w in work:
        if w.span.qualname.rpartition(".")[2] in compiled:
            w.score = _ENOUGH
    _count_callees(work)
    return [w.span for w in work if w.score >= _ENOUGH and not w.span.qualname.endswith("__init__")]


def _value(name: str) -> int:
    return 1 if name in ELEMENTWISE else _ENOUGH if name in TELLING else 0


def _measure(span: FunctionSpan, node: Definition, heads: _Heads) -> _Work:
    """The work of one function, without that of functions inside it. Stops where there is enough."""
    work = _Work(span)
    score = _ENOUGH if _is_compiled(node) else 0
    stack: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    while stack:
        at = stack.pop()
        kind = type(at)
        if kind is ast.Call:
            name = _called(at.func, heads.foreign)  # type: ignore[attr-defined]
            if name:
                plain = isinstance(at.func, ast.Name)  # type: ignore[attr-defined]
                value = 0 if plain and heads.is_pythons(name) else _value(name) or (plain and name in heads.near)
                score += value
                if not value:
                    work.calls.append(name)
        elif kind is ast.BinOp:
            score += _arithmetic(at)  # type: ignore[arg-type]
        elif kind is ast.AugAssign:
            score += _ENOUGH if isinstance(at.op, ast.MatMult) else 1  # type: ignore[attr-defined]
        elif kind is ast.UnaryOp:
            score += not isinstance(at.operand, ast.Constant) and not isinstance(at.op, ast.Not)  # type: ignore
        elif kind is ast.Compare:
            score += _comparison(at)  # type: ignore[arg-type]
        elif kind is ast.Subscript:
            score += _ENOUGH * _takes_the_last(at.slice)  # type: ignore[attr-defined]
        if score >= _ENOUGH:
            break
        names = _fields.get(kind)
        if names is None:
            names = _fields[kind] = _fields_to_see(kind)
        for name in names:
            value = getattr(at, name)
            if type(value) is list:
                stack.extend(value)
            elif value is not None:
                stack.append(value)
    work.score = score
    return work


def _takes_the_last(index: ast.expr) -> bool:
    """`[:, -1]`: one position of all that were computed."""
    if not isinstance(index, ast.Tuple):
        return False
    kinds = {type(e) for e in index.elts}
    return ast.Slice in kinds and ast.UnaryOp in kinds


def _compiled_names(tree: ast.Module) -> set[str]:
    """The last parts of the names that are given to something called `compile`."""
    return {
        getattr(at.args[0], "attr", "") or getattr(at.args[0], "id", "")
        for at in ast.walk(tree)
        if isinstance(at, ast.Call) and at.args and _called(at.func, set()) == "compile"
    }


def _is_compiled(node: Definition) -> bool:
    """Whether a decorator may compile the function: what is wrong with that is worth a look at any body."""
    return not isinstance(node, ast.Lambda) and any(
        "compile" in (getattr(at, "attr", "") or getattr(at, "id", ""))
        for decorator in node.decorator_list
        for at in ast.walk(decorator)
    )


_fields: dict[type, tuple[str, ...]] = {}
_UNSEEN = frozenset(
    "annotation returns type_params decorator_list ctx op ops arg name id attr names kind rest kwd_attrs".split()
)


def _fields_to_see(kind: type) -> tuple[str, ...]:
    """The fields of a node that may hold work. Functions inside a function are measured apart."""
    if issubclass(kind, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Name, ast.Constant, ast.JoinedStr)):
        return ("body",) if kind is ast.ClassDef else ()
    return tuple(f for f in getattr(kind, "_fields", ()) if f not in _UNSEEN)


def _called(function: ast.expr, foreign: set[str]) -> str:
    """The last part of the name that is called, "" if it belongs to another library or isn't a name."""
    if isinstance(function, ast.Name):
        return "" if function.id in foreign else function.id
    if not isinstance(function, ast.Attribute):
        return ""
    base = function.value
    while isinstance(base, ast.Attribute):
        base = base.value
    return "" if isinstance(base, ast.Name) and base.id in foreign else function.attr


def _arithmetic(node: ast.BinOp) -> int:
    if isinstance(node.op, ast.MatMult) or _is_hidden(node.left) or _is_hidden(node.right):
        return _ENOUGH
    return 0 if _scalar(node.left) and _scalar(node.right) else 1


def _is_hidden(node: ast.expr) -> bool:
    """Whether an operand is `self._scale`: an array of that name is no weight, and keeps the dtype it is made in."""
    return isinstance(node, ast.Attribute) and node.attr.startswith("_")


def _comparison(node: ast.Compare) -> int:
    plain = isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
    return 0 if plain or _scalar(node.left) or _scalar(node.comparators[0]) else 1


def _scalar(node: ast.expr) -> bool:
    """Whether an operand is plainly a Python scalar or text: a literal, a size, len(...)."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.Attribute):
        return node.attr in ("ndim", "size", "nbytes", "itemsize", "dtype")
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("len", "int", "float", "str", "range")
    return isinstance(node, (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))


def _meanings(tree: ast.Module, found: Iterable[tuple[FunctionSpan, Definition]], heads: _Heads) -> dict[str, str]:
    """What other names the file gives to operations: imported ones, `sdpa = mx.fast.rope`, `self.act = nn.SiLU()`.

    An argument of a constructor counts as its default.
    """
    out = {name: target.rpartition(".")[2] for name, target in heads.mlx.items()}
    bodies: list[tuple[list[ast.stmt], dict[str, ast.expr]]] = [(tree.body, {})]
    for span, node in found:
        if span.qualname.endswith("__init__") and not isinstance(node, ast.Lambda):
            bodies.append((node.body, _defaults(node.args)))
    for body, defaults in bodies:
        for statement in _statements(body):
            if isinstance(statement, ast.Assign):
                value = statement.value
                if isinstance(value, ast.Name):
                    value = defaults.get(value.id, value)
                name = _called(value.func if isinstance(value, ast.Call) else value, heads.foreign)
                if _value(name) or _value(name := name.lower()):
                    for target in statement.targets:
                        if isinstance(target, (ast.Name, ast.Attribute)):
                            out.setdefault(target.id if isinstance(target, ast.Name) else target.attr, name)
    return out


def _defaults(args: ast.arguments) -> dict[str, ast.expr]:
    plain = [*args.posonlyargs, *args.args]
    given = zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True)
    named = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {a.arg: d for a, d in (*given, *named) if d is not None}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a suite, without those of functions inside."""
    stack = list(body)
    while stack:
        statement = stack.pop()
        yield statement
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            stack.extend(suites(statement))


def _count_callees(work: list[_Work]) -> None:
    """Count the work of functions of this file that a function calls, or holds, as its own: it may be inlined."""
    by_name: dict[str, list[_Work]] = {}
    for w in work:
        if not w.span.qualname.endswith("__init__"):
            by_name.setdefault(w.span.qualname.rpartition(".")[2], []).append(w)
    parts = [[c for name in w.calls for c in by_name.get(name, ())] for w in work]
    at = {w.span.qualname: i for i, w in enumerate(work)}
    for w in work:
        if w.span.outer is not None:
            parts[at[w.span.outer]].append(w)
    callers: list[list[int]] = [[] for _ in work]
    for i, callees in enumerate(parts):
        for c in callees:
            callers[at[c.span.qualname]].append(i)
    own = [w.score for w in work]
    waiting = [i for i, w in enumerate(work) if w.score]
    while waiting:
        for i in callers[waiting.pop()]:
            score = min(_ENOUGH, own[i] + sum(c.score for c in parts[i] if c is not work[i]))
            if score > work[i].score:
                work[i].score = score
                waiting.append(i)
