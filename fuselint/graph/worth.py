"""What says that work on a value is rare or small, whatever its shape: solver steps, samples, codes, rows' numbers.

A model's layers run once a token or a step, many of them; what runs once for each pass through the whole model is not
worth a kernel of its own. Nothing here goes by names, but for the parameters of MLX's own layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from fuselint.graph.fact import PURE
from fuselint.graph.model import Block, Graph, Node, Slice, Statement, operands
from fuselint.graph.ops import TABLE
from fuselint.graph.origins import ONE_BY_ONE
from fuselint.graph.state import ASSIGNED
from fuselint.source.function import walk

PARAMETERS = frozenset({"weight", "bias", "scales", "biases"})
"""What MLX's layers call their parameters."""


def is_rare(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a chain runs once for each pass through a model, or once for all."""
    inside = set(nodes)
    outside = [k for n in nodes for k in n.inputs if k not in inside]
    if any(_is_drawn(k) or is_of_a_schedule(graph, k) or _is_of_a_spectrogram(graph, k) for k in outside):
        return True
    return (
        _is_a_spectrum(graph, nodes)
        or _rewrites_a_parameter(graph, nodes[-1], outside)
        or _steps_a_solver(graph, nodes)
    )


def is_few(graph: Graph, root: Node) -> bool:
    """Whether a value is one number for each row of something, some entries of an array, or what codes are made of."""
    readers = graph.users.get(root, ())
    if not readers:
        return False
    if all(_writes_entries(r, root) for r in readers):
        return True
    if root in graph.escaping:
        return False
    return all(_adds_last_axis(r) for r in readers) or root in _ends_in_integers(graph)


def is_lowest(node: Node) -> bool:
    """`mx.finfo(dtype).min`: what fills masked scores."""
    called = node.inputs[0].attrs.get("target") if node.op == "attr" and node.inputs else None
    return node.attrs.get("name") == "min" and called in ("mlx.core.finfo", "numpy.finfo")


# -- rare -------------------------------------------------------------------------------------------------------------


def _is_drawn(node: Node) -> bool:
    """Noise: drawing it takes more kernels of that size than what is done with it."""
    op = TABLE.get(node.op)
    return op is not None and op.kind == "random"


def is_of_a_schedule(graph: Graph, node: Node, deepest: int = 8) -> bool:
    """Whether a value is a single number, in an array or not, of which each step takes another: a sigma, a step."""
    facts = graph.facts
    kind, index = facts.kind(node), node.attrs.get("index")
    if kind not in ("array", "unknown"):
        return False
    if node.op == "array" and node.inputs and facts.kind(node.inputs[0]) in ("scalar", "unknown"):
        return changes(graph, node.inputs[0])
    if node.op in ("item", "index") and node.inputs:
        base = node.inputs[0]
        parts = index if isinstance(index, tuple) else (index,)
        one = len(parts) == 1 and not isinstance(parts[0], Slice) and parts[0] is not None and parts[0] is not Ellipsis
        if kind == "array":
            return one and facts.rank(base) == 1 and base.op != "attr"
        return one and base.op == "attr" and isinstance(parts[0], Node) and changes(graph, parts[0])
    op = TABLE.get(node.op)
    if node.op != "call" and (op is None or op.kind not in ONE_BY_ONE or (kind == "array" and facts.rank(node) != 0)):
        return False
    made_of = [k for k in node.inputs if k.op != "const" and facts.kind(k) != "scalar"]
    return bool(made_of) and deepest > 0 and all(is_of_a_schedule(graph, k, deepest - 1) for k in made_of)


ROOTS = frozenset({"math.sqrt", "numpy.sqrt"})


def changes(graph: Graph, number: Node) -> bool:
    """Whether a number depends on an argument, a loop or a length, so that it may be another at the next call.

    A width does not count: the root of a head dimension is the same at every call.
    """
    if isinstance(graph.facts.const(number), (bool, int, float)):
        return False
    stack, seen = [(number, False)], set()
    while stack:
        n, scales = stack.pop()
        if n in seen or n.op in ("attr", "ndim"):
            continue
        seen.add(n)
        if n.op == "dim":
            if not _is_width(graph, n, scales):
                return True
            continue
        called = n.attrs.get("target") if n.op == "call" else None
        if n.op in ("param", "loop", "item", "opaque", "size") or (n.op == "call" and called not in PURE):
            return True
        scales = scales or n.op == "power" or called in ROOTS
        stack.extend((k, scales) for k in operands(n))
    return False


def _is_width(graph: Graph, dim: Node, scales: bool) -> bool:
    """Whether a size stays: it is known, or that of a last axis of which a scale is made."""
    if isinstance(graph.facts.const(dim), int):
        return True
    axis, rank = dim.attrs.get("axis"), dim.attrs.get("rank") or graph.facts.rank(dim.inputs[0])
    return scales and isinstance(axis, int) and (axis == -1 or axis + 1 == rank)


def _is_a_spectrum(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether complex values are made of an angle's sine and cosine, or for an inverse Fourier transform.

    That is the end of a pipeline. A rotation by complex numbers makes real ones of them again.
    """
    if "complex64" not in graph.facts.dtype(nodes[-1]):
        return False
    sines = {n.inputs[0] for n in nodes if n.op == "sin"}
    return any(n.op == "cos" and n.inputs[0] in sines for n in nodes) or _is_transformed(graph, nodes[-1])


def _is_of_a_spectrogram(graph: Graph, node: Node) -> bool:
    """Whether a value is made of the magnitudes of complex numbers: features of a whole signal."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        op = TABLE.get(n.op)
        if n in seen or (op is None and n.op not in ("index", "phi")):
            continue
        seen.add(n)
        if n.op == "abs" and "complex64" in graph.facts.dtype(n.inputs[0]):
            return True
        stack.extend(n.inputs)
    return False


def _is_transformed(graph: Graph, node: Node) -> bool:
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        for r in graph.users.get(n, ()):
            op = TABLE.get(r.op)
            if op is not None and op.kind == "fft":
                return True
            if r not in seen and (r.op == "index" or (op is not None and op.kind == "view")):
                seen.add(r)
                stack.append(r)
    return False


def _rewrites_a_parameter(graph: Graph, root: Node, outside: Sequence[Node]) -> bool:
    """`layer.weight = f(layer.weight)`: offline, on a layer that was given."""
    readers = graph.users.get(root, ())
    if len(readers) == 1 and readers[0].op == "astype":
        root, readers = readers[0], graph.users.get(readers[0], ())
    stores = [e for e in graph.effects if e.kind == "store" and e.value is root]
    if not stores or readers:
        return False
    read = {str(k.attrs.get("path")) for k in outside if k.op == "attr"}
    return all(e.path in read and e.path.rpartition(".")[2] in PARAMETERS for e in stores)


def _steps_a_solver(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a loop puts a value through one network again and again, and the chain makes the next value.

    In `for t in times: x = x + dt * model(x, t)` the step is little beside the model. But the loop
    `for layer in layers: x = x + layer(x)` is a model, and `for t in range(L): h = cell(x[:, t], h)` a layer.
    """
    loop = _innermost_loop(nodes[-1])
    if loop is None or loop.owner is None or not isinstance(loop.owner.cst, (cst.For, cst.While)):
        return False
    carried = {
        n for n in graph.nodes if n.op == "loop" and len(n.inputs) > 1 and _leads_to(graph, nodes[-1], n.inputs[1])
    }
    targets = _names(loop.owner.cst.target) if isinstance(loop.owner.cst, cst.For) else frozenset()
    calls = [c for c in graph.nodes if c.op == "call" and isinstance(c.cst, cst.Call) and _innermost_loop(c) is loop]
    if any(_selects(c.cst, targets) for c in calls if isinstance(c.cst, cst.Call)):
        return False  # the loop goes through layers
    given = [{n for k in c.inputs for n in _sources(k)} for c in calls if not c.attrs.get("fresh")]
    return any(carried & g and not any(_is_step_of_a_sequence(n, targets) for n in g) for g in given)


def _selects(call: cst.Call, targets: frozenset[str]) -> bool:
    """Whether each step calls another layer: `layer(x)`, `layers[i](x)`, or `block(x, f"blocks.{i}")`."""
    texts = [n for a in call.args for n in walk(a.value) if isinstance(n, cst.FormattedString)]
    return any(_names(n) & targets for n in (call.func, *texts))


def _innermost_loop(node: Node) -> Block | None:
    stmt: Statement | None = node.top_stmt
    at = None if stmt is None else stmt.block
    while at is not None and at.kind != "loop":
        at = at.parent
    return at


def _names(node: cst.CSTNode) -> frozenset[str]:
    return frozenset(n.value for n in walk(node) if isinstance(n, cst.Name))


def _sources(node: Node) -> Iterator[Node]:
    """A value, and what operations that work value by value make it of."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen:
            continue
        seen.add(n)
        yield n
        op = TABLE.get(n.op)
        if n.op in ("phi", "index", "list", "tuple") or (op is not None and op.kind in (*ONE_BY_ONE, "copy")):
            stack.extend(n.inputs)


def _leads_to(graph: Graph, node: Node, end: Node) -> bool:
    """Whether a value is what `end` is made of, value by value."""
    return any(n is node for n in _sources(end))


def _is_step_of_a_sequence(node: Node, targets: frozenset[str]) -> bool:
    """`x[:, t]` for the t of a loop."""
    if node.op != "index" or node.cst is None:
        return False
    index = node.attrs.get("index")
    return isinstance(index, tuple) and len(index) > 1 and bool(_names(node.cst) & targets)


# -- few --------------------------------------------------------------------------------------------------------------


def _writes_entries(reader: Node, value: Node) -> bool:
    """`x[...] = value`."""
    assigned = reader.op == "index_update" or (reader.op == "opaque" and reader.attrs.get("reason") == ASSIGNED)
    return assigned and len(reader.inputs) > 1 and reader.inputs[1] is value


def _adds_last_axis(reader: Node) -> bool:
    """`value[..., None]`: it is spread over another axis."""
    if reader.op == "expand_dims":
        return reader.attrs.get("axis") == -1
    index = reader.attrs.get("index") if reader.op == "index" else None
    return isinstance(index, tuple) and len(index) > 1 and index[-1] is None


def _ends_in_integers(graph: Graph) -> set[Node]:
    """Values of which nothing is left but integers: codes, indices, pixels."""
    out: set[Node] = set()
    for n in reversed(graph.nodes):
        readers = graph.users.get(n, ())
        if (
            readers
            and n not in graph.escaping
            and all(_is_whole(graph, r) or (r in out and _mixes(r)) for r in readers)
        ):
            out.add(n)
    return out


def _is_whole(graph: Graph, node: Node) -> bool:
    return node.op == "astype" and graph.facts.dtype(node).integral


def _mixes(node: Node) -> bool:
    """Whether an operation works value by value, or adds up: the digits of a code."""
    op = TABLE.get(node.op)
    return node.op in ("index", "phi", "sum") or (op is not None and op.kind in ONE_BY_ONE)
