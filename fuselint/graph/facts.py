"""What is known of each value: kind, shape, dtype, constness, and where each comes from.

Facts come from annotations, `B, L, D = x.shape`, `__init__` (self.weight = mx.ones((dims,)), nn.Linear(a, b)),
constants, the op table's rules, and use: what is passed to math.sqrt is a number.

House assumptions, which `why` names where a fact rests on one:

* activations are real floating arrays of rank >= 1, no wider than float32;
* a weight has the rank that `__init__` gives it, axes longer than 1, and the dtype that loading gives it: a symbol;
* an operand of unknown shape, such as a mask, adds no axes to the other operand of an elementwise op;
* what a constructor computes from its arguments with operators is a Python number.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any

import libcst as cst

from fuselint.graph import dtypes
from fuselint.graph import ops_rules as rules
from fuselint.graph.across import OUTSIDE
from fuselint.graph.dtypes import DType
from fuselint.graph.fact import (
    COMPARISONS,
    CONFIGURED,
    FITS,
    MAX_TERMS,
    MISSING,
    PURE,
    UNKNOWN,
    WEIGHTS,
    Default,
    Fact,
    Kind,
    annotated,
    array_fact,
    compute,
    constant_fact,
    element,
    scalar_fact,
)
from fuselint.graph.indexing import indexed
from fuselint.graph.known import KnownFacts
from fuselint.graph.model import Node, Slice
from fuselint.graph.op import REFUSED, Call, Op, Value
from fuselint.graph.ops import TABLE
from fuselint.graph.optimizers import APPLY, INIT, NUMBERS, Optimizer, optimizer
from fuselint.graph.scan import rebinds_outer
from fuselint.graph.shapes import JOINED, SCALAR, Shape, broadcast
from fuselint.graph.symbols import Expr
from fuselint.records import replace
from fuselint.source.modules import Definition

__all__ = ["FITS", "MISSING", "DType", "Expr", "Fact", "Facts", "Kind", "Shape"]


class Facts(KnownFacts):
    """The rules by which facts are worked out: one for each operation."""

    def _evaluate(self, node: Node) -> Fact:
        given = self._given.get(node)
        if given is not None:
            return given
        op = TABLE.get(node.op)
        if op is not None:
            return self._operation(node, op)
        rule = _RULES.get(node.op)
        return UNKNOWN if rule is None else rule(self, node)

    # -- table ops ----------------------------------------------------------------------------------------------------

    def _value(self, node: Node) -> Value:
        return _as_value(self.of(node))

    def call(self, node: Node) -> Call:
        """A node of the table as its rules see it."""
        attrs = {**node.attrs, "path": self.path(node)} if self.mark and node.attrs.get("path") else node.attrs
        return self.call_of(TABLE[node.op], node.inputs, attrs, node)

    def call_of(self, op: Op, inputs: Sequence[Node | None], attrs: Mapping[str, Any], at: Node) -> Call:
        """A call of an op; `at` names what is new in its result."""
        values = tuple(None if n is None else self._value(n) for n in inputs)
        return Call(op, values, attrs, self.size, self.sizes, self._named_dtype, partial(self._fresh, at))

    def _fresh(self, node: Node, axis: int) -> Expr:
        """The size of an axis of a value, of which nothing else is known."""
        return Expr.name(self._unique(("fresh", node, axis), f"{self._name(node)}.shape[{axis}]"))

    def _named_dtype(self, value: Any) -> DType:
        """The dtype that an argument names."""
        if isinstance(value, str):
            return DType({value})
        if isinstance(value, Node):
            f = self.of(value)
            return f.dtype if f.kind == "dtype" else DType({self._name(value)})
        return dtypes.UNKNOWN

    def _operation(self, node: Node, op: Op) -> Fact:
        inputs = [self.of(n) for n in node.inputs]
        assumed: frozenset[str] = frozenset()
        if op.operator is not None and not isinstance(node.cst, cst.Call):
            plain = self._python(node, op, inputs)
            if plain is not None:
                return plain
        if op.result == "same":
            return inputs[0] if inputs else UNKNOWN
        call = self.call(node)
        if self.reach.usual:
            self._input_axis(call)
        try:
            shape, dtype = op.shape(call), op.dtype(call)
        except REFUSED:
            return UNKNOWN
        if op.kind in ("binary", "ternary"):
            fitting = self._fitting(node, inputs)
            if fitting is not None and fitting != shape:
                shape, assumed = fitting, frozenset({FITS})
        if isinstance(shape, Shape) and self._weight_sizes:
            longer = self._with_weights(shape)
            if longer != shape:
                shape, assumed = longer, assumed | {WEIGHTS}
        if isinstance(shape, Shape) and shape.lead is not None and JOINED in shape.lead:
            shape = self._led_by(node, shape)
        why = f"{op.name} of its operands"
        if op.result == "array" and isinstance(shape, (Shape, type(None))) and isinstance(dtype, DType):
            return Fact("array", shape, dtype, why=why, assumed=assumed, present=True)
        if op.result == "arrays":
            shapes = shape if isinstance(shape, tuple) else None
            types = dtype if isinstance(dtype, tuple) else (dtype,) * len(shapes or (None,))
            if shapes is not None:
                parts = tuple(Fact("array", s, d, why=why) for s, d in zip(shapes, types, strict=False))
                return Fact("tuple", parts=parts, why=why)
            # a list whose length isn't known: each part alike
            return Fact("tuple", shape if isinstance(shape, Shape) else None, types[0], why=why)
        return Fact("unknown", why=why)

    def _input_axis(self, call: Call) -> None:
        """What a layer is made for says how long the last axis of its operand is, where a default says that."""
        made_for, shape = INPUT_AXES.get(call.op.name), call.shape(0)
        axis = None if made_for is None or shape is None else shape.axis(-1)
        if made_for is None or axis is None or axis.bare is None:
            return
        size = call.size(call.setting(made_for))
        if size is not None:
            self.input_axes[axis.bare] = size
        number, rests = self.usual(size)
        if number is not None and rests:
            self.reach.numbers.setdefault(axis.bare, (number, rests))

    def _led_by(self, node: Node, shape: Shape) -> Shape:
        """The shape of a value whose leading axes are those of several others: they are called the value's own."""
        name, count = self._name(node), len(shape.dims)
        dims = tuple(
            Expr.name(f"{name}.shape[{i - count}]") if any(JOINED in n for n in d.names) else d
            for i, d in enumerate(shape.dims)
        )
        return Shape(f"{name}[:-{count}]" if count else name, dims)

    def _with_weights(self, shape: Shape) -> Shape:
        """A shape where the axis of a weight meets another that may be 1: it is the weight's, which is longer."""
        dims = []
        for d in shape.dims:
            args = d.maximum_of
            dims.append(next((a for a in args if a in self._weight_sizes), d))
        return Shape(shape.lead, tuple(dims))

    def _fitting(self, node: Node, inputs: Sequence[Fact]) -> Shape | None:
        """The shape of the operands whose shape is known, where that of others isn't."""
        known: Shape | None = SCALAR
        unknown: list[tuple[Node, Fact]] = []
        for n, f in zip(node.inputs, inputs, strict=True):
            if f.kind == "unknown" or f.shape is None or f.shape == Shape(self._name(n), ()):
                if n.op in TABLE or n.op == "index":
                    return None  # computed from something: it may well have more axes
                unknown.append((n, f))
            else:
                known = broadcast(known, f.shape)
        if not unknown or known is None:
            return None
        if known == SCALAR:
            arrays = [f.shape for _, f in unknown if f.kind == "array"]
            return arrays[0] if len(arrays) == 1 and len(unknown) > 1 else None
        if known.lead is None and len(known.dims) < 2:
            return None
        if known.lead is not None:
            bases = re.split(rf"\[|{JOINED}", known.lead)
            if any(self._name(n) in bases for n, _ in unknown):
                return None
        count = len(known.dims)
        dims = tuple(self._fresh(node, i - count) if d == 1 else d for i, d in enumerate(known.dims))
        return Shape(known.lead, dims)  # an axis of 1 may meet a longer one

    def _python(self, node: Node, op: Op, inputs: Sequence[Fact]) -> Fact | None:
        """An operator on Python values: arithmetic of numbers, of tuples, of strings. None if an array takes part."""
        kinds = {f.kind for f in inputs}
        if "array" in kinds:
            return None
        if "tuple" in kinds or "str" in kinds:
            return self._sequence(op, inputs)
        if kinds == {"scalar"}:
            return self._number(node, op, inputs)
        if kinds <= {"scalar", "unknown"}:
            size = self._size_of(op, [self.size(n) for n in node.inputs])
            if node.frame.qualname.rpartition(".")[2] == "__init__":
                sort = "weak float" if op.name == "divide" else "weak number"
                number = scalar_fact(sort, size=self._labelled(node, size), why=f"{op.name} of a constructor's values")
                return replace(number, assumed=frozenset({CONFIGURED}))
            merged = reduce(lambda a, b: a | b, (f.dtype for f in inputs))
            if op.dtype is rules.BOOLEAN:
                merged = DType({"bool_"})
            return Fact("unknown", dtype=merged, size=size, why=f"{op.name}: nothing says if it is an array")
        return Fact(
            "object" if kinds & {"object", "none", "function"} else "unknown",
            why=f"{op.name} of {', '.join(sorted(kinds))}",
        )

    def _sequence(self, op: Op, inputs: Sequence[Fact]) -> Fact:
        kind: Kind = "str" if any(f.kind == "str" for f in inputs) else "tuple"
        extent = None
        if op.name == "add" and len(inputs) == 2:
            a, b = inputs[0].extent, inputs[1].extent
            if a is not None and b is not None and b.lead is None:
                extent = Shape(a.lead, a.dims + b.dims)
        elif op.name == "multiply" and len(inputs) == 2:
            sequence, count = inputs if inputs[0].kind == "tuple" else inputs[::-1]
            n = count.const
            if sequence.extent is not None and sequence.extent.lead is None and type(n) is int and 0 <= n <= 64:
                extent = Shape(None, sequence.extent.dims * n)
            if sequence.parts is not None and sequence.size is None and count.size is not None:
                return Fact(kind, parts=sequence.parts, size=count.size, extent=extent, why="a repeated list")
        elif op.name in COMPARISONS:
            values = [f.const for f in inputs]
            texts = op.name in ("equal", "not_equal") and all(isinstance(v, str) for v in values)
            same = (values[0] == values[1]) is (op.name == "equal") if texts else MISSING
            return scalar_fact("weak bool", const=same, why="a comparison")
        return Fact(kind, extent=extent, why=f"{op.name} of sequences")

    def _labelled(self, node: Node, size: Expr | None) -> Expr | None:
        """A quotient of `__init__` that doesn't reduce, by the name of the attribute that holds it: head_dim."""
        if (
            self.reach.usual
            or node.op != "floor_divide"
            or node not in self._labels
            or (size is not None and size.value() is not None)
        ):
            return size
        return Expr.name(self._unique(("quotient", size or node), self._labels[node]))

    def _number(self, node: Node, op: Op, inputs: Sequence[Fact]) -> Fact:
        values = [f.const for f in inputs]
        if not any(v is MISSING for v in values):
            result = compute(op.operator or "", values)
            if result is not MISSING and not any(f.rests for f in inputs):
                return constant_fact(result)
            if result is not MISSING:  # by defaults: what it is made of is kept
                return replace(constant_fact(result), size=self._size_of(op, [f.size for f in inputs]))
        if op.name in COMPARISONS:
            return scalar_fact("weak bool", why="a comparison")
        size = self._size_of(op, [f.size for f in inputs])
        merged = reduce(lambda a, b: a | b, (f.dtype for f in inputs))
        if op.name == "divide":
            merged = DType({"weak float"})
        elif op.name == "power" and "weak float" not in merged:
            merged = DType({"weak number"})
        size = self._labelled(node, size)
        return Fact("scalar", SCALAR, merged, size=size, why=f"{op.name} of numbers")

    def _size_of(self, op: Op, sizes: Sequence[Expr | None]) -> Expr | None:
        if any(s is None for s in sizes):
            return None
        known = [s for s in sizes if s is not None]
        if math.prod(len(s.terms) for s in known) > MAX_TERMS:  # such arithmetic is not about sizes
            return None
        rule = _SIZE_RULES.get(op.name)
        if op.name == "floor_divide" and known[1] == 0:
            return None
        found = None if rule is None or len(known) != rule[0] else rule[1](*known)
        return None if found is None or found.is_endless else found

    # -- structure ----------------------------------------------------------------------------------------------------

    def _param(self, node: Node) -> Fact:
        name = node.attrs.get("name", "")
        if name in ("self", "cls"):
            own = self._across.own() if self._across is not None and name == "self" else None
            return Fact("object", instances=(own,) if own is not None else (), why="the object itself", present=True)
        if node.attrs.get("star"):
            return Fact("tuple" if node.attrs["star"] == "*" else "object", why=f"the arguments in {name}")
        usual = self._usual_argument(node)
        if usual is not None:
            return usual
        if node.frame.qualname.endswith((f".{APPLY}", f".{INIT}")) and self._optimizer is not None:
            stated = self._optimizer.argument(node)
            if stated is not None:
                return stated
        fact = annotated(node.attrs.get("annotation"), name)
        if fact is not None:
            return replace(fact, size=Expr.name(self._name(node))) if fact.kind == "scalar" else fact
        held = None if self._across is None else self._across.annotated(node.attrs.get("annotation"))
        if held is not None:
            return held
        default = node.attrs.get("default")
        if isinstance(default, Node):
            d = self.of(default)
            why = f"{name}: its default is {d.const!r}, and the argument is of that kind"
            if d.kind == "scalar":
                sort = d.dtype if "weak bool" in d.dtype else DType({"weak number"})
                return Fact("scalar", SCALAR, sort, size=Expr.name(self._name(node)), why=why)
            if d.kind in ("str", "dtype"):
                return Fact(d.kind, dtype=DType({self._name(node)}) if d.kind == "dtype" else dtypes.UNKNOWN, why=why)
        return Fact("unknown", size=Expr.name(self._name(node)), why=f"parameter {name}")

    def _usual_argument(self, node: Node) -> Fact | None:
        """An argument of a constructor that is left out, where defaults count."""
        default = node.attrs.get("default")
        if not self.reach.usual or not isinstance(default, Node) or not node.frame.qualname.endswith(".__init__"):
            return None
        fact = self.of(default)
        if fact.kind == "tuple" and fact.parts and all(p.const is not MISSING for p in fact.parts):
            fact = replace(fact, const=tuple(p.const for p in fact.parts))
        if fact.const is MISSING:
            return None
        owner = node.frame.qualname.removesuffix(".__init__")
        if self._across is None:
            return None
        elsewhere, name = self._across.elsewhere, node.attrs["name"]
        place = elsewhere.place_of(self.graph, node)
        own = Definition(os.path.abspath(place.path), owner)
        if fact.const is None and not self._is_made_here(node) and elsewhere.modules.is_given_otherwise(own, name):
            return None  # None says that it was left out, and it isn't
        rests = frozenset({Default(name, fact.const, owner, place)})
        places = fact.places | {place} if elsewhere.is_other(place) else fact.places
        return replace(
            fact, size=None, rests=rests, places=places, why=f"the default of {owner}({node.attrs['name']}=...)"
        )

    def _is_made_here(self, argument: Node) -> bool:
        """Whether a constructor makes an object in place of an argument that is left out: `config or Config()`."""
        program, owner = self.graph.program, self.graph.context.class_name
        init = self.graph if self._owns(argument) or program is None or owner is None else program.init(owner)
        users = () if init is None else init.users.get(argument, ())
        return any(n.op in ("new", "call") for u in users if u.op in ("or", "phi") for n in u.inputs)

    def _attr(self, node: Node) -> Fact:
        init = node.attrs.get("init")
        path = self.path(node) or node.attrs.get("name", "")
        limit = LIMITS.get(node.inputs[0].attrs.get("target") or "") if node.inputs else None
        if limit is not None:
            return scalar_fact(limit, why=f"{path}, a limit of a dtype")
        number = self._optimizer if node.attrs.get("name") in NUMBERS else None
        if number is not None and (kept := number.attribute(node)) is not None:
            return kept
        if not isinstance(init, Node) or self._is_reassigned(node):
            fact = self._attribute(node, path)
            return fact or Fact("unknown", size=Expr.name(self._name(node)), why=f"attribute {path}")
        fact = self.of(init)
        why = f"{path} is set in __init__"
        if fact.kind == "none" and not fact.rests:  # a place for what is assigned later
            return Fact("unknown", size=Expr.name(self._name(node)), why=f"{why} to None")
        if fact.kind == "array":
            if fact.shape is not None:
                self._weight_sizes.update(d for d in fact.shape.dims if d.value() is None)
            own = node.attrs.get("name") or path.rsplit(".", 1)[-1]
            if not own.startswith("_") and not fact.dtype.integral and self._holds_weights(node):
                return replace(fact, dtype=DType({f"{path}.dtype"}), why=why, assumed=fact.assumed | {WEIGHTS})
        if fact.kind == "unknown" and fact.size is None:
            return replace(fact, size=Expr.name(self._name(node)), why=why)
        if fact.instances:
            fact = replace(fact, instances=tuple(replace(i, path=path) for i in fact.instances))
        return replace(fact, why=f"{why}: {fact.why}" if fact.why else why)

    @cached_property
    def _optimizer(self) -> Optimizer | None:
        return optimizer(self, None if self._across is None else self._across.elsewhere)

    def _is_reassigned(self, node: Node) -> bool:
        """Whether methods of the class assign the attribute too: it need not be what the constructor assigned."""
        module, name = self.graph.module, node.attrs.get("name")
        own = module.lineage(self.graph.context.class_name or "")
        base = node.inputs[0] if node.inputs else None
        if base is None or base.op != "param":
            return False
        return any(name in module.classes[c].reassigned for c in own if c in module.classes)

    def _holds_weights(self, node: Node) -> bool:
        """Whether arrays of the object may be loaded: not if its class is of this file and derives from nothing."""
        if not node.inputs or self.of(node.inputs[0]).kind != "object":
            return True
        held = self.graph.module.classes.get(self.graph.context.class_name or "")
        return held is None or bool(held.bases)

    def _attribute(self, node: Node, path: str) -> Fact | None:
        """An attribute that `__init__` of this file doesn't assign: of an object whose class the package defines."""
        base = self.of(node.inputs[0]) if node.inputs else UNKNOWN
        if self._across is None or not base.instances:
            return None
        across, name = self._across, node.attrs.get("name", "")
        found = [across.attribute(i, name) for i in base.instances]
        known = [f for f in found if f is not None]
        if len(known) != len(found):
            return None
        fact = self._unmarked(self.joined(known, ("attribute", node)), self._name(node))
        if fact.kind == "scalar" and not (fact.size is not None and fact.size.names) and fact.const is MISSING:
            fact = replace(fact, size=Expr.name(self._name(node)))
        if fact.instances:
            fact = replace(fact, instances=tuple(i if i.path else replace(i, path=path) for i in fact.instances))
        return fact

    def _global(self, node: Node) -> Fact:
        name, target = node.attrs.get("name", ""), node.attrs.get("target")
        found = None if self._across is None else self._across.constant(target)
        if found is None and target is None and self._around(name) is None:
            found = array_fact(self.graph.module, name)
        return found or self._captured(node) or Fact("unknown", why=f"the global {name}")

    def _captured(self, node: Node) -> Fact | None:
        """A name of the function around this one that holds arrays, or Python numbers, whenever this one may run."""
        name, program = node.attrs["name"], self.graph.program
        around = None if node.attrs["target"] is not None else self._around(name)
        graph = None if around is None or program is None else program.graph(around)
        if graph is None or name in rebinds_outer(graph.source.node):
            return None
        bound = graph.bindings.get(name, ())
        numbers = {graph.facts.dtype(b.node) for b in bound if graph.facts.kind(b.node) == "scalar"}
        if len(numbers) == 1 and all(graph.facts.kind(b.node) == "scalar" for b in bound):
            why = f"`{name}` of {around}, which holds numbers alone"
            return Fact("scalar", SCALAR, numbers.pop(), size=Expr.name(name), why=why)
        if not bound or any(graph.facts.kind(b.node) != "array" for b in bound):
            return None
        return Fact("array", why=f"`{name}` of {around}, which holds arrays alone")

    def _around(self, name: str) -> str | None:
        """The function around this one that a name is of."""
        functions = self.graph.module.functions
        at = functions[self.graph.context.qualname].span.outer if self.graph.context.qualname in functions else None
        while at is not None and at in functions and name not in functions[at].local:
            at = functions[at].span.outer
        return at if at in functions else None

    def _new(self, node: Node) -> Fact:
        made = None if self._across is None else self._across.made(node)
        return made or Fact("object", why="an instance", present=True)

    def _shape(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        return Fact("tuple", extent=f.shape, why="the shape of an array")

    def _dim(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        axis = node.attrs.get("axis")
        number = axis if isinstance(axis, int) else self.const(axis) if isinstance(axis, Node) else None
        counted = f.shape is None or (f.shape.lead is not None and isinstance(number, int) and number >= 0)
        size = f.shape.axis(number) if f.shape is not None and isinstance(number, int) and not counted else None
        if size is None:
            array = node.inputs[0]
            seen = self._usage.of(array)
            readers = seen.axes.get(number, []) if seen is not None and isinstance(number, int) else [node]
            named = next((self._bound_names[n] for n in readers if n in self._bound_names), "")
            text = named or f"{self._name(array)}.shape[{number if isinstance(number, int) else '?'}]"
            size = Expr.name(self._unique(("dim", array, number if isinstance(number, int) else node), text))
        value = size.value()
        return Fact(
            "scalar",
            SCALAR,
            DType({"weak int"}),
            MISSING if value is None else value,
            size,
            why="a size",
        )

    def _ndim(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        rank = None if f.shape is None else f.shape.rank
        return scalar_fact(
            "weak int",
            const=MISSING if rank is None else rank,
            size=None if rank is None else Expr.of(rank),
            why="a rank",
        )

    def _elements(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        size = None if f.shape is None else f.shape.elements()
        return scalar_fact("weak int", size=size or Expr.name(f"%{node.id}"), why="a size")

    def _dtype(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        return Fact("dtype", dtype=f.dtype, why="the dtype of an array")

    def _extent(self, elements: Sequence[Any]) -> Shape | None:
        lead: str | None = None
        dims: list[Expr] = []
        for at, e in enumerate(elements):
            if isinstance(e, Node) and e.op == "star":
                inner = self.of(e.inputs[0]).extent
                if inner is None or (inner.lead is not None and at):
                    return None
                lead = inner.lead or lead
                dims.extend(inner.dims)
                continue
            size = self.size(e)
            if size is None:
                return None
            dims.append(size)
        return Shape(lead, tuple(dims))

    def _tuple(self, node: Node) -> Fact:
        if any(n.op == "star" for n in node.inputs):
            return Fact("tuple", extent=self._extent(node.inputs), why="a display")
        parts = tuple(self.of(n) for n in node.inputs)
        numbers = all(p.kind in ("scalar", "unknown") for p in parts)
        return Fact("tuple", extent=self._extent(node.inputs) if numbers else None, parts=parts, why="a display")

    def _item(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        index = node.attrs.get("index")
        counted = node.inputs[0].attrs.get("target") if node.inputs[0].op == "call" else None
        if counted == "builtins.range" or (counted == "builtins.enumerate" and index == 0):
            return scalar_fact("weak int", size=Expr.name(self._name(node)), why="a number that a loop counts")
        if isinstance(index, str) and self._optimizer is not None:
            kept = self._optimizer.item(node)
            if kept is not None:
                return kept
        if isinstance(index, Node):
            known = self.const(index)
            index = known if isinstance(known, int) else index
        if f.kind == "array":  # a step of a loop over it has no index
            return self._indexed(node, index if isinstance(index, tuple) else (0 if index is None else index,))
        if isinstance(index, Slice) and f.extent is not None:
            return Fact("tuple", extent=_cut(f.extent, index), why="part of a tuple")
        if isinstance(index, int) and f.parts is not None and -len(f.parts) <= index < len(f.parts):
            return f.parts[index]
        if isinstance(index, int) and f.extent is not None:
            size = f.extent.axis(index)
            if size is not None:
                return scalar_fact("weak int", size=size, why="a size")
        if node.inputs[0].op in TABLE and f.kind == "tuple" and f.parts is None:
            return Fact("array", f.shape, f.dtype, why=f.why)
        held = node.inputs[0].attrs.get("init", node.inputs[0])
        if f.kind == "unknown" and isinstance(index, int) and isinstance(held, Node) and held.op == "param":
            number = element(held.attrs.get("annotation"), held.attrs["name"])
            if number is not None:
                return replace(number, size=Expr.name(self._name(node)))
        return Fact("unknown", why="an element of something not understood")

    def _index(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        index = node.attrs.get("index")
        parts = index if isinstance(index, tuple) else (index,)
        if f.kind == "tuple":
            return self._item(node)
        return self._indexed(node, parts)

    def _indexed(self, node: Node, index: tuple[Any, ...]) -> Fact:
        f = self.of(node.inputs[0])
        return Fact("array", indexed(f.shape, index, self, partial(self._fresh, node)), f.dtype, why="indexing")

    def _updated(self, node: Node) -> Fact:
        f = self.of(node.inputs[0])
        return Fact("array", f.shape, f.dtype, why="an array of which some entries were assigned", present=True)

    def _phi(self, node: Node) -> Fact:
        test = node.attrs.get("test")
        known = self.truth(test) if isinstance(test, Node) else None
        if known is not None:
            chosen = node.inputs[0 if known else 1]
            fact = self.of(chosen)
            size = self.size(chosen) if fact.size is None and fact.const is MISSING else None
            return fact if size is None else replace(fact, size=size)  # what it is called there
        joined = self.joined([self.of(n) for n in node.inputs], node)
        return self._sized(node, replace(joined, why="a join of branches"))

    def _sized(self, node: Node, fact: Fact) -> Fact:
        """A whole number that is one of several is a size of its own name."""
        if self.mark or fact.kind != "scalar" or fact.size is not None or fact.dtype != DType({"weak int"}):
            return fact
        return replace(fact, size=Expr.name(self._name(node)))

    def _condition(self, node: Node) -> Fact:
        if node.op in ("and", "or"):
            return self._choice(node)
        known = self._known_test(node)
        return scalar_fact("weak bool", const=MISSING if known is None else known, why="a condition")

    def _known_test(self, node: Node) -> bool | None:
        if node.op == "not":
            inner = self.truth(node.inputs[0])
            return None if inner is None else not inner
        left, right = (self.of(n) for n in node.inputs)
        test = node.attrs.get("op")
        if test in ("is", "is not") and right.kind == "none":
            none = True if left.kind == "none" else False if left.present else None
            return none if none is None or test == "is" else not none
        if test in ("is", "is not") and isinstance(right.const, bool) and left.const is not MISSING:
            return (left.const is right.const) is (test == "is")
        if test in ("in", "not in") and left.const is not MISSING and right.parts is not None:
            among = [p.const for p in right.parts]
            if MISSING not in among:
                return (left.const in among) is (test == "in")
        return None

    def _choice(self, node: Node) -> Fact:
        """`a or b`: the first operand whose truth is known to decide, or the last."""
        facts = [self.of(n) for n in node.inputs]
        for n, fact in zip(node.inputs[:-1], facts, strict=False):
            known = self.truth(n)
            if known is None:
                break
            if known is (node.op == "or"):
                return fact
        else:
            return facts[-1]
        if any(f.kind != "scalar" or "weak bool" not in f.dtype for f in facts):
            same = all(f.kind == facts[0].kind for f in facts)
            if same and facts[0].kind != "array":
                return self._sized(node, replace(self.joined(facts, node), why=f"`{node.op}`"))
            return Fact("unknown", why=f"`{node.op}`")
        return scalar_fact("weak bool", why="a condition")

    def _loop(self, node: Node) -> Fact:
        """What a loop carries around: an array where it starts as one and each step computes one from it."""
        name = node.attrs.get("name", "a value")
        start, steps = (self.of(node.inputs[0]), node.inputs[1:]) if node.inputs else (UNKNOWN, ())
        if start.kind != "array":
            return Fact("unknown", why=f"{name} changes in a loop")
        why = f"{name}: an array that changes in a loop"
        kept = Fact("array", start.shape, start.dtype, why=f"{name}: each step of a loop leaves it as it starts")
        ways = [kept, replace(kept, dtype=dtypes.UNKNOWN)]
        if start.shape is not None and start.shape.lead is None:
            count = len(start.shape.dims)
            ranked = Shape(None, tuple(self._fresh(node, i - count) for i in range(count)))
            ways += [replace(way, shape=ranked, why=f"{name}: each step of a loop leaves its rank") for way in ways]
        for same in (*ways, Fact("array", dtype=start.dtype, why=why)):
            rests = self._steady(node, same, same.shape is start.shape) if steps else None
            if rests is not None:
                return same.resting(*rests)
        carried = all(_carries(n, node) for n in steps)
        if not all(_carries(n, node, made=True) for n in steps):
            return Fact("unknown", why=f"{name} changes in a loop")
        dtype = start.dtype if carried and start.dtype.name == "float32" else dtypes.UNKNOWN
        return Fact("array", dtype=dtype, why=why)

    def _steady(self, node: Node, same: Fact, exact: bool) -> tuple[Any, ...] | None:
        """What it rests on that a value of a loop is `same` in each step; None where it may not be.

        exact: in all its sizes, not just in rank. It is what it starts as, and a step leaves it so if it was so before.
        What follows from that is taken back where it turns out wrong; that is asked once, so that loops that need one
        another are no burden.
        """
        if (node, same) in self._unsteady:
            return None
        count, names, taken = len(self._facts), dict(self._names), dict(self._taken)
        self._facts[node] = same
        after = [self.of(n) for n in node.inputs[1:]]

        def leaves(made: Fact) -> bool:
            shape = made.shape
            fits = same.shape is None or (shape is not None and shape.rank == same.shape.rank)
            fits = fits and (not exact or shape == same.shape)
            return made.kind == "array" and fits and (made.dtype == same.dtype or not same.dtype)

        if all(map(leaves, after)):
            return tuple(frozenset().union(*(getattr(f, a) for f in after)) for a in ("assumed", "places", "rests"))
        self._unsteady.add((node, same))
        while len(self._facts) > count:
            self._facts.popitem()
        self._names, self._taken = names, taken
        return None

    def _called(self, node: Node) -> Fact:
        target = node.attrs.get("target") or ""
        inputs = [self.of(n) for n in node.inputs]
        if not target.startswith(OUTSIDE) and self._across is not None:
            made = self._across.result(node)
            if made is not None:
                return self._unmarked(made, self._name(node))
        if target in ("builtins.tuple", "builtins.list") and len(inputs) == 1 and inputs[0].kind == "tuple":
            return inputs[0]
        name = target.removeprefix("builtins.").removeprefix("math.")
        consts = [f.const for f in inputs]
        if target in PURE and consts and MISSING not in consts and not node.attrs.get("keywords"):
            try:
                return constant_fact(PURE[target](*consts))
            except (ArithmeticError, TypeError, ValueError):
                return Fact("unknown", why=f"{name} of constants fails")
        if target in ("builtins.int", "math.floor", "math.ceil", "builtins.round", "builtins.len", "math.prod"):
            return scalar_fact("weak int", size=self._rounded(node, target, inputs), why=f"the result of {name}")
        if target == "builtins.float" or target.startswith("math."):
            return scalar_fact("weak float", why=f"the result of {name}")
        if target in ("builtins.max", "builtins.min", "builtins.sum", "builtins.abs"):
            numbers = inputs and all(f.kind == "scalar" for f in inputs)
            if numbers and target == "builtins.max" and all(f.size is not None for f in inputs):
                return scalar_fact(
                    "weak int",
                    size=reduce(Expr.max, (f.size for f in inputs if f.size is not None)),
                    why="the result of max",
                )
            return (
                scalar_fact("weak number", why=f"the result of {name}")
                if numbers
                else Fact("unknown", why=f"{name} of unknown values")
            )
        if target in ("builtins.getattr", "builtins.hasattr") and len(inputs) > 1:
            found = self._looked_up(node, target, inputs)
            if found is not None:
                return found
        if self.reach.usual and (found := self._where_missing(node, target, inputs)) is not None:
            return found
        told = inputs and (inputs[0].kind in ("none", "str") or inputs[0].present)
        if target == "builtins.isinstance" and told and node.inputs[-1].attrs.get("target") == ARRAY:
            return scalar_fact("weak bool", const=inputs[0].kind == "array", why="its type is known")
        if target in ("builtins.bool", "builtins.isinstance", "builtins.hasattr", "builtins.any", "builtins.all"):
            return scalar_fact("weak bool", why=f"the result of {name}")
        if target == "builtins.str":
            return Fact("str", why="the result of str")
        if target.startswith("numpy."):
            return Fact("object", why=f"{target} is not MLX")
        called = node.attrs.get("callee") or target or "a call"
        if node.attrs.get("fresh"):
            return Fact("array", why=f"the result of {called}, an array that it makes")
        summary = self.graph.module.functions.get(target)
        plain = summary is not None and not (summary.is_async or summary.is_generator or summary.redefined)
        stated = annotated(summary.returns, called) if summary is not None and plain else None
        if stated is not None and stated.kind == "array":
            return stated
        return Fact("unknown", why=f"the result of {called}, which is not understood")

    def _looked_up(self, node: Node, target: str, inputs: Sequence[Fact]) -> Fact | None:
        """`getattr(config, "head_dim", other)` and `hasattr(config, "head_dim")` of objects whose class is known."""
        name, across = inputs[1].const, self._across
        if inputs[0].kind == "none" and target == "builtins.hasattr":
            return scalar_fact("weak bool", const=False, why="None has no such attribute")
        if across is None or not isinstance(name, str) or not self.reach.usual or not inputs[0].instances:
            return None
        lacks = [across.lacks(i, name) for i in inputs[0].instances]
        found = [across.attribute(i, name) for i in inputs[0].instances]
        known = [f for f in found if f is not None]
        if target == "builtins.hasattr" and (all(lacks) or len(known) == len(found)):
            return scalar_fact("weak bool", const=not all(lacks), why="the class says so")
        if target == "builtins.getattr" and len(inputs) == 3 and all(lacks):
            return inputs[2]
        if target == "builtins.getattr" and len(known) == len(found):
            return self._unmarked(self.joined(known, ("attribute", node)), self._name(node))
        return None

    def _where_missing(self, node: Node, target: str, inputs: Sequence[Fact]) -> Fact | None:
        """The number that `config.get("hidden_size", 1024)` and `getattr(config, "hidden_size", 1024)` give where the
        configuration says none."""
        callee = node.attrs.get("callee")
        gets = isinstance(callee, Node) and callee.op == "attr" and callee.attrs.get("name") == "get"
        if len(inputs) != (2 if gets else 3) or not (gets or target == "builtins.getattr") or self._across is None:
            return None
        name, default = inputs[-2].const, inputs[-1]
        if not isinstance(name, str) or type(default.const) not in (int, float):
            return None
        place, owner = self._across.elsewhere.place_of(self.graph, node), self.graph.context.qualname
        rests = default.rests | {Default(name, default.const, owner, place)}
        return replace(default, rests=rests, why=f"{name}, where nothing says another one")

    def _rounded(self, node: Node, target: str, inputs: Sequence[Fact]) -> Expr | None:
        if len(inputs) != 1:
            return None
        inner = node.inputs[0]
        if target in ("builtins.int", "math.floor") and inner.op == "divide" and inputs[0].kind == "scalar":
            a, b = (self.size(n) for n in inner.inputs)
            return a // b if a is not None and b is not None and b != 0 else None
        if target == "builtins.len":
            extent = inputs[0].extent
            if inputs[0].kind == "array":
                return None if inputs[0].shape is None else inputs[0].shape.axis(0)
            return Expr.of(len(extent.dims)) if extent is not None and extent.lead is None else None
        return inputs[0].size if target in ("builtins.int", "math.ceil") else None

    def _opaque(self, node: Node) -> Fact:
        element = self.of(node.inputs[-1]) if isinstance(node.cst, cst.ListComp) and node.inputs else None
        if element is not None and element.kind == "scalar" and node.attrs.get("reason") == "comprehension":
            shape = Shape(None, (Expr.name(f"{self._name(node)}.shape[0]"),))
            return Fact("tuple", shape, element.dtype, why="a list of numbers")
        return Fact("unknown", why=f"not understood: {node.attrs.get('reason', '')}")


ARRAY = "mlx.core.array"

INPUT_AXES = {"nn.Linear": "input_dims", "nn.LayerNorm": "dims", "nn.RMSNorm": "dims"}
"""The argument of a layer's constructor that is the size of the last axis of what the layer is called with."""


def _as_value(f: Fact) -> Value:
    elements = None if f.parts is None else tuple(map(_as_value, f.parts))
    return Value(f.kind, f.shape, f.dtype, f.const, elements, f.size if f.kind == "tuple" else None)


LIMITS = {"mlx.core.finfo": "weak float", "mlx.core.iinfo": "weak int", "numpy.finfo": "weak float"}
"""Whose attributes are Python numbers."""

CARRYING = frozenset({"add", "subtract", "multiply", "divide", "maximum", "minimum", "phi"})
"""Operations that make an array of an array, of a dtype that isn't narrower."""


def _carries(value: Node, start: Node, made: bool = False) -> bool:
    """Whether `value` is arithmetic on `start`, or where `made` says so on what any function of MLX returns."""
    found: set[Node] = set()
    stack = [value]
    while stack:
        n = stack.pop()
        if n not in found:
            found.add(n)
            stack.extend(n.inputs if n.op in CARRYING else ())
    carried = {start, *(n for n in found if made and _is_made(n))}
    for n in sorted(found, key=lambda n: n.id):
        if n.op in CARRYING and (all if n.op == "phi" else any)(k in carried for k in n.inputs):
            carried.add(n)
    return value in carried


def _is_made(value: Node) -> bool:
    """Whether a value is the result of a function that returns arrays, whatever it is given."""
    op = TABLE.get(value.op)
    return op is not None and op.result == "array" and isinstance(value.cst, cst.Call)


def _cut(extent: Shape, cut: Slice) -> Shape | None:
    """`shape[start:stop]`."""
    start, stop, step = cut.start, cut.stop, cut.step
    if any(not (v is None or type(v) is int) for v in (start, stop, step)) or step not in (None, 1):
        return None
    if extent.lead is None:
        return Shape(None, extent.dims[start:stop])
    if start in (None, 0) and isinstance(stop, int) and stop < 0:
        front = extent.front(-stop)
        return None if front is None else Shape(*front)
    if isinstance(start, int) and start < 0:
        tail = extent.tail(-start)
        return (
            None if tail is None else Shape(None, tail[: len(tail) + stop if stop is not None and stop < 0 else None])
        )
    return extent if start in (None, 0) and stop is None else None


def _divide(a: Expr, b: Expr) -> Expr | None:
    return a // b if b != 0 and b.divides(a) else None


_SIZE_RULES: dict[str, tuple[int, Callable[..., Expr | None]]] = {
    "add": (2, operator.add), "subtract": (2, operator.sub), "multiply": (2, operator.mul),
    "floor_divide": (2, operator.floordiv), "negative": (1, operator.neg), "divide": (2, _divide),
}  # fmt: skip

_RULES: dict[str, Callable[[Facts, Node], Fact]] = {
    "param": Facts._param, "attr": Facts._attr, "shape": Facts._shape, "dim": Facts._dim,
    "ndim": Facts._ndim, "size": Facts._elements, "dtype": Facts._dtype, "tuple": Facts._tuple, "list": Facts._tuple,
    "item": Facts._item, "index": Facts._index, "index_update": Facts._updated, "phi": Facts._phi,
    "loop": Facts._loop, "call": Facts._called,
    "opaque": Facts._opaque, "compare": Facts._condition, "not": Facts._condition, "and": Facts._condition,
    "or": Facts._condition, "function": lambda f, n: Fact("function", why="a function"),
    "dict": lambda f, n: Fact("object", why="a dict"), "new": Facts._new, "global": Facts._global,
}  # fmt: skip
