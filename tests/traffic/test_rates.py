"""The time of single kernels on chips of which kernels were timed."""

from __future__ import annotations

import math

import pytest

from fuselint.chips import CHIPS
from fuselint.config import Settings
from fuselint.graph.gates import Gates
from fuselint.graph.model import region
from fuselint.graph.symbols import Expr
from fuselint.rates import MEASURED, Load, Rates, figures_of, rates_of, total
from fuselint.rulebook import rules
from fuselint.traffic import saving
from fuselint.traffic.kernels import Bytes, compiled_kernels, kernels
from fuselint.traffic.loads import loads
from fuselint.traffic.sizes import Sizes
from tests.graph.functions import HEAD, graph_of, with_shapes

MEGA = 1e6
EXAMPLE = Rates(
    memory=4e12,
    launch=2e-6,
    handing=3e-6,
    elements={"Sigmoid": (1.0, 0.5), "Divide indexed": (2.0, 2.5), "indexed": (1.5, 1.0)},
    rows={"Softmax": [(1024, (2.0, 3.0)), (4096, (1.0, 2.0))]},
    operand=(0.25, 0.5),
    broadcast=(0.5, 0.75),
    steps={"Sigmoid": (1.2, 0.7)},
    products={"Matmul": (800, 400), "ScaledDotProductAttention": (500, 250)},
)


@pytest.mark.parametrize(
    ("load", "microseconds"),
    [
        (Load("Add", 2, 400 * MEGA, 100 * MEGA), 2 + 100),  # memory alone: 400 MB at 4 TB/s
        (Load("Add", 2, 0, launches=3), 6),
        (Load("Sigmoid", 2, 400 * MEGA, 100 * MEGA), 2 + math.hypot(100, 100)),  # as long as 1 ps an element takes
        (Load("Sigmoid", 4, 800 * MEGA, 100 * MEGA), 2 + math.hypot(200, 50)),
        (Load("Divide indexed", 2, 0, 100 * MEGA), 2 + 200),
        (Load("Add indexed", 2, 0, 100 * MEGA), 2 + 150),  # as what is indexed mostly takes
        (Load("Softmax", 2, 0, 100 * MEGA, row=512), 2 + 200),
        (Load("Softmax", 2, 0, 100 * MEGA, row=2560), 2 + 150),  # half way between two that were measured
        (Load("Softmax", 4, 0, 100 * MEGA, row=16384), 2 + 200),
        (Load("Compiled", 2, 0, 100 * MEGA, steps=("Sigmoid", "Add", "Sigmoid"), operands=3), 2 + 240),
        (Load("Compiled indexed", 2, 0, 100 * MEGA, steps=("Sigmoid",), operands=3, broadcast=2), 2 + 120 + 25 + 100),
        (Load("Matmul", 2, 0, 10 * MEGA, operations=8e10), 2 + 100),
        (Load("ScaledDotProductAttention with a mask", 2, 0, 10 * MEGA, operations=8e10), 2 + 160),
        (Load("AddMM", 4, 400 * MEGA, 10 * MEGA, operations=8e10), 2 + math.hypot(100, 200)),
    ],
)
def test_seconds_of_a_kernel(load: Load, microseconds: float) -> None:
    assert EXAMPLE.seconds(load) * 1e6 == pytest.approx(microseconds)


def test_small_kernels_take_what_handing_them_over_takes() -> None:
    small, large = Load("Add", 2, 0), Load("Add", 2, 400 * MEGA)
    assert total([small] * 4, EXAMPLE) == pytest.approx(4 * 3e-6)
    assert total([small, large, small], EXAMPLE) == pytest.approx(106e-6)


@pytest.mark.parametrize("chip", sorted(set(MEASURED.values())))
def test_the_figures_of_a_chip(chip: str) -> None:
    figures = figures_of(chip)
    assert 0.7 < figures["share"] < 1 and 0 < figures["launch"] < 5
    pairs = [*figures["elements"].values(), *figures["steps"].values(), *figures["products"].values()]
    pairs += [pair for rows in figures["rows"].values() for _, *pair in rows]
    assert len(pairs) > 50 and all(len(p) == 2 and min(p) >= 0 for p in [*pairs, figures["operand"]])
    for rows in figures["rows"].values():
        assert [row for row, *_ in rows] == sorted({row for row, *_ in rows})
    assert {"Matmul", "ScaledDotProductAttention"} <= set(figures["products"])


def test_what_was_measured_itself() -> None:
    """Two of the kernels that the figures were made of, less what one call takes besides: x * w with a row w of 4096,
    and the row-wise softmax, each of 1 GiB of bfloat16."""
    rates, call = rates_of("h200", 4800), figures_of("h200")["call"]
    assert rates is not None
    elements = 2**28
    for kind, row, measured in (("Multiply indexed", 0, 480.2), ("Softmax", 4096, 544.8)):
        load = Load(kind, 2, elements * 4, elements, row)
        assert rates.seconds(load) * 1e6 + call == pytest.approx(measured, rel=0.05)


def test_a_chip_with_the_same_processor_differs_by_its_memory() -> None:
    h100, h200 = (rates_of(key, CHIPS[key].bandwidth) for key in ("h100", "h200"))
    assert h100 is not None and h200 is not None
    assert h100.memory / h200.memory == pytest.approx(3350 / 4800) and h100.elements == h200.elements
    assert rates_of("a100", 2039) is None and rates_of("m3-max", 400) is None


# -- kinds ------------------------------------------------------------------------------------------------------------


