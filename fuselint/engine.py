"""Paths -> findings, paths -> edits: files in order, a worker pool where it pays, rounds until nothing changes."""

from __future__ import annotations

import contextlib
import difflib
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fuselint.analysis import Proposal, analyse
from fuselint.cache import FOLDER as CACHE
from fuselint.config import Configuration, Settings
from fuselint.errors import FuselintError, Interrupted, UnreadableFile
from fuselint.finding import UNREADABLE, Edit, FileResult, Finding, Region, Related, Verification
from fuselint.graph.leftovers import taken_apart
from fuselint.package import Package
from fuselint.rulebook import OWN, UNUSED, NoFix, chosen_codes
from fuselint.source.edit import apply, compatible, guard, joined, merge
from fuselint.source.notebook import Notebook
from fuselint.source.notes import file_of, is_question
from fuselint.source.suppress import noqa
from fuselint.source.text import FileText, read, remove_left_over, write_atomic
from fuselint.unreadable import unreadable

__all__ = ["FileResult", "FixedFile", "add_noqa", "check_file", "check_paths", "each", "fix_paths", "fix_text"]

POOL_FROM = 100
"""Files. Below, starting workers costs more than they save."""

MOST_ROUNDS = 10
COLLECT_EVERY, ENOUGH = 2_000_000, 1_000_000
"""New objects after which garbage is looked for: during a file's analysis, and after it."""

