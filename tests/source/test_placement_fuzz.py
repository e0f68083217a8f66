"""Random functions: a part of each is moved into a helper by placement, and the function then does what it did.

The root is any value of the function, the holes any cut below it, the template a call of a helper that computes the
same from the holes. So whatever is placed must leave all results, and all arrays that were given, as they were.
"""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest
from source.placing import program_of

from fuselint.graph.model import Graph, Node, operands, region
from fuselint.rulebook import HoistedHelper, Match, NoFix, Part, Replacement
from fuselint.source.edit import Placement, apply, place
from fuselint.source.formula import Formula, NoText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


class Array:
    """A number that behaves as an mx.array does: `+=` changes the object."""

    def __init__(self, value: float) -> None:
        self.value = value

    def _other(self, other: Any) -> float:
        return other.value if isinstance(other, Array) else float(other)

    def __add__(self, o: Any) -> Array:
        return Array(self.value + self._other(o))

    def __sub__(self, o: Any) -> Array:
        return Array(self.value - self._other(o))

    def __mul__(self, o: Any) -> Array:
        return Array(self.value * self._other(o) % 1000003)

    def __iadd__(self, o: Any) -> Array:
        self.value += self._other(o)
        return self

    def __imul__(self, o: Any) -> Array:
        self.value = self.value * self._other(o) % 1000003
        return self

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, o: Any) -> Array:
        return Array(self._other(o) - self.value)

    def astype(self, _: Any) -> Array:
        return Array(self.value)


class FakeMlx:
    """`mx.exp` and its kind as cheap functions that don't commute."""

    float32 = "float32"
    array = Array

    def __init__(self) -> None:
        self.log: list[Any] = []

    @staticmethod
    def compile(f: Any) -> Any:
        return f

    @staticmethod
    def exp(a: Array) -> Array:
        return Array((a.value * 3 + 1) % 1000003)

    @staticmethod
    def abs(a: Array) -> Array:
        return Array((a.value * 5 + 2) % 1000003)

    @staticmethod
    def maximum(a: Array, b: Array) -> Array:
        return Array((a.value * 7 + b.value) % 1000003)


class Writer:
    """Writes one random function."""

    NAMES = ("a", "b", "c", "d")

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 1
        self.calls = 0

    def name(self) -> str:
        return self.r.choice(self.NAMES)

    def expr(self, deep: int = 2) -> str:
        r = self.r.random()
        if deep == 0 or r < 0.3:
            return self.name()
        if r < 0.5:
            return f"{self.expr(deep - 1)} {self.r.choice('+-*')} {self.term(deep - 1)}"
        if r < 0.6:
            return f"mx.{self.r.choice(('exp', 'abs'))}({self.expr(deep - 1)})"
        if r < 0.7:
            return f"mx.maximum({self.expr(deep - 1)}, {self.expr(deep - 1)})"
        if r < 0.76:
            return f"({self.expr(deep - 1)}) * {self.r.choice(('2', 's', 's'))}"
        if r < 0.82:
            return f"call({self.expr(deep - 1)})"
        if r < 0.86:
            return f"({self.expr(deep - 1)} if flag else {self.expr(deep - 1)})"
        if r < 0.89:
            return f"({self.name()} := {self.expr(deep - 1)})"
        if r < 0.92:
            return f"double({self.expr(deep - 1)})"
        return f"{self.term(deep - 1)}.astype(mx.float32)"

    def term(self, deep: int) -> str:
        text = self.expr(deep)
        return text if text.isidentifier() else f"({text})"

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def statement(self, deep: int = 2) -> None:
        r = self.r.random()
        if self.r.random() < 0.1:
            self.add(f"# note {len(self.lines)}")
        if r < 0.5:
            self.add(f"{self.name()} = {self.expr()}" + ("  # why" if self.r.random() < 0.1 else ""))
        elif r < 0.6:
            self.add(f"{self.name()} {self.r.choice(('+=', '*='))} {self.expr(1)}")
        elif r < 0.66:
            x, y = self.r.sample(self.NAMES, 2)
            self.add(f"{x}, {y} = {self.expr(1)}, {self.expr(1)}")
        elif r < 0.7:
            self.add(f"{self.name()} = {self.name()}; {self.name()} = {self.expr(1)}")
        elif r < 0.73:
            self.add(f"call({self.expr(1)})")
        elif r < 0.75:
            self.add(f"keep(lambda: {self.name()})")
        elif r < 0.78:
            self.add(f"if flag: return {self.name()}, {self.name()}")
        elif deep and r < 0.9:
            self.add(f"if {self.r.choice(('flag', 'other', 'flag and other'))}:")
            self.suite(deep - 1)
            if self.r.random() < 0.5:
                self.add("else:")
                self.suite(deep - 1)
        elif deep and r < 0.94:
            self.add(self.r.choice(("for i in range(2):", "for a in (b, c):", "while more():")))
            self.suite(deep - 1)
            if self.r.random() < 0.3:
                self.lines.append("    " * (self.depth + 1) + self.r.choice(("if flag: break", "if other: continue")))
                self.lines.append("    " * (self.depth + 1) + f"{self.name()} = {self.expr(1)}")
        elif deep and r < 0.96:
            self.add(f"def inner(x{self.r.choice(('', f', y={self.name()}'))}):")
            self.lines.append("    " * (self.depth + 1) + f"return x * {self.name()}")
            self.add(f"{self.name()} = inner({self.expr(1)})")
        elif deep and r < 0.98:
            self.add("try:")
            self.suite(deep - 1)
            self.add(self.r.choice(("except ValueError:", "finally:")))
            self.suite(deep - 1)
        else:
            self.add(f"{self.name()} = {self.expr(3)}")

    def suite(self, deep: int) -> None:
        self.depth += 1
        for _ in range(self.r.randint(1, 3)):
            self.statement(deep)
        self.depth -= 1

    def text(self) -> str:
        for _ in range(self.r.randint(3, 8)):
            self.statement()
        self.add(f"return {self.expr()}, {self.name()}")
        helper = "def double(x: mx.array):\n    y = x + x\n    return y\n\n\n"
        kinds = ", ".join(f"{n}: mx.array" for n in self.NAMES)
        return HEAD + helper + f"def f({kinds}, s: float, flag, other):\n" + "\n".join(self.lines) + "\n"


