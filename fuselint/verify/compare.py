"""How two results are compared: structure, shape, dtype, then values against the float64 reference.

A result passes where its error is at most that of the code before it plus one rounding of the dtype that it is stored
in (ROUNDING, ILL_CONDITIONED). In float32 the code before may have been lucky: where the roundings of its own steps, up
or down, would move its result further, that counts as its error (INHERENT). Errors are the largest absolute difference,
divided by the largest value of the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

ROUNDING = {mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7, mx.float32: 2.0**-20}
"""One rounding by the dtype of the result; in float32 eight, since sums are taken in another order."""
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
"""The unit in the last place of 1, by dtype."""
REFERENCE_LIMIT = {mx.float16: 65504.0, mx.bfloat16: 3.38e38, mx.float32: 3.4e38}
LOST = 0.1
"""A value that far off, relative to the largest, has overflowed or lost its digits: it says nothing of the rest."""
ILL_CONDITIONED = 8
"""An error before of that many roundings comes from the inputs, not from the code: the other order may triple it."""
INHERENT = 3
"""How many times further than the roundings of the code before move its result another way of computing it may lie."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A comparison of one leaf. `wrong` says what is wrong, or is ""."""

    wrong: str = ""
    before: float = 0.0
    after: float = 0.0
    repaired: int = 0  # values that were inf, NaN or far off before, and are right now
    overflowing: int = 0  # values that are inf or NaN now and were finite: all that is wrong, so far as was looked
    sooner: int = 0  # values of the last quarter of the dtype's range that overflow now


def leaves(value: Any, path: str = "result") -> Iterator[tuple[str, Any]]:
    """The arrays and other values of a nested result, each with where it stands."""
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from leaves(v, f"{path}[{i}]")
    elif isinstance(value, dict):
        for k in sorted(value, key=str):
            yield from leaves(value[k], f"{path}[{k!r}]")
    else:
        yield path, value


def structure(before: Any, after: Any, *, dtypes: Literal["same", "no wider", "any"] = "same") -> str:
    """What differs in structure, shape or dtype, or "". dtypes: which of `after` will do."""
    a, b = list(leaves(before)), list(leaves(after))
    if [p for p, _ in a] != [p for p, _ in b]:
        return f"{len(b)} values instead of {len(a)}"
    for (path, x), (_, y) in zip(a, b, strict=True):
        if isinstance(x, mx.array) != isinstance(y, mx.array):
            return f"{path} is {_kind(y)} instead of {_kind(x)}"
        if not isinstance(x, mx.array):
            if x != y and not (isinstance(x, float) and isinstance(y, float) and math.isclose(x, y, rel_tol=1e-6)):
                return f"{path} is {y!r} instead of {x!r}"
        elif x.shape != y.shape:
            return f"the shape of {path} is {tuple(y.shape)} instead of {tuple(x.shape)}"
        elif (dtypes == "same" and x.dtype != y.dtype) or (dtypes == "no wider" and y.dtype.size > x.dtype.size):
            return f"the dtype of {path} is {short(y.dtype)} instead of {short(x.dtype)}"
    return ""


def _kind(value: Any) -> str:
    return "an array" if isinstance(value, mx.array) else f"a {type(value).__name__}"


def short(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def values(
    before: mx.array,
    after: mx.array,
    reference: mx.array,
    *,
    judged: bool = True,
    huge: bool = False,
    inherent: float = 0.0,
) -> Difference:
    """Compare one array with its float64 reference. judged: whether finite values count (see judge.py).

    inherent: how far float32 roundings of the steps before move the result, relative to the largest value.

    huge: the inputs come close to what the dtype can hold. Then the reference may overflow, too, and says nothing; and
    a value of the last quarter of the range may become inf, which the difference tells.
    """
    if before.size == 0:
        return Difference()
    with mx.stream(mx.cpu):
        if not mx.issubdtype(before.dtype, mx.floating):
            return _exact(before, after)
        limit = REFERENCE_LIMIT.get(before.dtype, math.inf)
        ref = reference.astype(mx.float64)
        a, b = before.astype(mx.float64), after.astype(mx.float64)
        ref = mx.where(mx.abs(ref) > limit, mx.sign(ref) * math.inf, ref)  # what the dtype can hold at all
        known, was, now = mx.isfinite(ref), mx.isfinite(a), mx.isfinite(b)
        broken = known & was & ~now
        early = broken & (mx.abs(ref) > limit / 4) if huge else mx.zeros_like(broken)
        now = now | early
        b = mx.where(early, ref, b)
        if mx.any(broken & ~early).item():
            count = int(mx.sum(broken & ~early).item())
            return Difference(f"{count} values are inf or NaN that were finite", overflowing=count)
        # where the true value is inf or NaN and the code before said so, the same must be said, or the true one
        same = (mx.isnan(b) & (mx.isnan(a) | mx.isnan(ref))) | (b == a) | (b == ref)
        other = ~known & ~was & ~same
        if mx.any(other).item() and not huge:
            return Difference(f"{int(mx.sum(other).item())} inf or NaN values became others")
        zero = mx.zeros_like(ref)
        size = mx.max(mx.abs(mx.where(known, ref, zero))).item() or 1.0
        off_before = mx.where(known & was, mx.abs(a - ref), zero) / size
        off_after = mx.where(known & now, mx.abs(b - ref), zero) / size
        slack = max(ROUNDING.get(before.dtype, 2.0**-20), ROUNDING.get(after.dtype, 2.0**-20))
        lost = known & (~was | (off_before > max(LOST, 32 * slack)))
        error_before, error_after = (mx.max(mx.where(lost, zero, off)).item() for off in (off_before, off_after))
        rounding = min(slack, 2.0**-23) if before.dtype == mx.float32 else slack
        allowed = slack + error_before * (3 if error_before > ILL_CONDITIONED * rounding else 1)
        right = off_after <= max(allowed, slack + INHERENT * inherent)
        wrong = ""
        if judged and not mx.all(right | (lost & (~now | (off_after <= off_before)))).item():
            error_after = mx.max(off_after).item()
            wrong = f"the largest error is {error_after:.1e} of the largest value, before {error_before:.1e}"
        repaired, sooner = (int(mx.sum(which).item()) for which in (lost & now & right, early))
        return Difference(wrong, error_before, error_after, repaired, sooner)


def _exact(before: mx.array, after: mx.array) -> Difference:
    different = int(mx.sum(before != after).item())
    return Difference(f"{different} of {before.size} values differ" if different else "")


def relative(a: mx.array, b: mx.array) -> float:
    """The largest difference of two arrays over the finite values of both, relative to the largest of `a`."""
    if a.size == 0:
        return 0.0
    with mx.stream(mx.cpu):
        a, b = a.astype(mx.float64), b.astype(mx.float64)
        both = mx.isfinite(a) & mx.isfinite(b)
        zero = mx.zeros_like(a)
        size = mx.max(mx.abs(mx.where(both, a, zero))).item() or 1.0
        return float((mx.max(mx.where(both, mx.abs(a - b), zero)) / size).item())
