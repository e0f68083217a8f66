"""The dtype of a value as what it is made of says it: through lists that a loop fills, tuples, attributes and calls.

Facts stop at a list that `append` changes, and at a method of a class that others may derive from. What costs believe
need not: `mx.concatenate(parts)` has the dtype of what was appended, whichever way that came there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from fuselint.graph import ops_rules
from fuselint.graph.across import bind, call_arguments
from fuselint.graph.dtypes import BOOL, INTEGER, promote_names
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Graph, Node
from fuselint.graph.ops import TABLE
from fuselint.graph.unstated import ARRAYS, MADE, is_from_outside, wide_weights
from fuselint.source.modules import Definition

MODEL = "the model's dtype"
"""What stands for the dtype of weights, and of what is computed with them."""

FARTHEST = 60
"""Values that one answer looks at."""

SAME = frozenset({"view", "copy", "gather", "scan", "sort"})
"""Kinds of operations whose result has the dtype of the first operand."""

WHOLE = frozenset((*BOOL, *INTEGER))

JOINS = frozenset({"phi", "loop", "list"})
CONTAINER = "a container after "
"""How the reason of an opaque value begins that is a list or dict with something more in it."""

Path = tuple[int | None, ...]
"""Which element of a tuple or list, and of that which; None for any."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A function that values are looked at in. symbols: dtypes by their symbols; given: arguments, by parameters.

    outer: what the calls of the function say of an element of a parameter."""

    facts: KnownFacts
    symbols: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, tuple[Frame, Node]] = field(default_factory=dict)
    outer: Callable[[Node, Path], str | None] | None = None


class Supplied:
    """One question about a dtype."""

    def __init__(self, elsewhere: Elsewhere, facts: Callable[[Graph], KnownFacts]) -> None:
        self.elsewhere, self.facts = elsewhere, facts
        self.left = FARTHEST
        self._open: set[tuple[Node, Path]] = set()

    def of(self, frame: Frame, node: Node, path: Path = ()) -> str | None:
        """The name of a dtype, or MODEL for that of a weight; None where nothing says it."""
        dtype = frame.facts.dtype(node).bound(frame.symbols)
        if not path and dtype.name is not None:
            return dtype.name
        if (node, path) in self._open or self.left <= 0:
            return None
        self.left -= 1
        self._open.add((node, path))
        try:
            return self._made(frame, node, path)
        finally:
            self._open.discard((node, path))

    def _made(self, frame: Frame, node: Node, path: Path) -> str | None:
        op = TABLE.get(node.op)
        if node.op == "param" and node.attrs.get("name") in frame.given:
            return self.of(*frame.given[node.attrs["name"]], path)
        if node.op == "param":
            return frame.outer(node, path) if frame.outer is not None and path else None
        if node.op == "tuple" and path:
            inside = node.inputs if path[0] is None else node.inputs[path[0] : path[0] + 1 or None]
            return self._one(frame, inside, path[1:])
        if node.op == "opaque" and isinstance(node.cst, cst.ListComp) and node.attrs.get("reason") == "comprehension":
            is_blank = node.inputs[-1].op in MADE  # a list of weights that loading replaces
            return self.of(frame, node.inputs[-1], path[1:]) if path and not is_blank else None
        if node.op in JOINS or (node.op == "opaque" and str(node.attrs.get("reason", "")).startswith(CONTAINER)):
            return self._contents(frame, node, path)
        if node.op == "item":
            index = node.attrs.get("index")
            return self.of(frame, node.inputs[0], (index if isinstance(index, int) else None, *path))
        if node.op in ("concatenate", "stack") and len(node.inputs) == 1:
            return self.of(frame, node.inputs[0], (None,))
        if node.inputs and (node.op in ("index", "index_update") or (op is not None and op.kind in SAME)):
            return self.of(frame, node.inputs[0], path)
        if node.op == "attr":
            init = node.attrs.get("init")
            plain = self._holds_no_weights(frame, node)
            if not isinstance(init, Node) or (_may_be_array(init, frame.facts) and not plain):
                is_weight = not path and frame.facts.kind(node) in ARRAYS and not is_from_outside(node) and not plain
                return MODEL if is_weight else None  # loading may replace it
            return self.of(frame, init, path)
        if node.op == "astype":
            return self._cast(frame, node.attrs.get("dtype"))
        if node.op == "call":
            return self._returned(frame, node, path)
        if op is not None and op.kind == "layer":
            said = self._promoted(frame, node)
            return MODEL if said in WHOLE else said  # no layer gives whole numbers: of tokens it looks up weights
        if op is not None and op.kind in ("unary", "binary", "ternary", "matmul"):
            said = self._promoted(frame, node)
            return "float32" if said in WHOLE and op.dtype in ops_rules.FLOATING else said
        return None

    def _holds_no_weights(self, frame: Frame, attribute: Node) -> bool:
        """Whether an attribute is of an object of the package that is no layer: a cache, say."""
        instances = frame.facts.of(attribute.inputs[0]).instances if attribute.inputs else ()
        return bool(instances) and all(i.found is not None and self._is_plain(i.found) for i in instances)

    def _is_plain(self, class_: Definition) -> bool:
        lineage, complete = self.elsewhere.lineage(class_)
        held = (self.elsewhere.class_(at) for at in lineage)
        return complete and not any(base.startswith("mlx.") for c in held if c is not None for base in c.bases)

    def _cast(self, frame: Frame, dtype: object) -> str | None:
        """`table.astype(x.dtype)`: that of x, and where nothing says it, what activations have."""
        if not isinstance(dtype, Node) or dtype.op != "dtype":
            return None
        return self.of(frame, dtype.inputs[0]) or MODEL

    def _contents(self, frame: Frame, node: Node, path: Path) -> str | None:
        """Of one of several values, or of what a list holds."""
        if node.op == "opaque" and path:
            return self._one(frame, node.inputs[1:], path[1:]) or self.of(frame, node.inputs[0], path)
        cast = {n.inputs[0] for n in node.inputs if n.op == "astype" and node.op == "phi"}  # what it was where need be
        return self._one(frame, tuple(n for n in node.inputs if n not in cast), path[1:] if node.op == "list" else path)

    def _one(self, frame: Frame, nodes: tuple[Node, ...], path: Path) -> str | None:
        """The dtype that all values have of which something is known."""
        said = {s for n in nodes if (s := self.of(frame, n, path)) is not None}
        return said.pop() if len(said) == 1 else None

    def _promoted(self, frame: Frame, node: Node) -> str | None:
        met = node.inputs[node.op == "where" :]  # the condition says nothing of what it chooses from
        said = {self.of(frame, n) for n in met if not frame.facts.dtype(n).weak}
        if "float32" in said:
            return "float32"
        if None in said or not said:
            return None
        if MODEL in said:
            return MODEL
        names = sorted(s for s in said if s is not None)
        out = names[0]
        for name in names[1:]:
            out = promote_names(out, name)
        return out

    def _returned(self, frame: Frame, call: Node, path: Path) -> str | None:
        """Of what a function or method of the package gives back for the arguments of a call."""
        graph = self._called(frame, call)
        arguments = call_arguments(call)
        if graph is None or arguments is None:
            return None
        summary = self.elsewhere.function(Definition(self.elsewhere.path_of(graph), graph.context.qualname))
        if summary is None or summary.is_generator:
            return None
        own = summary.parameters[1:] if summary.kind in ("method", "classmethod") else summary.parameters
        bound = bind(own, *arguments) or {}
        facts = self.facts(graph)
        inner = Frame(facts, wide_weights(facts), given={k: (frame, n) for k, n in bound.items()})
        return self._one(inner, tuple(n for _, n in graph.returns), path)

    def _called(self, frame: Frame, call: Node) -> Graph | None:
        """The function that a call runs, where it is one."""
        target, callee = call.attrs.get("target"), call.attrs.get("callee")
        found = self.elsewhere.resolve(frame.facts.graph, target) if isinstance(target, str) else None
        if found is not None and self.elsewhere.function(found) is not None:
            return self.elsewhere.graph(found)
        name = "__call__"
        if isinstance(callee, Node) and callee.op == "attr" and not frame.facts.of(callee).instances:
            name = str(callee.attrs.get("name"))
        methods = {self.elsewhere.method(c.found, name) for c in frame.facts.callees(call) if c.found is not None}
        method = methods.pop() if len(methods) == 1 else None
        return None if method is None else self.elsewhere.graph(method)


def _may_be_array(made: Node, facts: KnownFacts) -> bool:
    """Whether a constructor assigns an array, or one or None."""
    return facts.kind(made) == "array" or (made.op == "phi" and any(_may_be_array(n, facts) for n in made.inputs))
