"""The identities of single operations: what each becomes in the canonical form.

TABLE maps an operation of the graph to a function of the canonical form and the node. A function returns the node's
value, or None where its identity doesn't hold: then the node is an atom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fuselint.graph.model import Node, Slice
from fuselint.graph.values import HALF, ONE, Value, close, exponent

if TYPE_CHECKING:
    from fuselint.graph.canonical import Canonical

Identity = Callable[["Canonical", Node], "Value | None"]

TABLE: dict[str, Identity] = {}

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
NOT_FLOATS = frozenset("bool_ bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 complex64".split())

COMMUTATIVE = frozenset("maximum minimum logaddexp logical_and logical_or equal not_equal bitwise_and bitwise_or bitwise_xor".split())

NONNEGATIVE = frozenset("exp sigmoid softmax abs square sqrt rsqrt".split())


def identity(*ops: str) -> Callable[[Identity], Identity]:
    def enter(rule: Identity) -> Identity:
        for op in ops:
            TABLE[op] = rule
        return rule

    return enter


def linear(c: Canonical, v: Value, make: Callable[[Value], Value]) -> Value:
    """make(scalar * rest) = scalar * make(rest): what every linear operation does with a scalar."""
    outer = [(b, e) for b, e in v.factors if b.scalar]
    rest = [(b, e) for b, e in v.factors if not b.scalar]
    if not rest or (not outer and v.coefficient == 1.0):
        return make(v)
    c.algebra.note("a scalar moves out of a linear operation")
    return c.algebra.product(v.coefficient, [*outer, (make(c.algebra.product(1.0, rest)), ONE)])


# -- leaves ------------------------------------------------------------------------------------------------------------


@identity("const")
def _const(c: Canonical, node: Node) -> Value | None:
    value = node.attrs.get("value")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return c.algebra.number(float(value))
    return c.algebra.atom("const", params=(("value", repr(value)), ("kind", node.attrs.get("kind"))), name=repr(value))


@identity("global", "attr", "param")
def _named(c: Canonical, node: Node) -> Value | None:
    """Names whose value facts know, and integers that are the length of some axis."""
    value = c.facts.const(node)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return c.algebra.number(float(value))
    return c.length(node)


@identity("call")
def _call(c: Canonical, node: Node) -> Value | None:
    """math.sqrt and the like, of numbers."""
    name = str(node.attrs.get("target") or "")
    rule = CALLS.get(name)
    if rule is None or node.attrs.get("keywords") or not node.inputs or any(c.facts.kind(n) == "array" for n in node.inputs):
        return None
    return rule(c, node)


@identity("dim")
def _dim(c: Canonical, node: Node) -> Value | None:
    axis = node.attrs.get("axis")
    if not isinstance(axis, int):
        return None
    x = node.inputs[0]
    return c.size_of(x, c.axis(x, axis))


@identity("item")
def _item(c: Canonical, node: Node) -> Value | None:
    """An entry of x.shape, or of a display."""
    index = node.attrs.get("index")
    if not isinstance(index, int) or not node.inputs:
        return None
    held = node.inputs[0]
    if held.op == "shape":
        x = held.inputs[0]
        return c.size_of(x, c.axis(x, index))
    if held.op in ("tuple", "list") and -len(held.inputs) <= index < len(held.inputs):
        return c.of(held.inputs[index])
    return None


@identity("ndim")
def _ndim(c: Canonical, node: Node) -> Value | None:
    rank = c.rank(node.inputs[0])
    return None if rank is None else c.algebra.number(float(rank))


# -- casts and copies --------------------------------------------------------------------------------------------------


@identity("astype")
def _astype(c: Canonical, node: Node) -> Value | None:
    """A cast to a floating dtype is transparent; a cast to an integer truncates."""
    names = set(c.facts.dtype(node))
    target = node.attrs.get("dtype")
    if isinstance(target, str):
        names = {target.rsplit(".", 1)[-1]}
    if names & NOT_FLOATS:
        return None
    return c.of(node.inputs[0])


@identity("contiguous", "nn.Identity")
def _same(c: Canonical, node: Node) -> Value | None:
    return c.of(node.inputs[0])


# -- arithmetic --------------------------------------------------------------------------------------------------------


@identity("add")
def _add(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    if c.facts.kind(node) in ("tuple", "str"):  # list and string concatenation
        return None
    return c.algebra.add(c.of(a), c.of(b))


@identity("subtract")
def _subtract(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    return c.algebra.subtract(c.of(a), c.of(b))


@identity("multiply")
def _multiply(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    if c.facts.kind(node) in ("tuple", "str"):
        return None
    return c.algebra.multiply(c.of(a), c.of(b))


@identity("divide")
def _divide(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    c.algebra.note("a / b is a * b^-1")
    return c.algebra.divide(c.of(a), c.of(b))


@identity("negative")
def _negative(c: Canonical, node: Node) -> Value | None:
    return c.algebra.scale(c.of(node.inputs[0]), -1.0)


@identity("positive")
def _positive(c: Canonical, node: Node) -> Value | None:
    return c.of(node.inputs[0])


@identity("square")
def _square(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("square(a) is a^2")
    return c.algebra.power(c.of(node.inputs[0]), Fraction(2))


@identity("sqrt")
def _sqrt(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("sqrt(a) is a^(1/2)")
    return c.algebra.power(c.of(node.inputs[0]), HALF)


@identity("rsqrt")
def _rsqrt(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("rsqrt(a) is a^(-1/2)")
    return c.algebra.power(c.of(node.inputs[0]), -HALF)


@identity("reciprocal")
def _reciprocal(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("reciprocal(a) is a^-1")
    return c.algebra.power(c.of(node.inputs[0]), Fraction(-1))


@identity("power")
def _power(c: Canonical, node: Node) -> Value | None:
    base, e = (c.of(n) for n in node.inputs)
    return raised(c, base, e)


def raised(c: Canonical, base: Value, e: Value) -> Value | None:
    if e.number is not None:
        fraction = exponent(e.number)
        if fraction is not None and fraction != 0:
            return c.algebra.power(base, fraction)
    elif base.number is not None and base.number > 0 and not e.scalar:
        c.algebra.note("number ** u is exp(log(number) * u)")
        return exponential(c, c.algebra.scale(e, math.log(base.number)))
    return c.algebra.atom("pow", (base, e), scalar=base.scalar and e.scalar, nonnegative=base.nonnegative)


def exponential(c: Canonical, u: Value) -> Value:
    if u.number is not None:
        return c.algebra.number(math.exp(u.number))
    return c.algebra.atom("exp", (u,), scalar=u.scalar, nonnegative=True)


@identity("exp")
def _exp(c: Canonical, node: Node) -> Value | None:
    return exponential(c, c.of(node.inputs[0]))


ODD = {"erf": math.erf, "tanh": math.tanh, "sin": math.sin, "sinh": math.sinh, "arctan": math.atan, "sign": None, "tan": math.tan}
EVEN = {"cos": math.cos, "cosh": math.cosh}


def odd(c: Canonical, op: str, u: Value) -> Value:
    function = ODD[op]
    if u.number is not None and function is not None:
        return c.algebra.number(function(u.number))
    if u.coefficient < 0:
        c.algebra.note(f"{op}(-u) is -{op}(u)")
        return c.algebra.scale(odd(c, op, c.algebra.scale(u, -1.0)), -1.0)
    return c.algebra.atom(op, (u,), scalar=u.scalar, nonnegative=op != "sin" and op != "tan" and u.nonnegative)


def _odd(op: str) -> Identity:
    return lambda c, node: odd(c, op, c.of(node.inputs[0]))


def _even(op: str) -> Identity:
    def rule(c: Canonical, node: Node) -> Value | None:
        u = c.of(node.inputs[0])
        if u.number is not None:
            return c.algebra.number(EVEN[op](u.number))
        if u.coefficient < 0:
            u = c.algebra.scale(u, -1.0)
        return c.algebra.atom(op, (u,), scalar=u.scalar)

    return rule


for _op in ODD:
    TABLE[_op] = _odd(_op)
for _op in EVEN:
    TABLE[_op] = _even(_op)


@identity("abs")
def _abs(c: Canonical, node: Node) -> Value | None:
    return c.algebra.absolute(c.of(node.inputs[0]))


@identity("log")
def _log(c: Canonical, node: Node) -> Value | None:
    u = c.of(node.inputs[0])
    if len(node.inputs) != 1:
        return None
    if u.number is not None and u.number > 0:
        return c.algebra.number(math.log(u.number))
    if u.op == "reduce_sum" and u.args[0].op == "exp":
        c.algebra.note("log(sum(exp(u))) is logsumexp(u)")
        return c.algebra.atom("logsumexp", u.args[0].args, u.params)
    return c.algebra.atom("log", (u,), scalar=u.scalar)


@identity("floor_divide")
def _floor_divide(c: Canonical, node: Node) -> Value | None:
    a, b = (c.of(n) for n in node.inputs)
    if a.number is not None and b.number:
        return c.algebra.number(float(a.number // b.number))
    if b.is_number(1.0) and a.scalar and a.op == "size":
        return a
    return None


# -- reductions --------------------------------------------------------------------------------------------------------


def reduced(c: Canonical, op: str, x: Node, v: Value, axis: Any, keepdims: Any) -> Value | None:
    """A reduction, always over kept axes, squeezed after where the node drops them."""
    axes = c.axes(x, axis)
    if axes == "?" or isinstance(keepdims, Node):
        return None
    if c.facts.kind(x) == "scalar":
        return None
    whole = kept(c, op, v, axes)
    return whole if keepdims else squeezed(c, whole, axes)


def kept(c: Canonical, op: str, v: Value, axes: tuple[int, ...] | None | str) -> Value:
    def make(u: Value) -> Value:
        if op == "mean" and u.op == "sum":
            outside = [(m, k) for m, k in u.terms if m.scalar]
            inside = [(m, k) for m, k in u.terms if not m.scalar]
            if inside and (outside or u.constant):
                c.algebra.note("mean(u + scalar) is mean(u) + scalar")
                rest = kept(c, op, c.algebra.sum(0.0, inside), axes)
                return c.algebra.sum(u.constant, [(rest, 1.0), *outside])
        return c.algebra.atom(op, (u,), (("axes", axes), ("keepdims", True)), nonnegative=u.nonnegative)

    return linear(c, v, make)


def squeezed(c: Canonical, v: Value, axes: tuple[int, ...] | None | str) -> Value:
    return linear(c, v, lambda u: c.algebra.atom("squeeze", (u,), (("axes", axes),), nonnegative=u.nonnegative))


@identity("mean")
def _mean(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    return reduced(c, "mean", x, c.of(x), node.attrs.get("axis"), node.attrs.get("keepdims"))


@identity("sum")
def _sum(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    return reduced(c, "reduce_sum", x, c.of(x), node.attrs.get("axis"), node.attrs.get("keepdims"))


@identity("max", "min")
def _extreme(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis"))
    keepdims = node.attrs.get("keepdims")
    if axes == "?" or isinstance(keepdims, Node) or c.facts.kind(x) == "scalar":
        return None
    u = c.of(x)
    whole = c.algebra.atom(node.op, (u,), (("axes", axes), ("keepdims", True)), nonnegative=u.nonnegative)
    return whole if keepdims else squeezed(c, whole, axes)


@identity("var", "std")
def _var(c: Canonical, node: Node) -> Value | None:
    """var(x) = mean((x - mean(x))^2), with n - ddof for n."""
    x = node.inputs[0]
    v = c.of(x)
    axes = c.axes(x, node.attrs.get("axis"))
    keepdims, ddof = node.attrs.get("keepdims"), node.attrs.get("ddof") or 0
    if node.attrs.get("correction") is not None:
        ddof = node.attrs["correction"]
    if axes == "?" or isinstance(keepdims, Node) or not isinstance(ddof, int):
        return None
    c.algebra.note("var(x) is mean((x - mean(x))^2)")
    square = c.algebra.power(c.algebra.subtract(v, kept(c, "mean", v, axes)), Fraction(2))
    if ddof == 0:
        out = kept(c, "mean", square, axes)
    elif isinstance(axes, tuple):
        n = c.algebra.multiply(*(c.size_of(x, a) for a in axes))
        out = c.algebra.divide(kept(c, "reduce_sum", square, axes), c.algebra.sum(-float(ddof), [(n, 1.0)]))
    else:
        return None
    if node.op == "std":
        out = c.algebra.power(out, HALF)
    return out if keepdims else squeezed(c, out, axes)


@identity("linalg.norm")
def _norm(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    order, axis = node.attrs.get("ord"), node.attrs.get("axis")
    axes = c.axes(x, axis)
    if order not in (None, 2, 2.0, "fro", "2") or isinstance(order, bool) or not isinstance(axes, tuple) or isinstance(node.attrs.get("keepdims"), Node):
        return None
    if len(axes) != 1 and (len(axes) != 2 or order not in (None, "fro")):
        return None
    c.algebra.note("norm(x) is sum(x^2)^(1/2)")
    out = c.algebra.power(kept(c, "reduce_sum", c.algebra.power(c.of(x), Fraction(2)), axes), HALF)
    return out if node.attrs.get("keepdims") else squeezed(c, out, axes)


@identity("softmax", "nn.softmax")
def _softmax(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis", -1))
    if axes == "?":
        return None
    u = c.of(x)
    if isinstance(axes, tuple):
        u = c.algebra.without_maximum(u, axes)
    return c.algebra.atom("softmax", (u,), (("axes", axes),), nonnegative=True)


@identity("logsumexp")
def _logsumexp(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes, keepdims = c.axes(x, node.attrs.get("axis")), node.attrs.get("keepdims")
    if axes == "?" or isinstance(keepdims, Node):
        return None
    whole = c.algebra.atom("logsumexp", (c.of(x),), (("axes", axes), ("keepdims", True)))
    return whole if keepdims else squeezed(c, whole, axes)


# -- activations -------------------------------------------------------------------------------------------------------


@identity("sigmoid", "nn.sigmoid", "nn.Sigmoid")
def _sigmoid(c: Canonical, node: Node) -> Value | None:
    return c.algebra.sigmoid(c.of(node.inputs[0]))


@identity("nn.silu", "nn.SiLU")
def _silu(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("silu(u) is u * sigmoid(u)")
    u = c.of(node.inputs[0])
    return c.algebra.multiply(u, c.algebra.sigmoid(u))


@identity("nn.gelu")
def _gelu(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu(u) is u * (1 + erf(u / sqrt(2))) / 2")
    u = c.of(node.inputs[0])
    e = odd(c, "erf", c.algebra.scale(u, math.sqrt(0.5)))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(e, 1.0)]), ONE)])


@identity("nn.gelu_approx")
def _gelu_approx(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu_approx(u) is u * (1 + tanh(sqrt(2 / pi) * (u + 0.044715 * u^3))) / 2")
    u = c.of(node.inputs[0])
    inner = c.algebra.sum(0.0, [(u, 1.0), (c.algebra.power(u, Fraction(3)), 0.044715)])
    t = odd(c, "tanh", c.algebra.scale(inner, math.sqrt(2 / math.pi)))
    return c.algebra.product(0.5, [(u, ONE), (c.algebra.sum(1.0, [(t, 1.0)]), ONE)])


@identity("nn.gelu_fast_approx")
def _gelu_fast(c: Canonical, node: Node) -> Value | None:
    c.algebra.note("gelu_fast_approx(u) is u * sigmoid(1.702 * u)")
    u = c.of(node.inputs[0])
    return c.algebra.multiply(u, c.algebra.sigmoid(c.algebra.scale(u, 1.702)))


@identity("nn.relu", "nn.ReLU")
def _relu(c: Canonical, node: Node) -> Value | None:
    args = sorted((c.of(node.inputs[0]), c.algebra.zero), key=lambda v: (*v.order, v.id))
    return c.algebra.atom("maximum", args, nonnegative=True)


@identity("nn.tanh", "nn.Tanh")
def _tanh(c: Canonical, node: Node) -> Value | None:
    return odd(c, "tanh", c.of(node.inputs[0]))


@identity("nn.log_softmax")
def _log_softmax(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis", -1))
    if axes == "?":
        return None
    u = c.of(x)
    return c.algebra.subtract(u, c.algebra.atom("logsumexp", (u,), (("axes", axes), ("keepdims", True))))


# -- matrices ----------------------------------------------------------------------------------------------------------


def product_of(c: Canonical, a: Value, b: Value) -> Value:
    """matmul(a, b), scalars outside."""
    return linear(c, a, lambda u: linear(c, b, lambda w: c.algebra.atom("matmul", (u, w))))


@identity("matmul")
def _matmul(c: Canonical, node: Node) -> Value | None:
    a, b = node.inputs
    return product_of(c, c.of(a), c.of(b))


@identity("addmm")
def _addmm(c: Canonical, node: Node) -> Value | None:
    if len(node.inputs) != 3:
        return None
    bias, a, b = (c.of(n) for n in node.inputs)
    alpha, beta = c.operand(node.attrs.get("alpha", 1.0)), c.operand(node.attrs.get("beta", 1.0))
    if alpha is None or beta is None:
        return None
    c.algebra.note("addmm(c, a, b) is beta * c + alpha * a @ b")
    return c.algebra.add(c.algebra.multiply(beta, bias), c.algebra.multiply(alpha, product_of(c, a, b)))


Perm = tuple[int, ...]
"""Axes from the end: result axis i - len(perm) is the operand's axis perm[i]. Axes before them stay."""


