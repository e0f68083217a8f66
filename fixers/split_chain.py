"""The fix of FUS302: views change places with elementwise operations, a number for a filled array, plain mx.compile.

What lies deeper than a kernel goes, or is read by several, is for the author to compile apart: that is advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fuselint.graph.chains import fuses
from fuselint.graph.cuts import Cut, Move
from fuselint.graph.model import PROPERTIES, Graph, Node, Slice, operands
from fuselint.rulebook import Hole, Match, NoFix, Part, Replacement
from fuselint.source.formula import ATOM, Formula, NoText, Text

ADVICE = {
    "depth": "a kernel of one's own (mx.fast.metal_kernel) computes it in one pass; another order rounds differently",
    "inputs": "arrays that are stacked count as one",
    "readers": "compile its readers apart, each with the value computed in it: what one compiled function computes "
    "twice, MLX computes once",
    "shapeless": "leave shapeless=True out where it is compiled, if few shapes reach it",
}

NUMBERS = {"zeros": "0", "zeros_like": "0", "ones": "1", "ones_like": "1"}


def fix(graph: Graph, match: Match) -> Replacement | NoFix:
    cut: Cut = match.data["cut"]
    try:
        if cut.kind == "view" and cut.move is not None:
            return _exchanged(graph, cut.move)
        if cut.kind == "full":
            return _numbers(graph, cut)
        if cut.kind == "shapeless" and _is_plain_partial(match.root.cst):
            return Replacement(parts=(Part(match.root, "{mx}.compile"),), holes={})
    except NoText as why:
        return NoFix(f"by hand: {why}")
    return NoFix(ADVICE[cut.kind])


def _is_plain_partial(decorator: cst.CSTNode | None) -> bool:
    """`partial(mx.compile, shapeless=True)`, and nothing else."""
    if not isinstance(decorator, cst.Call) or len(decorator.args) != 2:
        return False
    keyword = decorator.args[1].keyword
    return decorator.args[0].keyword is None and keyword is not None and keyword.value == "shapeless"


@dataclass
class _Template:
    """Text with `{hole}` for each value that isn't written out."""

    graph: Graph
    holes: dict[str, Hole] = field(default_factory=dict)

    def hole(self, node: Node) -> str:
        name = next((name for name, held in self.holes.items() if held is node), None)
        if name is None:
            name = f"v{len(self.holes)}"
            self.holes[name] = node
        return f"{{{name}}}"

    def scalar(self, value: Any) -> str:
        if isinstance(value, Node):
            if self.graph.facts.kind(value) != "scalar":
                raise NoText("a size is not a plain number")
            return self.hole(value)
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        raise NoText("a size is not a plain number")

    def formula(self, nodes: Sequence[Node], names: dict[Node, str], numbers: dict[Node, str]) -> Text:
        """The operations as one expression."""
        for n in nodes:
            for k in operands(n):
                if k not in nodes and k not in names and k not in numbers and k.op != "const":
                    names[k] = self.hole(k)
        made = _Formula(self.graph, nodes, names, numbers)
        if made.statements:
            raise NoText("a value is read twice")
        return made.made[nodes[-1]]

    def view(self, node: Node, base: str) -> str:
        attrs = node.attrs
        if node.op == "index":
            parts = attrs["index"] if isinstance(attrs["index"], tuple) else (attrs["index"],)
            return f"{base}[{', '.join(map(self.part, parts))}]"
        if node.op == "reshape" and isinstance(attrs["shape"], tuple):
            return f"{base}.reshape({', '.join(map(self.scalar, attrs['shape']))})"
        if node.op == "reshape" and isinstance(attrs["shape"], Node):
            return f"{base}.reshape({self.hole(attrs['shape'])})"
        if node.op == "transpose" and isinstance(attrs.get("axes"), tuple):
            return f"{base}.transpose({', '.join(map(self.scalar, attrs['axes']))})"
        if node.op == "swapaxes":
            return f"{base}.swapaxes({self.scalar(attrs['axis1'])}, {self.scalar(attrs['axis2'])})"
        if node.op == "expand_dims" and isinstance(attrs["axis"], int):
            return f"{{mx}}.expand_dims({base}, {attrs['axis']})"
        if node.op == "squeeze" and isinstance(attrs.get("axis"), int):
            return f"{base}.squeeze({attrs['axis']})"
        raise NoText(f"its `{node.op}` can't be said of another value")

    def part(self, part: Any) -> str:
        if part is Ellipsis:
            return "..."
        if isinstance(part, Slice):
            ends = [("" if e is None else self.scalar(e)) for e in (part.start, part.stop)]
            return ":".join(ends if part.step is None else [*ends, self.scalar(part.step)])
        return self.scalar(part)


class _Formula(Formula):
    def dtype(self, value: Any) -> str:
        return self.names[value] if isinstance(value, Node) and value in self.names else super().dtype(value)


def _exchanged(graph: Graph, move: Move) -> Replacement:
    source, chain = move.source, move.chain
    if len(move.paths) > 1:
        raise NoText("take each of the views first, and the operations on what each of them gives")
    if source is None or source in chain or not _is_one_chain(graph, move, source):
        raise NoText("take the view of each operand, and those of single rows as they are broadcast")
    template, path = _Template(graph), move.paths[0]
    if move.after:
        made = template.formula(chain, {path[-1]: template.hole(source)}, {}).at(ATOM)
        for view in path:
            made = template.view(view, made)
        return Replacement(parts=(Part(chain[-1], made),), holes=template.holes)
    viewed = template.hole(source)
    for view in path:
        viewed = template.view(view, viewed)
    made = template.formula(chain, {source: viewed}, {}).text
    return Replacement(parts=(Part(path[-1], made),), holes=template.holes)


def _is_one_chain(graph: Graph, move: Move, source: Node) -> bool:
    """Whether the operations read one array and numbers, and nothing but the views reads what they make."""
    facts, chain, path = graph.facts, move.chain, move.paths[0]
    first, end = (source, chain[-1]) if move.after else (chain[-1], path[-1])
    if any(view.inputs[0] is not at for at, view in zip((first, *path), path, strict=False)):
        return False
    inside = {*chain, *path}
    for n in inside - {end}:
        if n in graph.escaping or any(u not in inside and u.op not in PROPERTIES for u in graph.users.get(n, ())):
            return False
    read = path[-1] if move.after else source
    given = {k for n in chain for k in n.inputs if k not in chain}
    return all(map(fuses, chain)) and all(k is read or facts.kind(k) == "scalar" or k.op == "const" for k in given)


def _numbers(graph: Graph, cut: Cut) -> Replacement:
    (filled,) = cut.by
    if filled.op not in NUMBERS:
        raise NoText("a number, or mx.array(value, dtype) where the dtype matters, needs no kernel")
    dtype = graph.facts.dtype(filled)
    template, parts = _Template(graph), []
    for reader in sorted(cut.nodes - {filled}, key=lambda n: n.id):
        others = [k for k in reader.inputs if k is not filled and graph.facts.kind(k) == "array"]
        if dtype.name == "bool_" or not any(graph.facts.dtype(k) == dtype for k in others):
            raise NoText("mx.array(value, dtype) needs no kernel, and keeps the dtype")
        parts.append(Part(reader, template.formula([reader], {}, {filled: NUMBERS[filled.op]}).text))
    return Replacement(parts=tuple(parts), holes=template.holes)