def cut(graph: Graph, root: Node, r: random.Random) -> list[Node] | None:
    """Some values below the root that it can be computed from."""
    holes: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [root]
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        plain = n.op in ("add", "subtract", "multiply", "exp", "abs", "maximum", "astype")
        if n is not root and n.op != "const" and (not plain or r.random() < 0.35):
            holes[n] = None
        elif plain:
            stack.extend(operands(n))
        elif n.op != "const":
            return None
    return sorted(holes, key=lambda n: n.id)


def moved(text: str, seed: int) -> tuple[str, Placement] | NoFix | None:
    """The text with a random part of `f` moved into a helper."""
    r = random.Random(seed)
    program = program_of(text)
    graph = program.graph("f")
    if graph is None or graph.not_understood:
        return None
    if seed % 5 == 0:
        return dropped(text, graph, r)
    roots = [n for n in graph.nodes if n.op in ("add", "subtract", "multiply", "exp", "abs", "maximum", "astype")]
    r.shuffle(roots)
    for root in roots[:4]:
        holes = cut(graph, root, r)
        if not holes or root in holes:
            continue
        inside = [n for n in region(root, holes) if n.op != "const"]
        names = {n: f"p{i}" for i, n in enumerate(holes)}
        try:
            body = Formula(graph, inside, names)
        except NoText:
            continue
        params, more = tuple(names.values()), ()
        if seed % 5 == 1:  # one operand is read twice
            params, more = (*params, "again"), (params[r.randrange(len(params))],)
        helper = HoistedHelper("helped", params, body.body, statements=tuple(body.statements))
        given = {names[n]: n for n in holes}
        call = ", ".join(f"{{{n}}}" for n in (*given, *more))
        match = Match("FUS000", root, dict(given), "", [], frozenset(inside))
        done = place(
            graph, match, Replacement((Part(root, f"{{helper}}({call})"),), dict(given), helper=helper), program
        )
        if isinstance(done, NoFix):
            return done
        return apply(text, done.edits), done
    return None


def dropped(text: str, graph: Graph, r: random.Random) -> tuple[str, Placement] | NoFix | None:
    """The text with a cast replaced by what it casts. Here a cast copies: its result must not become its operand
    where one of them is changed in place later."""
    casts = [n for n in graph.nodes if n.op == "astype" and n.frame.depth == 0]
    if not casts or graph.program is None:
        return None
    root = r.choice(casts)
    given: dict[str, Any] = {"x": root.inputs[0]}
    match = Match("FUS000", root, given, "", [], frozenset({root}))
    done = place(graph, match, Replacement((Part(root, "{x}"),), given), graph.program)
    return done if isinstance(done, NoFix) else (apply(text, done.edits), done)


def behaviour(text: str, values: tuple[float, ...], s: float, flag: bool, other: bool) -> Any:
    """What `f` returns, what becomes of its arguments, and what it does besides."""
    log: list[Any] = []
    kept: list[Any] = []

    def call(x: Any) -> Array:
        log.append(x.value if isinstance(x, Array) else x)
        if log[-1] % 7 == 3:
            raise ValueError
        return Array((log[-1] * 11 + len(log)) % 1000003)

    turns = iter([True, True, False] * 9)

    def more() -> bool:
        return next(turns, False)

    space: dict[str, Any] = {"call": call, "more": more, "keep": kept.append}
    code = text.replace("import mlx.core as mx\nimport mlx.nn as nn\n", "")
    fake = FakeMlx()
    space["mx"] = fake
    exec(compile(code, "f", "exec"), space)
    arrays = [Array(v) for v in values]
    try:
        out = space["f"](*arrays, s, flag, other)
        result = [x.value if isinstance(x, Array) else x for x in out]
    except Exception as e:
        result = [type(e).__name__]
    later = [f() for f in kept]
    return result, [a.value for a in arrays], log, [x.value if isinstance(x, Array) else x for x in later]


def check(seed: int) -> str:
    """What became of one random function: "placed", why not, or "" where there was nothing to place."""
    text = Writer(seed).text()
    try:
        ast.parse(text)
    except SyntaxError:
        return ""
    done = moved(text, seed)
    if done is None:
        return ""
    if isinstance(done, NoFix):
        return done.reason
    new_text, _ = done
    for values, s in (((2.0, 3.0, 5.0, 7.0), 4.0), ((11.0, 13.0, 17.0, 19.0), -3.0)):
        for flag in (True, False):
            for other in (True, False):
                before = behaviour(text, values, s, flag, other)
                after = behaviour(new_text, values, s, flag, other)
                if "UnboundLocalError" in before[0] or "NameError" in before[0]:
                    continue
                assert after == before, f"seed {seed}\n{text}\n---\n{new_text}"
    return "placed"


@pytest.mark.parametrize("start", range(0, 120, 40))
def test_random_functions_do_what_they_did(start: int) -> None:
    outcomes = [check(seed) for seed in range(start, start + 40)]
    assert outcomes.count("placed") > 20
