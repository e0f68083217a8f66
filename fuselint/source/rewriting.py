"""The edits of a function: new code for its sites, statements deleted, comments kept."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from fuselint.finding import Edit
from fuselint.graph.model import Node, Statement
from fuselint.source.dying import paired
from fuselint.source.express import Place, Writer
from fuselint.source.function import walk
from fuselint.source.guard import PRAGMA
from fuselint.source.hoist import Refused, page_of
from fuselint.source.layout import is_atom, is_expression, one_line, stays_broken
from fuselint.source.removal import Removal, above, comments_in, line_end, line_start, span_of
from fuselint.source.saving import Saved, saving_edit
from fuselint.source.sites import Site

ARGUMENT = re.compile(r"(\s*)(\S.*?)(,?)")
"""A line of an argument: its indent, it, a comma."""

CLOSE = (")", "]", "}")

ONE_VALUE = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Expr)


@dataclass
class Rewriting:
    """gone: statements that die anyway. whole: assignments that are written anew, with their targets and values.
    trivial: those that would only say `t = t`. comments_at, indent: where comments of deleted code go.
    """

    writer: Writer
    sites: Sequence[Site]
    gone: frozenset[Statement]
    whole: dict[cst.CSTNode, tuple[str, str]] = field(default_factory=dict)
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
                self.whole[stmt] = ", ".join(t for t, _ in kept), ", ".join(v for _, v in kept)

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
            edits.append(self._assigning(assign, ", ".join(t for t, _ in pairs), ", ".join(v for _, v in pairs)))
            comments += self._lost(start, end, edits[-1].text)
            spans.append((start, end))
        by_statement: dict[cst.CSTNode, list[Site]] = {}
        for site in self.sites:
            stmt = self.tree.statement(site.expr)
            if stmt not in dead and all(s.expr is not site.expr for s in by_statement.setdefault(stmt, [])):
                by_statement[stmt].append(site)
        for stmt, sites in by_statement.items():
            made = self._made(stmt, sites)
            edits += made
            comments += [c for e in made for c in self._lost(e.start, e.end, e.text)]
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

    def _made(self, stmt: cst.CSTNode, sites: Sequence[Site]) -> list[Edit]:
        """The edits of a statement: of its whole value where that is laid out as we would, else of each new part."""
        if stmt in self.whole:
            return [self._assigning(stmt, *self.whole[stmt])]
        edits = sorted((self._part(site) for site in sites), key=lambda e: e.start)
        value = getattr(stmt, "value", None)
        if isinstance(stmt, ONE_VALUE) and value is not None and all(s.expr is not stmt for s in sites):
            return [anew] if (anew := self._anew(value, edits)) else self._laid(edits, self.source.span(stmt)[0])
        return self._laid(edits, self.source.span(stmt)[0])

    def _assigning(self, stmt: cst.CSTNode, targets: str, values: str) -> Edit:
        start, end = self.source.span(stmt)
        before, after, indent = self._around(start, end)
        page = page_of(self.source.file)
        return Edit(start, end, f"{targets} = {page.value(f'{before}{targets} = ', values, after, indent)}")

    def _part(self, site: Site) -> Edit:
        """What a site becomes, on one line."""
        source = self.source
        if isinstance(site.expr, cst.AugAssign):
            assert isinstance(site.expr.target, cst.Name)
            return Edit(*source.span(site.expr), f"{site.expr.target.value} = {site.text}")
        inner, outer = source.span(site.expr), source.outer_span(site.expr)
        if inner != outer and not is_atom(site.text):
            return Edit(*inner, site.text)
        text = site.text
        if not is_atom(text) and not self._stands_alone(site.expr):
            text = f"({text})"
        start, end = outer
        if start and (source.file.text[start - 1].isalnum() or source.file.text[start - 1] in "_\"'"):
            text = " " + text
        if end < len(source.file.text) and (source.file.text[end].isalnum() or source.file.text[end] == "_"):
            text += " "
        return Edit(start, end, text)

    def _stands_alone(self, expr: cst.CSTNode) -> bool:
        """Whether an expression is all of an assignment's value, an argument, a returned value."""
        return isinstance(
            self.tree.parents.get(expr), (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Return, cst.Arg, cst.Expr)
        )

    def _anew(self, value: cst.BaseExpression, edits: Sequence[Edit]) -> Edit | None:
        """A statement's value with its new parts, laid out as a whole; None where somebody laid it out otherwise."""
        text, page = self.source.file.text, page_of(self.source.file)
        inner, (start, end) = self.source.span(value), self.source.outer_span(value)
        before, after, indent = self._around(start, end)
        old, replaced = text[start:end], [(e.start, e.end) for e in edits]
        if (replaced == [inner] and page.newline in old) or replaced == [(start, end)]:
            code = edits[0].text.strip()
            gap = " " if edits[0].text.startswith(" ") else ""  # `return(x)`
            return Edit(start, end, gap + page.value(before + gap, code, after, indent))
        first, last = inner if page.newline in old else (start, end)
        was, new = one_line(text[first:last]), self._with(edits, first, last)
        if was is None or new is None or stays_broken(old):
            return None
        fits, apart = page.fits(before + new + after), page.parenthesised(was, indent) == old
        if page.newline not in old or page.value(before, was, after, indent) == old or (apart and fits):
            return Edit(start, end, page.value(before, new, after, indent))
        return Edit(start, end, page.parenthesised(new, indent)) if apart else None

    def _with(self, edits: Sequence[Edit], start: int, end: int) -> str | None:
        """A stretch of the file on one line, with the edits made."""
        text, out, at = self.source.file.text, "", start
        for e in edits:
            if e.start < at or e.end > end:
                return None
            out, at = f"{out}{text[at : e.start]}{e.text}", e.end
        return one_line(out + text[at:end])

    def _laid(self, edits: Sequence[Edit], start: int) -> list[Edit]:
        """Edits of a statement from `start` on, one by one; an argument on a line of its own is laid out as a whole."""
        file = self.source.file
        by_line: dict[int, list[Edit]] = {}
        for e in edits:
            by_line.setdefault(line_start(file, e.start), []).append(e)
        out = []
        for first, some in by_line.items():
            alone = self._argument(first, some) if first > start else None
            out += [alone] if alone else [self._fitted(e) for e in some]
        return out

    def _argument(self, first: int, edits: Sequence[Edit]) -> Edit | None:
        """The only argument on a line, with its edits; None where the line holds more or less than one."""
        file = self.source.file
        last = line_end(file, first)
        code = ARGUMENT.fullmatch(file.text[first:last].partition("#")[0].rstrip())
        if code is None or edits[-1].end > last or not (code[3] or file.text[last:].lstrip().startswith(CLOSE)):
            return None
        begin, end = first + code.start(2), first + code.end(2)
        was, new = file.text[begin:end], self._with(edits, begin, end)
        if new is None or not is_expression(was):
            return None
        page = page_of(file)
        lines = page.lines(page.spelled(new), code[3], code[1])
        return Edit(begin, first + code.end(3), page.newline.join(lines).removeprefix(code[1]))

    def _fitted(self, e: Edit) -> Edit:
        before, after, indent = self._around(e.start, e.end)
        return Edit(e.start, e.end, page_of(self.source.file).fit(before, e.text, after, indent))

    def _around(self, start: int, end: int) -> tuple[str, str, str]:
        """The rest of the lines that code begins and ends on, without a comment to a tool; the indent of the first."""
        file = self.source.file
        first = line_start(file, start)
        before, after = file.text[first:start], file.text[end : line_end(file, end)].rstrip()
        code, _, comment = after.partition("#")
        return before, code.rstrip() if PRAGMA.match(f"#{comment}") else after, indent_at(file.text[first:])


def indent_at(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]
