"""From the scopes of a module to its summary: what each name stands for."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from fuselint.source.project import (
    MISSING,
    ClassSummary,
    ConstantArray,
    Field,
    FunctionSummary,
    ModuleSummary,
    Parameter,
    is_wanted,
    normalise,
)
from fuselint.source.scopes import Binding, Scope, Scopes, dotted, scopes
from fuselint.source.spans import functions
from fuselint.source.text import FileText
from fuselint.source.usage import compiles, usage

_KIND_BY_DECORATOR = {
    "staticmethod": "staticmethod",
    "classmethod": "classmethod",
    "property": "property",
    "functools.cached_property": "property",
}
_LARGEST_POWER = 64


def scoped(file: FileText, tree: ast.Module) -> Scopes:
    """The scopes of a file, its global names where they belong."""
    known = scopes(tree, functions(file, tree))
    _declare_globals(known)
    return known


def summary(path: str, known: Scopes) -> ModuleSummary:
    module = _names(path, known)
    module = replace(module, functions=_functions(known, module))
    module = replace(module, classes=_classes(known, module))
    module = replace(module, classes=_attributes(known, module))
    return usage(known, module)


def _declare_globals(known: Scopes) -> None:
    """A name declared `global` or `nonlocal` is bound where it belongs, not where it is assigned."""
    by_name = {s.qualname: s for s in known.functions}
    for scope in known.functions:
        for name in scope.globals:
            if scope.bindings.pop(name, None):
                known.module.bind(name, "value")
                outer = scope.span.outer if scope.span else None
                while outer is not None:
                    around = by_name[outer]
                    if name in around.bindings:
                        around.bind(name, "value")
                    outer = around.span.outer if around.span else None


def _clear_import(bindings: list[Binding]) -> str | None:
    """What an imported name stands for. `try: import a except ImportError: a = None` still stands for a."""
    targets = {what for how, what in bindings if how == "import"}
    stores = sum(how == "value" for how, _ in bindings)
    nones = sum(how == "is" and isinstance(what, ast.Constant) and what.value is None for how, what in bindings)
    others = sum(how in ("def", "class", "inner") for how, _ in bindings)
    return targets.pop() if len(targets) == 1 and stores == nones and not others else None


def _single_value(bindings: list[Binding]) -> ast.expr | None:
    """The expression of a name that is bound once, by `name = expression`."""
    if sorted(how for how, _ in bindings) != ["is", "value"]:
        return None
    value: ast.expr = next(what for how, what in bindings if how == "is")
    return value


def _compiles_itself(name: str, bindings: list[Binding]) -> bool:
    """`def f(x): ...` and then `f = mx.compile(f)`: still that function."""
    if sorted(how for how, _ in bindings) not in (["def", "is", "value"], ["is", "is", "value", "value"]):
        return False
    return any(how == "is" and compiles(what, name) for how, what in bindings)


def _one_definition(name: str, bindings: list[Binding]) -> bool:
    """Whether a name is one function or class, and nothing else at any time."""
    hows = [how for how, _ in bindings]
    return hows in (["def"], ["class"]) or _compiles_itself(name, bindings)


def _names(path: str, known: Scopes) -> ModuleSummary:
    """The module-level names."""
    imports: dict[str, str] = {}
    unclear: set[str] = set()
    values: dict[str, ast.expr] = {}
    for name, bindings in known.module.bindings.items():
        target = _clear_import(bindings)
        value = _single_value(bindings)
        if target is not None:
            imports[name] = normalise(target)
        elif value is not None and not isinstance(value, ast.Lambda):
            values[name] = value
        elif len(bindings) > 1 and value is None and not _compiles_itself(name, bindings):
            unclear.add(name)
    constants: dict[str, Any] = {}
    arrays: dict[str, ConstantArray] = {}
    lines: dict[str, int] = {}
    for name, value in values.items():  # in source order, so a later one may use an earlier one
        text = dotted(value)
        head = text.partition(".")[0] if text else ""
        if text and head in imports:
            imports[name] = normalise(imports[head] + text[len(head) :])
        elif (literal := evaluate(value, imports, constants)) is not MISSING:
            constants[name], lines[name] = literal, value.lineno
        elif (array := _array(value, imports, constants)) is not None:
            arrays[name], lines[name] = array, value.lineno
    return ModuleSummary(
        path=path,
        imports=imports,
        constants=constants,
        arrays=arrays,
        bound=frozenset(known.module.bindings),
        unclear=frozenset(unclear),
        stars=tuple(known.module.stars),
        exported=_exported(values.get("__all__")),
        lines=lines,
        attribute_reads=dict(known.attribute_reads),
        names=dict(known.names),
        function_imports={
            s.qualname: found
            for s in known.functions
            if (found := {n: normalise(t) for n, b in s.bindings.items() if (t := _clear_import(b)) is not None})
        },
    )


def _exported(value: ast.expr | None) -> tuple[str, ...] | None:
    """The names of a literal `__all__`."""
    if not isinstance(value, (ast.List, ast.Tuple)):
        return None
    names = tuple(e.value for e in value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str))
    return names if len(names) == len(value.elts) else None


def _functions(known: Scopes, module: ModuleSummary) -> dict[str, FunctionSummary]:
    bare: dict[str, FunctionSummary] = {}
    for scope in known.functions:
        assert scope.span is not None
        clear = module.function_imports.get(scope.qualname, {})
        local = frozenset(n for n, b in scope.bindings.items() if n not in clear and not _one_definition(n, b))
        redefined = scope.qualname in bare
        bare[scope.qualname] = FunctionSummary(scope.span, "function", local=local, redefined=redefined)
    with_scopes = replace(module, functions=bare)
    out = {}
    for scope in known.functions:
        found = bare[scope.qualname]
        if found.span is scope.span:
            out[scope.qualname] = _function(scope, found, with_scopes)
    return out


def _function(scope: Scope, found: FunctionSummary, module: ModuleSummary) -> FunctionSummary:
    node, span = scope.node, scope.span
    assert node is not None and span is not None and not isinstance(node, ast.Module)
    around = span.outer or ""
    decorators = (
        () if isinstance(node, ast.Lambda) else tuple(_decorator(d, module, around) for d in node.decorator_list)
    )
    kind = "lambda" if span.is_lambda else ("method" if span.class_name else "function")
    for name in decorators:
        kind = _KIND_BY_DECORATOR.get(name, kind) if span.class_name else kind
    returns = None if isinstance(node, ast.Lambda) or node.returns is None else annotation(node.returns, module, around)
    return replace(
        found,
        kind=kind,
        parameters=tuple(_parameters(node.args, module, around)),
        decorators=decorators,
        returns=returns,
        is_async=isinstance(node, ast.AsyncFunctionDef),
        is_generator=scope.yields,
    )


def _decorator(node: ast.expr, module: ModuleSummary, scope: str) -> str:
    at = node
    while isinstance(at, ast.Call):
        at = at.func
    name = dotted(at)
    return (module.resolve(name, scope) or name) if name else ""


def _parameters(args: ast.arguments, module: ModuleSummary, scope: str) -> Iterator[Parameter]:
    def make(arg: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
        text = None if arg.annotation is None else annotation(arg.annotation, module, scope)
        value = MISSING if default is None else evaluate(default, module.imports, module.constants)
        return Parameter(arg.arg, kind, text, value, default is not None)

    ordered = [(a, "positional") for a in args.posonlyargs] + [(a, "plain") for a in args.args]
    defaults: list[ast.expr | None] = [*([None] * (len(ordered) - len(args.defaults))), *args.defaults]
    for (arg, kind), default in zip(ordered, defaults, strict=True):
        yield make(arg, kind, default)
    if args.vararg:
        yield make(args.vararg, "*", None)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield make(arg, "keyword", default)
    if args.kwarg:
        yield make(args.kwarg, "**", None)


def annotation(node: ast.expr, module: ModuleSummary, scope: str) -> str:
    """An annotation as text, with every dotted name qualified: `Optional[mx.array]` is "Optional[mlx.core.array]"."""
    try:
        return _annotation(node, module, scope)
    except RecursionError:
        return ""


def _annotation(node: ast.expr, module: ModuleSummary, scope: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
        try:
            node = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    name = dotted(node)
    if name is not None:
        return module.resolve(name, scope) or name
    if isinstance(node, ast.Subscript):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return f"{_annotation(node.value, module, scope)}[{', '.join(_annotation(e, module, scope) for e in inner)}]"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return f"{_annotation(node.left, module, scope)} | {_annotation(node.right, module, scope)}"
    return ast.unparse(node)


def _classes(known: Scopes, module: ModuleSummary) -> dict[str, ClassSummary]:
    out: dict[str, ClassSummary] = {}
    for qualname, node, _ in known.classes:
        out[qualname] = ClassSummary(qualname, node.lineno)  # so that bases can resolve to classes of this file
    with_names = replace(module, classes=out)
    done: dict[str, ClassSummary] = {}
    for qualname, node, outer in known.classes:
        done[qualname] = _class(qualname, node, outer or "", with_names)
    linked = replace(module, classes=done)
    return {q: replace(c, is_module=any(_is_layer(b) for b in linked.lineage(q))) for q, c in done.items()}


def _is_layer(qualified: str) -> bool:
    """Whether a qualified name is nn.Module or one of MLX's layers, which all are Modules."""
    parts = qualified.split(".")
    return qualified.startswith("mlx.nn.") and len(parts) == 3 and parts[2][:1].isupper()


