"""Times of single kernels on this machine's GPU, by kind, dtype and size: what the time model of a chip is fitted to.

    python benchmarks/cuda_kernels.py measure --seconds 120 > kernels.json      on the GPU; needs MLX alone

Each case is a small function that MLX runs as one kernel (those of "chain": as several, one after the other). Ten calls
are in flight, as in dram_counters.py, whose pairs are judged by what is fitted here: no function here is one of those.
Kernels that MLX compiles at first use are compiled beforehand, by processes side by side.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dram_counters import arguments, function, prepared

MIB = 1 << 20
SWEEP = (2, 8, 32, 64, 128, 256, 512, 1024)
"""MiB that a case moves."""
FEW = (64, 256, 768)
LARGE = (64, 512)
WIDTHS = (128, 512, 1024, 2048, 8192, 16384)
BOTH = ("bfloat16", "float32")
HALF = ("bfloat16",)
ITEMSIZE = {"bfloat16": 2, "float32": 4, "uint32": 4, "bool_": 1}

IN_FLIGHT = 10
LEAST, MOST, LONG_ENOUGH = 5, 15, 0.04
"""How often ten calls are timed: until they took so many seconds, within these bounds."""


@dataclass(frozen=True)
class Case:
    """T is free: it is chosen so that what goes in and comes out has the size wanted."""

    label: str
    arguments: str
    result: str
    body: str
    dtypes: tuple[str, ...] = BOTH
    megabytes: tuple[int, ...] = SWEEP
    width: int = 4096
    sizes: tuple[dict[str, int], ...] = ()  # in place of megabytes

    def at(self, megabytes: int, dtype: str) -> dict[str, int]:
        one = {"T": 1 << 12, "D": self.width}
        given = [(shape, kind) for _, shape, kind in arguments(f"{self.arguments}, out: {self.result}", one, dtype)]
        moved = sum(math.prod(shape) * ITEMSIZE[kind] for shape, kind in given)
        rows = max(1, round(megabytes * MIB / moved * one["T"]))
        return {"T": rows if rows < 8 else rows // 4 * 4, "D": self.width}

    @property
    def small(self) -> dict[str, int]:
        return dict.fromkeys(self.sizes[0], 64) if self.sizes else {"T": 4, "D": self.width}


def cases() -> Iterator[Case]:
    """The most important first: what the time doesn't suffice for is left out."""
    yield from _sweeps()
    yield from _operations()
    yield from _compiled()
    yield from _widths()
    yield from _products()
    yield from _unseen()


