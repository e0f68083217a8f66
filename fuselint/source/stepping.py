"""Loops that refine a value: each round makes it anew of itself and of what a call made of it.

`x = x + dt * model(x, t)`, `noise = model(x); x = scheduler.step(noise, t, x)`: the steps of a solver, each with all of
the value. A loop over layers is none, nor one that appends a token to those before.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
NUMBERS = frozenset({"int", "float", "len", "bool", "sum", "max", "min", "item", "tolist", "shape", "size"})
"""What makes numbers of an array: a position that moves on, a count of tokens."""
CHOOSING = frozenset({"argmax", "argmin", "argsort", "argpartition", "topk", "categorical", "take", "take_along_axis"})
"""What makes the next token of many scores."""
STEP = "step"
"""How the methods of schedulers are called, that make the next value of this one and of what a model made."""
MAKING = frozenset({"mx", "np", "nn", "math", "time", "tqdm"})
"""Heads of what computes by itself, and runs no model."""

_LOOP = re.compile(
    rb"^([ \t]*)(?:async[ ])?(?:for|while)\b[^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\r?\n|\1[\])}][^\n]*\n)*", re.MULTILINE
)
"""A loop with its body, as it is indented."""
_REFINED = re.compile(
    rb"\.step\(|\w [-+*/]= |\b(\w+) = [^=]{0,300}?\b\1\b\)?\s+[-+*/]\s|\b(\w+) = [^=]{0,300}?\s[-+*/]\s+\(?\2\b"
    rb"|\n[ \t]+\w+ = [A-Za-z_]\w*\r?\n|\n[ \t]+(\w+) = \w+\.concatenate\([^=]{0,300}?\b\3\["
    rb"|\b(\w+) = (?:self\.)?\w+\([^)]{0,300}?\b\4\b"
)
"""`x = x + ...`, `x = ... - x`, `x = y`, `x = mx.concatenate([x[:n], ...`, `x = f(x`, and what else may do so."""

_NAMED = rb"^([ \t]*)def %s\([^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\r?\n|\1\)[^\n]*\n)*"
"""A function with its body, as it is indented."""

Find = Callable[[str], ast.FunctionDef | None]
"""The function of the same file that a name is of."""


def solver_loops(data: bytes) -> tuple[int, ...]:
    """The lines in which the rounds of such loops begin, in the text of a file."""
    return tuple(line for m in _LOOP.finditer(data) if _REFINED.search(m[0]) for line in _in_loop(data, m))


def _in_loop(data: bytes, found: re.Match[bytes]) -> Iterator[int]:
    text = textwrap.dedent(found[0].decode("utf-8", "replace"))
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = data.count(b"\n", 0, found.start())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and takes_steps(node, partial(_function, data)):
                yield before + (node.test if isinstance(node, ast.While) else node.body[0]).lineno


def _function(data: bytes, name: str) -> ast.FunctionDef | None:
    """The only function or method of a text that has a name."""
    found = list(re.finditer(_NAMED % re.escape(name.encode()), data, re.MULTILINE))
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = ast.parse(textwrap.dedent(found[0][0].decode("utf-8", "replace"))).body if len(found) == 1 else []
        return next((f for f in body if isinstance(f, ast.FunctionDef)), None)
    return None


@dataclass(frozen=True, slots=True)
class _Made:
    """Names, what they are assigned, the names that it reads, and those that each call in it is given."""

    names: frozenset[str]
    value: ast.expr
    reads: frozenset[str]
    calls: tuple[frozenset[str], ...]
    counts: bool


def takes_steps(loop: ast.For | ast.AsyncFor | ast.While, find: Find = lambda _: None) -> bool:
    """Whether a loop refines a value, as far as its own text says, and that of the functions which it calls."""
    targets = _names(loop.target) if not isinstance(loop, ast.While) else frozenset()
    made = list(_in_place_of_names(list(_assignments(loop.body, targets)), targets))
    states = {name for m in made for name in m.names & m.reads} - targets
    states -= {name for m in made for name in m.names - m.reads}  # what each round makes anew
    if not states:
        return False
    own = frozenset(name for m in made for name in m.names)
    inside = [n for s in loop.body for n in ast.walk(s)]
    if any(isinstance(n, ast.Call) and _selects(n, targets, own) for n in inside):
        return False
    states -= {name for n in inside if isinstance(n, ast.Compare) for name in _ordered(n)}
    return any(_is_refined(name, made) or _is_refined_by_call(name, made, find) for name in sorted(states))


def _is_refined_by_call(state: str, made: Sequence[_Made], find: Find) -> bool:
    """Whether the next value of a name is what a function of the file makes so of this one: `x = self._step(x, t)`."""
    for m in made:
        called = m.value.func if isinstance(m.value, ast.Call) and m.names == {state} else None
        name = called.id if isinstance(called, ast.Name) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
            name = called.attr
        function = None if name is None or m.counts else find(name)
        if function is None or not isinstance(m.value, ast.Call):
            continue
        named = [a.arg for a in (*function.args.posonlyargs, *function.args.args)][isinstance(called, ast.Attribute) :]
        given = [*zip(named, m.value.args, strict=False), *((k.arg, k.value) for k in m.value.keywords)]
        for parameter in (p for p, value in given if p is not None and _names(value) == {state}):
            inside = list(_assignments(function.body, frozenset()))
            returned = (n.value for s in function.body for n in ast.walk(s) if isinstance(n, ast.Return))
            ends = [_made(frozenset({parameter}), v, frozenset()) for v in returned if v is not None]
            bodies = [list(_in_place_of_names([*inside, end], frozenset())) for end in ends]
            if bodies and all(_is_refined(parameter, body) for body in bodies):
                return True
    return False


def _in_place_of_names(made: Sequence[_Made], targets: frozenset[str]) -> Iterator[_Made]:
    """Assignments, in which a name that a round binds once before stands for its value: `x = y`, and what is put back
    beside the rest of an array, `x = mx.concatenate([x[:n], y])`."""
    bound: dict[str, ast.expr] = {}
    times = Counter(name for m in made for name in m.names)
    for m in made:
        value = _bound(m.value, bound)
        put = _put_back(value, m.names, bound)
        yield m if put is m.value else _made(m.names, put, targets)
        if len(m.names) == 1 and times[one := next(iter(m.names))] == 1 and one not in m.reads:
            bound[one] = value


def _bound(value: ast.expr, bound: Mapping[str, ast.expr]) -> ast.expr:
    return bound.get(value.id, value) if isinstance(value, ast.Name) else value


def _put_back(value: ast.expr, names: frozenset[str], bound: Mapping[str, ast.expr]) -> ast.expr:
    """Of parts of a value before and behind a place, of which one is as it was, the other one, where that is made of
    the part that stood there; else the value itself."""
    match value:
        case ast.Call(
            func=ast.Attribute(attr="concatenate"),
            args=[ast.List(elts=[one, other]) | ast.Tuple(elts=[one, other]), *_],
        ):
            for kept, new in ((one, _bound(other, bound)), (other, _bound(one, bound))):
                rest = _rest_of(kept)
                if rest is not None and _names(kept) == names and any(ast.dump(n) == rest for n in ast.walk(new)):
                    return new
    return value


def _rest_of(part: ast.expr) -> str | None:
    """What is left of an array beside a first or last part of it, as a dump: `x[n:]` of `x[:n]`."""
    match part:
        case ast.Subscript(value=ast.Name(), slice=ast.Slice(lower=None, upper=ast.expr() as at, step=None)):
            rest = ast.Slice(lower=at)
        case ast.Subscript(value=ast.Name(), slice=ast.Slice(lower=ast.expr() as at, upper=None, step=None)):
            rest = ast.Slice(upper=at)
        case _:
            return None
    return ast.dump(ast.Subscript(value=part.value, slice=rest, ctx=ast.Load()))


def _ordered(node: ast.Compare) -> frozenset[str]:
    """What is less or more than something: a number."""
    if not any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in node.ops):
        return frozenset()
    return frozenset(n.id for n in (node.left, *node.comparators) if isinstance(n, ast.Name))


def _selects(call: ast.Call, targets: frozenset[str], own: frozenset[str]) -> bool:
    """Whether each round calls another: `layer(x)`, `self.layers[i](x)`, `layer.mlp(x)` of what is made in it."""
    called = call.func
    if isinstance(called, ast.Name):
        return called.id in targets
    if isinstance(called, ast.Subscript):
        return bool(_all_names(called.slice) & targets)
    while isinstance(called, ast.Attribute):
        called = called.value
    given = (*call.args, *(k.value for k in call.keywords))
    return isinstance(called, ast.Name) and called.id in targets and any(_all_names(a) & own for a in given)


def _all_names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _is_refined(state: str, made: Sequence[_Made]) -> bool:
    """Whether one of the assignments makes the next value of a name, of what a call made of this one."""
    of_state, of_calls = {state}, set[str]()
    before = (0, 0)
    while before != (len(of_state), len(of_calls)):
        before = len(of_state), len(of_calls)
        for m in made:
            if m.counts:
                continue
            if m.reads & of_calls or any(names & of_state for names in m.calls):
                of_calls |= m.names - {state}
            if m.reads & of_state:
                of_state |= m.names
    return any(m.names == {state} and state in m.reads and not m.counts and _is_next(m, state, of_calls) for m in made)


def _is_next(made: _Made, state: str, of_calls: set[str]) -> bool:
    """Whether an expression is the sum of a state and of what a call made of it, or a step by that."""
    value = made.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and not _is_dotted(value.func.value):
        value = value.func.value  # `(x + dx).astype(x.dtype)`
    if isinstance(value, ast.BinOp):
        by_call = bool(made.reads & of_calls) or any(state in names for names in made.calls)
        lists = any(isinstance(n, ast.List) for n in ast.walk(value))
        return by_call and state in _outer(value) and isinstance(value.op, ARITHMETIC) and not lists
    called = value.func if isinstance(value, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr == STEP and bool(made.reads & of_calls)


def _outer(node: ast.expr) -> frozenset[str]:
    """The names of an expression that are given to no call."""
    match node:
        case ast.BinOp(left=left, right=right):
            return _outer(left) | _outer(right)
        case ast.Call(func=called):
            return _outer(called.value) if isinstance(called, ast.Attribute) else frozenset()
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return _outer(inner)
    return _names(node)


def _is_dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _assignments(body: Sequence[ast.stmt], targets: frozenset[str]) -> Iterator[_Made]:
    for node in (n for statement in body for n in ast.walk(statement)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield _made(frozenset({name}), value, targets)
            case ast.Assign(targets=[ast.Tuple() as several], value=value):
                yield _made(_names(several), value, targets)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                yield _made(frozenset({name}), ast.BinOp(ast.Name(name, ast.Load()), op, value), targets)


def _made(names: frozenset[str], value: ast.expr, targets: frozenset[str]) -> _Made:
    return _Made(names, value, _names(value), tuple(map(_names, _calls(value, targets))), _counts(value))


def _calls(value: ast.expr, targets: frozenset[str]) -> Iterator[ast.Call]:
    """The calls that may run a model: not of a module of operations, nor of what the loop goes through."""
    for n in ast.walk(value):
        if isinstance(n, ast.Call):
            head = n.func
            while isinstance(head, ast.Attribute):
                head = head.value
            if isinstance(head, ast.Name) and head.id not in targets | MAKING and not hasattr(builtins, head.id):
                yield n


def _counts(value: ast.expr) -> bool:
    """Whether an expression reads numbers out of an array, asks about its shape, or chooses one of many.

    What a call is given beside says nothing, unless it is an operation of MLX's.
    """
    match value:
        case ast.BinOp(left=left, right=right):
            return _counts(left) or _counts(right)
        case ast.Subscript(value=inner):
            return _counts(inner)
        case ast.Attribute(value=inner, attr=name):
            return name in NUMBERS | CHOOSING or _counts(inner)
        case ast.Name(id=name):
            return name in NUMBERS
        case ast.Call(func=called, args=args):
            head = called
            while isinstance(head, ast.Attribute):
                head = head.value
            own = isinstance(head, ast.Name) and head.id in MAKING
            return _counts(called) or (own and any(map(_counts, args)))
    return False


def _names(node: ast.AST) -> frozenset[str]:
    """The names that an expression reads, but for those that only say which part of another is meant."""
    out, waiting = set(), [node]
    while waiting:
        at = waiting.pop()
        if isinstance(at, ast.Name):
            out.add(at.id)
        else:
            waiting += [at.value] if isinstance(at, ast.Subscript) else ast.iter_child_nodes(at)
    return frozenset(out)
