"""Placing a replacement: which text each hole gets, which statements die, where the call goes.

The order: 1. the expressions of the function that compute the roots; 2. the statements that die once those no longer
read anything but the holes; 3. for each hole, text that means its value there as if the dead statements were deleted;
4. edits; 5. what the fix leaves unread elsewhere; 6. the guards: guard.py on the text, confirm.py on the graph of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Block, Graph, Node, Statement, operands
from fuselint.rulebook import Hole, Match, NoFix, Part, Replacement, Synthesised
from fuselint.source.confirm import SIZES, Changes, Slot, confirm, is_impure, uncast
from fuselint.source.dead import Liveness, dead_statements, names_bound
from fuselint.source.edit import Placement, apply, guard
from fuselint.source.express import Place, Writer, Written
from fuselint.source.function import children, walk
from fuselint.source.hoist import CORE, NN, Refused, Surroundings, taken_names
from fuselint.source.layout import chain as links
from fuselint.source.layout import delimited, fit, indent_unit, is_atom, one_line, width_of
from fuselint.source.regions import region_of
from fuselint.source.removal import Removal, above, comments_in, line_end, line_start, normalised, span_of
from fuselint.source.saving import Saved, save, saving_edit
from fuselint.source.tree import Tree
from fuselint.source.unread import Leftovers

if TYPE_CHECKING:
    from fuselint.graph.lower import Program

MODULES = {"mx": CORE, "nn": NN}
PLACEHOLDER = re.compile(r"\{(\w+)\}")


def place(
    graph: Graph,
    match: Match,
    replacement: Replacement,
    program: Program,
    is_read: Callable[[str], bool] | None = None,
) -> Placement | NoFix:
    """See edit.place."""
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
class Site:
    """Where a part goes. elements: the position of its root in a tuple that the expression makes, or None."""

    part: Part
    expr: cst.CSTNode
    stmt: Statement
    element: int | None = None
    template: str = ""
    text: str = ""
    names: frozenset[str] = frozenset()


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
        self.function = source.node
        self.tree = Tree(source)
        self.writer = Writer(graph, self.tree, self.moving)
        self.around = Surroundings(source.file, graph.module, graph.context.qualname, source.start)
        self.sites = [self._site(p) for p in self.replacement.parts]
        self._check_sites()
        for s in self.sites:
            s.template = self._ordered(s.part.template)
        self.trivial: set[cst.CSTNode] = set()
        baseline = dead_statements(self.function, self._deletable)
        removed = [s.expr for s in self.sites]
        self.first = dead_statements(self.function, lambda n: n not in baseline and self._may_die(n), removed)
        self._write(self.first)
        self._plan()
        instead = {s.instead for s in self.saved}
        added = {s.expr: s.names for s in self.sites} | {s.reader: s.names for s in self.saved}
        removed += [s.reader for s in self.saved if s.instead is not None]
        self.dead = dead_statements(
            self.function,
            lambda n: n not in baseline and n not in instead and self._deletable(n),
            removed,
            added,
            (self.first | self.trivial) - instead,
        )
        self._check_walrus(removed)
        edits, spans = self._edits()
        leftovers = Leftovers(self.graph, self.program, self.is_read, self._is_unsafe(), self.comments_at, self.indent)
        edits += self.around.edits
        edits += leftovers.edits(self._removed_code(), normalised(source.file.text, edits))
        return self._checked(normalised(source.file.text, edits), spans + leftovers.spans, leftovers)

    def _checked(
        self, edits: tuple[Edit, ...], spans: list[tuple[int, int]], leftovers: Leftovers
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
        region = region_of(self.graph, self.match, self.replacement, self._templates(), self.around.definition)
        return Placement(edits, shown, region, tuple(leftovers.notes), tuple(sorted(spans)), leftovers.unsafe)

    def _templates(self) -> dict[Node, str]:
        """What stands for each root, with only the operands left open."""
        holes = self.replacement.holes
        return {
            s.part.root: PLACEHOLDER.sub(lambda m: m[0] if m[1] in holes else self._fixed_text(m[1]), s.template)
            for s in self.sites
        }

    def _changes(self) -> Changes:
        return Changes(
            slots=[self._slot(s) for s in self.sites],
            gone=self.dead,
            inserted=frozenset(s.name for s in self.saved if s.before is not None),
            helper=self._helper[0] if self.replacement.helper is not None else "",
            rewritten=frozenset(s.instead for s in self.saved if s.instead is not None),
        )

    # Sites

    def _site(self, part: Part) -> Site:
        root, expr, stmt = part.root, part.root.top_cst, part.root.top_stmt
        if expr is None or stmt is None:
            raise Refused("its value joins several branches, and no expression computes it")
        held = self.graph.values.get(expr)
        if isinstance(expr, cst.AugAssign):
            if root.frame.depth > 0 or not isinstance(expr.target, cst.Name):
                raise Refused("it is computed by an assignment in place")
            return Site(part, expr, stmt)
        if not isinstance(expr, cst.BaseExpression):
            raise Refused("its value joins several branches, and no expression computes it")
        if held is root:
            return Site(part, expr, stmt)
        if held is not None and held.op in ("tuple", "list") and root in held.inputs:
            return Site(part, expr, stmt, held.inputs.index(root))
        if root.frame.depth > 0:
            raise Refused(f"it lies inside `{root.frame.qualname}`, which does more than that")
        raise Refused("the expression that computes it is evaluated in another way")

    def _check_sites(self) -> None:
        seen: list[cst.CSTNode] = []
        for s in self.sites:
            if self.tree.between(s.expr, self.function.body, (cst.Lambda, cst.FunctionDef, cst.ClassDef)):
                raise Refused("it is computed in a nested function")
            for other in seen:
                if other is not s.expr and (other in self.tree.up(s.expr) or s.expr in self.tree.up(other)):
                    raise Refused("its parts lie inside one another")
            seen.append(s.expr)

    # What may die

    @cached_property
    def _by_statement(self) -> dict[cst.CSTNode, list[Node]]:
        out: dict[cst.CSTNode, list[Node]] = {}
        for n in self.graph.nodes:
            top = n.top_stmt
            if top is not None:
                out.setdefault(self.graph.statements[top.index].cst, []).append(n)
        return out

    @cached_property
    def _statements(self) -> dict[cst.CSTNode, Statement]:
        return {s.cst: s for s in self.graph.statements}

    @cached_property
    def _with_effects(self) -> set[cst.CSTNode]:
        return {self.graph.statements[e.stmt.index].cst for e in self.graph.effects}

    @cached_property
    def _closure(self) -> set[Node]:
        """The holes and all that they are computed from."""
        seen: set[Node] = set()
        stack = [n for h in self.replacement.holes.values() for n in leaves(h)]
        while stack:
            n = stack.pop()
            if n not in seen:
                seen.add(n)
                stack.extend([uncast(n.inputs[0])] if n.op in SIZES else operands(n))
        return seen

    @cached_property
    def _holding(self) -> set[cst.CSTNode]:
        """Statements that give a hole, or what one is computed from, a name."""
        return {
            b.stmt.cst
            for bindings in self.graph.bindings.values()
            for b in bindings
            if b.stmt is not None and b.node in self._closure
        }

    def _may_die(self, node: cst.CSTNode) -> bool:
        """As `_deletable`, where what the statement makes on the way to an operand is made elsewhere then."""
        return node not in self._holding and self._deletable(node, self._closure)

    def _deletable(self, node: cst.CSTNode, kept: Collection[Node] = ()) -> bool:
        """Whether all that a statement does is bind local names (an `if`: test something)."""
        if isinstance(node, cst.FunctionDef):
            return not node.decorators and not any(
                p.default is not None and not isinstance(p.default, (cst.Integer, cst.Float, cst.Name))
                for p in (*node.params.params, *node.params.kwonly_params, *node.params.posonly_params)
            )
        stmt = self._statements.get(node)
        if stmt is None or node in self._with_effects:
            return False
        if any(b.kind in ("try", "except") for b in _blocks(stmt)) and not any(
            stmt.block is s.stmt.block for s in self.sites
        ):
            return False
        if isinstance(node, cst.If):
            return self._pure(node.test, ()) and not any(map(is_impure, self._by_statement.get(node, ())))
        if isinstance(node, cst.Assign) and not all(_plain_target(t.target) for t in node.targets):
            return False
        if isinstance(node, (cst.AnnAssign, cst.AugAssign)) and not isinstance(node.target, cst.Name):
            return False
        if any(is_impure(n) and n not in kept for n in self._by_statement.get(node, ())):
            return False
        value = getattr(node, "value", None)
        return value is not None and self._pure(value, kept)

    def _pure(self, expr: cst.CSTNode, kept: Collection[Node]) -> bool:
        """Whether all calls inside are understood."""
        stack: list[cst.CSTNode] = [expr]
        while stack:
            n = stack.pop()
            if isinstance(n, (cst.Await, cst.Yield, cst.NamedExpr)):
                return False
            if isinstance(n, cst.Call):
                value = self.graph.values.get(n)
                if value is None or (is_impure(value) and value not in kept):
                    return False
            if not isinstance(n, (cst.Lambda, cst.BaseComp)):
                stack += children(n)
        return True

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

    # Text

    def _write(self, dead: set[cst.CSTNode]) -> None:
        """The text of each part, given what dies."""
        gone = self._gone(dead)
        moved: list[cst.CSTNode] = []
        self.saved: list[Saved] = []
        uses = Counter(n for p in self.replacement.parts for n in PLACEHOLDER.findall(p.template))
        for site in self.sites:
            at = Place(site.expr, site.stmt, gone)
            written: dict[str, Written] = {}
            for name in dict.fromkeys(PLACEHOLDER.findall(site.template)):
                hole = self.replacement.holes.get(name)
                if hole is None:
                    written[name] = Written(self._fixed_text(name))
                    continue
                written[name] = self._hole(hole, at, name)
                if written[name].moved and uses[name] > 1:
                    raise Refused(f"`{written[name].text}` would be evaluated twice")
                moved += written[name].moved
            site.text = _filled(site.template, written)
            site.names = frozenset().union(*(w.names for w in written.values()))
        self.moves = any(self.tree.statement(e) in dead for e in moved)
        moved += [e for s in self.saved for e in s.moved]
        for i, a in enumerate(moved):
            for b in moved[i + 1 :]:
                if a is b or b in self.tree.up(a) or a in self.tree.up(b):
                    raise Refused("an operand would be evaluated twice")

    def _gone(self, dead: set[cst.CSTNode]) -> frozenset[Statement]:
        return frozenset(self._statements[n] for n in dead if n in self._statements)

    @cached_property
    def _helper(self) -> tuple[str, tuple[int, ...]]:
        if self.replacement.helper is None:
            raise Refused("the template calls a helper that isn't given")
        return self.around.helper(self.replacement.helper)

    def _fixed_text(self, name: str) -> str:
        if name == "helper":
            return self._helper[0]
        if name in MODULES:
            return self.around.alias(MODULES[name])
        raise Refused(f"the template has no value for {{{name}}}")

    def _ordered(self, template: str) -> str:
        """The template, with the arguments as a helper that the module has takes them."""
        m = re.fullmatch(r"(.*)\{helper\}\(([^()]*)\)(.*)", template)
        if m is None:
            return template
        args, order = [a.strip() for a in m[2].split(",")], self._helper[1]
        if len(args) != len(order):
            raise Refused("the helper that the module has takes other arguments")
        return f"{m[1]}{{helper}}({', '.join(args[i] for i in order)}){m[3]}"

    def _hole(self, hole: Hole, at: Place, name: str) -> Written:
        if isinstance(hole, Node):
            try:
                return self.writer.write(hole, at)
            except Refused:
                saved = save(self.writer, hole, name, at, self.writer.local | taken_names(self.graph.source.file))
                if saved is None or (saved.instead is not None and saved.instead in {s.instead for s in self.saved}):
                    raise
            self.saved.append(saved)
            self.writer.fixed[hole] = saved.name
            return Written(saved.name, frozenset({saved.name}))
        found = PLACEHOLDER.findall(hole.template)
        parts = {n: self._operand(hole, n, at) for n in dict.fromkeys(found)}
        for n, p in parts.items():
            if p.moved and found.count(n) > 1:
                raise Refused(f"`{p.text}` would be evaluated twice")
        return Written(
            _filled(hole.template, parts),
            frozenset().union(*(p.names for p in parts.values())),
            tuple(e for p in parts.values() for e in p.moved),
        )

    def _operand(self, hole: Synthesised, name: str, at: Place) -> Written:
        node = hole.operands.get(name)
        return Written(self._fixed_text(name)) if node is None else self.writer.write(node, at)

    def _slot(self, site: Site) -> Slot:
        """The template with a name of its own for each value it reads: what confirm.py looks for in the new text."""
        values: dict[str, Node] = {}

        def named(node: Node) -> Written:
            values[f"hole_{len(values)}_"] = node
            return Written(f"hole_{len(values) - 1}_")

        parts: dict[str, Written] = {}
        for name in dict.fromkeys(PLACEHOLDER.findall(site.template)):
            hole = self.replacement.holes.get(name)
            if hole is None:
                parts[name] = Written(self._fixed_text(name))
            elif isinstance(hole, Node):
                parts[name] = named(hole)
            else:
                inner = {
                    n: named(hole.operands[n]) if n in hole.operands else Written(self._fixed_text(n))
                    for n in dict.fromkeys(PLACEHOLDER.findall(hole.template))
                }
                parts[name] = Written(_filled(hole.template, inner))
        return Slot(site.part.root, _filled(site.template, parts), values)

    # Edits

    def _plan(self) -> None:
        """Assignments that take several values apart, or that would only say `t = t`."""
        self.whole: dict[cst.CSTNode, str] = {}
        for site in self.sites:
            stmt = self.tree.statement(site.expr)
            if stmt in self.whole or stmt in self.trivial:
                continue
            pairs = self._pairs(stmt, site) if isinstance(stmt, cst.Assign) and len(stmt.targets) == 1 else None
            if pairs is None:
                if site.element is not None:
                    raise Refused("its value is taken out of a sequence in another way")
                continue
            kept = [(t, v) for t, v in pairs if t != v]
            if not kept:
                self.trivial.add(stmt)
            elif len(kept) < len(pairs) or site.element is not None:
                targets, values = ", ".join(t for t, _ in kept), ", ".join(v for _, v in kept)
                self.whole[stmt] = f"{targets} = {values}"

    def _pairs(self, stmt: cst.Assign, site: Site) -> list[tuple[str, str]] | None:
        """Each target with its new value, where that can be said one by one."""
        target, value = stmt.targets[0].target, stmt.value
        texts = {s.expr: s.text for s in self.sites if s.element is None}
        if isinstance(target, cst.Name):
            return [(target.value, texts[value])] if value in texts else None
        if not isinstance(target, (cst.Tuple, cst.List)) or not all(
            isinstance(e.value, cst.Name) for e in target.elements
        ):
            return None
        names = [e.value.value for e in target.elements if isinstance(e.value, cst.Name)]
        if site.element is not None:
            held = self.graph.values[value] if value is site.expr else None
            if held is None or len(held.inputs) != len(names):
                return None
            by_element = {s.element: s.text for s in self.sites if s.expr is value}
            at = Place(site.expr, site.stmt, self._gone(self.first))
            return [(n, by_element.get(i) or self._whole(held.inputs[i], at)) for i, n in enumerate(names)]
        if not isinstance(value, (cst.Tuple, cst.List)) or len(value.elements) != len(names):
            return None
        out = []
        for name, e in zip(names, value.elements, strict=True):
            if isinstance(e, cst.StarredElement) or (e.value not in texts and any(n in texts for n in walk(e.value))):
                return None
            out.append((name, texts.get(e.value) or self.graph.source.code(e.value)))
        return out

    def _whole(self, node: Node, at: Place) -> str:
        found = self.writer.write(node, at)
        if found.moved:
            raise Refused("the value beside it is computed in the same expression")
        return found.text

    def _edits(self) -> tuple[list[Edit], list[tuple[int, int]]]:
        """The edits, and the spans of the statements that they may change."""
        source = self.graph.source
        file = source.file
        removal = Removal(source, self.dead)
        edits = removal.edits
        spans = [(e.start, e.end) for e in edits if e.start < e.end]
        comments = list(removal.comments)
        for saved in self.saved:
            edits.append(saving_edit(self.writer, saved))
            if saved.instead is not None:
                spans.append((edits[-1].start, edits[-1].end))
                comments += self._lost(edits[-1].start, edits[-1].end, edits[-1].text)
        done: set[cst.CSTNode] = set()
        for site in self.sites:
            stmt = self.tree.statement(site.expr)
            if stmt in self.dead or site.expr in done:
                continue
            if stmt in self.whole:
                if stmt not in done:
                    start, end = source.span(stmt)
                    edits.append(self._replaced(start, end, self.whole[stmt], stmt))
                    comments += self._lost(start, end, edits[-1].text)
                    done.add(stmt)
            else:
                edits.append(self._replacing(site, stmt))
                comments += self._lost(edits[-1].start, edits[-1].end, edits[-1].text)
            done.add(site.expr)
            spans.append(self._header(stmt))
        live = [self.tree.statement(s.expr) for s in self.sites if self.tree.statement(s.expr) not in self.dead]
        self.comments_at = self._above(live[0]) if live else min((a for a, _ in removal.lines), default=source.start)
        first = file.text[self.comments_at :]
        self.indent = first[: len(first) - len(first.lstrip(" \t"))]
        if comments:
            text = "".join(f"{self.indent}{c}{file.newline}" for c in comments)
            edits.append(Edit(self.comments_at, self.comments_at, text))
        return edits, spans

    def _above(self, stmt: cst.CSTNode) -> int:
        """Where a comment on a statement goes: above its first line, and above the comments on it."""
        file = self.graph.source.file
        return above(file, line_start(file, span_of(self.graph.source, stmt)[0]))

    def _header(self, stmt: cst.CSTNode) -> tuple[int, int]:
        """The span of a statement; of a compound one, up to its suite."""
        source = self.graph.source
        start, end = span_of(source, stmt)
        if isinstance(stmt, cst.BaseCompoundStatement):
            inner = [
                source.span(n)[0]
                for n in walk(stmt.body)
                if isinstance(n, (cst.BaseSmallStatement, cst.BaseCompoundStatement))
            ]
            end = min(inner, default=end)
        return start, end

    def _lost(self, start: int, end: int, text: str) -> list[str]:
        return [c for _, c in comments_in(self.graph.source.file, start, end) if c not in text]

    def _replacing(self, site: Site, stmt: cst.CSTNode) -> Edit:
        source = self.graph.source
        if isinstance(site.expr, cst.AugAssign):
            assert isinstance(site.expr.target, cst.Name)
            start, end = source.span(site.expr)
            return self._replaced(start, end, f"{site.expr.target.value} = {site.text}", stmt)
        inner, outer = source.span(site.expr), source.outer_span(site.expr)
        if inner != outer and not is_atom(site.text):
            return self._replaced(*inner, site.text, stmt)
        text = site.text
        if not is_atom(text) and not self._stands_alone(site.expr):
            text = f"({text})"
        start, end = outer
        chain = self._chain(site.expr, len(links(text)) - 1) if is_atom(text) else None
        if chain is not None and not self._fits(start, chain[-1][1], text, chain):
            return self._chained(start, text, chain)
        if start and (source.file.text[start - 1].isalnum() or source.file.text[start - 1] in "_\"'"):
            text = " " + text
        if end < len(source.file.text) and (source.file.text[end].isalnum() or source.file.text[end] == "_"):
            text += " "
        return self._replaced(start, end, text, stmt)

    def _chain(self, expr: cst.CSTNode, more: int) -> list[tuple[int, int]] | None:
        """The spans of the method calls on an expression that end its statement, each from its dot on.

        None where that is no chain of two or more, the `more` calls that the new code ends in included.
        """
        source = self.graph.source
        at, spans, end = expr, [], source.outer_span(expr)[1]
        while isinstance(up := self.tree.parents.get(at), cst.Attribute):
            call = self.tree.parents.get(up)
            if not isinstance(call, cst.Call) or call.func is not up or call.lpar:
                return None
            spans.append((end, source.span(call)[1]))
            at, end = call, source.span(call)[1]
        whole = self.tree.parents.get(at)
        fine = isinstance(whole, (cst.Assign, cst.Return)) and spans and len(spans) + more > 1
        texts = [source.file.text[a:b] for a, b in spans]
        return spans if fine and not any("\n" in t or "#" in t for t in texts) else None

    def _fits(self, start: int, end: int, text: str, chain: list[tuple[int, int]]) -> bool:
        file = self.graph.source.file
        line = file.text[line_start(file, start) : start] + text + file.text[chain[0][0] : chain[-1][1]]
        return len(line.expandtabs(4)) <= width_of(file.text)

    def _chained(self, start: int, text: str, chain: list[tuple[int, int]]) -> Edit:
        """As black breaks a chain of method calls: in parentheses, each on a line of its own."""
        file = self.graph.source.file
        line = file.text[line_start(file, start) :]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        unit, newline = indent_unit(file.text), file.newline
        inner = indent + unit
        head, *calls = links(text)
        first = inner + fit(inner, head, "", inner, unit, width_of(file.text), newline)
        rest = [inner + c.strip() for c in (*calls, *(file.text[a:b] for a, b in chain))]
        space = "" if file.text[start - 1] in " (" else " "
        return Edit(start, chain[-1][1], space + newline.join(["(", first, *rest, indent + ")"]))

    def _stands_alone(self, expr: cst.CSTNode) -> bool:
        """Whether an expression is all of an assignment's value, an argument, a returned value."""
        return isinstance(
            self.tree.parents.get(expr), (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Arg, cst.Expr)
        )

    def _replaced(self, start: int, end: int, text: str, stmt: cst.CSTNode) -> Edit:
        file = self.graph.source.file
        first = line_start(file, start)
        before = file.text[first:start]
        after = file.text[end : line_end(file, end)].rstrip("\r\n")
        after = after[: after.index("#")].rstrip() if "#" in after else after
        line = file.text[first:]
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        unit, width = indent_unit(file.text), width_of(file.text)
        return Edit(start, end, fit(before, text, after, indent, unit, width, file.newline))

    # What goes

    def _removed_code(self) -> list[cst.CSTNode]:
        return [*self.dead, *(s.expr for s in self.sites)]

    def _is_unsafe(self) -> bool:
        return (
            self.replacement.cap == "unsafe"
            or (self.replacement.numerics or self.match.numerics) in ("less accurate", "different dtype")
            or any(o.verdict == "unknown" for o in self.match.obligations)
        )


def _filled(template: str, parts: Mapping[str, Written]) -> str:
    """The template with text for its placeholders, in parentheses where they need them."""

    def fill(m: re.Match[str]) -> str:
        one = parts[m[1]]
        return one.text if delimited(template[: m.start()], template[m.end() :]) else one.atom

    return PLACEHOLDER.sub(fill, template)


def leaves(hole: Hole) -> Iterator[Node]:
    """The values of the graph that a hole stands for."""
    if isinstance(hole, Synthesised):
        yield from hole.operands.values()
    else:
        yield hole


def _blocks(stmt: Statement) -> Iterator[Block]:
    at: Block | None = stmt.block
    while at is not None:
        yield at
        at = at.parent


def _plain_target(target: cst.BaseExpression) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return all(_plain_target(e.value) for e in target.elements)
    return isinstance(target, cst.Name)
