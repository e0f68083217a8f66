"""Bytes and kernels as fuselint counts them, against the counters of a GPU: before and after each kind of fix.

Four steps, of which only the second and third need the GPU, and only the first fuselint:

    python benchmarks/dram_counters.py predict > pairs.json
    ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum --clock-control none --profile-from-start off --csv \\
        python benchmarks/dram_counters.py run pairs.json > counters.csv
    python benchmarks/dram_counters.py time > times.json
    python benchmarks/dram_counters.py table pairs.json counters.csv times.json

Each pair is a small function before and after, in bfloat16 unless it says otherwise. ncu flushes the caches before
each kernel, so what it counts is what the kernel itself must read; of what it writes, a part as large as the second
level cache may not have reached memory when it ends.
"""

from __future__ import annotations

import csv
import ctypes
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselint.traffic.kernels import Bytes, Kernel

HEAD = "import math\n\nimport mlx.core as mx\nimport mlx.nn as nn\n\n\n"
MARKER = "rbits"
"""The kernel of mx.random.split, which stands before each measurement and is part of none."""

ROWS = [{"T": 4096, "D": 4096}, {"T": 16384, "D": 4096}, {"T": 16384, "D": 8192}]
HEADS = [{"H": 32, "L": n, "D": 128} for n in (1024, 2048, 4096)]
PRODUCT = [{"T": 4096, "K": 1024, "N": 4096}, {"T": 8192, "K": 1024, "N": 8192}, {"T": 16384, "K": 1024, "N": 8192}]
BROADCAST = [{"M": m, "K": 512, "N": n} for m, n in ((256, 1024), (512, 1024), (512, 2048))]
PACKED = [{"T": 1, "K": n, "N": n} for n in (4096, 8192, 16384)]
MORE: list[tuple[list[dict[str, int]], list[dict[str, int]]]] = [
    (ROWS, [{"T": 8192, "D": 2048}, {"T": 32768, "D": 8192}]),
    (HEADS, [{"H": 32, "L": n, "D": 128} for n in (512, 3072)]),
    (PRODUCT, [{"T": 2048, "K": 1024, "N": 4096}, {"T": 32768, "K": 1024, "N": 8192}]),
    (BROADCAST, [{"M": 512, "K": 512, "N": 4096}]),
    (PACKED, [{"T": 1, "K": n, "N": n} for n in (2048, 12288)]),
]
"""Sizes at which pairs are timed only."""

ATTEND = "mx.fast.scaled_dot_product_attention"
SCORES = "    s = (q * 0.0884) @ k.swapaxes(-1, -2)\n"

