"""FUS302: the kernels that it counts are those of MLX, before and after; and where it stays silent."""

from __future__ import annotations

import io
import random
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

import pytest

from fuselint.analysis import analyse
from fuselint.checks import split_chain
from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.finding import Finding
from fuselint.graph.tape import RESHAPES, VIEWS
from fuselint.source.text import FileText

mx = pytest.importorskip("mlx.core")
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

HEAD = split_chain.HEAD


def findings(text: str, **settings: Any) -> list[Finding]:
    file = FileText("m.py", HEAD + textwrap.dedent(text))
    result, found = analyse(file, Settings(select=("FUS302",), **settings), None)
    assert not result.errors, result.errors[0]
    return [*(p.finding for p in found), *result.near_misses]


def fixed(text: str) -> str:
    hot = ("*",)  # some arrays here are small
    return fix_text(FileText("m.py", text), Settings(select=("FUS302",), unsafe_fixes=True, hot=hot)).after


def arrays(shapes: Sequence[Sequence[int]], dtype: Any = mx.bfloat16) -> list[Any]:
    made = [(mx.arange(mx.zeros(s).size).reshape(s) % 7 / 4 - 0.7).astype(dtype) for s in shapes]
    mx.eval(made)
    return made


def drawn(*outputs: Any) -> int:
    """How many kernels a lazy graph has."""
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    names = re.findall(r'label ="([^"]*)"', dot.getvalue())
    return sum(n not in VIEWS and n not in RESHAPES for n in names)


