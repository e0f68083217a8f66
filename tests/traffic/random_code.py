"""Random MLX functions of every kind of op that moves bytes: elementwise, reductions, views, products, copies.

Each statement is tried on MLX while the function is made, so that its shapes fit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from tests.graph.functions import HEAD

SIZES = (2, 3, 4, 8)
NAMED = {5: "B", 7: "L", 11: "H", 13: "D"}
"""Sizes of arguments that are known by name, and the numbers that they are run with."""
RANKS = (1, 2, 3, 3, 3, 4)
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "int32")
MOST_ELEMENTS = 40_000

UNARY = (
    "mx.exp({x})", "mx.tanh({x})", "mx.abs({x} * 1.0)", "-{x}", "mx.sigmoid({x})", "mx.square({x})", "{x}.rsqrt()",
    "mx.log2({x})", "mx.sqrt({x})", "mx.erf({x})", "mx.logical_not({x})", "mx.reciprocal({x})", "mx.sin({x})",
    "mx.round({x} * 1.0)", "mx.clip({x}, 0.0, 1.0)", "mx.clip({x}, None, 2)", "mx.isinf({x})", "mx.isnan({x})",
    "mx.nan_to_num({x})", "mx.isfinite({x})", "mx.log1p({x})", "mx.expm1({x})", "mx.sign({x} * 1.0)",
    "mx.floor({x} / 2)", "nn.silu({x})", "nn.gelu({x})", "nn.gelu_approx({x})", "nn.relu({x})", "nn.softplus({x})",
    "nn.sigmoid({x})", "nn.leaky_relu({x})", "nn.elu({x})", "nn.mish({x})", "nn.hardswish({x})",
    "nn.gelu_fast_approx({x})", "nn.relu2({x})",
    "{x}.astype(mx.float32)", "{x}.astype(mx.bfloat16)", "{x}.astype(mx.float16)", "{x}.astype({y}.dtype)",
    "mx.stop_gradient({x}) * 2.0", "{x} * 2.0", "2.0 * {x}", "{x} + 1", "1 - {x}", "{x} / 3", "{x} ** 2", "0.5 ** {x}",
    "{x} // 2", "{x} % 3", "{x} > 0", "{x} * mx.array(0.5)", "mx.where({x} > 0, {x}, 0.0)", "mx.maximum({x}, 0)",
    "mx.minimum(1.0, {x})", "mx.zeros_like({x})", "mx.ones_like({x})", "{x} * {x}", "mx.degrees({x})",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} * {y}", "{x} - {y}", "{x} / {y}", "mx.maximum({x}, {y})", "mx.where({x} > {y}, {x}, {y})",
    "mx.logaddexp({x}, {y})", "mx.power({x}, {y})", "mx.minimum({x}, {y})", "mx.arctan2({x}, {y})", "{x} == {y}",
    "mx.logical_and({x} > 1, {y} < 2)", "mx.multiply(3, {x}) + {y}", "mx.where({x} > 0, {x}, {y})",
    "mx.where({x} > {y}, 1.0, {x})", "{x} + {y} * {z}", "mx.where({x} > 0, {y}, {z})", "mx.add({x}, {y})",
    "mx.logical_xor({x}, {y})", "mx.isclose({x}, {y})",
)  # fmt: skip
REDUCED = (
    "mx.sum({x}, axis={a}, keepdims={k})", "{x}.max(axis={a}, keepdims={k})", "mx.mean({x}, axis={a}, keepdims={k})",
    "mx.var({x}, axis={a}, keepdims={k})", "mx.std({x}, axis={a}, keepdims={k})", "mx.min({x}, axis={a}, keepdims={k})",
    "mx.logsumexp({x}, axis={a}, keepdims={k})", "mx.linalg.norm({x}, axis={a}, keepdims={k})",
    "mx.softmax({x}, axis={a})", "mx.softmax({x}, axis={a}, precise=True)", "mx.sum({x})", "mx.mean({x})",
    "mx.mean({x}, axis=({a}, {b}))", "mx.sum({x}, axis=({a}, {b}), keepdims=True)", "mx.argmax({x}, axis={a})",
    "mx.cumsum({x}, axis={a})", "mx.sort({x}, axis={a})", "mx.argsort({x}, axis={a})", "nn.log_softmax({x}, axis={a})",
    "mx.median({x}, axis={a})", "mx.topk({x}, 1, axis={a})", "mx.count_nonzero({x}, axis={a})", "mx.vecdot({x}, {y})",
    "mx.minmax({x}, axis={a})[0]", "nn.softmin({x}, axis={a})", "nn.softmax({x}, axis={a})", "mx.argmin({x})",
    "mx.cumprod({x}, axis={a})", "mx.cumsum({x})", "mx.partition({x}, 1, axis={a})",
    "mx.all({x} > 0, axis={a})", "mx.prod({x}, axis={a}, keepdims={k})", "mx.var({x}, axis={a}, ddof=1)",
)  # fmt: skip
VIEWED = (
    "{x}.swapaxes({a}, {b})", "{x}.T", "mx.moveaxis({x}, {a}, {b})", "mx.expand_dims({x}, {a})",
    "mx.transpose({x}, {p})",
    "mx.squeeze({x})", "{x}[None]", "{x}[..., None]", "{x}[:, None]", "mx.broadcast_to({x}, {y}.shape)",
    "mx.broadcast_to({x}[..., None], (*{x}.shape, {n}))", "mx.flip({x}, {a})",
)  # fmt: skip
RESHAPED = (
    "{x}.reshape(-1)", "{x}.reshape({x}.shape[0], -1)", "{x}.reshape(-1, {x}.shape[-1])", "mx.flatten({x})",
    "mx.flatten({x}, 1)", "mx.flatten({x}, 0, 1)", "mx.unflatten({x}, {a}, (2, -1))", "mx.unflatten({x}, {a}, (-1, 2))",
    "{x}.reshape(*{x}.shape[:-1], 2, -1)", "{x}.reshape({r})", "{x}.reshape({y}.shape)",
)  # fmt: skip
SLICED = (
    "{x}[:1]", "{x}[1:]", "{x}[..., :2]", "{x}[..., 2:]", "{x}[:, 1:]", "{x}[::2]", "{x}[..., ::2]", "{x}[:, 0]",
    "{x}[..., 0]", "{x}[..., -1:]", "{x}[0]", "{x}[-1]", "{x}[:, None, :1]", "{x}[..., ::-1]", "{x}[0, 1:]",
    "mx.split({x}, 2, axis={a})[0]", "mx.split({x}, 2, axis={a})[1]", "{x}[:, :, 0]", "{x}[:-1, ..., 1:]", "{x}[:]",
    "{x}[mx.array([0, 1]), 0]", "{x}[:, mx.array([1, 0])]", "{x}[..., mx.array([0, 1])]", "{x}[1:, mx.array([0])]",
    "{x}[mx.array([0, 1]), :, mx.array([1, 0])]", "{x}[mx.array([[0], [1]]), 1:]", "mx.unstack({x})[0]",
    "mx.take({x}, mx.array([0, 1]))", "mx.diagonal({x})", "mx.diff({x})", "nn.glu({x})", "mx.trace({x})",
    "mx.split({x}, [1, 2], axis={a})[1]", "{x}[None, 0]", "{x}[0, ..., None]", "{x}[::-2]", "{x}[mx.array(1)]",
    "mx.take({x}, mx.array([0, 1]), axis={a})", "mx.take({x}, 0, axis={a})", "{x}[mx.array([1, 0])]",
)  # fmt: skip
COPIED = (
    "mx.concatenate([{x}, {y}], axis={a})", "mx.stack([{x}, {y}])", "mx.stack([{x}, {x}], axis={a})",
    "mx.repeat({x}, 2, axis={a})", "mx.tile({x}, (1, 2))", "mx.pad({x}, 1)", "mx.concatenate([{x}, {x}], axis={a})",
    "mx.roll({x}, 1, {a})", "mx.tile({x}, 2)", "mx.concatenate([-{x}[..., 2:], {x}[..., :2]], axis=-1)",
    "mx.take_along_axis({x}, mx.argsort({x}, axis={a}), axis={a})", "mx.triu({x})", "mx.tril({x}, 1)",
)  # fmt: skip
PRODUCTS = (
    "{x} @ {y}", "mx.matmul({x}, {x}.swapaxes(-1, -2))", "{x} @ {y}.T", "{x}.T @ {y}", "mx.addmm({z}, {x}, {y})",
    "mx.einsum('ij,jk->ik', {x}, {y})", "mx.einsum('...i,ji->...j', {x}, {y})", "{x} @ {y}.swapaxes(-1, -2)",
    "mx.einsum('bld,bsd->bls', {x}, {y})", "mx.outer({x}, {y})", "mx.inner({x}, {y})",
)  # fmt: skip
FUSED = (
    "mx.fast.rms_norm({x}, None, 1e-5)", "mx.fast.rms_norm({x}, {y}, 1e-5)", "mx.fast.layer_norm({x}, {y}, {z}, 1e-5)",
    "mx.fast.layer_norm({x}, None, None, 1e-5)", "mx.fast.layer_norm({x}, {y}, None, 1e-5)",
    "mx.fast.rope({x}, 2, traditional=False, base=10000.0, scale=1.0, offset=0)",
    "mx.fast.rope({x}, {x}.shape[-1], traditional=True, base=10000.0, scale=1.0, offset=1)",
    "mx.fast.scaled_dot_product_attention({x}, {y}, {z}, scale=0.5)",
    "mx.fast.scaled_dot_product_attention({x}, {x}, {x}, scale=0.5, mask='causal')",
    "mx.fast.scaled_dot_product_attention({x}, {x}, {x}, scale=0.5, mask={y})",
)  # fmt: skip
CREATED = (
    "mx.linspace(0, 1, {n})", "mx.tri({n})", "mx.full_like({x}, 2.0)", "mx.atleast_2d({x})", "mx.meshgrid({x}, {y})[0]",
    "mx.ones_like({x}, dtype=mx.float16)", "mx.full(({n},), {x})", "mx.zeros(({n}, 2), {x}.dtype)",
    "nn.MultiHeadAttention.create_additive_causal_mask({n})", "mx.arange({x}.shape[-1])", "mx.zeros({x}.shape)",
    "mx.ones(({n},))", "mx.full({x}.shape, 0.5)", "mx.arange(4.0)",
)  # fmt: skip

KINDS = (
    (UNARY, 10), (BINARY, 12), (REDUCED, 5), (VIEWED, 6), (RESHAPED, 4), (SLICED, 5), (COPIED, 2), (PRODUCTS, 5),
    (FUSED, 2), (CREATED, 1),
)  # fmt: skip

REFUSED = tuple("[ split pad( rope roll diff glu( topk median flip trace diagonal unstack take( squeeze(".split())
"""Of no use under shapeless compilation."""
NUMBERED = (
    *"reshape(( unflatten squeeze( mx.array([ take( split median trace diagonal tile kron meshgrid topk".split(),
    *"unstack glu roll (* mx.ones(( mx.zeros(( mx.full(( linspace tri( create_additive".split(),
    *(", 2, -1)", "[0, 1]"),
)
"""What depends on the numbers behind names."""


@dataclass(frozen=True)
class RandomCode:
    """`source` defines f; shapes and dtypes are those of its arguments, in order."""

    source: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def function(self) -> Callable[..., Any]:
        space: dict[str, Any] = {}
        exec(self.source, space)
        f: Callable[..., Any] = space["f"]
        return f

    def arguments(self) -> list[mx.array]:
        return [
            (mx.ones(s) * (i + 1)).astype(getattr(mx, d))
            for i, (s, d) in enumerate(zip(self.shapes, self.dtypes, strict=True))
        ]


class _Writer:
    """Statements that work, with the values they leave."""

    def __init__(self, r: random.Random, without: Sequence[str], sizes: Sequence[int]) -> None:
        self.r, self.without, self.sizes = r, without, sizes
        self.lines: list[str] = []
        self.values: dict[str, mx.array] = {}

    def argument(self, shape: tuple[int, ...], dtype: str) -> None:
        self.values[f"x{len(self.values)}"] = mx.zeros(shape, getattr(mx, dtype))

    def write(self) -> bool:
        r, names = self.r, list(self.values)
        recent = names[min(len(names) - 1, int(len(names) * (1 - (1 - r.random()) ** 2)))]
        kinds, weights = zip(*KINDS, strict=True)
        form = r.choice(r.choices(kinds, weights=weights)[0])
        rank = self.values[recent].ndim
        axes = list(range(rank)) or [0]
        r.shuffle(axes)
        text = form.format(
            x=recent, y=r.choice(names), z=r.choice(names), a=r.choice(axes) - r.choice((0, rank)),
            b=r.choice(axes), k=r.choice((True, False)), p=axes, n=r.choice(self.sizes), r=self._factors(recent),
        )  # fmt: skip
        if any(w in text for w in self.without):
            return False
        try:
            value = eval(text, {"mx": mx, "nn": nn}, dict(self.values))
        except (ValueError, TypeError, RuntimeError, IndexError):
            return False
        if not isinstance(value, mx.array) or not 0 < value.size <= MOST_ELEMENTS or value.ndim > 5:
            return False
        name = f"t{len(self.lines)}"
        self.lines.append(f"    {name} = {text}\n")
        self.values[name] = value
        return True

    def _factors(self, name: str) -> tuple[int, ...]:
        """Sizes with as many elements."""
        left, out = self.values[name].size, []
        while left > 1:
            n = self.r.choice([d for d in range(2, left + 1) if left % d == 0])
            out.append(n)
            left //= n
        return tuple(out) or (1,)


def random_code(seed: int, kind: str = "") -> RandomCode:
    """A function of up to thirty statements.

    kind: "shapeless" for what shapeless compilation takes, "named" for what says the same of named sizes.
    """
    r = random.Random(f"{kind}{seed}")
    sizes = tuple(NAMED) if kind == "named" else SIZES
    w = _Writer(r, {"shapeless": REFUSED, "named": NUMBERED}.get(kind, ()), sizes)
    shapes = [tuple(r.choice(sizes) for _ in range(r.choice(RANKS))) for _ in range(r.randint(1, 4))]
    if r.random() < 0.7:  # operands that fit each other
        base = shapes[0]
        shapes += [base, base[-1:], (base[-1], r.choice(sizes)), (*base[:-1], 1)][: r.randint(1, 4)]
    dtypes = tuple(r.choice(DTYPES) if r.random() < 0.5 else "float32" for _ in shapes)
    for shape, dtype in zip(shapes, dtypes, strict=True):
        w.argument(shape, dtype)
    wanted, tries = r.randint(1, 30), 0
    while len(w.lines) < wanted and tries < 400:
        tries += 1
        w.write()
    made = [n for n in w.values if n.startswith("t")] or list(w.values)
    returned = ", ".join(made[-r.randint(1, 3) :])
    arguments = ", ".join(f"x{i}" for i in range(len(shapes)))
    return RandomCode(f"{HEAD}def f({arguments}):\n{''.join(w.lines)}    return {returned}\n", tuple(shapes), dtypes)
