"""Python that nobody wrote: no crash, no hang, and what `fix` writes parses and stays as it is.

    python benchmarks/fuzz.py --minutes 15 --seed 1 [FILES, whose bytes, tokens and statements are mixed up]

Half of the texts are made of the grammar, every construct of it up to 3.14 with MLX among them; half are mutations.
Exit code 1, and the text in fuzz-failures/, where one of them failed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

from fuselint.api import check_source, fix_source
from fuselint.errors import UnreadableFile
from fuselint.source.notebook import is_python

SLOWEST = 30.0
"""CPU seconds for one text: a hang, for texts of this size."""

EXPRESSIONS = r"""
x
y
w
self.weight
1
2.5
-1
1e-5
True
None
...
"text"
b'b'
f"{E!r:>{E}}"
f"{E=}"
0x1F
1_0
2j
E + E
E * E
E - E
E / E
E // E
E % E
E ** 2
E @ E
-E
~E
not E
E and E
E or E
E < E <= E
E in E
E is not E
E if E else E
E & E
E << 1
lambda a, /, b=E, *c, d, **e: E
(v := E)
[E, *E]
(E,)
(E, E)
{E: E, **E}
{E, *E}
E[E]
E[..., None]
E[1:E:2, *E]
E.T
E.shape[-1]
E.astype(mx.float32)
E.reshape(-1, E)
[E for a in E if E]
{a: E for a, b in E}
{E for a in E for b in a}
(E for a in E)
[[E for b in a] for a in E]
[E async for a in E]
await E
(yield E)
(yield from E)
f(E, *E, k=E, **E)
f"{'a' 'b'}"
mx.exp(E)
mx.sigmoid(E)
mx.rsqrt(E)
mx.mean(E, axis=-1, keepdims=True)
mx.sum(E)
mx.softmax(E, axis=-1)
mx.matmul(E, E)
mx.concatenate([E, E], axis=-1)
mx.where(E, E, E)
mx.square(E)
mx.var(E, axis=-1)
mx.array(E)
mx.fast.rms_norm(E, E, 1e-5)
nn.silu(E)
nn.gelu(E)
mx.split(E, 2, axis=-1)
E.transpose(0, 2, 1, 3)
mx.zeros(E.shape)
mx.compile(lambda a: E)
E * mx.rsqrt(mx.mean(E * E, -1, keepdims=True) + 1e-6)
mx.logsumexp(E)
E * mx.sigmoid(E)
mx.eval(E)
t"{E}{E:.2f}"
f'{x['a']}'
f"{f"{E}"}"
"""
"""One a line; E is any expression."""

STATEMENTS = r"""
x = E
y = x = E
x, (y, *w) = E
x: int = E
x += E
x[E] = E
self.weight = E
del x
pass
E
assert E, E
return E
raise E from E
global g
nonlocal x
import math as m, os.path
from . import a as b
from mlx.core import exp as e, *
print(E)
x @= E
break
continue
type Pair[T] = tuple[T, T]
type P[**Q, *Ts = *tuple[int]] = E
x = y = w = E
return
x **= E
yield E
await E
x = E; y = E
if E:\nS\nelif E:\nS\nelse:\nS
for x in E:\nS\nelse:\nS
for x, *y in E:\nS
while E:\nS\nelse:\nS
async for x in E:\nS
with E as x, E:\nS
with (E as x, E as (y, w)):\nS
async with E:\nS
try:\nS\nexcept E as e:\nS\nelse:\nS\nfinally:\nS
try:\nS\nfinally:\nS
try:\nS\nexcept* E:\nS
try:\nS\nexcept ValueError, TypeError:\nS
match E:\n    case [1, *rest] | {"a": x, **k} if E:\nSS\n    case P(a, b=c) as d:\nSS
def g(a, /, b: int = E, *c, d=E, **e) -> E:\nS
@E\ndef g(x):\nS
async def g(x):\nS
def g[T: int, *Ts, **P](x: T) -> T:\nS
class C(E, metaclass=E):\nS
@mx.compile\ndef g(x, y):\nS
class D[T](nn.Module):\n    def __call__(self, x):\nSS
lambda: (yield)
"""
"""One a line; S is any statements, and SS those of an inner block."""


class Grammar:
    """Texts of random constructs."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen = chosen
        self.expressions = EXPRESSIONS.strip().splitlines()
        self.statements = [s.replace("\\n", "\n") for s in STATEMENTS.strip().splitlines()]
        self.leaves = self.expressions[:12]

    def expression(self, depth: int) -> str:
        form = self.chosen.choice(self.expressions if depth > 0 else self.leaves)
        return re.sub(r"\bE\b", lambda m: self._bracketed(depth - 1), form)

    def _bracketed(self, depth: int) -> str:
        text = self.expression(depth)
        return text if text.isidentifier() else f"({text})"

    def statement(self, depth: int, indent: str) -> str:
        form = self.chosen.choice(self.statements)
        if depth <= 0:
            form = form.split("\n")[0] if "\n" not in form else "x = E"
        lines = []
        for line in form.split("\n"):
            if line in ("S", "SS"):
                inner = indent + "    " * len(line)
                lines += [self.statement(depth - 1, inner) for _ in range(self.chosen.randint(1, 3))]
            else:
                lines.append(indent + re.sub(r"\bE\b", lambda m: self._bracketed(self.chosen.randint(0, 3)), line))
        return "\n".join(lines)

    def module(self) -> str:
        """Functions and methods that hold such statements; a statement that doesn't parse is left out mostly."""
        parts = ["import mlx.core as mx", "import mlx.nn as nn", ""]
        for number in range(self.chosen.randint(1, 4)):
            method = self.chosen.random() < 0.4
            head = f"class Layer{number}(nn.Module):\n    def __call__(self, x, y=None):" if method else ""
            head = head or f"{'async ' * (self.chosen.random() < 0.1)}def f{number}(x: mx.array, y: mx.array, w=None):"
            indent = "        " if method else "    "
            body = []
            for _ in range(self.chosen.randint(1, 8)):
                stmt = self.statement(2, indent)
                if is_python(f"{head}\n{stmt}\n") or self.chosen.random() < 0.03:
                    body.append(stmt)
            last = f"{indent}return {self.expression(2)}"
            parts += [head, *body, last if is_python(f"{head}\n{last}\n") else f"{indent}return x", "", ""]
        return "\n".join(parts)


