"""FUS105 promoting-operand: a float32 array constant that turns a half-precision activation into float32.

What it does: finds activations that meet an array which is float32 only because nobody said otherwise:
`x * mx.array(0.5)`, `x / mx.sqrt(2.0)`, `scores + mx.where(keep, 0.0, -math.inf)` (two Python numbers make float32),
`mx.where(keep, x, mx.array(0.0))`, `mx.concatenate([x, mx.zeros(shape)])`.

Why: a Python number takes the dtype of the array it meets, and an array of its own does not. From there on every
value is float32: twice the bytes for each operation, and a matmul that casts its weight at every call.

Traffic: x * 0.5 moves 4 bytes an element (half precision), x * mx.array(0.5) 14, and the matmul after it 3.5 times as
much as before.

When not to: where float32 is meant. A value that is cast to float32 in the function, or cast back, is not reported, nor
is one that isn't known to be an activation of the network. Integer arrays don't promote.

Fix safety: unsafe, always: the dtype of the result changes. Where activations are float32 nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.dtypes import HALF, DType
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import TABLE
from fuselint.graph.origins import Origins
from fuselint.rulebook import Example, Hole, Match, Probe

CODE, NAME = "FUS105", "promoting-operand"

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

FLOAT32 = DType({"float32"})

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "logaddexp"})
MADE = frozenset({"array", "zeros", "ones", "full", "eye", "identity", "tri", "linspace", "arange"})
QUIET = frozenset({"astype", "argmax", "argmin", "argsort", "argpartition", "shape", "dim", "dtype", "ndim", "size"})
"""Readers for which the dtype of their operand does not matter, or which set it."""

PASSES_ON = frozenset({"unary", "binary", "ternary", "composite", "activation", "reduce", "rowwise", "view", "copy"})

HALF_MAXIMUM = 65504.0

VALUES = Probe("result = mx.stop_gradient(result)")
"""The values are compared. The gradient by a constant, which nobody takes, is rounded by the cast."""


def unfused(x: Any) -> Any:
    import mlx.core as mx

    return x * mx.array(0.5)


def fused(x: Any) -> Any:
    return x * 0.5


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    origins: Origins | None = None
    for node in graph.nodes:
        if node.frame.depth or node.op not in (*ARITHMETIC, "where", "concatenate"):
            continue
        for x, promoting in _pairs(graph, node):
            origins = origins or Origins(graph)
            match = _match(graph, origins, node, x, promoting)
            if match is not None:
                yield match
                break


def _pairs(graph: Graph, node: Node) -> Iterator[tuple[Node, Node]]:
    """Operands of which one has a dtype that is half precision or may be, and the other is float32 by default."""
    if node.op == "concatenate":
        operands = node.inputs
    else:
        operands = node.inputs[1:] if node.op == "where" else node.inputs
    for x in operands:
        dtype = graph.facts.dtype(x)
        narrow = dtype.name in HALF or (bool(dtype) and dtype.symbols == dtype)
        if not narrow or graph.facts.kind(x) != "array":
            continue
        for other in operands:
            if other is not x and graph.facts.kind(other) == "array" and graph.facts.dtype(other) == FLOAT32:
                yield x, other


def _match(graph: Graph, origins: Origins, root: Node, x: Node, promoting: Node) -> Match | None:
    source = _by_default(graph, promoting)
    if source is None or not _matters(graph, root):
        return None
    half = graph.facts.dtype(x).name in HALF
    claim = "the activation is half precision"
    if half:
        evidence = Obligation(claim, "proven", graph.facts.why(x))
    elif _is_of_the_network(graph, origins, x):
        evidence = Obligation(claim, "unknown", "nothing in this file says the dtype of the weights")
    else:
        return None
    obligations = [evidence, Obligation("the operand is float32 by default", "proven", graph.facts.why(source))]
    text = _shown(source)
    if half:
        message = f"`{text}` is float32, and makes a half-precision activation float32"
    else:
        message = f"possible: where the activation is half precision, `{text}` makes it float32"
    holes, data = _rewrite(graph, root, x, promoting)
    if _is_beyond_half(graph, source):
        obligations.append(
            Obligation("its numbers fit the dtype of the activation", "unknown", "float16 ends at 65504")
        )
    inside = frozenset(region(root, [n for n in holes.values() if isinstance(n, Node)]))
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=message,
        obligations=obligations,
        region=inside,
        shapes=_shapes(graph, holes),
        dtypes={"o": "float32"},
        numerics="different dtype",
        probe=VALUES if half and holes.get("o") is promoting else None,
        related=[] if source is promoting else [(source, "float32 from here")],
        data=data,
        has_traffic=False,
    )


def _shapes(graph: Graph, holes: dict[str, Hole]) -> dict[str, tuple[str, ...]]:
    other = holes.get("o")
    shapes: dict[str, tuple[str, ...]] = {"x": ("...", "D")}
    if isinstance(other, Node):
        shapes["o"] = () if graph.facts.rank(other) == 0 else ("D",)
    if "c" in holes and isinstance(holes["c"], Node) and graph.facts.kind(holes["c"]) == "array":
        shapes["c"] = ("...", "D")
    return shapes


def _by_default(graph: Graph, node: Node) -> Node | None:
    """Where a float32 array comes from whose dtype nobody stated; None where it was stated, or isn't known."""
    facts = graph.facts
    for _ in range(8):
        op = TABLE.get(node.op)
        if op is None:
            return None
        numbers = all(facts.kind(n) == "scalar" for n in node.inputs)
        if node.op in MADE:
            values = node.inputs[0] if node.op == "array" and node.inputs else None
            plain = values is None or facts.kind(values) == "scalar" or _is_literal(graph, values)
            return node if node.attrs.get("dtype") is None and plain else None
        if op.kind == "unary" and node.inputs and numbers and "Call" in type(node.cst).__name__:
            return node
        if node.op == "where" and all(facts.kind(n) == "scalar" for n in node.inputs[1:]):
            return node
        floating = [n for n in node.inputs if facts.kind(n) == "array" and not facts.dtype(n).integral]
        keeps = op.kind in ("unary", "binary", "view", "copy") or node.op in ("triu", "tril")
        others = [n for n in node.inputs if n not in floating]
        if not keeps or len(floating) != 1 or any(facts.kind(n) != "scalar" for n in others):
            return None
        node = floating[0]
    return None


