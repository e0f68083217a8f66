"""The dataflow graph of one function.

A Graph holds Nodes in evaluation order: a node's inputs come before it. Every node keeps the LibCST expression that
it was lowered from. Values are numbered by binding (SSA): rebinding a name makes a new node, a join after `if` makes
a `phi`. What isn't understood is an `opaque` node, which blocks every match; it is never a guess.

Structural operations, beside those of `ops.TABLE` (which are named by their last dotted part, such as `add`, `matmul`,
`softmax`; functions of mlx.core.fast, linalg, random and mlx.nn keep their module: `fast.rms_norm`, `nn.silu`):

| op | inputs | attrs | meaning |
|---|---|---|---|
| param | | name, default (Node or None), annotation, star | an argument; `self` too; annotation is qualified text, star is "", "*" or "**" |
| const | | value | a Python constant: number, bool, str, None, Ellipsis, or a dtype name with kind dtype |
| global | | name, target | a name that is not the function's: `target` is the qualified name, where known |
| attr | base | name, path, init, version | `base.name`; `path` is the dotted text when it starts at a name, such as `self.weight`; reads with another `version` may differ |
| shape, dtype, ndim, size | x | | array properties; `shape` is a tuple value |
| dim | x | axis, rank | one entry of x.shape: a scalar; axis as written (may be negative); rank where the unpacking says it |
| tuple, list, dict | elements | keys (dict) | displays |
| star | container | | `*container` in a display, an index or a call: its elements stand in its place |
| item | container | index, version | an element of a container that is not understood, or an unpacking of one; index None: the current one of a loop |
| index | x, array indices... | index | `x[...]` of an array; attrs["index"] is a tuple of int, None, Ellipsis, Slice or Node |
| index_update | x, value, array indices... | index | what x holds after `x[...] = value` |
| phi | then, else | test | a value after a join; test is the Node of the condition |
| compare, not, and, or | operands | op | Python-level conditions: `is`, `is not`, `in`, `not in`, and truth tests of scalars |
| loop | | name | a value carried around a loop, or changed inside it |
| call | args..., kwargs values | target, callee, keywords, fresh, path, new, init, default | a call that is not understood; target is a qualified name or None; fresh: of this file, and it returns an array that it made; path, and new or init: of a call of what `__init__` assigned; default: what is called unless the constructor was given something else |
| new | args... | target, args (by parameter name) | an instance of a class: `nn.Linear(a, b)` |
| function | | qualname | a def or lambda as a value |
| opaque | operands | reason | anything else |

A layer call such as `self.q_proj(x)` with `self.q_proj = nn.Linear(...)` in `__init__` is a node with op `nn.Linear`,
inputs (x,), and attrs path ("self.q_proj") and new (the `new` node of `__init__`).
"""  # noqa: E501

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import libcst

from fuselint.records import record

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical
    from fuselint.graph.facts import Facts
    from fuselint.graph.program import Program
    from fuselint.graph.usage import Usage
    from fuselint.source.function import FunctionSource
    from fuselint.source.project import ModuleSummary

BlockKind = Literal["function", "then", "else", "loop", "try", "except", "with", "comprehension", "match"]


@record(frozen=True, slots=True, eq=False)
class Block:
    """A suite of statements. `owner` is the compound statement that it belongs to, None for the function's body."""

    kind: BlockKind
    parent: Block | None
    owner: Statement | None

    def encloses(self, other: Block) -> bool:
        """Whether other is this block or lies inside it."""
        at: Block | None = other
        while at is not None:
            if at is self:
                return True
            at = at.parent
        return False

    @property
    def branch(self) -> Block | None:
        """The innermost branch of an `if` that it is or lies in."""
        at: Block | None = self
        while at is not None and at.kind not in ("then", "else"):
            at = at.parent
        return at

    @property
    def in_loop(self) -> bool:
        at: Block | None = self
        while at is not None:
            if at.kind in ("loop", "comprehension"):
                return True
            at = at.parent
        return False


@dataclass(slots=True, eq=False)
class Statement:
    """A statement of a frame. `index` counts in source order over the frame; a compound statement's parts follow it.

    `end` is the index after the last statement inside it.
    """

    index: int
    cst: libcst.CSTNode  # SimpleStatementLine's small statement, or a compound statement
    line: libcst.CSTNode  # the SimpleStatementLine that holds it, or the compound statement itself
    block: Block
    end: int = 0


