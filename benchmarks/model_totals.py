"""Whole models of mlx-lm: what fuselint counts of their source, and what MLX launches when they are called.

    python benchmarks/model_totals.py PATH/TO/mlx_lm [-v] [MODEL ...]

For each model a small configuration is made. One pass of LENGTH tokens is counted twice: from the source alone, as
`fuselint check --model-config` does, and by `fuselint trace`, which calls the model. Prints kernels and bytes of both;
-v also says which kernels differ. The folder `models` of the package is all that is imported of it.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuselint.config import Settings
from fuselint.graph.elsewhere import Elsewhere
from fuselint.graph.program import Program
from fuselint.modelconfig import ModelConfig
from fuselint.source.modules import Modules
from fuselint.source.project import summarise
from fuselint.source.screen import screen
from fuselint.source.text import FileText
from fuselint.traffic.model import Model

LENGTH = 512

USUAL: dict[str, Any] = {
    "hidden_size": 512, "num_hidden_layers": 4, "intermediate_size": 1280, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 4000, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}  # fmt: skip

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 64, "tie_word_embeddings": True},
    "gemma": {"head_dim": 64},
    "gemma2": {"head_dim": 64},
    "phi": {"layer_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5},
    "phi3": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "starcoder2": {"norm_epsilon": 1e-5, "tie_word_embeddings": True},
    "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
    "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.0625},
    "olmo2": {"tie_word_embeddings": False},
    "gpt_neox": {"layer_norm_eps": 1e-5, "rotary_emb_base": 10000, "rotary_pct": 0.25},
    "granite": {"logits_scaling": 8.0, "attention_multiplier": 0.1, "embedding_multiplier": 12.0,
                "residual_multiplier": 0.2, "attention_bias": False, "mlp_bias": False},
    "internlm2": {"bias": False},
    "minicpm": {"dim_model_base": 256, "scale_depth": 1.4, "scale_emb": 12.0},
    "qwen2_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 320,
                  "shared_expert_intermediate_size": 640},
    "nemotron": {"hidden_act": "relu2", "norm_eps": 1e-5, "head_dim": 64},
}  # fmt: skip
"""What each configuration says besides the usual."""


def configured(name: str) -> dict[str, Any]:
    return {"model_type": name, **USUAL, **MODELS[name]}


def counted(path: Path, data: dict[str, Any]) -> Counter[tuple[str, int]]:
    """What fuselint counts of the source: kernels by name and bytes."""
    file = FileText(str(path), path.read_text(encoding="utf-8"))
    screened = screen(file)
    assert isinstance(screened.tree, ast.Module)
    program = Program(file, summarise(file, screened.tree))
    program.elsewhere = Elsewhere(program, Modules())
    settings = Settings(model_config=ModelConfig(path.stem, data), shape={"B": 1, "L": LENGTH}, chip="m3-max")
    model = Model(program, screened.tree, settings)
    out: Counter[tuple[str, int]] = Counter()
    for objects in model.objects.values():
        for o in objects:
            graph = model.graph(o.made.class_name)
            for x in model.launches(graph, o.made)[0] if graph is not None else ():
                out[x.kernel.op, x.bytes] += x.times * o.count
    return out


def launched(package: Path, name: str, data: dict[str, Any]) -> Counter[tuple[str, int]]:
    """What MLX launches when the model is called, as it would on Metal."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "mlx_lm"
        bare.mkdir()
        (bare / "__init__.py").touch()
        (bare / "models").symlink_to(package / "models")
        command = [
            sys.executable, "-m", "fuselint", "trace", f"mlx_lm.models.{name}:Model", "--no-fixes", "--isolated",
            "--init", f"ModelArgs.from_dict({data!r})", "--input", f"i32[1,{LENGTH}]", "--dtype", "bf16",
            "--output-format", "json",
        ]  # fmt: skip
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
    if ran.returncode:
        sys.exit(f"{name}: {ran.stderr}")
    out: Counter[tuple[str, int]] = Counter()
    for line in json.loads(ran.stdout)["lines"]:
        for k in line["kernels"]:
            out[k["name"], sum(a["bytes"] for a in (*k["reads"], *k["writes"]))] += k.get("eager", {"kernels": 0})[
                "kernels"
            ]
    return out


def bytes_of(kernels: Counter[tuple[str, int]]) -> int:
    return sum(size * count for (_, size), count in kernels.items())


def main(package: Path, names: list[str], *, verbose: bool) -> None:
    print(f"{'model':<12} {'kernels: source':>15} {'MLX':>6} {'MB: source':>11} {'MLX':>9} {'ratio':>7}")
    for name in names or MODELS:
        data = configured(name)
        ours = counted(package / "models" / f"{name}.py", data)
        real = launched(package, name, data)
        ratio = bytes_of(ours) / bytes_of(real)
        print(
            f"{name:<12} {ours.total():>15} {real.total():>6} {bytes_of(ours) / 1e6:>11.1f}"
            f" {bytes_of(real) / 1e6:>9.1f} {ratio:>7.3f}"
        )
        for label, more in (("source only", ours - real), ("MLX only", real - ours)) if verbose else ():
            for (op, size), count in sorted(more.items(), key=lambda x: -x[0][1] * x[1]):
                print(f"    {label:<12} {count:>4} x {size / 1e6:9.3f} MB  {op}")


if __name__ == "__main__":
    given = [a for a in sys.argv[1:] if a != "-v"]
    if not given:
        sys.exit(__doc__)
    main(Path(given[0]).absolute(), given[1:], verbose="-v" in sys.argv)
