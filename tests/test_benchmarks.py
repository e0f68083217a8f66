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
    for n in (SMALL, SMALL, LARGE):  # the first one imports
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