def _class(qualname: str, node: ast.ClassDef, outer: str, module: ModuleSummary) -> ClassSummary:
    bases = []
    for base in node.bases:
        name = dotted(base.value if isinstance(base, ast.Subscript) else base)
        bases.append((module.resolve(name, outer) or name) if name else "")
    methods: dict[str, str] = {}
    fields: dict[str, Field] = {}
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            methods[statement.name] = f"{qualname}.{statement.name}"
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = annotation(statement.annotation, module, outer)
            value = MISSING if statement.value is None else _field_default(statement.value, module)
            made = _factory(statement.value, module, outer)
            dtype = _dtype(statement.value, module.imports)
            fields[statement.target.id] = Field(text, value, statement.lineno, made, dtype)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name):
                if isinstance(statement.value, ast.Name) and statement.value.id in methods:
                    methods[target.id] = methods[statement.value.id]
                elif isinstance(statement.value, ast.Lambda):
                    methods[target.id] = f"{qualname}.{target.id}"
                else:
                    value = evaluate(statement.value, module.imports, module.constants)
                    dtype = _dtype(statement.value, module.imports)
                    fields[target.id] = Field(None, value, statement.lineno, dtype=dtype)
    decorators = [_decorator(d, module, outer) for d in node.decorator_list]
    return ClassSummary(
        qualname,
        node.lineno,
        tuple(bases),
        methods,
        fields,
        is_dataclass=any(d.rpartition(".")[2] == "dataclass" for d in decorators),
    )


