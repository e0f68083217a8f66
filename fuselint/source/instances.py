"""The objects that a model file makes for one configuration: which classes, how many of each, with which sizes.

The constructors are run on numbers, statement by statement, without importing the file: `args.hidden_size` is what the
configuration says, a loop over `range(args.num_hidden_layers)` goes round so often, and what can't be told is unknown
and spreads. Nothing of MLX is run: a layer of mlx.nn, or a class of another file, is unknown too.
"""

from __future__ import annotations

import ast
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fuselint.modelconfig import SECTION, ModelConfig, synonym

STEPS = 400_000
"""Expressions and statements to evaluate before giving up."""
DEPTH = 40
MANY = 4096
"""Rounds of one loop."""
CONFIGS = ("args", "config", "cfg", "configs", "dims", "params", "hparams", "model_args")
"""Names of parameters that hold the configuration where no annotation says so."""


class _Unknown:
    def __repr__(self) -> str:
        return "?"


UNKNOWN: Any = _Unknown()


class _GivenUp(Exception):
    """Beyond the budget."""


class _Raised(Exception):
    """The code raises: this way is not taken."""


@dataclass(eq=False)
class Config:
    """A configuration, or a part of it, as the file's own config class reads it."""

    data: Mapping[str, Any]
    class_name: str = ""
    fields: dict[str, Any] = field(default_factory=dict)  # defaults, and what __post_init__ sets

    def has(self, name: str) -> bool:
        return name in self.data or name in self.fields

    def get(self, name: str) -> Any:
        if name in self.fields and (name not in self.data or self.data[name] is None):
            return self.fields[name]
        if name in self.data:
            value = self.data[name]
            return Config(value) if isinstance(value, dict) and name.endswith(SECTION) else value
        return self._derived(name)

    def _derived(self, name: str) -> Any:
        """What configuration classes work out where the file doesn't say it."""
        heads, features = self.data.get("num_attention_heads"), self.data.get("hidden_size")
        if name == "num_key_value_heads" and isinstance(heads, int):
            return heads
        if name == "head_dim" and isinstance(heads, int) and isinstance(features, int):
            return features // heads
        same = synonym(self.data, name)
        return UNKNOWN if same is None else same


@dataclass(eq=False)
class Made:
    """An object of one of the file's classes. made: the objects that its constructor makes."""

    class_name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    local: dict[str, Any] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)

    def number(self, name: str) -> int | None:
        """A size by the name that the code gives it: `self.n_heads`, `args.hidden_size`, `dims`."""
        first, *rest = name.split(".")
        places: list[dict[str, Any]] = [self.arguments, self.local, self.attributes]
        if first == "self" and rest:
            first, *rest = rest
            places = [self.attributes]
        for place in places:
            if first in place:
                value = _walked(place[first], rest)
                if type(value) is int and value > 0:
                    return value
        return None


def _walked(value: Any, path: Sequence[str]) -> Any:
    for name in path:
        if isinstance(value, Config):
            value = value.get(name)
        elif isinstance(value, Made):
            value = value.attributes.get(name, UNKNOWN)
        else:
            return UNKNOWN
    return value


@dataclass(frozen=True)
class Instances:
    """Of one class: an object, and how many like it a model has."""

    of: Made
    count: int


Times = Callable[[Made, Made, int], int]
"""How often one call of a maker calls an object of which its constructor made so many."""


def as_often_as_made(maker: Made, child: Made, made: int) -> int:
    return made


def instances(tree: ast.Module, config: ModelConfig) -> dict[str, list[Instances]]:
    """By class, the objects of a model. Classes that no other constructs are models, one of each."""
    return Objects(tree, config).counted()


