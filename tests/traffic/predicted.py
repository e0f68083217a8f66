"""What fuselint says of a random function, in the same words as mlx_kernels.py: from its source alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fuselint.graph.dtypes import DType
from fuselint.graph.gates import Gates
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, kernels
from fuselint.traffic.sizes import Sizes
from tests.graph.functions import graph_of
from tests.traffic.random_code import NAMED, RandomCode

KernelBytes = tuple[str, int, int]
CPU = Gates(backend="cpu")


def eager(code: RandomCode, *, named: bool = False) -> Counter[KernelBytes]:
    """named: the arguments' sizes are known by name only, and put in at the end."""
    graph = _graph(code, NAMED if named else {})
    return _counted(kernels(_needed(graph), graph.facts, CPU, _outputs(graph)))


def compiled(code: RandomCode, shapeless: bool = False) -> Counter[KernelBytes]:
    graph = _graph(code, {})
    return _counted(compiled_kernels(graph.nodes, _outputs(graph), graph.facts, shapeless, CPU))


def _graph(code: RandomCode, names: Mapping[int, str]) -> Graph:
    graph = graph_of(code.source)
    for node, shape, dtype in zip(graph.params.values(), code.shapes, code.dtypes, strict=True):
        dims = tuple(Expr.name(names[n]) if n in names else Expr.of(n) for n in shape)
        graph.facts.state(node, Shape(None, dims), DType({dtype}), "stated by the test")
    return graph


def _outputs(graph: Graph) -> list[Node]:
    (_, value), *_ = graph.returns
    return list(value.inputs) if value.op == "tuple" else [value]


def _needed(graph: Graph) -> list[Node]:
    """What the returned values are made of: MLX is lazy, and runs nothing else."""
    out: dict[Node, None] = {}
    for o in _outputs(graph):
        out.update(dict.fromkeys(region(o, ())))
    return list(out)


def _counted(found: Iterable[Kernel]) -> Counter[KernelBytes]:
    bytes_ = Bytes(Sizes())
    numbers = {name: n for n, name in NAMED.items()}
    out: Counter[KernelBytes] = Counter()
    for k in found:
        reads, writes = ([bytes_.of(a).substitute(numbers).value() for a in arrays] for arrays in (k.reads, k.writes))
        assert None not in reads + writes, (k, reads, writes)
        out[k.op, sum(n or 0 for n in reads), sum(n or 0 for n in writes)] += 1
    return out
