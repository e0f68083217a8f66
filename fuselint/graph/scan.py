"""What a function's text binds and reads, found without lowering it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fuselint.source.function import children

Definition = cst.FunctionDef | cst.Lambda
SCOPES = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
_SCOPES = frozenset(SCOPES)  # by type: isinstance with LibCST's abstract classes is slow


def inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Everything inside a node, without what nested functions and classes hold."""
    stack = children(node)[::-1]
    while stack:
        n = stack.pop()
        yield n
        if type(n) not in _SCOPES:
            stack.extend(reversed(children(n)))


def assigned_names(node: cst.CSTNode, in_expressions: bool = True) -> frozenset[str]:
    """The names that the code of a function, or of a suite, binds in its own scope.

    Without `in_expressions`, expressions bind none: for text without `:=`.
    """
    out: set[str] = set()
    if isinstance(node, (cst.FunctionDef, cst.Lambda)):
        out.update(p.name.value for p in parameters(node))
    stack: list[cst.CSTNode] = [node.body if isinstance(node, (cst.FunctionDef, cst.Lambda)) else node]
    while stack:
        n = stack.pop()
        kind = type(n)
        if kind in _BINDING:
            out.update(bound_by(n))
        if kind not in _SCOPES and (in_expressions or not _is_expression[kind]):
            stack += children(n)
    return frozenset(out)


class _Expressions(dict[type, bool]):
    """Whether the nodes of a type are expressions."""

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = issubclass(kind, cst.BaseExpression)
        return found


_is_expression = _Expressions()


def assigned_in(comprehension: cst.BaseComp) -> list[str]:
    """The names that a comprehension leaves behind: those of `:=`."""
    stack: list[cst.CSTNode] = [comprehension]
    out: dict[str, None] = {}
    while stack:
        n = stack.pop()
        if isinstance(n, cst.NamedExpr):
            out.update(dict.fromkeys(target_names(n.target)))
        if not isinstance(n, SCOPES):
            stack.extend(children(n))
    return list(out)


_BINDING = frozenset(
    [
        cst.AssignTarget,
        cst.AugAssign,
        cst.AnnAssign,
        cst.NamedExpr,
        cst.For,
        cst.AsName,
        cst.FunctionDef,
        cst.ClassDef,
        cst.ImportAlias,
        cst.Del,
        cst.MatchAs,
        cst.MatchStar,
        cst.MatchMapping,
    ]
)
"""The types of nodes that bind names."""


_TARGETED = frozenset([cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Del, cst.For])
"""Those of them that assign to a target, or delete it."""


def bound_by(node: cst.CSTNode) -> Iterator[str]:
    """The names that one syntax node binds."""
    if type(node) not in _BINDING:
        return
    if isinstance(node, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.NamedExpr, cst.For)):
        yield from target_names(node.target)
    elif isinstance(node, (cst.AsName,)):
        yield from target_names(node.name)
    elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        yield node.name.value
    elif isinstance(node, cst.ImportAlias):
        if node.asname is None:
            yield dotted(node.name).split(".")[0]
    elif isinstance(node, cst.Del):
        yield from target_names(node.target)
    elif isinstance(node, (cst.MatchAs, cst.MatchStar)) and node.name is not None:
        yield node.name.value
    elif isinstance(node, cst.MatchMapping) and node.rest is not None:
        yield node.rest.value


def target_names(target: cst.CSTNode) -> Iterator[str]:
    stack = [target]
    while stack:
        t = stack.pop()
        if isinstance(t, cst.Name):
            yield t.value
        elif isinstance(t, (cst.Tuple, cst.List)):
            stack.extend(e.value for e in t.elements)
        elif isinstance(t, cst.StarredElement):
            stack.append(t.value)


def parameters(definition: Definition) -> list[cst.Param]:
    p = definition.params
    out = [*p.posonly_params, *p.params]
    if isinstance(p.star_arg, cst.Param):
        out.append(p.star_arg)
    out.extend(p.kwonly_params)
    if p.star_kwarg is not None:
        out.append(p.star_kwarg)
    return out


