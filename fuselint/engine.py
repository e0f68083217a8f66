"""Paths -> findings, paths -> edits: files in order, a worker pool where it pays, rounds until nothing changes."""

from __future__ import annotations

import contextlib
import difflib
import gc
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fuselint.analysis import FileResult, Proposal, analyse, chosen_codes
from fuselint.config import Settings
from fuselint.errors import FuselintError, UnreadableFile
from fuselint.finding import Edit, Finding, Region, Verification
from fuselint.package import Package
from fuselint.rulebook import UNREADABLE, UNUSED, NoFix
from fuselint.source.edit import apply, compatible, guard, joined, merge
from fuselint.source.text import FileText, read, write_atomic
from fuselint.unreadable import unreadable

__all__ = ["FileResult", "FixedFile", "check_file", "check_paths", "each", "fix_paths", "fix_text"]

POOL_FROM = 100
"""Files. Below, starting workers costs more than they save."""

MOST_ROUNDS = 10
COLLECT_EVERY = 100_000
CACHE = ".fuselint_cache"

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
    return _propose((file, settings, Package()))[0]


def check_paths(paths: Sequence[str], settings: Settings, jobs: int | None = None) -> Iterator[FileResult]:
    """The findings of files, in their order. A file that can't be read costs one line, never the run."""
    chosen_codes(settings)  # a wrong selection is an error, also where there is nothing to check
    package = Package()
    yield from each(_check, [(path, settings, package) for path in paths], jobs)


Judge = Callable[[Finding, Region | None], tuple[Finding, bool]]
"""The finding with what running its fix showed, and whether the fix stays."""


def fix_text(file: FileText, settings: Settings, verify: bool = False, judge: Judge | None = None) -> FixedFile:
    """The fixed text; nothing is written."""
    work = [_work(file)]
    _rounds(work, settings, verify, judge, jobs=1)
    return work[0].result()


def fix_paths(
    paths: Sequence[str],
    settings: Settings,
    write: bool = False,
    verify: bool = False,
    jobs: int | None = None,
    judge: Judge | None = None,
) -> list[FixedFile]:
    """Fix files, in rounds over all of them: a round's fixes don't touch, and are verified together.

    judge: has the last word on each fix that passed.
    """
    chosen_codes(settings)
    work = []
    for path in paths:
        try:
            work.append(_work(read(path)))
        except UnreadableFile as e:
            nothing = FileText(path, "")
            work.append(_Work(nothing, nothing, _unreadable(e, settings), done=True))
    _rounds(work, settings, verify, judge, jobs)
    if write:
        for w in work:
            _write(w, settings, verify, judge)
    return [w.result() for w in work]


