"""A graph as text: one line a node, with its line in the source, its op, its inputs, and what is known of it."""

from __future__ import annotations

from typing import Any

from fuselint.graph.model import FOREIGN, Graph, Node, Slice

HIDDEN = frozenset({"default", "callee", "args"})


def show(graph: Graph, facts: bool = False) -> str:
    """The whole graph, in evaluation order; `facts` adds shape and dtype."""
    lines = [f"{graph.context.qualname}({', '.join(graph.params)})"]
    if graph.not_understood:
        lines.append(f"  not understood: {graph.not_understood}")
    held: dict[Node, list[str]] = {}
    for name, bindings in graph.bindings.items():
        for b in bindings:
            held.setdefault(b.node, []).append(name)
    for n in graph.nodes:
        names = "/".join(dict.fromkeys(held.get(n, ())))
        shown = f" ({names})" if names and n.op != "param" else ""
        text = f"{_line(graph, n):>5}  {'  ' * n.frame.depth}{_name(n)}{shown} = {describe(n)}"
        if facts:
            text += f"    # {_facts(graph, n)}"
        lines.append(text)
    for e in graph.effects:
        targets = ", ".join(_name(t) for t in e.targets)
        value = f" <- {_name(e.value)}" if e.value is not None else ""
        lines.append(f"{_line_of(graph, e.stmt.cst):>5}  effect {e.kind} {e.path or targets}{value}")
    for stmt, n in graph.returns:
        lines.append(f"{_line_of(graph, stmt.cst):>5}  return {_name(n)}")
    lines.extend(f"  note: {n}" for n in graph.notes)
    return "\n".join(lines)


def describe(node: Node) -> str:
    """A node without its own name: `softmax(%3, axis=-1)`."""
    parts = [_name(n) for n in node.inputs]
    for key, value in node.attrs.items():
        if key in HIDDEN or (key != "value" and (value is None or value is False or value in ("", ()))):
            continue
        parts.append(f"{key}={_text(value, key in FOREIGN)}")
    return f"{node.op}({', '.join(parts)})"


def _name(node: Node) -> str:
    return f"%{node.id}"


def _text(value: Any, foreign: bool = False) -> str:
    if isinstance(value, Node):
        return f"<{describe(value)}>" if foreign else _name(value)
    if isinstance(value, Slice):
        ends = [("" if p is None else _text(p)) for p in (value.start, value.stop)]
        return ":".join([*ends, _text(value.step)] if value.step is not None else ends)
    if value is Ellipsis:
        return "..."
    if isinstance(value, tuple):
        return f"({', '.join(_text(v, foreign) for v in value)}{',' if len(value) == 1 else ''})"
    return str(value) if isinstance(value, str) else repr(value)


def _line(graph: Graph, node: Node) -> str:
    at = node.cst
    if at is None:
        at = node.stmt.cst if node.stmt is not None else None
    if at is None or node.frame.source is None:
        return ""
    return _line_in(node.frame.source, at)


def _line_of(graph: Graph, at: Any) -> str:
    return _line_in(graph.source, at)


def _line_in(source: Any, at: Any) -> str:
    try:
        start, _ = source.span(at)
    except KeyError:
        return ""
    return str(source.file.position(start)[0])


def _facts(graph: Graph, node: Node) -> str:
    f = graph.facts
    kind = f.kind(node)
    if kind != "array":
        return str(kind)
    shape = f.shape(node)
    return f"{'?' if shape is None else shape} {f.dtype(node)}"
