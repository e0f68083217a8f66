"""What a fix saves in a compiled function, against MLX: both versions compiled, and all their kernels counted."""

from __future__ import annotations

from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.rulebook import rules
from fuselint.traffic import saving
from tests.graph.functions import HEAD, graph_of
from tests.traffic.test_against_mlx import _on_the_cpu  # noqa: F401

mx = pytest.importorskip("mlx.core")

from tests.traffic import mlx_kernels as real  # noqa: E402

ON_CPU = Settings(chip="cpu", dtype="f32")

SHAPES = {"x": (32, 64), "r": (32, 64), "w": (64, 64), "b": (64,), "s": (64,)}

NORM = "h * mx.rsqrt(mx.square(h).mean(-1, keepdims=True) + 1e-5) * s"
CHANGES = {
    "a product whose sum is read by a reduction": (
        "FUS231",
        "",
        "mx.softmax(x @ w + b, axis=-1)",
        "mx.softmax(mx.addmm(b, x, w), axis=-1)",
    ),
    "a product whose residual is made by one": (
        "FUS231",
        "",
        "mx.softmax(r, axis=-1) + x @ w",
        "mx.addmm(mx.softmax(r, axis=-1), x, w)",
    ),
    "a softmax of a sum": ("FUS251", "e = mx.exp(x + r)", "e / e.sum(-1, keepdims=True)", "mx.softmax(x + r, axis=-1)"),
    "a softmax that is multiplied": (
        "FUS251",
        "e = mx.exp(x)",
        "e / e.sum(-1, keepdims=True) * r + 1",
        "mx.softmax(x, axis=-1) * r + 1",
    ),
    "a norm of a sum": ("FUS201", "h = x + r", NORM, "mx.fast.rms_norm(h, s, 1e-5)"),
    "a norm of a sum that is returned too": (
        "FUS201",
        "h = x + r",
        f"(h, {NORM})",
        "(h, mx.fast.rms_norm(h, s, 1e-5))",
    ),
    "a norm before more work": (
        "FUS201",
        "h = mx.tanh(x)",
        f"mx.exp({NORM} + r)",
        "mx.exp(mx.fast.rms_norm(h, s, 1e-5) + r)",
    ),
}
"""A rule, statements before, and what is returned before and after its fix."""


def source(before: str, returned: str) -> str:
    sizes = [f"{name} = {name}.reshape{shape}" for name, shape in SHAPES.items()]
    lines = "".join(f"    {line}\n" for line in (*sizes, before, f"return {returned}") if line)
    return f"{HEAD}def f({', '.join(f'{name}: mx.array' for name in SHAPES)}):\n{lines}"


def moved(text: str) -> tuple[int, int]:
    """The kernels of a compiled function in MLX, and their bytes."""
    space: dict[str, Any] = {}
    exec(text, space)
    kernels = real.compiled(space["f"], [mx.zeros(s) for s in SHAPES.values()])
    return kernels.total(), sum((read + written) * n for (_, read, written), n in kernels.items())


@pytest.mark.parametrize("case", CHANGES)
def test_a_fix_saves_what_mlx_no_longer_launches(case: str) -> None:
    code, before, now, then = CHANGES[case]
    graph = graph_of(source(before, now).replace("def f", "@mx.compile\ndef f"))
    (rule,) = [r for r in rules() if r.code == code]
    (match,) = [m for m in rule.find(graph) if not m.contradicted]
    traffic = saving(graph, match, ON_CPU)
    old, new = moved(source(before, now)), moved(source(before, then))
    assert (traffic.kernels_now - traffic.kernels_fused, traffic.saved_at) == (old[0] - new[0], old[1] - new[1])
