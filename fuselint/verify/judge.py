"""One region, judged: its code before and after the fix run on made-up inputs, and what came out is compared.

Runs inside a child process. `say` tells the parent what is about to run, so that a crash can be laid at its door.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import mlx.core as mx

from fuselint.finding import Region, Verification
from fuselint.verify import compare, exact
from fuselint.verify.inputs import (
    BadInput,
    Case,
    DoesNotFit,
    Inputs,
    assignments,
    cases,
    leads,
    readings,
    scalar_choices,
)
from fuselint.verify.vet import DEFAULT_IMPORTS, Barred, importable, imports, safe_builtins, vet

GPU_ONLY = ("scaled_dot_product_attention", "rope", "quantized_matmul", "gather_qmm", "cross_entropy")
"""Operations that the CPU computes in half precision where a GPU uses float32: not judged there in half precision."""
NOT_ON_CPU = ("gather_mm",)
"""Operations that the CPU has only in float32."""
GRADIENT = 1e-4
"""Largest difference of float32 gradients, relative to the largest; beyond it, both are held against float64."""
ILL = 4
"""How many times the error of the gradient before, against the float64 one, its successor may have."""
CANCELS, VANISHES = 0.1, 1e-2
"""Beyond that error a gradient that small has no digits at all: it is zero at these sizes, up to rounding."""
GRADIENT_SIZES = 4
"""So many sizes are tried until gradients say something."""
ROUNDINGS = 3
"""So many times a result is computed with other roundings, where it looks wrong."""
SAME_CODE = 1e-5
"""Largest difference between the float64 value of the graph and that of the source."""


@dataclass(slots=True)
class Tally:
    """What the cases showed so far."""

    cases: int = 0
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)  # by dtype: largest before, after
    repaired: dict[str, int] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    gradient: float | None = None

    def add(self, dtype: str, difference: compare.Difference, plain: bool) -> None:
        """plain: whether the error is that of the result's dtype, and not of others that are mixed with it."""
        before, after = self.errors.get(dtype, (0.0, 0.0))
        if plain:
            self.errors[dtype] = max(before, difference.before), max(after, difference.after)
        if difference.repaired:
            self.repaired[dtype] = self.repaired.get(dtype, 0) + difference.repaired


NO_KERNEL = "No implementation for problem shape"
"""What MLX says of a packed weight that its CUDA kernels don't take: one that is a view."""


class Wrong(Exception):
    """The fix computes something else."""


class Unfit(Exception):
    """The region can't be judged."""


class Program:
    """A vetted text with its definitions, which are made once: a compiled helper stays the same over all runs."""

    def __init__(
        self,
        text: str,
        support: str,
        inputs: Sequence[str],
        *,
        double: bool = False,
        rounding: exact.Rounding | None = None,
    ) -> None:
        tree = vet(text, support, inputs)
        definitions = ast.parse(support)
        names = {**DEFAULT_IMPORTS, **imports(definitions), **imports(tree)}
        stand_ins = exact.modules() if double else {}
        self._globals: dict[str, Any] = {n: _resolve(t, stand_ins) for n, t in names.items() if importable(t)}
        self._globals["__builtins__"] = safe_builtins()
        self._globals["__name__"] = "region"
        if double:
            tree, definitions = _double(tree), _double(definitions)
            self._globals["_method"] = exact.method
        if rounding is not None:
            tree, definitions = _rounded(tree), _rounded(definitions)
            self._globals["_rounded"] = rounding
        exec(_code(definitions), self._globals)
        self._code = _code(tree)
        kind = self._globals.get("Self")
        self.kind: type | None = kind if isinstance(kind, type) else None

    def __call__(self, values: Mapping[str, Any]) -> Any:
        scope = {**self._globals, **values}
        exec(self._code, scope)
        if "result" not in scope:
            raise Unfit("the region leaves no `result`")
        return scope["result"]


def _resolve(target: str, stand_ins: Mapping[str, Any]) -> Any:
    """The module or member of a qualified name that vet lets through."""
    if target in stand_ins:
        return stand_ins[target]
    import functools
    import math
    import typing

    import mlx
    import mlx.nn

    roots = {"mlx": mlx, "math": math, "functools": functools, "typing": typing}
    head, *rest = target.split(".")
    at: Any = roots[head]
    for n, part in enumerate(rest):
        path = ".".join([head, *rest[: n + 1]])
        at = stand_ins[path] if path in stand_ins else getattr(at, part)
    return at


