"""Which functions are not on the hot path: they run once, when a model is built, loaded or converted.

A name alone proves nothing (a `load` may be a load of data at every step): what a function does decides, and its
name only where that is not enough.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath

from fuselint.source.project import MODULE, ModuleSummary, Parameter
from fuselint.source.scopes import Scope, Scopes, dotted, text_of

ONCE = frozenset(["__init__", "__post_init__", "__new__", "__init_subclass__", "__set_name__", "__setstate__"])
"""Methods that Python calls once an object."""

CACHED = frozenset(["functools.cache", "functools.lru_cache", "functools.cached_property"])

LOADERS = frozenset(["mlx.core.load", "mlx.nn.quantize", "safetensors.safe_open", "torch.load"])
LOADS = frozenset(["load_weights", "load_state_dict", "load_file", "from_pretrained"])
"""Methods, by name: their objects are rarely known."""

REPLACES = "update_modules"
"""The method of MLX's modules that puts others in their place, as quantizing or merging adapters does."""

LOADING_NAME = re.compile(
    r"(?:^|_)(?:load|convert|quantize|dequantize|init|initialize|setup|build|make|create|from|restore|read|import|export"
    r"|save|sanitize|remap|prepare|ensure|get|fetch|upload|fuse)(?:_|$|ed|er)"
)
WEIGHT_NAME = re.compile(
    r"\.|weight|bias|scale|norm|conv|embed|layer|proj|attn|attention|head|expert|rotary|freq|model|lora|block|mlp|vision"
    r"|encoder|decoder|position|kernel|gate|router"
)
"""What is looked for in the names of weights, other than in those of metrics and options."""

TEXT_METHODS = frozenset(
    "startswith endswith replace split rsplit partition rpartition removeprefix removesuffix strip lstrip".split()
)


