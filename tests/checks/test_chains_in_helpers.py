"""FUS301: chains of which a helper makes a part, or an operand; and chains that end in an assignment in place."""

from __future__ import annotations

import re
import shutil
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from fuselint.analysis import analyse
from fuselint.config import Settings
from fuselint.engine import fix_text
from fuselint.finding import Finding
from fuselint.source.text import FileText

mx = pytest.importorskip("mlx.core")
needs_compiler = pytest.mark.skipif(
    mx.default_device() == mx.cpu and shutil.which("g++") is None, reason="mx.compile needs g++ on the CPU"
)

HEAD = "import mlx.core as mx\nimport mlx.nn as nn\n\n\n"
CHOSEN = Settings(select=("FUS301",), unsafe_fixes=True)


def findings(body: str) -> list[Finding]:
    result, found = analyse(FileText("m.py", HEAD + body), CHOSEN, None)
    assert not result.errors, result.errors[0]
    return [p.finding for p in found]


def fixed(body: str) -> str:
    return fix_text(FileText("m.py", HEAD + body), CHOSEN).after


def defined(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(source, space)
    return space


def array(*shape: int, dtype: Any = mx.float32) -> Any:
    made = (mx.arange(mx.zeros(shape).size).reshape(shape) % 7 / 4 - 0.7).astype(dtype)
    mx.eval(made)
    return made


def alike(body: str, after: str, call: Callable[[dict[str, Any]], Any]) -> None:
    """The old and the new code give the same numbers, to the last digit but one."""
    old, new = call(defined(HEAD + body)), call(defined(after))
    assert old.dtype == new.dtype and old.shape == new.shape
    assert mx.allclose(old, new, rtol=1e-6, atol=1e-6), mx.abs(old - new).max()


TURN = """def as_complex(pairs):
    real, imag = pairs[..., 0], pairs[..., 1]
    return real + 1j * imag


def turn(q: mx.array, turns: mx.array):
    turned = as_complex(q.astype(mx.float32).reshape(*q.shape[:-1], -1, 2))
    return mx.view(turned * turns, mx.float32).astype(q.dtype)
"""


@needs_compiler
def test_what_several_operands_are_taken_from_is_made_once() -> None:
    after = fixed(TURN)
    assert "    turned = q.astype(mx.float32).reshape(*q.shape[:-1], -1, 2)\n" in after
    assert "(turned[..., 0], turned[..., 1], turns)" in after
    angles = array(5, 4)
    alike(TURN, after, lambda m: m["turn"](array(5, 8, dtype=mx.bfloat16), mx.cos(angles) + 1j * mx.sin(angles)))


def test_its_bytes() -> None:
    """1j * imag, real + that, and the product with float32 in and complex64 out: 4 + 8, 4 + 8 + 8, 8 + 8 + 8 bytes."""
    (found,) = findings(TURN)
    assert found.traffic is not None and found.traffic.kernels_fused == 1
    assert found.traffic.bytes_fused == "16*T*(N//2) + 8*turns.size"  # two halves of float32 in, complex64 out


@needs_compiler
def test_a_name_where_no_statement_has_one() -> None:
    body = TURN.replace("    turned = as_complex", "    return mx.view(as_complex").replace(
        "-1, 2))\n    return mx.view(turned * turns", "-1, 2)) * turns"
    )
    after = fixed(body)
    assert "    q_pairs = q.astype(mx.float32).reshape(*q.shape[:-1], -1, 2)\n" in after
    angles = array(5, 4)
    alike(body, after, lambda m: m["turn"](array(5, 8), mx.cos(angles) + 1j * mx.sin(angles)))


SHARED = """class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, 1)
        self.shared = nn.Linear(dim, dim)
        self.routed = nn.Linear(dim, dim)

    def _share(self, x):
        return mx.sigmoid(self.gate(x))

    def __call__(self, x: mx.array):
        return self.routed(x) + self._share(x) * self.shared(x)
"""


@needs_compiler
def test_a_layer_that_a_method_calls_is_called_at_the_new_call() -> None:
    after = fixed(SHARED)
    assert "self.gate(x)" in after and "_share" not in after

    def run(m: dict[str, Any]) -> Any:
        mx.random.seed(3)
        return m["Block"](6)(array(2, 6))

    alike(SHARED, after, run)


SOMETIMES = {
    "not always": """
        if x.shape[0] > 3:
            return x
        return mx.sigmoid(self.gate(x))
""",
    "in one branch": """
        return mx.sigmoid(self.gate(x)) if x.shape[0] > 3 else mx.sigmoid(x)
""",
    "in a loop": """
        for part in (x, x + 1):
            found = mx.sigmoid(self.gate(part))
        return found
""",
}


@pytest.mark.parametrize("helper", SOMETIMES.values(), ids=SOMETIMES)
def test_what_a_helper_makes_sometimes_stays_there(helper: str) -> None:
    body = SHARED.replace("\n        return mx.sigmoid(self.gate(x))\n", helper)
    assert body != SHARED
    after = fixed(body)
    assert [line for line in helper.split("\n") if line not in after.split("\n")] == []


SAMPLED = """def sampled(x: mx.array, a: mx.array, b: mx.array, c: mx.array):
    def taken(rows):
        found = x[rows]
        kept = (rows > 1) & (rows < 9)
        return found * kept[..., None]

    y = a * taken(mx.argmin(a, axis=-1)) + b * taken(mx.argmax(b, axis=-1))
    return y * mx.sigmoid(c)
"""


@needs_compiler
def test_what_is_left_without_the_helpers_part_is_compiled() -> None:
    """`found` has statements of its own in the helper; the products and the gate around the calls are five kernels."""
    (found,) = findings(SAMPLED)
    assert found.fix is not None and found.fix.applicability == "safe"
    assert found.traffic is not None
    assert (found.traffic.kernels_now, found.traffic.kernels_fused) == (5, 1)
    after = fixed(SAMPLED)
    assert after.count("taken(mx.arg") == 2 and "found * kept" in after
    rows = [array(4, 6) * s for s in (1.0, 0.5, -1.0)]
    alike(SAMPLED, after, lambda m: m["sampled"](array(10, 6), *rows))


SNAKE = """class Snake(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.alpha = mx.ones((dim,)) * 0.7

    def __call__(self, x: mx.array):
        x += (1.0 / (self.alpha + 1e-9)) * mx.power(mx.sin(x * self.alpha), 2)
        return x
"""


@needs_compiler
def test_what_is_added_in_place_is_compiled() -> None:
    after = fixed(SNAKE)
    assert re.search(r"\n {8}x \+= \w+\(self\.alpha, x\)\n", after)

    def run(m: dict[str, Any]) -> Any:
        given = array(3, 6)
        result = m["Snake"](6)(given)
        return mx.stack([result, given])  # the caller's array changes too

    alike(SNAKE, after, run)


def test_what_is_changed_before_the_last_operation_is_advice() -> None:
    body = """def f(x: mx.array, y: mx.array):
    h = mx.exp(x) * y
    x += 1
    return mx.tanh(h + x * y)
"""
    assert all(f.fix is not None and not f.fix.edits for f in findings(body))


def test_a_list_that_grows_later_does_not_keep_a_gate_from_being_fixed() -> None:
    body = """class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.mod = nn.Linear(dim, 2 * dim)
        self.proj = nn.Linear(dim, dim)

    def __call__(self, c: mx.array, hints, temb: mx.array):
        kept = hints.pop(-1)
        scale, gate = mx.split(self.mod(temb), 2, axis=-1)
        gate = mx.tanh(gate)
        out = self.proj(c * scale)
        c = c + gate * self.norm(out)
        hints += [kept, c]
        return hints
"""
    (found,) = findings(body)
    assert found.fix is not None and found.fix.edits, found.fix


RESNET = """from settings import Settings


class Res(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.GroupNorm(4, dim, pytorch_compatible=True)

    def __call__(self, x: mx.array{more}):
        h = self.norm(x.astype(mx.float32)).astype({dtype})
        return nn.silu(h)
"""


@needs_compiler
def test_a_dtype_that_the_module_names_is_read_in_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = types.ModuleType("settings")
    settings.Settings = types.SimpleNamespace(precision=mx.bfloat16)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "settings", settings)
    body = RESNET.format(more="", dtype="Settings.precision")
    (found,) = findings(body)
    assert found.fix is not None and found.fix.applicability == "unsafe"
    assert found.fix.needs == ("`Settings.precision` stays as it is",)
    after = fix_text(FileText("m.py", HEAD + body), CHOSEN, verify=True)
    assert [len(after.applied), len(after.withheld)] == [1, 0]
    assert "norm.astype(Settings.precision)" in after.after
    alike(body, after.after, lambda m: m["Res"](8)(array(2, 3, 3, 8, dtype=mx.bfloat16)))


