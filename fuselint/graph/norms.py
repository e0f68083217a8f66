"""Norms in the canonical form: a value divided by the root of a mean or a sum of its squares.

| kind | value |
|---|---|
| rms | x * (mean(x^2) + eps)^(-1/2) |
| layer | (x - mean(x)) * (mean((x - mean(x))^2) + eps)^(-1/2), the mean also as E[x^2] - E[x]^2 |
| l2 | x * (sum(x^2) + eps)^(-1/2) |

each times a rest of factors, and for a layer norm plus a bias. Several nodes are readings of one norm: the division,
the cast after it, the product with a weight. They follow one another in a chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal
from weakref import WeakKeyDictionary

import libcst as cst

from fuselint.graph.canonical import Canonical
from fuselint.graph.identities_reduce import kept
from fuselint.graph.model import Graph, Node
from fuselint.graph.values import Factor, Term, Value, close

Kind = Literal["rms", "layer", "l2"]
Axes = tuple[int, ...]

LAST: Axes = (-1,)
ROOT = Fraction(-1, 2)


@dataclass(frozen=True, slots=True)
class Norm:
    """x: what is squared: for a layer norm x - mean(x). moments: the variance is E[x^2] - E[x]^2.

    scale: a number that an l2 norm is multiplied by; the other norms have none.
    """

    kind: Kind
    axes: Axes
    x: Value
    eps: Value
    rest: tuple[Factor, ...]
    scale: float = 1.0
    bias: Value | None = None
    moments: bool = False

    def same(self, other: Norm | None) -> bool:
        return (
            other is not None
            and (self.kind, self.axes) == (other.kind, other.axes)
            and self.x is other.x
            and self.eps is other.eps
        )


Readings = Mapping[Node, Norm | None]

_readings: WeakKeyDictionary[Graph, Readings] = WeakKeyDictionary()


def readings(graph: Graph) -> Readings:
    """What each node of the graph is, read as a norm."""
    found = _readings.get(graph)
    if found is None:
        c = graph.canonical
        found = _readings[graph] = {n: read(c, c.of(n)) for n in graph.nodes}
    return found


# -- one value ---------------------------------------------------------------------------------------------------------


def read(c: Canonical, value: Value) -> Norm | None:
    if value.op == "sum":
        return _with_bias(c, value)
    for base, e in value.factors:
        if e == ROOT and (norm := _with_root(c, value, base)) is not None:
            return norm
    return None


def _with_bias(c: Canonical, value: Value) -> Norm | None:
    """A sum of which one term is a layer norm: the others are its bias."""
    if value.constant:
        return None
    found: list[tuple[Norm, list[Term]]] = []
    for m, k in value.terms:
        norm = read(c, c.algebra.scale(m, k)) if m.op == "product" else None
        if norm is not None and norm.kind == "layer":
            found.append((norm, [t for t in value.terms if t[0] is not m]))
    if len(found) != 1:
        return None
    norm, others = found[0]
    return replace(norm, bias=c.algebra.sum(0.0, others))


@dataclass(frozen=True, slots=True)
class Squares:
    """A value read as coefficient * (mean(x^2) + eps), or with a sum for the mean."""

    kind: Literal["mean", "sum"]
    axes: Axes
    x: Value
    eps: Value
    coefficient: float


def root_mean_squares(c: Canonical, value: Value) -> Iterator[Squares]:
    """The readings of a value, which stands under a root, as a mean or a sum of squares and a number.

    eps is what there is beside the mean, whether it may be a number or not: see `may_be_eps`.
    """
    for m, k in value.terms:
        if m.op not in ("mean", "reduce_sum") or k <= 0 or not isinstance(m.param("axes"), tuple):
            continue
        x = _root_of(c, m.args[0])
        if x is not None:
            eps = c.algebra.sum(value.constant / k, [(t, q / k) for t, q in value.terms if t is not m])
            yield Squares("sum" if m.op == "reduce_sum" else "mean", m.param("axes"), x, eps, k)


def _with_root(c: Canonical, value: Value, root: Value) -> Norm | None:
    """value as a norm whose root is of `root`."""
    for s in root_mean_squares(c, root):
        kind: Kind = "l2" if s.kind == "sum" else "layer" if is_centred(c, s.x, s.axes) else "rms"
        norm = _checked(c, value, root, s.coefficient, Norm(kind, s.axes, s.x, s.eps, ()))
        if norm is not None:
            return norm
        if kind == "rms":
            mean = kept(c, "mean", s.x, s.axes)
            square = c.algebra.power(mean, Fraction(2))
            rest = [(t, q) for t, q in s.eps.terms if not (t is square and close(q, -1.0, 1e-9))]
            if len(rest) == len(s.eps.terms):
                continue
            eps = c.algebra.sum(s.eps.constant, rest)  # E[x^2] - E[x]^2 + eps
            centred = c.algebra.subtract(s.x, mean)
            norm = _checked(c, value, root, s.coefficient, Norm("layer", s.axes, centred, eps, (), moments=True))
            if norm is not None:
                return norm
    return None


def _root_of(c: Canonical, square: Value) -> Value | None:
    """x, where the value is x^2."""
    if (
        square.coefficient != 1.0
        or any(e.denominator != 1 or e.numerator % 2 for _, e in square.factors)
        or not square.factors
    ):
        return None
    return c.algebra.product(1.0, [(b, e / 2) for b, e in square.factors])


def _checked(c: Canonical, value: Value, root: Value, k: float, norm: Norm) -> Norm | None:
    """The norm with its rest, where value is norm * rest and eps a number that isn't negative."""
    if not may_be_eps(c, norm.eps):
        return None
    core = c.algebra.multiply(norm.x, c.algebra.power(c.algebra.scale(root, 1 / k), ROOT))
    scale = value.coefficient / core.coefficient
    if not close(scale, 1.0, 1e-9) and (norm.kind != "l2" or scale <= 0):
        return None
    left = {(b, e > 0): e for b, e in value.factors}
    for b, e in core.factors:
        have = left.get((b, e > 0), Fraction(0))
        if abs(have) < abs(e):
            return None
        left[(b, e > 0)] = have - e
    return replace(norm, rest=tuple((b, e) for (b, _), e in left.items() if e), scale=scale)


