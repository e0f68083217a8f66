"""A value of the graph as source text, at a place of the function where the text means that value."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from fuselint.graph.model import Graph, Node, Statement
from fuselint.source.confirm import uncast
from fuselint.source.dead import names_bound, names_read
from fuselint.source.function import FunctionSource, children, walk
from fuselint.source.hoist import Refused
from fuselint.source.layout import is_atom, one_line
from fuselint.source.tree import CONDITIONAL, SCOPES, Tree

OPERATORS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "power": "**",
}
LONGEST_TAKEN = 80
"""Characters of an expression that is taken out of a helper."""

COMPARISONS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}


@dataclass(frozen=True)
class Written:
    """Text for a value. names: what it reads. moved: expressions that it evaluates here, and not where they stood.

    made: values of inlined helpers that it evaluates here, and not where the helper is called.
    """

    text: str
    names: frozenset[str] = frozenset()
    moved: tuple[cst.CSTNode, ...] = ()
    made: tuple[Node, ...] = ()

    @property
    def atom(self) -> str:
        return self.text if is_atom(self.text) else f"({self.text})"

    @property
    def operand(self) -> str:
        """The text beside an operator of arithmetic."""
        return self.text if self._is(ast.Constant) else self.atom

    @property
    def side(self) -> str:
        """The text as a side of a comparison."""
        return self.text if self._is(ast.BinOp, ast.Constant) else self.atom

    def _is(self, *kinds: type[ast.expr]) -> bool:
        try:
            return isinstance(ast.parse(self.text.strip(), mode="eval").body, kinds)
        except SyntaxError:  # broken over lines
            return False


@dataclass
class Place:
    """Where the new code stands: the expression it replaces, its statement, and the statements that go."""

    expr: cst.CSTNode
    at: Statement
    dead: frozenset[Statement] = frozenset()


@dataclass
class Writer:
    """Finds text for values of one graph."""

    graph: Graph
    tree: Tree
    moving: bool = True  # whether operands may move out of statements that die
    fixed: dict[Node, str] = field(default_factory=dict)  # values that new statements of the fix give a name

    @cached_property
    def source(self) -> FunctionSource:
        return self.graph.source

    @cached_property
    def local(self) -> frozenset[str]:
        """Names that belong to the function itself."""
        assert isinstance(self.source.node, cst.FunctionDef)
        return frozenset({*self.graph.params, *self.graph.bindings, *names_bound(self.source.node.body)})

    @cached_property
    def at_node(self) -> dict[Node, list[cst.CSTNode]]:
        """The expressions of the function that evaluate a value."""
        out: dict[Node, list[cst.CSTNode]] = {}
        for e, n in self.graph.values.items():
            out.setdefault(n, []).append(e)
        return out

    def write(self, node: Node, place: Place, depth: int = 0) -> Written:
        """Raises Refused where no text means the value there."""
        if depth < 40:
            if node in self.fixed:
                return Written(self.fixed[node], frozenset({self.fixed[node]}))
            for attempt in (
                self._held,
                self._constant,
                self._global,
                self._path,
                self._moved,
                self._scalar,
                self._chosen,
                self._taken_out,
            ):
                found = attempt(node, place, depth)
                if found is not None:
                    return found
        if node.frame.depth > 0:
            raise Refused(f"{self._shown(node)} is made inside `{node.frame.qualname}`: let that return it")
        raise Refused(f"no name holds {self._shown(node)} where the new call stands")

    def _shown(self, node: Node) -> str:
        if node.cst is not None and node.frame.source is not None:
            text = one_line(node.frame.source.code(node.cst))
            if text is not None and len(text) < 60:
                return f"`{text}`"
        return "an operand"

    # Names

    def _held(self, node: Node, place: Place, depth: int) -> Written | None:
        hidden = self.tree.comprehension_names(place.expr)
        names = [n for n in self.graph.names_of(node, place.at, place.dead) if n not in hidden]
        inside = [
            e.value
            for e in walk(place.expr)
            if isinstance(e, cst.Name)
            and self.graph.values.get(e) is node
            and (e.value in names or self._stays(e, place))
            and not self.tree.between(e, place.expr, SCOPES)
        ]
        names = [n for n in names if n.isidentifier()]
        if not names and not inside:
            return None
        bound = {n: self.graph.bindings[n] for n in names}
        given = [n for n in names if any(b.node is node and b.stmt is None and b.index < 0 for b in bound[n])]
        name = next(iter([*given, *inside, *sorted(names, key=lambda n: bound[n][-1].index)]))
        return Written(name, frozenset({name}))

    def holds(self, name: cst.Name, value: Node | None, place: Place) -> bool:
        """Whether a name that the function reads elsewhere means the same at the place."""
        if name.value not in self.local:
            return name.value not in self.tree.comprehension_names(place.expr)
        if value is not None and any(n is name for n in walk(place.expr)) and self._stays(name, place):
            return True
        if name.value in self.tree.comprehension_names(place.expr):
            return False
        return value is not None and self.graph.lookup(name.value, place.at, place.dead) is value

    def _stays(self, name: cst.Name, place: Place) -> bool:
        """Whether a name of the replaced expression is bound by nothing that goes with it."""
        own = self.tree.comprehension_names(place.expr)
        if name.value in own:
            return True
        gone = any(b.stmt in place.dead for b in self.graph.bindings.get(name.value, ()) if b.stmt is not None)
        return not gone and name.value not in names_bound(place.expr)

    def _holds_sizes(self, name: cst.Name, value: Node | None, place: Place) -> bool:
        """Whether only the sizes of a name are read, and it has the same ones at the place."""
        parent = self.tree.parents.get(name)
        if value is None or not isinstance(parent, cst.Attribute) or parent.attr.value not in ("shape", "ndim", "size"):
            return False
        now = self.graph.lookup(name.value, place.at, place.dead)
        return now is not None and uncast(now) is uncast(value)

    # Constants, module names, attributes

    def _constant(self, node: Node, place: Place, depth: int) -> Written | None:
        if node.op != "const":
            return None
        at, value = node.cst, node.attrs["value"]
        if at is not None and node.frame.source is not None:
            code = node.frame.source.code(at)
            if isinstance(at, (cst.Integer, cst.Float, cst.UnaryOperation, cst.SimpleString)):
                return Written(one_line(code) or repr(value))
            if isinstance(at, (cst.Name, cst.Attribute, cst.Call)):
                head = code.partition("(")[0].partition(".")[0].strip()
                if value is None or isinstance(value, bool):
                    return Written(repr(value))
                if self._same_name(head, node, place):
                    return Written(code, frozenset({head}))
        if "kind" in node.attrs or not isinstance(value, (int, float, str, bool, type(None))):
            return None
        if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
            return None
        return Written(repr(value))

    def _same_name(self, head: str, node: Node, place: Place) -> bool:
        """Whether a module-level name that `node`'s function reads is the same at the place."""
        module = self.graph.module
        if head in self.local or head in self.tree.comprehension_names(place.expr):
            return False
        qualname = self.graph.context.qualname
        return node.frame.depth == 0 or module.resolve(head, qualname) == module.resolve(head, node.frame.qualname)

    def _global(self, node: Node, place: Place, depth: int) -> Written | None:
        if node.op != "global" or node.cst is None or node.frame.source is None:
            return None
        code = one_line(node.frame.source.code(node.cst)) or ""
        head = code.partition(".")[0].strip()
        if not code.replace(".", "").isidentifier() or not self._same_name(head, node, place):
            return None
        return Written(code, frozenset({head}))

    def _path(self, node: Node, place: Place, depth: int) -> Written | None:
        if node.op != "attr":
            return None
        if self._changed(node, place.at):
            raise Refused(f"{self._shown(node)} may change before the new call")
        base = self._try(node.inputs[0], place, depth)
        return None if base is None else Written(f"{base.atom}.{node.attrs['name']}", base.names)

    def _try(self, node: Node, place: Place, depth: int) -> Written | None:
        try:
            found = self.write(node, place, depth + 1)
        except Refused:
            return None
        return None if found.moved or found.made else found

    def _changed(self, node: Node, at: Statement) -> bool:
        """Whether an attribute may be assigned between where it was read and the place."""
        start = node.top_stmt.index if node.top_stmt is not None else -1
        low, high = min(start, at.index), max(start, at.index)
        name = f".{node.attrs['name']}"
        for e in self.graph.effects:
            if low <= e.stmt.index < high and (e.kind == "unknown" or (e.kind == "store" and e.path.endswith(name))):
                return True
        return False

    # Expressions

    def _moved(self, node: Node, place: Place, depth: int) -> Written | None:
        """The expression itself, where it stands in code that goes: in the replaced one, or in a dead statement."""
        for e in self.at_node.get(node, ()):
            if not isinstance(e, cst.BaseExpression) or isinstance(e, (cst.Name, cst.NamedExpr)):
                continue
            scalar = self.is_scalar(node)
            if scalar:
                if not any(isinstance(n, (*SCOPES, cst.NamedExpr, cst.Await, cst.Yield)) for n in walk(e)):
                    found = self._rewritten(e, place, depth)
                    if found is not None:
                        return Written(found.text, found.names)
                continue
            inside = any(n is e for n in walk(place.expr))
            if inside:
                if self.tree.between(e, place.expr, CONDITIONAL):
                    continue
            elif not self._may_move(e, node, place):
                continue
            found = self._rewritten(e, place, depth)
            if found is not None:
                return Written(found.text, found.names, (e,))
        return None

    def _may_move(self, e: cst.CSTNode, node: Node, place: Place) -> bool:
        """From a dead statement of the same suite, past no effect."""
        stmt = (
            node.stmt if node.frame.depth == 0 else self._statement(e)
        )  # what a helper made stands where it is called
        if not self.moving or stmt is None or stmt not in place.dead or stmt.block is not place.at.block:
            return False
        there = self.tree.statement(place.expr)
        if self.tree.between(e, stmt.cst, CONDITIONAL) or self.tree.between(place.expr, there, CONDITIONAL):
            return False
        return not any(
            stmt.index <= f.stmt.index < place.at.index and f.stmt not in place.dead for f in self.graph.effects
        )

    def _statement(self, e: cst.CSTNode) -> Statement | None:
        there = self.tree.statement(e)
        return next((s for s in self.graph.statements if s.cst is there), None)

    def _rewritten(self, e: cst.BaseExpression, place: Place, depth: int) -> Written | None:
        """The text of an expression, with names that no longer hold replaced by what does."""
        start, end = self.source.span(e)
        pieces: list[str] = []
        names: set[str] = set()
        at = start
        inner = {n for s in walk(e) if isinstance(s, SCOPES) for n in walk(s)}
        own = {n for s in walk(e) if isinstance(s, cst.BaseComp) for n in self._comp_targets(s)}
        for n in self._name_nodes(e):
            if n.value in ("True", "False", "None"):
                continue
            if n in inner:
                if n.value in own:
                    continue
                if n.value in self.local and self._rebound(n.value, e, place):
                    return None
                names.add(n.value)
                continue
            value = self.graph.values.get(n) or self._called(n, e)
            if self.holds(n, value, place) or self._holds_sizes(n, value, place):
                names.add(n.value)
                continue
            other = None if value is None else self._try(value, place, depth)
            if other is None:
                return None
            a, b = self.source.span(n)
            pieces += [self.source.file.text[at:a], other.atom]
            names |= other.names
            at = b
        pieces.append(self.source.file.text[at:end])
        text = "".join(pieces)
        return Written(one_line(text) or text, frozenset(names))

    def _called(self, name: cst.Name, e: cst.CSTNode) -> Node | None:
        """The nested function that a name is called by, which is no value of the graph."""
        at = self._statement(e) if name.value in self.local else None
        held = None if at is None else self.graph.lookup(name.value, at)
        return held if held is not None and held.op == "function" else None

    @staticmethod
    def _comp_targets(comp: cst.BaseComp) -> set[str]:
        out: set[str] = set()
        part: cst.CompFor | None = comp.for_in
        while part is not None:
            out |= {x.value for x in walk(part.target) if isinstance(x, cst.Name)}
            part = part.inner_for_in
        return out

    def _rebound(self, name: str, e: cst.CSTNode, place: Place) -> bool:
        """Whether a name may hold something else at the place than at the expression."""
        here = self.tree.statement(e)
        start = next((s.index for s in self.graph.statements if s.cst is here), None)
        if start is None:
            return True
        return any(
            start <= b.index < place.at.index or (b.stmt is not None and b.stmt in place.dead)
            for b in self.graph.bindings.get(name, ())
        )

    @staticmethod
    def _name_nodes(e: cst.CSTNode) -> list[cst.Name]:
        """The names that an expression reads, in source order."""
        out: list[cst.Name] = []
        stack: list[cst.CSTNode] = [e]
        while stack:
            n = stack.pop()
            if isinstance(n, cst.Name):
                out.append(n)
            elif isinstance(n, (cst.Attribute, cst.Arg)):
                stack.append(n.value)
            else:
                stack += reversed(children(n))
        return out

    # Values of helpers

    def _taken_out(self, node: Node, place: Place, depth: int) -> Written | None:
        """The expression of a helper that makes the value, on what the call hands to the helper."""
        source, e = node.frame.source, node.cst
        if source is None or not isinstance(e, cst.BaseExpression) or isinstance(e, cst.Name):
            return None
        if any(isinstance(n, (*SCOPES, cst.NamedExpr, cst.Await, cst.Yield)) for n in walk(e)):
            return None
        if not self._is_sure(node, place):
            return None
        start, end = source.span(e)
        pieces: list[str] = []
        parts: list[Written] = []
        at = start
        for n in self._name_nodes(e):
            value = node.frame.values.get(n)
            if value is None or value.op in ("global", "function", "const"):
                if n.value in self._locals_of(node) or not self._same_name(n.value, node, place):
                    return None
                parts.append(Written(n.value, frozenset({n.value})))
                continue
            try:
                found = self.write(value, place, depth + 1)
            except Refused:
                return None
            a, b = source.span(n)
            pieces += [source.file.text[at:a], found.atom]
            parts.append(found)
            at = b
        text = one_line("".join([*pieces, source.file.text[at:end]]))
        if text is None or len(text) > LONGEST_TAKEN:
            return None
        return Written(
            text,
            frozenset().union(*(p.names for p in parts)),
            tuple(e for p in parts for e in p.moved),
            (node, *(n for p in parts for n in p.made)),
        )

    def _is_sure(self, node: Node, place: Place) -> bool:
        """Whether a helper always makes the value, once, and the new call stands for the call of the helper."""
        frame, e, stmt = node.frame, node.cst, node.stmt
        while frame.parent is not None:
            if frame.source is None or e is None or stmt is None or stmt.block.kind != "function":
                return False
            tree = Tree(frame.source)
            definition = next((n for n in tree.up(e) if isinstance(n, cst.FunctionDef)), None)
            if definition is None or tree.between(e, stmt.cst, CONDITIONAL):
                return False
            if sum(isinstance(n, (cst.Return, cst.Raise)) for n in walk(definition.body)) > 1:
                return False
            e, stmt, frame = frame.site, frame.stmt, frame.parent
        if e is None or not isinstance(e, cst.BaseExpression):
            return False
        if any(n is e for n in walk(place.expr)):
            return not self.tree.between(e, place.expr, CONDITIONAL)
        return self._may_move(e, node, place)

    def is_scalar(self, node: Node) -> bool:
        return node.op in ("dim", "ndim", "size", "shape", "dtype") or self.graph.facts.kind(node) in (
            "scalar",
            "dtype",
            "str",
        )

    # Scalars of inlined helpers

    def _scalar(self, node: Node, place: Place, depth: int) -> Written | None:
        if node.op in ("shape", "dtype", "ndim", "size"):
            base = self._try(node.inputs[0], place, depth)
            return None if base is None else Written(f"{base.atom}.{node.op}", base.names)
        if node.op == "dim":
            base = self._try(node.inputs[0], place, depth) or self._try(uncast(node.inputs[0]), place, depth)
            return None if base is None else Written(f"{base.atom}.shape[{node.attrs['axis']}]", base.names)
        if not self.is_scalar(node):
            return None
        if (node.op in OPERATORS or node.op in COMPARISONS) and len(node.inputs) == 2:
            left, right = (self._try(n, place, depth) for n in node.inputs)
            if left is None or right is None:
                return None
            if node.op in OPERATORS:
                text = f"{left.operand} {OPERATORS[node.op]} {right.operand}"
            else:
                text = f"{left.side} {COMPARISONS[node.op]} {right.side}"
            return Written(text, left.names | right.names)
        if node.op == "negative":
            inner = self._try(node.inputs[0], place, depth)
            return None if inner is None else Written(f"-{inner.atom}", inner.names)
        if isinstance(node.cst, cst.Call) and node.frame.source is not None and node.frame.depth > 0:
            return self._scalar_call(node, node.cst, place, depth)
        return None

    def _chosen(self, node: Node, place: Place, depth: int) -> Written | None:
        """`self.long if n > self.limit else self.short`, of values that nothing has to be computed for."""
        test = node.attrs.get("test")
        if node.op != "phi" or not isinstance(test, Node) or not self.is_scalar(test):
            return None
        then, other = (self._try(n, place, depth) for n in node.inputs)
        asked = self._try(test, place, depth)
        if then is None or other is None or asked is None:
            return None
        text = f"{then.atom} if {asked.text} else {other.atom}"
        return Written(text, then.names | asked.names | other.names)

    def _scalar_call(self, node: Node, call: cst.Call, place: Place, depth: int) -> Written | None:
        """`math.sqrt(d)` in a helper."""
        assert node.frame.source is not None
        func = one_line(node.frame.source.code(call.func)) or ""
        head = func.partition(".")[0]
        if not func.replace(".", "").isidentifier() or len(call.args) != len(node.inputs):
            return None
        if any(a.keyword is not None or a.star for a in call.args) or not self._same_name(head, node, place):
            return None
        if head in self._locals_of(node):
            return None
        args = [self._try(n, place, depth) for n in node.inputs]
        if any(a is None for a in args):
            return None
        known = [a for a in args if a is not None]
        names: frozenset[str] = frozenset({head}).union(*(a.names for a in known))
        return Written(f"{func}({', '.join(a.text for a in known)})", names)

    def _locals_of(self, node: Node) -> Iterable[str]:
        summary = self.graph.module.functions.get(node.frame.qualname)
        return summary.local if summary is not None else names_read(node.frame.source.node) if node.frame.source else ()
