"""Old models as they were, fixed by fuselint and of today: milliseconds, side by side in one process.

    python benchmarks/time_machine_speed.py prepare FOLDER --today NEW/mlx_lm 0.0.3=OLD/mlx_lm 0.0.14=OLD/mlx_lm ...
    python FOLDER/time_machine_speed.py run FOLDER -o RESULT.json [--models 0.0.3/llama ...] [--seconds 450]
    python FOLDER/time_machine_speed.py table RESULT.json

`prepare` fixes copies of the old packages (`fix --apply --unsafe-fixes`) and puts into FOLDER all that `run` needs
besides Python, MLX and numpy, so that a machine with a GPU needs neither fuselint nor the packages. The models and
their sizes are those of time_machine.py.

`run` times prefill of several lengths (logits of all positions, no cache) and decode (one token after 1,024, with the
version's own cache). The versions take turns at every repetition; medians. Original and fixed share their weights, so
their logits are compared as well. Each model has a process of its own; the result is written after each.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FIRST = ("0.0.3/llama", "0.0.14/llama", "0.0.14/gemma", "0.0.3/phi2", "0.10.0/cohere", "0.10.0/llama", "0.10.0/gemma")
"""What is timed before the rest, where time runs out."""
PROMPTS = (512, 2048, 4096)
DECODE_AT = 1024
STEPS = 16
"""Tokens that one version decodes before it is another's turn."""
TINY = {
    "hidden_size": 64, "d_model": 64, "model_dim": 64, "intermediate_size": 96, "mlp_hidden_size": 192,
    "num_hidden_layers": 1, "n_layers": 1, "num_layers": 1, "num_attention_heads": 4, "n_heads": 4, "num_heads": 4,
    "num_key_value_heads": 2, "kv_channels": 16, "head_dim": 16, "n_shared_head": 2, "vocab_size": 128,
    "num_vocab": 128, "embedding_size": 128, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "rotary_dim": 8, "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
}  # fmt: skip
"""In place of the sizes, to see on a CPU that all runs."""


# -- before, with fuselint -----------------------------------------------------------------------------------------


def prepare(folder: Path, today: Path, versions: list[str]) -> None:
    from time_machine import EXCEPT, RENAMED, SIZES, fixed, names

    shutil.rmtree(folder / "versions", ignore_errors=True)
    listed: dict[str, Any] = {}
    _models_of(today, folder / "versions/today")
    for version in versions:
        label, _, path = version.partition("=")
        old, into = Path(path).absolute(), folder / "versions" / label
        _models_of(old, into / "original")
        with tempfile.TemporaryDirectory() as elsewhere:  # git may ignore FOLDER, and fuselint what git ignores
            _models_of(fixed(old, Path(elsewhere), verify=True), into / "fixed")
        for name in names(old):
            new_name = RENAMED.get(name, name)
            if (today / f"models/{new_name}.py").exists():
                listed[f"{label}/{name}"] = {
                    "today": new_name,
                    "sizes": {**SIZES, **EXCEPT.get(name, {}), "model_type": name},
                    "changed": (old / f"models/{name}.py").read_bytes()
                    != (into / f"fixed/models/{name}.py").read_bytes(),
                }
    (folder / "models.json").write_text(json.dumps(listed, indent=1))
    shutil.copy(__file__, folder)


def _models_of(package: Path, into: Path) -> None:
    shutil.copytree(package / "models", into / "models", ignore=shutil.ignore_patterns("__pycache__"))


# -- with MLX ------------------------------------------------------------------------------------------------------


