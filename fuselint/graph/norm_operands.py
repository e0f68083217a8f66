"""The operands of a norm as written: what is normalised, the weight, the bias, eps; and which casts were written."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fuselint.finding import Numerics, Obligation
from fuselint.graph.callers import goes_with
from fuselint.graph.dtypes import DType
from fuselint.graph.identities_reduce import kept
from fuselint.graph.model import Graph, Node, operands, region
from fuselint.graph.norms import Axes, Kind, Norm, Readings, chains
from fuselint.graph.ops import TABLE
from fuselint.graph.values import Value
from fuselint.rulebook import Hole, Match, Synthesised
from fuselint.source.modules import Definition

FLOAT32 = DType({"float32"})

POLICIES = {
    "none": "",
    "llama": ", in float32",
    "gemma": ", in float32, with the weight",
    "float32": ", in float32, and not cast back",
}


@dataclass(frozen=True, slots=True)
class Learned:
    """A weight or a bias: its hole, the nodes that it is made of, and what is known of its shape."""

    hole: Hole | None = None
    nodes: tuple[Node, ...] = ()
    obligations: tuple[Obligation, ...] = ()

    @property
    def is_known(self) -> bool:
        return all(o.verdict == "proven" for o in self.obligations)


NOTHING = Learned()


def held(hole: Hole) -> Iterable[Node]:
    return hole.operands.values() if isinstance(hole, Synthesised) else (hole,)


class Matcher(Protocol):
    """A norm rule's match of the readings up to a root; wide: with x as cast to float32, so that the dtype stays."""

    def __call__(self, graph: Graph, chain: list[Node], *, wide: bool = False) -> Match | None: ...


def best_matches(graph: Graph, kind: Kind, match: Matcher) -> Iterator[Match]:
    """For each norm of a kind: the match that keeps the dtype and covers the most of it. Its data say policy and
    keeps_dtype."""
    for heads in chains(graph, kind):
        found = [m for head in heads.values() if (m := match(graph, head)) is not None]
        if found:
            best = max(found, key=lambda m: (m.data["keeps_dtype"], m.root.id))
            if best.data["policy"] == "float32" and not best.data["keeps_dtype"]:
                best = match(graph, heads[best.root], wide=True) or best
            yield best


# -- what is normalised ------------------------------------------------------------------------------------------------


def numerator(graph: Graph, root: Node, norm: Norm) -> tuple[Node, float] | None:
    """The value as written that is normalised, and what it is of the norm's x: c * x. Of a layer norm before its
    mean is subtracted."""

    def ratio(node: Node) -> float | None:
        v = graph.canonical.of(node)
        if norm.kind == "layer":
            if v.scalar:
                return None
            v = centred(graph, v, norm.axes)
        one = v.factors == norm.x.factors and v.coefficient > 0 and norm.x.coefficient > 0
        return v.coefficient / norm.x.coefficient if one else None

    walked = {"multiply", "divide", "astype"} | ({"add", "subtract"} if norm.kind == "layer" else set())
    stack, seen = [root], set[Node]()
    while stack:
        n = stack.pop()
        r = ratio(n)
        if r is not None:
            return n, r
        if n in seen or n.op not in walked:
            continue
        seen.add(n)
        stack.extend(reversed(n.inputs[:1] if n.op in ("divide", "astype") else n.inputs))
    for n in reversed(region(root, ())):  # x * (mask * r): only the square holds x * mask
        if graph.facts.kind(n) in ("array", "unknown") and (r := ratio(n)) is not None:
            return n, r
    return None


def centred(graph: Graph, v: Value, axes: Axes) -> Value:
    return graph.canonical.algebra.subtract(v, kept(graph.canonical, "mean", v, axes))


def narrow(graph: Graph, node: Node) -> Node:
    """The value before casts to float32 and casts to its own dtype: the fused kernel computes in float32 anyway."""
    while node.op == "astype":
        inner, to = graph.facts.dtype(node.inputs[0]), graph.facts.dtype(node)
        if inner.integral or not (to == inner or (to == FLOAT32 and "float64" not in inner)):
            break
        node = node.inputs[0]
    return node


def wide_operand(graph: Graph, written: Node, x: Node) -> tuple[Node, bool]:
    """The operand of a norm whose result stays float32, and whether the fix casts it to that: a cast that stands in a
    helper has no text outside it."""
    in_helper = written.op == "astype" and written.frame.depth > 0 and graph.facts.dtype(written) == FLOAT32
    return (x, True) if in_helper else (written, False)


# -- eps ---------------------------------------------------------------------------------------------------------------


