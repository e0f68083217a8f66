"""The commands: options in, one engine call, one reporter out. Imports nothing heavy.

Findings go to stdout, everything else to stderr. Exit codes: 0 nothing found, 1 findings (or a diff), 2 an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuselint import __version__
from fuselint.config import (
    DEFAULT_CHIP,
    DTYPES,
    LONG_DTYPES,
    PHASES,
    Settings,
    byte_size,
    chip_name,
    dtype_name,
    find_file,
    load,
    mlx_version,
    nearest,
    phase_name,
    shape_entries,
)
from fuselint.errors import ConfigError, FuselintError
from fuselint.modelconfig import load as load_model_config
from fuselint.recorded import find as find_facts
from fuselint.recorded import loaded

if TYPE_CHECKING:
    from fuselint.engine import FileResult
    from fuselint.finding import Finding
    from fuselint.tuning import Tuner

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("full", "concise", "json")


class Commands(click.Group):
    """A group that turns our errors into one line and exit code 2, and knows what a wrong name may have meant."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            raise FuselintError(f'no command "{args[0]}"{nearest(args[0], self.commands)}')
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except FuselintError as e:
            _say(f"fuselint: {e}")
            ctx.exit(2)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="fuselint %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find unfused work in MLX code, count the bytes it moves, rewrite it, and prove the rewrite."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply


facts_options = _options(
    click.option("--shape", multiple=True, metavar="NAME=N", help="A size: symbol=n or function.symbol=n. Repeatable."),
    click.option("--dtype", metavar="NAME", help=f"Of activations: {', '.join(DTYPES)} (or {', '.join(LONG_DTYPES)})."),
    click.option("--phase", metavar="NAME", help=f"What the model is doing: {', '.join(PHASES)} [prefill]."),
    click.option("--model-config", metavar="FILE", help="A config.json, or a family such as llama-3-8b."),
    click.option("--chip", metavar="NAME", help=f"Of times, such as m4-pro or h200 [this machine, or {DEFAULT_CHIP}]."),
    click.option("--target-mlx", metavar="VERSION", help="The MLX that the code runs on, such as 0.30.5 [the newest]."),
    click.option("--facts", type=click.Path(dir_okay=False), help="Of `record` [the nearest .fuselint/facts.json]."),
    click.option("--no-facts", is_flag=True, help="Believe no recorded run."),
    click.option("--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A pyproject.toml."),
    click.option("--isolated", is_flag=True, help="Read no configuration file."),
)

shared_options = _options(
    click.argument("paths", nargs=-1, type=click.Path()),
    click.option("--select", multiple=True, metavar="RULES", help="Only these: codes, prefixes, names, ALL."),
    click.option("--ignore", multiple=True, metavar="RULES", help="Not these."),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip what this .gitignore pattern covers."),
    click.option("--force-exclude", is_flag=True, help="Excludes cover files named on the command line too."),
    click.option("--output-format", type=click.Choice(FORMATS), default="full", show_default=True),
    click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout."),
    facts_options,
    click.option("--min-kernels", type=click.IntRange(2), help="The shortest elementwise chain to report [3]."),
    click.option("--min-saving", metavar="BYTES", help="Hide findings known to save less, such as 1MB."),
    click.option("--near-misses", is_flag=True, default=None, help="Also show what was nearly reported, and why not."),
    click.option("--stdin-filename", metavar="PATH", help="The name of what is read from stdin (path `-`)."),
    click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes [as many as it pays]."),
    click.option("--no-cache", is_flag=True, help="Neither read nor write a cache."),
    click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True),
    click.option("--statistics", is_flag=True, help="A count and the bytes by rule, instead of the findings."),
    click.option("--exit-zero", is_flag=True, help="Exit 0 although something was found."),
    click.option("-q", "--quiet", is_flag=True, help="No closing line."),
    click.option("-v", "--verbose", is_flag=True, help="Every function that was not understood, and every trace."),
)


