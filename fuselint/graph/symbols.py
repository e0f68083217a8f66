"""Sizes such as `2*T*D`: exact arithmetic on polynomials over named sizes.

An Expr is a sum of terms, each a whole number or a Fraction times a monomial. A monomial's atoms are names (`L`,
`args.hidden_size`) or calls that don't reduce (`H//G`, `max(L, S)`). All names stand for positive integers. Exprs are
immutable, hashable, and print the same on every run.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, reduce
from typing import Union

from fuselint.source.project import MOST_BITS


@dataclass(frozen=True)
class Apply:
    """A function of sizes that isn't a polynomial: `floor` division or `max`."""

    function: str  # "//" or "max"
    args: tuple[Expr, ...]

    @cached_property
    def text(self) -> str:
        if self.function == "max":
            return f"max({', '.join(map(str, self.args))})"
        left, right = self.args
        num, den = str(left), str(right)
        return f"{_bracket(num, '+-/')}//{_bracket(den, '+-*/')}"

    def __str__(self) -> str:
        return self.text


Atom = str | Apply
Monomial = tuple[tuple[Atom, int], ...]  # (atom, exponent), sorted; exponents >= 1
Size = Union["Expr", int, Fraction]
Coefficient = int | Fraction
"""Whole numbers are ints, which are many times faster to count with."""

MOST_FACTORS = 64
"""Names that a size is multiplied of."""

MOST_ATOMS = 32
"""Names and calls in a size. Halves that are put together again, in each step of a chain, double them."""

_LETTERS = "BNTHGWLSQKCRMVDEF"
"""The order in which people write axes: batch, heads, rows, then features."""


def _bracket(text: str, marks: str) -> str:
    outside = re.sub(r"\[[^\]]*\]", "", text)  # the minus of `x.shape[-1]` is part of a name
    return f"({text})" if any(m in outside for m in marks) else text


@lru_cache(maxsize=4096)
def _atom_key(atom: Atom) -> tuple[int, int, str]:
    text = str(atom)
    if isinstance(atom, str) and len(text) == 1 and text in _LETTERS:
        return (0, _LETTERS.index(text), text)
    parts = [int(p) if p.isdigit() else 0 for p in re.split(r"(\d+)", text)]
    return (1 if isinstance(atom, str) else 2, parts[1] if len(parts) > 1 else 0, text)


def _monomial_key(m: Monomial) -> tuple[int, tuple[tuple[int, int, str, int], ...]]:
    return (-sum(e for _, e in m), tuple((*_atom_key(a), -e) for a, e in m))


def _monomial(powers: Mapping[Atom, int]) -> Monomial:
    return tuple(sorted(((a, e) for a, e in powers.items() if e), key=lambda p: _atom_key(p[0])))