def defined(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(source, space)
    return space


def kernels(source: str, name: str, shapes: Sequence[Sequence[int]], dtype: Any = mx.bfloat16) -> int:
    out = defined(source)[name](*arrays(shapes, dtype))
    return drawn(*(out if isinstance(out, tuple) else (out,)))


# -- examples, on MLX -------------------------------------------------------------------------------------------------

APART = """
@mx.compile
def square(x):
    return mx.sum(mx.square(x.astype(mx.float32)), axis=-1, keepdims=True)


@mx.compile
def scaled(x, square, scale):
    return (x.astype(mx.float32) / mx.sqrt(mx.maximum(square, 1e-12)) * scale).astype(x.dtype)


def normalize(x, scale):
    return scaled(x, square(x), scale)
"""
"""What the page says of a cast that two kernels read: its readers compiled apart."""

MEASURED = {
    "shapeless": (0, "geglu", [(2, 4, 8), (2, 4, 8)], None),
    "shapeless, few shapes": (1, "_geglu", [(4, 8), (4, 8)], None),
    "a new axis": (2, "expand", [(2, 4, 3, 8), (2, 4, 8), (2, 4, 3)], None),
    "a reshape": (3, "rescale", [(2, 4, 64), (64,)], None),
    "zeros": (4, "gate", [(2, 4, 8), (2, 4, 8)], None),
    "readers": (5, "normalize", [(2, 4, 8), (8,)], HEAD + APART),
}


@needs_compiler
@pytest.mark.parametrize(("number", "name", "shapes", "after"), MEASURED.values(), ids=MEASURED)
def test_as_many_kernels_less_as_it_says(number: int, name: str, shapes: Any, after: str | None) -> None:
    source = split_chain.EXAMPLES[number].source
    (found,) = findings(source.removeprefix(HEAD))
    assert found.traffic is not None
    saved = found.traffic.kernels_now - found.traffic.kernels_fused
    assert saved == kernels(source, name, shapes) - kernels(after or fixed(source), name, shapes) > 0


@needs_compiler
def test_a_deep_chain_is_as_many_kernels_as_it_says() -> None:
    source = split_chain.EXAMPLES[6].source
    (found,) = findings(source.removeprefix(HEAD))
    assert found.traffic is not None
    assert kernels(source, "polynomial", [(4, 8)]) == found.traffic.kernels_now == 2


@needs_compiler
def test_a_kernel_takes_no_more_than_24_arrays() -> None:
    names = [f"x{i}" for i in range(26)]
    text = f"@mx.compile\ndef total({', '.join(names)}):\n    return {_balanced(names)}\n"
    (found,) = findings(text)
    assert "more than the 24 arrays" in found.message and found.traffic is not None
    assert kernels(HEAD + text, "total", [(4, 8)] * 26) == found.traffic.kernels_now


def _balanced(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    half = len(names) // 2
    return f"({_balanced(names[:half])} + {_balanced(names[half:])})"


# -- views in random chains -------------------------------------------------------------------------------------------

UNARY = ("mx.tanh({})", "mx.exp({})", "({} * 2)", "({} + 1)", "mx.abs({})", "{}.astype(mx.float32)", "nn.silu({})")
PLACED = ("{}[:, None]", "{}.reshape(2, 4, 2, 4)", "{}.transpose(0, 2, 1)", "mx.expand_dims({}, 1)", "{}[:, 1:3]")


def chain(seed: int) -> str:
    """Elementwise operations with one view among them."""
    r = random.Random(seed)
    x = "x"
    lines = []
    for i, form in enumerate([*r.choices(UNARY, k=r.randint(1, 3)), r.choice(PLACED), *r.choices(UNARY, k=2)]):
        x = form.format(x)
        if r.random() < 0.5:
            lines.append(f"    t{i} = {x}\n")
            x = f"t{i}"
    return f"{HEAD}@mx.compile\ndef f(x: mx.array):\n{''.join(lines)}    return {x}\n"


@needs_compiler
@pytest.mark.parametrize("seed", range(25))
def test_a_view_that_changes_places_leaves_one_kernel_and_the_same_bits(seed: int) -> None:
    source = chain(seed)
    after = fixed(source)
    assert after != source
    assert (kernels(source, "f", [(2, 4, 8)]), kernels(after, "f", [(2, 4, 8)])) == (2, 1), after
    mx.disable_compile()
    try:
        (x,) = arrays([(2, 4, 8)])
        old, new = (defined(s)["f"](x) for s in (source, after))
        assert old.dtype == new.dtype and mx.array_equal(old, new), after
    finally:
        mx.enable_compile()


def test_what_is_cut_off_is_not_computed() -> None:
    text = "@mx.compile\ndef f(x: mx.array, y: mx.array):\n    return mx.tanh((x * y)[:, :4].astype(mx.float32))\n"
    (found,) = findings(text)
    assert "the slice first" in found.message
    assert found.fix is not None and not found.fix.edits


# -- what is reported -------------------------------------------------------------------------------------------------


BODY = "return nn.gelu_approx(gate) * x\n"
SHAPELESS = "@partial(mx.compile, shapeless=True)\n"
COMPILED = {
    "wrapped": f"def geglu(gate, x):\n    {BODY}fast = mx.compile(geglu, shapeless=True)\n",
    "called": f"{SHAPELESS}def outer(g, u):\n    return geglu(g, u)\ndef geglu(gate, x):\n    {BODY}",
    "static": f"class Ops:\n    @staticmethod\n    {SHAPELESS}    def geglu(gate, x):\n        {BODY}",
    "nested": f"def make():\n    {SHAPELESS}    def geglu(gate, x):\n        {BODY}    return geglu\n",
}


@pytest.mark.parametrize("text", COMPILED.values(), ids=COMPILED)
def test_how_it_is_compiled_does_not_matter(text: str) -> None:
    (found,) = findings(text)
    assert found.message.startswith("shapeless=True cuts"), text


def test_only_a_decorator_of_its_own_is_replaced() -> None:
    text = """
        def geglu(gate, x):
            return nn.gelu_approx(gate) * x
        fast = mx.compile(geglu, shapeless=True)
        """
    (found,) = findings(text)
    assert found.fix is not None and found.fix.applicability == "none"
    assert "leave shapeless=True out" in found.fix.message


def test_state_stays_captured() -> None:
    text = """
        @partial(mx.compile, inputs=mx.random.state, outputs=mx.random.state, shapeless=True)
        def geglu(gate, x):
            return nn.gelu_approx(gate) * x
        """
    (found,) = findings(text)
    assert found.fix is not None and not found.fix.edits


def test_nothing_is_shapeless_inside_a_plain_trace() -> None:
    text = """
        @partial(mx.compile, shapeless=True)
        def geglu(gate, x):
            return nn.gelu_approx(gate) * x
        @mx.compile
        def block(x, w):
            return geglu(x @ w, x) @ w
        """
    assert findings(text) == []


def test_scores_that_grow_are_a_near_miss() -> None:
    text = """
        @partial(mx.compile, shapeless=True)
        def weigh(gate, x):
            return nn.gelu_approx(gate) * x
        def generate(step, scores: mx.array, n):
            for _ in range(n):
                scores = mx.concatenate([scores, step(scores)], axis=-1)
                out = weigh(scores * 2, scores)
            return out
        """
    assert findings(text) == []
    (near,) = findings(text, near_misses=True)
    assert near.fix is not None
    assert "line 12 makes an argument longer at every step" in near.fix.message


def test_an_operand_that_may_be_a_number_is_not_cast() -> None:
    text = """
        @mx.compile
        def clipped(gate, limit):
            gate = gate.astype(mx.float32)
            return mx.minimum(gate, limit) * mx.clip(gate, -limit, limit)
        """
    assert findings(text) == []


def test_a_value_that_a_matmul_reads_is_written_anyway() -> None:
    text = """
        @mx.compile
        def f(x: mx.array, w):
            h = mx.exp(x) + 1
            return h @ w, mx.tanh(h)
        """
    assert findings(text) == []


def test_rows_are_small() -> None:
    text = """
        @mx.compile
        def f(x: mx.array):
            s = mx.sum(x, axis=-1) * 0.5
            return x * mx.exp(s)[..., None]
        """
    assert findings(text) == []


def test_a_norm_is_left_to_its_own_rule() -> None:
    text = """
        @mx.compile
        def norm(x: mx.array, weight):
            h = x.astype(mx.float32)
            h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + 1e-6)
            return weight * h.astype(x.dtype)
        """
    file = FileText("m.py", HEAD + textwrap.dedent(text))
    assert [p.finding.code for p in analyse(file, Settings(), None)[1]] == ["FUS201"]


def test_zeros_in_where_are_left_to_their_own_rule() -> None:
    text = """
        @mx.compile
        def f(m, x: mx.array):
            h = mx.tanh(x) * 2
            return mx.where(m, h, mx.zeros_like(h))
        """
    file = FileText("m.py", HEAD + textwrap.dedent(text))
    assert [p.finding.code for p in analyse(file, Settings(), None)[1]] == ["FUS106"]


def test_zeros_of_another_shape_or_dtype_stay() -> None:
    shape = "@mx.compile\ndef f(x: mx.array):\n    return mx.exp(x[:, :1]) * 2 + mx.zeros((4, 8))\n"
    assert findings(shape) == []
    dtype = (
        "@mx.compile\ndef f(x: mx.array):\n    z = mx.zeros(x.shape)\n    return mx.tanh(x.astype(mx.bfloat16)) + z\n"
    )
    (found,) = findings(dtype)
    assert found.fix is not None and not found.fix.edits


def test_a_decorator_is_replaced_and_nothing_else_but_an_import_that_only_it_reads() -> None:
    source = (
        HEAD + "# first\n@partial(mx.compile, shapeless=True)  # why\ndef g(a, b):\n    return nn.gelu_approx(a) * b\n"
    )
    assert fixed(source) == source.replace("partial(mx.compile, shapeless=True)", "mx.compile").replace(
        "from functools import partial\n", ""
    )
    more = source + "\n\nhalf = partial(g, b=0.5)\n"
    assert fixed(more) == more.replace("partial(mx.compile, shapeless=True)", "mx.compile")


GROUPED = """
    @mx.compile
    def f(x: mx.array, w: mx.array, groups: int):
        B, C = x.shape[0], x.shape[1]
        h = x.reshape(B, groups, C // groups, *x.shape[2:])
        axes = tuple(range(2, h.ndim))
        scale = mx.var(h, axis=axes, keepdims=True)
        y = ((h - 1) * mx.rsqrt(scale + 1e-5)).reshape(x.shape)
        y = y * w.reshape([1, C] + [1] * (x.ndim - 2)) + 1
        return {last}
    """


def compiled_kernels(text: str) -> int:
    """How many kernels MLX makes of a function that is compiled, by its own export."""
    names: dict[str, Any] = {}
    exec(compile(HEAD + textwrap.dedent(text), "m.py", "exec"), names)
    shown = io.StringIO()
    x, w = mx.zeros((2, 8, 6)), mx.zeros((8,))
    mx.eval(x, w)
    mx.export_to_dot(shown, names["f"](x, w, 4))
    views = {"Broadcast", "Reshape", "Full"}
    return len([n for n in re.findall(r'label ="([^"]+)", shape=rectangle', shown.getvalue()) if n not in views])


@needs_compiler
@pytest.mark.parametrize(("last", "fewer"), [("y", 1), ("nn.gelu(y)", 0)])
def test_a_kernel_with_no_room_for_a_broadcast_is_cut_again(last: str, fewer: int) -> None:
    text = GROUPED.format(last=last)
    moved = text.replace(".reshape(x.shape)\n", "\n").replace("([1, C] + [1]", "([1, groups, C // groups] + [1]")
    assert compiled_kernels(text) - compiled_kernels(moved) == fewer
    assert len(findings(text)) == fewer


CAST_BACK = """
    @mx.compile
    def f(x: mx.array, w: mx.array):
        B, L, D = x.shape
        y = x.reshape(B, L, 4, D // 4).astype(mx.float32)
        y = mx.tanh(y) * (1.0 + w.astype(mx.float32))
        return y.reshape(B, L, D).astype(x.dtype)
"""


@needs_compiler
def test_in_float32_a_cast_back_is_no_kernel() -> None:
    """In bfloat16 the reshape stands before the cast back; in float32 nothing follows it."""
    f = defined(HEAD + textwrap.dedent(CAST_BACK))["f"]
    ran = {d: drawn(f(*arrays([(2, 3, 8), (2,)], d))) for d in (mx.bfloat16, mx.float32)}
    found = [x.traffic for x in findings(CAST_BACK) if x.traffic is not None and "reshape" in x.message]
    assert {(t.kernels_now, t.otherwise.kernels_now) for t in found} == {(ran[mx.bfloat16], ran[mx.float32])}
