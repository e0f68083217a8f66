"""Compare the logits of a model before and after its fixes: small configs, random weights, on MLX's CPU device.

    python benchmarks/model_logits.py ORIGINAL/mlx_lm FIXED/mlx_lm [--models llama mixtral phi2]

float32 has to agree to 1e-4; bfloat16 to what the original itself differs from its float32 self. Prefill, a second
prompt length, then decoding with each version's own cache, passed by name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

SMALL = {
    "model_type": "small",
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def run(package: Path, module: str, dtype: str) -> list[Any]:
    """Logits as float32: prefill of 16 and of 5 tokens, batch 2, then six decode steps after the first prompt."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from packages import load, model_args

    mod = load(package, f"models.{module}")
    mx.random.seed(7)
    model = mod.Model(model_args(mod.ModelArgs, SMALL))
    kind = getattr(mx, dtype)
    model.update(tree_map(lambda a: a.astype(mx.bfloat16).astype(kind), model.parameters()))
    prompt = mx.random.randint(0, SMALL["vocab_size"], (2, 16))
    outs = []
    short, _ = model(prompt[:, :5])
    out, cache = model(prompt)
    outs += [short, out]
    steps = mx.random.randint(0, SMALL["vocab_size"], (6, 2, 1))
    for i in range(6):
        out, cache = model(steps[i], cache=cache)
        outs.append(out)
    mx.eval(outs)
    return [o.astype(mx.float32) for o in outs]


def largest(a: list[Any], b: list[Any]) -> float:
    import mlx.core as mx

    return max(mx.max(mx.abs(x - y)).item() if x.shape == y.shape else float("inf") for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("fixed", type=Path)
    parser.add_argument("--models", nargs="+", default=["llama", "mixtral", "phi2"])
    options = parser.parse_args()
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    failed = False
    print("| model | f32: fixed against original | bf16: fixed against original | bf16: original against its f32 |")
    print("|---|---|---|---|")
    for module in options.models:
        old, new = (run(p, module, "float32") for p in (options.original, options.fixed))
        old16, new16 = (run(p, module, "bfloat16") for p in (options.original, options.fixed))
        exact, half, own = largest(old, new), largest(old16, new16), largest(old16, old)
        failed |= exact > 1e-4 or half > own
        print(f"| {module} | {exact:.2e} | {half:.2e} | {own:.2e} |")
    sys.exit(failed)


if __name__ == "__main__":
    main()