def _sweeps() -> Iterator[Case]:
    x, xy = "x: T D", "x: T D, y: T D"
    yield Case("unary", x, "T D", "    return -x")
    yield Case("binary", xy, "T D", "    return x + y")
    yield Case("binary with a number", x, "T D", "    return x * 0.5")
    yield Case("binary with a scalar", "x: T D, s: 1", "T D", "    return x * s")
    yield Case("binary with a row", "x: T D, w: D", "T D", "    return x * w")
    yield Case("binary with a column", "x: T D, c: T 1", "T D", "    return x - c")
    yield Case("cast to float32", x, "T D float32", "    return x.astype(mx.float32)", HALF)
    yield Case("cast from float32", "x: T D float32", "T D", "    return x.astype(mx.bfloat16)", HALF)
    yield Case("select", "m: T D bool_, x: T D, y: T D", "T D", "    return mx.where(m, x, y)")
    yield Case("select a number", "m: T D bool_, x: T D", "T D", "    return mx.where(m, x, 1)")
    yield Case("row sum", x, "T", "    return mx.sum(x, axis=-1)")
    yield Case("row max", x, "T 1", "    return mx.max(x, axis=-1, keepdims=True)")
    yield Case("column sum", x, "D", "    return mx.sum(x, axis=0)")
    yield Case("middle sum", "x: T 64 1024", "T 1024", "    return mx.sum(x, axis=1)")
    yield Case("sum of all", x, "1", "    return mx.sum(x)")
    yield Case("largest", x, "T uint32", "    return mx.argmax(x, axis=-1)")
    yield Case("softmax", x, "T D", "    return mx.softmax(x, axis=-1)")
    yield Case("precise softmax", x, "T D", "    return mx.softmax(x, axis=-1, precise=True)", HALF)
    yield Case("logsumexp", x, "T", "    return mx.logsumexp(x, axis=-1)")
    yield Case("rms_norm", "x: T D, w: D", "T D", "    return mx.fast.rms_norm(x, w, 1e-6)")
    yield Case("layer_norm", "x: T D, w: D, b: D", "T D", "    return mx.fast.layer_norm(x, w, b, 1e-6)")
    for traditional in (False, True):
        rope = f"mx.fast.rope(x, 128, traditional={traditional}, base=5000.0, scale=1.0, offset="
        yield Case(f"rope {traditional}", "x: 1 16 T 128", "1 16 T 128", f"    return {rope}0)")
    yield Case("unary of a slice", "x: T 8192", "T 4096", "    return -x[..., 4096:]")
    yield Case("unary of a narrow slice", "x: T 128", "T 64", "    return -x[..., 64:]", HALF)
    yield Case("copy of a slice", "x: T 8192", "T 4096", "    return mx.contiguous(x[..., 4096:])")
    yield Case("copy of a transpose", x, "D T", "    return mx.contiguous(x.T)")
    yield Case("copy of heads", "x: 1 T 32 128", "1 32 T 128", "    return mx.contiguous(x.swapaxes(1, 2))")
    yield Case("binary of narrow slices", "x: T 128, y: T 128", "T 64", "    return x[..., :64] + y[..., 64:]", HALF)
    yield Case("binary in steps of two", "x: T 128, y: T 64", "T 64", "    return x[..., ::2] * y", HALF)
    given = "x: 1 32 T 128, c: T 128"
    yield Case("binary of heads with a table", given, "1 32 T 128", "    return x * c", HALF)
    given = "x: 1 32 T 128, c: T 64"
    yield Case("binary of half heads with a table", given, "1 32 T 64", "    return x[..., ::2] * c", HALF)
    yield Case("repeat", "x: 1 8 T 128", "1 32 T 128", "    return mx.repeat(x, 4, axis=1)", HALF)
    yield Case("concatenate features", xy, "T 8192", "    return mx.concatenate([x, y], axis=-1)", HALF)
    yield Case("concatenate rows", xy, "T 8192", "    return mx.concatenate([x, y], axis=0)", HALF)
    given = "x: T 64, y: T 64"
    yield Case("concatenate narrow", given, "T 128", "    return mx.concatenate([x, y], axis=-1)", HALF)
    yield Case("stack", given, "T 128", "    return mx.stack([x, y], axis=-1)", HALF)
    yield Case("full", x, "T D", "    return mx.full(x.shape, 0.5, x.dtype)")
    yield Case("arange", "x: T 4096", "T D", "    return mx.arange(x.size)", HALF)
    yield Case("take rows", "x: T D, i: T uint32", "T D", "    return x[i % x.shape[0]]", HALF)
    yield Case("entry", "x: 2 T D", "T D", "    return x[1]")
    yield Case("running sum", x, "T D", "    return mx.cumsum(x, axis=-1)", HALF)
    for length in (1, 2, 4, 8, 16):
        yield Case(f"chain {length}", x, "T D", f"    return {'-' * length}x", BOTH, (1, 2, 8, 16, 32, 64, 256))
    for length in (2, 8):
        body = f"    return {'(' * length}x{' + y)' * length}"
        yield Case(f"chain of sums {length}", xy, "T D", body, HALF, (2, 16, 64, 128))
    narrow = f"    return {'mx.rsqrt(' * 8}x{')' * 8}"
    yield Case("chain of small ones", "x: T 1", "T 1", narrow, HALF, sizes=tuple({"T": n} for n in (1024, 16384)))
    numbers = "    return ((((x * 0.5 + 0.25) * 0.125 + 1.5) * 0.75 + 0.375) * 0.625) + 3.0"
    yield Case("chain of numbers", "x: T 1", "T 1", numbers, HALF, sizes=tuple({"T": n} for n in (1024, 16384)))