ALL_AFTER = 16
"""Collections of new objects of which one looks through all others, too."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FixedFile:
    """A file before and after. applied: what was fixed; withheld: what failed verification or couldn't be verified.

    remaining: what the fixed file still holds.
    """

    path: str
    before: str
    after: str
    applied: tuple[Finding, ...]
    withheld: tuple[Finding, ...]
    remaining: FileResult

    @property
    def diff(self) -> str:
        return unified(self.path, self.before, self.after)


def check_file(file: FileText, settings: Settings) -> FileResult:
    """The findings of a text."""
    return localised(_propose((file, settings, Package()))[0], file)


def check_paths(
    paths: Sequence[str], configuration: Configuration, jobs: int | None = None, package: Package | None = None
) -> Iterator[FileResult]:
    """The findings of files, in their order. A file that can't be read costs one line, never the run.

    package: the other files of the packages, where someone asked about them already.
    """
    package = package or Package()
    settings = _settings(paths, configuration)
    yield from each(_check, [(path, s, package) for path, s in zip(paths, settings, strict=True)], jobs)


Judge = Callable[[Finding, Region | None], tuple[Finding, bool]]
"""The finding with what running its fix showed, and whether the fix stays."""


def fix_text(file: FileText, settings: Settings, verify: bool = False, judge: Judge | None = None) -> FixedFile:
    """The fixed text; nothing is written."""
    work = [_work(file, settings)]
    _rounds(work, verify, judge, jobs=1)
    return work[0].result()


def fix_paths(
    paths: Sequence[str],
    configuration: Configuration,
    write: bool = False,
    verify: bool = False,
    jobs: int | None = None,
    judge: Judge | None = None,
) -> list[FixedFile]:
    """Fix files, in rounds over all of them: a round's fixes don't touch, and are verified together.

    judge: has the last word on each fix that passed.
    """
    work = []
    for path, settings in zip(paths, _settings(paths, configuration), strict=True):
        try:
            work.append(_work(read(path), settings))
        except UnreadableFile as e:
            nothing = FileText(path, "")
            work.append(_Work(nothing, nothing, _unreadable(e, settings), settings, done=True))
    _rounds(work, verify, judge, jobs)
    if write:
        for folder in {os.path.dirname(os.path.realpath(w.file.path)) for w in work if w.now is not w.file}:
            remove_left_over(folder)
        try:
            for w in work:
                _write(w, verify, judge)
        except KeyboardInterrupt:
            raise Interrupted([w.file.path for w in work if w.is_on_disk()]) from None
    return [w.result() for w in work]


def _settings(paths: Sequence[str], configuration: Configuration) -> list[Settings]:
    """The settings of each file. A wrong selection is an error, also where there is nothing to check."""
    settings = [configuration.of(path) for path in paths]
    for distinct in {id(s): s for s in (configuration.of_folder("."), *settings)}.values():
        chosen_codes(distinct)
    return settings


def add_noqa(
    paths: Sequence[str], configuration: Configuration, reason: str = "", jobs: int | None = None
) -> tuple[dict[str, int], list[str]]:
    """Write a `# noqa` comment to each statement that holds a finding: how many by file, and what went wrong."""
    added: dict[str, int] = {}
    errors: list[str] = []
    try:
        for result in check_paths(paths, configuration, jobs):
            _silence(result, reason, added, errors)
    except KeyboardInterrupt:
        raise Interrupted(tuple(added)) from None
    return added, errors


def _silence(result: FileResult, reason: str, added: dict[str, int], errors: list[str]) -> None:
    errors += result.errors
    found = [f for f in result.findings if f.code not in OWN]
    if not found:
        return
    try:
        file = read(result.path)
        if any(f.cell for f in found):
            raise FuselintError(f"{result.path}: a notebook: silence its findings in its cells, or in a baseline")
        if file.text != result.text:
            raise FuselintError(f"{result.path}: changed on disk since it was read; nothing was written to it")
        wanted: dict[int, set[str]] = {}
        for f in found:
            wanted.setdefault(f.end_line, set()).add(f.code)
        edits = noqa(file, wanted, reason)
        write_atomic(file.path, file.encode(apply(file.text, edits)), expected=file.encode(file.text))
        added[file.path] = len(edits)
    except FuselintError as e:
        errors.append(str(e))


def unified(path: str, before: str, after: str) -> str:
    """A diff that `git apply` takes."""
    name = path.removeprefix("./").lstrip("/")
    old, new = (re.findall(r"[^\n]*\n|[^\n]+$", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, _quoted(f"a/{name}"), _quoted(f"b/{name}"))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _quoted(name: str) -> str:
    """A file's name as git writes it: one with a line end, a quote or other odd characters would spoil its line."""
    if not re.search(r'[\x00-\x1f\x7f"\\]', name):
        return name
    named = {"\n": "n", "\t": "t", "\r": "r", '"': '"', "\\": "\\"}
    shown = re.sub(r'[\x00-\x1f\x7f"\\]', lambda m: "\\" + named.get(m[0], f"{ord(m[0]):03o}"), name)
    return f'"{shown}"'


# -- one file ---------------------------------------------------------------------------------------------------------


def _check(task: tuple[str, Settings, Package]) -> FileResult:
    path, settings, package = task
    try:
        file = read(path)
    except UnreadableFile as e:
        return _unreadable(e, settings)
    return localised(_propose((file, settings, package))[0], file)


def localised(result: FileResult, file: FileText) -> FileResult:
    """The result with findings of a notebook placed in its cells; any other as it is."""
    if not isinstance(file, Notebook):
        return result
    findings, near = (tuple(placed(f, file) for f in found) for found in (result.findings, result.near_misses))
    shown = {f.cell for f in (*findings, *near)}
    cells = tuple((n, source) for n, source in file.cells().items() if n in shown)
    return replace(result, findings=findings, near_misses=near, cells=cells, text="")


def placed(f: Finding, file: FileText) -> Finding:
    """A finding of a notebook's joined text, in its cell."""
    if not isinstance(file, Notebook) or f.code == UNREADABLE:
        return f
    cell, line = file.locate(f.line)
    last, end_line = file.locate(f.end_line)
    related = tuple(_related(r, file) for r in f.related)
    return replace(f, cell=cell, line=line, end_line=end_line if last == cell else line, related=related)


def _related(r: Related, file: Notebook) -> Related:
    if r.path != file.path:
        return r
    cell, line = file.locate(r.line)
    return Related(f"{r.path}:cell {cell}", line, r.message)


