"""The graph of a gradient, which MLX builds out of sight: whose primitive is whose.

`mx.grad(f)(x)` is one call. While MLX exports it, each call that f makes marks its operands and results by `mx.depends`
on a number (recording.py). So the primitives between a call's marks are the call's own, and nothing of two calls is
merged. What is left is the way back: a primitive that reads a value of a call belongs to that call's gradient, and what
reads none to the gradient that it comes from.

A call that a GPU runs as one kernel (fused.py) becomes that kernel here too, and its gradient another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuselint.graph.gates import Backend
from fuselint.graph.tape import FUSABLE, RESHAPES, VIEWS
from fuselint.trace.expand import Expansion, Primitive
from fuselint.trace.fused import fused
from fuselint.trace.recording import MARK, Call, Value, unmarked

MOVES_NOTHING = (*VIEWS, *RESHAPES)
PIECES = ("SliceUpdate", "Concatenate")
"""What the gradient of a slice, or of a split, puts together."""
GRADIENTS = ("grad", "value_and_grad", "vjp")


def sorted_out(expansion: Expansion, marks: Sequence[Call], backend: Backend) -> Expansion:
    """The expansion without marks, its primitives with the calls that they belong to."""
    graph = _Graph(expansion, marks)
    for number, call in reversed(list(enumerate(marks))):
        kernels = fused(call, backend, training=True)
        if kernels is not None:
            graph.fuse(number, kernels)
    return graph.finished()


@dataclass(eq=False)
class _Graph:
    """operands, results: a call's arrays, by call and place. same: a marked array is the one without its mark.

    owner: the call that a primitive belongs to. back: the primitives of the way back.
    """

    expansion: Expansion
    marks: Sequence[Call]
    same: dict[int, int] = field(default_factory=dict)
    outside: dict[int, Value] = field(default_factory=dict)
    operands: dict[int, dict[int, int]] = field(default_factory=dict)
    results: dict[int, dict[int, int]] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)  # an array that a call sees as its operand -> the call
    primitives: list[Primitive] = field(default_factory=list)
    owner: dict[Primitive, int] = field(default_factory=dict)
    inner: set[Primitive] = field(default_factory=set)  # of a call, what its operands go into
    back: set[Primitive] = field(default_factory=set)
    direct: set[Primitive] = field(default_factory=set)  # of the way back, what reads a call's own values

    def __post_init__(self) -> None:
        for p in self.expansion.primitives:
            number = self._mark(p)
            if number is None:
                self.primitives.append(p)
                continue
            call, place, is_result = unmarked(number)
            (array,) = p.outputs
            self.same[array] = p.inputs[0]
            if is_result:
                self.results.setdefault(call, {})[place] = p.inputs[0]
                continue
            self.operands.setdefault(call, {})[place] = array
            self.marked[array] = call
            inputs = self.marks[call].inputs
            if place < len(inputs) and inputs[place].call is not self.marks[call]:
                del self.same[array]  # what MLX shows behind it was run before
                self.outside[array] = inputs[place]
        self._own()
        self._go_back()

    def _mark(self, p: Primitive) -> int | None:
        """The number that a mark carries; None for another primitive, the user's own mx.depends too."""
        if p.name != "Depends" or len(p.inputs) != 2:
            return None
        constant = self.expansion.constants.get(p.inputs[1])
        number = constant[0] if isinstance(constant, tuple) else None
        return number if isinstance(number, int) and number >= MARK else None

    def _own(self) -> None:
        """The primitives between the marks of each call. What is made of constants alone, several calls may share."""
        maker = {i: p for p in self.primitives for i in p.outputs}
        for call, results in self.results.items():
            stack = list(results.values())
            while stack:
                p = maker.get(stack.pop())
                if p is not None and p not in self.owner:
                    self.owner[p] = call
                    stack.extend(p.inputs)
        for p in self.primitives:
            if p in self.owner and any(i in self.marked or maker.get(i) in self.inner for i in p.inputs):
                self.inner.add(p)

    def _go_back(self) -> None:
        """Whose gradient the other primitives compute."""
        made_by: dict[int, Primitive] = {}
        for p in self.primitives:
            if p not in self.owner:
                self.back.add(p)
                call = self._read(p, made_by)
                if call is not None:
                    self.owner[p] = call
                    self.direct.add(p)
                else:
                    self._follow(p, made_by)
            made_by.update(dict.fromkeys(p.outputs, p))

    def _read(self, p: Primitive, made_by: Mapping[int, Primitive]) -> int | None:
        """The call whose operands or inner values a primitive of the way back reads, as they are or as a view."""
        for i in p.inputs:
            if i in self.marked:
                return self.marked[i]
            source = made_by.get(i)
            if source in self.inner or (source in self.direct and source.name in MOVES_NOTHING):
                return self.owner[source]
        return None

    def _follow(self, p: Primitive, made_by: Mapping[int, Primitive]) -> None:
        """What reads no call's values belongs to the gradient that it comes from."""
        sources = [made_by[i] for i in p.inputs if i in made_by]
        call = next((self.owner[s] for s in sources if s in self.back and s in self.owner), None)
        if call is not None:
            self.owner[p] = call

    # -- calls that are one kernel ------------------------------------------------------------------------------------

    def fuse(self, number: int, kernels: Expansion) -> None:
        """Put a GPU's kernels in place of a call's primitives, and one in place of its gradient."""
        operands, results = self.operands.get(number, {}), self.results.get(number, {})
        count = len(self.marks[number].inputs)
        if any(i not in operands for i in range(count)) or len(results) < len(kernels.outputs):
            return  # MLX left a part of it out
        inner = [p for p in self.primitives if self.owner.get(p) == number and p in self.inner]
        way_back = self._region(number)
        base = len(self.expansion.arrays) - count
        self.expansion.arrays.extend(kernels.arrays[count:])
        at = {i: self._behind(operands[i]) if i < count else base + i for i in range(len(kernels.arrays))}
        made = [
            replace(p, inputs=tuple(at[i] for i in p.inputs), outputs=tuple(at[i] for i in p.outputs))
            for p in kernels.primitives
        ]
        self._replace(inner, made, number, back=False)
        for place, i in enumerate(kernels.outputs):
            self.same[results[place]] = at[i]
        if way_back:
            self._fuse_back(number, way_back, inner, made[-1].name, [at[i] for i in range(count)])

    def _fuse_back(
        self, number: int, region: Sequence[Primitive], inner: Iterable[Primitive], name: str, operands: Sequence[int]
    ) -> None:
        own = {i for p in (*region, *inner) for i in p.outputs}
        inputs = dict.fromkeys(operands)
        for p in region:
            inputs.update(dict.fromkeys(b for i in p.inputs if i not in own and (b := self._behind(i)) not in own))
        constants = self.expansion.constants
        read = {self._behind(i) for p in self.primitives if p not in region for i in p.inputs}
        read |= {self._behind(i) for i in self.expansion.outputs}
        outputs = tuple(i for p in region for i in p.outputs if i in read)
        kernel = Primitive(f"{name}VJP", tuple(i for i in inputs if i not in constants), outputs, ("back", number))
        self._replace(region, [kernel] if outputs else [], number, back=True)

    def _region(self, number: int) -> list[Primitive]:
        """The primitives of a call's gradient: those that read the call's values, what lies between them, and the
        elementwise ones that nothing else reads."""
        chosen = {p for p in self.direct if self.owner[p] == number}
        before = {i: p for p in self.primitives for i in p.outputs}
        sources: dict[Primitive, list[Primitive]] = {}
        users: dict[Primitive, list[Primitive]] = {}
        for p in self.back:
            for q in (before[b] for i in p.inputs if (b := self._behind(i)) in before):
                sources.setdefault(p, []).append(q)
                users.setdefault(q, []).append(p)
        between = _reaching(chosen, sources) & _reaching(chosen, users) & self.back
        region = chosen | between
        for p in reversed(self.primitives):  # what the arriving gradient is made into first
            if p.name in ("AsType", *MOVES_NOTHING) and self._is_beside(p, region, users):
                region.add(p)
        done: set[Primitive] = set()
        for p in self.primitives:  # what the leaving gradient is made into last, up to a cast
            if p.name in (*FUSABLE, *MOVES_NOTHING, *PIECES) and self._is_beside(p, region - done, sources):
                region.add(p)
                done |= {p} if p.name == "AsType" else set()
        return [p for p in self.primitives if p in region]

    def _is_beside(self, p: Primitive, region: set[Primitive], beside: Mapping[Primitive, Sequence[Primitive]]) -> bool:
        """Whether a primitive of the way back stands beside nothing but the region (and zeros)."""
        near = [q for q in beside.get(p, ()) if q.name != "Full"]
        return bool(near) and p in self.back and p not in self.direct and all(q in region for q in near)

    def _replace(self, old: Sequence[Primitive], new: Sequence[Primitive], number: int, back: bool) -> None:
        gone = set(old)
        self.primitives = [p for p in self.primitives if p not in gone] + list(new)
        self.owner.update(dict.fromkeys(new, number))
        self.back = (self.back - gone) | (set(new) if back else set())
        self.direct -= gone

    # -- the end ------------------------------------------------------------------------------------------------------

    def _behind(self, i: int) -> int:
        while i in self.same:
            i = self.same[i]
        return i

    def finished(self) -> Expansion:
        clean = [replace(p, inputs=tuple(map(self._behind, p.inputs))) for p in self.primitives]
        owners = {c: self.owner.get(p) for c, p in zip(clean, self.primitives, strict=True)}
        ordered = _in_order(clean)
        return Expansion(
            arrays=self.expansion.arrays,
            constants=self.expansion.constants,
            primitives=ordered,
            outputs=tuple(map(self._behind, self.expansion.outputs)),
            outside=self.outside,
            owners=[self.marks[o] if (o := owners[p]) is not None else None for p in ordered],
        )


def _reaching(start: Iterable[Primitive], step: Mapping[Primitive, Sequence[Primitive]]) -> set[Primitive]:
    """All that a number of steps leads to from the start."""
    seen: set[Primitive] = set()
    stack = list(start)
    while stack:
        for p in step.get(stack.pop(), ()):
            if p not in seen:
                seen.add(p)
                stack.append(p)
    return seen


def _in_order(primitives: Sequence[Primitive]) -> list[Primitive]:
    """Each after what it reads, else as they stand."""
    maker = {i: p for p in primitives for i in p.outputs}
    done: dict[Primitive, None] = {}
    for first in primitives:
        stack = [first]
        while stack:
            p = stack[-1]
            waiting = [q for i in p.inputs if (q := maker.get(i)) is not None and q not in done and q is not p]
            if waiting:
                stack.extend(waiting)
            else:
                done[p] = None
                stack.pop()
    return list(done)
