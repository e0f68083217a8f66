"""Small changes of a function's text: each makes one condition true that some fused form asks for.

A change says what holds of the text once it is made, and why it doesn't hold of the text as it stands. Nothing here
knows a rule: whether a change makes one match is for others to try (nearly.py).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fuselint.finding import Edit
from fuselint.source.text import FileText

Function = ast.FunctionDef | ast.AsyncFunctionDef
N = TypeVar("N", bound=ast.AST)

MOST = 200
"""Changes of one function."""
SHOWN = 60
"""The longest text of an expression in a message."""
DEPTH = 3
"""How deep in an expression lies what may stand in its place."""
OPERAND, RANK = "operand", "rank"
"""The kinds of the changes that put one name in the place of another, and of those that state ranks."""

REDUCTIONS = {"mean", "sum", "max", "min", "var", "std", "norm", "logsumexp"}
"""What takes keepdims."""
WITH_AXIS = REDUCTIONS | {"softmax", "log_softmax", "argmax", "argmin", "take_along_axis"}
AXIS_AT = {"norm": 2, "take_along_axis": 2}
ROOTS = {"sqrt", "rsqrt", "norm", "std"}
VIEWS = set("reshape flatten unflatten transpose swapaxes moveaxis squeeze expand_dims split repeat tile".split())
"""What doesn't compute: without it, the shape is another one."""
SIGNS = {ast.LtE: "<=", ast.GtE: ">=", ast.Lt: "<", ast.Gt: ">"}


@dataclass(frozen=True, slots=True)
class Change:
    """claim: what holds of the changed text; because: why it doesn't of the text as it is.

    Changes of one kind, claim and reason are also made all at once.
    """

    claim: str
    because: str
    edits: tuple[Edit, ...]
    kind: str = ""


def changes(file: FileText, node: Function, lines: Collection[int], numbers: Sequence[float] = ()) -> Iterator[Change]:
    """The changes of a function, the most telling first; equal ones at several places also all at once.

    lines: those that may change. numbers: what to put in the place of others.
    """
    function = _Function(file, node, lines, numbers)
    count = 0
    for make in MAKERS:
        made = list(make(function))
        for change in [*made, *_together(made)]:
            if count == MOST:
                return
            count += 1
            yield change


def _together(made: Sequence[Change]) -> Iterator[Change]:
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in made:
        groups.setdefault((change.kind, change.claim, change.because), []).append(change)
    for (kind, claim, because), alike in groups.items():
        edits: list[Edit] = []
        for edit in sorted((e for c in alike for e in c.edits), key=lambda e: e.start):
            if not edits or edits[-1].end < edit.start:
                edits.append(edit)
        if len(alike) > 1 and kind != RANK:
            yield Change(claim, because, tuple(edits), kind)


