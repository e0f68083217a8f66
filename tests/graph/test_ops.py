"""The op table against MLX: what each rule says of primitives, shapes and dtypes, mx.export_function reports too."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from fuselint.graph import ops
from fuselint.graph.dtypes import DType
from fuselint.graph.facts import Fact
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import Shape

mx = pytest.importorskip("mlx.core")

import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_flatten, tree_map  # noqa: E402

from graph import samples  # noqa: E402
from graph.functions import graph_of  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16", "int32")
ADAPTERS = {"AsType", "Broadcast"}
"""Primitives that only adapt operands: the tracer derives them from shapes and dtypes."""

NOT_EXPORTED = {
    "contiguous", "bitwise_invert", "to_fp8", "from_fp8", "segmented_mm", "qqmm", "logcumsumexp",
}  # fmt: skip
"""mx.export_function fails with "Unable to get state for primitive" for these."""

Traced = tuple[list[str], list[tuple[tuple[int, ...], str]]]


def arguments(dtype: str) -> dict[str, Any]:
    own = {n: mx.ones(s).astype(getattr(mx, dtype)) for n, s in samples.FLOATING.items()}
    fixed = {n: mx.zeros(s, getattr(mx, d)) for n, (s, d) in samples.FIXED.items()}
    return {**own, **fixed}


def traced(function: Any, arrays: dict[str, Any]) -> Traced:
    """The primitives, and the shape and dtype of each output, that MLX reports."""
    primitives: list[str] = []
    outputs: list[tuple[tuple[int, ...], str]] = []

    def report(event: dict[str, Any]) -> None:
        if event["type"] == "primitive":
            primitives.append(event["name"])
        elif event["type"] == "outputs":
            outputs.extend((tuple(s), str(d).rpartition(".")[2].replace("bool", "bool_")) for _, s, d in event["outputs"])

    def flat(*values: Any) -> list[Any]:
        return [v for _, v in tree_flatten(function(**dict(zip(arrays, values, strict=True))))]

    mx.export_function(report, flat, *arrays.values())
    return primitives, outputs


def graph_with(source: str, qualname: str, dtype: str) -> Graph:
    """The graph of a sample, its arguments' shapes and dtypes stated."""
    graph = graph_of(source, qualname)
    for name, node in graph.params.items():
        if name in samples.FLOATING:
            graph.facts.state(node, Shape.of(*samples.FLOATING[name]), DType({dtype}), "the test")
        elif name in samples.FIXED:
            shape, fixed = samples.FIXED[name]
            graph.facts.state(node, Shape.of(*shape), DType({fixed}), "the test")
    return graph


def of_expression(text: str, dtype: str) -> tuple[Graph, Node]:
    names = ", ".join(f"{n}: mx.array" for n in (*samples.FLOATING, *samples.FIXED))
    source = f"import math\nimport mlx.core as mx\nimport mlx.nn as nn\n\ndef f({names}):\n    return {text}\n"
    graph = graph_with(source, "f", dtype)
    return graph, graph.returns[0][1]


def facts_of(graph: Graph, node: Node) -> list[Fact]:
    """Those of each array that the value is made of."""
    fact = graph.facts.of(node)
    return list(fact.parts) if fact.kind == "tuple" and fact.parts is not None else [fact]


def said(fact: Fact, weights: str = "") -> tuple[tuple[Any, ...] | None, str | None]:
    """Shape and dtype as MLX would say them; `weights` is the dtype that the symbols of a layer's parameters have."""
    shape = None if fact.shape is None or fact.shape.lead is not None else tuple(d.value() for d in fact.shape.dims)
    dtype = DType(weights if n in fact.dtype.symbols else n for n in fact.dtype)
    return shape, (dtype | dtype).name


def primitives_said(graph: Graph) -> list[str]:
    out: list[str] = []
    for node in graph.nodes:
        op = ops.TABLE.get(node.op)
        if op is not None and graph.facts.kind(node) != "scalar":
            out.extend(op.primitives_of(graph.facts.call(node)))
    return out


def seen_by_name(text: str) -> set[str]:
    graph, _ = of_expression(text, "float32")
    return {n.op for n in graph.nodes if n.op in ops.TABLE}


EXPRESSIONS = samples.split(
    samples.ELEMENTWISE + samples.REDUCTIONS + samples.VIEWS + samples.PRODUCTS + samples.INDEXING + samples.CREATION
    + samples.FAST + samples.MODULES + samples.ACTIVATIONS
)  # fmt: skip


def run(text: str, **arrays: Any) -> Any:
    return eval(text, {"mx": mx, "nn": nn, "math": math, **arrays})


def mlx_says(text: str, dtype: str) -> Traced:
    arrays = arguments(dtype)
    return traced(lambda **a: run(text, **a), arrays)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_shape_and_dtype_of_an_op_are_mlxs(text: str) -> None:
    for dtype in DTYPES:
        arrays = arguments(dtype)
        try:
            result = run(text, **arrays)
        except (ValueError, RuntimeError):
            continue  # MLX refuses the dtype
        outputs = [v for _, v in tree_flatten(result)]
        want = [(tuple(v.shape), str(v.dtype).rpartition(".")[2].replace("bool", "bool_")) for v in outputs]
        graph, node = of_expression(text, dtype)
        assert [said(f) for f in facts_of(graph, node)] == want, (dtype, graph.facts.why(node))


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_primitives_of_an_op_are_mlxs(text: str) -> None:
    graph, _ = of_expression(text, "float32")
    if {n.op for n in graph.nodes} & NOT_EXPORTED:
        pytest.skip("MLX cannot export it")
    for dtype in DTYPES:
        try:
            primitives, _ = mlx_says(text, dtype)
        except (ValueError, RuntimeError):
            continue
        graph, node = of_expression(text, dtype)
        want = Counter(p for p in primitives if p not in ADAPTERS)
        got = Counter(p for p in primitives_said(graph) if p not in ADAPTERS)
        assert got == want, (dtype, primitives)
