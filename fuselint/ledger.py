"""What kept results rest on: leaves (`source.notes`), and claims, each the answer to a question with its own leaves.

A leaf that changed breaks the results that read it, and brings the claims that rest on it into doubt. A claim in doubt
is asked again when a result needs it: the same answer holds, now with the leaves that were read for it; another one
breaks the results that rest on it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuselint.finding import FileResult
from fuselint.source.notes import ANYTHING, COMPILED, is_question

Key = tuple[str, str]
"""A scope, and the path of a file as it was given."""


@dataclass(eq=False, slots=True)
class Claim:
    """The answer to a question. basis: the leaves that it rests on, by number."""

    question: str
    answer: str
    basis: list[int]
    in_doubt: bool = False
    is_wrong: bool = False


@dataclass
class Ledger:
    """leaves: by their number. reads: of each result, the leaves that it read itself, and its claims."""

    leaves: list[str] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    reads: dict[Key, tuple[list[int], list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._numbers = {leaf: i for i, leaf in enumerate(self.leaves)}
        self._found = {(c.question, c.answer): i for i, c in enumerate(self.claims)}

    # -- what changed -------------------------------------------------------------------------------------------------

    def change(self, changed: Container[str]) -> set[Key]:
        """Take note of leaves that changed; the results that are broken by that."""
        broken = {i for i, leaf in enumerate(self.leaves) if leaf in changed}
        for claim in self.claims:
            claim.in_doubt = claim.in_doubt or not broken.isdisjoint(claim.basis)
        return {key for key, (leaves, _) in self.reads.items() if not broken.isdisjoint(leaves)}

    def claims_of(self, key: Key) -> Iterator[Claim]:
        return (self.claims[i] for i in self.reads[key][1])

    def settle(self, claim: Claim, answer: str, basis: Iterable[str]) -> None:
        """What a question in doubt is answered now."""
        claim.in_doubt, claim.is_wrong = False, claim.answer != answer
        claim.basis = [self._number(leaf) for leaf in basis]

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
        found = self._found.get((question, answer))
        if found is None:
            found = self._found[question, answer] = len(self.claims)
            self.claims.append(Claim(question, answer, []))
            basis = (ANYTHING,) if basis is None else basis
        if basis is not None:
            claim = self.claims[found]
            claim.basis, claim.in_doubt, claim.is_wrong = [self._number(leaf) for leaf in basis], False, False
        return found

    def _number(self, leaf: str) -> int:
        found = self._numbers.get(leaf)
        if found is None:
            found = self._numbers[leaf] = len(self.leaves)
            self.leaves.append(leaf)
        return found

    # -- as text ------------------------------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """As JSON has it, without what no result rests on."""
        used = sorted({i for _, claims in self.reads.values() for i in claims})
        claims = {old: new for new, old in enumerate(used)}
        kept = {i for i in used for i in self.claims[i].basis}.union(*(leaves for leaves, _ in self.reads.values()))
        leaves = {old: new for new, old in enumerate(sorted(kept))}
        shown = [self.claims[i] for i in used]
        scopes: dict[str, dict[str, Any]] = {}
        for (scope, path), (read, asked) in self.reads.items():
            scopes.setdefault(scope, {})[path] = [leaves[i] for i in read], [claims[i] for i in asked]
        return {
            "leaves": [self.leaves[i] for i in leaves],
            "claims": [[c.question, c.answer, [leaves[i] for i in c.basis], c.in_doubt] for c in shown],
            "reads": scopes,
        }

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Ledger:
        """What `plain` gave."""
        return Ledger(
            plain["leaves"],
            [Claim(*claim) for claim in plain["claims"]],
            {(s, p): (leaves, claims) for s, held in plain["reads"].items() for p, (leaves, claims) in held.items()},
        )