def _field_default(node: ast.expr, module: ModuleSummary) -> Any:
    if isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] in ("field", "Field"):
        for keyword in node.keywords:
            if keyword.arg == "default":
                node = keyword.value
            elif keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                made = keyword.value.body
                if isinstance(made, (ast.List, ast.Tuple)):  # a list of numbers is read as a tuple is
                    node = ast.Tuple(made.elts, ast.Load())
    return evaluate(node, module.imports, module.constants)


def _dtype(node: ast.expr | None, imports: Mapping[str, str]) -> str:
    """The dtype of MLX that an expression may name."""
    owner, _, name = ("" if node is None else _target(node, imports)).rpartition(".")
    return name if owner == "mlx.core" else ""


def _factory(node: ast.expr | None, module: ModuleSummary, outer: str) -> str:
    """The class of which a field's default is a new instance: `field(default_factory=C)`, `lambda: C()` or `C()`."""
    if isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] in ("field", "Field"):
        node = next((k.value for k in node.keywords if k.arg == "default_factory"), None)
        node = node.body.func if isinstance(node, ast.Lambda) and _is_bare_call(node.body) else node
    elif _is_bare_call(node):
        node = node.func
    name = None if node is None else dotted(node)
    return (module.resolve(name, outer) or "") if name else ""


