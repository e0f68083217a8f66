"""What one call of a whole function launches and moves, as far as its source is understood, and on which lines.

Functions that it calls count too, also those of other files; objects that it calls don't, they are counted by
themselves. Loops count once, of branches both count, and calls that aren't understood count nothing: the number is for
comparing a function with itself after a change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fuselint.config import DTYPES, Settings
from fuselint.finding import UNSTATED
from fuselint.graph.across import MARK, Inside
from fuselint.graph.known import unmarked
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.symbols import Expr
from fuselint.traffic import met
from fuselint.traffic.kernels import Bytes, Kernel, compiled_kernels, kernels
from fuselint.traffic.known import known
from fuselint.traffic.sizes import Sizes


@dataclass(frozen=True, slots=True)
class LineCount:
    """line: 1-based, of the function's own file. bytes: at the census's sizes."""

    line: int
    kernels: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Census:
    """bytes: of the formula at the sizes `at`, of which nobody stated `assumed`, and nothing says `typical`."""

    launches: int
    formula: str
    bytes: int
    at: Mapping[str, int]
    assumed: tuple[str, ...]
    typical: tuple[str, ...]
    lines: tuple[LineCount, ...]


def census(graph: Graph, settings: Settings, across: bool = True) -> Census | None:
    """None for a function that launches nothing of its own. across: with the functions of other files that it calls."""
    found = list(_launched(Inside(graph, graph.facts), across))
    if not found:
        return None
    launched = [k for k, _ in found]
    arrays = [a for k in launched for a in (*k.reads, *k.writes)]
    moved = Bytes(Sizes.plain([a.shape for a in arrays], met(arrays), letters=True), DTYPES[settings.activation])
    total = moved.total(launched)
    formula = moved.sizes.leading(total)
    numbers = moved.sizes.numbers(total, known(settings, graph.context.qualname))
    every = {name: size for name, (size, _) in numbers.items()}
    at = {name: every[name] for name in sorted(formula.names)}
    sources = {name: numbers[name][1] for name in at}
    stable = _stable_names(total.names)
    by_line: dict[int, list[Kernel]] = {}
    for k, at_node in found:
        by_line.setdefault(_line(graph, at_node), []).append(k)
    lines = (
        LineCount(line, tuple(k.op for k in own), moved.total(own).substitute(every).value() or 0)
        for line, own in sorted(by_line.items())
    )
    return Census(
        launches=len(launched),
        formula=str(formula.substitute({old: Expr.name(new) for old, new in stable.items()})),
        bytes=formula.substitute(at).value() or 0,
        at={stable.get(name, name): size for name, size in at.items()},
        assumed=tuple(stable.get(name, name) for name in at if sources[name] in UNSTATED),
        typical=tuple(stable.get(name, name) for name in at if sources[name] == "typical"),
        lines=tuple(lines),
    )


def _stable_names(names: Iterable[str]) -> dict[str, str]:
    """`%192`, the size that value 192 of the graph holds, is `%1` where it is the first: other code may come and go.
    Nor does a name of another function say how many were followed before."""
    names = sorted(names)
    numbered = sorted({int(n) for name in names for n in re.findall(r"%(\d+)", name)})
    order = {str(n): str(i) for i, n in enumerate(numbered, 1)}
    taken = {name for name in names if MARK not in name}
    out = {}
    for name in names:
        new = re.sub(r"%(\d+)", lambda m: f"%{order[m[1]]}", unmarked(name))
        while new != name and new in taken:
            new += "'"
        taken.add(new)
        if new != name:
            out[name] = new
    return out


def _launched(inside: Inside, across: bool) -> Iterator[tuple[Kernel, Node | None]]:
    """The kernels, each with the value of this function that launches it: for those of other functions, the call."""
    graph, facts = inside.graph, inside.facts
    roots = [n for n in graph.nodes if n in graph.escaping or n.op == "call"]
    nodes = [n for n in _behind(roots) if inside.reached(n.top_stmt) is not False]
    if graph.context.compiled:
        own = compiled_kernels(nodes, roots, facts, graph.context.shapeless)
    else:
        own = kernels(nodes, facts)
    yield from ((k, k.node) for k in own)
    for call in nodes:
        called = facts.into(call) if across and call.op == "call" else ()
        ways = [list(_launched(f, across)) for f in called if f.graph.context.class_name is None]
        if ways and len(ways) == len(called):
            yield from ((k, call) for k, _ in min(ways, key=len))


def _behind(roots: Iterable[Node]) -> list[Node]:
    """What the roots are made of: MLX is lazy, and runs nothing else."""
    seen: set[Node] = set()
    for root in roots:
        seen.update(region(root, seen))
    return sorted(seen, key=lambda n: n.id)


def _line(graph: Graph, node: Node | None) -> int:
    """The line of the function that computes a node, or calls the helper that does."""
    at = None if node is None else node.top_cst
    start = graph.source.start if at is None else graph.source.span(at)[0]
    return graph.source.file.position(start)[0]