def normal(perm: Iterable[int]) -> Perm:
    """Without the leading axes that stay where they are."""
    listed = list(perm)
    while listed and listed[0] == -len(listed):
        listed.pop(0)
    return tuple(listed)


def composed(outer: Perm, inner: Perm) -> Perm:
    n = max(len(outer), len(inner))
    full = [*range(-n, -len(inner)), *inner]
    return normal(full[a] for a in [*range(-n, -len(outer)), *outer])


def permuted(c: Canonical, v: Value, perm: Perm) -> Value:
    """The axes of v in another order. Permutations compose, and scalars move out."""
    perm = normal(perm)
    if not perm:
        return v

    def make(u: Value) -> Value:
        whole = perm
        if u.op == "permute":
            c.algebra.note("permutations of axes compose")
            whole = composed(perm, u.param("perm"))
            u = u.args[0]
            if not whole:
                return u
        return c.algebra.atom("permute", (u,), (("perm", whole),), nonnegative=u.nonnegative)

    return linear(c, v, make)


def swap(a: int, b: int) -> Perm:
    """The permutation that swaps two axes counted from the end."""
    listed = list(range(min(a, b), 0))
    listed[a], listed[b] = listed[b], listed[a]
    return tuple(listed)


def _ints(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, (tuple, list)) or not all(isinstance(a, int) and not isinstance(a, bool) for a in value):
        return None
    return tuple(value)


