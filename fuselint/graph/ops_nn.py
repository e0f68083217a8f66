"""The functions and layers of mlx.nn.

A layer's op has the arguments of its call; those of its constructor are in the `new` node (attrs["new"]), bound by
`CONSTRUCTORS`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.graph import ops_rules as r
from fuselint.graph.op import Op
from fuselint.graph.ops_core import row

ACTIVATIONS = """
silu|x: A|Sigmoid Multiply
gelu|x: A|Divide Erf Add Multiply Divide
gelu_approx|x: A|Power Multiply Add Multiply Tanh Add Multiply Multiply
gelu_fast_approx|x: A|Multiply Sigmoid Multiply
relu|x: A|Maximum
relu2|x: A|Maximum Square
relu6|x: A|Maximum Minimum
softplus|x: A|LogAddExp
mish|x: A|LogAddExp Tanh Multiply
log_sigmoid|x: A|Negative LogAddExp Negative
"""


def functions() -> Iterator[Op]:
    for line in ACTIVATIONS.split("\n"):
        if line:
            name, signature, primitives = line.split("|")
            yield row(name, "activation", signature, primitives, dtype=r.floated, module="mlx.nn", compiled=True)


def layers() -> Iterator[Op]:
    for name in (
        "Linear",
        "RMSNorm",
        "LayerNorm",
        "Embedding",
        "RoPE",
        "Dropout",
        "Identity",
        "SiLU",
        "GELU",
        "ReLU",
        "Conv1d",
        "Conv2d",
        "QuantizedLinear",
    ):
        yield row(name, "layer", "x: A", "", r.unknown, module="mlx.nn")


def table() -> Iterator[Op]:
    yield from functions()
    yield from layers()