@dataclass(slots=True)
class _Function:
    """A function's expressions, and their texts. names: parameters first, then local variables."""

    file: FileText
    node: Function
    lines: Collection[int]
    numbers: Sequence[float]
    mx: str = "mx"
    nodes: list[ast.AST] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        whole = [n for s in self.node.body for n in ast.walk(s)]
        self.nodes = [n for n in whole if getattr(n, "lineno", 0) in self.lines]
        found = re.search(r"^\s*import mlx\.core as (\w+)", self.file.text, re.MULTILINE)
        self.mx = found[1] if found else "mx"
        args = self.node.args
        self.params = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs) if a.arg not in ("self", "cls")]
        bound = {n.id for n in self.of(ast.Name) if isinstance(n.ctx, ast.Store)}  # in these lines
        self.names = [*self.params, *sorted(bound - set(self.params))]

    def of(self, kind: type[N]) -> Iterator[N]:
        return (n for n in self.nodes if isinstance(n, kind))

    def operations(self, *kinds: type[ast.operator]) -> Iterator[ast.BinOp]:
        return (n for n in self.of(ast.BinOp) if isinstance(n.op, kinds))

    def calls(self, names: Collection[str]) -> Iterator[tuple[ast.Call, str, list[ast.expr]]]:
        """Calls of functions and methods by name, with all operands: of a method, the object first."""
        for n in self.of(ast.Call):
            f = n.func
            if isinstance(f, ast.Attribute) and f.attr in names:
                yield n, f.attr, [*([] if self.is_module(f.value) else [f.value]), *n.args]

    def is_module(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in (self.mx, "nn", "math")

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        at = self.file.ast_offset
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.file.text[start:end]

    def shown(self, node: ast.expr) -> str:
        """An expression's text for a message."""
        text = " ".join(self.text(node).split())
        return f"`{text}`" if len(text) <= SHOWN else f"`{text[:SHOWN]}...`"

    def operand(self, node: ast.expr) -> str:
        """An expression's text, in brackets where it needs them."""
        plain = isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant))
        return self.text(node) if plain else f"({self.text(node)})"

    def instead(self, node: ast.expr, text: str) -> Edit:
        return Edit(*self.span(node), text)

    def added(self, call: ast.Call, text: str) -> Edit:
        """One more argument of a call."""
        end = self.span(call)[1] - 1
        return Edit(end, end, f", {text}" if call.args or call.keywords else text)

    def renamed(self, call: ast.Call, name: str) -> Edit:
        """Another function or method of that object."""
        assert isinstance(call.func, ast.Attribute)
        end = self.span(call.func)[1]
        return Edit(end - len(call.func.attr), end, name)

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Edit | None:
        """Another operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        text = self.file.text[start:end]
        at = start + text.find(old)
        return Edit(at, at + len(old), new) if text.count(old) == 1 else None


# -- reductions --------------------------------------------------------------------------------------------------------


def _axes(f: _Function) -> Iterator[Change]:
    claim = "the axis is the last"
    for call, name, operands in f.calls(WITH_AXIS):
        axis = _axis(call, name, operands)
        if axis is None:
            keep = name in REDUCTIONS and _keyword(call, "keepdims") is None
            more = f"axis=-1{', keepdims=True' if keep else ''}"
            yield Change(claim, f"`{name}` goes over all axes", (f.added(call, more),))
        elif f.text(axis) != "-1":
            count = _count(axis)
            because = f"axis {f.text(axis)}, " + (f"the last of {count} axes alone" if count else "not the last")
            yield Change(claim, because, (f.instead(axis, "-1"),))


def _last_axes(f: _Function) -> Iterator[Change]:
    """What an axis that is counted from the first one needs, to be the last: so many axes."""
    axes = [a for call, name, operands in f.calls(WITH_AXIS) if (a := _axis(call, name, operands)) is not None]
    for count in sorted({_count(a) for a in axes} - {0}):
        yield from _ranked(f, count)


def _count(axis: ast.expr) -> int:
    """Of how many axes one that is counted from the first is the last; 0 of others, and of the second: few arrays of
    a model are matrices."""
    number = axis.value if isinstance(axis, ast.Constant) else None
    return number + 1 if type(number) is int and number > 1 else 0


def _axis(call: ast.Call, name: str, operands: Sequence[ast.expr]) -> ast.expr | None:
    at = AXIS_AT.get(name, 1)
    return _keyword(call, "axis") or (operands[at] if len(operands) > at else None)


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _neighbours(f: _Function) -> Iterator[Change]:
    for call, _, _ in f.calls(("mean", "var", "std")):
        axes = _keyword(call, "axis")
        if isinstance(axes, ast.Tuple) and not _are_neighbours(axes):
            for new in ("(-2, -1)", "(1, 2)"):
                if f.text(axes) != new:
                    because = f"they are {f.text(axes)}"
                    yield Change("the axes stand next to each other", because, (f.instead(axes, new),), new)


def _are_neighbours(axes: ast.Tuple) -> bool:
    try:
        numbers = sorted(ast.literal_eval(axes))
        return all(b - a == 1 for a, b in itertools.pairwise(numbers))
    except (ValueError, TypeError):
        return True  # nobody knows


def _keepdims(f: _Function) -> Iterator[Change]:
    claim, because = "the reduced axis is kept", "`keepdims` isn't True: rows and columns mix"
    for call, _, _ in f.calls(REDUCTIONS):
        given = _keyword(call, "keepdims")
        if given is None:
            yield Change(claim, because, (f.added(call, "keepdims=True"),))
        elif f.text(given) == "False":
            yield Change(claim, because, (f.instead(given, "True"),))


def _keywords(f: _Function) -> Iterator[Change]:
    for call, _, _ in f.calls(("var", "std", "norm")):
        ddof, order = _keyword(call, "ddof"), _keyword(call, "ord")
        if ddof is not None and f.text(ddof) != "0":
            yield Change("the variance is biased", f"ddof={f.text(ddof)}", (f.instead(ddof, "0"),))
        if order is not None and f.text(order) != "2":
            yield Change("the norm is that of the squares", f"ord={f.text(order)}", (f.instead(order, "2"),))


def _other_reductions(f: _Function) -> Iterator[Change]:
    """A sum for a mean, a mean for a sum; a variance for a mean of squares, and the other way round."""
    for call, name, operands in f.calls(("sum", "mean", "var")):
        if not operands:
            continue
        x = operands[0]
        if name in ("sum", "mean"):
            other = "mean" if name == "sum" else "sum"
            yield Change(f"it is a {other}", f"it is a {name}", (f.renamed(call, other),))
        base = _squared(x) if name == "mean" else None
        if name == "var":
            edits = (f.renamed(call, "mean"), f.instead(x, f"{f.mx}.square({f.text(x)})"))
            yield Change("squares are averaged", f"{f.shown(call)} takes the mean off first", _sorted(edits))
        elif base is not None:
            edits = (f.renamed(call, "var"), f.instead(x, f.operand(base)))
            yield Change("it is a variance", f"{f.shown(call)} is the second moment", _sorted(edits))


def _sorted(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    return tuple(sorted(edits, key=lambda e: e.start))


def _squared(node: ast.expr) -> ast.expr | None:
    """x of x * x, x ** 2, mx.square(x) and x.square()."""
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Mult) and ast.dump(node.left) == ast.dump(node.right):
            return node.left
        two = isinstance(node.right, ast.Constant) and node.right.value == 2
        return node.left if isinstance(node.op, ast.Pow) and two else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "square":
        return node.args[0] if node.args else node.func.value
    return None


def _centred(f: _Function) -> Iterator[Change]:
    for n in f.operations(ast.Mult, ast.Div):
        if isinstance(n.left, ast.Name):
            x = n.left.id
            new = f"({x} - {f.mx}.mean({x}, axis=-1, keepdims=True))"
            yield Change("its mean is taken off", f"`{x}` is not centred", (f.instead(n.left, new),))


# -- eps ---------------------------------------------------------------------------------------------------------------


def _eps_outside(f: _Function) -> Iterator[Change]:
    for n in f.operations(ast.Add):
        for root, eps in ((n.left, n.right), (n.right, n.left)):
            inside = _inside(f, root, f.operand(eps))
            if inside:
                because = f"{f.shown(n)} adds it outside"
                yield Change("eps stands inside the root", because, (f.instead(n, inside),))


def _inside(f: _Function, root: ast.expr, eps: str) -> str:
    """A root's text with eps added under it."""
    if isinstance(root, ast.BinOp) and isinstance(root.op, ast.Pow) and f.text(root.right) in ("0.5", "-0.5"):
        return f"(({f.text(root.left)} + {eps}) ** {f.text(root.right)})"
    if not (isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute) and root.func.attr in ROOTS):
        return ""
    name = root.func.attr
    args = [f.text(a) for a in ([] if f.is_module(root.func.value) else [root.func.value]) + root.args]
    if not args:
        return ""
    if name in ("sqrt", "rsqrt"):
        return f"{f.mx}.{name}({args[0]} + {eps})"
    more = [*args[1:], *(f"{k.arg}={f.text(k.value)}" for k in root.keywords if k.arg not in ("ord", None))]
    of = f"{f.mx}.sum({f.mx}.square({args[0]})" if name == "norm" else f"{f.mx}.var({args[0]}"
    return f"{f.mx}.sqrt({', '.join([of, *more])}) + {eps})"