def cold(
    known: Scopes,
    module: ModuleSummary,
    calls: Mapping[str, Sequence[str]],
    references: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Why each function is cold, by qualname; MODULE stands for module-level code."""
    out = {MODULE: "module-level code"}
    loading: set[str] = set()
    for scope in known.functions:
        reason = _reason(scope, module)
        if reason:
            out[scope.qualname] = reason
            if reason == _LOADING:
                loading.add(scope.qualname)
    _spread(out, loading, calls, _users(calls), references)
    return out


_LOADING = "weight loading"
_REPLACING = "replaces modules of a model"
_BY_CALLERS = "called only"


def overridden(module: ModuleSummary, hot: Sequence[str], cold: Sequence[str]) -> ModuleSummary:
    """The summary with what a user says of its functions, by patterns of qualified names: `Model.build*`, `sanitize`.

    hot goes before cold. What only cold functions call follows them, as ever.
    """
    if not hot and not cold:
        return module
    stated = {q: "" for q in module.functions if _named(q, hot)}
    stated = {**{q: "a setting" for q in module.functions if _named(q, cold)}, **stated}
    found = {q: why for q, why in module.cold.items() if not why.startswith(_BY_CALLERS)}
    out = {q: why for q, why in {**found, **stated}.items() if why}
    loading = {q for q, why in out.items() if why == _LOADING}
    _spread(out, loading, module.calls, _users(module.calls), module.references, stated)
    return replace(module, cold=out, hot=frozenset(q for q, why in stated.items() if not why))


def _named(qualname: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(qualname, p) or fnmatchcase(qualname, f"*.{p}") for p in patterns)


def _users(calls: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    users: dict[str, set[str]] = {}
    for caller, targets in calls.items():
        for target in targets:
            users.setdefault(target, set()).add(caller)
    return users


def _spread(
    out: dict[str, str],
    loading: set[str],
    calls: Mapping[str, Sequence[str]],
    users: Mapping[str, set[str]],
    references: Mapping[str, Sequence[str]],
    stated: Container[str] = (),
) -> None:
    """What only cold functions call is cold, unless it is handed on as a value. Whoever loads weights may also run
    them, so that spreads nothing; neither does module-level code, where `main()` stands. What a function that replaces
    modules hands on of its own runs while it does so."""
    waiting = [q for q in out if q != MODULE and q not in loading]
    pending = {q: len(callers - {q}) for q, callers in users.items()}
    named_by: dict[str, set[str]] = {}
    for by, targets in references.items():
        for target in targets:
            named_by.setdefault(target, set()).add(by)
    replacing = {q for q, why in out.items() if why == _REPLACING}

    def is_cold(qualname: str, at: str) -> bool:
        own = at in replacing and qualname.startswith(f"{at}.<locals>.")
        return (
            not pending.get(qualname)
            and qualname not in out
            and qualname not in stated
            and named_by.get(qualname, set()) <= ({at} if own else set())
        )

    while waiting:
        at = waiting.pop()
        called = set(calls.get(at, ())) - {at}
        for qualname in called:
            pending[qualname] -= 1
        for qualname in sorted(called | set(references.get(at, ()) if at in replacing else ())):
            if is_cold(qualname, at):
                reason = out[at]
                out[qualname] = reason if reason.startswith(_BY_CALLERS) else f"{_BY_CALLERS} from {_short(at)}"
                replacing |= {qualname} if at in replacing else set()
                waiting.append(qualname)


def _short(qualname: str) -> str:
    return qualname.rpartition(".")[2]


def _reason(scope: Scope, module: ModuleSummary) -> str:
    function = module.functions[scope.qualname]
    name = _short(scope.qualname)
    if function.class_name is not None and name in ONCE:
        return name
    if name.startswith("test") and _is_test(function.class_name, module):
        return "a test"
    if any(d in CACHED for d in function.decorators):
        return "cached: computed once for the same arguments"
    if name != "__call__" and _renames_weights(scope, function.parameters):
        return "sanitize" if name == "sanitize" else "weight conversion"
    if _builds_layer(scope, module):
        return "builds a layer from another"
    if name != "__call__" and any(_method(call) == REPLACES for call in scope.calls):
        return _REPLACING
    if LOADING_NAME.search(name) and _loads(scope, module):
        return _LOADING
    return ""


def _is_test(class_name: str | None, module: ModuleSummary) -> bool:
    """Whether unittest or pytest would run a function with such a name."""
    held = module.classes.get(class_name or "")
    if held is not None and any(b.rpartition(".")[2].endswith("TestCase") for b in held.bases):
        return True
    file = PurePath(module.path).stem
    return file.startswith("test_") or file.endswith("_test")


def _renames_weights(scope: Scope, parameters: Sequence[Parameter]) -> bool:
    """Whether a function's work is on a dict by textual keys: it goes through one and looks into its keys, or sets
    and removes entries with dotted keys."""
    given = {p.name for p in parameters if p.kind != "**"}
    options = {p.name for p in parameters if p.kind == "**"}
    keys: set[str] = set()
    bare: set[str] = set()  # of `for k in weights`: also how one goes through layers, where `"bias" in layer`
    for target, iterated in scope.loops:
        mapping = _plain(iterated)
        first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        if not isinstance(first, ast.Name):
            continue
        if isinstance(mapping, ast.Call) and isinstance(mapping.func, ast.Attribute):
            of, method = dotted(mapping.func.value), mapping.func.attr
            if of not in options and method == ("keys" if first is target else "items"):
                keys.add(first.id)
        elif first is target and isinstance(mapping, ast.Name) and mapping.id in given:
            keys.add(first.id)
            bare.add(first.id)
    texts = [text for name, text in scope.searched if name in keys - bare]
    for call in scope.calls:
        at = call.func
        if isinstance(at, ast.Attribute) and at.attr in TEXT_METHODS and dotted(at.value) in keys:
            texts += [t for a in call.args for e in _elements(a) if (t := text_of(e)) is not None]
    if any(WEIGHT_NAME.search(t) for t in texts):
        return True
    stored = sum(not isinstance(i.ctx, ast.Load) and _is_dotted(i.slice) for i in scope.items)
    popped = sum(_method(c) == "pop" and bool(c.args) and _is_dotted(c.args[0]) for c in scope.calls)
    return stored + popped > 0


def _plain(node: ast.expr) -> ast.expr:
    """`list(x)` and `sorted(x)` go through x."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("list", "sorted", "tuple"):
        return node.args[0] if node.args else node
    return node


def _method(node: ast.expr) -> str:
    return node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_dotted(node: ast.expr) -> bool:
    """A text, or a formatted one, with a dot between words: `"model.norm.weight"`, `f"{prefix}.weight"`."""
    text = text_of(node)
    return text is not None and re.fullmatch(r"\w*(?:\.\w+)+\.?", text) is not None


def _builds_layer(scope: Scope, module: ModuleSummary) -> bool:
    """Whether a function makes a layer, sets its parts and returns it or puts it somewhere, as `from_linear` does."""
    for target, _ in scope.stores:
        if isinstance(target.value, ast.Name):
            for how, value in scope.bindings.get(target.value.id, ()):
                if how == "is" and isinstance(value, ast.Call) and _is_layer(value.func, scope, module):
                    return True
    return False


def _is_layer(function: ast.expr, scope: Scope, module: ModuleSummary) -> bool:
    name = dotted(function)
    owner = module.functions[scope.qualname].class_name
    if name == "cls" and owner is not None:
        return owner in module.classes and module.classes[owner].is_module
    found = module.resolve(name, scope.qualname) if name else None
    if found is None:
        return False
    if found in module.classes:
        return module.classes[found].is_module
    return re.fullmatch(r"mlx\.nn\.[A-Z]\w*", found) is not None


def _loads(scope: Scope, module: ModuleSummary) -> bool:
    for call in scope.calls:
        name = dotted(call.func)
        if _method(call) in LOADS or (name and module.resolve(name, scope.qualname) in LOADERS):
            return True
    return False