@pytest.mark.parametrize(("more", "dtype"), [(", dtype=mx.float16", "dtype"), ("", "self.dtype")])
def test_a_dtype_that_the_caller_or_the_object_has_is_advice(more: str, dtype: str) -> None:
    assert all(f.fix is not None and not f.fix.edits for f in findings(RESNET.format(more=more, dtype=dtype)))


GELU = """class M(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.act = nn.GELU({how})

    def __call__(self, x: mx.array, up: mx.array):
        return self.act(x) * up
"""
GELUS = {
    "": "gelu", "'none'": "gelu", "approx='precise'": "gelu_approx", "'tanh'": "gelu_approx",
    "'fast'": "gelu_fast_approx",
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("how", "function"), GELUS.items())
def test_a_gelu_layer_is_the_function_that_its_constructor_says(how: str, function: str) -> None:
    body = GELU.format(how=how)
    after = fixed(body)
    assert f"return nn.{function}(x) * up" in after and "geglu(" in after
    alike(body, after, lambda m: m["M"](8)(array(4, 8), array(4, 8)))


CARRIED = """class Cells(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, 4 * dim)

    def __call__(self, x: mx.array, cell=None):
        if cell is None:
            cell = {default}
        rows, out = self.proj(x), []
        for t in range(x.shape[0]):
            i, f, g, o = mx.split(rows[t], 4, axis=-1)
            cell = mx.sigmoid(f) * cell + mx.sigmoid(i) * mx.tanh(g)
            out.append(cell)
        return mx.stack(out)
"""


