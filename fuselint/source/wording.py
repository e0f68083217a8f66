"""The words of a replacement: its templates with text for each hole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from fuselint.graph.model import Node, Statement
from fuselint.rulebook import Hole, Replacement, Synthesised
from fuselint.source.confirm import Slot
from fuselint.source.express import Place, Writer, Written
from fuselint.source.hoist import CORE, NN, Refused, Surroundings, taken_names
from fuselint.source.layout import delimited
from fuselint.source.saving import Saved, bind, save
from fuselint.source.sites import Site

MODULES = {"mx": CORE, "nn": NN}
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass
class Wording:
    """saved: names that the fix gives to operands. moves: whether an operand moves out of a statement that dies."""

    replacement: Replacement
    sites: Sequence[Site]
    writer: Writer
    around: Surroundings
    saved: list[Saved] = field(default_factory=list)
    moves: bool = False

    def __post_init__(self) -> None:
        for s in self.sites:
            s.template = self._ordered(s.part.template)

    def write(self, gone: frozenset[Statement]) -> None:
        """The text of each part, given what dies."""
        moved: list[cst.CSTNode] = []
        made: list[Node] = []
        uses = Counter(n for p in self.replacement.parts for n in PLACEHOLDER.findall(p.template))
        for site in self.sites:
            at = Place(site.expr, site.stmt, gone)
            written = self._written(site, at, uses)
            while self._share(written, at):
                written = self._written(site, at, uses)
            moved += [e for w in written.values() for e in w.moved]
            made += [n for w in written.values() for n in w.made]
            site.text = _filled(site.template, written)
            site.names = frozenset().union(*(w.names for w in written.values()))
        dead = {s.cst for s in gone}
        calls = [e for n in made if (e := n.top_cst) is not None]
        self.moves = any(self.writer.tree.statement(e) in dead for e in [*moved, *calls])
        moved += [e for s in self.saved for e in s.moved]
        for i, a in enumerate(moved):
            for b in moved[i + 1 :]:
                if a is b or b in self.writer.tree.up(a) or a in self.writer.tree.up(b):
                    raise Refused("an operand would be evaluated twice")
        made += [n for s in self.saved for n in s.made]
        if len(set(made)) < len(made) or any(e in moved or set(moved) & {*self.writer.tree.up(e)} for e in calls):
            raise Refused("an operand would be evaluated twice")

    def _written(self, site: Site, at: Place, uses: Mapping[str, int]) -> dict[str, Written]:
        """The text of each placeholder of a part."""
        written: dict[str, Written] = {}
        for name in dict.fromkeys(PLACEHOLDER.findall(site.template)):
            hole = self.replacement.holes.get(name)
            if hole is None:
                written[name] = Written(self._fixed_text(name))
                continue
            written[name] = self._hole(hole, at, name)
            if (written[name].moved or written[name].made) and uses[name] > 1:
                written[name] = self._bound(hole, written[name], at, name)
        return written

    def _share(self, written: Mapping[str, Written], at: Place) -> bool:
        """Gives a name to a value that several operands are taken out of a helper with, if there is one."""
        if len(self.sites) > 1 or not any(w.made for w in written.values()):
            return False
        values = self.writer.graph.values
        parts = Counter(n for w in written.values() for n in (*w.made, *(values[e] for e in w.moved if e in values)))
        shared = [n for n, count in parts.items() if count > 1 and n not in self.writer.fixed]
        if not shared:
            return False
        node = max(shared, key=lambda n: n.id)
        taken = self.writer.local | taken_names(self.writer.source.file)
        saved = save(self.writer, node, "part", at, taken)
        if saved is None:
            saved = bind(self.writer, node, self.writer.write(node, at), self._named(node, taken), at, taken)
        if saved is None or saved.instead in {s.instead for s in self.saved if s.instead is not None}:
            return False
        self.saved.append(saved)
        self.writer.fixed[node] = saved.name
        return True

    def _named(self, node: Node, taken: Collection[str]) -> str:
        """What a helper calls a value, or what it is made of."""
        frames = (f for f in self.writer.graph.frames if f.parent is not None)
        own = (n.value for f in frames for n, v in f.values.items() if v is node and isinstance(n, cst.Name))
        name = next(own, "part")
        base = node
        while base.op not in ("param", "attr") and base.inputs:
            base = base.inputs[0]
        return f"{base.attrs['name']}_{name}" if name in taken and "name" in base.attrs else name

    @cached_property
    def helper(self) -> tuple[str, tuple[int, ...]]:
        if self.replacement.helper is None:
            raise Refused("the template calls a helper that isn't given")
        return self.around.helper(self.replacement.helper)

    def _fixed_text(self, name: str) -> str:
        if name == "helper":
            return self.helper[0]
        target = MODULES.get(name) or self.replacement.modules.get(name)
        if target is not None:
            return self.around.alias(target)
        raise Refused(f"the template has no value for {{{name}}}")

    def _ordered(self, template: str) -> str:
        """The template, with the arguments as a helper that the module has takes them."""
        m = re.fullmatch(r"(.*)\{helper\}\(([^()]*)\)(.*)", template)
        if m is None:
            return template
        args, order = [a.strip() for a in m[2].split(",")], self.helper[1]
        if len(args) != len(order):
            raise Refused("the helper that the module has takes other arguments")
        return f"{m[1]}{{helper}}({', '.join(args[i] for i in order)}){m[3]}"

    def _hole(self, hole: Hole, at: Place, name: str) -> Written:
        if isinstance(hole, Node):
            try:
                return self.writer.write(hole, at)
            except Refused:
                saved = save(
                    self.writer, hole, name, at, self.writer.local | taken_names(self.writer.graph.source.file)
                )
                if saved is None or (saved.instead is not None and saved.instead in {s.instead for s in self.saved}):
                    raise
            self.saved.append(saved)
            self.writer.fixed[hole] = saved.name
            return Written(saved.name, frozenset({saved.name}))
        found = PLACEHOLDER.findall(hole.template)
        parts = {n: self._operand(hole, n, at) for n in dict.fromkeys(found)}
        for n, p in parts.items():
            if (p.moved or p.made) and found.count(n) > 1:
                raise Refused(f"`{p.text}` would be evaluated twice")
        return Written(
            _filled(hole.template, parts),
            frozenset().union(*(p.names for p in parts.values())),
            tuple(e for p in parts.values() for e in p.moved),
            tuple(n for p in parts.values() for n in p.made),
        )

    def _bound(self, hole: Hole, found: Written, at: Place, name: str) -> Written:
        """A name for an operand that the template reads more than once."""
        taken = self.writer.local | taken_names(self.writer.source.file)
        saved = bind(self.writer, hole, found, name, at, taken) if isinstance(hole, Node) else None
        if saved is None or len(self.sites) > 1:
            raise Refused(f"`{found.text}` would be evaluated twice")
        self.saved.append(saved)
        return Written(saved.name, frozenset({saved.name}))

    def _operand(self, hole: Synthesised, name: str, at: Place) -> Written:
        node = hole.operands.get(name)
        return Written(self._fixed_text(name)) if node is None else self.writer.write(node, at)

    def slot(self, site: Site) -> Slot:
        """The template with a name of its own for each value it reads: what confirm.py looks for in the new text."""
        values: dict[str, Node] = {}

        def named(node: Node) -> Written:
            values[f"hole_{len(values)}_"] = node
            return Written(f"hole_{len(values) - 1}_")

        parts: dict[str, Written] = {}
        for name in dict.fromkeys(PLACEHOLDER.findall(site.template)):
            hole = self.replacement.holes.get(name)
            if hole is None:
                parts[name] = Written(self._fixed_text(name))
            elif isinstance(hole, Node):
                parts[name] = named(hole)
            else:
                inner = {
                    n: named(hole.operands[n]) if n in hole.operands else Written(self._fixed_text(n))
                    for n in dict.fromkeys(PLACEHOLDER.findall(hole.template))
                }
                parts[name] = Written(_filled(hole.template, inner))
        return Slot(site.part.root, _filled(site.template, parts), values)

    def templates(self) -> dict[Node, str]:
        """What stands for each root, with only the operands left open."""
        holes = self.replacement.holes
        return {
            s.part.root: PLACEHOLDER.sub(lambda m: m[0] if m[1] in holes else self._fixed_text(m[1]), s.template)
            for s in self.sites
        }


def _filled(template: str, parts: Mapping[str, Written]) -> str:
    """The template with text for its placeholders, in parentheses where they need them."""

    def fill(m: re.Match[str]) -> str:
        one = parts[m[1]]
        return one.text if delimited(template[: m.start()], template[m.end() :]) else one.atom

    return PLACEHOLDER.sub(fill, template)


def leaves(hole: Hole) -> Iterator[Node]:
    """The values of the graph that a hole stands for."""
    if isinstance(hole, Synthesised):
        yield from hole.operands.values()
    else:
        yield hole
