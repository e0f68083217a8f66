"""Where attention is one kernel."""

from __future__ import annotations

from collections import Counter

import pytest

from fuselint.graph.gates import Gates, Version, attention_is_fused, heads_taken, newest_use, version_of
from fuselint.graph.shapes import Shape
from fuselint.graph.tape import Array
from fuselint.traffic.fused import kernels_of


def test_head_dimensions_decide() -> None:
    assert attention_is_fused(128, 128, queries=2048)
    assert not attention_is_fused(100, 100, queries=2048)
    assert not attention_is_fused(256, 256, queries=2048)
    assert attention_is_fused(256, 256, queries=1)
    assert attention_is_fused(192, 128, queries=1)
    assert not attention_is_fused(192, 128, queries=2048)


def test_decoding_takes_few_query_heads() -> None:
    assert attention_is_fused(128, 128, queries=4, group=8)
    assert not attention_is_fused(128, 128, queries=5, group=8)


def test_gradients_and_the_cpu_run_the_steps() -> None:
    assert not attention_is_fused(128, 128, queries=2048, training=True)
    assert not attention_is_fused(128, 128, queries=2048, backend="cpu")
    assert attention_is_fused(128, 128, queries=2048, backend="cuda")
    assert not attention_is_fused(136, 136, queries=2048, backend="cuda")


def test_cuda_has_no_kernel_for_many_queries_in_float32() -> None:
    assert not attention_is_fused(128, 128, queries=2048, backend="cuda", dtype="float32")
    assert attention_is_fused(128, 128, queries=1, backend="cuda", dtype="float32")
    assert not attention_is_fused(128, 128, queries=1, backend="cuda", dtype="float32", masked=True)
    assert attention_is_fused(128, 128, queries=2048, backend="metal", dtype="float32")


@pytest.mark.parametrize(
    ("version", "queries", "heads"),
    [
        ("", 64, {64, 72, 80, 96, 128}),
        ("0.32.0", 64, {64, 80, 128}),
        ("0.23.1", 64, {64, 80}),
        ("0.24.1", 1, {64, 96, 128}),
        ("0.24.2", 1, {64, 96, 128, 256}),
    ],
)
def test_kernels_that_an_mlx_has(version: str, queries: int, heads: set[int]) -> None:
    assert heads_taken(queries, version_of(version)) == heads


@pytest.mark.parametrize(
    ("template", "version"),
    [
        ("{mx}.fast.rms_norm({x}, None, {eps})", (0, 23, 2)),
        ("{mx}.fast.rms_norm({x}, {w}, {eps})", None),
        ('"causal"', (0, 24, 0)),
        ('{mx}.fast.scaled_dot_product_attention({q}, {k}, {v}, scale={scale}, mask="causal")', (0, 24, 0)),
        ("{mx}.fast.scaled_dot_product_attention({q}, {k}, {v}, scale=1.0, mask={m}, sinks={s})", (0, 29, 1)),
        ("-{mx}.fast.cross_entropy({x}, {targets}).astype({x}.dtype)[..., None]", (0, 32, 2)),
        ('{mx}.quantized_matmul({x}, {w}, {s}, mode="mxfp4")', (0, 29, 0)),
        ("{nn}.relu2({x})", (0, 29, 1)),
        ("{nn}.losses.cross_entropy({x}, {targets})", None),
    ],
)
def test_the_mlx_that_a_fix_needs(template: str, version: Version | None) -> None:
    found = newest_use(template)
    assert (found and found[0]) == version


def array(*shape: int, dtype: str = "float32") -> Array:
    return Array("", [], Shape.of(*shape), dtype)


FALLBACKS = {
    "fast.rms_norm": ([array(2, 8), array(8)], array(2, 8), "mx.fast.rms_norm(x, w, 1e-5)"),
    "fast.layer_norm": ([array(2, 8), array(8), array(8)], array(2, 8), "mx.fast.layer_norm(x, w, w, 1e-5)"),
    "fast.cross_entropy": ([array(2, 8), array(2, dtype="int32")], array(2), "mx.fast.cross_entropy(x, i)"),
    "fast.rope": (
        [array(1, 2, 4, 64)],
        array(1, 2, 4, 64),
        "mx.fast.rope(q, 64, traditional=False, base=10000.0, scale=1.0, offset=0)",
    ),
    "fast.scaled_dot_product_attention": (
        [array(1, 2, 4, 64), array(1, 2, 4, 64), array(1, 2, 4, 64)],
        array(1, 2, 4, 64),
        "mx.fast.scaled_dot_product_attention(q, q, q, scale=0.3)",
    ),
}


@pytest.mark.parametrize("op", FALLBACKS)
def test_a_fix_saves_no_more_than_what_runs_in_its_place(op: str) -> None:
    """MLX on the CPU, where no op of mx.fast is a kernel: as many kernels as a proposed one counts there."""
    mx = pytest.importorskip("mlx.core")
    from tests.traffic import mlx_kernels as real

    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    try:
        reads, writes, call = FALLBACKS[op]
        given = {"x": mx.zeros((2, 8)), "w": mx.ones((8,)), "q": mx.zeros((1, 2, 4, 64)), "i": mx.zeros((2,), mx.int32)}
        names = [n for n in given if f"({n}" in call or f" {n}," in call or f" {n})" in call]
        function = eval(f"lambda {', '.join(names)}: {call}", {"mx": mx})
        want = real.eager(function, [given[n] for n in names])
    finally:
        mx.set_default_device(before)
    found = Counter(k.op for k in kernels_of(op, reads, writes, None, Gates(backend="cpu")))  # type: ignore[arg-type]
    assert found == sum((Counter({name: n}) for (name, _, _), n in want.items()), Counter())
    assert len(kernels_of(op, reads, writes, None, Gates())) == 1  # type: ignore[arg-type]


def test_cross_entropy_is_steps_in_an_older_mlx() -> None:
    reads, writes, _ = FALLBACKS["fast.cross_entropy"]
    assert len(kernels_of("fast.cross_entropy", reads, writes, None, Gates(version=(0, 32, 1)))) > 2  # type: ignore[arg-type]