UNARY = {
    "Abs": "mx.abs({})", "Cos": "mx.cos({})", "Erf": "mx.erf({})", "Exp": "mx.exp({})", "Log": "mx.log({})",
    "Rsqrt": "mx.rsqrt({})", "Sigmoid": "mx.sigmoid({})", "Sin": "mx.sin({})", "Sqrt": "mx.sqrt({})",
    "Square": "mx.square({})", "Tanh": "mx.tanh({})",
}  # fmt: skip
BINARY = {
    "Divide": "{} / {}", "Maximum": "mx.maximum({}, {})", "Multiply": "{} * {}", "Power": "mx.power({}, {})",
    "Subtract": "{} - {}",
}  # fmt: skip


def _operations() -> Iterator[Case]:
    for name, text in UNARY.items():
        yield Case(f"unary {name}", "x: T D", "T D", f"    return {text.format('x')}", megabytes=FEW)
    for name, text in BINARY.items():
        yield Case(f"binary {name}", "x: T D, y: T D", "T D", f"    return {text.format('x', 'y')}", megabytes=FEW)
        for number in ("3", "0.3"):
            body = f"    return {text.format('x', number)}"
            yield Case(f"binary {name} with {number}", "x: T D", "T D", body, megabytes=FEW)
        body = f"    return {text.format('x', 'c')}"
        yield Case(f"binary {name} with a column", "x: T D, c: T 1", "T D", body, megabytes=FEW)
        body = f"    return {text.format('x', 'w')}"
        yield Case(f"binary {name} with a row", "x: T D, w: D", "T D", body, megabytes=FEW)


def _compiled() -> Iterator[Case]:
    """Under mx.compile: by the number of operands, by operation and their number, and with operands that broadcast."""
    names = "abcdef"
    for count in (2, 3, 4, 6):
        given = ", ".join(f"{n}: T D" for n in names[:count])
        total = " + ".join(names[:count])
        yield Case(f"compiled {count}", given, "T D", f"@mx.compile\n    return mx.abs({total})")
    for name, text in {**UNARY, **{n: t.format("{}", "0.7") for n, t in BINARY.items()}}.items():
        for length in (1, 2, 6):
            body = "x"
            for _ in range(length):
                body = text.format(f"({body})")
            body = f"@mx.compile\n    return mx.abs({body})"
            yield Case(f"compiled {name} x {length}", "x: T D", "T D", body, megabytes=LARGE)
    body = "@mx.compile\n    return mx.where(x > y, x, y) * mx.where(x > 0.5, y, x)"
    yield Case("compiled Select x 2", "x: T D, y: T D", "T D", body, megabytes=LARGE)
    body = "@mx.compile\n    return (x.astype(mx.float32) * 0.3 + y.astype(mx.float32)).astype(mx.bfloat16)"
    yield Case("compiled casts", "x: T D, y: T D", "T D", body, HALF, LARGE)
    mixed = {
        "x: T D, y: T D": ("mx.erf(x) * y", "mx.sigmoid(x + y)", "mx.tanh(x) - y", "mx.exp(x) + mx.cos(y)"),
        "x: T D, y: T D, z: T D": ("mx.erf(x) * y + z", "mx.tanh(x + y) * z", "mx.cos(x - y) * mx.sigmoid(z)"),
    }
    for given, several in mixed.items():
        for body in several:
            label = f"compiled mixed: {body}"
            yield Case(label, given, "T D", f"@mx.compile\n    return {body}", megabytes=LARGE)
    bodies = {
        "x: T D, w: D": "mx.abs(x * w)",
        "x: T D, c: T 1": "mx.abs(x * c)",
        "x: T D, w: D, b: D": "x * w + b",
        "x: T D, y: T D, w: D": "x * w + y",
        "x: T D, y: T D, c: T 1, w: D": "(x + y) * c * w",
        "x: T D, y: T D, z: T D, w: D": "(x + y) * w - z",
        "x: T D, a: D, b: D, c: D, d: D": "(x * a - b) * c - d",
    }
    for given, body in bodies.items():
        yield Case(f"compiled with rows: {body}", given, "T D", f"@mx.compile\n    return {body}")
    for given, body in (("x: T D, w: D", "mx.sigmoid(x * w)"), ("x: T D, w: D", "mx.tanh(mx.exp(x * w))")):
        label = f"compiled with rows: {body}"
        yield Case(label, given, "T D", f"@mx.compile\n    return {body}", megabytes=LARGE)


