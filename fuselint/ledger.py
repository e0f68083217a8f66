"""What kept results rest on: leaves (`source.notes`), and claims, each the answer to a question with its own leaves.

A leaf that changed breaks the results that read it, and brings the claims that rest on it into doubt. A claim in doubt
is asked again when a result needs it: the same answer holds, now with the leaves that were read for it; another one
breaks the results that rest on it.

Leaves are kept by what they are about, so that only those of changed files are looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from fuselint.finding import FileResult
from fuselint.source.notes import ANYTHING, COMPILED, is_question, split

Key = tuple[str, str]
"""A scope, and the path of a file as it was given."""

SHARED = 100
"""Leaves of a claim from which on those that another one has too are kept once."""

LOOSE = 2
"""How many times as many leaves as there were may be kept, until those that nothing rests on are left out."""


class Changed(Protocol):
    """Leaves that changed. touches: whether those about something may be among them."""

    def __contains__(self, leaf: object) -> bool: ...

    def touches(self, about: str) -> bool: ...


@dataclass(eq=False, slots=True)
class Claim:
    """The answer to a question. basis: the leaves that it rests on, by number, besides those of a group of them."""

    question: str
    answer: str
    basis: list[int]
    in_doubt: bool = False
    group: int | None = None
    is_wrong: bool = False


@dataclass(eq=False, slots=True)
class Group:
    """Leaves that claims rest on, besides those of another group, which comes before."""

    base: int | None
    leaves: list[int]


@dataclass
class Ledger:
    """leaves: their numbers, by what they are about and how they begin.

    reads: of each result, the leaves that it read itself, and its claims. tight: how many leaves there were when the
    last that nothing rests on were left out.
    """

    leaves: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    reads: dict[Key, tuple[list[int], list[int]]] = field(default_factory=dict)
    tight: int = 0

    def __post_init__(self) -> None:
        self._next = count(max((n for held in self.leaves.values() for n in held.values()), default=-1) + 1)
        self._found: dict[tuple[str, str], int] | None = None

    # -- what changed -------------------------------------------------------------------------------------------------

    def change(self, changed: Changed) -> set[Key]:
        """Take note of leaves that changed; the results that are broken by that."""
        touched = [(about, held) for about, held in self.leaves.items() if changed.touches(about)]
        broken = {n for about, held in touched for start, n in held.items() if f"{start}{about}" in changed}
        if not broken:
            return set()
        groups: list[bool] = []
        for group in self.groups:
            by_base = group.base is not None and groups[group.base]
            groups.append(by_base or not broken.isdisjoint(group.leaves))
        for claim in self.claims:
            if not claim.in_doubt:
                by_group = claim.group is not None and groups[claim.group]
                claim.in_doubt = by_group or not broken.isdisjoint(claim.basis)
        return {key for key, (leaves, _) in self.reads.items() if not broken.isdisjoint(leaves)}

    def claims_of(self, key: Key) -> Iterator[Claim]:
        return (self.claims[i] for i in self.reads[key][1])

    def settle(self, claim: Claim, answer: str, basis: Iterable[str]) -> None:
        """What a question in doubt is answered now."""
        claim.in_doubt, claim.is_wrong = False, claim.answer != answer
        self._rest(claim, basis)

    def wrong(self) -> set[Key]:
        """The results that rest on a claim which turned out wrong."""
        wrong = {i for i, claim in enumerate(self.claims) if claim.is_wrong}
        return {key for key, (_, claims) in self.reads.items() if not wrong.isdisjoint(claims)} if wrong else set()

    def certain(self) -> dict[str, str]:
        """The answers that hold, by question."""
        return {c.question: c.answer for c in self.claims if not c.in_doubt and not c.is_wrong}

    # -- results ------------------------------------------------------------------------------------------------------

    def enter(self, key: Key, result: FileResult, lasts: bool) -> None:
        """Take a result. lasts: whether what it was told of what runs compiled is what others are told, too; else it
        holds until anything changes."""
        basis = dict(result.basis)
        leaves = [self._number(note) for note, _ in result.reads if not is_question(note)]
        asked = [(note, said) for note, said in result.reads if is_question(note)]
        if not lasts and any(note.startswith(COMPILED) for note, _ in asked):
            leaves, asked = [*leaves, self._number(ANYTHING)], []
        self.reads[key] = leaves, [self._claim(question, said, basis.get(question)) for question, said in asked]

    def _claim(self, question: str, answer: str, basis: Iterable[str] | None) -> int:
        if self._found is None:
            self._found = {(c.question, c.answer): i for i, c in enumerate(self.claims)}
        found = self._found.get((question, answer))
        if found is None:
            found = self._found[question, answer] = len(self.claims)
            self.claims.append(Claim(question, answer, []))
            basis = (ANYTHING,) if basis is None else basis
        if basis is not None:
            claim = self.claims[found]
            claim.in_doubt, claim.is_wrong = False, False
            self._rest(claim, basis)
        return found

    def _rest(self, claim: Claim, basis: Iterable[str]) -> None:
        """Have a claim rest on some leaves."""
        numbers = {self._number(leaf): None for leaf in basis}
        claim.basis, claim.group = list(numbers), None
        if len(numbers) < SHARED:
            return
        fits: list[bool] = []
        sizes: list[int] = []
        for group in self.groups:
            base = group.base
            fits.append((base is None or fits[base]) and all(n in numbers for n in group.leaves))
            sizes.append(len(group.leaves) + (0 if base is None else sizes[base]))
        best = max((i for i, fit in enumerate(fits) if fit), key=lambda i: sizes[i], default=None)
        at = best
        while at is not None:
            for n in self.groups[at].leaves:
                del numbers[n]
            at = self.groups[at].base
        if numbers or best is None:
            self.groups.append(Group(best, list(numbers)))
            best = len(self.groups) - 1
        claim.basis, claim.group = [], best

    def _number(self, leaf: str) -> int:
        start, about = split(leaf)
        held = self.leaves.setdefault(about, {})
        found = held.get(start)
        if found is None:
            found = held[start] = next(self._next)
        return found

    # -- as text ------------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """As JSON has it, without claims that no result rests on."""
        used = sorted({i for _, claims in self.reads.values() for i in claims})
        claims = {old: new for new, old in enumerate(used)}
        shown = [self.claims[i] for i in used]
        held = {c.group for c in shown if c.group is not None}
        for i in reversed(range(len(self.groups))):
            base = self.groups[i].base
            if i in held and base is not None:
                held.add(base)
        groups: dict[int | None, int | None] = {None: None, **{old: new for new, old in enumerate(sorted(held))}}
        kept = [self.groups[i] for i in sorted(held)]
        if sum(map(len, self.leaves.values())) > LOOSE * self.tight:
            self._tighten(shown, kept)
        scopes: dict[str, dict[str, Any]] = {}
        for (scope, path), (read, asked) in self.reads.items():
            scopes.setdefault(scope, {})[path] = read, [claims[i] for i in asked]
        return {
            "leaves": self.leaves,
            "groups": [[groups[g.base], g.leaves] for g in kept],
            "claims": [[c.question, c.answer, c.basis, c.in_doubt, groups[c.group]] for c in shown],
            "reads": scopes,
            "tight": self.tight,
        }

    def _tighten(self, claims: Iterable[Claim], groups: Iterable[Group]) -> None:
        """Leave out the leaves that nothing rests on."""
        held = (g.leaves for g in groups)
        kept = {n for c in claims for n in c.basis}.union(*held, *(leaves for leaves, _ in self.reads.values()))
        left = {about: {s: n for s, n in held.items() if n in kept} for about, held in self.leaves.items()}
        self.leaves = {about: held for about, held in left.items() if held}
        self.tight = len(kept)

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Ledger:
        """What `plain` gave."""
        return Ledger(
            plain["leaves"],
            [Group(*group) for group in plain["groups"]],
            [Claim(*claim) for claim in plain["claims"]],
            {(s, p): (leaves, claims) for s, held in plain["reads"].items() for p, (leaves, claims) in held.items()},
            plain["tight"],
        )
