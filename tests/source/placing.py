"""Placing a template by hand: roots and holes are named by their source text."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import libcst as cst

from fuselint.graph.model import Graph, Node
from fuselint.graph.program import Program
from fuselint.rulebook import HoistedHelper, Hole, Match, NoFix, Part, Replacement, Synthesised
from fuselint.source.edit import Placement, apply, place
from fuselint.source.function import walk
from fuselint.source.project import summarise
from fuselint.source.text import FileText

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def program_of(text: str, newline: str = "\n") -> Program:
    file = FileText("m.py", text, newline)
    return Program(file, summarise(file, ast.parse(text)))


def value(graph: Graph, text: str) -> Node:
    """The value of the last expression of the function with that text; of `text~1`, of the first one, and so on.

    `param:x` is the argument x, `attr:self.eps` an attribute wherever it is read, also in a helper.
    """
    kind, _, name = text.partition(":")
    if kind == "param":
        return graph.params[name]
    if kind == "attr":
        return next(n for n in graph.nodes if n.op == "attr" and n.attrs["path"] == name)
    if kind == "first":
        return next(n for n in graph.nodes if n.op == name)
    if kind == "op":
        return [n for n in graph.nodes if n.op == name][-1]
    text, _, count = text.partition("~")
    found = []
    for n in walk(graph.source.node):
        if isinstance(n, (cst.BaseExpression, cst.AugAssign)) and " ".join(graph.source.code(n).split()) == text:
            held = graph.values.get(n)
            if held is None:
                held = next((m for m in graph.nodes if m.cst is n), None)
            if held is not None:
                found.append(held)
    assert found, f"no expression {text!r}"
    return found[int(count) - 1 if count else -1]


def placed(
    source: str,
    root: str | tuple[str, ...],
    template: str | tuple[str, ...],
    holes: dict[str, str | Synthesised],
    *,
    function: str | None = None,
    helper: HoistedHelper | None = None,
    is_read: Callable[[str], bool] | None = lambda name: False,
    cap: str = "",
    newline: str = "\n",
) -> tuple[str, Placement | NoFix]:
    """The new text (the old one, where nothing is placed) and the placement."""
    text = source if source.startswith(("import", "from")) or newline != "\n" else HEAD + dedent(source).lstrip("\n")
    program = program_of(text, newline)
    qualname = function or list(program.summary.functions)[-1]
    graph = program.graph(qualname)
    assert graph is not None
    roots = (root,) if isinstance(root, str) else root
    templates = (template,) if isinstance(template, str) else template
    parts = tuple(Part(value(graph, r), t) for r, t in zip(roots, templates, strict=True))
    given: dict[str, Hole] = {k: v if isinstance(v, Synthesised) else value(graph, v) for k, v in holes.items()}
    match = Match("FUS000", parts[0].root, given, "", [], frozenset())
    done = place(graph, match, Replacement(parts, given, helper=helper, cap=cap), program, is_read)
    return (apply(text, done.edits) if isinstance(done, Placement) else text), done


RMS = "{mx}.fast.rms_norm({x}, {w}, {eps})"


def becomes(
    before: str, after: str, root: str | tuple[str, ...], template: str | tuple[str, ...] = RMS, **holes: object
) -> None:
    """The fix turns one text block into the other, and has nothing left to do then."""
    keep = {"function", "helper", "is_read", "cap"}
    more = {k: v for k, v in holes.items() if k in keep}
    text, done = placed(before, root, template, {k: v for k, v in holes.items() if k not in keep}, **more)  # type: ignore
    assert isinstance(done, Placement), done
    assert text.removeprefix(HEAD) == dedent(after).lstrip("\n")


def stays(
    before: str, why: str, root: str | tuple[str, ...], template: str | tuple[str, ...] = RMS, **holes: object
) -> None:
    """Nothing is placed, for that reason."""
    keep = {"function", "helper", "is_read", "cap"}
    more = {k: v for k, v in holes.items() if k in keep}
    _, done = placed(before, root, template, {k: v for k, v in holes.items() if k not in keep}, **more)  # type: ignore
    assert isinstance(done, NoFix), done
    assert why in done.reason, done.reason
