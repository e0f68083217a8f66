"""`fuselint trace`: what a call launches, by line, with nothing evaluated; and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fuselint.chips import Seconds
from fuselint.finding import Finding, Fix
from fuselint.report.trace import render
from fuselint.trace.lines import Totals
from fuselint.trace.savings import Saving
from fuselint.trace.survey import Survey
from support import Ran

mx = pytest.importorskip("mlx.core")
pytestmark = pytest.mark.slow

Run = Callable[..., Ran]

MODEL = """\
import os
import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.core import exp


class Norm(nn.Module):
    def __init__(self, dims, eps=1e-5):
        super().__init__()
        self.weight = mx.ones((dims,))
        self.eps = eps

    def __call__(self, x):
        h = x.astype(mx.float32)
        h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + self.eps)
        return self.weight * h.astype(x.dtype)


class Cache:
    def __init__(self, length, dims):
        self.keys, self.offset = mx.zeros((1, length, dims), mx.bfloat16), 0

    def update(self, k):
        start, self.offset = self.offset, self.offset + k.shape[1]
        self.keys[:, start : self.offset] = k
        return self.keys[:, : self.offset]


@mx.compile
def gated(a, b):
    return mx.sigmoid(a) * a * b


class Block(nn.Module):
    def __init__(self, dims: int, hidden: int):
        super().__init__()
        self.norm = Norm(dims)
        self.gate = nn.Linear(dims, hidden, bias=False)
        self.up = nn.Linear(dims, hidden, bias=False)
        self.down = nn.Linear(hidden, dims, bias=False)

    def __call__(self, x, cache=None):
        h = self.norm(x)
        h = self.down(gated(self.gate(h), self.up(h)))
        if cache is not None:
            h = cache.update(h)
        return h

    def double(self, x, times=2):
        return x * times


block = Block(64, 128)


def with_cache(model):
    return {"x": mx.zeros((1, 1, 64), mx.bfloat16), "cache": Cache(32, 64)}


def elementwise(x, y=None):
    return exp(x) + 1


def half(x):
    return mx.fast.rms_norm(x, mx.ones((x.shape[-1],), mx.float32), 1e-5)


def attend(q, k, v, mask=None):
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=mask)


def turned(x):
    return mx.fast.rope(x, 32, traditional=False, base=1e4, scale=1.0, offset=0)


def own_kernel(x):
    kernel = mx.fast.metal_kernel(name="doubled", input_names=["a"], output_names=["o"], source="o[0] = a[0];")
    (y,) = kernel(inputs=[x], output_shapes=[x.shape], output_dtypes=[x.dtype], grid=(8, 1, 1), threadgroup=(8, 1, 1))
    return y + 1


def noisy(x):
    print(x, f"{x.sum()}")
    mx.eval(x)
    return x + mx.random.normal(x.shape) * mx.random.normal(x.shape)


def remade(x):
    return mx.array(mx.exp(x), mx.float16) + 1


def experts(x, w, i):
    return mx.gather_mm(x, w, rhs_indices=i)


optimizer = optim.SGD(learning_rate=0.1)
layer = nn.RMSNorm(64)


def step(x):
    loss, grads = nn.value_and_grad(
        layer, lambda x: layer(layer(x)).sum()
    )(x)
    optimizer.update(layer, grads)
    return loss


def reads(x):
    return x if x.sum().item() > 0 else -x


def fails(x):
    return mx.matmul(x, mx.zeros((3, 3)))


def dies(x):
    os.kill(os.getpid(), 11)


def leaves(x):
    raise SystemExit(3)
