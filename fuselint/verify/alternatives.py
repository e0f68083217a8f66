"""Other ways to write a region, for `tune`: compiled or not, shapeless or not, a weight dequantized once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fuselint.finding import Region
from fuselint.verify.vet import DEFAULT_IMPORTS

AS_IT_IS, FIXED = "as it is", "fixed"
ONCE = "dequantized once"


@dataclass(frozen=True, slots=True)
class Alternative:
    """A way to compute a region's value. setup: run once for all calls, in the same names."""

    name: str
    text: str
    support: str = ""
    setup: str = ""


def alternatives(region: Region) -> list[Alternative]:
    """Every one, the code as it is first and the fix second."""
    out = [
        Alternative(AS_IT_IS, region.before, region.support_before),
        Alternative(FIXED, region.after, region.support_after),
    ]
    if "compile" not in region.support_after:
        out += [
            made
            for name, text, support in (
                ("compiled", region.before, region.support_before),
                ("fixed and compiled", region.after, region.support_after),
            )
            for shapeless in (False, True)
            if (made := _compiled(region, name, text, support, shapeless)) is not None
        ]
    else:
        out += _other_shape_rule(region)
    return [*out, *_dequantized_once(region)]


def _compiled(region: Region, name: str, text: str, support: str, shapeless: bool) -> Alternative | None:
    """The region as one compiled function of its arrays; the other inputs are constants of it."""
    arrays = [i.name for i in region.inputs if i.kind == "array"]
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    if not arrays or any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in ast.walk(tree)) or support.strip():
        return None
    names = {a: f"_{n}" for n, a in enumerate(arrays)}
    others = sorted({n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & _roots(region, arrays))
    body = _Renamed(names).visit(tree).body
    inner = "\n".join(f"    {line}" for s in body for line in ast.unparse(ast.fix_missing_locations(s)).split("\n"))
    decorator = "mx.compile" if not shapeless else "partial(mx.compile, shapeless=True)"
    defined = f"@{decorator}\ndef _compiled({', '.join(names.values())}):\n{inner}\n    return result\n"
    name += ", shapeless" if shapeless else ""
    call = f"result = _compiled({', '.join(arrays)})\n"
    if others:  # read when it is traced: made where they are known, once
        return Alternative(name, call, setup=defined)
    return Alternative(name, call, defined)


def _roots(region: Region, arrays: list[str]) -> set[str]:
    return {i.name.split(".")[0] for i in region.inputs if i.name not in arrays} - set(DEFAULT_IMPORTS)


class _Renamed(ast.NodeTransformer):
    """Inputs by the names of parameters: `self.weight` becomes `_1`."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = self._names.get(ast.unparse(node))
        return ast.Name(name, node.ctx) if name is not None else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _other_shape_rule(region: Region) -> Iterator[Alternative]:
    """The fix's compiled helper, shapeless where it isn't, and the other way about."""
    shapeless = "shapeless=True" in region.support_after
    if shapeless:
        support = region.support_after.replace("partial(mx.compile, shapeless=True)", "mx.compile")
    else:
        support = region.support_after.replace("@mx.compile\n", "@partial(mx.compile, shapeless=True)\n")
    if support != region.support_after:
        name = f"{FIXED}, not shapeless" if shapeless else f"{FIXED}, shapeless"
        yield Alternative(name, region.after, support)


def _dequantized_once(region: Region) -> Iterator[Alternative]:
    """The code as it is, its weight dequantized before: more memory, and no dequantization at every call."""
    try:
        tree = ast.parse(region.before)
    except SyntaxError:
        return
    call = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "mx.dequantize"), None)
    if call is None or region.support_before.strip():
        return
    made = ast.unparse(call)
    yield Alternative(ONCE, ast.unparse(tree).replace(made, "_dense") + "\n", setup=f"_dense = {made}\n")
