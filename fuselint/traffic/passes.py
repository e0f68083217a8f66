"""What one call of a function launches in an object of a model: its own kernels and those of the functions that it
calls, in this file or another, each as often as the loops around it go round.

Objects of the file's own classes are left out: the model counts them by themselves. Of an `if` whose test the object's
attributes decide, one side counts; of another, both do, but for what is optional: masks and caches are counted as
given, and what `hasattr` asks for as absent. Of several functions that a call may run, the one that moves least counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.config import DTYPES, Settings
from fuselint.graph import ops
from fuselint.graph.across import Inside, call_arguments
from fuselint.graph.flow import callee
from fuselint.graph.likely import likely
from fuselint.graph.model import Block, Frame, Graph, Node, Statement
from fuselint.graph.ops import TABLE
from fuselint.graph.tape import Array
from fuselint.graph.trace import OPAQUE, Trace, trace
from fuselint.source.instances import UNKNOWN, Made, Objects
from fuselint.source.layout import one_line
from fuselint.traffic import gates_of, met, ones
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, launches
from fuselint.traffic.known import Known, role
from fuselint.traffic.layout import ATTENTION
from fuselint.traffic.sizes import Sizes

if TYPE_CHECKING:
    from fuselint.graph.known import KnownFacts
    from fuselint.graph.shapes import Shape
    from fuselint.graph.symbols import Expr
    from fuselint.source.function import FunctionSource


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, the bytes that it moves, and how often it runs in one call. typical: at sizes that nothing says."""

    kernel: Kernel
    bytes: int
    times: int
    typical: bool = False


@dataclass(frozen=True, eq=False)
class Measure:
    """Numbers of bytes."""

    bytes: Bytes
    known: Known

    def __call__(self, kernel: Kernel, times: int) -> Launch:
        formula = self.bytes.moved(kernel)
        numbers = self.bytes.sizes.numbers(formula, self.known)
        moved = formula.substitute({name: n for name, (n, _) in numbers.items()}).value() or 0
        return Launch(kernel, moved, times, any(source == "typical" for _, source in numbers.values()))


