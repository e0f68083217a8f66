"""Random MLX functions as Python source, and a graph of source with the shapes of its arguments stated."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuselint.graph.dtypes import DType
from fuselint.graph.lower import Program
from fuselint.graph.model import Graph, Node
from fuselint.graph.shapes import Shape
from fuselint.source.project import summarise
from fuselint.source.screen import screen
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"

SHAPES = ((4, 8), (8,), (4, 8), (1, 8), (4, 1))
UNARY = (
    "mx.exp({x})", "mx.tanh({x})", "mx.abs({x})", "-{x}", "mx.sigmoid({x})", "mx.square({x})", "{x}.rsqrt()",
    "mx.log2({x})", "mx.sqrt({x})", "mx.erf({x})", "mx.logical_not({x}).astype(mx.float32)", "mx.reciprocal({x})",
    "mx.round({x})", "mx.clip({x}, 0.0, 1.0)", "mx.clip({x}, None, 2)", "mx.isinf({x}).astype(mx.float32)",
    "mx.nan_to_num({x})", "nn.silu({x})",
    "nn.gelu_approx({x})", "nn.relu({x})", "{x}.astype(mx.float32)", "{x}.astype(mx.bfloat16)", "mx.stop_gradient({x})",
    "{x} * 2.0", "2.0 * {x}", "{x} + 1", "1 - {x}", "{x} / 3", "{x} ** 2", "0.5 ** {x}", "{x} // 2", "{x} % 3",
)  # fmt: skip
BINARY = (
    "{x} + {y}", "{x} * {y}", "{x} - {y}", "{x} / {y}", "mx.maximum({x}, {y})", "mx.where({x} > {y}, {x}, {y})",
    "mx.where({x} > 0, {x}, 0.0)", "mx.logaddexp({x}, {y})", "mx.power({x}, {y})", "mx.minimum({x}, {y})",
    "mx.arctan2({x}, {y})", "mx.logical_and({x} > 1, {y} < 2).astype(mx.float32)", "mx.multiply(3, {x}) + {y}",
)  # fmt: skip
BARRIERS = (
    "mx.sum({x}, axis=-1, keepdims=True)", "mx.max({x}, axis=0, keepdims=True)", "mx.mean({x}, axis=-1, keepdims=True)",
    "mx.var({x}, axis=-1, keepdims=True)", "mx.softmax({x}, axis=-1)", "mx.cumsum({x}, axis=-1)",
)  # fmt: skip


@dataclass(frozen=True)
class RandomFunction:
    """`source` defines f; `shapes` are those of its arguments, in order, all float32."""

    source: str
    shapes: tuple[tuple[int, ...], ...]


def random_function(seed: int) -> RandomFunction:
    """A function of elementwise operations and some barriers. Every fifth is large enough to meet all limits."""
    r = random.Random(seed)
    large = seed % 5 == 0
    shapes = tuple(r.choice(SHAPES) for _ in range(40 if large else r.randint(1, 4)))
    names = [f"x{i}" for i in range(len(shapes))]
    lines = []
    for i in range(80 if large else r.randint(2, 40)):
        recent = min(len(names) - 1, int(len(names) * (1 - (1 - r.random()) ** 2)))
        x, y = names[recent], r.choice(names)
        form = r.choice(r.choices((UNARY, BINARY, BARRIERS), weights=(10, 10, 1))[0])
        lines.append(f"    t{i} = {form.format(x=x, y=y)}\n")
        names.append(f"t{i}")
    returned = ", ".join(names[-r.randint(1, 3) :])
    arguments = ", ".join(f"x{i}" for i in range(len(shapes)))
    return RandomFunction(f"{HEAD}def f({arguments}):\n{''.join(lines)}    return {returned}\n", shapes)


def program_of(source: str) -> Program:
    """The functions of the source."""
    file = FileText("example.py", source)
    screened = screen(file)
    assert screened.tree is not None
    return Program(file, summarise(file, screened.tree))


def graph_of(source: str, qualname: str = "f") -> Graph:
    """The graph of a function of the source."""
    graph = program_of(source).graph(qualname)
    assert graph is not None
    assert not graph.not_understood, graph.not_understood
    return graph


def with_shapes(graph: Graph, shapes: Sequence[tuple[int, ...]], dtypes: Mapping[int, str] | None = None) -> Graph:
    """The same graph, its arguments' shapes known as if the caller had been seen."""
    for i, (node, shape) in enumerate(zip(graph.params.values(), shapes, strict=True)):
        dtype = (dtypes or {}).get(i, "float32")
        graph.facts.state(node, Shape.of(*shape), DType({dtype}), "stated by the test")
    return graph


def result(graph: Graph) -> Node:
    """What a function returns at its end."""
    return graph.returns[-1][1]


def shape(graph: Graph) -> str:
    return str(graph.facts.shape(result(graph)))
