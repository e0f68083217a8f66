"""Values in normal form, hash-consed: equal mathematics is one object.

A value is one of

* an Atom: an operation that the algebra doesn't open, on values: `exp(u)`, `matmul(a, b)`, a parameter, a weight;
* a Product: coefficient x factors, each an atom or a sum with a rational exponent;
* a Sum: constant + terms, each a coefficient x a product. The first term's coefficient is 1, and no factor is common
  to all terms: what is common stands outside, in a product. So `0.5 + 0.5*e` is `0.5 * (e + 1)`.

Any value can be read as a product (`coefficient`, `factors`) and as a sum (`constant`, `terms`). Products of sums are
never multiplied out, and nothing is cancelled: `x / x` is `x * x^-1`, which still has x's shape. Sizes of axes cancel.

Operands stand in an order that depends on structure only, not on spelling, and not on constants.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import Any

Factor = tuple["Value", Fraction]
Term = tuple["Value", float]

ONE, HALF = Fraction(1), Fraction(1, 2)

MAX_PARTS = 48
"""Terms of a sum, factors of a product: a longer one nests, so that a chain of n operations costs O(n)."""

MAX_EXPONENT = 64


def close(a: float, b: float, tolerance: float = 1e-7) -> bool:
    """Whether two constants are the same number, relatively. Nothing is close to zero but zero."""
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b))


class Value:
    """A hash-consed value: compare with `is` or `==`.

    order: (height, structural hash without constants): where it stands among operands.
    scalar: a Python number, or made of sizes and scalars only; it moves through every linear operation.
    nonnegative: never below zero, whatever the inputs.
    """

    __slots__ = (
        "args",
        "coefficient",
        "constant",
        "factors",
        "id",
        "nonnegative",
        "op",
        "order",
        "params",
        "scalar",
        "terms",
    )

    id: int
    op: str  # "product", "sum", or the operation of an atom
    args: tuple[Value, ...]
    params: tuple[tuple[str, Any], ...]
    coefficient: float
    factors: tuple[Factor, ...]
    constant: float
    terms: tuple[Term, ...]
    order: tuple[int, int]
    scalar: bool
    nonnegative: bool

    def param(self, name: str, default: Any = None) -> Any:
        return next((v for k, v in self.params if k == name), default)

    @property
    def number(self) -> float | None:
        """The constant that this value is, or None."""
        return self.coefficient if self.op == "product" and not self.factors else None

    def is_number(self, number: float) -> bool:
        return self.number is not None and close(self.number, number, 1e-9)

    def __repr__(self) -> str:
        return text(self)


def _hash(*parts: Any) -> int:
    """A hash that is the same in every process."""
    return hash(tuple(zlib.crc32(p.encode()) if isinstance(p, str) else p for p in parts))


def _snap(c: float) -> float:
    """A number as a key: two computations of one constant differ in the last digits."""
    return float(f"{c:.12g}")


class Algebra:
    """Makes values, and knows the identities of products and sums.

    `note` is called with the name of each identity that is applied.
    """

    def __init__(self, note: Callable[[str], None] = lambda identity: None) -> None:
        self._table: dict[Hashable, Value] = {}
        self._ids = 0
        self.known_size: Callable[[Value, int], Value | None] = lambda value, axis: None
        self.note = note
        self.one = self.number(1.0)
        self.zero = self.number(0.0)

    def take_apart(self) -> None:
        """Nobody asks for values any more. An atom is a factor and a term of itself."""
        for value in self._table.values():
            value.factors, value.terms = (), ()
        self.__dict__.clear()

    # -- making ----------------------------------------------------------------------------------------------------

    def _new(self, key: Hashable, op: str) -> tuple[Value, bool]:
        found = self._table.get(key)
        if found is not None:
            return found, False
        v = Value()
        v.id, v.op, v.args, v.params = self._ids, op, (), ()
        v.scalar = v.nonnegative = False
        self._ids += 1
        self._table[key] = v
        return v, True

    def atom(
        self,
        op: str,
        args: Iterable[Value] = (),
        params: Iterable[tuple[str, Any]] = (),
        *,
        name: str = "",
        scalar: bool = False,
        nonnegative: bool = False,
    ) -> Value:
        """The operation `op` of `args`. `name` tells leaves apart, and orders them: the same in every spelling."""
        args, params = tuple(args), tuple(params)
        v, new = self._new((op, args, params, name), op)
        if new:
            v.args, v.params = args, params if not name else (("name", name), *params)
            v.coefficient, v.factors = 1.0, ((v, ONE),)
            v.constant, v.terms = 0.0, ((v, 1.0),)
            height = 1 + max((a.order[0] for a in args), default=-1)
            shown = [
                x
                for k, p in params
                for x in (k, p if isinstance(p, int) else p.order[1] if isinstance(p, Value) else str(p))
            ]
            v.order = (height, _hash(op, name, *(a.order[1] for a in args), *shown))
            v.scalar, v.nonnegative = scalar, nonnegative
        return v

    def number(self, c: float) -> Value:
        """A constant. Infinities and NaN are atoms: nothing is computed with them."""
        if not math.isfinite(c):
            return self.atom(
                "number", params=(("value", str(float(c))),), name=str(float(c)), scalar=True, nonnegative=c > 0
            )
        return self._product(float(c), ())

    def _product(self, coefficient: float, factors: tuple[Factor, ...]) -> Value:
        """The product as it stands: factors in order and normal."""
        if len(factors) == 1 and factors[0][1] == 1 and close(coefficient, 1.0, 1e-12):
            return factors[0][0]
        v, new = self._new(("product", _snap(coefficient), factors), "product")
        if new:
            v.coefficient, v.factors = coefficient, factors
            if not factors:
                v.constant, v.terms = coefficient, ()
            elif len(factors) == 1 and factors[0][1] == 1 and factors[0][0].op == "sum":
                inner = factors[0][0]
                v.constant = coefficient * inner.constant
                v.terms = tuple((m, c * coefficient) for m, c in inner.terms)
            else:
                v.constant, v.terms = (
                    0.0,
                    ((self._product(1.0, factors), coefficient),) if coefficient != 1.0 else ((v, 1.0),),
                )
            v.order = (
                max((b.order[0] for b, _ in factors), default=0),
                _hash("product", *(x for b, e in factors for x in (b.order[1], e.numerator, e.denominator))),
            )
            v.scalar = all(b.scalar for b, _ in factors)
            v.nonnegative = coefficient >= 0 and all(_nonnegative_power(b, e) for b, e in factors)
        return v

    def _sum(self, constant: float, terms: tuple[Term, ...]) -> Value:
        """The sum as it stands: at least two parts, in order, the first coefficient 1, nothing common."""
        v, new = self._new(("sum", _snap(constant), tuple((m, _snap(c)) for m, c in terms)), "sum")
        if new:
            v.coefficient, v.factors = 1.0, ((v, ONE),)
            v.constant, v.terms = constant, terms
            v.order = (max(m.order[0] for m, _ in terms), _hash("sum", constant != 0, *(m.order[1] for m, _ in terms)))
            v.scalar = all(m.scalar for m, _ in terms)
            v.nonnegative = constant >= 0 and all(c >= 0 and m.nonnegative for m, c in terms)
        return v

    # -- products --------------------------------------------------------------------------------------------------

    def product(self, coefficient: float, factors: Iterable[Factor]) -> Value:
        """coefficient x factors, in normal form. Factors may be any values."""
        merged: dict[tuple[Value, bool], Fraction] = {}
        stack = [(b, e) for b, e in factors][::-1]
        while stack:
            base, e = stack.pop()
            if e == 0:
                continue
            if base.op == "product" and e.denominator == 1:
                c = _power(base.coefficient, e)
                if c is None:  # 0 ** -1, or beyond the range of numbers
                    base = self.atom("group", (base,), scalar=base.scalar)
                else:
                    coefficient *= c
                    stack.extend((b, x * e) for b, x in reversed(base.factors))
                    continue
            key = (base, True if base.op == "size" else e > 0)
            merged[key] = merged.get(key, Fraction(0)) + e
        parts = {k: e for k, e in merged.items() if e != 0}
        coefficient = self._identities(coefficient, parts)
        listed = sorted(((b, e) for (b, _), e in parts.items()), key=lambda f: (*f[0].order, f[1], f[0].id))
        if len(listed) > MAX_PARTS:  # too long to merge further: what there is becomes one factor
            listed = [
                (self.atom("group", (self._product(1.0, tuple(listed)),), scalar=all(b.scalar for b, _ in listed)), ONE)
            ]
        if not math.isfinite(coefficient):
            listed = [*listed, (self.number(coefficient), ONE)]
            coefficient = 1.0
        return self._product(coefficient, tuple(listed))

    def _identities(self, coefficient: float, parts: dict[tuple[Value, bool], Fraction]) -> float:
        """What factors are to each other: sum / length, exp(u) / sum(exp(u)), 1 / (1 + exp(-u)). Changes `parts`."""
        for key in list(parts):
            base = key[0]
            if base.op == "abs" and parts[key] % 2 == 0:
                self._put(parts, base.args[0], parts.pop(key))
            elif base.op == "sum":
                self._logistic(key, parts)
            elif base.op in ("reduce_sum", "mean"):
                coefficient = self._mean(key, parts, coefficient)
        for key in list(parts):
            if key[0].op == "reduce_sum" and not key[1]:
                self._softmax(key, parts)
            elif key[0].op == "sigmoid" and key in parts:
                self._mirror(key, parts)
        return coefficient

    def _put(self, parts: dict[tuple[Value, bool], Fraction], base: Value, e: Fraction) -> None:
        key = (base, True if base.op == "size" else e > 0)
        total = parts.get(key, Fraction(0)) + e
        if total == 0:
            parts.pop(key, None)
        else:
            parts[key] = total

    def _take(self, parts: dict[tuple[Value, bool], Fraction], key: tuple[Value, bool], e: Fraction) -> None:
        parts[key] -= e
        if parts[key] == 0:
            del parts[key]

    def _logistic(self, key: tuple[Value, bool], parts: dict[tuple[Value, bool], Fraction]) -> None:
        """(1 + exp(-u))^-e = sigmoid(u)^e."""
        base, e = key[0], parts[key]
        if e > 0 or len(base.terms) != 1 or not close(base.constant, 1.0, 1e-9):
            return
        inner, c = base.terms[0]
        if inner.op != "exp" or inner.scalar or c != 1.0:
            return
        self.note("1 / (1 + exp(-u)) is sigmoid(u)")
        del parts[key]
        self._put(parts, self.sigmoid(self.scale(inner.args[0], -1.0)), -e)

    def _mirror(self, key: tuple[Value, bool], parts: dict[tuple[Value, bool], Fraction]) -> None:
        """exp(u) * sigmoid(-u) = sigmoid(u)."""
        u = self.scale(key[0].args[0], -1.0)
        top = (self.exp(u), True)
        if top in parts and key[1]:
            self.note("exp(u) * sigmoid(-u) is sigmoid(u)")
            e = min(parts[key], parts[top])
            self._take(parts, key, e)
            self._take(parts, top, e)
            self._put(parts, self.sigmoid(u), e)

    def _mean(self, key: tuple[Value, bool], parts: dict[tuple[Value, bool], Fraction], coefficient: float) -> float:
        """sum^e * n^-e = mean^e, where n is the length of that axis of that array; and mean^e * n^e = sum^e."""
        base, e = key[0], parts[key]
        axes = base.param("axes")
        if axes is None:
            return coefficient
        sizes = [self.size(base.args[0], a) for a in axes]
        want = -e if base.op == "reduce_sum" else e
        lengths = [s.number for s in sizes]
        if all(n is not None for n in lengths):
            n = math.prod(n for n in lengths if n is not None)
            c = _power(n, want)
            if c is None or n == 1.0 or not close(coefficient, c, 1e-9):
                return coefficient
            coefficient = 1.0
        else:
            need: dict[tuple[Value, bool], Fraction] = {}
            for s in sizes:
                for b, x in s.factors:
                    if b.op != "size" or s.coefficient != 1.0:
                        return coefficient
                    need[(b, True)] = need.get((b, True), Fraction(0)) + want * x
            for k, x in need.items():
                have = parts.get(k, Fraction(0))
                if have * x < 0 or abs(have) < abs(x):
                    return coefficient
            for k, x in need.items():
                self._put(parts, k[0], -x)
        other = "mean" if base.op == "reduce_sum" else "reduce_sum"
        self.note(
            "sum / n is mean: n is the length of that axis"
            if other == "mean"
            else "mean * n is sum: n is the length of that axis"
        )
        del parts[key]
        self._put(parts, self.atom(other, base.args, base.params, nonnegative=base.nonnegative), e)
        return coefficient

    def _softmax(self, key: tuple[Value, bool], parts: dict[tuple[Value, bool], Fraction]) -> None:
        """exp(u) / sum(exp(u)) = softmax(u), and the maximum over the same axis drops out of u."""
        total, e = key[0], parts[key]
        top = total.args[0]
        axes = total.param("axes")
        if (
            top.op != "exp"
            or axes is None
            or len(axes) != 1
            or not total.param("keepdims")
            or parts.get((top, True)) is None
        ):
            return
        if parts[(top, True)] < -e:
            return
        self.note("exp(u) / sum(exp(u)) is softmax(u)")
        del parts[key]
        self._take(parts, (top, True), -e)
        u = self.without_maximum(top.args[0], axes)
        self._put(parts, self.atom("softmax", (u,), (("axes", axes),), nonnegative=True), -e)

    def without_maximum(self, u: Value, axes: tuple[int, ...]) -> Value:
        """v where u is v - max(v) over the same axes: softmax and friends don't see the difference."""
        for m, c in u.terms:
            if m.op == "max" and close(c, -1.0, 1e-9) and m.param("axes") == axes and m.param("keepdims"):
                rest = self.add(u, self.scale(m, 1.0))
                rest = self.sum(rest.constant, [(t, k) for t, k in rest.terms if t is not m])
                if m.args[0] is rest:
                    self.note("softmax(u - max(u)) is softmax(u)")
                    return rest
        return u

    def multiply(self, *values: Value) -> Value:
        return self.product(1.0, [(v, ONE) for v in values])

    def divide(self, a: Value, b: Value) -> Value:
        return self.multiply(a, self.power(b, Fraction(-1)))

    def scale(self, v: Value, c: float) -> Value:
        return self.product(c, [(v, ONE)])

    def power(self, v: Value, e: Fraction) -> Value:
        """v ** e for a rational e. Non-integer powers split only where the parts are never negative."""
        if e == 1:
            return v
        if e == 0 or abs(e) > MAX_EXPONENT or e.denominator > MAX_EXPONENT:
            return self.atom("pow", (v, self.number(float(e))), scalar=v.scalar, nonnegative=v.nonnegative)
        if v.number is not None:
            c = _power(v.number, e)
            if c is None:
                return self.atom("pow", (v, self.number(float(e))), scalar=True)
            return self.number(c)
        if e.denominator == 1:
            return self.product(1.0, [(v, e)])
        outside = _power(abs(v.coefficient), e)
        if outside is None:
            return self.atom("pow", (v, self.number(float(e))), scalar=v.scalar)
        signed = v.coefficient < 0 or any(not _nonnegative_power(b, x) for b, x in v.factors)
        if (len(v.factors) == 1 and v.coefficient >= 0) or not signed:
            return self.product(outside, [self._root(b, x, e) for b, x in v.factors])
        # (u * v)^(1/2) of two negative factors is a number: only what is positive leaves
        free = [(b, x * e) for b, x in v.factors if _positive(b)]
        kept = [(b, x) for b, x in v.factors if not _positive(b)]
        return self.product(outside, [*free, (self.product(-1.0 if v.coefficient < 0 else 1.0, kept), e)])

    def _root(self, base: Value, x: Fraction, e: Fraction) -> Factor:
        """(base ** x) ** e, where it is a number: the root of a square is an absolute value."""
        even = x.denominator == 1 and x.numerator % 2 == 0
        still_even = (x * e).denominator == 1 and (x * e).numerator % 2 == 0
        return (self.absolute(base) if even and not still_even else base, x * e)

    def absolute(self, v: Value) -> Value:
        if v.nonnegative:
            return v
        if v.op == "product":
            return self.product(abs(v.coefficient), [(self.absolute(b), e) for b, e in v.factors])
        return self.atom("abs", (v,), scalar=v.scalar, nonnegative=True)

    def exp(self, u: Value) -> Value:
        if u.number is not None:
            return self.number(math.exp(u.number))
        return self.atom("exp", (u,), scalar=u.scalar, nonnegative=True)

    def sigmoid(self, u: Value) -> Value:
        return self.atom("sigmoid", (u,), scalar=u.scalar, nonnegative=True)

    def softplus(self, u: Value) -> Value:
        """log(exp(u) + exp(0)), as MLX has it."""
        args = sorted((u, self.zero), key=lambda v: (*v.order, v.id))
        return self.atom("logaddexp", args, scalar=u.scalar, nonnegative=True)

    # -- sums ------------------------------------------------------------------------------------------------------

    def add(self, *values: Value) -> Value:
        return self.sum(0.0, [(v, 1.0) for v in values])

    def subtract(self, a: Value, b: Value) -> Value:
        return self.sum(0.0, [(a, 1.0), (b, -1.0)])

    def sum(self, constant: float, terms: Iterable[Term]) -> Value:
        """constant + terms, in normal form. Terms may be any values."""
        merged: dict[Value, float] = {}
        for v, c in terms:
            parts = v.terms
            if len(parts) > MAX_PARTS // 2:
                parts = ((self.atom("group", (v,), scalar=v.scalar, nonnegative=v.nonnegative), 1.0),)
            else:
                constant += v.constant * c
            for m, k in parts:
                merged[m] = merged.get(m, 0.0) + k * c
        if not all(math.isfinite(c) for c in (constant, *merged.values())):
            return self.atom("sum_of", sorted((v for v, _ in terms), key=lambda v: (*v.order, v.id)))
        self._recentre(merged)
        listed = [(m, c) for m, c in merged.items() if c != 0 or not m.scalar]
        listed.sort(key=lambda t: (*t[0].order, t[1], t[0].id))
        if not listed:
            return self.number(constant)
        if constant == 0 and len(listed) == 1:
            return self.scale(*listed[0])
        content = listed[0][1] or next((c for _, c in listed if c), 1.0)
        common = self._common([m for m, _ in listed]) if constant == 0 else ()
        if common:
            self.note("a common factor stands outside")
            rest: list[Term] = []
            inside = 0.0
            for m, c in listed:
                r = self._take_out(m, common)
                if r.number is not None:
                    inside += r.number * c / content
                else:
                    rest.append((r, c / content))
            return self.product(content, [*common, (self.sum(inside, rest), ONE)])
        whole = self._sum(constant / content, tuple((m, c / content) for m, c in listed))
        return self._product(content, ((whole, ONE),))

    def _common(self, monomials: Sequence[Value]) -> tuple[Factor, ...]:
        """The factors that all of them have."""
        common: dict[tuple[Value, bool], Fraction] = {(b, e > 0): e for b, e in monomials[0].factors}
        for m in monomials[1:]:
            own = {(b, e > 0): e for b, e in m.factors}
            common = {k: (min if k[1] else max)(e, own[k]) for k, e in common.items() if k in own}
            if not common:
                break
        return tuple((b, e) for (b, _), e in common.items())

    def _take_out(self, m: Value, common: Sequence[Factor]) -> Value:
        left = {(b, e > 0): e for b, e in m.factors}
        for b, e in common:
            left[(b, e > 0)] -= e
        return self._product(m.coefficient, tuple((b, left[(b, e > 0)]) for b, e in m.factors if left[(b, e > 0)] != 0))

    def _recentre(self, merged: dict[Value, float]) -> None:
        """F*b - F*mean(b) + ... = F*(b - mean(b)) + ..., where there is more than that."""
        if len(merged) < 3:
            return
        for m in list(merged):
            c = merged.get(m)
            if c is None:
                continue
            for base, e in m.factors:
                if base.op != "mean" or e != 1 or len(m.factors) < 2:
                    continue
                outer = self._take_out(m, [(base, e)])
                whole = self.multiply(outer, base.args[0])
                other = merged.get(self._product(1.0, whole.factors))
                if other is not None and close(other * whole.coefficient, -c * whole.coefficient**2, 1e-9):
                    self.note("F*b - F*mean(b) is F*(b - mean(b))")
                    del merged[m], merged[self._product(1.0, whole.factors)]
                    both = self.multiply(outer, self.subtract(base.args[0], base))
                    merged[self._product(1.0, both.factors)] = -c * both.coefficient
                    break

    # -- sizes -----------------------------------------------------------------------------------------------------

    def size(self, v: Value, axis: int, depth: int = 0) -> Value:
        """The length of an axis of v: a number, or a size of what v is made from. Negative axes count from the end."""
        known = self.known_size(v, axis)
        if known is not None:
            return known
        return self._size(v, axis, depth) if depth < 40 else self.own_size(v, axis)

    def own_size(self, v: Value, axis: int) -> Value:
        return self.atom("size", (v,), (("axis", axis),), scalar=True, nonnegative=True)

    def _size(self, v: Value, axis: int, depth: int) -> Value:
        if v.op in ("product", "sum"):
            parts = [b for b, _ in v.factors] if v.op == "product" else [m for m, _ in v.terms]
            arrays = {self.size(p, axis, depth + 1): None for p in parts if not p.scalar}
            arrays.pop(self.one, None)
            if len(arrays) == 1 and axis < 0:
                return next(iter(arrays))
            if not arrays and not v.scalar:
                return self.one
        elif v.op in SAME_SHAPE and len(v.args) == 1:
            return self.size(v.args[0], axis, depth + 1)
        elif v.op in REDUCTIONS and v.param("keepdims") and v.param("axes") is not None:
            if axis in v.param("axes"):
                return self.one
            if (axis < 0) == all(a < 0 for a in v.param("axes")):
                return self.size(v.args[0], axis, depth + 1)
        elif v.op == "matmul" and axis in (-1, -2):
            return self.size(v.args[0 if axis == -2 else 1], axis, depth + 1)
        elif v.op == "permute" and axis < 0:
            perm = v.param("perm")
            return self.size(v.args[0], perm[axis] if -axis <= len(perm) else axis, depth + 1)
        elif v.op == "reshape" and axis < 0:
            dims = v.args[1:]
            if -axis <= len(dims) and not dims[axis].is_number(-1):
                return dims[axis]
        elif v.op == "expand_dims" and axis < 0 and all(a < 0 for a in v.param("axes")):
            axes = v.param("axes")
            if axis in axes:
                return self.one
            return self.size(v.args[0], axis + sum(a > axis for a in axes), depth + 1)
        return self.own_size(v, axis)