"""


@pytest.fixture
def trace(fuselint: Run, tmp_path: Path) -> Callable[..., Any]:
    """Traces something of m.py: the JSON report."""
    (tmp_path / "m.py").write_text(MODEL)

    def run(target: str, *args: str, fixes: bool = False) -> Any:
        ran = fuselint("trace", f"m:{target}", *args, *([] if fixes else ["--no-fixes"]), "--output-format", "json")
        assert ran.code == 0, ran.err
        return json.loads(ran.out)

    return run


def kernels(report: Mapping[str, Any], reading: str = "eager") -> dict[str, int]:
    out: dict[str, int] = {}
    for line in report["lines"]:
        for k in line["kernels"]:
            if reading in k:
                out[k["name"]] = out.get(k["name"], 0) + k[reading]["kernels"]
    return out


def line_of(report: Mapping[str, Any], text: str) -> Any:
    number = next(i for i, line in enumerate(MODEL.splitlines(), 1) if text in line)
    return next(line for line in report["lines"] if line["line"] == number)


ROWS, DIMS, HIDDEN = 16, 64, 128


def test_a_norm_by_hand(trace: Callable[..., Any]) -> None:
    """Llama's norm, bfloat16 in and out, float32 inside: each kernel's bytes as one counts them with a pencil."""
    n = ROWS * DIMS
    report = trace("Norm", "--init", f"dims={DIMS}", "--input", f"x=bf16[1,{ROWS},{DIMS}]", "--dtype", "bf16")
    first, second, third = (line_of(report, t) for t in ("h = x.astype", "h = h * mx.rsqrt", "return self.weight"))
    assert first["eager"] == {"kernels": 1, "bytes": 2 * n + 4 * n}
    square, total, small, product = 8 * n, 4 * n + 4 * ROWS, 3 * 8 * ROWS, 8 * n + 4 * ROWS
    assert second["eager"] == {"kernels": 6, "bytes": square + total + small + product}
    assert third["eager"] == {"kernels": 2, "bytes": (4 * n + 2 * n) + (2 * n + 2 * DIMS + 2 * n)}
    assert [line["function"].rpartition(".")[2] for line in (first, second, third)] == ["__call__"] * 3
    # Compiled: the cast is read twice and stays; all after the sum is one kernel.
    fused = 4 * n + 4 * ROWS + 2 * DIMS + 2 * n
    assert kernels(report, "compiled") == {
        "AsType(float32)": 1, "Square": 1, "Sum": 1,
        "Multiply + Add + Rsqrt + Multiply + AsType(bfloat16) + Multiply": 1,
    }  # fmt: skip
    assert report["totals"]["compiled"]["bytes"] == 6 * n + square + total + fused


def test_a_module_with_compiled_parts_and_layers(trace: Callable[..., Any]) -> None:
    report = trace("Block", "--init", f"{DIMS}, {HIDDEN}", "--input", f"bf16[1,{ROWS},{DIMS}]", "--dtype", "bf16")
    assert kernels(report)["Sigmoid + Multiply + Multiply"] == 1
    assert kernels(report)["Matmul"] == 3
    line = line_of(report, "self.down(gated")
    matmul = 2 * (ROWS * DIMS + DIMS * HIDDEN + ROWS * HIDDEN)
    assert line["eager"] == {"kernels": 3, "bytes": 3 * matmul}
    assert line_of(report, "return mx.sigmoid")["eager"]["bytes"] == 3 * 2 * ROWS * HIDDEN


def test_instances_methods_functions_and_files(trace: Callable[..., Any], fuselint: Run) -> None:
    shape = f"x=bf16[1,{ROWS},{DIMS}]"
    assert kernels(trace("block.norm", "--input", shape, "--dtype", "bf16"))["Rsqrt"] == 1
    assert kernels(trace("block.double", "--input", shape)) == {"Multiply": 1}
    assert kernels(trace("Block.double", "--init", "8, 8", "--input", shape)) == {"Multiply": 1}
    assert kernels(trace("elementwise", "--input", shape, "--input", "y=None")) == {"Exp": 1, "Add": 1}
    ran = fuselint("trace", "./m.py:elementwise", "--input", "f32[B,4]", "--shape", "B=3", "--no-fixes")
    assert ran.code == 0 and "f32[3,4]" in ran.out and "Exp" in ran.out


def test_a_cache_is_written_in_place(trace: Callable[..., Any]) -> None:
    report = trace("block", "--inputs", "m:with_cache", "--dtype", "bf16")
    line = line_of(report, "self.keys[:, start")
    row = 2 * DIMS
    assert line["eager"] == {"kernels": 1, "bytes": 2 * row}
    assert [k["name"] for k in line["kernels"]] == ["SliceUpdate"]
    expression = "cache=Cache(32, 64)"
    again = trace("block", "--input", "x=bf16[1,1,64]", "--input", expression, "--dtype", "bf16")
    assert again["totals"]["eager"] == report["totals"]["eager"]


def test_a_full_size_model_costs_no_memory(trace: Callable[..., Any]) -> None:
    size = "16384, 65536"
    report = trace("Block", "--init", size, "--input", "bf16[8,4096,16384]", "--dtype", "bf16")
    assert report["totals"]["eager"]["bytes"] > 30e9
    assert report["peak_memory"] < 10_000


def test_fused_operations_are_one_kernel_where_metal_has_one(trace: Callable[..., Any]) -> None:
    norm = trace("half", "--input", "x=bf16[2,64]")
    assert kernels(norm) == {"Full": 1, "AsType(float32)": 1, "RMSNorm": 1}  # the weight makes it float32
    wide = ("--input", "q=bf16[1,8,64,128]", "--input", "k=bf16[1,2,64,128]", "--input", "v=bf16[1,2,64,128]")
    assert kernels(trace("attend", *wide)) == {"ScaledDotProductAttention": 1}
    odd = [a.replace("128", "100") for a in wide]
    assert kernels(trace("attend", *odd)) == {"Multiply": 1, "Matmul": 2, "Softmax": 1}
    assert kernels(trace("attend", *wide, "--backend", "cpu"))["Matmul"] == 2
    half = trace("turned", "--input", "bf16[1,2,8,64]")
    assert kernels(half) == {"Copy of RoPE": 1, "RoPE": 1}
    n = 2 * 2 * 8 * 64
    assert half["totals"]["eager"]["bytes"] == 2 * n + n  # all of it is copied, half of it rotated in place


def test_a_kernel_of_the_users_own_is_one(trace: Callable[..., Any]) -> None:
    report = trace("own_kernel", "--input", "f16[4,8]")
    assert kernels(report) == {"custom kernel doubled": 1, "Add": 1}
    assert report["totals"]["eager"]["bytes"] == 2 * 64 + 2 * 64


def test_randomness_printing_and_evaluating(fuselint: Run, trace: Callable[..., Any]) -> None:
    report = trace("noisy", "--input", "f32[4,8]")
    # Each call without a key splits the global one, and draws from the part.
    assert kernels(report)["RandomBits"] == 4 and kernels(report)["ErfInv"] == 2
    assert "1 call of mx.eval on the way: no mx.compile can hold the whole" in report["notes"]
    ran = fuselint("trace", "m:noisy", "--input", "f32[4,8]", "--no-fixes")
    assert ran.err == "array([4, 8], dtype=float32) array([], dtype=float32)\n"


def test_arrays_made_of_arrays_out_of_sight(trace: Callable[..., Any]) -> None:
    assert kernels(trace("remade", "--input", "f32[4,8]")) == {"Exp": 1, "AsType(float16)": 1, "Add": 1}


def test_only_what_is_taken_of_tables_and_experts_is_read(trace: Callable[..., Any]) -> None:
    inputs = ("--input", "x=f16[2,1,64]", "--input", "w=f16[16,64,32]", "--input", "i=u32[2]")
    report = trace("experts", *inputs)
    (line,) = report["lines"]
    (product,) = [k for k in line["kernels"] if k["name"] == "GatherMM"]
    assert [m["bytes"] for m in product["reads"][:2]] == [2 * 2 * 64, 2 * 2 * 64 * 32]


def test_a_training_step_by_line(trace: Callable[..., Any]) -> None:
    """Forward and backward of a norm are a kernel each, on the line that called it; the optimizer's stand on theirs."""
    report = trace("step", "--input", f"bf16[{ROWS},{DIMS}]", "--dtype", "bf16")
    line = line_of(report, "layer, lambda x: layer(layer(x)).sum()")
    # The weight's gradients are summed over rows, one after the other, and added.
    assert kernels({"lines": [line]}) == {"RMSNorm": 2, "RMSNormVJP": 2, "Sum": 3, "Add": 1}
    (back,) = [k for k in line["kernels"] if k["name"] == "RMSNormVJP" and len(k["writes"]) == 2]
    assert [m["shape"] for m in back["writes"]] == [[ROWS, DIMS]] * 2
    update = line_of(report, "optimizer.update(layer, grads)")
    assert {k["name"] for k in update["kernels"]} >= {"Multiply", "Subtract"}