def _propose(task: tuple[FileText, Settings, Package]) -> tuple[FileResult, list[Proposal]]:
    file, settings, package = task
    try:
        with _garbage.seldom(), taken_apart():
            is_read = _always if isinstance(file, Notebook) else package.others_read(file.path)
            return analyse(file, settings, is_read, package.modules())
    except UnreadableFile as e:
        return _unreadable(e, settings, file.text), []
    except (RecursionError, MemoryError):
        return _unreadable(UnreadableFile(file.path, "is nested too deeply to be analysed"), settings, file.text), []


def _always(name: str) -> bool:
    """Whoever works in a notebook may read any name of it."""
    return True


class _Garbage:
    """When garbage is looked for.

    Nearly all that an analysis makes stays until its end, and is garbage then: to look for it in between is waste. Of
    what is older, such as all that was imported, hardly anything is garbage: it is looked through now and then.
    """

    def __init__(self) -> None:
        self.young = 0  # collections of new objects since the last of all

    @contextlib.contextmanager
    def seldom(self) -> Iterator[None]:
        """Hardly any collections meanwhile, and one after it where enough was made."""
        before = gc.get_threshold()
        gc.set_threshold(COLLECT_EVERY, *before[1:])
        try:
            yield
        finally:
            if gc.get_count()[0] > ENOUGH:
                self.young += 1
                gc.collect(2 if self.young % ALL_AFTER == 0 else 1)
            gc.set_threshold(*before)


_garbage = _Garbage()


def _unreadable(e: UnreadableFile, settings: Settings, text: str = "") -> FileResult:
    return FileResult(e.path, (unreadable(e),) if UNREADABLE in chosen_codes(settings, e.path) else (), text=text)