def child(folder: Path, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of one model, by version."""
    import mlx.core as mx
    from mlx.utils import tree_flatten

    said = json.loads((folder / "models.json").read_text())[model]
    sizes = said["sizes"]
    if options.tiny:
        every = sizes["num_key_value_heads"] == sizes["num_attention_heads"]
        sizes = {**sizes, **TINY, **({"num_key_value_heads": TINY["num_attention_heads"]} if every else {})}
    sys.modules["hf_olmo"] = types.ModuleType("hf_olmo")  # old olmo imports it, and uses nothing of it
    version, _, name = model.partition("/")
    base = folder / "versions"
    old = Version("original", base / version / "original", name, sizes)
    new = Version("fixed", base / version / "fixed", name, sizes)
    new.model.load_weights(tree_flatten(old.model.parameters()), strict=False)
    versions = [old, new, Version("today", base / "today", said["today"], sizes)]
    out: dict[str, Any] = {"changed": said["changed"], "versions": {v.label: {} for v in versions}}
    if error := versions[-1].error(options.prompts[0]):  # as today's olmo, which can't take its own mask
        out["versions"]["today"] = {"error": error}
        versions.pop()
    for length in options.prompts:
        tokens = mx.random.randint(0, sizes["vocab_size"], (1, length))
        mx.eval(tokens)
        if length == options.prompts[0]:
            out["gap"] = _gap(old.logits(tokens), new.logits(tokens))
        for label, figures in _alternating(versions, partial(Version.logits, tokens=tokens), options.repeats).items():
            out["versions"][label].update({f"prefill {length} {what}": x for what, x in figures.items()})
    for label, ms in _decoding(versions, options.decode_at, options.repeats).items():
        out["versions"][label][f"decode {options.decode_at} ms"] = ms
    return out


class Version:
    """One version of a model, in bfloat16."""

    def __init__(self, label: str, package: Path, name: str, sizes: dict[str, Any]) -> None:
        import importlib

        import mlx.core as mx

        self.label, self.root = label, f"mlx_lm_{label}"
        root = types.ModuleType(self.root)
        root.__path__ = [str(package)]
        sys.modules[self.root] = root
        module = importlib.import_module(f"{self.root}.models.{name}")
        mx.random.seed(0)
        self.model = module.Model(module.ModelArgs.from_dict(sizes))
        self.model.set_dtype(mx.bfloat16)
        self.model.eval()
        mx.eval(self.model.parameters())

    def logits(self, tokens: Any) -> Any:
        out = self.model(tokens)
        return out[0] if isinstance(out, tuple) else out

    def error(self, length: int) -> str:
        """Why a prompt can't be run, or ""."""
        import mlx.core as mx

        try:
            mx.eval(self.logits(mx.zeros((1, length), mx.int32)))
        except (RuntimeError, TypeError, ValueError) as e:
            return f"{type(e).__name__}: {e}"
        return ""

    def prompt(self, tokens: Any) -> Any:
        """The cache after a prompt."""
        import importlib

        import mlx.core as mx

        try:
            caches = importlib.import_module(f"{self.root}.models.cache")
        except ModuleNotFoundError:
            out, cache = self.model(tokens)
            mx.eval(out)
            return cache
        cache = caches.make_prompt_cache(self.model)
        mx.eval(self.model(tokens, cache=cache))
        return cache

    def step(self, token: Any, cache: Any) -> tuple[Any, Any]:
        """The next token, and the cache after it."""
        import mlx.core as mx

        out = self.model(token, cache=cache)
        if isinstance(out, tuple):
            out, cache = out
        return mx.argmax(out[:, -1:], axis=-1), cache


def _gap(one: Any, other: Any) -> float:
    """The largest difference, as a share of the largest value."""
    import mlx.core as mx

    one, other = one.astype(mx.float32), other.astype(mx.float32)
    return float(mx.max(mx.abs(one - other)).item() / mx.max(mx.abs(one)).item())


def _alternating(versions: list[Version], run: Callable[[Version], Any], repeats: int) -> dict[str, dict[str, float]]:
    """Median milliseconds, and the peak of memory beyond what lay there before in GiB."""
    import mlx.core as mx

    times: dict[str, list[float]] = {v.label: [] for v in versions}
    peak = {}
    for v in versions:
        mx.eval(run(v))
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(run(v))
        peak[v.label] = (mx.get_peak_memory() - before) / 2**30
    for _ in range(repeats):
        for v in versions:
            mx.synchronize()
            start = time.perf_counter()
            mx.eval(run(v))
            times[v.label].append((time.perf_counter() - start) * 1e3)
    return {label: {"ms": statistics.median(t), "GiB": peak[label]} for label, t in times.items()}


def _decoding(versions: list[Version], at: int, rounds: int) -> dict[str, float]:
    import mlx.core as mx

    prompt = mx.random.randint(0, 128, (1, at))
    times: dict[str, list[float]] = {v.label: [] for v in versions}
    for turn in range(rounds + 1):  # the first is not counted
        for v in versions:
            cache, token = v.prompt(prompt), mx.zeros((1, 1), mx.int32)
            for i in range(STEPS):
                mx.synchronize()
                start = time.perf_counter()
                token, cache = v.step(token, cache)
                mx.eval(token)
                if turn and i >= 2:
                    times[v.label].append((time.perf_counter() - start) * 1e3)
    return {label: statistics.median(t) for label, t in times.items()}


def run(options: argparse.Namespace) -> None:
    folder = options.folder.absolute()
    known = list(json.loads((folder / "models.json").read_text()))
    wanted = options.models or [*(m for m in FIRST if m in known), *(m for m in known if m not in FIRST)]
    deadline = time.monotonic() + options.seconds
    out: dict[str, Any] = {}
    for model in wanted:
        left = deadline - time.monotonic()
        if left < 5:
            out[model] = {"error": "no time left"}
        else:
            out[model] = _in_child(folder, model, options, min(left, options.patience))
        print(model, json.dumps(out[model]), flush=True)
        options.output.write_text(json.dumps(out, indent=1))


def _in_child(folder: Path, model: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    command = [
        sys.executable, __file__, "child", str(folder), model, "--repeats", str(options.repeats),
        "--decode-at", str(options.decode_at), "--prompts", *map(str, options.prompts),
        *(["--tiny"] if options.tiny else []),
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {seconds:.0f} s"}
    if ran.returncode:
        return {"error": ran.stderr[-1500:]}
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def table(results: dict[str, Any]) -> str:
    """A row a model; in a cell original, fixed and today's."""
    head = [f"prefill {n}" for n in PROMPTS] + [f"decode at {DECODE_AT}", "GiB at 4096", "fixed against original"]
    lines = ["| model | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for model, found in results.items():
        if "error" in found:
            lines.append(f"| {model} | {found['error'].strip().splitlines()[-1] if found['error'].strip() else '?'} |")
            continue
        keys = [*(f"prefill {n} ms" for n in PROMPTS), f"decode {DECODE_AT} ms", f"prefill {PROMPTS[-1]} GiB"]
        cells = [", ".join(_figure(v.get(key)) for v in found["versions"].values()) for key in keys]
        lines.append(f"| {model} | {' | '.join(cells)} | {found['gap']:.1e} |")
    return "\n".join(lines)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    ahead = verbs.add_parser("prepare")
    ahead.add_argument("folder", type=Path)
    ahead.add_argument("versions", nargs="+", metavar="VERSION=PACKAGE_FOLDER")
    ahead.add_argument("--today", type=Path, required=True, metavar="PACKAGE_FOLDER")
    timed, one = verbs.add_parser("run"), verbs.add_parser("child")
    for verb in (timed, one):
        verb.add_argument("folder", type=Path)
        verb.add_argument("--prompts", type=int, nargs="+", default=list(PROMPTS))
        verb.add_argument("--decode-at", type=int, default=DECODE_AT)
        verb.add_argument("--repeats", type=int, default=7)
        verb.add_argument("--tiny", action="store_true", help="a layer of tiny width, to see on a CPU that it runs")
    one.add_argument("model")
    verbs.add_parser("table").add_argument("result", type=Path)
    timed.add_argument("-o", "--output", type=Path, required=True)
    timed.add_argument("--models", nargs="+", help="such as 0.0.3/llama")
    timed.add_argument("--seconds", type=float, default=450, help="no model begins after")
    timed.add_argument("--patience", type=float, default=90, help="seconds for one model")
    options = parser.parse_args()
    if options.verb == "prepare":
        prepare(options.folder.absolute(), options.today.absolute(), options.versions)
    elif options.verb == "table":
        print(table(json.loads(options.result.read_text())))
    elif options.verb == "child":
        print(json.dumps(child(options.folder, options.model, options)))
    else:
        run(options)


if __name__ == "__main__":
    main()