@pytest.mark.parametrize(
    ("default", "applicability"), [("mx.zeros(x.shape[1:])", "safe"), ("0.0", "unsafe"), ("self.start", "unsafe")]
)
def test_what_an_array_stands_for_where_it_is_none_is_one(default: str, applicability: str) -> None:
    (found,) = findings(CARRIED.format(default=default))
    assert found.fix is not None and found.fix.applicability == applicability
    said = {o.claim: o.because for o in found.obligations if o.verdict == "proven"}
    assert (said.get("`cell` is an array") == "an array stands for it where it is None") is (applicability == "safe")


CUBIC = """class Cubic(nn.Module):
    def __init__(self, a: float):
        super().__init__()
        self.a = a

    def __call__(self, t: mx.array):
        a = self.a
        near = (a + 2.0) * t**3 - (a + 3.0) * t**2 + 1.0
        return mx.where(t <= 1, near, a * t**3 - 5.0 * a * t**2 + 8.0 * a * t - 4.0 * a)
"""


@needs_compiler
def test_numbers_that_are_made_of_one_number_are_made_in_the_helper() -> None:
    """The helper is given `a` alone: five numbers made up apart would contradict each other in verification, too."""
    done = fix_text(FileText("m.py", HEAD + CUBIC), CHOSEN, verify=True)
    (applied,) = done.applied
    assert applied.fix is not None and applied.fix.verification is not None
    assert applied.fix.verification.outcome == "passed"
    assert re.search(r"return cubic\((t, self\.a|self\.a, t|t, a|a, t)\)", done.after), done.after
    alike(CUBIC, done.after, lambda m: m["Cubic"](-0.75)(mx.abs(array(3, 8))))


def test_a_number_that_nothing_else_is_made_of_is_given_as_it_is() -> None:
    body = CUBIC.split("        a = self.a", maxsplit=1)[0] + "        return mx.tanh(t * (self.a + 2.0)) * t + 1.0\n"
    assert "(t, self.a + 2.0)" in fixed(body)
