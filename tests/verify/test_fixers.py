"""Every fixer, on the examples of its rule: the fix passes, and each way to break it is caught."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest

mx = pytest.importorskip("mlx.core")

from fuselint.analysis import analyse  # noqa: E402
from fuselint.config import Settings  # noqa: E402
from fuselint.finding import Region  # noqa: E402
from fuselint.rulebook import rules  # noqa: E402
from fuselint.source.text import FileText  # noqa: E402
from fuselint.verify import verify  # noqa: E402


def fixes() -> Iterator[tuple[str, Region]]:
    """The region of each fix in each example."""
    for rule in rules():
        for number, example in enumerate(rule.examples):
            file = FileText("example.py", example.source.lstrip("\n"))
            _, proposals = analyse(file, Settings(select=(rule.code,)), lambda name: False)
            for p in proposals:
                if p.finding.fix and p.finding.fix.edits:
                    assert p.region is not None
                    if not p.region.not_verifiable:
                        yield f"{rule.code} example {number}, line {p.finding.line}", p.region


FIXES = dict(fixes())

# --- ways to break a fix ---------------------------------------------------------------------------------------------


class Fault(ast.NodeTransformer):
    """Breaks one place where it applies, in the last statement that has one."""

    broke = False

    def visit(self, node: ast.AST) -> ast.AST:
        if self.broke:
            return node
        if isinstance(node, ast.Module):
            return self.visit_Module(node)
        made = self.broken(node)
        if made is not None:
            self.broke = True
            return ast.copy_location(made, node)
        return self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = [self.visit(s) for s in reversed(node.body)][::-1]
        return node

    def broken(self, node: ast.AST) -> ast.AST | None:
        raise NotImplementedError


def called(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in names


def expression(text: str, **parts: ast.expr) -> ast.expr:
    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(parts[node.id]) if node.id in parts else node

    return Fill().visit(ast.parse(text, mode="eval").body)


def zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((k for k in call.keywords if k.arg == name), None)


class EpsDropped(Fault):
    def broken(self, node):
        if called(node, "rms_norm", "layer_norm") and not zero(node.args[-1]):
            return ast.Call(node.func, [*node.args[:-1], ast.Constant(0.0)], node.keywords)
        return None


class NormalisedTwice(Fault):
    def broken(self, node):
        if called(node, "rms_norm") and not zero(node.args[-1]):  # without eps, twice is once
            x, weight, eps = node.args
            return expression(
                "mx.fast.rms_norm(mx.fast.rms_norm(x_, None, eps_), weight_, eps_)", x_=x, weight_=weight, eps_=eps
            )
        return None


class WeightDropped(Fault):
    def broken(self, node):
        if called(node, "rms_norm") and not isinstance(node.args[1], ast.Constant):
            return ast.Call(node.func, [node.args[0], ast.Constant(None), *node.args[2:]], node.keywords)
        return None


class OneLost(Fault):
    """`1 + w` becomes `w`."""

    def broken(self, node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(one, ast.Constant) and one.value in (1, 1.0):
                    return other
        return None


class ScaleSquared(Fault):
    def broken(self, node):
        if called(node, "scaled_dot_product_attention"):
            scale = keyword(node, "scale").value
            rest = [k for k in node.keywords if k.arg != "scale"]
            return ast.Call(node.func, node.args, [*rest, ast.keyword("scale", expression("s_ * s_", s_=scale))])
        return None


class MaskForgotten(Fault):
    def broken(self, node):
        if called(node, "scaled_dot_product_attention") and keyword(node, "mask"):
            return ast.Call(node.func, node.args, [k for k in node.keywords if k.arg != "mask"])
        return None


class KeysAndValuesSwapped(Fault):
    def broken(self, node):
        if called(node, "scaled_dot_product_attention"):
            q, k, v = node.args
            return ast.Call(node.func, [q, v, k], node.keywords) if ast.dump(k) != ast.dump(v) else None
        return None


class HeadsReversed(Fault):
    """Stands for any wrong order of heads."""

    def broken(self, node):
        if called(node, "scaled_dot_product_attention"):
            q, k, v = node.args
            return ast.Call(node.func, [q, expression("k_[:, ::-1]", k_=k), v], node.keywords)
        return None


class AnotherAxis(Fault):
    def broken(self, node):
        if isinstance(node, ast.Call) and called(node, "softmax", "sum", "mean", "max") and keyword(node, "axis"):
            rest = [k for k in node.keywords if k.arg != "axis"]
            return ast.Call(node.func, node.args, [*rest, ast.keyword("axis", ast.Constant(0))])
        return None


class OperandsSwapped(Fault):
    """The first two operands of a helper: gate and up."""

    def broken(self, node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            a, b, *rest = node.args
            if ast.dump(a) != ast.dump(b):
                return ast.Call(node.func, [b, a, *rest], node.keywords)
        return None


class Float32Left(Fault):
    def broken(self, node):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "result":
            return ast.Assign(node.targets, expression("v_.astype(mx.float32)", v_=node.value))
        return None


class Doubled(Fault):
    def broken(self, node):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "result":
            return ast.Assign(node.targets, expression("2 * v_", v_=node.value))
        return None


class SlightlyOff(Fault):
    """A constant with four digits instead of all."""

    def broken(self, node):
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "result":
            return ast.Assign(node.targets, expression("1.00005 * v_", v_=node.value))
        return None


class CastLost(Fault):
    def broken(self, node):
        if called(node, "astype") and isinstance(node.func, ast.Attribute):
            return node.func.value
        return None


FAULTS = (
    EpsDropped, NormalisedTwice, WeightDropped, OneLost, ScaleSquared, MaskForgotten, KeysAndValuesSwapped,
    HeadsReversed, AnotherAxis, OperandsSwapped, Float32Left, Doubled, SlightlyOff, CastLost,
)  # fmt: skip


def broken(whole: Region) -> Iterator[tuple[str, Region]]:
    """A fix with each fault that applies to it, in the call or in its helper."""
    for fault in FAULTS:
        for part in ("after", "support_after"):
            mutator = fault()
            tree = mutator.visit(ast.parse(getattr(whole, part)))
            if mutator.broke:
                text = ast.unparse(ast.fix_missing_locations(tree))
                yield f"{fault.__name__} in {part}", replace(whole, **{part: text})
                break


BROKEN = {f"{name}: {fault}": made for name, whole in FIXES.items() for fault, made in broken(whole)}


@pytest.fixture(scope="module")
def outcomes():
    everything = FIXES | BROKEN
    return dict(zip(everything, verify(list(everything.values()), device="cpu"), strict=True))


def raises(outcome, region):
    """Whether there is nothing to compare with: FUS402 mends code that raises in half precision."""
    return region.code == "FUS402" and outcome.reason.startswith("the code before raises")


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_passes(outcomes, name):
    if raises(outcomes[name], FIXES[name]):
        return
    assert outcomes[name].outcome == "passed", (outcomes[name], FIXES[name])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_fix_fails(outcomes, name):
    whole, _, fault = name.rpartition(": ")
    if raises(outcomes[whole], FIXES[whole]) or (FIXES[whole].code == "FUS402" and fault.startswith("CastLost")):
        return
    if FIXES[whole].numerics == "different dtype" and fault.startswith(("CastLost", "SlightlyOff")):
        return  # the fix makes float32 half: without its cast it is the code before, and half has fewer digits
    if fault.startswith("Float32Left") and "float16:" not in outcomes[whole].reason:
        return  # it was float32 before
    assert outcomes[name].outcome == "failed", (outcomes[name], BROKEN[name])