class Objects:
    """The objects of a model, and what expressions are in their methods. training: what MLX says of each."""

    def __init__(self, tree: ast.Module, config: ModelConfig, *, training: bool = False) -> None:
        self._run = _Run(tree, config, training)
        for name in self._run.roots():
            self._run.root(name)
        self.models = self._run.models

    def counted(self, times: Times = as_often_as_made) -> dict[str, list[Instances]]:
        """By class, the objects, each as often as a pass of the model calls it."""
        counts = Counter(self.models)
        out: dict[str, list[Instances]] = {}
        for made in _makers_first(self.models):
            for child, n in Counter(made.made).items():
                counts[child] += times(made, child, n) * counts[made]
            out.setdefault(made.class_name, []).append(Instances(made, counts[made]))
        return out

    def value(self, made: Made, text: str) -> Any:
        """What an expression is in a method of the object, or UNKNOWN."""
        try:
            expression = ast.parse(text.strip(), mode="eval").body
            self._run.steps = self._run.depth = 0
            return self._run.value(expression, {"self": made})
        except (_GivenUp, _Raised, SyntaxError, ValueError, RecursionError):
            return UNKNOWN

    def rounds(self, made: Made, text: str) -> int | None:
        """How many rounds a loop over the expression goes in a method of the object, where that is known."""
        try:
            expression = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return None
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.args:
            parts = expression.args if expression.func.id == "zip" else expression.args[:1]
            if expression.func.id in ("zip", "enumerate", "reversed", "list", "tuple"):
                known = [n for e in parts if (n := self.rounds(made, ast.unparse(e))) is not None]
                return min(known, default=None)
        value = self.value(made, text)
        return len(value) if isinstance(value, (list, tuple, range, dict, str)) else None


def _makers_first(models: Sequence[Made]) -> list[Made]:
    """All objects, each once, after those that made it."""
    seen: set[Made] = set()
    done: list[Made] = []
    stack = [(m, False) for m in models]
    while stack:
        made, visited = stack.pop()
        if visited:
            done.append(made)
        elif made not in seen:
            seen.add(made)
            stack.append((made, True))
            stack.extend((child, False) for child in made.made)
    return done[::-1]


# -- running -----------------------------------------------------------------------------------------------------------

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Eq: operator.eq,
    ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_BUILTINS: dict[str, Callable[..., Any]] = {
    "int": int, "float": float, "bool": bool, "len": len, "max": max, "min": min, "sum": sum, "round": round,
    "abs": abs, "range": range, "list": list, "tuple": tuple, "set": set, "sorted": sorted, "enumerate": enumerate,
    "zip": zip, "str": str, "any": any, "all": all, "reversed": reversed,
}  # fmt: skip
_PLAIN = (int, float, str, bool, type(None))


