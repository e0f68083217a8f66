"""The commands: options in, one engine call, one reporter out. Imports nothing heavy.

Findings go to stdout, everything else to stderr. Exit codes: 0 nothing found, 1 findings (or a diff), 2 an error.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fuselint import __version__
from fuselint.config import (
    DEFAULT_CHIP,
    DTYPES,
    FORMATS,
    LONG_DTYPES,
    PHASES,
    Settings,
    dtype_name,
    nearest,
    options_layer,
)
from fuselint.errors import ConfigError, FuselintError, Interrupted
from fuselint.layers import Layers, given, recorded_layers
from fuselint.recorded import loaded

if TYPE_CHECKING:
    from fuselint.finding import FileResult, Finding
    from fuselint.tuning import Tuner

F = TypeVar("F", bound=Callable[..., Any])


INTERRUPTED = 128 + 2
"""What shells call a process that SIGINT ended."""


class Commands(click.Group):
    """A group that turns our errors into one line and exit code 2, an interruption into one line and exit code 130,
    and knows what a wrong name may have meant."""

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
        except Interrupted as e:
            from fuselint.report import plural

            files = f": {', '.join(e.written)}" if e.written else ""
            _say(f"fuselint: interrupted; {plural(len(e.written), 'file')} written{files}")
            ctx.exit(INTERRUPTED)
        except KeyboardInterrupt:
            _say("fuselint: interrupted; no code was changed")
            ctx.exit(INTERRUPTED)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", message="fuselint %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Find unfused work in MLX code, count the bytes it moves, rewrite it, and prove the rewrite."""
    gc.set_threshold(1_000_000, *gc.get_threshold()[1:])  # a short process, and the engine looks for garbage itself
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
    click.option("--hot", multiple=True, metavar="FUNCTION", help="On the hot path, such as Model.build. Repeatable."),
    click.option("--cold", multiple=True, metavar="FUNCTION", help="Not on the hot path. Repeatable."),
    click.option("--config", multiple=True, metavar="FILE|KEY=VALUE", help="A configuration file, or one setting."),
    click.option("--isolated", is_flag=True, help="Read no configuration file; --no-facts, no recorded run."),
)

selecting_options = _options(
    click.option("--select", multiple=True, metavar="RULES", help="Only these: codes, prefixes, names, ALL."),
    click.option("--ignore", multiple=True, metavar="RULES", help="Not these."),
    click.option("--extend-select", multiple=True, metavar="RULES", help="These too."),
    click.option("--per-file-ignores", multiple=True, metavar="PATTERN:RULES", help="Not these in some files."),
)

walk_options = _options(
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Skip what this .gitignore pattern covers."),
    click.option("--extend-exclude", multiple=True, metavar="PATTERN", help="Skip this too."),
    click.option("--notebooks/--no-notebooks", default=None, help="Look for .ipynb too [no]."),
    click.option("--force-exclude", is_flag=True, default=None, help="Skip also what is named on the command line."),
    click.option("--respect-gitignore/--no-respect-gitignore", default=None, help="Keep to .gitignore files [yes]."),
)

showing_options = _options(
    click.option("--output-format", metavar="NAME", help=f"{', '.join(FORMATS)} [full]."),
    click.option("--min-kernels", type=int, metavar="N", help="The shortest elementwise chain to report [3]."),
    click.option("--min-saving", metavar="BYTES", help="Hide findings known to save less, such as 1MB."),
    click.option("--near-misses", is_flag=True, default=None, help="Also show what was nearly reported, and why not."),
)

shared_options = _options(
    click.argument("paths", nargs=-1, type=click.Path()),
    selecting_options,
    walk_options,
    facts_options,
    showing_options,
    click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), help="Instead of stdout."),
    click.option("--baseline", type=click.Path(path_type=Path), help="Known findings [.fuselint-baseline.json]."),
    click.option("--no-baseline", is_flag=True, help="Show what is known, too."),
    click.option("--stdin-filename", metavar="PATH", help="The name of what is read from stdin (path `-`)."),
    click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes [as many as it pays]."),
    click.option("--no-cache", is_flag=True, help="Neither read nor write a cache."),
    click.option(
        "--cache-dir", type=click.Path(file_okay=False, path_type=Path), help="Where the cache is [.fuselint_cache]."
    ),
    click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True),
    click.option("--statistics", is_flag=True, help="A count and the bytes by rule, instead of the findings."),
    click.option("--exit-zero", is_flag=True, help="Exit 0 although something was found."),
    click.option("-q", "--quiet", is_flag=True, help="No closing line."),
    click.option("-v", "--verbose", is_flag=True, help="Every function that was not understood, and every trace."),
)