def _floor(f: _Function) -> Iterator[Change]:
    for call, _, operands in f.calls(("maximum", "clip")):
        for value in operands[:2]:
            if not isinstance(value, ast.Constant):
                because = f"{f.shown(call)} is a floor under it"
                yield Change("eps is added inside the root", because, (f.instead(call, f.operand(value)),))


# -- what stands in the place of what ----------------------------------------------------------------------------------


def _passed_by(f: _Function) -> Iterator[Change]:
    """An expression gives way to one that it is made of."""
    for n in f.nodes:
        if isinstance(n, (ast.BinOp, ast.UnaryOp, ast.Call)):
            for part in _parts(f, n, DEPTH):
                whole = f.shown(n)
                if len(f.text(part)) > SHOWN // 3:  # it has been shown
                    whole = "`" + " ".join(f.text(n).replace(f.text(part), "...").split()) + "`"
                yield Change(f"{f.shown(part)} stands there", f"it is {whole}", (f.instead(n, f.operand(part)),))


def _parts(f: _Function, node: ast.expr, depth: int) -> Iterator[ast.expr]:
    """The arrays that an expression computes with, those nearest first."""
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        inner = [node.left, node.right]
    elif isinstance(node, ast.UnaryOp):
        inner = [node.operand]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in VIEWS:
        inner = node.args[:1] if f.is_module(node.func.value) else [node.func.value]
    inner = [e for e in inner if not isinstance(e, (ast.Constant, ast.Starred)) and not _is_number(f, e)]
    yield from inner
    if depth > 1:
        for e in inner:
            yield from _parts(f, e, depth - 1)


