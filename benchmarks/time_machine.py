"""Old models fixed by fuselint, beside what their authors made of them by hand: kernels and bytes of a whole pass.

    python benchmarks/time_machine.py --today NEW/mlx_lm 0.0.3=OLD/mlx_lm 0.0.14=OLD/mlx_lm ... [--models NAME ...]

Each old package is copied and fixed (`fix --apply --unsafe-fixes --no-verify`). Every model that is in both packages is
traced (`fuselint trace`: nothing is evaluated) three times, as it was, fixed and of today: a prompt of 2,048 tokens,
and one token after it with the model's own cache. 7B width (4096, 32 heads, 8 of keys and values), 4 layers, bfloat16.
Below the table: which kernels the fixed one launches that today's doesn't, and the reverse.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LAYERS = 4
PATIENCE = 30
"""Seconds for one trace: a model that looks into its arrays computes on the way."""
SIZES: dict[str, Any] = {
    "hidden_size": 4096, "d_model": 4096, "model_dim": 4096, "intermediate_size": 11008, "mlp_hidden_size": 22016,
    "num_hidden_layers": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "num_attention_heads": 32, "n_heads": 32,
    "num_heads": 32, "num_key_value_heads": 8, "kv_channels": 128, "head_dim": 128, "n_shared_head": 4,
    "vocab_size": 32000, "num_vocab": 32000, "embedding_size": 32000, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "layer_norm_epsilon": 1e-5, "norm_epsilon": 1e-5,
    "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "rotary_dim": 64, "use_qkv_bias": True, "logit_scale": 0.0625,
    "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 2752,
    "shared_expert_intermediate_size": 2752, "mlp_ratio": 4, "weight_tying": False, "tie_word_embeddings": False,
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 8, "moe_top_k": 2},
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 10000.0},
}  # fmt: skip
"""What the models' configurations call these sizes; each takes those that it knows."""
EXCEPT: dict[str, dict[str, Any]] = {
    "phi": {"num_key_value_heads": 32},
    "plamo": {"num_key_value_heads": 32},
    "starcoder2": {"tie_word_embeddings": True},  # 0.10.0 can't be built without
}
RENAMED = {"phi2": "phi"}
"""Old names of models."""
INPUTS = """
import mlx.core as mx

def step(model):
    prompt, token = mx.zeros((1, 2048), mx.int32), mx.zeros((1, 1), mx.int32)
    try:
        from mlx_lm.models.cache import make_prompt_cache
    except ImportError:
        return (token,), {"cache": model(prompt)[1]}
    cache = make_prompt_cache(model)
    model(prompt, cache=cache)
    return (token,), {"cache": cache}
"""


@dataclass(frozen=True)
class Pass:
    """Kernels of one pass, by name, and what they move in bytes."""

    kernels: Counter[str]
    bytes: int


def traced(package: Path, name: str, decode: bool) -> Pass | str:
    """One pass of a model, or why it could not be traced."""
    data = {"model_type": name, **SIZES, **EXCEPT.get(name, {})}
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "mlx_lm"
        bare.mkdir()
        (bare / "__init__.py").touch()
        (bare / "models").symlink_to(package.absolute() / "models")
        (Path(folder) / "passes.py").write_text(INPUTS)
        (Path(folder) / "hf_olmo.py").touch()  # old olmo imports it, and uses nothing of it
        inputs = ["--inputs", "passes:step"] if decode else ["--input", "i32[1,2048]"]
        command = [
            sys.executable, "-m", "fuselint", "trace", f"mlx_lm.models.{name}:Model", "--no-fixes", "--isolated",
            "--init", f"ModelArgs.from_dict({data!r})", "--dtype", "bf16", "--output-format", "json", *inputs,
        ]  # fmt: skip
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        try:
            ran = subprocess.run(
                command, check=False, cwd=folder, capture_output=True, text=True, env=environment, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            return f"not traced in {PATIENCE} s"
    if ran.returncode:
        return ran.stderr.strip().splitlines()[-1]
    kernels: Counter[str] = Counter()
    moved = 0
    for line in json.loads(ran.stdout)["lines"]:
        for k in line["kernels"]:
            times = k.get("eager", {"kernels": 0})["kernels"]
            kernels[k["name"]] += times
            moved += times * sum(a["bytes"] for a in (*k["reads"], *k["writes"]))
    return Pass(kernels, moved)


def fixed(package: Path, into: Path, verify: bool = False) -> Path:
    """A copy of the package, with every fix made; verify: but those that a run shows to be different."""
    copy = into / package.name
    shutil.copytree(package, copy)
    command = [sys.executable, "-m", "fuselint", "fix", "--isolated", "--apply", "--unsafe-fixes"]
    command += ["--verify" if verify else "--no-verify"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    subprocess.run([*command, str(copy), "--exit-zero"], check=True, cwd=into, env=environment, capture_output=True)
    return copy


def names(package: Path) -> list[str]:
    found = (p.stem for p in sorted((package / "models").glob("*.py")))
    return [n for n in found if n not in ("__init__", "base", "layers")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION=PACKAGE_FOLDER")
    parser.add_argument("--today", type=Path, required=True, metavar="PACKAGE_FOLDER")
    parser.add_argument("--models", nargs="+")
    options = parser.parse_args()
    print("| version | model | pass | kernels: was | fixed | today | MB: was | fixed | today |")
    print("|---|---|---|---|---|---|---|---|---|")
    notes = []
    for version in options.versions:
        label, _, folder = version.partition("=")
        old = Path(folder).absolute()
        with tempfile.TemporaryDirectory() as into:
            new = fixed(old, Path(into))
            for name in names(old):
                today = RENAMED.get(name, name)
                if (options.models and name not in options.models) or not (
                    options.today / f"models/{today}.py"
                ).exists():
                    continue
                for kind in ("prefill", "decode"):
                    decode = kind == "decode"
                    passes: list[Pass | str] = []
                    for package, module in ((old, name), (new, name), (options.today, today)):
                        passes.append(traced(package, module, decode))
                        if isinstance(passes[-1], str):
                            break
                    if isinstance(passes[-1], str):
                        notes.append(f"{label} {name}, {kind}: {passes[-1]}")
                        continue
                    row = [str(p.kernels.total()) for p in passes if isinstance(p, Pass)]
                    row += [f"{p.bytes / 1e6:,.0f}" for p in passes if isinstance(p, Pass)]
                    print(f"| {label} | {name} | {kind} | " + " | ".join(row) + " |", flush=True)
                    ours, theirs = (p.kernels for p in passes[1:] if isinstance(p, Pass))
                    notes.append(
                        f"{label} {name}, {kind}: fixed only {_list(ours - theirs)}; today only {_list(theirs - ours)}"
                    )
    print("\n" + "\n".join(f"- {n}" for n in notes))


def _list(kernels: Counter[str]) -> str:
    return ", ".join(f"{n} {k}" for k, n in kernels.most_common()) or "none"


if __name__ == "__main__":
    main()