@main.command()
@shared_options
@click.option("--show-diff", is_flag=True, help="Show what each fix changes, too: with the full format.")
@click.option("--add-noqa", is_flag=True, help="Silence all that is found, by comments.")
@click.option("--reason", default="", metavar="TEXT", help="What the comments of --add-noqa say.")
@click.pass_context
def check(ctx: click.Context, /, **options: Any) -> None:
    """Report what could be fused in PATHS (default: the current folder).

    Exit code: 0 nothing found, 1 findings, 2 an error.
    """
    from fuselint.report import summary

    layers = _layers(options)
    settings = layers.of_folder(".")
    if options["reason"] and not options["add_noqa"]:
        raise ConfigError("--reason says why --add-noqa silences: give that too")
    if options["add_noqa"] and "-" in options["paths"]:
        raise ConfigError("--add-noqa writes to files, and can't to stdin")
    stdin = _stdin(options)
    if stdin is not None:
        from fuselint.engine import check_file

        results = [check_file(stdin, layers.of(stdin.path))]
    else:
        files = _files(options, layers)
        if options["add_noqa"]:
            ctx.exit(_add_noqa(files, layers, options))
        results = _watched(_checked(files, layers, options), len(files), options)
    results, known = _without_known(results, options)
    findings = [f for r in results for f in r.findings]
    if settings.model_config is not None:
        findings.sort(key=summary.by_saving)
    elif settings.facts:
        findings.sort(key=summary.by_calls)
    _report(findings, results, settings, options)
    _errors(results, options["verbose"])
    if not options["quiet"]:
        for line in (*summary.models(results, settings), summary.closing(results, known)):
            _say(line)
    ctx.exit(_exit_code(results, findings, options["exit_zero"]))


@main.command()
@shared_options
@click.option("--apply", is_flag=True, help="Write the files, instead of printing the diff.")
@click.option("--diff", is_flag=True, help="Print the diff, also with --apply.")
@click.option("--unsafe-fixes", is_flag=True, default=None, help="Also fixes with something unproven.")
@click.option("--exact", is_flag=True, default=None, help="Only fixes that change no bit of any result.")
@click.option("--require-clean", is_flag=True, help="Refuse where git has changes that aren't committed.")
@click.option(
    "--verify/--no-verify",
    default=None,
    help="Run each fix before and after, and withhold what differs [with --apply, where mlx imports].",
)
@click.option("--measure", is_flag=True, help="Time each fix on this machine's GPU, and withhold what isn't faster.")
@click.pass_context
def fix(ctx: click.Context, /, **options: Any) -> None:
    """Print the diff that fuses what can be fused in PATHS, or write it with --apply.

    Exit code: 0 nothing to do, 1 a diff, or with --apply findings that remain, 2 an error, 130 interrupted.
    """
    from fuselint.engine import fix_paths, fix_text
    from fuselint.report import summary

    layers = _layers(options)
    verify = _verify(options)
    tuner = _tuner(layers, options["measure"])
    stdin = _stdin(options)
    if stdin is not None and options["require_clean"]:
        raise ConfigError("--require-clean asks git of files, and stdin is none")
    if stdin is not None:
        fixed = [fix_text(stdin, layers.of(stdin.path), verify, tuner)]
    else:
        files = _files(options, layers)
        if options["require_clean"]:
            _require_clean(files)
        fixed = fix_paths(files, layers, options["apply"], verify, options["jobs"], tuner)
    results, known = _without_known([f.remaining for f in fixed], options)
    findings = [f for r in results for f in r.findings]
    diff = "".join(f.diff for f in fixed)
    if stdin is not None and not options["diff"]:
        _write(fixed[0].after, options["output_file"])
    elif options["diff"] or not options["apply"]:
        _write(_for_people(diff, options), options["output_file"])
    else:
        _report(findings, results, layers.of_folder("."), options)
    for line in (*summary.unverified(fixed), *(summary.timed(tuner.tried) if tuner else ())):
        _say(line)
    _errors(results, options["verbose"])
    if not options["quiet"]:
        for line in summary.proving(x for f in fixed for x in (*f.applied, *f.withheld)):
            _say(line)
        _say(summary.fix_closing(fixed, options["apply"] and stdin is None, known))
    if options["apply"]:
        ctx.exit(_exit_code(results, findings, options["exit_zero"]))
    failed = any(r.errors for r in results)
    ctx.exit(2 if failed else 1 if diff and not options["exit_zero"] else 0)


