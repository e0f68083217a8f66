"""Another decorator on a function: the one edit that changes how a function runs, and nothing in it."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

import libcst as cst

from fuselint.finding import Edit, Region
from fuselint.graph.model import Graph, Node
from fuselint.rulebook import Match, NoFix, Part, Replacement
from fuselint.source.confirm import Changes, confirm
from fuselint.source.edit import Placement, apply, guard
from fuselint.source.hoist import CORE, Refused, Surroundings
from fuselint.source.project import MODULE
from fuselint.source.regions import region_of
from fuselint.source.removal import normalised
from fuselint.source.unread import Leftovers

if TYPE_CHECKING:
    from fuselint.graph.lower import Program


def is_decorator(graph: Graph, root: Node) -> bool:
    function = graph.source.node
    return isinstance(function, cst.FunctionDef) and any(d.decorator is root.cst for d in function.decorators)


def redecorate(graph: Graph, match: Match, replacement: Replacement, program: Program) -> Placement | NoFix:
    """The one part of the replacement in the place of a decorator. It reads no values, only `{mx}`."""
    (part,) = replacement.parts
    assert part.root.cst is not None
    source, file = graph.source, graph.source.file
    around = graph.module.functions[graph.context.qualname].span.outer or MODULE
    try:
        text = part.template.replace("{mx}", Surroundings(file, graph.module, around, source.start).alias(CORE, around))
    except Refused as refused:
        return NoFix(str(refused))
    start, end = source.span(part.root.cst)
    made = Edit(start, end, text)
    rest = Leftovers(graph, program, None, False, start, "")
    edits = normalised(file.text, [made, *rest.edits([part.root.cst], [made])])
    spans = ((source.start, end), *rest.spans)
    new_text = apply(file.text, edits)
    why = guard(file.text, new_text, edits, spans)
    if why is not None:
        return why
    problem = confirm(graph, new_text, program, Changes(slots=(), gone=()))
    if problem:
        return NoFix(problem)
    return Placement(edits, f"@{text}", _region(graph, match, text), tuple(rest.notes), tuple(sorted(spans)))


def _region(graph: Graph, match: Match, decorator: str) -> Region:
    """The function's body as it stands, against a call of it under the new decorator."""
    function = graph.source.node
    assert isinstance(function, cst.FunctionDef)
    returned = [n for _, n in graph.returns]
    if len(returned) != 1 or graph.effects:
        return Region(match.code, (), "", "", not_verifiable="it returns in several places, or changes something")
    name = function.name.value
    given = {p: node for p, node in graph.params.items() if node.attrs["star"] == ""}
    call = f"{name}({', '.join(f'{p}={{{p}}}' for p in given)})"
    lines = textwrap.dedent(graph.source.indent + graph.source.text).split("\n")
    first = next(i for i, line in enumerate(lines) if re.match(r"(async )?def ", line))
    definition = f"@{decorator}\n" + "\n".join(lines[first:]) + "\n"
    wanted = Replacement(parts=(Part(returned[0], call),), holes=given)
    return region_of(graph, match, wanted, {returned[0]: call}, definition)
