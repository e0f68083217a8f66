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

from fuselint.graph.around import is_made_with
from fuselint.graph.canonical import Canonical, walk
from fuselint.graph.identities_reduce import kept
from fuselint.graph.model import Graph, Node
from fuselint.graph.values import HALF, Factor, Term, Value, close

Kind = Literal["rms", "layer", "l2"]
Axes = tuple[int, ...]

LAST: Axes = (-1,)
ROOT = -HALF


@dataclass(frozen=True, slots=True)
class Norm:
    """x: what is squared: for a layer norm x - mean(x). moments: the variance is E[x^2] - E[x]^2.

    scale: a number that an l2 norm is multiplied by; the other norms have none.
    length: what a sum of squares was divided by, if not by x's own length: it may be that, as `self.dims` is.
    """

    kind: Kind
    axes: Axes
    x: Value
    eps: Value
    rest: tuple[Factor, ...]
    scale: float = 1.0
    bias: Value | None = None
    moments: bool = False
    length: Value | None = None

    def same(self, other: Norm | None) -> bool:
        return (
            other is not None
            and (self.kind, self.axes) == (other.kind, other.axes)
            and (self.x, self.eps, self.length) == (other.x, other.eps, other.length)
        )


ROOTING = frozenset(["sqrt", "rsqrt", "power", "linalg.norm", "std"])
"""Operations of which one takes the root, of every norm."""

AFFINE = 4
"""Most steps of one branch of a choice: a weight, a bias, and their casts."""

Readings = Mapping[Node, Norm | None]

_readings: WeakKeyDictionary[Graph, dict[Kind, Readings]] = WeakKeyDictionary()


def readings(graph: Graph, kind: Kind) -> Readings:
    """What each node of the graph is, read as a norm of that kind."""
    known = _readings.setdefault(graph, {})
    found = known.get(kind)
    if found is None and graph.ops.isdisjoint(ROOTING):
        found = known[kind] = {}
    elif found is None:
        c = graph.canonical
        found = known[kind] = {n: read(c, c.of(n), kind) for n in graph.nodes}
    return found


# -- one value ---------------------------------------------------------------------------------------------------------


def read(c: Canonical, value: Value, kind: Kind) -> Norm | None:
    if kind == "layer" and value.op == "sum":
        return _with_bias(c, value)
    for base, e in value.factors:
        if e == ROOT and (norm := _with_root(c, value, base, kind)) is not None:
            return norm
    if kind == "rms":
        for supposed, length in _supposing(c, value):
            norm = read(c, supposed, kind)
            if norm is not None and norm.length is None:
                return replace(norm, length=length)
    return None


def _supposing(c: Canonical, value: Value) -> Iterator[tuple[Value, Value]]:
    """The value with sum / n as a mean, and n: for numbers that may be the length of the axis, as `self.dims` is."""
    for base, e in value.factors:
        if e != ROOT:
            continue
        if base.op == "reduce_sum":
            for n in [b for b, k in value.factors if b.scalar and k == HALF]:
                yield _replaced(c, c.algebra.divide(value, c.algebra.power(n, HALF)), base, _as_mean(c, base)), n
        for m, k in base.terms:
            total = [b for b, _ in m.factors if b.op == "reduce_sum"]
            below = [b for b, x in m.factors if b.scalar and x == -1]
            number = base.op == "sum" and len(m.factors) == 1 and k > 0
            if len(total) != 1 or not (number or (len(below) == 1 and len(m.factors) == 2)):
                continue
            n = c.algebra.number(1 / k) if number else below[0]
            others = [(t, q) for t, q in base.terms if t is not m]
            root = c.algebra.sum(base.constant, [*others, (_as_mean(c, total[0]), 1.0 if number else k)])
            yield _replaced(c, value, base, root), n


def _as_mean(c: Canonical, total: Value) -> Value:
    return c.algebra.atom("mean", total.args, total.params, nonnegative=total.nonnegative)