STEP = ".<locals>.<comprehension>"
"""What follows the name of a function, in that of one step of a comprehension in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One activation of a function: the root function, or one inlined call of a helper.

    An inlined frame knows the call (`site`, an expression of the parent frame) and the statement it stands in.
    """

    qualname: str
    source: FunctionSource | None
    parent: Frame | None = None
    site: libcst.CSTNode | None = None
    stmt: Statement | None = None
    values: dict[libcst.CSTNode, Node] = field(default_factory=dict, repr=False)
    """Of an inlined frame: expression of the helper -> its value in this call."""

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1


@dataclass(frozen=True, slots=True)
class Slice:
    """`start:stop:step` of an index: ints, None, or Nodes."""

    start: Any = None
    stop: Any = None
    step: Any = None

    @property
    def takes_all(self) -> bool:
        return self.start is None and self.stop is None and self.step is None


@dataclass(slots=True, eq=False)
class Node:
    """A value. Compared by identity."""

    id: int
    op: str
    inputs: tuple[Node, ...]
    attrs: Mapping[str, Any]
    cst: libcst.CSTNode | None
    stmt: Statement | None
    frame: Frame

    def __repr__(self) -> str:
        args = ", ".join(f"%{n.id}" for n in self.inputs)
        shown = {k: (f"%{v.id}" if isinstance(v, Node) else v) for k, v in self.attrs.items() if v is not None}
        tail = f" {shown}" if shown else ""
        return f"%{self.id} = {self.op}({args}){tail}"

    @property
    def top_stmt(self) -> Statement | None:
        """The statement of the root frame in which this value is evaluated."""
        stmt, frame = self.stmt, self.frame
        while frame.parent is not None:
            stmt, frame = frame.stmt, frame.parent
        return stmt

    @property
    def top_cst(self) -> libcst.CSTNode | None:
        """The expression of the root frame that evaluates this value: its own, or the call it was inlined from."""
        at, frame = self.cst, self.frame
        while frame.parent is not None:
            at, frame = frame.site, frame.parent
        return at


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, Slice):
        for part in (value.start, value.stop, value.step):
            yield from _nodes_in(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _nodes_in(part)


FOREIGN = frozenset({"init", "new", "default"})
"""attrs keys whose Nodes belong to another graph (that of __init__), or are defaults: no operands."""


@record(frozen=True, slots=True, eq=False)
class Binding:
    """`name` holds `node` from just after statement `index`, in `block` and the blocks inside it, until rebound."""

    name: str
    node: Node
    index: int
    block: Block
    stmt: Statement | None  # None: a parameter, or a join


@record(frozen=True, slots=True, eq=False)
class Effect:
    """Something at `stmt` that values must not be moved across.

    kind: `mutation` (in-place change of the object that the targets alias), `store` (an attribute or item of another
    object is assigned: path says which), `unknown` (a call that may do anything: yield, await, exec, del).
    """

    stmt: Statement
    kind: Literal["mutation", "store", "unknown"]
    targets: tuple[Node, ...]
    path: str = ""
    value: Node | None = None
    at: int = 0  # nodes with a smaller id were made before it


@dataclass(slots=True, eq=False)
class Context:
    """What is known of the function's surroundings, from the module summary."""

    qualname: str
    class_name: str | None = None
    compiled: bool = False  # decorated, wrapped, or called only from compiled functions
    shapeless: bool = False
    partly: str = ""  # where it runs compiled and where not, if both
    cold: str = ""  # why its work is not on the hot path ("__init__", "sanitize", "weight conversion"), or ""
    hot: bool = False  # the user says that it is on the hot path


@dataclass(eq=False)
class Graph:
    """A function. `frames[0]` is the function itself."""

    module: ModuleSummary
    source: FunctionSource
    context: Context
    nodes: list[Node] = field(default_factory=list)
    params: dict[str, Node] = field(default_factory=dict)
    returns: list[tuple[Statement, Node]] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)  # of the root frame, by index
    bindings: dict[str, list[Binding]] = field(default_factory=dict)  # of the root frame, by name, in order
    effects: list[Effect] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    values: dict[libcst.CSTNode, Node] = field(default_factory=dict)  # root frame: expression -> its value
    captured: set[str] = field(default_factory=set)  # names that nested functions, lambdas or comprehensions read
    stored: dict[str, Node] = field(default_factory=dict)  # self attributes assigned here, by name: last value
    notes: list[str] = field(default_factory=list)  # what was not understood, for the closing line and explain
    falls_off: bool = False  # whether control may leave at the end, without a `return`
    program: Program | None = None  # the functions of the same file
    not_understood: str = ""  # why the whole function was given up, or ""

    def take_apart(self) -> None:
        """Nobody needs the graph any more."""
        for n in self.nodes:
            n.inputs, n.attrs = (), {}
        for f in self.frames:
            f.values.clear()
        self.__dict__.clear()

    def steps(self, expr: libcst.CSTNode | None) -> list[Frame]:
        """The steps of a comprehension that evaluate an expression, each by itself."""
        return [f for f in self.frames if f.qualname.endswith(STEP) and expr in f.values]

    def lookup(self, name: str, at: Statement, without: Iterable[Statement] = ()) -> Node | None:
        """The value that `name` holds when statement `at` starts, as if the statements `without` were deleted.

        A name bound in only some branches before `at`, without a join, is not held: None.
        """
        skip = set(without)
        bound = self.bindings.get(name, ())
        before = bisect_left(bound, at.index, key=lambda b: b.index)
        for i in range(before - 1, -1, -1):
            b = bound[i]
            if (b.stmt is None or b.stmt not in skip) and b.block.encloses(at.block):
                return b.node
        return None

    def names_of(self, node: Node, at: Statement, without: Iterable[Statement] = ()) -> list[str]:
        """The names that hold `node` when statement `at` starts (see lookup)."""
        skip = list(without)
        return [n for n in self.names_by_value.get(node, ()) if self.lookup(n, at, skip) is node]

    @cached_property
    def names_by_value(self) -> dict[Node, list[str]]:
        """The names that hold a value anywhere, in the order in which they are first bound."""
        out: dict[Node, dict[str, None]] = {}
        for name, bindings in self.bindings.items():
            for b in bindings:
                out.setdefault(b.node, {})[name] = None
        return {node: list(names) for node, names in out.items()}

    @cached_property
    def users(self) -> dict[Node, tuple[Node, ...]]:
        """The nodes that read a value, each once."""
        out: dict[Node, dict[Node, None]] = {}
        for n in self.nodes:
            for k in operands(n):
                out.setdefault(k, {})[n] = None
        return {k: tuple(v) for k, v in out.items()}

    @cached_property
    def escaping(self) -> set[Node]:
        """Values that something outside the graph sees: returned, stored, or given to an effect."""
        out = {n for _, n in self.returns}
        for e in self.effects:
            out.update(e.targets)
            if e.value is not None:
                out.add(e.value)
        return out

    @cached_property
    def facts(self) -> Facts:
        from fuselint.graph.facts import Facts

        return Facts(self)

    @cached_property
    def bound_names(self) -> dict[Node, str]:
        """The first name that the code gives to a value."""
        out: dict[Node, str] = {}
        for name, bindings in self.bindings.items():
            for b in bindings:
                if b.node not in out and name != "_":
                    out[b.node] = name
        for name, node in self.params.items():
            out.setdefault(node, name)
        return out

    @cached_property
    def ops(self) -> frozenset[str]:
        """The operations of its nodes."""
        return frozenset(n.op for n in self.nodes)

    @cached_property
    def needs(self) -> dict[Node, tuple[Node, ...]]:
        """What facts need to know before each value; filled as they ask."""
        return {}

    @cached_property
    def usage(self) -> Usage:
        from fuselint.graph.usage import Usage

        return Usage(self)

    @cached_property
    def usual(self) -> Facts:
        """The facts as the defaults of configurations and constructors have them: what is likely, never proof."""
        from fuselint.graph.across import Reach
        from fuselint.graph.facts import Facts

        return Facts(self, Reach(usual=True))

    @cached_property
    def canonical(self) -> Canonical:
        from fuselint.graph.canonical import Canonical

        return Canonical(self)


def operands(node: Node) -> Iterator[Node]:
    """What `node` reads in its own graph: inputs, and Nodes in attrs except those of other graphs."""
    yield from node.inputs
    for key, value in node.attrs.items():
        if key not in FOREIGN:
            yield from _nodes_in(value)


PROPERTIES = frozenset({"shape", "dim", "dtype", "ndim", "size"})
"""What is known of an array without computing it."""


def region(root: Node, holes: Iterable[Node]) -> list[Node]:
    """The backward slice from root down to, and without, the holes, in evaluation order.

    Constants and parameters that the slice reaches besides the holes are part of it. An array of which only the shape
    or dtype is read is not.
    """
    stop = set(holes)
    seen: set[Node] = set()
    stack = [root]
    while stack:
        n = stack.pop()
        if n in seen or n in stop:
            continue
        seen.add(n)
        if n.op not in PROPERTIES:
            stack.extend(operands(n))
    return sorted(seen, key=lambda n: n.id)
