"""Dtypes that nobody states, as casts and bytes are counted.

MLX casts the narrower of two operands, in a kernel of its own. Whether it does is only known where the code says what
both are. So an argument, or the result of a call that isn't followed, has the dtype of the operand it meets, unless a
cast of it shows that it has another: `x.astype(mx.float32)` says that x isn't float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from fuselint.graph.dtypes import HALF, UNKNOWN
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.ops import TABLE

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts

FROM_OUTSIDE = frozenset({"param", "call", "item", "loop", "phi", "global", "opaque"})
"""Operations whose result may have any dtype. An attribute of an object, which is a weight, has the model's."""

ARRAYS = ("array", "unknown")
MEETING = frozenset({"binary", "ternary", "matmul"})
TAKING = frozenset({"view", "copy", "gather"})
STATED = (*HALF, "float32", "complex64")

MADE = frozenset({"zeros", "ones", "full"})
"""What a constructor makes weights with."""

FARTHEST = 60
"""Values between what a branch computes and what it computes it of."""

ROUNDS = 3
"""How often operations are gone through: what a value is counted as may decide it for those before."""


def unstated(graph: Graph, facts: KnownFacts) -> frozenset[str]:
    """The symbols of dtypes that nothing in the function says anything of."""
    out: set[str] = set()
    for node, new in _firsts(graph.nodes, facts):
        if is_from_outside(node) or (node.op == "attr" and not isinstance(node.attrs.get("init"), Node)):
            out |= new
    return frozenset(out - _shown(graph, facts, {}))


def from_outside(value: Node, facts: KnownFacts) -> frozenset[str]:
    """The symbols of the dtypes of arguments and of what isn't followed that a value is made of, no weights among
    them."""
    return frozenset(s for node, new in _firsts(region(value, ()), facts) if is_from_outside(node) for s in new)


def is_from_outside(node: Node) -> bool:
    """An argument, what isn't followed, or an attribute that the constructor leaves empty: no weight."""
    made = node.attrs.get("init") if node.op == "attr" else None
    return node.op in FROM_OUTSIDE or (isinstance(made, Node) and made.op == "const")


def merged(graph: Graph, facts: KnownFacts) -> frozenset[str]:
    """The symbols of dtypes that a loop's or a branch's value brings up: it has the dtype of what comes in."""
    if facts.merged is None:
        firsts = _firsts(graph.nodes, facts)
        facts.merged = frozenset(s for node, new in firsts if node.op in ("loop", "phi") for s in new)
    return facts.merged


def _firsts(nodes: Iterable[Node], facts: KnownFacts) -> Iterator[tuple[Node, frozenset[str]]]:
    """Each value with the symbols that no value before it has: those of its own."""
    seen: set[str] = set()
    for node in nodes:
        new = facts.dtype(node).symbols - seen if facts.kind(node) in ARRAYS else frozenset()
        yield node, frozenset(new)
        seen |= new


def _shown(graph: Graph, facts: KnownFacts, given: Mapping[str, str]) -> set[str]:
    """The symbols of dtypes that a cast leaves, or restores: they aren't the stated one."""
    out: set[str] = set()
    for node in graph.nodes:
        if node.op != "astype":
            continue
        before, after = facts.dtype(node.inputs[0]).bound(given), facts.dtype(node)
        if after.name in STATED:
            out |= before.symbols
        elif before.name in STATED:
            out |= after.symbols
    return out


def counted(
    nodes: Iterable[Node], facts: KnownFacts, given: Mapping[str, str] | None = None, *, narrow: bool = False
) -> dict[str, str]:
    """What unstated dtypes are counted as where some operations are looked at: those of the operands beside them.

    A condition counts as one, and a parameter that is a dtype as its default. given: what the package's calls say,
    where costs are counted; None where a rule looks at operations. narrow: that an operand is float32 says nothing
    of the one beside it.
    """
    known, unstated = _beside(facts, given)
    out = dict(known)
    meeting = [n for n in nodes if (op := TABLE.get(n.op)) is not None and op.kind in MEETING]
    for _ in range(ROUNDS if unstated else 0):
        before = len(out)
        for node in meeting:
            if node.op == "where" and (condition := facts.dtype(node.inputs[0]).bound(out)) <= unstated:
                out.update(dict.fromkeys(condition, "bool_"))
            arrays = [n for n in node.inputs[node.op == "where" :] if facts.kind(n) in ARRAYS]
            dtypes = [facts.dtype(n).bound(out) for n in arrays]
            stated = next((d.name for d in dtypes if d.name in STATED), None)
            if narrow and stated == "float32":
                continue
            for n, d in zip(arrays, dtypes, strict=True) if stated is not None else ():
                if d and d <= unstated and (stated != "complex64" or _rotates(node, n)):
                    out.update(dict.fromkeys(d, str(stated)))
        if len(out) == before:
            break
    return out


def _beside(facts: KnownFacts, given: Mapping[str, str] | None) -> tuple[Mapping[str, str], AbstractSet[str]]:
    """What unstated dtypes are counted as whichever operations are looked at, and the symbols that are still open.

    All of the function is gone through for that: once for each `given`, since many chains ask.
    """
    key = None if given is None else frozenset(given.items())
    if key not in facts.counted:
        out, unstated = ({}, facts.unstated) if given is None else _told(facts, given)
        facts.counted[key] = {**_joins(facts, given or {}), **dict(_defaults(facts)), **out}, unstated
    return facts.counted[key]