SAME_SHAPE = frozenset(
    "abs exp expm1 log log1p log2 log10 sigmoid erf erfinv tanh sin cos tan sinh cosh arcsin arccos arctan arcsinh "
    "arccosh arctanh floor ceil round sign stop_gradient softmax cumsum cumprod sort logical_not isnan isinf isfinite "
    "guarded optional group nan_to_num".split()
)
"""Operations whose result has the shape of their one argument."""

REDUCTIONS = frozenset("reduce_sum mean max min prod all any logsumexp var argmax argmin".split())


def _nonnegative_power(base: Value, e: Fraction) -> bool:
    return base.nonnegative or e.denominator != 1 or e.numerator % 2 == 0


def _positive(base: Value) -> bool:
    """Above zero, whatever the inputs."""
    return base.op in ("size", "exp", "sigmoid") or (base.op == "sum" and base.nonnegative and base.constant > 0)


def _power(c: float, e: Fraction) -> float | None:
    """c ** e as a real number, or None."""
    if c == 0 and e < 0:
        return None
    if c < 0 and e.denominator != 1:
        return None
    try:
        out = c ** (int(e) if e.denominator == 1 else float(e))
    except OverflowError:
        return None
    return float(out) if math.isfinite(out) else None


def exponent(number: float) -> Fraction | None:
    """A number as an exponent: a fraction with a small denominator, or None."""
    if not math.isfinite(number) or abs(number) > MAX_EXPONENT:
        return None
    f = Fraction(number).limit_denominator(MAX_EXPONENT)
    return f if close(float(f), number, 1e-12) else None