@main.command()
@shared_options
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:
    """Report what could be fused in PATHS (default: the current folder).

    Exit code: 0 nothing found, 1 findings, 2 an error.
    """
    from fuselint.engine import check_file, check_paths
    from fuselint.report import summary

    settings = _settings(options)
    stdin = _stdin(options)
    if stdin is not None:
        results = [check_file(stdin, settings)]
    else:
        results = list(check_paths(_files(options, settings), settings, options["jobs"]))
    findings = [f for r in results for f in r.findings]
    if settings.model_config is not None:
        findings.sort(key=summary.by_saving)
    elif settings.facts:
        findings.sort(key=summary.by_calls)
    _report(findings, results, options)
    _errors(results, options["verbose"])
    if not options["quiet"]:
        for line in (*summary.models(results, settings), summary.closing(results)):
            _say(line)
    ctx.exit(_exit_code(results, findings, options["exit_zero"]))


@main.command()
@shared_options
@click.option("--apply", is_flag=True, help="Write the files, instead of printing the diff.")
@click.option("--diff", is_flag=True, help="Print the diff, also with --apply.")
@click.option("--unsafe-fixes", is_flag=True, default=None, help="Also fixes with something unproven.")
@click.option("--exact", is_flag=True, default=None, help="Only fixes that change no bit of any result.")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Run each fix before and after, and withhold what differs [with --apply, where mlx imports].",
)
@click.option("--measure", is_flag=True, help="Time each fix on this machine's GPU, and withhold what isn't faster.")
@click.pass_context
def fix(ctx: click.Context, /, **options: Any) -> None:
    """Print the diff that fuses what can be fused in PATHS, or write it with --apply.

    Exit code: 0 nothing to do, 1 a diff, or with --apply findings that remain, 2 an error.
    """
    from fuselint.engine import fix_paths, fix_text
    from fuselint.report import summary

    settings = _settings(options)
    verify = _verify(options)
    tuner = _tuner(settings, options["measure"])
    stdin = _stdin(options)
    if stdin is not None:
        fixed = [fix_text(stdin, settings, verify, tuner)]
    else:
        files = _files(options, settings)
        fixed = fix_paths(files, settings, options["apply"], verify, options["jobs"], tuner)
    results = [f.remaining for f in fixed]
    findings = [f for r in results for f in r.findings]
    diff = "".join(f.diff for f in fixed)
    if stdin is not None and not options["diff"]:
        _write(fixed[0].after, options["output_file"])
    elif options["diff"] or not options["apply"]:
        _write(_colored(diff, options), options["output_file"])
    else:
        _report(findings, results, options)
    for line in (*summary.unverified(fixed), *(summary.timed(tuner.tried) if tuner else ())):
        _say(line)
    _errors(results, options["verbose"])
    if not options["quiet"]:
        _say(summary.fix_closing(fixed, written=options["apply"] and stdin is None))
    if options["apply"]:
        ctx.exit(_exit_code(results, findings, options["exit_zero"]))
    failed = any(r.errors for r in results)
    ctx.exit(2 if failed else 1 if diff and not options["exit_zero"] else 0)


