"""Rotations by tables of cosines and sines that the function itself does not make: what its file says of them.

A rotation is read in two steps. `turned` sees its form, whatever the tables hold. Then the tables are followed to
where the file makes them, and the whole is read as a rotary embedding. The file may offer several ways, such as two
callers: each must give one, or leave open what it gives.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace

from fuselint.graph.callers import is_given
from fuselint.graph.canonical import parts
from fuselint.graph.flow import is_none
from fuselint.graph.model import Graph, Node, region
from fuselint.graph.rotations import Rotation, Turned, read, read_permuted, turned, turned_with_rest, with_rest
from fuselint.graph.shapes import Shape
from fuselint.graph.symbols import Expr
from fuselint.graph.values import Value
from fuselint.graph.wholes import Whole, calls, wholes

ROOTS = frozenset("concatenate add subtract reshape flatten".split())
JOINS = frozenset({"concatenate", "stack"})


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """The rotation as one way through the file makes it."""

    whole: Whole
    rotation: Rotation


@dataclass(frozen=True, slots=True, eq=False)
class Tabled:
    """A rotation of x by tables.

    others: further values that the same tables rotate, and from what. whole_rows: tables are as long as what they
    rotate, not half as long. ways: the one that says most comes first. open: the tables may also come from outside of
    the file.
    """

    root: Node
    x: Node
    others: tuple[tuple[Node, Node], ...]
    tables: tuple[Node, ...]
    whole_rows: bool
    ways: tuple[Way, ...]
    open: bool

    @property
    def makers(self) -> tuple[str, ...]:
        """The functions in which the cosines are taken."""
        found: dict[str, None] = {}
        for way in self.ways:
            for node in way.whole.graph.nodes:
                if node.op == "cos":
                    found[way.whole.original[node][1].frame.qualname] = None
        return tuple(found)


def tabled(graph: Graph, taken: Container[Node]) -> Iterator[Tabled]:
    """The rotations of a function by tables from elsewhere, once for each pair of tables. taken: known rotations."""
    if graph.ops.isdisjoint(JOINS) or "multiply" not in graph.ops or "cos" not in graph.source.file.text:
        return  # tables are followed inside the file
    groups: dict[frozenset[Value], list[tuple[Node, Turned]]] = {}
    seen: set[Node] = set()
    for node in graph.nodes:
        if node in taken or node in seen or node.op not in ROOTS or graph.facts.kind(node) == "scalar":
            continue
        found = _turned(graph, node)
        if found is None or any(n in seen or n in taken for n in node.inputs):
            continue
        chain = [node]
        while (above := _next(graph, chain[-1], found)) is not None:
            chain.append(above)
        seen.update(chain)
        groups.setdefault(frozenset(found.tables), []).append((chain[-1], found))
    for group in groups.values():
        read = _followed(graph, group)
        if read is not None and _stands_here(graph, read):
            yield read


def _turned(graph: Graph, node: Node) -> Turned | None:
    value = graph.canonical.of(node)
    return turned_with_rest(graph.canonical, value) or turned(graph.canonical, value)


def _next(graph: Graph, node: Node, found: Turned) -> Node | None:
    """The one reader of a rotated value, where it is the same rotation: cast, reshaped, joined with the rest of x."""
    users = graph.users.get(node, ())
    if len(users) != 1 or node in graph.escaping or users[0].op not in (*ROOTS, "astype"):
        return None
    above = _turned(graph, users[0])
    return users[0] if above is not None and set(above.tables) == set(found.tables) else None


def _followed(graph: Graph, group: list[tuple[Node, Turned]]) -> Tabled | None:
    root, found = group[0]
    known = set(region(root, ()))
    tables = [n for value in found.tables for n in _held(graph, value, known)]
    ways: list[Way] = []
    left_open = False
    for whole in wholes(graph, root, frozenset(n for t in tables for n in region(t, ()))):
        rotation = None if whole is None else _read(whole)
        if whole is not None and rotation is not None:
            ways.append(Way(whole, rotation))
        elif whole is not None and _is_given_positions(whole):
            return None
        elif whole is None or _is_open(whole):
            left_open = True
        else:
            return None
    if not ways or not _agree(ways):
        return None
    if all(w.rotation.angles.offset is None for w in ways) and not ways[0].whole.through:
        return None  # positions of which nothing is known
    x, *further = [_rotated(graph, *pair) for pair in group]
    others = tuple((n, x) for (n, _), x in zip(group[1:], further, strict=True))
    if ways[0].rotation.written is not None and not others and not _is_called_twice(graph):
        return None  # another function, but where queries and keys are both rotated so
    ways.sort(key=lambda w: w.rotation.angles.offset is None)
    return Tabled(root, x, others, tuple(tables), found.whole_rows, tuple(ways), left_open)


def _rotated(graph: Graph, root: Node, found: Turned) -> Node:
    """The node of x: all of it, where the rest of x joins what is rotated."""
    known = set(region(root, ()))
    return [n for n in graph.canonical.nodes((_turned(graph, root) or found).x) if n in known][-1]


def _read(whole: Whole) -> Rotation | None:
    c = whole.graph.canonical
    value = c.of(whole.root)
    found = with_rest(c, value) or read(c, value) or read_permuted(c, value)
    if found is None or not all(b.scalar or b.op == "attr" for b, _ in found.factor.factors):
        return None  # an argument may be an array of factors
    return found


def _held(graph: Graph, value: Value, known: Container[Node]) -> list[Node]:
    """The node of a table, or those that it is made of, where the code has its operations in another order."""
    nodes = [n for n in graph.canonical.nodes(value) if n in known]
    return nodes[-1:] or list(dict.fromkeys(n for part in parts(value) for n in _held(graph, part, known)))


def _is_called_twice(graph: Graph, depth: int = 0) -> bool:
    """Whether the file calls a function at two places, or what alone calls it."""
    found = list(calls(graph))
    return len(found) > 1 or (len(found) == 1 and depth < 3 and _is_called_twice(found[0][0], depth + 1))


def _is_open(whole: Whole) -> bool:
    """Whether the tables are arguments that nobody in the file gives, or the positions are, whatever their rank is."""
    turns = [n for n in whole.graph.nodes if n.op in ("cos", "sin")]
    if not turns:
        return True
    given = {n for t in turns for n in region(t, ()) if n in whole.outside}
    return any(_read(stated) is not None for rank in (1, 2) for stated in [_with_rank(whole, given, rank)])


def _is_given_positions(whole: Whole) -> bool:
    """Whether what the function counts where an argument is left out is an argument that other files give: any
    positions, perhaps others in each row."""
    turns = [n for n in whole.graph.nodes if n.op in ("cos", "sin")]
    given = {n for t in turns for n in region(t, ()) if n in whole.outside}
    optional = [
        n for n in sorted(given, key=lambda n: n.id) if isinstance(d := n.attrs.get("default"), Node) and is_none(d)
    ]
    return any(is_given(*whole.original[n]) for n in optional)


def _with_rank(whole: Whole, arguments: set[Node], rank: int) -> Whole:
    """As if arguments had so many axes."""
    graph = replace(whole.graph)
    for node in arguments:
        known = whole.graph.facts
        if known.kind(node) in ("array", "unknown") and known.rank(node) is None:
            dims = tuple(Expr.name(f"%{node.id}.shape[{axis}]") for axis in range(rank))
            graph.facts.state(node, Shape(None, dims), known.dtype(node), "as is assumed here")
    return replace(whole, graph=graph)


def _agree(ways: list[Way]) -> bool:
    return len({_form(w.rotation) for w in ways}) == 1


def _form(r: Rotation) -> tuple[object, ...]:
    return r.pairing, r.written, r.angles.axis, r.inverse, r.dims is None


def _stands_here(graph: Graph, found: Tabled) -> bool:
    """Whether the finding stands in this function, not in the helper that rotates, or in the function that calls it.

    It stands in the helper, but where that rotates before heads and positions change places, and one function alone
    calls it: the fused call belongs behind that function's transpose.
    """
    before = found.ways[0].rotation.angles.axis == -3
    frame = found.root.frame
    while frame.parent is not None and "<locals>" in frame.qualname:
        frame = frame.parent
    if frame.depth == 0:
        return not (before and _sole_caller(graph) is not None)
    helper = None if graph.program is None else graph.program.graph(frame.qualname)
    return helper is not None and before and frame.depth == 1 and _sole_caller(helper) is graph


def _sole_caller(graph: Graph) -> Graph | None:
    """The function that makes every call of this one in the file, with its body in place."""
    callers = {other for other, _ in calls(graph)}
    only = callers.pop() if len(callers) == 1 else None
    mine = graph.context.qualname
    placed = only is not None and any(f.depth == 1 and f.qualname == mine for f in only.frames)
    return only if placed else None
