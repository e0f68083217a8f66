"""What is no match, but would be one if a single thing were otherwise; and which thing that is.

For each function that holds the operations of a rule, small changes of its text are tried (source/changes.py). Where
one makes the rule match, at a place where nothing matched, the rule failed there in exactly that. This is asked for by
--near-misses only: it analyses the function anew for every change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from fuselint.finding import Edit, Obligation
from fuselint.graph.around import ahead, behind
from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.rulebook import GIVEN, Match, Rule, claim, claim_rank
from fuselint.source.changes import OPERAND, RANK, Change, changes
from fuselint.source.edit import apply
from fuselint.source.text import FileText

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """span: offsets of what would match. message: what it would be."""

    rule: Rule
    span: Span
    message: str
    obligation: Obligation


def near_misses(
    program: Program, tree: ast.Module, graph: Graph, found: Sequence[Match], rules: Sequence[Rule]
) -> list[NearMiss]:
    """The near misses of one function. found: its matches, by all rules. rules: those to try."""
    qualname = graph.context.qualname
    lines = {} if graph.context.cold else {r: _lines(graph, r) for r in rules}
    lines = {r: around for r, around in lines.items() if around}
    node = _definition(tree, program.file, program.summary.functions[qualname].span.start) if lines else None
    if node is None:
        return []
    taken = [(claim_rank(m.code), _spans(graph, m)) for m in found if not m.contradicted]
    known = {r: [_span(graph, m.root) for m in found if m.code == r.code and m.contradicted] for r in lines}
    misses: list[NearMiss] = []
    numbers = sorted({n for r in lines for n in r.numbers})
    for change in changes(program.file, node, frozenset().union(*lines.values()), numbers):
        changed = {program.file.position(e.start)[0] for e in change.edits}
        tried = [
            r
            for r, around in lines.items()
            if (changed <= around or change.kind == RANK) and (change.kind != OPERAND or (r.one_value and not known[r]))
        ]
        for rule, span, message in _matches(program, qualname, change, tried):
            if any(_overlap(other, span) for other in known[rule]):
                continue
            rank = claim_rank(rule.code)
            if not any(first <= rank and any(_overlap(span, s) for s in spans) for first, spans in taken):
                known[rule].append(span)
                misses.append(NearMiss(rule, span, message, Obligation(change.claim, "contradicted", change.because)))
    return misses


BEHIND, AHEAD = 8, 4
"""Steps from a value around which a match may nearly be, to what belongs to it."""


def _lines(graph: Graph, rule: Rule) -> frozenset[int]:
    """The lines of the statements in which a match of a rule may nearly be."""
    lines: set[int] = set()
    for seed in rule.nearly(graph) if rule.nearly else ():
        if seed.frame.depth == 0:
            passes = partial(_passes, seed)
            for n in {b for a in ahead(graph, seed, AHEAD, passes) for b in behind(a, BEHIND, passes)}:
                start, end = _span(graph, n, whole=True)
                lines.update(range(graph.source.file.position(start)[0], graph.source.file.position(end)[0] + 1))
    return frozenset(lines)


def _passes(seed: Node, node: Node) -> bool:
    """Whether a form may go on beyond a value: not where a layer, a call or a fused operation makes it."""
    return node is seed or (
        not node.op.startswith(("nn.", "fast.")) and node.op not in ("call", "phi", "loop", "tuple")
    )


def _matches(
    program: Program, qualname: str, change: Change, rules: Sequence[Rule]
) -> Iterator[tuple[Rule, Span, str]]:
    """What the rules see in the changed text: where that stands in the text as it is, and what it is."""
    if not rules:
        return
    text = apply(program.file.text, change.edits)
    try:
        graph = program.changed(qualname, text, change.edits).graph(qualname)
        if graph is None or graph.not_understood:
            return
        matches = claim(m for r in rules for m in r.find(graph) if not m.contradicted)
    except Exception:  # the change makes no sense there
        return
    by_code = {r.code: r for r in rules}
    for match in matches:
        yield by_code[match.code], _before(change.edits, _span(graph, match.root)), match.message


def _definition(tree: ast.Module, file: FileText, start: int) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    for n in ast.walk(tree):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = n.decorator_list[0] if n.decorator_list else n
            if start <= file.ast_offset(first.lineno, first.col_offset) <= start + 1:  # `@` stands before a decorator
                return n
    return None


def _span(graph: Graph, node: Node, whole: bool = False) -> Span:
    """Offsets of the expression in the graph's own function that evaluates the node; whole: of its statement."""
    stmt = node.top_stmt
    at = node.top_cst
    if whole and stmt is not None and isinstance(stmt.line, cst.SimpleStatementLine):
        at = stmt.line
    return graph.source.span(at) if at is not None else (graph.source.start, graph.source.start)


def _spans(graph: Graph, match: Match) -> list[Span]:
    """Of the values that a match owns."""
    return [_span(graph, n) for n in {*match.region, match.root} if n.op not in GIVEN and n.top_cst is not None]


def _before(edits: Sequence[Edit], span: Span) -> Span:
    """A span of the changed text, in the text before."""

    def moved(offset: int) -> int:
        shift = 0
        for e in edits:
            start, end = e.start + shift, e.start + shift + len(e.text)
            if offset < start:
                break
            if offset < end:
                return min(e.start + offset - start, e.end)
            shift += len(e.text) - (e.end - e.start)
        return offset - shift

    return moved(span[0]), moved(span[1])


def _overlap(a: Span, b: Span) -> bool:
    return a[0] < b[1] and b[0] < a[1]