@dataclass(eq=False)
class Pass:
    """One call in an object.

    made, objects: the object that the function is a method of, and all of them; None where no object is known.
    is_apart: whether a function is counted by itself. missed: calls and loops of which not all is counted.
    """

    settings: Settings
    known: Known
    is_apart: Callable[[Graph], bool]
    made: Made | None = None
    objects: Objects | None = None
    missed: Counter[str] = field(default_factory=Counter)

    def launches(self, inside: Inside) -> list[Launch]:
        """The function's own and those of the calls that it makes."""
        nodes = [n for n in inside.graph.nodes if self.runs(inside, n) and not _is_a_number(inside.facts, n)]
        kernels, measure = self._kernels(inside, nodes)
        out = [measure(k, self.rounds(inside, k.node)) for k in kernels]
        for node in nodes:
            found = self.called(inside, node) if node.op == "call" else []
            times = self.rounds(inside, node) if found else 1
            out += [replace(x, times=x.times * times) for x in found]
        return out

    def _kernels(self, inside: Inside, nodes: list[Node]) -> tuple[list[Kernel], Measure]:
        graph, facts = inside.graph, inside.facts
        gates = gates_of(self.settings, self.known)
        if graph.context.compiled:
            traced = trace(nodes, facts, gates=gates)
            outputs = [n for _, v in graph.returns for n in (v.inputs if v.op in ("tuple", "list") else (v,))]
            found = compiled_kernels(nodes, outputs, facts, graph.context.shapeless, gates)
        else:
            traced = trace(nodes, facts, eager=True, gates=gates, made=self._made)
            traced.gates = replace(gates, ones=ones(traced, self.known))
            found = launches(traced)
        shapes = [a.shape for k in found for a in (*k.reads, *k.writes)]
        sizes = Sizes.plain(shapes, met(traced.tracer.arrays))
        return found, Measure(Bytes(sizes, DTYPES[self.settings.activation]), self.known)

    # -- calls --------------------------------------------------------------------------------------------------------

    def called(self, inside: Inside, node: Node) -> list[Launch]:
        """What a call launches that isn't counted elsewhere."""
        functions = inside.facts.into(node)
        graphs = [f.graph for f in functions] or [g for g in (callee(inside.graph, node),) if g is not None]
        if _as_layer(inside.facts, node) is not None or any(map(self.is_apart, graphs)):
            return []
        found = []
        for inner in functions:
            followed = Pass(self.settings, self.known, self.is_apart)
            found.append((followed.launches(inner), followed.missed))
        if not found:
            self._miss(inside, node)
            return []
        least, missed = min(found, key=lambda f: sum(x.bytes * x.times for x in f[0]))
        self.missed.update(missed)
        return least

    def _miss(self, inside: Inside, node: Node) -> None:
        """A call that may launch something, and can't be followed."""
        target = node.attrs.get("target") or node.attrs.get("path")
        if not isinstance(target, str) or target.startswith(("builtins.", "math.", "mlx.core.compile")):
            return
        if any(inside.facts.kind(i) in ("array", "unknown") for i in node.inputs):
            self.missed[target] += 1

    def _made(self, traced: Trace, node: Node) -> bool:
        """Makes the value of a call of a layer of MLX that another function chose, or of one that returns attention."""
        if node.op != "call":
            return False
        call = _as_layer(traced.facts, node)
        if call is not None:
            traced.add(call)
            traced.made[node] = traced.made[call]
            return True
        shape = next((s for f in traced.facts.into(node) if (s := self._attends(f)) is not None), None)
        if shape is not None:
            traced.tracer.node = node
            arrays = [a for n in node.inputs if isinstance(a := traced.operand(n), Array)]
            traced.made[node] = traced.tracer.make(OPAQUE, arrays, shape, traced.dtype(node), ATTENTION)
        return shape is not None

    def _attends(self, inside: Inside) -> Shape | None:
        """The shape of the attention that a function returns."""
        stack = [n for _, n in inside.graph.returns if self.runs(inside, n)]
        while stack:
            node = stack.pop()
            if node.op == "phi":
                stack += [n for n in node.inputs if self.runs(inside, n)]
            elif node.op == "fast.scaled_dot_product_attention":
                return likely(node, inside.facts)
        return None

    # -- what runs, and how often -------------------------------------------------------------------------------------

    def runs(self, inside: Inside, node: Node) -> bool:
        """False in the side of an `if` that isn't taken."""
        if inside.reached(node.top_stmt) is False:
            return False
        for block, source, depth in _blocks(node):
            if block.kind not in ("then", "else") or block.owner is None or not isinstance(block.owner.cst, cst.If):
                continue
            test = block.owner.cst.test
            holds = self._holds(test, source, is_own=depth == 0)
            if holds is not None and holds is not (block.kind == "then"):
                return False
        return True

    def _holds(self, test: cst.BaseExpression, source: FunctionSource, *, is_own: bool) -> bool | None:
        """Whether a test holds, as far as it is known: masks and caches are given, what is optional is not.

        Of an object of another file, `"bias" in self` asks for what is optional, too.
        """
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            inner = self._holds(test.expression, source, is_own=is_own)
            return None if inner is None else not inner
        if isinstance(test, cst.BooleanOperation):
            sides = [self._holds(e, source, is_own=is_own) for e in (test.left, test.right)]
            decides = isinstance(test.operator, cst.Or)
            return decides if decides in sides else None if None in sides else not decides
        if isinstance(test, cst.Call) and isinstance(test.func, cst.Name) and test.func.value == "hasattr":
            return False
        name = _asked_of_self(test)
        if name is not None:
            return is_own and self.made is not None and name in self.made.attributes
        absent = _tests_absence(test)
        if absent is not None and is_own:
            return not absent
        if self.made is None or self.objects is None:
            return None
        value = self.objects.value(self.made, source.code(test))
        return (
            None
            if value is UNKNOWN or not isinstance(value, (bool, int, float, str, list, type(None)))
            else bool(value)
        )

    def rounds(self, inside: Inside, node: Node | None) -> int:
        """How often a value is computed in one call of the function."""
        return 1 if node is None else self.rounds_at(inside, node.stmt, node.frame)

    def rounds_at(self, inside: Inside, stmt: Statement | None, frame: Frame) -> int:
        """How often a statement of the function, or of one that is inlined, runs."""
        count = 1
        for loop, source in _loops(stmt, frame):
            found = self._length(inside, loop, source)
            if found is None:
                self.missed[f"the loop over {one_line(source.code(loop))}"] += 1
            count *= 1 if found is None else found
        return count

    def _length(self, inside: Inside, iterable: cst.BaseExpression, source: FunctionSource) -> int | None:
        """How many rounds a loop goes, by the object's attributes, or by the sizes that are known."""
        node = inside.graph.values.get(iterable)
        path = node.attrs.get("path") if node is not None and node.op == "attr" else None
        if self.made is not None and self.objects is not None:
            found = self.objects.rounds(self.made, path or source.code(iterable))
            if found is not None:
                return found
        counted = (
            isinstance(iterable, cst.Call) and isinstance(iterable.func, cst.Name) and iterable.func.value == "range"
        )
        if not counted or not isinstance(iterable, cst.Call) or len(iterable.args) != 1:
            return None
        last = inside.graph.values.get(iterable.args[0].value)
        size = None if last is None else inside.facts.size(last)
        return None if size is None else self._number(size)

    def _number(self, size: Expr) -> int | None:
        """A size of which something says a number, or whose name says what it is for."""
        if any(role(n) == "other" and self.known.number(n) is None for n in size.names):
            return None
        sizes = Sizes.plain(())
        return size.substitute({n: sizes.number(n, self.known)[0] for n in size.names}).value()


