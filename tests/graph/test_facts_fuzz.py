"""Facts of functions whose arguments nothing is known of, against what MLX makes of them in a run."""

from __future__ import annotations

import random
import re
from functools import reduce
from typing import Any

import pytest

from fuselint.graph.dtypes import DType
from fuselint.graph.facts import FITS, Facts
from fuselint.graph.shapes import Shape

mx = pytest.importorskip("mlx.core")

from graph.functions import HEAD, graph_of  # noqa: E402

SHAPES = ((2, 3, 4), (2, 3, 4), (3, 4), (2, 1, 4), (4,), (2, 3, 1), (2, 4, 3, 8))
STEPS = (
    "mx.exp({x})", "{x} * 2", "1 - {x}", "{x} * {y}", "{x} + {y}", "mx.where({x} > 0, {x}, 0.0)",
    "{x} @ {x}.swapaxes(-1, -2)",
    "mx.mean({x}, axis=-1, keepdims=True)", "mx.sum({x}, axis=-1)", "mx.max({x}, axis=0)", "mx.softmax({x}, axis=-1)",
    "{x}[..., None]", "{x}[None]", "{x}[..., 0]", "{x}[..., 1:]", "{x}[..., : {x}.shape[-1] // 2]",
    "{x}[:, 0]", "{x}[0]",
    "mx.concatenate([{x}, {x}], axis=-1)", "mx.concatenate([{x}, {x}], axis=0)", "mx.stack([{x}, {x}], axis=-2)",
    "mx.expand_dims({x}, 1)", "mx.expand_dims({x}, -1)", "mx.repeat({x}, 2, axis=-1)", "mx.repeat({x}, 2, axis=0)",
    "{x}.reshape(*{x}.shape[:-1], 1, -1)", "{x}.reshape({x}.shape[0], -1)", "{x}.reshape(-1)", "{x}.flatten(-2, -1)",
    "{x}.swapaxes(-1, -2)", "{x}.transpose(0, 2, 1)", "{x}.transpose(0, 2, 1, 3)", "{x}.T", "mx.moveaxis({x}, -1, 0)",
    "mx.split({x}, 2, axis=-1)[1]", "mx.unflatten({x}, -1, (2, -1))", "mx.pad({x}, 1)", "mx.tile({x}, 2)",
    "mx.broadcast_to({x}, (5, *{x}.shape))", "mx.zeros({x}.shape[:-1] + (7,))", "{x}.astype(mx.bfloat16)",
    "{x}.astype({y}.dtype)", "mx.fast.rms_norm({x}, None, 1e-5)", "mx.argmax({x}, axis=-1)", "mx.squeeze({x}[None], 0)",
    "mx.arange({x}.shape[-1])", "mx.logsumexp({x}, axis=-1, keepdims=True)", "mx.linalg.norm({x}, axis=-1)",
)  # fmt: skip
HEADS = (
    "B{i}, L{i}, D{i} = {x}.shape", "D{i} = {x}.shape[-1]", "*_, D{i} = {x}.shape", "B{i} = {x}.shape[0]",
    "B{i}, *_ = {x}.shape",
)  # fmt: skip


def program(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Source of f, its arguments, and every value that it names in a run. Steps that MLX refuses are left out."""
    r = random.Random(seed)
    arrays = {f"x{i}": mx.ones(r.choice(SHAPES)).astype(r.choice((mx.float32, mx.bfloat16))) for i in range(3)}
    scope: dict[str, Any] = {"mx": mx, **arrays}
    lines = []
    for i in range(20):
        names = [n for n, v in scope.items() if isinstance(v, mx.array)]
        x, y = r.choice(names), r.choice(names)
        line = r.choice(HEADS).format(x=x, i=i) if i % 5 == 0 else f"t{i} = {r.choice(STEPS).format(x=x, y=y)}"
        before = dict(scope)
        try:
            exec(line, scope)
            small = all(v.ndim and 0 < v.size < 20_000 for v in scope.values() if isinstance(v, mx.array))
        except (ValueError, RuntimeError, IndexError, TypeError):
            small = False
        if small and line:
            lines.append(f"    {line}\n")
        elif not small:
            scope = before
    body = "".join(lines) or "    pass\n"
    return f"{HEAD}def f({', '.join(arrays)}):\n{body}    return x0\n", arrays, scope


def expected(shape: Shape, scope: dict[str, Any], rank: int) -> list[Any] | None:
    """The shape that the fact claims in this run; None for an axis that it says nothing of."""
    sizes: dict[str, int] = {}
    for name in {n for d in shape.dims for n in d.names}:
        found = re.fullmatch(r"(\w+)\.shape\[(-?\d+)\]", name)
        if isinstance(scope.get(name), int):
            sizes[name] = scope[name]
        elif found and found[1] in scope and -scope[found[1]].ndim <= int(found[2]) < scope[found[1]].ndim:
            sizes[name] = scope[found[1]].shape[int(found[2])]
    dims = [d.substitute(sizes).value() for d in shape.dims]
    if shape.lead is None:
        return dims
    single = re.fullmatch(r"(\w+)(?:\[:-(\d+)\])?", shape.lead)
    if single and single[1] in scope:
        whole = list(scope[single[1]].shape)
        return whole[: len(whole) - int(single[2] or 0)] + dims
    return [None] * (rank - len(dims)) + dims


@pytest.mark.parametrize("seed", range(200))
def test_facts_hold_in_a_run(seed: int) -> None:
    """Those that rest on an assumption that random arguments don't keep are left out: they say so."""
    source, arrays, scope = program(seed)
    graph = graph_of(source, "f")
    facts = Facts(graph)
    for name, value in scope.items():
        bound = graph.bindings.get(name, [])
        if not isinstance(value, mx.array) or len(bound) != 1:
            continue
        node = bound[0].node
        shape, dtype = facts.shape(node), facts.dtype(node)
        assert facts.kind(node) in ("array", "unknown"), name
        if shape is not None and FITS not in facts.of(node).assumed:
            claimed = expected(shape, scope, value.ndim)
            assert claimed is None or len(claimed) == value.ndim, (name, str(shape), value.shape, source)
            pairs = list(zip(claimed or (), value.shape, strict=True))
            assert all(c is None or c == v for c, v in pairs), (name, str(shape), value.shape, source)
        given = {n: arrays.get(n.removesuffix(".dtype")) for n in dtype.symbols}
        if all(v is not None for v in given.values()):
            named = (DType({n if n not in given else name_of(given[n])}) for n in dtype)
            assert reduce(lambda a, b: a | b, named) == {name_of(value)}, (name, dtype, value.dtype, source)


def name_of(array: Any) -> str:
    return str(array.dtype).rpartition(".")[2].replace("bool", "bool_")
