"""Where attention is one kernel."""

from fuselint.graph.gates import attention_is_fused


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