def _is_number(f: _Function, node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    return f.text(node).startswith("math.")


def _operands(f: _Function) -> Iterator[Change]:
    """A name gives way to another one."""
    loads = [n for n in f.of(ast.Name) if isinstance(n.ctx, ast.Load) and n.id in f.names]
    if len(loads) * len(f.names) > MOST:
        return
    for n in loads:
        for other in f.names:
            if other != n.id:
                yield Change(f"`{other}` stands there", f"it is `{n.id}`", (f.instead(n, other),), OPERAND)


def _casts(f: _Function) -> Iterator[Change]:
    for call, _, operands in f.calls(("astype",)):
        if len(operands) == 2:
            x, to = operands
            yield Change("nothing is cast", f"there is a cast to {f.text(to)}", (f.instead(call, f.operand(x)),))
    for n in f.nodes:
        value = n.value if isinstance(n, (ast.Return, ast.Assign)) else None
        inner = value.args[0] if isinstance(value, ast.Call) and value.args else None
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "astype":
            assert isinstance(value, ast.Call)
            back = f"{f.text(value)}.astype({f.text(inner.func.value)}.dtype)"
            yield Change("the result is cast back", f"{f.shown(value)} stays as it is", (f.instead(value, back),))


def _signs(f: _Function) -> Iterator[Change]:
    for n in f.operations(ast.Add, ast.Sub):
        old, new = ("+", "-") if isinstance(n.op, ast.Add) else ("-", "+")
        edit = f.between(n.left, n.right, old, new)
        if edit:
            yield Change(f"the sign is {new}", f"{f.shown(n)} has {old}", (edit,))
    for n in f.operations(ast.Pow):
        if not isinstance(n.right, ast.Constant):
            edit = f.instead(n.right, f"(-({f.text(n.right)}))")
            yield Change("the exponent is negative", f"that of {f.shown(n)} isn't", (edit,))


def _powers(f: _Function) -> Iterator[Change]:
    for n in f.operations(ast.Pow, ast.FloorDiv):
        if isinstance(n.right, ast.Constant) and n.right.value not in (2, 0.5):
            edit = (f.instead(n.right, "2"),)
            if isinstance(n.op, ast.Pow):
                yield Change("the exponent is 2", f"it is {f.text(n.right)}", edit)
            else:
                yield Change("the axis is cut in the middle", f"it is cut at {f.shown(n)}", edit)


def _numbers(f: _Function) -> Iterator[Change]:
    signed = {n.operand: n for n in f.of(ast.UnaryOp) if isinstance(n.op, ast.USub)}
    for n in f.of(ast.Constant):
        if type(n.value) in (int, float):
            for number in f.numbers:
                whole = signed.get(n, n) if number < 0 else n
                because = f"it is {f.text(whole)}"
                yield Change(f"the number is {number:.8g}", because, (f.instead(whole, repr(number)),))


def _lengths(f: _Function) -> Iterator[Change]:
    for n in f.of(ast.Subscript):
        if isinstance(n.value, ast.Attribute) and n.value.attr == "shape" and f.text(n.slice) != "-1":
            yield Change("the length is the last axis'", f"{f.shown(n)} is another one", (f.instead(n.slice, "-1"),))


def _comparisons(f: _Function) -> Iterator[Change]:
    for n in f.of(ast.Compare):
        old = SIGNS.get(type(n.ops[0]))
        for new in SIGNS.values():
            edit = f.between(n.left, n.comparators[0], old, new) if old and old != new else None
            if edit:
                yield Change(f"the comparison is {new}", f"{f.shown(n)} has {old}", (edit,))


def _transposed(f: _Function) -> Iterator[Change]:
    for n in f.operations(ast.MatMult):
        if isinstance(n.right, ast.Name):
            edit = f.instead(n.right, f"{n.right.id}.swapaxes(-1, -2)")
            yield Change(f"`{n.right.id}` is transposed", f"{f.shown(n)} takes it as it is", (edit,))


def _tiled(f: _Function) -> Iterator[Change]:
    claim, because = "heads are repeated in interleaved order", "they are tiled, which puts them in another order"
    for call, name, operands in f.calls(("tile", "concatenate")):
        first = operands[0] if operands else None
        if name == "tile" and first is not None and len(operands) > 1 and isinstance(operands[1], ast.Tuple):
            for axis, times in enumerate(operands[1].elts):
                if f.text(times) != "1":
                    new = f"{f.mx}.repeat({f.text(first)}, {f.text(times)}, axis={axis})"
                    yield Change(claim, because, (f.instead(call, new),))
        elif name == "concatenate" and isinstance(first, ast.BinOp) and isinstance(first.left, ast.List):
            along = _keyword(call, "axis")
            source = ", ".join(f.text(e) for e in first.left.elts)
            new = f"{f.mx}.repeat({source}, {f.text(first.right)}, axis={f.text(along) if along else 0})"
            yield Change(claim, because, (f.instead(call, new),))


def _targets(f: _Function) -> Iterator[Change]:
    for n in f.of(ast.Tuple):
        if isinstance(n.ctx, ast.Store) and len(n.elts) == 2:
            a, b = map(f.text, n.elts)
            yield Change(f"the halves are `{b}, {a}`", f"they are `{a}, {b}`", (f.instead(n, f"{b}, {a}"),))


def _lanes(f: _Function) -> Iterator[Change]:
    claim, because = "pairs are written as they are read", "they are read interleaved, and written as halves"
    for n in f.of(ast.Subscript):
        last = n.slice.elts[-1] if isinstance(n.slice, ast.Tuple) and n.slice.elts else n.slice
        if isinstance(last, ast.Slice) and last.step is not None and f.text(last.step) == "2" and last.upper is None:
            half = f"{f.text(n.value)}.shape[-1] // 2"
            yield Change(claim, because, (f.instead(last, f"{half} :" if last.lower else f": {half}"),))


def _picked(f: _Function) -> Iterator[Change]:
    for _, _, operands in f.calls(("take_along_axis",)):
        index = operands[1] if len(operands) > 1 else None
        if isinstance(index, ast.Name):
            because = f"`{index.id}` may name several"
            yield Change("one entry of each row is taken", because, (f.instead(index, f"{index.id}[..., None]"),))


def _positions(f: _Function) -> Iterator[Change]:
    for n in f.of(ast.Subscript):
        column = f.text(n.slice).replace(" ", "") in (":,None", "...,None")
        if column and isinstance(n.value, ast.Name) and n.value.id in f.params:
            for x in f.params:
                if x != n.value.id:
                    edit = f.instead(n.value, f"{f.mx}.arange({x}.shape[-2])")
                    yield Change("positions count up by one", f"`{n.value.id}` may hold any", (edit,))


# -- who else reads it, and what is known ------------------------------------------------------------------------------


def _returned(f: _Function) -> Iterator[Change]:
    for n in f.of(ast.Return):
        if isinstance(n.value, ast.Tuple) and len(n.value.elts) > 1:
            for i, e in enumerate(n.value.elts):
                rest = ", ".join(f.text(o) for j, o in enumerate(n.value.elts) if j != i)
                yield Change("nothing else reads it", f"{f.shown(e)} is returned too", (f.instead(n.value, rest),))


def _ranks(f: _Function) -> Iterator[Change]:
    for rank in (2, 3, 4):
        yield from _ranked(f, rank)


def _ranked(f: _Function, rank: int) -> Iterator[Change]:
    """Each parameter with so many axes, and all."""
    body = f.node.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    start = f.span(body[documented])[0]
    indent = f.file.text[f.file.starts[body[documented].lineno - 1] : start]
    read = {n.id for n in f.of(ast.Name)}
    params = [p for p in f.params if p in read]
    if indent.strip():
        return
    lines = [f"{', '.join(f'{p}_{i}' for i in range(rank))} = {p}.shape{f.file.newline}{indent}" for p in params]
    for p, line in zip(params, lines, strict=True):
        because = f"nothing in this function says how many axes `{p}` has"
        yield Change("its rank is known", because, (Edit(start, start, line),), RANK)
    if len(params) > 1:
        because = "nothing in this function says how many axes there are"
        yield Change("the ranks are known", because, (Edit(start, start, "".join(lines)),), RANK)


MAKERS: tuple[Callable[[_Function], Iterator[Change]], ...] = (
    _last_axes, _axes, _keepdims, _keywords, _eps_outside, _floor, _returned, _tiled, _transposed, _comparisons,
    _lengths, _powers, _other_reductions, _centred, _neighbours, _targets, _lanes, _picked, _positions, _ranks,
    _casts, _signs, _passed_by, _numbers, _operands,
)  # fmt: skip
"""In the order in which a reason is preferred."""
