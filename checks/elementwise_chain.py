"""FUS301 unfused-elementwise-chain: elementwise operations that run one by one.

What it does: finds values made by several elementwise operations in a row (arithmetic, activations, `where`, casts)
that one compiled function would compute in one pass: gates, modulation, soft caps, snake activations, residuals with a
scale, rotary application. Operations are grouped exactly as `mx.compile` groups them.

Why: each operation reads its operands from memory and writes its result back. `nn.silu(gate) * up` moves five tensors
where three would do; a gelu written out moves eighteen where two would do.

When not to: where the code is compiled already, also by another file of the package (of code that runs both ways, the
finding says where it does which), where it runs once (loading, tables), and for a function that is called
with another Python number at every call, which `mx.compile` would compile again each time. Not reported is what runs
once for each pass through a whole model (a sampler's step, guidance, the noise of a sample, an image that is resized,
decibels, work beside the loop over the layers, methods of a model that neither a layer nor a loop calls) and what is
small: numbers of a row, lengths, positions, coordinates, codes, the gate of a channel.

Fix safety: the compiled helper runs the same operations in the same order and dtypes. On the CPU the values are
bit-identical but for `x**2` and `x**-1` in float32, which a compiler writes as a product and a quotient: at most the
last digit changes, for the better. A GPU's compiler may contract a product and a sum into one operation that rounds
once. Safe where every operand is known to be an array or a number that stays; unsafe where an argument may be a number
that changes from call to call. An operand that a helper makes is taken out of the helper where it always makes it, in
one expression; else the operations of the caller alone are compiled. So are those before an assignment in place
(`x += ...`). A dtype that the module names, such as `Settings.precision`, is read in the helper, which keeps the one
that it sees first: unsafe. Advice only where a number changes, where an operand is changed in place between the
operations, where a dtype that the caller gives would have to be an argument, and for a literal -0.0, which compiled
kernels print as 0.

For the fixer, `match.holes` holds the helper's parameters in order of first use, by wished name, and `match.data`:

    nodes: tuple[Node, ...]        the chain in evaluation order; the last is the root, and the only output
    kernels: int                   kernels that eager MLX runs for it now
    gated: bool                    whether one of them is an nn activation, or a sigmoid that is multiplied
    aliases: dict[Node, str]       other reads of what a hole holds, such as a second self.eps
    scalars: frozenset[str]        the holes that are Python numbers of an instance, such as self.eps
    either: frozenset[str]         the holes that may be arrays or such numbers
    dtypes: dict[Node, str]        dtypes that the module names, such as Settings.precision, which the helper reads
    derived: tuple[Node, ...]      numbers that the helper computes from one that it is given
    shapeless: bool                whether the helper may be compiled with shapeless=True
    no_fix: str                    why it is advice only, or ""

Constants stay in the helper's body as literals. A cast to `x.dtype` stays too, if its x is among the holes. The last
cast to the dtype of another value stays where it is, outside the helper, unless too little would be left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import libcst as cst

from fuselint.finding import Numerics, Obligation
from fuselint.graph import ops
from fuselint.graph.callers import given, is_given_an_array
from fuselint.graph.chains import ARITHMETIC, Chain, before_cast, chains, may_chain, parts
from fuselint.graph.fuse import compiled
from fuselint.graph.identities import none_test
from fuselint.graph.model import Graph, Node, operands
from fuselint.graph.op import Op
from fuselint.graph.ops import function_of
from fuselint.graph.origins import ACTIVATIONS, SHORT, Origins
from fuselint.graph.primitives import ACTIVATIONS as FUNCTIONS
from fuselint.graph.shapes import SCALAR, Shape
from fuselint.graph.tape import same_shape
from fuselint.graph.trace import trace
from fuselint.graph.worth import changes, counts, is_few, is_lowest, is_rare
from fuselint.rulebook import Example, FusedKernel, Match
from fuselint.source.layout import one_line
from fuselint.traffic.kernels import Kernel, kernels

CODE, NAME = "FUS301", "unfused-elementwise-chain"

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"


def unfused(gate: Any, up: Any) -> Any:
    import mlx.core as mx

    return gate * mx.sigmoid(gate) * up


def fused(gate: Any, up: Any) -> Any:
    import mlx.core as mx

    def swiglu(gate: Any, up: Any) -> Any:
        return gate * mx.sigmoid(gate) * up

    return mx.compile(swiglu)(gate, up)


def find(graph: Graph) -> Iterator[Match]:
    if graph.context.compiled or graph.context.cold or _is_a_loss(graph):
        return
    if not may_chain(graph) and not any(_by_default(n) is not None for n in graph.nodes):
        return
    origins: Origins | None = None
    chained: set[Node] = set()
    for chain in chains(graph):
        origins = origins or Origins(graph)
        match = _match(graph, origins, chain)
        if match is not None:
            chained.update(chain.nodes)
            match.narrower = partial(_narrower, graph, origins, chain)
            yield match
    if any(_by_default(n) is not None for n in graph.nodes):
        yield from _given_gates(graph, origins or Origins(graph), chained)


def _narrower(graph: Graph, origins: Origins, chain: Chain) -> Match | None:
    """A match on what is left of a chain whose helper can't be written, if that is worth one."""
    for part in parts(graph, chain):
        match = _match(graph, origins, part)
        if match is not None and not match.data["no_fix"] and _is_enough(match):
            return match
    return None


