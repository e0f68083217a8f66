"""Loops that refine a value: each round makes it anew of itself and of what a call made of it.

`x = x + dt * model(x, t)`, `noise = model(x); x = scheduler.step(noise, t, x)`: the steps of a solver, each with all of
the value. A loop over layers is none, nor one that appends a token to those before.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
NUMBERS = frozenset({"int", "float", "len", "bool", "sum", "max", "min", "item", "tolist", "shape", "size"})
"""What makes numbers of an array: a position that moves on, a count of tokens."""
CHOOSING = frozenset({"argmax", "argmin", "argsort", "argpartition", "topk", "categorical", "take", "take_along_axis"})
"""What makes the next token of many scores."""
STEP = "step"
"""How the methods of schedulers are called, that make the next value of this one and of what a model made."""
MAKING = frozenset({"mx", "np", "nn", "math", "time", "tqdm"})
"""Heads of what computes by itself, and runs no model."""


@dataclass(frozen=True, slots=True)
class _Made:
    """Names, what they are assigned, the names that it reads, and those that each call in it is given."""

    names: frozenset[str]
    value: ast.expr
    reads: frozenset[str]
    calls: tuple[frozenset[str], ...]
    counts: bool


def takes_steps(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a loop refines a value, as far as its own text says."""
    targets = _names(loop.target) if not isinstance(loop, ast.While) else frozenset()
    if not any(_may_step(n) for s in loop.body for n in ast.walk(s)):
        return False
    made = list(_assignments(loop.body, targets))
    states = {name for m in made for name in m.names & m.reads}
    if not states or any(isinstance(n, ast.Call) and _selects(n.func, targets) for s in loop.body for n in ast.walk(s)):
        return False
    return any(_is_refined(name, made, made) for name in states)


def _may_step(node: ast.AST) -> bool:
    """Whether a statement assigns arithmetic, or what a step makes: a quick look."""
    match node:
        case ast.AugAssign():
            return True
        case ast.Assign(value=ast.BinOp()):
            return True
        case ast.Assign(value=ast.Call(func=ast.Attribute(attr=name))):
            return name in (STEP, "astype")
    return False


def is_step(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function gives back what it was given, refined by what a call makes of that."""
    last = function.body[-1]
    returned = last.value if isinstance(last, ast.Return) else None
    if isinstance(returned, ast.Name):
        returned = _last_given(returned.id, function.body)
    if not isinstance(returned, ast.BinOp):
        return False
    a = function.args
    given = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)} - {"self", "cls"}
    states = given & _outer(returned)
    if not states:
        return False
    made = list(_assignments(function.body, frozenset()))
    return any(_is_refined(p, made, [_made(frozenset({p}), returned, frozenset())]) for p in states)


def _last_given(name: str, body: Sequence[ast.stmt]) -> ast.expr | None:
    for statement in reversed(body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=to)], value=value) if to == name:
                return value
    return None


def handed_over(loop: ast.For | ast.AsyncFor | ast.While) -> frozenset[str]:
    """The functions that make a value anew in each round, of itself: `x = step(x, t)`."""
    return frozenset(
        ast.unparse(called)
        for statement in loop.body
        for node in ast.walk(statement)
        for name, value, called in _of_a_call(node)
        if name in _names(value)
    )


def _of_a_call(node: ast.AST) -> Iterator[tuple[str, ast.expr, ast.expr]]:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name() | ast.Attribute() as called) as value
        ):
            yield name, value, called


def _selects(called: ast.expr, targets: frozenset[str]) -> bool:
    """Whether each round calls another: `layer(x)`, `self.layers[i](x)`."""
    if isinstance(called, ast.Name):
        return called.id in targets
    return isinstance(called, ast.Subscript) and bool(_all_names(called.slice) & targets)


def _all_names(node: ast.AST) -> frozenset[str]:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))


def _is_refined(state: str, made: Sequence[_Made], ends: Sequence[_Made]) -> bool:
    """Whether one of `ends` is the next value of a name, and holds what a call made of this one, as `made` says."""
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
    return any(m.names == {state} and state in m.reads and not m.counts and _is_next(m, state, of_calls) for m in ends)


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
