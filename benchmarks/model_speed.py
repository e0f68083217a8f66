"""Time a model before and after its fixes, and against another version of its package, in one run.

    python benchmarks/model_speed.py original=OLD/mlx_lm fixed=COPY/mlx_lm current=NEW/mlx_lm

Each version runs in a process of its own, so that peak memory is its own: prefill of several lengths (logits of all
positions, no cache), then decoding one token at a time after a prompt of 1,024. Random bfloat16 weights of Llama's
7B width (8 of its layers, 32 query heads, 8 key and value heads). Medians after warm-up; milliseconds and GiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WIDTH = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "rms_norm_eps": 1e-5,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


def child(package: Path, module: str, layers: int, prompts: list[int], repeats: int) -> dict[str, Any]:
    import mlx.core as mx
    from mlx.utils import tree_map
    from packages import load, model_args

    mod = load(package, module)
    mx.random.seed(0)
    model = mod.Model(model_args(mod.ModelArgs, {**WIDTH, "num_hidden_layers": layers}))
    model.update(tree_map(lambda a: (a * 0.02).astype(mx.bfloat16), model.parameters()))
    mx.eval(model.parameters())

    def logits(out: Any) -> Any:
        return out[0] if isinstance(out, tuple) else out

    def median_ms(run: Callable[[], Any]) -> float:
        for _ in range(3):
            mx.eval(run())
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            mx.eval(run())
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)

    figures: dict[str, Any] = {}
    for length in prompts:
        tokens = mx.random.randint(0, WIDTH["vocab_size"], (1, length))
        mx.eval(tokens)
        mx.reset_peak_memory()
        figures[f"prefill {length} ms"] = median_ms(lambda tokens=tokens: logits(model(tokens)))
        figures[f"peak at {length} GiB"] = mx.get_peak_memory() / 2**30

    tokens = mx.random.randint(0, WIDTH["vocab_size"], (1, 1024))
    try:
        cache: Any = load_cache(package, layers)
        first = logits(model(tokens, cache=cache))
        step: Callable[[Any, Any], tuple[Any, Any]] = lambda t, c: (logits(model(t, cache=c)), c)  # noqa: E731
    except ModuleNotFoundError:
        first, cache = model(tokens)
        step = lambda t, c: model(t, cache=c)  # noqa: E731
    mx.eval(first)
    token = mx.argmax(first[:, -1:], axis=-1)
    times = []
    for i in range(70):
        start = time.perf_counter()
        out, cache = step(token, cache)
        token = mx.argmax(out[:, -1:], axis=-1)
        mx.eval(token)
        if i >= 20:
            times.append((time.perf_counter() - start) * 1e3)
    figures["decode ms a token at 1024"] = statistics.median(times)
    return figures


def load_cache(package: Path, layers: int) -> Any:
    """The package's own KV cache, where it has one (mlx-lm since 0.20)."""
    import importlib

    cache = importlib.import_module(f"{package.name}.models.cache")
    return [cache.KVCache() for _ in range(layers)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="NAME=PACKAGE_FOLDER")
    parser.add_argument("--module", default="models.llama")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--prompts", type=int, nargs="+", default=[512, 2048, 4096])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        package = Path(options.versions[0])
        print(json.dumps(child(package, options.module, options.layers, options.prompts, options.repeats)))
        return
    rows: dict[str, dict[str, Any]] = {}
    for version in options.versions:
        name, _, folder = version.partition("=")
        command = [sys.executable, __file__, folder, "--child", "--module", options.module, "--layers"]
        command += [str(options.layers), "--repeats", str(options.repeats), "--prompts", *map(str, options.prompts)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            sys.exit(f"{name}: {run.stderr[-3000:]}")
        rows[name] = json.loads(run.stdout.splitlines()[-1])
    columns = list(next(iter(rows.values())))
    print("| version | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, figures in rows.items():
        print(f"| {name} | " + " | ".join(f"{figures[c]:.2f}" for c in columns) + " |")


if __name__ == "__main__":
    main()