def _blocks(node: Node) -> Iterator[tuple[Block, FunctionSource, int]]:
    """The suites around a value, from the innermost, also of the functions that it was inlined from."""
    stmt, frame = node.stmt, node.frame
    while True:
        block = None if stmt is None else stmt.block
        while block is not None and frame.source is not None:
            yield block, frame.source, frame.depth
            block = block.parent
        if frame.parent is None:
            return
        stmt, frame = frame.stmt, frame.parent


Sides = tuple[tuple[Statement, str], ...]
"""The `if` statements around a value, from the outermost, each with the side that it is on."""


def sides(node: Node) -> Sides:
    found = [
        (block.owner, block.kind)
        for block, _, _ in _blocks(node)
        if block.kind in ("then", "else") and block.owner is not None and isinstance(block.owner.cst, cst.If)
    ]
    return tuple(reversed(found))


def most(counts: Sequence[tuple[Sides, int]]) -> int:
    """The sum of counts, but of the two sides of an `if` only the larger one's."""
    total = sum(n for place, n in counts if not place)
    for owner in dict.fromkeys(place[0][0] for place, _ in counts if place):
        each = [
            most([(place[1:], n) for place, n in counts if place and place[0] == (owner, kind)])
            for kind in ("then", "else")
        ]
        total += max(each)
    return total


def _loops(stmt: Statement | None, frame: Frame) -> Iterator[tuple[cst.BaseExpression, FunctionSource]]:
    """What the loops around a statement go over."""
    while True:
        while stmt is not None and frame.source is not None:
            if stmt.block.kind == "comprehension" and isinstance(stmt.cst, cst.BaseComp):
                part: cst.CompFor | None = stmt.cst.for_in
                while part is not None:
                    yield part.iter, frame.source
                    part = part.inner_for_in
            stmt = stmt.block.owner if stmt.block.owner is not stmt else None
            if stmt is not None and isinstance(stmt.cst, cst.For):
                yield stmt.cst.iter, frame.source
        if frame.parent is None:
            return
        stmt, frame = frame.stmt, frame.parent


def _asked_of_self(test: cst.BaseExpression) -> str | None:
    """The name of `"name" in self`."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    compared, left = test.comparisons[0], test.left
    if not isinstance(compared.operator, cst.In) or not isinstance(left, cst.SimpleString):
        return None
    is_self = isinstance(compared.comparator, cst.Name) and compared.comparator.value == "self"
    return str(left.evaluated_value) if is_self else None


def _tests_absence(test: cst.BaseExpression) -> bool | None:
    """True of `x is None`, False of `x is not None`, None of another test."""
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1:
        return None
    compared = test.comparisons[0]
    if not isinstance(compared.comparator, cst.Name) or compared.comparator.value != "None":
        return None
    return {cst.Is: True, cst.IsNot: False}.get(type(compared.operator))


def _is_a_number(facts: KnownFacts, node: Node, deepest: int = 8) -> bool:
    """Whether nothing but numbers and attributes of which nothing is known are computed with: `self.rank + 1`."""
    if facts.kind(node) == "scalar" or node.op == "const":
        return True
    if facts.kind(node) != "unknown" or deepest == 0:
        return False
    return node.op == "attr" or (node.op in TABLE and all(_is_a_number(facts, n, deepest - 1) for n in node.inputs))


def _as_layer(facts: KnownFacts, node: Node) -> Node | None:
    """The call as one of the layer's own op."""
    layer = next((c for c in facts.callees(node) if c.op is not None and c.maker is not None), None)
    given = call_arguments(node)
    if layer is None or layer.op is None or layer.maker is None or given is None:
        return None
    try:
        bound = ops.bind(layer.op, *given)
    except ops.CannotBind:
        return None
    inputs = tuple(n for n in bound.inputs if n is not None)
    attrs = {**bound.attrs, "new": layer.maker[1], "path": layer.path or None}
    return None if len(inputs) < len(bound.inputs) else replace(node, op=layer.op.name, inputs=inputs, attrs=attrs)