@main.command()
@click.argument("code", required=False)
@click.option("--all", "everything", is_flag=True, help="Every rule.")
@click.option("--format", "form", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
def rule(code: str | None, everything: bool, form: str) -> None:
    """Print the page of the rule CODE (or its name); without one, list the rules."""
    from fuselint.report import pages
    from fuselint.rulebook import documented, selectors

    if code is None and not everything:
        click.echo(pages.listing(documented()), nl=False)
        return
    chosen = documented() if code is None else [r for r in documented() if r.code in selectors([code], "rule")]
    click.echo(pages.render(chosen, form), nl=False)


@main.command()
@click.argument("place", metavar="FILE:LINE")
@facts_options
def explain(place: str, **options: Any) -> None:
    """Show what is known at a place: the function's graph, facts, canonical form, kernels and obligations."""
    from fuselint.explain import explain as explained

    path, colon, line = place.rpartition(":")
    if not colon or not line.isdecimal():
        raise ConfigError(f"explain: expected FILE:LINE, such as model.py:12, not {place!r}")
    click.echo(explained(path, int(line), _settings(options)), nl=False)


@main.command()
@click.argument("target", metavar="MODULE:CALLABLE")
@click.option("--init", default="", metavar="ARGS", help="Arguments that build a class, such as 'dims=4096, eps=1e-5'.")
@click.option(
    "--input", "inputs", multiple=True, metavar="[NAME=]VALUE", help="x=f16[1,2048,4096], or a Python expression."
)
@click.option("--inputs", "factory", default="", metavar="MODULE:FUNCTION", help="A function that returns the inputs.")
@click.option("--backend", type=click.Choice(["metal", "cuda", "cpu"]), default="metal", show_default=True)
@click.option("--fixes/--no-fixes", default=True, help="Trace the fixed code too [yes].")
@click.option("--unsafe-fixes", is_flag=True, default=None, help="Fixed with what isn't proven, too.")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="The whole traceback where the traced code fails.")
@facts_options
def trace(target: str, **options: Any) -> None:
    """Count what a call launches: every kernel of MODULE:CALLABLE with its bytes, by source line.

    This runs your code, in a child process, with nothing evaluated: weights and inputs take no memory. MODULE is a
    dotted name or a .py file; CALLABLE a function, an instance, a method, or a class, which --init builds. Expressions
    see the module's names, and what is traced as `target`. --dtype is what floating weights are cast to.
    """
    from fuselint.config import LONG_DTYPES
    from fuselint.report.trace import render
    from fuselint.trace.model import Request
    from fuselint.trace.process import TraceFailed
    from fuselint.trace.survey import survey

    settings = _settings(options)
    long = {short: name for name, short in LONG_DTYPES.items()}
    request = Request(
        target=target,
        init=options["init"],
        inputs=options["inputs"],
        factory=options["factory"],
        sizes=dict(settings.shape),
        dtype=long[settings.dtype] if options["dtype"] else "",
        backend=options["backend"],
    )
    try:
        report = survey(request, settings, options["fixes"])
    except TraceFailed as e:
        if options["verbose"] and e.detail:
            _say(e.detail.rstrip())
        raise
    text = render(report, options["output_format"], _color(options) and options["output_file"] is None)
    _write(text, options["output_file"])


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--apply", is_flag=True, help="Write the fixes that are the fastest.")
@click.option("--select", multiple=True, metavar="RULES", help="Only these: codes, prefixes, names, ALL.")
@click.option("--ignore", multiple=True, metavar="RULES", help="Not these.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip what this .gitignore pattern covers.")
@click.option("--force-exclude", is_flag=True, help="Excludes cover files named on the command line too.")
@click.option("--unsafe-fixes", is_flag=True, default=None, help="Also fixes with something unproven.")
@click.option("--output-format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
@facts_options
def tune(**options: Any) -> None:
    """Time every way to write what could be fused in PATHS on this machine's GPU, and keep the fastest.

    Tried are the code as it is and its fix, each compiled or not, shapeless or not, and a weight that is dequantized
    once; each must give the same result. Only what `fuselint fix` writes can be kept: the rest is told.
    """
    from fuselint.engine import fix_paths
    from fuselint.report.tuning import render
    from fuselint.tuning import Tuner
    from fuselint.verify.measure import NO_CPU, gpu

    settings = _settings(options)
    if not gpu():
        raise FuselintError(f"tune: {NO_CPU}")
    tuner = Tuner(settings, every=True)
    fixed = fix_paths(_files(options, settings), settings, write=options["apply"], verify=True, judge=tuner)
    _errors([f.remaining for f in fixed], verbose=False)
    _write(render(tuner.tried, options["form"]), options["output_file"])


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--path", "paths", multiple=True, type=click.Path(), help="Watch functions below this [.]. Repeatable.")
@click.option("-q", "--quiet", is_flag=True, help="No closing line.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def record(ctx: click.Context, /, paths: tuple[str, ...], quiet: bool, command: tuple[str, ...]) -> None:
    """Run COMMAND, such as `-- python generate.py`, and note what its functions are called with.

    Shapes, dtypes and counts of calls go to .fuselint/facts.json of the current folder, where check, fix and verify
    find them. Exit code: that of COMMAND; 2 where nothing could be recorded.
    """
    from fuselint.record.process import record as recorded
    from fuselint.report import plural

    found = recorded(command, paths or (".",), Path.cwd())
    if found.path is None:
        raise FuselintError(f"record: nothing of {', '.join(paths or ('.',))} ran in a Python process of {command[0]}")
    if not quiet:
        what = (
            f"{plural(found.calls, 'call')} of {plural(found.functions, 'function')} in {plural(found.files, 'file')}"
        )
        _say(f"{what}; written to {os.path.relpath(found.path)}")
    ctx.exit(found.code)


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--entry", metavar="MODULE:CALLABLE", help="What is called in both versions.")
@click.option("--init", default="", metavar="ARGS", help="Arguments that build a class, such as 'dims=4096, eps=1e-5'.")
@click.option("--inputs", "factory", default="", metavar="MODULE:FUNCTION", help="A function that returns the inputs.")
@click.option("--only", multiple=True, metavar="VALUE", help="Compare this part, such as 'result[0]'. Repeatable.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), help="Where both run [MLX's default].")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--tolerance", type=click.FloatRange(0), help="Largest relative difference [what rounding explains].")
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=600.0, show_default=True, metavar="SECONDS")
@click.option("--select", multiple=True, metavar="RULES", help="Only these: codes, prefixes, names, ALL.")
@click.option("--ignore", multiple=True, metavar="RULES", help="Not these.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip what this .gitignore pattern covers.")
@click.option("--force-exclude", is_flag=True, help="Excludes cover files named on the command line too.")
@click.option("--no-cache", is_flag=True, help="Neither read nor write a cache.")
@click.option("--measure", is_flag=True, help="Time each fix, on a GPU.")
@click.option("--report", "form", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
@click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No closing line.")
@click.option("-v", "--verbose", is_flag=True, help="The whole traceback where the code fails.")
@facts_options
@click.pass_context
def verify(ctx: click.Context, /, **options: Any) -> None:
    """Prove rewrites by running both versions.

    With --entry, PATHS are two: BEFORE and AFTER, folders, packages or files that MODULE is imported from. This runs
    your code, in a child process each, with the same seed, weights and inputs, and compares results leaf by leaf.

    Without, each fix in PATHS, safe or not, is run before and after on made-up inputs; nothing is written, and of your
    code only the fixed expressions run.

    Exit code: 0 the same, 1 different, 2 an error.
    """
    if options["entry"] is None:
        _verify_fixes(ctx, options)
    elif len(options["paths"]) != 2:
        raise ConfigError("verify: --entry takes two versions: fuselint verify BEFORE AFTER --entry MODULE:CALLABLE")
    else:
        _verify_versions(ctx, options)


def _verify_fixes(ctx: click.Context, options: dict[str, Any]) -> None:
    from fuselint.engine import fix_paths
    from fuselint.report.proof import closing, render

    settings = replace(_settings(options), unsafe_fixes=True)
    _need_mlx("verify")
    tuner = _tuner(settings, options["measure"])
    files = fix_paths(_files(options, settings), settings, verify=True, judge=tuner)
    found = [f for file in files for f in (*file.applied, *file.withheld)]
    _errors([f.remaining for f in files], options["verbose"])
    _write(render(found, options["form"]), options["output_file"])
    if not options["quiet"]:
        _say(closing(found))
    failed = any(f.fix and f.fix.verification and f.fix.verification.outcome == "failed" for f in found)
    ctx.exit(2 if any(f.remaining.errors for f in files) else 1 if failed else 0)


def _verify_versions(ctx: click.Context, options: dict[str, Any]) -> None:
    from fuselint.report.verify import render
    from fuselint.verify.whole.model import Question
    from fuselint.verify.whole.process import VerifyFailed, verify_whole

    long = {short: name for name, short in LONG_DTYPES.items()}
    before, after = options["paths"]
    question = Question(
        before=before,
        after=after,
        entry=options["entry"],
        init=options["init"],
        factory=options["factory"],
        dtype=long[dtype_name(options["dtype"], "--dtype")] if options["dtype"] else "",
        device=options["device"] or "",
        seed=options["seed"],
        seconds=options["timeout"],
        only=options["only"],
        tolerance=options["tolerance"],
    )
    try:
        found = verify_whole(question)
    except VerifyFailed as e:
        if options["verbose"] and e.detail:
            _say(e.detail.rstrip())
        raise
    _write(render(found, options["form"]), options["output_file"])
    ctx.exit(0 if found.same else 1)


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--check", "checks", is_flag=True, help="Write nothing; exit 1 where a function was raised.")
@click.option("--update", is_flag=True, help="With --check: write what isn't raised.")
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="The budget [.fuselint-budget.json].")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip what this .gitignore pattern covers.")
@click.option("--force-exclude", is_flag=True, help="Excludes cover files named on the command line too.")
@click.option("--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes [as many as it pays].")
@click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="No closing line.")
@facts_options
@click.pass_context
def budget(ctx: click.Context, /, **options: Any) -> None:
    """Write what each function in PATHS launches and moves to a small file, to be committed and checked.

    Exit code: 0 written, or nothing raised; 1 with --check, where a change raises a function; 2 an error.
    """
    from fuselint import budget as budgets
    from fuselint.report import budget as report

    path = options["file"] or budgets.find(Path.cwd()) or Path.cwd() / budgets.FILE
    old = budgets.load(path) if path.is_file() else None
    if old is None and options["checks"]:
        raise ConfigError(f"there is no {path.name} here or above: write one with `fuselint budget`")
    settings = budgets.assumptions(replace(_settings(options), facts=""), old, path, options["shape"], options["dtype"])
    root = path.resolve().parent
    options["paths"] = options["paths"] or tuple(os.path.relpath(root / p) for p in (old.paths if old else (".",)))
    files = _files(options, settings)
    new, changes, problems = budgets.outcome(old, files, options["paths"], settings, root, options["jobs"])
    for problem in problems:
        _say(problem)
    if old is not None:
        text = report.render(changes, options["output_format"], _color(options) and options["output_file"] is None)
        _write(text, options["output_file"])
    raised = any(c.kind == "raised" for c in changes)
    writes = options["update"] or not options["checks"]
    if writes and not problems:
        given = [budgets.relative(p, root) for p in options["paths"]]
        budgets.save(budgets.merged(old, new, changes, given, raise_too=not options["checks"]), path)
    if not options["quiet"]:
        hint = "; `fuselint budget` accepts it" if raised and options["checks"] else ""
        done = f"; written to {os.path.relpath(path)}" if writes and not problems else ""
        _say(f"{report.closing(changes)}{done}{hint}")
    ctx.exit(2 if problems else 1 if raised and options["checks"] else 0)


def _settings(options: dict[str, Any]) -> Settings:
    """The configuration file's settings, with the options laid over them."""
    path = options["config"] or (None if options["isolated"] else find_file(Path.cwd()))
    settings = load(path) if path else Settings()
    given: dict[str, Any] = {}
    for name in ("select", "ignore"):
        if options.get(name):
            given[name] = tuple(part.strip() for text in options[name] for part in text.split(",") if part.strip())
    if options.get("exclude"):
        given["exclude"] = (*settings.exclude, *options["exclude"])
    for name in ("min_kernels", "near_misses", "unsafe_fixes", "exact"):
        if options.get(name) is not None:
            given[name] = options[name]
    if options.get("no_cache"):
        given["cache"] = False
    if options.get("force_exclude"):
        given["force_exclude"] = True
    if options.get("min_saving"):
        given["min_saving"] = byte_size(options["min_saving"], "--min-saving")
    if options["shape"]:
        given["shape"] = {**settings.shape, **shape_entries(options["shape"], "--shape")}
    named = {"dtype": dtype_name, "phase": phase_name, "chip": chip_name, "target_mlx": mlx_version}
    for name, read in named.items():
        if options[name]:
            given[name] = read(options[name], f"--{name.replace('_', '-')}")
    if options.get("no_facts"):
        given["facts"] = ""
    elif options.get("facts"):
        given["facts"] = options["facts"]
    elif not options["isolated"] and not settings.facts and (found := find_facts(Path.cwd())) is not None:
        given["facts"] = str(found)
    if options["model_config"]:
        given["model_config"] = load_model_config(options["model_config"], "--model-config")
    return replace(settings, **given)


def _files(options: dict[str, Any], settings: Settings) -> list[str]:
    from fuselint.source.discovery import python_files

    files = python_files(
        options["paths"] or (".",),
        settings.exclude,
        settings.force_exclude,
        skipped=lambda path, why: _say(f"{path}: skipped: {why}"),
    )
    if settings.facts:
        for path in filter(loaded(settings.facts).is_stale, files):
            _say(f"{path}: changed since it was recorded: its facts are dropped")
    return files


def _stdin(options: dict[str, Any]) -> Any:
    """The text on stdin where the only path is `-`."""
    if "-" not in options["paths"]:
        return None
    if options["paths"] != ("-",):
        raise ConfigError("`-` (stdin) can't be given together with other paths")
    from fuselint.source.text import decode

    return decode(options["stdin_filename"] or "<stdin>", sys.stdin.buffer.read())


def _verify(options: dict[str, Any]) -> bool:
    wanted = options["verify"]
    if wanted is False or (wanted is None and not options["apply"] and not options["measure"]):
        return False
    if wanted:
        _need_mlx("--verify", ", or --no-verify")
    return _has_mlx()


def _has_mlx() -> bool:
    from importlib.util import find_spec

    return find_spec("mlx") is not None


def _need_mlx(what: str, otherwise: str = "") -> None:
    if not _has_mlx():
        raise ConfigError(f'{what} runs the code before and after on MLX: pip install "fuselint[cpu]"{otherwise}')


def _tuner(settings: Settings, wanted: bool) -> Tuner | None:
    """What times each fix, where that was asked for and there is a GPU."""
    if not wanted:
        return None
    from fuselint.tuning import Tuner
    from fuselint.verify.measure import NO_CPU, gpu

    if not gpu():
        _say(NO_CPU)
        return None
    return Tuner(settings)


def _report(findings: Sequence[Finding], results: Sequence[FileResult], options: dict[str, Any]) -> None:
    from fuselint.report import renderer, summary

    if options["statistics"]:
        _write(summary.statistics(findings), options["output_file"])
        return
    texts = {r.path: r.text for r in results}
    shown = [*findings, *(n for r in results for n in r.near_misses)]
    color = _color(options) and options["output_file"] is None
    text = renderer(options["output_format"])(shown, lambda path: texts.get(path, ""), color)
    _write(text, options["output_file"])


def _write(text: str, path: Path | None) -> None:
    if path is not None:
        try:
            path.write_text(text, encoding="utf-8", newline="")
        except OSError as e:
            raise FuselintError(f"{path}: can't be written: {e.strerror}") from e
        return
    sys.stdout.flush()
    data = text.encode("utf-8", "surrogateescape")
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:  # bytes, so that a diff keeps the line endings of the file
        buffer.write(data)
        buffer.flush()


def _say(text: str) -> None:
    click.echo(text, err=True)


def _color(options: dict[str, Any]) -> bool:
    if options["color"] != "auto":
        return bool(options["color"] == "always")
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _colored(diff: str, options: dict[str, Any]) -> str:
    if not _color(options) or options["output_file"] is not None:
        return diff
    colors = {"+": "32", "-": "31", "@": "36"}

    def line(text: str) -> str:
        number = "1" if text.startswith(("+++", "---")) else colors.get(text[:1])
        return f"\x1b[{number}m{text}\x1b[0m" if number else text

    return "\n".join(map(line, diff.split("\n")))


def _errors(results: Iterable[FileResult], verbose: bool) -> None:
    for r in results:
        for e in r.errors:
            _say(e if verbose else e.split("\n", 1)[0])
        if verbose:
            for function, reason in r.not_understood:
                _say(f"{r.path}: {function}: not understood: {reason}")


def _exit_code(results: Iterable[FileResult], findings: Iterable[Finding], exit_zero: bool) -> int:
    if any(r.errors for r in results):
        return 2
    return 1 if not exit_zero and any(f.counts for f in findings) else 0