def each(call: Callable[[T], R], tasks: Sequence[T], jobs: int | None) -> Iterator[R]:
    """The results in order; by worker processes where there are many tasks."""
    workers = min(jobs or (_cpus() if len(tasks) > POOL_FROM else 1), max(1, len(tasks)))
    if workers == 1:
        yield from map(call, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers, initializer=_dies_quietly) as pool:
        try:
            yield from pool.map(call, tasks, chunksize=max(1, min(8, len(tasks) // (4 * workers))))
        except KeyboardInterrupt:
            threading.excepthook = _nothing  # the pool's thread trips over futures that are cancelled and broken
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _nothing(_: object) -> None:
    """The process is about to end."""


def _dies_quietly() -> None:
    """Ctrl-C reaches workers too: their traces would hide what the command says."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- rounds -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Work:
    """A file being fixed: `now` changes from round to round, `file` is as it was read. seen: the round of `latest`."""

    file: FileText
    now: FileText
    latest: FileResult
    settings: Settings
    done: bool = False
    seen: int = 0
    applied: list[Finding] = field(default_factory=list)
    withheld: dict[str, Finding] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def is_on_disk(self) -> bool:
        """Whether the changed text was written."""
        try:
            return self.now.text != self.file.text and read(self.file.path).text == self.now.text
        except UnreadableFile:
            return False

    def result(self) -> FixedFile:
        remaining = localised(replace(self.latest, errors=(*self.latest.errors, *self.errors)), self.now)
        before, after = self.file.text, self.now.text
        if isinstance(self.file, Notebook):
            before, after = (self.file.encode(text).decode("utf-8", "surrogatepass") for text in (before, after))
        return FixedFile(self.file.path, before, after, tuple(self.applied), tuple(self.withheld.values()), remaining)


def _work(file: FileText, settings: Settings) -> _Work:
    return _Work(file, file, FileResult(file.path), settings)


def _rounds(work: Sequence[_Work], verify: bool, judge: Judge | None, jobs: int | None) -> None:
    changed: dict[str, int] = {}  # files by the round that changed them last
    for number in range(MOST_ROUNDS):
        busy = [w for w in work if not w.done] or _overtaken(work, changed)
        if not busy:
            return
        chosen = _round(busy, work, jobs)
        for w, proposals in zip(busy, _verified(busy, chosen) if verify else chosen, strict=True):
            before, w.seen = w.now, number
            _make(w, proposals if judge is None else _judged(w, proposals, judge))
            if w.now.text != before.text:
                changed[os.path.abspath(w.file.path)] = number
    _round([w for w in work if not w.done], work, jobs)
    for w in work:
        if not w.done:
            w.errors.append(f"{w.file.path}: still changing after {MOST_ROUNDS} rounds; fix it again")


def _overtaken(work: Sequence[_Work], changed: Mapping[str, int]) -> list[_Work]:
    """Files whose analysis read another file as it was before its last change."""
    return [w for w in work if any(changed.get(f, -1) >= w.seen for f in _files_read(w.latest))] if changed else []


def _files_read(result: FileResult) -> set[str]:
    """The other files that a result read anything of, itself."""
    notes = [note for note, _ in result.reads if not is_question(note)]
    return {file for file in map(file_of, notes) if file is not None}


def _round(busy: Sequence[_Work], work: Sequence[_Work], jobs: int | None) -> list[list[Proposal]]:
    """Analyse what may still change, and choose the fixes of this round for each file."""
    package = Package({os.path.abspath(w.file.path): w.now.text for w in work if w.now is not w.file})
    out = []
    for w, (result, proposals) in zip(
        busy, each(_propose, [(w.now, w.settings, package) for w in busy], jobs), strict=True
    ):
        w.latest = result
        chosen = choose([p for p in proposals if p.finding.id not in w.withheld], w.settings)
        w.done = not chosen
        out.append(chosen)
    return _apart(busy, out)


def _apart(busy: Sequence[_Work], chosen: Sequence[Sequence[Proposal]]) -> list[list[Proposal]]:
    """Without fixes that rest on a file which an unsafe fix of the same round may change: they wait for the next."""
    changed, trusted, out = set[str](), set[str](), []
    for w, proposals in zip(busy, chosen, strict=True):
        kept, path = [], os.path.abspath(w.file.path)
        for p in proposals:
            unsafe = p.finding.fix is not None and p.finding.fix.applicability == "unsafe"
            if p.rests_on.isdisjoint(changed) and not (unsafe and path in trusted):
                kept.append(p)
                trusted |= p.rests_on
                changed |= {path} if unsafe else set()
        out.append(kept)
    return out


def choose(proposals: Sequence[Proposal], settings: Settings) -> list[Proposal]:
    """The fixes to make in one round: allowed, none touching another, the largest saving first.

    Of fixes that leave a statement to each other one is made: the last one to be made takes it away.
    """

    def rank(p: Proposal) -> tuple[int, int]:
        t = p.finding.traffic
        return -(t.saved_at or 0) * (t.calls or 1) if t else 0, p.finding.line

    chosen: list[Proposal] = []
    edits: tuple[Edit, ...] = ()
    kept: frozenset[tuple[int, int]] = frozenset()
    for p in sorted((p for p in proposals if is_allowed(p.finding, settings)), key=rank):
        fix = p.finding.fix
        if fix and compatible(edits, fix.edits) and not kept & p.kept:
            chosen.append(p)
            edits = merge(edits, fix.edits)
            kept |= p.kept
    return chosen


def is_allowed(finding: Finding, settings: Settings) -> bool:
    fix = finding.fix
    if fix is None or not fix.edits or fix.requires:
        return False
    if settings.exact and fix.numerics != "bit-identical":
        return False
    return fix.applicability == "safe" or (fix.applicability == "unsafe" and settings.unsafe_fixes)


def _verified(busy: Sequence[_Work], chosen: Sequence[Sequence[Proposal]]) -> list[list[Proposal]]:
    """Without the fixes that compute something else than the code they replace. The others say what running showed."""
    from fuselint.verify import verify

    flat = [(w, p) for w, proposals in zip(busy, chosen, strict=True) for p in proposals]
    regions = [p.region for _, p in flat if p.region is not None]
    outcomes = iter(verify(regions, cache=CACHE if all(w.settings.cache for w in busy) else None))
    kept: dict[int, list[Proposal]] = {id(w): [] for w in busy}
    for w, p in flat:
        if p.finding.code == UNUSED:  # a comment: there is nothing to run
            kept[id(w)].append(p)
            continue
        outcome = next(outcomes) if p.region else Verification("not verifiable", "its region can't be run by itself")
        assert p.finding.fix is not None
        finding = replace(p.finding, fix=replace(p.finding.fix, verification=outcome))
        if outcome.outcome == "failed":
            w.withheld[finding.id] = placed(finding, w.now)
        else:
            kept[id(w)].append(replace(p, finding=finding))
    return [kept[id(w)] for w in busy]


def _judged(w: _Work, proposals: Sequence[Proposal], judge: Judge) -> list[Proposal]:
    """Without the fixes that the judge withholds."""
    kept = []
    for p in proposals:
        finding, stays = (p.finding, True) if p.finding.code == UNUSED else judge(p.finding, p.region)
        if stays:
            kept.append(replace(p, finding=finding))
        else:
            w.withheld[finding.id] = finding
    return kept


def _make(w: _Work, proposals: Sequence[Proposal]) -> None:
    """Carry a round's fixes out.

    Where the guard refuses them together, they are added one by one: what it refuses beside the others waits for the
    next round, what it refuses alone is dropped, and its rule named.
    """
    text = _guarded(w.now, proposals)
    if isinstance(text, NoFix):
        good: list[Proposal] = []
        for p in proposals:
            if not isinstance(_guarded(w.now, [*good, p]), NoFix):
                good.append(p)
                continue
            alone = _guarded(w.now, [p])
            if isinstance(alone, NoFix):
                f = p.finding
                w.withheld[f.id] = placed(f, w.now)
                w.errors.append(
                    f"{f.path}:{f.line}: the fix of {f.code} was dropped: {alone.reason}; please report this"
                )
        proposals = good
        text = _guarded(w.now, good)
        assert isinstance(text, str)
    before, w.now = w.now, replace(w.now, text=text)
    w.applied += [placed(p.finding, before) for p in proposals]


def _guarded(file: FileText, proposals: Sequence[Proposal]) -> str | NoFix:
    """The text with these fixes made, or why it must not be written."""
    text = file.text
    if not proposals:
        return text
    edits: tuple[Edit, ...] = ()
    for p in proposals:
        assert p.finding.fix is not None
        edits = merge(edits, p.finding.fix.edits)
    edits = joined(edits)
    made = apply(text, edits)
    refused = guard(text, made, edits, [span for p in proposals for span in p.statements])
    problem = "" if refused else file.problem(made)
    return refused or (NoFix(problem) if problem else made)


def _write(w: _Work, verify: bool, judge: Judge | None) -> None:
    """Write a changed file in one step. Where it was edited since it was read, it is read and fixed again."""
    for _ in range(MOST_ROUNDS):
        if w.now.text == w.file.text:
            return
        try:
            write_atomic(w.file.path, w.now.encode(w.now.text), expected=w.file.encode(w.file.text))
            return
        except FuselintError as e:
            try:
                again = read(w.file.path)
            except UnreadableFile:
                again = w.file
            if again.text == w.file.text:
                w.errors.append(str(e))
                w.now, w.applied = w.file, []
                return
            fresh = _work(again, w.settings)
            _rounds([fresh], verify, judge, jobs=1)
            w.file, w.now, w.latest, w.done = fresh.file, fresh.now, fresh.latest, fresh.done
            w.applied, w.withheld, w.errors = fresh.applied, fresh.withheld, fresh.errors
    w.errors.append(f"{w.file.path}: keeps changing on disk; nothing was written to it")
    w.now, w.applied = w.file, []
