"""Made-up inputs for a region: sizes, dtypes, values and memory layouts that a wrong rewrite would show under.

A case is a choice of all of them. Values are drawn in float32 on the CPU from a seed, so every device sees the same.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import mlx.core as mx

from fuselint.finding import Region, RegionInput
from fuselint.graph import ops

Style = Literal["normal", "small rows", "large", "huge", "tiny", "offset", "special"]
Layout = Literal["plain", "transposed", "strided", "offset view", "broadcast"]

ROWS, WIDTH = "rows of an unknown shape", "width of an unknown shape"
FLOATS = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
INTS = {n: getattr(mx, n) for n in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()}


MOST_ELEMENTS = 1 << 20
WIDE = 512
"""A row over which sums in half precision lose digits."""


class BadInput(Exception):
    """An input that can't be made: says which and why."""


class DoesNotFit(BadInput):
    """Sizes that are too large to try, or negative."""


@dataclass(frozen=True, slots=True)
class Case:
    """One choice of inputs. `lead` stands for "..." in shapes; `turn` alternates what comes in several kinds.

    mixed: every second activation is float32, or the last one only. masked: the first row of every mask lets nothing
    through.
    """

    sizes: Mapping[str, int]
    lead: tuple[int, ...] = ()
    dtype: str = "float32"
    weight_dtype: str = ""  # as dtype where empty
    style: Style = "normal"
    layout: Layout = "plain"
    turn: int = 0
    scalars: Mapping[str, Any] = field(default_factory=dict)
    mixed: Literal["", "second", "last"] = ""
    masked: bool = False

    def __str__(self) -> str:
        dtype = self.dtype + (f" with {self.weight_dtype} weights" if self.weight_dtype else "")
        dtype += " beside float32" if self.mixed else ""
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items() if k not in (ROWS, WIDTH))
        extra = [f"leading axes {self.lead}"] if self.lead else []
        extra += ["a row that is fully masked"] if self.masked else []
        return ", ".join([dtype, *([sizes] if sizes else []), *extra, f"{self.style} values", f"{self.layout} layout"])


def shape_of(given: RegionInput) -> tuple[str, ...]:
    """The template of an array: what is stated, or else rows of one width, the same for all."""
    if given.shape is not None:
        return given.shape
    return (WIDTH,) if given.dtype == "weight" else ("...", ROWS, WIDTH)


def symbols(region: Region) -> tuple[list[str], set[str]]:
    """The names of sizes, in order of appearance, and those that stand on a last axis."""
    names: dict[str, None] = {}
    last: set[str] = set()
    for given in region.inputs:
        template = shape_of(given) if given.kind in ("array", "none") and _is_array(given) else ()
        for i, axis in enumerate(template):
            found = [] if axis == "..." else list(_names(axis))
            names.update(dict.fromkeys(found))
            if i == len(template) - 1:
                last.update(found)
        if given.symbol is not None:
            names.update(dict.fromkeys(_names(given.symbol)))
        if given.kind == "object":
            names.update(dict.fromkeys(n for a in _sized(given) for n in _names(ast.unparse(a))))
    return list(names), last


def _sized(given: RegionInput) -> list[ast.expr]:
    """The arguments of a layer's construction that are sizes by name."""
    try:
        call = ast.parse(str(given.value), mode="eval").body
    except SyntaxError:
        return []
    arguments = [*call.args, *(k.value for k in call.keywords)] if isinstance(call, ast.Call) else []
    return [a for a in arguments if any(isinstance(n, ast.Name) for n in ast.walk(a))]


def _is_array(given: RegionInput) -> bool:
    return given.kind == "array" or (given.kind == "none" and given.shape is not None)


def _names(axis: str) -> Iterator[str]:
    if axis in (ROWS, WIDTH):
        yield axis
        return
    try:
        tree = ast.parse(axis, mode="eval").body
    except SyntaxError as e:
        raise BadInput(f"the size {axis!r} can't be read") from e
    stack: list[ast.expr] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.BinOp):
            stack += [node.right, node.left]
        elif isinstance(node, ast.UnaryOp):
            stack.append(node.operand)
        elif not isinstance(node, ast.Constant):
            yield ast.unparse(node)


