"""FUS261 unfused-activation: an activation written out that mlx.nn has as one compiled function.

What it does: finds GELU with erf, with tanh and with a sigmoid, SiLU, softplus, mish, softsign, squared ReLU, sigmoid
and log-sigmoid in any spelling, constants compared relatively.

Why: written out, each operation is a kernel of its own: eight for GELU with tanh. The functions of mlx.nn are compiled
to one or two.

When not to: the three kinds of GELU differ by up to 2e-2 and are never exchanged. `where(x > 0, x, 0)` isn't ReLU for
NaN. A number of that form, not an array.

Fix safety: safe where the constants are those of mlx.nn to seven digits. Unsafe where they were rounded more, where
the code divides by `1 + exp(-x)` for SiLU (float16 is a little more exact so), and where the dtype changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuselint.finding import Numerics, Obligation
from fuselint.graph.canonical import Canonical
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import EXPONENTIALS, TABLE
from fuselint.graph.values import ONE, Value, alike
from fuselint.rulebook import Example, FusedKernel, Match

CODE, NAME = "FUS261", "unfused-activation"
ONE_VALUE = True
NUMBERS = (math.sqrt(2), math.sqrt(0.5), math.sqrt(2 / math.pi), 0.044715, 1.702, 0.5)

BARE = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
HEAD = "import math\n\n" + BARE

EXACT, ROUNDED = 6e-8, 2e-4
"""How far a constant may be from mlx.nn's, relatively: not visible in float32, and not in bfloat16."""


def unfused(x: Any) -> Any:
    import mlx.core as mx

    return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))


def fused(x: Any) -> Any:
    import mlx.nn as nn

    return nn.gelu(x)


Form = Callable[[Canonical, Value], Value]


@dataclass(frozen=True, slots=True)
class Kind:
    """An activation: the call that computes it, its canonical form, and where in a value its argument is found.

    inside: the operation that shows it, and the factor between that operation's argument and the activation's.
    """

    call: str
    text: str
    form: Form
    inside: str
    factor: float
    numerics: Numerics = "reassociated"


def _gated(op: str, scale: float) -> Form:
    """u * op(scale * u)."""
    return lambda c, u: c.algebra.multiply(u, c.algebra.atom(op, (c.algebra.scale(u, scale),), nonnegative=True))


def _gelu(c: Canonical, u: Value) -> Value:
    e = c.algebra.atom("erf", (c.algebra.scale(u, math.sqrt(0.5)),))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(e, 1.0)]), ONE)])


def _gelu_tanh(c: Canonical, u: Value) -> Value:
    inner = c.algebra.sum(0.0, [(u, 1.0), (c.algebra.multiply(u, u, u), 0.044715)])
    t = c.algebra.atom("tanh", (c.algebra.scale(inner, math.sqrt(2 / math.pi)),))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(t, 1.0)]), ONE)])


def _softplus(c: Canonical, u: Value) -> Value:
    return c.algebra.softplus(u)


def _log_sigmoid(c: Canonical, u: Value) -> Value:
    return c.algebra.scale(c.algebra.softplus(c.algebra.scale(u, -1.0)), -1.0)


def _mish(c: Canonical, u: Value) -> Value:
    return c.algebra.multiply(u, c.algebra.atom("tanh", (c.algebra.softplus(u),), nonnegative=True))


def _relu_squared(c: Canonical, u: Value) -> Value:
    args = sorted((u, c.algebra.zero), key=lambda v: (*v.order, v.id))
    return c.algebra.product(1.0, [(c.algebra.atom("maximum", args, nonnegative=True), 2 * ONE)])


def _softsign(c: Canonical, u: Value) -> Value:
    return c.algebra.divide(u, c.algebra.sum(1.0, [(c.algebra.absolute(u), 1.0)]))