def _checked(files: Sequence[str], layers: Layers, options: dict[str, Any]) -> Iterator[FileResult]:
    """The results of files, with those that the cache has."""
    from fuselint.cache import FOLDER, check_paths

    settings = layers.of_folder(".")
    kept = settings.cache and not settings.facts and not any(layers.of(f).facts for f in files)
    folder = options.get("cache_dir") or Path(FOLDER)
    return check_paths(files, layers, options["jobs"], folder if kept else None)


def _require_clean(files: Sequence[str]) -> None:
    from fuselint.worktree import uncommitted

    found = uncommitted(files)
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ConfigError(f"--require-clean: not committed: {', '.join(found[:SHOWN])}{more}; commit or stash it first")


SHOWN = 5
"""Files that a message names."""

LONG = 50
"""Files from which a terminal is shown how far the work is."""


def _watched(results: Iterable[FileResult], number: int, options: dict[str, Any]) -> list[FileResult]:
    """The results; on a terminal, with a bar on stderr meanwhile."""
    if options["quiet"] or number < LONG or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return list(results)
    with click.progressbar(results, length=number, label="checking", file=sys.stderr, update_min_steps=5) as bar:
        done = list(bar)
    click.echo("\x1b[1A\x1b[2K", nl=False, err=True)
    return done


def _add_noqa(files: Sequence[str], layers: Layers, options: dict[str, Any]) -> int:
    from fuselint.engine import add_noqa
    from fuselint.report import plural

    added, errors = add_noqa(files, layers, options["reason"], options["jobs"])
    for e in errors:
        _say(e)
    if not options["quiet"]:
        _say(f"{plural(sum(added.values()), 'comment')} added to {plural(len(added), 'file')}")
    return 2 if errors else 0


def _without_known(results: list[FileResult], options: dict[str, Any]) -> tuple[list[FileResult], int]:
    """The results without the findings of the baseline, and how many these are."""
    from fuselint import baseline

    path = options["baseline"] or baseline.find(Path.cwd())
    if options["no_baseline"] or path is None:
        return results, 0
    return baseline.load(path).new(results)


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@selecting_options
@walk_options
@facts_options
@click.option("--file", type=click.Path(dir_okay=False, path_type=Path), help="The baseline [.fuselint-baseline.json].")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Worker processes [as many as it pays].")
@click.option("-q", "--quiet", is_flag=True, help="No closing line.")
@click.pass_context
def baseline(ctx: click.Context, /, **options: Any) -> None:
    """Record what is found in PATHS today (default: the baseline's folder): `check` shows only what is new.

    Findings are known by their rule, function and text, so that they may move. With PATHS, those of other files stay.
    """
    from fuselint import baseline as baselines
    from fuselint.report import plural

    path = options["file"] or baselines.find(Path.cwd()) or Path.cwd() / baselines.FILE
    old = baselines.load(path) if path.is_file() else baselines.Baseline(path.resolve().parent)
    options["paths"] = options["paths"] or (os.path.relpath(old.root),)
    layers = _layers(options)
    files = _files(options, layers)
    results = _watched(_checked(files, layers, options), len(files), options)
    _errors(results, verbose=False)
    new = old.taken(results, options["paths"])
    baselines.save(new, path)
    if not options["quiet"]:
        fresh = sum(len(r.findings) for r in old.new(results)[0])
        _say(f"{plural(len(new), 'finding')} recorded in {os.path.relpath(path)}; {fresh} of them new")
    ctx.exit(2 if any(r.errors for r in results) else 0)


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("-o", "--output-file", type=click.Path(dir_okay=False, path_type=Path), default="report.html")
@click.option("--verify/--no-verify", default=None, help="Run each fix before and after [where mlx imports].")
@click.option("--unsafe-fixes", is_flag=True, default=None, help="Count what isn't proven as fixed, too.")
@selecting_options
@walk_options
@facts_options
@click.option("-q", "--quiet", is_flag=True, help="No closing line.")
@click.pass_context
def report(ctx: click.Context, /, **options: Any) -> None:
    """Write a page about PATHS: the traffic of each function today and fixed, and each finding with its kernels.

    It is one file that works offline. Exit code: 0 written, 2 an error.
    """
    from fuselint.page import gather
    from fuselint.report import plural
    from fuselint.report.html import render

    layers = _layers(options)
    files = _files(options, layers)
    page = gather(files, layers, _verify({"verify": options["verify"], "apply": True}))
    title = ", ".join(options["paths"] or (Path.cwd().name,))
    _write(render(page, title), options["output_file"])
    for e in page.errors:
        _say(e.split("\n", 1)[0])
    if not options["quiet"]:
        _say(f"{plural(len(page.shown), 'finding')} written to {options['output_file']}")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what completes fuselint's commands and options in a shell: eval "$(fuselint completion bash)"."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(main, {}, "fuselint", "_FUSELINT_COMPLETE").source())