def may_be_eps(c: Canonical, value: Value) -> bool:
    """Whether a value may be a Python number that isn't negative."""
    return all(_may_be_number(c, m) for m, _ in value.terms) and (value.number is None or value.number >= 0)


def _may_be_number(c: Canonical, value: Value) -> bool:
    """A Python number, or a name that nothing is known of."""
    return value.scalar or any(
        c.facts.kind(n) == "unknown" and n.op in ("param", "attr", "global", "phi") for n in c.nodes(value)[:1]
    )


def is_centred(c: Canonical, x: Value, axes: Axes) -> bool:
    """Whether x is y - mean(y) over these axes."""
    if x.op != "sum":
        return False
    for m, _ in x.terms:
        if m.op == "mean" and m.param("axes") == axes:
            rest = c.algebra.sum(x.constant, [t for t in x.terms if t[0] is not m])
            if c.algebra.subtract(rest, kept(c, "mean", rest, axes)) is x:
                return True
    return False


# -- the chain of readings ---------------------------------------------------------------------------------------------


def chains(graph: Graph, kind: Kind) -> Iterator[dict[Node, list[Node]]]:
    """For each norm of a kind: the nodes that a match may end at, each with the readings up to it."""
    found = readings(graph)
    for node, norm in found.items():
        if norm is None or norm.kind != kind or any(norm.same(found.get(i)) for i in node.inputs):
            continue
        chain, roots = [node], [node]
        while (above := _readers(graph, chain[-1])) and all(norm.same(found.get(n)) for n in above):
            chain += above
            if above[-1].op != "phi" or isinstance(above[-1].cst, cst.IfExp):  # a join of statements is no expression
                roots.append(above[-1])
        yield {n: chain[: chain.index(n) + 1] for n in roots}


def _readers(graph: Graph, node: Node) -> list[Node]:
    """The one reader of a value, or both of `y * w if w is not None else y`; nothing where others read it too."""
    readers = graph.users.get(node, ())
    if node in graph.escaping or not 0 < len(readers) <= 2:
        return []
    first, join = readers[0], readers[-1]
    if join is first or (join.op == "phi" and set(join.inputs) == {node, first} and graph.users.get(first) == (join,)):
        return list(readers)
    return []
