"""What is known at one place: the function's graph, facts, canonical form, kernels, and each rule's obligations."""

from __future__ import annotations

from collections.abc import Iterator

from fuselint.analysis import Analysis, as_recorded, message, program_in_package, span_of
from fuselint.config import DTYPES, Settings
from fuselint.errors import FuselintError
from fuselint.graph.model import Graph, Node
from fuselint.graph.show import show
from fuselint.hot import HowOften
from fuselint.package import Package
from fuselint.rulebook import Match, claim
from fuselint.source.frequency import NEVER
from fuselint.source.modules import Modules
from fuselint.source.project import MODULE, ModuleSummary
from fuselint.source.screen import screen
from fuselint.source.text import FileText, read
from fuselint.traffic.kernels import Bytes, kernels
from fuselint.traffic.sizes import Sizes


def explain(path: str, line: int, settings: Settings) -> str:
    """The function around a line, as the analyser sees it."""
    file = read(path)
    screened = screen(file)
    if not screened.mlx or screened.tree is None:
        raise FuselintError(f"{path}: does not import MLX")
    modules = Package().modules()
    program = program_in_package(file, screened.tree, settings, modules)
    qualname = _function(file, program.summary, line)
    graph = program.graph(qualname)
    if graph is None:
        reason = program.too_complex.get(qualname, "its text is not found")
        raise FuselintError(f"{path}:{line}: {qualname} is not analysed: {reason}")
    work = Analysis(file, settings, None, program, screened.tree, as_recorded(program, settings))
    return "\n".join(_lines(work, graph, line, modules, qualname in {s.qualname for s in screened.functions})) + "\n"


def _function(file: FileText, summary: ModuleSummary, line: int) -> str:
    inside = [
        f.span
        for f in summary.functions.values()
        if file.position(f.span.start)[0] <= line <= file.position(f.span.end)[0]
    ]
    if not inside:
        raise FuselintError(f"{file.path}:{line}: no function stands there, only {MODULE[1:-1]}-level code")
    return max(inside, key=lambda s: s.start).qualname


def _lines(work: Analysis, graph: Graph, line: int, modules: Modules, screened: bool) -> Iterator[str]:
    context = graph.context
    yield f"{graph.source.file.path}:{graph.source.file.position(graph.source.start)[0]} {context.qualname}"
    if not screened:
        yield "  holds no MLX work of its own: `check` passes it by"
    if context.cold:
        yield f"  cold: {context.cold}"
    if not context.cold:
        asked = HowOften.of(graph.source.file, modules, work.settings)
        often = asked.at(graph, (line, line))
        yield f"  line {line} runs {often.how}: {often.why}"
        if often.how != NEVER and asked.is_before_solver(graph, (line, line)):
            yield f"  line {line} runs before the steps of a solver, once for all of them"
    if context.compiled:
        yield f"  runs under mx.compile{' (shapeless)' if context.shapeless else ''}"
    if context.partly:
        yield f"  runs under mx.compile too: {context.partly}"
    if graph.not_understood:
        yield f"  not understood: {graph.not_understood}"
        return
    yield from ["", "graph"]
    yield from (f"  {text}" for text in show(graph).rstrip().split("\n"))
    if graph.notes:
        yield from ["", "not understood", *(f"  {note}" for note in graph.notes)]
    here = [n for n in graph.nodes if _on_line(graph, n, line)]
    yield from ["", f"facts and canonical form of the values of line {line}"]
    for n in here:
        yield f"  %{n.id} {n.op}: {graph.facts.kind(n)}; {graph.facts.why(n)}"
        yield f"      = {graph.canonical.text(n)}"
    if not here:
        yield "  none: give a line on which a value is computed"
    yield from ["", f"kernels of line {line}, run as written", *_kernels(work.settings, graph, here)]
    for rule in work.by_code.values():
        for match in claim(work.found(rule, graph)):
            if work.ran is not None:
                work.ran.settle(graph, match, rule, span_of(graph, match.root))
            yield from _match(work, graph, match)
    yield from work.errors


def _on_line(graph: Graph, node: Node, line: int) -> bool:
    """Whether the node is computed on the line: of this function, or of a helper that is inlined into it."""
    at, source = node.cst, node.frame.source
    if at is None or source is None or node.op in ("const", "global"):
        return False
    start, end = source.span(at)
    return source.file.position(start)[0] <= line <= source.file.position(end)[0]


def _kernels(settings: Settings, graph: Graph, nodes: list[Node]) -> Iterator[str]:
    launched = kernels(nodes, graph.facts)
    sizes = Bytes(Sizes.of([a.shape for k in launched for a in (*k.reads, *k.writes)]), DTYPES[settings.activation])
    for k in launched:
        name = f" (%{k.node.id})" if k.node else ""
        yield f"  {k.op}{name}: {sizes.moved(k)} bytes"
    if not launched:
        yield "  none"


def _match(work: Analysis, graph: Graph, match: Match) -> Iterator[str]:
    start, _ = span_of(graph, match.root)
    line, column = work.file.position(start)
    contradicted = match.contradicted
    yield ""
    yield f"{match.code} {work.by_code[match.code].name} at {line}:{column}{', a near miss' if contradicted else ''}"
    yield f"  {message(match, None if contradicted else work.traffic(graph, match))}"
    for name, hole in match.holes.items():
        yield f"  {name} = {f'%{hole.id}' if isinstance(hole, Node) else hole.template}"
    for o in match.obligations:
        yield f"  {o.verdict}: {o.claim} ({o.because})"
    if not contradicted:
        fix = work.fix(graph, match)[0]
        yield f"  fix: {fix.applicability}, {fix.numerics}: {fix.message}"
        yield from (f"  needs: {need}" for need in fix.needs)