def _times(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers = dict(a)
    for atom, e in b:
        powers[atom] = powers.get(atom, 0) + e
    return _monomial(powers)


def _over(a: Monomial, b: Monomial) -> Monomial | None:
    powers = dict(a)
    for atom, e in b:
        left = powers.get(atom, 0) - e
        if left < 0:
            return None
        powers[atom] = left
    return _monomial(powers)


@lru_cache(maxsize=4096)
def _number(value: int | Fraction) -> Expr:
    return Expr({(): value})


def _whole(value: Coefficient) -> Coefficient:
    return int(value) if value.denominator == 1 else value


class Expr:
    """A polynomial over named sizes.

    >>> L, D = Expr.name("L"), Expr.name("D")
    >>> str(2 * D * L + 1), (L * D) // D == L
    ('2*L*D + 1', True)
    """

    __slots__ = ("__dict__", "_hash", "terms")

    terms: tuple[tuple[Monomial, Coefficient], ...]

    def __init__(self, terms: Mapping[Monomial, Coefficient]):
        kept = [(m, c if type(c) is int else _whole(c)) for m, c in terms.items() if c]
        if len(kept) > 1:
            kept.sort(key=lambda t: _monomial_key(t[0]))
        self.terms = tuple(kept)
        value = self._constant
        self._hash = hash(self.terms) if value is None else hash(value)

    @staticmethod
    def of(value: Size) -> Expr:
        return value if isinstance(value, Expr) else _number(value)

    @staticmethod
    @lru_cache(maxsize=4096)
    def name(name: str) -> Expr:
        return Expr({((name, 1),): 1})

    @staticmethod
    def max(a: Size, b: Size) -> Expr:
        """The larger of two sizes, which for broadcasting is the one that isn't 1."""
        x, y = Expr.of(a), Expr.of(b)
        if y in (x, 1):
            return x
        if x == 1:
            return y
        if x.value() is not None and y.value() is not None:
            return x if x.value() > y.value() else y  # type: ignore[operator]
        args: set[Expr] = set()
        for e in (x, y):
            atom = e._single_atom
            args.update(atom.args if isinstance(atom, Apply) and atom.function == "max" else (e,))
        ordered = tuple(sorted(args, key=str))
        return Expr({((Apply("max", ordered), 1),): 1})

    # -- arithmetic ---------------------------------------------------------------------------------------------------

    def __add__(self, other: Size) -> Expr:
        added = Expr.of(other)
        if not added.terms or not self.terms:
            return self if self.terms else added
        terms = dict(self.terms)
        for m, c in added.terms:
            terms[m] = terms.get(m, 0) + c
        return Expr(terms)

    def __mul__(self, other: Size) -> Expr:
        by = Expr.of(other)
        if by.terms == _ONE:
            return self
        if self.terms == _ONE:
            return by
        terms: dict[Monomial, Coefficient] = {}
        for m, c in self.terms:
            for n, d in by.terms:
                key = _times(m, n)
                terms[key] = terms.get(key, 0) + c * d
        return Expr(terms)

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Size) -> Expr:
        return self + -Expr.of(other)

    def __rsub__(self, other: Size) -> Expr:
        return Expr.of(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Size) -> Expr:
        """Division by a polynomial that divides this one, fractions allowed: `(3*L) / 2`. ValueError if it doesn't."""
        quotient = self._divide(Expr.of(other))
        if quotient is None:
            raise ValueError(f"{other} does not divide {self}")
        return quotient

    def __pow__(self, exponent: int) -> Expr:
        if exponent < 0:
            raise ValueError("negative power of a size")
        return reduce(lambda a, b: a * b, [self] * exponent, Expr.of(1))

    def __floordiv__(self, other: Size) -> Expr:
        """Floor division: exact where the divisor divides, else the opaque size `self//other`.

        No axis has no size: where numbers that somebody assumed make the divisor nothing, it is one.
        """
        divisor = Expr.of(other if other != 0 else 1)
        quotient = self._divide(divisor)
        if quotient is not None and all(c.denominator == 1 for m, c in quotient.terms if m):
            return Expr({m: c if m else math.floor(c) for m, c in quotient.terms})
        above, below = self._reduced(divisor)
        a, b = above._constant, below._constant
        if a is not None and b:
            return Expr.of(a // b)
        return Expr({((Apply("//", (above, below)), 1),): 1})

    def __rfloordiv__(self, other: Size) -> Expr:
        return Expr.of(other) // self

    def divides(self, other: Size) -> bool:
        """Whether other is a multiple of this, whatever the names stand for."""
        quotient = Expr.of(other)._divide(self)
        return quotient is not None and quotient.integral

    @property
    def integral(self) -> bool:
        """Whether all coefficients are whole numbers."""
        return all(c.denominator == 1 for _, c in self.terms)

    def _reduced(self, divisor: Expr) -> tuple[Expr, Expr]:
        """Both without their common factors, which floor division doesn't see."""
        terms = (*self.terms, *divisor.terms)
        powers = dict(terms[0][0])
        for m, _ in terms[1:]:
            has = dict(m)
            powers = {a: min(e, has[a]) for a, e in powers.items() if a in has}
        number = 1
        if self.integral and divisor.integral:
            number = math.gcd(*(c.numerator for _, c in terms))
        common = Expr({_monomial(powers): number})
        above, below = self._divide(common), divisor._divide(common)
        return (self, divisor) if above is None or below is None else (above, below)

    def _divide(self, divisor: Expr) -> Expr | None:
        """The exact quotient, or None: long division by leading terms, which sorting puts first."""
        if not divisor.terms:
            return None
        lead, lead_c = divisor.terms[0]
        rest, quotient = self, Expr({})
        for _ in range(64):
            if not rest.terms:
                return quotient
            m, c = rest.terms[0]
            over = _over(m, lead)
            if over is None:
                return None
            step = Expr({over: Fraction(c) / lead_c if c % lead_c else c // lead_c})
            quotient, rest = quotient + step, rest - step * divisor
        return None

    # -- values -------------------------------------------------------------------------------------------------------

    @property
    def _constant(self) -> Coefficient | None:
        if not self.terms:
            return 0
        if len(self.terms) == 1 and not self.terms[0][0]:
            return self.terms[0][1]
        return None

    @property
    def _single_atom(self) -> Atom | None:
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms
        alone = coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1
        return monomial[0][0] if alone else None

    @property
    def bare(self) -> str | None:
        """The name, where the size is one name and nothing else."""
        atom = self._single_atom
        return atom if isinstance(atom, str) else None

    @property
    def maximum_of(self) -> tuple[Expr, ...]:
        """The sizes that this is the maximum of; none if it isn't one."""
        atom = self._single_atom
        return atom.args if isinstance(atom, Apply) and atom.function == "max" else ()

    def met(self) -> Expr:
        """The size where all axes that met are equal: that of one that is a number says what the others are."""
        names: dict[Atom, Expr] = {}
        for m, _ in self.terms:
            for atom, _ in m:
                if isinstance(atom, Apply):
                    args = [a.met() for a in atom.args]
                    numbers = [a for a in args if (a.value() or 1) > 1]
                    if atom.function == "max":
                        names[atom] = numbers[0] if numbers else reduce(Expr.max, args)
                    else:
                        names[atom] = args[0] // args[1]
        if not names:
            return self
        total = Expr({})
        for m, c in self.terms:
            product = Expr.of(c)
            for atom, e in m:
                product = product * names.get(atom, Expr({((atom, 1),): 1})) ** e
            total = total + product
        return total

    def value(self) -> int | None:
        """The number, where nothing is left to substitute. Fractions of bytes round up."""
        c = self._constant
        return None if c is None else -((-c.numerator) // c.denominator)

    @cached_property
    def is_endless(self) -> bool:
        """Whether it is no size any more, but what was multiplied, or put together, with itself again and again."""
        return self._atoms > MOST_ATOMS or any(
            sum(e for _, e in m) > MOST_FACTORS or max(c.numerator.bit_length(), c.denominator.bit_length()) > MOST_BITS
            for m, c in self.terms
        )

    @cached_property
    def _atoms(self) -> int:
        """How many names and calls its text has."""
        atoms = [atom for m, _ in self.terms for atom, _ in m]
        return len(atoms) + sum(a._atoms for atom in atoms if isinstance(atom, Apply) for a in atom.args)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the value depends on."""
        out: set[str] = set()
        for m, _ in self.terms:
            for atom, _ in m:
                if isinstance(atom, str):
                    out.add(atom)
                else:
                    out.update(n for a in atom.args for n in a.names)
        return frozenset(out)

    def substitute(self, values: Mapping[str, Size]) -> Expr:
        """Numbers, or other sizes, for names."""
        if self.names.isdisjoint(values):
            return self

        def replace(atom: Atom) -> Expr:
            if isinstance(atom, str):
                return Expr.of(values[atom]) if atom in values else Expr.name(atom)
            args = [a.substitute(values) for a in atom.args]
            apply: Callable[[Expr, Expr], Expr] = Expr.max if atom.function == "max" else Expr.__floordiv__
            return reduce(apply, args)

        total = Expr({})
        for m, c in self.terms:
            product = Expr.of(c)
            for atom, e in m:
                product = product * replace(atom) ** e
            total = total + product
        return total

    # -- identity and text --------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Expr):
            return self.terms == other.terms
        return isinstance(other, (int, Fraction)) and self._constant == other

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        if not self.terms:
            return "0"
        out = ""
        for m, c in self.terms:
            text = _term(m, -c if c < 0 else c)
            if not out:
                out = f"-{text}" if c < 0 else text
            else:
                out += f" - {text}" if c < 0 else f" + {text}"
        return out


_ONE = (((), 1),)
"""The terms of 1."""


def _term(m: Monomial, c: Coefficient) -> str:
    factors: list[str] = []
    if c.numerator != 1 or not m:
        factors.append(str(c.numerator))
    for atom, e in m:
        text = str(atom)
        if isinstance(atom, Apply) and atom.function == "//":
            text = f"({text})" if len(m) > 1 or e > 1 or c != 1 else text
        elif isinstance(atom, str) and not re.fullmatch(r"[\w.'%\[\]:-]+", atom):
            text = f"({text})"
        factors.extend([text] * e)
    text = "*".join(factors)
    return text if c.denominator == 1 else f"{text}/{c.denominator}"


SHORT = 40
"""A formula of so many characters is read as it stands."""


def readable(size: Expr) -> str:
    """The text of a size, with what terms of a long one have in common before a bracket.

    >>> groups, rest = Expr.name("groups"), 4 * Expr.name("batch_size") * Expr.name("kv_heads") * Expr.name("length")
    >>> readable(rest * groups + rest)
    '4*batch_size*kv_heads*length*(groups + 1)'
    """
    text = str(size)
    if len(text) <= SHORT:
        return text
    return min([_grouped(size, common) for common in _commons(size)], key=len, default=text)


def _commons(size: Expr) -> list[Monomial]:
    """Products of two sizes or more that terms share, each once."""
    found: dict[Monomial, None] = {}
    for i, (a, _) in enumerate(size.terms):
        for b, _ in size.terms[i + 1 :]:
            has = dict(b)
            shared = _monomial({atom: min(e, has.get(atom, 0)) for atom, e in a})
            if sum(e for _, e in shared) > 1:
                found[shared] = None
    return list(found)


def _grouped(size: Expr, common: Monomial) -> str:
    """The terms that have `common` in one bracket, and then the others."""
    inside = {rest: c for m, c in size.terms if (rest := _over(m, common)) is not None}
    number = 1
    if all(c.denominator == 1 for c in inside.values()):
        number = math.gcd(*(c.numerator for c in inside.values()))
    bracket = Expr({m: Fraction(c) / number for m, c in inside.items()})
    others = Expr({m: c for m, c in size.terms if _over(m, common) is None})
    text = f"{_term(common, number)}*({bracket})"
    if not others.terms:
        return text
    more = readable(others)
    return f"{text} - {more[1:]}" if more.startswith("-") else f"{text} + {more}"


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The number of a printed Expr, all of whose names have values. Fractions round up.

    >>> evaluate("2*B*x.shape[1] + 1", {"B": 3, "x.shape[1]": 5})
    31
    """
    for name in sorted(values, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", str(values[name]), text)
    value = _evaluated(ast.parse(text, mode="eval").body)
    return -((-value.numerator) // value.denominator)


def _evaluated(tree: ast.expr) -> Fraction:
    match tree:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_evaluated(inner)
        case ast.Call(func=ast.Name(id="max"), args=args):
            return max(map(_evaluated, args))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return Fraction(_OPERATORS[type(op)](_evaluated(left), _evaluated(right)))
    raise ValueError(f"not a formula of sizes, or a name without a value: {ast.unparse(tree)}")


_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: a // (b or 1),  # as Expr's own
}


def product(sizes: Iterable[Size]) -> Expr:
    """The number of elements of a shape."""
    return reduce(lambda a, b: a * b, (Expr.of(s) for s in sizes), Expr.of(1))