def _given_gates(graph: Graph, origins: Origins, chained: set[Node]) -> Iterator[Match]:
    """`self.act(gate) * up` with an activation that the constructor is given, and that is one of MLX's by default."""
    for product in graph.nodes:
        if product.op != "multiply" or product in chained or len(product.inputs) != 2:
            continue
        for call, other in (product.inputs, product.inputs[::-1]):
            op = _by_default(call)
            if op is None or _is_asked(graph, product) or graph.users.get(call) != (product,) or call in graph.escaping:
                continue
            kind = graph.facts.kind(other)
            made = origins.of(other) & {"computed", "given"} if kind == "array" else {}
            if not made and not (kind in ("array", "unknown") and other.op == "call"):
                continue
            yield _given_gate(product, call, other, op)
            break


def _by_default(call: Node) -> Op | None:
    """The activation that a call makes, unless the constructor was given another one."""
    default = call.attrs.get("default") if call.op == "call" and len(call.inputs) == 1 else None
    op = ops.resolve_call(default.attrs["target"] or "") if default is not None and "target" in default.attrs else None
    return op if op is not None and (op.function or op.name) in FUNCTIONS else None


def _is_asked(graph: Graph, product: Node) -> bool:
    """Whether it is the other way of a choice by what the activation is: the fixed code."""
    tests = [u.attrs["test"] for u in graph.users.get(product, ()) if u.op == "phi"]
    return any((t.op == "call" and t.attrs.get("target") == "builtins.isinstance") or t.op == "compare" for t in tests)


def _given_gate(product: Node, call: Node, other: Node, op: Op) -> Match:
    default = call.attrs["default"]
    new = {"new": default} if default.op == "new" else {}
    activation = replace(call, op=op.name, attrs=new)
    gate = replace(product, inputs=tuple(activation if n is call else n for n in product.inputs))
    path = call.attrs["path"] or "the activation"
    usual = default.attrs["target"].removeprefix("mlx.")
    return Match(
        code=CODE,
        root=product,
        holes={"gate": call.inputs[0], "up": other},
        message=f"{path}, by default {usual}, and multiply run one by one",
        obligations=[Obligation(f"{path} may be another one", "proven", "the new code asks which it is")],
        region=frozenset({activation, gate}),
        fused=(FusedKernel("mx.compile", (call.inputs[0], other), product),),
        data={"kernels": 2, "gated": True, "no_fix": "", "nodes": (activation, gate), "given": (path, default, op)},
    )


def _match(graph: Graph, origins: Origins, chain: Chain) -> Match | None:
    """A last cast to another value's dtype stays outside the helper, if what is left is worth one."""
    inner = before_cast(graph, chain)
    if inner is not None:
        match = _Reading(graph, origins, inner).match()
        if match is not None and _is_enough(match):
            return match
    return _Reading(graph, origins, chain).match()


def _is_enough(match: Match) -> bool:
    return bool(match.data["kernels"] >= LEAST or match.data["gated"])


def _is_a_loss(graph: Graph) -> bool:
    """A free function with a log-sigmoid: the preference losses, on one number a sequence."""
    return graph.context.class_name is None and any(n.op == "nn.log_sigmoid" for n in graph.nodes)


MOST_COMPUTED = 6
"""Numbers that a helper computes from others, at most: what reads one twice is written out twice."""