# -- reading -----------------------------------------------------------------------------------------------------------


def alike(a: Value, b: Value, tolerance: float = 1e-6) -> bool:
    """Whether two values, also of two functions, have the same structure, constants compared relatively."""
    stack: list[tuple[Any, Any]] = [(a, b)]
    seen: set[tuple[int, int]] = set()
    while stack:
        x, y = stack.pop()
        if isinstance(x, Value) and isinstance(y, Value):
            if (x.id, y.id) in seen:
                continue
            seen.add((x.id, y.id))
            stack.append((_shape_of(x), _shape_of(y)))
        elif isinstance(x, tuple) and isinstance(y, tuple):
            if len(x) != len(y):
                return False
            stack.extend(zip(x, y, strict=True))
        elif isinstance(x, float) and isinstance(y, float):
            if not close(x, y, tolerance):
                return False
        elif type(x) is not type(y) or x != y:
            return False
    return True


def _shape_of(v: Value) -> tuple[Any, ...]:
    if v.op == "product":
        return (v.op, v.coefficient, v.factors)
    if v.op == "sum":
        return (v.op, v.constant, v.terms)
    return (v.op, v.args, v.params)


def text(value: Value, limit: int = 6) -> str:
    """The value as a person would write it, `...` below `limit` levels."""
    if value.number is not None:
        return f"{value.number:.10g}"
    if limit == 0:
        return "..."
    if value.op == "product":
        parts = [] if close(value.coefficient, 1.0, 1e-12) else [f"{value.coefficient:.10g}"]
        for b, e in value.factors:
            inner = text(b, limit - 1)
            if b.op in ("sum", "product"):
                inner = f"({inner})"
            parts.append(inner if e == 1 else f"{inner}^{e}" if e.denominator == 1 and e > 0 else f"{inner}^({e})")
        return " * ".join(parts)
    if value.op == "sum":
        out = ""
        for m, c in value.terms:
            sign = " - " if c < 0 else " + "
            size = abs(c)
            out += (
                (sign if out else "-" if c < 0 else "")
                + ("" if close(size, 1.0, 1e-12) else f"{size:.10g} * ")
                + text(m, limit - 1)
            )
        if value.constant:
            out += f"{' - ' if value.constant < 0 else ' + '}{abs(value.constant):.10g}"
        return out
    name = value.param("name")
    if name is not None:
        return str(name)
    inner_args = [text(a, limit - 1) for a in value.args]
    inner_args += [
        f"{k}={text(p, limit - 1) if isinstance(p, Value) else p}"
        for k, p in value.params
        if k != "name" and p is not None
    ]
    return f"{value.op}({', '.join(inner_args)})"