def loads_of(expression: str, compiled: bool = False, kept: float = 0) -> list[Load]:
    """Of x (64 x 32), y (64 x 32), w (32), c (64 x 1), m (64 x 32) and h (2 x 4 x 64 x 32), in bfloat16."""
    graph = graph_of(f"{HEAD}def f(x, y, w, c, m, h):\n    return {expression}\n")
    graph = with_shapes(
        graph, [(64, 32), (64, 32), (32,), (64, 1), (64, 32), (2, 4, 64, 32)], dict.fromkeys(range(6), "bfloat16")
    )
    root = graph.returns[0][1]
    nodes, gates = region(root, ()), Gates("cuda")
    found = (
        compiled_kernels(nodes, [root], graph.facts, False, gates) if compiled else kernels(nodes, graph.facts, gates)
    )

    def number(formula: Expr) -> float:
        value = formula.value()
        assert value is not None
        return value

    return list(loads(found, Bytes(Sizes()), number, lambda size: size <= kept))


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("x + y", "Add"),
        ("x * 0.5", "Multiply"),
        ("x * mx.zeros((1,))", "Multiply"),
        ("x * w", "Multiply indexed"),
        ("x - c", "Subtract indexed"),
        ("x.T * y.T", "Multiply"),  # both in the order of columns
        ("x.T * y.reshape(32, 64)", "Multiply indexed"),
        ("-x[:, 16:]", "Negative indexed"),
        ("-x[:16]", "Negative"),
        ("mx.where(m, x, y)", "Select"),
        ("mx.where(m, x, 0)", "Select indexed"),
        ("mx.sum(x, axis=-1)", "Reduce rows"),
        ("mx.max(x, axis=0)", "Reduce columns"),
        ("mx.sum(x)", "Reduce all"),
        ("mx.concatenate([x, y], axis=0)", "Concatenate outer"),
        ("mx.concatenate([x, y], axis=-1)", "Concatenate last"),
        ("mx.stack([x, y], axis=-1)", "Concatenate single"),
        ("mx.softmax(x, axis=-1)", "Softmax"),
        ("mx.softmax(x, axis=-1, precise=True)", "Softmax precise"),
        ("mx.fast.rms_norm(x, w, 1e-5)", "RMSNorm"),
        ("mx.fast.layer_norm(x, None, None, 1e-5)", "LayerNorm without weight"),
        ("x.T.reshape(-1)", "Copy"),
        ("mx.fast.scaled_dot_product_attention(h, h, h, scale=1.0)", "ScaledDotProductAttention"),
    ],
)
def test_kinds_are_those_that_cuda_has_kernels_for(expression: str, kind: str) -> None:
    assert loads_of(expression)[-1].kind == kind


def test_what_a_compiled_kernel_has_to_do() -> None:
    (plain,) = loads_of("mx.sigmoid(x) * y + 1", compiled=True)
    assert (plain.kind, plain.operands, plain.broadcast) == ("Compiled", 2, 0)
    assert [s for s in plain.steps if s != "Broadcast"] == ["Sigmoid", "Multiply", "Add"]
    (looked_up,) = loads_of("mx.sigmoid(x) * w + c", compiled=True)
    assert (looked_up.kind, looked_up.operands, looked_up.broadcast) == ("Compiled indexed", 3, 2)
    assert (looked_up.elements, looked_up.moved) == (2048, 2 * (2048 + 32 + 64 + 2048))


def test_elements_are_those_that_a_kernel_goes_through() -> None:
    (summed,) = loads_of("mx.sum(x, axis=-1)")
    assert (summed.elements, summed.row, summed.moved) == (2048, 32, 2 * (2048 + 64))
    (joined,) = loads_of("mx.concatenate([x, y], axis=-1)")
    assert (joined.elements, joined.launches) == (4096, 2)
    (product,) = loads_of("x @ y.T")
    assert product.operations == 2 * 64 * 64 * 32


def test_what_stays_in_the_cache_costs_half() -> None:
    cold, warm = loads_of("mx.exp(x) * y"), loads_of("mx.exp(x) * y", kept=4096)
    assert [k.moved for k in cold] == [2 * 4096, 3 * 4096]
    assert [k.moved for k in warm] == [1.5 * 4096, 2.5 * 4096]  # what one writes and the other reads


def test_a_finding_says_what_its_kernels_take() -> None:
    """Three kernels of the bytes of x become one compiled kernel: 2 x 64 MiB and 3 x 64 MiB in bfloat16."""
    graph = graph_of(f"{HEAD}def f(g: mx.array, u: mx.array):\n    return g * mx.sigmoid(g) * u\n")
    (rule,) = [r for r in rules() if r.code == "FUS301"]
    (match,) = rule.find(graph)
    settings = Settings(chip="h200", dtype="bf16", shape={"T": 8192, "D": 4096, "u.size": 8192 * 4096})
    traffic = saving(graph, match, settings)
    rates = rates_of("h200", 4800)
    assert rates is not None and traffic.seconds is not None
    n = 8192 * 4096
    before = [Load("Sigmoid", 2, 4 * n, n), Load("Multiply", 2, 6 * n, n), Load("Multiply", 2, 6 * n, n)]
    after = Load("Compiled", 2, 6 * n, n, steps=("Sigmoid", "Multiply", "Multiply"), operands=2)
    sides = total(before, rates), rates.seconds(after)
    assert traffic.seconds.estimate == pytest.approx(sides[0] - sides[1])
    off = traffic.seconds.high - traffic.seconds.estimate
    assert off == pytest.approx(traffic.seconds.estimate - traffic.seconds.low) == pytest.approx(0.07 * sum(sides))
