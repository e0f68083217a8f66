"""Expressions -> nodes. Whatever isn't understood becomes an opaque node that reads what the expression reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.inline import Arguments, Inline
from fuselint.graph.model import STEP, Block, Node, Slice, Statement
from fuselint.graph.op import literal
from fuselint.graph.scan import as_lambda, assigned_in, names_read
from fuselint.graph.state import DETACHED, Closure
from fuselint.source.project import is_wanted

BINARY = {
    cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.Divide: "/", cst.FloorDivide: "//", cst.Modulo: "%",
    cst.Power: "**", cst.MatrixMultiply: "@", cst.BitAnd: "&", cst.BitOr: "|", cst.BitXor: "^",
    cst.LeftShift: "<<", cst.RightShift: ">>",
    cst.AddAssign: "+", cst.SubtractAssign: "-", cst.MultiplyAssign: "*", cst.DivideAssign: "/",
    cst.FloorDivideAssign: "//", cst.ModuloAssign: "%", cst.PowerAssign: "**", cst.MatrixMultiplyAssign: "@",
    cst.BitAndAssign: "&", cst.BitOrAssign: "|", cst.BitXorAssign: "^", cst.LeftShiftAssign: "<<",
    cst.RightShiftAssign: ">>",
}  # fmt: skip
COMPARE = {
    cst.LessThan: "<", cst.GreaterThan: ">", cst.LessThanEqual: "<=", cst.GreaterThanEqual: ">=", cst.Equal: "==",
    cst.NotEqual: "!=", cst.Is: "is", cst.IsNot: "is not", cst.In: "in", cst.NotIn: "not in",
}  # fmt: skip
UNARY = {cst.Minus: "-", cst.Plus: "+", cst.BitInvert: "~", cst.Not: "not"}
SEQUENCES = frozenset({"tuple", "list"})
PROPERTIES = frozenset({"shape", "ndim", "size", "dtype"})

MOST_STEPS = 16
"""Steps of a comprehension that are looked at one by one."""

SHORT = 64
"""Characters of a string: the same short ones come again and again."""


@lru_cache(maxsize=4096)
def _evaluated(text: str) -> Any:
    """The value of a literal."""
    return ast.literal_eval(text)


class Expressions(Inline):
    """How each kind of expression is lowered."""

    def value(self, node: cst.BaseExpression) -> Node:
        handler = _HANDLERS.get(type(node))
        out = self.other(node) if handler is None else handler(self, node)
        if out.id == DETACHED:
            return self.attach(out)
        self.remember(node, out)
        return out

    def other(self, node: cst.CSTNode) -> Node:
        reason = f"{type(node).__name__} is not understood"
        self.note(reason)
        return self.opaque(reason, (), node)

    # Constants

    def number(self, node: cst.Integer | cst.Float | cst.Imaginary) -> Node:
        value = _evaluated(node.value)
        if isinstance(value, int) and not is_wanted(value):
            return self.opaque("a number of too many digits", (), node)
        return self.constant(value, node)

    def string(self, node: cst.SimpleString | cst.ConcatenatedString) -> Node:
        is_short = isinstance(node, cst.SimpleString) and len(node.value) <= SHORT
        value = _evaluated(node.value) if is_short else node.evaluated_value  # type: ignore[union-attr]
        return self.opaque("f-string", (), node) if value is None else self.constant(value, node)

    def formatted(self, node: cst.FormattedString) -> Node:
        parts = [self.value(p.expression) for p in node.parts if isinstance(p, cst.FormattedStringExpression)]
        return self.opaque("f-string", parts, node)

    def ellipsis(self, node: cst.Ellipsis) -> Node:
        return self.constant(Ellipsis, node)

    # Attributes

    def attribute(self, node: cst.Attribute) -> Node:
        target = self.qualified(node)
        if target is not None:
            return self.named(target, node.attr.value, node)
        return self.attribute_of(self.value(node.value), node.attr.value, node)

    def attribute_of(self, base: Node, name: str, at: cst.CSTNode) -> Node:
        if base.op == "global" and base.attrs["target"] is not None:
            return self.named(f"{base.attrs['target']}.{name}", name, at)
        if (name in PROPERTIES or name in ops.PROPERTIES) and self.may_be_array(base, name):
            if name in ops.PROPERTIES:
                op = ops.TABLE[ops.PROPERTIES[name]]
                return self.emit(op.name, (base,), {p.name: p.default for p in op.params if p.role == "value"}, at)
            return self.emit(name, (base,), {}, at)
        return self.read_attribute(base, name, at)

    def may_be_array(self, base: Node, name: str) -> bool:
        """Whether `base.name` is the property of an array. Other objects have a `dtype` or `size` of their own."""
        if base is self.scope.self_node:
            return False
        if self.is_array(base):
            return True
        if base.op in ("const", "new", "tuple", "list", "dict", "function", "global", "shape", "dtype"):
            return False
        if base.op == "param":
            return name != "size" or not base.attrs["annotation"]
        if base.op == "attr":
            return name not in ("size", "dtype")
        return name != "size"

    # Operators

    def binary(self, node: cst.BinaryOperation) -> Node:
        chain: list[cst.BinaryOperation] = [node]
        while isinstance(chain[-1].left, cst.BinaryOperation):
            chain.append(chain[-1].left)
        left = self.value(chain[-1].left)
        while chain:
            at = chain.pop()
            left = self.arithmetic(BINARY[type(at.operator)], left, self.value(at.right), at)
            if chain:
                self.remember(at, left)
        return left

    def arithmetic(self, operator: str, left: Node, right: Node, at: cst.CSTNode) -> Node:
        left = self.refreshed(left)
        if operator == "+" and left.op == right.op and left.op in SEQUENCES:
            return self.emit(left.op, left.inputs + right.inputs, {}, at)
        op = ops.binary(operator)
        if op is None:
            return self.opaque(f"operator {operator}", (left, right), at)
        return self.emit(op.name, (left, right), {}, at)

    def unary(self, node: cst.UnaryOperation) -> Node:
        operator = UNARY[type(node.operator)]
        if operator == "-" and isinstance(node.expression, (cst.Integer, cst.Float)):
            value = _evaluated(node.expression.value)
            if isinstance(value, float) or is_wanted(value):
                return self.constant(-value, node)
        operand = self.value(node.expression)
        if operator == "not":
            return self.emit("not", (operand,), {}, node)
        if operator == "-" and operand.op == "const":
            value = operand.attrs["value"]
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return self.constant(-value, node)
        if operator == "+" and operand.op == "const":
            return operand
        op = ops.unary(operator)
        if op is None:
            return self.opaque(f"operator {operator}", (operand,), node)
        return self.emit(op.name, (operand,), {}, node)

    def comparison(self, node: cst.Comparison) -> Node:
        left = self.value(node.left)
        parts = []
        for target in node.comparisons:
            right = self.value(target.comparator)
            at = node if len(node.comparisons) == 1 else target
            parts.append(self.compare(COMPARE[type(target.operator)], left, right, at))
            left = right
        return parts[0] if len(parts) == 1 else self.emit("and", parts, {"op": "and"}, node)

    def compare(self, operator: str, left: Node, right: Node, at: cst.CSTNode) -> Node:
        left = self.refreshed(left)
        op = ops.binary(operator)
        if op is None:
            return self.emit("compare", (left, right), {"op": operator}, at)
        return self.emit(op.name, (left, right), {}, at)

    def boolean(self, node: cst.BooleanOperation) -> Node:
        op = "and" if isinstance(node.operator, cst.And) else "or"
        left: cst.BaseExpression = node
        rights = []
        while isinstance(left, cst.BooleanOperation) and isinstance(left.operator, type(node.operator)):
            rights.append(left.right)
            left = left.left
        parts = [self.value(left)]
        states = [self.snapshot()]
        for right in reversed(rights):
            parts.append(self.value(right))
            states.append(self.snapshot())
        self.ways(states, states[0])
        return self.emit(op, parts, {"op": op}, node)

    def conditional(self, node: cst.IfExp) -> Node:
        test = self.value(node.test)
        known = self.truth(test)
        if known is not None:
            return self.value(node.body if known else node.orelse)
        before = self.snapshot()
        then = self.value(node.body)
        after = self.snapshot()
        self.resume(before)
        other = self.value(node.orelse)
        self.ways([after, self.snapshot()], before)
        return self.phi(test, then, other, node)

    def phi(self, test: Node, then: Node, other: Node, at: cst.CSTNode | None) -> Node:
        if then is other:
            return then
        return self.emit("phi", (then, other), {"test": test}, at)

    def walrus(self, node: cst.NamedExpr) -> Node:
        value = self.value(node.value)
        self.assign(node.target, value, node)
        return value

    # Displays

    def display(self, node: cst.Tuple | cst.List) -> Node:
        return self.attach(self.argument(node))

    def argument(self, node: cst.BaseExpression) -> Node:
        """The value of an argument. A display stays detached: MLX may take its elements, and nothing holds it then."""
        if type(node) is cst.Tuple or type(node) is cst.List:
            elements: list[Node] = []
            for e in node.elements:
                if isinstance(e, cst.StarredElement):
                    elements.extend(self.spread(self.argument(e.value), e))
                else:
                    elements.append(self.argument(e.value))
            kind = "tuple" if type(node) is cst.Tuple else "list"
            return self.detached(kind, elements, node)
        if type(node) is cst.ListComp:
            return self.listed(node)
        if type(node) is cst.Call:
            out = self.call(node)
            self.remember(node, out)  # also a tuple that is taken apart at once: its elements are values
            return out
        return self.value(node)

    def spread(self, value: Node, at: cst.CSTNode) -> list[Node]:
        """The elements of `*value` in a display or a call."""
        if value.op in SEQUENCES and not any(n.op == "star" for n in value.inputs):
            return [self.current(n) for n in value.inputs]
        return [self.emit("star", (value,), {}, at)]

    def dictionary(self, node: cst.Dict) -> Node:
        keys: list[Any] = []
        inputs: list[Node] = []
        for e in node.elements:
            if isinstance(e, cst.DictElement):
                key = self.value(e.key)
                keys.append(key.attrs["value"] if key.op == "const" else key)
            else:
                keys.append(None)
            inputs.append(self.value(e.value))
        return self.emit("dict", inputs, {"keys": tuple(keys)}, node)

    def set_display(self, node: cst.Set) -> Node:
        return self.opaque("set", [self.value(e.value) for e in node.elements], node)

    def lambda_(self, node: cst.Lambda) -> Node:
        qualname = f"{self.scope.qualname}.<locals>.<lambda>"
        return self.closure(node, qualname, node)

    def closure(self, definition: cst.FunctionDef | cst.Lambda, qualname: str, at: cst.CSTNode) -> Node:
        if self.scope.is_root:
            self.graph.captured.update(names_read(definition))
        node = self.emit("function", (), {"qualname": qualname}, at)
        self.closures[node] = Closure(definition, qualname, self.scope)
        return node

    # Comprehensions

    def comprehension(self, node: cst.BaseComp) -> Node:
        return self.opaque("comprehension", self.any_step(node), node)

    def listed(self, node: cst.ListComp) -> Node:
        return self.each_step(node) or self.comprehension(node)

    def any_step(self, node: cst.BaseComp, over: Node | None = None) -> list[Node]:
        """What the inner expressions are, whichever step it is, in a block of their own. `over`: what it runs over."""
        scope = self.scope
        outer_block, outer_stmt, env = scope.block, scope.statement, dict(scope.env)
        objects = len(self.changed)
        if scope.is_root:
            self.graph.captured.update(names_read(node))
        read: list[Node] = []
        part: cst.CompFor | None = node.for_in
        first = True
        while part is not None:
            read.append(self.attach(over) if over is not None and first else self.value(part.iter))
            if first:
                scope.block = Block("comprehension", outer_block, outer_stmt)
                if outer_stmt is not None:
                    scope.statement = Statement(outer_stmt.index, node, outer_stmt.line, scope.block, outer_stmt.end)
                first = False
            self.bind_quietly(part.target, self.element_of(read[-1], part.target))
            read.extend(self.value(i.test) for i in part.ifs)
            part = part.inner_for_in
        if isinstance(node, cst.DictComp):
            read += [self.value(node.key), self.value(node.value)]
        else:
            assert isinstance(node, (cst.GeneratorExp, cst.ListComp, cst.SetComp))
            read.append(self.value(node.elt))
        scope.block, scope.statement = outer_block, outer_stmt
        walrus = [n for n in assigned_in(node) if n in scope.env]
        known, scope.env = scope.env, env
        for name in walrus:
            self.bind(name, self.opaque("assigned in a comprehension", (self.attach(known[name]),), node))
        for changed in dict.fromkeys(self.changed[objects:]):
            self.replace(changed, self.lazy("may have been changed in a comprehension", (changed, self.now(changed))))
        return read

    def each_step(self, node: cst.ListComp | cst.GeneratorExp) -> Node | None:
        """The elements of a comprehension over a display, `(f(x) for x in (q, k))`; None of any other.

        Each is a call of `lambda x: f(x)`. A generator runs when it is asked: its caller asks at once, for all.
        """
        part, over = node.for_in, node.for_in.iter
        if not isinstance(over, (cst.Tuple, cst.List)) or part.ifs or part.inner_for_in or part.asynchronous:
            return None
        target = part.target
        names = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
        if not all(isinstance(name, cst.Name) for name in names) or assigned_in(node):
            return None
        if not 0 < len(over.elements) <= MOST_STEPS or any(isinstance(e, cst.StarredElement) for e in over.elements):
            return None
        steps = self.argument(over).inputs
        self.any_step(node, self.detached("tuple", steps, over))  # one fix serves all
        of_step = self.program.scanned(as_lambda, node.elt, *names)
        closure = self.closures[self.closure(of_step, f"{self.scope.qualname}{STEP}", node)]
        values = []
        for step in steps:
            given = self.unpack(step, target) if isinstance(target, (cst.Tuple, cst.List)) else [step]
            done = self.inline_closure(closure, Arguments(given, {}), node)
            if done is None:
                return None
            values.append(done)
        return self.detached("list", values, node)

    def bind_quietly(self, target: cst.BaseExpression, value: Node) -> None:
        """Bind the target of a comprehension: names that the function itself doesn't have."""
        if isinstance(target, cst.Name):
            self.scope.env[target.value] = self.attach(value)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element, part in zip(target.elements, self.unpack(value, target), strict=True):
                self.bind_quietly(element.value, part)

    def waiting(self, node: cst.Await | cst.Yield) -> Node:
        reason = "await" if isinstance(node, cst.Await) else "yield"
        inner: cst.BaseExpression | cst.From | None = node.expression if isinstance(node, cst.Await) else node.value
        if isinstance(inner, cst.From):
            inner = inner.item
        inputs = [] if inner is None else [self.value(inner)]
        self.unknown_effect(inputs)
        return self.opaque(reason, inputs, node)

    # Subscripts

    def subscript(self, node: cst.Subscript) -> Node:
        base = self.value(node.value)
        return self.select(base, self.index(node.slice), node)

    def index(self, slices: Any) -> Any:
        """An index as attrs hold it: a tuple if it is written as one, else a single entry."""
        entries = [self.entry(s.slice) for s in slices]
        if len(entries) == 1 and slices[0].comma is cst.MaybeSentinel.DEFAULT:
            return entries[0]
        return tuple(entries)

    def entry(self, part: cst.BaseSlice) -> Any:
        if isinstance(part, cst.Slice):
            return Slice(self.scalar(part.lower), self.scalar(part.upper), self.scalar(part.step))
        assert isinstance(part, cst.Index)
        if part.star:
            return self.emit("star", (self.value(part.value),), {}, part)
        return literal(self.argument(part.value))

    def scalar(self, node: cst.BaseExpression | None) -> Any:
        return None if node is None else literal(self.value(node))

    def select(self, base: Node, index: Any, at: cst.CSTNode) -> Node:
        """`base[index]`."""
        if base.op == "shape" and type(index) is int:
            return self.emit("dim", base.inputs, {"axis": index}, at)
        if base.op in SEQUENCES and not any(n.op == "star" for n in base.inputs):
            if type(index) is int and -len(base.inputs) <= index < len(base.inputs):
                return self.current(base.inputs[index])
            if (
                isinstance(index, Slice)
                and all(p is None or type(p) is int for p in (index.start, index.stop, index.step))
                and index.step != 0
            ):
                return self.emit(base.op, base.inputs[index.start : index.stop : index.step], {}, at)
        base = self.attach(base)
        if base.op == "dict" and isinstance(index, str) and None not in base.attrs["keys"]:
            keys = base.attrs["keys"]
            if index in keys and not any(isinstance(k, Node) for k in keys):
                last = len(keys) - 1 - keys[::-1].index(index)
                return self.current(base.inputs[last])
        if base is self.scope.self_node and isinstance(index, str) and self.is_module_class(self.scope.class_name):
            return self.read_attribute(base, index, at)
        if self.is_array(base) or (isinstance(index, tuple) and _array_like(index)) or index is None or index is ...:
            whole = index if isinstance(index, tuple) else (index,)
            arrays = [n for n in whole if isinstance(n, Node) and n.op != "star"]
            return self.emit("index", (base, *arrays), {"index": whole}, at)
        inputs = (base, index) if isinstance(index, Node) else (base,)
        return self.emit("item", inputs, {"index": index}, at)

    def unpack(self, value: Node, target: cst.Tuple | cst.List) -> list[Node]:
        """What each target of `a, b, *c = value` gets."""
        count = len(target.elements)
        stars = [i for i, e in enumerate(target.elements) if isinstance(e, cst.StarredElement)]
        if not stars:
            return [self.element(value, i, count, e.value) for i, e in enumerate(target.elements)]
        star, after = stars[0], count - stars[0] - 1
        out = []
        for i, e in enumerate(target.elements):
            if i < star:
                out.append(self.element(value, i, None, e.value))
            elif i == star:
                out.append(self.select(value, Slice(star or None, -after or None), e.value))
            else:
                out.append(self.element(value, i - count, None, e.value))
        return out

    def element(self, value: Node, i: int, count: int | None, at: cst.CSTNode) -> Node:
        """`value[i]`, where value is unpacked; `count` is the number of its elements, where the unpacking says it."""
        if value.op in SEQUENCES and (count is None or count == len(value.inputs)):
            return self.select(value, i, at)
        if value.op == "shape":
            attrs: dict[str, Any] = {"axis": i}
            if count is not None:
                attrs["rank"] = count
            return self.emit("dim", value.inputs, attrs, at)
        if value.op == "item" and isinstance(value.attrs["index"], Slice) and value.inputs[0].op == "shape":
            cut = value.attrs["index"]
            if cut.step in (None, 1) and (cut.start is None or type(cut.start) is int):
                start = cut.start or 0
                if i >= 0 and (start >= 0 or start + i < 0):
                    return self.emit("dim", value.inputs[0].inputs, {"axis": start + i}, at)
                if i < 0 and cut.stop is None:
                    return self.emit("dim", value.inputs[0].inputs, {"axis": i}, at)
        if value.op == "phi" and any(n.op in SEQUENCES or n.op == "shape" for n in value.inputs):
            then, other = (self.element(n, i, count, at) for n in value.inputs)
            return self.phi(value.attrs["test"], then, other, at)
        return self.emit("item", (self.attach(value),), {"index": i, "count": count}, at)

    def element_of(self, value: Node, at: cst.CSTNode) -> Node:
        """What one step of a loop over `value` gets."""
        if value.op == "call":
            target, args = value.attrs["target"], value.inputs
            if target == "builtins.enumerate" and len(args) == 1:
                count = self.emit("item", (value,), {"index": 0}, at)
                return self.detached("tuple", (count, self.element_of(args[0], at)), at)
            if target == "builtins.zip" and not value.attrs["keywords"]:
                return self.detached("tuple", [self.element_of(a, at) for a in args], at)
        return self.emit("item", (self.attach(value),), {"index": None}, at)


