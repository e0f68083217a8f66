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

_LOOP = re.compile(
    rb"^([ \t]*)(?:async[ ])?(?:for|while)\b[^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\r?\n|\1[\])}][^\n]*\n)*", re.MULTILINE
)
"""A loop with its body, as it is indented."""
_REFINED = re.compile(
    rb"\.step\(|\w [-+*/]= |\b(\w+) = [^=]{0,300}?\b\1\b\)?\s+[-+*/]\s|\b(\w+) = [^=]{0,300}?\s[-+*/]\s+\(?\2\b"
)
"""`x = x + ...`, `x = ... - x`, and what else may refine a value."""


def solver_loops(data: bytes) -> tuple[int, ...]:
    """The lines in which the rounds of such loops begin, in the text of a file."""
    return tuple(line for m in _LOOP.finditer(data) if _REFINED.search(m[0]) for line in _in_loop(data, m))


def _in_loop(data: bytes, found: re.Match[bytes]) -> Iterator[int]:
    text = textwrap.dedent(found[0].decode("utf-8", "replace"))
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = data.count(b"\n", 0, found.start())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)) and takes_steps(node):
                yield before + (node.test if isinstance(node, ast.While) else node.body[0]).lineno


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
    made = list(_assignments(loop.body, targets))
    states = {name for m in made for name in m.names & m.reads} - targets
    states -= {name for m in made for name in m.names - m.reads}  # what each round makes anew
    if not states:
        return False
    own = frozenset(name for m in made for name in m.names)
    inside = [n for s in loop.body for n in ast.walk(s)]
    if any(isinstance(n, ast.Call) and _selects(n, targets, own) for n in inside):
        return False
    states -= {name for n in inside if isinstance(n, ast.Compare) for name in _ordered(n)}
    return any(_is_refined(name, made) for name in sorted(states))


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