MOST_FOLLOWED = 40
"""Numbers that another is followed to, at most."""

LEAST = 3
"""Kernels that are reported where nobody says otherwise."""

NUMBERS = ("scalar", "unknown")
"""Kinds of what may be a number."""

SELECTIONS = frozenset({"argpartition", "argsort", "argmax", "argmin", "topk"})

MOST_CALLS = 20
"""Calls of a function that are looked at, at most."""

LONGEST_TEXT = 60
"""Characters of an expression that stands in a message."""

LARGE_NEGATIVE = -1e4
"""A number at least this far below zero fills masked scores."""


@dataclass(eq=False)
class _Reading:
    """One chain: what it reads, whether it is worth a helper, and what stands in the way."""

    graph: Graph
    origins: Origins
    chain: Chain
    holes: dict[str, Node] = field(default_factory=dict)
    aliases: dict[Node, str] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)
    either: set[str] = field(default_factory=set)
    dtypes: dict[Node, str] = field(default_factory=dict)
    obligations: list[Obligation] = field(default_factory=list)
    no_fix: str = ""
    changing: bool = False  # whether a number among the operands may be another at every call

    def match(self) -> Match | None:
        nodes = self.chain.nodes
        if len({n.frame for n in nodes}) == 1 and self.chain.root.frame.depth > 0:
            return None  # a helper's own: found where the helper is read by itself
        eager = len(self.launches)
        if eager < 2 or not self.saves_passes() or not self.is_worth_it():
            return None
        self.read_operands()
        self.look_for_obstacles()
        if self.changing and not self.is_gated():
            return None  # a step with a number that changes: nothing to rewrite, and little to say
        return Match(
            code=CODE,
            root=self.chain.root,
            holes=dict(self.holes),
            message=f"{_listed(nodes)} run one by one",
            obligations=self.obligations,
            region=frozenset((*nodes, *self.derived)),
            fused=tuple(self.fused_kernels()),
            numerics=self.numerics(),
            data={
                "nodes": nodes,
                "kernels": eager,
                "gated": self.is_gated(),
                "aliases": self.aliases,
                "scalars": frozenset(self.scalars),
                "either": frozenset(self.either),
                "dtypes": self.dtypes,
                "derived": tuple(self.derived),
                "shapeless": self.is_shapeless(),
                "no_fix": self.no_fix,
            },
        )

    @cached_property
    def launches(self) -> list[Kernel]:
        """The kernels on activations: not those on weights, rows' numbers and single numbers."""
        found = kernels(self.chain.nodes, self.graph.facts)
        result = {k.node: k.writes[0].shape for k in found}  # of each node; a cast of an operand may be smaller
        return [k for k in found if self.is_on_activations(k, result[k.node])]

    def is_on_activations(self, kernel: Kernel, result: Shape | None) -> bool:
        shape = kernel.writes[0].shape
        if shape == SCALAR or kernel.node is None or not same_shape(shape, result):
            return False
        source = kernel.reads[0].node if kernel.reads else None
        if kernel.op == "AsType" and kernel.node.op != "astype" and source is not None:
            # An operand that may be a number is cast only if it is an array.
            return self.graph.facts.kind(source) == "array" and bool(self.origins.of(source) & ACTIVATIONS)
        return bool(self.origins.of(kernel.node) & ACTIVATIONS)

    def saves_passes(self) -> bool:
        """Whether several operations are as large as the result: else the others are as small as a gate of channels.

        One alone, such as a clip, may be several kernels too. It is no chain, whatever its limits are made of.
        """
        result = next((k.writes[0].shape for k in self.launches if k.node is self.chain.root), None)
        return len({k.node for k in self.launches if same_shape(k.writes[0].shape, result)}) > 1

    # -- worth --------------------------------------------------------------------------------------------------------

    @property
    def outside(self) -> list[Node]:
        """The chain's operands, in order of first use."""
        inside = set(self.chain.nodes)
        return list(dict.fromkeys(k for n in self.chain.nodes for k in n.inputs if k not in inside))

    def is_worth_it(self) -> bool:
        facts = self.graph.facts
        arrays = [n for n in self.outside if facts.kind(n) in ("array", "unknown")]
        found = [self.origins.of(n) for n in arrays]
        every = frozenset().union(*found)
        root = self.chain.root
        if "foreign" in every or facts.dtype(root).integral or root in self.origins.identities:
            return False  # another library's, a mask, positions, indices, an image that leaves
        if root in self.origins.totals or root in self.origins.angles or root in self.origins.points:
            return False  # a loss (under a gradient nothing compiled is fused), angles of a rotation, coordinates
        if self.is_normalisation(found):
            return False  # an image or a latent, once
        rare = is_few(self.graph, root) or is_rare(self.graph, self.chain.nodes, gated=self.is_gated())
        if rare and not self.graph.context.hot:
            return False
        if self.origins.of(root) == {"identity"} or counts(self.graph, self.chain.nodes):
            return False  # lengths and positions
        if any(map(_is_short_literal, arrays)):
            return False  # rows of coordinates or colours
        if not any(self.origins.of(n) & {"computed", "given"} for n in arrays if facts.kind(n) == "array"):
            # Nothing says that these are arrays, but few numbers are put through so much.
            arguments = [n for n in arrays if n.op == "param"]
            if not arguments or not every <= {"unknown", "weight"} or len(self.chain.nodes) < 3:
                return False
            if not self.origins.speaks_of_arrays and any(map(self.is_given_no_array, arguments)):
                return False
        if self.only_selects():
            return False  # scores of a router or sampler: a few numbers a token
        return not self.builds_a_mask() or any("computed" in o for o in found)

    def is_given_no_array(self, parameter: Node) -> bool:
        """Whether the package calls the function, and no call shows an array there: it may be times of a clock."""
        calls = list(islice(given(self.graph, parameter), MOST_CALLS))
        return bool(calls) and not any(caller.facts.kind(argument) == "array" for caller, argument in calls)

    def is_normalisation(self, found: list[frozenset[str]]) -> bool:
        """`(image - mean) / std` with constants: work of a processor, before or after the model."""
        names = sorted(n.op for n in self.chain.nodes if n.op != "astype")
        return names in (["divide", "subtract"], ["add", "multiply"]) and sum(o <= {"table"} for o in found) >= 2

    def builds_a_mask(self) -> bool:
        for n in self.chain.nodes:
            for k in n.inputs:
                value = self.graph.facts.const(k.inputs[0] if k.op == "array" and k.inputs else k)
                if is_lowest(k) or (isinstance(value, (int, float)) and value <= LARGE_NEGATIVE):
                    return True
        return False

    def only_selects(self) -> bool:
        readers = self.graph.users.get(self.chain.root, ())
        return bool(readers) and all(u.op in SELECTIONS for u in readers) and self.chain.root not in self.graph.escaping

    def is_gated(self) -> bool:
        """Whether an activation is among them, or a sigmoid that another array is multiplied by."""
        for n in self.chain.nodes:
            name = function_of(n) or n.op
            if name in ("sigmoid", "nn.sigmoid"):
                if any(self.multiplies(u, n) for u in self.graph.users.get(n, ())):
                    return True
            elif name in FUNCTIONS:
                return True
        return False

    def multiplies(self, user: Node, node: Node) -> bool:
        others = [k for k in user.inputs if k is not node]
        arrays = all(self.graph.facts.kind(k) in ("array", "unknown") for k in others)
        return user in self.chain.nodes and user.op == "multiply" and bool(others) and arrays

    # -- the helper ---------------------------------------------------------------------------------------------------

    def read_operands(self) -> None:
        facts = self.graph.facts
        for n in self.chain.nodes:
            for k in (leaf for operand in operands(n) for leaf in self.made_of(operand)):
                if k in self.chain.nodes or k.op == "const":
                    continue
                if facts.kind(k) == "dtype" or (n.op == "astype" and n.attrs["dtype"] is k):
                    self.take_dtype(k)
                else:
                    self.take(k)
        self.holes = dict(self.in_order())

    @cached_property
    def derived(self) -> dict[Node, None]:
        """Numbers that are computed from one that another operand is, or is computed from: the helper computes them."""
        given = [k for k in self.outside if self.is_computed_number(k) or self.graph.facts.kind(k) in NUMBERS]
        below = {k: self.down(k) for k in given}
        bases = {k: [n for n in found if not self.is_computed_number(n)] for k, found in below.items()}
        shared = Counter(b for found in bases.values() for b in found if b.op != "const")
        made = {
            n for k in given if any(shared[b] > 1 for b in bases[k]) for n in below[k] if self.is_computed_number(n)
        }
        return dict.fromkeys(sorted(made, key=lambda n: n.id) if len(made) <= MOST_COMPUTED else ())

    def is_computed_number(self, node: Node) -> bool:
        return node.op in ARITHMETIC and node not in self.chain.nodes and self.graph.facts.kind(node) in NUMBERS

    def down(self, node: Node) -> list[Node]:
        """A number and all that it is computed from, each once."""
        found = [node]
        for n in found:
            found += [k for k in dict.fromkeys(n.inputs) if k not in found] if self.is_computed_number(n) else []
            if len(found) > MOST_FOLLOWED:
                break
        return found

    def made_of(self, node: Node) -> Iterator[Node]:
        """An operand, or those that the helper computes it from."""
        if node not in self.derived:
            yield node
        for k in dict.fromkeys(node.inputs) if node in self.derived else ():
            yield from self.made_of(k)

    def in_order(self) -> Iterator[tuple[str, Node]]:
        """Arguments first, in the function's own order among themselves; weights and numbers last."""
        arguments = list(self.graph.params.values())
        fixed = [(h, n) for h, n in self.holes.items() if n.op == "attr" or h in self.scalars]
        moving = [(h, n) for h, n in self.holes.items() if (h, n) not in fixed]
        given = iter(sorted((p for p in moving if p[1] in arguments), key=lambda p: arguments.index(p[1])))
        for pair in moving:
            yield next(given) if pair[1] in arguments else pair
        yield from fixed

    def take(self, node: Node) -> None:
        if node in self.holes.values() or node in self.aliases:
            return
        first = next((h for h, n in self.holes.items() if self.reads_the_same(n, node)), None)
        if first is not None:
            self.aliases[node] = first
            return
        name, shown = self.name_of(node), self.text_of(node)
        kind = self.graph.facts.kind(node)
        if kind == "scalar":
            self.scalars.add(name)
            if changes(self.graph, node):
                self.changing = True
                self.no_fix = (
                    self.no_fix
                    or f"`{shown}` is a number that may change at every call: each value would be compiled again"
                )
        elif kind == "unknown" and (because := self.why_array(node)):
            self.obligations.append(Obligation(f"`{shown}` is an array", "proven", because))
        elif kind == "unknown" and self.may_change(node):
            why = "nothing says whether it is an array or a number; a number would be compiled again at every change"
            self.obligations.append(Obligation(f"`{shown}` is an array", "unknown", why))
        elif kind == "unknown":
            why = "nothing says what it is; a compiled function takes no other library's numbers"
            self.obligations.append(Obligation(f"`{shown}` is an array or a Python number", "unknown", why))
            self.either.add(name)
        elif kind != "array":
            self.no_fix = self.no_fix or f"`{shown}` is neither an array of MLX nor a Python number"
        self.holes[name] = node

    def take_dtype(self, node: Node) -> None:
        """A cast to x.dtype reads it off x, which must be a parameter or a value of the chain."""
        if node.op == "const":
            return
        base = node.inputs[0] if node.op == "dtype" and node.inputs else None
        around = _module_name(self.graph, node)
        if around:
            self.dtypes[node] = around
            because = "a compiled function keeps the dtype that it sees first"
            claim = Obligation(f"`{around}` stays as it is", "unknown", because)
            self.obligations += [claim] if claim not in self.obligations else []
        elif base is None:
            self.no_fix = self.no_fix or "a dtype can't be an argument of a compiled function"
        elif base not in self.chain.nodes:
            self.take(base)

    def why_array(self, node: Node) -> str:
        """Why a value is an array that only its maker could say is one, or ""."""
        kind = self.graph.facts.kind
        if node.op == "loop" and len(node.inputs) > 1 and all(kind(step) == "array" for step in node.inputs[1:]):
            node = node.inputs[0]
        if node.op == "param" and is_given_an_array(self.graph, node):
            return "every call in the package gives one"
        test = node.attrs.get("test")
        marker = none_test(self.graph.canonical, test) if node.op == "phi" and isinstance(test, Node) else None
        if marker is not None:
            given, default = node.inputs if marker[1] else node.inputs[::-1]
            if given.op == "param" and self.graph.canonical.of(given) is marker[0] and kind(default) == "array":
                return "an array stands for it where it is None"
        return ""

    def may_change(self, node: Node) -> bool:
        """Whether a value that may be a number may be another one at the next call."""
        if node.op == "item" and isinstance(node.attrs.get("index"), int):
            node = node.inputs[0]  # `self.weights[0]`
        return node.op not in ("attr", "global")

    def reads_the_same(self, a: Node, b: Node) -> bool:
        """Whether two reads of an attribute or of its entry, or of a name around the function, give the same value."""
        if a.op == b.op == "item" and isinstance(a.attrs.get("index"), (int, str)):
            base, index = a.inputs[0], b.attrs.get("index")
            same = type(index) is type(a.attrs["index"]) and index == a.attrs["index"] and base.op == "attr"
            return same and self.reads_the_same(base, b.inputs[0]) and not self.is_changed(base)
        if a.op != b.op or a.op not in ("attr", "global"):
            return False
        if a.op == "global":
            return bool(a.attrs.get("name") == b.attrs.get("name"))
        path = a.attrs.get("path")
        stored = any(e.kind == "store" and e.path == path for e in self.graph.effects)
        return bool(path) and path == b.attrs.get("path") and a.inputs == b.inputs and not stored

    def is_changed(self, held: Node) -> bool:
        """Whether what an attribute holds may be changed in place."""
        path = held.attrs.get("path")
        changed = (n for e in self.graph.effects if e.kind != "store" for n in e.targets)
        return any(n.op == "attr" and n.attrs.get("path") == path for n in changed)

    def text_of(self, node: Node) -> str:
        """What the code calls a value: its name, or the expression that makes it."""
        if node.op == "param":
            return str(node.attrs["name"])
        at = self.chain.root.top_stmt
        held = self.graph.names_of(node, at) if at is not None else []
        named = next((n for n in held if n != "_"), "")
        source, made = node.frame.source, node.cst
        if named or source is None or made is None:
            return named or self.name_of(node)
        text = one_line(source.code(made)) or self.name_of(node)
        return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."

    def name_of(self, node: Node) -> str:
        """A name for a parameter: the code's own where it has one."""
        at = self.chain.root.top_stmt
        names = list(self.graph.names_of(node, at)) if at is not None else []
        names += self.graph.names_by_value.get(node, ())
        if node.op in ("param", "attr"):
            names.append(str(node.attrs.get("name", "")))
        wished = next((n for n in names if n.isidentifier() and n != "_"), "")
        wished = wished.lstrip("_") or "abcdefghijklmnopqrstuvwxyz"[len(self.holes) % 26]
        name, count = wished, 2
        while name in self.holes:
            name, count = f"{wished}{count}", count + 1
        return name

    def look_for_obstacles(self) -> None:
        if not any(f"{target}.".startswith("mlx.") for target in self.graph.module.imports.values()):
            self.no_fix = self.no_fix or "MLX is not imported at the top of the module"
        for n in self.chain.nodes:
            for k in n.inputs:
                value = self.graph.facts.const(k)
                if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
                    self.no_fix = self.no_fix or "a compiled kernel takes the literal -0.0 for 0"
        if self.is_changed_between():
            self.no_fix = self.no_fix or "an operand is changed in place between the operations"

    def is_changed_between(self) -> bool:
        stmts = [s.index for n in self.chain.nodes if (s := n.top_stmt) is not None]
        if not stmts:
            return False
        first, last = min(stmts), max(stmts)
        touched = {*self.chain.nodes, *self.holes.values()}
        return any(
            first <= e.stmt.index <= last and (e.kind == "unknown" or touched & set(e.targets))
            for e in self.graph.effects
            if e.kind != "store" and not (e.stmt.index == last and e.at > self.chain.root.id)  # `x += ...` of the chain
        )

    def numerics(self) -> Numerics:
        """Whether every rounding surely stays: compilers contract a product and a sum, and make `x**2` a product."""
        inside = set(self.chain.nodes)
        for n in self.chain.nodes:
            if n.op == "power" and isinstance(self.graph.facts.const(n.inputs[1]), (int, float)):
                return "reassociated"
            if "complex64" in self.graph.facts.dtype(n):
                return "reassociated"  # a product of complex numbers is products and a sum
            if n.op in ("add", "subtract") and any(k in inside and _is_product(k) for k in n.inputs):
                return "reassociated"
        return "bit-identical"

    def is_shapeless(self) -> bool:
        """Whether one kernel is left when every operand gets a broadcast, and no number depends on a shape."""
        if any(_reads_a_size(self.holes[h]) for h in self.scalars):
            return False
        traced = trace(self.chain.nodes, self.graph.facts, shapeless=True)
        root = traced.array(self.chain.root)
        return root is not None and len(compiled([root], shapeless=True)) == 1

    def fused_kernels(self) -> Iterator[FusedKernel]:
        """The kernels of the helper; what passes between them is written and read."""
        written: set[Node] = set()
        for group in self.chain.kernels:
            inside = {*self.chain.nodes} - written  # what is computed twice is among the group's nodes once
            reads = [k for n in group.nodes for k in n.inputs if k not in inside and k.op != "const"]
            root = group.root.node
            assert root is not None
            written.add(root)
            yield FusedKernel("mx.compile", tuple(dict.fromkeys(reads)), root)