def eps_hole(graph: Graph, root: Node, value: Value) -> Hole | None:
    if value.is_number(0.0):
        return Synthesised("0.0")
    inside = [n for n in region(root, ()) if graph.canonical.of(n) is value]
    if inside:
        return min(inside, key=lambda n: (n.frame.depth, n.op == "astype", n.id))
    return graph.canonical.as_hole(value)


def is_number(graph: Graph, eps: Hole) -> Obligation:
    claim = "eps is a Python number, inside the root"
    if isinstance(eps, Synthesised) or graph.facts.kind(eps) == "scalar":
        return Obligation(claim, "proven", "it is added to the mean")
    if eps.op == "attr" and graph.facts.kind(eps) == "unknown":
        because = f"{eps.attrs.get('path')} (assumed: a module's or configuration's own number)"
        return Obligation(claim, "proven", because)
    return Obligation(claim, "unknown", graph.facts.why(eps))


# -- weight and bias ---------------------------------------------------------------------------------------------------


def weight_of(graph: Graph, root: Node, norm: Norm, x: Node, *, modulated: bool = True) -> Learned | None:
    """The factors beside the norm as one weight of one axis. None: something among them isn't a weight.

    modulated: whether `1 + scale` of a bare parameter may be one.
    """
    if not norm.rest:
        return NOTHING
    c = graph.canonical
    whole = c.algebra.product(1.0, norm.rest)
    if whole.op == "optional" and whole.args[0] is whole.param("by"):  # None is a weight too
        whole = whole.args[0]
    found = _learned(graph, root, whole, x, "weight", modulated)
    if found is not None or any(c.of(n) is whole for n in region(root, [x])):
        return found
    parts: list[Node] = []
    claims: list[Obligation] = []
    for base, e in norm.rest:
        one = _learned(graph, root, base, x, "weight", modulated) if e == 1 else None
        if one is None:
            return None
        parts += one.nodes
        claims += one.obligations
    if sum(k.verdict == "unknown" for k in claims) > 1:  # one bare parameter may be the weight, two hardly are
        return None
    names = [f"weight{i}" for i in range(len(parts))]
    product = Synthesised(" * ".join(f"{{{n}}}" for n in names), dict(zip(names, parts, strict=True)))
    return Learned(product, tuple(parts), tuple(claims))


def bias_of(graph: Graph, root: Node, norm: Norm, x: Node, weight: Learned) -> Learned | None:
    """The bias. None where the added value isn't one, or is one of less evidence than the weight."""
    value = norm.bias
    if value is None:
        return NOTHING
    by = value.param("by") if value.op == "guarded" else None
    if by is not None:  # None is a bias too
        value = value.args[0]
    found = _learned(graph, root, value, x, "bias", modulated=False)
    if found is None or weight.hole is None or (weight.is_known and not found.is_known):
        return None
    if by is None or by is value:
        return found
    if by not in map(graph.canonical.of, weight.nodes):
        return None
    return replace(found, obligations=(*found.obligations, _goes_with(graph, weight.nodes, found.nodes)))


def _goes_with(graph: Graph, weight: Sequence[Node], bias: Sequence[Node]) -> Obligation:
    """Of a bias that is added only where there is a weight."""
    claim = "there is no bias where there is no weight"
    if all(n.op == "param" for n in (*weight, *bias)) and goes_with(graph, bias[0], weight[0]):
        return Obligation(claim, "proven", "no call in the package gives one alone")
    return Obligation(claim, "unknown", "the fused kernel adds a bias without a weight too")


def _learned(graph: Graph, root: Node, value: Value, x: Node, name: str, modulated: bool) -> Learned | None:
    nodes = [n for n in region(root, [x]) if graph.canonical.of(n) is value]
    if not nodes:
        return None
    node = narrow(graph, nodes[-1])
    claim = _one_axis(graph, node, x, name, modulated)
    return None if claim is None else Learned(node, (node,), (claim,))


def _one_axis(graph: Graph, node: Node, x: Node, name: str, modulated: bool) -> Obligation | None:
    """Whether a value may be a weight of one axis: not if it is computed from activations, or has another rank."""
    facts = graph.facts
    claim = f"the {name} has one axis, as long as x's last"
    made_of = _leaves(node)
    if made_of is None or facts.kind(node) not in ("array", "unknown"):
        return None
    if any(n.op == "param" for n in made_of if n in region(x, ())):
        return None
    shape = facts.shape(node)
    if shape is not None:
        if shape.rank == 1:
            return Obligation(claim, "proven", facts.why(node))
        if shape.rank is not None or len(shape.dims) > 1:
            return None
    if any(_is_made_with_several(graph, n) for n in made_of if n.op == "attr"):
        return None
    bare = [n for n in made_of if n.op == "param"]
    if len(bare) > 1 or (bare and not modulated and narrow(graph, node) is not bare[0]):
        return None
    return Obligation(claim, "unknown", facts.why(node))


