"""The child process that compares two results, leaf by leaf. Nothing of the user's is imported here.

    -> {"folder": ..., "before": [[path, key, text], ...], "after": [...], "moved": bool, "tolerance": number or null}
    <- [{"path": ..., "shape": [...], "dtype": ..., "gap": ..., "allowed": ..., "wrong": ...}, ...]

A difference passes where rounding explains it: the result of the version before, with every weight moved by one
rounding, differs from itself by at least a `MOVES`th of it, or it is below some roundings of the leaf's own dtype.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mlx.core as mx

from fuselint.verify.compare import ROUNDING, short
from fuselint.verify.whole.model import Leaf

MOVES = 3
"""How many times as far as one rounding of each weight a rewrite may move the result: it changes many roundings."""
UNWEIGHED = 16
"""Roundings that are allowed where there are no weights to move."""

Said = Sequence[tuple[str, str | None, str]]


def compare(folder: Path, before: Said, after: Said, moved: bool, tolerance: float | None) -> list[Leaf]:
    """The leaves of both results, in the order of the first; those that only one has last."""
    a, b = (dict(mx.load(str(folder / f"{name}.safetensors"))) for name in ("before", "after"))
    m = dict(mx.load(str(folder / "moved.safetensors"))) if moved else {}
    others = {path: (key, text) for path, key, text in after}
    out = []
    for path, key, text in before:
        if path not in others:
            out.append(Leaf(path, wrong="only before"))
            continue
        other, said = others.pop(path)
        if key is None or other is None:
            same = key is other and text == said
            kinds = ("an array" if k else t for k, t in ((key, text), (other, said)))
            out.append(Leaf(path, wrong="" if same else "{} before, {} after".format(*kinds)))
        else:
            out.append(_arrays(path, a[key], b[other], m.get(key), tolerance))
    return [*out, *(Leaf(path, wrong="only after") for path in others)]


def _arrays(path: str, a: mx.array, b: mx.array, moved: mx.array | None, tolerance: float | None) -> Leaf:
    shape, dtype = tuple(a.shape), short(a.dtype)
    if a.shape != b.shape:
        return Leaf(path, shape, dtype, wrong=f"the shape is {tuple(b.shape)} instead of {shape}")
    if a.dtype != b.dtype:
        return Leaf(path, shape, dtype, wrong=f"the dtype is {short(b.dtype)} instead of {dtype}")
    if not a.size:
        return Leaf(path, shape, dtype)
    if not mx.issubdtype(a.dtype, mx.inexact):
        different = int(mx.sum(a != b).item())
        return Leaf(path, shape, dtype, wrong=f"{different} of {a.size} values differ" if different else "")
    if strange := _not_finite(a, b):
        return Leaf(path, shape, dtype, wrong=strange)
    gap = _gap(a, b)
    if tolerance is not None:
        allowed = tolerance
    else:
        rounding = ROUNDING.get(a.dtype, ROUNDING[mx.float32])
        allowed = rounding * UNWEIGHED if moved is None else rounding + MOVES * _gap(a, moved)
    wrong = f"differs by {gap:.1e} of the largest value, {allowed:.1e} is allowed" if gap > allowed else ""
    return Leaf(path, shape, dtype, gap, allowed, wrong)


def _not_finite(a: mx.array, b: mx.array) -> str:
    """What became inf or NaN, or was and isn't."""
    with mx.stream(mx.cpu):
        lost, other = mx.isfinite(a) & ~mx.isfinite(b), ~mx.isfinite(a) & ~((a == b) | (mx.isnan(a) & mx.isnan(b)))
        for which, says in ((lost, "are inf or NaN after"), (other, "were inf or NaN before, and are others after")):
            if count := int(mx.sum(which).item()):
                return f"{count} of {a.size} values {says}"
    return ""


def _gap(a: mx.array, b: mx.array) -> float:
    """The largest difference of the finite values, relative to the largest of `a`; infinite where it makes no sense."""
    if a.shape != b.shape:
        return math.inf
    with mx.stream(mx.cpu):
        if mx.issubdtype(a.dtype, mx.complexfloating):
            return max(_gap(mx.real(a), mx.real(b)), _gap(mx.imag(a), mx.imag(b)))
        x, y = a.astype(mx.float64), b.astype(mx.float64)
        both = mx.isfinite(x) & mx.isfinite(y)
        zero = mx.zeros_like(x)
        largest = mx.max(mx.abs(mx.where(both, x, zero))).item() or 1.0
        return float(mx.max(mx.abs(mx.where(both, x - y, zero))).item()) / largest


def main() -> None:
    job: Mapping[str, Any] = json.loads(sys.stdin.read())
    tolerance = job["tolerance"]
    found = compare(Path(job["folder"]), job["before"], job["after"], job["moved"], tolerance)
    sys.stdout.write(json.dumps([asdict(leaf) for leaf in found]))


if __name__ == "__main__":
    main()
