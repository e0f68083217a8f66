"""What fixes save in a whole pass of a model, from the command line down."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuselint.config import Settings
from fuselint.finding import FileResult, ModelTraffic, Seconds
from fuselint.graph.model import Statement
from fuselint.modelconfig import load
from fuselint.report.summary import models
from fuselint.traffic.passes import most
from tests.support import Ran
from tests.traffic.models import HEAD, KEYS, LLAMA

Run = Callable[..., Ran]

UNFUSED = LLAMA.replace(
    "    def __init__(self, args: ModelArgs):\n        super().__init__()\n        self.embed_tokens",
    "    def __init__(self, args: ModelArgs):\n        super().__init__()\n        self.last = Norm(args.hidden_size)\n"
    "        self.embed_tokens",
).replace(
    "class Attention(",
    """class Norm(nn.Module):
    def __init__(self, dims: int, eps: float = 1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        y = x.astype(mx.float32)
        y = y * mx.rsqrt(mx.mean(mx.square(y), axis=-1, keepdims=True) + self.eps)
        return self.weight * y.astype(x.dtype)


class Attention(""",
)
WIDE = UNFUSED.replace("intermediate_size: int = 96", "intermediate_size: int = 9600")
"""What the configuration of the code says where no other is given."""


@pytest.fixture
def check(fuselint: Run, tmp_path: Path) -> Callable[..., tuple[list[dict[str, Any]], str]]:
    (tmp_path / "model.py").write_text(WIDE)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))

    def run(*options: str) -> tuple[list[dict[str, Any]], str]:
        chosen = ("--ignore", "FUS401", "--chip", "m3-max")  # its heads of 16 have no fused kernel
        ran = fuselint("check", "model.py", "--output-format", "json", *chosen, *options)
        assert ran.code in (0, 1), ran.err
        return json.loads(ran.out), ran.err

    return run


Check = Callable[..., tuple[list[dict[str, Any]], str]]


def test_findings_are_ranked_by_what_they_save_in_all_objects(check: Check, tmp_path: Path) -> None:
    found, said = check("--model-config", "config.json")
    assert [(f["code"], f["traffic"]["model"]["objects"]) for f in found] == [("FUS201", 1), ("FUS301", 2)]
    norm, gate = (f["traffic"] for f in found)
    assert norm["model"]["bytes"] == norm["saved_at"] == 20 * 2048 * 64  # in float32, where the casts are nothing
    assert gate["model"]["bytes"] == 2 * gate["saved_at"] == 2 * 4 * 2048 * 96
    assert gate["sources"] == {"D": "config", "T": "assumed"}
    assert gate["model"]["share"] == gate["model"]["bytes"] / gate["model"]["moved"]
    assert gate["model"]["tokens"] == 2048
    assert "model.py: config.json moves " in said and " a pass of 2048 tokens in 5 classes, " in said
    assert "times are estimates for M3 Max (stated)" in said
    (tmp_path / "wide.json").write_text(json.dumps({**KEYS, "intermediate_size": 960}))
    found, _ = check("--model-config", "wide.json")
    assert [(f["code"], f["traffic"]["model"]["bytes"]) for f in found] == [
        ("FUS301", 2 * 4 * 2048 * 960),
        ("FUS201", 20 * 2048 * 64),
    ]


def test_bytes_at_sizes_that_the_configuration_does_not_say_are_named() -> None:
    total = ModelTraffic(2, 10**9, 7, Seconds(1e-3, 2e-3, 3e-3), 1, typical=10**8)
    settings = Settings(model_config=load("qwen2.5-7b", "x"))
    line, times = models([FileResult("m.py", model=total)], settings)
    assert " a token, 100 MB of them at sizes of a typical model where nothing says any, in 2 classes" in line
    assert times.startswith("times are estimates")
    line, _ = models([FileResult("m.py", model=replace(total, typical=10**6))], settings)
    assert "typical" not in line


def test_without_a_configuration_findings_stand_in_the_files_order(check: Check) -> None:
    found, said = check()
    assert [(f["code"], f["traffic"]["model"]) for f in found] == [("FUS201", None), ("FUS301", None)]
    assert found[0]["line"] < found[1]["line"]
    assert "moves" not in said


def test_decode_counts_one_token(check: Check) -> None:
    (prefill, _), (decode, said) = (check("--model-config", "config.json", "--phase", p) for p in ("prefill", "decode"))
    assert decode[0]["traffic"]["saved_at"] * 2048 == prefill[0]["traffic"]["saved_at"]
    assert decode[0]["traffic"]["sources"] == {"D": "config", "T": "phase"}
    assert decode[0]["traffic"]["assumed"] == ["dtype"]
    assert " a token in 5 classes" in said


def test_nothing_is_saved_by_mx_compile_under_a_gradient(check: Check) -> None:
    found, _ = check("--model-config", "config.json", "--phase", "train")
    (gate,) = [f["traffic"] for f in found if f["code"] == "FUS301"]
    assert (gate["saved_at"], gate["kernels_now"], gate["kernels_fused"]) == (0, 2, 2)
    (norm,) = [f["traffic"] for f in found if f["code"] == "FUS201"]
    assert norm["saved_at"] == 20 * 8 * 2048 * 64


def test_nothing_is_saved_where_the_backend_has_no_kernel(check: Check) -> None:
    (norm, gate), _ = check("--chip", "cpu")
    assert norm["traffic"]["kernels_fused"] > 5
    assert gate["traffic"]["kernels_fused"] == 1  # g++ compiles


ATTENTION = (
    HEAD
    + """
def f(q: mx.array, k: mx.array, v: mx.array):
    B, H, L, _ = q.shape
    q = q.reshape(B, H, L, 96)
    k = k.reshape(B, H, L, 96)
    v = v.reshape(B, H, L, 96)
    return mx.softmax(q @ k.swapaxes(-1, -2) * 0.1, axis=-1) @ v
"""
)


@pytest.mark.parametrize(("version", "kernels"), [("0.32.1", 1), ("0.32.0", None), ("0.30", None), ("", 1)])
def test_nothing_is_saved_where_the_mlx_has_no_kernel(
    fuselint: Run, tmp_path: Path, version: str, kernels: int | None
) -> None:
    (tmp_path / "attention.py").write_text(ATTENTION)
    options = ["--target-mlx", version] if version else []
    ran = fuselint("check", "attention.py", "--output-format", "json", "--chip", "m3-max", *options)
    (finding,) = [f for f in json.loads(ran.out) if f["code"] == "FUS211"]
    if kernels is None:
        assert finding["traffic"] is None and "where there are few queries" in finding["message"]
    else:
        assert finding["traffic"]["kernels_fused"] == kernels


NEW = (
    HEAD
    + """
def f(logits: mx.array, targets):
    targets = targets.astype(mx.int32)
    score = mx.take_along_axis(logits, targets[..., None], axis=-1).squeeze(-1)
    return mx.logsumexp(logits, axis=-1) - score


def g(x: mx.array):
    return x * mx.rsqrt(mx.mean(mx.square(x), axis=-1, keepdims=True) + 1e-5)
"""
)


@pytest.mark.parametrize(
    ("version", "norm", "loss"), [("0.23.1", "none", "none"), ("0.32.1", "safe", "none"), ("0.32.2", "safe", "unsafe")]
)
def test_no_fix_uses_what_the_mlx_has_not(fuselint: Run, tmp_path: Path, version: str, norm: str, loss: str) -> None:
    (tmp_path / "new.py").write_text(NEW)
    ran = fuselint("check", "new.py", "--output-format", "json", "--target-mlx", version)
    fixes = {f["code"]: f["fix"] for f in json.loads(ran.out)}
    assert (fixes["FUS201"]["applicability"], fixes["FUS252"]["applicability"]) == (norm, loss)
    if norm == "none":
        said = "mx.fast.rms_norm without a weight is new in MLX 0.23.2, and the target is 0.23.1"
        assert fixes["FUS201"]["message"] == said
    assert not any("MLX" in need for fix in fixes.values() for need in fix["needs"])


def test_sizes_that_differ_from_object_to_object(fuselint: Run, tmp_path: Path) -> None:
    """Norms of queries and of activations: the number of most of them is shown, and all are summed."""
    source = UNFUSED.replace(
        "        self.scale = head_dim**-0.5\n",
        "        self.scale = head_dim**-0.5\n        self.q_norm = Norm(head_dim)\n",
    )
    (tmp_path / "model.py").write_text(source)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    ran = fuselint("check", "model.py", "--output-format", "json", "--model-config", "config.json")
    (norm,) = [f["traffic"] for f in json.loads(ran.out) if f["code"] == "FUS201"]
    assert norm["at"]["D"] == 16
    assert norm["model"]["objects"] == 3
    assert norm["model"]["bytes"] == 20 * 2048 * (16 + 16 + 64)


def test_a_shipped_family_by_its_name(check: Check) -> None:
    found, said = check("--model-config", "llama-3-8b", "--phase", "decode")
    assert found[0]["traffic"]["at"]["D"] == 4096 or found[0]["traffic"]["at"]["D"] == 14336
    assert "llama-3-8b moves " in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--phase", "prefil"], '--phase: unknown phase "prefil"; did you mean "prefill"?'),
        (["--chip", "m9-max"], '--chip: unknown chip "m9-max"'),
        (["--target-mlx", "x"], "--target-mlx: expected a version of MLX such as 0.30.5"),
        (["--model-config", "none.json"], "none.json: can't be read: No such file or directory"),
        (["--model-config", "bad.json"], 'bad.json: "hidden_size" is "64", not a positive whole number'),
        (["--shape", f"T=1{'0' * 5000}"], "--shape: expected symbol=size"),
    ],
)
def test_wrong_options_end_with_2(fuselint: Run, tmp_path: Path, options: list[str], said: str) -> None:
    (tmp_path / "model.py").write_text(LLAMA)
    (tmp_path / "bad.json").write_text('{"hidden_size": "64"}')
    ran = fuselint("check", "model.py", *options)
    assert ran.code == 2
    assert said in ran.err


HELPED = LLAMA.replace(
    "class MLP(",
    """def gated(gate, up):
    return nn.silu(gate) * up


class MLP(""",
).replace("nn.silu(self.gate_proj(x)) * self.up_proj(x)", "gated(self.gate_proj(x), self.up_proj(x))")


def test_a_helper_runs_where_calls_lead_to_it(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HELPED)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    ran = fuselint("check", "model.py", "--output-format", "json", "--model-config", "config.json")
    (gate,) = [f for f in json.loads(ran.out) if f["code"] == "FUS301"]
    assert gate["traffic"]["model"]["objects"] == 2


def test_a_function_that_no_pass_runs_saves_nothing_in_a_pass(fuselint: Run, tmp_path: Path) -> None:
    source = LLAMA + "\n\ndef other(a: mx.array, b: mx.array):\n    return nn.silu(a) * b\n"
    (tmp_path / "model.py").write_text(source)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    ran = fuselint("check", "model.py", "--output-format", "json", "--model-config", "config.json")
    found = {f["function"]: f["traffic"]["model"] for f in json.loads(ran.out) if f["code"] == "FUS301"}
    assert found["other"] is None
    assert found["MLP.__call__"]["objects"] == 2


def with_attention_helper(source: str) -> str:
    """Attention by hand in a helper, whose graph knows nothing of its operands."""
    call = "    def __call__(self, x: mx.array) -> mx.array:\n        B, L, _ = x.shape"
    helper = (
        "    def attend(self, q, k, v):\n"
        "        return mx.softmax(q @ k.swapaxes(-1, -2) * self.scale, axis=-1) @ v\n\n"
    )
    fused = 'mx.fast.scaled_dot_product_attention(q, k, v, scale=self.scale, mask="causal")'
    source = source.replace(call, helper + call).replace(fused, "self.attend(q, k, v)")
    return source.replace("num_key_value_heads\n", "num_attention_heads\n")


def test_a_share_is_never_more_than_all(fuselint: Run, tmp_path: Path) -> None:
    """Where the graph knows nothing of attention's operands, the rule does: the total is counted with its sizes."""
    (tmp_path / "model.py").write_text(with_attention_helper(LLAMA))
    (tmp_path / "config.json").write_text(json.dumps(KEYS))
    ran = fuselint("check", "model.py", "--output-format", "json", "--model-config", "config.json")
    (attention,) = [f["traffic"]["model"] for f in json.loads(ran.out) if f["code"] == "FUS211"]
    assert attention["objects"] == 2
    assert 0 < attention["share"] < 1


def test_totals_depend_neither_on_who_asks_first_nor_on_what_is_selected(fuselint: Run, tmp_path: Path) -> None:
    """Whether a helper's finding stands at its calls is asked before all matches are known."""
    call = "    def __call__(self, x: mx.array) -> mx.array:\n        y = x.astype(mx.float32)\n"
    helped = (
        "    def _norm(self, x):\n        return x * mx.rsqrt(x.square().mean(-1, keepdims=True) + self.eps)\n\n"
        "    def __call__(self, x: mx.array) -> mx.array:\n"
        "        return self.weight * self._norm(x.astype(mx.float32)).astype(x.dtype)\n"
    )
    start = UNFUSED.index(call)
    end = UNFUSED.index("\n\n\n", start)
    source = UNFUSED[:start] + helped + UNFUSED[end + 1 :]
    attend = "        out = self.attend(q, k, v)\n"
    grow = "".join(f"            {x} = mx.concatenate([cache[{i}], {x}], axis=2)\n" for i, x in enumerate("kv"))
    grow = f"        if cache is not None:\n{grow}"
    source = with_attention_helper(source).replace(attend, grow + attend)
    source = source.replace("x: mx.array) -> mx.array:\n        B, L", "x: mx.array, cache=None):\n        B, L")
    (tmp_path / "model.py").write_text(source)
    (tmp_path / "config.json").write_text(json.dumps({**KEYS, "num_key_value_heads": 4}))
    said = ("--output-format", "json", "--model-config", "config.json", "--chip", "m3-max")
    found = [f for f in json.loads(fuselint("check", "model.py", *said).out) if f["traffic"]]
    alone = json.loads(fuselint("check", "model.py", *said, "--select", "FUS211").out)
    assert {f["code"] for f in found} == {"FUS201", "FUS211", "FUS301"}
    assert sum(f["traffic"]["model"]["share"] for f in found) < 1
    moved = {f["traffic"]["model"]["moved"] for f in (*found, *alone)}
    assert len(moved) == 1


BASE = """
import mlx.core as mx
import mlx.nn as nn


def halved(x, cache=None):
    if hasattr(cache, "bits"):
        return mx.exp(x)
    return x * 0.5


class Squared(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.weight = mx.ones((dims,))

    def __call__(self, x):
        x = mx.square(x) * self.weight
        if "bias" in self:
            x = x + self.bias
        return x
"""

OTHER_FILES = LLAMA.replace("import mlx.nn as nn\n", "import mlx.nn as nn\n\nfrom .base import Squared, halved\n", 1)


def test_calls_into_other_files_count(fuselint: Run, tmp_path: Path) -> None:
    """A function, and an object of a class that stands there."""
    package = tmp_path / "models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "base.py").write_text(BASE)
    (tmp_path / "config.json").write_text(json.dumps(KEYS))

    def moved(source: str) -> tuple[int, str]:
        (package / "model.py").write_text(source)
        ran = fuselint(
            "check", "models/model.py", "--output-format", "json", "--model-config", "config.json", "--no-cache"
        )
        (found,) = [f for f in json.loads(ran.out) if f["code"] == "FUS301"]
        return found["traffic"]["model"]["moved"], ran.err

    before, _ = moved(OTHER_FILES)
    made = OTHER_FILES.replace(
        "        self.mlp = MLP(", "        self.square = Squared(args.hidden_size)\n        self.mlp = MLP("
    )
    after, said = moved(
        made.replace("return h + self.mlp(", "h = halved(self.square(h), None)\n        return h + self.mlp(")
    )
    elements = 2048 * 64
    assert after - before == 2 * (2 * elements * 2 + (2 * elements + 64) * 2 + 2 * elements * 2)
    assert "not counted" not in said


@pytest.mark.parametrize("biased", [False, True])
def test_what_an_object_of_the_file_has_is_known(fuselint: Run, tmp_path: Path, biased: bool) -> None:
    """`"bias" in self` is asked of the object that the constructor made."""
    (tmp_path / "config.json").write_text(json.dumps(KEYS))

    def moved(call: str) -> int:
        norm = "    def __init__(self, dims: int, eps: float = 1e-5):\n        super().__init__()\n"
        source = UNFUSED.replace(norm, f"{norm}        if {biased}:\n            self.bias = mx.zeros((dims,))\n")
        assert source != UNFUSED
        (tmp_path / "model.py").write_text(source.replace("        return self.weight * y.astype(x.dtype)\n", call))
        ran = fuselint("check", "model.py", "--output-format", "json", "--model-config", "config.json", "--no-cache")
        return next(f["traffic"]["model"]["moved"] for f in json.loads(ran.out) if f["code"] == "FUS301")

    plain = "        z = self.weight * y.astype(x.dtype)\n"
    asked = f'{plain}        if "bias" in self:\n            z = z + self.bias\n        return z\n'
    assert (moved(asked) > moved(f"{plain}        return z\n")) is biased


def test_of_the_two_sides_of_an_if_the_larger_counts() -> None:
    a, b = Statement(0, None, None, None), Statement(1, None, None, None)  # type: ignore[arg-type]
    then, other, inner = ((a, "then"),), ((a, "else"),), ((a, "else"), (b, "then"))
    assert most([]) == 0
    assert most([((), 2), ((), 1)]) == 3
    assert most([((), 2), (then, 1), (other, 4)]) == 6
    assert most([(then, 3), (then, 3), (other, 2), (inner, 5)]) == 7
