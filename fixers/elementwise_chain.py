"""The fix of FUS301: the chain as a module-level function under mx.compile, called where its last value was made."""

from __future__ import annotations

import builtins
import re
from keyword import iskeyword

import libcst as cst

from fuselint.graph.model import Graph, Node, Statement
from fuselint.graph.op import Op
from fuselint.graph.ops import TABLE, function_of
from fuselint.rulebook import HoistedHelper, Match, NoFix, Part, Replacement
from fuselint.source.formula import Formula, NoText
from fuselint.source.function import walk
from fuselint.source.layout import one_line

GATES = {
    "nn.silu": "swiglu",
    "nn.gelu": "geglu",
    "nn.gelu_approx": "geglu",
    "nn.gelu_fast_approx": "geglu",
    "nn.relu": "reglu",
}
"""What a product of an activation and another value is called."""

PLAIN = frozenset(
    "HardTanh LogSigmoid Mish ReLU ReLU2 ReLU6 SELU SiLU Sigmoid Softplus Softsign Tanh Hardswish".split()
)
"""Activations of mlx.nn that take no arguments: their class says what they compute."""

LETTERS = ("x", "y", "z", "w", "u", "v")


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    if match.data["no_fix"]:
        return NoFix(match.data["no_fix"])
    if "given" in match.data:
        return _asked(graph, match, *match.data["given"])
    nodes: tuple[Node, ...] = match.data["nodes"]
    found = {name: hole for name, hole in match.holes.items() if isinstance(hole, Node)}
    numbers = {n: text for h, n in found.items() if h in match.data["scalars"] and (text := _number(graph, n))}
    holes = {name: node for name, node in found.items() if node not in numbers}
    names = _parameters(graph, nodes, holes)
    held = {node: names[hole] for hole, node in holes.items()}
    held |= {node: names[hole] for node, hole in match.data["aliases"].items() if hole in names}
    numbers |= {n: numbers[match.holes[h]] for n, h in match.data["aliases"].items() if match.holes[h] in numbers}
    numbers |= match.data["dtypes"]
    try:
        formula = Formula(graph, (*match.data["derived"], *nodes), held, numbers)
    except NoText as why:
        return NoFix(str(why))
    order = _in_order(graph, holes, names, " ".join((*formula.statements, formula.body)))
    helper = HoistedHelper(
        name=_name(graph, nodes),
        params=tuple(names[h] for h in order),
        body=formula.body,
        shapeless=match.data["shapeless"],
        statements=tuple(formula.statements),
        annotations={names[h]: kind for h in holes if (kind := _annotation(graph, match, h)) is not None},
    )
    call = ", ".join(f"{{{h}}}" for h in order)
    return Replacement(parts=(Part(match.root, f"{{helper}}({call})"),), holes=holes, helper=helper)


def _asked(graph: Graph, match: Match, path: str, default: Node, op: Op) -> Replacement | NoFix:
    """The helper where the module's activation is the usual one; else the code as it was."""
    gate, up = (match.holes[h] for h in ("gate", "up"))
    assert isinstance(gate, Node) and isinstance(up, Node)
    own = f"{{nn}}.{default.attrs['target'].rpartition('.')[2]}"
    settable = default.op == "new" and default.attrs["target"].rpartition(".")[2] not in PLAIN
    named = all(graph.names_of(n, match.root.top_stmt) for n in (gate, up))
    if settable or not named or not path.startswith("self."):
        return NoFix(f"{path} is the constructor's: let it be a function of both, under mx.compile, such as a SwiGLU")
    test = f"isinstance({path}, {own})" if default.op == "new" else f"{path} is {own}"
    function = op.function or op.name
    first = match.root.inputs[0].op == "call"
    written = "{gate}", f"{path}({{gate}})"
    helper = HoistedHelper(
        name=GATES.get(function, snake(function.rpartition(".")[2]) + "_gate"),
        params=("gate", "up"),
        body=" * ".join(_either(first, f"{{nn}}.{function.rpartition('.')[2]}(gate)", "up")),
        shapeless=True,
    )
    kept = " * ".join(_either(first, written[1], "{up}"))
    return Replacement(
        parts=(Part(match.root, f"{{helper}}({{gate}}, {{up}}) if {test} else {kept}"),),
        holes=match.holes,
        helper=helper,
    )