PAIRS: list[tuple[str, str, str, list[dict[str, int]], str, str]] = [
    # rule, name, arguments, sizes, body before, body after
    ("FUS201", "RMSNorm in float32", "x: T D, w: D", ROWS,
     "    h = x.astype(mx.float32)\n    h = h * mx.rsqrt(mx.mean(mx.square(h), axis=-1, keepdims=True) + 1e-5)\n"
     "    return w * h.astype(x.dtype)",
     "    return mx.fast.rms_norm(x, w, 1e-5)"),
    ("FUS201", "RMSNorm", "x: T D, w: D", ROWS,
     "    return x * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5) * w",
     "    return mx.fast.rms_norm(x, w, 1e-5)"),
    ("FUS202", "LayerNorm", "x: T D, w: D, b: D", ROWS,
     "    m = mx.mean(x, axis=-1, keepdims=True)\n    v = mx.var(x, axis=-1, keepdims=True)\n"
     "    return (x - m) * mx.rsqrt(v + 1e-5) * w + b",
     "    return mx.fast.layer_norm(x, w, b, 1e-5)"),
    ("FUS203", "L2 norm", "x: T D", ROWS,
     "    return x * mx.rsqrt(mx.sum(x * x, axis=-1, keepdims=True) + 1e-6)",
     "    return mx.fast.rms_norm(x, mx.full((x.shape[-1],), x.shape[-1] ** -0.5, x.dtype), 1e-6 / x.shape[-1])"),
    ("FUS205", "normed product", "x: T K, w: K N", PRODUCT,
     "    return (x @ w) * mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)",
     "    return mx.fast.rms_norm(x, None, 1e-5) @ w"),
    ("FUS211", "attention", "q: 1 H L D, k: 1 H L D, v: 1 H L D", HEADS,
     SCORES + "    return mx.softmax(s, axis=-1) @ v",
     f"    return {ATTEND}(q, k, v, scale=0.0884)"),
    ("FUS211", "attention, softmax in float32", "q: 1 H L D, k: 1 H L D, v: 1 H L D", HEADS,
     SCORES + "    return mx.softmax(s.astype(mx.float32), axis=-1).astype(q.dtype) @ v",
     f"    return {ATTEND}(q, k, v, scale=0.0884)"),
    ("FUS211", "attention with a mask", "q: 1 H L D, k: 1 H L D, v: 1 H L D, m: L L", HEADS,
     SCORES + "    return mx.softmax(s + m, axis=-1) @ v",
     f"    return {ATTEND}(q, k, v, scale=0.0884, mask=m)"),
    ("FUS101", "repeated K and V", "q: 1 H L D, k: 1 8 L D, v: 1 8 L D", HEADS,
     f"    return {ATTEND}(q, mx.repeat(k, 4, axis=1), mx.repeat(v, 4, axis=1), scale=0.0884)",
     f"    return {ATTEND}(q, k, v, scale=0.0884)"),
    ("FUS102", "causal mask", "q: 1 H L D, k: 1 H L D, v: 1 H L D", HEADS,
     "    n = mx.arange(q.shape[2])\n    m = mx.where(n[:, None] >= n[None], 0.0, -mx.inf).astype(q.dtype)\n"
     f"    return {ATTEND}(q, k, v, scale=0.0884, mask=m)",
     f"    return {ATTEND}(q, k, v, scale=0.0884, mask=\"causal\")"),
    ("FUS221", "rope, halves", "x: 1 H L D, c: L D, s: L D", HEADS,
     "    h = x.shape[-1] // 2\n    r = mx.concatenate([-x[..., h:], x[..., :h]], axis=-1)\n    return x * c + r * s",
     "    return mx.fast.rope(x, x.shape[-1], traditional=False, base=10000.0, scale=1.0, offset=0)"),
    ("FUS221", "rope, interleaved", "x: 1 H L D, c: L D/2, s: L D/2", HEADS,
     "    a, b = x[..., ::2], x[..., 1::2]\n    y = mx.stack([a * c - b * s, a * s + b * c], axis=-1)\n"
     "    return y.reshape(x.shape)",
     "    return mx.fast.rope(x, x.shape[-1], traditional=True, base=10000.0, scale=1.0, offset=0)"),
    ("FUS231", "product and bias", "x: T K, w: N K, b: N", PRODUCT,
     "    return x @ w.T + b", "    return mx.addmm(b, x, w.T)"),
    ("FUS231", "product and residual", "h: T N, x: T K, w: K N", PRODUCT,
     "    return h + x @ w", "    return mx.addmm(h, x, w)"),
    ("FUS232", "contraction", "a: M K, w: K N", BROADCAST,
     "    return (a[:, :, None] * w[None]).sum(axis=1)", "    return a @ w"),
    ("FUS241", "dequantized weight", "x: T K, w: N K/8 uint32, s: N K/64, b: N K/64", PACKED,
     "    return x @ mx.dequantize(w, s, b, group_size=64, bits=4).T",
     "    return mx.quantized_matmul(x, w, s, b, transpose=True, group_size=64, bits=4)"),
    ("FUS251", "softmax", "x: T D", ROWS,
     "    e = mx.exp(x - mx.max(x, axis=-1, keepdims=True))\n    return e / mx.sum(e, axis=-1, keepdims=True)",
     "    return mx.softmax(x, axis=-1)"),
    ("FUS251", "logsumexp", "x: T D", ROWS,
     "    return mx.log(mx.sum(mx.exp(x), axis=-1))", "    return mx.logsumexp(x, axis=-1)"),
    ("FUS104", "softmax between casts", "x: T D", ROWS,
     "    return mx.softmax(x.astype(mx.float32), axis=-1).astype(x.dtype)",
     "    return mx.softmax(x, axis=-1, precise=True)"),
    ("FUS261", "GELU with tanh", "x: T D", ROWS,
     "    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))",
     "    return nn.gelu_approx(x)"),
    ("FUS261", "SiLU", "x: T D", ROWS, "    return x * mx.sigmoid(x)", "    return nn.silu(x)"),
    ("FUS301", "SwiGLU", "g: T D, u: T D", ROWS,
     "    return g * mx.sigmoid(g) * u", "@mx.compile\n    return g * mx.sigmoid(g) * u"),
    ("FUS301", "modulation", "x: T D, scale: D, shift: D, gate: D, y: T D", ROWS,
     "    return y + gate * (x * (1 + scale) + shift)", "@mx.compile\n    return y + gate * (x * (1 + scale) + shift)"),
    ("FUS301", "softcap", "x: T D", ROWS,
     "    return mx.tanh(x / 30.0) * 30.0", "@mx.compile\n    return mx.tanh(x / 30.0) * 30.0"),
    ("FUS106", "zeros of where", "m: T D bool_, x: T D", ROWS,
     "    return mx.where(m, x, mx.zeros_like(x))", "    return mx.where(m, x, 0)"),
    ("FUS106", "an entry by int", "x: 3 T D", ROWS, "    return mx.exp(x[0])", "    return mx.exp(x[0, ...])"),
    ("FUS107", "largest of a softmax", "x: T D", ROWS,
     "    return mx.argmax(mx.softmax(x, axis=-1), axis=-1)", "    return mx.argmax(x, axis=-1)"),
    ("FUS108", "scaled weight", "x: T K, w: N K", PACKED,
     "    return x @ (w * 0.125).T", "    return (x * 0.125) @ w.T"),
]  # fmt: skip