@dataclass(eq=False)
class _Run:
    tree: ast.Module
    config: ModelConfig
    training: bool = False
    models: list[Made] = field(default_factory=list)
    steps: int = 0
    depth: int = 0
    known: dict[Any, Made] = field(default_factory=dict)
    making: list[Made] = field(default_factory=list)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value

    @property
    def sections(self) -> dict[str, Any]:
        """The nested configurations, which any part may ask for."""
        return {k: v for k, v in self.config.data.items() if k.endswith(SECTION) and isinstance(v, dict)}

    # -- classes ------------------------------------------------------------------------------------------------------

    def roots(self) -> list[str]:
        """The classes with a call that no other class of the file constructs or derives from."""
        used = set()
        for name, c in self.classes.items():
            for node in ast.walk(c):
                if isinstance(node, ast.Name) and node.id in self.classes and node.id != name:
                    used.add(node.id)
        callable_ = [n for n in self.classes if self.method(n, "__call__") is not None and not self.is_config(n)]
        return [n for n in callable_ if n not in used]

    def is_config(self, name: str) -> bool:
        c = self.classes[name]
        return any("dataclass" in ast.unparse(d) for d in c.decorator_list)

    def bases(self, name: str) -> Iterator[str]:
        """The class and those of this file that it derives from, nearest first."""
        seen: list[str] = []
        queue = [name]
        while queue:
            at = queue.pop(0)
            if at in seen or at not in self.classes:
                continue
            seen.append(at)
            queue.extend(b.id for b in self.classes[at].bases if isinstance(b, ast.Name))
        return iter(seen)

    def method(self, name: str, method: str, after: str = "") -> tuple[str, ast.FunctionDef] | None:
        """A method and the class that has it; after: of the bases beyond that class."""
        found = not after
        for at in self.bases(name):
            if found:
                for node in self.classes[at].body:
                    if isinstance(node, ast.FunctionDef) and node.name == method:
                        return at, node
            found = found or at == after
        return None

    def root(self, name: str) -> None:
        """A model: its arguments are the configuration, or values of it by their names."""
        found = self.method(name, "__init__")
        given: dict[str, Any] = {}
        arguments = found[1].args if found is not None else None
        for a in [] if arguments is None else [*arguments.args[1:], *arguments.kwonlyargs]:
            annotation = "" if a.annotation is None else ast.unparse(a.annotation).strip("\"'")
            section = self.config.section(annotation.rsplit(".", 1)[-1])
            if annotation in self.classes and self.is_config(annotation):
                given[a.arg] = self.configured(annotation, section)
            elif a.arg in CONFIGS or annotation.endswith(("Config", "Args")):
                given[a.arg] = Config({**self.sections, **section}, annotation)
            elif type(self.config.main.get(a.arg)) in (int, float, bool, str):
                given[a.arg] = self.config.main[a.arg]
        try:
            self.models.append(self.make(name, [], given))
        except (_GivenUp, _Raised, RecursionError):
            self.making.clear()
            self.depth = 0

    def configured(self, name: str, data: Mapping[str, Any]) -> Config:
        """A dataclass of the file, filled."""
        made = Config(data, name)
        for at in reversed(list(self.bases(name))):
            for node in self.classes[at].body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    annotation = ast.unparse(node.annotation).strip("\"'")
                    value = data.get(node.target.id, self.sections.get(node.target.id))
                    if isinstance(value, dict) and annotation in self.classes and self.is_config(annotation):
                        made.fields[node.target.id] = self.configured(annotation, value)
                        made.data = {k: v for k, v in made.data.items() if k != node.target.id}
                    elif node.value is not None:
                        made.fields[node.target.id] = self.value(node.value, {})
        found = self.method(name, "__post_init__")
        if found is not None:
            with suppress(_Raised):
                self.body(found[1].body, {"self": made})
        return made

    def make(self, name: str, args: Sequence[Any], keywords: Mapping[str, Any]) -> Made:
        key = (name, tuple(map(_frozen, args)), tuple(sorted((k, _frozen(v)) for k, v in keywords.items())))
        made = self.known.get(key)
        if made is None:
            made = self.known[key] = Made(name)
            self.making.append(made)
            found = self.method(name, "__init__")
            if found is not None:
                self.construct(made, found[0], found[1], args, keywords)
            self.making.pop()
        if self.making and made not in self.making:
            self.making[-1].made.append(made)
        return made

    def construct(
        self, made: Made, owner: str, init: ast.FunctionDef, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        env = self.bound(init, [made, *args], keywords)
        env["__class__"] = owner
        made.arguments.update({k: v for k, v in env.items() if k not in ("self", "__class__")})
        self.call_body(init, env)
        for k, v in env.items():
            if k not in ("self", "__class__"):
                made.local[k] = v

    # -- calls --------------------------------------------------------------------------------------------------------

    def bound(self, f: ast.FunctionDef, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        names = [a.arg for a in [*f.args.posonlyargs, *f.args.args]]
        env: dict[str, Any] = dict.fromkeys([*names, *(a.arg for a in f.args.kwonlyargs)], UNKNOWN)
        defaults = dict(zip(names[len(names) - len(f.args.defaults) :], f.args.defaults, strict=True))
        kwonly = zip(f.args.kwonlyargs, f.args.kw_defaults, strict=True)
        defaults.update({a.arg: d for a, d in kwonly if d is not None})
        for n, d in defaults.items():
            env[n] = self.value(d, {})
        env.update(zip(names, args, strict=False))
        rest = {k: v for k, v in keywords.items() if k not in env}
        env.update({k: v for k, v in keywords.items() if k in env})
        if f.args.vararg is not None:
            env[f.args.vararg.arg] = list(args[len(names) :])
        if f.args.kwarg is not None:
            env[f.args.kwarg.arg] = rest
        return env

    def call_body(self, f: ast.FunctionDef, env: dict[str, Any]) -> Any:
        if self.depth >= DEPTH:
            return UNKNOWN
        self.depth += 1
        try:
            self.body(f.body, env)
        except _Returned as r:
            return r.value
        finally:
            self.depth -= 1
        return None

    # -- statements ---------------------------------------------------------------------------------------------------

    def body(self, statements: Sequence[ast.stmt], env: dict[str, Any]) -> None:
        for s in statements:
            self.spend()
            self.statement(s, env)

    def spend(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise _GivenUp

    def statement(self, s: ast.stmt, env: dict[str, Any]) -> None:
        if isinstance(s, ast.Assign):
            value = self.value(s.value, env)
            for target in s.targets:
                self.assign(target, value, env)
        elif isinstance(s, ast.AnnAssign) and s.value is not None:
            self.assign(s.target, self.value(s.value, env), env)
        elif isinstance(s, ast.AugAssign):
            value = self.operation(s.op, self.value(s.target, env), self.value(s.value, env))
            self.assign(s.target, value, env)
        elif isinstance(s, ast.Expr):
            self.value(s.value, env)
        elif isinstance(s, ast.Return):
            raise _Returned(None if s.value is None else self.value(s.value, env))
        elif isinstance(s, ast.Raise):
            raise _Raised
        elif isinstance(s, ast.If):
            self.branch(s, env)
        elif isinstance(s, ast.For):
            self.loop(s, env)
        elif isinstance(s, ast.Break):
            raise _Left
        elif isinstance(s, (ast.With, ast.Try)):
            self.body(s.body, env)
        elif isinstance(s, ast.FunctionDef):
            env[s.name] = _Closure(s, env)

    def branch(self, s: ast.If, env: dict[str, Any]) -> None:
        test = self.value(s.test, env)
        if test is UNKNOWN:
            before = dict(env)
            try:
                self.body(s.body, env)
            except _Raised:
                env.clear()
                env.update(before)
                self.body(s.orelse, env)
            return
        self.body(s.body if test else s.orelse, env)

    def loop(self, s: ast.For, env: dict[str, Any]) -> None:
        for value in self.rounds(self.value(s.iter, env)):
            self.assign(s.target, value, env)
            try:
                self.body(s.body, env)
            except _Left:
                break

    def rounds(self, values: Any) -> Iterator[Any]:
        """What a loop goes through; one round where that isn't known."""
        if isinstance(values, (list, tuple, set, range, dict, str)) or hasattr(values, "__next__"):
            for i, v in enumerate(values):
                if i >= MANY:
                    raise _GivenUp
                yield v
        else:
            yield UNKNOWN

    def assign(self, target: ast.expr, value: Any, env: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, env)
            if isinstance(owner, Made):
                owner.attributes[target.attr] = value
            elif isinstance(owner, Config):
                owner.fields[target.attr] = value
                owner.data = {k: v for k, v in owner.data.items() if k != target.attr}
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = list(value) if isinstance(value, (list, tuple)) else []
            fits = len(values) == len(target.elts) and not any(isinstance(t, ast.Starred) for t in target.elts)
            for i, t in enumerate(target.elts):
                self.assign(t.value if isinstance(t, ast.Starred) else t, values[i] if fits else UNKNOWN, env)

    # -- expressions --------------------------------------------------------------------------------------------------

    def value(self, e: ast.expr, env: dict[str, Any]) -> Any:
        self.spend()
        rule = _RULES.get(type(e))
        if rule is None or self.depth > DEPTH:
            return UNKNOWN
        self.depth += 1
        try:
            return rule(self, e, env)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
            return UNKNOWN
        finally:
            self.depth -= 1

    def operation(self, op: ast.operator | ast.cmpop, a: Any, b: Any) -> Any:
        rule = _OPERATORS.get(type(op))
        if rule is None or a is UNKNOWN or b is UNKNOWN:
            return UNKNOWN
        if isinstance(op, ast.Pow) and (not isinstance(b, (int, float)) or abs(b) > 64):
            return UNKNOWN
        if isinstance(op, (ast.Mult, ast.LShift)) and any(isinstance(x, (list, tuple, str)) for x in (a, b)):
            n = next((x for x in (a, b) if isinstance(x, int)), 0)
            if not 0 <= n <= MANY:
                return UNKNOWN
        try:
            return rule(a, b)
        except (TypeError, ValueError, ArithmeticError):
            return UNKNOWN

    def name(self, e: ast.Name, env: dict[str, Any]) -> Any:
        at: Any = env
        while isinstance(at, dict):
            if e.id in at:
                return at[e.id]
            at = at.get("__outer__")
        if e.id in self.constants:
            return self.value(self.constants[e.id], {})
        return UNKNOWN

    def attribute(self, e: ast.Attribute, env: dict[str, Any]) -> Any:
        owner = self.value(e.value, env)
        if isinstance(owner, Config):
            return owner.get(e.attr)
        if isinstance(owner, Made):
            return self.of_object(owner, e.attr)
        if isinstance(e.value, ast.Name) and e.value.id == "math" and hasattr(math, e.attr):
            constant = getattr(math, e.attr)
            return constant if isinstance(constant, float) else UNKNOWN
        return UNKNOWN

    def of_object(self, owner: Made, name: str) -> Any:
        if name in owner.attributes:
            return owner.attributes[name]
        found = self.method(owner.class_name, name)
        if found is not None and any(ast.unparse(d) == "property" for d in found[1].decorator_list):
            return self.call_body(found[1], {"self": owner})
        for at in self.bases(owner.class_name):
            for node in self.classes[at].body:
                if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                    return self.value(node.value, {})
        return self.training if name == "training" else UNKNOWN

    def call(self, e: ast.Call, env: dict[str, Any]) -> Any:
        args: list[Any] = []
        for a in e.args:
            value = self.value(a.value if isinstance(a, ast.Starred) else a, env)
            args.extend(value if isinstance(a, ast.Starred) and isinstance(value, (list, tuple)) else [value])
        keywords: dict[str, Any] = {}
        for k in e.keywords:
            value = self.value(k.value, env)
            if k.arg is not None:
                keywords[k.arg] = value
            elif isinstance(value, dict):
                keywords.update(value)
            elif isinstance(value, Config):
                keywords.update(value.data)
        if isinstance(e.func, ast.Name):
            return self.call_name(e.func.id, args, keywords, env)
        return self.call_attribute(e.func, args, keywords, env) if isinstance(e.func, ast.Attribute) else UNKNOWN

    def call_name(self, name: str, args: list[Any], keywords: dict[str, Any], env: dict[str, Any]) -> Any:
        held = self.name(ast.Name(name, ast.Load()), env)
        if isinstance(held, _Closure):
            return self.call_body(held.f, {**self.bound(held.f, args, keywords), "__outer__": held.env})
        if name in self.classes:
            if self.is_config(name):
                return self.configured(name, keywords)
            return self.make(name, args, keywords)
        if name in self.functions:
            f = self.functions[name]
            return self.call_body(f, self.bound(f, args, keywords))
        if name == "getattr" and len(args) > 1 and isinstance(args[1], str):
            return self.got(args)
        if name == "hasattr" and isinstance(args[0], Config):
            return args[0].has(args[1])
        if name in _BUILTINS and UNKNOWN not in args and not keywords:
            return _BUILTINS[name](*args)
        return UNKNOWN

    def got(self, args: list[Any]) -> Any:
        owner, name, *default = args
        if isinstance(owner, Config):
            return owner.get(name) if owner.has(name) or not default else default[0]
        if isinstance(owner, Made):
            found = self.of_object(owner, name)
            return default[0] if found is UNKNOWN and default else found
        return UNKNOWN

    def call_attribute(self, f: ast.Attribute, args: list[Any], keywords: dict[str, Any], env: dict[str, Any]) -> Any:
        if isinstance(f.value, ast.Call) and isinstance(f.value.func, ast.Name) and f.value.func.id == "super":
            return self.call_super(f.attr, args, keywords, env)
        if isinstance(f.value, ast.Name) and f.value.id in self.classes and self.is_config(f.value.id):
            data = args[0] if args else keywords  # from_dict, or another constructor of the kind
            found = data.data if isinstance(data, Config) else data
            return self.configured(f.value.id, found) if isinstance(found, dict) else UNKNOWN
        if isinstance(f.value, ast.Name) and f.value.id == "math" and UNKNOWN not in args:
            return getattr(math, f.attr)(*args)
        owner = self.value(f.value, env)
        if isinstance(owner, Made):
            found_method = self.method(owner.class_name, f.attr)
            if found_method is not None:
                static = any(ast.unparse(d) == "staticmethod" for d in found_method[1].decorator_list)
                bound = self.bound(found_method[1], args if static else [owner, *args], keywords)
                return self.call_body(found_method[1], {**bound, "__class__": found_method[0]})
        if isinstance(owner, list) and f.attr in ("append", "extend", "insert", "index", "count"):
            return getattr(owner, f.attr)(*args)
        if isinstance(owner, dict) and f.attr in ("get", "items", "keys", "values"):
            result = getattr(owner, f.attr)(*args)
            return result if f.attr == "get" else list(result)
        if isinstance(owner, Config) and f.attr == "get" and args:
            return self.got([owner, *args])
        if isinstance(owner, str) and f.attr in ("startswith", "endswith", "lower", "upper", "split", "strip"):
            return getattr(owner, f.attr)(*args)
        return UNKNOWN

    def call_super(self, name: str, args: list[Any], keywords: dict[str, Any], env: dict[str, Any]) -> Any:
        owner = env.get("self")
        if not isinstance(owner, Made):
            return UNKNOWN
        found = self.method(owner.class_name, name, after=str(env.get("__class__", "")))
        if found is None:
            return None
        bound = self.bound(found[1], [owner, *args], keywords)
        bound["__class__"] = found[0]
        result = self.call_body(found[1], bound)
        owner.local.update({k: v for k, v in bound.items() if k not in ("self", "__class__")})
        return result

    def comprehension(self, e: ast.ListComp | ast.GeneratorExp | ast.SetComp, env: dict[str, Any]) -> Any:
        out: list[Any] = []
        self._generate(e.generators, e.elt, {**env, "__outer__": env.get("__outer__")}, out)
        return out

    def dict_comprehension(self, e: ast.DictComp, env: dict[str, Any]) -> Any:
        pairs: list[Any] = []
        pair = ast.Tuple([e.key, e.value], ast.Load())
        self._generate(e.generators, pair, {**env, "__outer__": env.get("__outer__")}, pairs)
        return dict(pairs)

    def _generate(
        self, generators: Sequence[ast.comprehension], element: ast.expr, env: dict[str, Any], out: list[Any]
    ) -> None:
        if not generators:
            out.append(self.value(element, env))
            return
        first, *rest = generators
        for value in self.rounds(self.value(first.iter, env)):
            self.assign(first.target, value, env)
            if all(self.value(test, env) is UNKNOWN or self.value(test, env) for test in first.ifs):
                self._generate(rest, element, env, out)

    def condition(self, e: ast.BoolOp, env: dict[str, Any]) -> Any:
        last: Any = UNKNOWN
        for part in e.values:
            last = self.value(part, env)
            if last is UNKNOWN or bool(last) is isinstance(e.op, ast.Or):
                return last
        return last

    def comparison(self, e: ast.Compare, env: dict[str, Any]) -> Any:
        left = self.value(e.left, env)
        for op, right_ in zip(e.ops, e.comparators, strict=True):
            right = self.value(right_, env)
            result = self.operation(op, left, right)
            if result is UNKNOWN or not result:
                return result
            left = right
        return True

    def choice(self, e: ast.IfExp, env: dict[str, Any]) -> Any:
        test = self.value(e.test, env)
        if test is UNKNOWN:
            return UNKNOWN
        return self.value(e.body if test else e.orelse, env)

    def subscript(self, e: ast.Subscript, env: dict[str, Any]) -> Any:
        owner = self.value(e.value, env)
        if isinstance(e.slice, ast.Slice):
            bounds = [None if b is None else self.value(b, env) for b in (e.slice.lower, e.slice.upper, e.slice.step)]
            known = UNKNOWN not in bounds and isinstance(owner, (list, tuple, str, range))
            return owner[slice(*bounds)] if known else UNKNOWN
        key = self.value(e.slice, env)
        if isinstance(owner, Config) and isinstance(key, str):
            return owner.get(key)
        known = key is not UNKNOWN and isinstance(owner, (list, tuple, dict, str, range))
        return owner[key] if known else UNKNOWN

    def named(self, e: ast.NamedExpr, env: dict[str, Any]) -> Any:
        value = self.value(e.value, env)
        self.assign(e.target, value, env)
        return value

    def unary(self, e: ast.UnaryOp, env: dict[str, Any]) -> Any:
        value = self.value(e.operand, env)
        if value is UNKNOWN:
            return UNKNOWN
        return not value if isinstance(e.op, ast.Not) else -value if isinstance(e.op, ast.USub) else value

    def dictionary(self, e: ast.Dict, env: dict[str, Any]) -> Any:
        out: dict[Any, Any] = {}
        for k, v in zip(e.keys, e.values, strict=True):
            value = self.value(v, env)
            if k is None:
                out.update(value if isinstance(value, dict) else {})
            else:
                out[self.value(k, env)] = value
        return out

    def sequence(self, e: ast.List | ast.Tuple, env: dict[str, Any]) -> Any:
        out: list[Any] = []
        for x in e.elts:
            value = self.value(x.value if isinstance(x, ast.Starred) else x, env)
            out.extend(value if isinstance(x, ast.Starred) and isinstance(value, (list, tuple)) else [value])
        return out if isinstance(e, ast.List) else tuple(out)


@dataclass(eq=False)
class _Closure:
    f: ast.FunctionDef
    env: dict[str, Any]


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _Left(Exception):
    """A `break`."""


def _frozen(value: Any) -> Any:
    """A value as a key: equal for what constructs equal objects."""
    if isinstance(value, _PLAIN):
        return (type(value).__name__, value)
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    return ("?",) if value is UNKNOWN else ("object", id(value))


_RULES: dict[type, Callable[[_Run, Any, dict[str, Any]], Any]] = {
    ast.Constant: lambda run, e, env: e.value,
    ast.Name: _Run.name,
    ast.Attribute: _Run.attribute,
    ast.Call: _Run.call,
    ast.BinOp: lambda run, e, env: run.operation(e.op, run.value(e.left, env), run.value(e.right, env)),
    ast.UnaryOp: _Run.unary,
    ast.BoolOp: _Run.condition,
    ast.Compare: _Run.comparison,
    ast.IfExp: _Run.choice,
    ast.Subscript: _Run.subscript,
    ast.List: _Run.sequence,
    ast.Tuple: _Run.sequence,
    ast.Dict: _Run.dictionary,
    ast.ListComp: _Run.comprehension,
    ast.GeneratorExp: _Run.comprehension,
    ast.SetComp: _Run.comprehension,
    ast.DictComp: _Run.dict_comprehension,
    ast.Starred: lambda run, e, env: run.value(e.value, env),
    ast.NamedExpr: _Run.named,
}
