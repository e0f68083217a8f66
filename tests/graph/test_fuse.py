"""The fuser against the compiler itself: the kernels of random functions, by name."""

from __future__ import annotations

import io
import re
import shutil
from collections import Counter
from typing import Any

import pytest

from fuselint.graph.fuse import MAX_DEPTH, compiled, groups
from fuselint.graph.model import Node
from fuselint.graph.trace import trace
from tests.graph.functions import HEAD, graph_of, random_function, with_shapes

mx = pytest.importorskip("mlx.core")
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

AS_EXPORTED = (
    ("Rsqrt", "Sqrt"), ("Log2", "Log"), ("Log10", "Log"), ("CumSum", "Scan"), ("NaNEqual", "Equal"),
    ("Sum", "Reduce"), ("Max", "Reduce"), ("Min", "Reduce"),
)  # fmt: skip
"""mx.export_to_dot names some primitives more precisely than mx.export_function."""


def kernel_names(*outputs: Any) -> list[str]:
    """The primitives of a lazy graph, as MLX draws it."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return [plain(n) for n in re.findall(r'label ="([^"]*)"', dot.getvalue())]


def plain(name: str) -> str:
    if not name.startswith("Compiled"):
        return dict(AS_EXPORTED).get(name, name)
    for precise, exported in AS_EXPORTED[:3]:
        name = name.replace(precise, exported)
    return name


def really_compiled(source: str, shapes: Any, shapeless: bool) -> list[str]:
    space: dict[str, Any] = {}
    exec(source, space)
    arguments = [mx.ones(s) * (i + 1) for i, s in enumerate(shapes)]
    mx.eval(arguments)
    out = mx.compile(space["f"], shapeless=shapeless)(*arguments)
    return kernel_names(*(out if isinstance(out, tuple) else (out,)))


def outputs_of(graph: Any) -> list[Node]:
    (_, value), *_ = graph.returns
    return list(value.inputs) if value.op == "tuple" else [value]


def predicted(source: str, shapes: Any, shapeless: bool) -> list[str]:
    graph = with_shapes(graph_of(source), shapes)
    traced = trace(graph.nodes, graph.facts, shapeless=shapeless)
    roots = [a for n in outputs_of(graph) if (a := traced.array(n)) is not None]
    return [g.name for g in compiled(roots)]


@needs_compiler
@pytest.mark.parametrize("shapeless", [False, True], ids=["shapes", "shapeless"])
@pytest.mark.parametrize("seed", range(60))
def test_a_random_function_has_the_kernels_that_mlx_makes(seed: int, shapeless: bool) -> None:
    f = random_function(seed)
    try:
        real = really_compiled(f.source, f.shapes, shapeless)
    except ValueError:  # shapeless compilation refuses some ops
        assert shapeless
        pytest.skip("refused by shapeless compilation")
    assert Counter(predicted(f.source, f.shapes, shapeless)) == Counter(real), f.source


REDUCED = {
    "mean": "x.mean(-1)",
    "variance": "mx.var(x, axis=-1)",
    "deviation": "mx.std(x, axis=-1)",
    "norm": "mx.linalg.norm(x, axis=-1)",
    "largest": "x.max(axis=-1)",
    "logsumexp": "mx.logsumexp(x, axis=-1)",
}


@needs_compiler
@pytest.mark.parametrize("shapeless", [False, True], ids=["shapes", "shapeless"])
@pytest.mark.parametrize("body", REDUCED.values(), ids=REDUCED)
def test_what_is_computed_of_a_reduction_is_one_kernel(body: str, shapeless: bool) -> None:
    source = f"{HEAD}def f(x):\n    return mx.exp({body} + 1)\n"
    assert Counter(predicted(source, [(2, 4, 8)], shapeless)) == Counter(
        really_compiled(source, [(2, 4, 8)], shapeless)
    )


def fused(body: str, arguments: str = "x: mx.array", shapeless: bool = False) -> list[str]:
    graph = graph_of(f"{HEAD}def f({arguments}):\n    return {body}\n")
    return [g.name for g in groups(graph.nodes, outputs_of(graph), graph.facts, shapeless)]


def nested(function: str, times: int) -> str:
    return f"{function}(" * times + "x" + ")" * times


def test_a_kernel_holds_eleven_primitives_in_a_row() -> None:
    assert [n.count("Exp") for n in fused(nested("mx.exp", MAX_DEPTH))] == [11]
    assert sorted(n.count("Exp") for n in fused(nested("mx.exp", 23))) == [11, 11]  # and one alone


def test_shapeless_broadcasts_halve_the_depth_of_binary_chains() -> None:
    seven = "x + x * (x + x * (x + x * (x + x)))"
    assert len(fused(seven)) == 1
    assert len(fused(seven, shapeless=True)) == 2


def test_a_value_that_a_reduction_reads_is_written_to_memory() -> None:
    body = "mx.exp(x - 1) / mx.exp(x - 1).sum(-1, keepdims=True)"
    assert fused(body) == ["CompiledBroadcastSubtractExp", "CompiledBroadcastDivide"]


def test_one_primitive_is_no_group() -> None:
    assert fused("mx.exp(x) @ x") == []