def size(axis: str, sizes: Mapping[str, int]) -> int:
    """The number that a size such as `64`, `D` or `4*D // n` stands for."""
    if axis in sizes:
        return sizes[axis]

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            a, b = value(node.left), value(node.right)
            if isinstance(node.op, ast.Mult):
                return a * b
            if isinstance(node.op, ast.Add):
                return a + b
            if isinstance(node.op, ast.Sub):
                return a - b
            if isinstance(node.op, (ast.FloorDiv, ast.Div)) and b:
                return a // b
            raise DoesNotFit(f"the size {axis!r} can't be computed")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return int(node.value)
        name = ast.unparse(node)
        if name not in sizes:
            raise BadInput(f"the size {axis!r} is not known")
        return sizes[name]

    return value(ast.parse(axis, mode="eval").body)


def assignments(region: Region) -> list[dict[str, int]]:
    """Choices of sizes to try, the most telling first: all different, so that a mixed-up axis shows.

    Some will not fit the region (heads that must divide, axes that must be equal): those where the code before
    raises are passed over.
    """
    names, last = symbols(region)
    if not names:
        return [{}]

    steps = _steps(region)

    def whole(sizes: Mapping[str, int]) -> dict[str, int]:
        return {n: size * steps.get(n, 1) for n, size in sizes.items()}

    def spread(values: Sequence[int]) -> dict[str, int]:
        return {n: values[min(i, len(values) - 1)] for i, n in enumerate(names)}

    wide = iter((64, 96, 128, 32, 16))
    narrow = iter((2, 4, 12, 6, 10, 3, 5))
    tried = [
        spread((2, 4, 6, 8, 10, 12, 14, 18)),
        spread((3, 7, 5, 9, 11, 13, 15, 17)),
        spread((16, 8, 4, 2, 2)),
        spread((2, 4, 8, 16, 32)),
        {n: next(wide, 64) if n in last else next(narrow, 8) for n in names},
        {n: 64 if n in last else 12 if i % 2 else 4 for i, n in enumerate(names)},
        {n: 8 if n in last else 1 for n in names},
        dict.fromkeys(names, 8),
        dict.fromkeys(names, 1),
        {n: WIDE if n in last else 2 for n in names},
    ]
    return [whole(sizes) for sizes in tried]


def _steps(region: Region) -> dict[str, int]:
    """What a size must be a multiple of: 64 for D, where an axis is D/64."""
    steps: dict[str, int] = {}
    for given in region.inputs:
        for axis in (given.shape or ()) if given.kind == "array" else ():
            if divided := re.fullmatch(r"(\w+)(?:\*\d+)?/(\d+)", axis):
                steps[divided[1]] = math.lcm(steps.get(divided[1], 1), int(divided[2]))
    return steps


def readings(region: Region) -> Iterator[Region]:
    """The region, then with other guesses about its inputs, for where the code before raises on the first ones.

    What is combined by `&` or chooses in `where` is boolean, an index is an integer; then, shapes that were said may
    not fit each other: all arrays have one shape.
    """
    used = {name: kind for name, kind in _uses(region) if kind != "array"}
    arrays = {name for name, kind in _uses(region) if kind != "int"}
    sharper = [_as_array(i, used) if i.name in arrays else i for i in region.inputs]
    if tuple(sharper) != region.inputs:
        yield (region := replace(region, inputs=tuple(sharper)))
    width = next((ast.unparse(s) for i in region.inputs if i.kind == "object" for s in _sized(i)), None)
    if width is not None and any(_is_free(i) for i in region.inputs):  # a layer takes arrays of its first size
        rows = [replace(i, shape=("...", ROWS, width)) if _is_free(i) else i for i in region.inputs]
        yield replace(region, inputs=tuple(rows))
    yield region
    guessed = [
        replace(i, dtype=used[i.name]) if i.dtype == "activation" and i.name in used else i for i in region.inputs
    ]
    other = replace(region, inputs=tuple(guessed))
    if other != region:
        yield other
    alike = [replace(i, shape=None) if i.kind == "array" else i for i in guessed]
    if tuple(alike) != other.inputs:
        yield replace(region, inputs=tuple(alike))


def _is_free(given: RegionInput) -> bool:
    return given.kind == "array" and given.shape is None and given.dtype == "activation"