def _widths() -> Iterator[Case]:
    """Row-wise kernels by the length of a row."""
    bodies = {
        "row sum": ("T", "mx.sum(x, axis=-1)"),
        "largest": ("T uint32", "mx.argmax(x, axis=-1)"),
        "softmax": ("T D", "mx.softmax(x, axis=-1)"),
        "logsumexp": ("T", "mx.logsumexp(x, axis=-1)"),
        "rms_norm": ("T D", "mx.fast.rms_norm(x, None, 1e-6)"),
        "layer_norm": ("T D", "mx.fast.layer_norm(x, None, None, 1e-6)"),
    }
    for width in WIDTHS:
        for label, (result, body) in bodies.items():
            yield Case(
                f"{label}, {width} wide", "x: T D", result, f"    return {body}", megabytes=(64, 512), width=width
            )
        given = {"rms_norm": ("x: T D, w: D", "x, w"), "layer_norm": ("x: T D, w: D, b: D", "x, w, b")}
        for name, (operands, text) in given.items():
            body = f"    return mx.fast.{name}({text}, 1e-6)"
            yield Case(f"{name} with weights, {width} wide", operands, "T D", body, megabytes=LARGE, width=width)
        body = "    return mx.softmax(x, axis=-1, precise=True)"
        yield Case(f"precise softmax, {width} wide", "x: T D", "T D", body, HALF, LARGE, width)
        for other, text in (("w: D", "x * w"), ("c: T 1", "x * c")):
            label = f"{text}, {width} wide"
            yield Case(label, f"x: T D, {other}", "T D", f"    return {text}", HALF, LARGE, width)


def _products() -> Iterator[Case]:
    square = tuple({"T": n, "K": n, "N": n} for n in (1024, 2048, 4096, 8192))
    flat = tuple({"T": t, "K": 2048, "N": 6144} for t in (512, 2048, 8192))
    vector = tuple({"T": 1, "K": n, "N": n} for n in (2048, 4096, 6144, 8192, 12288, 16384))
    yield Case("product", "x: T K, w: N K", "T N", "    return x @ w.T", BOTH, sizes=square + flat)
    yield Case("product of a row", "x: T K, w: N K", "T N", "    return x @ w.T", HALF, sizes=vector)
    packed = "w: N K/8 uint32, s: N K/64, b: N K/64"
    body = "    return mx.quantized_matmul(x, w, s, b, transpose=True, group_size=64, bits=4)"
    yield Case("quantized product of a row", f"x: T K, {packed}", "T N", body, HALF, sizes=vector)
    body = "    return mx.dequantize(w, s, b, group_size=64, bits=4)"
    yield Case("dequantize", packed, "N K", body, HALF, sizes=vector)
    heads = tuple({"H": 32, "T": n} for n in (512, 1024, 2048, 3072))
    body = "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1)"
    given = "q: 1 H T 128, k: 1 H T 128, v: 1 H T 128"
    yield Case("attention", given, "1 H T 128", body, HALF, sizes=heads)
    body = "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask=m)"
    yield Case("attention with a mask", f"{given}, m: T T", "1 H T 128", body, HALF, sizes=heads)
    body = "    return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask='causal')"
    yield Case("causal attention", given, "1 H T 128", body, HALF, sizes=heads)
    for label, operand in (("bias", "c: N"), ("residual", "c: T N")):
        body = "    return mx.addmm(c, x, w.T)"
        yield Case(f"product and {label}", f"x: T K, w: N K, {operand}", "T N", body, HALF, sizes=square + flat)
    given, body = "x: 1 H T 128, y: 1 H T 128", "    return x @ y.swapaxes(-1, -2)"
    yield Case("batched product", given, "1 H T T", body, HALF, sizes=heads)