def test_what_fixes_delete(trace: Callable[..., Any], tmp_path: Path) -> None:
    """The fixed reading is that of the code which `fix` writes; the findings' own sums come near it."""
    args = ("Block", "--init", "512, 1024", "--input", "bf16[1,256,512]", "--dtype", "bf16")
    report = trace(*args, fixes=True)
    assert [(f["code"], f["runs"], f["assumed"]) for f in report["fixes"]] == [("FUS201", 1, [])]
    eager, fixed = report["totals"]["eager"], report["totals"]["fixed"]
    n = 256 * 512
    assert fixed["bytes"] == eager["bytes"] - (36 - 4) * n - (3 * 8 + 4 + 4) * 256
    assert fixed["launches"] == eager["launches"] - 8
    assert report["fixes"][0]["bytes"] == (36 - 4) * n and report["fixes"][0]["launches"] == 8
    assert (tmp_path / "m.py").read_text() == MODEL  # nothing is written


def test_a_fix_at_sizes_that_nothing_shows_has_no_bytes() -> None:
    finding = Finding("FUS201", "unfused-rms-norm", "", "m.py", 3, 1, 3, 9, fix=Fix("safe", ""))
    shown, guessed = Saving(finding, 2, 10**9, 16, ("T",)), Saving(finding, 2, 10**9, 16, ("D", "T"), ("D",))
    total = Totals(2, 2, 1, 10, 10, Seconds(1.0, 1.0, 1.0))
    totals = {"eager": total, "compiled": total}
    text = render(Survey("f", "metal", "0.32", "m3-max", 0, [], totals, [shown, guessed], []), "full")
    assert "FUS201 unfused-rms-norm (safe), 2 runs: about 1 GB, 16 launches; T assumed\n" in text
    assert "FUS201 unfused-rms-norm (safe), 2 runs: 16 launches; nothing shows D\n" in text