def _replaced(c: Canonical, value: Value, old: Value, new: Value) -> Value:
    return c.algebra.product(value.coefficient, [(new if b is old and e == ROOT else b, e) for b, e in value.factors])


def _with_bias(c: Canonical, value: Value) -> Norm | None:
    """A sum of which one term is a layer norm: the others are its bias."""
    if value.constant:
        return None
    found: list[tuple[Norm, list[Term]]] = []
    for m, k in value.terms:
        norm = read(c, c.algebra.scale(m, k), "layer") if m.op == "product" else None
        if norm is not None:
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


def _with_root(c: Canonical, value: Value, root: Value, kind: Kind) -> Norm | None:
    """value as a norm whose root is of `root`."""
    for s in root_mean_squares(c, root):
        of: Kind = "l2" if s.kind == "sum" else "layer" if is_centred(c, s.x, s.axes) else "rms"
        norm: Norm | None = None
        if of == kind:
            norm = _checked(c, value, root, s.coefficient, Norm(kind, s.axes, s.x, s.eps, ()))
        elif of == "rms" and kind == "layer":
            norm = _from_moments(c, value, root, s)
        if norm is not None:
            return norm
    return None


def _from_moments(c: Canonical, value: Value, root: Value, s: Squares) -> Norm | None:
    """A layer norm whose variance is E[x^2] - E[x]^2."""
    mean = kept(c, "mean", s.x, s.axes)
    square = c.algebra.power(mean, Fraction(2))
    rest = [(t, q) for t, q in s.eps.terms if not (t is square and close(q, -1.0, 1e-9))]
    if len(rest) == len(s.eps.terms):
        return None
    eps = c.algebra.sum(s.eps.constant, rest)
    norm = Norm("layer", s.axes, c.algebra.subtract(s.x, mean), eps, (), moments=True)
    return _checked(c, value, root, s.coefficient, norm)


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
    if not may_be_eps(c, norm.eps) or any(not m.scalar and m in walk(norm.x) for m, _ in norm.eps.terms):
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


def roots(graph: Graph) -> Iterator[Node]:
    """Roots of reductions: a norm may nearly stand around one."""
    for n in graph.nodes:
        if n.op in ("linalg.norm", "std") or (
            n.op in ("sqrt", "rsqrt", "power") and is_made_with(n, ("mean", "sum", "var"))
        ):
            yield n


# -- the chain of readings ---------------------------------------------------------------------------------------------


def chains(graph: Graph, kind: Kind) -> Iterator[dict[Node, list[Node]]]:
    """For each norm of a kind: the nodes that a match may end at, each with the readings up to it."""
    found = readings(graph, kind)
    for node, norm in found.items():
        if norm is None or any(norm.same(found.get(i)) for i in node.inputs):
            continue
        chain, roots = [node], [node]
        while (above := _readers(graph, chain[-1])) and all(norm.same(found.get(n)) for n in above):
            chain += above
            if above[-1].op != "phi" or isinstance(above[-1].cst, cst.IfExp):  # a join of statements is no expression
                roots.append(above[-1])
        yield {n: chain[: chain.index(n) + 1] for n in roots}


def _readers(graph: Graph, node: Node) -> list[Node]:
    """The one reader of a value, or all of `y * w + b if w is not None else y`; nothing where others read it too."""
    readers = graph.users.get(node, ())
    if node in graph.escaping or not 0 < len(readers) <= 2:
        return []
    first, join = readers[0], readers[-1]
    if join is first:
        return [first]
    branch = [first]
    while len(above := graph.users.get(branch[-1], ())) == 1 and above[0] is not join and len(branch) < AFFINE:
        branch.append(above[0])
    joined = join.op == "phi" and set(join.inputs) == {node, branch[-1]} and above == (join,)
    return [*branch, join] if joined and graph.escaping.isdisjoint(branch) else []
