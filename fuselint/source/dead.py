"""What dies when an expression goes: liveness of local names over a function's statements.

An assignment is dead where none of the names that it binds is read afterwards, and evaluating it does nothing else.
This works on the syntax alone, so it also sees what the graph does not follow: loops, handlers, nested functions.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import libcst as cst

from fuselint.source.function import children, walk
from fuselint.source.tree import parents

EVERYTHING = frozenset({"locals", "vars", "eval", "exec", "dir"})
"""Functions that may read any name. `mx.eval` is none of them."""

Names = frozenset[str]
_NONE: Names = frozenset()
_Nested = (cst.FunctionDef, cst.Lambda, cst.GeneratorExp, cst.ClassDef)


SIZES = frozenset({"shape", "ndim", "size"})
"""What a cast leaves as it is."""


def names_read(node: cst.CSTNode, skip: Container[cst.CSTNode] = ()) -> set[str]:
    """Names that evaluating `node` may read, without what lies in `skip`. Targets of assignments don't count.

    Where only the sizes of `x` are read it is "x.shape".
    """
    out: set[str] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in skip:
            continue
        if type(n) not in _READING:
            stack += children(n)
        elif isinstance(n, cst.Name):
            out.add(n.value)
        elif isinstance(n, cst.Attribute) and n.attr.value in SIZES and isinstance(n.value, cst.Name):
            out.add(f"{n.value.value}.shape")
        elif isinstance(n, (cst.Attribute, cst.Arg, cst.NamedExpr)):
            stack.append(n.value)
        elif isinstance(n, cst.AssignTarget):
            stack += _target_reads(n.target)
        elif isinstance(n, cst.AnnAssign):
            stack += _target_reads(n.target)
            if n.value is not None:
                stack.append(n.value)
        elif isinstance(n, (cst.CompFor, cst.For)):
            stack += [c for c in children(n) if c is not n.target] + _target_reads(n.target)
        elif isinstance(n, cst.Param):
            if n.default is not None:
                stack.append(n.default)
        elif isinstance(n, cst.FunctionDef):
            stack += [*n.decorators, n.params, n.body]
        elif isinstance(n, cst.ClassDef):
            stack += [*n.decorators, *n.bases, *n.keywords, n.body]
        elif isinstance(n, (cst.Annotation, cst.ImportAlias, cst.AsName)):
            continue
        else:
            stack += children(n)
    return out


# Types, which most nodes are none of: isinstance with LibCST's abstract classes is slow.
_READING = frozenset(
    [
        cst.Name,
        cst.Attribute,
        cst.Arg,
        cst.NamedExpr,
        cst.AssignTarget,
        cst.AnnAssign,
        cst.CompFor,
        cst.For,
        cst.Param,
        cst.FunctionDef,
        cst.ClassDef,
        cst.Annotation,
        cst.ImportAlias,
        cst.AsName,
    ]
)
_BINDING = frozenset(
    [
        cst.NamedExpr,
        cst.AssignTarget,
        cst.AnnAssign,
        cst.AugAssign,
        cst.FunctionDef,
        cst.ClassDef,
        cst.Import,
        cst.ImportFrom,
        cst.For,
        cst.WithItem,
        cst.Lambda,
    ]
)
_OUTER = frozenset([*_Nested, cst.Global, cst.Nonlocal])


def _target_reads(target: cst.BaseExpression) -> list[cst.CSTNode]:
    """The parts of a target that are evaluated: `a` and `i` in `a[i] = ...`."""
    if isinstance(target, cst.Name):
        return []
    if isinstance(target, (cst.Tuple, cst.List)):
        return [n for e in target.elements for n in _target_reads(e.value)]
    return [target]


def names_in_target(target: cst.CSTNode) -> set[str]:
    if isinstance(target, cst.Name):
        return {target.value}
    if isinstance(target, (cst.Tuple, cst.List)):
        return {n for e in target.elements for n in names_in_target(e.value)}
    return set()


def names_bound(node: cst.CSTNode, skip: Container[cst.CSTNode] = ()) -> set[str]:
    """Names of this function's scope that a small statement, an expression or a definition binds."""
    out: set[str] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if n in skip:
            continue
        if type(n) not in _BINDING:
            stack += children(n)
        elif isinstance(n, cst.NamedExpr):
            out |= names_in_target(n.target)
            stack.append(n.value)
        elif isinstance(n, cst.AssignTarget):
            out |= names_in_target(n.target)
        elif isinstance(n, (cst.AnnAssign, cst.AugAssign)):
            if n.value is not None:
                out |= names_in_target(n.target)
                stack.append(n.value)
        elif isinstance(n, (cst.FunctionDef, cst.ClassDef)):
            out.add(n.name.value)
        elif isinstance(n, (cst.Import, cst.ImportFrom)):
            if not isinstance(n.names, cst.ImportStar):
                out |= {_import_name(a) for a in n.names}
        elif isinstance(n, cst.For):
            out |= names_in_target(n.target)
        elif isinstance(n, cst.WithItem):
            if n.asname is not None:
                out |= names_in_target(n.asname.name)
            stack.append(n.item)
    return out