def _module_name(graph: Graph, node: Node) -> str:
    """The dotted name of what the module imports or defines, such as `Settings.precision`, or ""."""
    source, at = node.frame.source, node.cst
    if node.op != "global" or source is None or not isinstance(at, (cst.Name, cst.Attribute)):
        return ""
    name, target = one_line(source.code(at)) or "", node.attrs["target"]
    known = target is not None and graph.module.resolve(name) == target
    return name if known and graph.module.resolve(name, node.frame.qualname) == target else ""


def _is_product(node: Node) -> bool:
    """Whether a value is a product, such as `x * sigmoid(x)` of an activation."""
    return node.op in ("multiply", "square") or (function_of(node) or node.op) in FUNCTIONS


def _is_short_literal(node: Node) -> bool:
    """`mx.array([width, height])`: what it is combined with has rows as short."""
    display = node.inputs[0] if node.op == "array" and node.inputs else None
    return display is not None and display.op in ("list", "tuple") and 1 < len(display.inputs) <= SHORT


def _reads_a_size(node: Node) -> bool:
    stack, seen = [node], set()
    while stack:
        n = stack.pop()
        if n.op in ("dim", "shape", "size", "ndim"):
            return True
        if n not in seen:
            seen.add(n)
            stack.extend(operands(n))
    return False


