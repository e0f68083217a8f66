"""Calls: MLX ops, layers, constructors, and helpers of the same file, whose bodies are lowered in place.

A call that isn't understood, or a helper beyond the budget, is a `call` node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from fuselint.graph import ops
from fuselint.graph.model import Block, Frame, Node
from fuselint.graph.names import Names
from fuselint.graph.op import Op
from fuselint.graph.scan import parameters, rebinds_outer, runs_apart
from fuselint.graph.state import Closure, Definition, GiveUp, Return, Scope
from fuselint.source.function import FunctionSource
from fuselint.source.project import FunctionSummary

DEEPEST = 4
LARGEST = 5_000
"""Inlined calls inside one another, and nodes made for all inlined calls of a function."""

BASES = frozenset({"mlx.nn.RMSNorm", "mlx.nn.LayerNorm"})
"""Layers whose call means the same whatever their constructor was given, but for weights that they may lack."""

CHANGES = frozenset("append extend insert remove pop clear sort reverse update setdefault popitem add discard".split())


@dataclass(eq=False)
class Arguments:
    """The arguments of a call: displays stay detached. `starred`: there is a `*a` or `**k` of unknown length."""

    positional: list[Node]
    keywords: dict[str, Node]
    starred: bool = False

    def nodes(self) -> list[Node]:
        return [*self.positional, *self.keywords.values()]


class Inline(Names):
    """How calls are lowered."""

    def arguments(self, args: Sequence[cst.Arg]) -> Arguments:
        out = Arguments([], {})
        for arg in args:
            value = self.argument(arg.value)
            if arg.star == "*":
                parts = self.spread(value, arg)
                out.starred |= any(p.op == "star" for p in parts)
                out.positional.extend(parts)
            elif arg.star == "**":
                keys: tuple[Any, ...] = value.attrs["keys"] if value.op == "dict" else (None,)
                if all(isinstance(k, str) for k in keys):
                    out.keywords.update(zip(keys, map(self.current, value.inputs), strict=True))
                else:
                    out.starred = True
                    out.positional.append(self.emit("star", (value,), {}, arg))
            elif arg.keyword is not None:
                out.keywords[arg.keyword.value] = value
            else:
                out.positional.append(value)
        if self.heap:
            out.positional = [self.refreshed(n) for n in out.positional]
            out.keywords = {k: self.refreshed(n) for k, n in out.keywords.items()}
        return out

    def call(self, node: cst.Call) -> Node:
        func = node.func
        target = self.qualified(func)
        if target is not None:
            return self.call_target(target, self.arguments(node.args), node)
        if isinstance(func, cst.Attribute):
            if self._is_super(func.value):
                return self.call_super(func.attr.value, self.arguments(node.args), node)
            base = self.value(func.value)
            if base.op == "global" and base.attrs["target"] is not None:
                dotted = self.normal(f"{base.attrs['target']}.{func.attr.value}")
                return self.call_target(dotted, self.arguments(node.args), node)
            return self.call_method(base, func.attr.value, node)
        callee = self.value(func)
        return self.call_value(callee, self.arguments(node.args), node)

    def _is_super(self, node: cst.BaseExpression) -> bool:
        return (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Name)
            and node.func.value == "super"
            and (not node.args or len(node.args) == 2)
            and self.qualified(node.func) == "builtins.super"
        )

    def call_value(self, callee: Node, args: Arguments, at: cst.CSTNode) -> Node:
        """A call of a value: a closure, a function or layer under another name, or something unknown."""
        closure = self.closures.get(callee)
        if closure is not None:
            return self.call_closure(closure, args, at)
        if callee.op == "function":
            return self.call_target(callee.attrs["qualname"], args, at)
        if callee.op == "global" and callee.attrs["target"] is not None:
            return self.call_target(callee.attrs["target"], args, at)
        if callee.op == "new":
            return self.call_instance(callee, None, callee, args, at)
        if callee.op == "attr" and callee.attrs["init"] is not None:
            return self.call_instance(callee.attrs["init"], callee.attrs["path"], callee, args, at)
        return self.unknown_call(self.element_class(callee), callee, args, at)

    def element_class(self, callee: Node) -> str | None:
        """`Block.__call__` for a step or an item of `self.layers`, where `__init__` fills it with `Block(...)`.

        Also of `self.decoder.layers`, where `self.decoder` is an object of a class of this file.
        """
        base = callee.inputs[0] if callee.op == "item" else None
        if base is None or base.op != "attr":
            return None
        holder, owner = base.inputs[0], None
        if holder is self.scopes[0].self_node:
            owner = self.scopes[0].class_name
        elif holder.op == "attr" and holder.inputs[0] is self.scopes[0].self_node:
            made_by = holder.attrs.get("init")
            owner = made_by.attrs["target"] if isinstance(made_by, Node) and made_by.op == "new" else None
        summary = self.module.classes.get(owner or "")
        made = "" if summary is None else summary.attributes.get(base.attrs["name"], "")
        return f"{made[:-2]}.__call__" if made.endswith("[]") else None

    # By qualified name

    def call_target(self, target: str, args: Arguments, at: cst.CSTNode) -> Node:
        summary = self.module.functions.get(target)
        if summary is not None:
            return self.call_function(summary, args, at, None)
        if target in self.module.classes:
            return self.construct(target, args, at)
        if target.startswith("builtins."):
            return self.call_builtin(target, args, at)
        op = ops.resolve_call(target)
        if op is None:
            if target.startswith("mlx.nn.") and target.rpartition(".")[2][:1].isupper() and target.count(".") == 2:
                return self.construct(target, args, at)
            return self.unknown_call(target, None, args, at)
        if op.kind == "layer":
            is_method = op.name.count(".") > 1  # of the class, given an object
            return self.unknown_call(target, None, args, at) if is_method else self.construct(target, args, at)
        return self.apply(op, target, args, at)

    def apply(
        self, op: Op, target: str, args: Arguments, at: cst.CSTNode, more: Mapping[str, Any] | None = None
    ) -> Node:
        """A call of an op of the table; `more` are attributes besides its own."""
        try:
            bound = ops.bind(op, args.positional, args.keywords)
        except ops.CannotBind as e:
            self.note(str(e))
            return self.unknown_call(target, None, args, at)
        return self.operation(op, bound, at, more or {})

    def operation(self, op: Op, bound: ops.Bound, at: cst.CSTNode, more: Mapping[str, Any]) -> Node:
        inputs = [self.constant(None, at) if n is None else self.attach(n) for n in bound.inputs]
        attrs = {k: self.attached(v) for k, v in bound.attrs.items()}
        return self.emit(op.name, inputs, {**attrs, **more}, at)

    def attached(self, value: Any) -> Any:
        """An attribute without detached nodes."""
        if isinstance(value, Node):
            return self.attach(value)
        if isinstance(value, tuple):
            return tuple(self.attached(v) for v in value)
        return value

    def construct(self, target: str, args: Arguments, at: cst.CSTNode) -> Node:
        """An instance of a class; args are named as `__init__` names them, where that is known."""
        names = self.constructor_names(target)
        inputs: list[Node] = []
        named: dict[str, Node] = {}
        for i, a in enumerate(args.positional):
            node = self.attach(a)
            inputs.append(node)
            if not args.starred:
                named[names[i] if i < len(names) else str(i)] = node
        for k, a in args.keywords.items():
            named[k] = self.attach(a)
            inputs.append(named[k])
        self.handed_on(inputs)
        return self.emit("new", inputs, {"target": target, "args": named}, at)

    def constructor_names(self, target: str) -> Sequence[str]:
        if target in self.module.classes:
            init = self.module.method(target, "__init__")
            if init is not None:
                return [p.name for p in self.module.functions[init].parameters if p.kind == "plain"][1:]
            summary = self.module.classes[target]
            return list(summary.fields) if summary.is_dataclass else ()
        op = ops.resolve_call(target)
        return () if op is None else [p.name for p in op.constructor]

    def unknown_call(self, target: str | None, callee: Node | None, args: Arguments, at: cst.CSTNode) -> Node:
        inputs = [self.attach(n) for n in args.nodes()]
        attrs: dict[str, Any] = {
            "target": target,
            "callee": callee,
            "keywords": tuple(args.keywords),
            "starred": args.starred,
        }
        harmless = target is not None and target.startswith(("builtins.", "mlx.core."))
        if target is not None and target in self.module.functions:
            harmless = self.program.changes_nothing(target)
            if self.program.makes_array(target):
                attrs["fresh"] = True
                attrs["keeps"] = not harmless  # one of its arguments
        node = self.emit("call", inputs, attrs, at)
        if not harmless:
            self.handed_on(inputs)
        return node

    def call_builtin(self, target: str, args: Arguments, at: cst.CSTNode) -> Node:
        name = target[len("builtins.") :]
        given = args.positional
        if args.starred or args.keywords:
            return self.unknown_call(target, None, args, at)
        if name == "map" and len(given) == 2 and given[1].op in ("tuple", "list"):
            results = [self.call_value(given[0], Arguments([self.current(n)], {}), at) for n in given[1].inputs]
            return self.detached("tuple", results, at)
        if name in ("tuple", "list") and len(given) == 1 and given[0].op in ("tuple", "list"):
            return self.detached(name, given[0].inputs, at)
        if name == "float" and len(given) == 1 and given[0].op == "const":
            value = given[0].attrs["value"]
            if isinstance(value, str) and value.strip().lower().lstrip("+-") in ("inf", "infinity", "nan"):
                return self.constant(float(value), at)
        if name == "abs" and len(given) == 1:
            op = ops.unary("abs")
            if op is not None:
                return self.apply(op, target, args, at)
        if name == "getattr" and len(given) == 2 and given[1].op == "const":
            attribute = given[1].attrs["value"]
            if isinstance(attribute, str) and attribute.isidentifier():
                return self.attribute_of(self.attach(given[0]), attribute, at)
        if name in ("eval", "exec", "setattr", "delattr", "globals", "locals", "vars"):
            self.unknown_effect([self.attach(n) for n in given])
        return self.unknown_call(target, None, args, at)

    # Methods

    def call_method(self, base: Node, name: str, node: cst.Call) -> Node:
        args = self.arguments(node.args)
        base = self.refreshed(base)
        if base is self.scope.self_node:
            return self.call_own(base, name, args, node)
        here, init = self.known_attribute(base, name)
        known = here or init
        if known is not None and known.op in ("new", "function", "global"):
            return self.call_instance(known, self.path(base, name), None, args, node)
        op = ops.method(name)
        if op is not None and self.may_have_method(base, args):
            with contextlib.suppress(ops.CannotBind):  # another object's method of that name
                bound = ops.bind(op, [base, *args.positional], args.keywords, method=True)
                return self.operation(op, bound, node, {})
        if name in CHANGES and self.is_container(base):
            inputs = [base, *(self.attach(n) for n in args.nodes())]
            new = self.opaque(f"a container after .{name}()", inputs, node)
            self.mutate(base, new, inputs[1] if len(inputs) > 1 else None)
            return self.opaque(f"the result of .{name}() of a container", (base,), node)
        callee = self.read_attribute(base, name, node.func)
        target = self.instance_method(base, name)
        layer = None if target is None else ops.resolve_call(target)
        if target is not None and layer is not None:  # another use of a layer: Embedding.as_linear
            new = base if base.op == "new" else base.attrs["init"]
            return self.apply(layer, target, args, node, {"path": base.attrs.get("path"), "new": new})
        self.handed_on([base])
        return self.unknown_call(target, callee, args, node)

    def may_have_method(self, base: Node, args: Arguments) -> bool:
        """Whether `base.method(...)` can be that of an array."""
        if base.op in ("tuple", "list", "dict", "new", "function", "global", "shape", "dtype", "compare"):
            return False
        if base.op == "const" or (base.op == "opaque" and base.attrs["reason"] == "f-string"):
            return False
        if base.op == "param" and base.attrs["annotation"] in ("builtins.str", "str", "dict", "list"):
            return False
        if base.op == "call" and base.attrs["target"] is not None:
            return not base.attrs["target"].startswith(("numpy.", "torch.", "builtins.", "math.", "jax."))
        texts = [a for a in args.positional if a.op == "const" and isinstance(a.attrs["value"], str)]
        return all("kind" in a.attrs for a in texts)

    def instance_method(self, base: Node, name: str) -> str | None:
        init = base if base.op == "new" else base.attrs["init"] if base.op == "attr" else None
        if init is None or init.op != "new":
            return None
        target = init.attrs["target"]
        return self.module.method(target, name) or f"{target}.{name}"

    def call_own(self, base: Node, name: str, args: Arguments, at: cst.Call) -> Node:
        """`self.name(...)`: a layer or function that `__init__` assigned, or a method of this class."""
        here, init = self.known_attribute(base, name)
        known = here or init
        if known is not None:
            return self.call_instance(known, self.path(base, name), None, args, at)
        class_name = self.scopes[0].class_name
        qualname = None if class_name is None else self.module.method(class_name, name)
        if qualname is None or self.overridden(class_name, name):
            callee = self.read_attribute(base, name, at.func)
            self.handed_on([base])
            return self.unknown_call(None, callee, args, at)
        return self.call_function(self.module.functions[qualname], args, at, base)

    def overridden(self, class_name: str | None, name: str) -> bool:
        """Whether a class of this file that derives from `class_name` has its own version of a method."""
        mine = self.module.method(class_name or "", name)
        return any(
            self.module.method(other, name) != mine
            for other in self.module.classes
            if other != class_name and class_name in self.module.lineage(other)
        )

    def call_super(self, name: str, args: Arguments, at: cst.Call) -> Node:
        scope = self.scope
        summary = self.module.classes.get(scope.class_name or "")
        base = None if summary is None or len(summary.bases) != 1 else summary.bases[0]
        qualname = None if base is None else self.module.method(base, name)
        if qualname is not None and scope.self_node is not None:
            return self.call_function(self.module.functions[qualname], args, at, scope.self_node)
        op = ops.resolve_call(base) if base in BASES and name == "__call__" and scope.self_node is not None else None
        if op is not None:
            return self.apply(op, f"{base}.{name}", args, at, {"path": "self", "super": True})
        if scope.self_node is not None and name != "__init__":
            self.handed_on([scope.self_node])
        return self.unknown_call(None if base is None else f"{base}.{name}", None, args, at)

    def call_instance(
        self, known: Node, path: str | None, callee: Node | None, args: Arguments, at: cst.CSTNode
    ) -> Node:
        """A call of what an attribute holds, as far as `__init__` says: a layer, an instance, or a function."""
        if known.op == "new":
            target = known.attrs["target"]
            op = ops.resolve_call(target)
            if op is not None and op.kind == "layer":
                return self.apply(op, f"{target}.__call__", args, at, {"path": path, "new": known})
            own = self.module.method(target, "__call__")
            node = self.unknown_call(own or f"{target}.__call__", callee, args, at)
            node.attrs = {**node.attrs, "path": path, "new": known}
            return node
        if known in self.closures:
            return self.call_closure(self.closures[known], args, at)
        if known.op == "function" and known.attrs["qualname"] in self.module.functions:
            return self.call_function(self.module.functions[known.attrs["qualname"]], args, at, None)
        if known.op == "global" and known.attrs["target"] is not None:
            return self.call_target(known.attrs["target"], args, at)
        node = self.unknown_call(None, callee, args, at)
        default = known.attrs.get("default") if known.op == "param" else None
        node.attrs = {**node.attrs, "path": path, "init": known, "default": default}
        return node

    # Helpers, lowered in place

    def call_closure(self, closure: Closure, args: Arguments, at: cst.CSTNode) -> Node:
        done = self.inline_closure(closure, args, at)
        return self.unknown_call(closure.qualname, None, args, at) if done is None else done

    def inline_closure(self, closure: Closure, args: Arguments, at: cst.CSTNode) -> Node | None:
        if closure.scope not in self.scopes:
            return None
        source = closure.scope.frame.source
        own = Own(closure.definition, closure.qualname, closure.scope.class_name, closure.scope, source)
        return self.inline(own, args, at, None)

    def call_function(self, summary: FunctionSummary, args: Arguments, at: cst.CSTNode, receiver: Node | None) -> Node:
        """A call of a function or method of this file."""
        if receiver is not None and summary.kind == "method":
            args = Arguments([receiver, *args.positional], args.keywords, args.starred)
        own = self.inlinable(summary)
        if own is not None:
            by_hand = receiver is None and summary.kind == "method" and args.positional
            done = self.inline(own, args, at, args.positional[0] if by_hand else receiver)
            if done is not None:
                return done
        return self.unknown_call(summary.qualname, None, args, at)

    def inlinable(self, summary: FunctionSummary) -> Own | None:
        if summary.redefined or summary.is_async or summary.is_generator or summary.span.outer is not None:
            return None
        if summary.kind not in ("function", "method", "staticmethod", "lambda"):
            return None
        plain = [d for d in summary.decorators if d not in ("builtins.staticmethod", "staticmethod")]
        info = self.module.compiled.get(summary.qualname)
        if plain or (info is not None and info.how != "called"):
            return None
        source = self.program.function(summary.qualname)
        return None if source is None else Own(source.node, summary.qualname, summary.class_name, None, source)

    def inline(self, own: Own, args: Arguments, at: cst.CSTNode, receiver: Node | None) -> Node | None:
        """The value of a call, with the callee's body lowered here; None where that can't be done."""
        if args.starred or self.scope.frame.depth >= DEEPEST or self.inlined > LARGEST:
            return None
        if any(s.definition is own.definition for s in self.scopes):
            return None
        if isinstance(own.definition, cst.FunctionDef) and own.outer is not None and own.definition.decorators:
            return None
        if self.program.scanned(runs_apart, own.definition):
            return None
        if own.definition in self.refused:
            return None
        args = Arguments(
            [self.attach(n) for n in args.positional], {k: self.attach(n) for k, n in args.keywords.items()}
        )
        taken, depth = self.checkpoint(), len(self.scopes)
        try:
            return self._run(own, args, at, receiver)
        except GiveUp as e:
            del self.scopes[depth:]
            self.take_back(taken)
            self.note(f"{own.qualname} is not inlined: {e}")
            self.refused.add(own.definition)
        return None

    def _run(self, own: Own, args: Arguments, at: cst.CSTNode, receiver: Node | None) -> Node:
        caller = self.scope
        frame = Frame(own.qualname, own.source, caller.frame, at, caller.statement)
        if self.program.scanned(rebinds_outer, own.definition):
            raise GiveUp("it rebinds names of other functions")
        scope = Scope(frame, own.definition, own.qualname, own.class_name, own.outer, Block("function", None, None))
        scope.self_node = receiver if receiver is not None else (own.outer.self_node if own.outer else None)
        self.scopes.append(scope)
        self.graph.frames.append(frame)
        self.bind_parameters(own.definition, args.positional, args.keywords)
        if isinstance(own.definition, cst.Lambda):
            result: Node | None = self.value(own.definition.body)
        else:
            falls = self.body(own.definition.body)
            result = self.constant(None) if falls else scope.result
        result = self.merge(scope.returns, result)
        if result is None:
            raise GiveUp("it never returns")
        self.scopes.pop()
        return result

    def bind_parameters(self, definition: Definition, given: list[Node], keywords: dict[str, Node]) -> None:
        p = definition.params
        env: dict[str, Node] = {}
        rest = list(given)
        for param in (*p.posonly_params, *p.params):
            if rest:
                env[param.name.value] = rest.pop(0)
        if isinstance(p.star_arg, cst.Param):
            env[p.star_arg.name.value] = self.emit("tuple", rest, {}, p.star_arg)
        elif rest:
            raise GiveUp("it gets more arguments than it has parameters")
        names = {q.name.value for q in (*p.params, *p.kwonly_params)}
        more: dict[str, Node] = {}
        for name, node in keywords.items():
            if name in env and name in names:
                raise GiveUp(f"it gets {name} twice")
            if name in names:
                env[name] = node
            elif p.star_kwarg is None:
                raise GiveUp(f"it has no parameter {name}")
            else:
                more[name] = node
        if p.star_kwarg is not None:
            env[p.star_kwarg.name.value] = self.emit("dict", list(more.values()), {"keys": tuple(more)}, p.star_kwarg)
        for param in parameters(definition):
            if param.name.value not in env:
                if param.default is None:
                    raise GiveUp(f"it lacks an argument for {param.name.value}")
                env[param.name.value] = self.value(param.default)
        self.scope.env = env

    def merge(self, returns: Sequence[Return], last: Node | None) -> Node | None:
        """The value of a function that returns early in some branches, and `last` at its end."""
        for r in reversed(returns):
            if last is None:
                last = r.value
            else:
                then, other = (r.value, last) if r.when else (last, r.value)
                last = self.phi(r.test, then, other, None)
        return last

    # Taking back what was lowered of a call

    def checkpoint(self) -> tuple[Any, ...]:
        g = self.graph
        return (
            len(g.nodes),
            len(g.effects),
            len(g.frames),
            dict(g.stored),
            {k: len(v) for k, v in g.bindings.items()},
            dict(self.heap),
            dict(self.versions),
            self.scope.statement,
            self.scope.count,
            (len(g.statements), len(g.returns), len(self.scope.returns), len(self.changed)),
            [(len(x.breaks), len(x.continues), len(x.changed)) for x in self.scope.loops],
            [dict(s.env) for s in self.scopes],
        )

    def take_back(self, taken: tuple[Any, ...]) -> None:
        g = self.graph
        nodes, effects, frames, g.stored, bindings, self.heap, self.versions, *rest = taken
        self.scope.statement, self.scope.count, (statements, returns, pending, objects), loops, envs = rest
        for scope, env in zip(self.scopes, envs, strict=True):
            scope.env = env
        del self.changed[objects:]
        del g.statements[statements:], g.returns[returns:], self.scope.returns[pending:], self.scope.loops[len(loops) :]
        for loop, (breaks, continues, changed) in zip(self.scope.loops, loops, strict=True):
            del loop.breaks[breaks:], loop.continues[continues:], loop.changed[changed:]
        gone = set(g.nodes[nodes:])
        self.leaked -= gone
        self.leaks = [n for n in self.leaks if n not in gone]
        self.recount()
        for n in gone:
            self.closures.pop(n, None)
        for users in self.joined.values():
            users[:] = [u for u in users if u not in gone]
        del g.nodes[nodes:], g.effects[effects:], g.frames[frames:]
        for name in list(g.bindings):
            del g.bindings[name][bindings.get(name, 0) :]
            if not g.bindings[name]:
                del g.bindings[name]

    # What expressions.py provides

    def argument(self, node: cst.BaseExpression) -> Node:
        raise NotImplementedError

    def spread(self, value: Node, at: cst.CSTNode) -> list[Node]:
        raise NotImplementedError

    def attribute_of(self, base: Node, name: str, at: cst.CSTNode) -> Node:
        raise NotImplementedError

    def truth(self, test: Node) -> bool | None:
        raise NotImplementedError

    def phi(self, test: Node, then: Node, other: Node, at: cst.CSTNode | None) -> Node:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Own:
    """A function of this file that may be lowered in place."""

    definition: Definition
    qualname: str
    class_name: str | None
    outer: Scope | None
    source: FunctionSource | None
