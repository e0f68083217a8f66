"""Where mx.compile cuts an elementwise chain, and what it would make of the code without what cuts it there.

Nothing is read off the syntax. The function's tape is made again without one thing (the broadcasts of shapeless code, a
kernel's limits, a reshape between two operations, an array of zeros, the one copy that several kernels read) and
grouped again by MLX's rules; what differs is the cut, with its kernels before and after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuselint.graph.callers import given_dtypes
from fuselint.graph.fuse import MAX_ARRAYS, MAX_DEPTH, UNLIMITED, Group, grouped, simplified
from fuselint.graph.gates import Gates
from fuselint.graph.model import Block, Graph, Node, Slice
from fuselint.graph.shapes import SCALAR
from fuselint.graph.tape import RESHAPES, Array, names
from fuselint.graph.trace import trace

Kind = Literal["shapeless", "depth", "inputs", "view", "full", "readers"]
"""
shapeless: shapeless=True puts a broadcast before every operand, and each counts against a kernel's depth
depth, inputs: a kernel has no room for more operations in a row, or for more operands
view: a reshape, slice or permutation lies between two elementwise operations
full: an array filled with one value is made by a kernel of its own
readers: several kernels read a value that each of them could compute for itself
"""

MOVABLE = names("ExpandDims Item Slice Split Squeeze Transpose") | RESHAPES
"""Views that choose and order elements, and so may as well be taken before an elementwise operation."""

Label = tuple[Node | None, str, int]
"""Names an array of a tape: its node, its primitive, and which of those it is. Broadcasts have none."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """One cut.

    value: what is written to memory for it; by: what cuts (views, a filled array, the readers), where it is a value.
    nodes: the operations at the cut. before, after: all kernels and views of the function as it is and without the cut;
    those of `same` are in both.
    """

    kind: Kind
    value: Node
    by: tuple[Node, ...]
    nodes: frozenset[Node]
    before: tuple[Group, ...]
    after: tuple[Group, ...]
    same: frozenset[Group]
    written: tuple[Array, ...]  # what is no longer written without the cut
    move: Move | None = None  # of a view


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """How views and elementwise operations change places.

    chain: the operations, in evaluation order. source: the one array that they read, None where they read several.
    paths: the views that are taken before them instead of after them, each list up to what is read; `after`: the one
    list of views is taken after the operations instead of before them.
    """

    chain: tuple[Node, ...]
    source: Node | None
    paths: tuple[tuple[Node, ...], ...]
    after: bool = False


def cuts(graph: Graph, dtype: str = "") -> Iterator[Cut]:
    """The cuts of a function that mx.compile compiles, each where all of its code runs or none of it does. dtype: of
    activations; "" for any."""
    if not _may_be_cut_up(Tape.of(graph, graph.context.shapeless, dtype, {}), graph.context.shapeless):
        return
    tape = Tape.of(graph, graph.context.shapeless, dtype)
    if not tape.outputs:
        return
    now = _Version(tape.copied())
    found = list(_limits(graph, tape, now, dtype))
    yield from found
    search = _Search(tape, now)
    for cut in (*search.filled(), *search.views(), *search.shared()):
        if not cut.nodes <= {n for f in found for n in f.nodes}:
            yield cut


def _may_be_cut_up(tape: Tape, shapeless: bool) -> bool:
    """Whether the code may be more than one kernel, whatever dtypes its arguments have: each operation may cast an
    operand, and broadcast it. Callers are asked for dtypes only then."""
    if not tape.outputs:
        return False
    whole = _Version(tape.copied(), depth=UNLIMITED, most=UNLIMITED).groups
    if len(whole) != 1 or not is_elementwise(whole[0]) or len(whole[0].inputs) > MAX_ARRAYS:
        return True
    deep: dict[Array, int] = {}
    for a in whole[0].arrays:
        own = 1 if a.primitive in ("Broadcast", "AsType") else 2 if shapeless or len(a.inputs) < 2 else 3
        deep[a] = own + max((deep.get(b, 0) for b in a.inputs), default=0)
    return max(deep.values()) > MAX_DEPTH


# -- tapes -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Tape:
    """The arrays of a compiled function in evaluation order, once equal computations are shared."""

    arrays: list[Array]
    outputs: list[Array]

    @classmethod
    def of(cls, graph: Graph, shapeless: bool, dtype: str, given: Mapping[str, str] | None = None) -> Tape:
        """given: dtypes of arguments by their symbols; those that the package's calls give them where it is None."""
        gates = Gates(given=given_dtypes(graph) if given is None else given, dtype=dtype)
        traced = trace(graph.nodes, graph.facts, shapeless=shapeless, gates=gates)
        left = (traced.array(n) for n in leaving(graph))
        return cls(*simplified(list(dict.fromkeys(a for a in left if a is not None))))

    def copied(self) -> Copy:
        """The same tape as arrays of its own: grouping changes what it is given."""
        new: dict[Array, Array] = {}
        for a in self.arrays:
            inputs = [new[b] for b in a.inputs]
            new[a] = Array(a.primitive, inputs, a.shape, a.dtype, a.node, a.key, a.value)
        return Copy(new, [new[a] for a in self.outputs], self._labels(new))

    def _labels(self, new: Mapping[Array, Array]) -> dict[Array, Label]:
        count: dict[tuple[Node | None, str], int] = {}
        out = {}
        for a in self.arrays:
            if a.primitive != "Broadcast":
                kind = (a.node, a.primitive)
                out[new[a]] = (*kind, count.setdefault(kind, 0))
                count[kind] += 1
        return out