def arguments(text: str, sizes: dict[str, int], usual: str = "bfloat16") -> list[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and dtypes of `x: T D, m: T D bool_`. usual: where it names none."""
    out = []
    for part in text.split(", "):
        name, _, words = part.partition(": ")
        *dims, last = words.split()
        dtype = last if last in ("bool_", "uint32", "float32") else usual
        dims += [] if dtype == last else [last]
        out.append((name, tuple(_size(d, sizes) for d in dims), dtype))
    return out


def _size(text: str, sizes: dict[str, int]) -> int:
    name, _, by = text.partition("/")
    return (int(name) if name.isdecimal() else sizes[name]) // int(by or 1)


def function(names: list[str], body: str) -> str:
    decorator, _, rest = body.partition("\n") if body.startswith("@") else ("", "", body)
    return f"{HEAD}{decorator}{chr(10) if decorator else ''}def f({', '.join(names)}):\n{rest}\n"


def cases(more: bool = False, small: bool = False) -> Iterator[dict[str, Any]]:
    """more: at sizes that are timed only, too. small: at one tiny size."""
    for rule, name, signature, all_sizes, *bodies in PAIRS:
        others = next(sizes for few, sizes in MORE if few is all_sizes) if more else []
        for sizes in [dict.fromkeys(all_sizes[0], 64)] if small else [*all_sizes, *others]:
            given = arguments(signature, sizes)
            for side, body in zip(("before", "after"), bodies, strict=True):
                source = function([n for n, _, _ in given], body)
                yield {"rule": rule, "name": name, "sizes": sizes, "side": side, "source": source, "arguments": given}


# -- what fuselint counts ---------------------------------------------------------------------------------------------


def predict() -> None:
    print(json.dumps([case | _counted(case) for case in cases()], indent=1))


def _counted(case: dict[str, Any]) -> dict[str, int]:
    launched, sizes = launches_of(case)

    def total(side: str) -> int:
        found = [sizes.of(a).value() for k in launched for a in getattr(k, side)]
        assert all(isinstance(s, int) for s in found), (case["name"], found)
        return sum(int(s) for s in found if s is not None)

    return {"kernels": len(launched), "read": total("reads"), "written": total("writes")}


def launches_of(case: dict[str, Any]) -> tuple[list[Kernel], Bytes]:
    """The kernels of a function on CUDA, and their sizes: numbers, since those of its arguments are."""
    from fuselint.graph.dtypes import DType
    from fuselint.graph.gates import Gates
    from fuselint.graph.lower import Program
    from fuselint.graph.model import region
    from fuselint.graph.shapes import Shape
    from fuselint.source.project import summarise
    from fuselint.source.screen import screen
    from fuselint.source.text import FileText
    from fuselint.traffic.kernels import Bytes, compiled_kernels, kernels
    from fuselint.traffic.sizes import Sizes

    file = FileText("pair.py", case["source"])
    tree = screen(file).tree
    assert tree is not None
    graph = Program(file, summarise(file, tree)).graph("f")
    assert graph is not None and not graph.not_understood, case["source"]
    for node, (_, shape, dtype) in zip(graph.params.values(), case["arguments"], strict=True):
        graph.facts.state(node, Shape.of(*shape), DType({dtype}), "an argument")
    root = graph.returns[0][1]
    nodes, gates = region(root, ()), Gates("cuda")
    launched = (
        compiled_kernels(nodes, [root], graph.facts, shapeless=False, gates=gates)
        if graph.context.compiled
        else kernels(nodes, graph.facts, gates)
    )
    return launched, Bytes(Sizes.of([a.shape for k in launched for a in (*k.reads, *k.writes)]))


# -- on the device ----------------------------------------------------------------------------------------------------


def prepared(case: dict[str, Any]) -> tuple[Any, list[Any]]:
    import mlx.core as mx

    space: dict[str, Any] = {}
    exec(case["source"], space)
    given = []
    for _, shape, dtype in case["arguments"]:
        if dtype == "uint32":
            given.append(mx.random.randint(0, 2**31 - 1, shape).astype(mx.uint32))
        elif dtype == "bool_":
            given.append(mx.random.uniform(shape=shape) > 0.5)
        else:
            given.append((mx.random.normal(shape) * 0.1).astype(getattr(mx, dtype)))
    mx.eval(given)
    return space["f"], given


def run(path: Path) -> None:
    """Launches each case once between two markers, after a first time that is not profiled."""
    import mlx.core as mx

    cuda = ctypes.CDLL("libcuda.so.1")
    key = mx.random.key(0)
    mx.eval(key)
    for case in json.loads(path.read_text()):
        f, given = prepared(case)
        mx.eval(f(*given))
        mx.synchronize()
        cuda.cuProfilerStart()
        mx.eval(mx.random.split(key))
        mx.eval(f(*given))
        mx.synchronize()
        cuda.cuProfilerStop()
        del f, given
        mx.clear_cache()


def measure(repeats: int = 12, small: bool = False) -> None:
    """Medians in microseconds a call, each pair's two sides in turn. Several calls are in flight, as in a model: what
    Python and the launches take is hidden behind the kernels where those take longer."""
    import mlx.core as mx

    gc.disable()
    all_cases = list(cases(more=True, small=small))
    for both in zip(all_cases[::2], all_cases[1::2], strict=True):
        try:
            times = _in_turns([prepared(case) for case in both], repeats)
        except Exception as e:
            both[0]["error"] = f"{type(e).__name__}: {e}"
        else:
            both[0]["us"], both[1]["us"] = times
        mx.clear_cache()
    print(json.dumps(all_cases))


def _in_turns(sides: list[tuple[Any, list[Any]]], repeats: int, in_flight: int = 10) -> list[float]:
    import mlx.core as mx

    times: list[list[float]] = [[] for _ in sides]
    for i in range(repeats + 3):
        for side, (f, given) in enumerate(sides):
            start = time.perf_counter()
            for _ in range(in_flight):
                mx.async_eval(f(*given))
            mx.synchronize()
            if i >= 3:
                times[side].append((time.perf_counter() - start) * 1e6 / in_flight)
    return [statistics.median(t) for t in times]


# -- the table --------------------------------------------------------------------------------------------------------


def counted(path: Path) -> list[dict[str, int]]:
    """What ncu counted between two markers: kernels, bytes read and written."""
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    out: list[dict[str, int]] = []
    seen: set[str] = set()
    for row in csv.DictReader(lines[first:]):
        if MARKER in row["Kernel Name"]:
            if row["ID"] not in seen:
                out.append({"kernels": 0, "read": 0, "written": 0})
        else:
            out[-1]["kernels"] += row["ID"] not in seen
            key = "read" if "read" in row["Metric Name"] else "written"
            out[-1][key] += _bytes(row["Metric Value"], row["Metric Unit"])
        seen.add(row["ID"])
    return out


def _bytes(value: str, unit: str) -> int:
    scale = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}[unit]
    return round(float(value.replace(",", "")) * scale)


def table(pairs: Path, counters: Path, times: Path) -> None:
    all_cases, measured = json.loads(pairs.read_text()), counted(counters)
    took = {_key(case): case.get("us", 0.0) for case in json.loads(times.read_text())}
    assert len(all_cases) == len(measured), (len(all_cases), len(measured))
    print(
        "| rule | pair | sizes | | kernels | MB read | MB written | microseconds |\n|---|---|---|---|---|---|---|---|"
    )
    for case, found in zip(all_cases, measured, strict=True):
        sizes = " ".join(f"{n}={s}" for n, s in case["sizes"].items())
        cells = [f"{case['kernels']} / {found['kernels']}"]
        for key in ("read", "written"):
            off = found[key] / case[key] - 1 if case[key] else 0.0
            cells.append(f"{case[key] / 1e6:.1f} / {found[key] / 1e6:.1f} ({off:+.1%})")
        cells.append(f"{took[_key(case)]:.0f}")
        print(f"| {case['rule']} | {case['name']} | {sizes} | {case['side']} | {' | '.join(cells)} |")


def _key(case: dict[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    return case["name"], case["side"], tuple(case["sizes"].values())


def main() -> None:
    step, *paths = sys.argv[1:] or ["help"]
    trial = partial(measure, repeats=1, small=True)
    steps = {"predict": predict, "run": run, "time": measure, "trial": trial, "table": table}
    if step not in steps:
        raise SystemExit(__doc__)
    steps[step](*(Path(p) for p in paths))  # type: ignore[operator]


if __name__ == "__main__":
    main()