def _is_bare_call(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and not node.args and not node.keywords


def _attributes(known: Scopes, module: ModuleSummary) -> dict[str, ClassSummary]:
    """Fill in which class each attribute of `self` is an instance of, from `__init__`, and which change later."""
    found: dict[str, dict[str, str]] = {}
    later: dict[str, set[str]] = {}
    for scope in known.functions:
        span = scope.span
        if span is None or span.class_name is None:
            continue
        parameters = module.functions[scope.qualname].parameters
        this = parameters[0].name if parameters else ""
        if not scope.qualname.endswith(".__init__"):
            if not scope.qualname.endswith(".__post_init__"):
                own = {t.attr for t in scope.assigned if dotted(t.value) == this}
                later.setdefault(span.class_name, set()).update(own)
            continue
        attributes = found.setdefault(span.class_name, {})
        for target, value in scope.stores:
            if dotted(target.value) == this:
                made = "" if value is None else _made(value, module, scope.qualname)
                attributes[target.attr] = made if attributes.get(target.attr, made) == made else ""
    return {
        q: replace(
            c,
            attributes={n: made for n, made in found.get(q, {}).items() if made},
            reassigned=frozenset(later.get(q, ())),
        )
        for q, c in module.classes.items()
    }


def _made(value: ast.expr, module: ModuleSummary, scope: str) -> str:
    """The class that an expression makes an instance of, "" if that isn't plain."""
    if isinstance(value, (ast.List, ast.Tuple)):
        made = {_made(e, module, scope) for e in value.elts}
        return f"{only}[]" if len(made) == 1 and (only := made.pop()) else ""
    if isinstance(value, ast.ListComp):
        only = _made(value.elt, module, scope)
        return f"{only}[]" if only else ""
    if isinstance(value, ast.DictComp):
        only = _made(value.value, module, scope)
        return f"{only}[]" if only else ""
    if not isinstance(value, ast.Call):
        return ""
    name = dotted(value.func)
    target = module.resolve(name, scope) if name else None
    return target if target and (target in module.classes or target.rpartition(".")[2][:1].isupper()) else ""


def evaluate(node: ast.expr, imports: Mapping[str, str], constants: Mapping[str, Any]) -> Any:
    """The value of an expression of literals, earlier constants and `math`, or MISSING."""
    try:
        return _evaluate(node, imports, constants)
    except RecursionError:
        return MISSING


def _evaluate(node: ast.expr, imports: Mapping[str, str], constants: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return MISSING if isinstance(node.value, int) and not is_wanted(node.value) else node.value
    if isinstance(node, ast.Tuple):
        values = [_evaluate(e, imports, constants) for e in node.elts]
        return MISSING if any(v is MISSING for v in values) else tuple(values)
    if isinstance(node, ast.UnaryOp):
        return _apply(type(node.op), _evaluate(node.operand, imports, constants))
    if isinstance(node, ast.BinOp):
        left = _evaluate(node.left, imports, constants)
        return MISSING if left is MISSING else _apply(type(node.op), left, _evaluate(node.right, imports, constants))
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    name = dotted(node.func if isinstance(node, ast.Call) else node)
    if name is None:
        return MISSING
    head, _, rest = name.partition(".")
    target = imports.get(head, head if head in ("float", "int") else "")
    target += f".{rest}" if rest else ""
    if isinstance(node, ast.Call):
        values = [_evaluate(a, imports, constants) for a in node.args]
        if node.keywords or not values or any(not isinstance(v, (int, float, str)) for v in values):
            return MISSING
        return _call(target, values)
    return getattr(math, target[5:], MISSING) if target in ("math.pi", "math.e", "math.inf", "math.tau") else MISSING


def _array(node: ast.expr, imports: Mapping[str, str], constants: Mapping[str, Any]) -> ConstantArray | None:
    """`mx.array(0.5, mx.float32)`: an array of literals."""
    if not isinstance(node, ast.Call) or _target(node.func, imports) != "mlx.core.array" or not node.args:
        return None
    stated = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "dtype")]
    if len(stated) > 1 or len(node.args) + len(node.keywords) != 1 + len(stated):
        return None
    try:
        found = _nested(node.args[0], imports, constants)
    except RecursionError:
        return None
    if found is None or not stated:
        return found
    dtype = _dtype(stated[0], imports)
    return ConstantArray(found.shape, dtype) if dtype else None