def _is_made_with_several(graph: Graph, attribute: Node) -> bool:
    """Whether a call makes an object with a tuple where `__init__` takes sizes of the array: `Norm((heads, dim))`."""
    made, owner = attribute.attrs.get("init"), graph.context.class_name
    program = graph.program
    if not isinstance(made, Node) or owner is None or program is None or program.elsewhere is None:
        return False
    names = {str(n.attrs["name"]) for n in region(made, ()) if n.op == "param"} - {"self"}
    init = graph.module.method(owner, "__init__")
    if not names or init is None:
        return False
    taken = [p.name for p in graph.module.functions[init].parameters][1:]
    elsewhere, found = program.elsewhere, Definition(program.elsewhere.path_of(graph), owner)
    for path in (found.path, *elsewhere.modules.users(found)):
        held, summary = elsewhere.modules.mentions(path), elsewhere.modules.summary(path)
        if held is None or summary is None:
            continue
        for called in sorted({owner, *elsewhere.modules.renamed(path, owner)}):
            for m in held.by_name.get(called, ()):
                if m.given and elsewhere.resolved(path, summary.resolve(m.text, m.by) or "") == found:
                    sizes = (m.given.get(name, m.given.get(taken.index(name))) for name in names if name in taken)
                    if any(isinstance(v, (ast.Tuple, ast.List)) and len(v.elts) > 1 for v in sizes):
                        return True
    return False


def _leaves(node: Node) -> list[Node] | None:
    """The parameters and attributes that a value is made of, where that takes arithmetic only."""
    out: list[Node] = []
    stack, seen = [node], set[Node]()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        if n.op in ("param", "attr", "global"):
            out.append(n)
        elif n.op not in ("const", "dtype"):
            op = TABLE.get(n.op)
            if op is None or op.kind not in ("cast", "unary", "binary", "create"):
                return None
            stack.extend(operands(n))
    return out


# -- dtypes ------------------------------------------------------------------------------------------------------------


def policy_of(graph: Graph, chain: Sequence[Node], read: Readings, x: Node) -> str:
    """Where float32 was written: nowhere, around the norm, around norm and weight, or to the end."""
    facts = graph.facts
    if facts.dtype(x) == FLOAT32 or facts.dtype(chain[0]) != FLOAT32:
        return "none"

    def is_weighted(norm: Norm | None) -> bool:
        return norm is not None and bool(norm.rest or norm.bias or norm.scale != 1.0)

    weighted = next((i for i, n in enumerate(chain) if is_weighted(read[n])), None)
    if weighted is not None and (weighted == 0 or facts.dtype(chain[weighted - 1]) == FLOAT32):
        return "float32" if facts.dtype(chain[-1]) == FLOAT32 else "gemma"
    before = chain if weighted is None else chain[:weighted]
    return "float32" if facts.dtype(before[-1]) == FLOAT32 else "llama"


def dtype_stays(graph: Graph, root: Node, made_of: Iterable[Node], eps: Hole) -> Obligation:
    """Whether the fused result, the promotion of what it is made of, has the dtype that was written."""
    claim = "the result keeps its dtype"
    made, written = DType(), graph.facts.dtype(root)
    if isinstance(eps, Node) and graph.facts.kind(eps) == "unknown" and is_number(graph, eps).verdict == "proven":
        written = DType(written - graph.facts.dtype(eps))
    for n in made_of:
        made = made | graph.facts.dtype(n) if made else graph.facts.dtype(n)
    if root.op == "phi" and graph.canonical.of(root) is not graph.canonical.of(root.inputs[0]):  # an optional weight
        written = max((graph.facts.dtype(n) for n in root.inputs), key=len)
        if any(not graph.facts.dtype(n) <= written for n in root.inputs):
            written = DType()
    if written and written == made:
        return Obligation(claim, "proven", f"{written} before and after")
    return Obligation(claim, "unknown", f"{written} as written, {made} from the fused kernel")


def numerics_of(graph: Graph, policy: str, x: Node, kept: Obligation) -> Numerics:
    """On a GPU the fused kernel adds a row's entries up in another order than `mean` does."""
    if policy == "gemma":
        return "less accurate"
    if kept.verdict != "proven":
        return "different dtype"
    return "more accurate" if policy == "none" and graph.facts.dtype(x) != FLOAT32 else "reassociated"


def helpers(root: Node, owned: Iterable[Node]) -> list[tuple[Node, str]]:
    """The helpers that hold a part of it."""
    found: dict[str, Node] = {}
    for n in owned:
        if n.frame is not root.frame and n.cst is not None:
            found.setdefault(n.frame.qualname, n)
    return [(n, f"with `{name.rsplit('.', 1)[-1]}`") for name, n in found.items()]
