"""Small changes of a function's source: of an operation, a constant, an axis, an operand, a cast, a statement."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

UNARY = tuple(f"mx.{n}" for n in "abs square sqrt rsqrt exp log tanh erf sigmoid reciprocal negative sin cos".split())
REDUCE = ("mean", "sum", "max", "min", "var", "logsumexp")
SAME_ARGUMENTS = (
    UNARY,
    tuple(n.removeprefix("mx.") for n in UNARY if n not in ("mx.tanh", "mx.erf", "mx.sigmoid", "mx.negative")),
    ("nn.silu", "nn.gelu", "nn.gelu_approx", "nn.relu", "nn.softplus", "mx.sigmoid"),
    tuple(f"mx.{n}" for n in REDUCE),
    REDUCE,
    ("mx.softmax", "nn.log_softmax", "mx.cumsum"),
    ("mx.add", "mx.multiply", "mx.subtract", "mx.divide", "mx.maximum", "mx.minimum", "mx.power", "mx.matmul"),
    ("mx.concatenate", "mx.stack"),
    ("mx.repeat", "mx.tile"),
    ("mx.argmax", "mx.argmin"),
    ("mx.triu", "mx.tril"),
    ("math.sqrt", "math.log", "abs", "float"),
)
"""Functions and methods of which each may be called as the others are."""
OTHERS = {name: tuple(n for n in group if n != name) for group in SAME_ARGUMENTS for name in group}

BINARY = (ast.Add, ast.Sub, ast.Mult, ast.Div)
COMPARE = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
INTS = (0, 1, 2, 3, -1, -2, 4)
FLOATS = (0.0, 1.0, 2.0, 0.5, -1.0, 1.5, 1e-3, 1e-6)


@dataclass(slots=True)
class Mutator:
    """Changes a tree in place. names: what the function at hand may read."""

    r: random.Random
    names: list[str] = field(default_factory=list)

    def change(self, function: ast.FunctionDef) -> None:
        """One change somewhere in a function's body."""
        self.names = sorted(_names(function))
        places = [(holder, name, i) for holder, name, i, _ in _slots(function)]
        self.r.shuffle(places)
        for holder, name, i in places:
            old = getattr(holder, name)[i] if i is not None else getattr(holder, name)
            new = self.changed(old)
            if new is not None:
                if i is None:
                    setattr(holder, name, new)
                else:
                    getattr(holder, name)[i : i + 1] = new if isinstance(new, list) else [new]
                return

    def changed(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
        for kind, change in CHANGES.items():
            if isinstance(node, kind):
                return change(self, node)
        return None

    # -- statements ----------------------------------------------------------------------------------------------------

    def statement(self, node: ast.stmt) -> ast.AST | list[ast.stmt] | None:
        if self.r.random() > 0.15:  # else most changes would be of these
            return None
        if isinstance(node, ast.Return):
            if node.value is None or not self.names or self.r.random() < 0.5:
                return None
            also = ast.Name(self.r.choice(self.names), ast.Load())
            return ast.Return(ast.Tuple([node.value, also], ast.Load()))
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name):
                name = value.left.id
                rebinds = isinstance(target, ast.Name) and target.id == name
                if not rebinds and self.r.random() < 0.9:
                    return None
                return [
                    ast.AugAssign(ast.Name(name, ast.Store()), value.op, value.right),
                    ast.Assign(node.targets, ast.Name(name, ast.Load()), lineno=0),
                ]
            return self.r.choice(([node, _copy(node)], [ast.Pass()]))
        return None

    # -- expressions ---------------------------------------------------------------------------------------------------

    def operation(self, node: ast.BinOp) -> ast.AST:
        kind = self.r.random()
        if kind < 0.4:
            if isinstance(node.op, ast.MatMult):
                return ast.BinOp(node.right, node.op, node.left)
            return ast.BinOp(node.left, self.r.choice(BINARY)(), node.right)
        if kind < 0.55:
            return ast.BinOp(node.right, node.op, node.left)
        if kind < 0.7:
            return self.r.choice((node.left, node.right))
        if kind < 0.8:
            return ast.BinOp(node.left, node.op, self.wrapped(node.right))
        return ast.BinOp(node, self.r.choice(BINARY)(), ast.Constant(self.r.choice((*INTS, *FLOATS))))

    def wrapped(self, node: ast.expr) -> ast.expr:
        return ast.Call(_parsed(self.r.choice(UNARY)), [node], [])

    def constant(self, node: ast.Constant) -> ast.AST | None:
        v = node.value
        if isinstance(v, bool):
            return ast.Constant(not v)
        if isinstance(v, int):
            return ast.Constant(self.r.choice((*INTS, v + 1, v - 1, -v)))
        if isinstance(v, float):
            near = (v * 2, v / 2, -v, v * 1.01, v * (1 + 1e-5), v + 1, v * v, *FLOATS)
            return ast.Constant(self.r.choice(near))
        if isinstance(v, str) and len(v) > 3 and "->" in v:
            a, b = self.r.sample(sorted({c for c in v if c.isalpha()}), 2)
            at = self.r.choice([i for i, c in enumerate(v) if c == a])
            return ast.Constant(v[:at] + b + v[at + 1 :])
        return None

    def name(self, node: ast.Name) -> ast.AST | None:
        if not isinstance(node.ctx, ast.Load) or node.id not in self.names:
            return None
        kind = self.r.random()
        if kind < 0.6:
            return ast.Name(self.r.choice(self.names), ast.Load())
        return self.cast(node) if kind < 0.8 else ast.UnaryOp(ast.USub(), node)

    def cast(self, node: ast.expr) -> ast.AST:
        to = self.r.choice(("mx.float32", "mx.float32", "mx.float16", "mx.int32", f"{self.r.choice(self.names)}.dtype"))
        return ast.Call(ast.Attribute(node, "astype", ast.Load()), [_parsed(to)], [])

    def call(self, node: ast.Call) -> ast.AST | None:
        called = ast.unparse(node.func)
        method = isinstance(node.func, ast.Attribute) and called.split(".")[0] not in ("mx", "nn", "math", "super()")
        short = node.func.attr if isinstance(node.func, ast.Attribute) else called
        kind = self.r.random()
        if method and short in ("astype", "swapaxes", "transpose", "reshape", "flatten", "squeeze") and kind < 0.4:
            assert isinstance(node.func, ast.Attribute)
            return node.func.value
        others = OTHERS.get(called) or (OTHERS.get(short) if method else None)
        if others and kind < 0.7:
            other = self.r.choice(others)
            if not method:
                return ast.Call(_parsed(other), node.args, node.keywords)
            if "." not in other:
                assert isinstance(node.func, ast.Attribute)
                return ast.Call(ast.Attribute(node.func.value, other, ast.Load()), node.args, node.keywords)
        if node.keywords and kind < 0.85:
            keep = list(node.keywords)
            keep.pop(self.r.randrange(len(keep)))
            return ast.Call(node.func, node.args, keep)
        if len(node.args) > 1:
            args = list(node.args)
            i, j = self.r.sample(range(len(args)), 2)
            args[i], args[j] = args[j], args[i]
            return ast.Call(node.func, args, node.keywords)
        return self.cast(node) if self.names else None

    def subscript(self, node: ast.Subscript) -> ast.AST | None:
        if not isinstance(node.ctx, ast.Load):
            return None
        index = node.slice
        if isinstance(index, ast.Tuple) and len(index.elts) > 1 and self.r.random() < 0.6:
            parts = list(index.elts)
            i, j = self.r.sample(range(len(parts)), 2)
            parts[i], parts[j] = parts[j], parts[i]
            return ast.Subscript(node.value, ast.Tuple(parts, ast.Load()), ast.Load())
        return node.value

    def sequence(self, node: ast.Tuple | ast.List) -> ast.AST | None:
        if not isinstance(node.ctx, ast.Load) or len(node.elts) < 2:
            return None
        parts = list(node.elts)
        i, j = self.r.sample(range(len(parts)), 2)
        parts[i], parts[j] = parts[j], parts[i]
        return type(node)(parts, ast.Load())

    def compare(self, node: ast.Compare) -> ast.AST | None:
        if not isinstance(node.ops[0], COMPARE):
            return None
        return ast.Compare(node.left, [self.r.choice(COMPARE)()], node.comparators)

    def negation(self, node: ast.UnaryOp) -> ast.AST | None:
        return node.operand if isinstance(node.op, ast.USub) and self.r.random() < 0.5 else None

    def attribute(self, node: ast.Attribute) -> ast.AST | None:
        if node.attr == "T":
            return node.value
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in ("weight", "bias"):
            return ast.Attribute(node.value, "bias" if node.attr == "weight" else "weight", ast.Load())
        return None


