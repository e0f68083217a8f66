"""Operations of regions, against counts by hand."""

from __future__ import annotations

import pytest

from fuselint.graph.model import region
from fuselint.traffic.kernels import compiled_kernels, kernels
from fuselint.traffic.sizes import Sizes
from fuselint.traffic.work import Work, work
from tests.graph.functions import HEAD, graph_of, with_shapes


def counted(expression: str, compiled: bool = False) -> Work:
    """Of a (4 x 8), b (8 x 16), c (4 x 16), q (1 x 2 x 3 x 64) and k (1 x 2 x 5 x 64)."""
    graph = graph_of(f"{HEAD}def f(a, b, c, q, k):\n    return {expression}\n")
    graph = with_shapes(graph, [(4, 8), (8, 16), (4, 16), (1, 2, 3, 64), (1, 2, 5, 64)])
    root = graph.returns[0][1]
    nodes = region(root, ())
    found = compiled_kernels(nodes, [root], graph.facts, False) if compiled else kernels(nodes, graph.facts)
    return work(found, Sizes.plain([a.shape for k in found for a in (*k.reads, *k.writes)]))


@pytest.mark.parametrize(
    ("expression", "products", "rest"),
    [
        ("a @ b", 2 * 4 * 8 * 16, 0),
        ("mx.addmm(c, a, b)", 2 * 4 * 8 * 16, 0),
        ("a.T @ a", 2 * 8 * 4 * 8, 0),
        ("(a @ b) + c", 2 * 4 * 8 * 16, 4 * 16),
        ("mx.softmax(a, axis=-1)", 0, 5 * 32),
        ("mx.sum(a, axis=-1)", 0, 32),
        ("mx.logsumexp(a, axis=-1)", 0, 3 * 32),
        ("mx.exp(a) * a + 1", 0, 3 * 32),
        ("a.astype(mx.float16)", 0, 0),
        ("mx.concatenate([a, a])", 0, 0),
        ("mx.exp(a).T.reshape(32)", 0, 32),
        ("mx.fast.rms_norm(a, None, 1e-5)", 0, 4 * 32),
        ("mx.fast.scaled_dot_product_attention(q, k, k, scale=1.0)", 4 * 2 * 3 * 5 * 64, 0),
        ("(q @ k.transpose(0, 1, 3, 2)) @ k", 4 * 2 * 3 * 5 * 64, 0),
        ("mx.conv1d(a[None], b.reshape(16, 1, 8))", 2 * 4 * 16 * 8, 0),
    ],
)
def test_operations(expression: str, products: int, rest: int) -> None:
    found = counted(expression)
    assert (found.products.value(), found.rest.value()) == (products, rest)


def test_a_compiled_kernel_counts_its_steps_but_no_casts() -> None:
    found = counted("(mx.exp(a) + a).astype(mx.float16) * 2", compiled=True)
    assert (found.products.value(), found.rest.value()) == (0, 3 * 32)
