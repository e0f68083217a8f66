"""Ways to break a fix: each changes one place of its text, so that it computes something else.

The first twelve are the mistakes that people and tools make with these operations; the others are finer.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
from mutation.forms import forms

from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.finding import Region
from fuselint.rulebook import rules
from fuselint.source.text import FileText
from fuselint.verify import verify
from fuselint.verify.compare import leaves, relative
from fuselint.verify.inputs import BadInput, Case, Inputs, assignments, leads, readings, scalar_choices
from fuselint.verify.judge import Program


class Fault(ast.NodeTransformer):
    """Breaks one place where it applies, in the last statement that has one."""

    says = ""

    def __init__(self) -> None:
        self.broke = False

    def applies(self, region: Region) -> bool:
        return True

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


def number(node: ast.AST | None) -> float | None:
    """What a constant is, with its sign."""
    try:
        value = ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        return None
    return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def without(call: ast.Call, name: str) -> ast.Call:
    return ast.Call(call.func, call.args, [k for k in call.keywords if k.arg != name])


def put(call: ast.Call, name: str, value: ast.expr) -> ast.Call:
    """The call with another value of a keyword, or with it added."""
    return ast.Call(call.func, call.args, [*without(call, name).keywords, ast.keyword(name, value)])


def is_result(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "result"


def same(a: ast.AST, b: ast.AST) -> bool:
    return ast.dump(a) == ast.dump(b)


ATTENTION = "scaled_dot_product_attention"
NORMS = ("rms_norm", "layer_norm")


# --- the twelve ------------------------------------------------------------------------------------------------------


class EpsDropped(Fault):
    says = "eps dropped"

    def broken(self, node):
        if called(node, *NORMS) and number(node.args[-1]) != 0:
            return ast.Call(node.func, [*node.args[:-1], ast.Constant(0.0)], node.keywords)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and 0 < (number(node.right) or 0) < 1e-2:
            return node.left
        return None


class ScaleSquared(Fault):
    says = "scale squared"

    def broken(self, node):
        for name in ("scale", "alpha"):
            scale = keyword(node, name) if isinstance(node, ast.Call) else None
            if scale is not None and number(scale) != 1:
                return put(node, name, expression("s_ * s_", s_=scale))
        if called(node, "full") and len(node.args) > 1:  # the weight that stands for the scale of an L2 norm
            shape, scale, *rest = node.args
            return ast.Call(node.func, [shape, expression("s_ * s_", s_=scale), *rest], node.keywords)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and number(node.right) not in (None, 0, 1):
            return ast.BinOp(node.left, ast.Mult(), expression("s_ * s_", s_=node.right))
        return None


class MaskForgotten(Fault):
    says = "mask forgotten"

    def broken(self, node):
        if called(node, ATTENTION) and keyword(node, "mask"):
            return without(node, "mask")
        if called(node, "where"):
            _, a, b = node.args
            return a if number(b) is not None else b
        return None


class AnotherAxis(Fault):
    says = "wrong axis"

    def broken(self, node):
        if called(node, "softmax", "logsumexp", "sum", "mean", "max") and keyword(node, "axis"):
            return put(node, "axis", ast.Constant(0))
        if called(node, *NORMS):
            x, *rest = node.args
            turned = ast.Call(node.func, [expression("x_.swapaxes(-1, 0)", x_=x), *rest], node.keywords)
            return expression("y_.swapaxes(-1, 0)", y_=turned)
        if called(node, "flatten") and number(node.args[0]) == -2:
            return ast.Call(node.func, [ast.Constant(-3)], node.keywords)
        return None


class TraditionalFlipped(Fault):
    says = "traditional flipped"

    def broken(self, node):
        if called(node, "rope"):
            return put(node, "traditional", ast.Constant(not keyword(node, "traditional").value))
        return None


class OperandsSwapped(Fault):
    says = "gate and up swapped"

    def broken(self, node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if len(node.args) > 1 and not same(node.args[0], node.args[1]):
                a, b, *rest = node.args
                return ast.Call(node.func, [b, a, *rest], node.keywords)
            if len(node.keywords) == 2:
                (a, b) = node.keywords
                return ast.Call(node.func, node.args, [ast.keyword(a.arg, b.value), ast.keyword(b.arg, a.value)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Div, ast.MatMult)):
            return ast.BinOp(node.right, node.op, node.left)
        return None


class Float32Left(Fault):
    says = "dtype changed"

    def broken(self, node):
        if is_result(node):
            return ast.Assign(node.targets, expression("v_.astype(mx.float32)", v_=node.value))
        return None


class OneLost(Fault):
    says = "weight + 1 lost"

    def broken(self, node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if number(one) == 1:
                    return other
        return None


class KeysAndValuesSwapped(Fault):
    says = "K and V swapped"

    def broken(self, node):
        if called(node, ATTENTION):
            q, k, v = node.args
            return ast.Call(node.func, [q, v, k], node.keywords) if not same(k, v) else None
        return None


class HeadsTiled(Fault):
    says = "head order tiled"

    def applies(self, region):
        """Where there are fewer heads of keys than of queries; else a tiled order is no other."""
        return region.code == "FUS101"

    def broken(self, node):
        if called(node, ATTENTION):
            q, k, v = node.args
            tiled = [expression("mx.tile(k_, (1, q_.shape[1] // k_.shape[1], 1, 1))", k_=a, q_=q) for a in (k, v)]
            return ast.Call(node.func, [q, *tiled], node.keywords)
        return None


class OffsetIgnored(Fault):
    says = "offset ignored"

    def broken(self, node):
        offset = keyword(node, "offset") if called(node, "rope") else None
        return put(node, "offset", ast.Constant(0)) if offset is not None and number(offset) != 0 else None


class BiasDoubled(Fault):
    says = "bias doubled"

    def broken(self, node):
        if called(node, "addmm"):
            beta = keyword(node, "beta") or ast.Constant(1.0)
            return put(node, "beta", expression("2.0 * b_", b_=beta))
        if called(node, "layer_norm") and not isinstance(node.args[2], ast.Constant):
            x, w, b, eps = node.args
            return ast.Call(node.func, [x, w, expression("2 * b_", b_=b), eps], node.keywords)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and number(node.right) is None:
            return ast.BinOp(node.left, ast.Add(), expression("2 * b_", b_=node.right))
        return None


TWELVE = (
    EpsDropped, ScaleSquared, MaskForgotten, AnotherAxis, TraditionalFlipped, OperandsSwapped, Float32Left, OneLost,
    KeysAndValuesSwapped, HeadsTiled, OffsetIgnored, BiasDoubled,
)  # fmt: skip


# --- finer ones ------------------------------------------------------------------------------------------------------


class NormalisedTwice(Fault):
    says = "normalised twice"

    def broken(self, node):
        if called(node, "rms_norm") and number(node.args[-1]) != 0:  # without eps, twice is once
            x, weight, eps = node.args
            return expression(
                "mx.fast.rms_norm(mx.fast.rms_norm(x_, None, eps_), weight_, eps_)", x_=x, weight_=weight, eps_=eps
            )
        return None


class WeightDropped(Fault):
    says = "weight dropped"

    def broken(self, node):
        if called(node, *NORMS) and not isinstance(node.args[1], ast.Constant):
            return ast.Call(node.func, [node.args[0], ast.Constant(None), *node.args[2:]], node.keywords)
        return None


class BiasDropped(Fault):
    says = "bias dropped"

    def broken(self, node):
        if called(node, "layer_norm") and not isinstance(node.args[2], ast.Constant):
            x, w, _, eps = node.args
            return ast.Call(node.func, [x, w, ast.Constant(None), eps], node.keywords)
        if called(node, "addmm"):
            return put(node, "beta", ast.Constant(0.0))
        return None


class SinksForgotten(Fault):
    says = "sinks forgotten"

    def broken(self, node):
        return without(node, "sinks") if called(node, ATTENTION) and keyword(node, "sinks") else None


class HeadsReversed(Fault):
    says = "head order reversed"

    def broken(self, node):
        if called(node, ATTENTION):
            q, k, v = node.args
            return ast.Call(node.func, [q, expression("k_[:, ::-1]", k_=k), v], node.keywords)
        return None


class BaseChanged(Fault):
    says = "base a tenth"

    def broken(self, node):
        base = keyword(node, "base") if called(node, "rope") else None
        if base is None or (isinstance(base, ast.Constant) and base.value is None):
            return None
        return put(node, "base", expression("b_ / 10", b_=base))


class PreciseDropped(Fault):
    says = "precise dropped"

    def broken(self, node):
        return without(node, "precise") if called(node, "softmax") and keyword(node, "precise") else None


class TransposeForgotten(Fault):
    says = "transpose forgotten"

    def broken(self, node):
        if isinstance(node, ast.Attribute) and node.attr == "T":
            return node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "swapaxes":
            return node.func.value
        return None


class SignLost(Fault):
    says = "sign lost"

    def broken(self, node):
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        return (
            node.operand if negative and not isinstance(getattr(node.operand, "value", None), int) else None
        )  # an axis


class AnotherActivation(Fault):
    says = "another activation"

    def broken(self, node):
        others = {"gelu": "gelu_fast_approx", "gelu_approx": "gelu", "gelu_fast_approx": "gelu", "silu": "gelu"}
        if called(node, *others) and isinstance(node.func, ast.Attribute):
            return ast.Call(ast.Attribute(node.func.value, others[node.func.attr]), node.args, node.keywords)
        return None


class Doubled(Fault):
    says = "result doubled"

    def broken(self, node):
        if is_result(node):
            return ast.Assign(node.targets, expression("2 * v_", v_=node.value))
        return None


class SlightlyOff(Fault):
    """A constant with four digits instead of all."""

    says = "0.005 % off"

    def applies(self, region):
        """Not where a fix makes float32 half precision, which has fewer digits."""
        return region.numerics != "different dtype"

    def broken(self, node):
        if is_result(node):
            return ast.Assign(node.targets, expression("1.00005 * v_", v_=node.value))
        return None


class CastLost(Fault):
    says = "cast lost"

    def broken(self, node):
        if called(node, "astype") and isinstance(node.func, ast.Attribute):
            return node.func.value
        return None


class GradientLost(Fault):
    says = "gradient lost"

    def broken(self, node):
        if is_result(node):
            return ast.Assign(node.targets, expression("mx.stop_gradient(v_)", v_=node.value))
        return None

    def applies(self, region):
        return "stop_gradient" not in region.before


FAULTS = (
    *TWELVE, NormalisedTwice, WeightDropped, BiasDropped, SinksForgotten, HeadsReversed, BaseChanged, PreciseDropped,
    TransposeForgotten, SignLost, AnotherActivation, Doubled, SlightlyOff, CastLost, GradientLost,
)  # fmt: skip


# --- fixes and what becomes of them ----------------------------------------------------------------------------------


def example_fixes() -> Iterator[tuple[str, Region]]:
    """The region of each fix in each example of each rule."""
    for rule in rules():
        for n, example in enumerate(rule.examples):
            yield from _fixes(rule.code, f"example {n}", example.source.lstrip("\n"))


def form_fixes() -> Iterator[tuple[str, Region]]:
    """The same of the other spellings that the mutants are made of."""
    for form in forms():
        code, _, what = form.name.partition(" ")
        if not what.startswith("example"):
            yield from _fixes(code, what, form.source)


def _fixes(code: str, what: str, source: str) -> Iterator[tuple[str, Region]]:
    _, proposals = analyse(FileText("example.py", source), Settings(select=(code,)), lambda name: False)
    for p in proposals:
        if p.finding.fix and p.finding.fix.edits and p.region is not None and not p.region.not_verifiable:
            yield f"{code} {what}, line {p.finding.line}", p.region


def planted(whole: Region, faults: tuple[type[Fault], ...] = FAULTS) -> Iterator[tuple[type[Fault], Region]]:
    """A fix with each fault that applies to it, in the call or in its helper."""
    for fault in faults:
        for part in ("after", "support_after"):
            mutator = fault()
            if not mutator.applies(whole):
                break
            tree = mutator.visit(ast.parse(getattr(whole, part)))
            if mutator.broke:
                text = ast.unparse(ast.fix_missing_locations(tree))
                yield fault, replace(whole, **{part: text})
                break


# --- faults that are none --------------------------------------------------------------------------------------------

LEAST = 1e-6
"""MLX divides integers in float32, also between float64."""


def changes_nothing(region: Region) -> bool:
    """Whether a broken fix computes what the code before computes: the same dtypes, in float64 the same values.

    Then the fault is none: a cast to the dtype that a value has anyway, the swapped operands of a symmetric helper.
    """
    (outcome,) = verify([replace(region, numerics="reassociated")], device="cpu")
    if outcome.outcome != "passed":
        return False
    with mx.stream(mx.cpu):
        gaps = list(itertools.islice(_gaps(region), 20))
    return bool(gaps) and max(gaps) < LEAST


def _gaps(region: Region) -> Iterator[float]:
    """How far the code before and after are apart in float64, relative to the largest value, on several inputs."""
    names = [i.name for i in region.inputs]
    before, after = (
        Program(text, support, names, double=True)
        for text, support in ((region.before, region.support_before), (region.after, region.support_after))
    )
    for reading in readings(region):
        ran = False
        for sizes, scalars, lead in itertools.product(
            assignments(reading), scalar_choices(reading)[:2], leads(reading)
        ):
            try:
                inputs = Inputs(reading, Case(sizes, lead, scalars=scalars), 0)
                results = [[v for _, v in leaves(p(inputs.exact(p.kind)))] for p in (before, after)]
                mx.eval(results)
            except (ValueError, TypeError, RuntimeError, AttributeError, BadInput):
                continue
            ran = True
            yield from (relative(a, b) for a, b in zip(*results, strict=True) if isinstance(a, mx.array))
        if ran:
            return
