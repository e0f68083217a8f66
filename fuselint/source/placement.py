"""Placing a replacement: which text each hole gets, which statements die, where the call goes.

The order: 1. the expressions of the function that compute the roots; 2. the statements that die once those no longer
read anything but the holes; 3. for each hole, text that means its value there as if the dead statements were deleted;
4. edits; 5. what the fix leaves unread elsewhere; 6. the guards: guard.py on the text, confirm.py on the graph of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Graph
from fuselint.rulebook import GIVEN, Match, NoFix, Replacement
from fuselint.source.confirm import Changes, confirm
from fuselint.source.dead import Liveness, dead_statements, names_bound
from fuselint.source.decorating import is_decorator, redecorate
from fuselint.source.dying import Dying, paired
from fuselint.source.edit import Placement, apply, guard
from fuselint.source.express import Writer
from fuselint.source.function import walk
from fuselint.source.hoist import Refused, Surroundings
from fuselint.source.layout import one_line
from fuselint.source.regions import region_of
from fuselint.source.removal import normalised
from fuselint.source.rewriting import Rewriting
from fuselint.source.sites import find_sites
from fuselint.source.tree import Tree
from fuselint.source.unread import Leftovers
from fuselint.source.wording import Wording, leaves

if TYPE_CHECKING:
    from fuselint.graph.lower import Program


def place(
    graph: Graph,
    match: Match,
    replacement: Replacement,
    program: Program,
    is_read: Callable[[str], bool] | None = None,
) -> Placement | NoFix:
    """See edit.place."""
    if is_decorator(graph, replacement.parts[0].root):
        return redecorate(graph, match, replacement, program)
    first: NoFix | None = None
    for moving in (True, False):
        work = _Placing(graph, match, replacement, program, is_read, moving)
        try:
            done = work.run()
        except Refused as why:
            done = NoFix(str(why))
        except ValueError as why:  # edits that overlap: see removal.normalised
            done = NoFix(f"it can't be placed: {why}")
        if isinstance(done, Placement):
            return done
        first = first or done
        if not work.moves:
            break
    assert first is not None
    return first


@dataclass
class _Placing:
    graph: Graph
    match: Match
    replacement: Replacement
    program: Program
    is_read: Callable[[str], bool] | None
    moving: bool  # whether operands may move out of statements that die
    moves: bool = False  # whether one did

    def run(self) -> Placement | NoFix:
        graph, source = self.graph, self.graph.source
        if graph.not_understood:
            raise Refused(graph.not_understood)
        if not isinstance(source.node, cst.FunctionDef):
            raise Refused("the code stands in a lambda")
        function = self.function = source.node
        self.tree = Tree(source)
        self.sites = find_sites(graph, self.tree, self.replacement.parts)
        writer = Writer(graph, self.tree, self.moving)
        around = Surroundings(source.file, graph.module, graph.context.qualname, source.start)
        self.wording = Wording(self.replacement, self.sites, writer, around)
        dying = Dying(graph, self.sites, [n for h in self.replacement.holes.values() for n in leaves(h)])

        removed = [s.expr for s in self.sites]
        already = dead_statements(function, dying.deletable)
        first = dead_statements(function, lambda n: n not in already and dying.may_die(n), removed)
        self.wording.write(dying.gone(first))
        rewriting = Rewriting(writer, self.sites, dying.gone(first))
        self.moves, saved = self.wording.moves, self.wording.saved

        kept = already | {s.instead for s in saved}
        removed += [s.reader for s in saved if s.instead is not None]
        added = {s.expr: s.names for s in self.sites} | {s.reader: s.names for s in saved}
        spare = dying.spare(Liveness(function).run())
        self.narrowed: dict[cst.Assign, frozenset[str]] = {}
        while True:
            self.dead = dead_statements(
                function,
                lambda n: n not in kept and dying.deletable(n),
                removed,
                added,
                (first | rewriting.trivial) - kept,
            )
            after = Liveness(function, set(removed), added, self.dead).run()
            unread = {
                stmt: names
                for stmt, names in dying.spare(after).items()
                if stmt not in self.dead and stmt not in kept and stmt not in spare and stmt not in self.narrowed
            }
            if not unread:
                break
            self.narrowed |= unread
            removed += [value for stmt, names in unread.items() for name, value in paired(stmt) if name in names]
        self._check_walrus(removed)
        self._check_useless(removed, kept)
        edits, spans = rewriting.edits(
            self.dead, saved, {stmt: self.narrowed[stmt] for stmt in self.narrowed if stmt not in self.dead}
        )
        edits += around.edits
        rest = Leftovers(graph, self.program, self.is_read, self._is_unsafe(), rewriting.comments_at, rewriting.indent)
        code = [*self.dead, *removed]
        edits += rest.edits(code, normalised(source.file.text, edits))
        return self._checked(normalised(source.file.text, edits), spans + rest.spans, rest, around.definition)

    def _checked(
        self, edits: tuple[Edit, ...], spans: list[tuple[int, int]], rest: Leftovers, helper: str
    ) -> Placement | NoFix:
        file = self.graph.source.file
        new_text = apply(file.text, edits)
        why = guard(file.text, new_text, edits, spans)
        if why is not None:
            return why
        problem = confirm(self.graph, new_text, self.program, self._changes())
        if problem:
            return NoFix(problem)
        live = [s.text for s in self.sites if self.tree.statement(s.expr) not in self.dead]
        shown = "; ".join(dict.fromkeys(one_line(t) or t for t in live))
        region = region_of(self.graph, self.match, self.replacement, self.wording.templates(), helper)
        return Placement(edits, shown, region, tuple(rest.notes), tuple(sorted(spans)), rest.unsafe)

    def _changes(self) -> Changes:
        saved = self.wording.saved
        return Changes(
            slots=[self.wording.slot(s) for s in self.sites],
            gone=self.dead,
            inserted=frozenset(s.name for s in saved if s.before is not None),
            narrowed=self.narrowed,
            rewritten=frozenset(s.instead for s in saved if s.instead is not None),
        )

    def _check_walrus(self, removed: list[cst.CSTNode]) -> None:
        """A name that the removed code binds on its way must not be read later."""
        bound = {n for e in removed if isinstance(e, cst.BaseExpression) for n in names_bound(e)}
        if not bound:
            return
        after = Liveness(self.function, set(removed), {s.expr: s.names for s in self.sites}, self.dead).run()
        for s in self.sites:
            live = after.get(s.stmt.cst) or after.get(self.tree.statement(s.expr)) or frozenset()
            late = bound & (live | {n for t in self.sites for n in t.names})
            if late:
                raise Refused(f"the replaced code also binds `{sorted(late)[0]}`, which is read later")
        inside = bound & {
            n.value for s in self.sites for n in walk(self.tree.statement(s.expr)) if isinstance(n, cst.Name)
        }
        if any(
            sum(1 for n in walk(self.tree.statement(s.expr)) if isinstance(n, cst.Name) and n.value in inside)
            > sum(1 for n in walk(s.expr) if isinstance(n, cst.Name) and n.value in inside)
            for s in self.sites
        ):
            raise Refused("the replaced code binds a name that the rest of its statement reads")

    def _check_useless(self, removed: list[cst.CSTNode], kept: Collection[cst.CSTNode | None]) -> None:
        """What computes the replaced value must not stay for something else that it may do, unread."""
        indices = {s.index for n in self.match.region if (s := n.top_stmt) is not None and n.op not in GIVEN}
        computing = {self.graph.statements[i].cst for i in indices} - {s.stmt.cst for s in self.sites}
        added = {s.expr: s.names for s in self.sites}
        unread = dead_statements(self.function, lambda n: n in computing and n not in kept, removed, added, self.dead)
        for node in (unread - self.dead) & computing:
            line = one_line(self.graph.source.code(node)) or "a statement"
            raise Refused(f"`{line}` may do something else, and would stay")

    def _is_unsafe(self) -> bool:
        return (
            self.replacement.cap == "unsafe"
            or (self.replacement.numerics or self.match.numerics) in ("less accurate", "different dtype")
            or any(o.verdict == "unknown" for o in self.match.obligations)
        )