def _nested(node: ast.expr, imports: Mapping[str, str], constants: Mapping[str, Any]) -> ConstantArray | None:
    """What an array is made of: a number, or as many alike."""
    if isinstance(node, (ast.List, ast.Tuple)):
        inner = [_nested(e, imports, constants) for e in node.elts]
        first = inner[0] if inner else None
        if first is None or any(i is None or i.shape != first.shape for i in inner):
            return None
        found = {i.dtype for i in inner if i is not None}
        widest = next((d for d in ("float32", "int32") if d in found), "bool_")
        return ConstantArray((len(inner), *first.shape), widest)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        found_of = _nested(node.operand, imports, constants)
        return found_of if found_of is None or found_of.dtype != "bool_" else ConstantArray((), "int32")
    if _target(node, imports) in _MLX_NUMBERS:
        return ConstantArray((), "float32")
    value = evaluate(node, imports, constants)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**31:
        return None  # it takes a wider one
    dtype = _DTYPES.get(type(value))
    return None if dtype is None else ConstantArray((), dtype)


def _target(node: ast.expr, imports: Mapping[str, str]) -> str:
    """The qualified name of a dotted name that begins with an import."""
    head, dot, rest = (dotted(node) or "").partition(".")
    return normalise(imports[head] + dot + rest) if head in imports else ""


_DTYPES: dict[type, str] = {bool: "bool_", int: "int32", float: "float32"}
_MLX_NUMBERS = frozenset({"mlx.core.inf", "mlx.core.nan", "mlx.core.pi", "mlx.core.e"})

_FUNCTIONS: dict[str, Any] = {
    "float": float,
    "int": int,
    "math.sqrt": math.sqrt,
    "math.log": math.log,
    "math.log2": math.log2,
    "math.exp": math.exp,
    "math.pow": math.pow,
}
_OPERATORS: dict[type, Any] = {
    ast.UAdd: lambda a: +a,
    ast.USub: lambda a: -a,
    ast.Not: lambda a: not a,
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
    ast.LShift: lambda a, b: a << b,
}


def _call(target: str, values: list[Any]) -> Any:
    function = _FUNCTIONS.get(target)
    try:
        value = MISSING if function is None else function(*values)
    except (ValueError, TypeError, OverflowError):
        return MISSING
    return value if is_wanted(value) else MISSING


def _apply(operator: type, *values: Any) -> Any:
    function = _OPERATORS.get(operator)
    if function is None or any(not isinstance(v, (int, float)) for v in values):
        return MISSING
    if operator in (ast.Pow, ast.LShift) and abs(values[1]) > _LARGEST_POWER:
        return MISSING  # a number too long to want
    try:
        value = function(*values)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):  # a float has no bits to shift
        return MISSING
    return value if is_wanted(value) else MISSING
