"""What the HTML report shows, gathered: each function's traffic today and fixed, each finding with its kernels.

files -> findings, with the kernels of their regions -> the fixed text -> the same count again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuselint import chips
from fuselint.analysis import Analysis, as_recorded, program_in_package
from fuselint.config import Configuration, Settings
from fuselint.engine import fix_paths, localised
from fuselint.errors import UnreadableFile
from fuselint.finding import FileResult, Finding, Fix, Verification
from fuselint.graph.model import Graph
from fuselint.graph.symbols import Expr, readable
from fuselint.graph.tape import Array
from fuselint.package import Package
from fuselint.rates import rates_of
from fuselint.rulebook import Match, chosen_codes
from fuselint.source.screen import screen
from fuselint.source.text import FileText, decode, read
from fuselint.traffic import Region, count
from fuselint.traffic.census import Census, census
from fuselint.traffic.kernels import Kernel
from fuselint.traffic.known import Known
from fuselint.traffic.work import work


@dataclass(frozen=True, slots=True)
class Moved:
    """An array that a kernel reads or writes. made: the number of the kernel that wrote it, or None."""

    name: str
    bytes: int
    formula: str
    made: int | None


@dataclass(frozen=True, slots=True)
class Launch:
    op: str
    reads: tuple[Moved, ...]
    writes: tuple[Moved, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """A region before its fix, or after. operations: floating-point ones; seconds: an estimate."""

    launches: tuple[Launch, ...]
    bytes: int
    operations: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Shown:
    """A finding with what is drawn of it. source: the text that its lines count in."""

    finding: Finding
    source: str
    before: Side | None = None
    after: Side | None = None
    verification: Verification | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """What one call launches and moves today, and after the safe fixes. ids: of the findings in it. typical: whether
    nothing says some size that the bytes depend on."""

    path: str
    name: str
    line: int
    bytes: int
    launches: int
    bytes_fixed: int
    launches_fixed: int
    ids: tuple[str, ...]
    typical: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    chip: chips.Chip
    origin: str
    dtype: str
    files: int
    functions: tuple[Function, ...]
    shown: tuple[Shown, ...]
    errors: tuple[str, ...] = ()


def gather(files: Sequence[str], configuration: Configuration, verify: bool) -> Page:
    """Everything of the page. Nothing is written; the fixes are made in memory."""
    here = configuration.of_folder(".")
    chosen_codes(here)
    chip, origin = chips.chosen(here.chip)
    fixed = {f.path: f for f in fix_paths(files, configuration, verify=verify)}
    functions: list[Function] = []
    shown: list[Shown] = []
    errors: list[str] = []
    for path in files:
        settings = configuration.of(path)
        work = _Work.of(path, settings)
        if work is None:
            errors += [f"{f.path}:{f.line}: {f.message}" for f in fixed[path].remaining.findings]
            continue
        errors += work.result.errors
        proven = {f.id: f.fix.verification for f in fixed[path].applied if f.fix is not None}
        shown += [replace(s, verification=proven.get(s.finding.id)) for s in work.shown(chip)]
        after = _Work.read(decode(path, fixed[path].after.encode("utf-8", "surrogatepass")), settings)
        functions += _functions(work, after)
    shown.sort(key=lambda s: -((s.finding.traffic.saved_at if s.finding.traffic else 0) or 0))
    return Page(chip, origin, here.activation, len(files), tuple(functions), tuple(shown), tuple(errors))


@dataclass(slots=True)
class _Recording(Analysis):
    """An analysis that keeps the regions whose traffic it counts."""

    regions: dict[tuple[object, ...], tuple[Region, Known]] = field(default_factory=dict)  # by their places

    def finding(self, graph: Graph, match: Match, fix: Fix) -> Finding:
        found = Analysis.finding(self, graph, match, fix)
        if found.traffic is not None:
            known = self.known(graph, match)
            self.regions[_place(found)] = count(graph, match, self.settings, known), known
        return found


@dataclass(slots=True)
class _Work:
    """One file, analysed."""

    file: FileText
    settings: Settings
    analysis: _Recording | None
    names: Sequence[str]
    result: FileResult

    @classmethod
    def of(cls, path: str, settings: Settings) -> _Work | None:
        try:
            return cls.read(read(path), settings)
        except UnreadableFile:
            return None

    @classmethod
    def read(cls, file: FileText, settings: Settings) -> _Work:
        screened = screen(file)
        if not screened.mlx or screened.tree is None or not screened.functions:
            return cls(file, settings, None, (), FileResult(file.path))
        package = Package()
        program = program_in_package(file, screened.tree, settings, package.modules())
        ran = as_recorded(program, settings)
        analysis = _Recording(file, settings, package.others_read(file.path), program, screened.tree, ran)
        names = [span.qualname for span in screened.functions]
        result, _ = analysis.run(names)
        return cls(file, settings, analysis, names, result)

    def shown(self, chip: chips.Chip) -> Iterator[Shown]:
        """The findings with their regions."""
        regions = {} if self.analysis is None else self.analysis.regions
        placed = localised(self.result, self.file)
        for joined, f in zip(self.result.findings, placed.findings, strict=True):
            found = regions.get(_place(joined))
            before, after = _sides(*found, chip, self.settings.activation) if found is not None else (None, None)
            yield Shown(f, placed.source(f), before, after)

    def counted(self) -> dict[str, tuple[int, Census]]:
        """Line and census of each function that isn't cold, nor only a part of another."""
        out: dict[str, tuple[int, Census]] = {}
        if self.analysis is None:
            return out
        parts: set[str] = set()
        for name in self.names:
            graph = self.analysis.program.graph(name)
            if graph is None or graph.not_understood or graph.context.cold:
                continue
            parts.update(f.qualname for f in graph.frames[1:])
            moved = census(graph, self.settings, across=False)  # a helper's file has blocks of its own
            if moved is not None:
                out[name] = self.file.position(graph.source.start)[0], moved
        return {name: counted for name, counted in out.items() if name not in parts}


