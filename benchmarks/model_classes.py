"""Model classes before and after their fixes: small sizes, random weights, compared leaf by leaf in f32 and bf16.

    python benchmarks/model_classes.py CACHE [--python VENV/bin/python] [--only mlx_lm ...]

CACHE is that of corpus.py, which has to have run: CACHE/fixed/all holds what `fix --apply --unsafe-fixes` made. Each
package runs in a child process of `--python`, which needs MLX, fuselint's dependencies and what the packages import.
Language models run a prompt, and where they take a cache, three steps after it; the other classes one call. Constant
weights get values of their own. f32 may differ by `TOLERANCE` of the largest value of a leaf, bf16 by what the
original in bf16 differs from itself in f32; another dtype is none that the fixes of the file don't say. Exit code 1
where a class differs, or where its file is none that was fixed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

TOLERANCE = 2e-5
DTYPES = ("float32", "bfloat16")
NOT, SAID = "can't run", "as the fix says"

LM: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_traditional": False,
    "max_position_embeddings": 256, "tie_word_embeddings": True,
}  # fmt: skip
"""What configurations of language models say, where a class has a field of that name."""

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_local_experts": 4}

LANGUAGE: dict[str, dict[str, dict[str, Any]]] = {
    "mlx_lm-0.0.3": {"llama": {}, "mixtral": MOE, "phi2": {"n_vocab": 96, "n_head": 4, "n_layer": 2, "n_positions": 128,
                     "model_dim": 64, "num_vocab": 96, "num_heads": 4, "num_layers": 2, "rotary_dim": 8}},
    "mlx_lm-0.10.0": {
        "llama": {}, "mixtral": MOE, "gemma": {}, "qwen2": {}, "cohere": {"layer_norm_eps": 1e-5, "logit_scale": 0.1},
        "plamo": {"n_shared_head": 2}, "starcoder2": {"norm_epsilon": 1e-5},
        "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
        "qwen": {"kv_channels": 16, "layer_norm_epsilon": 1e-5},
        "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True},
    },
    "mlx_lm-0.32.2": {
        "gemma": {}, "gemma2": {},
        "gemma3_text": {"num_hidden_layers": 6, "sliding_window": 8, "sliding_window_pattern": 3},
        "afmoe": {**MOE, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                  "num_dense_layers": 1, "sliding_window": 8},
        "baichuan_m1": {"tie_word_embeddings": False, "sliding_window": 8, "sliding_window_layers": [1],
                        "conv_window": 2, "num_swa_attention_heads": 4, "num_swa_key_value_heads": 2},
        "mamba": {"state_size": 8, "conv_kernel": 4, "use_bias": True, "use_conv_bias": True, "time_step_rank": 4},
        "qwen2_moe": {**MOE, "shared_expert_intermediate_size": 32},
        "qwen3_next": {**MOE, "shared_expert_intermediate_size": 32, "linear_num_value_heads": 4,
                       "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
                       "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1, "mlp_only_layers": [],
                       "partial_rotary_factor": 0.5, "full_attention_interval": 2, "norm_topk_prob": True},
        "recurrent_gemma": {"attention_bias": False, "conv1d_width": 4, "logits_soft_cap": 30.0, "lru_width": 64,
                            "attention_window_size": 8, "embeddings_scale_by_sqrt_dim": True, "num_key_value_heads": 1,
                            "block_types": ["recurrent", "recurrent", "attention"]},
        "rwkv7": {"norm_eps": 1e-5, "head_dim": 16, "a_low_rank_dim": 8, "v_low_rank_dim": 8, "gate_low_rank_dim": 8,
                  "decay_low_rank_dim": 8},
        "phi3small": {"vocab_size": 100352, "dense_attention_every_n_layers": 1, "ff_intermediate_size": 64,
                      "gegelu_limit": 20.0, "layer_norm_epsilon": 1e-5},
        "laguna": {}, "muse_glimmer": {}, "talkie": {},
        "kimi_linear": {**MOE, "kv_lora_rank": 16, "model_max_length": 256, "linear_attn_config": {
            "kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4},
            "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "num_shared_experts": 1},
    },
}  # fmt: skip
"""Models of mlx-lm by module, with what their configuration says besides `LM`."""

X = "r(2, 12, 64)"
"""Two rows of 12 tokens, of 64 numbers."""

CLASSES: dict[str, list[tuple[str, str, str]]] = {
    "mlx_vlm-0.7.10": [
        ("models.gemma2.language:MLP", "64, 96", X),
        ("models.gemma3.language:MLP", "64, 96", X),
        ("models.dots_ocr.vision:apply_rotary_pos_emb_vision", "", "r(12, 4, 16), r(12, 8)"),
        ("models.glm_ocr.vision:apply_rotary_pos_emb_vision", "", "r(12, 4, 16), r(12, 4, 16), r(12, 16), r(12, 16)"),
        ("models.youtu_vl.vision:apply_rotary_pos_emb_vision", "", "r(12, 4, 16), r(12, 4, 16), r(12, 16), r(12, 16)"),
        ("models.pixtral.vision:apply_rotary_pos_emb", "", "r(2, 4, 12, 16), r(2, 4, 12, 16), r(12, 16), r(12, 16), 0"),
        ("models.flux2.qwen.rms_norm:Qwen3VLRMSNorm", "64", X),
        ("models.flux2.qwen.mlp:Qwen3VLMLP", "64, 96", X),
        ("models.flux2.vae.common.resnet_block_2d:Flux2ResnetBlock2D", "32, 64", "r(1, 32, 8, 8)"),
        ("models.recurrent_gemma.language:RGLRU", "64, 4", X),
        ("models.ssm:ssm_attn", "", "r(2, 12, 4, 8), r(4), r(2, 12, 2, 8), r(2, 12, 2, 8), r(4), r(2, 12, 4), r(4)"),
        ("trainer.peft.dora_layers:DoRALinear", "64, 32", X),
    ],
    "mlx_audio-0.6.2": [
        ("codec.models.descript.nn.layers:snake", "", "r(2, 12, 16), 1 + r(1, 1, 16) ** 2"),
        ("codec.models.descript.nn.quantize:VectorQuantize", "16, 32, 8", "r(2, 16, 12)"),
        ("codec.models.snac.vq:VectorQuantize", "16, 32, 8", "r(2, 16, 12)"),
        ("codec.models.ecapa_tdnn.ecapa_tdnn:SEBlock", "64, 16", X),
        ("codec.models.ecapa_tdnn.ecapa_tdnn:AttentiveStatisticsPooling", "64, 16", X),
        ("codec.models.fish_s1_dac.fish_s1_dac:TFRMSNorm", "64", X),
        ("codec.models.nemotron_voicechat.codec:ChannelLayerNorm", "64", X),
        ("codec.models.stepaudio2.speaker:FusedBasicResBlock", "8, 8", "r(2, 12, 12, 8)"),
        ("lm.models.gemma3_text:MLP", "64, 96", X),
        ("music.models.minimax_music3.depth:DepthBlock", "64, 4, 96, 1e-5", X),
        ("music.models.minimax_music3.vocoder:Snake1d", "64", "r(2, 64, 12)"),
        ("sts.models.deepfilternet.network:PyTorchGRU", "64, 32", X),
        ("sts.models.lfm_audio.conformer:ConformerConvolution", "64", X),
        ("sts.models.lfm_audio.detokenizer:SlidingWindowAttention", "64, 4, 2, 8", X),
        ("sts.models.lfm_audio.transformer:Attention", "64, 4, 2", X),
        ("sts.models.lfm_audio.transformer:ConvBlock", "64", X),
        ("sts.models.nemotron_voicechat.t5gemma:MLP", "64, 96", X),
        ("sts.models.sam_audio.transformer:Attention", "64, 16, 4, 4", X),
        ("stt.models.fireredasr2.fireredasr2:ConformerFeedForward", "64", X),
        ("stt.models.fun_asr_nano.fun_asr_nano:MultiHeadedAttentionSANM", "4, 64, 64", X),
        ("tts.models.kokoro.modules:LSTM", "64, 32", X),
        ("tts.models.kokoro.modules:AdaLayerNorm", "16, 64", "r(2, 12, 64), r(1, 16)"),
        ("tts.models.kokoro.istftnet:AdaIN1d", "16, 64", "r(2, 64, 12), r(2, 16)"),
        ("tts.models.longcat_audiodit.dit:GRN", "64", X),
        ("tts.models.melotts.attentions:LayerNorm", "64", "r(2, 64, 12)"),
        ("tts.models.moss_tts_nano.gpt2:gelu_new", "", X),
        ("tts.models.moss_tts_nano.gpt2:RotaryEmbedding", "16", "r(2, 4, 12, 16)"),
        ("tts.models.sesame.attention:Llama3ScaledRoPE", "16, 64", "r(2, 12, 4, 16), offset=0"),
        ("tts.models.tada.codec:LocalSelfAttention", "64, 4", X),
        ("tts.models.tada.llama:apply_rotary_pos_emb", "", "r(2, 12, 4, 16), r(2, 12, 2, 16), r(12, 16), r(12, 16)"),
        ("tts.models.vibevoice.acoustic_tokenizer:ConvRMSNorm", "64", "r(2, 64, 12)"),
        ("tts.models.voxtral_tts.acoustic_head:BidirectionalAttention", "64, 4, 2, 16", X),
        ("vad.models.sortformer.sortformer:BatchNorm1d", "64", X),
    ],
    "mflux-0.24.0": [
        ("models.boogu.model.boogu_transformer.boogu_embeddings:LuminaFeedForward", "64, 96", X),
        ("models.boogu.model.boogu_transformer.boogu_blocks:BooguImageDoubleStreamTransformerBlock",
         "64, 4, 2, 32, None, 1e-5", "r(2, 12, 64), r(2, 5, 64), rope(12), rope(17), r(2, 64)"),
        ("models.common_models.qwen3_5.qwen3_5_attention:Qwen35Attention", "64, 4, 2, 16, 8, 1e4, 1e-6", X),
        ("models.common_models.qwen3_5.qwen3_5_gated_delta_net:Qwen35GatedDeltaNet", "64, 2, 4, 16, 16, 4, 1e-6", X),
        ("models.common_models.qwen3_vl.qwen3_vl_rms_norm:Qwen3VLRMSNorm", "64", X),
        ("models.common_models.qwen3_vl.qwen3_vl_mlp:Qwen3VLMLP", "64, 96", X),
        ("models.fibo.model.fibo_transformer.fibo_ada_layer_norm_zero:FiboAdaLayerNormZero", "64", X + ", r(2, 64)"),
        ("models.flux.model.flux_text_encoder.t5_encoder.t5_self_attention:T5SelfAttention", "", "r(1, 6, 4096)"),
        ("models.flux.model.flux_transformer.ada_layer_norm_zero_single:AdaLayerNormZeroSingle", "64",
         X + ", r(2, 64)"),
        ("models.flux3.model.flux3_transformer.flux3_feed_forward:Flux3FeedForward", "64", X),
        ("models.ideogram4.model.ideogram4_text_encoder.attention:Qwen3VLAttention", "64, 4, 2, 16",
         X + ", None, (r(2, 12, 16), r(2, 12, 16))"),
        ("models.iris.model.iris_transformer.iris_feed_forward:IrisSwiGLU", "64", X),
        ("models.qwen21.model.qwen21_small_text_encoder.qwen35_gated_delta_net:Qwen35GatedDeltaNet",
         "64, 2, 4, 16, 16, 4, 1e-6", X),
        ("models.qwen21.model.qwen21_small_text_encoder.qwen35_norms:Qwen35RMSNormGated", "64", f"{X}, {X}"),
        ("models.qwen21.model.qwen21_vae.blocks:AttentionBlock", "64", "r(1, 4, 4, 64)"),
        ("models.seedvr2.model.seedvr2_transformer.swiglu_mlp:SwiGLUMLP", "64", X),
        ("models.z_image.model.z_image_text_encoder.attention:Attention", "64, 4, 2, 16",
         X + ", None, (r(2, 12, 16), r(2, 12, 16))"),
        ("models.z_image.model.z_image_transformer.feed_forward:FeedForward", "64, 96", X),
    ],
    "mlx_image-0.1.10": [
        ("model.layers.misc:HardSigmoid", "", X),
        ("model.swin_transformer.swin_transformer:ShiftedWindowAttention", "32, [4, 4], [2, 2], 4", "r(2, 8, 8, 32)"),
    ],
    "mimm-0.0.2": [("models.classification.swin:ShiftedWindowAttention", "32, [4, 4], [2, 2], 4", "r(2, 8, 8, 32)")],
}  # fmt: skip
"""Classes and functions: which, what builds it (`""` of a function), and what it is called with."""


# -- in the child process of one version ------------------------------------------------------------------------------


def child(folder: Path, results: Path, dtype: str) -> None:
    """Run what belongs to a package's folder; say for each what its leaves are, or why it can't run."""
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    told, sys.stdout = sys.stdout, sys.stderr
    sys.path.insert(0, str(folder))
    package = next(p.name for p in folder.iterdir() if p.is_dir() and not p.name.endswith("dist-info"))
    said: dict[str, Any] = {}
    for name, config in LANGUAGE.get(folder.name, {}).items():
        said[name] = _ran(results, name, lambda n=name, c=config: _language(folder / package, n, c, dtype))
    for name, init, inputs in CLASSES.get(folder.name, ()):
        said[name] = _ran(results, name, lambda n=name, i=init, a=inputs: _called(folder / package, n, i, a, dtype))
    json.dump(said, told)


def _ran(results: Path, name: str, call: Any) -> Any:
    import mlx.core as mx

    from fuselint.verify.whole.results import save

    mx.random.seed(7)
    print(name, file=sys.stderr, flush=True)
    try:
        file = results / f"{name}.safetensors"
        return save(file, {"result": call()})
    except (Exception, SystemExit) as e:
        return f"{type(e).__name__}: {e}"


def _language(package: Path, name: str, config: dict[str, Any], dtype: str) -> Any:
    import mlx.core as mx
    from packages import model_args

    mod = _module(package, f"models.{name}")
    model = mod.Model(model_args(mod.ModelArgs, {"model_type": name, **LM, **config}))
    _weigh(model, dtype)
    prompt = mx.random.randint(0, 96, (2, 12))
    steps = [mx.random.randint(0, 96, (2, 1)) for _ in range(3)]
    first = model(prompt)
    if isinstance(first, tuple):  # it gives back its cache, which is its own affair
        outs, cache = [first[0]], first[1]
        for step in steps:
            out, cache = model(step, cache=cache)
            outs.append(out)
        return outs
    make = getattr(model, "make_cache", None)
    if make is None:
        cache = _module(package, "models.cache").make_prompt_cache(model)
    else:
        cache = make()
    return [first, model(prompt, cache=cache), *(model(step, cache=cache) for step in steps)]


def _module(package: Path, name: str) -> Any:
    """A module of the package, whose `__init__` is not run; each is imported once."""
    from packages import load

    if package.name in sys.modules:
        return importlib.import_module(f"{package.name}.{name}")
    return load(package, name)


def _called(package: Path, name: str, init: str, inputs: str, dtype: str) -> Any:
    import mlx.core as mx
    import mlx.nn as nn

    module, _, attribute = name.partition(":")
    made = getattr(_module(package, module), attribute)
    if isinstance(made, type):
        made = eval(f"made({init})", {"made": made})
    if isinstance(made, nn.Module):
        _weigh(made, dtype)

    def normal(*shape: int) -> Any:
        return mx.random.normal(shape).astype(mx.bfloat16).astype(getattr(mx, dtype))

    def rope(length: int) -> tuple[Any, Any]:
        return normal(1, length, 1, 8), normal(1, length, 1, 8)

    return eval(f"call({inputs})", {"call": made, "r": normal, "rope": rope})


def _weigh(model: Any, dtype: str) -> None:
    """Weights of `dtype`, the same in each; constant ones, which would hide a lost factor, get values of their own."""
    import mlx.core as mx
    from mlx.utils import tree_flatten, tree_unflatten

    out = []
    for i, (path, weight) in enumerate(sorted(tree_flatten(model.parameters()))):
        a = weight
        if mx.issubdtype(a.dtype, mx.floating):
            if a.size and mx.all(a == a.flatten()[0]).item():
                a += 0.1 * mx.random.normal(a.shape, key=mx.random.key(i))
            a = a.astype(mx.bfloat16).astype(getattr(mx, dtype))
        out.append((path, a))
    model.update(tree_unflatten(out))
    model.eval()


# -- the comparison ----------------------------------------------------------------------------------------------------


def run(python: str, folder: Path, results: Path, dtype: str) -> dict[str, Any]:
    results.mkdir(parents=True)
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [python, __file__, "child", str(folder), str(results), dtype],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return dict(json.loads(ran.stdout))


def compared(cache: Path, folder: str, python: str) -> list[tuple[str, str, str, str, str]]:
    """Of each class: its name, the largest gap in f32, in bf16, what bf16 differs by itself, and what is wrong."""
    from fuselint.verify.whole.comparing import compare

    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        said = {
            (version, dtype): run(python, where, root / version / dtype, dtype)
            for version, where in (("before", cache / folder), ("after", cache / "fixed" / "all" / folder))
            for dtype in DTYPES
        }
        for name, before in said["before", "float32"].items():
            wrong: list[str] = []
            gaps: list[tuple[float, float]] = []
            if isinstance(before, str):
                rows.append((name, "", "", "", f"{NOT} in f32: {before}"))
                continue
            changed, says_dtype = _fixes(cache, folder, name)
            if not changed:
                wrong.append("its file was not fixed")
            for dtype in DTYPES:
                own, other = said["before", dtype][name], said["after", dtype][name]
                if isinstance(own, str) or isinstance(other, str):
                    ran = [x if isinstance(x, str) else "runs" for x in (own, other)]
                    wrong.append(f"{NOT} in bf16: {own}" if ran[0] == ran[1] else f"{dtype}: {ran[0]} -> {ran[1]}")
                    continue
                case = root / f"{name}-{dtype}"
                case.mkdir()
                for link, target in (("before", "before"), ("after", "after")):
                    (case / f"{link}.safetensors").symlink_to(root / target / dtype / f"{name}.safetensors")
                (case / "moved.safetensors").symlink_to(root / "before" / "float32" / f"{name}.safetensors")
                half = dtype != "float32"
                leaves = compare(case, own, other, moved=half, tolerance=None if half else TOLERANCE)
                for leaf in leaves:
                    if leaf.wrong.startswith("the dtype is") and says_dtype:
                        wrong.append(f"{SAID}: {leaf.wrong}")
                    elif leaf.wrong:
                        wrong.append(f"{dtype} {leaf.path}: {leaf.wrong}")
                worst = max(leaves, key=lambda leaf: (leaf.gap or 0) / (leaf.allowed or 1), default=None)
                gaps.append((worst.gap or 0.0, worst.allowed or 0.0) if worst else (0.0, 0.0))
            shown = [f"{gap:.1e}" for gap, _ in gaps] + ["", ""]
            allowed = f"{gaps[1][1]:.1e}" if len(gaps) > 1 else ""
            rows.append((name, shown[0], shown[1], allowed, "; ".join(dict.fromkeys(wrong))))
    return rows


def _fixes(cache: Path, folder: str, name: str) -> tuple[bool, bool]:
    """Whether the fixes changed the file of a class, and whether one of them says that it gives another dtype."""
    from fuselint.api import check_paths

    original = cache / folder
    package = next(p.name for p in original.iterdir() if p.is_dir() and not p.name.endswith("dist-info"))
    module = name.partition(":")[0] if ":" in name else f"models.{name}"
    path = Path(package, *module.split(".")).with_suffix(".py")
    fixed = cache / "fixed" / "all" / folder / path
    if (original / path).read_bytes() == fixed.read_bytes():
        return False, False
    found = [f.fix for r in check_paths([original / path], isolated=True, cache=False) for f in r.findings]
    return True, any(fix is not None and fix.edits and fix.numerics == "different dtype" for fix in found)


def main() -> int:
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", nargs="+", default=[""], help="packages that begin so")
    options = parser.parse_args()
    print("| package | class | f32 | bf16 | bf16: allowed | differs |\n|---|---|---|---|---|---|")
    failed = False
    for folder in [*LANGUAGE, *CLASSES]:
        if folder.startswith(tuple(options.only)) and (options.cache / "fixed" / "all" / folder).is_dir():
            for name, *cells in compared(options.cache.absolute(), folder, options.python):
                print(f"| {folder} | {name} | {' | '.join(cells)} |", flush=True)
                failed |= bool(cells[-1]) and not all(x.startswith((NOT, SAID)) for x in cells[-1].split("; "))
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