def _either(first: bool, a: str, b: str) -> tuple[str, str]:
    return (a, b) if first else (b, a)


def _annotation(graph: Graph, match: Match, hole: str) -> str | None:
    """The annotation of a parameter that isn't proven to be an array, "" where it may be a number or an array."""
    if hole in match.data["either"]:
        return ""
    if hole not in match.data["scalars"]:
        return None
    dtype = graph.facts.dtype(match.holes[hole])
    return next((kind for kind in ("bool", "int") if dtype == {f"weak {kind}"}), "float")


def _in_order(graph: Graph, holes: dict[str, Node], names: dict[str, str], body: str) -> list[str]:
    """As the body reads them; operands that are calls keep the order in which the code evaluates them."""
    read = {h: re.search(rf"\b{names[h]}\b", body) for h in holes}
    order = sorted(holes, key=lambda h: m.start() if (m := read[h]) else len(body))
    calls = [h for h in order if not _is_named(graph, holes[h])]
    evaluated = iter(sorted(calls, key=lambda h: holes[h].id))
    return [next(evaluated) if h in calls else h for h in order]


def _is_named(graph: Graph, node: Node) -> bool:
    return node.op in ("param", "attr", "const") or bool(_own_name(graph, node))


def _activation(node: Node) -> str:
    op = TABLE.get(node.op)
    return "" if op is None else function_of(node) or op.name


def _name(graph: Graph, nodes: tuple[Node, ...]) -> str:
    """What a chain computes: a known name, that of the function it is, or that of its few operations."""
    work = [n for n in nodes if n.op != "astype"]
    known = _gate(work) or _arithmetic(graph, work)
    if not known and (len(work) > 3 or _is_whole(graph, nodes)):
        class_name, _, method = graph.context.qualname.rpartition(".")
        last = class_name.rpartition(".")[2] if method == "__call__" else method
        return snake(last.strip("_<>")) or "fused"
    name = known or "_".join(snake(_activation(n).rpartition(".")[2]) for n in work) or "cast"
    casts = {n.attrs["dtype"] for n in nodes if n.op == "astype"}
    fixed = sorted(c for c in casts if isinstance(c, str))
    return "_".join([name, *(fixed or ["cast"] * (bool(casts) and len(work) == 1))])


def _is_whole(graph: Graph, nodes: tuple[Node, ...]) -> bool:
    """Whether a function does nothing but compute the chain, and returns it."""
    inside = set(nodes)
    apart = ("view", "create", "cast")
    others = (
        n for n in graph.nodes if n not in inside and (op := TABLE.get(n.op)) is not None and op.kind not in apart
    )
    returned = all(n is nodes[-1] for _, n in graph.returns)
    return returned and all(graph.facts.kind(n) == "scalar" for n in others)


def _gate(work: list[Node]) -> str:
    """A cap, a modulation, or a product with an activation."""
    root, kinds = work[-1] if work else None, sorted(n.op for n in work)
    if root is None:
        return ""
    if kinds == ["divide", "multiply", "tanh"] and root.op == "multiply":
        return "softcap"
    if root.op == "multiply" and len(work) == 2:
        return GATES.get(_activation(work[0])) or {"sigmoid": "sigmoid_gate"}.get(work[0].op, "")
    if root.op == "multiply" and kinds == ["multiply", "multiply", "sigmoid"]:
        gate = next(n.inputs[0] for n in work if n.op == "sigmoid")
        if sum(gate in n.inputs for n in work) == 2:
            return "swiglu"
    return "modulate" if _is_modulation(work) else ""


def _is_modulation(work: list[Node]) -> bool:
    """`x * (1 + scale) + shift`."""
    if [n.op for n in work] not in (["add", "multiply", "add"],):
        return False
    scale, product, root = work
    one = any(n.op == "const" and n.attrs["value"] == 1 for n in scale.inputs)
    return one and scale in product.inputs and product in root.inputs


COUNTS = {2: "three", 3: "four"}


