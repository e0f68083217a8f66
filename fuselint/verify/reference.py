"""The computation of a match, written anew from the graph as MLX text: what a fix is judged against.

It is made from the graph, not from the source, so that a mistake of the analysis shows as a difference from the source.
It runs in float64 (exact.py): float casts do nothing there, and float constants go in as float64 arrays, since MLX
rounds a float literal through float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuselint.graph import ops
from fuselint.graph.model import Graph, Node, Slice, operands
from fuselint.graph.op import Op, Param
from fuselint.rulebook import Match

MODULES = {
    "mlx.core.fast": "mx.fast",
    "mlx.core.linalg": "mx.linalg",
    "mlx.core.random": "mx.random",
    "mlx.core.fft": "mx.fft",
    "mlx.core": "mx",
    "mlx.nn": "nn",
    "math": "math",
}
BUILTINS = ("int", "float", "bool", "len", "max", "min", "abs", "round", "range", "sum", "tuple", "list")
JOINS = {"and": " and ", "or": " or "}
NO_TEXT = frozenset({"loop", "opaque", "new", "function", "star", "dict"})
LIMIT = 2000
"""More nodes than that are no region that anyone fuses."""


class CannotEmit(Exception):
    """A node that has no text."""


def reference(graph: Graph, match: Match, names: Mapping[Node, str] | None = None) -> str | None:
    """Statements that leave the value of the match's root in `result`; None where a node has no text.

    names: what the text calls a value that it is given, such as `self.weight`; by default the holes' names. What the
    region reads besides (parameters, attributes of self, module constants) keeps its name in the source.
    """
    if names is None:
        names = {v: k for k, v in match.holes.items() if isinstance(v, Node)}
    return text_of(graph, [match.root], names)


def text_of(graph: Graph, roots: Iterable[Node], names: Mapping[Node, str], *, double: bool = True) -> str | None:
    """Statements that leave one value, or a tuple of several, in `result`. double: float constants as float64."""
    roots = list(roots)
    writer = _Writer(graph, names, double)
    top = _Suite()
    try:
        for root in roots:
            writer.write(root, top)
        values = [writer.name(r) for r in roots]
    except CannotEmit:
        return None
    lines = [*top.lines, f"result = {values[0] if len(values) == 1 else '(' + ', '.join(values) + ')'}"]
    return "\n".join(lines) + "\n"


@dataclass(slots=True)
class _Suite:
    """Lines of one indentation, and the nodes that have a name in it."""

    done: set[Node] = field(default_factory=set)
    indent: str = ""
    lines: list[str] = field(default_factory=list)

    def inner(self) -> _Suite:
        return _Suite(set(self.done), self.indent + "    ")


class _Writer:
    def __init__(self, graph: Graph, names: Mapping[Node, str], double: bool) -> None:
        self.graph, self.names, self.double, self.count = graph, names, double, 0

    def write(self, root: Node, suite: _Suite) -> None:
        """Assign `root` and what it needs, operands first. A branch computes only what is its own."""
        stack = [root]
        while stack:
            node = stack[-1]
            if node in suite.done or self.leaf(node) is not None:
                stack.pop()
                continue
            if node.op in NO_TEXT:  # also the only ones whose operands may come after them
                raise CannotEmit
            needs = [node.attrs["test"]] if node.op == "phi" else list(operands(node))
            missing = [n for n in needs if n not in suite.done and self.leaf(n) is None]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            self.count += 1
            if self.count > LIMIT:
                raise CannotEmit
            if node.op == "phi":
                self.phi(node, suite)
            else:
                suite.lines.append(f"{suite.indent}{self.name(node)} = {self.expression(node)}")
            suite.done.add(node)

    def phi(self, node: Node, suite: _Suite) -> None:
        then, other = node.inputs
        for word, value in ((f"if {self.name(node.attrs['test'])}:", then), ("else:", other)):
            inner = suite.inner()
            self.write(value, inner)
            suite.lines.append(f"{suite.indent}{word}")
            suite.lines += [*inner.lines, f"{inner.indent}{self.name(node)} = {self.name(value)}"]

    # --- names -------------------------------------------------------------------------------------------------------

    def name(self, node: Node) -> str:
        return self.leaf(node) or f"v{node.id}"

    def leaf(self, node: Node) -> str | None:
        """The text of a value that needs no statement."""
        if node in self.names:
            return self.names[node]
        if node.op == "const":
            if isinstance(node.attrs["value"], complex) and not self.double:  # MLX has no complex128
                return repr(node.attrs["value"])
            return constant(node.attrs["value"], node.attrs.get("kind") == "dtype")
        if node.op == "param":
            return str(node.attrs["name"])
        if node.op == "attr" and node.attrs.get("path") and self.given(node):
            return str(node.attrs["path"])
        if node.op == "global":
            target = node.attrs.get("target")
            return (qualified(target) if target else None) or str(node.attrs["name"])
        return None

    def given(self, node: Node) -> bool:
        """Whether an attribute's path can be read as it stands: it starts at a parameter, and no part was replaced."""
        while node.op == "attr" and node not in self.names:
            node = node.inputs[0]
        return node.op == "param" and node not in self.names

    # --- expressions -------------------------------------------------------------------------------------------------

    def expression(self, node: Node) -> str:
        args = [self.name(n) for n in node.inputs]
        match node.op:
            case "attr":
                return f"{args[0]}.{node.attrs['name']}"
            case "shape" | "dtype" | "ndim" | "size":
                return f"{args[0]}.{node.op}"
            case "dim":
                return f"{args[0]}.shape[{node.attrs['axis']}]"
            case "tuple" | "list":
                inner = ", ".join(args)
                if node.op == "list":
                    return f"[{inner}]"
                return f"({inner},)" if args else "()"
            case "item":
                if node.attrs["index"] is None:
                    raise CannotEmit
                return f"{args[0]}[{self.value(node.attrs['index'])}]"
            case "index":
                return f"{args[0]}[{self.subscript(node.attrs['index'])}]"
            case "compare":
                return f"{args[0]} {node.attrs['op']} {args[1]}"
            case "not":
                return f"not {args[0]}"
            case "and" | "or":
                return JOINS[node.op].join(args)
            case "call":
                return self.call(node, args)
        op = ops.TABLE.get(node.op)
        if op is None:
            raise CannotEmit
        if op.kind == "layer":  # an object that the region is given, or the text will be refused
            if not node.attrs.get("path"):
                raise CannotEmit
            return f"{node.attrs['path']}({', '.join(args)})"
        return self.operation(node, op, args)

    def call(self, node: Node, args: list[str]) -> str:
        target = node.attrs.get("target") or ""
        module, _, name = target.rpartition(".")
        if (
            node.attrs.get("keywords")
            or node.attrs.get("starred")
            or not (module == "math" or (module == "builtins" and name in BUILTINS))
        ):
            raise CannotEmit
        return f"{'math.' if module == 'math' else ''}{name}({', '.join(args)})"

    def operation(self, node: Node, op: Op, args: list[str]) -> str:
        kinds = [self.graph.facts.kind(n) for n in node.inputs]
        scalar = self.graph.facts.kind(node) == "scalar" or "tuple" in kinds
        if self.double and not scalar:
            args = [self.exact(n, a) for n, a in zip(node.inputs, args, strict=True)]
        if op.operator is not None and (scalar or "array" in kinds or "unknown" in kinds):
            if len(args) == 2:
                return f"{args[0]} {op.operator} {args[1]}"
            return f"abs({args[0]})" if op.operator == "abs" else f"{op.operator}{args[0]}"
        if op.name == "astype":
            return f"{args[0]}.astype({self.value(node.attrs['dtype'], dtype=True)})"
        called = next((t for t in map(qualified, op.spellings) if t is not None), None)
        if called is None:
            raise CannotEmit
        return f"{called}({', '.join(self.arguments(node, op, args))})"

    def exact(self, node: Node, text: str) -> str:
        """A Python float beside arrays, as a float64 array."""
        if node.op == "const" and isinstance(node.attrs["value"], float) and node not in self.names:
            return f"mx.array({text}, dtype=mx.float64)"
        return text

    def arguments(self, node: Node, op: Op, args: list[str]) -> Iterator[str]:
        """The arguments of a call, by position as far as nothing is left out, then by name."""
        single = sum(p.role == "array" for p in op.params)
        rest = iter(args)
        by_name = False
        for p in op.params:
            text: str | None
            if p.role == "array":
                text = next(rest, None)
            elif p.role == "arrays":
                taken = [next(rest) for _ in range(len(args) - single)]
                text = ", ".join(taken) if p.variadic else f"[{', '.join(taken)}]"
            else:
                text = self.attribute(node, p)
            if text is None:
                if p.required:
                    raise CannotEmit
                by_name = True
            elif by_name or p.keyword_only:
                yield f"{p.name}={text}"
            else:
                yield text

    def attribute(self, node: Node, p: Param) -> str | None:
        """A parameter's value; None where it is the default."""
        value = node.attrs.get(p.name)
        if not p.required and _same(value, p.default):
            return None
        return self.value(value, dtype=p.name == "dtype")

    def value(self, value: Any, *, dtype: bool = False) -> str:
        if isinstance(value, Node):
            return self.name(value)
        if isinstance(value, tuple):
            inner = ", ".join(self.value(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        return constant(value, dtype and isinstance(value, str))

    def subscript(self, index: Any) -> str:
        parts = index if isinstance(index, tuple) else (index,)
        return ", ".join(self.slice(p) if isinstance(p, Slice) else self.value(p) for p in parts) or "()"

    def slice(self, s: Slice) -> str:
        start, stop, step = ("" if v is None else self.value(v) for v in (s.start, s.stop, s.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def constant(value: Any, is_dtype: bool) -> str:
    """A Python constant as text."""
    if is_dtype:
        return f"mx.{value}"
    if value is Ellipsis:
        return "..."
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"
    if isinstance(value, (int, float)) and value < 0:
        return f"({value!r})"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise CannotEmit


def qualified(target: str) -> str | None:
    """A qualified name in terms of `mx`, `nn` and `math`."""
    for module, short in MODULES.items():  # the longest first
        if target.startswith(f"{module}."):
            return f"{short}.{target.removeprefix(f'{module}.')}"
    return None