def _import_name(alias: cst.ImportAlias) -> str:
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    at: cst.BaseExpression = alias.name
    while isinstance(at, cst.Attribute):
        at = at.value
    return at.value if isinstance(at, cst.Name) else ""


class _Syntax:
    """What is asked of a function's statements for each of its fixes, worked out once.

    An answer without some code is only worked out anew for what holds such code: see `holding`.
    """

    def __init__(self, function: cst.FunctionDef) -> None:
        self.function = function
        self.parents = parents(function)
        self.statements = own_statements(function)
        self.nested = _nested(function.body)
        self.reads_everything = bool(names_read(function.body) & EVERYTHING)
        self._reads: dict[cst.CSTNode, Names] = {}
        self._binds: dict[cst.CSTNode, Names] = {}
        self._walrus: dict[cst.CSTNode, Names] = {}

    def up(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The node and all that it stands in."""
        at: cst.CSTNode | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def holding(self, nodes: Iterable[cst.CSTNode]) -> set[cst.CSTNode]:
        """Nodes, and all that they stand in."""
        out: set[cst.CSTNode] = set()
        for node in nodes:
            for n in self.up(node):
                if n in out:
                    break
                out.add(n)
        return out

    def reads(self, node: cst.CSTNode) -> Names:
        if node not in self._reads:
            self._reads[node] = frozenset(names_read(node))
        return self._reads[node]

    def binds(self, node: cst.CSTNode) -> Names:
        if node not in self._binds:
            self._binds[node] = frozenset(names_bound(node))
        return self._binds[node]

    def walrus(self, stmt: cst.CSTNode) -> Names:
        """The names that expressions of a statement bind."""
        if stmt not in self._walrus:
            bound = (names_in_target(e.target) for e in walk(stmt) if isinstance(e, cst.NamedExpr))
            self._walrus[stmt] = frozenset().union(*bound)
        return self._walrus[stmt]

    def captured(self, gone: set[cst.CSTNode]) -> Names:
        """Names that nested functions, lambdas, classes and generators may read at any later time."""
        holding = self.holding(gone)
        out: set[str] = set()
        for n in self.nested:
            if isinstance(n, (cst.Global, cst.Nonlocal)):
                names = frozenset(i.name.value for i in n.names)
            else:
                names = frozenset(names_read(n, gone)) if n in holding else self.reads(n)
            if gone.isdisjoint(self.up(n)):
                out |= names
        return frozenset(out)


@lru_cache(maxsize=4)  # many fixes of one function are placed in a row
def _syntax(function: cst.FunctionDef) -> _Syntax:
    return _Syntax(function)


def _nested(body: cst.CSTNode) -> list[cst.CSTNode]:
    """The outermost definitions inside, and the statements that say where names belong."""
    out: list[cst.CSTNode] = []
    stack = [body]
    while stack:
        n = stack.pop()
        if type(n) in _OUTER:
            out.append(n)
        else:
            stack += children(n)
    return out


def _killed(names: Iterable[str]) -> set[str]:
    return {k for n in names for k in (n, f"{n}.shape")}


def _is_own_cast(stmt: cst.CSTNode) -> bool:
    """`x = x.astype(...)`: what reads only sizes of x may as well read them before it."""
    if not isinstance(stmt, cst.Assign) or len(stmt.targets) != 1 or not isinstance(stmt.value, cst.Call):
        return False
    target, func = stmt.targets[0].target, stmt.value.func
    return (
        isinstance(target, cst.Name)
        and isinstance(func, cst.Attribute)
        and func.attr.value == "astype"
        and isinstance(func.value, cst.Name)
        and func.value.value == target.value
    )


@dataclass
class _Flow:
    """Where control may go from inside a suite, as the names live there."""

    brk: Names = _NONE
    cont: Names = _NONE
    ret: Names = _NONE
    exc: Names = _NONE


@dataclass
class Liveness:
    """Names live after each statement of a function, as if `deleted` and `removed` were not there.

    removed: expressions that are no longer evaluated. added: names that the code put in place of one reads.
    dies: whether a statement goes with these names live after it; outside of loops it is deleted at once, so that what
    it alone read dies in the same run.
    """

    function: cst.FunctionDef
    removed: set[cst.CSTNode] = field(default_factory=set)
    added: dict[cst.CSTNode, Names] = field(default_factory=dict)
    deleted: set[cst.CSTNode] = field(default_factory=set)
    dies: Callable[[cst.CSTNode, Names], bool] = lambda stmt, live: False
    _loops: int = 0  # around the current statement: what is live in one is known at its end

    def run(self) -> dict[cst.CSTNode, Names]:
        self.after: dict[cst.CSTNode, Names] = {}
        self._syntax = _syntax(self.function)
        self._changed = self._syntax.holding(self.removed)
        self._more: dict[cst.CSTNode, Names] = {}  # by all that holds what reads more
        for removed, names in self.added.items():
            for n in self._syntax.up(removed):
                self._more[n] = self._more.get(n, _NONE) | names
        self._always = self._syntax.captured(self.removed | self.deleted)
        self._suite(self.function.body, _NONE, _Flow())
        return self.after

    def _reads(self, node: cst.CSTNode) -> Names:
        out = frozenset(names_read(node, self.removed)) if node in self._changed else self._syntax.reads(node)
        return out | self._more[node] if node in self._more else out

    def _binds(self, node: cst.CSTNode) -> Names:
        return frozenset(names_bound(node, self.removed)) if node in self._changed else self._syntax.binds(node)

    def _suite(self, suite: cst.CSTNode | None, live: Names, flow: _Flow) -> Names:
        if suite is None:
            return live
        body: Sequence[cst.CSTNode] = getattr(suite, "body", ())
        for stmt in reversed(body):
            live = self._statement(stmt, live, flow)
        return live

    def _statement(self, stmt: cst.CSTNode, live: Names, flow: _Flow) -> Names:
        live |= flow.exc | self._always
        if isinstance(stmt, cst.SimpleStatementLine):
            return self._suite(stmt, live, flow)
        self.after[stmt] = self.after.get(stmt, _NONE) | live
        if stmt in self.deleted:
            return live
        if not self._loops and self.dies(stmt, self.after[stmt]):
            self.deleted.add(stmt)
            return live
        if isinstance(stmt, cst.If):
            return self._reads(stmt.test) | self._suite(stmt.body, live, flow) | self._orelse(stmt.orelse, live, flow)
        if isinstance(stmt, (cst.For, cst.While)):
            return self._loop(stmt, live, flow)
        if isinstance(stmt, (cst.Try, cst.TryStar)):
            return self._try(stmt, live, flow)
        if isinstance(stmt, cst.With):
            live = self._suite(stmt.body, live, flow)
            for item in reversed(stmt.items):
                live = (live - _killed(self._syntax.binds(item))) | self._reads(item)
            return live
        if isinstance(stmt, cst.Match):
            out = live
            for case in stmt.cases:
                out |= self._suite(case.body, live, flow) | (self._reads(case.guard) if case.guard else _NONE)
                out |= self._reads(case.pattern)
            return out | self._reads(stmt.subject)
        if isinstance(stmt, cst.Return):
            return (self._reads(stmt.value) if stmt.value else _NONE) | flow.ret | flow.exc | self._always
        if isinstance(stmt, cst.Raise):
            return self._reads(stmt) | flow.exc | self._always
        if isinstance(stmt, cst.Break):
            return flow.brk | self._always
        if isinstance(stmt, cst.Continue):
            return flow.cont | self._always
        if isinstance(stmt, (cst.FunctionDef, cst.ClassDef)):
            return (live - _killed({stmt.name.value})) | self._reads(stmt)
        if stmt in self.removed:  # `a += b` that becomes `a = ...`
            return (live - _killed(self._syntax.binds(stmt))) | frozenset(self.added.get(stmt, ()))
        kills = self._binds(stmt)
        if isinstance(stmt, cst.AugAssign):
            return live | kills | self._reads(stmt)
        return (live - _killed(kills - self._syntax.walrus(stmt))) | self._reads(stmt)

    def _orelse(self, orelse: cst.CSTNode | None, live: Names, flow: _Flow) -> Names:
        if isinstance(orelse, cst.If):
            return self._statement(orelse, live, flow)
        return self._suite(orelse.body, live, flow) if isinstance(orelse, (cst.Else, cst.Finally)) else live

    def _loop(self, stmt: cst.For | cst.While, live: Names, flow: _Flow) -> Names:
        leave = self._orelse(stmt.orelse, live, flow)
        if isinstance(stmt, cst.For):
            head_reads = frozenset(n for t in _target_reads(stmt.target) for n in names_read(t, self.removed))
            before, binds = self._reads(stmt.iter), names_in_target(stmt.target)
        else:
            head_reads, before, binds = self._reads(stmt.test), _NONE, set()
        head = leave | head_reads
        self._loops += 1
        while True:
            inner = _Flow(live, head, flow.ret, flow.exc)
            turned = head | ((self._suite(stmt.body, head, inner) | head_reads) - _killed(binds))
            if turned == head:
                self._loops -= 1
                return head | before
            head = turned

    def _try(self, stmt: cst.Try | cst.TryStar, live: Names, flow: _Flow) -> Names:
        last: cst.Finally | None = stmt.finalbody
        if last is not None:  # it runs on every way out
            ways = live | flow.ret | flow.exc | flow.brk | flow.cont
            live = self._suite(last.body, ways, flow)
            flow = _Flow(flow.brk | live, flow.cont | live, flow.ret | live, flow.exc | live)
        caught = flow.exc
        for h in stmt.handlers:
            reads = self._reads(h.type) if h.type is not None else _NONE
            caught |= self._suite(h.body, live, flow) | reads
        after = self._orelse(stmt.orelse, live, flow)
        return self._suite(stmt.body, after, _Flow(flow.brk, flow.cont, flow.ret, caught)) | caught


def dead_statements(
    function: cst.FunctionDef,
    deletable: Callable[[cst.CSTNode], bool],
    removed: Iterable[cst.CSTNode] = (),
    added: dict[cst.CSTNode, Names] | None = None,
    deleted: Iterable[cst.CSTNode] = (),
) -> set[cst.CSTNode]:
    """The statements (small ones, definitions, emptied ifs) that can go once `removed` is no longer evaluated.

    deletable: whether a statement may go at all: it does nothing but bind names. For an `if`: its test does nothing.
    Returns `deleted` and what follows from it.
    """
    gone = set(deleted)
    removed = set(removed)
    syntax = _syntax(function)
    if syntax.reads_everything:
        return gone
    candidates: dict[cst.CSTNode, Names] = {
        n: _NONE if isinstance(n, cst.If) else syntax.binds(n)
        for n in syntax.statements
        if n not in gone and isinstance(n, (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.FunctionDef, cst.If))
    }

    def dies(n: cst.CSTNode, after: Names) -> bool:
        bound = candidates.get(n)
        if not bound or bound & after or (_killed(bound) & after and not _is_own_cast(n)):
            return False
        return deletable(n)

    def is_empty(n: cst.CSTNode) -> bool:
        return isinstance(n, cst.If) and all(s in gone for s in _inner(n)) and deletable(n)

    while True:
        before = len(gone)
        after = Liveness(function, removed, added or {}, gone, dies).run()
        left = [n for n in candidates if n not in gone and n in after]
        gone |= {n for n in left if is_empty(n) or dies(n, after[n])}
        if len(gone) == before:
            return gone


def _inner(stmt: cst.If) -> list[cst.CSTNode]:
    """The statements of all arms, `pass` apart; an `elif` counts as one."""
    out = [s for s in statements_of(stmt.body) if not isinstance(s, cst.Pass)]
    if isinstance(stmt.orelse, cst.If):
        out.append(stmt.orelse)
    elif stmt.orelse is not None:
        out += [s for s in statements_of(stmt.orelse.body) if not isinstance(s, cst.Pass)]
    return out


def statements_of(suite: cst.CSTNode) -> list[cst.CSTNode]:
    """The statements of a suite, small ones each for itself."""
    out: list[cst.CSTNode] = []
    for s in getattr(suite, "body", ()):
        out += s.body if isinstance(s, cst.SimpleStatementLine) else [s]
    return out


def own_statements(function: cst.FunctionDef) -> list[cst.CSTNode]:
    """All statements of a function, those of nested definitions apart, in source order."""
    out: list[cst.CSTNode] = []
    stack: list[cst.CSTNode] = [function.body]
    while stack:
        n = stack.pop()
        if isinstance(n, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            out.append(n)
            if isinstance(n, (cst.FunctionDef, cst.ClassDef, cst.BaseSmallStatement)):
                continue
        stack += reversed(children(n))
    return out
