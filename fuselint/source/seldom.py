"""Which methods run once for each pass through a whole model, rather than once a layer.

A model is a module that keeps a list of layers, or such a module. What no loop and no layer calls of it runs once for
each pass: a part of its `__call__`, or an entry of its own such as `encode`. Calls are told by name, so that what a
layer may call counts as called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from fuselint.source.project import ModuleSummary
from fuselint.source.scopes import Scope, Scopes

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CACHES = frozenset({"make_cache", "make_prompt_cache"})
"""What mlx-lm, and models after its example, call what makes the caches of all layers."""

PARTS = 2
"""A layer is made of so many modules at least: a list of convolutions is none of layers."""


def layers(module: ModuleSummary) -> dict[str, frozenset[str]]:
    """Of each model, the attributes that hold its layers; none for one that only holds a model."""
    lists = {q: _layer_lists(q, module) for q, c in module.classes.items() if c.is_module}
    inside = _inside_layers(lists, module)
    out = {q: found for q, found in lists.items() if found and q not in inside}
    waiting = list(out)
    while waiting:
        held = waiting.pop()
        for q, c in module.classes.items():
            if c.is_module and q not in out and q not in inside and held in c.attributes.values():
                out[q] = frozenset()
                waiting.append(q)
    return out


def seldom(known: Scopes, module: ModuleSummary, models: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The methods of models that run once for each pass, and what makes the caches of one generation."""
    makers = frozenset(s.qualname for s in known.functions if not _is_entry(_last(s.qualname)) and _makes_caches(s))
    if not models:
        return makers
    named: dict[str, list[Scope]] = {}
    for scope in known.functions:
        named.setdefault(_last(scope.qualname), []).append(scope)
    entries = [s for name, scopes in named.items() if _is_entry(name) for s in scopes]
    waiting = [s for s in entries if module.functions[s.qualname].class_name not in models]
    waiting += [s for name in set(_called_in_loops(known)) & named.keys() for s in named[name]]
    often = {s.qualname for s in waiting}
    while waiting:
        for name in _read(waiting.pop()) & named.keys():
            new = [s for s in named[name] if s.qualname not in often]
            often.update(s.qualname for s in new)
            waiting += new
    return makers | frozenset(
        s.qualname
        for s in known.functions
        if s.qualname not in often
        and s not in entries
        and not _last(s.qualname).startswith("__")
        and module.functions[s.qualname].class_name in models
        and _takes_self(s, module)
    )


def _makes_caches(scope: Scope) -> bool:
    called = (c.func for c in scope.calls)
    return any((f.id if isinstance(f, ast.Name) else getattr(f, "attr", "")) in CACHES for f in called)


def _layer_lists(qualname: str, module: ModuleSummary) -> frozenset[str]:
    lists = {n: made.removesuffix("[]") for n, made in module.classes[qualname].attributes.items() if "[]" in made}
    return frozenset(n for n, made in lists.items() if _is_of_parts(made, module))


def _is_of_parts(made: str, module: ModuleSummary) -> bool:
    """Whether a class is a layer: of this file, one made of several modules; of another, none of MLX's own."""
    held = module.classes.get(made)
    if held is None:
        return "." in made and not made.startswith("mlx.")
    return held.is_module and len(held.attributes) >= PARTS


def _inside_layers(lists: Mapping[str, frozenset[str]], module: ModuleSummary) -> set[str]:
    """The classes of which layers are made, layers included."""
    out: set[str] = set()
    waiting = [module.classes[q].attributes[n] for q, names in lists.items() for n in names]
    while waiting:
        made = waiting.pop().removesuffix("[]")
        if made in module.classes and made not in out:
            out.add(made)
            waiting += module.classes[made].attributes.values()
    return out


def _is_entry(name: str) -> bool:
    return name == "__call__" or name.startswith("forward")


def _takes_self(scope: Scope, module: ModuleSummary) -> bool:
    return not {"staticmethod", "classmethod"} & set(module.functions[scope.qualname].decorators)


def _read(scope: Scope) -> set[str]:
    """The last parts of all names that a function reads, so of all that it may call."""
    return {n.id if isinstance(n, ast.Name) else n.attr for n in scope.loads}


def _called_in_loops(known: Scopes) -> Iterator[str]:
    loops = (n for n in ast.walk(known.module.node or ast.Module([], [])) if isinstance(n, LOOPS))
    for node in (n for loop in loops for n in ast.walk(loop)):
        if isinstance(node, ast.Call):
            yield node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _last(qualname: str) -> str:
    return qualname.rpartition(".")[2]
