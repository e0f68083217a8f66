"""What says that work on a value is rare or small, whatever its shape: solver steps, samples, codes, rows' numbers.

How often a function runs is another question (`source/frequency.py`): this goes by the values alone, and by no names
but those of the parameters of MLX's own layers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import libcst as cst

from fuselint.graph.callers import every_given
from fuselint.graph.fact import PURE
from fuselint.graph.makers import is_overridden
from fuselint.graph.model import Block, Graph, Node, Slice, Statement, operands, region
from fuselint.graph.ops import TABLE
from fuselint.graph.origins import ONE_BY_ONE, Origin, Origins
from fuselint.graph.state import ASSIGNED
from fuselint.source.function import walk

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

PARAMETERS = frozenset({"weight", "bias", "scales", "biases"})
"""What MLX's layers call their parameters."""


def is_rare(graph: Graph, nodes: Sequence[Node], *, gated: bool = False) -> bool:
    """Whether a chain runs once for each pass through a model, or once for all. A gated one is no solver's step."""
    inside = set(nodes)
    outside = [k for n in nodes for k in n.inputs if k not in inside]
    if any(_is_drawn(k) or is_of_a_schedule(graph, k) for k in outside) or _normalises_latents(graph, outside):
        return True
    if any(n.op in SIGNAL for n in nodes) or any(_is_of_a_spectrogram(graph, n) for n in (nodes[-1], *outside)):
        return True
    return (
        _is_a_spectrum(graph, nodes)
        or _interpolates(graph, nodes)
        or _shows_an_image(graph, nodes, outside)
        or _rewrites_a_parameter(graph, nodes[-1], outside)
        or (not gated and (_guides(graph, nodes, outside) or _weighs(graph, nodes, outside)))
        or (not gated and _steps_a_solver(graph, nodes))
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
    return _is_spread(graph, root) or root in _ends_in_integers(graph)


def is_of_tables(graph: Graph, operands_: Sequence[Node]) -> bool:
    """Whether all that is computed with are constants, and arguments to which every call in the package gives single
    numbers or what is made of constants: the scale of a filter bank, the steps of a schedule, positions.

    What a layer weighs them with is as small.
    """
    arrays = [k for k in operands_ if k.op != "const" and graph.facts.kind(k) in ("array", "unknown")]
    own = [_own(graph)[k] for k in arrays]
    if not any(o & MAYBE for o in own) or any(o - MAYBE - CONSTANT - {"weight"} for o in own):
        return False
    return _is_constant(graph, frozenset().union(*_as_called(graph, arrays, 0)))


CALLS = 3
"""Calls above one another that are looked at for what is given."""
CONSTANT: frozenset[Origin] = frozenset({"table", "number", "identity"})
MAYBE: frozenset[Origin] = frozenset({"given", "unknown"})
"""What an argument is that the callers may know to be small."""

_origins: WeakKeyDictionary[Graph, dict[int | None, Mapping[Node, frozenset[Origin]]]] = WeakKeyDictionary()


def _own(graph: Graph) -> Mapping[Node, frozenset[Origin]]:
    """The origins of a graph's values as the function itself says them."""
    known = _origins.setdefault(graph, {})
    if None not in known:
        known[None] = _all_origins(graph, {})
    return known[None]


def _all_origins(graph: Graph, given_: Mapping[Node, frozenset[Origin]]) -> Mapping[Node, frozenset[Origin]]:
    origins = Origins(graph, given_)
    return {n: origins.of(n) for n in graph.nodes}


def _is_constant(graph: Graph, found: frozenset[Origin]) -> bool:
    """Whether a value of that origin in a function is a constant, or handled once."""
    if graph.context.cold:
        return True
    return found <= CONSTANT or (found <= {*CONSTANT, "weight"} and ("table" in found or not _is_a_layer(graph)))


def _as_called(graph: Graph, nodes: Sequence[Node], depth: int) -> list[frozenset[Origin]]:
    """The origins of values, with those of arguments that are constants wherever the function is called."""
    own = _own(graph)
    if depth >= CALLS or not any(own[n] & MAYBE for n in nodes):
        return [own[n] for n in nodes]
    known = _origins.setdefault(graph, {})
    if depth not in known:
        known[depth] = own  # of a function that calls itself
        known[depth] = _all_origins(graph, _given_constants(graph, depth))
    return [known[depth][n] for n in nodes]


def _given_constants(graph: Graph, depth: int) -> dict[Node, frozenset[Origin]]:
    """By the parameter: the origins of what all calls give it, where these are constants."""
    own = _own(graph)
    arrays = [p for p in graph.params.values() if own[p] & MAYBE and graph.users.get(p)]
    arrays = [p for p in arrays if not _is_the_object(graph, p)]
    found: dict[Node, frozenset[Origin]] = {}
    for p in arrays:
        calls = every_given(graph, p)
        if calls and all(_is_constantly(caller, n, depth + 1) for caller, n in calls):
            found[p] = frozenset({"table"})
    # A layer may be called where that isn't seen: with an activation, unless it is given another one.
    return {} if graph.context.qualname.endswith(".__call__") and len(found) == len(arrays) else found


def _is_constantly(graph: Graph, node: Node, depth: int) -> bool:
    return is_of_a_schedule(graph, node) or all(_is_constant(graph, o) for o in _as_called(graph, [node], depth))


def _is_the_object(graph: Graph, parameter: Node) -> bool:
    return graph.context.class_name is not None and parameter is next(iter(graph.params.values()))


def counts(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a chain computes with whole numbers that it makes itself: positions."""
    inside = set(nodes)
    made = [n for n in nodes if n.op == "astype" and graph.facts.dtype(n).name in COUNTING]
    return any(r.op in ("add", "subtract") for n in made for r in graph.users.get(n, ()) if r in inside)


def finds_nearest(graph: Graph, node: Node) -> bool:
    """Whether nothing is left of a value but the index of the nearest: a vector is given the code of its codebook.

    That is done with an image or a clip that comes in, once, and with no more entries than there are codes. Distances
    to what a layer keeps may be given back too: they are a measure of its training.
    """
    stack, seen, found, escapes = [node], {node}, False, False
    while stack:
        at = stack.pop()
        readers = graph.users.get(at, ())
        left = at in graph.escaping or any(r.op in HOLDERS for r in readers)
        if not readers or (left and at.op not in ("add", "subtract")):
            return False
        escapes |= left
        for r in readers:
            nearest = r.op == "argmin" or (r.op == "argmax" and (at.op == "negative" or _is_less_squares(at)))
            found |= nearest
            if not nearest and r.op not in ("shape", "dim", "dtype", "ndim", *HOLDERS) and r not in seen:
                seen.add(r)
                stack.append(r)
    return found and (not escapes or _reads_own_table(node))


def _is_less_squares(node: Node) -> bool:
    """`2 * x @ e.T - sum(e * e)`: the nearest of the rows of e is where that is the largest."""
    if node.op != "subtract" or node.inputs[1].op != "sum":
        return False
    squared = node.inputs[1].inputs[0]
    factors = [n.attrs.get("path") or n.id for n in squared.inputs] if squared.op == "multiply" else []
    return squared.op == "square" or (len(factors) == 2 and factors[0] == factors[1])


def _reads_own_table(node: Node) -> bool:
    """Whether a value is computed with the weight of a layer that the object holds."""
    own = (n for n in region(node, ()) if n.op == "attr" and n.attrs.get("name") == "weight")
    return any(str(n.attrs.get("path", "")).startswith("self.") for n in own)


HOLDERS = frozenset({"tuple", "list", "dict"})
HOST = frozenset({"numpy.array", "numpy.asarray", "builtins.float", "builtins.int"})
READS = frozenset({"tolist", "item"})


def is_read_out(graph: Graph, root: Node) -> bool:
    """Whether what a function makes of a value goes to the host, or to a decomposition, which runs there.

    That is work on a whole input, before a model or after it.
    """
    stack, seen = [root], {root}
    while stack:
        node = stack.pop()
        for r in graph.users.get(node, ()):
            if r in seen:
                continue
            seen.add(r)
            if _is_of_the_host(r):
                return True
            if r.op.startswith("linalg.") and r.op != "linalg.norm":
                return True
            stack.append(r)
    return False


def decomposes(graph: Graph) -> bool:
    """Whether a function decomposes a matrix or solves for one, which MLX does on the CPU alone: both processors wait
    for each other, and beside that a few launches are nothing."""
    return any(n.op in TABLE and TABLE[n.op].kind == "linalg" for n in graph.nodes)


def is_only_read_out(graph: Graph, root: Node) -> bool:
    """Whether all that a function makes of a value are numbers for the host, which waits for them: beside that, a few
    launches are nothing. A function that is no layer's and returns a number makes nothing else."""
    if _returns_a_number(graph):
        return True
    stack, seen, found = [root], {root}, False
    while stack:
        node = stack.pop()
        if node in graph.escaping:
            return False
        for r in graph.users.get(node, ()):
            if _is_of_the_host(r):
                found = True
            elif not _is_computed(r) and r.op not in ("item", *ASKS):
                return False
            elif r not in seen and r.op not in ASKS:
                seen.add(r)
                stack.append(r)
    return found


def _returns_a_number(graph: Graph) -> bool:
    function = graph.module.functions.get(graph.context.qualname)
    return function is not None and function.returns in NUMBERS and not _is_a_layer(graph)


NUMBERS = frozenset({"float", "int", "bool"})
ASKS = frozenset({"shape", "dim", "dtype", "ndim", "size"})


def _is_of_the_host(node: Node) -> bool:
    is_method = node.op == "attr" and node.attrs.get("name") in READS
    return is_method or (node.op == "call" and node.attrs.get("target") in HOST)


def is_lowest(node: Node) -> bool:
    """`mx.finfo(dtype).min`: what fills masked scores."""
    called = node.inputs[0].attrs.get("target") if node.op == "attr" and node.inputs else None
    return node.attrs.get("name") == "min" and called in ("mlx.core.finfo", "numpy.finfo")


def is_of_another_choice(graph: Graph, node: Node) -> bool:
    """Whether a value is computed where an option is one word, and the default is another: `if act == "silu"`.

    Switches and numbers say nothing: a configuration's file sets them, and their default is what turns them off.
    """
    at = node.top_stmt
    while at is not None:
        before = (s.cst for s in graph.statements if s.block is at.block and s.end <= at.index)
        passed = (test for n in before if isinstance(n, cst.If) for test in _passed(n))
        if any(_is_other(graph, test, outcome) for test, outcome in passed):
            return True
        owner, kind = at.block.owner, at.block.kind
        if owner is not None and isinstance(owner.cst, cst.If) and _is_other(graph, owner.cst.test, kind == "then"):
            return True
        at = owner
    return False


def _passed(branch: cst.If) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """What the tests of an `if` must give for control to come to what stands behind it: one way of it may leave."""
    at: cst.If | cst.Else | None = branch
    while isinstance(at, cst.If):
        if not _leaves(at.body):
            if isinstance(at.orelse, cst.Else) and _leaves(at.orelse.body):
                yield at.test, True
            return
        yield at.test, False
        at = at.orelse


def _leaves(suite: cst.BaseSuite) -> bool:
    last = suite.body[-1] if suite.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _is_other(graph: Graph, test: cst.CSTNode, wanted: bool) -> bool:
    """Whether an option is one word by default, so that a test of it gives the other outcome than the wanted one."""
    node = graph.values.get(test)
    if node is None or node.op not in WORDS or not any(isinstance(graph.usual.const(n), str) for n in node.inputs):
        return False
    return graph.usual.truth(node) is (not wanted) and not any(
        is_overridden(graph, default) for n in node.inputs for default in graph.usual.of(n).rests
    )


WORDS = frozenset({"equal", "not_equal"})
"""Tests of an option that is a word."""

COUNTING = frozenset({"int32", "int64", "uint32"})
"""Dtypes of positions and lengths; codes have narrower ones."""

SIGNAL = frozenset({"log10", "arctan2"})
"""Decibels and phases: work on a signal, before or after the model."""


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
    if node.op == "loop" and deepest > 0:  # `while t.ndim < x.ndim: t = t[:, None]`
        return is_of_a_schedule(graph, node.inputs[0], deepest - 1)
    if node.op in ("item", "index") and node.inputs:
        base = node.inputs[0]
        parts = index if isinstance(index, tuple) else (index,)
        one = len(parts) == 1 and not isinstance(parts[0], Slice) and parts[0] is not None and parts[0] is not Ellipsis
        if kind == "array" and base.op != "attr":
            return one and facts.rank(base) == 1
        if kind == "array" and (_is_a_layer(graph) or (facts.rank(base) or 1) > 1):
            return False  # a row of a table
        return one and base.op == "attr" and isinstance(parts[0], Node) and changes(graph, parts[0])
    if node.op == "phi" and deepest > 0:
        return any(is_of_a_schedule(graph, k, deepest - 1) for k in node.inputs)
    op = TABLE.get(node.op)
    if node.op != "call" and (op is None or op.kind not in ONE_BY_ONE or (kind == "array" and facts.rank(node))):
        return False
    made_of = [k for k in node.inputs if k.op != "const" and facts.kind(k) != "scalar"]
    return bool(made_of) and deepest > 0 and all(is_of_a_schedule(graph, k, deepest - 1) for k in made_of)


def _is_a_layer(graph: Graph) -> bool:
    held = graph.module.classes.get(graph.context.class_name or "")
    return held is not None and held.is_module


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
        if n in seen or n.op in ("attr", "ndim") or _is_held(n):
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


def _is_held(node: Node) -> bool:
    """Whether a value is one of those that an attribute holds, `self.betas[0]`."""
    return node.op == "item" and node.inputs[0].op == "attr" and isinstance(node.attrs.get("index"), int)


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
    return _has_source(graph, node, _is_a_magnitude, _is_computed)


def _is_a_magnitude(graph: Graph, node: Node) -> bool:
    return node.op == "log10" or (node.op == "abs" and "complex64" in graph.facts.dtype(node.inputs[0]))


def _is_computed(node: Node) -> bool:
    return node.op in TABLE or node.op in ("index", "phi")


STATISTICS = frozenset({"running_mean", "running_var"})
"""What MLX's batch norm calls those of its training."""


def _normalises_latents(graph: Graph, outside: Sequence[Node]) -> bool:
    """Whether a function that is no layer takes another model's statistics: `(x - vae.bn.running_mean) / ...`, once."""
    if _is_a_layer(graph):
        return False
    return any(_has_source(graph, k, _is_a_statistic) for k in outside)


def _is_a_statistic(graph: Graph, node: Node) -> bool:
    return node.op == "attr" and node.attrs.get("name") in STATISTICS and node.inputs[0].op == "attr"


def _interpolates(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a chain weighs neighbours by how far a point of a grid lies between them: work on a whole image."""
    return any(_has_source(graph, end, _is_a_fraction) for end in nodes)


def _is_a_fraction(graph: Graph, node: Node) -> bool:
    """`grid - floor(grid)`, of a grid that an arange or linspace makes."""
    if node.op != "subtract" or not _has_source(graph, node, _is_a_grid):
        return False
    whole, rounded = node.inputs
    return any(
        n.op in ("floor", "trunc") or (n.op == "astype" and graph.facts.dtype(n).integral)
        for n in _sources(rounded, whole)
        if _leads_to(whole, n)
    )


def _is_a_grid(graph: Graph, node: Node) -> bool:
    return node.op in ("arange", "linspace")


def _shows_an_image(graph: Graph, nodes: Sequence[Node], outside: Sequence[Node]) -> bool:
    """Whether a chain maps -1, 0 and 1 to 0, a half and 1, or to those of bytes: what a decoder made, for the eye."""
    facts = graph.facts
    arrays = {k for k in outside if k.op != "const" and facts.kind(k) not in ("dtype", "none")}
    if len(arrays) != 1:
        return False
    made = [_at(nodes, facts, dict.fromkeys(arrays, x)) for x in (-1.0, 0.0, 1.0)]
    return made in ([0.0, 0.5, 1.0], [0.0, 127.5, 255.0], [0.0, 128.0, 255.0])


def _guides(graph: Graph, nodes: Sequence[Node], outside: Sequence[Node]) -> bool:
    """Whether a chain is the line through two values at a number that is given: guidance, or a step.

    `a + s * (b - a)`, `(1 + s) * b - s * a`, `(1 - s) * a + s * b`, whatever s is as long as nothing says an array.
    """
    facts = graph.facts
    operands_ = list(dict.fromkeys(k for k in outside if k.op != "const" and facts.kind(k) not in ("dtype", "none")))
    given = [k for k in operands_ if k.op == "param" and facts.kind(k) != "array"]
    if len(operands_) != 3 or len(given) != 1:
        return False
    a, b = (k for k in operands_ if k is not given[0])
    made = [_at(nodes, facts, {a: 3.0, b: 5.0, given[0]: s}) for s in (-1.0, 0.0, 1.0)]
    steps = {y - x for x, y in pairwise(made) if x is not None and y is not None}
    return len(steps) == 1 and {3.0, 5.0} <= set(made)


def _weighs(graph: Graph, nodes: Sequence[Node], outside: Sequence[Node]) -> bool:
    """Whether a chain mixes arguments by options of a call, so that it is any of them where they are the same: the
    guidance of several predictions, each a pass of a model. `a + (options.s - 1) * (a - b) + options.t * (a - c)`"""
    facts = graph.facts
    operands_ = list(dict.fromkeys(k for k in outside if k.op != "const" and facts.kind(k) not in ("dtype", "none")))
    options = [k for k in operands_ if _is_an_option(facts, k)]
    arrays = [k for k in operands_ if k.op == "param" and k not in options]
    if len(arrays) < 2 or not options or len(arrays) + len(options) < len(operands_):
        return False
    weights = {k: 0.25 + i for i, k in enumerate(options)}
    same = {y: _at(nodes, facts, {**dict.fromkeys(arrays, y), **weights}) for y in (3.0, 5.0)}
    other = [
        _at(nodes, facts, {**{k: 3.0 + i for i, k in enumerate(arrays)}, **w}) for w in (weights, _halved(weights))
    ]
    return all(at is not None and math.isclose(at, y) for y, at in same.items()) and other[0] != other[1]


def _halved(weights: Mapping[Node, float]) -> dict[Node, float]:
    return {k: w / 2 for k, w in weights.items()}


def _is_an_option(facts: Facts, node: Node) -> bool:
    """A number that is given, `options.scale` of an argument, or arithmetic with such; what a layer keeps may be
    learned."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in seen or n.op == "const":
            continue
        seen.add(n)
        held = n.inputs[0] if n.op == "attr" else None
        if n.op in ARITHMETIC and n.op != "astype":
            stack.extend(n.inputs)
        elif n.op == "param":
            if facts.kind(n) != "scalar":
                return False
        elif held is None or held.op != "param" or held.attrs.get("name") == "self":
            return False
    return True


def _at(nodes: Sequence[Node], facts: Facts, values: dict[Node, float]) -> float | None:
    """What arithmetic comes to where its operands are these numbers."""
    known = dict(values)
    for n in nodes:
        given = [known.get(k, facts.const(k)) for k in n.inputs]
        if n.op == "astype":
            given = given[:1]
        if n.op not in ARITHMETIC or not all(isinstance(v, (int, float)) for v in given):
            return None
        known[n] = float(ARITHMETIC[n.op](*given))
    return known[nodes[-1]]


ARITHMETIC: Mapping[str, Callable[..., float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": lambda a, b: a / b if b else math.nan,
    "negative": operator.neg,
    "minimum": min,
    "maximum": max,
    "clip": lambda a, low=-math.inf, high=math.inf: max(low, min(a, high)),
    "round": round,
    "astype": float,
}


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
    targets = _names(loop.owner.cst.target) if isinstance(loop.owner.cst, cst.For) else frozenset()
    calls = _calls_by_loop(graph).get(loop, [])
    if any(_selects(c.cst, targets) for c in calls if isinstance(c.cst, cst.Call)):
        return False  # the loop goes through layers
    given = [{n for k in c.inputs for n in _sources(k)} for c in calls if not c.attrs.get("fresh")]
    around = {n for g in given for n in g if n.op == "loop" and len(n.inputs) > 1}
    carried = {n for n in around if _leads_to(nodes[-1], n.inputs[1])}
    return any(carried & g and not any(_is_step_of_a_sequence(n, targets) for n in g) for g in given)


_calls: WeakKeyDictionary[Graph, dict[Block, list[Node]]] = WeakKeyDictionary()


def _calls_by_loop(graph: Graph) -> dict[Block, list[Node]]:
    """The calls that are not understood, by the innermost loop around them."""
    if graph not in _calls:
        _calls[graph] = {}
        for c in graph.nodes:
            loop = _innermost_loop(c) if c.op == "call" and isinstance(c.cst, cst.Call) else None
            if loop is not None:
                _calls[graph].setdefault(loop, []).append(c)
    return _calls[graph]


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


def _sources(node: Node, since: Node | None = None) -> Iterator[Node]:
    """A value, and what operations that work value by value make it of; without what is made before `since`."""
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n in seen or (since is not None and n.id < since.id):
            continue
        seen.add(n)
        yield n
        if _works_one_by_one(n):
            stack.extend(n.inputs)


def _works_one_by_one(node: Node) -> bool:
    op = TABLE.get(node.op)
    return node.op in ("phi", "index", "list", "tuple") or (op is not None and op.kind in (*ONE_BY_ONE, "copy"))


Test = Callable[[Graph, Node], bool]
_with_source: WeakKeyDictionary[Graph, dict[Test, dict[Node, bool]]] = WeakKeyDictionary()


def _has_source(graph: Graph, node: Node, is_one: Test, passes: Callable[[Node], bool] = _works_one_by_one) -> bool:
    """Whether one of a value's sources, itself among them, is of a kind. Each value is asked once for all chains."""
    known = _with_source.setdefault(graph, {}).setdefault(is_one, {})
    stack = [node]
    while stack:
        n = stack[-1]
        if n in known:
            stack.pop()
        elif is_one(graph, n):
            known[n] = True
        elif not passes(n):
            known[n] = False
        elif any(known.get(k) for k in n.inputs):
            known[n] = True
        else:
            waiting = [k for k in n.inputs if k not in known]
            if waiting:
                stack += waiting
            else:
                known[n] = False
    return known[node]


def _leads_to(node: Node, end: Node) -> bool:
    """Whether a value is what `end` is made of, value by value."""
    return any(n is node for n in _sources(end, node))


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


def _is_spread(graph: Graph, node: Node, deepest: int = 8) -> bool:
    """Whether a value is spread over another axis, itself or what is summed up or computed of it value by value."""
    readers = graph.users.get(node, ())
    if not readers or node in graph.escaping or not deepest:
        return False
    return all(_adds_an_axis(r) or (_adds_up(r) and _is_spread(graph, r, deepest - 1)) for r in readers)


def _adds_an_axis(reader: Node) -> bool:
    """`value[..., None]`, and the other half of a difference of all pairs, `value[..., None, :]`."""
    if reader.op == "expand_dims":
        return reader.attrs.get("axis") == -1
    index = reader.attrs.get("index") if reader.op == "index" else None
    if not isinstance(index, tuple) or len(index) < 2:
        return False
    return index[-1] is None or (index[0] is Ellipsis and len(index) == 3 and index[1] is None)


def _adds_up(reader: Node) -> bool:
    op = TABLE.get(reader.op)
    return op is not None and op.kind in ("unary", "scan")


_ending: WeakKeyDictionary[Graph, set[Node]] = WeakKeyDictionary()


def _ends_in_integers(graph: Graph) -> set[Node]:
    """Values of which nothing is left but integers: codes, indices, pixels."""
    if graph not in _ending:
        _ending[graph] = _all_that_end_in_integers(graph)
    return _ending[graph]


def _all_that_end_in_integers(graph: Graph) -> set[Node]:
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
