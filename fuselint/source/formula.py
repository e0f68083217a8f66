"""Operations of a graph as the text of a function's body, in terms of its parameters.

`{mx}` and `{nn}` stand for the modules. A value that is read more than once gets an assignment of its own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from fuselint.graph.model import Graph, Node, operands
from fuselint.graph.op import Op, Param
from fuselint.graph.ops import TABLE, function_of

PRECEDENCE = {
    "or": 1, "and": 2, "<": 4, ">": 4, "<=": 4, ">=": 4, "==": 4, "!=": 4, "|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8,
    "+": 9, "-": 9, "*": 10, "/": 10, "//": 10, "%": 10, "@": 10, "unary": 11, "**": 12,
}  # fmt: skip
ATOM = 20
SIMPLE = re.compile(r"-?\d[\w.]*|[^\W\d]\w*(\.[^\W\d]\w*)*")
"""Operands that formatters put no blanks around `**` for: numbers and dotted names."""


class NoText(Exception):
    """An operation that can't be written in the body; the message says why."""


@dataclass(frozen=True)
class Text:
    text: str
    level: int = ATOM

    def at(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


@dataclass
class Formula:
    """The body of a function that computes the last of `nodes`. names: parameters, by the value they stand for."""

    graph: Graph
    nodes: Sequence[Node]
    names: Mapping[Node, str]
    numbers: Mapping[Node, str] = field(default_factory=dict)  # text of numbers and dtypes that no parameter stands for
    statements: list[str] = field(default_factory=list)
    body: str = ""

    def __post_init__(self) -> None:
        inside = set(self.nodes)
        reads = Counter(i for n in self.nodes for i in n.inputs if i in inside)
        taken = set(self.names.values())
        self.made: dict[Node, Text] = {}
        for n in self.nodes:
            text = self.written(n)
            if reads[n] > 1 and n is not self.nodes[-1]:
                name = self.local(n, taken)
                self.statements.append(f"{name} = {text.text}")
                text = Text(name)
            self.made[n] = text
        self.body = self.made[self.nodes[-1]].text

    def local(self, node: Node, taken: set[str]) -> str:
        """A name for a shared value: the code's own, where it has one."""
        own = [n for n, bound in self.graph.bindings.items() if any(b.node is node for b in bound)]
        wished = next((n for n in own if n not in taken), "t")
        name, count = wished, 2
        while name in taken:
            name, count = f"{wished}{count}", count + 1
        taken.add(name)
        return name

    def of(self, node: Node) -> Text:
        if node in self.made:
            return self.made[node]
        if node in self.names:
            return Text(self.names[node])
        if node in self.numbers:
            return Text(self.numbers[node], ATOM if self.numbers[node].replace(".", "").isalnum() else 0)
        if node.op == "const":
            return self.constant(node)
        raise NoText(f"`{node.op}` is neither a parameter nor a constant")

    def constant(self, node: Node) -> Text:
        value = node.attrs["value"]
        if node.attrs.get("kind") == "dtype":
            return Text(f"{{mx}}.{value}")
        if isinstance(value, float) and not math.isfinite(value):
            sign = "-" if value < 0 else ""
            text = f"{sign}{{mx}}.{'nan' if math.isnan(value) else 'inf'}"
            return Text(text, PRECEDENCE["unary"] if sign else ATOM)
        if value is None or isinstance(value, (bool, int, float, complex)):
            text = repr(value)
            if isinstance(node.cst, (cst.Integer, cst.Float, cst.Imaginary)):
                text = node.cst.value
            return Text(text, PRECEDENCE["unary"] if text.startswith("-") else ATOM)
        raise NoText("a constant that is no number")

    def written(self, node: Node) -> Text:
        op = TABLE.get(node.op)
        if op is None:
            raise NoText(f"`{node.op}` is no operation of MLX")
        args = [self.of(n) for n in node.inputs]
        if op.operator not in (None, "abs") and self.has_array(node):
            return self.operator(op.operator, args)
        if op.kind == "cast":
            return Text(f"{args[0].at(ATOM)}.astype({self.dtype(node.attrs['dtype'])})")
        called = TABLE[function_of(node) or op.name]
        return Text(f"{self.function(called)}({', '.join(self.arguments(node, op, called, args))})")

    def has_array(self, node: Node) -> bool:
        """An operator needs an array among its operands to mean the MLX operation; of numbers, it is Python's own."""
        return self.graph.facts.kind(node) == "scalar" or any(
            self.graph.facts.kind(n) in ("array", "unknown") for n in node.inputs
        )

    @staticmethod
    def operator(sign: str, args: Sequence[Text]) -> Text:
        if len(args) == 1:
            return Text(f"{sign}{args[0].at(PRECEDENCE['unary'])}", PRECEDENCE["unary"])
        level = PRECEDENCE[sign]
        if sign == "**":
            left, right = args[0].at(level + 1), args[1].at(PRECEDENCE["unary"])
            simple = SIMPLE.fullmatch(left) and SIMPLE.fullmatch(right)
            return Text(f"{left}**{right}" if simple else f"{left} ** {right}", level)
        chained = 1 if level == PRECEDENCE["<"] else 0
        return Text(f"{args[0].at(level + chained)} {sign} {args[1].at(level + 1)}", level)

    @staticmethod
    def function(op: Op) -> str:
        called = TABLE[op.function] if op.function is not None else op
        for spelling in called.spellings:
            module, _, name = spelling.rpartition(".")
            short = {"mlx.core": "{mx}", "mlx.nn": "{nn}"}.get(module)
            if short is not None and not (module == "mlx.nn" and name[:1].isupper()):
                return f"{short}.{name}"
        raise NoText(f"`{op.name}` has no function in mlx.core or mlx.nn")

    def arguments(self, node: Node, op: Op, called: Op, args: Sequence[Text]) -> Iterator[str]:
        attrs = node.attrs
        if called is not op and any(p.role == "value" and p.name not in attrs for p in called.params):
            attrs = {**{p.name: p.default for p in called.params}, **_settings(node, called)}
        rest = iter(args)
        by_name = False
        for p in called.params:
            text = next(rest, None) if p.role == "array" else None
            if p.role == "arrays":
                raise NoText(f"`{op.name}` takes a list")
            shown = text.text if text is not None else self.setting(attrs, p) if p.role == "value" else None
            if shown is None or (shown == "None" and p.role == "value" and not p.required):  # mx.clip needs both bounds
                by_name = True
            elif by_name or p.keyword_only:
                yield f"{p.name}={shown}"
            else:
                yield shown

    def setting(self, attrs: Mapping[str, Any], p: Param) -> str | None:
        value = attrs.get(p.name)
        if type(value) is type(p.default) and value == p.default and not p.required:
            return None
        if isinstance(value, Node):
            return self.of(value).text
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        raise NoText(f"`{p.name}` is no number")

    def dtype(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{{mx}}.{value}"
        if isinstance(value, Node) and value in self.numbers:
            return self.numbers[value]
        if isinstance(value, Node) and value.op == "dtype":
            return f"{self.of(value.inputs[0]).at(ATOM)}.dtype"
        raise NoText("a dtype can't be an argument of a compiled function")


def _settings(node: Node, called: Op) -> dict[str, Any]:
    """The settings of a layer, such as the slope of nn.LeakyReLU, from its constructor."""
    new = node.attrs.get("new")
    out: dict[str, Any] = {}
    for name, value in (new.attrs["args"] if new is not None else {}).items():
        if node.op == "nn.GELU":  # which function it is
            continue
        if not any(p.name == name for p in called.params) or value.op != "const":
            raise NoText(f"nothing says what `{name}` of {node.op} means for {called.name}")
        out[name] = value.attrs["value"]
    return out


def reads(nodes: Sequence[Node]) -> list[Node]:
    """What the nodes read besides one another."""
    inside = set(nodes)
    return list(dict.fromkeys(k for n in nodes for k in operands(n) if k not in inside))
