"""Recorded calls as the arrays of MLX's graph, and the kernels that it runs of them: eagerly, and under mx.compile."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from fuselint.graph.fuse import Group, compiled
from fuselint.graph.shapes import Shape
from fuselint.graph.tape import NO_OPS, Array
from fuselint.trace.expand import Expander, Kind
from fuselint.trace.recording import Call, Scope, Value

PART = "Item"
"""A view on the second and later results of a primitive with several."""


@dataclass(eq=False)
class Tape:
    """The arrays of calls. `made_by`: the call behind each array, as far as one is."""

    expander: Expander
    arrays: dict[Value, Array] = field(default_factory=dict)
    made_by: dict[Array, Call] = field(default_factory=dict)

    # -- the two readings ---------------------------------------------------------------------------------------------

    def eager(self, calls: Sequence[Call], outputs: Iterable[Value]) -> list[Group]:
        """What MLX runs for the code as it stands: one kernel a primitive, but those of compiled functions fused."""
        groups: list[Group] = []
        for scope, part in _by_scope(calls):
            if scope is None:
                groups += [Group((a,), tuple(a.inputs), (a,)) for call in part for a in self.add(call, shapeless=False)]
            else:
                groups += self._fused(scope, part)
        return needed(groups, self.roots(outputs))

    def compiled(self, calls: Sequence[Call], outputs: Iterable[Value]) -> list[Group]:
        """What it would run with the whole call under one mx.compile."""
        for call in calls:
            self.add(call, shapeless=False)
        return compiled(list(dict.fromkeys(map(self.array, outputs))))

    def roots(self, values: Iterable[Value]) -> list[Array]:
        """The arrays that hold values, without no-ops."""
        return [_behind_no_ops(self.array(v)) for v in values]

    def _fused(self, scope: Scope, calls: Sequence[Call]) -> list[Group]:
        """The kernels of one compiled function. Inside, what comes from outside is an input."""
        outside = self.arrays
        inner = Tape(self.expander, made_by=self.made_by)
        stands_for: dict[Array, Array] = {}
        made = {v for call in calls for v in call.outputs}
        for value in dict.fromkeys(v for c in calls for v in c.inputs if v not in made):
            given = self.array(value)
            stand_in = Array("", [], given.shape, given.dtype, value=given.value)
            stands_for[stand_in] = given
            inner.arrays[value] = stand_in
        for call in calls:
            inner.add(call, scope.shapeless)
        results = {v: _behind_no_ops(inner.array(v)) for v in scope.outputs if v in inner.arrays}
        groups = compiled(
            [a for a in dict.fromkeys(results.values()) if a not in stands_for], shapeless=scope.shapeless
        )
        for v, a in results.items():
            outside[v] = stands_for.get(a, a)
        return [Group(g.arrays, tuple(stands_for.get(a, a) for a in g.inputs), g.outputs) for g in groups]

    # -- arrays -------------------------------------------------------------------------------------------------------

    def array(self, value: Value) -> Array:
        """The array that holds a value; one from outside is an input."""
        if value not in self.arrays:
            self.arrays[value] = self._new("", [], (value.shape, value.dtype))
        return self.arrays[value]

    def add(self, call: Call, shapeless: bool) -> list[Array]:
        """The arrays of a call."""
        expansion = self.expander.expand(call, shapeless)
        at: dict[int, Array] = {i: self.array(v) for i, v in enumerate(call.inputs)}
        made: list[Array] = []

        def get(i: int) -> Array:
            if i in expansion.outside:
                return self.array(expansion.outside[i])
            if i not in at:
                at[i] = self._new("", [], expansion.arrays[i], value=expansion.constants.get(i))
            return at[i]

        owners = expansion.owners or [None] * len(expansion.primitives)
        for p, owner in zip(expansion.primitives, owners, strict=True):
            first, *rest = p.outputs
            a = self._new(p.name, [get(i) for i in p.inputs], expansion.arrays[first], p.key)
            at[first] = a
            made.append(a)
            self.made_by[a] = call if owner is None else owner
            for n, i in enumerate(rest, 1):
                at[i] = self._new(p.name if p.name == "Split" else PART, a.inputs if p.name == "Split" else [a],
                                  expansion.arrays[i], (p.key, n))  # fmt: skip
                made.append(at[i])
                self.made_by[at[i]] = self.made_by[a]
        for value, i in zip(call.outputs, expansion.outputs, strict=True):
            self.arrays[value] = get(i)
        return made

    def _new(
        self, primitive: str, inputs: Sequence[Array], of: Kind, key: Hashable = None, value: Hashable = None
    ) -> Array:
        return Array(primitive, list(inputs), Shape.of(*of[0]), of[1], key=key, value=value)


def _by_scope(calls: Sequence[Call]) -> Iterable[tuple[Scope | None, list[Call]]]:
    """Calls in order, those of one compiled call together."""
    at = 0
    while at < len(calls):
        scope, end = calls[at].scope, at + 1
        while end < len(calls) and calls[end].scope is scope:
            end += 1
        yield scope, list(calls[at:end])
        at = end


def _behind_no_ops(a: Array) -> Array:
    while a.primitive in NO_OPS:
        a = a.inputs[0]
    return a


def needed(groups: Sequence[Group], roots: Iterable[Array]) -> list[Group]:
    """What the roots are made of, in order: MLX is lazy, and runs nothing else."""
    read = set(roots)
    kept = []
    for g in reversed(groups):
        if any(a in read for a in g.outputs):
            kept.append(g)
            read.update(g.inputs)
    return kept[::-1]