def _as_array(given: RegionInput, used: Mapping[str, str]) -> RegionInput:
    """What is not known to be an array, but is used as one."""
    if given.kind != "scalar" or given.value is not None or given.symbol is not None:
        return given
    return replace(given, kind="array", dtype=used.get(given.name, given.dtype))


def _uses(region: Region) -> Iterator[tuple[str, str]]:
    """Inputs that are booleans, integers or arrays by how the code uses them."""
    tables = {i.name for i in region.inputs if i.kind == "object" and str(i.value).startswith("nn.Embedding(")}
    for text in (region.before, region.support_before):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in tables and node.args:
                yield ast.unparse(node.args[0]), "int"
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
                yield from ((ast.unparse(side), "bool") for side in (node.left, node.right))
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
                yield ast.unparse(node.operand), "bool"
            elif isinstance(node, ast.Subscript):
                yield ast.unparse(node.slice), "int"
            elif isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "ndim", "T"):
                yield ast.unparse(node.value), "array"
            elif isinstance(node, ast.Call):
                called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if called == "where" and node.args:
                    yield ast.unparse(node.args[0]), "bool"
                elif called in ("take", "take_along_axis") and len(node.args) > 1:
                    yield ast.unparse(node.args[1]), "int"


def leads(region: Region) -> list[tuple[int, ...]]:
    """What "..." may stand for. Code that unpacks a shape takes one rank only: cases that raise are passed over."""
    free = any("..." in shape_of(i) for i in region.inputs if _is_array(i))
    return [(2,), (3, 2), (), (2, 1, 3)] if free else [()]


def scalar_choices(region: Region) -> list[dict[str, Any]]:
    """Values to try for the scalars that the source does not state: a size or a count must be an int.

    A scalar that is added under a root is an eps (`eps_names`).
    """
    free = [i for i in region.inputs if i.kind == "scalar" and i.value is None and i.symbol is None]
    small = eps_names(region)
    options = [[(i.name, v) for v in ((1e-5,) if i.name in small else (0.35, 2, 4, 1, 0))] for i in free]
    return [dict(pick) for pick in itertools.islice(itertools.product(*options), 64)]


def changed(scalars: Mapping[str, Any], region: Region) -> dict[str, Any]:
    """The float scalars with other values, to show one that was taken for a constant."""
    small = eps_names(region)
    return {k: (1e-3 if k in small else 1.75) if isinstance(v, float) else v for k, v in scalars.items()}


def eps_names(region: Region) -> set[str]:
    """The free scalars that guard a root: those added inside sqrt, rsqrt or a fractional power, or called eps."""
    names = {i.name for i in region.inputs if i.kind == "scalar"}
    out = {n for n in names if "eps" in n.rpartition(".")[2].lower()}
    for text in (region.before, region.after, region.support_before):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            inner: list[ast.expr] = []
            if isinstance(node, ast.Call):
                f = node.func
                called = f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "")
                if called in ("sqrt", "rsqrt"):
                    inner = [*node.args, *([f.value] if isinstance(f, ast.Attribute) else [])]
                elif called in ("rms_norm", "layer_norm"):
                    out |= {ast.unparse(a) for a in node.args} & names
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
                inner = [node.left]
            for root in inner:
                for part in ast.walk(root):
                    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
                        out |= {ast.unparse(part.left), ast.unparse(part.right)} & names
    return out


def eps_values(region: Region) -> list[float]:
    """What the region guards its roots with: rows of that scale show where the eps stands."""
    found = {float(i.value) for i in region.inputs if isinstance(i.value, float) and 0 < i.value < 1e-2}
    for text in (region.before, region.after, region.support_before, region.support_after):
        for match in re.finditer(r"(?<![\w.])(\d+\.?\d*(?:[eE]-\d+)|0?\.0\d*)", text):
            value = float(match[1])
            if 0 < value < 1e-2:
                found.add(value)
    return sorted(v for v in found if v > 1e-30) or [1e-5]