KINDS = (
    Kind("{nn}.gelu({x})", "GELU", _gelu, "erf", math.sqrt(0.5)),
    Kind("{nn}.gelu_approx({x})", "GELU with tanh", _gelu_tanh, "tanh", math.sqrt(2 / math.pi)),
    Kind("{nn}.gelu_fast_approx({x})", "GELU with a sigmoid", _gated("sigmoid", 1.702), "sigmoid", 1.702),
    Kind("{nn}.silu({x})", "SiLU", _gated("sigmoid", 1.0), "sigmoid", 1.0),
    Kind("{mx}.sigmoid({x})", "sigmoid", lambda c, u: c.algebra.sigmoid(u), "sigmoid", 1.0, "more accurate"),
    Kind("{nn}.mish({x})", "mish", _mish, "logaddexp", 1.0, "more accurate"),
    Kind("{nn}.log_sigmoid({x})", "the logarithm of a sigmoid", _log_sigmoid, "logaddexp", -1.0, "more accurate"),
    Kind("{nn}.softplus({x})", "softplus", _softplus, "logaddexp", 1.0, "more accurate"),
    Kind("{nn}.relu2({x})", "squared ReLU", _relu_squared, "maximum", 1.0),
    Kind("{nn}.softsign({x})", "softsign", _softsign, "abs", 1.0),
)


def nearly(graph: Graph) -> Iterator[Node]:
    for n in graph.nodes:
        readers = READ_BY.get(n.op, ())
        if any(u.op in readers for u in graph.users.get(n, ())):
            yield n


READ_BY = {"sigmoid": ("multiply",), "erf": ("add", "subtract"), "tanh": ("add", "subtract"), "exp": ("add",)}
"""What reads the operation that shows an activation."""


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold or graph.context.compiled or graph.ops.isdisjoint(SHOWING):
        return
    for node in graph.nodes:
        if node.op in ARITHMETIC and graph.facts.kind(node) == "array":
            match = _match(graph, node)
            if match is not None:
                yield match


_SHOWING = re.compile("erf|tanh|log|max|min|elu|mish|soft|abs|sqrt|square|power|clip|where")
SHOWING = EXPONENTIALS | frozenset(n for n in TABLE if _SHOWING.search(n.lower()))
"""Operations of which one is in every activation."""

ARITHMETIC = frozenset("multiply divide reciprocal power square log log1p negative".split())
"""What the last operation of a written-out activation is: the functions themselves are not reported."""


def _match(graph: Graph, root: Node) -> Match | None:
    c, value = graph.canonical, graph.canonical.of(root)
    for kind in KINDS:
        for u in _arguments(value, kind, c):
            form = kind.form(c, u)
            if not alike(value, form, ROUNDED):
                continue
            x = graph.canonical.last_in(root, u)
            if x is not None:
                return _made(graph, root, x, kind, alike(value, form, EXACT))
    return None


def _arguments(value: Value, kind: Kind, c: Canonical) -> Iterator[Value]:
    """What the activation may be of: read off the operation that shows it."""
    pending, seen = [value], set[Value]()
    while pending:
        v = pending.pop()
        if v in seen:  # values are shared: without this, deep sums of products take exponential time
            continue
        seen.add(v)
        if v.op == kind.inside:
            for w in v.args:
                if not w.is_number(0.0):
                    yield from _scaled_back(w, kind.factor, c)
        elif v.op == "product":
            pending += [b for b, _ in v.factors]
        elif v.op == "tanh":
            pending.append(v.args[0])
        elif v.op == "sum":
            pending += [m for m, _ in v.terms]


def _scaled_back(w: Value, factor: float, c: Canonical) -> Iterator[Value]:
    """u of factor * u, and of factor * (u + k * u^3) = factor * u * (1 + k * u^2)."""
    near = round(w.coefficient / factor, 3) == 1 if factor != 1.0 else w.coefficient != 0
    if w.op == "product" and any(b.op == "sum" for b, _ in w.factors):
        yield c.algebra.product(1.0, [(b, e) for b, e in w.factors if b.op != "sum"])
    if near and factor != 1.0:
        yield c.algebra.product(1.0, w.factors)
    else:
        yield c.algebra.scale(w, 1 / factor)


