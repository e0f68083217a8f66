"""The benchmarks that need neither a GPU nor a package still run, and say what is known."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