class _Imports(ast.NodeTransformer):
    """Imports have been carried out by `Program`: they go."""

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)


class _Methods(ast.NodeTransformer):
    """`x.exp()` becomes `_method("exp", x)`, for the methods that MLX has only in float32."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        f = node.func
        if isinstance(f, ast.Attribute) and f.attr in exact.METHODS and not _is_module(f.value):
            name = ast.copy_location(ast.Name("_method", ast.Load()), node)
            args = [ast.copy_location(ast.Constant(f.attr), node), f.value, *node.args]
            return ast.copy_location(ast.Call(name, args, node.keywords), node)
        return node


def _is_module(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in DEFAULT_IMPORTS


def _double(tree: ast.Module) -> ast.Module:
    changed: ast.Module = _Methods().visit(tree)
    return ast.fix_missing_locations(changed)


class _Steps(ast.NodeTransformer):
    """`a + f(b)` becomes `_rounded(a + _rounded(f(b)))`."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        if not isinstance(node, (ast.BinOp, ast.Call)):
            return node
        name = ast.copy_location(ast.Name("_rounded", ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node], []), node)


def _rounded(tree: ast.Module) -> ast.Module:
    changed: ast.Module = _Steps().visit(tree)
    return ast.fix_missing_locations(changed)


def _code(tree: ast.Module) -> CodeType:
    return compile(ast.fix_missing_locations(_Imports().visit(tree)), "<region>", "exec")


def judge(region: Region, seed: int, say: Callable[[str], None]) -> Verification:
    """Run a region on every case."""
    tally = Tally()
    try:
        _Judge(region, seed, say, tally).run()
    except Wrong as e:
        return _outcome("failed", str(e), tally, seed)
    except (Unfit, Barred, BadInput) as e:
        return _outcome("not verifiable", str(e), tally, seed)
    return _outcome("passed", _summary(tally), tally, seed)


def _outcome(kind: Any, reason: str, tally: Tally, seed: int) -> Verification:
    worst = list(tally.errors.values())
    return Verification(
        kind,
        reason,
        device=device_name(),
        mlx=mx.__version__,
        error_before=max((b for b, _ in worst), default=None),
        error_after=max((a for _, a in worst), default=None),
        cases=tally.cases,
        seed=seed,
        ulp={d: (b / compare.ULP[d], a / compare.ULP[d]) for d, (b, a) in tally.errors.items() if d in compare.ULP},
        gradient=tally.gradient,
        repaired=sum(tally.repaired.values()),
    )


def device_name() -> str:
    """The kind of the default device, and its name where MLX tells."""
    kind = "cpu" if mx.default_device() == mx.cpu else "gpu"
    try:
        name = mx.device_info().get("device_name", "")
    except (AttributeError, RuntimeError, ValueError):
        name = ""
    return f"{kind} ({name})" if name and kind == "gpu" else kind


def _summary(tally: Tally) -> str:
    parts = [
        f"{dtype}: error {after:.1e}, before {before:.1e}" for dtype, (before, after) in sorted(tally.errors.items())
    ]
    if tally.gradient is not None:
        parts.append(f"gradients within {tally.gradient:.1e}")
    for dtype, n in sorted(tally.repaired.items()):
        parts.append(f"{n} {dtype} values that overflowed or lost their digits are right now")
    return "; ".join([*parts, *tally.notes]) or "ran"