def _is_literal(graph: Graph, node: Node) -> bool:
    return node.op in ("list", "tuple") and all(graph.facts.kind(n) == "scalar" for n in node.inputs)


def _matters(graph: Graph, root: Node) -> bool:
    """Whether float32 reaches anything: a result that is cast, or only compared, does not."""
    stack, seen = [root], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in graph.escaping:
            return True
        for user in graph.users.get(n, ()):
            op = TABLE.get(user.op)
            if user.op in QUIET or (graph.facts.kind(user) == "array" and graph.facts.dtype(user).integral):
                continue
            if user.op in ("phi", "index") or (op is not None and op.kind in PASSES_ON):
                stack.append(user)
            else:
                return True
    return False


def _is_of_the_network(graph: Graph, origins: Origins, x: Node) -> bool:
    """Whether a layer or a product made x, and the function doesn't cast it to float32 by name."""
    return "computed" in origins.of(x) and not _is_widened(graph, x)


def _is_widened(graph: Graph, x: Node) -> bool:
    """Whether the function casts the value to float32 by name: it minds its dtypes then."""
    return any(n.op == "astype" and n.attrs.get("dtype") == "float32" and x in n.inputs for n in graph.nodes)


def _shown(node: Node) -> str:
    from fuselint.source.layout import one_line

    if node.cst is not None and node.frame.source is not None:
        text = one_line(node.frame.source.code(node.cst))
        if text is not None and len(text) <= 60:
            return text
    return f"mx.{node.op}(...)"


def _is_beyond_half(graph: Graph, source: Node) -> bool:
    numbers = [graph.facts.const(n) for n in source.inputs]
    numbers += [source.attrs.get("vals")]
    finite = [float(v) for v in numbers if isinstance(v, (int, float)) and abs(float(v)) != float("inf")]
    return any(abs(v) > HALF_MAXIMUM for v in finite)


def _rewrite(graph: Graph, root: Node, x: Node, promoting: Node) -> tuple[dict[str, Hole], dict[str, Any]]:
    """The holes, and the template of the operation with an operand that doesn't promote."""
    holes: dict[str, Hole] = {"x": x}
    number = _as_number(graph, promoting)
    if number is not None:
        holes["o"], other = number
    else:
        holes["o"], other = promoting, "{o}.astype({x}.dtype)"
    if root.op == "concatenate":
        return {"x": x}, {"no_fix": f"make it in the dtype of the activation: `{_shown(promoting)}` with `dtype=`"}
    sides = [{x: "{x}", promoting: other}.get(n, "") for n in root.inputs]
    if root.op == "where":
        holes["c"] = root.inputs[0]
        return holes, {"template": f"{{mx}}.where({{c}}, {sides[1]}, {sides[2]})"}
    symbol = TABLE[root.op].operator
    if symbol is not None and "Call" not in type(root.cst).__name__:
        return holes, {"template": f"{sides[0]} {symbol} {sides[1]}"}
    return holes, {"template": f"{{mx}}.{root.op}({sides[0]}, {sides[1]})"}


