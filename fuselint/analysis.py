"""One file -> its findings, with what a fix needs to be made and verified. No other file's findings matter to it.

Of other files it reads what they say of their names, and the facts of functions that the file calls.

read -> screen -> Program -> graphs -> every rule's matches -> claims -> findings.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import libcst as cst

from fuselint.asrecorded import AS_RECORDED, AsRecorded, is_recorded
from fuselint.config import Settings
from fuselint.finding import Applicability, FileResult, Finding, Fix, InDtype, Obligation, Region, Related, Traffic
from fuselint.graph.compiling import UNCOMPILED, both_ways
from fuselint.graph.derived import no_other_version
from fuselint.graph.elsewhere import Elsewhere, rest_shared, shared
from fuselint.graph.fact import Place
from fuselint.graph.gates import Version, newest_use, version_of
from fuselint.graph.leftovers import leave
from fuselint.graph.model import Graph, Node, Statement
from fuselint.graph.program import Program
from fuselint.hot import ANYWHERE, HowOften, is_idle, little_where
from fuselint.plain import dumps
from fuselint.recorded import loaded
from fuselint.rulebook import GIVEN, Match, NoFix, Replacement, Rule, chosen_codes, claim, rules
from fuselint.source.cold import overridden
from fuselint.source.compiled import in_package
from fuselint.source.edit import place
from fuselint.source.frequency import Frequency
from fuselint.source.modules import Modules, summary_of
from fuselint.source.notes import READING
from fuselint.source.project import ModuleSummary, summarise
from fuselint.source.screen import parse, screen
from fuselint.source.suppress import Suppressions
from fuselint.source.text import FileText
from fuselint.standing import standing
from fuselint.traffic import saves_where_compiled, saving
from fuselint.traffic.known import Known
from fuselint.traffic.known import known as what_is_known
from fuselint.traffic.model import Model
from fuselint.unused import unused

MOST_PLACING = 10_000
"""Statements that are looked at to place the fixes of one function: each fix is placed among all of them."""
TOO_MANY = "the function holds more than is fixed at once: fix the rest of it first, and look again"

OTHER_FILES = "other files of the package stay as they are"

Reads = Callable[[str], bool]
"""Whether any other file of the package reads a name."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A finding with what making and verifying its fix takes.

    statements: the spans that its edits may change. kept: the spans of other statements that compute what it replaces,
    and that something else reads too. rests_on: the absolute paths of the files that its facts come from.
    """

    finding: Finding
    region: Region | None = None
    statements: tuple[tuple[int, int], ...] = ()
    kept: frozenset[tuple[int, int]] = frozenset()
    rests_on: frozenset[str] = frozenset()


def analyse(
    file: FileText, settings: Settings, is_read: Reads | None, modules: Modules | None = None
) -> tuple[FileResult, list[Proposal]]:
    """All of a file: what to report, and what could be fixed.

    Without `is_read`, nothing is known to be unread; without `modules`, nothing of the other files of the package.
    """
    screened = screen(file)
    if not screened.mlx or screened.tree is None or not screened.functions:
        idle = idle_comments(file, settings, Suppressions.of(file, ours=True), ())
        return FileResult(file.path, tuple(p.finding for p in idle), text=file.text if idle else ""), idle
    modules = modules or Modules()
    qualnames = [span.qualname for span in screened.functions]
    summary = overridden(summary_of(file, screened.tree), settings.hot, settings.cold)
    modules.know(file, summary)
    program = shared(file, summary)
    program.elsewhere = Elsewhere(program, modules)
    program.target = version_of(settings.target_mlx)
    is_read = is_read and _noted(is_read, os.path.abspath(file.path), modules)
    try:
        with modules.noting() as notes:
            modules.note_package(os.path.abspath(file.path))
            often = HowOften.of(file, modules, settings)
            analysis = Analysis(file, settings, is_read, program, screened.tree, as_recorded(program, settings), often)
            result, proposals = analysis.run(qualnames)
            told = result.findings or result.near_misses or result.below_min_saving or result.idle
            if told or any(c.how == "called" for c in summary.compiled.values()):  # elsewhere it can't matter
                known = analysis.in_package(summary, modules)
                result = replace(result, errors=tuple(analysis.errors))
                if known is not summary:
                    inside = program.known_as(known)
                    leave(inside)
                    rest_shared()
                    inside.elsewhere = Elsewhere(inside, modules)
                    ran = as_recorded(inside, settings)
                    analysis = Analysis(file, settings, is_read, inside, screened.tree, ran, often)
                    result, proposals = analysis.run(qualnames)
            modules.note_shown(dumps(result))
    finally:
        program.rest()
        rest_shared()
    return replace(result, reads=tuple(sorted(notes.items())), basis=notes.of_questions()), proposals


def _noted(is_read: Reads, path: str, modules: Modules) -> Reads:
    """The question, which modules are told of when it is asked."""

    def ask(name: str) -> bool:
        return modules.ask(f"{READING}{name} of {path}", lambda: str(is_read(name))) == str(True)

    return ask


def program_in_package(file: FileText, tree: ast.Module, settings: Settings, modules: Modules) -> Program:
    """A file's functions, with what its whole package says of them."""
    summary = overridden(summarise(file, tree), settings.hot, settings.cold)
    program = Program(file, in_package(file, summary, modules))
    program.elsewhere, program.target = Elsewhere(program, modules), version_of(settings.target_mlx)
    return program