CHANGES: dict[type[ast.AST], Callable[..., ast.AST | list[ast.stmt] | None]] = {
    ast.stmt: Mutator.statement,
    ast.BinOp: Mutator.operation,
    ast.Constant: Mutator.constant,
    ast.Name: Mutator.name,
    ast.Call: Mutator.call,
    ast.Subscript: Mutator.subscript,
    ast.Tuple: Mutator.sequence,
    ast.List: Mutator.sequence,
    ast.Compare: Mutator.compare,
    ast.UnaryOp: Mutator.negation,
    ast.Attribute: Mutator.attribute,
}


def mutate(source: str, r: random.Random, times: int | None = None) -> str:
    """The source with one to three changes, in its functions; the text is laid out anew."""
    tree = ast.parse(source)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name != "__init__"]
    for _ in range(r.choice((1, 1, 1, 2, 2, 3)) if times is None else times):
        Mutator(r).change(r.choice(functions))
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _slots(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Each place of a function's body that holds a node: the node above, the field, the position in a list."""
    stack: list[ast.AST] = []
    for i, statement in enumerate(function.body):
        yield function, "body", i, statement
        stack.append(statement)
    while stack:
        node = stack.pop()
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                yield node, name, None, value
                stack.append(value)
            elif isinstance(value, list):
                for i, item in enumerate(value):
                    if isinstance(item, ast.AST):
                        yield node, name, i, item
                        stack.append(item)


def _names(function: ast.FunctionDef) -> set[str]:
    """The parameters and local variables, without self."""
    bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return (bound | {a.arg for a in function.args.args}) - {"self"}


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _copy(node: ast.stmt) -> ast.stmt:
    return ast.parse(ast.unparse(node)).body[0]