def _joins(facts: KnownFacts, given: Mapping[str, str]) -> dict[str, str]:
    """The symbols of values that a branch computes anew, `if freqs is not None: q = rotated(q, freqs)`, with the dtype
    that this gives them: the way that computes more counts. A cast alone computes nothing."""
    out: dict[str, str] = {}
    for node in facts.graph.nodes:
        own = facts.dtype(node).symbols if node.op == "phi" and facts.kind(node) in ARRAYS else frozenset()
        if len(own) != 1 or any(own & facts.dtype(n).symbols for n in node.inputs):
            continue  # a cast of it later says nothing: it is as the branch makes it
        known = {**out, **given}
        for made, before in (node.inputs, node.inputs[::-1]):
            dtype = facts.dtype(made).bound(known).name
            if dtype in STATED and facts.dtype(before).name is None and is_made_of(made, before):
                out[next(iter(own))] = dtype
    return out


def is_made_of(value: Node, source: Node) -> bool:
    """Whether a value is computed from another, and not only cast."""
    found, waiting = {value}, [value]
    while waiting and len(found) < FARTHEST:
        node = waiting.pop()
        new = [n for n in node.inputs if n not in found and n.id >= source.id]
        found.update(new)
        waiting += new
    return source in found and value.op != "astype"


def _told(facts: KnownFacts, given: Mapping[str, str]) -> tuple[dict[str, str], AbstractSet[str]]:
    """What casts and calls tell costs of dtypes, besides what is given, and the symbols of which nothing is told."""
    shown = _shown(facts.graph, facts, given) - given.keys()
    wider = list(_wider(facts, facts.unstated - shown))
    shown |= {narrow for narrow, _ in wider}
    out = {**{wide: "float32" for _, wide in wider}, **given}
    shown |= set(_like(facts, shown, facts.unstated - shown - out.keys()))
    _follow_calls(facts, facts.unstated - shown, out)
    return out, facts.unstated - shown


def _like(facts: KnownFacts, shown: AbstractSet[str], unstated: AbstractSet[str]) -> Iterator[str]:
    """The symbols of dtypes that meet one that isn't float32 by itself, and so aren't either."""
    for node in facts.graph.nodes if shown and unstated else ():
        dtypes = [facts.dtype(n) for n in node.inputs] if node.op in ("add", "subtract") else []
        if any(d and d <= shown for d in dtypes):
            yield from (s for d in dtypes if len(d) == 1 for s in d & unstated)


def _follow_calls(facts: KnownFacts, unstated: frozenset[str], out: dict[str, str]) -> None:
    """Calls that aren't followed make float32 of float32: weights don't make it narrower."""
    for node in facts.graph.nodes if unstated else ():
        own = facts.dtype(node) if node.op == "call" else UNKNOWN
        if len(own) == 1 and own <= unstated and not own & out.keys():
            given = next((facts.dtype(n).bound(out) for n in node.inputs if facts.kind(n) == "array"), UNKNOWN)
            if given.name == "float32":
                out.update(dict.fromkeys(own, "float32"))


def _wider(facts: KnownFacts, unstated: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Two dtypes of which the second is wider, since the code casts back to the first: `(x * cos).astype(x.dtype)` says
    of cos that it is float32. It says nothing of what is multiplied as matrices: keys, values."""
    factors = _factors(facts.graph) if unstated else set()
    unstated = unstated.difference(*(new for n, new in _firsts(facts.graph.nodes, facts) if n in factors))
    for node in facts.graph.nodes:
        before, after = (facts.dtype(n) for n in (node.inputs[0], node)) if node.op == "astype" else (UNKNOWN, UNKNOWN)
        if len(after) == 1 and after < before and before.symbols == before:
            yield from ((next(iter(after)), wide) for wide in (before - after) & unstated)


def _factors(graph: Graph) -> set[Node]:
    """What is multiplied as matrices, and what that is taken from."""
    found: set[Node] = set()
    waiting = [x for n in graph.nodes if n.op in TABLE and TABLE[n.op].kind == "matmul" for x in n.inputs]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            taken = node.op == "index" or (node.op in TABLE and TABLE[node.op].kind in TAKING)
            waiting += node.inputs if node.op == "phi" else node.inputs[:1] if taken else ()
    return found


def wide_weights(facts: KnownFacts) -> Mapping[str, str]:
    """The symbols of weights that the constructor makes float32 in so many words, which a checkpoint has in float32
    too."""
    if facts.wide_weights is None:
        out: dict[str, str] = {}
        for node in facts.graph.nodes if "attr" in facts.graph.ops else ():
            made = node.attrs.get("init") if node.op == "attr" else None
            if isinstance(made, Node) and made.op in MADE and made.attrs.get("dtype") == "float32":
                out.update(dict.fromkeys(facts.dtype(node).symbols, "float32"))
        facts.wide_weights = out
    return facts.wide_weights


def _defaults(facts: KnownFacts) -> Iterator[tuple[str, str]]:
    """The symbols of parameters that are dtypes, with the dtypes that they have where the caller gives none; and those
    of weights and of attributes of classes, as constructors and classes state them."""
    yield from wide_weights(facts).items()
    for node in facts.graph.nodes:
        said = facts.usual_dtype(node) if node.op == "global" else ""
        if said:
            yield facts.name_of(node), said
        default = node.attrs.get("default") if node.op == "param" else None
        if isinstance(default, Node) and default.attrs.get("kind") == "dtype":
            symbols = facts.dtype(node).symbols
            if len(symbols) == 1:
                yield next(iter(symbols)), default.attrs["value"]


def _rotates(node: Node, operand: Node) -> bool:
    """Whether a complex value is multiplied by a table; `a + 1j * b` and `r * (c + 1j * s)` are of real ones."""
    while operand.op == "index" or (operand.op in TABLE and TABLE[operand.op].kind == "view" and operand.inputs):
        operand = operand.inputs[0]
    return node.op == "multiply" and operand.op in FROM_OUTSIDE
