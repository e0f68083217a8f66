"""FUS105 promoting-operand: a float32 array constant that turns a half-precision activation into float32.

What it does: finds activations that meet an array which is float32 only because nobody said otherwise:
`x * mx.array(0.5)`, `x / mx.sqrt(2.0)`, `scores + mx.where(keep, 0.0, -math.inf)` (two Python numbers make float32),
`mx.where(keep, x, mx.array(0.0))`, `mx.concatenate([x, mx.zeros(shape)])`. The array may be made in `__init__`
(`self._scale`), or by a function or class of another file, such as the tables of a rotation; there it counts also
where the code says float32. The finding names the line that makes it, and counts what is then computed in float32.

Why: a Python number takes the dtype of the array it meets, and an array of its own does not. From there on every
value is float32: twice the bytes for each operation, and a matmul that casts its weight at every call.

Traffic: x * 0.5 moves 4 bytes an element (half precision), x * mx.array(0.5) 14, and the matmul after it 3.5 times as
much as before.

When not to: where float32 is meant. A value that is cast to float32 in the function, or cast back, is not reported, nor
is one that isn't known to be an activation of the network, or where no file of its package folder says anything of half
precision, nor one that another method casts, nor one that a call further on is given beside another float32 array,
which promotes it as well, nor a lookup in an argument, nor the window of a Fourier transform. Integer arrays don't
promote.

Fix safety: unsafe, always: the dtype of the result changes. Where activations are float32 nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import permutations, product
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.across import Inside, bind, call_arguments
from fuselint.graph.callers import given_dtypes
from fuselint.graph.dtypes import HALF, DType
from fuselint.graph.fact import Fact
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import TABLE
from fuselint.graph.origins import Origins
from fuselint.graph.promotion import FLOAT32, Source, may_have_source, source
from fuselint.rulebook import Example, Hole, Match, Probe
from fuselint.source.modules import Definition
from fuselint.traffic.kernels import kernels

CODE, NAME = "FUS105", "promoting-operand"

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"

ARITHMETIC = frozenset({"add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "logaddexp"})
NORMS = frozenset({"fast.rms_norm", "fast.layer_norm"})
PROMOTING = ARITHMETIC | NORMS | {"where", "concatenate", "clip", "matmul"}
PRODUCTS = frozenset({"matmul", "conv"})
ATTENTION = "fast.scaled_dot_product_attention"
MAKES = frozenset({"layer", "matmul", "conv", "fast"})
FARTHEST = 20
"""Operations between a parameter and what meets it."""

QUIET = frozenset({"astype", "argmax", "argmin", "argsort", "argpartition", "shape", "dim", "dtype", "ndim", "size"})
"""Readers for which the dtype of their operand does not matter, or which set it."""

PASSES_ON = frozenset({"unary", "binary", "ternary", "composite", "activation", "reduce", "rowwise", "view", "copy"})

THROUGH = PASSES_ON | {"layer", "fast"}
"""Operations of which a float32 operand makes a float32 result."""

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
        if node.frame.depth:
            continue
        match = None
        if node.op in PROMOTING:
            for x, promoting in _pairs(graph.facts, node):
                origins = origins or Origins(graph)
                match = match or _match(graph, origins, node, x, promoting)
        elif node.op == "call" and _may_promote(graph, node) and _widens(graph.facts, node):
            origins = origins or Origins(graph)
            match = _match_call(graph, origins, node)
        if match is not None:
            yield match


def _operands(node: Node) -> tuple[Node, ...]:
    """The operands whose dtypes promote one another."""
    if node.op == "where":
        return node.inputs[1:]
    return node.inputs[:3] if node.op == "fast.layer_norm" else node.inputs[:2] if node.op in NORMS else node.inputs


def _pairs(facts: KnownFacts, node: Node) -> Iterator[tuple[Node, Node]]:
    """Operands of which one has a dtype that is half precision or may be, and the other is float32."""
    operands = _operands(node)
    wide = [n for n in operands if may_have_source(facts, n) and _is_wide(facts.of(n))]
    for x in (operands[:1] if node.op in (*NORMS, "clip") else operands) if wide else ():
        if facts.kind(x) == "array" and _is_narrow(facts.dtype(x)):
            yield from ((x, other) for other in wide if other is not x)


def _is_wide(fact: Fact) -> bool:
    return fact.kind == "array" and fact.dtype == FLOAT32


def _is_narrow(dtype: DType) -> bool:
    return dtype.name in HALF or (bool(dtype) and dtype.symbols == dtype)


def _match(graph: Graph, origins: Origins, root: Node, x: Node, promoting: Node) -> Match | None:
    found = source(graph.facts, promoting)
    if found is None or _is_meant(graph, found) or not _matters(graph, root) or _is_wide_already(graph, x):
        return None
    if _meets_more(graph, root):
        return None
    evidence = _evidence(graph, origins, x)
    if evidence is None:
        return None
    holes, data = _rewrite(graph, root, x, promoting)
    inside = frozenset(region(root, [n for n in holes.values() if isinstance(n, Node)]))
    half = graph.facts.dtype(x).name in HALF
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message=_message(graph, root, found, half, more=_others(graph, root, promoting)),
        obligations=_obligations(found, evidence),
        region=inside,
        shapes=_shapes(graph, holes),
        dtypes={"o": "float32"},
        numerics="different dtype",
        probe=VALUES if half and holes.get("o") is promoting else None,
        related=[] if found.node is promoting else [(found.node, "float32 from here")],
        data=data,
        has_traffic=False,
    )


def _match_call(graph: Graph, origins: Origins, call: Node) -> Match | None:
    """A function that multiplies an activation, or adds to it, what the call gives it in float32: rotary tables."""
    facts = graph.facts
    for inside in facts.into(call):
        if inside.graph.context.class_name is not None:
            continue
        for node in inside.graph.nodes:
            for x, promoting in _pairs(inside.facts, node) if node.op in PROMOTING else ():
                given, table = _argument(inside, x), _argument(inside, promoting)
                found = None if table is None or given is None else source(facts, table)
                if (
                    found is None
                    or given is None
                    or _is_wide_already(graph, given)
                    or _is_meant(graph, found)
                    or not _matters(graph, call)
                    or _meets_more(graph, call)
                ):
                    continue
                evidence = _evidence(graph, origins, given)
                if evidence is None:
                    continue
                name = (call.attrs.get("target") or "").rpartition(".")[2]
                return Match(
                    code=CODE,
                    root=call,
                    holes={},
                    message=_message(graph, call, found, facts.dtype(given).name in HALF, f" in `{name}`"),
                    obligations=_obligations(found, evidence),
                    region=frozenset({call}),
                    numerics="different dtype",
                    related=[(found.node, "float32 from here"), (node, "meets the activation here")],
                    data={"no_fix": f"cast it where it is given to `{name}`: `.astype(...)` to the activation's dtype"},
                    has_traffic=False,
                )
    return None


def _widens(facts: KnownFacts, call: Node) -> bool:
    """Whether a call gives back float32 arrays."""
    fact = facts.of(call)
    return any(map(_is_wide, (fact, *(fact.parts or ()))))


def _may_promote(graph: Graph, call: Node) -> bool:
    """Whether a call names a function, no method, that holds an operation which promotes."""
    if graph.program is None:
        return True
    elsewhere, arguments = graph.program.elsewhere, call_arguments(call)
    if arguments is None or len(call.inputs) < 2 or not any(may_have_source(graph.facts, n) for n in call.inputs):
        return False
    named = elsewhere.named(graph, call)
    if named is None or named.ops.isdisjoint(PROMOTING):
        return False
    summary = elsewhere.function(Definition(elsewhere.path_of(named), named.context.qualname))
    given = (None if summary is None else bind(summary.parameters, *arguments)) or {}
    met = ((given[x], given[table]) for x, table in _parameters_met(named) if x in given and table in given)
    return any(_may_meet(graph.facts, x, table) for x, table in met)


def _parameters_met(graph: Graph) -> Iterator[tuple[str, str]]:
    """The names of the parameters that operands of promoting operations may be, one of them and another."""
    made_of: dict[Node, frozenset[str]] = {}
    for node in graph.nodes:
        if node.op == "param":
            made_of[node] = frozenset({node.attrs["name"]})
        elif node.op in ("phi", "index", "item") or (node.op in TABLE and TABLE[node.op].kind in PASSES_ON):
            made_of[node] = frozenset().union(*(made_of.get(n, ()) for n in node.inputs))
        operands = _operands(node) if node.op in PROMOTING else ()
        for one, other in permutations([made_of.get(n, frozenset()) for n in operands], 2):
            yield from product(one, other)


def _may_meet(facts: KnownFacts, x: Node, table: Node) -> bool:
    """Whether of two arguments one may be an array and the other one may be made float32."""
    if not may_have_source(facts, table) or (x.op in SHORT and facts.kind(x) not in ("array", "unknown")):
        return False
    return _is_wide(facts.of(table)) and facts.kind(x) in ("array", "unknown")


SHORT = frozenset({"attr", "param", "const", "global"})
"""Values of which it costs nothing to ask what is known."""


def _argument(inside: Inside, node: Node) -> Node | None:
    """The argument of the call that a value of the function is made of, one operation after the other."""
    for _ in range(FARTHEST):
        if node.op == "param":
            return inside.facts.arguments.get(node, (None, None))[1]
        op = TABLE.get(node.op)
        if not node.inputs or not (node.op in ("phi", "index", "item") or (op is not None and op.kind in PASSES_ON)):
            return None
        arrays = [n for n in node.inputs if inside.facts.kind(n) == "array"]
        node = arrays[0] if arrays else node.inputs[0]
    return None


def _evidence(graph: Graph, origins: Origins, x: Node) -> Obligation | None:
    """That an operand is a half-precision activation, proven or possible; None where nothing says so."""
    claim = "the activation is half precision"
    if graph.facts.dtype(x).name in HALF:
        return Obligation(claim, "proven", graph.facts.why(x))
    if _is_of_the_network(graph, origins, x) and _may_be_half(graph):
        return Obligation(claim, "unknown", "nothing in the package says the dtype of the weights")
    return None


def _may_be_half(graph: Graph) -> bool:
    """Whether anything in the package says that it runs in half precision."""
    if graph.program is None:
        return True
    elsewhere = graph.program.elsewhere
    return elsewhere.modules.may_be_half(elsewhere.path_of(graph))


def _is_wide_already(graph: Graph, x: Node) -> bool:
    """Whether the activation is float32 as the package's calls of the function give it, or an operand before has made
    it so: through calls, whose result has the dtype of their first argument, and layers."""
    if "float32" in graph.facts.dtype(x).bound(given_dtypes(graph)):
        return True
    for _ in range(FARTHEST):
        op = TABLE.get(x.op)
        if not x.inputs or not (x.op in ("call", "item", "index") or (op is not None and op.kind in THROUGH)):
            return False
        x = x.inputs[0]
        if x.op in PROMOTING and graph.facts.dtype(x) == FLOAT32:
            return True
    return False


def _meets_more(graph: Graph, root: Node) -> bool:
    """Whether a call that is given what is computed from there on is given something else in float32 too, a mask: it
    promotes as well, and attention takes none for queries in half precision."""
    stack, after = [root], {root}
    while stack:
        new = [n for n in graph.users.get(stack.pop(), ()) if n not in after]
        after.update(new)
        stack += new
    given = given_dtypes(graph)
    calls = [n for n in after if n is not root and n.op in ("call", ATTENTION)]
    return any(_may_be_wide(graph, n, given) for c in calls for n in c.inputs if n not in after)


def _may_be_wide(graph: Graph, node: Node, given: Mapping[str, str]) -> bool:
    """Whether an array is float32, or one of several of which one is: of a mask that may be None."""
    ways = node.inputs if node.op == "phi" and graph.facts.kind(node) != "array" else (node,)
    arrays = [n for n in ways if graph.facts.kind(n) in ("array", "unknown")]
    return any(graph.facts.dtype(n).bound(given) == FLOAT32 for n in arrays)


def _is_meant(graph: Graph, found: Source) -> bool:
    """Whether the function itself says that the operand is float32."""
    return found.how == "stated" and found.facts is graph.facts and any(n is found.node for n in graph.nodes)


def _obligations(found: Source, evidence: Obligation) -> list[Obligation]:
    how = "by default" if found.how == "default" else "as the code says"
    out = [evidence, Obligation(f"the operand is float32 {how}", "proven", found.facts.why(found.node))]
    if _is_beyond_half(found):
        out.append(Obligation("its numbers fit the dtype of the activation", "unknown", "float16 ends at 65504"))
    return out


def _others(graph: Graph, root: Node, promoting: Node) -> int:
    """How many other operands are float32 as well, so that one cast alone changes nothing."""
    return len({n for n in _operands(root) if n is not promoting and graph.facts.dtype(n) == FLOAT32})


def _message(graph: Graph, root: Node, found: Source, half: bool, where: str = "", more: int = 0) -> str:
    text = f"`{_shown(found.node)}`"
    if half:
        said = f"{text} is float32, and makes a half-precision activation float32{where}"
    else:
        said = f"possible: where the activation is half precision, {text} makes it float32{where}"
    if more:
        said += f", as {more} more of the operands do{'es' if more == 1 else ''}"
    after = _following(graph, root)
    launched = kernels(after, graph.facts)
    casts = sum(k.op == "AsType" for k in launched)  # MLX's own: `after` has none of the code
    wide = len(launched) - casts
    if not wide:
        return said
    products = sum(TABLE[n.op].kind in PRODUCTS or n.op == "nn.Linear" for n in after if n.op in TABLE)
    count = f"{wide} kernel{'s' * (wide > 1)} after it"
    matmuls = f", {products} of them products," if products else ""
    cast = f", and {casts} more cast{'s' * (casts == 1)} what they meet" if casts else ""
    return f"{said}; {count}{matmuls} then move{'s' * (wide == 1)} twice the bytes{cast}"


def _following(graph: Graph, root: Node) -> list[Node]:
    """What is computed in float32 from there on, in this function."""
    facts, stack, out = graph.facts, [root], set[Node]()
    while stack:
        for user in graph.users.get(stack.pop(), ()):
            wide = facts.kind(user) == "tuple" or facts.dtype(user) == FLOAT32
            if wide and user not in out and facts.kind(user) in ("array", "tuple") and user.op not in QUIET:
                out.add(user)
                stack.append(user)
    return sorted((n for n in out if n.op in TABLE), key=lambda n: n.id)


def _shapes(graph: Graph, holes: dict[str, Hole]) -> dict[str, tuple[str, ...]]:
    other = holes.get("o")
    shapes: dict[str, tuple[str, ...]] = {"x": ("...", "D")}
    if isinstance(other, Node):
        shapes["o"] = () if graph.facts.rank(other) == 0 else ("D",)
    if "c" in holes and isinstance(holes["c"], Node) and graph.facts.kind(holes["c"]) == "array":
        shapes["c"] = ("...", "D")
    return shapes


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
            if (
                user.op in QUIET
                or (op is not None and op.kind == "fft")
                or (graph.facts.kind(user) == "array" and graph.facts.dtype(user).integral)
            ):
                continue
            if user.op in ("phi", "index") or (op is not None and op.kind in PASSES_ON):
                stack.append(user)
            else:
                return True
    return False


def _is_of_the_network(graph: Graph, origins: Origins, x: Node) -> bool:
    """Whether a layer or a product made x, and the function doesn't cast it to float32 by name."""
    return "computed" in origins.of(x) and not _is_widened(graph, x) and _comes_of_a_layer(graph, x)


