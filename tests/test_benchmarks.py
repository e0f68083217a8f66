"""The benchmarks that need neither a GPU nor a package still run, and say what is known."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tests.traffic.models import KEYS, LLAMA

FOLDER = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_published_times_lie_in_the_band() -> None:
    """To the digits that they are given with."""
    figures = list(benchmark("published").figures())
    assert len(figures) == 9
    for f in figures:
        low, measured, high = 1e3 * f.ours.low, f.milliseconds - f.floor, 1e3 * f.ours.high
        assert low * 0.99 <= measured <= high * 1.01, f.what


def test_a_models_source_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(LLAMA)
    totals = benchmark("model_totals")
    counted = totals.counted(path, KEYS)
    norms = sum(n for (op, _), n in counted.items() if op == "RMSNorm")
    assert norms == 2 * KEYS["num_hidden_layers"] + 1
    assert totals.bytes_of(counted) > 2 * KEYS["vocab_size"] * KEYS["hidden_size"]


class Calls:
    """How many functions are called meanwhile: a measure of work that no other program changes."""

    def __enter__(self) -> Calls:
        self.count = 0
        sys.setprofile(self._called)
        return self

    def _called(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


SMALL, LARGE = 40, 160
LINEAR = ("statements", "products", "sums", "branches", "elifs", "cases", "loops", "changes", "calls")


@pytest.mark.slow
@pytest.mark.parametrize("shape", LINEAR)
def test_work_grows_with_the_size_of_a_function_and_no_faster(shape: str) -> None:
    scaling = benchmark("scaling")
    counts = []
    for n in (SMALL + 1, SMALL, LARGE):  # the first one imports; what is known of a text is kept
        with Calls() as calls:
            _, whole = scaling.seconds(getattr(scaling, shape)(n))
        assert whole
        counts.append(calls.count)
    n_log_n = LARGE * math.log(LARGE) / (SMALL * math.log(SMALL))
    assert counts[2] / counts[1] < n_log_n


def test_a_plot_shows_each_shape(tmp_path: Path) -> None:
    scaling = benchmark("scaling")
    times = [(10, 0.02, True), (100, 0.2, True), (10000, 1.0, False)]
    drawn = ElementTree.fromstring(scaling.plot([("sums", times), ("a < b", times[:2])]))
    texts = [t.text for t in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sums", "a < b", "n log n"} <= set(texts)
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    assert [c.get("fill") == "white" for c in circles] == [False, False, True, False, False]
    assert scaling.exponent(times) == pytest.approx(1.0)


def test_figures_of_a_chip_are_found_again_in_times_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of single kernels as known figures would make them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    cases, fit = benchmark("cuda_kernels"), benchmark("fit_rates")
    from fuselint.rates import Rates

    made_of = Rates(
        memory=4.2e12,
        launch=2e-6,
        handing=3e-6,
        elements={"Sigmoid": (1.2, 0.8), "indexed": (1.7, 1.9), "Gather": (6.0, 6.0)},
        rows={"Softmax": [(512, (1.5, 2.5)), (4096, (2.0, 3.0))]},
        operand=(0.25, 0.4),
        broadcast=(0.6, 0.5),
        steps={"Sigmoid": (1.2, 0.8)},
        products={"Matmul": (700, 350)},
    )
    wanted = "unary|binary( with a (row|column))?|full|row sum|chain 1|chain 2|chain 16|chain of sums .|entry|product"
    wanted += (
        "|softmax(, 512 wide)?|compiled Sigmoid x [26]|unary Sigmoid|compiled with rows: x .*|compiled with rows: \\(.*"
    )
    timed = []
    for case in cases.specified(False, f"^({wanted})$"):
        loads = fit.loads_of(case, lambda _: False)
        us = max(14 + 1e6 * sum(map(made_of.seconds, loads)), 20 + 3.0 * len(loads))
        timed.append(fit.Timed(case["label"], case["dtype"], case["sizes"].get("T", 0), loads, us))
    found = fit.fitted(timed, 4800)
    assert found["share"] == pytest.approx(4.2 / 4.8, abs=0.002)
    assert (found["launch"], found["call"]) == (pytest.approx(2, abs=0.3), pytest.approx(14, abs=0.3))
    assert found["handing"] == [pytest.approx(20), pytest.approx(3)]
    assert found["elements"]["Sigmoid"] == pytest.approx([1.2, 0.8], abs=0.05)
    assert found["elements"]["indexed"] == pytest.approx([1.7, 1.9], abs=0.05)
    assert found["elements"]["Gather"] == pytest.approx([6, 6], abs=0.1)
    assert "Add" not in found["elements"]
    assert found["rows"]["Softmax"] == [[512, *map(near, (1.5, 2.5))], [4096, *map(near, (2, 3))]]
    assert found["steps"] == {"Sigmoid": [near(1.2), near(0.8)]}
    assert (found["operand"], found["broadcast"]) == ([near(0.25), near(0.4)], [near(0.6), near(0.5)])
    assert found["products"]["Matmul"] == pytest.approx([700, 350], rel=0.02)
    assert found["error"] < 0.01


def near(figure: float) -> object:
    return pytest.approx(figure, abs=0.05)
