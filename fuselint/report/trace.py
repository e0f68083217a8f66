"""A trace as text or JSON: its lines with their kernels, what a whole pass takes, and what fixes would delete of it."""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuselint.chips import Seconds
from fuselint.report import escape, plural, size
from fuselint.report.saving import listed
from fuselint.report.style import Style
from fuselint.trace.lines import READINGS, Counted, Line, Row, Totals
from fuselint.trace.model import Kernel, Moved
from fuselint.trace.savings import Saving, shown
from fuselint.trace.survey import Survey

SHORT = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool_": "bool",
    "complex64": "c64",
}  # fmt: skip
WIDEST_NAME = 44
WIDEST_OPERANDS = 64


def render(report: Survey, form: str, color: bool = False) -> str:
    if form == "json":
        return escape.dumps(_data(report), indent=1) + "\n"
    return "\n".join(_text(report, Style(color))) + "\n"


# -- text -------------------------------------------------------------------------------------------------------------


def _text(report: Survey, style: Style) -> Iterator[str]:
    yield f"{report.target} as {report.backend.capitalize()} runs it, MLX {report.mlx}"
    for line in report.lines:
        yield ""
        yield from _line(line, style)
    yield ""
    yield from _totals(report)
    yield from ("", *_fixes(report))
    yield from ("", *report.notes) if report.notes else ()


def _line(line: Line, style: Style) -> Iterator[str]:
    where = f"{escape.line(shown(line.path))}:{line.line}" if line.path else "no line of the traced code"
    code = escape.line(linecache.getline(line.path, line.line).strip()) if line.path else ""
    yield f"{style.bold(where)} {line.function}{': ' if code else ''}{code}"
    rows = [
        (_short(r.kernel.name, WIDEST_NAME), _operands(r.kernel), *(_run(r, name) for name in READINGS))
        for r in line.rows
    ]
    total = ("", "", *(_sum(line.runs.get(name)) for name in READINGS))
    table = [("", "", *READINGS), *rows, *([total] if len(rows) > 1 else [])]
    yield from (f"  {text}" for text in _table(table))


def _run(row: Row, name: str) -> str:
    run = row.runs.get(name)
    if run is None:
        return "-"
    return f"{run.kernels} x {size(run.bytes // run.kernels)}" if run.kernels > 1 else size(run.bytes)


def _sum(run: Counted | None) -> str:
    return size(run.bytes) if run is not None else "-"


def _operands(kernel: Kernel) -> str:
    reads, writes = (", ".join(map(_moved, side)) for side in (kernel.reads, kernel.writes))
    return _short(f"{reads} -> {writes}".strip(), WIDEST_OPERANDS)


def _moved(m: Moved) -> str:
    return f"{SHORT.get(m.dtype, m.dtype)}[{','.join(map(str, m.shape))}]"


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns, the first two to the left, the others to the right."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    for r in rows:
        cells = (c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        yield "  ".join(cells).rstrip()


def _time(seconds: Seconds) -> str:
    return f"{seconds.estimate * 1e3:.3g} ms ({seconds.low * 1e3:.3g} to {seconds.high * 1e3:.3g})"


def _totals(report: Survey) -> Iterator[str]:
    names = list(report.totals)
    columns = [report.totals[n] for n in names]
    rows = [
        ("a pass", "", *names),
        ("kernels", "", *(f"{t.kernels:,}" for t in columns)),
        ("launches", "", *(f"{t.launches:,}" for t in columns)),
        ("command buffers", "", *(f"{t.command_buffers:,}" for t in columns)),
        ("read", "", *(size(t.read) for t in columns)),
        ("written", "", *(size(t.written) for t in columns)),
        ("moved", "", *(size(t.bytes) for t in columns)),
        (f"time on {report.chip}, estimated", "", *(_time(t.seconds) for t in columns)),
    ]
    yield from _table(rows)


def _fixes(report: Survey) -> Iterator[str]:
    eager, fixed = report.totals["eager"], report.totals.get("fixed")
    if fixed is not None:
        saved, launches = eager.bytes - fixed.bytes, eager.launches - fixed.launches
        yield (
            f"fixed, as `fuselint fix` would write it: {size(saved)} of {size(eager.bytes)} less"
            f" ({_percent(saved, eager.bytes)}), and {launches:,} of {plural(eager.launches, 'launch')}"
            f" ({_percent(launches, eager.launches)})"
        )
    elif not report.savings:
        yield "no finding with a fix on these lines"
    for s in report.savings:
        f = s.finding
        assert f.fix is not None
        assumed = f"; {', '.join(s.assumed)} assumed" if s.assumed else ""
        amount = f"about {size(s.bytes)}, {plural(s.launches, 'launch')}{assumed}"
        if s.typical:
            amount = f"{plural(s.launches, 'launch')}; nothing shows {listed(s.typical)}"
        yield (f"  {f.path}:{f.line} {f.code} {f.name} ({f.fix.applicability}), {plural(s.runs, 'run')}: {amount}")


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


# -- JSON -------------------------------------------------------------------------------------------------------------


def _data(report: Survey) -> dict[str, Any]:
    return {
        "target": report.target,
        "backend": report.backend,
        "mlx": report.mlx,
        "chip": report.chip,
        "peak_memory": report.peak_memory,
        "totals": {name: _total(t) for name, t in report.totals.items()},
        "lines": [_line_data(line) for line in report.lines],
        "fixes": [_saving(s) for s in report.savings],
        "notes": list(report.notes),
    }


def _total(t: Totals) -> dict[str, Any]:
    return {
        "kernels": t.kernels,
        "launches": t.launches,
        "command_buffers": t.command_buffers,
        "bytes_read": t.read,
        "bytes_written": t.written,
        "bytes": t.bytes,
        "seconds": t.seconds.estimate,
        "seconds_band": [t.seconds.low, t.seconds.high],
    }


def _line_data(line: Line) -> dict[str, Any]:
    def runs(counted: Mapping[str, Counted]) -> dict[str, Any]:
        return {name: {"kernels": c.kernels, "bytes": c.bytes} for name, c in counted.items()}

    return {
        "path": shown(line.path) if line.path else None,
        "line": line.line if line.path else None,
        "function": line.function,
        **runs(line.runs),
        "kernels": [
            {
                "name": r.kernel.name,
                "reads": [_moved_data(m) for m in r.kernel.reads],
                "writes": [_moved_data(m) for m in r.kernel.writes],
                "launches": r.kernel.launches,
                **runs(r.runs),
            }
            for r in line.rows
        ],
    }


def _moved_data(m: Moved) -> dict[str, Any]:
    return {"shape": list(m.shape), "dtype": m.dtype.rstrip("_"), "bytes": m.bytes}


def _saving(s: Saving) -> dict[str, Any]:
    f = s.finding
    assert f.fix is not None
    return {
        "id": f.id,
        "code": f.code,
        "path": f.path,
        "line": f.line,
        "applicability": f.fix.applicability,
        "runs": s.runs,
        "bytes": s.bytes,
        "launches": s.launches,
        "assumed": list(s.assumed),
    }