def leaving(graph: Graph) -> Iterator[Node]:
    """What the function gives back or leaves elsewhere, in order."""
    kept = [n for _, n in graph.returns]
    for e in graph.effects:
        kept += [*e.targets, *([e.value] if e.value is not None else [])]
    kept += [b.node for name in graph.captured for b in graph.bindings.get(name, ())]
    seen: set[Node] = set()
    for node in kept:
        stack = [node]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            if at.op in ("tuple", "list", "dict"):
                stack.extend(reversed(at.inputs))
            else:
                yield at


@dataclass(slots=True, eq=False)
class Copy:
    """A tape that may be changed. of: its arrays, by those of the tape that was copied."""

    of: dict[Array, Array]
    outputs: list[Array]
    labels: dict[Array, Label]
    views: dict[tuple[Array, Array], Array] = field(default_factory=dict)  # views of other arrays than before

    def again(self, a: Array, inputs: list[Array]) -> Array:
        """One more array that computes what `a` does."""
        out = Array(a.primitive, inputs, a.shape, a.dtype, a.node, a.key, a.value)
        if a in self.labels:
            self.labels[out] = self.labels[a]
        return out

    def read_instead(self, old: Array, new: Array) -> None:
        for a in self.of.values():
            if a is not new:
                a.inputs[:] = [new if b is old else b for b in a.inputs]
        self.outputs = [new if a is old else a for a in self.outputs]


@dataclass(eq=False)
class _Version:
    """A tape, grouped."""

    copy: Copy
    depth: int = MAX_DEPTH
    most: int = MAX_ARRAYS
    groups: list[Group] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = grouped(self.copy.outputs, self.depth, self.most)

    def labels(self, arrays: Iterable[Array]) -> frozenset[Label]:
        """The names of arrays that are no constants; a broadcast has that of what it repeats."""
        read = {_unbroadcast(a) for a in arrays}
        return frozenset(self.copy.labels[a] for a in read if a.value is None and a in self.copy.labels)

    def signature(self, g: Group) -> tuple[frozenset[Label], ...]:
        return self.labels(g.arrays), self.labels(g.inputs), self.labels(g.outputs)


def _unbroadcast(a: Array) -> Array:
    while a.primitive == "Broadcast":
        a = a.inputs[0]
    return a


def is_elementwise(g: Group) -> bool:
    return g.root.fusable and g.root.primitive != "Broadcast"