def _arithmetic(graph: Graph, work: list[Node]) -> str:
    """Sums, products, sums of products, and what lies between two values."""
    kinds = [n.op for n in work]
    terms = [n for n in work[-1].inputs if n.op == "multiply" and n in work] if work else []
    if len(work) in COUNTS and set(kinds) in ({"add"}, {"multiply"}):
        return f"{'sum' if kinds[0] == 'add' else 'product'}_of_{COUNTS[len(work)]}"
    if len(work) == 3 and len(set(terms)) == 2 and kinds[-1] in ("add", "subtract"):
        return "sum_of_products" if kinds[-1] == "add" else "difference_of_products"
    values = graph.canonical
    if kinds == ["subtract", "multiply", "add"] and work[0] in work[1].inputs and len(terms) == 1:
        start = next((n for n in work[-1].inputs if n is not terms[0]), work[-1])
        return "lerp" if values.of(start) is values.of(work[0].inputs[1]) else ""
    if sorted(kinds) == ["add", "multiply", "multiply", "subtract"] and len(set(terms)) == 2 and kinds[-1] == "add":
        rest = next(n for n in work if n.op == "subtract")
        one, weight = rest.inputs
        weighted = [
            t for t in terms if rest not in t.inputs and any(values.of(k) is values.of(weight) for k in t.inputs)
        ]
        return "lerp" if values.of(one).is_number(1.0) and weighted and any(rest in t.inputs for t in terms) else ""
    return ""


WRITTEN = {"SwiGLU": "Swiglu", "GeGLU": "Geglu", "ReLU": "Relu", "GELU": "Gelu", "RoPE": "Rope", "PyTorch": "Pytorch"}
"""Names whose capitals don't begin words."""


def snake(name: str) -> str:
    """`GatedMLP` -> `gated_mlp`."""
    for written, word in WRITTEN.items():
        name = name.replace(written, word)
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "_", parted).strip("_").lower()


def _number(graph: Graph, node: Node) -> str:
    """The text of a number that reads no name, such as `2**-0.5`."""
    source, at = node.frame.source, node.cst
    if (
        source is None
        or at is None
        or node.op in ("param", "attr")
        or not isinstance(graph.facts.const(node), (int, float))
    ):
        return ""
    names = any(isinstance(n, cst.Name) for n in walk(at))
    return "" if names else one_line(source.code(at)) or ""


def _parameters(graph: Graph, nodes: tuple[Node, ...], holes: dict[str, Node]) -> dict[str, str]:
    """A parameter's name for each hole: what the code calls the value, the layer that makes it, or what it is part of.

    Values without any get letters, when all others have their names.
    """
    at = nodes[-1].top_stmt
    named = {hole: _named(graph, node, at) for hole, node in holes.items()}
    wished = {hole: named[hole] or _whole(graph, node) for hole, node in holes.items()}
    out: dict[str, str] = {}
    for hole in sorted(holes, key=lambda h: (not named[h], not wished[h], holes[h].id)):
        letters = (n for n in LETTERS if n not in out.values())
        base = wished[hole] or next(letters, "x")
        base = f"{base}_" if hasattr(builtins, base) or iskeyword(base) else base
        name, count = base, 2
        while name in out.values() or name in ("mx", "nn", "partial"):
            name, count = f"{base}{count}", count + 1
        out[hole] = name
    return {hole: out[hole] for hole in holes}


def _named(graph: Graph, node: Node, at: Statement | None) -> str:
    held = [n for n in graph.names_of(node, at) if n != "_"] if at is not None else []
    own = str(node.attrs["name"]) if node.op in ("attr", "global") else ""
    return (held[0] if held else own or _layer(node) or _own_name(graph, node)).lstrip("_")


def _whole(graph: Graph, node: Node) -> str:
    """The name of what a value is a part or a view of."""
    while node.inputs and (
        node.op in ("index", "item") or (node.op in TABLE and TABLE[node.op].kind in ("view", "cast"))
    ):
        node = node.inputs[0]
        name = _own_name(graph, node) or (str(node.attrs["name"]) if node.op in ("param", "attr") else "")
        if name and name not in ("self", "cls"):
            return name.lstrip("_")
    return ""


def _own_name(graph: Graph, node: Node) -> str:
    return next((n for n, bound in graph.bindings.items() if any(b.node is node for b in bound)), "")


def _layer(node: Node) -> str:
    """`gate` for the value of `self.gate_proj(x)`."""
    path = node.attrs.get("path")
    if node.op in ("attr", "param") or not isinstance(path, str):
        return ""
    last = path.rpartition(".")[2].strip("_")
    short = re.sub(r"_?(proj|projection|layer|linear)$", "", last)
    return next((n for n in (short, last) if n.isidentifier() and not iskeyword(n)), "")