def _of_any_rule(graph: Graph, match: Match) -> list[Obligation]:
    """What every match has to meet, whatever its rule."""
    both = both_ways(graph) if match.has_traffic else []
    return [*both, *no_other_version(graph, match), *stay_as_they_are(graph, match)]


Fixed = tuple[Fix, Region | None, tuple[tuple[int, int], ...]]
"""A fix, its two runnable texts, and the statements that it changes."""


@dataclass(slots=True)
class Analysis:
    file: FileText
    settings: Settings
    is_read: Reads | None
    program: Program
    tree: ast.Module | None = None
    ran: AsRecorded | None = None
    often: HowOften | None = None
    by_code: Mapping[str, Rule] = field(default_factory=lambda: {r.code: r for r in rules()})
    not_understood: list[tuple[str, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    model: Model | None = None  # of the matches that stand
    fixes: dict[Match, Fixed | None] = field(default_factory=dict)
    placing: Counter[str] = field(default_factory=Counter)  # statements looked at to place the fixes of each function

    def run(self, qualnames: Sequence[str]) -> tuple[FileResult, list[Proposal]]:
        graphs = [g for q in qualnames if (g := self.graph(q)) is not None]
        found = [(g, [m for rule in self.by_code.values() for m in self.found(rule, g)]) for g in graphs]
        for g, matches in found:
            for m in matches:
                if self.ran is not None:
                    self.ran.settle(g, m, self.by_code[m.code], span_of(g, m.root))
        claimed = [(g, m) for g, matches in found for m in claim(m for m in matches if not m.contradicted)]
        contradicted = [(g, m) for g, matches in found for m in matches if m.contradicted]
        suppressions = Suppressions.of(self.file)
        stands = standing(claimed, contradicted, self.program, self.is_fixed)
        stands = [(g, self.narrowed(g, m)) for g, m in stands]
        kept = list(self.chosen(stands, suppressions))
        idle = {m for g, m in kept if self.is_idle(g, m)}
        kept = [(g, m) for g, m in kept if m not in idle]
        if self.tree is not None and self.settings.model_config is not None:
            self.model = Model(self.program, self.tree, self.settings, stands)
        proposals = []
        for g, m in kept:
            proposed = self.proposal(g, m)
            if proposed is not None and self.is_little(g, m, proposed.finding):
                idle.add(m)
            elif proposed is not None:
                proposals.append(proposed)
        if not self.errors:
            proposals += idle_comments(self.file, self.settings, suppressions, self.lines_not_understood())
        proposals = identified(self.file, sorted(proposals, key=lambda p: place_of(p.finding)))
        shown = [p for p in proposals if not self.is_small(p.finding)]
        near: list[Finding] = []
        if self.settings.near_misses:
            standing_near = standing(contradicted, (), self.program, lambda graph, match: True)
            nearly = self.chosen(standing_near, Suppressions.of(self.file))
            near = [self.near_miss(g, m) for g, m in nearly]
            near = sorted([*near, *self.nearly(found)], key=place_of)
        return (
            FileResult(
                path=self.file.path,
                findings=tuple(p.finding for p in shown),
                near_misses=tuple(near),
                text=self.file.text if shown or near else "",
                functions=len(qualnames),
                not_understood=tuple(self.not_understood),
                below_min_saving=len(proposals) - len(shown),
                idle=len(idle),
                errors=tuple(self.errors),
                model=self.model.total if self.model is not None and proposals else None,
            ),
            shown,
        )

    def in_package(self, summary: ModuleSummary, modules: Modules) -> ModuleSummary:
        """The summary with what other files of the package compile: many of them are read for that."""
        try:
            return in_package(self.file, summary, modules)
        except Exception as e:
            self.fault("following what the package compiles", e)
            return summary

    def graph(self, qualname: str) -> Graph | None:
        try:
            graph = self.program.graph(qualname)
        except Exception as e:
            self.fault(f"reading {qualname}", e)
            return None
        if graph is None or graph.not_understood:
            reason = graph.not_understood if graph else self.program.too_complex.get(qualname, "its text is not found")
            self.not_understood.append((qualname, reason))
            return None
        return graph

    def found(self, rule: Rule, graph: Graph) -> list[Match]:
        try:
            matches = [self.settled(graph, m) for m in rule.find(graph)]
            for match in matches:
                match.obligations += _of_any_rule(graph, match)
            return matches
        except Exception as e:
            self.fault(f"{rule.code} on {graph.context.qualname}", e)
            return []

    def settled(self, graph: Graph, match: Match) -> Match:
        """Without a saving where mx.compile fuses the neighbours of what is replaced, and would no longer."""
        counted = graph.context.compiled and match.fused and match.has_traffic and not match.contradicted
        if counted and not saves_where_compiled(graph, match):
            because = "mx.compile fuses it with what stands next to it"
            match.obligations.append(Obligation("the fix spares kernels or bytes", "contradicted", because))
        return match

    def fault(self, doing: str, error: Exception) -> None:
        """An internal error costs one rule on one function, never the run."""
        where = f"{self.file.path}: internal error in {doing}: {type(error).__name__}: {error}; please report this"
        self.errors.append(where + "\n" + "".join(traceback.format_exception(error)).rstrip())

    def chosen(
        self, matches: Sequence[tuple[Graph, Match]], suppressions: Suppressions
    ) -> Iterator[tuple[Graph, Match]]:
        """Without what isn't selected, what a comment silences, and elementwise chains too short to report."""
        codes = chosen_codes(self.settings, self.file.path)
        for graph, match in matches:
            if match.code not in codes:
                continue
            name = self.by_code[match.code].name
            if not suppressions.is_empty and suppressions.covers(match.code, *self.lines(graph, match.root), name=name):
                continue
            if not self.is_short(match):
                yield graph, match

    def is_idle(self, graph: Graph, match: Match) -> bool:
        """Whether what a match finds never runs in the package, or too seldom for what it saves."""
        return self.asks_often(graph, match, partial(is_idle, graph, match))

    def is_little(self, graph: Graph, match: Match, finding: Finding) -> bool:
        """Whether what a match spares is too little for where it stands."""
        where = set() if graph.context.hot else little_where(finding.code, finding.traffic, self.settings)
        if ANYWHERE in where or not where:
            return bool(where)
        return self.asks_often(graph, match, lambda often, asked: not where.isdisjoint(asked.places(graph, often)))

    def asks_often(self, graph: Graph, match: Match, test: Callable[[Frequency, HowOften], bool]) -> bool:
        """The answer of a test to how often the lines of a match run; no where that isn't asked."""
        if self.often is None:
            return False
        start, end = span_of(graph, match.root)
        lines = self.file.position(start)[0], self.file.position(end)[0]
        try:
            return test(self.often.at(graph, lines, match.code), self.often)
        except Exception as e:
            self.fault(f"asking how often {graph.context.qualname} runs", e)
            return False

    def lines_not_understood(self) -> list[range]:
        """The lines of functions whose findings are not known."""
        functions = self.program.summary.functions
        spans = [functions[q].span for q, _ in self.not_understood if q in functions]
        return [range(self.file.position(s.start)[0], self.file.position(s.end)[0] + 1) for s in spans]

    def is_short(self, match: Match) -> bool:
        """Whether it is an elementwise chain too short to report."""
        kernels = match.data.get("kernels")
        return kernels is not None and kernels < self.settings.min_kernels and not match.data.get("gated")

    def lines(self, graph: Graph, root: Node) -> tuple[int, int, range]:
        """The first and last line of the root's statement, and the lines from the first decorator to the `def`."""
        stmt = root.top_stmt
        start, end = span_of(graph, root)
        if stmt is not None and isinstance(stmt.line, cst.SimpleStatementLine):
            start, end = graph.source.span(stmt.line)
        return self.file.position(start)[0], self.file.position(end)[0], self.header(graph)

    def header(self, graph: Graph) -> range:
        """The lines from the first decorator of a function to its `def`."""
        first = self.file.position(graph.source.start)[0]
        return range(first, self.program.summary.functions[graph.context.qualname].span.line + 1)

    def is_small(self, finding: Finding) -> bool:
        traffic, fix = finding.traffic, finding.fix
        if traffic is None or traffic.saved_at is None:
            return False
        if fix is not None and fix.edits and traffic.saved_at < 0 and traffic.launches_fewer <= 0:
            return True  # where MLX falls back, a fix may cost
        if _saves_nothing(traffic) and traffic.phase != "train":
            return True  # casts to the dtype that it has, say; under a gradient other things count
        # an unknown size is never hidden
        return not traffic.assumes_sizes and traffic.saved_at < self.settings.min_saving

    def is_fixed(self, graph: Graph, match: Match) -> bool:
        """Whether a match can be rewritten where it is seen; of a rule that isn't selected it doesn't matter."""
        if match.code not in chosen_codes(self.settings, self.file.path):
            return True
        if self.is_short(match):
            return False
        found = self.fixed(graph, match)
        return found is not None and found[0].applicability != "none"

    def narrowed(self, graph: Graph, match: Match) -> Match:
        """The match, or the part of it that can be rewritten where it can't."""
        if match.narrower is None or self.is_fixed(graph, match):
            return match
        try:
            part = match.narrower()
        except Exception as e:
            self.fault(f"a part of {match.code} on {graph.context.qualname}", e)
            return match
        if part is None or part.contradicted:
            return match
        part.obligations += _of_any_rule(graph, part)
        if self.ran is not None:
            self.ran.settle(graph, part, self.by_code[part.code], span_of(graph, part.root))
        return part if not part.contradicted and self.is_fixed(graph, part) else match

    def fixed(self, graph: Graph, match: Match) -> Fixed | None:
        if match not in self.fixes:
            try:
                self.fixes[match] = self.fix(graph, match)
            except Exception as e:
                self.fixes[match] = None
                self.fault(f"the fix of {match.code} on {graph.context.qualname}", e)
        return self.fixes[match]

    def proposal(self, graph: Graph, match: Match) -> Proposal | None:
        fixed = self.fixed(graph, match)
        if fixed is None:
            return None
        fix, region, statements = fixed
        try:
            kept = _computing(graph, match, statements) if fix.edits else frozenset()
            files = frozenset(os.path.abspath(p.path) for p in places_of(graph, match))
            return Proposal(self.finding(graph, match, fix), region, statements, kept, files)
        except Exception as e:
            self.fault(f"the finding of {match.code} in {graph.context.qualname}", e)
            return None

    def near_miss(self, graph: Graph, match: Match) -> Finding:
        because = "; ".join(_not_so(o) for o in match.obligations if o.verdict == "contradicted")
        found = self.finding(graph, match, Fix("none", because))
        return replace(found, message=f"near miss: {match.message}", traffic=None)

    def nearly(self, found: Sequence[tuple[Graph, Sequence[Match]]]) -> Iterator[Finding]:
        """What would match if a single thing were otherwise."""
        from fuselint.nearly import near_misses

        codes, suppressions = chosen_codes(self.settings, self.file.path), Suppressions.of(self.file)
        rules = [r for r in self.by_code.values() if r.code in codes]
        tree = parse(self.file)
        for graph, matches in found:
            try:
                misses = near_misses(self.program, tree, graph, matches, rules)
            except Exception as e:
                self.fault(f"near misses of {graph.context.qualname}", e)
                continue
            for miss in misses:
                (line, column), (end_line, end_column) = map(self.file.position, miss.span)
                header = self.header(graph)
                if not suppressions.covers(miss.rule.code, line, end_line, header, miss.rule.name):
                    yield Finding(
                        miss.rule.code,
                        miss.rule.name,
                        f"near miss: {miss.message}",
                        self.file.path,
                        line,
                        column,
                        end_line,
                        end_column,
                        graph.context.qualname,
                        fix=Fix("none", _not_so(miss.obligation)),
                        obligations=(miss.obligation,),
                    )

    def finding(self, graph: Graph, match: Match, fix: Fix) -> Finding:
        rule = self.by_code[match.code]
        start, end = span_of(graph, match.root)
        line, column = self.file.position(start)
        end_line, end_column = self.file.position(end)
        traffic = self.traffic(graph, match) if match.has_traffic and not match.contradicted else None
        return Finding(
            code=rule.code,
            name=rule.name,
            message=message(match, traffic),
            path=self.file.path,
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            function=graph.context.qualname,
            related=tuple(self.related(match)),
            fix=fix,
            obligations=tuple(match.obligations),
            traffic=traffic,
        )

    def traffic(self, graph: Graph, match: Match) -> Traffic:
        if self.ran is None or graph.context.qualname not in self.ran:
            return saving(graph, match, self.settings) if self.model is None else self.model.saving(graph, match)
        counted = saving(graph, match, self.settings, self.known(graph, match))
        in_model = None if self.model is None else self.model.saving(graph, match).model
        return replace(counted, calls=self.ran.calls(graph.context.qualname), model=in_model)

    def known(self, graph: Graph, match: Match) -> Known:
        """What is known of a function's sizes: of most objects that run a match, and of a recorded run."""
        name = graph.context.qualname
        usual = what_is_known(self.settings, name) if self.model is None else self.model.usual(graph, match)
        if self.ran is None or name not in self.ran:
            return usual
        return replace(
            usual,
            recorded=partial(self.ran.number, graph, match),
            ran=self.ran.roles(name),
            dtypes=self.ran.dtypes(graph),
            cache={},
        )

    def related(self, match: Match) -> Iterator[Related]:
        for at, text in match.related:
            if isinstance(at, Place):
                yield Related(at.path, at.exact, text)
            elif at.cst is not None and at.frame.source is not None:
                source = at.frame.source
                yield Related(source.file.path, source.file.position(source.span(at.cst)[0])[0], text)

    def fix(self, graph: Graph, match: Match) -> Fixed:
        rule = self.by_code[match.code]

        def advised(why: str) -> tuple[Fix, None, tuple[()]]:
            return Fix("none", why, numerics=match.numerics), None, ()

        wanted = rule.fix(graph, match) if rule.fix else NoFix("this rule advises only")
        if isinstance(wanted, NoFix):
            return advised(wanted.reason)
        if wanted.cap == "none":
            return advised(wanted.because)
        too_new = self.too_new(wanted)
        if too_new:
            return advised(too_new)
        self.placing[graph.context.qualname] += len(graph.statements)
        if self.placing[graph.context.qualname] > max(MOST_PLACING, len(graph.statements)):
            return advised(TOO_MANY)
        placed = place(graph, match, wanted, self.program, self.is_read)
        if isinstance(placed, NoFix):
            return advised(placed.reason)
        wanted = self.for_target(wanted)
        level, needs = applicability(match, wanted, placed.unsafe)
        fix = Fix(
            applicability=level,
            message="; ".join(part for part in (placed.shown, *placed.notes, wanted.message) if part),
            edits=() if wanted.requires else placed.edits,
            needs=needs,
            requires=wanted.requires,
            numerics=wanted.numerics or match.numerics,
        )
        return fix, placed.region, placed.statements

    def too_new(self, wanted: Replacement) -> str:
        """What a fix uses that the MLX of `--target-mlx` hasn't, or ""."""
        target = self.settings.target_mlx
        for part in wanted.parts if target else ():
            use = newest_use(part.template)
            if use is not None and use[0] > version_of(target):
                return f"{use[1]}{NEW_IN}{'.'.join(map(str, use[0]))}, and the target is {target}"
        return ""

    def for_target(self, wanted: Replacement) -> Replacement:
        """Without the doubts that the MLX of `--target-mlx` settles."""
        if not self.settings.target_mlx:
            return wanted
        target = version_of(self.settings.target_mlx)
        needs = tuple(n for n in wanted.needs if not _is_version(n) or max(_versions(n)) > target)
        if NEW_IN in wanted.because and max(_versions(wanted.because)) <= target:
            return replace(wanted, needs=needs, cap="", because="")
        return replace(wanted, needs=needs)


NEW_IN = " is new in MLX "
"""Says why a fix is unsafe where nothing else is the matter."""


def _is_version(need: str) -> bool:
    return need.startswith("MLX ") and bool(_versions(need))


def _versions(need: str) -> list[Version]:
    return [(*map(int, v.split(".")), 0, 0)[:3] for v in re.findall(r"\d+\.\d+(?:\.\d+)?", need)]  # type: ignore[misc]


def as_recorded(program: Program, settings: Settings) -> AsRecorded | None:
    """What a run says of the file's functions, where one was recorded and the file has not changed since."""
    functions = loaded(settings.facts).of(program.file.path) if settings.facts else {}
    return AsRecorded(program, functions, settings.phase) if functions else None


def idle_comments(
    file: FileText, settings: Settings, suppressions: Suppressions, spared: Sequence[range]
) -> list[Proposal]:
    """The suppressions that silence nothing. spared: lines whose findings are not known."""
    found = unused(file, suppressions, chosen_codes(settings, file.path), spared)
    return identified(file, [Proposal(f) for f in found])


def identified(file: FileText, proposals: Sequence[Proposal]) -> list[Proposal]:
    """With ids that survive moved lines and renamed files: code, function, the text without its layout, count."""
    seen: Counter[str] = Counter()
    out = []
    for p in proposals:
        f = p.finding
        snippet = file.text[file.offset(f.line, f.column) : file.offset(f.end_line, f.end_column)]
        layout = re.sub(r",(?=[)\]}])", "", "".join(snippet.split()))
        key = "\0".join([f.code, f.function, layout])
        name = hashlib.sha256(f"{key}\0{seen[key]}".encode("utf-8", "surrogatepass")).hexdigest()[:16]
        seen[key] += 1
        out.append(replace(p, finding=replace(f, id=name)))
    return out


def _computing(graph: Graph, match: Match, changed: Sequence[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """The statements that compute a match or give its operands a second name, without those that its fix changes."""
    own = {n.top_stmt for n in match.region if n.op not in GIVEN} - {match.root.top_stmt}
    operands = set(match.holes.values())
    own |= {b.stmt for bound in graph.bindings.values() for b in bound if b.node in operands and _is_alias(b.stmt)}
    spans = (graph.source.span(graph.statements[s.index].cst) for s in own if s is not None)
    return frozenset((a, b) for a, b in spans if not any(a < end and start < b for start, end in changed))


def _is_alias(stmt: Statement | None) -> bool:
    """`y = x`."""
    return stmt is not None and isinstance(stmt.cst, cst.Assign) and isinstance(stmt.cst.value, cst.Name)


def applicability(match: Match, wanted: Replacement, placing: str) -> tuple[Applicability, tuple[str, ...]]:
    """How far a fix can be trusted, and what it needs to be right. `placing`: why its placement is unsafe, or ""."""
    unknown = tuple(o.claim for o in match.obligations if o.verdict == "unknown")
    numerics = wanted.numerics or match.numerics
    changed = (f"{numerics} is acceptable",) if numerics in ("less accurate", "different dtype") else ()
    capped = (wanted.because,) if wanted.cap == "unsafe" and wanted.because else ()
    recorded = tuple(f"{o.claim} ({AS_RECORDED})" for o in match.obligations if is_recorded(o))
    needs = (*unknown, *recorded, *wanted.needs, *capped, *changed, *((placing,) if placing else ()))
    doubtful = unknown or changed or wanted.cap == "unsafe" or placing
    return ("unsafe" if doubtful else "safe"), tuple(dict.fromkeys(needs))


def places_of(graph: Graph, match: Match) -> set[Place]:
    """The lines of other files that say what the values of a match are."""
    nodes = set(match.region)
    for hole in match.holes.values():
        nodes.update([hole] if isinstance(hole, Node) else hole.operands.values())
    return {place for n in nodes for place in graph.facts.of(n).places}


def stay_as_they_are(graph: Graph, match: Match) -> list[Obligation]:
    """That other files keep saying what they say, where a match's own obligations don't name them."""
    named = " ".join(o.because for o in match.obligations)
    lines: dict[str, set[int]] = defaultdict(set)
    for line in places_of(graph, match):
        if str(line) not in named:
            lines[line.path].add(line.exact)
    said = "; ".join(f"{path}:{', '.join(map(str, sorted(numbers)))}" for path, numbers in sorted(lines.items()))
    return [Obligation(OTHER_FILES, "proven", f"they say what these values are: {said}")] if said else []


def _not_so(obligation: Obligation) -> str:
    return f"not so: {obligation.claim} ({obligation.because})"


def message(match: Match, traffic: Traffic | None) -> str:
    """What is found, counted: kernels and bytes now, and after the fix."""
    if traffic is None:
        return match.message
    becomes = " + ".join(dict.fromkeys(_called(k.op) for k in match.fused)) or "fused"
    if match.launches is not None:
        becomes = match.launches.form
    after = _after(traffic)
    move = "moves" if traffic.kernels_now == 1 else "move"
    now = f"{_kernels(traffic.kernels_now)} {move} {traffic.bytes_now} bytes a call"
    other = traffic.otherwise
    if other is not None:
        now += f" in {traffic.dtype}"
    if other is not None and not _is_like(traffic, other):
        now += f", or {_kernels(other.kernels_now)} {other.bytes_now} in {other.dtype}"
        same = other.kernels_fused == traffic.kernels_fused
        after += "" if after == _after(other) else f", or {other.bytes_fused if same else _after(other)}"
    if any(o.claim == UNCOMPILED for o in match.obligations):
        now = f"uncompiled, {now}"
    return f"{match.message}: {now}; {becomes}: {after}"


def _after(t: Traffic | InDtype) -> str:
    return f"{_kernels(t.kernels_fused)}, {t.bytes_fused}" if t.kernels_fused else "none"


def _saves_nothing(traffic: Traffic) -> bool:
    """Whether the fixed code runs as many kernels and moves as many bytes, whatever the sizes, in the only dtype."""
    same = (traffic.kernels_now, traffic.bytes_now) == (traffic.kernels_fused, traffic.bytes_fused)
    return same and traffic.otherwise is None and traffic.launches_fewer == 0


def _is_like(traffic: Traffic, other: InDtype) -> bool:
    """Whether the other dtype makes no difference but in the bytes of an element, and more of them are saved."""
    counts = (traffic.kernels_now, traffic.kernels_fused) == (other.kernels_now, other.kernels_fused)
    return counts and (other.saved_at or 0) > (traffic.saved_at or 0)


def _called(op: str) -> str:
    """A fused op as code calls it: `mx.addmm`, `nn.gelu`, `x - mx.logsumexp(x)`; a plugin's, `kernels.silu_mul`."""
    is_core = op.partition(".")[0] in ("fast", "linalg", op) and " " not in op
    return f"mx.{op}" if is_core else op


def _kernels(number: int) -> str:
    return "1 kernel" if number == 1 else f"{number} kernels"


def span_of(graph: Graph, node: Node) -> tuple[int, int]:
    """Offsets of the expression in the graph's own function that evaluates the node."""
    at = node.top_cst
    return graph.source.span(at) if at is not None else (graph.source.start, graph.source.end)


def place_of(finding: Finding) -> tuple[int, int, str]:
    return finding.line, finding.column, finding.code