def _cut(
    kind: Kind, by: tuple[Node, ...], nodes: Collection[Node], now: _Version, then: _Version, move: Move | None = None
) -> Cut | None:
    """What differs between two versions, if an elementwise value is no longer written."""
    before, after = ([v.signature(g) for g in v.groups] for v in (now, then))
    same = {g for v, other in ((now, after), (then, before)) for g in v.groups if v.signature(g) in other}
    kept = then.labels(a for g in then.groups for a in g.outputs)
    written = [
        a
        for g in now.groups
        if g not in same and (is_elementwise(g) or g.root.primitive == "Full")
        for a in g.outputs
        if a.node is not None and not now.labels([a]) <= kept
    ]
    if not written or not _run_together(nodes):
        return None
    value = written[0].node
    assert value is not None
    chosen = (tuple(now.groups), tuple(then.groups), frozenset(same))
    return Cut(kind, value, by, frozenset(nodes), *chosen, tuple(written), move)


def _run_together(nodes: Collection[Node]) -> bool:
    """Whether there is no branch or loop between the nodes."""
    return len({_blocks(n) for n in nodes}) == 1


def _blocks(node: Node) -> tuple[Block, ...]:
    """The branches and loops around a node, those around the calls that it was inlined from too."""
    out: list[Block] = []
    stmt, frame = node.stmt, node.frame
    while stmt is not None:
        at: Block | None = stmt.block
        while at is not None:
            if at.kind != "function":
                out.append(at)
            at = at.parent
        if frame.parent is None:
            break
        stmt, frame = frame.stmt, frame.parent
    return tuple(out)


# -- the limits of a kernel --------------------------------------------------------------------------------------------


def _limits(graph: Graph, tape: Tape, now: _Version, dtype: str) -> Iterator[Cut]:
    if graph.context.shapeless:
        yield from _fewer("shapeless", now, _Version(Tape.of(graph, False, dtype).copied()))
        return
    deep = list(_fewer("depth", now, _Version(tape.copied(), depth=UNLIMITED)))
    yield from deep or _fewer("inputs", now, _Version(tape.copied(), most=UNLIMITED))


def _fewer(kind: Kind, now: _Version, then: _Version) -> Iterator[Cut]:
    """The chains that `then` makes fewer kernels of: connected by the operations that they have in common."""
    for before, after in _overlapping(now, then):
        if len(before) > len(after):
            nodes = {n for g in after for n in g.nodes}
            cut = _cut(kind, (), nodes, now, then)
            if cut is not None:
                inside = {*before, *after}
                others = frozenset(g for g in (*cut.before, *cut.after) if g not in inside)
                written = tuple(a for a in cut.written if any(a in g.outputs for g in before))
                if written and written[0].node is not None:
                    chosen = (cut.before, cut.after, others)
                    yield Cut(kind, written[0].node, (), cut.nodes, *chosen, written)


def _overlapping(now: _Version, then: _Version) -> Iterator[tuple[list[Group], list[Group]]]:
    sides = [[(g, v.labels(g.arrays)) for g in v.groups if is_elementwise(g)] for v in (now, then)]
    waiting = {g for g, _ in sides[1]}
    for first, _ in sides[1]:
        if first not in waiting:
            continue
        found: tuple[dict[Group, None], dict[Group, None]] = ({}, {first: None})
        held = set(dict(sides[1])[first])
        grown = True
        while grown:
            grown = False
            for side, chosen in zip(sides, found, strict=True):
                for g, labels in side:
                    if g not in chosen and labels & held:
                        chosen[g] = None
                        held |= labels
                        grown = True
        waiting -= set(found[1])
        yield list(found[0]), list(found[1])


# -- what lies between two operations ----------------------------------------------------------------------------------


