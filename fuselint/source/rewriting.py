"""The edits of a function: new code for its sites, statements deleted, comments kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Node, Statement
from fuselint.source.dying import paired
from fuselint.source.express import Place, Writer
from fuselint.source.function import walk
from fuselint.source.hoist import Refused, indent_of
from fuselint.source.layout import chain as links
from fuselint.source.layout import fit, is_atom, one_line, width_of
from fuselint.source.removal import Removal, above, comments_in, line_end, line_start, span_of
from fuselint.source.saving import Saved, saving_edit
from fuselint.source.sites import Site


@dataclass
class Rewriting:
    """gone: statements that die anyway. whole: assignments that are written anew. trivial: those that would only say
    `t = t`. comments_at, indent: where comments of deleted code go.
    """

    writer: Writer
    sites: Sequence[Site]
    gone: frozenset[Statement]
    whole: dict[cst.CSTNode, str] = field(default_factory=dict)
    trivial: set[cst.CSTNode] = field(default_factory=set)
    comments_at: int = 0
    indent: str = ""

    def __post_init__(self) -> None:
        self.graph, self.tree, self.source = self.writer.graph, self.writer.tree, self.writer.source
        self._plan()

    def _plan(self) -> None:
        """Assignments that take several values apart, or that would only say `t = t`."""
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
            at = Place(site.expr, site.stmt, self.gone)
            return [(n, by_element.get(i) or self._whole(held.inputs[i], at)) for i, n in enumerate(names)]
        if not isinstance(value, (cst.Tuple, cst.List)) or len(value.elements) != len(names):
            return None
        out = []
        for name, e in zip(names, value.elements, strict=True):
            if isinstance(e, cst.StarredElement) or (e.value not in texts and any(n in texts for n in walk(e.value))):
                return None
            out.append((name, texts.get(e.value) or self.source.code(e.value)))
        return out

    def _whole(self, node: Node, at: Place) -> str:
        found = self.writer.write(node, at)
        if found.moved:
            raise Refused("the value beside it is computed in the same expression")
        return found.text

    def edits(
        self, dead: set[cst.CSTNode], saved: Sequence[Saved], narrowed: Mapping[cst.Assign, frozenset[str]]
    ) -> tuple[list[Edit], list[tuple[int, int]]]:
        """The edits, and the spans of the statements that they may change. narrowed: names that assignments lose."""
        source = self.source
        file = source.file
        removal = Removal(source, dead)
        edits = removal.edits
        spans = [(e.start, e.end) for e in edits if e.start < e.end]
        comments = list(removal.comments)
        for one in saved:
            edits.append(saving_edit(self.writer, one))
            if one.instead is not None:
                spans.append((edits[-1].start, edits[-1].end))
                comments += self._lost(edits[-1].start, edits[-1].end, edits[-1].text)
        for assign, names in narrowed.items():
            pairs = [(name, self.source.code(value)) for name, value in paired(assign) if name not in names]
            start, end = source.span(assign)
            text = f"{', '.join(t for t, _ in pairs)} = {', '.join(v for _, v in pairs)}"
            edits.append(self._replaced(start, end, text, assign))
            comments += self._lost(start, end, edits[-1].text)
            spans.append((start, end))
        done: set[cst.CSTNode] = set()
        for site in self.sites:
            stmt = self.tree.statement(site.expr)
            if stmt in dead or site.expr in done:
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
        live = [self.tree.statement(s.expr) for s in self.sites if self.tree.statement(s.expr) not in dead]
        self.comments_at = self._above(live[0]) if live else min((a for a, _ in removal.lines), default=source.start)
        self.indent = indent_at(file.text[self.comments_at :])
        if comments:
            text = "".join(f"{self.indent}{c}{file.newline}" for c in comments)
            edits.append(Edit(self.comments_at, self.comments_at, text))
        return edits, spans

    def _above(self, stmt: cst.CSTNode) -> int:
        """Where a comment on a statement goes: above its first line, and above the comments on it."""
        file = self.source.file
        return above(file, line_start(file, span_of(self.source, stmt)[0]))

    def _header(self, stmt: cst.CSTNode) -> tuple[int, int]:
        """The span of a statement; of a compound one, up to its suite."""
        source = self.source
        start, end = span_of(source, stmt)
        if isinstance(stmt, cst.BaseCompoundStatement):
            parts = stmt.cases if isinstance(stmt, cst.Match) else [stmt.body]
            inner = [
                source.span(n)[0]
                for part in parts
                for n in walk(part)
                if isinstance(n, (cst.BaseSmallStatement, cst.BaseCompoundStatement, cst.MatchCase))
            ]
            end = min(inner, default=end)
        return start, end

    def _lost(self, start: int, end: int, text: str) -> list[str]:
        return [c for _, c in comments_in(self.source.file, start, end) if c not in text]

    def _replacing(self, site: Site, stmt: cst.CSTNode) -> Edit:
        source = self.source
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
        source = self.source
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
        file = self.source.file
        line = file.text[line_start(file, start) : start] + text + file.text[chain[0][0] : chain[-1][1]]
        return len(line.expandtabs(4)) <= width_of(file.text)

    def _chained(self, start: int, text: str, chain: list[tuple[int, int]]) -> Edit:
        """As black breaks a chain of method calls: in parentheses, each on a line of its own."""
        file = self.source.file
        indent = indent_at(file.text[line_start(file, start) :])
        unit, newline = indent_of(file), file.newline
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
        file = self.source.file
        first = line_start(file, start)
        before = file.text[first:start]
        after = file.text[end : line_end(file, end)].rstrip("\r\n")
        after = after[: after.index("#")].rstrip() if "#" in after else after
        unit, width = indent_of(file), width_of(file.text)
        done = fit(before, text, after, indent_at(file.text[first:]), unit, width, file.newline)
        around = self._value(stmt, start, end) if before.strip() and "\n" in done and "\n" not in text else None
        if around is not None:  # breaking the value as a whole reads better than breaking a part in the middle
            begin, stop = around
            value = one_line(file.text[begin:start] + text + file.text[end:stop])
            ahead = file.text[line_start(file, begin) : begin]
            behind = file.text[stop : line_end(file, stop)].partition("#")[0].rstrip()
            if value is not None:
                return Edit(begin, stop, fit(ahead, value, behind, indent_at(ahead), unit, width, file.newline))
        return Edit(start, end, done)

    def _value(self, stmt: cst.CSTNode, start: int, end: int) -> tuple[int, int] | None:
        """The value of a statement, where more than [start, end) is in it and nothing else changes it."""
        value = stmt.value if isinstance(stmt, (cst.Assign, cst.Return)) else None
        if value is None or sum(self.tree.statement(s.expr) is stmt for s in self.sites) > 1:
            return None
        around = self.source.outer_span(value)
        return None if around == (start, end) else around


def indent_at(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
