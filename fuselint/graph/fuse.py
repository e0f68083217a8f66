"""Which elementwise work mx.compile puts into one kernel: its own rules and limits, followed exactly.

After mlx/compile.cpp: `compile_dfs` orders the arrays, `compile_simplify` merges equal constants and repeated
computations and drops no-ops, `compile_fuse` walks back from each array and takes in what it may:

* at most MAX_DEPTH primitives from the root, and until MAX_ARRAYS inputs are reached;
* nothing that something outside the kernel reads too (it is written to memory and becomes an input), except
  broadcasts, which are duplicated;
* nothing of another shape that is an output; no kernel starts at a broadcast; one primitive alone is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuselint.graph.model import Node
from fuselint.graph.tape import NEVER_SHARED, NO_OPS, Array, same_shape

if TYPE_CHECKING:
    from fuselint.graph.facts import Facts

MAX_DEPTH = 11
MAX_ARRAYS = 24
UNLIMITED = 1_000_000
SIMPLIFY_PASSES = 3
MANY_READERS = 100

Parents = dict[Array, list[tuple[Array, int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One kernel of the compiled graph: several primitives fused, or a single one that was left alone.

    `arrays` are in evaluation order, the last is the root. `outputs` are those that are written to memory.
    """

    arrays: tuple[Array, ...]
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]

    @property
    def root(self) -> Array:
        return self.arrays[-1]

    @property
    def fused(self) -> bool:
        return len(self.arrays) > 1

    @property
    def name(self) -> str:
        """As MLX names it: `CompiledExpMultiply`, or the primitive's own name."""
        names = [a.primitive for a in self.arrays]
        return "Compiled" + "".join(names) if self.fused else names[0]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of our graph with a primitive in this kernel, each once, in evaluation order."""
        return tuple(dict.fromkeys(a.node for a in self.arrays if a.node is not None))


@dataclass(slots=True, eq=False)
class _Trace:
    """The state that compile.cpp passes from stage to stage."""

    tape: list[Array]
    parents: Parents
    outputs: list[Array]
    inputs: set[Array] = field(default_factory=set)


def compiled(outputs: Sequence[Array], *, shapeless: bool = False) -> list[Group]:
    """The kernels and views of `mx.compile` for the graph behind `outputs`, in evaluation order.

    The arrays are changed by it, as MLX changes its own copies: trace again to use them again. `shapeless` matters to
    the tracer, which adds a Broadcast for every operand; the fuser's rules are the same.
    """
    trace = _order(list(outputs))
    _simplify(trace)
    return _fuse(trace)


def simplified(outputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """The tape behind `outputs` once equal computations are shared and no-ops are gone, and what the outputs are then.

    The arrays are changed by it.
    """
    trace = _order(list(outputs))
    _simplify(trace)
    return trace.tape, trace.outputs


def grouped(outputs: Sequence[Array], depth: int = MAX_DEPTH, most: int = MAX_ARRAYS) -> list[Group]:
    """The same kernels for code that is grouped as it stands: what is computed twice stays so.

    depth, most: how many primitives in a row and how many inputs a kernel may have.
    """
    return _fuse(_order(list(outputs)), depth, most)


def groups(nodes: Iterable[Node], outputs: Iterable[Node], facts: Facts, shapeless: bool = False) -> list[Group]:
    """The fused kernels that `mx.compile` would make of a function that computes `outputs` by `nodes`.

    Values that `nodes` read and don't hold are the function's arguments.
    """
    from fuselint.graph.trace import trace

    traced = trace(nodes, facts, shapeless=shapeless)
    roots = [a for n in outputs if (a := traced.array(n)) is not None]
    return [g for g in compiled(roots, shapeless=shapeless) if g.fused]


def _order(outputs: list[Array]) -> _Trace:
    """compile_dfs: evaluation order by depth-first search, and who reads what."""
    tape: list[Array] = []
    parents: Parents = {}
    done: set[Array] = set()
    for out in outputs:
        stack: list[tuple[Array, int]] = [(out, 0)]
        while stack:
            a, i = stack.pop()
            if i == 0 and a in done:
                continue
            if i < len(a.inputs):
                parents.setdefault(a.inputs[i], []).append((a, i))
                stack.append((a, i + 1))
                stack.append((a.inputs[i], 0))
            elif a not in done:
                done.add(a)
                tape.append(a)
    return _Trace(tape, parents, outputs)


def _merge(dst: Array, src: Array, parents: Parents) -> None:
    """merge_one: who reads src reads dst instead."""
    readers = parents.pop(src, None)
    if readers is None:
        return
    pairs = parents.setdefault(dst, [])
    for reader, i in readers:
        reader.inputs[i] = dst
        pairs.append((reader, i))
    parents[dst] = [p for p in pairs if p[0] is not src]


def _equivalent(a: Array, b: Array) -> bool:
    return (
        bool(a.primitive)
        and a.primitive == b.primitive
        and a.primitive not in NEVER_SHARED
        and a.key is not NotImplemented
        and a.key == b.key
        and len(a.inputs) == len(b.inputs)
        and all(p is q for p, q in zip(a.inputs, b.inputs, strict=True))
    )


def _simplify(trace: _Trace) -> None:
    """compile_simplify: equal constants become one, no-ops go, equal computations are shared."""
    parents = trace.parents
    constants: dict[object, Array] = {}
    tape: list[Array] = []
    for a in trace.tape:
        if not a.primitive and a.value is not None:
            first = constants.setdefault(a.value, a)
            if first is not a:
                _merge(first, a, parents)
                continue
        tape.append(a)

    replaced: dict[Array, Array] = {}
    trace.tape, tape = tape, []
    for a in trace.tape:
        if a.primitive in NO_OPS:
            _merge(a.inputs[0], a, parents)
            replaced[a] = a.inputs[0]
        else:
            tape.append(a)
    trace.outputs = [replaced.get(o, o) for o in trace.outputs]

    position = {a: i for i, a in enumerate(tape)}
    outputs = set(trace.outputs)
    for _ in range(SIMPLIFY_PASSES):
        kept = []
        for a in tape:
            if a in parents:
                _share_readers(parents, a, position, outputs)
                kept.append(a)
            elif a in outputs:
                kept.append(a)
        tape = kept
    trace.tape = tape


def _share_readers(parents: Parents, a: Array, position: dict[Array, int], outputs: set[Array]) -> None:
    """Merge those readers of `a` that compute the same; the earlier on the tape stays."""
    readers = parents[a]
    gone = [False] * len(readers)
    for indices in _candidates(readers):
        for n, i in enumerate(indices):
            if gone[i]:
                continue
            for j in indices[n + 1 :]:
                if gone[j]:
                    continue
                dst, src = i, j
                if position.get(readers[src][0], 0) < position.get(readers[dst][0], 0):
                    dst, src = src, dst
                keep, drop = readers[dst][0], readers[src][0]
                if keep is not drop and _equivalent(drop, keep) and drop not in outputs:
                    _merge(keep, drop, parents)
                    gone[src] = True
    parents[a] = [p for i, p in enumerate(readers) if not gone[i]]


def _candidates(readers: list[tuple[Array, int]]) -> list[list[int]]:
    """Indices to compare with each other: all, but of many readers only those with equal inputs, as MLX does."""
    if len(readers) <= MANY_READERS:
        return [list(range(len(readers)))]
    alike: dict[tuple[str, tuple[Array, ...]], list[int]] = {}
    for i, (r, _) in enumerate(readers):
        alike.setdefault((r.primitive, tuple(r.inputs)), []).append(i)
    return list(alike.values())


def _fuse(trace: _Trace, depth: int = MAX_DEPTH, most: int = MAX_ARRAYS) -> list[Group]:
    """compile_fuse, then only what the outputs still need."""
    outputs, parents = set(trace.outputs), trace.parents
    # What the kernels are named by at the end: an array that was fused away stands for its kernel.
    made: list[Group] = []
    fused_away: set[Array] = set()
    for root in reversed(trace.tape):
        if root in fused_away or not root.primitive:
            continue
        members = _members(root, outputs, parents, depth, most)
        if len(members) <= 1:
            made.append(Group((root,), tuple(root.inputs), (root,)))
            continue
        tape, inputs = _in_order(root, members)
        written = [a for a in tape if a in outputs and a is not root] + [root]
        for a in tape[:-1]:
            if a in outputs:
                parents[a] = [p for p in parents.get(a, []) if p[0] not in members]
            else:
                parents.pop(a, None)
            fused_away.add(a)
        for i, a in enumerate(inputs):
            kept = [p for p in parents.get(a, []) if p[0] not in members]
            # The kernel's outputs read it now. The root stands for all of them: no later kernel can hold it.
            parents[a] = [*kept, (root, i)]
        made.append(Group(tuple(tape), tuple(inputs), tuple(written)))
    return _needed(made, outputs)


def _members(root: Array, outputs: set[Array], parents: Parents, deepest: int, most: int) -> set[Array]:
    """The arrays that one kernel ending at `root` computes."""
    found = _Members(root, outputs, parents, deepest, most)
    if root.primitive != "Broadcast":
        found.visit(root, 0)
    return found.members


@dataclass(slots=True)
class _Members:
    """The arrays of one kernel, while they are looked for."""

    root: Array
    outputs: set[Array]
    parents: Parents
    deepest: int
    most: int
    members: set[Array] = field(default_factory=set)
    inputs: set[Array] = field(default_factory=set)

    def visit(self, a: Array, depth: int) -> None:
        members, inputs, outputs = self.members, self.inputs, self.outputs
        if a in members:
            return
        if depth >= self.deepest or not a.fusable or (a in outputs and not same_shape(a.shape, self.root.shape)):
            inputs.add(a)
            return
        if depth > 0 and not all(reader in members for reader, _ in self.parents[a]):
            if a.primitive == "Broadcast" and len(inputs) < self.most:
                self.visit(_split(a, members, self.parents), depth)
            else:
                inputs.add(a)
            return
        if a in outputs:
            inputs.add(a)
        else:
            inputs.discard(a)
        if len(inputs) >= self.most:
            return
        members.add(a)
        for i in range(len(a.inputs)):  # by index: a split below may put a copy in place of an input
            self.visit(a.inputs[i], depth + 1)


def _split(a: Array, members: set[Array], parents: Parents) -> Array:
    """split_one: a copy of a broadcast for the kernel's own readers."""
    copy = Array(a.primitive, list(a.inputs), a.shape, a.dtype, a.node, a.key)
    mine = [p for p in parents[a] if p[0] in members]
    parents[a] = [p for p in parents[a] if p[0] not in members]
    parents[copy] = mine
    for reader, i in mine:
        reader.inputs[i] = copy
    return copy


def _in_order(root: Array, members: set[Array]) -> tuple[list[Array], list[Array]]:
    """The members in evaluation order, and the kernel's inputs in the order that they are met."""
    tape: list[Array] = []
    inputs: dict[Array, None] = {}
    seen: set[Array] = set()
    stack: list[tuple[Array, bool]] = [(root, False)]
    while stack:
        a, ready = stack.pop()
        if ready:
            tape.append(a)
        elif a not in members:
            inputs[a] = None
        elif a not in seen:
            seen.add(a)
            stack.append((a, True))
            stack.extend((b, False) for b in reversed(a.inputs))
    return tape, list(inputs)


def _needed(made: list[Group], outputs: set[Array]) -> list[Group]:
    """From last to first, what something reads; then in evaluation order."""
    read = set(outputs)
    kept = []
    for g in made:
        if any(o in read for o in g.outputs):
            kept.append(g)
            read.update(g.inputs)
    return kept[::-1]