def cases(
    region: Region,
    sizes: Sequence[Mapping[str, int]],
    scalars: Mapping[str, Any],
    compiled: bool = False,
    lead: tuple[int, ...] = (),
    empty: bool = True,
) -> Iterator[Case]:
    """The cases of a region, for the sizes and scalars that its code before runs with, and a `lead` that it takes.

    compiled: a helper goes through mx.compile, where each new dtype and layout costs a compiler run on the CPU.
    empty: whether to try batches of none. MLX 0.32.4 itself fails on them on CUDA: fast.rms_norm raises, a compiled
    kernel ends the process. On the CPU it fails where an axis that is reduced is empty: fast.layer_norm may hang.
    """
    wide = next((s for s in sizes if WIDE in s.values()), None)
    main, *others = [s for s in sizes if s is not wide] or sizes
    others = others or [main]
    second, third = others[0], others[len(others) // 2]
    ranks = leads(region)
    free = len(ranks) > 1
    deep, none = (ranks[1], ranks[2]) if free else ((), ())
    other = changed(scalars, region)
    yield Case(main, lead, scalars=scalars)
    yield Case(main, lead, style="small rows", layout="transposed", turn=1, scalars=scalars)
    yield Case(second, lead, turn=2, scalars=other)
    if free:
        yield Case(second, none, turn=1, scalars=scalars)
    if not compiled:
        yield Case(second, deep, style="small rows", turn=3, scalars=other)
        yield Case(main, lead, layout="strided", style="offset", turn=0, scalars=scalars)
        yield Case(second, lead, layout="broadcast", turn=2, scalars=scalars)
    yield Case(third, deep, style="special", layout="offset view", turn=1, scalars=scalars)
    for n, one in enumerate(others[1:]):
        yield Case(one, lead, turn=n, scalars=other if n % 2 else scalars)
    if empty and not any("not empty" in n for n in region.needs):
        if free:
            yield Case(main, (0,) * max(1, len(lead)), turn=0, scalars=scalars)
        elif (batch := next((n for n in main if n == "B" or "batch" in n.lower()), None)) is not None:
            yield Case({**main, batch: 0}, lead, scalars=scalars)
    yield Case(second, lead, style="tiny", turn=3, scalars=scalars)
    for dtype in ("float16", "bfloat16"):
        yield Case(main, lead, dtype, turn=0, scalars=scalars)
        yield Case(third, lead, dtype, style="large", turn=1, scalars=scalars)
        yield Case(second, lead, dtype, turn=2, scalars=other)
        if wide:
            yield Case(wide, lead, dtype, turn=1, scalars=scalars)
    yield Case(second, lead, "float16", style="huge", turn=0, scalars=scalars)
    yield Case(second, lead, "float16", style="tiny", turn=1, scalars=scalars)
    yield Case(second, lead, "bfloat16", style="small rows", turn=3, scalars=scalars)
    if any(i.dtype == "weight" for i in region.inputs):
        yield Case(main, lead, "bfloat16", "float32", turn=0, scalars=scalars)
    if sum(i.kind == "array" and i.dtype == "activation" for i in region.inputs) > 1:
        yield Case(main, lead, "bfloat16", turn=0, scalars=scalars, mixed="second")
        if not compiled:
            yield Case(main, lead, "float16", turn=0, scalars=scalars, mixed="last")
    if any(i.dtype in ("mask", "bool", "bool_") for i in region.inputs):
        yield Case(main, lead, scalars=scalars, masked=True)


class Inputs:
    """The values of a case. `fresh()` gives them anew for each run, so that a run that changes one shows."""

    def __init__(self, region: Region, case: Case, seed: int) -> None:
        self._region, self.case, self._seed = region, case, seed
        self._arrays: dict[str, mx.array] = {}
        self._plain: dict[str, Any] = {}
        self._layers: dict[str, Layer] = {}
        with mx.stream(mx.cpu):
            for n, given in enumerate(region.inputs):
                self._make(n, given, seed)
            mx.eval(list(self._arrays.values()))

    def _make(self, n: int, given: RegionInput, seed: int) -> None:
        case = self.case
        n = next((i for i, other in enumerate(self._region.inputs) if other.name == given.beside), n)
        if given.kind == "none" and (given.shape is None or (case.turn + n) % 2):
            self._plain[given.name] = None
        elif _is_array(given):
            self._arrays[given.name] = self._array(given, f"{seed} {given.name} {case}")
        elif given.kind == "dtype":
            self._plain[given.name] = getattr(mx, self._dtype(str(given.value or given.dtype)))
        elif given.kind == "bool":
            self._plain[given.name] = bool(case.turn % 2) if given.value is None else given.value
        elif given.kind == "object":
            self._layers[given.name] = layer(given, case.sizes)
        elif given.symbol is not None:
            self._plain[given.name] = size(given.symbol, case.sizes)
        elif given.value is not None:
            self._plain[given.name] = given.value
        elif given.name in case.scalars:
            self._plain[given.name] = case.scalars[given.name]
        else:
            raise BadInput(f"the value of {given.name} is not known")

    def _dtype(self, wanted: str) -> str:
        """The name of a dtype that is an input. One that is not known is now and then narrower than the arrays."""
        case = self.case
        if wanted == "activation":
            return "bfloat16" if case.dtype == "float32" and case.turn % 2 else case.dtype
        return (case.weight_dtype or case.dtype) if wanted == "weight" else wanted

    def _array(self, given: RegionInput, salt: str) -> mx.array:
        case = self.case
        shape: list[int] = []
        for axis in shape_of(given):
            shape += case.lead if axis == "..." else [size(axis, case.sizes)]
        if math.prod(shape) > MOST_ELEMENTS:
            raise DoesNotFit(f"{given.name} of the shape {tuple(shape)} is too large to try")
        if any(d < 0 for d in shape):
            raise DoesNotFit(f"the shape of {given.name} is negative")
        key = mx.random.key(int.from_bytes(hashlib.sha256(salt.encode()).digest()[:7], "big"))
        if given.dtype in ("int", *INTS):
            top = max(1, min([2, *(v for v in case.sizes.values() if v > 0)]))
            drawn = mx.random.randint(0, top, shape, key=key)
            return drawn.astype(INTS.get(given.dtype, mx.int32))
        if given.dtype in ("bool", "bool_"):
            kept = _keep_one(mx.random.bernoulli(0.7, shape, key=key))
            return mx.where(_first_row(shape), False, kept) if case.masked else kept
        if given.dtype == "mask":
            mask = _mask(shape, case.turn, key)
            return (mx.where(_first_row(shape), -1e9, mask) if case.masked else mask).astype(FLOATS[case.dtype])
        if given.dtype == "weight":
            drawn = 0.7 + 0.5 * mx.random.normal(shape, key=key)
            return drawn.astype(FLOATS[case.weight_dtype or case.dtype])
        if given.dtype != "activation" and given.dtype not in FLOATS:
            raise BadInput(f"{given.name} has the dtype {given.dtype}, which can't be made")
        dtype = FLOATS[self._activation(given) if given.dtype == "activation" else given.dtype]
        drawn = _values(shape, case.style, key, eps_values(self._region)).astype(dtype)
        if case.layout == "broadcast" and drawn.ndim >= 2 and drawn.size:
            drawn = mx.contiguous(mx.broadcast_to(drawn[:1], drawn.shape))
        return drawn

    def _activation(self, given: RegionInput) -> str:
        """The dtype of an activation."""
        others = [i.name for i in self._region.inputs if _is_array(i) and i.dtype == "activation"]
        wide = {"": [], "second": others[1::2], "last": others[-1:]}[self.case.mixed]
        return "float32" if given.name in wide else self.case.dtype

    @property
    def names(self) -> list[str]:
        """The array inputs of a floating dtype: what a gradient is taken by."""
        return [n for n, a in self._arrays.items() if mx.issubdtype(a.dtype, mx.floating)]

    def array(self, name: str) -> mx.array:
        return self._arrays[name]

    def shapes(self) -> str:
        return ", ".join(f"{n} {tuple(a.shape)}" for n, a in self._arrays.items())

    def fresh(self, kind: type | None = None) -> tuple[dict[str, Any], dict[str, mx.array]]:
        """The namespace of a run, and its arrays by input name, laid out as the case says."""
        given = {g.name: g for g in self._region.inputs}
        layout = self.case.layout
        arrays = {
            n: _lay(a, "plain" if layout == "broadcast" and given[n].dtype != "activation" else layout)
            for n, a in self._arrays.items()
        }
        mx.eval(list(arrays.values()))
        dtype = FLOATS[self.case.weight_dtype or self.case.dtype]
        return namespace({**self._plain, **self._made(dtype), **arrays}, kind), arrays

    def replaced(self, arrays: Mapping[str, mx.array], kind: type | None = None) -> dict[str, Any]:
        """The namespace of a run with other arrays in place of some."""
        _, own = self.fresh(kind)
        dtype = FLOATS[self.case.weight_dtype or self.case.dtype]
        return namespace({**self._plain, **self._made(dtype), **own, **arrays}, kind)

    def exact(self, kind: type | None = None) -> dict[str, Any]:
        """The namespace of a float64 run."""
        with mx.stream(mx.cpu):
            arrays = {n: _as_double(a) for n, a in self._arrays.items()}
            return namespace({**self._plain, **self._made(mx.float64), **arrays}, kind)

    def single(self, kind: type | None = None) -> dict[str, Any]:
        """The namespace of a float32 run on the same values."""
        arrays = {
            n: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else mx.array(a)
            for n, a in self._arrays.items()
        }
        return namespace({**self._plain, **self._made(mx.float32), **arrays}, kind)

    def _made(self, dtype: Any) -> dict[str, Any]:
        """The layers, each anew, with parameters of that dtype."""
        stored = FLOATS[self.case.weight_dtype or self.case.dtype]
        return {n: make(stored, dtype, f"{self._seed} {n} {self.case.sizes}") for n, make in self._layers.items()}


def _as_double(a: mx.array) -> mx.array:
    return a.astype(mx.float64) if mx.issubdtype(a.dtype, mx.floating) else mx.array(a)


class Holder:
    """Stands for an object of which only some attributes are known."""


def namespace(values: Mapping[str, Any], kind: type | None) -> dict[str, Any]:
    """Names and dotted names as a namespace: `self.weight` becomes an attribute of an object named `self`.

    kind: the class of `self`, where the region's support defines one.
    """
    out: dict[str, Any] = {}
    for name in sorted(values, key=lambda n: n.count(".")):
        parts = name.split(".")
        if not all(p.isidentifier() for p in parts):
            raise BadInput(f"the name {name} can't be given a value")
        if len(parts) == 1:
            out[name] = values[name]
            continue
        at = out.setdefault(parts[0], (kind or Holder)() if parts[0] == "self" else Holder())
        for part in parts[1:-1]:
            if not hasattr(at, part):
                setattr(at, part, Holder())
            at = getattr(at, part)
        try:
            setattr(at, parts[-1], values[name])
        except AttributeError as e:
            raise BadInput(f"the name {name} can't be given a value") from e
    if kind is not None:
        out.setdefault("self", kind())
    return out


Layer = Callable[[Any, Any, str], Any]
"""Makes a layer: stored dtype (what its parameters are rounded to), dtype, salt of the seed."""


def layer(given: RegionInput, sizes: Mapping[str, int]) -> Layer:
    """A layer of mlx.nn from the text of its construction, such as `nn.Linear(D, 4 * D, bias=False)`, or `nn.silu`."""
    text = str(given.value)
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        call = ast.Constant(None)
    name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
    op = ops.resolve_call(f"mlx.{name}") if name.startswith("nn.") else None
    function = ops.resolve_call(f"mlx.{text}") if text.startswith("nn.") else None
    if function is not None and function.kind == "activation":
        import mlx.nn

        found = getattr(mlx.nn, text.removeprefix("nn."))
        return lambda stored, dtype, salt: found
    if not isinstance(call, ast.Call) or op is None or op.kind != "layer":
        raise BadInput(f"{given.name} is an object that can't be made here")

    def argument(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except ValueError:
            return size(ast.unparse(node), sizes)

    args = [argument(a) for a in call.args]
    options = {k.arg: argument(k.value) for k in call.keywords if k.arg}

    def make(stored: Any, dtype: Any, salt: str) -> Any:
        import mlx.nn
        from mlx.utils import tree_map_with_path

        number = int.from_bytes(hashlib.sha256(salt.encode()).digest()[:4], "big")
        mx.random.seed(number)
        made = getattr(mlx.nn, name.removeprefix("nn."))(*args, **options)

        def value(path: str, a: mx.array) -> mx.array:
            if not mx.issubdtype(a.dtype, mx.floating):
                return a
            if a.ndim == 1:  # ones or zeros, which would hide a factor or a term that is lost
                key = mx.random.key(number ^ int.from_bytes(path.encode()[-4:], "big"))
                a = 0.7 + 0.5 * mx.random.normal(a.shape, key=key)
            return a.astype(stored).astype(dtype)

        made.update(tree_map_with_path(value, made.parameters()))
        mx.eval(made.parameters())
        made.eval()
        return made

    return make


def _values(shape: list[int], style: Style, key: mx.array, eps: Iterable[float]) -> mx.array:
    drawn = mx.random.normal(shape, key=key)
    if not shape or not drawn.size or style == "normal":
        return drawn
    if style == "large":
        return mx.clip(100 * drawn, -300, 300)
    if style == "huge":  # close to what float16 can hold, with ordinary values beside
        return mx.where(mx.arange(shape[-1]) % 3 == 0, mx.clip(20_000 * drawn, -60_000, 60_000), drawn)
    if style == "tiny":  # subnormal in float16, and some in float32
        scales = mx.array([1.0, 2e-6, 1e-40])[mx.arange(shape[-1]) % 3]
        return drawn * scales
    if style == "offset":
        return 30 + drawn
    if style == "small rows":
        return drawn * _rows(shape, [s * e**0.5 for e in eps for s in (1.0, 0.3, 3.0)] + [0.0])
    width = shape[-1]
    step = mx.arange(width)
    patterns = [
        mx.zeros(width),
        -mx.zeros(width),
        (step == width // 2).astype(mx.float32),
        mx.where(step % 2 == 0, 1.0, -1.0),
    ]
    table = mx.stack(patterns)  # one pattern a row, then ordinary rows
    row = mx.arange(drawn.size // width) % (len(patterns) + 2)
    special = table[mx.minimum(row, len(patterns) - 1)]
    ordinary = drawn.reshape(-1, width)
    return mx.where((row < len(patterns))[:, None], special, ordinary).reshape(shape)


def _rows(shape: list[int], scales: Sequence[float]) -> mx.array:
    """Factors by row, over all leading axes: every scale is met, the first ones most often."""
    count = 1
    for d in shape[:-1]:
        count *= d
    return mx.array([scales[i % len(scales)] for i in range(count)]).reshape(*shape[:-1], 1)


def _keep_one(mask: mx.array) -> mx.array:
    """A mask that lets the first key of each row through: a row that is fully masked has no defined result."""
    if mask.ndim == 0 or mask.shape[-1] == 0:
        return mask
    return mask | (mx.arange(mask.shape[-1]) == 0)


def _mask(shape: list[int], turn: int, key: mx.array) -> mx.array:
    """An additive mask: padding of -1e9 or -inf, causal, or a bias with values of its own."""
    if turn % 4 == 2:
        return mx.random.normal(shape, key=key)
    if turn % 4 == 1 and len(shape) >= 2:
        length, keys = shape[-2:]
        allowed = mx.arange(length)[:, None] + (keys - length) >= mx.arange(keys)[None]
        allowed = mx.broadcast_to(_keep_one(allowed), shape)
    else:
        allowed = _keep_one(mx.random.bernoulli(0.6, shape, key=key))
    return mx.where(allowed, 0.0, -mx.inf if turn % 4 == 3 else -1e9)


def _first_row(shape: Sequence[int]) -> mx.array:
    """True in the first row of each matrix; the whole of a mask of one axis."""
    return mx.arange(shape[-2])[:, None] == 0 if len(shape) > 1 else mx.array(True)


def _lay(a: mx.array, layout: Layout) -> mx.array:
    """A new array object of the same values, in another layout of memory."""
    if a.ndim == 0 or a.size == 0:
        return mx.array(a)
    if layout == "transposed" and a.ndim >= 2:
        return mx.contiguous(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "strided":
        return mx.repeat(a, 2, axis=-1)[..., ::2]
    if layout == "offset view":
        return mx.concatenate([a[:1], a], axis=0)[1:]
    if layout == "broadcast" and a.ndim >= 2:
        return mx.broadcast_to(a[:1], a.shape)
    return mx.array(a)