def _array_like(index: tuple[Any, ...]) -> bool:
    return any(i is None or i is ... or isinstance(i, Slice) for i in index)


_HANDLERS: dict[type, Callable[[Expressions, Any], Node]] = {
    cst.Name: Expressions.name,
    cst.Integer: Expressions.number,
    cst.Float: Expressions.number,
    cst.Imaginary: Expressions.number,
    cst.SimpleString: Expressions.string,
    cst.ConcatenatedString: Expressions.string,
    cst.FormattedString: Expressions.formatted,
    cst.Ellipsis: Expressions.ellipsis,
    cst.Attribute: Expressions.attribute,
    cst.BinaryOperation: Expressions.binary,
    cst.UnaryOperation: Expressions.unary,
    cst.Comparison: Expressions.comparison,
    cst.BooleanOperation: Expressions.boolean,
    cst.IfExp: Expressions.conditional,
    cst.NamedExpr: Expressions.walrus,
    cst.Tuple: Expressions.display,
    cst.List: Expressions.display,
    cst.Dict: Expressions.dictionary,
    cst.Set: Expressions.set_display,
    cst.Lambda: Expressions.lambda_,
    cst.ListComp: Expressions.listed,
    cst.SetComp: Expressions.comprehension,
    cst.DictComp: Expressions.comprehension,
    cst.GeneratorExp: Expressions.comprehension,
    cst.Await: Expressions.waiting,
    cst.Yield: Expressions.waiting,
    cst.Subscript: Expressions.subscript,
    cst.Call: Expressions.call,
}