@identity("transpose")
def _transpose(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    v = c.of(x)
    axes = node.attrs.get("axes")
    if axes is None or axes == ():
        rank = c.rank(x)
        if rank is not None:
            return permuted(c, v, tuple(range(-1, -rank - 1, -1)))

        def reverse(u: Value) -> Value:
            if u.op == "reverse_axes":
                return u.args[0]
            return c.algebra.atom("reverse_axes", (u,), nonnegative=u.nonnegative)

        return linear(c, v, reverse)
    listed = _ints(axes)
    if listed is None:
        return None
    n = len(listed)
    perm = tuple(a - n if a >= 0 else a for a in listed)
    if sorted(perm) != list(range(-n, 0)):
        return None
    return permuted(c, v, perm)


@identity("matrix_transpose")
def _matrix_transpose(c: Canonical, node: Node) -> Value | None:
    return permuted(c, c.of(node.inputs[0]), (-1, -2))


@identity("swapaxes")
def _swapaxes(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    pair = _ints((node.attrs.get("axis1"), node.attrs.get("axis2")))
    if pair is None:
        return None
    a, b = (c.axis(x, i) for i in pair)
    if a < 0 and b < 0:
        return permuted(c, c.of(x), swap(a, b))

    def make(u: Value) -> Value:
        pair = tuple(sorted((a, b)))
        if u.op == "swapaxes" and u.param("pair") == pair:
            return u.args[0]
        return c.algebra.atom("swapaxes", (u,), (("pair", pair),), nonnegative=u.nonnegative)

    return c.of(x) if a == b else linear(c, c.of(x), make)


@identity("moveaxis")
def _moveaxis(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    pair = _ints((node.attrs.get("source"), node.attrs.get("destination")))
    if pair is None:
        return None
    a, b = (c.axis(x, i) for i in pair)
    if a >= 0 or b >= 0:
        return None
    listed = list(range(min(a, b), 0))
    n = len(listed)
    moved = listed.pop(a + n)
    listed.insert(b + n, moved)
    return permuted(c, c.of(x), tuple(listed))


@identity("einsum")
def _einsum(c: Canonical, node: Node) -> Value | None:
    """Two operands with batch labels, one free label each and one contracted: a matmul between permutations."""
    subscripts = node.attrs.get("subscripts")
    if not isinstance(subscripts, str) or len(node.inputs) != 2 or "->" not in subscripts:
        return None
    left, out = subscripts.replace(" ", "").replace("...", ".").split("->")
    if left.count(",") != 1:
        return None
    la, lb = left.split(",")
    for labels in (la, lb, out):
        if len(set(labels)) != len(labels) or not labels.replace(".", "").isalpha() or "." in labels[1:]:
            return None
    if len({"." in la, "." in lb, "." in out}) != 1:
        return None
    summed = [x for x in la if x in lb and x not in out]
    rows = [x for x in la if x not in lb]
    columns = [x for x in lb if x not in la]
    batch = [x for x in out if x in la and x in lb]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or rows[0] not in out or columns[0] not in out:
        return None
    if len(la) != len(batch) + 2 or len(lb) != len(batch) + 2 or len(out) != len(batch) + 2:
        return None
    c.algebra.note("einsum is a matmul and permutations")

    def order(have: str, want: list[str]) -> Perm:
        return tuple(have.index(x) - len(have) for x in want)

    a = permuted(c, c.of(node.inputs[0]), order(la, [*batch, *rows, *summed]))
    b = permuted(c, c.of(node.inputs[1]), order(lb, [*batch, *summed, *columns]))
    have = "".join([*batch, *rows, *columns])
    return permuted(c, product_of(c, a, b), order(have, list(out)))


# -- views -------------------------------------------------------------------------------------------------------------


@identity("reshape")
def _reshape(c: Canonical, node: Node) -> Value | None:
    """Reshapes compose: only the last shape counts."""
    x = node.inputs[0]
    shape = node.attrs.get("shape")
    if isinstance(shape, Node):
        if shape.op == "shape" and c.of(shape.inputs[0]) is c.of(x):
            return c.of(x)
        return None
    if not isinstance(shape, (tuple, list)):
        return None
    dims = [c.operand(d) for d in shape]
    if any(d is None for d in dims):
        return None
    sizes = [d for d in dims if d is not None]

    def make(u: Value) -> Value:
        while u.op in ("reshape", "expand_dims", "squeeze"):
            c.algebra.note("reshapes compose")
            u = u.args[0]
        return c.algebra.atom("reshape", (u, *sizes), nonnegative=u.nonnegative)

    return linear(c, c.of(x), make)


def expanded(c: Canonical, v: Value, axes: tuple[int, ...]) -> Value:
    def make(u: Value) -> Value:
        if u.op == "squeeze" and u.param("axes") == axes:
            c.algebra.note("a squeezed axis comes back")
            return u.args[0]
        return c.algebra.atom("expand_dims", (u,), (("axes", axes),), nonnegative=u.nonnegative)

    return linear(c, v, make)


@identity("expand_dims")
def _expand_dims(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axis = node.attrs.get("axis")
    listed = _ints(axis if isinstance(axis, (tuple, list)) else (axis,))
    if listed is None:
        return None
    return expanded(c, c.of(x), _new_axes(c, x, listed))


def _new_axes(c: Canonical, x: Node, axes: Iterable[int]) -> tuple[int, ...]:
    listed = list(axes)
    rank = c.rank(x)
    return tuple(sorted(a - rank - len(listed) if a >= 0 and rank is not None else a for a in listed))


@identity("squeeze")
def _squeeze(c: Canonical, node: Node) -> Value | None:
    x = node.inputs[0]
    axes = c.axes(x, node.attrs.get("axis"))
    if not isinstance(axes, tuple) or node.attrs.get("axis") is None:
        return None

    def make(u: Value) -> Value:
        if u.op == "expand_dims" and u.param("axes") == axes:
            return u.args[0]
        return c.algebra.atom("squeeze", (u,), (("axes", axes),), nonnegative=u.nonnegative)

    return linear(c, c.of(x), make)


FULL = ("slice", None, None, None)


@identity("index")
def _index(c: Canonical, node: Node) -> Value | None:
    """x[..., None] and the like insert axes; other indices are atoms, written from the end where the rank is known."""
    x = node.inputs[0]
    index = node.attrs.get("index")
    if not isinstance(index, (tuple, list)):
        return None
    rank = c.rank(x)
    entries = [_entry(c, x, e, i, index, rank) for i, e in enumerate(index)]
    if "..." not in entries:
        if rank is not None:
            taken = sum(e is not None for e in entries)
            entries = [*entries, *[FULL] * (rank - taken)]
            entries.insert(next((i for i, e in enumerate(entries) if e != FULL), 0), "...")
        else:
            entries.append("...")
    at = entries.index("...")
    before, after = entries[:at], entries[at + 1 :]
    if rank is not None:  # full slices next to the ellipsis are part of it
        while before and before[-1] == FULL:
            before.pop()
        while after and after[0] == FULL:
            after.pop(0)
    else:
        while before and before[-1] == FULL:
            before.pop()
    while after and not before and after[0] == FULL:
        after.pop(0)
    entries = [*before, "...", *after]
    v = c.of(x)
    if all(e is None or e in (FULL, "...") for e in entries):
        axes = [i for i, e in enumerate(before) if e is None] + [i - len(after) for i, e in enumerate(after) if e is None]
        return expanded(c, v, _new_axes(c, x, axes)) if axes else v
    return linear(c, v, lambda u: c.algebra.atom("index", (u,), (("index", tuple(entries)),), nonnegative=u.nonnegative))


def _entry(c: Canonical, x: Node, entry: Any, position: int, index: Any, rank: int | None) -> Any:
    """One index: a slice that takes everything is FULL."""
    if entry is Ellipsis:
        return "..."
    if not isinstance(entry, Slice):
        return c.frozen(entry)
    start, stop, step = (c.operand(p) if p is not None else None for p in (entry.start, entry.stop, entry.step))
    if any(p is not None and q is None for p, q in zip((entry.start, entry.stop, entry.step), (start, stop, step), strict=True)):
        return c.frozen(entry)
    if start is not None and start.is_number(0.0):
        start = None
    if step is not None and step.is_number(1.0):
        step = None
    if stop is not None and step is None:
        axis = _axis_of_entry(position, index)
        if axis is not None and stop is c.size_of(x, c.axis(x, axis)):
            stop = None
    return ("slice", start, stop, step)


def _axis_of_entry(position: int, index: Any) -> int | None:
    """The axis that an entry of an index of ints, slices, None and an ellipsis speaks of."""
    def takes(e: Any) -> bool:
        return e is not None and e is not Ellipsis

    if any(isinstance(e, Node) for e in index):
        return None
    dots = next((i for i, e in enumerate(index) if e is Ellipsis), None)
    if dots is None or position < dots:
        return sum(takes(e) for e in index[:position])
    return -sum(takes(e) for e in index[position:])


def _moved(op: str) -> Identity:
    """A linear operation of one array: scalars move out of it."""

    def rule(c: Canonical, node: Node) -> Value | None:
        params = [(k, c.frozen(v)) for k, v in sorted(node.attrs.items())]
        others = [c.of(n) for n in node.inputs[1:]]
        return linear(c, c.of(node.inputs[0]), lambda u: c.algebra.atom(op, (u, *others), params, nonnegative=u.nonnegative))

    return rule


for _op in ("broadcast_to", "repeat", "tile", "flatten", "unflatten", "take", "take_along_axis", "flip", "roll"):
    TABLE[_op] = _moved(_op)


# -- joins -------------------------------------------------------------------------------------------------------------


@identity("phi")
def _phi(c: Canonical, node: Node) -> Value | None:
    """Both branches the same; or `m is not None` guards a term: then = else + m."""
    then, other = (c.of(n) for n in node.inputs)
    if then is other:
        c.algebra.note("both branches give the same value")
        return then
    test = node.attrs.get("test")
    guarded = none_test(c, test) if isinstance(test, Node) else None
    if guarded is not None:
        marker, present = guarded
        with_it, without = (then, other) if present else (other, then)
        extra = _difference(c, with_it, without)
        if extra is not None:
            c.algebra.note("a term under `is not None` is an optional term")
            return c.algebra.add(without, c.algebra.atom("guarded", (extra,), (("by", marker),)))
    params = (("test", c.of(test)),) if isinstance(test, Node) else (("test", node.id),)
    scalar = then.scalar and other.scalar
    return c.algebra.atom("phi", (then, other), params, scalar=scalar, nonnegative=then.nonnegative and other.nonnegative)


def none_test(c: Canonical, test: Node) -> tuple[Value, bool] | None:
    """(m, True) of `m is not None`, (m, False) of `m is None`."""
    flipped = False
    while test.op == "not":
        test, flipped = test.inputs[0], not flipped
    if test.op != "compare" or test.attrs.get("op") not in ("is", "is not") or len(test.inputs) != 2:
        return None
    a, b = test.inputs
    if a.op == "const":
        a, b = b, a
    if b.op != "const" or b.attrs.get("value") is not None:
        return None
    return c.of(a), (test.attrs["op"] == "is not") != flipped


def _difference(c: Canonical, whole: Value, part: Value) -> Value | None:
    """What `whole` has beyond the terms of `part`, where it has all of those."""
    have = dict(whole.terms)
    if not part.terms or not close(whole.constant, part.constant, 1e-12):
        return None
    for m, k in part.terms:
        if m not in have or not close(have.pop(m), k, 1e-9):
            return None
    return c.algebra.sum(0.0, list(have.items())) if have else None


CALLS: dict[str, Identity] = {
    **{f"{module}.{op}": TABLE[op] for module in ("math", "numpy") for op in ("sqrt", "exp", "log", "sin", "cos", "tan", "tanh", "sinh", "cosh")},
    "math.pow": TABLE["power"],
    "math.erf": TABLE["erf"],
    "math.fabs": TABLE["abs"],
    "builtins.abs": TABLE["abs"],
    "builtins.float": lambda c, node: c.of(node.inputs[0]),
}
"""Calls of Python numbers that are operations, by qualified name."""