class _Judge:
    def __init__(self, region: Region, seed: int, say: Callable[[str], None], tally: Tally) -> None:
        self.region, self.seed, self.say, self.tally = region, seed, say, tally
        names = [i.name for i in region.inputs]
        self.on_cpu = mx.default_device() == mx.cpu
        self.before = Program(region.before, region.support_before, names)
        self.after = Program(region.after, region.support_after, names)
        self.text_after = f"{region.support_after}\n{region.after}"
        self.compiled = "compile" in _attributes(region.support_after)
        self.references = self._references(names)
        called = _attributes(self.text_after) if self.on_cpu else set()
        self.half_unjudged = called & set(GPU_ONLY)
        self.half_impossible = called & set(NOT_ON_CPU)

    def _references(self, names: Sequence[str]) -> list[tuple[str, Program]]:
        """The float64 forms of the code before: as the graph has it, and as the source has it."""
        region = self.region
        out = []
        if region.reference is not None:
            try:
                out.append(("graph", Program(region.reference, "", names, double=True)))
            except Barred as e:
                self.tally.notes[f"without the graph's reference, which {e}"] = None
        out.append(("source", Program(region.before, region.support_before, names, double=True)))
        return out

    # --- runs --------------------------------------------------------------------------------------------------------

    def _run(self, which: str, inputs: Inputs) -> tuple[Any, dict[str, mx.array]]:
        """The evaluated result of the code before or after, and its input arrays as the run left them."""
        program = self.before if which == "before" else self.after
        self.say(which)
        mx.random.seed(self.seed)
        values, arrays = inputs.fresh(program.kind)
        with self._compiling(which == "after" and inputs.case.dtype != "float16"):
            result = program(values)
            mx.eval([v for _, v in compare.leaves(result) if isinstance(v, mx.array)])
        self.say("between")
        return result, arrays

    @contextlib.contextmanager
    def _compiling(self, wanted: bool) -> Iterator[None]:
        """Whether mx.compile compiles. A kernel costs half a second of g++ on the CPU, for the bits of its operations.

        So there only the code after compiles, and only in two dtypes.
        """
        if wanted or not self.on_cpu:
            yield
            return
        mx.disable_compile()
        try:
            yield
        finally:
            mx.enable_compile()

    def _try(self, which: str, inputs: Inputs) -> tuple[Any, dict[str, mx.array], str]:
        try:
            result, arrays = self._run(which, inputs)
        except (Unfit, BadInput, Barred):
            raise
        except MemoryError as e:
            if which == "before":
                raise Unfit("the code before runs out of memory") from e
            return None, {}, "out of memory"
        except Exception as e:
            return None, {}, _message(e)
        return result, arrays, ""

    def _reference(self, inputs: Inputs) -> tuple[Any, Any]:
        """The float64 value by the graph (else by the source, else in float32), and that by the source, or None."""
        found: dict[str, Any] = {}
        with mx.stream(mx.cpu):
            for name, program in self.references:
                try:
                    mx.random.seed(self.seed)
                    result = program(inputs.exact(program.kind))
                    mx.eval([v for _, v in compare.leaves(result) if isinstance(v, mx.array)])
                except Exception as e:
                    if name == "graph":
                        self.tally.notes[f"the reference could not run ({_message(e)})"] = None
                    continue
                found[name] = result
            if not found:
                mx.random.seed(self.seed)
                single = self.before(inputs.single(self.before.kind))
                mx.eval([v for _, v in compare.leaves(single) if isinstance(v, mx.array)])
                self.tally.notes["judged against the code before in float32: it does not run in float64"] = None
                return single, None
        return found.get("graph", found.get("source")), found.get("source")

    def _inherent(self, inputs: Inputs, path: str, reference: mx.array) -> float:
        """How far the roundings of the steps of the code before move a value of its result, in a few tries."""
        names, found = [i.name for i in self.region.inputs], 0.0
        with mx.stream(mx.cpu), contextlib.suppress(Exception):  # what doesn't run in float64 says nothing
            for turn in range(ROUNDINGS):
                rounding = exact.Rounding(self.seed + turn)
                code = Program(self.region.before, self.region.support_before, names, double=True, rounding=rounding)
                mx.random.seed(self.seed)
                moved = dict(compare.leaves(code(inputs.exact(code.kind))))[path]
                found = max(found, compare.relative(reference, moved))
        return found

    # --- the whole ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        sizes, lead, scalars = self._fitting()
        for case in cases(self.region, sizes, scalars, self.compiled, lead, empty=self.on_cpu):
            if self.half_impossible and (case.dtype != "float32" or case.weight_dtype):
                self.tally.notes[f"only float32: the CPU has no other {', '.join(sorted(self.half_impossible))}"] = None
                continue
            self._case(case)
        if not self.tally.cases:
            missing = next((n for n in self.tally.notes if NO_KERNEL in n), "")
            raise Unfit(missing or "the code before raises for every input tried")
        if self.half_unjudged and not self.tally.errors:
            raise Unfit(
                f"its inputs are in half precision, where the CPU's {', '.join(self.half_unjudged)} {_CPU_HALF}"
            )
        for one in sizes[:GRADIENT_SIZES]:
            if self._gradients(Case(one, lead, scalars=scalars)):
                break
        else:
            self.tally.notes["gradients not judged: they vanish, or can't be had, at every size tried"] = None
        if self.compiled:
            self._compiled(Case(sizes[0], lead, scalars=scalars))
        for name in sorted(self.half_unjudged):
            self.tally.notes[f"float16 and bfloat16 values not judged: the CPU's {name} {_CPU_HALF}"] = None

    def _fitting(self) -> tuple[list[dict[str, int]], tuple[int, ...], dict[str, Any]]:
        """Sizes for which the code before runs, leading axes that it takes, values for scalars that are not stated."""
        why = ""
        for reading in readings(self.region):
            self.region = reading  # the one that fits is the one that is judged
            choices = assignments(self.region)
            for sizes in choices:
                for lead, tried in itertools.product(leads(self.region), scalar_choices(self.region)):
                    first = self._raises(Case(sizes, lead, scalars=tried))
                    if not first:
                        scalars = self._guess(sizes, lead, tried)
                        fits = (s for s in choices if s != sizes and not self._raises(Case(s, lead, scalars=scalars)))
                        return [sizes, *fits], lead, scalars
                    why = why or first
        raise Unfit(f"the code before raises on every input tried: {why}")

    def _guess(self, sizes: Mapping[str, int], lead: tuple[int, ...], first: dict[str, Any]) -> dict[str, Any]:
        """Scalars that are not stated: whether one is an int is a guess, and the code after may know better."""
        for scalars in [first, *scalar_choices(self.region)]:
            case = Case(sizes, lead, scalars=scalars)
            if not self._raises(case) and not self._raises(case, "after"):
                return scalars
        return first

    def _raises(self, case: Case, which: str = "before") -> str:
        try:
            inputs = Inputs(self.region, case, self.seed)
        except DoesNotFit as e:
            return str(e)
        return self._try(which, inputs)[2]

    def _case(self, case: Case) -> None:
        try:
            inputs = Inputs(self.region, case, self.seed)
        except DoesNotFit:
            return
        before, left, why = self._try("before", inputs)
        if why:
            return  # not an input that the code is meant for
        after, right, why = self._try("after", inputs)
        where = f" ({case}; {inputs.shapes()})"
        if self._lacking(why):
            return
        if why:
            raise Wrong(f"the fixed code raises: {why}{where}")
        declared = self.region.numerics == "different dtype"
        if wrong := compare.structure(before, after, dtypes="no wider" if declared else "same"):
            only_dtype = not compare.structure(before, after, dtypes="any")
            if (case.weight_dtype and self.region.needs) or (case.mixed and only_dtype):
                other = f"{case.weight_dtype} weights" if case.weight_dtype else f"float32 beside {case.dtype}"
                self.tally.notes[f"needed: with {other} {wrong}"] = None
                return
            raise Wrong(wrong + where)
        for name, array in left.items():
            if _changed(array, inputs, name) != _changed(right[name], inputs, name):
                raise Wrong(f"{name} is changed in place by one version only{where}")
        self.tally.cases += 1
        self._values(case, inputs, before, after, where)

    def _narrows(self) -> bool:
        """Whether the fix says that its user has to know the values."""
        return bool(self.region.needs) or self.region.numerics in ("less accurate", "different dtype")

    def _lacking(self, why: str) -> bool:
        """Whether it is the device that has no kernel for such inputs."""
        if NO_KERNEL in why:
            self.tally.notes[f"not run where this device has no kernel: {why}"] = None
        return NO_KERNEL in why

    def _values(self, case: Case, inputs: Inputs, before: Any, after: Any, where: str) -> None:
        reference, source = self._reference(inputs)
        if wrong := compare.structure(before, reference, dtypes="any"):
            raise Wrong(f"the analysed code is not the source: {wrong}{where}")
        if source is not None and reference is not source:
            for (path, a), (_, b) in zip(compare.leaves(source), compare.leaves(reference), strict=True):
                if isinstance(a, mx.array) and (gap := compare.relative(a, b)) > SAME_CODE:
                    raise Wrong(f"the analysed code is not the source: {path} differs by {gap:.1e}{where}")
        judged = not self.half_unjudged or all(inputs.array(n).dtype == mx.float32 for n in inputs.names)
        if not judged and case.style in ("large", "huge"):
            return  # overflows here, and not on a GPU
        for (path, a), (_, b), (_, r) in zip(
            compare.leaves(before), compare.leaves(after), compare.leaves(reference), strict=True
        ):
            if not isinstance(a, mx.array):
                continue
            difference = compare.values(a, b, r, judged=judged, huge=case.style == "huge")
            if difference.wrong and not difference.overflowing and a.dtype == b.dtype == mx.float32:
                inherent = self._inherent(inputs, path, r)
                difference = compare.values(a, b, r, judged=judged, huge=case.style == "huge", inherent=inherent)
            if difference.sooner:
                self.tally.notes[f"{compare.short(b.dtype)} values of the last quarter of its range overflow now"] = (
                    None
                )
            if judged:
                plain = not (case.mixed or case.weight_dtype or case.masked)
                self.tally.add(compare.short(a.dtype), difference, plain)
            if difference.overflowing and case.style == "huge" and self._narrows():
                self.tally.notes["needed: no value on the way passes the range of float16"] = None
                return
            if difference.wrong:
                raise Wrong(f"{path}: {difference.wrong}{where}")

    def _gradients(self, case: Case) -> bool:
        """Gradients by every floating input, where the code before has one. Whether they say anything."""
        inputs = Inputs(self.region, case, self.seed)
        if not inputs.names:
            return True

        def gradient(program: Program, given: list[mx.array], wide: Any) -> list[mx.array]:
            def total(arrays: list[mx.array]) -> mx.array:
                values = inputs.replaced(dict(zip(inputs.names, arrays, strict=True)), program.kind)
                out = mx.zeros((), wide)
                for n, (_, leaf) in enumerate(compare.leaves(program(values))):
                    if isinstance(leaf, mx.array) and mx.issubdtype(leaf.dtype, mx.floating):
                        cotangent = mx.random.normal(leaf.shape, key=mx.random.key(n)).astype(wide)
                        out = out + (leaf.astype(wide) * cotangent).sum()
                return out

            mx.random.seed(self.seed)
            got: list[mx.array] = mx.grad(total)(given)
            mx.eval(got)
            return got

        def single(which: str) -> list[mx.array]:
            self.say(which)
            program = self.before if which == "before" else self.after
            got = gradient(program, [inputs.array(n) for n in inputs.names], mx.float32)
            self.say("between")
            return got

        def exact() -> list[mx.array] | None:
            for _, program in self.references:
                with mx.stream(mx.cpu), contextlib.suppress(Exception):
                    return gradient(program, [inputs.array(n).astype(mx.float64) for n in inputs.names], mx.float64)
            return None

        try:
            before = single("before")
        except Exception:
            return True
        try:
            after = single("after")
        except Exception as e:
            if self._lacking(_message(e)):
                return False
            raise Wrong(f"the fixed code has no gradient: {_message(e)}") from e
        worst = 0.0
        true: list[mx.array] | None = None
        for at, (name, a, b) in enumerate(zip(inputs.names, before, after, strict=True)):
            lost = mx.isfinite(a) & ~mx.isfinite(b)
            if mx.any(lost).item():
                raise Wrong(f"the gradient by {name} is inf or NaN where it was finite ({case})")
            gap = compare.relative(a, b)
            if gap > GRADIENT:  # a gradient that nearly cancels has few digits in either
                true = true or exact()
                off = compare.relative(true[at], a) if true else math.inf
                if true and off < CANCELS and compare.relative(true[at], b) <= GRADIENT + ILL * off:
                    self.tally.notes["a gradient that nearly cancels was held against the float64 one"] = None
                    continue
                if true and off >= CANCELS and mx.max(mx.abs(a)).item() < VANISHES:
                    return False
                raise Wrong(f"the gradient by {name} differs by {gap:.1e} of its largest value ({case})")
            worst = max(worst, gap)
        self.tally.gradient = worst
        return True

    def _compiled(self, case: Case) -> None:
        """Whether mx.compile compiled: without g++ it does nothing on the CPU, and nothing was proved."""
        for dtype in ("float32", "bfloat16"):  # a chain of casts is one operation in the dtype that it casts to
            values, _ = Inputs(self.region, replace(case, dtype=dtype), self.seed).fresh(self.after.kind)
            result = self.after(values)
            dot = io.StringIO()
            mx.export_to_dot(dot, *[v for _, v in compare.leaves(result) if isinstance(v, mx.array)])
            if "Compiled" in dot.getvalue():
                return
        raise Unfit("mx.compile was a no-op (no g++?)")


_CPU_HALF = "works in half precision, a GPU's in float32"


def _attributes(text: str) -> set[str]:
    """The names that a text calls or reads, by their last part."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            out.add(node.attr)
        elif isinstance(node, ast.Name):
            out.add(node.id)
    return out


def _changed(array: mx.array, inputs: Inputs, name: str) -> bool:
    old = inputs.array(name)
    return array.shape != old.shape or array.dtype != old.dtype or not mx.array_equal(array, old, equal_nan=True).item()


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    if text and isinstance(error, (ValueError, RuntimeError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