def _place(f: Finding) -> tuple[object, ...]:
    return f.code, f.line, f.column, f.end_line, f.end_column, f.function


def _functions(work: _Work, fixed: _Work) -> Iterator[Function]:
    after = fixed.counted()
    for name, (line, today) in work.counted().items():
        then = after[name][1] if name in after else None
        moved, launches = (0, 0) if then is None else (then.bytes, then.launches)
        ids = tuple(f.id for f in work.result.findings if f.function == name)
        typical = bool(today.typical)
        yield Function(work.file.path, name, line, today.bytes, today.launches, moved, launches, ids, typical)


def _sides(region: Region, known: Known, chip: chips.Chip, dtype: str) -> tuple[Side, Side]:
    sizes = region.bytes.sizes
    needed = work(region.before, sizes)
    formulas = (*region.formulas, needed.products, needed.rest)
    numbers = {name: n for name, (n, _) in sizes.numbers(sum(formulas, Expr.of(0)), known).items()}
    products, rest = (formula.substitute(numbers).value() or 0 for formula in (needed.products, needed.rest))
    least = chips.computing(products, rest, chip, dtype)
    rates = rates_of(chip.key, chip.bandwidth)

    def number(formula: Expr) -> float:
        return chips.held(formula.substitute(numbers).value() or 0)

    def side(kernels: Sequence[Kernel]) -> Side:
        launches = _launches(kernels, region, numbers)
        moved = sum(m.bytes for k in launches for m in (*k.reads, *k.writes))
        if rates is not None:
            seconds = region.seconds(kernels, number, chip, rates)
        else:
            seconds = max(least, chips.seconds(moved, len(launches), chip).estimate)
        return Side(launches, moved, products + rest, seconds)

    return side(region.before), side(region.after)


def _launches(kernels: Sequence[Kernel], region: Region, numbers: Mapping[str, int]) -> tuple[Launch, ...]:
    made: dict[object, int] = {}
    launches: list[Launch] = []
    for number, k in enumerate(kernels):
        reads = tuple(_moved(region, a, numbers, _name(a), made.get(a)) for a in k.reads)
        made.update(dict.fromkeys(k.writes, number))
        writes = tuple(_moved(region, a, numbers) for a in k.writes)
        launches.append(Launch(k.op, reads, writes))
    return tuple(launches)


def _moved(region: Region, array: Array, numbers: Mapping[str, int], name: str = "", made: int | None = None) -> Moved:
    formula = region.bytes.of(array)
    return Moved(name, formula.substitute(numbers).value() or 0, readable(formula), made)


def _name(array: object) -> str:
    """What the code calls an array that comes from outside the region."""
    node = getattr(array, "node", None)
    if node is None:
        return ""
    name = str(node.attrs.get("name", "")) if node.op in ("param", "attr", "global") else ""
    return f"self.{name}" if name and node.op == "attr" and not name.startswith("self.") else name