UNSEEN = {
    "log-softmax": ("x: T D", "x - mx.logsumexp(x, axis=-1, keepdims=True)"),
    "softmax of a sum": ("x: T D, b: D", "mx.softmax(x * 0.1 + b, axis=-1)"),
    "centred": ("x: T D", "x - mx.mean(x, axis=-1, keepdims=True)"),
    "standard score": ("x: T D", "(x - mx.mean(x, axis=0)) / mx.std(x, axis=0)"),
    "squared ReLU": ("x: T D", "mx.square(mx.maximum(x, 0))"),
    "GELU": ("x: T D", "x * (1 + mx.erf(x / 1.4142135)) / 2"),
    "mish": ("x: T D", "x * mx.tanh(mx.log(1 + mx.exp(x)))"),
    "gated sum": ("x: T D, y: T D, g: D", "mx.sigmoid(g) * x + (1 - mx.sigmoid(g)) * y"),
    "masked": ("m: T D bool_, x: T D", "mx.exp(mx.where(m, x, -1e4))"),
    "rotated": ("x: T 128, c: T 64, s: T 64", "mx.concatenate([x[:, :64] * c - x[:, 64:] * s, x[:, 64:]], axis=-1)"),
    "scaled norm": ("x: T D, w: D", "mx.fast.rms_norm(x * 2.0, w, 1e-5) + x"),
    "cosine": ("x: T D, y: T D", "mx.sum(x * y, axis=-1) * mx.rsqrt(mx.sum(x * x, axis=-1) * mx.sum(y * y, axis=-1))"),
    "a step": ("x: T D, v: T D", "x - 0.1 * v / (mx.sqrt(mx.abs(v)) + 1e-6)"),
    "heads": ("x: 1 T 32 128", "mx.softmax(x.swapaxes(1, 2) * 0.5, axis=-1)"),
}
"""Functions of several kernels, each also under mx.compile: to judge what is fitted, never to fit it."""


def _unseen() -> Iterator[Case]:
    for name, (given, body) in UNSEEN.items():
        for before, label in (("    return ", "unseen"), ("@mx.compile\n    return ", "unseen, compiled")):
            yield Case(
                f"{label}: {name}", given, given.split(", ")[0].partition(": ")[2], before + body, BOTH, (64, 256, 768)
            )


# -- on the device ----------------------------------------------------------------------------------------------------


def timed(f: Callable[..., Any], given: list[Any], in_flight: int = IN_FLIGHT) -> dict[str, float]:
    """Microseconds a call, and those of them in which calls are handed over."""
    import mlx.core as mx

    times: list[float] = []
    handing: list[float] = []
    begun = 0.0
    while len(times) < LEAST + 2 or (len(times) < MOST + 2 and time.perf_counter() - begun < LONG_ENOUGH):
        start = time.perf_counter()
        for _ in range(in_flight):
            mx.async_eval(f(*given))
        handed = time.perf_counter()
        mx.synchronize()
        times.append((time.perf_counter() - start) * 1e6 / in_flight)
        handing.append((handed - start) * 1e6 / in_flight)
        if len(times) == 2:  # two to warm up
            begun = time.perf_counter()
    return {"us": statistics.median(times[2:]), "us_min": min(times[2:]), "us_handing": statistics.median(handing[2:])}


