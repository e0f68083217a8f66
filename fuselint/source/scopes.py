"""Which names each function of a module binds and reads. One pass over the syntax tree."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuselint.source.spans import Definition, FunctionSpan, children

Binding = tuple[str, Any]
"""How a name is bound: ("import", target), ("def", None), ("class", None), ("value", expression or None)."""


@dataclass(slots=True)
class Scope:
    """A function, or the module (qualname ""), with what stands in it but not in functions inside it.

    Class bodies belong to the scope around them; `class_bodies` keeps their own names apart.
    """

    qualname: str
    span: FunctionSpan | None = None
    node: Definition | ast.Module | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)
    loads: list[ast.Name | ast.Attribute] = field(default_factory=list)
    stores: list[tuple[ast.Attribute, ast.expr | None]] = field(default_factory=list)
    assigned: list[ast.Attribute] = field(default_factory=list)  # however: also in a tuple, or deleted
    items: list[ast.Subscript] = field(default_factory=list)  # stored, or with a text as index
    loops: list[tuple[ast.expr, ast.expr]] = field(default_factory=list)  # target, what is iterated
    searched: list[tuple[str, str]] = field(default_factory=list)  # names x and texts of `"text" in x`
    returns: list[ast.expr] = field(default_factory=list)
    yields: bool = False

    def bind(self, name: str, how: str, what: Any = None) -> None:
        self.bindings.setdefault(name, []).append((how, what))


@dataclass(slots=True)
class Scopes:
    """All scopes of a module: `module`, and `functions` in source order (a qualname may come twice)."""

    module: Scope
    functions: list[Scope]
    classes: list[tuple[str, ast.ClassDef, str | None]]  # qualname, node, the function around it
    attribute_reads: Counter[str]
    names: Counter[str]


def scopes(tree: ast.Module, found: Sequence[tuple[FunctionSpan, Definition]]) -> Scopes:
    """Walk the module once. `found` are its functions, as `spans.functions` gives them."""
    return _Walker(tree, found).walk()


class _Walker:
    def __init__(self, tree: ast.Module, found: Sequence[tuple[FunctionSpan, Definition]]) -> None:
        self.spans = {id(node): span for span, node in found}
        self.out = Scopes(Scope("", node=tree), [], [], Counter(), Counter())
        self.tree = tree

    def walk(self) -> Scopes:
        stack: list[tuple[ast.AST, Scope, str]] = [(s, self.out.module, "") for s in reversed(self.tree.body)]
        while stack:
            node, scope, class_name = stack.pop()
            kind = type(node)
            if kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
                assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                if not class_name:
                    scope.bind(node.name, "def")
                for part in (*node.decorator_list, node.args, node.returns):
                    if part is not None:
                        stack.append((part, scope, class_name))
                inner = self._enter(node)
                stack.extend((s, inner, "") for s in reversed(node.body))
            elif kind is ast.ClassDef:
                assert isinstance(node, ast.ClassDef)
                if not class_name:
                    scope.bind(node.name, "class")
                qualname = self._class_name(node, scope, class_name)
                self.out.classes.append((qualname, node, scope.qualname or None))
                stack.extend((p, scope, class_name) for p in (*node.decorator_list, *node.bases, *node.keywords))
                stack.extend((s, scope, qualname) for s in reversed(node.body))
            elif kind is ast.Lambda and id(node) in self.spans:
                assert isinstance(node, ast.Lambda)
                stack.append((node.args, scope, class_name))
                stack.append((node.body, self._enter(node), ""))
            else:
                visit = _VISIT.get(kind)
                if visit is not None:
                    visit(self, node, scope, class_name)
                if kind is not ast.Name and kind is not ast.Constant:
                    for child in children(node):
                        stack.append((child, scope, class_name))
        return self.out

    def _enter(self, node: Definition) -> Scope:
        span = self.spans[id(node)]
        scope = Scope(span.qualname, span, node)
        for argument in arguments(node.args):
            scope.bind(argument.arg, "value")
        self.out.functions.append(scope)
        return scope

    @staticmethod
    def _class_name(node: ast.ClassDef, scope: Scope, class_name: str) -> str:
        if class_name:
            return f"{class_name}.{node.name}"
        return f"{scope.qualname}.<locals>.{node.name}" if scope.qualname else node.name

    def _name(self, node: ast.Name, scope: Scope, class_name: str) -> None:
        if isinstance(node.ctx, ast.Load):
            scope.loads.append(node)
            self.out.names[node.id] += 1
        elif not class_name:
            scope.bind(node.id, "value")

    def _attribute(self, node: ast.Attribute, scope: Scope, class_name: str) -> None:
        if isinstance(node.ctx, ast.Load):
            scope.loads.append(node)
            self.out.attribute_reads[node.attr] += 1
            self.out.names[node.attr] += 1
        else:
            scope.assigned.append(node)

    def _call(self, node: ast.Call, scope: Scope, class_name: str) -> None:
        scope.calls.append(node)

    def _constant(self, node: ast.Constant, scope: Scope, class_name: str) -> None:
        if isinstance(node.value, str) and len(node.value) < 200 and node.value.replace(".", "a").isidentifier():
            for part in node.value.split("."):
                self.out.attribute_reads[part] += 1
                self.out.names[part] += 1

    def _assign(self, node: ast.Assign, scope: Scope, class_name: str) -> None:
        if len(node.targets) == 1:
            self._target(node.targets[0], node.value, scope, class_name)

    def _ann_assign(self, node: ast.AnnAssign, scope: Scope, class_name: str) -> None:
        if node.value is not None:
            self._target(node.target, node.value, scope, class_name)

    def _target(self, target: ast.expr, value: ast.expr, scope: Scope, class_name: str) -> None:
        if isinstance(target, ast.Attribute):
            scope.stores.append((target, value))
        elif isinstance(target, ast.Name) and not class_name:
            # `_name` will add a plain "value": this one says which
            scope.bind(target.id, "is", value)
        elif _are_alike(target, value):
            for name, each in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
                if not isinstance(name, ast.Attribute):
                    self._target(name, each, scope, class_name)

    def _aug_assign(self, node: ast.AugAssign, scope: Scope, class_name: str) -> None:
        if isinstance(node.target, ast.Attribute):
            scope.stores.append((node.target, None))
            self.out.attribute_reads[node.target.attr] += 1
            self.out.names[node.target.attr] += 1
        elif isinstance(node.target, ast.Name):
            scope.bind(node.target.id, "value")
            self.out.names[node.target.id] += 1

    def _import(self, node: ast.Import, scope: Scope, class_name: str) -> None:
        for alias in node.names:
            if not class_name:
                scope.bind(alias.asname or alias.name.partition(".")[0], "import", _imported(alias))

    def _import_from(self, node: ast.ImportFrom, scope: Scope, class_name: str) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            self.out.names[alias.name] += 1
            if alias.name == "*":
                scope.stars.append(module)
            elif not class_name:
                joint = "" if not module or module.endswith(".") else "."
                scope.bind(alias.asname or alias.name, "import", module + joint + alias.name)

    def _except(self, node: ast.ExceptHandler, scope: Scope, class_name: str) -> None:
        if node.name:
            scope.bind(node.name, "value")

    def _pattern(self, node: ast.MatchAs | ast.MatchStar, scope: Scope, class_name: str) -> None:
        if node.name:
            scope.bind(node.name, "value")

    def _mapping(self, node: ast.MatchMapping, scope: Scope, class_name: str) -> None:
        if node.rest:
            scope.bind(node.rest, "value")

    def _lambda(self, node: ast.Lambda, scope: Scope, class_name: str) -> None:
        for argument in arguments(node.args):
            scope.bind(argument.arg, "inner")

    def _global(self, node: ast.Global | ast.Nonlocal, scope: Scope, class_name: str) -> None:
        scope.globals.update(node.names)

    def _yield(self, node: ast.AST, scope: Scope, class_name: str) -> None:
        scope.yields = True

    def _return(self, node: ast.Return, scope: Scope, class_name: str) -> None:
        if node.value is not None:
            scope.returns.append(node.value)

    def _subscript(self, node: ast.Subscript, scope: Scope, class_name: str) -> None:
        stored = not isinstance(node.ctx, ast.Load)
        if stored or text_of(node.slice) is not None:
            scope.items.append(node)

    def _compare(self, node: ast.Compare, scope: Scope, class_name: str) -> None:
        where = node.comparators[0]
        looked_for = text_of(node.left)
        if looked_for is not None and isinstance(where, ast.Name) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            scope.searched.append((where.id, looked_for))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.comprehension, scope: Scope, class_name: str) -> None:
        scope.loops.append((node.target, node.iter))


_VISIT: dict[type, Any] = {
    ast.Name: _Walker._name,
    ast.Attribute: _Walker._attribute,
    ast.Call: _Walker._call,
    ast.Constant: _Walker._constant,
    ast.Assign: _Walker._assign,
    ast.AnnAssign: _Walker._ann_assign,
    ast.AugAssign: _Walker._aug_assign,
    ast.Import: _Walker._import,
    ast.ImportFrom: _Walker._import_from,
    ast.ExceptHandler: _Walker._except,
    ast.MatchAs: _Walker._pattern,
    ast.MatchStar: _Walker._pattern,
    ast.MatchMapping: _Walker._mapping,
    ast.Lambda: _Walker._lambda,
    ast.Global: _Walker._global,
    ast.Nonlocal: _Walker._global,
    ast.Return: _Walker._return,
    ast.Yield: _Walker._yield,
    ast.YieldFrom: _Walker._yield,
    ast.Subscript: _Walker._subscript,
    ast.Compare: _Walker._compare,
    ast.For: _Walker._loop,
    ast.AsyncFor: _Walker._loop,
    ast.comprehension: _Walker._loop,
}


def arguments(args: ast.arguments) -> Iterator[ast.arg]:
    """All parameters, in the order of the call."""
    yield from args.posonlyargs
    yield from args.args
    if args.vararg:
        yield args.vararg
    yield from args.kwonlyargs
    if args.kwarg:
        yield args.kwarg


def text_of(node: ast.expr) -> str | None:
    """A literal text; of a formatted one, its fixed parts, with "x" for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "x" for v in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _imported(alias: ast.alias) -> str:
    """What the name of `import a.b` (a) or `import a.b as c` (a.b) stands for."""
    return alias.name if alias.asname else alias.name.partition(".")[0]


def dotted(node: ast.expr) -> str | None:
    """The text of a dotted name, or None."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def _are_alike(target: ast.expr, value: ast.expr) -> bool:
    """`a, b = 1, 2`: each name is one value."""
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    starred = any(isinstance(e, ast.Starred) for e in (*target.elts, *value.elts))
    return not starred and len(target.elts) == len(value.elts)