@dataclass(eq=False)
class _Search:
    """Tries out changes of a tape. `now` is how it is grouped as it stands."""

    tape: Tape
    now: _Version
    readers: dict[Array, list[Group]] = field(default_factory=dict)
    original: dict[Array, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.original = {new: old for old, new in self.now.copy.of.items()}
        for g in self.now.groups:
            for a in dict.fromkeys(g.inputs):
                self.readers.setdefault(a, []).append(g)

    def leaves(self, a: Array) -> bool:
        return a in self.now.copy.outputs

    # Filled arrays

    def filled(self) -> Iterator[Cut]:
        for g in self.now.groups:
            a, readers = g.root, self.readers.get(g.root, [])
            if a.primitive != "Full" or a.node is None or a not in self.original or self.leaves(a):
                continue
            if not readers or not all(is_elementwise(r) and self._has_shape_without(r, a) for r in readers):
                continue
            copy = self.tape.copied()
            value = copy.of[self.original[a]]
            value.primitive, value.inputs, value.value, value.shape = "", [], ("filled", a.node), SCALAR
            nodes = {a.node, *(b.node for r in readers for b in r.arrays if a in b.inputs and b.node is not None)}
            cut = _cut("full", (a.node,), nodes, self.now, _Version(copy))
            if cut is not None:
                yield cut

    def _has_shape_without(self, g: Group, filled: Array) -> bool:
        """Whether what reads a filled array has another operand of its shape, so that a number would do."""
        for b in g.arrays:
            if filled in b.inputs:
                others = [c for c in b.inputs if c is not filled and c.value is None]
                if filled.shape is None or not any(c.shape == filled.shape for c in others):
                    return False
        return True

    # Views

    def views(self) -> Iterator[Cut]:
        for g in self.now.groups:
            value = g.root
            if not is_elementwise(g) or value not in self.original or self.leaves(value):
                continue
            ends = list(self._ends(value))
            if not ends or not all(self._is_view(r) for r in self.readers.get(value, ())):
                continue
            readers = [r for v, _ in ends for r in self.readers.get(v, ()) if is_elementwise(r)]
            if not readers:
                continue
            copy = self.tape.copied()
            move = self._postponed(copy, value, ends[0][1]) if len(ends) == 1 else None
            move = move or self._moved(copy, g, [path for _, path in ends])
            if move is None:
                continue
            by = tuple(dict.fromkeys(n for path in move.paths for n in path))
            last = {v for v, _ in ends}
            nodes = {b.node for r in readers for b in r.arrays if b.node is not None and last & set(b.inputs)}
            cut = _cut("view", by, {*g.nodes, *by, *nodes}, self.now, _Version(copy), move)
            if cut is not None and _count(cut.after, cut.same) < _count(cut.before, cut.same) and not _may_be_cut(cut):
                yield cut

    def _postponed(self, copy: Copy, value: Array, path: tuple[Array, ...]) -> Move | None:
        """Takes the views after the kernel that reads them, where that reads nothing else."""
        last = path[-1]
        readers = self.readers.get(last, [])
        g = readers[0] if len(readers) == 1 else None
        if g is None or self.leaves(last) or any(b is not last and b.value is None for b in g.inputs):
            return None
        if not all(map(_keeps_all, path)):
            return None  # it would be computed of what is cut off, too
        made = {last: self._now(copy, value)}
        for a in g.arrays:
            made[a] = copy.again(self._now(copy, a), [made.get(b) or self._now(copy, b) for b in a.inputs])
            if a.shape == last.shape:
                made[a].shape = value.shape
        copy.read_instead(self._now(copy, g.root), self._viewed(copy, made[g.root], path))
        return Move(g.nodes, value.node, (_nodes(path),), after=True)

    def _is_view(self, g: Group) -> bool:
        a = g.root
        return len(g.arrays) == 1 and a.primitive in MOVABLE and len(a.inputs) == 1 and a in self.original

    def _ends(self, value: Array) -> Iterator[tuple[Array, tuple[Array, ...]]]:
        """The views of a value that something else than a view reads, each with the views that lead there."""
        stack: list[tuple[Array, tuple[Array, ...]]] = [(value, ())]
        while stack:
            at, path = stack.pop()
            readers = self.readers.get(at, [])
            if path and (self.leaves(at) or not all(self._is_view(r) for r in readers)):
                yield at, path
            stack.extend((r.root, (*path, r.root)) for r in readers if self._is_view(r))

    def _moved(self, copy: Copy, g: Group, paths: list[tuple[Array, ...]]) -> Move | None:
        """Takes the views before the operations of `g` instead of after them."""
        value = g.root
        whole = [b for b in g.inputs if b.value is None and b.shape == value.shape]
        if not whole:
            return None
        for path in paths:
            made = {b: self._viewed(copy, self._now(copy, b), path) for b in whole}
            for a in g.arrays:
                made[a] = copy.again(self._now(copy, a), [made.get(b) or self._now(copy, b) for b in a.inputs])
                if a.shape == value.shape:
                    made[a].shape = path[-1].shape
            copy.read_instead(self._now(copy, path[-1]), made[value])
        inputs = [b.node for b in g.inputs if b.value is None]
        return Move(g.nodes, inputs[0] if len(inputs) == 1 else None, tuple(map(_nodes, paths)))

    def _viewed(self, copy: Copy, a: Array, path: tuple[Array, ...]) -> Array:
        for v in path:
            if (a, v) not in copy.views:
                view = copy.views[a, v] = copy.again(self._now(copy, v), [a])
                view.dtype = a.dtype
            a = copy.views[a, v]
        return a

    def _now(self, copy: Copy, a: Array) -> Array:
        """An array of the grouped tape in a copy; a broadcast that was duplicated is any of its kind."""
        original = self.original.get(a)
        if original is not None:
            return copy.of[original]
        return copy.again(a, [self._now(copy, b) for b in a.inputs])

    # Readers

    def shared(self) -> Iterator[Cut]:
        for g in self.now.groups:
            value, readers = g.root, self.readers.get(g.root, [])
            if not is_elementwise(g) or self.leaves(value) or len(readers) < 2 or not all(map(is_elementwise, readers)):
                continue
            direct = [[b for b in r.arrays if value in b.inputs] for r in readers]
            if not all(b in self.original for bs in direct for b in bs):
                continue
            copy = self.tape.copied()
            for own in direct[1:]:
                made: dict[Array, Array] = {}
                for a in g.arrays:
                    inputs = [made.get(b, self._now(copy, b)) for b in a.inputs]
                    made[a] = copy.again(self._now(copy, a), inputs)
                for b in own:
                    reader = copy.of[self.original[b]]
                    reader.inputs[:] = [made[value] if c is self._now(copy, value) else c for c in reader.inputs]
            by = tuple(dict.fromkeys(b.node for own in direct for b in own if b.node is not None))
            cut = _cut("readers", by, {*g.nodes, *by}, self.now, _Version(copy))
            if cut is not None:
                yield cut


def _keeps_all(view: Array) -> bool:
    """Whether a view has all the elements of what it is a view of."""
    if view.primitive not in ("Slice", "Split", "Item"):
        return True
    index = view.node.attrs.get("index") if view.node is not None and view.node.op == "index" else None
    return isinstance(index, tuple) and all(
        p is None or p is Ellipsis or (isinstance(p, Slice) and p.takes_all) for p in index
    )


def _nodes(arrays: Iterable[Array]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(a.node for a in arrays if a.node is not None))


def _may_be_cut(cut: Cut) -> bool:
    """Whether a new kernel has no room for the broadcasts that shapes don't rule out inside it."""
    return any(_deepest(g) > MAX_DEPTH for g in cut.after if g not in cut.same and is_elementwise(g))


def _deepest(g: Group) -> int:
    """How many primitives in a row a kernel holds, with a broadcast wherever an operand may have another shape."""
    depth = {g.root: 1}
    for a in reversed(g.arrays):
        several = len(a.inputs) > 1 and a.primitive != "Broadcast"
        for b in a.inputs:
            if b in g.arrays:
                more = several and b.primitive != "Broadcast" and (a.shape is None or a.shape != b.shape)
                depth[b] = max(depth.get(b, 0), depth[a] + 1 + more)
    return max(depth.values())


def _count(groups: Iterable[Group], without: frozenset[Group]) -> int:
    return sum(is_elementwise(g) for g in groups if g not in without)