def test_text_shows_lines_totals_and_fixes(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    ran = fuselint("trace", "m:block", "--input", "bf16[1,16,64]", "--dtype", "bf16")
    assert ran.code == 0 and ran.err == ""
    assert "m.py:16 Norm.__call__: h = h * mx.rsqrt(" in ran.out
    assert "Sigmoid + Multiply + Multiply" in ran.out
    assert "a pass " in ran.out and "command buffers" in ran.out
    assert "fixed, as `fuselint fix` would write it: " in ran.out and "FUS201" in ran.out


FAILURES = {
    "no such module": (["nowhere:f"], "can't import nowhere: No module named 'nowhere'"),
    "no such file": (["nowhere.py:f"], "no file nowhere.py"),
    "no callable": (["m"], "expected MODULE:CALLABLE"),
    "no such name": (["m:blok"], 'm has no blok; did you mean "block"?'),
    "a class that has to be built": (["m:Block"], "Block(dims: int, hidden: int) has to be built: give --init"),
    "arguments that don't build it": (["m:Block", "--init", "1"], "raised TypeError"),
    "inputs that don't fit": (["m:elementwise"], "the inputs don't fit m:elementwise(x, y=None): missing a required"),
    "an input of no dtype": (["m:elementwise", "--input", "x=f17[2]"], 'unknown dtype "f17"; did you mean "f16"?'),
    "an input that is nothing": (["m:elementwise", "--input", "x=f16[2"], "neither a shape"),
    "an expression that fails": (["m:elementwise", "--input", "x=1/0"], "ZeroDivisionError: division by zero"),
    "a size that isn't given": (["m:elementwise", "--input", "x=f16[B]"], "give --shape B=N"),
    "a factory that isn't there": (["m:block", "--inputs", "m:nothing"], "m has no function nothing"),
    "code that raises": (["m:fails", "--input", "f32[2,2]"], "m:fails raised ValueError: [matmul]"),
    "code that reads a number": (["m:reads", "--input", "f32[2]"], "item reads the numbers in an array (m.py:"),
    "code that crashes": (["m:dies", "--input", "f32[2]"], "the traced code ended the process: SIGSEGV"),
    "code that leaves": (["m:leaves", "--input", "f32[2]"], "m:leaves raised SystemExit: 3 (m.py:"),
    "a chip that isn't there": (["m:block", "--chip", "m3max"], 'unknown chip "m3max"; did you mean "m3-max"?'),
}


@pytest.mark.parametrize(("args", "said"), FAILURES.values(), ids=FAILURES)
def test_failures_say_what_is_wrong(fuselint: Run, tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    ran = fuselint("trace", *args)
    assert ran.code == 2 and ran.out == ""
    assert said in ran.err and len(ran.err.strip().splitlines()) == 1


def test_verbose_shows_the_traceback(fuselint: Run, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(MODEL)
    ran = fuselint("trace", "m:fails", "--input", "f32[2,2]", "-v")
    assert ran.code == 2 and "return mx.matmul(x, mx.zeros((3, 3)))" in ran.err