@main.command()
def server() -> None:
    """Serve editors over stdio, by the Language Server Protocol. Needs pygls: pip install "fuselint[server]"."""
    try:
        from fuselint.server import make
    except ImportError as e:
        if (e.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise FuselintError('the server needs pygls: pip install "fuselint[server]"') from e
    make().start_io()


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
@click.argument("path", required=False, default=".", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["toml", "json"]), default="toml", show_default=True)
@_options(selecting_options, walk_options, facts_options, showing_options)
def config(path: Path, form: str, **options: Any) -> None:
    """Print the settings that count for PATH (default: the current folder), and where each comes from."""
    from fuselint.report.settings import render
    from fuselint.rulebook import chosen_codes

    layers = _layers(options)
    settings = layers.of_folder(str(path)) if path.is_dir() else layers.of(str(path))
    chosen_codes(settings)
    codes = chosen_codes(settings, os.fspath(path))
    _write(render(settings, codes, form), None)


@main.command()
@click.argument("place", metavar="FILE:LINE")
@facts_options
def explain(place: str, **options: Any) -> None:
    """Show what is known at a place: the function's graph, facts, canonical form, kernels and obligations."""
    from fuselint.explain import explain as explained
    from fuselint.report import escape

    path, colon, line = place.rpartition(":")
    if not colon or not line.isdecimal():
        raise ConfigError(f"explain: expected FILE:LINE, such as model.py:12, not {place!r}")
    click.echo(escape.lines(explained(path, int(line), _layers(options).of(path))), nl=False)


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
@click.option("--output-format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
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

    settings = _layers(options).of_folder(".")
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
    text = render(report, options["form"], _color(options) and options["output_file"] is None)
    _write(text, options["output_file"])


@main.command()
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--apply", is_flag=True, help="Write the fixes that are the fastest.")
@selecting_options
@walk_options
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
    from fuselint.report import summary
    from fuselint.report.tuning import brief, render
    from fuselint.tuning import Tuner
    from fuselint.verify.measure import NO_CPU, gpu

    layers = _layers(options)
    if not gpu():
        raise FuselintError(f"tune: {NO_CPU}")
    tuner = Tuner(layers, every=True, telling=lambda tried: _say(brief(tried)))
    fixed = fix_paths(_files(options, layers), layers, write=options["apply"], verify=True, judge=tuner)
    _errors([f.remaining for f in fixed], verbose=False)
    for line in summary.untimed(fixed, tuner.tried):
        _say(line)
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
@selecting_options
@walk_options
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
    from fuselint.report.summary import proving

    layers = _layers({**options, "unsafe_fixes": True})
    _need_mlx("verify")
    tuner = _tuner(layers, options["measure"])
    files = fix_paths(_files(options, layers), layers, verify=True, judge=tuner)
    found = [f for file in files for f in (*file.applied, *file.withheld)]
    _errors([f.remaining for f in files], options["verbose"])
    _write(render(found, options["form"]), options["output_file"])
    if not options["quiet"]:
        for line in (*proving(found), closing(found)):
            _say(line)
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
@walk_options
@click.option("--output-format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
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
    from fuselint.report import budget as changed

    path = options["file"] or budgets.find(Path.cwd()) or Path.cwd() / budgets.FILE
    old = budgets.load(path) if path.is_file() else None
    if old is None and options["checks"]:
        raise ConfigError(f"there is no {path.name} here or above: write one with `fuselint budget`")
    layers = _layers({**options, "no_facts": True})
    settings = budgets.assumptions(layers.of_folder("."), old, path, options["shape"], options["dtype"])
    root = path.resolve().parent
    options["paths"] = options["paths"] or tuple(os.path.relpath(root / p) for p in (old.paths if old else (".",)))
    files = _files(options, layers)
    new, changes, problems = budgets.outcome(old, files, options["paths"], settings, root, options["jobs"])
    for problem in problems:
        _say(problem)
    if old is not None:
        text = changed.render(changes, options["form"], _color(options) and options["output_file"] is None)
        _write(text, options["output_file"])
    raised = any(c.kind == "raised" for c in changes)
    writes = options["update"] or not options["checks"]
    if writes and not problems:
        given = [budgets.relative(p, root) for p in options["paths"]]
        budgets.save(budgets.merged(old, new, changes, given, raise_too=not options["checks"]), path)
    if not options["quiet"]:
        hint = "; `fuselint budget` accepts it" if raised and options["checks"] else ""
        done = f"; written to {os.path.relpath(path)}" if writes and not problems else ""
        _say(f"{changed.closing(changes)}{done}{hint}")
    ctx.exit(2 if problems else 1 if raised and options["checks"] else 0)


def _layers(options: dict[str, Any]) -> Layers:
    """The settings of each file: what configuration files say, under --config, under the other options."""
    file, over = given(options["config"])
    if file and options["isolated"]:
        raise ConfigError(f"--isolated reads no file, and --config names one: {file}")
    return Layers(file, options["isolated"], [*over, options_layer(options)], recorded_layers(Path.cwd()))


def _files(options: dict[str, Any], layers: Layers) -> list[str]:
    from fuselint.source.discovery import python_files

    files = python_files(options["paths"] or (".",), layers, skipped=lambda path, why: _say(f"{path}: skipped: {why}"))
    for path in files:
        facts = layers.of(path).facts
        if facts and loaded(facts).is_stale(path):
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


def _tuner(layers: Layers, wanted: bool) -> Tuner | None:
    """What times each fix, where that was asked for and there is a GPU."""
    if not wanted:
        return None
    from fuselint.tuning import Tuner
    from fuselint.verify.measure import NO_CPU, gpu

    if not gpu():
        _say(NO_CPU)
        return None
    return Tuner(layers)


def _report(
    findings: Sequence[Finding], results: Sequence[FileResult], settings: Settings, options: dict[str, Any]
) -> None:
    from fuselint.report import full, renderer, summary

    if options["statistics"]:
        _write(summary.statistics(findings, settings.output_format), options["output_file"])
        return
    by_path = {r.path: r for r in results}
    shown = [*findings, *(n for r in results for n in r.near_misses)]
    color = _color(options) and options["output_file"] is None
    draw = renderer(settings.output_format)
    if settings.output_format == "full" and options.get("show_diff"):
        draw = partial(full.render, diffs=True)
    text = draw(shown, lambda f: by_path[f.path].source(f), color)
    _write(text, options["output_file"])


def _write(text: str, path: Path | None) -> None:
    if path is not None:
        try:
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
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
    from fuselint.report import escape

    click.echo(escape.lines(text), err=True)


def _color(options: dict[str, Any]) -> bool:
    if options["color"] != "auto":
        return bool(options["color"] == "always")
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def _for_people(diff: str, options: dict[str, Any]) -> str:
    """A diff as a terminal shows it; what goes to a file or a pipe stays as it is, so that it can be applied."""
    from fuselint.report import escape

    colored = _color(options)
    if options["output_file"] is not None or not (colored or sys.stdout.isatty()):
        return diff
    colors = {"+": "32", "-": "31", "@": "36"}

    def line(text: str) -> str:
        number = "1" if text.startswith(("+++", "---")) else colors.get(text[:1])
        shown = escape.line(text.removesuffix("\r"))
        return f"\x1b[{number}m{shown}\x1b[0m" if number and colored else shown

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