def _listed(nodes: tuple[Node, ...]) -> str:
    names = [function_of(n) or n.op for n in nodes]
    if len(names) > 4:
        return f"{len(names)} elementwise operations"
    return f"{', '.join(names[:-1])} and {names[-1]}"


MLP = """
class MLP(nn.Module):
    def __init__(self, dims: int, hidden_dims: int):
        super().__init__()
        self.gate_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.up_proj = nn.Linear(dims, hidden_dims, bias=False)
        self.down_proj = nn.Linear(hidden_dims, dims, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj({product})
"""

GIVEN = """class MLP(nn.Module):
    def __init__(self, dims: int, activation{default}):
        super().__init__()
        self.gate = nn.Linear(dims, dims)
        self.up = nn.Linear(dims, dims)
        self.activation = activation

    def __call__(self, x):
        return self.activation(self.gate(x)) * self.up(x)
"""

GIVEN_NAMES = """class MLP(nn.Module):
    def __init__(self, dims: int, activation=nn.SiLU()):
        super().__init__()
        self.gate = nn.Linear(dims, dims)
        self.up = nn.Linear(dims, dims)
        self.activation = activation

    def __call__(self, x):
        up = self.up(x)
        gate = self.gate(x)
        return {value}
"""

EXAMPLES = (
    Example(
        HEAD + MLP.lstrip().format(product="nn.silu(self.gate_proj(x)) * self.up_proj(x)"),
        fixed="from functools import partial\n\n"
        + HEAD
        + """@partial(mx.compile, shapeless=True)
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return nn.silu(gate) * up


"""
        + MLP.lstrip().format(product="swiglu(self.gate_proj(x), self.up_proj(x))"),
    ),
    Example(
        HEAD
        + """def snake(x: mx.array, alpha: mx.array) -> mx.array:
    s = mx.sin(alpha * x)
    s = s * s
    return x + s / (alpha + 1e-9)
""",
        fixed="from functools import partial\n\n"
        + HEAD
        + """@partial(mx.compile, shapeless=True)
def fused_snake(alpha: mx.array, x: mx.array) -> mx.array:
    s = mx.sin(alpha * x)
    return x + s * s / (alpha + 1e-9)


def snake(x: mx.array, alpha: mx.array) -> mx.array:
    return fused_snake(alpha, x)
""",
    ),
    Example(
        HEAD
        + """class Cap(nn.Module):
    def __init__(self, dims: int, cap: float):
        super().__init__()
        self.proj = nn.Linear(dims, dims)
        self.cap = cap

    def __call__(self, x):
        return mx.tanh(self.proj(x) / self.cap) * self.cap
""",
        fixed="from functools import partial\n\n"
        + HEAD
        + """@partial(mx.compile, shapeless=True)
def softcap(proj: mx.array, cap: float) -> mx.array:
    return mx.tanh(proj / cap) * cap


class Cap(nn.Module):
    def __init__(self, dims: int, cap: float):
        super().__init__()
        self.proj = nn.Linear(dims, dims)
        self.cap = cap

    def __call__(self, x):
        return softcap(self.proj(x), self.cap)
""",
    ),
    Example(
        HEAD + "def gate(g: mx.array, u):\n    return g * mx.sigmoid(g) * u\n",
        fixed="from functools import partial\n\n"
        + HEAD
        + """@partial(mx.compile, shapeless=True)
def swiglu(g: mx.array, u: mx.array) -> mx.array:
    return g * mx.sigmoid(g) * u


def gate(g: mx.array, u):
    return swiglu(g, u)
""",
        applicability="unsafe",
        why="u may be a number, and each number would be compiled again",
    ),
    Example(
        HEAD
        + "def limited(gate: mx.array, up: mx.array, most: float):\n    return nn.silu(mx.minimum(gate, most)) * up\n",
        applicability="none",
        why="most is a number that may change: each value would be compiled again",
    ),
    Example(
        HEAD + GIVEN.format(default="=nn.SiLU()"),
        applicability="none",
        why="another activation may be given; people make it a function of both",
    ),
    Example(
        HEAD + GIVEN_NAMES.format(value="self.activation(gate) * up"),
        fixed="from functools import partial\n\n"
        + HEAD
        + """@partial(mx.compile, shapeless=True)
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return nn.silu(gate) * up


"""
        + GIVEN_NAMES.format(
            value="""(
            swiglu(gate, up)
            if isinstance(self.activation, nn.SiLU)
            else self.activation(gate) * up
        )"""
        ),
        why="the new code asks which activation was given",
    ),
)
COUNTEREXAMPLES = (
    Example(HEAD + GIVEN.format(default=""), why="nothing says what the activation is"),
    Example(HEAD + GIVEN.format(default="=nn.PReLU()"), why="it is no function, but a layer with weights"),
    Example(
        HEAD + "def guide(u: mx.array, c: mx.array, strength: float):\n    return u + strength * (c - u) * 0.5\n",
        why="a step with a number that changes at every call",
    ),
    Example(
        HEAD + "def f(x: mx.array, y: mx.array):\n    return mx.exp(x) @ y\n",
        why="one elementwise operation is one kernel already",
    ),
    Example(
        HEAD + "def f(x: mx.array, w: mx.array):\n    return nn.gelu(x) @ w\n",
        why="MLX compiles its activations",
    ),
    Example(
        HEAD + "@mx.compile\ndef f(x: mx.array, y: mx.array):\n    return mx.tanh(x * y + 1) * x\n",
        why="it is compiled",
    ),
    Example(
        HEAD
        + "def f(x: mx.array, y: mx.array):\n    return mx.sum(x - mx.max(x, axis=-1, keepdims=True), axis=-1) @ y\n",
        why="a reduction stands between the operations",
    ),
    Example(
        HEAD + "def f(n, m):\n    scale = (n * 2 + 1) ** -0.5\n    return mx.zeros((n, m)), scale * 3 + 1\n",
        why="arithmetic of Python numbers launches nothing",
    ),
    Example(
        HEAD + "def f(x: mx.array):\n    h = mx.exp(x)\n    return h / h.sum(-1, keepdims=True)\n",
        why="what a reduction reads is written to memory anyway",
    ),
    Example(
        HEAD + "def speedup(ours, theirs):\n    return -((ours - theirs) / ours) * 100\n\n\n"
        'def show(times):\n    print(speedup(times["ours"], times["theirs"]))\n',
        why="no operation of MLX's, no layer, and no call that shows an array: times in seconds, for all that is known",
    ),
)