def _comes_of_a_layer(graph: Graph, x: Node) -> bool:
    """Whether a layer, a product or a call made it, and not only a lookup in an argument: pixels, samples of sound."""
    stack, seen = [x], {x}
    while stack:
        n = stack.pop()
        op = TABLE.get(n.op)
        if n.op == "call" or (op is not None and op.kind in MAKES):
            return True
        arrays = [i for i in n.inputs if i not in seen and graph.facts.kind(i) in ("array", "tuple", "unknown")]
        seen.update(arrays)
        stack += arrays
    return False


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


def _is_beyond_half(found: Source) -> bool:
    numbers = [found.facts.const(n) for n in found.node.inputs]
    numbers += [found.node.attrs.get("vals")]
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
    if root.op in NORMS or root.op == "clip":
        return {"x": x}, {"no_fix": f"cast `{_shown(promoting)}` to the dtype of the activation"}
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
    Example(_line("h * mx.rsqrt(8.0)"), fixed=_line("h * (8.0**-0.5)"), applicability="unsafe"),
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
    Example(
        LAYER.replace("dims)\n\n", "dims)\n        self._scale = mx.array(0.5)\n\n")
        + "    def __call__(self, x):\n        h = self.up(x)\n        return self.down(h * self._scale)\n",
        fixed=LAYER.replace("dims)\n\n", "dims)\n        self._scale = mx.array(0.5)\n\n")
        + "    def __call__(self, x):\n        h = self.up(x)\n"
        "        return self.down(h * self._scale.astype(h.dtype))\n",
        applicability="unsafe",
    ),
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
    Example(
        _block(
            "        mask = mx.where(keep, 0.0, -math.inf)\n        return attend(h * mx.array(0.5), mask)\n",
            "x, keep, attend",
        ),
        why="attend is given a mask in float32 too, which attention refuses for queries in half precision",
    ),
]
