"""FUS241 dequantized-matmul: a packed weight that is dequantized whole for one matrix product.

What it does: finds `x @ mx.dequantize(w, scales, biases, ...).T` and the form without the transpose, where nothing else
reads the dequantized weight.

Why: a 4-bit weight of 4096 x 4096 is 9 MB packed; dequantizing writes 34 MB and the product reads them again, at every
call. `mx.quantized_matmul` reads the packed weight.

When not to: with many rows the dequantized product can be faster (3.6 times at 2,048 rows on an H200): measure. Where
the code runs once, at loading or conversion.

Fix safety: unsafe, since the number of rows decides whether it is faster. In float32 the values are the same; in half
precision the GPU accumulates in float32, the CPU does not. An x without rows ends the process on the CPU backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.around import is_made_with
from fuselint.graph.identities_linear import swap
from fuselint.graph.model import Graph, Node, region
from fuselint.rulebook import Example, FusedKernel, Hole, Match

CODE, NAME = "FUS241", "dequantized-matmul"

HEAD = "import mlx.core as mx\n\n\n"


def unfused(x: Any, w: Any, scales: Any, biases: Any) -> Any:
    import mlx.core as mx

    return x @ mx.dequantize(w, scales, biases, group_size=64, bits=4).T


def fused(x: Any, w: Any, scales: Any, biases: Any) -> Any:
    import mlx.core as mx

    return mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=64, bits=4)


def nearly(graph: Graph) -> Iterator[Node]:
    return (n for n in graph.nodes if n.op == "matmul" and is_made_with(n, ("dequantize",), 3))


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.cold:
        return
    for node in graph.nodes:
        if node.op == "matmul":
            match = _match(graph, node)
            if match is not None:
                yield match


def _match(graph: Graph, root: Node) -> Match | None:
    x, right = root.inputs
    whole, transposed = _dequantized(graph, right)
    if whole is None or not _read_once(graph, root, right, whole):
        return None
    options = _options(whole)
    if options is None:
        return None
    names = ("w", "scales", "biases")[: len(whole.inputs)]
    holes: dict[str, Hole] = {"x": x, **dict(zip(names, whole.inputs, strict=True))}
    inside = region(root, holes.values())  # type: ignore[arg-type]
    arguments = ", ".join(["{x}", *(f"{{{n}}}" for n in names), f"transpose={transposed}", *options])
    return Match(
        code=CODE,
        root=root,
        holes=holes,
        message="a packed weight is dequantized whole for one product",
        obligations=[
            Obligation("the dequantized weight is read once", "proven", "by this product alone"),
            Obligation("the same group size, bits and mode", "proven", "taken from the call"),
            Obligation("x has few rows and is not empty", "unknown", "with many rows dequantizing can be faster"),
            _two_axes(graph, x),
        ],
        region=frozenset(inside),
        fused=(FusedKernel("quantized_matmul", (x, *whole.inputs), root),),
        shapes=_shapes(whole, names, transposed),
        dtypes={"w": "uint32"},
        numerics="reassociated",
        related=[(whole, "the weight is dequantized")],
        data={"template": f"{{mx}}.quantized_matmul({arguments})"},
    )


def _two_axes(graph: Graph, x: Node) -> Obligation:
    """CUDA's quantized_matmul raises for a vector; Metal's takes it."""
    claim, shape = "x has two axes or more", graph.facts.shape(x)
    if shape is not None and shape.rank == 1:
        return Obligation(claim, "contradicted", "it has one")
    if shape is not None and len(shape.dims) > 1:
        return Obligation(claim, "proven", graph.facts.why(x))
    return Obligation(claim, "unknown", "nothing in this function says its rank")


def _dequantized(graph: Graph, node: Node) -> tuple[Node | None, bool]:
    """(the dequantize call, whether its result is transposed) behind an operand."""
    if node.op == "dequantize":
        return node, False
    inner = node.inputs[0] if node.inputs else None
    if inner is None or inner.op != "dequantize":
        return None, False
    value = graph.canonical.of(node)
    turned = (
        value.op == "permute" and value.param("perm") == swap(-1, -2) and value.args[0] is graph.canonical.of(inner)
    )
    return (inner, True) if turned or (node.op == "transpose" and node.attrs.get("axes") is None) else (None, False)


def _read_once(graph: Graph, root: Node, right: Node, whole: Node) -> bool:
    chain = [whole] if right is whole else [whole, right]
    readers = {whole: right if right is not whole else root, right: root}
    return all(n not in graph.escaping and graph.users.get(n, ()) == (readers[n],) for n in chain)


def _options(whole: Node) -> list[str] | None:
    """Arguments that both calls take. None where one isn't a constant, or the dtype is asked for."""
    out = []
    for key in ("group_size", "bits", "mode"):
        value = whole.attrs.get(key)
        if value is None or (key == "mode" and value == "affine"):
            continue
        if not isinstance(value, (int, str)):
            return None
        out.append(f"{key}={value!r}")
    return None if whole.attrs.get("dtype") is not None else out


def _shapes(whole: Node, names: tuple[str, ...], transposed: bool) -> dict[str, tuple[str, ...]]:
    """Of in_dims values a row of the packed weight, in whole groups and words."""
    group, bits = whole.attrs.get("group_size") or 64, whole.attrs.get("bits") or 4
    if not isinstance(group, int) or not isinstance(bits, int):
        return {}
    words, groups = f"in_dims*{bits}/32" if 32 % bits else f"in_dims/{32 // bits}", f"in_dims/{group}"
    packed = {"w": ("out_dims", words), "scales": ("out_dims", groups), "biases": ("out_dims", groups)}
    return {"x": ("...", "L", "in_dims" if transposed else "out_dims"), **{n: packed[n] for n in names}}


EXAMPLES = [
    Example(
        HEAD + "def project(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array):\n"
        "    weight = mx.dequantize(w, scales, biases, group_size=64, bits=4)\n"
        "    return x @ weight.T\n",
        fixed=HEAD + "def project(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array):\n"
        "    return mx.quantized_matmul(\n"
        "        x, w, scales, biases, transpose=True, group_size=64, bits=4\n"
        "    )\n",
        applicability="unsafe",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "def project(x: mx.array, y: mx.array, w: mx.array, scales: mx.array, biases: mx.array):\n"
        "    weight = mx.dequantize(w, scales, biases)\n"
        "    return x @ weight.T, y @ weight.T\n",
        why="the dequantized weight serves two products",
    ),
    Example(
        HEAD + "def project(x: mx.array, w: mx.array, scales: mx.array, biases: mx.array):\n"
        "    row = x.flatten()\n"
        "    return row @ mx.dequantize(w, scales, biases).T\n",
        why="a vector, which CUDA's quantized_matmul refuses",
    ),
]
