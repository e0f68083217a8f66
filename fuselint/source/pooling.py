"""Which layers are those of a model that makes one vector of a whole clip, beside another model that uses it.

Such a model ends in the mean and the deviation over time, put together. It runs once for a voice or an image, and the
other one again and again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from fuselint.source.mentions import Mention
from fuselint.source.modules import Definition, is_test
from fuselint.source.project import MODULE

if TYPE_CHECKING:
    from fuselint.source.frequency import Frequencies

JOINS = frozenset({"concatenate", "concat"})
DEVIATIONS = frozenset({"std", "sqrt"})
MEANS = frozenset({"mean", "sum"})
CALLED = frozenset({"call", "kept"})
TWO = re.compile(
    r"\bconcat(?:enate)?\(\s*[\[(][^,]*(?:\([^()]*\)[^,]*)?,\s*(\w+(?=\s*,?\s*[\])])|[\w.]*\b(?:sqrt|std)\()"
)
"""`concatenate([a, b`, where b is a name or the root of something."""

DEEPEST = 3
"""Objects around a model, at most, that hold nothing else."""


class Pooling:
    """The classes of a package."""

    def __init__(self, frequencies: Frequencies) -> None:
        self.frequencies, self.modules = frequencies, frequencies.modules
        self._inside: dict[Definition, bool] = {}

    def is_of_one_vector(self, found: Definition) -> bool:
        """Whether a method is only that of a model which makes one vector of a clip, or of what such a one holds."""
        owner = self.frequencies.owner(found)
        return owner is not None and owner in self._candidates and self._is_inside(owner)

    @cached_property
    def _candidates(self) -> set[Definition]:
        """The models that make one vector, and what their methods name, and so on."""
        tops = {h for c in self._pooling for h in (c, *self._holders(c)) if h is not None and self._summarises(h)}
        waiting, found = list(tops), set(tops)
        while waiting:
            at = waiting.pop()
            new = {*self._named(at), *self._defaults(at)} - found
            found |= new
            waiting += new
        return found

    @cached_property
    def _pooling(self) -> set[Definition]:
        """The classes with a method that puts the mean and the deviation together, or calls a function that does."""
        top, named = self.frequencies.top, self.modules.with_word
        joining = {p for word in JOINS for p in named(top, word)} & {p for word in DEVIATIONS for p in named(top, word)}
        out: set[Definition | None] = set()
        for path in sorted(p for p in joining if not is_test(p, top) and self._may_join(p)):
            held = self.modules.mentions(path)
            for by in held.by_function if held is not None else ():
                if by != MODULE and self._joins_moments(path, by):
                    found = Definition(path, by)
                    owner = self.frequencies.owner(found)
                    callers = self.frequencies.mentioned(found) if owner is None else ()
                    out |= {owner, *(self.around(p, m) for p, m in callers if m.role in CALLED)}
        return {c for c in out if c is not None}

    def _may_join(self, path: str) -> bool:
        """Whether the text of a file puts two things together of which the second may be a deviation: few do."""
        file = self.modules.file(path)
        text = file.text if file is not None else ""
        return any(
            "sqrt(" in m[1] or "std(" in m[1] or re.search(rf"\b{m[1]}\s*=[^=].*\b(?:sqrt|std)\(", text)
            for m in TWO.finditer(text)
        )

    def _is_inside(self, owner: Definition) -> bool:
        if owner not in self._inside:
            self._inside[owner] = False  # while it is worked out
            self._inside[owner] = self._summarises(owner) or self._is_only_inside(owner)
        return self._inside[owner]

    def _is_only_inside(self, owner: Definition) -> bool:
        holders = set(self._holders(owner)) - {owner}
        return bool(holders) and all(h is not None and self._is_inside(h) for h in holders)

    def _summarises(self, owner: Definition) -> bool:
        """Whether a model pools what its layers make, and what holds it holds another model too."""
        is_pooled = any(self._pools(c) for c in (owner, *self._named(owner)))
        return is_pooled and self._has_loops(owner) and self._is_beside_another(owner, DEEPEST)

    def _is_beside_another(self, owner: Definition, depth: int) -> bool:
        holders = {h for h in self._holders(owner) if h is not None} - {owner}
        return bool(holders) and all(
            self._has_another(h, owner) or (depth > 0 and self._is_beside_another(h, depth - 1)) for h in holders
        )

    def _has_another(self, holder: Definition, owner: Definition) -> bool:
        return any(c != owner and self._has_loops(c) for c in self._named(holder) - self._named(owner))

    def _has_loops(self, owner: Definition) -> bool:
        """Whether a class goes through layers, or through time."""
        calls = (m for path, method in self._methods(owner) for m in self._calls(path, method))
        return self.frequencies.is_model(owner) or any(m.loops for m in calls)

    def _holders(self, owner: Definition) -> Iterator[Definition | None]:
        """The classes whose methods make an object of a class, or that derive from it; None for anything else."""
        for path, m in self.frequencies.mentioned(owner):
            if m.role == "base":
                yield Definition(path, m.inside)
            elif m.role in CALLED or m.role == "named":
                yield self.around(path, m)

    def around(self, path: str, m: Mention) -> Definition | None:
        """The class in whose method a name stands, also in its header: `def __init__(self, block=Block)`."""
        if m.by != MODULE:
            return self.frequencies.owner(Definition(path, m.by))
        file, summary = self.modules.file(path), self.modules.summary(path)
        for name, f in summary.functions.items() if file is not None and summary is not None else ():
            if file is not None and f.span.line <= m.line <= file.position(f.span.end)[0]:
                return self.frequencies.owner(Definition(path, name))
        return None

    def _named(self, owner: Definition) -> set[Definition]:
        """The classes of the package that the methods of a class call."""
        return {
            found
            for path, method in self._methods(owner)
            for m in self._calls(path, method)
            if m.name[:1].isupper() and (found := self._resolved(path, m)) is not None and self.modules.class_(found)
        }

    def _defaults(self, owner: Definition) -> Iterator[Definition]:
        """The classes that are defaults of a class's methods."""
        held = self.modules.mentions(owner.path)
        for m in held.by_function.get(MODULE, ()) if held is not None else ():
            if m.role == "named" and m.name[:1].isupper() and self.around(owner.path, m) == owner:
                found = self._resolved(owner.path, m)
                if found is not None and self.modules.class_(found) is not None:
                    yield found

    def _pools(self, owner: Definition) -> bool:
        return any(at in self._pooling for at in self.modules.lineage(owner)[0])

    def _joins_moments(self, path: str, function: str) -> bool:
        held = self.modules.mentions(path)
        for m in self._calls(path, function):
            joined = (m.given or {}).get(0) if m.name in JOINS else None
            if held is not None and isinstance(joined, (ast.List, ast.Tuple)) and len(joined.elts) == 2:
                bound = held.bound.get(function, {})
                first, second = (_computed(e, bound) for e in joined.elts)
                if not first & DEVIATIONS and first & MEANS and second & DEVIATIONS:
                    return True
        return False

    def _methods(self, owner: Definition) -> Iterator[tuple[str, str]]:
        for at in self.modules.lineage(owner)[0]:
            held = self.modules.class_(at)
            yield from ((at.path, method) for method in (held.methods.values() if held is not None else ()))

    def _calls(self, path: str, function: str) -> Iterator[Mention]:
        held = self.modules.mentions(path)
        yield from (m for m in (held.by_function.get(function, ()) if held is not None else ()) if m.role in CALLED)

    def _resolved(self, path: str, m: Mention) -> Definition | None:
        summary = self.modules.summary(path)
        name = summary.resolve(m.text, m.by) if summary is not None else None
        return self.modules.resolve(path, name) if name else None


def _computed(value: ast.expr, bound: dict[str, list[ast.expr | None]]) -> set[str]:
    """The operation that a value is the result of, by its last name; of a name, those that it may be bound to."""
    if isinstance(value, ast.Name):
        return {
            n
            for v in bound.get(value.id, ())
            if v is not None and not isinstance(v, ast.Name)
            for n in _computed(v, {})
        }
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return {value.func.attr}
    return set()