def names_read(node: cst.CSTNode) -> set[str]:
    """All names inside, attribute and keyword names apart. A few too many do no harm: they only protect."""
    out: set[str] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if isinstance(n, cst.Name):
            out.add(n.value)
        elif isinstance(n, (cst.Attribute, cst.Arg)):
            stack.append(n.value)
        else:
            stack.extend(children(n))
    return out


def rebinds_outer(definition: Definition) -> set[str]:
    """The names that a function, or one nested in it, declares nonlocal or global."""
    out: set[str] = set()
    stack: list[cst.CSTNode] = [definition.body]
    while stack:
        n = stack.pop()
        if isinstance(n, (cst.Nonlocal, cst.Global)):
            out.update(i.name.value for i in n.names)
        elif not _is_expression[type(n)]:
            stack += children(n)
    return out


def as_lambda(body: cst.BaseExpression, *names: cst.Name) -> cst.Lambda:
    """The function of `names` that an expression is."""
    return cst.Lambda(cst.Parameters([cst.Param(name) for name in names]), body)


def runs_apart(definition: Definition) -> bool:
    """Whether a call doesn't run the body: of a generator or a coroutine."""
    if isinstance(definition, cst.FunctionDef) and definition.asynchronous is not None:
        return True
    return any(type(n) in _APART for n in inside(definition.body))


_APART = frozenset([cst.Yield, cst.Await])


def dotted(node: cst.CSTNode) -> str:
    """The text of a dotted name; "" for anything else."""
    parts = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


@dataclass(frozen=True)
class Changes:
    """What code may change.

    names: those it binds. items: names of objects whose items it assigns. given: names of objects that it hands to
    calls, their own methods included. attributes: names of attributes that it assigns.
    """

    names: frozenset[str]
    items: frozenset[str]
    given: frozenset[str]
    attributes: frozenset[str]
    calls: bool


def changed_in(loop: cst.For | cst.While) -> Changes:
    if isinstance(loop, cst.For):
        found = changed_by(loop.body)
        return replace(found, names=found.names | frozenset(target_names(loop.target)))
    return changed_by(loop.test, loop.body)


def changed_by(*nodes: cst.CSTNode) -> Changes:
    """What code may change, if any of it runs."""
    names: set[str] = set()
    items: set[str] = set()
    given: set[str] = set()
    attributes: set[str] = set()
    calls = False
    stack: list[cst.CSTNode] = [*nodes]
    while stack:
        n = stack.pop()
        kind = type(n)
        if kind in _BINDING:
            names.update(bound_by(n))
        if isinstance(n, cst.Call):
            calls = True
            if isinstance(n.func, cst.Attribute) and isinstance(n.func.value, cst.Name):
                given.add(n.func.value.value)
            given.update(a.value.value for a in n.args if isinstance(a.value, cst.Name))
        elif kind in _TARGETED:
            for t in _parts(n.target):  # type: ignore[attr-defined]
                if isinstance(t, cst.Attribute):
                    attributes.add(t.attr.value)
                elif isinstance(t, cst.Subscript):
                    base = t.value
                    while isinstance(base, cst.Subscript):
                        base = base.value
                    if isinstance(base, cst.Name):
                        items.add(base.value)
        if kind not in _SCOPES:
            stack += children(n)
    return Changes(frozenset(names), frozenset(items), frozenset(given), frozenset(attributes), calls)


def _parts(target: cst.CSTNode) -> Iterator[cst.CSTNode]:
    stack = [target]
    while stack:
        t = stack.pop()
        if isinstance(t, (cst.Tuple, cst.List)):
            stack.extend(e.value for e in t.elements)
        elif isinstance(t, cst.StarredElement):
            stack.append(t.value)
        else:
            yield t