def unified(path: str, before: str, after: str) -> str:
    """A diff that `git apply` takes."""
    name = path.removeprefix("./").lstrip("/")
    old, new = (re.findall(r"[^\n]*\n|[^\n]+$", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


# -- one file ---------------------------------------------------------------------------------------------------------


def _check(task: tuple[str, Settings, Package]) -> FileResult:
    path, settings, package = task
    try:
        file = read(path)
    except UnreadableFile as e:
        return _unreadable(e, settings)
    return _propose((file, settings, package))[0]


def _propose(task: tuple[FileText, Settings, Package]) -> tuple[FileResult, list[Proposal]]:
    file, settings, package = task
    try:
        with _few_collections():
            return analyse(file, settings, package.others_read(file.path), package.modules())
    except UnreadableFile as e:
        return _unreadable(e, settings, file.text), []
    except (RecursionError, MemoryError):
        return _unreadable(UnreadableFile(file.path, "is nested too deeply to be analysed"), settings, file.text), []


@contextlib.contextmanager
def _few_collections() -> Iterator[None]:
    """Most of what an analysis makes stays until its end: to look for garbage after every 700 objects is waste."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _unreadable(e: UnreadableFile, settings: Settings, text: str = "") -> FileResult:
    return FileResult(e.path, (unreadable(e),) if UNREADABLE in chosen_codes(settings) else (), text=text)


def each(call: Callable[[T], R], tasks: Sequence[T], jobs: int | None) -> Iterator[R]:
    """The results in order; by worker processes where there are many tasks."""
    workers = min(jobs or (_cpus() if len(tasks) > POOL_FROM else 1), max(1, len(tasks)))
    if workers == 1:
        yield from map(call, tasks)
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(call, tasks, chunksize=max(1, min(8, len(tasks) // (4 * workers))))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- rounds -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Work:
    """A file being fixed: `now` changes from round to round, `file` is as it was read."""

    file: FileText
    now: FileText
    latest: FileResult
    done: bool = False
    applied: list[Finding] = field(default_factory=list)
    withheld: dict[str, Finding] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def result(self) -> FixedFile:
        remaining = replace(self.latest, errors=(*self.latest.errors, *self.errors))
        withheld = tuple(self.withheld.values())
        return FixedFile(self.file.path, self.file.text, self.now.text, tuple(self.applied), withheld, remaining)


def _work(file: FileText) -> _Work:
    return _Work(file, file, FileResult(file.path))


def _rounds(work: Sequence[_Work], settings: Settings, verify: bool, judge: Judge | None, jobs: int | None) -> None:
    for _ in range(MOST_ROUNDS):
        busy = [w for w in work if not w.done]
        if not busy:
            return
        chosen = _round(busy, work, settings, jobs)
        for w, proposals in zip(busy, _verified(busy, chosen, settings) if verify else chosen, strict=True):
            _make(w, proposals if judge is None else _judged(w, proposals, judge))
    _round([w for w in work if not w.done], work, settings, jobs)
    for w in work:
        if not w.done:
            w.errors.append(f"{w.file.path}: still changing after {MOST_ROUNDS} rounds; fix it again")


def _round(busy: Sequence[_Work], work: Sequence[_Work], settings: Settings, jobs: int | None) -> list[list[Proposal]]:
    """Analyse what may still change, and choose the fixes of this round for each file."""
    package = Package({os.path.abspath(w.file.path): w.now.text for w in work if w.now is not w.file})
    out = []
    for w, (result, proposals) in zip(
        busy, each(_propose, [(w.now, settings, package) for w in busy], jobs), strict=True
    ):
        w.latest = result
        chosen = choose([p for p in proposals if p.finding.id not in w.withheld], settings)
        w.done = not chosen
        out.append(chosen)
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


def _verified(busy: Sequence[_Work], chosen: Sequence[Sequence[Proposal]], settings: Settings) -> list[list[Proposal]]:
    """Without the fixes that compute something else than the code they replace. The others say what running showed."""
    from fuselint.verify import verify

    flat = [(w, p) for w, proposals in zip(busy, chosen, strict=True) for p in proposals]
    regions = [p.region for _, p in flat if p.region is not None]
    outcomes = iter(verify(regions, cache=CACHE if settings.cache else None))
    kept: dict[int, list[Proposal]] = {id(w): [] for w in busy}
    for w, p in flat:
        if p.finding.code == UNUSED:  # a comment: there is nothing to run
            kept[id(w)].append(p)
            continue
        outcome = next(outcomes) if p.region else Verification("not verifiable", "its region can't be run by itself")
        assert p.finding.fix is not None
        finding = replace(p.finding, fix=replace(p.finding.fix, verification=outcome))
        if outcome.outcome == "failed":
            w.withheld[finding.id] = finding
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
    text = _guarded(w.now.text, proposals)
    if isinstance(text, NoFix):
        good: list[Proposal] = []
        for p in proposals:
            if not isinstance(_guarded(w.now.text, [*good, p]), NoFix):
                good.append(p)
                continue
            alone = _guarded(w.now.text, [p])
            if isinstance(alone, NoFix):
                f = p.finding
                w.withheld[f.id] = f
                w.errors.append(
                    f"{f.path}:{f.line}: the fix of {f.code} was dropped: {alone.reason}; please report this"
                )
        proposals = good
        text = _guarded(w.now.text, good)
        assert isinstance(text, str)
    w.now = replace(w.now, text=text)
    w.applied += [p.finding for p in proposals]


def _guarded(text: str, proposals: Sequence[Proposal]) -> str | NoFix:
    """The text with these fixes made, or why it must not be written."""
    if not proposals:
        return text
    edits: tuple[Edit, ...] = ()
    for p in proposals:
        assert p.finding.fix is not None
        edits = merge(edits, p.finding.fix.edits)
    edits = joined(edits)
    made = apply(text, edits)
    return guard(text, made, edits, [span for p in proposals for span in p.statements]) or made


def _write(w: _Work, settings: Settings, verify: bool, judge: Judge | None) -> None:
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
            fresh = _work(again)
            _rounds([fresh], settings, verify, judge, jobs=1)
            w.file, w.now, w.latest, w.done = fresh.file, fresh.now, fresh.latest, fresh.done
            w.applied, w.withheld, w.errors = fresh.applied, fresh.withheld, fresh.errors
    w.errors.append(f"{w.file.path}: keeps changing on disk; nothing was written to it")
    w.now, w.applied = w.file, []
