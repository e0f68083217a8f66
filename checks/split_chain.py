"""FUS302 split-compiled-chain: elementwise code under `mx.compile` that is cut into several kernels without need.

What it does: follows MLX's own fuser through each compiled function, and finds the places where it ends a kernel that
it would not have to end:

- `shapeless=True`: MLX then puts a broadcast before every operand of every binary operation, and each counts. A kernel
  holds 11 primitives in a row, so 6 binary operations instead of 11: `nn.gelu_approx(gate) * x` is two kernels, one
  without `shapeless=True`.
- a view in the middle: a reshape, slice or new axis between two elementwise operations. Taken before or after both, it
  leaves one kernel.
- a filled array: `mx.zeros_like(x)`, `mx.full(...)` are kernels of their own, where a number does.
- a value that several kernels read, and each of them could compute for itself, such as a cast to float32 on both sides
  of a reduction. Writing the cast twice does not help: MLX shares what one compiled function computes twice.
- a chain deeper than 11 primitives, or with more than 24 inputs.

Why: what lies at the cut is written to memory, and read again by the next kernel.

Traffic: one launch, and one write and read of an activation, for each cut.

When not to: in a function that only another file compiles; there the cuts depend on what stands around its calls.
`shapeless=True` saves a trace for each new shape, some 40 microseconds, so it stays right where shapes
never repeat, such as scores over a cache that grows at every step. Operations keep their order: another order rounds
differently.

Fix safety: bit-identical. A view changes places safely. Leaving out `shapeless=True` is safe where the shapes that
reach the function are known to be few, and unsafe elsewhere. The other cuts are advice: two compiled functions in place
of one, or a kernel of one's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fuselint.finding import Obligation
from fuselint.graph.compiling import compilations, decorator
from fuselint.graph.cuts import Cut, cuts
from fuselint.graph.flow import callers
from fuselint.graph.fuse import MAX_ARRAYS, MAX_DEPTH
from fuselint.graph.growth import grows
from fuselint.graph.model import Graph, Node
from fuselint.graph.origins import ACTIVATIONS, Origins
from fuselint.graph.shapes import SCALAR
from fuselint.graph.tape import Array
from fuselint.rulebook import Example, Launches, Match
from fuselint.traffic.kernels import Bytes, Kernel, group_kernels
from fuselint.traffic.known import Known
from fuselint.traffic.sizes import Sizes

CODE, NAME = "FUS302", "split-compiled-chain"

PLAIN = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
HEAD = "from functools import partial\n" + PLAIN

SORTS = frozenset({"argpartition", "argsort", "partition", "sort", "topk", "random.categorical"})
"""What samplers and routers do. Beside a sort, one more pass over its keys is little."""


def unfused(gate: Any, x: Any) -> Any:
    """Two kernels."""
    import mlx.core as mx
    import mlx.nn as nn

    return mx.compile(lambda gate, x: nn.gelu_approx(gate) * x, shapeless=True)(gate, x)


def fused(gate: Any, x: Any) -> Any:
    """One."""
    import mlx.core as mx
    import mlx.nn as nn

    return mx.compile(lambda gate, x: nn.gelu_approx(gate) * x)(gate, x)


def find(graph: Graph) -> Iterator[Match]:
    context = graph.context
    if not context.compiled or context.cold or _is_a_loss(graph):
        return
    if graph.module.compiled[context.qualname].elsewhere:
        return  # what stands around it there decides how large its values are, and what its kernels take in
    found = list(cuts(graph))
    if not found:
        return
    place = _Place(graph, Origins(graph))
    for cut in found:
        if place.is_large(cut) and place.is_worth_it(cut):
            yield place.match(cut)


def _is_a_loss(graph: Graph) -> bool:
    """Whether it returns a single number. Under a gradient, nothing that is compiled for itself is fused."""
    shapes = [graph.facts.shape(n) for _, value in graph.returns for n in (value, *value.inputs[:1])]
    return any(s == SCALAR for s in shapes if s is not None)


@dataclass(eq=False)
class _Place:
    """Where cuts are found."""

    graph: Graph
    origins: Origins

    def is_large(self, cut: Cut) -> bool:
        """Whether something as large as an activation passes through memory at the cut."""
        if cut.kind in ("view", "readers"):
            return any(a.node is not None and a.shape != SCALAR and self.is_counted(a, a.node) for a in cut.written)
        made = [o for g in cut.after if g not in cut.same for o in g.outputs]
        whole = [o.shape for o in made if o.node is not None and self.is_activation(o.node)]
        return (cut.kind == "full" and bool(whole)) or any(a.shape in whole for a in cut.written)

    def is_counted(self, array: Array, node: Node) -> bool:
        # An operand of which nothing is known may be a number: then nothing is cast.
        return self.is_activation(node) and not (array.primitive == "AsType" and node.op != "astype")

    def is_activation(self, node: Node) -> bool:
        origins = self.origins
        found = origins.of(node)
        elsewhere = origins.identities | origins.totals | origins.angles | origins.points
        return bool(found & ACTIVATIONS) and "foreign" not in found and node not in elsewhere

    def is_worth_it(self, cut: Cut) -> bool:
        if cut.kind == "readers":
            now, after = map(self.moved, _launches(cut))
            return self.may_be_computed_twice(cut) and after < now
        return cut.kind != "shapeless" or not self.runs_in_another_trace()

    def moved(self, kernels: list[Kernel]) -> float:
        """Bytes, with sizes assumed where nobody states them."""
        sizes = Sizes.of([a.shape for k in kernels for a in (*k.reads, *k.writes)])
        total = Bytes(sizes).total(kernels)
        numbers = {name: n for name, (n, _) in sizes.numbers(total, Known()).items()}
        return float(total.substitute(numbers).value() or 0)

    def may_be_computed_twice(self, cut: Cut) -> bool:
        """Whether the readers can be compiled apart, and all work on the value's own shape: a row is small."""
        value = cut.written[0]
        shapes = [a.shape for g in cut.before for a in g.arrays if value in a.inputs]
        info = self.graph.module.compiled[self.graph.context.qualname]
        if info.how == "called" or self.runs_in_another_trace() or any(s != value.shape for s in shapes):
            return False
        return not any(n.op in SORTS for n in self.graph.nodes)

    def runs_in_another_trace(self) -> bool:
        """Whether functions that are compiled themselves call it: in them, it is cut elsewhere."""
        module, me = self.graph.module, self.graph.context.qualname
        return module.compiled[me].how != "called" and any(
            me in called and q in module.compiled for q, called in module.calls.items()
        )

    # -- what is said -------------------------------------------------------------------------------------------------

    def match(self, cut: Cut) -> Match:
        now, after = _launches(cut)
        root, message, form, obligations = getattr(self, cut.kind)(cut)
        line = self.graph.module.compiled[self.graph.context.qualname].line
        compiled = Obligation("the code is compiled", "proven", f"in line {line}" if line else "with its callers")
        return Match(
            code=CODE,
            root=root,
            holes={},
            message=message,
            obligations=[compiled, *obligations],
            region=cut.nodes,
            launches=Launches(now, after, form, partial(self.wide, cut)),
            related=[(cut.value, "this is written to memory, and read again")],
            data={"cut": cut},
        )

    @cached_property
    def in_float32(self) -> list[Cut]:
        return list(cuts(self.graph, "float32"))

    def wide(self, cut: Cut) -> tuple[list[Kernel], list[Kernel]]:
        """The kernels where activations are float32: those of the same cut, if it is one there too."""
        same = [c for c in self.in_float32 if c.kind == cut.kind and not c.nodes.isdisjoint(cut.nodes)]
        if same:
            return _launches(max(same, key=lambda c: len(c.nodes & cut.nodes)))
        _, after = _launches(cut)
        return after, after

    def shapeless(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        name = self.graph.context.qualname.rpartition(".")[2]
        message = (
            f"shapeless=True cuts {name}: every operand is broadcast then, and a kernel holds {MAX_DEPTH} operations "
            "in a row"
        )
        return self.shapeless_decorator() or self.last(cut), message, "plain mx.compile", [self.few_shapes()]

    def shapeless_decorator(self) -> Node | None:
        for c in compilations(self.graph):
            if c.how == "decorator" and c.shapeless:
                return decorator(self.graph, c)
        return None

    def last(self, cut: Cut) -> Node:
        return max(cut.nodes, key=lambda n: n.id)

    def few_shapes(self) -> Obligation:
        """Each new shape is traced once more without shapeless=True."""
        graph, claim = self.graph, "few shapes reach it"
        qualname = graph.context.qualname
        name = qualname.rpartition(".")[2]
        calls = list(callers(graph))
        for other, call in calls:
            for argument in call.inputs:
                longer = grows(other, argument)
                if longer is not None:
                    line = _line(other, longer)
                    return Obligation(claim, "contradicted", f"line {line} makes an argument longer at every step")
        handed_on = any(qualname in used for used in graph.module.references.values())
        if handed_on or not calls or not (name.startswith("_") or "<locals>" in qualname):
            return Obligation(claim, "unknown", "nothing says which sizes its callers give it")
        if all(_is_constant(other, n) for other, call in calls for n in call.inputs):
            return Obligation(claim, "proven", "every call gives it arrays of one size")
        return Obligation(claim, "unknown", "the sizes of its arguments come from outside")

    def depth(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        message = f"a chain is deeper than the {MAX_DEPTH} operations in a row that a kernel of mx.compile holds"
        return self.last(cut), message, "in one kernel", [Obligation("it is too deep", "proven", "counted as MLX does")]

    def inputs(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        message = f"a chain reads more than the {MAX_ARRAYS} arrays that a kernel of mx.compile takes"
        return self.last(cut), message, "in one kernel", [Obligation("they are too many", "proven", "as MLX counts")]

    def view(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        assert cut.move is not None
        names = " and ".join(dict.fromkeys(_called(n) for n in cut.by))
        form = f"the {names} {'last' if cut.move.after else 'first'}"
        return (
            cut.move.paths[0][-1],
            f"a {names} between elementwise operations cuts their kernel",
            form,
            [
                Obligation("the operations work value by value", "proven", ", ".join(_named(cut.move.chain))),
                Obligation("nothing else reads the value between", "proven", "only views do"),
            ],
        )

    def full(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        (filled,) = cut.by
        return (
            filled,
            f"mx.{filled.op} is a kernel of its own in a compiled chain",
            "a number",
            [Obligation("another operand has its shape", "proven", self.graph.facts.why(filled))],
        )

    def readers(self, cut: Cut) -> tuple[Node, str, str, list[Obligation]]:
        value = cut.value
        what = "a cast" if value.op == "astype" else f"what {_called(value)} makes"
        twice = [n for n in self.graph.nodes if n is not value and self.is_the_same(n, value)]
        shared = ", computed once for the two places that compute it" if twice else ""
        return (
            value,
            f"{what} is written to memory{shared}: several kernels read it",
            "computed in each of them",
            [
                Obligation("its readers are all elementwise", "proven", ", ".join(_named(cut.by))),
                Obligation("it does not leave the function", "proven", "nothing else reads it"),
            ],
        )

    def is_the_same(self, a: Node, b: Node) -> bool:
        facts, canonical = self.graph.facts, self.graph.canonical
        if a.op != b.op or len(a.inputs) != len(b.inputs) or facts.dtype(a) != facts.dtype(b):
            return False
        return all(canonical.of(m) == canonical.of(n) for m, n in zip(a.inputs, b.inputs, strict=True))


def _launches(cut: Cut) -> tuple[list[Kernel], list[Kernel]]:
    return group_kernels(cut.before, without=cut.same), group_kernels(cut.after, without=cut.same)


def _is_constant(graph: Graph, node: Node) -> bool:
    """Whether an argument has the same size at every call, or is no array."""
    if graph.facts.kind(node) in ("scalar", "none", "dtype", "str"):
        return True
    shape = graph.facts.shape(node)
    return shape is not None and shape.lead is None and all(d.value() is not None for d in shape.dims)


def _line(graph: Graph, node: Node) -> int:
    at = node.top_cst
    return graph.source.file.position(graph.source.span(at)[0] if at is not None else graph.source.start)[0]


def _called(node: Node) -> str:
    return {"index": "slice", "item": "split"}.get(node.op, node.op)


def _named(nodes: tuple[Node, ...]) -> list[str]:
    return list(dict.fromkeys(map(_called, nodes)))


GEGLU = "@partial(mx.compile, shapeless=True)\ndef {name}(gate, x):\n    return nn.gelu_approx(gate) * x\n"

MLP = """

class MLP(nn.Module):
    def __init__(self, dims: int, hidden_dims: int):
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=False)

    def __call__(self, x):
        return self.down_proj(geglu(self.gate_proj(x), self.up_proj(x)))
"""

QUERIES = """

class Queries(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = mx.zeros((32, 768))
        self.up = mx.ones((32, 768))

    def __call__(self):
        return _geglu(self.gate, self.up)
"""

EXAMPLES = [
    Example(
        HEAD + GEGLU.format(name="geglu") + MLP,
        fixed=PLAIN + GEGLU.format(name="geglu").replace("partial(mx.compile, shapeless=True)", "mx.compile") + MLP,
        applicability="unsafe",
        why="each new length of a prompt would be traced once",
    ),
    Example(
        HEAD + GEGLU.format(name="_geglu") + QUERIES,
        fixed=PLAIN
        + GEGLU.format(name="_geglu").replace("partial(mx.compile, shapeless=True)", "mx.compile")
        + QUERIES,
        why="every call of the file gives it arrays of one size, and other files leave it alone",
    ),
    Example(
        HEAD + "@mx.compile\ndef expand(x: mx.array, value: mx.array, gate: mx.array):\n"
        "    return x + gate[..., None] * value.astype(mx.float32)[:, :, None, :]\n",
        fixed=HEAD + "@mx.compile\ndef expand(x: mx.array, value: mx.array, gate: mx.array):\n"
        "    return x + gate[..., None] * value[:, :, None, :].astype(mx.float32)\n",
        why="the new axis stands between the cast and the product",
    ),
    Example(
        HEAD + "@mx.compile\ndef rescale(x: mx.array, scale: mx.array):\n"
        "    y = x.astype(mx.float32) * scale\n"
        "    return y.reshape(-1, 4, 64).astype(x.dtype)\n",
        fixed=HEAD + "@mx.compile\ndef rescale(x: mx.array, scale: mx.array):\n"
        "    y = x.astype(mx.float32) * scale\n"
        "    return y.astype(x.dtype).reshape(-1, 4, 64)\n",
        why="the reshape stands between the product and the cast",
    ),
    Example(
        HEAD + "@mx.compile\ndef gate(x: mx.array, up: mx.array):\n"
        "    floor = mx.zeros_like(up)\n"
        "    return mx.tanh(x) * (floor - up)\n",
        fixed=HEAD + "@mx.compile\ndef gate(x: mx.array, up: mx.array):\n    return mx.tanh(x) * (0 - up)\n",
    ),
    Example(
        HEAD + "@mx.compile\ndef normalize(x, scale):\n"
        "    square = mx.square(x.astype(mx.float32))\n"
        "    length = mx.sqrt(mx.maximum(mx.sum(square, axis=-1, keepdims=True), 1e-12))\n"
        "    return (x.astype(mx.float32) / length * scale).astype(x.dtype)\n",
        applicability="none",
        why="the two casts are made one, which is written to memory in float32",
    ),
    Example(
        HEAD + "@mx.compile\ndef polynomial(x: mx.array):\n"
        "    y = x * 0.1 + 0.2\n"
        "    y = y * x + 0.3\n"
        "    y = y * x - 0.4\n"
        "    y = y * x + 0.5\n"
        "    y = y * x - 0.6\n"
        "    return y * x + 0.7\n",
        applicability="none",
        why="twelve operations in a row",
    ),
]

COUNTEREXAMPLES = [
    Example(
        HEAD + "@partial(mx.compile, shapeless=True)\ndef swiglu(gate, x):\n    return nn.silu(gate) * x\n",
        why="six binary operations in a row still are one kernel",
    ),
    Example(
        HEAD + "@mx.compile\ndef geglu(gate, x):\n    return nn.gelu_approx(gate) * x\n",
        why="one kernel",
    ),
    Example(
        HEAD + GEGLU.format(name="weigh") + "\n\ndef generate(step, scores: mx.array, n: int):\n"
        "    for _ in range(n):\n"
        "        new = step(scores)\n"
        "        scores = mx.concatenate([scores, new], axis=-1)\n"
        "        new = weigh(scores, scores)\n"
        "    return new\n",
        why="the scores are longer at every step, and each length would be a new trace",
    ),
    Example(
        HEAD + "@mx.compile\ndef rotate(x: mx.array, cos, sin):\n"
        "    a, b = x[..., :64], x[..., 64:]\n"
        "    return a * cos - b * sin\n",
        why="a kernel reads slices where they are",
    ),
    Example(
        HEAD + "@mx.compile\ndef softmax(x: mx.array):\n"
        "    e = mx.exp(x - mx.max(x, axis=1, keepdims=True))\n"
        "    return e / mx.sum(e, axis=1, keepdims=True)\n",
        why="the sum reads the exponentials from memory, so they are written in any case",
    ),
    Example(
        HEAD + "@mx.compile\ndef forward(x: mx.array, w, training: bool):\n"
        "    h = mx.exp(x) + 1\n"
        "    if training:\n"
        "        return h * 2 @ w\n"
        "    return mx.tanh(h) @ w\n",
        why="either branch reads it, never both",
    ),
    Example(
        HEAD + "@mx.compile\ndef loss(x: mx.array, y: mx.array):\n"
        "    e = mx.exp(x) - y\n"
        "    return mx.mean(e * y) + mx.mean(e * e)\n",
        why="a loss: under a gradient, nothing that is compiled for itself is fused",
    ),
    Example(
        HEAD + "def forward(x: mx.array):\n    y = mx.exp(x) + 1\n    return mx.tanh(y).reshape(-1, 64) * 2\n",
        why="it is not compiled",
    ),
]