def _made(graph: Graph, root: Node, x: Node, kind: Kind, exact: bool) -> Match | None:
    facts = graph.facts
    inside = region(root, [x])
    own = set(inside)
    steps = [n for n in inside if facts.kind(n) == "array"]
    if len(steps) < 2 or any(
        n is not root and (n in graph.escaping or any(u not in own for u in graph.users.get(n, ()))) for n in steps
    ):
        return None
    same = facts.dtype(root) == facts.dtype(x)
    divided = any(n.op == "exp" for n in steps)
    numerics: Numerics = "less accurate" if divided and "silu" in kind.call else kind.numerics
    constants = "they are mlx.nn's to seven digits" if exact else "they are rounded further than mlx.nn's"
    obligations = [
        Obligation("the constants are the activation's", "proven" if exact else "unknown", constants),
        Obligation(
            "the result keeps its dtype",
            "proven" if same else "unknown",
            f"{facts.dtype(x)} in, {facts.dtype(root)} out",
        ),
    ]
    return Match(
        code=CODE,
        root=root,
        holes={"x": x},
        message=f"{kind.text} written out",
        obligations=obligations,
        region=frozenset(inside),
        fused=(FusedKernel(kind.call.split("(")[0].replace("{", "").replace("}", ""), (x,), root),),
        shapes={"x": ("...", "D")},
        numerics=numerics if same else "different dtype",
        data={"call": kind.call},
    )


EXAMPLES = [
    Example(
        HEAD + "def act(x: mx.array):\n    return 0.5 * x * (1 + mx.erf(x / math.sqrt(2)))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.gelu(x)\n",
    ),
    Example(
        HEAD + "def act(x: mx.array):\n"
        "    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)\n"
        "    return 0.5 * x * (1 + mx.tanh(inner))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.gelu_approx(x)\n",
    ),
    Example(
        HEAD + "def act(x: mx.array):\n    return x * mx.sigmoid(1.702 * x)\n",
        fixed=HEAD + "def act(x: mx.array):\n    return nn.gelu_fast_approx(x)\n",
    ),
    Example(
        HEAD + "def act(x: mx.array):\n    return x * mx.sigmoid(x)\n",
        fixed=HEAD + "def act(x: mx.array):\n    return nn.silu(x)\n",
    ),
    Example(
        HEAD + "def gate(x: mx.array):\n    return 1 / (1 + mx.exp(-x))\n",
        fixed=HEAD + "def gate(x: mx.array):\n    return mx.sigmoid(x)\n",
    ),
    Example(
        BARE + "def act(x: mx.array):\n    return mx.log(1 + mx.exp(x))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.softplus(x)\n",
    ),
    Example(
        BARE + "def act(x: mx.array):\n    return -mx.log1p(mx.exp(-x))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.log_sigmoid(x)\n",
    ),
    Example(
        BARE + "def act(x: mx.array):\n    return x * mx.tanh(mx.log(1 + mx.exp(x)))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.mish(x)\n",
    ),
    Example(
        BARE + "def act(x: mx.array):\n    return mx.maximum(x, 0) ** 2\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.relu2(x)\n",
    ),
    Example(
        BARE + "def act(x: mx.array):\n    return x / (1 + mx.abs(x))\n",
        fixed=BARE + "def act(x: mx.array):\n    return nn.softsign(x)\n",
    ),
]

COUNTEREXAMPLES = [
    Example(HEAD + "def f(x: mx.array):\n    return 0.5 * x * (1 + mx.erf(x / 1.5))\n", why="another divisor"),
    Example(HEAD + "def f(x: mx.array):\n    return 0.5 * x * (1 - mx.erf(x / math.sqrt(2)))\n", why="minus"),
    Example(
        HEAD + "def f(x: mx.array):\n    return 0.5 * x * (1 + mx.tanh(0.79788456 * (x + 0.04 * x**3)))\n",
        why="another cubic term",
    ),
    Example(HEAD + "def f(x: mx.array):\n    return nn.gelu(x)\n", why="it is the function already"),
    Example(HEAD + "def f(x: mx.array, y: mx.array):\n    return x * mx.sigmoid(y)\n", why="a gate of another value"),
    Example(HEAD + "def f(x: mx.array):\n    return mx.log(2 + mx.exp(x))\n", why="not one plus the exponential"),
    Example(HEAD + "def f(x: mx.array):\n    return mx.maximum(x, 0) ** 3\n", why="a cube"),
    Example(HEAD + "def f(x: mx.array):\n    return x * (x > 0) * x\n", why="-inf makes NaN there"),
    Example(HEAD + "def f(x: mx.array, y: mx.array):\n    return x / (1 + mx.abs(y))\n", why="another value"),
]