def mutated(chosen: random.Random, seeds: list[bytes]) -> bytes:
    """A file with bytes, tokens or lines changed, taken out, doubled, or taken from another file."""
    data = chosen.choice(seeds)
    for _ in range(chosen.choice([1, 1, 2, 5])):
        kind = chosen.randrange(5)
        if kind == 0 and data:
            at = chosen.randrange(len(data))
            data = data[:at] + bytes([chosen.randrange(256)]) * chosen.randint(0, 2) + data[at + chosen.randint(0, 3) :]
        elif kind < 3:
            lines = data.splitlines(keepends=True) or [b""]
            others = chosen.choice(seeds).splitlines(keepends=True) or [b""]
            at, count = chosen.randrange(len(lines)), chosen.randint(0, 4)
            start = chosen.randrange(len(others))
            new = [[], others[start : start + count], lines[at : at + count] * 2][chosen.randrange(3)]
            data = b"".join([*lines[:at], *new, *lines[at + count :]])
        else:
            tokens = re.findall(rb"\w+|\s+|[^\w\s]", data) or [b""]
            at, other = chosen.randrange(len(tokens)), chosen.randrange(len(tokens))
            tokens[at] = chosen.choice([tokens[other], b"", tokens[at] * 2, b"mx", b"(", b"\\\n", b"\x0c", b"*"])
            data = b"".join(tokens)
    return data


def tried(data: bytes) -> str:
    """What went wrong with a text, "" for nothing."""
    began = time.process_time()
    try:
        found = check_source(data, "fuzz.py")
        if found.errors:
            return f"an internal error: {found.errors[0]}"
        fixed = fix_source(data, "fuzz.py", unsafe_fixes=True)
        after = fixed.after
        if fixed.applied and not is_python(after):
            return f"what was fixed doesn't parse:\n{fixed.diff}"
        if fixed.applied and fix_source(after, "fuzz.py", unsafe_fixes=True).after != after:
            return f"what was fixed is fixed again:\n{fixed.diff}"
    except UnreadableFile:
        return ""  # bytes that are no text
    except Exception:
        return traceback.format_exc()
    took = time.process_time() - began
    return f"it took {took:.0f} s" if took > SLOWEST else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--into", type=Path, default=Path("fuzz-failures"))
    options = parser.parse_args()
    sys.setrecursionlimit(1000)
    seeds = [p.read_bytes() for p in options.files if p.stat().st_size < 30_000]
    ends, counts, number = time.monotonic() + 60 * options.minutes, Counter[str](), 0
    while time.monotonic() < ends:
        chosen = random.Random(f"{options.seed} {number}")
        number += 1
        made = not seeds or chosen.random() < 0.5
        data = Grammar(chosen).module().encode() if made else mutated(chosen, seeds)
        counts["of the grammar" if made else "mutations"] += 1
        counts["that parse"] += is_python(data.decode("utf-8", "replace"))
        wrong = tried(data)
        if wrong:
            counts["failures"] += 1
            options.into.mkdir(exist_ok=True)
            name = hashlib.sha256(data).hexdigest()[:12]
            (options.into / f"{name}.py").write_bytes(data)
            (options.into / f"{name}.txt").write_text(wrong)
            print(f"{name}: {wrong.strip().splitlines()[-1][:200]}", flush=True)
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    return 1 if counts["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