def specified(small: bool, only: str = "") -> Iterator[dict[str, Any]]:
    """All cases with their sizes, or with one tiny size each. only: a pattern that their labels hold."""
    for case in cases():
        if not re.search(only, case.label):
            continue
        for dtype in case.dtypes:
            for at in [case.small] if small else case.sizes or [case.at(m, dtype) for m in case.megabytes]:
                given = arguments(case.arguments, at, dtype)
                source = function([n for n, _, _ in given], case.body)
                yield {"label": case.label, "dtype": dtype, "sizes": at, "source": source, "arguments": given}


def measure(seconds: float, small: bool, first: int, only: str) -> None:
    """One line of JSON for each case from the first on, as soon as it is measured."""
    import mlx.core as mx

    start = time.perf_counter()
    gc.disable()
    for case in list(specified(small, only))[first:]:
        found: dict[str, Any] = {}
        if time.perf_counter() - start > seconds:
            found["error"] = "left out: the time is over"
        else:
            try:
                f, given = prepared(case)
                found.update(timed(f, given))
                del f, given
            except Exception as e:
                found["error"] = f"{type(e).__name__}: {e}"
            mx.clear_cache()
        print(json.dumps(case | found), flush=True)


def measured(seconds: float, small: bool, only: str) -> None:
    """All cases, measured in a process of their own: where that dies, another goes on behind the case it died of."""
    import mlx.core as mx

    start = time.perf_counter()
    all_cases = list(specified(small, only))
    out: list[dict[str, Any]] = []
    while len(out) < len(all_cases):
        left = seconds - (time.perf_counter() - start)
        command = [sys.executable, __file__, "part", "--only", only, "--seconds", str(left), "--first", str(len(out))]
        done = subprocess.run([*command, *["--small"] * small], stdout=subprocess.PIPE, text=True, check=False)
        out += [json.loads(line) for line in done.stdout.splitlines() if line.endswith("}")]
        if len(out) < len(all_cases):
            out.append(all_cases[len(out)] | {"error": f"the process ended with {done.returncode}"})
    device = str(mx.device_info().get("device_name", ""))
    print(json.dumps({"mlx": mx.__version__, "device": device, "took": time.perf_counter() - start, "cases": out}))


def warm(part: int, parts: int, only: str) -> None:
    """Runs the cases that MLX compiles kernels for, or a part of them: the compiled ones stay in a folder."""
    import mlx.core as mx

    seen: set[str] = set()
    number = 0
    for case in specified(True, only):
        if ("compile" in case["source"] or "[" in case["source"]) and case["source"] + case["dtype"] not in seen:
            seen.add(case["source"] + case["dtype"])
            number += 1
            if number % parts == part:
                try:
                    f, given = prepared(case)
                    mx.eval(f(*given))
                except Exception as e:
                    print(f"{case['label']}: {e}", file=sys.stderr)


def warmed(processes: int, only: str) -> None:
    command = [sys.executable, __file__, "warm", "--only", only, "--parts", str(processes), "--part"]
    running = [subprocess.Popen([*command, str(i)]) for i in range(processes)]
    for process in running:
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["measure", "part", "warm"])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--only", default="", help="a pattern of the labels")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--processes", type=int, default=min(12, os.cpu_count() or 1), help="that compile beforehand")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    given = parser.parse_args()
    if given.step == "warm":
        warm(given.part, given.parts, given.only)
    elif given.step == "part":
        measure(given.seconds, given.small, given.first, given.only)
    else:
        if not given.small and given.processes:
            warmed(given.processes, given.only)
        measured(given.seconds, given.small, given.only)


if __name__ == "__main__":
    main()