def _as_number(graph: Graph, promoting: Node) -> tuple[Node, str] | None:
    """The Python number that an array of one number is made of, and its text."""
    if promoting.frame.depth or len(promoting.inputs) != 1:
        return None
    number = promoting.inputs[0]
    value = graph.facts.const(number)
    if graph.facts.kind(number) != "scalar":
        return None
    plain = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    if promoting.op == "array":
        return number, (repr(value) if plain and number.op == "const" else "{o}")
    if promoting.op in ("sqrt", "rsqrt") and plain and value > 0:
        return number, f"({float(value)!r} ** {'0.5' if promoting.op == 'sqrt' else '-0.5'})"
    return None


LAYER = (
    HEAD + "class Block(nn.Module):\n"
    "    def __init__(self, dims: int):\n"
    "        super().__init__()\n"
    "        self.up = nn.Linear(dims, dims)\n"
    "        self.down = nn.Linear(dims, dims)\n\n"
)


def _block(body: str, arguments: str = "x") -> str:
    return LAYER + f"    def __call__(self, {arguments}):\n        h = self.up(x)\n{body}"


def _line(expression: str, arguments: str = "x") -> str:
    return _block(f"        return self.down({expression})\n", arguments)


def _half(expression: str, arguments: str = "x: mx.array") -> str:
    return HEAD + f"def f({arguments}):\n    x = x.astype(mx.bfloat16)\n    return {expression}\n"


EXAMPLES = [
    Example(_line("h * mx.array(0.5)"), fixed=_line("h * 0.5"), applicability="unsafe"),
    Example(_line("h * mx.rsqrt(8.0)"), fixed=_line("h * (8.0 ** -0.5)"), applicability="unsafe"),
    Example(
        _line("h + mx.where(keep, 0.0, -math.inf)", "x, keep"),
        fixed=_line("h + mx.where(keep, 0.0, -math.inf).astype(h.dtype)", "x, keep"),
        applicability="unsafe",
    ),
    Example(
        _line("mx.where(keep, h, mx.array(0.0))", "x, keep"),
        fixed=_line("mx.where(keep, h, 0.0)", "x, keep"),
        applicability="unsafe",
    ),
    Example(_line("mx.maximum(h, mx.array(0.0))"), fixed=_line("mx.maximum(h, 0.0)"), applicability="unsafe"),
    Example(_half("x * mx.array(0.5)"), fixed=_half("x * 0.5"), applicability="unsafe"),
    Example(_half("x * mx.array([0.5])"), fixed=_half("x * mx.array([0.5]).astype(x.dtype)"), applicability="unsafe"),
    Example(_half("mx.power(x, mx.array(2.0))"), fixed=_half("mx.power(x, 2.0)"), applicability="unsafe"),
    Example(_half("x + mx.ones(8)"), fixed=_half("x + mx.ones(8).astype(x.dtype)"), applicability="unsafe"),
    Example(_half("mx.concatenate([x, mx.zeros((4, 8))])"), applicability="none"),
]


def _none(expression: str, why: str, arguments: str = "x: mx.array") -> Example:
    return Example(_half(expression, arguments), why=why)


COUNTEREXAMPLES = [
    _none("x * 0.5", "a Python number takes the dtype of the array"),
    _none("x * math.sqrt(8)", "a Python number"),
    _none("x * mx.pi", "a Python number"),
    _none("x * mx.array(2)", "an integer array does not promote"),
    _none("x + mx.arange(8)", "an integer array does not promote"),
    _none("mx.where(c, x, 0.0)", "a Python number", "x: mx.array, c: mx.array"),
    _none("mx.where(c, x, mx.zeros_like(x))", "it has the dtype of x", "x: mx.array, c: mx.array"),
    _none("x * mx.ones_like(x)", "it has the dtype of x"),
    _none("mx.concatenate([x, mx.zeros((4, 8), x.dtype)])", "its dtype is stated"),
    _none("x * mx.array(0.5, dtype=x.dtype)", "its dtype is stated"),
    _none("x * mx.array(0.5).astype(x.dtype)", "it is cast"),
    _none("(x * mx.array(0.5)).astype(x.dtype)", "the result is cast back at once"),
    _none("x.astype(mx.float32) * mx.array(0.5)", "float32 is meant"),
    _none("x > mx.array(0.5)", "a comparison is boolean whatever it compares"),
    Example(HEAD + "def f(x: mx.array):\n    return x * mx.array(0.5)\n", why="nothing says that x is an activation"),
    Example(_line("h.astype(mx.float32) * mx.array(0.5)"), why="float32 is meant"),
]
